"""The network of the word sense system: one block of self-attention, asked by the ambiguous word.

    x_t = E[w_t] (+ the sinusoids of t)
    y   = x + attention(x)                         with DiSAN y = [forward(x); backward(x)], whose gates keep the word
    p   = softmax over the word's own senses of W y_at + b

`at` is the place of the ambiguous word. The block is any mechanism of `attention/` that takes x and a mask and gives
one vector a word. "none" is a bag of words: y_at = x_at + the mean of all words, without positions.
"""
import inspect

import numpy as np

from .. import nn
from ..attention import find, mask, table
from ..attention.sinusoid import encode
from ..autograd import capture, no_grad
from ..errors import InputError
from ..functional import concat, log_softmax, rows_at
from ..nn import init
from ..tensor import NUMBERS, Tensor

ORDERED = ("shaw", "disan", "rope", "alibi", "distance", "sinusoid", "learned_positions")  # know an order by themselves


class SenseNetwork(nn.Module):
    """ids (B, T), lengths (B,), at (B,), allowed (B, N) to log p (B, N) over N senses, -inf where not allowed.

    attention   "none", or a mechanism by name; InputError for one that is no self-attention over x
    score       of a mechanism that leaves it open, such as pairwise: the name of a score function; "" is its own
    heads       of a mechanism that has some; reach: how many places to each side `shaw` tells apart
    positions   "sinusoid", "none", or "auto", sinusoids unless the mechanism knows an order by itself
    longest     no sentence has more words: rows of a table of places
    """

    def __init__(self, vocabulary, senses, width=64, attention="multi_head", score="", heads=4, reach=8,
                 positions="auto", dropout=0.0, longest=64):
        self.embedding, self.drop = nn.Embedding(vocabulary, width), nn.Dropout(dropout)
        # Beside sinusoids of size 1, words of size 1 are slow to change: with 0.3 the order is found ten times sooner.
        self.embedding.weight = nn.Parameter(init.normal((vocabulary, width), 0.3))
        self.width, self.heads, self.score = width, heads, score or None
        self.variant, self.blocks = None if attention == "none" else find(attention), []
        if self.variant is not None:
            check_serves(self.variant, score)
            self._make(reach, longest)
            self.null = tuple(f"blocks.{i}.{name}" for i in range(len(self.blocks)) for name in self.variant.null)
        ordered = self.variant is None or self.variant.name in ORDERED
        self.placed = self.variant is not None and (positions == "sinusoid" or positions == "auto" and not ordered)
        self.output = nn.Linear(width, senses)
        self._try()

    def forward(self, ids, lengths, at, allowed):
        y = self.states(ids, lengths)                                      # (B, T, D)
        return log_softmax(self.output(self.drop(rows_at(y, at))), mask=allowed)  # (B, N)

    def states(self, ids, lengths):
        """What stands for each word behind the block, (B, T, D)."""
        x = self.embedding(ids)                                            # (B, T, D)
        if self.placed:
            x = x + Tensor(encode(*x.shape[1:]), dtype=x.dtype, device=x.device)
        return self.attend(self.drop(x), mask.from_lengths(lengths, x.shape[1], x.device))

    def attend(self, x, seen):
        """The block: x (B, T, D) under the mask (B, 1, T) to y (B, T, D)."""
        if self.variant is None:
            share = seen.numpy() / np.maximum(seen.numpy().sum(-1, keepdims=True), 1)  # (B, 1, T)
            return x + Tensor(share, dtype=x.dtype, device=x.device) @ x
        found = [self.variant(x, mask=seen, **block, **self._settings(i)) for i, block in enumerate(self.blocks)]
        return concat(found, -1) if len(found) > 1 else x + found[0]

    def look(self, ids, lengths):
        """The weights (B, L, T, T) of L heads, or directions, or 1; None for a bag. Where every feature has weights of
        its own, their mean."""
        maps = self.look_closely(ids, lengths)
        if maps is None:
            return None
        return np.concatenate([w.mean(1, keepdims=True) if self.inner() == "feature" else w for w in maps], 1)

    def look_closely(self, ids, lengths):
        """[(B, L, T, T)] for each direction, weights of L heads or features, as `inner` says; None for a bag."""
        if self.variant is None:
            return None
        with no_grad(), capture() as seen:
            self.states(ids, lengths)
        return [w.numpy() if w.ndim == 4 else w.numpy()[:, None] for w in seen["weights"]]

    def inner(self):
        """What a query has several weights for: "head" or "feature"."""
        labels = self.variant.part("labels")
        return "feature" if labels is not None and "feature" in labels() else "head"

    # -- making it ---------------------------------------------------------------------------------------------------
    def _make(self, reach, longest):
        """The learned parameters of the mechanism: `blocks`, a dictionary for each direction."""
        D, H, ways = self.width, self.heads, 2 if self.variant.name == "disan" else 1
        divisor = H if "heads" in self.variant.arguments else ways
        if D % divisor:
            raise InputError(f"attention {self.variant.name}: expected a width that is a multiple of {divisor}, got "
                             f"{D}")
        sizes = dict.fromkeys("DQKAEF", D) | dict.fromkeys("IJ", D // H)
        sizes |= {"U": D // ways, "R": 2 * reach + 1, "N": longest}
        if "groups" in self.variant.arguments or self.variant.name == "multi_query":  # keys shared between heads
            sizes["C"] = sizes["E"] = D // H * (self._groups() if "groups" in self.variant.arguments else 1)
        defaults = inspect.signature(self.variant.function).parameters
        shapes = self.variant.shapes(self.score, **sizes)
        self.blocks = [{name: nn.Parameter(_first(shape, name, defaults.get(name))) for name, shape in shapes.items()}
                       for _ in range(ways)]

    def _groups(self):
        return self.heads // 2 if self.heads % 2 == 0 else 1

    def _settings(self, i):
        """What else the mechanism is called with, in direction i."""
        arguments, given = self.variant.arguments, {"score": self.score} if self.score else {}
        given |= {"heads": self.heads} if "heads" in arguments else {}
        given |= {"groups": self._groups()} if "groups" in arguments else {}
        if "direction" in arguments:
            given["direction"] = ("forward", "backward")[i] if len(self.blocks) > 1 else "both"
        return given

    def _try(self):
        """InputError, now and not in the first step, unless the mechanism fits."""
        x = Tensor(np.ones((1, 2, self.width)), dtype=self.embedding.weight.dtype)
        name = "none" if self.variant is None else self.variant.name
        try:
            with no_grad():
                y = self.attend(x, mask.from_lengths([2]))
        except ValueError as error:
            raise InputError(f"attention {name}: does not fit sentences of words {self.width} wide: {error}") from error
        if y.shape != x.shape:
            raise InputError(f"attention {name}: expected one vector of width {self.width} a word, got shape {y.shape}")

    @staticmethod
    def example(rng):
        """Two sentences of 4 and 3 words, with an ambiguous word of three senses each."""
        ids = np.where(np.arange(4) < [[4], [3]], rng.integers(1, 7, (2, 4)), 0)
        inputs = Tensor(ids), Tensor([4, 3]), Tensor([1, 2]), np.ones((2, 3), bool)
        return SenseNetwork(7, 3, 4, heads=2), inputs


def _first(shape, name, argument):
    """First values: Glorot's for matrices, 0 for biases, small numbers for other vectors; a single number begins as the
    function's own default."""
    if not shape:
        return np.asarray(argument.default if argument and isinstance(argument.default, NUMBERS) else 0.0)
    if len(shape) == 1 and name.startswith("b"):
        return init.zeros(shape)
    return init.xavier(shape) if len(shape) == 2 else init.uniform(shape, 1 / np.sqrt(shape[-1]))


def check_serves(variant, score=""):
    """InputError unless a mechanism is self-attention: it needs x and a mask, and its own parameters, alone."""
    if not _serves(variant):
        known = ", ".join(name for name, v in table().items() if _serves(v))
        raise InputError(f"attention {variant.name}: expected a mechanism by which a sentence attends to itself, that "
                         f"takes x and a mask; this one takes {', '.join(variant.arguments)}. Such are {known}")
    if score and not variant.score:
        raise InputError(f"attention {variant.name}: has a score of its own; --score {score} is for pairwise")
    if score and not find(score).is_score:
        raise InputError(f"score: {score} is no score function; expected one of "
                         f"{', '.join(name for name, v in table().items() if v.is_score)}")


def _serves(variant):
    needed = {name for name, p in inspect.signature(variant.function).parameters.items()
              if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD and name not in variant.letters()}
    letters = set("".join(variant.letters().values()))
    per_word = variant.causal or not variant.of_the_package
    return needed == {"x"} and "mask" in variant.arguments and per_word and letters <= set("DQKAEFURIJNC")
