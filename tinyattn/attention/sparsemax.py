r"""Sparsemax attention: weights that are exactly 0 where a score is too far below the best.

    alpha_t = argmin_{p in simplex} |p - e_t|^2, so alpha_ts = max(e_ts - tau_t, 0)        c_t = sum_s alpha_ts v_s

Martins and Astudillo 2016, "From softmax to sparsemax: a sparse model of attention and multi-label classification".
tau_t is such that the weights sum to 1; e_ts is any score by name. Not in Hu 2018.

Cost: that of the score, and for each query a partial sort of the scores within 1 of the best one.

A softmax gives every key something, and a long sentence much to words that do not matter; here a key that is 1 or
more below the best gets nothing, and sends no gradient either: the gradient is centred over the keys that have
weight. Scores scaled by a large number give a hard choice, by a small one the average.
"""
import numpy as np

from .core import scores_of, variant, weigh
from .shapes import expect


@variant("normaliser", score="dot", paper="Martins and Astudillo 2016")
def sparsemax(q, k, v, score="dot", mask=None, return_weights=False, **a):
    """q (B, T, Q), k (B, S, K), v (B, S, E) to (B, T, E); a are the parameters of the score.

    ShapeError for shapes that do not fit, InputError for a score that is none.
    """
    expect("sparsemax", q=(q, "...TQ"), k=(k, "...SK"), v=(v, "...SE"))
    return weigh(scores_of(score, q, k, a), v, mask, return_weights, normalise="sparsemax")


def reference(q, k, v, mask=None):
    """With the dot product; tau by halving the interval that it lies in, sixty times."""
    B, T, S = q.shape[0], q.shape[1], k.shape[1]
    out = np.zeros((B, T, v.shape[2]))
    seen = np.broadcast_to(True if mask is None else mask, (B, T, S))
    for b in range(B):
        for t in range(T):
            e = {s: sum(q[b, t] * k[b, s]) for s in range(S) if seen[b, t, s]}
            low, high = (max(e.values()) - 1, max(e.values())) if e else (0, 0)
            for _ in range(60):
                tau = (low + high) / 2
                if sum(max(e[s] - tau, 0) for s in e) > 1:
                    low = tau
                else:
                    high = tau
            for s in e:
                out[b, t] += max(e[s] - high, 0) * v[b, s]
    return out


def example(rng):
    """Two sentences of at most 4 words, the second of 2; three queries."""
    return {"q": rng.normal(size=(2, 3, 5)) / 2, "k": rng.normal(size=(2, 4, 5)) / 2, "v": rng.normal(size=(2, 4, 2)),
            "mask": np.arange(4) < np.array([4, 2])[:, None, None]}
