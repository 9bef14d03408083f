r"""Pairwise self-attention: any score compares the words of a sentence two by two.

    e_ij = a(x_i, x_j)        alpha_ij = softmax_j(e_ij)        c_i = sum_j alpha_ij x_j

Hu 2018, eqs 16-18; a is any score by name, eq. 8 (`additive`) unless another is asked for. With one fixed query v' in
place of x_i (eq. 16) it is the attention of one pattern vector; with every word asking it is a table of T x T.

Cost: that of the score for T x T pairs, and T^2 D multiplications.

Survey: eq. 18 does not say over which index the softmax goes. Eq. 26 sums over j, so it is j: each word shares out one
unit among the words that it looks at. (Its text also writes alpha_i for the score e_i = a(u, v_i).)
"""
import math

import numpy as np

from . import mask as masks
from .core import scores_of, variant, weigh
from .shapes import expect


@variant("self", paper="Hu 2018 eqs 16-18", score="additive", causal=True)
def pairwise(x, score="additive", mask=None, return_weights=False, **parameters):
    """x (B, T, D) to (B, T, D). score: the name of a score, whose parameters come by name, two sides of width D.
    ShapeError for shapes that do not fit, InputError for a score that is none."""
    expect("pairwise", x=(x, "BTD"))
    B, T, _ = x.shape
    e = scores_of(score, x, x, parameters)                                 # (B, T, T)
    return weigh(e, x, masks.fit("pairwise", mask, B, T, T), return_weights)


def reference(x, w_q, w_k, v_a, mask=None):
    """The formula with the score of eq. 8, one number at a time."""
    out = np.zeros(x.shape)
    for b in range(len(x)):
        for i in range(x.shape[1]):
            alpha = {}
            for j in range(x.shape[1]):
                if mask is None or mask[b, i if mask.shape[1] > 1 else 0, j]:
                    hidden = [math.tanh(w_q[a] @ x[b, i] + w_k[a] @ x[b, j]) for a in range(len(v_a))]
                    alpha[j] = math.exp(sum(v_a[a] * hidden[a] for a in range(len(v_a))))
            for j in alpha:
                out[b, i] += alpha[j] / sum(alpha.values()) * x[b, j]
    return out


def example(rng):
    """Two sentences of at most 4 words, the second of 3."""
    return {"x": rng.normal(size=(2, 4, 3)), "w_q": rng.normal(size=(2, 3)), "w_k": rng.normal(size=(2, 3)),
            "v_a": rng.normal(size=2), "mask": np.arange(4) < np.array([4, 3])[:, None, None]}
