r"""Biaffine attention: the bilinear score, and beside it how likely a key is chosen whoever asks.

    e_ts = k_s^T U_1 q_t + k_s^T u_2        alpha_t = softmax_s(e_ts)        c_t = sum_s alpha_ts v_s

Dozat and Manning 2017, "Deep biaffine attention for neural dependency parsing". There a word asks for its head:
queries are the words as dependents, keys the same words as heads, each through an MLP of its own, and alpha is the
parse; u_2 learns that verbs like to be heads. Not among the scores of Hu 2018.

Cost: T Q K + T S K multiplications: it is a dot product of the keys with U_1 q_t + u_2, an affine map of the query.

A bias of the query, q_t^T u, or a number for all would be the same for every key, and the softmax would cancel it. So
there is none.
"""
import math

import numpy as np

from ..functional import linear
from .core import variant, weigh
from .shapes import expect


def scores(q, prepared, u_1, u_2):
    """e_ts = k_s^T (U_1 q_t + u_2) (..., T, S): q (..., T, Q), prepared = k (..., S, K), u_1 (K, Q), u_2 (K,)."""
    expect("biaffine", q=(q, "...TQ"), k=(prepared, "...SK"), u_1=(u_1, "KQ"), u_2=(u_2, "K"))
    return linear(q, u_1, u_2) @ prepared.transpose()


@variant("score", params={"u_1": "KQ", "u_2": "K"}, paper="Dozat and Manning 2017")
def biaffine(q, k, v, u_1, u_2, mask=None, return_weights=False):
    """q (..., T, Q), k (..., S, K), v (..., S, E) to (..., T, E). u_1 (K, Q), u_2 (K,).

    ShapeError for shapes that do not fit.
    """
    expect("biaffine", q=(q, "...TQ"), k=(k, "...SK"), v=(v, "...SE"))
    return weigh(scores(q, k, u_1, u_2), v, mask, return_weights)


def reference(q, k, v, u_1, u_2, mask=None):
    """The formula, one number at a time."""
    B, T, S = q.shape[0], q.shape[1], k.shape[1]
    out = np.zeros((B, T, v.shape[2]))
    seen = np.broadcast_to(True if mask is None else mask, (B, T, S))
    for b in range(B):
        for t in range(T):
            alpha = {}
            for s in range(S):
                if seen[b, t, s]:
                    e = sum(k[b, s, i] * u_2[i] for i in range(len(u_2)))
                    e += sum(k[b, s, i] * u_1[i, j] * q[b, t, j] for i in range(len(u_1)) for j in range(q.shape[2]))
                    alpha[s] = math.exp(e)
            for s in alpha:
                out[b, t] += alpha[s] / sum(alpha.values()) * v[b, s]
    return out


def example(rng):
    """Two sentences of at most 4 words, the second of 2; three queries."""
    return {"q": rng.normal(size=(2, 3, 2)), "k": rng.normal(size=(2, 4, 5)), "v": rng.normal(size=(2, 4, 3)),
            "u_1": rng.normal(size=(5, 2)), "u_2": rng.normal(size=5),
            "mask": np.arange(4) < np.array([4, 2])[:, None, None]}
