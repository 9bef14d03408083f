"""A multi-layer perceptron, W_2 relu(W_1 x + b_1) + b_2, and cross-entropy: so small that the calls cost more than the work."""
from dataclasses import dataclass

import numpy as np

from ... import functional, nn
from ..row import Row
from . import core


@dataclass
class Sizes:
    """B rows, from I inputs over D hidden units to V classes."""
    B: int = 32
    I: int = 64  # noqa: E741
    D: int = 128
    V: int = 10


def weights(s):
    rng = np.random.default_rng(0)
    shapes = {"into.weight": (s.D, s.I), "into.bias": (s.D,), "out_of.weight": (s.V, s.D), "out_of.bias": (s.V,)}
    return {k: (rng.normal(size=shape) / shape[-1] ** 0.5).astype(np.float32) for k, shape in shapes.items()}


def batch(s):
    rng = np.random.default_rng(1)
    return rng.normal(size=(s.B, s.I)).astype(np.float32), rng.integers(0, s.V, s.B)


def floor(s):
    """Multiplications and additions: two products forward; backward one more for each matrix, and one for the hidden units."""
    return 2 * s.B * (2 * s.I * s.D + 3 * s.D * s.V)


class MLP(nn.Module, abstract=True):
    def __init__(self, s):
        self.into, self.out_of = nn.Linear(s.I, s.D), nn.Linear(s.D, s.V)

    def forward(self, x):
        return self.out_of(self.into(x).relu())


def ours(s, compiled=False):
    return core.ours(MLP(s), lambda model, x, y: functional.cross_entropy(model(x), y), weights(s), batch(s), compiled)


def torch(s, compiled=False):
    from torch.nn import Linear, Module
    from torch.nn.functional import cross_entropy, relu

    class MLP(Module):
        def __init__(self):
            super().__init__()
            self.into, self.out_of = Linear(s.I, s.D), Linear(s.D, s.V)

        def forward(self, x):
            return self.out_of(relu(self.into(x)))

    return core.torch(MLP(), lambda model, x, y: cross_entropy(model(x), y), weights(s), batch(s), compiled)


def jax(s):
    from jax import nn

    def loss(w, x, y):
        logits = nn.relu(x @ w["into.weight"].T + w["into.bias"]) @ w["out_of.weight"].T + w["out_of.bias"]
        return -nn.log_softmax(logits)[np.arange(s.B), y].mean()
    return core.jax(loss, weights(s), batch(s))


def autograd(s):
    from autograd import numpy as xp
    from autograd.scipy.special import logsumexp

    def loss(w, x, y):
        logits = xp.dot(xp.maximum(xp.dot(x, w["into.weight"].T) + w["into.bias"], 0), w["out_of.weight"].T) + w["out_of.bias"]
        return xp.mean(logsumexp(logits, axis=1) - logits[np.arange(s.B), y])
    return core.autograd(loss, weights(s), batch(s))


def tinygrad(s):
    def loss(w, x, y):
        logits = x.linear(w["into.weight"].T, w["into.bias"]).relu().linear(w["out_of.weight"].T, w["out_of.bias"])
        return logits.sparse_categorical_crossentropy(y)
    return core.tinygrad(loss, weights(s), batch(s))


def row(s):
    return Row("training step: MLP", f"B,I,D,V = {s.B},{s.I},{s.D},{s.V}", "training", core.sides(globals(), s),
               {"torch": 2, "jax": 1}, floor=floor(s), tolerance=core.TOLERANCE)


def rows():
    return [row(Sizes())]
