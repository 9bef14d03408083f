r"""Sentences as vectors, without an array of all their words' vectors:

    y[n, d] = sum_j share[kind_n, j, d] table[ids[n, j], d]        where ids[n, j] is not `nil`

ids (..., J), table (V, D) -> y (..., D). `share` (K, J, D) weighs each place of a sentence and each element by itself,
as position encoding does (Sukhbaatar et al. 2015); K kinds of sentences have weights of their own, such as one for each
length, and kinds (...) says which is whose. Without `share` every word counts once: a bag of words.

The word vectors of a batch of stories are B S J D numbers, which would be written, read, multiplied, written and read
again to be summed. Here each is read from the table, which is small and stays near, and added where it belongs.
"""
import math

import numpy as np

from ..autograd import Op
from ..cuda import SIMULATED, cuda, cuda_kernel, flat
from ..device import empty, kernel, to_device
from .broadcast import ShapeError
from .index import Embedding, check_range
from .shape import filled
from .softmax import check_float


class Bag(Op):
    r"""y[..., d] = sum_j share[kind, j, d] table[ids[..., j], d]; words that are `nil` count nothing and learn nothing.

    table (V, D), ids (..., J) integers, share (K, J, D) or None for all 1, kinds (...) integers or None where K = 1.
    Errors: ShapeError, TypeError; IndexError for an id or a kind that is not there.
    """
    tex = r"\sum_j {share}_j \odot {table}_{{{ids}}_j}"

    def __init__(self, nil=None):
        self.nil = nil

    def cpu(self, table, ids, share, kinds):
        self.check(table, ids, share, kinds)
        out = empty((*ids.shape[:-1], table.shape[1]), table.dtype)
        args = (np.ascontiguousarray(table), *self._flat(table, ids, share, kinds), out.reshape(-1, table.shape[1]))
        if not _bag(*args):
            check_range(self.name, ids, len(table), "id")
            if kinds is not None:
                check_range(self.name, kinds, len(share), "kind")
        return out

    def cuda(self, table, ids, share, kinds):
        self.check(table, ids, share, kinds)
        check_range(self.name, to_device(ids, "cpu"), table.shape[0], "id")
        if kinds is not None:
            check_range(self.name, to_device(kinds, "cpu"), share.shape[0], "kind")
        shape = (*ids.shape[:-1], table.shape[1])
        if ids.size == 0:
            return filled(shape, 0, table.dtype)
        out = empty(shape, table.dtype, "cuda")
        shares = 0 if share is None else 1 if kinds is None else 2
        args = flat(table), flat(ids), flat(share if shares else table), flat(kinds if shares == 2 else ids), flat(out)
        _bag_cuda.each(out.size)(*args, ids.shape[-1], table.shape[1], -1 if self.nil is None else self.nil, shares)
        return out

    def cpu_grad(self, g, y, table, ids, share, kinds):
        need_table, _, need_share, _ = self.needs
        ids, weights, kinds, nil = self._flat(table, ids, share, kinds)
        g, d_table, d_share = np.ascontiguousarray(g).reshape(-1, table.shape[1]), None, None
        if need_table:
            d_table = np.zeros(table.shape, table.dtype)
            _bag_grad_table(g, ids, weights, kinds, nil, d_table)
        if need_share:
            d_share = np.zeros(share.shape, share.dtype)
            _bag_grad_share(g, np.ascontiguousarray(table), ids, kinds, nil, d_share)
        return d_table, None, d_share, None

    def cuda_grad(self, g, y, table, ids, share, kinds):
        need_table, _, need_share, _ = self.needs
        words = to_device(ids, "cpu").ravel()
        n, at = np.divmod(np.arange(words.size), max(ids.shape[-1], 1))  # word by word: its sentence, its place there
        if kinds is not None:
            at = to_device(kinds, "cpu").ravel()[n] * ids.shape[-1] + at
        if self.nil is not None:
            words, n, at = (numbers[words != self.nil] for numbers in (words, n, at))
        return (sums_of_products(share, g, words, at, n, table.shape) if need_table else None, None,
                sums_of_products(table, g, at, words, n, share.shape) if need_share else None, None)

    def composed(self, table, ids, share, kinds):
        words = Embedding(self.nil)(table, ids)                            # (..., J, D)
        if self.nil is not None:
            words = words.where((ids != self.nil).reshape(*ids.shape, 1), 0.0)
        if share is not None:
            words = words * (share[0] if kinds is None else share[kinds.numpy()])
        return words.sum(-2)                                               # (..., D)

    def check(self, table, ids, share, kinds):
        check_float(self.name, table)
        shapes = f"got table {table.shape}, ids {ids.shape}"
        if table.ndim != 2 or ids.ndim < 1:
            raise ShapeError(f"{self.name}: expected table (V, D) and ids (..., J), {shapes}")
        if share is None and kinds is not None:
            raise TypeError(f"{self.name}: expected no kinds where there is no share")
        if share is not None:
            fits = share.ndim == 3 and share.shape[1:] == (ids.shape[-1], table.shape[1])
            if not fits or kinds is None and share.shape[0] != 1:
                raise ShapeError(f"{self.name}: expected share (K, J, D), K = 1 without kinds, got {share.shape}, "
                                 f"{shapes}")
            if share.dtype != table.dtype:
                raise TypeError(f"{self.name}: table and share must have one dtype, got {table.dtype}, {share.dtype}")
        if kinds is not None and kinds.shape != ids.shape[:-1]:
            raise ShapeError(f"{self.name}: expected kinds (...) as ids (..., J), got {kinds.shape}, {shapes}")
        if self.nil is not None and not 0 <= self.nil < table.shape[0]:
            raise IndexError(f"{self.name}: nil {self.nil} is outside 0 .. {table.shape[0] - 1}")

    def _flat(self, table, ids, share, kinds):
        """ids (N, J), share (K, J, D), kinds (N,) and nil, -1 for none: what the loops take."""
        J, D = ids.shape[-1], table.shape[1]
        rows = np.ascontiguousarray(ids).reshape(math.prod(ids.shape[:-1]), J)
        share = np.ones((1, J, D), table.dtype) if share is None else np.ascontiguousarray(share)
        kinds = np.zeros(len(rows), np.int64) if kinds is None else np.ascontiguousarray(kinds).reshape(-1)
        return rows, share, kinds, -1 if self.nil is None else self.nil

    def samples(rng):
        """Words twice in a sentence, nil in the middle and throughout, one kind and two, none; no sentence, no word."""
        table, ids = rng.normal(size=(5, 3)), np.array([[[1, 4, 1], [3, 0, 2]], [[0, 0, 0], [2, 2, 0]]])
        yield {"nil": 0}, (table, ids, rng.normal(size=(2, 3, 3)), np.array([[0, 1], [0, 1]]))
        yield {"nil": 0}, (table, ids, rng.normal(size=(1, 3, 3)), None)
        yield {"nil": 0}, (table, ids, None, None)
        yield {}, (table, ids[0], rng.normal(size=(1, 3, 3)), None)
        yield {"nil": 1}, (table[:, :1], ids[0, 0], None, None)
        yield {}, (table, ids[:0], rng.normal(size=(1, 3, 3)), None)
        yield {"nil": 0}, (table, ids[:, :, :0], rng.normal(size=(1, 0, 3)), None)


# ---------------------------------------------------------------------------------------------------------------------
# the loops: for each sentence n, each word j that is there, along d. One thread, so that sums have a fixed order
# ---------------------------------------------------------------------------------------------------------------------
@kernel
def _bag(table, ids, share, kinds, nil, out):
    """out[n, d] = sum_j share[kind_n, j, d] table[ids[n, j], d]; False at once for an id or a kind that is not there."""
    zero = table.dtype.type(0)
    for n in range(len(ids)):
        k = kinds[n]
        if k < 0 or k >= len(share):
            return False
        for d in range(table.shape[1]):
            out[n, d] = zero
        for j in range(ids.shape[1]):
            row = ids[n, j]
            if row < 0 or row >= len(table):
                return False
            if row != nil:
                for d in range(table.shape[1]):
                    out[n, d] += share[k, j, d] * table[row, d]
    return True


@kernel
def _bag_grad_table(g, ids, share, kinds, nil, d_table):
    """d_table[ids[n, j], d] += share[kind_n, j, d] g[n, d]"""
    for n in range(len(ids)):
        k = kinds[n]
        for j in range(ids.shape[1]):
            row = ids[n, j]
            if row != nil:
                for d in range(g.shape[1]):
                    d_table[row, d] += share[k, j, d] * g[n, d]


@kernel
def _bag_grad_share(g, table, ids, kinds, nil, d_share):
    """d_share[kind_n, j, d] += table[ids[n, j], d] g[n, d]"""
    for n in range(len(ids)):
        k = kinds[n]
        for j in range(ids.shape[1]):
            row = ids[n, j]
            if row != nil:
                for d in range(g.shape[1]):
                    d_share[k, j, d] += table[row, d] * g[n, d]


# ---------------------------------------------------------------------------------------------------------------------
# the same on a card: flat arrays
# ---------------------------------------------------------------------------------------------------------------------
@cuda_kernel("T[::1], int64[::1], T[::1], int64[::1], T[::1], int64, int64, int64, int64")
def _bag_cuda(table, ids, share, kinds, out, words, width, nil, shares):
    """Thread e owns element d = e % D of sentence n = e // D; neighbours read neighbours. `shares` says how words are
    weighed: 0 not at all, 1 all sentences alike, 2 by their kinds."""
    e = cuda.grid(1)
    if e < out.size:
        n, d = e // width, e % width
        first = kinds[n] * words if shares == 2 else 0
        total = table.dtype.type(0)
        for j in range(words):
            row = ids[n * words + j]
            if row != nil:
                x = table[row * width + d]
                total += x * share[(first + j) * width + d] if shares > 0 else x
        out[e] = total


LANES, COLUMNS = (2, 4) if SIMULATED else (8, 32)


def sums_of_products(a, g, rows, left, right, shape):
    """A new device array of `shape`, seen as rows of D elements: to row rows[s] is added row left[s] of a times row
    right[s] of g, for each s; without `a` just the latter. rows, left and right are arrays of the host."""
    out, order = empty(shape, g.dtype, "cuda"), np.argsort(rows, kind="stable")
    starts = np.searchsorted(rows[order], np.arange(math.prod(shape[:-1]) + 1))
    left, right, starts = (flat(to_device(numbers, "cuda")) for numbers in (left[order], right[order], starts))
    blocks = math.prod(shape[:-1]) * -(-shape[-1] // COLUMNS)
    _sums_of_products_cuda[blocks, LANES * COLUMNS](
        flat(g if a is None else a), flat(g), left, right, starts, flat(out), shape[-1], int(a is not None))
    return out


@cuda_kernel("T[::1], T[::1], int64[::1], int64[::1], int64[::1], T[::1], int64, int64")
def _sums_of_products_cuda(a, g, left, right, starts, out, width, weighed):
    """out[r, d] = sum_s a[left[s], d] g[right[s], d] for s from starts[r] to starts[r + 1].

    A block owns COLUMNS elements of row r, so nothing is atomic. Its thread (lane, c) adds up every LANES-th s of column
    c, so that also the row of a frequent word is soon done; then the sums of the lanes are added up, always in one order.
    """
    sums = cuda.shared.array((LANES, COLUMNS), g.dtype)
    lane, c = cuda.threadIdx.x // COLUMNS, cuda.threadIdx.x % COLUMNS
    tiles = (width + COLUMNS - 1) // COLUMNS
    row = cuda.blockIdx.x // tiles
    d, total = (cuda.blockIdx.x - row * tiles) * COLUMNS + c, g.dtype.type(0)
    if d < width:
        for s in range(starts[row] + lane, starts[row + 1], LANES):
            x = g[right[s] * width + d]
            total += a[left[s] * width + d] * x if weighed != 0 else x
    sums[lane, c] = total
    cuda.syncthreads()
    if lane == 0 and d < width:
        for k in range(1, LANES):
            total += sums[k, c]
        out[row * width + d] = total
