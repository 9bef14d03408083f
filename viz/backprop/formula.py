"""Formulas read off what was recorded: of an op's call, of its rule, and of its local derivative.

A rule is called with stand-ins that are named after what they stand for, and what it does is recorded like any other
computation. The recorded graph, printed, is the formula of the rule. With 1 in the place of the gradient that comes in,
it is the formula of the local derivative. So no formula stands here that could differ from the code that runs.
"""
import math

import numpy as np

from tinyattn.autograd import enable_grad
from tinyattn.device import to_device
from tinyattn.tensor import Tensor

from ..text import printable

LONG = 90  # letters beyond which a formula is not readable in a lecture
_SIGNS = {"add": (" + ", 1), "sub": (" − ", 1), "mul": (" · ", 3), "div": (" / ", 3), "matmul": (" ", 3),
          "pow": ("^", 4)}
_REDUCE = {"sum", "mean", "max", "min", "prod", "norm", "log_sum_exp"}
_WORDS = {"sigmoid": "σ", "sqrt": "√", "log_sum_exp": "logsumexp", "expand": "repeat"}
# ops that work element by element
EACH = {"add", "sub", "mul", "div", "pow", "neg", "exp", "log", "sqrt", "tanh", "sigmoid", "relu", "sin", "cos", "abs",
        "sign", "where", "maximum", "minimum", "clip", "softplus", "erf", "gelu", "alias", "cast"}


def number(x):
    """A number of at most about 6 letters: "0.333", "−2", "1e−04", "nan"."""
    x = float(x)
    if x == 0 or not math.isfinite(x):
        text = "0" if x == 0 else str(x)
    elif 0.001 <= abs(x) < 1:
        text = f"{x:.3f}".rstrip("0").rstrip(".")
    else:
        text = f"{x:.0f}" if 999.5 <= abs(x) < 1e5 else f"{x:.3g}" if 1 <= abs(x) < 1e5 else f"{x:.0e}"
    return text.replace("-", "−")


class Formula:
    """What a recorded Tensor is, in terms of named leaves.

    text     how one writes it; "" if it is too long, or if nothing was recorded
    used     {name: array} of the leaves that stand in it
    each     does the leaf `through` reach the result element by element?
    """

    def __init__(self, tensor, leaves, one=None, through=None, short=False):
        """leaves: {id(Tensor): (name, array)}; one: the name of a leaf to be read as 1; short: leave out masks that are
        True throughout."""
        self.leaves, self.one, self.used, self.others, self.short = leaves, one, {}, [], short
        self.count = 0
        tree = self.tree(tensor)
        text, _ = self.written(tree)
        self.text = text if len(text) <= LONG and self.count < 40 else ""
        self.each = through is not None and self.count < 40 and _each(tensor, through)

    def tree(self, t):
        """The recorded ops above the leaves as nested tuples, with the trivial left out."""
        self.count += 1
        if self.count >= 40:
            return "name", "…"
        if id(t) in self.leaves:
            name, array = self.leaves[id(t)]
            if name == self.one:
                return "number", 1.0
            self.used[name] = array
            return "name", name
        if t.op is None:
            if t.size == 1 and t.dtype.kind in "fi":
                return "number", t.item()
            return "name", self.constant(t)
        if self.short and t.op.name == "where" and t.op.inputs[0].numpy().all():
            return self.tree(t.op.inputs[1])
        parts = [self.tree(x) for x in t.op.inputs if x is not None]
        return _simpler(t.op, parts)

    def constant(self, t):
        """A name for what the rule worked out from values: masks, counts."""
        for name, array in self.others:
            if array.shape == t.shape and (array == t.numpy()).all():
                return name
        kind = "mask" if t.dtype.kind == "b" else "ids" if t.dtype.kind == "i" else "const"
        same = sum(name.startswith(kind) for name, _ in self.others)
        name = kind + (str(same + 1) if same else "")
        self.others.append((name, t.numpy()))
        self.used[name] = t.numpy()
        return name

    def written(self, tree):
        """(text, how tightly it binds): 1 sums, 2 a sign, 3 products, 4 powers, 5 what needs no brackets."""
        kind = tree[0]
        if kind == "name":
            return tree[1], 5
        if kind == "number":
            return number(tree[1]), 2 if tree[1] < 0 else 5
        op, parts = tree[1], tree[2:]
        if op.name in _SIGNS and len(parts) == 2:
            sign, level = _SIGNS[op.name]
            if op.name == "mul" and all(t.size != 1 for t in op.inputs):
                sign = " ⊙ "
            more = op.name in ("sub", "div", "pow")  # a - (b - c) keeps its brackets
            left = self.inside(parts[0], 2 if level == 3 else 5 if op.name == "pow" else level)
            text = left + sign + self.inside(parts[1], level + more)
            return text, 2 if level == 3 and text.startswith("−") else level
        if op.name == "neg":
            return "−" + self.inside(parts[0], 3), 2
        if op.name == "permute" and _is_transpose(op):
            return self.inside(parts[0], 5) + "ᵀ", 5
        if op.name == "where":
            return f"{self.inside(parts[1], 2)} where {self.inside(parts[0], 5)} else {self.inside(parts[2], 2)}", 0
        inner = ", ".join(self.written(p)[0] for p in parts) + _axis(op)
        if op.name == "getitem":
            return f"{self.inside(parts[0], 5)}[{_index(op.attributes().get('index', '…'))}]", 5
        if op.name == "affine":
            bias = " + " + self.inside(parts[2], 1) if len(parts) > 2 else ""
            return f"{self.inside(parts[0], 3)} {self.inside(parts[1], 5)}ᵀ{bias}", 1 if bias else 3
        return f"{_WORDS.get(op.name, op.name)}({inner})", 5

    def inside(self, tree, level):
        text, own = self.written(tree)
        return text if own >= level else f"({text})"


def call(op, names):
    """The call of an op as one writes it, `names` in the places of its inputs (None where one was left out)."""
    formula = Formula.__new__(Formula)
    text, _ = formula.written(("op", op, *[("name", n) for n in names if n is not None]))
    return text if len(text) <= LONG else f"{op.name}({len([n for n in names if n])} inputs)"


def rule_of(op, slot, names, outs):
    """The rule for input number `slot` of a recorded op: (Formula of the rule, Formula of the local derivative, its
    numbers). The local derivative is None where an output element depends on several input elements; all are None where
    a rule does not compute on Tensors.

    names   of its inputs; outs: names of its outputs
    """
    rule = op.rules[0] if op.variadic else op.rules[slot] if slot < len(op.rules) else None
    if rule is None:
        return None, None, None
    leaves = {}

    def stand_in(array, name):
        array = to_device(array, "cpu")
        t = Tensor._wrap(array, None, 0, array.dtype.kind == "f")
        t.requires_grad = array.dtype.kind == "f"
        leaves[id(t)] = name, array
        return t

    g = tuple(stand_in(np.ones(a.shape, a.dtype), "g" if len(op.outs) == 1 else f"g{i + 1}")
              for i, a in enumerate(op.outs))
    y = tuple(stand_in(a, name) for a, name in zip(op.outs, outs, strict=True))
    inputs = [None if t is None else stand_in(t.array, name) for t, name in zip(op.inputs, names, strict=True)]
    one = len(op.outs) == 1
    at = (slot, g[0] if one else g, y[0] if one else y, *inputs) if op.variadic else (
        g[0] if one else g, y[0] if one else y, *inputs)
    with enable_grad():
        result = rule(op, *at)
    if result is None or (result.op is None and id(result) not in leaves):
        return None, None, None
    small = one and result.size == 1 and g[0].size == 1
    short = type(op).__module__.startswith("tinyattn.") and op.name not in EACH  # of relu the mask is the rule itself
    whole = Formula(result, leaves, through=g[0], short=short)
    if not one or not (small or whole.each):
        return whole, None, None
    return whole, Formula(result, leaves, one="g"), result.numpy()  # the rule was called with g = 1


def _each(t, leaf):
    """Is `leaf` read by elementwise ops alone on every way to t?"""
    if t is leaf:
        return True
    if t.op is None:
        return True
    ways = [x for x in t.op.inputs if x is not None and _depends(x, leaf)]
    if not ways:
        return True
    return t.op.name in EACH and t.shape == leaf.shape and all(_each(x, leaf) for x in ways)


def _depends(t, leaf):
    return t is leaf or t.op is not None and any(x is not None and _depends(x, leaf) for x in t.op.inputs)


def _simpler(op, parts):
    """An op's tree without times 1, plus 0 and a sign before a number."""
    def is_number(i, value):
        return parts[i][0] == "number" and parts[i][1] == value

    name = op.name
    if name == "mul" and is_number(0, 1):
        return parts[1]
    if name in ("mul", "div") and is_number(1, 1):
        return parts[0]
    if name == "mul" and parts[0][0] == parts[1][0] == "number":
        return "number", parts[0][1] * parts[1][1]
    if name == "mul" and is_number(0, -1):
        return "op", _Neg, parts[1]
    if name in ("add", "sub") and is_number(1, 0):
        return parts[0]
    if name == "add" and is_number(0, 0):
        return parts[1]
    if name == "neg" and parts[0][0] == "number":
        return "number", -parts[0][1]
    if name in ("alias", "cast") or name == "expand" and parts[0][0] == "number":
        return parts[0]
    if name == "expand" and parts[0][0] == "op" and parts[0][1].name == "reshape":
        return "op", op, *parts[0][2:]
    return "op", op, *parts


class _Neg:
    name = "neg"


def _axis(op):
    """", axis −1" of a reduction that leaves some axes."""
    if op.name not in _REDUCE or op.inputs[0].ndim < 2:
        return ""
    axis = op.attributes().get("axis")
    axes = list(axis) if isinstance(axis, (tuple, list)) else [] if axis is None else [axis]
    if not axes or len(axes) == op.inputs[0].ndim:
        return ""
    return f", ax{'e' if len(axes) > 1 else 'i'}s {', '.join(map(str, axes))}".replace("-", "−")


def _is_transpose(op):
    axes = [a % len(op.axes) for a in op.axes]
    return len(axes) >= 2 and axes == [*range(len(axes) - 2), len(axes) - 1, len(axes) - 2]


def _index(index):
    """An index as one writes it."""
    def one(i):
        if isinstance(i, slice):
            ends = ["" if end is None else str(end) for end in (i.start, i.stop)]
            return ":".join(ends) + ("" if i.step is None else f":{i.step}")
        return "…" if i is Ellipsis else str(i) if isinstance(i, int) else "ids"
    return ", ".join(map(one, index)) if isinstance(index, tuple) else printable(one(index), 16)
