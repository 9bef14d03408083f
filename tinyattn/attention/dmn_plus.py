r"""Improved dynamic memory network: attention takes the place of the update gate in the net that reads the facts.

    g = softmax_i(w_2^T tanh(W_1 z_i + b_1) + b_2)     z_i = [f_i * q, f_i * m, |f_i - q|, |f_i - m|]
    r_i = sigma(W_r f_i + U_r h + b_r)                  n_i = tanh(W f_i + r_i * (U h) + b)
    h <- g_i n_i + (1 - g_i) h,  h = 0 at first         the attention GRU; c is the last h
    m <- relu(W_t [m; c; q] + b_t),  m = q at first     with a W_t of its own for each hop t

    f_i is fact i, q the question and m the memory, all of width D

Xiong, Merity and Socher 2016, "Dynamic memory networks for visual and textual question answering"; Hu 2018, section
3.4 and eqs 35-37.

Cost: a hop takes 4 S A D multiplications for g, 4 D D a fact for the attention GRU, whose steps wait for one another,
and 3 D D.

Survey: eq. 37 is this update. Its u and g multiply the new candidate; in a GRU as PyTorch has it the gate z
multiplies the old state, so that g put in the place of z attends to all facts but the right ones. The reset gate
stays.

Common mistakes: facts that are padding take part in the softmax (g is 0 for masked facts here); one W for all
hops. The encoder that the paper gives f is part of a model, not of
this: the words of a sentence weighed by their places and added up, then a GRU in both directions, **added**, so that
each fact has heard its neighbours.
"""
import math

import numpy as np

from ..autograd import scope
from ..functional import concat, linear, zeros_like
from ..ops.attention_gru import AttentionGRUScan
from . import mask as masks
from .core import show, variant
from .normalise import softmax
from .shapes import expect

PARAMS = {"w_1": "AZ", "b_1": "A", "w_2": "A", "b_2": "", "a_ih": "GD", "a_hh": "GD", "a_b": "G", "w_m": "LDY",
          "b_m": "LD"}


@variant("memory", params=PARAMS, null=("b_2",), paper="Xiong et al. 2016; Hu 2018 eqs 35-37", keys=("facts",),
         empty=False)
def dmn_plus(facts, question, w_1, b_1, w_2, b_2, a_ih, a_hh, a_b, w_m, b_m, reset="after", mask=None,
             return_weights=False):
    """The memory (B, D) after the last of L hops.

    facts           f (B, S, D), in the order of the story
    question        q (B, D)
    w_1, b_1, w_2, b_2   the attention: (A, Z), (A,), (A,), () with Z = 4 D
    a_ih, a_hh, a_b   the attention GRU (G, D), (G, D), (G,) with G = 2 D: gate r, candidate n
    w_m, b_m        (L, D, Y), (L, D) with Y = 3 D
    reset           "after" the product with U, as above, or "before" it; see `ops/attention_gru.py`
    mask            (B, 1, S): a masked fact has g = 0, and the state passes it unchanged
    return_weights  gives g of all hops too, (B, L, S)

    ShapeError for shapes that do not fit; ValueError for sizes that are not those of D, or no hop.
    """
    expect("dmn_plus", facts=(facts, "BSD"), question=(question, "BD"), w_1=(w_1, "AZ"), b_1=(b_1, "A"), w_2=(w_2, "A"),
           b_2=(b_2, ""), a_ih=(a_ih, "GD"), a_hh=(a_hh, "GD"), a_b=(a_b, "G"), w_m=(w_m, "LDY"), b_m=(b_m, "LD"))
    B, S, D = facts.shape
    mask = masks.fit("dmn_plus", mask, B, 1, S)
    if (w_1.shape[1], a_b.shape[0], w_m.shape[2]) != (4 * D, 2 * D, 3 * D) or not len(w_m):
        raise ValueError(f"dmn_plus: expected w_1 (A, 4 D), a_b (2 D,), w_m (L, D, 3 D) with D = {D} and L of at least "
                         f"1, got w_1 {w_1.shape}, a_b {a_b.shape} and w_m {w_m.shape}")
    m, x, scores, weights = question, linear(facts, a_ih, a_b), [], []     # x (B, S, 2D)
    for hop in range(len(w_m)):
        with scope(f"hop{hop}"):
            z = features(facts, question, m)                               # (B, S, 4D)
            scores.append((linear(z, w_1, b_1).tanh() @ w_2 + b_2).unsqueeze(1))  # (B, 1, S)
            weights.append(softmax(scores[hop], mask))
            read = AttentionGRUScan("replace", reset)
            c = read(x, weights[hop].squeeze(1), zeros_like(question), a_hh, None, None)[1]  # (B, D)
            m = linear(concat([m, c, question], 1), w_m[hop], b_m[hop]).relu()
    show(lambda: concat(scores, 1), mask, lambda: concat(weights, 1))      # (B, hops, S)
    return (m, concat(weights, 1)) if return_weights else m


def features(f, q, m):
    """z (B, S, 4 D): how fact f (B, S, D) goes with the question q and the memory m (B, D)."""
    q, m = q.unsqueeze(1), m.unsqueeze(1)                                  # (B, 1, D)
    return concat([f * q, f * m, (f - q).abs(), (f - m).abs()], 2)


def reference(facts, question, w_1, b_1, w_2, b_2, a_ih, a_hh, a_b, w_m, b_m, mask=None):
    """The formula, one number at a time."""
    (B, S, D), out = facts.shape, question.copy()
    for b in range(B):
        q, m = question[b], question[b]
        for hop in range(len(w_m)):
            g = [0.0] * S
            for i in range(S):
                if mask is None or mask[b, 0, i]:
                    f = facts[b, i]
                    z = [*(f * q), *(f * m), *abs(f - q), *abs(f - m)]
                    g[i] = math.exp(sum(w_2[a] * math.tanh(sum(w_1[a] * z) + b_1[a]) for a in range(len(w_2))) + b_2)
            h = [0.0] * D
            for i in range(S):
                u = [sum(row * h) for row in a_hh]
                x = [sum(row * facts[b, i]) + bias for row, bias in zip(a_ih, a_b)]
                new = []
                for d in range(D):
                    r = 1 / (1 + math.exp(-x[d] - u[d]))
                    share = g[i] / sum(g)
                    new.append(share * math.tanh(x[D + d] + r * u[D + d]) + (1 - share) * h[d])
                h = new
            m = np.array([max(0.0, sum(row * [*m, *h, *q]) + bias) for row, bias in zip(w_m[hop], b_m[hop])])
        out[b] = m
    return out


def example(rng):
    """Stories of 4 facts and of 2, width 3; 2 hops."""
    D, A = 3, 5
    return {"facts": rng.normal(size=(2, 4, D)), "question": rng.normal(size=(2, D)),
            "w_1": 0.5 * rng.normal(size=(A, 4 * D)), "b_1": rng.normal(size=A), "w_2": rng.normal(size=A),
            "b_2": np.array(0.3), "a_ih": rng.normal(size=(2 * D, D)), "a_hh": rng.normal(size=(2 * D, D)),
            "a_b": rng.normal(size=2 * D), "w_m": 0.3 * rng.normal(size=(2, D, 3 * D)),
            "b_m": 1 + 0.3 * rng.random((2, D)), "mask": np.arange(4) < np.array([4, 2])[:, None, None]}


def labels():
    """Names of the hops and of the example's facts."""
    return ["hop 1", "hop 2"], ["fact 1", "fact 2", "fact 3", "fact 4"]
