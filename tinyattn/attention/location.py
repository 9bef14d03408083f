r"""Location attention: each query looks at places in the sentence, whatever words stand there.

    e_t = W q_t, one score a place        alpha_t = softmax_s(e_ts)        c_t = sum_s alpha_ts v_s

Luong, Pham and Manning 2015, "Effective approaches to attention-based neural machine translation", eq. 8, "location".
Not among the scores of Hu 2018, who has the paper's other scores and its local attention.

Cost: T S Q multiplications. W has L rows, one a place up to the longest sentence that it knows.

A shorter sentence uses the top rows of W, and the softmax runs over those, so that the weights sum to 1. A longer one
loses its tail: keys from place L on get the score -inf, which is the weight 0. The keys themselves are never read;
only how many there are counts.
"""
import math

import numpy as np

from ..functional import linear
from .core import variant, weigh
from .shapes import expect


def scores(q, prepared, w):
    """e_ts = w_s^T q_t for s < L, and -inf from there on (..., T, S): q (..., T, Q), w (L, Q).

    Of prepared, the keys, (..., S, K), only their number counts.
    """
    expect("location", q=(q, "...TQ"), k=(prepared, "...SK"), w=(w, "LQ"))
    S, L = prepared.shape[-2], w.shape[0]
    e = linear(q, w if S >= L else w[:S])                                  # (..., T, min(S, L))
    return e.pad(((0, 0),) * (e.ndim - 1) + ((0, S - L),), -math.inf) if S > L else e


@variant("score", params={"w": "LQ"}, keys=("v",), paper="Luong et al. 2015 eq. 8")
def location(q, k, v, w, mask=None, return_weights=False):
    """q (..., T, Q), k (..., S, K), v (..., S, E) to (..., T, E). w (L, Q), L the longest sentence that it knows.

    ShapeError for shapes that do not fit.
    """
    expect("location", q=(q, "...TQ"), k=(k, "...SK"), v=(v, "...SE"), w=(w, "LQ"))
    return weigh(scores(q, k, w), v, mask, return_weights)


def reference(q, k, v, w, mask=None):
    """The formula, one number at a time."""
    B, T, S = q.shape[0], q.shape[1], k.shape[1]
    out = np.zeros((B, T, v.shape[2]))
    seen = np.broadcast_to(True if mask is None else mask, (B, T, S))
    for b in range(B):
        for t in range(T):
            alpha = {}
            for s in range(min(S, len(w))):
                if seen[b, t, s]:
                    alpha[s] = math.exp(sum(w[s, i] * q[b, t, i] for i in range(q.shape[2])))
            for s in alpha:
                out[b, t] += alpha[s] / sum(alpha.values()) * v[b, s]
    return out


def example(rng):
    """Two sentences of at most 4 words, the second of 2, and a table of 4 places; three queries."""
    return {"q": rng.normal(size=(2, 3, 5)), "k": rng.normal(size=(2, 4, 2)), "v": rng.normal(size=(2, 4, 3)),
            "w": rng.normal(size=(4, 5)), "mask": np.arange(4) < np.array([4, 2])[:, None, None]}
