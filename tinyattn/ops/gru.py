r"""The gated recurrent unit over a whole sequence, forward and backward. See `recurrent.py` for what the layers share.

    r = sigmoid(x_r + U_r h + b_r)                    reset gate
    z = sigmoid(x_z + U_z h + b_z)                    update gate
    n = tanh(x_n + r * (U_n h + b_n))                 reset="after" the product: PyTorch, cuDNN
    n = tanh(x_n + U_n (r * h) + b_n)                 reset="before" it: Cho et al. 2014, Bahdanau et al. 2015
    h' = z * h + (1 - z) * n                          update="keep": z keeps the old state, as PyTorch has it
    h' = (1 - z) * h + z * n                          update="write": z lets the new in, as Chung et al. 2014 and Bahdanau
"""
import numpy as np
from numba import prange

from ..cuda import flat
from ..device import Code, call, empty, kernel, launch
from .recurrent import Scan, chunk_rows, cost, recurrent_samples
from .recurrent_cuda import _gru_back_cuda, _gru_cuda, lanes_for, rows_for
from .shape import permuted
from .shared import pack, product, sigmoid, tanh

R, Z, N = 0, 1, 2  # places of the gates


class GRUScan(Scan):
    r"""h_t = GRU(x_t, h_{t-1}), for all t of one layer and direction; the two conventions are named, see the file."""
    name = "gru"
    tex = r"\mathrm{GRU}({x}, {h0})"
    gates = 3

    def __init__(self, reverse=False, reset="after", update="keep"):
        if reset not in ("after", "before"):
            raise ValueError(f"{self.name}: expected reset 'after' (PyTorch) or 'before' (Cho, Bahdanau), got {reset!r}")
        if update not in ("keep", "write"):
            raise ValueError(f"{self.name}: expected update 'keep' (PyTorch, Cho) or 'write' (Chung, Bahdanau), got {update!r}")
        self.reverse, self.reset, self.update = reverse, reset, update

    def cpu(self, x, h0, w_hh, b_hh, lengths):
        (b, t, d), bias, lengths = self.checked(x, h0, w_hh, b_hh, lengths)
        steps = t if self.recorded else min(t, 1)  # without a backward pass one step's gates are enough
        hs, h = empty((b, t, d), x.dtype), np.array(h0, order="C")
        gates, inner, before = empty((b, steps, 3, d), x.dtype), empty((b, steps, d), x.dtype), empty((b, steps, d), x.dtype)
        args = (_FORWARD_CHUNK[x.dtype], np.ascontiguousarray(x).reshape(b, t, 3, d), np.ascontiguousarray(w_hh),
                bias.reshape(3, d), lengths, hs, h, gates, inner, before, self.reverse, self.reset == "after",
                self.update == "keep", chunk_rows(b))
        launch(cost(b, t, d, 3), _forward, args, _forward_parallel, args)
        if self.recorded:
            self.saved = lengths, gates, inner, before
        return hs, h

    def cuda(self, x, h0, w_hh, b_hh, lengths):
        sizes, bias, lengths = self.checked_on_card(x, h0, w_hh, b_hh, lengths)
        return scan_on_card(self, sizes, x, None, h0, w_hh, bias, lengths)

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
        args = (_BACKWARD_CHUNK[x.dtype], np.ascontiguousarray(g[0]), np.ascontiguousarray(w_hh), lengths, gates, inner,
                before, at_x, at_inner, at_h, self.reverse, after, self.update == "keep", chunk_rows(b))
        launch(cost(b, t, d, 3), _backward, args, _backward_parallel, args)
        at_x = at_x.reshape(b, t, 3 * d)
        need_x, need_h, need_w, need_b = self.needs[:4]
        parts = (at_x[:, :, :2 * d], before), ((at_inner, before) if after else (at_x[:, :, 2 * d:], inner))
        grad_w, grad_b = self.weight_gradients(need_w, need_b, *parts)
        return at_x if need_x else None, at_h if need_h else None, grad_w, grad_b, None

    def cuda_grad(self, g, y, x, h0, w_hh, b_hh, lengths):
        at_x, _, at_h, at_u, before, inner = scan_back_on_card(self, g, None, w_hh)
        need_x, need_h, need_w, need_b = self.needs[:4]
        grad_w, grad_b = self.weight_gradients_on_card(need_w, need_b, at_u, before, inner)
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
def _forward(code, x, w, bias, lengths, hs, h, gates, inner, before, reverse, after, keep, rows):
    """All chunks of `rows` sequences. w is w_hh (3D,D); its transpose is cut into panels for `product` once, for all steps."""
    d = h.shape[1]
    w_rz, w_n = pack(w[:2 * d].T[::1, ::1]), pack(w[2 * d:].T[::1, ::1])
    for start in range(0, len(h), rows):
        call(code, _forward_chunk, (x, w_rz, w_n, bias, lengths, hs, h, gates, inner, before, reverse, after, keep, start,
                                    min(len(h), start + rows)))


@kernel(parallel=True)
def _forward_parallel(code, x, w, bias, lengths, hs, h, gates, inner, before, reverse, after, keep, rows):
    d = h.shape[1]
    w_rz, w_n = pack(w[:2 * d].T[::1, ::1]), pack(w[2 * d:].T[::1, ::1])
    for chunk in prange(-(-len(h) // rows)):
        start = chunk * rows
        call(code, _forward_chunk, (x, w_rz, w_n, bias, lengths, hs, h, gates, inner, before, reverse, after, keep, start,
                                    min(len(h), start + rows)))


@kernel
def _forward_chunk(x, w_rz, w_n, bias, lengths, hs, h, gates, inner, before, reverse, after, keep, start, end):
    """Sequences start to end.  h (B,D) comes in as h0, is the running state, and leaves as the last one.

        for t in steps:
            sums[r, z] = h @ w_rz^T                         (rows,2D)
            for b in rows:                                  r and z, along D
            sums[n] = h @ w_n^T                             (rows,D)       reset before: (r * h) @ w_n^T
            for b in rows:                                  n, and the new h, along D
    """
    t_end, d = hs.shape[1], hs.shape[2]
    state, sums = h[start:end:1, ::1], np.empty((end - start, 3, d), h.dtype)
    side_by_side = sums.reshape(end - start, 3 * d)
    for step in range(t_end):
        t = t_end - 1 - step if reverse else step
        s = t if gates.shape[1] == t_end else 0
        product(side_by_side[::1, :2 * d:1], state, w_rz, False)
        _open(sums, x, bias, lengths, h, gates, inner, before, hs, start, end, t, s)
        product(side_by_side[::1, 2 * d::1], state if after else inner[start:end:1, s, ::1], w_n, False)
        _update(sums, x, bias, lengths, h, gates, inner, hs, after, keep, start, end, t, s)


_FORWARD_CHUNK = Code(_forward_chunk, "T[:,:,:,::1], T[:,:], T[:,:], T[:,::1], int64[::1], T[:,:,::1], T[:,::1], T[:,:,:,::1],"
                                      "T[:,:,::1], T[:,:,::1], boolean, boolean, boolean, int64, int64")


@kernel
def _open(sums, x, bias, lengths, h, gates, inner, before, hs, start, end, t, s):
    """The gates r and z of each sequence at step t, which is saved as step s; and r * h. Short loops: each becomes vector
    instructions. Whole arrays and places, no views: Numba counts references to each view, which took longer than the loops."""
    for b in range(start, end):
        if t >= lengths[b]:
            hs[b, t] = 0
            inner[b, s] = 0
            before[b, s] = 0
            continue
        for k in range(2):
            for j in range(h.shape[1]):
                gates[b, s, k, j] = sigmoid(sums[b - start, k, j] + x[b, t, k, j] + bias[k, j])
        for j in range(h.shape[1]):
            before[b, s, j] = h[b, j]
        for j in range(h.shape[1]):
            inner[b, s, j] = gates[b, s, R, j] * h[b, j]


@kernel
def _update(sums, x, bias, lengths, h, gates, inner, hs, after, keep, start, end, t, s):
    """The candidate n and the new state."""
    zero, one = h.dtype.type(0), h.dtype.type(1)  # plain integers would make it float64
    shift, sign = (zero, one) if keep else (one, -one)
    for b in range(start, end):
        if t >= lengths[b]:
            continue
        if after:
            for j in range(h.shape[1]):
                inner[b, s, j] = sums[b - start, N, j] + bias[N, j]
            for j in range(h.shape[1]):
                gates[b, s, N, j] = tanh(x[b, t, N, j] + gates[b, s, R, j] * inner[b, s, j])
        else:
            for j in range(h.shape[1]):
                gates[b, s, N, j] = tanh(x[b, t, N, j] + sums[b - start, N, j] + bias[N, j])
        for j in range(h.shape[1]):
            n = gates[b, s, N, j]
            kept = shift + sign * gates[b, s, Z, j]  # of the old state: z or 1 - z
            new = n + kept * (h[b, j] - n)
            h[b, j], hs[b, t, j] = new, new


@kernel
def _backward(code, g, w, lengths, gates, inner, before, at_x, at_inner, at_h, reverse, after, keep, rows):
    """All chunks, w as in `_forward`."""
    d = g.shape[2]
    w_rz, w_n = pack(w[:2 * d:1, ::1]), pack(w[2 * d::1, ::1])
    for start in range(0, len(g), rows):
        call(code, _backward_chunk, (g, w_rz, w_n, lengths, gates, inner, before, at_x, at_inner, at_h, reverse, after, keep,
                                     start, min(len(g), start + rows)))


@kernel(parallel=True)
def _backward_parallel(code, g, w, lengths, gates, inner, before, at_x, at_inner, at_h, reverse, after, keep, rows):
    d = g.shape[2]
    w_rz, w_n = pack(w[:2 * d:1, ::1]), pack(w[2 * d::1, ::1])
    for chunk in prange(-(-len(g) // rows)):
        start = chunk * rows
        call(code, _backward_chunk, (g, w_rz, w_n, lengths, gates, inner, before, at_x, at_inner, at_h, reverse, after, keep,
                                     start, min(len(g), start + rows)))


@kernel
def _backward_chunk(g, w_rz, w_n, lengths, gates, inner, before, at_x, at_inner, at_h, reverse, after, keep, start, end):
    """Sequences start to end, from the last step to the first.  at_h (B,D) comes in as the gradient of the last state, is
    that of the running state, and leaves as that of h0.

        for t in steps, backwards:
            for b in rows:     at_h += g[t]; at_x[t] = the gradients at what r, z and n are functions of, along D;
                               at_h = what the update passes through
            at_h += at_inner @ w_n + at_x[t; r, z] @ w_rz       (reset before: first through r * h)
    """
    t_end, d = g.shape[1], g.shape[2]
    state, side_by_side = at_h[start:end:1, ::1], at_x.reshape(len(g), t_end, 3 * d)
    for step in range(t_end):
        t = step if reverse else t_end - 1 - step
        _update_back(g, lengths, gates, before, at_x, at_inner, at_h, keep, start, end, t)
        inside = at_inner[start:end:1, t, ::1]
        if after:
            _reset_back(lengths, gates, inner, at_x, at_inner, start, end, t)
            product(state, inside, w_n, True)
        else:
            product(inside, side_by_side[start:end:1, t, 2 * d::1], w_n, False)
            _product_back(lengths, gates, before, at_x, at_inner, at_h, start, end, t)
        product(state, side_by_side[start:end:1, t, :2 * d:1], w_rz, True)


_BACKWARD_CHUNK = Code(_backward_chunk, "T[:,:,::1], T[:,:], T[:,:], int64[::1], T[:,:,:,::1], T[:,:,::1], T[:,:,::1],"
                                        "T[:,:,:,::1], T[:,:,::1], T[:,::1], boolean, boolean, boolean, int64, int64")


@kernel
def _update_back(g, lengths, gates, before, at_x, at_inner, at_h, keep, start, end, t):
    """Through h' = kept h + (1 - kept) n with kept = z or 1 - z, and n = tanh(...)."""
    zero, one = g.dtype.type(0), g.dtype.type(1)  # plain integers would make it float64
    shift, sign = (zero, one) if keep else (one, -one)
    for b in range(start, end):
        if t >= lengths[b]:
            at_x[b, t] = 0
            at_inner[b, t] = 0
            continue
        for j in range(g.shape[2]):
            at_h[b, j] += g[b, t, j]
        for j in range(g.shape[2]):
            z = gates[b, t, Z, j]
            at_x[b, t, Z, j] = sign * at_h[b, j] * (before[b, t, j] - gates[b, t, N, j]) * z * (one - z)
        for j in range(g.shape[2]):
            n = gates[b, t, N, j]
            at_x[b, t, N, j] = at_h[b, j] * (one - (shift + sign * gates[b, t, Z, j])) * (one - n * n)
        for j in range(g.shape[2]):
            at_h[b, j] *= shift + sign * gates[b, t, Z, j]


@kernel
def _reset_back(lengths, gates, inner, at_x, at_inner, start, end, t):
    """Through x_n + r * inner."""
    one = inner.dtype.type(1)
    for b in range(start, end):
        if t >= lengths[b]:
            continue
        for j in range(inner.shape[2]):
            at_inner[b, t, j] = at_x[b, t, N, j] * gates[b, t, R, j]
        for j in range(inner.shape[2]):
            r = gates[b, t, R, j]
            at_x[b, t, R, j] = at_x[b, t, N, j] * inner[b, t, j] * r * (one - r)


@kernel
def _product_back(lengths, gates, before, at_x, at_inner, at_h, start, end, t):
    """Through r * h; at_inner is its gradient."""
    one = before.dtype.type(1)
    for b in range(start, end):
        if t >= lengths[b]:
            continue
        for j in range(before.shape[2]):
            r = gates[b, t, R, j]
            at_x[b, t, R, j] = at_inner[b, t, j] * before[b, t, j] * r * (one - r)
        for j in range(before.shape[2]):
            at_h[b, j] += at_inner[b, t, j] * gates[b, t, R, j]


# ---------------------------------------------------------------------------------------------------------------------
# the same on a card, for `attention_gru.py` too: with alpha, and with or without the gate z
# ---------------------------------------------------------------------------------------------------------------------
def scan_on_card(op, sizes, x, alpha, h0, w_hh, bias, lengths):
    """The launch of `recurrent_cuda._gru_cuda`, which says more; alpha is None for a plain GRU."""
    (b, t, d), n = sizes, op.gates
    steps = t if op.recorded else min(t, 1)
    shapes = (b, t, d), (b, d), (b, steps, n, d), (b, steps, d), (b, steps, d)
    hs, h, gates, inner, before = [empty(shape, x.dtype, "cuda") for shape in shapes]
    rows, blocks = rows_for(b)
    attends = alpha is not None
    _gru_cuda[blocks, lanes_for(n * d)](flat(x), flat(alpha if attends else x), flat(h0), flat(permuted(w_hh, (1, 0))), bias,
                                        lengths, flat(hs), flat(h), flat(gates), flat(inner), flat(before), rows,
                                        int(op.recorded), t, d, n - 1, int(attends), int(op.reverse),
                                        int(op.reset == "after"), int(op.update == "keep"))
    if op.recorded:
        op.saved = lengths, gates, inner, before
    return hs, h


def scan_back_on_card(op, g, alpha, w_hh):
    """The launch of `_gru_back_cuda`: the gradients of x, alpha (as D numbers a step, to be added up) and h0; those at the
    products with w_hh, and the two vectors of `weight_gradients_on_card`."""
    lengths, gates, inner, before = op.saved
    b, t, n, d = gates.shape
    after, attends = op.reset == "after", alpha is not None
    at_x, at_alpha, at_h, at_inner = [empty(shape, before.dtype, "cuda") for shape in (
        (b, t, n * d), (b, t if attends else 0, d), (b, d), (b, d))]
    at_u, (rows, blocks) = empty(at_x.shape, at_x.dtype, "cuda") if after else at_x, rows_for(b)
    _gru_back_cuda[blocks, lanes_for(n * d)](flat(g[0]), flat(g[1]), flat(alpha if attends else before), flat(w_hh), lengths,
                                             flat(gates), flat(inner), flat(before), flat(at_x), flat(at_u), flat(at_alpha),
                                             flat(at_h), flat(at_inner), rows, t, d, n - 1, int(attends), int(op.reverse),
                                             int(after), int(op.update == "keep"))
    return at_x, at_alpha, at_h, at_u, before, None if after else inner
