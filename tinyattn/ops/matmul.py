r"""Matrix products: a @ b with batch axes, and the affine map x @ w^T + b of a linear layer.

No BLAS. NumPy's library keeps a thread pool of its own, and after a large product its threads go on spinning for a while on
the cores that our kernels want: a recurrent layer after `x @ W` by NumPy was 15 times slower. Here a product is a
loop nest like any other kernel, in the one pool that all kernels share; with `shared.tile` at its heart it takes the
time of a tuned BLAS on one core, and a product inside another kernel costs no call.

    for item in blocks of c:                  64 rows x 256 columns; the parallel loop
        for j in panels of the block:         a tile wide (64 float32)
            for k in stretches of 256:
                for i in tiles of 4 rows:     4 x 64 sums in registers, see `shared.tile`

Where rows of b are not contiguous (x @ w^T) it is copied first, which costs 1/M of the product.
"""
import math

import numpy as np
from numba import prange

from ..autograd import Op
from ..device import JIT, empty, kernel, launch
from .broadcast import ShapeError, broadcast
from .shared import product

ROWS, COLUMNS = 64, 256   # one block of the result, the unit of parallel work
GIGAFLOPS = {4: 200, 8: 100}  # a rough speed by item size, to tell small products from large ones
NO_BIAS = {"f": np.empty(0, np.float32), "d": np.empty(0, np.float64)}


class MatMul(Op):
    r"""c_ij = sum_k a_ik b_kj, over the last two axes; the axes before them are batch axes and broadcast."""
    tex = "{a} {b}"

    def cpu(self, a, b):
        if a.dtype != b.dtype:
            raise TypeError(f"{self.name}: expected a and b of one type, got {a.dtype} and {b.dtype}")
        if a.ndim < 2 or b.ndim < 2 or a.shape[-1] != b.shape[-2]:
            raise ShapeError(f"{self.name}: expected a (..., M, K) and b (..., K, N), got {a.shape} and {b.shape}")
        return matmul(a, b)

    def grad_a(self, g, c, a, b):
        return g @ b.transpose(-1, -2)

    def grad_b(self, g, c, a, b):
        if b.ndim == 2 and a.ndim > 2:  # one product over all rows, not one a batch and then a sum
            a, g = rows_of(a), rows_of(g)
        return a.transpose(-1, -2) @ g

    def cpu_grad(self, g, c, a, b):
        need_a, need_b = self.needs
        grad_a = matmul(g, b.swapaxes(-1, -2)) if need_a else None
        if need_b and b.ndim == 2 and a.ndim > 2:
            a, g = rows_of(a), rows_of(g)
        return grad_a, matmul(a.swapaxes(-1, -2), g) if need_b else None

    def samples(rng):
        for a, b in [((2, 3), (3, 4)), ((1, 1), (1, 1)), ((5, 2), (2, 1)), ((2, 3, 2), (2, 4)), ((2, 3), (3, 3, 2)),
                     ((2, 1, 3, 2), (3, 2, 2)), ((0, 3), (3, 2)), ((2, 0), (0, 2)), ((2, 3, 2), (2, 2, 0))]:
            yield {}, (rng.normal(size=a), rng.normal(size=b))
        yield {}, (rng.normal(size=(3, 2)).T, rng.normal(size=(2, 4, 3)).swapaxes(1, 2))


class Affine(Op):
    r"""y = x w^T + b: a linear layer as one node. x (..., K), w (N, K), b (N,) or None."""
    tex = "{x} {w}^{{T}} + {b}"

    def cpu(self, x, w, b):
        if x.dtype != w.dtype or (b is not None and b.dtype != w.dtype):
            raise TypeError(f"{self.name}: expected x, w and b of one type, got {x.dtype}, {w.dtype} and {None if b is None else b.dtype}")
        if w.ndim != 2 or x.ndim < 1 or x.shape[-1] != w.shape[1] or (b is not None and b.shape != w.shape[:1]):
            raise ShapeError(f"{self.name}: expected x (..., K), w (N, K) and b (N,), got {x.shape}, {w.shape} and "
                             f"{None if b is None else b.shape}")
        y = empty((*x.shape[:-1], w.shape[0]), x.dtype)
        matmul_into(rows_of(x), w.T, rows_of(y), b)
        return y

    def grad_x(self, g, y, x, w, b):
        return g @ w

    def grad_w(self, g, y, x, w, b):
        return rows_of(g).T @ rows_of(x)

    def grad_b(self, g, y, x, w, b):
        return g

    def cpu_grad(self, g, y, x, w, b):
        need_x, need_w, need_b = self.needs
        g = rows_of(g)
        return (matmul(g, w).reshape(x.shape) if need_x else None,
                matmul(g.T, rows_of(x)) if need_w else None,
                column_sums(g) if need_b else None)

    def samples(rng):
        for x, n in [((4, 3), 2), ((2, 3, 2), 3), ((3,), 2), ((1, 1), 1), ((0, 3), 2), ((2, 0), 2)]:
            yield {}, (rng.normal(size=x), rng.normal(size=(n, x[-1])), rng.normal(size=n))
        yield {}, (rng.normal(size=(4, 3)), rng.normal(size=(2, 3)), None)


# ---------------------------------------------------------------------------------------------------------------------
# arrays to arrays: for the ops above and inside others
# ---------------------------------------------------------------------------------------------------------------------
def matmul(a, b):
    """a (..., M, K) @ b (..., K, N) as a new array. Batch axes broadcast; nothing is repeated in memory."""
    if b.ndim == 2:
        out = empty((*a.shape[:-1], b.shape[1]), a.dtype)
        if a.ndim == 2:
            return matmul_into(a, b, out)
        matmul_into(rows_of(a), b, rows_of(out))
        return out
    batch = broadcast("matmul", a.shape[:-2], b.shape[:-2])
    out = empty((*batch, a.shape[-2], b.shape[-1]), a.dtype)
    if not JIT or a.dtype.kind != "f":
        return np.matmul(a, b, out=out)
    if b.strides[-1] != b.itemsize:
        b = np.ascontiguousarray(b)
    two = math.prod(batch[:-1]), batch[-1]
    a, b = _two_batch_axes(a, batch, two), _two_batch_axes(b, batch, two)
    rows, columns = -(-out.shape[-2] // ROWS), -(-out.shape[-1] // COLUMNS)
    items = two[0] * two[1] * rows * columns
    args = out.reshape(*two, *out.shape[-2:]), a, b, rows, columns, items
    launch(2 * out.size * a.shape[-1] / GIGAFLOPS[a.itemsize], _batched, args, _batched_parallel, args)
    return out


def rows_of(x):
    """x (..., N) as a matrix. (reshape(-1, N) does not know how many rows where N is 0.)"""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def _two_batch_axes(x, batch, two):
    """View x (..., M, N) with exactly two batch axes. An axis that is broadcast has stride 0. Copies only if it must."""
    full = np.broadcast_to(x, (*batch, *x.shape[-2:]))
    return full if len(batch) == 2 else full.reshape(*two, *x.shape[-2:])


def matmul_into(a, b, out, bias=None):
    """out = a (M, K) @ b (K, N) (+ bias (N,)), for 2-D arrays of one dtype with any strides; rows of out lie contiguous."""
    if not JIT or out.dtype.kind != "f":
        np.matmul(a, b, out=out)
        if bias is not None:
            out += bias
        return out
    (m, n), size = out.shape, out.itemsize
    if b.strides[1] != size or (m >= 256 and b.strides[0] % 1024 == 0):
        copy = empty((b.shape[0], n + 16), b.dtype)[:, :n]  # not a power of two: those rows would fall on one cache line
        copy[...] = b
        b = copy
    bias = NO_BIAS[out.dtype.char] if bias is None else bias
    args = out, a, b, bias
    launch(2 * m * n * a.shape[1] / GIGAFLOPS[size], _blocks, args, _blocks_parallel, args)
    return out


def column_sums(x):
    """The sums of the columns of x (M, N)."""
    out = empty(x.shape[1:], x.dtype)
    launch(x.size / 8, _sums, (x, out), _sums_parallel, (x, out))
    return out


# ---------------------------------------------------------------------------------------------------------------------
# the loops
# ---------------------------------------------------------------------------------------------------------------------
@kernel
def _block(c, a, b, bias, i, j):
    """One block of c. The steps of 1 make the three views of one type for Numba, however they came, so this is compiled once."""
    part = c[i:i + ROWS:1, j:j + COLUMNS:1]
    if len(bias):
        for r in range(part.shape[0]):
            part[r] = bias[j:j + COLUMNS]
    product(part, a[i:i + ROWS:1, ::1], b[::1, j:j + COLUMNS:1], len(bias) > 0)


@kernel
def _blocks(c, a, b, bias):
    for i in range(0, c.shape[0], ROWS):
        for j in range(0, c.shape[1], COLUMNS):
            _block(c, a, b, bias, i, j)


@kernel(parallel=True)
def _blocks_parallel(c, a, b, bias):
    columns = -(-c.shape[1] // COLUMNS)
    for item in prange(-(-c.shape[0] // ROWS) * columns):
        _block(c, a, b, bias, item // columns * ROWS, item % columns * COLUMNS)


@kernel
def _batch_block(c, a, b, rows, columns, item):
    """Item number p, q, row of blocks, column of blocks, in this order."""
    item, j = item // columns, item % columns * COLUMNS
    item, i = item // rows, item % rows * ROWS
    p, q = item // c.shape[1], item % c.shape[1]
    product(c[p, q, i:i + ROWS:1, j:j + COLUMNS:1], a[p, q, i:i + ROWS:1, ::1], b[p, q, ::1, j:j + COLUMNS:1], False)


@kernel
def _batched(c, a, b, rows, columns, items):
    for item in range(items):
        _batch_block(c, a, b, rows, columns, item)


@kernel(parallel=True)
def _batched_parallel(c, a, b, rows, columns, items):
    for item in prange(items):
        _batch_block(c, a, b, rows, columns, item)


@kernel
def _sum_columns(x, out, j, end):
    """Sums of columns j to end: 64 rows at a time, so that rounding errors do not pile up."""
    part = np.zeros(end - j, x.dtype)
    for n in range(j, end):
        out[n] = 0
    for i in range(0, x.shape[0], 64):
        for n in range(len(part)):
            part[n] = 0
        for r in range(i, min(i + 64, x.shape[0])):
            for n in range(len(part)):
                part[n] += x[r, j + n]
        for n in range(len(part)):
            out[j + n] += part[n]


@kernel
def _sums(x, out):
    for j in range(0, x.shape[1], COLUMNS):
        _sum_columns(x, out, j, min(j + COLUMNS, x.shape[1]))


@kernel(parallel=True)
def _sums_parallel(x, out):
    for item in prange(-(-x.shape[1] // COLUMNS)):
        _sum_columns(x, out, item * COLUMNS, min((item + 1) * COLUMNS, x.shape[1]))
