"""Data made from data, never in the graph: comparisons, and / or / not, nan or finite, the place of the largest, other types.

On the CPU NumPy computes them, on a card the kernels below; nothing is read back from it. Each function takes and gives
arrays, all on one device.
"""
import functools
import math

import numpy as np

from ..autograd import state
from ..cuda import (
    ANY,
    FLOATS,
    NUMBERS,
    THREADS,
    cuda,
    cuda_function,
    cuda_kernel,
    flat,
    follow,
    on_card,
    place,
    threads_for,
)
from ..device import device_of, empty
from .broadcast import broadcast, plan_of
from .shape import axis_of

COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "logical_and", "logical_or",
               "logical_xor")
EQUAL, NOT_EQUAL, LESS, LESS_EQUAL, GREATER, GREATER_EQUAL, AND, OR, XOR = range(9)
NAN, FINITE = range(2)


def told(function):
    """A function of this module that tells the tape, where a step is being captured, what it makes."""
    @functools.wraps(function)
    def run(*args):
        out = function(*args)
        if state.special and state.tape is not None:
            state.tape.computed(function, args, out)
        return out
    return run


@told
def compare(function, x, y):
    """function(x, y), one of NumPy's of the names above, for two arrays of one type."""
    name = function.__name__
    if {device_of(x), device_of(y)} == {"cpu"}:
        broadcast(name, x.shape, y.shape)
        return np.asarray(function(x, y))
    shape, plan = plan_of(name, x.shape, y.shape)
    out = empty(shape, np.bool_, "cuda")
    _compare_cuda.each(out.size)(flat(x), flat(y), flat(out), on_card(plan), COMPARISONS.index(name))
    return follow(out, function, x, y)


@told
def opposite(x):
    """not x, of bools."""
    if device_of(x) == "cpu":
        return np.asarray(~x)
    out = empty(x.shape, x.dtype, "cuda")
    _opposite_cuda.each(out.size)(flat(x), flat(out))
    return follow(out, np.logical_not, x)


def isnan(x):
    return _kind(x, np.isnan, NAN)


def isfinite(x):
    return _kind(x, np.isfinite, FINITE)


@told
def _kind(x, function, wanted):
    if device_of(x) == "cpu":
        return np.asarray(function(x))
    out = empty(x.shape, np.bool_, "cuda")
    (_float_kind_cuda if x.dtype.kind == "f" else _number_kind_cuda).each(out.size)(flat(x), flat(out), wanted)
    return out


@told
def place_of(x, axis, keepdims, largest):
    """np.argmax or np.argmin: the first place of the extreme element along `axis`; a nan is the extreme."""
    name = "argmax" if largest else "argmin"
    axis = None if axis is None else axis_of(name, axis, x.ndim)
    if device_of(x) == "cpu":
        return np.asarray((np.argmax if largest else np.argmin)(x, axis=axis, keepdims=keepdims))
    if axis is None:
        outer, n, inner, shape = 1, x.size, 1, (1,) * x.ndim if keepdims else ()
    else:
        outer, n, inner = math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1:])
        shape = (*x.shape[:axis], *((1,) if keepdims else ()), *x.shape[axis + 1:])
    if n == 0:
        raise ValueError(f"attempt to get {name} of an empty sequence")
    out = empty(shape, np.int64, "cuda")
    _place_cuda[outer * inner, threads_for(n)](flat(x), flat(out), n, inner, int(largest))
    return out


@told
def converted(x, dtype):
    """x in another type; bools become 0 and 1, floats are cut towards 0."""
    if device_of(x) == "cpu":
        return x.astype(dtype)
    out = empty(x.shape, dtype, "cuda")
    _convert_cuda.each(out.size)(flat(x), flat(out))
    return follow(out, lambda known: known.astype(dtype), x)


# ---------------------------------------------------------------------------------------------------------------------
# on a card
# ---------------------------------------------------------------------------------------------------------------------
@cuda_kernel("T[::1], T[::1], boolean[::1], int64[:, ::1], int64", ANY)
def _compare_cuda(x, y, out, plan, which):
    """Thread i makes element i of the result; all threads have the same comparison to make."""
    i = cuda.grid(1)
    if i < out.size:
        a, b = x[place(i, plan, 0)], y[place(i, plan, 1)]
        if which == EQUAL:
            out[i] = a == b
        elif which in (NOT_EQUAL, XOR):
            out[i] = a != b
        elif which == LESS:
            out[i] = a < b
        elif which == LESS_EQUAL:
            out[i] = a <= b
        elif which == GREATER:
            out[i] = a > b
        elif which == GREATER_EQUAL:
            out[i] = a >= b
        elif which == AND:
            out[i] = a != 0 and b != 0
        else:
            out[i] = a != 0 or b != 0


@cuda_kernel("T[::1], T[::1]", ("boolean",))
def _opposite_cuda(x, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = not x[i]


@cuda_kernel("T[::1], boolean[::1], int64", FLOATS)
def _float_kind_cuda(x, out, wanted):
    """inf - inf and nan - nan are nan, and only a finite number minus itself is 0."""
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] != x[i] if wanted == NAN else x[i] - x[i] == 0


@cuda_kernel("T[::1], boolean[::1], int64", ("boolean", "int64"))
def _number_kind_cuda(x, out, wanted):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = wanted == FINITE


@cuda_function
def _goes_before(a, at, b, bt, largest):
    """Is a, at place `at`, to be named rather than b at `bt`? A nan before all others; of equal ones the first."""
    a_nan, b_nan = a != a, b != b
    if a_nan or b_nan:
        return a_nan and (not b_nan or at < bt)
    if a == b:
        return at < bt
    return a > b if largest else a < b


@cuda_kernel("T[::1], int64[::1], int64, int64, int64", (*NUMBERS, "boolean"))
def _place_cuda(x, out, n, inner, largest):
    """A block searches one row x[i, :, k]: its thread t the elements t, t + threads, ...; then half of the threads go on
    with the better of two, and half of those, in shared memory."""
    best = cuda.shared.array(THREADS, x.dtype)
    where = cuda.shared.array(THREADS, np.int64)
    t, step = cuda.threadIdx.x, cuda.blockDim.x
    first = cuda.blockIdx.x // inner * n * inner + cuda.blockIdx.x % inner
    mine, at = x[first + t % n * inner], t % n
    for j in range(t + step, n, step):
        if _goes_before(x[first + j * inner], j, mine, at, largest):
            mine, at = x[first + j * inner], j
    best[t] = mine
    where[t] = at
    cuda.syncthreads()
    step //= 2
    while step > 0:
        if t < step and _goes_before(best[t + step], where[t + step], best[t], where[t], largest):
            best[t] = best[t + step]
            where[t] = where[t + step]
        cuda.syncthreads()
        step //= 2
    if t == 0:
        out[cuda.blockIdx.x] = where[0]


@cuda_kernel("T[::1], U[::1]", [f"{a}>{b}" for a in ANY for b in ANY if a != b])
def _convert_cuda(x, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i]
