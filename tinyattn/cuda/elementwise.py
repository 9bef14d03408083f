"""Elementwise kernels: an op gives the formula of one element, and the walk over the elements stands here, once for all.

    @elementwise("T, T")                              # the types of the inputs; the result's is T too, or "T>U"
    def _tanh_grad_cuda(g, y):
        return g * (type(y)(1) - y * y)

    in_pairs(_tanh_grad_cuda, out.size)(flat(g), flat(y), flat(out))

Such a kernel does little but wait for memory. Threads that ask for one float, wait and write one have too few bytes on
the way to fill the memory of a fast card. So each does two elements, a block's length apart, and asks for both before
it computes; neighbouring threads still ask for neighbouring elements.
"""
import types as python

from .arrays import place
from .kernel import FLOATS, CudaFunction, cuda, cuda_function, cuda_kernel, threads_for


def in_pairs(kernel, n):
    """`in_pairs(kernel, n)(*arguments)`: launch a kernel that does two elements a thread over n elements."""
    half = -(-n // 2)
    threads = threads_for(half)
    return kernel[-(-half // threads), threads]


@cuda_function
def first_of_two():
    """The first of the two elements of this thread. It may lie beyond the end: then there is nothing to do."""
    return 2 * cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x


@cuda_function
def second_of_two(i, n):
    """The second, a block's length after the first. If that is beyond the end, the first, which is done twice."""
    j = i + cuda.blockDim.x
    return j if j < n else i


def elementwise(inputs, types=FLOATS, stretched=False, spills=""):
    """Decorate the formula of one element as a kernel (inputs..., out). Stretched: the inputs broadcast, and the kernel
    takes a plan of `broadcast.py` after `out`. spills: as in `cuda_kernel`."""
    inputs, _, out = inputs.partition(">")
    names = inputs.split(", ")
    walk = {(1, False): _one, (2, False): _two, (2, True): _two_stretched, (3, True): _three_stretched}[len(names), stretched]
    arguments = ", ".join(f"{name}[::1]" for name in (*names, out or "T")) + ", int64[:, ::1]" * stretched

    def make(function):
        names = {**walk.__globals__, "formula": CudaFunction(function)}
        kernel = python.FunctionType(walk.__code__, names, function.__name__)
        kernel.__module__, kernel.__doc__ = function.__module__, function.__doc__
        return cuda_kernel(arguments, types, spills)(kernel)
    return make


def formula(*elements):
    """Stands for the op's formula in the walks below."""


def _one(x, out):
    i, n = first_of_two(), out.size
    if i < n:
        j = second_of_two(i, n)
        a, b = x[i], x[j]
        out[i] = formula(a)
        out[j] = formula(b)


def _two(x, y, out):
    i, n = first_of_two(), out.size
    if i < n:
        j = second_of_two(i, n)
        a, b, c, d = x[i], y[i], x[j], y[j]
        out[i] = formula(a, b)
        out[j] = formula(c, d)


def _two_stretched(x, y, out, plan):
    i, n = first_of_two(), out.size
    if i < n:
        j = second_of_two(i, n)
        a, b = x[place(i, plan, 0)], y[place(i, plan, 1)]
        c, d = x[place(j, plan, 0)], y[place(j, plan, 1)]
        out[i] = formula(a, b)
        out[j] = formula(c, d)


def _three_stretched(x, y, z, out, plan):
    i, n = first_of_two(), out.size
    if i < n:
        j = second_of_two(i, n)
        a, b, c = x[place(i, plan, 0)], y[place(i, plan, 1)], z[place(i, plan, 2)]
        d, e, f = x[place(j, plan, 0)], y[place(j, plan, 1)], z[place(j, plan, 2)]
        out[i] = formula(a, b, c)
        out[j] = formula(d, e, f)
