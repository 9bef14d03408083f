"""`compile(step)`: run a training step once, and from then on only its arithmetic.

    @ta.compile
    def step(x, y):
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        clip_grad_norm(model.parameters(), 1.0)
        optimizer.step()
        return loss

    for x, y in batches:
        print(step(x, y).item())
"""
import functools
from collections import Counter, OrderedDict
from dataclasses import dataclass

import numpy as np

from .. import device, random
from ..autograd import Op, _set, is_grad_enabled, state
from . import passes
from .fusion import fuse
from .replay import Arena, Replay
from .tape import Tape
from .trace import Hole, Uncapturable

ndarray = np.ndarray
KEPT = 256           # programs of other shapes that a compiled step keeps, the least used one goes first
CLOSE = 1e-5         # how far the first replay on other data may be from the eager step, as a share of the largest element
PASSES = {"needless copies": passes.needless_copies, "dead code": passes.dead_code, "common subexpressions": passes.common_subexpressions,
          "fusion": fuse, "dead code again": passes.dead_code}


@dataclass
class _Entry:
    """The program of one signature. checked: has a replay on other data than the captured been compared with eager?"""
    replay: Replay
    inputs: list
    checked: bool = False


class Compiled:
    """A step that is captured at its first call and replayed afterwards. See `compile`."""

    def __init__(self, step, fused=True, after=0):
        functools.update_wrapper(self, step)
        self.step, self.fused, self.after, self.arena, self.seen = step, fused, after, Arena(), Counter()
        self.programs, self.title = OrderedDict(), getattr(step, "__qualname__", type(step).__name__)
        self.reason = ""       # why it stays eager, "" while it does not
        self.captures, self.replays, self.eager = 0, 0, 0

    def __call__(self, *args, **kwargs):
        arrays = []
        tree = _arrays_out((args, kwargs), arrays)
        if self.reason or state.special or not is_grad_enabled():
            self.eager += 1
            return detached(self.step(*args, **kwargs))
        key = repr(tree), tuple([(a.shape, a.dtype.char) for a in arrays])
        entry = self.programs.get(key)
        if entry is None or not entry.replay.fits():
            self.seen[key] += 1
            if self.seen[key] > self.after:
                return self._capture(key, tree, arrays, args, kwargs)
            self.eager += 1
            return detached(self.step(*args, **kwargs))
        self.programs.move_to_end(key)
        if not entry.checked and not all(map(np.array_equal, entry.inputs, arrays)):
            return self._checked(entry, tree, arrays, args, kwargs)
        self.replays += 1
        return entry.replay.run(arrays)

    def __get__(self, instance, owner=None):
        """As a method it is bound like a function; all instances share one Compiled, so `self` must not differ."""
        raise TypeError(f"compile: {self.step.__qualname__} is a method; compile it bound, as in compile(model.{self.step.__name__})")

    # -- capturing ---------------------------------------------------------------------------------------------------
    def _capture(self, key, tree, arrays, args, kwargs):
        """Run the step eagerly, written down; keep the program."""
        own = [np.array(a, order="C") for a in arrays]
        captured, result, reason = capture(self.step, tree, own)
        if not reason:
            try:
                captured = optimised(captured) if self.fused else captured
                self.programs[key] = _Entry(Replay(captured, self.arena), [a.copy() for a in own])
                self.captures += 1
            except Uncapturable as error:
                reason = str(error)
        if reason:
            self._stay_eager(reason)
        while len(self.programs) > KEPT:
            self.programs.popitem(last=False)
        return result

    def _checked(self, entry, tree, arrays, args, kwargs):
        """The first replay on other data than the captured: make it, and make the step eagerly too; they must agree."""
        before = random.get_state()
        outputs, gradients = entry.replay.values(arrays)
        random.set_state(before)
        watch = _Watch([leaf for leaf, *_ in entry.replay.leaves])
        with _set(tape=watch):
            result = self.step(*args, **kwargs)
        if watch.gradients is None:
            watch.effect("", lambda: None)
        found = []
        tensors_of(result, found)
        pairs = [("what it returns", a, t.array) for a, t in zip(outputs, found, strict=True)]
        pairs += [(f"the gradient of {leaf.name or 'a parameter'} {leaf.shape}", a, b)
                  for (leaf, *_), a, b in zip(entry.replay.leaves, gradients, watch.gradients, strict=True)]
        for what, a, b in pairs:
            if b is None or not close(a, b):
                self._stay_eager(f"{what} is not what the eager step gives on other data: it depends on something that was neither "
                                 "an argument nor a parameter")
                break
        entry.checked = True
        return detached(result)

    def _stay_eager(self, reason):
        self.reason = reason
        self.programs.clear()
        device.notice(f"compile: {self.title} stays eager: {reason}")


def compile(step=None, *, fused=True, after=0):
    """Capture a training step at its first call, and replay it from then on: no Tensor, no graph, no walk, planned memory.

    step     a function of NumPy arrays and Tensors (also in tuples, lists and dictionaries) and of plain settings. It may
             call zero_grad, backward, clip_grad_norm and an optimiser's step, in this order, and return Tensors
    fused    join chains of elementwise operations into one kernel each
    after    so many calls of one combination of shapes run eagerly before it is captured: a capture takes the time of a
             few steps, which a shape that comes once does not pay back
    Returns  a function of the same arguments. The Tensors that it returns are outside of any graph. It keeps a program for
             each combination of shapes and settings that it meets

    Python runs at the first call only. So what is neither an argument nor a parameter is a constant, and a step that reads
    a value in Python (`if x.max() > 1`, `.item()`) cannot be captured: it stays eager, and one line on standard error says
    why (`.reason` too). The first replay on other data is compared with the eager step. `.grad` of the parameters is
    overwritten by the next call.
    """
    if step is None:
        return functools.partial(compile, fused=fused, after=after)
    if not callable(step):
        raise TypeError(f"compile: expected a function, got {type(step).__name__}")
    return Compiled(step, fused, after)


# ---------------------------------------------------------------------------------------------------------------------
# the parts, also for those who want to look at them
# ---------------------------------------------------------------------------------------------------------------------
def capture(step, tree, arrays):
    """Run a step on the arguments `tree`, whose Holes stand for `arrays` (which become the inputs of the program).
    (Captured, what it returned, ""), or (None, what it returned, why it cannot be captured)."""
    tape = Tape(arrays)
    before = random.get_state()
    with _set(tape=tape):
        args, kwargs = _as_given(tree, tape)
        result = step(*args, **kwargs)
    captured = tape.told_all(result)
    if not tape.reason and not _only_seeds(before, tape.seeds):
        tape.fail("it draws random numbers itself; draw them outside, and give them as an argument")
    return captured, detached(result), tape.reason


def _only_seeds(before, seeds):
    """Were so many seeds the only random numbers that were drawn? Others would be the same in every replay."""
    after = random.get_state()
    random.set_state(before)
    for _ in range(seeds):
        random.next_seed()
    same = random.get_state() == after
    random.set_state(after)
    return same


def stages(captured):
    """The passes one by one: yields (name, Captured after it), beginning with ("captured", captured)."""
    yield "captured", captured
    for name, one in PASSES.items():
        captured = one(captured)
        yield name, captured


def optimised(captured):
    """The step after all passes."""
    *_, (_, captured) = stages(captured)
    return captured


class _TensorHole(Hole):
    """The place of an array that was given as a Tensor."""

    def __repr__(self):
        return f"t{self.number}"


def _arrays_out(tree, found):
    """The arguments with a Hole in the place of each array; the arrays are appended to `found`."""
    if isinstance(tree, Op.result):
        if tree.requires_grad:
            raise TypeError("compile: an argument requires a gradient; a parameter is no argument, the step uses it by its name")
        found.append(tree.numpy())
        return _TensorHole(len(found) - 1)
    if isinstance(tree, ndarray):
        found.append(tree)
        return Hole(len(found) - 1)
    if type(tree) in (tuple, list):
        return type(tree)([_arrays_out(x, found) for x in tree])
    if type(tree) is dict:
        return {k: _arrays_out(v, found) for k, v in tree.items()}
    if tree is None or isinstance(tree, (bool, int, float, str, np.generic)):
        return tree
    raise TypeError(f"compile: expected arrays, Tensors, numbers and texts as arguments, also in tuples, lists and dictionaries; "
                    f"got {type(tree).__name__}")


def _as_given(tree, tape):
    """The arguments as the step is to see them while it is captured: arrays that leave a trace, and Tensors."""
    if type(tree) is _TensorHole:
        return Op.result._wrap(tape.made_by_number[tape.inputs[tree.number]], None, 0, False)
    if type(tree) is Hole:
        number = tape.inputs[tree.number]
        return tape.shown(tape.made_by_number[number])
    if type(tree) in (tuple, list):
        return type(tree)([_as_given(x, tape) for x in tree])
    if type(tree) is dict:
        return {k: _as_given(v, tape) for k, v in tree.items()}
    return tree


def tensors_of(tree, found):
    """Append all Tensors of a result to `found`."""
    if isinstance(tree, Op.result):
        found.append(tree)
    elif isinstance(tree, (tuple, list)):
        for x in tree:
            tensors_of(x, found)
    elif isinstance(tree, dict):
        tensors_of(list(tree.values()), found)


def detached(tree):
    """A result with its Tensors outside the graph."""
    if isinstance(tree, Op.result):
        return tree.detach()
    if type(tree) in (tuple, list):
        return type(tree)([detached(x) for x in tree])
    if type(tree) is dict:
        return {k: detached(v) for k, v in tree.items()}
    return tree


def close(a, b):
    """Equal but for rounding: up to CLOSE times the largest element."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.dtype.kind != "f" or not a.size:
        return np.array_equal(a, b)
    largest = np.max(np.abs(b[np.isfinite(b)]), initial=0)
    return np.allclose(a, b, rtol=0, atol=CLOSE * largest + 1e-30, equal_nan=True)


class _Watch:
    """A tape that writes nothing, but keeps the gradients as they were before the first update."""
    reason = ""

    def __init__(self, leaves):
        self.leaves, self.gradients = leaves, None

    def called(self, *args):
        pass

    ruled = accumulated = added = made = copied = graded = wrapped = number = called

    def shown(self, array):
        return array

    def effect(self, name, function):
        if self.gradients is None:
            self.gradients = [None if t.grad is None else np.array(t.grad.array) for t in self.leaves]
        with _set(tape=None):
            return function()
