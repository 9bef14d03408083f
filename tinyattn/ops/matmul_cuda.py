r"""Products on a card: what `matmul.py` launches there.

    c_ij = sum_k a_ik b_kj (+ bias_j)

A block has SIDE x SIDE threads (16 x 16) and computes one square of c, EACH x EACH elements a thread, in registers. Row i
of a is wanted by all threads of a row of the square, so the block fetches what all need together: for each stretch of
SIDE along the depth, a strip of a and one of b go to shared memory, all wait, and each thread multiplies; all wait again
before the next stretch overwrites it. Of one stretch a thread reads 2 EACH numbers for EACH^2 multiplications: so a square
of 128 x 128 is what a card's arithmetic needs to be busy, and smaller ones are for results that would give it too few blocks.

Where the result is small and the depth long (the gradient of a weight: the depth is all rows of the batch), the depth is
cut into parts, a block each; a second launch adds the parts, from the first to the last. All is chosen by the shapes
alone, so the same product gives the same bits every time and on every card.
"""
import math

import numpy as np

from ..cuda import SIMULATED, cuda, cuda_function, cuda_kernel, flat, on_card, place
from ..device import empty
from .broadcast import plan_of

SIDE = 4 if SIMULATED else 16    # threads along a side of a block, and the length of a stretch; simulated threads are slow
# EACH: squares of 128 x 128 (which would need too many registers in float64), 64 x 64, 32 x 32.
WIDE, MIDDLE, SMALL = (4, 2, 1) if SIMULATED else (8, 4, 2)
BUSY = 8 if SIMULATED else 128   # blocks that keep a card busy: it has about as many places to compute in
LEAST = 8 if SIMULATED else 256  # the depth of a part is at least this much
SHORT = SIDE // 2                # the length of a stretch for the widest square: so it needs few enough registers
BANKS = 32                       # of shared memory; lines are padded so that threads side by side write to different ones
WIDE_STRIP = SHORT * (WIDE * SIDE + BANKS // SHORT)
MIDDLE_STRIP = SIDE * (MIDDLE * SIDE + BANKS // SIDE)
SMALL_STRIP = SIDE * (SMALL * SIDE + BANKS // SIDE)
WIDE_SUMS, MIDDLE_SUMS, SMALL_SUMS = (each * each for each in (WIDE, MIDDLE, SMALL))


def matmul_cuda(a, b, turned_a=False, turned_b=False, bias=None):
    """a (..., M, K) @ b (..., K, N) + bias (N,) on a card, as a new array; turned: the last two axes stand the other
    way round. Batch axes broadcast; nothing is repeated in memory."""
    (m, depth), n = (a.shape[:-3:-1] if turned_a else a.shape[-2:]), b.shape[-2 if turned_b else -1]
    batch, plan = plan_of("matmul", tuple(a.shape[:-2]), tuple(b.shape[:-2]))
    c, items = empty((*batch, m, n), a.dtype, "cuda"), math.prod(batch)
    each, parts = way(m, n, depth, items, a.dtype.itemsize)
    target = c if parts == 1 else empty(parts * c.size, c.dtype, "cuda")
    biased, bias = int(bias is not None), flat(a if bias is None else bias)
    blocks = items * _squares(m, n, each) * parts
    _PRODUCTS[each][blocks, SIDE * SIDE](flat(a), flat(b), bias, biased if parts == 1 else 0, flat(target), on_card(plan),
                                         items, m, n, depth, int(turned_a), int(turned_b), parts)
    if parts > 1:
        _add_parts_cuda.each(c.size)(flat(target), bias, biased, flat(c), n, parts)
    return c


def way(m, n, depth, items, itemsize):
    """(EACH, parts): the largest square that is not mostly empty and gives enough blocks, with the depth in parts if need be."""
    most, each = max(1, depth // LEAST), SMALL
    for larger in (MIDDLE, WIDE) if itemsize == 4 else (MIDDLE,):
        if 2 * min(m, n) > larger * SIDE and items * _squares(m, n, larger) * most >= BUSY:
            each = larger
    return each, min(most, max(1, 2 * BUSY // max(1, items * _squares(m, n, each))))


def _squares(m, n, each):
    return -(-m // (each * SIDE)) * -(-n // (each * SIDE))


# ---------------------------------------------------------------------------------------------------------------------
# the kernels: one body, three sizes
# ---------------------------------------------------------------------------------------------------------------------
@cuda_function
def fetch(strip, x, at, hop, long, to, more, deeper, zero, each, deep):
    """A thread puts its elements of one stretch, each * deep / SIDE of them, into a strip, the first, x[at], to strip[to], the
    others, `hop` apart in memory, further along the depth if memory runs along the `long` side, else further along
    that. `more` and `deeper`: how much there is of the matrix in both directions, from the first on; beyond it the
    strip holds 0."""
    line = each * SIDE + BANKS // deep
    if long != 0:
        for p in range(each * deep // SIDE):
            inside = more > 0 and p * (SIDE // each) < deeper
            strip[np.uint64(to + p * (SIDE // each) * line)] = x[np.uint64(at)] if inside else zero
            at += hop
    else:
        for p in range(each * deep // SIDE):
            inside = p * (SIDE * SIDE // deep) < more and deeper > 0
            strip[np.uint64(to + p * (SIDE * SIDE // deep))] = x[np.uint64(at)] if inside else zero
            at += hop


@cuda_function
def square(a, b, bias, biased, c, plan, items, m, n, depth, turned_a, turned_b, parts, left, right, sums, across, down, each, deep):
    """A block computes one square of c, its thread (r, s) the elements (r + SIDE u, s + SIDE v) of it, u, v < `each`.

    left and right hold the strips of one stretch, `deep` lines as long as the square is wide, 0 beyond the edges. They are
    filled in the order in which a and b lie in memory, along their rows or, if turned, along their columns: threads side
    by side read side by side. An index without a sign costs nothing; of others Numba asks whether they count from the end.
    """
    t, zero, size, line = cuda.threadIdx.x, a.dtype.type(0), each * SIDE, each * SIDE + BANKS // deep
    r, s = t // SIDE, t % SIDE
    rows, columns = (m + size - 1) // size, (n + size - 1) // size
    block = cuda.blockIdx.x
    i, j = block // columns % rows * size, block % columns * size
    block //= columns * rows
    item, part = block % items, block // items
    from_a, from_b = place(item, plan, 0) * m * depth, place(item, plan, 1) * depth * n
    stretches = (depth + deep - 1) // deep
    begin, end = part * stretches // parts * deep, (part + 1) * stretches // parts * deep
    for u in range(each * each):
        sums[u] = zero
    # Of a strip, thread t fetches the elements (y, x), counted from its corner: y along its long side, x along the depth.
    ya, xa, yb, xb = t // deep, t % deep, t % size, t // size
    at_a, hop_a = from_a + (i + ya) * depth + xa, SIDE * SIDE // deep * depth
    at_b, hop_b = from_b + xb * n + j + yb, SIDE // each * n
    step_a, step_b = 1, n
    if turned_a != 0:
        ya, xa = t % size, t // size
        at_a, hop_a, step_a = from_a + xa * m + i + ya, SIDE // each * m, m
    if turned_b != 0:
        yb, xb = t // deep, t % deep
        at_b, hop_b, step_b = from_b + (j + yb) * depth + xb, SIDE * SIDE // deep * depth, 1
    for k in range(begin, end, deep):
        fetch(left, a, at_a + k * step_a, hop_a, turned_a, xa * line + ya, m - i - ya, depth - k - xa, zero, each, deep)
        fetch(right, b, at_b + k * step_b, hop_b, 1 - turned_b, xb * line + yb, n - j - yb, depth - k - xb, zero, each, deep)
        cuda.syncthreads()
        for x in range(deep):
            for u in range(each):
                down[u] = left[np.uint64(x * line + r + u * SIDE)]
                across[u] = right[np.uint64(x * line + s + u * SIDE)]
            for u in range(each):
                for v in range(each):
                    sums[u * each + v] += down[u] * across[v]
        cuda.syncthreads()
    first = (part * items + item) * m
    for u in range(each):
        y = i + r + u * SIDE
        if y < m:
            for v in range(each):
                x = j + s + v * SIDE
                if x < n:
                    total = sums[u * each + v]
                    c[(first + y) * n + x] = total + bias[x] if biased != 0 else total


TYPES = "T[::1], T[::1], T[::1], int64, T[::1], int64[:, ::1], int64, int64, int64, int64, int64, int64, int64"


@cuda_kernel(TYPES, types=("float32",))
def _product_wide_cuda(a, b, bias, biased, c, plan, items, m, n, depth, turned_a, turned_b, parts):
    """Squares of 128 x 128. See `square`."""
    left = cuda.shared.array(WIDE_STRIP, a.dtype)
    right = cuda.shared.array(WIDE_STRIP, a.dtype)
    sums = cuda.local.array(WIDE_SUMS, a.dtype)
    across = cuda.local.array(WIDE, a.dtype)
    down = cuda.local.array(WIDE, a.dtype)
    square(a, b, bias, biased, c, plan, items, m, n, depth, turned_a, turned_b, parts, left, right, sums, across, down, WIDE, SHORT)


@cuda_kernel(TYPES)
def _product_middle_cuda(a, b, bias, biased, c, plan, items, m, n, depth, turned_a, turned_b, parts):
    """Squares of 64 x 64. See `square`."""
    left = cuda.shared.array(MIDDLE_STRIP, a.dtype)
    right = cuda.shared.array(MIDDLE_STRIP, a.dtype)
    sums = cuda.local.array(MIDDLE_SUMS, a.dtype)
    across = cuda.local.array(MIDDLE, a.dtype)
    down = cuda.local.array(MIDDLE, a.dtype)
    square(a, b, bias, biased, c, plan, items, m, n, depth, turned_a, turned_b, parts, left, right, sums, across, down, MIDDLE, SIDE)


@cuda_kernel(TYPES)
def _product_small_cuda(a, b, bias, biased, c, plan, items, m, n, depth, turned_a, turned_b, parts):
    """Squares of 32 x 32. See `square`."""
    left = cuda.shared.array(SMALL_STRIP, a.dtype)
    right = cuda.shared.array(SMALL_STRIP, a.dtype)
    sums = cuda.local.array(SMALL_SUMS, a.dtype)
    across = cuda.local.array(SMALL, a.dtype)
    down = cuda.local.array(SMALL, a.dtype)
    square(a, b, bias, biased, c, plan, items, m, n, depth, turned_a, turned_b, parts, left, right, sums, across, down, SMALL, SIDE)


_PRODUCTS = {WIDE: _product_wide_cuda, MIDDLE: _product_middle_cuda, SMALL: _product_small_cuda}


@cuda_kernel("T[::1], T[::1], int64, T[::1], int64, int64")
def _add_parts_cuda(parts, bias, biased, c, n, count):
    """Thread e adds up element e of the parts, from the first to the last, and the bias."""
    e = cuda.grid(1)
    if e < c.size:
        total = parts[e]
        for p in range(1, count):
            total += parts[p * c.size + e]
        c[e] = total + bias[e % n] if biased != 0 else total
