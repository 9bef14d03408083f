r"""Coupled multi-layer attention: one attention finds aspects, one opinions, and each also asks with the other's query.

    b_i = [ x_i^T G_k u ; x_i^T D_k u' ]_k      r_i = GRU(r_{i-1}, tanh b_i)      alpha = softmax_i(v^T r_i)
    u <- tanh(u^T M) + sum_i alpha_i x_i        next layer, both sides at once    out_i = sum of r_i over the layers

u (D,) is the prototype of a side, u' that of the other side; G and D (K, D, D) are tensors, K scores each, so b_i has 2
K numbers, its own and crossed. A GRU runs along the sentence over the scores. The tags of a word are read from r; alpha
only moves the prototypes.

Wang, Pan, Dahlmeier and Xiao 2017, "Coupled multi-layer attentions for co-extraction of aspect and opinion terms"; Hu
2018 eq. 10.

Cost: a layer takes 4 K D (D + T) multiplications for the scores, and two GRUs of 24 K^2 a word.

Survey: eq. 10 is the score vector b_i alone, with tanh and without D, and there it stops. The paper goes on as above;
its released code feeds b_i to the GRU without the tanh (`tanh=False`), has no biases, a learned r_0, and two layers,
and so it is here. Many copies drop the crossed terms (the two sides are then two models), or share one tensor between
them.
"""
import numpy as np

from ..autograd import scope
from ..functional import concat, einsum, linear, stack
from ..ops.broadcast import ShapeError
from ..ops.gru import GRUScan
from . import mask as masks
from .core import variant, weights_of
from .mask import lengths_of
from .shapes import expect


@variant("multi-dimensional", params={"own": "PKDD", "crossed": "PKDD", "u": "PD", "m": "PDD", "v": "PC", "r0": "PC",
                                       "w_ih": "PGC",
                 "w_hh": "PGC"}, paper="Wang et al. 2017; Hu 2018 eq. 10", keys=("x",))
def cmla(x, own, crossed, u, m, v, r0, w_ih, w_hh, mask=None, layers=2, tanh=True, return_weights=False):
    """x (B, T, D) to (B, 2, T, C): r summed over the layers, for aspects [:, 0] and opinions [:, 1]; 0 at padding.

    Every parameter holds the aspects' first, the opinions' second: own, crossed (2, K, D, D), u (2, D), m (2, D, D),
    v and r0 (2, C), w_ih and w_hh (2, 3C, C), gates in the order r, z, n. (As letters P = 2, C = 2 K, G = 3 C.)
    mask is (B, 1, T), with no hole. The weights are (B, layers, 2, T). ShapeError; ValueError for no layer, or a hole.
    """
    expect("cmla", x=(x, "BTD"), own=(own, "2KDD"), crossed=(crossed, "2KDD"), u=(u, "2D"), m=(m, "2DD"), v=(v, "2C"),
           r0=(r0, "2C"), w_ih=(w_ih, "2GC"), w_hh=(w_hh, "2GC"))
    (B, T, _), C, G = x.shape, v.shape[1], w_ih.shape[1]
    if 2 * own.shape[1] != C or 3 * C != G:
        raise ShapeError(f"cmla: expected C = 2 K and w_ih, w_hh (2, 3C, C), got K = {own.shape[1]}, w_ih {w_ih.shape}")
    if not isinstance(layers, (int, np.integer)) or layers < 1:
        raise ValueError(f"cmla: expected at least one layer, got layers = {layers!r}")
    mask = masks.fit("cmla", mask, B, 1, T)
    lengths = None if mask is None else lengths_of("cmla", mask, B, 1, T)
    u, total, weights = u.expand(B, 2, u.shape[1]), 0.0, []
    for layer in range(layers):
        with scope(f"layer{layer}"):
            b = concat([bilinear(own, u, x), bilinear(crossed, u.flip(1), x)], -1)  # (B, 2, T, 2 K)
            r = along(b.tanh() if tanh else b, r0, w_ih, w_hh, lengths)    # (B, 2, T, C)
            weights.append(weights_of(einsum("bptc,pc->bpt", r, v), mask))  # (B, 2, T)
            if layer + 1 < layers:
                u = einsum("bpd,pde->bpe", u, m).tanh() + weights[-1] @ x  # (B, 2, D)
            total = r + total
    return (total, stack(weights, 1)) if return_weights else total


def bilinear(tensor, u, x):
    """x_t^T tensor_k u for both sides: tensor (2, K, D, D), u (B, 2, D), x (B, T, D) to (B, 2, T, K)."""
    return einsum("pkde,bpe,btd->bptk", tensor, u, x)


def along(b, r0, w_ih, w_hh, lengths):
    """A GRU over the scores b (B, 2, T, C) along T, each side with its own weights: (B, 2, T, C)."""
    sides = []
    for p in (0, 1):
        run, start = GRUScan(reset="before", update="write"), r0[p].expand(len(b), r0.shape[1])  # (B, C)
        sides.append(run(linear(b[:, p], w_ih[p]), start, w_hh[p], None, lengths)[0])  # (B, T, C)
    return stack(sides, 1)


def reference(x, own, crossed, u, m, v, r0, w_ih, w_hh, mask=None, layers=2, tanh=True):
    """One sentence, one word, one score at a time."""
    def sigmoid(z):
        return 1 / (1 + np.exp(-z))

    (B, T, _), K, C = x.shape, own.shape[1], v.shape[1]
    out = np.zeros((B, 2, T, C))
    for n in range(B):
        words = [t for t in range(T) if mask is None or mask[n, 0, t]]
        now = [u[0].copy(), u[1].copy()]
        for _ in range(layers):
            moved = []
            for p in (0, 1):
                r, e = r0[p], {}
                for t in words:
                    b = [x[n, t] @ own[p, k] @ now[p] for k in range(K)]
                    b += [x[n, t] @ crossed[p, k] @ now[1 - p] for k in range(K)]
                    b = np.tanh(b) if tanh else np.array(b)
                    reset = sigmoid(w_ih[p, :C] @ b + w_hh[p, :C] @ r)
                    write = sigmoid(w_ih[p, C:2 * C] @ b + w_hh[p, C:2 * C] @ r)
                    r = (1 - write) * r + write * np.tanh(w_ih[p, 2 * C:] @ b + w_hh[p, 2 * C:] @ (reset * r))
                    out[n, p, t] += r
                    e[t] = np.exp(v[p] @ r)
                moved.append(np.tanh(now[p] @ m[p]) + sum(e[t] * x[n, t] for t in words) / sum(e.values()))
            now = moved
    return out


def example(rng):
    """Two sentences of 4 and 3 words, one own and one crossed score."""
    K, D, C = 1, 3, 2
    shapes = {"x": (2, 4, D), "own": (2, K, D, D), "crossed": (2, K, D, D), "u": (2, D), "m": (2, D, D), "v": (2, C),
              "r0": (2, C), "w_ih": (2, 3 * C, C), "w_hh": (2, 3 * C, C)}
    return {**{name: rng.normal(size=shape) for name, shape in shapes.items()},
            "mask": np.arange(4) < np.array([4, 3])[:, None, None], "layers": 2, "tanh": True}
