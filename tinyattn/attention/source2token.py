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

from ..functional import elu, linear
from . import mask as masks
from .core import variant, weights_of
from .shapes import expect


@variant("multi-dimensional", params={"w_1": "AD", "b_1": "A", "w_2": "DA", "b_2": "D"}, null=("b_2",),
         paper="Shen et al. 2018; Hu 2018 section 3.1")
def source2token(x, w_1, b_1, w_2, b_2, mask=None, return_weights=False):
    """x (B, T, D) to (B, D). w_1 (A, D), b_1 (A,), w_2 (D, A), b_2 (D,). mask is (B, 1, T).
    The weights are (B, D, 1, T). ShapeError."""
    expect("source2token", x=(x, "BTD"), w_1=(w_1, "AD"), b_1=(b_1, "A"), w_2=(w_2, "DA"), b_2=(b_2, "D"))
    scores = linear(elu(linear(x, w_1, b_1)), w_2, b_2)                    # (B, T, D)
    scores = scores.transpose(1, 2).unsqueeze(2)                           # (B, D, 1, T)
    weights = weights_of(scores, masks.fit("source2token", mask, len(x), 1, x.shape[1], x.shape[2]))  # (B, D, 1, T)
    s = (weights.squeeze(2) * x.transpose(1, 2)).sum(-1)                   # (B, D)
    return (s, weights) if return_weights else s


def reference(x, w_1, b_1, w_2, b_2, mask=None):
    """One feature at a time."""
    B, T, D = x.shape
    out = np.zeros((B, D))
    for b in range(B):
        for d in range(D):
            e = {}
            for t in range(T):
                if mask is None or np.broadcast_to(mask, (B, 1, T))[b, 0, t]:
                    z = [w_1[a] @ x[b, t] + b_1[a] for a in range(len(b_1))]
                    z = [u if u > 0 else np.exp(u) - 1 for u in z]
                    e[t] = np.exp(sum(w_2[d, a] * z[a] for a in range(len(b_1))) + b_2[d])
            out[b, d] = sum(e[t] * x[b, t, d] for t in e) / sum(e.values()) if e else 0.0
    return out


def example(rng):
    """Two sentences of 4 and 2 tokens."""
    return {"x": rng.normal(size=(2, 4, 3)), "w_1": rng.normal(size=(5, 3)), "b_1": rng.normal(size=5),
            "w_2": rng.normal(size=(3, 5)), "b_2": rng.normal(size=3),
            "mask": np.arange(4) < np.array([4, 2])[:, None, None]}


def labels():
    """Queries and keys by number; each feature has weights of its own."""
    return None, None, "feature"
