r"""MLP attention: the additive score with biases, pressed between 0 and 1 by an outer sigmoid.

    e_ts = sigma(v_a^T tanh(W_q q_t + W_k k_s + b_1) + b_2)        c_t = sum_s softmax_s(e_ts) v_s

Hu 2018, eq. 9, with W_1 = [W_q W_k] and v_a for its w_2. Kumar et al. 2016, "Ask me anything: dynamic memory networks
for natural language processing", have the same network as the gate of a fact, where it is used as it is, without a
softmax.

Cost: T S A tanh and T S sigmoids; (T Q + S K) A multiplications, W_k k once a sentence. Nothing of size T S A is
held.

Survey: eq. 9 is listed as a score like the others. But the sigmoid keeps every score between 0 and 1, so under a
softmax no weight can be more than e = 2.718 times another, and attention never gets sharp: with 10 keys no weight
reaches 0.24. Under eq. 2 as printed (`raw`), or as a gate by itself, it has no such limit. b_2 matters only because of
the sigmoid; without it the softmax would cancel b_2, and its gradient would be 0.
"""
import math

import numpy as np

from ..functional import additive_scores, linear
from .core import variant, weigh
from .shapes import expect


def prepare(k, w_k, b_1):
    """W_k k_s + b_1, for all keys at once: k (B, S, K), w_k (A, K), b_1 (A,) to (B, S, A)."""
    expect("mlp", k=(k, "BSK"), w_k=(w_k, "AK"), b_1=(b_1, "A"))
    return linear(k, w_k, b_1)


def scores(q, prepared, w_q, v_a, b_2):
    """e_ts in (0, 1): q (B, T, Q), prepared (B, S, A), w_q (A, Q), v_a (A,), b_2 () to (B, T, S)."""
    expect("mlp", q=(q, "BTQ"), **{"W_k k": (prepared, "BSA")}, w_q=(w_q, "AQ"), v_a=(v_a, "A"), b_2=(b_2, ""))
    return (additive_scores(linear(q, w_q), prepared, v_a) + b_2).sigmoid()


@variant("score", params={"w_q": "AQ", "w_k": "AK", "b_1": "A", "v_a": "A", "b_2": ""},
         paper="Kumar et al. 2016; Hu 2018 eq. 9")
def mlp(q, k, v, w_q, w_k, b_1, v_a, b_2, mask=None, return_weights=False):
    """q (B, T, Q), k (B, S, K), v (B, S, E) to (B, T, E). w_q (A, Q), w_k (A, K), b_1 and v_a (A,), b_2 a scalar.

    ShapeError for shapes that do not fit.
    """
    expect("mlp", q=(q, "BTQ"), k=(k, "BSK"), v=(v, "BSE"), w_q=(w_q, "AQ"), w_k=(w_k, "AK"))
    return weigh(scores(q, prepare(k, w_k, b_1), w_q, v_a, b_2), v, mask, return_weights)


def reference(q, k, v, w_q, w_k, b_1, v_a, b_2, mask=None):
    """The formula, one number at a time."""
    B, T, S = q.shape[0], q.shape[1], k.shape[1]
    out = np.zeros((B, T, v.shape[2]))
    seen = np.broadcast_to(True if mask is None else mask, (B, T, S))
    for b in range(B):
        for t in range(T):
            alpha = {}
            for s in range(S):
                if seen[b, t, s]:
                    inner = float(b_2)
                    for a in range(len(v_a)):
                        inner += v_a[a] * math.tanh(sum(w_q[a] * q[b, t]) + sum(w_k[a] * k[b, s]) + b_1[a])
                    alpha[s] = math.exp(1 / (1 + math.exp(-inner)))
            for s in alpha:
                out[b, t] += alpha[s] / sum(alpha.values()) * v[b, s]
    return out


def example(rng):
    """Two sentences of at most 4 words, the second of 2; three queries."""
    return {"q": rng.normal(size=(2, 3, 4)), "k": rng.normal(size=(2, 4, 5)), "v": rng.normal(size=(2, 4, 2)),
            "w_q": rng.normal(size=(3, 4)), "w_k": rng.normal(size=(3, 5)), "b_1": rng.normal(size=3),
            "v_a": rng.normal(size=3), "b_2": np.array(rng.normal()),
            "mask": np.arange(4) < np.array([4, 2])[:, None, None]}
