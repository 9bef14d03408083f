"""The rule of broadcasting: a gradient larger than its tensor is summed.

x of shape `shape` was stretched, as NumPy does it, to the shape of g: x_i was used several times, and what comes back
along all its uses adds up. Give the gradient of x, an array of shape `shape`.
"""
import numpy as np

ORDER = 2
SKELETON = """
def broadcast_rule(g, shape):
    raise NotImplementedError
"""


def cases(rng):
    for shape, whole in [((3,), (2, 3)), ((2, 1), (2, 3)), ((1,), (4,)), ((), (2, 2)), ((2, 3), (2, 3)),
                         ((1, 3, 1), (2, 5, 3, 4)), ((0, 1), (0, 3)), ((1, 2), (0, 2))]:
        g, total = rng.normal(size=whole), np.zeros(shape)
        source = np.broadcast_to(np.arange(total.size).reshape(shape), whole)
        np.add.at(total.reshape(-1), source.ravel(), g.ravel())  # each use, one by one
        yield f"{shape} stretched to {whole}", (g, shape), total


def _mean(g, shape):
    total = g.sum(tuple(range(g.ndim - len(shape))))
    axes = tuple(i for i, n in enumerate(shape) if n == 1 and total.shape[i] != 1)
    uses = g.size / max(total.sum(axes, keepdims=True).size, 1)
    return total.sum(axes, keepdims=True) / max(uses, 1)


MISTAKES = [(_mean, "That is the mean over the uses; each use adds its whole part.")]
