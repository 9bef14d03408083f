r"""Relative positions as vectors: how far a key is to the right or left adds a learned vector to it, and to its value.

    e_ij = q_i^T (k_j + a^K_r) / sqrt(d)        r = clip(j - i, -n, n)
    c_i = sum_j softmax_j(e_ij) (v_j + a^V_r)

Shaw, Uszkoreit and Vaswani 2018, "Self-attention with relative position representations", in the multi-head form of
their section 3.3. The two tables have 2n + 1 rows, for the distances -n .. n, and are shared by all heads; farther than
n is all one.

Cost: T^2 (A + E) multiplications and T (2n + 1) (A + E) more. q_i^T a^K_r is computed once for each of the 2n + 1
distances and then picked, and the weights are summed up by distance before they meet a^V: no vector stands in memory
for a pair i, j.

Survey: eq. 26 prints only the value half, c_i = sum_j alpha_ij (v_j + w_ij), and a table of all pairs. In the paper's
ablation keys alone reach 25.8 BLEU, as both do; values alone 25.3; neither 12.5. Here are both; either may be None.

The sign: r = j - i, so that row n + 1 is the next word. A table indexed by i and j could not serve a longer sentence.
"""
import math

import numpy as np

from . import mask as masks
from .core import variant, weights_of
from .heads import output, project
from .shapes import expect


def distances(T, rows):
    """(T, T) whole numbers: which of 2n + 1 rows of a table stands for key j seen from i, clip(j - i, -n, n) + n."""
    n = rows // 2
    return np.clip(masks.ahead(T), -n, n) + n


@variant("self", params={"w_q": "AD", "w_k": "AD", "w_v": "ED", "w_o": "DE", "a_k": "RI", "a_v": "RJ"},
         paper="Shaw et al. 2018; Hu 2018 eq. 26", causal=True)
def shaw(x, w_q, w_k, w_v, w_o, a_k, a_v, mask=None, return_weights=False, heads=2):
    """x (B, T, D) to (B, T, D). w_q, w_k (A, D) with A = H d, w_v (E, D) with E = H e, w_o (D, E), tables a_k (2n + 1,
    d) and a_v (2n + 1, e), either of which may be None. Weights (B, H, T, T). ValueError for a table of another width,
    or with an even number of rows; else errors as in `multi_head`."""
    q, k, v, mask = project("shaw", x, w_q, w_k, w_v, heads, mask=mask)
    T = x.shape[1]
    e = q @ k.transpose()                                                  # (B, H, T, T)
    if a_k is not None:
        at = _places("a_k", a_k, q.shape[-1], T)
        e = e + (q @ a_k.T)[at]
    weights = weights_of(e * (1 / math.sqrt(q.shape[-1])), mask)
    context = weights @ v                                                  # (B, H, T, e)
    if a_v is not None:
        at = _places("a_v", a_v, v.shape[-1], T)
        context = context + weights.put(at, (*weights.shape[:-1], len(a_v))) @ a_v
    return output("shaw", context, weights if return_weights else None, w_o)


def _places(what, table, width, T):
    """The index that picks, for each pair i, j, the row of its distance out of (..., T, 2n + 1)."""
    expect("shaw", **{what: (table, "Rd")})
    if table.shape[1] != width or len(table) % 2 == 0:
        raise ValueError(f"shaw: expected {what} to have 2n + 1 rows and the width of a head, {width}, got "
                         f"{table.shape}")
    return (..., np.arange(T)[:, None], distances(T, len(table)))


def reference(x, w_q, w_k, w_v, w_o, a_k, a_v, mask=None, heads=2):
    """The formula, with a vector for each pair of words."""
    B, T, _ = x.shape
    d, e, n = len(w_q) // heads, len(w_v) // heads, len(a_k) // 2
    out = np.zeros((B, T, len(w_o)))
    for b in range(B):
        for i in range(T):
            joined = []
            for h in range(heads):
                alpha, head = {}, np.zeros(e)
                for j in range(T):
                    if mask is None or mask[b, i if mask.shape[1] > 1 else 0, j]:
                        key = w_k[h * d:(h + 1) * d] @ x[b, j] + a_k[max(-n, min(n, j - i)) + n]
                        alpha[j] = math.exp((w_q[h * d:(h + 1) * d] @ x[b, i]) @ key / math.sqrt(d))
                for j in alpha:
                    value = w_v[h * e:(h + 1) * e] @ x[b, j] + a_v[max(-n, min(n, j - i)) + n]
                    head += alpha[j] / sum(alpha.values()) * value
                joined += list(head)
            out[b, i] = w_o @ joined
    return out


def example(rng):
    """Two sentences of at most 5 words, the second of 4; two heads, distances up to 2."""
    return {"x": rng.normal(size=(2, 5, 4)), "w_q": rng.normal(size=(6, 4)), "w_k": rng.normal(size=(6, 4)),
            "w_v": rng.normal(size=(2, 4)), "w_o": rng.normal(size=(4, 2)), "a_k": rng.normal(size=(5, 3)),
            "a_v": rng.normal(size=(5, 1)), "heads": 2, "mask": np.arange(5) < np.array([5, 4])[:, None, None]}
