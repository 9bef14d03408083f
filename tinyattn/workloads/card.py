"""Rows that only a card has: what its memory bounds, as a share of a copy; products; what a launch and an array cost.

    moved = bytes that must be read + bytes that must be written,  each array once            share = copy's time / ours

The copy is the driver's own, from the card's memory to the card's memory, of as many bytes in all (half of them read, half
written), timed in turn with ours. More is moved than a card's second cache can hold (50 MB on an H100), so both are bound by
memory. What a kernel reads twice, or keeps for the way back, does not count as moved: it lowers the share.

A kernel is to be timed, not how the driver finds memory: each call gets the arrays of the call before (`again`), as a
captured step does. Allocation has rows of its own. PyTorch, where it is a peer, takes memory from its pool.
"""
import json
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from .. import device
from .. import functional as F
from ..autograd import grad
from ..compiler.card import fresh, plan_memory
from ..cuda import add_to, zeros
from ..tensor import Tensor
from .optimiser import adam
from .row import COPY, Row
from .sides import fetched, on_card, sides

SHARE = 0.8  # of the bandwidth of a copy: what is asked
FLOAT, ID = 4, 8  # bytes


@dataclass
class Sizes:
    """numbers: of each large array; widths: of its rows; classes: V of cross-entropy; table: V, D and ids of embedding;
    matrix: what is transposed; parameters: of Adam's step, in four tensors; products: n of (n, n) @ (n, n); small: what
    a launch is timed with; allocated: bytes of an array."""
    numbers: int = 2**25
    widths: tuple = (64, 1000, 5000)
    classes: int = 5000
    table: tuple = (65_536, 1024, 65_536)
    matrix: tuple = (8192, 4096)
    parameters: int = 10_000_000
    products: tuple = (512, 1024, 2048, 4096)
    small: int = 32
    allocated: tuple = (2**20, 2**26)


def rows(s=None):
    s = s or Sizes()
    shapes = [(s.numbers // d, d) for d in s.widths]
    return [_copy(s.numbers), *_elementwise(s.numbers, s.widths[-1]), *_sums(*shapes[-1]), _transpose(*s.matrix),
            *[row for make in (_softmax, _layer_norm) for shape in shapes for row in make(*shape)],
            *_cross_entropy(s.numbers // s.classes, s.classes), *_embedding(*s.table), *_dropout(s.numbers),
            _adam(s.parameters), *[_product(n) for n in s.products], _launch(s.small), _small_op(s.small), _sending(),
            *[_allocation(size, pool) for size in s.allocated for pool in (False, True)]]


# ---------------------------------------------------------------------------------------------------------------------
# how a row becomes calls
# ---------------------------------------------------------------------------------------------------------------------
class Kept:
    """The arrays that a call asked for, in their order, to be given to it again at each call. See `device.planned`."""

    def __init__(self):
        self.arrays, self.number = [], 0

    def __call__(self, shape, dtype):
        """On the host."""
        return np.empty(shape, dtype)

    def on_card(self, shape, dtype):
        if self.number == len(self.arrays):
            self.arrays.append(fresh(shape, dtype))
        array = self.arrays[self.number]
        if array.shape != shape or array.dtype != dtype:
            array = self.arrays[self.number] = fresh(shape, dtype)
        self.number += 1
        return array


def again(call):
    """The same call, which on a card is given the memory of the time before: its old results are written over."""
    if not on_card():
        return call
    plan_memory()
    call()  # what the package makes at a first call and keeps must have memory of its own
    kept, place = Kept(), device.planned

    def run():
        place.take, kept.number = kept, 0
        try:
            return call()
        finally:
            place.take = None
    return run


def copying(moved):
    """A call that copies, on the card, half as many bytes as are moved: each is read and written."""
    source, target = (zeros((max(moved // (2 * FLOAT), 1),), np.float32) for _ in range(2))
    return lambda: target.copy_to_device(source)


def _ours(f, numbers, gradient):
    arrays, g = numbers()
    inputs = [Tensor(a, requires_grad=gradient and a.dtype.kind == "f") for a in arrays]
    if not gradient:
        return again(lambda: f(*inputs))
    y, g, leaves = f(*inputs), Tensor(g), [x for x in inputs if x.requires_grad]
    return again(lambda: grad(y, leaves, g))


def _torch(f, numbers, gradient):
    import torch
    arrays, g = numbers()
    inputs = [torch.tensor(a, requires_grad=gradient and a.dtype.kind == "f") for a in arrays]
    if not gradient:
        return lambda: f(torch, *inputs)
    y, g, leaves = f(torch, *inputs), torch.tensor(g), [x for x in inputs if x.requires_grad]
    return lambda: torch.autograd.grad(y, leaves, g, retain_graph=True)


def _bound(name, sizes, moved, numbers, ours, torch, gradient=False):
    """A row that memory bounds; numbers() gives the inputs and the gradient at the output, for the way back alone."""
    name = f"{name} gradient" if gradient else name
    made = {"ours": partial(_ours, ours, numbers, gradient), "torch": partial(_torch, torch, numbers, gradient)}
    return Row(name, sizes, "card", made, moved=moved, card={COPY: SHARE})


def _numbers(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


# ---------------------------------------------------------------------------------------------------------------------
# bound by memory
# ---------------------------------------------------------------------------------------------------------------------
def _copy(n):
    """The yardstick itself: n numbers read, n written."""
    def ours():
        source, target = Tensor(_numbers(0, n)), zeros((n,), np.float32)

        def run():
            target.copy_to_device(source.array)
            return target
        return run

    def torch():
        import torch
        source, target = torch.tensor(_numbers(0, n)), torch.zeros(n)
        return lambda: target.copy_(source)
    return Row("copy", f"({n},)", "card", {"ours": ours, "torch": torch}, moved=2 * n * FLOAT)


def _elementwise(n, d):
    """Of the sum of two arrays three are moved; of their product with a row, and of exp, two."""
    rows = n // d
    return [_bound("add", f"({n},)", 3 * n * FLOAT, lambda: ([_numbers(i, n) for i in (0, 1)], None),
                   lambda x, y: x + y, lambda torch, x, y: x + y),
            _bound("multiply by a row", f"({rows}, {d})", (2 * rows * d + d) * FLOAT,
                   lambda: ([_numbers(0, rows, d), _numbers(1, d)], None), lambda x, w: x * w, lambda torch, x, w: x * w),
            _bound("exp", f"({n},)", 2 * n * FLOAT, lambda: ([_numbers(0, n)], None), lambda x: x.exp(), lambda torch, x: x.exp())]


def _sums(n, d):
    """All is read, and one number a row, or a column, written."""
    return [_bound(f"sum over axis {axis}", f"({n}, {d})", (n * d + (d, n)[axis]) * FLOAT, lambda: ([_numbers(0, n, d)], None),
                   lambda x, axis=axis: x.sum(axis=axis), lambda torch, x, axis=axis: x.sum(axis)) for axis in (0, 1)]


def _transpose(n, d):
    """Read and written once; ours is a copy on a card by itself."""
    return _bound("transpose", f"({n}, {d})", 2 * n * d * FLOAT, lambda: ([_numbers(0, n, d)], None),
                  lambda x: x.T, lambda torch, x: x.T.contiguous())


def _softmax(n, d):
    """Forward: x read, y written. Backward: y and g read, dx written."""
    return [_bound("softmax", f"({n}, {d})", (2 + back) * n * d * FLOAT, lambda: ([_numbers(0, n, d)], _numbers(1, n, d)),
                   lambda x: x.softmax(), lambda torch, x: x.softmax(-1), back) for back in (False, True)]


def _layer_norm(n, d):
    """Forward: x, w and b read, y written. Backward: x, g and w read, dx, dw and db written."""
    def numbers():
        return [_numbers(0, n, d), 1 + _numbers(1, d) / 10, _numbers(2, d)], _numbers(3, n, d)

    return [_bound("layer norm", f"({n}, {d})", ((2 + back) * n * d + (2 + back) * d) * FLOAT, numbers, F.layer_norm,
                   lambda torch, x, w, b: torch.nn.functional.layer_norm(x, (d,), w, b), back) for back in (False, True)]


def _cross_entropy(n, v):
    """Forward: x and the targets read, a number written. Backward: both read, dx written."""
    def numbers():
        return [_numbers(0, n, v), np.random.default_rng(1).integers(0, v, n)], np.float32(1)

    return [_bound("cross-entropy", f"({n}, {v})", (1 + back) * n * v * FLOAT + n * ID + (not back) * FLOAT, numbers, F.cross_entropy,
                   lambda torch, x, targets: torch.nn.functional.cross_entropy(x, targets), back) for back in (False, True)]


def _embedding(v, d, n):
    """Forward: the ids and each row that one of them names read once, n rows written. Backward: ids and n rows read, the
    whole table written, zeros and sums."""
    ids = np.random.default_rng(1).integers(0, v, n)
    moved = (len(np.unique(ids)) + n) * d * FLOAT + n * ID, (n + v) * d * FLOAT + n * ID
    return [_bound("embedding", f"({v}, {d}), {n} ids", moved[back], lambda: ([_numbers(0, v, d), ids], _numbers(2, n, d)),
                   F.embedding, lambda torch, w, ids: torch.nn.functional.embedding(ids, w), back) for back in (False, True)]


def _dropout(n, p=0.1):
    """Read and written once, either way: what is kept can be drawn anew. Each engine draws its own; compared are the share of
    what is kept and the factor."""
    def facts(make):
        call = make()

        def run():
            result = call()
            return lambda: _kept(fetched(result)[0])
        return run

    def numbers():
        return [np.ones(n, np.float32)], np.ones(n, np.float32)

    found = [_bound("dropout", f"({n},), p = {p}", 2 * n * FLOAT, numbers, lambda x: F.dropout(x, p, True),
                    lambda torch, x: torch.nn.functional.dropout(x, p), back) for back in (False, True)]
    return [replace(row, tolerance=0.02, sides={side: partial(facts, make) for side, make in row.sides.items()}) for row in found]


def _kept(y):
    """The share of what dropout has left, and the smallest and largest of it."""
    left = y[y != 0]
    return np.float32(len(left) / len(y)), left.min(initial=np.inf), left.max(initial=0)


def _adam(n):
    """The weights, the gradient and two memories read; all but the gradient written."""
    row = adam("Adam", [(4, n // 16)] * 4)
    return replace(row, group="card", sizes=f"4 tensors, {n // 16 * 16:,} numbers", moved=7 * (n // 16 * 16) * FLOAT,
                   card={COPY: SHARE})


# ---------------------------------------------------------------------------------------------------------------------
# products, launches, memory
# ---------------------------------------------------------------------------------------------------------------------
def _product(n):
    made = {"ours": partial(_ours, lambda a, b: a @ b, lambda: ([_numbers(0, n, n), _numbers(1, n, n)], None), False),
            "torch": partial(_torch, lambda torch, a, b: a @ b, lambda: ([_numbers(0, n, n), _numbers(1, n, n)], None), False)}
    return Row("product", f"({n}, {n}) @ ({n}, {n})", "card", made, floor=2 * n**3)


def _launch(n):
    """One kernel, nothing else: a += b in place."""
    def ours():
        total, part = zeros((n,), np.float32), Tensor(_numbers(0, n)).array

        def run():
            add_to(total, part)
            return total
        return run

    def torch():
        import torch
        total, part = torch.zeros(n), torch.tensor(_numbers(0, n))
        return lambda: total.add_(part)
    return Row("launch", f"({n},) += ({n},)", "card", {"ours": ours, "torch": torch})


def _small_op(n):
    """One op of the engine, its result in new memory, which is the driver's or the pool's as the environment says."""
    return Row("small op", f"({n},) + ({n},)", "card", sides(
        lambda: ([_numbers(0, n), _numbers(1, n)], None), False, ours=lambda x, y: x + y, torch=lambda torch, x, y: x + y))


def _sending():
    """A number of the host as a Tensor on the card."""
    def torch():
        import torch
        where = "cuda" if on_card() else "cpu"
        return lambda: torch.tensor(1.5, device=where)
    return Row("sending a number", "float32", "card", {"ours": lambda: lambda: Tensor(1.5), "torch": torch})


def _allocation(size, pool):
    """An array of zeros that is let go at once, in a process of its own, since the pool is chosen before Numba starts."""
    def ours():
        return lambda: zeros((size // FLOAT,), np.float32)

    return Row("allocation", f"{size:,} bytes, {'from the pool' if pool else 'from the driver'}", "card", {"ours": ours},
               apart=partial(allocation, size, pool))


def allocation(size, pool):
    """A dictionary of times, measured in a new process with or without the pool. RuntimeError where that fails."""
    package = Path(__file__).resolve().parents[2]
    environment = os.environ | {"TINYATTN_CUDA_POOL": str(int(pool)), "PYTHONPATH": os.pathsep.join(
        [str(package), *filter(None, [os.environ.get("PYTHONPATH")])])}
    try:
        done = subprocess.run([sys.executable, "-m", "tinyattn.workloads.allocation", str(size)], env=environment, text=True,
                              capture_output=True, timeout=300)
    except subprocess.TimeoutExpired:
        raise RuntimeError("no answer within 300 s") from None
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no word"])[-1])
    return json.loads(done.stdout)
