"""What is done to a captured step before it is replayed: passes, each from a Captured to a Captured.

    needless copies        what is copied only so that nobody can write into the original goes: here nobody does
    dead code              a call whose results nobody reads goes
    common subexpressions  of two calls that compute the same, the second goes
    fusion                 a chain of x + y, tanh(x), g * y ... becomes one loop over the elements (see `fusion.py`)
    in place               a result takes over the memory of an operand that nobody needs any more (see `memory.py`)

None of them changes a number that comes out.
"""
from dataclasses import replace

from ..program import Program


def consumers(captured):
    """{value: [numbers of the calls that read it]}"""
    found = {}
    for number, call in enumerate(captured.program.instructions):
        for value in {v for v in call.inputs if v is not None}:
            found.setdefault(value, []).append(number)
    return found


def with_calls(captured, calls, aliases=None):
    """The same step with other calls."""
    program = Program(captured.program.values, calls, captured.program.outputs)
    return replace(captured, program=program, aliases=captured.aliases if aliases is None else aliases)


def needless_copies(captured):
    """`Tensor(x)` copies its array, and the walk copies a gradient before it adds another, so that the original is not
    written into; and a view of all of an array is that array. Here each value is made once, and `memory.py` knows who still
    needs it."""
    same, kept, values, outputs = {}, [], captured.program.values, set(captured.program.outputs)
    for call in captured.program.instructions:
        inputs = [same.get(v, v) for v in call.inputs]
        call = call if inputs == call.inputs else replace(call, inputs=inputs)
        out, source = (call.outputs or [None])[0], (call.inputs or [None])[0]
        if call.op in ("tensor", "copy", "view") and out not in outputs and not captured.strided.intersection((out, source)) and (
                values[out].shape == values[source].shape and values[out].dtype == values[source].dtype):
            same[out] = source
            values[source].name = values[source].name or values[out].name
        else:
            kept.append(call)
    aliases = {v: same.get(of, of) for v, of in captured.aliases.items() if v not in same}
    return with_calls(captured, kept, aliases)


def dead_code(captured):
    """Keep the calls from which an output can be reached, walking backwards; the forward half of a kept rule is kept too, for
    what it saves, and so is every draw of a random number, or the numbers after it would be others."""
    needed, nodes, kept = set(captured.program.outputs), set(), []
    for call in reversed(captured.program.instructions):
        fills = call.part == "forward" and call.node is not None and id(call.node) in nodes
        if call.draws or fills or needed.intersection(call.outputs):
            kept.append(call)
            needed.update(v for v in call.inputs if v is not None)
            if call.part == "backward" and call.node is not None:
                nodes.add(id(call.node))
    return with_calls(captured, kept[::-1])


def common_subexpressions(captured):
    """Two calls are the same if op, settings and inputs are. An op that saves something for its rule stays, since the
    rule will ask its own op; so do random draws, and sums that write into a buffer."""
    first, same, kept, outputs = {}, {}, [], set(captured.program.outputs)
    for call in captured.program.instructions:
        inputs = [same.get(v, v) for v in call.inputs]
        call = call if inputs == call.inputs else replace(call, inputs=inputs)
        key = call.op, tuple(inputs), call.settings, len(call.outputs)
        alone = call.settings is None or call.node is not None or call.draws or call.takes is not None
        if alone or outputs.intersection(call.outputs):  # what comes out has memory of its own
            kept.append(call)
        elif key in first:
            same.update(zip(call.outputs, first[key].outputs, strict=True))
        else:
            first[key] = call
            kept.append(call)
    aliases = {v: same.get(of, of) for v, of in captured.aliases.items() if v not in same}
    return with_calls(captured, kept, aliases)
