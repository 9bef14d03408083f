"""Masks. A mask is a bool Tensor, True = may be attended to; it broadcasts against scores (..., T, S).

A row that may attend to nothing gets weights 0, and sends no gradient. Masks combine by `&`: `causal(T) & from_lengths(n)`.
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


def _ahead(queries, keys):
    """(T, S): how far key s lies after the place of query t, the ends aligned: s - (t + S - T)."""
    keys = queries if keys is None else keys
    if queries < 0 or keys < 0:
        raise ValueError(f"mask: expected T and S of at least 0, got T = {queries}, S = {keys}")
    return np.arange(keys) - (np.arange(queries)[:, None] + keys - queries)


def causal(queries, keys=None):
    """(T, S) mask: query t may attend to no key after its own place. With T != S the ends are aligned, so that the last
    query sees every key: t may see s <= t + S - T. (GPT; eq. 25 of Hu 2018 with the diagonal allowed.)"""
    return Tensor(_ahead(queries, keys) <= 0)


def forward(queries, keys=None):
    """(T, S): only keys before the query's own place, s < t. The first query sees nothing. (DiSAN's forward mask; eq. 25 of
    Hu 2018 as printed, whose first row is nan unless empty rows give 0.)"""
    return Tensor(_ahead(queries, keys) < 0)


def backward(queries, keys=None):
    """(T, S): only keys after the query's own place, s > t. The last query sees nothing. (DiSAN's backward mask.)"""
    return Tensor(_ahead(queries, keys) > 0)


def diagonal(queries, keys=None):
    """(T, S): every key but the query's own place, s != t. (DiSAN's diagonal-disabling mask.)"""
    return Tensor(_ahead(queries, keys) != 0)


def window(queries, keys=None, before=0, after=0):
    """(T, S): keys from `before` places before the query's own to `after` places after it, t - before <= s <= t + after."""
    if before < 0 or after < 0:
        raise ValueError(f"mask.window: expected before and after of at least 0, got {before} and {after}")
    ahead = _ahead(queries, keys)
    return Tensor((ahead >= -before) & (ahead <= after))
