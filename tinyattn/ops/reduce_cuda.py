"""Reductions on a card: what `reduce.py` launches there. x is (a, n, b) and out (a, b), both flat.

Who is who in a block: see `cuda/rows.py`. Rows of many elements are cut into chunks, a block each, whose results are put
together by a second launch in the same way: always in one order, so always the same bits.
"""
import math

import numpy as np

from ..cuda import NUMBERS, THREADS, cuda, cuda_function, cuda_kernel, threads_for
from ..cuda.rows import block_sum, grid_of_rows, own_number, own_row
from ..device import empty

SHARE = 8192  # elements that one block puts together, at least 1 / 256 of them one after the other in one thread
PROD, MAX, MIN = range(3)


def _cut(a, n, b, chunk):
    """How the n elements of each row are cut into chunks, a block each: (blocks, threads), (chunk, chunks, width)."""
    width = threads_for(b, most=32)
    chunk = max(1, chunk or SHARE // width)
    chunks = max(1, -(-n // chunk))
    return (a * chunks * -(-b // width), max(width, threads_for(min(n, chunk) * width))), (chunk, chunks, width)


def sum_cuda(x, out, a, n, b, chunk=None, squares=False, root=False, factor=1.0):
    """out[i, k] = factor * sum over j of x[i, j, k]; with `squares` of x[i, j, k]^2, with `root` the root of the sum.
    More elements than one block's share are added up in several launches."""
    grid, (length, chunks, width) = _cut(a, n, b, chunk)
    last = chunks == 1
    target = out if last else empty(a * chunks * b, np.float64, "cuda")
    _sum_cuda[grid](x, target, n, b, width, length, chunks, int(squares), int(root and last), factor if last else 1.0)
    if not last:
        sum_cuda(target, out, a, chunks, b, chunk, root=root, factor=factor)


def fold_cuda(x, out, a, n, b, how, chunk=None):
    """out[i, k] = the product (`how` is PROD), the largest or the smallest of x[i, :, k], in as many launches as it takes."""
    grid, (length, chunks, width) = _cut(a, n, b, chunk)
    target = out if chunks == 1 else empty(a * chunks * b, x.dtype, "cuda")
    _fold_cuda[grid](x, target, n, b, width, length, chunks, how)
    if chunks > 1:
        fold_cuda(target, out, a, chunks, b, how, chunk)


def extreme_grad_cuda(g, y, x, dx, a, n, b):
    grid, width = grid_of_rows(a, n, b)
    _extreme_grad_cuda[grid](g, y, x, dx, n, b, width)


def prod_grad_cuda(g, x, dx, a, n, b):
    grid, width = grid_of_rows(a, n, b)
    _prod_grad_cuda[grid](g, x, dx, n, b, width)


def cumsum_cuda(x, out, rows, n, b):
    _cumsum_cuda.each(rows)(x, out, rows, n, b)


# ---------------------------------------------------------------------------------------------------------------------
# the kernels
# ---------------------------------------------------------------------------------------------------------------------
@cuda_kernel("T[::1], U[::1], int64, int64, int64, int64, int64, int64, int64, float64",
             types=("float32>float32", "float64>float64", "int64>int64", "float32>float64", "int64>float64",
                    "float64>float32", "float64>int64"))
def _sum_cuda(x, out, n, b, width, chunk, chunks, squares, root, factor):
    """A block adds up one chunk of the n elements, for `width` neighbouring columns k.

    Thread t takes column t % width and every `lanes`-th of its elements, so threads side by side read memory side by
    side. Their sums are then added in a tree in shared memory: lane 0 + lane 4, 1 + 5, ..; 0 + 2, 1 + 3; 0 + 1. All in
    float64 (reading x takes longer), always in this order: the same bits every time.
    """
    sums = cuda.shared.array(THREADS, np.float64)
    t, lanes = cuda.threadIdx.x, cuda.blockDim.x // width
    tiles = (b + width - 1) // width
    block, tile = cuda.blockIdx.x // tiles, cuda.blockIdx.x % tiles
    i, c, k = block // chunks, block % chunks, tile * width + t % width
    end = (c + 1) * chunk
    end = n if n < end else end
    total = np.float64(0)
    if k < b:
        for j in range(c * chunk + t // width, end, lanes):
            v = np.float64(x[(i * n + j) * b + k])
            total += v * v if squares != 0 else v
    sums[t] = total
    cuda.syncthreads()
    step = lanes // 2
    while step > 0:
        if t < step * width:
            sums[t] += sums[t + step * width]
        cuda.syncthreads()
        step //= 2
    if t < width and k < b:
        out[(i * chunks + c) * b + k] = (math.sqrt(sums[t]) if root != 0 else sums[t]) * factor


@cuda_function
def combined(v, w, how):
    """The product of v and w, or the larger, or the smaller; of those a nan wins."""
    if how == PROD:
        return v * w
    if v != v:
        return v
    if how == MAX:
        return v if v > w else w
    return v if v < w else w


@cuda_kernel("T[::1], T[::1], int64, int64, int64, int64, int64, int64", types=NUMBERS)
def _fold_cuda(x, out, n, b, width, chunk, chunks, how):
    """A block combines one chunk of the n elements, for `width` neighbouring columns k, as in `_sum_cuda`, in the array's
    own type. A thread begins with an element of its column that counts anyway, or with 1 if this is a product."""
    found = cuda.shared.array(THREADS, x.dtype)
    t, lanes = cuda.threadIdx.x, cuda.blockDim.x // width
    tiles = (b + width - 1) // width
    block, tile = cuda.blockIdx.x // tiles, cuda.blockIdx.x % tiles
    i, c, k = block // chunks, block % chunks, tile * width + t % width
    end = (c + 1) * chunk
    end = n if n < end else end
    best = x.dtype.type(1)
    if k < b:
        if how != PROD:
            best = x[(i * n + c * chunk) * b + k]
        for j in range(c * chunk + t // width, end, lanes):
            best = combined(best, x[(i * n + j) * b + k], how)
    found[t] = best
    cuda.syncthreads()
    step = lanes // 2
    while step > 0:
        if t < step * width:
            found[t] = combined(found[t], found[t + step * width], how)
        cuda.syncthreads()
        step //= 2
    if t < width and k < b:
        out[(i * chunks + c) * b + k] = found[t]


@cuda_kernel("T[::1], T[::1], T[::1], T[::1], int64, int64, int64")
def _extreme_grad_cuda(g, y, x, dx, n, b, width):
    """The threads of a row x[i, :, k] count together how many of its elements equal y[i, k]; those share g[i, k]."""
    shared = cuda.shared.array(THREADS, x.dtype)
    first, lane, lanes, end = own_row(n, b, width)
    zero, one = x.dtype.type(0), x.dtype.type(1)
    row = own_number(b, width) if end > 0 else 0
    best, ties = y[row], zero
    for j in range(lane, end, lanes):
        ties += one if x[first + j * b] == best else zero
    share = g[row] / block_sum(shared, ties, cuda.threadIdx.x, width)  # of a nan there is none, and nobody gets a share
    for j in range(lane, end, lanes):
        dx[first + j * b] = share if x[first + j * b] == best else zero


@cuda_kernel("T[::1], T[::1], T[::1], int64, int64, int64")
def _prod_grad_cuda(g, x, dx, n, b, width):
    """dx[i, j, k] = g[i, k] * (product of x[i, :j, k]) * (product of x[i, j+1:, k]), without a division, so right at zeros.

    Of a row each thread takes one stretch and puts its product into shared memory; so all know the product of what lies
    before their stretch and after it, and go through it once from the left, once from the right.
    """
    products = cuda.shared.array(THREADS, x.dtype)
    first, lane, lanes, end = own_row(n, b, width)
    t, one = cuda.threadIdx.x, x.dtype.type(1)
    begin, stop = lane * end // lanes, (lane + 1) * end // lanes
    product = one
    for j in range(begin, stop):
        product *= x[first + j * b]
    products[t] = product
    cuda.syncthreads()
    before, after = one, one
    for other in range(lanes):
        if other < lane:
            before *= products[other * width + t % width]
        if other > lane:
            after *= products[other * width + t % width]
    if begin < stop:
        before *= g[own_number(b, width)]
    for j in range(begin, stop):
        dx[first + j * b] = before
        before *= x[first + j * b]
    for j in range(stop - 1, begin - 1, -1):
        dx[first + j * b] *= after
        after *= x[first + j * b]


@cuda_kernel("T[::1], T[::1], int64, int64, int64", types=NUMBERS)
def _cumsum_cuda(x, out, rows, n, b):
    """Thread r adds up row x[i, :, k] with (i, k) = (r // b, r % b), from its first element to its last as on the CPU:
    as many threads as there are rows, so one long row goes slowly."""
    r = cuda.grid(1)
    if r < rows:
        first = r // b * n * b + r % b
        total = x[first]
        out[first] = total
        for j in range(1, n):
            total += x[first + j * b]
            out[first + j * b] = total
