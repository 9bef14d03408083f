r"""Feature-wise self-attention, token to token: every feature has a softmax over the tokens of its own.

    f_ij = c tanh((W_1 x_j + W_2 x_i + b) / c)      P_ij = softmax_j(f_ij), for each feature      s_i = sum_j P_ij * x_j

i is the token that asks, j the token that it may attend to; f_ij, P_ij and b are vectors of D features, * multiplies
feature by feature. c = 5 keeps every score within (-c, c).

Shen et al. 2018, "DiSAN: Directional self-attention network for RNN/CNN-free language understanding"; the
multi-dimensional attention of Hu 2018, section 3.1 and eqs 24-25.

Cost: T^2 D tanh and exponentials, the reason that a faster variant was published; they are never held in memory here.
Before that, 2 T D^2 multiplications.

Survey: "multi-dimensional" stands there for several scores for each pair (eq. 10); this is the form with one score, and
one softmax, for each feature. Many copies share one softmax between all features, or forget to divide by c inside the tanh,
which saturates it at once.
"""
import numpy as np

from ..functional import linear
from ..ops.featurewise import FeaturewiseAttention, featurewise_weights
from ..tensor import NUMBERS
from . import mask as masks
from .core import show, variant, weigh
from .shapes import expect


def pair_scores(q, k, c):
    """c tanh((q_t + k_s) / c) of q (B, T, D), k (B, S, D), one matrix a feature: (B, D, T, S)."""
    (B, T, D), S = q.shape, k.shape[1]
    pairs = q.transpose(1, 2).reshape(B, D, T, 1) + k.transpose(1, 2).reshape(B, D, 1, S)
    return (pairs / c).tanh() * c


@variant("multi-dimensional", params={"w_1": "DD", "w_2": "DD", "b": "D"},
         paper="Shen et al. 2018; Hu 2018 section 3.1", causal=True)
def token2token(x, w_1, w_2, b, mask=None, c=5.0, return_weights=False):
    """x (B, T, D) to (B, T, D). w_1, w_2 (D, D), b (D,). The weights are (B, D, T, T).
    ShapeError; ValueError unless c > 0."""
    expect("token2token", x=(x, "BTD"), w_1=(w_1, "DD"), w_2=(w_2, "DD"), b=(b, "D"))
    if not isinstance(c, NUMBERS) or not 0 < c < np.inf:
        raise ValueError(f"token2token: expected a finite c > 0, got {c!r}")
    mask = masks.fit("token2token", mask, len(x), x.shape[1], x.shape[1])
    q, k = linear(x, w_2, b), linear(x, w_1)                               # (B, T, D)
    if return_weights:
        everywhere = mask if mask is None or mask.ndim < 3 else mask.unsqueeze(1)  # (B, 1, T, T)
        s, weights = weigh(pair_scores(q, k, c), x.transpose(1, 2).unsqueeze(-1), everywhere, return_weights=True)
        return s.squeeze(-1).transpose(1, 2), weights                      # (B, T, D), (B, D, T, T)
    show(lambda: pair_scores(q, k, c), mask, lambda: featurewise_weights(q, k, mask, c))
    return FeaturewiseAttention(c)(q, k, x, mask)


def reference(x, w_1, w_2, b, mask=None, c=5.0):
    """One feature of one pair of tokens at a time."""
    B, T, D = x.shape
    out = np.zeros((B, T, D))
    for n in range(B):
        for i in range(T):
            for d in range(D):
                e = {}
                for j in range(T):
                    if mask is None or np.broadcast_to(mask, (B, T, T))[n, i, j]:
                        e[j] = np.exp(c * np.tanh((w_1[d] @ x[n, j] + w_2[d] @ x[n, i] + b[d]) / c))
                out[n, i, d] = sum(e[j] * x[n, j, d] for j in e) / sum(e.values()) if e else 0.0
    return out


def example(rng):
    """Two sentences of 4 and 3 tokens, three features."""
    return {"x": rng.normal(size=(2, 4, 3)), "w_1": rng.normal(size=(3, 3)), "w_2": rng.normal(size=(3, 3)),
            "b": rng.normal(size=3), "mask": np.arange(4) < np.array([4, 3])[:, None, None]}


def labels():
    """Queries and keys by number; each feature has weights of its own."""
    return None, None, "feature"
