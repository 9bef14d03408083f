r"""Elementwise functions of two Tensors: x + y, x - y, x * y, x / y, x ** y, maximum, minimum.

Every kernel here is the same two loops, over rows and along a row (see `broadcast.py`), with three bodies: both inputs
run along the row, only x does, only y does. So a stretched axis is never copied, and where nothing is stretched there is
one row and nothing to look up. The rules return gradients in the broadcast shape; the walk sums them.

Two matrices of one shape are what is met most. For them there is a loop with nothing to look up at all: a shortcut, which
takes half the time where the matrices are small.
"""
import numpy as np

from ..autograd import Op
from ..cuda import NUMBERS, cuda, cuda_kernel, flat, on_card, place
from ..cuda import log as cuda_log
from ..cuda.elementwise import elementwise, in_pairs
from ..device import Entries, Shortcuts, empty, kernel, to_device
from .broadcast import SAME, binary
from .shared import offset


def run(name, loop, x, y):
    """Check, plan and launch one of the kernels below."""
    shape, kind = x.shape, x.dtype
    if shape == y.shape:
        plan = SAME
    else:
        shape, plan = binary(name, x, y)
    out = np.empty(shape, kind)
    call = loop[kind] if kind is y.dtype else loop.function
    call(x.ravel(), y.ravel(), out.ravel(), plan)
    return out


def run_alike(name, shortcut, loop, x, y):
    """`run`, with a shortcut for two matrices of one shape."""
    kind = x.dtype
    if x.ndim == 2 and y.ndim == 2 and kind is y.dtype:
        out = np.empty(x.shape, kind)
        if shortcut[kind](x, y, out):
            return out
    return run(name, loop, x, y)


def run_cuda(name, loop, x, y):
    """The same on a card."""
    shape, plan = binary(name, x, y)
    out = empty(shape, x.dtype, "cuda")
    in_pairs(loop, out.size)(flat(x), flat(y), flat(out), on_card(plan))
    return out


def both_grads(op, loop, g, x, y, *more):
    """Both gradients of an op on a card, or the one that is needed, in one launch and in the shape of g."""
    needed = [int(need) for need in op.needs]
    grads = [empty(g.shape, g.dtype, "cuda") if need else None for need in needed]
    if any(needed):
        _, plan = binary(op.name, x, y)
        to_x, to_y = (flat(grads[i] if needed[i] else grads[1 - i]) for i in range(2))  # the kernel writes what is needed
        loop.each(g.size)(flat(g), *map(flat, more), flat(x), flat(y), on_card(plan), to_x, to_y, *needed)
    return grads


def broadcasting_samples(rng, positive=False):
    """Equal shapes, a row, a column, both stretched, a single number, one element, nothing at all."""
    shapes = [((2, 3), (2, 3)), ((2, 3), (3,)), ((2, 3), (2, 1)), ((2, 1, 3), (4, 1)), ((3,), ()), ((), (2, 2)),
              ((1,), (1, 1)), ((0, 3), (3,))]
    for a, b in shapes:
        x, y = rng.normal(size=a), rng.normal(size=b)
        yield {}, ((np.abs(x) + 0.5, np.abs(y) + 0.5) if positive else (x, y))


class Add(Op):
    """x + y"""
    fresh = False
    tex = "{x} + {y}"
    each = "x + y"

    def cpu(self, x, y):
        return run_alike("add", _ADD_ALIKE, _ADD, x, y)

    def cuda(self, x, y):
        return run_cuda("add", _add_cuda, x, y)

    def grad_x(self, g, out, x, y):
        return g

    def grad_y(self, g, out, x, y):
        return g

    def cpu_grad(self, g, out, x, y):
        return g, g

    cuda_grad = cpu_grad

    samples = broadcasting_samples


class Sub(Op):
    """x - y"""
    tex = "{x} - {y}"
    each = "x - y"

    def cpu(self, x, y):
        return run_alike("sub", _SUB_ALIKE, _SUB, x, y)

    def cuda(self, x, y):
        return run_cuda("sub", _sub_cuda, x, y)

    def grad_x(self, g, out, x, y):
        return g

    def grad_y(self, g, out, x, y):
        return -g

    samples = broadcasting_samples


class Mul(Op):
    """x * y, element by element"""
    tex = r"{x} \odot {y}"
    each = "x * y"

    def cpu(self, x, y):
        return run_alike("mul", _MUL_ALIKE, _MUL, x, y)

    def cuda(self, x, y):
        return run_cuda("mul", _mul_cuda, x, y)

    def grad_x(self, g, out, x, y):
        return g * y

    def grad_y(self, g, out, x, y):
        return g * x

    def cpu_grad(self, g, out, x, y):
        need_x, need_y = self.needs
        kind = g.dtype
        if need_x and need_y and g.ndim == 2 and x.ndim == 2 and y.ndim == 2 and x.dtype is kind and y.dtype is kind:
            shape = g.shape
            to_x, to_y = np.empty(shape, kind), np.empty(shape, kind)
            if _MUL_GRADS[kind](g, x, y, to_x, to_y):
                return to_x, to_y
        return (run_alike("mul", _MUL_ALIKE, _MUL, g, y) if need_x else None,
                run_alike("mul", _MUL_ALIKE, _MUL, g, x) if need_y else None)

    def cuda_grad(self, g, out, x, y):
        need_x, need_y = self.needs
        if need_x and need_y:
            return both_grads(self, _mul_grad_cuda, g, x, y)
        return run_cuda("mul", _mul_cuda, g, y) if need_x else None, run_cuda("mul", _mul_cuda, g, x) if need_y else None

    samples = broadcasting_samples


class Div(Op):
    """x / y. At y = 0 it gives what IEEE arithmetic gives: inf, -inf or nan."""
    tex = r"\frac{{x}}{{y}}"
    each = "x / y"

    def cpu(self, x, y):
        return run_alike("div", _DIV_ALIKE, _DIV, x, y)

    def cuda(self, x, y):
        return run_cuda("div", _div_cuda, x, y)

    def grad_x(self, g, out, x, y):
        return g / y

    def grad_y(self, g, out, x, y):
        return -g * out / y

    def cuda_grad(self, g, out, x, y):
        if self.needs[1]:
            return both_grads(self, _div_grad_cuda, g, x, y, out)
        return run_cuda("div", _div_cuda, g, y), None

    def samples(rng):
        yield from broadcasting_samples(rng, positive=True)


class Pow(Op):
    """x ** y. Where the exponent is 0 the result is 1, and its gradient in x is 0, also at x = 0.

    The gradient in y is x**y log x. It is 0 at x = 0 with y > 0 (its limit) and nan for x < 0, where a real power is only
    defined at whole exponents and so has no derivative.
    """
    tex = "{{x}}^{{y}}"

    def cpu(self, x, y):
        self.check(y)
        return run("pow", _POW, x, y)

    def cuda(self, x, y):
        if y.dtype.kind != "f":
            self.check(to_device(y, "cpu"))
        return run_cuda("pow", _pow_cuda, x, y)

    def check(self, y):
        if y.dtype.kind != "f" and y.size and y.min() < 0:
            raise ValueError(f"pow: a whole number to the power {y.min()} is no whole number; take x.float() ** y")

    def grad_x(self, g, out, x, y):
        base = x.where((x != 0) | (y != 0), 1.0)  # 0 * 1^-1 in place of 0 * 0^-1
        return g * y * base ** (y - 1)

    def grad_y(self, g, out, x, y):
        base = x.where(x != 0, 1.0)  # log 1 = 0: the branch that is not taken stays finite
        return g * out * base.log()

    def cuda_grad(self, g, out, x, y):
        return both_grads(self, _pow_grad_cuda, g, x, y, out)

    def samples(rng):
        yield from broadcasting_samples(rng, positive=True)
        yield {}, (np.array([0.5, 2.0, 3.0, 2.0]), np.array([3.0, 2.0, 0.5, 0.0]))


class Maximum(Op):
    """The larger of x and y; nan if one of them is. At a tie each gets half of the gradient."""
    tex = r"\max({x}, {y})"

    def cpu(self, x, y):
        return run("maximum", _MAXIMUM, x, y)

    def cuda(self, x, y):
        return run_cuda("maximum", _maximum_cuda, x, y)

    def grad_x(self, g, out, x, y):
        return g * _share(x, out, x, y)

    def grad_y(self, g, out, x, y):
        return g * _share(y, out, x, y)

    def cuda_grad(self, g, out, x, y):
        return both_grads(self, _extreme_grad_cuda, g, x, y, out)

    samples = broadcasting_samples


class Minimum(Op):
    """The smaller of x and y; nan if one of them is. At a tie each gets half of the gradient."""
    tex = r"\min({x}, {y})"

    def cpu(self, x, y):
        return run("minimum", _MINIMUM, x, y)

    def cuda(self, x, y):
        return run_cuda("minimum", _minimum_cuda, x, y)

    def grad_x(self, g, out, x, y):
        return g * _share(x, out, x, y)

    def grad_y(self, g, out, x, y):
        return g * _share(y, out, x, y)

    def cuda_grad(self, g, out, x, y):
        return both_grads(self, _extreme_grad_cuda, g, x, y, out)

    samples = broadcasting_samples


def _share(side, out, x, y):
    """1 where this side gave the result, 1/2 where both did, 0 elsewhere."""
    tied = 1 - (x == y).to(out.dtype) * 0.5
    return tied.where(side == out, 0.0)


# ---------------------------------------------------------------------------------------------------------------------
# the shortcuts, for matrices of one shape that lie contiguous: one loop over all elements. False where they do not
# ---------------------------------------------------------------------------------------------------------------------
@kernel(plain=True)
def _alike(x, out):
    """Has x the shape of `out`, and do its elements lie one after the other, as those of `out` do?"""
    return x.shape == out.shape and x.strides == out.strides


@kernel(plain=True)
def _add_alike(x, y, out):
    if not (_alike(x, out) and _alike(y, out)):
        return False
    u, v, w = x.reshape(x.size), y.reshape(x.size), out.reshape(x.size)
    for i in range(len(w)):
        w[i] = u[i] + v[i]
    return True


@kernel(plain=True)
def _sub_alike(x, y, out):
    if not (_alike(x, out) and _alike(y, out)):
        return False
    u, v, w = x.reshape(x.size), y.reshape(x.size), out.reshape(x.size)
    for i in range(len(w)):
        w[i] = u[i] - v[i]
    return True


@kernel(plain=True)
def _mul_alike(x, y, out):
    if not (_alike(x, out) and _alike(y, out)):
        return False
    u, v, w = x.reshape(x.size), y.reshape(x.size), out.reshape(x.size)
    for i in range(len(w)):
        w[i] = u[i] * v[i]
    return True


@kernel(plain=True)
def _mul_grads(g, x, y, to_x, to_y):
    """Both gradients of a product: to_x = g * y, to_y = g * x."""
    if not (_alike(g, to_x) and _alike(x, to_x) and _alike(y, to_x)):
        return False
    n = g.size
    h, u, v, to_u, to_v = g.reshape(n), x.reshape(n), y.reshape(n), to_x.reshape(n), to_y.reshape(n)
    for i in range(len(h)):
        to_u[i] = h[i] * v[i]
        to_v[i] = h[i] * u[i]
    return True


@kernel(plain=True)
def _div_alike(x, y, out):
    if not (_alike(x, out) and _alike(y, out)):
        return False
    u, v, w = x.reshape(x.size), y.reshape(x.size), out.reshape(x.size)
    for i in range(len(w)):
        w[i] = u[i] / v[i]
    return True


_ADD_ALIKE, _SUB_ALIKE, _MUL_ALIKE, _DIV_ALIKE = [Shortcuts(loop, "T[:, ::1], T[:, ::1], T[:, ::1]")
                                                  for loop in (_add_alike, _sub_alike, _mul_alike, _div_alike)]
_MUL_GRADS = Shortcuts(_mul_grads, "T[:, ::1], T[:, ::1], T[:, ::1], T[:, ::1], T[:, ::1]")


# ---------------------------------------------------------------------------------------------------------------------
# the loops: for each row r, for each j along it. `plan` is explained in broadcast.py. Rows are sliced first: an index that is
# a sum might be negative, and Numba's test for that would keep the loop from being vectorised
# ---------------------------------------------------------------------------------------------------------------------
@kernel(plain=True)
def _add(x, y, out, plan):
    rows, n, xi, yi = plan[0, 0], plan[0, 1], plan[0, 2], plan[0, 3]
    n = len(out) if n < 0 else n
    for r in range(rows):
        a, b = offset(r, plan[1], plan[2]), offset(r, plan[1], plan[3])
        u, v, w = x[a:a + n], y[b:b + n], out[r * n:r * n + n]
        if xi == yi:
            for j in range(n):
                w[j] = u[j] + v[j]
        elif yi == 0 and n > 0:
            right = y[b]
            for j in range(n):
                w[j] = u[j] + right
        elif n > 0:
            left = x[a]
            for j in range(n):
                w[j] = left + v[j]


@kernel(plain=True)
def _sub(x, y, out, plan):
    rows, n, xi, yi = plan[0, 0], plan[0, 1], plan[0, 2], plan[0, 3]
    n = len(out) if n < 0 else n
    for r in range(rows):
        a, b = offset(r, plan[1], plan[2]), offset(r, plan[1], plan[3])
        u, v, w = x[a:a + n], y[b:b + n], out[r * n:r * n + n]
        if xi == yi:
            for j in range(n):
                w[j] = u[j] - v[j]
        elif yi == 0 and n > 0:
            right = y[b]
            for j in range(n):
                w[j] = u[j] - right
        elif n > 0:
            left = x[a]
            for j in range(n):
                w[j] = left - v[j]


@kernel(plain=True)
def _mul(x, y, out, plan):
    rows, n, xi, yi = plan[0, 0], plan[0, 1], plan[0, 2], plan[0, 3]
    n = len(out) if n < 0 else n
    for r in range(rows):
        a, b = offset(r, plan[1], plan[2]), offset(r, plan[1], plan[3])
        u, v, w = x[a:a + n], y[b:b + n], out[r * n:r * n + n]
        if xi == yi:
            for j in range(n):
                w[j] = u[j] * v[j]
        elif yi == 0 and n > 0:
            right = y[b]
            for j in range(n):
                w[j] = u[j] * right
        elif n > 0:
            left = x[a]
            for j in range(n):
                w[j] = left * v[j]


@kernel(plain=True)
def _div(x, y, out, plan):
    rows, n, xi, yi = plan[0, 0], plan[0, 1], plan[0, 2], plan[0, 3]
    n = len(out) if n < 0 else n
    for r in range(rows):
        a, b = offset(r, plan[1], plan[2]), offset(r, plan[1], plan[3])
        u, v, w = x[a:a + n], y[b:b + n], out[r * n:r * n + n]
        if xi == yi:
            for j in range(n):
                w[j] = u[j] / v[j]
        elif yi == 0 and n > 0:
            right = y[b]
            for j in range(n):
                w[j] = u[j] / right
        elif n > 0:
            left = x[a]
            for j in range(n):
                w[j] = left / v[j]


@kernel(plain=True)
def _pow(x, y, out, plan):
    rows, n, xi, yi = plan[0, 0], plan[0, 1], plan[0, 2], plan[0, 3]
    n = len(out) if n < 0 else n
    for r in range(rows):
        a, b, o = offset(r, plan[1], plan[2]), offset(r, plan[1], plan[3]), r * n
        for j in range(n):  # a call of the C library an element: nothing to gain from three bodies
            out[o + j] = x[a + j * xi] ** y[b + j * yi]


@kernel(plain=True)
def _maximum(x, y, out, plan):
    rows, n, xi, yi = plan[0, 0], plan[0, 1], plan[0, 2], plan[0, 3]
    n = len(out) if n < 0 else n
    for r in range(rows):
        a, b, o = offset(r, plan[1], plan[2]), offset(r, plan[1], plan[3]), r * n
        for j in range(n):
            u, v = x[a + j * xi], y[b + j * yi]
            out[o + j] = u if u > v or u != u else v  # a nan on either side wins


@kernel(plain=True)
def _minimum(x, y, out, plan):
    rows, n, xi, yi = plan[0, 0], plan[0, 1], plan[0, 2], plan[0, 3]
    n = len(out) if n < 0 else n
    for r in range(rows):
        a, b, o = offset(r, plan[1], plan[2]), offset(r, plan[1], plan[3]), r * n
        for j in range(n):
            u, v = x[a + j * xi], y[b + j * yi]
            out[o + j] = u if u < v or u != u else v


_ADD, _SUB, _MUL, _DIV, _POW, _MAXIMUM, _MINIMUM = [Entries(loop, "T[::1], T[::1], T[::1], int64[:, ::1]")
                                                    for loop in (_add, _sub, _mul, _div, _pow, _maximum, _minimum)]


# ---------------------------------------------------------------------------------------------------------------------
# the same on a card: the formula of one element; how threads walk over the elements stands in cuda/elementwise.py
# ---------------------------------------------------------------------------------------------------------------------
@elementwise("T, T", types=NUMBERS, stretched=True)
def _add_cuda(x, y):
    return x + y


@elementwise("T, T", types=NUMBERS, stretched=True)
def _sub_cuda(x, y):
    return x - y


@elementwise("T, T", types=NUMBERS, stretched=True)
def _mul_cuda(x, y):
    return x * y


@elementwise("T, T", stretched=True)
def _div_cuda(x, y):
    return x / y


@elementwise("T, T", types=NUMBERS, stretched=True)
def _pow_cuda(x, y):
    return x ** y


@elementwise("T, T", types=NUMBERS, stretched=True)
def _maximum_cuda(x, y):
    """A nan on either side wins."""
    return x if x > y or x != x else y


@elementwise("T, T", types=NUMBERS, stretched=True)
def _minimum_cuda(x, y):
    return x if x < y or x != x else y


# The gradients: thread e has element e of g, looks up where x and y stand, and writes the gradients that are needed. It
# asks for all that it reads before it writes, and as that is three or four floats it need not do two elements.
@cuda_kernel("T[::1], T[::1], T[::1], int64[:, ::1], T[::1], T[::1], int64, int64")
def _mul_grad_cuda(g, x, y, plan, to_x, to_y, need_x, need_y):
    """to_x = g y, to_y = g x"""
    e = cuda.grid(1)
    if e < g.size:
        a, u, v = g[e], x[place(e, plan, 0)], y[place(e, plan, 1)]
        if need_x != 0:
            to_x[e] = a * v
        if need_y != 0:
            to_y[e] = a * u


@cuda_kernel("T[::1], T[::1], T[::1], T[::1], int64[:, ::1], T[::1], T[::1], int64, int64")
def _div_grad_cuda(g, out, x, y, plan, to_x, to_y, need_x, need_y):
    """to_x = g / y, to_y = -g out / y"""
    e = cuda.grid(1)
    if e < g.size:
        a, b, v = g[e], out[e], y[place(e, plan, 1)]
        if need_x != 0:
            to_x[e] = a / v
        if need_y != 0:
            to_y[e] = -a * b / v


@cuda_kernel("T[::1], T[::1], T[::1], T[::1], int64[:, ::1], T[::1], T[::1], int64, int64")
def _pow_grad_cuda(g, out, x, y, plan, to_x, to_y, need_x, need_y):
    """to_x = g y x^(y - 1), and 0 where y = 0 as well at x = 0; to_y = g out log x, and 0 at x = 0."""
    e = cuda.grid(1)
    if e < g.size:
        a, b, u, v = g[e], out[e], x[place(e, plan, 0)], y[place(e, plan, 1)]
        zero, one = g.dtype.type(0), g.dtype.type(1)
        if need_x != 0:
            to_x[e] = a * v * (u if u != zero or v != zero else one) ** (v - one)
        if need_y != 0:
            to_y[e] = a * b * cuda_log(u if u != zero else one)


@cuda_kernel("T[::1], T[::1], T[::1], T[::1], int64[:, ::1], T[::1], T[::1], int64, int64")
def _extreme_grad_cuda(g, out, x, y, plan, to_x, to_y, need_x, need_y):
    """Of maximum and minimum: g for the side that gave the result, half of it for each where both did, else 0."""
    e = cuda.grid(1)
    if e < g.size:
        a, b, u, v = g[e], out[e], x[place(e, plan, 0)], y[place(e, plan, 1)]
        zero, share = g.dtype.type(0), g.dtype.type(0.5) if u == v else g.dtype.type(1)
        if need_x != 0:
            to_x[e] = a * (share if u == b else zero)
        if need_y != 0:
            to_y[e] = a * (share if v == b else zero)
