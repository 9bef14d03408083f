"""Arrays on a card, in the forms that kernels take."""
from functools import lru_cache

import numpy as np

from .. import device
from .kernel import NUMBERS, cuda, cuda_function, cuda_kernel


def reshaped(x, shape):
    """A device array under another shape; the same memory. (Numba cannot reshape a card's array without elements.)"""
    return x.reshape(tuple(shape)) if x.size else device.empty(shape, x.dtype, "cuda")


def flat(x):
    """x with one axis, as kernels take it. In place of no elements there is one that nobody reads: Numba does not call
    an empty array of a card contiguous, and would compile the kernel once more for it."""
    return device.empty(1, x.dtype, "cuda") if x.size == 0 else x if x.ndim == 1 else x.reshape((x.size,))


def full(shape, value, dtype):
    """A fresh array filled with a number, made on the card: nothing is sent."""
    out = device.empty(shape, dtype, "cuda")
    dtype = np.dtype(dtype)
    _fill_cuda.each(out.size)(flat(out), int(value) if dtype.kind == "i" else dtype.type(value))
    return out


def zeros(shape, dtype):
    return full(shape, 0, dtype)


def number(value, dtype):
    """One number as an array without axes, sent once and kept. Nobody may write to it."""
    return on_card(np.array(value, dtype))


def add_to(total, part):
    """total += part, in place."""
    _add_to_cuda.each(total.size)(flat(total), flat(part))


@cuda_kernel("T[::1], T[::1]", NUMBERS)
def _add_to_cuda(total, part):
    i = cuda.grid(1)
    if i < total.size:
        total[i] += part[i]


@cuda_kernel("T[::1], T", NUMBERS)
def _fill_cuda(out, value):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = value


def on_card(plan):
    """A small NumPy array of the host (a plan of `broadcast.py`) on the card. Copies are kept."""
    return _copied(plan.tobytes(), plan.shape, plan.dtype.str)


@lru_cache(maxsize=4096)
def _copied(memory, shape, dtype):
    return device.to_device(np.frombuffer(memory, dtype).reshape(shape), "cuda")


@cuda_function
def place(e, size, plan, i):
    """Where element number e of a broadcast result of `size` elements stands in input i. See `broadcast.py`."""
    n = plan[0, 1] if plan[0, 1] >= 0 else size
    at = e % n * plan[0, 2 + i]
    if plan[0, 0] > 1:
        row = e // n
        for d in range(plan.shape[1] - 1, -1, -1):
            at += row % plan[1, d] * plan[2 + i, d]
            row //= plan[1, d]
    return at
