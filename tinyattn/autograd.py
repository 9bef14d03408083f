"""Reverse-mode automatic differentiation: what an operation is, and the walk that differentiates a graph of them.

    forward    y = op(x1, x2)            every call of an op is a node; a Tensor remembers (op, number of the output)
    backward   g_x = op.grad_x(g_y, y, x1, x2)    one rule an input: the chain rule for that edge

A rule is written in Tensor algebra, so it is differentiable itself: gradients of gradients need no further code, and the
backward pass is a graph that can be drawn. Where algebra costs time an op adds `cpu_grad`, a loop on plain arrays with the
same meaning, which is used whenever nobody asks to differentiate the gradient.

A node keeps its inputs and outputs alive until the last Tensor above it is dropped. Nothing points back up (an op
does not hold its output Tensors), so a dropped loss frees its whole graph at once, without the garbage collector.
"""
import functools
import inspect
import re
import threading
from contextlib import contextmanager

import numpy as np

from . import device

ndarray = np.ndarray


class _State(threading.local):
    """What is switched on in this thread."""
    recording = True   # are ops added to the graph?
    scope = ""         # the path of `scope()` blocks that we are in: "encoder/gru"
    captures = ()      # the active `capture()` blocks
    fused = "auto"     # "never": fused ops run their readable twin; "force": never the twin
    anomaly = False    # look for the first nan or inf
    special = False    # is any of the two above not at its default? (one look-up on the fast path)


state = _State()
clock = [0]  # counts in-place changes of Tensors; a node notes the time at which it was recorded


# ---------------------------------------------------------------------------------------------------------------------
# an operation
# ---------------------------------------------------------------------------------------------------------------------
class Op:
    """One differentiable operation. A subclass gives the formula, an instance is one call of it: a node of the graph.

    cpu(self, *arrays)              the loop: arrays in, array (or tuple of arrays) out; `cuda` likewise for a card
    grad_<input>(self, g, y, *inputs)   the rule of one input: Tensors in, Tensor out. g is the gradient of the output,
                                    y the output (tuples where there are several outputs)
    composed(self, *inputs)         instead of rules: the same function in Tensor algebra, the op's readable twin
    cpu_grad(self, g, y, *arrays)   optional: gradients by a loop, one array per input, None where not `self.needs[i]`
    accumulate(self, g, buffer)     optional: add the gradient of the first input into `buffer`, in place of a fresh array
    samples(rng)                    static: yields (attributes, inputs) on which the op is checked

    The inputs are named by the signature of `cpu`. An input without a rule is data: it cannot require a gradient.
    """
    __slots__ = ("inputs", "outs", "needs", "recorded", "epoch", "scope", "saved")
    registry = {}
    result = None      # the Tensor class; `tensor.py` puts itself here
    tex = ""
    view = False       # does the output share memory with the first input?
    composed = None
    cpu = cuda = cpu_grad = cuda_grad = accumulate = None
    input_names, rules, variadic = (), (), False

    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)
        if cls.cpu is None:  # a family's common base
            return
        parameters = list(inspect.signature(cls.cpu).parameters.values())[1:]
        cls.input_names = tuple(p.name for p in parameters)
        cls.variadic = bool(parameters) and parameters[0].kind is inspect.Parameter.VAR_POSITIONAL
        cls.rules = tuple(getattr(cls, f"grad_{name}", None) for name in cls.input_names)
        cls.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()
        if cls.__module__.startswith("tinyattn."):
            if not hasattr(cls, "samples"):
                raise TypeError(f"{cls.__name__}: an op of the package needs `samples(rng)`, small inputs to check it on")
            Op.registry[cls.name] = cls

    def __call__(self, *inputs):
        now = state
        if now.special and now.fused == "never" and self.composed is not None:
            with scope(self.name):
                return self.composed(*inputs)
        arrays, recorded, on_cpu = [], False, True
        for t in inputs:
            if t is None:
                arrays.append(None)
                continue
            array = t.array
            arrays.append(array)
            if t.requires_grad:
                recorded = True
            if type(array) is not ndarray:
                on_cpu = False
        self.recorded = recorded = recorded and now.recording
        self.saved = None
        outs = self.cpu(*arrays) if on_cpu else self._dispatch(arrays)
        if recorded:
            self.inputs, self.epoch, self.scope = inputs, clock[0], now.scope
        if now.anomaly:
            _look_for_anomaly(self, arrays, outs)
        wrap = self.result._wrap
        if type(outs) is tuple:
            self.outs = outs
            return tuple([wrap(array, self, i, recorded) for i, array in enumerate(outs)])
        self.outs = (outs,)
        return wrap(outs, self, 0, recorded)

    def _dispatch(self, arrays):
        places = {device.device_of(a) for a in arrays if a is not None}
        if len(places) > 1:
            raise ValueError(f"{self.name}: the inputs live on different devices ({', '.join(sorted(places))}); "
                             "move them together with .to(device)")
        run = getattr(self, places.pop())
        if run is None:
            raise NotImplementedError(f"{self.name}: has no kernel for device 'cuda' yet; use .to('cpu')")
        return run(*arrays)

    def attributes(self):
        """The plain settings of this call, such as {'axis': -1}."""
        return {k: v for k, v in getattr(self, "__dict__", {}).items() if not k.startswith("_") and k != "view"}

    def __repr__(self):
        return f"{self.name}({', '.join(f'{k}={v!r}' for k, v in self.attributes().items())})"


class Alias(Op):
    """y = x. A second name for a Tensor, so that `attend(x, x, x)` can be differentiated slot by slot."""
    tex = "{x}"
    view = True

    def cpu(self, x):
        return x

    cuda = cpu

    def grad_x(self, g, y, x):
        return g

    def samples(rng):
        yield {}, (rng.normal(size=(2, 3)),)


# ---------------------------------------------------------------------------------------------------------------------
# switches: recording, scopes, taps, fused or composed, anomalies
# ---------------------------------------------------------------------------------------------------------------------
@contextmanager
def _set(**changes):
    before = {k: getattr(state, k) for k in changes}
    try:
        for k, v in changes.items():
            setattr(state, k, v)
        state.special = state.fused != "auto" or state.anomaly
        yield
    finally:
        for k, v in before.items():
            setattr(state, k, v)
        state.special = state.fused != "auto" or state.anomaly


class _Switch:
    """A state that holds inside a `with` block, or inside a decorated function or generator; only in this thread."""

    def __init__(self, **changes):
        self.changes, self.blocks = changes, []

    def __enter__(self):
        self.blocks.append(_set(**self.changes))
        self.blocks[-1].__enter__()
        return self

    def __exit__(self, *error):
        return self.blocks.pop().__exit__(*error)

    def __call__(self, function):
        if inspect.isgeneratorfunction(function):
            @functools.wraps(function)
            def steps(*args, **kwargs):
                generator, value = function(*args, **kwargs), None
                try:
                    while True:
                        with _set(**self.changes):  # on while the body runs, off while the caller holds a value
                            value = generator.send(value)
                        value = yield value
                except StopIteration as end:
                    return end.value
                finally:
                    generator.close()
            return steps

        @functools.wraps(function)
        def run(*args, **kwargs):
            with _set(**self.changes):
                return function(*args, **kwargs)
        return run


def no_grad():
    """Record nothing inside: `with no_grad(): ...` or `@no_grad()`."""
    return _Switch(recording=False)


def enable_grad():
    """Record again inside a `no_grad` block."""
    return _Switch(recording=True)


def fused(mode):
    """Choose how ops with a readable twin run: "auto", "never" (always the twin) or "force" (never the twin)."""
    if mode not in ("auto", "never", "force"):
        raise ValueError(f"fused: expected 'auto', 'never' or 'force', got {mode!r}")
    return _Switch(fused=mode)


def detect_anomaly():
    """Stop with FloatingPointError at the first op, forward or backward, that makes a nan or inf out of finite numbers."""
    return _Switch(anomaly=True)


def is_grad_enabled():
    return state.recording


@contextmanager
def scope(name):
    """Name a part of the computation. Pictures draw it as a box; scopes nest: `encoder/gru`."""
    before = state.scope
    state.scope = f"{before}/{name}" if before else name
    try:
        yield
    finally:
        state.scope = before


class capture:
    """Collect what the code inside taps: `with capture() as seen: model(x)`, then `seen["weights"]`, a list of Tensors
    in order of time. A name finds every tap whose path ends with it: "weights" finds "decoder/attention/weights"."""

    def __init__(self):
        self.taps = []

    def __enter__(self):
        state.captures = (*state.captures, self)
        return self

    def __exit__(self, *error):
        state.captures = tuple(c for c in state.captures if c is not self)

    def __getitem__(self, name):
        found = [t for path, t in self.taps if path == name or path.endswith("/" + name)]
        if not found:
            raise KeyError(f"capture: nothing was tapped as {name!r}; tapped: {sorted({p for p, _ in self.taps})}")
        return found

    def __contains__(self, name):
        return any(path == name or path.endswith("/" + name) for path, _ in self.taps)


def tap(name, value):
    """Show `value` (a Tensor, or a function that computes one) to the active `capture()` blocks. Changes nothing else."""
    if state.captures:
        if callable(value):
            with no_grad():
                value = value()
        path = f"{state.scope}/{name}" if state.scope else name
        for c in state.captures:
            c.taps.append((path, value.detach()))


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
    with _set(recording=create_graph):
        while ready:
            op = ready.pop()
            slots = inner.pop(op, None)
            for t in wanted.get(op, ()):
                if slots is not None and slots[t.index] is not None:
                    leaves[id(t)] = slots[t.index]
            if slots is not None:  # None: every rule above said that no gradient comes this way
                _visit(op, slots, needed, inner, leaves, create_graph)
            for t in op.inputs:
                if t is not None and t.requires_grad and t.op is not None and t.op in uses:
                    uses[t.op] -= 1
                    if uses[t.op] == 0:
                        ready.append(t.op)
            if free_graph:
                op.inputs = op.outs = op.saved = None
    return leaves


def _count_uses(roots, needed):
    uses = {r.op: 0 for r in roots if r.op is not None and (needed is None or r.op in needed)}
    stack = list(uses)
    while stack:
        op = stack.pop()
        if op.inputs is None:
            raise RuntimeError(f"backward: the graph below {op!r} was freed by an earlier backward(free_graph=True)")
        for t in op.inputs:
            if t is not None and t.requires_grad and t.op is not None and (needed is None or t.op in needed):
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
        if op.inputs is None:
            raise RuntimeError(f"grad: the graph below {op!r} was freed by an earlier backward(free_graph=True)")
        stack.append((op, True))
        stack.extend((t.op, False) for t in op.inputs if t is not None and t.requires_grad and t.op is not None)
    return useful


def _needed(t, useful):
    return (id(t) if t.op is None else t.op) in useful


def _visit(op, slots, needed, inner, leaves, create_graph):
    """Apply one node's rules to its complete gradient and send the results to its inputs."""
    if op.epoch != clock[0]:
        _check_unchanged(op)
    inputs = op.inputs
    needs = op.needs = tuple([t is not None and t.requires_grad and (needed is None or _needed(t, needed)) for t in inputs])
    g = _complete(op, slots, create_graph)
    if create_graph:
        _by_rules(op, g, needs, inner, leaves)
        return
    if op.accumulate is not None and type(g) is ndarray:
        _add_into(op, g, inner, leaves)
        return
    loop = op.cpu_grad if type(g if type(g) is ndarray else g[0]) is ndarray else op.cuda_grad
    if loop is None:
        _by_rules(op, g, needs, inner, leaves, wrap=True)
        return
    y = op.outs[0] if len(op.outs) == 1 else op.outs
    grads = loop(g, y, *[None if t is None else t.array for t in inputs])
    for t, need, gradient in zip(inputs, needs, grads, strict=True):
        if need and gradient is not None:
            _send(t, gradient, inner, leaves, False, op)


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
    inputs, make = op.inputs, op.result._wrap
    if wrap:  # arrays become Tensors for the rules, and their results arrays again
        g = tuple(make(a, None, 0, False) for a in g) if type(g) is tuple else make(g, None, 0, False)
    for t, need, gradient in zip(inputs, needs, _rule_results(op, g, needs, make), strict=True):
        if need and gradient is not None:
            _send(t, gradient.array if wrap else gradient, inner, leaves, not wrap, op)


def _rule_results(op, g, needs, make):
    """The gradients that an op's rules give for the inputs that need one. Tensors in, Tensors out."""
    with scope(f"backward/{op.name}") if state.recording else _nothing:
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


class _Nothing:
    def __enter__(self):
        return self

    def __exit__(self, *error):
        return False


_nothing = _Nothing()


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
    if t.op is None:
        slot = leaves.get(id(t))
        if slot is None:
            slot = leaves[id(t)] = _Slot(t)
        return slot
    slots = inner.get(t.op)
    if slots is None:
        slots = inner[t.op] = [None] * len(t.op.outs)
    if slots[t.index] is None:
        slots[t.index] = _Slot()
    return slots[t.index]


def _send(t, gradient, inner, leaves, create_graph, op=None):
    """Add `gradient` to what the Tensor `t` has received so far, summed over the axes along which `t` was broadcast."""
    if gradient.shape != t.shape:
        if len(gradient.shape) < len(t.shape) or op is None:
            raise ValueError(f"{op.name if op else 'backward'}: the gradient of a Tensor of shape {t.shape} came with "
                             f"shape {gradient.shape}")
        summed = (gradient if create_graph else t._wrap(gradient, None, 0, False)).sum_to(t.shape)
        gradient = summed if create_graph else summed.array
    if gradient.dtype != t.dtype:
        raise TypeError(f"{op.name if op else 'backward'}: the gradient of a {t.dtype} Tensor came as {gradient.dtype}")
    if state.anomaly and op is not None:
        _look_for_anomaly(op, [], gradient.array if create_graph else gradient, backward=True)
    slot = _slot_of(t, inner, leaves)
    if slot.total is None:
        slot.total = gradient
    elif create_graph or type(gradient) is not ndarray:
        wrap = t._wrap
        a, b = (slot.total, gradient) if create_graph else (wrap(slot.total, None, 0, False), wrap(gradient, None, 0, False))
        slot.total = a + b if create_graph else (a + b).array
    elif slot.owned:
        np.add(slot.total, gradient, out=slot.total)
    else:
        slot.total, slot.owned = slot.total + gradient, True
        if type(slot.total) is not ndarray:  # NumPy turns a sum of 0-d arrays into a scalar
            slot.total = np.asarray(slot.total)


def _add_into(op, g, inner, leaves):
    """Slices, indices and embeddings add their part into one buffer, so T slices of a sequence cost T parts, not T wholes."""
    t = op.inputs[0]
    slot = _slot_of(t, inner, leaves)
    if slot.total is None:
        slot.total, slot.owned = np.zeros(t.shape, t.dtype), True
    elif not slot.owned:
        slot.total, slot.owned = np.array(slot.total), True
    op.accumulate(g, slot.total)


# ---------------------------------------------------------------------------------------------------------------------
# errors that find their cause
# ---------------------------------------------------------------------------------------------------------------------
def changed(tensor):
    """Note that the memory of `tensor` was written in place, so that a backward pass that needs the old values raises."""
    clock[0] += 1
    tensor.version = clock[0]


def _owner(t):
    """The Tensor whose memory `t` shows."""
    while t.op is not None and t.op.view and t.op.inputs is not None:
        t = t.op.inputs[0]
    return t


def _check_unchanged(op):
    for t in op.inputs:
        owner = None if t is None else _owner(t)
        if owner is not None and owner.version > op.epoch:
            who = f"{owner.name!r} " if owner.name else ""
            raise RuntimeError(
                f"backward: a Tensor {who}of shape {owner.shape} was changed in place after {op!r} had used it, so its "
                "gradient would be that of another value. If a state is carried from one training step to the next, the "
                f"two graphs are joined by it: cut it with `state = state.detach()`{_where(op)}")


def _where(op):
    return f" (in {op.scope})" if op.scope else ""


def _look_for_anomaly(op, arrays, outs, backward=False):
    """Raise if `op` made a nan or inf out of finite numbers."""
    for a in arrays:
        if a is not None and a.dtype.kind == "f" and not np.isfinite(device.to_device(a, "cpu")).all():
            return
    for out in outs if type(outs) is tuple else (outs,):
        out = device.to_device(out, "cpu")
        if out.dtype.kind == "f" and not np.isfinite(out).all():
            bad = tuple(int(i) for i in np.argwhere(~np.isfinite(out))[0])
            what = "the gradient of " if backward else ""
            raise FloatingPointError(f"{what}{op!r} is the first to give {out[bad]} (at index {bad} of shape {out.shape})"
                                     f"{_where(op) if op.recorded else ''}; its inputs were finite")


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
            g = Op.result(np.asarray(g, out.dtype).reshape(np.shape(g)))
        if g.shape != out.shape or g.dtype != out.dtype:
            raise ValueError(f"{who}: expected a gradient of shape {out.shape} and {out.dtype}, got {g.shape} and {g.dtype}")
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
    result = []
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
            result.append(t._wrap(_own(slot, t), None, 0, False))
    return tuple(result)


def _own(slot, t):
    """The array of a finished slot, copied unless this pass made it and nobody else can hold it."""
    return slot.total if slot.owned else device.copy(slot.total)


def backward(tensor, gradient=None, create_graph=False, free_graph=False):
    """Add the gradient of `tensor` to the `.grad` of every leaf below it. See `Tensor.backward`."""
    seeds = _seeds([tensor], [gradient], create_graph, "backward")
    for slot in walk([tensor], seeds, create_graph, free_graph=free_graph).values():
        leaf = slot.tensor
        if leaf is None or slot.total is None:
            continue
        if create_graph:
            leaf.grad = slot.total if leaf.grad is None else leaf.grad + slot.total
        else:
            fresh = _own(slot, leaf)
            with no_grad():
                leaf.grad = leaf._wrap(fresh, None, 0, False) if leaf.grad is None else \
                    leaf.grad + leaf._wrap(fresh, None, 0, False)
