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

from ..cuda import flat
from ..device import Code, call, empty, kernel, launch
from .recurrent import Scan, chunk_rows, cost, recurrent_samples
from .recurrent_cuda import _lstm_back_cuda, _lstm_cuda, lanes_for, rows_for
from .shape import permuted
from .shared import pack, product, sigmoid, tanh

I, F, G, O = 0, 1, 2, 3  # noqa: E741 (places of the gates)


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
        args = (_FORWARD_CHUNK[x.dtype], np.ascontiguousarray(x).reshape(b, t, 4, d), np.ascontiguousarray(w_hh),
                bias.reshape(4, d), lengths, hs, h, c, gates, before, cells, self.reverse, chunk_rows(b))
        launch(cost(b, t, d, 4), _forward, args, _forward_parallel, args)
        if self.recorded:
            self.saved = lengths, gates, before, cells
        return hs, h, c

    def cuda(self, x, h0, c0, w_hh, b_hh, lengths):
        (b, t, d), bias, lengths = self.checked_on_card(x, h0, w_hh, b_hh, lengths, c0)
        steps = t if self.recorded else min(t, 1)
        shapes = (b, t, d), (b, d), (b, d), (b, steps, 4, d), (b, steps, d), (b, steps, d)
        hs, h, c, gates, before, cells = [empty(shape, x.dtype, "cuda") for shape in shapes]
        rows, blocks = rows_for(b)
        _lstm_cuda[blocks, lanes_for(4 * d)](flat(x), flat(h0), flat(c0), flat(permuted(w_hh, (1, 0))), bias, lengths,
                                             flat(hs), flat(h), flat(c), flat(gates), flat(before), flat(cells), rows,
                                             int(self.recorded), t, d, int(self.reverse))
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
        args = (_BACKWARD_CHUNK[x.dtype], np.ascontiguousarray(g[0]), np.ascontiguousarray(w_hh), lengths, gates, before,
                cells, at_x, at_h, at_c, self.reverse, chunk_rows(b))
        launch(cost(b, t, d, 4), _backward, args, _backward_parallel, args)
        at_x = at_x.reshape(b, t, 4 * d)
        need_x, need_h, need_c, need_w, need_b = self.needs[:5]
        grad_w, grad_b = self.weight_gradients(need_w, need_b, (at_x, before))
        return at_x if need_x else None, at_h if need_h else None, at_c if need_c else None, grad_w, grad_b, None

    def cuda_grad(self, g, y, x, h0, c0, w_hh, b_hh, lengths):
        lengths, gates, before, cells = self.saved
        b, t, d = before.shape
        at_x, at_h, at_c = [empty(shape, x.dtype, "cuda") for shape in ((b, t, 4 * d), (b, d), (b, d))]
        rows, blocks = rows_for(b)
        _lstm_back_cuda[blocks, lanes_for(4 * d)](*map(flat, g), flat(w_hh), lengths, flat(gates), flat(cells), flat(at_x),
                                                  flat(at_h), flat(at_c), rows, t, d, int(self.reverse))
        need_x, need_h, need_c, need_w, need_b = self.needs[:5]
        grad_w, grad_b = self.weight_gradients_on_card(need_w, need_b, at_x, before)
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
def _forward(code, x, w, bias, lengths, hs, h, c, gates, before, cells, reverse, rows):
    """All chunks of `rows` sequences. w is w_hh (4D,D); its transpose is cut into panels for `product` once, for all steps."""
    panels = pack(w.T[::1, ::1])
    for start in range(0, len(h), rows):
        call(code, _forward_chunk, (x, panels, bias, lengths, hs, h, c, gates, before, cells, reverse, start,
                                    min(len(h), start + rows)))


@kernel(parallel=True)
def _forward_parallel(code, x, w, bias, lengths, hs, h, c, gates, before, cells, reverse, rows):
    panels = pack(w.T[::1, ::1])
    for chunk in prange(-(-len(h) // rows)):
        start = chunk * rows
        call(code, _forward_chunk, (x, panels, bias, lengths, hs, h, c, gates, before, cells, reverse, start,
                                    min(len(h), start + rows)))


@kernel
def _forward_chunk(x, w, bias, lengths, hs, h, c, gates, before, cells, reverse, start, end):
    """Sequences start to end.  h and c (B,D) come in as h0 and c0, and leave as the last ones.

        for t in steps:
            sums = h @ w_hh^T               (rows,4D)
            for b in rows:                  the gates, the new c and h, along D
    """
    t_end, d = hs.shape[1], hs.shape[2]
    state, sums = h[start:end:1, ::1], np.empty((end - start, 4, d), h.dtype)
    side_by_side = sums.reshape(end - start, 4 * d)
    for step in range(t_end):
        t = t_end - 1 - step if reverse else step
        s = t if gates.shape[1] == t_end else 0
        product(side_by_side, state, w, False)
        _step(sums, x, bias, lengths, h, c, gates, before, cells, hs, start, end, t, s)


_FORWARD_CHUNK = Code(_forward_chunk, "T[:,:,:,::1], T[:,:], T[:,::1], int64[::1], T[:,:,::1], T[:,::1], T[:,::1],"
                                      "T[:,:,:,::1], T[:,:,::1], T[:,:,::1], boolean, int64, int64")


@kernel
def _step(sums, x, bias, lengths, h, c, gates, before, cells, hs, start, end, t, s):
    """The gates and the new state of each sequence at step t, which is saved as step s. Short loops over few arrays: each
    becomes vector instructions (with more arrays the compiler gives up proving that none overlaps the one being written).
    Whole arrays and places, no views: Numba counts references to each view, which took longer than the loops."""
    for b in range(start, end):
        if t >= lengths[b]:
            hs[b, t] = 0
            before[b, s] = 0
            continue
        r = b - start
        for j in range(h.shape[1]):
            before[b, s, j] = h[b, j]
        for j in range(h.shape[1]):
            gates[b, s, I, j] = sigmoid(sums[r, I, j] + x[b, t, I, j] + bias[I, j])
        for j in range(h.shape[1]):
            gates[b, s, F, j] = sigmoid(sums[r, F, j] + x[b, t, F, j] + bias[F, j])
        for j in range(h.shape[1]):
            gates[b, s, G, j] = tanh(sums[r, G, j] + x[b, t, G, j] + bias[G, j])
        for j in range(h.shape[1]):
            gates[b, s, O, j] = sigmoid(sums[r, O, j] + x[b, t, O, j] + bias[O, j])
        for j in range(h.shape[1]):
            old = c[b, j]
            cells[b, s, j] = old
            c[b, j] = gates[b, s, F, j] * old + gates[b, s, I, j] * gates[b, s, G, j]
        for j in range(h.shape[1]):
            new = gates[b, s, O, j] * tanh(c[b, j])
            h[b, j], hs[b, t, j] = new, new


@kernel
def _backward(code, g, w, lengths, gates, before, cells, at_x, at_h, at_c, reverse, rows):
    """All chunks, w as in `_forward`."""
    panels = pack(w[::1, ::1])
    for start in range(0, len(g), rows):
        call(code, _backward_chunk, (g, panels, lengths, gates, before, cells, at_x, at_h, at_c, reverse, start,
                                     min(len(g), start + rows)))


@kernel(parallel=True)
def _backward_parallel(code, g, w, lengths, gates, before, cells, at_x, at_h, at_c, reverse, rows):
    panels = pack(w[::1, ::1])
    for chunk in prange(-(-len(g) // rows)):
        start = chunk * rows
        call(code, _backward_chunk, (g, panels, lengths, gates, before, cells, at_x, at_h, at_c, reverse, start,
                                     min(len(g), start + rows)))


@kernel
def _backward_chunk(g, w, lengths, gates, before, cells, at_x, at_h, at_c, reverse, start, end):
    """Sequences start to end, from the last step to the first.  at_h and at_c (B,D) come in as the gradients of the last
    states and leave as those of h0 and c0.

        for t in steps, backwards:
            for b in rows:                  at_h += g[t]; at_x[t] = gradients before the activations of i, f, g, o; at_c
            at_h = at_x[t] @ w_hh
    """
    t_end, d = g.shape[1], g.shape[2]
    state, side_by_side = at_h[start:end:1, ::1], at_x.reshape(len(g), t_end, 4 * d)
    for step in range(t_end):
        t = step if reverse else t_end - 1 - step
        _step_back(g, lengths, gates, cells, at_x, at_h, at_c, start, end, t)
        product(state, side_by_side[start:end:1, t, ::1], w, True)


_BACKWARD_CHUNK = Code(_backward_chunk, "T[:,:,::1], T[:,:], int64[::1], T[:,:,:,::1], T[:,:,::1], T[:,:,::1], T[:,:,:,::1],"
                                        "T[:,::1], T[:,::1], boolean, int64, int64")


@kernel
def _step_back(g, lengths, gates, cells, at_x, at_h, at_c, start, end, t):
    """Each sequence at step t. at_h is 0 afterwards: all of the old state's gradient comes through the product."""
    zero, one = g.dtype.type(0), g.dtype.type(1)  # plain integers would make it float64
    for b in range(start, end):
        if t >= lengths[b]:
            at_x[b, t] = 0
            continue
        for j in range(g.shape[2]):
            at_x[b, t, O, j] = tanh(gates[b, t, F, j] * cells[b, t, j] + gates[b, t, I, j] * gates[b, t, G, j])  # tanh(c')
        for j in range(g.shape[2]):
            at_h[b, j] += g[b, t, j]
        for j in range(g.shape[2]):
            at_c[b, j] += at_h[b, j] * gates[b, t, O, j] * (one - at_x[b, t, O, j] * at_x[b, t, O, j])
        for j in range(g.shape[2]):
            o = gates[b, t, O, j]
            at_x[b, t, O, j] = at_h[b, j] * at_x[b, t, O, j] * o * (one - o)
        for j in range(g.shape[2]):
            i = gates[b, t, I, j]
            at_x[b, t, I, j] = at_c[b, j] * gates[b, t, G, j] * i * (one - i)
        for j in range(g.shape[2]):
            n = gates[b, t, G, j]
            at_x[b, t, G, j] = at_c[b, j] * gates[b, t, I, j] * (one - n * n)
        for j in range(g.shape[2]):
            f = gates[b, t, F, j]
            at_x[b, t, F, j] = at_c[b, j] * cells[b, t, j] * f * (one - f)
        for j in range(g.shape[2]):
            at_c[b, j] *= gates[b, t, F, j]
        for j in range(g.shape[2]):
            at_h[b, j] = zero
