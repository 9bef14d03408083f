"""Attention mechanisms, one file each. `core.py` is the spine and names the few files beside it; the rest are
mechanisms.

To add one, put a file here (or anywhere: `--attention my.py:name`) in the shape of `additive.py`. Nothing else is
edited.
"""
from . import mask  # noqa: F401
from .core import by_family, find, scores_of, show, table, variant, weigh, weights_of  # noqa: F401
