"""The layers that everything is built from: Linear, Embedding, Dropout, LayerNorm."""
import math

import numpy as np

from .. import functional
from ..ops.broadcast import ShapeError
from ..ops.matmul import Affine
from ..tensor import Tensor
from . import init
from .module import Module, Parameter, as_input


def size(who, what, n):
    """`n` if it is a whole number of at least 1, else ValueError."""
    if not isinstance(n, (int, np.integer)) or isinstance(n, bool) or n < 1:
        raise ValueError(f"{who}: expected {what} to be a whole number of at least 1, got {n!r}")
    return int(n)


class Linear(Module):
    r"""y = x W^T + b: x (..., inputs) to (..., outputs).

    weight (outputs, inputs), bias (outputs,) or None; both begin uniform in +-1/sqrt(inputs), as in PyTorch.
    ShapeError where the last axis of x is not `inputs`.
    """

    def __init__(self, inputs, outputs, bias=True):
        self.inputs, self.outputs = size("Linear", "inputs", inputs), size("Linear", "outputs", outputs)
        bound = 1 / math.sqrt(self.inputs)
        self.weight = Parameter(init.uniform((self.outputs, self.inputs), bound))
        self.bias = Parameter(init.uniform((self.outputs,), bound)) if bias else None

    def forward(self, x):
        return Affine()(as_input(x, self.weight), self.weight, self.bias)

    @staticmethod
    def example(rng):
        return Linear(3, 2), (Tensor(rng.normal(size=(2, 4, 3))),)


class Embedding(Module):
    """A table of V rows of width D: ids (...) to (..., D).

    weight (V, D) begins normal. The row `padding` begins as 0 and gets no gradient. IndexError for an id outside
    0 .. V-1.
    """

    def __init__(self, vocabulary, width, padding=None):
        self.vocabulary, self.width = size("Embedding", "vocabulary", vocabulary), size("Embedding", "width", width)
        if padding is not None and not 0 <= padding < self.vocabulary:
            raise ValueError(f"Embedding: expected padding to be an id 0 .. {self.vocabulary - 1}, got {padding}")
        self.padding = padding
        table = init.normal((self.vocabulary, self.width))
        if padding is not None:
            table[padding] = 0
        self.weight = Parameter(table)

    def forward(self, ids):
        return functional.embedding(self.weight, ids, self.padding)

    @staticmethod
    def example(rng):
        return Embedding(5, 3), (rng.integers(0, 5, size=(2, 4)),)


class Dropout(Module):
    """In training, each element becomes 0 with probability p and the rest is divided by 1 - p; else x itself."""

    def __init__(self, p=0.5):
        if not 0 <= p <= 1:
            raise ValueError(f"Dropout: expected a probability between 0 and 1, got {p}")
        self.p = p

    def forward(self, x):
        return functional.dropout(x, self.p, self.training)

    @staticmethod
    def example(rng):
        return Dropout(0.5).eval(), (Tensor(rng.normal(size=(2, 3))),)


class LayerNorm(Module):
    r"""(x - mean) / sqrt(variance + eps) * weight + bias, over the last axis: x (..., D) (Ba et al. 2016).

    weight (D,) begins as 1 and bias (D,) as 0; with affine=False there is neither.
    """

    def __init__(self, width, eps=1e-5, affine=True):
        self.width, self.eps = size("LayerNorm", "width", width), eps
        self.weight = Parameter(init.ones((self.width,))) if affine else None
        self.bias = Parameter(init.zeros((self.width,))) if affine else None

    def forward(self, x):
        if x.ndim == 0 or x.shape[-1] != self.width:
            raise ShapeError(f"LayerNorm: expected x (..., D) with D = {self.width}, got {x.shape}")
        return functional.layer_norm(x, self.weight, self.bias, self.eps)

    @staticmethod
    def example(rng):
        return LayerNorm(4), (Tensor(rng.normal(size=(2, 3, 4))),)
