"""Device memory that is kept for the next array of its size: after the first training step no step asks the driver.

Numba asks the driver for each array and gives it back when the array has gone, ten at a time. The driver waits for the
card before it takes memory back, so each time the card runs dry. With TINYATTN_CUDA_POOL=1 a pool stands between: a block
given back is kept, and the next array of its size class gets it.

Why that is safe, although the card may not have run the kernel yet that reads the old array: all kernels and copies are
launched in one stream, which runs them in the order of their launches. Whatever writes the block next was launched after
whatever read it last. Streams of one's own break that order; who makes some waits for them (`stream.synchronize()`) before
an array that they use goes.

Out of memory: the blocks that are kept go back to the driver, and it is asked once more.
"""
import os
import threading
import weakref
from collections import Counter, deque
from contextlib import suppress
from functools import lru_cache, partial
from typing import NamedTuple

import numba
import numpy as np

from .kernel import SIMULATED

POOL = os.environ.get("TINYATTN_CUDA_POOL", "0") not in ("", "0")
SMALLEST = 512  # bytes: the smallest block
_pools = weakref.WeakSet()


class Stats(NamedTuple):
    """in_use: bytes that arrays have; cached: bytes kept for the next ones; peak: the most that arrays had; asked: how
    often the driver was asked for memory; reused: how often it was not."""
    in_use: int = 0
    cached: int = 0
    peak: int = 0
    asked: int = 0
    reused: int = 0


def size_class(size):
    """The bytes of the block for an array of `size` bytes: the next of eight steps between two powers of two, so at most an
    eighth more; 512 at least, and a multiple of it."""
    step = 1 << (size - 1).bit_length() - 4 if size > 8 * SMALLEST else SMALLEST
    return max(-(-size // step), 1) * step


class Pool:
    """Blocks of memory by size class.

    allocate(bytes) gives a block, or raises MemoryError; a block that nobody holds any more is the driver's again, once
    release() has been called.
    """
    def __init__(self, allocate, release=lambda: None):
        self.allocate, self.release = allocate, release
        self._kept, self._lock = {}, threading.Lock()  # {size class: blocks}
        self._returned = deque()  # (size class, block): arrays go at any moment, also while the lock is held
        self._count = Counter()
        _pools.add(self)

    def take(self, size):
        """(size class, block) for an array of `size` bytes; `give` takes the pair back."""
        size = size_class(size)
        with self._lock:
            self._collect()
            kept, count = self._kept.get(size), self._count
            if kept:
                block = kept.pop()
                count["cached"] -= size
                count["reused"] += 1
            else:
                block = self._fresh(size)
                count["asked"] += 1
            count["in_use"] += size
            count["peak"] = max(count["peak"], count["in_use"])
        return size, block

    def give(self, taken):
        """The array that had this has gone. It takes no lock: Python may call it between any two steps of `take`."""
        self._returned.append(taken)

    def empty(self):
        """Give all blocks that no array has back to the driver."""
        with self._lock:
            self._collect()
            self._drop()

    def stats(self):
        with self._lock:
            self._collect()
            return Stats(**self._count)

    def _collect(self):
        while self._returned:
            size, block = self._returned.popleft()
            self._kept.setdefault(size, []).append(block)
            self._count["cached"] += size
            self._count["in_use"] -= size

    def _drop(self):
        self._kept.clear()
        self._count["cached"] = 0
        self.release()

    def _fresh(self, size):
        try:
            return self.allocate(size)
        except MemoryError:
            kept = self._count["cached"]
            self._drop()
        try:
            return self.allocate(size)
        except MemoryError as error:
            raise MemoryError(f"device 'cuda': no {_words(size)} are free: arrays have {_words(self._count['in_use'])}, and "
                              f"{_words(kept)} that were kept for others have been given back; try smaller sizes") from error


def _words(size):
    """Bytes as a person reads them."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size} bytes"


def stats():
    """What the pool has, of all cards together. In the simulator it counts the arrays as a card's pool would."""
    every = [pool.stats() for pool in list(_pools)]
    return Stats(*map(sum, zip(*every, strict=True))) if every else Stats()


def empty_cache():
    """Give the blocks that no array has back to the driver."""
    for pool in list(_pools):
        pool.empty()


# ---------------------------------------------------------------------------------------------------------------------
# where Numba asks for memory
# ---------------------------------------------------------------------------------------------------------------------
def _plug():
    """Numba imports the module of this name when it makes a card's context, and takes `_numba_memory_manager` from it."""
    if not POOL:
        return
    if numba.config.CUDA_PER_THREAD_DEFAULT_STREAM:
        raise RuntimeError("TINYATTN_CUDA_POOL=1: the pool is safe in one stream only; unset "
                           "NUMBA_CUDA_PER_THREAD_DEFAULT_STREAM")
    if SIMULATED:
        _count_simulated()
    elif numba.config.CUDA_MEMORY_MANAGER in ("default", __name__):
        numba.config.CUDA_MEMORY_MANAGER = __name__
    else:
        raise RuntimeError("TINYATTN_CUDA_POOL=1: NUMBA_CUDA_MEMORY_MANAGER names another one, "
                           f"{numba.config.CUDA_MEMORY_MANAGER}; unset one of them")


def __getattr__(name):
    if name == "_numba_memory_manager":
        return _manager()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@lru_cache(maxsize=1)
def _manager():
    """The class that Numba makes one of for each card. It is made here, since it is derived from a class of `numba.cuda`."""
    from numba.cuda.cudadrv import driver, enums

    class Pooled(driver.NumbaCUDAMemoryManager):
        """Numba's own manager; its blocks pass through the pool."""

        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.pool = Pool(self._allocate, self._release)

        def _allocate(self, size):
            try:
                return super().memalloc(size)  # at a first failure it clears what waits to be freed, and asks again
            except driver.CudaAPIError as error:
                if error.code == enums.CUDA_ERROR_OUT_OF_MEMORY:
                    raise MemoryError(str(error)) from error
                raise

        def _release(self):
            self.deallocations.clear()

        def memalloc(self, size):
            taken = self.pool.take(size)
            return driver.MemoryPointer(weakref.proxy(self.context), taken[1].device_pointer, size,
                                        finalizer=partial(self.pool.give, taken))

        def reset(self):
            _pools.discard(self.pool)  # arrays that are still there give back to it, and nobody takes from it any more
            self.pool = Pool(self._allocate, self._release)
            super().reset()

    return Pooled


def mend():
    """Where Numba gives memory, events and kernels back to the driver. It would do so in the thread in which the last array
    went, perhaps one without a context (a progress bar's, where Python collected garbage), and what fails then is lost: here
    it waits for a thread that has one. And once a kernel has failed every call fails: whoever asks the card for something
    is told so, and not each array that goes as well."""
    from numba.cuda.cudadrv import driver

    def add_item(waiting, give_back, handle, size=driver._SizeNotSet, add_item=driver._PendingDeallocs.add_item):
        with suppress(driver.CudaAPIError), driver.driver.get_active_context() as context:
            if context:
                add_item(waiting, give_back, handle, size)  # and if there are many, all go
            else:
                waiting._cons.append((give_back, handle, size))
                waiting._size += int(size)
    driver._PendingDeallocs.add_item = add_item


def _count_simulated():
    """The simulator's arrays lie in NumPy's memory. The pool's blocks are nothing, but it counts as it would on a card."""
    from .. import device
    pool = Pool(lambda size: object())
    cuda = device.numba_cuda()

    def counted(make):
        def made(*args, **kwargs):
            array = make(*args, **kwargs)
            if array is not None and array.size:
                memory = array._ary
                while isinstance(memory.base, np.ndarray):  # what all shapes of the array hold
                    memory = memory.base
                weakref.finalize(memory, pool.give, pool.take(array._ary.nbytes)).atexit = False
            return array
        return made

    cuda.device_array, cuda.to_device = counted(cuda.device_array), counted(cuda.to_device)


_plug()
