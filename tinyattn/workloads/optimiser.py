"""One step of Adam over many parameters, whose gradients stand still."""
import numpy as np

from .row import Row
from .sides import array, on_card


def rows():
    return [adam("MLP", [(128, 64), (128,), (10, 128), (10,)]), adam("60 layers", [(64, 64), (64,)] * 60),
            adam("GPT", [(1000, 128), *[(384, 128), (128, 128), (512, 128), (128, 512), (512,), *[(128,)] * 6] * 4])]


def adam(what, shapes):
    def numbers():
        rng = np.random.default_rng(0)
        return [array(rng, *shape) for shape in shapes], [array(rng, *shape) for shape in shapes]

    def ours():
        from ..optim import Adam
        from ..tensor import Tensor
        weights = [Tensor(w, requires_grad=True) for w in numbers()[0]]
        for w, g in zip(weights, numbers()[1], strict=True):
            w.grad = Tensor(g)
        return _stepping(Adam(weights, lr=1e-3), weights)

    def torch():
        import torch
        weights = [torch.tensor(w, requires_grad=True) for w in numbers()[0]]
        for w, g in zip(weights, numbers()[1], strict=True):
            w.grad = torch.tensor(g)
        return _stepping(torch.optim.Adam(weights, lr=1e-3), weights)

    size = sum(int(np.prod(shape)) for shape in shapes)
    return Row("Adam step", f"{what}: {len(shapes)} tensors, {size:,} numbers", "optimiser",
               {"ours": ours, "torch": torch, "jax": lambda: _with_jax(*numbers())})


def _stepping(optimizer, weights):
    def run():
        optimizer.step()
        return lambda: tuple(weights)
    return run


def _with_jax(weights, gradients, rate=1e-3, b1=0.9, b2=0.999):
    """Adam as its formula over lists of arrays, compiled, the old arrays given away."""
    import jax

    def step(state, gradients):
        ws, ms, vs, t = state
        t, new = t + 1, []
        for w, m, v, g in zip(ws, ms, vs, gradients, strict=True):
            m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
            new.append((w - rate * (m / (1 - b1**t)) / (jax.numpy.sqrt(v / (1 - b2**t)) + 1e-8), m, v))
        return (*[[one[i] for one in new] for i in range(3)], t)

    compiled, card = jax.jit(step, donate_argnums=0), on_card()
    zeros = [np.zeros_like(w) for w in weights]
    state, gradients = [jax.device_put((weights, zeros, [*zeros], np.float32(0)))], jax.device_put(gradients)

    def run():
        state[0] = compiled(state[0], gradients)
        if not card:
            jax.block_until_ready(state[0])
        return lambda: tuple(np.array(w) for w in state[0][0])
    return run
