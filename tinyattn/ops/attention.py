r"""Scaled dot-product attention as one node, without the T x S matrix of weights:

    e[t,s] = scale <q_t, k_s> + bias[t,s]
    w[t,s] = e^e[t,s] / sum_u e^e[t,u]            over the keys that query t may see
    o_t    = sum_s w[t,s] v_s

Memory beyond inputs and output is O(T): the sums run over tiles of keys, and what is kept for the backward pass is the
log-sum-exp of each query, L_t = log sum_s e^e[t,s]. From it each weight can be had again, w[t,s] = e^(e[t,s] - L_t), so
the backward pass computes the tiles a second time instead of remembering them. The loops are in `attention_loops.py`,
the same by blocks of threads on a card in `attention_cuda.py`.

Dao et al. 2022, "FlashAttention"; Milakov and Gimelshein 2018 (the running sum); Vaswani et al. 2017 (the formula).
"""
import math
from functools import lru_cache

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ..autograd import Op, no_grad
from ..cuda import SIMULATED, flat, on_card, zeros
from ..device import empty, launch
from . import attention_cuda as grids
from . import attention_loops as loops
from .broadcast import ShapeError
from .matmul import matmul
from .softmax import check_float

NO_MASK, NOTHING = np.zeros((0, 0), np.bool_), np.zeros(1, np.bool_)  # the second for a card, where nobody reads it
NO_BIAS = {"f": np.zeros((0, 0), np.float32), "d": np.zeros((0, 0), np.float64)}


class Attention(Op):
    r"""o_t = sum_s softmax_s(scale <q_t, k_s> + bias[t,s]) v_s.

    q (..., T, D), k (..., S, D), v (..., S, E) -> (..., T, E). The leading axes broadcast: with k and v (B, 1, S, D)
    all heads of q (B, H, T, D) share one set of keys, which is not repeated in memory.

    scale    a number, 1 / sqrt(D) by default
    causal   query t sees no key after s = t + S - T, so that the last query sees every key
    mask     bool, broadcasts to (..., T, S), True = may be attended to
    bias     floats, broadcast likewise. If it needs a gradient, that takes memory of T x S

    A query that may attend to nothing gives 0 and sends 0 gradient. ShapeError for shapes that do not fit, TypeError if
    q, k, v and bias are not of one float type or the mask is not bool, ValueError for a scale that is not finite.
    """
    name = "attention"
    tex = r"\mathrm{{softmax}}(\lambda\, {q} {k}^\top)\, {v}"

    def __init__(self, scale=None, causal=False):
        if scale is not None and not math.isfinite(scale):
            raise ValueError(f"attention: expected a finite scale, or None for 1 / sqrt(D), got {scale}")
        self.scale, self.causal = None if scale is None else float(scale), bool(causal)

    def cpu(self, q, k, v, mask=None, bias=None):
        args, (batch, T, S, D, E) = self._arguments(q, k, v, mask, bias)
        o, high = empty((*batch, T, E), q.dtype), empty((2, math.prod(batch), T), q.dtype)
        if S == 0 or o.size == 0:
            o[...] = 0
        else:
            args = (*args, o.reshape(-1, T, E), high)
            units = high.shape[1] * -(-T // loops.QUERIES)
            cost = self._cost(high.shape[1], T, S, D + E, q)
            launch(cost, loops.forward, (*args, 0, units), loops.forward_chunks, args)
        if self.recorded:
            self.saved = high
        return o

    def cpu_grad(self, g, o, q, k, v, mask=None, bias=None):
        args, (batch, T, S, D, E) = self._arguments(q, k, v, mask, bias)
        B, g, high = math.prod(batch), _plain(g, (-1, *g.shape[-2:])), self.saved
        if 0 in (B, T, S, E):
            grads = [np.zeros((*batch, *x.shape[-2:]), x.dtype) for x in (q, k, v)]
        else:
            parts = loops.parts_of(B, S)
            dq, dk, dv = empty((B, parts, T, D), q.dtype), empty((B, S, D), q.dtype), empty((B, S, E), q.dtype)
            args = (*args, o.reshape(-1, T, E), high, g, dq, dk, dv)
            cost = self._cost(B, T, S, 3 * D + 2 * E, q)
            launch(cost, loops.backward, (*args, 0, B * parts), loops.backward_chunks, args)
            dq = dq.sum(axis=1) if parts > 1 else dq
            grads = [d.reshape(*batch, *x.shape[-2:]) for d, x in zip((dq, dk, dv), (q, k, v), strict=True)]
        if any(self.needs[4:]):
            grads += [None, self._bias_gradient(g.reshape(o.shape), q, k, v, mask, bias)]
        return tuple(grads[i] if need else None for i, need in enumerate(self.needs))

    def cuda(self, q, k, v, mask=None, bias=None):
        (batch, T, S, _, E), *_ = self._checked(q, k, v, mask, bias)
        o, high = empty((*batch, T, E), q.dtype, "cuda"), empty((2, math.prod(batch), T), q.dtype, "cuda")
        if self.recorded:
            self.saved = high
        if S == 0 or o.size == 0:
            return zeros(o.shape, o.dtype)
        grids.forward(self._on_card(q, k, v, mask, bias), o, high)
        return o

    def cuda_grad(self, g, o, q, k, v, mask=None, bias=None):
        (batch, T, S, D, E), *_ = self._checked(q, k, v, mask, bias)
        shapes = [(*batch, *ends) for ends in ((T, D), (S, D), (S, E), (), (T, S))]
        idle = 0 in (math.prod(batch), T, S, E)
        grads = [None] * 5
        for i, need in enumerate(self.needs):
            if need:  # a causal mask: the grid leaves out keys that are hidden, so the slopes of their bias must be 0 before
                grads[i] = zeros(shapes[i], q.dtype) if idle or i == 4 and self.causal else empty(shapes[i], q.dtype, "cuda")
        if not idle:
            grids.backward(self._on_card(q, k, v, mask, bias), D, self.saved, g, o, grads)
        return tuple(grads[:len(self.needs)])

    def composed(self, q, k, v, mask=None, bias=None):
        return attention_weights(q, k, mask, self.scale, self.causal, bias, v.shape[:-2]) @ v

    def weights(self):
        """The weights (..., T, S) of a recorded call, computed now, outside the graph."""
        if not getattr(self, "recorded", False) or self.inputs is None:
            raise RuntimeError("attention: weights() needs a recorded call whose graph is not freed; "
                               "attention_weights(q, k, mask, scale, causal, bias) computes them from its inputs")
        q, k, v, mask, bias = (*self.inputs, None, None)[:5]
        with no_grad():
            return attention_weights(q, k, mask, self.scale, self.causal, bias, v.shape[:-2])

    # -- from arrays to the arguments of the loops and grids ---------------------------------------------------------
    def _checked(self, q, k, v, mask, bias):
        """What `_plan` says, if the dtypes fit too."""
        for x, name in ((q, "q"), (k, "k"), (v, "v"), (bias, "bias")):
            if x is not None and (x.dtype is not q.dtype and x.dtype != q.dtype or name == "q"):
                check_float(self.name, x)
                if x.dtype != q.dtype:
                    raise TypeError(f"{self.name}: q, k, v and bias must have one dtype, got {q.dtype} and, "
                                    f"for {name}, {x.dtype}")
        if mask is not None and mask.dtype != np.bool_:
            raise TypeError(f"{self.name}: a mask is boolean, True = may be attended to; got {mask.dtype}")
        return _plan(q.shape, k.shape, v.shape, None if mask is None else mask.shape,
                     None if bias is None else bias.shape)

    def _factor(self, q):
        return q.dtype.type(self.scale if self.scale is not None else 1 / math.sqrt(max(q.shape[-1], 1)))

    def _arguments(self, q, k, v, mask, bias):
        """(arguments that forward and backward share, sizes), checked. See `attention_loops` for what they are."""
        sizes, plan, mask_shape, bias_shape = self._checked(q, k, v, mask, bias)
        return (_plain(q, (-1, *q.shape[-2:])), _matrices(k), _matrices(v),
                NO_MASK if mask is None else _rows(mask, mask_shape),
                NO_BIAS[q.dtype.char] if bias is None else _rows(bias, bias_shape),
                plan, self._factor(q), self.causal), sizes

    def _on_card(self, q, k, v, mask, bias):
        """The same for `attention_cuda`."""
        sizes, plan, *_ = self._checked(q, k, v, mask, bias)
        plan = grids.plan_on_card(plan, sizes, self.causal, None if mask is None else mask.shape,
                                  None if bias is None else bias.shape)
        return (flat(q), flat(k), flat(v), on_card(NOTHING) if mask is None else flat(mask),
                flat(q if bias is None else bias), plan, self._factor(q))

    def _cost(self, B, T, S, depth, q):
        """Rough nanoseconds: products along `depth` and an exponential for each score, and each key and value read."""
        each = depth / 70 + 0.5 if q.dtype == np.float32 else depth / 35 + 5
        return B * S * (T * each * (0.6 if self.causal else 1) + depth / 20)

    def _bias_gradient(self, g, q, k, v, mask, bias):
        """w[t,s] (<g_t, v_s> - sum_u w[t,u] <g_t, v_u>): as large as the scores, as the bias itself may be."""
        tensor = self.result._wrap
        q, k, mask, bias = [None if x is None else tensor(x, None, 0, False) for x in (q, k, mask, bias)]
        with no_grad():
            w = attention_weights(q, k, mask, self.scale, self.causal, bias, v.shape[:-2]).array
        with np.errstate(all="ignore"):
            slopes = matmul(g, v.swapaxes(-1, -2))                         # (..., T, S)
            return w * (slopes - (w * slopes).sum(axis=-1, keepdims=True))

    def samples(rng):
        """One query, odd sizes, more queries than keys and fewer, shared keys, each form of mask, rows that see
        nothing, a bias, scores of 1e4, and sizes 0."""
        def qkv(*shapes):
            return tuple(rng.normal(size=s) for s in shapes)

        def bools(share, *shape):
            return rng.random(shape) < share

        plain, causal = {"scale": None, "causal": False}, {"scale": None, "causal": True}
        yield plain, qkv((2, 1, 3), (2, 5, 3), (2, 5, 2))
        yield causal, (*qkv((2, 3, 5, 3), (2, 1, 25, 3), (2, 1, 25, 3)), bools(0.6, 2, 1, 1, 25))
        yield {**plain, "scale": 0.7}, (*qkv((2, 3, 2), (2, 3, 2), (2, 3, 1)), bools(0.5, 2, 3, 3), qkv((3, 1))[0])
        yield causal, qkv((5, 2), (3, 2), (3, 4))
        yield plain, (*qkv((1, 2, 3), (2, 1, 4, 3), (4, 2)), bools(0, 2, 1, 1, 4))
        if not SIMULATED:  # several tiles; simulated ones are smaller, and tests/on_card has its own cases for them
            yield {"scale": -1.0, "causal": True}, (*qkv((2, 70, 3), (1, 270, 3), (2, 270, 2)), bools(0.8, 70, 270))
        yield causal, (*qkv((2, 2, 3), (2, 4, 3), (2, 4, 3)), None, *qkv((2, 2, 4)))
        yield plain, tuple(np.array(x)[:, None] for x in ([100.0, -1.0], [100.0, 99.0, -100.0], [1.0, 3.0, 7.0]))
        for shapes in [((0, 2, 3), (0, 4, 3), (0, 4, 2)), ((2, 3), (0, 3), (0, 2)), ((0, 3), (2, 3), (2, 1)),
                       ((2, 3), (2, 3), (2, 0)), ((2, 0), (3, 0), (3, 2)), ((1, 1), (1, 1), (1, 1))]:
            yield plain, qkv(*shapes)


def attention_weights(q, k, mask=None, scale=None, causal=False, bias=None, batch=()):
    """softmax(scale q k^T + bias) over the keys that may be seen: Tensors q (..., T, D), k (..., S, D) to (..., T, S).

    mask, scale, causal and bias as in `Attention`. batch: the leading axes of v, if a mask or bias has those, too.
    """
    scale = scale if scale is not None else 1 / math.sqrt(max(q.shape[-1], 1))
    e = q @ k.transpose(-1, -2) * scale                                    # (..., T, S)
    stretched = np.broadcast_shapes(e.shape[:-2], batch)
    if stretched != e.shape[:-2] and not (mask is None and bias is None):
        e = e.expand(*stretched, *e.shape[-2:])
    if bias is not None:
        e = e + bias
    if causal:
        T, S = e.shape[-2:]
        past = Op.result(np.arange(S) <= np.arange(T)[:, None] + S - T, device=q.device)  # (T, S)
        mask = past if mask is None else mask & past
    return e.softmax(-1, mask)


# ---------------------------------------------------------------------------------------------------------------------
# shapes
# ---------------------------------------------------------------------------------------------------------------------
@lru_cache(maxsize=4096)
def _plan(q, k, v, mask, bias):
    """Checks the shapes; ((batch, T, S, D, E), plan, shape to stretch the mask to or None, the same for the bias).

    plan[0] are the lengths of the leading axes, plan[1] to plan[5] the steps along them of q, k, v (in matrices), mask
    and bias (in rows), 0 where an axis is stretched. plan[6, :3]: steps of mask and bias from query to query, and S.
    """
    given = f"q {q}, k {k}, v {v}"
    if min(len(q), len(k), len(v)) < 2 or q[-1] != k[-1] or k[-2] != v[-2]:
        raise ShapeError(f"attention: expected q (..., T, D), k (..., S, D) and v (..., S, E), got {given}")
    try:
        batch = np.broadcast_shapes(q[:-2], k[:-2], v[:-2])
    except ValueError:
        raise ShapeError(f"attention: the axes before (T, D), (S, D), (S, E) do not broadcast, got {given}") from None
    scores = (*batch, q[-2], k[-2])
    plan = np.zeros((7, max(len(batch), 3)), np.int64)
    plan[0], plan[6, 2] = 1, k[-2]
    plan[0, :len(batch)] = batch
    for row, shape in enumerate((q, k, v), 1):
        plan[row, :len(batch)] = _steps(shape[:-2], len(batch), 1)
    stretched = [None, None]
    for i, (shape, name) in enumerate(((mask, "mask"), (bias, "bias"))):
        if shape is None:
            continue
        padded = (1,) * (len(scores) - len(shape)) + shape
        if len(shape) > len(scores) or any(n not in (1, m) for n, m in zip(padded, scores, strict=True)):
            raise ShapeError(f"attention: the {name} of shape {shape} does not broadcast to the scores (..., T, S), "
                             f"here {scores}")
        plan[4 + i, :len(batch)] = _steps(padded[:-2], len(batch), padded[-2])
        plan[6, i] = padded[-2] > 1
        stretched[i] = (*padded[:-1], scores[-1])
    return (batch, *scores[-2:], q[-1], v[-1]), plan, *stretched


def _steps(shape, axes, step):
    """Steps along `axes` leading axes for an array of this shape, 0 where it is stretched; `step` along the last."""
    steps = []
    for length in reversed(shape):
        steps.append(0 if length == 1 else step)
        step *= length
    return [0] * (axes - len(shape)) + steps[::-1]


def _plain(x, shape):
    """x as a C-contiguous array of `shape` that may be written to. (Numba compiles anew for any other kind.)"""
    if 0 in x.shape:
        return np.zeros((0, *shape[1:]), x.dtype)
    if not (x.flags.c_contiguous and x.flags.writeable):
        x = np.array(x, order="C")
    return x.reshape(shape)


def _matrices(x):
    """x (..., S, D) with its leading axes merged. A part of longer matrices, as a cache gives, shows them whole."""
    flags = x.flags
    if flags.c_contiguous or not flags.writeable or x.size == 0:
        return _plain(x, (-1, *x.shape[-2:]))
    lead = [(n, s) for n, s in zip(x.shape[:-2], x.strides[:-2], strict=True) if n > 1]
    row, steps = x.shape[-1] * x.itemsize, x.strides
    if not lead or steps[-2:] != (row, x.itemsize) or lead[-1][1] % row or lead[-1][1] < x.shape[-2] * row:
        return _plain(x, (-1, *x.shape[-2:]))
    (count, whole), *outer = lead[::-1]
    step = count * whole
    for n, s in outer:
        if s != step:
            return _plain(x, (-1, *x.shape[-2:]))
        step *= n
    return as_strided(x, (step // whole, whole // row, x.shape[-1]), (whole, row, x.itemsize))


def _rows(x, shape):
    """x, stretched to `shape` (along the last axis only), as a matrix of rows (S,)."""
    if x.shape[-1:] != shape[-1:]:
        x = np.broadcast_to(x.reshape(*shape[:-1], 1), shape)
    return _plain(x, (-1, shape[-1]))
