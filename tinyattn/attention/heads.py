"""What mechanisms with heads share: projections into heads, the attention of all heads at once, and their joining.

A mechanism reads `project`, what it does to queries, keys or scores, `attend` (or `attend_in_groups`), `output`. One
with a single head, that adds something to the words before, is `one_head`.
"""
import math

import numpy as np

from ..functional import dropout as drop
from ..functional import linear
from ..ops.attention import Attention, attention_weights
from ..ops.broadcast import ShapeError
from . import mask as masks
from .core import show, weights_of
from .shapes import expect


def split(x, heads):
    """(B, T, H d) to (B, H, T, d)."""
    B, T, A = x.shape
    return x.reshape(B, T, heads, A // heads).transpose(1, 2)


def join(x):
    """(B, H, T, d) to (B, T, H d)."""
    B, H, T, d = x.shape
    return x.transpose(1, 2).reshape(B, T, H * d)


def project(name, x, w_q, w_k, w_v, heads, biases=(None, None, None), memory=None, mask=None, cache=None, groups=None):
    """Queries, keys, values by head, and the mask made ready for them, all checked. Errors begin with `name`.

    x (B, T, D), memory (B, S, K) or None for x itself; w_q (A, D), w_k (C, K), w_v (E, K) with A = H d, C = G d and
    E = G e, where G is `groups`, or `heads`. Returns q (B, H, T, d), k (B, G, S, d), v (B, G, S, e) and the mask or
    None. With a cache the mask must be for the words in it too.
    """
    groups = heads if groups is None else groups
    own, letter = (x, "D") if memory is None else (memory, "K")
    shapes = {"x": (x, "BTD"), "w_q": (w_q, "AD"), "w_k": (w_k, "C" + letter), "w_v": (w_v, "E" + letter)}
    shapes |= {} if memory is None else {"memory": (memory, "BSK")}
    shapes |= {b: (t, n) for b, t, n in zip(("b_q", "b_k", "b_v"), biases, "ACE", strict=True) if t is not None}
    expect(name, **shapes)
    for what, n in (("heads", heads), ("groups", groups)):
        if not isinstance(n, (int, np.integer)) or n < 1:
            raise ValueError(f"{name}: expected {what} to be a whole number of at least 1, got {n!r}")
    A, C, E = len(w_q), len(w_k), len(w_v)
    if heads % groups or A % heads or A == 0 or C * heads != A * groups or E % groups:
        raise ShapeError(f"{name}: expected w_q (H d, D), w_k (G d, K) and w_v (G e, K) with H = {heads}, G = {groups} "
                         f"and H a multiple of G, got {w_q.shape}, {w_k.shape} and {w_v.shape}")
    if cache is not None and memory is not None:
        raise ValueError(f"{name}: a cache holds the words that attend to themselves; a memory does not grow, so leave "
                         "one out")
    past = 0 if cache is None else cache.length
    mask = masks.fit(name, mask, x.shape[0], x.shape[1], past + own.shape[1], heads)
    q, k, v = (linear(t, w, b) for t, w, b in zip((x, own, own), (w_q, w_k, w_v), biases, strict=True))
    return split(q, heads), split(k, groups), split(v, groups), mask


def output(name, context, weights, w_o, b_o=None):
    """y = W_o [heads] + b_o of context (B, H, T, e), w_o (D, H e); with the weights beside it where there are any."""
    joined = join(context)                                                 # (B, T, H e)
    bias = {} if b_o is None else {"b_o": (b_o, "D")}
    expect(name, **{"joined heads": (joined, "BTF"), "w_o": (w_o, "DF"), **bias})
    y = linear(joined, w_o, b_o)                                           # (B, T, D)
    return y if weights is None else (y, weights)


def attend(q, k, v, mask=None, causal=False, bias=None, return_weights=False, dropout=0.0, training=False):
    """softmax(q k^T / sqrt(D) + bias) v: the heart of `self_attention`, and of all that have several heads.

    q (..., T, D), k (..., S, D), v (..., S, E); leading axes broadcast. mask and bias broadcast to (..., T, S); causal
    is aligned at the end. Returns (the mean of the values (..., T, E), weights (..., T, S) or None if they are not
    asked for). Nothing as large as T x S is in memory unless the weights are asked for or dropped in training. Heads
    that come in groups, with q (B, G, H / G, T, D), are shown side by side: weights (B, H, T, S).
    """
    if return_weights or (dropout and training):
        weights = weights_of(side_by_side(scores(q, k, bias)), _shown(q, k, mask, causal))
        used = drop(weights, dropout, training)
        return used.reshape(*q.shape[:-1], k.shape[-2]) @ v, weights if return_weights else None
    context = Attention(causal=causal)(q, k, v, mask, bias)                # (..., T, E)
    show(lambda: side_by_side(scores(q, k, bias)), lambda: _shown(q, k, mask, causal),
         lambda: side_by_side(attention_weights(q, k, mask, causal=causal, bias=bias)))
    return context, None


def scores(q, k, bias=None):
    """e_ts = q_t^T k_s / sqrt(D) + bias_ts: q (..., T, D), k (..., S, D) to (..., T, S)."""
    e = q @ k.transpose() * (1 / math.sqrt(max(q.shape[-1], 1)))
    return e if bias is None else e + bias


def _shown(q, k, mask, causal):
    """The mask and causality as one mask, or None."""
    causal = masks.causal(q.shape[-2], k.shape[-2], device=q.device) if causal else None
    return masks.both(None if mask is None else side_by_side(mask), causal)


def side_by_side(x):
    """(B, G, P, T, S), heads in groups, to (B, G P, T, S); other shapes as they are."""
    return x.reshape(x.shape[0], x.shape[1] * x.shape[2], *x.shape[3:]) if x.ndim == 5 else x


def attend_in_groups(q, k, v, mask=None, causal=False, return_weights=False, dropout=0.0, training=False):
    """As `attend`, where the H heads of q (B, H, T, d) share k (B, G, S, d) and v (B, G, S, e), H / G neighbours each.

    mask (T, S) or (B, 1 or H, 1 or T, S). Returns (context (B, H, T, e), weights (B, H, T, S) or None).
    """
    B, H, T, d = q.shape
    G, e = k.shape[1], v.shape[-1]
    if mask is not None and mask.ndim == 4:
        grouped = (G, H // G) if mask.shape[1] == H else (1, 1)
        mask = mask.reshape(mask.shape[0], *grouped, *mask.shape[2:])
    q = q.reshape(B, G, H // G, T, d)
    context, weights = attend(q, k.unsqueeze(2), v.unsqueeze(2), mask, causal, None, return_weights, dropout, training)
    return context.reshape(B, H, T, e), weights


def one_head(name, x, w_q, w_k, w_v, mask=None, return_weights=False, causal=False):
    """Self-attention of x (B, T, D) with one head, for the mechanism `name`, with which errors begin."""
    expect(name, x=(x, "BTD"), w_q=(w_q, "AD"), w_k=(w_k, "AD"), w_v=(w_v, "ED"))
    B, T, _ = x.shape
    mask = masks.fit(name, mask, B, T, T)
    context, weights = attend(linear(x, w_q), linear(x, w_k), linear(x, w_v), mask, causal, None, return_weights)
    return (context, weights) if return_weights else context
