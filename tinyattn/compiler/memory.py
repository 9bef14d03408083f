"""Buffers by lifetime: which memory each array of a captured step stands in, decided once.

A value is born by the call that makes it and dead after the last call that reads it or a view of it. Two values whose
lives do not overlap may share a block; a value that dies in the very call that makes another may hand its block on
("in place"). What comes out of the step, and its gradients, live to the end.
"""
from bisect import bisect_left, insort
from dataclasses import dataclass, field

import numpy as np

from . import card
from .fusion import Fused, with_place
from .passes import with_calls

ALIGN = 64  # bytes; a vector register


@dataclass
class Block:
    """Memory for one array: its shape and dtype, the calls from its birth to its death, and where it lies in the arena, that of
    the host or that of the card."""
    shape: tuple
    dtype: object
    birth: int
    death: int
    card: bool = False
    place: int = -1
    bytes: int = 0

    def __post_init__(self):
        unit = card.ALIGN if self.card else ALIGN
        self.bytes = -(-int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize // unit) * unit


@dataclass
class Layout:
    """blocks: all Blocks; of_value {value: Block} for the values that have one of their own (views and leaves have none);
    requests [[Block]]: what each call asks `device.empty` for, in order; arena: bytes in all on the host; on_card: on the card;
    apart: bytes that both would be without sharing."""
    blocks: list = field(default_factory=list)
    of_value: dict = field(default_factory=dict)
    requests: list = field(default_factory=list)
    arena: int = 0
    on_card: int = 0
    apart: int = 0


def lay_out(captured, rehearsal):
    """(the step with results in place of dying operands, its Layout). `rehearsal` is a list with an entry a call: (the
    requests to `device.empty` as [(shape, dtype, on a card?)], the origin of each output as ("request", k), ("view", value),
    ("own", None), in memory of the host that was not asked for, ("card", None), the same on a card, or ("sent", None): what was sent
    to a card has memory of its own, outside of the arena."""
    calls, layout = list(captured.program.instructions), Layout()
    deaths = _deaths(captured)
    rules = {id(c.node): i for i, c in enumerate(calls) if c.node is not None and c.part == "backward"}
    for i, (call, (requests, origins)) in enumerate(zip(calls, rehearsal, strict=True)):
        kept = rules.get(id(call.node), i) if call.node is not None else i   # what it saves for its rule
        blocks = [Block(shape, dtype, i, max(i, kept), there) for shape, dtype, there in requests]
        layout.requests.append(blocks)
        layout.blocks += blocks
        for k, (value, (kind, which)) in enumerate(zip(call.outputs, origins, strict=True)):
            if kind in ("view", "sent"):
                continue
            if kind == "request":
                block = blocks[which]
            else:
                array = captured.program.values[value]
                block = _in_place(call, k, value, layout, captured, deaths, i)
                if block is None:
                    block = Block(array.shape, array.dtype, i, i, kind == "card")
                    layout.blocks.append(block)
                else:
                    calls[i] = call = _marked(call, k, value, layout, block)
            block.death = max(block.death, deaths.get(value, i))
            layout.of_value[value] = block
    layout.arena, layout.on_card = (_place([b for b in layout.blocks if b.card == there]) for there in (False, True))
    layout.apart = sum(block.bytes for block in layout.blocks)
    return with_calls(captured, calls), layout


def _deaths(captured):
    """{value: number of the last call that reads it or a view of it}; outputs live on after the last call."""
    calls = captured.program.instructions
    deaths = {}

    def lives(value, until):
        while value is not None:
            deaths[value] = max(deaths.get(value, 0), until)
            value = captured.aliases.get(value)
    for i, call in enumerate(calls):
        for value in call.inputs:
            lives(value, i)
    for value in captured.program.outputs:
        lives(value, len(calls))
    return deaths


def _in_place(call, k, value, layout, captured, deaths, i):
    """The Block of an input that output `k` may be written over, or None: it dies here, is as large, and is read element by
    element as the output is written."""
    if isinstance(call, Fused):
        kinds = call.kinds.split()
        candidates = [j for j, kind in enumerate(kinds) if kind == "same" and j not in call.replaces.values()]
    elif call.takes is not None:
        candidates = [call.takes]
    else:
        return None
    values = captured.program.values
    for j in candidates:
        source = call.inputs[j]
        block = layout.of_value.get(source)
        if (block is not None and block.death == i and block.birth < i and deaths.get(source, 0) <= i
                and call.inputs.count(source) == 1
                and values[source].shape == values[value].shape and values[source].dtype == values[value].dtype
                and tuple(block.shape) == tuple(values[value].shape)):
            return block
    return None


def _marked(call, k, value, layout, block):
    """The call, told to write output `k` over the input that stands in `block`."""
    j = next(j for j, v in enumerate(call.inputs) if layout.of_value.get(v) is block)
    return with_place(call, {**call.replaces, k: j}) if isinstance(call, Fused) else call


def _place(blocks):
    """Give each of the blocks its place; the bytes that they take together. Go through the calls in order: at its birth a block
    takes the smallest free place that is large enough (and not more than twice as large), at its death it gives it back."""
    free, end, ending = [], 0, {}
    for block in blocks:
        ending.setdefault(block.death, []).append(block)
    births = {}
    for block in blocks:
        births.setdefault(block.birth, []).append(block)
    taken = {}
    for time in sorted({*births, *ending}):
        for block in births.get(time, ()):
            at = bisect_left(free, (block.bytes, -1))
            if at < len(free) and free[at][0] <= 2 * max(block.bytes, ALIGN):
                size, block.place = free.pop(at)
            else:
                size, block.place, end = block.bytes, end, end + block.bytes
            taken[id(block)] = size
        for block in ending.get(time, ()):
            if taken[id(block)]:
                insort(free, (taken[id(block)], block.place))
    return end
