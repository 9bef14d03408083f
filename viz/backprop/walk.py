"""The walks that `steps` shows: forward in the order of recording, backward in the engine's order or in a wrong one.

A walk has a `Frame` for every visit of a node of a `Recording`.
"""
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from tinyattn.tensor import Tensor

from .check import summary
from .formula import call, number, rule_of


@dataclass
class Frame:
    """One picture of the walk: what is said beside the graph, and what the graph shows then."""
    phase: str                 # "forward" or "backward"
    current: int               # number of the node visited; -1: none
    title: str
    rows: list                 # each a list of texts and arrays, in reading order
    computed: frozenset        # nodes that have a value by now
    done: frozenset            # nodes visited by the backward pass
    grads: dict                # {(node, output): array} of what has arrived by now
    arrived: dict              # {node: parts that have arrived}
    sent: list                 # [(node, slot, array)]: the edges that carry a gradient right now
    numbers: dict = field(default_factory=dict)


class Walk:
    """What has been computed and what has arrived so far; `frames` grows by one a visit."""

    def __init__(self, recording):
        self.graph, self.frames = recording, []
        self.computed, self.done, self.grads, self.arrived = set(), set(), {}, Counter()
        self.rules = {}  # {node: what is wrong with its rules}, see check.py
        self.early = []  # [(node, parts arrived, gradient used)] of nodes that were visited too early

    def frame(self, phase, current, title, rows, sending=(), **numbers):
        self.frames.append(Frame(phase, current, title, rows, frozenset(self.computed), frozenset(self.done),
                                 dict(self.grads), dict(self.arrived), list(sending), numbers))

    def forward(self):
        leaves = self.graph.inputs
        self.computed.update(n.id for n in leaves)
        rows = [[f"{n.names[0]} =", n.values[0]] for n in leaves]
        rows += [[""], ["A double frame: an input whose gradient is asked for."]]
        self.frame("forward", -1, "the inputs are given", rows,
                   values={n.names[0]: n.values[0] for n in leaves})
        for i in self.graph.order:
            self._compute(self.graph.nodes[i])

    def _compute(self, node):
        self.computed.add(node.id)
        name = ", ".join(node.names)
        rows = []
        values = [None if t is None else t.numpy() for t in node.op.inputs]
        if all(a is None or a.size == 1 for a in values) and all(a.size == 1 for a in node.values):
            signed = [None if a is None else _signed(a) for a in values]
            rows += [[f"{name} = {call(node.op, signed)}"]]
        else:
            rows.append([f"# {name} = {node.formula}"])
            for label, array in {n: a for n, a in zip(self.graph.input_names(node.op), values, strict=True)
                                 if n and a.size > 1}.items():
                rows.append([f"{label} =", array])
        rows += [[f"{n} =", a] for n, a in zip(node.names, node.values, strict=True)]
        self.frame("forward", node.id, f"{name} = {node.formula}", rows,
                   values=dict(zip(node.names, node.values, strict=True)))

    def seed(self, more=()):
        root = self.graph.nodes[self.graph.root]
        name, one = root.names[self.graph.output.index], np.ones(self.graph.output.shape, self.graph.output.dtype)
        self.grads[root.id, self.graph.output.index] = one
        rows = [["The backward pass starts at the output:"], [f"∂{name}/∂{name} = 1"],
                ["– means that no gradient has arrived yet, which is not the same as 0."], *more]
        self.frame("backward", -1, f"start with ∂{name}/∂{name} = 1", rows, gradient=one)

    def incoming(self, node):
        return [self.grads.get((node.id, i)) for i in range(len(node.values))]

    def described(self, node, g):
        """Rows that say what came in at a node, and whether it was all."""
        uses, arrived, rows = self.graph.uses[node.id], self.arrived[node.id], []
        for i, (name, a) in enumerate(zip(node.names, g, strict=True)):
            letter = "g" if len(g) == 1 else f"g{i + 1}"
            rows.append([f"{letter} = grad {name} =", "– (nothing came: counts as 0)" if a is None else a])
        if uses:
            rows.append([f"{arrived} of {uses} part{'s' if uses > 1 else ''} arrived: "
                         + ("complete" if arrived == uses else "NOT complete")])
            if arrived < uses:
                rows[-1][0] = "! " + rows[-1][0]
        return rows

    def send(self, node, slot, part, g):
        """Add a part to the slot of an input; return the rows that say how, and the numbers."""
        op, graph = node.op, self.graph
        t = op.inputs[slot]
        names, target = graph.input_names(op), graph.node_of(t)
        name = target.names[t.index]
        rows, numbers = [], {"to": name, "slot": slot}
        self.arrived[target.id] += 1
        if part is None:
            return [[f"# to {name}: the rule sends nothing"]], numbers, None
        whole, local, slope = rule_of(op, slot, names, node.names)
        rows += _rule_rows(node, name, whole, local, slope, part, g)
        numbers |= {"rule": whole.text if whole else "", "local": local.text if local else "",
                    "slope": slope, "rule_gives": part}
        if part.shape != t.shape:
            part = Tensor._wrap(part, None, 0, False).sum_to(t.shape).numpy()
            rows.append([f"{name} was stretched {_shape(t.shape)} → {_shape(node.values[0].shape)}: sum over the copies"
                         if whole else "sum over the stretched axes", "=", part])
        key = target.id, t.index
        before = self.grads.get(key)
        after = part if before is None else np.asarray(before + part)
        self.grads[key] = after
        uses = self.graph.uses[target.id]
        count = [f"({self.arrived[target.id]} of {uses})"] if uses > 1 else []
        if before is not None:
            rows.append([f"grad {name}:", before, "+", _signed(part) if part.size == 1 else part, "=", after, *count])
        else:
            rows.append([f"grad {name}: nothing yet, now", after if part.size == 1 else "this part", *count])
        numbers |= {"part": part, "before": before, "after": after}
        return rows, numbers, part

    def visit(self, node):
        """A node whose gradient is complete: all of its rules, in one frame."""
        g = self.incoming(node)
        rows, sent, numbers, parts = self.described(node, g), [], [], self.graph.parts(node, g)
        self.done.add(node.id)
        for slot in [slot for _, _, slot in node.ways if node.op.inputs[slot].requires_grad]:
            more, said, part = self.send(node, slot, parts[slot], g)
            rows += [[""], *more]
            numbers.append(said)
            if part is not None:
                sent.append((node.id, slot, part))
        if self.rules.get(node.id):
            rows += [[""], [f"! the rule disagrees with finite differences: {self.rules[node.id]} ✗"]]
        self.frame("backward", node.id, self.headline(node), rows, sent, g=_plain(g), sent=numbers)

    def headline(self, node):
        return f"{', '.join(node.names)} = {node.formula}"


def topological(graph, rules=None):
    """The engine's order: a node is visited once all parts of its gradient have arrived, by counting down its uses."""
    walk = Walk(graph)
    walk.rules = rules or {}
    walk.forward()
    walk.seed()
    uses, ready = dict(graph.uses), [graph.root]
    while ready:
        node = graph.nodes[ready.pop()]
        if any(a is not None for a in walk.incoming(node)):
            walk.visit(node)
        for below, output, _ in node.ways:
            if graph.wants(below, output) and graph.nodes[below].kind == "op":
                uses[below] -= 1
                if uses[below] == 0:
                    ready.append(below)
    return walk


EXPLAINED = ("a node is visited as soon as any gradient reaches it, and only once; parts that arrive later are not "
             "passed on")


def too_early(graph):
    """A wrong order: depth first, without waiting. A node is visited as soon as any gradient arrives, and only once."""
    walk = Walk(graph)
    walk.forward()
    walk.seed([[""], ["! WRONG ORDER, on purpose:"], [EXPLAINED + "."]])
    stack = [_edges(walk, graph.nodes[graph.root])]
    while stack:
        below = next(stack[-1], None)
        if below is None:
            stack.pop()
        elif graph.nodes[below].kind == "op" and below not in walk.done:
            stack.append(_edges(walk, graph.nodes[below]))
    return walk


def _edges(walk, node):
    """Visit a node edge by edge, a frame each; yields the node that each edge leads to, to be visited at once."""
    g, graph = walk.incoming(node), walk.graph
    parts, arrived = graph.parts(node, g), walk.arrived[node.id]
    walk.done.add(node.id)
    opening = walk.described(node, g)
    if arrived < graph.uses[node.id]:
        walk.early.append((node.id, arrived, g))
        opening.append(["! too early: it is visited now, and not again"])
    ways = [way for way in node.ways if node.op.inputs[way[2]].requires_grad]
    for i, (below, _, slot) in enumerate(ways):
        late = below in walk.done
        rows, said, part = walk.send(node, slot, parts[slot], g)
        if late:
            name = ", ".join(graph.nodes[below].names)
            rows.append([f"! too late: {name} was visited before; this part goes no further"])
        edge = f" (edge {i + 1} of {len(ways)})" if len(ways) > 1 else ""
        again = [[f"g = grad {node.names[0]} =", "–" if g[0] is None else g[0], "as it was when the visit began"]]
        walk.frame("backward", node.id, walk.headline(node) + edge, [*(again if i else opening), [""], *rows],
                   [(node.id, slot, part)] if part is not None else [], g=_plain(g), sent=[said], late=late)
        if part is not None:
            yield below


def finish(walk, truth, rules, right=None):
    """The last frame: the gradients of the leaves, compared with `grad`, and how the rules fare, see check.py; for a
    wrong walk against the right one."""
    graph, rows, (judged, fare) = walk.graph, [], summary(walk.graph, rules)
    found = {n.id: walk.grads.get((n.id, 0)) for n in graph.asked}
    scale = max([float(np.abs(a).max()) for a in walk.grads.values() if a.size and np.isfinite(a).all()], default=1.0)
    wrong = [i for i in found if not _same(found[i], truth[i], scale)]
    if right is None:
        for n in graph.asked:
            rows.append([f"grad {n.names[0]} =", "– (none)" if found[n.id] is None else found[n.id]])
        differ = "They differ from ta.grad(...) at: " + ", ".join(graph.nodes[i].names[0] for i in wrong)
        rows += [[""], [differ if wrong else "ta.grad(...), which follows the same rules, gives the same."], *judged]
    elif not wrong:
        rows += [["Here the wrong order gives the right numbers."],
                 [_harmless(graph, walk)]]
    else:
        rows.append(["# Used before they were complete:"])
        for i, arrived, g in walk.early:
            node = graph.nodes[i]
            for k, name in enumerate(node.names):
                full = right.grads.get((i, k))
                if g[k] is not None or full is not None:
                    rows.append([f"grad {name} =", "–" if g[k] is None else g[k],
                                 f"after {arrived} of {graph.uses[i]} parts; complete:", "–" if full is None else full])
        rows += [[""], ["# So these came out wrong:"]]
        for i in wrong:
            name, got = graph.nodes[i].names[0], "–" if found[i] is None else found[i]
            rows.append([f"! grad {name} =", got, "not", "–" if truth[i] is None else truth[i]])
        fine = [graph.nodes[i].names[0] for i in found if i not in wrong]
        if fine:
            rows.append(["right all the same: " + ", ".join(fine)])
        rows += [[""], ["# Why?"], *map(list, zip(_reasons(graph, walk)))]
    if right is not None and fare["wrong"]:
        rows += [[""], *judged]
    title = ("the result is wrong" if right else "the gradients differ") if wrong else (
        "a rule is wrong, and so are these gradients" if fare["wrong"] else "the gradients of the inputs")
    walk.frame("backward", -1, title, rows, wrong=[graph.nodes[i].names[0] for i in wrong], rules=fare,
               grads={graph.nodes[i].names[0]: a for i, a in found.items()},
               truth={graph.nodes[i].names[0]: a for i, a in truth.items()})
    return walk


def _reasons(graph, walk):
    """What went wrong at the first node that was visited too early, and how the right order avoids it."""
    i, arrived, _ = walk.early[0]
    name, uses = ", ".join(graph.nodes[i].names), graph.uses[i]
    yield f"{name} is used {uses} times. Its gradient is the sum of {uses} parts, one from each use (chain rule)."
    yield (f"{name} was visited after {arrived} of them, and passed on that much alone. What came later stayed in "
           f"{name}: it never reached what {name} was made from.")
    yield "The right order visits a node only after all nodes that use it: from the output back."


def _harmless(graph, walk):
    shared = [n for n in graph.nodes if n.kind == "op" and graph.uses[n.id] > 1]
    if not shared:
        return ("No computed value is used twice (as in a chain), so each gradient is complete as soon as its one part "
                "arrives.")
    return ("Values used twice: " + ", ".join(n.names[0] for n in shared) + ". What came late added nothing here.")


def _rule_rows(node, name, whole, local, slope, part, g):
    """How the rule reads, and its numbers."""
    if whole is None:
        twin = "derived from its readable twin" if node.op.composed is not None else "computed"
        return [[f"# to {name}: by the rule of {node.op.name} ({twin})"], ["part =", part]]
    rows = [[f"# to {name}: send " + (whole.text or f"the rule of {node.op.name} (long)")]]
    if slope is None:
        rows += [[f"{label} =", array] for label, array in whole.used.items() if array.size > 1 and label != "g"]
        return rows + [["part =", part]]
    said = f"local slope ∂{node.names[0]}/∂{name} ="
    if slope.size == 0 or local.text == number(slope.flat[0]):  # a constant says it all
        rows.append([said, local.text])
    else:
        rows.append([said + (f" {local.text} =" if local.text else ""), slope])
    if slope.size == 1 and g[0] is not None:
        return rows + [[f"part = g · slope = {_signed(g[0])} · {_signed(slope)} =", part]]
    return rows + [[f"part = g {'·' if slope.size == 1 else '⊙'} slope =", part]]


def _same(a, b, scale):
    """Equal up to what is lost in sums of numbers as large as `scale`? No gradient at all is as good as 0."""
    if a is None or b is None:
        return not any(x is not None and x.any() for x in (a, b))
    lost = 256 * np.finfo(a.dtype).eps
    return np.allclose(a, b, rtol=lost, atol=lost * scale, equal_nan=True)


def _signed(array):
    text = number(array.item()) if array.dtype.kind != "b" else str(bool(array.item()))
    return f"({text})" if text.startswith("−") else text


def _shape(shape):
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def _plain(arrays):
    return arrays[0] if len(arrays) == 1 else arrays
