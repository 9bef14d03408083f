"""Still pictures of attention: lines between sentences, tinted text, hops over a story, the penalty of structured
self-attention, positions, masks, panels of an example. Read from what is drawn, not from pixels."""
import re

import numpy as np
import pytest

pytest.importorskip("matplotlib")
from matplotlib.colors import to_rgb  # noqa: E402

from tinyattn import Tensor  # noqa: E402
from tinyattn.attention import find, mask, table  # noqa: E402
from tinyattn.attention.sinusoid import encode  # noqa: E402
from tinyattn.attention.structured_self import penalty as penalty_of  # noqa: E402
from tinyattn.cli import main  # noqa: E402
from tinyattn.errors import InputError  # noqa: E402
from viz import example_panels, hops, lines, masks, panels, penalty, positions, tinted  # noqa: E402
from viz.attention.masks import KINDS as MASK_KINDS  # noqa: E402
from viz.attention.positions import KINDS  # noqa: E402
from viz.attention.positions import number as digits  # noqa: E402
from viz.plot import quiet  # noqa: E402

NASTY = ["<pad>", "the", "$x_1$", "the", "a\\b", "日本"]


def sure(rng, *shape):
    e = np.exp(2 * rng.normal(size=shape))
    return e / e.sum(-1, keepdims=True)


def drawn(fig, pattern):
    """{gid: artist} of what was drawn under a name that the pattern fits."""
    return {a.get_gid(): a for a in fig.findobj(lambda a: bool(a.get_gid() and re.fullmatch(pattern, a.get_gid())))}


def texts(thing):
    from matplotlib.text import Text
    return [t.get_text() for t in thing.findobj(Text) if t.get_text()]


def darkness(colour):
    return 3 - sum(to_rgb(colour))


def overlapping(fig, found=None):
    """Pairs of texts that lie on each other."""
    from matplotlib.text import Text
    with quiet():
        fig.canvas.draw()
    found = [t for t in fig.findobj(Text) if t.get_text() and t.get_visible()] if found is None else found
    boxes = [(t.get_text(), t.get_window_extent()) for t in found]
    return [(a, b) for i, (a, x) in enumerate(boxes) for b, y in boxes[:i]
            if min(x.x1, y.x1) - max(x.x0, y.x0) > 1 and min(x.y1, y.y1) - max(x.y0, y.y0) > 1]


# ---------------------------------------------------------------------------------------------------------------------
# lines
# ---------------------------------------------------------------------------------------------------------------------
def test_a_line_joins_its_query_and_key_and_grows_with_its_weight():
    w = np.array([[0.7, 0.1, 0.2], [0.04, 0.9, 0.06]])
    fig = lines(w, ["the", "the"], ["le", "<pad>", "le"], "layer 1", gold=[(1, 2)])
    found = drawn(fig, r"line-\d+-\d+")
    assert set(found) == {"line-0-0", "line-0-1", "line-0-2", "line-1-1", "line-1-2"}  # 0.04 is under 0.05
    for gid, line in found.items():
        t, s = map(int, gid.split("-")[1:])
        assert list(line.get_xdata()) == [0, 1] and list(line.get_ydata()) == [t, s]
        assert line.get_linestyle() == "-"
    order = sorted(found, key=lambda gid: w[tuple(map(int, gid.split("-")[1:]))])
    for low, high in zip(order, order[1:], strict=False):
        assert found[low].get_linewidth() < found[high].get_linewidth()
        assert darkness(found[low].get_color()) < darkness(found[high].get_color())
    (gold,) = drawn(fig, r"gold-.*").values()
    assert list(gold.get_ydata()) == [1, 2] and gold.is_dashed() and to_rgb(gold.get_color())[0] > 0.8
    assert "weights under 0.05 are not drawn: 1 of 6, 2 % of all weight" in texts(fig) and "layer 1" in texts(fig)


def test_tokens_stand_in_their_rows_on_their_sides(rng):
    fig = lines(sure(rng, 6, 3), NASTY, ["a", "", "a"])
    at = {(t.get_position()[0] > 0.5, t.get_position()[1]): t.get_text() for t in fig.axes[0].texts}
    assert [at[False, row] for row in range(6)] == NASTY and [at[True, row] for row in range(3)] == ["a", "∅", "a"]
    assert at[False, -1] == "query" and at[True, -1] == "key"
    assert not any(t.get_parse_math() for t in fig.axes[0].texts) and not overlapping(fig, fig.axes[0].texts)


def test_heads_are_pictures_of_their_own(rng):
    w = sure(rng, 3, 4, 4)
    fig = lines(Tensor(w), NASTY[:4], NASTY[:4], "self-attention, layer 2", least=0)
    assert len(fig.axes) == 3
    for h, axes in enumerate(fig.axes):
        assert f"head {h + 1}" in texts(axes)
        thick = {line.get_gid(): line.get_linewidth() for line in axes.lines}
        assert len(thick) == 16 and max(thick, key=thick.get) == "line-{}-{}-{}".format(
            *np.unravel_index(w[h].argmax(), (4, 4)), h + 1)
    assert not overlapping(fig)


def test_one_token_and_nothing_above_the_bound():
    assert list(drawn(lines([[1.0]], ["a"], ["b"]), "line.*")) == ["line-0-0"]
    fig = lines(np.full((1, 30), 1 / 30), ["a"], [str(i) for i in range(30)])
    assert not drawn(fig, "line.*") and "weights under 0.05 are not drawn: 30 of 30, 100 % of all weight" in texts(fig)
    assert "weights under 0.05 are not drawn: 1 of 1" in texts(lines([[0.0]], ["a"], ["b"]))


# ---------------------------------------------------------------------------------------------------------------------
# tinted text
# ---------------------------------------------------------------------------------------------------------------------
DOCUMENT = [(["the", "cat", "sat"], [0.1, 0.7, 0.2], 0.8),
            (["<pad>", "the", "$x$", "end"], [0.25, 0.5, 0.25, 0.0], 0.2)]


def test_tint_and_line_below_grow_with_the_weight():
    fig = tinted(DOCUMENT, "label: cats")
    boxes, under = drawn(fig, r"word-\d+-\d+"), drawn(fig, r"under-word-\d+-\d+")
    assert len(boxes) == 7 and len(under) == 6  # a weight of 0 has no line
    flat = {f"word-{n}-{i}": w for n, (_, ws, _) in enumerate(DOCUMENT) for i, w in enumerate(ws)}
    for a, x in flat.items():
        for b, y in flat.items():
            if x < y:
                assert darkness(boxes[a].get_facecolor()[:3]) < darkness(boxes[b].get_facecolor()[:3])
                assert x == 0 or under[f"under-{a}"].get_height() < under[f"under-{b}"].get_height()
    bars = drawn(fig, r"sentence-\d")
    assert bars["sentence-0"].get_width() == pytest.approx(4 * bars["sentence-1"].get_width())
    assert {"0.80", "0.20", "label: cats", "weight of the word"} <= set(texts(fig))


def test_words_stand_on_their_boxes_in_reading_order():
    words = [f"word{i}" for i in range(60)]
    fig = tinted([(words, np.full(60, 1 / 60)), (["the", "the"], [0.5, 0.5])])
    boxes = drawn(fig, r"word-\d+-\d+")
    at = [boxes[f"word-0-{i}"] for i in range(60)]
    places = [(round(b.get_y(), 6), b.get_x()) for b in at]
    assert places == sorted(places) and len({y for y, _ in places}) > 3
    assert all(b.get_x() + b.get_width() <= 9.0 + 1e-9 for b in at)
    for (y, x), (below, after), box in zip(places, places[1:], at, strict=False):
        assert below > y or after >= x + box.get_width()
    assert boxes["word-1-0"].get_y() > boxes["word-0-59"].get_y()  # a sentence begins a line
    fig.canvas.draw()
    (axes,) = fig.axes
    for i in (0, 17, 59):
        (text,) = [t for t in axes.texts if t.get_text() == words[i]]
        inside, box = text.get_window_extent(), at[i].get_window_extent()
        assert box.x0 <= inside.x0 and inside.x1 <= box.x1 and box.y0 <= inside.y0 and inside.y1 <= box.y1
    assert not overlapping(fig)


def test_the_product_with_the_weight_of_the_sentence():
    own, product = tinted(DOCUMENT), tinted(DOCUMENT, by="product")

    def shade(fig, gid):
        return darkness(drawn(fig, gid)[gid].get_facecolor()[:3])

    assert shade(own, "word-1-1") > shade(own, "word-0-2") and shade(product, "word-1-1") < shade(product, "word-0-2")
    assert "weight of the word times that of its sentence" in texts(product)
    with pytest.raises(InputError, match="needs the weight of each sentence"):
        tinted([DOCUMENT[0], DOCUMENT[1][:2]], by="product")


def test_frames_and_another_scale_are_said():
    fig = tinted([(NASTY, np.full(6, 0.1))], gold=[(0, 1)], asked=[(0, 4)], scale="own")
    boxes = drawn(fig, r"word-0-\d")
    assert boxes["word-0-1"].get_linestyle() != "-" and to_rgb(boxes["word-0-1"].get_edgecolor()[:3])[0] > 0.8
    assert to_rgb(boxes["word-0-4"].get_edgecolor()[:3]) == (0, 0, 0)
    assert "dashed frame: the right place to look (gold); black frame: the word that asks" in texts(fig)
    assert "scale from 0 to 0.1, the largest weight here, not to 1" in texts(fig)
    assert darkness(boxes["word-0-0"].get_facecolor()[:3]) > 1.5  # the largest is darkest
    assert set(NASTY) <= set(texts(fig))
    assert not any(t.get_parse_math() for t in fig.axes[0].texts if t.get_text() in NASTY)


# ---------------------------------------------------------------------------------------------------------------------
# hops
# ---------------------------------------------------------------------------------------------------------------------
STORY = ["Sam walks into the kitchen", "Sam takes the apple", "Sam takes the apple", ["it", "$5$", "<s>"]]


def test_each_hop_is_a_column_with_a_mark_at_its_maximum():
    w = np.array([[0.1, 0.2, 0.6, 0.1], [0.9, 0.0, 0.1, 0.0], [0.0, 0.0, 0.0, 0.0]])
    fig = hops(w, STORY, "where is the apple? kitchen", gold=[(0, 0), (1, 0), (0, 2)])
    cells = drawn(fig, r"cell-\d-\d")
    assert len(cells) == 12
    left, top = [cells["cell-0-0"].get_x(), cells["cell-1-0"].get_x()], [cells[f"cell-0-{i}"].get_y() for i in range(4)]
    assert left == sorted(left) and top == sorted(top)
    assert set(drawn(fig, r"most-.*")) == {"most-cell-0-2", "most-cell-1-0"}  # a hop that looked at nothing has no mark
    (mark,) = drawn(fig, r"most-cell-0-2").values()
    box = cells["cell-0-2"]
    assert box.get_x() < mark.get_xdata()[0] < box.get_x() + box.get_width()
    assert box.get_y() < mark.get_ydata()[0] < box.get_y() + box.get_height()
    assert darkness(cells["cell-1-0"].get_facecolor()[:3]) > darkness(cells["cell-0-2"].get_facecolor()[:3])
    assert set(drawn(fig, r"gold-\d")) == {"gold-0", "gold-2"}
    said = texts(fig)
    assert {"hop 1", "hop 2", "hop 3", "where is the apple? kitchen", "it $5$ <s>", "0.90"} <= set(said)
    assert said.count("Sam takes the apple") == 2 and not overlapping(fig)
    rows = {t.get_text(): t.get_position()[1] for t in fig.axes[0].texts}
    assert top[0] < rows["Sam walks into the kitchen"] < top[1] < top[3] < rows["it $5$ <s>"]


def test_sums_are_written_where_they_are_not_1():
    axes = hops([[0.5, 0.5], [0.1, 0.02]], ["a", "b"]).axes[0]
    sums = {round(t.get_position()[0], 3): t.get_text() for t in axes.texts if t.get_position()[1] > 0.45 + 2.4 * 0.36}
    assert [sums[x] for x in sorted(sums)][1:] == ["sum", "1.00", "0.12"]
    assert "sum" not in texts(hops([[0.5, 0.5]], ["a", "b"]))


def test_hops_in_another_scale_and_alone():
    assert "each hop in a scale of its own: darkest is its largest weight, not 1" in texts(hops([[0.1, 0.2]], "ab",
                                                                                                scale="row"))
    assert len(drawn(hops([[1.0]], ["a"]), r"cell-.*")) == 1


# ---------------------------------------------------------------------------------------------------------------------
# the penalty
# ---------------------------------------------------------------------------------------------------------------------
def test_penalty_shows_a_its_overlaps_and_the_number_of_the_loss(rng):
    a = sure(rng, 3, 6)
    fig = penalty(a, tokens=NASTY, title="hops")
    images = [axes.images[0].get_array() for axes in fig.axes if axes.images and axes.get_label() != "<colorbar>"]
    np.testing.assert_allclose(images[0], a)
    np.testing.assert_allclose(images[1], [[a[i] @ a[j] for j in range(3)] for i in range(3)])
    np.testing.assert_allclose(images[2], images[1] - np.eye(3))
    (line,) = [t for t in texts(fig) if "‖" in t]
    said = float(re.search(r"= ([\d.]+)", line)[1])
    assert said == pytest.approx((images[2] ** 2).sum(), abs=6e-5)
    assert said == pytest.approx(penalty_of(Tensor(a)).item(), abs=6e-5)
    assert [t.get_text() for t in fig.axes[0].get_xticklabels()] == NASTY
    assert [t.get_text() for t in fig.axes[0].get_yticklabels()] == ["hop 1", "hop 2", "hop 3"]
    assert "= 0.0000" in " ".join(texts(penalty(np.eye(2)))) and not overlapping(fig)
    assert "A: each row sums to 1" in texts(fig) and "A: each row sums to 1" not in texts(penalty(a / 2))


# ---------------------------------------------------------------------------------------------------------------------
# positions
# ---------------------------------------------------------------------------------------------------------------------
def cells_of(fig):
    """The table of first values: [[text]] without its edges."""
    (found,) = [t for axes in fig.axes for t in axes.tables]
    cells = {at: cell.get_text().get_text() for at, cell in found.get_celld().items()}
    rows, columns = max(r for r, _ in cells), max(c for _, c in cells)
    return [[cells[r + 1, c] for c in range(columns + 1)] for r in range(rows)]


def test_the_table_of_sinusoids_has_the_numbers_of_the_books():
    assert cells_of(positions("sinusoid", 8, 4))[:2] == [["0", "1", "0", "1"],
                                                         ["0.84147", "0.54030", "0.0099998", "0.99995"]]
    assert cells_of(positions("sinusoid", 8, 4, layout="halves"))[1] == ["0.84147", "0.0099998", "0.54030", "0.99995"]
    assert cells_of(positions("rope", 8, 4))[1] == ["0.54030", "0.84147", "0.99995", "0.0099998"]
    assert cells_of(positions("memn2n", 2, 2)) == [["0.50000", "0.50000"], ["0.50000", "1"]]
    assert [digits(x) for x in (0.0, -1.0, 12.5, 1e-9, -0.25)] == ["0", "-1", "12.500", "1e-09", "-0.25000"]


@pytest.mark.parametrize("layout", ["interleaved", "halves", "tensor2tensor"])
def test_the_picture_of_a_code_is_the_code_its_curves_and_its_products(layout):
    fig, code = positions("sinusoid", 20, 8, layout=layout), encode(20, 8, layout)
    images = [axes.images[0].get_array() for axes in fig.axes if axes.images and axes.get_label() != "<colorbar>"]
    np.testing.assert_array_equal(images[0], code)
    np.testing.assert_allclose(images[1], code @ code.T)
    (curves,) = [axes for axes in fig.axes if len(axes.lines) > 1]
    for line in curves.lines:
        np.testing.assert_array_equal(line.get_ydata(), code[:, int(line.get_label().split()[1])])
    assert len({(line.get_linestyle(), line.get_marker()) for line in curves.lines}) == len(curves.lines)
    assert layout in texts(fig)[-1] or any(layout in t for t in texts(fig))


def maps_of(fig):
    return [axes for axes in fig.axes if axes.images and axes.get_label() != "<colorbar>"]


def test_what_alibi_and_distance_add_to_scores():
    fig = positions("alibi", 5, 2)
    for h, axes in enumerate(maps_of(fig)):
        slope, shown = (1 / 16, 1 / 256)[h], axes.images[0].get_array()
        for i in range(5):
            for j in range(5):
                assert shown.mask[i, j] == (j > i)
                assert j > i or shown[i, j] == pytest.approx(-slope * (i - j))
        assert axes.get_title(loc="left") == f"head {h + 1}, slope {slope:.4g}"
    for axes, seen in zip(maps_of(positions("distance", 4)), (mask.forward, mask.backward, mask.diagonal)):
        shown = axes.images[0].get_array()
        np.testing.assert_array_equal(~np.broadcast_to(shown.mask, (4, 4)), seen(4).numpy())
        assert all(shown[i, j] == -1.5 * abs(i - j) for i, j in np.argwhere(~shown.mask))
        assert len([p for p in axes.patches if p.get_hatch()]) == shown.mask.sum()


def test_shaw_clips_the_distance():
    (axes,) = maps_of(positions("shaw", 5, 2))
    np.testing.assert_array_equal(axes.images[0].get_array(),
                                  [[max(-2, min(2, j - i)) for j in range(5)] for i in range(5)])


def test_learned_positions_need_their_table(rng):
    learnt = rng.normal(size=(6, 3))
    np.testing.assert_array_equal(maps_of(positions("learned", table=Tensor(learnt)))[0].images[0].get_array(), learnt)
    with pytest.raises(InputError, match="no values before they are trained"):
        positions("learned")


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "learned"])
def test_every_kind_at_its_smallest_and_as_it_comes(kind):
    positions(kind, 1, 2 if kind == "rope" else 1)
    assert not overlapping(positions(kind))


# ---------------------------------------------------------------------------------------------------------------------
# masks
# ---------------------------------------------------------------------------------------------------------------------
def allowed(axes, shape):
    """What a picture of a mask says, read three ways: from its dots, its tints and its hatching."""
    dots, boxes, hatched = np.zeros(shape, bool), np.zeros(shape, bool), np.ones(shape, bool)
    for x, y in zip(*axes.lines[0].get_data()):
        dots[int(y), int(x)] = True
    for box in axes.patches:
        at = int(box.get_y() + 0.5), int(box.get_x() + 0.5)
        boxes[at] = box.get_gid().startswith("may")
        hatched[at] = not box.get_hatch()
    assert (dots == boxes).all() and (dots == hatched).all()
    return dots


def test_the_pictures_of_masks_are_the_masks():
    fig = masks(words=["a", "b", "a", "<pad>", "$"])
    found = dict(zip(MASK_KINDS, fig.axes))
    square = {"causal": mask.causal(5), "forward": mask.forward(5), "backward": mask.backward(5),
              "diagonal": mask.diagonal(5), "window": mask.window(5, before=1, after=1), "last": mask.causal(2, 5)}
    for kind, expected in square.items():
        np.testing.assert_array_equal(allowed(found[kind], expected.shape), expected.numpy())
    np.testing.assert_array_equal(allowed(found["lengths"], (3, 5)), mask.from_lengths([5, 3, 1]).numpy()[:, 0])
    both = mask.causal(5) & mask.from_lengths([3], 5)
    np.testing.assert_array_equal(allowed(found["both"], (5, 5)), both.numpy()[0])
    assert [t.get_text() for t in found["last"].get_yticklabels()] == ["<pad>", "$"]  # the last two of the five
    assert [t.get_text() for t in found["last"].get_xticklabels()] == ["a", "b", "a", "<pad>", "$"]
    (nothing,) = found["forward"].texts
    assert nothing.get_text() == "nothing" and nothing.get_position()[1] == 0
    assert not found["causal"].texts
    assert {"True = may be attended to", "True", "False"} <= set(texts(fig)) and not overlapping(fig)


def test_masks_of_short_and_long_sentences():
    for words in (["a"], ["a", "b"]):
        assert len(masks(words=words).axes) == len(MASK_KINDS)
    assert allowed(masks("causal", words=range(40)).axes[0], (40, 40)).sum() == 820


def test_masks_of_ones_own(rng):
    own = rng.random((3, 4)) > 0.5
    fig = masks({"mine $x$": own, "batch": np.ones((2, 1, 3), bool), "both": Tensor(np.tri(2, 2, dtype=bool)[None])})
    np.testing.assert_array_equal(allowed(fig.axes[0], (3, 4)), own)
    assert allowed(fig.axes[1], (2, 3)).all() and allowed(fig.axes[2], (2, 2)).sum() == 3
    assert [t.get_text() for t in fig.axes[1].get_yticklabels()] == ["sentence 1", "sentence 2"]
    fig = masks({"m": np.ones((1, 2), bool)}, rows=["q"], columns=["$k$", ""])
    assert [t.get_text() for t in fig.axes[0].get_xticklabels()] == ["$k$", "∅"]


# ---------------------------------------------------------------------------------------------------------------------
# panels of an example
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name, rows, sub", [("additive", "q1", []), ("multi_head", "word 1", ["head 1", "head 2"]),
                                             ("memory", "where is the apple?", ["hop 1", "hop 2"])])
def test_panels_of_a_mechanism_name_queries_heads_and_hops(name, rows, sub):
    fig = example_panels(find(name), title=name)
    assert fig.axes[0].get_yticklabels()[0].get_text() == rows
    signs = "scores: orange above 0, blue below"
    hatched = fig.axes[3].patches and "; hatched: masked, weight 0"
    assert [t.get_text() for t in fig.texts] == [*sub, name, signs + (hatched or "")]
    sizes = {t.get_size() for axes in fig.axes for t in [*axes.texts, *axes.get_xticklabels(), *axes.get_yticklabels()]}
    assert min(sizes) >= 8.5


def test_a_dot_in_the_mask_is_true_and_a_masked_weight_can_be_read():
    from tinyattn.attention.core import weights_of
    from tinyattn.autograd import capture
    with capture() as seen:
        weights_of(Tensor(np.array([[[9.0, 0.0, 9.0]]])), mask.from_lengths([2], 3))
    _, shown, _, w = panels(seen).axes
    assert [(t.get_text(), t.get_bbox_patch() is not None) for t in w.texts] == [
        ("1.00", False), ("0.00", False), ("0.00", True)]
    assert [(x, y) for x, y in zip(*shown.lines[0].get_data())] == [(0, 0), (1, 0)]


def test_every_mechanism_has_panels_or_says_why(monkeypatch):
    some = [v for i, v in enumerate(table().values()) if i % 6 == 0]
    for variant in some:
        assert example_panels(variant).axes


# ---------------------------------------------------------------------------------------------------------------------
# files, bad input, commands
# ---------------------------------------------------------------------------------------------------------------------
DRAW = {
    "lines": lambda path: lines(sure(np.random.default_rng(0), 2, 6, 6), NASTY, NASTY, "t", path, gold=[(0, 0)]),
    "tinted": lambda path: tinted(DOCUMENT, "t", path, by="product", gold=[(1, 0)]),
    "hops": lambda path: hops(sure(np.random.default_rng(0), 3, 4), STORY, "q? a", path, gold=[1]),
    "penalty": lambda path: penalty(sure(np.random.default_rng(0), 3, 6), path, "t", tokens=NASTY),
    "positions": lambda path: positions("alibi", 4, 2, path),
    "masks": lambda path: masks(["last", "lengths"], path),
}


@pytest.mark.parametrize("what, kind", [*((what, "svg") for what in DRAW), ("hops", "pdf"), ("tinted", "png")])
def test_the_same_picture_is_the_same_file(what, kind, tmp_path, capfd, recwarn):
    for name in "ab":
        DRAW[what](tmp_path / f"{name}.{kind}")
    data = (tmp_path / f"a.{kind}").read_bytes()
    assert data == (tmp_path / f"b.{kind}").read_bytes() and len(data) > 1000
    assert data.startswith({"svg": b"<?xml", "pdf": b"%PDF", "png": b"\x89PNG"}[kind])
    assert capfd.readouterr().err == "" and not recwarn.list
    with pytest.raises(InputError, match=r"x\.gif"):
        DRAW[what](tmp_path / "x.gif")
    assert len(list(tmp_path.iterdir())) == 2


def test_pictures_show_themselves_in_notebooks():
    for draw in DRAW.values():
        assert draw(None)._repr_png_().startswith(b"\x89PNG")


@pytest.mark.parametrize("wrong, says", [
    (lambda: lines(np.eye(3), "ab", "abc"), "(2 rows, 3 columns)"), (lambda: lines([[np.nan]], "a", "b"), "nan"),
    (lambda: lines(np.eye(61), range(61), range(61)), "60"), (lambda: lines(np.zeros((0, 2)), "", "ab"), "nothing"),
    (lambda: lines([[1.5]], "a", "b"), "from 0 to 1, got 1.5 from a to b"),
    (lambda: lines(np.ones((2, 1, 1)), "a", "b", names=["x"]), "1 names"),
    (lambda: lines(np.ones((0, 1, 1)), "a", "b"), "(0, 1, 1)"), (lambda: lines([[1.0]], "a", "b", least=1.5), "1.5"),
    (lambda: lines([[1.0]], "a", "b", gold=[(0, 1)]), "(0, 1)"),
    (lambda: tinted([]), "1 to 600 words"), (lambda: tinted([(["a"], [0.1, 0.2])]), "sentence 0"),
    (lambda: tinted([(["a"], [-0.1])]), "-0.1"), (lambda: tinted([(["a"], [0.1], np.nan)]), "from 0 to 1"),
    (lambda: tinted([(["a"],)]), "got 1 things"), (lambda: tinted([(["a"], [1.0])], by="letter"), "word, product"),
    (lambda: tinted([(["a"], [1.0])], gold=[(0, 1)]), "(0, 1)"),
    (lambda: tinted([(["a"] * 150, [0.0] * 150)] * 5), "750"),
    (lambda: hops([0.5, 0.5], "ab"), "(2,)"), (lambda: hops(np.ones((1, 61)) / 61, ["s"] * 61), "60"),
    (lambda: hops([[1.0]], "a", gold=[1]), "gold"), (lambda: hops([[np.inf]], "a"), "inf"),
    (lambda: penalty(np.ones(3)), "(3,)"), (lambda: penalty(np.ones((31, 2)) / 2), "31"),
    (lambda: penalty(np.ones((2, 2)), tokens="abc"), "3 columns"),
    (lambda: positions("sinus"), "sinusoid, rope"), (lambda: positions("rope", 4, 3), "even"),
    (lambda: positions("sinusoid", 0), "1 to 512"), (lambda: positions("sinusoid", 4, 2.5), "2.5"),
    (lambda: positions("shaw", 31), "1 to 30"), (lambda: positions("alibi", layout="halves"), "halves"),
    (lambda: positions("learned", table=[[np.nan]]), "finite"),
    (lambda: masks("causl"), "causal, last"), (lambda: masks({}), "at least one"),
    (lambda: masks(words=[]), "one word"),
    (lambda: masks({"m": np.ones((2, 2))}), "float64"), (lambda: masks({"m": np.ones((0, 2), bool)}), "0 and 2"),
    (lambda: masks({"m": np.ones((2, 2), bool)}, rows=["a"]), "2 names"), (lambda: masks(words=["a"] * 41), "40"),
])
def test_clear_refusals(wrong, says):
    with pytest.raises(InputError) as error:
        wrong()
    assert says in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("arguments, path", [
    (["positions"], "positions-sinusoid.svg"),
    (["positions", "shaw", "--length", "4", "--width", "1"], "positions-shaw.svg"),
    (["masks", "causal", "last", "--words", "a b c"], "masks.svg"), (["masks", "-o", "m.png"], "m.png"),
    (["panels", "additive"], "additive-panels.svg"), (["panels", "attention:dot", "-o", "d.pdf"], "d.pdf")])
def test_commands_write_the_file_and_name_it(arguments, path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 0 and capsys.readouterr().out.strip() == path and (tmp_path / path).stat().st_size > 1000


def test_panels_of_a_mechanism_of_ones_own(tmp_path, monkeypatch, capsys):
    (tmp_path / "my.py").write_text(
        "import numpy as np\nfrom tinyattn.attention.core import variant, weigh\n\n\n@variant()\ndef near(q, k, v):\n"
        "    return weigh(q @ k.transpose(), v)\n\n\ndef example(rng):\n"
        "    return {n: rng.normal(size=(1, 2, 3)) for n in 'qkv'}\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert main(["panels", "my.py:near"]) == 0 and (tmp_path / "near-panels.svg").exists()


@pytest.mark.parametrize("arguments, says", [
    (["positions", "nope"], "nope"), (["positions", "rope", "--width", "3"], "even"), (["masks", "nope"], "nope"),
    (["masks", "-o", "m.gif"], "m.gif"), (["panels", "nope"], "nope"), (["penalty", "absent"], "absent"),
    (["masks", "--words", ""], "at least one word")])
def test_bad_usage_is_one_line_and_writes_nothing(arguments, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    err = capsys.readouterr().err.strip()
    assert says in err and "\n" not in err and not list(tmp_path.iterdir())


def test_penalty_of_a_run_and_of_one_that_has_none(tmp_path, capsys):
    data = tmp_path / "data.tsv"
    data.write_text("".join(f"{'ab'[i % 2]}\topen a file {'and' if i % 2 else 'or'} read word{i}\n" for i in range(60)),
                    encoding="utf-8")
    for attention in ("structured_self", "han"):
        run = str(tmp_path / attention)
        assert main(["train", "classify", "--attention", attention, "--steps", "1", "--hidden", "2", "--embed", "2",
                     "--align", "2", "--run", run, "--data", str(data)]) == 0
    capsys.readouterr()
    run = tmp_path / "structured_self"
    assert main(["penalty", str(run)]) == 0 and capsys.readouterr().out.strip() == str(run / "penalty.svg")
    assert main(["penalty", str(run), "open", "a", "file", "-o", str(tmp_path / "p.png")]) == 0
    assert main(["penalty", str(tmp_path / "han")]) == 2
    assert "structured_self" in capsys.readouterr().err and (tmp_path / "p.png").read_bytes()[1:4] == b"PNG"


def test_the_names_in_the_help_are_those_of_the_pictures():
    from tinyattn.commands.patterns import MASKS, POSITIONS
    assert MASKS == MASK_KINDS and set(POSITIONS) == set(KINDS) - {"learned"}
