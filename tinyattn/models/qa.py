"""Answering questions over stories: memory networks that read a story in several hops, and an LSTM that reads it once.

The networks stand in files of their own and share one form, so that any of them can be put here:

    Net(vocabulary, answers, options, ...)      options: those below, with `hidden` set. It is also given those of
                                these that its constructor names: story (sentences of the longest training story),
                                sentence (words of the longest sentence or question), answer_words (the id of each
                                answer as a word, below 0 where it is none)
    arrays(samples, words, bucket)    Questions, and the Vocabulary, to the inputs of `forward`, Tensors padded to multiples
                                of `bucket`: the newest sentences are kept
    forward(*arrays)            logits (B, A)
    hops(*arrays)               weights on the kept sentences (B, hops, M), column 0 the oldest; None without attention
    loss(targets, *arrays, *taught), taught(arrays, targets, samples, bucket), at_epoch(epoch), rate_factor(epoch)
                                where it has its own: `taught` gives arrays that training alone knows

An answer is a class, also one of several words ("apple,football"), as in the papers. The classes are those of the
training questions; a test question with another answer counts as wrong, and is left out of the loss.

Questions about films (`tasks/movies.py`) have the memories found for them in the place of the story, and every entity
of the files is an answer. A question may have several right ones: accuracy then is hits@1, the share of questions whose
likeliest answer is among them, and the loss is that of the first. A run keeps all memories, so that it can be asked
without the files. What `key_value` is trained with on MetaQA:

    tinyattn train qa --attention key_value --data dev.jsonl.gz --data test.jsonl.gz --hidden 128 --hops 2 --memory 64
        --learning-rate 5e-3 --clip 1 --steps 1500 --keep last

The last weights: the loss on the validation questions is no guide there. It was lowest after 200 steps, with 83 % of
these questions right, and 90 % were right after 1,500.
"""
import inspect
from dataclasses import dataclass, fields, replace
from functools import cached_property
from importlib import import_module

import numpy as np

from ..autograd import no_grad
from ..errors import InputError
from ..functional import cross_entropy
from ..tasks import movies
from ..tasks.metrics import accuracy_by, gold_attention
from ..tasks.qa import Question, load, parse_input, read
from ..tasks.text import Vocabulary, as_paths
from ..tensor import Tensor
from . import system
from .system import Figure, Groups, Look, Prediction, apart, at_least, check_dropout, option

NETWORKS = {  # module, class, width where none is asked for: for one task, for several
    "memn2n": ("memory_network", "MemoryNetwork", 20, 50),
    "dmn": ("dynamic_memory", "DMN", 40, 40),
    "dmn_plus": ("dynamic_memory", "DMNPlus", 40, 40),
    "key_value": ("key_value_network", "KeyValueNetwork", 40, 40),
    "none": ("lstm_reader", "LSTMReader", 50, 50),
}
ONLY = {  # options, off unless asked for, that some networks alone can use
    "gates": ("dmn",), "windows": ("key_value",), "nonlinear": ("memn2n",),
}
DROPOUT = {"dmn": 0.1, "dmn_plus": 0.1}  # where none is asked for; for others 0
SHOWN = 16  # memories of a question about films in a picture: those that are looked at the most
FAILED = 5.0  # a task with more errors, in percent, counts as failed (Weston et al. 2015)


@dataclass(frozen=True)
class Options:
    """What kind of model. Each field is an option of `tinyattn train qa`."""
    attention: str = option("memn2n", "how the story is looked at: memn2n, dmn, dmn_plus, key_value, or none (an LSTM "
                                      "reads it once)", list(NETWORKS))
    tasks: str = option("", "which tasks of the files, or kinds of built-in stories, such as 1,5,16 or 1-20; empty is "
                            "all files, or the built-in 1,2,15,16")
    hidden: int = option(0, "width of the vectors; 0 is the network's own: 20 for memn2n on one task, 50 on several, "
                            "50 for none, else 40")
    hops: int = option(3, "how often the story is looked at")
    encoding: str = option("position", "memn2n: words count by their places, or a sentence is a bag of words",
                           ["position", "bag"])
    form: str = option("code", "memn2n: weights of the places as in the code published with the paper, or as in the "
                               "paper, with which bAbI's task of induction (16) is not learnt", ["code", "paper"])
    tying: str = option("adjacent", "memn2n: each hop's value table is the next one's key table, or all hops share "
                                    "theirs", ["adjacent", "layerwise"])
    temporal: bool = option(True, "memn2n: learn how old a sentence is")
    random_noise: float = option(0.1, "memn2n: share of blank sentences put into a story in training")
    linear_start: int = option(20, "memn2n: epochs at the beginning without the softmaxes of the hops")
    memory: int = option(50, "sentences that are kept of a story, the newest")
    nonlinear: bool = option(False, "memn2n: a ReLU behind each hop")
    dropout: float = option(-1.0, "probability of dropping an element in training; -1 is 0.1 for dmn and dmn_plus, "
                                  "else 0")
    gates: float = option(0.0, "dmn: weight of the loss that teaches its gates the supporting sentences; 0 is off")
    windows: int = option(0, "key_value: words to each side in the windows over the text; 0 is its own way: sentences "
                             "of a story, 3 words with --memories window")
    memories: str = option("kb", "questions about films: what is remembered, facts (kb), windows around the entities "
                                 "of a text, or its sentences", list(movies.KINDS), later=True)

    def __post_init__(self):
        if self.dropout == -1:
            object.__setattr__(self, "dropout", DROPOUT.get(self.attention, 0.0))


@dataclass(frozen=True)
class Training(system.Training):
    """How it is trained, unless said otherwise."""
    steps: int = 5000
    batch_size: int = 32
    learning_rate: float = 1e-2
    optimizer: str = "adam"
    clip: float = 40.0
    schedule: str = "linear"
    validate_every: int = 200


# Sukhbaatar et al. 2015: SGD at 0.01 for the sum over 32 questions, clipped at 40; here both are for their mean. 3,480
# steps are 120 epochs of a bAbI task of 1,000 questions. The network halves the rate by epochs, see its `rate_factor`.
# The last weights: the best ones by the 100 questions of such a task's validation are worse, 15.9 % error against 14.5.
MEMN2N = Training(steps=3480, learning_rate=0.32, optimizer="sgd", clip=1.25, schedule="constant", keep="last")
DMN = Training(learning_rate=3e-3, clip=1.0)
TRAINING = {"memn2n": MEMN2N, "dmn": DMN, "dmn_plus": DMN}  # of the others: Training()


class QA(system.System):
    """See the module docstring; what a system is stands in `models/system.py`."""
    name = "qa"
    help = "a reader that answers questions over stories, in several hops, and shows what each hop looked at"
    data_help = ("bAbI files (qa1_..._train.txt and qa1_..._test.txt), a folder of them, or any one file of that form; "
                 "or questions about films (MetaQA: .jsonl, or question TAB answer|answer), with files of facts "
                 "(a|b|c), entities or text")
    Options, Training = Options, Training
    counts = "questions"
    figures = {"accuracy": Figure("accuracy"), "error": Figure("error %", 1, "lower"),
               "failed": Figure("failed tasks", 0, "lower"), "loss": Figure("loss", 4, "lower"),
               "gold_mass": Figure("attention on supporting sentences")}
    groups = Groups("by_task", "tasks", "accuracy %", "accuracy-by-task.svg")
    also_measured = ("train",)  # the papers choose among seeds by the training error

    def __init__(self, options, words, answers, sizes, memories=None):
        """memories: the `movies.Memories`, where questions are about films."""
        _check(options)
        super().__init__(options)
        self.words, self.answers, self.sizes, self.memories = words, list(answers), dict(sizes), memories
        self.numbers = {answer: i for i, answer in enumerate(self.answers)}
        if memories is not None:
            self.figures = {**self.figures, "accuracy": Figure("hits@1")}
            del self.figures["failed"]
            self.groups, self.also_measured = None, ()
        self.model = _network(options, words, self.answers, self.sizes, memories is not None)

    # -- making one --------------------------------------------------------------------------------------------------
    @classmethod
    def training_for(cls, options):
        return TRAINING.get(options["attention"], cls.Training())

    @classmethod
    def load(cls, options, paths, seed):
        if _about_films(options, paths):
            return movies.load(as_paths(paths), seed, *_remembered(options))
        corpus = load(paths, options.tasks, seed)
        if options.attention == "memn2n" and options.linear_start:
            corpus.notes.append(f"linear start: the first {options.linear_start} epochs train without the softmax of "
                                "the hops, with which the validation loss is measured; it falls after them")
        return corpus

    @classmethod
    def build(cls, options, corpus):
        films = isinstance(corpus, movies.Movies)
        known = set(corpus.candidates) if films else {q.answer for q in corpus.train}
        if not any(q.answer in known for q in corpus.validation):
            raise InputError(f"qa: expected validation questions with answers that training has too, found none in "
                             f"{len(corpus.validation):,}")
        words = Vocabulary.build(corpus.sentences() if films else
                                 (sentence for q in corpus.train for sentence in (*q.story, q.question)))
        sizes = {"tasks": len({q.task for q in corpus.train}), "story": max(len(q.story) for q in corpus.train),
                 "sentence": max(len(sentence) for q in corpus.train for sentence in (*q.story, q.question))}
        if films:
            return cls(options, words, corpus.candidates, sizes, corpus.memories)
        return cls(options, words, sorted({q.answer for q in corpus.train}), sizes)

    @classmethod
    def restore(cls, options, extra):
        options = options if isinstance(options, Options) else Options(**options)
        words, memories = Vocabulary.from_list(extra["words"]), None
        if not extra["answers"] or len(set(extra["answers"])) < len(extra["answers"]):
            raise ValueError("expected answers, each once")
        if "memories" in extra:
            memories = movies.Memories.from_list(extra["memories"], words, options.memory)
        return cls(options, words, extra["answers"], extra["sizes"], memories)

    def extra(self):
        """What the checkpoint keeps beside weights and options: words, answers, how long stories are; and what is
        remembered of films."""
        extra = {"words": self.words.to_list(), "answers": self.answers, "sizes": self.sizes}
        return extra if self.memories is None else {**extra, "memories": self._memories_as_numbers}

    @cached_property
    def _memories_as_numbers(self):
        return self.memories.to_list(self.words)

    def read(self, paths):
        films = any(map(movies.is_movies, as_paths(paths)))
        if films != (self.memories is not None):
            kinds = ["stories with questions", "questions about films"]
            raise InputError(f"qa: the run was trained on {kinds[not films]}, and these files hold {kinds[films]}")
        if films:
            return movies.load_all(as_paths(paths), *_remembered(self.options), self.memories)
        return read(paths, self.options.tasks)

    # -- training ----------------------------------------------------------------------------------------------------
    def size(self, sample):
        """Sentences kept, and words."""
        kept = sample.story[-self.options.memory:]
        return len(kept), sum(map(len, kept))

    def arrays(self, batch):
        """The answers of Questions, all of them known (B,), the inputs of the network, and what else it is taught."""
        inputs = self.model.arrays(batch, self.words, self.bucket)
        targets = np.array([self.numbers[q.answer] for q in batch], np.int64)
        more = self.model.taught(inputs, targets, batch, self.bucket) if hasattr(self.model, "taught") else ()
        return targets, *(x.numpy() for x in inputs), *more

    def loss_of(self, *arrays):
        """The mean loss a question."""
        targets, *inputs = map(Tensor, arrays)
        if hasattr(self.model, "loss"):
            return self.model.loss(targets, *inputs)
        return cross_entropy(self.model(*inputs), targets)

    def stage(self):
        """In training MemN2N's linear start is a formula of its own."""
        return self.model.training, getattr(self.model, "linear", False)

    def mean_loss(self, samples):
        """The mean loss of the questions whose answers are known; None where there is none."""
        known = [q for q in samples if q.answer in self.numbers]
        return super().mean_loss(known) if known else None

    def at_epoch(self, epoch):
        if hasattr(self.model, "at_epoch"):
            self.model.at_epoch(epoch)

    def rate_factor(self, epoch):
        return self.model.rate_factor(epoch) if hasattr(self.model, "rate_factor") else 1.0

    # -- using -------------------------------------------------------------------------------------------------------
    def probabilities(self, batch):
        """For each Question of one batch the probability of each answer: (B, A)."""
        self.model.eval()
        with no_grad():
            return self.model(*self.model.arrays(batch, self.words)).softmax().numpy()

    def answer(self, samples):
        """For each Question the place of the likeliest answer in `answers`, and its probability: (N,), (N,)."""
        best, likely = np.zeros(len(samples), np.int64), np.zeros(len(samples))
        for rows, batch in self.in_batches(samples):
            p = self.probabilities(batch)                                  # (B, A)
            best[rows], likely[rows] = p.argmax(1), p.max(1)
        return best, likely

    def weights(self, samples):
        """For each Question what each hop looked at: (hops, sentences kept); or None, without attention."""
        self.model.eval()
        found = [None] * len(samples)
        for rows, batch in self.in_batches(samples):
            weights = self.model.hops(*self.model.arrays(batch, self.words))
            for i, sample, w in zip(rows, batch, weights if weights is not None else []):
                found[i] = w[:, :self.size(sample)[0]]
        return found

    def evaluate(self, split="test", limit=None):
        """Accuracy (0 to 1; hits@1 where questions have several right answers), error in percent, loss, accuracy by
        task and the number of failed tasks (error above 5%).

        With supporting sentences and attention also: gold_mse, gold_kl, gold_mass and gold_top, as explained in
        `metrics.gold_attention`, of the hop that gives the supporting sentences the most weight; by_hop, these for each
        hop; gold_found, the share of the supporting sentences that some hop looks at the most.
        """
        samples = list(self.split(split))[:limit]
        best, _ = self.answer(samples)
        right = [self.answers[i] in (q.answers or (q.answer,)) for i, q in zip(best, samples)]
        table = accuracy_by([q.task for q in samples], right)
        table.sort(key=lambda row: (not row[0].isdigit(), row[0].zfill(5)))
        accuracy = float(np.mean(right)) if right else 0.0
        result = {"questions": len(samples), "accuracy": accuracy, "error": 100 * (1 - accuracy),
                  "failed": sum(100 - score > FAILED for _, _, score in table), "tasks": len(table),
                  "loss": self.mean_loss(samples), "by_task": [list(row) for row in table]}
        if unknown := sum(not set(q.answers or (q.answer,)) & set(self.numbers) for q in samples):
            result["unknown_answers"] = unknown
            result["remarks"] = [f"{unknown:,} of {len(samples):,} answers are not among the {len(self.answers):,} of "
                                 "the run: they count as wrong, and are left out of the loss"]
        return result | self._gold(samples)

    def _gold(self, samples):
        """Agreement of the hops with the supporting sentences that were kept; empty without any."""
        samples = [q for q in samples if self._support(q)]
        weights = self.weights(samples)
        if not samples or weights[0] is None:
            return {}
        gold = [self._support(q) for q in samples]
        by_hop = [gold_attention([w[hop] for w in weights], gold) for hop in range(len(weights[0]))]
        found = np.mean([len(set(w.argmax(1).tolist()) & g) / len(g) for w, g in zip(weights, gold)])
        return {**max(by_hop, key=lambda hop: hop["gold_mass"]), "gold_found": float(found), "by_hop": by_hop}

    def _support(self, sample):
        """Places of the supporting sentences among those that are kept."""
        left_out = len(sample.story) - self.size(sample)[0]
        return {i - left_out for i in sample.support if i >= left_out}

    def predict(self, text):
        """Answer a question that stands behind its story: "Sam walks into the kitchen. Where is Sam?"; or one about
        films, with the entity in brackets: "who directed [Alien]"."""
        if self.memories is not None:
            return self._look(self.memories.ask(text))
        return self._look(Question(*parse_input(text), ""))

    def _look(self, sample):
        (best,), (likely,) = self.answer([sample])
        w = self.weights([sample])[0]
        sentences = [" ".join(sentence) for sentence in sample.story[-self.options.memory:]]
        question, answer = " ".join(sample.question) + "?", self.answers[best]
        unknown = sorted({word for s in (*sample.story, sample.question) for word in s if word not in self.words})
        record = {"story": sentences, "question": question, "answer": answer, "probability": float(likely)}
        record |= {"right": ", ".join(sample.answers) or sample.answer} if sample.answer else {}
        record |= {"unknown_words": unknown} if unknown else {}
        line = answer + (f"  (unknown: {', '.join(unknown)})" if unknown else "")
        if w is None or not sentences:
            return Prediction(line, record)
        gold = tuple((hop, place) for hop in range(len(w)) for place in sorted(self._support(sample)))
        seen = w
        if self.memories is not None:
            asked = set(sample.question) & set(self.numbers)
            shown = np.sort(np.argsort(-w.max(0), kind="stable")[:SHOWN])
            seen, sentences = w[:, shown], [movies.in_words(sample.story[i], asked) for i in shown]
        films = self.memories is not None
        rest = {"memn2n": "other slots" if films else "empty slots", "key_value": "other memories" if films else ""}
        look = Look(seen, [f"hop {i + 1}" for i in range(len(w))], sentences, f"{question} {answer}", gold,
                    sides=("hop", "story"), rest=rest.get(self.options.attention, ""))
        return Prediction(line, {**record, "hops": w.tolist()}, [look],
                          lambda: apart(look, [{"hop": i + 1} for i in range(len(w))], question))

    def examples(self, n=4, longest=14):
        """Predictions for test questions with stories of a size that suits a picture, of each task in turn."""
        fit = [q for q in self.corpus.test if 3 <= len(q.story) <= longest] or self.corpus.test
        by_task = {}
        for q in fit:
            by_task.setdefault(q.task, []).append(q)
        turns = [(i // 5 if i % 5 == 4 else len(fit) + i, q) for some in by_task.values() for i, q in enumerate(some)]
        return [self._look(q) for _, q in sorted(turns, key=lambda turn: turn[0])[:n]]

    def example_graph(self):
        """The loss of one small made-up question, recorded, for drawing."""
        self.model.eval()
        words = self.words.to_list()[4:8]
        sample = Question((tuple(words[:2]), tuple(words[1:3])), tuple(words[:2]), self.answers[0])
        return self.loss([sample])[0]

    def describe(self):
        """One line: what it is and how large."""
        o, count = self.options, self.model.number_of_parameters()
        how = "LSTM reader, no attention" if o.attention == "none" else f"attention {o.attention}, {o.hops} hops"
        films = "" if self.memories is None else f", {len(self.memories.pairs):,} memories ({o.memories})"
        return (f"qa: {how}, width {_width(o, self.sizes)}, {count:,} parameters, {len(self.words):,} words, "
                f"{len(self.answers):,} answers{films}")


# ---------------------------------------------------------------------------------------------------------------------
# helpers
# ---------------------------------------------------------------------------------------------------------------------
def _width(options, sizes):
    return options.hidden or NETWORKS[options.attention][3 if sizes["tasks"] > 1 else 2]


def _about_films(options, paths):
    """Do the files hold questions about films? InputError for options that are none for what they hold."""
    film = next((path for path in as_paths(paths) if movies.is_movies(path)), None)
    if film is not None and options.tasks:
        raise InputError(f"qa: tasks is an option for stories; {film} holds questions about films")
    if film is None and options.memories != "kb":
        raise InputError(f"qa: memories {options.memories} is an option for questions about films; the data have none")
    return film is not None


def _remembered(options):
    """What memories are, words to each side of a window, memories of a question: arguments of `movies.load`."""
    return options.memories, options.windows or 3, options.memory


def _network(options, words, answers, sizes, films):
    """A network with fresh weights, given of the sizes what its constructor names."""
    module, name, *_ = NETWORKS[options.attention]
    kind = getattr(import_module(f".{module}", __package__), name)
    ids = words.encode([answer if answer in words else answer.lower() for answer in answers])
    sizes = {**sizes, "answer_words": [-1 if i == Vocabulary.UNK else i for i in ids]}
    named = inspect.signature(kind).parameters
    windows = 0 if films else options.windows  # of films they are among the memories as they come
    return kind(len(words), len(answers), replace(options, hidden=_width(options, sizes), windows=windows),
                **{key: value for key, value in sizes.items() if key in named})


def _check(options):
    """InputError for options that cannot be."""
    for f in fields(options):
        values, given = f.metadata["choices"], getattr(options, f.name)
        if values and given not in values:
            raise InputError(f"qa: {f.name}: expected one of {', '.join(values)}, got {given!r}")
    at_least("qa", options, hidden=0, hops=1, linear_start=0, memory=1, gates=0, windows=0)
    if options.gates > 1e6:
        raise InputError(f"qa: expected gates of at most 1,000,000, got {options.gates:g}")
    check_dropout("qa", options, "dropout", "random_noise")
    for name, networks in ONLY.items():
        if getattr(options, name) and options.attention not in networks:
            raise InputError(f"qa: {name} is an option of {' and '.join(networks)}; the attention is "
                             f"{options.attention}")


SYSTEM = QA
