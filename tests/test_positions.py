"""Positions: sinusoids, a learned table, relative vectors, rotations, biases, distances. What makes each itself."""
import tracemalloc

import numpy as np
import pytest

from tinyattn import Tensor, grad
from tinyattn.attention import find, mask
from tinyattn.attention.alibi import slopes
from tinyattn.attention.heads import attend, output, project
from tinyattn.attention.properties import leaves
from tinyattn.attention.rope import PAIRINGS, rotate
from tinyattn.attention.shaw import distances
from tinyattn.attention.sinusoid import LAYOUTS, encode
from tinyattn.autograd import capture
from tinyattn.ops.broadcast import ShapeError


def close(a, b, tolerance=1e-10):
    a, b = (x.numpy() if isinstance(x, Tensor) else np.asarray(x) for x in (a, b))
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def same(first, second):
    """Two pairs (output, weights)."""
    for a, b in zip(first, second, strict=True):
        close(a, b, 1e-12)


def example(name, **changes):
    """The mechanism and its example as Tensors, without a mask unless one is given."""
    arrays = find(name).part("example")(np.random.default_rng(0))
    return find(name), leaves({**{k: a for k, a in arrays.items() if k != "mask"}, **changes})


def words(name, B, T, seed=1):
    D = find(name).part("example")(np.random.default_rng(0))["x"].shape[2]
    return np.random.default_rng(seed).normal(size=(B, T, D))


def plain(arrays, **options):
    """Multi-head attention with the same four matrices."""
    return find("multi_head")(*(arrays[n] for n in ("x", "w_q", "w_k", "w_v", "w_o")), heads=arrays["heads"], **options)


# ---------------------------------------------------------------------------------------------------------------------
# sinusoids
# ---------------------------------------------------------------------------------------------------------------------
def test_numbers_of_the_paper():
    """Position 1, width 4, and position 0: sine 0, cosine 1."""
    close(encode(2, 4), [[0, 1, 0, 1], [0.84147098, 0.54030231, 0.0099998333, 0.99995000]], 1e-8)
    close(encode(2, 4, "halves")[1], [0.84147098, 0.0099998333, 0.54030231, 0.99995000], 1e-8)
    close(encode(2, 4, "tensor2tensor")[1], [0.84147098, 1e-4, 0.54030231, 1 - 5e-9], 1e-8)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("width", [1, 2, 3, 4, 5, 6, 7, 8])
def test_every_layout_and_width_number_by_number(layout, width):
    code = encode(6, width, layout, start=3)
    assert code.shape == (6, width)
    sines, pairs = (width + 1) // 2, width // 2
    for t in range(6):
        for c in range(width):
            if layout == "interleaved":
                i, cosine = c // 2, c % 2 == 1
            else:
                first = sines if layout == "halves" else pairs
                i, cosine = (c, False) if c < first else (c - first, True)
            power = 2 * i / width if layout != "tensor2tensor" else i / max(pairs - 1, 1)
            angle = (t + 3) / 10000 ** power
            expected = np.cos(angle) if cosine else np.sin(angle)
            if layout == "tensor2tensor" and c == 2 * pairs:  # the odd column
                expected = 0
            assert code[t, c] == pytest.approx(expected, abs=1e-12), (t, c)


def test_layouts_hold_the_same_waves_and_products_depend_on_distance():
    turned = encode(20, 6)
    np.testing.assert_array_equal(encode(20, 6, "halves"), turned[:, [0, 2, 4, 1, 3, 5]])
    for layout in LAYOUTS:
        code = encode(20, 6, layout)
        products = code @ code.T
        for n in range(5):
            close(np.diagonal(products, n), np.full(20 - n, products[0, n]))
        assert (np.diagonal(products, 1) < np.diagonal(products)[1:]).all()
    close(encode(5, 6, start=7), encode(12, 6)[7:])
    assert encode(0, 3).shape == (0, 3)


@pytest.mark.parametrize("name", ["sinusoid", "learned_positions"])
def test_positions_are_added_to_the_words(name):
    function, arrays = example(name)
    code = Tensor(encode(*arrays["x"].shape[1:])) if name == "sinusoid" else arrays["table"][:arrays["x"].shape[1]]
    rest = {k: arrays[k] for k in ("w_q", "w_k", "w_v")}
    with capture() as seen:
        close(function(**arrays), find("self_attention")(arrays["x"] + code, **rest))
    close(*seen["weights"][:1], function(**arrays, return_weights=True)[1])
    x = words(name, 1, 4)  # words that change places no longer change the answer's places alone
    turn = [2, 0, 3, 1]
    moved = function(**{**arrays, "x": Tensor(x[:, turn])}).numpy()
    assert not np.allclose(moved, function(**{**arrays, "x": Tensor(x)}).numpy()[:, turn])


def test_the_example_of_sinusoids_shows_each_word_looking_around_itself():
    function, arrays = example("sinusoid")
    w = function(**arrays, return_weights=True)[1].numpy()
    near = np.abs(np.arange(5)[:, None] - np.arange(5)) <= 1
    assert (np.where(near, w, 0).sum(-1) > near.sum(-1) / 5).all() and np.where(near, w, 0).sum(-1).mean() > 0.75


def test_a_table_of_positions_ends():
    function, arrays = example("learned_positions")
    x = Tensor(words("learned_positions", 1, 7))
    with pytest.raises(ValueError, match="learned_positions: expected places within 0 .. N - 1 = 5, got 0 .. 6"):
        function(**{**arrays, "x": x})
    (g,) = grad(function(**arrays).sum(), arrays["table"])
    assert g.numpy()[:4].any(1).all() and not g.numpy()[4:].any()


# ---------------------------------------------------------------------------------------------------------------------
# Shaw's relative vectors
# ---------------------------------------------------------------------------------------------------------------------
def test_distances_by_hand():
    assert distances(4, 5).tolist() == [[2, 3, 4, 4], [1, 2, 3, 4], [0, 1, 2, 3], [0, 0, 1, 2]]
    assert distances(3, 1).tolist() == [[0] * 3] * 3


def test_zero_tables_are_plain_attention():
    function, arrays = example("shaw", a_k=np.zeros((5, 3)), a_v=np.zeros((5, 1)))
    for options in ({}, {"mask": mask.causal(5)}, {"mask": mask.from_lengths([5, 2])}):
        same(function(**arrays, **options, return_weights=True), plain(arrays, **options, return_weights=True))
        close(function(**{**arrays, "a_k": None, "a_v": None}, **options), plain(arrays, **options), 1e-12)


def test_a_table_longer_than_the_sentence_is_not_clipped():
    """n >= T - 1: rows beyond the sentence's distances are not read. n = T - 2: the ends share a row, and it shows."""
    rng = np.random.default_rng(0)
    big_k, big_v = rng.normal(size=(21, 3)), rng.normal(size=(21, 1))      # n = 10

    def cut(n):
        return example("shaw", a_k=big_k[10 - n:11 + n], a_v=big_v[10 - n:11 + n])

    unclipped = cut(10)[0](**cut(10)[1])
    for n in (4, 7):
        close(cut(n)[0](**cut(n)[1]), unclipped, 1e-13)
    assert not np.allclose(cut(3)[0](**cut(3)[1]).numpy(), unclipped.numpy())


def test_the_sign_and_each_half_of_the_tables():
    """Only the row to the right, 1 (and farther: n = 1), is large: each word but the last looks to the right. With
    values alone, as the survey prints it, all weights stay equal and the row adds its share."""
    x = Tensor(np.ones((1, 3, 1)))
    w = {k: Tensor(np.eye(1)) for k in ("w_q", "w_k", "w_v", "w_o")}
    a = np.zeros((3, 1))
    a[2] = 50
    _, weights = find("shaw")(x, **w, a_k=Tensor(a), a_v=None, heads=1, return_weights=True)
    close(weights.numpy()[0, 0], [[0, 1 / 2, 1 / 2], [0, 0, 1], [1 / 3, 1 / 3, 1 / 3]])
    values, weights = find("shaw")(x, **w, a_k=None, a_v=Tensor(a), heads=1, return_weights=True)
    close(weights, np.full((1, 1, 3, 3), 1 / 3))
    close(values.numpy().ravel(), [1 + 100 / 3, 1 + 50 / 3, 1])


def test_no_vector_for_each_pair_is_in_memory():
    """T = 128, d = 128, 4 heads: T x T x d would be 17 MB in float64, 67 MB with heads; the scores are 0.5 MB."""
    rng = np.random.default_rng(0)
    arrays = {"x": rng.normal(size=(1, 128, 8)), **{n: rng.normal(size=(512, 8)) for n in ("w_q", "w_k", "w_v")},
              "w_o": rng.normal(size=(8, 512)), "a_k": rng.normal(size=(17, 128)), "a_v": rng.normal(size=(17, 128)),
              "heads": 4}
    arrays = leaves(arrays)
    find("shaw")(**arrays).sum().backward()
    tracemalloc.start()
    find("shaw")(**arrays).sum()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 128 * 128 * 128 * 8 / 2


# ---------------------------------------------------------------------------------------------------------------------
# rotations
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("pairing", PAIRINGS)
def test_rotations_by_hand(pairing):
    """Width 4 at place 3: pair 0 turns by 3, pair 1 by 0.03."""
    x = np.array([[1.0, 2.0, 3.0, 4.0]])
    pairs = [(0, 1), (2, 3)] if pairing == "interleaved" else [(0, 2), (1, 3)]
    expected = x.copy()
    for (a, b), angle in zip(pairs, (3, 0.03), strict=True):
        c, s = np.cos(angle), np.sin(angle)
        expected[0, a], expected[0, b] = x[0, a] * c - x[0, b] * s, x[0, a] * s + x[0, b] * c
    close(rotate(Tensor(x), 3, pairing), expected, 1e-13)
    close(rotate(Tensor(x), 0, pairing), x, 1e-15)
    back = rotate(rotate(Tensor(x), 5, pairing), -5, pairing)
    close(back, x, 1e-13)
    close(np.linalg.norm(rotate(Tensor(x), 9, pairing).numpy()), np.linalg.norm(x), 1e-13)


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_scores_depend_on_distance_alone(pairing):
    rng = np.random.default_rng(0)
    q, k = np.tile(rng.normal(size=6), (8, 1)), np.tile(rng.normal(size=6), (8, 1))
    scores = (rotate(Tensor(q), 2, pairing) @ rotate(Tensor(k), 2, pairing).transpose()).numpy()
    for n in range(-7, 8):
        close(np.diagonal(scores, n), np.full(8 - abs(n), np.diagonal(scores, n)[0]), 1e-12)
    assert not np.allclose(np.diagonal(scores, 1)[0], np.diagonal(scores, -1)[0])  # which side matters
    function, arrays = example("rope")
    for options in ({}, {"causal": True}, {"return_weights": True}):
        first, later = (function(**arrays, pairing=pairing, start=start, **options) for start in (0, 1234))
        for a, b in zip(*((r if options.get("return_weights") else [r]) for r in (first, later)), strict=True):
            close(a, b, 1e-10)


def test_the_two_pairings_are_one_with_the_rows_reordered():
    function, arrays = example("rope")
    order = np.concatenate([[0, 2, 1, 3], [4, 6, 5, 7]])  # of two heads of width 4
    moved = {n: Tensor(arrays[n].numpy()[order]) if n in ("w_q", "w_k") else a for n, a in arrays.items()}
    close(function(**moved, pairing="halves"), function(**arrays), 1e-12)
    assert not np.allclose(function(**arrays, pairing="halves").numpy(), function(**arrays).numpy())


def test_values_are_not_turned_and_the_first_word_alone_is_plain():
    function, arrays = example("rope")
    one = {**arrays, "x": Tensor(words("rope", 2, 1))}
    close(function(**one, start=77), plain(one), 1e-12)
    close(function(**arrays, base=1e300).numpy()[:, :1], function(**arrays, base=1e300, causal=False).numpy()[:, :1])


# ---------------------------------------------------------------------------------------------------------------------
# biases
# ---------------------------------------------------------------------------------------------------------------------
def test_slopes():
    assert slopes(1) == [2.0 ** -8] and slopes(2) == [2.0 ** -4, 2.0 ** -8]
    assert slopes(8) == [2.0 ** -i for i in range(1, 9)]
    assert slopes(16) == [2.0 ** (-i / 2) for i in range(1, 17)]
    assert slopes(3) == [2.0 ** -4, 2.0 ** -8, 2.0 ** -2]
    assert slopes(12) == slopes(8) + [2.0 ** -(i + 0.5) for i in range(4)]
    for heads in range(1, 40):
        assert len(slopes(heads)) == len(set(slopes(heads))) == heads and all(0 < m < 1 for m in slopes(heads))


@pytest.mark.parametrize("name", ["alibi", "rope", "shaw", "distance"])
def test_words_before_that_are_masked_change_nothing(name):
    """Shift by three: the same words behind three that nobody may attend to."""
    function, arrays = example(name)
    options = {"causal": True} if name == "rope" else {}
    x = words(name, 2, 5)
    late = np.concatenate([words(name, 2, 3, 9), x], axis=1)
    hidden = np.ones((1, 1, 8), bool)
    hidden[..., :3] = False
    here = function(**{**arrays, "x": Tensor(x)}, return_weights=True, **options)
    there = function(**{**arrays, "x": Tensor(late)}, mask=Tensor(hidden), return_weights=True, **options)
    close(there[0].numpy()[:, 3:], here[0], 1e-11)
    close(there[1].numpy()[:, :, 3:, 3:], here[1], 1e-11)


def test_alibi_is_the_authors_form_too():
    """Their code adds m_h j, without the i: the same weights. With distance alone, weights fall by e^m a step."""
    function, arrays = example("alibi")
    q, k, v, _ = project("alibi", *(arrays[n] for n in ("x", "w_q", "w_k", "w_v")), arrays["heads"])
    bias = Tensor(np.multiply.outer(slopes(3), np.arange(5.0))[:, None])   # (H, 1, S)
    for wanted in (False, True):
        theirs = output("alibi", *attend(q, k, v, None, True, bias, wanted), arrays["w_o"])
        ours = function(**arrays, return_weights=wanted)
        for a, b in zip(*((r if wanted else [r]) for r in (ours, theirs)), strict=True):
            close(a, b, 1e-12)
    w = function(**{**arrays, "x": Tensor(np.zeros((1, 5, 4)))}, return_weights=True)[1].numpy()[0]
    for h, m in enumerate(slopes(3)):
        close(w[h, 4, 1:] / w[h, 4, :-1], np.full(4, np.exp(m)))
        assert not np.triu(w[h], 1).any()


def test_distance_directions_and_the_limits_of_its_strength():
    function, arrays = example("distance", a=0.0)
    arrays["a"] = 0.0
    T = 5
    for direction, seen in [("forward", mask.forward(T)), ("backward", mask.backward(T)), ("both", mask.diagonal(T)),
                            (None, None)]:
        same(function(**arrays, direction=direction, return_weights=True),
             plain(arrays, mask=seen, return_weights=True))
    near = function(**{**arrays, "a": 1e3}, return_weights=True)[1].numpy()
    close(near, np.broadcast_to(np.eye(5, k=-1), near.shape))              # nothing but the word before
    with capture() as seen:
        function(**arrays)
    assert not seen["weights"][0].numpy()[:, :, 0].any()                   # the first word sees nothing
    padding = mask.from_lengths([5, 3])
    both = plain(arrays, mask=padding & mask.backward(T))
    close(function(**arrays, mask=padding, direction="backward"), both, 1e-12)
    assert not both.numpy()[1, 2:].any()


def test_the_strength_of_distance_learns_on_both_paths():
    function, arrays = example("distance")
    g = Tensor(np.random.default_rng(0).normal(size=(2, 5, 3)))
    outs = function(**arrays), function(**arrays, return_weights=True)[0]
    fused, composed = (grad(out, arrays["a"], g)[0] for out in outs)
    assert fused.shape == () and abs(fused.item()) > 1e-3
    close(fused, composed)


# ---------------------------------------------------------------------------------------------------------------------
# what is refused
# ---------------------------------------------------------------------------------------------------------------------
def test_errors():
    bad = [(lambda: encode(3, 0), "sinusoid: expected a length .* width of at least 1, got 3 and 0"),
           (lambda: encode(-1, 2), "sinusoid: expected"),
           (lambda: encode(3, 2, "turned"),
            "sinusoid: expected layout to be one of interleaved, halves, tensor2tensor, got 'turned'"),
           (lambda: rotate(Tensor(np.ones((2, 3)))), r"rope: expected heads \(..., T, d\) of even width d, got .2, 3."),
           (lambda: rotate(Tensor(np.ones((2, 4))), 0, "odd"), "rope: expected pairing to be one of interleaved,"),
           (lambda: rotate(Tensor(np.ones((2, 4))), base=0), "rope: expected a base above 0")]
    shaw, arrays = example("shaw")
    bad += [(lambda: shaw(**{**arrays, "a_k": Tensor(np.ones((4, 3)))}),
             r"shaw: expected a_k to have 2n \+ 1 rows .* 3, got \(4, 3\)"),
            (lambda: shaw(**{**arrays, "a_v": Tensor(np.ones((5, 3)))}), "shaw: expected a_v to .* width of a head, 1")]
    distance, given = example("distance")
    bad += [(lambda: distance(**given, direction="up"),
             "distance: expected direction to be one of forward, backward, both, None, got 'up'"),
            (lambda: distance(**{**given, "a": Tensor(np.ones(2))}), "distance: expected a to be one number, got")]
    for call, message in bad:
        with pytest.raises(ValueError, match=message):
            call()
    assert issubclass(ShapeError, ValueError)
