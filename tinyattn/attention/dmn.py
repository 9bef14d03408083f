r"""Dynamic memory network: at each hop a recurrent net reads the facts in order, and a gate opens for those that count.

    g_i = sigma(w_2^T tanh(W_1 z_i + b_1) + b_2)                     a number for each fact, 0 .. 1
    z_i = [c_i, m, q, c_i * q, c_i * m, |c_i - q|, |c_i - m|, c_i^T W q, c_i^T W m]
    h_i = g_i GRU_e(c_i, h_{i-1}) + (1 - g_i) h_{i-1},  h_0 = 0      the episode is the last h
    m <- GRU_m(h_S, m),  m = q at first                              `hops` times

    c_i is fact i, q the question and m the memory, all of width D

Kumar et al. 2016, "Ask me anything: dynamic memory networks for natural language processing"; Hu 2018, section 3.4.

Cost: a hop takes S A (7 D + 2) multiplications for the gates, 6 D D a fact for the recurrent net, and its steps wait
for one another.

Survey: describes the four modules in words. The gate is its eq. 9, the score with the outer sigmoid, but **not**
normalised over the facts: several may be open at once, or none. (Its GRU in eqs 35-36 is the other one, whose gate
lets the new in: update="write".)

Common mistakes: a softmax over g; nan as the gradient of |c - q| at c = q, which is 0 here; and reporting the
93.6% of the paper's bAbI runs, whose gates were taught which facts count (`return_weights=True` gives g for such a
loss), for training without that.
"""
import math

import numpy as np

from ..autograd import scope
from ..functional import concat, linear, zeros_like
from ..ops.attention_gru import AttentionGRUScan
from ..ops.gru import GRUScan
from . import mask as masks
from .core import show, variant
from .normalise import sigmoid
from .shapes import expect, whole

PARAMS = {"w_1": "AZ", "b_1": "A", "w_2": "A", "b_2": "", "w": "DD", "e_ih": "GD", "e_hh": "GD", "e_b": "G",
          "m_ih": "GD", "m_hh": "GD", "m_b": "G"}


@variant("memory", params=PARAMS, paper="Kumar et al. 2016; Hu 2018 section 3.4", sums=(0.0, math.inf), keys=("facts",),
         empty=False)
def dmn(facts, question, w_1, b_1, w_2, b_2, w, e_ih, e_hh, e_b, m_ih, m_hh, m_b, hops=3, reset="after", update="keep",
        mask=None, return_weights=False):
    """The memory (B, D) after the last hop.

    facts           c (B, S, D), in the order of the story: states of an encoder at the ends of sentences
    question        q (B, D)
    w_1, b_1, w_2, b_2   the gate: (A, Z), (A,), (A,), () with Z = 7 D + 2
    w               (D, D), of c^T W q and c^T W m
    e_ih, e_hh, e_b   GRU_e (G, D), (G, D), (G,) with G = 3 D, gates r, z, n; m_ih, m_hh, m_b: GRU_m likewise
    reset, update   conventions of both, as in `ops/gru.py`; Kumar's are "after" and "keep"
    mask            (B, 1, S): a masked fact has gate 0, and the state passes it unchanged
    return_weights  gives the gates of all hops too, (B, hops, S)

    ShapeError for shapes that do not fit; ValueError for hops below 1.
    """
    expect("dmn", facts=(facts, "BSD"), question=(question, "BD"), w_1=(w_1, "AZ"), b_1=(b_1, "A"), w_2=(w_2, "A"),
           b_2=(b_2, ""), w=(w, "DD"), e_ih=(e_ih, "GD"), e_hh=(e_hh, "GD"), e_b=(e_b, "G"), m_ih=(m_ih, "GD"),
           m_hh=(m_hh, "GD"), m_b=(m_b, "G"))
    whole("dmn", 1, hops=hops)
    B, S, D = facts.shape
    mask = masks.fit("dmn", mask, B, 1, S)
    if w_1.shape[1] != 7 * D + 2 or e_b.shape[0] != 3 * D:
        raise ValueError(f"dmn: expected w_1 (A, 7 D + 2) and e_b (3 D,) with D = {D}, got w_1 {w_1.shape} and e_b "
                         f"{e_b.shape}")
    m, nothing = question, zeros_like(question)
    x, scores, gates = linear(facts, e_ih, e_b), [], []                    # (B, S, 3D)
    for hop in range(hops):
        with scope(f"hop{hop}"):
            z = features(facts, question, m, w)                            # (B, S, 7D+2)
            scores.append((linear(z, w_1, b_1).tanh() @ w_2 + b_2).unsqueeze(1))  # (B, 1, S)
            gates.append(sigmoid(scores[hop], mask))
            read = AttentionGRUScan("blend", reset, update)
            episode = read(x, gates[hop].squeeze(1), nothing, e_hh, None, None)[1]  # (B, D)
            m = GRUScan(reset=reset, update=update)(linear(episode, m_ih, m_b).unsqueeze(1), m, m_hh, None, None)[1]
    show(lambda: concat(scores, 1), mask, lambda: concat(gates, 1))        # (B, hops, S)
    return (m, concat(gates, 1)) if return_weights else m


def features(c, q, m, w):
    """z (B, S, 7 D + 2): how fact c (B, S, D) goes with the question q and the memory m (B, D)."""
    q, m = q.unsqueeze(1), m.unsqueeze(1)                                  # (B, 1, D)
    alike = [c @ (x @ w.T).transpose() for x in (q, m)]                    # (B, S, 1) each: c^T W x
    return concat([c, m.expand(c.shape), q.expand(c.shape), c * q, c * m, (c - q).abs(), (c - m).abs(), *alike], 2)


def reference(facts, question, w_1, b_1, w_2, b_2, w, e_ih, e_hh, e_b, m_ih, m_hh, m_b, hops, mask=None):
    """The formula, one number at a time."""
    (B, S, D), out = facts.shape, question.copy()

    def sigma(x):
        return 1 / (1 + math.exp(-x))

    def gru(x, h, w_ih, w_hh, b):
        new = []
        for d in range(D):
            r, z, n = (sum(w_ih[gate * D + d] * x) + b[gate * D + d] for gate in range(3))
            u_r, u_z, u_n = (sum(w_hh[gate * D + d] * h) for gate in range(3))
            kept = sigma(z + u_z)
            new.append(kept * h[d] + (1 - kept) * math.tanh(n + sigma(r + u_r) * u_n))
        return np.array(new)

    for b in range(B):
        q, m = question[b], question[b]
        for _ in range(hops):
            h = np.zeros(D)
            for i in range(S):
                if mask is not None and not mask[b, 0, i]:
                    continue
                c = facts[b, i]
                z = [*c, *m, *q, *(c * q), *(c * m), *abs(c - q), *abs(c - m)]
                z += [sum(c[j] * w[j, d] * x[d] for j in range(D) for d in range(D)) for x in (q, m)]
                hidden = [math.tanh(sum(row * z) + bias) for row, bias in zip(w_1, b_1)]
                g = sigma(sum(w_2 * hidden) + b_2)
                h = g * gru(c, h, e_ih, e_hh, e_b) + (1 - g) * h
            m = gru(h, m, m_ih, m_hh, m_b)
        out[b] = m
    return out


def example(rng):
    """Stories of 4 facts and of 2, width 3; 2 hops."""
    D, A = 3, 5
    return {"facts": rng.normal(size=(2, 4, D)), "question": rng.normal(size=(2, D)),
            "w_1": 0.4 * rng.normal(size=(A, 7 * D + 2)), "b_1": rng.normal(size=A), "w_2": rng.normal(size=A),
            "b_2": np.array(0.3), "w": rng.normal(size=(D, D)),
            "e_ih": rng.normal(size=(3 * D, D)), "e_hh": rng.normal(size=(3 * D, D)),
            "e_b": rng.normal(size=3 * D), "m_ih": rng.normal(size=(3 * D, D)), "m_hh": rng.normal(size=(3 * D, D)),
            "m_b": rng.normal(size=3 * D), "hops": 2, "mask": np.arange(4) < np.array([4, 2])[:, None, None]}


def labels():
    """Names of the hops and of the example's facts."""
    return ["hop 1", "hop 2"], ["fact 1", "fact 2", "fact 3", "fact 4"]


CAPTION = "The weights are gates: each is a sigmoid by itself, and they do not sum to 1."
