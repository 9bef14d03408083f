"""What an operation is: the node of a graph. And the switches that hold while operations run: recording, scopes, taps.

    y = op(x1, x2)      every call of an op is a node; a Tensor remembers (op, number of the output)

How gradients travel through the nodes is in `autograd.py`.

A rule is written in Tensor algebra, so it is differentiable itself: gradients of gradients need no further code, and the
backward pass is a graph that can be drawn. Where algebra costs time an op adds `cpu_grad`, a loop on plain arrays with the
same meaning, which is used whenever nobody asks to differentiate the gradient.
"""
import functools
import inspect
import re
import threading
from contextlib import contextmanager

import numpy as np

from . import cuda, device

ndarray = np.ndarray


class _State(threading.local):
    """What is switched on in this thread."""
    recording = True   # are ops added to the graph?
    scope = ""         # the path of `scope()` blocks that we are in: "encoder/gru"
    captures = ()      # the active `capture()` blocks
    fused = "auto"     # "never": fused ops run their readable twin; "force": never the twin
    anomaly = False    # look for the first nan or inf
    tape = None        # where a captured step is being written down, see `compiler/`
    special = False    # is any of the three above not at its default? (one look-up on the fast path)


state = _State()
_new = object.__new__
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
    cuda_grad, accumulate_cuda      the same on a card
    each, each_grad                 optional, of an elementwise op: element i of the output as a Python expression in the
                                    names of the inputs, and {input: that of its gradient}: what `compiler/` fuses
    samples(rng)                    static: yields (attributes, inputs) on which the op is checked

    The inputs are named by the signature of `cpu`. An input without a rule is data: it cannot require a gradient.
    """
    # recorded: is this call a node of a graph, so that a backward pass may come? saved: what the loop keeps for it
    __slots__ = ("inputs", "outs", "needs", "epoch", "scope", "recorded", "saved", "__dict__")
    fresh = True       # does `cpu_grad` give arrays of its own? (False: it may give g itself, or views)
    registry = {}
    result = None      # the Tensor class; `tensor.py` puts itself here
    tex = ""
    each, each_grad = "", {}
    composed = None
    cpu = cuda = cpu_grad = cuda_grad = accumulate = accumulate_cuda = None
    input_names, rules, variadic = (), (), False

    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)
        if cls.cpu is None:  # a family's common base
            return
        parameters = list(inspect.signature(cls.cpu).parameters.values())[1:]
        cls.input_names = tuple(p.name for p in parameters)
        cls.variadic = bool(parameters) and parameters[0].kind is inspect.Parameter.VAR_POSITIONAL
        cls.rules = tuple(getattr(cls, f"grad_{name}", None) for name in cls.input_names)
        cls.name = cls.__dict__.get("name") or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()
        if cls.__module__.startswith("tinyattn."):
            if not hasattr(cls, "samples"):
                raise TypeError(f"{cls.__name__}: an op of the package needs `samples(rng)`, small inputs to check it on")
            Op.registry[cls.name] = cls
        elif "fresh" not in cls.__dict__:  # a user's op need not know of this, and wrong it would spoil gradients
            cls.fresh = False

    def __call__(self, *inputs):
        now = state
        if now.special:
            return self._watched(inputs)
        arrays, recorded, here = [], False, True
        try:
            for t in inputs:
                if t is None:
                    arrays.append(None)
                    continue
                array = t.array
                arrays.append(array)
                if type(array) is not ndarray:
                    here = False
                if t.requires_grad:
                    recorded = True
        except AttributeError:
            raise TypeError(f"{self.name}: expected Tensors, got {type(t).__name__}") from None
        return self._run(inputs, arrays, recorded and now.recording, here)

    def _run(self, inputs, arrays, recorded, here):
        """Call the loop and make the output Tensors; if recorded, this op becomes a node that remembers its inputs.
        here: do all arrays live on the CPU?"""
        self.recorded, self.saved = recorded, None
        if recorded:
            if hasattr(self, "inputs"):
                raise RuntimeError(f"{self.name}: this object has been called before, and one call is one node of the graph; "
                                   "make a new one for every call")
            self.inputs, self.epoch, self.scope = inputs, clock[0], state.scope
        outs = self.cpu(*arrays) if here else self._dispatch(arrays)
        if type(outs) is tuple:
            self.outs = outs
            return tuple([self.result._wrap(array, self, i, recorded) for i, array in enumerate(outs)])
        if type(outs) is not ndarray and isinstance(outs, np.generic):  # NumPy's x + y of two 0-d arrays
            outs = np.asarray(outs)
        self.outs = (outs,)
        return self.result._wrap(outs, self, 0, recorded)

    def of_two(self, x, y):
        """`self(x, y)`, in half the time, for two Tensors of one float type, and an op that was made just now and gives
        one output of that type: what is known need not be asked."""
        now = state
        if now.special:
            return self._watched((x, y))
        a, b = x.array, y.array
        recorded = (x.requires_grad or y.requires_grad) and now.recording
        out = _new(type(x))
        self.recorded = out.requires_grad = recorded
        out.array = array = self.cpu(a, b) if type(a) is ndarray and type(b) is ndarray else self._dispatch((a, b))
        out.index, out.grad, out.name = 0, None, ""
        if recorded:
            self.inputs, self.outs, self.epoch, self.scope = (x, y), (array,), clock[0], now.scope
            out.op = self
        else:
            self.outs = (array,)
            out.op = None
        return out

    def _watched(self, inputs):
        """The call under `fused(...)`, `detect_anomaly()` or a tape."""
        if self.composed is not None and state.fused == "never":
            with scope(self.name):
                return self.composed(*inputs)
        arrays = [None if t is None else t.array for t in inputs]
        needs = any(t is not None and t.requires_grad for t in inputs)
        here = all(a is None or type(a) is ndarray for a in arrays)
        result = self._run(inputs, arrays, needs and state.recording, here)
        if state.anomaly:
            look_for_anomaly(self, arrays, self.outs)
        if state.tape is not None:
            state.tape.called(self, arrays, self.outs, inputs)
        return result

    def _dispatch(self, arrays):
        places = {device.device_of(a) for a in arrays if a is not None}
        if len(places) > 1:
            raise ValueError(f"{self.name}: the inputs live on different devices ({', '.join(sorted(places))}); "
                             "move them together with .to(device)")
        run = getattr(self, places.pop())
        if run is None:
            raise NotImplementedError(f"{self.name}: has no kernel for device 'cuda'; use .to('cpu'), or give the op a `cuda`")
        outs = run(*arrays)
        if type(outs) is not tuple and type(outs) is not ndarray and outs.dtype.kind != "f":
            cuda.follow(outs, self.cpu, *arrays)
        return outs

    def attributes(self):
        """The plain settings of this call, such as {'axis': -1}."""
        return {k: v for k, v in self.__dict__.items() if not k.startswith("_")}

    def __repr__(self):
        return f"{self.name}({', '.join(f'{k}={v!r}' for k, v in self.attributes().items())})"


class Alias(Op):
    """y = x. A second name for a Tensor, so that `attend(x, x, x)` can be differentiated slot by slot."""
    tex = "{x}"

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
        state.special = state.fused != "auto" or state.anomaly or state.tape is not None
        yield
    finally:
        for k, v in before.items():
            setattr(state, k, v)
        state.special = state.fused != "auto" or state.anomaly or state.tape is not None


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
                generator = function(*args, **kwargs)
                step, value = generator.send, None
                try:
                    while True:
                        with _set(**self.changes):  # on while the body runs, off while the caller holds a value
                            value = step(value)
                        try:
                            step, value = generator.send, (yield value)
                        except Exception as error:  # what the caller throws in belongs to the body
                            step, value = generator.throw, error
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


def where_in(op):
    """" (in encoder/gru)", for messages."""
    return f" (in {op.scope})" if op.scope else ""


def look_for_anomaly(op, arrays, outs, backward=False):
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
                                     f"{where_in(op) if op.recorded else ''}; its inputs were finite")
