"""The commands of the command line. `cli.py` has the table."""
