r"""Raw attention: scores divided by their sum, with no exponential, as the survey's eq. 2 has it.

    alpha_ts = e_ts / sum_j e_tj        c_t = sum_s alpha_ts v_s        for e_ts >= 0 only

Hu 2018, eqs 1-3, with the scores of eq. 9 (`mlp`), which lie between 0 and 1.

Cost: that of the score, and T S divisions.

Survey: eq. 2 prints no exponential (section 3.4 does). With scores of both signs it is no weighting: 0.5, -0.4 and 0.2
would give 1.67, -1.33 and 0.67, and where the sum nears 0 anything. So a negative score is refused with ValueError, and
the eq. 2 of every other mechanism is the softmax. With eq. 9 it is defined, and it is sharper there than the softmax,
which lets no weight be more than e times another: here weights can differ by any factor.
"""
import math

import numpy as np

from .core import scores_of, variant, weigh
from .shapes import expect


@variant("normaliser", score="mlp", paper="Hu 2018 eqs 1-3 and 9")
def raw(q, k, v, score="mlp", mask=None, return_weights=False, **a):
    """q (B, T, Q), k (B, S, K), v (B, S, E) to (B, T, E); a are the parameters of the score.

    ValueError for a negative score that is not masked, ShapeError for shapes that do not fit, InputError for a score
    that is none.
    """
    expect("raw", q=(q, "BTQ"), k=(k, "BSK"), v=(v, "BSE"))
    return weigh(scores_of(score, q, k, a), v, mask, return_weights, normalise="raw")


def reference(q, k, v, w_q, w_k, b_1, v_a, b_2, mask=None):
    """With eq. 9, one number at a time."""
    B, T, S = q.shape[0], q.shape[1], k.shape[1]
    out = np.zeros((B, T, v.shape[2]))
    seen = np.broadcast_to(True if mask is None else mask, (B, T, S))
    for b in range(B):
        for t in range(T):
            e = {}
            for s in range(S):
                if seen[b, t, s]:
                    inner = float(b_2)
                    for i in range(len(v_a)):
                        inner += v_a[i] * math.tanh(sum(w_q[i] * q[b, t]) + sum(w_k[i] * k[b, s]) + b_1[i])
                    e[s] = 1 / (1 + math.exp(-inner))
            for s in e:
                out[b, t] += e[s] / sum(e.values()) * v[b, s]
    return out


def example(rng):
    """Two sentences of at most 4 words, the second of 2; three queries."""
    return {"q": rng.normal(size=(2, 3, 4)), "k": rng.normal(size=(2, 4, 5)), "v": rng.normal(size=(2, 4, 2)),
            "w_q": rng.normal(size=(3, 4)), "w_k": rng.normal(size=(3, 5)), "b_1": rng.normal(size=3),
            "v_a": rng.normal(size=3), "b_2": np.array(rng.normal()),
            "mask": np.arange(4) < np.array([4, 2])[:, None, None]}
