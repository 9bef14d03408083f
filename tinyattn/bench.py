"""Benchmarks: our time for a workload, and the ratio to a peer's, both measured in one run.

A row is one workload: a function that makes ours (a call to time) and one that makes the peer's, the same work on the same
numbers. The two run in turn, A B A B ..., so that a machine that slows down slows both; medians are compared. The peer is
then timed alone: if that differs from its time in turn by more than 5%, the two disturb each other (thread pools do) and
the row is marked. An absolute time means little on a shared machine; the ratio is what to read.
"""
import statistics
import time
from dataclasses import dataclass

import numpy as np

from .device import get_num_threads
from .errors import InputError
from .functional import additive_scores, cross_entropy, layer_norm
from .nn import GRU, LSTM, RNN, Linear
from .tensor import Tensor

ROUNDS = 15       # timings of each side
SHORTEST = 0.004  # seconds that one timing lasts at least: short calls are repeated


@dataclass
class Row:
    """One workload: `ours()` and `torch()` return a function to time."""
    name: str
    sizes: str
    ours: object
    torch: object
    asked: float | None = None


def _array(rng, *shape):
    return rng.normal(size=shape).astype(np.float32)


def _small(name, times, backward, asked):
    """One elementwise op or product on (32, 64), recorded; alone or in a chain."""
    def apply(x, w):
        for _ in range(times):
            x = x + w if name == "add" else x * w if name == "mul" else x @ w
        return x

    def numbers():
        rng = np.random.default_rng(0)
        w = np.eye(64, dtype=np.float32) if name == "matmul" else 1 + 0.01 * _array(rng, 32, 64)
        return _array(rng, 32, 64), w, np.ones((32, 64), np.float32)

    def ours():
        x, w, g = (Tensor(a, requires_grad=i < 2) for i, a in enumerate(numbers()))
        return _both_ways(lambda: apply(x, w), g, (x, w), backward)

    def torch():
        import torch
        x, w, g = (torch.tensor(a, requires_grad=i < 2) for i, a in enumerate(numbers()))
        return _both_ways(lambda: apply(x, w), g, (x, w), backward)

    what = "forward + backward" if backward else "forward"
    return Row(f"small {name}", f"(32, 64) {'alone' if times == 1 else f'chain of {times}'}, {what}", ours, torch, asked)


def _both_ways(forward, g, leaves, backward=True):
    if not backward:
        return forward

    def run():
        for leaf in leaves:
            leaf.grad = None
        out = forward()
        (out[0] if isinstance(out, tuple) else out).backward(g)
    return run


def _additive(b, t, s, d, asked):
    def numbers():
        rng = np.random.default_rng(0)
        return _array(rng, b, t, d), _array(rng, b, s, d), _array(rng, d), _array(rng, b, t, s)

    def ours():
        q, k, v = (Tensor(a, requires_grad=True) for a in numbers()[:3])
        return _both_ways(lambda: additive_scores(q, k, v), Tensor(numbers()[3]), (q, k, v))

    def torch():
        import torch
        q, k, v = (torch.tensor(a, requires_grad=True) for a in numbers()[:3])
        return _both_ways(lambda: torch.tanh(q[:, :, None] + k[:, None]) @ v, torch.tensor(numbers()[3]), (q, k, v))

    return Row("additive scores", f"B,T,S,D = {b},{t},{s},{d}", ours, torch, asked)


def _layer(kind, b, t, d, asked):
    def ours():
        layer = {"RNN": RNN, "GRU": GRU, "LSTM": LSTM}[kind](d, d)
        rng = np.random.default_rng(0)
        x, g = Tensor(_array(rng, b, t, d)), Tensor(_array(rng, b, t, d))
        return _both_ways(lambda: layer(x), g, list(layer.parameters()))

    def torch():
        import torch
        layer = getattr(torch.nn, kind)(d, d, batch_first=True)
        rng = np.random.default_rng(0)
        x, g = torch.tensor(_array(rng, b, t, d)), torch.tensor(_array(rng, b, t, d))
        return _both_ways(lambda: layer(x), g, list(layer.parameters()))

    return Row(f"{kind} layer", f"B,T,D = {b},{t},{d}", ours, torch, asked)


def _rows_op(name, n, d, asked):
    def leaf_and_extra():
        rng = np.random.default_rng(0)
        return _array(rng, n, d), rng.integers(0, d, n), _array(rng, n, d)

    def ours():
        a, target, g = leaf_and_extra()
        x, g = Tensor(a, requires_grad=True), Tensor(g)
        if name == "cross-entropy":
            target = Tensor(target)
            return _both_ways(lambda: cross_entropy(x, target), None, (x,))
        w, b = Tensor(np.ones(d, np.float32), requires_grad=True), Tensor(np.zeros(d, np.float32), requires_grad=True)
        return _both_ways((lambda: x.softmax()) if name == "softmax" else (lambda: layer_norm(x, w, b)), g, (x, w, b))

    def torch():
        import torch
        a, target, g = leaf_and_extra()
        x, g = torch.tensor(a, requires_grad=True), torch.tensor(g)
        if name == "cross-entropy":
            target = torch.tensor(target)
            return _both_ways(lambda: torch.nn.functional.cross_entropy(x, target), None, (x,))
        w, b = torch.ones(d, requires_grad=True), torch.zeros(d, requires_grad=True)
        call = (lambda: x.softmax(-1)) if name == "softmax" else (lambda: torch.nn.functional.layer_norm(x, (d,), w, b))
        return _both_ways(call, g, (x, w, b))

    return Row(name, f"({n}, {d})", ours, torch, asked)


def _linear(n, i, o):
    def ours():
        rng = np.random.default_rng(0)
        layer, x, g = Linear(i, o), Tensor(_array(rng, n, i)), Tensor(_array(rng, n, o))
        return _both_ways(lambda: layer(x), g, list(layer.parameters()))

    def torch():
        import torch
        rng = np.random.default_rng(0)
        layer, x, g = torch.nn.Linear(i, o), torch.tensor(_array(rng, n, i)), torch.tensor(_array(rng, n, o))
        return _both_ways(lambda: layer(x), g, list(layer.parameters()))

    return Row("linear layer", f"({n}, {i}) to {o}", ours, torch)


def rows():
    """The table, in order."""
    small = [_small(op, times, backward, asked) for times, backward, asked in
             ((1, False, None), (1, True, 3), (100, False, 1), (100, True, 0.9)) for op in ("add", "mul", "matmul")]
    layers = [_layer(k, *size, asked) for k in ("RNN", "GRU", "LSTM")
              for size, asked in (((32, 32, 64), 2 if k != "LSTM" else 1.2), ((32, 32, 128), 2 if k != "LSTM" else 1.2))]
    return [*small, *layers, _additive(32, 20, 20, 64, 6), _additive(32, 50, 50, 128, 18),
            *[_rows_op(name, n, d, 1) for name in ("softmax", "layer norm", "cross-entropy")
              for n, d in ((2048, 64), (480, 5000))], _linear(480, 128, 1000), _linear(2048, 128, 384)]


def _timed(call, repeat):
    begun = time.perf_counter()
    for _ in range(repeat):
        call()
    return (time.perf_counter() - begun) / repeat


def _warm(call):
    """Run until compiled and settled; how many calls fill one timing."""
    call()
    once = min(_timed(call, 3), _timed(call, 3))
    return max(1, int(SHORTEST / max(once, 1e-7)))


def measure(row, peers):
    """A dictionary: median microseconds of ours (and its middle half), and with `peers` PyTorch's and the ratio."""
    ours = row.ours()
    n = _warm(ours)
    if not peers:
        times = [_timed(ours, n) for _ in range(ROUNDS)]
        return {"name": row.name, "sizes": row.sizes, "ours_us": _middle(times), "spread_us": _spread(times)}
    theirs = row.torch()
    m = _warm(theirs)
    alone = [_timed(theirs, m) for _ in range(ROUNDS)]
    pairs = [(_timed(ours, n), _timed(theirs, m)) for _ in range(ROUNDS)]
    a, b = [p[0] for p in pairs], [p[1] for p in pairs]
    ratios = sorted(y / x for x, y in pairs)
    return {"name": row.name, "sizes": row.sizes, "ours_us": _middle(a), "spread_us": _spread(a), "torch_us": _middle(b),
            "torch_alone_us": _middle(alone), "ratio": statistics.median(ratios),
            "ratio_low": ratios[len(ratios) // 4], "ratio_high": ratios[-len(ratios) // 4], "asked": row.asked,
            "undisturbed": abs(_middle(b) / _middle(alone) - 1) <= 0.05}


def _middle(times):
    return statistics.median(times) * 1e6


def _spread(times):
    times = sorted(times)
    return [times[len(times) // 4] * 1e6, times[-len(times) // 4] * 1e6]


def run(names=(), peers=False, report=lambda line: None):
    """Measure the rows whose name contains one of `names` (all by default); a list of dictionaries. `report` gets a line a row."""
    chosen = [r for r in rows() if not names or any(n.lower() in f"{r.name} {r.sizes}".lower() for n in names)]
    if not chosen:
        raise InputError(f"bench: no workload is named like {', '.join(names)}; there are: "
                         + ", ".join(dict.fromkeys(r.name for r in rows())))
    if peers:
        try:
            import torch
        except ImportError:
            raise InputError("bench --peers: PyTorch is not installed (pip install torch)") from None
        torch.set_num_threads(get_num_threads())
    results = []
    for row in chosen:
        results.append(measure(row, peers))
        report(line(results[-1]))
    return results


def line(r):
    """One result as text."""
    text = f"{r['name']:16} {r['sizes']:38} {r['ours_us']:10.1f} us"
    if "ratio" not in r:
        return text
    asked = f" (asked {r['asked']:g})" if r["asked"] else ""
    noisy = "" if r["undisturbed"] else f"  [PyTorch alone: {r['torch_alone_us']:.1f} us]"
    return (f"{text}  PyTorch {r['torch_us']:10.1f} us  ratio {r['ratio']:5.2f} "
            f"({r['ratio_low']:.2f}-{r['ratio_high']:.2f}){asked}{noisy}")
