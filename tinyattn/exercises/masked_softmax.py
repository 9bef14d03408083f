"""Softmax behind a mask.

scores (..., T, S) and mask (..., T, S), bool, True = may be attended to. Give the weights: masked places have exactly
0, the others of a row sum to 1, and a row that may attend to nothing is 0 throughout (not nan). Scores may be as large
as 1e4, and what stands at a masked place may even be larger.
"""
import math

import numpy as np

ORDER = 7
SKELETON = """
def masked_softmax(scores, mask):
    raise NotImplementedError
"""


def weights_of(scores, mask):
    out = np.zeros(scores.shape)
    for at in np.ndindex(scores.shape[:-1]):
        open_ = [s for s in range(scores.shape[-1]) if mask[at][s]]
        if open_:
            top = max(scores[at][s] for s in open_)
            total = math.fsum(math.exp(scores[at][s] - top) for s in open_)
            for s in open_:
                out[at][s] = math.exp(scores[at][s] - top) / total
    return out


def cases(rng):
    for shape in [(2, 3), (2, 2, 4), (1, 1), (0, 2)]:
        scores = rng.normal(size=shape)
        yield f"everything allowed, {shape}", (scores, np.ones(shape, bool)), weights_of(scores, np.ones(shape, bool))
        mask = rng.random(shape) < 0.6
        yield f"random mask, {shape}", (scores, mask), weights_of(scores, mask)
    scores, mask = rng.normal(size=(3, 4)), np.array([[1, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 1]], bool)
    yield "a row that may attend to nothing", (scores, mask), weights_of(scores, mask)
    yield "scores of 1e4", (1e4 * scores, mask), weights_of(1e4 * scores, mask)
    high = np.where(mask, scores, 1e5)
    yield "the largest score is masked", (high, mask), weights_of(high, mask)


def softmax(x):
    with np.errstate(all="ignore"):
        e = np.exp(x - x.max(-1, keepdims=True, initial=-np.inf))
        return e / e.sum(-1, keepdims=True)


MISTAKES = [(lambda scores, mask: softmax(np.where(mask, scores, -np.inf)), "Right but for rows that may attend to "
             "nothing: there 0 / 0 is nan, and 0 is wanted."),
            (lambda scores, mask: softmax(np.where(mask, scores, -1e9)), "A large negative number in place of -inf: "
             "a row that may attend to nothing then attends to everything."),
            (lambda scores, mask: softmax(scores) * mask, "Weights were put to 0 after the softmax: the rest no longer "
             "sums to 1."),
            (lambda scores, mask: softmax(scores * mask), "A score of 0 is not a weight of 0: exp(0) is 1.")]
