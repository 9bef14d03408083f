"""Replaying: the calls of a captured step, bound to the arrays that they read and write.

Binding is done once: the calls are run twice, first to see which memory each asks for (`device.empty`), then on the
memory that `memory.py` laid out. What is left of a step is a list of functions without arguments.
"""
from functools import partial

import numpy as np

from .. import device
from ..tensor import Tensor
from .calls import drawn, rewind, root_of
from .fusion import Fused, bound
from .memory import ALIGN, lay_out
from .trace import Uncapturable, filled

ndarray = np.ndarray


class Arena:
    """Memory that the programs of one compiled step share, since only one of them runs at a time."""

    def __init__(self):
        self.bytes = np.empty(0, np.uint8)

    def of(self, size):
        if self.bytes.size < size + ALIGN:
            self.bytes = np.empty(max(size, self.bytes.size * 3 // 2) + ALIGN, np.uint8)
        start = -self.bytes.ctypes.data % ALIGN
        return self.bytes[start:]


class _Hand:
    """Stands in for `np.empty` while a call runs: gives out the arrays laid out for it, one after the other."""
    __slots__ = ("arrays", "next")

    def __init__(self, arrays):
        self.arrays, self.next = arrays, 0

    def __call__(self, shape, dtype):
        i, self.next = self.next, self.next + 1
        if i < len(self.arrays):
            array = self.arrays[i]
            if array.shape == shape or array.shape == (tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)):
                return array
        return np.empty(shape, dtype)


class _Recorder:
    """Notes what a call asks `device.empty` for."""

    def __init__(self):
        self.arrays = []

    def __call__(self, shape, dtype):
        self.arrays.append(np.empty(shape, dtype))
        return self.arrays[-1]


class Replay:
    """A captured step, ready to be run on new arguments of the same shapes."""

    def __init__(self, captured, arena):
        before = drawn()
        try:
            with np.errstate(all="ignore"):
                rehearsal = _rehearse(captured)
                self.captured, self.layout = lay_out(captured, rehearsal)
                self.arrays, self.steps = self._bind(arena.of(self.layout.arena), [o for _, o in rehearsal])
        finally:
            rewind(before)
        c = self.captured
        for op in c.nodes:  # the graph of the first run has done its duty
            op.inputs = op.outs = None
        self.inputs = [self.arrays[v] for v in c.inputs]
        self.outputs = [self.arrays[v] for v in c.program.outputs[:c.returned]]
        self.leaves = [(leaf, leaf.array, Tensor._wrap(self.arrays[v], None, 0, False))
                       for leaf, v in zip(c.leaves, c.program.outputs[c.returned:], strict=True)]

    def fits(self):
        """Do the Tensors from outside still stand in the memory that the calls are bound to, and need gradients as they did?"""
        return all(t.array is array and t.requires_grad is needs for t, array, needs in self.captured.tensors)

    def run(self, arrays):
        """One step on these arguments; what the step returns."""
        self._compute(arrays)
        for leaf, _, gradient in self.leaves:
            leaf.grad = gradient
        wrap = Tensor._wrap
        outputs = [wrap(array.copy(), None, 0, False) for array in self.outputs]
        for _, effect in self.captured.effects:
            effect()
        return filled(self.captured.result, outputs)

    def values(self, arrays):
        """(outputs, gradients) as new arrays, without clipping and update, and leaving `.grad` as it is."""
        self._compute(arrays)
        return [a.copy() for a in self.outputs], [g.array.copy() for *_, g in self.leaves]

    def _compute(self, arrays):
        for own, array in zip(self.inputs, arrays):
            np.copyto(own, array)
        place = device.planned
        try:
            for do, hand, copies in self.steps:
                if hand is not None:
                    hand.next, place.take = 0, hand
                    out = do()
                    place.take = None
                else:
                    out = do()
                if copies is not None:
                    _copy(copies, out)
        finally:
            place.take = None

    # -- binding -----------------------------------------------------------------------------------------------------
    def _bind(self, memory, origins):
        """Run all calls on the memory laid out; ({value: array}, [(function, _Hand or None, copies or None)])."""
        arrays, steps, layout = dict(self.captured.arrays), [], self.layout

        def array_of(block):
            flat = memory[block.place:block.place + int(np.prod(block.shape, dtype=np.int64)) * np.dtype(block.dtype).itemsize]
            return flat.view(block.dtype).reshape(block.shape)
        for call, requests, origin in zip(self.captured.program.instructions, layout.requests, origins, strict=True):
            given = [None if v is None else arrays[v] for v in call.inputs]
            if isinstance(call, Fused) or call.takes is not None:
                steps.append((self._bind_told(call, given, arrays, array_of), None, None))
                continue
            hand = _Hand([array_of(block) for block in requests]) if requests else None
            copies = self._bind_asking(call, given, hand, requests, origin, arrays, array_of)
            if all(kind == "view" for kind, _ in origin) and call.node is None and not copies and call.op != "seed":
                continue  # a view of memory that stays where it is need not be made again
            steps.append((partial(call.run, *given) if copies else _bare(call, given), hand, copies or None))
        return arrays, steps

    def _bind_told(self, call, given, arrays, array_of):
        """A chain, or a call with a parameter `out`, which are told where to write: the function, run once."""
        if isinstance(call, Fused):
            outs = []
            for i, value in enumerate(call.outputs):
                arrays[value] = given[call.replaces[i]] if i in call.replaces else array_of(self.layout.of_value[value])
                if i not in call.replaces:
                    outs.append(arrays[value])
            do = bound(call, given, outs)
        else:
            arrays[call.outputs[0]] = out = array_of(self.layout.of_value[call.outputs[0]])
            do = partial(call.run, *given, out=out)
        do()
        return do

    def _bind_asking(self, call, given, hand, requests, origin, arrays, array_of):
        """Run a call that asks `hand` for memory. [(number of a result, array to copy it to)], for results in other memory."""
        copies = []
        device.planned.take = hand
        try:
            results = call.run(*given)
        finally:
            device.planned.take = None
        for k, (value, (kind, which), result) in enumerate(zip(call.outputs, origin, results, strict=True)):
            if kind == "own":
                arrays[value] = array_of(self.layout.of_value[value])
                np.copyto(arrays[value], result)
                copies.append((k, arrays[value]))
            else:
                whole = array_of(requests[which]) if kind == "request" else arrays[which]
                if result.size and not np.may_share_memory(result, whole):
                    raise Uncapturable(f"{call.op}: does not give its result in the memory that it asked for")
                arrays[value] = result
        return copies


def laid_out(captured):
    """(the step with results in place of dying operands, its Layout), without binding it."""
    before = drawn()
    try:
        with np.errstate(all="ignore"):
            return lay_out(captured, _rehearse(captured))
    finally:
        rewind(before)


def _copy(copies, results):
    for k, own in copies:
        if results[k].shape != own.shape:
            raise RuntimeError(f"compiled step: an array changed its shape from {own.shape} to {results[k].shape}")
        np.copyto(own, results[k])


def _bare(call, given):
    """The call without what makes a tuple of its results, which stand in their places anyway."""
    return partial(call.run, *given) if call.bare is None else call.bare(*given)


def _rehearse(captured):
    """Run all calls once on memory of their own: what each asks for, and where each output stands."""
    arrays, found = dict(captured.arrays), []
    for call in captured.program.instructions:
        given = [None if v is None else arrays[v] for v in call.inputs]
        if isinstance(call, Fused):
            outs = [np.empty(captured.program.values[v].shape, captured.program.values[v].dtype) for v in call.outputs]
            bound(call, given, outs)()
            arrays.update(zip(call.outputs, outs, strict=True))
            found.append(([], [("own", None)] * len(outs)))
            continue
        recorder = _Recorder()
        device.planned.take = recorder
        try:
            results = call.run(*given)
        finally:
            device.planned.take = None
        roots, origins = {id(a): k for k, a in enumerate(recorder.arrays)}, []
        sources = {id(root_of(a)): v for v, a in reversed(list(zip(call.inputs, given, strict=True))) if v is not None}
        for value, result in zip(call.outputs, results, strict=True):
            if result.shape != captured.program.values[value].shape:
                raise Uncapturable(f"{call.op}: gave {captured.program.values[value].shape} when captured, {result.shape} later")
            root = id(root_of(result))
            if root in sources:
                captured.aliases[value] = sources[root]
            else:
                captured.aliases.pop(value, None)
            origins.append(("request", roots[root]) if root in roots else ("view", sources[root]) if root in sources
                           else ("own", None))
            arrays[value] = result
        found.append(([(a.shape, a.dtype) for a in recorder.arrays], origins))
    return found
