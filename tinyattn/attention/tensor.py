r"""Tensor attention: M bilinear scores for each key, so that a query gets M weightings, each for another aspect.

    e_mts = tanh(q_t^T W_m k_s)        alpha_mt = softmax_s(e_mts)        c_tm = sum_s alpha_mts v_s

Wang, Pan, Dahlmeier and Xiao 2017, "Coupled multi-layer attentions for co-extraction of aspect and opinion terms";
eq. 10 of Hu 2018; tanh=False is the multiplicative line of its Table 2.

Cost: T Q M K + M T S K multiplications, and M T S tanh. The M matrices are one array (M, Q, K) and two matrix
products: M small products in a loop would be slower.

Survey: eq. 10 is the whole formula, and its e is said to stay as it is: the coupled attention goes on with the M
scores as a vector and never takes a softmax of them. As an attention of its own it needs weights, so here each of the
M scores has its softmax over the keys. The paper and eq. 10 have the tanh; the code that the paper's authors
published leaves it out. With it scores lie in (-1, 1), and no weight can be more than e^2 = 7.4 times another.
"""
import math

import numpy as np

from ..functional import einsum
from . import mask as masks
from .core import variant, weigh
from .shapes import expect


def weigh_each(name, scores, v, mask=None, return_weights=False):
    """M contexts a query: scores (B, M, T, S), v (B, S, E) to (B, T, M, E), and the weights (B, M, T, S) if asked.

    mask (T, S), (B, 1, S) or (B, T, S), the same for all M. ShapeError or TypeError, which begin with `name`.
    """
    B, M, T, S = scores.shape
    mask = masks.fit(name, mask, B, T, S, M)                               # (B, 1, T, S)
    result = weigh(scores, v.unsqueeze(1), mask, return_weights)           # (B, M, T, E)
    return (result[0].transpose(1, 2), result[1]) if return_weights else result.transpose(1, 2)


@variant("multi-dimensional", params={"w": "MQK"}, paper="Wang et al. 2017; Hu 2018 eq. 10")
def tensor(q, k, v, w, mask=None, return_weights=False, tanh=True):
    """q (B, T, Q), k (B, S, K), v (B, S, E), w (M, Q, K) to (B, T, M, E): M weightings, so M contexts a query.

    The weights are (B, M, T, S). ShapeError for shapes that do not fit.
    """
    expect("tensor", q=(q, "BTQ"), k=(k, "BSK"), v=(v, "BSE"), w=(w, "MQK"))
    e = einsum("btq,mqk,bsk->bmts", q, w, k)                               # (B, M, T, S)
    return weigh_each("tensor", e.tanh() if tanh else e, v, mask, return_weights)


def reference(q, k, v, w, mask=None, tanh=True):
    """The formula, one number at a time."""
    B, T, S, M = q.shape[0], q.shape[1], k.shape[1], len(w)
    out = np.zeros((B, T, M, v.shape[2]))
    seen = np.broadcast_to(True if mask is None else mask, (B, T, S))
    for b in range(B):
        for t in range(T):
            for m in range(M):
                alpha = {}
                for s in range(S):
                    if seen[b, t, s]:
                        e = 0.0
                        for i in range(q.shape[2]):
                            e += sum(q[b, t, i] * w[m, i, j] * k[b, s, j] for j in range(k.shape[2]))
                        alpha[s] = math.exp(math.tanh(e) if tanh else e)
                for s in alpha:
                    out[b, t, m] += alpha[s] / sum(alpha.values()) * v[b, s]
    return out


def example(rng):
    """Two sentences of at most 4 words, the second of 2; three queries, two weightings."""
    return {"q": rng.normal(size=(2, 3, 5)), "k": rng.normal(size=(2, 4, 3)), "v": rng.normal(size=(2, 4, 2)),
            "w": rng.normal(size=(2, 5, 3)) / 2, "mask": np.arange(4) < np.array([4, 2])[:, None, None]}


def labels():
    """Queries and keys by number; what lies between batch and queries is called a weighting."""
    return None, None, "weighting"
