r"""Attention as a gate: a recurrent net reads the facts in order, and takes in of each as much as attention gives it.

    h_i  = alpha_i h~_i + (1 - alpha_i) h_{i-1}        alpha = softmax_i(a(q, k_i))        c = h_S
    h~_i = tanh(W k_i + r_i * (U h_{i-1}) + b)        r_i = sigmoid(W_r k_i + U_r h_{i-1} + b_r)

Xiong, Merity and Socher 2016, "Dynamic memory networks for visual and textual question answering", the attention based
GRU of their episodic memory; Hu 2018 eqs 35-37. A weighted sum does not know the order of what it adds up; this does.
The number alpha takes the place of the update gate, which would be a vector; the reset gate stays.

Cost: S steps, one after the other, of 2 N (K + N) multiplications.

Survey: eqs 35-36 print h = u * h~ + (1 - u) * h: u multiplies the *candidate*. PyTorch, cuDNN and many codes have it
the other way round, and there alpha in the place of the gate would take in most of what is attended to least. See
ops/attention_gru.py, which names both.
"""
import math

import numpy as np

from ..functional import linear, zeros
from ..ops.attention_gru import AttentionGRUScan
from .core import scores_of, variant, weights_of
from .shapes import expect


@variant("application", params={"w_ih": "GK", "w_hh": "GN", "b": "G"}, score="general", keys=("k",),
         paper="Xiong et al. 2016; Hu 2018 eqs 35-37")
def attention_gru(q, k, w_ih, w_hh, b, score="general", mask=None, return_weights=False, **a):
    """q (B, 1, Q) one question, k (B, S, K) facts in order, w_ih (G, K), w_hh (G, N), b (G,) with G = 2 N (reset gate,
    candidate), to the last state (B, 1, N); `a` are the parameters of the score. Masked facts leave the state as it is.
    ShapeError for shapes that do not fit."""
    expect("attention_gru", q=(q, "B1Q"), k=(k, "BSK"), w_ih=(w_ih, "GK"), w_hh=(w_hh, "GN"), b=(b, "G"))
    alpha = weights_of(scores_of(score, q, k, a), mask)                    # (B, 1, S)
    start = zeros(len(k), w_hh.shape[1], dtype=k.dtype, device=k.device)   # (B, N)
    _, last = AttentionGRUScan(mode="replace")(linear(k, w_ih, b), alpha.squeeze(1), start, w_hh, None, None)
    return (last.unsqueeze(1), alpha) if return_weights else last.unsqueeze(1)


def reference(q, k, w_ih, w_hh, b, w, mask):
    """With the general score, one fact and one unit at a time."""
    N = w_hh.shape[1]
    out = np.zeros((len(q), 1, N))
    for n in range(len(q)):
        e = {i: math.exp(q[n, 0] @ w @ k[n, i]) for i in range(k.shape[1]) if mask[n, 0, i]}
        h = np.zeros(N)
        for i in e:
            alpha, new = e[i] / sum(e.values()), np.zeros(N)
            for u in range(N):
                r = 1 / (1 + math.exp(-(sum(w_ih[u] * k[n, i]) + sum(w_hh[u] * h) + b[u])))
                new[u] = math.tanh(sum(w_ih[N + u] * k[n, i]) + b[N + u] + r * sum(w_hh[N + u] * h))
            h = alpha * new + (1 - alpha) * h
        out[n, 0] = h
    return out


def example(rng):
    """Stories of 5 and 3 facts, a question each."""
    return {"q": rng.normal(size=(2, 1, 3)), "k": rng.normal(size=(2, 5, 4)), "w_ih": rng.normal(size=(4, 4)),
            "w_hh": rng.normal(size=(4, 2)), "b": rng.normal(size=4), "w": rng.normal(size=(3, 4)) / 2,
            "mask": np.arange(5) < np.array([5, 3])[:, None, None]}
