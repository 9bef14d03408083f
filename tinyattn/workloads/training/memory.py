r"""The end-to-end memory network of Sukhbaatar et al. 2015 (`models/memory_network.py`), at the sizes of bAbI: hardly any work.

    m_i = sum_j l_j * A_h x_ij + T_h(i),  c_i = the same with A_{h+1} and T_{h+1};   u <- u + sum_i softmax_i(u^T m_i) c_i
    p = softmax(A_{H+1} u) over all words

Adjacent tying, position encoding, no noise in the ages. Every slot of the memory is filled, each sentence has J words, so
the weights l of words are one matrix; ours finds out how long the sentences are all the same.
"""
from dataclasses import dataclass, field

import numpy as np

from ... import functional
from ...attention.memn2n import position_encoding
from ...models.memory_network import MemoryNetwork
from ...tensor import Tensor
from ..row import Row
from . import core


@dataclass
class Options:
    """What our model wants to be told."""
    hidden: int
    hops: int
    memory: int
    encoding: str = "position"
    form: str = "paper"
    tying: str = "adjacent"
    temporal: bool = True
    random_noise: float = 0.0
    linear_start: int = 0
    nonlinear: bool = False
    dropout: float = 0.0


@dataclass
class Sizes:
    """B stories of M sentences and B questions, of J words out of V; vectors of D numbers, H hops."""
    B: int = 32
    M: int = 50
    J: int = 7
    V: int = 180
    D: int = 20
    H: int = 3
    options: Options = field(init=False, repr=False)

    def __post_init__(self):
        self.options = Options(self.D, self.H, self.M)

    def __str__(self):
        return f"B,M,J,V,D,H = {self.B},{self.M},{self.J},{self.V},{self.D},{self.H}"


def weights(s):
    """Under the names of our model. The vector of no word, word 0, is 0 in all tables."""
    rng = np.random.default_rng(0)
    w = {f"{kind}.{i}": (0.4 * rng.normal(size=(rows, s.D))).astype(np.float32)
         for i in range(s.H + 1) for kind, rows in (("tables", s.V), ("times", s.M))}
    for i in range(s.H + 1):
        w[f"tables.{i}"][0] = 0
    return w


def batch(s):
    """Stories, questions and answers. Word 0 is none, and does not occur."""
    rng = np.random.default_rng(1)
    return rng.integers(1, s.V, (s.B, s.M, s.J)), rng.integers(1, s.V, (s.B, s.J)), rng.integers(1, s.V, s.B)


def floor(s):
    """Multiplications and additions: a word is added up forward, its gradient backward, in H + 1 tables; a hop has two
    products with the memories, each with two gradients; so has the answer."""
    added = s.B * s.J * s.D * (s.M * (s.H + 1) + 1)
    return 2 * (2 * added + 3 * s.B * s.D * (2 * s.M * s.H + s.V))


# ---------------------------------------------------------------------------------------------------------------------
# the sides
# ---------------------------------------------------------------------------------------------------------------------
def ours(s, compiled=False):
    model = MemoryNetwork(s.V, s.V, s.options, s.M, s.J, answer_words=np.arange(s.V))

    def loss(model, story, question, answers):
        return functional.cross_entropy(model(Tensor(story), Tensor(question)), Tensor(answers))
    return core.ours(model, loss, weights(s), batch(s), compiled)


def torch(s, compiled=False):
    import torch
    from torch import nn
    from torch.nn.functional import cross_entropy

    class MemoryNetwork(nn.Module):
        def __init__(self):
            super().__init__()
            self.tables = nn.ModuleList(nn.Embedding(s.V, s.D) for _ in range(s.H + 1))
            self.times = nn.ModuleList(nn.Embedding(s.M, s.D) for _ in range(s.H + 1))
            self.register_buffer("share", torch.tensor(position_encoding(s.J, s.D), dtype=torch.float32), persistent=False)
            self.register_buffer("ages", torch.arange(s.M - 1, -1, -1), persistent=False)

        def forward(self, story, question):
            memories = [(table(story) * self.share).sum(2) + time(self.ages) for table, time in zip(self.tables, self.times)]
            u = (self.tables[0](question) * self.share).sum(1)             # (B, D)
            for m, c in zip(memories, memories[1:]):
                p = torch.softmax(torch.bmm(m, u.unsqueeze(2)), 1)         # (B, M, 1)
                u = u + torch.bmm(p.transpose(1, 2), c).squeeze(1)
            return u @ self.tables[-1].weight.T

    def loss(model, story, question, answers):
        return cross_entropy(model(story, question), answers)
    named = {f"{name}.weight": a for name, a in weights(s).items()}
    return core.torch(MemoryNetwork(), loss, named, batch(s), compiled)


def jax(s):
    from jax import nn, numpy
    share = position_encoding(s.J, s.D).astype(np.float32)

    def loss(w, story, question, answers):
        memories = [(w[f"tables.{i}"][story] * share).sum(2) + w[f"times.{i}"][::-1] for i in range(s.H + 1)]
        u = (w["tables.0"][question] * share).sum(1)
        for m, c in zip(memories, memories[1:]):
            p = nn.softmax(numpy.einsum("bmd,bd->bm", m, u))
            u = u + numpy.einsum("bm,bmd->bd", p, c)
        return -nn.log_softmax(u @ w[f"tables.{s.H}"].T)[np.arange(s.B), answers].mean()
    return core.jax(loss, weights(s), batch(s))


def row(s):
    return Row("training step: MemN2N", str(s), "training", core.sides(globals(), s), {"torch": 2, "jax": 1}, floor=floor(s),
               tolerance=core.TOLERANCE)


def rows():
    return [row(Sizes())]
