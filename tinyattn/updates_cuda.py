r"""The optimisers on a card: the rules of `updates.py` once more, by a grid in place of a loop.

One launch updates all parameters of one dtype. What it works on is written in three tables on the card:

    pieces   (P, 2)   block b has up to PIECE elements of parameter pieces[b, 0], from its element pieces[b, 1] on
    places   (N, 4)   the table of `updates.py`: the addresses of parameter and gradient, its start in `kept`, its length
    numbers  (N, k)   the settings of the rule for each parameter

Only the first never changes: a backward pass makes new gradients, so their addresses are new, and a bias correction is
another at each step. Both tables are a few kilobytes, and to send them must not make the host wait for the card.
Numba's ordinary copy may: it comes from pageable memory, for which CUDA promises nothing but that it will have read it
on return, after waiting for all that the card was given before. See `Outbox`, which does not wait. Addresses that
are those of the step before are not sent at all.

Nothing is read back either. The norm of the gradients stays on the card, and the factor that scales them. So the host
learns late that a loss was nan or that a norm was inf, and until then no step may do harm: see `Flag`.
"""
import math
from functools import lru_cache

import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from . import device, updates
from .cuda import SIMULATED, THREADS, cuda, cuda_function, cuda_kernel, flat, simulator, threads_for, zeros
from .cuda import sqrt as cuda_sqrt
from .cuda.kernel import Later
from .updates import ADAM, GRADIENT, LENGTH, MOMENTUM, SGD, START, WEIGHT

PIECE = 12 if SIMULATED else 1024  # elements of one block
BLOCK = 4 if SIMULATED else 256    # its threads
TWO_SUMS = 2 * THREADS             # the length of a shared array for two numbers a thread
DEPTH = 8                          # how many steps the host may be ahead of the card
LOSS, NORM = 1, 2                  # what can raise the flag
CAUSES = {LOSS: "the loss is nan or inf", NORM: "the norm of the gradients is nan or inf"}


def address_of(array):
    """Where an array of a card begins in its memory. An empty one begins nowhere, but 0 would say that there is none."""
    return updates.address_of(array._ary) if SIMULATED else array.__cuda_array_interface__["data"][0] or 1


# ---------------------------------------------------------------------------------------------------------------------
# tables on the card
# ---------------------------------------------------------------------------------------------------------------------
class Outbox:
    """A small array of the host on the card, sent without waiting for either.

    The copy is put in the card's queue, between the kernels before and those after it, and reads page-locked memory when
    its turn comes. Until then nobody may write there; so there are DEPTH such memories, used in turn, and an event
    tells when one has been read. The host waits only when it is that many copies ahead of the card, where the queue
    would hold it up anyway.
    """
    def __init__(self, shape, dtype):
        module = device.numba_cuda()
        self.there = device.empty(shape, dtype, "cuda")
        self.stream = 0 if SIMULATED else module.default_stream()  # 0 would be Numba's ordinary copy
        self.ring = [(module.pinned_array(shape, dtype), module.event()) for _ in range(DEPTH)]
        self.last = None

    def send(self, array):
        """The array on the card; it is the same at each call, and holds these numbers for all kernels launched next."""
        if self.last is None or not np.array_equal(self.last, array):
            self.ring.append(self.ring.pop(0))
            self.last, was_read = self.ring[-1]
            was_read.synchronize()
            self.last[...] = array
            self.there.copy_to_device(self.last, stream=self.stream)
            was_read.record(self.stream)
        return self.there


class Places:
    """The work on arrays of these sizes cut into pieces, and the table of where they lie."""

    def __init__(self, sizes):
        plan = [(row, first) for row, n in enumerate(sizes) for first in range(0, n, PIECE)]
        self.count = len(plan)
        self.pieces = device.to_device(np.array(plan or [(0, 0)], np.int64), "cuda")
        self.box = Outbox((len(sizes), 4), np.int64)


class CardTable(updates.Table):
    """All parameters of one dtype on a card. `kept` is there too, and the slots have copies of their parts once fetched."""
    device = "cuda"
    address = staticmethod(address_of)

    def __init__(self, who, slots, dtype):
        super().__init__(who, slots, dtype)
        self.work, self.box, self.flag = Places(self.places[:, LENGTH].tolist()), None, None
        self.eras = []  # [(number of a step, the slots that were active from it on)], since the flag was last seen down
        self.stow()

    def fetch(self):
        kept = self.kept.copy_to_host().reshape(-1)[:math.prod(self.shape)].reshape(self.shape)
        for slot, start, size in zip(self.slots, *self.places[:, START:].T.tolist(), strict=True):
            slot.kept = kept[:, start:start + size]

    def stow(self):
        kept = np.concatenate([s.kept for s in self.slots], axis=1)
        self.shape = kept.shape
        # A kernel takes no empty array, but from this one also the type.
        self.kept = device.to_device(kept if kept.size else np.zeros((1, 1), kept.dtype), "cuda")
        for slot in self.slots:
            slot.kept = None

    def step(self, rule, nanoseconds, numbers):
        if not self.eras or self.eras[-1][1] is not self.active:
            self.eras.append((self.flag.step, self.active))
        super().step(rule, nanoseconds, numbers)

    def apply(self, rule, nanoseconds, numbers):
        if rule == ADAM:
            numbers[:, 5] = 1 / numbers[:, 5]  # the loop of the CPU does this itself, in float64 too
        shape = len(self.slots), numbers.shape[1]
        if self.box is None:
            self.box = Outbox(shape, self.kept.dtype)
        numbers = np.broadcast_to(numbers.astype(self.kept.dtype), shape)
        _update_cuda[self.work.count, BLOCK](self.work.pieces, self.work.box.send(self.places), self.box.send(numbers),
                                             self.kept, self.flag.array, rule)

    def uncount(self, halted, last):
        """The flag was looked at after step number `last`. It is up since step `halted`, or None: uncount what was held up."""
        if halted is None:
            del self.eras[:-1]
            return
        self.settle()
        for first, active in reversed(self.eras):
            for slot in active:
                slot.steps -= max(0, last + 1 - max(first, halted))
            last = min(last, first - 1)
        self.eras = [era for era in self.eras if era[0] < halted]


class Flag:
    """Has a step gone wrong? Two numbers on the card: the cause, 0 if none, and the number of that step.

    The kernels that see a nan or inf raise the flag, and it stays up. Those that update look at it first, and leave
    weights and memory as they are while it is up. So the host need not look at each step.
    """
    def __init__(self):
        self.array, self.step = zeros((2,), np.int64), 0  # step: the number of the one under way

    def guard(self, loss, step):
        """Raise it if this loss, an array of one element, is nan or inf."""
        _guard_cuda[1, 1](flat(loss), self.array, step)

    def lower(self):
        self.array.copy_to_device(zeros((2,), np.int64))

    def read(self):
        """None, or (step, what went wrong). Waits for the card."""
        cause, step = self.array.copy_to_host().tolist()
        return (step, CAUSES[cause]) if cause else None


# ---------------------------------------------------------------------------------------------------------------------
# the rules
# ---------------------------------------------------------------------------------------------------------------------
def _on_card(typing, address, n, like):
    """The n floats at an address as an array of the type of `like`. The memory is the card's global one: to say so makes
    the plain load and store instructions of it."""
    kind = types.Array(like.dtype, 1, "C")

    def code(context, builder, signature, args):
        from llvmlite import ir
        from numba.np.arrayobj import populate_array
        array = context.make_array(kind)(context, builder)
        element = context.get_data_type(like.dtype)
        there = builder.inttoptr(args[0], ir.PointerType(element, addrspace=1))
        size = context.get_constant(types.intp, like.dtype.bitwidth // 8)
        populate_array(array, data=builder.addrspacecast(there, array.data.type, "generic"),
                       shape=cgutils.pack_array(builder, [args[1]]), strides=cgutils.pack_array(builder, [size]),
                       itemsize=size, meminfo=None)
        return array._getvalue()
    return kind(types.int64, types.int64, like), code


def _simulated(address, n, like):
    return simulator.at_address(updates.floats_at(address, n, like))


floats_at = Later(lambda: _simulated if SIMULATED else intrinsic(_on_card))


@cuda_kernel("int64[:, ::1], int64[:, ::1], T[:, ::1], T[:, ::1], int64[::1], int64")
def _update_cuda(pieces, places, numbers, kept, flag, rule):
    """Apply a rule to all parameters of a table. Block b has piece b, its threads lie side by side on it: thread t takes
    the elements t, t + threads, ... It does nothing where there is no gradient, or while the flag is up."""
    i, first = pieces[cuda.blockIdx.x, 0], pieces[cuda.blockIdx.x, 1]
    if flag[0] != 0 or places[i, GRADIENT] == 0:
        return
    start, last = places[i, START], places[i, LENGTH]
    w = floats_at(places[i, WEIGHT], last, kept)
    g = floats_at(places[i, GRADIENT], last, kept)
    last = last if last < first + PIECE else first + PIECE
    first += cuda.threadIdx.x
    if rule == SGD:
        _sgd(w, g, numbers, i, first, last)
    elif rule == MOMENTUM:
        _momentum(w, g, kept, start, numbers, i, first, last)
    elif rule == ADAM:
        _adam(w, g, kept, start, numbers, i, first, last)
    else:
        _adadelta(w, g, kept, start, numbers, i, first, last)


@cuda_function
def _sgd(w, g, numbers, i, first, last):
    """numbers: lr, pull.      w -= lr (g + pull w)"""
    lr, pull = numbers[i, 0], numbers[i, 1]
    for j in range(first, last, cuda.blockDim.x):
        w[j] -= lr * (g[j] + pull * w[j])


@cuda_function
def _momentum(w, g, kept, start, numbers, i, first, last):
    """numbers: lr, pull, momentum, nesterov (0 or 1).

    g' = g + pull w;   m = momentum m + g';   w -= lr m, or with nesterov   w -= lr (g' + momentum m)
    """
    lr, pull, momentum, nesterov = numbers[i, 0], numbers[i, 1], numbers[i, 2], numbers[i, 3] > 0
    for j in range(first, last, cuda.blockDim.x):
        x = w[j]
        at = g[j] + pull * x
        m = momentum * kept[0, start + j] + at
        kept[0, start + j] = m
        w[j] = x - lr * (at + momentum * m if nesterov else m)


@cuda_function
def _adam(w, g, kept, start, numbers, i, first, last):
    """numbers: b1, b2, 1 - b1, 1 - b2, rate = lr / (1 - b1^t), root = 1 / sqrt(1 - b2^t), eps, shrink, pull.

    g' = g + pull w;   m = b1 m + (1 - b1) g';   v = b2 v + (1 - b2) g'^2;   w = shrink w - rate m / (sqrt(v) root + eps)
    """
    b1, b2, c1, c2, rate = numbers[i, 0], numbers[i, 1], numbers[i, 2], numbers[i, 3], numbers[i, 4]
    root, eps, shrink, pull = numbers[i, 5], numbers[i, 6], numbers[i, 7], numbers[i, 8]
    for j in range(first, last, cuda.blockDim.x):
        x = w[j]
        at = g[j] + pull * x
        m = b1 * kept[0, start + j] + c1 * at
        v = b2 * kept[1, start + j] + c2 * (at * at)
        kept[0, start + j], kept[1, start + j] = m, v
        w[j] = shrink * x - rate * (m / (cuda_sqrt(v) * root + eps))


@cuda_function
def _adadelta(w, g, kept, start, numbers, i, first, last):
    """numbers: lr, rho, 1 - rho, eps, pull.

    g' = g + pull w;   s = rho s + (1 - rho) g'^2;   d = sqrt(u + eps) / sqrt(s + eps) g';   u = rho u + (1 - rho) d^2

    w -= lr d
    """
    lr, rho, c, eps, pull = numbers[i, 0], numbers[i, 1], numbers[i, 2], numbers[i, 3], numbers[i, 4]
    for j in range(first, last, cuda.blockDim.x):
        x, u = w[j], kept[1, start + j]
        at = g[j] + pull * x
        s = rho * kept[0, start + j] + c * (at * at)
        d = cuda_sqrt(u + eps) / cuda_sqrt(s + eps) * at
        kept[0, start + j], kept[1, start + j] = s, rho * u + c * (d * d)
        w[j] = x - lr * d


@cuda_kernel("T[::1], int64[::1], int64")
def _guard_cuda(loss, flag, step):
    """One thread: raise the flag, if it is down, where the loss is nan or inf (then x - x is nan)."""
    none = loss[0] - loss[0]
    if none != none and flag[0] == 0:
        flag[0], flag[1] = LOSS, step


# ---------------------------------------------------------------------------------------------------------------------
# the norm of all gradients, and their scaling
# ---------------------------------------------------------------------------------------------------------------------
BIG, SMALL, LARGE = 2.0**400, 2.0**-600, 2.0**600


def clip(tables, most, flag, step):
    """Scale the gradients of these tables in place so that their common norm is at most `most`. Returns the norm of
    before, an array on the card; where it is nan or inf, the flag is raised and the gradients are left as they are."""
    work = [(t.work, t.work.box.send(t.places), t.kept) for t in tables]
    norm, scale = _norm(work, most, flag, step)
    if most < np.inf:
        for w, places, like in work:
            _scale_cuda[w.count, BLOCK](w.pieces, places, like, scale, GRADIENT)
    return norm


def clipped(gradients, most, flag=None, step=0):
    """(the norm of all these arrays, the factor to scale them by, [scaled copies]), on the card, as `clip` has them."""
    by_dtype, copies, work = {}, [device.empty(g.shape, g.dtype, "cuda") for g in gradients], []
    for g, copy in zip(gradients, copies, strict=True):
        by_dtype.setdefault(g.dtype, []).append((address_of(copy), address_of(g), 0, g.size))
    for dtype, rows in by_dtype.items():
        w = _places(tuple(row[LENGTH] for row in rows), dtype)
        work.append((w, w.box.send(np.array(rows)), device.empty((1, 1), dtype, "cuda")))
    norm, scale = _norm(work, most, flag, step)
    for w, places, like in work:
        _scale_cuda[w.count, BLOCK](w.pieces, places, like, scale, WEIGHT)
    return norm, scale, copies


@lru_cache(maxsize=32)
def _places(sizes, dtype):
    """Kept: whoever clips the gradients of a model does so again. (One for each dtype, since one has one table.)"""
    return Places(sizes)


def _norm(work, most, flag, step):
    """The norm and the factor, two arrays of one number each; without a flag none is raised. The squares of each piece are added
    up by a block, then those sums by another: always in this order, so with the same bits."""
    count = sum(w.count for w, *_ in work)
    parts = device.empty((max(1, count), 2), np.float64, "cuda")
    norm, scale = device.empty((), np.float64, "cuda"), device.empty((1,), np.float64, "cuda")
    raised, at = (flag.array, step) if flag else (device.empty(2, np.int64, "cuda"), 0), 0
    for w, places, like in work:
        _squares_cuda[w.count, BLOCK](w.pieces, places, like, parts, at)
        at += w.count
    _norm_cuda[1, threads_for(count, most=THREADS)](parts, flat(norm), scale, *raised, count, float(most))
    return norm, scale


@cuda_kernel("int64[:, ::1], int64[:, ::1], T[:, ::1], float64[:, ::1], int64")
def _squares_cuda(pieces, places, like, parts, at):
    """parts[at + b] = the sum of g^2 over piece b, by block b: thread t adds elements t, t + threads, .., then the threads
    together in a tree. In float64 whatever the type of g. There are two sums, for beyond BIG the square is none that
    float64 can hold: of the squares of ordinary numbers, and of those of (SMALL g) for the big."""
    sums = cuda.shared.array(TWO_SUMS, np.float64)
    b, t = cuda.blockIdx.x, cuda.threadIdx.x
    i, first = pieces[b, 0], pieces[b, 1]
    total, large = 0.0, 0.0
    if places[i, GRADIENT] != 0:
        last = places[i, LENGTH]
        g = floats_at(places[i, GRADIENT], last, like)
        last = last if last < first + PIECE else first + PIECE
        for j in range(first + t, last, cuda.blockDim.x):
            x = np.float64(g[j])
            if abs(x) > BIG:
                x *= SMALL
                large += x * x
            else:
                total += x * x
    _add_up(sums, total, large)
    if t == 0:
        parts[at + b, 0], parts[at + b, 1] = sums[0], sums[THREADS]


@cuda_kernel("float64[:, ::1], float64[::1], float64[::1], int64[::1], int64, int64, float64", types=("float64",))
def _norm_cuda(parts, norm, scale, flag, step, n, most):
    """One block: norm = sqrt(sum of all parts), thread t adding parts t, t + threads, ...; scale = most / (norm + 1e-6),
    or 1 if that is smaller. A norm of nan or inf scales nothing, and raises the flag; but no step is number 0."""
    sums = cuda.shared.array(TWO_SUMS, np.float64)
    total, large = 0.0, 0.0
    for p in range(cuda.threadIdx.x, n, cuda.blockDim.x):
        total += parts[p, 0]
        large += parts[p, 1]
    _add_up(sums, total, large)
    if cuda.threadIdx.x == 0:
        total, large = sums[0], sums[THREADS]
        found = cuda_sqrt(total) if large == 0 else cuda_sqrt(large + total * SMALL * SMALL) * LARGE
        factor = most / (found + 1e-6)
        norm[0] = found
        scale[0] = factor if factor < 1 and found < np.inf else 1.0
        if not found < np.inf and step > 0 and flag[0] == 0:
            flag[0], flag[1] = NORM, step


@cuda_function
def _add_up(sums, total, large):
    """sums[0] and sums[THREADS] = the sum over the threads of the block of `total` and of `large`, in a tree."""
    t, step = cuda.threadIdx.x, cuda.blockDim.x // 2
    sums[t], sums[THREADS + t] = total, large
    cuda.syncthreads()
    while step > 0:
        if t < step:
            sums[t] += sums[t + step]
            sums[THREADS + t] += sums[THREADS + t + step]
        cuda.syncthreads()
        step //= 2


@cuda_kernel("int64[:, ::1], int64[:, ::1], T[:, ::1], float64[::1], int64")
def _scale_cuda(pieces, places, like, scale, column):
    """out = scale g, for every gradient g, out lying where that column of the table says: block b does piece b. Where
    that is in place, and the scale 1, there is nothing to do."""
    i, first = pieces[cuda.blockIdx.x, 0], pieces[cuda.blockIdx.x, 1]
    if places[i, GRADIENT] == 0 or (column == GRADIENT and scale[0] == 1):
        return
    last, factor = places[i, LENGTH], like.dtype.type(scale[0])
    g = floats_at(places[i, GRADIENT], last, like)
    out = floats_at(places[i, column], last, like)
    last = last if last < first + PIECE else first + PIECE
    for j in range(first + cuda.threadIdx.x, last, cuda.blockDim.x):
        out[j] = factor * g[j]
