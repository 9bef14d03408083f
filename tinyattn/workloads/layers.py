"""Work row by row (softmax, layer norm, cross-entropy, embedding, dropout) and linear layers."""
import math

import numpy as np

from .. import functional as F
from .row import Row
from .sides import array, fetched, sides

SIZES = ((2048, 64), (512, 1000), (480, 5000))


def rows():
    return [*[make(n, d) for make in (_softmax, _layer_norm, _cross_entropy) for n, d in SIZES],
            _masked_softmax(32, 50, 50), *[_embedding(*size) for size in ((1000, 64, 480), (5000, 128, 480), (5000, 1000, 480))],
            *[_dropout(*size) for size in ((480, 128), (2048, 1000))],
            _linear(480, 128, 1000), _linear(2048, 128, 384), *[_linear(2048, 128, 512, a) for a in ("relu", "tanh", "gelu")]]


def _per_row(name, n, d, numbers, asked=1, **functions):
    return Row(name, f"({n}, {d})", "layers", sides(numbers, **functions), {"torch": asked})


def _softmax(n, d):
    def numbers():
        rng = np.random.default_rng(0)
        return [array(rng, n, d)], array(rng, n, d)

    return _per_row("softmax", n, d, numbers, ours=lambda x: x.softmax(), torch=lambda torch, x: x.softmax(-1),
                    jax=lambda jnp, x: _jax().nn.softmax(x), autograd=softmax, tinygrad=lambda tinygrad, x: x.softmax(-1))


def softmax(np, x):
    """As a user of NumPy or autograd writes it."""
    e = np.exp(x - np.max(x, -1, keepdims=True))
    return e / np.sum(e, -1, keepdims=True)


def _jax():
    import jax
    return jax


def _layer_norm(n, d):
    def numbers():
        rng = np.random.default_rng(0)
        return [array(rng, n, d), 1 + 0.1 * array(rng, d), array(rng, d)], array(rng, n, d)

    def plain(np, x, w, b):
        x = x - np.mean(x, -1, keepdims=True)
        return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + np.float32(1e-5)) * w + b

    return _per_row("layer norm", n, d, numbers, ours=F.layer_norm, array=plain,
                    torch=lambda torch, x, w, b: torch.nn.functional.layer_norm(x, (d,), w, b),
                    tinygrad=lambda tinygrad, x, w, b: x.layernorm() * w + b)


def _cross_entropy(n, d):
    def numbers():
        rng = np.random.default_rng(0)
        return [array(rng, n, d), rng.integers(0, d, n)], None

    def with_jax(jnp, x, targets):
        return -jnp.mean(jnp.take_along_axis(_jax().nn.log_softmax(x), targets[:, None], 1))

    def with_autograd(np, x, targets):
        top = np.max(x, 1, keepdims=True)
        log_sum = np.log(np.sum(np.exp(x - top), 1)) + top[:, 0]
        return np.mean(log_sum - x[np.arange(n), targets])

    return _per_row("cross-entropy", n, d, numbers, ours=F.cross_entropy, jax=with_jax, autograd=with_autograd,
                    torch=lambda torch, x, targets: torch.nn.functional.cross_entropy(x, targets),
                    tinygrad=lambda tinygrad, x, targets: x.cross_entropy(targets))


def _masked_softmax(b, t, s):
    """Lengths from 1 to S."""
    def numbers():
        rng = np.random.default_rng(0)
        return [array(rng, b, t, s), np.arange(s) < rng.integers(1, s + 1, b)[:, None, None]], array(rng, b, t, s)

    return Row("masked softmax", f"B,T,S = {b},{t},{s}", "layers", twin=True, sides=sides(
        numbers, ours=lambda e, mask: F.softmax(e, mask=mask),
        torch=lambda torch, e, mask: e.masked_fill(~mask, float("-inf")).softmax(-1),
        jax=lambda jnp, e, mask: _jax().nn.softmax(jnp.where(mask, e, -jnp.inf)),
        autograd=lambda np, e, mask: softmax(np, np.where(mask, e, np.float32(-1e9))),
        tinygrad=lambda tinygrad, e, mask: mask.where(e, float("-inf")).softmax(-1)))


def _embedding(v, d, n):
    """The gradient is an array as large as the table, zeros and sums of rows."""
    def numbers():
        rng = np.random.default_rng(0)
        return [array(rng, v, d), rng.integers(0, v, n)], array(rng, n, d)

    return Row("embedding", f"({v}, {d}), {n} ids", "layers", asked={"torch": 1}, sides=sides(
        numbers, ours=F.embedding, torch=lambda torch, w, ids: torch.nn.functional.embedding(ids, w),
        array=lambda np, w, ids: w[ids]))


def _dropout(n, d, p=0.1):
    """Each engine draws its own mask; that it is one, of the right share, and the gradient's too, is compared."""
    def numbers():
        rng = np.random.default_rng(0)
        return [1 + rng.random((n, d), np.float32)], np.ones((n, d), np.float32)

    functions = {"ours": lambda x: F.dropout(x, p, True), "torch": lambda torch, x: torch.nn.functional.dropout(x, p)}
    made = sides(numbers, **functions)
    return Row("dropout", f"({n}, {d}), p = {p}", "layers", tolerance=0.02, sides={
        side: lambda make=make: _facts_of_dropout(make(), *numbers()[0]) for side, make in made.items()})


def _facts_of_dropout(call, x):
    def run():
        result = call()

        def facts():
            y, g = fetched(result)
            return np.mean(y != 0), np.unique(np.round(y[y != 0] / x[y != 0], 4)), np.mean((g != 0) == (y != 0)), np.max(g)
        return facts
    return run


def _linear(n, i, o, activation=None):
    def numbers():
        rng = np.random.default_rng(0)
        return [array(rng, n, i), array(rng, o, i) / np.float32(math.sqrt(i)), array(rng, o)], array(rng, n, o)

    def with_ours(x, w, b):
        y = F.linear(x, w, b)
        return getattr(y, activation)() if activation else y

    def with_torch(torch, x, w, b):
        y = torch.nn.functional.linear(x, w, b)
        return y if activation is None else torch.tanh(y) if activation == "tanh" else getattr(torch.nn.functional, activation)(y)

    def with_jax(jnp, x, w, b):
        y = x @ w.T + b
        return y if activation is None else _jax().nn.gelu(y, approximate=False) if activation == "gelu" else \
            getattr(_jax().nn, activation)(y)

    def with_autograd(np, x, w, b):
        y = x @ w.T + b
        return y if activation is None else np.tanh(y) if activation == "tanh" else np.maximum(y, 0)

    def with_tinygrad(tinygrad, x, w, b):
        y = x.linear(w.T, b)
        return y if activation is None else getattr(y, activation)()

    functions = {"ours": with_ours, "torch": with_torch, "jax": with_jax}
    if activation != "gelu":  # autograd has no erf of its own, tinygrad's gelu is the approximation by tanh
        functions |= {"autograd": with_autograd, "tinygrad": with_tinygrad}
    name = f"linear and {activation}" if activation else "linear layer"
    return Row(name, f"({n}, {i}) to {o}", "layers", sides(numbers, **functions), floor=6 * n * i * o)
