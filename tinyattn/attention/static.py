r"""Static self-attention, the survey's eq. 19: every word looks hardest at the same word, whoever asks.

    alpha_ij = softmax_j[tanh(w_1^T x_i + w_2^T x_j + b)]        c_i = sum_j alpha_ij x_j

Hu 2018, eq. 19, with its w = [w_1; w_2]. The name is that of Brody, Alon and Yahav 2022, "How attentive are graph
attention networks?", who found the same in graph attention.

Cost: T^2 tanh and T^2 D multiplications.

Survey: printed as an attention among many. It is one to learn from, because of where its tanh stands: outermost. tanh
rises, so for every i the largest score is that of the j with the largest w_2^T x_j: every row has the same arg-max. And
a score lies between -1 and 1, so no weight is more than e^2 = 7.39 times another. Without the tanh (`outer=False`) it
is worse: the query's part w_1^T x_i + b is one number added to a whole row, which the softmax ignores, and all rows are
equal. What lets a query choose is a tanh inside, between two layers: eq. 8, `additive`.
"""
import math

import numpy as np

from . import mask as masks
from .core import variant, weigh
from .shapes import expect


@variant("self", params={"w_1": "D", "w_2": "D", "b": ""}, paper="Hu 2018 eq. 19", causal=True)
def static(x, w_1, w_2, b, mask=None, return_weights=False, outer=True):
    """x (B, T, D) to (B, T, D). w_1, w_2 (D,), b one number. outer=False leaves out the tanh. ShapeError."""
    expect("static", x=(x, "BTD"), w_1=(w_1, "D"), w_2=(w_2, "D"), b=(b, ""))
    B, T, _ = x.shape
    e = (x @ w_1).unsqueeze(2) + (x @ w_2).unsqueeze(1) + b                # (B, T, T)
    return weigh(e.tanh() if outer else e, x, masks.fit("static", mask, B, T, T), return_weights)


def reference(x, w_1, w_2, b, mask=None):
    """The formula, one number at a time, with w and [x_i; x_j] in one piece."""
    w, out = np.concatenate([w_1, w_2]), np.zeros(x.shape)
    for n in range(len(x)):
        for i in range(x.shape[1]):
            alpha = {}
            for j in range(x.shape[1]):
                if mask is None or mask[n, i if mask.shape[1] > 1 else 0, j]:
                    alpha[j] = math.exp(math.tanh(w @ np.concatenate([x[n, i], x[n, j]]) + b))
            for j in alpha:
                out[n, i] += alpha[j] / sum(alpha.values()) * x[n, j]
    return out


def example(rng):
    """Two sentences of at most 4 words, the second of 3."""
    return {"x": rng.normal(size=(2, 4, 3)), "w_1": rng.normal(size=3), "w_2": rng.normal(size=3),
            "b": rng.normal(size=()), "mask": np.arange(4) < np.array([4, 3])[:, None, None]}
