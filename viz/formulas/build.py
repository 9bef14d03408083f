"""From recorded Tensors to equations: fused ops opened, the gradients' graph added, every value an expression,
simplified, short ones put in where they are used, and every value a name. What `equations.py` shows.
"""
import inspect
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, replace

import numpy as np

from tinyattn.autograd import Op, grad, scope
from tinyattn.program import Program, _in_order
from tinyattn.tensor import Tensor

from .algebra import Call, Name, Number, key, names_in, replaced, simplify, size
from .axes import index_of, settled, write_letters
from .namer import NamesFromCode, canonical, names_from_code, place

INLINE = 5  # ops in one equation, at most: what is longer stays apart, under a name


@dataclass
class Value:
    """A name of the equations. `of`: the value whose gradient this is, or None; `array`: the numbers of a leaf."""
    shape: tuple
    dtype: str
    name: str = ""
    of: object = None
    array: object = None
    letters: tuple = ()
    nameless: bool = False     # is it a constant that the code has no name for?
    at: object = None          # of a gradient g that comes in at an output: this output, of whose gradient it is a part


@dataclass
class Equation:
    """The value number `id` is `expression`. `part` is "forward" or "backward"."""
    id: int
    expression: object
    part: str


def wanted_names(names):
    """{place of a Tensor: its name}."""
    wanted = {}
    for source in names if isinstance(names, (list, tuple)) else [names]:
        if isinstance(source, NamesFromCode):
            pairs = source.items()
        elif hasattr(source, "named_parameters"):
            pairs = source.named_parameters()
        else:
            pairs = (source or {}).items()
        for name, t in pairs:
            if isinstance(t, Tensor):
                wanted.setdefault(place(t), name)
    return wanted


# ---------------------------------------------------------------------------------------------------------------------
# fused ops opened
# ---------------------------------------------------------------------------------------------------------------------
def opened(outputs):
    """The same computation with every op that has no rule of its own computed by its readable twin.

    Returns the new outputs, {place of a Tensor: its place now} and {place: name}, the names in the twins' code. Ops
    with rules of their own, such as softmax, stay.
    """
    moved, names = {}, []
    while any(_opens(op) for op in _in_order(outputs)):
        made = {}
        for op in _in_order(outputs):
            inputs = [t if t is None else made.get((t.op, t.index), t) for t in op.inputs]
            if not _opens(op) and all(a is b for a, b in zip(inputs, op.inputs, strict=True)):
                continue
            with _scope_of(op):
                if _opens(op):
                    with _names_in(op) as found:
                        results = op.composed(*inputs)
                    names.append(found)
                else:
                    results = _again(op)(*inputs)
            results = results if isinstance(results, tuple) else (results,)
            made.update(((op, i), t) for i, t in enumerate(results))
        moved = {where: place(made[now]) if now in made else now for where, now in moved.items()}
        moved.update((where, place(t)) for where, t in made.items() if where not in moved)
        outputs = [made.get((t.op, t.index), t) for t in outputs]
    wanted = wanted_names(names)
    return outputs, moved, {moved.get(where, where): name for where, name in wanted.items()}


def _opens(op):
    return op.composed is not None and not any(op.rules)


def _names_in(op):
    """Watch the names in the file of a twin. An op from a notebook has none."""
    try:
        return names_from_code(inspect.getsourcefile(type(op)))
    except (TypeError, OSError):
        return names_from_code()


def _scope_of(op):
    return scope(op.scope) if op.scope else nullcontext()


def _again(op):
    """An op of the same settings that has not been called yet."""
    fresh = object.__new__(type(op))
    fresh.__dict__.update(op.__dict__)
    return fresh


# ---------------------------------------------------------------------------------------------------------------------
# from Tensors to equations
# ---------------------------------------------------------------------------------------------------------------------
class Builder:
    def __init__(self, outputs, wanted, letters):
        self.tensors, self.wanted, self.letters = outputs, wanted, letters
        self.values, self.meaning = {}, {}  # meaning: id -> expression
        self.shared = set()                 # ids that stand for several equal values: none of their gradients is all

    def run(self, backward):
        """The fields of an `Equations`."""
        forward = _in_order(self.tensors)
        gradients, seeds = self._gradients(forward) if backward else ({}, [])
        everything = self.tensors + [t for t in gradients.values() if t is not None]
        program, ops = Program.of(everything), _in_order(everything)
        self._read(program, ops, everything)
        single = len(self.tensors) == 1 and self.tensors[0].ndim == 0
        if single and seeds and place(seeds[0]) in self.ids:  # the gradient of L by L
            self.meaning[self.ids[place(seeds[0])]] = Number(1.0)
        self._expressions(program, ops, len(forward))
        self.outputs = [getattr(self.name(self.ids[place(t)]), "id", self.ids[place(t)]) for t in self.tensors]
        self.gradient_of, targets = self._gradient_names(gradients, seeds)
        return self._finish(targets, single, backward)

    def _gradients(self, forward):
        """{place of a value: its gradient}, for leaves and inner values alike, and the seeds."""
        leaves, inner = {}, {}
        for op in forward:
            leaves.update((place(t), t) for t in op.inputs if t is not None and t.op is None and t.requires_grad)
            inner.update(((op, i), Op.result._wrap(a, op, i, True)) for i, a in enumerate(op.outs)
                         if a.dtype.kind == "f")
        seeds = [Tensor(np.ones(t.shape, t.dtype), requires_grad=True) for t in self.tensors]
        places = [*leaves, *inner]
        found = grad(self.tensors, [*leaves.values(), *inner.values()], seeds, create_graph=True, allow_unused=True)
        self.leaves = list(leaves)
        return dict(zip(places, found, strict=True)), seeds

    def _read(self, program, ops, everything):
        """The table of values, and the ids of Tensors."""
        self.ids, arrays = {}, {}
        for step, op in zip(program.instructions, ops, strict=True):
            for value, t in zip(step.inputs, op.inputs, strict=True):
                if value is not None:
                    self.ids[place(t)] = value
                    if t.op is None:
                        arrays[value] = t.numpy()
            floats = [i for i, a in enumerate(op.outs) if a.dtype.kind == "f"]
            self.ids.update(((op, i), value) for i, value in zip(floats, step.outputs, strict=True))
        for t, value in zip(everything, program.outputs, strict=True):
            self.ids.setdefault(place(t), value)
            if t.op is None:
                arrays[value] = t.numpy()
        by_id, same = {value: where for where, value in self.ids.items()}, {}
        for v in program.values:
            name, a = self.wanted.get(by_id[v.id], v.name), arrays.get(v.id)
            self.values[v.id] = Value(v.shape, v.dtype, name, array=a)
            if v.kind == "constant" and not name:  # equal constants are one
                first = same.setdefault((v.shape, v.dtype, a.tobytes()), v.id)
                if first != v.id:
                    self.meaning[v.id] = Name(first, v.shape, v.dtype)
            if v.kind == "constant" and not name and v.shape == ():
                self.meaning[v.id] = Number(arrays[v.id][()].item(), dtype=v.dtype)

    def _apart(self, e, seen, forward):
        """An expression as a value of its own."""
        new = max(self.values) + 1
        same = seen.setdefault(key(e), new)
        if same == new:
            self.values[new] = Value(e.shape, e.dtype)
            self.made[new], self.meaning[new] = forward, e
        return self.name(same)

    def _expressions(self, program, ops, forward):
        """The meaning of every value: simplified, and equal ones one value. `made`: is it of the forward pass?"""
        seen, self.made = {}, {}
        for n, (step, op) in enumerate(zip(program.instructions, ops, strict=True)):
            floats = [i for i, a in enumerate(op.outs) if a.dtype.kind == "f"]
            for i, value in zip(floats, step.outputs, strict=True):
                e = simplify(self._call(op, step, value, i if len(op.outs) > 1 else None), self.look)
                if isinstance(e, Call) and e.op == "neg" and isinstance(e.args[0], Call):  # rules look for the sign
                    e = replace(e, args=(self._apart(e.args[0], seen, n < forward),))
                self.made[value] = n < forward
                same = seen.setdefault(key(e), value) if isinstance(e, Call) else value
                if same != value:
                    self.shared.add(same)
                self.meaning[value] = e if same == value else self.name(same)

    def name(self, i):
        """The value i as an expression: a Name, or what it is only a copy of."""
        meaning = self.meaning.get(i)
        v = self.values[i]
        return meaning if isinstance(meaning, (Name, Number)) else Name(i, v.shape, v.dtype)

    def look(self, e, named=False):
        if not isinstance(e, Name) or not named and self.values[e.id].name:
            return e
        return self.meaning.get(e.id, e)

    def _call(self, op, step, value, output):
        args = [self.name(i) for i in step.inputs if i is not None]
        slots = [name for name, i in zip(step.input_names, step.inputs, strict=False) if i is not None]
        settings = dict(op.attributes())
        shapes = [t.shape for t in op.inputs if t is not None]
        if op.name in ("getitem", "putitem"):
            whole = shapes[0] if op.name == "getitem" else settings["shape"]
            settings["index"], arrays = index_of(settings["index"], whole, len(args))
            args += [self._constant(a) for a in arrays]
        else:
            settings = settled(op.name, settings, shapes[0] if shapes else ())
        if op.name in ("reshape", "expand"):  # the Call's own shape says it
            settings = {}
        if output is not None:
            settings["output"] = output
        v = self.values[value]
        return Call(op.name, tuple(args), settings, v.shape, v.dtype, step.tex, tuple(slots))

    def _constant(self, array):
        new = max(self.values) + 1
        self.values[new] = Value(array.shape, str(array.dtype), "", array=array)
        return Name(new, array.shape, str(array.dtype))

    # -- names and the final list ------------------------------------------------------------------------------------
    def _gradient_names(self, gradients, seeds):
        """{id of a gradient: ids of what it may be the gradient of}, and [(id of a leaf, its gradient)]."""
        of, targets = {}, []
        self.seeds = {self.ids[place(seed)] for seed in seeds if place(seed) in self.ids}
        for output, seed in zip(self.outputs, seeds, strict=False):
            of.setdefault(self.ids.get(place(seed)), []).append(output)
        for where, d in reversed(gradients.items()):
            if d is None or where not in self.ids:
                continue
            e, value = self.name(self.ids[place(d)]), self.ids[where]
            if isinstance(e, Name) and where not in self.leaves:
                own = self.name(value)
                if isinstance(own, Name) and own.id == value and value not in self.shared:
                    of.setdefault(e.id, []).append(value)
        for where in self.leaves if gradients else ():
            d = gradients[where]
            if d is not None:
                targets.append((self.ids[where], self.name(self.ids[place(d)])))
        return of, targets

    def _finish(self, targets, single, backward):
        top = self._name_outputs(single)
        copies = self._name_leaf_gradients(targets)
        goals = self.outputs + [e.id for _, e in targets if isinstance(e, Name)]
        needed = self._needed(goals)
        uses = Counter(i for n in needed for i in names_in(self.meaning[n]))
        bodies = {}
        for part in ("forward", "backward"):
            order = [i for i in needed if self.made[i] == (part == "forward")]
            if part == "backward":
                self._name_gradients(bodies)
            for i in order:
                bodies[i] = _put_in(self.meaning[i], bodies, lambda j, view: (uses[j] == 1 or view) and j not in goals
                                    and not self.values[j].name and self.values[j].of is None)
        used = Counter(i for e in bodies.values() for i in names_in(e))
        chosen = [Equation(i, e, "forward" if self.made[i] else "backward") for i, e in bodies.items()
                  if used[i] or i in goals]
        chosen += [Equation(i, e, "backward") for i, e in copies]
        given = self._given(chosen)
        gradients = {leaf: next((c for c, _ in copies if self.values[c].of == leaf), getattr(e, "id", None))
                     for leaf, e in targets}
        self._name_the_rest(chosen, given)
        write_letters(self.values, chosen, self.letters)
        return {"values": self.values, "list": chosen, "given": given, "outputs": self.outputs, "gradients": gradients,
                "top": top, "backward": backward}

    def _needed(self, goals):
        """The ids of all values that the goals are made of, in the order of the Program."""
        needed, stack = set(), list(goals)
        while stack:
            i = stack.pop()
            if i not in needed and isinstance(self.meaning.get(i), Call):
                needed.add(i)
                stack.extend(names_in(self.meaning[i]))
        return [i for i in self.made if i in needed]

    def _name_outputs(self, single):
        for i in self.outputs:
            self.values[i].name = self.values[i].name or ("L" if single else "y")
        return self.values[self.outputs[0]].name if single else "L"

    def _name_leaf_gradients(self, targets):
        """Say whose gradient is what. A value that is the gradient of several leaves, or of a leaf and an output, gets
        copies: [(id, expression)]."""
        copies = []
        for i, sources in self.gradient_of.items():
            if i in self.seeds:
                self.values[i].of = sources[0]
        for output in self.outputs:
            if output not in self.made:  # it is a leaf, and other outputs may be made of it
                self._call_part(output)
        for leaf, e in targets:
            if isinstance(e, Name) and self.values[e.id].of is None and self.made.get(e.id) is False:
                self.values[e.id].of = leaf
            else:
                new, v = max(self.values) + 1, self.values[leaf]
                self.values[new] = Value(v.shape, v.dtype, of=leaf)
                copies.append((new, e))
        return copies

    def _name_gradients(self, bodies):
        """The gradients of the values that have an equation of their own are called after these, named ones first."""
        forward = Counter(i for e in bodies.values() for i in names_in(e))
        stays = {i for i in bodies if forward[i] or self.values[i].name}
        inner = {i for i in stays if not self.values[i].name}
        for i, sources in self.gradient_of.items():
            found = [s for s in sources if s in stays and s not in inner] or [s for s in sources if s in inner]
            if found and self.made.get(i) is False and self.values[i].of is None:
                self._call_part(found[0])
                self.values[i].of = found[0]

    def _call_part(self, output):
        """What comes in at an output that other outputs are made of is only a part of its gradient: it is called g."""
        for i in self.gradient_of:
            if i in self.seeds and self.values[i].of == output:
                self.values[i].of, self.values[i].at, self.values[i].name = None, output, "g"

    def _given(self, chosen):
        made = {e.id for e in chosen}
        used = {i for e in chosen for i in names_in(e.expression)} | set(self.outputs)
        return [i for i in self.values if i in used and i not in made]

    def _name_the_rest(self, chosen, given):
        """Give every value a name of its own: leaves keep theirs, several inner values of one name are numbered."""
        taken = set()
        for i in given:
            v = self.values[i]
            if v.of is None:
                v.nameless = not v.name
                v.name = _free(v.name or "c", taken, bool(v.name))
        inner = [e.id for e in chosen if self.values[e.id].of is None]
        letters = {canonical(v.name).rstrip("0123456789") for v in self.values.values()}
        letter = next((x for x in "zuyas" if x not in letters), "z")
        times = Counter(canonical(self.values[i].name) for i in inner if self.values[i].name)
        for e in chosen:
            v = self.values[e.id]
            if v.of is None:
                name = v.name or (letter if e.part == "forward" else "δ")
                v.name = _free(name, taken, bool(v.name) and times[canonical(name)] == 1)


def _free(name, taken, bare):
    """The name itself if `bare` and it is free, else with the first number that is."""
    n, tried = 0, name if bare else f"{name}_1"
    while canonical(tried) in taken:
        n += 1
        tried = f"{name}_{n}"
    taken.add(canonical(tried))
    return tried


def _put_in(e, bodies, may):
    """Put expressions in the place of names that are used just once, as long as the equation stays short. Another view
    of a name, a transpose or an index, is always put in."""
    table, total = {}, size(e)
    for i in dict.fromkeys(names_in(e)):
        body = bodies.get(i)
        if body is None or not may(i, _is_view(body)):
            continue
        if _is_view(body) or total + size(body) <= INLINE:
            total += size(body)
            table[i] = body
    return replaced(e, table)


def _is_view(e):
    """Is it a transpose or a plain index of a name?"""
    return isinstance(e, Call) and e.op in ("permute", "getitem") and len(e.args) == 1 and isinstance(e.args[0], Name)
