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
import threading
from collections import Counter, OrderedDict

import numpy as np

from .. import device, random
from ..autograd import Op, _set, state
from ..tensor import get_default_dtype
from . import card, passes
from .calls import drawn, rewind
from .check import Watch, leaves_of
from .fusion import fuse
from .replay import Arena, Replay
from .tape import Tape
from .trace import Hole, Traced, Uncapturable, plain

ndarray = np.ndarray
KEPT = 256           # programs of other shapes that a compiled step keeps, the least used one goes first
PASSES = {"needless copies": passes.needless_copies, "dead code": passes.dead_code,
          "common subexpressions": passes.common_subexpressions, "fusion": fuse, "dead code again": passes.dead_code}


class _Entry:
    """The program of one signature, and what is not known of it yet.

    inputs    the bytes of the host's arrays of the capture, by their place, that every call so far was given again: a
              program may depend on them in a way that was not seen (of a card's arrays it is seen: the host must ask for them)
    judged    leaves of which it is known what the step does with a gradient from before: it forgets it, or (those of other
              programs) leaves it alone. `forgotten` are those of other programs that it forgets
    calls     replays and comparisons so far; at 1, 10, 100, ... one is compared with the eager step
    """

    def __init__(self, replay, inputs):
        self.replay, self.inputs = replay, {i: a.tobytes() for i, a in enumerate(inputs) if type(a) is ndarray}
        self.judged, self.forgotten, self.calls, self.next = set(), [], 0, 1
        self.sets = {id(leaf) for leaf in replay.captured.leaves}

    def doubtful(self, arrays, leaves):
        """Must this call be compared with the eager step?"""
        self.calls += 1
        if self.calls == self.next or len(self.judged) < len(leaves) and any(
                t.grad is not None and i not in self.judged for i, t in leaves.items()):
            return True
        return any(arrays[i].tobytes() != a for i, a in self.inputs.items())

    def compared(self, arrays):
        """A comparison on these arrays went well."""
        self.inputs = {i: a for i, a in self.inputs.items() if arrays[i].tobytes() == a}
        self.next = self.next * 10 if self.calls >= self.next else self.next


class Compiled:
    """A step that is captured at its first call and replayed afterwards. See `compile`."""

    def __init__(self, step, fused=True, after=0):
        functools.update_wrapper(self, step)
        self.step, self.fused, self.after, self.arena, self.seen = step, fused, after, Arena(), Counter()
        self.programs, self.title = OrderedDict(), getattr(step, "__qualname__", type(step).__name__)
        self.reason = ""       # why it stays eager, "" while it does not
        self.captures, self.replays, self.eager = 0, 0, 0
        self.leaves = {}       # {id: leaf} of all whose gradient any of the programs sets or uses
        self.last = None       # the entry that was replayed last: its gradients stand in the memory that all programs share
        self.lock = threading.RLock()  # its programs share memory: one thread at a time

    def __call__(self, *args, **kwargs):
        arrays, key = [], None if kwargs else _quick_key(args)
        try:
            if key is None:
                key = repr(_arrays_out((args, kwargs), arrays)), tuple([(a.shape, a.dtype) for a in arrays])
            else:
                arrays = [a for a in args if type(a) is ndarray]
        except Uncapturable as error:
            if not self.reason:
                self._stay_eager(str(error))
        if self.reason or state.special or state.captures or not state.recording:
            self.eager += 1
            return detached(self.step(*args, **kwargs))
        with self.lock:
            return self._run((key, get_default_dtype(), device.get_default_device()), arrays, args, kwargs)

    def _run(self, key, arrays, args, kwargs):
        entry = self.programs.get(key)
        if entry is None or not entry.replay.fits():
            return self._first(key, arrays, args, kwargs)
        self.programs.move_to_end(key)
        if entry.doubtful(arrays, self.leaves):
            return self._checked(entry, _arrays_out((args, kwargs), []), arrays)
        if self.last is not entry:
            self._save_gradients(entry.sets)
            self.last = entry
        self.replays += 1
        for leaf in entry.forgotten:
            leaf.grad = None
        return entry.replay.run(arrays)

    def _first(self, key, arrays, args, kwargs):
        """There is no program for these shapes, or none that fits any more."""
        if len(self.seen) > 16 * KEPT:
            self.seen.clear()
        self.seen[key] += 1
        if self.seen[key] > self.after:
            return self._capture(key, _arrays_out((args, kwargs), []), arrays, args, kwargs)
        self.eager += 1
        if self.seen[key] > 1:
            return detached(self.step(*args, **kwargs))
        watch = Watch()
        with _set(tape=watch):
            result = self.step(*args, **kwargs)
        self._know(watch.leaves.values())
        return detached(result)

    def __get__(self, instance, owner=None):
        """As a method it is bound like a function; all instances share one Compiled, so `self` must not differ."""
        raise TypeError(f"compile: {self.step.__qualname__} is a method; compile it bound, as in "
                        f"compile(model.{self.step.__name__})")

    def __reduce__(self):
        """A copy captures anew: programs are bound to memory."""
        return Compiled, (self.step, self.fused, self.after)

    # -- capturing ---------------------------------------------------------------------------------------------------
    def _capture(self, key, tree, arrays, args, kwargs):
        """Run the step eagerly, written down; keep the program."""
        self._save_gradients()
        own = [np.array(a, order="C") if isinstance(a, ndarray) else device.copy(a) for a in arrays]
        captured, result, reason = capture(self.step, tree, own, lambda: self.step(*args, **kwargs))
        if not reason:
            try:
                self.programs[key] = _Entry(self._bound(captured), own)
                self.captures += 1
                self._know([*captured.leaves, *leaves_of(captured.effects)])
            except Uncapturable as error:
                reason = str(error)
            except Exception as error:
                reason = f"its calls cannot be run again: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
        if reason:
            self._stay_eager(reason)
            for array, a in zip(arrays, own):  # what the step wrote into its argument
                if isinstance(array, ndarray) and array.flags.writeable and not np.array_equal(array, a):
                    array[...] = a
        while len(self.programs) > KEPT:
            self.programs.popitem(last=False)
        return result

    def _bound(self, captured):
        try:
            return Replay(optimised(captured) if self.fused else captured, self.arena)
        except Uncapturable:
            if not self.fused:
                raise
            return Replay(captured, self.arena)  # the layout of an array that a chain reads depends on that of another

    def _save_gradients(self, anew=()):
        """Take the gradients of the last replay out of the memory that is going to be written over; not those of the leaves
        (by id) that are set anew."""
        if self.last is not None:
            for leaf, _, gradient in self.last.replay.leaves:
                if leaf.grad is gradient and id(leaf) not in anew:
                    leaf.grad = detached(gradient)
        self.last = None

    def _know(self, leaves):
        self.leaves.update({id(t): t for t in leaves})

    def _checked(self, entry, tree, arrays):
        """Replay, and make the step eagerly too, and compare all that comes out; what is given is what the eager step gives."""
        self._save_gradients()
        replay, before = entry.replay, drawn()
        outputs, gradients = replay.values(arrays)
        after = drawn()
        rewind(before)
        had = {i for i, t in self.leaves.items() if t.grad is not None}
        watch = Watch()
        with _set(tape=watch):
            args, kwargs = _rebuilt(tree, [np.ascontiguousarray(a) if type(a) is ndarray and a.ndim else a
                                          for a in arrays])
            result = self.step(*args, **kwargs)
        reason = watch.differs(replay.captured, outputs, gradients, result) or (
            "" if drawn() == after else "it does not draw as many random numbers each time")
        if reason:
            self._stay_eager(reason)
            return detached(result)
        own = {id(leaf) for leaf in replay.captured.leaves}
        entry.judged |= had
        entry.forgotten += [self.leaves[i] for i in had - own if self.leaves[i].grad is None]
        entry.compared(arrays)
        self._know(watch.leaves.values())
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
    Returns  a function of the same arguments. The Tensors that it returns are copies outside of any graph. It keeps a program
             for each combination of shapes and settings that it meets, of the 256 last used.
             Arrays are read as if their elements lay one after the other (in C order)

    Python runs at the first call only, and where a replay is compared with the eager step: at the second call of a program, as
    soon as an argument is not what it was in all calls before, and at 10, 100, ... replays. All that comes out must be the same,
    bit for bit. So what is neither an argument nor a Tensor is a constant (`training` of a module, a number that a closure
    holds), and a step that reads a value in Python (`if x.max() > 1`, `.item()`), writes in place, or adds to gradients of before
    stays eager: one line on standard error says why (`.reason` too). `.grad` of the parameters is overwritten by the next call.
    On a card the same holds, and a replay does not wait for it: what the step's arrays hold is sent without, and gradients and what
    is returned stay there. The comparisons do wait. A step that reads what was computed there stays eager; `optimizer.guard(loss)`
    has its place after the step, on the loss that it returns.
    Eager too, for this call, it runs under no_grad(), fused("never"), detect_anomaly() and capture(), and within another one.
    """
    if step is None:
        return functools.partial(compile, fused=fused, after=after)
    if not callable(step):
        raise TypeError(f"compile: expected a function, got {type(step).__name__}")
    return Compiled(step, fused, after)


# ---------------------------------------------------------------------------------------------------------------------
# the parts, also for those who want to look at them
# ---------------------------------------------------------------------------------------------------------------------
def capture(step, tree, arrays, again=None):
    """Run a step on the arguments `tree`, whose Holes stand for `arrays` (which become the inputs of the program).
    (Captured, what it returned, ""), or (None, what it returned, why it cannot be captured).

    again    runs the step on the arguments as they were given: where it raises an error that may come from the arrays that
             leave a trace, which not all code takes
    """
    tape = Tape(arrays)
    before = _all_drawn()
    try:
        with _set(tape=tape):
            args, kwargs = _as_given(tree, tape)
            result = step(*args, **kwargs)
    except Exception as error:
        if again is None or tape.effects or not arrays:
            raise
        _rewind_all(before)
        for leaf, _, grad in tape.gradients.values():
            leaf.grad = grad
        result = again()  # or its own error
        return None, detached(result), tape.reason or f"on arrays that leave a trace it raises {type(error).__name__}: " \
            f"{str(error).partition(chr(10))[0]}"
    finally:
        tape.ended = True
    captured = tape.told_all(result)
    if not tape.reason and not _only_seeds(before, tape.seeds):
        tape.fail("it draws random numbers itself; draw them outside, and give them as an argument")
    return captured, detached(result), tape.reason


def _all_drawn():
    """The states of the package's random numbers and of NumPy's."""
    return drawn(), np.random.get_state(legacy=False)


def _rewind_all(states):
    rewind(states[0])
    np.random.set_state(states[1])


def _only_seeds(before, seeds):
    """Were so many seeds the only random numbers that were drawn? Others would be the same in every replay."""
    after = _all_drawn()
    _rewind_all(before)
    for _ in range(seeds):
        random.next_seed()
    same = repr(_all_drawn()) == repr(after)
    _rewind_all(after)
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


def _quick_key(args):
    """What tells programs apart, for arguments that are plain arrays and settings; None where it takes a closer look."""
    key = []
    for a in args:
        if type(a) is ndarray:
            key.append((a.shape, a.dtype))
        elif a is None or type(a) in (bool, int, str):
            key.append((type(a), a))
        else:
            return None
    return tuple(key)


class _TensorHole(Hole):
    """The place of an array that was given as a Tensor."""

    def __repr__(self):
        return f"t{self.number}"


class _CardHole(_TensorHole):
    """The place of one that lives on a card."""

    def __repr__(self):
        return f"c{self.number}"


class _SentHole(Hole):
    """The place of one on a card whose numbers the host sent there, and remembers: they are sent again."""

    def __repr__(self):
        return f"s{self.number}"


def _arrays_out(tree, found):
    """The arguments with a Hole in the place of each array; the arrays are appended to `found`."""
    if isinstance(tree, Op.result):
        if tree.requires_grad:
            raise TypeError("compile: an argument requires a gradient; a parameter is no argument, the step uses it by its name")
        known = card.known(tree.array)
        found.append(tree.numpy() if tree.device == "cpu" else tree.array if known is None else known)
        return (_TensorHole if tree.device == "cpu" else _CardHole if known is None else _SentHole)(len(found) - 1)
    if type(tree) in (ndarray, np.memmap, Traced):
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
    if isinstance(tree, _TensorHole):
        return Op.result._wrap(tape.made_by_number[tape.inputs[tree.number]], None, 0, False)
    if type(tree) is _SentHole:
        return Op.result(tape.shown(tape.made_by_number[tape.inputs[tree.number]]), device="cuda")
    if type(tree) is Hole:
        number = tape.inputs[tree.number]
        return tape.shown(tape.made_by_number[number])
    if type(tree) in (tuple, list):
        return type(tree)([_as_given(x, tape) for x in tree])
    if type(tree) is dict:
        return {k: _as_given(v, tape) for k, v in tree.items()}
    return tree


def _rebuilt(tree, arrays):
    """The arguments again, on these arrays."""
    if isinstance(tree, _TensorHole):
        return Op.result._wrap(arrays[tree.number], None, 0, False)
    if type(tree) is _SentHole:
        return Op.result(arrays[tree.number], device="cuda")
    if type(tree) is Hole:
        return arrays[tree.number]
    if type(tree) in (tuple, list):
        return type(tree)([_rebuilt(x, arrays) for x in tree])
    return {k: _rebuilt(v, arrays) for k, v in tree.items()} if type(tree) is dict else tree


def detached(tree):
    """A result with its Tensors outside the graph, in memory of their own."""
    if isinstance(tree, Op.result):
        return tree.detach() if state.tape is not None else Op.result._wrap(device.copy(tree.array), None, 0, False)
    if type(tree) in (tuple, list):
        return type(tree)([detached(x) for x in tree])
    if type(tree) is dict:
        return {k: detached(v) for k, v in tree.items()}
    return plain(tree) if state.tape is None else tree
