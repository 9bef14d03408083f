"""A part of a Program as a Program of its own: what comes from outside of it becomes a leaf of the kind "outside"."""
from collections import Counter
from dataclasses import replace

from tinyattn.errors import InputError
from tinyattn.program import Program

from ..text import printable
from .fold import path_of
from .paths import place_in


def cut(program, keep, outputs=None, scope_of=None):
    """(Program of the instructions `keep`, {old value id: new}). A value from outside is called by its own name or by
    the op that made it. outputs: old ids; by default what is used outside, or was an output."""
    keep = sorted(keep)
    inside, used = set(keep), set(program.outputs)
    for i, step in enumerate(program.instructions):
        if i not in inside:
            used.update(step.inputs)
    producer = {v: i for i, step in enumerate(program.instructions) for v in step.outputs}
    ids, values, made, taken = {}, [], set(), Counter()

    def new(v):
        if v is not None and v not in ids:
            ids[v], old = len(values), program.values[v]
            name = old.name
            if v in producer and v not in made:
                name = name or program.instructions[producer[v]].op
                taken[name] += 1
                name += f" ({taken[name]})" if taken[name] > 1 else ""
            outside = v in producer and v not in made
            values.append(replace(old, id=ids[v], name=name, kind="outside" if outside else old.kind))
        return ids.get(v) if v is not None else None

    steps = []
    for i in keep:
        step = program.instructions[i]
        made.update(step.outputs)
        steps.append(replace(step, inputs=[new(v) for v in step.inputs], outputs=[new(v) for v in step.outputs],
                             scope=scope_of(step) if scope_of else step.scope))
    outputs = [v for v in made if v in used] if outputs is None else outputs
    return Program(values, steps, sorted(ids[v] for v in outputs if v in ids)), ids


def inside(program, scope):
    """`cut` to the box `scope`: "step 3", "decoder/step 3". InputError if there is none, with the names of those."""
    parts = tuple(scope.split("/")) if isinstance(scope, str) else ()
    keep = {i for i, step in enumerate(program.instructions) if place_in(path_of(step), parts) is not None}
    if not keep or not parts:
        names = list(dict.fromkeys(part for step in program.instructions for part in path_of(step)))
        there = ", ".join(map(printable, names[:30])) + (", …" if len(names) > 30 else "")
        raise InputError(f"graph: expected the name of a box for scope, got {printable(scope) or 'an empty one'}; "
                         + (f"there are {there}" if names else "this graph has none"))

    def shorter(step):
        path = step.scope.split("/")
        start = place_in(path, parts)
        before = ["backward"] if start and "backward" in path[:start] else []
        return "/".join(before + path[start:]) if start is not None else step.scope

    return cut(program, keep, scope_of=shorter)
