"""Attacks on every mechanism of the table, from its own example: wrong shapes and types, memory in any order, numbers
too large, nothing at all; and user's files that are not what they should be. The answer is right, or one clear line."""
import warnings

import numpy as np
import pytest

from tinyattn import InputError, Tensor, capture, cli, detect_anomaly, fused, grad, no_grad
from tinyattn.attention import find, table
from tinyattn.attention.properties import _tensors, leaves, outputs_of
from tinyattn.commands.names import ops
from tinyattn.ops.linear_chain import LinearChain

NAMES = list(table())
WEIGHTS = [n for n in NAMES if "return_weights" in find(n).arguments]
SPEAKERS = sorted({*NAMES, *ops(), "lstm", "gru", "score", "W_k k"}, key=len, reverse=True)
pytestmark = pytest.mark.filterwarnings("error")


def example(name, seed=0):
    return find(name).part("example")(np.random.default_rng(seed))


MASKED = [n for n in NAMES if isinstance(example(n).get("mask"), np.ndarray)]


def run(name, tensors, g=lambda out: np.random.default_rng(out.size).normal(size=out.shape), **options):
    """(values of the outputs, gradients of the inputs that need one), as arrays."""
    outs = outputs_of(find(name)(**tensors, **options))
    recorded = [out for out in outs if out.requires_grad]
    wanted = [t for t in _tensors(tensors) if t.requires_grad]
    gs = [Tensor._wrap(np.asarray(g(o), o.dtype), None, 0, False) for o in recorded]
    found = grad(recorded, wanted, gs, allow_unused=True)
    slopes = [np.zeros(t.shape) if x is None else x.numpy() for t, x in zip(wanted, found, strict=True)]
    return [out.numpy() for out in outs], slopes


def close(a, b, tolerance=1e-11):
    for found, wanted in zip(a, b, strict=True):
        assert len(found) == len(wanted)
        for x, y in zip(found, wanted, strict=True):
            np.testing.assert_allclose(x, y, atol=tolerance, rtol=tolerance)


def is_clear(call):
    """Runs, or is refused in one line that begins with a mechanism or an op, and says what was expected and what
    came."""
    try:
        call()
    except (ValueError, TypeError, IndexError) as error:  # an IndexError only for an id that is not in its table
        said = str(error)
        begins = tuple(f"{s}{end}" for s in SPEAKERS for end in (":", " ", "/"))
        assert "\n" not in said and said.startswith(begins) or (
            said.startswith(("Tensor: expected", "mask: expected"))), said
        words = "expected", "must have", "outside", "do not", "does not", "differ", "got"
        assert any(word in said for word in words), said
        assert not isinstance(error, IndexError) or "is outside" in said, said


def try_with(name, arrays, **changed):
    is_clear(lambda: find(name)(**{**arrays, **changed}))


def twisted(a):
    """An array with another number of axes, or another length of one."""
    yield from (a[None], a[..., None], np.stack([a, a]), np.zeros((), a.dtype))
    for axis in range(a.ndim):
        yield np.concatenate([a, a.take([0], axis)], axis)
        yield a.take([], axis)


# ---------------------------------------------------------------------------------------------------------------------
# one clear line
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", NAMES)
def test_another_shape_is_right_or_one_clear_line(name):
    arrays = example(name)
    for argument, a in arrays.items():
        for i, part in enumerate(a if isinstance(a, list) else [a]):
            for bad in twisted(part) if isinstance(part, np.ndarray) else ():
                changed = [*a[:i], bad, *a[i + 1:]] if isinstance(a, list) else bad
                try_with(name, leaves({**arrays, argument: changed}))


@pytest.mark.parametrize("name", NAMES)
def test_what_is_no_tensor_is_right_or_one_clear_line(name):
    arrays = example(name)
    for argument, a in arrays.items():
        if isinstance(a, np.ndarray) and not (name == "distance" and argument == "a"):
            others = [None, "hello", a, a.tolist(), Tensor(a.astype(np.int64)), Tensor(a > 0)]
            others += [Tensor(a.astype(np.float32))] if a.dtype.kind == "f" else [Tensor(a.astype(float))]
            for other in others:
                try_with(name, leaves(arrays), **{argument: other})


@pytest.mark.parametrize("name", MASKED)
def test_a_mask_that_does_not_fit_is_named(name):
    arrays = example(name)
    mask = arrays["mask"]
    for bad in (mask[..., :-1], mask[..., :1], np.concatenate([mask, mask], -1), np.concatenate([mask, mask]),
                mask[None, None]):
        for options in ({}, {"return_weights": True}) if name in WEIGHTS else ({},):
            with pytest.raises(ValueError, match=rf"{name}[:/].*expected a mask"):
                find(name)(**leaves({**arrays, "mask": bad}), **options)
    with pytest.raises(TypeError, match=rf"{name}[:/].*expected a mask of bools"):
        find(name)(**leaves({**arrays, "mask": mask.astype(np.int64)}))


@pytest.mark.parametrize(("name", "change"), [
    ("hard", {"v": np.ones((2, 5, 5))}), ("hard", {"v": np.ones((3, 4, 5))}),
    ("encoder_decoder", {"w_y": np.ones((1, 5))}),
    ("encoder_decoder", {"u": np.ones((1, 2))}), ("cdme", {"w_ih": np.ones((3, 8, 4))}), ("cdme", {"b": np.ones(2)}),
    ("cdme", {"lengths": np.array([[3, 2]])}), ("dme", {"b": np.ones(1)}), ("pointer_generator", {"w_c": np.ones(1)}),
    ("pointer_generator", {"x": np.ones((1, 3, 2))}), ("pointer_generator", {"ids": np.full((2, 4), 6)}),
    ("luong_global", {"q": np.ones((3, 3))}), ("gated_reader", {"q": np.ones((5, 3))}),
    ("additive", {"v": np.ones((4, 2))})])
def test_what_would_broadcast_to_a_wrong_answer_is_refused(name, change):
    with pytest.raises(ValueError, match=f"{name}: expected"):
        find(name)(**leaves({**example(name), **change}))


@pytest.mark.parametrize(("name", "option"), [
    ("dmn", "hops"), ("memory", "hops"), ("memn2n", "hops"), ("cmla", "layers"), ("local_m", "width"),
    ("local_m", "start"), ("local_p", "width"), ("hard", "seed"), ("token2token", "c"), ("disan", "c"),
    ("pagerank", "damping"), ("segmentation", "total")])
def test_options_out_of_range(name, option):
    for bad in (-1, -0.5, float("nan"), float("inf"), None, "three", []):
        with pytest.raises(ValueError, match=f"{'token2token' if name == 'disan' else name}: expected"):
            find(name)(**{**leaves(example(name)), option: bad})


@pytest.mark.parametrize(("name", "option"), [
    ("disan", "direction"), ("distance", "direction"), ("encoder_decoder", "feed"), ("gated_reader", "gate"),
    ("memn2n", "tying"), ("memn2n", "encoding"), ("memory", "update"), ("rope", "pairing"), ("sinusoid", "layout")])
def test_a_word_that_is_no_option(name, option):
    for bad in ("nothing", "", 5, ["sum"], np.zeros(2)):
        with pytest.raises(InputError, match=f"^{name}: expected {option} to be one of .*, got"):
            find(name)(**{**leaves(example(name)), option: bad})


@pytest.mark.parametrize("name", [n for n in NAMES if "score" in find(n).arguments])
def test_a_score_that_is_none(name):
    for bad in (None, 5, [], "", "nothing", "core", "han", "ntm", "self_attention", "x.py:f"):
        with pytest.raises(InputError, match="expected|no file"):
            find(name)(**{**leaves(example(name)), "score": bad})


# ---------------------------------------------------------------------------------------------------------------------
# the same numbers, whatever the memory, the path, the type
# ---------------------------------------------------------------------------------------------------------------------
def backwards(a):
    turn = tuple([slice(None, None, -1)] * a.ndim)
    return a[turn].copy()[turn] if a.ndim else a


def every_other(a):
    room = np.zeros([2 * n for n in a.shape], a.dtype)
    room[tuple([slice(None, None, 2)] * a.ndim)] = a
    return room[tuple([slice(None, None, 2)] * a.ndim)] if a.ndim else a


def laid(value, order):
    """An example's arrays as Tensors on memory in that order, without a copy."""
    if isinstance(value, list):
        return [laid(x, order) for x in value]
    if not isinstance(value, np.ndarray):
        return value
    t = Tensor._wrap(order(value) if value.ndim else value, None, 0, False)
    return t.requires_grad_() if value.dtype.kind == "f" else t


@pytest.mark.parametrize("name", NAMES)
def test_memory_in_any_order(name):
    arrays = example(name)
    wanted = run(name, leaves(arrays))
    for order in (np.asfortranarray, backwards, every_other):
        close(run(name, {k: laid(a, order) for k, a in arrays.items()}), wanted)
    for g in (lambda o: np.broadcast_to(0.7, o.shape), lambda o: backwards(np.ones(o.shape).cumsum().reshape(o.shape))):
        close(run(name, leaves(arrays), g), run(name, leaves(arrays), lambda o, g=g: np.array(g(o), order="C")))


@pytest.mark.parametrize("name", NAMES)
def test_every_path_gives_the_same(name):
    arrays = example(name)
    values, slopes = run(name, leaves(arrays))
    with fused("never"):
        close(run(name, leaves(arrays)), (values, slopes))
    with detect_anomaly():
        close(run(name, leaves(arrays)), (values, slopes))
    with no_grad():
        outs = outputs_of(find(name)(**leaves(arrays)))
        assert not any(out.requires_grad for out in outs)
        close([[out.numpy() for out in outs]], [values])
    for i, slope in enumerate(slopes):  # one input alone needs a gradient
        tensors = leaves(arrays)
        for j, t in enumerate([t for t in _tensors(tensors) if t.requires_grad]):
            t.requires_grad_(i == j)
        if any(out.requires_grad for out in outputs_of(find(name)(**tensors))):
            close(run(name, tensors)[1:], [[slope]])


@pytest.mark.parametrize("name", NAMES)
def test_float32_stays_float32_and_near(name):
    arrays = {k: a.astype(np.float32) if isinstance(a, np.ndarray) and a.dtype.kind == "f" else a
              for k, a in example(name).items()}
    for options in ({}, {"return_weights": True}) if name in WEIGHTS else ({},):
        with capture() as seen:
            narrow = run(name, leaves(arrays, np.float32), **options)
        wide = run(name, leaves(arrays), **options)
        assert {t.dtype for _, t in seen.taps if t.dtype.kind == "f"} == {np.dtype(np.float32)}
        assert {x.dtype for x in narrow[0]} == {np.dtype(np.float32)}
        for x, y in zip(narrow[0] + narrow[1], wide[0] + wide[1], strict=True):
            np.testing.assert_allclose(x, y, atol=1e-5 * max(1.0, np.abs(y).max(initial=0)))


@pytest.mark.parametrize("name", NAMES)
def test_large_and_small_numbers(name):
    arrays = example(name)
    floats = [k for k, a in arrays.items() if isinstance(a, np.ndarray) and a.dtype.kind == "f"]
    for argument in [k for k in floats if (name, k) not in (("ntm", "g"), ("ntm", "gamma"))]:
        for scale in (1e4, 1e-30):
            for kind in (np.float32, np.float64):
                for part in run(name, leaves({**arrays, argument: arrays[argument] * scale}, kind)):
                    assert all(np.isfinite(x).all() for x in part), (argument, scale)


@pytest.mark.parametrize("name", [n for n in NAMES if {"q", "k", "v"} <= {*find(n).arguments}
                                  and "x" not in find(n).arguments])
def test_one_tensor_for_several_arguments(name):
    arrays = example(name)
    if arrays["q"].shape[-1] == arrays["k"].shape[-1] and name != "memory":  # which maps its values, of another width
        x = np.random.default_rng(1).normal(size=arrays["k"].shape)
        apart = leaves({**arrays, "q": x[:, :arrays["q"].shape[1]], "k": x, "v": x})
        together = leaves(arrays)
        x = Tensor(x, requires_grad=True)
        values, slopes = run(name, apart)
        together.update(q=x[:, :arrays["q"].shape[1]], k=x, v=x)
        outs = outputs_of(find(name)(**together))
        g = [Tensor(np.random.default_rng(o.size).normal(size=o.shape)) for o in outs]
        found = grad(outs, [x], g)[0].numpy()
        at = {id(t): s for t, s in zip([t for t in _tensors(apart) if t.requires_grad], slopes, strict=True)}
        wanted = at[id(apart["k"])] + at[id(apart["v"])]
        wanted[:, :arrays["q"].shape[1]] += at[id(apart["q"])]
        close([[o.numpy() for o in outs], [found]], [values, [wanted]])


# ---------------------------------------------------------------------------------------------------------------------
# nothing, and one alone
# ---------------------------------------------------------------------------------------------------------------------
def samples(name, arrays, begin, end):
    """The example cut to some elements of its batch: what is learned stays."""
    learned = {*find(name).letters(), *(("p", "c") if name in ("dme", "cdme") else ())}

    def cut(a):
        if isinstance(a, list):
            return [cut(x) for x in a]
        return a[begin:end] if isinstance(a, np.ndarray) and a.ndim else a

    return {k: a if k in learned else cut(a) for k, a in arrays.items()}


@pytest.mark.parametrize("name", NAMES)
def test_no_batch_and_each_sample_alone(name):
    arrays = example(name)
    values, _ = run(name, leaves(arrays))
    for options in ({}, {"return_weights": True}) if name in WEIGHTS else ({},):
        for mode in ("auto", "never"):
            with fused(mode):
                empty, slopes = run(name, leaves(samples(name, arrays, 0, 0)), **options)
            assert all(x.shape[0] == 0 for x in empty) and all(np.isfinite(s).all() for s in slopes)
    for b in range(len(values[0]) if name != "hard" else 1):  # what `hard` draws depends on the place in the batch
        alone, _ = run(name, leaves(samples(name, arrays, b, b + 1)))
        close([alone], [[x[b:b + 1] for x in values]])


@pytest.mark.parametrize("name", MASKED)
def test_nothing_allowed_on_every_path(name):
    arrays = example(name)
    for options in ({}, {"return_weights": True}) if name in WEIGHTS else ({},):
        for mode in ("auto", "never"):
            with fused(mode), capture() as seen:
                values, slopes = run(name, leaves({**arrays, "mask": np.zeros_like(arrays["mask"])}), **options)
            assert all(np.isfinite(x).all() for x in values + slopes)
            assert all((w.numpy() == 0).all() for w in seen["weights"])
            assert not find(name).empty or not values[0].any()


@pytest.mark.parametrize(("name", "data", "width"), [("encoder_decoder", ["y"], 4), ("input_feeding", ["y"], 2),
                                                     ("pointer_generator", ["q", "x", "logits"], 6)])
def test_no_step(name, data, width):
    arrays = example(name)
    outs = outputs_of(find(name)(**leaves({**arrays, **{k: arrays[k][:, :0] for k in data}}), return_weights=True))
    assert outs[0].shape == (2, 0, width) and outs[-1].shape == (2, 0, 4)


def test_the_twin_of_a_chain_sends_nothing_into_padding_however_large():
    u, w = np.random.default_rng(0).normal(size=(3, 4, 2)) * 1e4, np.zeros((2, 2))
    found = []
    for mode in ("auto", "never"):
        inputs = Tensor(u, requires_grad=True), Tensor(w, requires_grad=True)
        with fused(mode):
            p, logz = LinearChain()(*inputs, Tensor(np.array([4, 0, 1])))
        found.append([x.numpy() for x in grad([p, logz], inputs, [Tensor(np.ones(p.shape)), Tensor(np.ones(3))])])
    close([found[0]], [found[1]])


# ---------------------------------------------------------------------------------------------------------------------
# files of one's own
# ---------------------------------------------------------------------------------------------------------------------
HEAD = "import numpy as np\nfrom tinyattn.attention.core import variant, weigh\n"
MECHANISM = "@variant()\ndef f(q, k, v, mask=None):\n    return weigh(q @ k.transpose(), v, mask)\n"
EXAMPLE = ("def example(rng):\n    return {'q': rng.normal(size=(2, 3, 4)), 'k': rng.normal(size=(2, 5, 4)), "
           "'v': rng.normal(size=(2, 5, 2)), 'mask': np.arange(5) < np.array([5, 3])[:, None, None]}\n")


def returns(what):
    return HEAD + MECHANISM.replace("weigh(q @ k.transpose(), v, mask)", what) + EXAMPLE


@pytest.mark.parametrize(("command", "text", "code", "said"), [
    ("explain", "def f(:\n", 2, "cannot be run: SyntaxError"),
    ("explain", "raise KeyError('a\\nb')\n", 2, "cannot be run: line 1: KeyError"),
    ("explain", "import sys\nsys.exit(0)\n", 2, "cannot be run: line 2: SystemExit"),
    ("explain", "", 2, "defines no mechanism"),
    ("explain", HEAD + MECHANISM.replace("()", "(params={'w': 5})", 1), 2,
     "line 3: TypeError: variant f: expected params"),
    ("explain", HEAD + MECHANISM.replace("()", "(keys=('z',))", 1), 2,
     "line 3: ValueError: variant f: expected params and keys"),
    ("check", HEAD + MECHANISM, 2, "expected `example(rng)`"),
    ("check", HEAD + MECHANISM + "example = 5\n", 2, "TypeError"),
    ("check", HEAD + MECHANISM + "def example(rng):\n    return [1]\n", 2, "to give a dictionary"),
    ("check", HEAD + MECHANISM + "def example(rng):\n    return {}['x']\n", 2, "fails: line 7: KeyError"),
    ("check", HEAD + MECHANISM + "def example(rng):\n    return {'z': rng.normal(size=3)}\n", 2,
     "unexpected keyword argument 'z'"),
    ("check", returns("None"), 1, "got NoneType"), ("check", returns("()"), 1, "got tuple"),
    ("check", returns("q.sum()"), 1, "got shape ()"),
    ("check", returns("1 / 0"), 2, "fails: line 5: ZeroDivisionError"),
    ("check", returns("(weigh(q @ k.transpose(), v, mask), None)"), 0, "passed"),
    ("check", HEAD + MECHANISM + EXAMPLE + "def reference(q, k, v, mask):\n    pass\n", 1, "shapes are"),
    ("check", HEAD + MECHANISM + EXAMPLE + "def reference(q):\n    pass\n", 2, "unexpected keyword argument"),
    ("graph", HEAD + MECHANISM, 2, "expected `example(rng)`"), ("graph", returns("None"), 2, "no graph"),
    ("graph", returns("qq"), 2, "fails: line 5: NameError"), ("gallery", returns("qq"), 2, "fails: line 5: NameError"),
    ("gallery", returns("None"), 0, "no Tensor with a gradient"),
    ("gallery", HEAD + MECHANISM, 0, "mine.py has no example"),
    ("gallery", HEAD + MECHANISM + EXAMPLE + "def labels():\n    return 5\n", 2, "fails: TypeError")])
def test_a_file_that_is_not_what_it_should_be(command, text, code, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(text)
    more = {"graph": ["-o", "x.dot"], "gallery": ["-o", "here"]}.get(command, [])
    assert cli.main([command, "mine.py", *more]) == code
    found = capsys.readouterr()
    assert said in found.out + found.err and "fault of ours" not in found.err
    assert code != 2 or len(found.err.strip().splitlines()) == 1


@pytest.mark.parametrize("name", ["dot", "additive"])
def test_a_mechanism_of_ones_own_may_have_the_name_of_another(name, tmp_path):
    (tmp_path / "mine.py").write_text(HEAD + MECHANISM.replace("def f", f"def {name}"))
    mine = find(f"{tmp_path / 'mine.py'}:{name}")
    assert find(name) is not mine and find(name) is table()[name] and find(name).part("scores")


def test_two_pages_of_one_name(tmp_path, capsys):
    for file in ("a.py", "b.py"):
        (tmp_path / file).write_text(HEAD + MECHANISM + EXAMPLE)
    assert cli.main(["gallery", str(tmp_path / "a.py"), str(tmp_path / "b.py"), "-o", str(tmp_path / "here")]) == 2
    assert "two named f" in capsys.readouterr().err


def test_an_example_too_large_for_float32_is_drawn_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isinf(leaves(np.array([1e200]), np.float32).numpy()).all()
