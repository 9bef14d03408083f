r"""The end-to-end memory network: a question reads a story several times over, and what it has become is the answer.

    u      = attention/memn2n.py: the question, and to it, hop by hop, what it found in the story
    answer = softmax(W u)

    adjacent     W is the last table of words: W^T = C_K, each answer being a word
    layer-wise   W is a matrix of its own, and u <- H u + o

Sukhbaatar, Szlam, Weston and Fergus 2015, "End-to-end memory networks"; Hu 2018, section 3.4. What words, their places
(`encoding`) and the ages of sentences count for is told in `attention/memn2n.py`; here is what makes it a model:

    memory         the most recent sentences only, 50. The stories of a task have as many slots as its longest; empty
                   ones are vectors of 0 that take their share of the softmax, so their number is fixed once for all
    random noise   in training, up to 10 % blanks are put between the sentences, which grow older by those after them
    linear start   the first epochs train without the softmaxes of the hops. In use they are always there
    rate           half in the linear start; then whole, and halved every 25 epochs
    first weights  N(0, 0.1); the vector of "no word" is 0 and is not learnt

The published training is plain SGD of the *summed* loss of 32 questions, rate 0.01, with gradients clipped at 40; for
a mean loss that is rate 0.32 and clipping at 1.25. It takes 120 epochs with a linear start of 20, and keeps the last
weights, not those of the lowest validation loss. The larger model of the paper: hidden=100, tying="layerwise",
nonlinear=True (u <- relu(H u + o)).

The published code weighs places otherwise than the paper, form="code" (its J is that of the longest sentence of the
task, and the time has a slot of its own). It is no detail: on the 1,000 questions of bAbI task 16 four of four seeds
came to an error of 0.5 % with the code's weights, none of four below 52 % with the paper's. Without a linear start it
was 53 to 56 % with the code's too.

An answer of several words, "apple,football", is one class. With adjacent tying it needs a row of the last table all the
same: what is no word of the stories has a row that only W knows. The paper's softmax runs over all words, this one over
those that are answers.

Shapes: B batch, M memory slots, J words of the longest sentence, Q of the longest question, D width, A answers.
"""
import numpy as np

from .. import nn, random
from ..attention import find
from ..attention.memn2n import ages_of, noisy_ages
from ..autograd import no_grad
from ..functional import concat, cross_entropy, dropout, embedding, linear
from ..nn import init
from ..tasks.text import Kept, roomy
from ..tensor import Tensor

DEVIATION = 0.1   # of the first weights
HALVED_EVERY = 25  # epochs
NIL = 0           # the word that is none: `Vocabulary.PAD`


class MemoryNetwork(nn.Module):
    """Stories (B, M, J) and questions (B, Q) of word ids, 0 where there is no word, to logits (B, A).

    vocabulary, answers   how many words and answers there are
    options               with the fields hidden, hops, encoding ("position" or "bag"), form ("paper" or "code"), tying
                          ("adjacent" or "layerwise"), temporal, random_noise, linear_start, memory, nonlinear, dropout
    story, sentence       sentences of the longest story and words of the longest sentence, questions too: how many
                          slots the memory, up to options.memory, and a sentence have. A story that is longer after all
                          has as many as it needs; its oldest sentences are all of the greatest age that was learnt.
    answer_words          for adjacent tying, (A,): the id of each answer as a word, below 0 where it is none. Without
                          them W is a matrix of its own
    """

    def __init__(self, vocabulary, answers, options, story=None, sentence=None, answer_words=None):
        self.options = options
        self.memory = max(1, min(options.memory, story or options.memory))
        self.slots = (sentence or 0) + bool(options.temporal)
        self.linear = False                                                # are we in the linear start?
        self._encoded = Kept(20_000)
        adjacent, D = options.tying == "adjacent", options.hidden
        self.tables = [_table(vocabulary, D, NIL) for _ in range(options.hops + 1 if adjacent else 3)]
        times = options.hops + 1 if adjacent else 2
        self.times = [_table(self.memory, D) for _ in range(times)] if options.temporal else None
        self.h = None if adjacent else _table(D, D)
        self.w = self.own = self._rows = None
        if adjacent and answer_words is not None:
            rows = np.array(answer_words, np.int64)                        # (A,)
            others = rows < 0
            rows[others] = vocabulary + np.arange(others.sum())
            self.own, self._rows = _table(int(others.sum()), D) if others.any() else None, Tensor(rows)
        else:
            self.w = _table(answers, D)                                    # W

    # -- from samples to arrays --------------------------------------------------------------------------------------
    def arrays(self, samples, words, bucket=1):
        """Stories (B, M, J), the oldest kept sentence first, and questions (B, Q): int64 Tensors, 0 for no word.

        samples with the fields story (sentences, oldest first) and question, words a `Vocabulary`.
        """
        found = [self._encoded.of(sample, words, lambda sample: _numbers(sample, words, self.options.memory))
                 for sample in samples]
        slots = max([self.memory, *[len(s) for s, _ in found]])
        longest = (max([1, *lengths]) for lengths in ([s.shape[1] for s, _ in found], [len(q) for _, q in found]))
        J, Q = (roomy(n, bucket, self.slots - bool(self.options.temporal)) for n in longest)
        story, question = np.zeros((len(found), slots, J), np.int64), np.zeros((len(found), Q), np.int64)
        for b, (s, q) in enumerate(found):
            story[b, :len(s), :s.shape[1]] = s
            question[b, :len(q)] = q
        return Tensor(story), Tensor(question)

    # -- reading -----------------------------------------------------------------------------------------------------
    def forward(self, story, question, ages=None):
        """Logits (B, A). ages (B, M): those that were drawn for training, see `taught`."""
        u = self._read(story, question, ages)                              # (B, D)
        u = dropout(u, self.options.dropout, self.training) if self.options.dropout else u
        return linear(u, self.output_weight())

    def output_weight(self):
        """W (A, D)."""
        if self._rows is None:
            return self.w
        last = self.tables[-1]
        return embedding(last if self.own is None else concat([last, self.own]), self._rows)

    def hops(self, story, question):
        """What each hop looked at: weights (B, hops, M), NumPy; column 0 is the oldest kept sentence."""
        with no_grad():
            return self._read(story, question, return_weights=True)[1].numpy()

    def _read(self, story, question, ages=None, **more):
        o, story = self.options, story.numpy()
        encoding, ages = "bow" if o.encoding == "bag" else o.form, self._ages(story) if ages is None else ages
        return find("memn2n")(
            story, question, self.tables, self.times, h=self.h, ages=ages, hops=o.hops, encoding=encoding,
            tying="adjacent" if self.h is None else "layer-wise", softmax=not (self.training and self.linear), nil=NIL,
            mask=self._mask(story), relu=o.nonlinear, slots=self.slots, **more)

    def _ages(self, story):
        """The row of the tables of times for each sentence, (B, M)."""
        if self.times is None:
            return None
        if self.training and self.options.random_noise:
            return noisy_ages(story, random.generator(), self.memory, self.options.random_noise, NIL)
        return np.minimum(ages_of(story, NIL), self.memory - 1)

    def _mask(self, story):
        """None, or where a story is longer than all in training: that the others do not have its slots (B, 1, M)."""
        slots = np.arange(story.shape[1])
        if len(slots) <= self.memory:
            return None
        filled = ((story != NIL).any(-1) * (slots + 1)).max(1)             # (B,)
        return slots < np.maximum(filled, self.memory)[:, None, None]

    # -- training ----------------------------------------------------------------------------------------------------
    def taught(self, inputs, targets, samples, bucket=1):
        """What `loss` takes behind the inputs: in training with noise the ages (B, M) that were drawn."""
        noisy = self.times is not None and self.training and self.options.random_noise
        return (self._ages(inputs[0].numpy()),) if noisy else ()

    def loss(self, targets, story, question, ages=None):
        """The mean cross-entropy of the answers `targets` (B,)."""
        return cross_entropy(self(story, question, ages), targets)

    def at_epoch(self, epoch):
        """Linear start: the hops of the first epochs have no softmax, in training."""
        self.linear = epoch < self.options.linear_start

    def rate_factor(self, epoch):
        """By which the learning rate is multiplied: half in the linear start, then halved every 25 epochs."""
        start = self.options.linear_start
        return 0.5 if epoch < start else 0.5 ** ((epoch - start) // HALVED_EVERY)

    @staticmethod
    def example(rng):
        """Two stories of 3 and 2 sentences, the longest of 3 words; 2 hops, 4 answers of which one is no word."""
        story = np.array([[[1, 2, 3], [4, 5, 0], [1, 5, 6]], [[3, 2, 1], [6, 4, 0], [0, 0, 0]]])
        options = _Small()
        module = MemoryNetwork(7, 4, options, story=3, sentence=3, answer_words=[5, -1, 2, 6]).eval()
        return module, (Tensor(story), Tensor(np.array([[4, 6], [3, 0]])))


class _Small:
    """Options of `example`."""
    hidden, hops, encoding, form, tying = 3, 2, "position", "paper", "adjacent"
    temporal, random_noise, linear_start, memory, nonlinear, dropout = True, 0.1, 0, 50, False, 0.0


def _numbers(sample, words, memory):
    """The last sentences of a sample (n, J) and its question (Q,), int64."""
    sentences = [words.encode(s) for s in sample.story[-memory:]]
    story = np.zeros((len(sentences), max(map(len, sentences), default=1)), np.int64)
    for row, ids in zip(story, sentences):
        row[:len(ids)] = ids
    return story, np.array(words.encode(sample.question), np.int64)


def _table(rows, width, nil=None):
    """A Parameter of `rows` vectors, that of `nil` being 0."""
    table = init.normal((rows, width), DEVIATION)
    if nil is not None:
        table[nil] = 0
    return nn.Parameter(table)
