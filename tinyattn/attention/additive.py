r"""Additive attention: a small network scores each key against the query.

    e_ts = v_a^T tanh(W_q q_t + W_k k_s)        alpha_t = softmax_s(e_ts)        c_t = sum_s alpha_ts v_s

Bahdanau, Cho and Bengio 2015, "Neural machine translation by jointly learning to align and translate"; eq. 8 of Hu
2018 with W_1 = [W_q W_k], split so that W_k k is computed once a sentence.

Cost: T S A tanh, which are never held in memory; (T Q + S K) A multiplications.

Survey: eqs 1-2 ask with the decoder's present state and print no exponential; Bahdanau asks with the state before, and
takes the softmax. Here it is the softmax, and q is what the caller asks with.
"""
import math

import numpy as np

from ..functional import additive_scores, linear
from .core import variant, weigh
from .shapes import expect


def prepare(k, w_k):
    """W_k k_s, for all keys at once: k (B, S, K), w_k (A, K) to (B, S, A)."""
    return linear(k, w_k)


def scores(q, prepared, w_q, v_a):
    """e_ts = v_a^T tanh(W_q q_t + prepared_s): q (B, T, Q), prepared (B, S, A) to (B, T, S)."""
    return additive_scores(linear(q, w_q), prepared, v_a)


@variant("score", params={"w_q": "AQ", "w_k": "AK", "v_a": "A"}, paper="Bahdanau et al. 2015; Hu 2018 eq. 8")
def additive(q, k, v, w_q, w_k, v_a, mask=None, return_weights=False):
    """q (B, T, Q), k (B, S, K), v (B, S, E) to (B, T, E). w_q (A, Q), w_k (A, K), v_a (A,).

    ShapeError for shapes that do not fit.
    """
    expect("additive", q=(q, "BTQ"), k=(k, "BSK"), v=(v, "BSE"), w_q=(w_q, "AQ"), w_k=(w_k, "AK"), v_a=(v_a, "A"))
    return weigh(scores(q, prepare(k, w_k), w_q, v_a), v, mask, return_weights)


def reference(q, k, v, w_q, w_k, v_a, mask=None):
    """The formula, one number at a time."""
    B, T, S = q.shape[0], q.shape[1], k.shape[1]
    out = np.zeros((B, T, v.shape[2]))
    for b in range(B):
        for t in range(T):
            alpha = {}
            for s in range(S):
                if mask is None or mask[b, t if mask.shape[1] > 1 else 0, s]:
                    e = 0.0
                    for a in range(len(v_a)):
                        e += v_a[a] * math.tanh(sum(w_q[a] * q[b, t]) + sum(w_k[a] * k[b, s]))
                    alpha[s] = math.exp(e)
            for s in alpha:
                out[b, t] += alpha[s] / sum(alpha.values()) * v[b, s]
    return out


def example(rng):
    """Two sentences of at most 4 words, the second of 2; three queries."""
    return {"q": rng.normal(size=(2, 3, 4)), "k": rng.normal(size=(2, 4, 5)), "v": rng.normal(size=(2, 4, 2)),
            "w_q": rng.normal(size=(3, 4)), "w_k": rng.normal(size=(3, 5)), "v_a": rng.normal(size=3),
            "mask": np.arange(4) < np.array([4, 2])[:, None, None]}
