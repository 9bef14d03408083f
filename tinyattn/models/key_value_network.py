r"""Key-value memory network (Miller et al. 2016): questions answered from pairs of a key and a value.

    question       q_1 = sum of the vectors of its words in the table A
    memories       key and value likewise, of the words of each; found and read as in `attention/key_value.py`
    answer         softmax_y(q_{H+1}^T B y),  B y = the sum of the vectors of the words of answer y

B is A for answers that are one word of the vocabulary, as in the authors' code: an entity that no training question
asked about can then be answered all the same, since the value that is read and the answer are one vector. Other answers
("apple,football") have a row of the table to themselves.

The matrix R_j between hops begins as a quarter of the identity; the paper says nothing about it. With R = 1 the entity
asked about, which is an answer too, outweighs values that share the attention: q + o_1 + o_2 with o = (y_1 + y_2 +
y_3) / 3 is nearer to the question's own entity than to any y.

The entities of a knowledge base may be tens of thousands, and are answers all of them. In training the right one is
told from those of the same batch, in questions and memories (some hundreds), where the paper draws 1,000 at random: a
push away from everything, at every step, moves vectors that no question has to do with, and Adam makes small pushes
large.

What the memories of a question are:
    its `pairs`, where the data have them (`tasks/movies.py`), at most `options.memory`;
    else the story's sentences, the newest `options.memory`: key and value a sentence;
    or, with `options.windows` = D > 0, a window for each word of the story that is an answer: its key the word and, of
    a second dictionary, the D words on each side, its value the word. A sentence without an answer in it is a memory
    as above.
A story has an order, and a bag of words has none: each key from a story has the age of its sentence too, as one more
word (0 the newest). That is MemN2N's way, not the paper's, which has no task with order.

B questions, S memories, D units, V words, A answers. The table has V rows for words, with windows V for words near a
centre, `options.memory` for ages, and one for each answer that is no word.
"""
from itertools import chain

import numpy as np

from .. import nn
from ..attention.key_value import key_value
from ..autograd import no_grad
from ..functional import cross_entropy, embedding, where
from ..nn import init
from ..tasks.text import Kept, Vocabulary, roomy
from ..tensor import Tensor

PAD = Vocabulary.PAD
NEVER = -1e30             # the score of an answer that is padding
KEPT, LENGTH = 0.25, 3.4  # at first: the diagonal of R, and the length of the vectors


class KeyValueNetwork(nn.Module):
    """The key-value memory network (KV-MemNN): each hop finds memories by their keys and reads their values.

    The head of the file says what the memories are.

    options         with the fields hidden, hops, memory, windows, dropout
    answer_words    (A,): the number of each answer as a word, below 0 where it is none
    tied            False: each answer has a vector of its own, whatever `answer_words` says
    """

    def __init__(self, vocabulary, answers, options, answer_words=None, tied=True):
        D, self.memory, self.windows = options.hidden, options.memory, options.windows
        self.ages = vocabulary * (2 if self.windows else 1)                # the first row of the ages
        words = np.full(answers, -1) if answer_words is None else np.asarray(answer_words)
        self.centres = {int(word) for word in words if word >= 0}
        own = (words < 0) | (not tied)
        self.places = np.where(own, self.ages + self.memory + own.cumsum() - 1, words)  # rows of the answers
        self.vocabulary, self.encoded = vocabulary, Kept(500_000)
        table = init.normal((self.ages + self.memory + int(own.sum()), D), LENGTH / D ** 0.5)
        table[PAD] = 0
        self.table = nn.Parameter(table)
        between = np.tile(KEPT * np.eye(D, dtype=table.dtype), (options.hops - 1, 1, 1))
        self.between = nn.Parameter(between) if options.hops > 1 else Tensor(between)  # R_1 ... or none to be learnt
        self.dropout = nn.Dropout(options.dropout)

    # -- memories ----------------------------------------------------------------------------------------------------
    def arrays(self, samples, words, bucket=1):
        """question (B, Q), keys (B, S, K), values (B, S, W) as word numbers, and the sentence or pair that each memory
        comes from (B, S), -1 where there is none; all padded with PAD, to `roomy` lengths."""
        found = [self._memories(s, words) for s in samples]
        S = roomy(max([1, *map(len, found)]), bucket)
        origin = np.full((len(samples), S), -1)
        for row, memories in zip(origin, found):
            row[:len(memories)] = [place for _, _, place in memories]
        keys, values = ([m[i] for row in found for m in (*row, *[((), (), 0)] * (S - len(row)))] for i in (0, 1))
        question, *pairs = (_padded(rows, bucket) for rows in ([words.encode(s.question) for s in samples], keys, values))
        return tuple(map(Tensor, (question, *(p.reshape(len(samples), S, p.shape[1]) for p in pairs), origin)))

    def _memories(self, sample, words):
        """[(key, value, place)] of one question."""
        if sample.pairs:
            def numbers(pair):  # of its key and of its value
                return [words.encode(side) for side in pair]
            return [(*self.encoded.of(pair, words, numbers), i) for i, pair in enumerate(sample.pairs[:self.memory])]
        kept = sample.story[-self.memory:]
        return [memory for i, sentence in enumerate(kept)
                for memory in self._sentence(words.encode(sentence), i, len(kept) - 1 - i)]

    def _sentence(self, ids, place, age):
        """The memories of one sentence: its windows, or itself."""
        when, memories = self.ages + age, []
        for i, word in enumerate(ids if self.windows else ()):
            if word in self.centres:
                around = ids[max(0, i - self.windows):i] + ids[i + 1:i + 1 + self.windows]
                memories.append(([*(self.vocabulary + w for w in around), word, when], [word], place))
        return memories or [([*ids, when], ids, place)]

    # -- answers -----------------------------------------------------------------------------------------------------
    def vector(self, question, keys, values, origin):
        """What the question has become, to be compared with the answers: (B, D), and weights of all hops (B, L, S)."""
        mask = (_plain(origin) >= 0)[:, None]                                  # (B, 1, S)
        q, weights = key_value(question, keys, values, self.table, self.between, nil=PAD, mask=mask,
                               return_weights=True)
        return self.dropout(q), weights

    def forward(self, question, keys, values, origin):
        """Scores of all answers (B, A)."""
        return self.vector(question, keys, values, origin)[0] @ embedding(self.table, self.places).T

    def taught(self, inputs, targets, samples, bucket=1):
        """With pairs, in training: the numbers of those answers (N,) among which the right one is to be found, the
        targets and those whose word stands in a question or memory of the batch, and the rows of the table (N,) where they
        stand. Behind them A, and row 0, as padding."""
        if not (samples[0].pairs and self.training):
            return ()
        there = np.zeros(len(self.table), bool)
        for ids in inputs[:3]:
            there[np.asarray(ids)] = True
        there = there[self.places]                                         # (A,)
        there[np.asarray(targets)] = True
        among, = np.nonzero(there)
        behind = 0, roomy(len(among), bucket) - len(among)
        return np.pad(among, behind, constant_values=len(self.places)), np.pad(self.places[among], behind)

    def loss(self, targets, question, keys, values, origin, among=None, rows=None):
        """The mean cross-entropy of the answers `targets` (B,), among the answers of `taught`, or all."""
        inputs = question, keys, values, origin
        if among is None:
            return cross_entropy(self(*inputs), targets)
        targets, among = _plain(targets), _plain(among)
        scores = self.vector(*inputs)[0] @ embedding(self.table, rows).T   # (B, N)
        scores = where(Tensor(among < len(self.places)), scores, NEVER)
        return cross_entropy(scores, Tensor(np.searchsorted(among, targets)))

    def hops(self, question, keys, values, origin):
        """Weights (B, L, M) as an array, column 0 the oldest sentence kept, or the first pair: what windows of one
        sentence take is added up."""
        with no_grad():
            weights = self.vector(question, keys, values, origin)[1].numpy()
        origin = np.asarray(origin)
        there = origin[:, None] == np.arange(max(1, origin.max(initial=0) + 1))[:, None]  # (B, M, S)
        return np.einsum("bls,bms->blm", weights, there)

    @staticmethod
    def example(rng):
        keys = [[[4, 7], [6, 8], [5, 0]], [[6, 4], [0, 0], [0, 0]]]
        values = [[[5], [6], [4]], [[6], [0], [0]]]
        inputs = [[4, 6], [5, 0]], keys, values, [[0, 1, 2], [0, -1, -1]]
        return KeyValueNetwork(7, 3, _Sizes(), answer_words=[4, 6, -1]).eval(), tuple(map(np.array, inputs))


def _plain(x):
    """The array of a Tensor, and an array as it is."""
    return x.numpy() if isinstance(x, Tensor) else x


def _padded(rows, bucket=1):
    """Lists of numbers as one array (N, J), at least one wide, filled up with PAD."""
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    out = np.full((len(rows), roomy(max(1, lengths.max(initial=0)), bucket)), PAD, np.int64)
    out[np.arange(out.shape[1]) < lengths[:, None]] = np.fromiter(chain.from_iterable(rows), np.int64, lengths.sum())
    return out


class _Sizes:
    """The options of the example."""
    hidden, memory, hops, dropout, windows = 3, 4, 2, 0.0, 0
