r"""Structured inference: sums over all structures (paths here, trees in `eisner.py`), and the linear chain.

A structure z is a choice among L scored parts, and its weight is e^(sum of the scores of its parts). Wanted are

    log Z = log sum_z e^score(z)             p[part] = sum of e^score(z) over the z that use the part, over Z

There are far too many z to visit, but Z comes apart into small sums of products of two, shared by many z:

    v[parent] = sum_k v[a_k] v[b_k]          v[part] = e^score(part)          Z = v[end]

Such a recursion is a table with one row a sum, children before parents; the ops differ in nothing but this table:

    parent, a, step of a, b, step of b, count          a_k = a + k (step of a), b_k = b + k (step of b), 0 <= k < count

and everything else follows from it, with the share q_k = v[a_k] v[b_k] / v[parent] of each product in its sum:

    inside       v, down the table
    outside      the chance c of each item to be used, up the table: c[end] = 1; c[a_k], c[b_k] += q_k c[parent]
                 p = c of the parts = d log Z / d score (what is called marginals)

The gradient needs no rule of its own. d log Z / d score = p, so the matrix of second derivatives d p / d score is symmetric,
and a gradient g that arrives at p is carried to the scores by the same matrix as a step g of the scores to p:

    gradient at the scores  =  g_logz p  +  the slope of c of the parts as the scores move along g
    rise         the slope of log v, down the table: rise[parent] = sum_k q_k (rise[a_k] + rise[b_k]), rise[part] = g[part]
    fall         slope of c (plus g_logz c), up the table: f[end] = g_logz;
                 f[a_k], f[b_k] += q_k (f[parent] + c[parent] (rise[a_k] + rise[b_k] - rise[parent]))

All of these are averages with the weights q_k, of numbers of any sign: no logarithm of a gradient is ever taken.

A float holds e^700 at most, and a score may be 1e4. So in place of log v (and a log and an exp at every step) each v is kept
as a fraction and an exponent of its own, v = m 2^e with 1 <= m < 2, e an int64: log space with the whole part of the logarithm
written down and the rest left as it is. Sums and products of such numbers are plain arithmetic, exact to rounding however
large the scores are. A part that is forbidden (score -inf) is m = 0. Inside the loops all is float64, whatever comes in.

The loops go over `LANES` sentences of the batch at once, innermost, so each line is a vector instruction.
"""
import numpy as np
from numba import prange

from ..autograd import Op
from ..device import empty, kernel, launch
from .broadcast import ShapeError
from .recurrent import all_steps
from .shared import first_row
from .softmax import check_float

LANES = 8    # sentences that are computed side by side: the float64 numbers of a vector register
CHUNKS = 16  # parts that the groups of LANES sentences are cut into for the threads
ZERO = -(1 << 60)     # the exponent of the number 0: less than any sum of exponents
LARGEST = 7e14        # of a score in absolute value; more is taken as this much. 1000 of them together stay above ZERO
LOG2_E = 1.4426950408889634
LN2_HIGH, LN2_LOW = 0.6931471803691238, 1.9082149292705877e-10  # ln 2 = their sum; whole multiples of the first are exact
PARENT, A, STEP_A, B, STEP_B, COUNT = range(6)


# ---------------------------------------------------------------------------------------------------------------------
# from arrays to the loops and back
# ---------------------------------------------------------------------------------------------------------------------
def check_lengths(name, lengths, batch, longest, letter):
    """`lengths` as contiguous int64, all `longest` for None; TypeError, ShapeError or ValueError if they cannot be."""
    if lengths is None:
        return all_steps(batch, longest)
    if lengths.dtype.kind not in "iu":
        raise TypeError(f"{name}: expected integer lengths, got {lengths.dtype}")
    if lengths.shape != (batch,):
        raise ShapeError(f"{name}: expected lengths (B,) = ({batch},), got {lengths.shape}")
    if batch and (lengths.min() < 0 or lengths.max() > longest):
        raise ValueError(f"{name}: expected lengths between 0 and {letter} = {longest}, got {lengths.min()} to {lengths.max()}")
    return np.ascontiguousarray(lengths, np.int64)


def infer(scores, shared, lengths, table, items):
    """(p, log Z): p (B, L) for the scores (B, L) of each sentence's own parts, log Z (B,).

    shared  (M,) scores of parts that are the same in all sentences
    table   the recursion; the items are numbered: L own parts, M shared parts, the ends of lengths 0, 1, 2, ... (the end of
            length 0 is the number 1), then whatever the table needs, `items` in all
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
    return -(-len(scores) // LANES) * 12.0 * (int(table[:, COUNT].sum()) + 2 * len(table))


# ---------------------------------------------------------------------------------------------------------------------
# the chain
# ---------------------------------------------------------------------------------------------------------------------
class LinearChain(Op):
    r"""Marginals p[b,t,c] = P(z_t = c) and log Z of the paths z_1 .. z_T with weight e^(sum_t u[b,t,z_t] + sum_t w[z_t,z_t+1]).

    u (B, T, C) scores of the states, w (C, C) scores w[i, j] of going from state i to state j, lengths (B,) integers or None
    -> p (B, T, C), log Z (B,). Cost O(B T C^2), memory O(T C + C^2) a sentence. Raises ShapeError, TypeError, ValueError.

    The forward-backward algorithm, in the form of the file's head:
        reach[t,j] = sum_i forward[t-1,i] w[i,j]      forward[t,j] = reach[t,j] u[t,j]      end[t+1] = sum_j forward[t,j]
    Every unary score counts once a node. (Kim et al. 2017 print theta_i + theta_i+1 + b for each edge, which counts those
    inside the sequence twice; their code adds each once.) Beyond its length a sequence has p = 0 and sends gradient 0; a
    sequence of length 0 has log Z = 0. A score of -inf forbids a state or a step: its p is 0 and so is its gradient. Where
    that leaves no path at all, p = 0, log Z = -inf and the gradients are 0.
    """
    tex = r"P(z_t \mid {u}, {w})"

    def cpu(self, u, w, lengths):
        (B, T, C), lengths = self._checked(u, w, lengths)
        p, logz = infer(*_rows(u, w), lengths, *self._table(T, C))
        return p.reshape(B, T, C), logz

    def cpu_grad(self, g, y, u, w, lengths):
        (B, T, C), lengths = self._checked(u, w, lengths)
        incoming = np.ascontiguousarray(g[0]).reshape(B, T * C), np.ascontiguousarray(g[1])
        du, dw = infer_grad(*incoming, *_rows(u, w), lengths, *self._table(T, C))
        return du.reshape(B, T, C) if self.needs[0] else None, dw.reshape(C, C) if self.needs[1] else None, None

    def composed(self, u, w, lengths):
        """The two recursions by log-sum-exp, forward from the first step and backward from each sequence's last."""
        (B, T, C), lengths = self._checked(u.array, w.array, None if lengths is None else lengths.array)
        if T == 0:
            return u * 1, u.sum(axis=(1, 2))
        alive = [self.result((lengths > t)[:, None]) for t in range(T + 1)]         # (B,1): does step t exist?
        forward, backward = [u[:, 0]], [u[:, 0].where(False, 0.0)]                  # (B,C) each; the last step's is 0
        for t in range(1, T):
            step = u[:, t] + (forward[-1].unsqueeze(2) + w).logsumexp(1)
            forward.append(step.where(alive[t], forward[-1]))
        for t in reversed(range(T - 1)):
            step = (w + (u[:, t + 1] + backward[0]).unsqueeze(1)).logsumexp(2)
            backward.insert(0, step.where(alive[t + 1], 0.0))
        logz = forward[-1].logsumexp(1).where(alive[0].squeeze(1), 0.0)             # (B,)
        shift = logz.where(logz.isfinite(), 0.0).unsqueeze(1)                       # no path: e^(-inf - 0) = 0
        p = [(a + b - shift).exp().where(alive[t], 0.0) for t, (a, b) in enumerate(zip(forward, backward, strict=True))]
        return self.result.stack(p, 1), logz

    def _checked(self, u, w, lengths):
        check_float(self.name, u)
        if w.dtype != u.dtype:
            raise TypeError(f"{self.name}: u and w must have one dtype, got {u.dtype} and {w.dtype}")
        if u.ndim != 3 or w.shape != (u.shape[2], u.shape[2]) or u.shape[2] == 0:
            raise ShapeError(f"{self.name}: expected u (B,T,C), w (C,C) with C > 0, got u {u.shape}, w {w.shape}")
        return u.shape, check_lengths(self.name, lengths, *u.shape[:2], "T")

    def _table(self, T, C):
        table = np.empty((max(2 * T - 2, 0) * C + T, 6), np.int64)
        _chain(table, T, C)
        return table, 3 * T * C + C * C + T + 1

    def samples(rng):
        """Lengths, one step, one state, a state and a step that are forbidden, no path, large scores, no batch, no step."""
        for B, T, C, lengths in [(2, 3, 2, [3, 2]), (3, 4, 3, [4, 0, 1]), (1, 1, 2, None), (2, 2, 1, None), (0, 2, 2, None),
                                 (2, 0, 2, None)]:
            u, w = rng.normal(size=(B, T, C)), rng.normal(size=(C, C))
            yield {}, (u, w, None if lengths is None else np.array(lengths))
        u, w = rng.normal(size=(2, 3, 3)), rng.normal(size=(3, 3))
        u[0, 1, 2] = w[1, 0] = -np.inf
        u[1, 1] = -np.inf
        yield {}, (u, w, None)
        yield {}, (rng.normal(size=(2, 3, 2)) + [[[0.0, 1e4]]], rng.normal(size=(2, 2)), None)


def _rows(u, w):
    return np.ascontiguousarray(u).reshape(len(u), u.shape[1] * u.shape[2]), np.ascontiguousarray(w).reshape(-1)


@kernel
def _chain(table, T, C):
    """Write the table of the chain.

    Items: u (T,C), w (C,C), end (T+1,), reach (T,C), forward (T,C). Of the first step there is only u, which is its forward.
    """
    w = T * C
    end = w + C * C
    reach = end + T + 1
    forward = reach + T * C
    row = 0
    for t in range(T):
        before = forward + (t - 1) * C if t > 1 else 0
        for j in range(C if t > 0 else 0):
            row = _write(table, row, reach + t * C + j, before, 1, w + j, C, C)
            row = _write(table, row, forward + t * C + j, reach + t * C + j, 0, t * C + j, 0, 1)
        row = _write(table, row, end + t + 1, forward + t * C if t > 0 else 0, 1, end, 0, C)  # times end[0], which is 1


@kernel
def _write(table, row, parent, a, step_a, b, step_b, count):
    """v[parent] = sum over k < count of v[a + k step_a] v[b + k step_b], as row `row`; returns the number of the next."""
    table[row, PARENT], table[row, A], table[row, STEP_A] = parent, a, step_a
    table[row, B], table[row, STEP_B], table[row, COUNT] = b, step_b, count
    return row + 1


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
    """For each group of LANES sentences: load, inside, rise; then outside and fall; store. Each chunk has its own d_shared."""
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


# The trip count of the loops over lanes is read off the array: one that is known when compiling would be unrolled early,
# and LLVM makes no vector instructions of that. For the same reason each of them writes to one array only.
@kernel
def _power(n):
    """2^n for an int64 n, by writing the exponent's bits; 0 below -1022. (Above 1023, where only m = 0 comes, 2^1023.)"""
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
        parent, count, a, b = table[row, PARENT], table[row, COUNT], table[row, A], table[row, B]
        for lane in range(lanes):
            high[lane] = 2 * ZERO
            total[lane] = 0
        for _ in range(count):
            for lane in range(lanes):
                n = e[a, lane] + e[b, lane]
                high[lane] = n if n > high[lane] else high[lane]  # noqa: FURB136 (max() does not run in vector lanes)
            a += table[row, STEP_A]
            b += table[row, STEP_B]
        a, b = table[row, A], table[row, B]
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
        parent, a, b = table[row, PARENT], table[row, A], table[row, B]
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
        parent, a, b = table[row, PARENT], table[row, A], table[row, B]
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
    """As `_outside`, and with it fall[a], fall[b] += q (fall[parent] + c[parent] (rise[a] + rise[b] - rise[parent]))."""
    lanes = m.shape[1]
    part, q, x = np.empty(lanes), np.empty(lanes), np.empty(lanes)
    for row in range(len(table) - 1, -1, -1):
        parent, a, b = table[row, PARENT], table[row, A], table[row, B]
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
