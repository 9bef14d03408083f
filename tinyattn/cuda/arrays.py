"""Arrays on a card, in the forms that kernels take."""
import weakref
from functools import lru_cache

import numpy as np

from .. import device
from .kernel import NUMBERS, SIMULATED, cuda, cuda_function, cuda_kernel


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


def known(array):
    """What the host knows of an array on a card without asking it (see `device.to_device`): a NumPy array, or None."""
    entry = device._remembered.get(id(array))
    return None if entry is None or entry[0]() is not array else entry[1]


def remember(array, numbers):
    """Have the host know these numbers, which nobody may write to, as those of an array on a card."""
    numbers, key = numbers.view(), id(array)
    numbers.flags.writeable = False
    device._remembered[key] = weakref.ref(array, lambda gone: device._remembered.pop(key, None)), numbers


def address(array):
    """Where the memory of an array on a card begins: all its shapes have this in common."""
    return (array._ary.__array_interface__ if SIMULATED else array.__cuda_array_interface__)["data"][0]


def forget(array):
    """The numbers of `array` are about to change: what the host knows of them, under any shape, will not hold."""
    for key, (other, _) in list(device._remembered.items()):
        other = other()
        if other is not None and address(other) == address(array):
            device._remembered.pop(key, None)


def follow(out, function, *inputs):
    """`out` was computed on a card from `inputs`, none of them floats, as `function` would on the host. Where the host
    knows the inputs it works out the result too: they are few numbers, lengths and masks, and nobody need wait for
    them. Returns `out`."""
    hosts = [None if x is None else known(x) for x in inputs]
    if out.dtype.kind != "f" and all(h is not None or x is None for h, x in zip(hosts, inputs, strict=True)):
        remember(out, np.array(function(*hosts)))
    return out


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
def place(e, plan, i):
    """Where element number e of a broadcast result stands in input i. See `broadcast.py`.

    A division takes a card some twenty instructions, of 64 bits about seventy. So an input of the result's shape and one
    single number are found without, a row or a column by one, and only results beyond 2^32 elements need 64 bits.
    """
    if plan[0, 0] == 1:
        return e * plan[0, 2 + i]
    last = plan.shape[0] - 1
    if plan[last, 1 + i] != 0:
        return e
    row = quotient(e, plan[0, 1])
    at = (e - row * plan[0, 1]) * plan[0, 2 + i]
    d = plan[last, 0] - 1
    while d > 0 and row > 0:
        outer = quotient(row, plan[1, d])
        at += (row - outer * plan[1, d]) * plan[2 + i, d]
        row = outer
        d -= 1
    return at + row * plan[2 + i, 0]


@cuda_function
def quotient(a, b):
    """a // b of numbers that are not negative: without a sign the compiler asks first whether 32 bits are enough."""
    return np.int64(np.uint64(a) // np.uint64(b))
