r"""The linear chain: marginals and log Z of all ways through a sequence of states, by the forward-backward algorithm.

    weight of a path z_1 .. z_T  =  e^(sum_t u[t,z_t] + sum_t w[z_t,z_t+1])

    forward    reach[t,j] = sum_i f[t-1,i] e^w[i,j];  f[t,j] = reach[t,j] e^u[t,j];  Z = sum_j f[T,j]
    shares     q[i,j] = f[t-1,i] e^w[i,j] / reach[t,j]: a path that is in j at t came from i with this probability
    backward   p[T,j] = f[T,j] / Z;  p[t-1,i] = sum_j q[i,j] p[t,j]

Gradients as in `sum_product.py`, where the reason stands: those of log Z are p and sum_t q p, and a gradient g that arrives
at p is carried to the scores by the slope of these as u moves along g:

    forward    rise[t,j] = g[t,j] + mean[t,j],  mean[t,j] = sum_i q[i,j] rise[t-1,i]
    backward   fall[T,j] = p[T,j] (g_logz + rise[T,j] - sum_k p[T,k] rise[T,k]);  fall[t-1,i] = sum_j of
               q[i,j] (fall[t,j] + p[t,j] (rise[t-1,i] - mean[t,j])), which is also what w[i,j] gets at each t
               and u[t] gets fall[t]
"""
from functools import lru_cache

import numpy as np
from numba import prange

from ..autograd import Op
from ..cuda import on_card
from ..device import empty, kernel, launch
from .broadcast import ShapeError
from .shared import first_row
from .softmax import check_float
from .sum_product import check_lengths, infer, infer_grad
from .sum_product_cuda import Levels, infer_cuda, infer_grad_cuda

CHUNKS = 16      # parts that the batch is cut into for the threads
RANGE = 80.0     # of the scores w for a matrix of e^w, which is float32 if w is
LOWEST = 1e-130  # a smaller share f of a state is not trusted where steps are forbidden


class LinearChain(Op):
    r"""Marginals p[b,t,c] = P(z_t = c) and log Z of the paths z with weight e^(sum_t u[b,t,z_t] + sum_t w[z_t,z_t+1]).

    u (B, T, C) scores of the states, w (C, C) scores w[i, j] of going from state i to state j, lengths (B,) integers or
    None -> p (B, T, C), log Z (B,). Cost O(B T C^2), memory O(T C + C^2) a thread. Raises ShapeError, TypeError,
    ValueError.

    Every unary score counts once a node. (Kim et al. 2017 print theta_i + theta_i+1 + b for each edge, which counts
    those inside the sequence twice; their code adds each once.)

    Beyond its length a sequence has p = 0 and sends gradient 0; a sequence of length 0 has log Z = 0. A score of -inf
    forbids a state or a step: its p is 0 and so is its gradient. Where that leaves no path at all, p = 0, log Z = -inf
    and the gradients are 0.
    """
    tex = r"P(z_t \mid {u}, {w})"

    def cpu(self, u, w, lengths):
        (B, T, C), lengths = self._checked(u, w, lengths)
        matrix, u = _weights(w, T), np.ascontiguousarray(u)
        p, logz, lost = empty(u.shape, u.dtype), empty(B, u.dtype), np.ones(B, np.bool_)
        if matrix is not None:
            args = (u, *matrix, lengths, p, logz, lost)
            launch(_cost(u), _dense, (*args, 0, CHUNKS), _dense_chunks, args)
        if lost.any():
            rest, logz[lost] = infer(*_parts(u[lost], w), lengths[lost], *self._table(T, C))
            p[lost] = rest.reshape(-1, T, C)
        if self.recorded:
            self.saved = matrix, lost
        return p, logz

    def cpu_grad(self, g, y, u, w, lengths):
        (B, T, C), lengths = self._checked(u, w, lengths)
        (g, g_logz), u, (matrix, lost) = map(np.ascontiguousarray, g), np.ascontiguousarray(u), self.saved
        du, dw = np.zeros(u.shape, u.dtype), np.zeros(w.shape, w.dtype)
        if matrix is not None:
            sums = np.zeros((max(min(CHUNKS, B), 1), *matrix[0].shape))
            args = (g, g_logz, u, *matrix, lengths, lost, du, sums)
            launch(3 * _cost(u), _dense_grad, (*args, 0, len(sums)), _dense_grad_chunks, args)
            if T > 1:
                dw += sums.sum(axis=0) * matrix[0]
        if lost.any():
            rest, dw_rest = infer_grad(g[lost].reshape(-1, T * C), g_logz[lost], *_parts(u[lost], w), lengths[lost],
                                       *self._table(T, C))
            du[lost] = rest.reshape(-1, T, C)
            dw += dw_rest.reshape(C, C)
        return du if self.needs[0] else None, dw if self.needs[1] else None, None

    def cuda(self, u, w, lengths):
        (_, T, C), counts = self._checked(u, w, lengths)
        p, _, logz = infer_cuda(u, w, True, on_card(counts) if lengths is None else lengths, _levels(T, C))
        return p, logz

    def cuda_grad(self, g, y, u, w, lengths):
        (_, T, C), counts = self._checked(u, w, lengths)
        found = infer_grad_cuda(g[0], None, g[1], u, w, True, on_card(counts) if lengths is None else lengths,
                                _levels(T, C), wants_y=self.needs[1])
        return found[0] if self.needs[0] else None, found[1], None

    def composed(self, u, w, lengths):
        """The two recursions by log-sum-exp, forward from the first step and backward from each sequence's last."""
        (B, T, C), lengths = self._checked(u.array, w.array, None if lengths is None else lengths.numpy())
        if T == 0:
            return u * 1, u.sum(axis=(1, 2))
        alive = [self.result((lengths > t)[:, None], device=u.device) for t in range(T + 1)]  # (B,1): is there a step t?
        forward, backward = [u[:, 0]], [u[:, 0].where(False, 0.0)]                  # (B,C) each; the last step's is 0
        for t in range(1, T):
            step = u[:, t] + (forward[-1].unsqueeze(2) + w).logsumexp(1)
            forward.append(step.where(alive[t], forward[-1]))
        for t in reversed(range(T - 1)):
            step = (w + (u[:, t + 1] + backward[0]).unsqueeze(1)).logsumexp(2)
            backward.insert(0, step.where(alive[t + 1], 0.0))
        logz = forward[-1].logsumexp(1).where(alive[0].squeeze(1), 0.0)             # (B,)
        shift = logz.where(logz.isfinite(), 0.0).unsqueeze(1)                       # no path: e^(-inf - 0) = 0
        p = [(a + b - shift).where(alive[t], -np.inf).exp() for t, (a, b) in enumerate(zip(forward, backward, strict=True))]
        return self.result.stack(p, 1), logz

    def _checked(self, u, w, lengths):
        check_float(self.name, u)
        if w.dtype != u.dtype:
            raise TypeError(f"{self.name}: u and w must have one dtype, got {u.dtype} and {w.dtype}")
        if u.ndim != 3 or w.shape != (u.shape[2], u.shape[2]) or u.shape[2] == 0:
            raise ShapeError(f"{self.name}: expected u (B,T,C), w (C,C) with C > 0, got u {u.shape}, w {w.shape}")
        return u.shape, check_lengths(self.name, lengths, *u.shape[:2], "T")

    def _table(self, T, C):
        table = np.empty((max(2 * T - 2, 0) * C + T, 6), np.int64)
        _chain(table, T, C)
        return table, 3 * T * C + C * C + T + 1

    def samples(rng):
        """Lengths, one step, one state, no batch, no step, forbidden states and steps, no path, large scores, and a
        step so unlikely that the table is used."""
        for B, T, C, lengths in [(2, 3, 2, [3, 2]), (3, 4, 3, [4, 0, 1]), (1, 1, 2, None), (2, 2, 1, None),
                                 (0, 2, 2, None), (2, 0, 2, None)]:
            u, w = rng.normal(size=(B, T, C)), rng.normal(size=(C, C))
            yield {}, (u, w, None if lengths is None else np.array(lengths))
        u, w = rng.normal(size=(2, 3, 3)), rng.normal(size=(3, 3))
        u[0, 1, 2] = w[1, 0] = -np.inf
        u[1, 1] = -np.inf
        yield {}, (u, w, None)
        yield {}, (rng.normal(size=(2, 3, 2)) + [[[0.0, 1e4]]], rng.normal(size=(2, 2)), None)
        yield {}, (rng.normal(size=(2, 3, 2)), rng.normal(size=(2, 2)) - [[0.0, 100.0], [0.0, 0.0]], np.array([3, 2]))


def _weights(w, T):
    """(e^(w - largest w), largest w, is a step forbidden?) for the loops over matrices; None if w is too wide."""
    if T < 2:  # no step: w is not looked at
        return np.ones((1, 1), w.dtype), 0.0, False
    high, low = w.max(), w.min()  # both nan if there is a nan
    forbids = bool(low == -np.inf)
    if forbids:
        low = np.where(w == -np.inf, high, w).min()
    if not (-np.inf < high < np.inf and high - low <= RANGE):
        return None
    return np.exp(np.ascontiguousarray(w) - high), float(high), forbids


def _cost(u):
    """Nanoseconds, if there is something to share among the threads."""
    return u.size * (u.shape[2] * 0.4 + 10) if len(u) > 1 else 0.0


def _parts(u, w):
    return np.ascontiguousarray(u).reshape(len(u), u.shape[1] * u.shape[2]), np.ascontiguousarray(w).reshape(-1)


# ---------------------------------------------------------------------------------------------------------------------
# with plain numbers a step is a vector times a matrix, f @ weights, and f is brought to the sum 1 each time. That loses
# a state where f falls below e^-700, which matters only if all others come to nothing later. They cannot if no step is
# forbidden and all weights are within e^RANGE of each other. If some are forbidden, a sentence in which f becomes small
# is called lost; it goes through the table below, as all do if the weights lie further apart.
# ---------------------------------------------------------------------------------------------------------------------
@kernel
def _ways_in(u, weights, shift, forbids, f, reach):
    """For each t: reach[t] = f[t-1] @ weights; f[t] = reach[t] e^u[t], over its sum. Gives log Z and: was one lost?"""
    T, C = u.shape
    logz, lost = 0.0, False
    for t in range(T):
        reach[t] = 1 if t == 0 else 0
        for i in range(C if t > 0 else 0):
            for j in range(C):
                reach[t, j] += f[t - 1, i] * weights[i, j]
        high, total = -np.inf, 0.0
        for j in range(C):
            if reach[t, j] > 0 and u[t, j] > high:
                high = np.float64(u[t, j])
        for j in range(C):
            f[t, j] = reach[t, j] * np.exp(u[t, j] - high) if high > -np.inf else 0.0
            total += f[t, j]
        for j in range(C):
            f[t, j] = f[t, j] / total if total != 0 else 0.0
            lost = lost or (forbids and reach[t, j] > 0 and u[t, j] > -np.inf and f[t, j] < LOWEST)
        logz += high + np.log(total) + (shift if t > 0 else 0.0)
    return logz, lost


@kernel(reduces=True)
def _times(weights, i, h):
    """sum_j weights[i, j] h[j]"""
    total = 0.0
    for j in range(len(h)):
        total += weights[i, j] * h[j]
    return total


@kernel
def _marginals(weights, f, reach, p, h):
    """From the last step: h = p[t+1] / reach[t+1]; p[t] = f[t] (weights @ h)."""
    T, C = f.shape
    for t in range(T - 1, -1, -1):
        for j in range(C if t < T - 1 else 0):
            h[j] = p[t + 1, j] / reach[t + 1, j] if reach[t + 1, j] != 0 else 0.0
        for i in range(C):
            p[t, i] = f[t, i] * _times(weights, i, h) if t < T - 1 else f[t, i]


@kernel
def _dense(u, weights, shift, forbids, lengths, p, logz, lost, begin, end):
    B, T, C = u.shape
    f, reach, all_p, h = np.empty((T, C)), np.empty((T, C)), np.empty((T, C)), np.empty(C)
    for b in range(first_row(begin, CHUNKS, B), first_row(end, CHUNKS, B)):
        n = lengths[b]
        logz[b], lost[b] = _ways_in(u[b, :n], weights, shift, forbids, f[:n], reach[:n])
        _marginals(weights, f[:n], reach[:n], all_p[:n], h)
        p[b, :n] = all_p[:n]
        p[b, n:] = 0
        if logz[b] == -np.inf:
            p[b] = 0


@kernel(parallel=True)
def _dense_chunks(u, weights, shift, forbids, lengths, p, logz, lost):
    for chunk in prange(CHUNKS):
        _dense(u, weights, shift, forbids, lengths, p, logz, lost, chunk, chunk + 1)


@kernel
def _dense_grad(g, g_logz, u, weights, shift, forbids, lengths, lost, du, sums, begin, end):
    B, T, C = u.shape
    f, reach, p, rows = np.empty((T, C)), np.empty((T, C)), np.empty((T, C)), np.empty((3, C))
    rise, mean = np.empty((T, C)), np.empty((T, C))
    for chunk in range(begin, end):
        for b in range(first_row(chunk, len(sums), B), first_row(chunk + 1, len(sums), B)):
            n = lengths[b]
            if n == 0 or lost[b] or _ways_in(u[b, :n], weights, shift, forbids, f[:n], reach[:n])[0] == -np.inf:
                continue
            _marginals(weights, f[:n], reach[:n], p[:n], rows[0])
            _rise_along(g[b, :n], weights, f[:n], reach[:n], rise[:n], mean[:n])
            _fall_back(g_logz[b], weights, f[:n], reach[:n], p[:n], rise[:n], mean[:n], du[b, :n], sums[chunk], rows)


@kernel(parallel=True)
def _dense_grad_chunks(g, g_logz, u, weights, shift, forbids, lengths, lost, du, sums):
    for chunk in prange(len(sums)):
        _dense_grad(g, g_logz, u, weights, shift, forbids, lengths, lost, du, sums, chunk, chunk + 1)


@kernel
def _rise_along(g, weights, f, reach, rise, mean):
    """mean[t] = ((f[t-1] rise[t-1]) @ weights) / reach[t]; rise[t] = g[t] + mean[t]."""
    T, C = f.shape
    for t in range(T):
        mean[t] = 0
        for i in range(C if t > 0 else 0):
            x = f[t - 1, i] * rise[t - 1, i]
            for j in range(C):
                mean[t, j] += x * weights[i, j]
        for j in range(C):
            mean[t, j] = mean[t, j] / reach[t, j] if reach[t, j] != 0 else 0.0
            rise[t, j] = g[t, j] + mean[t, j]


@kernel
def _fall_back(g_logz, weights, f, reach, p, rise, mean, du, sums, rows):
    """du = fall of the states, from the last step; into `sums` what the weights get, but for the factor weights[i, j].

    q = f[t,i] weights[i,j] / reach[t+1,j], so with
        h = p[t+1] / reach[t+1]      k = (fall[t+1] - p[t+1] mean[t+1]) / reach[t+1]
        q (fall[t+1,j] + p[t+1,j] (rise[t,i] - mean[t+1,j]))  =  weights[i,j] f[t,i] (k[j] + h[j] rise[t,i])
    and of the last term the sum over j is p[t,i] rise[t,i].
    """
    T, C = f.shape
    fall, h, k = rows[0], rows[1], rows[2]
    level = g_logz - np.sum(p[T - 1] * rise[T - 1])
    for i in range(C):
        fall[i] = p[T - 1, i] * (level + rise[T - 1, i])
    du[T - 1] = fall
    for t in range(T - 2, -1, -1):
        for j in range(C):
            one_over = 1 / reach[t + 1, j] if reach[t + 1, j] != 0 else 0.0
            h[j], k[j] = p[t + 1, j] * one_over, (fall[j] - p[t + 1, j] * mean[t + 1, j]) * one_over
        for i in range(C):
            x, y = f[t, i], f[t, i] * rise[t, i]
            for j in range(C):
                sums[i, j] += x * k[j] + y * h[j]
            fall[i] = x * _times(weights, i, k) + p[t, i] * rise[t, i]
        du[t] = fall


# ---------------------------------------------------------------------------------------------------------------------
# the forward recursion as a table for the loops of `sum_product.py`, whose numbers cannot be lost; several times slower
# ---------------------------------------------------------------------------------------------------------------------
@kernel
def _chain(table, T, C):
    """Write the table of the chain.

    Items: u (T,C), w (C,C), end (T+1,), reach (T,C), f (T,C). Of the first step there is only u, which is its f.
    """
    w = T * C
    end = w + C * C
    reach = end + T + 1
    f = reach + T * C
    row = 0
    for t in range(T):
        before = f + (t - 1) * C if t > 1 else 0
        for j in range(C if t > 0 else 0):
            row = _write(table, row, reach + t * C + j, before, 1, w + j, C, C)
            row = _write(table, row, f + t * C + j, reach + t * C + j, 0, t * C + j, 0, 1)
        row = _write(table, row, end + t + 1, f + t * C if t > 0 else 0, 1, end, 0, C)  # times end[0], which is 1


@kernel
def _write(table, row, parent, a, step_a, b, step_b, count):
    """v[parent] = sum over k < count of v[a + k step_a] v[b + k step_b], as row `row`; gives the number of the next."""
    table[row, 0], table[row, 1], table[row, 2] = parent, a, step_a
    table[row, 3], table[row, 4], table[row, 5] = b, step_b, count
    return row + 1


# ---------------------------------------------------------------------------------------------------------------------
# on a card all goes through the table, since it cannot tell the host that a sentence was lost. Where each item is used:
# ---------------------------------------------------------------------------------------------------------------------
@lru_cache(maxsize=32)
def _levels(T, C):
    table, items = LinearChain()._table(T, C)
    uses = np.empty(((4 * T - 2) * C + 2 * C * C if T else 0, 6), np.int64)
    return Levels(table, uses[:_chain_uses(uses, T, C)], items, T * C, C * C)


@kernel
def _chain_uses(uses, T, C):
    """Write the table of uses, in any order, with the items of `_chain`; gives the number of rows."""
    w = T * C
    end = w + C * C
    reach = end + T + 1
    f = reach + T * C
    row = 0
    for t in range(T):
        for j in range(C):
            u, x = t * C + j, f + t * C + j if t > 0 else j                                  # x is f[t,j]
            row = _write(uses, row, x, end + t + 1, 0, end, 0, 1)
            if t + 1 < T:
                row = _write(uses, row, x, reach + (t + 1) * C, 1, w + j * C, 1, C)          # goes to each state of t + 1
            if t > 0:
                row = _write(uses, row, u, x, 0, reach + u, 0, 1)
                row = _write(uses, row, reach + u, x, 0, u, 0, 1)
    for i in range(C if T > 1 else 0):
        for j in range(C):
            row = _write(uses, row, w + i * C + j, reach + C + j, 0, i, 0, 1)                # the step from t = 0
            row = _write(uses, row, w + i * C + j, reach + 2 * C + j, C, f + C + i, C, T - 2)
    return row
