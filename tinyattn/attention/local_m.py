r"""Local attention with monotonic alignment: only source words within D places of the query's own are looked at.

    a_t(s) = softmax over p_t - D <= s <= p_t + D of score(h_t, hs_s)        p_t = min(t, last source word)
    c_t    = sum_s a_t(s) hs_s

Luong, Pham and Manning 2015, "Effective approaches to attention-based neural machine translation", section 3.2,
"local-m" (D = 10 there); local attention of Hu 2018 section 3.5.

Cost: as written here that of all scores, of which the window's 2 D + 1 a query count.

Places outside the sentence are left out, not shifted inward, so a window at the border is smaller and its weights still
sum to 1. The paper has p_t = t; the released code clamps it to the last source word, as here: a target longer than its
source keeps looking at the end.
"""
import math

import numpy as np

from ..tensor import Tensor
from .core import fitted, scores_of, variant, weigh
from .shapes import expect


def ends_of(mask, B, T, S):
    """(B, T): the number of source words a query knows of, up to the last one that the mask allows."""
    if mask is None:
        return np.full((B, T), S)
    return np.where(np.broadcast_to(mask.numpy(), (B, T, S)), np.arange(1, S + 1), 0).max(-1, initial=0)


def window(centre, width, S):
    """(B, T, S) bool: the places within `width` of whole numbers `centre` (B, T)."""
    return np.abs(np.arange(S) - centre[..., None]) <= width


@variant("basic", score="general", paper="Luong et al. 2015, local-m; Hu 2018 section 3.5")
def local_m(q, k, v, score="general", width=10, start=0, mask=None, return_weights=False, **a):
    """q (B, T, Q), k (B, S, K), v (B, S, E) to (B, T, E). width: D; start: the place of the first query in its
    sentence; `a` are the parameters of the score. ShapeError; ValueError for another width or start."""
    expect("local_m", q=(q, "BTQ"), k=(k, "BSK"), v=(v, "BSE"))
    if not all(isinstance(n, (int, np.integer)) and n >= 0 for n in (width, start)):
        raise ValueError(f"local_m: expected width and start of at least 0, whole numbers, got {width!r} and {start!r}")
    (B, T), S = q.shape[:2], k.shape[1]
    mask = fitted(mask, (B, T, S))
    place = np.minimum(start + np.arange(T), ends_of(mask, B, T, S) - 1)   # (B, T)
    near = Tensor(window(place, width, S), device=q.device)                # (B, T, S)
    return weigh(scores_of(score, q, k, a), v, near if mask is None else near & mask, return_weights)


def reference(q, k, v, w, width, start, mask):
    """With the general score, one number at a time."""
    (B, T, Q), (S, E) = q.shape, v.shape[1:]
    out = np.zeros((B, T, E))
    for b in range(B):
        for t in range(T):
            places = [s for s in range(S) if mask[b, 0, s]]
            p = min(start + t, max(places))
            near = [s for s in places if p - width <= s <= p + width]
            a = {s: math.exp(sum(q[b, t, i] * w[i, j] * k[b, s, j] for i in range(Q) for j in range(k.shape[2])))
                 for s in near}
            for s in near:
                out[b, t] += a[s] / sum(a.values()) * v[b, s]
    return out


def example(rng):
    """A window of one place each way; five queries, of which the second sentence's three words are soon passed."""
    return {"q": rng.normal(size=(2, 5, 3)), "k": rng.normal(size=(2, 4, 2)), "v": rng.normal(size=(2, 4, 3)),
            "width": 1, "start": 0, "w": rng.normal(size=(3, 2)),
            "mask": np.arange(4) < np.array([4, 3])[:, None, None]}


CAPTION = "The mask has the window in it."
