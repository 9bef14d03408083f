r"""Local attention with predicted alignment: a small network says where to look, and a Gaussian favours that place.

    a_t(s) = softmax over the window of score(h_t, hs_s)  *  exp(-(s - p_t)^2 / (2 sigma^2))        sigma = D / 2
    p_t    = S sigmoid(v_p^T tanh(W_p h_t))        window: floor(p_t) - D <= s <= floor(p_t) + D
    c_t    = sum_s a_t(s) hs_s

Luong, Pham and Manning 2015, "Effective approaches to attention-based neural machine translation", section 3.2,
"local-p"; local attention of Hu 2018 section 3.5. S is the sentence's own length, counted from the mask; places count
from 0.

Cost: as `local_m`, and a network of A T (Q + 1) multiplications.

Survey: it tells of a Gaussian around the pivot, not of when that comes in. The authors' code settles it: the softmax is
taken in the window first, and the weights are *not* divided by their sum again after the Gaussian, so that they sum to
less than 1 (0.58 for equal scores, D = 10). `renormalise=True` divides.

The window's middle floor(p_t) is a constant for the gradient: W_p and v_p learn through the Gaussian alone. (The code
takes p_t = (S - 1) sigmoid(...) where the last word is the end mark, which is never attended.)
"""
import math

import numpy as np

from ..functional import linear
from .core import fitted, scores_of, variant, weigh
from .local_m import ends_of
from .shapes import expect, whole


@variant("basic", params={"w_p": "AQ", "v_p": "A"}, score="general", sums=(0, 1),
         paper="Luong et al. 2015, local-p; Hu 2018 section 3.5")
def local_p(q, k, v, w_p, v_p, score="general", width=10, renormalise=False, mask=None, return_weights=False, **a):
    """q (B, T, Q), k (B, S, K), v (B, S, E), w_p (A, Q), v_p (A,) to (B, T, E). width: D, at least 1; `a` are the
    parameters of the score. ShapeError; ValueError for another width."""
    expect("local_p", q=(q, "BTQ"), k=(k, "BSK"), v=(v, "BSE"), w_p=(w_p, "AQ"), v_p=(v_p, "A"))
    whole("local_p", 1, **{"a width D": width})
    (B, T), S = q.shape[:2], k.shape[1]
    mask = fitted(mask, (B, T, S))
    lengths = ends_of(mask, B, T, S)                                       # (B, T)
    p = (linear(q, w_p).tanh() @ v_p).sigmoid() * lengths.astype(q.dtype)  # (B, T)
    near = around(p.detach().unsqueeze(-1), width, S)                      # (B, T, S)
    distance = np.arange(S, dtype=q.dtype) - p.unsqueeze(-1)               # (B, T, S)
    gaussian = (-(distance ** 2) / (2 * (width / 2) ** 2)).exp()

    def normalise(e, allowed):
        alpha = e.softmax(-1, allowed) * gaussian
        total = alpha.sum(-1, keepdims=True)                               # (B, T, 1)
        return alpha / total.where(total != 0, 1.0) if renormalise else alpha

    return weigh(scores_of(score, q, k, a), v, near if mask is None else near & mask, return_weights, normalise)


def around(p, width, S):
    """(B, T, S) bool: the places s with floor(p) - width <= s <= floor(p) + width, of p (B, T, 1). s + width is whole, so
    it is at least floor(p) where p is below s + width + 1; and what is read is compared where it lies, be it on a card."""
    s = np.arange(S, dtype=p.dtype)
    return (p < s + (width + 1)) & (p >= s - width)


def reference(q, k, v, w_p, v_p, w, width, mask, renormalise=False):
    """With the general score, one number at a time."""
    (B, T, Q), (S, E) = q.shape, v.shape[1:]
    out = np.zeros((B, T, E))
    for b in range(B):
        for t in range(T):
            places = [s for s in range(S) if mask[b, 0, s]]
            inner = sum(v_p[n] * math.tanh(sum(w_p[n, i] * q[b, t, i] for i in range(Q))) for n in range(len(v_p)))
            p = (max(places) + 1) / (1 + math.exp(-inner))
            near = [s for s in places if math.floor(p) - width <= s <= math.floor(p) + width]
            a = {s: math.exp(sum(q[b, t, i] * w[i, j] * k[b, s, j] for i in range(Q) for j in range(k.shape[2])))
                 for s in near}
            a = {s: a[s] / sum(a.values()) * math.exp(-(s - p) ** 2 / (2 * (width / 2) ** 2)) for s in near}
            total = sum(a.values()) if renormalise else 1.0
            for s in near:
                out[b, t] += a[s] / total * v[b, s]
    return out


def example(rng):
    """Two sentences of 6 and 4 words, a window of two places each way, three queries."""
    return {"q": rng.normal(size=(2, 3, 3)), "k": rng.normal(size=(2, 6, 2)), "v": rng.normal(size=(2, 6, 4)),
            "width": 2, "w_p": rng.normal(size=(5, 3)), "v_p": rng.normal(size=5), "w": rng.normal(size=(3, 2)),
            "mask": np.arange(6) < np.array([6, 4])[:, None, None]}


CAPTION = "The mask has the window in it; the weights are those after the Gaussian, and sum to less than 1."
