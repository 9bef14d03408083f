r"""Scaled dot-product attention: the dot product divided by sqrt(D), so that wide vectors do not saturate the softmax.

    e_ts = q_t^T k_s / sqrt(D)        alpha_t = softmax_s(e_ts)        c_t = sum_s alpha_ts v_s

Vaswani et al. 2017, "Attention is all you need", eq. 1; the score inside eq. 20 of Hu 2018, here with q, k and v from
anywhere.

Cost: T S (D + E) multiplications and T S exponentials. One fused op goes over tiles of keys with a running maximum
and sum (Dao et al. 2022), so that no array of size T S is held, forward or backward, unless the weights are asked
for.

Survey: the score stands only inside eq. 20, the self-attention of one head, and eq. 21 multiplies the values by A^T,
whose rows do not sum to 1. Each row of A belongs to a query, so the context is A (V W_3).

D is the width of one head, not of the model. q^T k of independent numbers of variance 1 has the variance D; divided,
it has 1 whatever the width.
"""
import math

import numpy as np

from ..ops.attention import Attention, attention_weights
from . import mask as masks
from .core import fitted, show, variant, weigh
from .shapes import expect


def scores(q, prepared):
    """e_ts = q_t^T k_s / sqrt(D): q (..., T, D), prepared, the keys, (..., S, D) to (..., T, S)."""
    expect("scaled_dot", q=(q, "...TD"), k=(prepared, "...SD"))
    return q @ prepared.transpose() * (1 / math.sqrt(max(q.shape[-1], 1)))


@variant("score", paper="Vaswani et al. 2017 eq. 1; Hu 2018 eq. 20")
def scaled_dot(q, k, v, mask=None, return_weights=False, causal=False):
    """q (..., T, D), k (..., S, D), v (..., S, E) to (..., T, E). Leading axes broadcast, and mask does to (..., T, S).

    causal: query t sees no key after its own place, the ends of queries and keys aligned. ShapeError for shapes that do
    not fit.
    """
    expect("scaled_dot", q=(q, "...TD"), k=(k, "...SD"), v=(v, "...SE"))
    mask = fitted(mask, (*np.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2]), q.shape[-2], k.shape[-2]))
    if return_weights:
        return weigh(scores(q, k), v, _visible(q, k, mask, causal), True)
    context = Attention(causal=causal)(q, k, v, mask)                      # (..., T, E)
    show(lambda: scores(q, k), lambda: _visible(q, k, mask, causal),
         lambda: attention_weights(q, k, mask, causal=causal))
    return context


def _visible(q, k, mask, causal):
    """The mask and the order of time in one."""
    if not causal:
        return mask
    past = masks.causal(q.shape[-2], k.shape[-2], device=q.device)            # (T, S)
    return past if mask is None else past & mask


def reference(q, k, v, mask=None):
    """The formula, one number at a time."""
    B, T, S, D = q.shape[0], q.shape[1], k.shape[1], q.shape[2]
    out = np.zeros((B, T, v.shape[2]))
    seen = np.broadcast_to(True if mask is None else mask, (B, T, S))
    for b in range(B):
        for t in range(T):
            alpha = {}
            for s in range(S):
                if seen[b, t, s]:
                    alpha[s] = math.exp(sum(q[b, t, d] * k[b, s, d] for d in range(D)) / math.sqrt(D))
            for s in alpha:
                out[b, t] += alpha[s] / sum(alpha.values()) * v[b, s]
    return out


def example(rng):
    """Two sentences of at most 4 words, the second of 2; three queries."""
    return {"q": rng.normal(size=(2, 3, 5)), "k": rng.normal(size=(2, 4, 5)), "v": rng.normal(size=(2, 4, 2)),
            "mask": np.arange(4) < np.array([4, 2])[:, None, None]}
