r"""Softmax and its relatives: softmax, log-softmax, log-sum-exp.

All three subtract the largest element of a row first, so that no e^x overflows:

    m = max_k x_k        s = sum_k e^(x_k - m)        softmax_j = e^(x_j - m) / s        log sum_k e^x_k = m + log s

A row is what lies along `axis`. The loops run over rows of a C-contiguous matrix; another axis than the last is moved
to the end first and back afterwards.
"""
import math
from functools import lru_cache

import numpy as np
from numba import prange

from ..autograd import Op
from ..cuda import THREADS, cuda, cuda_kernel, flat, on_card, place
from ..cuda import exp as cuda_exp
from ..cuda import log as cuda_log
from ..cuda.rows import block_pair, block_sum, grid_of_rows, one_more, own_row
from ..device import empty, kernel, launch
from .broadcast import ShapeError, plan_of
from .shape import permuted
from .shared import exp_below, first_row, log, offset, row_dot, row_max, row_sum, row_sum_exp

CHUNKS = 32    # parts that the rows are cut into for the threads, whatever their number
NARROW = 256   # shorter rows are worked on by blocks of
BLOCK = 2048   # so many elements, which stay in the nearest cache


# ---------------------------------------------------------------------------------------------------------------------
# from any axis and any mask to rows of a matrix
# ---------------------------------------------------------------------------------------------------------------------
F32, F64 = np.dtype(np.float32), np.dtype(np.float64)


def check_float(name, x):
    dtype = x.dtype
    if dtype is not F32 and dtype is not F64 and dtype != F32 and dtype != F64:
        raise TypeError(f"{name}: expected float32 or float64, got {x.dtype}; cast it first, for example .to('float32')")


def check_axis(name, axis, shape):
    """The axis as a number from 0."""
    if not -len(shape) <= axis < len(shape):
        raise ValueError(f"{name}: axis {axis} is out of range for a Tensor of shape {shape}")
    return axis % len(shape)


@lru_cache(maxsize=4096)
def _mask_plan(name, shape, mask_shape):
    """(lengths of the outer axes, steps of the mask along them in rows, shape to expand the mask to or None)."""
    padded = (1,) * (len(shape) - len(mask_shape)) + tuple(mask_shape)
    if len(padded) != len(shape) or any(m not in (1, n) for m, n in zip(padded, shape, strict=True)):
        raise ShapeError(f"{name}: the mask of shape {mask_shape} does not broadcast to the scores of shape {shape}")
    steps, step = [], 1
    for length in reversed(padded[:-1]):
        steps.append(0 if length == 1 else step)
        step *= length
    outer = shape[:-1] or (1,)
    plan = np.array(outer, np.int64), np.array(steps[::-1] or (0,), np.int64)
    return plan, None if padded[-1] == shape[-1] else (*padded[:-1], shape[-1])


def check_mask(name, shape, mask):
    """Raise if this mask is not boolean or does not fit scores of this shape; else its plan, see `_mask_plan`."""
    if mask.dtype != np.bool_:
        raise TypeError(f"{name}: a mask is boolean, True = may be attended to; got {mask.dtype}")
    return _mask_plan(name, shape, tuple(mask.shape))


def mask_rows(name, shape, mask):
    """(mask as a matrix of rows as long as the last axis of `shape`, lengths, steps).

    Row r of the scores is masked by row `offset(r, lengths, steps)` of the matrix, so a mask of shape (B, 1, S) or (T, S)
    is used as it is for scores of shape (B, T, S).
    """
    (lengths, steps), expand = check_mask(name, shape, mask)
    if expand is not None:
        mask = np.broadcast_to(mask, expand)
    return np.ascontiguousarray(mask).reshape(-1, shape[-1]) if shape[-1] else np.zeros((1, 0), np.bool_), lengths, steps


def to_end(name, axis, x, mask=None):
    """x and mask with `axis` moved to the end."""
    moved = np.ascontiguousarray(np.moveaxis(x, axis, -1))
    if mask is not None:
        check_mask(name, x.shape, mask)
        mask = np.moveaxis(mask.reshape((1,) * (x.ndim - mask.ndim) + mask.shape), axis, -1)
    return moved, mask


def from_end(axis, y):
    """Undo `to_end`."""
    return np.ascontiguousarray(np.moveaxis(y, -1, axis))


def matrix(x):
    """x as a C-contiguous matrix whose rows lie along the last axis."""
    n = x.shape[-1]
    if x.ndim == 2 and x.flags.c_contiguous:
        return x
    return np.ascontiguousarray(x).reshape(x.size // n if n else 0, n)


def _cost(x):
    """Rough nanoseconds of one pass with an exponential."""
    return x.size * (0.4 if x.dtype == np.float32 else 4.0)


def _forward(op, masked_loop, loop, x, mask):
    """What softmax and log-softmax share: checks, axis, mask, launch. `loop` is a pair (serial, parallel)."""
    check_float(op.name, x)
    axis = check_axis(op.name, op.axis, x.shape)
    last = axis == x.ndim - 1
    if not last:
        x, mask = to_end(op.name, axis, x, mask)
    y = empty(x.shape, x.dtype)
    rows, out = matrix(x), matrix(y)
    if mask is None:
        args, (serial, parallel) = (rows, out), loop
    else:
        args, (serial, parallel) = (rows, *mask_rows(op.name, x.shape, mask), out), masked_loop
    launch(_cost(x), serial, (*args, 0, len(out)), parallel, args)
    return y if last else from_end(axis, y)


def _backward(op, loop, g, y):
    """The fused gradient of softmax and log-softmax, from the output alone."""
    axis = op.axis % y.ndim
    last = axis == y.ndim - 1
    if not last:
        g, y = to_end(op.name, axis, g)[0], to_end(op.name, axis, y)[0]
    dx = empty(y.shape, y.dtype)
    args = (matrix(g), matrix(y), matrix(dx))
    serial, parallel = loop
    launch(_cost(y), serial, (*args, 0, len(args[0])), parallel, args)
    return dx if last else from_end(axis, dx)


def _samples(rng):
    """Each axis, length 1, length 0, batch 0, a large logit, masks that stretch, a row that may attend to nothing."""
    for shape, axis in [((2, 3), -1), ((3, 2, 2), 0), ((2, 3, 2), 1), ((1,), 0), ((2, 1), -1), ((0, 3), -1), ((2, 0), -1)]:
        yield {"axis": axis}, (rng.normal(size=shape),)
    yield {"axis": -1}, (np.array([[1e4, 1e4 - 1, -1e4], [0.5, -0.5, 0.0]]),)
    x = rng.normal(size=(2, 3, 4))
    keys = np.array([[[True, True, False, True]], [[False] * 4]])
    for mask in (keys, rng.random((3, 4)) < 0.6, rng.random((2, 3, 1)) < 0.5, np.array([True, False, True, True])):
        yield {"axis": -1}, (x, mask)
    yield {"axis": 1}, (x, rng.random((3, 1)) < 0.6)


# ---------------------------------------------------------------------------------------------------------------------
# the ops
# ---------------------------------------------------------------------------------------------------------------------
class Softmax(Op):
    r"""y_j = e^{x_j} / sum_k e^{x_k} over `axis`.

    mask: boolean, broadcast against x; places where it is False get exactly 0. A row that may attend to nothing, or whose
    elements are all -inf, gives 0 and sends 0 gradient. A nan makes its row nan.
    """
    tex = r"\mathrm{{softmax}}({x})"

    def __init__(self, axis=-1):
        self.axis = axis

    def cpu(self, x, mask=None):
        return _forward(self, (_softmax_masked, _softmax_masked_chunks), (_softmax, _softmax_chunks), x, mask)

    def cuda(self, x, mask=None):
        return _forward_on_card(self, x, mask)

    def composed(self, x, mask=None):
        x = x if mask is None else x.where(mask, -np.inf)
        high = x.max(axis=self.axis, keepdims=True).detach() if x.shape[self.axis] else x.sum(axis=self.axis, keepdims=True)
        e = (x - high.where(high != -np.inf, 0.0)).exp()  # e^-inf is 0: what is masked, and all of a row that sees nothing
        total = e.sum(axis=self.axis, keepdims=True)
        return e / total.where(total != 0, 1.0)

    def grad_x(self, g, y, x, mask=None):
        return y * (g - (g * y).sum(axis=self.axis, keepdims=True))

    def cpu_grad(self, g, y, x, mask=None):
        return (_backward(self, (_softmax_grad, _softmax_grad_chunks), g, y), None)[:len(self.needs)]

    def cuda_grad(self, g, y, x, mask=None):
        return (_backward_on_card(self, _softmax_grad_cuda, g, y), None)[:len(self.needs)]

    samples = _samples


class LogSoftmax(Op):
    r"""y_j = x_j - log sum_k e^{x_k} over `axis`.

    mask: boolean, broadcast against x; places where it is False get -inf, the logarithm of the 0 that softmax gives there.
    An element that is -inf (masked, or -inf before) is a constant: it sends no gradient, and none that arrives there counts.
    A row that may attend to nothing is -inf throughout. A nan makes its row nan.
    """
    tex = r"\log\mathrm{{softmax}}({x})"

    def __init__(self, axis=-1):
        self.axis = axis

    def cpu(self, x, mask=None):
        return _forward(self, (_log_softmax_masked, _log_softmax_masked_chunks), (_log_softmax, _log_softmax_chunks), x, mask)

    def cuda(self, x, mask=None):
        return _forward_on_card(self, x, mask, logarithm=True)

    def grad_x(self, g, y, x, mask=None):
        live = y != -np.inf
        g = g.where(live, 0.0)
        return g - y.exp() * g.sum(axis=self.axis, keepdims=True)

    def cpu_grad(self, g, y, x, mask=None):
        return (_backward(self, (_log_softmax_grad, _log_softmax_grad_chunks), g, y), None)[:len(self.needs)]

    def cuda_grad(self, g, y, x, mask=None):
        return (_backward_on_card(self, _log_softmax_grad_cuda, g, y), None)[:len(self.needs)]

    samples = _samples


class LogSumExp(Op):
    r"""y = log sum_k e^{x_k} over `axis` (a number, a tuple, or None for all axes).

    A row that is -inf throughout, or empty, gives -inf and sends 0 gradient. An element that is inf gives inf.
    """
    tex = r"\log\sum e^{{{x}}}"

    def __init__(self, axis=-1, keepdims=False):
        self.axis, self.keepdims = axis, keepdims

    def _axes(self, shape):
        """The axes to sum over, as sorted numbers from 0."""
        axes = self.axis if isinstance(self.axis, (tuple, list)) else range(len(shape)) if self.axis is None else (self.axis,)
        axes = sorted(check_axis(self.name, a, shape) for a in axes)
        if len(set(axes)) < len(axes):
            raise ValueError(f"{self.name}: an axis is given twice in {self.axis}")
        return axes

    def _rows(self, x):
        """x as a matrix, what is summed along its rows; and the order of the axes that was needed, None if as they are."""
        axes = self._axes(x.shape)
        kept = [n for n in range(x.ndim) if n not in axes]
        order = kept + axes if kept + axes != list(range(x.ndim)) else None
        rows, width = (math.prod(x.shape[n] for n in side) for side in (kept, axes))
        return np.ascontiguousarray(x if order is None else x.transpose(order)).reshape(rows, width), order

    def cpu(self, x):
        check_float(self.name, x)
        rows, _ = self._rows(x)
        y = empty(len(rows), x.dtype)
        launch(_cost(x), _log_sum_exp, (rows, y, 0, len(rows)), _log_sum_exp_chunks, (rows, y))
        return y.reshape(self._shape(x.shape))

    def cuda(self, x):
        check_float(self.name, x)
        axes = self._axes(x.shape)
        kept = [n for n in range(x.ndim) if n not in axes]
        y, width = empty(self._shape(x.shape), x.dtype, "cuda"), math.prod(x.shape[n] for n in axes)
        x = x if kept + axes == list(range(x.ndim)) else permuted(x, kept + axes)
        (_, threads), _ = grid_of_rows(1, width, 1)
        _log_sum_exp_cuda[y.size, threads](flat(x), flat(y), width)
        return y

    def _shape(self, shape):
        """The shape of the result."""
        axes = self._axes(shape)
        return [1 if n in axes else length for n, length in enumerate(shape) if self.keepdims or n not in axes]

    def cpu_grad(self, g, y, x):
        rows, order = self._rows(x)
        dx = empty(rows.shape, x.dtype)
        args = (np.ascontiguousarray(g).reshape(-1), y.reshape(-1), rows, dx)
        launch(_cost(x), _log_sum_exp_grad, (*args, 0, len(rows)), _log_sum_exp_grad_chunks, args)
        if order is None:
            return (dx.reshape(x.shape),)
        return (np.ascontiguousarray(dx.reshape([x.shape[n] for n in order]).transpose(np.argsort(order))),)

    def cuda_grad(self, g, y, x):
        dx = empty(x.shape, x.dtype, "cuda")
        _, plan = plan_of(self.name, x.shape, self._kept(x.shape))
        _log_sum_exp_grad_cuda.each(dx.size)(flat(g), flat(y), flat(x), on_card(plan), flat(dx))
        return (dx,)

    def _kept(self, shape):
        """The shape with length 1 in place of the axes."""
        axes = self._axes(shape)
        return tuple(1 if n in axes else length for n, length in enumerate(shape))

    def grad_x(self, g, y, x):
        shape = self._kept(x.shape)
        g, y = g.reshape(*shape), y.reshape(*shape)
        live = y != -np.inf
        return g * (x - y.where(live, 0.0)).exp()  # e^(-inf - 0) = 0 in a dead row

    def samples(rng):
        for shape, axis, keepdims in [((2, 3), -1, False), ((2, 3, 2), 0, True), ((2, 3, 2), (0, 2), False), ((3,), None, False),
                                      ((2, 3), None, True), ((1,), 0, False), ((0, 3), 1, False), ((2, 3, 2), (1,), True)]:
            yield {"axis": axis, "keepdims": keepdims}, (rng.normal(size=shape),)
        yield {"axis": -1, "keepdims": False}, (np.array([[1e4, 1e4 - 1, -1e4], [0.5, -0.5, 0.0]]),)


# ---------------------------------------------------------------------------------------------------------------------
# the loops, over the rows `first` to `last` of a matrix (R, S); below each, the one that deals chunks of rows to threads
# ---------------------------------------------------------------------------------------------------------------------
@kernel
def _softmax(x, y, first, last):
    """For each row i: find the largest x[i, j]; y[i, j] = e^(x[i, j] - largest); divide the row by its sum.

    Short rows go by blocks of about `BLOCK` elements: first the differences of all its rows, then e^ of them as one long
    row (which fills the vector lanes, and no row waits for the sum of the one before), then the sums.
    """
    n = x.shape[1]
    if n < NARROW:
        step = max(BLOCK // max(n, 1), 1)
        for start in range(first, last, step):
            stop = min(start + step, last)
            for i in range(start, stop):
                high = row_max(x, i)
                if high == -np.inf:
                    high = x.dtype.type(0)  # -inf - 0, in place of nan
                for j in range(n):
                    y[i, j] = x[i, j] - high
            _exp_in_place(y[start:stop].reshape(-1))
            for i in range(start, stop):
                _divide(y, i, row_sum(y, i))
        return
    for i in range(first, last):
        high = row_max(x, i)
        if high == -np.inf:
            high = x.dtype.type(0)
        _divide(y, i, _exp_and_sum(x, y, i, high))


@kernel
def _below(a, b):
    """a - b, apart from the sum below: as part of it the difference might be rearranged too."""
    return a - b


@kernel(reduces=True)
def _exp_and_sum(x, y, i, high):
    """y[i, j] = e^(x[i, j] - high); returns the sum. Only the sum may be rearranged, see `row_sum`."""
    total = x.dtype.type(0)
    for j in range(x.shape[1]):
        e = exp_below(_below(x[i, j], high))
        y[i, j] = e
        total += e
    return total


@kernel
def _exp_in_place(y):
    for j in range(len(y)):
        y[j] = exp_below(y[j])


@kernel
def _divide(y, i, total):
    """y[i, j] / total; a row of zeros stays one."""
    scale = y.dtype.type(1) / total if total != 0 else total
    for j in range(y.shape[1]):
        y[i, j] *= scale


@kernel(parallel=True)
def _softmax_chunks(x, y):
    for c in prange(CHUNKS):
        _softmax(x, y, first_row(c, CHUNKS, len(x)), first_row(c + 1, CHUNKS, len(x)))


@kernel
def _softmax_masked(x, mask, lengths, steps, y, first, last):
    """As `_softmax` by blocks, with -inf in place of x[i, j] where row `offset(i)` of the mask forbids it."""
    n = x.shape[1]
    step = max(BLOCK // max(n, 1), 1)
    for start in range(first, last, step):
        stop = min(start + step, last)
        for i in range(start, stop):
            _choose(x, mask, offset(i, lengths, steps), y, i)
            high = row_max(y, i)
            if high > -np.inf:
                for j in range(n):
                    y[i, j] -= high
        _exp_in_place(y[start:stop].reshape(-1))
        for i in range(start, stop):
            _divide(y, i, row_sum(y, i))


@kernel
def _choose(x, mask, r, y, i):
    """y[i, j] = x[i, j] where row r of the mask allows it, else -inf."""
    nothing = x.dtype.type(-np.inf)
    for j in range(x.shape[1]):
        y[i, j] = x[i, j] if mask[r, j] else nothing


@kernel(parallel=True)
def _softmax_masked_chunks(x, mask, lengths, steps, y):
    for c in prange(CHUNKS):
        _softmax_masked(x, mask, lengths, steps, y, first_row(c, CHUNKS, len(x)), first_row(c + 1, CHUNKS, len(x)))


@kernel
def _softmax_grad(g, y, dx, first, last):
    """For each row i: d = sum_j g[i, j] y[i, j]; then dx[i, j] = y[i, j] (g[i, j] - d)."""
    for i in range(first, last):
        d = row_dot(g, y, i)
        for j in range(g.shape[1]):
            dx[i, j] = y[i, j] * (g[i, j] - d)


@kernel(parallel=True)
def _softmax_grad_chunks(g, y, dx):
    for c in prange(CHUNKS):
        _softmax_grad(g, y, dx, first_row(c, CHUNKS, len(g)), first_row(c + 1, CHUNKS, len(g)))


@kernel
def _log_softmax(x, y, first, last):
    """For each row i: m its largest element, s the sum of e^(x[i, j] - m); then y[i, j] = (x[i, j] - m) - log s.

    Short rows go by blocks, as in `_softmax`; `e` is the room for the exponentials of one block.
    """
    n = x.shape[1]
    if n < NARROW:
        step = max(BLOCK // max(n, 1), 1)
        e = np.empty((step, n), x.dtype)
        for start in range(first, last, step):
            stop = min(start + step, last)
            for i in range(start, stop):
                high = row_max(x, i)
                if high == -np.inf:
                    high = x.dtype.type(0)
                for j in range(n):
                    y[i, j] = x[i, j] - high
                    e[i - start, j] = y[i, j]
            _exp_in_place(e[:stop - start].reshape(-1))
            for i in range(start, stop):
                _subtract_log_sum(y, i, row_sum(e, i - start))
        return
    for i in range(first, last):
        high = row_max(x, i)
        total = row_sum_exp(x, i, high)
        if high == -np.inf:
            high = x.dtype.type(0)
        for j in range(n):
            y[i, j] = x[i, j] - high
        _subtract_log_sum(y, i, total)


@kernel
def _subtract_log_sum(y, i, total):
    """y[i, j] - log total; a row of -inf, whose total is 0, stays one."""
    log_total = log(total) if total != 0 else total
    for j in range(y.shape[1]):
        y[i, j] -= log_total


@kernel(parallel=True)
def _log_softmax_chunks(x, y):
    for c in prange(CHUNKS):
        _log_softmax(x, y, first_row(c, CHUNKS, len(x)), first_row(c + 1, CHUNKS, len(x)))


@kernel
def _log_softmax_masked(x, mask, lengths, steps, y, first, last):
    """As `_log_softmax`, with -inf in place of x[i, j] where row `offset(i)` of the mask forbids it."""
    for i in range(first, last):
        _choose(x, mask, offset(i, lengths, steps), y, i)
        high = row_max(y, i)
        total = row_sum_exp(y, i, high)
        if high > -np.inf:
            for j in range(x.shape[1]):
                y[i, j] -= high
        _subtract_log_sum(y, i, total)


@kernel(parallel=True)
def _log_softmax_masked_chunks(x, mask, lengths, steps, y):
    for c in prange(CHUNKS):
        _log_softmax_masked(x, mask, lengths, steps, y, first_row(c, CHUNKS, len(x)), first_row(c + 1, CHUNKS, len(x)))


@kernel(reduces=True)
def _sum_of_live(g, y, i):
    """sum_j g[i, j] over the elements whose logarithm y[i, j] is not -inf."""
    total = g.dtype.type(0)
    for j in range(g.shape[1]):
        total += g.dtype.type(0) if y[i, j] == -np.inf else g[i, j]
    return total


@kernel
def _log_softmax_grad(g, y, dx, first, last):
    """For each row i: d = sum_j g[i, j] over the elements that are not -inf; there dx[i, j] = g[i, j] - e^y[i, j] d, else 0."""
    zero = g.dtype.type(0)
    for i in range(first, last):
        d = _sum_of_live(g, y, i)
        for j in range(g.shape[1]):
            slope = g[i, j] - exp_below(y[i, j]) * d
            dx[i, j] = zero if y[i, j] == -np.inf else slope


@kernel(parallel=True)
def _log_softmax_grad_chunks(g, y, dx):
    for c in prange(CHUNKS):
        _log_softmax_grad(g, y, dx, first_row(c, CHUNKS, len(g)), first_row(c + 1, CHUNKS, len(g)))


@kernel
def _log_sum_exp(x, y, first, last):
    """For each row i: m its largest element, s the sum of e^(x[i, j] - m); then y[i] = m + log s."""
    for i in range(first, last):
        high = row_max(x, i)
        total = row_sum_exp(x, i, high)
        y[i] = high + log(total)


@kernel(parallel=True)
def _log_sum_exp_chunks(x, y):
    for c in prange(CHUNKS):
        _log_sum_exp(x, y, first_row(c, CHUNKS, len(x)), first_row(c + 1, CHUNKS, len(x)))


@kernel
def _log_sum_exp_grad(g, y, x, dx, first, last):
    """For each row i: dx[i, j] = g[i] e^(x[i, j] - y[i]), and 0 where the row is -inf throughout."""
    for i in range(first, last):
        high, a = y[i], g[i]
        if high == -np.inf:
            high = x.dtype.type(0)
        for j in range(x.shape[1]):
            dx[i, j] = a * exp_below(x[i, j] - high)


@kernel(parallel=True)
def _log_sum_exp_grad_chunks(g, y, x, dx):
    for c in prange(CHUNKS):
        _log_sum_exp_grad(g, y, x, dx, first_row(c, CHUNKS, len(x)), first_row(c + 1, CHUNKS, len(x)))


# ---------------------------------------------------------------------------------------------------------------------
# the same on a card: x is seen as (a, n, b), and a row is x[i, :, k]. Who is who in a block: see cuda/rows.py
# ---------------------------------------------------------------------------------------------------------------------
def _rows_on_card(op, x):
    """(a, n, b): outer axes, the axis of the rows, inner axes."""
    axis = check_axis(op.name, op.axis, x.shape)
    return math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1:])


def _forward_on_card(op, x, mask, logarithm=False):
    """What softmax and log-softmax share: checks, axis, mask, launch."""
    check_float(op.name, x)
    y, (a, n, b) = empty(x.shape, x.dtype, "cuda"), _rows_on_card(op, x)
    masked, shape, step = mask is not None, () if mask is None else tuple(mask.shape), 0
    if masked:
        check_mask(op.name, x.shape, mask)
    _, plan = plan_of(op.name, x.shape, shape)
    axis = len(shape) - x.ndim + op.axis % x.ndim  # in the mask
    if axis >= 0 and shape[axis] > 1:
        step = math.prod(shape[axis + 1:])
    mask = mask if masked else on_card(np.ones(1, np.bool_))
    grid, width = grid_of_rows(a, n, b)
    _softmax_cuda[grid](flat(x), flat(mask), on_card(plan), step, int(masked), int(logarithm), flat(y), n, b, width)
    return y


def _backward_on_card(op, kernel, g, y):
    dx, (a, n, b) = empty(y.shape, y.dtype, "cuda"), _rows_on_card(op, y)
    grid, width = grid_of_rows(a, n, b)
    kernel[grid](flat(g), flat(y), flat(dx), n, b, width)
    return dx


@cuda_kernel("T[::1], boolean[::1], int64[:, ::1], int64, int64, int64, T[::1], int64, int64, int64")
def _softmax_cuda(x, mask, plan, step, masked, logarithm, y, n, b, width):
    """The threads of a row read it once, for its largest element and the sum of e^ of the differences from it; then once
    more, and write the quotients, or their logarithms: the differences less log of the sum. A forbidden element is
    -inf; `plan` finds the row's place in the mask, where its elements lie `step` apart."""
    shared = cuda.shared.array(THREADS, x.dtype)
    first, lane, lanes, end = own_row(n, b, width)
    zero, one, nothing = x.dtype.type(0), x.dtype.type(1), x.dtype.type(-math.inf)
    at = place(first, plan, 1) if masked != 0 else 0
    high, total = nothing, zero
    for j in range(lane, end, lanes):
        v = x[first + j * b] if masked == 0 or mask[at + j * step] else nothing
        high, total = one_more(high, total, v, one)
    high, total = block_pair(shared, high, total, nothing, cuda.threadIdx.x, width)
    if high == nothing:
        high = zero  # -inf - 0, in place of nan
    total += high - high  # inf - inf: a row with inf is nan
    less = cuda_log(total) if total != zero else zero
    scale = one / total if total != zero else zero
    for j in range(lane, end, lanes):
        v = x[first + j * b] if masked == 0 or mask[at + j * step] else nothing
        y[first + j * b] = v - high - less if logarithm != 0 else cuda_exp(v - high) * scale


@cuda_kernel("T[::1], T[::1], int64")
def _log_sum_exp_cuda(x, y, n):
    """A block computes log sum_j e^x_j of one row x[i, :], its thread t with the elements t, t + threads, ..."""
    shared = cuda.shared.array(THREADS, x.dtype)
    t, threads, first = cuda.threadIdx.x, cuda.blockDim.x, cuda.blockIdx.x * n
    one, nothing, total = x.dtype.type(1), x.dtype.type(-math.inf), x.dtype.type(0)
    high = nothing
    for j in range(t, n, threads):
        high, total = one_more(high, total, x[first + j], one)
    high, total = block_pair(shared, high, total, nothing, t, 1)
    if t == 0:
        y[cuda.blockIdx.x] = high + cuda_log(total)


@cuda_kernel("T[::1], T[::1], T[::1], int64[:, ::1], T[::1]")
def _log_sum_exp_grad_cuda(g, y, x, plan, dx):
    """Thread e computes element e of dx = g e^(x - y), and 0 where y is -inf. `plan` says where its row stands in g and y."""
    e = cuda.grid(1)
    if e < x.size:
        row = place(e, plan, 1)
        high = y[row]
        if high == x.dtype.type(-math.inf):
            high = x.dtype.type(0)
        dx[e] = g[row] * cuda_exp(x[e] - high)


@cuda_kernel("T[::1], T[::1], T[::1], int64, int64, int64")
def _softmax_grad_cuda(g, y, dx, n, b, width):
    """The threads of a row compute d = sum_j g_j y_j together, then each for its elements dx_j = y_j (g_j - d)."""
    shared = cuda.shared.array(THREADS, g.dtype)
    first, lane, lanes, end = own_row(n, b, width)
    total = g.dtype.type(0)
    for j in range(lane, end, lanes):
        total += g[first + j * b] * y[first + j * b]
    d = block_sum(shared, total, cuda.threadIdx.x, width)
    for j in range(lane, end, lanes):
        dx[first + j * b] = y[first + j * b] * (g[first + j * b] - d)


@cuda_kernel("T[::1], T[::1], T[::1], int64, int64, int64")
def _log_softmax_grad_cuda(g, y, dx, n, b, width):
    """The threads of a row compute d = sum_j g_j over the elements that are not -inf; there dx_j = g_j - e^y_j d, else 0."""
    shared = cuda.shared.array(THREADS, g.dtype)
    first, lane, lanes, end = own_row(n, b, width)
    zero, nothing = g.dtype.type(0), g.dtype.type(-math.inf)
    total = zero
    for j in range(lane, end, lanes):
        total += g[first + j * b] if y[first + j * b] != nothing else zero
    d = block_sum(shared, total, cuda.threadIdx.x, width)
    for j in range(lane, end, lanes):
        v = y[first + j * b]
        dx[first + j * b] = g[first + j * b] - cuda_exp(v) * d if v != nothing else zero
