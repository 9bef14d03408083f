"""First values of parameters: arrays of a shape, drawn from the package's generator, in the default dtype.

Matrices are (out, in), as `Linear` has them.
"""
import math

import numpy as np

from .. import random
from ..tensor import get_default_dtype


def zeros(shape):
    """All 0."""
    return np.zeros(shape, get_default_dtype())


def ones(shape):
    """All 1."""
    return np.ones(shape, get_default_dtype())


def uniform(shape, bound):
    """Spread evenly over -bound .. bound."""
    return random.generator().uniform(-bound, bound, shape).astype(get_default_dtype())


def normal(shape, std=1.0, mean=0.0):
    """Normal numbers."""
    return random.generator().normal(mean, std, shape).astype(get_default_dtype())


def xavier(shape):
    """Uniform with bound sqrt(6 / (in + out)): keeps the sizes of values and gradients alike (Glorot & Bengio 2010)."""
    if len(shape) != 2:
        raise ValueError(f"xavier: expected a shape (out, in), got {tuple(shape)}")
    return uniform(shape, math.sqrt(6 / max(1, sum(shape))))


def orthogonal(shape, gates=1):
    """Rows (or columns, where there are more rows) of length 1, at right angles to each other (Saxe et al. 2014).

    shape (out, in). With `gates` the matrix is that many orthogonal blocks (out / gates, in), one below the other, as
    weight_hh of a GRU (3 gates) or LSTM (4) wants it.
    """
    if len(shape) != 2 or shape[0] % gates:
        raise ValueError(f"orthogonal: expected a shape ({gates} * n, in), got {tuple(shape)}")
    rows, columns = shape[0] // gates, shape[1]

    def block():
        q, r = np.linalg.qr(random.generator().normal(size=(max(rows, columns), min(rows, columns))))
        q = q * np.where(np.diag(r) < 0, -1.0, 1.0)  # without it the signs would lean to one side
        return q if rows >= columns else q.T

    return np.concatenate([block() for _ in range(gates)]).astype(get_default_dtype())
