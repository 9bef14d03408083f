r"""Optimisers, gradient clipping and learning rates: SGD, Adam, AdamW, Adadelta, each equal to PyTorch's.

    optimizer = Adam(model.parameters(), lr=1e-3)
    rate = learning_rate(1e-3, warmup(200), cosine(5000))
    for batch in batches:
        optimizer.lr = rate(optimizer.steps + 1)
        optimizer.zero_grad()
        loss(batch).backward()
        clip_grad_norm(model.parameters(), 1.0)
        optimizer.step()

One kernel updates one parameter: it reads each element of the weights w, the gradient g and the optimiser's own arrays
once, and writes in place. A backward pass through a graph that still needs the old weights raises.
"""
import math

import numpy as np
from numba import prange

from .autograd import changed
from .device import kernel, launch
from .tensor import Tensor

CHUNK = 16_384  # elements; the unit of parallel work


class _Slot:
    """One parameter, its update's arrays as flat views of one memory, and how often it was updated."""
    __slots__ = ("tensor", "name", "array", "flat", "kept", "steps")

    def __init__(self, tensor, name, kinds):
        self.tensor, self.name, self.steps = tensor, name, 0
        self.kept = [np.zeros(tensor.size, tensor.dtype) for _ in range(kinds)]
        self.bind()

    def bind(self):
        """Take hold of the parameter's memory, which `Module.to` may have replaced."""
        self.array = array = self.tensor.array
        if type(array) is not np.ndarray:
            raise NotImplementedError(f"optimiser: has no kernel for device 'cuda' yet; {self.name} must be on the cpu")
        if not array.flags.c_contiguous or not array.flags.writeable:
            raise ValueError(f"optimiser: parameter {self.name} shows another Tensor's memory; give its owner")
        self.flat = array.reshape(-1)
        self.kept = [a.astype(array.dtype, copy=False) for a in self.kept]


class Optimizer:
    """What all optimisers share. A subclass gives `keeps`, the names of its arrays, and `update`.

    parameters     Tensors (leaves); one that is given twice, as tied weights may be, is stepped once
    lr             the learning rate; may be set before any step: `optimizer.lr = 0.01`
    weight_decay   pull towards 0
    steps          how many steps were made
    """
    keeps = ()

    def __init__(self, parameters, lr, weight_decay=0.0):
        who = type(self).__name__
        for name, value in (("lr", lr), ("weight_decay", weight_decay)):
            if not 0 <= value < math.inf:
                raise ValueError(f"{who}: expected {name} of at least 0, got {value}")
        self.lr, self.weight_decay, self.steps = lr, weight_decay, 0
        tensors = list({id(t): t for t in _tensors(who, parameters)}.values())
        names = [t.name for t in tensors]
        self.slots = [_Slot(t, t.name if t.name and names.count(t.name) == 1 else f"parameter{i}", len(self.keeps))
                      for i, t in enumerate(tensors)]

    def step(self):
        """Update every parameter that has a gradient; the others are left as they are."""
        self.steps += 1
        for slot in self.slots:
            t = slot.tensor
            if t.grad is None:
                continue
            if t.array is not slot.array:
                slot.bind()
            g = t.grad.array.reshape(-1)
            if g.dtype != slot.flat.dtype or len(g) != len(slot.flat):
                raise ValueError(f"{type(self).__name__}: parameter {slot.name} {t.shape} {t.dtype} has a gradient of "
                                 f"shape {t.grad.shape} {t.grad.dtype}")
            slot.steps += 1
            self.update(slot.flat, g, slot.kept, slot.steps)
            changed(t)

    def update(self, w, g, kept, steps):
        """Write new values into w (N,) from its gradient g (N,) and the arrays `kept` (N,); steps counts from 1."""
        raise NotImplementedError

    def zero_grad(self):
        """Forget the gradients."""
        for slot in self.slots:
            slot.tensor.grad = None

    def state_dict(self):
        """All that a bit-for-bit resume needs, as {text: NumPy array}: `NAME.m`, `NAME.steps` ..., `steps` and `lr`."""
        state = {"steps": np.array(self.steps), "lr": np.array(self.lr, np.float64)}
        for slot in self.slots:
            state[f"{slot.name}.steps"] = np.array(slot.steps)
            for kind, a in zip(self.keeps, slot.kept, strict=True):
                state[f"{slot.name}.{kind}"] = a.reshape(slot.tensor.shape).copy()
        return state

    def load_state_dict(self, state):
        """Put back what `state_dict` gave. ValueError, and no change, where names or shapes are not its own."""
        own = self.state_dict()
        wrong = [f"missing {name}" for name in own if name not in state]
        wrong += [f"unexpected {name}" for name in state if name not in own]
        wrong += [f"{name} has shape {a.shape}, got {np.shape(state[name])}" for name, a in own.items()
                  if name in state and np.shape(state[name]) != a.shape]
        if wrong:
            raise ValueError(f"{type(self).__name__}.load_state_dict: {'; '.join(wrong)}")
        self.steps, self.lr = int(state["steps"]), float(state["lr"])
        for slot in self.slots:
            slot.steps = int(state[f"{slot.name}.steps"])
            slot.kept = [np.array(state[f"{slot.name}.{kind}"], slot.flat.dtype).reshape(-1) for kind in self.keeps]

    def __repr__(self):
        settings = ", ".join(f"{k}={v}" for k, v in vars(self).items() if k != "slots")
        return f"{type(self).__name__}({settings}), {len(self.slots)} parameters"


class SGD(Optimizer):
    r"""g += weight_decay w;   m = momentum m + g;   w -= lr m,   or with nesterov   w -= lr (g + momentum m)."""

    def __init__(self, parameters, lr, momentum=0.0, nesterov=False, weight_decay=0.0):
        if not 0 <= momentum < 1 or (nesterov and momentum == 0):
            raise ValueError(f"SGD: expected momentum in 0 .. 1, above 0 for nesterov, got {momentum}")
        self.momentum, self.nesterov = momentum, nesterov
        self.keeps = ("m",) if momentum else ()
        super().__init__(parameters, lr, weight_decay)

    def update(self, w, g, kept, steps):
        args = (w, g, kept[0] if kept else w[:0], self.lr, self.momentum, self.nesterov, self.weight_decay)
        launch(len(w) * 0.3, _sgd, (*args, 0, len(w)), _sgd_parallel, args)


class Adam(Optimizer):
    r"""m = b1 m + (1 - b1) g;   v = b2 v + (1 - b2) g^2;   w -= lr m' / (sqrt(v') + eps)   (Kingma & Ba 2015)

    with m' = m / (1 - b1^t) and v' = v / (1 - b2^t) at step t; before it, g += weight_decay w.
    """
    keeps = ("m", "v")
    decoupled = False

    def __init__(self, parameters, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0):
        if not all(0 <= b < 1 for b in betas) or len(betas) != 2:
            raise ValueError(f"{type(self).__name__}: expected two betas in 0 .. 1, got {betas}")
        self.betas, self.eps = tuple(betas), eps
        super().__init__(parameters, lr, weight_decay)

    def update(self, w, g, kept, steps):
        b1, b2 = self.betas
        rate, root = self.lr / (1 - b1**steps), math.sqrt(1 - b2**steps)
        shrink = 1 - self.lr * self.weight_decay if self.decoupled else 1.0
        pull = 0.0 if self.decoupled else self.weight_decay
        args = (w, g, kept[0], kept[1], b1, b2, 1 - b1, 1 - b2, rate, root, self.eps, shrink, pull)
        launch(len(w) * 0.7, _adam, (*args, 0, len(w)), _adam_parallel, args)


class AdamW(Adam):
    r"""Adam, but weight decay acts on w alone: first w = (1 - lr weight_decay) w (Loshchilov & Hutter 2019)."""
    decoupled = True

    def __init__(self, parameters, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01):
        super().__init__(parameters, lr, betas, eps, weight_decay)


class Adadelta(Optimizer):
    r"""s = rho s + (1 - rho) g^2;   d = sqrt(u + eps) / sqrt(s + eps) g;   u = rho u + (1 - rho) d^2;   w -= lr d

    (Zeiler 2012), the steps in the unit of w itself, so that lr = 1; before it, g += weight_decay w.
    """
    keeps = ("s", "u")

    def __init__(self, parameters, lr=1.0, rho=0.9, eps=1e-6, weight_decay=0.0):
        if not 0 <= rho <= 1:
            raise ValueError(f"Adadelta: expected rho in 0 .. 1, got {rho}")
        self.rho, self.eps = rho, eps
        super().__init__(parameters, lr, weight_decay)

    def update(self, w, g, kept, steps):
        args = (w, g, kept[0], kept[1], self.lr, self.rho, 1 - self.rho, self.eps, self.weight_decay)
        launch(len(w) * 1.0, _adadelta, (*args, 0, len(w)), _adadelta_parallel, args)


def _tensors(who, parameters):
    """The Tensors in `parameters`, or an error that says what else came."""
    if isinstance(parameters, Tensor):
        raise TypeError(f"{who}: expected several parameters, got one Tensor: write [tensor] or model.parameters()")
    tensors = list(parameters)
    if not tensors:
        raise ValueError(f"{who}: expected at least one parameter, got none")
    for t in tensors:
        if not isinstance(t, Tensor):
            raise TypeError(f"{who}: expected Tensors, got {type(t).__name__}; write model.parameters()")
        if t.op is not None:
            raise ValueError(f"{who}: a Tensor of shape {t.shape} is the result of {t.op.name}, not a parameter")
    return tensors


# ---------------------------------------------------------------------------------------------------------------------
# the loops. Numbers come as Python floats and are brought to the type of w: float32 work would else be done in float64
# ---------------------------------------------------------------------------------------------------------------------
@kernel
def _sgd(w, g, m, lr, momentum, nesterov, pull, first, last):
    """g' = g + pull w;   m = momentum m + g';   w -= lr (m, or g' + momentum m, or g' where m is empty)"""
    lr, momentum, pull = w.dtype.type(lr), w.dtype.type(momentum), w.dtype.type(pull)
    w, g, m = w[first:last], g[first:last], m[first:last]
    if len(m) == 0:
        for i in range(len(w)):
            w[i] -= lr * (g[i] + pull * w[i])
    elif nesterov:
        for i in range(len(w)):
            at = g[i] + pull * w[i]
            m[i] = momentum * m[i] + at
            w[i] -= lr * (at + momentum * m[i])
    else:
        for i in range(len(w)):
            m[i] = momentum * m[i] + (g[i] + pull * w[i])
            w[i] -= lr * m[i]


@kernel
def _adam(w, g, m, v, b1, b2, c1, c2, rate, root, eps, shrink, pull, first, last):
    """With c = 1 - b, rate = lr / (1 - b1^t) and root = sqrt(1 - b2^t):

    g' = g + pull w;   m = b1 m + c1 g';   v = b2 v + c2 g'^2;   w = shrink w - rate m / (sqrt(v) / root + eps)
    """
    one = w.dtype.type
    b1, b2, c1, c2, rate, eps = one(b1), one(b2), one(c1), one(c2), one(rate), one(eps)
    root, shrink, pull = one(1 / root), one(shrink), one(pull)
    w, g, m, v = w[first:last], g[first:last], m[first:last], v[first:last]
    for i in range(len(w)):
        at = g[i] + pull * w[i]
        m[i] = b1 * m[i] + c1 * at
        v[i] = b2 * v[i] + c2 * (at * at)
        w[i] = shrink * w[i] - rate * (m[i] / (math.sqrt(v[i]) * root + eps))


@kernel
def _adadelta(w, g, s, u, lr, rho, c, eps, pull, first, last):
    """With c = 1 - rho:

    g' = g + pull w;   s = rho s + c g'^2;   d = sqrt(u + eps) / sqrt(s + eps) g';   u = rho u + c d^2;   w -= lr d
    """
    one = w.dtype.type
    lr, rho, c, eps, pull = one(lr), one(rho), one(c), one(eps), one(pull)
    w, g, s, u = w[first:last], g[first:last], s[first:last], u[first:last]
    for i in range(len(w)):
        at = g[i] + pull * w[i]
        s[i] = rho * s[i] + c * (at * at)
        d = math.sqrt(u[i] + eps) / math.sqrt(s[i] + eps) * at
        u[i] = rho * u[i] + c * (d * d)
        w[i] -= lr * d


@kernel(parallel=True)
def _sgd_parallel(w, g, m, lr, momentum, nesterov, pull):
    for c in prange(-(-len(w) // CHUNK)):
        _sgd(w, g, m, lr, momentum, nesterov, pull, c * CHUNK, min(len(w), (c + 1) * CHUNK))


@kernel(parallel=True)
def _adam_parallel(w, g, m, v, b1, b2, c1, c2, rate, root, eps, shrink, pull):
    for c in prange(-(-len(w) // CHUNK)):
        _adam(w, g, m, v, b1, b2, c1, c2, rate, root, eps, shrink, pull, c * CHUNK, min(len(w), (c + 1) * CHUNK))


@kernel(parallel=True)
def _adadelta_parallel(w, g, s, u, lr, rho, c1, eps, pull):
    for c in prange(-(-len(w) // CHUNK)):
        _adadelta(w, g, s, u, lr, rho, c1, eps, pull, c * CHUNK, min(len(w), (c + 1) * CHUNK))


@kernel(reduces=True)
def _sum_of_squares(g):
    """sum_i g_i^2 in float64, whatever the type of g."""
    total = 0.0
    for i in range(len(g)):
        x = np.float64(g[i])
        total += x * x
    return total


# ---------------------------------------------------------------------------------------------------------------------
# clipping
# ---------------------------------------------------------------------------------------------------------------------
def clip_grad_norm(parameters, max_norm):
    """Scale all gradients together so that their common norm is at most `max_norm`; returns the norm before, a float.

        norm = sqrt(sum over all parameters and elements of g^2)     in float64
        g = g * max_norm / (norm + 1e-6)                             where that is smaller

    as PyTorch has it. Parameters without a gradient are skipped, tied ones count once. FloatingPointError, and nothing
    is changed, where a gradient holds nan or inf: it names the parameter.
    """
    if not max_norm >= 0:
        raise ValueError(f"clip_grad_norm: expected max_norm of at least 0, got {max_norm}")
    tensors = [t for t in {id(t): t for t in _tensors("clip_grad_norm", parameters)}.values() if t.grad is not None]
    norm = math.sqrt(sum([_sum_of_squares(t.grad.array.reshape(-1)) for t in tensors]))
    if not math.isfinite(norm):
        norm = _careful_norm(tensors)
    scale = max_norm / (norm + 1e-6)
    if scale < 1:
        for t in tensors:  # into new memory: a gradient that the user set may be shared
            g = t.grad
            t.grad = g * scale if g.requires_grad else Tensor._wrap(np.asarray(g.array * scale), None, 0, False)
    return norm


def _careful_norm(tensors):
    """The norm where its square is beyond float64, or the error where a gradient is not finite."""
    for i, t in enumerate(tensors):
        if not np.isfinite(t.grad.numpy()).all():
            bad = tuple(int(n) for n in np.argwhere(~np.isfinite(t.grad.numpy()))[0])
            raise FloatingPointError(f"clip_grad_norm: the gradient of parameter {t.name or i} {t.shape} holds "
                                     f"{t.grad.numpy()[bad]} at index {bad}; nothing was changed")
    largest = max(float(np.abs(t.grad.numpy()).max(initial=0)) for t in tensors)
    return largest * math.sqrt(sum([float(((t.grad.numpy() / largest) ** 2).sum()) for t in tensors]))


# ---------------------------------------------------------------------------------------------------------------------
# learning rates: a factor is a function of the step (the first is 1), and the rate is a base times its factors
# ---------------------------------------------------------------------------------------------------------------------
def learning_rate(base, *factors):
    """A function of the step: base * factor(step) * ... Before a step: `optimizer.lr = rate(optimizer.steps + 1)`."""
    return lambda step: base * math.prod(factor(step) for factor in factors)


def constant():
    """1 at every step."""
    return lambda step: 1.0


def warmup(steps):
    """From 1 / steps up to 1 along a line, then 1."""
    _at_least_one("warmup", "steps", steps)
    return lambda step: min(1.0, step / steps)


def inverse_sqrt(warmup, width=None):
    """The Transformer's: width^-0.5 min(step^-0.5, step warmup^-1.5) (Vaswani et al. 2017).

    Without `width` it is scaled to be 1 at its highest, at step = warmup.
    """
    _at_least_one("inverse_sqrt", "warmup", warmup)
    top = math.sqrt(warmup) if width is None else width ** -0.5
    return lambda step: top * min(max(1, step) ** -0.5, step * warmup ** -1.5)


def cosine(total, final=0.0):
    """From 1 down to `final` at step `total` along half a cosine, then `final`."""
    _at_least_one("cosine", "total", total)
    return lambda step: final + (1 - final) * 0.5 * (1 + math.cos(math.pi * min(step, total) / total))


def linear(total, hold=0.5):
    """1 for the share `hold` of `total` steps, then down along a line to 0 at step `total`."""
    _at_least_one("linear", "total", total)
    return lambda step: min(1.0, max(0.0, (total - step) / (total * (1 - hold))))


def exponential(factor, every=1, start=0):
    """factor^((step - start) / every) from step `start` on, smoothly; 1 before."""
    _at_least_one("exponential", "every", every)
    return lambda step: factor ** (max(0, step - start) / every)


def halving(every, start=0):
    """1 up to step `start`, then halved every `every` steps, in jumps (Sutskever et al. 2014, Luong et al. 2015)."""
    _at_least_one("halving", "every", every)
    return lambda step: 0.5 ** (max(0, step - start) // every)


def _at_least_one(who, what, n):
    if not n >= 1:
        raise ValueError(f"{who}: expected {what} of at least 1, got {n}")
