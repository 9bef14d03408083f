r"""Language models of a Transformer's decoder: a larger vocabulary and ReLU, or characters and GELU (as in GPT-2).

    x = E w_t + P t                                             a word and its place, both learned
    x = x + W_o attention(LayerNorm(x)) + b_o;   x = x + W_2 act(W_1 LayerNorm(x) + b_1) + b_2        L times
    loss = cross-entropy of W LayerNorm(x) + b with the next word

Our weights are named as our modules name them, and q, k and v have a matrix each. PyTorch's user and JAX's write
one product for the three (as nanoGPT does); they get the three matrices one below the other, the same numbers.
"""
import math
from dataclasses import dataclass

import numpy as np

from ... import functional, nn
from ...models.transformer import PreNorm
from ..row import Row
from . import core


@dataclass
class Sizes:
    """B texts of T words out of V; L layers of width D with H heads and 4 D hidden units."""
    B: int
    T: int
    V: int
    L: int
    D: int = 128
    H: int = 4
    activation: str = "relu"

    def __str__(self):
        return f"B,T,V,L,D,H = {self.B},{self.T},{self.V},{self.L},{self.D},{self.H}"


TRANSFORMER = Sizes(B=32, T=64, V=1000, L=2)
CHARACTERS = Sizes(B=16, T=128, V=96, L=4, activation="gelu")


def weights(s):
    """Matrices normal with the deviation 1 / sqrt(inputs), and neither biases 0 nor gains 1, so that a mistake there shows."""
    rng = np.random.default_rng(0)
    shapes = {"words.weight": (s.V, s.D), "places.weight": (s.T, s.D)}
    for i in range(s.L):
        attention, feed = f"attention.{i}", f"feed_forward.{i}"
        shapes |= {f"{attention}.sublayer.{part}_proj.{what}": (s.D, s.D) if what == "weight" else (s.D,)
                   for part in ("q", "k", "v", "out") for what in ("weight", "bias")}
        shapes |= {f"{feed}.sublayer.into.weight": (4 * s.D, s.D), f"{feed}.sublayer.into.bias": (4 * s.D,),
                   f"{feed}.sublayer.out_of.weight": (s.D, 4 * s.D), f"{feed}.sublayer.out_of.bias": (s.D,)}
        shapes |= {f"{part}.norm.{what}": (s.D,) for part in (attention, feed) for what in ("weight", "bias")}
    shapes |= {"norm.weight": (s.D,), "norm.bias": (s.D,), "head.weight": (s.V, s.D), "head.bias": (s.V,)}
    return {name: (rng.normal(size=shape) / (10 if len(shape) == 1 else shape[-1] ** 0.5)
                   + name.endswith("norm.weight")).astype(np.float32) for name, shape in shapes.items()}


def batch(s):
    """Words and the words after them."""
    text = np.random.default_rng(1).integers(0, s.V, (s.B, s.T + 1))
    return text[:, :-1].copy(), text[:, 1:].copy()


def joined(s):
    """`weights` with the matrices of q, k and v in one, and short names: a.0.qkv.weight, f.1.into.bias, f.1.norm.weight ..."""
    w = weights(s)
    for i in range(s.L):
        for what in ("weight", "bias"):
            parts = [w.pop(f"attention.{i}.sublayer.{part}_proj.{what}") for part in "qkv"]
            w[f"attention.{i}.sublayer.qkv.{what}"] = np.concatenate(parts)
    return {name.replace("attention", "a").replace("feed_forward", "f").replace("sublayer.", ""): a for name, a in w.items()}


def floor(s):
    """Multiplications and additions. Each of the 12 D^2 + D V numbers in matrices meets each word three times: forward, and
    for both gradients. Attention has 2 products forward and 4 backward, over the words that may be seen."""
    words, pairs = s.B * s.T, s.B * s.T * (s.T + 1) // 2
    return 2 * (3 * words * (12 * s.L * s.D ** 2 + s.D * s.V) + 6 * s.L * pairs * s.D)


# ---------------------------------------------------------------------------------------------------------------------
# the sides
# ---------------------------------------------------------------------------------------------------------------------
class FeedForward(nn.Module, abstract=True):
    def __init__(self, s):
        self.into, self.out_of, self.activation = nn.Linear(s.D, 4 * s.D), nn.Linear(4 * s.D, s.D), s.activation

    def forward(self, x):
        return self.out_of(getattr(self.into(x), self.activation)())


class LanguageModel(nn.Module, abstract=True):
    def __init__(self, s):
        self.words, self.places = nn.Embedding(s.V, s.D), nn.Embedding(s.T, s.D)
        self.attention = [PreNorm(nn.MultiHeadAttention(s.D, s.H), s.D) for _ in range(s.L)]
        self.feed_forward = [PreNorm(FeedForward(s), s.D) for _ in range(s.L)]
        self.norm, self.head = nn.LayerNorm(s.D), nn.Linear(s.D, s.V)

    def forward(self, ids):
        x = self.words(ids) + self.places.weight                           # (B, T, D)
        for attention, feed_forward in zip(self.attention, self.feed_forward, strict=True):
            x = feed_forward(attention(x, causal=True))
        return self.head(self.norm(x))                                     # (B, T, V)


def ours(s, compiled=False):
    return core.ours(LanguageModel(s), lambda model, x, y: functional.cross_entropy(model(x), y), weights(s), batch(s), compiled)


def torch(s, compiled=False):
    import torch
    from torch import nn
    from torch.nn.functional import cross_entropy, scaled_dot_product_attention

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.qkv, self.out_proj = nn.LayerNorm(s.D), nn.Linear(s.D, 3 * s.D), nn.Linear(s.D, s.D)

        def forward(self, x):
            q, k, v = (part.view(s.B, s.T, s.H, -1).transpose(1, 2) for part in self.qkv(self.norm(x)).split(s.D, dim=2))
            y = scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.out_proj(y.transpose(1, 2).reshape(s.B, s.T, s.D))

    class FeedForward(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.into, self.out_of = nn.LayerNorm(s.D), nn.Linear(s.D, 4 * s.D), nn.Linear(4 * s.D, s.D)
            self.activation = getattr(torch.nn.functional, s.activation)

        def forward(self, x):
            return self.out_of(self.activation(self.into(self.norm(x))))

    class LanguageModel(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.places = nn.Embedding(s.V, s.D), nn.Embedding(s.T, s.D)
            self.a = nn.ModuleList(Attention() for _ in range(s.L))
            self.f = nn.ModuleList(FeedForward() for _ in range(s.L))
            self.norm, self.head = nn.LayerNorm(s.D), nn.Linear(s.D, s.V)

        def forward(self, ids):
            x = self.words(ids) + self.places.weight
            for a, f in zip(self.a, self.f, strict=True):
                x = x + a(x)
                x = x + f(x)
            return self.head(self.norm(x))

    def loss(model, x, y):
        return cross_entropy(model(x).view(-1, s.V), y.view(-1))
    return core.torch(LanguageModel(), loss, joined(s), batch(s), compiled)


def functions(s, xp, attend, norm, activation):
    """The logits as a function of (w, ids), for the libraries whose users write functions of dictionaries of weights."""
    def linear(w, name, x):
        return xp.matmul(x, w[name + ".weight"].T) + w[name + ".bias"]

    def logits(w, ids):
        x = w["words.weight"][ids] + w["places.weight"]
        for i in range(s.L):
            a, f = f"a.{i}.", f"f.{i}."
            x = x + linear(w, a + "out_proj", attend(linear(w, a + "qkv", norm(w, a + "norm", x))))
            x = x + linear(w, f + "out_of", activation(linear(w, f + "into", norm(w, f + "norm", x))))
        return linear(w, "head", norm(w, "norm", x))
    return logits


def jax(s):
    import jax
    from jax import nn, numpy

    def norm(w, name, x):
        return nn.standardize(x, epsilon=1e-5) * w[name + ".weight"] + w[name + ".bias"]

    def attend(qkv):
        q, k, v = (part.reshape(s.B, s.T, s.H, -1) for part in numpy.split(qkv, 3, axis=2))
        return nn.dot_product_attention(q, k, v, is_causal=True).reshape(s.B, s.T, s.D)

    activation = {"relu": nn.relu, "gelu": lambda x: nn.gelu(x, approximate=False)}[s.activation]
    logits = functions(s, numpy, attend, norm, activation)

    def loss(w, x, y):
        return -jax.numpy.take_along_axis(nn.log_softmax(logits(w, x)), y[..., None], 2).mean()
    return core.jax(loss, joined(s), batch(s))


def autograd(s):
    from autograd import numpy as xp
    from autograd.scipy.special import erf, logsumexp
    hidden = np.where(np.tri(s.T, dtype=bool), 0, -np.inf).astype(np.float32)

    def norm(w, name, x):
        x = x - xp.mean(x, axis=-1, keepdims=True)
        return x / xp.sqrt(xp.mean(x * x, axis=-1, keepdims=True) + 1e-5) * w[name + ".weight"] + w[name + ".bias"]

    def attend(qkv):
        q, k, v = (xp.swapaxes(xp.reshape(part, (s.B, s.T, s.H, -1)), 1, 2) for part in xp.split(qkv, 3, axis=2))
        e = xp.matmul(q, xp.swapaxes(k, 2, 3)) * (1 / math.sqrt(s.D // s.H)) + hidden
        a = xp.exp(e - xp.max(e, axis=-1, keepdims=True))
        y = xp.matmul(a / xp.sum(a, axis=-1, keepdims=True), v)
        return xp.reshape(xp.swapaxes(y, 1, 2), (s.B, s.T, s.D))

    activation = {"relu": lambda x: xp.maximum(x, 0), "gelu": lambda x: 0.5 * x * (1 + erf(x * math.sqrt(0.5)))}[s.activation]
    logits = functions(s, xp, attend, norm, activation)

    def loss(w, x, y):
        z = xp.reshape(logits(w, x), (s.B * s.T, s.V))
        return xp.mean(logsumexp(z, axis=1) - z[np.arange(s.B * s.T), y.reshape(-1)])
    return core.autograd(loss, joined(s), batch(s))


def tinygrad(s):
    def linear(w, name, x):
        return x.linear(w[name + ".weight"].T, w[name + ".bias"])

    def norm(w, name, x):
        return x.layernorm(eps=1e-5) * w[name + ".weight"] + w[name + ".bias"]

    def attend(qkv):
        q, k, v = (part.reshape(s.B, s.T, s.H, -1).transpose(1, 2) for part in qkv.chunk(3, dim=2))
        return q.scaled_dot_product_attention(k, v, is_causal=True).transpose(1, 2).reshape(s.B, s.T, s.D)

    def activation(x):
        return x.relu() if s.activation == "relu" else 0.5 * x * (1 + (x * math.sqrt(0.5)).erf())

    def loss(w, ids, y):
        x = w["words.weight"][ids] + w["places.weight"]
        for i in range(s.L):
            a, f = f"a.{i}.", f"f.{i}."
            x = x + linear(w, a + "out_proj", attend(linear(w, a + "qkv", norm(w, a + "norm", x))))
            x = x + linear(w, f + "out_of", activation(linear(w, f + "into", norm(w, f + "norm", x))))
        return linear(w, "head", norm(w, "norm", x)).sparse_categorical_crossentropy(y)
    return core.tinygrad(loss, joined(s), batch(s))


def row(name, s):
    return Row(f"training step: {name}", str(s), "training", core.sides(globals(), s),
               {"torch": 1.2, "jax": 1.5}, floor=floor(s), tolerance=core.TOLERANCE)


def rows():
    return [row("Transformer LM", TRANSFORMER), row("character GPT", CHARACTERS)]
