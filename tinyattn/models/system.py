"""What all systems share.

A system is one file of `models/` that ends with `SYSTEM = ClassName`, a subclass of `System`; its data are one file of
`tasks/`. Training (`train.py`) and the commands know a system by what stands here.

A subclass gives

    name, help, data_help       texts: of the command, of `--data`
    Options                     frozen dataclass: what kind of model; each field made by `option`. The field `attention`
                                names the mechanism, "none" is the baseline without one
    Training                    frozen dataclass: the settings of `config.Config` that it proposes; `training_for`
                                may propose others for some options
    counts                      what a sample is called: "sentences"
    figures                     {key of what `evaluate` gives: Figure}, the first one is what systems are compared by
    groups                      Groups, or None: a score for each class of test samples
    load(options, paths, seed)  class method: a Corpus, from its generator where there are no paths
    build(options, corpus)      class method: vocabularies and a model with fresh weights
    restore(options, extra)     class method: the same from what a checkpoint keeps, options as a dictionary; `extra()`
                                gives the rest, as JSON
    read(paths)                 (samples, notes): all of some files, to be evaluated
    size(sample)                (length, length): samples of like size make a batch
    arrays(batch)               tuple of NumPy arrays: numbers, lengths, targets. What is drawn by lot for training (words
                                hidden, blanks put in) is drawn here. Along a sequence they are padded to a multiple of
                                `self.bucket`, so that few shapes occur
    loss_of(*arrays)            scalar Tensor: the mean over targets. Reads no value of an array in Python (`if x.any()`,
                                `int(x.max())`), so that a step can be captured: NumPy's functions of arrays alone
    targets_in(batch)           the number of targets
    evaluate(split, limit)      dictionary of figures; "remarks" in it: lines on how far they can be trusted
    predict(text)               Prediction
    examples(n)                 Predictions for the first test samples that suit a picture
    example_graph()             a small loss, recorded, for drawing; may take `length=N`: unrolled over N words or steps
    describe()                  one line: what it is and how large

and may give `at_epoch(epoch)`, called before each epoch, and `rate_factor(epoch)`, by which the learning rate is
multiplied: epochs count from 0. Both must depend on the epoch alone, or a resumed run would not be the same run. What
`at_epoch` changes in the formula of the loss belongs into `stage`.

A system that gives `loss(batch)` itself, (mean over targets, their number), needs none of the three for its loss; its
steps cannot be captured.
"""
from dataclasses import dataclass, field, replace

import numpy as np

from .. import random
from ..autograd import no_grad
from ..errors import InputError
from ..tasks.text import batches


def option(default, help, choices=None, later=False):
    """A field of `Options`. later: runs of before it existed can be loaded; they have its default."""
    return field(default=default, metadata={"help": help, "choices": choices, "later": later})


@dataclass(frozen=True)
class Training:
    """How a system is trained, unless said otherwise; a system's own dataclass may differ in any default."""
    steps: int = 2000
    batch_size: int = 32
    learning_rate: float = 3e-3
    optimizer: str = "adam"
    clip: float = 1.0
    warmup: int = 0
    schedule: str = "linear"
    validate_every: int = 200
    seed: int = 1
    seconds: float | None = None
    keep: str = "best"
    bucket: int = 1


@dataclass(frozen=True)
class Figure:
    """A number of `evaluate`: how it is called, how many digits it has, which way is better (None: neither)."""
    title: str
    digits: int = 4
    better: str | None = "higher"


@dataclass(frozen=True)
class Groups:
    """Scores by class: `key` of what `evaluate` gives, [(class, number of samples, score from 0 to 100 or None)].

    of       what the classes are: "words in the source sentence"
    score    what the score is: "BLEU"
    picture  name of the file that shows it
    """
    key: str
    of: str
    score: str
    picture: str


@dataclass
class Look:
    """What was looked at, as one map: weights (R, C), R rows and C columns with their names.

    title   what the map is of: the sentence, the answer
    gold    (row, column) pairs to be framed
    place   where in the network, from the outside in: {"layer": 1, "head": 2}. Pictures count everything from 1,
            as readers speak ("head 1" is the first); arrays count from 0. A name such as {"kind": "cross"} says itself
    sides   what rows and columns are: ("target", "source")
    parts   of a document: (number of words, weight) of each sentence, which fill the columns from the left; the one row
            of weights is then that of the words within their sentence
    rest    where the weights are that each row lacks to a sum of 1: "empty slots"; "" where no columns are left out
    """
    weights: object
    rows: list
    columns: list
    title: str = ""
    gold: tuple = ()
    place: dict = field(default_factory=dict)
    sides: tuple = ("rows", "columns")
    parts: tuple = ()
    rest: str = ""

    def with_rest(self):
        """This look with one more column, in brackets, for the weights that `rest` speaks of; itself where it does not,
        or where the rows are no shares."""
        weights = np.asarray(self.weights)
        if not self.rest or weights.min(initial=0) < -1e-3 or weights.sum(1).max(initial=0) > 1 + 1e-3:
            return self
        left = np.maximum(1 - weights.sum(1, keepdims=True), 0)            # (R, 1)
        return replace(self, weights=np.concatenate([weights, left], 1), columns=[*self.columns, f"({self.rest})"],
                       rest="")

    def as_map(self):
        """(weights, rows, columns, title, gold), as `viz.heatmaps` takes it. The title ends with the place; a document
        has a row a sentence, with the sentence's weight in its name."""
        title = "\n".join(filter(None, (self.title, said(self.place))))
        if not self.parts:
            return self.weights, self.rows, self.columns, title, self.gold
        weights, end = np.zeros((len(self.parts), len(self.columns))), 0
        for row, (count, _) in zip(weights, self.parts):
            row[end:end + count] = self.weights[0, end:end + count]
            end += count
        return weights, [f"sentence {i + 1}: {w:.2f}" for i, (_, w) in enumerate(self.parts)], self.columns, title, ()


def said(place):
    """{"kind": "cross", "layer": 1, "head": 2} as "cross, layer 1, head 2"."""
    return ", ".join(value if isinstance(value, str) else f"{str(name).replace('_', ' ')} {value}"
                     for name, value in place.items())


def apart(look, places, name=None):
    """The rows of a Look as Looks of one row each, with these places; `name` is what is asked in all of them."""
    return [Look(look.weights[i:i + 1], [name or look.rows[i]], look.columns, look.title,
                 tuple((0, column) for row, column in look.gold if row == i), place, look.sides, rest=look.rest)
            for i, place in enumerate(places)]


@dataclass
class Prediction:
    """An answer: the line that is printed, the record for machines (JSON), and what was looked at.

    looks    few maps, for a small picture; means over heads say that they are
    closely  a function that gives the finest Looks there are, each with its `place`; or None where `looks` are those
    """
    line: str
    record: dict
    looks: list = field(default_factory=list)
    closely: object = None

    @property
    def finest(self):
        """What was looked at in each layer, head, hop or feature by itself."""
        return self.looks if self.closely is None else self.closely()


class System:
    """See the head of this file."""
    name = help = data_help = ""
    counts, figures, groups = "samples", {}, None
    takes_links = takes_beam = False  # are --links and --beam of any use to it?
    also_measured = ()                # splits that go into metrics.json beside "test"
    Training = Training
    bucket = 1                        # lengths along which a batch is padded are multiples of it

    def __init__(self, options):
        self.options, self.corpus, self.whole, self.notes = options, None, None, []

    @classmethod
    def training_for(cls, options):
        """The Training that suits these options (a dictionary)."""
        return cls.Training()

    # -- making one --------------------------------------------------------------------------------------------------
    @classmethod
    def prepare(cls, options, paths=(), seed=1):
        """Read the data (InputError if they cannot be used) and build a system with fresh weights."""
        random.manual_seed(seed)
        corpus = cls.load(options, paths, seed)
        system = cls.build(options, corpus)
        system.corpus, system.notes = corpus, corpus.notes
        return system

    @classmethod
    def to_draw(cls, options):
        """A system with fresh weights, of which only the graph is wanted; a subclass may read less data for it."""
        return cls.prepare(options)

    def attach(self, paths=(), seed=1):
        """Read data for a restored system; its vocabularies stay."""
        self.corpus = self.load(self.options, paths, seed)
        self.notes = self.corpus.notes

    def attach_all(self, paths):
        """Read files whose every sample is to be evaluated, under the split "all"."""
        self.whole, self.notes = self.read(paths)

    # -- data --------------------------------------------------------------------------------------------------------
    def epoch(self, rng, batch_size):
        """The batches of one pass over the training samples, samples of like size together."""
        train = self.corpus.train
        return [[train[i] for i in batch] for batch in batches([self.size(s) for s in train], batch_size, rng)]

    def split(self, name):
        """The samples of "train", "validation", "test" or "all"."""
        if name == "all":
            return self.whole
        if self.corpus is None:
            raise InputError(f"{self.name}: this run has no data attached")
        return getattr(self.corpus, name)

    def in_batches(self, samples, size=64):
        """Batches of samples of like size, each with the places of its samples: (places, samples)."""
        order = sorted(range(len(samples)), key=lambda i: self.size(samples[i]))
        for i in range(0, len(order), size):
            yield order[i:i + size], [samples[j] for j in order[i:i + size]]

    def at_epoch(self, epoch):
        """Called before each epoch."""

    def rate_factor(self, epoch):
        """By which the learning rate is multiplied in this epoch."""
        return 1.0

    # -- losses ------------------------------------------------------------------------------------------------------
    def loss(self, batch):
        """(the mean loss of a batch's targets, how many they are)."""
        return self.loss_of(*self.arrays(batch)), self.targets_in(batch)

    def targets_in(self, batch):
        """The number of targets in a batch: here one a sample."""
        return len(batch)

    def stage(self):
        """On what the formula of the loss depends beside arrays and weights; a step captured in one stage is of no use
        in another."""
        return self.model.training

    def mean_loss(self, samples):
        """The mean loss a target, without dropout."""
        self.model.eval()
        total = count = 0
        with no_grad():
            for _, batch in self.in_batches(samples):
                loss, n = self.loss(batch)
                total, count = total + loss.item() * n, count + n
        return total / max(count, 1)

    def validation_loss(self):
        """The mean loss a target on the validation samples."""
        return self.mean_loss(self.corpus.validation)


def at_least(system, options, **bounds):
    """InputError unless the named options are at least so much: at_least("qa", options, hops=1)."""
    for name, least in bounds.items():
        value = getattr(options, name)
        if not (np.isfinite(value) and value >= least):
            raise InputError(f"{system}: expected {name} of at least {least}, got {value}")


def check_dropout(system, options, *names):
    """InputError unless the named options are probabilities below 1."""
    for name in names or ("dropout",):
        value = getattr(options, name)
        if not 0 <= value < 1:
            raise InputError(f"{system}: expected {name} between 0 and 1, got {value}")
