r"""Multi-head attention: several attentions side by side, each in a narrow projection of its own, joined by one matrix.

    head_h = softmax(Q_h K_h^T / sqrt(d)) V_h        y = W_o [head_0; ...; head_{H-1}] + b_o
    Q = x W_q^T + b_q        K = m W_k^T + b_k        V = m W_v^T + b_v        m = x, or another sequence, the memory

Vaswani et al. 2017, "Attention is all you need", section 3.2.2. Head h has rows h d .. (h + 1) d - 1 of W_q and W_k.

Cost: T S (A + E) multiplications whatever the number of heads, and four projections; no T x S array is in memory.

Survey: eqs 20-21 have one head. With one head the paper lost 0.9 BLEU.

The key bias changes nothing: it adds q_t^T b_k to all scores of a query, and the softmax is blind to that. Toys divide
by the root of the model's width instead of d, mask after the softmax, and show the mean over heads as if it were the
attention.
"""
import math

import numpy as np

from ..functional import linear
from ..ops.broadcast import ShapeError
from . import mask as masks
from .core import variant
from .self_attention import attend
from .shapes import expect


# ---------------------------------------------------------------------------------------------------------------------
# what all mechanisms with heads share
# ---------------------------------------------------------------------------------------------------------------------
def split(x, heads):
    """(B, T, H d) to (B, H, T, d)."""
    B, T, A = x.shape
    return x.reshape(B, T, heads, A // heads).transpose(1, 2)


def join(x):
    """(B, H, T, d) to (B, T, H d)."""
    B, H, T, d = x.shape
    return x.transpose(1, 2).reshape(B, T, H * d)


def project(name, x, w_q, w_k, w_v, heads, biases=(None, None, None), memory=None, mask=None, cache=None, groups=None):
    """Queries, keys, values by head, and the mask made ready for them, all checked. Errors begin with `name`.

    x (B, T, D), memory (B, S, K) or None for x itself; w_q (A, D), w_k (C, K), w_v (E, K) with A = H d, C = G d and
    E = G e, where G is `groups`, or `heads`. Returns q (B, H, T, d), k (B, G, S, d), v (B, G, S, e) and the mask or
    None. With a cache the mask must be for the words in it too.
    """
    groups = heads if groups is None else groups
    own, letter = (x, "D") if memory is None else (memory, "K")
    shapes = {"x": (x, "BTD"), "w_q": (w_q, "AD"), "w_k": (w_k, "C" + letter), "w_v": (w_v, "E" + letter)}
    shapes |= {} if memory is None else {"memory": (memory, "BSK")}
    shapes |= {b: (t, n) for b, t, n in zip(("b_q", "b_k", "b_v"), biases, "ACE", strict=True) if t is not None}
    expect(name, **shapes)
    for what, n in (("heads", heads), ("groups", groups)):
        if not isinstance(n, (int, np.integer)) or n < 1:
            raise ValueError(f"{name}: expected {what} to be a whole number of at least 1, got {n!r}")
    A, C, E = len(w_q), len(w_k), len(w_v)
    if heads % groups or A % heads or A == 0 or C * heads != A * groups or E % groups:
        raise ShapeError(f"{name}: expected w_q (H d, D), w_k (G d, K) and w_v (G e, K) with H = {heads}, G = {groups} "
                         f"and H a multiple of G, got {w_q.shape}, {w_k.shape} and {w_v.shape}")
    if cache is not None and memory is not None:
        raise ValueError(f"{name}: a cache holds the words that attend to themselves; a memory does not grow, so leave "
                         "one out")
    past = 0 if cache is None else cache.length
    mask = masks.fit(name, mask, x.shape[0], x.shape[1], past + own.shape[1], heads)
    q, k, v = (linear(t, w, b) for t, w, b in zip((x, own, own), (w_q, w_k, w_v), biases, strict=True))
    return split(q, heads), split(k, groups), split(v, groups), mask


def output(name, context, weights, w_o, b_o=None):
    """y = W_o [heads] + b_o of context (B, H, T, e), w_o (D, H e); with the weights beside it where there are any."""
    joined = join(context)                                                 # (B, T, H e)
    bias = {} if b_o is None else {"b_o": (b_o, "D")}
    expect(name, **{"joined heads": (joined, "BTF"), "w_o": (w_o, "DF"), **bias})
    y = linear(joined, w_o, b_o)                                           # (B, T, D)
    return y if weights is None else (y, weights)


# ---------------------------------------------------------------------------------------------------------------------
# the mechanism
# ---------------------------------------------------------------------------------------------------------------------
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
