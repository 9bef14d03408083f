r"""Inside-outside for any structure whose weight is a product of scores: log Z, marginals and their gradients.

The sum over all structures (trees in `eisner.py`, paths in `linear_chain.py`) is put together from smaller sums, and all of
them have one form, v[parent] = sum_k v[a_k] v[b_k]. The ops differ in nothing but the table of these sums, children before
parents, one row a sum:

    parent, a, step of a, b, step of b, count          a_k = a + k (step of a), b_k = b + k (step of b), 0 <= k < count

Everything follows from the table, with the share q_k = v[a_k] v[b_k] / v[parent] of each product in its sum:

    inside       v, down the table; v[part] = e^score, and log Z = log v[end]
    outside      the chance c of each item to be used, up the table: c[end] = 1; c[a_k], c[b_k] += q_k c[parent];
                 p = c of the parts = d log Z / d score, which is called the marginals

Nor does the gradient need a rule of its own. Since p is a gradient, the matrix d p / d score is symmetric, so a
gradient g that arrives at p is carried to the scores by the matrix that carries a step g of the scores to p:

    gradient at the scores  =  g_logz p  +  the slope of p as the scores move along g
    rise         slope of log v, down the table: rise[part] = g[part]; rise[parent] = sum_k q_k (rise[a_k] + rise[b_k])
    fall         slope of c, plus g_logz c, up the table: fall[end] = g_logz;
                 fall[a_k], fall[b_k] += q_k (fall[parent] + c[parent] (rise[a_k] + rise[b_k] - rise[parent]))

These are averages with weights q_k, of numbers of either sign; no logarithm of a gradient is taken. (Kim et al. run the
recursions backwards in a "signed log semiring" for that.)

A float ends at e^700, a score may be 1e4. Each v is therefore a fraction with an exponent of its own, v = m 2^e with
1 <= m < 2 and e an int64. This is log space too, but only the whole part of the logarithm is taken, so that sums and
products stay plain arithmetic, exact to rounding however large the scores are. A part that is forbidden (score -inf) is
m = 0. Inside the loops all is float64. They go over `LANES` sentences at once, innermost, in vector instructions.
The same on a card is in `sum_product_cuda.py`.
"""
import numpy as np
from numba import prange

from ..device import empty, kernel, launch, to_device
from .broadcast import ShapeError
from .recurrent import all_steps
from .shared import first_row

LANES = 8    # sentences that are computed side by side: the float64 numbers of a vector register
CHUNKS = 16  # parts that the groups of LANES sentences are cut into for the threads
ZERO = -(1 << 60)  # the exponent of the number 0: less than any sum of exponents
LARGEST = 7e14     # of a score in absolute value; more is taken as this much. A thousand of them stay above ZERO
LOG2_E = 1.4426950408889634
LN2_HIGH, LN2_LOW = 0.6931471803691238, 1.9082149292705877e-10  # their sum is ln 2; multiples of the first are exact
PARENT, FIRST, STEP_A, SECOND, STEP_B, COUNT = range(6)


# ---------------------------------------------------------------------------------------------------------------------
# from a table to p, log Z and gradients
# ---------------------------------------------------------------------------------------------------------------------
def check_lengths(name, lengths, batch, longest, letter):
    """`lengths` as contiguous int64 on the host, all `longest` for None; TypeError, ShapeError or ValueError if they cannot
    be. (The host keeps whole numbers that it sent to a card.)"""
    if lengths is None:
        return all_steps(batch, longest)
    lengths = to_device(lengths, "cpu")
    if lengths.dtype.kind not in "iu":
        raise TypeError(f"{name}: expected integer lengths, got {lengths.dtype}")
    if lengths.shape != (batch,):
        raise ShapeError(f"{name}: expected lengths (B,) = ({batch},), got {lengths.shape}")
    if batch and (lengths.min() < 0 or lengths.max() > longest):
        raise ValueError(f"{name}: expected lengths between 0 and {letter} = {longest}, "
                         f"got {lengths.min()} to {lengths.max()}")
    return np.ascontiguousarray(lengths, np.int64)


def infer(scores, shared, lengths, table, items):
    """(p, log Z): p (B, L) for the scores (B, L) of each sentence's own parts, log Z (B,).

    shared  (M,) scores of parts that are the same in all sentences
    table   the recursion; the items are numbered: L own parts, M shared parts, the ends of lengths 0, 1, 2, ... (the
            end of length 0 is the number 1), then whatever the table needs, `items` in all
    """
    p, logz = empty(scores.shape, scores.dtype), empty(len(scores), scores.dtype)
    args = (scores, shared, lengths, table, items, p, logz)
    launch(_cost(scores, table), _infer, (*args, 0, CHUNKS), _infer_chunks, args)
    return p, logz


def infer_grad(g, g_logz, scores, shared, lengths, table, items):
    """The gradients of `scores` (B, L) and `shared` (M,) from those that arrive at p (B, L) and at log Z (B,)."""
    d_scores, d_shared = empty(scores.shape, scores.dtype), np.zeros((CHUNKS, len(shared)))
    args = (g, g_logz, scores, shared, lengths, table, items, d_scores, d_shared)
    launch(3 * _cost(scores, table), _infer_grad, (*args, 0, CHUNKS), _infer_grad_chunks, args)
    return d_scores, d_shared.sum(axis=0).astype(shared.dtype)


def _cost(scores, table):
    """Nanoseconds, if there is something to share among the threads."""
    groups = -(-len(scores) // LANES)
    return groups * 12.0 * (int(table[:, COUNT].sum()) + 2 * len(table)) if groups > 1 else 0.0


# ---------------------------------------------------------------------------------------------------------------------
# the loops. m and e (items, LANES) hold the numbers v = m 2^e; c, rise and fall (items, LANES) as in the file's head
# ---------------------------------------------------------------------------------------------------------------------
@kernel
def _infer(scores, shared, lengths, table, items, p, logz, begin, end):
    """For each group of LANES sentences: load, inside, outside, store."""
    groups = -(-len(scores) // LANES)
    lanes = min(LANES, len(scores))
    m, e, c = np.empty((items, lanes)), np.empty((items, lanes), np.int64), np.empty((items, lanes))
    for group in range(first_row(begin, CHUNKS, groups), first_row(end, CHUNKS, groups)):
        first = group * LANES
        _load(scores, shared, m, e, first)
        _inside(table, m, e)
        c[:] = 0
        last = scores.shape[1] + len(shared)
        for lane in range(min(LANES, len(scores) - first)):
            top = last + lengths[first + lane]
            c[top, lane] = 1
            logz[first + lane] = -np.inf if m[top, lane] == 0 else (
                np.log(m[top, lane]) + (e[top, lane] * LN2_HIGH + e[top, lane] * LN2_LOW))
        _outside(table, m, e, c)
        _store(c, p, first)


@kernel(parallel=True)
def _infer_chunks(scores, shared, lengths, table, items, p, logz):
    for chunk in prange(CHUNKS):
        _infer(scores, shared, lengths, table, items, p, logz, chunk, chunk + 1)


@kernel
def _infer_grad(g, g_logz, scores, shared, lengths, table, items, d_scores, d_shared, begin, end):
    """For each group of sentences: load, inside, rise, fall (and outside), store. Each chunk has its own d_shared."""
    groups = -(-len(scores) // LANES)
    own, end_0 = scores.shape[1], scores.shape[1] + len(shared)
    lanes = min(LANES, len(scores))
    m, e, c = np.empty((items, lanes)), np.empty((items, lanes), np.int64), np.empty((items, lanes))
    rise, fall = np.zeros((items, lanes)), np.empty((items, lanes))
    for chunk in range(begin, end):
        for group in range(first_row(chunk, CHUNKS, groups), first_row(chunk + 1, CHUNKS, groups)):
            first = group * LANES
            _load(scores, shared, m, e, first)
            for lane in range(lanes):
                for i in range(own):
                    rise[i, lane] = g[first + lane, i] if first + lane < len(g) else 0
            _inside(table, m, e)
            _rise(table, m, e, rise)
            c[:] = 0
            fall[:] = 0
            for lane in range(min(LANES, len(scores) - first)):
                c[end_0 + lengths[first + lane], lane] = 1
                fall[end_0 + lengths[first + lane], lane] = g_logz[first + lane]
            _fall(table, m, e, c, rise, fall)
            _store(fall, d_scores, first)
            for i in range(len(shared)):
                for lane in range(min(LANES, len(scores) - first)):
                    d_shared[chunk, i] += fall[own + i, lane]


@kernel(parallel=True)
def _infer_grad_chunks(g, g_logz, scores, shared, lengths, table, items, d_scores, d_shared):
    for chunk in prange(CHUNKS):
        _infer_grad(g, g_logz, scores, shared, lengths, table, items, d_scores, d_shared, chunk, chunk + 1)


@kernel
def _load(scores, shared, m, e, first):
    """e^score of the parts of the sentences from `first` on, as m 2^e; lanes without a sentence get scores of 0."""
    own, end = scores.shape[1], scores.shape[1] + len(shared)
    for lane in range(m.shape[1]):
        for i in range(own):
            _split(scores[first + lane, i] if first + lane < len(scores) else 0.0, m, e, i, lane)
        m[end, lane], e[end, lane] = 1, 0
    for i in range(own, end):
        _split(shared[i - own], m, e, i, 0)
        for lane in range(1, m.shape[1]):
            m[i, lane], e[i, lane] = m[i, 0], e[i, 0]


@kernel
def _split(score, m, e, i, lane):
    """e^score = m 2^e with the whole number e next below score / ln 2."""
    x = np.float64(score)
    if x == -np.inf or x != x:
        m[i, lane], e[i, lane] = 0 if x == x else x, ZERO  # a nan stays one
        return
    x = min(max(x, -LARGEST), LARGEST)
    n = np.floor(x * LOG2_E)
    m[i, lane], e[i, lane] = np.exp((x - n * LN2_HIGH) - n * LN2_LOW), np.int64(n)


@kernel
def _store(x, out, first):
    """The first rows of x (items, LANES), turned, into the rows of `out` from `first` on."""
    for lane in range(min(LANES, len(out) - first)):
        for i in range(out.shape[1]):
            out[first + lane, i] = x[i, lane]


# The trip count of the loops over lanes is read off the array: one known when compiling would be unrolled early, and
# LLVM makes no vector instructions of that. And each of them writes to one array only, so few must be told apart.
@kernel
def _power(n):
    """2^n for an int64 n, by writing the exponent's bits; 0 below -1022. (Above 1023, where it meets m = 0, 2^1023.)"""
    n = n if n < 1023 else np.int64(1023)
    n = n if n > -1023 else np.int64(-1023)
    return np.int64((n + 1023) << 52).view(np.float64)


@kernel
def _add(y, row, x):
    for lane in range(y.shape[1]):
        y[row, lane] += x[lane]


@kernel
def _inside(table, m, e):
    """For each row of the table: the largest exponent of its products; their sum, relative to it; m and e of that."""
    lanes = m.shape[1]
    high, total = np.empty(lanes, np.int64), np.empty(lanes)
    for row in range(len(table)):
        parent, count, a, b = table[row, PARENT], table[row, COUNT], table[row, FIRST], table[row, SECOND]
        for lane in range(lanes):
            high[lane] = 2 * ZERO
            total[lane] = 0
        for _ in range(count):
            for lane in range(lanes):
                n = e[a, lane] + e[b, lane]
                high[lane] = n if n > high[lane] else high[lane]  # noqa: FURB136 (max() does not run in vector lanes)
            a += table[row, STEP_A]
            b += table[row, STEP_B]
        a, b = table[row, FIRST], table[row, SECOND]
        for _ in range(count):
            for lane in range(lanes):
                total[lane] += m[a, lane] * m[b, lane] * _power(e[a, lane] + e[b, lane] - high[lane])
            a += table[row, STEP_A]
            b += table[row, STEP_B]
        for lane in range(lanes):
            bits = np.float64(total[lane]).view(np.int64)
            fraction = np.int64((bits & 0xFFFFFFFFFFFFF) | 0x3FF0000000000000).view(np.float64)
            m[parent, lane] = fraction if total[lane] > 0 else total[lane]
            e[parent, lane] = high[lane] + (bits >> 52) - 1023 if total[lane] > 0 else ZERO


@kernel
def _outside(table, m, e, c):
    """For each row of the table, from the last: c[a], c[b] += q c[parent], for all its products."""
    lanes = m.shape[1]
    part, x = np.empty(lanes), np.empty(lanes)
    for row in range(len(table) - 1, -1, -1):
        parent, a, b = table[row, PARENT], table[row, FIRST], table[row, SECOND]
        for lane in range(lanes):
            part[lane] = c[parent, lane] / m[parent, lane] if m[parent, lane] != 0 else 0.0
        for _ in range(table[row, COUNT]):
            for lane in range(lanes):
                x[lane] = m[a, lane] * m[b, lane] * _power(e[a, lane] + e[b, lane] - e[parent, lane]) * part[lane]
            _add(c, a, x)
            _add(c, b, x)
            a += table[row, STEP_A]
            b += table[row, STEP_B]


@kernel
def _rise(table, m, e, rise):
    """For each row of the table: rise[parent] = sum over its products of q (rise[a] + rise[b])."""
    lanes = m.shape[1]
    total = np.empty(lanes)
    for row in range(len(table)):
        parent, a, b = table[row, PARENT], table[row, FIRST], table[row, SECOND]
        for lane in range(lanes):
            total[lane] = 0
        for _ in range(table[row, COUNT]):
            for lane in range(lanes):
                x = m[a, lane] * m[b, lane] * _power(e[a, lane] + e[b, lane] - e[parent, lane])
                total[lane] += x * (rise[a, lane] + rise[b, lane])
            a += table[row, STEP_A]
            b += table[row, STEP_B]
        for lane in range(lanes):
            rise[parent, lane] = total[lane] / m[parent, lane] if m[parent, lane] != 0 else 0.0


@kernel
def _fall(table, m, e, c, rise, fall):
    """As `_outside`, and: fall[a], fall[b] += q (fall[parent] + c[parent] (rise[a] + rise[b] - rise[parent]))."""
    lanes = m.shape[1]
    part, q, x = np.empty(lanes), np.empty(lanes), np.empty(lanes)
    for row in range(len(table) - 1, -1, -1):
        parent, a, b = table[row, PARENT], table[row, FIRST], table[row, SECOND]
        for lane in range(lanes):
            part[lane] = 1 / m[parent, lane] if m[parent, lane] != 0 else 0.0
        for _ in range(table[row, COUNT]):
            for lane in range(lanes):
                q[lane] = m[a, lane] * m[b, lane] * _power(e[a, lane] + e[b, lane] - e[parent, lane]) * part[lane]
            for lane in range(lanes):
                x[lane] = q[lane] * c[parent, lane]
            _add(c, a, x)
            _add(c, b, x)
            for lane in range(lanes):
                x[lane] *= rise[a, lane] + rise[b, lane] - rise[parent, lane]
            for lane in range(lanes):
                x[lane] += q[lane] * fall[parent, lane]
            _add(fall, a, x)
            _add(fall, b, x)
            a += table[row, STEP_A]
            b += table[row, STEP_B]
