r"""The kernels of `attention.py` for a card: attention over tiles of 64 queries x 64 keys (backward: 64 x 32, since there
are more sums to hold), forward and backward.

The loops of the CPU, in `attention_loops.py`, go over tiles; here a block of threads owns what such a loop fills: one
tile of the output, 64 rows x 64 columns, for which it goes over the tiles of the other side. So nobody else adds to it,
no block waits for another, and the sums are always added in one order. If the rows of the output are longer than 64,
each stretch of 64 columns has a block of its own, which computes the scores anew: no width is refused.

All products are sums of one form, x y^T for 64 rows of x and 64 rows of y (where the formula has x y instead, y is turned
while it is fetched), and they are computed as follows, by `_add_product`:

    shared memory   holds DEPTH columns of the 64 rows of x and of y, `left` and `right`: every number is fetched
                    from memory once a tile, not once a product that it takes part in
    registers       hold the sums. The block's threads stand in 8 rows of 16; thread (r, c) owns the 8 x 4 sums of
                    rows r, r + 8, ... and columns c, c + 16, ...: for each column of the tiles in shared memory
                    it reads 8 + 4 numbers and multiplies 8 x 4 pairs of them. With one sum a thread it
                    would read 2 numbers a product, and reading is what takes the time

Rows of shared memory are one number longer than is used, so that 32 threads that read one column of 32 rows find them
in 32 different banks. The threads of a block meet at barriers: after a tile is fetched, and before it is overwritten.

What the kernels take, beside flat arrays: `plan`, see `plan_on_card`. b is the number of a matrix among all leading axes
together, B. `scale` is a number of the dtype of q.

Shared memory: 22 KB in float32, 44 in float64. A thread has up to 230 registers in float32 and all 255 in float64, where
a few bytes (at most 28, of what is needed once a tile) do not fit and go to memory: half the sums would fit, at half
the reuse in float32.
"""
import math

import numba
import numpy as np
from numpy import uint64

from ..cuda import SIMULATED, cuda, cuda_function, cuda_kernel, flat, on_card
from ..cuda import exp as cuda_exp
from ..cuda import log as cuda_log
from ..device import empty

DOWN, ACROSS = (2, 2) if SIMULATED else (8, 16)  # the threads of a block stand in DOWN rows of ACROSS; simulated are slow
HIGH, WIDE = (4, 4) if SIMULATED else (8, 4)     # a thread owns HIGH x WIDE sums
BLOCK = DOWN * ACROSS
TILE = DOWN * HIGH                               # = ACROSS * WIDE
HALF = WIDE // 2
DEPTH = TILE // 2                                # = ACROSS * HALF: columns of a tile that are in shared memory at once
PITCH, SLOTS = DEPTH + 1, ACROSS + 1
TILE_SLOTS = TILE * SLOTS
ALONG = min(TILE, BLOCK)
PART = TILE * PITCH
LOADS = 4 if SIMULATED else 8


def plan_on_card(plan, sizes, causal, mask, bias):
    """What the kernels must know of shapes, from `plan` of `attention._plan`; mask and bias are shapes or None.

    row 0       lengths of the leading axes
    rows 1-5    steps along them of q, k, v, mask and bias, in elements, 0 where an axis is stretched
    row 6       T, S, D, E, causal
    row 7       is there a mask, its steps from query to query and from key to key; the same three of the bias
    """
    (_, T, S, D, E), axes = sizes, plan.shape[1]
    out = np.zeros((8, max(axes, 6)), np.int64)
    out[0], out[:6, :axes] = 1, plan[:6]
    out[1:4] *= np.array([[T * D], [S * D], [S * E]])
    out[6, :5] = T, S, D, E, causal
    for i, shape in enumerate((mask, bias)):
        if shape is not None:
            length = shape[-1] if shape else 1
            out[4 + i] *= length
            out[7, 3 * i:3 * i + 3] = 1, plan[6, i] * length, length > 1
    return on_card(out)


def forward(inputs, o, high):
    """Fill o (..., T, E) and high (2,B,T). inputs: q, k, v, mask, bias, each flat, plan and scale."""
    _attention_cuda[_blocks(high.shape[1], *o.shape[-2:]), BLOCK](*inputs, flat(o), flat(high))


def backward(inputs, width, high, g, o, grads):
    """Fill the arrays for the gradients of q, k, v, (mask,) bias; None where one is not asked for. width: D."""
    q, k, v, *rest = inputs
    (T, E), B, (dq, dk, dv, _, slopes) = o.shape[-2:], high.shape[1], grads
    g, o, high = flat(g), flat(o), flat(high)
    if dv is not None:
        _values_gradient_cuda[_blocks(B, *dv.shape[-2:]), BLOCK](q, k, *rest, high, g, flat(dv))
    if dq is None and dk is None and slopes is None:
        return
    delta = empty(B * T, g.dtype, "cuda")
    _deltas_cuda.each(B * T)(g, o, delta, E)
    if dk is not None:
        _slopes_cuda[_blocks(B, *dk.shape[-2:]), BLOCK](k, q, v, g, 1, *rest, high, delta, flat(dk), 0, delta)
    if dq is not None or slopes is not None:
        dq = empty((B, T, width), g.dtype, "cuda") if dq is None else dq
        _slopes_cuda[_blocks(B, T, width), BLOCK](q, k, g, v, 0, *rest, high, delta, flat(dq), int(slopes is not None),
                                              delta if slopes is None else flat(slopes))


def _blocks(B, rows, columns):
    """How many blocks B matrices of so many rows and columns keep busy."""
    return B * -(-rows // TILE) * max(-(-columns // TILE), 1)


WIDE_IN_FLOAT64 = ("in float64 the sums of a thread alone fill half of the 255 registers that it may have; a few bytes go to memory. "
                   "Smaller tiles, which would mend that, make float32 slower")


# ---------------------------------------------------------------------------------------------------------------------
# tiles and their products
# ---------------------------------------------------------------------------------------------------------------------
@cuda_function
def _find(begin, b, plan, t):
    """begin[i] = where matrix b begins in input i: q, k, v, mask, bias. A thread finds one; in the simulator two."""
    for i in range(t, 5, BLOCK):
        at, rest = 0, b
        for d in range(plan.shape[1] - 1, -1, -1):
            at += rest % plan[0, d] * plan[1 + i, d]
            rest //= plan[0, d]
        begin[i] = at
    cuda.syncthreads()


@cuda_function
def _fetch(tile, height, x, first, step, rows, columns, t):
    """tile[i, d] = x[first + i * step + d] for `height` rows i, 0 beyond `rows` and `columns`. Thread t fetches one column of every
    BLOCK // DEPTH rows, so that neighbours fetch neighbours. LOADS numbers are under way at once (`room`) before the
    first of them is put down. (An unsigned index is never counted from the end, which is a question less.)"""
    room = cuda.local.array(LOADS, x.dtype)
    i, d, zero = t // DEPTH, t % DEPTH, x.dtype.type(0)
    at, to = first + i * step + d, i * PITCH + d
    rows = rows - i if d < columns else 0
    for _ in range(height * DEPTH // BLOCK // LOADS):
        for n in range(LOADS):
            inside = n * (BLOCK // DEPTH) < rows
            value = x[uint64(at if inside else first)]
            room[n] = value if inside else zero
            at += BLOCK // DEPTH * step
        for n in range(LOADS):
            tile[uint64(to + n * (BLOCK // DEPTH * PITCH))] = room[n]
        to += LOADS * (BLOCK // DEPTH * PITCH)
        rows -= LOADS * (BLOCK // DEPTH)


@cuda_function
def _fetch_turned(tile, x, first, step, rows, columns, t):
    """tile[i, d] = x[first + d * step + i], 0 where d is beyond `rows` or i beyond `columns`. Here a thread fetches
    every BLOCK // ALONG rows d of x."""
    room = cuda.local.array(LOADS, x.dtype)
    zero = x.dtype.type(0)
    for m in range(TILE // ALONG):
        i, d = m * ALONG + t % ALONG, t // ALONG
        at, to, left = first + d * step + i, i * PITCH + d, rows - d if i < columns else 0
        for _ in range(DEPTH * ALONG // BLOCK // LOADS):
            for n in range(LOADS):
                inside = n * (BLOCK // ALONG) < left
                value = x[uint64(at if inside else first)]
                room[n] = value if inside else zero
                at += BLOCK // ALONG * step
            for n in range(LOADS):
                tile[uint64(to + n * (BLOCK // ALONG))] = room[n]
            to += LOADS * (BLOCK // ALONG)
            left -= LOADS * (BLOCK // ALONG)


@cuda_function
def _add_products(sums, left, right, row, column):
    """sums[i, j] += left[row i, d] right[column j, d] for one d."""
    of_left = cuda.local.array(HIGH, left.dtype)
    for i in range(HIGH):
        of_left[i] = left[uint64(row + DOWN * PITCH * i)]
    for j in range(sums.shape[1]):
        other = right[uint64(column + ACROSS * PITCH * j)]
        for i in range(HIGH):
            sums[i, j] += of_left[i] * other


@cuda_function
def _add_product(sums, left, right, depth, r, c):
    """sums[i, j] += sum_d left[row i, d] right[column j, d], for the rows and columns that this thread owns. Four d a
    round, since counting takes time, too; beyond their depth the tiles hold zeros."""
    for d in range(0, depth, 4):
        row, column = r * PITCH + d, c * PITCH + d
        _add_products(sums, left, right, row, column)
        _add_products(sums, left, right, row + 1, column + 1)
        _add_products(sums, left, right, row + 2, column + 2)
        _add_products(sums, left, right, row + 3, column + 3)


@cuda_function
def _clear(sums):
    for i in range(HIGH):
        for j in range(sums.shape[1]):
            sums[i, j] = 0


@cuda_function
def _multiply(sums, left, right, x, at_x, rows_x, y, at_y, rows_y, width, t, r, c):
    """sums = x y^T, of the tiles of x and y that begin at at_x and at_y. Their rows are `width` long."""
    _clear(sums)
    for d in range(0, width, DEPTH):
        _fetch(left, TILE, x, at_x + d, width, rows_x, width - d, t)
        _fetch(right, ACROSS * sums.shape[1], y, at_y + d, width, rows_y, width - d, t)
        cuda.syncthreads()
        _add_product(sums, left, right, DEPTH if width - d > DEPTH else width - d, r, c)
        cuda.syncthreads()


@cuda_function
def _add_weighted(sums, p, j0, left, right, y, at_y, rows, columns, width, t, r, c):
    """sums += p y for DEPTH columns of p, a tile that the threads hold in registers: those numbered j0 and j0 + 1 of
    each thread, laid into shared memory for all. The rows of y that belong to them begin at at_y, `width` long."""
    to = r * PITCH + c
    for i in range(HIGH):
        for j in range(HALF):
            left[uint64(to + (i * (DOWN * PITCH) + j * ACROSS))] = p[i, j0 + j]
    _fetch_turned(right, y, at_y if rows > 0 else 0, width, rows, columns, t)
    cuda.syncthreads()
    _add_product(sums, left, right, DEPTH, r, c)
    cuda.syncthreads()


@cuda_function
def _finish_scores(e, row, column, turned, mask, at_mask, bias, at_bias, plan, scale, r, c):
    """e[i, j] = scale e[i, j] + bias, -inf where the query may not see the key or where there is none. The tile begins
    at query `row` and key `column`, or turned != 0: at key `row` and query `column`."""
    T, S, causal, nothing = plan[6, 0], plan[6, 1], plan[6, 4], bias.dtype.type(-math.inf)
    rows, columns, query, key = (T, S, row, column) if turned == 0 else (S, T, column, row)
    down, across = (1, 2) if turned == 0 else (2, 1)
    y, x = row + r, column + c
    rows, columns = rows - y, columns - x  # how many there are from the thread's first ones on
    for i in range(HIGH):
        for j in range(e.shape[1]):
            e[i, j] *= scale
    if plan[7, 3] != 0:
        step, at = plan[7, 3 + across], at_bias + y * plan[7, 3 + down] + x * plan[7, 3 + across]
        for i in range(HIGH):
            for j in range(e.shape[1]):
                inside = DOWN * i < rows and ACROSS * j < columns
                e[i, j] += bias[uint64(at + ACROSS * j * step if inside else at_bias)]
            at += DOWN * plan[7, 3 + down]
    if plan[7, 0] != 0:
        step, at = plan[7, across], at_mask + y * plan[7, down] + x * plan[7, across]
        for i in range(HIGH):
            for j in range(e.shape[1]):
                inside = DOWN * i < rows and ACROSS * j < columns
                if not mask[uint64(at + ACROSS * j * step if inside else at_mask)]:
                    e[i, j] = nothing
            at += DOWN * plan[7, down]
    ahead = key - query + T - S  # how much further the first key is than what the first query may see
    if (row + TILE > rows + y or column + ACROSS * e.shape[1] > columns + x or causal != 0 and ahead + TILE > 1):
        late = ahead + c - r if turned == 0 else ahead + r - c
        for i in range(HIGH):
            for j in range(e.shape[1]):
                further = ACROSS * j - DOWN * i if turned == 0 else DOWN * i - ACROSS * j
                if DOWN * i >= rows or ACROSS * j >= columns or causal != 0 and late + further > 0:
                    e[i, j] = nothing


@cuda_function
def _put(out, sums, factor, at, rows, columns, width, r, c):
    """Write a tile to where it begins in `out`, times a factor; nothing beyond `rows` and `columns`."""
    at += r * width + c
    for i in range(HIGH):
        for j in range(sums.shape[1]):
            if r + DOWN * i < rows and c + ACROSS * j < columns:
                out[uint64(at + ACROSS * j)] = sums[i, j] * factor
        at += DOWN * width


# ---------------------------------------------------------------------------------------------------------------------
# forward
# ---------------------------------------------------------------------------------------------------------------------
@cuda_kernel("T[::1], T[::1], T[::1], boolean[::1], T[::1], int64[:, ::1], T, T[::1], T[::1]", spills=WIDE_IN_FLOAT64)
def _attention_cuda(q, k, v, mask, bias, plan, scale, o, high):
    """A block computes one tile of o: 64 queries of one matrix b, 64 columns of the values. Tile of keys for tile:

        e = scale q k^T + bias, -inf where forbidden
        best = the largest e of each row so far; what was summed with another is multiplied by fall = e^(old - best)
        p = e^(e - best):   sums = fall sums + p v,   total = fall total + the sum of p over the row

    `best`, `fall` and `total` stand in shared memory, one a row: the 16 threads of a row leave the largest of their
    scores in `partial`, later the sum of their p, and one thread a row goes over these 16, always in the same order.
    In the end o = sums / total, and `best` and log total are left in high (2,B,T), as the CPU has them.
    Under a causal mask late queries see more keys, so their blocks begin first.
    """
    left = cuda.shared.array(PART, q.dtype)
    right = cuda.shared.array(PART, q.dtype)
    partial = cuda.shared.array(TILE_SLOTS, q.dtype)
    best = cuda.shared.array(TILE, q.dtype)
    total = cuda.shared.array(TILE, q.dtype)
    fall = cuda.shared.array(TILE, q.dtype)
    begin = cuda.shared.array(5, numba.int64)
    e = cuda.local.array((HIGH, WIDE), q.dtype)
    sums = cuda.local.array((HIGH, WIDE), q.dtype)
    zero, nothing = q.dtype.type(0), q.dtype.type(-math.inf)
    t = cuda.threadIdx.x % BLOCK  # it is below BLOCK, which Numba does not know: no index counts from the end
    r, c = t // ACROSS, t % ACROSS
    down, across = (plan[6, 0] + TILE - 1) // TILE, (plan[6, 3] + TILE - 1) // TILE
    b, column = cuda.blockIdx.x // (down * across), cuda.blockIdx.x // down % across * TILE
    first = (down - 1 - cuda.blockIdx.x % down) * TILE
    end = plan[6, 1]
    if plan[6, 4] != 0 and first + TILE - plan[6, 0] < 0:
        end += first + TILE - plan[6, 0]  # the last query of the tile sees the keys before this one
    _find(begin, b, plan, t)
    _clear(sums)
    for row in range(t, TILE, BLOCK):
        best[row], total[row] = nothing, zero
    for start in range(0, end, TILE):
        T, S, D, E = plan[6, 0], plan[6, 1], plan[6, 2], plan[6, 3]  # read anew each time: registers are short
        _multiply(e, left, right, q, begin[0] + first * D, T - first, k, begin[1] + start * D, S - start, D, t, r, c)
        _finish_scores(e, first, start, 0, mask, begin[3], bias, begin[4], plan, scale, r, c)
        for i in range(HIGH):
            top = nothing
            for j in range(WIDE):
                top = e[i, j] if e[i, j] > top else top  # a nan may hide from this, and is met again in the sum
            partial[uint64(r * SLOTS + c + DOWN * SLOTS * i)] = top
        cuda.syncthreads()
        for row in range(t, TILE, BLOCK):
            top = best[row]
            for n in range(ACROSS):
                x = partial[uint64(row * SLOTS + n)]
                top = x if x > top else top
            fall[row] = cuda_exp(best[row] - (top if top > nothing else zero))  # -inf - 0, in place of nan
            best[row] = top
        cuda.syncthreads()
        for i in range(HIGH):
            top, change, part = best[uint64(r + DOWN * i)], fall[uint64(r + DOWN * i)], zero
            top = top if top > nothing else zero
            for j in range(WIDE):
                e[i, j] = cuda_exp(e[i, j] - top)
                part += e[i, j]
                sums[i, j] *= change
            partial[uint64(r * SLOTS + c + DOWN * SLOTS * i)] = part
        at = begin[2] + start * E + column
        _add_weighted(sums, e, 0, left, right, v, at, S - start, E - column, E, t, r, c)
        _add_weighted(sums, e, HALF, left, right, v, at + DEPTH * E, S - start - DEPTH, E - column, E, t, r, c)
        for row in range(t, TILE, BLOCK):
            total[row] *= fall[row]
            for n in range(ACROSS):
                total[row] += partial[uint64(row * SLOTS + n)]
    T, E = plan[6, 0], plan[6, 3]
    for row in range(t, TILE, BLOCK):
        fall[row] = q.dtype.type(1) / total[row] if total[row] != zero else zero  # 0: it sees nothing
        if column == 0 and first + row < T:
            high[b * T + first + row] = best[row]
            high[high.size // 2 + b * T + first + row] = cuda_log(total[row]) if total[row] != zero else zero
    cuda.syncthreads()
    for i in range(HIGH):
        query, inverse = first + r + DOWN * i, fall[uint64(r + DOWN * i)]
        at = (b * T + query) * E + column + c
        for j in range(WIDE):
            if query < T and column + c + ACROSS * j < E:
                o[uint64(at + ACROSS * j)] = sums[i, j] * inverse


# ---------------------------------------------------------------------------------------------------------------------
# backward
# ---------------------------------------------------------------------------------------------------------------------
@cuda_kernel("T[::1], T[::1], T[::1], int64")
def _deltas_cuda(g, o, delta, width):
    """Thread i computes delta_i = <g_i, o_i>, summed in the order in which `_multiply` sums <g_t, v_s>: where one key
    takes all the weight, o_t is its v_s and the difference of the two is 0, not rounding noise."""
    i = cuda.grid(1)
    if i < delta.size:
        total = g.dtype.type(0)
        for d in range(i * width, (i + 1) * width):
            total += g[d] * o[d]
        delta[i] = total


@cuda_function
def _recall(best, less, high, at, queries, t):
    """What the forward pass has left of the scores of each query of a tile: their largest, 0 in place of -inf, and the
    log of the total."""
    for row in range(t, TILE, BLOCK):
        inside = row < queries
        top = high[at + row if inside else 0]
        best[row] = top if inside and top > high.dtype.type(-math.inf) else high.dtype.type(0)
        less[row] = high[high.size // 2 + at + row] if inside else high.dtype.type(0)
    cuda.syncthreads()


@cuda_kernel("T[::1], T[::1], boolean[::1], T[::1], int64[:, ::1], T, T[::1], T[::1], T[::1]")
def _values_gradient_cuda(q, k, mask, bias, plan, scale, high, g, dv):
    """A block computes one tile of dv: 64 keys of one matrix b, 64 columns. For 32 queries after 32, those that may see
    the first key of the tile and all later ones:

        p^T = e^(e^T - m - log total), e^T = scale k q^T + bias, as the CPU has it:    dv += p^T g
    """
    left = cuda.shared.array(PART, q.dtype)
    right = cuda.shared.array(PART, q.dtype)
    best = cuda.shared.array(TILE, q.dtype)
    less = cuda.shared.array(TILE, q.dtype)
    begin = cuda.shared.array(5, numba.int64)
    e = cuda.local.array((HIGH, HALF), q.dtype)
    sums = cuda.local.array((HIGH, WIDE), q.dtype)
    t = cuda.threadIdx.x % BLOCK
    r, c = t // ACROSS, t % ACROSS
    down, across = (plan[6, 1] + TILE - 1) // TILE, (plan[6, 3] + TILE - 1) // TILE
    b, column = cuda.blockIdx.x // (down * across), cuda.blockIdx.x // down % across * TILE
    first = cuda.blockIdx.x % down * TILE
    start = 0
    if plan[6, 4] != 0 and first + plan[6, 0] - plan[6, 1] > 0:
        start = (first + plan[6, 0] - plan[6, 1]) // DEPTH * DEPTH
    _find(begin, b, plan, t)
    _clear(sums)
    for query in range(start, plan[6, 0], DEPTH):
        T, S, D, E = plan[6, 0], plan[6, 1], plan[6, 2], plan[6, 3]
        _recall(best, less, high, b * T + query, T - query, t)
        _multiply(e, left, right, k, begin[1] + first * D, S - first, q, begin[0] + query * D, T - query, D, t, r, c)
        _finish_scores(e, first, query, 1, mask, begin[3], bias, begin[4], plan, scale, r, c)
        for j in range(HALF):
            top, log_total = best[uint64(c + ACROSS * j)], less[uint64(c + ACROSS * j)]
            for i in range(HIGH):
                e[i, j] = cuda_exp(e[i, j] - top - log_total)
        _add_weighted(sums, e, 0, left, right, g, (b * T + query) * E + column, T - query, E - column, E, t, r, c)
    S, E = plan[6, 1], plan[6, 3]
    _put(dv, sums, q.dtype.type(1), (b * S + first) * E + column, S - first, E - column, E, r, c)


@cuda_kernel("T[::1], T[::1], T[::1], T[::1], int64, boolean[::1], T[::1], int64[:, ::1], T, T[::1], T[::1], T[::1], "
             "int64, T[::1]", spills=WIDE_IN_FLOAT64)
def _slopes_cuda(x, y, xv, yv, turned, mask, bias, plan, scale, high, delta, out, kept, slopes):
    """A block computes one tile of dq: 64 queries of one matrix b, 64 columns. For 32 keys after 32:

        p = e^(e - m - log total)     dp = g v^T     ds = p (dp - delta)     dq += scale ds k

    turned != 0: one tile of dk, 64 keys, dk += scale ds^T q, for 32 queries after 32. So x stands for q, y for k, or the
    other way round; xv and yv for g and v likewise. kept != 0: ds, which is the gradient of the bias, is left in
    `slopes` (B,T,S) by the blocks of the first columns; keys that a causal mask hides are not come to.
    """
    left = cuda.shared.array(PART, x.dtype)
    right = cuda.shared.array(PART, x.dtype)
    best = cuda.shared.array(TILE, x.dtype)
    less = cuda.shared.array(TILE, x.dtype)
    mean = cuda.shared.array(TILE, x.dtype)
    begin = cuda.shared.array(5, numba.int64)
    e = cuda.local.array((HIGH, HALF), x.dtype)
    ds = cuda.local.array((HIGH, HALF), x.dtype)
    sums = cuda.local.array((HIGH, WIDE), x.dtype)
    t = cuda.threadIdx.x % BLOCK
    r, c = t // ACROSS, t % ACROSS
    down, across = (plan[6, turned] + TILE - 1) // TILE, (plan[6, 2] + TILE - 1) // TILE if plan[6, 2] > 0 else 1
    b, column = cuda.blockIdx.x // (down * across), cuda.blockIdx.x // down % across * TILE
    first = cuda.blockIdx.x % down * TILE
    start, end = 0, plan[6, 1 - turned]
    if plan[6, 4] != 0 and turned == 0 and first + TILE - plan[6, 0] < 0:
        end += first + TILE - plan[6, 0]
    if plan[6, 4] != 0 and turned != 0 and first + plan[6, 0] - plan[6, 1] > 0:
        start = (first + plan[6, 0] - plan[6, 1]) // DEPTH * DEPTH
    _find(begin, b, plan, t)
    _clear(sums)
    for other in range(start, end, DEPTH):
        T, S, D, E = plan[6, 0], plan[6, 1], plan[6, 2], plan[6, 3]
        query, key = (first, other) if turned == 0 else (other, first)
        rows, columns = (T - first, S - other) if turned == 0 else (S - first, T - other)
        _recall(best, less, high, b * T + query, T - query, t)
        for row in range(t, TILE, BLOCK):
            mean[row] = delta[b * T + query + row] if query + row < T else delta.dtype.type(0)
        _multiply(e, left, right, x, begin[turned] + first * D, rows, y, begin[1 - turned] + other * D, columns, D, t, r, c)
        _finish_scores(e, first, other, turned, mask, begin[3], bias, begin[4], plan, scale, r, c)
        at_g, at_v = (b * T + query) * E, begin[2] + key * E
        at_x, at_y = (at_g, at_v) if turned == 0 else (at_v, at_g)
        _multiply(ds, left, right, xv, at_x, rows, yv, at_y, columns, E, t, r, c)
        for i in range(HIGH):
            for j in range(HALF):
                n = uint64(r + DOWN * i if turned == 0 else c + ACROSS * j)
                ds[i, j] = cuda_exp(e[i, j] - best[n] - less[n]) * (ds[i, j] - mean[n])
        if kept != 0 and column == 0:
            _put(slopes, ds, x.dtype.type(1), (b * T + first) * S + other, rows, columns, S, r, c)
        at = begin[1 - turned] + other * D + column
        _add_weighted(sums, ds, 0, left, right, y, at, columns, D - column, D, t, r, c)
    rows, D = plan[6, turned], plan[6, 2]
    _put(out, sums, scale, (b * rows + first) * D + column, rows - first, D - column, D, r, c)
