r"""Dot-product attention: a key scores high where it points the way that the query points.

    e_ts = q_t^T k_s        alpha_t = softmax_s(e_ts)        c_t = sum_s alpha_ts v_s

Luong, Pham and Manning 2015, "Effective approaches to attention-based neural machine translation", the score "dot";
eq. 6 of Hu 2018. Nothing is learnt, so queries and keys must already live in one space, of one width.

Cost: T S D multiplications, one matrix product: the cheapest of the scores. It grows with the width: q^T k of random
vectors has the variance D, so that wide vectors saturate the softmax (`scaled_dot` divides by sqrt(D)).
"""
import math

import numpy as np

from .core import variant, weigh
from .shapes import expect


def scores(q, prepared):
    """e_ts = q_t^T k_s: q (..., T, D), prepared, the keys, (..., S, D) to (..., T, S)."""
    expect("dot", q=(q, "...TD"), k=(prepared, "...SD"))
    return q @ prepared.transpose()


@variant("score", paper="Luong et al. 2015; Hu 2018 eq. 6")
def dot(q, k, v, mask=None, return_weights=False):
    """q (..., T, D), k (..., S, D), v (..., S, E) to (..., T, E). ShapeError for shapes that do not fit."""
    expect("dot", q=(q, "...TD"), k=(k, "...SD"), v=(v, "...SE"))
    return weigh(scores(q, k), v, mask, return_weights)


def reference(q, k, v, mask=None):
    """The formula, one number at a time."""
    B, T, S = q.shape[0], q.shape[1], k.shape[1]
    out = np.zeros((B, T, v.shape[2]))
    seen = np.broadcast_to(True if mask is None else mask, (B, T, S))
    for b in range(B):
        for t in range(T):
            alpha = {}
            for s in range(S):
                if seen[b, t, s]:
                    alpha[s] = math.exp(sum(q[b, t, d] * k[b, s, d] for d in range(q.shape[2])))
            for s in alpha:
                out[b, t] += alpha[s] / sum(alpha.values()) * v[b, s]
    return out


def example(rng):
    """Two sentences of at most 4 words, the second of 2; three queries."""
    return {"q": rng.normal(size=(2, 3, 5)), "k": rng.normal(size=(2, 4, 5)), "v": rng.normal(size=(2, 4, 2)),
            "mask": np.arange(4) < np.array([4, 2])[:, None, None]}
