"""The four panels, and the gallery: a page for every mechanism that opens from disk."""
import re

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
    assert len(fig.axes) == 12 and [t.get_text() for t in fig.texts] == ["head 1", "head 2", "head 3"]
    rows = matrices(looked(heads), batch=1, inner="head")
    np.testing.assert_array_equal(rows[2][1], heads.numpy()[1, 2])
    np.testing.assert_allclose(rows[2][3].sum(-1), 1)


def test_the_sequence_that_shows_the_mask_is_drawn():
    scores = Tensor(np.arange(6.0).reshape(2, 1, 3))
    shown, = matrices(looked(scores, mask.from_lengths([3, 2])), batch=1)
    fig = panels(looked(scores, mask.from_lengths([3, 2])))
    assert numbers(fig.axes[0])[0, 0] == f"{shown[1][0, 0]:.2f}" == "3.00"


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
        assert "http" not in text and "<script" not in text
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
