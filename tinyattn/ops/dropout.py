r"""Dropout (Srivastava et al. 2014), inverted: what is kept is scaled up, so nothing changes at test time.

    y_i = x_i / (1 - p)   with probability 1 - p,   else 0

Whether element i is kept is decided by a hash of (seed, i), `draw` in `shared.py`: no generator, no mask in memory. The
way back, a fused kernel and its readable twin, and another device, all draw the same.
"""
import numpy as np
from numba import prange

from ..autograd import Op
from ..cuda import cuda_kernel, flat, zeros
from ..cuda.elementwise import first_of_two, in_pairs, second_of_two
from ..cuda.random import draw as cuda_draw
from ..cuda.random import seed_key as cuda_seed_key
from ..device import empty, kernel, launch, to_device
from .shared import draw, first_row, seed_key
from .softmax import check_float

CHUNKS = 32


def keep_limit(p):
    """An element is kept where its random number (32 bits) is at most this, for p < 1."""
    return max(round((1.0 - p) * 2**32), 1) - 1


class Dropout(Op):
    r"""y_i = x_i / (1 - p) where element i is kept, else 0. Each is kept with probability 1 - p, independently.

    x: any shape; seed: one whole number; element i is counted in C order. p = 1 gives zeros.
    """
    tex = r"\mathrm{{dropout}}({x})"

    def __init__(self, p=0.5):
        if not 0.0 <= p <= 1.0:
            raise ValueError(f"dropout: p is a probability in 0..1, got {p}")
        self.p = p

    def check(self, x, seed):
        check_float(self.name, x)
        if seed.dtype.kind not in "iu" or seed.size != 1:
            raise TypeError(f"{self.name}: expected one whole number as seed, got {seed.dtype} of shape {seed.shape}")

    def cpu(self, x, seed):
        self.check(x, seed)
        y = empty(x.shape, x.dtype)
        if self.p == 1:
            y.fill(0)
            return y
        scale = x.dtype.type(1.0 / (1.0 - self.p))
        args = (x.ravel(), int(seed.item()) & 0x7FFFFFFFFFFFFFFF, keep_limit(self.p), scale, y.reshape(-1))
        launch(x.size * 0.25, _dropout, (*args, 0, x.size), _dropout_chunks, args)
        return y

    def cuda(self, x, seed):
        self.check(x, seed)
        if self.p == 1:
            return zeros(x.shape, x.dtype)
        if seed.dtype != np.int64:
            seed = to_device(to_device(seed, "cpu").astype(np.int64), "cuda")
        y = empty(x.shape, x.dtype, "cuda")
        in_pairs(_dropout_cuda, y.size)(flat(x), flat(seed), keep_limit(self.p), x.dtype.type(1.0 / (1.0 - self.p)), flat(y))
        return y

    def grad_x(self, g, y, x, seed):
        return Dropout(self.p)(g, seed)

    def cpu_grad(self, g, y, x, seed):
        return self.cpu(g, seed), None

    def cuda_grad(self, g, y, x, seed):
        return self.cuda(g, seed), None

    def samples(rng):
        for p in (0.0, 0.4, 1.0):
            yield {"p": p}, (rng.normal(size=(3, 5)), np.array(7))
        yield {"p": 0.5}, (rng.normal(size=()), np.array(3))
        yield {"p": 0.5}, (rng.normal(size=(0, 2)), np.array(3))
        yield {"p": 0.5}, (np.array([np.inf, 1.0, -1e4]), np.array(1))


@kernel
def _dropout(x, seed, limit, scale, y, first, last):
    """For each element i: y[i] = scale * x[i] where random number i of the seed is at most `limit`, else 0."""
    key = seed_key(seed)
    top = np.uint32(limit)
    zero = x.dtype.type(0)
    from_x, to_y = x[first:last], y[first:last]
    for i in range(len(from_x)):
        to_y[i] = from_x[i] * scale if draw(key, first + i) <= top else zero


@kernel(parallel=True)
def _dropout_chunks(x, seed, limit, scale, y):
    for c in prange(CHUNKS):
        _dropout(x, seed, limit, scale, y, first_row(c, CHUNKS, len(x)), first_row(c + 1, CHUNKS, len(x)))


# ---------------------------------------------------------------------------------------------------------------------
# the same on a card, with two elements a thread: see cuda/elementwise.py
# ---------------------------------------------------------------------------------------------------------------------
@cuda_kernel("T[::1], int64[::1], int64, T, T[::1]")
def _dropout_cuda(x, seed, limit, scale, y):
    """Element i is kept if random number i of the seed is at most `limit`. The seed is read where it is, on the card."""
    i, n = first_of_two(), y.size
    if i < n:
        j = second_of_two(i, n)
        a, b = x[i], x[j]
        key, top, zero = cuda_seed_key(seed[0] & 0x7FFFFFFFFFFFFFFF), np.uint32(limit), x.dtype.type(0)
        y[i] = a * scale if cuda_draw(key, i) <= top else zero
        y[j] = b * scale if cuda_draw(key, j) <= top else zero
