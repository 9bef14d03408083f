"""A kernel: softmax over the rows of a matrix, as a loop that Numba compiles.

x is (N, S); fill `out`, of the same shape. Two passes over a row: the largest element, then exponentials of the
differences and their sum; then divide. Rows may hold 1e4, and -inf; a row of -inf alone gives 0. `out` holds anything
before.
"""
import math

import numpy as np

ORDER, KERNEL = 9, True
SKELETON = """
def softmax_kernel(x, out):
    raise NotImplementedError
"""


def _slow(x):
    out = np.zeros(x.shape)
    for n, row in enumerate(x):
        top = max(row, default=-math.inf)
        if top > -math.inf:
            out[n] = [math.exp(value - top) for value in row]
            out[n] /= math.fsum(out[n])
    return out


def cases(rng):
    for shape in [(2, 3), (1, 1), (3, 17), (0, 4)]:
        x = rng.normal(size=shape)
        yield f"shape {shape}", (x,), _slow(x)
    x = 1e4 * rng.normal(size=(3, 5))
    yield "elements of 1e4", (x,), _slow(x)
    x = np.array([[0.0, -np.inf, 1.0], [-np.inf, -np.inf, -np.inf]])
    yield "-inf, and a row of nothing else", (x,), _slow(x)


def _naive(x, out):
    for n in range(x.shape[0]):
        total = 0.0
        for s in range(x.shape[1]):
            total += np.exp(x[n, s])
        for s in range(x.shape[1]):
            out[n, s] = np.exp(x[n, s]) / total


def _whole(x, out):
    top = -np.inf
    for n in range(x.shape[0]):
        for s in range(x.shape[1]):
            top = max(top, x[n, s])
    for n in range(x.shape[0]):
        total = 0.0
        for s in range(x.shape[1]):
            out[n, s] = np.exp(x[n, s] - top)
            total += out[n, s]
        for s in range(x.shape[1]):
            out[n, s] = out[n, s] / total


MISTAKES = [(_naive, "The largest element was not taken away first, so exp runs over."),
            (_whole, "The largest element of the whole matrix was taken, not that of each row.")]
