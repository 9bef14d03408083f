"""Picking elements: x[...], embedding rows, gather and scatter-add along an axis.

Picking one element twice means that its gradient is the sum of two: everything here scatter-*adds*. Each op has
`accumulate`, which adds its part into one buffer; so T slices of a sequence cost T slices, not T whole arrays. What runs on
a card stands in `index_cuda.py`.
"""
import numpy as np

from ..autograd import Op
from ..cuda import zeros
from ..device import empty, kernel, to_device
from .broadcast import ShapeError
from .index_cuda import add_part, add_rows, picked, places_along, rows_at
from .shape import axis_of, part, put


def is_basic(index):
    """Is this NumPy's basic indexing (numbers, slices, None, ...), which gives a view?"""
    return all(i is None or i is Ellipsis or isinstance(i, (int, np.integer, slice)) and i is not True and i is not False
               for i in index)


class Getitem(Op):
    """x[index] with NumPy's meaning: numbers, slices, None, ..., integer arrays and boolean masks, mixed."""
    tex = "{x}_{i}"

    def __init__(self, index):
        self.index = index
        self._basic = is_basic(index)

    def cpu(self, x):
        y = x[self.index]
        return y if type(y) is np.ndarray else np.asarray(y)

    def cuda(self, x):
        if self._basic:
            return part(x, self.index)
        at, width, shape = rows_at(x.shape, self.index)
        self.saved = at, width
        return picked(x, at, width, shape)

    def grad_x(self, g, y, x):
        return Putitem(self.index, x.shape)(g)

    def accumulate(self, g, buffer):
        if self._basic:
            buffer[self.index] += g
        else:
            np.add.at(buffer, self.index, g)

    def accumulate_cuda(self, g, buffer):
        if self._basic:
            add_part(g, buffer, self.index)
        else:
            add_rows(g, self.saved[0], buffer, self.saved[1])

    def samples(rng):
        x = rng.normal(size=(3, 4))
        rows = np.array([0, 2, 0, -1])  # a row twice, a row from the end
        for index in [(1,), (slice(1, 3),), (Ellipsis, 0), (None, slice(None, None, -2)), (rows,), (rows, slice(0, 2)),
                      (slice(None), rows), (rows, np.array([3, 1, 3, 0])), (x > 0,), (slice(0, 0),)]:
            yield {"index": index}, (x,)


class Putitem(Op):
    """Zeros of a shape, to which x is added at `index`: the reverse of x[index]."""
    tex = r"\mathrm{put}({x})"

    def __init__(self, index, shape):
        self.index, self.shape = index, tuple(shape)

    def check(self, x):
        named = np.broadcast_to(False, self.shape)[self.index].shape
        if x.shape != named:
            raise ShapeError(f"putitem: x has shape {x.shape}, but what the index names of shape {self.shape} has {named}")

    def cpu(self, x):
        self.check(x)
        out = np.zeros(self.shape, x.dtype)
        np.add.at(out, self.index, x) if not is_basic(self.index) else out.__setitem__(self.index, x)
        return out

    def cuda(self, x):
        self.check(x)
        out = zeros(self.shape, x.dtype)
        if is_basic(self.index):
            put(x, out, self.index)
        else:
            at, width, _ = rows_at(self.shape, self.index)
            add_rows(x, at, out, width)
        return out

    def grad_x(self, g, y, x):
        return g[self.index]

    def samples(rng):
        yield {"index": (np.array([0, 2, 0]),), "shape": (3, 2)}, (rng.normal(size=(3, 2)),)
        yield {"index": (slice(1, 3), 0), "shape": (4, 2)}, (rng.normal(size=(2,)),)


def check_range(name, ids, length, what):
    """IndexError with the first value outside 0 .. length - 1. An array of another class than NumPy's own, an argument of
    a step that is being captured, has no values to be looked at."""
    if type(ids) is np.ndarray and ids.size and (ids.min() < 0 or ids.max() >= length):
        bad = ids.ravel()[np.argmax(((ids < 0) | (ids >= length)).ravel())]
        raise IndexError(f"{name}: {what} {bad} is outside 0 .. {length - 1}")


class Embedding(Op):
    """y[..., :] = weight[ids[...], :]: one row of the table an id. `padding` is an id whose row gets no gradient."""
    tex = r"{weight}_{{{ids}}}"

    def __init__(self, padding=None):
        self.padding = padding

    def check(self, weight, ids):
        if weight.ndim != 2:
            raise ShapeError(f"embedding: expected weight of shape (V, D), got {weight.shape}")
        if self.padding is not None and not 0 <= self.padding < weight.shape[0]:
            raise IndexError(f"embedding: padding {self.padding} is outside 0 .. {weight.shape[0] - 1}")
        check_range("embedding", to_device(ids, "cpu"), weight.shape[0], "id")  # a card has no error that names the id

    def cpu(self, weight, ids):
        self.check(weight, ids)
        out = empty((*ids.shape, weight.shape[1]), weight.dtype)
        _gather_rows(np.ascontiguousarray(weight), ids.ravel(), out.reshape(ids.size, weight.shape[1]))
        return out

    def cuda(self, weight, ids):
        self.check(weight, ids)
        return picked(weight, ids, weight.shape[1], (*ids.shape, weight.shape[1]))

    def grad_weight(self, g, y, weight, ids):
        return ScatterRows(weight.shape[0], self.padding)(g, ids)

    def accumulate(self, g, buffer):
        ids = self.inputs[1].array
        _scatter_rows(np.ascontiguousarray(g).reshape(ids.size, g.shape[-1]), ids.ravel(),
                      -1 if self.padding is None else self.padding, buffer)

    def accumulate_cuda(self, g, buffer):
        add_rows(g, self.inputs[1].array, buffer, g.shape[-1], self.padding)

    def samples(rng):
        yield {}, (rng.normal(size=(5, 3)), np.array([[0, 4, 0], [1, 1, 1]]))
        yield {"padding": 1}, (rng.normal(size=(3, 2)), np.array([2, 0, 2]))  # without id 1: its gradient is 0, its slope not
        yield {}, (rng.normal(size=(2, 3)), np.zeros((0, 2), np.int64))


class ScatterRows(Op):
    """table[ids[...], :] += x[..., :] on a table of `rows` rows of zeros: the reverse of an embedding."""
    tex = r"\mathrm{scatter}({x}, {ids})"

    def __init__(self, rows, padding=None):
        self.rows, self.padding = rows, padding

    def check(self, x, ids):
        if x.ndim == 0 or x.shape[:-1] != ids.shape:
            raise ShapeError(f"scatter_rows: expected x of shape (..., D) and ids (...), got {x.shape} and {ids.shape}")
        check_range("scatter_rows", to_device(ids, "cpu"), self.rows, "id")

    def cpu(self, x, ids):
        self.check(x, ids)
        out = np.zeros((self.rows, x.shape[-1]), x.dtype)
        _scatter_rows(np.ascontiguousarray(x).reshape(ids.size, x.shape[-1]), ids.ravel(),
                      -1 if self.padding is None else self.padding, out)
        return out

    def cuda(self, x, ids):
        self.check(x, ids)
        out = zeros((self.rows, x.shape[-1]), x.dtype)
        add_rows(x, ids, out, x.shape[-1], self.padding)
        return out

    def grad_x(self, g, y, x, ids):
        rows = Embedding()(g, ids)
        return rows if self.padding is None else rows.where((ids != self.padding).reshape(*ids.shape, 1), 0.0)

    def samples(rng):
        yield {"rows": 3}, (rng.normal(size=(4, 2)), np.array([0, 2, 0, 0]))
        yield {"rows": 3, "padding": 0}, (rng.normal(size=(4, 2)), np.array([0, 2, 0, 1]))


def same_but_for(axis, shape, other):
    """Are two shapes equal in every axis but one?"""
    return len(shape) == len(other) and all(m == n or i == axis for i, (m, n) in enumerate(zip(shape, other, strict=True)))


class Gather(Op):
    """y[..., i, ...] = x[..., index[..., i, ...], ...] along one axis; in the others index has the lengths of x."""
    tex = r"\mathrm{gather}({x}, {index})"

    def __init__(self, axis=-1):
        self.axis = axis

    def cpu(self, x, index):
        return np.take_along_axis(x, index, self.check(x, index))

    def cuda(self, x, index):
        return picked(x, places_along(self.check(x, index), x.shape, index), 1, index.shape)

    def check(self, x, index):
        """The axis as a number from 0."""
        axis = axis_of("gather", self.axis, x.ndim)
        if not same_but_for(axis, index.shape, x.shape):
            raise ShapeError(f"gather: index of shape {index.shape} must have the shape of x, {x.shape}, but for axis {axis}")
        check_range("gather", to_device(index, "cpu"), x.shape[axis], "index")
        return axis

    def grad_x(self, g, y, x, index):
        return ScatterAdd(self.axis, x.shape)(g, index)

    def samples(rng):
        yield {"axis": 1}, (rng.normal(size=(2, 3)), np.array([[0, 0], [2, 1]]))
        yield {"axis": 0}, (rng.normal(size=(3, 2)), np.array([[2, 2]]))


class ScatterAdd(Op):
    """Zeros of `shape`, to which x is added at the places `index` along one axis: the reverse of gather."""
    tex = r"\mathrm{scatter}({x}, {index})"

    def __init__(self, axis, shape):
        self.axis, self.shape = axis, tuple(shape)

    def cpu(self, x, index):
        axis = self.check(x, index)
        out = np.zeros(self.shape, x.dtype)
        at = list(np.indices(index.shape, sparse=True))
        at[axis] = index
        np.add.at(out, tuple(at), x)
        return out

    def cuda(self, x, index):
        axis, out = self.check(x, index), zeros(self.shape, x.dtype)
        add_rows(x, places_along(axis, self.shape, index), out, 1)
        return out

    def check(self, x, index):
        """The axis as a number from 0."""
        axis = axis_of("scatter_add", self.axis, len(self.shape))
        if index.shape != x.shape or not same_but_for(axis, x.shape, self.shape):
            raise ShapeError(f"scatter_add: x {x.shape} and index {index.shape} must have one shape, that of the result "
                             f"{self.shape} but for axis {axis}")
        check_range("scatter_add", to_device(index, "cpu"), self.shape[axis], "index")
        return axis

    def grad_x(self, g, y, x, index):
        return Gather(self.axis)(g, index)

    def samples(rng):
        yield {"axis": 1, "shape": (2, 4)}, (rng.normal(size=(2, 3)), np.array([[0, 0, 3], [2, 1, 1]]))


# ---------------------------------------------------------------------------------------------------------------------
# the loops: ids (N,), table (V, D), x and out (N, D)
# ---------------------------------------------------------------------------------------------------------------------
@kernel
def _gather_rows(table, ids, out):
    for i in range(len(ids)):
        row = ids[i]
        for d in range(table.shape[1]):
            out[i, d] = table[row, d]


@kernel
def _scatter_rows(x, ids, padding, table):
    """table[ids[i]] += x[i] for each i in turn: one thread, so ids that repeat are summed in a fixed order."""
    for i in range(len(ids)):
        row = ids[i]
        if row != padding:
            for d in range(table.shape[1]):
                table[row, d] += x[i, d]
