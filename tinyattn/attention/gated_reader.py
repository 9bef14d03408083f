r"""Gated attention: each word of a document reads the question in its own way, and is gated by what it found.

    x_i = d_i * q~_i, q~_i = sum_j alpha_ij q_j        alpha_i = softmax_j(q_j^T d_i)

Dhingra et al. 2017, "Gated-attention readers for text comprehension", section 3.1; Hu 2018 eqs 38-41. `gate` names the
three ways that they compare: "multiply" (x = d * q~, the best: 68.0% right on Who-did-What), "sum" (d + q~, 64.5),
"concat" ([d ; q~], 63.7).

Cost: T S D multiplications, twice.

Survey: eq. 41 suggests that each layer's question encoder reads the states of the layer below. In the paper every layer
reads the raw word vectors Y of the question, with its own bidirectional GRU: D^k = GRU_D^k(x^{k-1}), Q^k = GRU_Q^k(Y).
The document's states go up; the last layer has no gate. The released code takes the softmax over padding too, then
masks and divides, which comes to the same.
"""
import math

import numpy as np

from ..functional import concat
from ..tensor import Tensor
from .core import variant, weigh
from .shapes import expect, one_of

GATES = {"multiply": lambda d, read: d * read, "sum": lambda d, read: d + read,
         "concat": lambda d, read: concat([d, read], -1)}


@variant("application", keys=("k",), empty=False, paper="Dhingra et al. 2017; Hu 2018 eqs 38-41")
def gated_reader(q, k, gate="multiply", mask=None, return_weights=False):
    """q (B, T, D) states of the document, k (B, S, D) states of the question, mask over the question's words, to
    x (B, T, D), or (B, T, 2 D) for gate="concat". ShapeError; InputError for another gate."""
    expect("gated_reader", q=(q, "BTD"), k=(k, "BSD"))
    one_of("gated_reader", gate=(gate, GATES))
    read, weights = weigh(q @ k.transpose(1, 2), k, mask, return_weights=True)  # (B, T, D), (B, T, S)
    x = GATES[gate](q, read)
    return (x, weights) if return_weights else x


def answer(document, cloze, candidates, count, mask=None):
    """P (B, C), the mass of each candidate: the sum of s = softmax_i(cloze . d_i) over all places where it stands,
    divided by that of all candidates.

    document (B, T, D) states of the last layer, cloze (B, D) the state of the question at its gap, candidates (B, T)
    numbers of the candidate at each place, -1 for none, count: C. A document that names no candidate gives 0.
    """
    candidates = np.asarray(candidates.numpy() if isinstance(candidates, Tensor) else candidates)
    if candidates.shape != document.shape[:2] or (
            candidates.size and not -1 <= candidates.min() <= candidates.max() < count):
        raise ValueError(f"answer: expected candidates (B, T) = {document.shape[:2]} from -1 to {count - 1}, got "
                         f"{candidates.shape}")
    s = (document @ cloze.unsqueeze(-1)).transpose(1, 2).softmax(-1, mask)  # (B, 1, T)
    here = Tensor((candidates[..., None] == np.arange(count)).astype(s.dtype), device=s.device)  # (B, T, C)
    mass = (s @ here).squeeze(1)                                           # (B, C)
    total = mass.sum(-1, keepdims=True)
    return mass / total.where(total != 0, 1.0)


def reference(q, k, gate, mask):
    """For the gates "multiply" and "sum", one number at a time."""
    out = np.zeros(q.shape)
    for b in range(len(q)):
        for i in range(q.shape[1]):
            e = {j: math.exp(sum(x * y for x, y in zip(q[b, i], k[b, j], strict=True)))
                 for j in range(k.shape[1]) if mask[b, 0, j]}
            for d in range(q.shape[2]):
                read = sum(e[j] / sum(e.values()) * k[b, j, d] for j in e)
                out[b, i, d] = q[b, i, d] * read if gate == "multiply" else q[b, i, d] + read
    return out


def example(rng):
    """Documents of 5 words, questions of 4 and 2."""
    return {"q": rng.normal(size=(2, 5, 3)), "k": rng.normal(size=(2, 4, 3)), "gate": "multiply",
            "mask": np.arange(4) < np.array([4, 2])[:, None, None]}
