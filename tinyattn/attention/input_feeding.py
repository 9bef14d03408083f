r"""Input feeding: what was looked at in the last step is told to the next one, together with the word.

    h_t  = LSTM([y_t ; h~_{t-1}], h_{t-1})        h~_0 = 0
    c_t  = global attention of h_t over the source        h~_t = tanh(W_c [c_t ; h_t])

Luong, Pham and Manning 2015, "Effective approaches to attention-based neural machine translation", section 3.3. The
decoder is one LSTM layer here (theirs has four); its gates are in the order i, f, g, o.

Cost: T scores against S keys, one step after the other: no step can begin before the one before has looked.

Survey: eq. 5, s_{j+1} = f(s_j, y_j), has neither the context nor h~ in the next state; see `encoder_decoder`, where it
is a switch.
"""
import math

import numpy as np

from ..autograd import scope
from ..functional import concat, linear, stack, zeros
from ..ops.lstm import LSTMScan
from .core import asker, variant, weigh
from .luong_global import attentional
from .shapes import expect


@variant("basic", params={"w_ih": "GI", "w_hh": "GN", "b": "G", "w_c": "NJ"}, score="general", keys=("k",), empty=False,
         paper="Luong et al. 2015, section 3.3")
def input_feeding(y, k, h, c, w_ih, w_hh, b, w_c, score="general", mask=None, return_weights=False, **a):
    """y (B, T, M) the words' vectors, k (B, S, K) the source's states, h and c (B, N) the first state of the LSTM to h~
    (B, T, N).

    w_ih (G, I) with G = 4 N and I = M + N, w_hh (G, N), b (G,), w_c (N, J) with J = K + N; `a` are the parameters of
    the score, whose queries are the states h_t. ShapeError for shapes that do not fit.
    """
    expect("input_feeding", y=(y, "BTM"), k=(k, "BSK"), h=(h, "BN"), c=(c, "BN"), w_ih=(w_ih, "GI"), w_hh=(w_hh, "GN"),
           b=(b, "G"), w_c=(w_c, "NJ"))
    fed, outs, like = zeros(*h.shape, dtype=h.dtype, device=h.device), [], {"dtype": k.dtype, "device": k.device}
    seen = [zeros(len(k), 0, k.shape[1], **like)]                          # (B, 0, S)
    ask = asker(score, k, a)                                               # what depends on k alone, once a sentence
    for t in range(y.shape[1]):
        with scope(f"step {t}"):
            x = linear(concat([y[:, t], fed], -1), w_ih, b).unsqueeze(1)   # (B, 1, 4N)
            _, h, c = LSTMScan()(x, h, c, w_hh, None, None)
            q = h.unsqueeze(1)                                             # (B, 1, N)
            context, weights = weigh(ask(q), k, mask, return_weights=True)
            fed = attentional(context, q, w_c).squeeze(1)                  # (B, N)
        outs.append(fed)
        seen.append(weights)
    out = stack(outs, 1) if outs else zeros(len(k), 0, h.shape[1], **like)  # (B, T, N)
    return (out, concat(seen, 1)) if return_weights else out


def reference(y, k, h, c, w_ih, w_hh, b, w_c, w, mask):
    """With the general score, one sentence and one step at a time."""
    N = h.shape[1]
    sigmoid = lambda x: 1 / (1 + math.exp(-x))  # noqa: E731
    out = np.zeros((*y.shape[:2], N))
    for n in range(len(y)):
        state, cell, fed = h[n].copy(), c[n].copy(), np.zeros(N)
        for t in range(y.shape[1]):
            x = np.concatenate([y[n, t], fed])
            gates = [sum(w_ih[r] * x) + sum(w_hh[r] * state) + b[r] for r in range(4 * N)]
            for i in range(N):
                cell[i] = sigmoid(gates[N + i]) * cell[i] + sigmoid(gates[i]) * math.tanh(gates[2 * N + i])
            state = np.array([sigmoid(gates[3 * N + i]) * math.tanh(cell[i]) for i in range(N)])
            e = {s: math.exp(state @ w @ k[n, s]) for s in range(k.shape[1]) if mask[n, 0, s]}
            context = sum(e[s] / sum(e.values()) * k[n, s] for s in e)
            fed = np.array([math.tanh(sum(w_c[i] * np.concatenate([context, state]))) for i in range(N)])
            out[n, t] = fed
    return out


def example(rng):
    """Two source sentences of 4 and 2 words, three target words."""
    return {"y": rng.normal(size=(2, 3, 4)), "k": rng.normal(size=(2, 4, 3)), "h": rng.normal(size=(2, 2)),
            "c": rng.normal(size=(2, 2)), "w_ih": rng.normal(size=(8, 6)) / 2, "w_hh": rng.normal(size=(8, 2)),
            "b": rng.normal(size=8), "w_c": rng.normal(size=(2, 5)), "w": rng.normal(size=(2, 3)),
            "mask": np.arange(4) < np.array([4, 2])[:, None, None]}
