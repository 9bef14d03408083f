r"""The attention GRU over a sequence, forward and backward: it takes in of each step as much as attention says.

alpha (B,T) is given, one number a step, between 0 and 1. See `recurrent.py` for what the layers share.

    "replace"  h' = alpha n + (1 - alpha) h             alpha in the place of the update gate, so that only r and n are
                                                        left of the gates (DMN+, Xiong et al. 2016; survey eq 37)
    "blend"    h' = alpha GRU(x, h) + (1 - alpha) h     a whole GRU, and alpha around it (DMN, Kumar et al. 2016)

with, as in `gru.py`,

    r = sigmoid(x_r + U_r h + b_r)                      z = sigmoid(x_z + U_z h + b_z), in "blend" alone
    n = tanh(x_n + r * (U_n h + b_n))                   reset="after";   tanh(x_n + U_n (r * h) + b_n)  "before"
    GRU(x, h) = z h + (1 - z) n                         update="keep";   (1 - z) h + z n                "write"

alpha multiplies what is *new* in all of them. Put in the place of a gate z of the convention "keep", it would be turned
upside down: what is attended to most would be skipped. With alpha = 0 the state stays as it is, bit for bit; with
alpha = 1 "blend" is the plain GRU.
"""
import numpy as np
from numba import prange

from ..cuda import flat
from ..device import empty, kernel, launch
from .broadcast import ShapeError
from .gru import scan_back_on_card, scan_on_card
from .recurrent import Scan, chunk_rows, cost, recurrent_samples
from .reduce import sum_cuda
from .shared import pack, product, sigmoid, tanh


class AttentionGRUScan(Scan):
    r"""h_t = alpha_t n_t + (1 - alpha_t) h_{t-1}, or with a whole GRU in place of n_t, for all t; see the file.

    x (B,T,GD) projected inputs, gates r, n (G = 2, "replace") or r, z, n (G = 3, "blend"); alpha (B,T); h0 (B,D);
    w_hh (GD,D); b_hh (GD,) or None; lengths (B,) or None. Returns hs (B,T,D) and the last state h (B,D). Steps beyond a
    sequence's length are padding: output 0, the state stays, no gradient. Errors: ShapeError, TypeError; ValueError for
    unknown conventions, for `update` where there is no update gate, and for lengths outside 0 .. T.
    """
    name = "attention_gru"
    tex = r"\mathrm{AttentionGRU}({x}, {alpha}, {h0})"

    def __init__(self, mode="replace", reset="after", update=None, reverse=False):
        def check(good, expected, got):
            if not good:
                raise ValueError(f"{self.name}: expected {expected}, got {got!r}")

        check(mode in ("replace", "blend"), "mode 'replace' (DMN+) or 'blend' (DMN)", mode)
        check(reset in ("after", "before"), "reset 'after' (PyTorch) or 'before' (Cho, Bahdanau)", reset)
        if mode == "replace":
            check(update is None, "no update with mode 'replace', which has no update gate", update)
        else:
            update = "keep" if update is None else update
            check(update in ("keep", "write"), "update 'keep' (PyTorch, Cho) or 'write' (Chung, Bahdanau)", update)
        self.mode, self.reset, self.update, self.reverse = mode, reset, update, reverse

    @property
    def gates(self):
        return 3 if self.mode == "blend" else 2

    def cpu(self, x, alpha, h0, w_hh, b_hh, lengths):
        (b, t, d), bias, lengths = self.checked(x, h0, w_hh, b_hh, lengths)
        self.check_alpha(x, alpha)
        steps = t if self.recorded else min(t, 1)  # without a backward pass one step's gates are enough
        hs, h, n = empty((b, t, d), x.dtype), np.array(h0, order="C"), self.gates
        gates, (inner, before) = empty((b, steps, n, d), x.dtype), [empty((b, steps, d), x.dtype) for _ in range(2)]
        args = (np.ascontiguousarray(x).reshape(b, t, n, d), np.ascontiguousarray(alpha), np.ascontiguousarray(w_hh),
                bias.reshape(n, d), lengths, hs, h, gates, inner, before, self.reverse, self.reset == "after",
                self.update == "keep", chunk_rows(b))
        launch(cost(b, t, d, n), _forward, args, _forward_parallel, args)
        if self.recorded:
            self.saved = lengths, gates, inner, before
        return hs, h

    def cuda(self, x, alpha, h0, w_hh, b_hh, lengths):
        """By the kernels of the GRU."""
        sizes, bias, lengths = self.checked_on_card(x, h0, w_hh, b_hh, lengths)
        self.check_alpha(x, alpha)
        return scan_on_card(self, sizes, x, alpha, h0, w_hh, bias, lengths)

    def check_alpha(self, x, alpha):
        if alpha.shape != x.shape[:2]:
            raise ShapeError(f"{self.name}: expected alpha (B,T) = {x.shape[:2]}, one number a step, got {alpha.shape}")
        if alpha.dtype != x.dtype:
            raise TypeError(f"{self.name}: expected floats of one type, got x {x.dtype}, alpha {alpha.dtype}")

    def composed(self, x, alpha, h0, w_hh, b_hh, lengths):
        d, n = h0.shape[1], self.gates
        open_, last = (n - 1) * d, n * d
        u_rz, u_n = w_hh[:open_].T, w_hh[open_:].T
        b_rz, b_n = (0.0, 0.0) if b_hh is None else (b_hh[:open_], b_hh[open_:])

        def step(x_t, h):
            rz = (x_t[:, :open_] + h @ u_rz + b_rz).sigmoid()
            r, x_n, a = rz[:, :d], x_t[:, open_:last], x_t[:, last:]  # a (B,1)
            if self.reset == "after":
                new = (x_n + r * (h @ u_n + b_n)).tanh()
            else:
                new = (x_n + (r * h) @ u_n + b_n).tanh()
            if self.mode == "blend":
                z = rz[:, d:]
                new = z * h + (1 - z) * new if self.update == "keep" else (1 - z) * h + z * new
            return (a * new + (1 - a) * h,)

        x = self.result.concat([x, alpha.reshape(*alpha.shape, 1)], 2)  # (B,T,GD+1): a step takes its alpha along
        return self.unrolled(step, x, lengths, h0)

    def cpu_grad(self, g, y, x, alpha, h0, w_hh, b_hh, lengths):
        lengths, gates, inner, before = self.saved
        b, t, n, d = gates.shape
        at_x, at_alpha, at_inner = empty(gates.shape, x.dtype), empty((b, t), x.dtype), empty((b, t, d), x.dtype)
        at_h, after = np.array(g[1], order="C"), self.reset == "after"
        args = (np.ascontiguousarray(g[0]), np.ascontiguousarray(alpha), np.ascontiguousarray(w_hh), lengths, gates,
                inner, before, at_x, at_alpha, at_inner, at_h, self.reverse, after, self.update == "keep",
                chunk_rows(b))
        launch(cost(b, t, d, n), _backward, args, _backward_parallel, args)
        at_x, open_ = at_x.reshape(b, t, n * d), (n - 1) * d
        need_x, need_a, need_h, need_w, need_b = self.needs[:5]
        parts = (at_x[:, :, :open_], before), ((at_inner, before) if after else (at_x[:, :, open_:], inner))
        grad_w, grad_b = self.weight_gradients(need_w, need_b, *parts)
        return at_x if need_x else None, at_alpha if need_a else None, at_h if need_h else None, grad_w, grad_b, None

    def cuda_grad(self, g, y, x, alpha, h0, w_hh, b_hh, lengths):
        at_x, products, at_h, at_u, before, inner = scan_back_on_card(self, g, alpha, w_hh)
        need_x, need_a, need_h, need_w, need_b = self.needs[:5]
        at_alpha = empty(alpha.shape, x.dtype, "cuda") if need_a else None
        if need_a:
            sum_cuda(flat(products), flat(at_alpha), alpha.size, h0.shape[1], 1)
        grad_w, grad_b = self.weight_gradients_on_card(need_w, need_b, at_u, before, inner)
        return at_x if need_x else None, at_alpha, at_h if need_h else None, grad_w, grad_b, None

    def samples(rng):
        kinds = [("replace", "after", None), ("blend", "after", "keep"), ("replace", "before", None),
                 ("blend", "before", "write"), ("blend", "after", "write"), ("blend", "before", "keep")]
        for reverse in (False, True):
            for i in range(6):
                mode, reset, update = kinds[(i + 2 * reverse) % 6]
                x, *rest = list(recurrent_samples(rng, 2 if mode == "replace" else 3))[i]
                alpha = rng.uniform(size=x.shape[:2])
                yield {"mode": mode, "reset": reset, "update": update, "reverse": reverse}, (x, alpha, *rest)


# ---------------------------------------------------------------------------------------------------------------------
# the loops, for both modes: of G gates n is the last one, and Z is an update gate if G is 3. `gates` (B,T,G,D) holds
# them; `inner` is U_n h + b_n (reset after) or r * h (reset before); `before` is the state that a step began with.
# Without a backward pass they have one step, used again and again.
# ---------------------------------------------------------------------------------------------------------------------
R, Z = 0, 1  # places of the gates; Z only in "blend"


@kernel
def _forward(x, alpha, w, bias, lengths, hs, h, gates, inner, before, reverse, after, keep, rows):
    """All chunks of `rows` sequences. w is w_hh (GD,D); its transpose is cut into panels for `product` once for all."""
    cut = (bias.shape[0] - 1) * h.shape[1]
    w_rz, w_n = pack(w[:cut].T[::1, ::1]), pack(w[cut:].T[::1, ::1])
    for start in range(0, len(h), rows):
        _forward_chunk(x, alpha, w_rz, w_n, bias, lengths, hs, h, gates, inner, before, reverse, after, keep, start,
                       min(len(h), start + rows))


@kernel(parallel=True)
def _forward_parallel(x, alpha, w, bias, lengths, hs, h, gates, inner, before, reverse, after, keep, rows):
    cut = (bias.shape[0] - 1) * h.shape[1]
    w_rz, w_n = pack(w[:cut].T[::1, ::1]), pack(w[cut:].T[::1, ::1])
    for chunk in prange(-(-len(h) // rows)):
        start = chunk * rows
        _forward_chunk(x, alpha, w_rz, w_n, bias, lengths, hs, h, gates, inner, before, reverse, after, keep, start,
                       min(len(h), start + rows))


@kernel
def _forward_chunk(x, alpha, w_rz, w_n, bias, lengths, hs, h, gates, inner, before, reverse, after, keep, start, end):
    """Sequences start to end.  h (B,D) comes in as h0, is the running state, and leaves as the last one.

        for t in steps:
            sums[r, z] = h @ w_rz^T                         (rows,D) or (rows,2D)
            for b in rows:                                  r and z, along D
            sums[n] = h @ w_n^T                             (rows,D)       reset before: (r * h) @ w_n^T
            for b in rows:                                  n, and the new h, along D
    """
    t_end, d = hs.shape[1], hs.shape[2]
    n = bias.shape[0] - 1
    state, sums = h[start:end:1, ::1], np.empty((end - start, n + 1, d), h.dtype)
    side_by_side = sums.reshape(end - start, (n + 1) * d)
    for step in range(t_end):
        t = t_end - 1 - step if reverse else step
        s = t if gates.shape[1] == t_end else 0
        product(side_by_side[::1, :n * d:1], state, w_rz, False)
        _open(sums, x, bias, lengths, h, gates, inner, before, hs, start, end, t, s)
        product(side_by_side[::1, n * d::1], state if after else inner[start:end:1, s, ::1], w_n, False)
        _candidate(sums, x, bias, lengths, gates, inner, after, start, end, t, s)
        _update(alpha, lengths, h, gates, hs, keep, start, end, t, s)


@kernel
def _open(sums, x, bias, lengths, h, gates, inner, before, hs, start, end, t, s):
    """The gates r and z of each sequence at step t, which is saved as step s; and r * h. (Short loops on whole arrays:
    `gru.py` says why.)"""
    for b in range(start, end):
        if t >= lengths[b]:
            hs[b, t] = 0
            inner[b, s] = 0
            before[b, s] = 0
            continue
        for k in range(bias.shape[0] - 1):
            for j in range(h.shape[1]):
                gates[b, s, k, j] = sigmoid(sums[b - start, k, j] + x[b, t, k, j] + bias[k, j])
        for j in range(h.shape[1]):
            before[b, s, j] = h[b, j]
        for j in range(h.shape[1]):
            inner[b, s, j] = gates[b, s, R, j] * h[b, j]


@kernel
def _candidate(sums, x, bias, lengths, gates, inner, after, start, end, t, s):
    """n, from its product."""
    n = bias.shape[0] - 1
    for b in range(start, end):
        if t >= lengths[b]:
            continue
        if after:
            for j in range(bias.shape[1]):
                inner[b, s, j] = sums[b - start, n, j] + bias[n, j]
            for j in range(bias.shape[1]):
                gates[b, s, n, j] = tanh(x[b, t, n, j] + gates[b, s, R, j] * inner[b, s, j])
        else:
            for j in range(bias.shape[1]):
                gates[b, s, n, j] = tanh(x[b, t, n, j] + sums[b - start, n, j] + bias[n, j])


@kernel
def _update(alpha, lengths, h, gates, hs, keep, start, end, t, s):
    """h' = a new + (1 - a) h, where new is n or a GRU's new state. So written, a = 0 and a = 1 round nothing."""
    zero, one = h.dtype.type(0), h.dtype.type(1)  # plain integers would make it float64
    shift, sign = (zero, one) if keep else (one, -one)
    last = gates.shape[2] - 1
    for b in range(start, end):
        if t >= lengths[b]:
            continue
        a = alpha[b, t]
        rest = one - a
        if last == Z:
            for j in range(h.shape[1]):
                hs[b, t, j] = a * gates[b, s, last, j] + rest * h[b, j]
        else:
            for j in range(h.shape[1]):
                n = gates[b, s, last, j]
                kept = shift + sign * gates[b, s, Z, j]  # of the old state: z or 1 - z
                hs[b, t, j] = a * (n + kept * (h[b, j] - n)) + rest * h[b, j]
        for j in range(h.shape[1]):
            h[b, j] = hs[b, t, j]


@kernel
def _backward(g, alpha, w, lengths, gates, inner, before, at_x, at_alpha, at_inner, at_h, reverse, after, keep, rows):
    """All chunks, w as in `_forward`."""
    cut = (gates.shape[2] - 1) * g.shape[2]
    w_rz, w_n = pack(w[:cut:1, ::1]), pack(w[cut::1, ::1])
    for start in range(0, len(g), rows):
        _backward_chunk(g, alpha, w_rz, w_n, lengths, gates, inner, before, at_x, at_alpha, at_inner, at_h, reverse,
                        after, keep, start, min(len(g), start + rows))


@kernel(parallel=True)
def _backward_parallel(g, alpha, w, lengths, gates, inner, before, at_x, at_alpha, at_inner, at_h, reverse, after, keep,
                       rows):
    cut = (gates.shape[2] - 1) * g.shape[2]
    w_rz, w_n = pack(w[:cut:1, ::1]), pack(w[cut::1, ::1])
    for chunk in prange(-(-len(g) // rows)):
        start = chunk * rows
        _backward_chunk(g, alpha, w_rz, w_n, lengths, gates, inner, before, at_x, at_alpha, at_inner, at_h, reverse,
                        after, keep, start, min(len(g), start + rows))


@kernel
def _backward_chunk(g, alpha, w_rz, w_n, lengths, gates, inner, before, at_x, at_alpha, at_inner, at_h, reverse, after,
                    keep, start, end):
    """Sequences start to end, from the last step to the first.  at_h (B,D) comes in as the gradient of the last state,
    is that of the running state, and leaves as that of h0.

        for t in steps, backwards:
            for b in rows:     at_h += g[t]; at_alpha[t]; at_x[t] = the gradients at what r, z and n are functions of,
                               along D; at_h = what the update passes through
            at_h += at_inner @ w_n + at_x[t; r, z] @ w_rz       (reset before: first through r * h)
    """
    t_end, d = g.shape[1], g.shape[2]
    last = gates.shape[2] - 1
    state, side_by_side = at_h[start:end:1, ::1], at_x.reshape(len(g), t_end, (last + 1) * d)
    for step in range(t_end):
        t = step if reverse else t_end - 1 - step
        _update_back(g, alpha, lengths, gates, before, at_x, at_alpha, at_inner, at_h, keep, start, end, t)
        inside = at_inner[start:end:1, t, ::1]
        if after:
            _reset_back(lengths, gates, inner, at_x, at_inner, start, end, t)
            product(state, inside, w_n, True)
        else:
            product(inside, side_by_side[start:end:1, t, last * d::1], w_n, False)
            _product_back(lengths, gates, before, at_x, at_inner, at_h, start, end, t)
        product(state, side_by_side[start:end:1, t, :last * d:1], w_rz, True)


@kernel
def _update_back(g, alpha, lengths, gates, before, at_x, at_alpha, at_inner, at_h, keep, start, end, t):
    """Through h' = a new + (1 - a) h, then new = kept h + (1 - kept) n with kept = z or 1 - z (0 in "replace"), then
    n = tanh(...). at_inner is room for the products whose sum is at_alpha."""
    zero, one = g.dtype.type(0), g.dtype.type(1)  # plain integers would make it float64
    shift, sign = (zero, one) if keep else (one, -one)
    last = gates.shape[2] - 1
    for b in range(start, end):
        if t >= lengths[b]:
            at_x[b, t] = 0
            at_inner[b, t] = 0
            at_alpha[b, t] = zero
            continue
        a = alpha[b, t]
        for j in range(g.shape[2]):
            at_h[b, j] += g[b, t, j]
        if last == Z:
            for j in range(g.shape[2]):
                at_inner[b, t, j] = at_h[b, j] * (gates[b, t, last, j] - before[b, t, j])
            for j in range(g.shape[2]):
                n = gates[b, t, last, j]
                at_x[b, t, last, j] = a * at_h[b, j] * (one - n * n)
            for j in range(g.shape[2]):
                at_h[b, j] *= one - a
        else:
            for j in range(g.shape[2]):
                written = one - (shift + sign * gates[b, t, Z, j])
                at_inner[b, t, j] = at_h[b, j] * written * (gates[b, t, last, j] - before[b, t, j])
            for j in range(g.shape[2]):
                z = gates[b, t, Z, j]
                at_x[b, t, Z, j] = sign * a * at_h[b, j] * (before[b, t, j] - gates[b, t, last, j]) * z * (one - z)
            for j in range(g.shape[2]):
                n = gates[b, t, last, j]
                at_x[b, t, last, j] = a * at_h[b, j] * (one - (shift + sign * gates[b, t, Z, j])) * (one - n * n)
            for j in range(g.shape[2]):
                at_h[b, j] *= a * (shift + sign * gates[b, t, Z, j]) + (one - a)
        at_alpha[b, t] = _sum(at_inner, b, t)


@kernel(reduces=True)
def _sum(x, b, t):
    """sum_j x[b, t, j]"""
    total = x.dtype.type(0)
    for j in range(x.shape[2]):
        total += x[b, t, j]
    return total


@kernel
def _reset_back(lengths, gates, inner, at_x, at_inner, start, end, t):
    """Through x_n + r * inner."""
    one, last = inner.dtype.type(1), gates.shape[2] - 1
    for b in range(start, end):
        if t >= lengths[b]:
            continue
        for j in range(inner.shape[2]):
            at_inner[b, t, j] = at_x[b, t, last, j] * gates[b, t, R, j]
        for j in range(inner.shape[2]):
            r = gates[b, t, R, j]
            at_x[b, t, R, j] = at_x[b, t, last, j] * inner[b, t, j] * r * (one - r)


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
