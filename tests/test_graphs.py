"""Graphs for lectures: the backward pass alone, one box, paths, numbers in nodes, legends, the page, other tools."""
import html
import json
import os
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("graphviz")

from test_viz import NASTY, chain, parameter, recurrent, small, texts  # noqa: E402

from tinyattn.autograd import grad, scope  # noqa: E402
from tinyattn.cli import main  # noqa: E402
from tinyattn.errors import InputError  # noqa: E402
from tinyattn.functional import softmax  # noqa: E402
from tinyattn.op import fused  # noqa: E402
from tinyattn.program import Program  # noqa: E402
from tinyattn.tensor import Tensor  # noqa: E402
from viz import graph  # noqa: E402
from viz.graphs import render, xdot  # noqa: E402
from viz.graphs.exchange import from_json, to_json  # noqa: E402
from viz.graphs.fit import fitted  # noqa: E402
from viz.graphs.grids import block, cell_text, summary  # noqa: E402
from viz.graphs.labels import number_text  # noqa: E402


@pytest.fixture
def draws():
    if not render._programs():
        pytest.skip("no program that lays out graphs")


def loss_of():
    """A loss with two parameters, by name, and the parameters."""
    x = Tensor(np.array([[1.0, -2.0]], np.float32), name="x")
    w = Tensor(np.array([[0.5, -1.0], [2.0, 0.25]], np.float32), requires_grad=True, name="w")
    b = Tensor(np.array([0.1, -0.2], np.float32), requires_grad=True, name="b")
    with scope("layer"):
        h = (x @ w + b).tanh()
    loss = (h * h).sum()
    loss.name = "L"
    return loss, w, b


def cells(dot):
    """The texts of all cells of grids."""
    found = re.findall(r'<TD BGCOLOR="#\w+"><FONT COLOR="black"[^>]*>(.*?)</FONT>', dot)
    return [html.unescape(text).strip() for text in found]


# ---------------------------------------------------------------------------------------------------------------------
# golden DOT: what these graphs give, a change in any of them is seen
# ---------------------------------------------------------------------------------------------------------------------
def scalar():
    a = Tensor(np.float32(3), requires_grad=True, name="a")
    b = Tensor(np.float32(-2), requires_grad=True, name="b")
    return a * b + a


def nasty():
    with scope('box "<&>'):
        return parameter(2, name="a\\N<pad>") * parameter(2, name='"{|}') + 1


GOLDEN_KINDS = {
    "grids": lambda: graph(scalar(), values=True, gradients=True, legend=True),
    "path": lambda: graph(loss_of()[0], path=("b", "output"), theme="print", legend=True),
    "backward": lambda: graph(loss_of()[0], backward=True),
    "backward-only": lambda: graph(loss_of()[0], backward="only"),
    "steps": lambda: graph(recurrent(12), steps=True),
    "folded": lambda: graph(recurrent(12), depth=1, theme="dark", direction="LR"),
    "nasty": lambda: graph(nasty()),
}


@pytest.mark.parametrize("kind", GOLDEN_KINDS)
def test_golden_dot(kind, pytestconfig):
    """TINYATTN_GOLDEN=write writes them anew, to be read before they are kept."""
    path = pytestconfig.rootpath / "tests" / "golden" / f"{kind}.dot"
    text = GOLDEN_KINDS[kind]().dot
    if os.environ.get("TINYATTN_GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8", newline="\n")
    assert text == path.read_text("utf-8")


def test_a_file_is_the_same_bytes_every_time(tmp_path, draws):
    for kind in ("svg", "png", "pdf", "html", "json", "graphml", "dot"):
        one, two = (graph(small(), values=True).save(tmp_path / f"{n}.{kind}") for n in "ab")
        assert one.read_bytes() == two.read_bytes(), kind


# ---------------------------------------------------------------------------------------------------------------------
# backward alone; one box alone
# ---------------------------------------------------------------------------------------------------------------------
def test_the_backward_pass_alone():
    loss, w, b = loss_of()
    whole, alone = graph(loss, backward=True), graph(loss, backward="only")
    ops = [n for n in alone.drawing.nodes if n.kind == "op"]
    assert ops and all(n.backward for n in ops)
    assert len(ops) == sum(n.kind == "op" and n.backward for n in whole.drawing.nodes)
    outside = {alone.program.values[n.members[0]].name for n in alone.drawing.nodes if n.kind == "outside"}
    assert outside == {"tanh"} and "dir=back" not in alone.dot
    assert {alone.program.values[v].name for v in alone.program.outputs} == {"∂L/∂w", "∂L/∂b"}
    assert [v.id for v in alone.program.values] == list(range(len(alone.program.values)))


def test_no_backward_pass_to_be_drawn_alone():
    x = parameter(3, name="x")
    with pytest.raises(InputError, match="no backward pass"):
        graph(x.sum(), backward="only")
    with pytest.raises(InputError, match="'only'"):
        graph(x.sum(), backward="both")


def test_one_step_is_picked_out():
    g = graph(recurrent(9), scope="step 3")
    steps = [i.scope for i in g.program.instructions]
    assert len(steps) == 7 and all(s.startswith("step 3") for s in steps)
    assert [n.kind for n in g.drawing.nodes].count("outside") == 1 and g.drawing.boxes[("step 3",)] == "step 3"
    assert graph(recurrent(9), scope="decoder/step 3").dot == g.dot.replace("step 3", "decoder/step 3") \
        or len(graph(recurrent(9), scope="decoder/step 3").program) == 7
    assert graph(Program.of(recurrent(9)), scope="step 3").dot == g.dot
    left = [g.program.values[v].name or i.op for i in g.program.instructions for v in i.outputs
            if v in g.program.outputs]
    assert left == ["tanh", "cross_entropy"]  # what is used outside of the step, and nothing else
    with pytest.raises(InputError, match=r"step 33; there are decoder, step 0, cell, step 1"):
        graph(recurrent(9), scope="step 33")
    with pytest.raises(InputError, match="has none"):
        graph(chain(2), scope="x")


# ---------------------------------------------------------------------------------------------------------------------
# paths
# ---------------------------------------------------------------------------------------------------------------------
def strong(g):
    """The titles of strong nodes, sorted."""
    return sorted(t for t, look in re.findall(r"<B>(.*?)</B>.*?> (.*)\]", g.dot) if "penwidth=3" in look)


def test_all_nodes_and_edges_of_a_path_are_strong_and_no_others():
    g = graph(loss_of()[0], path=("b", "output"))
    assert strong(g) == ["add", "b", "mul", "sum", "tanh"]
    edges = re.findall(r"^\t(n\d+) -> (n\d+).*penwidth=3", g.dot, re.M)
    at = {t: n for n, t in re.findall(r"(n\d+) \[label=<<B>(.*?)</B>", g.dot)}
    # both edges of h * h lie on a path
    assert sorted(edges) == sorted([(at["b"], at["add"]), (at["add"], at["tanh"]), (at["tanh"], at["mul"]),
                                    (at["tanh"], at["mul"]), (at["mul"], at["sum"])])
    assert "strong: on a path from b to output" in g.dot


def test_a_path_may_name_ops_boxes_values_and_ends_of_names():
    x, w = parameter(2, name="x"), parameter(2, name="model.w")
    with scope("one"):
        y = x * w
    with scope("two"):
        z = y.tanh().exp() + w.sin()
    z.name = "z"
    for path, expected in {("x", "z"): ["mul", "tanh", "exp", "add", "x"], ("w", "sin"): ["sin", "model.w"],
                           ("tanh", "exp"): ["tanh", "exp"], ("one", "tanh"): ["mul", "tanh"],
                           ("model.w", "mul"): ["mul", "model.w"]}.items():
        assert strong(graph(z, path=path)) == sorted(expected), path
    assert strong(graph(z, depth=0, path=("x", "output"))) == ["one", "two"]


def test_a_path_through_folded_steps_is_one_that_the_computation_has():
    """From the loss of a step no path leads to the next step's state, though both lie in the node of all steps."""
    g = graph(recurrent(30), path=("h0", "output"))
    assert {"h0", "matmul", "add", "tanh", "cross_entropy", "stack", "mean"} == set(strong(g))
    assert "table" not in strong(g) and "embedding" not in strong(g)


@pytest.mark.parametrize("path, says", [
    (("q", "output"), r"got q; there are x, w, b, L, matmul"), (("x", "nothing"), "got nothing; there are"),
    (("sum", "x"), "no path leads from sum to x; one leads the other way round$"), (("tanh", "w"), "no path"),
    (("sum", "add"), "the other way round"),
    (("w", "w"), "no path"), (("", "output"), "got an empty one; there are x"), (("x", ""), "got an empty one"),
    (("w",), "two names"), ("ab", "two names"), ((1, 2), "two names")])
def test_paths_that_are_none(path, says):
    with pytest.raises(InputError, match=says) as error:
        graph(loss_of()[0], path=path)
    assert "\n" not in str(error.value)


# ---------------------------------------------------------------------------------------------------------------------
# numbers in nodes
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("x, text", [
    (0.5, "0.5"), (-0.0, "0"), (0.0123, "0.012"), (-0.126, "-0.126"), (1.0, "1"), (1234.6, "1235"), (2e-7, "2e-7"),
    (-1.25e9, "-1.2e9"), (float("nan"), "nan"), (float("-inf"), "-inf"), (True, "T"), (False, "F"),
    (12345678, "1.235e+07"),
    (-42, "-42"), (1234567, "1234567")])
def test_numbers_of_cells(x, text):
    assert cell_text(x) == text == cell_text(np.asarray(x)[()])


def test_small_tensors_are_grids_with_the_sign_in_the_number_and_in_the_tint():
    loss, w, b = loss_of()
    g = graph(w.tanh(), values=True)
    tints = re.findall(r'<TD BGCOLOR="(#\w+)"><FONT COLOR="black" POINT-SIZE="11"> (\S+) <', g.dot)
    leaf = tints[-4:]
    assert [t for _, t in leaf] == ["0.5", "-1", "2", "0.25"]
    red = [int(c[1:3], 16) > int(c[5:7], 16) for c, _ in leaf]
    assert red == [True, False, True, True]
    dark = [sum(int(c[i:i + 2], 16) for i in (1, 3, 5)) for c, _ in leaf]
    assert dark[2] == min(dark) and dark[3] == max(dark)
    printed = re.findall(r'<TD BGCOLOR="#(..)(..)(..)">', graph(w.tanh(), values=True, theme="print").dot)
    assert all(a == b == c for a, b, c in printed)


@pytest.mark.parametrize("shape, grids", [((), 1), ((8,), 1), ((8, 8), 1), ((2, 3, 4), 3), ((2, 2, 2, 2), 5), ((9,), 0),
                                          ((8, 9), 0), ((5, 2, 2), 0), ((2, 6, 6), 0)])
def test_up_to_eight_by_eight(shape, grids):
    array = np.arange(np.prod(shape, dtype=int), dtype=float).reshape(shape)
    text = block(array)
    assert text.count("CELLBORDER") - ("…" in text) * 2 == grids
    assert len(cells(text)) == (array.size if grids else 0)
    heads = re.findall(r">\[([\d, ]+)\]<", text)
    assert heads == [", ".join(map(str, i)) for i in np.ndindex(shape[:-2])] * (grids > 1)


def test_large_empty_and_odd_tensors_in_words():
    assert summary(np.arange(100.0)) == "0 … 99" and summary(np.zeros((0, 3))) == "empty"
    assert summary(np.full(99, 2)) == "all 2" and summary(np.array([True] * 70 + [False])) == "70 of 71 True"
    odd = np.arange(90.0)
    odd[:3] = np.nan, np.inf, -np.inf
    assert summary(odd) == "3 of 90 not finite, 3 … 89"
    assert summary(np.full(99, np.nan)) == "99 of 99 not finite"
    for array in (odd, np.full(99, np.nan), np.array([-1e308, 1e308] * 50), np.arange(99), np.zeros(99, bool)):
        ET.fromstring(f"<a>{block(array)}</a>".replace("&nbsp;", ""))
    tall = re.findall("<TR>(.*?)</TR>", block(np.r_[np.zeros(90), 0.99, 1]).split("</TD></TR>", 1)[1])
    bars = [[column for column, cell in enumerate(row.split("</TD>")) if "BGCOLOR" in cell] for row in tall]
    assert bars == [[0], [0], [0], [0, 11]]  # the smallest numbers left, and two numbers are seen beside ninety
    assert block(np.arange(99)).count("BGCOLOR") == 12 * 4 and "BGCOLOR" not in block(np.full(99, 1.5))


def test_faults_43_a_gradient_before_backward_is_absent_and_not_zero():
    loss, w, b = loss_of()
    before = graph(loss, values=True)
    assert before.dot.count("no gradient yet") == 2 and ">gradient<" not in before.dot
    loss.backward()
    after = graph(loss, values=True)
    assert "no gradient" not in after.dot
    for t in (w, b):
        for x in t.grad.numpy().ravel():
            assert cell_text(x) in cells(after.dot)


def test_gradients_of_inner_values_are_those_of_grad_and_no_grad_attribute_is_touched():
    loss, w, b = loss_of()
    g = graph(loss, gradients=True)
    assert w.grad is None and b.grad is None
    product = loss.op.inputs[0]
    h = product.op.inputs[0]
    expected = [x for t in grad(loss, [h, w, b]) for x in t.numpy().ravel()]
    assert {cell_text(x) for x in expected} <= set(cells(g.dot))
    assert g.dot.count(">gradient<") == 7 and len(cells(g.dot)) == 4 * 2 + 1 + 4 + 2  # four ops; sum; w; b
    assert "no gradient" not in g.dot  # of x none was asked for
    with pytest.raises(InputError, match="one element"):
        graph(h, gradients=True)
    with pytest.raises(InputError, match="Program"):
        graph(Program.of(loss), gradients=True)


def test_numbers_of_a_step_among_many_say_of_which():
    g = graph(recurrent(12), steps=True, values=True)
    assert "step 6:" in g.dot


def test_of_several_outputs_the_first_that_is_used_is_shown():
    parts = Tensor(np.arange(3, dtype=np.float32), requires_grad=True, name="a").split([1, 2])
    for used, shown in ((parts[0].tanh(), ["0"]), (parts[1].tanh(), ["1", "2"]), (parts[1] * parts[0], ["0"])):
        assert cells(graph(used, values=True).dot)[:len(shown)] == shown
    assert cells(graph(parts, values=True).dot)[0] == "0"  # used by nothing, but asked for
    total = (parts[0] * 3 + parts[1]).sum()
    assert cells(graph(total, gradients=True).dot)[:1] == ["6"]  # the gradient of the part of which the number is


def test_numbers_in_formulas_and_cells_are_written_short_and_right():
    assert [number_text(x) for x in (1000.0, -12345.0, 0.5, 1e9, 3, True, 1e-9, float("inf"))] == \
        ["1000", "-12345", "0.5", "1e+09", "3", "True", "1e-09", "inf"]
    assert [cell_text(x) for x in (999.4, 999.6, 99999.6)] == ["999", "1000", "100000"]


def test_edges_come_from_the_inputs_they_stand_for():
    a, b = parameter(2, name="a"), parameter(2, name="b")
    g = graph(a.exp().where(Tensor(np.array([True, False]), name="c"), b.tanh()))
    at = re.findall("<B>(.*?)</B>", g.dot)
    found = {(at[e.source], at[e.target], e.uses[0][1]) for e in g.drawing.edges}
    names = g.program.instructions[-1].input_names
    assert {(s, names[slot]) for s, target, slot in found if target == "where"} == {
        ("c", "condition"), ("exp", "x"), ("tanh", "y")}
    assert {(s, t) for s, t, _ in found if t != "where"} == {("a", "exp"), ("b", "tanh")}


# ---------------------------------------------------------------------------------------------------------------------
# kinds, legends, fused ops
# ---------------------------------------------------------------------------------------------------------------------
def test_inputs_are_no_constants():
    x = Tensor(np.ones((2, 2), np.float32), name="x")
    y = x * parameter(2, name="w") + Tensor(np.ones((2, 2), np.float32))
    assert [n.kind for n in graph(y).drawing.nodes] == ["op", "op", "input", "parameter", "constant"]


def test_the_legend_explains_what_is_there_and_nothing_else():
    says = graph(loss_of()[0], legend=True).dot
    assert "labelloc=b" in says and all(f">{k}</FONT>" in says for k in ("op", "output", "parameter", "input"))
    assert "constant" not in says and "next time step" not in says and "folded" not in says
    says = graph(recurrent(40), depth=1, legend=True).dot
    assert "to the next time step" in says and "box, folded" in says and "saved" not in says
    assert "saved by the forward pass" in graph(loss_of()[0], backward=True, legend=True).dot
    assert "labelloc=b" not in graph(loss_of()[0]).dot


def test_many_dotted_edges_are_left_out_and_counted():
    loss = chain(40).sum()
    g = graph(loss, backward=True)
    saved = sum(e.saved for e in g.drawing.edges)
    assert saved > 16 and "style=dotted" not in g.dot and f"not drawn: {saved} edges" in g.dot
    assert graph(loss, backward=True, saved=True).dot.count("style=dotted") == saved
    assert "style=dotted" not in graph(loss_of()[0], backward=True, saved=False).dot


def test_a_fused_op_says_so_and_opens():
    def attention():
        with scope("attend"):
            return softmax(parameter(2, 3, name="scores"))
    closed = graph(attention())
    with fused("never"):
        opened = graph(attention())
    assert "fused" in closed.dot and "fused" not in opened.dot and opened.nodes > closed.nodes
    assert "softmax" in opened.drawing.boxes.values()


def test_boxes_of_one_letter_are_called_by_their_ends():
    def layers(name, *numbers):
        y = parameter(2, name="x")
        for n in numbers:
            with scope(f"{name}{n}"):
                y = y.tanh()
        return next(iter(graph(y, steps=True).drawing.boxes.values()))
    assert layers("l", 0, 1) == "l0, l1" and layers("l", 0, 1, 2) == "l0–l2 × 3" and layers("", 4, 5) == "4, 5"
    assert layers("step ", 1, 2, 3) == "step × 3" and layers("layer", 2, 3) == "layer 2–3 × 2"


def test_a_graph_that_was_freed_is_one_line():
    loss = loss_of()[0]
    loss.backward(free_graph=True)
    for t in (loss, loss * 2):
        with pytest.raises(InputError, match="has freed the graph"):
            graph(t)


def test_gradients_and_names_that_cannot_be():
    x = parameter(2, name="x")
    with pytest.raises(InputError, match="got several Tensors"):
        graph([x.sum(), x.exp().sum()], gradients=True)
    with pytest.raises(InputError, match="to be text, got 3"):
        graph(x.sum(), names={3: x})


# ---------------------------------------------------------------------------------------------------------------------
# limits
# ---------------------------------------------------------------------------------------------------------------------
def test_all_of_a_graph_or_a_refusal_with_the_count_and_the_switch():
    assert graph(recurrent(40), full=True).nodes == graph(recurrent(40), max_nodes=10**6).nodes > 250
    says = r"in full there are 1,\d\d\d nodes, more than 1,000: leave out full \(--full\)"
    with pytest.raises(InputError, match=says):
        graph(recurrent(180), full=True)


def test_faults_43_a_translator_over_40_steps_is_drawn_folded_within_five_seconds(tmp_path, capsys, draws):
    for more in ([], ["--backward"]):
        begin = time.process_time(), time.perf_counter()
        assert main(["graph", "translate", "--expand", "--length", "40", "-o", str(tmp_path / "t.svg"), *more]) == 0
        spent = min(time.process_time() - begin[0], time.perf_counter() - begin[1])  # the machine may be shared
        assert spent < 5, spent
        assert int(capsys.readouterr().err.split()[0]) <= 150
        drawn = texts((tmp_path / "t.svg").read_bytes())
        assert "step × 39" in drawn and "42 ops each, 2 shared parameters" in drawn
    (tmp_path / "t.svg").unlink()
    assert main(["graph", "translate", "--expand", "--length", "40", "--full", "-o", str(tmp_path / "t.svg")]) == 2
    error = capsys.readouterr().err
    assert re.search(r"in full there are 3,\d\d\d nodes, more than 1,000: leave out full \(--full\)", error)
    assert error.count("\n") == 1 and not list(tmp_path.iterdir())


@pytest.mark.skipif(os.name == "nt", reason="process groups")
def test_faults_43_a_layout_that_takes_too_long_is_killed_with_its_children(tmp_path):
    code = ("import subprocess, sys, time\n"
            "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
            f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid))\ntime.sleep(600)")
    begin = time.perf_counter()
    with pytest.raises(subprocess.TimeoutExpired):
        render._run([sys.executable, "-c", code], "digraph {}", 3)
    assert time.perf_counter() - begin < 30
    pid = int((tmp_path / "pid").read_text())
    for _ in range(100):
        try:
            os.kill(pid, 0)
            stat = Path(f"/proc/{pid}/stat")
            state = stat.read_text().split()[2] if Path("/proc/self/stat").exists() else None
        except (OSError, ProcessLookupError):
            return
        if state == "Z":  # dead; nobody has asked for its result yet
            return
        time.sleep(0.05)
    pytest.fail("the child of the layout program lives on")


def test_a_thousand_nodes_are_laid_out(draws, tmp_path):
    y = chain(900)
    begin = time.perf_counter()
    assert graph(y, full=True).save(tmp_path / "g.svg").suffix == ".svg"
    assert time.perf_counter() - begin < 30


# ---------------------------------------------------------------------------------------------------------------------
# FAULTS 41 to 44
# ---------------------------------------------------------------------------------------------------------------------
def test_faults_41_labels_of_everything_are_literal(draws):
    for name in NASTY:
        w = parameter(2, name=name)
        with scope(name.replace("/", "|")):
            y = (w * w).sum()
        drawn = texts(graph(y, values=True, gradients=True, legend=True, path=(name, "output")).svg())
        assert name in drawn and f"strong: on a path from {name} to output" in drawn, name
        assert f"∂loss/∂{name}" in texts(graph(y, backward="only").svg()), name


def test_faults_41_node_ids_are_counters():
    assert [f"n{i}" for i in range(6)] == re.findall(r"^\t+(n\d+) \[", graph(small()).dot, re.M)


def test_faults_42_the_cell_of_a_grid_is_the_number_of_the_tensor():
    w = Tensor(np.arange(12, dtype=np.float32).reshape(3, 4), requires_grad=True, name="w")
    assert cells(graph(w.tanh(), values=True).dot)[-12:] == [str(i) for i in range(12)]


def test_faults_43_ids_differ_when_one_picture_is_shown_twice(draws):
    def ids(svg):
        found = re.findall(r'\sid="([^"]+)"', svg)
        assert found and len(found) == len(set(found))
        return set(found)
    g, same = graph(chain(2)), graph(chain(2))
    assert not ids(g._repr_svg_()) & ids(same._repr_svg_()) and g.svg() == same.svg()
    assert not ids(g.svg(key=1)) & ids(g.svg(key=2)) and g.svg(key=1) == same.svg(key=1)


@pytest.mark.parametrize("kind", ["svg", "png", "pdf"])
@pytest.mark.parametrize("gives", [b"", b"<html>no picture</html>", b"\xff\x00\x01"])
def test_a_program_that_gives_anything_else_makes_way(kind, gives, monkeypatch):
    monkeypatch.setattr(render, "_programs", lambda: [("broken", lambda *a: gives), ("good", lambda *a: good)])
    good = {"svg": b"<svg>", "png": b"\x89PNG", "pdf": b"%PDF-"}[kind]
    assert render.render("digraph {}", kind) == good
    good = gives
    with pytest.raises(render.Unavailable, match=f"broken: what it gave is no {kind}; good: "):
        render.render("digraph {}", kind)


def test_a_pdf_has_all_that_the_layout_has(monkeypatch, draws):
    pytest.importorskip("matplotlib")
    if not render._graphviz_pure():
        pytest.skip("graphviz-pure is not installed")
    kept = []
    monkeypatch.setattr("viz.graphs.xdot.save_bytes", lambda fig, *a, **k: kept.append(fig) or b"")
    g = graph(loss_of()[0], legend=True)
    xdot.pdf(render._run([render._graphviz_pure(), "-Tjson"], g.dot, 30))
    (axes,) = kept[0].axes
    said = [t.get_text().strip() for t in axes.texts]
    assert [s for s in texts(g.svg()) if s and s.strip()] and set(said) == {s.strip() for s in texts(g.svg())}
    lines = [p for p in axes.patches if p.get_facecolor()[3] == 0 and len(p.get_path().vertices) > 3]
    assert len(lines) >= g.edges
    at = {t.get_text().strip(): t.get_position() for t in axes.texts}
    assert at["matmul"][1] > at["tanh"][1] > at["sum"][1]  # from top to bottom


KINDS = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF-", "html": b"<!DOCTYPE"}


def without_path(folder, code):
    """A fresh process with an empty PATH that saves a graph in every form: its names and what it said on stderr."""
    code = ("import sys; sys.path[:0] = ['tests', '.']\nfrom test_viz import small\nfrom viz import graph\n"
            "from viz.graphs import render\n"
            f"{code}\nfor kind in {list(KINDS)}:\n"
            f"    print(graph(small(), legend=True).save({str(folder)!r} + '/' + kind + '/g.' + kind).name)")
    for kind in KINDS:
        (folder / kind).mkdir()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | {"PATH": ""})
    assert done.returncode == 0, done.stderr
    return done.stdout.split(), done.stderr.splitlines()


def test_faults_44_without_any_program_the_dot_text_comes(tmp_path):
    names, said = without_path(tmp_path, "render._graphviz_pure = lambda: None\n"
                                         "render.importlib.util.find_spec = lambda name: None")
    assert names == ["g.dot"] * len(KINDS) and len(said) == len(KINDS)
    for kind, line in zip(KINDS, said, strict=True):
        assert f"in place of a .{kind}" in line and "pip install graphviz-pure" in line
        assert [p.name for p in (tmp_path / kind).iterdir()] == ["g.dot"]


def test_faults_44_a_picture_comes_without_dot_on_the_path(tmp_path):
    if not render._graphviz_pure():
        pytest.skip("graphviz-pure is not installed")
    pytest.importorskip("matplotlib")
    names, said = without_path(tmp_path, "")
    assert names == [f"g.{kind}" for kind in KINDS] and not said
    for kind, sign in KINDS.items():
        assert (tmp_path / kind / f"g.{kind}").read_bytes().startswith(sign)


# ---------------------------------------------------------------------------------------------------------------------
# other tools
# ---------------------------------------------------------------------------------------------------------------------
def test_json_is_read_back():
    program = Program.of(recurrent(4) * float("inf"))
    again = from_json(to_json(program))
    assert again.instructions == program.instructions and again.outputs == program.outputs
    assert graph(again).dot == graph(program).dot
    for wrong in ("", "[]", "{}", '{"values": [], "instructions": [{"op": 3}], "outputs": []}',
                  to_json(program).replace('"id": 0', '"id": 7'), "nan"):
        with pytest.raises(InputError, match="expected the JSON of a graph"):
            from_json(wrong)


def test_graphml(tmp_path):
    with scope("a & <b>"):
        y = parameter(2, 3, name='w "x" \x01') * 2
    g = graph([y, recurrent(20)], depth=1)
    root = ET.parse(g.save(tmp_path / "g.graphml")).getroot()
    space = "{http://graphml.graphdrawing.org/xmlns}"
    nodes = {n.get("id"): {d.get("key"): d.text for d in n} for n in root.iter(f"{space}node")}
    assert len(nodes) == g.nodes and len(list(root.iter(f"{space}edge"))) == g.edges
    assert {"a & <b>"} < {n["node-box"] for n in nodes.values()}
    assert 'w "x" �' in {n["node-label"] for n in nodes.values()}
    assert {"20"} < {n["node-steps"] for n in nodes.values()}
    assert all(e.get("source") in nodes and e.get("target") in nodes for e in root.iter(f"{space}edge"))
    keys = {k.get("id") for k in root.iter(f"{space}key")}
    assert {d.get("key") for d in root.iter(f"{space}data")} == keys
    ends = [(e.get("source"), e.get("target")) for e in root.iter(f"{space}edge")]
    assert ends == [(f"n{e.source}", f"n{e.target}") for e in g.drawing.edges]


def test_labels_fit_whatever_font_a_browser_has():
    line = '<text text-anchor="start" x="1" font-family="Helvetica" font-size="10.00">ab &amp;</text>'
    assert 'textLength="20.57"' in fitted(line) and fitted(fitted(line)) == fitted(line)
    bold = line.replace("<text ", '<text font-weight="bold" ')
    assert 'textLength="21.67"' in fitted(bold) and 'textLength="21.67"' not in fitted(line)
    assert fitted(line.replace("ab", "日")) == line.replace("ab", "日")
    assert fitted("<svg>") == "<svg>"


# ---------------------------------------------------------------------------------------------------------------------
# the page
# ---------------------------------------------------------------------------------------------------------------------
@pytest.fixture
def shown(tmp_path, opened, draws):
    """The page of the loss with numbers: matmul 0, add 1, tanh 2, mul 3, sum 4, x 5, w 6, b 7."""
    return opened(graph(loss_of()[0], values=True).save(tmp_path / "g.html"))


def on(page, kind="node"):
    return sorted(page.eval_on_selector_all(f".{kind}.on", "all => all.map(g => g.getAttribute('aria-label') ?? '')"))


def test_hovering_shows_what_a_node_is_made_of_and_what_is_made_of_it(shown):
    shown.hover("[aria-label='b, parameter']")
    assert on(shown) == ["add, op", "b, parameter", "mul, op", "sum, op", "tanh, op"]
    assert shown.inner_text("#said") == "b: made of 0 nodes, used by 4" and len(on(shown, "edge")) == 5
    assert shown.locator(".node:not(.on)").first.evaluate("g => getComputedStyle(g).opacity") == "0.22"
    shown.hover("h1")
    assert on(shown) == [] and shown.inner_text("#said") == ""


def test_a_click_tells_what_a_node_is(shown):
    assert "Nothing chosen" in shown.inner_text("#details")
    shown.click("[aria-label='w, parameter']")
    said = shown.inner_text("#details")
    assert "(2, 2)" in said and "float32" in said and "no gradient yet" in said
    assert shown.locator("#details td").all_inner_texts() == ["0.5", "-1", "2", "0.25"]
    shown.click("[aria-label='add, op']")
    assert "x + b" in shown.inner_text("#details") and "layer" in shown.inner_text("#details")
    shown.keyboard.press("Escape")
    assert "Nothing chosen" in shown.inner_text("#details") and on(shown) == []


def test_the_page_needs_no_mouse(shown):
    shown.focus("[aria-label='tanh, op']")
    assert "tanh" in shown.inner_text("#said")
    shown.keyboard.press("Enter")
    assert shown.inner_text("#details h2") == "tanh"
    for key, where in (("ArrowDown", "mul, op"), ("ArrowUp", "tanh, op"), ("ArrowLeft", "add, op"),
                       ("ArrowRight", "tanh, op")):
        shown.keyboard.press(key)
        assert shown.evaluate("document.activeElement.getAttribute('aria-label')") == where
    box = shown.locator("#picture svg")
    start = box.get_attribute("viewBox")
    shown.keyboard.press("+")
    closer = [float(x) for x in box.get_attribute("viewBox").split()]
    assert closer[2] < float(start.split()[2]) and closer[3] < float(start.split()[3])
    shown.keyboard.press("-")
    shown.keyboard.press("0")
    assert [float(x) for x in box.get_attribute("viewBox").split()] == [float(x) for x in start.split()]
    shown.fill("#find", "SUM")
    shown.keyboard.press("Enter")
    assert shown.inner_text("#details h2") == "sum"
    shown.fill("#find", "nowhere")
    shown.keyboard.press("Enter")
    assert "no node is called nowhere" in shown.inner_text("#said")


def test_wheel_and_drag_move_the_picture(shown):
    box = shown.locator("#picture svg")
    start = box.get_attribute("viewBox").split()
    shown.mouse.move(60, 300)
    shown.mouse.wheel(0, -100)
    shown.wait_for_function(f"document.querySelector('#picture svg').viewBox.baseVal.width < {start[2]} - 1")
    before = [float(x) for x in box.get_attribute("viewBox").split()]
    shown.mouse.down()
    shown.mouse.move(160, 350, steps=4)
    shown.mouse.up()
    after = [float(x) for x in box.get_attribute("viewBox").split()]
    assert after[0] < before[0] and after[1] < before[1] and after[2:] == before[2:]


def test_the_page_shows_nasty_names_as_they_are_and_follows_backward_edges(tmp_path, opened, draws):
    w = parameter(2, name="</script><b>&amp;\\")
    page = opened(graph((w.tanh() * w).sum(), backward=True, values=True).save(tmp_path / "g.html"))
    page.get_by_label("</script><b>&amp;\\, parameter", exact=True).click()
    assert "</script><b>&amp;\\" in page.inner_text("#details h2")
    assert page.evaluate("lines.length") == page.evaluate("edges.length") > 5  # every edge was found in the picture
    drawn = graph((w.tanh() * w).sum(), backward=True, values=True).drawing
    assert page.evaluate("edges.map(e => [e[0], e[1]])") == [[e.source, e.target] for e in drawn.edges]


# ---------------------------------------------------------------------------------------------------------------------
# the command
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("more, says", [
    (["--backward-only"], "∂loss/∂w_q"), (["--expand"], 'label=additive_scores'),
    (["--path", "w_q", "output"], "penwidth=3"),
    (["--values"], "no gradient yet"), (["--gradients"], ">gradient<"), (["--theme", "dark"], "bgcolor=\"#1B1B1B\""),
    (["--direction", "LR"], "rankdir=LR"), (["--scope", "additive"], "label=additive"), (["--full"], "softmax"),
    ([], "labelloc=b")])
def test_options_of_the_command(more, says, tmp_path):
    path = tmp_path / "g.dot"
    assert main(["graph", "attention:additive", "-o", str(path), *more]) == 0
    assert says in path.read_text("utf-8")


@pytest.mark.parametrize("more, says", [
    (["attention:additive", "--path", "w_q", "nothing"], "got nothing; there are"),
    (["qa", "--length", "3"], "no length to choose"),
    (["softmax", "--length", "3"], "--length is of systems"), (["softmax", "--scope", "x"], "has none"),
    (["softmax", "-o", "g.gif"], ".graphml, got 'g.gif'"), (["translate", "--length", "0"], "--length")])
def test_wrong_options_are_one_line(more, says, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["graph", *more]) == 2
    assert says in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_inputs_of_modules_have_the_names_of_forward(tmp_path):
    path = tmp_path / "g.json"
    assert main(["graph", "MultiHeadAttention", "-o", str(path)]) == 0
    names = {v["name"]: v["kind"] for v in json.loads(path.read_text("utf-8"))["values"]}
    assert names["x"] == names["memory"] == "input"


def kinds_of(*arguments, folder):
    """{name: kind} of the named values that the command draws."""
    path = folder / "g.json"
    assert main(["graph", *arguments, "-o", str(path)]) == 0
    return {v["name"]: v["kind"] for v in json.loads(path.read_text("utf-8"))["values"] if v["name"]}


def test_only_what_a_mechanism_declares_is_a_parameter(tmp_path):
    given = dict.fromkeys(("q", "k", "v"), "input")
    assert kinds_of("attention:additive", folder=tmp_path) == {
        **given, **dict.fromkeys(("w_q", "w_k", "v_a"), "parameter"), "mask": "constant"}
    assert kinds_of("scaled_dot", folder=tmp_path) == {**given, "mask": "constant"}
    assert kinds_of("op:affine", folder=tmp_path) == {"x": "input", "w": "input", "b": "input"}
    assert main(["graph", "additive", "--gradients", "-o", str(tmp_path / "g.dot")]) == 0
    dot = (tmp_path / "g.dot").read_text("utf-8")
    fills = dict(re.findall(r"<B>(\w+)</B>.*fillcolor=\"(#\w+)\"", dot))
    assert fills["q"] == fills["mask"] == "#F4F4F4" and fills["w_q"] == "#FFE9B8"
    assert re.search(r"<B>q</B>.*>gradient<", dot)  # though it is an input


def test_an_input_that_a_module_reshapes_is_an_input(tmp_path):
    kinds = kinds_of("GRUCell", folder=tmp_path)
    assert kinds["x"] == kinds["state"] == "input" and kinds["weight_ih"] == "parameter"
    assert "constant" not in kinds.values()


def test_a_leaf_is_a_parameter_unless_it_is_said_to_be_an_input():
    loss, w, b = loss_of()
    g = graph(loss, inputs=[w], values=True)
    assert {v.name: v.kind for v in g.program.values if v.name != "L" and v.name} == {
        "x": "constant", "w": "input", "b": "parameter"}
    assert g.dot.count("no gradient yet") == 1  # a gradient is collected in parameters
    assert from_json(to_json(g.program)) == g.program


@pytest.mark.parametrize("more", [(), ("--depth", "0"), ("--depth", "1"), ("--backward",)])
def test_a_box_that_is_asked_for_is_open(more, tmp_path, capsys):
    assert main(["graph", "translate", "--scope", "step 3", "--expand", *more, "-o", str(tmp_path / "g.dot")]) == 0
    dot = (tmp_path / "g.dot").read_text("utf-8")
    assert "label=\"step 3\"" in dot and "<B>step 3</B>" not in dot and dot.count("<B>") > 20


def test_what_is_added_for_a_gradient_is_said_in_the_legend_and_in_the_help(tmp_path, capsys):
    path = tmp_path / "g.dot"
    for more, said in ((["--backward"], True), (["--gradients"], True), (["--backward-only"], True), ([], False),
                       (["--backward", "--no-legend"], False)):
        assert main(["graph", "softmax", *more, "-o", str(path)]) == 0
        assert ("outputs are squared and added up" in path.read_text("utf-8")) is said, more
    assert main(["graph", "qa", "--gradients", "-o", str(path)]) == 0
    assert "squared" not in path.read_text("utf-8")  # a loss is one number already
    main(["graph", "--help"])
    assert "squared and added up" in " ".join(capsys.readouterr().out.split())


def test_a_picture_that_was_asked_for_and_did_not_come_is_exit_1(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(render, "_programs", lambda: [])
    monkeypatch.chdir(tmp_path)
    assert main(["graph", "softmax", "-o", "a.png"]) == 1
    said = capsys.readouterr()
    assert said.out == "a.dot\n" and "in place of a .png" in said.err and (tmp_path / "a.dot").exists()
    assert main(["graph", "softmax"]) == 0 and (tmp_path / "softmax.dot").exists()
    assert main(["graph", "softmax", "-o", "a.dot"]) == 0


def test_a_page_is_called_like_what_it_shows_and_fills_the_width(tmp_path, opened, draws):
    path = tmp_path / "g.html"
    assert main(["graph", "translate", "--expand", "-o", str(path)]) == 0
    shown = opened(path)
    assert shown.title() == shown.inner_text("h1") == "translate"

    def drawn():
        box, paper = (shown.locator(s).first.bounding_box() for s in ("#picture", "#picture svg .graph > polygon"))
        return paper["width"] / box["width"], paper["height"] / box["height"]
    wide, high = drawn()
    assert 0.9 < wide <= 1.01 and high > 1.5
    shown.keyboard.press("0")
    assert drawn()[0] < 0.6 and drawn()[1] <= 1.01
    shown.click("#fill")
    assert drawn() == pytest.approx((wide, high))
    assert graph(small()).title == "Computation graph"


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    (tmp_path / "g.dot").mkdir()
    with pytest.raises(InputError, match="graph: cannot write"):
        graph(small()).save(tmp_path / "g.dot")
    assert [p.name for p in tmp_path.iterdir()] == ["g.dot"]
