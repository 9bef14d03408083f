r"""PageRank of small graphs, solved exactly (survey eqs 30-31; Tan, Wan & Xiao 2017 for sentences of a document):

    alpha = lam W D^-1 alpha + (1 - lam) y      =>      alpha = (1 - lam) (I - lam W D^-1)^-1 y

A walker at node j goes on to node i with probability lam W_ij / D_j, where D_j = sum_i W_ij is the sum of *column* j,
or starts anew at a node drawn from y with probability 1 - lam. alpha is where it is in the long run. Columns of W D^-1
sum to 1, so alpha sums to what y sums to. y uniform is PageRank, y one-hot the topic-sensitive kind.

With M = W D^-1 and A = I - lam M, factored once as P A = L U, the gradient takes the same factors:

    b = (1 - lam) y          A alpha = b                         L z = P b, then U alpha = z
    c = A^-T g               dy = (1 - lam) c                    U^T z = g, then L^T P c = z
    dM_ij = lam c_i alpha_j                                      summed over restarts
    dW_ij = (dM_ij - sum_k dM_kj M_kj) / D_j                     through the sum of the column

A factorisation takes N^3 / 3 multiply-adds. A batch of graphs is one launch, each graph on one thread. Large ones go by
blocks:

    for block in 16 columns:    factor them;  the 16 rows to their right: solve with L;  A below and right -= L @ U
"""
import numpy as np
from numba import prange

from ..autograd import Op
from ..cuda import cuda, cuda_kernel, flat
from ..device import empty, kernel, launch
from .broadcast import ShapeError, plan_of
from .linalg import Solve, factor_cuda, solve_cuda
from .shared import first_row, product
from .softmax import check_float

CHUNKS = 32  # parts that the batch is cut into for the threads, whatever their number
BLOCK = 16   # columns that are factored at a time


class PageRank(Op):
    r"""alpha = (1 - lam) (I - lam W D^-1)^{-1} y, with D the sums of the columns of W and lam the `damping`.

    w (B,N,N), w[b,i,j] the weight of the edge from node j to node i, not negative; y (B,N) the restart distribution, or
    (B,N,M) for M of them on one graph. Returns alpha of y's shape.

    A column that sums to 0 (a node without a way out, or padding) is 0 in W D^-1: a walker is lost there, so that alpha
    sums to less than y does, unless the walker never comes there. Its weights get the gradient 0. A node whose row and
    column are 0 and whose y is 0 gets exactly 0: so are nodes masked.

    Weights are not looked at. With negative ones alpha is no distribution (entries below 0 or above 1), the iteration
    of eq 30 may diverge although the solution exists, and a column whose sum comes near 0 makes it arbitrarily large.
    So map raw scores to positive weights before, such as by exp.

    Errors: ValueError for damping outside [0, 1) or a singular matrix (negative weights only), ShapeError, TypeError. On a
    card, which cannot raise, alpha of a graph with a singular matrix is nan.
    """
    name = "pagerank"
    tex = r"(1 - \lambda) (I - \lambda {w} D^{-1})^{-1} {y}"

    def __init__(self, damping=0.9):
        if not isinstance(damping, (int, float, np.integer, np.floating)) or not 0 <= damping < 1:
            raise ValueError(f"{self.name}: expected a damping in [0, 1), got {damping!r}")
        self.damping = damping

    def cpu(self, w, y):
        b, n = self.checked(w, y)
        graphs = b if self.recorded else min(b, CHUNKS)  # without a backward pass each chunk uses its factors again
        lu, swaps, sums = empty((graphs, n, n), w.dtype), empty((b, n), np.int64), empty((b, n), w.dtype)
        x = _restarts(y) * w.dtype.type(1 - self.damping)                       # (B,M,N)
        args = np.ascontiguousarray(w), w.dtype.type(self.damping), lu, swaps, sums, x
        launch(_cost(w, x), _solve, (*args, 0, CHUNKS), _solve_chunks, args)
        if n and (swaps[:, 0] < 0).any():
            bad = int(swaps[:, 0].argmin())
            raise ValueError(f"{self.name}: expected weights that are not negative, so that I - {self.damping} W D^-1 "
                             f"can be inverted; that of graph {bad} is singular. exp(scores) is positive")
        if self.recorded:
            self.saved = lu, swaps, sums
        return _back(x, y)

    def cpu_grad(self, g, alpha, w, y):
        lu, swaps, sums = self.saved
        need_w, need_y = self.needs
        c, dw = _restarts(g), empty(w.shape if need_w else (0, 0, 0), w.dtype)  # c (B,M,N)
        args = np.ascontiguousarray(w), w.dtype.type(self.damping), lu, swaps, sums, _restarts(alpha), c, dw
        launch(_cost(w, c) / 2, _solve_grad, (*args, 0, CHUNKS), _solve_grad_chunks, args)
        return dw if need_w else None, _back(c * w.dtype.type(1 - self.damping), y) if need_y else None

    def cuda(self, w, y):
        b, n = self.checked(w, y)
        lu, sums, x = empty(w.shape, w.dtype, "cuda"), empty((b, n), w.dtype, "cuda"), empty((b, n, *y.shape[2:]), y.dtype, "cuda")
        _matrix_cuda.each(b * n)(flat(w), w.dtype.type(self.damping), flat(lu), flat(sums), n)
        order = factor_cuda(lu, n)
        self.through(lu, order, y, x)
        if self.recorded:
            self.saved = lu, order, sums
        return x

    def cuda_grad(self, g, alpha, w, y):
        lu, order, sums = self.saved
        need_w, need_y = self.needs
        dy, dw = empty(y.shape, y.dtype, "cuda"), empty(w.shape, w.dtype, "cuda") if need_w else None
        self.through(lu, order, g, dy, transposed=True)
        if need_w:  # c = dy / (1 - lam)
            (b, n), m = w.shape[:2], y.shape[2] if y.ndim == 3 else 1
            _weights_grad_cuda.each(b * n)(flat(w), w.dtype.type(self.damping / (1 - self.damping)), flat(sums), flat(alpha),
                                           flat(dy), flat(dw), n, m)
        return dw, dy if need_y else None

    def through(self, lu, order, y, x, transposed=False):
        """x = (1 - lam) A^-1 y, or A^-T y."""
        b, n, m = (*y.shape, 1)[:3]
        _, plan = plan_of(self.name, (b,), (b,))
        solve_cuda(lu, order, y, x, (b, n, m), plan, transposed, 1 - self.damping)

    def checked(self, w, y):
        """(B, N), or an error."""
        check_float(self.name, w)
        if w.ndim != 3 or w.shape[1] != w.shape[2] or y.ndim not in (2, 3) or y.shape[:2] != w.shape[:2]:
            raise ShapeError(f"{self.name}: expected w (B,N,N) and y (B,N) or (B,N,M), got w {w.shape} and y {y.shape}")
        if w.dtype != y.dtype:
            raise TypeError(f"{self.name}: expected w and y of one type, got {w.dtype} and {y.dtype}")
        return w.shape[:2]

    def composed(self, w, y):
        sums = w.sum(axis=1, keepdims=True)                                     # (B,1,N)
        live = sums != 0
        m = (w / sums.where(live, 1.0)).where(live, 0.0)                        # (B,N,N), columns sum to 1
        a = self.result(np.eye(w.shape[-1], dtype=w.dtype), device=w.device) - self.damping * m
        right = (1 - self.damping) * y
        return Solve()(a, right) if y.ndim == 3 else Solve()(a, right.unsqueeze(-1)).squeeze(-1)

    def samples(rng):
        """One-hot restarts, several restarts, one node, no graph, a node without a way out, masked nodes."""
        sizes = [((2, 4), 0.9), ((1, 3, 2), 0.5), ((2, 1), 0.9), ((0, 3), 0.9), ((1, 5), 0.0), ((1, 2, 0), 0.9)]
        for (b, n, *m), damping in sizes:
            yield {"damping": damping}, (rng.uniform(0.2, 2, size=(b, n, n)), rng.uniform(size=(b, n, *m)))
        yield {"damping": 0.9}, (rng.uniform(0.2, 2, size=(2, 4, 4)), np.eye(4)[[1, 3]])
        w = rng.uniform(0.2, 2, size=(2, 4, 4))
        w[0, :, 2] = 0
        w[1, 3] = w[1, :, 3] = w[1, 0] = w[1, :, 0] = 0
        yield {"damping": 0.8}, (w, np.array([[0.25] * 4, [0, 0.5, 0.5, 0]]))


def _restarts(y):
    """(B,N) or (B,N,M) as a C-contiguous (B,M,N) copy."""
    return np.array(y[:, None] if y.ndim == 2 else y.transpose(0, 2, 1), order="C")


def _back(x, y):
    """Undo `_restarts`."""
    return x.reshape(y.shape) if y.ndim == 2 else np.ascontiguousarray(x.transpose(0, 2, 1))


def _cost(w, x):
    """Rough nanoseconds of the forward pass; none for one graph, which is the work of one thread."""
    return w.size * (w.shape[-1] / 20 + 1 + x.shape[1]) if len(w) > 1 else 0


# ---------------------------------------------------------------------------------------------------------------------
# the loops, over chunks `begin` to `end` of the batch. x, c and alpha are (B,M,N): restarts lie along rows
# ---------------------------------------------------------------------------------------------------------------------
@kernel
def _solve(w, lam, lu, swaps, sums, x, begin, end):
    """For each graph b: A = I - lam W D^-1 into `lu`, factor it in place; each restart x[b, m] becomes A^-1 x[b, m]."""
    room = np.empty((w.shape[1], BLOCK), w.dtype)
    for chunk in range(begin, end):
        for b in range(first_row(chunk, CHUNKS, len(w)), first_row(chunk + 1, CHUNKS, len(w))):
            at = b if len(lu) == len(w) else chunk
            _matrix(w, b, lam, sums, lu, at)
            if not _factor(lu, at, swaps, b, room):
                swaps[b, 0] = -1
                continue
            for m in range(x.shape[1]):
                _through_factors(lu, at, swaps, b, x, m)


@kernel(parallel=True)
def _solve_chunks(w, lam, lu, swaps, sums, x):
    for chunk in prange(CHUNKS):
        _solve(w, lam, lu, swaps, sums, x, chunk, chunk + 1)


@kernel
def _matrix(w, b, lam, sums, lu, at):
    """sums[b, j] = sum_i w[b, i, j]; lu[at] = I - lam w[b], columns of w divided by their sums (0 where that is 0)."""
    n, zero, one = w.shape[1], w.dtype.type(0), w.dtype.type(1)
    scale = np.empty(n, w.dtype)
    for j in range(n):
        sums[b, j] = zero
    for i in range(n):
        for j in range(n):
            sums[b, j] += w[b, i, j]
    for j in range(n):
        scale[j] = zero if sums[b, j] == zero else -lam / sums[b, j]
    for i in range(n):
        for j in range(n):
            lu[at, i, j] = scale[j] * w[b, i, j]
        lu[at, i, i] += one


@kernel
def _factor(lu, at, swaps, b, room):
    """P A = L U in place of A = lu[at]: U on and above the diagonal, L below it (its diagonal is 1). Row swaps[b, k]
    and row k change places in step k. Returns whether no pivot is 0. `room` (N, BLOCK) is for a copy of -L.

        for block in columns:                         first to last
            for k in block:                           the pivot; rows below, within the block, -= L[i, k] row k
            for k in block:                           the block's rows, right of it, likewise: they become U
            A below and right of the block += (-L) @ U
    """
    n = lu.shape[1]
    a = lu[at]
    for first in range(0, n, BLOCK):
        last = min(first + BLOCK, n)
        for k in range(first, last):
            pivot, best = k, abs(a[k, k])
            for i in range(k + 1, n):
                if abs(a[i, k]) > best:
                    pivot, best = i, abs(a[i, k])
            swaps[b, k] = pivot
            if best == 0:
                return False
            if pivot != k:
                for j in range(n):
                    a[k, j], a[pivot, j] = a[pivot, j], a[k, j]
            scale = a.dtype.type(1) / a[k, k]
            for i in range(k + 1, n):
                a[i, k] *= scale
                _subtract(a, i, k, a[i, k], k + 1, last)
        if last < n:
            for k in range(first, last):
                for i in range(k + 1, last):
                    _subtract(a, i, k, a[i, k], last, n)
            for i in range(last, n):
                for k in range(first, last):
                    room[i, k - first] = -a[i, k]
            product(a[last::1, last::1], room[last::1, ::1], a[first:last:1, last::1], True)
    return True


@kernel
def _subtract(a, i, k, factor, first, last):
    """a[i, j] -= factor a[k, j] for j from first to last. (Unsigned, because Numba looks whether a signed place counts
    from the end, unless it begins at 0, and then the loop is no vector code: half the speed.)"""
    for j in range(np.uint64(first), np.uint64(last)):
        a[i, j] -= factor * a[k, j]


@kernel(reduces=True)
def _dot(a, at, i, x, b, m, first, last):
    """sum of a[at, i, j] x[b, m, j] for j from first to last."""
    total = x.dtype.type(0)
    for j in range(np.uint64(first), np.uint64(last)):
        total += a[at, i, j] * x[b, m, j]
    return total


@kernel
def _through_factors(lu, at, swaps, b, x, m):
    """x[b, m] = A^-1 x[b, m]: swap, L from the top down, U from the bottom up. Sums run along rows of L and U."""
    n = lu.shape[1]
    for k in range(n):
        p = swaps[b, k]
        x[b, m, k], x[b, m, p] = x[b, m, p], x[b, m, k]
    for k in range(1, n):
        x[b, m, k] -= _dot(lu, at, k, x, b, m, 0, k)
    for k in range(n - 1, -1, -1):
        x[b, m, k] = (x[b, m, k] - _dot(lu, at, k, x, b, m, k + 1, n)) / lu[at, k, k]


@kernel
def _through_transposed(lu, swaps, b, x, m):
    """x[b, m] = A^-T x[b, m]: U^T from the top down, L^T from the bottom up, swap back. A found element is taken out of
    all others that it belongs to, again along rows of U and L."""
    n = lu.shape[1]
    for k in range(n):
        x[b, m, k] /= lu[b, k, k]
        found = x[b, m, k]
        for j in range(np.uint64(k + 1), np.uint64(n)):
            x[b, m, j] -= lu[b, k, j] * found
    for k in range(n - 1, 0, -1):
        found = x[b, m, k]
        for j in range(k):
            x[b, m, j] -= lu[b, k, j] * found
    for k in range(n - 1, -1, -1):
        p = swaps[b, k]
        x[b, m, k], x[b, m, p] = x[b, m, p], x[b, m, k]


@kernel
def _solve_grad(w, lam, lu, swaps, sums, alpha, c, dw, begin, end):
    """For each graph b: c[b, m], which comes in as the gradient at alpha[b, m], becomes A^-T of it; then dw[b], unless
    that is not wanted (length 0).

        dw[i, j] = lam sum_m c[m, i] alpha[m, j]                  the gradient at M = W D^-1
        t[j] = sum_i dw[i, j] w[i, j] / sums[j]                   what the column's sum passes on
        dw[i, j] = (dw[i, j] - t[j]) / sums[j]                    0 where sums[j] is 0
    """
    n, zero, one = w.shape[1], w.dtype.type(0), w.dtype.type(1)
    scale, t = np.empty(n, w.dtype), np.empty(n, w.dtype)
    for chunk in range(begin, end):
        for b in range(first_row(chunk, CHUNKS, len(w)), first_row(chunk + 1, CHUNKS, len(w))):
            for m in range(c.shape[1]):
                _through_transposed(lu, swaps, b, c, m)
            if len(dw) == 0:
                continue
            for j in range(n):
                scale[j] = zero if sums[b, j] == zero else one / sums[b, j]
                t[j] = zero
            for i in range(n):
                for j in range(n):
                    dw[b, i, j] = zero
                for m in range(c.shape[1]):
                    factor = lam * c[b, m, i]
                    for j in range(n):
                        dw[b, i, j] += factor * alpha[b, m, j]
                for j in range(n):
                    t[j] += dw[b, i, j] * w[b, i, j] * scale[j]
            for i in range(n):
                for j in range(n):
                    dw[b, i, j] = (dw[b, i, j] - t[j]) * scale[j]


@kernel(parallel=True)
def _solve_grad_chunks(w, lam, lu, swaps, sums, alpha, c, dw):
    for chunk in prange(CHUNKS):
        _solve_grad(w, lam, lu, swaps, sums, alpha, c, dw, chunk, chunk + 1)


# ---------------------------------------------------------------------------------------------------------------------
# the same on a card: flat arrays; restarts lie along columns, (B,N,M). A is factored and solved as in `linalg.py`
# ---------------------------------------------------------------------------------------------------------------------
@cuda_kernel("T[::1], T, T[::1], T[::1], int64")
def _matrix_cuda(w, lam, lu, sums, n):
    """Thread e has column j = e % N of graph e // N: its sum, then column j of I - lam W D^-1. It goes down the column, and
    its neighbour down the next, so memory is read in order."""
    e = cuda.grid(1)
    if e < sums.size:
        first, zero, one = e // n * n * n + e % n, w.dtype.type(0), w.dtype.type(1)
        total = zero
        for i in range(n):
            total += w[first + i * n]
        sums[e] = total
        scale = zero if total == zero else -lam / total
        for i in range(n):
            v = scale * w[first + i * n]
            lu[first + i * n] = v + one if i == e % n else v


@cuda_kernel("T[::1], T, T[::1], T[::1], T[::1], T[::1], int64, int64")
def _weights_grad_cuda(w, factor, sums, alpha, c, dw, n, m):
    """Thread e has column j = e % N of graph e // N, as in `_matrix_cuda`:

        dw[i, j] = factor sum_m c[i, m] alpha[j, m];  t = sum_i dw[i, j] w[i, j] / sums[j];  dw[i, j] = (dw[i, j] - t) / sums[j]
    """
    e = cuda.grid(1)
    if e < sums.size:
        b, first, zero = e // n, e // n * n * n + e % n, w.dtype.type(0)
        scale = zero if sums[e] == zero else w.dtype.type(1) / sums[e]
        t = zero
        for i in range(n):
            slope = zero
            for k in range(m):
                slope += c[(b * n + i) * m + k] * alpha[e * m + k]
            slope *= factor
            dw[first + i * n] = slope
            t += slope * w[first + i * n] * scale
        for i in range(n):
            dw[first + i * n] = (dw[first + i * n] - t) * scale
