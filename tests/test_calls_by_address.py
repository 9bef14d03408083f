"""`device.call`: a kernel calls another by its address, so that its code is not compiled again in each that calls it."""
import importlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numba import prange
from numba.core.errors import TypingError

from tinyattn.commands.warmup import _parallel_above, _run_op
from tinyattn.device import JIT, Code, call, kernel

ROOT = Path(__file__).parent.parent
needs_jit = pytest.mark.skipif(not JIT, reason="without the JIT it is a plain call")


@kernel
def _scaled(x, y, factor, start, end):
    """Loops of its own, and an error for a factor of 0."""
    if factor == 0:
        raise ValueError("by zero")
    for i in range(start, end):
        for j in range(x.shape[1]):
            y[i, j] = x[i, j] * factor


_SCALED = Code(_scaled, "T[:, :], T[:, ::1], int64, int64, int64")


@kernel
def _all(code, x, y, factor, rows):
    for start in range(0, len(x), rows):
        call(code, _scaled, (x, y, factor, start, min(len(x), start + rows)))


@kernel(parallel=True)
def _all_parallel(code, x, y, factor, rows):
    for chunk in prange(-(-len(x) // rows)):
        start = chunk * rows
        call(code, _scaled, (x, y, factor, start, min(len(x), start + rows)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("run", [_all, _all_parallel], ids=["serial", "parallel"])
def test_the_same_as_a_plain_call(run, dtype):
    whole = np.arange(70, dtype=dtype).reshape(7, 10)
    fixed = whole.copy()
    fixed.flags.writeable = False
    for x in (whole, whole[:, ::2], whole.T, fixed, whole[:0]):
        for rows in (1, 2, 7, 100):
            y = np.full(x.shape, -1, dtype)
            run(_SCALED[y.dtype], x, y, 3, rows)
            assert np.array_equal(y, 3 * x)


def test_an_error_of_the_called_arrives():
    x = np.ones((3, 2))
    with pytest.raises(ValueError, match="by zero"):
        _all(_SCALED[x.dtype], x, x.copy(), 0, 2)


@needs_jit
@pytest.mark.parametrize("change", [
    lambda x, y: (x, y[:, ::2]),                       # a layout that the code was not made for
    lambda x, y: (x[0], y), lambda x, y: (x.astype(np.int32), y)], ids=["layout", "axes", "dtype"])
def test_what_the_code_was_not_made_for_is_refused(change):
    x = np.ones((4, 4))
    with pytest.raises(TypingError, match="_scaled has no code for"):
        _all(_SCALED[x.dtype], *change(x, x.copy()), 1, 2)


FRESH = """
import sys
sys.path.insert(0, {tests!r})
import numpy as np
import test_calls_by_address as t
x = np.arange(40, dtype=np.float32).reshape(8, 5)
for run in (t._all, t._all_parallel):
    y = np.zeros_like(x)
    run(t._SCALED[x.dtype], x, y, 2, 3)
    print(float(np.abs(y - 2 * x).max()), sum(run._cache_hits.values()), sum(t._scaled._cache_hits.values()))
print(t._SCALED[x.dtype])
"""


@needs_jit
def test_kept_on_disk_and_right_in_another_process(tmp_path):
    def fresh():
        env = {**os.environ, "PYTHONPATH": str(ROOT), "TINYATTN_CACHE": str(tmp_path)}
        code = FRESH.format(tests=str(Path(__file__).parent))
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
        return done.stdout.split("\n")
    first, second = fresh(), fresh()
    assert first[:2] == ["0.0 0 0", "0.0 0 0"] and second[:2] == ["0.0 1 1", "0.0 1 1"]


def lines(function):
    """How many instructions a kernel has for float32, with all that it has taken in."""
    found = next(found for types, found in function.overloads.items() if "float64" not in str(types))
    return str(found.library._get_module_for_linking()).count("\n")


@needs_jit
@pytest.mark.parametrize("name", ["gru", "lstm", "rnn", "attention_decoder"])
def test_the_loops_over_chunks_do_not_hold_the_chunks(name):
    module = importlib.import_module(f"tinyattn.ops.{name}")
    cls = next(cls for cls in vars(module).values() if getattr(cls, "name", None) == name and hasattr(cls, "samples"))
    for above in (10**9, 0):
        with _parallel_above(above):
            _run_op(cls)
    for way in ("forward", "backward"):
        chunk = lines(getattr(module, f"_{way}_chunk"))
        assert lines(getattr(module, f"_{way}")) < chunk
        assert lines(getattr(module, f"_{way}_parallel")) < chunk
