"""What all rows "one training step" share: the step itself, as a user of each library would write it.

A row is made of one dictionary of weights and one batch, NumPy arrays that every side loads, and of one function for
each side, the loss. Here that becomes a call that makes one step and returns the loss before it, a float:

    loss and its gradients;   g = g min(1, 1 / (|g| + 1e-6)), |g| the norm of all gradients together;   Adam, lr 1e-3

The batch is the same at every call, so the losses go down, and those of all sides go down alike: call by call they must be
the same number. What differs is rounding alone; a rule that is wrong anywhere shows from the second loss on.
"""
import numpy as np

from ...optim import Adam, clip_grad_norm
from ..sides import on_card

LEARNING_RATE, FIRST, SECOND, EPSILON, MAX_NORM = 1e-3, 0.9, 0.999, 1e-8, 1.0
TOLERANCE = 1e-5  # of losses, as a share: ten times what float32 sums in another order were seen to do


def loss_of(value):
    """A step's result: a float. On a card the number stays there, as reading it would wait for the card at each step."""
    return value.detach() if on_card() else value.item()


def ours(model, loss, weights, batch, compiled=False):
    """model   a Module; loss(model, *batch) the loss, of arrays"""
    model.load_state_dict(weights)
    parameters = list(model.parameters())
    optimizer = Adam(parameters, lr=LEARNING_RATE)

    def step(*batch):
        optimizer.zero_grad()
        value = loss(model, *batch)
        value.backward()
        clip_grad_norm(parameters, MAX_NORM)
        optimizer.step()
        return value

    if compiled:
        from ...compiler import compile
        step = compile(step)
    return lambda: loss_of(step(*batch))


def torch(model, loss, weights, batch, compiled=False):
    """model   a torch.nn.Module; loss(model, *batch) the loss, of tensors; weights under the model's own names"""
    import torch
    model.load_state_dict({name: torch.tensor(w) for name, w in weights.items()})
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    batch = [torch.tensor(a) for a in batch]
    run = torch.compile(loss) if compiled else loss

    def step():
        optimizer.zero_grad()
        value = run(model, *batch)
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        return loss_of(value)
    return step


def adam(xp, w, g, m, v, t):
    """(w, m, v) after step t, dictionaries of arrays as are the gradients g; xp is NumPy or JAX's."""
    norm = xp.sqrt(sum((a * a).sum() for a in g.values()))
    scale = xp.minimum(1.0, MAX_NORM / (norm + 1e-6))
    g = {k: a * scale for k, a in g.items()}
    m = {k: FIRST * m[k] + (1 - FIRST) * a for k, a in g.items()}
    v = {k: SECOND * v[k] + (1 - SECOND) * a * a for k, a in g.items()}
    rate, root = LEARNING_RATE / (1 - FIRST**t), xp.sqrt(1 - SECOND**t)
    return {k: a - rate * m[k] / (xp.sqrt(v[k]) / root + EPSILON) for k, a in w.items()}, m, v


def jax(loss, weights, batch):
    """loss(weights, *batch), of arrays; the whole step is one compiled function, which reuses the memory of what it updates."""
    import jax

    def step(w, m, v, t, *batch):
        value, g = jax.value_and_grad(loss)(w, *batch)
        return value, adam(jax.numpy, w, g, m, v, t)

    step = jax.jit(step, donate_argnums=(0, 1, 2))
    zeros = {k: np.zeros_like(a) for k, a in weights.items()}
    state, t = [{k: jax.numpy.array(a) for k, a in arrays.items()} for arrays in (weights, zeros, zeros)], 0
    batch, card = [jax.numpy.asarray(a) for a in batch], on_card()

    def run():
        nonlocal state, t
        t += 1
        value, state = step(*state, np.float32(t), *batch)
        if card:
            return value
        jax.block_until_ready(state)
        return float(value)
    return run


def autograd(loss, weights, batch):
    """HIPS autograd; loss(weights, *batch), of arrays."""
    from autograd import value_and_grad
    step = value_and_grad(loss)
    zeros = {k: np.zeros_like(a) for k, a in weights.items()}
    state, t = ({k: a.copy() for k, a in weights.items()}, zeros, zeros), 0

    def run():
        nonlocal state, t
        t += 1
        value, g = step(state[0], *batch)
        state = adam(np, state[0], g, *state[1:], t)
        return float(value)
    return run


def tinygrad(loss, weights, batch):
    """loss(weights, *batch), of Tensors; the step is captured by TinyJit."""
    from tinygrad import Context, Tensor, TinyJit, nn
    weights = {k: Tensor(a).contiguous().realize() for k, a in weights.items()}
    optimizer = nn.optim.Adam(list(weights.values()), lr=LEARNING_RATE, b1=FIRST, b2=SECOND, eps=EPSILON)
    batch = [Tensor(a.astype(np.int32) if a.dtype == np.int64 else a).realize() for a in batch]

    @TinyJit
    def step(*batch):
        optimizer.zero_grad()
        value = loss(weights, *batch)
        value.backward()
        norm = sum(w.grad.square().sum() for w in weights.values()).sqrt()
        scale = (MAX_NORM / (norm + 1e-6)).minimum(1.0)
        for w in weights.values():
            w.grad = w.grad * scale
        return value.realize(*optimizer.schedule_step())

    def run():
        with Context(TRAINING=1):
            return step(*batch).item()
    return run


def sides(module, s):
    """{name of a side: make} for the functions of a file of rows, given as its globals(), at the sizes s."""
    written = [side for side in ("ours", "torch", "jax", "tinygrad", "autograd") if side in module]
    table = {side: lambda f=module[side]: f(s) for side in written}
    table["compiled"] = lambda: module["ours"](s, compiled=True)
    table["torch-compile"] = lambda: module["torch"](s, compiled=True)
    return table
