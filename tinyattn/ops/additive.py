r"""Additive (Bahdanau) scores without the four-dimensional array:

    e[b,t,s] = sum_d v[d] tanh(q[b,t,d] + k[b,s,d])          q (B,T,D), k (B,S,D), v (D,) -> e (B,T,S)

A tanh costs about twenty instructions, and B T S D of them are needed, forward and again backward. But the sum inside it
comes apart: with x = e^(2 q) and w = e^(2 k), computed once for each query and each key,

    tanh(q + k) = (x w - 1) / (x w + 1) = n / (n + 2),       n = x w - 1 = w (x - 1) + (w - 1)

so the innermost loop is one multiplication, one addition and one division, and two queries share the division, because
a / A + b / B = (a B + b A) / (A B). The last form of n has no digits to lose where q and k are small (x - 1 and w - 1 come
from `expm1`), nor where w <= 1; so k is first shifted by its maximum over s, and q by as much the other way. Where x would
be so large that the product of two denominators overflows (and for nan and inf) the plain loop with tanh is taken.
"""
import numpy as np
from numba import prange

from ..autograd import Op
from ..cuda import SIMULATED, cuda, cuda_kernel, flat, threads_for, zeros
from ..cuda import tanh as cuda_tanh
from ..device import empty, kernel, launch
from .broadcast import ShapeError
from .reduce import sum_cuda
from .shared import exp_expm1, expm1, first_row, tanh
from .softmax import check_float

CHUNKS = 16  # parts that the batch is cut into for the threads; each has its own share of dv
FEW = 3      # up to so many queries the plain loop is as fast: nothing is used often enough to pay for preparing it
LARGEST = 16.0  # of q + k. e^(4 * 16) is far from the end of float32, 3e38


class AdditiveScores(Op):
    r"""e[b,t,s] = sum_d v[d] tanh(q[b,t,d] + k[b,s,d]).

    q (B, T, D), k (B, S, D), v (D,) -> (B, T, S). Memory beyond that: O((T + S) D) a thread.
    """
    tex = r"{v}^\top \tanh({q}_t + {k}_s)"

    def cpu(self, q, k, v):
        self.check(q, k, v)
        e = empty((q.shape[0], q.shape[1], k.shape[1]), q.dtype)
        args = (np.ascontiguousarray(q), np.ascontiguousarray(k), np.ascontiguousarray(v), e)
        launch(_cost(e, q), _scores, (*args, 0, CHUNKS), _scores_chunks, args)
        return e

    def cuda(self, q, k, v):
        self.check(q, k, v)
        (B, T, D), S = q.shape, k.shape[1]
        e, rows = empty((B, T, S), q.dtype, "cuda"), threads_for(T, ROWS)
        blocks = B * -(-T // rows) * -(-S // SPAN)
        _scores_cuda[blocks, THREADS](flat(q), flat(k), flat(v), flat(e), T, S, D, rows)
        return e

    def check(self, q, k, v):
        check_float(self.name, q)
        if q.ndim != 3 or k.ndim != 3 or v.ndim != 1 or q.shape[0] != k.shape[0] or not q.shape[2] == k.shape[2] == v.shape[0]:
            raise ShapeError(f"{self.name}: expected q (B, T, D), k (B, S, D), v (D,), got q {q.shape}, k {k.shape}, v {v.shape}")
        if not q.dtype == k.dtype == v.dtype:
            raise TypeError(f"{self.name}: q, k and v must have one dtype, got {q.dtype}, {k.dtype}, {v.dtype}")

    def cpu_grad(self, g, e, q, k, v):
        dq, dk, dv = empty(q.shape, q.dtype), empty(k.shape, k.dtype), np.zeros((CHUNKS, len(v)), v.dtype)
        args = (np.ascontiguousarray(g), np.ascontiguousarray(q), np.ascontiguousarray(k), np.ascontiguousarray(v), dq, dk, dv)
        launch(2 * _cost(e, q), _scores_grad, (*args, 0, CHUNKS), _scores_grad_chunks, args)
        need_q, need_k, need_v = self.needs
        return dq if need_q else None, dk if need_k else None, dv.sum(axis=0) if need_v else None

    def cuda_grad(self, g, e, q, k, v):
        (B, T, D), S, kind = q.shape, k.shape[1], q.dtype
        if 0 in (B, T, S, D):
            return tuple([zeros(x.shape, kind) for x in (q, k, v)])
        tiles, columns = -(-T // TILE), -(-D // FEATURES)
        each = -(-tiles // min(PARTS, -(-BLOCKS // (B * columns)))) * TILE  # queries of a part
        parts = -(-T // each)
        dq, dk, dv = (empty(x.shape, kind, "cuda") for x in (q, k, v))
        dk_parts = dk if parts == 1 else empty((parts, *k.shape), kind, "cuda")
        dv_parts = dv if parts * B == 1 else empty((parts * B, D), kind, "cuda")
        _scores_grad_cuda[B * columns * parts, FEATURES * WARPS](
            flat(g), flat(q), flat(k), flat(v), flat(dq), flat(dk_parts), flat(dv_parts), T, S, D, parts, each)
        if parts > 1:
            sum_cuda(flat(dk_parts), flat(dk), 1, parts, k.size)
        if parts * B > 1:
            sum_cuda(flat(dv_parts), flat(dv), 1, parts * B, D)
        return dq, dk, dv

    def composed(self, q, k, v):
        (B, T, D), S = q.shape, k.shape[1]
        return ((q.reshape(B, T, 1, D) + k.reshape(B, 1, S, D)).tanh() * v).sum(axis=-1)

    def samples(rng):
        """One and several queries (odd and even), one key, width 1, batch 0, saturated and very large values."""
        for B, T, S, D in [(2, 1, 3, 4), (1, 5, 2, 3), (2, 4, 3, 5), (1, 2, 1, 1), (0, 2, 3, 2), (2, 4, 0, 2)]:
            yield {}, (rng.normal(size=(B, T, D)), rng.normal(size=(B, S, D)), rng.normal(size=D))
        yield {}, (rng.normal(size=(1, 4, 2)) * 30, rng.normal(size=(1, 3, 2)), rng.normal(size=2))
        yield {}, (rng.normal(size=(1, 4, 2)) + 10, rng.normal(size=(1, 3, 2)) - 10, rng.normal(size=2))


def _cost(e, q):
    return e.size * q.shape[2] * (0.25 if q.dtype == np.float32 else 1.5)


# ---------------------------------------------------------------------------------------------------------------------
# the loops
# ---------------------------------------------------------------------------------------------------------------------
@kernel
def _scores(q, k, v, e, begin, end):
    """For each chunk of the batch, each b in it: prepare x and w (T D + S D exponentials), then T S D cheap steps."""
    B, T, S = len(q), q.shape[1], k.shape[1]
    fast = T > FEW
    x1, w, w1, c = _scratch(q, T if fast else 0, S if fast else 0)
    for b in range(first_row(begin, CHUNKS, B), first_row(end, CHUNKS, B)):
        if fast and _prepare(q[b], k[b], c, x1, w, w1):
            _sum_fractions(x1, w, w1, v, e[b])
        else:
            _sum_tanh(q[b], k[b], v, e[b])


@kernel(parallel=True)
def _scores_chunks(q, k, v, e):
    for chunk in prange(CHUNKS):
        _scores(q, k, v, e, chunk, chunk + 1)


@kernel
def _scores_grad(g, q, k, v, dq, dk, dv, begin, end):
    """As `_scores`; the loops below leave out the factor v[d] of dq and dk, which is put in here at the end.

    Each chunk of the batch has its own row of dv.
    """
    B, T, D = q.shape
    S = k.shape[1]
    fast = T > FEW
    x1, w, w1, c = _scratch(q, T if fast else 0, S if fast else 0)
    for chunk in range(begin, end):
        for b in range(first_row(chunk, CHUNKS, B), first_row(chunk + 1, CHUNKS, B)):
            dq[b] = 0
            dk[b] = 0
            if fast and _prepare(q[b], k[b], c, x1, w, w1):
                _grad_fractions(g[b], x1, w, w1, dq[b], dk[b], dv[chunk], c)
            else:
                _grad_tanh(g[b], q[b], k[b], dq[b], dk[b], dv[chunk])
            for t in range(T):
                for d in range(D):
                    dq[b, t, d] *= v[d]
            for s in range(S):
                for d in range(D):
                    dk[b, s, d] *= v[d]


@kernel(parallel=True)
def _scores_grad_chunks(g, q, k, v, dq, dk, dv):
    for chunk in prange(CHUNKS):
        _scores_grad(g, q, k, v, dq, dk, dv, chunk, chunk + 1)


@kernel
def _scratch(q, T, S):
    """Room for one batch element: x - 1 (T, D), w (S, D), w - 1 (S, D) and a row."""
    D = q.shape[2]
    return np.empty((T, D), q.dtype), np.empty((S, D), q.dtype), np.empty((S, D), q.dtype), np.empty(D, q.dtype)


@kernel
def _prepare(q, k, c, x1, w, w1):
    """From q (T, D) and k (S, D): x1 = e^(2 (q + c)) - 1, w = e^(2 (k - c)) <= 1, w1 = w - 1, where c[d] = max_s k[s, d].

    Returns whether the loops over fractions may be used: no x is too large, and neither nan nor inf does any harm.
    """
    T, S, D = len(q), len(k), q.shape[1]
    two, limit = q.dtype.type(2), q.dtype.type(LARGEST)
    if S == 0:
        return True
    for d in range(D):
        c[d] = k[0, d]
    for s in range(S):
        for d in range(D):
            c[d] = k[s, d] if k[s, d] > c[d] else c[d]  # noqa: FURB136 (max() of Numba does not run in vector lanes)
    bad = 0
    for d in range(D):
        bad += not c[d] > -np.inf
    for t in range(T):
        for d in range(D):
            bad += not q[t, d] + c[d] <= limit  # also where it is nan
    if bad > 0:
        return False
    for t in range(T):
        for d in range(D):
            x1[t, d] = expm1(two * (q[t, d] + c[d]))
    for s in range(S):
        for d in range(D):
            e, e1 = exp_expm1(two * (k[s, d] - c[d]))
            w[s, d] = e
            w1[s, d] = e1
    return True


@kernel
def _two_tanh(x_t, x_u, w, w1, v, two):
    """v tanh(q + k) of two queries and one key: v n / (n + 2) of both, with one division."""
    n_t, n_u = w * x_t + w1, w * x_u + w1
    m_t, m_u = n_t + two, n_u + two
    p = v / (m_t * m_u)
    return n_t * m_u * p, n_u * m_t * p


@kernel(reduces=True)
def _sum_fractions(x1, w, w1, v, e):
    """For each pair of queries t and u, each key s, along d: add v tanh(q + k) of both.

    Without a partner (T odd) the last query is its own.
    """
    two = v.dtype.type(2)
    for t in range(0, len(x1), 2):
        u = min(t + 1, len(x1) - 1)
        for s in range(len(w)):
            e_t, e_u = v.dtype.type(0), v.dtype.type(0)
            for d in range(len(v)):
                y_t, y_u = _two_tanh(x1[t, d], x1[u, d], w[s, d], w1[s, d], v[d], two)
                e_t += y_t
                e_u += y_u
            e[t, s] = e_t
            e[u, s] = e_u


@kernel(reduces=True)
def _sum_tanh(q, k, v, e):
    """For each query t, each key s, along d: add v tanh(q + k)."""
    for t in range(len(q)):
        for s in range(len(k)):
            total = v.dtype.type(0)
            for d in range(len(v)):
                total += v[d] * tanh(q[t, d] + k[s, d])
            e[t, s] = total


@kernel
def _grad_fractions(g, x1, w, w1, dq, dk, dv, spare):
    """For each block of keys (so that they stay near), each pair of queries t and u, each key s of the block, along d:

    y = tanh(q + k) of both;   dq[t] += g (1 - y^2) for each;   dk[s] += the same of both;   dv += g y of both
    """
    one, two, zero = g.dtype.type(1), g.dtype.type(2), g.dtype.type(0)
    T, S, D = len(x1), len(w), len(dv)
    block = max(2048 // max(D, 1), 1)
    spare[:] = zero
    for start in range(0, S, block):
        for t in range(0, T, 2):
            u = min(t + 1, T - 1)
            dq_u = dq[u] if u > t else spare  # without a partner: nowhere, with a gradient of 0
            for s in range(start, min(start + block, S)):
                g_t, g_u = g[t, s], g[u, s] if u > t else zero
                for d in range(D):
                    y_t, y_u = _two_tanh(x1[t, d], x1[u, d], w[s, d], w1[s, d], one, two)
                    h_t, h_u = g_t * (one - y_t * y_t), g_u * (one - y_u * y_u)
                    dq[t, d] += h_t
                    dq_u[d] += h_u
                    dk[s, d] += h_t + h_u
                    dv[d] += g_t * y_t + g_u * y_u


@kernel
def _grad_tanh(g, q, k, dq, dk, dv):
    """For each query t, each key s, along d, with y = tanh(q + k): dq[t] += g (1 - y^2), dk[s] += the same, dv += g y."""
    one = g.dtype.type(1)
    for t in range(len(q)):
        for s in range(len(k)):
            a = g[t, s]
            for d in range(len(dv)):
                y = tanh(q[t, d] + k[s, d])
                h = a * (one - y * y)
                dq[t, d] += h
                dk[s, d] += h
                dv[d] += a * y


# ---------------------------------------------------------------------------------------------------------------------
# the same on a card: flat arrays
# ---------------------------------------------------------------------------------------------------------------------
THREADS = 4 if SIMULATED else 256   # of a block of scores, which has
ROWS = 2 if SIMULATED else 16       # queries at most,
COLUMNS = 2 if SIMULATED else 16    # threads for the keys of each,
KEYS = 2 if SIMULATED else 4        # keys a thread,
SPAN = COLUMNS * KEYS               # so these keys,
DEPTH = 4 if SIMULATED else 32      # and so many features of all of them in shared memory,
PITCH = DEPTH + 1                   # in rows that begin in different banks of it
FEATURES = 2 if SIMULATED else 32   # a block of gradients has so many features, one a thread of a warp,
WARPS = 2 if SIMULATED else 8       # so many warps,
QUERIES = 2 if SIMULATED else 4     # and so many queries a thread
TILE = WARPS * QUERIES              # of these at a time
PARTS = 8                           # the queries of one b are dealt to so many blocks at most, each with a dk of its own,
BLOCKS = 1024                       # and to no more than fill a card


@cuda_kernel("T[::1], T[::1], T[::1], T[::1], int64, int64, int64, int64")
def _scores_cuda(q, k, v, e, T, S, D, rows):
    """A block computes the scores of `rows` queries and SPAN keys of one b: thread (part, r, c) those of query r
    with the keys c, c + COLUMNS, ...

    Row r of q is wanted by COLUMNS threads and each row of k by `rows`, so the block fetches them together: for each
    stretch of DEPTH features it puts its rows of q and k and a piece of v into shared memory, and every thread adds up
    v tanh(q + k) along them. Where there are few queries, several threads share a score: part 0 takes the first features
    of a stretch, part 1 the next, and at the end the parts are added in a tree.

    Beyond the edges what is inside is read once more, for a load that nothing decides about need not wait for the one
    before; and v is 0.
    """
    near_q = cuda.shared.array((ROWS, PITCH), q.dtype)
    near_k = cuda.shared.array((SPAN, PITCH), q.dtype)
    near_v = cuda.shared.array(DEPTH, q.dtype)
    sums = cuda.shared.array((KEYS, THREADS), q.dtype)
    n, team = cuda.threadIdx.x & THREADS - 1, rows * COLUMNS  # "&": so the compiler sees that no index is negative
    c, r, part, parts = n % COLUMNS, n // COLUMNS & rows - 1, n // team & THREADS - 1, THREADS // team
    first, run = part * (DEPTH // parts), DEPTH // parts
    across, down = (S + SPAN - 1) // SPAN, (T + rows - 1) // rows
    s0, t0 = cuda.blockIdx.x % across * SPAN, cuda.blockIdx.x // across % down * rows
    b = cuda.blockIdx.x // (across * down)
    from_q, from_k = b * T + t0, b * S + s0
    total, zero = cuda.local.array(KEYS, q.dtype), q.dtype.type(0)
    line, below = n // DEPTH, THREADS // DEPTH
    for j in range(KEYS):
        total[j] = zero
    for left in range(0, D, DEPTH):
        d = n % DEPTH
        at = left + d if left + d < D else D - 1
        for i in range(ROWS // below):
            row = line + i * below
            near_q[row, d] = q[np.uint64((from_q + (row if row < rows and t0 + row < T else 0)) * D + at)]
        for i in range(SPAN // below):
            row = line + i * below
            near_k[row, d] = k[np.uint64((from_k + (row if s0 + row < S else 0)) * D + at)]
        if n < DEPTH:
            near_v[d] = v[at] if left + d < D else zero
        cuda.syncthreads()
        for i in range(0, run if left + first + run < D else D - left - first, 2):
            for odd in range(2):
                d = (first + i & DEPTH - 2) + odd
                here, factor = near_q[r, d], near_v[d]
                for j in range(KEYS):
                    total[j] += factor * cuda_tanh(here + near_k[c + j * COLUMNS, d])
        cuda.syncthreads()
    for j in range(KEYS):
        sums[j, n] = total[j]
    cuda.syncthreads()
    step = parts // 2
    while step > 0:
        if part < step:
            for j in range(KEYS):
                sums[j, n] += sums[j, n + step * team]
        cuda.syncthreads()
        step //= 2
    if part == 0 and t0 + r < T:
        for j in range(KEYS):
            if s0 + c + j * COLUMNS < S:
                e[(from_q + r) * S + s0 + c + j * COLUMNS] = sums[j, n]


@cuda_kernel("T[::1], T[::1], T[::1], T[::1], T[::1], T[::1], T[::1], int64, int64, int64, int64, int64")
def _scores_grad_cuda(g, q, k, v, dq, dk, dv, T, S, D, parts, each):
    """A block works on FEATURES features of one b, and on one part of its queries, `each` many; thread (r, lane) on
    feature d = lane of the block's, and on the queries r, r + WARPS, ... of TILE queries at a time.

    WARPS keys at a time, with their g, are put into shared memory. For each, with y = tanh(q + k) computed again:
    dq[t] += v g (1 - y^2) and dv += g y stay with the thread that owns t and d. dk[s] adds up over the queries of all
    warps: each leaves its share in shared memory, all wait, and warp r adds the shares of key r. Each part of the queries
    has its own dk, and with each b its own dv. Beyond the edges what is inside is read once more, and g is 0.
    """
    near_g = cuda.shared.array((TILE, WARPS), q.dtype)
    near_k = cuda.shared.array((WARPS, FEATURES), q.dtype)
    shares = cuda.shared.array((WARPS, WARPS, FEATURES), q.dtype)
    n, columns = cuda.threadIdx.x & FEATURES * WARPS - 1, (D + FEATURES - 1) // FEATURES
    lane, r, c, row = n % FEATURES, n // FEATURES, n % WARPS, n // WARPS
    d, part = cuda.blockIdx.x % columns * FEATURES + lane, cuda.blockIdx.x // columns % parts
    b = cuda.blockIdx.x // (columns * parts)
    zero, one = q.dtype.type(0), q.dtype.type(1)
    inside, to_v = d < D, zero
    d = d if inside else D - 1
    factor = v[d]
    own = cuda.local.array(QUERIES, q.dtype)
    to_q = cuda.local.array(QUERIES, q.dtype)
    first = part * each
    last = first + each if first + each < T else T
    for t0 in range(first, last, TILE):
        for j in range(QUERIES):
            t = t0 + r + j * WARPS
            own[j] = q[np.uint64((b * T + (t if t < last else first)) * D + d)]
            to_q[j] = zero
        for s0 in range(0, S, WARPS):
            for i in range(TILE // FEATURES):
                t, s = row + i * FEATURES, s0 + c
                a = g[np.uint64((b * T + (t0 + t if t0 + t < last else first)) * S + (s if s < S else 0))]
                near_g[t, c] = a if t0 + t < last and s < S else zero
            at = (b * S + (s0 + r if s0 + r < S else 0)) * D + d
            near_k[r, lane] = k[np.uint64(at)]
            cuda.syncthreads()
            for i in range(WARPS):
                key, share = near_k[i, lane], zero
                for j in range(QUERIES):
                    y, a = cuda_tanh(own[j] + key), near_g[r + j * WARPS, i]
                    slope = a * (one - y * y)
                    to_q[j] += slope
                    to_v += a * y
                    share += slope
                shares[r, i, lane] = share
            cuda.syncthreads()
            if s0 + r < S and inside:
                total = zero
                for i in range(WARPS):
                    total += shares[i, r, lane]
                before = zero if t0 == first else dk[part * k.size + at]
                dk[part * k.size + at] = before + factor * total
        for j in range(QUERIES):
            t = t0 + r + j * WARPS
            if t < last and inside:
                dq[(b * T + t) * D + d] = factor * to_q[j]
    cuda.syncthreads()
    shares[r, 0, lane] = to_v
    cuda.syncthreads()
    if r == 0 and inside:
        total = zero
        for i in range(WARPS):
            total += shares[i, 0, lane]
        dv[(b * parts + part) * D + d] = total
