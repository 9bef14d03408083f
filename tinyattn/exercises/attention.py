"""Attention, all of it.

q (T, D), k (S, D), v (S, E), mask (T, S) bool, True = may be attended to. Scores are q_t . k_s / sqrt(D). Give the
output (T, E) and the weights (T, S), as a tuple; a query that may attend to nothing gets 0.
"""
import numpy as np

from .masked_softmax import softmax, weights_of

ORDER = 8
SKELETON = """
def attention(q, k, v, mask):
    raise NotImplementedError
"""


def _right(q, k, v, mask):
    scores = np.array([[sum(a * b for a, b in zip(query, key)) / q.shape[1] ** 0.5 for key in k] for query in q])
    w = weights_of(scores.reshape(mask.shape), mask)
    out = np.zeros((len(q), v.shape[1]))
    for t, s in np.ndindex(w.shape):
        out[t] += w[t, s] * v[s]
    return out, w


def cases(rng):
    for T, S, D, E in [(2, 3, 4, 5), (1, 1, 1, 1), (3, 3, 2, 2), (2, 5, 3, 1)]:
        q, k, v = rng.normal(size=(T, D)), rng.normal(size=(S, D)), rng.normal(size=(S, E))
        mask = rng.random((T, S)) < 0.7
        yield f"T, S, D, E = {T}, {S}, {D}, {E}", (q, k, v, mask), _right(q, k, v, mask)
    mask = np.array([[True, True, False], [False, False, False]])
    q, k, v = rng.normal(size=(2, 4)), rng.normal(size=(3, 4)), rng.normal(size=(3, 2))
    yield "a query that may attend to nothing", (q, k, v, mask), _right(q, k, v, mask)
    yield "large scores", (200 * q, 200 * k, v, mask), _right(200 * q, 200 * k, v, mask)


def _by(scale, masked=True):
    def wrong(q, k, v, mask):
        with np.errstate(all="ignore"):
            scores = scale(q) * q @ k.T
            w = np.nan_to_num(softmax(np.where(mask, scores, -np.inf))) if masked else softmax(scores)
        return w @ v, w
    return wrong


MISTAKES = [(_by(lambda q: 1.0), "The scores were not divided by sqrt(D)."),
            (_by(lambda q: 1 / q.shape[1]), "The scores were divided by D, not by its root."),
            (_by(lambda q: q.shape[1] ** -0.5, masked=False), "The mask was left out.")]
