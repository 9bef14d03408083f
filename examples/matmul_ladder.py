"""A ladder of kernels: one matrix product c = a b, four times, each faster than the one before.

    python examples/matmul_ladder.py [N]

1. naive     for i, j: c_ij = sum over k of a_ik b_kj. The inner loop jumps through b by whole rows: each step is another
             cache line, and nothing can be vectorised.
2. reordered for i, k, j: a row of c grows by a_ik times a row of b. The same arithmetic; now all memory is read in order.
3. blocked   4 rows of a and 4 steps of k at once: each element of b that was loaded is used four times, each element of
             c is loaded and stored a quarter as often.
4. the product that the package uses (`ops/matmul.py`): a tile of sums is held in registers, tiles in parallel.

The numbers are printed as they are measured; the values of all four are compared first.
"""
import sys
import time

import numpy as np

from tinyattn.device import kernel, set_num_threads
from tinyattn.ops.matmul import matmul


@kernel
def naive(a, b, c):
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            total = a.dtype.type(0)
            for k in range(a.shape[1]):
                total += a[i, k] * b[k, j]
            c[i, j] = total


@kernel
def reordered(a, b, c):
    c[:] = 0
    for i in range(a.shape[0]):
        for k in range(a.shape[1]):
            left = a[i, k]
            for j in range(b.shape[1]):
                c[i, j] += left * b[k, j]


@kernel
def blocked(a, b, c):
    """Sizes must be multiples of 4: the rungs are for reading, the package's product takes any."""
    c[:] = 0
    for i in range(0, a.shape[0], 4):
        for k in range(0, a.shape[1], 4):
            x, y0, y1, y2, y3 = a[i:i + 4, k:k + 4], b[k], b[k + 1], b[k + 2], b[k + 3]
            for r in range(4):
                x0, x1, x2, x3, out = x[r, 0], x[r, 1], x[r, 2], x[r, 3], c[i + r]
                for j in range(b.shape[1]):
                    out[j] += x0 * y0[j] + x1 * y1[j] + x2 * y2[j] + x3 * y3[j]


def seconds(call):
    call()
    times = []
    for _ in range(5):
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return min(times)


def main(n=256):
    set_num_threads(1)
    rng = np.random.default_rng(0)
    a, b, c = (rng.normal(size=(n, n)).astype(np.float32) for _ in range(3))
    right = a.astype(np.float64) @ b.astype(np.float64)
    steps = [("naive", lambda: naive(a, b, c)), ("reordered", lambda: reordered(a, b, c)),
             ("blocked", lambda: blocked(a, b, c)), ("package", lambda: c.__setitem__(..., matmul(a, b)))]
    first = None
    for name, call in steps:
        took = seconds(call)
        error = np.abs(c - right).max() / np.abs(right).max()
        assert error < 1e-5, (name, error)
        first = first or took
        print(f"{name:10} {took * 1e3:8.2f} ms   {2 * n**3 / took / 1e9:6.1f} GFLOP/s   {first / took:5.1f} x the first")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 256)
