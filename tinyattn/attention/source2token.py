r"""Feature-wise attention, source to token: a whole sentence becomes one vector, each feature by weights of its own.

    f_t = W_2 elu(W_1 x_t + b_1) + b_2        P_t = softmax_t(f_t), feature by feature        s = sum_t P_t * x_t

There is no query: what a token weighs depends on the token alone. elu(z) is z above 0 and e^z - 1 below.

Shen et al. 2018, "DiSAN: Directional self-attention network for RNN/CNN-free language understanding"; Hu 2018 section
3.1.

Cost: 2 T A D multiplications, T D exponentials.

b_2 adds the same to the scores of all tokens, so the softmax takes it out again and its gradient is 0. With W_2 = 0 the
sentence is the mean of its tokens.
"""
import numpy as np

from ..functional import linear, where
from . import mask as masks
from .core import variant, weights_of
from .shapes import expect


def elu(x):
    """x above 0, e^x - 1 elsewhere; its slope is 1 at 0, from both sides."""
    return where(x > 0, x, x.clip(max=0.0).exp() - 1)


@variant("multi-dimensional", params={"w1": "AD", "b1": "A", "w2": "DA", "b2": "D"}, null=("b2",),
         paper="Shen et al. 2018; Hu 2018 section 3.1")
def source2token(x, w1, b1, w2, b2, mask=None, return_weights=False):
    """x (B, T, D) to (B, D). w1 (A, D), b1 (A,), w2 (D, A), b2 (D,). mask is (B, 1, T), the weights are (B, D, 1, T).
    ShapeError."""
    expect("source2token", x=(x, "BTD"), w1=(w1, "AD"), b1=(b1, "A"), w2=(w2, "DA"), b2=(b2, "D"))
    scores = linear(elu(linear(x, w1, b1)), w2, b2)                        # (B, T, D)
    scores = scores.transpose(1, 2).unsqueeze(2)                           # (B, D, 1, T)
    weights = weights_of(scores, masks.fit("source2token", mask, len(x), 1, x.shape[1], x.shape[2]))  # (B, D, 1, T)
    s = (weights.squeeze(2) * x.transpose(1, 2)).sum(-1)                   # (B, D)
    return (s, weights) if return_weights else s


def reference(x, w1, b1, w2, b2, mask=None):
    """One feature at a time."""
    B, T, D = x.shape
    out = np.zeros((B, D))
    for b in range(B):
        for d in range(D):
            e = {}
            for t in range(T):
                if mask is None or np.broadcast_to(mask, (B, 1, T))[b, 0, t]:
                    z = [w1[a] @ x[b, t] + b1[a] for a in range(len(b1))]
                    z = [u if u > 0 else np.exp(u) - 1 for u in z]
                    e[t] = np.exp(sum(w2[d, a] * z[a] for a in range(len(b1))) + b2[d])
            out[b, d] = sum(e[t] * x[b, t, d] for t in e) / sum(e.values()) if e else 0.0
    return out


def example(rng):
    """Two sentences of 4 and 2 tokens."""
    return {"x": rng.normal(size=(2, 4, 3)), "w1": rng.normal(size=(5, 3)), "b1": rng.normal(size=5),
            "w2": rng.normal(size=(3, 5)), "b2": rng.normal(size=3),
            "mask": np.arange(4) < np.array([4, 2])[:, None, None]}


def labels():
    """Queries and keys by number; each feature has weights of its own."""
    return None, None, "feature"
