r"""A tagger with two heads, aspects and opinions, over a recurrent network: with coupled attentions (CMLA), or plain.

    x_t = [w_{t-1}; w_t; w_{t+1}]       the vectors of a word and its neighbours; beyond the ends they are 0
    h_t = GRU(x_t, h_{t-1})             from left to right; "bidirectional": [forward; backward]
    r = cmla(h)                         both sides' score vectors, summed over the layers; see `attention/cmla.py`
    tag_t = softmax(W_a r_t^a + b_a)    O, B or I for aspects, and the same with W_o, b_o for opinions

Without attention both heads read h_t itself: tag_t = softmax(W h_t + b). What is left of the model, window, vectors and
GRU, is the same.

Source: Wang, Pan, Dahlmeier and Xiao 2017, "Coupled multi-layer attentions for co-extraction of aspect and opinion
terms". What differs: they begin with word vectors learnt elsewhere and train on one sentence at a time by plain
gradient steps; their released code drops elements of the weight matrices, here dropout acts on x_t, on h_t and on r. In
the last layer attention moves no prototype any more and reaches nothing, there as here.
"""
import numpy as np

from .. import nn
from ..attention import mask as masks
from ..attention.cmla import cmla
from ..functional import concat, cross_entropy, einsum, where
from ..nn import init

IGNORE = -100
SPREAD = 0.2  # first values of the weights of CMLA lie between -SPREAD and SPREAD, as in the released code


class Tagger(nn.Module):
    """ids (B, T) of words and lengths (B,) to logits (B, 2, T, 3): aspects and opinions; O, B, I.

    words, embed     size of the vocabulary, width of the word vectors; ids beyond a sentence's end have no effect
    hidden           width of the GRU's state, of each direction
    attention        "cmla" or "none"
    scores           K: a layer gives K own and K crossed scores a word and side
    layers           layers of attention, one update of the prototypes between two
    tanh             on the scores (the paper); without it they go into the second GRU as they are (the released code)
    dropout          probability, in training
    """

    def __init__(self, words, embed, hidden, attention="cmla", scores=20, layers=2, tanh=True, bidirectional=False,
                 dropout=0.0):
        self.attention, self.layers, self.tanh = attention, layers, tanh
        self.drop = nn.Dropout(dropout)
        self.embedding = nn.Embedding(words, embed)
        self.embedding.weight = nn.Parameter(init.uniform((words, embed), SPREAD))
        self.gru = nn.GRU(3 * embed, hidden, bidirectional=bidirectional)
        width = read = hidden * (1 + bidirectional)
        if attention == "cmla":
            read = 2 * scores
            shapes = {"own": (2, scores, width, width), "crossed": (2, scores, width, width), "u": (2, width),
                      "m": (2, width, width), "v": (2, read), "r0": (2, read), "w_ih": (2, 3 * read, read),
                      "w_hh": (2, 3 * read, read)}
            for name, shape in shapes.items():
                setattr(self, name, nn.Parameter(init.uniform(shape, SPREAD)))
            self.null = ("m", "v") if layers == 1 else ()
        elif attention != "none":
            raise ValueError(f"Tagger: expected attention cmla or none, got {attention!r}")
        self.heads = nn.Parameter(init.uniform((2, 3, read), SPREAD))
        self.bias = nn.Parameter(init.zeros((2, 1, 3)))

    def forward(self, ids, lengths, return_weights=False):
        """Logits, beyond a sentence's end the bias alone; with return_weights also alpha (B, layers, 2, T), or None
        without attention."""
        h, _ = self.gru(self.drop(self.window(ids, lengths)), lengths=lengths)  # (B, T, D)
        h, alpha = self.drop(h), None
        if self.attention == "none":
            logits = einsum("btd,pnd->bptn", h, self.heads) + self.bias
        else:
            r = cmla(h, self.own, self.crossed, self.u, self.m, self.v, self.r0, self.w_ih, self.w_hh,
                     mask=masks.from_lengths(lengths, ids.shape[1]), layers=self.layers, tanh=self.tanh,
                     return_weights=return_weights)
            r, alpha = r if return_weights else (r, None)             # (B, 2, T, 2 K)
            logits = einsum("bptc,pnc->bptn", self.drop(r), self.heads) + self.bias
        return (logits, alpha) if return_weights else logits

    def window(self, ids, lengths):
        """The vectors of each word and its neighbours, 0 beyond the ends of its sentence: (B, T, 3 E)."""
        inside = masks.from_lengths(lengths, ids.shape[1]).transpose()                 # (B, T, 1)
        x = where(inside, self.embedding(ids), 0.0)                                    # (B, T, E)
        x = x.pad(((0, 0), (1, 1), (0, 0)))                                            # (B, T + 2, E)
        return concat([x[:, :-2], x[:, 1:-1], x[:, 2:]], -1)

    def loss(self, ids, lengths, tags):
        """The mean of -log p over tags (B, 2, T) that are not IGNORE."""
        return cross_entropy(self(ids, lengths), tags, IGNORE)

    @staticmethod
    def example(rng):
        return Tagger(6, 2, 3, scores=2), (rng.integers(1, 6, (2, 4)) * [[1, 1, 1, 1], [1, 1, 1, 0]], np.array([4, 3]))
