"""Rules decide which drafted tokens are kept. Each file holds one family; `walk` is the seam they share."""
