"""The workloads of `tinyattn bench`: what is timed, by us and by every peer, on the same numbers. One file a group of rows.

On a card (`--device cuda`) the same rows run there, and the rows of one more group, `card.py`.
"""
import importlib

GROUPS = ("small", "recurrent", "attention", "layers", "optimiser", "training")  # the order of the table


def rows():
    """The table, in order: a list of `Row`."""
    return [row for name in GROUPS for row in importlib.import_module(f".{name}", __name__).rows()]
