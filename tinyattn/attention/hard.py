r"""Hard attention: one key is drawn by its weight, and only its value is read. The draw is learnt by REINFORCE.

    s_t ~ alpha_t = softmax_s(e_ts), and c_t = v_{s_t}
    surrogate = sum_t (R_t - baseline) log alpha_t(s_t)        its gradient is, in the mean, that of E[R]

Xu et al. 2015, "Show, attend and tell: neural image caption generation with visual attention", section 4.1; Williams
1992 for the estimator. R is a reward (a constant for the gradient), such as the log-likelihood of the answer; a
baseline that does not depend on s_t changes the spread, not the mean.

Cost: that of soft attention. Of S values one is wanted, and is taken out by a product with rows of one 1 and zeros: so
what is drawn on a card is never read by the host.

c itself sends a gradient to the value that was read, none to the scores: those learn through the surrogate alone. As
the weights of one query are a distribution over S places, the mean can be checked by going through all of them (the
tests do).
"""
import math

import numpy as np

from ..functional import where
from ..tensor import Tensor
from .core import scores_of, variant, weights_of
from .shapes import expect, whole


def draw(weights, seed):
    """(B, T) places, each drawn by the weights (B, T, S) of its query: the first at which their running sum passes a
    uniform number, or S where there is nothing to draw. The same seed draws the same numbers."""
    sums = weights.detach().cumsum(-1)                                     # (B, T, S)
    u = Tensor(np.random.default_rng(seed).random((*sums.shape[:-1], 1)), device=sums.device)
    return (sums <= u * sums[:, :, -1:]).sum(-1)                           # (B, T)


def surrogate(log_alpha, reward, baseline=0.0):
    """The number to be made large: sum over all draws of (R - baseline) log alpha(s), of shape (). log_alpha (B, T), as
    `hard` returns it; reward and baseline broadcast to it and are constants."""
    reward, baseline = (x.detach() if isinstance(x, Tensor) else x for x in (reward, baseline))
    return (log_alpha * (reward - baseline)).sum()


@variant("basic", score="general", keys=("v",), paper="Xu et al. 2015, section 4.1")
def hard(q, k, v, seed, score="general", mask=None, return_weights=False, **a):
    """q (B, T, Q), k (B, S, K), v (B, S, E) to c (B, T, E) and log alpha_t(s_t) (B, T), and the weights if asked. seed:
    a whole number; `a` are the parameters of the score. A query that may attend to nothing gives c = 0 and a logarithm
    of 0. ShapeError; ValueError for no key, or a seed below 0."""
    expect("hard", q=(q, "BTQ"), k=(k, "BSK"), v=(v, "BSE"))
    whole("hard", 0, seed=seed)
    weights = weights_of(scores_of(score, q, k, a), mask)                  # (B, T, S)
    S = weights.shape[-1]
    if S == 0:
        raise ValueError(f"hard: expected at least one key to draw, got k of shape {k.shape}")
    drawn = draw(weights, seed).unsqueeze(-1) == np.arange(S)              # (B, T, S)
    c = drawn.to(v.dtype) @ v                                              # (B, T, E)
    alpha = weights.where(drawn, 0.0).sum(-1)                              # (B, T)
    log_alpha = where(alpha > 0, alpha, 1.0).log()
    return (c, log_alpha, weights) if return_weights else (c, log_alpha)


def reference(q, k, v, seed, w, mask=None):
    """With the general score; the draws go through the queries in order."""
    (B, T, Q), (S, E) = q.shape, v.shape[1:]
    c, log_alpha = np.zeros((B, T, E)), np.zeros((B, T))
    uniform = np.random.default_rng(seed).random((B, T))
    for b in range(B):
        for t in range(T):
            places = [s for s in range(S) if mask is None or mask[b, 0, s]]
            e = {s: math.exp(sum(q[b, t, i] * w[i, j] * k[b, s, j] for i in range(Q) for j in range(k.shape[2])))
                 for s in places}
            below = 0.0
            for s in places:
                below += e[s] / sum(e.values())
                if uniform[b, t] < below:
                    break
            c[b, t], log_alpha[b, t] = v[b, s], math.log(e[s] / sum(e.values()))
    return c, log_alpha


def example(rng):
    """Two memories of 4 and 3 values, three queries."""
    return {"q": rng.normal(size=(2, 3, 2)) / 2, "k": rng.normal(size=(2, 4, 3)) / 2, "v": rng.normal(size=(2, 4, 5)),
            "seed": 3, "w": rng.normal(size=(2, 3)), "mask": np.arange(4) < np.array([4, 3])[:, None, None]}


CAPTION = "These are the weights that are drawn from: one key a query is read, the others not at all."
