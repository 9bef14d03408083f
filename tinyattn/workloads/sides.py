"""How one workload becomes a call to time, in every engine: what its user would write, on the same numbers.

A workload is said once, as `numbers()`, its arrays and the gradient that comes in at its output, and one function a side:

    ours(*tensors)   torch(torch, *tensors)   jax(jax.numpy, *arrays)   autograd(autograd.numpy, *arrays)
    tinygrad(tinygrad, *tensors)

Forward and backward are recorded by us and PyTorch (`y.backward(g)`), compiled as one function by JAX (`jit` of `vjp`) and
tinygrad (`TinyJit`), and traced anew at each call by autograd (`make_vjp`). Arrays of floats are the leaves, of
which the gradient is asked. The calls return (y, gradient of each leaf), so that the harness can compare them.

Everything is on the default device of `device.py`. On a card no side waits for it within a call: see `wait_of`.
"""
from contextlib import nullcontext

import numpy as np

from .. import device
from ..tensor import Tensor


def array(rng, *shape):
    return rng.normal(size=shape).astype(np.float32)


def sides(numbers, backward=True, **functions):
    """{side: make} for `Row.sides`. numbers() gives (list of arrays or None, gradient at the output or None for a number).

    The function called `array` is written with NumPy's names, and stands for JAX's and autograd's. PyTorch's is also compiled.
    """
    both = functions.pop("array", None)
    if both:
        functions = {"jax": both, "autograd": both, **functions}
    made = {side: lambda side=side, f=f: MAKERS[side](f, *numbers(), backward) for side, f in functions.items()}
    if "torch" in made:
        made["torch-compile"] = lambda: compiled_torch(functions["torch"], *numbers(), backward)
    return made


def on_card():
    return device.get_default_device() == "cuda"


def made_there(side):
    """A context for a side's make(). In it PyTorch too makes its tensors on the default device; not in the calls, as there
    it would make each of its functions slower."""
    if on_card() and side in ("torch", "torch-compile"):
        import torch
        return torch.device("cuda")
    return nullcontext()


def wait_of(side):
    """A function that returns when the card has done all that this side has asked of it so far."""
    if not on_card():
        return lambda: None
    if side in ("torch", "torch-compile"):
        import torch
        return torch.cuda.synchronize
    if side == "jax":  # what is computed last is done last
        import jax
        return lambda: jax.block_until_ready(jax.numpy.zeros(()) + 1)
    if side == "tinygrad":
        import tinygrad
        return tinygrad.Device[tinygrad.Device.DEFAULT].synchronize
    return device.numba_cuda().synchronize


def fetched(result):
    """The arrays of a result as NumPy's own copies, whatever library made them, and wherever. A function is called for it."""
    if callable(result) and not hasattr(result, "shape"):
        return fetched(result())
    if isinstance(result, (tuple, list)):
        return [array for part in result for array in fetched(part)]
    if result is None:
        return []
    if hasattr(result, "copy_to_host"):
        return [np.array(device.to_device(result, "cpu"))]
    if hasattr(result, "detach"):
        result = result.detach()
    if hasattr(result, "cpu"):
        result = result.cpu()
    return [np.array(result.numpy() if hasattr(result, "numpy") else result)]


def _is_leaf(a):
    return a is not None and a.dtype.kind == "f"


def recorded(forward, g, leaves, backward=True):
    """A call for the two engines that record: ours and PyTorch's."""
    def run():
        for leaf in leaves:
            leaf.grad = None
        y = forward()
        if isinstance(y, tuple):
            y = y[0]
        y.backward(g)
        return lambda: (y, *[leaf.grad for leaf in leaves])  # asked only to compare: a small op must not pay for it
    return run if backward else forward


def ours(f, arrays, g, backward):
    inputs = [a if a is None else Tensor(a, requires_grad=_is_leaf(a)) for a in arrays]
    return recorded(lambda: f(*inputs), g if g is None else Tensor(g), [x for x in inputs if x is not None and x.requires_grad],
                    backward)


def torch(f, arrays, g, backward):
    import torch
    inputs = [a if a is None else torch.tensor(a, requires_grad=_is_leaf(a)) for a in arrays]
    return recorded(lambda: f(torch, *inputs), g if g is None else torch.tensor(g),
                    [x for x in inputs if x is not None and x.requires_grad], backward)


def compiled_torch(f, arrays, g, backward):
    import torch as library
    once = library.compile(lambda *inputs: f(library, *inputs))
    return torch(lambda _, *inputs: once(*inputs), arrays, g, backward)


def _with_leaves(f, arrays):
    """f as a function of the leaves alone, and the leaves."""
    places = [i for i, a in enumerate(arrays) if _is_leaf(a)]

    def of_leaves(others, *leaves):
        inputs = list(others)
        for place, leaf in zip(places, leaves, strict=True):
            inputs[place] = leaf
        return f(*inputs)
    return of_leaves, [None if _is_leaf(a) else a for a in arrays], [arrays[i] for i in places]


def jax(f, arrays, g, backward):
    import jax
    of_leaves, others, leaves = _with_leaves(lambda *inputs: f(jax.numpy, *inputs), arrays)

    def both(leaves, others, g):
        y, pull = jax.vjp(lambda *leaves: of_leaves(others, *leaves), *leaves)
        return y, *pull(g)

    step = jax.jit(both if backward else lambda leaves, others, g: of_leaves(others, *leaves))
    inputs = jax.device_put((leaves, others, np.float32(1) if g is None else g))
    return (lambda: step(*inputs)) if on_card() else lambda: jax.block_until_ready(step(*inputs))


def autograd(f, arrays, g, backward):
    import autograd
    import autograd.numpy
    of_leaves, others, leaves = _with_leaves(lambda *inputs: f(autograd.numpy, *inputs), arrays)
    if not backward:
        return lambda: of_leaves(others, *leaves)
    trace = autograd.make_vjp(lambda *leaves: of_leaves(others, *leaves), tuple(range(len(leaves))))
    g = np.float32(1) if g is None else g

    def run():
        pull, y = trace(*leaves)
        return y, *pull(g)
    return run


def tinygrad(f, arrays, g, backward):
    import tinygrad
    inputs = [a if a is None else tinygrad.Tensor(a).realize() for a in arrays]
    leaves = [x for x, a in zip(inputs, arrays, strict=True) if _is_leaf(a)]
    g = None if g is None else tinygrad.Tensor(g).realize()

    @tinygrad.TinyJit
    def both():
        y = f(tinygrad, *inputs)
        out = (y, *y.gradient(*leaves, gradient=g)) if backward else (y,)
        tinygrad.Tensor.realize(*out)
        return out

    if on_card():
        return lambda: both()
    engine = tinygrad.Device[tinygrad.Device.DEFAULT]

    def run():
        out = both()
        engine.synchronize()
        return out
    return run


MAKERS = {"ours": ours, "torch": torch, "jax": jax, "autograd": autograd, "tinygrad": tinygrad}
