"""PTX: the assembler text that a card's driver would be given, made without a card, and what it takes of one."""
import importlib
import multiprocessing
import multiprocessing.connection
import os
import re
import threading
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from .. import device
from . import link
from .kernel import CAPABILITIES, SIMULATED, THREADS, CudaKernel

SHARED = 48 * 1024  # bytes of shared memory that every block may have
FEW = 6             # so many signatures are compiled in less time than processes take to start
KERNEL = re.compile(r"^@(cuda_kernel|elementwise)\(", re.MULTILINE)  # a file with one begins a line with it
COLOUR = re.compile(r"\x1b\[\d*m")  # in Numba's messages


def ptx(kernel, signature, capability):
    """The PTX text of a kernel for one signature and one compute capability such as (9, 0). Needs no card, but NVIDIA's
    compiler libraries: RuntimeError names what is missing."""
    return ptx_texts(kernel, signature, [capability])[0]


def ptx_texts(kernel, signature, capabilities):
    """The PTX texts for several capabilities. Numba's work on the Python code, most of the time, is done once for all: what
    it made of it is asked for each capability's PTX in place of one's."""
    if SIMULATED:
        raise RuntimeError(missing())
    from numba.core import sigutils
    module = device.numba_cuda()
    from numba.cuda.codegen import CUDACodeLibrary
    arguments, _ = sigutils.normalize_signature(f"void({signature})")
    one = CUDACodeLibrary.get_asm_str
    try:
        with mock.patch.object(CUDACodeLibrary, "get_asm_str", lambda code, cc: [one(code, cc=c) for c in capabilities]):
            return module.compile_ptx(kernel.bound(), arguments, cc=capabilities[0])[0]
    except Exception as error:
        if toolkit_missing():
            raise RuntimeError(toolkit_missing()) from None
        raise RuntimeError(f"ptx: {kernel.name} ({signature}) does not compile: {COLOUR.sub('', str(error))}") from error


def missing():
    """Why kernels cannot be compiled and measured here, as one line; '' if they can."""
    if SIMULATED:
        return "ptx: the simulator compiles nothing; unset NUMBA_ENABLE_CUDASIM"
    return toolkit_missing() or link.missing()


@lru_cache(maxsize=1)
def toolkit_missing():
    """Why no kernel can be compiled to PTX here, as one line; '' if one can."""
    try:
        trial(CAPABILITIES[0])
        return ""
    except Exception as error:
        reason = str(error).strip().splitlines()
        why = f"{type(error).__name__}{': ' + reason[-1] if reason else ''}"
        return ("ptx: NVIDIA's compiler libraries (libNVVM, libdevice) were not found; install the extra "
                f"tinyattn[cuda] or the CUDA toolkit ({why})")


def trial(capability):
    """The PTX text of a kernel that does nothing: it shows what the compiler can do, and its version."""
    def nothing():
        pass
    return device.numba_cuda().compile_ptx(nothing, (), cc=capability)[0]


# ---------------------------------------------------------------------------------------------------------------------
# all kernels
# ---------------------------------------------------------------------------------------------------------------------
class Compiled(NamedTuple):
    """A kernel for one signature and capability. fault: why it is not as it should be, '' if it is."""
    kernel: str
    arguments: str
    capability: tuple
    text: str
    usage: link.Usage | None
    fault: str

    @property
    def lines(self):
        return self.text.count("\n")


def kernels():
    """{name: CudaKernel} of the whole package. Each module with one is imported: that registers it."""
    root = Path(__file__).parent.parent
    for path in sorted(root.rglob("*.py")):
        if KERNEL.search(path.read_text(encoding="utf-8")):
            importlib.import_module(".".join((root.name, *path.relative_to(root).with_suffix("").parts)).removesuffix(".__init__"))
    return dict(sorted(CudaKernel.registry.items()))


def compiled(names, capabilities=CAPABILITIES, processes=None):
    """A Compiled for each of these kernels, its signatures and the capabilities; in several processes if there are many.
    RuntimeError names what is missing."""
    if missing():
        raise RuntimeError(missing())
    known = kernels()
    work = [(name, signature, capabilities) for name in names for signature in known[name].signatures]
    processes = processes or (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    if len(work) <= FEW or processes == 1:
        return [row for item in work for row in _compiled(item)]
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), initializer=_begin) as pool:
        return [row for rows in pool.map(_compiled, work, chunksize=2) for row in rows]


def _begin():
    """In each process: it knows the kernels, and ends when the one that asked has been killed."""
    def end_with_parent():
        multiprocessing.connection.wait([multiprocessing.parent_process().sentinel])
        os._exit(1)
    threading.Thread(target=end_with_parent, daemon=True).start()
    kernels()


def _compiled(item):
    """The rows of one kernel and signature: a Compiled for each capability."""
    name, signature, capabilities = item
    kernel = CudaKernel.registry[name]
    try:
        texts = ptx_texts(kernel, signature, capabilities)
    except RuntimeError as error:
        return [Compiled(name, signature, c, "", None, " ".join(str(error).split())) for c in capabilities]
    return [_linked(kernel, signature, *pair) for pair in zip(capabilities, texts, strict=True)]


def _linked(kernel, signature, capability, text):
    try:
        use = link.usage(text, capability)
    except ValueError as error:
        return Compiled(kernel.name, signature, capability, text, None, f"does not assemble: {error}")
    return Compiled(kernel.name, signature, capability, text, use, fault_of(use, kernel.spills))


def fault_of(use, reason):
    """What is wrong with what a kernel takes of a card; '' if nothing is. `reason` allows it to spill."""
    if (use.stack or use.spill_stores or use.spill_loads) and not reason:
        return (f"a stack frame of {use.stack} bytes, spills: {use.spill_stores} bytes stored, {use.spill_loads} loaded; "
                "if that must be, say why: @cuda_kernel(..., spills=\"why\")")
    if use.shared > SHARED:
        return f"takes {use.shared} bytes of shared memory; a block has {SHARED}"
    if use.threads < THREADS:
        return f"takes {use.registers} registers a thread: too many for blocks of {THREADS}"
    return ""
