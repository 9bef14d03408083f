r"""Rotary positions: queries and keys are turned, the farther the later they stand, so a score sees distance alone.

    q'_t^T k'_s = q_t^T R_{s-t} k_s        q'_t = R_t q_t        k'_s = R_s k_s
    R_t turns pair m of the coordinates by t theta_m, theta_m = 10000^{-2m/d}:  (a, b) -> (a cos - b sin, a sin + b cos)

Su et al. 2021, "RoFormer: enhanced transformer with rotary position embedding". Not in Hu 2018. Values
are never turned.

Cost: 3 T A multiplications and additions each for queries and keys, beside multi-head attention. Nothing is learnt.

Which coordinates make a pair differs, and weights trained with one choice are useless under the other: "interleaved"
pairs 2m with 2m + 1 (the paper), "halves" pairs m with m + d/2 (GPT-NeoX, Llama). One is the other with the rows of W_q
and W_k reordered.
"""
import math

import numpy as np

from ..functional import concat, stack
from ..ops.broadcast import ShapeError
from ..tensor import Tensor
from .core import variant
from .heads import attend, output, project
from .shapes import one_of

PAIRINGS = ("interleaved", "halves")


def rotate(x, start=0, pairing="interleaved", base=10000.0):
    """x (..., T, d), d even, each row turned as the one at place start + t. ShapeError for an odd d, InputError for a
    pairing that is none of PAIRINGS, ValueError for a base that is not above 0."""
    one_of("rope", pairing=(pairing, PAIRINGS))
    if not base > 0:
        raise ValueError(f"rope: expected a base above 0, got {base}")
    if x.ndim < 2 or x.shape[-1] % 2:
        raise ShapeError(f"rope: expected heads (..., T, d) of even width d, got {x.shape}")
    *lead, T, d = x.shape
    angles = np.arange(start, start + T)[:, None] * base ** (-2 * np.arange(d // 2) / d)  # (T, d/2)
    cos, sin = (Tensor(f(angles), dtype=x.dtype, device=x.device) for f in (np.cos, np.sin))
    if pairing == "halves":
        a, b = x.split([d // 2, d // 2], -1)                               # (..., T, d/2)
        return concat([a * cos - b * sin, a * sin + b * cos], -1)
    pairs = x.reshape(*lead, T, d // 2, 2)
    a, b = pairs[..., 0], pairs[..., 1]
    return stack([a * cos - b * sin, a * sin + b * cos], -1).reshape(x.shape)


@variant("self", params={"w_q": "AD", "w_k": "AD", "w_v": "ED", "w_o": "DE"}, paper="Su et al. 2021", causal=True)
def rope(x, w_q, w_k, w_v, w_o, mask=None, return_weights=False, heads=2, causal=False, pairing="interleaved",
         base=10000.0, start=0, cache=None):
    """x (B, T, D) to (B, T, D). w_q, w_k (H d, D) with d even, w_v (H e, D), w_o (D, H e). `start` is the place of the
    first word, of which the output does not depend but for rounding; a cache counts on by itself. mask, causal, cache,
    return_weights and errors as in `multi_head`; ShapeError for an odd d, InputError for another pairing, ValueError
    for a base that is not above 0."""
    q, k, v, mask = project("rope", x, w_q, w_k, w_v, heads, mask=mask, cache=cache)
    start = start if cache is None else start + cache.length
    q, k = rotate(q, start, pairing, base), rotate(k, start, pairing, base)
    k, v = (k, v) if cache is None else cache.append(k, v)
    context, weights = attend(q, k, v, mask, causal or cache is not None, None, return_weights)
    return output("rope", context, weights, w_o)


def reference(x, w_q, w_k, w_v, w_o, mask=None, heads=2):
    """The formula: a pair of coordinates is a complex number, and turning it a multiplication by e^{i angle}."""
    B, T, _ = x.shape
    d, e = len(w_q) // heads, len(w_v) // heads

    def turned(row, t):
        return [complex(row[2 * m], row[2 * m + 1]) * np.exp(1j * t * 10000 ** (-2 * m / d)) for m in range(d // 2)]

    out = np.zeros((B, T, len(w_o)))
    for b in range(B):
        for t in range(T):
            joined = []
            for h in range(heads):
                alpha, head = {}, np.zeros(e)
                q = turned(w_q[h * d:(h + 1) * d] @ x[b, t], t)
                for s in range(T):
                    if mask is None or mask[b, t if mask.shape[1] > 1 else 0, s]:
                        k = turned(w_k[h * d:(h + 1) * d] @ x[b, s], s)
                        alpha[s] = math.exp(sum((q[m] * k[m].conjugate()).real for m in range(d // 2)) / math.sqrt(d))
                for s in alpha:
                    head += alpha[s] / sum(alpha.values()) * (w_v[h * e:(h + 1) * e] @ x[b, s])
                joined += list(head)
            out[b, t] = w_o @ joined
    return out


def example(rng):
    """Two sentences of at most 5 words, the second of 3; two heads, queries of width 4 and values of width 1."""
    return {"x": rng.normal(size=(2, 5, 3)), "w_q": rng.normal(size=(8, 3)), "w_k": rng.normal(size=(8, 3)),
            "w_v": rng.normal(size=(2, 3)), "w_o": rng.normal(size=(3, 2)), "heads": 2,
            "mask": np.arange(5) < np.array([5, 3])[:, None, None]}
