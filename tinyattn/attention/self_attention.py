r"""Self-attention: each word looks at all the words of its own sentence, and becomes the mean of what it finds.

    C = A (V W_3), A = softmax_j[(V W_1) (V W_2)^T / sqrt(d_out)]
    c_i = sum_j a_ij W_3^T v_j

Vaswani et al. 2017, "Attention is all you need", with one head; eqs 20-21 of Hu 2018. W_1, W_2 and W_3 are
the transposes of w_q, w_k and w_v here.

Cost: T^2 (A + E) multiplications for T words, beside the three projections; the T x T weights are never in memory.

Survey: eq. 21 prints C = A^T (V W_3). Each row of A sums to 1, so the rows of A V W_3 are means of value rows; those of
A^T V W_3 are not, their weights sum to anything. Here it is A.

The divisor is the root of the width of a query, not that of a word: the sum of A products of random numbers has the
variance A, and without it the softmax begins saturated.
"""
import math

import numpy as np

from .core import variant
from .heads import one_head


@variant("self", params={"w_q": "AD", "w_k": "AD", "w_v": "ED"}, paper="Vaswani et al. 2017; Hu 2018 eqs 20-21",
         causal=True)
def self_attention(x, w_q, w_k, w_v, mask=None, return_weights=False, causal=False):
    """x (B, T, D) to (B, T, E). w_q, w_k (A, D), w_v (E, D). causal: word t sees no later word. ShapeError for shapes
    that do not fit."""
    return one_head("self_attention", x, w_q, w_k, w_v, mask, return_weights, causal)


def reference(x, w_q, w_k, w_v, mask=None):
    """The formula, one number at a time."""
    B, T, _ = x.shape
    out = np.zeros((B, T, len(w_v)))
    for b in range(B):
        for i in range(T):
            alpha = {}
            for j in range(T):
                if mask is None or mask[b, i if mask.shape[1] > 1 else 0, j]:
                    e = sum((w_q[a] @ x[b, i]) * (w_k[a] @ x[b, j]) for a in range(len(w_q)))
                    alpha[j] = math.exp(e / math.sqrt(len(w_q)))
            for j in alpha:
                out[b, i] += alpha[j] / sum(alpha.values()) * (w_v @ x[b, j])
    return out


def example(rng):
    """Two sentences of at most 4 words, the second of 3."""
    return {"x": rng.normal(size=(2, 4, 5)), "w_q": rng.normal(size=(3, 5)), "w_k": rng.normal(size=(3, 5)),
            "w_v": rng.normal(size=(2, 5)), "mask": np.arange(4) < np.array([4, 3])[:, None, None]}
