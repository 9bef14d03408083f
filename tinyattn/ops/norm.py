r"""Layer normalisation: every row is shifted to mean 0 and scaled to variance 1 (Ba, Kiros & Hinton 2016).

    mu = mean_d x_d      v = mean_d (x_d - mu)^2      y_d = (x_d - mu) / sqrt(v + eps) * weight_d + bias_d
"""
from functools import lru_cache

import numpy as np
from numba import prange

from ..autograd import Op
from ..cuda import SIMULATED, THREADS, cuda, cuda_kernel, flat
from ..cuda import sqrt as cuda_sqrt
from ..cuda.rows import block_sum, grid_of_rows
from ..device import empty, kernel, launch
from .broadcast import ShapeError
from .shared import first_row, row_sum
from .softmax import check_float, matrix

CHUNKS = 32


@lru_cache(maxsize=256)
def _constant(value, n, dtype):
    row = np.full(n, value, dtype)
    row.flags.writeable = False
    return row


class LayerNorm(Op):
    r"""y = (x - mean) / sqrt(variance + eps) * weight + bias, over the last axis.

    x (..., D); weight and bias (D,), either may be left out. The variance is that of the D elements (divided by D).
    """
    tex = r"\mathrm{{layernorm}}({x})"

    def __init__(self, eps=1e-5):
        self.eps = eps

    def _check(self, x, weight, bias):
        check_float(self.name, x)
        if x.ndim == 0:
            raise ShapeError(f"{self.name}: expected x of shape (..., D), got a single number")
        n = x.shape[-1]
        for name, p in (("weight", weight), ("bias", bias)):
            if p is not None and p.shape != (n,):
                raise ShapeError(f"{self.name}: x of shape (..., D) = {x.shape} needs a {name} of shape (D,) = ({n},), "
                                 f"got {p.shape}")
            if p is not None and p.dtype != x.dtype:
                raise TypeError(f"{self.name}: x is {x.dtype} but {name} is {p.dtype}")
        return n

    def cpu(self, x, weight=None, bias=None):
        n, rows = self._check(x, weight, bias), matrix(x)
        y, mean, rstd = empty(x.shape, x.dtype), empty(len(rows), x.dtype), empty(len(rows), x.dtype)
        w = _constant(1, n, x.dtype) if weight is None else weight.ravel()
        b = _constant(0, n, x.dtype) if bias is None else bias.ravel()
        args = (rows, w, b, float(self.eps), y.reshape(rows.shape), mean, rstd)
        launch(x.size * 0.5, _layer_norm, (*args, 0, len(rows)), _layer_norm_chunks, args)
        if self.recorded:
            self.saved = mean, rstd
        return y

    def cpu_grad(self, g, y, x, weight=None, bias=None):
        mean, rstd = self.saved
        rows, n = matrix(x), x.shape[-1]
        dx = empty(x.shape, x.dtype)
        dw = np.zeros((CHUNKS, 2, n), x.dtype)  # each chunk's share of the gradients of weight and bias
        w = _constant(1, n, x.dtype) if weight is None else weight.ravel()
        args = (matrix(g), rows, w, mean, rstd, dx.reshape(rows.shape), dw)
        launch(x.size * 0.6, _layer_norm_grad, (*args, 0, CHUNKS), _layer_norm_grad_chunks, args)
        dw = dw.sum(axis=0)
        return (dx, dw[0].copy(), dw[1].copy())[:len(self.needs)]

    def cuda(self, x, weight=None, bias=None):
        n = self._check(x, weight, bias)
        y, mean, rstd = (empty(shape, x.dtype, "cuda") for shape in (x.shape, x.shape[:-1], x.shape[:-1]))
        (_, threads), _ = grid_of_rows(1, n, 1)
        _layer_norm_cuda[x.size // max(n, 1), threads](
            flat(x), flat(x if weight is None else weight), int(weight is not None), flat(x if bias is None else bias),
            int(bias is not None), x.dtype.type(self.eps), flat(y), flat(mean), flat(rstd), n)
        if self.recorded:
            self.saved = mean, rstd
        return y

    def cuda_grad(self, g, y, x, weight=None, bias=None):
        mean, rstd = map(flat, self.saved)
        dx, n = None, x.shape[-1]
        rows = x.size // max(n, 1)
        if self.needs[0]:
            dx = empty(x.shape, x.dtype, "cuda")
            (_, threads), _ = grid_of_rows(1, n, 1)
            _layer_norm_grad_cuda[rows, threads](flat(g), flat(x), flat(x if weight is None else weight),
                                                 int(weight is not None), mean, rstd, flat(dx), n)
        if not any(self.needs[1:]):
            return (dx, None, None)[:len(self.needs)]
        tiles = -(-n // WIDE)
        chunks = min(MOST_CHUNKS, -(-rows // CHUNK_ROWS)) or 1
        parts, dw, db = (empty(shape, x.dtype, "cuda") for shape in ((2, chunks, n), (n,), (n,)))
        _column_parts_cuda[tiles * chunks, COLUMN_THREADS](flat(g), flat(x), mean, rstd, flat(parts), rows, n, chunks)
        _add_parts_cuda.each(n)(flat(parts), flat(dw), flat(db), chunks)
        return tuple(d if need else None for d, need in zip((dx, dw, db), self.needs, strict=False))

    def composed(self, x, weight=None, bias=None):
        away = x - x.mean(axis=-1, keepdims=True)
        y = away / ((away * away).mean(axis=-1, keepdims=True) + self.eps).sqrt()
        y = y if weight is None else y * weight
        return y if bias is None else y + bias

    def samples(rng):
        """With and without weight and bias, one row, one element, none, a large offset, a constant row."""
        for shape in [(2, 3), (2, 2, 5), (4,), (0, 3)]:
            x, n = rng.normal(size=shape), shape[-1]
            yield {}, (x,)
            yield {}, (x, rng.normal(size=n))
            yield {"eps": 0.1}, (x, rng.normal(size=n), rng.normal(size=n))
        yield {}, (rng.normal(size=(2, 4)), None, rng.normal(size=4))
        yield {"eps": 0.1}, (rng.normal(size=(2, 1)), rng.normal(size=1), rng.normal(size=1))
        yield {}, (rng.normal(size=(2, 4)) + 1e3, rng.normal(size=4), rng.normal(size=4))
        yield {"eps": 0.1}, (np.ones((2, 3)), rng.normal(size=3), rng.normal(size=3))


# ---------------------------------------------------------------------------------------------------------------------
# the loops, over the rows of x (R, D)
# ---------------------------------------------------------------------------------------------------------------------
@kernel
def _square(x, mu):
    return (x - mu) * (x - mu)


@kernel
def _standard(x, mu, r):
    return (x - mu) * r


@kernel(reduces=True)
def _sum_of_squares(x, i, mu):
    """sum_d (x[i, d] - mu)^2"""
    total = x.dtype.type(0)
    for d in range(x.shape[1]):
        total += _square(x[i, d], mu)
    return total


@kernel(reduces=True)
def _two_sums(g, weight, x, i, mu, r):
    """sum_d u and sum_d u h, with u = g[i, d] weight[d] and h = (x[i, d] - mu) r."""
    a, b = x.dtype.type(0), x.dtype.type(0)  # the arithmetic around the sums stays as it is written: see shared.py
    for d in range(x.shape[1]):
        u = g[i, d] * weight[d]
        a += u
        b += u * _standard(x[i, d], mu, r)
    return a, b


@kernel
def _layer_norm(x, weight, bias, eps, y, mean, rstd, first, last):
    """For each row i: its mean; the mean square of what is left; then y[i, d] from both. Mean and 1 / deviation are kept."""
    n = x.shape[1]
    for i in range(first, last):
        mu = x.dtype.type(row_sum(x, i) / n)
        r = x.dtype.type(1 / np.sqrt(_sum_of_squares(x, i, mu) / n + eps))
        for d in range(n):
            y[i, d] = _standard(x[i, d], mu, r) * weight[d] + bias[d]
        mean[i] = mu
        rstd[i] = r


@kernel(parallel=True)
def _layer_norm_chunks(x, weight, bias, eps, y, mean, rstd):
    for c in prange(CHUNKS):
        _layer_norm(x, weight, bias, eps, y, mean, rstd, first_row(c, CHUNKS, len(x)), first_row(c + 1, CHUNKS, len(x)))


@kernel
def _layer_norm_grad(g, x, weight, mean, rstd, dx, dw, begin, end):
    """For each chunk of rows, each row i of it, with h = (x[i] - mean) rstd and u = g[i] * weight:

    dx[i, d] = rstd (u_d - mean_d(u) - h_d mean_d(u h));    dw[chunk, 0, d] += g[i, d] h_d;    dw[chunk, 1, d] += g[i, d]
    """
    n = x.shape[1]
    for c in range(begin, end):
        for i in range(first_row(c, CHUNKS, len(x)), first_row(c + 1, CHUNKS, len(x))):
            mu, r = mean[i], rstd[i]
            a, b = _two_sums(g, weight, x, i, mu, r)
            a, b = x.dtype.type(a / n), x.dtype.type(b / n)
            for d in range(n):
                h = _standard(x[i, d], mu, r)
                dx[i, d] = r * (g[i, d] * weight[d] - a - h * b)
                dw[c, 0, d] += g[i, d] * h
                dw[c, 1, d] += g[i, d]


@kernel(parallel=True)
def _layer_norm_grad_chunks(g, x, weight, mean, rstd, dx, dw):
    for c in prange(CHUNKS):
        _layer_norm_grad(g, x, weight, mean, rstd, dx, dw, c, c + 1)


# ---------------------------------------------------------------------------------------------------------------------
# the same on a card
# ---------------------------------------------------------------------------------------------------------------------
COLUMN_THREADS = 16 if SIMULATED else THREADS
WIDE = 4 if SIMULATED else 32          # neighbouring columns that a block adds up
CHUNK_ROWS = 4 if SIMULATED else 64    # rows that it adds up; more, where there would be more than
MOST_CHUNKS = 3 if SIMULATED else 128  # of such chunks


@cuda_kernel("T[::1], T[::1], int64, T[::1], int64, T, T[::1], T[::1], T[::1], int64")
def _layer_norm_cuda(x, weight, weighted, bias, biased, eps, y, mean, rstd, n):
    """Block i computes row i, its thread t the elements t, t + threads, ...: all together their mean, then the mean square
    of what is left, then each its elements of y. Mean and 1 / deviation are kept."""
    shared = cuda.shared.array(THREADS, x.dtype)
    i, t, threads = cuda.blockIdx.x, cuda.threadIdx.x, cuda.blockDim.x
    first, length, total = i * n, x.dtype.type(n), x.dtype.type(0)
    for d in range(t, n, threads):
        total += x[first + d]
    mu = block_sum(shared, total, t, 1) / length
    total = x.dtype.type(0)
    for d in range(t, n, threads):
        away = x[first + d] - mu
        total += away * away
    r = x.dtype.type(1) / cuda_sqrt(block_sum(shared, total, t, 1) / length + eps)
    for d in range(t, n, threads):
        v = (x[first + d] - mu) * r
        if weighted != 0:
            v = v * weight[d]
        y[first + d] = v + bias[d] if biased != 0 else v
    if t == 0:
        mean[i], rstd[i] = mu, r


@cuda_kernel("T[::1], T[::1], T[::1], int64, T[::1], T[::1], T[::1], int64")
def _layer_norm_grad_cuda(g, x, weight, weighted, mean, rstd, dx, n):
    """Block i computes row i, its thread t the elements t, t + threads, ..., with h = (x - mean) rstd and u = g * weight:

    dx[i, d] = rstd (u_d - mean_d(u) - h_d mean_d(u h))
    """
    shared = cuda.shared.array(THREADS, x.dtype)
    i, t, threads = cuda.blockIdx.x, cuda.threadIdx.x, cuda.blockDim.x
    first, length, mu, r = i * n, x.dtype.type(n), mean[i], rstd[i]
    a, b = x.dtype.type(0), x.dtype.type(0)
    for d in range(t, n, threads):
        u = g[first + d] * weight[d] if weighted != 0 else g[first + d]
        a += u
        b += u * ((x[first + d] - mu) * r)
    a = block_sum(shared, a, t, 1) / length
    b = block_sum(shared, b, t, 1) / length
    for d in range(t, n, threads):
        u = g[first + d] * weight[d] if weighted != 0 else g[first + d]
        dx[first + d] = r * (u - a - (x[first + d] - mu) * r * b)


@cuda_kernel("T[::1], T[::1], T[::1], T[::1], T[::1], int64, int64, int64")
def _column_parts_cuda(g, x, mean, rstd, parts, rows, n, chunks):
    """A block adds up one chunk of the rows in WIDE neighbouring columns: parts[0, chunk, d] = sum_i g[i, d] h[i, d] and
    parts[1, chunk, d] = sum_i g[i, d]. Thread t takes column t % WIDE and every lane-th row, so threads side by side read
    memory side by side; the lanes are added in a tree."""
    shared = cuda.shared.array(THREADS, x.dtype)
    t, tiles = cuda.threadIdx.x, (n + WIDE - 1) // WIDE
    chunk, d = cuda.blockIdx.x // tiles, cuda.blockIdx.x % tiles * WIDE + t % WIDE
    end, lanes = (chunk + 1) * rows // chunks, cuda.blockDim.x // WIDE
    w, b = x.dtype.type(0), x.dtype.type(0)
    if d < n:
        for i in range(chunk * rows // chunks + t // WIDE, end, lanes):
            w += g[i * n + d] * ((x[i * n + d] - mean[i]) * rstd[i])
            b += g[i * n + d]
    w = block_sum(shared, w, t, WIDE)
    b = block_sum(shared, b, t, WIDE)
    if t < WIDE and d < n:
        parts[chunk * n + d], parts[(chunks + chunk) * n + d] = w, b


@cuda_kernel("T[::1], T[::1], T[::1], int64")
def _add_parts_cuda(parts, dw, db, chunks):
    """Thread d adds up column d of the chunks, from the first to the last: the same bits every time."""
    d, n = cuda.grid(1), dw.size
    if d < n:
        w, b = parts[d], parts[chunks * n + d]
        for c in range(1, chunks):
            w += parts[c * n + d]
            b += parts[(chunks + c) * n + d]
        dw[d], db[d] = w, b
