"""A memory checker and a race checker for kernels, without a card: the simulator, with every access watched.

    with watch() as found:          # found: {kernel: {what: how often}}, filled as kernels run
        x.softmax()

Kernels that pass under it touch no element outside of an array (the simulator alone lets x[-1] pass, which on a card is
memory of somebody else), read no shared element that nobody has written, and depend on no order among threads:

    in a block          between two barriers no thread touches an element that another one writes
    between blocks      in one launch no block touches an element of global memory that another one writes
    at a barrier        every thread of the block comes to it

An error is a `Fault` that names kernel, array, element and threads. Of memory that a kernel reaches by its address (the
parameters in `updates_cuda.py`) the kernel itself says how long it is. On a card NVIDIA's compute-sanitizer does the same.

    with count() as found:          # found: {kernel: Count}
        x.softmax()

checks nothing, but counts: launches, threads, barriers, and each read and write of global and of shared memory.
"""
import re
import threading
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from unittest import mock

import numpy as np

from .. import device
from . import simulator
from .kernel import SIMULATED, CudaKernel

WHERE = re.compile(r"^tid=\[.*?\] ctaid=\[.*?\]: ")  # what the simulator puts before an error's text


class Fault(AssertionError):
    """A kernel did what it must not do."""


class Watched:
    """An array in a kernel's hands: NumPy's, with a note of who wrote and read each element last."""

    def __init__(self, array, name, shared):
        self.array, self.name, self.shared = array, name, shared
        self.dtype, self.shape, self.size, self.ndim = array.dtype, array.shape, array.size, array.ndim
        self.written, self.read = {}, {}  # element -> (block, thread, barriers that it had passed)

    def __len__(self):
        return len(self.array)

    def __getitem__(self, index):
        at, me = self._element(index), _me()
        if self.shared:
            last = self.written.get(at)
            if last is None or last[0] != me[0]:
                self._fault(at, f"thread {me[1]} reads an element that no thread of its block has written")
        self._must_not_meet(at, self.written.get(at), me, "reads what", "writes")
        seen = self.read.get(at)
        if seen is None or seen == me or (seen[0] == me[0] and seen[2] != me[2]):
            self.read[at] = me
        elif seen[:2] != me[:2]:
            self.read[at] = seen[0] if seen[0] == me[0] else None, None, me[2]  # several threads, or several blocks
        return self.array[at]

    def __setitem__(self, index, value):
        at, me = self._element(index), _me()
        self._must_not_meet(at, self.written.get(at), me, "writes what", "writes")
        self._must_not_meet(at, self.read.get(at), me, "writes what", "reads")
        self.written[at] = me
        self.array[at] = value

    def _element(self, index):
        index = index if type(index) is tuple else (index,)
        if len(index) != self.ndim:
            self._fault(index, f"{len(index)} indices for {self.ndim} axes")
        for i, n in zip(index, self.shape):
            if not (isinstance(i, (int, np.integer)) and 0 <= i < n):
                self._fault(index, f"outside of its shape {self.shape}")
        return tuple(map(int, index))

    def _must_not_meet(self, at, other, me, mine, its):
        if other is None or other == me:
            return
        if other[0] != me[0]:
            if not self.shared:
                self._fault(at, f"block {me[0]} {mine} block {'(several)' if other[0] is None else other[0]} {its} "
                                "in the same launch")
        elif other[1] != me[1] and other[2] == me[2]:
            self._fault(at, f"thread {me[1]} {mine} thread {'(several)' if other[1] is None else other[1]} {its}, with no "
                            f"barrier between them (block {me[0]})")

    def _fault(self, at, what):
        raise Fault(f"{self.name}[{', '.join(map(str, at))}]: {what}")


def _me():
    """(block, thread, barriers passed) of the thread that runs."""
    thread = threading.current_thread()
    return thread.blockIdx.x, thread.threadIdx.x, getattr(thread, "passed", 0)


@contextmanager
def watch():
    """Watch every launch inside. RuntimeError where there is no simulator."""
    found, now, notes = {}, [""], {}

    def simulate(kernel, grid, arguments):
        now[0] = kernel.name
        notes.clear()
        watched = _wrapped(kernel, arguments, lambda array, name: Watched(array, f"{kernel.name}: {name}", False))
        _join_aliases(watched)
        found[kernel.name] = found.get(kernel.name, 0) + 1
        try:
            before(kernel, grid, watched)
        except Fault as fault:
            raise Fault(WHERE.sub("", str(fault))) from None

    def shared(shape, dtype):
        return Watched(np.empty(shape, dtype), f"{now[0]}: a shared array", True)

    def at_address(array):
        found = Watched(array, f"{now[0]}: an array found by its address", False)
        found.written, found.read = notes.setdefault((array.__array_interface__["data"][0], array.dtype), ({}, {}))
        return found

    with _simulated_by(simulate, shared, all_at_barriers=True, at_address=at_address) as before:
        yield found


@contextmanager
def _simulated_by(simulate, shared, **more):
    """Launches go to simulate(kernel, grid, arguments), shared arrays come from `shared`; more: other things of `simulator`
    for the time. Gives what simulates otherwise."""
    if not SIMULATED:
        raise RuntimeError("checker: watches the simulator; set NUMBA_ENABLE_CUDASIM=1")
    before = CudaKernel._simulate
    with (mock.patch.object(CudaKernel, "_simulate", simulate),
          mock.patch.multiple(simulator, shared_array=shared, **more)):
        yield before


def _wrapped(kernel, arguments, wrap):
    """The arguments of a launch with wrap(array, name) in place of each array."""
    names = kernel.function.__code__.co_varnames
    return [wrap(a._ary, name) if hasattr(a, "_ary") else a for name, a in zip(names, arguments)]


def _join_aliases(arguments):
    """One array given twice is one memory: its accesses are noted in one place."""
    seen = {}
    for a in arguments:
        if isinstance(a, Watched):
            key = a.array.__array_interface__["data"][0], a.array.dtype, a.shape
            first = seen.setdefault(key, a)
            a.written, a.read = first.written, first.read


# ---------------------------------------------------------------------------------------------------------------------
# counting
# ---------------------------------------------------------------------------------------------------------------------
WARP, PIECE = 32, 32  # threads that a card has do one instruction together; bytes that its memory gives at once


@dataclass
class Count:
    """What all launches of a kernel did.

    reads, writes   elements of global memory, by the name that the kernel has for the array
    pieces          of PIECE bytes of global memory that were asked for, by the same names: what the threads of a
                    warp want at once from one piece is asked for once. The n-th access of a thread to an array
                    is taken for the same instruction as its neighbours' n-th, so a kernel whose threads
                    go different ways is not counted truly
    barriers        that blocks passed, all blocks together
    """
    launches: int = 0
    blocks: int = 0
    threads: int = 0
    barriers: int = 0
    shared_reads: int = 0
    shared_writes: int = 0
    reads: Counter = field(default_factory=Counter)
    writes: Counter = field(default_factory=Counter)
    pieces: Counter = field(default_factory=Counter)


class Counted:
    """An array of global memory in a kernel's hands: NumPy's, with its accesses counted."""

    def __init__(self, array, name, into):
        self.array, self.name, self.into = array, name, into
        self.dtype, self.shape, self.size, self.ndim = array.dtype, array.shape, array.size, array.ndim
        self.turns, self.asked = Counter(), {}  # accesses of each thread so far; (block, warp, turn) -> pieces

    def __len__(self):
        return len(self.array)

    def __getitem__(self, index):
        self.into.reads[self.name] += 1
        self._ask(index)
        return self.array[index]

    def __setitem__(self, index, value):
        self.into.writes[self.name] += 1
        self._ask(index)
        self.array[index] = value

    def _ask(self, index):
        (block, thread, _), at = _me(), 0
        for i, n in zip(index if type(index) is tuple else (index,), self.shape):
            at = at * n + int(i)
        turn = self.turns[block, thread]
        self.turns[block, thread] += 1
        self.asked.setdefault((block, thread // WARP, turn), set()).add(at * self.dtype.itemsize // PIECE)

    def pieces(self):
        return sum(map(len, self.asked.values()))


class CountedShared:
    """A shared array, with its accesses counted."""

    def __init__(self, array, into):
        self.array, self.into, self.dtype, self.shape, self.size = array, into, array.dtype, array.shape, array.size

    def __len__(self):
        return len(self.array)

    def __getitem__(self, index):
        self.into.shared_reads += 1
        return self.array[index]

    def __setitem__(self, index, value):
        self.into.shared_writes += 1
        self.array[index] = value


@contextmanager
def count():
    """Count what every launch inside does. RuntimeError where there is no simulator."""
    found, now = {}, [None]

    def simulate(kernel, grid, arguments):
        now[0] = into = found.setdefault(kernel.name, Count())
        into.launches, into.blocks, into.threads = into.launches + 1, into.blocks + grid[0], into.threads + grid[0] * grid[1]
        counted = _wrapped(kernel, arguments, lambda array, name: Counted(array, name, into))
        before(kernel, grid, counted)
        for a in counted:
            if isinstance(a, Counted):
                into.pieces[a.name] += a.pieces()

    def syncthreads(module):
        if _me()[1] == 0:
            now[0].barriers += 1
        wait(module)

    with _simulated_by(simulate, lambda shape, dtype: CountedShared(np.empty(shape, dtype), now[0])) as before:
        device.numba_cuda()
        from numba.cuda.simulator.kernelapi import FakeCUDAModule
        wait = FakeCUDAModule.syncthreads
        with mock.patch.object(FakeCUDAModule, "syncthreads", syncthreads):
            yield found
