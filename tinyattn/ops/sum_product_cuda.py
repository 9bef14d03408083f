r"""`sum_product.py` on a card: the same table, computed level by level.

A sum can be computed as soon as its factors are known. Its level is 1 more than the highest of its factors' (a part has
level 0), and all sums of a level are computed at once: a block of threads takes a sentence, groups of its threads take a
sum each, and a barrier stands between the levels. A chain of T steps has about 2 T levels, a tree over N words 3 N.

Down the table every sum is owned by one group. Up the table an item gets a part of each sum that it is used in, and to
add there from many threads would be a matter of luck in the order. So the items fetch: a second table, that of the uses,
says where item x stands as a factor, as runs of sums that lie evenly, one row a run:

    x, parent, step of parent, other factor, step of that, count      v[parent_k] = ... + v[x] v[other_k] + ...

    c[x] = sum_k v[x] v[other_k] c[parent_k] / v[parent_k],           and fall[x] likewise

Memory: 24 bytes an item of each sentence, 40 for the gradients.
"""
import importlib
import math

import numpy as np

from .. import device
from ..cuda import SIMULATED, THREADS, cuda, cuda_function, cuda_kernel, flat, threads_for
from ..cuda import exp as cuda_exp
from ..cuda import log as cuda_log
from ..cuda.kernel import Later
from ..device import empty, kernel, to_device
from .reduce import sum_cuda
from .sum_product import COUNT, FIRST, LARGEST, LN2_HIGH, LN2_LOW, LOG2_E, PARENT, SECOND, STEP_A, STEP_B, ZERO

INFINITY = math.inf
LEAST = 1 if SIMULATED else 32  # threads of a block: a card runs 32 at a time, needed or not


# ---------------------------------------------------------------------------------------------------------------------
# from a table to levels, on the host
# ---------------------------------------------------------------------------------------------------------------------
class Levels:
    """The tables of a recursion on the card, level by level; flat int64 arrays.

    sums   rows of the table, lowest level first          down   a level a row: first row of `sums`, end, lanes
    uses   rows of the table of uses, item by item        up     the same, from the last level: rows of `slots`
    slots  x, its first row of `uses`, end                threads  of a block
    Parts come last of all in `slots`: a level of the sentence's X own ones, then a level of the Y others.

    A group of threads that computes one sum has `lanes` threads: as many as a level needs, or as the block has.
    """

    def __init__(self, table, uses, items, x, y):
        depth = _depths(table, items)
        order = np.argsort(depth[table[:, PARENT]], kind="stable")
        table = table[order]
        starts = _starts(depth[table[:, PARENT]])
        longest = [int(table[a:b, COUNT].max()) for a, b in starts]
        self.threads = max([LEAST, *[threads_for((b - a) * n) for (a, b), n in zip(starts, longest, strict=True)]])
        parents = table[::-1, PARENT]
        slots = np.concatenate([parents, np.arange(x + y)])
        level = np.concatenate([-depth[parents], np.repeat([1, 2], [x, y])])
        place = np.full(items, -1)
        place[slots] = np.arange(len(slots))
        uses = uses[np.argsort(place[uses[:, PARENT]], kind="stable")]
        begin, end = (np.searchsorted(place[uses[:, PARENT]], np.arange(len(slots)), side) for side in ("left", "right"))
        up = _starts(level)
        most = [int(uses[begin[a]:end[b - 1], COUNT].max(initial=1)) for a, b in up]
        self.items, self.x, self.y = items, x, y
        self.down, self.up = (self._planned(*levels) for levels in ((starts, longest), (up, most)))
        self.counts = len(starts), len(up), len(up) - (1 if y else 0)   # levels: down, up, up without the Y others
        self.sums, self.uses, self.slots = map(_sent, (table, uses, np.stack([slots, begin, end], 1)))

    def _planned(self, starts, longest):
        rows = [(a, b, max(1, min(threads_for(n), self.threads // threads_for(b - a))))
                for (a, b), n in zip(starts, longest, strict=True)]
        return _sent(np.array(rows, np.int64).reshape(-1, 3))


@kernel
def _depths(table, items):
    """The level of each item."""
    depth = np.zeros(items, np.int64)
    for row in range(len(table)):
        a, b, highest = table[row, FIRST], table[row, SECOND], 0
        for _ in range(table[row, COUNT]):
            highest = max(highest, depth[a], depth[b])
            a += table[row, STEP_A]
            b += table[row, STEP_B]
        depth[table[row, PARENT]] = highest + 1
    return depth


def _starts(level):
    """[(first, end)] of the stretches of equal numbers."""
    cuts = [0, *(np.flatnonzero(np.diff(level)) + 1).tolist(), len(level)]
    return [(a, b) for a, b in zip(cuts, cuts[1:], strict=False) if b > a]


def _sent(table):
    return flat(to_device(np.ascontiguousarray(table, np.int64), "cuda"))


# ---------------------------------------------------------------------------------------------------------------------
# the launches
# ---------------------------------------------------------------------------------------------------------------------
def infer_cuda(x, y, shared, lengths, levels):
    """(p of x, p of y, log Z) for the scores x (B, ...) of each sentence's own parts and y, others of its own (B, ...)
    or, if `shared`, the same in all sentences; of those there are no p, but None. lengths (B,)."""
    to_x, to_y = empty(x.shape, x.dtype, "cuda"), None if shared else empty(y.shape, y.dtype, "cuda")
    logz = empty(x.shape[:1], x.dtype, "cuda")
    _launch(None, None, None, x, y, shared, lengths, levels, to_x, to_y, logz)
    return to_x, to_y, logz


def infer_grad_cuda(g_x, g_y, g_logz, x, y, shared, lengths, levels, wants_y=True):
    """The gradients of x and y (or None) from those that arrive at what `infer_cuda` gives; g_y is None if `shared`."""
    to_x, to_y = empty(x.shape, x.dtype, "cuda"), None
    if wants_y:  # of shared parts each sentence has a gradient of its own, to be added up
        to_y = empty((x.shape[0], *y.shape), np.float64, "cuda") if shared else empty(y.shape, y.dtype, "cuda")
    _launch(g_x, g_y, g_logz, x, y, shared, lengths, levels, to_x, to_y, empty(x.shape[:1], x.dtype, "cuda"))
    if shared and wants_y:
        parts, to_y = to_y, empty(y.shape, y.dtype, "cuda")
        sum_cuda(flat(parts), flat(to_y), 1, x.shape[0], y.size)
    return to_x, to_y


def _launch(g_x, g_y, g_logz, x, y, shared, lengths, levels, to_x, to_y, logz):
    slopes, B = g_logz is not None, x.shape[0]
    room = [empty(max(B * levels.items, 1), np.float64, "cuda") for _ in range(4 if slopes else 2)]
    m, c, rise, fall = room if slopes else (*room, room[0], room[0])  # not looked at
    e = empty(max(B * levels.items, 1), np.int64, "cuda")
    down, up, up_x = levels.counts
    _infer_cuda[B, levels.threads](
        flat(x), flat(y), 0 if shared else levels.y, flat(lengths), *[flat(x if g is None else g) for g in (g_x, g_y, g_logz)],
        int(slopes), levels.sums, levels.down, down, levels.uses, levels.slots, levels.up, up_x if to_y is None else up,
        levels.items, levels.x, levels.y, m, e, c, rise, fall, flat(to_x), flat(to_x if to_y is None else to_y), flat(logz))


# ---------------------------------------------------------------------------------------------------------------------
# the kernel. As on the CPU all is float64 inside, and v = m 2^e. Of sentence b the numbers stand at `at` = b items on;
# c and fall of an item that is a sum hold its c / m and fall / m, which is what its factors ask for
# ---------------------------------------------------------------------------------------------------------------------
def _libdevice():
    device.numba_cuda()
    return importlib.import_module("numba.cuda.libdevice")


as_float = Later(lambda: (lambda bits: np.int64(bits).view(np.float64)) if SIMULATED else _libdevice().longlong_as_double)
as_bits = Later(lambda: (lambda x: np.float64(x).view(np.int64)) if SIMULATED else _libdevice().double_as_longlong)


@cuda_function
def power(n):
    """2^n for an int64 n, by writing the exponent's bits; 0 below -1022, and 2^1023 above 1023, where it meets m = 0."""
    n = n if n < 1023 else np.int64(1023)
    n = n if n > -1023 else np.int64(-1023)
    return as_float((n + 1023) << 52)


@cuda_function
def split(score, m, e, i):
    """e^score = m 2^e with the whole number e next below score / ln 2, at place i."""
    x = np.float64(score)
    if x != x or x == -INFINITY:
        m[i], e[i] = x if x != x else np.float64(0), ZERO  # a nan stays one
    else:
        x = LARGEST if x > LARGEST else -LARGEST if x < -LARGEST else x
        n = np.int64(x * LOG2_E)
        n = n - 1 if n > x * LOG2_E else n
        m[i], e[i] = cuda_exp((x - n * LN2_HIGH) - n * LN2_LOW), n


@cuda_function
def add_scaled(totals, highs, leans, t, total, high, lean):
    """Add the numbers (total, lean) 2^high to those of place t, and scale both by the larger exponent."""
    top = high if high > highs[t] else highs[t]
    totals[t] = totals[t] * power(highs[t] - top) + total * power(high - top)
    leans[t] = leans[t] * power(highs[t] - top) + lean * power(high - top)
    highs[t] = top


@cuda_function
def go_down(sums, begin, end, lanes, m, e, rise, at, slopes, totals, highs, leans, t):
    """The sums of a level: v[parent] = sum_k v[a] v[b], and rise[parent] = sum_k v[a] v[b] (rise[a] + rise[b]) / v[parent].
    Lane l of a group adds up k = l, l + lanes, ..., then half of the lanes take over from the other half."""
    lane = t % lanes
    for first in range(begin, end, cuda.blockDim.x // lanes):
        row = first + t // lanes
        total, high, lean = 0.0, np.int64(2 * ZERO), 0.0
        if row < end:
            step_a, step_b = sums[row * 6 + STEP_A], sums[row * 6 + STEP_B]
            a, b = at + sums[row * 6 + FIRST] + lane * step_a, at + sums[row * 6 + SECOND] + lane * step_b
            for _ in range(lane, sums[row * 6 + COUNT], lanes):
                n = e[a] + e[b]
                top = n if n > high else high
                old, new = power(high - top), m[a] * m[b] * power(n - top)
                total = total * old + new
                if slopes != 0:
                    lean = lean * old + new * (rise[a] + rise[b])
                high = top
                a += lanes * step_a
                b += lanes * step_b
        totals[t], highs[t], leans[t] = total, high, lean
        cuda.syncthreads()
        step = lanes // 2
        while step > 0:
            if lane < step:
                add_scaled(totals, highs, leans, t, totals[t + step], highs[t + step], leans[t + step])
            cuda.syncthreads()
            step //= 2
        if lane == 0 and row < end:
            parent, total = at + sums[row * 6 + PARENT], totals[t]
            bits = as_bits(total)
            m[parent] = as_float((bits & 0xFFFFFFFFFFFFF) | 0x3FF0000000000000) if total > 0 else total
            e[parent] = highs[t] + (bits >> 52) - 1023 if total > 0 else ZERO
            if slopes != 0:
                rise[parent] = leans[t] / total if total != 0 else 0.0


@cuda_function
def fetch(uses, x, begin, end, lane, lanes, m, e, c, rise, fall, at, slopes, totals, leans, t):
    """What this lane finds in rows `begin` to `end` of the uses for item x, not yet times m[x]: into `totals` for c,
    and into `leans` for fall, where q (fall[parent] + c[parent] (rise[x] + rise[other] - rise[parent])) is added."""
    chance, lean = 0.0, 0.0
    for use in range(begin, end):
        step_p, step_o = uses[use * 6 + STEP_A], uses[use * 6 + STEP_B]
        p, other = at + uses[use * 6 + FIRST] + lane * step_p, at + uses[use * 6 + SECOND] + lane * step_o
        for _ in range(lane, uses[use * 6 + COUNT], lanes):
            q = m[x] * m[other] * power(e[x] + e[other] - e[p])  # still to be divided by m[p], and c[p] is
            chance += q * c[p]
            if slopes != 0:
                lean += q * (fall[p] + c[p] * (rise[x] + rise[other] - rise[p]))
            p += lanes * step_p
            other += lanes * step_o
    totals[t], leans[t] = chance, lean


@cuda_kernel("T[::1], T[::1], int64, int64[::1], T[::1], T[::1], T[::1], int64, int64[::1], int64[::1], int64, int64[::1], "
             "int64[::1], int64[::1], int64, int64, int64, int64, float64[::1], int64[::1], float64[::1], float64[::1], "
             "float64[::1], T[::1], U[::1], T[::1]",
             types=("float32>float32", "float64>float64", "float32>float64"))
def _infer_cuda(x, y, y_step, lengths, g_x, g_y, g_logz, slopes, sums, down, downs, uses, slots, up, ups, items, X, Y,
                m, e, c, rise, fall, to_x, to_y, logz):
    """A block takes sentence b: it loads the scores, goes down the table, and up again. Its threads share the parts one
    by one, and the sums of a level in groups.

    slopes   0: `to_x`, `to_y` get p; 1: they get the gradients of the scores from g_x, g_y and g_logz
    y_step   from one sentence to the next in y and g_y; 0 where all share y, and then there is no g_y
    """
    totals = cuda.shared.array(THREADS, np.float64)
    leans = cuda.shared.array(THREADS, np.float64)
    highs = cuda.shared.array(THREADS, np.int64)
    t, threads, b = cuda.threadIdx.x, cuda.blockDim.x, cuda.blockIdx.x
    at, one = b * items, X + Y                                       # item X + Y is the number 1
    top = at + one + lengths[b]
    for i in range(t, one, threads):
        split(x[b * X + i] if i < X else y[b * y_step + i - X], m, e, at + i)
        if slopes != 0:
            rise[at + i] = np.float64(g_x[b * X + i] if i < X else g_y[b * y_step + i - X]) if i < X or y_step > 0 else 0.0
    if t == 0:
        m[at + one], e[at + one] = 1.0, 0
        if slopes != 0:
            rise[at + one] = 0.0
    cuda.syncthreads()
    for level in range(downs):
        go_down(sums, down[level * 3], down[level * 3 + 1], down[level * 3 + 2], m, e, rise, at, slopes, totals, highs,
                leans, t)
        cuda.syncthreads()
    if t == 0:
        logz[b] = -INFINITY if m[top] == 0 else cuda_log(m[top]) + (e[top] * LN2_HIGH + e[top] * LN2_LOW)
    for level in range(ups):
        lanes = up[level * 3 + 2]
        lane = t % lanes
        for first in range(up[level * 3], up[level * 3 + 1], threads // lanes):
            slot = first + t // lanes
            mine = slot < up[level * 3 + 1]
            item = at + slots[slot * 3] if mine else at
            fetch(uses, item, slots[slot * 3 + 1] if mine else 0, slots[slot * 3 + 2] if mine else 0, lane, lanes,
                  m, e, c, rise, fall, at, slopes, totals, leans, t)
            cuda.syncthreads()
            step = lanes // 2
            while step > 0:
                if lane < step:
                    totals[t] += totals[t + step]
                    leans[t] += leans[t + step]
                cuda.syncthreads()
                step //= 2
            if mine and lane == 0:
                chance, lean, i = totals[t], leans[t], item - at
                if item == top:
                    chance += 1.0
                    if slopes != 0:
                        lean += g_logz[b]
                if i < X:
                    to_x[b * X + i] = lean if slopes != 0 else chance
                elif i < one:
                    to_y[b * Y + i - X] = lean if slopes != 0 else chance
                else:
                    c[item] = chance / m[item] if m[item] != 0 else 0.0
                    if slopes != 0:
                        fall[item] = lean / m[item] if m[item] != 0 else 0.0
        cuda.syncthreads()
