r"""Basic attention: one learned pattern is compared with every element of a sequence, and gives their mean.

    e_s = a(u, x_s)        alpha = softmax(e)        c = sum_s alpha_s x_s

Hu 2018, section 2, eqs 6-9: a is any score by name (dot, general, additive, mlp, ...), u the pattern. With
`additive`, W_q u is the bias of a hidden layer, and this is the pooling of Yang et al. 2016, "Hierarchical attention
networks", inside one sentence.

Cost: that of one query: with the dot product, 2 S D multiplications.

Survey: the result is said to lie in R^d_u, the space of the pattern. It is a mean of the x_s, so it lies in theirs,
R^d_v.

A sequence of which nothing may be attended to gives the vector 0. u is learnt and the same for all inputs; u = 0
under the dot product is the plain average, and it learns away from there. With `general`, W^T u is only another
vector: W adds nothing here.
"""
import math

import numpy as np

from .core import scores_of, variant, weigh
from .shapes import expect


@variant("basic", params={"u": "Q"}, score="dot", paper="Hu 2018 section 2")
def pattern(x, u, score="dot", mask=None, return_weights=False, **a):
    """x (B, S, D), u (Q,), mask (B, 1, S) to (B, D), and the weights (B, 1, S) if asked; a are the score's parameters.

    ShapeError for shapes that do not fit, InputError for a score that is none.
    """
    expect("pattern", x=(x, "BSD"), u=(u, "Q"))
    query = u.expand(x.shape[0], 1, u.shape[0])                            # (B, 1, Q)
    result = weigh(scores_of(score, query, x, a), x, mask, return_weights)  # (B, 1, D)
    return (result[0].squeeze(1), result[1]) if return_weights else result.squeeze(1)


def reference(x, u, mask=None):
    """The formula with the dot product, one number at a time."""
    B, S, D = x.shape
    out = np.zeros((B, D))
    for b in range(B):
        alpha = {}
        for s in range(S):
            if mask is None or mask[b, 0, s]:
                alpha[s] = math.exp(sum(u[d] * x[b, s, d] for d in range(D)))
        for s in alpha:
            out[b] += alpha[s] / sum(alpha.values()) * x[b, s]
    return out


def example(rng):
    """Two sentences of at most 4 words, the second of 2."""
    return {"x": rng.normal(size=(2, 4, 3)), "u": rng.normal(size=3),
            "mask": np.arange(4) < np.array([4, 2])[:, None, None]}
