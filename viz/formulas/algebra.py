"""A small algebra of array expressions, and the rules that make equations shorter without changing what they mean.

An expression is a tree of three things: a `Name` of a value, a plain `Number`, and a `Call` of an op on expressions. A
rule takes a Call and gives an equal expression, or None. `simplify` tries them all until none applies. A rule may look
through a name at what it stands for (`look`), so a transpose of a transpose is seen across two equations. A name that
the code gave is looked through only where it makes the expression vanish: k^T stays k^T, whatever k was made of.
"""
import math
from dataclasses import dataclass, field

import numpy as np

ELEMENTWISE = {"add", "sub", "mul", "div", "pow", "maximum", "minimum", "where"}  # their inputs are broadcast
REDUCTIONS = {"sum", "mean", "max", "min", "prod", "norm", "log_sum_exp"}


@dataclass(frozen=True)
class Name:
    """The value number `id` of the table of values."""
    id: int
    shape: tuple
    dtype: str = "float32"


@dataclass(frozen=True)
class Number:
    """A plain number, which fits every shape."""
    value: object
    shape: tuple = ()
    dtype: str = "float32"


@dataclass(frozen=True)
class At:
    """In an index: the place of an array, the argument number `argument` of the Call."""
    argument: int


@dataclass(eq=False)
class Call:
    """An op on arguments. `settings` are its attributes in one form: axes count from 0, an index names every axis."""
    op: str
    args: tuple
    settings: dict = field(default_factory=dict)
    shape: tuple = ()
    dtype: str = "float32"
    tex: str = ""
    inputs: tuple = ()        # the names of the slots in `tex`; args[i] goes into slot inputs[i]


def key(e):
    """Equal for equal expressions."""
    if isinstance(e, Call):
        return e.op, tuple(map(key, e.args)), repr(e.settings), e.shape
    return repr(e)


def names_in(e):
    """The ids of all names in an expression, with repetition."""
    if isinstance(e, Name):
        return [e.id]
    return [i for a in e.args for i in names_in(a)] if isinstance(e, Call) else []


def size(e):
    """The number of calls in an expression."""
    return 1 + sum(map(size, e.args)) if isinstance(e, Call) else 0


def replaced(e, table):
    """`e` with the names in `table` ({id: expression}) replaced."""
    if isinstance(e, Name):
        return table.get(e.id, e)
    return _with(e, args=tuple(replaced(a, table) for a in e.args)) if isinstance(e, Call) else e


def simplify(e, look):
    """An equal expression to which no rule applies. look(e, named): what a Name stands for (a Call), or `e` itself;
    with `named` also if it is a name from the code."""
    if not isinstance(e, Call):
        return e
    e = _with(e, args=tuple(simplify(a, look) for a in e.args))
    for rule in RULES:
        better = rule(e, look)
        if better is not None:
            return simplify(better, look)
    return e


def call(op, *args, shape, like, **settings):
    """A Call of an op that the rules need."""
    tex, inputs = _FORMS.get(op, ("", ()))
    return Call(op, args, settings, tuple(shape), like.dtype, tex, inputs)


_FORMS = {"add": ("{x} + {y}", ("x", "y")), "sub": ("{x} - {y}", ("x", "y")), "neg": ("-{x}", ("x",))}


def _with(e, **changes):
    parts = {"op": e.op, "args": e.args, "settings": e.settings, "shape": e.shape, "dtype": e.dtype, "tex": e.tex,
             "inputs": e.inputs, **changes}
    return Call(**parts)


# ---------------------------------------------------------------------------------------------------------------------
# the rules
# ---------------------------------------------------------------------------------------------------------------------
def copy_only(e, look):
    """alias(x) = x, and so are a cast to the same dtype, a reshape or an expand to the same shape, axes in the same
    order, a sum over no axis, an index that takes everything, a padding of nothing."""
    x = e.args[0] if e.args else None
    same = x is not None and x.shape == e.shape
    if e.op in ("alias", "transfer") or e.op == "cast" and x.dtype == e.dtype:
        return x
    if same and e.op in ("reshape", "expand"):
        return x
    if same and e.op == "getitem" and all(i == slice(None) for i in e.settings["index"]):
        return x
    if e.op == "permute" and e.settings["axes"] == tuple(range(len(e.shape))):
        return x
    if e.op in ("sum", "mean") and e.settings["axes"] == ():
        return x
    if e.op == "pad" and not any(n for pair in e.settings["widths"] for n in pair):
        return x
    return None


def neutral(e, look):
    """1 x = x, x + 0 = x, x - 0 = x, x / 1 = x, x^1 = x, 0 - x = -x; a number that stands alone is put first in a
    product."""
    if e.op not in ("add", "sub", "mul", "div", "pow"):
        return None
    x, y = e.args
    if e.op == "mul" and isinstance(y, Number) and not isinstance(x, Number):
        return _with(e, args=(y, x))
    if e.op == "mul" and isinstance(x, Number) and _is(y, 1):
        return x
    left = {"mul": 1, "add": 0}.get(e.op)
    right = {"add": 0, "sub": 0, "div": 1, "pow": 1}.get(e.op)
    if left is not None and _is(x, left) and y.shape == e.shape:
        return y
    if right is not None and _is(y, right) and x.shape == e.shape:
        return x
    if e.op == "sub" and _is(x, 0) and y.shape == e.shape:
        return call("neg", y, shape=e.shape, like=e)
    return None


def signs(e, look):
    """-(-x) = x, x + (-y) = x - y, (-x) + y = y - x, x - (-y) = x + y, (-1) x = -x; a sign in a product, a quotient or
    a sum goes to the front of it."""
    if e.op == "neg":
        inner = look(e.args[0], True)
        return inner.args[0] if _is_call(inner, "neg") else None
    if e.op == "mul" and _is(e.args[0], -1) and e.args[1].shape == e.shape:
        return call("neg", e.args[1], shape=e.shape, like=e)
    if e.op in ("mul", "div", "sum"):
        for i, x in enumerate(e.args):
            if _is_call(look(x), "neg"):
                args = (*e.args[:i], look(x).args[0], *e.args[i + 1:])
                return call("neg", _with(e, args=args), shape=e.shape, like=e)
    if e.op not in ("add", "sub"):
        return None
    x, y = e.args
    if _is_call(look(y), "neg"):
        return call("sub" if e.op == "add" else "add", x, look(y).args[0], shape=e.shape, like=e)
    if e.op == "add" and _is_call(look(x), "neg"):
        return call("sub", y, look(x).args[0], shape=e.shape, like=e)
    return None


def twice(e, look):
    """x + x = 2 x."""
    if e.op == "add" and key(e.args[0]) == key(e.args[1]) and not isinstance(e.args[0], Number):
        return call("mul", Number(2, dtype=e.dtype), e.args[0], shape=e.shape, like=e)
    return None


def transposes(e, look):
    """Two changes of the order of axes are one."""
    inner = look(e.args[0], True) if e.op == "permute" else None
    if not _is_call(inner, "permute"):
        return None
    axes = tuple(inner.settings["axes"][a] for a in e.settings["axes"])
    if axes != tuple(sorted(axes)) and look(e.args[0]) is not inner:
        return None
    return call("permute", inner.args[0], shape=e.shape, like=e, axes=axes)


def transposed_products(e, look):
    """(x^T y)^T = y^T x and (x y^T)^T = y x^T, in the last two axes."""
    if e.op != "permute" or not _swaps(e):
        return None
    product = look(e.args[0])
    if not _is_call(product, "matmul") or any(len(a.shape) != len(e.shape) for a in product.args):
        return None
    x, y = product.args
    if not (_swaps(look(x)) or _swaps(look(y))):
        return None
    x, y = (call("permute", a, shape=(*a.shape[:-2], a.shape[-1], a.shape[-2]), like=a, axes=e.settings["axes"])
            for a in (x, y))
    return call("matmul", y, x, shape=e.shape, like=e)


def reshapes(e, look):
    """Of two reshapes the last counts. One that only adds or removes axes of length 1 is an index, x[:, +] or
    x[:, 0]; of a sum that kept its axes it is the sum that does not."""
    if e.op != "reshape":
        return None
    x = e.args[0]
    if isinstance(x, Number):
        return call("expand", x, shape=e.shape, like=e)
    inner = look(x, True)
    if look(x) is not inner and not (isinstance(inner, Call) and inner.args and inner.args[0].shape == e.shape):
        inner = x
    if _is_call(inner, "reshape") or _is_call(inner, "getitem") and _only_ones(inner):
        return call("reshape", inner.args[0], shape=e.shape, like=e)
    if isinstance(inner, Call) and inner.op in REDUCTIONS and inner.settings["keepdims"]:
        before, axes = inner.args[0].shape, inner.settings["axes"]
        if e.shape == tuple(n for i, n in enumerate(before) if i not in axes):
            return _with(inner, settings={"axes": axes, "keepdims": False}, shape=e.shape)
    index = _ones(x.shape, e.shape)
    return None if index is None else call("getitem", x, shape=e.shape, like=e, index=index)


def indexes(e, look):
    """x[:, 0][:, 2:] = x[:, 0, 2:], where one of the two takes an axis whole that the other cuts."""
    inner = look(e.args[0]) if e.op == "getitem" and len(e.args) == 1 else None
    if not _is_call(inner, "getitem") or len(inner.args) != 1:
        return None
    outer, index = list(e.settings["index"]), []
    for i in inner.settings["index"]:
        if isinstance(i, int):
            index.append(i)
            continue
        while outer and outer[0] is None:
            index.append(outer.pop(0))
        j = outer.pop(0)
        if i is None and j in (0, -1):
            continue
        if i == slice(None):
            index.append(j)
        elif j == slice(None):
            index.append(i)
        else:
            return None
    return call("getitem", inner.args[0], shape=e.shape, like=e, index=(*index, *outer))


def broadcasts(e, look):
    """Stretched by an expand or not, and with new axes in front or not, is the same to an op that broadcasts, and to
    another expand."""
    if e.op == "expand":
        inner = look(e.args[0], True)
        small = _is_call(inner, "expand") or _is_call(inner, "getitem") and _leading_new(inner)
        return call("expand", inner.args[0], shape=e.shape, like=e) if small else None
    if e.op not in ELEMENTWISE:
        return None
    for i, x in enumerate(e.args):
        shapes = [a.shape for j, a in enumerate(e.args) if j != i]
        inner = look(x, True)
        if not (_is_call(inner, "expand") or _is_call(inner, "getitem") and _leading_new(inner)):
            continue
        small = inner.args[0]
        if np.broadcast_shapes(*shapes, small.shape) == e.shape:
            return _with(e, args=(*e.args[:i], small, *e.args[i + 1:]))
    return None


def opened_affine(e, look):
    """affine(x, w, b) = x w^T + b."""
    if e.op != "affine":
        return None
    x, w, *b = e.args
    turned = call("permute", w, shape=w.shape[::-1], like=w, axes=(1, 0))
    product = call("matmul", x, turned, shape=e.shape, like=e)
    return call("add", product, b[0], shape=e.shape, like=e) if b and b[0] is not None else product


def pieces(e, look):
    """A piece of a split is a slice, x[:, 2:4]; an embedding is an index, table[ids]."""
    if e.op == "embedding":
        index = (At(1), slice(None))
        return call("getitem", *e.args, shape=e.shape, like=e, index=index)
    if e.op != "split":
        return None
    lengths, axis, n = e.settings["lengths"], e.settings["axis"], e.settings["output"]
    begin = sum(lengths[:n])
    index = [slice(None)] * len(e.shape)
    if lengths[n] != e.args[0].shape[axis]:
        index[axis] = slice(begin, begin + lengths[n], None)
    return call("getitem", e.args[0], shape=e.shape, like=e, index=tuple(index))


RULES = (copy_only, neutral, signs, twice, transposes, transposed_products, reshapes, indexes, broadcasts,
         opened_affine, pieces)


def _is(e, value):
    return isinstance(e, Number) and e.value == value


def _is_call(e, op):
    return isinstance(e, Call) and e.op == op


def _swaps(e):
    """Is it a transpose of the last two axes?"""
    n = len(e.shape)
    return _is_call(e, "permute") and n > 1 and e.settings["axes"] == (*range(n - 2), n - 1, n - 2)


def _only_ones(e):
    """Is this index a reshape that adds or removes axes of length 1?"""
    return len(e.args) == 1 and math.prod(e.shape) == math.prod(e.args[0].shape) and all(
        i is None or i == 0 or i == slice(None) for i in e.settings["index"])


def _leading_new(e):
    """Is this index [+, ..., :, :]: new axes in front, and nothing else?"""
    index = e.settings["index"]
    new = len(e.shape) - len(e.args[0].shape)
    return new > 0 and index[:new] == (None,) * new and all(i == slice(None) for i in index[new:])


def _ones(before, after):
    """The index that turns one shape into another by axes of length 1 alone, or None."""
    index, i, j = [], 0, 0
    if [n for n in before if n != 1] != [n for n in after if n != 1]:
        return None
    while i < len(before) or j < len(after):
        if i < len(before) and j < len(after) and before[i] == after[j]:
            index.append(slice(None))
            i, j = i + 1, j + 1
        elif j < len(after) and after[j] == 1:
            index.append(None)
            j += 1
        else:  # before[i] is 1: what is not 1 comes in the same order in both
            index.append(0)
            i += 1
    return tuple(index)
