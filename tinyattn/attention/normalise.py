r"""From scores to weights: the normalisers that every mechanism takes by name, all over the last axis, the keys.

    softmax     alpha_s = e^{e_s} / sum_j e^{e_j}
    sparsemax   the point of the simplex nearest to e: alpha_s = max(e_s - tau, 0)            Martins and Astudillo 2016
    entmax15    half way between the two: alpha_s = max(e_s / 2 - tau, 0)^2                    Peters et al. 2019
    raw         alpha_s = e_s / sum_j e_j, for scores that are not negative                    Hu 2018 eq. 2, as printed
    sigmoid     alpha_s = 1 / (1 + e^{-e_s}), each key by itself: nothing is shared out

A masked key gets exactly 0, and a query that may attend to nothing gets 0 throughout.
"""
import numpy as np

from ..ops.broadcast import ShapeError
from ..ops.sparsemax import Entmax15, Sparsemax
from ..tensor import _mask
from .shapes import one_of


def softmax(scores, mask=None):
    return scores.softmax(-1, mask)


def sparsemax(scores, mask=None):
    return Sparsemax()(scores, _mask(mask, scores.device))


def entmax15(scores, mask=None):
    return Entmax15()(scores, _mask(mask, scores.device))


def raw(scores, mask=None):
    """ValueError if a score that counts is negative: a weight would be negative or above 1, and the sum could be 0. On a card,
    where looking would be waiting, its query's weights are nan."""
    allowed = _zero_masked("raw", scores, mask)
    if scores.device != "cpu":
        allowed = allowed.where(allowed.detach() >= 0, np.nan)
    elif allowed.size and float(allowed.numpy().min()) < 0:
        raise ValueError("raw: scores must not be negative (those of `mlp` are between 0 and 1), got "
                         f"{allowed.numpy().min():g}")
    total = allowed.sum(-1, keepdims=True)                                 # (..., T, 1)
    return allowed / total.where(total != 0, 1.0)


def sigmoid(scores, mask=None):
    return _zero_masked("sigmoid", scores.sigmoid(), mask)


def _zero_masked(name, x, mask):
    """x (..., T, S), 0 where it is masked."""
    mask = _mask(mask, x.device)
    if mask is None:
        return x
    if mask.ndim > x.ndim or any(m not in (1, n) for m, n in zip(mask.shape[::-1], x.shape[::-1], strict=False)):
        raise ShapeError(f"{name}: the mask of shape {mask.shape} does not broadcast to the scores of shape {x.shape}")
    return x.where(mask, 0.0)


NORMALISERS = {f.__name__: f for f in (softmax, sparsemax, entmax15, raw, sigmoid)}


def normaliser(name):
    """The function (scores, mask) -> weights of this name; a function is given back as it is. InputError for another
    name."""
    if callable(name):
        return name
    one_of("attention", normalise=(name, NORMALISERS))
    return NORMALISERS[name]
