"""CUDA kernels: how one is written, launched on a card or in Numba's simulator, and compiled to PTX without a card.

A CUDA kernel is written from the view of one thread: which block am I in, which thread of it am I, so which element is
mine? It stands below its op's CPU loops and needs `cuda` from here, nothing else of Numba:

    @cuda_kernel("T[::1], T[::1]")            # the argument types that it is launched with; T is float32, float64
    def _double_cuda(x, out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = x[i] + x[i]

    _double_cuda.each(x.size)(flat(x), flat(out))                # one thread an element
    _row_kernel[blocks, threads](flat(x), flat(out))             # a grid of one's own

On a card every array is C-contiguous (what would be a view with other strides on the CPU is a copy there), so a kernel
takes flat arrays and lengths. Nothing is compiled, and `numba.cuda` is not even imported, before the first launch.

What a kernel must not say: `min` and `max` need a card even to compile (write `a if a < b else b`). In a float32 kernel
a literal widens the arithmetic, since Numba computes float32 * 2 in float64 (write `x.dtype.type(2)`). Two shared
arrays made on one line are one array in the simulator. No fast-math: on CUDA any flag means all of them.
"""
import math
import sys
import threading
import types
import warnings
from functools import lru_cache

import numba
import numpy as np

from . import device

CAPABILITIES = ((8, 0), (9, 0))            # what the kernels are compiled for without a card: Ampere and Hopper
FLOATS = ("float32", "float64")
NUMBERS = (*FLOATS, "int64")
ANY = (*NUMBERS, "boolean")
SIMULATED = bool(numba.config.ENABLE_CUDASIM)
THREADS = 256                              # the most threads of a block, and the length of the shared arrays
_lock = threading.Lock()                   # the simulator runs one kernel at a time; building one is done once


# ---------------------------------------------------------------------------------------------------------------------
# names that kernels use, and that are looked up when a kernel is built
# ---------------------------------------------------------------------------------------------------------------------
class Later:
    """Stands in a module's globals for a thing that `make()` gives once a kernel that names it is built."""

    def __init__(self, make):
        self.make = make


class CudaFunction(Later):
    """A helper that kernels call. Its body is put into theirs: the one form that compiles to PTX without a card."""

    def __init__(self, function):
        self.function = function


def cuda_function(function):
    """Decorate a helper of kernels. Fast-math flags and calls of CPU kernels have no place in it."""
    return CudaFunction(function)


cuda = Later(device.numba_cuda)
# Python's math raises where a card gives inf, so the simulator takes NumPy's functions.
exp = Later(lambda: np.exp if SIMULATED else math.exp)
log = Later(lambda: np.log if SIMULATED else math.log)
sqrt = Later(lambda: np.sqrt if SIMULATED else math.sqrt)
tanh = Later(lambda: np.tanh if SIMULATED else math.tanh)


def _bind(function):
    """The function with globals of its own, in which each `Later` that it or its helpers name has been made."""
    names, helpers = dict(function.__globals__), [function]
    for f in helpers:  # the list grows by the helpers of helpers
        for name in set(f.__code__.co_names) & set(f.__globals__):
            value = f.__globals__[name]
            names.setdefault(name, value)
            if isinstance(value, CudaFunction) and value.function not in helpers:
                helpers.append(value.function)

    def own(f):
        return types.FunctionType(f.__code__, names, f.__name__, f.__defaults__)

    for name, value in list(names.items()):
        if isinstance(value, CudaFunction):
            if value.function in helpers:
                names[name] = own(value.function) if SIMULATED else _inlined(own(value.function))
        elif isinstance(value, Later):
            names[name] = value.make()
    bound = own(function)
    bound.no_barrier = not any("syncthreads" in f.__code__.co_names for f in helpers)  # for the simulator
    return bound


def _inlined(function):
    before = numba.config.DISABLE_JIT
    try:
        numba.config.DISABLE_JIT = 0  # it turns CPU kernels into Python; a card has no Python
        return numba.njit(inline="always")(function)
    finally:
        numba.config.DISABLE_JIT = before


# ---------------------------------------------------------------------------------------------------------------------
# a kernel
# ---------------------------------------------------------------------------------------------------------------------
class CudaKernel:
    """A CUDA kernel: a plain function of one thread, and the argument types that it may be launched with."""
    registry = {}  # "binary.add" -> kernel: what `ptx_report` compiles

    def __init__(self, function, signatures):
        self.function, self.signatures = function, signatures
        self.name = f"{function.__module__.rsplit('.', 1)[-1]}.{function.__name__.strip('_').removesuffix('_cuda')}"
        self.__doc__, self.__name__ = function.__doc__, function.__name__
        self._allowed, self._built = {_kinds(s) for s in signatures}, None
        CudaKernel.registry[self.name] = self

    def bound(self):
        """The function as Numba takes it."""
        return _bind(self.function)

    def __getitem__(self, grid):
        """`kernel[blocks, threads](*arguments)`; threads is a power of two up to THREADS. No blocks: no launch."""
        return lambda *arguments: self._launch(grid, arguments)

    def each(self, n):
        """`kernel.each(n)(*arguments)`: n threads in one row, in blocks of `threads_for(n)`."""
        threads = threads_for(n)
        return self[-(-n // threads), threads]

    def _launch(self, grid, arguments):
        kinds = tuple(map(_kind, arguments))
        if kinds not in self._allowed:
            came = ", ".join(k if isinstance(k, str) else f"{k[0]} with {k[1]} axes" for k in kinds)
            raise TypeError(f"{self.name}: the CUDA kernel takes ({'), ('.join(self.signatures)}), got ({came})")
        if grid[0] == 0:
            return
        with _lock:
            if self._built is None:
                self._built = device.numba_cuda().jit(self.bound())
            if SIMULATED:
                self._simulate(grid, arguments)
                return
            before = numba.config.CUDA_LOW_OCCUPANCY_WARNINGS
            try:
                numba.config.CUDA_LOW_OCCUPANCY_WARNINGS = 0  # a small Tensor is no mistake of the user's
                configured = self._built[grid]
            finally:
                numba.config.CUDA_LOW_OCCUPANCY_WARNINGS = before
            configured(*arguments)

    def _simulate(self, grid, arguments):
        """In the simulator NumPy would warn of a division by zero."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            self._built[grid](*arguments)


def cuda_kernel(arguments, types=FLOATS):
    """Decorate a function of one thread as a kernel for arguments of these Numba types, with each of `types` for T."""
    signatures = tuple(dict.fromkeys(_expand(arguments, t) for t in types))
    return lambda function: CudaKernel(function, signatures)


def _expand(arguments, t):
    """T stands for one type; a pair "float32>float64" gives T and U."""
    t, _, u = t.partition(">")
    return arguments.replace("T", t).replace("U", u)


def _kinds(signature):
    """'float32[::1], int64' as (('float32', 1), 'int64'), the form in which a launch looks at its arguments."""
    kinds = []
    for part in signature.replace("[:, ::1]", "[2]").replace("[::1]", "[1]").split(", "):
        name, _, axes = part.partition("[")
        kinds.append((name.replace("boolean", "bool"), int(axes[:-1])) if axes else name)
    return tuple(kinds)


def _kind(argument):
    """The same of one argument of a launch: a number has a type, an array has axes too."""
    if isinstance(argument, (int, np.integer)):
        return "int64"
    if isinstance(argument, (float, np.floating)):
        return np.dtype(type(argument)).name
    return argument.dtype.name, argument.ndim


def threads_for(n, most=THREADS):
    """How many threads of a block have work with n elements: the next power of two, at most `most`."""
    return min(most, 1 << max(n - 1, 0).bit_length())


# ---------------------------------------------------------------------------------------------------------------------
# arrays
# ---------------------------------------------------------------------------------------------------------------------
def reshaped(x, shape):
    """A device array under another shape; the same memory. (Numba cannot reshape a card's array without elements.)"""
    return x.reshape(tuple(shape)) if x.size else device.empty(shape, x.dtype, "cuda")


def flat(x):
    """x with one axis, as kernels take it. In place of no elements there is one that nobody reads: Numba does not call
    an empty array of a card contiguous, and would compile the kernel once more for it."""
    return device.empty(1, x.dtype, "cuda") if x.size == 0 else x if x.ndim == 1 else x.reshape((x.size,))


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


# ---------------------------------------------------------------------------------------------------------------------
# PTX: the assembler text that a card's driver would be given
# ---------------------------------------------------------------------------------------------------------------------
def ptx(kernel, signature, capability):
    """The PTX text of a kernel for one signature and one compute capability such as (9, 0). Needs no card, but NVIDIA's
    compiler libraries: RuntimeError names what is missing."""
    if SIMULATED:
        raise RuntimeError("ptx: the simulator compiles nothing; unset NUMBA_ENABLE_CUDASIM")
    from numba.core import sigutils
    module = device.numba_cuda()
    arguments, _ = sigutils.normalize_signature(f"void({signature})")
    try:
        return module.compile_ptx(kernel.bound(), arguments, cc=capability)[0]
    except Exception as error:
        missing = toolkit_missing()
        if missing:
            raise RuntimeError(missing) from None
        raise RuntimeError(f"ptx: {kernel.name} ({signature}) does not compile: {error}") from error


@lru_cache(maxsize=1)
def toolkit_missing():
    """Why no kernel can be compiled to PTX here, as one line; '' if one can."""
    def nothing():
        pass
    try:
        device.numba_cuda().compile_ptx(nothing, (), cc=CAPABILITIES[0])
        return ""
    except Exception as error:
        reason = str(error).strip().splitlines()
        why = f"{type(error).__name__}{': ' + reason[-1] if reason else ''}"
        return ("ptx: NVIDIA's compiler libraries (libNVVM, libdevice) were not found; install the extra "
                f"tinyattn[cuda] or the CUDA toolkit ({why})")


def ptx_lines():
    """[(kernel name, signature, {capability: lines of PTX})], one for each signature of each registered kernel."""
    from . import tensor  # noqa: F401  (it imports every family of ops, and so registers their kernels)
    table = []
    for name in sorted(CudaKernel.registry):
        kernel = CudaKernel.registry[name]
        for signature in kernel.signatures:
            table.append((name, signature, {c: ptx(kernel, signature, c).count("\n") for c in CAPABILITIES}))
    return table


def ptx_report():
    """A table, kernel x compute capability: lines of PTX, and the signature. RuntimeError if none can be compiled."""
    table = ptx_lines()
    width = max((len(name) for name, _, _ in table), default=0)
    head = "kernel".ljust(width) + "".join(f"  sm_{a}{b}" for a, b in CAPABILITIES) + "  arguments"
    rows = [name.ljust(width) + "".join(f"{lines[c]:7d}" for c in CAPABILITIES) + f"  {signature}"
            for name, signature, lines in table]
    count = f"{len(CudaKernel.registry)} kernels, {len(table)} signatures: lines of PTX a capability"
    return "\n".join([head, *rows, count])


def main():
    try:
        print(ptx_report())
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    from tinyattn import cuda as package  # the registry lives in the imported module, not in this second copy of it
    sys.exit(package.main())
