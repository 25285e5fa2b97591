"""Drafters propose trees. One file each; `table.py` names them."""
