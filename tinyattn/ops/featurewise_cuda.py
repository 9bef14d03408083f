"""The loops of `featurewise.py` on a card, on flat arrays.

Nothing crosses from one feature to another, so a thread owns one feature d of a few queries (or of a few keys) and goes
through all keys (or queries) by itself: threads side by side read features side by side, no thread waits for another,
and sums are added in the order of the keys. tanh rises, so the largest f of a query is that of its largest allowed key,
found without a tanh a key; it is subtracted from every f, whatever c is, and kept for the gradient, as 1 / sum e^f is.
"""
import math

import numpy as np

from ..cuda import cuda, cuda_function, cuda_kernel, flat, on_card
from ..cuda import exp as cuda_exp
from ..cuda import tanh as cuda_tanh
from ..device import empty

FEW = 4  # queries or keys of a thread: what it reads along the way serves as many
NO_MASK = np.ones(1, np.bool_)


def attend_cuda(q, k, v, mask, steps, c):
    """(out, high, scale), all (B, T, D): high is tanh of the largest score, scale is 1 / sum e^(f - largest f).

    steps: of the mask along b, t and s, in elements; None without a mask.
    """
    (B, T, D), S = q.shape, k.shape[1]
    out, high, scale = (empty(q.shape, q.dtype, "cuda") for _ in range(3))
    _attend_cuda.each(B * -(-T // FEW) * D)(*map(flat, (q, k, v, out, high, scale)), *_rest(q, S, mask, steps, c))
    return out, high, scale


def attend_grad_cuda(g, out, high, scale, q, k, v, mask, steps, c, needs):
    """[dq, dk, dv], None for what is not needed."""
    (B, T, D), S = q.shape, k.shape[1]
    dq, dk, dv = (empty(x.shape, x.dtype, "cuda") for x in (q, k, v))
    arrays, rest = [*map(flat, (g, out, high, scale, q, k, v))], _rest(q, S, mask, steps, c)
    if needs[0]:
        _queries_grad_cuda.each(B * -(-T // FEW) * D)(*arrays, flat(dq), *rest)
    if needs[1] or needs[2]:
        _keys_grad_cuda.each(B * -(-S // FEW) * D)(*arrays, flat(dk), flat(dv), *rest)
    return [x if need else None for x, need in zip((dq, dk, dv), needs, strict=False)]


def _rest(q, S, mask, steps, c):
    """What all three kernels take at the end: the mask, is there one, its steps, the sizes, c and 1 / c."""
    masked = steps is not None
    mask, steps = (flat(mask), steps) if masked else (on_card(NO_MASK), (0, 0, 0))
    return mask, int(masked), *steps, *q.shape, S, q.dtype.type(c), q.dtype.type(1 / c)


@cuda_function
def _share(n, D):
    """(b, number of the first of my queries or keys, d) where each b has n; b is too large in threads beyond the last."""
    i, groups = cuda.grid(1), (n + FEW - 1) // FEW
    group = i // D
    b = group // groups
    return b, (group - b * groups) * FEW, i - group * D


@cuda_kernel("T[::1], T[::1], T[::1], T[::1], T[::1], T[::1], boolean[::1], int64, int64, int64, int64, int64, int64, "
             "int64, int64, T, T")
def _attend_cuda(q, k, v, out, high, scale, mask, masked, of_b, of_t, of_s, B, T, D, S, c, per_c):
    """A thread computes feature d of FEW queries of one b: first the largest key of each, then the sums of
    p = e^(f - largest f) and of p v over the keys. Of the mask only the steps are known: 0 where it is stretched."""
    b, t0, d = _share(T, D)
    if b >= B:
        return
    rows, first = T - t0, (b * T + t0) * D + d
    zero, one = q.dtype.type(0), q.dtype.type(1)
    most = cuda.local.array(FEW, q.dtype)
    for j in range(FEW):
        most[j] = q.dtype.type(-math.inf)
    at, at_mask = b * S * D + d, b * of_b + t0 * of_t
    for s in range(S):
        key = k[np.uint64(at + s * D)]
        for j in range(FEW):
            if j < rows and (masked == 0 or mask[np.uint64(at_mask + s * of_s + j * of_t)]):
                most[j] = key if key > most[j] else most[j]  # noqa: FURB136 (a nan gets into the sums all the same)
    own = cuda.local.array(FEW, q.dtype)
    total = cuda.local.array(FEW, q.dtype)
    mean = cuda.local.array(FEW, q.dtype)
    for j in range(FEW):
        own[j] = q[first + j * D] if j < rows else zero
        most[j] = cuda_tanh((own[j] + most[j]) * per_c)
        total[j] = zero
        mean[j] = zero
    for s in range(S):
        key, value = k[np.uint64(at + s * D)], v[np.uint64(at + s * D)]
        for j in range(FEW):
            if j < rows and (masked == 0 or mask[np.uint64(at_mask + s * of_s + j * of_t)]):
                p = cuda_exp(c * (cuda_tanh((own[j] + key) * per_c) - most[j]))
                total[j] += p
                mean[j] += p * value
    for j in range(FEW):
        if j < rows:
            share = one / total[j] if total[j] != zero else zero
            high[first + j * D] = most[j]
            scale[first + j * D] = share
            out[first + j * D] = share * mean[j]


@cuda_kernel("T[::1], T[::1], T[::1], T[::1], T[::1], T[::1], T[::1], T[::1], boolean[::1], int64, int64, int64, int64, "
             "int64, int64, int64, int64, T, T")
def _queries_grad_cuda(g, out, high, scale, q, k, v, dq, mask, masked, of_b, of_t, of_s, B, T, D, S, c, per_c):
    """A thread computes feature d of dq of FEW queries: over the keys, dq[t] += P g (v[s] - out[t]) (1 - y^2) with
    y = tanh and P computed again."""
    b, t0, d = _share(T, D)
    if b >= B:
        return
    rows, first = T - t0, (b * T + t0) * D + d
    zero, one = q.dtype.type(0), q.dtype.type(1)
    own = cuda.local.array(FEW, q.dtype)
    most = cuda.local.array(FEW, q.dtype)
    share = cuda.local.array(FEW, q.dtype)
    mean = cuda.local.array(FEW, q.dtype)
    total = cuda.local.array(FEW, q.dtype)
    for j in range(FEW):
        at = first + (j if j < rows else 0) * D
        own[j] = q[at]
        most[j] = high[at]
        share[j] = g[at] * scale[at]
        mean[j] = out[at]
        total[j] = zero
    at, at_mask = b * S * D + d, b * of_b + t0 * of_t
    for s in range(S):
        key, value = k[np.uint64(at + s * D)], v[np.uint64(at + s * D)]
        for j in range(FEW):
            if j < rows and (masked == 0 or mask[np.uint64(at_mask + s * of_s + j * of_t)]):
                y = cuda_tanh((own[j] + key) * per_c)
                p = share[j] * cuda_exp(c * (y - most[j]))
                total[j] += p * (value - mean[j]) * (one - y * y)
    for j in range(FEW):
        if j < rows:
            dq[first + j * D] = total[j]


@cuda_kernel("T[::1], T[::1], T[::1], T[::1], T[::1], T[::1], T[::1], T[::1], T[::1], boolean[::1], int64, int64, int64, "
             "int64, int64, int64, int64, int64, T, T")
def _keys_grad_cuda(g, out, high, scale, q, k, v, dk, dv, mask, masked, of_b, of_t, of_s, B, T, D, S, c, per_c):
    """A thread computes feature d of dk and dv of FEW keys: over the queries, dv[s] += P g, and dk[s] += the same as dq."""
    b, s0, d = _share(S, D)
    if b >= B:
        return
    rows, first = S - s0, (b * S + s0) * D + d
    zero, one = q.dtype.type(0), q.dtype.type(1)
    own = cuda.local.array(FEW, q.dtype)
    value = cuda.local.array(FEW, q.dtype)
    to_k = cuda.local.array(FEW, q.dtype)
    to_v = cuda.local.array(FEW, q.dtype)
    for j in range(FEW):
        at = first + (j if j < rows else 0) * D
        own[j] = k[at]
        value[j] = v[at]
        to_k[j] = zero
        to_v[j] = zero
    at_mask = b * of_b + s0 * of_s
    for t in range(T):
        at = np.uint64((b * T + t) * D + d)
        query, most, share, mean = q[at], high[at], g[at] * scale[at], out[at]
        for j in range(FEW):
            if j < rows and (masked == 0 or mask[np.uint64(at_mask + t * of_t + j * of_s)]):
                y = cuda_tanh((query + own[j]) * per_c)
                p = share * cuda_exp(c * (y - most))
                to_v[j] += p
                to_k[j] += p * (value[j] - mean) * (one - y * y)
    for j in range(FEW):
        if j < rows:
            dk[first + j * D] = to_k[j]
            dv[first + j * D] = to_v[j]
