"""One small op, alone and in a chain: what an engine costs beside its arithmetic.

JAX and tinygrad stand here with the whole chain compiled, since nobody would run them op by op; of an elementwise chain that
leaves one loop. autograd records each op, as we and PyTorch do.
"""
import numpy as np

from .row import Row
from .sides import array, sides

ASKED = {(1, True): 3, (100, False): 1, (100, True): 0.9}  # (ops, backward)


def rows():
    return [_small(op, times, backward) for times, backward in ((1, False), (1, True), (100, False), (100, True))
            for op in ("add", "mul", "matmul")]


def _small(name, times, backward):
    def apply(x, w):
        for _ in range(times):
            x = x + w if name == "add" else x * w if name == "mul" else x @ w
        return x

    def numbers():
        rng = np.random.default_rng(0)
        w = _rotation(rng) if name == "matmul" else 1 + 0.01 * array(rng, 32, 64)
        return [array(rng, 32, 64), w], np.ones((32, 64), np.float32)

    chain, what = "alone" if times == 1 else f"chain of {times}", "forward + backward" if backward else "forward"
    asked = ASKED.get((times, backward))
    functions = {"ours": apply, "torch": lambda torch, x, w: apply(x, w), "array": lambda np, x, w: apply(x, w)}
    if times == 1:  # a chain of 100 is one kernel of 100 lines there, which takes a minute to compile
        functions["tinygrad"] = lambda tinygrad, x, w: apply(x, w)
    return Row(f"small {name}", f"(32, 64) {chain}, {what}", "small", sides(numbers, backward, **functions),
               {"torch": asked} if asked else {})


def _rotation(rng):
    """An orthogonal matrix, so that a chain of products neither grows nor fades."""
    return np.linalg.qr(rng.normal(size=(64, 64)))[0].astype(np.float32)
