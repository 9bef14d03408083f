r"""The long short-term memory over a whole sequence, forward and backward. See `recurrent.py` for what the layers share.

    i = sigmoid(x_i + U_i h + b_i)        input gate
    f = sigmoid(x_f + U_f h + b_f)        forget gate
    g = tanh(x_g + U_g h + b_g)           candidate
    o = sigmoid(x_o + U_o h + b_o)        output gate
    c' = f * c + i * g
    h' = o * tanh(c')                     gates in PyTorch's order i, f, g, o
"""
import numpy as np
from numba import prange

from ..device import empty, kernel, launch
from .recurrent import Scan, chunk_rows, cost, recurrent_samples
from .shared import pack, product, sigmoid, tanh


class LSTMScan(Scan):
    r"""h_t, c_t = LSTM(x_t, h_{t-1}, c_{t-1}), for all t of one layer and direction."""
    name = "lstm"
    tex = r"\mathrm{LSTM}({x}, {h0}, {c0})"
    gates = 4

    def __init__(self, reverse=False):
        self.reverse = reverse

    def cpu(self, x, h0, c0, w_hh, b_hh, lengths):
        (b, t, d), bias, lengths = self.checked(x, h0, w_hh, b_hh, lengths, c0)
        steps = t if self.recorded else min(t, 1)  # without a backward pass one step's gates are enough
        hs, h, c = empty((b, t, d), x.dtype), np.array(h0, order="C"), np.array(c0, order="C")
        gates, before, cells = empty((b, steps, 4, d), x.dtype), empty((b, steps, d), x.dtype), empty((b, steps, d), x.dtype)
        args = (np.ascontiguousarray(x).reshape(b, t, 4, d), np.ascontiguousarray(w_hh), bias.reshape(4, d), lengths, hs, h, c,
                gates, before, cells, self.reverse, chunk_rows(b))
        launch(cost(b, t, d, 4), _forward, args, _forward_parallel, args)
        if self.recorded:
            self.saved = lengths, gates, before, cells
        return hs, h, c

    def composed(self, x, h0, c0, w_hh, b_hh, lengths):
        d = h0.shape[1]
        u, bias = w_hh.T, 0.0 if b_hh is None else b_hh

        def step(x_t, h, c):
            s = x_t + h @ u + bias
            i, f, g, o = s[:, :d].sigmoid(), s[:, d:2 * d].sigmoid(), s[:, 2 * d:3 * d].tanh(), s[:, 3 * d:].sigmoid()
            c = f * c + i * g
            return o * c.tanh(), c

        return self.unrolled(step, x, lengths, h0, c0)

    def cpu_grad(self, g, y, x, h0, c0, w_hh, b_hh, lengths):
        lengths, gates, before, cells = self.saved
        b, t, d = before.shape
        at_x, at_h, at_c = empty((b, t, 4, d), x.dtype), np.array(g[1], order="C"), np.array(g[2], order="C")
        args = (np.ascontiguousarray(g[0]), np.ascontiguousarray(w_hh), lengths, gates, before, cells, at_x, at_h, at_c,
                self.reverse, chunk_rows(b))
        launch(cost(b, t, d, 4), _backward, args, _backward_parallel, args)
        at_x = at_x.reshape(b, t, 4 * d)
        need_x, need_h, need_c, need_w, need_b = self.needs[:5]
        grad_w, grad_b = self.weight_gradients(need_w, need_b, (at_x, before))
        return at_x if need_x else None, at_h if need_h else None, at_c if need_c else None, grad_w, grad_b, None

    def samples(rng):
        for reverse in (False, True):
            for inputs in recurrent_samples(rng, 4, 2):
                yield {"reverse": reverse}, inputs


# ---------------------------------------------------------------------------------------------------------------------
# the loops. `gates` (B,T,4,D) holds i, f, g, o; `before` and `cells` are the h and c that a step began with.
# Without a backward pass they have one step, used again and again.
# ---------------------------------------------------------------------------------------------------------------------
@kernel
def _forward(x, w, bias, lengths, hs, h, c, gates, before, cells, reverse, rows):
    """All chunks of `rows` sequences. w is w_hh (4D,D); its transpose is cut into panels for `product` once, for all steps."""
    panels = pack(w.T[::1, ::1])
    for start in range(0, len(h), rows):
        _forward_chunk(x, panels, bias, lengths, hs, h, c, gates, before, cells, reverse, start, min(len(h), start + rows))


@kernel(parallel=True)
def _forward_parallel(x, w, bias, lengths, hs, h, c, gates, before, cells, reverse, rows):
    panels = pack(w.T[::1, ::1])
    for chunk in prange(-(-len(h) // rows)):
        start = chunk * rows
        _forward_chunk(x, panels, bias, lengths, hs, h, c, gates, before, cells, reverse, start, min(len(h), start + rows))


@kernel
def _forward_chunk(x, w, bias, lengths, hs, h, c, gates, before, cells, reverse, start, end):
    """Sequences start to end.  h and c (B,D) come in as h0 and c0, and leave as the last ones.

        for t in steps:
            sums = h @ w_hh^T               (rows,4D), close together: rows of gates[t] are T apart in memory
            for row in rows:                the gates, the new c and h, along D
    """
    t_end, d = hs.shape[1], hs.shape[2]
    state, sums = h[start:end:1, ::1], np.empty((end - start, 4, d), h.dtype)
    side_by_side = sums.reshape(end - start, 4 * d)
    for step in range(t_end):
        t = t_end - 1 - step if reverse else step
        s = t if gates.shape[1] == t_end else 0
        product(side_by_side, state, w, False)
        for i in range(start, end):
            if t < lengths[i]:
                _step(sums[i - start], gates[i, s], x[i, t], bias, h[i], c[i], before[i, s], cells[i, s], hs[i, t])
            else:
                hs[i, t] = 0
                before[i, s] = 0


@kernel
def _step(sums, gates, x, bias, h, c, before, cell, out):
    """The gates and the new state of one row. Short loops: the compiler makes vector instructions of each of them."""
    i, f, g, o = gates[0], gates[1], gates[2], gates[3]
    d = len(h)
    for k in range(4):
        gate, s, x_k, bias_k = gates[k], sums[k], x[k], bias[k]
        for j in range(d):
            gate[j] = s[j] + x_k[j] + bias_k[j]
    for j in range(d):
        before[j], cell[j] = h[j], c[j]
    for j in range(d):
        i[j] = sigmoid(i[j])
    for j in range(d):
        f[j] = sigmoid(f[j])
    for j in range(d):
        g[j] = tanh(g[j])
    for j in range(d):
        o[j] = sigmoid(o[j])
    for j in range(d):
        c[j] = f[j] * c[j] + i[j] * g[j]
    for j in range(d):
        new = o[j] * tanh(c[j])
        h[j], out[j] = new, new


@kernel
def _backward(g, w, lengths, gates, before, cells, at_x, at_h, at_c, reverse, rows):
    """All chunks, w as in `_forward`."""
    panels = pack(w[::1, ::1])
    for start in range(0, len(g), rows):
        _backward_chunk(g, panels, lengths, gates, before, cells, at_x, at_h, at_c, reverse, start, min(len(g), start + rows))


@kernel(parallel=True)
def _backward_parallel(g, w, lengths, gates, before, cells, at_x, at_h, at_c, reverse, rows):
    panels = pack(w[::1, ::1])
    for chunk in prange(-(-len(g) // rows)):
        start = chunk * rows
        _backward_chunk(g, panels, lengths, gates, before, cells, at_x, at_h, at_c, reverse, start, min(len(g), start + rows))


@kernel
def _backward_chunk(g, w, lengths, gates, before, cells, at_x, at_h, at_c, reverse, start, end):
    """Sequences start to end, from the last step to the first.  at_h and at_c (B,D) come in as the gradients of the last
    states and leave as those of h0 and c0.

        for t in steps, backwards:
            for row in rows:                at_h += g[t]; at_x[t] = gradients before the activations of i, f, g, o; at_c
            at_h = at_x[t] @ w_hh
    """
    t_end, d = g.shape[1], g.shape[2]
    state, side_by_side = at_h[start:end:1, ::1], at_x.reshape(len(g), t_end, 4 * d)
    for step in range(t_end):
        t = step if reverse else t_end - 1 - step
        for i in range(start, end):
            if t < lengths[i]:
                _step_back(g[i, t], gates[i, t], cells[i, t], at_x[i, t], at_h[i], at_c[i])
            else:
                at_x[i, t] = 0
        product(state, side_by_side[start:end:1, t, ::1], w, True)


@kernel
def _step_back(g, gates, cell, at_x, at_h, at_c):
    """One row. at_h is 0 afterwards: all of the old state's gradient comes through the product."""
    d, one = len(g), g.dtype.type(1)  # an integer 1 would make it float64
    i, f, n, o = gates[0], gates[1], gates[2], gates[3]
    at_i, at_f, at_n, at_o = at_x[0], at_x[1], at_x[2], at_x[3]
    for j in range(d):
        at_h[j] += g[j]
    for j in range(d):
        at_o[j] = tanh(f[j] * cell[j] + i[j] * n[j])  # tanh(c'), for the next two lines
    for j in range(d):
        at_c[j] += at_h[j] * o[j] * (one - at_o[j] * at_o[j])
    for j in range(d):
        at_o[j] = at_h[j] * at_o[j] * o[j] * (one - o[j])
    for j in range(d):
        at_i[j] = at_c[j] * n[j] * i[j] * (one - i[j])
    for j in range(d):
        at_n[j] = at_c[j] * i[j] * (one - n[j] * n[j])
    for j in range(d):
        at_f[j] = at_c[j] * cell[j] * f[j] * (one - f[j])
    for j in range(d):
        at_c[j] = at_c[j] * f[j]
    for j in range(d):
        at_h[j] = 0
