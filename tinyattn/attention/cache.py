"""What a decoder keeps of the words that it has read, so that a step computes the keys and values of one word alone.

    cache = Cache()
    with no_grad():
        for x in words:                                        # x (B, 1, D), one word at a time
            y = multi_head(x, ..., cache=cache)                # the last row of the causal multi_head(all words)

One Cache a layer. A mechanism takes it as `cache=None`, is causal with it, and uses one of its two halves:

    append     keys and values of every word, in a buffer that doubles when it is full: n words cost O(n) copying in
               all, where joining old and new at every step would cost O(n^2). (On a card, whose arrays have no parts
               that share memory, they are joined)
    replace    a past of a fixed size, such as the two sums of linear attention

It is for decoding alone: what lies in the buffer is outside the graph, so a word that still needs a gradient is
refused.
"""
import numpy as np

from ..autograd import is_grad_enabled
from ..functional import concat, zeros
from ..ops.broadcast import ShapeError
from ..tensor import Tensor


class Cache:
    """The past of one attention layer. `length` is the number of words in it.

    capacity   words to make room for at the start; it grows by itself
    """

    def __init__(self, capacity=16):
        if not isinstance(capacity, (int, np.integer)) or capacity < 1:
            raise ValueError(f"Cache: expected a capacity of at least 1, got {capacity!r}")
        self.length, self._capacity, self._buffers, self._state = 0, int(capacity), None, None

    def __repr__(self):
        return f"Cache(length={self.length})"

    def append(self, k, v):
        """Add the keys k (B, H, T, D) and values v (B, H, T, E) of T new words; returns those of all words so far,
        (B, H, S, D) and (B, H, S, E), which show the buffer's memory.

        RuntimeError if a gradient is needed, ShapeError or TypeError where B, H, D, E or the type are not those of the
        past.
        """
        _outside_the_graph(k, v)
        if k.ndim != 4 or v.ndim != 4 or k.shape[:3] != v.shape[:3]:
            raise ShapeError(f"Cache.append: expected k (B, H, T, D) and v (B, H, T, E), got {k.shape} and {v.shape}")
        if self._state is not None:
            raise ValueError("Cache.append: this cache holds the running sums of another mechanism; make one a layer")
        end = self.length + k.shape[2]
        self._check_past(k, v)
        if k.device == "cpu":
            self._make_room(k.array, v.array, end)
            for buffer, new in zip(self._buffers, (k, v), strict=True):
                buffer[:, :, self.length:end] = new.array
            known = [buffer[:, :, :end] for buffer in self._buffers]
        else:
            past = [()] * 2 if self._buffers is None else [(_tensor(buffer),) for buffer in self._buffers]
            known = self._buffers = [concat([*old, new], 2).array for old, new in zip(past, (k, v), strict=True)]
        self.length = end
        return tuple(map(_tensor, known))

    def _check_past(self, k, v):
        """Are new words like those of the past?"""
        for what, old, new in zip("kv", self._buffers or (), (k, v), strict=False):
            if (old.shape[:2], old.shape[3]) != (new.shape[:2], new.shape[3]):
                B, H, _, D = old.shape
                raise ShapeError(f"Cache.append: expected {what} of shape ({B}, {H}, T, {D}) as before, got "
                                 f"{new.shape}")
            if old.dtype != new.dtype:
                raise TypeError(f"Cache.append: expected {what} of {old.dtype} as before, got {new.dtype}")

    def _make_room(self, k, v, end):
        """Buffers (B, H, capacity, D) and (B, H, capacity, E) with room for `end` words and the past in them."""
        if self._buffers is None:
            self._buffers = [np.empty((*new.shape[:2], 0, new.shape[3]), new.dtype) for new in (k, v)]
        if end > self._buffers[0].shape[2]:
            self._capacity = max(self._capacity, end, 2 * self._buffers[0].shape[2])
            for i, old in enumerate(self._buffers):
                new = np.empty((*old.shape[:2], self._capacity, old.shape[3]), old.dtype)
                new[:, :, :self.length] = old[:, :, :self.length]
                self._buffers[i] = new

    def state(self, shape, dtype, device="cpu"):
        """The Tensor (B, ...) that `replace` was given last, or zeros at the start. ShapeError or TypeError where it is
        not of this shape and type."""
        if self._buffers is not None:
            raise ValueError("Cache.state: this cache holds the keys and values of another mechanism; make one a layer")
        past = zeros(*shape, dtype=dtype, device=device).array if self._state is None else self._state
        if past.shape != tuple(shape):
            raise ShapeError(f"Cache.state: expected words for a state of shape {past.shape} as before, got "
                             f"{tuple(shape)}")
        if past.dtype != dtype:
            raise TypeError(f"Cache.state: expected words of {past.dtype} as before, got {np.dtype(dtype)}")
        return _tensor(past)

    def replace(self, state, words):
        """Keep the Tensor `state` (B, ...) as the past, in place of the one before, after `words` more of them."""
        _outside_the_graph(state)
        self._state, self.length = state.array, self.length + words

    def reorder(self, rows):
        """Row b of the batch gets the past of row `rows[b]`: for a beam search, whose survivors change places.

        rows   (B',) whole numbers 0 .. B - 1; B' may differ from B, so the first step may fan out one row to all beams
        """
        rows = np.asarray(rows.numpy() if isinstance(rows, Tensor) else rows)
        if rows.ndim != 1 or rows.dtype.kind not in "iu":
            raise TypeError(f"Cache.reorder: expected whole numbers of shape (B,), got {rows.dtype} of shape "
                            f"{rows.shape}")
        held = self._buffers if self._buffers is not None else [] if self._state is None else [self._state]
        if held and rows.size and (rows.min() < 0 or rows.max() >= held[0].shape[0]):
            raise IndexError(f"Cache.reorder: expected rows 0 .. {held[0].shape[0] - 1}, got {rows.min()} to {rows.max()}")
        if self._buffers is not None:
            self._buffers = [_tensor(buffer)[rows].array for buffer in self._buffers]
        elif self._state is not None:
            self._state = _tensor(self._state)[rows].array


def _tensor(array):
    """Outside the graph."""
    return Tensor._wrap(array, None, 0, False)


def _outside_the_graph(*tensors):
    for t in tensors:
        if t.requires_grad and is_grad_enabled():
            raise RuntimeError(f"Cache: the new words of shape {t.shape} need a gradient, which a cache cannot send "
                               "back: decode under no_grad(), or train on whole sequences with causal=True")
