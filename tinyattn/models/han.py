r"""The hierarchical attention network, its ablations, and a bidirectional GRU that knows no sentences.

    h_it = BiGRU(embedding of word t of sentence i);   s_i = pool_t(h_it)      a sentence
    h_i  = BiGRU(s_i);                                 v   = pool_i(h_i)       the document
    p    = softmax(W v + b)

    HAN           pool = attention (`attention/han.py`): sum_t softmax_t(u^T tanh(W h_t + b)) h_t
    Average       pool = the mean over true words and over true sentences, which is HAN with a zero context vector u
    Max           pool = the largest of each element over true words and over true sentences
    BiGRU         v = the last state of each direction over all words of the document, in one row

Yang et al. 2016, "Hierarchical attention networks for document classification": HN-ATT, HN-AVE, HN-MAX. Unlike the
paper, words begin with random vectors, and dropout acts on word vectors and on the document in training.

A network takes ids (B, N, T), N sentences of T words, 0 for padding, and gives logits (B, C), of which the loss takes
the softmax. `steps(n)` counts the steps that must wait for one another over n words, `path(n)` those between the first
and the last word; a document of n words is taken to have sqrt(n) sentences of sqrt(n) words.
"""
import math

import numpy as np

from .. import nn
from ..attention.core import find, weigh
from ..attention.han import bigru
from ..autograd import capture, no_grad, scope
from ..functional import where
from ..nn import Parameter, init
from ..tensor import Tensor

BELOW = -2.0  # less than any element of a GRU's state, which lies in (-1, 1)


class Hierarchy(nn.Module, abstract=True):
    """What HAN, Average and Max share: words to sentences to a document to logits.

    vocabulary, classes   V and C; embed, hidden, align  widths of word vectors, of the GRUs' states (each direction, at
                          both levels) and of the context vectors; dropout  on word vectors, and on the document
    forward(ids)  ids (B, N, T), integers, 0 = padding, which fills sentences and documents at their ends -> (B, C)
    """
    hierarchical = True

    def __init__(self, vocabulary, classes, embed=64, hidden=32, align=64, dropout=0.3):
        self.embedding = nn.Embedding(vocabulary, embed, padding=0)
        for level, inputs in (("word", embed), ("sent", 2 * hidden)):
            # A direction's three gates one below the other, orthogonal blocks along the state
            recurrent = np.stack([init.orthogonal((3 * hidden, hidden), gates=3) for _ in (0, 1)])
            spread = init.uniform((2, 3 * hidden, inputs), math.sqrt(6 / (inputs + hidden)))
            setattr(self, f"{level}_ih", Parameter(spread))                # (2, 3U, inputs)
            setattr(self, f"{level}_hh", Parameter(recurrent))             # (2, 3U, U)
            setattr(self, f"{level}_b", Parameter(init.zeros((2, 3 * hidden))))  # (2, 3U)
        self.before, self.after = nn.Dropout(dropout), nn.Dropout(dropout)
        self.output = nn.Linear(2 * hidden, classes)

    def forward(self, ids):
        x = self.before(self.embedding(ids))                               # (B, N, T, D)
        return self.output(self.after(self.document(x, ids.numpy() != 0)))  # (B, C)

    def document(self, x, words):
        """Word vectors x (B, N, T, D) and where there are words (B, N, T), an array, to documents (B, 2U)."""
        B, N, T, D = x.shape
        words, sentences = words.reshape(B * N, T), words.any(-1)
        with scope("words"):
            h = bigru(x.reshape(B * N, T, D), self.word_ih, self.word_hh, self.word_b, _lengths(words))
            s = self.pool(h, words).reshape(B, N, -1)                      # (B, N, 2U)
        with scope("sentences"):
            h = bigru(s, self.sent_ih, self.sent_hh, self.sent_b, _lengths(sentences))
            return self.pool(h, sentences)                                 # (B, 2U)

    def penalty(self):
        """What the last forward adds to the loss: nothing."""

    @staticmethod
    def steps(n):
        return 2 * math.ceil(math.sqrt(n))

    path = steps

    def looks(self, ids):
        """[(title, weights)] of ids (B, N, T): of the sentences (B, N) and of the words in theirs (B, N, T)."""
        with no_grad(), capture() as seen:
            self(ids)
        words, sentences = (value.numpy() for path, value in seen.taps if path.rpartition("/")[2] == "weights")
        return [("sentences", sentences.reshape(ids.shape[:2])), ("words", words.reshape(ids.shape))]


class HAN(Hierarchy):
    """Attention at both levels (HN-ATT): over the words of a sentence, over the sentences of a document.

    The formulas stand at the head of the file. The context vectors begin other than 0, or it would begin as an average.
    """

    def __init__(self, vocabulary, classes, embed=64, hidden=32, align=64, dropout=0.3):
        super().__init__(vocabulary, classes, embed, hidden, align, dropout)
        for letter in ("w", "s"):
            setattr(self, f"w_{letter}", Parameter(init.xavier((align, 2 * hidden))))  # (A, 2U)
            setattr(self, f"b_{letter}", Parameter(init.zeros((align,))))
            setattr(self, f"u_{letter}", Parameter(init.normal((align,), 1 / math.sqrt(align))))

    def document(self, x, words):
        han = find("han")
        return han(x, *(getattr(self, name) for name in han.params), word_mask=Tensor(words))

    @staticmethod
    def example(rng):
        return HAN(7, 3, 3, 2, 4).eval(), (_example_ids(rng),)


class Average(Hierarchy):
    """The mean at both levels (HN-AVE). `align` has no use."""

    def pool(self, h, mask):
        """The mean over the places of the mask (B, T) of h (B, T, F): all weights are the same. (B, F)"""
        same = Tensor(np.zeros((len(mask), 1, mask.shape[1]), h.dtype))
        return weigh(same, h, Tensor(mask[:, None])).squeeze(1)

    @staticmethod
    def example(rng):
        return Average(7, 3, 3, 2).eval(), (_example_ids(rng),)


class Max(Hierarchy):
    """The maximum at both levels (HN-MAX). `align` has no use. It has no weights to look at."""

    def pool(self, h, mask):
        """The largest over the places of the mask (B, T) of h (B, T, F), each element by itself; 0 where there is no
        place. (B, F)"""
        largest = where(Tensor(mask[..., None]), h, BELOW).max(1)          # (B, F)
        return where(Tensor(mask.any(1)[:, None]), largest, 0.0)

    def looks(self, ids):
        return []

    @staticmethod
    def example(rng):
        return Max(7, 3, 3, 2).eval(), (_example_ids(rng),)


class BiGRU(nn.Module):
    """The baseline without attention: the last states of both directions over the words (B, 1, T) of a document."""
    hierarchical = False

    def __init__(self, vocabulary, classes, embed=64, hidden=32, align=64, dropout=0.3):
        self.embedding = nn.Embedding(vocabulary, embed, padding=0)
        self.before, self.after = nn.Dropout(dropout), nn.Dropout(dropout)
        self.rnn = nn.GRU(embed, hidden, bidirectional=True)
        self.output = nn.Linear(2 * hidden, classes)

    def forward(self, ids):
        ids = ids.squeeze(1)                                               # (B, T)
        _, last = self.rnn(self.before(self.embedding(ids)), lengths=_lengths(ids.numpy() != 0))  # (2, B, U)
        return self.output(self.after(last.transpose(0, 1).reshape(len(ids), -1)))  # (B, C)

    def penalty(self):
        """What the last forward adds to the loss: nothing."""

    def looks(self, ids):
        return []

    @staticmethod
    def steps(n):
        return n

    path = steps

    @staticmethod
    def example(rng):
        return BiGRU(7, 3, 3, 2).eval(), (_example_ids(rng).reshape(2, 1, -1)[:, :, :4],)


def _lengths(mask):
    """How many places each row of a mask (B, T) allows, as a Tensor (B,)."""
    return Tensor(mask.sum(-1))


def _example_ids(rng):
    """Two documents: three sentences of at most four words, and one sentence."""
    lengths = np.array([[4, 1, 3], [2, 0, 0]])
    return Tensor(np.where(np.arange(4) < lengths[..., None], rng.integers(1, 7, size=(2, 3, 4)), 0))
