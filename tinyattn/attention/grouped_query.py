r"""Grouped-query attention: many heads ask, but groups of them share one set of keys and values.

    head_h = softmax(Q_h K_g^T / sqrt(d)) V_g        g = floor(h G / H)
    y = W_o [head_0; ...; head_{H-1}] + b_o              G = H: multi-head, G = 1: multi-query attention

Ainslie et al. 2023, "GQA: training generalized multi-query transformer models from multi-head checkpoints". Not in Hu
2018.

Cost: as many multiplications as multi-head attention; but a cache of keys and values is H / G times smaller, and
reading it is what bounds decoding. Keys and values are not repeated in memory: the heads of a group read the same ones.
"""
import math

import numpy as np

from .core import variant
from .heads import attend_in_groups, output, project


@variant("self", params={"w_q": "AD", "w_k": "CK", "w_v": "EK", "w_o": "DF", "b_q": "A", "b_k": "C", "b_v": "E",
                         "b_o": "D"}, null=("b_k",), paper="Ainslie et al. 2023", causal=True, empty=False)
def grouped_query(x, w_q, w_k, w_v, w_o, b_q=None, b_k=None, b_v=None, b_o=None, memory=None, mask=None,
                  return_weights=False, heads=6, groups=2, causal=False, dropout=0.0, training=False, cache=None,
                  average=False):
    """x (B, T, D) to (B, T, D); it attends to memory (B, S, K), or without one to itself.

    w_q (H d, D), w_k (G d, D), w_v (G e, D), w_o (D, H e), with H = heads a multiple of G = groups, and biases of their
    first lengths, each of which may be None; with a memory w_k and w_v have K columns. The rest is as in `multi_head`,
    and ShapeError too where H is no multiple of G.
    """
    q, k, v, mask = project("grouped_query", x, w_q, w_k, w_v, heads, (b_q, b_k, b_v), memory, mask, cache, groups)
    k, v = (k, v) if cache is None else cache.append(k, v)
    context, weights = attend_in_groups(q, k, v, mask, causal or cache is not None, return_weights, dropout, training)
    return output("grouped_query", context, weights.mean(1) if average and return_weights else weights, w_o, b_o)


def reference(x, w_q, w_k, w_v, w_o, b_q, b_k, b_v, b_o, mask=None, heads=6, groups=2):
    """The formula, head by head and word by word."""
    B, T, _ = x.shape
    d, e = len(w_q) // heads, len(w_v) // groups
    out = np.zeros((B, T, len(w_o)))
    for b in range(B):
        for t in range(T):
            joined = []
            for h in range(heads):
                g = h * groups // heads
                q = [w_q[h * d + i] @ x[b, t] + b_q[h * d + i] for i in range(d)]
                alpha, head = {}, np.zeros(e)
                for s in range(T):
                    if mask is None or mask[b, t if mask.shape[1] > 1 else 0, s]:
                        k = [w_k[g * d + i] @ x[b, s] + b_k[g * d + i] for i in range(d)]
                        alpha[s] = math.exp(sum(q[i] * k[i] for i in range(d)) / math.sqrt(d))
                for s in alpha:
                    for i in range(e):
                        head[i] += alpha[s] / sum(alpha.values()) * (w_v[g * e + i] @ x[b, s] + b_v[g * e + i])
                joined += list(head)
            out[b, t] = w_o @ joined + b_o
    return out


def example(rng):
    """Two sentences of at most 3 words, the second of 2; six heads in two groups, queries of width 2, values of 1."""
    return {"x": rng.normal(size=(2, 3, 5)), "w_q": rng.normal(size=(12, 5)), "w_k": rng.normal(size=(4, 5)),
            "w_v": rng.normal(size=(2, 5)), "w_o": rng.normal(size=(5, 6)), "b_q": rng.normal(size=12),
            "b_k": rng.normal(size=4), "b_v": rng.normal(size=2), "b_o": rng.normal(size=5), "heads": 6, "groups": 2,
            "mask": np.arange(3) < np.array([3, 2])[:, None, None]}
