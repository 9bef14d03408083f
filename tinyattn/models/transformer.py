r"""The Transformer: encoder and decoder of attention alone, without recurrence, so that all words are read at once.

    x_t     = sqrt(N) E w_t + p(t)                      word and place: `attention/sinusoid.py`
    encoder = L times [self-attention, feed-forward]
    decoder = L times [causal self-attention, attention to the encoder's output, feed-forward]
    p(y_t)  = softmax(W_o z_t + b)                      z the decoder's output

Each f in brackets, a sub-layer, is wrapped in one of two ways; that is all that `norm` changes:

    post    x = LayerNorm(x + dropout(f(x)))            as in the paper: the norm stands in the way of the sum
    pre     x = x + dropout(f(LayerNorm(x)))            and one more LayerNorm at the end of each stack

    feed-forward(x) = W_2 relu(W_1 x + b_1) + b_2       attention: `attention/multi_head.py`

Vaswani et al. 2017, "Attention is all you need"; pre-norm as in Xiong et al. 2020, "On layer normalization in the
Transformer architecture". Survey (Hu 2018): eqs 20-23 are its attention and its places.

Dropout, as in section 5.4 of the paper and its code: of the sums of word and place, of what a sub-layer gives before it
is added, of the weights of attention. Words before each target word come from `Translate.tensors`, which shifts them.

Differences from the paper: source and target have a vocabulary, and so a table, each (`tie` makes the target's table
and W_o one matrix); W_o has a bias; the sizes are small. Without attention ("none") the decoder is given the mean of
the encoder's output in place of attending to it; self-attention stays, being how words are read at all.

Which attention is the alignment? Here the mean over all heads of all layers' attention to the source, a fixed rule: its
alignment error rate was the lowest in each of three trainings on the built-in task (2 layers; 300 test sentences; the
first and the last layer alone, and both): post-norm, 8,000 steps 0.265, 0.039, 0.032; pre-norm, 8,000 steps 0.079,
0.067, 0.038; post-norm, 1,500 steps of four times the batch 0.214, 0.081, 0.072. Do the weights of step t belong to
y_{t-1}, which is read there, or to y_t, which is predicted? To y_t: read off for y_{t-1} the error rate of these
models was 0.78 to 0.80. `Seq2Seq.word_weights` gives both, and `evaluate` measures both.

Shapes: B batch, S source length, T target length, H heads, N width, V vocabulary.
"""
import math
from functools import lru_cache

import numpy as np

from .. import nn
from ..attention import find
from ..attention import mask as masks
from ..attention.cache import Cache
from ..attention.heads import attend, output, split
from ..attention.sinusoid import encode
from ..autograd import capture, no_grad
from ..nn import init
from ..tensor import Tensor
from .seq2seq import Seq2Seq, _example


# ---------------------------------------------------------------------------------------------------------------------
# sub-layers, and the two ways to wrap them
# ---------------------------------------------------------------------------------------------------------------------
class PostNorm(nn.Module):
    """LayerNorm(x + dropout(f(x))): x (B, T, N) to the same shape. The module f gets what else it is called with."""

    def __init__(self, f, width, dropout=0.0):
        self.sublayer, self.drop, self.norm = f, nn.Dropout(dropout), nn.LayerNorm(width)

    def forward(self, x, *more, **options):
        return self.norm(x + self.drop(self.sublayer(x, *more, **options)))

    @staticmethod
    def example(rng):
        """A feed-forward sub-layer on two sentences of 3 words."""
        return PostNorm(FeedForward(4, 6), 4), (Tensor(rng.normal(size=(2, 3, 4))),)


class PreNorm(nn.Module):
    """x + dropout(f(LayerNorm(x))): x (B, T, N) to the same shape. The module f gets what else it is called with."""

    def __init__(self, f, width, dropout=0.0):
        self.norm, self.sublayer, self.drop = nn.LayerNorm(width), f, nn.Dropout(dropout)

    def forward(self, x, *more, **options):
        return x + self.drop(self.sublayer(self.norm(x), *more, **options))

    @staticmethod
    def example(rng):
        """A feed-forward sub-layer on two sentences of 3 words."""
        return PreNorm(FeedForward(4, 6), 4), (Tensor(rng.normal(size=(2, 3, 4))),)


WRAPS = {"post": PostNorm, "pre": PreNorm}


class FeedForward(nn.Module):
    """W_2 relu(W_1 x + b_1) + b_2, for each word by itself: x (B, T, N) to the same shape."""

    def __init__(self, width, hidden):
        self.into, self.out_of = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x):
        return self.out_of(self.into(x).relu())

    @staticmethod
    def example(rng):
        """Two sentences of 3 words."""
        return FeedForward(4, 6), (Tensor(rng.normal(size=(2, 3, 4))),)


class CrossAttention(nn.MultiHeadAttention):
    """Multi-head attention of target words x (B, T, N) to the source h (B, S, N), mask (B, 1, S).

    `prepare` gives keys and values, computed once a sentence, for a decoder that asks with one word at a time.
    """

    def prepare(self, h):
        """{"k": (B, H, S, d), "v": (B, H, S, d)}"""
        return {"k": split(self.k_proj(h), self.heads), "v": split(self.v_proj(h), self.heads)}

    def forward(self, x, h, mask, prepared=None):
        if prepared is None:
            return super().forward(x, h, mask)
        q = split(self.q_proj(x), self.heads)                                          # (B, H, T, d)
        where = mask.unsqueeze(1)                                                      # (B, 1, 1, S)
        context, _ = attend(q, prepared["k"], prepared["v"], where)
        return output("multi_head", context, None, self.out_proj.weight, self.out_proj.bias)

    @staticmethod
    def example(rng):
        """Two targets of 3 words, two sources of 4 and 2."""
        x, h = Tensor(rng.normal(size=(2, 3, 4))), Tensor(rng.normal(size=(2, 4, 4)))
        return CrossAttention(4, 2), (x, h, masks.from_lengths(np.array([4, 2])))


class NoAttention(nn.Module):
    """W x + U m + b in place of attention: the source's mean m (B, 1, N) is the same for all words x (B, T, N)."""

    def __init__(self, width):
        self.word, self.mean = nn.Linear(width, width), nn.Linear(width, width, bias=False)

    def prepare(self, h):
        """{"m": (B, 1, N)}"""
        return {"m": self.mean(h)}

    def forward(self, x, h, mask=None, prepared=None):
        return self.word(x) + (prepared or self.prepare(h))["m"]

    @staticmethod
    def example(rng):
        """Two targets of 3 words, the means of two sources."""
        return NoAttention(4), (Tensor(rng.normal(size=(2, 3, 4))), Tensor(rng.normal(size=(2, 1, 4))))


# ---------------------------------------------------------------------------------------------------------------------
# layers
# ---------------------------------------------------------------------------------------------------------------------
class EncoderLayer(nn.Module):
    """Self-attention and feed-forward: x (B, S, N), mask (B, 1, S) to (B, S, N).

    norm is "post" or "pre". The example that `tinyattn graph EncoderLayer --depth 2` draws has "post".
    """

    def __init__(self, width, heads, feed_forward, norm="post", dropout=0.0):
        wrap = WRAPS[norm]
        self.attention = wrap(nn.MultiHeadAttention(width, heads, dropout=dropout), width, dropout)
        self.feed_forward = wrap(FeedForward(width, feed_forward), width, dropout)

    def forward(self, x, mask):
        return self.feed_forward(self.attention(x, mask=mask))

    @staticmethod
    def example(rng):
        """Two sentences of 4 and 2 words."""
        return EncoderLayer(4, 2, 6), (Tensor(rng.normal(size=(2, 4, 4))), masks.from_lengths(np.array([4, 2])))


class PreNormEncoderLayer(EncoderLayer):
    """An `EncoderLayer` with norm="pre": x (B, S, N), mask (B, 1, S) to (B, S, N).

    It has a name of its own to be drawn, `tinyattn graph PreNormEncoderLayer --depth 2`, beside the other.
    """

    def __init__(self, width, heads, feed_forward, dropout=0.0):
        super().__init__(width, heads, feed_forward, "pre", dropout)

    @staticmethod
    def example(rng):
        """Two sentences of 4 and 2 words."""
        return PreNormEncoderLayer(4, 2, 6), (Tensor(rng.normal(size=(2, 4, 4))), masks.from_lengths(np.array([4, 2])))


class DecoderLayer(nn.Module):
    """A layer of the decoder: causal self-attention, attention to the source, feed-forward.

    x (B, T, N), h (B, S, N), mask (B, 1, S) to (B, T, N). attention: "multi_head", or "none" for the source's mean.
    """

    def __init__(self, width, heads, feed_forward, norm="post", dropout=0.0, attention="multi_head"):
        wrap = WRAPS[norm]
        self.attention = wrap(nn.MultiHeadAttention(width, heads, dropout=dropout), width, dropout)
        cross = NoAttention(width) if attention == "none" else CrossAttention(width, heads, dropout=dropout)
        self.cross = wrap(cross, width, dropout)
        self.feed_forward = wrap(FeedForward(width, feed_forward), width, dropout)

    def forward(self, x, h, mask, prepared=None, cache=None):
        """prepared, cache: where x is one word at a time, what `CrossAttention.prepare` gave and a Cache of the words
        before."""
        x = self.attention(x, causal=True, cache=cache)
        return self.feed_forward(self.cross(x, h, mask, prepared))

    @staticmethod
    def example(rng):
        """Two targets of 3 words, two sources of 4 and 2."""
        x, h = Tensor(rng.normal(size=(2, 3, 4))), Tensor(rng.normal(size=(2, 4, 4)))
        return DecoderLayer(4, 2, 6, "pre"), (x, h, masks.from_lengths(np.array([4, 2])))


class Words(nn.Module):
    """sqrt(N) E w_t + p(t), with dropout: ids (B, T) to (B, T, N). `start` is the place of the first of them.

    E (V, N) begins normal of variance 1 / N, so that words begin as large as 1, and W_o tied to it as it should.
    """

    def __init__(self, vocabulary, width, dropout=0.0):
        self.table, self.drop, self.width = nn.Embedding(vocabulary, width), nn.Dropout(dropout), width
        self.table.weight = nn.Parameter(init.normal((vocabulary, width), 1 / math.sqrt(width)))

    def forward(self, ids, start=0):
        place = Tensor(_places(start, ids.shape[1], self.width), dtype=self.table.weight.dtype, device=ids.device)
        return self.drop(self.table(ids) * math.sqrt(self.width) + place)

    @staticmethod
    def example(rng):
        """Two sentences of 3 words."""
        return Words(6, 4), (Tensor(rng.integers(1, 6, (2, 3))),)


@lru_cache(maxsize=512)
def _places(start, length, width):
    return encode(length, width, start=start)


# ---------------------------------------------------------------------------------------------------------------------
# the whole
# ---------------------------------------------------------------------------------------------------------------------
class TransformerEncoder(nn.Module):
    """Source ids (B, S), lengths (B,) to the words in their sentence h (B, S, N), and their mean (B, N)."""

    def __init__(self, vocabulary, width, layers=2, heads=4, feed_forward=256, norm="post", dropout=0.0):
        self.words = Words(vocabulary, width, dropout)
        self.layers = [EncoderLayer(width, heads, feed_forward, norm, dropout) for _ in range(layers)]
        self.norm = nn.LayerNorm(width) if norm == "pre" else None

    def forward(self, ids, lengths):
        where = masks.from_lengths(lengths, ids.shape[1])                              # (B, 1, S)
        x = self.words(ids)                                                            # (B, S, N)
        for layer in self.layers:
            x = layer(x, where)
        x = x if self.norm is None else self.norm(x)
        share = where.numpy() / np.maximum(where.numpy().sum(-1, keepdims=True), 1)
        return x, (Tensor(share, dtype=x.dtype, device=x.device) @ x).squeeze(1)

    @staticmethod
    def example(rng):
        """Two source sentences of 4 and 2 words."""
        source, lengths, _, _ = _example(rng)
        return TransformerEncoder(6, 4, 1, 2, 6, "pre"), (source, lengths)


class TransformerDecoder(nn.Module):
    """Target ids (B, T), and of the source the words h (B, S, N) and their mean (B, N), to logits (B, T, V)."""

    def __init__(self, vocabulary, width, layers=2, heads=4, feed_forward=256, norm="post", dropout=0.0,
                 attention="multi_head", tie=False):
        self.words = Words(vocabulary, width, dropout)
        self.layers = [DecoderLayer(width, heads, feed_forward, norm, dropout, attention) for _ in range(layers)]
        self.norm = nn.LayerNorm(width) if norm == "pre" else None
        self.output = nn.Linear(width, vocabulary)                                     # W_o
        if tie:
            self.output.weight = self.words.table.weight
        self.variant = None if attention == "none" else find(attention)

    def forward(self, ids, h, summary, lengths):
        """Teacher forcing: ids (B, T) are the words before each target word. Padding comes after all words, so that no
        word sees it."""
        h, where = self._seen(h, summary, lengths)
        x = self.words(ids)                                                            # (B, T, N)
        for layer in self.layers:
            x = layer(x, h, where)
        return self.output(x if self.norm is None else self.norm(x))

    def _seen(self, h, summary, lengths):
        """What the layers are given of the source, and its mask."""
        if self.variant is None:
            return summary.unsqueeze(1), None                                          # (B, 1, N)
        return h, masks.from_lengths(lengths, h.shape[1])                              # (B, S, N), (B, 1, S)

    # -- one word at a time ------------------------------------------------------------------------------------------
    def prepare(self, h, summary, lengths):
        """The memory of a source batch: what each layer's `cross` prepares, "0.k", "0.v", "1.k", ..., and the mask. A
        dictionary of Tensors whose axis 0 is B."""
        h, where = self._seen(h, summary, lengths)
        memory = {} if where is None else {"mask": where}
        for i, layer in enumerate(self.layers):
            memory |= {f"{i}.{name}": t for name, t in layer.cross.sublayer.prepare(h).items()}
        return memory

    def first_state(self, summary):
        """Nothing is read yet: an empty Cache for each layer."""
        return tuple(Cache() for _ in self.layers)

    def next_word(self, ids, state, memory, summary):
        """Logits (B, V) of the word after `ids` (B,), and the new state, the same caches with a word more. For
        translating one word at a time."""
        x = self.words(ids.unsqueeze(1), start=state[0].length)                        # (B, 1, N)
        for i, (layer, cache) in enumerate(zip(self.layers, state, strict=True)):
            prepared = {name: memory[f"{i}.{name}"] for name in ("k", "v", "m") if f"{i}.{name}" in memory}
            x = layer(x, None, memory.get("mask"), prepared, cache)
        return self.output(x if self.norm is None else self.norm(x)).squeeze(1), state

    @staticmethod
    def example(rng):
        """Two source sentences of 4 and 2 words, two targets of 3."""
        _, lengths, before, _ = _example(rng)
        h = Tensor(rng.normal(size=(2, 4, 4)))
        return TransformerDecoder(6, 4, 1, 2, 6, tie=True), (before, h, h[:, 0], lengths)


class Transformer(Seq2Seq):
    """Encoder and decoder. The arguments are those of `TransformerDecoder`."""

    def __init__(self, source_size, target_size, width=64, layers=2, heads=4, feed_forward=256, norm="post",
                 dropout=0.0, attention="multi_head", tie=False):
        sizes = (width, layers, heads, feed_forward, norm, dropout)
        self.encoder = TransformerEncoder(source_size, *sizes)
        self.decoder = TransformerDecoder(target_size, *sizes, attention, tie)

    def weights_by_head(self, source, source_lengths, before):
        """All weights under teacher forcing: {"encoder": [(B, H, S, S)], "decoder": [(B, H, T, T)], "cross":
        [(B, H, T, S)]}, as arrays, one a layer. There is no "cross" without attention."""
        with no_grad(), capture() as seen:
            self(source, source_lengths, before)
        weights = [w.numpy() for w in seen["weights"]]
        first, rest = len(self.encoder.layers), 1 if self.decoder.variant is None else 2
        found = {"encoder": weights[:first], "decoder": weights[first::rest]}
        return found if rest == 1 else {**found, "cross": weights[first + 1::rest]}

    def alignment(self, source, source_lengths, before):
        """Attention weights (B, T, S) of each step under teacher forcing: the mean over the heads of all layers'
        attention to the source (see the head of this file). None for a model without attention."""
        if self.decoder.variant is None:
            return None
        return np.mean(self.weights_by_head(source, source_lengths, before)["cross"], (0, 2))

    @staticmethod
    def example(rng):
        """Two source sentences of 4 and 2 words, two targets of 3."""
        source, lengths, before, _ = _example(rng)
        return Transformer(6, 6, 4, 1, 2, 6), (source, lengths, before)
