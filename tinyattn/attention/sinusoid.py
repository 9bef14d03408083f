r"""Sinusoidal positions: waves of many lengths, added to the words, tell self-attention who stands where.

    p(t, 2i) = sin(t / 10000^{2i/D})        p(t, 2i + 1) = cos(t / 10000^{2i/D})
    C = self-attention of x_t + p(t)

Vaswani et al. 2017, "Attention is all you need", section 3.5; eqs 22-23 of Hu 2018. Nothing is learnt. p(t + n) is a
rotation of p(t) that depends on n alone, so a matrix can look n places back; and the product of two codes depends on
their distance alone.

Cost: T D additions, beside self-attention. The code is a table, the same for every sentence.

Three layouts go by this name. "interleaved" is the paper's, sine and cosine in turn. "halves" has all sines and then
all cosines, of the same waves. "tensor2tensor", the authors' code, has halves too, but waves whose lengths end at 10000
exactly, with the exponent i / (D/2 - 1). Self-attention without positions cannot tell an order: shuffled words give
shuffled outputs.
"""
import math

import numpy as np

from ..tensor import Tensor
from .core import variant
from .heads import one_head
from .shapes import expect, one_of

LAYOUTS = ("interleaved", "halves", "tensor2tensor")


def encode(length, width, layout="interleaved", start=0):
    """The code of the positions start .. start + length - 1, as a float64 array (length, width).

    Any width of at least 1: of an odd one, the last wave has a sine alone (in "tensor2tensor" the last column is 0).
    InputError for another layout, ValueError for a width below 1 or a length below 0.
    """
    one_of("sinusoid", layout=(layout, LAYOUTS))
    if width < 1 or length < 0:
        raise ValueError(f"sinusoid: expected a length of at least 0 and a width of at least 1, got {length} and "
                         f"{width}")
    code = np.zeros((length, width))
    sines, cosines = (width + 1) // 2, width // 2
    exponents = 2 * np.arange(sines) / width
    if layout == "tensor2tensor":
        sines = cosines
        exponents = np.arange(sines) / max(sines - 1, 1)
    angles = np.arange(start, start + length)[:, None] * 10000.0 ** -exponents  # (length, sines)
    at_sines, at_cosines = (slice(0, None, 2), slice(1, None, 2)) if layout == "interleaved" else (
        slice(0, sines), slice(sines, sines + cosines))
    code[:, at_sines], code[:, at_cosines] = np.sin(angles), np.cos(angles[:, :cosines])
    return code


def place(name, x, layout="interleaved"):
    """x (B, T, D) with the code added."""
    expect(name, x=(x, "BTD"))
    return x + Tensor(encode(*x.shape[1:], layout), dtype=x.dtype, device=x.device)


@variant("self", params={"w_q": "AD", "w_k": "AD", "w_v": "ED"}, paper="Vaswani et al. 2017; Hu 2018 eqs 22-23",
         causal=True)
def sinusoid(x, w_q, w_k, w_v, mask=None, return_weights=False, causal=False, layout="interleaved"):
    """x (B, T, D) to (B, T, E). w_q, w_k (A, D), w_v (E, D), the rest as in `self_attention`; layout as in `encode`.
    ShapeError for shapes that do not fit, InputError for another layout."""
    return one_head("sinusoid", place("sinusoid", x, layout), w_q, w_k, w_v, mask, return_weights, causal)


def reference(x, w_q, w_k, w_v, mask=None):
    """The formula, one number at a time."""
    B, T, D = x.shape
    x, out = x.copy(), np.zeros((B, T, len(w_v)))
    for t in range(T):
        for c in range(D):
            angle = t / 10000 ** ((c - c % 2) / D)
            x[:, t, c] += math.cos(angle) if c % 2 else math.sin(angle)
    for b in range(B):
        for i in range(T):
            alpha = {}
            for j in range(T):
                if mask is None or mask[b, i if mask.shape[1] > 1 else 0, j]:
                    e = sum((w_q[a] @ x[b, i]) * (w_k[a] @ x[b, j]) for a in range(len(w_q)))
                    alpha[j] = math.exp(e / math.sqrt(len(w_q)))
            for j in alpha:
                out[b, i] += alpha[j] / sum(alpha.values()) * (w_v @ x[b, j])
    return out


def example(rng):
    """Two sentences of at most 5 words, the second of 4. The words are alike, and queries and keys nearly what they are
    made from, so the positions show: each word looks around itself."""
    return {"x": 0.1 * rng.normal(size=(2, 5, 6)), "w_q": 2 * np.eye(6) + 0.1 * rng.normal(size=(6, 6)),
            "w_k": 2 * np.eye(6) + 0.1 * rng.normal(size=(6, 6)), "w_v": rng.normal(size=(2, 6)),
            "mask": np.arange(5) < np.array([5, 4])[:, None, None]}
