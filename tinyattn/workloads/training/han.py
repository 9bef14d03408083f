r"""The hierarchical attention network of Yang et al. 2016 (`models/han.py`): two levels of a GRU and attention over its states.

    h_it = BiGRU(words of sentence i);   s_i = sum_t softmax_t(u^T tanh(W h_it + b)) h_it;   the same over sentences; W v + b

The paper's GRU lets z write the new state, PyTorch's lets it keep the old one, and 1 - sigmoid(x) = sigmoid(-x): so
`nn.GRU` gets the same weights, those of z with the sign turned. The paper's gates have one bias; the second of `nn.GRU` is 0
and is not learned. No sentence and no document is padded, so peers need neither masks nor packing; ours masks all the same.
"""
from dataclasses import dataclass

import numpy as np

from ... import functional
from ...models.han import HAN
from ...tensor import Tensor
from ..row import Row
from . import core


@dataclass
class Sizes:
    """B documents of N sentences of T words out of V; words D wide, U units each way, A in the hidden layer; C classes."""
    B: int = 16
    N: int = 8
    T: int = 12
    V: int = 1000
    D: int = 64
    U: int = 32
    A: int = 64
    C: int = 5

    def __str__(self):
        return f"B,N,T,V,D,U = {self.B},{self.N},{self.T},{self.V},{self.D},{self.U}"


def weights(s):
    """Under the names of our model."""
    rng, rows = np.random.default_rng(0), 3 * s.U
    shapes = {"embedding.weight": (s.V, s.D), "output.weight": (s.C, 2 * s.U), "output.bias": (s.C,)}
    for level, inputs in (("word", s.D), ("sent", 2 * s.U)):
        shapes |= {f"{level}_ih": (2, rows, inputs), f"{level}_hh": (2, rows, s.U), f"{level}_b": (2, rows),
                   f"w_{level[0]}": (s.A, 2 * s.U), f"b_{level[0]}": (s.A,), f"u_{level[0]}": (s.A,)}
    return {name: (rng.normal(size=shape) / shape[-1] ** 0.5).astype(np.float32) for name, shape in shapes.items()}


def batch(s):
    """Words, 0 being padding, which does not occur, and classes."""
    rng = np.random.default_rng(1)
    return rng.integers(1, s.V, (s.B, s.N, s.T)), rng.integers(0, s.C, s.B)


def floor(s):
    """Multiplications and additions: both directions' gates, the hidden layer, the scores and the mean, over words and
    over sentences; each three times: forward, and for both gradients."""
    def level(inputs):
        return 6 * s.U * (inputs + s.U) + 2 * s.A * s.U + s.A + 2 * s.U
    sentences = s.B * s.N
    return 2 * 3 * (sentences * s.T * level(s.D) + sentences * level(2 * s.U) + s.B * 2 * s.U * s.C)


# ---------------------------------------------------------------------------------------------------------------------
# the sides
# ---------------------------------------------------------------------------------------------------------------------
def ours(s, compiled=False):
    def loss(model, ids, classes):
        return functional.cross_entropy(model(Tensor(ids)), Tensor(classes))
    return core.ours(HAN(s.V, s.C, s.D, s.U, s.A, dropout=0.0), loss, weights(s), batch(s), compiled)


def for_torch(s):
    """`weights` under the names of PyTorch's model."""
    w = weights(s)
    for level in ("word", "sent"):
        for kind, name in (("ih", "weight_ih"), ("hh", "weight_hh"), ("b", "bias_ih")):
            both = w.pop(f"{level}_{kind}")
            both[:, s.U:2 * s.U] *= -1
            w[f"{level}.gru.{name}_l0"], w[f"{level}.gru.{name}_l0_reverse"] = both
        for suffix in ("l0", "l0_reverse"):
            w[f"{level}.gru.bias_hh_{suffix}"] = np.zeros(3 * s.U, np.float32)
        w[f"{level}.hidden.weight"], w[f"{level}.hidden.bias"] = w.pop(f"w_{level[0]}"), w.pop(f"b_{level[0]}")
        w[f"{level}.score.weight"] = w.pop(f"u_{level[0]}")[None]
    return w


def torch(s, compiled=False):
    import torch
    from torch import nn
    from torch.nn.functional import cross_entropy

    class Level(nn.Module):
        def __init__(self, inputs):
            super().__init__()
            self.gru = nn.GRU(inputs, s.U, batch_first=True, bidirectional=True)
            self.gru.bias_hh_l0.requires_grad_(False)
            self.gru.bias_hh_l0_reverse.requires_grad_(False)
            self.hidden, self.score = nn.Linear(2 * s.U, s.A), nn.Linear(s.A, 1, bias=False)

        def forward(self, x):
            h, _ = self.gru(x)                                             # (B, T, 2U)
            weights = torch.softmax(self.score(torch.tanh(self.hidden(h))), 1)  # (B, T, 1)
            return (weights * h).sum(1)

    class HAN(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.output = nn.Embedding(s.V, s.D), nn.Linear(2 * s.U, s.C)
            self.word, self.sent = Level(s.D), Level(2 * s.U)

        def forward(self, ids):
            sentences = self.word(self.embedding(ids).view(s.B * s.N, s.T, s.D))
            return self.output(self.sent(sentences.view(s.B, s.N, 2 * s.U)))

    return core.torch(HAN(), lambda model, ids, classes: cross_entropy(model(ids), classes), for_torch(s), batch(s), compiled)


def jax(s):
    from jax import lax, nn, numpy

    def one_way(x, ih, hh, b, reverse):
        def step(state, x):
            (x_r, x_z, x_n), (h_r, h_z, h_n) = numpy.split(x, 3, 1), numpy.split(state @ hh.T, 3, 1)
            z = nn.sigmoid(x_z + h_z)
            state = (1 - z) * state + z * numpy.tanh(x_n + nn.sigmoid(x_r + h_r) * h_n)
            return state, state
        return lax.scan(step, numpy.zeros((x.shape[1], s.U)), x @ ih.T + b, reverse=reverse)[1]

    def level(w, name, x):
        """x (B, T, D) to (B, 2U); scans run over the first axis."""
        x = x.swapaxes(0, 1)
        ways = [one_way(x, *(w[f"{name}_{kind}"][i] for kind in ("ih", "hh", "b")), i == 1) for i in (0, 1)]
        h = numpy.concatenate(ways, 2)                                     # (T, B, 2U)
        scores = numpy.tanh(h @ w[f"w_{name[0]}"].T + w[f"b_{name[0]}"]) @ w[f"u_{name[0]}"]  # (T, B)
        return (nn.softmax(scores, 0)[..., None] * h).sum(0)

    def loss(w, ids, classes):
        sentences = level(w, "word", w["embedding.weight"][ids].reshape(s.B * s.N, s.T, s.D))
        v = level(w, "sent", sentences.reshape(s.B, s.N, 2 * s.U))
        return -nn.log_softmax(v @ w["output.weight"].T + w["output.bias"])[np.arange(s.B), classes].mean()
    return core.jax(loss, weights(s), batch(s))


def row(s):
    return Row("training step: HAN", str(s), "training", core.sides(globals(), s), {"torch": 2, "jax": 1}, floor=floor(s),
               tolerance=core.TOLERANCE)


def rows():
    return [row(Sizes())]
