"""``python -m neusight``."""

from neusight.cli import main

main()
