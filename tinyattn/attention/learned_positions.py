r"""Learned positions: a table with one vector a place, added to the words before self-attention.

    C = self-attention of x_t + p_t        p a learned table of N rows

Gehring et al. 2017, "Convolutional sequence to sequence learning"; Devlin et al. 2019 (BERT); GPT keeps these rows
inside its table of tokens. Not in Hu 2018. Vaswani et al. 2017 found them as good as sinusoids (25.7 against 25.8
BLEU).

Cost: T D additions and N D parameters, beside self-attention. A sentence longer than the table has no code: there is
nothing beyond the places that were trained.
"""
import math

import numpy as np

from .core import variant
from .heads import one_head
from .shapes import expect


def place(name, x, table, start=0):
    """x (B, T, D) plus rows start .. start + T - 1 of the table (N, D). ValueError where the table ends before."""
    expect(name, x=(x, "BTD"), table=(table, "ND"))
    end = start + x.shape[1]
    if start < 0 or end > len(table):
        raise ValueError(f"{name}: expected places within 0 .. N - 1 = {len(table) - 1}, got {start} .. {end - 1}")
    return x + table[start:end]


@variant("self", params={"table": "ND", "w_q": "AD", "w_k": "AD", "w_v": "ED"}, paper="Gehring et al. 2017",
         causal=True)
def learned_positions(x, table, w_q, w_k, w_v, mask=None, return_weights=False, causal=False):
    """x (B, T, D) to (B, T, E). table (N, D), N >= T; w_q, w_k (A, D), w_v (E, D), the rest as in `self_attention`.
    ShapeError for shapes that do not fit, ValueError for a sentence longer than the table."""
    x = place("learned_positions", x, table)
    return one_head("learned_positions", x, w_q, w_k, w_v, mask, return_weights, causal)


def reference(x, table, w_q, w_k, w_v, mask=None):
    """The formula, one number at a time."""
    B, T, _ = x.shape
    out = np.zeros((B, T, len(w_v)))
    for b in range(B):
        words = [x[b, t] + table[t] for t in range(T)]
        for i in range(T):
            alpha = {}
            for j in range(T):
                if mask is None or mask[b, i if mask.shape[1] > 1 else 0, j]:
                    e = sum((w_q[a] @ words[i]) * (w_k[a] @ words[j]) for a in range(len(w_q)))
                    alpha[j] = math.exp(e / math.sqrt(len(w_q)))
            for j in alpha:
                out[b, i] += alpha[j] / sum(alpha.values()) * (w_v @ words[j])
    return out


def example(rng):
    """Two sentences of at most 4 words, the second of 3; the table has room for 6."""
    return {"x": rng.normal(size=(2, 4, 5)), "table": rng.normal(size=(6, 5)), "w_q": rng.normal(size=(3, 5)),
            "w_k": rng.normal(size=(3, 5)), "w_v": rng.normal(size=(2, 5)),
            "mask": np.arange(4) < np.array([4, 3])[:, None, None]}
