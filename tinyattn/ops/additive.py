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
from ..device import empty, kernel, launch
from .broadcast import ShapeError
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
        check_float(self.name, q)
        if q.ndim != 3 or k.ndim != 3 or v.ndim != 1 or q.shape[0] != k.shape[0] or not q.shape[2] == k.shape[2] == v.shape[0]:
            raise ShapeError(f"{self.name}: expected q (B, T, D), k (B, S, D), v (D,), got q {q.shape}, k {k.shape}, v {v.shape}")
        if not q.dtype == k.dtype == v.dtype:
            raise TypeError(f"{self.name}: q, k and v must have one dtype, got {q.dtype}, {k.dtype}, {v.dtype}")
        e = empty((q.shape[0], q.shape[1], k.shape[1]), q.dtype)
        args = (np.ascontiguousarray(q), np.ascontiguousarray(k), np.ascontiguousarray(v), e)
        launch(_cost(e, q), _scores, (*args, 0, CHUNKS), _scores_chunks, args)
        return e

    def cpu_grad(self, g, e, q, k, v):
        dq, dk, dv = empty(q.shape, q.dtype), empty(k.shape, k.dtype), np.zeros((CHUNKS, len(v)), v.dtype)
        args = (np.ascontiguousarray(g), np.ascontiguousarray(q), np.ascontiguousarray(k), np.ascontiguousarray(v), dq, dk, dv)
        launch(2 * _cost(e, q), _scores_grad, (*args, 0, CHUNKS), _scores_grad_chunks, args)
        need_q, need_k, need_v = self.needs
        return dq if need_q else None, dk if need_k else None, dv.sum(axis=0) if need_v else None

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
