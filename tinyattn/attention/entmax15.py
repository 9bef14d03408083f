r"""Entmax-1.5 attention: exact zeros as with sparsemax, but weights that come and go smoothly.

    alpha_ts = max(e_ts / 2 - tau_t, 0)^2        c_t = sum_s alpha_ts v_s

Peters, Niculae and Martins 2019, "Sparse sequence-to-sequence models". tau_t is such that the weights sum to 1; e_ts
is any score by name. Not in Hu 2018.

Cost: that of the score, and for each query a partial sort of the scores within 2 of the best one.

The family is max((c - 1) e - tau, 0)^{1 / (c - 1)}: c = 2 is sparsemax, c -> 1 the softmax, and c = 1.5 half way
between. A key gets exactly 0 where it is 2 or more below the best, and its weight reaches 0 with slope 0, where
sparsemax has a kink.
"""
import numpy as np

from .core import scores_of, variant, weigh
from .shapes import expect


@variant("normaliser", score="dot", paper="Peters et al. 2019")
def entmax15(q, k, v, score="dot", mask=None, return_weights=False, **a):
    """q (B, T, Q), k (B, S, K), v (B, S, E) to (B, T, E); a are the parameters of the score.

    ShapeError for shapes that do not fit, InputError for a score that is none.
    """
    expect("entmax15", q=(q, "...TQ"), k=(k, "...SK"), v=(v, "...SE"))
    return weigh(scores_of(score, q, k, a), v, mask, return_weights, normalise="entmax15")


def reference(q, k, v, mask=None):
    """With the dot product; tau by halving the interval that it lies in, sixty times."""
    B, T, S = q.shape[0], q.shape[1], k.shape[1]
    out = np.zeros((B, T, v.shape[2]))
    seen = np.broadcast_to(True if mask is None else mask, (B, T, S))
    for b in range(B):
        for t in range(T):
            half = {s: sum(q[b, t] * k[b, s]) / 2 for s in range(S) if seen[b, t, s]}
            low, high = (max(half.values()) - 1, max(half.values())) if half else (0, 0)
            for _ in range(60):
                tau = (low + high) / 2
                if sum(max(half[s] - tau, 0) ** 2 for s in half) > 1:
                    low = tau
                else:
                    high = tau
            for s in half:
                out[b, t] += max(half[s] - high, 0) ** 2 * v[b, s]
    return out


def example(rng):
    """Two sentences of at most 4 words, the second of 2; three queries."""
    return {"q": rng.normal(size=(2, 3, 5)) / 2, "k": rng.normal(size=(2, 4, 5)) / 2, "v": rng.normal(size=(2, 4, 2)),
            "mask": np.arange(4) < np.array([4, 2])[:, None, None]}
