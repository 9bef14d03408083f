"""The rule of layer norm, for its input.

    m = mean of x        s = sqrt(mean of (x - m)^2 + eps)        y = (x - m) / s        over the last axis

g is the gradient of y; give the gradient of x. Mean and s depend on x too.
"""
import numpy as np

ORDER = 5
SKELETON = """
def layer_norm_rule(g, x, eps):
    raise NotImplementedError
"""


def _norm(x, eps):
    m = x.mean(-1, keepdims=True)
    return (x - m) / np.sqrt(((x - m) ** 2).mean(-1, keepdims=True) + eps)


def _slopes(g, x, eps):
    """By central differences in complex-free float64: each x_i moved alone."""
    out, h = np.zeros(x.shape), 1e-5
    for at in np.ndindex(x.shape):
        step = np.zeros(x.shape)
        step[at] = h
        near = (_norm(x + step, eps) - _norm(x - step, eps)) / (2 * h)
        far = (_norm(x + 2 * step, eps) - _norm(x - 2 * step, eps)) / (4 * h)
        out[at] = (g * (4 * near - far) / 3).sum()
    return out


def cases(rng):
    for shape, eps in [((4,), 1e-5), ((2, 3), 1e-5), ((2, 2, 5), 0.1), ((0, 3), 1e-5)]:
        x, g = rng.normal(size=shape), rng.normal(size=shape)
        yield f"shape {shape}, eps {eps:g}", (g, x, eps), _slopes(g, x, eps)
    x, g = np.full((2, 3), 7.0), rng.normal(size=(2, 3))
    yield "equal elements", (g, x, 1e-2), (g - g.mean(-1, keepdims=True)) / 0.1


def _scale(x, eps):
    return np.sqrt(((x - x.mean(-1, keepdims=True)) ** 2).mean(-1, keepdims=True) + eps)


MISTAKES = [(lambda g, x, eps: g / _scale(x, eps), "Mean and s were taken for constants."),
            (lambda g, x, eps: (g - g.mean(-1, keepdims=True)) / _scale(x, eps), "The part through s is missing."),
            (lambda g, x, eps: (g - _norm(x, eps) * (g * _norm(x, eps)).mean(-1, keepdims=True)) / _scale(x, eps),
             "The part through the mean is missing.")]
