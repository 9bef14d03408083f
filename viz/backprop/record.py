"""The graph that `steps` walks over: its nodes, their names, and what their rules give.

Every number comes from the engine: values are what the ops computed, parts are what the ops' rules give for a gradient
that has come in.
"""
from collections import Counter
from dataclasses import dataclass, field
from itertools import chain, count

from tinyattn.autograd import _complete, _rule_results, grad, no_grad
from tinyattn.device import device_of, to_device
from tinyattn.errors import InputError
from tinyattn.program import _in_order
from tinyattn.tensor import Tensor

from ..text import printable
from .formula import call, number

LIMIT = 60


@dataclass
class Node:
    """An op's call, with its outputs, or a leaf. `ways` lead to its inputs: (number of the node, output, slot)."""
    id: int
    kind: str                  # "op", "leaf" (its gradient is asked for) or "constant"
    names: list                # of its outputs
    values: list               # their arrays
    op: object = None
    formula: str = ""
    ways: list = field(default_factory=list)
    tensor: object = None      # of a leaf


class Recording:
    """The graph below a Tensor: nodes, forward order, and how many parts the gradient of each node is made of."""

    def __init__(self, output, names=None):
        if not isinstance(output, Tensor):
            raise InputError(f"steps: expected a Tensor, got {type(output).__name__}")
        if output.op is None:
            raise InputError("steps: nothing was recorded for this Tensor: no input requires a gradient, or it was "
                             "made under no_grad()")
        if output.size != 1:
            raise InputError(f"steps: expected a Tensor of one element, such as a loss, got shape {output.shape}; "
                             "take its .sum()")
        self.output, self.nodes, self.place, self.leaves = output, [], {}, {}
        self.taken, self.given = set(), _by_key(names)
        ops = _in_order([output])
        for t in [output, *(t for op in ops for t in op.inputs if t is not None and t.op is not None)]:
            if t.name:
                self.given.setdefault((t.op, t.index), t.name)
        self._few_enough(ops)
        for op in ops:
            self._add(op)
        self.uses = Counter(way[0] for node in self.nodes for way in node.ways if self.wants(*way))
        self.order = [n.id for n in self.nodes if n.kind == "op"]
        self.root = self.place[output.op]

    def _few_enough(self, ops):
        inputs = [t for op in ops for t in op.inputs if t is not None and t.op is None]
        total = len(ops) + len({id(t) for t in inputs if not _inline(t, self.given)})
        if total > LIMIT:
            raise InputError(f"steps: the graph has {total:,} nodes, more than the {LIMIT} that can be followed step "
                             "by step: take a smaller example (fewer tokens, steps or layers), or draw it at once: "
                             "tinyattn graph")

    def _add(self, op):
        ways = []
        for slot, t in enumerate(op.inputs):
            if t is not None and not _inline(t, self.given):
                ways.append((self._leaf(t) if t.op is None else self.place[t.op], t.index, slot))
        node = Node(len(self.nodes), "op", [], [to_device(a, "cpu") for a in op.outs], op)
        node.formula = call(op, self.input_names(op))
        for i in range(len(op.outs)):
            node.names.append(self.name(self.given.get((op, i), ""), "v" if op is not self.output.op else "L"))
        node.ways, self.place[op] = ways, node.id
        self.nodes.append(node)

    def _leaf(self, t):
        if id(t) not in self.leaves:
            name = self.given.get(id(t)) or t.name
            kind = "leaf" if t.requires_grad else "constant"
            self.leaves[id(t)] = len(self.nodes)
            self.nodes.append(Node(len(self.nodes), kind, [self.name(name, "x" if t.requires_grad else "c")], [to_device(t.array, "cpu")],
                                   tensor=t))
        return self.leaves[id(t)]

    def name(self, wanted, letter):
        """A name that no other value has: the wanted one, or a letter with a number."""
        wanted = printable(wanted, 22)
        first = wanted or ("L" if letter == "L" else f"{letter}1")
        more = (f"{wanted}_{i}" if wanted else f"{letter}{i}" for i in count(2))
        name = next(n for n in chain([first], more) if n not in self.taken)
        self.taken.add(name)
        return name

    def node_of(self, t):
        return self.nodes[self.leaves[id(t)] if t.op is None else self.place[t.op]]

    def name_of(self, t):
        return self.node_of(t).names[t.index]

    def input_names(self, op):
        return [None if t is None else number(t.item()) if _inline(t, self.given) else self.name_of(t)
                for t in op.inputs]

    def wants(self, node, output, slot=0):
        """Does the value ask for a gradient?"""
        node = self.nodes[node]
        return node.kind == "leaf" or node.kind == "op" and node.values[output].dtype.kind == "f"

    @property
    def inputs(self):
        """The leaves, those that were named first in the order of their names."""
        known = list(self.given)
        leaves = [n for n in self.nodes if n.kind != "op"]
        return sorted(leaves, key=lambda n: known.index(id(n.tensor)) if id(n.tensor) in known else len(known) + n.id)

    @property
    def asked(self):
        """The leaves whose gradients are asked for."""
        return [n for n in self.inputs if n.kind == "leaf"]

    def truth(self):
        """{number of a leaf: its gradient, by the engine's own `grad`; None where none comes}."""
        try:
            found = grad(self.output, [n.tensor for n in self.asked], allow_unused=True)
        except RuntimeError as error:  # a value was changed in place since, say
            raise InputError(f"steps: {error}") from None
        return {n.id: None if g is None else g.numpy() for n, g in zip(self.asked, found, strict=True)}

    def parts(self, node, g):
        """What the rules of a node send to its inputs, for the gradients `g` of its outputs (None: nothing came)."""
        op, make = node.op, Tensor._wrap
        op.needs = [t is not None and t.requires_grad for t in op.inputs]
        totals = [None if a is None else make(to_device(a, device_of(op.outs[0])), None, 0, False) for a in g]
        with no_grad():
            g = totals[0] if len(totals) == 1 else _complete(op, totals, True)
            return [None if part is None else part.numpy() for part in _rule_results(op, g, op.needs, make)]


def _by_key(names):
    """{id of a leaf, or (op, output): name} from {name: Tensor} or a module."""
    try:
        names = dict(names.named_parameters()) if hasattr(names, "named_parameters") else dict(names or {})
    except (TypeError, ValueError):
        raise InputError(f"steps: names: expected {{name: Tensor}} or a module, got {type(names).__name__}") from None
    return {id(t) if t.op is None else (t.op, t.index): name for name, t in names.items() if isinstance(t, Tensor)}


def _inline(t, given):
    """A number in a formula, not a node: an unnamed constant of one element."""
    return t.op is None and not t.requires_grad and t.size == 1 and not t.name and id(t) not in given
