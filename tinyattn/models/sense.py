"""Word sense: which "bank" is it? Self-attention looks at the words around an ambiguous one; a bag of words cannot.

The network is in `sense_network.py`, the data in `tasks/sense.py`. Of its mechanisms, `static` (Hu 2018, eq. 19) fails
for a reason worth seeing. All rows of its weights have the same arg-max, whoever asks: it can prefer one of the two
nouns by what it is or by where it stands in the sentence, but not by where it stands as seen from the ambiguous word.
And as no weight is more than e^2 times another, even the noun alone in its sentence gets little more than its share.
So it learns to prefer, say, the earlier noun, and guesses (a flat row is all that the asking word can change) where the
later one counts: `by_form` shows which half of the forms it gave up. DiSAN without positions knows only what
stands before and what after: where both nouns stand on one side it guesses (`--positions sinusoid` gives it the rest).
"""
from dataclasses import asdict, dataclass

import numpy as np

from ..autograd import no_grad
from ..errors import InputError
from ..tasks import metrics
from ..tasks.sense import (
    SURVEY,
    Sample,
    all_lines,
    inventory,
    load,
    parse,
    parse_pseudo,
    pseudo_words,
    read_samples,
)
from ..tasks.text import Vocabulary, pad
from ..tensor import Tensor
from . import system
from .sense_network import SenseNetwork
from .system import Figure, Groups, Look, Prediction, System, at_least, check_dropout, option


@dataclass(frozen=True)
class Options:
    """What kind of model. Each field is an option of `tinyattn train sense`."""
    attention: str = option("shaw", "how words look at each other: shaw, multi_head, pairwise, disan, static and "
                                    "others that take x and a mask, FILE.py:NAME, or none, a bag of words")
    score: str = option("", "pairwise: how well two words fit: additive, general, dot, scaled_dot, mlp, ...; empty is "
                            "its own, additive")
    heads: int = option(4, "heads, of a mechanism that has some")
    reach: int = option(8, "shaw: places to each side that are told apart")
    positions: str = option("auto", "sinusoids added to the words; auto: unless the mechanism knows an order by itself",
                            ["auto", "sinusoid", "none"])
    width: int = option(64, "width of the word vectors")
    dropout: float = option(0.1, "probability of dropping an element of a word vector in training")
    pseudo: str = option("", "with --data TEXT: make ambiguous words by merging these of a text, such as "
                             "door/window,cat/dog; auto: frequent words")
    min_count: int = option(1, "words seen less often in training are <unk>")
    max_vocabulary: int = option(30000, "at most so many words")
    max_length: int = option(60, "longer sentences are cut to so many words around the ambiguous one")


@dataclass(frozen=True)
class Training(system.Training):
    """How it is trained, unless said otherwise."""
    steps: int = 3000
    learning_rate: float = 3e-3
    warmup: int = 50
    validate_every: int = 300


class Sense(System):
    """See the module docstring and `system.py`."""
    name = "sense"
    help = "a chooser of word senses, by self-attention over the sentence of an ambiguous word"
    data_help = ("files with one sentence a line: word.sense TAB a sentence with the word between *asterisks*, or JSON "
                 'lines {"word", "sense", "text"}; with --pseudo any text, .txt or .txt.gz')
    counts = "sentences"
    Options, Training = Options, Training
    figures = {"accuracy": Figure("accuracy %", 1), "paired": Figure("both of a pair right %", 1),
               "simple": Figure("simple sentences %", 1), "unseen": Figure("nouns new beside the word %", 1),
               "chance": Figure("by chance %", 1, None), "majority": Figure("the most frequent sense %", 1, None),
               "gold_mass": Figure("weight on the noun that counts", 3), "gold_top": Figure("largest weight there", 3),
               "gold_kl": Figure("gold KL", 3, "lower"), "gold_mse": Figure("gold MSE", 3, "lower"),
               "loss": Figure("loss", 4, "lower")}
    groups = Groups("by_word", "ambiguous word", "accuracy", "accuracy-by-word.svg")

    def __init__(self, options, words, senses, counts):
        super().__init__(options)
        at_least(self.name, options, heads=1, reach=1, width=1, min_count=1, max_vocabulary=5, max_length=3)
        check_dropout(self.name, options)
        self.words, self.senses, self.counted = words, senses, counts
        self.names = [sense for word in senses for sense in senses[word]]
        self.number = {sense: i for i, sense in enumerate(self.names)}
        keep = ("width", "attention", "score", "heads", "reach", "positions", "dropout")
        self.model = SenseNetwork(len(words), len(self.names), longest=options.max_length,
                                  **{name: getattr(options, name) for name in keep})

    # -- making one --------------------------------------------------------------------------------------------------
    @classmethod
    def load(cls, options, paths, seed):
        return load(paths, options.pseudo, seed, options.max_length)

    @classmethod
    def build(cls, options, corpus):
        words = Vocabulary.build([s.words for s in corpus.train], options.max_vocabulary, options.min_count)
        senses = inventory(corpus.train)
        numbers = [sum(s.sense == sense for s in corpus.train) for word in senses for sense in senses[word]]
        return cls(options, words, senses, numbers)

    @classmethod
    def restore(cls, options, extra):
        return cls(Options(**options), Vocabulary.from_list(extra["words"]), extra["senses"], extra["counts"])

    def extra(self):
        """What the checkpoint keeps: the vocabulary, each word's senses, and how often each was in training."""
        return {"words": self.words.to_list(), "senses": self.senses, "counts": self.counted}

    def read(self, paths):
        if self.options.pseudo:  # the words that this run has merged, whatever "auto" would choose in these files
            merged = parse_pseudo(self.options.pseudo)
            if merged == "auto":
                merged = [[sense.rpartition(".")[2] for sense in senses] for senses in self.senses.values()]
            groups, notes = pseudo_words(all_lines(paths), merged, self.options.max_length)
            samples = [s for group in groups for s in group]
        else:
            samples, notes = read_samples(paths, self.options.max_length)
        kept = [s for s in samples if s.sense in self.number]
        if not kept:
            raise InputError(f"{', '.join(map(str, paths))}: expected senses that were in training, such as "
                             f"{', '.join(self.names[:5])}; found "
                             f"{', '.join(sorted({s.sense for s in samples})[:5]) or 'none'}")
        out = len(samples) - len(kept)
        return kept, notes + [f"left out {out:,} sentences of senses that were not in training"] * bool(out)

    # -- running the network -----------------------------------------------------------------------------------------
    @staticmethod
    def size(sample):
        return len(sample.words), len(sample.words)

    def tensors(self, samples):
        """ids (B, T), lengths (B,), places (B,) and which senses compete (B, N)."""
        return tuple(map(Tensor, self._numbers(samples)))

    def _numbers(self, samples, bucket=1):
        """`tensors` as arrays. T is not padded beyond what a table of places knows."""
        ids, lengths = pad([self.words.encode(s.words) for s in samples], bucket=bucket, most=self.options.max_length)
        allowed = np.zeros((len(samples), len(self.names)), bool)
        for row, s in zip(allowed, samples):
            row[[self.number[sense] for sense in self.senses[s.word]]] = True
        return ids, lengths, np.array([s.at for s in samples], np.int64), allowed

    def arrays(self, batch):
        """What `tensors` gives, and the number of the right sense (B,)."""
        return *self._numbers(batch, self.bucket), np.array([self.number[s.sense] for s in batch], np.int64)

    def loss_of(self, *arrays):
        """The mean of -log p(sense)."""
        *inputs, right = map(Tensor, arrays)
        return -self.model(*inputs).gather(1, right.unsqueeze(1)).mean()

    def log_p(self, samples):
        """log p of every sense, (samples, N); -inf for those of other words."""
        self.model.eval()
        out = np.full((len(samples), len(self.names)), -np.inf)
        with no_grad():
            for places, batch in self.in_batches(samples):
                out[places] = self.model(*self.tensors(batch)).numpy()
        return out

    def rows(self, samples):
        """Where each sample's ambiguous word looked, (heads or directions, T), or None without attention."""
        self.model.eval()
        found = [None] * len(samples)
        if self.model.variant is not None:
            for places, batch in self.in_batches(samples):
                ids, lengths, *_ = self.tensors(batch)
                for i, s, w in zip(places, batch, self.model.look(ids, lengths)):
                    found[i] = w[:, s.at, :len(s.words)]
        return found

    # -- evaluating --------------------------------------------------------------------------------------------------
    def evaluate(self, split="test", limit=None):
        """Percentages of right senses: of all, of pairs with both right, of simple sentences, of nouns that are new
        beside their word, and by word and by form; what chance (1 / number of senses) and each word's most frequent
        sense give; the loss; and how well the weights, their mean over heads, agree with the noun that counts
        (`metrics.gold_attention`)."""
        samples = list(self.split(split))[:limit]
        log_p = self.log_p(samples)
        target = np.array([self.number[s.sense] for s in samples])
        right = log_p.argmax(-1) == target
        most = {word: max(senses, key=lambda sense: self.counted[self.number[sense]])
                for word, senses in self.senses.items()}
        result = {"sentences": len(samples), "accuracy": _percent(right),
                  "chance": _percent([1 / len(self.senses[s.word]) for s in samples]),
                  "majority": _percent([most[s.word] == s.sense for s in samples]),
                  "loss": float(-log_p[np.arange(len(samples)), target].mean()),
                  "by_word": _table([s.word for s in samples], right)}
        result |= self._of_made_up(samples, right)
        gold = [s for s in samples if s.gold]
        if gold and self.model.variant is not None:
            found = metrics.gold_attention([_mean(w) for w in self.rows(gold)], [s.gold for s in gold])
            result |= {name: float(value) for name, value in found.items()}
        return result

    @staticmethod
    def _of_made_up(samples, right):
        """What is known of sentences of the generator alone."""
        pairs, found = {}, {}
        for s, ok in zip(samples, right):
            if s.pair >= 0:
                pairs.setdefault(s.pair, []).append(ok)
        both = [all(two) for two in pairs.values() if len(two) == 2]
        simple = [ok for s, ok in zip(samples, right) if s.form == "simple"]
        unseen = [ok for s, ok in zip(samples, right) if s.unseen]
        for name, these in (("paired", both), ("simple", simple), ("unseen", unseen)):
            found |= {name: _percent(these)} if these else {}
        if any(s.form for s in samples):
            found["by_form"] = _table([s.form for s in samples], right)
        return found

    # -- asking ------------------------------------------------------------------------------------------------------
    def predict(self, text):
        """The senses of the words between asterisks in a sentence, or without any of all words that it knows to be
        ambiguous. InputError where there is none."""
        words, places = parse(text)
        places = places or [i for i, word in enumerate(words) if word in self.senses]
        for i in places:
            if words[i] not in self.senses:
                known = ", ".join(list(self.senses)[:12])
                raise InputError(f"sense: expected one of the ambiguous words of the training, such as {known}; found "
                                 f"{words[i]!r}")
        if not places:
            raise InputError(f"sense: expected a sentence with an ambiguous word, one of {', '.join(self.senses)}")
        return self._answer([Sample(words, i, words[i], "") for i in places])

    def _answer(self, samples):
        """The Prediction for one sentence, a sample for each ambiguous word of it."""
        answers, looks, titles = [], [], []
        for s, log_p, w in zip(samples, self.log_p(samples), self.rows(samples)):
            p = {sense: float(np.exp(log_p[self.number[sense]])) for sense in self.senses[s.word]}
            best = max(p, key=p.get)
            answers.append({"word": s.word, "at": s.at, "sense": best, "probability": p[best], "senses": p})
            if w is not None:
                titles.append(f"{self.options.attention}: {best}, {100 * p[best]:.0f} %")
                looks.append(self._look(s, w, titles[-1]))
        line = ", ".join(f"{a['word']}: {a['sense']} ({100 * a['probability']:.0f} %)" for a in answers)
        return Prediction(line, {"words": list(samples[0].words), "answers": answers}, looks,
                          (lambda: self._closely(samples, titles)) if looks else None)

    def _closely(self, samples, titles):
        """How all words of a sentence look at each other: a Look for each head, or direction and feature. In the row of
        each ambiguous word the noun that counts is framed, where it is known."""
        self.model.eval()
        words, inner = list(samples[0].words), self.model.inner()
        maps = self.model.look_closely(*self.tensors(samples[:1])[:2])
        gold, title = tuple((s.at, column) for s in samples for column in s.gold), "\n".join(titles)
        return [Look(w, words, words, title, gold,
                     ({"direction": direction} if len(maps) > 1 else {}) | ({inner: i} if len(by[0]) > 1 else {}),
                     ("who looks", "at whom"))
                for direction, by in zip(("before", "after"), maps) for i, w in enumerate(by[0], 1)]

    def _look(self, sample, weights, title):
        """One row a head, or a direction; the mean of several above them."""
        names = [sample.words[sample.at]]
        if len(weights) > 1:
            kinds = ["before", "after"] if self.model.variant.name == "disan" else \
                [f"head {h + 1}" for h in range(len(weights))]
            names, weights = [f"{names[0]}, mean of {len(weights)}", *kinds], np.vstack([_mean(weights), weights])
        gold = tuple((row, column) for row in range(len(names)) for column in sample.gold)
        return Look(weights, names, list(sample.words), title, gold)

    def examples(self, n=4):
        """The survey's two sentences, where they are in the test, and the first pairs."""
        test = self.corpus.test
        survey = [s for text, _, _ in SURVEY for s in test if s.words == tuple(text.split())]
        rest = [s for s in test if s not in survey]
        return [self._answer([s]) for s in (survey + rest)[:n]]

    def example_graph(self):
        """The loss of one short made-up sentence, recorded, for drawing."""
        self.model.eval()
        word = next(w for w in self.senses if len(self.senses[w]) > 1)
        return self.loss([Sample((self.words.to_list()[-1], word, self.words.to_list()[-2]), 1, word,
                                 self.senses[word][0])])[0]

    def describe(self):
        """One line: what it is and how large."""
        o, count = asdict(self.options), sum(p.size for p in self.model.parameters())
        how = "a bag of words" if o["attention"] == "none" else f"attention {o['attention']}"
        if self.model.variant is not None:
            how += f" ({o['score']})" * bool(o["score"]) + ", sinusoids" * self.model.placed
        return (f"sense: {how}, width {o['width']}, {count:,} parameters, {len(self.words):,} words, "
                f"{len(self.senses):,} of them ambiguous, {len(self.names):,} senses")


def _percent(values):
    return 100 * float(np.mean(np.asarray(values, float)))


def _table(kinds, right):
    """Rows [kind, number of samples, accuracy in percent], ready for JSON."""
    return [[kind, n, float(score)] for kind, n, score in metrics.accuracy_by(kinds, right)]


def _mean(weights):
    """The mean over heads (L, T), as weights of sum 1; zeros where nothing was looked at."""
    w = np.asarray(weights, float).mean(0)
    return w / w.sum() if w.sum() > 0 else w


SYSTEM = Sense
