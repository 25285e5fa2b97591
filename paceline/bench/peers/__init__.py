"""Other libraries' decoding, each in a process of its own.

What runs there (`worker` and the modules `of_...`) is started in the peer's own environment, where Paceline and its packages need not be
installed: it imports the standard library, the peer, and here and in `bench` only what imports no more than that.
"""
