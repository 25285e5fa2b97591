"""Drafters propose trees. One file each; `methods.py` names them."""
