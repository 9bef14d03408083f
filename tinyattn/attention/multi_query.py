r"""Multi-query attention: many heads ask, and all of them share one set of keys and values.

    head_h = softmax(Q_h K^T / sqrt(d)) V        y = W_o [head_0; ...; head_{H-1}]

Shazeer 2019, "Fast transformer decoding: one write-head is all you need". Not in Hu 2018. It is `grouped_query` with
one group.

Cost: as many multiplications as multi-head attention, but a decoder's cache of keys and values is H times smaller.
"""
import math

import numpy as np

from .core import variant
from .heads import attend_in_groups, output, project


@variant("self", params={"w_q": "AD", "w_k": "CK", "w_v": "EK", "w_o": "DF"}, paper="Shazeer 2019", causal=True)
def multi_query(x, w_q, w_k, w_v, w_o, memory=None, mask=None, return_weights=False, heads=3, causal=False, cache=None):
    """x (B, T, D) to (B, T, D); it attends to memory (B, S, K), or without one to itself.

    w_q (H d, D), w_k (d, D), w_v (e, D), w_o (D, H e) with H = heads; with a memory w_k and w_v have K columns. mask,
    causal, cache, return_weights and errors as in `multi_head`.
    """
    q, k, v, mask = project("multi_query", x, w_q, w_k, w_v, heads, memory=memory, mask=mask, cache=cache, groups=1)
    k, v = (k, v) if cache is None else cache.append(k, v)
    context, weights = attend_in_groups(q, k, v, mask, causal or cache is not None, return_weights)
    return output("multi_query", context, weights, w_o)


def reference(x, w_q, w_k, w_v, w_o, mask=None, heads=3):
    """The formula, head by head and word by word."""
    B, T, _ = x.shape
    d, e = len(w_k), len(w_v)
    out = np.zeros((B, T, len(w_o)))
    for b in range(B):
        for t in range(T):
            joined = []
            for h in range(heads):
                alpha, head = {}, np.zeros(e)
                for s in range(T):
                    if mask is None or mask[b, t if mask.shape[1] > 1 else 0, s]:
                        score = sum((w_q[h * d + i] @ x[b, t]) * (w_k[i] @ x[b, s]) for i in range(d))
                        alpha[s] = math.exp(score / math.sqrt(d))
                for s in alpha:
                    for i in range(e):
                        head[i] += alpha[s] / sum(alpha.values()) * (w_v[i] @ x[b, s])
                joined += list(head)
            out[b, t] = w_o @ joined
    return out


def example(rng):
    """Two sentences of at most 4 words, the second of 3; three heads, queries of width 2, values of width 1."""
    return {"x": rng.normal(size=(2, 4, 5)), "w_q": rng.normal(size=(6, 5)), "w_k": rng.normal(size=(2, 5)),
            "w_v": rng.normal(size=(1, 5)), "w_o": rng.normal(size=(5, 3)), "heads": 3,
            "mask": np.arange(4) < np.array([4, 3])[:, None, None]}
