r"""Global attention: the present state of the decoder asks all source words, with any score.

    a_t(s) = softmax_s(score(h_t, hs_s))        c_t = sum_s a_t(s) hs_s        h~_t = tanh(W_c [c_t ; h_t])

Luong, Pham and Manning 2015, "Effective approaches to attention-based neural machine translation", their section 3.1.
The context c is the result here; `attentional` makes h~ of it, which predicts the word (and enters the next step in
`input_feeding`).

Cost: that of the score, and T S E multiplications.

Survey: eq. 1 has this order (the state that predicts y_t asks), where Bahdanau asks with the state before.

Luong's released code does not compute "concat" as the paper prints it: the source's block of W_a is the identity, v_a^T
tanh(hs_s + W_a h_t). The paper's footnote 14 says that at the step whose input is y_{t-1} content scores align y_{t-1},
and `location` aligns y_t. Models trained here align y_t with either: `evaluate` of `models/luong.py` gives both readings.
"""
import math

import numpy as np

from ..functional import concat, linear
from .core import scores_of, variant, weigh
from .shapes import expect


def attentional(c, h, w_c):
    """h~ = tanh(W_c [c ; h]): c (B, T, E), h (B, T, Q), w_c (N, E + Q) to (B, T, N)."""
    return linear(concat([c, h], -1), w_c).tanh()


@variant("basic", score="general", paper="Luong et al. 2015; Hu 2018 eqs 1-3")
def luong_global(q, k, v, score="general", mask=None, return_weights=False, **a):
    """q (B, T, Q), k (B, S, K), v (B, S, E) to c (B, T, E). score: dot, general, additive ("concat"), location, or any
    other; `a` are its parameters. ShapeError for shapes that do not fit."""
    expect("luong_global", q=(q, "BTQ"), k=(k, "BSK"), v=(v, "BSE"))
    return weigh(scores_of(score, q, k, a), v, mask, return_weights)


def reference(q, k, v, w, mask=None):
    """With the general score h_t^T W hs_s, one number at a time."""
    (B, T, Q), (S, E) = q.shape, v.shape[1:]
    out = np.zeros((B, T, E))
    for b in range(B):
        for t in range(T):
            places = [s for s in range(S) if mask is None or np.broadcast_to(mask, (B, T, S))[b, t, s]]
            a = {s: math.exp(sum(q[b, t, i] * w[i, j] * k[b, s, j] for i in range(Q) for j in range(k.shape[2])))
                 for s in places}
            for s in places:
                out[b, t] += a[s] / sum(a.values()) * v[b, s]
    return out


def example(rng):
    """Two source sentences of 4 and 2 words, three decoder states."""
    return {"q": rng.normal(size=(2, 3, 3)), "k": rng.normal(size=(2, 4, 5)), "v": rng.normal(size=(2, 4, 2)),
            "w": rng.normal(size=(3, 5)), "mask": np.arange(4) < np.array([4, 2])[:, None, None]}
