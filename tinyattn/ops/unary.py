r"""Elementwise functions of one Tensor. Each op is its formula, its rule and, further down, its loop.

Where the rule would be three passes over memory (tanh: multiply, subtract, multiply) `cpu_grad` is one loop.
"""
import math

import numpy as np
from numba import prange, types
from numba.extending import overload

from ..autograd import Op
from ..cuda import NUMBERS, SIMULATED, flat
from ..cuda import exp as cuda_exp
from ..cuda import log as cuda_log
from ..cuda import sqrt as cuda_sqrt
from ..cuda import tanh as cuda_tanh
from ..cuda.elementwise import elementwise, in_pairs
from ..cuda.kernel import Later
from ..device import JIT, VALUES, empty, kernel, launch
from .shared import exp, exp_below, sigmoid, tanh

CHUNK = 16_384  # elements; the unit of parallel work
SQRT_HALF, DENSITY_AT_0, ERF_SLOPE_AT_0 = math.sqrt(0.5), 1 / math.sqrt(2 * math.pi), 2 / math.sqrt(math.pi)


def run(loop, *arrays):
    """Launch a kernel over the flat elements of arrays of one shape."""
    out = empty(arrays[0].shape, arrays[0].dtype)
    loop(*[a.ravel() for a in arrays], out.reshape(-1))
    return out


def run_shared(nanoseconds, loop, parallel, *arrays):
    """The same, by all threads where there are many elements; `parallel` gives `loop` CHUNK of them at a time."""
    out = empty(arrays[0].shape, arrays[0].dtype)
    args = *[a.ravel() for a in arrays], out.reshape(-1)
    launch(nanoseconds * out.size, loop, args, parallel, args)
    return out


def run_cuda(loop, *arrays):
    """The same on a card."""
    out = empty(arrays[0].shape, arrays[0].dtype, "cuda")
    in_pairs(loop, out.size)(*[flat(a) for a in arrays], flat(out))
    return out


def shape_samples(rng):
    """A matrix, one element, no axis, nothing at all."""
    for shape in [(2, 3), (1,), (), (0, 2)]:
        yield {}, (rng.normal(size=shape),)


def positive_samples(rng):
    for _, (x,) in shape_samples(rng):
        yield {}, (np.abs(x) + 0.5,)


class Neg(Op):
    """-x"""
    tex = "-{x}"
    each = "-x"

    def cpu(self, x):
        return run(_neg, x)

    def cuda(self, x):
        return run_cuda(_neg_cuda, x)

    def grad_x(self, g, y, x):
        return -g

    samples = shape_samples


class Exp(Op):
    """e^x"""
    tex = "e^{{x}}"
    each = "exp(x)"

    def cpu(self, x):
        return run(_exp, x)

    def cuda(self, x):
        return run_cuda(_exp_cuda, x)

    def grad_x(self, g, y, x):
        return g * y

    samples = shape_samples


class Log(Op):
    """The natural logarithm; -inf at 0, nan below."""
    tex = r"\log {x}"
    each = "np.log(x)"

    def cpu(self, x):
        return run(_log, x)

    def cuda(self, x):
        return run_cuda(_log_cuda, x)

    def grad_x(self, g, y, x):
        return g / x

    samples = positive_samples


class Sqrt(Op):
    """The square root; its slope at 0 is inf. (A norm at 0 has its own rule: see `Norm`.)"""
    tex = r"\sqrt{{x}}"
    each = "np.sqrt(x)"

    def cpu(self, x):
        return run(_sqrt, x)

    def cuda(self, x):
        return run_cuda(_sqrt_cuda, x)

    def grad_x(self, g, y, x):
        return g * 0.5 / y

    def cuda_grad(self, g, y, x):
        return (run_cuda(_sqrt_grad_cuda, g, y),)

    samples = positive_samples


class Abs(Op):
    """|x|, with slope 0 at 0"""
    tex = "|{x}|"
    each = "abs(x)"

    def cpu(self, x):
        return run(_abs, x)

    def cuda(self, x):
        return run_cuda(_abs_cuda, x)

    def grad_x(self, g, y, x):
        return g * x.sign()

    def cuda_grad(self, g, y, x):
        return (run_cuda(_abs_grad_cuda, g, x),)

    samples = shape_samples


class Sign(Op):
    """-1, 0 or 1. It is flat, so its gradient is 0."""
    tex = r"\mathrm{sign}({x})"

    def cpu(self, x):
        return run(_sign, x)

    def cuda(self, x):
        return run_cuda(_sign_cuda, x)

    def grad_x(self, g, y, x):
        return g * 0.0

    samples = shape_samples


class Tanh(Op):
    """(e^x - e^-x) / (e^x + e^-x)"""
    tex = r"\tanh({x})"
    each, each_grad = "tanh(x)", {"x": "g * (1 - y * y)"}

    def cpu(self, x):
        return run(_tanh, x)

    def cuda(self, x):
        return run_cuda(_tanh_cuda, x)

    def grad_x(self, g, y, x):
        return g * (1 - y * y)

    def cpu_grad(self, g, y, x):
        return (run(_tanh_grad, g, y),)

    def cuda_grad(self, g, y, x):
        return (run_cuda(_tanh_grad_cuda, g, y),)

    samples = shape_samples


class Sigmoid(Op):
    """1 / (1 + e^-x)"""
    tex = r"\sigma({x})"
    each, each_grad = "sigmoid(x)", {"x": "g * y * (1 - y)"}

    def cpu(self, x):
        return run(_sigmoid, x)

    def cuda(self, x):
        return run_cuda(_sigmoid_cuda, x)

    def grad_x(self, g, y, x):
        return g * (y * (1 - y))

    def cpu_grad(self, g, y, x):
        return (run(_sigmoid_grad, g, y),)

    def cuda_grad(self, g, y, x):
        return (run_cuda(_sigmoid_grad_cuda, g, y),)

    samples = shape_samples


class Relu(Op):
    """max(0, x), with slope 0 at 0"""
    tex = r"\mathrm{relu}({x})"
    each, each_grad = "x if x > 0 or x != x else 0", {"x": "g if x > 0 else 0"}

    def cpu(self, x):
        return run_shared(0.08, _relu, _relu_parallel, x)

    def cuda(self, x):
        return run_cuda(_relu_cuda, x)

    def grad_x(self, g, y, x):
        return g.where(x > 0, 0.0)

    def cpu_grad(self, g, y, x):
        return (run_shared(0.1, _relu_grad, _relu_grad_parallel, g, x),)

    def cuda_grad(self, g, y, x):
        return (run_cuda(_relu_grad_cuda, g, x),)

    samples = shape_samples


class Gelu(Op):
    r"""x Phi(x), where Phi is the distribution function of the normal distribution (Hendrycks & Gimpel 2016), exactly."""
    tex = r"\mathrm{gelu}({x})"

    def cpu(self, x):
        return run_shared(0.3, _gelu, _gelu_parallel, x)

    def cuda(self, x):
        return run_cuda(_gelu_cuda, x)

    def grad_x(self, g, y, x):
        density = (x * x * -0.5).exp() * (1 / math.sqrt(2 * math.pi))
        return g * (0.5 * (1 + (x * math.sqrt(0.5)).erf()) + x * density)

    def cpu_grad(self, g, y, x):
        return (run_shared(0.3, _gelu_grad, _gelu_grad_parallel, g, x),)

    def cuda_grad(self, g, y, x):
        return (run_cuda(_gelu_grad_cuda, g, x),)

    samples = shape_samples


class Erf(Op):
    r"""The error function 2/sqrt(pi) * integral of e^(-t^2) from 0 to x"""
    tex = r"\mathrm{erf}({x})"

    def cpu(self, x):
        return run(_erf, x)

    def cuda(self, x):
        return run_cuda(_erf_cuda, x)

    def grad_x(self, g, y, x):
        return g * ((-x * x).exp() * (2 / math.sqrt(math.pi)))

    def cuda_grad(self, g, y, x):
        return (run_cuda(_erf_grad_cuda, g, x),)

    samples = shape_samples


class Softplus(Op):
    """log(1 + e^x), written so that it neither overflows nor loses digits"""
    tex = r"\log(1 + e^{{x}})"

    def cpu(self, x):
        return run(_softplus, x)

    def cuda(self, x):
        return run_cuda(_softplus_cuda, x)

    def grad_x(self, g, y, x):
        return g * x.sigmoid()

    def cuda_grad(self, g, y, x):
        return (run_cuda(_softplus_grad_cuda, g, x),)

    samples = shape_samples


class Sin(Op):
    """sin x"""
    tex = r"\sin({x})"

    def cpu(self, x):
        return run(_sin, x)

    def cuda(self, x):
        return run_cuda(_sin_cuda, x)

    def grad_x(self, g, y, x):
        return g * x.cos()

    def cuda_grad(self, g, y, x):
        return (run_cuda(_sin_grad_cuda, g, x),)

    samples = shape_samples


class Cos(Op):
    """cos x"""
    tex = r"\cos({x})"

    def cpu(self, x):
        return run(_cos, x)

    def cuda(self, x):
        return run_cuda(_cos_cuda, x)

    def grad_x(self, g, y, x):
        return -g * x.sin()

    def cuda_grad(self, g, y, x):
        return (run_cuda(_cos_grad_cuda, g, x),)

    samples = shape_samples


class Cast(Op):
    """The same numbers in another float type"""
    tex = "{x}"

    def __init__(self, dtype):
        self.dtype = np.dtype(dtype).name

    def cpu(self, x):
        return x.astype(self.dtype)

    def cuda(self, x):
        out = empty(x.shape, self.dtype, "cuda")
        in_pairs(_cast_cuda, out.size)(flat(x), flat(out))
        return out

    def grad_x(self, g, y, x):
        return g.to(x.dtype)

    def samples(rng):
        yield {"dtype": "float64"}, (rng.normal(size=(2, 3)),)


# ---------------------------------------------------------------------------------------------------------------------
# the loops
# ---------------------------------------------------------------------------------------------------------------------
@kernel
def _neg(x, out):
    for i in range(len(x)):
        out[i] = -x[i]


@kernel
def _exp(x, out):
    for i in range(len(x)):
        out[i] = exp(x[i])


@kernel
def _log(x, out):
    for i in range(len(x)):
        out[i] = np.log(x[i])


@kernel
def _sqrt(x, out):
    for i in range(len(x)):
        out[i] = np.sqrt(x[i])


@kernel
def _abs(x, out):
    for i in range(len(x)):
        out[i] = abs(x[i])


@kernel
def _sign(x, out):
    for i in range(len(x)):
        out[i] = x[i] if x[i] != x[i] else (x[i] > 0) * 1.0 - (x[i] < 0) * 1.0


@kernel
def _tanh(x, out):
    for i in range(len(x)):
        out[i] = tanh(x[i])


@kernel
def _tanh_grad(g, y, out):
    for i in range(len(g)):
        out[i] = g[i] * (1 - y[i] * y[i])


@kernel
def _sigmoid(x, out):
    for i in range(len(x)):
        out[i] = sigmoid(x[i])


@kernel
def _sigmoid_grad(g, y, out):
    for i in range(len(g)):
        out[i] = g[i] * y[i] * (1 - y[i])


@kernel
def _relu(x, out):
    for i in range(len(x)):
        out[i] = x[i] if x[i] > 0 or x[i] != x[i] else 0


@kernel
def _relu_grad(g, x, out):
    for i in range(len(g)):
        out[i] = g[i] if x[i] > 0 else 0


@kernel(parallel=True)
def _relu_parallel(x, out):
    for c in prange(-(-len(x) // CHUNK)):
        _relu(x[c * CHUNK:(c + 1) * CHUNK], out[c * CHUNK:(c + 1) * CHUNK])


@kernel(parallel=True)
def _relu_grad_parallel(g, x, out):
    for c in prange(-(-len(x) // CHUNK)):
        _relu_grad(g[c * CHUNK:(c + 1) * CHUNK], x[c * CHUNK:(c + 1) * CHUNK], out[c * CHUNK:(c + 1) * CHUNK])


def normal32(x):
    """(Phi(x), phi(x)), the normal distribution's share below x and its density at x, in float32.

    With z = |x| the share beyond z is phi(z) times a function that falls slowly, here t P(t) with t = 1 / (1 + 0.3 z) and
    P of degree 7 fitted to z < 14.5: 6e-7 relative near 0, 4e-6 at z = 13, where the square of z has lost digits.
    (0.5 + 0.5 erf would lose all of them on the left.)
    """
    z = abs(x)
    e = exp_below(np.float32(-0.5) * z * z)
    t = np.float32(1.0) / (np.float32(1.0) + np.float32(0.3) * z)
    p = np.float32(0.03542386)
    p = p * t + np.float32(-0.15615894)
    p = p * t + np.float32(0.20455757)
    p = p * t + np.float32(-0.052034684)
    p = p * t + np.float32(0.12769209)
    p = p * t + np.float32(0.10017586)
    p = p * t + np.float32(0.120712146)
    p = p * t + np.float32(0.119632006)
    beyond = e * (p * t)
    return (beyond if x < np.float32(0.0) else np.float32(1.0) - beyond), e * np.float32(0.3989422804)


def normal(x):
    """`normal32`, or for float64 with the C library's functions. This body is what runs without the JIT."""
    if isinstance(x, np.float32):
        return normal32(x)
    return 0.5 * math.erfc(-x * math.sqrt(0.5)), math.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


if JIT:
    normal32 = kernel(normal32)

    @overload(normal, jit_options={"error_model": "numpy", "fastmath": VALUES})
    def _normal(x):
        if x == types.float32:
            return lambda x: normal32(x)
        return lambda x: (0.5 * math.erfc(-x * math.sqrt(0.5)), math.exp(-0.5 * x * x) / math.sqrt(2 * math.pi))


@kernel
def _gelu(x, out):
    for i in range(len(x)):
        out[i] = x[i] * normal(x[i])[0]


@kernel
def _gelu_grad(g, x, out):
    for i in range(len(x)):
        below, density = normal(x[i])
        out[i] = g[i] * (below + x[i] * density)


@kernel(parallel=True)
def _gelu_parallel(x, out):
    for c in prange(-(-len(x) // CHUNK)):
        _gelu(x[c * CHUNK:(c + 1) * CHUNK], out[c * CHUNK:(c + 1) * CHUNK])


@kernel(parallel=True)
def _gelu_grad_parallel(g, x, out):
    for c in prange(-(-len(x) // CHUNK)):
        _gelu_grad(g[c * CHUNK:(c + 1) * CHUNK], x[c * CHUNK:(c + 1) * CHUNK], out[c * CHUNK:(c + 1) * CHUNK])


@kernel
def _erf(x, out):
    for i in range(len(x)):
        out[i] = math.erf(x[i])


@kernel
def _softplus(x, out):
    for i in range(len(x)):
        out[i] = (x[i] if x[i] > 0 or x[i] != x[i] else 0) + math.log1p(math.exp(-abs(x[i])))


@kernel
def _sin(x, out):
    for i in range(len(x)):
        out[i] = np.sin(x[i])


@kernel
def _cos(x, out):
    for i in range(len(x)):
        out[i] = np.cos(x[i])


# ---------------------------------------------------------------------------------------------------------------------
# the same on a card: the formula of one element; how threads walk over the elements stands in cuda/elementwise.py
# ---------------------------------------------------------------------------------------------------------------------
cuda_erf = Later(lambda: math.erf)
cuda_erfc = Later(lambda: math.erfc)
cuda_log1p = Later(lambda: np.log1p if SIMULATED else math.log1p)
cuda_sin = Later(lambda: np.sin if SIMULATED else math.sin)
cuda_cos = Later(lambda: np.cos if SIMULATED else math.cos)
FAR = "to find the angle of |x| > 1e5 NVIDIA's function for float32 keeps the product of x and many digits of 2 / pi"


@elementwise("T", types=NUMBERS)
def _neg_cuda(x):
    return -x


@elementwise("T")
def _exp_cuda(x):
    return cuda_exp(x)


@elementwise("T")
def _log_cuda(x):
    return cuda_log(x)


@elementwise("T")
def _sqrt_cuda(x):
    return cuda_sqrt(x)


@elementwise("T, T")
def _sqrt_grad_cuda(g, y):
    return g * type(y)(0.5) / y


@elementwise("T", types=NUMBERS)
def _abs_cuda(x):
    return abs(x)


@elementwise("T", types=NUMBERS)
def _sign_cuda(x):
    """Of a nan the sign is nan: neither comparison holds, and x itself is given."""
    zero = type(x)(0)
    return type(x)(1) if x > zero else type(x)(-1) if x < zero else x


@elementwise("T, T")
def _abs_grad_cuda(g, x):
    zero = type(x)(0)
    return g * (type(x)(1) if x > zero else type(x)(-1) if x < zero else x)


@elementwise("T")
def _tanh_cuda(x):
    return cuda_tanh(x)


@elementwise("T, T")
def _tanh_grad_cuda(g, y):
    return g * (type(y)(1) - y * y)


@elementwise("T")
def _sigmoid_cuda(x):
    """e^-x overflows to inf for very negative x, and 1 / inf is the right 0."""
    one = type(x)(1)
    return one / (one + cuda_exp(-x))


@elementwise("T, T")
def _sigmoid_grad_cuda(g, y):
    return g * y * (type(y)(1) - y)


@elementwise("T", types=NUMBERS)
def _relu_cuda(x):
    return x if x > 0 or x != x else type(x)(0)


@elementwise("T, T")
def _relu_grad_cuda(g, x):
    return g if x > 0 else type(x)(0)


@elementwise("T")
def _gelu_cuda(x):
    """Phi(x) = erfc(-x / sqrt 2) / 2, which on the left keeps the digits that 1 + erf would lose."""
    return x * (type(x)(0.5) * cuda_erfc(-x * type(x)(SQRT_HALF)))


@elementwise("T, T")
def _gelu_grad_cuda(g, x):
    """Phi + x phi, where phi(x) = e^(-x^2 / 2) / sqrt(2 pi) is the density."""
    half = type(x)(0.5)
    density = cuda_exp(-half * x * x) * type(x)(DENSITY_AT_0)
    return g * (half * cuda_erfc(-x * type(x)(SQRT_HALF)) + x * density)


@elementwise("T")
def _erf_cuda(x):
    return cuda_erf(x)


@elementwise("T, T")
def _erf_grad_cuda(g, x):
    return g * (cuda_exp(-x * x) * type(x)(ERF_SLOPE_AT_0))


@elementwise("T")
def _softplus_cuda(x):
    return (x if x > 0 or x != x else type(x)(0)) + cuda_log1p(cuda_exp(-abs(x)))


@elementwise("T, T")
def _softplus_grad_cuda(g, x):
    one = type(x)(1)
    return g * (one / (one + cuda_exp(-x)))


@elementwise("T", spills=FAR)
def _sin_cuda(x):
    """NVIDIA's function for float32 multiplies once in float64 where |x| > 1e5."""
    return cuda_sin(x)


@elementwise("T, T", spills=FAR)
def _sin_grad_cuda(g, x):
    """NVIDIA's function for float32 multiplies once in float64 where |x| > 1e5."""
    return g * cuda_cos(x)


@elementwise("T", spills=FAR)
def _cos_cuda(x):
    """NVIDIA's function for float32 multiplies once in float64 where |x| > 1e5."""
    return cuda_cos(x)


@elementwise("T, T", spills=FAR)
def _cos_grad_cuda(g, x):
    """NVIDIA's function for float32 multiplies once in float64 where |x| > 1e5."""
    return -g * cuda_sin(x)


@elementwise("T>U", types=("float32>float64", "float64>float32", "float32>float32", "float64>float64"))
def _cast_cuda(x):
    return x
