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
takes flat arrays and lengths. Nothing is compiled, and `numba.cuda` is not even imported, before the first array on a card.

What a kernel must not say: `min` and `max` need a card even to compile (write `a if a < b else b`). In a float32 kernel
a literal widens the arithmetic, since Numba computes float32 * 2 in float64 (write `x.dtype.type(2)`). Two shared
arrays made on one line are one array in the simulator. No fast-math: on CUDA any flag means all of them.
"""
from . import memory  # with TINYATTN_CUDA_POOL=1 it stands between Numba and the driver before either is asked
from .arrays import add_to, address, flat, follow, forget, full, number, on_card, place, reshaped, zeros
from .kernel import (
    ANY,
    CAPABILITIES,
    FLOATS,
    NUMBERS,
    SIMULATED,
    THREADS,
    CudaKernel,
    cuda,
    cuda_function,
    cuda_kernel,
    exp,
    log,
    sqrt,
    tanh,
    threads_for,
)

__all__ = ["ANY", "CAPABILITIES", "FLOATS", "NUMBERS", "SIMULATED", "THREADS", "CudaKernel", "add_to", "address",
           "cuda", "cuda_function", "cuda_kernel", "exp", "flat", "follow", "forget", "full", "log", "memory", "number",
           "on_card", "place", "reshaped", "sqrt", "tanh", "threads_for", "zeros"]
