"""Numba's simulator of a card: what it does otherwise than a card, mended, and in half the time."""
import copyreg
import sys
import threading

import numpy as np

from .. import device

shared_array = np.empty   # what a kernel is given as a shared array; `checker.py` puts another in its place
at_address = lambda array: array  # noqa: E731  (and in that of an array that a kernel finds by its address)
all_at_barriers = False   # is it an error if a thread ends while others wait at a barrier?


def mend():
    """What Numba's simulator does otherwise than a card. Its arrays refuse shape[-1] on the host. And threads that ask
    for a shared array at one moment may each be given one of their own: it looks, finds none and makes one. The rest is
    for speed, see `_run_block`."""
    from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray
    from numba.cuda.simulator.kernel import BlockManager, BlockThread
    from numba.cuda.simulator.kernelapi import FakeCUDAShared

    def array(shared, shape, dtype):
        line = sys._getframe(1)
        dtype = np.dtype(getattr(dtype, "name", dtype))  # NumPy's type or Numba's
        return shared._allocations.setdefault((line.f_code.co_filename, line.f_lineno), shared_array(shape, dtype))

    class Thread(BlockThread):
        """It says by `stopped` when it is at a barrier or at its end, and at a barrier waits for `go`."""
        def __init__(thread, *arguments):
            super().__init__(*arguments)
            thread.go, thread.ended, thread.passed = threading.Semaphore(0), False, 0

        def run(thread):
            super().run()
            thread.ended = True
            thread._manager.stopped.release()

        def syncthreads(thread):
            thread._manager.stopped.release()
            thread.go.acquire()
            thread.passed += 1
            if thread.abort:
                raise RuntimeError("another thread of the block has failed")

    def copied(array, memo):
        return device.to_device(device.to_device(array, "cpu"), "cuda")

    FakeCUDAArray.__deepcopy__ = copied  # it would take the one of the NumPy array underneath
    copyreg.pickle(FakeCUDAArray, lambda array: (device.to_device, (array.copy_to_host(), "cuda")))
    FakeCUDAArray.shape = property(lambda array: array._ary.shape)
    FakeCUDAShared.array = array
    BlockManager.run = lambda manager, block, *arguments: _run_block(Thread, manager, block, arguments)


def _run_block(make, manager, block, arguments):
    """Run the threads of one simulated block in turn, each up to the next barrier. (Numba's own way is to start them
    all and to ask each over and over whether it waits: twice the time.) A kernel without barriers, which `kernel.py`
    marks, needs but one of Python's threads to play them all: a quarter."""
    places, manager.stopped = list(np.ndindex(*manager._block_dim)), threading.Semaphore(0)

    def play():
        for place in places:
            alive[0].threadIdx, alive[0].thread_id = type(alive[0].threadIdx)(*place), place[0]  # blocks have one axis
            manager._f(*arguments)

    alone = getattr(manager._f, "no_barrier", False)
    alive = [make(play if alone else lambda: manager._f(*arguments), manager, block, place, manager._debug)
             for place in (places[:1] if alone else places)]
    while alive:
        for thread in alive:
            thread.go.release() if thread.is_alive() else thread.start()
            manager.stopped.acquire()
            if thread.exception:
                for other in alive:
                    other.abort = True
                    other.go.release()
                raise thread.exception[0].with_traceback(thread.exception[1])
        waiting = [thread for thread in alive if not thread.ended]
        if all_at_barriers and 0 < len(waiting) < len(alive):
            for other in waiting:
                other.abort = True
                other.go.release()
            raise AssertionError(f"a barrier is reached by {len(waiting)} of {len(alive)} threads of block {block[0]}")
        alive = waiting
