"""The peers that are installed, each held to a number of threads, and what to say of the machine.

PyTorch is told how many threads; JAX (XLA) and tinygrad read it from the environment when they are imported, so one that was
imported before keeps the number it has; autograd uses NumPy, whose BLAS cannot be told by us: that one is held to the
cores alone, where fewer threads than cores are asked for. Linux can hold a process to cores; elsewhere that is not done.
PyTorch is imported before our own pool starts. Both find one OpenMP library then, PyTorch's as its users have it, and
share its threads.

On a card (the default device of `device.py`) a peer that cannot use one is left out. Products of float32 are held to float32:
by themselves PyTorch's recurrent layers and all of JAX round the factors to TF32, 10 bits of 23, which our kernels cannot.
"""
import importlib
import os
import platform
import re
import time
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path

from .. import device
from .row import PEERS
from .sides import on_card

PACKAGE = {"torch-compile": "torch"}  # the package of a peer, where it has not the peer's name
BY_ITSELF = [peer for peer in PEERS if peer != "torch-compile"]  # that one compiles for 20 s a row: only if it is named
THREADS = ("PJRT_NPROC", "NPROC", "NUM_CPU_THREADS")


@contextmanager
def _environment(values):
    """Variables for what is imported inside; afterwards they are as they were."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


@contextmanager
def on_cores(n):
    """Hold all threads that begin inside to the first `n` of our cores: a pool that cannot be told its size is held by that."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if n >= len(cores):
        yield
        return
    os.sched_setaffinity(0, cores[:n])
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def load(wanted, threads):
    """{peer: None if it can be measured, else why not}. Import what is there, and hold it to `threads` threads."""
    found, card = {}, on_card()
    jax = {"JAX_PLATFORMS": "cuda", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"} if card else {"JAX_PLATFORMS": "cpu"}
    with _environment(dict.fromkeys(THREADS, str(threads)) | jax):
        for peer in wanted:
            try:
                importlib.import_module(PACKAGE.get(peer, peer))
                START.get(peer, lambda threads: None)(threads)
                found[peer] = CARD.get(peer, lambda: NO_CARD)() if card else None
            except ImportError:
                found[peer] = "not installed"
            except Exception as error:  # each breaks in its own way on a machine that it does not like
                found[peer] = f"installed, but does not run: {short(error)}"
    return found


def short(error):
    return " ".join(f"{type(error).__name__}: {error}".split())[:120]


def _start_torch(threads):
    import torch
    torch.set_num_threads(threads)


def _start_jax(threads):
    """A first computation makes its thread pool."""
    import jax
    jax.block_until_ready(jax.numpy.ones(4) + 1)


def _start_tinygrad(threads):
    """Without a compiler (clang) it knows no device, which it says at its first computation."""
    import tinygrad
    if (tinygrad.Tensor([1.0]) + 1).tolist() != [2.0]:
        raise ArithmeticError("1 + 1 is not 2")


START = {"torch": _start_torch, "torch-compile": _start_torch, "jax": _start_jax, "tinygrad": _start_tinygrad}


# ---------------------------------------------------------------------------------------------------------------------
# on a card: None if the peer computes there, else why not
# ---------------------------------------------------------------------------------------------------------------------
NO_CARD = "computes on the CPU only"


def _torch_on_card():
    import torch
    if not torch.cuda.is_available():
        return "its build is for the CPU" if torch.version.cuda is None else "finds no card"
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    return None


def _jax_on_card():
    import jax
    if jax.devices()[0].platform != "gpu":  # it was imported before, for the CPU
        return "finds no card"
    jax.config.update("jax_default_matmul_precision", "highest")
    return None


def _tinygrad_on_card():
    import tinygrad
    default = tinygrad.Device.DEFAULT
    return None if default in ("CUDA", "NV") else f"its device is {default}, not a card"


CARD = {"torch": _torch_on_card, "torch-compile": _torch_on_card, "jax": _jax_on_card, "tinygrad": _tinygrad_on_card}


# ---------------------------------------------------------------------------------------------------------------------
# what ran
# ---------------------------------------------------------------------------------------------------------------------
def facts(peers, threads):
    """A dictionary: processor, system, threads, date, versions of the packages in play."""
    packages, versions = ["numpy", "numba", *[PACKAGE.get(peer, peer) for peer in peers], *["jaxlib"] * ("jax" in peers)], {}
    for package in dict.fromkeys(packages):
        with suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return {"date": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "processor": _processor(), "cores": os.cpu_count(), "threads": threads,
            "system": f"{platform.system()} {platform.machine()}", "python": platform.python_version(), "versions": versions}


def card_facts():
    """A dictionary: the card that is used, its driver, and whether our arrays come from the pool of `cuda/memory.py`."""
    from ..cuda import memory
    from ..cuda.__main__ import facts as lines
    found, number = lines(), device.numba_cuda().get_current_device().id
    return {"card": found.get(f"cuda card {number}", "unknown"), "driver": found["cuda driver"], "pool": memory.POOL}


def _processor():
    with suppress(OSError):
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
        if found:
            return found[1]
    return platform.processor() or platform.machine()
