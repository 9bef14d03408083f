"""Rearranging without arithmetic: reshape, permute, expand, flip, pad, concat, stack, split.

Reshape, permute, expand, flip and split give views: other strides over the same memory. Every other op takes any strides.
On a card every array is C-contiguous: there reshape is a view, and all the others copy, with one kernel.
"""
import math
from functools import lru_cache

import numpy as np

from ..autograd import Op
from ..cuda import ANY, cuda, cuda_kernel, flat, on_card, place, reshaped
from ..device import empty
from .broadcast import ShapeError


def axis_of(name, axis, ndim):
    """`axis` counted from 0; IndexError that names the op if there is no such axis."""
    if not isinstance(axis, (int, np.integer)):
        raise TypeError(f"{name}: expected an axis number, got {axis!r}")
    if not -ndim <= axis < ndim:
        raise IndexError(f"{name}: axis {axis} does not exist in a Tensor with {ndim} axes")
    return axis % ndim


class Reshape(Op):
    """The same elements, in the same order, under another shape. One length may be -1: it is worked out."""
    fresh = False
    tex = r"\mathrm{reshape}({x})"

    def __init__(self, shape):
        self.shape = tuple(shape)

    def cpu(self, x):
        try:
            return x.reshape(self.shape)
        except ValueError:
            raise ShapeError(f"reshape: {x.size} elements of shape {x.shape} do not fill shape {self.shape}") from None

    def cuda(self, x):
        return reshaped(x, self.cpu(np.broadcast_to(False, x.shape)).shape)  # NumPy works out the shape and its errors

    def grad_x(self, g, y, x):
        return g.reshape(x.shape)

    def cpu_grad(self, g, y, x):
        return (g.reshape(x.shape),)

    def cuda_grad(self, g, y, x):
        return (reshaped(g, x.shape),)

    def samples(rng):
        yield {"shape": (3, 2)}, (rng.normal(size=(2, 3)),)
        yield {"shape": (-1,)}, (rng.normal(size=(2, 3)),)
        yield {"shape": ()}, (rng.normal(size=(1, 1)),)


class Permute(Op):
    """The axes in another order: y.shape[i] = x.shape[axes[i]]."""
    tex = r"{x}^\top"

    def __init__(self, axes):
        self.axes = tuple(axes)

    def cpu(self, x):
        self.check(x)
        return x.transpose(self.axes)

    def cuda(self, x):
        self.check(x)
        return permuted(x, self.axes)

    def check(self, x):
        if sorted(a % x.ndim if -x.ndim <= a < x.ndim else -1 for a in self.axes) != list(range(x.ndim)):
            raise ShapeError(f"permute: expected each of the {x.ndim} axes of shape {x.shape} once, got {self.axes}")

    def grad_x(self, g, y, x):
        return g.permute(*np.argsort([a % x.ndim for a in self.axes]).tolist())

    def samples(rng):
        yield {"axes": (1, 0)}, (rng.normal(size=(2, 3)),)
        yield {"axes": (2, 0, -2)}, (rng.normal(size=(2, 3, 4)),)


class Expand(Op):
    """Repeat axes of length 1, and put new axes in front, without copying: stride 0."""
    tex = r"\mathrm{expand}({x})"

    def __init__(self, shape):
        self.shape = tuple(shape)

    def cpu(self, x):
        lead = len(self.shape) - x.ndim
        shape = tuple(x.shape[i - lead] if n == -1 and i >= lead else n for i, n in enumerate(self.shape))
        try:
            return np.broadcast_to(x, shape)
        except ValueError:
            raise ShapeError(f"expand: shape {x.shape} cannot be repeated to {self.shape}: only axes of length 1 can") from None

    def cuda(self, x):
        return strided_copy(x, self.cpu(np.broadcast_to(np.int8(0), x.shape)).shape,
                            [0 if n == 1 else step for n, step in zip(x.shape, steps(x.shape), strict=True)])

    def grad_x(self, g, y, x):
        return g.sum_to(x.shape)

    def samples(rng):
        yield {"shape": (2, 3)}, (rng.normal(size=(3,)),)
        yield {"shape": (2, -1, 3)}, (rng.normal(size=(4, 1)),)


class Flip(Op):
    """The elements along the axes in reverse order"""
    tex = r"\mathrm{flip}({x})"

    def __init__(self, axes):
        self.axes = tuple(axes)

    def cpu(self, x):
        axes = [axis_of("flip", a, x.ndim) for a in self.axes]
        return x[tuple(slice(None, None, -1) if i in axes else slice(None) for i in range(x.ndim))]

    def cuda(self, x):
        axes = [axis_of("flip", a, x.ndim) for a in self.axes]
        return part(x, tuple(slice(None, None, -1) if i in axes else slice(None) for i in range(x.ndim)))

    def grad_x(self, g, y, x):
        return g.flip(self.axes)

    def samples(rng):
        yield {"axes": (0,)}, (rng.normal(size=(2, 3)),)
        yield {"axes": (0, -1)}, (rng.normal(size=(2, 3)),)


class Pad(Op):
    """Put `value` around x: `widths` is one (before, after) pair an axis."""
    tex = r"\mathrm{pad}({x})"

    def __init__(self, widths, value=0.0):
        self.widths, self.value = tuple(tuple(w) for w in widths), value

    def _inside(self, shape):
        return tuple(slice(before, before + n) for (before, _), n in zip(self.widths, shape, strict=True))

    def _around(self, shape):
        """The shape of the result."""
        if len(self.widths) != len(shape) or any(len(w) != 2 or min(w) < 0 for w in self.widths):
            raise ShapeError(f"pad: expected one (before, after) pair of counts for each axis of shape {shape}, "
                             f"got {self.widths}")
        return [n + sum(w) for n, w in zip(shape, self.widths, strict=True)]

    def cpu(self, x):
        out = empty(self._around(x.shape), x.dtype)
        out.fill(self.value)
        out[self._inside(x.shape)] = x
        return out

    def cuda(self, x):
        out = filled(self._around(x.shape), self.value, x.dtype)
        put(x, out, self._inside(x.shape))
        return out

    def grad_x(self, g, y, x):
        return g[self._inside(x.shape)]

    def samples(rng):
        yield {"widths": ((1, 2),)}, (rng.normal(size=(3,)),)
        yield {"widths": ((0, 0), (2, 0)), "value": 7.0}, (rng.normal(size=(2, 3)),)


class Concat(Op):
    """The inputs one after the other along an axis that exists"""
    fresh = False
    tex = "[{xs}]"

    def __init__(self, axis=0):
        self.axis = axis

    def cpu(self, *xs):
        return np.concatenate(xs, self.check(xs))

    def cuda(self, *xs):
        axis, end = self.check(xs), 0
        length = sum(x.shape[axis] for x in xs)
        out = empty((*xs[0].shape[:axis], length, *xs[0].shape[axis + 1:]), xs[0].dtype, "cuda")
        for x in xs:
            begin, end = end, end + x.shape[axis]
            put(x, out, (*(slice(None),) * axis, slice(begin, end)))
        return out

    def check(self, xs):
        """The axis as a number from 0."""
        axis = axis_of("concat", self.axis, xs[0].ndim)
        shapes = [x.shape for x in xs]
        if len({s[:axis] + s[axis + 1:] for s in shapes}) > 1 or len({len(s) for s in shapes}) > 1:
            raise ShapeError(f"concat: shapes {', '.join(map(str, shapes))} differ in another axis than axis {axis}")
        return axis

    def grad_xs(self, i, g, y, *xs):
        axis = self.axis % g.ndim
        begin = sum(x.shape[axis] for x in xs[:i])
        return g[(slice(None),) * axis + (slice(begin, begin + xs[i].shape[axis]),)]

    def cpu_grad(self, g, y, *xs):
        axis = self.axis % g.ndim
        ends = np.cumsum([x.shape[axis] for x in xs])
        return np.split(g, ends[:-1], axis)

    def samples(rng):
        yield {"axis": 1}, (rng.normal(size=(2, 3)), rng.normal(size=(2, 1)), rng.normal(size=(2, 0)))
        yield {"axis": -1}, (rng.normal(size=(2,)), rng.normal(size=(3,)))


class Stack(Op):
    """Inputs of one shape along a new axis"""
    fresh = False
    tex = "[{xs}]"

    def __init__(self, axis=0):
        self.axis = axis

    def cpu(self, *xs):
        return np.stack(xs, self.check(xs))

    def cuda(self, *xs):
        axis, shape = self.check(xs), xs[0].shape
        out = empty((*shape[:axis], len(xs), *shape[axis:]), xs[0].dtype, "cuda")
        for i, x in enumerate(xs):
            put(x, out, (*(slice(None),) * axis, i))
        return out

    def check(self, xs):
        """The axis as a number from 0."""
        if len({x.shape for x in xs}) > 1:
            raise ShapeError(f"stack: expected inputs of one shape, got {', '.join(str(x.shape) for x in xs)}")
        return axis_of("stack", self.axis, xs[0].ndim + 1)

    def grad_xs(self, i, g, y, *xs):
        return g[(slice(None),) * (self.axis % g.ndim) + (i,)]

    def cpu_grad(self, g, y, *xs):
        lead = (slice(None),) * (self.axis % g.ndim)
        return [np.asarray(g[(*lead, i)]) for i in range(len(xs))]

    def samples(rng):
        yield {"axis": 1}, (rng.normal(size=(2, 3)), rng.normal(size=(2, 3)))
        yield {"axis": -1}, (rng.normal(size=()), rng.normal(size=()))


class Split(Op):
    """Pieces of the given lengths along an axis: several outputs, all views of x"""
    tex = r"\mathrm{split}({x})"

    def __init__(self, lengths, axis=0):
        self.lengths, self.axis = tuple(lengths), axis

    def cpu(self, x):
        axis = self.check(x)
        return tuple(np.split(x, np.cumsum(self.lengths)[:-1], axis))

    def cuda(self, x):
        lead, ends = (slice(None),) * self.check(x), np.cumsum(self.lengths).tolist()
        return tuple(part(x, (*lead, slice(end - n, end))) for n, end in zip(self.lengths, ends, strict=True))

    def check(self, x):
        """The axis as a number from 0."""
        axis = axis_of("split", self.axis, x.ndim)
        if sum(self.lengths) != x.shape[axis] or min(self.lengths, default=0) < 0:
            raise ShapeError(f"split: lengths {self.lengths} do not add up to {x.shape[axis]}, axis {axis} of shape {x.shape}")
        return axis

    def grad_x(self, g, y, x):
        return Concat(self.axis)(*(g if type(g) is tuple else (g,)))

    def samples(rng):
        yield {"lengths": (1, 2), "axis": 1}, (rng.normal(size=(2, 3)),)
        yield {"lengths": (2, 0, 1)}, (rng.normal(size=(3,)),)


# ---------------------------------------------------------------------------------------------------------------------
# on a card: copies. What a view would be on the CPU is a part of an array: (first element, steps along the axes)
# ---------------------------------------------------------------------------------------------------------------------
def steps(shape):
    """How many elements apart neighbours along each axis of a C-contiguous array lie."""
    return tuple(math.prod(shape[i + 1:]) for i in range(len(shape)))


def permuted(x, axes):
    """A device array with its axes in another order."""
    apart = steps(x.shape)
    return strided_copy(x, [x.shape[a] for a in axes], [apart[a] for a in axes])


def strided_copy(x, shape, apart, first=0):
    """A new device array: its element i, j, ... is element first + i * apart[0] + j * apart[1] + ... of x. An axis that
    `apart` does not name, in front, has stride 0."""
    out = empty(shape, x.dtype, "cuda")
    apart = (0,) * (len(shape) - len(apart)) + tuple(apart)
    plan = on_card(_copy_plan(tuple(shape), apart, steps(shape)))
    _copy_cuda.each(out.size)(flat(x), flat(out), plan, out.size, first, 0)
    return out


def part(x, index):
    """x[index] as a new device array; the index is made of numbers, slices, None and `...`."""
    shape, first, apart = _part(x.shape, index)
    return strided_copy(x, shape, apart, first)


def put(x, out, index):
    """out[index] = x on a card, for x of the shape of out[index]."""
    shape, first, apart = _part(out.shape, index)
    _copy_cuda.each(x.size)(flat(x), flat(out), on_card(_copy_plan(shape, steps(shape), apart)), x.size, 0, first)


def filled(shape, value, dtype):
    """A new device array with one value throughout."""
    return strided_copy(on_card(np.array([value], dtype)), shape, ())


def _part(shape, index):
    """(shape, first, apart) of x[index] for a C-contiguous x of this shape. NumPy works it out, errors included, on a
    view over no memory, which is never read: elements of one byte, so that its strides count elements."""
    whole = np.lib.stride_tricks.as_strided(np.empty(1, np.int8), shape, steps(shape))
    view = whole[index if any(i is Ellipsis for i in index) else (*index, ...)]  # with `...` also one element is a view
    return view.shape, view.ctypes.data - whole.ctypes.data, view.strides


@lru_cache(maxsize=4096)
def _copy_plan(shape, from_x, to_out):
    """A plan as in `broadcast.py` for two arrays with these strides."""
    *outer, n = shape or (1,)
    plan = np.zeros((4, max(4, len(outer))), np.int64)
    plan[0, :2] = [math.prod(outer), n]
    plan[1] = 1
    plan[1, :len(outer)] = outer
    for i, apart in enumerate((from_x or (0,), to_out or (0,))):
        plan[0, 2 + i] = apart[-1]
        plan[2 + i, :len(outer)] = apart[:-1]
    return plan


@cuda_kernel("T[::1], T[::1], int64[:, ::1], int64, int64, int64", types=ANY)
def _copy_cuda(x, out, plan, n, from_x, to_out):
    """Thread e copies element e of a part of x, of n elements, to its place in a part of out."""
    e = cuda.grid(1)
    if e < n:
        out[to_out + place(e, n, plan, 1)] = x[from_x + place(e, n, plan, 0)]
