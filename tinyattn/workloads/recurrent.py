"""Recurrent layers over whole sequences; the gradient of all parameters is asked, that of the inputs not.

JAX's side is a `lax.scan` with the inputs projected beforehand, as its libraries have it; autograd's a loop in Python,
on the small size only.
"""
import numpy as np

from ..nn import GRU, LSTM, RNN
from ..ops.attention_gru import AttentionGRUScan
from ..tensor import Tensor
from .row import Row
from .sides import MAKERS, array, recorded, sides

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
NAMES = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")


def rows():
    sizes = (((32, 32, 64), 2), ((32, 32, 128), 2), ((64, 64, 256), 1.2))
    return [*[_layer(kind, *size, asked if kind != "LSTM" else 1.2) for kind in GATES for size, asked in sizes],
            _attention_gru(32, 32, 64)]


# ---------------------------------------------------------------------------------------------------------------------
# one step of each, for engines without such layers: p is x W_ih^T + b_ih of this step
# ---------------------------------------------------------------------------------------------------------------------
def sigmoid(np, x):
    return 0.5 * np.tanh(0.5 * x) + 0.5


def rnn_step(np, state, p, w, b):
    h, = state
    return (np.tanh(p + h @ w.T + b),)


def gru_step(np, state, p, w, b):
    h, = state
    u = h @ w.T + b
    d = h.shape[1]
    r, z = sigmoid(np, p[:, :d] + u[:, :d]), sigmoid(np, p[:, d:2 * d] + u[:, d:2 * d])
    n = np.tanh(p[:, 2 * d:] + r * u[:, 2 * d:])
    return ((1 - z) * n + z * h,)


def lstm_step(np, state, p, w, b):
    h, c = state
    u = p + h @ w.T + b
    d = h.shape[1]
    i, f, o = (sigmoid(np, u[:, k * d:(k + 1) * d]) for k in (0, 1, 3))
    c = f * c + i * np.tanh(u[:, 2 * d:3 * d])
    return o * np.tanh(c), c


STEPS = {"RNN": rnn_step, "GRU": gru_step, "LSTM": lstm_step}


def _layer(kind, b, t, d, asked):
    rows_of_w, count = GATES[kind] * d, 2 if kind == "LSTM" else 1

    def numbers():
        rng = np.random.default_rng(0)
        shapes = (rows_of_w, d), (rows_of_w, d), (rows_of_w,), (rows_of_w,)
        return [array(rng, *shape) / np.float32(2 * d ** 0.5) for shape in shapes], array(rng, b, t, d), array(rng, b, t, d)

    def with_ours():
        weights, x, g = numbers()
        layer, x = {"RNN": RNN, "GRU": GRU, "LSTM": LSTM}[kind](d, d), Tensor(x)
        layer.load_state_dict(dict(zip(NAMES, weights, strict=True)))
        return recorded(lambda: layer(x), Tensor(g), [getattr(layer, name) for name in NAMES])

    def with_torch():
        import torch
        weights, x, g = numbers()
        layer, x = getattr(torch.nn, kind)(d, d, batch_first=True), torch.tensor(x)
        layer.load_state_dict({name: torch.tensor(w) for name, w in zip(NAMES, weights, strict=True)})
        return recorded(lambda: layer(x), torch.tensor(g), [getattr(layer, name) for name in NAMES])

    def functional(unrolled):
        """As a function of the weights; x is a constant in it."""
        weights, x, g = numbers()

        def run(np, w_ih, w_hh, b_ih, b_hh):
            p, step = x @ w_ih.T + b_ih, STEPS[kind]
            state = (np.zeros((b, d), np.float32),) * count
            return (_loop if unrolled else _scan)(np, lambda state, p: step(np, state, p, w_hh, b_hh), state, p)
        return run, weights, g

    made = {"ours": with_ours, "torch": with_torch, "jax": lambda: MAKERS["jax"](*functional(False), True)}
    if d == 64:
        made["autograd"] = lambda: MAKERS["autograd"](*functional(True), True)
    work = 5 * 2 * b * t * rows_of_w * d  # two products forward; backward one for each weight and one for h
    return Row(f"{kind} layer", f"B,T,D = {b},{t},{d}", "recurrent", made, {"torch": asked}, twin=True, floor=work)


def _loop(np, step, state, p):
    hs = []
    for i in range(p.shape[1]):
        state = step(state, p[:, i])
        hs.append(state[0])
    return np.stack(hs, 1)


def _scan(jnp, step, state, p):
    from jax import lax

    def body(state, p):
        state = step(state, p)
        return state, state[0]
    return lax.scan(body, state, jnp.swapaxes(p, 0, 1))[1].swapaxes(0, 1)


def _attention_gru(b, t, d):
    def numbers():
        rng = np.random.default_rng(0)
        return [array(rng, b, t, 2 * d), rng.random((b, t)).astype(np.float32), array(rng, b, d),
                array(rng, 2 * d, d) / np.float32(d ** 0.5), array(rng, 2 * d), None], array(rng, b, t, d)

    def step(tanh, sigmoid, h, x, a, w, bias):
        u = h @ w.T + bias
        new = tanh(x[:, d:] + sigmoid(x[:, :d] + u[:, :d]) * u[:, d:])
        return a[:, None] * new + (1 - a[:, None]) * h

    def with_torch(torch, x, alpha, h, w, bias, _):
        hs = []
        for i in range(t):
            h = step(torch.tanh, torch.sigmoid, h, x[:, i], alpha[:, i], w, bias)
            hs.append(h)
        return torch.stack(hs, 1)

    def with_jax(jnp, x, alpha, h, w, bias, _):
        import jax

        def body(h, now):
            h = step(jnp.tanh, jax.nn.sigmoid, h, *now, w, bias)
            return h, h
        return jax.lax.scan(body, h, (x.swapaxes(0, 1), alpha.T))[1].swapaxes(0, 1)

    return Row("attention GRU", f"B,T,D = {b},{t},{d}", "recurrent", twin=True, sides=sides(
        numbers, ours=lambda *inputs: AttentionGRUScan()(*inputs), torch=with_torch, jax=with_jax))
