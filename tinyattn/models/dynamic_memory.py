r"""Dynamic memory networks for stories: DMN (Kumar et al. 2016) and DMN+ (Xiong, Merity and Socher 2016).

                    DMN                                             DMN+
    facts           one GRU reads all words of the story;           words of a sentence, weighed by their places and
                    c_i is its state at the end of sentence i       added up; a GRU each way over them, the two added
    question q      the last state of the same GRU over its words   the last state of a GRU of its own
    memory m        `attention/dmn.py`: gates, each 0 .. 1 for      `attention/dmn_plus.py`: g is a softmax over the
                    itself, and a GRU from episode to episode       facts; a ReLU layer of its own for each episode
    answer          softmax(W a + b), a = GRU(q, m)                 softmax(W [m; q] + b)

B stories of S sentences of J words; D units, also of the word vectors; A answers. An answer of several words is one
class here, so the paper's decoder of the DMN makes one step: a_1 = GRU([y_0; q], a_0) with a_0 = m, where y_0 = 0
leaves q alone.

What the gates of the DMN are taught (`options.gates`, their weight in the loss, 0: nothing): the published 93.6% on
bAbI uses the supporting facts, one a pass. Here which pass opens for which fact is left to the network, for a story's
supporting facts come as a set: fact i counts as chosen with c_i = 1 - (1 - g_i1) ... (1 - g_iL) over the L passes, and
the loss is the cross-entropy of c_i with "is it a supporting fact?", mean over the facts. Figures of such a run are not
to be set beside those of networks that see answers alone.
"""
import numpy as np

from .. import functional, nn
from ..attention.dmn import dmn
from ..attention.dmn_plus import dmn_plus
from ..autograd import no_grad
from ..functional import concat, cross_entropy
from ..nn import init
from ..tasks.text import Vocabulary, roomy
from ..tensor import Tensor

PAD = Vocabulary.PAD


# ---------------------------------------------------------------------------------------------------------------------
# from questions to arrays
# ---------------------------------------------------------------------------------------------------------------------
def word_arrays(samples, words, memory, bucket=1):
    """The newest `memory` sentences of each story, oldest first, as word numbers (B, S, J), and questions (B, Q).

    What is padding is PAD; S, J and Q are at least 1, and `roomy`. A sentence without words is left in its place.
    """
    stories = [[words.encode(sentence) for sentence in s.story[-memory:]] for s in samples]
    questions = [words.encode(s.question) for s in samples]
    S, J, Q = (roomy(max([1, *lengths]), bucket) for lengths in (
        map(len, stories), (len(sentence) for story in stories for sentence in story), map(len, questions)))
    story = np.full((len(samples), S, J), PAD, np.int64)
    question = np.full((len(samples), Q), PAD, np.int64)
    for b, (sentences, asked) in enumerate(zip(stories, questions)):
        for s, sentence in enumerate(sentences):
            story[b, s, :len(sentence)] = sentence
        question[b, :len(asked)] = asked
    return Tensor(story), Tensor(question)


def running_order(story, bucket=1):
    """Where in a story (B, S, J), seen as S J places in a row, its words stand, one after the other and then the padding:
    (B, T), T the most words of a story, `roomy`."""
    there = (story != PAD).reshape(len(story), -1)                         # (B, S J)
    longest = roomy(max(1, there.sum(1).max(initial=0)), bucket, there.shape[1])
    return np.argsort(~there, axis=1, kind="stable")[:, :longest]


def running_words(story, order):
    """Stories (B, S, J) as running text in this order: words (B, T), how many (B,), where each sentence ends (B, S)."""
    there = (story != PAD).sum(2)                                          # (B, S)
    text = np.take_along_axis(story.reshape(len(story), -1), order, 1)
    return text, there.sum(1), np.maximum(np.cumsum(there, 1) - 1, 0)


def plain(x):
    """The array of a Tensor, and an array as it is."""
    return x.numpy() if isinstance(x, Tensor) else x


class Network(nn.Module, abstract=True):
    """What both share: word vectors, arrays, and the weights of all passes. A subclass gives `read`. `more` is what it
    reads beside story and question."""

    def __init__(self, vocabulary, answers, options):
        self.memory, self.passes, self.gates = options.memory, options.hops, options.gates
        self.words = nn.Embedding(vocabulary, options.hidden, padding=PAD)
        self.dropout = nn.Dropout(options.dropout)

    def arrays(self, samples, words, bucket=1):
        """Story (B, S, J) and question (B, Q) as word numbers; see `word_arrays`."""
        return word_arrays(samples, words, self.memory, bucket)

    def read(self, story, question, *more):
        """(logits (B, A), weights of all passes (B, L, S)) of arrays."""
        raise NotImplementedError

    def forward(self, story, question, *more):
        """Scores of all answers (B, A)."""
        return self.read(*map(plain, (story, question, *more)))[0]

    def hops(self, story, question, *more):
        """The weights of the facts in all passes, (B, L, S) as an array; column 0 is the oldest sentence kept."""
        with no_grad():
            return self.read(*map(plain, (story, question, *more)))[1].numpy()

    def taught(self, inputs, targets, samples, bucket=1):
        """Arrays that `loss` takes behind the inputs."""
        return ()

    def loss(self, targets, *inputs):
        """The mean cross-entropy of the answers `targets` (B,)."""
        return cross_entropy(self(*inputs), targets)


def _sentences_there(story):
    """(B, 1, S): which sentences have words."""
    return Tensor((story != PAD).any(2)[:, None])


def _gru(sizes, gates):
    """W_ih, W_hh and bias of a GRU of `gates` gates inside a mechanism, first values as in `nn.GRU`."""
    bound = sizes ** -0.5
    shapes = (gates * sizes, sizes), (gates * sizes, sizes), (gates * sizes,)
    return [nn.Parameter(init.uniform(shape, bound)) for shape in shapes]


def _scorer(width, features):
    """W_1, b_1, w_2, b_2 of the attention of a pass: (D, Z), (D,), (D,), ()."""
    return {"w_1": nn.Parameter(init.xavier((width, features))), "b_1": nn.Parameter(init.zeros((width,))),
            "w_2": nn.Parameter(init.xavier((1, width))[0]), "b_2": nn.Parameter(init.zeros(()))}


# ---------------------------------------------------------------------------------------------------------------------
# the two networks
# ---------------------------------------------------------------------------------------------------------------------
class DMN(Network):
    """The dynamic memory network: one GRU reads all words, gated passes over the facts make an episode each.

    With gates held at 1, each pass is a plain GRU over the facts. The formulas stand at the head of this file.
    """

    def __init__(self, vocabulary, answers, options):
        super().__init__(vocabulary, answers, options)
        D = options.hidden
        self.reader = nn.GRU(D, D)
        self.episode = {**_scorer(D, 7 * D + 2), "w": nn.Parameter(init.xavier((D, D)))}
        for name in "em":
            self.episode |= dict(zip((f"{name}_ih", f"{name}_hh", f"{name}_b"), _gru(D, 3)))
        self.decoder = nn.GRUCell(D, D)
        self.answer = nn.Linear(D, answers)

    def arrays(self, samples, words, bucket=1):
        """Story and question, and the order of the story's words (B, T); see `running_order`."""
        story, question = super().arrays(samples, words, bucket)
        return story, question, Tensor(running_order(story.numpy(), bucket))

    def read(self, story, question, order=None):
        text, lengths, ends = running_words(story, running_order(story) if order is None else order)
        states, _ = self.reader(self.dropout(self.words(Tensor(text))), lengths=lengths)  # (B, T, D)
        facts = functional.rows_at(states, Tensor(ends))                              # (B, S, D)
        q = self.reader(self.words(Tensor(question)), lengths=(question != PAD).sum(1))[1].squeeze(0)  # (B, D)
        m, gates = dmn(facts, q, **self.episode, hops=self.passes, mask=_sentences_there(story), return_weights=True)
        return self.answer(self.dropout(self.decoder(q, m))), gates

    def taught(self, inputs, targets, samples, bucket=1):
        """What the gates are taught, where they are: the supporting facts (B, S), bool."""
        right = np.zeros(inputs[0].shape[:2], bool)
        for b, sample in enumerate(samples):
            left_out = max(0, len(sample.story) - self.memory)
            right[b, [i - left_out for i in sample.support if i >= left_out]] = True
        return (right,) if self.gates else ()

    def loss(self, targets, story, question, order=None, right=None):
        """Cross-entropy of the answers, and `gates` times that of the facts chosen; see the file."""
        inputs = [x if x is None else plain(x) for x in (story, question, order)]
        logits, gates = self.read(*inputs)
        loss = cross_entropy(logits, targets)
        return loss if right is None else loss + self.gates * self.gate_loss(gates, inputs[0], right)

    def gate_loss(self, gates, story, right):
        """Cross-entropy of the facts chosen by gates (B, L, S) with the supporting facts (B, S)."""
        there = (story != PAD).any(2)
        passed_over = 1 - gates[:, 0]
        for hop in range(1, gates.shape[1]):
            passed_over = passed_over * (1 - gates[:, hop])                # (B, S), 1 - c
        likely = functional.where(right, 1 - passed_over, passed_over) * (1 - 2e-6) + 1e-6  # no log 0
        return -(likely.log().where(Tensor(there), 0.0)).sum() / Tensor(np.maximum(1, there.sum()), dtype=gates.dtype)

    @staticmethod
    def example(rng):
        return DMN(7, 4, _Sizes()).eval(), _example()


class DMNPlus(Network):
    """The improved dynamic memory network: facts that know their neighbours, an attention GRU, untied updates.

    The formulas stand at the head of this file.
    """
    null = ("episode.b_2",)

    def __init__(self, vocabulary, answers, options):
        super().__init__(vocabulary, answers, options)
        D = options.hidden
        self.asker = nn.GRU(D, D)
        self.fusion = nn.GRU(D, D, bidirectional=True)
        self.episode = {**_scorer(D, 4 * D), **dict(zip(("a_ih", "a_hh", "a_b"), _gru(D, 2)))}
        self.episode["w_m"] = nn.Parameter(np.stack([init.xavier((D, 3 * D)) for _ in range(options.hops)]))
        self.episode["b_m"] = nn.Parameter(init.zeros((options.hops, D)))
        self.answer = nn.Linear(2 * D, answers)

    def facts(self, story):
        """f (B, S, D): the sentences, each having heard its neighbours on both sides."""
        D, there = self.words.width, (story != PAD).any(2)
        share = place_weights(story, D, self.words.weight.dtype)              # (B, S, J, D)
        sums = (self.words(Tensor(story)) * share).sum(2)                  # (B, S, D)
        both, _ = self.fusion(self.dropout(sums), lengths=_last(there))    # (B, S, 2D)
        return both[:, :, :D] + both[:, :, D:]

    def read(self, story, question):
        q = self.asker(self.words(Tensor(question)), lengths=(question != PAD).sum(1))[1].squeeze(0)  # (B, D)
        mask = _sentences_there(story)
        m, weights = dmn_plus(self.facts(story), q, **self.episode, mask=mask, return_weights=True)
        return self.answer(self.dropout(concat([m, q], 1))), weights

    @staticmethod
    def example(rng):
        return DMNPlus(7, 4, _Sizes()).eval(), _example()


def place_weights(story, width, dtype):
    """l (B, S, J, D) of "End-to-end memory networks", for sentences of their own lengths; 0 where there is no word. See
    `position_encoding` in `attention/memn2n.py`."""
    lengths = (story != PAD).sum(2)[..., None, None]                       # (B, S, 1, 1)
    j, k = np.arange(1, story.shape[2] + 1)[:, None], np.arange(1, width + 1)
    place = j / np.maximum(lengths, 1)
    return np.where(j <= lengths, (1 - place) - (k / width) * (1 - 2 * place), 0.0).astype(dtype)


def _last(there):
    """The place behind the last True of each row, (B,): a sentence without words in the middle stays in the line."""
    return np.where(there.any(1), there.shape[1] - np.argmax(there[:, ::-1], 1), 0)


class _Sizes:
    """The options of the examples."""
    hidden, memory, hops, dropout, gates = 3, 4, 2, 0.0, 0.5


def _example():
    """Stories of 3 sentences and of 1; questions of 2 words and of 1."""
    story = [[[4, 5, 6], [5, 4, 0], [6, 6, 4]], [[6, 4, 0], [0, 0, 0], [0, 0, 0]]]
    return np.array(story), np.array([[5, 6], [4, 0]])
