"""Training of draft heads: the target's own answers, its features, one loop, and what comes out."""
