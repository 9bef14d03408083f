r"""The decoder of Bahdanau et al. 2015 under teacher forcing, all T steps as one node, forward and backward. At each step

    q = W_q s                                          the state before asks
    e_j = v^T tanh(q + k_j),  alpha = softmax(e)       over the source words that the mask allows
    c = sum_j alpha_j h_j                              what it is told
    s' = GRU(x_t + C c, s)                             c enters all three gates; see `gru.py` for the conventions

The words of the target are known, so x_t (their share of the gates) is projected for all steps before, and the read-out,
which needs s and c alone, comes after. What is left between is one step after another, of products with few rows: as a
node an operation they would cost more to call than to compute. Here one kernel runs along the sequence:

    for chunk of sentences in the batch:      the parallel loop; nothing is shared between chunks
        for t in steps:
            q = s @ W_q^T                     (rows, A)
            for row in chunk:                 e, alpha, c, over the source words
            gates = c @ C^T + s @ U^T         (rows, 3N), then as in `gru.py`

The weights alpha are kept for the backward pass, B T S numbers; the tanh of B T S A are computed again. The gradients of
W_q, C and U are one large product each over all B T steps. On a card a block takes the place of a chunk; its kernels stand
in `recurrent_cuda.py`.
"""
import numpy as np
from numba import prange

from ..autograd import Op, scope
from ..cuda import flat, on_card
from ..device import Code, call, empty, kernel, launch
from .additive import AdditiveScores
from .broadcast import ShapeError
from .gru import GRUScan
from .matmul import Affine, matmul_cuda, matmul_into, rows_of
from .recurrent import chunk_rows, of_weights_on_card
from .recurrent_cuda import _decoder_back_cuda, _decoder_cuda, lanes_for, rows_for
from .reduce import sum_cuda
from .shape import permuted
from .shared import exp_below, pack, product, row_max, row_sum, sigmoid, tanh
from .softmax import check_float

R, Z, N = 0, 1, 2  # places of the gates


class AttentionDecoder(Op):
    r"""s_t = GRU(x_t + C c_t, s_{t-1}) with c_t = sum_j softmax_j(v^T tanh(W_q s_{t-1} + k_j)) h_j, for all t.

    x (B,T,3N) the words' share of the gates r, z, n; s0 (B,N); h (B,S,E) annotations; k (B,S,A) their keys; w_q (A,N);
    v (A,); w_c (3N,E) is C; w_hh (3N,N) is U; mask (B,1,S) bool or None, True = may be attended to. `reset` and `update`
    as in `gru.py`. Returns the states *before* each step (B,T,N), the first of which is s0, and the contexts (B,T,E).
    A step that may attend to nothing has context 0. ShapeError, TypeError, ValueError for unknown conventions.
    """
    name = "attention_decoder"
    tex = r"\mathrm{AttentionDecoder}({x}, {s0}, {h}, {k})"

    def __init__(self, reset="before", update="write"):
        self.reset, self.update = reset, update
        GRUScan(False, reset, update)  # ValueError for what it does not know

    def cpu(self, x, s0, h, k, w_q, v, w_c, w_hh, mask):
        (b, t, s, n, a, e), mask = self.checked(x, s0, h, k, w_q, v, w_c, w_hh, mask)
        kind = x.dtype
        before, contexts, state = empty((b, t, n), kind), empty((b, t, e), kind), np.array(s0, order="C")
        q, alpha = empty((b, t, a), kind), empty((b, t, s), kind)
        gates, inner = empty((b, t, 3, n), kind), empty((b, t, n), kind)
        args = (_FORWARD_CHUNK[kind], np.ascontiguousarray(x).reshape(b, t, 3, n), state,
                *map(np.ascontiguousarray, (h, k)), mask, *map(np.ascontiguousarray, (w_q, v, w_c, w_hh)), before, contexts,
                q, alpha, gates, inner, self.reset == "after", self.update == "keep", chunk_rows(b))
        launch(_cost(b, t, s, n, a, e), _forward, args, _forward_parallel, args)
        if self.recorded:
            self.saved = mask, q, alpha, gates, inner
        return before, contexts

    def cuda(self, x, s0, h, k, w_q, v, w_c, w_hh, mask):
        (b, t, s, n, a, e), mask = self.checked(x, s0, h, k, w_q, v, w_c, w_hh, mask)
        shapes = (b, t, n), (b, t, e), (b, n), (b, t, a), (b, t, s), (b, t, 3, n), (b, t, n)
        before, contexts, state, q, alpha, gates, inner = [empty(shape, x.dtype, "cuda") for shape in shapes]
        rows, blocks = rows_for(b)
        u_q, u_c, u_hh = [permuted(w, (1, 0)) for w in (w_q, w_c, w_hh)]
        arrays = x, s0, h, k, mask, u_q, v, u_c, u_hh, before, contexts, state, q, alpha, gates, inner
        _decoder_cuda[blocks, lanes_for(max(3 * n, a, e))](*map(flat, arrays), rows, b, t, s, n, a, e,
                                                           int(self.reset == "after"), int(self.update == "keep"))
        if self.recorded:
            self.saved = mask, q, alpha, gates, inner
        return before, contexts

    def composed(self, x, s0, h, k, w_q, v, w_c, w_hh, mask):
        s, before, contexts = s0, [], []
        for t in range(x.shape[1]):
            before.append(s)
            with scope(f"step {t}"):
                with scope("additive"):
                    e = AdditiveScores()(Affine()(s.unsqueeze(1), w_q, None), k, v)    # (B, 1, S)
                    c = (e.softmax(-1, mask) @ h).squeeze(1)                           # (B, E)
                gates = x[:, t] + Affine()(c, w_c, None)                               # (B, 3N)
                _, s = GRUScan(reset=self.reset, update=self.update)(gates.unsqueeze(1), s, w_hh, None, None)
            contexts.append(c)
        if not before:
            return x[:, :, :s0.shape[1]], x[:, :, :1].expand(-1, -1, h.shape[2])
        return self.result.stack(before, 1), self.result.stack(contexts, 1)

    def cpu_grad(self, g, y, x, s0, h, k, w_q, v, w_c, w_hh, mask):
        mask, q, alpha, gates, inner = self.saved
        before, contexts = y
        (b, t, n), (s, a, e), kind = before.shape, (*k.shape[1:], h.shape[2]), x.dtype
        at_s, at_x, at_inner = np.zeros((b, n), kind), empty((b, t, 3, n), kind), empty((b, t, n), kind)
        at_c, at_q, at_h, at_k = np.array(g[1], order="C"), empty((b, t, a), kind), empty((b, s, e), kind), empty((b, s, a), kind)
        at_v, after = empty((b, a), kind), self.reset == "after"
        args = (_BACKWARD_CHUNK[kind], np.ascontiguousarray(g[0]), *map(np.ascontiguousarray, (h, k)), mask,
                *map(np.ascontiguousarray, (w_q, v, w_c, w_hh)), before, q, alpha, gates, inner, at_s, at_x, at_inner, at_c,
                at_q, at_h, at_k, at_v, after, self.update == "keep", chunk_rows(b))
        launch(2 * _cost(b, t, s, n, a, e), _backward, args, _backward_parallel, args)
        at_x = at_x.reshape(b, t, 3 * n)
        parts = ([(at_q, before)], [(at_x, contexts)],
                 [(at_x[:, :, :2 * n], before), (at_inner, before) if after else (at_x[:, :, 2 * n:], inner)])
        at_wq, at_wc, at_whh = [_of_weights(p) if need else None for p, need in zip(parts, [self.needs[i] for i in (4, 6, 7)])]
        grads = at_x, at_s, at_h, at_k, at_wq, at_v.sum(axis=0), at_wc, at_whh, None
        return tuple([grad if need else None for grad, need in zip(grads, self.needs, strict=True)])

    def cuda_grad(self, g, y, x, s0, h, k, w_q, v, w_c, w_hh, mask):
        mask, q, alpha, gates, inner = self.saved
        before, contexts = y
        (b, t, n), (s, a, e), after = before.shape, (*k.shape[1:], h.shape[2]), self.reset == "after"
        shapes = (b, n), (b, t, 3 * n), (b, t, e), (b, t, a), (b, s, a), (b, a), (b, n), (b, s)
        at_s, at_x, at_c, at_q, at_k, at_v, at_inner, slopes = [empty(shape, x.dtype, "cuda") for shape in shapes]
        at_u = empty(at_x.shape, x.dtype, "cuda") if after else at_x  # at the products with w_hh
        arrays = (*g, h, k, mask, w_q, v, w_c, w_hh, before, q, alpha, gates, inner, at_s, at_x, at_u, at_c, at_q, at_k, at_v,
                  at_inner, slopes)
        rows, blocks = rows_for(b)
        _decoder_back_cuda[blocks, lanes_for(max(3 * n, a, e))](*map(flat, arrays), rows, b, t, s, n, a, e, int(after),
                                                                int(self.update == "keep"))
        need = dict(zip(self.input_names, self.needs, strict=True))
        sum_v = empty(a, x.dtype, "cuda") if need["v"] else None
        if need["v"]:
            sum_cuda(flat(at_v), flat(sum_v), 1, b, a)
        return (at_x if need["x"] else None, at_s if need["s0"] else None,
                matmul_cuda(alpha, at_c, turned_a=True) if need["h"] else None, at_k if need["k"] else None,
                of_weights_on_card(at_q, before) if need["w_q"] else None, sum_v,
                of_weights_on_card(at_x, contexts) if need["w_c"] else None,
                of_weights_on_card(at_u, before, None if after else inner) if need["w_hh"] else None, None)

    def checked(self, x, s0, h, k, w_q, v, w_c, w_hh, mask):
        """(B, T, S, N, A, E) and the mask as (B,S), or ShapeError or TypeError."""
        check_float(self.name, x)
        given = {"x": x, "s0": s0, "h": h, "k": k, "w_q": w_q, "v": v, "w_c": w_c, "w_hh": w_hh}
        if any(array.dtype != x.dtype for array in given.values()):
            raise TypeError(f"{self.name}: expected floats of one type, got "
                            f"{', '.join(f'{name} {array.dtype}' for name, array in given.items())}")
        if mask is not None and mask.dtype != np.bool_:
            raise TypeError(f"{self.name}: a mask is boolean, True = may be attended to; got {mask.dtype}")
        (b, t), n, (a, e) = x.shape[:2], s0.shape[-1], (v.shape[-1], h.shape[-1])
        s = h.shape[1] if h.ndim == 3 else -1
        shapes = [(b, t, 3 * n), (b, n), (b, s, e), (b, s, a), (a, n), (a,), (3 * n, e), (3 * n, n)]
        if [array.shape for array in given.values()] != shapes or mask is not None and mask.shape != (b, 1, s):
            raise ShapeError(f"{self.name}: expected x (B,T,3N), s0 (B,N), h (B,S,E), k (B,S,A), w_q (A,N), v (A,), "
                             f"w_c (3N,E), w_hh (3N,N) and mask (B,1,S), got "
                             f"{', '.join(f'{name} {array.shape}' for name, array in given.items())}, mask "
                             f"{None if mask is None else mask.shape}")
        here = isinstance(x, np.ndarray)
        if mask is None:
            mask = np.ones((b, s), np.bool_)
            mask = mask if here else on_card(mask)
        elif here:
            mask = np.ascontiguousarray(mask).reshape(b, s)
        return (b, t, s, n, a, e), mask

    def samples(rng):
        """Both conventions of both kinds; one step, one word, no mask, a sentence without words, no sentence, no step."""
        sizes = [(2, 3, 4, 2, 3, 4), (1, 1, 1, 1, 1, 1), (3, 2, 2, 3, 2, 1), (2, 3, 3, 2, 1, 2), (0, 2, 3, 2, 2, 2),
                 (2, 0, 3, 2, 2, 2), (2, 2, 0, 2, 2, 3)]
        for i, (b, t, s, n, a, e) in enumerate(sizes):
            mask = None if i == 2 else np.arange(s) < rng.integers(i == 1, s + 1, (b, 1, 1))
            if i == 3:
                mask = np.array([[[True, False, True]], [[False, False, False]]])
            shapes = (b, t, 3 * n), (b, n), (b, s, e), (b, s, a), (a, n), (a,), (3 * n, e), (3 * n, n)
            yield ({"reset": ("before", "after")[i % 2], "update": ("write", "keep")[i // 2 % 2]},
                   (*[rng.normal(size=shape) for shape in shapes], mask))


def _cost(b, t, s, n, a, e):
    """About how many nanoseconds the forward pass takes on one core."""
    return b * t * ((a * n + 3 * n * (n + e)) / 100 + s * (a + e / 10) + 4 * n)


def _of_weights(parts):
    """The gradient of a matrix whose rows fall into `parts`: of the gradients at its results and what it multiplied."""
    grads = []
    for at, inputs in parts:
        grads.append(empty((at.shape[2], inputs.shape[2]), at.dtype))
        matmul_into(rows_of(at).T, rows_of(inputs), grads[-1])
    return grads[0] if len(grads) == 1 else np.concatenate(grads)


# ---------------------------------------------------------------------------------------------------------------------
# the loops. `gates` (B,T,3,N) holds r, z, n; `inner` (B,T,N) is U_n s (reset after) or r * s (reset before)
# ---------------------------------------------------------------------------------------------------------------------
@kernel
def _forward(code, x, state, h, k, mask, w_q, v, w_c, w_hh, before, contexts, q, alpha, gates, inner, after, keep, rows):
    """All chunks of `rows` sentences. The matrices are cut into panels for `product` once, for all steps."""
    n = state.shape[1]
    u_q, u_c = pack(w_q.T[::1, ::1]), pack(w_c.T[::1, ::1])
    u_rz, u_n = pack(w_hh[:2 * n].T[::1, ::1]), pack(w_hh[2 * n:].T[::1, ::1])
    for start in range(0, len(state), rows):
        call(code, _forward_chunk, (x, state, h, k, mask, u_q, v, u_c, u_rz, u_n, before, contexts, q, alpha, gates, inner,
                                    after, keep, start, min(len(state), start + rows)))


@kernel(parallel=True)
def _forward_parallel(code, x, state, h, k, mask, w_q, v, w_c, w_hh, before, contexts, q, alpha, gates, inner, after, keep,
                      rows):
    n = state.shape[1]
    u_q, u_c = pack(w_q.T[::1, ::1]), pack(w_c.T[::1, ::1])
    u_rz, u_n = pack(w_hh[:2 * n].T[::1, ::1]), pack(w_hh[2 * n:].T[::1, ::1])
    for chunk in prange(-(-len(state) // rows)):
        start = chunk * rows
        call(code, _forward_chunk, (x, state, h, k, mask, u_q, v, u_c, u_rz, u_n, before, contexts, q, alpha, gates, inner,
                                    after, keep, start, min(len(state), start + rows)))


@kernel
def _forward_chunk(x, state, h, k, mask, u_q, v, u_c, u_rz, u_n, before, contexts, q, alpha, gates, inner, after, keep,
                   start, end):
    """Sentences start to end.  state (B,N) comes in as s0 and is the running state.

        for t in steps:
            q[t] = state @ w_q^T
            for b in rows:                       alpha[t] over the source words; contexts[t], along E
            sums = contexts[t] @ w_c^T           (rows,3N);  sums[r, z] += state @ w_rz^T
            for b in rows:                       r and z, along N
            inner[t] = state @ w_n^T             reset before: sums[n] += (r * state) @ w_n^T
            for b in rows:                       n, and the new state, along N
    """
    n = state.shape[1]
    s, sums = state[start:end:1, ::1], np.empty((end - start, 3, n), state.dtype)
    side_by_side = sums.reshape(end - start, 3 * n)
    for t in range(x.shape[1]):
        product(q[start:end:1, t, ::1], s, u_q, False)
        for b in range(start, end):
            _attend(h, k, mask, v, q, alpha, contexts, b, t)
        product(side_by_side, contexts[start:end:1, t, ::1], u_c, False)
        product(side_by_side[::1, :2 * n:1], s, u_rz, True)
        _open(sums, x, state, gates, inner, before, start, end, t)
        if after:
            product(inner[start:end:1, t, ::1], s, u_n, False)
            _candidate(sums, x, gates, inner, start, end, t)
        else:
            product(side_by_side[::1, 2 * n::1], inner[start:end:1, t, ::1], u_n, True)
        _update(sums, x, state, gates, keep, start, end, t)


_FORWARD_CHUNK = Code(_forward_chunk, "T[:,:,:,::1], T[:,::1], T[:,:,::1], T[:,:,::1], boolean[:,::1], T[:,:], T[::1], T[:,:],"
                                      "T[:,:], T[:,:], T[:,:,::1], T[:,:,::1], T[:,:,::1], T[:,:,::1], T[:,:,:,::1],"
                                      "T[:,:,::1], boolean, boolean, int64, int64")


@kernel
def _attend(h, k, mask, v, q, alpha, contexts, b, t):
    """alpha[b, t] over the source words that the mask allows, and contexts[b, t]; 0 where it allows none."""
    zero, nothing = q.dtype.type(0), q.dtype.type(-np.inf)
    for s in range(k.shape[1]):
        alpha[b, t, s] = _score(q, k, v, b, t, s) if mask[b, s] else nothing
    high = row_max(alpha[b], t)
    high = zero if high == -np.inf else high
    for s in range(k.shape[1]):
        alpha[b, t, s] = exp_below(alpha[b, t, s] - high)
    total = row_sum(alpha[b], t)
    scale = q.dtype.type(1) / total if total != 0 else zero
    for d in range(h.shape[2]):
        contexts[b, t, d] = zero
    for s in range(k.shape[1]):
        alpha[b, t, s] *= scale
        if mask[b, s]:
            a = alpha[b, t, s]
            for d in range(h.shape[2]):
                contexts[b, t, d] += a * h[b, s, d]


@kernel(reduces=True)
def _score(q, k, v, b, t, s):
    """sum_d v[d] tanh(q[b, t, d] + k[b, s, d])"""
    total = v.dtype.type(0)
    for d in range(len(v)):
        total += v[d] * tanh(q[b, t, d] + k[b, s, d])
    return total


@kernel
def _open(sums, x, state, gates, inner, before, start, end, t):
    """The gates r and z, the state that the step begins with, and r * state. (Short loops on whole arrays: `gru.py`
    says why.)"""
    for b in range(start, end):
        for g in range(2):
            for j in range(state.shape[1]):
                gates[b, t, g, j] = sigmoid(sums[b - start, g, j] + x[b, t, g, j])
        for j in range(state.shape[1]):
            before[b, t, j] = state[b, j]
        for j in range(state.shape[1]):
            inner[b, t, j] = gates[b, t, R, j] * state[b, j]


@kernel
def _candidate(sums, x, gates, inner, start, end, t):
    """Reset after the product: sums[n] += r * inner."""
    for b in range(start, end):
        for j in range(inner.shape[2]):
            sums[b - start, N, j] += gates[b, t, R, j] * inner[b, t, j]


@kernel
def _update(sums, x, state, gates, keep, start, end, t):
    """The candidate n and the new state."""
    zero, one = state.dtype.type(0), state.dtype.type(1)  # plain integers would make it float64
    shift, sign = (zero, one) if keep else (one, -one)
    for b in range(start, end):
        for j in range(state.shape[1]):
            gates[b, t, N, j] = tanh(x[b, t, N, j] + sums[b - start, N, j])
        for j in range(state.shape[1]):
            n = gates[b, t, N, j]
            kept = shift + sign * gates[b, t, Z, j]  # of the old state: z or 1 - z
            state[b, j] = n + kept * (state[b, j] - n)


@kernel
def _backward(code, g, h, k, mask, w_q, v, w_c, w_hh, before, q, alpha, gates, inner, at_s, at_x, at_inner, at_c, at_q, at_h,
              at_k, at_v, after, keep, rows):
    """All chunks."""
    n = g.shape[2]
    u_q, u_c = pack(w_q[::1, ::1]), pack(w_c[::1, ::1])
    u_rz, u_n = pack(w_hh[:2 * n:1, ::1]), pack(w_hh[2 * n::1, ::1])
    for start in range(0, len(g), rows):
        call(code, _backward_chunk, (g, h, k, mask, u_q, v, u_c, u_rz, u_n, before, q, alpha, gates, inner, at_s, at_x,
                                     at_inner, at_c, at_q, at_h, at_k, at_v, after, keep, start, min(len(g), start + rows)))


@kernel(parallel=True)
def _backward_parallel(code, g, h, k, mask, w_q, v, w_c, w_hh, before, q, alpha, gates, inner, at_s, at_x, at_inner, at_c, at_q,
                       at_h, at_k, at_v, after, keep, rows):
    n = g.shape[2]
    u_q, u_c = pack(w_q[::1, ::1]), pack(w_c[::1, ::1])
    u_rz, u_n = pack(w_hh[:2 * n:1, ::1]), pack(w_hh[2 * n::1, ::1])
    for chunk in prange(-(-len(g) // rows)):
        start = chunk * rows
        call(code, _backward_chunk, (g, h, k, mask, u_q, v, u_c, u_rz, u_n, before, q, alpha, gates, inner, at_s, at_x,
                                     at_inner, at_c, at_q, at_h, at_k, at_v, after, keep, start, min(len(g), start + rows)))


@kernel
def _backward_chunk(g, h, k, mask, u_q, v, u_c, u_rz, u_n, before, q, alpha, gates, inner, at_s, at_x, at_inner, at_c, at_q,
                    at_h, at_k, at_v, after, keep, start, end):
    """Sentences start to end, from the last step to the first.  at_s (B,N) is the gradient of the running state, 0 at the
    end, and leaves as that of s0; at_c (B,T,E) comes in as the gradient of the contexts from outside.

        for t in steps, backwards:
            for b in rows:     at_x[t] = the gradients at what r, z and n are functions of, along N; at_s = what the
                               update passes through
            at_s += at_inner @ w_n + at_x[t; r, z] @ w_rz       (reset before: first through r * s)
            at_c[t] += at_x[t] @ w_c
            for b in rows:     through the attention: at_h, at_k, at_v and at_q[t], over the source words
            at_s += at_q[t] @ w_q + g[t]                        g (B,T,N) is that of the states before the steps
    """
    n = g.shape[2]
    at, side_by_side, slopes = at_s[start:end:1, ::1], at_x.reshape(len(g), g.shape[1], 3 * n), np.empty((1, k.shape[1]), g.dtype)
    at_h[start:end] = 0
    at_k[start:end] = 0
    at_v[start:end] = 0
    for t in range(g.shape[1] - 1, -1, -1):
        _update_back(gates, before, at_x, at_s, keep, start, end, t)
        inside = at_inner[start:end:1, t, ::1]
        if after:
            _reset_back(gates, inner, at_x, at_inner, start, end, t)
            product(at, inside, u_n, True)
        else:
            product(inside, side_by_side[start:end:1, t, 2 * n::1], u_n, False)
            _product_back(gates, before, at_x, at_inner, at_s, start, end, t)
        product(at, side_by_side[start:end:1, t, :2 * n:1], u_rz, True)
        product(at_c[start:end:1, t, ::1], side_by_side[start:end:1, t, ::1], u_c, True)
        for b in range(start, end):
            _attend_back(h, k, mask, v, q, alpha, at_c, at_q, at_h, at_k, at_v, slopes, b, t)
        product(at, at_q[start:end:1, t, ::1], u_q, True)
        for b in range(start, end):
            for j in range(n):
                at_s[b, j] += g[b, t, j]


_BACKWARD_CHUNK = Code(_backward_chunk, "T[:,:,::1], T[:,:,::1], T[:,:,::1], boolean[:,::1], T[:,:], T[::1], T[:,:], T[:,:],"
                                        "T[:,:], T[:,:,::1], T[:,:,::1], T[:,:,::1], T[:,:,:,::1], T[:,:,::1], T[:,::1],"
                                        "T[:,:,:,::1], T[:,:,::1], T[:,:,::1], T[:,:,::1], T[:,:,::1], T[:,:,::1], T[:,::1],"
                                        "boolean, boolean, int64, int64")


@kernel
def _update_back(gates, before, at_x, at_s, keep, start, end, t):
    """Through s' = kept s + (1 - kept) n with kept = z or 1 - z, and n = tanh(...)."""
    zero, one = at_s.dtype.type(0), at_s.dtype.type(1)  # plain integers would make it float64
    shift, sign = (zero, one) if keep else (one, -one)
    for b in range(start, end):
        for j in range(at_s.shape[1]):
            z = gates[b, t, Z, j]
            at_x[b, t, Z, j] = sign * at_s[b, j] * (before[b, t, j] - gates[b, t, N, j]) * z * (one - z)
        for j in range(at_s.shape[1]):
            n = gates[b, t, N, j]
            at_x[b, t, N, j] = at_s[b, j] * (one - (shift + sign * gates[b, t, Z, j])) * (one - n * n)
        for j in range(at_s.shape[1]):
            at_s[b, j] *= shift + sign * gates[b, t, Z, j]


@kernel
def _reset_back(gates, inner, at_x, at_inner, start, end, t):
    """Through r * inner."""
    one = inner.dtype.type(1)
    for b in range(start, end):
        for j in range(inner.shape[2]):
            at_inner[b, t, j] = at_x[b, t, N, j] * gates[b, t, R, j]
        for j in range(inner.shape[2]):
            r = gates[b, t, R, j]
            at_x[b, t, R, j] = at_x[b, t, N, j] * inner[b, t, j] * r * (one - r)


@kernel
def _product_back(gates, before, at_x, at_inner, at_s, start, end, t):
    """Through r * s; at_inner is its gradient."""
    one = before.dtype.type(1)
    for b in range(start, end):
        for j in range(before.shape[2]):
            r = gates[b, t, R, j]
            at_x[b, t, R, j] = at_inner[b, t, j] * before[b, t, j] * r * (one - r)
        for j in range(before.shape[2]):
            at_s[b, j] += at_inner[b, t, j] * gates[b, t, R, j]


@kernel
def _attend_back(h, k, mask, v, q, alpha, at_c, at_q, at_h, at_k, at_v, slopes, b, t):
    """With slope_s = <at_c, h_s> and the mean of the slopes under alpha, the gradient of a score is e = alpha_s (slope_s -
    mean); behind it y = tanh(q + k_s) passes e v (1 - y^2) to q and to k_s, and e y to v."""
    zero, one = q.dtype.type(0), q.dtype.type(1)
    for s in range(k.shape[1]):
        slopes[0, s] = _slope(at_c, h, b, t, s) if mask[b, s] else zero
    mean = _mean(alpha, slopes, b, t)
    for d in range(len(v)):
        at_q[b, t, d] = zero
    for s in range(k.shape[1]):
        if not mask[b, s]:
            continue
        a = alpha[b, t, s]
        for d in range(h.shape[2]):
            at_h[b, s, d] += a * at_c[b, t, d]
        e = a * (slopes[0, s] - mean)
        for d in range(len(v)):
            y = tanh(q[b, t, d] + k[b, s, d])
            p = e * v[d] * (one - y * y)
            at_q[b, t, d] += p
            at_k[b, s, d] += p
            at_v[b, d] += e * y


@kernel(reduces=True)
def _slope(at_c, h, b, t, s):
    """<at_c[b, t], h[b, s]>"""
    total = h.dtype.type(0)
    for d in range(h.shape[2]):
        total += at_c[b, t, d] * h[b, s, d]
    return total


@kernel(reduces=True)
def _mean(alpha, slopes, b, t):
    """sum_s alpha[b, t, s] slopes[s]"""
    total = alpha.dtype.type(0)
    for s in range(slopes.shape[1]):
        total += alpha[b, t, s] * slopes[0, s]
    return total
