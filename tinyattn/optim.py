r"""Optimisers, gradient clipping and learning rates: SGD, Adam, AdamW, Adadelta, each equal to PyTorch's.

    optimizer = Adam(model.parameters(), lr=1e-3)
    rate = learning_rate(1e-3, warmup(200), cosine(5000))
    for batch in batches:
        optimizer.lr = rate(optimizer.steps + 1)
        optimizer.zero_grad()
        loss(batch).backward()
        clip_grad_norm(model.parameters(), 1.0)
        optimizer.step()

One kernel updates all parameters: it reads each element of the weights w, the gradient g and the optimiser's own arrays
once, and writes in place. See `updates.py`. A backward pass through a graph that still needs the old weights raises.

On a card (see `updates_cuda.py`) nothing here reads a number from it. The norm is a Tensor there, and a loss or a norm that is nan
or inf is no error at once: it stops the updates, and whoever asks from time to time is told at which step.

    optimizer.guard(loss)                               # before or after its backward pass
    norms.append(optimizer.clip_grad_norm(1.0))
    optimizer.step()
    if optimizer.steps % 50 == 0 and (found := optimizer.halted()):
        step, what = found                              # weights and memory are those of before that step
"""
import math

import numpy as np

from . import device, updates, updates_cuda
from .autograd import state
from .tensor import Tensor


class Optimizer:
    """What all optimisers share. A subclass gives `keeps`, the names of its arrays, its `rule` and `numbers`.

    parameters     Tensors (leaves); one that is given twice, as tied weights may be, is stepped once
    lr             the learning rate; may be set before any step: `optimizer.lr = 0.01`
    weight_decay   pull towards 0
    steps          how many steps were made

    Parameters on a card are updated there; they may be moved there and back at any time.
    """
    keeps = ()
    rule = nanoseconds = None  # its number in `updates`, and about what an element takes

    def __init__(self, parameters, lr, weight_decay=0.0):
        who = type(self).__name__
        for name, value in (("lr", lr), ("weight_decay", weight_decay)):
            if not 0 <= value < math.inf:
                raise ValueError(f"{who}: expected {name} of at least 0, got {value}")
        self.lr, self.weight_decay, self.steps, self.flag = lr, weight_decay, 0, None
        tensors = list({id(t): t for t in _tensors(who, parameters)}.values())
        names = [t.name for t in tensors]
        self.slots = [updates.Slot(t, t.name if t.name and names.count(t.name) == 1 else f"parameter{i}", len(self.keeps))
                      for i, t in enumerate(tensors)]
        self._arrange()

    def _arrange(self):
        """A table for each dtype and device."""
        groups = {}
        for slot in self.slots:
            groups.setdefault((slot.tensor.dtype, slot.tensor.device), []).append(slot)
        kinds = {"cpu": updates.Table, "cuda": updates_cuda.CardTable}
        self.tables = [kinds[place](type(self).__name__, slots, dtype) for (dtype, place), slots in groups.items()]
        self.cards = [table for table in self.tables if table.device == "cuda"]
        if self.cards and self.flag is None:
            self.flag = updates_cuda.Flag()
        for table in self.cards:
            table.flag = self.flag

    def _look(self):
        """Bring the tables up to date."""
        if not all(table.look() for table in self.tables):
            self._settle()
            for table in self.tables:
                table.fetch()
            for slot in self.slots:
                slot.bind()
            self._arrange()
            self._look()

    def _settle(self):
        """Have the right number of steps in every slot. Waits for a card."""
        for table in self.tables:
            table.settle()
        self.halted()

    def step(self):
        """Update every parameter that has a gradient; the others are left as they are. None is, where one does not fit."""
        if state.tape is not None:
            return state.tape.effect("the optimiser's step", self.step)
        self._look()
        self.steps += 1
        if self.cards:
            self.flag.step = self.steps
        for table in self.tables:
            table.step(self.rule, self.nanoseconds, self.numbers)

    def numbers(self, steps):
        """The settings of the rule at a parameter's step number `steps`, from 1: see its kernel."""
        raise NotImplementedError

    def clip_grad_norm(self, max_norm):
        """As the function of this name, for the parameters of this optimiser, but in place: for gradients that nobody else
        holds, as `backward()` makes them. One kernel for the norm and one to scale, however many parameters there are.

        On a card a norm of nan or inf is no error: it halts the steps, see `halted`. (With parameters on two devices it is.)
        """
        if state.tape is not None:
            return state.tape.effect("clipping", lambda: self.clip_grad_norm(max_norm))
        self._look()
        if 0 < len(self.cards) < len(self.tables):  # on two devices: the norm has to be read
            norm = float(_clip([s.tensor for s in self.slots], max_norm))
            if not math.isfinite(norm):
                raise FloatingPointError(f"clip_grad_norm: the norm of the gradients is {norm}; nothing was changed")
            return norm
        tensors = [s.tensor for table in self.tables for s in table.active]
        if not max_norm >= 0 or any(t.foreign for t in self.tables) or any(t.grad.requires_grad for t in tensors):
            return _clip([s.tensor for s in self.slots], max_norm, self.flag, self.steps + 1)
        if self.cards:
            return _scalar(updates_cuda.clip(self.cards, max_norm, self.flag, self.steps + 1))
        norm = _norm(tensors, [n for table in self.tables for n in updates.squares_of(table.places, table.kept)])
        if max_norm / (norm + 1e-6) < 1:
            for table in self.tables:
                updates.scale_in_place(table.places, table.kept, max_norm / (norm + 1e-6))
        return norm

    def guard(self, loss):
        """Have a loss watched: if this Tensor of one number is nan or inf, no step from now on changes anything.

        On a card nothing waits, and `halted` tells. On the CPU, or where not all parameters are on the card: FloatingPointError.
        """
        if state.tape is not None:
            state.tape.fail("optimizer.guard(loss) stands in it; call it on what the step returns")
        if loss.size != 1:
            raise ValueError(f"{type(self).__name__}.guard: expected a loss of one element, got shape {loss.shape}")
        if loss.device == "cuda" and len(self.cards) == len(self.tables):
            self.flag.guard(loss.array, self.steps + 1)
        elif not math.isfinite(loss.item()):
            raise FloatingPointError(f"{type(self).__name__}.guard: the loss is {loss.item()} at step {self.steps + 1}")

    def halted(self):
        """None, or (step, what): at that step the loss or the norm was nan or inf, so it and all later ones were not made.

        `steps` is then the number of those that were. This waits for the card, so ask rarely, as every 50 steps.
        """
        found = self.flag.read() if self.cards else None
        for table in self.cards:
            table.uncount(found and found[0], self.steps)
        if found:
            self.steps = min(self.steps, found[0] - 1)
        return found

    def go_on(self):
        """Make steps again after they were halted."""
        if self.cards:
            self._settle()
            self.flag.lower()

    def zero_grad(self):
        """Forget the gradients."""
        for slot in self.slots:
            slot.tensor.grad = None

    def state_dict(self):
        """All that a bit-for-bit resume needs, as {text: NumPy array}: `NAME.m`, `NAME.steps` ..., `steps` and `lr`.

        The same whatever the device. Steps that were halted are not in it.
        """
        self._settle()
        for table in self.tables:
            table.fetch()
        state = {"steps": np.array(self.steps), "lr": np.array(self.lr, np.float64)}
        for slot in self.slots:
            state[f"{slot.name}.steps"] = np.array(slot.steps)
            for kind, a in zip(self.keeps, slot.kept, strict=True):
                state[f"{slot.name}.{kind}"] = a.reshape(slot.tensor.shape).copy()
        return state

    def load_state_dict(self, state):
        """Put back what `state_dict` gave, on any device. ValueError, and no change, where names or shapes are not its own.
        What was halted goes on."""
        own = self.state_dict()
        wrong = [f"missing {name}" for name in own if name not in state]
        wrong += [f"unexpected {name}" for name in state if name not in own]
        wrong += [f"{name} has shape {a.shape}, got {np.shape(state[name])}" for name, a in own.items()
                  if name in state and np.shape(state[name]) != a.shape]
        if wrong:
            raise ValueError(f"{type(self).__name__}.load_state_dict: {'; '.join(wrong)}")
        self.go_on()
        self.steps, self.lr = int(state["steps"]), float(state["lr"])
        for slot in self.slots:
            slot.steps = int(state[f"{slot.name}.steps"])
            for kind, a in zip(self.keeps, slot.kept, strict=True):
                a[...] = np.reshape(state[f"{slot.name}.{kind}"], -1)
        for table in self.tables:
            table.stow()

    def __getstate__(self):
        """For copies and pickles: all but the tables, which hold addresses."""
        self._settle()
        for table in self.tables:
            table.fetch()
        return {k: v for k, v in vars(self).items() if k not in ("tables", "cards", "flag")}

    def __setstate__(self, state):
        vars(self).update(state, flag=None)
        self._arrange()

    def __repr__(self):
        settings = ", ".join(f"{k}={v}" for k, v in vars(self).items() if k not in ("slots", "tables", "cards", "flag", "rule"))
        return f"{type(self).__name__}({settings}), {len(self.slots)} parameters"


class SGD(Optimizer):
    r"""g += weight_decay w;   m = momentum m + g;   w -= lr m,   or with nesterov   w -= lr (g + momentum m)."""
    nanoseconds = 0.3

    def __init__(self, parameters, lr, momentum=0.0, nesterov=False, weight_decay=0.0):
        if not 0 <= momentum < 1 or (nesterov and momentum == 0):
            raise ValueError(f"SGD: expected momentum in 0 .. 1, above 0 for nesterov, got {momentum}")
        self.momentum, self.nesterov = momentum, nesterov
        self.keeps, self.rule = (("m",), updates.MOMENTUM) if momentum else ((), updates.SGD)
        super().__init__(parameters, lr, weight_decay)

    def numbers(self, steps):
        return self.lr, self.weight_decay, self.momentum, self.nesterov


class Adam(Optimizer):
    r"""m = b1 m + (1 - b1) g;   v = b2 v + (1 - b2) g^2;   w -= lr m' / (sqrt(v') + eps)   (Kingma & Ba 2015)

    with m' = m / (1 - b1^t) and v' = v / (1 - b2^t) at step t; before it, g += weight_decay w.
    """
    keeps = ("m", "v")
    rule, nanoseconds = updates.ADAM, 0.7
    decoupled = False

    def __init__(self, parameters, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0):
        if not all(0 <= b < 1 for b in betas) or len(betas) != 2:
            raise ValueError(f"{type(self).__name__}: expected two betas in 0 .. 1, got {betas}")
        self.betas, self.eps = tuple(betas), eps
        super().__init__(parameters, lr, weight_decay)

    def numbers(self, steps):
        b1, b2 = self.betas
        rate, root = self.lr / (1 - b1**steps), math.sqrt(1 - b2**steps)
        shrink = 1 - self.lr * self.weight_decay if self.decoupled else 1.0
        return b1, b2, 1 - b1, 1 - b2, rate, root, self.eps, shrink, 0.0 if self.decoupled else self.weight_decay


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
    rule, nanoseconds = updates.ADADELTA, 1.0

    def __init__(self, parameters, lr=1.0, rho=0.9, eps=1e-6, weight_decay=0.0):
        if not 0 <= rho <= 1:
            raise ValueError(f"Adadelta: expected rho in 0 .. 1, got {rho}")
        self.rho, self.eps = rho, eps
        super().__init__(parameters, lr, weight_decay)

    def numbers(self, steps):
        return self.lr, self.rho, 1 - self.rho, self.eps, self.weight_decay


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
# clipping
# ---------------------------------------------------------------------------------------------------------------------
def clip_grad_norm(parameters, max_norm):
    """Scale all gradients together so that their common norm is at most `max_norm`; returns the norm before, a float.

        norm = sqrt(sum over all parameters and elements of g^2)     in float64
        g = g * max_norm / (norm + 1e-6)                             where that is smaller

    as PyTorch has it. Parameters without a gradient are skipped, tied ones count once. FloatingPointError, and nothing
    is changed, where a gradient holds nan or inf: it names the parameter.

    On a card the norm is a Tensor of float64 there, `norm.item()` waits for it; if it is nan or inf, nothing is scaled.
    """
    return _clip(_tensors("clip_grad_norm", parameters), max_norm)


def _clip(given, max_norm, flag=None, step=0):
    """The same; on a card, a norm that is nan or inf raises the flag, if one is given."""
    if not max_norm >= 0:
        raise ValueError(f"clip_grad_norm: expected max_norm of at least 0, got {max_norm}")
    if state.tape is not None:
        return state.tape.effect("clipping", lambda: _clip(given, max_norm, flag, step))
    tensors = [t for t in {id(t): t for t in given}.values() if t.grad is not None]
    if tensors and all(t.grad.device == "cuda" for t in tensors):
        return _clip_on_card(tensors, max_norm, flag, step)
    norm = _norm(tensors, [updates.sum_of_squares(device.to_device(t.grad.array, "cpu").reshape(-1)) for t in tensors])
    scale = max_norm / (norm + 1e-6)
    if scale < 1:
        for t in tensors:  # into new memory: a gradient that the user set may be shared
            g = t.grad
            alone = g.requires_grad or g.device == "cuda"
            t.grad = g * scale if alone else Tensor._wrap(np.asarray(g.array * scale), None, 0, False)
    return norm


def _clip_on_card(tensors, max_norm, flag, step):
    norm, scale, copies = updates_cuda.clipped([t.grad.array for t in tensors], max_norm, flag, step)
    for t, copy in zip(tensors, copies, strict=True):
        g = t.grad
        t.grad = g * _scalar(scale).reshape(()).to(g.dtype) if g.requires_grad else Tensor._wrap(copy, None, 0, False)
    return _scalar(norm)


def _scalar(array):
    return Tensor._wrap(array, None, 0, False)


def _norm(tensors, squares):
    """The norm of the gradients of `tensors`, from the sums of their squares."""
    norm = math.sqrt(sum(squares))
    return norm if math.isfinite(norm) else _careful_norm(tensors)


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
