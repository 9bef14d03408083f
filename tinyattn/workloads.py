"""The workloads of `tinyattn bench`: what is timed, by us and, with the same numbers, by PyTorch.

Each makes two functions, `ours` and `torch`, that return a call to time. PyTorch's side is what its user would write.
"""
from dataclasses import dataclass

import numpy as np

from .functional import additive_scores, cross_entropy, layer_norm
from .nn import GRU, LSTM, RNN, Linear
from .ops.additive_2d import Additive2d
from .ops.attention import Attention
from .ops.attention_gru import AttentionGRUScan
from .ops.eisner import Eisner
from .ops.featurewise import FeaturewiseAttention
from .ops.linear_chain import LinearChain
from .ops.pagerank import PageRank
from .ops.softmax import Softmax
from .tensor import Tensor


@dataclass
class Row:
    """One workload: `ours()` and `torch()` return a function to time. torch: None where PyTorch has no such thing;
    twin: does the fused op have a readable twin to be compared with?"""
    name: str
    sizes: str
    ours: object
    torch: object
    asked: float | None = None
    twin: bool = False


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
    chain = "alone" if times == 1 else f"chain of {times}"
    return Row(f"small {name}", f"(32, 64) {chain}, {what}", ours, torch, asked)


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

    return Row("additive scores", f"B,T,S,D = {b},{t},{s},{d}", ours, torch, asked, twin=True)


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

    return Row(f"{kind} layer", f"B,T,D = {b},{t},{d}", ours, torch, asked, twin=True)


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


def _fused(name, sizes, op, inputs, shape, torch_call, asked=None):
    """A fused op on leaves made of the arrays of `inputs()`, with a gradient of `shape` at its first output."""
    def incoming():
        return _array(np.random.default_rng(1), *shape)

    def ours():
        leaves = [Tensor(a, requires_grad=a.dtype.kind == "f") if a is not None else None for a in inputs()]
        return _both_ways(lambda: op()(*leaves), Tensor(incoming()),
                          [t for t in leaves if t is not None and t.requires_grad])

    def torch():
        import torch
        leaves = [torch.tensor(a, requires_grad=a.dtype.kind == "f") if a is not None else None for a in inputs()]
        return _both_ways(lambda: torch_call(torch, *leaves), torch.tensor(incoming()),
                          [t for t in leaves if t is not None and t.requires_grad])

    return Row(name, sizes, ours, torch if torch_call else None, asked, twin=True)


def _attention(n, t, d, causal, asked):
    def inputs():
        rng = np.random.default_rng(0)
        return [_array(rng, n, t, d) for _ in "qkv"]

    def peer(torch, q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    sizes = f"B*H,T,D = {n},{t},{d}{', causal' if causal else ''}"
    return _fused("attention", sizes, lambda: Attention(causal=causal), inputs, (n, t, d), peer, asked)


def _decoding(n, s, d):
    """One query against many kept keys, forward only counts in use; both ways are timed as everywhere."""
    def inputs():
        rng = np.random.default_rng(0)
        return [_array(rng, n, 1, d), _array(rng, n, s, d), _array(rng, n, s, d)]

    return _fused("attention", f"B*H,T,S,D = {n},1,{s},{d}", Attention, inputs, (n, 1, d),
                  lambda torch, q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v))


def _featurewise(b, t, s, d, asked):
    def inputs():
        rng = np.random.default_rng(0)
        return [_array(rng, b, n, d) for n in (t, s, s)]

    def peer(torch, q, k, v):
        f = 5 * torch.tanh((q[:, :, None] + k[:, None]) / 5)
        return (f.softmax(2) * v[:, None]).sum(2)

    return _fused("feature-wise attention", f"B,T,S,D = {b},{t},{s},{d}", FeaturewiseAttention, inputs, (b, t, d),
                  peer, asked)


def _scores_2d(b, t, s, d, m, asked):
    def inputs():
        rng = np.random.default_rng(0)
        return [_array(rng, b, t, d), _array(rng, b, s, d), _array(rng, m, d)]

    return _fused("additive scores 2-D", f"B,T,S,D,M = {b},{t},{s},{d},{m}", Additive2d, inputs, (b, m, t, s),
                  lambda torch, q, k, w: (torch.tanh(q[:, :, None] + k[:, None]) @ w.T).permute(0, 3, 1, 2), asked)


def _masked_softmax(b, t, s):
    """Lengths from 1 to S."""
    def inputs():
        rng = np.random.default_rng(0)
        return [_array(rng, b, t, s), np.arange(s) < rng.integers(1, s + 1, b)[:, None, None]]

    return _fused("masked softmax", f"B,T,S = {b},{t},{s}", lambda: Softmax(-1), inputs, (b, t, s),
                  lambda torch, e, mask: e.masked_fill(~mask, float("-inf")).softmax(-1))


def _attention_gru(b, t, d):
    def inputs():
        rng = np.random.default_rng(0)
        return [_array(rng, b, t, 2 * d), rng.random((b, t)).astype(np.float32), _array(rng, b, d),
                _array(rng, 2 * d, d) / d ** 0.5, _array(rng, 2 * d), None]

    def peer(torch, x, alpha, h, w, bias, _):
        hs = []
        for i in range(t):
            u = h @ w.T + bias
            r = torch.sigmoid(x[:, i, :d] + u[:, :d])
            new = torch.tanh(x[:, i, d:] + r * u[:, d:])
            a = alpha[:, i, None]
            h = a * new + (1 - a) * h
            hs.append(h)
        return torch.stack(hs, 1)

    return _fused("attention GRU", f"B,T,D = {b},{t},{d}", AttentionGRUScan, inputs, (b, t, d), peer)


def _pagerank(b, n):
    def inputs():
        rng = np.random.default_rng(0)
        return [np.exp(_array(rng, b, n, n)), np.full((b, n), 1 / n, np.float32)]

    def peer(torch, w, y):
        return torch.linalg.solve(torch.eye(n) - 0.9 * w / w.sum(1, keepdim=True), 0.1 * y)

    return _fused("PageRank", f"B,N = {b},{n}", PageRank, inputs, (b, n), peer)


def _linear_chain(b, t, c):
    def inputs():
        rng = np.random.default_rng(0)
        return [_array(rng, b, t, c), _array(rng, c, c), None]

    def peer(torch, u, w, _):
        forward, backward = [u[:, 0]], [torch.zeros(b, c)]
        for i in range(1, t):
            forward.append(u[:, i] + torch.logsumexp(forward[-1][:, :, None] + w, 1))
        for i in reversed(range(t - 1)):
            backward.insert(0, torch.logsumexp(w + (u[:, i + 1] + backward[0])[:, None], 2))
        logz = torch.logsumexp(forward[-1], 1)
        return (torch.stack(forward, 1) + torch.stack(backward, 1) - logz[:, None, None]).exp()

    return _fused("linear chain", f"B,T,C = {b},{t},{c}", LinearChain, inputs, (b, t, c), peer)


def _eisner(b, n):
    def inputs():
        rng = np.random.default_rng(0)
        return [_array(rng, b, n, n), _array(rng, b, n), None]

    return _fused("Eisner", f"B,N = {b},{n}", Eisner, inputs, (b, n, n), None)


def rows():
    """The table, in order."""
    return [*small(), *layers(), *attention(), *per_row(), _linear(480, 128, 1000), _linear(2048, 128, 384)]


def small():
    return [_small(op, times, backward, asked) for times, backward, asked in
            ((1, False, None), (1, True, 3), (100, False, 1), (100, True, 0.9)) for op in ("add", "mul", "matmul")]


def layers():
    return [*[_layer(k, *size, asked) for k in ("RNN", "GRU", "LSTM")
              for size, asked in (((32, 32, 64), 2 if k != "LSTM" else 1.2), ((32, 32, 128), 2 if k != "LSTM" else 1.2),
                                  ((64, 64, 256), 1.2))], _attention_gru(32, 32, 64)]


def attention():
    return [*[_additive(*size, asked)
              for *size, asked in ((32, 20, 20, 64, 6), (32, 50, 50, 128, 18), (16, 128, 128, 128, 18))],
            *[_featurewise(*size, 5) for size in ((32, 20, 20, 64), (16, 64, 64, 128))],
            *[_scores_2d(*size, 8, 5) for size in ((32, 20, 20, 64), (16, 64, 64, 128))],
            *[_attention(n, t, d, causal, 0.8 if t > 512 and not causal else 1)
              for n, t, d in ((32, 64, 32), (32, 256, 64), (8, 1024, 64)) for causal in (False, True)],
            _decoding(32, 512, 64), _masked_softmax(32, 50, 50), _pagerank(32, 30), _linear_chain(32, 40, 2),
            _eisner(32, 20)]


def per_row():
    return [_rows_op(name, n, d, 1)
            for name in ("softmax", "layer norm", "cross-entropy") for n, d in ((2048, 64), (480, 5000))]
