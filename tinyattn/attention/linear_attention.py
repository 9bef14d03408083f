r"""Linear attention: a kernel in place of the softmax, so that the sum over keys is made once for all queries.

    c_t = phi(q_t)^T [sum_s phi(k_s) v_s^T] / phi(q_t)^T [sum_s phi(k_s)]
    phi(x) = elu(x) + 1        causal: the sums run over s <= t, and grow word by word

Katharopoulos et al. 2020, "Transformers are RNNs: fast autoregressive transformers with linear attention".
Not in Hu 2018.

Cost: (T + S) A e multiplications for heads of value width e, where the softmax takes T S (A + E). Causal: no T x S
array, but T d e / 32 numbers of sums at the ends of blocks of 32 words; inside a block the pairs are counted out. A
decoder keeps d (e + 1) numbers a head, however long the past.

The weights are phi(q_t)^T phi(k_s) over their sum: never 0, never sharp. A mask that differs from query to query takes
them out of the sums, so such masks, and `return_weights`, are computed from the T x S weights (which are also what
pictures show).
"""
import math

import numpy as np

from ..functional import concat, ones, zeros
from . import mask as masks
from .core import show, variant, weigh
from .heads import output, project
from .normalise import raw

BLOCK = 32  # words: near the width of a head the pairs in blocks and the sums between them cost the same


def feature(x):
    """phi(x) = elu(x) + 1: x + 1 above 0, e^x below. (`elu(x) + 1` would round a small e^x to 0.)"""
    return x.relu() + x.clip(max=0.0).exp()


def running(q, k, v, start):
    """y_t = q_t^T (start + sum_{s <= t} k_s v_s^T), and that sum after the last word.

    q, k (B, H, T, d), v (B, H, T, e), start (B, H, d, e) to (B, H, T, e) and (B, H, d, e).
    """
    B, H, T, d = q.shape
    size = min(BLOCK, max(T, 1))
    N = -(-T // size)
    q, k, v = (x.pad(((0, 0), (0, 0), (0, N * size - T), (0, 0))).reshape(B, H, N, size, x.shape[-1])
               for x in (q, k, v))
    sums = concat([start.unsqueeze(2), k.transpose() @ v], 2).cumsum(2)    # (B, H, N + 1, d, e), before each block
    within = (q @ k.transpose()).where(masks.causal(size, device=q.device), 0.0)  # (B, H, N, size, size)
    y = q @ sums[:, :, :N] + within @ v
    return y.reshape(B, H, N * size, v.shape[-1])[:, :, :T], sums[:, :, N]


@variant("self", params={"w_q": "AD", "w_k": "AD", "w_v": "ED", "w_o": "DE"}, paper="Katharopoulos et al. 2020",
         causal=True)
def linear_attention(x, w_q, w_k, w_v, w_o, mask=None, return_weights=False, heads=2, causal=False, cache=None):
    """x (B, T, D) to (B, T, D). w_q, w_k (H d, D), w_v (H e, D), w_o (D, H e). causal: query t sees no later word.

    A cache makes it causal; of a mask (B, 1, S) then only the new words' part counts, and there are no weights to
    return: ValueError if they are asked for, or for a mask that differs from query to query. Else errors as in
    `multi_head`.
    """
    q, k, v, mask = project("linear_attention", x, w_q, w_k, w_v, heads, mask=mask, cache=cache)
    q, k = feature(q), feature(k)                                          # (B, H, T, d)
    per_query = mask is not None and mask.shape[-2] > 1
    if cache is not None and (return_weights or per_query):
        raise ValueError("linear_attention: a cache holds two sums, not the words: expected a mask (B, 1, S) and no "
                         "weights asked for")

    def allowed():
        return masks.both(mask, masks.causal(x.shape[1], device=x.device) if causal else None)

    if return_weights or per_query:
        context, weights = weigh(q @ k.transpose(), v, allowed(), True, raw)
        return output("linear_attention", context, weights if return_weights else None, w_o)
    if mask is not None:
        k = k.where(mask[..., mask.shape[-1] - x.shape[1]:].transpose(), 0.0)
    ends = concat([v, ones(*v.shape[:3], 1, dtype=v.dtype, device=v.device)], -1)
    sums = _sums(q, k, ends, causal, cache)                                # (B, H, T, e + 1)
    above, below = sums.split([v.shape[-1], 1], -1)
    if cache is None:
        show(lambda: q @ k.transpose(), allowed, lambda: raw(q @ k.transpose(), allowed()))
    return output("linear_attention", above / below.where(below != 0, 1.0), None, w_o)


def _sums(q, k, v, causal, cache):
    """q_t^T sum_s k_s v_s^T over all s, or over s <= t and the words of the cache, which then gets the new ones."""
    if not causal and cache is None:
        return q @ (k.transpose() @ v)
    B, H, T, d = q.shape
    shape = B, H, d, v.shape[-1]
    start = zeros(*shape, dtype=v.dtype, device=v.device) if cache is None else cache.state(shape, v.dtype, v.device)
    y, end = running(q, k, v, start)
    if cache is not None:
        cache.replace(end, T)
    return y


def reference(x, w_q, w_k, w_v, w_o, mask=None, heads=2, causal=True):
    """The formula, with a weight for each pair of words."""
    B, T, _ = x.shape
    d, e = len(w_q) // heads, len(w_v) // heads

    def phi(row):
        return [1 + y if y > 0 else math.exp(y) for y in row]

    out = np.zeros((B, T, len(w_o)))
    for b in range(B):
        for t in range(T):
            joined = []
            for h in range(heads):
                weights, head = {}, np.zeros(e)
                q = phi(w_q[h * d:(h + 1) * d] @ x[b, t])
                for s in range(t + 1 if causal else T):
                    if mask is None or mask[b, t if mask.shape[1] > 1 else 0, s]:
                        k = phi(w_k[h * d:(h + 1) * d] @ x[b, s])
                        weights[s] = sum(q[i] * k[i] for i in range(d))
                for s in weights:
                    head += weights[s] / sum(weights.values()) * (w_v[h * e:(h + 1) * e] @ x[b, s])
                joined += list(head)
            out[b, t] = w_o @ joined
    return out


def example(rng):
    """Two sentences of at most 5 words, the second of 4; two heads, causal."""
    return {"x": rng.normal(size=(2, 5, 3)), "w_q": rng.normal(size=(4, 3)), "w_k": rng.normal(size=(4, 3)),
            "w_v": rng.normal(size=(2, 3)), "w_o": rng.normal(size=(3, 2)), "heads": 2, "causal": True,
            "mask": np.arange(5) < np.array([5, 4])[:, None, None]}


CAPTION = ("The scores are phi(q)^T phi(k), all positive; the weights are their shares. Neither is computed when "
           "it runs.")
