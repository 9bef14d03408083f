"""Masks. A mask is a bool Tensor, True = may be attended to; it broadcasts against scores (..., T, S).

A row that may attend to nothing gets weights 0, and sends no gradient.
"""
import numpy as np

from ..tensor import Tensor


def from_lengths(lengths, size=None):
    """(B,) lengths to a (B, 1, S) mask that is True at the first `lengths[b]` of S keys; S is the longest by default."""
    lengths = np.asarray(lengths.numpy() if isinstance(lengths, Tensor) else lengths)
    if lengths.ndim != 1 or lengths.dtype.kind not in "iu":
        raise TypeError(f"mask.from_lengths: expected whole numbers of shape (B,), got {lengths.dtype} of shape {lengths.shape}")
    size = int(lengths.max(initial=0)) if size is None else size
    if lengths.size and (lengths.min() < 0 or lengths.max() > size):
        raise ValueError(f"mask.from_lengths: expected lengths between 0 and S = {size}, got {lengths.min()} to {lengths.max()}")
    return Tensor((np.arange(size) < lengths[:, None])[:, None])


def causal(queries, keys=None):
    """(T, S) mask: query t may attend to no key after its own place. With T != S the ends are aligned, so that the last
    query sees every key: t may see s <= t + S - T."""
    keys = queries if keys is None else keys
    return Tensor(np.arange(keys) <= np.arange(queries)[:, None] + keys - queries)
