"""Pictures: what a graph shows and how it folds, literal labels, machines that cannot draw, heatmaps and curves."""
import json
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ET

import numpy as np
import pytest

pytest.importorskip("graphviz")

from tinyattn.autograd import grad, scope  # noqa: E402
from tinyattn.errors import InputError  # noqa: E402
from tinyattn.functional import cross_entropy, embedding, stack  # noqa: E402
from tinyattn.ops.gru import GRUScan  # noqa: E402
from tinyattn.program import Instruction, Program, Value  # noqa: E402
from tinyattn.tensor import Tensor  # noqa: E402
from viz import Graph, curves, graph, heatmap, heatmaps, scores_by_group  # noqa: E402
from viz.graphs import render  # noqa: E402
from viz.text import formula, literal, markup, printable  # noqa: E402

SIGNS = {"svg": b"<svg", "pdf": b"%PDF-", "png": b"\x89PNG"}
NASTY = ["<pad>", "<s>", "</s>", "a\\N", "\\", '"quoted"', "a:b", "{x|y}", "&amp;", "R&D", "😀", "日本語", "é",
         "<b>bold</b>", "%3", "[0]", "#", "//", "->", "it's", "$x_1$"]


def parameter(*shape, name=""):
    return Tensor(np.full(shape, 0.5, np.float32), requires_grad=True, name=name)


def small():
    """tanh(x w + b) in a box."""
    x, w, b = Tensor(np.ones((2, 3), np.float32), name="x"), parameter(3, 4, name="w"), parameter(4, name="b")
    with scope("layer"):
        return (x @ w + b).tanh()


def recurrent(steps, start=0):
    """h = tanh(W h + U h + x_t), with two products that only their parameters tell apart, and a loss a step."""
    w, u, h = parameter(4, 4, name="W"), parameter(4, 4, name="U"), parameter(2, 4, name="h0")
    table, losses = parameter(5, 4, name="table"), []
    with scope("decoder"):
        for t in range(start, start + steps):
            with scope(f"step {t}"):
                with scope("cell"):
                    h = (h @ w + h @ u + embedding(table, np.array([t % 5, 1]))).tanh()
                losses.append(cross_entropy(h, np.array([0, 1])))
        return stack(losses).mean()


def chain(n):
    y = parameter(2, name="x")
    for _ in range(n):
        y = y.tanh()
    return y


def titles(g):
    """The bold line of every node, in order."""
    return re.findall(r"<B>(.*?)</B>", g.dot)


def texts(svg):
    return [t.text for t in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


@pytest.fixture
def draws():
    """This machine can draw graphs."""
    if not render._programs():
        pytest.skip("no program that lays out graphs")


# ---------------------------------------------------------------------------------------------------------------------
# what a graph shows
# ---------------------------------------------------------------------------------------------------------------------
GOLDEN = '''\
digraph tinyattn {
	graph [bgcolor=white fontname=Helvetica fontsize=13 nodesep=0.3 rankdir=TB ranksep=0.4]
	node [fontname=Helvetica fontsize=14 height=0.3 margin="0.12,0.06" shape=box]
	edge [arrowsize=0.7 color="#444444" fontcolor="#555555" fontname=Helvetica fontsize=11]
	subgraph cluster_0 {
		graph [color="#8A939C" fillcolor="#FAFBFC" label=layer labeljust=l labelloc=t style="rounded,filled"]
		n0 [label=<<B>matmul</B><BR/><FONT POINT-SIZE="12">x w</FONT>> BLUE]
		n1 [label=<<B>add</B><BR/><FONT POINT-SIZE="12">x + b</FONT>> BLUE]
		n2 [label=<<B>tanh</B>> color="#007A55" fillcolor="#CDEBDD" style="rounded,filled"]
		n3 [label=<<B>x</B><BR/><FONT POINT-SIZE="12">(2, 3)</FONT>> GREY]
		n4 [label=<<B>w</B><BR/><FONT POINT-SIZE="12">(3, 4)</FONT>> AMBER]
		n5 [label=<<B>b</B><BR/><FONT POINT-SIZE="12">(4,)</FONT>> AMBER]
	}
	n3 -> n0
	n4 -> n0
	n0 -> n1 [label=" (2, 4) "]
	n5 -> n1 [label=" (4,) → (2, 4) "]
	n1 -> n2 [label=" (2, 4) "]
}
'''
for word, look in {"BLUE": 'color="#0072B2" fillcolor="#DCEBF7" style="rounded,filled"',
                   "GREY": 'color="#555555" fillcolor="#F4F4F4" style=filled',
                   "AMBER": 'color="#B37700" fillcolor="#FFE9B8" style="filled,bold"'}.items():
    GOLDEN = GOLDEN.replace(word, look)


def test_dot_text_of_a_small_graph():
    assert graph(small()).dot == GOLDEN


def test_the_same_graph_gives_the_same_text():
    assert graph(recurrent(4)).dot == graph(recurrent(4)).dot
    code = ("import sys; sys.path[:0] = ['tests', '.']\nfrom test_viz import *\n"
            "sys.stdout.buffer.write(graph(recurrent(5), depth=2).dot.encode())")
    runs = {subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout for _ in range(2)}
    assert runs == {graph(recurrent(5), depth=2).dot.encode()}  # string hashes differ between processes


def test_a_program_is_drawn_like_its_tensor():
    assert graph(Program.of(small())).dot == GOLDEN


def test_numbers_stand_in_the_formula():
    g = graph(1 - parameter(3, name="x") / 4)
    assert titles(g) == ["div", "sub", "x"]
    assert "x / 4" in g.dot and "1 - y" in g.dot


def test_constants_are_called_after_their_use():
    g = graph(cross_entropy(parameter(2, 3, name="logits"), np.array([0, 2])))
    assert titles(g) == ["cross_entropy", "logits", "target"] and "int64 (2,)" in g.dot


def test_names_from_outside_and_only_for_the_picture():
    a, b = parameter(2), parameter(2)
    c = a * b
    g = graph(c.tanh(), names={"left": a, "right": b, "product": c, "not a tensor": 3})
    assert titles(g) == ["mul", "tanh", "left", "right"] and "product = left * right" in g.dot
    assert (a.name, b.name, c.name) == ("", "", "")


def test_a_name_does_not_repeat_its_boxes():
    w = parameter(2, name="model.layer.weight")
    with scope("model"), scope("layer"):
        y = w * w
    assert titles(graph(y)) == ["mul", "weight"]
    assert titles(graph(w * w)) == ["mul", "model.layer.weight"]


def test_an_op_with_an_optional_input_left_out():
    h, w = parameter(2, 3, name="h"), parameter(9, 3, name="w")
    hs, last = GRUScan()(parameter(2, 4, 9, name="x"), h, w, None, None)
    assert "GRU(x, h)" in graph(hs.sum() + last.sum()).dot


def test_x_times_x_has_two_edges():
    x = parameter(3, name="x")
    assert graph(x * x).edges == 2


def test_several_outputs_and_directions():
    x = parameter(3, name="x")
    g = graph([x.tanh(), x.exp()], direction="LR", theme="print")
    assert titles(g) == ["tanh", "exp", "x"] and "rankdir=LR" in g.dot
    assert g.dot.count('style="rounded,filled,bold"') == 2 and not re.search("#(?!F0F0F0|555555)", g.dot)


def test_values_and_absent_gradients():
    x = parameter(2, name="x")
    y = x * Tensor(np.arange(2, dtype=np.float32) + 1, name="c")
    z = y.sum() + parameter(3, 3, name="big").sum()
    before = graph(z, values=True).dot
    assert before.count("no gradient yet") == 2 and ">gradient<" not in before
    z.backward()
    after = graph(z, values=True).dot
    assert after.count(">gradient<") == 2 and "no gradient" not in after


def test_values_that_are_not_finite():
    x = parameter(30, 3, name="x")
    assert "90 of 90 not finite" in graph((x - x).log(), values=True).dot


@pytest.mark.parametrize("wrong, says", [
    (lambda: graph(3), "int"), (lambda: graph([]), "empty"), (lambda: graph(small(), depth=-1), "-1"),
    (lambda: graph(small(), theme="pink"), "pink"), (lambda: graph(small(), direction="down"), "down"),
    (lambda: graph(small(), max_nodes=0), "0"), (lambda: graph(Tensor([1.0]) * 2), "requires a gradient"),
    (lambda: graph(small(), backward=True), "(2, 4)"), (lambda: graph(Program.of(small()), values=True), "Program")])
def test_clear_refusals(wrong, says):
    with pytest.raises(InputError) as error:
        wrong()
    assert says in str(error.value) and "\n" not in str(error.value)


# ---------------------------------------------------------------------------------------------------------------------
# gradients are graphs
# ---------------------------------------------------------------------------------------------------------------------
def test_the_backward_pass_is_a_graph():
    loss = small().sum()
    w = next(v for op_in in [loss.op.inputs[0].op.inputs[0].op.inputs[0].op] for v in op_in.inputs if v.name == "w")
    g = graph(grad(loss, [w], create_graph=True)[0])
    assert {"tanh", "matmul"} < set(titles(g)) and "label=backward" in g.dot


def test_forward_and_backward_in_one_picture():
    loss = (small() * 2).sum()
    loss.name = "L"
    g = graph(loss, backward=True, saved=True)
    forward = graph(loss)
    assert "∂L/∂w" in g.dot and "∂L/∂b" in g.dot and "∂L/∂x" not in g.dot
    kinds = [(n.kind, n.backward) for n in g.drawing.nodes]
    assert sum(k in ("op", "parameter") and not b for k, b in kinds) == \
        sum(n.kind in ("op", "parameter") for n in forward.drawing.nodes)
    assert all(n.path[0] == "backward" for n in g.drawing.nodes if n.backward)  # the sums between two rules too
    upward = [e for e in g.drawing.edges if g.drawing.nodes[e.source].backward]
    assert upward and g.dot.count("dir=back") == len(upward)
    saved = [e for e in g.drawing.edges if e.saved]
    assert saved and g.dot.count("style=dotted") == len(saved)


def test_the_rule_of_an_op_is_no_box_but_the_scopes_of_the_forward_pass_are():
    def program(scopes):
        values = [Value(i, (2,), "float32", "", "value") for i in range(len(scopes) + 1)]
        values[0].kind = "parameter"
        return Program(values, [Instruction("tanh", [i], [i + 1], s, {}, r"\tanh({x})", ["x"], [None])
                                for i, s in enumerate(scopes)], [len(scopes)])
    g = graph(program(["backward/mul", "backward/mul", "backward/encoder/step 1/mul", "backward/a/loss/backward/log"]))
    assert list(g.drawing.boxes.values()) == ["backward", "encoder", "a", "step 1"]


# ---------------------------------------------------------------------------------------------------------------------
# folding
# ---------------------------------------------------------------------------------------------------------------------
def test_a_small_unrolled_graph_is_shown_whole():
    g = graph(recurrent(3))
    assert [b for b in g.drawing.boxes.values() if "step" in b] == ["step 0", "step 1", "step 2"]
    assert len([t for t in titles(g) if t == "tanh"]) == 3


def test_time_steps_fold_into_one_node():
    g = graph(recurrent(15), depth=1)
    assert titles(g) == ["step × 15", "stack", "mean", "h0"]
    assert "7 ops each, 3 shared parameters" in g.dot
    assert [(e.source, e.target, e.loop, e.only) for e in g.drawing.edges] == \
        [(3, 0, False, "step 0"), (0, 0, True, ""), (0, 1, False, ""), (1, 2, False, "")]
    assert '" step 0 "' in g.dot and '" next step \n (2, 4) "' in g.dot and '" 15 ×  "' in g.dot


def test_depth_zero_is_one_node_without_edges():
    g = graph(recurrent(15), depth=0)
    assert (g.nodes, g.edges) == (1, 0) and titles(g) == ["decoder"] and "107 ops, 4 parameters" in g.dot


def test_too_many_nodes_fold_the_steps_and_keep_what_is_inside():
    g = graph(recurrent(40))
    assert "step × 40" in g.drawing.boxes.values() and g.nodes < 20
    products = [n for n in g.drawing.nodes if n.kind == "op" and g.program.instructions[n.members[0]].op == "matmul"]
    weights = [{g.program.values[g.program.instructions[i].inputs[1]].name for i in n.members} for n in products]
    assert weights == [{"W"}, {"U"}] and [len(n.members) for n in products] == [40, 40]  # twins matched by parameter
    loops = [e for e in g.drawing.edges if e.loop]
    assert len(loops) == 2 and {len(e.uses) for e in loops} == {39}
    only = {e.only for e in g.drawing.edges if g.drawing.nodes[e.source].kind == "parameter"}
    assert only == {"", "step 0"}


def test_steps_can_be_kept_apart_or_laid_together():
    assert "step × 3" in graph(recurrent(3), steps=True).drawing.boxes.values()
    assert titles(graph(recurrent(3), depth=1, steps=False))[:3] == ["step 0", "step 1", "step 2"]
    assert titles(graph(recurrent(3, start=4), depth=1))[0] == "step 4–6 × 3"


def test_steps_that_differ_stay_apart():
    x = parameter(2, name="x")
    for t in range(4):
        with scope(f"step {t}"):
            x = x.tanh() if t % 2 else x.exp()
    assert titles(graph(x, depth=0))[:2] == ["step 0–2 × 2", "step 1–3 × 2"]
    with scope("step 4"):
        x = x.sin()
    assert "step 4" in titles(graph(x, depth=0))


def test_the_largest_depth_that_fits():
    y = parameter(2, name="x")
    for block in "abc":
        with scope(block):
            for part in "uvw":
                with scope(part):
                    for _ in range(10):
                        y = y.tanh()
    assert [graph(y, max_nodes=n).nodes for n in (91, 90, 10, 9, 4, 1)] == [91, 9, 9, 9, 3, 3]
    assert "10 ops" in graph(y, max_nodes=9).dot and "30 ops" in graph(y, max_nodes=4).dot


def test_fifty_thousand_ops():
    y = chain(50_000)
    begin = time.perf_counter()
    with pytest.raises(InputError, match=r"50,001 nodes .*scope.*max_nodes"):
        graph(y)
    assert time.perf_counter() - begin < 60
    with scope("more"):
        z = chain(1_200)
    with pytest.raises(InputError, match=r"depth 3 leaves 1,201 nodes.*--depth"):
        graph(z, depth=3)
    assert graph(z).nodes == 1
    assert graph(chain(1_200), max_nodes=2_000).nodes == 1_201  # the limit can be raised on purpose


def test_thousands_of_steps():
    y = parameter(2, name="x")
    for t in range(5_000):
        with scope(f"step {t}"):
            y = y.tanh() * 2
    g = graph(y)
    assert titles(g) == ["x", "tanh", "mul"] and sum(e.loop for e in g.drawing.edges) == 1


def test_deep_scopes_do_not_recurse():
    x = parameter(2, name="x")
    with scope("/".join(f"s{'x' * (i % 3)}" for i in range(300))):
        y = x.tanh()
    assert len(graph(y).drawing.boxes) == 300


# ---------------------------------------------------------------------------------------------------------------------
# labels are literal
# ---------------------------------------------------------------------------------------------------------------------
def test_labels_are_drawn_as_they_are(draws):
    for name in NASTY:
        with scope(name.replace("/", "|")):
            y = parameter(2, name=name) * parameter(2, name=f"{name} too")
        drawn = texts(graph(y.tanh()).svg())
        assert name in drawn and f"{name} too" in drawn, name                     # leaves
        assert f"{name} * {name} too" in drawn, name                              # formulas
        assert name.replace("/", "|") in drawn, name                              # boxes
        g = graph(y.tanh(), depth=0).svg()
        assert name.replace("/", "|") in texts(g), name                           # closed boxes


def test_unprintable_labels():
    assert printable("a\nb\tc") == "a\\nb\\tc"
    assert printable("\x00\x1b\ud800\u2028") == "\ufffd" * 4
    long = printable("begin" + "x" * 100 + "end")
    assert len(long) == 48 and long.startswith("begin") and long.endswith("end") and "…" in long
    assert printable("x" * 48) == "x" * 48


def test_unprintable_labels_can_be_drawn(draws):
    y = parameter(2, name="a\x00b\x1b\ud800") * parameter(2, name="")
    ET.fromstring(graph(y).svg())


def test_escapes():
    assert markup('<a & "b\\N">') == "&lt;a &amp; &quot;b\\\\N&quot;&gt;"
    assert str(literal("<a>", "\\N & &lt;")) == "<a>\n\\\\N &amp; &amp;lt;"


@pytest.mark.parametrize("tex, names, line", [
    (r"\sigma({x})", {"x": "h"}, "σ(h)"), (r"\frac{{x}}{{y}}", {"x": "a", "y": "b"}, "a / b"),
    (r"{x} \odot {y}", {"x": "a", "y": "b"}, "a * b"), (r"{x}^\top", {"x": "W"}, "Wᵀ"),
    (r"{a}^{-1} {b}", {"a": "A", "b": "c"}, "A⁻¹ c"), (r"\sqrt{{x}}", {"x": "x"}, "√x"),
    (r"e^{{x}}", {"x": "h.w"}, "exp(h.w)"), (r"\lVert {x} \rVert", {"x": "x"}, "‖x‖"),
    (r"\max {x}", {"x": "x"}, "max x"),
    (r"{v}^\top \tanh({q}_t + {k}_s)", {"v": "v", "q": "q", "k": "k"}, "vᵀ tanh(qₜ + kₛ)"),
    (r"-\log\mathrm{{softmax}}({logits})_{{{target}}}", {"logits": "z", "target": "y"}, "-log softmax(z)[y]"),
    (r"\log(1 + e^{{x}})", {"x": "x"}, "log(1 + exp(x))"), ("{x} + {y}", {"x": "{y}", "y": "\\sigma"}, "{y} + \\sigma"),
    (r"{weight}_{ids}", {"weight": "E", "ids": "3"}, "E[3]"), ("", {}, "")])
def test_formulas(tex, names, line):
    assert formula(tex, names) == line


def test_every_op_has_a_formula_without_tex_left():
    from tinyattn.autograd import Op
    for name, op in Op.registry.items():
        line = formula(op.tex, {slot: slot for slot in op.input_names})
        assert "\\" not in line, (name, line)
        assert "{" not in line.replace("{" + "}", ""), (name, line)


# ---------------------------------------------------------------------------------------------------------------------
# files, and machines that cannot draw
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["svg", "png", "pdf"])
def test_files(kind, tmp_path, draws):
    if kind == "pdf":
        pytest.importorskip("matplotlib")
    path = graph(recurrent(3), depth=2).save(tmp_path / f"g.{kind}")
    assert path == tmp_path / f"g.{kind}" and path.read_bytes().startswith(SIGNS[kind] if kind != "svg" else b"<?xml")


def test_pdf_text_and_lines(draws, tmp_path):
    """A PDF made from a layout of graphviz-pure holds as many shapes as the picture has, not a bitmap."""
    if not render._graphviz_pure():
        pytest.skip("graphviz-pure is not installed")
    pytest.importorskip("matplotlib")
    data = render._draw_pure(render._graphviz_pure(), graph(small()).dot, "pdf", 30)
    assert data.startswith(b"%PDF-") and b"/Subtype /Image" not in data and b"/Font" in data


def test_dot_and_json(tmp_path):
    g = graph(small() * float("-inf"))
    assert g.save(tmp_path / "g.dot").read_text("utf-8") == g.dot
    data = json.loads(g.save(tmp_path / "g.json").read_text("utf-8"), parse_constant=lambda c: pytest.fail(c))
    assert [i["op"] for i in data["instructions"]] == ["matmul", "add", "tanh", "mul"]
    assert "-inf" in [v["data"] for v in data["values"]]


def test_two_pictures_in_one_page_have_different_ids(draws):
    ids = [set(re.findall(r'\bid="([^"]+)"', graph(y).svg())) for y in (chain(2), chain(3))]
    assert ids[0] and not ids[0] & ids[1]
    assert graph(chain(2)).svg() == graph(chain(2)).svg()
    assert graph(chain(2))._repr_svg_().startswith("<svg")


def test_an_unknown_suffix_and_a_missing_folder(tmp_path):
    with pytest.raises(InputError, match=r"\.svg.*'g\.gif'"):
        graph(small()).save(tmp_path / "g.gif")
    with pytest.raises(InputError, match="cannot write"):
        graph(small()).save(tmp_path / "absent" / "g.dot")


def test_without_any_program_the_dot_text_is_written(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(render, "_programs", lambda: [])
    g = graph(small())
    assert g.save(tmp_path / "g.svg") == tmp_path / "g.dot"
    assert (tmp_path / "g.dot").read_text("utf-8") == g.dot and not (tmp_path / "g.svg").exists()
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and "pip install graphviz-pure" in err
    assert g._repr_svg_() is None


def test_what_is_looked_for(monkeypatch, tmp_path):
    monkeypatch.setattr(render.shutil, "which", lambda name: None)
    monkeypatch.setattr(render.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(render.sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setattr(render.importlib.util, "find_spec", lambda name: None)
    assert render._programs() == []
    name = "graphviz-pure" + (".exe" if sys.platform == "win32" else "")
    (tmp_path / name).write_text("")
    (tmp_path / name).chmod(0o755)
    monkeypatch.setattr(render.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(render.shutil, "which", lambda name: "/usr/bin/dot" if name == "dot" else None)
    assert [name for name, _ in render._programs()] == ["dot", "graphviz-pure", "pygraphviz"]


def program(monkeypatch, *codes):
    """Stand-ins for layout programs: Python one-liners."""
    monkeypatch.setattr(render, "_programs", lambda: [
        (f"program {i}", lambda dot, kind, timeout, code=code: render._run([sys.executable, "-c", code], dot, timeout))
        for i, code in enumerate(codes)])


def test_a_broken_program_gives_way_to_the_next(monkeypatch):
    program(monkeypatch, "raise SystemExit('no plugin')", "print('<svg>')")
    assert render.render("digraph {}", "svg").strip() == b"<svg>"


def test_a_failed_ranking_is_tried_the_other_way(monkeypatch):
    program(monkeypatch, "import sys\nif '-Gnewrank=true' in sys.argv: print('<svg>')\nelse: sys.exit('Error: rank')")
    assert render.render("digraph {}", "svg").strip() == b"<svg>"


def test_the_layout_is_given_a_time_limit(monkeypatch, tmp_path, capsys):
    program(monkeypatch, "import time; time.sleep(60)", "import sys; sys.exit('Warning: x\\nError: bad plugin\\nmore')")
    begin = time.perf_counter()
    assert graph(small()).save(tmp_path / "g.png", timeout=3).name == "g.dot"
    assert time.perf_counter() - begin < 30
    err = capsys.readouterr().err
    assert "program 0 took longer than 3 s" in err and "program 1: Error: bad plugin" in err and err.count("\n") == 1


def test_large_graphs_tell_the_layout_to_hurry():
    assert "nslimit" not in graph(chain(100)).dot
    assert "nslimit=1" in graph(chain(400), max_nodes=500).dot


def test_a_graph_is_shown_in_words():
    assert repr(graph(small())) == "Graph(nodes=6, edges=5)" and isinstance(graph(small()), Graph)


# ---------------------------------------------------------------------------------------------------------------------
# heatmaps
# ---------------------------------------------------------------------------------------------------------------------
ROWS, COLUMNS = ["le", "$x_1$", "le"], ["the", "<pad>", "the", "_"]
WEIGHTS = np.array([[0.7, 0.1, 0.2, 0.0], [0.0, 0.9, 0.1, 0.0], [0.1, 0.2, 0.7, 0.0]])


@pytest.fixture
def plots():
    pytest.importorskip("matplotlib")


def labels(axes):
    return [t.get_text() for t in axes.get_yticklabels()], [t.get_text() for t in axes.get_xticklabels()]


def test_every_token_has_its_own_cell(plots):
    fig = heatmap(WEIGHTS, ROWS, COLUMNS, "layer 1, head 0")
    axes, bar = fig.axes
    np.testing.assert_array_equal(axes.images[0].get_array(), WEIGHTS)
    assert labels(axes) == (ROWS, COLUMNS) and axes.get_title() == "layer 1, head 0"
    assert list(axes.get_yticks()) == [0, 1, 2] and list(axes.get_xticks()) == [0, 1, 2, 3]
    left, right, bottom, top = axes.images[0].get_extent()
    assert (left, right) == (-0.5, 3.5) and (bottom, top) == (2.5, -0.5)  # row 0 on top
    assert not any(t.get_parse_math() for t in [*axes.get_xticklabels(), *axes.get_yticklabels(), axes.title])


def test_the_scale_is_fixed(plots):
    for weights in (WEIGHTS, WEIGHTS / 10, np.zeros((3, 4))):
        fig = heatmap(weights, ROWS, COLUMNS)
        assert fig.axes[0].images[0].get_clim() == (0, 1) and fig.axes[1].get_ylim() == (0, 1)


def test_weights_of_a_tensor_that_requires_a_gradient(plots):
    heatmap(parameter(3, 4).softmax(-1), ROWS, COLUMNS)


def test_white_space_tokens_are_seen(plots):
    fig = heatmap(np.eye(5), [" ", "", "\n", "\t", " a"], "abcde")
    assert labels(fig.axes[0])[0] == ["␣", "∅", "\\n", "\\t", " a"]


def test_gold_links_are_framed(plots):
    fig = heatmap(WEIGHTS, ROWS, COLUMNS, gold=[(0, 0), (2, 3)])
    centres = [tuple(np.round(p.get_center(), 6)) for p in fig.axes[0].patches]
    assert centres == [(0, 0), (3, 2)]
    (legend,) = fig.legends
    assert [t.get_text() for t in legend.get_texts()] == ["framed: gold"]
    frame, mark = fig.axes[0].patches[0].get_edgecolor(), legend.get_patches()[0].get_edgecolor()
    assert frame == mark and frame[0] > 0.8 > 0.5 > frame[2]
    box, picture = (a.get_window_extent(fig.canvas.get_renderer()) for a in (legend, fig.axes[0]))
    assert not box.overlaps(picture) and box.y0 >= 0
    assert not heatmap(WEIGHTS, ROWS, COLUMNS).legends  # nothing is said of frames that are not there
    assert len(heatmaps([(WEIGHTS, ROWS, COLUMNS, "", g) for g in ([], [(1, 1)], [(0, 0)])]).legends) == 1


def test_several_maps(plots):
    fig = heatmaps([(WEIGHTS, ROWS, COLUMNS, "head 0"), (WEIGHTS[:2], ROWS[:2], COLUMNS), (WEIGHTS.T, COLUMNS, ROWS)],
                   title="all")
    assert len(fig.axes) == 4 and [labels(a)[0] for a in fig.axes[:3]] == [ROWS, ROWS[:2], COLUMNS]
    boxes = [a.get_tightbbox(fig.canvas.get_renderer()) for a in fig.axes]
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


def test_long_sentences_stay_readable(plots):
    words = [f"word{i}" for i in range(50)]
    fig = heatmap(np.eye(50), words, words)
    axes = fig.axes[0]
    fig.canvas.draw()
    boxes = [t.get_window_extent() for t in axes.get_yticklabels()]
    assert all(not a.overlaps(b) for a, b in zip(boxes, boxes[1:], strict=False))
    boxes = [t.get_window_extent() for t in axes.get_xticklabels()]
    assert all(not a.overlaps(b) for a, b in zip(boxes, boxes[1:], strict=False))


@pytest.mark.parametrize("kind", ["svg", "pdf", "png"])
def test_heatmap_files(kind, tmp_path, plots, capfd, recwarn):
    for run in "ab":
        path = tmp_path / f"{run}.{kind}"
        heatmap(np.eye(3), ["日本語", "😀", "\U0010fffd"], ["<s>", "a&b", "$"], "R&D <x> $y$", path)
    data = (tmp_path / f"a.{kind}").read_bytes()
    assert data.startswith(SIGNS[kind] if kind != "svg" else b"<?xml") and data == (tmp_path / f"b.{kind}").read_bytes()
    assert capfd.readouterr().err == "" and not recwarn.list
    if kind == "svg":
        assert {"日本語", "😀", "<s>", "a&b", "$", "R&D <x> $y$"} <= set(texts(data))


def test_nothing_global_is_touched(plots):
    code = ("import sys, numpy as np\nfrom viz import heatmap\nassert 'matplotlib' not in sys.modules\n"
            "fig = heatmap(np.eye(2), 'ab', 'cd')\nassert 'matplotlib.pyplot' not in sys.modules\n"
            "assert fig._repr_png_().startswith(bytes([137]))")
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("wrong, says", [
    (lambda: heatmap(WEIGHTS.T, ROWS, COLUMNS), "(3 rows, 4 columns)"),
    (lambda: heatmap(WEIGHTS[0], ROWS, COLUMNS), "(4,)"),
    (lambda: heatmap(np.zeros((0, 2)), [], "ab"), "nothing"), (lambda: heatmaps([]), "none"),
    (lambda: heatmap(np.full((1, 1), np.nan), ["a"], ["b"]), "nan"),
    (lambda: heatmap([["x"]], ["a"], ["b"]), "numbers"),
    (lambda: heatmap(WEIGHTS, ROWS, COLUMNS, path="map.gif"), "map.gif"),
    (lambda: heatmap(WEIGHTS, ROWS, COLUMNS, gold=[(0, 4)]), "(0, 4)"),
    (lambda: heatmap(WEIGHTS, ROWS, COLUMNS, path="absent/folder/map.png"), "cannot write"),
    (lambda: curves({"a": [{"step": 1}]}), "none"), (lambda: curves({"a": [{"loss": 1.0}]}), "'step'"),
    (lambda: curves({}), "none"), (lambda: scores_by_group({}), "at least one"),
    (lambda: scores_by_group({"a": [("<=10", 3, 5.0)], "b": [("<=9", 3, 5.0)]}), "<=9")])
def test_clear_refusals_of_plots(wrong, says, plots):
    with pytest.raises(InputError) as error:
        wrong()
    assert says in str(error.value) and "\n" not in str(error.value)


def test_without_matplotlib(monkeypatch):
    for name in ("matplotlib.figure", "matplotlib.backends.backend_agg"):
        monkeypatch.setitem(sys.modules, name, None)
    for draw in (lambda: heatmap(WEIGHTS, ROWS, COLUMNS), lambda: curves({"a": [{"step": 1, "loss": 2.0}]}),
                 lambda: scores_by_group({"a": [("all", 3, 5.0)]})):
        with pytest.raises(InputError, match=r"pip install tinyattn\[plot\]"):
            draw()


# ---------------------------------------------------------------------------------------------------------------------
# curves
# ---------------------------------------------------------------------------------------------------------------------
def test_learning_curves(plots, tmp_path):
    log = [{"step": s, "loss": 2.0 / s, "lr": 1.0, **({"validation_loss": 3.0 / s} if s % 2 == 0 else {})}
           for s in range(1, 9)]
    log += [{"step": 8, "loss": 0.5}, {"step": 9, "loss": float("nan")}, {"step": 10, "epoch": 2}]
    fig = curves({"GRU $x_1$": log, "<none>": log[:4]}, tmp_path / "c.svg", "a & b")
    lines = {line.get_label(): line for line in fig.axes[0].get_lines()}
    assert set(lines) == {"GRU $x_1$, training", "GRU $x_1$, validation", "<none>, training", "<none>, validation"}
    expected = [(s, 2 / s) for s in range(1, 8)] + [(8, 0.5)]  # step 8 came twice, the loss of step 9 is no number
    np.testing.assert_allclose(lines["GRU $x_1$, training"].get_xydata(), expected)
    np.testing.assert_allclose(lines["GRU $x_1$, validation"].get_xydata(), [(s, 3 / s) for s in (2, 4, 6, 8)])
    assert lines["<none>, training"].get_color() != lines["GRU $x_1$, training"].get_color()
    ET.parse(tmp_path / "c.svg")


def test_long_runs_get_a_running_mean(plots):
    noise = np.random.default_rng(0).normal(size=400)
    fig = curves({"a": [{"step": i, "loss": 5 + n} for i, n in enumerate(noise)]})
    raw, mean = fig.axes[0].get_lines()
    assert len(raw.get_ydata()) == len(mean.get_ydata()) == 400
    np.testing.assert_allclose(mean.get_ydata()[200], 5 + noise[190:211].mean())
    np.testing.assert_allclose(mean.get_ydata()[[0, 1, -1]], [5 + noise[:11].mean(), 5 + noise[:12].mean(),
                                                              5 + noise[-11:].mean()])


def test_the_axis_fits_the_mean_and_the_validation(plots):
    """One wild batch does not flatten the rest: its pale line is cut."""
    log = [{"step": i, "loss": 2.0 + (i % 2)} for i in range(400)]
    log.append({"step": 400, "loss": 2.0, "validation_loss": 9.0})
    log[200]["loss"] = 1000.0
    axes = curves({"a": log}).axes[0]
    top = axes.get_lines()[1].get_ydata().max()
    assert 40 < top < 60 and top < axes.get_ylim()[1] < 60 and axes.get_ylim()[0] < 2.6
    few = curves({"a": [{"step": i, "loss": 100.0 if i == 9 else 4.0} for i in range(20)]}).axes[0]
    assert few.get_ylim()[1] > 100  # without a mean, all of the line is seen
    noisy = curves({"a": [{"step": i, "loss": 0.01 if i > 200 else 3.0} for i in range(400)]}).axes[0]
    assert noisy.get_yscale() == "log" and 0.005 < noisy.get_ylim()[0] < 0.01 and 3 < noisy.get_ylim()[1] < 5


def test_scores_by_group(plots, tmp_path):
    models = {"attention": [("<=10", 40, 99.0), ("11-25", 30, 98.0), (">25", 10, 97.0)],
              "none": [("<=10", 40, 97.0), ("11-25", 30, 55.5), (">25", 10, None)]}
    fig = scores_by_group(models, tmp_path / "b.png")
    axes = fig.axes[0]
    assert [[round(p.get_height(), 1) for p in bars] for bars in axes.containers] == [[99, 98, 97], [97, 55.5, 0]]
    assert [t.get_text() for t in axes.get_xticklabels()] == ["≤ 10\nn = 40", "11-25\nn = 30", "> 25\nn = 10"]
    assert [t.get_text() for t in axes.texts] == ["99.0", "98.0", "97.0", "97.0", "55.5", "–"]
    assert [t.get_text() for t in axes.get_legend().get_texts()] == ["attention", "none"]
    assert (tmp_path / "b.png").read_bytes().startswith(SIGNS["png"])
    ends = sorted((p.get_x(), p.get_x() + p.get_width()) for p in axes.patches)
    assert all(a[1] <= b[0] + 1e-9 for a, b in zip(ends, ends[1:], strict=False))  # no bar over another


@pytest.mark.parametrize("names, models, panels", [
    ([f"relation between {i} and others" for i in range(15)], 1, 1), ([f"word{i}" for i in range(39)], 2, 3),
    (["comparison", "conjunction", "a very long name of a class"], 1, 1)])
def test_many_or_long_classes_get_a_row_each(names, models, panels, plots, tmp_path):
    rows = [(name, 1000 + i, None if i == 1 else 100 - i) for i, name in enumerate(names)]
    fig = scores_by_group({f"model {m}": rows for m in range(models)}, tmp_path / "rows.png", of="$class$", score="F1")
    fig.canvas.draw()
    assert len(fig.axes) == panels
    ticks = [t for axes in fig.axes for t in axes.get_yticklabels()]
    assert [t.get_text() for t in ticks] == [f"{name}  n = {1000 + i:,}" for i, name in enumerate(names)]
    lengths = [p.get_width() for axes in fig.axes for p in axes.containers[-1]]
    assert lengths == [0 if i == 1 else 100 - i for i in range(len(names))]
    assert fig.axes[0].yaxis_inverted() and fig.axes[0].texts[1].get_text() == "–"
    boxes = [t.get_window_extent() for axes in fig.axes for t in [*axes.get_yticklabels(), *axes.texts]]
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    wide, high = fig.get_size_inches()
    assert high < 10 and wide < 2.4 * max(high, 6)
    assert [t.get_text() for t in fig.legends[0].get_texts()] == [f"model {m}" for m in range(models)]
    assert [t.get_text() for t in fig.texts] == ["F1 by $class$"]


def test_a_title_may_have_lines(plots):
    fig = heatmap(np.eye(2), ["a", "b"], ["c", "d"], "hop 1\nof 3")
    assert fig.axes[0].get_title() == "hop 1\nof 3"
