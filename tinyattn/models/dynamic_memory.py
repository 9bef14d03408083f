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
from ..attention.memn2n import position_encoding
from ..autograd import no_grad
from ..functional import concat, cross_entropy
from ..nn import init
from ..tasks.text import Vocabulary
from ..tensor import Tensor

PAD = Vocabulary.PAD


# ---------------------------------------------------------------------------------------------------------------------
# from questions to arrays
# ---------------------------------------------------------------------------------------------------------------------
def word_arrays(samples, words, memory):
    """The newest `memory` sentences of each story, oldest first, as word numbers (B, S, J), and questions (B, Q).

    What is padding is PAD; S, J and Q are at least 1. A sentence without words is left in its place.
    """
    stories = [[words.encode(sentence) for sentence in s.story[-memory:]] for s in samples]
    questions = [words.encode(s.question) for s in samples]
    S = max([1, *map(len, stories)])
    J = max([1, *(len(sentence) for story in stories for sentence in story)])
    story = np.full((len(samples), S, J), PAD, np.int64)
    question = np.full((len(samples), max([1, *map(len, questions)])), PAD, np.int64)
    for b, (sentences, asked) in enumerate(zip(stories, questions)):
        for s, sentence in enumerate(sentences):
            story[b, s, :len(sentence)] = sentence
        question[b, :len(asked)] = asked
    return Tensor(story), Tensor(question)


def running_words(story):
    """Stories (B, S, J) as running text: words (B, T), how many (B,), and where each sentence ends (B, S)."""
    there = story != PAD
    rows = there.reshape(len(story), -1)                                   # (B, S J)
    order = np.argsort(~rows, axis=1, kind="stable")
    lengths = rows.sum(1)
    text = np.take_along_axis(story.reshape(len(story), -1), order, 1)[:, :max(1, lengths.max(initial=0))]
    return text, lengths, np.maximum(there.sum(2).cumsum(1) - 1, 0)


class Network(nn.Module, abstract=True):
    """What both share: word vectors, arrays, and the weights of all passes. A subclass gives `read`."""

    def __init__(self, vocabulary, answers, options):
        self.memory, self.passes, self.gates = options.memory, options.hops, options.gates
        self.words = nn.Embedding(vocabulary, options.hidden, padding=PAD)
        self.dropout = nn.Dropout(options.dropout)

    def arrays(self, samples, words):
        """Story (B, S, J) and question (B, Q) as word numbers; see `word_arrays`."""
        return word_arrays(samples, words, self.memory)

    def read(self, story, question):
        """(logits (B, A), weights of all passes (B, L, S)) of arrays."""
        raise NotImplementedError

    def forward(self, story, question):
        """Scores of all answers (B, A)."""
        return self.read(np.asarray(story), np.asarray(question))[0]

    def hops(self, story, question):
        """The weights of the facts in all passes, (B, L, S) as an array; column 0 is the oldest sentence kept."""
        with no_grad():
            return self.read(np.asarray(story), np.asarray(question))[1].numpy()

    def loss(self, arrays, targets, samples):
        """The mean cross-entropy of the answers `targets` (B,)."""
        return cross_entropy(self(*arrays), targets)


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

    def read(self, story, question):
        text, lengths, ends = running_words(story)
        states, _ = self.reader(self.dropout(self.words(text)), lengths=lengths)      # (B, T, D)
        facts = states[np.arange(len(story))[:, None], ends]                          # (B, S, D)
        q = self.reader(self.words(question), lengths=(question != PAD).sum(1))[1].squeeze(0)  # (B, D)
        m, gates = dmn(facts, q, **self.episode, hops=self.passes, mask=_sentences_there(story), return_weights=True)
        return self.answer(self.dropout(self.decoder(q, m))), gates

    def loss(self, arrays, targets, samples):
        """Cross-entropy of the answers, and `gates` times that of the facts chosen; see the file."""
        story, question = map(np.asarray, arrays)
        logits, gates = self.read(story, question)
        loss = cross_entropy(logits, targets)
        return loss + self.gates * self.gate_loss(gates, story, samples) if self.gates else loss

    def gate_loss(self, gates, story, samples):
        """Cross-entropy of the facts chosen by gates (B, L, S) with the supporting facts of the samples."""
        there, right = (story != PAD).any(2), np.zeros(story.shape[:2], bool)
        for b, sample in enumerate(samples):
            left_out = max(0, len(sample.story) - self.memory)
            right[b, [i - left_out for i in sample.support if i >= left_out]] = True
        passed_over = 1 - gates[:, 0]
        for hop in range(1, gates.shape[1]):
            passed_over = passed_over * (1 - gates[:, hop])                # (B, S), 1 - c
        likely = functional.where(Tensor(right), 1 - passed_over, passed_over) * (1 - 2e-6) + 1e-6  # no log 0
        return -(likely.log().where(Tensor(there), 0.0)).sum() / max(1, there.sum())

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
        D, there = self.words.width, _sentences_there(story).numpy()[:, 0]
        sums = (self.words(story) * place_weights(story, D, self.words.weight.dtype)).sum(2)  # (B, S, D)
        both, _ = self.fusion(self.dropout(sums), lengths=_last(there))    # (B, S, 2D)
        return both[:, :, :D] + both[:, :, D:]

    def read(self, story, question):
        q = self.asker(self.words(question), lengths=(question != PAD).sum(1))[1].squeeze(0)  # (B, D)
        mask = _sentences_there(story)
        m, weights = dmn_plus(self.facts(story), q, **self.episode, mask=mask, return_weights=True)
        return self.answer(self.dropout(concat([m, q], 1))), weights

    @staticmethod
    def example(rng):
        return DMNPlus(7, 4, _Sizes()).eval(), _example()


def place_weights(story, width, dtype):
    """l (B, S, J, D) of "End-to-end memory networks", for sentences of their own lengths; 0 where there is no word."""
    J = story.shape[2]
    table = np.zeros((J + 1, J, width), dtype)
    for n in range(1, J + 1):
        table[n] = position_encoding(n, width, "paper", J)
    return table[(story != PAD).sum(2)]


def _last(there):
    """The place behind the last True of each row, (B,): a sentence without words in the middle stays in the line."""
    return np.where(there.any(1), there.shape[1] - there[:, ::-1].argmax(1), 0)


class _Sizes:
    """The options of the examples."""
    hidden, memory, hops, dropout, gates = 3, 4, 2, 0.0, 0.5


def _example():
    """Stories of 3 sentences and of 1; questions of 2 words and of 1."""
    story = [[[4, 5, 6], [5, 4, 0], [6, 6, 4]], [[6, 4, 0], [0, 0, 0], [0, 0, 0]]]
    return np.array(story), np.array([[5, 6], [4, 0]])
