"""Attention mechanisms, one file each. `core.py` is the spine, `mask.py` makes masks; every other file is a mechanism.

To add one, put a file here (or anywhere: `--attention my.py:name`) in the shape of `additive.py`. Nothing else is edited.
"""
from . import mask  # noqa: F401
from .core import find, table, variant, weigh  # noqa: F401
