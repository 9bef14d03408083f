"""Linear systems."""
import math

import numpy as np

from ..autograd import Op
from ..cuda import SIMULATED, THREADS, cuda, cuda_function, cuda_kernel, flat, on_card, place, threads_for
from ..device import copy, empty
from .broadcast import ShapeError, plan_of
from .matmul import matmul_cuda
from .softmax import check_float


class Solve(Op):
    """x with a x = b, for square matrices a (..., n, n) and b (..., n, m), by LU factorisation with row exchanges (on the
    CPU by LAPACK through NumPy).

    Errors: ShapeError; ValueError if a matrix is singular, that is if a pivot is exactly 0. A card cannot raise, and to
    ask it would be to wait for it: there all of x is nan that belongs to a singular matrix.
    """
    tex = "{a}^{-1} {b}"

    def cpu(self, a, b):
        self.check(a, b)
        try:
            return np.linalg.solve(a, b)
        except np.linalg.LinAlgError:
            raise ValueError(f"solve: the matrix a of shape {a.shape} is singular") from None

    def cuda(self, a, b):
        self.check(a, b)
        check_float("solve", a)
        if a.dtype != b.dtype:
            raise TypeError(f"solve: on a card a and b must have one dtype, got {a.dtype} and {b.dtype}")
        lu = copy(a)
        factors = lu, factor_cuda(lu, a.shape[-1])
        if self.recorded:
            self.saved = factors
        return self.through(factors, b)

    def cuda_grad(self, g, x, a, b):
        """As the rules, with the factors of the forward pass."""
        da = matmul_cuda(self.through(self.saved, g, True, -1.0), x, turned_b=True) if self.needs[0] else None
        return da, self.through(self.saved, g, True) if self.needs[1] else None

    def through(self, factors, b, transposed=False, scale=1.0):
        """scale A^-1 b, or scale A^-T b."""
        batch, plan = plan_of("solve", tuple(factors[0].shape[:-2]), tuple(b.shape[:-2]))
        x = empty((*batch, *b.shape[-2:]), b.dtype, "cuda")
        solve_cuda(*factors, b, x, (math.prod(batch), *b.shape[-2:]), plan, transposed, scale)
        return x

    def check(self, a, b):
        if a.ndim < 2 or b.ndim < 2 or a.shape[-1] != a.shape[-2] or a.shape[-1] != b.shape[-2]:
            raise ShapeError(f"solve: expected a (..., n, n) and b (..., n, m), got {tuple(a.shape)} and {tuple(b.shape)}")

    def grad_a(self, g, x, a, b):
        return -(self.grad_b(g, x, a, b) @ x.transpose(-1, -2))

    def grad_b(self, g, x, a, b):
        return Solve()(a.transpose(-1, -2), g)

    def samples(rng):
        yield {}, (rng.normal(size=(3, 3)) + 3 * np.eye(3), rng.normal(size=(3, 2)))
        yield {}, (rng.normal(size=(2, 2, 2)) + 3 * np.eye(2), rng.normal(size=(2, 1)))
        yield {}, (rng.normal(size=(2, 1, 3, 3)) + 3 * np.eye(3), rng.normal(size=(2, 3, 1)))  # each matrix with each right side
        yield {}, (rng.normal(size=(0, 2, 2)), rng.normal(size=(2, 1)))


# ---------------------------------------------------------------------------------------------------------------------
# on a card: flat arrays, one block a matrix. Nothing of a matrix must fit into shared memory, so n may be any number
# ---------------------------------------------------------------------------------------------------------------------
BLOCK = 2 if SIMULATED else 16     # columns that are factored at a time
COLUMNS = 16                       # right sides that a block solves for


def factor_cuda(lu, n):
    """Factor each of the matrices lu (..., n, n) in place, P A = L U: U on and above the diagonal, L below it (its diagonal
    is 1). Gives `order`: row i of P A is row order[i] of A; order[0] is -1 where a pivot is 0."""
    count = lu.size // (n * n) if n else 0
    order = empty(max(count * n, 1), np.int64, "cuda")
    _factor_cuda[count, threads_for(n * min(n, BLOCK))](flat(lu), order, n)
    return order


def solve_cuda(lu, order, b, x, lengths, plan, transposed=False, scale=1.0):
    """x = scale A^-1 b, or scale A^-T b, from what `factor_cuda` made of A; nan for a singular A. x is seen with `lengths`
    (items of the batch, n, m), and plan = plan_of(name, batch of A, batch of b) says which A and b an item has."""
    count, n, m = lengths
    width = threads_for(m, most=COLUMNS)
    count = count if x.size else 0
    room = empty(max(x.size, 1), x.dtype, "cuda")
    _solve_cuda[count * -(-m // width), max(width, threads_for(n * width))](
        flat(lu), order, flat(b), room, flat(x), on_card(plan), n, m, width, int(transposed), x.dtype.type(scale))


@cuda_function
def find_pivot(lu, at, k, n, best, where, t):
    """The row i >= k with the largest |lu[i, k]|, of several the first, into where[0], and that value into best[0]. Each
    thread looks at its own rows, then half of the threads at the finds of two, and so on. A nan is never the largest."""
    largest, row = lu.dtype.type(-1), n
    for i in range(k + t, n, cuda.blockDim.x):
        v = abs(lu[at + i * n + k])
        if v > largest:
            largest, row = v, i
    best[t], where[t] = largest, row
    cuda.syncthreads()
    step = cuda.blockDim.x // 2
    while step >= n - k:  # threads from there on have found nothing
        step //= 2
    while step > 0:
        if t < step:
            u, v = best[t], best[t + step]
            if v > u or (v == u and where[t + step] < where[t]):
                best[t], where[t] = v, where[t + step]
        cuda.syncthreads()
        step //= 2


@cuda_kernel("T[::1], int64[::1], int64")
def _factor_cuda(lu, order, n):
    """A block factors one matrix, BLOCK columns at a time, as `_factor` in `pagerank.py`:

        for each column k of the block: the pivot, by all threads; its row and row k change places (thread j, column j);
                                        rows below, as far as the block goes, -= lu[i, k] / pivot times row k
        the block's rows, right of it:  thread j has column j to itself and goes down it: they become U
        below and right of the block:   -= L @ U; thread j keeps the BLOCK numbers of U that stand above, and goes down
    """
    best = cuda.shared.array(THREADS, lu.dtype)
    where = cuda.shared.array(THREADS, np.int64)
    above = cuda.local.array(BLOCK, lu.dtype)
    t, threads, at = cuda.threadIdx.x, cuda.blockDim.x, cuda.blockIdx.x * n * n
    line = cuda.blockIdx.x * n
    for i in range(t, n, threads):
        order[line + i] = i
    singular = False
    for first in range(0, n, BLOCK):
        last = first + BLOCK if first + BLOCK < n else n
        for k in range(first, last):
            find_pivot(lu, at, k, n, best, where, t)
            pivot, size = where[0], best[0]
            singular = singular or size == lu.dtype.type(0)
            pivot = pivot if pivot < n else k  # nothing but nan
            for j in range(t, n, threads):
                lu[at + k * n + j], lu[at + pivot * n + j] = lu[at + pivot * n + j], lu[at + k * n + j]
            if t == 0:
                order[line + k], order[line + pivot] = order[line + pivot], order[line + k]
            cuda.syncthreads()
            scale = lu.dtype.type(1) / lu[at + k * n + k]
            for i in range(k + 1 + t, n, threads):
                lu[at + i * n + k] *= scale
            cuda.syncthreads()
            for i in range(k + 1 + t // BLOCK, n, (threads + BLOCK - 1) // BLOCK):
                j = k + 1 + t % BLOCK
                if j < last:
                    lu[at + i * n + j] -= lu[at + i * n + k] * lu[at + k * n + j]
            cuda.syncthreads()
        for j in range(last + t, n, threads):
            for i in range(first + 1, last):
                total = lu[at + i * n + j]
                for k in range(first, i):
                    total -= lu[at + i * n + k] * lu[at + k * n + j]
                lu[at + i * n + j] = total
        cuda.syncthreads()
        wide = threads
        while wide // 2 >= n - last and wide > 1:
            wide //= 2
        for j in range(last + t % wide, n, wide):
            for k in range(BLOCK):
                above[k] = lu[at + (first + k) * n + j]
            for i in range(last + t // wide, n, threads // wide):
                total = lu[at + i * n + j]
                for k in range(BLOCK):
                    total -= lu[at + i * n + first + k] * above[k]
                lu[at + i * n + j] = total
        cuda.syncthreads()
    if t == 0 and singular:
        order[line] = -1


@cuda_kernel("T[::1], int64[::1], T[::1], T[::1], T[::1], int64[:, ::1], int64, int64, int64, int64, T")
def _solve_cuda(lu, order, b, z, x, plan, n, m, width, transposed, scale):
    """A block solves for `width` columns of one item of the batch; thread t for column t % width, together with the others
    that have it. An element that is found, z[k], is taken out of all that it belongs to, which these threads share.

        A^-1 = U^-1 L^-1 P       z = P b; down through L, then up through U
        A^-T = P^T L^-T U^-T     z = b; down through U^T, then up through L^T; x = P^T z

    Both ways down the factor's element (i, k) lies at i down + k across.
    """
    t, tiles = cuda.threadIdx.x, (m + width - 1) // width
    item, column = cuda.blockIdx.x // tiles, cuda.blockIdx.x % tiles * width + t % width
    matrix = place(item, plan, 0)
    a, line, right, at = matrix * n * n, matrix * n, place(item, plan, 1) * n * m + column, item * n * m + column
    row, rows, end = t // width, cuda.blockDim.x // width, n if column < m else 0
    down, across = (1, n) if transposed != 0 else (n, 1)
    if order[line] < 0:  # all threads of the block see this
        for i in range(row, end, rows):
            x[at + i * m] = x.dtype.type(math.nan)
        return
    for i in range(row, end, rows):
        z[at + i * m] = scale * b[right + (i if transposed != 0 else order[line + i]) * m]
    cuda.syncthreads()
    for k in range(n):
        if column < m:
            found = z[at + k * m] / lu[a + k * n + k] if transposed != 0 else z[at + k * m]
            first = k + 1 + row
            for i in range(first, n, rows):
                z[at + i * m] -= lu[a + i * down + k * across] * found
        cuda.syncthreads()
    if transposed != 0:
        for k in range(row, end, rows):
            z[at + k * m] /= lu[a + k * n + k]
        cuda.syncthreads()
    for k in range(n - 1, -1, -1):
        if column < m:
            found = z[at + k * m] if transposed != 0 else z[at + k * m] / lu[a + k * n + k]
            if row == 0:
                x[at + (order[line + k] if transposed != 0 else k) * m] = found
            for i in range(row, k, rows):
                z[at + i * m] -= lu[a + i * down + k * across] * found
        cuda.syncthreads()
