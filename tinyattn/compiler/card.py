"""What a captured step does otherwise on a card: how it sends numbers there, and in which memory it computes.

Nothing waits. The arrays of a step are sent from page-locked memory into arrays of their own, and what kernels write lies
in one block of the card's memory, dealt out by `memory.py` as the host's is.
"""

import numpy as np

from .. import device
from ..cuda import SIMULATED, flat, reshaped
from ..cuda.arrays import _fill_cuda, known, remember
from ..updates_cuda import Outbox, address_of

ALIGN = 256  # bytes: what a card's own memory begins at


def holds(x):
    """Is this an array of a card?"""
    return hasattr(x, "copy_to_host")


def memory_of(array):
    """The place of a card's array. One without elements has none, and shares nothing."""
    return ("card", address_of(array)) if array.size else ("nothing", id(array))


def piece(memory, start, shape, dtype):
    """The array that begins at this byte of `memory`, an array of bytes on a card. (As Numba's own `split` makes one.)"""
    empty = np.empty(shape, dtype)
    if empty.size == 0:
        return device.empty(shape, dtype, "cuda")
    if SIMULATED:
        return type(memory)(memory._ary[start:start + empty.nbytes].view(dtype).reshape(shape))
    return type(memory)(empty.shape, empty.strides, empty.dtype, gpu_data=memory.gpu_data.view(start, start + empty.nbytes))


def copy_into(own, array):
    """own[...] = array, two arrays of one shape and type, both on the host or both on a card."""
    if isinstance(own, np.ndarray):
        np.copyto(own, array)
    elif own.size:
        own.copy_to_device(array)


def clear(own):
    """own[...] = 0"""
    _fill_cuda.each(own.size)(flat(own), own.dtype.type(0))


class Letter:
    """An array on the card whose numbers come from `host`, an array there, at each replay; see `Outbox`. As after any sending,
    what is no float is remembered, so that an op which plans by it need not ask the card. Of the type of `value`."""

    def __init__(self, value, host):
        size = int(np.prod(value.shape, dtype=np.int64))
        self.shape, self.host, self.box = value.shape, host, Outbox((max(size, 1),), np.dtype(value.dtype))
        self.array = reshaped(self.box.there, value.shape)
        self.send()

    def send(self):
        if self.host.size == 0:
            return
        self.box.send(np.asarray(self.host, self.array.dtype).reshape(-1))
        if self.array.dtype.kind != "f":
            remember(self.array, self.box.last.reshape(self.shape))


def follow(own, result):
    """Have the ops know of `own` what they know of `result`, which stands in the same memory or was copied there."""
    numbers = known(result)
    if own is not result and numbers is not None:
        remember(own, numbers)


def send(numbers, dtype):
    """The numbers on the card, in a new array."""
    return device.to_device(np.array(numbers, dtype, order="C"), "cuda")


def fresh(shape, dtype):
    """A new array of the card, not a planned one."""
    before, device.planned.take = device.planned.take, None
    try:
        return device.empty(shape, dtype, "cuda")
    finally:
        device.planned.take = before


def plan_memory():
    """From now on `device.empty(..., "cuda")` asks `device.planned.take.on_card` while a call is replayed. It ends in Numba's
    `device_array`, which is where it is asked."""
    module = device.numba_cuda()
    make = module.device_array
    if getattr(make, "asks", False):
        return

    def device_array(shape, dtype=np.float64, **options):
        take = device.planned.take
        planned = None if take is None else take.on_card(shape, dtype)
        return make(shape, dtype, **options) if planned is None else planned
    device_array.asks = True
    module.device_array = device_array
