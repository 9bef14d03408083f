"""From Tensors to what is drawn of them: a Program, the backward pass behind it, and what its values hold."""
from contextlib import contextmanager
from dataclasses import dataclass, field

from tinyattn.autograd import grad
from tinyattn.errors import InputError
from tinyattn.program import Program, _in_order
from tinyattn.tensor import Tensor

from .cut import cut, inside
from .labels import Held, shown_output, used_values


@dataclass
class Recorded:
    """A Program and the Tensors behind its values: {value id: Tensor}; `top` is the one that gradients are of."""
    program: Program
    tensors: dict = field(default_factory=dict)
    top: object = None


def recorded(outputs, names=None, backward=False, scope=None, inputs=()):
    """What computed `outputs`; with backward=True the backward pass too, with "only" that alone; `scope`: one box.
    `inputs`: leaves that are no parameters, though they require a gradient."""
    outputs = _tensors(outputs)
    top = outputs[0] if len(outputs) == 1 else None
    with _named(names):
        outputs, titles = _with_gradients(outputs) if backward else (outputs, {})
        program = Program.of(outputs)
    if backward:
        _tell_backward(program, len(_in_order(outputs[:1])), titles)
    found = Recorded(program, _tensors_of(program, outputs), top)
    given = {id(t) for t in inputs}
    for v, t in found.tensors.items():
        if id(t) in given and program.values[v].kind == "parameter":
            program.values[v].kind = "input"
    if backward == "only":
        first = len(_in_order(outputs[:1]))
        found = _part(found, *cut(program, range(first, len(program)), program.outputs[1:]))
        if not len(found.program):
            raise InputError("graph: this Tensor has no backward pass: no parameter receives a gradient that depends "
                             "on anything")
    return found if scope is None else _part(found, *inside(found.program, scope))


def _part(whole, program, ids):
    return Recorded(program, {ids[v]: t for v, t in whole.tensors.items() if v in ids}, whole.top)


def _tensors(outputs):
    outputs = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
    for t in outputs:
        if not isinstance(t, Tensor):
            raise InputError(f"graph: expected a Tensor, a list of Tensors or a Program, got {type(t).__name__}")
    if not outputs:
        raise InputError("graph: expected at least one Tensor, got an empty list")
    try:
        _in_order(outputs)
    except RuntimeError:
        raise InputError("graph: nothing is left to draw: backward(free_graph=True) has freed the graph; draw before "
                         "it") from None
    return outputs


@contextmanager
def _named(names):
    """Tensors carry their name from `names` while the Program is made."""
    names = dict(names.named_parameters()) if hasattr(names, "named_parameters") else dict(names or {})
    names = {name: t for name, t in names.items() if isinstance(t, Tensor)}
    for name in names:
        if not isinstance(name, str):
            raise InputError(f"graph: expected the names of Tensors to be text, got {name!r}")
    before = [(t, t.name) for t in names.values()]
    try:
        for name, t in names.items():
            t.name = name
        yield
    finally:
        for t, name in reversed(before):
            t.name = name


def _tensors_of(program, outputs):
    """{value id: Tensor} for everything in a Program of `outputs`."""
    tensors = {}
    for step, op in zip(program.instructions, _in_order(outputs), strict=True):
        tensors.update((v, t) for v, t in zip(step.inputs, op.inputs, strict=True) if v is not None)
        floats = [i for i, a in enumerate(op.outs) if a.dtype.kind == "f"]
        for value, i in zip(step.outputs, floats, strict=True):
            tensors.setdefault(value, Tensor._wrap(op.outs[i], op, i, True))
    return tensors


# ---------------------------------------------------------------------------------------------------------------------
# the backward pass
# ---------------------------------------------------------------------------------------------------------------------
def _with_gradients(outputs):
    """The outputs and their gradients in one list, with titles for the gradients: {position: "∂loss/∂w"}."""
    _check_scalar(outputs, "the backward pass is drawn from")
    leaves = {}
    for op in _in_order(outputs):
        leaves.update((id(t), t) for t in op.inputs if t is not None and t.op is None and t.requires_grad)
    leaves = list(leaves.values())
    found = grad(outputs, leaves, create_graph=True, allow_unused=True) if leaves else ()
    top, titles = outputs[0].name or "loss", {}
    for leaf, gradient in zip(leaves, found, strict=True):
        if gradient is not None and gradient.op is not None:
            titles[len(outputs)] = f"∂{top}/∂{leaf.name or 'parameter'}"
            outputs = [*outputs, gradient]
    return outputs, titles


def _check_scalar(outputs, what):
    if len(outputs) != 1 or outputs[0].size != 1:
        raise InputError(f"graph: {what} one Tensor of one element, such as a loss; got "
                         + ", ".join(f"shape {t.shape}" for t in outputs))


def _tell_backward(program, forward, titles):
    """Name the gradients, and put the sums that the walk makes between two rules into the scope of what they sum up.
    `forward` is the number of instructions before the backward pass."""
    for i, name in titles.items():
        program.values[program.outputs[i]].name = program.values[program.outputs[i]].name or name
    scope_of = {}
    for step in program.instructions[forward:]:
        if "backward" not in step.scope.split("/"):
            step.scope = next((scope_of[v] for v in reversed(step.inputs) if v in scope_of), f"backward/{step.op}")
        scope_of.update((v, step.scope) for v in step.outputs)


# ---------------------------------------------------------------------------------------------------------------------
# numbers
# ---------------------------------------------------------------------------------------------------------------------
def held(found, drawing, values, gradients):
    """{value id: Held} for what the nodes of a Drawing show: with `values` the numbers, and the `.grad` of parameters;
    with `gradients` the gradient of the whole at every value, computed here, so that no `.grad` is touched."""
    wanted, used = {}, used_values(found.program)
    for node in drawing.nodes:
        if node.kind == "op":
            step = found.program.instructions[node.members[len(node.members) // 2]]
            wanted.update((v, found.tensors[v]) for v in shown_output(step, used))
        elif node.kind != "scope":
            wanted[node.members[0]] = found.tensors[node.members[0]]
    slopes = _slopes(found.top, wanted) if gradients else None
    learned = {v for v in wanted if found.program.values[v].kind == "parameter"}
    return {v: _held(t, values, None if slopes is None else slopes.get(v), slopes is not None, v in learned)
            for v, t in wanted.items()}


def _held(t, values, slope, asked, learned):
    array = t.numpy() if values else None
    if asked and t.requires_grad:
        return Held(array, None if slope is None else slope.numpy(), "" if slope is not None else "no gradient")
    if not values or not learned:
        return Held(array)
    return Held(array, None, "no gradient yet") if t.grad is None else Held(array, t.grad.numpy())


def _slopes(top, wanted):
    """{value id: the gradient of `top` there}, for the values that are on a way to it."""
    if top is None:
        raise InputError("graph: gradients are of one Tensor of one element, such as a loss; got several Tensors")
    _check_scalar([top], "gradients are of")
    below = {(id(t) if t.op is None else (t.op, t.index)) for op in _in_order([top]) for t in op.inputs
             if t is not None}
    below.add((top.op, top.index))
    targets = {v: t for v, t in wanted.items() if t.requires_grad
               and (id(t) if t.op is None else (t.op, t.index)) in below}
    return dict(zip(targets, grad(top, list(targets.values()), allow_unused=True), strict=True)) if targets else {}
