"""Records of decoding: what was drafted, what was kept and what was refused, for drafters that learn from it."""
