"""What stands on a node: its name, its formula with the names used in the code, its settings, what it holds.

Everything here is text and numbers; how it looks is decided in `dot.py`.
"""
import math
import os
import re
from dataclasses import dataclass, field

from ..text import formula, printable
from .fold import Steps, is_number, path_of, title


@dataclass
class Label:
    """`lines` stand under the title; `held` are (word, array) pairs to be drawn, the array None for the word alone."""
    title: str
    lines: list
    held: list = field(default_factory=list)


@dataclass
class Held:
    """What a value of a Program holds: its numbers (or None: not asked for), its gradient (or None), and `absent`, what
    is said where there is none."""
    array: object = None
    gradient: object = None
    absent: str = ""


class Labels:
    """The labels of a Program's nodes. held: {value id: Held}."""

    def __init__(self, program, held=None):
        self.program, self.held, self.path = program, held or {}, ()
        self.used = used_values(program)
        self.slots = {}  # value id: the name of the first input that it is used for
        for step in program.instructions:
            for value, slot in zip(step.inputs, step.input_names, strict=False):
                self.slots.setdefault(value, slot)

    def of(self, node):
        self.path = node.path
        return getattr(self, {"op": "op", "scope": "scope"}.get(node.kind, "leaf"))(node)

    def op(self, node):
        """An op: its name; its formula with the names of what goes in and comes out; its settings if they are short."""
        step = self.program.instructions[node.members[len(node.members) // 2]]
        settings = dict(step.attributes)
        text = self.formula(step, settings)
        settings = ", ".join(f"{k}={_setting(v)}" for k, v in settings.items() if v is not None and v is not False)
        fused = "fused" + (f": {printable(text)}" if text else "") if step.fused else ""
        lines = [fused or printable(text), settings if len(settings) <= 28 else ""]
        return Label(step.op, [line for line in lines if line], self.numbers(
            shown_output(step, self.used), self.one_step(node, step)))

    def formula(self, step, settings):
        """`y = tanh(x)`, with names for x and y where they have one; what is written of `settings` is taken out."""
        values = self.program.values
        given = [(slot, v) for slot, v in zip(step.input_names, step.inputs, strict=False) if v is not None]
        names = {slot: self.shown(values[v]) or slot for slot, v in given}
        if step.input_names and "{" + step.input_names[0][:-1] + "}" in step.tex:  # any number of inputs: [xs]
            names[step.input_names[0][:-1]] = ", ".join(names[s] if names[s] != s else "·" for s, _ in given[:4]) \
                + (", …" if len(given) > 4 else "")
        axes = settings.get("axes") if step.op == "permute" else None
        if axes and [a % len(axes) for a in axes] != [*range(len(axes) - 2), len(axes) - 1, len(axes) - 2]:
            return self.result(step, "")  # x^T is the swap of the last two axes; the settings say this one
        if axes:
            settings.pop("axes")
        if "{i}" in step.tex and "index" in settings:
            names["i"] = _index(settings.pop("index"))
        text = formula(_without(step.tex, set(step.input_names) - set(names)), names)
        slots = "".join(step.input_names)  # tanh(x) says no more than "tanh", and x + y no more than "add"
        if _letters(text) in ("", _letters(slots), _letters(step.op + slots), *step.input_names):
            text = ""
        return self.result(step, text)

    def result(self, step, text):
        """`y = text` if the result has a name."""
        result = next((v.name for v in map(self.program.values.__getitem__, step.outputs) if v.name), "")
        return " = ".join(filter(None, [printable(result), text]))

    def scope(self, node):
        """A closed box: its name and how much it holds."""
        each = " each" if node.steps > 1 else ""
        inside = [count(len(node.members) // node.steps or 1, "op", each),
                  count(node.parameters // node.steps, "parameter", each), count(node.shared, "shared parameter")]
        return Label(printable(title(node.part)), [", ".join(filter(None, inside))])

    def leaf(self, node):
        """A leaf: its name (or what it is used as) and shape; its type if it is not float; how many, if one a step."""
        value = self.program.values[node.members[0]]
        times = f" × {node.steps}" if node.steps > 1 else ""
        kind = "" if value.dtype.startswith("float") else value.dtype + " "
        slot = self.slots[value.id]
        use = slot if len(slot.rstrip("0123456789")) > 2 else node.kind
        said = f"{kind}{shape_text(value.shape)}"
        return Label((self.shown_all(node.members) or use) + times, [said] if said else [],
                     self.numbers(node.members[:1], "first: " if node.steps > 1 else ""))

    def shown_all(self, ids):
        """The name of leaves that are drawn as one: of bias_l0 and bias_l1 "bias_l0…1"."""
        first, last = (self.shown(self.program.values[i], 48) for i in (ids[0], ids[-1]))
        same = len(os.path.commonprefix([first, last]))
        end = last[same:]
        return first + f"…{end}" if end.isdecimal() and first[same:].isdecimal() else first

    def shown(self, value, limit=24):
        """A value's name, without what the box that it is drawn in says already, or its number if it is just one."""
        if not value.name:
            return number_text(value.data) if is_number(value) else ""
        parts = value.name.split(".")
        for box in map(title, self.path):
            if len(parts) > 1 and parts[0] == box:
                parts = parts[1:]
        return printable(".".join(parts), limit)

    def one_step(self, node, step):
        """"step 20: " for a node that stands for several steps: whose numbers are shown."""
        if node.steps == 1:
            return ""
        real = path_of(step)
        return next((printable(a) + ": " for a, b in zip(real, node.path, strict=False) if isinstance(b, Steps)), "")

    def numbers(self, ids, whose=""):
        """[(word, array or None)]: the value, then the gradient, or the word on why there is none."""
        held = self.held.get(ids[0]) if ids else None
        if held is None:
            return []
        rows = [(whose and whose.rstrip(), held.array)] if held.array is not None else []
        if held.gradient is not None:
            return [*rows, (f"{whose}gradient", held.gradient)]
        return [*rows, (held.absent, None)] if held.absent else rows


# ---------------------------------------------------------------------------------------------------------------------
# small words
# ---------------------------------------------------------------------------------------------------------------------
def used_values(program):
    """The ids of the values that are used, or are results."""
    return {v for step in program.instructions for v in step.inputs} | set(program.outputs)


def shown_output(step, used):
    """The output whose numbers stand on an op, in a list: the first one that is used."""
    return [v for v in step.outputs if v in used][:1] or step.outputs[:1]


def number_text(x):
    """A number in a formula: three digits of a float, all of one that is whole."""
    if isinstance(x, (bool, int)) or math.isfinite(x) and x == int(x) and 0 < abs(x) < 1e7:
        return str(x if isinstance(x, bool) else int(x))
    return f"{x:.3g}"


def shape_text(shape):
    return "" if len(shape) == 0 else f"({shape[0]},)" if len(shape) == 1 else "(" + ", ".join(map(str, shape)) + ")"


def count(n, what, more=""):
    return "" if n == 0 else f"{n:,} {what}" + ("s" if n > 1 else "") + more


def _letters(text):
    return re.sub(r"\W|_", "", text)


def _without(tex, slots):
    """A formula without the terms of inputs that were left out: `{x} {w} + {b}` without b is `{x} {w}`."""
    for slot in slots:
        tex = re.sub(r"\s*[+,]\s*\{" + slot + r"\}", "", tex)
    return tex


def _setting(x):
    return shape_text(x) or "()" if isinstance(x, list) and not any(isinstance(i, list) for i in x) \
        else printable(x, 16)


def _index(index):
    """An index as one writes it: ["slice(None, None, None)", 3] is ":, 3"."""
    def one(i):
        found = re.fullmatch(r"slice\((.+), (.+), (.+)\)", str(i))
        if not found:
            return {"Ellipsis": "…"}.get(str(i), str(i) if len(str(i)) <= 8 else "ids")
        start, stop, step = ("" if part == "None" else part for part in found.groups())
        return f"{start}:{stop}" + (f":{step}" if step else "")
    return ", ".join(map(one, index)) if isinstance(index, list) else one(index)
