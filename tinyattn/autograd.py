"""Reverse-mode automatic differentiation: the walk that differentiates a graph of operations.

    forward    y = op(x1, x2)                      recorded by `op.py`: each op keeps its inputs and outputs
    backward   g_x = op.grad_x(g_y, y, x1, x2)     one rule an input: the chain rule for that edge

A node keeps its inputs and outputs alive until the last Tensor above it is dropped. Nothing points back up (an op does
not hold its output Tensors), so a dropped loss frees its whole graph at once, without the garbage collector.
"""
from contextlib import nullcontext

import numpy as np

from . import device
from .op import (  # noqa: F401  (the names of the public interface that live in op.py)
    Alias,
    Op,
    _set,
    capture,
    clock,
    detect_anomaly,
    enable_grad,
    fused,
    is_grad_enabled,
    look_for_anomaly,
    no_grad,
    scope,
    state,
    tap,
    where_in,
)

ndarray = np.ndarray


# ---------------------------------------------------------------------------------------------------------------------
# the walk
# ---------------------------------------------------------------------------------------------------------------------
class _Slot:
    """The gradient that is being summed up for one output of one node, or for one leaf."""
    __slots__ = ("total", "owned", "tensor")

    def __init__(self, tensor=None):
        self.total, self.owned, self.tensor = None, False, tensor  # owned: made by this pass, so we may add in place


def walk(roots, seeds, create_graph=False, targets=None, free_graph=False):
    """Send the gradients `seeds` of the Tensors `roots` down the graph; return {id(tensor): _Slot} of what they reach.

    1. Count for every node how many edges will send it a gradient: its uses.
    2. Visit a node once its count is down to 0, that is when its own gradient is complete. A node used twice is thus
       visited once, after both uses: the topological order, found without recursion.

    Without `create_graph` gradients are plain arrays and loops (`cpu_grad`) are used where an op has them; with it they are
    Tensors, made by rules alone, and recorded. `targets` restricts the work to the paths that lead to those Tensors.
    """
    needed = None if targets is None else _leads_to(roots, targets)
    wanted = {}
    for t in targets or ():
        wanted.setdefault(t.op, []).append(t)
    uses, inner, leaves = _count_uses(roots, needed), {}, {}
    for root, seed in zip(roots, seeds, strict=True):
        _send(root, seed, inner, leaves, create_graph)
    ready = [op for op in {r.op: None for r in roots if r.op is not None} if uses.get(op) == 0]
    before, state.recording = state.recording, create_graph
    try:
        while ready:
            op = ready.pop()
            slots = inner.pop(op, None)
            if slots is not None:  # None: every rule above said that no gradient comes this way
                if op in wanted:
                    for t in wanted[op]:
                        if slots[t.index] is not None:
                            leaves[id(t)] = slots[t.index]
                _visit(op, slots, needed, inner, leaves, create_graph)
            for t in op.inputs:
                if t is not None:
                    below = t.op
                    if below is not None and below in uses:
                        uses[below] -= 1
                        if uses[below] == 0:
                            ready.append(below)
            if free_graph:
                op.inputs = op.outs = op.saved = None
    finally:
        state.recording = before
    return leaves


def _count_uses(roots, needed):
    for r in roots:
        _check_not_freed(r)
    uses = {r.op: 0 for r in roots if r.op is not None and (needed is None or r.op in needed)}
    stack = list(uses)
    while stack:
        op = stack.pop()
        for t in op.inputs:
            if t is not None and t.requires_grad and t.op is not None and (needed is None or t.op in needed):
                _check_not_freed(t)
                if t.op in uses:
                    uses[t.op] += 1
                else:
                    uses[t.op] = 1
                    stack.append(t.op)
    return uses


def _leads_to(roots, targets):
    """The nodes from which one of `targets` can be reached (and the ids of leaf targets), by a depth-first search."""
    goals, goal_ops = {id(t) for t in targets}, {t.op for t in targets if t.op is not None}
    useful, seen = goals | goal_ops, set()  # ids of leaves that are targets, and nodes
    for r in roots:
        _check_not_freed(r)
    stack = [(r.op, False) for r in roots if r.op is not None]
    while stack:
        op, below_done = stack.pop()
        if below_done:
            if any(t is not None and _needed(t, useful) for t in op.inputs):
                useful.add(op)
            continue
        if op in seen:
            continue
        seen.add(op)
        stack.append((op, True))
        for t in op.inputs:
            if t is not None and t.requires_grad and t.op is not None:
                _check_not_freed(t)
                stack.append((t.op, False))
    return useful


def _needed(t, useful):
    return (id(t) if t.op is None else t.op) in useful


def _visit(op, slots, needed, inner, leaves, create_graph):
    """Apply one node's rules to its complete gradient and send the results to its inputs."""
    if op.epoch != clock[0]:
        _check_unchanged(op)
    inputs = op.inputs
    needs = op.needs = [t is not None and t.requires_grad and (needed is None or _needed(t, needed)) for t in inputs]
    outs = op.outs
    g = slots[0].total if len(outs) == 1 else _complete(op, slots, create_graph)
    if create_graph:
        _by_rules(op, g, needs, inner, leaves)
        return
    if op.accumulate is not None and type(outs[0]) is ndarray:
        _add_into(op, g, inner, leaves)
        return
    loop = op.cpu_grad if type(outs[0]) is ndarray else op.cuda_grad
    if loop is None:
        _by_rules(op, g, needs, inner, leaves, wrap=True)
        return
    grads = loop(g, outs[0] if len(outs) == 1 else outs, *[None if t is None else t.array for t in inputs])
    for t, need, gradient in zip(inputs, needs, grads, strict=True):
        if need and gradient is not None:
            _send(t, gradient, inner, leaves, False, op, op.fresh)


def _complete(op, slots, create_graph):
    """The gradient of every output, zero where an output was not used: an array or Tensor, a tuple if several."""
    g = []
    for slot, out in zip(slots, op.outs, strict=True):
        if slot is None:
            zero = device.to_device(np.zeros(out.shape, out.dtype), device.device_of(out))
            g.append(op.result._wrap(zero, None, 0, False) if create_graph else zero)
        else:
            g.append(slot.total)
    return g[0] if len(g) == 1 else tuple(g)


def _by_rules(op, g, needs, inner, leaves, wrap=False):
    """Apply the rules of one node. Recorded, they stand in a scope of their own: backward/<the op's scope>/<its name>."""
    inputs, make = op.inputs, op.result._wrap
    if wrap:  # arrays become Tensors for the rules, and their results arrays again
        g = tuple(make(a, None, 0, False) for a in g) if type(g) is tuple else make(g, None, 0, False)
    with scope(f"backward/{op.scope}/{op.name}" if op.scope else f"backward/{op.name}") if not wrap else nullcontext():
        for t, need, gradient in zip(inputs, needs, _rule_results(op, g, needs, make), strict=True):
            if need and gradient is not None:
                _send(t, gradient.array if wrap else gradient, inner, leaves, not wrap, op)


def _rule_results(op, g, needs, make):
    """The gradients that an op's rules give for the inputs that need one. Tensors in, Tensors out."""
    if op.composed is not None and not any(op.rules):
        return _through_twin(op, g, needs)
    y = tuple(make(a, op, i, state.recording) for i, a in enumerate(op.outs))
    y = y[0] if len(y) == 1 else y
    if op.variadic:
        rule = op.rules[0]
        return [rule(op, i, g, y, *op.inputs) if need else None for i, need in enumerate(needs)]
    grads = []
    for name, rule, need in zip(op.input_names, op.rules, needs, strict=False):
        if need and rule is None:
            raise TypeError(f"{op.name}: is not differentiable in its input {name!r}, which requires a gradient; "
                            f"pass {name}.detach()")
        grads.append(rule(op, g, y, *op.inputs) if need else None)
    return grads


def _through_twin(op, g, needs):
    """Differentiate the readable twin of a fused op. Its inputs are aliased, so that one Tensor in two slots counts twice."""
    with _set(recording=True, fused="auto"):
        aliases = [Alias()(t) if need else t for t, need in zip(op.inputs, needs, strict=True)]
        outs = op.composed(*aliases)
    outs = outs if type(outs) is tuple else (outs,)
    pairs = [(o, s) for o, s in zip(outs, g if type(g) is tuple else (g,), strict=True) if o.requires_grad]
    wanted = [a for a, need in zip(aliases, needs, strict=True) if need]
    found = iter(grad([o for o, _ in pairs], wanted, [s for _, s in pairs], create_graph=state.recording,
                      allow_unused=True) if pairs else [None] * len(wanted))
    return [next(found) if need else None for need in needs]


def _slot_of(t, inner, leaves):
    op = t.op
    if op is None:
        slot = leaves.get(id(t))
        if slot is None:
            slot = leaves[id(t)] = _Slot(t)
        return slot
    slots = inner.get(op)
    if slots is None:
        slots = inner[op] = [None] * len(op.outs)
    slot = slots[t.index]
    if slot is None:
        slot = slots[t.index] = _Slot()
    return slot


def _send(t, gradient, inner, leaves, create_graph, op=None, fresh=False):
    """Add `gradient` to what the Tensor `t` has received so far, summed over the axes along which `t` was broadcast."""
    array = t.array
    if gradient.shape != array.shape:
        gradient, fresh = _summed(t, gradient, create_graph, op), True
    if gradient.dtype is not array.dtype and gradient.dtype != array.dtype:
        raise TypeError(f"{op.name if op else 'backward'}: the gradient of a {t.dtype} Tensor came as {gradient.dtype}")
    if state.special and state.anomaly and op is not None:
        look_for_anomaly(op, [], gradient.array if create_graph else gradient, backward=True)
    slot = _slot_of(t, inner, leaves)
    if slot.total is None:
        slot.total, slot.owned = gradient, fresh
    elif create_graph:
        slot.total = slot.total + gradient
    elif type(gradient) is not ndarray:  # on a card
        wrap = t._wrap
        slot.total = (wrap(slot.total, None, 0, False) + wrap(gradient, None, 0, False)).array
    else:
        if not (slot.owned and slot.total.flags.c_contiguous):
            slot.total, slot.owned = np.array(slot.total, order="C"), True
        _add_to(slot.total.ravel(), gradient.ravel())


@device.kernel
def _add_to(total, part):
    """total[i] += part[i]"""
    for i in range(len(total)):
        total[i] += part[i]


def _summed(t, gradient, create_graph, op):
    if len(gradient.shape) < len(t.shape) or op is None:
        raise ValueError(f"{op.name if op else 'backward'}: the gradient of a Tensor of shape {t.shape} came with "
                         f"shape {gradient.shape}")
    if create_graph:
        return gradient.sum_to(t.shape)
    return t._wrap(gradient, None, 0, False).sum_to(t.shape).array


def _add_into(op, g, inner, leaves):
    """Slices, indices and embeddings add their part into one buffer, so T slices of a sequence cost T parts, not T wholes."""
    t = op.inputs[0]
    slot = _slot_of(t, inner, leaves)
    if slot.total is None:
        slot.total, slot.owned = np.zeros(t.shape, t.dtype), True
    elif not slot.owned:
        slot.total, slot.owned = np.array(slot.total, order="C"), True
    op.accumulate(g, slot.total)


# ---------------------------------------------------------------------------------------------------------------------
# errors that find their cause
# ---------------------------------------------------------------------------------------------------------------------
_changes = {}  # id of a memory -> (time, name, shape) of its last change. An entry of a dead one is older than any new op


def changed(tensor):
    """Note that the memory of `tensor` was written in place, so that a backward pass that needs the old values raises."""
    clock[0] += 1
    _changes[_memory(tensor.array)] = clock[0], tensor.name, tensor.shape


def _memory(array):
    """The id of the array that owns the memory: views, detached ones too, share it with the Tensor that they show."""
    while type(array) is ndarray and array.base is not None:
        array = array.base
    return id(array)


def _check_not_freed(t):
    if t.op is not None and t.op.inputs is None:
        raise RuntimeError(f"backward: the graph below the Tensor {repr(t.name) + ' ' if t.name else ''}of shape {t.shape}, made by "
                           f"{t.op!r}, was freed by an earlier backward(free_graph=True){where_in(t.op)}")


def _check_unchanged(op):
    for t in op.inputs:
        time, name, shape = (0, "", ()) if t is None else _changes.get(_memory(t.array), (0, "", ()))
        if time > op.epoch:
            raise RuntimeError(
                f"backward: a Tensor {repr(name) + ' ' if name else ''}of shape {shape} was changed in place after {op!r} had "
                "used it, so its gradient would be that of another value. If a state is carried from one training step to the "
                f"next, the two graphs are joined by it: cut it with `state = state.detach()`{where_in(op)}")


# ---------------------------------------------------------------------------------------------------------------------
# the two ways in
# ---------------------------------------------------------------------------------------------------------------------
def _as_list(x):
    return list(x) if isinstance(x, (list, tuple)) else [x]


def _seeds(outputs, grad_outputs, keep_graph, who):
    seeds = []
    for out, g in zip(outputs, grad_outputs, strict=True):
        if not out.requires_grad:
            raise RuntimeError(f"{who}: the output of shape {out.shape} does not depend on any Tensor with requires_grad=True")
        if g is None:
            if out.size != 1:
                raise ValueError(f"{who}: the output has shape {out.shape}; give its gradient, or reduce it to one number "
                                 "(for example with .sum())")
            g = np.ones(out.shape, out.dtype)
        if not isinstance(g, Op.result):
            g = Op.result(np.asarray(g, out.dtype))
        if g.array.shape != out.array.shape or g.array.dtype != out.array.dtype:
            raise ValueError(f"{who}: expected a gradient of shape {out.shape} and {out.dtype}, got {g.shape} and {g.dtype}")
        if type(g.array) is not type(out.array):
            g = g.to(out.device)
        seeds.append(g if keep_graph else g.array)
    return seeds


def grad(outputs, inputs, grad_outputs=None, create_graph=False, allow_unused=False):
    """Gradients of `outputs` with respect to `inputs` (any Tensors of the graph), as a tuple; touches no `.grad`.

    outputs, inputs   a Tensor or a list of them
    grad_outputs      the gradient that comes in at each output; may be left out for outputs of one element
    create_graph      record the gradients too, so that they can be differentiated again, to any order
    allow_unused      give None for an input that no output depends on, in place of raising ValueError
    """
    outputs, inputs = _as_list(outputs), _as_list(inputs)
    grad_outputs = [None] * len(outputs) if grad_outputs is None else _as_list(grad_outputs)
    for t in inputs:
        if not t.requires_grad:
            raise ValueError(f"grad: an input of shape {t.shape} does not require a gradient")
    seeds = _seeds(outputs, grad_outputs, create_graph, "grad")
    reached = walk(outputs, seeds, create_graph, targets=inputs)
    result, given = [], set()
    for i, t in enumerate(inputs):
        slot = reached.get(id(t))
        if slot is None and t.op is not None:  # another handle of the same (op, output)
            slot = next((reached[id(u)] for u in inputs if (u.op, u.index) == (t.op, t.index) and id(u) in reached), None)
        if slot is None or slot.total is None:
            if not allow_unused:
                raise ValueError(f"grad: the outputs do not depend on input {i} ({t.name or 'unnamed'}, shape {t.shape}); "
                                 "allow_unused=True gives None for it")
            result.append(None)
        elif create_graph:
            result.append(slot.total)
        else:
            array = _own(slot, t)
            result.append(t._wrap(device.copy(array) if id(array) in given else array, None, 0, False))
            given.add(id(array))
    return tuple(result)


def _own(slot, t):
    """The array of a finished slot, copied unless this pass made it and nobody else can hold it."""
    return slot.total if slot.owned else device.copy(slot.total)


def backward(tensor, gradient=None, create_graph=False, free_graph=False):
    """Add the gradient of `tensor` to the `.grad` of every leaf below it. See `Tensor.backward`."""
    seeds = _seeds([tensor], [gradient], create_graph, "backward")
    given = {_memory(s.array) for s in seeds} if create_graph else ()
    for slot in walk([tensor], seeds, create_graph, free_graph=free_graph).values():
        leaf = slot.tensor
        if leaf is None or slot.total is None:
            continue
        if not create_graph:
            fresh = leaf._wrap(_own(slot, leaf), None, 0, False)
        else:  # a leaf keeps a gradient of its own
            fresh = slot.total.clone() if _memory(slot.total.array) in given else slot.total
            given.add(_memory(fresh.array))
        if leaf.grad is None:
            leaf.grad = fresh
        elif create_graph:
            leaf.grad = leaf.grad + fresh
        else:
            with no_grad():
                leaf.grad = leaf.grad + fresh
