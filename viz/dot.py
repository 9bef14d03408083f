"""A Drawing as DOT text: what the nodes say, how they look, in which box they stand. The layout is Graphviz' work.

Ids are counters in order of appearance, so the same computation gives the same text.
"""
import re

import numpy as np

from tinyattn.errors import InputError

from .fold import is_number, title
from .text import formula, literal, markup, printable, width

MANY = 300  # nodes from which the layout is told to hurry: exact placement takes minutes for a thousand nodes

# kind: (fill, border, style). Colours after Okabe and Ito, told apart by colour-blind readers; every kind has its own
# outline too. "print" needs no colour at all.
THEMES = {
    "colour": {
        "op": ("#DCEBF7", "#0072B2", "rounded,filled"), "backward": ("#FBE3D6", "#D55E00", "rounded,filled"),
        "parameter": ("#FFE9B8", "#B37700", "filled,bold"), "constant": ("#F4F4F4", "#777777", "filled,dashed"),
        "scope": ("#E9E4F3", "#5B4A8A", "rounded,filled"), "output": ("#CDEBDD", "#007A55", "rounded,filled"),
        "box": ("#FAFBFC", "#8A939C"), "edge": "#444444", "shape": "#555555", "loop": "#0072B2", "gradient": "#D55E00"},
    "print": {
        "op": ("white", "black", "rounded,filled"), "backward": ("#E2E2E2", "black", "rounded,filled,dashed"),
        "parameter": ("#F0F0F0", "black", "filled,bold"), "constant": ("white", "black", "filled,dotted"),
        "scope": ("white", "black", "rounded,filled"), "output": ("white", "black", "rounded,filled,bold"),
        "box": ("white", "#555555"), "edge": "black", "shape": "black", "loop": "black", "gradient": "black"},
}


def dot_text(program, drawing, arrays=None, theme="colour", direction="TB"):
    """The DOT text of a Drawing. arrays: {value id: (numbers, gradient or None)} to write beside the nodes, or None."""
    return _Writer(program, drawing, arrays, THEMES[theme], direction).text()


class _Writer:
    def __init__(self, program, drawing, arrays, theme, direction):
        self.program, self.drawing, self.arrays, self.theme, self.direction = program, drawing, arrays, theme, direction
        self.results = set(program.outputs)
        self.slots = {}  # value id: the name of the first input that it is used for
        for step in program.instructions:
            for value, slot in zip(step.inputs, step.input_names, strict=False):
                self.slots.setdefault(value, slot)

    def text(self):
        try:
            import graphviz
        except ImportError:
            raise InputError("graph: needs the Python package graphviz: pip install tinyattn[plot]") from None
        font = {"fontname": "Helvetica"}
        top = graphviz.Digraph(
            "tinyattn",
            graph_attr={**font, "rankdir": self.direction, "nodesep": "0.3", "ranksep": "0.4", "fontsize": "13",
                        "bgcolor": "white"},
            node_attr={**font, "shape": "box", "fontsize": "14", "margin": "0.12,0.06", "height": "0.3"},
            edge_attr={**font, "fontsize": "11", "arrowsize": "0.7", "color": self.theme["edge"],
                       "fontcolor": self.theme["shape"]})
        if len(self.drawing.nodes) > MANY:
            top.graph_attr.update(nslimit="1", nslimit1="1", mclimit="0.1", splines="line")
        boxes = {(): top}
        for path, name in self.drawing.boxes.items():
            fill, border = self.theme["box"]
            boxes[path] = graphviz.Digraph(f"cluster_{len(boxes) - 1}", graph_attr={
                "label": literal(printable(name)), "style": "rounded,filled", "fillcolor": fill, "color": border,
                "labeljust": "l"})
        for n, node in enumerate(self.drawing.nodes):
            boxes[node.path].node(f"n{n}", **self.look(node))
        for path in reversed(self.drawing.boxes):
            boxes[path[:-1]].subgraph(boxes[path])
        for edge in self.drawing.edges:
            self.edge(top, edge)
        return top.source

    # -- nodes -------------------------------------------------------------------------------------------------------
    def look(self, node):
        step = self.program.instructions[node.members[len(node.members) // 2]] if node.kind == "op" else None
        self.path = node.path
        kind = "backward" if node.backward and node.kind in ("op", "scope") else node.kind
        if step and self.results.intersection(step.outputs) and not node.backward:
            kind = "output"
        fill, border, style = self.theme[kind]
        lines = self.op(step) if step else self.scope(node) if node.kind == "scope" else self.leaf(node)
        lines = [line for line in lines if line]
        label = "<B>" + markup(lines[0]) + "</B>"
        label += "".join(f'<BR/><FONT POINT-SIZE="12">{markup(line)}</FONT>' for line in lines[1:])
        more = {"peripheries": "2"} if node.kind == "scope" else {}
        if step and node.backward and self.results.intersection(step.outputs):
            more["penwidth"] = "2.5"
        room = max(width(line, 12 if i else 14, not i) for i, line in enumerate(lines))
        if any(width(c, 1) > 0.9 for line in lines for c in line):  # layout programs take wide signs for narrow ones
            more["width"] = f"{room / 72 + 0.25:.2f}"
        return {"label": f"<{label}>", "style": style, "fillcolor": fill, "color": border, **more}

    def op(self, step):
        """An op: its name; its formula with the names of what goes in and comes out; its settings if they are short."""
        values = self.program.values
        given = [(slot, v) for slot, v in zip(step.input_names, step.inputs, strict=False) if v is not None]
        names = {slot: self.shown(values[v]) or slot for slot, v in given}
        if step.input_names and "{" + step.input_names[0][:-1] + "}" in step.tex:  # any number of inputs: [xs]
            names[step.input_names[0][:-1]] = ", ".join(names[s] if names[s] != s else "·" for s, _ in given[:4]) \
                + (", …" if len(given) > 4 else "")
        settings = dict(step.attributes)
        if "{i}" in step.tex and "index" in settings:
            names["i"] = _index(settings.pop("index"))
        text = formula(_without(step.tex, set(step.input_names) - set(names)), names)
        slots = "".join(step.input_names)  # tanh(x) says no more than "tanh", and x + y no more than "add"
        if _letters(text) in ("", _letters(slots), _letters(step.op + slots), *step.input_names):
            text = ""
        result = next((values[v].name for v in step.outputs if values[v].name), "")
        if result:
            text = f"{printable(result)} = {text}" if text else printable(result)
        settings = ", ".join(f"{k}={_setting(v)}" for k, v in settings.items() if v is not None and v is not False)
        return [step.op, printable(text), settings if len(settings) <= 28 else "", *self.numbers(step.outputs[:1])]

    def scope(self, node):
        """A closed box: its name and how much it holds."""
        each = " each" if node.steps > 1 else ""
        inside = [_count(len(node.members) // node.steps or 1, "op", each),
                  _count(node.parameters // node.steps, "parameter", each), _count(node.shared, "shared parameter")]
        return [printable(title(node.part)), ", ".join(filter(None, inside))]

    def leaf(self, node):
        """A leaf: its name (or what it is used as) and shape; its type if it is not float; how many, if one a step."""
        value = self.program.values[node.members[0]]
        times = f" × {node.steps}" if node.steps > 1 else ""
        kind = "" if value.dtype.startswith("float") else value.dtype + " "
        slot = self.slots[value.id]
        use = slot if len(slot.rstrip("0123456789")) > 2 else node.kind
        name = self.shown(value, 48) or use
        numbers = self.numbers(node.members[:1], value.kind == "parameter")
        return [name + times, f"{kind}{_shape(value.shape)}", *numbers]

    def shown(self, value, limit=24):
        """A value's name, without what the box that it is drawn in says already, or its number if it is just one."""
        if not value.name:
            return _number(value.data) if is_number(value) else ""
        parts = value.name.split(".")
        for box in map(title, self.path):
            if len(parts) > 1 and parts[0] == box:
                parts = parts[1:]
        return printable(".".join(parts), limit)

    def numbers(self, ids, leaf=False):
        """What a value holds, and for a parameter its gradient, which is absent (and not 0) before `backward()`."""
        if self.arrays is None or not ids or ids[0] not in self.arrays:
            return []
        array, gradient = self.arrays[ids[0]]
        return [summary(array)] + ([f"grad {'none yet' if gradient is None else summary(gradient)}"] if leaf else [])

    # -- edges -------------------------------------------------------------------------------------------------------
    def edge(self, top, edge):
        source, target = self.drawing.nodes[edge.source], self.drawing.nodes[edge.target]
        ends, more = [f"n{edge.source}", f"n{edge.target}"], {}
        labels = list(dict.fromkeys(self.says(i, slot) for i, slot in edge.uses))
        labels = labels if len(labels) < 3 else [f"{labels[0]} … {labels[-1]}"]
        labels = [label for label in labels if label]
        if edge.only:
            labels = [f"{printable(edge.only)}:", *labels]
        elif source.steps > target.steps == 1 < len(edge.uses):
            labels = [f"{len(edge.uses)} × {' '.join(labels)}"]
        if edge.loop:
            labels = ["next step", *labels]
            colour = self.theme["loop"]
            more = {"style": "dashed", "color": colour, "fontcolor": colour, "constraint": "false", "penwidth": "1.5"}
        elif edge.saved:
            labels, more = [], {"style": "dotted", "constraint": "false"}
        elif target.backward:
            more = {"color": self.theme["gradient"]}
            if source.backward:  # drawn upwards, beside the forward pass that it retraces
                ends, more["dir"] = ends[::-1], "back"
        spaced = [f" {label} " for label in labels]  # room between the line and its label
        top.edge(*ends, **({"label": literal(*spaced)} if labels else {}), **more)

    def says(self, i, slot):
        """The shape that goes along an edge, and what it is stretched to where it is broadcast."""
        step = self.program.instructions[i]
        value = self.program.values[step.inputs[slot]]
        stretched = step.broadcast[slot] if slot < len(step.broadcast) else None
        if stretched is not None:
            return f"{_shape(value.shape) or '()'} → {_shape(stretched)}"
        return _shape(value.shape)


# ---------------------------------------------------------------------------------------------------------------------
# small words
# ---------------------------------------------------------------------------------------------------------------------
def summary(array):
    """A few numbers as they are, many as their range; what is not finite is said."""
    array = np.asarray(array)
    if array.size == 0:
        return "empty"
    if array.dtype.kind == "b":
        return f"{int(array.sum())} of {array.size} True" if array.size > 4 else str(array.tolist())
    if array.size <= 4:
        return re.sub(r"[^\[\], ]+", lambda m: _number(float(m.group())), str(array.tolist()))
    bad = array.size - int(np.isfinite(array).sum())
    if bad:
        return f"{bad} of {array.size} not finite"
    return f"{_number(array.min())} … {_number(array.max())}"


def _letters(text):
    return re.sub(r"\W|_", "", text)


def _number(x):
    return str(x) if isinstance(x, (bool, int)) else f"{x:.3g}"


def _shape(shape):
    return "" if len(shape) == 0 else f"({shape[0]},)" if len(shape) == 1 else "(" + ", ".join(map(str, shape)) + ")"


def _without(tex, slots):
    """A formula without the terms of inputs that were left out: `{x} {w} + {b}` without b is `{x} {w}`."""
    for slot in slots:
        tex = re.sub(r"\s*[+,]\s*\{" + slot + r"\}", "", tex)
    return tex


def _setting(x):
    return _shape(x) or "()" if isinstance(x, list) and not any(isinstance(i, list) for i in x) else printable(x, 16)


def _index(index):
    """An index as one writes it: ["slice(None, None, None)", 3] is ":, 3"."""
    def one(i):
        found = re.fullmatch(r"slice\((.+), (.+), (.+)\)", str(i))
        if not found:
            return {"Ellipsis": "…"}.get(str(i), str(i) if len(str(i)) <= 8 else "ids")
        start, stop, step = ("" if part == "None" else part for part in found.groups())
        return f"{start}:{stop}" + (f":{step}" if step else "")
    return ", ".join(map(one, index)) if isinstance(index, list) else one(index)


def _count(n, what, more=""):
    return "" if n == 0 else f"{n:,} {what}" + ("s" if n > 1 else "") + more
