"""Program: a graph as a plain list of instructions, in the order in which they can be run.

Drawing, equations, JSON and everything else that wants to look at a computation reads this and not the graph itself. A
Program holds no arrays, so keeping one keeps nothing alive.
"""
import re
from dataclasses import asdict, dataclass, field

from .autograd import Op


@dataclass
class Value:
    """A Tensor in a Program: a leaf or one output of an instruction. `id` counts from 0, in order of appearance."""
    id: int
    shape: tuple
    dtype: str
    name: str = ""
    kind: str = "value"       # "parameter" (leaf that requires a gradient), "constant" (leaf that does not), "value"
    data: object = None       # the numbers of a small leaf constant, as nested lists


@dataclass
class Instruction:
    """One call of an op: values in, values out."""
    op: str
    inputs: list              # ids of values; None where an optional input was left out
    outputs: list
    scope: str = ""
    attributes: dict = field(default_factory=dict)
    tex: str = ""             # the formula with the slots of the inputs still open
    input_names: list = field(default_factory=list)
    broadcast: list = field(default_factory=list)  # an input: the shape to which it was stretched, or None
    fused: bool = False       # does the op have a readable twin?


@dataclass
class Program:
    """`values[i].id == i`; `outputs` are ids; `instructions` are in topological order."""
    values: list
    instructions: list
    outputs: list

    @classmethod
    def of(cls, outputs):
        """The Program that computed a Tensor or a list of Tensors. Iterative, so any depth will do."""
        outputs = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
        builder = _Builder()
        for op in _in_order(outputs):
            builder.add(op)
        return cls(builder.values, builder.instructions, [builder.id_of(t) for t in outputs])

    def __len__(self):
        return len(self.instructions)

    def scopes(self):
        """All scope paths, outer ones first, in order of appearance."""
        seen = {}
        for instruction in self.instructions:
            parts = instruction.scope.split("/") if instruction.scope else []
            for i in range(len(parts)):
                seen.setdefault("/".join(parts[:i + 1]))
        return list(seen)

    def to_json(self):
        """A plain dictionary of lists, numbers and strings."""
        return asdict(self)

    def __str__(self):
        """One line an instruction: `%3 (32, 64) = mul(%1, w)  # encoder`."""
        def show(i):
            return "-" if i is None else self.values[i].name or f"%{i}"
        lines = []
        for step in self.instructions:
            left = ", ".join(f"{show(i)} {self.values[i].shape}" for i in step.outputs)
            settings = "".join(f", {k}={v}" for k, v in step.attributes.items())
            lines.append(f"{left} = {step.op}({', '.join(show(i) for i in step.inputs)}{settings})"
                         + (f"  # {step.scope}" if step.scope else ""))
        return "\n".join(lines)


def fill_tex(tex, names):
    """Put the names of the inputs into the slots of an op's formula: fill_tex("{x} + {y}", {"x": "a", "y": "b"})."""
    return re.sub(r"\{(\w+)\}", lambda m: names[m.group(1)] if m.group(1) in names else m.group(0), tex)


def _in_order(outputs):
    """The ops below `outputs`, each after the ops that it needs: a depth-first search with an explicit stack."""
    order, seen = [], set()
    stack = [(t.op, False) for t in reversed(outputs) if t.op is not None]
    while stack:
        op, done = stack.pop()
        if done:
            order.append(op)
        elif op not in seen:
            seen.add(op)
            if op.inputs is None:
                raise RuntimeError(f"Program: the graph below {op!r} was freed by backward(free_graph=True)")
            stack.append((op, True))
            stack.extend((t.op, False) for t in reversed(op.inputs) if t is not None and t.op is not None)
    return order


class _Builder:
    def __init__(self):
        self.values, self.instructions, self.ids = [], [], {}

    def id_of(self, t):
        if t is None:
            return None
        key = id(t) if t.op is None else (t.op, t.index)
        if key not in self.ids:
            self.ids[key] = len(self.values)
            kind = "value" if t.op is not None else "parameter" if t.requires_grad else "constant"
            data = t.tolist() if kind == "constant" and t.size <= 16 else None
            self.values.append(Value(len(self.values), t.shape, str(t.dtype), t.name, kind, data))
        elif t.name and not self.values[self.ids[key]].name:
            self.values[self.ids[key]].name = t.name
        return self.ids[key]

    def add(self, op):
        inputs = [self.id_of(t) for t in op.inputs]
        outputs = [self.id_of(Op.result._wrap(a, op, i, True)) if a.dtype.kind == "f" else None
                   for i, a in enumerate(op.outs)]
        names = [f"{op.input_names[0]}{i}" for i in range(len(inputs))] if op.variadic else list(op.input_names)
        whole = op.outs[0].shape
        elementwise = op.name in ("add", "sub", "mul", "div", "pow", "maximum", "minimum", "where")
        stretched = [list(whole) if elementwise and t is not None and t.shape != whole else None for t in op.inputs]
        self.instructions.append(Instruction(op.name, inputs, [o for o in outputs if o is not None], op.scope,
                                             plain_attributes(op.attributes()), op.tex, names, stretched, op.composed is not None))


def plain_attributes(attributes):
    """Attributes as JSON can hold them."""
    def plain(v):
        if isinstance(v, (tuple, list)):
            return [plain(x) for x in v]
        return v if isinstance(v, (bool, int, float, str, type(None))) else str(v)
    return {k: plain(v) for k, v in attributes.items()}
