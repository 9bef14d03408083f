"""A kernel: the log of a sum of exponentials in one pass.

x is (N, S); fill out (N,) with log(sum over s of exp(x_ns)). Read each element once only: keep the largest element so
far, m, and the sum l of exp(x - m) so far; when m grows, l is put right by a factor. This is the heart of flash
attention. Rows may hold 1e4, and -inf; a row of -inf alone, or of nothing, gives -inf.
"""
import math

import numpy as np

ORDER, KERNEL = 10, True
SKELETON = """
def online_softmax(x, out):
    raise NotImplementedError
"""


def _slow(x):
    out = np.full(len(x), -np.inf)
    for n, row in enumerate(x):
        top = max(row, default=-math.inf)
        if top > -math.inf:
            out[n] = top + math.log(math.fsum(math.exp(value - top) for value in row))
    return out


def cases(rng):
    for shape in [(2, 3), (1, 1), (3, 40), (2, 0)]:
        x = rng.normal(size=shape)
        yield f"shape {shape}", (x,), _slow(x)
    x = np.sort(rng.normal(size=(2, 9)) * 300, axis=1)
    yield "rising elements", (x,), _slow(x)
    yield "falling elements", (np.ascontiguousarray(x[:, ::-1]),), _slow(x)
    x = np.array([[-np.inf, 0.0, 1e4], [-np.inf, -np.inf, -np.inf]])
    yield "-inf, and a row of nothing else", (x,), _slow(x)


def _forgets(x, out):
    for n in range(len(x)):
        m, total = -np.inf, 0.0
        for value in x[n]:
            if value > m:
                m = value
            total += math.exp(value - m) if m > -np.inf else 0.0
        out[n] = m + math.log(total) if total > 0 else -np.inf


MISTAKES = [(_forgets, "When the largest element grows from m to m', what was summed so far must be multiplied by "
             "exp(m - m').")]
