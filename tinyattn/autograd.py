"""Reverse-mode automatic differentiation: the walk that differentiates a graph of operations.

    forward    y = op(x1, x2)                      recorded by `op.py`: each op keeps its inputs and outputs
    backward   g_x = op.grad_x(g_y, y, x1, x2)     one rule an input: the chain rule for that edge

A node keeps its inputs and outputs alive until the last Tensor above it is dropped. Nothing points back up (an op does
not hold its output Tensors), so a dropped loss frees its whole graph at once, without the garbage collector.
"""
import numpy as np

from . import cuda, device
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
# What has come so far for one output of a node, or for a leaf, is a pair (total, owned): owned if this pass made the array
# and nobody else holds it, so that more may be added in place.
class _Pass:
    """What one walk knows. sums: {node: the pair of its output, or a list of them if it has several; leaf: its pair}"""
    __slots__ = ("sums", "needed", "create_graph", "anomaly", "tape")

    def __init__(self, needed, create_graph, sums):
        self.sums, self.needed, self.create_graph = sums, needed, create_graph
        self.anomaly, self.tape = (state.anomaly, state.tape) if state.special else (False, None)


def walk(roots, seeds, create_graph=False, targets=None, free_graph=False):
    """Send the gradients `seeds` of the Tensors `roots` down the graph; return {leaf: (total, owned)} of what they reach.

    1. Count for every node how many edges will send it a gradient: its uses.
    2. Visit a node once its count is down to 0, that is when its own gradient is complete. A node used twice is thus
       visited once, after both uses: the topological order, found without recursion.

    Without `create_graph` gradients are plain arrays and loops (`cpu_grad`) are used where an op has them; with it they are
    Tensors, made by rules alone, and recorded. `targets` restricts the work to the paths that lead to those Tensors, and
    adds theirs to what is returned.
    """
    if create_graph and not state.recording:
        with _set(recording=True):
            return walk(roots, seeds, create_graph, targets, free_graph)
    needed, wanted, found = None, {}, {}
    if targets is not None:
        needed = _leads_to(roots, targets)
        for t in targets:
            wanted.setdefault(t.op, []).append(t)
    sums, uses, ready = {}, _count_uses(roots, needed), []
    now = _Pass(needed, create_graph, sums)
    for root, seed in zip(roots, seeds):
        _send(now, root, seed)
        if uses.get(root.op) == 0 and root.op not in ready:
            ready.append(root.op)
    while ready:
        op = ready.pop()
        inputs, pair = op.inputs, sums.pop(op, None)
        if pair is None:  # every rule above said that no gradient comes this way
            grads, fresh = [None] * len(inputs), False
        else:
            for t in wanted.get(op, ()) if wanted else ():
                found[t] = pair[t.index] if type(pair) is list else pair
            grads, fresh = _visit(op, pair, now)
        for t, gradient in zip(inputs, grads):
            if t is None:
                continue
            below = t.op
            if gradient is not None:
                _send(now, t, gradient, op, fresh)
            left = uses.get(below)
            if left == 1:
                ready.append(below)
            elif left is not None:
                uses[below] = left - 1
        if free_graph:
            op.inputs = op.outs = op.saved = None
    if found:
        sums.update({t: pair for t, pair in found.items() if pair is not None})
    return sums


def _of_one_node(op, g, free_graph):
    """What `walk` gives where the graph is one node over leaves, so that nothing is to be counted or put in order. None where
    the graph is larger, or the node not of the plain kind: one output, a loop for the gradients of its inputs."""
    if op is None or type(g) is not ndarray:
        return None
    inputs, loop, needs, arrays = op.inputs, op.cpu_grad, [], []
    if loop is None or inputs is None or op.accumulate is not None or len(op.outs) > 1:
        return None
    for t in inputs:
        if t is None or t.op is not None:
            return None
        needs.append(t.requires_grad)
        arrays.append(t.array)
    if op.epoch != clock[0]:
        _check_unchanged(op)
    op.needs, sums, fresh = needs, {}, op.fresh
    grads = loop(g, op.outs[0], *arrays)
    if len(grads) != len(inputs):
        _refuse(op, grads)
    for t, need, array, gradient in zip(inputs, needs, arrays, grads):
        if need and gradient is not None:
            if gradient.shape == array.shape and gradient.dtype is array.dtype and t not in sums:
                sums[t] = gradient, fresh
            else:  # to be summed where t was stretched, or to be added to what the same leaf got in another place
                _send(_Pass(None, False, sums), t, gradient, op, fresh)
    if free_graph:
        op.inputs = op.outs = op.saved = None
    return sums


def _refuse(op, grads):
    raise ValueError(f"{op.name}: its loop gave {len(grads)} gradients for {len(op.inputs)} inputs")


def _count_uses(roots, needed):
    """{node: how many inputs of the nodes above it are outputs of it}, for the nodes below `roots`."""
    uses, stack = {}, []
    for r in roots:
        op = r.op
        if op is not None and op not in uses and (needed is None or op in needed):
            if op.inputs is None:
                _check_not_freed(r)
            uses[op] = 0
            stack.append(op)
    while stack:
        for t in stack.pop().inputs:
            if t is None:
                continue
            op = t.op
            if op is None or needed is not None and op not in needed:
                continue
            count = uses.get(op)
            if count is None:
                if op.inputs is None:
                    _check_not_freed(t)
                uses[op] = 1
                stack.append(op)
            else:
                uses[op] = count + 1
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


def _visit(op, pair, now):
    """Apply one node's rules to its complete gradient: (what they give for each input, or None; is that fresh memory?)."""
    if op.epoch != clock[0]:
        _check_unchanged(op)
    inputs, y = op.inputs, op.outs
    needs, arrays = [], []
    for t in inputs:
        if t is None:
            needs.append(False)
            arrays.append(None)
        else:
            needs.append(t.requires_grad)
            arrays.append(t.array)
    if now.needed is not None:
        needs = [need and _needed(t, now.needed) for t, need in zip(inputs, needs)]
    op.needs, here = needs, type(y[0]) is ndarray
    if type(pair) is tuple:
        g, y = pair[0], y[0]
    else:
        g = _complete(op, [p and p[0] for p in pair], now.create_graph, now.tape)
    if now.create_graph:
        return _by_rules(op, g, needs), False
    if (op.accumulate if here else op.accumulate_cuda) is not None:
        _add_into(now, op, g, here)
        return [None] * len(inputs), False
    loop = op.cpu_grad if here else op.cuda_grad
    if loop is None or (now.tape is not None and op.each and not op.each_grad):  # a tape can fuse rules, but not a loop
        return _by_unrecorded_rules(op, g, needs), False
    grads = loop(g, y, *arrays)
    if len(grads) != len(inputs):
        _refuse(op, grads)
    if now.tape is not None:
        now.tape.ruled(op, g, y, arrays, grads)
    if False in needs:
        grads = [gradient if need else None for gradient, need in zip(grads, needs)]
    return grads, op.fresh


def _complete(op, totals, create_graph, tape=None):
    """The gradients of all outputs, a tuple of arrays or Tensors; zero where an output was not used."""
    g = []
    for total, out in zip(totals, op.outs, strict=True):
        if total is None:
            total = np.zeros(out.shape, out.dtype) if type(out) is ndarray else cuda.zeros(out.shape, out.dtype)
            if tape is not None:
                tape.made(total)
            if create_graph:
                total = op.result._wrap(total, None, 0, False)
        g.append(total)
    return tuple(g)


def _by_rules(op, g, needs):
    """Gradients by the rules, recorded. They stand in a scope of their own: backward/<the op's scope>/<its name>."""
    with scope(f"backward/{op.scope}/{op.name}" if op.scope else f"backward/{op.name}"):
        return _rule_results(op, g, needs, op.result._wrap)


def _by_unrecorded_rules(op, g, needs):
    """Gradients by the rules, not recorded: arrays become Tensors for the rules, and their results arrays again."""
    make, before = op.result._wrap, state.recording
    g = tuple([make(a, None, 0, False) for a in g]) if type(g) is tuple else make(g, None, 0, False)
    state.recording = False
    try:
        return [None if t is None else t.array for t in _rule_results(op, g, needs, make)]
    finally:
        state.recording = before


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


def _send(now, t, gradient, op=None, fresh=False):
    """Add `gradient` to what the Tensor `t` has received so far, summed over the axes along which `t` was broadcast."""
    array, below, sums = t.array, t.op, now.sums
    if gradient.shape != array.shape:
        gradient, fresh = _summed(t, gradient, now.create_graph, op), True
    if gradient.dtype is not array.dtype and gradient.dtype != array.dtype:
        raise TypeError(f"{op.name if op else 'backward'}: the gradient of a {t.dtype} Tensor came as {gradient.dtype}")
    if now.anomaly and op is not None:
        look_for_anomaly(op, [], gradient.array if now.create_graph else gradient, backward=True)
    if below is None:
        key, pair = t, sums.get(t)
    elif len(below.outs) == 1:
        key, pair = below, sums.get(below)
    else:
        sums, key, pair = _among_several(sums, t)
    sums[key] = (gradient, fresh) if pair is None else _add(now, pair, gradient)


def _among_several(sums, t):
    """Where the pair of an output of a node with several is kept: a list, the place in it, and what stands there."""
    pairs = sums.get(t.op)
    if pairs is None:
        pairs = sums[t.op] = [None] * len(t.op.outs)
    return pairs, t.index, pairs[t.index]


def _add(now, pair, gradient):
    """The pair of the Tensor `t` after one more gradient: added in place, if nobody else holds what is there."""
    total, owned = pair
    if now.create_graph:
        return total + gradient, True
    if type(gradient) is not ndarray:
        total = total if owned else _copy(total, now.tape)
        cuda.add_to(total, gradient)
        if now.tape is not None:
            now.tape.added(total, gradient, total)
        return total, True
    if not (owned and total.flags.c_contiguous):
        total, pair = _copy(total, now.tape), None
    _ADD_TO[gradient.dtype](total.ravel(), gradient.ravel())
    if now.tape is not None:
        now.tape.added(total, gradient, total)
    return pair or (total, True)


def _copy(array, tape):
    copy = array.copy() if type(array) is ndarray else device.copy(array)
    if tape is not None:
        tape.copied(array, copy)
    return copy


@device.kernel(plain=True)
def _add_to(total, part):
    """total[i] += part[i]"""
    for i in range(len(total)):
        total[i] += part[i]


_ADD_TO = device.Entries(_add_to, "T[::1], T[::1]")


def _summed(t, gradient, create_graph, op):
    if len(gradient.shape) < len(t.shape) or op is None:
        raise ValueError(f"{op.name if op else 'backward'}: the gradient of a Tensor of shape {t.shape} came with "
                         f"shape {gradient.shape}")
    if create_graph:
        return gradient.sum_to(t.shape)
    return t._wrap(gradient, None, 0, False).sum_to(t.shape).array


def _add_into(now, op, g, here):
    """Slices, indices and embeddings add their part into one buffer, so T slices of a sequence cost T parts, not T wholes."""
    t, sums = op.inputs[0], now.sums
    below, array = t.op, t.array
    if below is not None and len(below.outs) > 1:
        sums, key, pair = _among_several(sums, t)
    else:
        key = t if below is None else below
        pair = sums.get(key)
    if pair is None:
        before, total = None, (np if here else cuda).zeros(array.shape, array.dtype)
    else:
        before = total = pair[0] if pair[1] else _copy(pair[0], now.tape)
    sums[key] = total, True
    (op.accumulate if here else op.accumulate_cuda)(g, total)
    if now.tape is not None:
        now.tape.accumulated(op, g, before, total)


# ---------------------------------------------------------------------------------------------------------------------
# errors that find their cause
# ---------------------------------------------------------------------------------------------------------------------
_changes = {}  # id of a memory -> (time, name, shape) of its last change. An entry of a dead one is older than any new op


def changed(tensor, anew=False):
    """Note that the memory of `tensor` was written in place, so that a backward pass that needs the old values raises.
    anew: it was not, but replaced by other memory."""
    clock[0] += 1
    if tensor.device == "cuda" and tensor.dtype.kind != "f" and not anew:
        cuda.forget(tensor.array)
    _changes[_memory(tensor.array)] = clock[0], tensor.name, tensor.shape


def _memory(array):
    """The id of the array that owns the memory: views, detached ones too, share it with the Tensor that they show. On a card
    the address: there the shapes of one memory know no owner."""
    if type(array) is not ndarray:
        return cuda.address(array) if array.size else id(array)
    while type(array) is ndarray and array.base is not None:
        array = array.base
    return id(array)


def _check_not_freed(t):
    if t.op is not None and t.op.inputs is None:
        raise RuntimeError(f"backward: the graph below the Tensor {repr(t.name) + ' ' if t.name else ''}of shape {t.shape}, "
                           f"made by {t.op!r}, was freed by an earlier backward(free_graph=True){where_in(t.op)}")


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


def _seed(out, g, keep_graph, who):
    """The gradient that comes in at one output, checked: an array, or a Tensor to keep its graph."""
    if not out.requires_grad:
        raise RuntimeError(f"{who}: the output of shape {out.shape} does not depend on any Tensor with requires_grad=True")
    array = out.array
    if g is None:
        if array.size != 1:
            raise ValueError(f"{who}: the output has shape {out.shape}; give its gradient, or reduce it to one number "
                             "(for example with .sum())")
        one = np.ones(array.shape, array.dtype) if type(array) is ndarray else cuda.full(array.shape, 1, array.dtype)
        if state.tape is not None:
            state.tape.made(one)
        g = out._wrap(one, None, 0, False)
    elif type(g) is not Op.result:
        g = Op.result(np.asarray(g, array.dtype))
    given = g.array
    if given.shape != array.shape or given.dtype is not array.dtype and given.dtype != array.dtype:
        raise ValueError(f"{who}: expected a gradient of shape {out.shape} and {out.dtype}, got {g.shape} and {g.dtype}")
    if type(given) is not type(array):
        g = g.to(out.device)
    return g if keep_graph else g.array


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
    seeds = [_seed(out, g, create_graph, "grad") for out, g in zip(outputs, grad_outputs, strict=True)]
    reached = walk(outputs, seeds, create_graph, targets=inputs)
    result, given = [], set()
    tape = state.tape
    for i, t in enumerate(inputs):
        pair = reached.get(t)
        if pair is None and t.op is not None:  # another handle of the same (op, output)
            pair = next((reached[u] for u in inputs if (u.op, u.index) == (t.op, t.index) and u in reached), None)
        if pair is None:
            if not allow_unused:
                raise ValueError(f"grad: the outputs do not depend on input {i} ({t.name or 'unnamed'}, shape {t.shape}); "
                                 "allow_unused=True gives None for it")
            result.append(None)
            continue
        total, owned = pair
        if not create_graph:
            array = total if owned and id(total) not in given else _copy(total, tape)
            given.add(id(array))
            total = t._wrap(array, None, 0, False)
        result.append(total)
    return tuple(result)


def backward(tensor, gradient=None, create_graph=False, free_graph=False):
    """Add the gradient of `tensor` to the `.grad` of every leaf below it. See `Tensor.backward`."""
    seed = _seed(tensor, gradient, create_graph, "backward")
    tape, reached = None, None
    if state.special:
        tape = state.tape
    elif not create_graph:
        reached = _of_one_node(tensor.op, seed, free_graph)
    if reached is None:
        reached = walk((tensor,), (seed,), create_graph, None, free_graph)
    if create_graph:
        _keep_recorded(reached, seed, tape)
        return
    wrap = tensor._wrap
    for leaf, (total, owned) in reached.items():
        before = leaf.grad
        fresh = wrap(total if owned else _copy(total, tape), None, 0, False)
        if before is None:
            leaf.grad = fresh
        else:
            with no_grad():
                leaf.grad = before + fresh
        if tape is not None:
            tape.graded(leaf, leaf.grad.array, before)


def _keep_recorded(reached, seed, tape):
    """Gradients that are part of a graph become `.grad`, each in memory of its own."""
    given = {_memory(seed.array)}
    for leaf, (total, _) in reached.items():
        fresh = total.clone() if _memory(total.array) in given else total
        given.add(_memory(fresh.array))
        before = leaf.grad
        leaf.grad = fresh if before is None else before + fresh
        if tape is not None:
            tape.graded(leaf, leaf.grad.array, before)
