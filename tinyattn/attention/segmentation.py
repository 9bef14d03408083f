r"""Segmentation attention: a query picks any number of words, in runs, and a word's weight is its chance to be picked.

    P(z_t1 .. z_tS) ~ exp(sum_s theta_ts z_ts + sum_s b[z_ts, z_t,s+1])      theta_ts = q_t^T W k_s, each z_ts 0 or 1
    p_ts = P(z_ts = 1)        gamma_t = (1 / lam) sum_s p_ts        c_t = sum_s (p_ts / gamma_t) v_s

b (2, 2) scores two neighbours: "both picked" against "one of them" makes runs. A chain of two states; its marginals p
come from the forward-backward algorithm. With b = 0 every word decides by itself, p_ts = sigmoid(theta_ts).

Kim, Denton, Hoang and Rush 2017, "Structured attention networks", segmentation attention; Hu 2018 eq. 32.

Cost: T S (Q K + 4) multiplications; the S steps of a chain come one after the other.

Survey: eq. 32 is the general c = E[f(V, z)], z ~ p(z | V, q), which is softmax attention where z is the place of one
word. The weights here sum to lam = 2, not to 1 (gamma keeps them from growing with the sentence; the plain expectation
saturates early in training). The paper prints each edge as theta_i + theta_i+1 + b, which counts the words inside
twice; its code counts each once, and so do we. Its loss holds 0.005 |b|^2.
"""
import functools
import itertools

import numpy as np

from ..functional import stack
from ..ops.linear_chain import LinearChain
from ..tensor import NUMBERS
from . import mask as masks
from .core import variant, weigh
from .mask import lengths_of
from .shapes import expect


@variant("task-specific", params={"w": "QK", "b": "CC"}, paper="Kim et al. 2017; Hu 2018 eq. 32", sums=2.0)
def segmentation(q, k, v, w, b, mask=None, total=2.0, return_weights=False):
    """q (B, T, Q), k (B, S, K), v (B, S, E) to (B, T, E). w (Q, K); b (2, 2), b[i, j] for a word in state i before one
    in state j (as a letter, C = 2).

    total: lam, what the weights of a query sum to. mask is (T, S), (B, 1, S) or (B, T, S) and allows the first words of
    a sentence, with no hole. ShapeError; ValueError for a total that is not positive, or a mask with a hole.
    """
    expect("segmentation", q=(q, "BTQ"), k=(k, "BSK"), v=(v, "BSE"), w=(w, "QK"), b=(b, "22"))
    if not isinstance(total, NUMBERS) or not 0 < total < np.inf:
        raise ValueError(f"segmentation: expected a positive total, got {total!r}")
    mask = masks.fit("segmentation", mask, *q.shape[:2], k.shape[1])
    return weigh(q @ w @ k.transpose(), v, mask, return_weights, normalise=functools.partial(chances, b=b, total=total))


def chances(theta, mask, b, total):
    """The weights (B, T, S) of scores theta (B, T, S): total p / sum p, and 0 where no word may be picked."""
    p = marginals(theta, b, mask)                                          # (B, T, S)
    gamma = p.sum(-1, keepdims=True) / total
    return p / gamma.where(gamma > 0, 1.0)


def marginals(theta, b, mask=None):
    """p_ts = P(z_ts = 1) for theta (B, T, S), b (2, 2) and a mask that broadcasts to theta."""
    B, T, S = theta.shape
    states = stack([theta.where(False, 0.0), theta], -1).reshape(B * T, S, 2)  # theta(0) = 0
    lengths = None if mask is None else lengths_of("segmentation", mask, B, T, S)  # (B T,)
    return LinearChain()(states, b, lengths)[0][:, :, 1].reshape(B, T, S)


def reference(q, k, v, w, b, mask=None, total=2.0):
    """All 2^S ways to pick words, one after the other."""
    (B, T, _), S = q.shape, k.shape[1]
    out = np.zeros((B, T, v.shape[2]))
    for n in range(B):
        for t in range(T):
            words = [s for s in range(S) if mask is None or np.broadcast_to(mask, (B, T, S))[n, t, s]]
            p, z = np.zeros(len(words)), 0.0
            for picks in itertools.product((0, 1), repeat=len(words)):
                score = sum(q[n, t] @ w @ k[n, s] for s, picked in zip(words, picks, strict=True) if picked)
                score += sum(b[i, j] for i, j in zip(picks, picks[1:], strict=False))
                p += np.exp(score) * np.array(picks)
                z += np.exp(score)
            for s, chance in zip(words, p / z, strict=True):
                out[n, t] += total * chance / sum(p / z) * v[n, s]
    return out


def example(rng):
    """Two sentences of 5 and 3 words, two queries."""
    return {"q": rng.normal(size=(2, 2, 3)), "k": rng.normal(size=(2, 5, 4)), "v": rng.normal(size=(2, 5, 3)),
            "w": rng.normal(size=(3, 4)), "b": rng.normal(size=(2, 2)), "total": 2.0,
            "mask": np.arange(5) < np.array([5, 3])[:, None, None]}
