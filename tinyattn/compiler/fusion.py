"""Fusion: chains of elementwise operations become one loop, written as Python, compiled by Numba.

    a = x + b                    for r in range(rows):
    y = tanh(a)         ->           for j in range(n):
    z = y * g                            a = x[r, j] + b[j]
                                         y = tanh(a)
                                         z[r, j] = y * g[r, j]

Each value is read once and written once, and what only the chain itself needs (`a`) never leaves the processor. The kernel is
a file in the cache folder, as Numba keeps only what stands in a file; equal chains, of whatever sizes, share one. What is
said here is that of the CPU; on a card the same chains become the kernels of `fusion_cuda.py`.
"""
import hashlib
import importlib.util
import math
import re
import sys
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from .. import device
from ..cuda import CudaKernel, flat
from . import fusion_cuda
from .calls import Call
from .passes import consumers, with_calls
from .trace import Uncapturable

MOST_OPERATIONS, MOST_ARRAYS = 24, 14
CHUNK = 16_384  # elements; the unit of parallel work
ALONE = 16_384  # elements from which a single operation is made a chain too, so that it writes into planned memory


@dataclass
class Fused(Call):
    """A chain as one call. steps: [(name of a result, expression in other names)], in order; `stored` are the names that are
    outputs. kinds: how each input stretches, a word each (see `kind_of`); bools: is it bool? replaces: {output: input whose
    memory it takes}, by position."""
    steps: list = field(default_factory=list)
    stored: list = field(default_factory=list)
    kinds: str = ""
    bools: list = field(default_factory=list)
    n: int = 0
    replaces: dict = field(default_factory=dict)


def kind_of(shape, whole):
    """How an operand of `shape` stretches over a result of shape `whole`: ("same", None), ("one", None) for a single number,
    ("row", n) for one that is repeated down n columns, ("column", n) for one that is repeated along rows of n; else None."""
    if shape == whole:
        return "same", None
    if math.prod(shape) == 1:
        return "one", None
    padded = (1,) * (len(whole) - len(shape)) + tuple(shape)
    for k in range(1, len(whole)):
        head, tail = math.prod(padded[:k]), math.prod(padded[k:])
        if head == 1 and padded[k:] == tuple(whole[k:]):
            return "row", tail
        if tail == 1 and padded[:k] == tuple(whole[:k]):
            return "column", math.prod(whole[k:])
    return None


class _Chain:
    """A chain while it grows: numbers of its calls, its shape and the common n of its rows and columns."""

    def __init__(self, shape):
        self.shape, self.n, self.calls, self.inputs = shape, None, [], set()


def fuse(captured):
    """Join each elementwise call to the chain that makes one of its inputs, where the chain can wait for it: nothing else
    between the two may read what the chain makes."""
    alone, values = captured.program.instructions, captured.program.values
    makers = {call.outputs[0]: call for call in alone if call.op == "expand"}
    calls = [_unstretched(call, makers) for call in alone]
    captured = with_calls(captured, calls)
    users, chain_of, chains = consumers(captured), {}, []
    for number, call in enumerate(calls):
        if not _elementwise(call, captured):
            continue
        for value in call.inputs:
            chain = chain_of.get(value)
            if chain is not None and _joins(chain, number, call, captured, users):
                break
        else:
            chain = _Chain(values[call.outputs[0]].shape)
            if not _joins(chain, number, call, captured, users):
                continue
            chains.append(chain)
        chain.calls.append(number)
        chain.inputs.update(call.inputs)
        chain_of[call.outputs[0]] = chain
    last = {c.calls[-1]: c for c in chains if len(c.calls) > 1 or math.prod(c.shape) >= ALONE}
    inside = {number for c in last.values() for number in c.calls}
    kept = []
    for number, call in enumerate(alone):
        if number in last:
            kept.append(_fused(last[number], captured, users))
        elif number not in inside:
            kept.append(call)
    return with_calls(captured, kept)


def _unstretched(call, makers):
    """An elementwise call that reads what was stretched, in place of what `expand` made of it: the loop stretches it itself."""
    if not call.each:
        return call
    return replace(call, inputs=[makers[v].inputs[0] if v in makers else v for v in call.inputs])


def _elementwise(call, captured):
    values = captured.program.values
    if not call.each or len(call.outputs) != 1 or call.node is not None:
        return False
    whole = values[call.outputs[0]]
    if whole.dtype not in ("float32", "float64") or not math.prod(whole.shape):
        return False
    return all(v is not None and values[v].dtype in (whole.dtype, "bool") and v not in captured.strided for v in call.inputs)


def _joins(chain, number, call, captured, users):
    values = captured.program.values
    if values[call.outputs[0]].shape != chain.shape or len(chain.calls) >= MOST_OPERATIONS:
        return False
    n = chain.n
    for value in call.inputs:
        kind = kind_of(values[value].shape, chain.shape)
        if kind is None or (kind[1] is not None and n is not None and kind[1] != n):
            return False
        n = kind[1] if kind[1] is not None else n
    made = {captured.program.instructions[c].outputs[0] for c in chain.calls}
    if len((chain.inputs | set(call.inputs)) - made) + len(made) > MOST_ARRAYS:
        return False
    for value in made:
        if any(c < number and c not in chain.calls for c in users.get(value, ())):
            return False
        if values[value].dtype != values[call.outputs[0]].dtype:
            return False
    chain.n = n
    return True


def _fused(chain, captured, users):
    """The call that stands for a chain. Its inputs are called a0, a1, ..., its results t0, t1, ..."""
    calls = [captured.program.instructions[c] for c in chain.calls]
    values, outputs = captured.program.values, set(captured.program.outputs)
    made = {call.outputs[0]: f"t{i}" for i, call in enumerate(calls)}
    inputs = list(dict.fromkeys(v for call in calls for v in call.inputs if v not in made))
    names = {**{v: f"a{i}" for i, v in enumerate(inputs)}, **made}
    steps = [(made[call.outputs[0]], renamed(call.each, dict(zip(call.input_names, [names[v] for v in call.inputs]))))
             for call in calls]
    stored = [v for v in made if v in outputs or any(c not in chain.calls for c in users.get(v, ()))]
    kinds = [kind_of(values[v].shape, chain.shape)[0] for v in inputs]
    scopes = {call.scope for call in calls}
    label = " ".join(dict.fromkeys(call.op for call in calls))
    part = "backward" if any(call.part == "backward" for call in calls) else "forward"
    return Fused("fused", inputs, stored, scopes.pop() if len(scopes) == 1 else calls[-1].scope, {"of": label},
                 input_names=[names[v] for v in inputs], part=part, steps=steps, stored=[made[v] for v in stored],
                 kinds=" ".join(kinds), bools=[values[v].dtype == "bool" for v in inputs], n=chain.n or 0, card=calls[0].card)


def renamed(expression, names):
    """The expression with other names, whole words at a time."""
    return re.sub(r"\b[A-Za-z_]\w*\b", lambda m: names.get(m.group(0), m.group(0)), expression)


# ---------------------------------------------------------------------------------------------------------------------
# the kernel
# ---------------------------------------------------------------------------------------------------------------------
def source_of(call):
    """The kernel of a Fused call, as text. Arguments: the first row and the end, n, the inputs, the outputs that have
    memory of their own; all flat."""
    kinds, names = call.kinds.split(), call.input_names
    own = [name for i, name in enumerate(call.stored) if i not in call.replaces]
    arguments = ", ".join([*names, *(f"out_{name}" for name in own)])
    flat = not {"row", "column"} & set(kinds)
    body, deep = [], "    " if flat else "        "
    like = f"out_{own[0]}" if own else names[call.replaces[0]]
    head = [f"    as_stored = {like}.dtype.type"]
    head += [f"    {name}_ = {name}[0]" for name, kind in zip(names, kinds) if kind == "one"]
    whole = [name for name, kind in zip(names, kinds) if kind == "same"] + [f"out_{name}" for name in own]
    cut = "first:end" if flat else "r * n:r * n + n"
    body += [f"{'' if flat else '    '}    {name}_row = {name}[{cut}]" for name in whole]
    body += [f"        {name}_ = {name}[r]" for name, kind in zip(names, kinds) if kind == "column"]
    body += [f"{deep}for j in range({'end - first' if flat else 'n'}):"]
    inner = deep + "    "
    body += [f"{inner}{name}_ = {name}_row[j]" for name, kind in zip(names, kinds) if kind == "same"]
    body += [f"{inner}{name}_ = {name}[j]" for name, kind in zip(names, kinds) if kind == "row"]
    known = {name: f"{name}_" for name in names}
    body += [f"{inner}{name} = as_stored({renamed(expression, known)})" for name, expression in call.steps]
    body += [f"{inner}{names[call.replaces[i]] if i in call.replaces else f'out_{name}'}_row[j] = {name}"
             for i, name in enumerate(call.stored)]
    loop = [] if flat else ["    for r in range(first, end):"]
    return "\n".join([
        f'"""{len(call.steps)} elementwise operations in one loop: {call.attributes["of"]}. Written by tinyattn.compile."""',
        "import math", "", "import numpy as np", "from numba import prange", "",
        "from tinyattn.compiler.fusion import CHUNK, exact", "from tinyattn.ops.shared import exp, sigmoid, tanh  # noqa: F401",
        "", "", "@exact()", f"def fused(first, end, n, {arguments}):", *head, *loop, *body, "", "",
        "@exact(parallel=True)", f"def fused_parallel(end, n, {arguments}):",
        "    per = max(1, CHUNK // max(n, 1)) if n else CHUNK", "    for c in prange(-(-end // per)):",
        f"        fused(c * per, min(end, (c + 1) * per), n, {arguments})", ""])


def exact(parallel=False):
    """Compile a generated kernel so that each operation rounds as it does on its own: no multiply-add across two of them."""
    return lambda function: device.kernel(function, parallel=parallel, exact=True)


_loaded = {}


def kernel_of(call):
    """(serial, parallel): the compiled kernel of a Fused call."""
    names = _loaded_once(source_of(call))
    return names["fused"], names["fused_parallel"]


def card_kernel_of(call, dtype):
    """The same on a card, for arrays of this dtype."""
    kernel = _loaded_once(fusion_cuda.source_of(call, dtype.name, renamed))["fused"]
    CudaKernel.registry.pop(kernel.name, None)  # which lists the kernels of the package
    return kernel


def _loaded_once(text):
    key = hashlib.sha256(text.encode()).hexdigest()[:16]
    if key not in _loaded:
        _loaded[key] = _load(f"fused_{key}", text)
    return _loaded[key]


def _load(name, text):
    """The names of the text, imported as a module; from the cache folder if there is one, so that it is compiled once for all."""
    folder, space = device.CACHE, {"__name__": name}
    if folder is not None:
        try:
            path = folder / "steps" / f"{name}.py"
            path.parent.mkdir(exist_ok=True)
            if not path.is_file() or path.read_text(encoding="utf-8") != text:
                part = path.with_suffix(f".{np.random.default_rng().integers(1 << 40)}.part")
                part.write_text(text, encoding="utf-8")
                part.replace(path)
            spec = importlib.util.spec_from_file_location(f"tinyattn_steps_{name}", path)
            module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # Numba's cache looks it up by name
            spec.loader.exec_module(module)
            return vars(module)
        except OSError:  # a full disk: it only costs time
            pass
    exec(compile(text, f"<{name}>", "exec"), space)
    return space


def bound(call, arrays, outs):
    """A function without arguments that runs a Fused call on these arrays. outs: those of its outputs that have memory of
    their own; the others are the inputs that they replace."""
    if call.card:
        return _bound_on_card(call, arrays, outs)
    serial, parallel = kernel_of(call)
    if not all(a.flags.c_contiguous for a in (*arrays, *outs)):
        raise Uncapturable("a fused chain was given an array whose elements do not lie one after the other")
    flat = tuple([a.reshape(-1) for a in (*arrays, *outs)])
    size = max(a.size for a in flat)
    end = size // call.n if call.n else size
    cost = size * 0.15 * len(call.steps)
    if cost > device.PARALLEL_ABOVE:
        return lambda: device.launch(cost, serial, (0, end, call.n, *flat), parallel, (end, call.n, *flat))
    return lambda: serial(0, end, call.n, *flat)


def _bound_on_card(call, arrays, outs):
    like = outs[0] if outs else arrays[call.replaces[0]]
    launch = card_kernel_of(call, like.dtype).each(like.size)
    return partial(launch, like.size, call.n, *[flat(a) for a in (*arrays, *outs)])


def with_place(call, replaces):
    return replace(call, replaces=replaces)
