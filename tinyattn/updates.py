r"""The loops of the optimisers. One call updates all parameters of one dtype, however many there are. The same on a card is
in `updates_cuda.py`, rule by rule.

A *table* says where they lie in memory: row i holds the address of parameter i, the address of its gradient (0: it has none
and is left alone), its first place in the optimiser's own memory, and its length. That memory is `kept` (kinds, total): for Adam
all m one behind the other, and all v. The work is cut along it into chunks, whatever the number of threads.
"""
import ctypes
import math
import weakref
from itertools import repeat

import numpy as np
from numba import carray, prange, types
from numba.extending import intrinsic, overload

from .autograd import _changes, _memory, clock
from .device import JIT, device_of, kernel, launch

ndarray = np.ndarray
CHUNK = 16_384  # elements; the unit of parallel work
WEIGHT, GRADIENT, START, LENGTH = 0, 1, 2, 3  # the columns of a table
ABSENT = object()                             # stands for the gradient that a parameter does not have
SGD, MOMENTUM, ADAM, ADADELTA = 0, 1, 2, 3    # the rules


def address_of(array):
    """Where a C-contiguous array begins in memory."""
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(array))
    except (TypeError, ValueError):  # read-only or empty; this takes four times as long
        return array.__array_interface__["data"][0]


def floats_at(address, n, like):
    """The n floats at an address as an array of the type of `like`. This body is what runs without the JIT."""
    kind = ctypes.c_float if like.dtype == np.float32 else ctypes.c_double
    return np.frombuffer((kind * int(n)).from_address(int(address)), like.dtype) if n else like.ravel()[:0]


if JIT:
    @intrinsic
    def _pointer(typing, address, like):
        """The number `address` as a pointer to elements of `like`."""
        def code(context, builder, signature, args):
            return builder.inttoptr(args[0], context.get_value_type(signature.return_type))
        return types.CPointer(like.dtype)(types.int64, like), code

    @overload(floats_at)
    def _floats_at(address, n, like):
        return lambda address, n, like: carray(_pointer(address, like), (n,))


# ---------------------------------------------------------------------------------------------------------------------
# who lies where
# ---------------------------------------------------------------------------------------------------------------------
class Slot:
    """One parameter, the array that holds it, and its share of its table's memory, a view (kinds, size). Of memory on a card
    that share is None, or a copy."""
    __slots__ = ("tensor", "name", "array", "kept", "steps")

    def __init__(self, tensor, name, kinds):
        self.tensor, self.name, self.steps = tensor, name, 0
        self.kept = np.zeros((kinds, tensor.size), tensor.dtype)
        self.bind()

    def bind(self):
        """Take hold of the parameter's memory, which `Module.to` may have replaced."""
        self.array = array = self.tensor.array
        if type(array) is ndarray and not (array.flags.c_contiguous and array.flags.writeable):
            raise ValueError(f"optimiser: parameter {self.name} shows another Tensor's memory; give its owner")


class Table:
    """All parameters of one dtype on one device, and where they and their gradients lie: `places`, see above.

    At each step it is compared with what the Tensors hold now; only where that is another array is it written anew.
    """
    device = "cpu"
    address = staticmethod(address_of)

    def __init__(self, who, slots, dtype):
        self.who, self.slots, n = who, slots, len(slots)
        sizes = [s.array.size for s in slots]
        self.places = np.zeros((n, 4), np.int64)
        self.places[:, START] = np.cumsum([0, *sizes[:-1]])
        self.places[:, LENGTH] = sizes
        self.kept = np.concatenate([s.kept for s in slots], axis=1, dtype=dtype)
        self.addresses = [0] * n       # of the gradients
        self.copies = [None] * n       # of gradients that are not C-contiguous or read-only,
        self.foreign = set()           # and their numbers: they cannot be scaled in place
        self.active, self.since = [], 0  # the slots that have a gradient; steps made since they are the ones
        for slot, start, size in zip(slots, self.places[:, START].tolist(), sizes, strict=True):
            slot.kept = self.kept[:, start:start + size]
        self.bind()

    def bind(self):
        """Take hold of every parameter's memory."""
        for slot, size in zip(self.slots, self.places[:, LENGTH].tolist(), strict=True):
            slot.bind()
            if slot.array.size != size:
                raise ValueError(f"{self.who}: parameter {slot.name} has {slot.array.size} elements now, and had {size}")
        self.settle()
        self.seen = [_never] * len(self.slots)  # weak references to gradients: no memory is kept alive
        self.active, self.there = [], None
        self.rows = [(s.tensor, s.array) for s in self.slots]
        self.places[:, WEIGHT] = [self.address(s.array) for s in self.slots]

    def look(self):
        """Bring the table up to date with the gradients. False if a parameter is of another dtype or elsewhere now."""
        seen, moved = self.seen, False
        for i, (t, array) in enumerate(self.rows):
            if t.array is not array:
                if t.array.dtype != array.dtype or device_of(t.array) != self.device:
                    return False
                self.bind()
                return self.look()
            g = t.grad
            if (ABSENT if g is None else g.array) is not seen[i]():
                self.addresses[i] = self._find(i, g)
                moved = True
        if moved:
            self.places[:, GRADIENT] = self.addresses
            there = [address != 0 for address in self.addresses]
            if there != self.there:
                self.settle()
                self.there, self.active = there, [s for s, yes in zip(self.slots, there, strict=True) if yes]
                tensors = [s.tensor for s in self.active]
                self.marks = [_memory(t.array) for t in tensors], [t.name for t in tensors], [t.shape for t in tensors]
        return True

    def _find(self, i, grad):
        """The address of the gradient of slot i, 0 if there is none."""
        t, w = self.rows[i]
        self.seen[i], self.copies[i] = _never, None
        self.foreign.discard(i)
        if grad is None:
            self.seen[i] = _absent
            return 0
        g = grad.array
        if device_of(g) != self.device or g.dtype != w.dtype or g.size != w.size:
            raise ValueError(f"{self.who}: parameter {self.slots[i].name} {t.shape} {t.dtype} has a gradient of "
                             f"shape {grad.shape} {grad.dtype} on {grad.device}")
        if self.device != "cpu" or g.flags.carray:  # on a card there are no others
            self.seen[i] = weakref.ref(g)
        else:
            self.foreign.add(i)
            self.copies[i] = g = np.array(g, order="C")
        return self.address(g)

    def settle(self):
        """Give each slot its own number of steps."""
        for slot in self.active:
            slot.steps += self.since
        self.since = 0

    def step(self, rule, nanoseconds, numbers):
        """One update of every slot that has a gradient. numbers: the rule's settings, a function of a slot's steps."""
        if not self.active:
            return
        self.since += 1
        first, since = self.active[0].steps, self.since
        if since == 1:
            self.together = all(s.steps == first for s in self.active)
        rows = [numbers(first + since)] if self.together else [numbers(s.steps + since) for s in self.slots]
        self.apply(rule, nanoseconds, np.array(rows, np.float64))
        self.changed()

    def apply(self, rule, nanoseconds, numbers):
        update(rule, nanoseconds, self.places, numbers, self.kept)

    def changed(self):
        """As `autograd.changed`, for all parameters that were updated."""
        clock[0] += 1
        memories, names, shapes = self.marks
        _changes.update(zip(memories, zip(repeat(clock[0]), names, shapes)))

    def fetch(self):
        """Give each slot its `kept` as memory of the host, where on the CPU it is."""

    def stow(self):
        """Put what the slots have in `kept` to where the kernels work."""


def _absent():
    return ABSENT


def _never():
    return None


# ---------------------------------------------------------------------------------------------------------------------
# from a table to the rules
# ---------------------------------------------------------------------------------------------------------------------
def update(rule, nanoseconds, table, numbers, kept):
    """Apply a rule to all parameters of a table. numbers (N or 1, ...): its settings, a row a parameter or one for all;
    nanoseconds: about what an element takes."""
    total = kept.shape[1]
    args = (rule, table, numbers, kept)
    launch(total * nanoseconds, _update, (*args, 0, total), _update_parallel, args)


@kernel
def _update(rule, table, numbers, kept, begin, end):
    """For each parameter of the table that has elements among `begin` to `end` of the common memory, and a gradient: the
    rule on that piece of it."""
    size = kept.itemsize
    for i in range(len(table)):
        start = table[i, START]
        first, last = max(begin - start, 0), min(end - start, table[i, LENGTH])
        if first >= last or table[i, GRADIENT] == 0:
            continue
        w = floats_at(table[i, WEIGHT] + first * size, last - first, kept)
        g = floats_at(table[i, GRADIENT] + first * size, last - first, kept)
        own = numbers[min(i, len(numbers) - 1)]
        if rule == SGD:
            _sgd(w, g, own)
            continue
        m = kept[0][start + first:start + last]
        if rule == MOMENTUM:
            _momentum(w, g, m, own)
        elif rule == ADAM:
            _adam(w, g, m, kept[1][start + first:start + last], own)
        else:
            _adadelta(w, g, m, kept[1][start + first:start + last], own)


@kernel(parallel=True)
def _update_parallel(rule, table, numbers, kept):
    total = kept.shape[1]
    for c in prange(-(-total // CHUNK)):
        _update(rule, table, numbers, kept, c * CHUNK, min(total, (c + 1) * CHUNK))


# ---------------------------------------------------------------------------------------------------------------------
# the rules, for one piece of one parameter. Numbers are brought to the type of w: float32 work would else be done in float64
# ---------------------------------------------------------------------------------------------------------------------
@kernel
def _sgd(w, g, numbers):
    """numbers: lr, pull.      w -= lr (g + pull w)"""
    lr, pull = w.dtype.type(numbers[0]), w.dtype.type(numbers[1])
    for i in range(len(w)):
        w[i] -= lr * (g[i] + pull * w[i])


@kernel
def _momentum(w, g, m, numbers):
    """numbers: lr, pull, momentum, nesterov (0 or 1).

    g' = g + pull w;   m = momentum m + g';   w -= lr m, or with nesterov   w -= lr (g' + momentum m)
    """
    one = w.dtype.type
    lr, pull, momentum = one(numbers[0]), one(numbers[1]), one(numbers[2])
    if numbers[3] != 0:
        for i in range(len(w)):
            at = g[i] + pull * w[i]
            m[i] = momentum * m[i] + at
            w[i] -= lr * (at + momentum * m[i])
    else:
        for i in range(len(w)):
            m[i] = momentum * m[i] + (g[i] + pull * w[i])
            w[i] -= lr * m[i]


@kernel
def _adam(w, g, m, v, numbers):
    """numbers: b1, b2, 1 - b1, 1 - b2, rate = lr / (1 - b1^t), root = sqrt(1 - b2^t), eps, shrink, pull.

    g' = g + pull w;   m = b1 m + (1 - b1) g';   v = b2 v + (1 - b2) g'^2;   w = shrink w - rate m / (sqrt(v) / root + eps)
    """
    one = w.dtype.type
    b1, b2, c1, c2 = one(numbers[0]), one(numbers[1]), one(numbers[2]), one(numbers[3])
    rate, root, eps, shrink, pull = one(numbers[4]), one(1 / numbers[5]), one(numbers[6]), one(numbers[7]), one(numbers[8])
    for i in range(len(w)):
        at = g[i] + pull * w[i]
        m[i] = b1 * m[i] + c1 * at
        v[i] = b2 * v[i] + c2 * (at * at)
        w[i] = shrink * w[i] - rate * (m[i] / (math.sqrt(v[i]) * root + eps))


@kernel
def _adadelta(w, g, s, u, numbers):
    """numbers: lr, rho, 1 - rho, eps, pull.

    g' = g + pull w;   s = rho s + (1 - rho) g'^2;   d = sqrt(u + eps) / sqrt(s + eps) g';   u = rho u + (1 - rho) d^2

    w -= lr d
    """
    one = w.dtype.type
    lr, rho, c, eps, pull = one(numbers[0]), one(numbers[1]), one(numbers[2]), one(numbers[3]), one(numbers[4])
    for i in range(len(w)):
        at = g[i] + pull * w[i]
        s[i] = rho * s[i] + c * (at * at)
        d = math.sqrt(u[i] + eps) / math.sqrt(s[i] + eps) * at
        u[i] = rho * u[i] + c * (d * d)
        w[i] -= lr * d


# ---------------------------------------------------------------------------------------------------------------------
# the norm of all gradients, and their scaling
# ---------------------------------------------------------------------------------------------------------------------
def squares_of(table, like):
    """The sum of g^2 of each gradient g of a table, in float64, 0 where there is none. `like`: an array of their dtype."""
    sums = np.empty(len(table))
    args = (table, like, sums)
    launch(like.shape[1] * 0.15, _squares, (*args, 0, len(table)), _squares_parallel, args)
    return sums.tolist()


@kernel
def _squares(table, like, sums, first, last):
    for i in range(first, last):
        there = table[i, GRADIENT] != 0
        sums[i] = sum_of_squares(floats_at(table[i, GRADIENT], table[i, LENGTH], like)) if there else 0.0


@kernel(parallel=True)
def _squares_parallel(table, like, sums):
    for i in prange(len(table)):
        _squares(table, like, sums, i, i + 1)


@kernel(reduces=True)
def sum_of_squares(g):
    """sum_i g_i^2 in float64, whatever the type of g."""
    total = 0.0
    for i in range(len(g)):
        x = np.float64(g[i])
        total += x * x
    return total


@kernel
def scale_in_place(table, like, scale):
    """g *= scale for every gradient g of a table."""
    for i in range(len(table)):
        if table[i, GRADIENT] != 0:
            _scale(floats_at(table[i, GRADIENT], table[i, LENGTH], like), like.dtype.type(scale))


@kernel
def _scale(g, scale):
    for i in range(len(g)):
        g[i] *= scale
