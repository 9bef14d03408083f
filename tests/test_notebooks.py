"""Notebooks: pictures, pages and runs show themselves, several in one page, and no two of them share an id."""
import re
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from tiny_system import Tiny

from tinyattn.train import Config, train
from viz import Run, curves, graph, heatmap
from viz.page import page

ROOT = Path(__file__).parent.parent
pytest.importorskip("matplotlib")
SVG, HTML, PNG = "image/svg+xml", "text/html", "image/png"
IDS = re.compile(r'\sid="([^"]+)"')


def ids_of(html):
    """The ids of a document; those within a frame of its own (`srcdoc`) are of that frame's document."""
    return IDS.findall(re.sub(r'\ssrcdoc="[^"]*"', "", html))


def points_to(html):
    """The ids that a document's own pictures point to."""
    html = re.sub(r'\ssrcdoc="[^"]*"', "", html)
    return set(re.findall(r'(?:url\(#|xlink:href="#)([^")]+)', html))


@pytest.fixture
def formatter():
    """What an IPython shell asks what to show of an object."""
    return pytest.importorskip("IPython.core.formatters", reason="IPython is not installed").DisplayFormatter()


def a_map():
    return heatmap(np.eye(3), ["a", "a", "<s>"], ["日本", "$x$", "b"], "head 1")


def a_graph(n=2):
    from tinyattn.tensor import Tensor
    x = Tensor(np.ones(3, np.float32), requires_grad=True)
    for _ in range(n):
        x = x.tanh()
    return graph(x.sum())


def test_figures_show_themselves_as_svg_and_where_that_cannot_be_as_png(formatter):
    for fig in (a_map(), curves({"a": [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}]})):
        data, _ = formatter.format(fig)
        assert data[SVG].startswith("<svg") and data[PNG][:4] == b"\x89PNG"
    data, _ = formatter.format(a_graph())
    assert data[SVG].startswith("<svg")


def test_the_same_picture_shown_twice_has_other_ids_and_its_file_the_same_bytes(formatter, tmp_path):
    for made in (a_map(), a_map(), a_graph()):
        one, two = (formatter.format(made)[0][SVG] for _ in range(2))
        assert ids_of(one) and not set(ids_of(one)) & set(ids_of(two))
        for shown in (one, two):
            assert points_to(shown) <= set(ids_of(shown))
    for name in "ab":
        heatmap(np.eye(2), "ab", "cd", path=tmp_path / f"{name}.svg")._repr_svg_()
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_a_run_shows_itself(formatter, tmp_path):
    train(Tiny(), Config.of(Tiny()), tmp_path / "first")
    (tmp_path / "first" / "metrics.json").write_text('{"steps": 10, "seconds": 0.5, "test": null}')
    run = Run(tmp_path / "first")
    assert "tiny, seed 1, 10 steps" in repr(run)
    data, _ = formatter.format(run)
    one, two = data[HTML], run._repr_html_()
    assert one.count("<svg") == 1 and "seconds of training" in one and "learning rate" in one
    assert "What it looks at" in one and str(tmp_path) not in one  # this system has no name in the package: a line
    assert not set(ids_of(one)) & set(ids_of(two)) and len(ids_of(one)) == len(set(ids_of(one)))
    with pytest.raises(ValueError, match="ends in .html, got 'run.png'"):
        run.save(tmp_path / "run.png")


CELLS = ['''import sys
import numpy as np
from tinyattn import systems
from tinyattn.tensor import Tensor
from tinyattn.train import Config, train
from viz import Run, frames, graph, heatmap, norms, steps
cls = systems.find("qa")
system = cls.prepare(cls.Options(tasks="1", hidden=8))
history = train(system, Config.of(system, steps=4, validate_every=2, watch=1), "first")
a = Tensor(1.0, requires_grad=True, name="a")
b = a + a''',
         'graph(b * b)', 'graph(b)', 'graph(b * b)',
         'fig = heatmap(np.eye(3), ["a", "a", "<s>"], ["日本", "$x$", "b"])\nfig', 'fig',
         'Run("first")', 'Run("first")', 'norms(history)', 'frames(history)', 'frames(history)',
         'steps(b * b)', 'steps(b * b)']


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """The outputs of CELLS, run in a real kernel: [{kind: data}], one for each cell that shows something."""
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
    folder = tmp_path_factory.mktemp("notebook")
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in CELLS])
    patch = pytest.MonkeyPatch()
    patch.setenv("PYTHONPATH", str(ROOT))
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR"):  # nothing goes to the home of the user
        patch.setenv(name, str(folder / name))
    try:
        nbclient.NotebookClient(book, timeout=120, kernel_name="python3",
                                resources={"metadata": {"path": str(folder)}}).execute()
    finally:
        patch.undo()
    return [[output.data for output in cell.outputs if output.output_type == "execute_result"]
            for cell in book.cells[1:]]


def as_html(data):
    """What a notebook would put into its page: the best kind that there is."""
    found = next((data[kind] for kind in (HTML, SVG) if kind in data), None)
    assert found is not None, list(data)
    return "".join(found)


def test_a_real_notebook_shows_all_of_them_in_one_page(executed, tmp_path, opened):
    assert [len(shown) for shown in executed] == [1] * (len(CELLS) - 1)
    parts = [as_html(shown[0]) for shown in executed]
    body = "\n".join(f'<div class="output">{part}</div>' for part in parts)
    ids = ids_of(body)
    assert len(ids) > 50 and sorted({i for i in ids if ids.count(i) > 1}) == []
    assert points_to(body) <= set(ids)
    (tmp_path / "book.html").write_text(page("a notebook", body), encoding="utf-8")
    shown = opened(tmp_path / "book.html")
    for i in range(len(parts)):
        box = shown.locator(".output").nth(i).bounding_box()
        assert box["height"] > 60 and box["width"] > 60, CELLS[i + 1]
    first = "first" in shown.inner_text("body") or "memn2n" in shown.inner_text("body")
    assert first and unescape(parts[5]).count("<svg") == 2  # the run: its curve, and what it looks at


def test_the_moving_page_works_within_a_notebook(executed, tmp_path, opened):
    """Two of the same, side by side: each goes its own way."""
    cells = [i for i, cell in enumerate(CELLS[1:]) if cell == "frames(history)"]
    body = "\n".join(as_html(executed[i][0]) for i in cells)
    (tmp_path / "book.html").write_text(f"<!DOCTYPE html><meta charset='utf-8'>{body}", encoding="utf-8")
    shown = opened(tmp_path / "book.html")
    one, two = (shown.frame_locator("iframe").nth(i) for i in range(2))
    one.locator("#next").click()
    assert one.locator("#said").inner_text().startswith("step 2, validation loss")
    assert two.locator("#said").inner_text().startswith("step 0, before training")
