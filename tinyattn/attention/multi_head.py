r"""Multi-head attention: several attentions side by side, each in a narrow projection of its own, joined by one matrix.

    head_h = softmax(Q_h K_h^T / sqrt(d)) V_h        y = W_o [head_0; ...; head_{H-1}] + b_o
    Q = x W_q^T + b_q        K = m W_k^T + b_k        V = m W_v^T + b_v        m = x, or another sequence, the memory

Vaswani et al. 2017, "Attention is all you need", section 3.2.2. Head h has rows h d .. (h + 1) d - 1 of W_q and W_k.

Cost: T S (A + E) multiplications whatever the number of heads, and four projections; no T x S array is in memory.

Survey: eqs 20-21 have one head. With one head the paper lost 0.9 BLEU.

The key bias changes nothing: it adds q_t^T b_k to all scores of a query, and the softmax is blind to that. Many copies divide
by the root of the model's width instead of d, mask after the softmax, and show the mean over heads as if it were the
attention.
"""
import math

import numpy as np

from .core import variant
from .heads import attend, output, project


@variant("self", params={"w_q": "AD", "w_k": "AK", "w_v": "EK", "w_o": "DE", "b_q": "A", "b_k": "A", "b_v": "E",
                         "b_o": "D"}, null=("b_k",), paper="Vaswani et al. 2017", causal=True, empty=False)
def multi_head(x, w_q, w_k, w_v, w_o, b_q=None, b_k=None, b_v=None, b_o=None, memory=None, mask=None,
               return_weights=False, heads=2, causal=False, dropout=0.0, training=False, cache=None, average=False):
    """x (B, T, D) to (B, T, D); it attends to memory (B, S, K), or without one to itself.

    w_q, w_k (A, D), w_v (E, D), w_o (D, E), and biases (A,), (A,), (E,), (D,), each of which may be None; with a memory
    w_k and w_v have K columns. A and E are multiples of the heads H.

    mask            (T, S), (B, 1, S), (B, T, S) or (B, H, T, S). A query that may attend to nothing gives b_o, else 0
    causal          query t sees no later word; with T != S the ends are aligned
    dropout         in training, each weight is dropped with this probability
    cache           a `Cache` with the words before x, which are attended to too; x is added to it. Causal
    return_weights  also give the weights before dropout, (B, H, T, S); with `average` their mean over heads (B, T, S)

    ShapeError for shapes that do not fit or do not divide into heads; TypeError for a mask that is not bool; ValueError
    for heads below 1, or a cache beside a memory.
    """
    q, k, v, mask = project("multi_head", x, w_q, w_k, w_v, heads, (b_q, b_k, b_v), memory, mask, cache)
    k, v = (k, v) if cache is None else cache.append(k, v)
    context, weights = attend(q, k, v, mask, causal or cache is not None, None, return_weights, dropout, training)
    return output("multi_head", context, weights.mean(1) if average and return_weights else weights, w_o, b_o)


def reference(x, w_q, w_k, w_v, w_o, b_q, b_k, b_v, b_o, mask=None, heads=2):
    """The formula, head by head and word by word."""
    B, T, _ = x.shape
    d, e = len(w_q) // heads, len(w_v) // heads
    out = np.zeros((B, T, len(w_o)))
    for b in range(B):
        for t in range(T):
            joined = np.zeros(heads * e)
            for h in range(heads):
                q = [w_q[i] @ x[b, t] + b_q[i] for i in range(h * d, (h + 1) * d)]
                alpha = {}
                for s in range(T):
                    if mask is None or mask[b, t if mask.shape[1] > 1 else 0, s]:
                        k = [w_k[i] @ x[b, s] + b_k[i] for i in range(h * d, (h + 1) * d)]
                        alpha[s] = math.exp(sum(q[i] * k[i] for i in range(d)) / math.sqrt(d))
                for s in alpha:
                    for i in range(h * e, (h + 1) * e):
                        joined[i] += alpha[s] / sum(alpha.values()) * (w_v[i] @ x[b, s] + b_v[i])
            out[b, t] = w_o @ joined + b_o
    return out


def example(rng):
    """Two sentences of at most 4 words, the second of 3; two heads, queries of width 2 and values of width 3."""
    return {"x": rng.normal(size=(2, 4, 5)), "w_q": rng.normal(size=(4, 5)), "w_k": rng.normal(size=(4, 5)),
            "w_v": rng.normal(size=(6, 5)), "w_o": rng.normal(size=(5, 6)), "b_q": rng.normal(size=4),
            "b_k": rng.normal(size=4), "b_v": rng.normal(size=6), "b_o": rng.normal(size=5), "heads": 2,
            "mask": np.arange(4) < np.array([4, 3])[:, None, None]}
