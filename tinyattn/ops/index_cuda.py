"""Picking and scatter-adding on a card: what `index.py` launches there.

What is picked are rows of `width` elements of a flat table; elements picked one by one are rows of width 1. To add rows
into a table, some of them into the same place, without atomics, which would add them in another order each time:

    sort the ids, those that are equal in the order in which they stand: each row of the table has one run of them
    cut the sorted ids into windows; a thread adds up one column of one window, and writes what belongs to runs within it
    put together the runs that windows have cut

No thread looks at rows of the table that nothing is added to, so the cost is that of the ids.
"""
import math

import numpy as np

from ..cuda import ANY, SIMULATED, cuda, cuda_kernel, flat, on_card, place
from ..device import empty, to_device
from .shape import _copy_plan, _part, steps

RUN = 8 if SIMULATED else 2048  # ids that are sorted by counting, before runs are merged
WINDOW = 64                     # ids whose rows one thread adds up


def rows_at(shape, index):
    """(at, width, shape of the result) of x[index], for an x of this shape and an index with arrays: `at` are on the card the
    numbers of the rows of `width` elements that are picked. Axes behind all that the index names belong to the rows.
    NumPy works it out, errors included, one axis after the other, so the cost is that of the result."""
    taken = [0 if i is None or isinstance(i, (bool, np.bool_)) else i.ndim if getattr(i, "dtype", None) == np.bool_ else 1
             for i in index]
    lead = len(shape) if any(i is Ellipsis for i in index) else min(sum(taken), len(shape))
    front, at = shape[:lead], np.broadcast_to(np.int64(0), shape[:lead])[index]
    for axis, (n, apart) in enumerate(zip(front, steps(front), strict=True)):
        numbers = (np.arange(n) * apart).reshape(n, *[1] * (lead - axis - 1))
        at = at + np.broadcast_to(numbers, front)[index]
    return to_device(np.asarray(at), "cuda"), math.prod(shape[lead:]), (*np.shape(at), *shape[lead:])


def picked(table, at, width, shape):
    """A new device array of the rows of the table whose numbers are `at`."""
    out = empty(shape, table.dtype, "cuda")
    _gather_rows_cuda.each(out.size)(flat(table), flat(at), flat(out), width)
    return out


def places_along(axis, shape, index):
    """The numbers, in an array of this shape, of the elements that `index` names along one axis."""
    at, b = empty(index.shape, np.int64, "cuda"), math.prod(shape[axis + 1:])
    _places_cuda.each(at.size)(flat(index), flat(at), at.size, shape[axis], index.shape[axis], b)
    return at


def add_part(x, out, index):
    """out[index] += x on a card; the index is made of numbers, slices, None and `...`."""
    shape, first, apart = _part(out.shape, index)
    _add_part_cuda.each(x.size)(flat(x), flat(out), on_card(_copy_plan(shape, steps(shape), apart)), x.size, first)


def add_rows(x, ids, table, width, padding=None, window=WINDOW):
    """table[ids[i]] += x[i], rows of `width` elements, always in the same order; what falls on row `padding` is dropped."""
    if x.size == 0:
        return
    n, padding = ids.size, -1 if padding is None else padding
    ids, order = sorted_ids(ids)
    windows = -(-n // window)
    edges = empty(2 * windows * width, x.dtype, "cuda")
    _add_rows_cuda.each(windows * width)(flat(x), ids, order, flat(table), edges, n, windows, width, window, padding)
    if windows > 1:
        _add_edges_cuda.each(windows * width)(ids, flat(table), edges, n, windows, width, window, padding)


def sorted_ids(ids):
    """(the ids in rising order, the places in `ids` that they came from); of equal ones the first place comes first."""
    n, run = ids.size, RUN
    keys, order = empty(n, np.int64, "cuda"), empty(n, np.int64, "cuda")
    _rank_cuda.each(n)(flat(ids), keys, order, n, run)
    while run < n:
        unmerged, keys, order = (keys, order), empty(n, np.int64, "cuda"), empty(n, np.int64, "cuda")
        _merge_cuda.each(n)(*unmerged, keys, order, n, run)
        run *= 2
    return keys, order


# ---------------------------------------------------------------------------------------------------------------------
# the kernels
# ---------------------------------------------------------------------------------------------------------------------
@cuda_kernel("T[::1], int64[::1], T[::1], int64", types=ANY)
def _gather_rows_cuda(table, ids, out, width):
    """Thread e copies element e of the result, column e % D of row ids[e // D]; neighbours read neighbours."""
    e = cuda.grid(1)
    if e < out.size:
        row = e // width
        out[e] = table[ids[row] * width + e - row * width]


@cuda_kernel("int64[::1], int64[::1], int64, int64, int64, int64", types=("int64",))
def _places_cuda(index, at, size, n, m, b):
    """Thread e finds where index[i, j, k] points to, for an index (a, m, b) along the middle axis of an array (a, n, b)."""
    e = cuda.grid(1)
    if e < size:
        at[e] = (e // (m * b) * n + index[e]) * b + e % b


@cuda_kernel("T[::1], T[::1], int64[:, ::1], int64, int64")
def _add_part_cuda(x, out, plan, n, first):
    """Thread e adds element e of x to its place in a part of out."""
    e = cuda.grid(1)
    if e < n:
        out[first + place(e, plan, 1)] += x[e]


@cuda_kernel("int64[::1], int64[::1], int64[::1], int64, int64", types=("int64",))
def _rank_cuda(ids, keys, order, n, run):
    """Thread i puts ids[i] in its place within its run of ids: it counts those that come before. All threads of a warp look
    at the same id or at neighbours, which are near."""
    i = cuda.grid(1)
    if i < n:
        own, at = ids[i], i // run * run
        end = at + run if at + run < n else n
        for j in range(at, i):
            at += 1 if ids[j] <= own else 0
        for j in range(i + 1, end):
            at += 1 if ids[j] < own else 0
        keys[at], order[at] = own, i


@cuda_kernel("int64[::1], int64[::1], int64[::1], int64[::1], int64, int64", types=("int64",))
def _merge_cuda(keys, order, to_keys, to_order, n, run):
    """Thread s puts one id of two sorted runs that lie side by side in its place in the merged one: so many places behind its
    own as there are smaller ones (or, for the right run, equal ones too) in the other run, found by halving."""
    s = cuda.grid(1)
    if s < n:
        own, begin = keys[s], s // (2 * run) * (2 * run)
        middle = begin + run if begin + run < n else n
        end = middle + run if middle + run < n else n
        left = s < middle
        low, high = (middle, end) if left else (begin, middle)
        while low < high:
            half = (low + high) // 2
            if keys[half] < own or (not left and keys[half] == own):
                low = half + 1
            else:
                high = half
        at = s + low - middle
        to_keys[at], to_order[at] = own, order[s]


@cuda_kernel("T[::1], int64[::1], int64[::1], T[::1], T[::1], int64, int64, int64, int64, int64")
def _add_rows_cuda(x, ids, order, table, edges, n, windows, width, window, padding):
    """Thread e adds up column e % D of window e // D of the sorted ids; neighbours read neighbours. The sum of a run that
    lies within the window goes to its row of the table. One that came in from the window before is left in edges[0],
    one that only goes on in the next in edges[1]."""
    e = cuda.grid(1)
    if e < windows * width:
        w, total = e // width, x.dtype.type(0)
        d, begin = e - w * width, w * window
        end = begin + window if begin + window < n else n
        came = begin > 0 and ids[begin - 1] == ids[begin]
        for s in range(begin, end):
            row = ids[s]
            total += x[order[s] * width + d]
            if s + 1 == n or ids[s + 1] != row or s + 1 == end:
                if came:
                    edges[e] = total
                elif s + 1 < n and ids[s + 1] == row:
                    edges[windows * width + e] = total
                elif row != padding:
                    table[row * width + d] += total
                came, total = False, x.dtype.type(0)


@cuda_kernel("int64[::1], T[::1], T[::1], int64, int64, int64, int64, int64")
def _add_edges_cuda(ids, table, edges, n, windows, width, window, padding):
    """Thread e owns, in column e % D, the run that begins in window e // D and goes on in the next, if there is one: it adds
    up what that and the windows after it have left, and adds the sum to the row of the table."""
    e = cuda.grid(1)
    if e < (windows - 1) * width:
        w = e // width
        begin, end = w * window, (w + 1) * window
        row = ids[end]
        if row != padding and ids[end - 1] == row and (begin == 0 or ids[begin - 1] != row):
            total = edges[windows * width + e]
            while end < n and ids[end] == row:
                e += width
                total += edges[e]
                end += window
            table[row * width + e % width] += total
