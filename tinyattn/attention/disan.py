r"""DiSAN's block: feature-wise self-attention that looks in one direction, and a gate between a token and what it saw.

    u_i = F_i * h_i + (1 - F_i) * s_i, F_i = sigmoid(W_f1 h_i + W_f2 s_i + b_f)
    h_i = elu(W_h x_i + b_h)        s = token2token(h), under a mask

The mask is the order: "forward" lets token i see j < i, "backward" j > i, "diagonal" every j but i. A token never sees
itself: the gate adds it. The first token of a forward block (the last of a backward one) sees nothing, s = 0, and the
gate alone decides.

Shen et al. 2018, "DiSAN: Directional self-attention network for RNN/CNN-free language understanding"; Hu 2018 eqs
24-25.

Cost: T^2 U tanh and exponentials (see token2token), T U (D + 4 U) multiplications.

Survey: eq. 25 prints the strict mask, M_ij = 0 for i > j and -inf elsewhere, whose first row is -inf throughout, so
that its softmax is nan; and it says nothing of the gate. An empty row gives 0 here, as in the authors' code.

The gate mixes h and s, not the raw x. The whole network runs a forward and a backward block, puts them side by side,
and reads them by source2token.
"""
import numpy as np

from ..functional import elu, linear
from . import mask as masks
from .core import variant
from .shapes import expect, one_of
from .token2token import token2token

DIRECTIONS = ("forward", "backward", "diagonal")


@variant("multi-dimensional", params={"w_h": "UD", "b_h": "U", "w_1": "UU", "w_2": "UU", "b": "U", "w_f1": "UU",
                                      "w_f2": "UU", "b_f": "U"},
         paper="Shen et al. 2018; Hu 2018 eqs 24-25", sums=(0.0, 1.0), causal=True, empty=False)
def disan(x, w_h, b_h, w_1, w_2, b, w_f1, w_f2, b_f, mask=None, direction="forward", c=5.0, return_weights=False):
    """x (B, T, D) to (B, T, U). w_h (U, D); w_1, w_2, w_f1, w_f2 (U, U); b_h, b, b_f (U,).
    The weights are (B, U, T, T).

    mask is narrowed to the direction. A padded token's own row still holds its gate; whoever pads drops it. ShapeError;
    InputError for another direction; ValueError unless c > 0.
    """
    one_of("disan", direction=(direction, DIRECTIONS))
    expect("disan", x=(x, "BTD"), w_h=(w_h, "UD"), b_h=(b_h, "U"), w_1=(w_1, "UU"), w_2=(w_2, "UU"), b=(b, "U"),
           w_f1=(w_f1, "UU"), w_f2=(w_f2, "UU"), b_f=(b_f, "U"))
    T, side = x.shape[1], getattr(masks, direction)
    seen = masks.both(side(T, device=x.device), masks.fit("disan", mask, len(x), T, T))
    h = elu(linear(x, w_h, b_h))                                           # (B, T, U)
    s = token2token(h, w_1, w_2, b, seen, c, return_weights)               # (B, T, U)
    s, weights = s if return_weights else (s, None)
    gate = (linear(h, w_f1, b_f) + linear(s, w_f2)).sigmoid()              # (B, T, U)
    u = gate * h + (1 - gate) * s
    return (u, weights) if return_weights else u


def reference(x, w_h, b_h, w_1, w_2, b, w_f1, w_f2, b_f, mask=None, direction="forward", c=5.0):
    """Token by token, feature by feature."""
    (B, T, _), U = x.shape, len(b_h)
    out = np.zeros((B, T, U))
    for n in range(B):
        h = [w_h @ x[n, t] + b_h for t in range(T)]
        h = [np.array([z if z > 0 else np.exp(z) - 1 for z in row]) for row in h]
        for i in range(T):
            seen = {"forward": range(i), "backward": range(i + 1, T)}.get(direction, [j for j in range(T) if j != i])
            s = np.zeros(U)
            for d in range(U):
                e = {}
                for j in seen:
                    if mask is None or np.broadcast_to(mask, (B, T, T))[n, i, j]:
                        e[j] = np.exp(c * np.tanh((w_1[d] @ h[j] + w_2[d] @ h[i] + b[d]) / c))
                if e:
                    s[d] = sum(e[j] * h[j][d] for j in e) / sum(e.values())
            f = 1 / (1 + np.exp(-(w_f1 @ h[i] + w_f2 @ s + b_f)))
            out[n, i] = f * h[i] + (1 - f) * s
    return out


def example(rng):
    """A forward block over two sentences of 4 and 3 tokens."""
    U, D = 3, 2
    arrays = {"x": rng.normal(size=(2, 4, D)), "w_h": rng.normal(size=(U, D)), "b_h": rng.normal(size=U)}
    arrays |= {name: rng.normal(size=(U, U)) for name in ("w_1", "w_2", "w_f1", "w_f2")}
    arrays |= {name: rng.normal(size=U) for name in ("b", "b_f")}
    return {**arrays, "mask": np.arange(4) < np.array([4, 3])[:, None, None], "direction": "forward", "c": 5.0}


def labels():
    """Queries and keys by number; each feature has weights of its own."""
    return None, None, "feature"
