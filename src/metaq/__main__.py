"""`python -m metaq` is the command `metaq`."""

from metaq.cli.main import main

main()
