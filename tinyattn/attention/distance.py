r"""Distance-masked self-attention: each word looks one way only, and farther words count less.

    alpha_i = softmax_j(q_i^T k_j / sqrt(d) + M_ij - a |i - j|)
    M_ij = 0 on the side that is seen (forward: j < i), else -inf

Im and Cho 2017, "Distance-based self-attention network for natural language inference"; their M_dis is -|i - j|. The
direction masks are those of DiSAN (Shen et al. 2018): a word does not see itself, and a gate after the attention brings
it back.

Cost: T^2 (A + E) multiplications, half of them for nothing; the table of distances, T x T, is shared by all heads and
sentences.

Survey: eqs 24-25 print such a strict mask (j < i only) for the language model, whose first word then sees nothing: a
row of -inf, and nan from its softmax. Here the first word of "forward" and the last of "backward" get 0.

A widely copied port divides by the root of the model's width; it is the root of d, the width of a head.
"""
import math

import numpy as np

from ..tensor import Tensor
from . import mask as masks
from .core import variant
from .heads import attend, output, project
from .shapes import one_of

DIRECTIONS = {"forward": masks.forward, "backward": masks.backward, "both": masks.diagonal, None: None}


@variant("self", params={"w_q": "AD", "w_k": "AD", "w_v": "ED", "w_o": "DE", "a": ""},
         paper="Im and Cho 2017; Hu 2018 eqs 24-25", sums=(0.0, 1.0), causal=True)
def distance(x, w_q, w_k, w_v, w_o, a=1.5, mask=None, return_weights=False, heads=2, direction="forward"):
    """x (B, T, D) to (B, T, D). w_q, w_k (H d, D), w_v (H e, D), w_o (D, H e); a, how fast words fade, is a number or a
    Tensor of one.

    direction: "forward" sees the words before, "backward" those after, "both" all others, None all words. InputError
    for another direction, ValueError for more than one number a; else errors as in `multi_head`.
    """
    one_of("distance", direction=(direction, DIRECTIONS))
    if isinstance(a, Tensor) and a.shape != ():
        raise ValueError(f"distance: expected a to be one number, got shape {a.shape}")
    q, k, v, mask = project("distance", x, w_q, w_k, w_v, heads, mask=mask)
    T = x.shape[1]
    bias = Tensor(-np.abs(masks.ahead(T)), dtype=x.dtype, device=x.device) * a  # (T, T)
    seen = masks.both(mask, None if direction is None else DIRECTIONS[direction](T, device=x.device))
    context, weights = attend(q, k, v, seen, False, bias, return_weights)
    return output("distance", context, weights, w_o)


def reference(x, w_q, w_k, w_v, w_o, a, mask=None, heads=2):
    """The formula with the direction forward, head by head and word by word."""
    B, T, _ = x.shape
    d, e = len(w_q) // heads, len(w_v) // heads
    out = np.zeros((B, T, len(w_o)))
    for b in range(B):
        for i in range(T):
            joined = []
            for h in range(heads):
                alpha, head = {}, np.zeros(e)
                for j in range(i):
                    if mask is None or mask[b, i if mask.shape[1] > 1 else 0, j]:
                        score = (w_q[h * d:(h + 1) * d] @ x[b, i]) @ (w_k[h * d:(h + 1) * d] @ x[b, j])
                        alpha[j] = math.exp(score / math.sqrt(d) - a * abs(i - j))
                for j in alpha:
                    head += alpha[j] / sum(alpha.values()) * (w_v[h * e:(h + 1) * e] @ x[b, j])
                joined += list(head)
            out[b, i] = w_o @ joined
    return out


def example(rng):
    """Two sentences of at most 5 words, the second of 4; two heads."""
    return {"x": rng.normal(size=(2, 5, 3)), "w_q": rng.normal(size=(4, 3)), "w_k": rng.normal(size=(4, 3)),
            "w_v": rng.normal(size=(2, 3)), "w_o": rng.normal(size=(3, 2)), "a": np.array(0.5), "heads": 2,
            "mask": np.arange(5) < np.array([5, 4])[:, None, None]}
