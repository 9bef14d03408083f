"""The rule of softmax.

y = softmax(x) over the last axis. g is the gradient of y; give the gradient of x. y is all that is needed of x.
"""
import numpy as np

ORDER = 4
SKELETON = """
def softmax_rule(g, y):
    raise NotImplementedError
"""


def _softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def cases(rng):
    """The Jacobian dy_i / dx_j = y_i (1 if i = j else 0) - y_i y_j, written out and multiplied."""
    for shape in [(3,), (2, 4), (2, 3, 5), (4, 1), (0, 3)]:
        y, g = _softmax(rng.normal(size=shape)), rng.normal(size=shape)
        jacobian = y[..., :, None] * np.eye(shape[-1]) - y[..., :, None] * y[..., None, :]
        yield f"shape {shape}", (g, y), np.einsum("...i,...ij->...j", g, jacobian)
    y = np.array([[1.0, 0.0, 0.0], [0.0, 0.5, 0.5]])  # weights of exactly 0, as behind a mask
    g = rng.normal(size=y.shape)
    yield "weights of 0 and 1", (g, y), np.array([[0, 0, 0], [0, *((g[1, 1] - g[1, 2]) / 4 * np.array([1, -1]))]])


MISTAKES = [(lambda g, y: g * y * (1 - y), "That is the diagonal alone: every x_j moves every y_i, since all share one "
             "sum."),
            (lambda g, y: g * y, "The part that comes through the sum below the fraction is missing."),
            (lambda g, y: y * (g - g.sum(-1, keepdims=True)), "In the sum, each g_i is weighted by its y_i."),
            (lambda g, y: y * (g - (g * y).sum()), "The sum is over the last axis alone: each row is a softmax of its "
             "own.")]
