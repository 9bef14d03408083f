"""Tests of the CUDA kernels, on a card or in Numba's simulator, which is chosen before Numba is imported:

    NUMBA_ENABLE_CUDASIM=1 python -m pytest tests/on_card        in the simulator, as `tests/test_cuda.py` does
    python -m pytest tests/on_card                               on a card; without one nothing here is collected

Each case runs on 'cpu' and on 'cuda' and must agree: values, first gradients (by loops and by rules), second gradients.
"""
import os
import sys

import numpy as np
import pytest

from tinyattn import cuda as card
from tinyattn import device as devices
from tinyattn.cuda import checker

if devices.cuda_status() == "absent":
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(autouse=True)
def only_what_a_card_can_do(monkeypatch):
    """The simulator's arrays are NumPy's underneath and can do everything. Here they refuse what `DeviceNDArray` has
    not, does not reshape, or would compile for another layout, so that code which only the simulator bears fails."""
    if not card.SIMULATED:
        return
    devices.numba_cuda()
    from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray

    def attribute(array, name):
        ours = not sys._getframe(1).f_globals["__name__"].startswith("numba.")
        if ours and name not in ("dtype", "ndim", "size", "strides", "flags"):
            raise AttributeError(f"an array on a card has no {name}")
        return getattr(array.__dict__["_ary"], name)

    def reshape(array, shape):
        if array.size == 0 and tuple(shape) != array.shape:
            raise NotImplementedError("operation requires copying")
        return FakeCUDAArray(array._ary.reshape(shape))

    def launch(kernel, grid, arguments, before=card.CudaKernel._launch):
        for a in arguments:
            if hasattr(a, "dtype") and grid[0]:
                assert a.size and a.strides == np.empty(a.shape, a.dtype).strides, kernel.name
        threads = grid[1]
        assert 0 < threads <= card.THREADS and threads & threads - 1 == 0
        before(kernel, grid, arguments)

    def empty(shape, dtype, place="cpu", before=devices.empty):
        """What a kernel does not write is not 0, as it often is by chance."""
        fresh = before(shape, dtype, place)
        if place == "cuda":
            fresh._ary[...] = {"f": np.nan, "i": 77, "b": True}[fresh.dtype.kind]
        return fresh

    for module in [devices, *(m for n, m in sys.modules.items() if n.startswith("tinyattn.ops."))]:
        if hasattr(module, "empty"):
            monkeypatch.setattr(module, "empty", empty)
    monkeypatch.setattr(FakeCUDAArray, "__getattr__", attribute)
    monkeypatch.setattr(FakeCUDAArray, "reshape", reshape)
    monkeypatch.setattr(card.CudaKernel, "_launch", launch)
    for name in ("transpose", "T", "ravel", "view"):
        monkeypatch.delattr(FakeCUDAArray, name)


@pytest.fixture(autouse=True)
def every_access_watched(request):
    """In the simulator each test is a test of the memory and race checkers too. (TINYATTN_WATCH=0: a third quicker.)"""
    if card.SIMULATED and os.environ.get("TINYATTN_WATCH") != "0" and "checker" not in request.node.nodeid:
        with checker.watch():
            yield
    else:
        yield
