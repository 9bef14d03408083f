r"""Sigmoid attention: every key gets its weight by itself, and nothing has to be shared out.

    alpha_ts = 1 / (1 + e^{-e_ts})        c_t = sum_s alpha_ts v_s

Kim, Denton, Hoang and Rush 2017, "Structured attention networks", compare it with the softmax in their translation
experiments: one independent choice a key, of which alpha is the probability. e_ts is any score by name. Not in Hu
2018.

Cost: that of the score, and T S sigmoids.

The weights of a query sum to anything between 0 and S: a query may take several keys whole, or none. The context
grows with the number of keys, and a constant in the score, which a softmax cancels, decides here how many keys are
taken.
"""
import math

import numpy as np

from .core import scores_of, variant, weigh
from .shapes import expect


@variant("normaliser", score="dot", sums=(0.0, math.inf), paper="Kim et al. 2017")
def sigmoid(q, k, v, score="dot", mask=None, return_weights=False, **a):
    """q (B, T, Q), k (B, S, K), v (B, S, E) to (B, T, E); a are the parameters of the score.

    ShapeError for shapes that do not fit, InputError for a score that is none.
    """
    expect("sigmoid", q=(q, "...TQ"), k=(k, "...SK"), v=(v, "...SE"))
    return weigh(scores_of(score, q, k, a), v, mask, return_weights, normalise="sigmoid")


def reference(q, k, v, mask=None):
    """With the dot product, one number at a time."""
    B, T, S = q.shape[0], q.shape[1], k.shape[1]
    out = np.zeros((B, T, v.shape[2]))
    seen = np.broadcast_to(True if mask is None else mask, (B, T, S))
    for b in range(B):
        for t in range(T):
            for s in range(S):
                if seen[b, t, s]:
                    out[b, t] += v[b, s] / (1 + math.exp(-sum(q[b, t] * k[b, s])))
    return out


def example(rng):
    """Two sentences of at most 4 words, the second of 2; three queries."""
    return {"q": rng.normal(size=(2, 3, 5)), "k": rng.normal(size=(2, 4, 5)), "v": rng.normal(size=(2, 4, 2)),
            "mask": np.arange(4) < np.array([4, 2])[:, None, None]}
