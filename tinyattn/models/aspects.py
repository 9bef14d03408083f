"""Aspect and opinion terms of reviews: what is spoken of, and what is said of it, by coupled attention or without.

Two tagging heads, coupled by attention (CMLA, Wang 2017) or not. The networks are in `cmla.py`, the data in
`tasks/aspects.py`.
"""
from dataclasses import asdict, dataclass, replace

import numpy as np

from .. import random
from ..autograd import no_grad
from ..errors import InputError
from ..tasks.aspects import load, parse_input, read
from ..tasks.metrics import gold_attention
from ..tasks.spans import span_f1, spans_of, tags_of
from ..tasks.text import Vocabulary, pad
from ..tensor import Tensor
from . import system
from .cmla import IGNORE, Tagger
from .system import Figure, Groups, Look, Prediction, System, apart, at_least, check_dropout, option

SIDES = ("aspect", "opinion")


@dataclass(frozen=True)
class Options:
    """What kind of model."""
    attention: str = option("cmla", "coupled attentions over the GRU (Wang 2017), or none: the GRU alone",
                            ["cmla", "none"])
    hidden: int = option(50, "width of the GRU's states, of each direction")
    embed: int = option(100, "width of the word vectors")
    scores: int = option(20, "cmla: K, own and crossed scores a word each")
    layers: int = option(2, "cmla: layers of attention; the prototypes change between two")
    tanh: bool = option(True, "cmla: tanh on the scores, as in the paper; its released code has none")
    bidirectional: bool = option(False, "read the sentence both ways; Wang reads from left to right")
    dropout: float = option(0.5, "probability of dropping an element, in training, of the word vectors of the window, "
                                 "of the GRU's states, and of cmla's summed scores")
    unknown: float = option(0.1, "probability of reading a word of a training sentence as <unk>")
    min_count: int = option(1, "words seen less often in training are <unk>")
    max_vocabulary: int = option(30000, "at most so many words")
    max_length: int = option(80, "longer sentences are left out")
    unmarked: bool = option(False, "Hu and Liu's reviews: also the sentences for which no aspect is named")


@dataclass(frozen=True)
class Training(system.Training):
    """How it is trained, unless said otherwise."""
    steps: int = 2400
    batch_size: int = 32
    learning_rate: float = 1.5e-3
    validate_every: int = 100


class Aspects(System):
    """See the module docstring, and `system.py` for what a system is."""
    name = "aspects"
    Options, Training = Options, Training
    help = "a tagger of aspect and opinion terms, that shows which words it looked at"
    data_help = ("SemEval XML, tab-separated BIO tags, or Hu and Liu's product reviews; an opinion lexicon besides "
                 "(give --data for each file)")
    counts = "sentences"
    figures = {"f1": Figure("F1", 2), "aspect_f1": Figure("aspect F1", 2),
               "opinion_f1": Figure("opinion F1", 2), "aspect_precision": Figure("aspect precision", 2),
               "aspect_recall": Figure("aspect recall", 2), "opinion_precision": Figure("opinion precision", 2),
               "opinion_recall": Figure("opinion recall", 2), "gold_mass": Figure("mass on terms", 3),
               "gold_top": Figure("top on terms", 3), "loss": Figure("loss", 4, "lower")}
    groups = Groups("by_kind", "kind of sentence", "F1", "f1-by-kind.svg")

    def __init__(self, options, words, opinions=True):
        """opinions: did the training sentences have opinion labels? Without, nothing is said about opinions."""
        at_least(self.name, options, hidden=1, embed=1, scores=1, layers=1, min_count=1, max_vocabulary=5, max_length=1)
        check_dropout(self.name, options, "dropout", "unknown")
        if options.attention not in ("cmla", "none"):
            raise InputError(f"aspects: expected attention cmla or none, got {options.attention!r}")
        super().__init__(options)
        self.words, self.opinions = words, opinions
        o = options
        self.model = Tagger(len(words), o.embed, o.hidden, o.attention, o.scores, o.layers, o.tanh, o.bidirectional,
                            o.dropout)

    # -- making one --------------------------------------------------------------------------------------------------
    @classmethod
    def load(cls, options, paths, seed):
        return load(paths, seed, options.max_length, options.unmarked)

    @classmethod
    def build(cls, options, corpus):
        words = Vocabulary.build([s.words for s in corpus.train], options.max_vocabulary, options.min_count)
        return cls(options, words, any(s.opinions is not None for s in corpus.train))

    @classmethod
    def restore(cls, options, extra):
        return cls(Options(**options), Vocabulary.from_list(extra["words"]), extra.get("opinions", True) is True)

    def extra(self):
        return {"words": self.words.to_list(), "opinions": self.opinions}

    def read(self, paths):
        return read(paths, self.options.max_length, self.options.unmarked)

    # -- data --------------------------------------------------------------------------------------------------------
    def size(self, sample):
        return len(sample.words), len(sample.words)

    def tensors(self, samples, bucket=1):
        """ids (B, T), lengths (B,), and tags (B, 2, T): IGNORE at padding and where opinions are not known."""
        ids, lengths = pad([self.words.encode(s.words) for s in samples], bucket=bucket)
        tags = np.full((len(samples), 2, ids.shape[1]), IGNORE)
        for row, s in zip(tags, samples):
            for side, spans in enumerate((s.aspects, s.opinions)):
                if spans is not None:
                    row[side, :len(s.words)] = tags_of(spans, len(s.words))
        return ids, lengths, tags

    def arrays(self, batch):
        """`tensors`, in training with some words hidden."""
        ids, lengths, tags = self.tensors(batch, self.bucket)
        if self.model.training and self.options.unknown:
            hidden = random.generator().random(ids.shape) < self.options.unknown
            ids = np.where(hidden & (ids != Vocabulary.PAD), Vocabulary.UNK, ids)
        return ids, lengths, tags

    def loss_of(self, *arrays):
        """The mean of -log p over the known tags of both heads."""
        return self.model.loss(*map(Tensor, arrays))

    def targets_in(self, batch):
        return sum(len(s.words) * ((s.aspects is not None) + (s.opinions is not None)) for s in batch)

    # -- using it ----------------------------------------------------------------------------------------------------
    def tag(self, samples):
        """For each sample its spans, ([aspects], [opinions]), and alpha (layers, 2, words) or None. There are no
        opinions where the run has not learnt any."""
        self.model.eval()
        spans, looked = [None] * len(samples), [None] * len(samples)
        with no_grad():
            for places, batch in self.in_batches(samples):
                ids, lengths = pad([self.words.encode(s.words) for s in batch])
                logits, alpha = self.model(ids, lengths, return_weights=True)
                tags = logits.numpy().argmax(-1)                      # (B, 2, T)
                for row, (i, n) in enumerate(zip(places, lengths.tolist())):
                    spans[i] = tuple(spans_of(side[:n].tolist()) for side in tags[row])
                    spans[i] = spans[i] if self.opinions else (spans[i][0], ())
                    looked[i] = None if alpha is None else alpha.numpy()[row, :, :, :n]
        return spans, looked

    def evaluate(self, split="test", limit=None):
        """Span F1 of both heads in percent, precision and recall, the loss, F1 by kind of sentence; with attention, how
        much of the first layer's weights lies on the terms that a side is to find (of two layers it is these that move
        the prototypes; a sentence without such terms does not count)."""
        samples = list(self.split(split))[:limit]
        samples = samples if self.opinions else [replace(s, opinions=None) for s in samples]
        spans, looked = self.tag(samples)
        result = {"sentences": len(samples), **scores(samples, spans), "loss": self.mean_loss(samples)}
        if self.options.attention != "none":
            gold = [(look[0, side], [i for span in known or () for i in range(*span)])
                    for look, s in zip(looked, samples) for side, known in enumerate((s.aspects, s.opinions))]
            result |= {name: float(x) for name, x in gold_attention(*map(list, zip(*gold or [((), ())]))).items()}
        return {**result, "by_kind": by_kind(samples, spans)}

    def predict(self, text):
        """The terms of one sentence: a Prediction."""
        words = parse_input(text)
        return self._predictions([_Sentence(words)])[0]

    def examples(self, n=4, shortest=6, longest=16):
        """Predictions for the first test sentences that have terms of both kinds and a length that suits a picture."""
        fit = [s for s in self.corpus.test if shortest <= len(s.words) <= longest]
        some = [s for s in fit if s.aspects and s.opinions] or [s for s in fit if s.aspects] or self.corpus.test
        return self._predictions(some[:n])

    def _predictions(self, samples):
        spans, looked = self.tag(samples)
        found = [_prediction(s, *rest, self.opinions) for s, *rest in zip(samples, spans, looked)]
        for prediction in found if not self.opinions else ():
            prediction.record["opinions"] = None
        return found

    def example_graph(self):
        """The loss of one short made-up sentence, recorded, for drawing."""
        self.model.eval()
        ids = np.minimum(np.array([[4, 5, 6, 7]]), len(self.words) - 1)
        return self.model.loss(ids, np.array([4]), np.array([[[0, 1, 2, 0], [0, 0, 0, 1]]]))

    def describe(self):
        """One line: what it is and how large."""
        o = asdict(self.options)
        how = "plain GRU tagger" if o["attention"] == "none" else \
            f"attention cmla, {o['layers']} layers, {o['scores']} scores{'' if o['tanh'] else ' without tanh'}"
        ways = "both ways" if o["bidirectional"] else "left to right"
        return (f"aspects: {how}, {ways}, hidden {o['hidden']}, embed {o['embed']}, "
                f"{self.model.number_of_parameters():,} parameters, {len(self.words):,} words")


def scores(samples, spans):
    """Precision, recall and F1 of both sides, and "f1", the mean F1 of the sides that have terms (0 where none has)."""
    result, both = {"f1": 0.0}, []
    for side, name in enumerate(SIDES):
        known = [(p[side], gold) for p, gold in zip(spans, ((s.aspects, s.opinions)[side] for s in samples))
                 if gold is not None]
        found = span_f1(*map(list, zip(*known))) if known else None
        if found is not None:
            result |= dict(zip((f"{name}_precision", f"{name}_recall", f"{name}_f1"), found))
            both.append(found[2])
    return {**result, "f1": sum(both) / len(both)} if both else result


def by_kind(samples, spans):
    """[[kind, number of sentences, F1]], in order of the names; None where a kind has no term that could be found."""
    rows = []
    for kind in sorted({s.kind for s in samples}):
        of = [i for i, s in enumerate(samples) if s.kind == kind]
        some = any(samples[i].aspects or samples[i].opinions for i in of)
        rows.append([kind, len(of), scores([samples[i] for i in of], [spans[i] for i in of])["f1"] if some else None])
    return rows


def marked(words, aspects, opinions):
    """The sentence with its terms in brackets: the [battery life]a is [great]o."""
    before, after = [""] * len(words), [""] * len(words)
    for spans, letter in ((opinions, "o"), (aspects, "a")):
        for start, end in spans:
            before[start] = "[" + before[start]
            after[end - 1] += "]" + letter
    return " ".join(b + word + a for b, word, a in zip(before, words, after))


@dataclass(frozen=True)
class _Sentence:
    """Words of which nothing is known."""
    words: tuple
    aspects: tuple = ()
    opinions: tuple | None = None


def _prediction(sample, spans, alpha, opinions=True):
    """A Prediction whose picture has the terms found over it: no opinions where none have been learnt."""
    words = list(sample.words)
    record = {"words": words, **{f"{name}s": [{"text": " ".join(words[a:b]), "start": a, "end": b} for a, b in found]
                                 for name, found in zip(SIDES, spans)}}
    looks = []
    if alpha is not None:
        layers = len(alpha)
        rows = [f"{name}, layer {layer + 1}" for name in SIDES for layer in range(layers)]
        weights = alpha.transpose(1, 0, 2).reshape(2 * layers, -1)    # (2 layers, words)
        gold = tuple((side * layers + layer, i) for side, known in enumerate((sample.aspects, sample.opinions))
                     for span in known or () for i in range(*span) for layer in range(layers))
        record["weights"] = [[round(float(w), 6) for w in row] for row in weights]
        title = "\n".join(f"{name}s: {', '.join(term['text'] for term in record[f'{name}s']) or 'none'}"
                          for name in (SIDES if opinions else SIDES[:1]))
        looks = [Look(weights, rows, words, title, gold, sides=("looked for", "sentence"))]
        places = [{"layer": layer + 1, "side": name} for name in SIDES for layer in range(layers)]
    return Prediction(marked(words, *spans), record, looks, (lambda: apart(looks[0], places)) if looks else None)


SYSTEM = Aspects
