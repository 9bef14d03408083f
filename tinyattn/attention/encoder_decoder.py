r"""Encoder-decoder attention as the survey introduces it: at every step the decoder's state asks the states of the encoder.

    e_ji = a(h_i, s_j)        alpha_ji = softmax_i(e_ji)        c_j = sum_i alpha_ji h_i
    o_j  = tanh(W_o [s_j ; y_{j-1} ; c_j])        the features that predict y_j
    s_{j+1} = tanh(W_y y_j + U s_j + F z_j)        z_j is nothing, c_j or o_j: `feed`

Hu 2018 eqs 1-5 (h^in is h here, h^out is s; f_y is the layer W_o, f_h a plain recurrent layer).

Cost: T scores against S keys, one step after the other.

Survey: eq. 2 prints alpha = e / sum e, without the exponential; with scores of both signs these are no weights ([0.5, -0.4, 0.2] gives
1.67, -1.33, 0.67). Here it is the softmax; the mechanism `raw` keeps the print, for positive scores. Eq. 5 lets no context into
the state: `feed="none"`. In neither of the systems it tells of is that so: Bahdanau feeds the context (`feed="context"`), Luong
the features that predicted the word (`feed="input"`, input feeding).
"""
import math

import numpy as np

from ..autograd import scope
from ..functional import concat, linear, stack
from .core import scores_of, variant, weigh

FEEDS = ("none", "context", "input")


@variant("basic", params={"w_o": "OI", "w_y": "NM", "u": "NN", "f": "NF"}, score="additive", keys=("h",), empty=False,
         paper="Hu 2018 eqs 1-5")
def encoder_decoder(h, y, s, w_o, w_y, u, f=None, score="additive", feed="context", mask=None, return_weights=False, **a):
    """h (B, S, K) states of the encoder, y (B, T, M) vectors of y_0 .. y_{T-1}, s (B, N) the state s_1 to o_1 .. o_T (B, T, O), where
    o_j has seen y_{j-1} and s_{j+1} reads what came before: y_{j-1} and z_j.

    w_o (O, I) with I = N + M + K, w_y (N, M), u (N, N), f (N, F) with F = K for feed="context", O for feed="input", and None for
    feed="none"; `a` are the parameters of the score, whose queries are the states.
    """
    if feed not in FEEDS:
        raise ValueError(f"encoder_decoder: expected feed to be one of {', '.join(FEEDS)}, got {feed!r}")
    if (f is None) != (feed == "none"):
        raise ValueError(f"encoder_decoder: f goes with feed='context' or 'input', and is None for 'none'; got feed={feed!r}")
    outs, seen = [], []
    for j in range(y.shape[1]):
        with scope(f"step {j}"):
            c, weights = weigh(scores_of(score, s.unsqueeze(1), h, a), h, mask, return_weights=True)  # (B, 1, K), (B, 1, S)
            c = c.squeeze(1)
            o = linear(concat([s, y[:, j], c], -1), w_o).tanh()            # (B, O)
            inside = linear(y[:, j], w_y) + linear(s, u)
            s = (inside if feed == "none" else inside + linear(c if feed == "context" else o, f)).tanh()
        outs.append(o)
        seen.append(weights)
    out = stack(outs, 1)                                                   # (B, T, O)
    return (out, concat(seen, 1)) if return_weights else out


def reference(h, y, s, w_o, w_y, u, f, w_q, w_k, v_a, mask, feed="context"):
    """With additive scores, one sentence and one step at a time."""
    out = np.zeros((*y.shape[:2], len(w_o)))
    for b in range(len(h)):
        state = s[b]
        for j in range(y.shape[1]):
            alpha = {}
            for i in range(h.shape[1]):
                if mask[b, 0, i]:
                    inner = [math.tanh(sum(w_q[n] * state) + sum(w_k[n] * h[b, i])) for n in range(len(v_a))]
                    alpha[i] = math.exp(sum(v_a[n] * inner[n] for n in range(len(v_a))))
            c = sum(alpha[i] / sum(alpha.values()) * h[b, i] for i in alpha)
            everything = [*state, *y[b, j], *c]
            out[b, j] = [math.tanh(sum(x * z for x, z in zip(row, everything, strict=True))) for row in w_o]
            fed = c if feed == "context" else out[b, j]
            state = np.array([math.tanh(sum(w_y[n] * y[b, j]) + sum(u[n] * state) + sum(f[n] * fed)) for n in range(len(u))])
    return out


def example(rng):
    """Two source sentences of 4 and 2 words, two target words."""
    return {"h": rng.normal(size=(2, 4, 3)), "y": rng.normal(size=(2, 2, 5)), "s": rng.normal(size=(2, 2)),
            "w_o": rng.normal(size=(4, 10)), "w_y": rng.normal(size=(2, 5)), "u": rng.normal(size=(2, 2)), "f": rng.normal(size=(2, 3)),
            "w_q": rng.normal(size=(6, 2)), "w_k": rng.normal(size=(6, 3)), "v_a": rng.normal(size=6),
            "mask": np.arange(4) < np.array([4, 2])[:, None, None]}
