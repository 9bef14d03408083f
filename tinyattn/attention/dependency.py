r"""Syntactic attention: a word attends to its likely heads, over all projective trees that the sentence may have.

    theta_ij = tanh(s^T tanh(W_1 h_i + W_2 h_j + b))        p_ij = P(i is the head of j)
    c_j = sum_i p_ij x_i                                    i = 0 is the root

The chance of a tree is e^(sum of theta over its arcs), over the sum of that for all trees (Eisner's inside-outside
algorithm). Every word has one head, so column j of p sums to 1: a softmax over heads, were it not that two arcs may not
cross and that all must make a tree. The root, a token of its own before the sentence, is the head of the main words and
has no head.

Kim, Denton, Hoang and Rush 2017, "Structured attention networks", syntactic attention; Hu 2018 eq. 32.

Cost: T^2 A tanh for the scores, about T^3 multiplications for the trees.

Survey: eq. 32 is the general c = E[f(V, z)]. The layer must know nothing of syntax: it is trained by what the sentence
is used for. Whoever takes the head with the largest p instead has no gradient to train it.
"""
import itertools
import math

import numpy as np

from ..functional import additive_scores, concat, linear
from ..ops.eisner import Eisner
from . import mask as masks
from .core import show, variant
from .mask import lengths_of
from .shapes import expect


@variant("task-specific", params={"w_1": "AU", "w_2": "AU", "b": "A", "s": "A", "root_h": "U", "root_x": "D"},
         paper="Kim et al. 2017; Hu 2018 eq. 32", keys=("h", "x"), sums=(0.0, 1.0))
def dependency(x, h, w_1, w_2, b, s, root_h, root_x, mask=None, single_root=False, return_weights=False):
    """x (B, T, D) what is attended to, h (B, T, U) what is scored, to (B, T, D); row j belongs to word j, 0 at padding.

    w_1, w_2 (A, U), b, s (A,), root_h (U,) and root_x (D,) the root's. single_root: one word hangs on the root; else
    any number from one on, as in the paper. The weights are (B, T, T), row j over the words that may be its head; what
    is missing to 1 is the root's. mask is (B, 1, T), with no hole. ShapeError; ValueError for a mask with a hole.
    """
    expect("dependency", x=(x, "BTD"), h=(h, "BTU"), w_1=(w_1, "AU"), w_2=(w_2, "AU"), b=(b, "A"), s=(s, "A"),
           root_h=(root_h, "U"), root_x=(root_x, "D"))
    (B, T, U) = h.shape
    mask = masks.fit("dependency", mask, B, 1, T)
    lengths = None if mask is None else lengths_of("dependency", mask, B, 1, T)
    heads = concat([root_h.expand(B, 1, U), h], 1)                         # (B, T + 1, U)
    theta = additive_scores(linear(heads, w_1), linear(h, w_2, b), s).tanh()  # (B, T + 1, T), head x dependent
    p, root, _ = Eisner(single_root=single_root)(theta[:, 1:], theta[:, 0], lengths)  # (B, T, T), (B, T)
    weights = p.transpose()
    show(lambda: theta[:, 1:].transpose(), mask, weights)
    context = weights @ x + root.unsqueeze(-1) * root_x                    # (B, T, D)
    return (context, weights) if return_weights else context


def reference(x, h, w_1, w_2, b, s, root_h, root_x, mask=None, single_root=False):
    """All projective trees, one after the other. Token 0 is the root."""
    B, T, _ = x.shape
    out = np.zeros(x.shape)
    for n in range(B):
        words = [t for t in range(T) if mask is None or mask[n, 0, t]]
        hs, xs = [root_h] + [h[n, t] for t in words], [root_x] + [x[n, t] for t in words]
        N, z, p = len(words), 0.0, np.zeros((len(words) + 1, len(words) + 1))
        for heads in itertools.product(range(N + 1), repeat=N):
            if is_tree(heads) and is_projective(heads) and not (single_root and heads.count(0) != 1):
                arcs = list(zip(heads, range(1, N + 1), strict=True))
                weight = math.exp(sum(math.tanh(s @ np.tanh(w_1 @ hs[i] + w_2 @ hs[j] + b)) for i, j in arcs))
                z += weight
                for arc in arcs:
                    p[arc] += weight
        for j in range(1, N + 1):
            out[n, words[j - 1]] = sum(p[i, j] / z * xs[i] for i in range(N + 1))
    return out


def is_tree(heads):
    """Does every word reach the root, token 0, along its heads? Word j, counted from 1, has heads[j - 1]."""
    for word in range(1, len(heads) + 1):
        for _ in heads:
            word = heads[word - 1] if word else 0
        if word:
            return False
    return True


def is_projective(heads):
    """Do no two arcs cross?"""
    spans = [sorted((head, word)) for word, head in enumerate(heads, 1)]
    return not any(a < c < b < d for a, b in spans for c, d in spans)


def example(rng):
    """Two sentences of 4 and 3 words."""
    shapes = {"x": (2, 4, 2), "h": (2, 4, 3), "w_1": (5, 3), "w_2": (5, 3), "b": (5,), "s": (5,), "root_h": (3,),
              "root_x": (2,)}
    return {**{name: rng.normal(size=shape) for name, shape in shapes.items()},
            "mask": np.arange(4) < np.array([4, 3])[:, None, None], "single_root": False}


CAPTION = ("Row j shares out who is the head of word j; what is missing to 1 hangs on the root, which has no "
           "column. A word is never its own head.")
