"""Compiled kernels kept on disk, so that a card's user waits for the compiler once on a machine and not at each start.

Numba's own cache names a kernel by the file, line and code of its function. Ours are made of several: the walk of
`elementwise.py` around an op's formula, helpers of other files, numbers from module level. A change in any of them
would go unseen, and all elementwise kernels of two inputs would be one. So a kernel is filed under the hash of all that it
is made of (`made_of`), of what made it, and of the card; what has another hash is another kernel, and nothing is ever
written over.
"""
import hashlib
import multiprocessing
import os
import pickle
import tempfile
import time
import types
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path

import llvmlite
import numba
import numpy as np

from .. import device

FOLDER = device.CACHE and device.CACHE / "cuda"
NUMBERS = (bool, int, float, str, bytes, type(None), np.generic, np.dtype)


class Store:
    """What Numba's dispatcher asks for a kernel before it compiles one, and gives it to afterwards."""
    waited, told = 0.0, multiprocessing.parent_process() is not None

    def __init__(self, name, source):
        self.name, self.source, self.begun = name, source, 0.0

    def load_overload(self, kinds, target):
        """The kernel for these types of arguments, or None: then it is compiled."""
        from numba.cuda import dispatcher
        path = self._path(kinds)
        with suppress(Exception):  # not there, cut off, or of a Numba that says the same version and is another
            return dispatcher._Kernel._rebuild(**pickle.loads(path.read_bytes()))
        if Store.waited > 1 and not Store.told:
            Store.told = True
            device.notice("compiling kernels for the card: a minute or two, " + ("once on a machine" if path else
                          "each time, as no folder can be written to keep them in; TINYATTN_CACHE names another"))
        self.begun = time.perf_counter()
        return None

    def save_overload(self, kinds, kernel):
        """Keep it. The file is there whole or not at all, whoever else writes it or kills us."""
        Store.waited += time.perf_counter() - self.begun
        path = self._path(kinds)
        if path is None:
            return
        from numba.core.serialize import dumps
        with suppress(OSError):  # a full disk costs time only
            path.parent.mkdir(exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
                try:
                    file.write(dumps(kernel._reduce_states()))
                    file.close()
                    os.replace(file.name, path)
                except BaseException:
                    os.unlink(file.name)
                    raise

    def _path(self, kinds):
        if FOLDER is None:
            return None
        text = repr((self.source, str(kinds), _compiler(), _card()))
        return FOLDER / f"{self.name}-{hashlib.sha256(text.encode()).hexdigest()[:32]}"


@lru_cache(maxsize=1)
def _compiler():
    """What makes machine code of a kernel: Numba, NVIDIA's compiler, and the assembler, which is the driver's."""
    from numba.cuda.cudadrv import driver, nvvm
    return numba.__version__, llvmlite.__version__, nvvm.NVVM().get_version(), driver.driver.get_version()


def _card():
    return device.numba_cuda().get_current_device().compute_capability


# ---------------------------------------------------------------------------------------------------------------------
# what a kernel is made of
# ---------------------------------------------------------------------------------------------------------------------
def made_of(functions, names):
    """The hash of a kernel's function and its helpers, of the numbers that they name, and of each file that they or what they
    name stands in, `tinyattn/cuda` always. names: their globals, as the kernel has them."""
    parts, files = [], set(Path(__file__).parent.glob("*.py"))
    for function in functions:
        files.add(Path(function.__code__.co_filename))
        parts.append((function.__name__, _of_code(function.__code__), repr(function.__defaults__)))
    for name in sorted({name for f in functions for name in f.__code__.co_names} & names.keys()):
        value = names[name]
        if isinstance(value, NUMBERS) or (isinstance(value, tuple) and all(isinstance(x, NUMBERS) for x in value)):
            parts.append((name, repr(value)))
        else:
            parts.append((name, getattr(value, "__module__", ""), getattr(value, "__qualname__", type(value).__qualname__)))
            code = getattr(getattr(value, "__wrapped__", value), "__code__", None)
            path = code.co_filename if code else getattr(value, "__file__", None) if isinstance(value, types.ModuleType) else None
            files |= {Path(path)} if path else set()
    texts = [hashlib.sha256(_read(path)).hexdigest() for path in sorted(files)]
    return hashlib.sha256(repr((sorted(map(repr, parts)), texts)).encode()).hexdigest()


def _of_code(code):
    """What a function's code does, without where it stands."""
    inner = [_of_code(c) if isinstance(c, types.CodeType) else (type(c).__name__, sorted(map(repr, c)) if
             isinstance(c, frozenset) else repr(c)) for c in code.co_consts]
    return code.co_code, code.co_names, code.co_varnames, code.co_freevars, inner


@cache
def _read(path):
    """A file's bytes; none for code that stands in no file."""
    try:
        return path.read_bytes()
    except OSError:
        return b""
