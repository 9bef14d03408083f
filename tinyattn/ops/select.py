"""Choosing: where(condition, x, y) and clip. The branch that is not taken is selected away, never multiplied by 0,
so a nan or inf in it reaches neither the value nor the gradient."""
import numpy as np

from ..autograd import Op
from ..cuda import ANY, cuda, cuda_kernel, flat, on_card, place
from ..cuda.elementwise import elementwise, first_of_two, in_pairs, second_of_two
from ..device import empty, kernel
from .broadcast import binary, plan_of
from .shared import offset
from .unary import shape_samples


class Where(Op):
    """x where the condition is True, y elsewhere; the three shapes broadcast."""
    tex = r"\mathrm{where}({condition}, {x}, {y})"
    each = "x if condition else y"

    def cpu(self, condition, x, y):
        shape, plan = plan_of("where", condition.shape, x.shape, y.shape)
        out = empty(shape, x.dtype)
        _where(condition.ravel(), x.ravel(), y.ravel(), out.reshape(-1), plan)
        return out

    def cuda(self, condition, x, y):
        shape, plan = plan_of("where", condition.shape, x.shape, y.shape)
        out = empty(shape, x.dtype, "cuda")
        in_pairs(_where_cuda, out.size)(flat(condition), flat(x), flat(y), flat(out), on_card(plan))
        return out

    def grad_x(self, g, out, condition, x, y):
        return g.where(condition, 0.0)

    def grad_y(self, g, out, condition, x, y):
        return g.where(~condition, 0.0)

    def cuda_grad(self, g, out, condition, x, y):
        _, *needed = [int(need) for need in self.needs]
        grads = [empty(g.shape, g.dtype, "cuda") if need else None for need in needed]
        if any(needed):
            _, plan = binary("where", g, condition)
            to_x, to_y = (flat(grads[i] if needed[i] else grads[1 - i]) for i in range(2))
            _where_grad_cuda.each(g.size)(flat(g), flat(condition), on_card(plan), to_x, to_y, *needed)
        return None, *grads

    def samples(rng):
        yield {}, (rng.random((2, 3)) < 0.5, rng.normal(size=(2, 3)), rng.normal(size=(3,)))
        yield {}, (rng.random((2, 1)) < 0.5, rng.normal(size=(3,)), rng.normal(size=()))
        yield {}, (rng.random((0, 2)) < 0.5, rng.normal(size=(0, 2)), rng.normal(size=(2,)))


class Clip(Op):
    """min(max(x, low), high). At a bound itself the gradient passes; beyond it, it is 0."""
    tex = r"\mathrm{clip}({x})"

    def __init__(self, low=-np.inf, high=np.inf):
        self.low, self.high = float(low), float(high)

    def cpu(self, x):
        out = empty(x.shape, x.dtype)
        _clip(x.ravel(), x.dtype.type(self.low), x.dtype.type(self.high), out.reshape(-1))
        return out

    def cuda(self, x):
        out = empty(x.shape, x.dtype, "cuda")
        in_pairs(_clip_cuda, out.size)(flat(x), x.dtype.type(self.low), x.dtype.type(self.high), flat(out))
        return out

    def grad_x(self, g, y, x):
        return g.where((x >= self.low) & (x <= self.high), 0.0)

    def cuda_grad(self, g, y, x):
        out = empty(x.shape, x.dtype, "cuda")
        _clip_grad_cuda.each(out.size)(flat(g), flat(x), x.dtype.type(self.low), x.dtype.type(self.high), flat(out))
        return (out,)

    def samples(rng):
        for _, inputs in shape_samples(rng):
            yield {"low": -0.5, "high": 0.7}, inputs


@kernel
def _where(condition, x, y, out, plan):
    """for each row r of the broadcast, for each j along it: out[r, j] = x[r, j] if condition[r, j] else y[r, j]"""
    rows, n, ci, xi, yi = plan[0, 0], plan[0, 1], plan[0, 2], plan[0, 3], plan[0, 4]
    for r in range(rows):
        c, a, b = offset(r, plan[1], plan[2]), offset(r, plan[1], plan[3]), offset(r, plan[1], plan[4])
        for j in range(n):
            out[r * n + j] = x[a + j * xi] if condition[c + j * ci] else y[b + j * yi]


@kernel
def _clip(x, low, high, out):
    for i in range(len(x)):
        v = low if x[i] < low else x[i]
        out[i] = high if v > high else v


# ---------------------------------------------------------------------------------------------------------------------
# the same on a card: see cuda/elementwise.py
# ---------------------------------------------------------------------------------------------------------------------
@elementwise("boolean, T, T", types=ANY, stretched=True)
def _where_cuda(condition, x, y):
    """Both are read before it is known which is wanted: to wait for the condition first would take as long again."""
    return x if condition else y


@cuda_kernel("T[::1], boolean[::1], int64[:, ::1], T[::1], T[::1], int64, int64")
def _where_grad_cuda(g, condition, plan, to_x, to_y, need_x, need_y):
    """Thread e sends element e of g to the side that was chosen, and 0 to the other."""
    e = cuda.grid(1)
    if e < g.size:
        chosen, zero = condition[place(e, plan, 1)], g.dtype.type(0)
        if need_x != 0:
            to_x[e] = g[e] if chosen else zero
        if need_y != 0:
            to_y[e] = zero if chosen else g[e]


@cuda_kernel("T[::1], T, T, T[::1]")
def _clip_cuda(x, low, high, out):
    """The walk of cuda/elementwise.py, for a formula that takes two numbers besides."""
    i = first_of_two()
    if i < out.size:
        j = second_of_two(i, out.size)
        a, b = x[i], x[j]
        a, b = low if a < low else a, low if b < low else b
        out[i] = high if a > high else a
        out[j] = high if b > high else b


@cuda_kernel("T[::1], T[::1], T, T, T[::1]")
def _clip_grad_cuda(g, x, low, high, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = g[i] if x[i] >= low and x[i] <= high else g.dtype.type(0)
