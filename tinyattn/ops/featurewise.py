r"""Feature-wise attention without the four-dimensional array: every feature d has a softmax over the keys of its own.

    f[b,t,s,d] = c tanh((q[b,t,d] + k[b,s,d]) / c)                    q (B,T,D), k (B,S,D), v (B,S,D)
    P[b,t,s,d] = e^f / sum over the allowed s of e^f                  out[b,t,d] = sum_s P[b,t,s,d] v[b,s,d]  (B,T,D)

Nothing crosses from one feature to another. So d is the innermost loop throughout, in vector lanes, and all that is
kept for a query is two rows, the sums of e^f and of e^f v. No f is beyond c, so where c is moderate e^f cannot
overflow, and nothing needs to be subtracted first. The tanh is made as in `additive.py`, from x = e^(2 q / c) and
w = e^(2 k / c), which are computed once for each query and each key:

    f = c n / (n + 2),   n = x w - 1 = w (x - 1) + (w - 1)      left for each t, s, d: a division and a power of 2

(k is first shifted by its maximum over s, and q by as much the other way, so that w <= 1.) Where c or an x is large,
and for nan and inf, the plain loop is taken: tanh as it is, less the largest of the query. The gradient needs no more
sums over s, because the mean of v under P is the output:

    dv[s] = sum_t P g        h = P g (v[s] - out[t]) tanh'        dq[t] = sum_s h        dk[s] = sum_t h

The loops of a card are in `featurewise_cuda.py`.
"""
import math

import numpy as np
from numba import prange, types
from numba.extending import overload

from ..autograd import Op, no_grad
from ..device import JIT, VALUES, empty, kernel, launch
from .broadcast import ShapeError
from .featurewise_cuda import attend_cuda, attend_grad_cuda
from .shared import exp_below, exp_expm1, expm1, first_row, offset, tanh
from .softmax import _mask_plan, check_float, mask_rows

CHUNKS = 16    # parts that the batch, times the stretches of features, is cut into for the threads
WIDTH = 64     # so many features at a time: what belongs to them stays in the nearest cache
LARGEST = 4.0  # of (q + k) / c: the error of e^(2 z) grows with z
STEEP = 20.0   # of c: e^20 is 5e8, which leaves room for v
PER_LN2 = 1 / math.log(2)


class FeaturewiseAttention(Op):
    r"""out[b,t,d] = sum_s P[b,t,s,d] v[b,s,d], P = softmax over s of c tanh((q[b,t,d] + k[b,s,d]) / c) for each d.

    q (B, T, D), k (B, S, D), v (B, S, D) -> (B, T, D). mask: boolean, broadcast to (B, T, S), True = may be attended; a
    query that may attend to nothing gets 0 and sends 0 gradient. c > 0 bounds the scores; DiSAN takes 5. ValueError for
    another c, ShapeError and TypeError for inputs that do not fit. Memory: (B, T, D), and O((T + S) WIDTH) a thread.
    Shen et al. 2018, "DiSAN: Directional self-attention network for RNN/CNN-free language understanding".
    """
    tex = r"\textstyle\sum_s \mathrm{{softmax}}_s(c \tanh(({q}_t + {k}_s) / c)) \odot {v}_s"

    def __init__(self, c=5.0):
        self.c = check_bound(self.name, c)

    def cpu(self, q, k, v, mask=None):
        self.check(q, k, v)
        out, scale = empty(q.shape, q.dtype), empty(q.shape, q.dtype)
        args = (*self._arrays(q, k, v, mask), out, scale)
        launch(_cost(q, k), _attend, (*args, 0, CHUNKS), _attend_chunks, args)
        if self.recorded:
            self.saved = scale
        return out

    def cuda(self, q, k, v, mask=None):
        self.check(q, k, v)
        out, *saved = attend_cuda(q, k, v, mask, self._steps(q, k, mask), self.c)
        if self.recorded:
            self.saved = saved
        return out

    def check(self, q, k, v):
        check_float(self.name, q)
        if q.ndim != 3 or k.ndim != 3 or k.shape != v.shape or q.shape[0] != k.shape[0] or q.shape[2] != k.shape[2]:
            raise ShapeError(f"{self.name}: expected q (B, T, D), k (B, S, D), v (B, S, D), "
                             f"got q {q.shape}, k {k.shape}, v {v.shape}")
        if not q.dtype == k.dtype == v.dtype:
            raise TypeError(f"{self.name}: q, k and v must have one dtype, got {q.dtype}, {k.dtype}, {v.dtype}")

    def cpu_grad(self, g, out, q, k, v, mask=None):
        dq, dk, dv = empty(q.shape, q.dtype), empty(k.shape, k.dtype), empty(v.shape, v.dtype)
        args = (np.ascontiguousarray(g), out, self.saved, *self._arrays(q, k, v, mask), dq, dk, dv)
        launch(1.5 * _cost(q, k), _attend_grad, (*args, 0, CHUNKS), _attend_grad_chunks, args)
        return tuple([d if need else None for d, need in zip((dq, dk, dv, None), self.needs)])

    def cuda_grad(self, g, out, q, k, v, mask=None):
        grads = attend_grad_cuda(g, out, *self.saved, q, k, v, mask, self._steps(q, k, mask), self.c, self.needs)
        return (*grads, None)[:len(self.needs)]

    def _steps(self, q, k, mask):
        """The steps of the mask along b, t and s, in elements; None without a mask."""
        shape = (*q.shape[:2], k.shape[1])
        if mask is None or shape[2] == 0:
            return None
        if mask.dtype != np.bool_:
            raise TypeError(f"{self.name}: a mask is boolean, True = may be attended to; got {mask.dtype}")
        (_, steps), expand = _mask_plan(self.name, shape, mask.shape)
        width = 1 if expand is not None else shape[2]
        return *(int(step) * width for step in steps), int(expand is None)

    def _arrays(self, q, k, v, mask):
        """What both loops read; the mask as rows of a matrix, see `mask_rows`."""
        shape = (*q.shape[:2], k.shape[1])
        mask = np.ones((1, shape[2]), np.bool_) if mask is None or shape[2] == 0 else mask
        q, k, v = np.ascontiguousarray(q), np.ascontiguousarray(k), np.ascontiguousarray(v)
        return q, k, v, *mask_rows(self.name, shape, mask), self.c

    def composed(self, q, k, v, mask=None):
        (B, S, D), weights = v.shape, _weights(q, k, mask, self.c)               # (B, T, S, D)
        return (weights * v.reshape(B, 1, S, D)).sum(axis=2)                     # (B, T, D)

    def samples(rng):
        """Length 1, width 1, batch 0, no keys, every form of mask, an empty row; saturated scores, very large ones, and
        a c for which the largest score has to be found."""
        for B, T, S, D in [(2, 3, 2, 3), (1, 2, 4, 2), (2, 1, 1, 1), (0, 2, 3, 2), (1, 2, 0, 2)]:
            yield {"c": 5.0}, (*_normal(rng, B, T, S, D), None)
        whole = rng.random((2, 4, 3)) < 0.6
        whole[0, 1] = False
        for mask in (whole, whole[:, :1], whole[1], whole[1, 0], np.array([[[True]], [[False]]])):
            yield {"c": 5.0}, (*_normal(rng, 2, 4, 3, 2), mask)
        q, k, v = _normal(rng, 1, 3, 4, 2)
        yield {"c": 2.0}, (q * 30, k, v, None)
        yield {"c": 5.0}, (q + 10, k - 10, v, None)
        yield {"c": 100.0}, (q * 10, k, v, np.tri(3, 4, dtype=bool))


def featurewise_weights(q, k, mask=None, c=5.0):
    """The weights P of FeaturewiseAttention, for pictures: q (B, T, D), k (B, S, D) to (B, D, T, S), the array that
    nobody else makes. Nothing is recorded. ValueError unless c > 0."""
    with no_grad():
        return _weights(q, k, mask, check_bound("featurewise_weights", c)).permute(0, 3, 1, 2)


def check_bound(name, c):
    """c as a float, if it can be one that bounds scores."""
    if isinstance(c, bool) or not isinstance(c, (int, float, np.integer, np.floating)):
        raise TypeError(f"{name}: expected a number c > 0, got {c!r}")
    if not 0 < c < np.inf:
        raise ValueError(f"{name}: expected a finite c > 0, got c = {c!r}")
    return float(c)


def _weights(q, k, mask, c):
    """P (B, T, S, D), in Tensor algebra."""
    (B, T, D), S = q.shape, k.shape[1]
    f = ((q.reshape(B, T, 1, D) + k.reshape(B, 1, S, D)) / c).tanh() * c         # (B, T, S, D)
    return f.softmax(2, None if mask is None else mask.reshape(*mask.shape, 1))


def _normal(rng, B, T, S, D):
    return rng.normal(size=(B, T, D)), rng.normal(size=(B, S, D)), rng.normal(size=(B, S, D))


def _cost(q, k):
    B, T, D = q.shape
    return B * T * k.shape[1] * (10 + D * (0.25 if q.dtype == np.float32 else 0.5))


# ---------------------------------------------------------------------------------------------------------------------
# 2^y
# ---------------------------------------------------------------------------------------------------------------------
def power32(y):
    """2^y in float32 for y from -126 to 127, about 1e-7 relative.

    Added to 1.5 * 2^23, y is rounded to a whole number n, and n stands in the last bits of that sum. 2^(y - n) is a
    polynomial that meets 2^f at seven places between -1/2 and 1/2; n is added to its exponent bits. A nan may get lost.
    """
    shifted = y + np.float32(12582912.0)
    f = y - (shifted - np.float32(12582912.0))
    p = (np.float32(0.00015461445) * f + np.float32(0.0013400428)) * f + np.float32(0.009618057)
    p = (p * f + np.float32(0.05550327)) * f + np.float32(0.2402265)
    p = (p * f + np.float32(0.6931472)) * f + np.float32(1.0)
    exponent = np.float32(shifted).view(np.int32) << np.int32(23)
    return np.int32(np.float32(p).view(np.int32) + exponent).view(np.float32)


def power64(y):
    """2^y in float64 for y from -1022 to 1023, about 2e-16 relative: the same with 1.5 * 2^52 and twelve places."""
    shifted = y + 6755399441055744.0
    f = y - (shifted - 6755399441055744.0)
    p = (4.455591365216115e-10 * f + 7.074190907320507e-09) * f + 1.017805882243255e-07
    p = ((p * f + 1.3215432559319352e-06) * f + 1.5252733836683869e-05) * f + 0.00015403530463664123
    p = ((p * f + 0.0013333558146412547) * f + 0.009618129107587328) * f + 0.0555041086648216
    p = ((p * f + 0.24022650695910158) * f + 0.6931471805599453) * f + 1.0
    exponent = np.float64(shifted).view(np.int64) << np.int64(52)
    return np.int64(np.float64(p).view(np.int64) + exponent).view(np.float64)


def power(y):
    """2^y for kernels. This body is what runs without the JIT; the overload below is what Numba compiles."""
    return power32(y) if isinstance(y, np.float32) else power64(y)


if JIT:
    power32, power64 = kernel(power32), kernel(power64)

    @overload(power, jit_options={"error_model": "numpy", "fastmath": VALUES})
    def _power(y):
        if y == types.float32:
            return lambda y: power32(y)
        return lambda y: power64(y)


# ---------------------------------------------------------------------------------------------------------------------
# the loops over the batch, WIDTH features at a time
# ---------------------------------------------------------------------------------------------------------------------
@kernel
def _attend(q, k, v, mask, lengths, steps, c, out, scale, begin, end):
    """For each b, each stretch of features: prepare x and w. For each query: find its keys; add up e^f and e^f v."""
    (B, T, D), S, parts = q.shape, k.shape[1], -(-q.shape[2] // WIDTH)
    x, w, w1, near, keys, total, mean, high = _scratch(q, S)
    for item in range(first_row(begin, CHUNKS, B * parts), first_row(end, CHUNKS, B * parts)):
        b, left = item // parts, item % parts * WIDTH
        n = min(WIDTH, D - left)
        _take(v[b], left, n, near)
        fast = _prepare(q[b], k[b], left, n, c, x, w, w1, high)
        for t in range(T):
            m = _allowed(mask[offset(b * T + t, lengths, steps)], keys)
            total[:] = 0
            mean[:] = 0
            if fast:
                _add(x[t, :n], w, w1, near, keys[:m], c, total, mean)
            else:
                _highest(x[t, :n], w, keys[:m], c, high)
                _add_tanh(x[t, :n], w, near, keys[:m], c, high, total, mean)
            _divide(total, mean, out[b, t, left:left + n], scale[b, t, left:left + n])
            if fast and m == 1:  # to the last digit: then v - out is 0 in the gradient
                out[b, t, left:left + n] = near[keys[0], :n]


@kernel(parallel=True)
def _attend_chunks(q, k, v, mask, lengths, steps, c, out, scale):
    for chunk in prange(CHUNKS):
        _attend(q, k, v, mask, lengths, steps, c, out, scale, chunk, chunk + 1)


@kernel
def _attend_grad(g, out, scale, q, k, v, mask, lengths, steps, c, dq, dk, dv, begin, end):
    """As `_attend`; the gradients of a stretch are added up in arrays that lie as near as the stretch itself."""
    (B, T, D), S, parts = q.shape, k.shape[1], -(-q.shape[2] // WIDTH)
    x, w, w1, near, keys, share, _, high = _scratch(q, S)
    dx, dw, dnear, _, _, _, _, _ = _scratch(q, S)
    for item in range(first_row(begin, CHUNKS, B * parts), first_row(end, CHUNKS, B * parts)):
        b, left = item // parts, item % parts * WIDTH
        n = min(WIDTH, D - left)
        _take(v[b], left, n, near)
        fast = _prepare(q[b], k[b], left, n, c, x, w, w1, high)
        dx[:], dw[:], dnear[:] = 0, 0, 0
        for t in range(T):
            m = _allowed(mask[offset(b * T + t, lengths, steps)], keys)
            y = out[b, t, left:left + n]
            _multiply(g[b, t, left:left + n], scale[b, t, left:left + n], share)
            if fast:
                _add_grad(x[t, :n], w, w1, near, keys[:m], c, share, y, dx[t], dw, dnear)
            else:
                _highest(x[t, :n], w, keys[:m], c, high)
                _add_grad_tanh(x[t, :n], w, near, keys[:m], c, high, share, y, dx[t], dw, dnear)
        _give(dx, left, n, dq[b])
        _give(dw, left, n, dk[b])
        _give(dnear, left, n, dv[b])


@kernel(parallel=True)
def _attend_grad_chunks(g, out, scale, q, k, v, mask, lengths, steps, c, dq, dk, dv):
    for chunk in prange(CHUNKS):
        _attend_grad(g, out, scale, q, k, v, mask, lengths, steps, c, dq, dk, dv, chunk, chunk + 1)


# ---------------------------------------------------------------------------------------------------------------------
# one query: its keys, its row of x, along d
# ---------------------------------------------------------------------------------------------------------------------
@kernel
def _add(x1, w, w1, v, keys, c, total, mean):
    """For each key s, along d: p = e^f; total += p, mean += p v[s]."""
    two, slope = x1.dtype.type(2), x1.dtype.type(c * PER_LN2)
    for s in keys:
        for d in range(len(x1)):
            n = x1[d] * w[s, d] + w1[s, d]
            p = power(slope * (n / (n + two)))
            total[d] += p
            mean[d] += p * v[s, d]


@kernel
def _add_tanh(q, k, v, keys, c, high, total, mean):
    """The same from q and k as they are: p = e^(f - largest f)."""
    bound = q.dtype.type(c)
    for s in keys:
        for d in range(len(q)):
            p = exp_below(bound * (tanh((q[d] + k[s, d]) / bound) - high[d]))
            total[d] += p
            mean[d] += p * v[s, d]


@kernel
def _add_grad(x1, w, w1, v, keys, c, share, out, dq, dk, dv):
    """For each key s, along d: dv[s] += P g; dq += h; dk[s] += h; h = P g (v[s] - out) tanh'. `share` is g / total."""
    one, two, slope = x1.dtype.type(1), x1.dtype.type(2), x1.dtype.type(c * PER_LN2)
    for s in keys:
        for d in range(len(x1)):
            n = x1[d] * w[s, d] + w1[s, d]
            y = n / (n + two)
            p = power(slope * y) * share[d]
            h = p * (v[s, d] - out[d]) * (one - y * y)
            dv[s, d] += p
            dq[d] += h
            dk[s, d] += h


@kernel
def _add_grad_tanh(q, k, v, keys, c, high, share, out, dq, dk, dv):
    """The same from q and k as they are."""
    one, bound = q.dtype.type(1), q.dtype.type(c)
    for s in keys:
        for d in range(len(q)):
            y = tanh((q[d] + k[s, d]) / bound)
            p = exp_below(bound * (y - high[d])) * share[d]
            h = p * (v[s, d] - out[d]) * (one - y * y)
            dv[s, d] += p
            dq[d] += h
            dk[s, d] += h


@kernel
def _highest(q, k, keys, c, high):
    """high[d] = the largest tanh of the query."""
    bound = q.dtype.type(c)
    high[:] = -np.inf
    for s in keys:
        for d in range(len(q)):
            high[d] = k[s, d] if k[s, d] > high[d] else high[d]  # noqa: FURB136 (Numba's max() has no lanes)
    for d in range(len(q)):
        high[d] = tanh((q[d] + high[d]) / bound)


@kernel
def _allowed(mask, keys):
    """The numbers of the keys that the mask allows, into `keys`; returns how many."""
    m = 0
    for s in range(len(mask)):
        keys[m] = s
        m += mask[s]
    return m


@kernel
def _divide(total, mean, out, scale):
    """scale = 1 / total and out = mean / total; 0 where there was no key."""
    one, zero = out.dtype.type(1), out.dtype.type(0)
    for d in range(len(out)):
        scale[d] = one / total[d] if total[d] != zero else zero
        out[d] = scale[d] * mean[d]


@kernel
def _multiply(g, scale, share):
    for d in range(len(g)):
        share[d] = g[d] * scale[d]


# ---------------------------------------------------------------------------------------------------------------------
# n features, from `left` on, of all queries and keys of one batch element
# ---------------------------------------------------------------------------------------------------------------------
@kernel
def _scratch(q, S):
    """Room for one stretch: a row of each query, three of each key; numbers of keys; three rows."""
    T, n, kind = q.shape[1], min(q.shape[2], WIDTH), q.dtype
    return (np.empty((T, n), kind), np.empty((S, n), kind), np.empty((S, n), kind), np.empty((S, n), kind),
            np.empty(S + 1, np.int64), np.empty(n, kind), np.empty(n, kind), np.empty(n, kind))


@kernel
def _take(rows, left, n, to):
    for i in range(len(rows)):
        row = rows[i, left:left + n]
        for d in range(n):
            to[i, d] = row[d]


@kernel
def _give(here, left, n, rows):
    for i in range(len(rows)):
        row = rows[i, left:left + n]
        for d in range(n):
            row[d] = here[i, d]


@kernel
def _prepare(q, k, left, n, c, x, w, w1, high):
    """x = e^(2 (q + high) / c) - 1, w = e^(2 (k - high) / c) <= 1 and w1 = w - 1, where high[d] = max_s k[s, d].

    If c or an x is too large, or a nan or inf does harm: returns False, and x and w are q and k as they are.
    """
    T, S = len(q), len(k)
    limit, two = q.dtype.type(LARGEST * c), q.dtype.type(2 / c)
    _take(q, left, n, x)
    _take(k, left, n, w)
    high[:] = -np.inf
    bad = int(c > STEEP)
    for s in range(S):
        for d in range(n):
            bad += w[s, d] != w[s, d]  # `power` may lose a nan
            high[d] = w[s, d] if w[s, d] > high[d] else high[d]  # noqa: FURB136
    for d in range(n):
        bad += not high[d] > -np.inf
    for t in range(T):
        for d in range(n):
            bad += not x[t, d] + high[d] <= limit  # also where it is nan
    if bad > 0:
        return False
    for t in range(T):
        for d in range(n):
            x[t, d] = expm1(two * (x[t, d] + high[d]))
    for s in range(S):
        for d in range(n):
            w[s, d], w1[s, d] = exp_expm1(two * (w[s, d] - high[d]))
    return True
