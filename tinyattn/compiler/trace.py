"""Arguments that leave a trace: NumPy arrays that tell the tape which NumPy functions were applied to them.

A step may compute with NumPy before it computes with Tensors: `mask = np.arange(S) < lengths[:, None]`. Its arguments come in as
`Traced` arrays, so the tape learns of this `less`, and replays it on the lengths of the next batch. What it cannot follow
is a value that Python reads: after `if lengths.max() > 9:` the steps of two batches might be different programs. There a
`Traced` array stops the capture, and says where.
"""
import os
import sys

import numpy as np

ndarray = np.ndarray
HERE = os.path.dirname(__file__)
ENGINE = (HERE, os.path.dirname(HERE), os.path.join(os.path.dirname(HERE), "ops"))
NUMPY = os.path.dirname(np.__file__)
WRITES = {"copyto", "put", "place", "putmask", "put_along_axis", "fill_diagonal"}
SHAPE_BY_VALUE = {"nonzero", "flatnonzero", "argwhere", "unique", "compress", "extract", "unique_values", "trim_zeros",
                  "unique_all", "unique_counts", "unique_inverse", "intersect1d", "union1d", "setdiff1d", "setxor1d", "bincount"}
READS = {"array_equal", "array_equiv", "allclose", "array_repr", "array_str", "array2string", "save", "savez", "savetxt"}


class Uncapturable(Exception):
    """Why a step cannot be captured, in one line."""


def where_in_the_step():
    """"in loss (model.py, line 12)": the innermost line that is neither the engine's nor NumPy's."""
    frame = sys._getframe(1)
    while frame is not None:
        folder, name = os.path.split(frame.f_code.co_filename)
        if folder not in ENGINE and not folder.startswith(NUMPY) and not name.startswith("<"):
            return f"in {frame.f_code.co_name} ({name}, line {frame.f_lineno})"
        frame = frame.f_back
    return "somewhere"


def _read(what, name):
    def method(array, *args, **kwargs):
        value = getattr(plain(array), name)(*args, **kwargs)
        array.tape.fail(f"a value is read in Python by {what}, {where_in_the_step()}: another batch might go another way")
        return value
    return method


class Traced(ndarray):
    """An array known to a `tape`. Views of it are Traced too; what NumPy makes of it is written down, while the tape is live."""
    tape = None

    @classmethod
    def of(cls, array, tape):
        view = array.view(cls)
        view.tape = tape
        return view

    def __array_finalize__(self, source):
        if source is not None:
            self.tape = getattr(source, "tape", None)

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        name = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
        return self._apply(getattr(ufunc, method), name, inputs, kwargs)

    def __array_function__(self, function, types, args, kwargs):
        return self._apply(function, function.__name__, args, kwargs)

    def _apply(self, function, name, args, kwargs):
        """Call NumPy on plain arrays, write it down, and give the result as Traced."""
        tape = next(a.tape for a in _arrays_in((self, args, kwargs)) if isinstance(a, Traced) and a.tape is not None)
        if not tape.live:
            return function(*plain(args), **plain(kwargs))
        if name in SHAPE_BY_VALUE or (name == "where" and len(args) == 1):
            tape.fail(f"the shape of what numpy.{name} gives depends on values, {where_in_the_step()}")
        if name in READS:
            tape.fail(f"a value is read in Python by numpy.{name}, {where_in_the_step()}: another batch might go another way")
        if name in WRITES or name.endswith(".at") or kwargs.get("out") is not None:
            tape.fail(f"numpy.{name} writes into an array, {where_in_the_step()}")
        return tape.numpy(f"numpy.{name}", function, args, kwargs)

    def __getitem__(self, index):
        parts = index if isinstance(index, tuple) else (index,)
        if any(isinstance(i, (ndarray, list)) and np.asarray(i).dtype == bool for i in parts):
            self.tape.fail(f"the shape of x[mask] depends on values, {where_in_the_step()}")
        return self.tape.numpy("numpy.getitem", _getitem, (self, index), {})

    def __setitem__(self, index, value):
        self.tape.fail(f"an array is written to by x[...] = value, {where_in_the_step()}: use numpy.where")
        plain(self)[plain(index)] = plain(value)

    def reshape(self, *shape, **kwargs):
        return np.reshape(self, shape[0] if len(shape) == 1 else shape, **kwargs)

    def astype(self, dtype, *args, **kwargs):
        return self.tape.numpy("numpy.astype", _astype, (self, np.dtype(dtype)), {})

    def copy(self, order="C"):
        return self.tape.numpy("numpy.copy", _copy, (self,), {})

    __bool__, __int__, __float__, __complex__ = (_read(f"{n}()", f"__{n}__") for n in ("bool", "int", "float", "complex"))
    __index__, __iter__, __contains__ = _read("an index", "__index__"), _read("a loop", "__iter__"), _read("in", "__contains__")
    item, tolist, nonzero = _read(".item()", "item"), _read(".tolist()", "tolist"), _read(".nonzero()", "nonzero")


def _writing(name):
    def method(array, *args, **kwargs):
        array.tape.fail(f"an array is written to by .{name}(), {where_in_the_step()}")
        return getattr(plain(array), name)(*args, **kwargs)
    return method


for _name in ("sort", "fill", "put", "partition", "resize", "setfield", "byteswap"):
    setattr(Traced, _name, _writing(_name))


def _function_method(name):
    def method(self, *args, **kwargs):
        return getattr(np, name)(self, *args, **kwargs)
    return method


for _name in ("argmax", "argmin", "argsort", "ravel", "cumsum", "cumprod", "repeat", "take", "clip", "round", "any", "all", "sum",
              "prod", "max", "min", "mean", "std", "var", "dot"):
    setattr(Traced, _name, _function_method(_name))


def _arrays_in(tree):
    """All arrays in nested tuples, lists and dictionaries."""
    if isinstance(tree, ndarray):
        yield tree
    elif isinstance(tree, (tuple, list)):
        for x in tree:
            yield from _arrays_in(x)
    elif isinstance(tree, dict):
        yield from _arrays_in(tuple(tree.values()))


def _getitem(x, index):
    return x[index]


def _astype(x, dtype):
    return x.astype(dtype)


def _copy(x):
    return x.copy()


Traced.flatten = lambda array, order="C": array.copy().reshape(-1)


def plain(x):
    """A Traced array as the plain array that it shows; also in tuples, lists and dictionaries."""
    if type(x) is Traced:
        return x.view(ndarray)
    if type(x) in (tuple, list):
        return type(x)([plain(i) for i in x])
    return {k: plain(v) for k, v in x.items()} if type(x) is dict else x


def holes(tree, found):
    """`tree` (arguments of a NumPy call: nested tuples, lists and dictionaries) with each array in it replaced by a
    `Hole`; the arrays are appended to `found`."""
    if isinstance(tree, ndarray):
        found.append(tree)
        return Hole(len(found) - 1)
    if isinstance(tree, (tuple, list)):
        return type(tree)([holes(x, found) for x in tree]) if type(tree) in (tuple, list) else tree
    if isinstance(tree, dict):
        return {k: holes(v, found) for k, v in tree.items()}
    return tree


def filled(tree, arrays):
    """The reverse of `holes`."""
    if type(tree) is Hole:
        return arrays[tree.number]
    if type(tree) in (tuple, list):
        return type(tree)([filled(x, arrays) for x in tree])
    if type(tree) is dict:
        return {k: filled(v, arrays) for k, v in tree.items()}
    return tree


class Hole:
    """The place of array `number` in the arguments of a call."""

    def __init__(self, number):
        self.number = number

    def __repr__(self):
        return f"x{self.number}"
