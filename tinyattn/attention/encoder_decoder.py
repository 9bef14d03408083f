r"""Encoder-decoder attention as the survey introduces it: at each step the decoder's state asks the encoder's states.

    alpha_ji = softmax_i(a(h_i, s_j))        c_j = sum_i alpha_ji h_i
    o_j      = tanh(W_o [s_j ; y_{j-1} ; c_j])        the features that predict y_j
    s_{j+1}  = tanh(W_y y_j + U s_j + F z_j)          z_j is nothing, c_j or o_j: `feed`

Hu 2018 eqs 1-5 (h^in is h here, h^out is s; f_y is the layer W_o, f_h a plain recurrent layer).

Cost: T scores against S keys, one step after the other.

Survey: eq. 2 prints alpha = e / sum e, without the exponential; with scores of both signs these are no weights ([0.5,
-0.4, 0.2] gives 1.67, -1.33, 0.67). Here it is the softmax; the mechanism `raw` keeps the print, for scores that are
not negative. Eq. 5 lets no context into the state: `feed="none"`. Neither of the systems that the survey tells of does
so: Bahdanau feeds the context (`feed="context"`), Luong the features that predicted the word (`feed="input"`).
"""
import math

import numpy as np

from ..autograd import scope
from ..functional import concat, linear, stack, zeros
from .core import asker, variant, weigh
from .shapes import expect, one_of

FEEDS = ("none", "context", "input")


@variant("basic", params={"w_o": "OI", "w_y": "NM", "u": "NN", "f": "NF"}, score="additive", keys=("h",), empty=False,
         paper="Hu 2018 eqs 1-5")
def encoder_decoder(h, y, s, w_o, w_y, u, f=None, score="additive", feed="context", mask=None,
                    return_weights=False, **a):
    """h (B, S, K) states of the encoder, y (B, T, M) vectors of the words y_0 .. y_{T-1}, s (B, N) the state s_1 to the
    features o_1 .. o_T (B, T, O).

    w_o (O, I) with I = N + M + K, w_y (N, M), u (N, N), f (N, F) with F = K for feed="context", O for feed="input", and
    None for feed="none"; `a` are the parameters of the score, whose queries are the states. ShapeError; InputError for
    another feed.
    """
    one_of("encoder_decoder", feed=(feed, FEEDS))
    if (f is None) != (feed == "none"):
        raise ValueError(f"encoder_decoder: f goes with feed='context' or 'input', and is None for 'none'; "
                         f"got feed={feed!r}")
    expect("encoder_decoder", h=(h, "BSK"), y=(y, "BTM"), s=(s, "BN"), w_o=(w_o, "OI"), w_y=(w_y, "NM"), u=(u, "NN"),
           **({} if f is None else {"f": (f, "NF")}))
    ask = asker(score, h, a)                                               # what depends on h alone, once a sentence
    z, outs, seen = None, [], [zeros(len(h), 0, h.shape[1], dtype=h.dtype, device=h.device)]  # (B, 0, S)
    for j in range(y.shape[1]):
        with scope(f"step {j}"):
            if j:  # s_{j+1} of the formula: the state reads the word that was said last
                inside = linear(y[:, j], w_y) + linear(s, u)
                s = (inside if feed == "none" else inside + linear(z, f)).tanh()
            c, weights = weigh(ask(s.unsqueeze(1)), h, mask, return_weights=True)  # (B, 1, K), (B, 1, S)
            c = c.squeeze(1)
            o = linear(concat([s, y[:, j], c], -1), w_o).tanh()            # (B, O)
            z = c if feed == "context" else o
        outs.append(o)
        seen.append(weights)
    out = stack(outs, 1) if outs else zeros(len(h), 0, len(w_o), dtype=h.dtype, device=h.device)  # (B, T, O)
    return (out, concat(seen, 1)) if return_weights else out


def reference(h, y, s, w_o, w_y, u, f, w_q, w_k, v_a, mask, feed="context"):
    """With additive scores, one sentence and one step at a time."""
    out = np.zeros((*y.shape[:2], len(w_o)))
    for b in range(len(h)):
        state, z = s[b], None
        for j in range(y.shape[1]):
            if j:
                inside = [sum(w_y[n] * y[b, j]) + sum(u[n] * state) + sum(f[n] * z) for n in range(len(u))]
                state = np.array([math.tanh(x) for x in inside])
            alpha = {}
            for i in range(h.shape[1]):
                if mask[b, 0, i]:
                    inner = [math.tanh(sum(w_q[n] * state) + sum(w_k[n] * h[b, i])) for n in range(len(v_a))]
                    alpha[i] = math.exp(sum(v_a[n] * inner[n] for n in range(len(v_a))))
            c = sum(alpha[i] / sum(alpha.values()) * h[b, i] for i in alpha)
            everything = [*state, *y[b, j], *c]
            out[b, j] = [math.tanh(sum(w * x for w, x in zip(row, everything, strict=True))) for row in w_o]
            z = c if feed == "context" else out[b, j]
    return out


def example(rng):
    """Two source sentences of 4 and 2 words, two target words."""
    return {"h": rng.normal(size=(2, 4, 3)), "y": rng.normal(size=(2, 2, 5)), "s": rng.normal(size=(2, 2)),
            "w_o": rng.normal(size=(4, 10)), "w_y": rng.normal(size=(2, 5)), "u": rng.normal(size=(2, 2)),
            "f": rng.normal(size=(2, 3)),
            "w_q": rng.normal(size=(6, 2)), "w_k": rng.normal(size=(6, 3)), "v_a": rng.normal(size=6),
            "mask": np.arange(4) < np.array([4, 2])[:, None, None]}
