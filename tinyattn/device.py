"""Where arrays live and how kernels are launched: devices, threads, the kernel cache.

The bottom of the house: everything imports this, it imports nothing of the package.

A *kernel* is a plain module-level function with its loops written out, decorated with `@kernel`. It is compiled by
Numba on its first call for a dtype, and kept on disk. With `NUMBA_DISABLE_JIT=1` it stays the Python function that you
read, so a debugger can step through it.
"""
import copyreg
import hashlib
import importlib.util
import math
import multiprocessing
import os
import sys
import threading
import time
import weakref
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import numba
import numpy as np
from numba.core import caching, cgutils, errors, event, sigutils
from numba.extending import intrinsic

try:
    from fcntl import LOCK_EX, flock
except ImportError:  # Windows: two processes that compile one kernel at one moment are not kept apart there
    flock = None

JIT = not numba.config.DISABLE_JIT
# Safe flags only. `contract` lets a*b+c be one instruction, `nsz` ignores the sign of zero. `reassoc` (a sum may be
# split into lanes) is for kernels that only reduce; it would break range reduction. Never nnan, ninf, arcp.
VALUES = {"contract", "nsz"}
REDUCES = {"contract", "nsz", "reassoc"}
EXACT = {"nsz"}  # each operation rounds: for kernels that must give the same bits as several others in turn


# ---------------------------------------------------------------------------------------------------------------------
# kernels
# ---------------------------------------------------------------------------------------------------------------------
def cache_folder():
    """The folder of compiled kernels, or None where it cannot be written (then kernels are compiled each time).

    Numba notices an edit of the file that a kernel stands in, but not of another file that it calls. Helpers shared
    between files therefore all stand in `ops/shared.py` or here, and this folder's name holds the hash of both files: an
    edit there begins a new folder. `TINYATTN_CACHE` names another place.
    """
    here = Path(__file__)
    sources = here.read_bytes() + (here.parent / "ops" / "shared.py").read_bytes()
    key = hashlib.sha256(sources + numba.__version__.encode()).hexdigest()[:12]
    try:
        home = os.environ.get("TINYATTN_CACHE") or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(home) / "tinyattn" / f"kernels-{key}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder if os.access(folder, os.W_OK) else None
    except (OSError, RuntimeError):  # no HOME, a read-only disk, a file in the way
        return None


CACHE = cache_folder() if JIT else None


def kernel(function=None, *, reduces=False, parallel=False, exact=False, plain=False):
    """Decorate a module-level loop nest so that Numba compiles it on first use. See the rules in the module docstring.

    `reduces=True` lets sums be split over vector lanes. `parallel=True` is for the short outer functions that cut work
    into chunks with `prange` and call a serial kernel for each: they double compile time, so keep the body out (a long
    one is called by its address, see `Code`).
    `plain=True` is for a loop that makes no array: Numba need not count who holds those that it is given, 20 ns each.
    """
    if function is None:
        return lambda f: kernel(f, reduces=reduces, parallel=parallel, exact=exact, plain=plain)
    if not JIT:
        return _quiet(function)
    options = {"parallel": parallel, "error_model": "numpy", "no_cfunc_wrapper": True, "_nrt": not plain,
               "fastmath": EXACT if exact else REDUCES if reduces else VALUES}
    if CACHE is None:
        return numba.njit(**options)(function)
    before = numba.config.CACHE_DIR
    try:
        numba.config.CACHE_DIR = str(CACHE)
        compiled = numba.njit(cache=True, **options)(function)
    finally:
        numba.config.CACHE_DIR = before
    compiled._cache._cache_file.__class__ = _KernelFile
    return compiled


class _KernelFile(caching.IndexDataCacheFile):
    """Numba's files for one kernel, an index and a numbered file a signature, safe from other processes and from a kill.

    Numba takes the next free number and writes the index, then the numbered file. Two processes that do so at one moment
    take the same number, and one will call the other's code. A kill in between leaves an index that points to what
    stood there before: the kernel as it was before an edit. So: one process at a time, and the index last.
    """
    def save(self, key, data):
        with open(os.path.join(self._cache_path, "lock"), "a") as lock:  # closing it lets the next one in
            if flock:
                flock(lock, LOCK_EX)
            names = self._load_index()
            taken = set(names.values())
            name = names.get(key) or next(n for i in range(1, len(taken) + 2) if (n := self._data_name(i)) not in taken)
            self._save_data(name, data)
            self._save_index({**names, key: name})


def _quiet(function):
    """Without the JIT a loop works on NumPy scalars, which warn where compiled code gives inf or nan. Same results."""
    def run(*args):
        with np.errstate(all="ignore"):
            return function(*args)
    run.py_func = function
    run.__name__ = function.__name__
    return run


class _Patience(event.Listener):
    """Tells the user that kernels are being compiled: once in a process, and only after a second of waiting for it.
    Numba reports the beginning and end of each compilation; kernels that a kernel calls are compiled within it."""

    def __init__(self):
        self.begun, self.waited, self.told = [], 0.0, multiprocessing.parent_process() is not None

    def on_start(self, compilation):
        self.begun.append(time.perf_counter())
        ours = str(compilation.data["dispatcher"].py_func.__module__).startswith(f"{__package__}.")
        if ours and not self.told and self.waited + self.begun[-1] - self.begun[0] > 1.0:
            self.told = True
            notice("compiling kernels: up to half a minute, " + ("once on a machine" if CACHE else
                   "each time, as no folder can be written to keep them in; TINYATTN_CACHE names another"))

    def on_end(self, compilation):
        begun = self.begun.pop()
        if not self.begun:
            self.waited += time.perf_counter() - begun


patience = _Patience()
event.register("numba:compile", patience)


class Entries(dict):
    """{dtype: the compiled code of a kernel for it}, for kernels that are done within a microsecond or two.

        _ADD = Entries(_add, "T[::1], T[::1], T[::1]")     T stands for the dtype, ::1 for an axis that lies contiguous
        _ADD[x.dtype](x.ravel(), y.ravel(), out.ravel())

    Numba looks up the type of every argument of every call, which takes as long as adding a thousand numbers. This goes
    past it. The caller vouches for the dtype and the layout of every array: a wrong dtype is an error that no user should
    see, a wrong layout is not noticed at all.
    """
    def __init__(self, function, arguments):
        super().__init__()
        self.function, self.arguments = function, arguments

    def __missing__(self, dtype):
        if JIT and dtype.isnative and dtype.name in ("float32", "float64", "int64"):
            self[dtype] = self.function.compile(f"({self.arguments.replace('T', dtype.name)})")
        else:
            self[dtype] = self.function
        return self[dtype]


class Shortcuts(Entries):
    """Entries of kernels that look for themselves how their arrays lie in memory: to them it costs nothing, and to ask NumPy
    40 ns an array. Such a kernel returns True, or False where it is no use and has done nothing; then the caller goes the
    long way. The caller still vouches for the dtype and the number of axes.

        if _ALIKE[x.dtype](x, y, out):                     T[:, ::1] in their declaration only gives the number of axes
            return out
    """
    def __missing__(self, dtype):
        known = JIT and dtype.isnative and dtype.name in ("float32", "float64")
        self[dtype] = super().__missing__(dtype) if known else _no_shortcut
        return self[dtype]


def _no_shortcut(*arrays):
    return False


class Code(Entries):
    """{dtype: the address of a kernel's compiled code for it}, for a long kernel without a result that short ones call.

        _CHUNK = Code(_chunk, "T[:, :], int64")     T[:, :] stands for any layout
        _chunks(_CHUNK[x.dtype], x, ...)            and within it:  call(code, _chunk, (x, start))

    A plain call takes the called code in, to be optimised and translated again. Compiling a chunk, the loop over chunks and
    the same in parallel took three times as long as the chunk alone; this way the loops are short to compile.
    """

    def __missing__(self, dtype):
        super().__missing__(dtype)
        if JIT:
            types, _ = sigutils.normalize_signature(f"({self.arguments.replace('T', dtype.name)})")
            compiled = self.function.overloads[types]
            self[dtype] = compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name)
        return self[dtype]


def _call(typing, code, function, arguments):
    """What Numba makes of `call(code, function, arguments)`: function(*arguments) by its address. TypingError where the code
    was made for other types; a dtype of its own is for the caller to see to."""
    known = function.dispatcher.overloads
    if not any(len(types) == len(arguments) and all(map(_fits, arguments, types)) for types in known):
        raise errors.TypingError(f"call: {function.dispatcher.py_func.__name__} has no code for {tuple(arguments)}")

    def write(context, builder, signature, values):
        nothing, types = signature.return_type, tuple(signature.args[2])
        address = builder.inttoptr(values[0], context.call_conv.get_function_type(nothing, types).as_pointer())
        unpacked = cgutils.unpack_tuple(builder, values[2], len(types))
        status, _ = context.call_conv.call_function(builder, address, nothing, types, unpacked)
        with cgutils.if_unlikely(builder, status.is_error):
            context.call_conv.return_status_propagate(builder, status)
        return context.get_dummy_value()

    return numba.types.none(code, function, arguments), write


def _fits(given, declared):
    """May code for `declared` be given this? To machine code an array that must not be written to is like any other."""
    if not isinstance(given, numba.types.Array):
        return given == declared
    same = (given.dtype, given.ndim) == (getattr(declared, "dtype", None), getattr(declared, "ndim", None))
    return same and declared.layout in ("A", given.layout)


if JIT:
    call = intrinsic(_call)
else:
    def call(code, function, arguments):
        return function(*arguments)


# ---------------------------------------------------------------------------------------------------------------------
# threads
# ---------------------------------------------------------------------------------------------------------------------
_busy = threading.Lock()  # one parallel kernel at a time: Numba's simplest thread pool cannot be entered twice
_state = {"threads": numba.config.NUMBA_NUM_THREADS if JIT else 1, "pool": False}
PARALLEL_ABOVE = 60_000  # estimated nanoseconds of serial work; starting the pool costs about 3,000


def get_num_threads():
    """How many threads a large kernel may use."""
    return _state["threads"]


def set_num_threads(n):
    """Use `n` threads for large kernels. Work is cut the same way for any `n`, so results do not depend on it."""
    if not 1 <= n <= numba.config.NUMBA_NUM_THREADS:
        raise ValueError(f"set_num_threads: expected 1 to {numba.config.NUMBA_NUM_THREADS} threads, got {n}")
    _state["threads"] = n
    if _state["pool"]:
        numba.set_num_threads(n)


def _start_pool():
    """Start Numba's threads, told to sleep soon when there is nothing to do.

    By default a waiting OpenMP thread spins. Where another program wants the core too, that costs 10 ms a launch in place
    of 0.01 (a training step of 250 ms in place of 40 was measured). The library reads its environment once, when it
    is loaded; ours is put back, so other libraries see nothing of it.
    """
    before = {name: os.environ.get(name) for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    if not any(before.values()):
        os.environ["GOMP_SPINCOUNT"] = "1000"
    try:
        numba.set_num_threads(_state["threads"])  # loads the threading layer
    finally:
        if not any(before.values()):
            del os.environ["GOMP_SPINCOUNT"]
    _state["pool"] = True


def threading_layer():
    """Which library runs parallel kernels: 'omp', 'tbb' or 'workqueue'. It is loaded now if none has run yet."""
    with _busy:
        if not _state["pool"]:
            _start_pool()
    return numba.threading_layer()


def _in_child():
    """A forked child inherits a thread pool without its threads. It runs its kernels serially."""
    _state["threads"] = 1
    globals()["_busy"] = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def launch(nanoseconds, serial, serial_args, parallel, parallel_args):
    """Run the serial kernel, or the parallel one where the estimated work pays for waking the pool and it is free."""
    if nanoseconds > PARALLEL_ABOVE and _state["threads"] > 1 and _busy.acquire(blocking=False):
        try:
            if not _state["pool"]:
                _start_pool()
            parallel(*parallel_args)
        finally:
            _busy.release()
    else:
        serial(*serial_args)


# ---------------------------------------------------------------------------------------------------------------------
# arrays
# ---------------------------------------------------------------------------------------------------------------------
DEVICES = ("cpu", "cuda")
_where = {"default": "cpu", "card": False}
OUT_OF_MEMORY = 2  # an error of CUDA's


def get_default_device():
    """Where Tensors are made that are not told where."""
    return _where["default"]


def set_default_device(device):
    """Make Tensors on this device unless told otherwise; one clear line if it cannot be used here."""
    require(device)
    _where["default"] = device


@contextmanager
def default_device(device):
    """`with default_device("cuda"):` Tensors made inside live on the card unless told otherwise."""
    before = get_default_device()
    set_default_device(device)
    try:
        yield
    finally:
        _where["default"] = before



def device_of(array):
    """'cpu' for a NumPy array, 'cuda' for a Numba device array (or the simulator's stand-in for one)."""
    return "cpu" if isinstance(array, np.ndarray) else "cuda"


class _Planned(threading.local):
    """take: None, or what gives out memory that was planned while a captured step is replayed (see `compiler/`)."""
    take = None


planned = _Planned()


def empty(shape, dtype, device="cpu"):
    """An uninitialised C-contiguous array on a device."""
    if device == "cpu":
        take = planned.take
        return np.empty(shape, dtype) if take is None else take(shape, dtype)
    require(device)
    shape = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    try:
        return numba_cuda().device_array(shape, dtype)
    except Exception as error:
        if getattr(error, "code", None) != OUT_OF_MEMORY:
            raise
        size = math.prod(shape) * np.dtype(dtype).itemsize
    raise MemoryError(f"device 'cuda': no {size:,} bytes are free, for an array of shape {shape} and type {np.dtype(dtype)}; "
                      "try smaller sizes")


@lru_cache(maxsize=1)
def numba_cuda():
    """The module `numba.cuda`. It is imported when a card is first asked for: that takes 0.1 s, and an installation of
    the package numba-cuda that lacks its libraries cannot be imported at all."""
    try:
        from numba import cuda
        if numba.config.ENABLE_CUDASIM:
            from .cuda import simulator
            simulator.mend()
        else:
            _look_in_packages()
            from numba.cuda.cudadrv.devicearray import DeviceNDArray

            from .cuda import memory
            memory.mend()
            copyreg.pickle(DeviceNDArray, _as_copy)
        return cuda
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        raise RuntimeError(f"device 'cuda': numba.cuda cannot be imported on this machine ({what})") from None


def _as_copy(array):
    """How `copy` and `pickle` make another array of a card: by way of the host."""
    return to_device, (to_device(array, "cpu"), "cuda")


def _look_in_packages():
    """Numba looks for NVIDIA's compiler in CUDA_HOME, conda and /usr/local/cuda. Where it found none, tell it where the
    packages nvidia-nvvm and nvidia-cuda-runtime (the extra `cuda`) put it: site-packages/nvidia/cu13."""
    from numba.cuda.cuda_paths import get_cuda_paths
    paths, home = get_cuda_paths(), importlib.util.find_spec("nvidia")
    if paths["nvvm"].info is not None or home is None:
        return
    places = {"nvvm": "cu*/lib/libnvvm.so*", "libdevice": "cu*/nvvm/libdevice/libdevice*.bc", "cudalib_dir": "cu*/lib"}
    for kind, pattern in places.items():
        found = sorted(path for root in home.submodule_search_locations for path in Path(root).glob(pattern))
        if found:
            paths[kind] = paths[kind]._replace(by="package", info=str(found[-1]))


def cuda_status():
    """'present' (a card and a driver), 'simulated' (NUMBA_ENABLE_CUDASIM=1) or 'absent'."""
    if numba.config.ENABLE_CUDASIM:
        return "simulated"
    if not _where["card"]:  # each new array asks, and Numba looks for driver and compiler each time
        try:
            _where["card"] = numba_cuda().is_available()
        except Exception:  # a broken driver raises its own kinds of error; for us it is not there
            return "absent"
    return "present" if _where["card"] else "absent"


def require(device):
    """Raise one clear line if `device` cannot be used here."""
    if device not in DEVICES:
        raise ValueError(f"device: expected one of {', '.join(DEVICES)}, got {device!r}")
    if device == "cuda" and cuda_status() == "absent":
        what = ("there is a card, but NVIDIA's compiler (libNVVM) was not found; install the extra tinyattn[cuda] or the CUDA "
                "toolkit, or" if _driver_answers() else "no CUDA card or driver was found on this machine;")
        raise RuntimeError(f"device 'cuda': {what} use device 'cpu', or set NUMBA_ENABLE_CUDASIM=1 to try CUDA kernels in the "
                           "simulator")


def _driver_answers():
    try:
        numba_cuda()
        from numba.cuda.cudadrv import driver
        return driver.driver.is_available
    except Exception:
        return False


# Numbers of tokens, lengths and masks go from the host to the card, and much that is planned on the host needs them again.
# So what is no float is remembered here: {id of the array on the card: (weak reference to it, the host's array)}.
_remembered = {}
waits = {"reads": 0}  # how often the host asked a card for numbers and so waited for it to finish all that came before


def to_device(array, device):
    """Copy an array to `device`; the same array if it is there already.

    To the card: the numbers are sent in the order of the launches, and nobody waits. From it: the host waits until all
    launches so far are done, unless it sent those very numbers itself and they are no floats.
    """
    if device_of(array) == device:
        return array
    if device == "cpu":
        known = _remembered.get(id(array))
        if known is not None:
            return known[1]
        waits["reads"] += 1
        return array.copy_to_host()
    require(device)
    plain = np.empty(array.shape, array.dtype)  # with the usual strides, also along an axis of length 1 or 0
    plain[...] = array
    sent = empty(plain.shape, plain.dtype, "cuda")
    sent.copy_to_device(plain, stream=_in_order())
    if plain.dtype.kind != "f":
        plain.flags.writeable = False
        key = id(sent)
        _remembered[key] = weakref.ref(sent, lambda gone: _remembered.pop(key, None)), plain
    return sent


def _in_order():
    """The stream of all launches, named: a copy to stream 0 *without* a name would wait for it. The simulator has none."""
    return 0 if numba.config.ENABLE_CUDASIM else numba_cuda().default_stream()


def copy(array):
    """A copy of an array on its own device."""
    if device_of(array) == "cpu":
        return np.array(array)
    fresh = empty(array.shape, array.dtype, "cuda")
    fresh.copy_to_device(array)
    return fresh


def overwrite(array, index, value):
    """array[index] = value. An array on a card is sent anew if all of it changes, else changed on the host and sent back."""
    if device_of(array) == "cpu":
        array[index] = to_device(value, "cpu") if hasattr(value, "copy_to_host") else value
        return
    _remembered.pop(id(array), None)
    if hasattr(value, "copy_to_host"):
        if index is Ellipsis and value.shape == array.shape and value.dtype == array.dtype:
            array.copy_to_device(value)
            return
        value = to_device(value, "cpu")
    host = np.empty(array.shape, array.dtype) if index is Ellipsis else np.array(to_device(array, "cpu"))
    host[index] = value
    array.copy_to_device(host, stream=_in_order())


def notice(text):
    """One line to the user on standard error, never on standard output. It does not tear a progress bar."""
    if "tqdm" in sys.modules:
        sys.modules["tqdm"].tqdm.write(text, file=sys.stderr)
    else:
        print(text, file=sys.stderr, flush=True)
