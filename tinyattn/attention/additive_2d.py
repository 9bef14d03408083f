r"""Additive attention with M outputs: one hidden layer, M scores for each key, so M weightings of the same values.

    e_mts = (W_2 tanh(W_q q_t + W_k k_s))_m        alpha_mt = softmax_s(e_mts)        c_tm = sum_s alpha_mts v_s

Hu 2018, Table 2, the additive line, with W_1 = [W_q W_k]; W_2 (M, A) is its W_2^T. Lin et al. 2017, "A structured
self-attentive sentence embedding", is the same without a query.

Cost: T S A tanh, shared by all M, which are never held in memory; (T Q + S K + M T S) A multiplications.
"""
import math

import numpy as np

from ..functional import linear
from ..ops.additive_2d import Additive2d
from .core import variant
from .shapes import expect
from .tensor import weigh_each


@variant("multi-dimensional", params={"w_q": "AQ", "w_k": "AK", "w_2": "MA"}, paper="Hu 2018 Table 2")
def additive_2d(q, k, v, w_q, w_k, w_2, mask=None, return_weights=False):
    """q (B, T, Q), k (B, S, K), v (B, S, E) to (B, T, M, E): M contexts a query. w_q (A, Q), w_k (A, K), w_2 (M, A).

    The weights are (B, M, T, S). ShapeError for shapes that do not fit.
    """
    expect("additive_2d", q=(q, "BTQ"), k=(k, "BSK"), v=(v, "BSE"), w_q=(w_q, "AQ"), w_k=(w_k, "AK"), w_2=(w_2, "MA"))
    return weigh_each("additive_2d", Additive2d()(linear(q, w_q), linear(k, w_k), w_2), v, mask, return_weights)


def reference(q, k, v, w_q, w_k, w_2, mask=None):
    """The formula, one number at a time."""
    B, T, S, M = q.shape[0], q.shape[1], k.shape[1], len(w_2)
    out = np.zeros((B, T, M, v.shape[2]))
    seen = np.broadcast_to(True if mask is None else mask, (B, T, S))
    for b in range(B):
        for t in range(T):
            for m in range(M):
                alpha = {}
                for s in range(S):
                    if seen[b, t, s]:
                        e = 0.0
                        for a in range(w_2.shape[1]):
                            e += w_2[m, a] * math.tanh(sum(w_q[a] * q[b, t]) + sum(w_k[a] * k[b, s]))
                        alpha[s] = math.exp(e)
                for s in alpha:
                    out[b, t, m] += alpha[s] / sum(alpha.values()) * v[b, s]
    return out


def example(rng):
    """Two sentences of at most 4 words, the second of 2; three queries, two weightings."""
    return {"q": rng.normal(size=(2, 3, 4)), "k": rng.normal(size=(2, 4, 5)), "v": rng.normal(size=(2, 4, 2)),
            "w_q": rng.normal(size=(3, 4)), "w_k": rng.normal(size=(3, 5)), "w_2": rng.normal(size=(2, 3)),
            "mask": np.arange(4) < np.array([4, 2])[:, None, None]}


def labels():
    """Queries and keys by number; what lies between batch and queries is called a weighting."""
    return None, None, "weighting"
