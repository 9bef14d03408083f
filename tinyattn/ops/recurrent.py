r"""What the recurrent layers RNN, GRU and LSTM have in common: one op runs one layer in one direction over a whole sequence.

The input `x` is projected before: x_t W_ih^T + b_ih for all steps is one large product (`matmul.Affine`). What is left is a
product with the (G D, D) matrix w_hh at every step, which needs the state of the step before. It runs in one kernel:

    for chunk of sequences in the batch:      the parallel loop; nothing is shared between chunks
        for t in steps:
            pre = state @ w_hh^T              (rows, G D), in registers, see `shared.tile`
            for row in chunk:                 the gates, elementwise; the new state

The backward kernel walks the same loop from its end and leaves the gradients at the gates of all steps, from which the
gradient of w_hh is one large product over all B T steps.

Conventions, the same for the three layers
    x (B,T,GD)       gates in PyTorch's order: r, z, n for the GRU; i, f, g, o for the LSTM
    h0 (B,D)         the first state, and c0 (B,D) for the LSTM
    w_hh (GD,D)      PyTorch's layout; b_hh (GD,) or None
    lengths (B,)     int64, or None: all T steps count. Beyond its length a sequence is padding: the state is carried
                     unchanged and the output is 0, so the padded batch equals each sequence alone
    reverse=True     runs from the last step to the first, so from the last true step
    returns          hs (B,T,D) and the last state h (B,D), and c (B,D) for the LSTM

On a card a block of threads takes the place of a chunk; its kernels stand in `recurrent_cuda.py`.
"""
import functools

import numpy as np

from ..autograd import Op, scope
from ..cuda import flat, on_card, reshaped
from ..device import empty, get_num_threads, to_device
from .broadcast import ShapeError
from .matmul import column_sums, matmul_cuda, matmul_into, rows_of
from .reduce import sum_cuda
from .shape import part, put


class Scan(Op):
    """The common part of the three layers."""
    gates = 1

    def checked(self, x, h0, w_hh, b_hh, lengths, c0=None):
        """(B, T, D), the bias and the lengths, made where they are None; or the errors of `check`."""
        sizes, lengths = self.check(x, h0, w_hh, b_hh, lengths, c0)
        if b_hh is None:
            b_hh = np.zeros(self.gates * sizes[2], x.dtype)
        return sizes, np.ascontiguousarray(b_hh), np.ascontiguousarray(lengths, np.int64)

    def checked_on_card(self, x, h0, w_hh, b_hh, lengths, c0=None):
        """The same as flat arrays of a card. (Lengths that were sent there are known to the host.)"""
        sizes, known = self.check(x, h0, w_hh, b_hh, lengths, c0)
        if b_hh is None:
            b_hh = on_card(np.zeros(self.gates * sizes[2], x.dtype))
        if lengths is None or lengths.dtype != np.int64:
            lengths = on_card(np.ascontiguousarray(known, np.int64))
        return sizes, flat(b_hh), flat(lengths)

    def check(self, x, h0, w_hh, b_hh, lengths, c0=None):
        """Raise ShapeError unless the shapes fit; return (B, T, D) and the lengths, on the host."""
        kind = x.dtype
        if (kind.kind != "f" or h0.dtype != kind or w_hh.dtype != kind or (b_hh is not None and b_hh.dtype != kind)
                or (c0 is not None and c0.dtype != kind)):
            raise TypeError(f"{self.name}: expected floats of one type, got x {x.dtype}, h0 {h0.dtype}, w_hh {w_hh.dtype}, "
                            f"b_hh {None if b_hh is None else b_hh.dtype}")
        d, g = w_hh.shape[-1], self.gates
        fits = (x.ndim == 3 and w_hh.shape == (g * d, d) and x.shape[2] == g * d and h0.shape == (x.shape[0], d)
                and (c0 is None or c0.shape == h0.shape) and (b_hh is None or b_hh.shape == (g * d,))
                and (lengths is None or lengths.shape == x.shape[:1]))
        if not fits:
            more = "" if c0 is None else f", c0 {c0.shape}"
            raise ShapeError(
                f"{self.name}: expected x (B,T,{g}D), h0{'' if c0 is None else ' and c0'} (B,D), w_hh ({g}D,D), b_hh ({g}D,) "
                f"and lengths (B,), got x {x.shape}, h0 {h0.shape}{more}, w_hh {w_hh.shape}, "
                f"b_hh {None if b_hh is None else b_hh.shape}, lengths {None if lengths is None else lengths.shape}")
        b, t = x.shape[:2]
        if lengths is None:
            lengths = all_steps(b, t)
        elif lengths.dtype.kind not in "iu":
            raise TypeError(f"{self.name}: expected integer lengths, got {lengths.dtype}")
        else:
            lengths = to_device(lengths, "cpu")
            if b and (lengths.min() < 0 or lengths.max() > t):
                raise ValueError(f"{self.name}: expected lengths between 0 and T = {t}, got {lengths.min()} to {lengths.max()}")
        return (b, t, d), lengths

    def unrolled(self, step, x, lengths, *states):
        """The twin's loop: states = step(x_t, *states) in Tensor algebra, for all t; outputs (hs, *last states)."""
        b, t_end = x.shape[:2]
        hs = [None] * t_end
        for t in reversed(range(t_end)) if self.reverse else range(t_end):
            with scope(f"step {t}"):
                new = step(x[:, t], *states)
                if lengths is None:
                    states, hs[t] = new, new[0]
                    continue
                alive = self.result((lengths.numpy() > t)[:, None], device=x.device)  # (B,1)
                states = tuple([n.where(alive, old) for n, old in zip(new, states, strict=True)])
                hs[t] = new[0].where(alive, 0.0)
        empty_sequence = x[:, :, :states[0].shape[1]]
        return (self.result.stack(hs, 1) if hs else empty_sequence, *states)

    def weight_gradients(self, need_w, need_b, *parts):
        """Gradients of w_hh and b_hh. `parts` are (at, inputs), of gradients at some gates and what w_hh was multiplied with."""
        grad_w = grad_b = None
        if need_w:
            grad_w = empty((sum(at.shape[2] for at, _ in parts), parts[0][1].shape[2]), parts[0][0].dtype)
            row = 0
            for at, inputs in parts:
                g = at.shape[2]
                matmul_into(rows_of(at).T, rows_of(inputs), grad_w[row:row + g])
                row += g
        if need_b:
            grad_b = np.concatenate([column_sums(rows_of(at)) for at, _ in parts])
        return grad_w, grad_b

    def weight_gradients_on_card(self, need_w, need_b, at, before, inner=None):
        """The same on a card. `at` (B,T,GD) are the gradients at the products and the bias, `before` (B,T,D) is what w_hh
        was multiplied with; its last D rows with `inner`, if that is given."""
        grad_b = empty(at.shape[2], at.dtype, "cuda") if need_b else None
        if need_b:
            sum_cuda(flat(at), flat(grad_b), 1, at.shape[0] * at.shape[1], at.shape[2])
        return of_weights_on_card(at, before, inner) if need_w else None, grad_b


def of_weights_on_card(at, inputs, inner=None):
    """The gradient (M,D) of a matrix: of the gradients (B,T,M) at its results and the vectors (B,T,D) that it multiplied;
    its last D rows multiplied those of `inner`, if that is given."""
    (b, t, m), d = at.shape, inputs.shape[2]
    at, inputs = reshaped(at, (b * t, m)), reshaped(inputs, (b * t, d))
    if inner is None:
        return matmul_cuda(at, inputs, turned_a=True)
    out, cut = empty((m, d), at.dtype, "cuda"), m - d
    put(matmul_cuda(part(at, (slice(None), slice(cut))), inputs, turned_a=True), out, (slice(cut),))
    put(matmul_cuda(part(at, (slice(None), slice(cut, m))), reshaped(inner, (b * t, d)), turned_a=True), out, (slice(cut, m),))
    return out


@functools.lru_cache(maxsize=64)
def all_steps(b, t):
    """Lengths where there is no padding; kernels only read them. (A decoder asks for them at every step.)"""
    return np.full(b, t, np.int64)


def chunk_rows(b):
    """How many sequences a thread takes. Each is computed by itself, so the number changes no bit of the result."""
    return max(4, -(-b // (4 * get_num_threads())) * 4)


def cost(b, t, d, gates):
    """About how many nanoseconds one pass takes on one core."""
    return b * t * d * (gates * d / 100 + 4)


def recurrent_samples(rng, gates, state=1):
    """One step, one sequence, one unit, no sequence, no step, padding, a non-contiguous input."""
    sizes = [(2, 3, 2, [3, 1]), (1, 1, 1, [1]), (3, 2, 3, None), (2, 3, 1, [0, 2]), (0, 2, 2, None), (2, 0, 2, None)]
    for b, t, d, lengths in sizes:
        states = [rng.normal(size=(b, d)) for _ in range(state)]
        x = rng.normal(size=(t, b, gates * d)).swapaxes(0, 1)
        yield (x, *states, 0.5 * rng.normal(size=(gates * d, d)), rng.normal(size=gates * d),
               None if lengths is None else np.array(lengths))
