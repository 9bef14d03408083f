"""Graphs for other tools: JSON, which holds the whole Program and can be read back, and GraphML: what is drawn.

The JSON is an object:

    values        [{id, shape, dtype, name, kind, data}]: every Tensor. `id` is its place in the list; kind:
                  "parameter" (a leaf that requires a gradient), "input" (one that does, but is given and not
                  learned), "constant" (a leaf that does not), "outside" (made by a part that was left out) or "value"
                  (made by an instruction); data: the numbers of a small constant, else null
    instructions  [{op, inputs, outputs, scope, attributes, tex, input_names, broadcast, fused}], in an order in which
                  they can be run. inputs and outputs: ids of values, null for an input that was left out; scope:
                  "encoder/gru"; tex: the formula, with `{x}` for an input; broadcast: the shape to which an input is
                  stretched, or null; fused: has the op a readable twin?
    outputs       ids of what was computed

nan and infinities are the words "nan", "inf" and "-inf", for which JSON has no numbers.
GraphML (graphml.graphdrawing.org) is for graph editors: nodes with label, kind, formula, box and count of time steps;
edges with shapes and kind.
"""
import json
import math
import re
import xml.etree.ElementTree as ET
from dataclasses import fields

from tinyattn.errors import InputError
from tinyattn.program import Instruction, Program, Value

from .fold import title
from .labels import Labels, shape_text


def to_json(program):
    """A Program as JSON text."""
    return json.dumps(_finite(program.to_json()), ensure_ascii=False, indent=1, allow_nan=False)


def from_json(text):
    """The Program that `to_json` wrote; `graph(from_json(text))` draws it. InputError for anything else."""
    try:
        data = json.loads(text)
        values = [_made(Value, v) for v in data["values"]]
        steps = [_made(Instruction, s) for s in data["instructions"]]
        outputs = list(data["outputs"])
        ids = range(len(values))
        used = [i for s in steps for i in [*s.inputs, *s.outputs] if i is not None] + outputs
        for value in values:
            value.shape, value.data = tuple(value.shape), _numbers(value.data)
        if [v.id for v in values] != list(ids) or any(i not in ids for i in used):
            raise ValueError("the ids of values do not fit")
    except (ValueError, TypeError, KeyError) as problem:
        raise InputError(f"graph: expected the JSON of a graph, got something else ({problem})") from None
    return Program(values, steps, outputs)


def _made(cls, record):
    return cls(**{f.name: record[f.name] for f in fields(cls) if f.name in record})


def _finite(x):
    """nan and inf as words. The nesting is that of the data, at most a Tensor's axes."""
    if isinstance(x, dict):
        return {k: _finite(v) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        return [_finite(v) for v in x]
    return str(x) if isinstance(x, float) and not math.isfinite(x) else x


def _numbers(x):
    """The words back to numbers."""
    return [_numbers(v) for v in x] if isinstance(x, list) else float(x) if isinstance(x, str) else x


# ---------------------------------------------------------------------------------------------------------------------
# GraphML
# ---------------------------------------------------------------------------------------------------------------------
_NODE = {"label": "string", "kind": "string", "about": "string", "box": "string", "steps": "int", "backward": "boolean"}
_EDGE = {"shapes": "string", "next_step": "boolean", "saved": "boolean"}


def graphml(program, drawing):
    """A Drawing as GraphML text."""
    root = ET.Element("graphml", xmlns="http://graphml.graphdrawing.org/xmlns")
    for what, keys in (("node", _NODE), ("edge", _EDGE)):
        for name, kind in keys.items():
            ET.SubElement(root, "key", {"id": f"{what}-{name}", "for": what, "attr.name": name, "attr.type": kind})
    graph = ET.SubElement(root, "graph", id="tinyattn", edgedefault="directed")
    labels = Labels(program)
    for n, node in enumerate(drawing.nodes):
        label = labels.of(node)
        _element(graph, "node", {"id": f"n{n}"}, {
            "label": label.title, "kind": node.kind, "about": "; ".join(label.lines),
            "box": "/".join(map(title, node.path)), "steps": node.steps, "backward": node.backward})
    for n, edge in enumerate(drawing.edges):
        shapes = dict.fromkeys(shape_text(program.values[program.instructions[i].inputs[slot]].shape)
                               for i, slot in edge.uses)
        _element(graph, "edge", {"id": f"e{n}", "source": f"n{edge.source}", "target": f"n{edge.target}"}, {
            "shapes": ", ".join(shapes), "next_step": edge.loop, "saved": edge.saved})
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _element(graph, what, attributes, data):
    element = ET.SubElement(graph, what, attributes)
    for name, value in data.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        # what XML cannot hold is shown as a sign, as in the pictures
        text = re.sub("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]", "\ufffd", text)
        ET.SubElement(element, "data", key=f"{what}-{name}").text = text
