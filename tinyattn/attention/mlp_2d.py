r"""MLP attention with M outputs: the additive score with M outputs, biases, and the outer sigmoid.

    e_mts = sigma((W_2 tanh(W_q q_t + W_k k_s + b_1))_m + b_2m)        c_tm = sum_s softmax_s(e_mts) v_s

Hu 2018, Table 2, the MLP line (eq. 9 lifted), with W_1 = [W_q W_k]; W_2 (M, A) is its W_2^T.

Cost: T S A tanh, shared by all M, which are never held in memory; M T S sigmoids; (T Q + S K + M T S) A
multiplications.

Survey: as with eq. 9 (see `mlp`), the sigmoid keeps the scores in (0, 1), so that under a softmax no weight can be
more than e = 2.718 times another. b_2 has one number a weighting here, a vector (M,); with equal entries it is the
scalar of eq. 9.
"""
import math

import numpy as np

from ..functional import linear
from ..ops.additive_2d import Additive2d
from .core import variant
from .shapes import expect
from .tensor import weigh_each


@variant("multi-dimensional", params={"w_q": "AQ", "w_k": "AK", "b_1": "A", "w_2": "MA", "b_2": "M"},
         paper="Hu 2018 Table 2")
def mlp_2d(q, k, v, w_q, w_k, b_1, w_2, b_2, mask=None, return_weights=False):
    """q (B, T, Q), k (B, S, K), v (B, S, E) to (B, T, M, E): M contexts a query.

    w_q (A, Q), w_k (A, K), b_1 (A,), w_2 (M, A), b_2 (M,).
    The weights are (B, M, T, S). ShapeError for shapes that do not fit.
    """
    expect("mlp_2d", q=(q, "BTQ"), k=(k, "BSK"), v=(v, "BSE"), w_q=(w_q, "AQ"), w_k=(w_k, "AK"), b_1=(b_1, "A"),
           w_2=(w_2, "MA"), b_2=(b_2, "M"))
    e = Additive2d()(linear(q, w_q), linear(k, w_k, b_1), w_2) + b_2.reshape(-1, 1, 1)  # (B, M, T, S)
    return weigh_each("mlp_2d", e.sigmoid(), v, mask, return_weights)


def reference(q, k, v, w_q, w_k, b_1, w_2, b_2, mask=None):
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
                        inner = b_2[m]
                        for a in range(w_2.shape[1]):
                            inner += w_2[m, a] * math.tanh(sum(w_q[a] * q[b, t]) + sum(w_k[a] * k[b, s]) + b_1[a])
                        alpha[s] = math.exp(1 / (1 + math.exp(-inner)))
                for s in alpha:
                    out[b, t, m] += alpha[s] / sum(alpha.values()) * v[b, s]
    return out


def example(rng):
    """Two sentences of at most 4 words, the second of 2; three queries, two weightings."""
    return {"q": rng.normal(size=(2, 3, 4)), "k": rng.normal(size=(2, 4, 5)), "v": rng.normal(size=(2, 4, 2)),
            "w_q": rng.normal(size=(3, 4)), "w_k": rng.normal(size=(3, 5)), "b_1": rng.normal(size=3),
            "w_2": rng.normal(size=(2, 3)), "b_2": rng.normal(size=2),
            "mask": np.arange(4) < np.array([4, 2])[:, None, None]}


def labels():
    """Queries and keys by number; what lies between batch and queries is called a weighting."""
    return None, None, "weighting"
