"""Arguments that leave a trace: in the place of NumPy arrays, what tells the tape which NumPy functions were applied to it.

A step may compute with NumPy before it computes with Tensors: `mask = np.arange(S) < lengths[:, None]`. Its arguments come in as
`Traced`, so the tape learns of this `less`, and replays it on the lengths of the next batch. What it cannot follow
is a value that Python reads: after `if lengths.max() > 9:` the steps of two batches might be different programs. There a
`Traced` stops the capture, and says where. From then on it is but another name of its array.
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
                  "unique_all", "unique_counts", "unique_inverse", "intersect1d", "union1d", "setdiff1d", "setxor1d",
                  "bincount", "histogram"}
READS = {"array_equal", "array_equiv", "allclose", "array_repr", "array_str", "array2string", "savetxt", "save", "savez",
         "shares_memory", "may_share_memory", "ndim", "shape", "size", "result_type", "iscomplexobj", "isrealobj", "can_cast"}
METHODS = ("argmax", "argmin", "argsort", "ravel", "cumsum", "cumprod", "repeat", "take", "clip", "round", "any", "all", "sum",
           "prod", "max", "min", "mean", "std", "var", "dot", "squeeze", "swapaxes", "diagonal", "searchsorted", "argpartition")
PLAIN = ("shape", "dtype", "ndim", "size", "nbytes", "itemsize")  # what is the same for all batches of one program


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


class Traced(np.lib.mixins.NDArrayOperatorsMixin):
    """`array`, known to a `tape`: what NumPy makes of it is written down.

    It is no subclass of NumPy's arrays: those lose the trace in silence in `table[ids]` or `np.array(ids)`. NumPy asks
    anything else for its `__array__`, and there the tape hears of it.
    """
    __slots__ = ("array", "tape")
    __hash__ = None

    def __init__(self, array, tape):
        self.array, self.tape = array, tape

    @classmethod
    def of(cls, array, tape):
        return cls(array, tape)

    @property
    def __class__(self):
        """`isinstance(x, np.ndarray)` holds in the step as it does without a tape."""
        return ndarray

    def __array__(self, dtype=None, copy=None):
        caller = sys._getframe(1).f_code
        same = not copy and dtype in (None, self.array.dtype)
        told = _engine(caller) and (same or caller.co_name == "_as_array")
        if not told:
            self._stop("an array is read out of sight, as by table[x], np.array(x), np.asarray(x) (a Tensor as table; np.copy(x); "
                       "x itself)")
        return self.array if same else np.array(self.array, dtype)

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        name = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
        return self._apply(getattr(ufunc, method), name, inputs, kwargs)

    def __array_function__(self, function, types, args, kwargs):
        return self._apply(function, function.__name__, args, kwargs)

    def _apply(self, function, name, args, kwargs):
        """Call NumPy on plain arrays, write it down, and give the result as Traced."""
        if name in SHAPE_BY_VALUE or (name == "where" and len(args) == 1):
            self._stop(f"the shape of what numpy.{name} gives depends on values")
        if name in WRITES or name.endswith(".at") or kwargs.get("out") is not None:
            self._stop(f"numpy.{name} writes into an array")
        if name in READS and name not in ("ndim", "shape", "size", "result_type", "iscomplexobj", "isrealobj", "can_cast"):
            self._stop(f"a value is read in Python by numpy.{name}")
        if name in READS or not self.tape.live:
            return function(*plain(args), **plain(kwargs))
        return self.tape.numpy(f"numpy.{name}", function, args, kwargs)

    def _stop(self, what):
        if self.tape.live:
            self.tape.fail(f"{what}, {where_in_the_step()}")

    def _call(self, name, function, *args):
        return self.tape.numpy(name, function, args, {}) if self.tape.live else function(*plain(args))

    # -- what arrays can do --------------------------------------------------------------------------------------------
    def __getattr__(self, name):
        """All that is not below: the array's own, but nobody could follow."""
        if name.startswith("__") or not hasattr(ndarray, name):
            raise AttributeError(f"numpy.ndarray has no attribute {name!r}")
        if name not in PLAIN:
            self._stop(f"x.{name} of an array cannot be followed")
        return getattr(self.array, name)

    def __getitem__(self, index):
        parts = index if isinstance(index, tuple) else (index,)
        if any(isinstance(i, (ndarray, list, bool, np.bool_)) and _dtype_of(i).kind == "b" for i in parts):
            self._stop("the shape of x[mask] depends on values")
        return self._call("numpy.getitem", _getitem, self, index)

    def __setitem__(self, index, value):
        self._stop("an array is written to by x[...] = value (numpy.where makes a new one)")
        self.array[plain(index)] = plain(value)

    def __len__(self):
        return len(self.array)

    def __repr__(self):
        return repr(self.array)

    def __deepcopy__(self, memo):
        return self.copy()

    def reshape(self, *shape, **kwargs):
        return np.reshape(self, shape[0] if len(shape) == 1 else shape, **kwargs)

    def transpose(self, *axes):
        return np.transpose(self, (axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes) or None)

    T = property(lambda self: self.transpose())

    def astype(self, dtype, *args, **kwargs):
        result = self._call("numpy.astype", _astype, self, np.dtype(dtype))
        return plain(result) if _engine(sys._getframe(1).f_code) else result  # Tensors hold plain arrays, known to the tape

    def copy(self, order="C"):
        return self._call("numpy.copy", _copy, self)

    def flatten(self, order="C"):
        return self.copy().reshape(-1, order=order)


def _engine(code):
    """Is this code the engine's own? It tells the tape of what it does."""
    return os.path.dirname(code.co_filename) in ENGINE


def _reading(what, name):
    def method(self, *args, **kwargs):
        value = getattr(self.array, name)(*args, **kwargs)  # or an error, as of any array: NumPy tries whether x is an index
        self._stop(f"a value is read in Python by {what}: another batch might go another way")
        return value
    return method


def _function_method(name):
    def method(self, *args, **kwargs):
        return getattr(np, name)(self, *args, **kwargs)
    return method


for _name in ("bool", "int", "float", "complex", "str", "format"):
    setattr(Traced, f"__{_name}__", _reading(f"{_name}()", f"__{_name}__"))
for _name, _what in {"__index__": "an index", "__iter__": "a loop", "__contains__": "in", "item": ".item()",
                     "tolist": ".tolist()", "tobytes": ".tobytes()", "nonzero": ".nonzero()"}.items():
    setattr(Traced, _name, _reading(_what, _name))
for _name in METHODS:
    setattr(Traced, _name, _function_method(_name))


def _dtype_of(x):
    return x.dtype if isinstance(x, (ndarray, np.generic)) else np.asarray(plain(x)).dtype


def _getitem(x, index):
    return x[index]


def _astype(x, dtype):
    return x.astype(dtype)


def _copy(x):
    return x.copy()


def plain(x):
    """The array of a Traced; also in tuples, lists and dictionaries."""
    if type(x) is Traced:
        return x.array
    if type(x) in (tuple, list):
        return type(x)([plain(i) for i in x])
    if type(x) is slice:
        return slice(plain(x.start), plain(x.stop), plain(x.step))
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
