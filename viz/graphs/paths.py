"""The paths between two places of a graph: which nodes and edges lie on any of them.

They are searched in the Program, not in its drawing, so two time steps that lie on top of each other make no path that
the computation does not have.
"""
from dataclasses import dataclass

from tinyattn.errors import InputError

from ..text import printable
from .fold import path_of


@dataclass
class Marks:
    """What is drawn strong: positions in `Drawing.nodes` and `Drawing.edges`; all else is pale."""
    nodes: set
    edges: set
    source: str
    target: str


def marks(program, drawing, path):
    """The Marks of all paths from one name to another. path: (from, to), each the name of a leaf or value (whole or
    from a dot on: `decoder.w`, `w`), of an op (`softmax`, all of them), or of a box; "output": what is computed.

    Raises InputError for a name that is not there, with those that are, and where no path leads.
    """
    if not isinstance(path, (tuple, list)) or len(path) != 2 or not all(isinstance(name, str) for name in path):
        raise InputError(f"graph: expected path to be two names, (from, to), got {path!r}")
    source, target = path
    leaves, first = find(program, source)
    ends, last = find(program, target)
    strong = _between(program, leaves, first, last)
    if not strong or source == target:
        back = not strong and _between(program, ends, last, first)
        raise InputError(f"graph: no path leads from {printable(source)} to {printable(target)}"
                         + ("; one leads the other way round" if back else ""))
    producer = _producers(program)
    along = {(i, slot) for i in strong for slot, v in enumerate(program.instructions[i].inputs)
             if v in leaves or producer.get(v) in strong}
    values = {program.instructions[i].inputs[slot] for i, slot in along}
    edges = {n for n, e in enumerate(drawing.edges) if any(use in along for use in e.uses)}
    nodes = {n for n, node in enumerate(drawing.nodes) if _is_on(node, strong, values & leaves)}
    return Marks(nodes | {n for e in edges for n in (drawing.edges[e].source, drawing.edges[e].target)}, edges,
                 source, target)


def _is_on(node, strong, leaves):
    return any(m in (strong if node.kind in ("op", "scope") else leaves) for m in node.members)


def find(program, name):
    """(ids of leaves, numbers of instructions) that `name` means: values, else ops, else boxes."""
    producer = _producers(program)
    values = [v for v in program.values if v.name and v.name == name] or \
        [v for v in program.values if name and v.name.endswith(f".{name}")]
    if not values and name == "output":
        values = [program.values[i] for i in program.outputs]
    if values:
        return ({v.id for v in values if v.id not in producer},
                {producer[v.id] for v in values if v.id in producer})
    steps = {i for i, step in enumerate(program.instructions) if step.op == name}
    if not steps:
        parts = tuple(name.split("/"))
        steps = {i for i, step in enumerate(program.instructions) if place_in(path_of(step), parts) is not None}
    if not steps:
        raise InputError("graph: expected a path between names of leaves, values, ops or boxes, got "
                         f"{printable(name) or 'an empty one'}; there are {known(program)}")
    return set(), steps


def place_in(path, parts):
    """The position in `path` from which `parts` follow each other there, or None."""
    n = len(parts)
    return next((i for i in range(len(path) - n + 1) if tuple(path[i:i + n]) == tuple(parts)), None)


def known(program, most=30):
    """The names that a path may use, in order of appearance."""
    names = dict.fromkeys(v.name for v in program.values if v.name)
    names |= dict.fromkeys(step.op for step in program.instructions)
    names |= dict.fromkeys(part for step in program.instructions for part in path_of(step))
    names = [printable(name) for name in names]
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _producers(program):
    return {value: i for i, step in enumerate(program.instructions) for value in step.outputs}


def _between(program, leaves, first, last):
    """The instructions on a path from a leaf of `leaves` or an instruction of `first` to one of `last`."""
    down, values = set(), set(leaves)
    for i, step in enumerate(program.instructions):  # in topological order
        if i in first or any(v in values for v in step.inputs if v is not None):
            down.add(i)
            values.update(step.outputs)
    needed, up = set(), set()
    for i in range(len(program.instructions) - 1, -1, -1):
        step = program.instructions[i]
        if i in last or any(v in needed for v in step.outputs):
            up.add(i)
            needed.update(v for v in step.inputs if v is not None)
    found = down & up
    return found if found & last and (leaves or found & first) else set()
