"""A CUDA kernel as an object: the names that it may use, its argument types, its launch. How to write one: `__init__.py`."""
import math
import threading
import types
import warnings

import numba
import numpy as np

from .. import device
from . import store

CAPABILITIES = ((8, 0), (9, 0))            # what the kernels are compiled for without a card: Ampere and Hopper
FLOATS = ("float32", "float64")
NUMBERS = (*FLOATS, "int64")
ANY = (*NUMBERS, "boolean")
SIMULATED = bool(numba.config.ENABLE_CUDASIM)
THREADS = 256                              # the most threads of a block, and the length of the shared arrays
MOST_BLOCKS = 2**31 - 1
OLD_DRIVER = "NVIDIA's compiler is newer than the driver of the card, which cannot read its code; take a newer driver"
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
    bound.parts = helpers  # for `store.py`
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
    registry = {}  # "binary.add" -> kernel: what `tinyattn ptx` compiles

    def __init__(self, function, signatures, spills=""):
        self.function, self.signatures, self.spills = function, signatures, spills
        family = function.__module__.rsplit(".", 1)[-1].removesuffix("_cuda")  # which file of the two, nobody need know
        self.name = f"{family}.{function.__name__.strip('_').removesuffix('_cuda')}"
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
        if grid[0] > MOST_BLOCKS:
            raise ValueError(f"{self.name}: {grid[0]:,} blocks are more than a card takes; try smaller sizes")
        with _lock:
            if self._built is None:
                self._built = self._build()
            if SIMULATED:
                self._simulate(grid, arguments)
                return
            before = numba.config.CUDA_LOW_OCCUPANCY_WARNINGS
            try:
                numba.config.CUDA_LOW_OCCUPANCY_WARNINGS = 0  # a small Tensor is no mistake of the user's
                configured = self._built[grid]
            finally:
                numba.config.CUDA_LOW_OCCUPANCY_WARNINGS = before
            try:
                configured(*arguments)
            except RuntimeError as error:
                if "UNSUPPORTED_PTX_VERSION" not in str(error):
                    raise
                raise RuntimeError(f"device 'cuda': {OLD_DRIVER}") from error

    def _build(self):
        bound = self.bound()
        built = device.numba_cuda().jit(bound)
        if not SIMULATED:
            built._cache = store.Store(self.name, store.made_of(bound.parts, bound.__globals__))
        return built

    def _simulate(self, grid, arguments):
        """In the simulator NumPy would warn of a division by zero."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            self._built[grid](*arguments)


def cuda_kernel(arguments, types=FLOATS, spills=""):
    """Decorate a function of one thread as a kernel for arguments of these Numba types, with each of `types` for T.

    spills: why it may spill registers to memory or keep an array there. `tinyattn ptx` fails where one does without it."""
    signatures = tuple(dict.fromkeys(_expand(arguments, t) for t in types))
    return lambda function: CudaKernel(function, signatures, spills)


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
    if type(argument) is int:
        return "int64"
    if isinstance(argument, (bool, float, np.generic)):  # Numba would compile the kernel once more for a bool or an int32
        return np.dtype(type(argument)).name
    dtype = argument.dtype
    name = _NAMES.get(dtype)
    return name or _NAMES.setdefault(dtype, dtype.name), argument.ndim


_NAMES = {}  # of dtypes, which NumPy puts together anew each time: 4 us


def threads_for(n, most=THREADS):
    """How many threads of a block have work with n elements: the next power of two, at most `most`."""
    return min(most, 1 << max(n - 1, 0).bit_length())

