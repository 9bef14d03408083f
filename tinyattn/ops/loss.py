r"""Cross-entropy: how many nats a model spends on the classes that were right.

    loss_n = -log softmax(x_n)[t_n] = (m - x_n[t_n]) + log sum_v e^(x_n[v] - m),        m = max_v x_n[v]

With label smoothing a share `a` of each target is spread over all V classes: t = (1 - a) onehot + a / V.
"""
import math

import numpy as np
from numba import prange

from ..autograd import Op
from ..cuda import THREADS, cuda, cuda_kernel, flat, number, threads_for
from ..cuda import exp as cuda_exp
from ..cuda import log as cuda_log
from ..cuda.rows import block_pair, block_sum, grid_of_rows, one_more
from ..device import empty, kernel, launch, to_device
from .broadcast import ShapeError
from .shared import exp_below, first_row, log, row_max, row_sum, row_sum_exp
from .softmax import BLOCK, NARROW, LogSoftmax, _cost, check_float, matrix

CHUNKS = 32


class CrossEntropy(Op):
    r"""The mean over n of -log softmax(logits_n)[target_n].

    logits (..., V) float, target (...) whole numbers in 0 .. V-1, or `ignore_index` where there is nothing to predict.
    reduction: "mean" divides by the number of targets that are not ignored, and gives 0 if there is none left, with
    gradient 0; "sum"; "none" gives the loss of each target, 0 where it is ignored.
    A target out of range raises IndexError.
    """
    tex = r"-\log\mathrm{{softmax}}({logits})_{{{target}}}"

    def __init__(self, ignore_index=-100, label_smoothing=0.0, reduction="mean"):
        if reduction not in ("mean", "sum", "none"):
            raise ValueError(f"cross_entropy: reduction is 'mean', 'sum' or 'none', got {reduction!r}")
        if not 0.0 <= label_smoothing <= 1.0:
            raise ValueError(f"cross_entropy: label_smoothing lies in 0..1, got {label_smoothing}")
        self.ignore_index, self.label_smoothing, self.reduction = ignore_index, label_smoothing, reduction

    def _check(self, logits, target):
        """Check the inputs; the targets as N int64 on the host, which has them still if it sent them to the card."""
        check_float(self.name, logits)
        if target.dtype.kind not in "iu":
            raise TypeError(f"{self.name}: expected whole numbers as targets, got {target.dtype}")
        if logits.ndim == 0 or logits.shape[:-1] != target.shape:
            raise ShapeError(f"{self.name}: logits of shape (..., V) = {logits.shape} need targets of shape "
                             f"(...) = {logits.shape[:-1]}, got {target.shape}")
        t, classes = to_device(target, "cpu"), logits.shape[-1]
        t = np.array(t) if t is not target else t  # what is remembered is read-only, for Numba another type
        t = np.ascontiguousarray(t, np.int64).reshape(-1)
        bad = _first_outside(t, classes, self.ignore_index)
        if bad >= 0:
            where = tuple(int(i) for i in np.unravel_index(bad, target.shape)) if target.ndim else ()
            raise IndexError(f"{self.name}: target {t[bad]} at {where} is out of range for V = {classes} classes "
                             f"(and is not ignore_index = {self.ignore_index})")
        return t

    def _rows(self, logits, target):
        """Check the inputs; logits as a matrix (N, V), target as N int64."""
        t, x = self._check(logits, target), matrix(logits)
        return (x if x.shape[0] == len(t) else x.reshape(len(t), 0)), t  # V = 0

    def cpu(self, logits, target):
        x, t = self._rows(logits, target)
        losses, high, total = empty(len(t), x.dtype), empty(len(t), x.dtype), empty(len(t), x.dtype)
        args = (x, t, self.ignore_index, float(self.label_smoothing), losses, high, total)
        launch(_cost(x), _cross_entropy, (*args, 0, len(t)), _cross_entropy_chunks, args)
        if self.reduction == "none":
            out, count = losses.reshape(target.shape), 1
        else:
            out = empty((), x.dtype)
            count = _total(losses, t, self.ignore_index, self.reduction == "mean", out)
        if self.recorded:
            self.saved = high, total, t, count
        return out

    def cpu_grad(self, g, y, logits, target):
        high, total, t, count = self.saved
        x = matrix(logits)
        dx = empty(logits.shape, logits.dtype)
        args = (np.ascontiguousarray(g).reshape(-1), x, t, self.ignore_index, float(self.label_smoothing), high, total, count,
                dx.reshape(x.shape))
        launch(_cost(x), _cross_entropy_grad, (*args, 0, len(x)), _cross_entropy_grad_chunks, args)
        return dx, None

    def cuda(self, logits, target):
        n, classes, kind = len(self._check(logits, target)), logits.shape[-1], logits.dtype
        losses, high, total = (empty(target.shape, kind, "cuda") for _ in range(3))
        (_, threads), _ = grid_of_rows(1, classes, 1)
        _cross_entropy_cuda[n, threads](flat(logits), flat(target), self.ignore_index, kind.type(self.label_smoothing),
                                        flat(losses), flat(high), flat(total), classes)
        out, count = losses, number(1, kind)
        if self.reduction != "none":
            out, count = empty((), kind, "cuda"), empty((), kind, "cuda")
            _total_cuda[1, threads_for(n)](flat(losses), flat(target), self.ignore_index, int(self.reduction == "mean"),
                                           flat(out), flat(count), n)
        if self.recorded:
            self.saved = high, total, count
        return out

    def cuda_grad(self, g, y, logits, target):
        high, total, count = self.saved
        dx, classes, kind = empty(logits.shape, logits.dtype, "cuda"), logits.shape[-1], logits.dtype
        (_, threads), _ = grid_of_rows(1, classes, 1)
        _cross_entropy_grad_cuda[target.size if classes else 0, threads](
            flat(g), flat(logits), flat(target), self.ignore_index, kind.type(self.label_smoothing), flat(high),
            flat(total), flat(count), flat(dx), classes)
        return dx, None

    def composed(self, logits, target):
        t, classes = self._check(logits.array, target.array), logits.shape[-1]
        n, live = len(t), self.result(t != self.ignore_index, device=logits.device)
        logits = logits.reshape(n, classes)
        if (t == self.ignore_index).any():  # an ignored row may hold anything
            logits = logits.where(live.reshape(n, 1), 0.0)
        logp = LogSoftmax()(logits)
        losses = -logp[np.arange(n), np.where(t == self.ignore_index, 0, t)]
        if self.label_smoothing:
            losses = losses * (1 - self.label_smoothing) - logp.mean(axis=-1) * self.label_smoothing
        losses = losses.where(live, 0.0)
        if self.reduction == "none":
            return losses.reshape(*target.shape)
        return losses.sum() / (max(int((t != self.ignore_index).sum()), 1) if self.reduction == "mean" else 1)

    def samples(rng):
        """Several shapes, each reduction, smoothing, ignored targets, all of them ignored, large logits, one class."""
        x, t = rng.normal(size=(3, 4)), np.array([1, 0, 3])
        for reduction in ("mean", "sum", "none"):
            for smoothing in (0.0, 0.3):
                yield {"reduction": reduction, "label_smoothing": smoothing}, (x, t)
        yield {"ignore_index": 0, "label_smoothing": 0.1}, (rng.normal(size=(2, 2, 3)), np.array([[0, 2], [1, 0]]))
        yield {"reduction": "none"}, (rng.normal(size=(2, 2, 3)), np.array([[-100, 2], [1, -100]]))
        yield {}, (x, np.array([-100, -100, -100]))
        yield {}, (np.array([[1e4, 1e4 - 1, -1e4]]), np.array([1]))
        yield {}, (rng.normal(size=(2, 1)), np.array([0, 0]))
        yield {}, (rng.normal(size=3), np.array(2))


# ---------------------------------------------------------------------------------------------------------------------
# the loops
# ---------------------------------------------------------------------------------------------------------------------
@kernel
def _first_outside(target, classes, ignore):
    """The place of the first target that is neither a class nor `ignore`, or -1."""
    for n in range(len(target)):
        if target[n] != ignore and (target[n] < 0 or target[n] >= classes):
            return n
    return -1


@kernel
def _below(a, b):
    return a - b


@kernel(reduces=True)
def _sum_below(x, n, m):
    """sum_v (m - x[n, v]); the differences are taken one by one, or large logits would lose their digits."""
    total = x.dtype.type(0)
    for v in range(x.shape[1]):
        total += _below(m, x[n, v])
    return total


@kernel
def _cross_entropy(x, target, ignore, smoothing, losses, high, total, first, last):
    """For each row n of x (N, V): its largest logit m and s = sum_v e^(x[n, v] - m), both kept for the way back.

    losses[n] = log s + (m - (1 - a) x[n, target] - a mean_v x[n, v]), where a is the smoothing; 0 for an ignored target.
    """
    if x.shape[1] < NARROW:
        _highest_and_sums(x, high, total, first, last)
    for n in range(first, last):
        if target[n] == ignore:
            losses[n], high[n], total[n] = 0, 0, 1
            continue
        if x.shape[1] >= NARROW:
            high[n] = row_max(x, n)
            total[n] = row_sum_exp(x, n, high[n])
        m = high[n]
        away = m - x[n, target[n]]
        if smoothing != 0:
            away = x.dtype.type((1 - smoothing) * away + smoothing / x.shape[1] * _sum_below(x, n, m))
        losses[n] = away
    part, sums = losses[first:last], total[first:last]
    for n in range(len(part)):
        part[n] += log(sums[n])


@kernel
def _highest_and_sums(x, high, total, first, last):
    """high[n] = m = max_v x[n, v] and total[n] = sum_v e^(x[n, v] - m). Short rows, so by blocks, as in `softmax._softmax`."""
    step = max(BLOCK // max(x.shape[1], 1), 1)
    e = np.empty((step, x.shape[1]), x.dtype)
    for start in range(first, last, step):
        stop = min(start + step, last)
        for n in range(start, stop):
            m = row_max(x, n)
            for v in range(x.shape[1]):
                e[n - start, v] = x[n, v] - m
            high[n] = m
        _exp_in_place(e[:stop - start].reshape(-1))
        for n in range(start, stop):
            total[n] = row_sum(e, n - start)
            if not -np.inf < high[n] < np.inf:  # inf - inf was nan
                total[n] = row_sum_exp(x, n, high[n])


@kernel
def _exp_in_place(y):
    for j in range(len(y)):
        y[j] = exp_below(y[j])


@kernel(parallel=True)
def _cross_entropy_chunks(x, target, ignore, smoothing, losses, high, total):
    for c in prange(CHUNKS):
        _cross_entropy(x, target, ignore, smoothing, losses, high, total,
                       first_row(c, CHUNKS, len(x)), first_row(c + 1, CHUNKS, len(x)))


@kernel
def _total(losses, target, ignore, mean, out):
    """Add up the losses in float64; divide by the number of targets that count, if `mean`. Returns the divisor."""
    total, count = 0.0, 0
    for n in range(len(losses)):
        if target[n] != ignore:
            total += losses[n]
            count += 1
    divisor = max(count, 1) if mean else 1
    out[()] = total / divisor
    return divisor


@kernel
def _cross_entropy_grad(g, x, target, ignore, smoothing, high, total, count, dx, first, last):
    """For each row n, each class v: dx[n, v] = c (softmax(x[n])[v] - (1 - a) [v = target] - a / V), c = g[n] / count.

    g has one element where the loss is one number, else N. Rows of ignored targets are 0.
    """
    zero = x.dtype.type(0)
    for n in range(first, last):
        if target[n] == ignore:
            for v in range(x.shape[1]):
                dx[n, v] = zero
            continue
        c = x.dtype.type(g[n if len(g) > 1 else 0] / count)
        m, scale = high[n], x.dtype.type(c / total[n])
        spread = x.dtype.type(c * smoothing / x.shape[1])
        for v in range(x.shape[1]):
            dx[n, v] = exp_below(x[n, v] - m) * scale - spread
        dx[n, target[n]] -= x.dtype.type(c * (1 - smoothing))


@kernel(parallel=True)
def _cross_entropy_grad_chunks(g, x, target, ignore, smoothing, high, total, count, dx):
    for c in prange(CHUNKS):
        _cross_entropy_grad(g, x, target, ignore, smoothing, high, total, count, dx,
                            first_row(c, CHUNKS, len(x)), first_row(c + 1, CHUNKS, len(x)))


# ---------------------------------------------------------------------------------------------------------------------
# the same on a card: a block a row, its thread t with the classes t, t + threads, ... See cuda/rows.py
# ---------------------------------------------------------------------------------------------------------------------
@cuda_kernel("T[::1], int64[::1], int64, T, T[::1], T[::1], T[::1], int64")
def _cross_entropy_cuda(x, target, ignore, smoothing, losses, high, total, classes):
    """Block n computes the loss of row n of x. Its threads read the row once, for the largest logit m and the sum of
    e^(x[n, v] - m), which are kept for the way back; once more for the mean of m - x[n, v], where there is smoothing."""
    shared = cuda.shared.array(THREADS, x.dtype)
    n, t, threads = cuda.blockIdx.x, cuda.threadIdx.x, cuda.blockDim.x
    first, zero, one, nothing = n * classes, x.dtype.type(0), x.dtype.type(1), x.dtype.type(-math.inf)
    if target[n] == ignore:  # so it is for all threads of the block
        if t == 0:
            losses[n], high[n], total[n] = zero, zero, one
        return
    m, s = nothing, zero
    for v in range(t, classes, threads):
        m, s = one_more(m, s, x[first + v], one)
    m, s = block_pair(shared, m, s, nothing, t, 1)
    away = m - x[first + target[n]]
    if smoothing != zero:
        apart = zero
        for v in range(t, classes, threads):
            apart += m - x[first + v]
        apart = block_sum(shared, apart, t, 1)
        away = (one - smoothing) * away + smoothing / x.dtype.type(classes) * apart
    if t == 0:
        losses[n], high[n], total[n] = cuda_log(s) + away, m, s


@cuda_kernel("T[::1], int64[::1], int64, int64, T[::1], T[::1], int64")
def _total_cuda(losses, target, ignore, mean, out, count, n):
    """One block adds up the losses, in float64 as on the CPU, and counts the targets that are not ignored, so that the
    host need not know how many there are. out = the sum, divided by that number if `mean`; count = the divisor."""
    shared = cuda.shared.array(THREADS, np.float64)
    t, threads = cuda.threadIdx.x, cuda.blockDim.x
    total, live = np.float64(0), np.float64(0)
    for i in range(t, n, threads):
        if target[i] != ignore:
            total += losses[i]
            live += np.float64(1)
    total, live = block_sum(shared, total, t, 1), block_sum(shared, live, t, 1)
    if mean == 0 or live == 0:
        live = np.float64(1)
    if t == 0:
        out[0], count[0] = total / live, live


@cuda_kernel("T[::1], T[::1], int64[::1], int64, T, T[::1], T[::1], T[::1], T[::1], int64")
def _cross_entropy_grad_cuda(g, x, target, ignore, smoothing, high, total, count, dx, classes):
    """Block n computes row n: dx[n, v] = c (softmax(x[n])[v] - (1 - a) [v = target] - a / V), c = g[n] / count, or 0
    throughout if the target is ignored. g has one element where the loss is one number, else N."""
    n, t, threads = cuda.blockIdx.x, cuda.threadIdx.x, cuda.blockDim.x
    first, at, zero, one = n * classes, target[n], x.dtype.type(0), x.dtype.type(1)
    if at == ignore:
        for v in range(t, classes, threads):
            dx[first + v] = zero
        return
    c = g[n if g.size > 1 else 0] / count[0]
    m, scale, spread, hit = high[n], c / total[n], c * smoothing / x.dtype.type(classes), c * (one - smoothing)
    for v in range(t, classes, threads):
        dx[first + v] = cuda_exp(x[first + v] - m) * scale - spread - (hit if v == at else zero)
