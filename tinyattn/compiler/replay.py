"""Replaying: the calls of a captured step, bound to the arrays that they read and write.

Binding is done once: the calls are run twice, first to see which memory each asks for (`device.empty`), then on the
memory that `memory.py` laid out. What is left of a step is a list of functions without arguments.
"""
from functools import partial

import numpy as np

from .. import device
from ..tensor import Tensor
from . import card
from .calls import drawn, memory_of, rewind
from .fusion import Fused, bound
from .memory import ALIGN, lay_out
from .trace import Uncapturable, filled

ndarray = np.ndarray


class Arena:
    """Memory that the programs of one compiled step share, since only one of them runs at a time: on the host, and on a card."""

    def __init__(self):
        self.bytes, self.there = np.empty(0, np.uint8), None

    def of(self, size):
        if self.bytes.size < size + ALIGN:
            self.bytes = np.empty(max(size, self.bytes.size * 3 // 2) + ALIGN, np.uint8)
        start = -self.bytes.ctypes.data % ALIGN
        return self.bytes[start:]

    def on_card(self, size):
        if size and (self.there is None or self.there.size < size):
            self.there = device.empty(size if self.there is None else max(size, self.there.size * 3 // 2), np.int8, "cuda")
        return self.there


class _Hand:
    """Stands in for `device.empty` while a call runs: gives out the arrays laid out for it, one after the other."""
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

    def on_card(self, shape, dtype):
        i, self.next = self.next, self.next + 1
        fits = i < len(self.arrays) and self.arrays[i].shape == shape and self.arrays[i].dtype == dtype
        return self.arrays[i] if fits else None


class _Recorder:
    """Notes what a call asks `device.empty` for."""

    def __init__(self):
        self.arrays = []

    def __call__(self, shape, dtype):
        self.arrays.append(np.empty(shape, dtype))
        return self.arrays[-1]

    def on_card(self, shape, dtype):
        self.arrays.append(card.fresh(shape, dtype))
        return self.arrays[-1]


class Replay:
    """A captured step, ready to be run on new arguments of the same shapes."""

    def __init__(self, captured, arena):
        before = drawn()
        if any(call.card for call in captured.program.instructions):
            card.plan_memory()
        try:
            with np.errstate(all="ignore"):
                rehearsal = _rehearse(captured)
                self.captured, self.layout = lay_out(captured, rehearsal)
                self.memory = arena.of(self.layout.arena), arena.on_card(self.layout.on_card)
                self.arrays, self.steps = self._bind(*self.memory, [o for _, o in rehearsal])
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
        outputs = [wrap(device.copy(array), None, 0, False) for array in self.outputs]
        for _, effect in self.captured.effects:
            effect()
        return filled(self.captured.result, outputs)

    def values(self, arrays):
        """(outputs, gradients) as new arrays, without clipping and update, and leaving `.grad` as it is."""
        self._compute(arrays)
        return [device.copy(a) for a in self.outputs], [device.copy(g.array) for *_, g in self.leaves]

    def _compute(self, arrays):
        for own, array in zip(self.inputs, arrays):
            card.copy_into(own, array)
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
    def _bind(self, memory, there, origins):
        """Run all calls on the memory laid out; ({value: array}, [(function, _Hand or None, copies or None)])."""
        arrays, steps, layout = dict(self.captured.arrays), [], self.layout

        def array_of(block):
            if block.card:
                return card.piece(there, block.place, block.shape, block.dtype)
            flat = memory[block.place:block.place + int(np.prod(block.shape, dtype=np.int64)) * np.dtype(block.dtype).itemsize]
            return flat.view(block.dtype).reshape(block.shape)
        for call, requests, origin in zip(self.captured.program.instructions, layout.requests, origins, strict=True):
            given = [None if v is None else arrays[v] for v in call.inputs]
            if call.op == "send":
                letter = card.Letter(self.captured.program.values[call.outputs[0]], *given)
                arrays[call.outputs[0]] = letter.array
                steps.append((letter.send, None, None))
                continue
            told = isinstance(call, Fused) or call.told
            hand = _Hand([array_of(block) for block in requests]) if requests and (call.card or not told) else None
            if told:
                steps.append((self._bind_told(call, given, arrays, array_of, hand), hand, None))
                continue
            copies = self._bind_asking(call, given, hand, requests, origin, arrays, array_of)
            followed = [(k, arrays[v]) for k, v in enumerate(call.outputs) if call.card and arrays[v].dtype.kind != "f"]
            if all(kind == "view" for kind, _ in origin) and call.node is None and not copies and not followed and (
                    call.op != "seed"):
                continue  # a view of memory that stays where it is need not be made again
            if followed:
                steps.append((partial(_followed, call, given, followed), hand, copies or None))
            else:
                steps.append((partial(call.run, *given) if copies else _bare(call, given), hand, copies or None))
        return arrays, steps

    def _bind_told(self, call, given, arrays, array_of, hand):
        """A chain, or a call with a parameter `out`, which are told where to write: the function, run once. On a card the latter
        may ask `hand` for room to compute in."""
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
        device.planned.take = hand
        try:
            do()
        finally:
            device.planned.take = None
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
            if kind in ("own", "card"):
                arrays[value] = array_of(self.layout.of_value[value])
                card.copy_into(arrays[value], result)
                card.follow(arrays[value], result)
                copies.append((k, arrays[value]))
            else:
                whole = array_of(requests[which]) if kind == "request" else arrays[which]
                if result.size and not _share(result, whole):
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


def _share(a, b):
    return memory_of(a) == memory_of(b) if card.holds(a) or card.holds(b) else np.may_share_memory(a, b)


def _copy(copies, results):
    for k, own in copies:
        if results[k].shape != own.shape:
            raise RuntimeError(f"compiled step: an array changed its shape from {own.shape} to {results[k].shape}")
        card.copy_into(own, results[k])


def _followed(call, given, followed):
    """The results of a call that makes whole numbers or bools on a card. What the host knows of them it knows of the arrays that
    the calls after this one are bound to."""
    results = call.run(*given)
    for k, own in followed:
        card.follow(own, results[k])
    return results


def _bare(call, given):
    """The call without what makes a tuple of its results, which stand in their places anyway."""
    return partial(call.run, *given) if call.bare is None else call.bare(*given)


def _rehearse(captured):
    """Run all calls once on memory of their own: what each asks for, and where each output stands."""
    arrays, found = dict(captured.arrays), []
    for call in captured.program.instructions:
        given = [None if v is None else arrays[v] for v in call.inputs]
        if isinstance(call, Fused):
            place = "cuda" if call.card else "cpu"
            outs = [device.empty(captured.program.values[v].shape, captured.program.values[v].dtype, place) for v in call.outputs]
            bound(call, given, outs)()
            arrays.update(zip(call.outputs, outs, strict=True))
            found.append(([], [("card" if call.card else "own", None)] * len(outs)))
            continue
        recorder = _Recorder()
        device.planned.take = recorder
        try:
            results = call.run(*given)
        finally:
            device.planned.take = None
        roots, origins = {memory_of(a): k for k, a in enumerate(recorder.arrays)}, []
        sources = {memory_of(a): v for v, a in reversed(list(zip(call.inputs, given, strict=True))) if v is not None}
        where_from = "sent" if call.op == "send" else "card" if call.card else "own"
        for value, result in zip(call.outputs, results, strict=True):
            if result.shape != captured.program.values[value].shape:
                raise Uncapturable(f"{call.op}: gave {captured.program.values[value].shape} when captured, {result.shape} later")
            root = memory_of(result)
            if root in sources:
                captured.aliases[value] = sources[root]
            else:
                captured.aliases.pop(value, None)
            origins.append(("request", roots[root]) if root in roots else ("view", sources[root]) if root in sources
                           else (where_from, None))
            arrays[value] = result
        found.append(([(a.shape, a.dtype, card.holds(a)) for a in recorder.arrays], origins))
    return found
