"""PTX: the assembler text that a card's driver would be given, made without a card."""
from functools import lru_cache

from .. import device
from .kernel import CAPABILITIES, SIMULATED, CudaKernel


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
    from .. import tensor  # noqa: F401  (it imports every family of ops, and so registers their kernels)
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
