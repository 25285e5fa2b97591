"""RCSD-style training: a head learns, round by round, from what the target kept and refused of its own drafts."""
