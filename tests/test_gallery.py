"""The four panels, and the gallery: a page for every mechanism that opens from disk."""
import re
import sys

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from tinyattn import InputError, Tensor, capture  # noqa: E402
from tinyattn.attention import by_family, find, mask, weigh  # noqa: E402
from tinyattn.cli import main  # noqa: E402
from viz import gallery, panels  # noqa: E402
from viz.attention.panels import matrices  # noqa: E402


def looked(scores, allowed=None):
    with capture() as seen:
        weigh(scores, Tensor(np.ones((*scores.shape[:-2], scores.shape[-1], 2))), allowed)
    return seen


def numbers(axes):
    """{(row, column): text} of the numbers written into a panel."""
    return {(int(t.get_position()[1]), int(t.get_position()[0])): t.get_text() for t in axes.texts}


def test_four_panels_show_scores_mask_masked_scores_and_weights():
    scores = np.log([[[1.0, 3.0, 5.0], [1.0, 1.0, 5.0]]])
    fig = panels(looked(Tensor(scores), mask.from_lengths([2], 3)), rows=["a", "b"], columns=["x", "y", "<pad>"])
    assert [a.get_title(loc="left") for a in fig.axes] == ["scores", "mask", "masked scores", "weights"]
    for axes in fig.axes:
        assert [t.get_text() for t in axes.get_yticklabels()] == ["a", "b"]
        assert [t.get_text() for t in axes.get_xticklabels()] == ["x", "y", "<pad>"]
    assert numbers(fig.axes[0])[0, 1] == "1.10" and numbers(fig.axes[0])[0, 2] == "1.61"
    assert (0, 2) not in numbers(fig.axes[2]) and numbers(fig.axes[2])[0, 1] == "1.10"   # masked: hatched, no number
    assert numbers(fig.axes[3]) == {(0, 0): "0.25", (0, 1): "0.75", (0, 2): "0.00", (1, 0): "0.50", (1, 1): "0.50",
                                    (1, 2): "0.00"}
    assert [len(a.patches) for a in fig.axes] == [0, 2, 2, 2]
    assert fig.axes[3].images[0].get_clim() == (0, 1)


def test_heads_and_steps_have_a_row_each_and_a_name():
    heads = Tensor(np.random.default_rng(0).normal(size=(2, 3, 4, 5)))
    fig = panels(looked(heads), inner="head")
    assert len(fig.axes) == 12 and [t.get_text() for t in fig.texts] == [
        "head 1", "head 2", "head 3", "scores: orange above 0, blue below"]
    rows = matrices(looked(heads), batch=1, inner="head")
    np.testing.assert_array_equal(rows[2][1], heads.numpy()[1, 2])
    np.testing.assert_allclose(rows[2][3].sum(-1), 1)


def test_the_sequence_that_shows_the_mask_is_drawn():
    scores = Tensor(np.arange(6.0).reshape(2, 1, 3))
    shown, = matrices(looked(scores, mask.from_lengths([3, 2])), batch=1)
    fig = panels(looked(scores, mask.from_lengths([3, 2])))
    assert numbers(fig.axes[0])[0, 0] == f"{shown[1][0, 0]:.2f}" == "3.00"


def test_orange_is_above_0_and_blue_below_as_in_graphs():
    from viz.attention.matrix import matrix
    from viz.backprop.marks import tint
    from viz.graphs.grids import ABOVE, BELOW
    from viz.plot import figure, signed_colours
    fig = panels(looked(Tensor([[[-2.0, 0.0, 2.0]]])))
    plain = matrix(figure(2, 2).add_subplot(), [[-1.0, 0.0, 1.0]], signed=True)
    for image in (fig.axes[0].images[0], plain):
        below, none, above = image.to_rgba(image.get_array())[0, :, :3]
        assert above[0] > none[0] * 0.8 > above[2] and below[2] > none[2] * 0.7 > below[0]
        np.testing.assert_allclose(none, 1, atol=0.02)
    for share, ends in ((1.0, ABOVE), (-1.0, BELOW)):  # the same hues as in the graphs, and in `steps`
        drawn = np.array(signed_colours()((share + 1) / 2)[:3])
        np.testing.assert_allclose(drawn, 1 + 0.7 * (np.array(ends) / 255 - 1), atol=0.01)
        marked = [int(tint(share)[i:i + 2], 16) for i in (1, 3, 5)]
        assert (drawn[0] > drawn[2]) == (marked[0] > marked[2])
        luminance = drawn @ [0.2126, 0.7152, 0.0722]
        assert luminance > 0.45                        # black numbers can be read on it
    assert {t.get_color() for t in fig.axes[0].texts} == {"#222222"}


def test_nothing_to_show_is_one_line(tmp_path):
    with capture() as seen:
        pass
    with pytest.raises(InputError, match="panels: nothing was tapped"):
        panels(seen)
    with pytest.raises(InputError, match="ends in .svg, .pdf or .png"):
        panels(looked(Tensor(np.ones((1, 2, 3)))), tmp_path / "x.gif")


SOME = ["raw", "multi_head", "memory", "dependency", "ntm"]


def test_a_page_each_and_an_index_that_open_from_disk(tmp_path):
    lines = []
    pages = gallery(tmp_path, SOME, lines.append)
    assert [p.name for p in pages] == [f"{n}.html" for n in SOME] and lines == [f"{n}: drawn" for n in SOME]
    for page in [*pages, tmp_path / "index.html"]:
        text = page.read_text(encoding="utf-8")
        links = re.findall(r'(?:src|href)="([^"]*)"', text)
        assert links and all((tmp_path / link).is_file() for link in links), page
        assert "http" not in text.replace("http://www.w3.org/1998/Math/MathML", "") and "<script" not in text
    raw = (tmp_path / "raw.html").read_text(encoding="utf-8")
    for part in ("alpha_ts = e_ts / sum_j e_tj", "Survey:", "Cost:", "def raw(", "Hu 2018", *(f"raw-{p}.svg" for p in
                 ("panels", "forward", "expanded", "backward"))):
        assert part in raw, part
    assert "<svg" in (tmp_path / "multi_head-expanded.svg").read_text(encoding="utf-8")[:3000]


def test_the_expanded_graph_opens_the_fused_op_and_the_forward_one_does_not(tmp_path):
    gallery(tmp_path, ["scaled_dot"])
    forward, expanded = ((tmp_path / f"scaled_dot-{which}.svg").read_text(encoding="utf-8")
                         for which in ("forward", "expanded"))
    assert ">softmax<" not in forward and ">attention<" in forward and ">softmax<" in expanded


def test_where_nothing_is_fused_there_is_no_second_picture(tmp_path):
    gallery(tmp_path, ["sigmoid"])
    assert (tmp_path / "sigmoid-forward.svg").is_file() and not (tmp_path / "sigmoid-expanded.svg").exists()
    assert "sigmoid-expanded" not in (tmp_path / "sigmoid.html").read_text(encoding="utf-8")


def test_markup_of_the_docstring_is_html_and_names_are_links(tmp_path):
    gallery(tmp_path, ["static", "additive"])
    page = (tmp_path / "static.html").read_text(encoding="utf-8")
    assert '<a href="additive.html"><code>additive</code></a>' in page and "<code>outer=False</code>" in page
    assert "`" not in page.partition("<h2>The function")[0]
    assert "How to read these pages" in (tmp_path / "index.html").read_text(encoding="utf-8")


def test_every_mechanism_is_in_a_family_and_would_be_on_the_index():
    names = [v.name for _, found in by_family() for v in found]
    assert len(names) == len(set(names)) >= 57 and "Others" not in dict(by_family())


def test_the_same_gallery_twice_is_the_same_files(tmp_path):
    for folder in ("a", "b"):
        gallery(tmp_path / folder, ["dot"])
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes(), path.name


def test_equations_stand_on_the_page_as_formulas(tmp_path, opened):
    gallery(tmp_path, ["dot", "multi_head"])
    page = opened(tmp_path / "multi_head.html")
    assert [h.inner_text() for h in page.query_selector_all("h3")] == ["Forward pass", "Backward pass"]
    assert page.locator(".equations math").count() > 20 and page.locator("h2", has_text="Equations").count() == 1
    wide = page.evaluate("[...document.images].map((image) => image.getBoundingClientRect().right)")
    assert len(wide) == 4 and max(wide) <= 1280 and page.evaluate("document.documentElement.scrollWidth") <= 1280


def test_without_mathml_the_equations_are_text(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "latex2mathml.converter", None)
    lines = []
    gallery(tmp_path, ["dot", "general"], lines.append)
    text = (tmp_path / "dot.html").read_text(encoding="utf-8")
    assert "<math" not in text and "∂L/∂q" in text.partition("<h2>Equations</h2>")[2]
    assert lines == ["dot: equations as text: this page needs latex2mathml: pip install tinyattn[plot]",
                     "general: equations as text as above"]


def test_what_a_machine_cannot_draw_is_said_once(tmp_path, monkeypatch, capfd):
    from viz.graphs import render
    monkeypatch.setattr(render, "_programs", list)
    lines = []
    gallery(tmp_path, ["dot", "general", "sigmoid"], lines.append)
    assert [line.count("no program that lays out graphs") for line in lines] == [1, 0, 0]
    assert lines[1] == "general: forward, expanded, backward as above"
    assert lines[2].endswith("forward, backward as above")
    assert capfd.readouterr().err == "" and (tmp_path / "sigmoid-backward.dot").is_file()
    assert 'href="sigmoid-backward.dot"' in (tmp_path / "sigmoid.html").read_text(encoding="utf-8")


def test_wrong_names_and_folders_are_one_line(tmp_path, capfd):
    (tmp_path / "file").write_text("x")
    for arguments, message in ((["nothing"], "there is no attention of this name"),
                               (["op:softmax"], "is no attention mechanism"),
                               (["dot", "-o", str(tmp_path / "file")], "cannot make the folder")):
        assert main(["gallery", *arguments, *(["-o", str(tmp_path / "g")] if "-o" not in arguments else [])]) == 2
        said = capfd.readouterr().err
        assert message in said and "Traceback" not in said


def test_memory_lands_where_the_survey_says():
    v = find("memory")
    arrays = v.part("example")(np.random.default_rng(0))
    with capture() as seen:
        v(**{k: Tensor(a) if isinstance(a, np.ndarray) else a for k, a in arrays.items()})
    rows, columns, inner = v.part("labels")()
    lands = [columns[w[0].argmax()] for _, _, _, w in matrices(seen, inner=inner)]
    assert rows[0] == "where is the apple?" and lands == ["Sam drops the apple", "Sam walks into the bedroom"]
