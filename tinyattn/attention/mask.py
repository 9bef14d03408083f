"""Masks. A mask is a bool Tensor, True = may be attended to; it broadcasts against scores (..., T, S).

    causal     1 0 0 0     forward    0 0 0 0     backward   0 1 1 1     diagonal   0 1 1 1     window     1 1 0 0
               1 1 0 0                1 0 0 0                0 0 1 1                1 0 1 1     before=1   1 1 1 0
               1 1 1 0                1 1 0 0                0 0 0 1                1 1 0 1     after=1    0 1 1 1
               1 1 1 1                1 1 1 0                0 0 0 0                1 1 1 0                0 0 1 1

Rows are queries, columns keys. A row that may attend to nothing gets weights 0, and sends no gradient. With T != S the
ends are aligned: query t stands at the place t + S - T among the keys, as when the last T words of S are asked. Masks
combine by `&`, which broadcasts: `causal(T) & from_lengths(n)` is (B, T, S); `both` takes None too.
"""
import math

import numpy as np

from ..ops.broadcast import ShapeError
from ..tensor import Tensor


def from_lengths(lengths, size=None, device=None):
    """(B,) lengths to a (B, 1, S) mask that is True at the first `lengths[b]` of S keys; S is the longest by default.
    It is made on `device`, by default that of the lengths.

    TypeError for anything but whole numbers of shape (B,), ValueError for a length below 0 or above S.
    """
    device = device or (lengths.device if isinstance(lengths, Tensor) else None)
    lengths = lengths.numpy() if isinstance(lengths, Tensor) else lengths
    lengths = lengths if isinstance(lengths, np.ndarray) else np.asarray(lengths)
    lengths = lengths.astype(np.int64) if lengths.shape == (0,) else lengths  # an empty list is read as floats
    if lengths.ndim != 1 or lengths.dtype.kind not in "iu":
        raise TypeError(f"mask.from_lengths: expected whole numbers of shape (B,), got {lengths.dtype} of shape "
                        f"{lengths.shape}")
    size = int(lengths.max(initial=0)) if size is None else size
    if _readable(lengths) and lengths.size and (lengths.min() < 0 or lengths.max() > size):
        raise ValueError(f"mask.from_lengths: expected lengths between 0 and S = {size}, got {lengths.min()} to "
                         f"{lengths.max()}")
    return Tensor((np.arange(size) < lengths[:, None])[:, None], device=device)


def ahead(queries, keys=None, who="ahead"):
    """(T, S) whole numbers, as an array: how far key s lies after the place of query t, s - (t + S - T)."""
    keys = queries if keys is None else keys
    if not all(isinstance(n, (int, np.integer)) and n >= 0 for n in (queries, keys)):
        raise ValueError(f"mask.{who}: expected T and S to be whole numbers of at least 0, got T = {queries}, "
                         f"S = {keys}")
    return np.arange(keys) - (np.arange(queries)[:, None] + keys - queries)


def causal(queries, keys=None, device=None):
    """(T, S): no key after the query's own place, s <= t + S - T; the last query sees every key. (GPT; eq. 25 of Hu
    2018 with the diagonal allowed.)"""
    return Tensor(ahead(queries, keys, "causal") <= 0, device=device)


def forward(queries, keys=None, device=None):
    """(T, S): only keys before the query's own place, s < t. The first query sees nothing. (DiSAN's forward mask; eq.
    25 of Hu 2018 as printed, whose first row is nan unless empty rows give 0.)"""
    return Tensor(ahead(queries, keys, "forward") < 0, device=device)


def backward(queries, keys=None, device=None):
    """(T, S): only keys after the query's own place, s > t. The last query sees nothing. (DiSAN's backward mask.)"""
    return Tensor(ahead(queries, keys, "backward") > 0, device=device)


def diagonal(queries, keys=None, device=None):
    """(T, S): every key but the query's own place, s != t. (DiSAN's diagonal-disabling mask.)"""
    return Tensor(ahead(queries, keys, "diagonal") != 0, device=device)


def window(queries, keys=None, before=0, after=0, device=None):
    """(T, S): keys from `before` places before the query's own to `after` places after it, t - before <= s <= t +
    after.

    None is no bound: `window(T, before=None)` is `causal(T)`.
    """
    if any(n is not None and n < 0 for n in (before, after)):
        raise ValueError(f"mask.window: expected before and after of at least 0 (or None), got {before} and {after}")
    far = ahead(queries, keys, "window")
    return Tensor((far >= (-np.inf if before is None else -before)) & (far <= (np.inf if after is None else after)),
                  device=device)


def both(first, second):
    """What two masks allow together; None allows everything, and two of them give None."""
    if first is None or second is None:
        return second if first is None else first
    return first & second


def fit(name, mask, B, T, S, H=None):
    """A mask as mechanisms take it, checked, and with `H` made ready for scores (B, H, T, S) of several heads.

    mask   bool: (T, S), (B, 1, S) or (B, T, S); with H also (B, H, T, S); any axis but the last may be 1 long; or None
    Returns the Tensor, of four axes where it had three and H is given. ShapeError and TypeError begin with `name`.
    """
    if mask is None:
        return None
    mask = mask if isinstance(mask, Tensor) else Tensor(mask)
    if mask.dtype.kind != "b":
        raise TypeError(f"{name}: expected a mask of bools, True = may be attended to, got {mask.dtype}")
    full = (B, T, S) if H is None else (B, H, T, S)
    shape = mask.shape if H is None or mask.ndim != 3 else (mask.shape[0], 1, *mask.shape[1:])
    aligned = zip(shape[::-1], full[::-1])
    if not 2 <= len(shape) <= len(full) or shape[-1] != S or any(m not in (1, n) for m, n in aligned):
        heads = "" if H is None else f" or (B, H, T, S) with H = {H}"
        raise ShapeError(f"{name}: expected a mask (T, S), (B, 1, S) or (B, T, S){heads}, B = {B}, T = {T}, S = {S}, "
                         f"got {mask.shape}")
    return mask.reshape(shape)


def _readable(array):
    """Has it values to be checked? An argument of a step that is being captured, of a class of its own, is a name."""
    return type(array) is np.ndarray


def lengths_of(name, mask, *shape):
    """How many places each row of a mask allows, int64, of the mask broadcast to `shape` (..., T), flat.

    ValueError unless they are the first of the row: what runs along a sequence, or is chained, has no room for a hole.
    TypeError for a mask that is not bool.
    """
    if mask.dtype.kind != "b":
        raise TypeError(f"{name}: expected a mask of bools, True = may be attended to, got {mask.dtype}")
    allowed = np.broadcast_to(mask.numpy(), shape).reshape(math.prod(shape[:-1]), shape[-1])
    lengths = allowed.sum(-1)
    if _readable(allowed) and not np.array_equal(allowed, np.arange(shape[-1]) < lengths[:, None]):
        raise ValueError(f"{name}: expected a mask that is True from the start of each sequence to its end, as "
                         "mask.from_lengths makes it; got one with a hole")
    return Tensor(lengths, device=mask.device)
