r"""General (bilinear) attention: a learned matrix says which parts of a query and of a key belong together.

    e_ts = q_t^T W k_s        alpha_t = softmax_s(e_ts)        c_t = sum_s alpha_ts v_s

Luong, Pham and Manning 2015, "Effective approaches to attention-based neural machine translation", the score
"general"; eq. 7 of Hu 2018. Queries and keys may differ in width, and W = I gives back the dot product.

Cost: S Q K + T S Q multiplications. W k is computed once a sentence, however many queries come.
"""
import math

import numpy as np

from ..functional import linear
from .core import variant, weigh
from .shapes import expect


def prepare(k, w):
    """W k_s, for all keys at once: k (..., S, K), w (Q, K) to (..., S, Q)."""
    expect("general", k=(k, "...SK"), w=(w, "QK"))
    return linear(k, w)


def scores(q, prepared):
    """e_ts = q_t^T prepared_s: q (..., T, Q), prepared (..., S, Q) to (..., T, S)."""
    expect("general", q=(q, "...TQ"), **{"W k": (prepared, "...SQ")})
    return q @ prepared.transpose()


@variant("score", params={"w": "QK"}, paper="Luong et al. 2015; Hu 2018 eq. 7")
def general(q, k, v, w, mask=None, return_weights=False):
    """q (..., T, Q), k (..., S, K), v (..., S, E), w (Q, K) to (..., T, E). ShapeError for shapes that do not fit."""
    expect("general", q=(q, "...TQ"), k=(k, "...SK"), v=(v, "...SE"), w=(w, "QK"))
    return weigh(scores(q, prepare(k, w)), v, mask, return_weights)


def reference(q, k, v, w, mask=None):
    """The formula, one number at a time."""
    B, T, S = q.shape[0], q.shape[1], k.shape[1]
    out = np.zeros((B, T, v.shape[2]))
    seen = np.broadcast_to(True if mask is None else mask, (B, T, S))
    for b in range(B):
        for t in range(T):
            alpha = {}
            for s in range(S):
                if seen[b, t, s]:
                    e = sum(q[b, t, i] * w[i, j] * k[b, s, j] for i in range(len(w)) for j in range(w.shape[1]))
                    alpha[s] = math.exp(e)
            for s in alpha:
                out[b, t] += alpha[s] / sum(alpha.values()) * v[b, s]
    return out


def example(rng):
    """Two sentences of at most 4 words, the second of 2; three queries."""
    return {"q": rng.normal(size=(2, 3, 2)), "k": rng.normal(size=(2, 4, 5)), "v": rng.normal(size=(2, 4, 3)),
            "w": rng.normal(size=(2, 5)), "mask": np.arange(4) < np.array([4, 2])[:, None, None]}
