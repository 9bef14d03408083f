r"""Several additive scores at once (the lift of Bahdanau's score to many dimensions), without the 4-D array of tanh:

    e[b,m,t,s] = sum_d w[m,d] tanh(q[b,t,d] + k[b,s,d])      q (B,T,D), k (B,S,D), w (M,D) -> e (B,M,T,S)

For each b, for a few queries at a time: R = (queries of the group) S rows of Y (R,D) are filled with tanh(q + k), and
used at once, while they are near, by a product with w. Backward they are filled again:

    e = w Y^T      dY = g^T w      dw += g Y      h = dY (1 - Y^2)      dq[t] = sum_s h      dk[s] = sum_t h

A tanh is cheap where every query and every key is used often. As in `additive.py`, with x = e^(2 q) and z = e^(2 k)
computed once,

    tanh(q + k) = n / (n + 2),    n = x z - 1 = z (x - 1) + (z - 1)

where k was first shifted by its maximum over s, and q by as much the other way, so z <= 1. For few queries, where x is
too large, and for nan and inf, Y is filled with tanh as it is. So it is on a card, where tanh is no slower.
"""
import numpy as np
from numba import prange

from ..autograd import Op
from ..cuda import SIMULATED, cuda, cuda_function, cuda_kernel, flat, zeros
from ..cuda import tanh as cuda_tanh
from ..device import empty, kernel, launch
from .broadcast import ShapeError
from .reduce import sum_cuda
from .shared import exp_expm1, expm1, first_row, pack, product, tanh
from .softmax import check_float

CHUNKS = 16     # parts that the batch is cut into for the threads; each has its own share of dw
ROWS = 192      # so many rows of Y at a time, if not those of one query are more
SPARE = 16      # `pack` turns blocks of so many rows fastest: what is left of one is packed too, and not read
FEW = 3         # up to so many queries preparing x and z does not pay
LARGEST = 16.0  # of q + k. e^(4 * 16) is far from the end of float32, 3e38


class Additive2d(Op):
    r"""e[b,m,t,s] = sum_d w[m,d] tanh(q[b,t,d] + k[b,s,d]): M scores of each query and key, with one hidden layer.

    q (B, T, D), k (B, S, D), w (M, D) -> (B, M, T, S). With M = 1 it is `AdditiveScores`. ShapeError and TypeError for
    inputs that do not fit. Memory beyond that: O((T + S) D) a thread. Table 2 of Hu 2018.
    """
    name = "additive_2d"
    tex = r"{w} \tanh({q}_t + {k}_s)"

    def cpu(self, q, k, w):
        self.check(q, k, w)
        e = empty((q.shape[0], len(w), q.shape[1], k.shape[1]), q.dtype)
        args = (*map(np.ascontiguousarray, (q, k, w)), e)
        launch(_cost(q, k, w), _scores, (*args, 0, CHUNKS), _scores_chunks, args)
        return e

    def cuda(self, q, k, w):
        self.check(q, k, w)
        (B, T, D), S, M = q.shape, k.shape[1], w.shape[0]
        e = empty((B, M, T, S), q.dtype, "cuda")
        _scores_cuda[-(-B * T * S // SPAN) * -(-M // SPAN), TEAM * TEAM](flat(q), flat(k), flat(w), flat(e), B * T * S, T, S,
                                                                        D, M)
        return e

    def check(self, q, k, w):
        check_float(self.name, q)
        fits = q.ndim == k.ndim == 3 and w.ndim == 2 and q.shape[0] == k.shape[0] and q.shape[2] == k.shape[2] == w.shape[1]
        if not fits:
            raise ShapeError(f"{self.name}: expected q (B, T, D), k (B, S, D), w (M, D), "
                             f"got q {q.shape}, k {k.shape}, w {w.shape}")
        if not q.dtype == k.dtype == w.dtype:
            raise TypeError(f"{self.name}: q, k and w must have one dtype, got {q.dtype}, {k.dtype}, {w.dtype}")

    def cpu_grad(self, g, e, q, k, w):
        dq, dk, dw = empty(q.shape, q.dtype), empty(k.shape, k.dtype), np.zeros((CHUNKS, *w.shape), w.dtype)
        args = (*map(np.ascontiguousarray, (g, q, k, w)), dq, dk, dw)
        launch(2 * _cost(q, k, w), _scores_grad, (*args, 0, CHUNKS), _scores_grad_chunks, args)
        need_q, need_k, need_w = self.needs
        return dq if need_q else None, dk if need_k else None, dw.sum(axis=0) if need_w else None

    def cuda_grad(self, g, e, q, k, w):
        if 0 in (*e.shape, q.shape[2]):
            return tuple([zeros(x.shape, x.dtype) for x in (q, k, w)])
        S, (need_q, need_k, need_w) = k.shape[1], self.needs
        return (_rows_grad_on_card(g, q, k, w, S, 1) if need_q else None,
                _rows_grad_on_card(g, k, q, w, 1, S) if need_k else None,
                _weights_grad_on_card(g, q, k, w) if need_w else None)

    def composed(self, q, k, w):
        (B, T, D), S = q.shape, k.shape[1]
        y = (q.reshape(B, T, 1, D) + k.reshape(B, 1, S, D)).tanh()               # (B, T, S, D)
        return (y @ w.T).permute(0, 3, 1, 2)                                     # (B, M, T, S)

    def samples(rng):
        """One and several queries, one key, width 1, one score, batch 0, no keys; saturated and very large values."""
        for B, T, S, D, M in [(2, 1, 3, 4, 2), (1, 5, 2, 3, 3), (2, 4, 3, 5, 1), (1, 2, 1, 1, 2), (0, 2, 3, 2, 2),
                              (2, 4, 0, 2, 2)]:
            yield {}, (rng.normal(size=(B, T, D)), rng.normal(size=(B, S, D)), rng.normal(size=(M, D)))
        yield {}, (rng.normal(size=(1, 4, 2)) * 30, rng.normal(size=(1, 3, 2)), rng.normal(size=(2, 2)))
        yield {}, (rng.normal(size=(1, 4, 2)) + 10, rng.normal(size=(1, 3, 2)) - 10, rng.normal(size=(2, 2)))


def _cost(q, k, w):
    return q.size * k.shape[1] * ((0.25 if q.dtype == np.float32 else 1.5) + 0.02 * len(w))


# ---------------------------------------------------------------------------------------------------------------------
# the loops over the batch, a group of queries at a time
# ---------------------------------------------------------------------------------------------------------------------
@kernel
def _scores(q, k, w, e, begin, end):
    """For each b of the chunks, each group of queries: fill Y, lay it on its side, e = w Y^T."""
    B, T, S, M = len(q), q.shape[1], k.shape[1], len(w)
    group = _group(T, S)
    x1, z, z1, high, y = _scratch(q, T, S, group)
    for b in range(first_row(begin, CHUNKS, B), first_row(end, CHUNKS, B)):
        fast = T > FEW and _prepare(q[b], k[b], high, x1, z, z1)
        here = e[b].reshape(M, T * S)
        for t in range(0, T, group):
            last = min(t + group, T)
            if fast:
                _fill_fractions(x1[t:last], z, z1, y)
            else:
                _fill_tanh(q[b, t:last], k[b], y)
            rows = -(-(last - t) * S // SPARE) * SPARE
            product(here[:, t * S:last * S], w, pack(y[:rows].T), False)


@kernel(parallel=True)
def _scores_chunks(q, k, w, e):
    for chunk in prange(CHUNKS):
        _scores(q, k, w, e, chunk, chunk + 1)


@kernel
def _scores_grad(g, q, k, w, dq, dk, dw, begin, end):
    """For each chunk, each b in it, each group of queries: fill Y, dY = g^T w, dw += g Y; then dq and dk."""
    B, T, S, M = len(q), q.shape[1], k.shape[1], len(w)
    group = _group(T, S)
    x1, z, z1, high, y = _scratch(q, T, S, group)
    dy = np.empty_like(y)
    for chunk in range(begin, end):
        for b in range(first_row(chunk, CHUNKS, B), first_row(chunk + 1, CHUNKS, B)):
            fast = T > FEW and _prepare(q[b], k[b], high, x1, z, z1)
            here = g[b].reshape(M, T * S)
            dk[b] = 0
            for t in range(0, T, group):
                last = min(t + group, T)
                rows = (last - t) * S
                if fast:
                    _fill_fractions(x1[t:last], z, z1, y)
                else:
                    _fill_tanh(q[b, t:last], k[b], y)
                product(dy[:rows], here[:, t * S:last * S].T, w, False)
                product(dw[chunk], here[:, t * S:last * S], y[:rows], True)
                _add_slopes(y, dy, dq[b, t:last], dk[b])


@kernel(parallel=True)
def _scores_grad_chunks(g, q, k, w, dq, dk, dw):
    for chunk in prange(CHUNKS):
        _scores_grad(g, q, k, w, dq, dk, dw, chunk, chunk + 1)


@kernel
def _group(T, S):
    """How many queries at a time."""
    return max(min(ROWS // max(S, 1), T), 1)


@kernel
def _scratch(q, T, S, group):
    """Room for one batch element: x - 1 (T, D), z (S, D), z - 1 (S, D), a row; and Y of a group."""
    D, kind = q.shape[2], q.dtype
    T, keys = (T, S) if T > FEW else (0, 0)
    return (np.empty((T, D), kind), np.empty((keys, D), kind), np.empty((keys, D), kind), np.empty(D, kind),
            np.zeros((group * S + SPARE, D), kind))


# ---------------------------------------------------------------------------------------------------------------------
# the loops of one batch element
# ---------------------------------------------------------------------------------------------------------------------
@kernel
def _prepare(q, k, high, x1, z, z1):
    """x1 = e^(2 (q + high)) - 1, z = e^(2 (k - high)) <= 1 and z1 = z - 1, where high[d] = max_s k[s, d].

    Returns whether they may be used: no x is too large, and neither nan nor inf does any harm.
    """
    T, S, D = len(q), len(k), q.shape[1]
    two, limit = q.dtype.type(2), q.dtype.type(LARGEST)
    high[:] = -np.inf
    for s in range(S):
        for d in range(D):
            high[d] = k[s, d] if k[s, d] > high[d] else high[d]  # noqa: FURB136 (Numba's max() has no lanes)
    bad = 0
    for d in range(D):
        bad += not high[d] > -np.inf
    for t in range(T):
        for d in range(D):
            bad += not q[t, d] + high[d] <= limit  # also where it is nan
    if bad > 0:
        return False
    for t in range(T):
        for d in range(D):
            x1[t, d] = expm1(two * (q[t, d] + high[d]))
    for s in range(S):
        for d in range(D):
            e, e1 = exp_expm1(two * (k[s, d] - high[d]))
            z[s, d] = e
            z1[s, d] = e1
    return True


@kernel
def _fill_fractions(x1, z, z1, y):
    """Y[t S + s] = n / (n + 2), for each query t of the group, each key s, along d."""
    two, S = y.dtype.type(2), len(z)
    for t in range(len(x1)):
        for s in range(S):
            row = y[t * S + s]
            for d in range(len(row)):
                n = z[s, d] * x1[t, d] + z1[s, d]
                row[d] = n / (n + two)


@kernel
def _fill_tanh(q, k, y):
    """The same from q and k as they are."""
    S = len(k)
    for t in range(len(q)):
        for s in range(S):
            row = y[t * S + s]
            for d in range(len(row)):
                row[d] = tanh(q[t, d] + k[s, d])


@kernel
def _add_slopes(y, dy, dq, dk):
    """h = dY (1 - Y^2); dq[t] = the sum of h over the keys; dk[s] += h."""
    one, S = y.dtype.type(1), len(dk)
    dq[:] = 0
    for t in range(len(dq)):
        for s in range(S):
            i = t * S + s
            for d in range(y.shape[1]):
                h = dy[i, d] * (one - y[i, d] * y[i, d])
                dq[t, d] += h
                dk[s, d] += h


# ---------------------------------------------------------------------------------------------------------------------
# the same on a card: flat arrays. Each block computes squares of a product of matrices, as in `matmul.py`, but its
# TEAM x TEAM threads EACH x EACH elements each: what a thread takes out of shared memory it uses EACH times. One of the
# two factors, or what the product is used for, is tanh(q + k) of the pairs (query, key) at hand, never of all.
# ---------------------------------------------------------------------------------------------------------------------
TEAM, EACH, DEPTH = (2, 2, 2) if SIMULATED else (16, 4, 32)
SPAN = TEAM * EACH      # rows and columns of a square; DEPTH along the sum are fetched at a time
PITCH = DEPTH + 1       # rows of so many elements begin in different banks of shared memory
BLOCKS = 512            # the gradient of w is cut into parts for about so many blocks,
LEAST = 8 * DEPTH       # of so many pairs at least, for each part has a dw of its own


def _rows_grad_on_card(g, a, b, w, step_i, step_j):
    """The gradient of a (B, L, D), one of q and k; b (B, R, D) is the other. g[b, m] steps by step_i along L, step_j
    along R."""
    (B, L, D), R, da = a.shape, b.shape[1], empty(a.shape, a.dtype, "cuda")
    _rows_grad_cuda[B * -(-L // EACH) * -(-D // SPAN), TEAM * TEAM](
        flat(g), flat(a), flat(b), flat(w), flat(da), L, R, D, w.shape[0], step_i, step_j)
    return da


def _weights_grad_on_card(g, q, k, w):
    (B, T, D), S, M, dw = q.shape, k.shape[1], w.shape[0], empty(w.shape, w.dtype, "cuda")
    squares, tiles = -(-M // SPAN) * -(-D // SPAN), -(-B * T * S // DEPTH)
    each = max(LEAST, -(-tiles // -(-BLOCKS // squares)) * DEPTH)                # pairs of a part
    parts = -(-B * T * S // each)
    dw_parts = dw if parts == 1 else empty((parts, M, D), w.dtype, "cuda")
    _weights_grad_cuda[squares * parts, TEAM * TEAM](flat(g), flat(q), flat(k), flat(dw_parts), B * T * S, T, S, D, M, each)
    if parts > 1:
        sum_cuda(flat(dw_parts), flat(dw), 1, parts, M * D)
    return dw


@cuda_function
def _pair(pair, T, S, D, M):
    """Where the query and the key of pair number ((b T) + t) S + s begin, and where its first score stands."""
    row = pair // S
    b = row // T
    return row * D, (b * S + pair - row * S) * D, pair + b * (M - 1) * T * S


@cuda_kernel("T[::1], T[::1], T[::1], T[::1], int64, int64, int64, int64, int64")
def _scores_cuda(q, k, w, e, pairs, T, S, D, M):
    """A block computes SPAN scores m of SPAN pairs; thread (r, c) the scores r, r + TEAM, ... of the pairs c, c + TEAM, ...

    For DEPTH features at a time the threads fill Y with tanh(q + k), one element after another, and fetch w; then each
    multiplies its rows of both. Beyond the edges what is inside is read once more (a load that nothing decides about need
    not wait for the one before), and w is 0 beyond the last feature.
    """
    near_y = cuda.shared.array((SPAN, PITCH), q.dtype)
    near_w = cuda.shared.array((SPAN, PITCH), q.dtype)
    from_q = cuda.shared.array(SPAN, np.int64)
    from_k = cuda.shared.array(SPAN, np.int64)
    first_e = cuda.shared.array(SPAN, np.int64)
    n, zero = cuda.threadIdx.x & TEAM * TEAM - 1, q.dtype.type(0)  # "&": so the compiler sees that no index is negative
    r, c, line, d, below = n // TEAM, n % TEAM, n // DEPTH, n % DEPTH, TEAM * TEAM // DEPTH
    across = (M + SPAN - 1) // SPAN
    m0, p0 = cuda.blockIdx.x % across * SPAN, cuda.blockIdx.x // across * SPAN
    if n < SPAN:
        from_q[n], from_k[n], first_e[n] = _pair(p0 + n if p0 + n < pairs else p0, T, S, D, M)
    total = cuda.local.array((EACH, EACH), q.dtype)
    for i in range(EACH):
        for j in range(EACH):
            total[i, j] = zero
    cuda.syncthreads()
    for left in range(0, D, DEPTH):
        inside = left + d < D
        at = left + d if inside else D - 1
        for i in range(SPAN // below):
            row = line + i * below
            near_y[row, d] = cuda_tanh(q[np.uint64(from_q[row] + at)] + k[np.uint64(from_k[row] + at)])
        for i in range(SPAN // below):
            row = line + i * below
            factor = w[np.uint64((m0 + row if m0 + row < M else 0) * D + at)]
            near_w[row, d] = factor if inside else zero
        cuda.syncthreads()
        for at in range(DEPTH):
            for j in range(EACH):
                if m0 + j * TEAM < M:
                    factor = near_w[r + j * TEAM, at]
                    for i in range(EACH):
                        total[i, j] += factor * near_y[c + i * TEAM, at]
        cuda.syncthreads()
    for i in range(EACH):
        for j in range(EACH):
            m, p = m0 + r + j * TEAM, c + i * TEAM
            if p0 + p < pairs and m < M:
                e[first_e[p] + m * T * S] = total[i, j]


@cuda_kernel("T[::1], T[::1], T[::1], T[::1], T[::1], int64, int64, int64, int64, int64, int64")
def _rows_grad_cuda(g, a, b, w, da, L, R, D, M, step_i, step_j):
    """A block computes SPAN features of EACH rows i of da, and takes TEAM rows j of b at a time: thread (r, c) row j = r
    of them with all its rows i, and the features c, c + TEAM, ...

    dY = g^T w, along m, is such a square: its rows are the EACH x TEAM pairs (i, j). Then h = dY (1 - y^2) with
    y = tanh(a + b) computed again; and at the end the h of all r are added.
    """
    near_g = cuda.shared.array((DEPTH, SPAN), a.dtype)
    near_w = cuda.shared.array((DEPTH, SPAN), a.dtype)
    n, zero, one = cuda.threadIdx.x & TEAM * TEAM - 1, a.dtype.type(0), a.dtype.type(1)
    r, c, line, column, below = n // TEAM, n % TEAM, n // SPAN, n % SPAN, TEAM * TEAM // SPAN
    across, down = (D + SPAN - 1) // SPAN, (L + EACH - 1) // EACH
    d0, i0 = cuda.blockIdx.x % across * SPAN, cuda.blockIdx.x // across % down * EACH
    item = cuda.blockIdx.x // (across * down)
    own = cuda.local.array((EACH, EACH), a.dtype)
    slope = cuda.local.array((EACH, EACH), a.dtype)
    total = cuda.local.array((EACH, EACH), a.dtype)
    for x in range(EACH):
        for y in range(EACH):
            i, d = i0 + x, d0 + c + y * TEAM
            own[x, y] = a[np.uint64((item * L + (i if i < L else i0)) * D + (d if d < D else d0))]
            total[x, y] = zero
    i_mine, j_mine = i0 + column // TEAM if i0 + column // TEAM < L else i0, column % TEAM
    d_mine = d0 + column if d0 + column < D else d0
    for j0 in range(0, R, TEAM):
        for x in range(EACH):
            for y in range(EACH):
                slope[x, y] = zero
        g_mine = i_mine * step_i + (j0 + j_mine if j0 + j_mine < R else j0) * step_j
        for m0 in range(0, M, DEPTH):
            for z in range(DEPTH // below):
                m = m0 + line + z * below
                m = m if m < M else m0
                near_g[line + z * below, column] = g[np.uint64((item * M + m) * L * R + g_mine)]
                near_w[line + z * below, column] = w[np.uint64(m * D + d_mine)]
            cuda.syncthreads()
            for m in range(DEPTH if m0 + DEPTH < M else M - m0):
                for y in range(EACH):
                    factor = near_w[m, c + y * TEAM]
                    for x in range(EACH):
                        slope[x, y] += factor * near_g[m, r + x * TEAM]
            cuda.syncthreads()
        if j0 + r < R:
            for y in range(EACH):
                d = d0 + c + y * TEAM
                other = b[np.uint64((item * R + j0 + r) * D + (d if d < D else d0))]
                for x in range(EACH):
                    v = cuda_tanh(own[x, y] + other)
                    total[x, y] += slope[x, y] * (one - v * v)
    for x in range(EACH):
        for y in range(EACH):
            near_w[r, c + y * TEAM] = total[x, y]
        cuda.syncthreads()
        if n < SPAN and i0 + x < L and d0 + n < D:
            value = zero
            for z in range(TEAM):
                value += near_w[z, n]
            da[(item * L + i0 + x) * D + d0 + n] = value
        cuda.syncthreads()


@cuda_kernel("T[::1], T[::1], T[::1], T[::1], int64, int64, int64, int64, int64, int64")
def _weights_grad_cuda(g, q, k, dw, pairs, T, S, D, M, each):
    """A block computes SPAN scores m and SPAN features of dw = sum over pairs of g Y, for one part of the pairs, `each`
    many; thread (r, c) the scores r, r + TEAM, ... and the features c, c + TEAM, ... Each part has its own dw."""
    near_y = cuda.shared.array((DEPTH, SPAN), q.dtype)
    near_g = cuda.shared.array((SPAN, PITCH), q.dtype)
    from_q = cuda.shared.array(DEPTH, np.int64)
    from_k = cuda.shared.array(DEPTH, np.int64)
    first_g = cuda.shared.array(DEPTH, np.int64)
    n, zero = cuda.threadIdx.x & TEAM * TEAM - 1, q.dtype.type(0)
    r, c, below = n // TEAM, n % TEAM, TEAM * TEAM // SPAN
    across, down = (D + SPAN - 1) // SPAN, (M + SPAN - 1) // SPAN
    d0, m0 = cuda.blockIdx.x % across * SPAN, cuda.blockIdx.x // across % down * SPAN
    part = cuda.blockIdx.x // (across * down)
    total = cuda.local.array((EACH, EACH), q.dtype)
    for i in range(EACH):
        for j in range(EACH):
            total[i, j] = zero
    last = part * each + each if part * each + each < pairs else pairs
    for p0 in range(part * each, last, DEPTH):
        if n < DEPTH:
            from_q[n], from_k[n], first_g[n] = _pair(p0 + n if p0 + n < last else p0, T, S, D, M)
        cuda.syncthreads()
        d, p = d0 + n % SPAN if d0 + n % SPAN < D else d0, n % DEPTH
        for i in range(DEPTH // below):
            row = n // SPAN + i * below
            near_y[row, n % SPAN] = cuda_tanh(q[np.uint64(from_q[row] + d)] + k[np.uint64(from_k[row] + d)])
        for i in range(SPAN * DEPTH // (TEAM * TEAM)):
            m = n // DEPTH + i * (TEAM * TEAM // DEPTH)
            a = g[np.uint64(first_g[p] + (m0 + m if m0 + m < M else 0) * T * S)]
            near_g[m, p] = a if p0 + p < last else zero
        cuda.syncthreads()
        for p in range(DEPTH):
            for j in range(EACH):
                factor = near_g[r + j * TEAM, p]
                for i in range(EACH):
                    total[i, j] += factor * near_y[p, c + i * TEAM]
        cuda.syncthreads()
    for i in range(EACH):
        for j in range(EACH):
            m, d = m0 + r + j * TEAM, d0 + c + i * TEAM
            if m < M and d < D:
                dw[(part * M + m) * D + d] = total[i, j]
