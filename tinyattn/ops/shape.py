"""Rearranging without arithmetic: reshape, permute, expand, flip, pad, concat, stack, split.

Reshape, permute, expand, flip and split give views: other strides over the same memory. Every other op takes any strides.
On a card every array is C-contiguous: there reshape is a view, and all the others copy: with one kernel, or with a second
one if the axis along which memory runs is another afterwards.
"""
import math
from functools import lru_cache

import numpy as np

from ..autograd import Op
from ..cuda import ANY, SIMULATED, cuda, cuda_kernel, flat, on_card, place, reshaped
from ..cuda.elementwise import first_of_two, in_pairs, second_of_two
from ..device import empty
from .broadcast import ShapeError, planned


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
        axis = self.check(xs)
        length = sum(x.shape[axis] for x in xs)
        out = empty((*xs[0].shape[:axis], length, *xs[0].shape[axis + 1:]), xs[0].dtype, "cuda")
        for i, x in enumerate(xs):
            put(x, out, self.place_of(i, xs))
        return out

    def check(self, xs):
        """The axis as a number from 0."""
        axis = axis_of("concat", self.axis, xs[0].ndim)
        shapes = [x.shape for x in xs]
        if len({s[:axis] + s[axis + 1:] for s in shapes}) > 1 or len({len(s) for s in shapes}) > 1:
            raise ShapeError(f"concat: shapes {', '.join(map(str, shapes))} differ in another axis than axis {axis}")
        return axis

    def place_of(self, i, xs):
        """Where input i stands in the result, as an index."""
        axis = self.axis % xs[0].ndim
        begin = sum(x.shape[axis] for x in xs[:i])
        return (slice(None),) * axis + (slice(begin, begin + xs[i].shape[axis]),)

    def grad_xs(self, i, g, y, *xs):
        return g[self.place_of(i, xs)]

    def cpu_grad(self, g, y, *xs):
        axis = self.axis % g.ndim
        ends = np.cumsum([x.shape[axis] for x in xs])
        return np.split(g, ends[:-1], axis)

    def cuda_grad(self, g, y, *xs):
        return [part(g, self.place_of(i, xs)) if need else None for i, need in enumerate(self.needs)]

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

    def cuda_grad(self, g, y, *xs):
        lead = (slice(None),) * (self.axis % g.ndim)
        return [part(g, (*lead, i)) if need else None for i, need in enumerate(self.needs)]

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
    shape, from_x = [x.shape[a] for a in axes], [apart[a] for a in axes]
    # The axis along which x runs, and the one along which the result runs: axes of length 1 are none.
    order = [a % x.ndim for a in axes if x.shape[a] > 1]
    last = max(order, default=0)
    if not order or order[-1] == last or min(x.shape[last], x.shape[order[-1]]) < SIDE // 4:
        return strided_copy(x, shape, from_x)
    out, to_out = empty(shape, x.dtype, "cuda"), steps(shape)
    others = [i for i, a in enumerate(axes) if a % x.ndim not in (last, order[-1])]
    plan = _copy_plan(*(tuple(s[i] for i in others) for s in (shape, from_x, to_out)))
    m, n = x.shape[order[-1]], x.shape[last]
    squares = -(-m // SIDE) * -(-n // SIDE)
    _turn_cuda[squares * math.prod(shape[i] for i in others), SIDE * LINES](
        flat(x), flat(out), on_card(plan), m, n, apart[order[-1]], to_out[[a % x.ndim for a in axes].index(last)])
    return out


def strided_copy(x, shape, apart, first=0):
    """A new device array: its element i, j, ... is element first + i * apart[0] + j * apart[1] + ... of x. An axis that
    `apart` does not name, in front, has stride 0."""
    out = empty(shape, x.dtype, "cuda")
    apart = (0,) * (len(shape) - len(apart)) + tuple(apart)
    plan = on_card(_copy_plan(tuple(shape), apart, steps(shape)))
    in_pairs(_copy_cuda, out.size)(flat(x), flat(out), plan, out.size, first, 0)
    return out


def part(x, index):
    """x[index] as a new device array; the index is made of numbers, slices, None and `...`."""
    shape, first, apart = _part(x.shape, index)
    return strided_copy(x, shape, apart, first)


def put(x, out, index):
    """out[index] = x on a card, for x of the shape of out[index]."""
    shape, first, apart = _part(out.shape, index)
    plan = on_card(_copy_plan(shape, steps(shape), apart))
    in_pairs(_copy_cuda, x.size)(flat(x), flat(out), plan, x.size, 0, first)


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
    return planned(shape, [from_x, to_out])


@cuda_kernel("T[::1], T[::1], int64[:, ::1], int64, int64, int64", types=ANY)
def _copy_cuda(x, out, plan, n, from_x, to_out):
    """Element i of a part of x, of n elements, goes to its place in a part of out: two elements a thread, see
    cuda/elementwise.py."""
    i = first_of_two()
    if i < n:
        j = second_of_two(i, n)
        a, b = x[from_x + place(i, plan, 0)], x[from_x + place(j, plan, 0)]
        out[to_out + place(i, plan, 1)] = a
        out[to_out + place(j, plan, 1)] = b


SIDE, LINES = (4, 2) if SIMULATED else (32, 8)  # a block turns a square of SIDE x SIDE elements, LINES of its lines at a time
WIDE = SIDE + 1


@cuda_kernel("T[::1], T[::1], int64[:, ::1], int64, int64, int64, int64", types=ANY)
def _turn_cuda(x, out, plan, m, n, x_step, out_step):
    """out[j, i] = x[i, j] for matrices (m, n), one for each place of the other axes, which the plan gives.

    Memory runs along j in x and along i in out: without help either the reads or the writes of neighbouring threads would
    be far apart, and a card moves 32 bytes even where 4 are wanted. So a block reads a square line by line into shared
    memory and writes it column by column. There a line is one longer than the square: the elements of a column would
    otherwise all lie in one bank, which serves one thread at a time.
    """
    square = cuda.shared.array((SIDE, WIDE), x.dtype)
    line, s = cuda.threadIdx.x // SIDE, cuda.threadIdx.x % SIDE
    down, across = (m + SIDE - 1) // SIDE, (n + SIDE - 1) // SIDE
    item, part = cuda.blockIdx.x // (down * across), cuda.blockIdx.x % (down * across)
    i, j = part // across * SIDE, part % across * SIDE
    from_x, to_out = place(item, plan, 0), place(item, plan, 1)
    for k in range(line, SIDE, LINES):
        if i + k < m and j + s < n:
            square[k, s] = x[from_x + (i + k) * x_step + j + s]
    cuda.syncthreads()
    for k in range(line, SIDE, LINES):
        if j + k < n and i + s < m:
            out[to_out + (j + k) * out_step + i + s] = square[s, k]
