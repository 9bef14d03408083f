r"""The gated recurrent unit over a whole sequence, forward and backward. See `recurrent.py` for what the layers share.

    r = sigmoid(x_r + U_r h + b_r)                    reset gate
    z = sigmoid(x_z + U_z h + b_z)                    update gate
    n = tanh(x_n + r * (U_n h + b_n))                 reset="after" the product: PyTorch, cuDNN
    n = tanh(x_n + U_n (r * h) + b_n)                 reset="before" it: Cho et al. 2014, Bahdanau et al. 2015
    h' = z * h + (1 - z) * n                          update="keep": z keeps the old state, as PyTorch has it
    h' = (1 - z) * h + z * n                          update="write": z lets the new in, as Cho and Bahdanau have it
"""
import numpy as np
from numba import prange

from ..device import empty, kernel, launch
from .recurrent import Scan, chunk_rows, cost, recurrent_samples
from .shared import pack, product, sigmoid, tanh


class GRUScan(Scan):
    r"""h_t = GRU(x_t, h_{t-1}), for all t of one layer and direction; the two conventions are named, see the file."""
    name = "gru"
    tex = r"\mathrm{GRU}({x}, {h0})"
    gates = 3

    def __init__(self, reverse=False, reset="after", update="keep"):
        if reset not in ("after", "before"):
            raise ValueError(f"{self.name}: expected reset 'after' (PyTorch) or 'before' (Cho, Bahdanau), got {reset!r}")
        if update not in ("keep", "write"):
            raise ValueError(f"{self.name}: expected update 'keep' (PyTorch) or 'write' (Cho, Bahdanau), got {update!r}")
        self.reverse, self.reset, self.update = reverse, reset, update

    def cpu(self, x, h0, w_hh, b_hh, lengths):
        (b, t, d), bias, lengths = self.checked(x, h0, w_hh, b_hh, lengths)
        steps = t if self.recorded else min(t, 1)  # without a backward pass one step's gates are enough
        hs, h = empty((b, t, d), x.dtype), np.array(h0, order="C")
        gates, inner, before = empty((b, steps, 3, d), x.dtype), empty((b, steps, d), x.dtype), empty((b, steps, d), x.dtype)
        args = (np.ascontiguousarray(x).reshape(b, t, 3, d), np.ascontiguousarray(w_hh), bias.reshape(3, d), lengths, hs, h,
                gates, inner, before, self.reverse, self.reset == "after", self.update == "keep", chunk_rows(b))
        launch(cost(b, t, d, 3), _forward, args, _forward_parallel, args)
        if self.recorded:
            self.saved = lengths, gates, inner, before
        return hs, h

    def composed(self, x, h0, w_hh, b_hh, lengths):
        d = h0.shape[1]
        u_rz, u_n = w_hh[:2 * d].T, w_hh[2 * d:].T
        b_rz, b_n = (0.0, 0.0) if b_hh is None else (b_hh[:2 * d], b_hh[2 * d:])

        def step(x_t, h):
            rz = (x_t[:, :2 * d] + h @ u_rz + b_rz).sigmoid()
            r, z, x_n = rz[:, :d], rz[:, d:], x_t[:, 2 * d:]
            if self.reset == "after":
                n = (x_n + r * (h @ u_n + b_n)).tanh()
            else:
                n = (x_n + (r * h) @ u_n + b_n).tanh()
            return (z * h + (1 - z) * n if self.update == "keep" else (1 - z) * h + z * n,)

        return self.unrolled(step, x, lengths, h0)

    def cpu_grad(self, g, y, x, h0, w_hh, b_hh, lengths):
        lengths, gates, inner, before = self.saved
        b, t, d = before.shape
        at_x, at_inner, at_h = empty((b, t, 3, d), x.dtype), empty((b, t, d), x.dtype), np.array(g[1], order="C")
        after = self.reset == "after"
        args = (np.ascontiguousarray(g[0]), np.ascontiguousarray(w_hh), lengths, gates, inner, before, at_x, at_inner, at_h,
                self.reverse, after, self.update == "keep", chunk_rows(b))
        launch(cost(b, t, d, 3), _backward, args, _backward_parallel, args)
        at_x = at_x.reshape(b, t, 3 * d)
        need_x, need_h, need_w, need_b = self.needs[:4]
        parts = (at_x[:, :, :2 * d], before), ((at_inner, before) if after else (at_x[:, :, 2 * d:], inner))
        grad_w, grad_b = self.weight_gradients(need_w, need_b, *parts)
        return at_x if need_x else None, at_h if need_h else None, grad_w, grad_b, None

    def samples(rng):
        conventions = [(r, u) for r in ("after", "before") for u in ("keep", "write")]
        for reverse in (False, True):
            for i, inputs in enumerate(recurrent_samples(rng, 3)):
                reset, update = conventions[(i + reverse) % 4]
                yield {"reverse": reverse, "reset": reset, "update": update}, inputs


# ---------------------------------------------------------------------------------------------------------------------
# the loops. `gates` (B,T,3,D) holds r, z, n; `inner` is U_n h + b_n (reset after) or r * h (reset before);
# `before` is the state that a step began with. Without a backward pass they have one step, used again and again.
# ---------------------------------------------------------------------------------------------------------------------
@kernel
def _forward(x, w, bias, lengths, hs, h, gates, inner, before, reverse, after, keep, rows):
    """All chunks of `rows` sequences. w is w_hh (3D,D); its transpose is cut into panels for `product` once, for all steps."""
    d = h.shape[1]
    w_rz, w_n = pack(w[:2 * d].T[::1, ::1]), pack(w[2 * d:].T[::1, ::1])
    for start in range(0, len(h), rows):
        _forward_chunk(x, w_rz, w_n, bias, lengths, hs, h, gates, inner, before, reverse, after, keep, start,
                       min(len(h), start + rows))


@kernel(parallel=True)
def _forward_parallel(x, w, bias, lengths, hs, h, gates, inner, before, reverse, after, keep, rows):
    d = h.shape[1]
    w_rz, w_n = pack(w[:2 * d].T[::1, ::1]), pack(w[2 * d:].T[::1, ::1])
    for chunk in prange(-(-len(h) // rows)):
        start = chunk * rows
        _forward_chunk(x, w_rz, w_n, bias, lengths, hs, h, gates, inner, before, reverse, after, keep, start,
                       min(len(h), start + rows))


@kernel
def _forward_chunk(x, w_rz, w_n, bias, lengths, hs, h, gates, inner, before, reverse, after, keep, start, end):
    """Sequences start to end.  h (B,D) comes in as h0, is the running state, and leaves as the last one.

        for t in steps:
            r, z of gates[t] = h @ w_rz^T                   (rows,2D)
            for row in rows:                                r and z, along D
            n of gates[t] = h @ w_n^T                       (rows,D)       reset before: (r * h) @ w_n^T
            for row in rows:                                n, and the new h, along D
    """
    t_end, d = hs.shape[1], hs.shape[2]
    state, side_by_side = h[start:end:1, ::1], gates.reshape(len(h), gates.shape[1], 3 * d)
    for step in range(t_end):
        t = t_end - 1 - step if reverse else step
        s = t if gates.shape[1] == t_end else 0
        product(side_by_side[start:end:1, s, :2 * d:1], state, w_rz, False)
        for i in range(start, end):
            if t < lengths[i]:
                _open(gates[i, s], x[i, t], bias, h[i], inner[i, s], before[i, s])
            else:
                hs[i, t] = 0
                inner[i, s] = 0
                before[i, s] = 0
        product(side_by_side[start:end:1, s, 2 * d::1], state if after else inner[start:end:1, s, ::1], w_n, False)
        for i in range(start, end):
            if t < lengths[i]:
                _update(gates[i, s], x[i, t], bias, h[i], inner[i, s], hs[i, t], after, keep)


@kernel
def _open(gates, x, bias, h, inner, before):
    """The gates r and z of one row, and r * h."""
    d = len(h)
    for k in range(2):
        gate, x_k, bias_k = gates[k], x[k], bias[k]
        for j in range(d):
            gate[j] = sigmoid(gate[j] + x_k[j] + bias_k[j])
    r = gates[0]
    for j in range(d):
        before[j] = h[j]
        inner[j] = r[j] * h[j]


@kernel
def _update(gates, x, bias, h, inner, out, after, keep):
    """The candidate n and the new state of one row. Short loops: the compiler makes vector instructions of each of them."""
    d = len(h)
    z, n, x_n, bias_n = gates[1], gates[2], x[2], bias[2]
    if after:
        r = gates[0]
        for j in range(d):
            inner[j] = n[j] + bias_n[j]
        for j in range(d):
            n[j] = tanh(x_n[j] + r[j] * inner[j])
    else:
        for j in range(d):
            n[j] = tanh(x_n[j] + n[j] + bias_n[j])
    zero, one = h.dtype.type(0), h.dtype.type(1)  # plain integers would make it float64
    shift, sign = (zero, one) if keep else (one, -one)
    for j in range(d):
        kept = shift + sign * z[j]  # of the old state: z or 1 - z
        new = n[j] + kept * (h[j] - n[j])
        h[j], out[j] = new, new


@kernel
def _backward(g, w, lengths, gates, inner, before, at_x, at_inner, at_h, reverse, after, keep, rows):
    """All chunks, w as in `_forward`."""
    d = g.shape[2]
    w_rz, w_n = pack(w[:2 * d:1, ::1]), pack(w[2 * d::1, ::1])
    for start in range(0, len(g), rows):
        _backward_chunk(g, w_rz, w_n, lengths, gates, inner, before, at_x, at_inner, at_h, reverse, after, keep, start,
                        min(len(g), start + rows))


@kernel(parallel=True)
def _backward_parallel(g, w, lengths, gates, inner, before, at_x, at_inner, at_h, reverse, after, keep, rows):
    d = g.shape[2]
    w_rz, w_n = pack(w[:2 * d:1, ::1]), pack(w[2 * d::1, ::1])
    for chunk in prange(-(-len(g) // rows)):
        start = chunk * rows
        _backward_chunk(g, w_rz, w_n, lengths, gates, inner, before, at_x, at_inner, at_h, reverse, after, keep, start,
                        min(len(g), start + rows))


@kernel
def _backward_chunk(g, w_rz, w_n, lengths, gates, inner, before, at_x, at_inner, at_h, reverse, after, keep, start, end):
    """Sequences start to end, from the last step to the first.  at_h (B,D) comes in as the gradient of the last state, is
    that of the running state, and leaves as that of h0.

        for t in steps, backwards:
            for row in rows:   at_h += g[t]; at_x[t] = the gradients at what r, z and n are functions of, along D;
                               at_h = what the update passes through
            at_h += at_inner @ w_n + at_x[t; r, z] @ w_rz       (reset before: first through r * h)
    """
    t_end, d = g.shape[1], g.shape[2]
    state, side_by_side = at_h[start:end:1, ::1], at_x.reshape(len(g), t_end, 3 * d)
    for step in range(t_end):
        t = step if reverse else t_end - 1 - step
        for i in range(start, end):
            if t < lengths[i]:
                _update_back(g[i, t], gates[i, t], before[i, t], at_x[i, t], at_h[i], keep)
                if after:
                    _reset_back(gates[i, t], inner[i, t], at_x[i, t], at_inner[i, t])
            else:
                at_x[i, t] = 0
                at_inner[i, t] = 0
        inside = at_inner[start:end:1, t, ::1]
        if after:
            product(state, inside, w_n, True)
        else:
            product(inside, side_by_side[start:end:1, t, 2 * d::1], w_n, False)
            for i in range(start, end):
                if t < lengths[i]:
                    _product_back(gates[i, t], before[i, t], at_x[i, t], at_inner[i, t], at_h[i])
        product(state, side_by_side[start:end:1, t, :2 * d:1], w_rz, True)


@kernel
def _update_back(g, gates, before, at_x, at_h, keep):
    """Through h' = kept h + (1 - kept) n with kept = z or 1 - z, and n = tanh(...)."""
    d, zero, one = len(g), g.dtype.type(0), g.dtype.type(1)  # plain integers would make it float64
    shift, sign = (zero, one) if keep else (one, -one)
    z, n, at_z, at_n = gates[1], gates[2], at_x[1], at_x[2]
    for j in range(d):
        at_h[j] += g[j]
    for j in range(d):
        at_z[j] = sign * at_h[j] * (before[j] - n[j]) * z[j] * (one - z[j])
    for j in range(d):
        at_n[j] = at_h[j] * (one - (shift + sign * z[j])) * (one - n[j] * n[j])
    for j in range(d):
        at_h[j] = at_h[j] * (shift + sign * z[j])


@kernel
def _reset_back(gates, inner, at_x, at_inner):
    """Through x_n + r * inner."""
    d, one = len(inner), inner.dtype.type(1)
    r, at_r, at_n = gates[0], at_x[0], at_x[2]
    for j in range(d):
        at_inner[j] = at_n[j] * r[j]
    for j in range(d):
        at_r[j] = at_n[j] * inner[j] * r[j] * (one - r[j])


@kernel
def _product_back(gates, before, at_x, at_inner, at_h):
    """Through r * h; at_inner is its gradient."""
    d, one = len(before), before.dtype.type(1)
    r, at_r = gates[0], at_x[0]
    for j in range(d):
        at_r[j] = at_inner[j] * before[j] * r[j] * (one - r[j])
    for j in range(d):
        at_h[j] += at_inner[j] * r[j]
