"""The translator: recurrent with Bahdanau's or Luong's attention or without, or a Transformer, to train and ask."""
import time
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np

from .. import random
from ..errors import InputError
from ..functional import cross_entropy
from ..tasks import metrics
from ..tasks.text import Vocabulary, pad
from ..tasks.translate import load, parse_input, read_pairs
from ..tensor import Tensor
from .luong import Luong
from .search import beam_search
from .seq2seq import Seq2Seq, pack
from .system import Figure, Groups, Look, System, option
from .system import Training as Defaults
from .transformer import Transformer

BOS, EOS = Vocabulary.BOS, Vocabulary.EOS
OWN = {"bahdanau": "additive", "luong": "additive", "transformer": "multi_head"}  # the attention of each decoder
OF = {  # options that not all decoders have
    **dict.fromkeys(("score", "input_feeding", "window"), ("luong",)),
    **dict.fromkeys(("layers", "heads", "feed_forward", "norm", "tie"), ("transformer",)),
    **dict.fromkeys(("cell", "embed", "align", "context", "bidirectional", "reverse_source", "init"),
                    ("bahdanau", "luong"))}


@dataclass(frozen=True)
class Options:
    """What kind of model. Each field is an option of `tinyattn train translate`."""
    decoder: str = option("bahdanau", "which state asks: bahdanau, the one before the step; luong, the one after it; "
                                      "transformer: no recurrence, all words at once", [*OWN], later=True)
    attention: str = option("", "how the decoder looks at the source: none, additive, luong_global, local_m, local_p "
                                "and others of `tinyattn list attention`, or FILE.py:NAME; transformer: multi_head or "
                                "none; empty is additive, or multi_head")
    score: str = option("", "luong: how well a state fits a word, for a mechanism that leaves it open (luong_global, "
                            "local_m, local_p, ...): dot, general, additive, location, ...; empty is its own",
                       later=True)
    input_feeding: bool = option(True, "luong: tell each step what the last one found; without it all steps of a "
                                       "sentence are computed at once", later=True)
    window: int = option(0, "luong: places looked at to each side by local_m and local_p; 0 is their own, 10",
                         later=True)
    layers: int = option(2, "transformer: layers of the encoder, and of the decoder", later=True)
    heads: int = option(4, "transformer: heads of each attention, a divisor of hidden", later=True)
    feed_forward: int = option(0, "transformer: width between the two matrices of a layer; 0 is 4 times hidden",
                               later=True)
    norm: str = option("post", "transformer: normalise after each sum, as in the paper (post), or before each part "
                               "(pre)", ["post", "pre"], later=True)
    tie: bool = option(False, "transformer: one matrix is the table of target words and the last layer", later=True)
    label_smoothing: float = option(-1.0, "share of each target that is spread over all words in training; -1 is 0.1 "
                                          "for the transformer, else 0", later=True)
    cell: str = option("gru", "the recurrent cell", ["rnn", "gru", "lstm"])
    hidden: int = option(64, "width of the states")
    embed: int = option(64, "width of the word vectors")
    align: int = option(0, "alignment units of the attention; 0 is as many as hidden")
    context: str = option("every", "without attention: the summary enters every step (Cho 2014) or only the start "
                                   "(Sutskever 2014)", ["every", "start"])
    bidirectional: bool = option(True, "read the source both ways")
    reverse_source: bool = option(False, "read the source from its end, as Sutskever 2014")
    dropout: float = option(-1.0, "probability of dropping a word vector's or read-out's element in training, and for "
                                  "the transformer what its paper drops; -1 is 0.05 for the transformer, else 0.15")
    init: str = option("modern", "initial weights: modern, or as in the paper of the decoder", ["modern", "paper"])
    min_count: int = option(1, "words seen less often in training are <unk>")
    max_vocabulary: int = option(30000, "at most so many words a side")
    max_length: int = option(50, "longer sentences are left out")

    def __post_init__(self):
        object.__setattr__(self, "attention", self.attention or OWN.get(self.decoder, ""))
        if self.dropout == -1:
            object.__setattr__(self, "dropout", 0.05 if self.decoder == "transformer" else 0.15)


@dataclass(frozen=True)
class Training(Defaults):
    """How it is trained, unless said otherwise."""
    steps: int = 7000
    batch_size: int = 16
    validate_every: int = 500


END, START = "</s>", "<s>"  # marks, as they stand in pictures
SIDES = {"cross": ("target, a decoder step each", "source"), "encoder": ("source", "source"),
         "decoder": ("target read so far", "target read so far")}
TRAINING = {"transformer": Training(steps=10_000, learning_rate=2e-3, warmup=400)}  # other decoders: Training()


@dataclass
class Prediction:
    """One translation. weights[t, s] is how much target word t (the last row: the end) looked at source word s (the
    last column: the end), or None without attention; mean_of says what it is the mean of, if of anything. `closely`
    gives each head's."""
    source: list
    target: list
    weights: object = None
    mean_of: str = ""
    closely: object = None

    @property
    def line(self):
        return " ".join(self.target)

    @property
    def record(self):
        weights = None if self.weights is None else [[round(float(w), 6) for w in row] for row in self.weights]
        return {"source": self.source, "target": self.target, "weights": weights}

    @property
    def looks(self):
        """One map: which source word each target word looked at; the last row and column are the end."""
        if self.weights is None:
            return []
        t, s = self.weights.shape
        return [Look(self.weights, [*self.target, *[END] * (t - len(self.target))],
                     [*self.source, *[END] * (s - len(self.source))], self.mean_of, sides=SIDES["cross"])]

    @property
    def finest(self):
        """A row is a decoder step: of each head of a Transformer, each hop of a mechanism that has some."""
        return self.looks if self.closely is None else self.closely()


class Translate(System):
    """See the module docstring, and `system.py` for what a system is."""
    name = "translate"
    Options, Training = Options, Training
    help = "an encoder-decoder that translates, and shows its alignment"
    data_help = "a .tsv, .po or .mo file, or two aligned files (give --data twice)"
    counts = "sentences"
    figures = {"bleu": Figure("BLEU", 2), "aer": Figure("AER", 4, "lower"),
               "aer_next_step": Figure("AER (next step)", 4, "lower"), "loss": Figure("loss", 4, "lower")}
    groups = Groups("by_length", "words in the source sentence", "BLEU", "bleu-by-length.svg")
    takes_links = takes_beam = True

    def __init__(self, options, source_words, target_words):
        _check_decoder(options)
        for name in ("hidden", "embed", "min_count", "max_vocabulary", "max_length"):
            if getattr(options, name) < 1:
                raise InputError(f"translate: expected {name} of at least 1, got {getattr(options, name)}")
        if not 0 <= options.dropout < 1:
            raise InputError(f"translate: expected a dropout between 0 and 1, got {options.dropout}")
        super().__init__(options)
        self.source_words, self.target_words = source_words, target_words
        self.label_smoothing = options.label_smoothing
        if self.label_smoothing == -1:
            self.label_smoothing = 0.1 if options.decoder == "transformer" else 0.0
        self.model = self._network(options)(len(source_words), len(target_words))

    @staticmethod
    def _network(options):
        """The function from the sizes of the vocabularies to a network with fresh weights."""
        o = asdict(options)
        if options.decoder == "transformer":
            own = {k: o[k] for k in ("layers", "heads", "norm", "dropout", "attention", "tie")}
            return partial(Transformer, width=o["hidden"], feed_forward=o["feed_forward"] or 4 * o["hidden"], **own)
        more = {k: o[k] for k in ("embed", "hidden", "cell", "attention", "context", "bidirectional", "dropout")}
        more |= {"align": o["align"] or None, "init_as": o["init"]}
        if options.decoder == "bahdanau":
            return partial(Seq2Seq, **more)
        more |= {k: o[k] for k in ("score", "input_feeding", "window")}
        return partial(Luong, longest=options.max_length + 1, **more)                  # and the end mark

    @classmethod
    def training_for(cls, options):
        """The Training proposed for these options, a dictionary."""
        return TRAINING.get(options["decoder"], cls.Training())

    # -- making one --------------------------------------------------------------------------------------------------
    @classmethod
    def prepare(cls, options, paths=(), links=None, links_order="source-target", seed=1, sizes=None):
        """Read the data (InputError if it cannot be used), build both vocabularies and a model with fresh weights."""
        random.manual_seed(seed)
        corpus = load(paths, links, links_order, seed=seed, max_length=options.max_length, sizes=sizes)
        words = [Vocabulary.build([getattr(p, side) for p in corpus.train], options.max_vocabulary, options.min_count)
                 for side in ("source", "target")]
        system = cls(options, *words)
        system.corpus, system.notes = corpus, corpus.notes
        return system

    @classmethod
    def to_draw(cls, options):
        """As `prepare`, from 1,000 sentences of the generator, in which all its words occur."""
        return cls.prepare(options, sizes=(1000, 1, 1))

    @classmethod
    def restore(cls, options, extra):
        """The system that `extra()` described, without data and with fresh weights."""
        return cls(Options(**options), Vocabulary.from_list(extra["source"]), Vocabulary.from_list(extra["target"]))

    def attach(self, paths=(), links=None, links_order="source-target", seed=1):
        """Read data for a restored system; the vocabularies stay."""
        self.corpus = load(paths, links, links_order, seed=seed, max_length=self.options.max_length)
        self.notes = self.corpus.notes

    def attach_all(self, paths, links=None, links_order="source-target"):
        """Read files whose every pair is to be evaluated, under the split "all"."""
        self.whole, self.notes = read_pairs(paths, links, links_order, max_length=self.options.max_length)

    def extra(self):
        """What the checkpoint keeps beside weights and options: the vocabularies."""
        return {"source": self.source_words.to_list(), "target": self.target_words.to_list()}

    # -- data --------------------------------------------------------------------------------------------------------
    def size(self, pair):
        return len(pair.target), len(pair.source)

    def source_ids(self, words):
        ids = self.source_words.encode(words)
        return (ids[::-1] if self.options.reverse_source else ids) + [EOS]

    def tensors(self, pairs):
        """Pairs to source (B, S), lengths (B,), the words before (B, T) and the words to predict (B, T). The shift
        between the last two is made here and nowhere else."""
        return tuple(map(Tensor, self._numbers(pairs)))

    def _numbers(self, pairs, bucket=1):
        """`tensors` as arrays. The source is not padded beyond what a table of places knows."""
        targets = [self.target_words.encode(p.target) for p in pairs]
        source, lengths = pad([self.source_ids(p.source) for p in pairs], bucket=bucket, most=self.options.max_length + 1)
        before, after = (pad(side, bucket=bucket)[0] for side in zip(*(([BOS, *t], [*t, EOS]) for t in targets)))
        return source, lengths, before, after

    # -- training ----------------------------------------------------------------------------------------------------
    def arrays(self, batch):
        return self._numbers(batch, self.bucket)

    def loss_of(self, *arrays):
        """The mean loss a target word, the end among them. Labels are smoothed in training alone, so that validation
        losses can be compared."""
        source, lengths, before, after = map(Tensor, arrays)
        smoothing = self.label_smoothing if self.model.training else 0.0
        return cross_entropy(self.model(source, lengths, before), after, Vocabulary.PAD, smoothing)

    def targets_in(self, batch):
        return sum(len(p.target) + 1 for p in batch)

    # -- using -------------------------------------------------------------------------------------------------------
    def translate(self, sentences, beam=1):
        """Lists of source words to lists of target words."""
        self.model.eval()
        out = [None] * len(sentences)
        order = sorted(range(len(sentences)), key=lambda i: len(sentences[i]))
        for i in range(0, len(order), 64):
            rows = order[i:i + 64]
            source, lengths = pack([self.source_ids(sentences[j]) for j in rows])
            for j, ids in zip(rows, beam_search(self.model, source, lengths, BOS, EOS, beam), strict=True):
                out[j] = self.target_words.decode(ids)
        return out

    def weights(self, pairs, lag=0):
        """For each pair the attention (target words + end, source words + end), in the order of the words; or None.
        `lag` as in `Seq2Seq.word_weights`."""
        self.model.eval()
        found = [None] * len(pairs)
        for rows, batch in self.in_batches(pairs):
            alpha = self.model.word_weights(*self.tensors(batch), lag)
            for j, p, a in zip(rows, batch, alpha if alpha is not None else [None] * len(batch), strict=True):
                if a is not None:
                    a = a[:len(p.target) + 1, :len(p.source) + 1]
                    n = len(p.source)
                    found[j] = a[:, [*range(n - 1, -1, -1), n]] if self.options.reverse_source else a
        return found

    def links(self, pairs, lag=0):
        """Each target word's link to the source word that it looked at most, the end left out: sets of
        (source, target). A word that looked at no source word (a window may hold the end alone) has no link."""
        return [set() if a is None else {(int(row[:-1].argmax()), t) for t, row in enumerate(a[:-1]) if row[:-1].any()}
                for a in self.weights(pairs, lag)]

    def evaluate(self, split="test", beam=1, limit=None):
        """BLEU, loss, BLEU by source length, and AER where gold links and attention exist, on one split. For decoders
        other than Bahdanau's `aer_next_step` too: the same with each word's links from the step that reads it."""
        pairs = list(self.split(split))[:limit]
        begun = time.perf_counter()
        hypotheses = self.translate([p.source for p in pairs], beam)
        seconds = time.perf_counter() - begun
        references = [list(p.target) for p in pairs]
        table = metrics.bleu_by_length(hypotheses, references, [len(p.source) for p in pairs])
        result = {"sentences": len(pairs), "bleu": metrics.bleu(hypotheses, references), "loss": self.mean_loss(pairs),
                  "by_length": [list(row) for row in table], "seconds": seconds}
        gold = [p for p in pairs if p.sure is not None]
        if gold and self.model.decoder.variant is not None:
            sure, possible = [p.sure for p in gold], [p.possible for p in gold]
            for name, lag in (("aer", 0), ("aer_next_step", 1))[:1 + (self.options.decoder != "bahdanau")]:
                result[name] = metrics.aer(self.links(gold, lag), sure, possible)
        return result

    def against(self, other, split="test", limit=None, beam=1):
        """BLEU beside that of another translator on the same sentences, by source length and over all:
        [(class, sentences, BLEU, the other's, difference, low, high)], with the 95 % interval of the difference by
        paired bootstrap."""
        pairs = list(self.split(split))[:limit]
        sources, references = [p.source for p in pairs], [list(p.target) for p in pairs]
        both = [system.translate(sources, beam) for system in (self, other)]
        rows = []
        for label, inside in [*metrics.by_length([len(s) for s in sources]), ("all", range(len(pairs)))]:
            if inside:
                a, b, right = ([texts[i] for i in inside] for texts in (*both, references))
                rows.append((label, len(inside), metrics.bleu(a, right), metrics.bleu(b, right),
                             *metrics.bleu_difference(a, b, right)))
        return rows

    def predict(self, text, beam=1):
        """Translate one sentence of text: a Prediction."""
        source = list(parse_input(text))
        target = self.translate([source], beam)[0]
        return self._prediction(source, target, self.look(source, target))

    def _prediction(self, source, target, weights):
        mean = self.options.decoder == "transformer" and weights is not None
        return Prediction(list(source), list(target), weights, self._mean_of() if mean else "",
                          None if weights is None else lambda: self.closely(source, target))

    def _mean_of(self):
        o = self.options
        return f"mean of {o.layers * o.heads} heads"

    def look(self, source, target):
        """The attention of one pair, with the model's own words or a reference's."""
        pair = _Words(tuple(source), tuple(target))
        return self.weights([pair])[0]

    def closely(self, source, target):
        """The finest Looks of one pair, with the model's own words or a reference's. Of a Transformer each head's: the
        words of the source at each other, the target's words at those before, each decoder step at the source. Of other
        decoders each decoder step at the source, by hop where there are several. Without attention there are none."""
        given = self.tensors([_Words(tuple(source), tuple(target))])[:3]
        self.model.eval()
        words, read = [*source, END], [START, *target]
        names = {"cross": ([*target, END], words), "encoder": (words, words), "decoder": (read, read)}
        if self.options.decoder != "transformer":
            hops, n = self.model.weights_by_hop(*given)[0], len(source)                # (hops, T, S)
            hops = hops[:, :, [*range(n - 1, -1, -1), n]] if self.options.reverse_source else hops
            return [Look(w, *names["cross"], sides=SIDES["cross"], place={"hop": i} if len(hops) > 1 else {})
                    for i, w in enumerate(hops, 1)]
        layers = self.model.weights_by_head(*given)
        return [Look(w, *names[kind], sides=SIDES[kind], place={"kind": kind, "layer": layer, "head": head})
                for kind in ("cross", "encoder", "decoder") for layer, heads in enumerate(layers.get(kind, ()), 1)
                for head, w in enumerate(heads[0], 1)]

    def examples(self, n=4, shortest=8, longest=16):
        """Predictions for the first test sentences of a length that suits a picture."""
        some = [p for p in self.corpus.test if shortest <= len(p.source) <= longest] or self.corpus.test
        return [self._prediction(p.source, p.target, a)
                for p, a in zip(some[:n], self.weights(some[:n]), strict=True)]

    def example_graph(self, length=4):
        """The loss of one made-up sentence of `length` words with its end, recorded, for drawing."""
        self.model.eval()
        size = min(len(self.source_words), len(self.target_words)) - 1
        ids = np.minimum(np.array([[*(4 + i % 3 for i in range(length - 1)), EOS]]), size)
        source, lengths = pack(ids.tolist())
        before, after = pack([[BOS, *ids[0, :-1].tolist()]])[0], pack([ids[0].tolist()])[0]
        return self.model.loss(source, lengths, before, after)

    def describe(self):
        """One line: what it is and how large."""
        count = sum(p.size for p in self.model.parameters())
        o = asdict(self.options)
        how = f"{o['cell']}, attention {o['attention']}"
        if o["decoder"] == "luong":
            score = f" ({self.model.decoder.score})" if self.model.decoder.score else ""
            how = (f"{o['cell']}, luong decoder, attention {o['attention']}{score}, input feeding "
                   f"{'on' if o['input_feeding'] else 'off'}")
        if o["decoder"] == "transformer":
            how = (f"transformer, attention {o['attention']}, {o['layers']} layers, {o['heads']} heads, "
                   f"{o['norm']}-norm{', tied' if o['tie'] else ''}")
        return (f"translate: {how}, hidden {o['hidden']}, {count:,} parameters, "
                f"{len(self.source_words):,} source and {len(self.target_words):,} target words")


def _check_decoder(options):
    """InputError for options that the decoder has not, or that are out of range."""
    o, decoder = asdict(options), options.decoder
    if decoder not in OWN:
        raise InputError(f"translate: expected a decoder of {', '.join(OWN)}, got {decoder!r}")
    for name, decoders in OF.items():
        if decoder not in decoders and o[name] != Options.__dataclass_fields__[name].default:
            raise InputError(f"translate: {name} {o[name]!r} is an option of --decoder {' or '.join(decoders)}; the "
                             f"decoder is {decoder}")
    if decoder == "bahdanau" and o["attention"] != "none" and not o["bidirectional"]:
        raise InputError("translate: attention looks at both directions of the encoder; leave --bidirectional on")
    if decoder == "transformer" and o["attention"] not in ("multi_head", "none"):
        raise InputError(f"translate: expected the attention of a transformer to be multi_head or none, got "
                         f"{o['attention']!r}")
    if o["layers"] < 1 or o["heads"] < 1 or o["feed_forward"] < 0:
        raise InputError(f"translate: expected layers and heads of at least 1, feed_forward of at least 0, got "
                         f"{o['layers']}, {o['heads']} and {o['feed_forward']}")
    if decoder == "transformer" and o["hidden"] % o["heads"]:
        raise InputError(f"translate: expected hidden to be a multiple of heads, got {o['hidden']} and {o['heads']}")
    if not (o["label_smoothing"] == -1 or 0 <= o["label_smoothing"] < 1):
        raise InputError(f"translate: expected a label_smoothing between 0 and 1, or -1, got {o['label_smoothing']}")


@dataclass(frozen=True)
class _Words:
    source: tuple
    target: tuple


SYSTEM = Translate
