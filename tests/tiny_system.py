"""A system as small as can be, for tests of training: a regression with dropout, 23 samples, batches of two sizes."""
from dataclasses import dataclass, field

import numpy as np

from tinyattn import nn, random
from tinyattn.autograd import no_grad
from tinyattn.models.system import System
from tinyattn.tensor import Tensor


@dataclass(frozen=True)
class Options:
    hidden: int = field(default=5, metadata={"help": "width", "choices": None})
    dropout: float = field(default=0.25, metadata={"help": "dropout", "choices": None})


@dataclass(frozen=True)
class Training:
    steps: int = 10
    batch_size: int = 4
    learning_rate: float = 0.05
    optimizer: str = "adam"
    clip: float = 1.0
    warmup: int = 2
    schedule: str = "cosine"
    validate_every: int = 3
    seed: int = 1
    seconds: float | None = None
    keep: str = "best"


class Model(nn.Module):
    def __init__(self, options):
        self.inner = nn.Linear(3, options.hidden)
        self.drop = nn.Dropout(options.dropout)
        self.outer = nn.Linear(options.hidden, 1)

    def forward(self, x):
        return self.outer(self.drop(self.inner(x).tanh()))


class Tiny(System):
    name, help = "tiny", "a regression"
    Options, Training = Options, Training

    def __init__(self, options=None, words=("a", "b"), seed=1):
        random.manual_seed(seed)
        super().__init__(options or Options())
        self.words = list(words)
        self.model = Model(self.options)
        rng = np.random.default_rng(0)
        self.x = rng.normal(size=(23, 3)).astype(np.float32)
        self.y = np.sin(self.x.sum(1, keepdims=True))
        self.poison = lambda: False  # should the loss of this batch be inf?

    def extra(self):
        return {"words": self.words}

    def epoch(self, rng, batch_size):
        order = rng.permutation(len(self.x))
        return [order[i:i + batch_size] for i in range(0, len(order), batch_size)]

    def loss(self, batch):
        off = self.model(Tensor(self.x[batch])) - Tensor(self.y[batch])
        if self.poison():
            off = off * 1e30  # its square is beyond float32
        return (off * off).mean(), len(batch)

    def validation_loss(self):
        self.model.eval()
        with no_grad():
            return self.loss(np.arange(20, 23))[0].item()
