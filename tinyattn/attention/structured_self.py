r"""Structured self-attention: R learned queries read a sentence R times, each for an aspect of its own.

    A = softmax_t(W_2 tanh(W_1 X^T))        M = A X        P = || A A^T - I ||_F^2

X (T, D) are the hidden states, A (R, T) holds one distribution over the tokens a row, M (R, D) is the sentence. The
penalty P pushes the rows apart (A A^T has their overlaps off the diagonal) and makes each of them sharp (a row's square
is on it).

Lin et al. 2017, "A structured self-attentive sentence embedding"; Hu 2018 eqs 11, 27-28.

Cost: T A (D + R) multiplications and T A tanh for the weights, R T D for the sentence, R^2 T for the penalty.

Survey: eq. 27 lacks a parenthesis; the softmax runs over the tokens. Eq. 11 says that the *columns* of A are
distributions: they are its rows. Whoever stacks the scores token by token has A^T, and must transpose it first, else
the penalty compares tokens.

"lambda = 1" means three things: the paper sums the R^2 entries (scale="sum"), its authors' code takes their mean
("mean", R^2 times less), and a much-used port takes the norm without the square ("norm"). P is 0 only where each row is
on one token and no two on the same, which takes R <= T. The authors drop units of X on the way to the weights only; A
multiplies the whole X.
"""
import numpy as np

from ..functional import linear
from ..ops.broadcast import ShapeError
from ..tensor import Tensor
from . import mask as masks
from .core import variant, weigh
from .shapes import expect, one_of


def attend(x, w_1, w_2, mask=None):
    """(M, A) with any axes before: x (..., T, D), mask to (..., R, T), to (..., R, D) and (..., R, T)."""
    return weigh(linear(linear(x, w_1).tanh(), w_2).transpose(), x, mask, return_weights=True)


@variant("multi-dimensional", params={"w_1": "AD", "w_2": "RA"}, paper="Lin et al. 2017; Hu 2018 eqs 11, 27-28")
def structured_self(x, w_1, w_2, mask=None, return_weights=False):
    """x (B, T, D) to (B, R, D). w_1 (A, D), w_2 (R, A). mask is (B, 1, T), or (B, R, T) for a mask a row.
    ShapeError."""
    expect("structured_self", x=(x, "BTD"), w_1=(w_1, "AD"), w_2=(w_2, "RA"))
    rows, weights = attend(x, w_1, w_2, masks.fit("structured_self", mask, len(x), len(w_2), x.shape[1]))
    return (rows, weights) if return_weights else rows


def penalty(a, scale="sum", present=None):
    """|| A A^T - I ||_F^2 of weights a (..., R, T), averaged over the axes before: a Tensor without axes.

    scale: "sum" as in the paper, "mean" divides by R^2 (the authors' code), "norm" takes the norm without the square (a
    common port). present (...), bool: the matrices that count, where some are padding. InputError for another scale,
    ShapeError for other shapes.
    """
    one_of("penalty", scale=(scale, ("sum", "mean", "norm")))
    if a.ndim < 2 or (present is not None and present.shape != a.shape[:-2]):
        raise ShapeError("penalty: expected a (..., R, T) and present (...), got a "
                         f"{a.shape}, present {None if present is None else present.shape}")
    R = a.shape[-2]
    gap = a @ a.transpose() - Tensor(np.eye(R), dtype=a.dtype, device=a.device)  # (..., R, R)
    each = gap.norm((-2, -1)) if scale == "norm" else (gap * gap).sum((-2, -1))  # (...)
    if scale == "mean":
        each = each * (1 / max(R * R, 1))
    if present is None:
        return each.sum() * (1 / max(each.size, 1))
    share = 1 / np.maximum(present.numpy().sum(), 1)
    return each.where(present, 0.0).sum() * Tensor(share, dtype=a.dtype, device=a.device)


def reference(x, w_1, w_2, mask=None):
    """One row of A at a time."""
    (B, T, D), R = x.shape, len(w_2)
    out = np.zeros((B, R, D))
    for b in range(B):
        for r in range(R):
            e = {}
            for t in range(T):
                if mask is None or mask[b, r if mask.shape[1] > 1 else 0, t]:
                    e[t] = np.exp(sum(w_2[r, a] * np.tanh(w_1[a] @ x[b, t]) for a in range(len(w_1))))
            for t in e:
                out[b, r] += e[t] / sum(e.values()) * x[b, t]
    return out


def example(rng):
    """Two sentences of 5 and 3 tokens, read by two rows."""
    return {"x": rng.normal(size=(2, 5, 3)), "w_1": rng.normal(size=(4, 3)), "w_2": rng.normal(size=(2, 4)),
            "mask": np.arange(5) < np.array([5, 3])[:, None, None]}
