"""`python -m paceline.cli`."""

from . import main

main()
