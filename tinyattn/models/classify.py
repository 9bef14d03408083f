"""Classification of documents and sentences: HAN and its ablations, self-attentive sentence encoders, a GRU, a CNN."""
import importlib
import inspect
from dataclasses import dataclass

import numpy as np

from ..autograd import no_grad
from ..errors import InputError
from ..functional import cross_entropy
from ..nn import Parameter, init
from ..tasks import classify as task
from ..tasks.text import Vocabulary, roomy, tokenize
from ..tensor import Tensor
from . import system
from .system import Figure, Groups, Look, Prediction, System, at_least, check_dropout, option

NETWORKS = {  # attention -> module of this package and class; imported when asked for
    "han": ("han", "HAN"), "average": ("han", "Average"), "max": ("han", "Max"), "none": ("han", "BiGRU"),
    "structured_self": ("sentence", "Lin"), "two_level": ("sentence", "Du"), "disan": ("sentence", "DiSAN"),
    "cnn": ("sentence", "CNN")}
OPTIONAL = {"rows": "rows", "penalty": "weight"}  # options that not every network has, and what it calls them
WORD_SPREAD = 0.1               # word vectors begin so small in all networks: few documents, many words seen seldom
SIDES = ("document", "words")
SHOWN = 48                      # words that a picture of a document has room for


def network(name):
    """The class of the network called `name`."""
    module, cls = NETWORKS[name]
    return getattr(importlib.import_module(f".{module}", __package__), cls)


@dataclass(frozen=True)
class Options:
    """What kind of model. Each field is an option of `tinyattn train classify`."""
    attention: str = option("han", "han; its ablations average and max; none, a GRU's last states; sentence encoders "
                                   "structured_self (Lin 2017), two_level (Du 2018), disan (Shen 2018); cnn",
                            list(NETWORKS))
    embed: int = option(64, "width of the word vectors (HAN's paper: 200)")
    hidden: int = option(32, "width of the states, each direction (HAN's paper: 50)")
    align: int = option(64, "width of the attention's hidden layer (HAN's paper: 100)")
    rows: int = option(0, "structured_self, two_level: rows of attention; 0 is their own number")
    penalty: float = option(0.0, "structured_self, two_level: weight of the penalty on rows that look alike; 0 is none")
    dropout: float = option(0.5, "probability of dropping an element of a word vector or document in training")
    min_count: int = option(2, "words seen less often in training are <unk>")
    max_vocabulary: int = option(20000, "at most so many words")
    max_words: int = option(24, "a longer sentence is cut there")
    max_sentences: int = option(24, "a longer document is cut there")


@dataclass(frozen=True)
class Training(system.Training):
    """How it is trained, unless said otherwise."""
    steps: int = 400
    batch_size: int = 32
    learning_rate: float = 4e-3
    validate_every: int = 25


class Classify(System):
    """See the module docstring, and `System`."""
    name = "classify"
    help = "a classifier of documents and sentences, that shows the words and sentences it looked at"
    data_help = ("label TAB text, JSON lines {\"label\", \"text\"}, a folder or zip of label/file.txt; without it the "
                 "documentation of Python's standard library, by subject")
    counts = "documents"
    figures = {"accuracy": Figure("accuracy"), "macro_f1": Figure("macro F1"),
               "loss": Figure("loss", better="lower")}
    groups = Groups("by_label", "labels", "F1", "f1-by-label.svg")
    Options, Training = Options, Training

    def __init__(self, options, words, labels):
        super().__init__(options)
        _check(options)
        self.words, self.labels = words, labels
        self.place = {label: i for i, label in enumerate(labels)}
        kind = network(options.attention)
        known = inspect.signature(kind).parameters
        given = {name: getattr(options, name) for name in ("embed", "hidden", "align", "dropout") if name in known}
        given |= {inside: getattr(options, name) for name, inside in OPTIONAL.items() if getattr(options, name)}
        self.model = kind(len(words), len(labels), **given)
        table = init.normal(self.model.embedding.weight.shape, WORD_SPREAD)
        table[Vocabulary.PAD] = 0
        self.model.embedding.weight = Parameter(table, name="embedding.weight")

    # -- making one --------------------------------------------------------------------------------------------------
    @classmethod
    def load(cls, options, paths, seed):
        _check(options)
        return task.load(paths, seed, options.max_words, options.max_sentences)

    @classmethod
    def build(cls, options, corpus):
        words = Vocabulary.build((s for d in corpus.train for s in d.sentences), options.max_vocabulary,
                                 options.min_count)
        known = {d.label for part in (corpus.train, corpus.validation, corpus.test) for d in part}
        return cls(options, words, sorted(known))

    @classmethod
    def restore(cls, options, extra):
        labels = extra["labels"]
        if type(labels) is not list or len(set(labels)) < len(labels) or any(" ".join(x.split()) != x for x in labels):
            raise ValueError("expected a list of labels, each once and on one line")
        return cls(Options(**options), Vocabulary.from_list(extra["words"]), labels)

    def extra(self):
        return {"words": self.words.to_list(), "labels": self.labels}

    def read(self, paths):
        return task.read(paths, self.options.max_words, self.options.max_sentences)

    # -- data --------------------------------------------------------------------------------------------------------
    def size(self, document):
        """(words of the longest sentence, sentences); in one row (words, words)."""
        if self.model.hierarchical:
            return max(map(len, document.sentences)), len(document.sentences)
        words = sum(map(len, document.sentences))
        return words, words

    def rows(self, document):
        """The document as the network reads it: its sentences, or all of them in one row."""
        if self.model.hierarchical:
            return document.sentences
        return [[word for sentence in document.sentences for word in sentence]]

    def ids(self, documents):
        """Word numbers (B, N, T), 0 where there is none."""
        return Tensor(self._numbers(documents))

    def _numbers(self, documents, bucket=1):
        """`ids` as an array; of a document in one row N stays 1."""
        rows = [[self.words.encode(row) for row in self.rows(d)] for d in documents]
        n, t = max(map(len, rows)), max(len(row) for d in rows for row in d)
        ids = np.zeros((len(rows), roomy(n, bucket) if self.model.hierarchical else n, roomy(t, bucket)), np.int64)
        for b, document in enumerate(rows):
            for i, row in enumerate(document):
                ids[b, i, :len(row)] = row
        return ids

    def targets(self, documents):
        """The labels as numbers (B,). InputError for one that was not there when the run began."""
        unknown = sorted({d.label for d in documents} - set(self.labels))
        if unknown:
            more = f" and {len(self.labels) - 12:,} more" if len(self.labels) > 12 else ""
            raise InputError(f"classify: expected the labels {', '.join(self.labels[:12])}{more}, found {unknown[0]!r}")
        return np.array([self.place[d.label] for d in documents], np.int64)

    # -- training ----------------------------------------------------------------------------------------------------
    def arrays(self, batch):
        return self._numbers(batch, self.bucket), self.targets(batch)

    def loss_of(self, ids, targets):
        """The mean loss a document, with the network's penalty in training."""
        loss = cross_entropy(self.model(Tensor(ids)), Tensor(targets))
        penalty = self.model.penalty() if self.model.training else None
        return loss if penalty is None else loss + penalty

    # -- using -------------------------------------------------------------------------------------------------------
    def probabilities(self, documents):
        """(documents, C), how probable each label is for each document."""
        self.model.eval()
        found = np.zeros((len(documents), len(self.labels)))
        with no_grad():
            for rows, batch in self.in_batches(documents):
                found[rows] = self.model(self.ids(batch)).softmax().numpy()
        return found

    def evaluate(self, split="test", limit=None):
        """Accuracy, the mean F1 of the labels that occur, the loss, and F1 by label, on one split."""
        documents = list(self.split(split))[:limit]
        right, p = self.targets(documents), self.probabilities(documents)
        said = p.argmax(1)
        scores = [(label, int((right == i).sum()), _f1(said == i, right == i)) for i, label in enumerate(self.labels)]
        there = [f1 for _, count, f1 in scores if count]
        return {"documents": len(documents), "accuracy": float((said == right).mean()),
                "macro_f1": float(np.mean(there)), "loss": self.mean_loss(documents),
                "by_label": [[label, count, 100 * f1 if count else None] for label, count, f1 in scores]}

    def predict(self, text):
        """The label of a text: a Prediction with all probabilities and the weights of sentences and words."""
        return self._prediction(_document(text, self.options), text)

    def examples(self, n=4, shortest=2, longest=8):
        """Predictions for test documents of a length that suits a picture, of as many labels as can be."""
        fits = [d for d in self.corpus.test if shortest <= len(d.sentences) <= longest
                and sum(map(len, d.sentences)) <= SHOWN] or self.corpus.test
        first = {d.label: i for i, d in reversed(list(enumerate(fits)))}
        fits = sorted(enumerate(fits), key=lambda pair: pair[0] != first[pair[1].label])  # a stable sort
        return [self._prediction(d) for _, d in fits[:n]]

    def _prediction(self, document, text=None):
        p = self.probabilities([document])[0]
        best = int(p.argmax())
        rows = self.rows(document)
        looks = [(title, np.asarray(w)[0]) for title, w in self.model.looks(self.ids([document]))]
        record = {"label": self.labels[best], "probability": float(p[best]),
                  "probabilities": {label: float(x) for label, x in zip(self.labels, p)},
                  "rows": [list(row) for row in rows], "weights": {title: w.tolist() for title, w in looks}}
        if text is None:
            record["gold"] = document.label
        else:
            record["text"] = text
        said = f"{self.labels[best]} ({p[best]:.2f})" + (f"; its label: {document.label}" if text is None else "")
        return Prediction(f"{self.labels[best]}\t{p[best]:.4f}", record, _pictures(rows, looks, said),
                          (lambda: self._closely(document, rows, looks, said)) if looks else None)

    def _closely(self, document, rows, looks, said):
        """A Look a row of attention: of a document with its sentences, or of one row of words."""
        if self.model.hierarchical:
            return _documents(rows, *(w for _, w in looks), said)
        if hasattr(self.model, "features"):
            by, w = "feature", self.model.features(self.ids([document]))[0]             # (F, T)
        else:
            by, w = "row", looks[0][1]                                     # (R, T)
        return [Look(one[None, :len(rows[0])], ["the text"], list(rows[0]), said, place={by: i}, sides=SIDES)
                for i, one in enumerate(w, 1)]

    def example_graph(self):
        """The loss of one short made-up document of two sentences, recorded, for drawing."""
        self.model.eval()
        ids = np.minimum(np.array([[[4, 5, 6], [7, 8, 0]]]), len(self.words) - 1)
        ids = ids if self.model.hierarchical else ids.reshape(1, 1, -1)[:, :, :5]
        return cross_entropy(self.model(Tensor(ids)), Tensor(np.array([0])))

    def describe(self):
        """One line: what it is and how large."""
        o, count = self.options, sum(p.size for p in self.model.parameters())
        table = self.model.embedding.weight.size
        return (f"classify: attention {o.attention}, hidden {o.hidden}, {count:,} parameters ({table:,} of them word "
                f"vectors), {len(self.words):,} words, {len(self.labels):,} labels")


def _check(options):
    """InputError for options that cannot be meant."""
    at_least("classify", options, embed=1, hidden=1, align=1, rows=0, penalty=0, min_count=1, max_vocabulary=4,
             max_words=1, max_sentences=1)
    if options.penalty > 1e6:
        raise InputError(f"classify: expected penalty of at most 1,000,000, got {options.penalty:g}")
    check_dropout("classify", options)
    if options.attention not in NETWORKS:
        raise InputError(f"classify: expected attention to be one of {', '.join(NETWORKS)}, got {options.attention!r}")
    known = inspect.signature(network(options.attention)).parameters
    for name, inside in OPTIONAL.items():
        if getattr(options, name) and inside not in known:
            raise InputError(f"classify: {name} is no option of --attention {options.attention}")


def _document(text, options):
    """A text that a user typed as a Document without label. InputError if it has no word."""
    sentences = [words for s in task.split_sentences(text) if (words := tokenize(s))]
    if not sentences:
        raise InputError(f"expected a text to classify, got {text!r}")
    cut = tuple(tuple(words[:options.max_words]) for words in sentences[:options.max_sentences])
    return task.Document(cut, "")


def _f1(said, right):
    """2 hits / (said + right), 0 where there is neither."""
    total = said.sum() + right.sum()
    return float(2 * (said & right).sum() / total) if total else 0.0


def _pictures(rows, looks, said):
    """Looks of the weights that a network gave for one document: for sentences and words, or for one row of words."""
    if [title for title, _ in looks] == ["sentences", "words"]:
        return _hierarchy(rows, *(w for _, w in looks), said)
    found = []
    for title, w in looks:                                                 # (R, T)
        names = ["weight"] if len(w) == 1 else [f"row {i + 1}" for i in range(len(w))]
        found.append(Look(w[:, :len(rows[0])], names, list(rows[0]), f"{said}: {title}"))
    return found


def _documents(rows, sentences, words, said):
    """Looks at a whole document, its words within their sentences: one, of sentences (N,) and words (N, T); of a
    network with several rows of attention, (R, N) and (N, R, T), one for each pair of a row over sentences and a row
    over words."""
    several = sentences.ndim > 1
    sentences, words = (sentences, words.swapaxes(0, 1)) if several else (sentences[None], words[None])
    return [Look(np.concatenate([x[:len(row)] for x, row in zip(w, rows)])[None], ["document"],
                 [word for row in rows for word in row], said,
                 place={"sentence_row": i, "word_row": j} if several else {}, sides=SIDES,
                 parts=tuple((len(row), float(x)) for x, row in zip(s, rows)))
            for i, s in enumerate(sentences, 1) for j, w in enumerate(words, 1)]


def _hierarchy(rows, sentences, words, said):
    """One map of a document: a row a sentence, a column a word, and the word's weight within its sentence; the
    sentence's own weight is in the row's name. sentences (N,) and words (N, T), of a network with several rows of
    attention (R, N) and (N, R, T), whose mean is shown. Of a long document the sentences with most weight are shown."""
    sentences = sentences if sentences.ndim == 1 else sentences.mean(0)
    words = words if words.ndim == 2 else words.mean(1)
    shown, room = [], SHOWN
    for i in np.argsort(-sentences[:len(rows)], kind="stable").tolist():
        room -= len(rows[i])
        if room < 0 and shown:
            break
        shown.append(i)
    shown.sort()
    columns = [word for i in shown for word in rows[i]]
    weights, end = np.zeros((len(shown), len(columns))), 0
    for row, i in enumerate(shown):
        weights[row, end:end + len(rows[i])] = words[i, :len(rows[i])]
        end += len(rows[i])
    part = "" if len(shown) == len(rows) else f", {len(shown)} of {len(rows)} sentences"
    return [Look(weights, [f"sentence {i + 1}: {sentences[i]:.2f}" for i in shown], columns, said + part)]


SYSTEM = Classify
