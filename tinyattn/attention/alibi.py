r"""ALiBi, attention with linear biases: the longer ago a word was, the fainter it is, in each head at its own rate.

    e_ij = q_i^T k_j / sqrt(d) - m_h (i - j), j <= i        m_h = 2^{-8h/H} for h = 1 .. H

Press, Smith and Lewis 2022, "Train short, test long: attention with linear biases enables input length extrapolation".
Not in Hu 2018. Causal by itself. There is no position code besides, and nothing is learnt.

Cost: T^2 / 2 additions a head, beside causal multi-head attention; the H x T x S table of biases is in memory.

The slopes for 8 heads are 1/2, 1/4, ... 1/256. For a number that is no power of two, the authors take those of the
power below it, and then every other slope of the power above. Their code adds m_h j alone: a row's shift, which the
softmax ignores.
"""
import math

import numpy as np

from ..tensor import Tensor
from . import mask as masks
from .core import variant
from .heads import attend, output, project


def slopes(heads):
    """The H slopes m_h as a list of floats."""
    below = 2 ** int(math.log2(heads))
    first = [2 ** (-8 * (h + 1) / below) for h in range(below)]
    between = [2 ** (-8 * (h + 1) / (2 * below)) for h in range(0, 2 * below, 2)]
    return first + between[:heads - below]


@variant("self", params={"w_q": "AD", "w_k": "AD", "w_v": "ED", "w_o": "DE"}, paper="Press et al. 2022", causal=True)
def alibi(x, w_q, w_k, w_v, w_o, mask=None, return_weights=False, heads=2, cache=None):
    """x (B, T, D) to (B, T, D). w_q, w_k (H d, D), w_v (H e, D), w_o (D, H e). mask, cache, return_weights and
    errors as in `multi_head`."""
    q, k, v, mask = project("alibi", x, w_q, w_k, w_v, heads, mask=mask, cache=cache)
    k, v = (k, v) if cache is None else cache.append(k, v)
    ahead = np.minimum(masks.ahead(x.shape[1], k.shape[2]), 0)             # (T, S): j - i, no further than the query
    bias = Tensor(np.multiply.outer(slopes(heads), ahead), dtype=x.dtype, device=x.device)  # (H, T, S)
    context, weights = attend(q, k, v, mask, True, bias, return_weights)
    return output("alibi", context, weights, w_o)


def reference(x, w_q, w_k, w_v, w_o, mask=None, heads=3):
    """The formula, head by head and word by word, with the slopes of 3 heads written out."""
    B, T, _ = x.shape
    d, e = len(w_q) // heads, len(w_v) // heads
    m = {1: [1 / 256], 2: [1 / 16, 1 / 256], 3: [1 / 16, 1 / 256, 1 / 4]}[heads]
    out = np.zeros((B, T, len(w_o)))
    for b in range(B):
        for i in range(T):
            joined = []
            for h in range(heads):
                alpha, head = {}, np.zeros(e)
                for j in range(i + 1):
                    if mask is None or mask[b, i if mask.shape[1] > 1 else 0, j]:
                        score = (w_q[h * d:(h + 1) * d] @ x[b, i]) @ (w_k[h * d:(h + 1) * d] @ x[b, j])
                        alpha[j] = math.exp(score / math.sqrt(d) - m[h] * (i - j))
                for j in alpha:
                    head += alpha[j] / sum(alpha.values()) * (w_v[h * e:(h + 1) * e] @ x[b, j])
                joined += list(head)
            out[b, i] = w_o @ joined
    return out


def example(rng):
    """Two sentences of at most 5 words, the second of 4; three heads, queries of width 2 and values of width 1."""
    return {"x": rng.normal(size=(2, 5, 4)), "w_q": rng.normal(size=(6, 4)), "w_k": rng.normal(size=(6, 4)),
            "w_v": rng.normal(size=(3, 4)), "w_o": rng.normal(size=(4, 3)), "heads": 3,
            "mask": np.arange(5) < np.array([5, 4])[:, None, None]}
