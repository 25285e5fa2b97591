"""A bench for people: figures for papers, and one page that needs nothing else. It reads a bench's JSON and measures nothing."""
