r"""Networks that classify a text by attention over its words, and a convolution to compare them with.

    Lin     M = A X, A = softmax(W_2 tanh(W_1 X^T)), R rows that read the sentence; penalty || A A^T - I ||^2
    Du      the same twice: rows over the words of each sentence, rows over the sentences
    DiSAN   feature-wise self-attention forward and backward, no recurrence; then one vector by source2token
    CNN     windows of 3, 4 and 5 words through one layer, and the maximum over all places

Lin et al. 2017, "A structured self-attentive sentence embedding"; Du et al. 2018, "Multi-level structured
self-attentions for distantly supervised relation extraction"; Shen et al. 2018, "DiSAN"; Kim 2014, "Convolutional
neural networks for sentence classification". The mechanisms are `attention/structured_self.py`, `two_level.py`,
`disan.py` and `source2token.py`.

All of them: word ids (B, N, T), N sentences of T words, 0 for padding behind the words, to logits (B, C). Lin, DiSAN
and CNN read one row of words (N = 1); Du reads sentences. `penalty()` is what the last forward pass adds to the loss,
or None. `looks(ids)` gives (title, weights) for pictures. `steps(n)` counts the steps that must wait for one another
over n words, `path(n)` those that lie between the first and the last word: the survey's case for self-attention (Hu
2018 section 3.3); a document of n words is taken to have sqrt(n) sentences of sqrt(n) words.

Differences from the papers: Lin's and Du's recurrent layers are of the width that is asked for (theirs is 300), Lin's
hidden layer is as wide as the rows (theirs 2,000 and 3,000), word vectors are learned and not those of GloVe. Lin's
authors also drop units of X on the way to the scores, not in A X; here X stays whole. The CNN's windows of k words
reach k - 1 places beyond both ends, where there are zeros; in the paper they lie within the sentence. Du's
task is relation extraction from bags of sentences; here a bag is a document.
"""
import math

import numpy as np

from .. import nn
from ..attention.disan import disan
from ..attention.source2token import source2token
from ..attention.structured_self import penalty, structured_self
from ..attention.two_level import penalties, two_level
from ..autograd import no_grad
from ..errors import InputError
from ..functional import concat, conv1d
from ..nn import init
from ..tensor import Tensor

PAD = 0


def words_of(ids):
    """One row of words: ids (B, 1, T) to ids (B, T), where words are (B, T) bool, how many they are (B,)."""
    if ids.ndim != 3 or ids.shape[1] != 1:
        raise InputError(f"sentence: expected word ids (B, 1, T), one row a text, got {ids.shape}")
    ids = ids.squeeze(1)
    there = ids.numpy() != PAD
    return ids, Tensor(there), Tensor(there.sum(1))


def _drawn(shape):
    """A weight matrix as nn.Linear begins it."""
    return nn.Parameter(init.uniform(shape, 1 / np.sqrt(shape[-1])))


class Recurrent(nn.Module, abstract=True):
    """What Lin and Du share: word vectors and a bidirectional LSTM."""

    def _reader(self, vocabulary, embed, hidden, dropout):
        self.embedding = nn.Embedding(vocabulary, embed, padding=PAD)
        self.drop = nn.Dropout(dropout)
        self.lstm = nn.LSTM(embed, hidden, bidirectional=True)

    def read(self, ids, lengths):
        """States (B, T, 2U) of ids (B, T)."""
        return self.lstm(self.drop(self.embedding(ids)), lengths=lengths)[0]

    def penalty(self):
        """The weighted penalty of the last forward pass in training, or None."""
        return self._penalty


class Lin(Recurrent):
    """Structured self-attention over the states of a bidirectional LSTM.

    rows: R; align: A; weight: of the penalty, whose `scale` is "sum" (paper), "mean" (its authors' code) or "norm".
    """
    hierarchical = False

    def __init__(self, vocabulary, classes, embed=64, hidden=50, align=50, rows=5, weight=0.0, scale="mean",
                 dropout=0.0):
        self._reader(vocabulary, embed, hidden, dropout)
        self.w_1, self.w_2 = _drawn((align, 2 * hidden)), _drawn((rows, align))
        self.hidden = nn.Linear(rows * 2 * hidden, rows * hidden)
        self.output = nn.Linear(rows * hidden, classes)
        self.weight, self.scale, self._penalty = weight, scale, None

    def forward(self, ids):
        ids, there, lengths = words_of(ids)
        h = self.read(ids, lengths)                                                    # (B, T, 2U)
        rows, a = structured_self(h, self.w_1, self.w_2, there.unsqueeze(1), return_weights=True)  # (B, R, 2U)
        self._penalty = penalty(a, self.scale) * self.weight if self.training and self.weight else None
        flat = rows.reshape(len(rows), -1)
        return self.output(self.drop(self.hidden(flat).relu()))

    def looks(self, ids):
        """The weights of each row of A, (B, R, T), and their sum over rows, brought to 1 (the paper's picture)."""
        with no_grad():
            ids, there, lengths = words_of(ids)
            _, a = structured_self(self.read(ids, lengths), self.w_1, self.w_2, there.unsqueeze(1),
                                   return_weights=True)
        a = a.numpy()
        all_rows = a.sum(1, keepdims=True)
        return [("rows of A", a), ("all rows", all_rows / np.maximum(all_rows.sum(-1, keepdims=True), 1e-30))]

    @staticmethod
    def steps(n):
        return n

    path = steps

    @staticmethod
    def example(rng):
        """Two texts of 4 and 2 words, two classes."""
        return Lin(6, 2, 3, 2, 2, 2), (_example_ids(rng, [[4], [2]]),)


class Du(Recurrent):
    """Two-level structured attention over a document.

    rows: R, of words and of sentences; align: A of both."""
    hierarchical = True

    def __init__(self, vocabulary, classes, embed=64, hidden=50, align=50, rows=3, weight=0.0, scale="mean",
                 dropout=0.0):
        self._reader(vocabulary, embed, hidden, dropout)
        wide = rows * 2 * hidden
        self.w_1, self.w_2 = _drawn((align, 2 * hidden)), _drawn((rows, align))
        self.w_3, self.w_4 = _drawn((align, wide)), _drawn((rows, align))
        self.output = nn.Linear(rows * wide, classes)
        self.weight, self.scale, self._penalty = weight, scale, None

    def attend(self, ids):
        """The document (B, R, 2U R) and both kinds of weights: (B, N, R, T) and (B, R, N)."""
        there = ids.numpy() != PAD                                                     # (B, N, T)
        B, N, T = ids.shape
        h = self.read(ids.reshape(B * N, T), Tensor(there.sum(-1).reshape(B * N)))     # (B N, T, 2U)
        return two_level(h.reshape(B, N, T, -1), self.w_1, self.w_2, self.w_3, self.w_4, Tensor(there),
                         return_weights=True)

    def forward(self, ids):
        bag, (words, chosen) = self.attend(ids)
        self._penalty = None
        if self.training and self.weight:
            self._penalty = penalties(words, chosen, Tensor(ids.numpy() != PAD), self.scale) * self.weight
        return self.output(self.drop(bag.reshape(len(bag), -1)))

    def looks(self, ids):
        """Of sentences (B, R, N), and of words (B, N, R, T)."""
        with no_grad():
            _, (words, chosen) = self.attend(ids)
        return [("sentences", chosen.numpy()), ("words", words.numpy())]

    @staticmethod
    def steps(n):
        return math.ceil(math.sqrt(n))

    path = steps

    @staticmethod
    def example(rng):
        """Two documents of two sentences and of one, two classes."""
        return Du(6, 2, 3, 2, 2, 2), (_example_ids(rng, [[3, 2], [2, 0]]),)


class DiSAN(nn.Module):
    """Directional self-attention, no recurrence: `hidden` U features in each direction."""
    hierarchical = False
    null = ("s_b_2",)  # a bias on every token's score cancels in the softmax

    def __init__(self, vocabulary, classes, embed=64, hidden=50, dropout=0.0):
        self.embedding = nn.Embedding(vocabulary, embed, padding=PAD)
        self.drop = nn.Dropout(dropout)
        shapes = {"w_h": (hidden, embed), "w_1": (hidden, hidden), "w_2": (hidden, hidden),
                  "w_f1": (hidden, hidden), "w_f2": (hidden, hidden)}
        biases = dict.fromkeys(("b_h", "b", "b_f"), (hidden,))
        self.forwards, self.backwards = ({**{name: _drawn(shape) for name, shape in shapes.items()},
                                          **{name: nn.Parameter(np.zeros(shape)) for name, shape in biases.items()}}
                                         for _ in range(2))
        self.s_w_1, self.s_w_2 = _drawn((2 * hidden, 2 * hidden)), _drawn((2 * hidden, 2 * hidden))
        self.s_b_1, self.s_b_2 = nn.Parameter(np.zeros(2 * hidden)), nn.Parameter(np.zeros(2 * hidden))
        self.output = nn.Linear(2 * hidden, classes)

    def states(self, ids, there):
        """(B, T, 2U): what each word found before it and behind it."""
        x, mask = self.drop(self.embedding(ids)), there.unsqueeze(1)
        return concat([disan(x, **part, mask=mask, direction=direction)
                       for part, direction in ((self.forwards, "forward"), (self.backwards, "backward"))], -1)

    def pooled(self, u, there, return_weights=False):
        return source2token(u, self.s_w_1, self.s_b_1, self.s_w_2, self.s_b_2, there.unsqueeze(1), return_weights)

    def forward(self, ids):
        ids, there, _ = words_of(ids)
        return self.output(self.drop(self.pooled(self.states(ids, there), there)))

    def penalty(self):
        return None

    def looks(self, ids):
        """The mean over the features of the last attention, (B, 1, T)."""
        return [("mean over features", self.features(ids).mean(1, keepdims=True))]

    def features(self, ids):
        """The weights of each feature in the last attention, (B, 2U, T), as an array."""
        ids, there, _ = words_of(ids)
        with no_grad():
            _, weights = self.pooled(self.states(ids, there), there, return_weights=True)  # (B, 2U, 1, T)
        return weights.numpy().squeeze(2)

    @staticmethod
    def steps(n):
        return 2

    @staticmethod
    def path(n):
        return 1

    @staticmethod
    def example(rng):
        """Two texts of 4 and 2 words, two classes. Large word vectors: near 0, where tanh is a straight line, what the
        asking word adds to the scores cancels in the softmax."""
        model = DiSAN(6, 2, 3, 2)
        model.embedding.weight = nn.Parameter(model.embedding.weight.numpy() * 6)
        return model, (_example_ids(rng, [[4], [2]]),)


class CNN(nn.Module):
    """One layer of `hidden` filters for each width of window, and the maximum over all places."""
    hierarchical = False

    def __init__(self, vocabulary, classes, embed=64, hidden=50, widths=(3, 4, 5), dropout=0.0):
        self.embedding = nn.Embedding(vocabulary, embed, padding=PAD)
        self.drop = nn.Dropout(dropout)
        self.filters = {f"w{k}": _drawn((hidden, embed, k)) for k in widths}
        self.biases = {f"b{k}": nn.Parameter(np.zeros(hidden)) for k in widths}
        self.widths = tuple(widths)
        self.output = nn.Linear(hidden * len(widths), classes)

    def forward(self, ids):
        ids, there, lengths = words_of(ids)
        x = self.drop(self.embedding(ids)).where(there.unsqueeze(-1), 0.0).transpose(1, 2)  # (B, D, T)
        found = []
        for k in self.widths:
            y = conv1d(x, self.filters[f"w{k}"], self.biases[f"b{k}"], padding=k - 1).relu()  # (B, U, T + k - 1)
            touched = np.arange(y.shape[2]) < np.where(lengths.numpy(), lengths.numpy() + k - 1, 0)[:, None]
            found.append(y.where(Tensor(touched).unsqueeze(1), 0.0).max(-1))           # (B, U)
        return self.output(self.drop(concat(found, -1)))

    def penalty(self):
        return None

    def looks(self, ids):
        """None: a maximum is no attention."""
        return []

    @staticmethod
    def steps(n):
        return 1

    @staticmethod
    def path(n):
        return 1  # through the maximum; before it no window sees beyond its own width

    @staticmethod
    def example(rng):
        """Two texts of 4 and 2 words, two classes."""
        return CNN(6, 2, 3, 2, (2, 3)), (_example_ids(rng, [[4], [2]]),)


def _example_ids(rng, lengths):
    """Documents of sentences of these lengths, as ids (B, N, T) from 1 to 5."""
    lengths = np.array(lengths)
    ids = rng.integers(1, 6, (*lengths.shape, lengths.max()))
    return Tensor(np.where(np.arange(lengths.max()) < lengths[..., None], ids, PAD))
