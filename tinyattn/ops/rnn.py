r"""The simple recurrent network over a whole sequence, forward and backward. See `recurrent.py` for what the layers share.

    h' = tanh(x + U h + b)                or relu in place of tanh
"""
import numpy as np
from numba import prange

from ..cuda import flat
from ..device import Code, call, empty, kernel, launch
from .recurrent import Scan, chunk_rows, cost, recurrent_samples
from .recurrent_cuda import _rnn_back_cuda, _rnn_cuda, lanes_for, rows_for
from .shape import permuted
from .shared import pack, product, tanh


class RNNScan(Scan):
    r"""h_t = tanh(x_t + U h_{t-1} + b), for all t of one layer and direction; `nonlinearity` "tanh" or "relu"."""
    name = "rnn"
    tex = r"\mathrm{RNN}({x}, {h0})"
    gates = 1

    def __init__(self, reverse=False, nonlinearity="tanh"):
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"{self.name}: expected nonlinearity 'tanh' or 'relu', got {nonlinearity!r}")
        self.reverse, self.nonlinearity = reverse, nonlinearity

    def cpu(self, x, h0, w_hh, b_hh, lengths):
        (b, t, d), bias, lengths = self.checked(x, h0, w_hh, b_hh, lengths)
        hs, h, before = empty((b, t, d), x.dtype), np.array(h0, order="C"), empty((b, t if self.recorded else 0, d), x.dtype)
        args = (_FORWARD_CHUNK[x.dtype], np.ascontiguousarray(x), np.ascontiguousarray(w_hh), bias, lengths, hs, h, before,
                self.reverse, self.nonlinearity == "relu", chunk_rows(b))
        launch(cost(b, t, d, 1), _forward, args, _forward_parallel, args)
        if self.recorded:
            self.saved = lengths, before
        return hs, h

    def cuda(self, x, h0, w_hh, b_hh, lengths):
        (b, t, d), bias, lengths = self.checked_on_card(x, h0, w_hh, b_hh, lengths)
        hs, h, before = [empty(s, x.dtype, "cuda") for s in ((b, t, d), (b, d), (b, t if self.recorded else 0, d))]
        rows, blocks = rows_for(b)
        _rnn_cuda[blocks, lanes_for(d)](flat(x), flat(h0), flat(permuted(w_hh, (1, 0))), bias, lengths, flat(hs), flat(h),
                                        flat(before), rows, int(self.recorded), t, d, int(self.reverse),
                                        int(self.nonlinearity == "relu"))
        if self.recorded:
            self.saved = lengths, before
        return hs, h

    def composed(self, x, h0, w_hh, b_hh, lengths):
        u, bias = w_hh.T, 0.0 if b_hh is None else b_hh

        def step(x_t, h):
            s = x_t + h @ u + bias
            return (s.tanh() if self.nonlinearity == "tanh" else s.relu(),)

        return self.unrolled(step, x, lengths, h0)

    def cpu_grad(self, g, y, x, h0, w_hh, b_hh, lengths):
        lengths, before = self.saved
        b, t, d = before.shape
        at_x, at_h = empty((b, t, d), x.dtype), np.array(g[1], order="C")
        args = (_BACKWARD_CHUNK[x.dtype], np.ascontiguousarray(g[0]), np.ascontiguousarray(w_hh), lengths, y[0], at_x, at_h,
                self.reverse, self.nonlinearity == "relu", chunk_rows(b))
        launch(cost(b, t, d, 1), _backward, args, _backward_parallel, args)
        need_x, need_h, need_w, need_b = self.needs[:4]
        grad_w, grad_b = self.weight_gradients(need_w, need_b, (at_x, before))
        return at_x if need_x else None, at_h if need_h else None, grad_w, grad_b, None

    def cuda_grad(self, g, y, x, h0, w_hh, b_hh, lengths):
        lengths, before = self.saved
        b, t, d = before.shape
        at_x, at_h, (rows, blocks) = empty((b, t, d), x.dtype, "cuda"), empty((b, d), x.dtype, "cuda"), rows_for(b)
        _rnn_back_cuda[blocks, lanes_for(d)](flat(g[0]), flat(g[1]), flat(w_hh), lengths, flat(y[0]), flat(at_x), flat(at_h),
                                             rows, t, d, int(self.reverse), int(self.nonlinearity == "relu"))
        need_x, need_h, need_w, need_b = self.needs[:4]
        grad_w, grad_b = self.weight_gradients_on_card(need_w, need_b, at_x, before)
        return at_x if need_x else None, at_h if need_h else None, grad_w, grad_b, None

    def samples(rng):
        for reverse in (False, True):
            for i, inputs in enumerate(recurrent_samples(rng, 1)):
                yield {"reverse": reverse, "nonlinearity": "relu" if i % 3 == 2 else "tanh"}, inputs


# ---------------------------------------------------------------------------------------------------------------------
# the loops. `before` is the state that a step began with, or has no steps where no backward pass will come
# ---------------------------------------------------------------------------------------------------------------------
@kernel
def _forward(code, x, w, bias, lengths, hs, h, before, reverse, relu, rows):
    """All chunks of `rows` sequences. w is w_hh (D,D); its transpose is cut into panels for `product` once, for all steps."""
    panels = pack(w.T[::1, ::1])
    for start in range(0, len(h), rows):
        call(code, _forward_chunk, (x, panels, bias, lengths, hs, h, before, reverse, relu, start, min(len(h), start + rows)))


@kernel(parallel=True)
def _forward_parallel(code, x, w, bias, lengths, hs, h, before, reverse, relu, rows):
    panels = pack(w.T[::1, ::1])
    for chunk in prange(-(-len(h) // rows)):
        start = chunk * rows
        call(code, _forward_chunk, (x, panels, bias, lengths, hs, h, before, reverse, relu, start, min(len(h), start + rows)))


@kernel
def _forward_chunk(x, w, bias, lengths, hs, h, before, reverse, relu, start, end):
    """Sequences start to end.  h (B,D) comes in as h0, is the running state, and leaves as the last one.

        for t in steps:
            sums = h @ w_hh^T               (rows,D)
            for b in rows:                  add x and the bias, the activation, along D
    """
    t_end, d = hs.shape[1], hs.shape[2]
    state, sums = h[start:end:1, ::1], np.empty((end - start, d), h.dtype)
    for step in range(t_end):
        t = t_end - 1 - step if reverse else step
        product(sums, state, w, False)
        _step(sums, x, bias, lengths, h, before, hs, relu, start, end, t)


_FORWARD_CHUNK = Code(_forward_chunk, "T[:,:,::1], T[:,:], T[::1], int64[::1], T[:,:,::1], T[:,::1], T[:,:,::1], boolean,"
                                      "boolean, int64, int64")


@kernel
def _step(sums, x, bias, lengths, h, before, hs, relu, start, end, t):
    """Each sequence at step t. Short loops: each becomes vector instructions. Whole arrays and places, no views: Numba counts
    references to each view, which took longer than the loops."""
    zero, saves = h.dtype.type(0), before.shape[1] > 0  # a plain integer 0 would make it float64
    for b in range(start, end):
        if t >= lengths[b]:
            hs[b, t] = 0
            if saves:
                before[b, t] = 0
            continue
        if saves:
            for j in range(h.shape[1]):
                before[b, t, j] = h[b, j]
        if relu:
            for j in range(h.shape[1]):
                s = sums[b - start, j] + x[b, t, j] + bias[j]
                h[b, j] = s if s > zero or s != s else zero  # a nan stays one
        else:
            for j in range(h.shape[1]):
                h[b, j] = tanh(sums[b - start, j] + x[b, t, j] + bias[j])
        for j in range(h.shape[1]):
            hs[b, t, j] = h[b, j]


@kernel
def _backward(code, g, w, lengths, hs, at_x, at_h, reverse, relu, rows):
    """All chunks, w as in `_forward`."""
    panels = pack(w[::1, ::1])
    for start in range(0, len(g), rows):
        call(code, _backward_chunk, (g, panels, lengths, hs, at_x, at_h, reverse, relu, start, min(len(g), start + rows)))


@kernel(parallel=True)
def _backward_parallel(code, g, w, lengths, hs, at_x, at_h, reverse, relu, rows):
    panels = pack(w[::1, ::1])
    for chunk in prange(-(-len(g) // rows)):
        start = chunk * rows
        call(code, _backward_chunk, (g, panels, lengths, hs, at_x, at_h, reverse, relu, start, min(len(g), start + rows)))


@kernel
def _backward_chunk(g, w, lengths, hs, at_x, at_h, reverse, relu, start, end):
    """Sequences start to end, from the last step to the first.  at_h (B,D) comes in as the gradient of the last state, is
    that of the running state, and leaves as that of h0.

        for t in steps, backwards:
            for b in rows:                  at_x[t] = (at_h + g[t]) times the slope of the activation
            at_h = at_x[t] @ w_hh
    """
    t_end = g.shape[1]
    state = at_h[start:end:1, ::1]
    for step in range(t_end):
        t = step if reverse else t_end - 1 - step
        _step_back(g, lengths, hs, at_x, at_h, relu, start, end, t)
        product(state, at_x[start:end:1, t, ::1], w, True)


_BACKWARD_CHUNK = Code(_backward_chunk, "T[:,:,::1], T[:,:], int64[::1], T[:,:,::1], T[:,:,::1], T[:,::1], boolean, boolean,"
                                        "int64, int64")


@kernel
def _step_back(g, lengths, hs, at_x, at_h, relu, start, end, t):
    """Each sequence at step t. at_h is 0 afterwards: all of the old state's gradient comes through the product."""
    zero, one = g.dtype.type(0), g.dtype.type(1)  # plain integers would make it float64
    for b in range(start, end):
        if t >= lengths[b]:
            at_x[b, t] = 0
            continue
        if relu:
            for j in range(g.shape[2]):
                at_x[b, t, j] = at_h[b, j] + g[b, t, j] if hs[b, t, j] > zero else zero
        else:
            for j in range(g.shape[2]):
                at_x[b, t, j] = (at_h[b, j] + g[b, t, j]) * (one - hs[b, t, j] * hs[b, t, j])
        for j in range(g.shape[2]):
            at_h[b, j] = zero
