"""Does a replay give what the eager step gives? The eager step runs under a `Watch`, which notes what comes out of it."""
import numpy as np

from .. import device
from ..autograd import Op, _set
from .trace import Hole

ELSE = "it depends on something that was neither an argument nor a parameter"


class Watch:
    """A tape that writes nothing, but keeps the gradients as they were before the first update, and what was updated.

    leaves    {id: leaf} of those that were given a gradient; `adds` is one whose gradient of before was added to
    """
    reason, live = "", False

    def __init__(self):
        self.leaves, self.adds, self.late, self.effects, self.gradients = {}, None, False, [], None

    def called(self, *args):
        """Arrays are computed: not after an update, in a step that can be captured."""
        self.late = self.late or bool(self.effects)

    ruled = accumulated = added = called

    def made(self, *args):
        pass

    copied = wrapped = number = computed = fail = made

    def shown(self, array):
        return array

    def graded(self, leaf, array, before):
        if before is not None and id(leaf) not in self.leaves:
            self.adds = leaf
        self.leaves[id(leaf)] = leaf

    def effect(self, name, function):
        if self.gradients is None:
            self.gradients = self._now()
        self.effects.append((name, function))
        with _set(tape=None):
            return function()

    def _now(self):
        return {i: None if t.grad is None else device.copy(t.grad.array) for i, t in self.leaves.items()}

    def differs(self, captured, outputs, gradients, result):
        """Why the replay that gave these outputs and gradients is not the step that returned `result`, or ""."""
        found = []
        tree = holes_of(result, found)
        if self.adds is not None:
            return "gradients of before the step would be added to: call zero_grad() in it, before backward()"
        if self.late or not alike(self.effects, captured.effects) or set(self.leaves) != {id(t) for t in captured.leaves}:
            return f"other parameters are updated on other data, or in another way: {ELSE}"
        if repr(tree) != repr(captured.result) or len(found) != len(outputs):
            return f"what it returns is not built as it was: {ELSE}"
        now = self._now() if self.gradients is None else self.gradients
        pairs = [("what it returns", a, t.array) for a, t in zip(outputs, found, strict=True)]
        pairs += [(f"the gradient of {t.name or 'a parameter'} {t.shape}", a, now[id(t)])
                  for t, a in zip(captured.leaves, gradients, strict=True)]
        for what, a, b in pairs:
            if not same(a, b):
                return f"{what} is not what the eager step gives on other data: {ELSE}"
        return ""


def same(a, b):
    """Equal in every element, nan to nan. (Of arrays on a card, the host waits for the numbers.)"""
    if b is None or a.shape != b.shape or a.dtype != b.dtype or device.device_of(a) != device.device_of(b):
        return False
    a, b = device.to_device(a, "cpu"), device.to_device(b, "cpu")
    return np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


def alike(effects, others):
    """Do these updates do the same: the same functions, with the same settings?"""
    return len(effects) == len(others) and all(_settings(f) == _settings(g) for (_, f), (_, g) in zip(effects, others))


def _settings(function):
    """What tells an update from another: its code, and the numbers and the identity of the objects that it holds."""
    held = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    code = getattr(function, "__func__", function)
    return [id(getattr(code, "__code__", code)), *map(_what, [getattr(function, "__self__", None), *held])]


def _what(x):
    return [id(i) for i in x] if isinstance(x, list) else repr(x) if isinstance(x, (bool, int, float, np.number)) else id(x)


def leaves_of(effects):
    """The parameters that these updates look at."""
    found = []
    for _, function in effects:
        held = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
        for x in [getattr(function, "__self__", None), *held]:
            found += [slot.tensor for slot in getattr(x, "slots", ())] if not isinstance(x, list) else x
    return [t for t in found if isinstance(t, Op.result)]


def holes_of(tree, found):
    """A result with a Hole in the place of each Tensor; the Tensors are appended to `found`."""
    if isinstance(tree, Op.result):
        found.append(tree)
        return Hole(len(found) - 1)
    if type(tree) in (tuple, list):
        return type(tree)([holes_of(x, found) for x in tree])
    return {k: holes_of(v, found) for k, v in tree.items()} if type(tree) is dict else tree
