r"""Normalisers with exact zeros: sparsemax (Martins & Astudillo 2016), entmax-1.5 (Peters, Niculae & Martins 2019).

Both cut a row off at a threshold t and are a power of what is left; t is where the row sums to 1:

    sparsemax    p_j = max(x_j - t, 0)            the point of the simplex that is nearest to x
    entmax-1.5   p_j = max(x_j / 2 - t, 0)^2      between sparsemax and softmax

With z = x, or z = x / 2, and d_j = max(z_j - t, 0), t is where |d| = 1 in the 1-norm (sparsemax) or 2-norm (entmax).
Both norms are convex functions of t that fall, so Newton's method, begun too low at max z - 1, rises towards t and
never passes it:

    sparsemax    t += (sum d - 1) / n                       n how many d_j > 0; exact once those are the support
    entmax-1.5   t += (sum d^2 - sqrt(sum d^2)) / sum d     exact at once if the d_j are equal

Either takes a few passes along the row, in vector lanes. Sorting, as both papers do, gives the same t but was 14 and 60
times slower where 1,000 elements are in the support. So training begins, with scores that are nearly equal.

The slope is that of a mean over the support: dx_j = s_j (g_j - sum_k s_k g_k / sum_k s_k), where s is 1 for sparsemax
and sqrt(p) for entmax-1.5. The support itself changes in jumps, so this holds to any order away from the kinks.
"""
import math

import numpy as np
from numba import prange

from ..autograd import Op
from ..cuda import THREADS, cuda, cuda_function, cuda_kernel, flat, on_card, place
from ..cuda import sqrt as cuda_sqrt
from ..cuda.rows import block_max, block_sum, grid_of_rows, own_row
from ..device import empty, kernel, launch
from .broadcast import plan_of
from .shared import first_row, offset, row_dot, row_max, row_sum
from .softmax import check_axis, check_float, check_mask, from_end, mask_rows, matrix, to_end

CHUNKS = 32  # parts that the rows are cut into for the threads, whatever their number
NO_MASK = np.ones((1, 1), np.bool_), np.ones(1, np.int64), np.zeros(1, np.int64)


class _Sparse(Op):
    """What the two share. `square` is False for sparsemax, True for entmax-1.5."""
    square = False

    def __init__(self, axis=-1):
        self.axis = axis

    def cpu_grad(self, g, y, x, mask=None):
        axis = self.axis % y.ndim
        last = axis == y.ndim - 1
        if not last:
            g, y = to_end(self.name, axis, g)[0], to_end(self.name, axis, y)[0]
        dx = empty(y.shape, y.dtype)
        args = matrix(g), matrix(y), matrix(dx), self.square
        launch(y.size, _cut_grad, (*args, 0, len(args[0])), _cut_grad_chunks, args)
        return (dx if last else from_end(axis, dx), None)[:len(self.needs)]

    def cuda(self, x, mask=None):
        check_float(self.name, x)
        y, (a, n, b) = empty(x.shape, x.dtype, "cuda"), self.rows(x)
        if mask is not None:
            check_mask(self.name, x.shape, mask)
        _, plan = plan_of(self.name, x.shape, () if mask is None else tuple(mask.shape))
        grid, _ = grid_of_rows(a, n, b, most=1)
        masks = on_card(np.ones(1, np.bool_)) if mask is None else mask
        _cut_cuda[grid](flat(x), flat(masks), on_card(plan), int(mask is not None), flat(y), int(self.square), n, b)
        return y

    def cuda_grad(self, g, y, x, mask=None):
        dx, (a, n, b) = empty(y.shape, y.dtype, "cuda"), self.rows(y)
        grid, width = grid_of_rows(a, n, b)
        _cut_grad_cuda[grid](flat(g), flat(y), flat(dx), int(self.square), n, b, width)
        return (dx, None)[:len(self.needs)]

    def rows(self, x):
        """(a, n, b): outer axes, the axis of the rows, inner axes."""
        axis = check_axis(self.name, self.axis, x.shape)
        return math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1:])

    def grad_x(self, g, y, x, mask=None):
        live = y != 0
        s = live.to(y.dtype)
        if self.square:
            s = y.where(live, 1.0).sqrt().where(live, 0.0)  # no sqrt at 0: its slope is inf
        total = s.sum(axis=self.axis, keepdims=True)
        mean = (s * g).sum(axis=self.axis, keepdims=True) / total.where(total != 0, 1.0)
        return s * (g - mean)

    def cut(self, x, mask):
        """The forward pass: checks, axis, mask, launch."""
        check_float(self.name, x)
        axis = check_axis(self.name, self.axis, x.shape)
        last = axis == x.ndim - 1
        if not last:
            x, mask = to_end(self.name, axis, x, mask)
        y = empty(x.shape, x.dtype)
        plan = NO_MASK if mask is None else mask_rows(self.name, x.shape, mask)
        args = matrix(x), mask is not None, *plan, matrix(y), self.square
        launch(4 * x.size, _cut, (*args, 0, len(args[0])), _cut_chunks, args)
        return y if last else from_end(axis, y)

    def samples(rng):
        """Each axis, length 1, length 0, batch 0, large scores, masks that stretch, a row that may attend to none."""
        sizes = [((2, 5), -1), ((3, 2, 2), 0), ((2, 4, 2), 1), ((1,), 0), ((2, 1), -1), ((0, 3), -1), ((2, 0), -1)]
        for shape, axis in sizes:
            yield {"axis": axis}, (0.6 * rng.normal(size=shape),)
        yield {"axis": -1}, (np.array([[1e4, 1e4 - 0.5, -1e4], [0.5, -0.2, 0.0]]),)
        x = 0.6 * rng.normal(size=(2, 3, 4))
        keys = np.array([[[True, True, False, True]], [[False] * 4]])
        for mask in (keys, rng.random((3, 4)) < 0.6, rng.random((2, 3, 1)) < 0.5, np.array([True, False, True, True])):
            yield {"axis": -1}, (x, mask)
        yield {"axis": 1}, (x, rng.random((3, 1)) < 0.6)


class Sparsemax(_Sparse):
    r"""y = argmin_p |p - x|^2 over the simplex, along `axis`: y_j = max(x_j - t, 0), with t so that the sum is 1.

    mask: boolean, broadcast against x; places where it is False get exactly 0. A row that may attend to nothing, or
    whose elements are all -inf, gives 0 and sends 0 gradient. A nan or inf makes its row nan. Errors: TypeError for x
    or mask of another dtype, ValueError for an axis that is not there, ShapeError for a mask that does not broadcast.
    Source: Martins & Astudillo 2016, "From softmax to sparsemax".
    """
    tex = r"\mathrm{sparsemax}({x})"

    def cpu(self, x, mask=None):
        return self.cut(x, mask)


class Entmax15(_Sparse):
    r"""y_j = max(x_j / 2 - t, 0)^2 along `axis`, with t so that the sum is 1: Tsallis entropy with alpha = 1.5.

    Mask, special rows and errors as in `Sparsemax`. Source: Peters, Niculae & Martins 2019, "Sparse
    sequence-to-sequence models".
    """
    tex = r"\mathrm{entmax}_{1.5}({x})"
    square = True

    def cpu(self, x, mask=None):
        return self.cut(x, mask)


# ---------------------------------------------------------------------------------------------------------------------
# the loops, over rows `first` to `last` of a matrix (R, S); below each, the one that deals chunks of rows to threads
# ---------------------------------------------------------------------------------------------------------------------
@kernel
def _cut(x, masked, mask, lengths, steps, y, square, first, last):
    """For each row i: z = x - its largest element, half of that if `square`; the threshold t; y = max(z - t, 0), or its
    square.

    Row `offset(i)` of the mask says which elements count; the others are -inf.
    """
    zero, nothing, scale = x.dtype.type(0), x.dtype.type(-np.inf), x.dtype.type(0.5 if square else 1.0)
    for i in range(first, last):
        if masked:
            r = offset(i, lengths, steps)
            for j in range(x.shape[1]):
                y[i, j] = x[i, j] if mask[r, j] else nothing
        else:
            for j in range(x.shape[1]):
                y[i, j] = x[i, j]
        high = row_max(y, i)
        if high == -np.inf:
            for j in range(x.shape[1]):
                y[i, j] = zero
            continue
        for j in range(x.shape[1]):
            y[i, j] = (y[i, j] - high) * scale
        t = x.dtype.type(_threshold(y, i, square))
        for j in range(x.shape[1]):
            above = y[i, j] - t
            above = zero if above < zero else above  # a nan stays one
            y[i, j] = above * above if square else above


@kernel(parallel=True)
def _cut_chunks(x, masked, mask, lengths, steps, y, square):
    for c in prange(CHUNKS):
        _cut(x, masked, mask, lengths, steps, y, square, first_row(c, CHUNKS, len(x)), first_row(c + 1, CHUNKS, len(x)))


@kernel
def _threshold(z, i, square):
    """t for row i of z, whose largest element is 0, by Newton's method; nan if there is a nan in the row.

    In float64 for both dtypes. The step is 0 after 2 to 13 rounds (up to 100,000 elements were tried).
    """
    t = -1.0
    for _ in range(100):
        n, total, squares = _above(z, i, t)
        step = (squares - np.sqrt(squares)) / total if square else (total - 1) / n
        t += step
        if not step > 1e-14:
            break
    return t


@kernel(reduces=True)
def _above(z, i, t):
    """How many elements d_j = max(z[i, j] - t, 0) are not 0, sum_j d_j and sum_j d_j^2."""
    n, total, squares = 0.0, 0.0, 0.0
    for j in range(z.shape[1]):
        d = np.float64(z[i, j]) - t
        d = 0.0 if d < 0 else d  # a nan stays one
        n += 1.0 if d > 0 else 0.0
        total += d
        squares += d * d
    return n, total, squares


@kernel
def _cut_grad(g, y, dx, square, first, last):
    """For each row i: s[j] = 1 on the support, or sqrt(y[i, j]) if `square`;
    dx[i, j] = s[j] (g[i, j] - sum_k s[k] g[i, k] / sum_k s[k])."""
    zero, one = y.dtype.type(0), y.dtype.type(1)
    for i in range(first, last):
        if square:
            for j in range(y.shape[1]):
                dx[i, j] = np.sqrt(y[i, j])
        else:
            for j in range(y.shape[1]):
                dx[i, j] = zero if y[i, j] == zero else one
        total = row_sum(dx, i)
        mean = row_dot(g, dx, i) / total if total != zero else zero
        for j in range(y.shape[1]):
            dx[i, j] *= g[i, j] - mean


@kernel(parallel=True)
def _cut_grad_chunks(g, y, dx, square):
    for c in prange(CHUNKS):
        _cut_grad(g, y, dx, square, first_row(c, CHUNKS, len(y)), first_row(c + 1, CHUNKS, len(y)))


# ---------------------------------------------------------------------------------------------------------------------
# the same on a card: x is seen as (a, n, b), and a row is x[i, :, k]. Who is who in a block: see cuda/rows.py
# ---------------------------------------------------------------------------------------------------------------------
@cuda_function
def block_sums(first, second, t):
    """The sums of first[t] and of second[t] over the threads of the block, into first[0] and second[0]: a tree, at each
    step of which half of the threads go on."""
    cuda.syncthreads()
    step = cuda.blockDim.x // 2
    while step > 0:
        if t < step:
            first[t] += first[t + step]
            second[t] += second[t + step]
        cuda.syncthreads()
        step //= 2


@cuda_kernel("T[::1], boolean[::1], int64[:, ::1], int64, T[::1], int64, int64, int64")
def _cut_cuda(x, mask, plan, masked, y, square, n, b):
    """A block cuts off one row: z = x - its largest element, half of that if `square`; the threshold by the same steps
    as in `_threshold`, in float64; y = max(z - threshold, 0), or its square.

    Its threads share the elements, and in every round each sums up over its own. All have the same sums then, so
    all stop in the same round. A forbidden element is -inf; `plan` finds its place in the mask.
    """
    highs = cuda.shared.array(THREADS, x.dtype)
    sums = cuda.shared.array(THREADS, np.float64)
    others = cuda.shared.array(THREADS, np.float64)
    t = cuda.threadIdx.x
    first, lane, lanes, end = own_row(n, b, 1)
    zero, half, nothing = x.dtype.type(0), x.dtype.type(0.5), x.dtype.type(-math.inf)
    high = nothing
    for j in range(lane, end, lanes):
        e = first + j * b
        v = x[e] if masked == 0 or mask[place(e, plan, 1)] else nothing
        y[e] = v  # read again below by this same thread
        high = high if high > v or high != high else v
    high = block_max(highs, high, t, 1)
    for j in range(lane, end, lanes):
        z = y[first + j * b] - high
        y[first + j * b] = z * half if square != 0 else z
    at, rounds = -1.0, 0
    while rounds < 100 and high != nothing:
        total, other = 0.0, 0.0
        for j in range(lane, end, lanes):
            d = np.float64(y[first + j * b]) - at
            d = 0.0 if d < 0 else d  # a nan stays one
            total += d
            if square != 0:
                other += d * d
            elif d > 0:
                other += 1.0
        sums[t], others[t] = total, other
        block_sums(sums, others, t)
        total, other = sums[0], others[0]
        cuda.syncthreads()  # everybody has read them before the next round
        step = (other - cuda_sqrt(other)) / total if square != 0 else (total - 1) / other
        at += step
        rounds = rounds + 1 if step > 1e-14 else 100
    cut = x.dtype.type(at)
    for j in range(lane, end, lanes):
        above = y[first + j * b] - cut
        above = zero if above < zero or high == nothing else above  # a nan stays one
        y[first + j * b] = above * above if square != 0 else above


@cuda_kernel("T[::1], T[::1], T[::1], int64, int64, int64, int64")
def _cut_grad_cuda(g, y, dx, square, n, b, width):
    """The threads of a row sum up s_j and s_j g_j, where s is 1 on the support, or sqrt(y) if `square`; then each writes
    dx_j = s_j (g_j - sum of s g / sum of s) for its elements."""
    shared = cuda.shared.array(THREADS, y.dtype)
    first, lane, lanes, end = own_row(n, b, width)
    zero, one = y.dtype.type(0), y.dtype.type(1)
    total, product = zero, zero
    for j in range(lane, end, lanes):
        e = first + j * b
        s = cuda_sqrt(y[e]) if square != 0 else zero if y[e] == zero else one
        dx[e] = s
        total += s
        product += s * g[e]
    total = block_sum(shared, total, cuda.threadIdx.x, width)
    product = block_sum(shared, product, cuda.threadIdx.x, width)
    mean = product / total if total != zero else zero
    for j in range(lane, end, lanes):
        e = first + j * b
        dx[e] *= g[e] - mean
