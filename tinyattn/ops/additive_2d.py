r"""Several additive scores at once (the lift of Bahdanau's score to many dimensions), without the 4-D array of tanh:

    e[b,m,t,s] = sum_d w[m,d] tanh(q[b,t,d] + k[b,s,d])      q (B,T,D), k (B,S,D), w (M,D) -> e (B,M,T,S)

For each b, for a few queries at a time: R = (queries of the group) S rows of Y (R,D) are filled with tanh(q + k), and
used at once, while they are near, by a product with w. Backward they are filled again:

    e = w Y^T      dY = g^T w      dw += g Y      h = dY (1 - Y^2)      dq[t] = sum_s h      dk[s] = sum_t h

A tanh is cheap where every query and every key is used often. As in `additive.py`, with x = e^(2 q) and z = e^(2 k)
computed once,

    tanh(q + k) = n / (n + 2),    n = x z - 1 = z (x - 1) + (z - 1)

where k was first shifted by its maximum over s, and q by as much the other way, so z <= 1. For few queries, where x is
too large, and for nan and inf, Y is filled with tanh as it is.
"""
import numpy as np
from numba import prange

from ..autograd import Op
from ..device import empty, kernel, launch
from .broadcast import ShapeError
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
        check_float(self.name, q)
        fits = q.ndim == k.ndim == 3 and w.ndim == 2 and len(q) == len(k) and q.shape[2] == k.shape[2] == w.shape[1]
        if not fits:
            raise ShapeError(f"{self.name}: expected q (B, T, D), k (B, S, D), w (M, D), "
                             f"got q {q.shape}, k {k.shape}, w {w.shape}")
        if not q.dtype == k.dtype == w.dtype:
            raise TypeError(f"{self.name}: q, k and w must have one dtype, got {q.dtype}, {k.dtype}, {w.dtype}")
        e = empty((q.shape[0], len(w), q.shape[1], k.shape[1]), q.dtype)
        args = (*map(np.ascontiguousarray, (q, k, w)), e)
        launch(_cost(q, k, w), _scores, (*args, 0, CHUNKS), _scores_chunks, args)
        return e

    def cpu_grad(self, g, e, q, k, w):
        dq, dk, dw = empty(q.shape, q.dtype), empty(k.shape, k.dtype), np.zeros((CHUNKS, *w.shape), w.dtype)
        args = (*map(np.ascontiguousarray, (g, q, k, w)), dq, dk, dw)
        launch(2 * _cost(q, k, w), _scores_grad, (*args, 0, CHUNKS), _scores_grad_chunks, args)
        need_q, need_k, need_w = self.needs
        return dq if need_q else None, dk if need_k else None, dw.sum(axis=0) if need_w else None

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
