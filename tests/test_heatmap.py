"""Heatmaps beyond the common ones: maps in rows and columns by their place in a model, other scales, many tokens."""
import numpy as np
import pytest

pytest.importorskip("matplotlib")
from tinyattn.errors import InputError  # noqa: E402
from viz import grid, heatmap, heatmaps  # noqa: E402

WORDS = ["the", "<pad>", "the", "$x$"]


def weights(rng, *shape):
    e = np.exp(2 * rng.normal(size=shape))
    return e / e.sum(-1, keepdims=True)


def placed(rng, layers, heads, words=WORDS):
    return [(weights(rng, len(words), len(words)), words, words, "long title", (), {"layer": i, "head": j})
            for i in layers for j in heads]


def maps_of(fig):
    """{(column, row) of the Axes on the page: Axes} of those with an image, by their left and upper edges."""
    drawn = [a for a in fig.axes if a.images and a.get_label() != "<colorbar>"]
    lefts = sorted({round(a.get_position().x0, 6) for a in drawn})
    tops = sorted({round(a.get_position().y1, 6) for a in drawn}, reverse=True)
    return {(tops.index(round(a.get_position().y1, 6)), lefts.index(round(a.get_position().x0, 6))): a for a in drawn}


def labels(axes):
    return [t.get_text() for t in axes.get_yticklabels()], [t.get_text() for t in axes.get_xticklabels()]


def said(fig):
    return [t.get_text() for t in fig.texts]


def test_layers_go_down_and_heads_across_whatever_the_order(rng):
    maps = placed(rng, (1, 2), (1, 2, 3))
    shuffled = [maps[i] for i in (4, 0, 5, 2, 1, 3)]
    for fig in (heatmaps(shuffled, title="all"), grid(shuffled)):
        at = maps_of(fig)
        assert sorted(at) == [(i, j) for i in (0, 1) for j in (0, 1, 2)]
        for i in (0, 1):
            for j in (0, 1, 2):
                np.testing.assert_array_equal(at[i, j].images[0].get_array(), maps[3 * i + j][0])
    assert set(said(fig)) == {"layer 1", "layer 2", "head 1", "head 2", "head 3"}
    assert not any(a.get_title() for a in fig.axes)


def test_what_all_places_share_is_said_once(rng):
    maps = [(*m[:5], {"kind": "cross", **m[5]}) for m in placed(rng, (1, 2), (1, 2))]
    fig = heatmaps(maps, title="a cat")
    assert sorted(maps_of(fig)) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert set(said(fig)) == {"a cat; cross", "layer 1", "layer 2", "head 1", "head 2"}
    one_layer = [(*m[:5], {"sample": 3, **m[5]}) for m in placed(rng, (2,), (1, 2))]
    assert set(said(grid(one_layer))) == {"sample 3", "layer 2", "head 1", "head 2"}


def test_names_of_a_grid_stand_beside_its_rows_and_above_its_columns(rng):
    fig = grid(placed(rng, (1, 2), (1, 2, 3)))
    at = maps_of(fig)
    renderer = fig.canvas.get_renderer()
    for text in fig.texts:
        box = text.get_window_extent(renderer)
        kind, number = text.get_text().split()
        for (i, j), axes in at.items():
            own = axes.get_window_extent(renderer)
            if kind == "head" and j == int(number) - 1:
                assert own.x0 < (box.x0 + box.x1) / 2 < own.x1 and box.y0 > own.y1
            if kind == "layer" and i == int(number) - 1:
                assert own.y0 < (box.y0 + box.y1) / 2 < own.y1 and box.x1 < own.x0


def test_tokens_shared_by_all_maps_stand_at_the_edges_alone(rng):
    at = maps_of(grid(placed(rng, (0, 1), (0, 1))))
    assert labels(at[0, 0]) == (WORDS, WORDS) and labels(at[0, 1]) == ([], WORDS)
    assert labels(at[1, 0]) == (WORDS, []) and labels(at[1, 1]) == ([], [])
    maps = placed(rng, (0, 1), (0, 1))
    maps[3] = (maps[3][0], ["a"] * 4, WORDS, "", (), maps[3][5])
    assert [labels(a)[0] for _, a in sorted(maps_of(grid(maps)).items())] == [WORDS, WORDS, WORDS, ["a"] * 4]


def test_a_missing_place_stays_empty_and_gold_is_framed(rng):
    maps = placed(rng, (0, 1), (0, 1))[:3]
    maps[2] = (*maps[2][:4], [(0, 1)], maps[2][5])
    fig = grid(maps)
    assert sorted(maps_of(fig)) == [(0, 0), (0, 1), (1, 0)]
    (frame,) = maps_of(fig)[1, 0].patches
    assert tuple(frame.get_center()) == pytest.approx((1, 0))
    assert len(fig.legends) == 1


@pytest.mark.parametrize("places", [
    [{"layer": 0, "head": 0}, {"layer": 0, "head": 0}], [{"layer": 0, "head": 0}, {}], [{"hop": 0}, {"hop": 1}],
    [{"layer": 0, "head": 0}, {"layer": 0, "hop": 0}],
    [{"kind": "x", "layer": 0, "head": 0}, {"kind": "y", "layer": 1, "head": 2}]])
def test_without_places_for_a_grid_maps_follow_one_another(places, rng):
    maps = [(weights(rng, 2, 2), "ab", "cd", "", (), p) for p in places]
    titles = [a.get_title() for a in heatmaps(maps).axes[:2]]
    assert titles == [", ".join(i if isinstance(i, str) else f"{n} {i}" for n, i in p.items()) for p in places]
    with pytest.raises(InputError, match="grid: expected for each map a place"):
        grid(maps)


def test_many_maps_fit_a_page_and_no_two_overlap(rng):
    words = [f"word{i}" for i in range(20)]
    fig = grid(placed(rng, range(3), range(8), words))
    fig.canvas.draw()
    boxes = [a.get_tightbbox(fig.canvas.get_renderer()) for a in fig.axes]
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    assert fig.get_size_inches()[0] < 20
    assert labels(maps_of(fig)[0, 0])[0] == words[::2]
    assert [t.get_text() for t in fig.legends[0].get_texts()] == ["of every 2 tokens the first is named"]


# -- scales -----------------------------------------------------------------------------------------------------------
FLAT = np.array([[0.1, 0.2], [0.05, 0.0]])


def test_another_scale_is_said_by_title_and_bar():
    for scale, top in (("own", 0.2), (0.5, 0.5)):
        fig = heatmap(FLAT, "ab", "cd", "flat", scale=scale)
        axes, bar = fig.axes
        assert axes.images[0].get_clim() == (0, top) and bar.get_ylim() == (0, top)
        np.testing.assert_array_equal(axes.images[0].get_array(), FLAT)
        assert len(said(fig)) == 1 and f"0 to {top}" in said(fig)[0] and "not to 1" in said(fig)[0]
        assert str(top) in bar.get_ylabel().replace("\n", " ")
    for scale in (1, 1.0):
        fig = heatmap(FLAT, "ab", "cd", "flat", scale=scale)
        assert said(fig) == [] and fig.axes[1].get_ylabel() == "" and fig.axes[0].images[0].get_clim() == (0, 1)


def test_rows_and_maps_in_scales_of_their_own():
    maps = [(FLAT, "ab", "cd", "one"), (FLAT / 2, "ab", "cd", "two")]
    fig = heatmaps(maps, scale="row")
    np.testing.assert_allclose(fig.axes[0].images[0].get_array(), [[0.5, 1], [1, 0]])
    assert "each row" in said(fig)[0] and "not 1" in said(fig)[0]
    assert "largest" in fig.axes[-1].get_ylabel() and "row" in fig.axes[-1].get_ylabel()
    fig = heatmaps(maps, scale="map")
    for i in (0, 1):
        np.testing.assert_allclose(fig.axes[i].images[0].get_array(), FLAT / 0.2)
    assert [a.get_title() for a in fig.axes[:2]] == ["one\nlargest 0.2", "two\nlargest 0.1"]
    one = heatmaps(maps, scale="own")
    assert {a.images[0].get_clim() for a in one.axes[:2]} == {(0, 0.2)}  # all maps of a page share it


def test_a_scale_of_nothing_but_zeros():
    for scale in ("own", "map", "row"):
        fig = heatmap(np.zeros((2, 2)), "ab", "cd", scale=scale)
        assert np.array_equal(fig.axes[0].images[0].get_array(), np.zeros((2, 2)))
        assert fig.axes[0].images[0].get_clim() == (0, 1)


@pytest.mark.parametrize("scale", ["rows", 0, -1, float("nan"), float("inf"), None, True])
def test_a_scale_that_is_none_is_refused(scale):
    with pytest.raises(InputError, match="expected a scale above 0, or one of own, map, row"):
        heatmap(FLAT, "ab", "cd", scale=scale)


# -- many tokens ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("n, every", [(60, 1), (61, 2), (100, 2), (200, 2)])
def test_labels_never_overlap(n, every):
    words = [f"word{i}" for i in range(n)]
    fig = heatmap(np.eye(n), words, words)
    axes = fig.axes[0]
    fig.canvas.draw()
    assert labels(axes)[0] == words[::every] and list(axes.get_yticks()) == list(range(0, n, every))
    for texts in (axes.get_yticklabels(), axes.get_xticklabels()):
        boxes = [t.get_window_extent() for t in texts]
        assert all(not a.overlaps(b) for a, b in zip(boxes, boxes[1:], strict=False))
        assert all(t.get_size() >= 10 for t in texts)
    assert bool(fig.legends) == (every > 1)


def test_more_tokens_than_can_be_drawn_are_refused_with_their_number(tmp_path):
    words = [f"w{i}" for i in range(201)]
    with pytest.raises(InputError, match="at most 200 tokens on a side, got 201 columns"):
        heatmap(np.zeros((1, 201)), ["a"], words, path=tmp_path / "a.svg")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["svg", "pdf", "png"])
def test_the_same_grid_is_the_same_file(kind, tmp_path):
    for name in "ab":
        grid(placed(np.random.default_rng(1), (0, 1), (0, 1)), tmp_path / f"{name}.{kind}", "title", scale="map")
    assert (tmp_path / f"a.{kind}").read_bytes() == (tmp_path / f"b.{kind}").read_bytes()
