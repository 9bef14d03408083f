r"""Matrix products: a @ b with batch axes, and the affine map x @ w^T + b of a linear layer.

No BLAS. NumPy's library keeps a thread pool of its own, and after a large product its threads go on spinning for a while on
the cores that our kernels want: a recurrent layer after `x @ W` by NumPy was 15 times slower. Here a product is a
loop nest like any other kernel, in the one pool that all kernels share; with `shared.tile` at its heart it takes the
time of a tuned BLAS on one core, and a product inside another kernel costs no call.

    for panel in panels of b:                 a tile wide (64 float32), copied so that it lies together in memory
    for block in blocks of c:                 64 rows x 4 panels; the parallel loop
        for k in stretches of 128:
            for panel in panels of the block:
                for i in tiles of 4 rows:     4 x 64 sums in registers, see `shared.product` and `shared.tile`

The copy is what makes x @ w^T as fast as x @ w. For few rows it would cost more than it gives, and is made only if it must.
A vector times a matrix, and a column times a row, have loops of their own, `_vectors` and `_outers`: a tile would compute
four rows for one, or 64 columns. The kernels for a card stand in `matmul_cuda.py`.
"""
import math

import numpy as np
from numba import prange
from numpy.lib.stride_tricks import as_strided

from ..autograd import Op
from ..cuda import reshaped
from ..device import JIT, Entries, Shortcuts, empty, kernel, launch
from .broadcast import ShapeError, broadcast
from .matmul_cuda import matmul_cuda
from .shared import TILE_BYTES, TILE_ROWS, pack, pack_panel, panel_space, panels_of, product, tile

ROWS, PANELS = 64, 4  # one block of the result, the unit of parallel work: 64 rows, 4 panels of b
COLUMNS = 256         # the unit of work of a sum over rows
GIGAFLOPS = {4: 200, 8: 100}  # a rough speed by item size, to tell small products from large ones
PACKS = 96            # rows of the result from which b is packed; for fewer a copy would cost more than it gives
SMALL = 1_000_000     # multiplications that one core does before another would be awake
TINY = 150_000        # multiplications that take about a microsecond; looking at the arrays would take as long
NO_BIAS = {"f": np.empty(0, np.float32), "d": np.empty(0, np.float64)}


class MatMul(Op):
    r"""c_ij = sum_k a_ik b_kj, over the last two axes; the axes before them are batch axes and broadcast."""
    name = "matmul"
    tex = "{a} {b}"

    def cpu(self, a, b):
        kind = a.dtype
        if a.ndim == 2 and b.ndim == 2 and kind is b.dtype:
            (m, k), (_, n) = a.shape, b.shape
            if m * k * n <= TINY:
                c = np.empty((m, n), kind)
                if _TINY[kind](c, a, b):
                    return c
        self.check(a, b)
        return matmul(a, b)

    def cuda(self, a, b):
        self.check(a, b)
        return matmul_cuda(a, b)

    def check(self, a, b):
        if a.dtype is not b.dtype and a.dtype != b.dtype:
            raise TypeError(f"{self.name}: expected a and b of one type, got {a.dtype} and {b.dtype}")
        if a.ndim < 2 or b.ndim < 2 or a.shape[-1] != b.shape[-2]:
            raise ShapeError(f"{self.name}: expected a (..., M, K) and b (..., K, N), got {a.shape} and {b.shape}")

    def grad_a(self, g, c, a, b):
        return g @ b.transpose(-1, -2)

    def grad_b(self, g, c, a, b):
        if b.ndim == 2 and a.ndim > 2:  # one product over all rows, not one a batch and then a sum
            a, g = rows_of(a), rows_of(g)
        return a.transpose(-1, -2) @ g

    def cpu_grad(self, g, c, a, b):
        need_a, need_b = self.needs
        kind = g.dtype
        alike = a.ndim == 2 and b.ndim == 2 and a.dtype is kind and b.dtype is kind
        if need_a and need_b and alike and a.size * b.shape[1] <= TINY:
            to_a, to_b = np.empty(a.shape, kind), np.empty(b.shape, kind)
            if _TINY_GRADS[kind](to_a, to_b, g, a, b, _ROOM[kind]):
                return to_a, to_b
        grad_a = matmul(g, b.T if b.ndim == 2 else b.swapaxes(-1, -2)) if need_a else None
        if not need_b:
            return grad_a, None
        if b.ndim == 2 and a.ndim > 2:
            a, g = rows_of(a), rows_of(g)
        if b.strides[-2] < b.strides[-1]:  # a transpose, and so is its gradient: what was transposed gets its own layout
            return grad_a, matmul(g.swapaxes(-1, -2), a).swapaxes(-1, -2)
        return grad_a, matmul(a.T if a.ndim == 2 else a.swapaxes(-1, -2), g)

    def cuda_grad(self, g, c, a, b):
        need_a, need_b = self.needs
        grad_a = matmul_cuda(g, b, turned_b=True) if need_a else None
        if need_b and b.ndim == 2 and a.ndim > 2:
            a, g = _rows_cuda(a), _rows_cuda(g)
        return grad_a, matmul_cuda(a, g, turned_a=True) if need_b else None

    def samples(rng):
        for a, b in [((2, 3), (3, 4)), ((1, 1), (1, 1)), ((5, 2), (2, 1)), ((2, 3, 2), (2, 4)), ((2, 3), (3, 3, 2)),
                     ((2, 1, 3, 2), (3, 2, 2)), ((0, 3), (3, 2)), ((2, 0), (0, 2)), ((2, 3, 2), (2, 2, 0))]:
            yield {}, (rng.normal(size=a), rng.normal(size=b))
        yield {}, (rng.normal(size=(3, 2)).T, rng.normal(size=(2, 4, 3)).swapaxes(1, 2))


class Affine(Op):
    r"""y = x w^T + b: a linear layer as one node. x (..., K), w (N, K), b (N,) or None."""
    tex = "{x} {w}^{{T}} + {b}"

    def cpu(self, x, w, b):
        self.check(x, w, b)
        y = empty((*x.shape[:-1], w.shape[0]), x.dtype)
        matmul_into(rows_of(x), w.T, rows_of(y), b)
        return y

    def cuda(self, x, w, b):
        self.check(x, w, b)
        return reshaped(matmul_cuda(_rows_cuda(x), w, turned_b=True, bias=b), (*x.shape[:-1], w.shape[0]))

    def check(self, x, w, b):
        if x.dtype != w.dtype or (b is not None and b.dtype != w.dtype):
            raise TypeError(f"{self.name}: expected x, w and b of one type, got {x.dtype}, {w.dtype} and "
                            f"{None if b is None else b.dtype}")
        if w.ndim != 2 or x.ndim < 1 or x.shape[-1] != w.shape[1] or (b is not None and b.shape != w.shape[:1]):
            raise ShapeError(f"{self.name}: expected x (..., K), w (N, K) and b (N,), got {x.shape}, {w.shape} and "
                             f"{None if b is None else b.shape}")

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

    def cuda_grad(self, g, y, x, w, b):
        need_x, need_w, need_b = self.needs
        rows = _rows_cuda(g)
        return (reshaped(matmul_cuda(rows, w), x.shape) if need_x else None,
                matmul_cuda(rows, _rows_cuda(x), turned_a=True) if need_w else None,
                g if need_b else None)  # the walk sums it up

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
        if a.ndim == 2:
            return _of_matrices(a, b)
        out = empty((*a.shape[:-1], b.shape[1]), a.dtype)
        matmul_into(rows_of(a), b, rows_of(out))
        return out
    batch = a.shape[:-2]
    if batch != b.shape[:-2]:
        batch = broadcast("matmul", batch, b.shape[:-2])
    out = empty((*batch, a.shape[-2], b.shape[-1]), a.dtype)
    if not JIT or a.dtype.kind != "f":
        with np.errstate(all="ignore"):
            return np.matmul(a, b, out=out)
    if 1 in (a.shape[-2], a.shape[-1], b.shape[-1]) and _thin(a, b, out):
        return out
    two = math.prod(batch[:-1]), batch[-1]
    (a, turned_a), (b, turned_b) = _upright(_two_batch_axes(a, batch, two)), _upright(_two_batch_axes(b, batch, two))
    m, n = out.shape[-2:]
    rows = max(m, 1) if two[0] * two[1] >= 16 else ROWS  # a long batch is work enough to share out
    args = out.reshape(*two, m, n), a, turned_a, b, turned_b, rows
    k = a.shape[2] if turned_a else a.shape[3]
    launch(2 * out.size * k / GIGAFLOPS[out.itemsize], _batched, args, _batched_parallel, args)
    return out


def _of_matrices(a, b):
    """a (M, K) @ b (K, N). Where it is small, looking at the arrays takes as long as the product, so little is looked at."""
    (m, k), n, kind = a.shape, b.shape[1], a.dtype
    bias = NO_BIAS.get(kind.char)
    if not JIT or m * n * k > SMALL or bias is None or kind is not b.dtype:
        return matmul_into(a, b, empty((m, n), kind))
    if m == 1 or n == 1:
        out = empty((m, n), kind)
        if _thin(a, b, out):
            return out
    turned_a, turned_b = not a.flags.c_contiguous, not b.flags.c_contiguous
    if turned_a:
        a = a.T if a.flags.f_contiguous else np.ascontiguousarray(a.T)
    if turned_b:
        b = b.T if b.flags.f_contiguous else np.ascontiguousarray(b.T)
    out = np.empty((m, n), kind)
    _BLOCKS[kind](out, a, turned_a, b, turned_b, m >= PACKS or turned_b, bias)
    return out


def matmul_into(a, b, out, bias=None):
    """out = a (M, K) @ b (K, N) (+ bias (N,)), for 2-D arrays of one dtype with any strides; rows of out lie contiguous."""
    if not JIT or out.dtype.kind != "f":
        with np.errstate(all="ignore"):
            np.matmul(a, b, out=out)
            if bias is not None:
                out += bias
        return out
    m, n = out.shape
    if (m == 1 or n == 1) and _thin(a, b, out, bias):
        return out
    nanoseconds = 2 * m * n * a.shape[1] / GIGAFLOPS[out.itemsize]
    packed = m >= PACKS or b.strides[1] != b.itemsize
    a, turned_a = _upright(a)
    b, turned_b = _upright(b)
    args = out, a, turned_a, b, turned_b, packed, NO_BIAS[out.dtype.char] if bias is None else np.ascontiguousarray(bias)
    launch(nanoseconds, _blocks, args, _blocks_parallel, args)
    return out


def _thin(a, b, out, bias=None):
    """out = a @ b (+ bias) where each product of the batch is a vector times a matrix, or a column times a row, and all lie
    as their loops want them. Otherwise nothing is done, and False."""
    (m, k), n, count, kind = a.shape[-2:], b.shape[-1], math.prod(out.shape[:-2]), out.dtype
    if a.shape[:-2] != b.shape[:-2] or a.dtype != kind or b.dtype != kind or not out.flags.carray:
        return False
    if m != 1 and n != 1:  # k is
        if a.flags.carray and b.flags.carray:
            args = out.reshape(count, m, n), a.reshape(count, m), b.reshape(count, n)
            launch(out.size / 8, _OUTERS[kind], args, _outers_parallel, args)
            return True
        return False
    vector, matrix = (a, b) if m == 1 else (b.swapaxes(-1, -2), a.swapaxes(-1, -2))
    turned = not matrix.flags.c_contiguous
    matrix = matrix.swapaxes(-1, -2) if turned else matrix
    if not matrix.flags.carray:
        return False
    vector = vector if vector.flags.carray else vector.copy()
    bias = NO_BIAS[kind.char] if bias is None else np.ascontiguousarray(bias) if m == 1 else bias.repeat(m)
    args = out.reshape(count, m * n), vector.reshape(count, k), matrix.reshape(count, *matrix.shape[-2:]), turned, bias
    launch(matrix.size / 8, _VECTORS[kind], args, _vectors_parallel, args)
    return True


def column_sums(x):
    """The sums of the columns of x (M, N), rows contiguous."""
    out = empty(x.shape[1:], x.dtype)
    launch(x.size / 8, _sums, (x, out), _sums_parallel, (x, out))
    return out


def rows_of(x):
    """x (..., N) as a matrix. (reshape(-1, N) does not know how many rows where N is 0.)"""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def _rows_cuda(x):
    """`rows_of` on a card."""
    return reshaped(x, (math.prod(x.shape[:-1]), x.shape[-1]))


def _upright(x):
    """x, or its transpose and True if it is the columns that lie contiguous. So a kernel meets one kind of array, and is
    compiled once for x @ w and x @ w^T."""
    if not x.flags.writeable:  # for Numba another type, so all kernels would be compiled again
        x = x.copy()
    down, right = x.strides[-2:]
    return (x.swapaxes(-1, -2), True) if down < right else (x, False)


def _two_batch_axes(x, batch, two):
    """View x (..., M, N) with exactly two batch axes. An axis that is broadcast has stride 0. Copies only if it must."""
    lead, steps = x.shape[:-2], x.strides[:-2]
    if lead != batch:
        steps = (0,) * (len(batch) - len(lead)) + tuple([0 if n == 1 else s for n, s in zip(lead, steps, strict=True)])
        x = as_strided(x, (*batch, *x.shape[-2:]), (*steps, *x.strides[-2:]))
    return x if len(batch) == 2 else x.reshape(*two, *x.shape[-2:])


# ---------------------------------------------------------------------------------------------------------------------
# the loops. Steps of 1, as in x[::1, ::1], are for Numba: all such views have one type, so what takes them is compiled once
# ---------------------------------------------------------------------------------------------------------------------
@kernel
def _as_meant(x, turned):
    """Undo `_upright`."""
    return x.T[::1, ::1] if turned else x[::1, ::1]


@kernel
def _block(c, a, b, packed, bias, i, p):
    """The block of c in rows i to i + ROWS and panels p to p + PANELS. `b` is packed (see `shared.pack`) or a (K,N) matrix."""
    depth, width = a.shape[1], TILE_BYTES // c.itemsize
    j, end = p * width, (p + PANELS) * width
    part = c[i:i + ROWS:1, j:end:1]
    if len(bias):  # a column of ones times the row of biases is the fastest way to write it
        product(part, np.ones((part.shape[0], 1), c.dtype), bias[j:end].reshape(1, -1), False)
    of_b = b[p * depth:(p + PANELS) * depth:1, ::1] if packed else b[::1, j:end:1]
    product(part, a[i:i + ROWS:1, ::1], of_b, len(bias) > 0)


@kernel
def _blocks(c, a, turned_a, b, turned_b, packed, bias):
    a, b = _as_meant(a, turned_a), _as_meant(b, turned_b)
    panels = panels_of(b)
    if packed:
        b = pack(b)
    for i in range(0, c.shape[0], ROWS):
        for p in range(0, panels, PANELS):
            _block(c, a, b, packed, bias, i, p)


_BLOCKS = Entries(_blocks, "T[:, ::1], T[:, ::1], boolean, T[:, ::1], boolean, boolean, T[::1]")


@kernel(plain=True)
def _tiny(c, a, b):
    """c = a @ b, of a few tiles: all of b is near already, so there are no blocks and nothing is copied."""
    if a.shape[1] != b.shape[0] or not (_lies(c) and _lies(a) and _lies(b)):
        return False
    _tiles(c, a, b, False)
    return True


@kernel(plain=True)
def _tiny_grads(to_a, to_b, g, a, b, room):
    """Both gradients of a product: to_a = g @ b^T, to_b = a^T @ g. The panels of b^T stand in `room`."""
    turned, space = b.T[::1, ::1], room[::1, ::1]
    panels = panels_of(turned)
    if panels * b.shape[1] > len(room) or not (_lies(g) and _lies(a) and _lies(b)):
        return False
    for p in range(panels):
        pack_panel(space, turned, p)
    _tiles(to_a, g, space, True)
    _tiles(to_b, a.T, g, False)
    return True


@kernel(plain=True)
def _lies(x):
    """Do the rows of x lie one after the other? And is it neither a vector nor a column, which have loops of their own?"""
    return x.shape[0] > 1 and x.shape[1] > 1 and x.strides == (x.shape[1] * x.itemsize, x.itemsize)


@kernel(plain=True)
def _tiles(c, a, b, packed):
    """c = a @ b, tile by tile. `packed`: the panels of b stand one below the other."""
    depth, width = a.shape[1], TILE_BYTES // c.itemsize
    for p in range(-(-c.shape[1] // width)):
        for i in range(0, c.shape[0], TILE_ROWS):
            tile(c, i, p * width, a, i, 0, b, p * depth if packed else 0, 0 if packed else p * width,
                 min(TILE_ROWS, c.shape[0] - i), min(width, c.shape[1] - p * width), depth, False)


def _room(kind):
    """Memory for the panels of a small matrix, which begins on a cache line."""
    width, lines = TILE_BYTES // np.dtype(kind).itemsize, np.empty((257, TILE_BYTES), np.uint8).reshape(-1)
    skip = -lines.ctypes.data % 64
    return lines[skip:skip + 256 * TILE_BYTES].view(kind).reshape(256, width)


_ROOM = {np.dtype(kind): _room(kind) for kind in "fd"}  # one for all threads: while a kernel runs, Python's lock is held
_TINY = Shortcuts(_tiny, "T[:, ::1], T[:, ::1], T[:, ::1]")
_TINY_GRADS = Shortcuts(_tiny_grads, "T[:, ::1], T[:, ::1], T[:, ::1], T[:, ::1], T[:, ::1], T[:, ::1]")


@kernel(parallel=True)
def _blocks_parallel(c, a, turned_a, b, turned_b, packed, bias):
    a, b = _as_meant(a, turned_a), _as_meant(b, turned_b)
    panels = panels_of(b)
    room = panel_space(b if packed else b[:0:1, ::1])
    for p in prange(panels if packed else 0):
        pack_panel(room, b, p)
    ready = room if packed else b
    wide = -(-panels // PANELS)
    for item in prange(-(-c.shape[0] // ROWS) * wide):
        _block(c, a, ready, packed, bias, item // wide * ROWS, item % wide * PANELS)


@kernel
def _batch_item(c, a, turned_a, b, turned_b, rows, item):
    """Some rows of one product of the batch. Each item packs its own b."""
    per = -(-c.shape[2] // rows)
    item, i = item // per, item % per * rows
    p, q = item // c.shape[1], item % c.shape[1]
    left, right = _as_meant(a[p, q, ::1, ::1], turned_a), _as_meant(b[p, q, ::1, ::1], turned_b)
    product(c[p, q, i:i + rows:1, ::1], left[i:i + rows:1, ::1], pack(right), False)


@kernel
def _batched(c, a, turned_a, b, turned_b, rows):
    for item in range(c.shape[0] * c.shape[1] * -(-c.shape[2] // rows)):
        _batch_item(c, a, turned_a, b, turned_b, rows, item)


@kernel(parallel=True)
def _batched_parallel(c, a, turned_a, b, turned_b, rows):
    for item in prange(c.shape[0] * c.shape[1] * -(-c.shape[2] // rows)):
        _batch_item(c, a, turned_a, b, turned_b, rows, item)


@kernel(reduces=True)
def _dot(x, y):
    total = x.dtype.type(0)
    for k in range(len(x)):
        total += x[k] * y[k]
    return total


@kernel
def _add_dots(y, x, rows, j):
    """y_i += x . rows[j + i]"""
    for i in range(len(y)):
        y[i] += _dot(x, rows[j + i])


@kernel
def _add_rows(y, x, rows, j):
    """y += sum_k x_k rows[k, j:], 4 rows at a time, so that y is read and written a quarter as often."""
    for k in range(0, len(x) - 3, 4):
        q, r, s, t = x[k], x[k + 1], x[k + 2], x[k + 3]
        first, second, third, fourth = rows[k, j:], rows[k + 1, j:], rows[k + 2, j:], rows[k + 3, j:]
        for i in range(len(y)):
            y[i] = y[i] + q * first[i] + r * second[i] + s * third[i] + t * fourth[i]
    for k in range(len(x) - len(x) % 4, len(x)):
        q, row = x[k], rows[k, j:]
        for i in range(len(y)):
            y[i] += q * row[i]


@kernel
def _vector(y, x, matrix, turned, bias, item):
    """Some columns of one product of the batch, y[p] = x[p] @ matrix[p] + bias, where the matrix is given by its rows or, if
    `turned`, by its columns."""
    per = -(-y.shape[1] // COLUMNS)
    p, j = item // per, item % per * COLUMNS
    part, zero = y[p, j:j + COLUMNS], y.dtype.type(0)
    for i in range(len(part)):
        part[i] = bias[j + i] if len(bias) else zero
    if turned:
        _add_dots(part, x[p], matrix[p], j)
    else:
        _add_rows(part, x[p], matrix[p], j)


@kernel
def _vectors(y, x, matrix, turned, bias):
    for item in range(len(y) * -(-y.shape[1] // COLUMNS)):
        _vector(y, x, matrix, turned, bias, item)


_VECTORS = Entries(_vectors, "T[:, ::1], T[:, ::1], T[:, :, ::1], boolean, T[::1]")


@kernel(parallel=True)
def _vectors_parallel(y, x, matrix, turned, bias):
    for item in prange(len(y) * -(-y.shape[1] // COLUMNS)):
        _vector(y, x, matrix, turned, bias, item)


@kernel
def _outer(c, a, b, p):
    """c[p] = the column a[p] times the row b[p]."""
    for i in range(c.shape[1]):
        row, x, of = c[p, i], a[p, i], b[p]
        for j in range(len(row)):
            row[j] = x * of[j]


@kernel
def _outers(c, a, b):
    for p in range(len(c)):
        _outer(c, a, b, p)


_OUTERS = Entries(_outers, "T[:, :, ::1], T[:, ::1], T[:, ::1]")


@kernel(parallel=True)
def _outers_parallel(c, a, b):
    for p in prange(len(c)):
        _outer(c, a, b, p)


@kernel
def _sum_columns(x, out, j, end):
    """Sums of columns j to end: 64 rows at a time, so that rounding errors do not pile up; of these 4 at a time, so that
    the sums are read and written a quarter as often."""
    part, total = np.empty(end - j, x.dtype), out[j:end]
    total[:] = 0
    for i in range(0, x.shape[0], 64):
        part[:] = 0
        last = min(i + 64, x.shape[0])
        for r in range(i, last - 3, 4):
            first, second, third, fourth = x[r, j:end], x[r + 1, j:end], x[r + 2, j:end], x[r + 3, j:end]
            for n in range(len(part)):
                part[n] += (first[n] + second[n]) + (third[n] + fourth[n])
        for r in range(last - (last - i) % 4, last):
            row = x[r, j:end]
            for n in range(len(part)):
                part[n] += row[n]
        for n in range(len(part)):
            total[n] += part[n]


@kernel
def _sums(x, out):
    for j in range(0, x.shape[1], COLUMNS):
        _sum_columns(x, out, j, min(j + COLUMNS, x.shape[1]))


@kernel(parallel=True)
def _sums_parallel(x, out):
    for item in prange(-(-x.shape[1] // COLUMNS)):
        _sum_columns(x, out, item * COLUMNS, min((item + 1) * COLUMNS, x.shape[1]))
