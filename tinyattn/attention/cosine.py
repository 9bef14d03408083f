r"""Cosine attention: only the angle between query and key counts, and beta says how sharply.

    e_ts = beta cos(q_t, k_s)        cos(q, k) = q^T k / (|q| |k|)        alpha_t = softmax_s(e_ts)

Graves, Wayne and Danihelka 2014, "Neural Turing machines", section 3.3.1, addressing by content; c_t = sum_s alpha_ts
v_s. Not among the scores of Hu 2018, who cites the paper in section 3.4.

Cost: T S D multiplications, and (T + S) D for the norms; the keys are brought to length 1 once a sentence.

beta > 0 is learnt, or comes from a controller (softplus of a linear layer), one a query. The scores lie between -beta
and beta, so no weight can be more than e^{2 beta} times another: beta = 1 cannot point at one of many keys. A vector
of zeros has no direction: its cosine is 0 with everything, and it gets gradient 0 (where copies divide 0 by 0, or by 0
plus a small number).
"""
import math

import numpy as np

from .core import variant, weigh
from .shapes import expect


def _direction(x):
    """x / |x| over the last axis; 0, with gradient 0, where x is 0."""
    length = x.norm(-1, keepdims=True)                                     # (..., 1)
    return (x / length.where(length != 0, 1.0)).where(length != 0, 0.0)


def prepare(k):
    """k_s / |k_s|, for all keys at once: (..., S, D) to (..., S, D)."""
    expect("cosine", k=(k, "...SD"))
    return _direction(k)


def scores(q, prepared, beta):
    """beta cos(q_t, k_s) (..., T, S): q (..., T, D), prepared (..., S, D), beta () or one a query, (..., T, 1)."""
    expect("cosine", q=(q, "...TD"), k=(prepared, "...SD"), beta=(beta, "...T1" if getattr(beta, "ndim", 0) else ""))
    return beta * (_direction(q) @ prepared.transpose())


@variant("score", params={"beta": ""}, paper="Graves et al. 2014")
def cosine(q, k, v, beta, mask=None, return_weights=False):
    """q (..., T, D), k (..., S, D), v (..., S, E) to (..., T, E). beta is a scalar, or one a query, (..., T, 1).

    ShapeError for shapes that do not fit.
    """
    expect("cosine", q=(q, "...TD"), k=(k, "...SD"), v=(v, "...SE"))
    return weigh(scores(q, prepare(k), beta), v, mask, return_weights)


def reference(q, k, v, beta, mask=None):
    """The formula, one number at a time."""
    B, T, S = q.shape[0], q.shape[1], k.shape[1]
    out = np.zeros((B, T, v.shape[2]))
    seen = np.broadcast_to(True if mask is None else mask, (B, T, S))
    for b in range(B):
        for t in range(T):
            alpha = {}
            for s in range(S):
                if seen[b, t, s]:
                    lengths = math.hypot(*q[b, t]) * math.hypot(*k[b, s])
                    alpha[s] = math.exp(float(beta) * (sum(q[b, t] * k[b, s]) / lengths if lengths else 0.0))
            for s in alpha:
                out[b, t] += alpha[s] / sum(alpha.values()) * v[b, s]
    return out


def example(rng):
    """Two sentences of at most 4 words, the second of 2; three queries."""
    return {"q": rng.normal(size=(2, 3, 5)), "k": rng.normal(size=(2, 4, 5)), "v": rng.normal(size=(2, 4, 2)),
            "beta": np.array(2.5), "mask": np.arange(4) < np.array([4, 2])[:, None, None]}
