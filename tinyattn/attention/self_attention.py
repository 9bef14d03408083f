r"""Self-attention: each word looks at all the words of its own sentence, and becomes the mean of what it finds.

    C = A (V W3), A = softmax_j[(V W1) (V W2)^T / sqrt(d_out)]
    c_i = sum_j a_ij W3^T v_j

Vaswani et al. 2017, "Attention is all you need", with one head; eqs 20-21 of Hu 2018. W1, W2 and W3 are
the transposes of w_q, w_k and w_v here.

Cost: T^2 (A + E) multiplications for T words, beside the three projections; the T x T weights are never in memory.

Survey: eq. 21 prints C = A^T (V W3). Each row of A sums to 1, so the rows of A V W3 are means of value rows; those of
A^T V W3 are not, their weights sum to anything. Here it is A.

The divisor is the root of the width of a query, not that of a word: the sum of A products of random numbers has the
variance A, and without it the softmax begins saturated.
"""
import math

import numpy as np

from ..autograd import tap
from ..functional import dropout as drop
from ..functional import linear
from ..ops.attention import Attention, attention_weights
from . import mask as masks
from .core import variant, weights_of
from .shapes import expect


def attend(q, k, v, mask=None, causal=False, bias=None, return_weights=False, dropout=0.0, training=False):
    """softmax(q k^T / sqrt(D) + bias) v: the heart of this mechanism, and of all that have several heads.

    q (..., T, D), k (..., S, D), v (..., S, E); leading axes broadcast. mask and bias broadcast to (..., T, S); causal
    is aligned at the end. Returns (the mean of the values (..., T, E), weights (..., T, S) or None if they are not
    asked for). Nothing as large as T x S is in memory unless the weights are asked for or dropped in training. Heads
    that come in groups, with q (B, G, H / G, T, D), are shown side by side: weights (B, H, T, S).
    """
    if return_weights or (dropout and training):
        weights = weights_of(side_by_side(scores(q, k, bias)), _shown(q, k, mask, causal))
        used = drop(weights, dropout, training)
        return used.reshape(*q.shape[:-1], k.shape[-2]) @ v, weights if return_weights else None
    context = Attention(causal=causal)(q, k, v, mask, bias)                # (..., T, E)
    tap("scores", lambda: side_by_side(scores(q, k, bias)))
    if mask is not None or causal:
        tap("mask", lambda: _shown(q, k, mask, causal))
    tap("weights", lambda: side_by_side(attention_weights(q, k, mask, causal=causal, bias=bias)))
    return context, None


def scores(q, k, bias=None):
    """e_ts = q_t^T k_s / sqrt(D) + bias_ts: q (..., T, D), k (..., S, D) to (..., T, S)."""
    e = q @ k.transpose() * (1 / math.sqrt(max(q.shape[-1], 1)))
    return e if bias is None else e + bias


def _shown(q, k, mask, causal):
    """The mask and causality as one mask, or None."""
    causal = masks.causal(q.shape[-2], k.shape[-2], device=q.device) if causal else None
    return masks.both(None if mask is None else side_by_side(mask), causal)


def side_by_side(x):
    """(B, G, P, T, S), heads in groups, to (B, G P, T, S); other shapes as they are."""
    return x.reshape(x.shape[0], x.shape[1] * x.shape[2], *x.shape[3:]) if x.ndim == 5 else x


def one_head(name, x, w_q, w_k, w_v, mask=None, return_weights=False, causal=False):
    """Self-attention of x (B, T, D) with one head, for the mechanism `name`, with which errors begin."""
    expect(name, x=(x, "BTD"), w_q=(w_q, "AD"), w_k=(w_k, "AD"), w_v=(w_v, "ED"))
    B, T, _ = x.shape
    mask = masks.fit(name, mask, B, T, T)
    context, weights = attend(linear(x, w_q), linear(x, w_k), linear(x, w_v), mask, causal, None, return_weights)
    return (context, weights) if return_weights else context


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
