"""The tape: writes a step down while it runs, array by array, as a Program whose instructions can be run again.

The engine tells the active tape (`state.tape` in `op.py`) of everything that makes an array: an op's loop, a rule of the
backward walk, the sum of two gradients, a zero-filled buffer. An array is known by its identity, so no Tensor, no node and
no order of the walk is needed afterwards: what is left is a list of calls on numbered values, each value made once.
"""
import dis
import functools
import inspect
import re
from functools import partial

import numpy as np

from .. import device, random
from ..autograd import Op, _set, clock, state
from ..cuda import reshaped
from ..ops.binary import Add
from ..program import Program, Value, plain_attributes
from . import card
from .calls import Call, Captured, memory_of
from .trace import Hole, Traced, Uncapturable, filled, holes, plain, where_in_the_step

ndarray = np.ndarray
ADD = "x + y"


def told(method):
    """A method by which the tape is told of something. What it cannot follow ends the writing, never the step itself."""
    @functools.wraps(method)
    def run(self, *args):
        if not self.reason:
            try:
                method(self, *args)
            except Uncapturable as reason:
                self.fail(str(reason))
            self.waits = device.waits["reads"]
    return run


class Tape:
    """Give it the arrays of the arguments, run the step with `state.tape` set to it, and ask for `captured(result)`.

    `reason` says in a line why the step cannot be captured, or is "". From then on the step runs as without a tape.
    """

    def __init__(self, inputs):
        self.reason = ""
        self.values, self.calls, self.arrays, self.aliases = [], [], {}, {}
        self.made_by_number = []        # the array of each value: kept, so that no other array can have its identity
        self.known, self.roots = {}, {}  # {id(array): (value, array)}, {`memory_of` an array: value}
        self.numbers, self.nodes = {}, []
        self.gradients, self.effects, self.seeds, self.part = {}, [], 0, "forward"
        self.tensors, self.ended, self.changes = {}, False, clock[0]
        self.followed = {}               # {`memory_of` the host's copy of whole numbers of a card: their value}
        self.waits = device.waits["reads"]  # how often a card had been asked for numbers when the tape was last told of something
        self.inputs = [self._leaf(array, "input") for array in inputs]

    def fail(self, reason):
        """Stop writing. The step goes on."""
        self.reason = self.reason or reason
        if state.tape is self:
            state.tape = None
            state.special = state.fused != "auto" or state.anomaly

    @property
    def live(self):
        """Is the step still being written down?"""
        return not self.reason and not self.ended

    # -- values ------------------------------------------------------------------------------------------------------
    def _new(self, array, kind="value"):
        number = len(self.values)
        self.values.append(Value(number, array.shape, str(array.dtype), "", kind))
        self.made_by_number.append(array)
        self.known[id(array)] = number, array
        self.roots.setdefault(memory_of(array), number)
        return number

    def _leaf(self, array, kind):
        number = self._new(array, kind)
        self.arrays[number] = array
        return number

    def read(self, array):
        """The value of an array: one that was made in the step, or a view of such a one, or else a leaf from outside."""
        if array is None:
            return None
        if type(array) is Traced and array.tape is not self:
            raise Uncapturable(f"an array of an earlier call is used, {where_in_the_step()}: a step cannot keep its arguments")
        found = self.known.get(id(array))
        if found is not None:
            return found[0]
        traced, array = type(array) is Traced, plain(array)
        self._bring(array)
        found = self.roots.get(memory_of(array))
        if found is not None:
            return self._view(found, array)
        if traced:  # a method of arrays that `Traced` does not know
            raise Uncapturable(f"an array was made by a NumPy function that cannot be followed, {where_in_the_step()}")
        return self._leaf(array, "constant")

    def _bring(self, array):
        """Is this array the host's copy of what is on a card, and which the host knows without asking? Then it is a value too."""
        number, host = self.followed.pop(memory_of(array), (None, None))
        if number is not None:
            self._write("known", [number], ["x"], [host], lambda x: (device.to_device(x, "cpu"),), settings="known")

    def _view(self, number, array):
        """A view that was made out of sight, by `ravel` or `asarray`: an instruction that makes it again."""
        whole = self.made_by_number[number]
        if card.holds(array):
            return self._view_on_card(number, whole, array.shape)
        shape, strides, offset = array.shape, array.strides, _address(array) - _address(whole)
        if (shape, strides, offset, array.dtype) == (whole.shape, whole.strides, 0, whole.dtype):
            return number
        if offset < 0 or not whole.flags.c_contiguous or array.dtype != whole.dtype:
            raise Uncapturable(f"a view was made that cannot be followed, {where_in_the_step()}")

        def run(x):
            return (np.ndarray(shape, x.dtype, x, offset, strides),)
        return self._write("view", [number], ["x"], [array], run, settings=f"{shape} {strides} {offset}")[0]

    def _view_on_card(self, number, array, shape):
        """There a view is all of an array, maybe in another shape."""
        if shape == array.shape:
            return number
        return self._write("view", [number], ["x"], [reshaped(array, shape)], lambda x: (reshaped(x, shape),), settings=f"{shape}")[0]

    def _write(self, op, inputs, names, outs, run, scope="", **more):
        """Write down a call, unless all that it gives are known arrays; the values of its outputs."""
        if outs and all(id(a) in self.known for a in outs):
            return [self.known[id(a)][0] for a in outs]
        if self.effects:
            raise Uncapturable(f"{op} is computed after {self.effects[0][0]}, {where_in_the_step()}: updates come last")
        outputs = []
        for array in outs:
            before = self.roots.get(memory_of(array))
            outputs.append(self._new(array))
            if before is not None:
                self.aliases[outputs[-1]] = before
            host = card.known(array)
            if host is not None and memory_of(host) not in self.roots:
                self.followed[memory_of(host)] = outputs[-1], host
        part = more.pop("part", self.part)
        scope = scope.rstrip("/") or state.scope
        if part == "backward" and not scope.startswith("backward"):
            scope = f"backward/{scope}".rstrip("/")
        there = any(map(card.holds, outs))
        self.calls.append(Call(op, inputs, outputs, scope, input_names=names, run=run, part=part, card=there, **more))
        return outputs

    # -- what the engine says ----------------------------------------------------------------------------------------
    @told
    def called(self, op, arrays, outs, inputs=()):
        """An op's loop ran, on the arrays of the Tensors `inputs`."""
        if any(_holds_traced(v) for v in vars(op).values()):
            raise Uncapturable(f"{op.name}: its setting was computed from an argument, {where_in_the_step()}: give it as an "
                               "input (gather in place of x[ids])")
        if op.recorded:
            self.part = "forward"
            self.nodes.append(op)
        self._note(op.inputs if op.recorded else inputs)

        loop = op.cpu if all(a is None or type(a) is ndarray for a in arrays) else op.cuda
        if card.holds(outs[0]) and outs[0].dtype.kind != "f":
            def loop(*arrays):  # after it the host knows what it can know
                return op._dispatch(arrays)

        def run(*arrays):
            out = loop(*arrays)
            return out if type(out) is tuple else (np.asarray(out) if isinstance(out, np.generic) else out,)
        names = [f"x{i}" for i in range(len(arrays))] if op.variadic else list(op.input_names)
        attributes = op.attributes()
        same = len(outs) == 1 and op.each and all(a.dtype in (outs[0].dtype, bool) for a in arrays)
        self._write(op.name, [self.read(a) for a in arrays], names, outs, run, op.scope if op.recorded else "",
                    attributes=plain_attributes(attributes), tex=op.tex, fused=op.composed is not None,
                    node=op if op.saved is not None else None, each=op.each if same else "",
                    settings=None if _holds_array(vars(op)) else repr(attributes), bare=partial(partial, loop))

    def _note(self, inputs):
        """Keep in mind the Tensors from outside: if one of them gets other memory, or needs a gradient from now on, the program
        is no longer that of the step."""
        for t in inputs:
            if t is not None and t.op is None and id(t) not in self.tensors and id(t.array) not in self.known:
                self.tensors[id(t)] = t, t.array, t.requires_grad

    @told
    def ruled(self, op, g, y, arrays, grads):
        """A loop gave the gradients of an op's inputs, None for those that need none."""
        self.part = "backward"
        gs, ys = _listed(g), _listed(y)
        here = type(ys[0]) is ndarray
        loop = op.cpu_grad if here else op.cuda_grad
        wanted = [i for i, a in enumerate(grads) if a is not None]

        def rule(*given):
            g, y, x = given[:len(gs)], given[len(gs):len(gs) + len(ys)], given[len(gs) + len(ys):]
            return partial(loop, g[0] if len(gs) == 1 else g, y[0] if len(ys) == 1 else y, *x)

        def run(*given, rule=rule):
            found = rule(*given)()
            return tuple([found[i] for i in wanted])
        given = [*gs, *ys, *arrays]
        names = (["g"] if len(gs) == 1 else [f"g{i}" for i in range(len(gs))])
        names += ["y"] if len(ys) == 1 else [f"y{i}" for i in range(len(ys))]
        names += [f"x{i}" for i in range(len(arrays))] if op.variadic else list(op.input_names)
        if op.saved is None:  # what a rule does not look at need not be kept for it; what was saved may be a view of it
            looks = reads(getattr(loop, "__func__", loop))
            looks = [looks[0]] * len(gs) + [looks[1]] * len(ys) + looks[2:] + [True] * len(arrays)
            given = [a if look else None for a, look in zip(given, looks, strict=False)]
        inputs = [self.read(a) for a in given]
        formula = op.each_grad.get(op.input_names[wanted[0]], "") if len(wanted) == 1 and not op.variadic else ""
        if formula:  # only what the formula reads: the rest need not live so long
            used = [i for i, name in enumerate(names) if _mentions(formula, name)]
            if all(given[i] is not None and given[i].dtype == g.dtype for i in used) and (
                    not here or rounds_alike(formula, g.dtype)):
                names, inputs = [names[i] for i in used], [inputs[i] for i in used]
                run, rule = (_given_some(f, used, len(given)) for f in (run, rule))
            else:
                formula = ""
        self._write(f"{op.name}.grad", inputs, names, [grads[i] for i in wanted], run, f"backward/{op.scope}",
                    node=op if op.saved is not None else None, each=formula, bare=rule,
                    settings=None if _holds_array(vars(op)) else f"{op.attributes()!r} {wanted}")

    @told
    def accumulated(self, op, g, before, total):
        """An op added the gradient of its first input into `total`: into zeros, or into what was there `before`."""
        start = [] if before is None else [self.read(before)]
        given = [g, *[None if t is None else t.array for t in op.inputs[1:]]]
        shape, dtype, first, here = total.shape, total.dtype, len(start), type(total) is ndarray
        add = op.accumulate if here else op.accumulate_cuda

        def run(*arrays, out=None):
            out = (np.empty(shape, dtype) if here else card.fresh(shape, dtype)) if out is None else out
            if not first:
                out.fill(0) if here else card.clear(out)
            elif out is not arrays[0]:
                card.copy_into(out, arrays[0])
            op.inputs = (None, *[_Holder(a) for a in arrays[first + 1:]])
            add(arrays[first], out)
            return (out,)
        names = [*["total"] * first, "g", *op.input_names[1:]]
        self._renew(f"{op.name}.accumulate", [*start, *[self.read(a) for a in given]], names, total, run, op.scope, first > 0,
                    told=first > 0 or not here)

    @told
    def added(self, before, part, total):
        """A second gradient was added to a first."""
        def run(x, y):
            return (Add().cuda(x, y) if card.holds(x) else x + y,)
        self._renew("add", [self.read(before), self.read(part)], ["x", "y"], total, run, "", False, each=ADD)

    def _renew(self, op, inputs, names, array, run, scope, takes, told=False, each=""):
        """A call that wrote into an array that may be known: from now on that array is another value."""
        self.known.pop(id(array), None)
        self.roots.pop(memory_of(array), None)
        self._write(op, inputs, names, [array], run, f"backward/{scope}", part="backward", each=each,
                    takes=0 if takes else None, told=told)

    @told
    def made(self, array):
        """The engine made a constant: the 1 that the walk starts from, zeros for an output without a gradient."""
        self.part = "backward"
        self.read(array)

    @told
    def copied(self, source, copy):
        self._write("copy", [self.read(source)], ["x"], [copy],
                    lambda x: (device.copy(x) if card.holds(x) else x.copy(),))

    @told
    def graded(self, leaf, array, before):
        """`leaf.grad` is now this array; before, it was the Tensor `before`, or None."""
        number = self.read(array)
        if before is not None and id(leaf) not in self.gradients:
            raise Uncapturable("gradients of before the step would be added to: call zero_grad() in it, before backward()")
        self.gradients[id(leaf)] = leaf, number, self.gradients[id(leaf)][2] if id(leaf) in self.gradients else before

    # -- what the tensor module says ---------------------------------------------------------------------------------
    @told
    def number(self, array):
        """`array` was made for a number of the code, such as the 2 in 2 * x; equal ones are one constant."""
        if card.holds(array):  # it has one array for equal ones
            self.read(array)
            return
        key = array.dtype.char, array.shape, array.tobytes()
        if key not in self.numbers:
            self.numbers[key] = self._leaf(array, "constant"), array
        self.known[id(array)] = self.numbers[key][0], array

    def shown(self, array):
        """The values of a Tensor are asked for as a NumPy array: give one that leaves a trace."""
        if self.live and device.waits["reads"] != self.waits and memory_of(array) not in self.roots:
            self.fail(f"numbers are read from the card, {where_in_the_step()}")
        try:
            return self._traced(self.read(array), array) if self.live else array
        except Uncapturable as reason:
            self.fail(str(reason))
            return array

    @told
    def wrapped(self, data, array):
        """`array` was made for a new Tensor from `data`."""
        if card.holds(array):
            self._sent(data, array)
        else:
            self._made_of(data, array)

    def _made_of(self, data, array):
        if type(data) is random.Seed:
            self.seeds += 1
            self._write("seed", [], [], [array], lambda: (np.array(random.next_seed()),), draws=True)
        elif isinstance(data, ndarray) and (type(data) is Traced or id(data) in self.known or memory_of(data) in self.roots):
            dtype = array.dtype
            self._write("tensor", [self.read(data)], ["x"], [array], lambda x: (np.array(x, dtype, order="C"),),
                        settings=str(dtype))
        elif _holds_traced(data):
            raise Uncapturable(f"a Tensor is made of a list of arrays, {where_in_the_step()}: use numpy.stack")
        else:
            self.read(array)

    def _sent(self, data, array):
        """`array` was made on a card for a new Tensor from `data`: on the host first, and then it was sent."""
        host = card.known(array)
        host = np.array(plain(data), array.dtype, order="C") if host is None else host
        self._made_of(data, host)
        number = self.read(host)
        if number in self.arrays:  # a constant: it is on the card already
            self.read(array)
        else:
            self._write("send", [number], ["x"], [array], lambda x: (card.send(x, array.dtype),), settings="send")

    @told
    def computed(self, function, args, out):
        """A function of `logic.py` made data of these arguments."""
        places = [i for i, a in enumerate(args) if _is_array(a)]
        tree = [Hole(places.index(i)) if i in places else a for i, a in enumerate(args)]

        def run(*arrays):
            return (function(*filled(tree, arrays)),)
        name = next((a.__name__ for a in args if callable(a)), function.__name__)
        self._write(name, [self.read(args[i]) for i in places], [f"x{i}" for i in range(len(places))], [out], run,
                    settings=f"{tree}")

    def numpy(self, name, function, args, kwargs):
        """A NumPy function was called on Traced arrays: call it on plain ones, and write it down."""
        found = []
        tree = holes((args, kwargs), found)

        def call(arrays):
            args, kwargs = filled(tree, arrays)
            return function(*args, **kwargs)

        def run(*arrays):
            result = call(arrays)
            return tuple([np.asarray(a) for a in (result if isinstance(result, (tuple, list)) else (result,))])
        result = call([plain(a) for a in found])
        if not _all_arrays(result):
            self.fail(f"{name} gives what is no array, {where_in_the_step()}")
        if not self.live:
            return result
        many = isinstance(result, (tuple, list))
        outs = [np.asarray(a) for a in (result if many else (result,))]
        outs = [a[...] if id(a) in self.known else a for a in outs]  # not the argument itself, which must stay Traced
        try:
            inputs = [self.read(a) for a in found]
            numbers = self._write(name, inputs, [f"x{i}" for i in range(len(inputs))], outs, run, part="numpy",
                                  attributes=_settings(args, kwargs), settings=f"{id(function)} {tree!r}")
        except Uncapturable as reason:
            self.fail(str(reason))
            return result
        traced = [self._traced(n, a) for n, a in zip(numbers, outs, strict=True)]
        if not many:
            return traced[0]
        return type(result)(*traced) if hasattr(result, "_fields") else type(result)(traced)

    def _traced(self, number, array):
        view = Traced.of(array, self)
        self.known[id(view)] = number, view
        return view

    # -- what optimisers say -----------------------------------------------------------------------------------------
    def effect(self, name, function):
        """Clipping or an update: done now, and again at the end of each replay."""
        self.effects.append((name, function))
        before = clock[0]
        try:
            with _set(tape=None):
                return function()
        finally:
            self.waits = device.waits["reads"]
            self.changes += clock[0] - before

    def told_all(self, result):
        """`captured(result)`, or None with `reason` set where that cannot be."""
        try:
            return None if self.reason else self.captured(result)
        except Uncapturable as reason:
            self.fail(str(reason))
            return None
        finally:
            self.ended = True

    # -- the end -----------------------------------------------------------------------------------------------------
    def captured(self, result):
        """All that was written down. `result` is what the step returned: Tensors, in tuples, lists and dictionaries."""
        if clock[0] != self.changes:
            raise Uncapturable("it changes a Tensor in place (or another thread does, meanwhile)")
        if device.waits["reads"] != self.waits:
            raise Uncapturable("it reads numbers from the card (or another thread does, meanwhile)")
        outputs = []
        tree = _tensors_out(result, outputs)
        numbers = [self._given_out(t.array) for t in outputs]
        leaves = [leaf for leaf, *_ in self.gradients.values()]
        for leaf in leaves:
            found = self.known.get(id(leaf.array))
            if found is not None:
                self.values[found[0]].kind, self.values[found[0]].name = "parameter", leaf.name
        program = Program(self.values, self.calls, numbers + [n for _, n, _ in self.gradients.values()])
        strided = {n for n, a in enumerate(self.made_by_number) if not card.holds(a) and not a.flags.c_contiguous}
        return Captured(program, self.arrays, self.inputs, len(numbers), leaves, tree, self.effects, self.aliases, strided,
                        self.nodes, list(self.tensors.values()))

    def _given_out(self, array):
        """The value of an array that the step returns."""
        seen = id(array) in self.known or memory_of(array) in self.roots
        number = self.read(array)
        whole = number
        while whole in self.aliases:
            whole = self.aliases[whole]
        if self.effects and (not seen or whole in self.arrays and whole not in self.inputs):
            raise Uncapturable(f"it returns what {self.effects[-1][0]} makes or changes; return a .clone() made before")
        return number


class _Holder:
    """What `accumulate` reads an op's other inputs from."""
    __slots__ = ("array",)

    def __init__(self, array):
        self.array = array


def _address(array):
    return array.__array_interface__["data"][0]


def _listed(x):
    return list(x) if type(x) is tuple else [x]


@functools.cache
def reads(function):
    """[is it looked at?] of each parameter of a method but `self`; [True, True] where nobody can tell."""
    code = getattr(function, "__code__", None)
    if code is None or code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS):
        return [True, True]
    names = code.co_varnames[1:code.co_argcount]
    loads = [i.argval for i in dis.get_instructions(code) if "LOAD" in i.opname]  # since Python 3.13 some load two at once
    seen = {name for argument in loads for name in (argument if isinstance(argument, tuple) else (argument,))}
    return [name in seen for name in names]


def _mentions(formula, name):
    return re.search(rf"\b{name}\b", formula) is not None


def _is_array(x):
    """Of the host or of a card?"""
    return isinstance(x, ndarray) or card.holds(x)


def _holds_array(x):
    return _is_array(x) or (isinstance(x, dict) and any(map(_holds_array, x.values()))) or (
        isinstance(x, (tuple, list)) and any(map(_holds_array, x)))


def _given_some(run, used, many):
    """`run` as a function of some of its arguments, those at the places `used`; it does not look at the others."""
    def some(*given):
        every = [None] * many
        for i, array in zip(used, given, strict=True):
            every[i] = array
        return run(*every)
    return some


def _holds_traced(x):
    if type(x) is Traced:
        return True
    if isinstance(x, dict):
        x = list(x.values())
    return isinstance(x, (tuple, list)) and any(map(_holds_traced, x))


def _all_arrays(result):
    """Is this what NumPy's functions of arrays give: arrays and numbers, maybe in a tuple or list?"""
    if isinstance(result, (tuple, list)):
        return all(isinstance(a, (ndarray, np.generic)) for a in result)
    return isinstance(result, (ndarray, np.generic, bool, int, float, complex))


def rounds_alike(formula, dtype):
    """Does the formula of a rule give the bits of the op's own loop? That may join a product and a sum into one instruction,
    which rounds once; in float32 it does not, since the whole numbers in a formula bring the sum to float64."""
    return dtype == np.float32 or not re.search(r"[+-] *\w+ *\*|\* *\w+ *[+-]", formula)


def _settings(args, kwargs):
    """What a NumPy call was given beside arrays, for the listing."""
    plain = {f"arg{i}": str(a) for i, a in enumerate(args) if not isinstance(a, ndarray)}
    return {**plain, **{k: str(v) for k, v in kwargs.items() if not isinstance(v, ndarray)}}


def _tensors_out(tree, found):
    """`tree` with the number of each Tensor in its place; the Tensors are appended to `found`."""
    if isinstance(tree, Op.result):
        found.append(tree)
        return Hole(len(found) - 1)
    if isinstance(tree, ndarray):
        raise Uncapturable("the step returns a NumPy array; return a Tensor, and call .numpy() on what the compiled step gives")
    if type(tree) in (tuple, list):
        return type(tree)([_tensors_out(x, found) for x in tree])
    if type(tree) is dict:
        return {k: _tensors_out(v, found) for k, v in tree.items()}
    if not isinstance(tree, (type(None), bool, int, float, complex, str, np.generic)):
        raise Uncapturable(f"the step returns a {type(tree).__name__}; return Tensors, numbers and texts, in tuples, lists or "
                           "dictionaries")
    return tree
