"""A system's loss as a function of plain arrays: no value of them is read in Python, so that a step can be captured; and
padding to a multiple changes no loss, so that few shapes occur."""
import functools
import sys

import numpy as np
import pytest
from test_key_value_network import FILMS
from test_key_value_network import small as films

from tinyattn import Tensor, random, systems, tensor
from tinyattn.autograd import no_grad
from tinyattn.models.system import System
from tinyattn.tasks.text import Vocabulary, pad, roomy

# ---------------------------------------------------------------------------------------------------------------------
# arrays whose values nobody may read
# ---------------------------------------------------------------------------------------------------------------------
KNOWN = (np.shape, np.ndim, np.size)  # of a shape, not of values


class Unread(np.ndarray):
    """An array that NumPy's functions may compute with, and Python may not look into: what they give is Unread too.

    The values are in `kept`; its own memory holds zeros. So what reads that, a function that NumPy hands to no subclass
    (`np.take` with these as indices), gives another loss.
    """

    def __array_ufunc__(self, ufunc, method, *inputs, **more):
        assert more.get("out") is None, "a result is written into an array"
        return hidden(getattr(ufunc, method)(*shown(inputs), **shown(more)))

    def __array_function__(self, function, types, args, kwargs):
        if function.__name__ in ("nonzero", "unique", "flatnonzero", "argwhere"):
            raise Looked("a shape that depends on values")
        found = function(*shown(args), **shown(kwargs))
        return found if function in KNOWN else hidden(found)

    def __getitem__(self, index):
        parts = index if isinstance(index, tuple) else (index,)
        if any(isinstance(i, np.ndarray) and i.dtype == bool for i in parts):
            raise Looked("x[mask], whose shape depends on values")
        return hidden(shown(self)[shown(index)])

    def __setitem__(self, index, value):
        raise Looked("x[...] = value")


class Looked(AssertionError):
    """Somebody read a value of an argument."""


def _forbidden(name):
    def method(self, *args, **kwargs):
        raise Looked(name)
    return method


for _name in ("__bool__", "__int__", "__index__", "__float__", "__complex__", "__iter__", "__contains__", "item", "tolist",
              "tobytes", "nonzero", "__iadd__", "__isub__", "__imul__"):
    setattr(Unread, _name, _forbidden(_name))


for _name in ("reshape", "swapaxes", "transpose", "squeeze", "ravel", "copy", "astype", "sum", "any", "all", "max", "min"):
    setattr(Unread, _name, lambda self, *args, _name=_name, **more: hidden(getattr(self.kept, _name)(*args, **more)))


def hidden(x):
    """NumPy's results with their arrays and numbers as Unread."""
    if isinstance(x, (tuple, list)):
        return type(x)(map(hidden, x))
    array = np.zeros(np.shape(x), np.asarray(x).dtype).view(Unread)
    array.kept = np.array(x)
    return array


def shown(x):
    if isinstance(x, (tuple, list)):
        return type(x)(map(shown, x))
    if isinstance(x, dict):
        return {key: shown(value) for key, value in x.items()}
    return x.kept if isinstance(x, Unread) else x


@pytest.fixture
def watch(monkeypatch):
    """While a loss is computed, what `Tensor.numpy()` gives is Unread too, and an Unread index is found out."""
    numpy, getitem, wrap, asarray, as_array = Tensor.numpy, Tensor.__getitem__, Tensor._wrap, np.asarray, tensor._as_array

    def checked(self, index):
        for i in index if isinstance(index, tuple) else (index,):
            if isinstance(i, (Unread, Tensor)):
                raise Looked("x[array]")
        return getitem(self, index)

    def plain_asarray(x, *args, **kwargs):
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if isinstance(x, (Unread, Tensor)) and caller.startswith("tinyattn.") and caller != "tinyattn.tensor":
            raise Looked(f"np.asarray in {caller}")
        return asarray(shown(x), *args, **kwargs)

    def begin():
        monkeypatch.setattr(Tensor, "numpy", lambda self: hidden(numpy(self)))
        monkeypatch.setattr(Tensor, "__getitem__", checked)
        monkeypatch.setattr(Tensor, "_wrap", staticmethod(lambda array, *rest: wrap(shown(array), *rest)))
        monkeypatch.setattr(np, "asarray", plain_asarray)
        monkeypatch.setattr(tensor, "_as_array", lambda data, dtype=None: as_array(shown(data), dtype))
    yield begin


def test_the_watch_sees_what_it_is_to_see(watch):
    watch()
    x, t = hidden(np.arange(4)), Tensor(np.arange(4.0))
    for look in (lambda: bool((x > 1).any()), lambda: int(x.max()), lambda: x.tolist(), lambda: list(x),
                 lambda: range(x[0]), lambda: float(x.sum()), lambda: t[x], lambda: t.sum().item(),
                 lambda: t.numpy().max() > 3 or 1, lambda: np.array_equal(x, x) or 1, lambda: float(np.mean(x)),
                 lambda: np.zeros(5)[x[1]:], lambda: x[x > 1], lambda: x.nonzero(), lambda: np.unique(x)):
        with pytest.raises((Looked, TypeError)):
            look()
    assert x.shape == (4,) and len(x) == 4 and np.shape(x) == (4,)
    assert type(np.arange(9) < x[:, None]) is Unread and type(np.where(x > 1, x, 0)) is Unread and type(x.sum()) is Unread
    assert not np.array_equal(shown(np.take(np.arange(5), x)), np.arange(4))  # goes by the zeros
    np.testing.assert_array_equal(Tensor(np.arange(9) < x[:, None]).array, np.arange(9) < np.arange(4)[:, None])


# ---------------------------------------------------------------------------------------------------------------------
# systems, with their options
# ---------------------------------------------------------------------------------------------------------------------
SELF = ["shaw", "multi_head", "pairwise", "disan", "static", "rope", "alibi", "learned_positions", "none"]
KINDS = [  # system, options
    *[("translate", {"attention": name}) for name in ("additive", "none", "general", "luong_global")],
    ("translate", {"attention": "none", "context": "start", "bidirectional": False, "reverse_source": True, "cell": "lstm"}),
    ("translate", {"cell": "rnn", "label_smoothing": 0.1}), ("translate", {"cell": "lstm"}),
    *[("translate", {"decoder": "luong", "attention": name, "input_feeding": fed})
      for name in ("luong_global", "local_m", "local_p", "none") for fed in (True, False)],
    ("translate", {"decoder": "luong", "attention": "luong_global", "score": "location", "input_feeding": False}),
    *[("translate", {"decoder": "transformer", "heads": 2, "attention": name, "norm": norm, "tie": norm == "pre"})
      for name in ("multi_head", "none") for norm in ("post", "pre")],
    *[("classify", {"attention": name}) for name in ("han", "average", "max", "none", "disan", "cnn")],
    *[("classify", {"attention": name, "penalty": 0.5}) for name in ("structured_self", "two_level")],
    *[("aspects", {"attention": name}) for name in ("cmla", "none")], ("aspects", {"bidirectional": True, "layers": 1}),
    *[("sense", {"attention": name, "heads": 2}) for name in SELF],
    *[("qa", {"attention": name}) for name in ("dmn", "dmn_plus", "key_value", "none")],
    ("qa", {"gates": 0.5, "attention": "dmn"}),
    ("qa", {"attention": "key_value", "windows": 2}),
    *[("qa", {"encoding": encoding, "form": form, "tying": tying}) for encoding, form, tying in (
        ("position", "code", "adjacent"), ("position", "paper", "layerwise"), ("bag", "code", "adjacent"))],
    ("qa", {"temporal": False, "nonlinear": True, "tying": "layerwise"}),
]
SIZES = {"translate": {"hidden": 6, "embed": 5}, "classify": {"hidden": 4, "embed": 5, "align": 3},
         "aspects": {"hidden": 6, "embed": 5},
         "sense": {"width": 8}, "qa": {"hidden": 6}}


def name_of(kind):
    return "-".join([kind[0], *(f"{key}={value}" for key, value in kind[1].items())])


@functools.cache
def corpus_of(name, seed=1):
    """The data of a system do not depend on its options here."""
    cls = systems.find(name)
    return cls.to_draw(cls.Options(**SIZES[name])).corpus


def made(kind, **more):
    name, options = kind
    cls = systems.find(name)
    random.manual_seed(3)
    sizes = {key: n for key, n in SIZES[name].items() if key != "embed" or options.get("decoder") != "transformer"}
    options = cls.Options(**sizes, **options, **more)
    corpus = corpus_of(name)
    if name == "translate":
        sides = ([getattr(p, side) for p in corpus.train] for side in ("source", "target"))
        system = cls(options, *map(Vocabulary.build, sides))
    else:
        system = cls.build(options, corpus)
    system.corpus = corpus
    return system


def some(system, n=5):
    """Samples of unlike sizes."""
    train = sorted(system.corpus.train, key=system.size)
    return [train[i * (len(train) - 1) // (n - 1)] for i in range(n)] if len(train) > n else train


@pytest.mark.compiled
@pytest.mark.parametrize("training", [True, False], ids=["training", "eval"])
@pytest.mark.parametrize("kind", KINDS, ids=map(name_of, KINDS))
def test_a_loss_reads_no_value_of_its_arguments(kind, training, watch):
    """With dropout and what else is drawn: the same bits as the loss of the batch."""
    system = made(kind)
    system.model.train(training)
    system.at_epoch(0)
    batch = some(system)
    random.manual_seed(7)
    loss, count = system.loss(batch)
    random.manual_seed(7)
    arrays = system.arrays(batch)
    assert all(type(x) is np.ndarray for x in arrays) and count == system.targets_in(batch)
    watch()
    again = system.loss_of(*map(hidden, arrays))
    assert again.array.tobytes() == loss.array.tobytes() and again.array.size == 1 and np.isfinite(again.array)


BARE = {"translate": {"dropout": 0.0}, "classify": {"dropout": 0.0}, "aspects": {"dropout": 0.0, "unknown": 0.0},
        "sense": {"dropout": 0.0}, "qa": {"dropout": 0.0, "random_noise": 0.0}}


@pytest.mark.compiled
@pytest.mark.parametrize("kind", KINDS, ids=map(name_of, KINDS))
def test_padding_to_a_multiple_changes_no_loss_and_no_gradient(kind):
    """In training, without what is drawn by lot, for that goes by the shapes."""
    system = made(kind, **BARE[kind[0]])
    system.model.to("float64").train()
    batch, found, shapes = some(system), [], []
    for bucket in (1, 16):
        system.bucket = bucket
        arrays = system.arrays(batch)
        shapes.append([x.shape for x in arrays])
        for p in system.model.parameters():
            p.grad = None
        loss = system.loss_of(*arrays)
        loss.backward()
        found.append([loss.array, *(0 * p.array if p.grad is None else p.grad.array for p in system.model.parameters())])
    assert shapes[0] != shapes[1]
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


def test_answers_found_among_those_of_the_batch(watch):
    """Questions about films, whose answers differ in number from batch to batch, padded too."""
    net, words, _, targets = films("films")
    losses = []
    for bucket in (1, 5):
        inputs = net.arrays(FILMS, words, bucket)
        among, rows = net.taught(inputs, targets, FILMS, bucket)
        assert len(among) == len(rows) == (4 if bucket == 1 else 5)
        losses.append(net.loss(Tensor(targets), *inputs, Tensor(among), Tensor(rows)))
        losses[-1].backward()
    assert losses[0].item() == pytest.approx(losses[1].item(), rel=1e-12)
    watch()
    again = net.loss(*map(Tensor, (hidden(targets), *(x.numpy() for x in inputs), hidden(among), hidden(rows))))
    assert again.array.tobytes() == losses[1].array.tobytes()


def test_lengths_to_pad_to():
    assert [roomy(n, 8) for n in (0, 1, 8, 9)] == [0, 8, 8, 16] and roomy(13) == 13
    assert [roomy(n, 8, 20) for n in (5, 17, 20, 22)] == [8, 20, 20, 22]
    ids, lengths = pad([[5, 6, 7], [8]], bucket=4)
    np.testing.assert_array_equal(ids, [[5, 6, 7, 0], [8, 0, 0, 0]])
    np.testing.assert_array_equal(lengths, [3, 1])


def test_few_shapes_occur_in_an_epoch():
    """The batches of an epoch have lengths of many kinds; padded to a multiple of 8 they have few."""
    system, counts = made(KINDS[0]), []
    for bucket in (1, 8):
        system.bucket = bucket
        batches = system.epoch(np.random.default_rng(0), 16)
        counts.append(len({tuple(x.shape for x in system.arrays(batch)) for batch in batches}))
    assert 3 * counts[1] < counts[0]


def test_a_stage_tells_formulas_apart():
    system = made(("qa", {"linear_start": 2}))
    stages = set()
    for epoch, training in ((0, True), (1, True), (2, True), (0, False)):
        system.at_epoch(epoch)
        system.model.train(training)
        stages.add(system.stage())
    assert len(stages) == 3


def test_a_system_of_its_own_loss_is_let_be():
    class Own(System):
        def loss(self, batch):
            return Tensor(1.0), 3
    with no_grad():
        assert Own(None).loss([0])[1] == 3
