"""Reductions: sum, mean, max, min, prod, norm, and the running sum.

Any axes can be reduced. The array is seen as (a, n, b): a outer axes, the n elements that are summed up, b inner axes; axes
that do not lie side by side are brought together first. For b = 1 the loop runs along the n elements, otherwise along b,
so that memory is always read in order. The kernels for a card stand in `reduce_cuda.py`.
"""
import math

import numpy as np

from ..autograd import Op
from ..cuda import flat, reshaped
from ..device import empty, kernel
from .broadcast import ShapeError
from .logic import converted
from .reduce_cuda import MAX, MIN, PROD, cumsum_cuda, extreme_grad_cuda, fold_cuda, prod_grad_cuda, sum_cuda
from .shape import axis_of, permuted


class Reduction(Op):
    """What the reductions share: which axes, and the shape with and without them."""

    def __init__(self, axis=None, keepdims=False):
        self.axis = axis if axis is None or isinstance(axis, int) else tuple(int(a) for a in axis)
        self.keepdims = bool(keepdims)

    def axes(self, ndim):
        if self.axis is None:
            return tuple(range(ndim))
        if isinstance(self.axis, int):
            return (axis_of(self.name, self.axis, ndim),)
        axes = tuple(sorted(axis_of(self.name, a, ndim) for a in self.axis))
        if len(set(axes)) < len(axes):
            raise ShapeError(f"{self.name}: an axis is named twice in {self.axis}")
        return axes

    def kept(self, shape):
        """The shape with length 1 in place of the reduced axes."""
        axes = self.axes(len(shape))
        return tuple(1 if i in axes else n for i, n in enumerate(shape))

    def three(self, x):
        """x as (a, n, b), C-contiguous, and the shape of the result."""
        axes, shape = self.axes(x.ndim), x.shape
        out = self.kept(shape) if self.keepdims else tuple(n for i, n in enumerate(shape) if i not in axes)
        n = math.prod(shape[i] for i in axes)
        if axes and axes[-1] - axes[0] + 1 != len(axes):  # not side by side: the reduced axes go to the end
            x = x.transpose([i for i in range(x.ndim) if i not in axes] + list(axes))
            return np.ascontiguousarray(x).reshape(-1 if n else math.prod(out), n, 1), out
        a = math.prod(shape[:axes[0]]) if axes else x.size
        return np.ascontiguousarray(x).reshape(a, n, math.prod(shape[axes[-1] + 1:]) if axes else 1), out

    def three_on_card(self, x):
        """x with the reduced axes side by side, an array for the result, and the lengths (a, n, b)."""
        axes = self.axes(x.ndim)
        others = [i for i in range(x.ndim) if i not in axes]
        out = empty(self.kept(x.shape) if self.keepdims else [x.shape[i] for i in others], x.dtype, "cuda")
        if axes and axes[-1] - axes[0] + 1 != len(axes):  # not side by side: the reduced axes go to the end
            x, axes = permuted(x, [*others, *axes]), range(len(others), x.ndim)
        first, last = (axes[0], axes[-1] + 1) if axes else (x.ndim, x.ndim)
        return x, out, [math.prod(lengths) for lengths in (x.shape[:first], x.shape[first:last], x.shape[last:])]

    def back(self, out, x):
        """An array (a, n, b) made by `three`, in the shape of x."""
        axes = self.axes(x.ndim)
        if axes[-1] - axes[0] + 1 == len(axes):
            return out.reshape(x.shape)
        order = [i for i in range(x.ndim) if i not in axes] + list(axes)
        return out.reshape([x.shape[i] for i in order]).transpose(np.argsort(order))

    def back_on_card(self, out, x):
        """A device array of the lengths that `three_on_card` gives, in the shape of x."""
        axes = self.axes(x.ndim)
        if not axes or axes[-1] - axes[0] + 1 == len(axes):
            return out
        order = [i for i in range(x.ndim) if i not in axes] + list(axes)
        return permuted(out, [order.index(i) for i in range(x.ndim)])

    def spread(self, g, x):
        """The incoming gradient, repeated along the reduced axes."""
        return g.reshape(self.kept(x.shape)).expand(x.shape)

    def samples(rng):
        for attributes in ({}, {"axis": 1}, {"axis": 0, "keepdims": True}, {"axis": (0, -1)}, {"axis": (1,)}):
            yield attributes, (rng.permutation(24).reshape(2, 3, 4) / 7 - 1.3,)  # no ties: those are kinks
        yield {"axis": 0}, (rng.normal(size=(3,)),)


class Sum(Reduction):
    """The sum over the axes; 0 where there is nothing to sum"""
    tex = r"\sum {x}"

    def cpu(self, x):
        x, shape = self.three(x)
        if x.dtype.kind != "f":  # the loop adds up in float64, which does not hold every int64
            return x.sum(axis=1, dtype=x.dtype).reshape(shape)
        out = empty(x.shape[::2], x.dtype)
        _sum(x, out)
        return out.reshape(shape)

    def cuda(self, x):
        x, out, lengths = self.three_on_card(x)
        sum_cuda(flat(x), flat(out), *lengths)
        return out

    def grad_x(self, g, y, x):
        return self.spread(g, x)

    def samples(rng):
        yield from Reduction.samples(rng)
        yield {}, (rng.normal(size=()),)
        yield {"axis": 1}, (rng.normal(size=(2, 0, 3)),)


class Mean(Reduction):
    """The sum over the axes divided by the number of elements; nan where there are none"""
    tex = r"\mathrm{mean}({x})"

    def cpu(self, x):
        x, shape = self.three(x)
        out = empty(x.shape[::2], x.dtype)
        _sum(x, out)
        with np.errstate(invalid="ignore"):
            out *= out.dtype.type(1 / x.shape[1] if x.shape[1] else np.nan)
        return out.reshape(shape)

    def cuda(self, x):
        x, out, (a, n, b) = self.three_on_card(x)
        sum_cuda(flat(x), flat(out), a, n, b, factor=1 / n if n else math.nan)
        return out

    def grad_x(self, g, y, x):
        return self.spread(g * (max(g.size, 1) / max(x.size, 1)), x)

    samples = Reduction.samples


class Extreme(Reduction):
    """What max and min share. Places that tie for the extreme value share its gradient equally."""
    fresh = False

    def extreme(self, loop, x):
        x, shape = self.three(x)
        if x.shape[1] == 0:
            raise ShapeError(f"{self.name}: there is no {self.name} of nothing: a reduced axis has length 0")
        out = empty(x.shape[::2], x.dtype)
        loop(x, out)
        return out.reshape(shape)

    def extreme_on_card(self, x, largest):
        x, out, (a, n, b) = self.three_on_card(x)
        if n == 0:
            raise ShapeError(f"{self.name}: there is no {self.name} of nothing: a reduced axis has length 0")
        if x.dtype.kind == "b":  # as 0 and 1
            return converted(self.extreme_on_card(converted(x, np.int64), largest), x.dtype)
        fold_cuda(flat(x), flat(out), a, n, b, MAX if largest else MIN)
        return out

    def grad_x(self, g, y, x):
        hit = (x == y.reshape(self.kept(x.shape))).to(g.dtype)
        return g.reshape(self.kept(x.shape)) * (hit / hit.sum(self.axes(x.ndim), keepdims=True))

    def cpu_grad(self, g, y, x):
        if not self.axes(x.ndim):
            return (g.reshape(x.shape),)
        moved, _ = self.three(x)
        out = empty(moved.shape, x.dtype)
        flat = (moved.shape[0], moved.shape[2])
        _extreme_grad(np.ascontiguousarray(g).reshape(flat), np.ascontiguousarray(y).reshape(flat), moved, out)
        return (self.back(out, x),)

    def cuda_grad(self, g, y, x):
        if not self.axes(x.ndim):
            return (reshaped(g, x.shape),)
        moved, _, lengths = self.three_on_card(x)
        out = empty(moved.shape, x.dtype, "cuda")
        extreme_grad_cuda(flat(g), flat(y), flat(moved), flat(out), *lengths)
        return (self.back_on_card(out, x),)


class Max(Extreme):
    """The largest element over the axes; nan if there is one. Ties share the gradient equally."""
    tex = r"\max {x}"
    samples = Reduction.samples

    def cpu(self, x):
        return self.extreme(_max, x)

    def cuda(self, x):
        return self.extreme_on_card(x, largest=True)


class Min(Extreme):
    """The smallest element over the axes; nan if there is one. Ties share the gradient equally."""
    tex = r"\min {x}"
    samples = Reduction.samples

    def cpu(self, x):
        return self.extreme(_min, x)

    def cuda(self, x):
        return self.extreme_on_card(x, largest=False)


class Norm(Reduction):
    """sqrt(sum x^2), the Euclidean norm. At 0, where it has a corner, the gradient is 0."""
    tex = r"\lVert {x} \rVert"

    def cpu(self, x):
        x, shape = self.three(x)
        out = empty(x.shape[::2], x.dtype)
        _norm(x, out)
        return out.reshape(shape)

    def cuda(self, x):
        x, out, lengths = self.three_on_card(x)
        sum_cuda(flat(x), flat(out), *lengths, squares=True, root=True)
        return out

    def grad_x(self, g, y, x):
        y = y.reshape(self.kept(x.shape))
        direction = (x / y.where(y != 0, 1.0)).where(y != 0, 0.0)
        return g.reshape(self.kept(x.shape)) * direction

    samples = Reduction.samples


class Prod(Reduction):
    """The product over the axes; 1 of nothing.

    Right at zeros too: each element's gradient is the product of the others.
    """
    tex = r"\prod {x}"

    def cpu(self, x):
        x, shape = self.three(x)
        out = empty(x.shape[::2], x.dtype)
        _prod(x, out)
        return out.reshape(shape)

    def cuda(self, x):
        x, out, lengths = self.three_on_card(x)
        if x.dtype.kind == "b":  # as 0 and 1
            return converted(self.cuda(converted(x, np.int64)), x.dtype)
        fold_cuda(flat(x), flat(out), *lengths, PROD)
        return out

    def composed(self, x):
        """Multiply the first half with the second, again and again: never a division, so zeros need no special care."""
        axes, kept = self.axes(x.ndim), self.kept(x.shape)
        others = [i for i in range(x.ndim) if i not in axes]
        n = math.prod(x.shape[i] for i in axes)
        x = x.permute(*others, *axes).reshape(*[x.shape[i] for i in others], n)
        if n == 0:
            return x.sum(-1) + 1
        while x.shape[-1] > 1:
            half = x.shape[-1] // 2
            rest = x[..., 2 * half:]
            x = x[..., :half] * x[..., half:2 * half]
            x = Op.result.concat([x, rest], -1) if rest.shape[-1] else x
        return x.reshape(kept) if self.keepdims else x.reshape(x.shape[:-1])

    def cpu_grad(self, g, y, x):
        axes, kept = self.axes(x.ndim), self.kept(x.shape)
        if not axes:
            return (g.reshape(x.shape).copy(),)
        order = [i for i in range(x.ndim) if i not in axes] + list(axes)
        moved = np.ascontiguousarray(x.transpose(order))
        n = math.prod(x.shape[i] for i in axes)
        out = empty(moved.shape, x.dtype)
        flat = np.ascontiguousarray(g.reshape(kept).transpose(order)).reshape(-1)
        _prod_grad(flat, moved.reshape(len(flat), n), out.reshape(len(flat), n))
        return (out.transpose(np.argsort(order)),)

    def cuda_grad(self, g, y, x):
        moved, _, lengths = self.three_on_card(x)
        out = empty(moved.shape, x.dtype, "cuda")
        prod_grad_cuda(flat(g), flat(moved), flat(out), *lengths)
        return (self.back_on_card(out, x),)

    def samples(rng):
        yield from Reduction.samples(rng)
        yield {"axis": -1}, (np.array([[0.0, 2, 3], [0, 2, 0], [1, 2, 3], [0, 0, 0]]),)


class Cumsum(Op):
    """y_i = x_0 + ... + x_i along an axis"""
    tex = r"\mathrm{cumsum}({x})"

    def __init__(self, axis=-1):
        self.axis = axis

    def cpu(self, x):
        axis = axis_of("cumsum", self.axis, x.ndim)
        a, n, b = math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1:])
        out = empty(x.shape, x.dtype)
        _cumsum(np.ascontiguousarray(x).reshape(a, n, b), out.reshape(a, n, b))
        return out

    def cuda(self, x):
        axis = axis_of("cumsum", self.axis, x.ndim)
        out, b = empty(x.shape, x.dtype, "cuda"), math.prod(x.shape[axis + 1:])
        cumsum_cuda(flat(x), flat(out), math.prod(x.shape[:axis]) * b if x.size else 0, x.shape[axis], b)
        return out

    def grad_x(self, g, y, x):
        return g.flip(self.axis).cumsum(self.axis).flip(self.axis)

    def samples(rng):
        yield {"axis": 0}, (rng.normal(size=(3, 2)),)
        yield {}, (rng.normal(size=(2, 3)),)


# ---------------------------------------------------------------------------------------------------------------------
# the loops: x is (a, n, b), out is (a, b)
# ---------------------------------------------------------------------------------------------------------------------
@kernel(reduces=True)
def _sum(x, out):
    """out[i, k] = sum over j of x[i, j, k]. Runs of 256 are added up in the array's type and the runs in float64, so that
    a long float32 sum keeps its digits."""
    a, n, b = x.shape
    if b == 1:
        for i in range(a):
            total = 0.0
            for begin in range(0, n, 256):
                part = x.dtype.type(0)
                for j in range(begin, min(begin + 256, n)):
                    part += x[i, j, 0]
                total += part
            out[i, 0] = total
        return
    part = np.empty(b, x.dtype)
    total = np.empty(b, np.float64)
    for i in range(a):
        total[:] = 0
        for begin in range(0, n, 256):
            part[:] = 0
            for j in range(begin, min(begin + 256, n)):
                for k in range(b):
                    part[k] += x[i, j, k]
            for k in range(b):
                total[k] += part[k]
        for k in range(b):
            out[i, k] = total[k]


@kernel
def _max(x, out):
    """out[i, k] = max over j of x[i, j, k], or nan if one of them is."""
    a, n, b = x.shape
    for i in range(a):
        for k in range(b):
            out[i, k] = x[i, 0, k]
        for j in range(1, n):
            for k in range(b):
                m, v = out[i, k], x[i, j, k]
                out[i, k] = m if m > v or m != m else v


@kernel
def _min(x, out):
    """out[i, k] = min over j of x[i, j, k], or nan if one of them is."""
    a, n, b = x.shape
    for i in range(a):
        for k in range(b):
            out[i, k] = x[i, 0, k]
        for j in range(1, n):
            for k in range(b):
                m, v = out[i, k], x[i, j, k]
                out[i, k] = m if m < v or m != m else v


@kernel
def _extreme_grad(g, y, x, out):
    """out[i, j, k] = g[i, k] / (how many x[i, :, k] equal y[i, k]) where x[i, j, k] does, else 0."""
    a, n, b = x.shape
    for i in range(a):
        for k in range(b):
            ties = 0
            for j in range(n):
                ties += x[i, j, k] == y[i, k]
            share = g[i, k] / ties if ties > 0 else g[i, k] * np.nan
            for j in range(n):
                out[i, j, k] = share if x[i, j, k] == y[i, k] else 0


@kernel(reduces=True)
def _norm(x, out):
    """out[i, k] = sqrt(sum over j of x[i, j, k]^2), added up in float64."""
    a, n, b = x.shape
    for i in range(a):
        for k in range(b):
            total = 0.0
            for j in range(n):
                v = np.float64(x[i, j, k])
                total += v * v
            out[i, k] = math.sqrt(total)


@kernel
def _prod(x, out):
    """out[i, k] = product over j of x[i, j, k]."""
    a, n, b = x.shape
    for i in range(a):
        for k in range(b):
            out[i, k] = 1
        for j in range(n):
            for k in range(b):
                out[i, k] *= x[i, j, k]


@kernel
def _prod_grad(g, x, out):
    """out[i, j] = g[i] * (product of x[i, :j]) * (product of x[i, j+1:]): one run from the left, one from the right."""
    rows, n = x.shape
    for i in range(rows):
        before = out.dtype.type(1)
        for j in range(n):
            out[i, j] = g[i] * before
            before *= x[i, j]
        after = out.dtype.type(1)
        for j in range(n - 1, -1, -1):
            out[i, j] *= after
            after *= x[i, j]


@kernel
def _cumsum(x, out):
    """out[i, j, k] = out[i, j - 1, k] + x[i, j, k]."""
    a, n, b = x.shape
    for i in range(a):
        for k in range(b):
            if n > 0:
                out[i, 0, k] = x[i, 0, k]
        for j in range(1, n):
            for k in range(b):
                out[i, j, k] = out[i, j - 1, k] + x[i, j, k]
