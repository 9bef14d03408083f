"""Backpropagation step by step: the walks give the engine's gradients in the engine's order, a wrong order gives wrong
ones where it must, formulas say what the rules do, and the page turns."""
import json
import math
import re
import sys
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyattn import autograd
from tinyattn.autograd import fused, grad
from tinyattn.cli import main
from tinyattn.commands import names
from tinyattn.errors import InputError
from tinyattn.tensor import Tensor
from viz import Steps, steps
from viz.backprop.draw import _extent
from viz.backprop.examples import EXAMPLES, LABELS
from viz.backprop.formula import rule_of
from viz.backprop.layout import _spread, layout
from viz.backprop.marks import tint
from viz.backprop.record import Recording
from viz.backprop.tags import _shared
from viz.backprop.walk import topological

COLDEST, HOTTEST = "#80B8E5", "#F4BF74"


def example(name, **more):
    output, leaves = EXAMPLES[name]()
    return steps(output, leaves, labels=LABELS.get(name), **more)


def parameter(values, name=""):
    return Tensor(np.array(values, np.float64), requires_grad=True, name=name)


def lines(walk, order=None):
    return [line for frame in walk.frames_of(order or walk.order) for line in frame["text"]]


# ---------------------------------------------------------------------------------------------------------------------
# the walks
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_end_with_the_gradients_of_the_engine(name):
    output, leaves = EXAMPLES[name]()
    asked = {n: t for n, t in leaves.items() if isinstance(t, Tensor) and t.is_leaf and t.requires_grad}
    truth = dict(zip(asked, grad(output, list(asked.values())), strict=True))
    last = steps(output, leaves).frames[-1]
    assert set(last["numbers"]["grads"]) == set(asked) and last["numbers"]["wrong"] == []
    for n, g in last["numbers"]["grads"].items():
        np.testing.assert_allclose(g, truth[n].numpy(), rtol=1e-5, atol=1e-7)
    assert "Each rule agrees with finite differences here: ✓" in last["text"] and last["title"] == (
        "the gradients of the inputs")


def test_the_first_lecture_in_numbers():
    last = example("twice").frames[-1]["numbers"]["grads"]
    assert last == {"a": 4.0}
    assert example("product").frames[-1]["numbers"]["grads"] == {"a": 6.0, "b": -4.0, "c": -2.0, "f": 4.0}
    y = math.tanh(0.88)
    assert example("neuron").frames[-1]["numbers"]["grads"]["w1"] == pytest.approx(2 * (1 - y * y), rel=1e-5)


def test_the_examples_compute_what_they_say():
    def sigmoid(t):
        return 1 / (1 + np.exp(-t))

    output, t = EXAMPLES["gru"]()
    x, h0, wr, ur, wz, uz, wn, un = (t[n].item() for n in ("x", "h0", "wr", "ur", "wz", "uz", "wn", "un"))
    z, r = sigmoid(wz * x + uz * h0), sigmoid(wr * x + ur * h0)
    assert output.item() == pytest.approx(z * h0 + (1 - z) * np.tanh(wn * x + r * (un * h0)), rel=1e-5)
    output, t = EXAMPLES["attention"]()
    q, k, v, target = (t[n].numpy() for n in ("q", "k", "v", "target"))
    e = np.exp(q @ k.T / np.sqrt(2))
    assert output.item() == pytest.approx((((e / e.sum()) @ v - target) ** 2).sum(), rel=1e-5)


@pytest.mark.parametrize("name", ["twice", "diamond", "attention", "gru"])
def test_nodes_are_visited_in_the_order_of_the_engine(name, monkeypatch):
    output, leaves = EXAMPLES[name]()
    order, visit = [], autograd._visit
    monkeypatch.setattr(autograd, "_visit", lambda op, *rest: order.append(op) or visit(op, *rest))
    output.backward()
    graph = Recording(output, leaves)
    shown = [f.current for f in topological(graph).frames if f.phase == "backward" and f.current >= 0]
    assert [graph.nodes[i].op for i in shown] == order and len(order) == len(graph.order)


def test_a_frame_says_what_comes_in_what_is_sent_and_what_is_added_up():
    frame = example("twice").frames[4]
    assert (frame["number"], frame["phase"], frame["node"], frame["title"]) == (5, "backward", "c", "c = b + b")
    first, second = frame["numbers"]["sent"]
    assert (first["to"], first["part"], first["before"], first["after"]) == ("b", 1.0, None, 1.0)
    assert (second["part"], second["before"], second["after"]) == (1.0, 1.0, 2.0)
    assert "grad b: nothing yet, now 1 (1 of 2)" in frame["text"] and "grad b: 1 + 1 = 2 (2 of 2)" in frame["text"]


def test_what_is_shown_is_local_slope_times_what_came_in():
    frame = next(f for f in example("neuron").frames if f["title"] == "y = tanh(z)" and f["phase"] == "backward")
    sent, = frame["numbers"]["sent"]
    assert sent["rule"] == "g · (1 − y · y)" and sent["local"] == "1 − y · y"
    assert sent["part"] == pytest.approx(frame["numbers"]["g"] * sent["slope"])


def test_stretched_axes_are_summed_in_a_line_of_their_own():
    x, b = parameter(np.arange(6.0).reshape(2, 3), "x"), parameter([1.0, 2, 3], "b")
    walk = steps(((x * b) * (x * b)).sum())
    said = next(line for line in lines(walk) if "stretched" in line)
    assert said.startswith("b was stretched (3,) → (2, 3): sum over the copies = [")
    assert not any("x was stretched" in line for line in lines(walk))


def test_before_anything_arrives_a_gradient_is_absent_and_not_0():
    walk = example("twice")
    at = [walk.walks["topological"].frames[i].grads for i in range(7)]
    assert at[0] == at[2] == {} and set(at[3]) == {(2, 0)} and set(at[5]) == {(0, 0), (1, 0), (2, 0)}
    assert walk.svg(3).count(">–</text>") == 3 and walk.svg(5).count(">–</text>") == 1 and ">–<" not in walk.svg(6)


# ---------------------------------------------------------------------------------------------------------------------
# the wrong order
# ---------------------------------------------------------------------------------------------------------------------
def test_the_wrong_order_uses_a_gradient_that_is_not_complete():
    walk = example("twice", order="wrong")
    last = walk.frames[-1]
    assert last["numbers"]["grads"] == {"a": 2.0} and last["numbers"]["truth"] == {"a": 4.0}
    assert last["numbers"]["wrong"] == ["a"] and "grad a = 2 not 4" in last["text"]
    assert "grad b = 1 after 1 of 2 parts; complete: 2" in last["text"]
    early = next(f for f in walk.frames if "1 of 2 parts arrived: NOT complete" in f["text"])
    assert early["node"] == "b" and any("too late: b was visited before" in line for line in lines(walk))


@pytest.mark.parametrize("name, wrong", [("twice", True), ("diamond", True), ("attention", True), ("gru", True),
                                         ("product", False), ("neuron", False), ("two_layer", False)])
def test_the_wrong_order_is_wrong_where_a_value_is_used_twice_and_says_so_where_not(name, wrong):
    walk = example(name)
    assert bool(walk.frames_of("wrong")[-1]["numbers"]["wrong"]) is wrong
    assert ("right all the same" in walk.why("wrong")) is not wrong
    if not wrong:
        assert "Here the wrong order gives the right numbers." in walk.frames_of("wrong")[-1]["text"]


def test_the_wrong_order_says_why_it_is_wrong():
    last = example("twice").frames_of("wrong")[-1]["text"]
    why = " ".join(last[last.index("Why?") + 1:])
    assert "b is used 2 times. Its gradient is the sum of 2 parts" in why and "b was visited after 1 of them" in why
    assert "only after all nodes that use it" in why
    assert not any("Why?" in line for line in lines(example("neuron"), "wrong"))


def test_each_node_is_visited_once_in_the_wrong_order():
    for name in EXAMPLES:
        frames = [f for f in example(name).walks["wrong"].frames if f.phase == "backward" and f.current >= 0]
        visits = [f.current for f in frames if not any("when the visit began" in str(row) for row in f.rows)]
        assert len(visits) == len(set(visits))


# ---------------------------------------------------------------------------------------------------------------------
# any graph
# ---------------------------------------------------------------------------------------------------------------------
UNARY = {"tanh": Tensor.tanh, "sigmoid": Tensor.sigmoid, "exp": lambda t: (t * 0.1).exp(), "sin": Tensor.sin,
         "sum": lambda t: t.sum(-1, keepdims=True), "neg": lambda t: -t, "softmax": lambda t: t.softmax(-1)}
BINARY = {"add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
          "div": lambda a, b: a / (b * b + 1), "max": Tensor.maximum}
SHAPES = [(1,), (3,), (2, 3), (2, 1), (1, 3)]


@st.composite
def graphs(draw):
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    pool = [parameter(rng.normal(size=draw(st.sampled_from(SHAPES)))) for _ in range(draw(st.integers(1, 3)))]
    leaves = list(pool)
    for _ in range(draw(st.integers(1, 7))):
        if draw(st.booleans()):
            pool.append(UNARY[draw(st.sampled_from(sorted(UNARY)))](draw(st.sampled_from(pool))))
        else:
            a, b = draw(st.sampled_from(pool)), draw(st.sampled_from(pool))  # often the same one twice
            pool.append(BINARY[draw(st.sampled_from(sorted(BINARY)))](a, b))
    return (pool[-1] * pool[-1]).sum(), leaves


@settings(max_examples=60, deadline=None, derandomize=True)
@given(graphs())
def test_random_graphs_end_with_the_gradients_of_the_engine(made):
    output, leaves = made
    walk = steps(output)
    truth = {id(t): g for t, g in zip(leaves, grad(output, leaves, allow_unused=True), strict=True)}
    assert walk.frames[-1]["numbers"]["wrong"] == []
    for node in walk.picture.graph.asked:
        np.testing.assert_allclose(walk.walks["topological"].grads[node.id, 0], truth[id(node.tensor)].numpy(),
                                   rtol=1e-9, atol=1e-12)
    for order in ("topological", "wrong"):  # what is sent adds up to what is there
        frames, final = walk.frames_of(order), walk.walks[order].grads
        for node in walk.picture.graph.asked:
            parts = [s["part"] for f in frames for s in f["numbers"].get("sent", ()) if s["to"] == node.names[0]]
            np.testing.assert_allclose(np.sum(parts, axis=0), final[node.id, 0], rtol=1e-9, atol=1e-12)


def test_a_chain_with_a_square_in_it_is_wrong_only_in_the_wrong_order():
    """By hand: y = (x^2)^2 used twice each; the wrong order halves the gradient at the inner square."""
    x = parameter(3.0, "x")
    u = x * x
    walk = steps(u * u, {"x": x, "u": u})
    assert walk.frames[-1]["numbers"]["grads"] == {"x": 108.0}
    assert walk.frames_of("wrong")[-1]["numbers"]["grads"] == {"x": 54.0}


@pytest.mark.parametrize("mode", ["auto", "never"])
def test_ops_with_several_outputs_and_fused_ops_can_be_walked(mode, rng):
    from tinyattn.nn import GRU
    layer = GRU(2, 2)
    with fused(mode):
        out, state = layer(Tensor(rng.normal(size=(1, 2, 2)).astype(np.float32)))
        walk = steps((out * out).sum() + state.sum(), layer)
    assert walk.frames[-1]["numbers"]["wrong"] == []
    assert any("readable twin" in line for line in lines(walk)) is (mode == "auto")


# ---------------------------------------------------------------------------------------------------------------------
# formulas
# ---------------------------------------------------------------------------------------------------------------------
ELEMENTWISE = ["add", "sub", "mul", "div", "pow", "neg", "exp", "log", "sqrt", "abs", "tanh", "sigmoid", "sin", "cos",
               "softplus", "erf", "gelu"]


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_the_formula_of_a_local_slope_is_what_the_rule_computes(name, rng):
    """The printed formula, evaluated by Python, against finite differences of the op itself."""
    words = {f.__name__: f for f in (np.exp, np.log, np.cos, np.sin, np.sign)}
    words |= {"np": np, "erf": np.vectorize(math.erf), "sigmoid": lambda t: 1 / (1 + np.exp(-t))}
    kind = names.ops()[name]
    values = {n: rng.uniform(0.5, 1.5, size=4) for n in kind.input_names}
    op = kind()
    out = op(*[parameter(v) for v in values.values()])
    for slot, n in enumerate(values):
        _, local, slope = rule_of(out.op, slot, list(values), ["out"])

        def f(shift, n=n):
            return kind()(*[Tensor(a + shift * (m == n)) for m, a in values.items()]).numpy()

        np.testing.assert_allclose(slope, (f(1e-6) - f(-1e-6)) / 2e-6, rtol=1e-6, atol=1e-8)
        assert local.text
        text = re.sub("[·⊙]", "*", local.text).replace("−", "-").replace("^", "**").replace("σ", "sigmoid")
        text = re.sub(r"([\w.]+) where (\w+) else ([\w.]+)", r"np.where(\2, \1, \3)", text)
        there = {**words, **values, **local.used}
        np.testing.assert_allclose(eval(text, {}, there), slope, rtol=5e-3)  # numbers are printed with 3 digits


def test_formulas_keep_the_brackets_they_need():
    a, b, c = (parameter(v, n) for v, n in ((2.0, "a"), (3.0, "b"), (5.0, "c")))
    d = b - c
    walk = steps(a - d, {"a": a, "b": b, "c": c, "d": d})
    assert [f["title"] for f in walk.frames[1:3]] == ["d = b − c", "L = a − d"]
    sent = [s for f in walk.frames for s in f["numbers"].get("sent", ())]
    assert [(s["to"], s["rule"], s["local"]) for s in sent] == [("a", "g", "1"), ("d", "−g", "−1"), ("b", "g", "1"),
                                                               ("c", "−g", "−1")]
    quotient = steps(a / (b * c)).frames_of("topological")
    assert {s["rule"] for f in quotient for s in f["numbers"].get("sent", ())} >= {"g / v1", "−g · L / v1", "g · b"}


def test_the_rule_of_a_product_of_matrices_is_shown_with_its_matrices():
    x, w = parameter(np.ones((2, 3)), "x"), parameter(np.ones((3, 2)), "w")
    y = x @ w
    frames = steps(y.sum(), {"x": x, "w": w, "y": y}).frames
    frame = next(f for f in frames if f["node"] == "y" and f["phase"] == "backward")
    assert [s["rule"] for s in frame["numbers"]["sent"]] == ["g wᵀ", "xᵀ g"]
    assert sum(line.startswith(("w = [", "x = [")) for line in frame["text"]) == 2
    assert all(s["local"] == "" for s in frame["numbers"]["sent"])  # no slope element by element


def test_the_rules_of_every_op_can_be_read(rng):
    for name, kind in names.ops().items():
        attributes, inputs = next(iter(kind.samples(np.random.default_rng(0))))
        tensors = [None if x is None else Tensor(x, requires_grad=np.asarray(x).dtype.kind == "f") for x in inputs]
        out = kind(**attributes)(*tensors)
        op = (out if isinstance(out, Tensor) else out[0]).op
        for slot, t in enumerate(tensors):
            if op is not None and t is not None and t.requires_grad and not (op.composed and not any(op.rules)):
                whole, local, slope = rule_of(op, slot, [f"x{i}" for i in range(len(tensors))],
                                              [f"y{i}" for i in range(len(op.outs))])
                assert whole is not None, name
                assert (local is None) is (slope is None), name


# ---------------------------------------------------------------------------------------------------------------------
# names, limits, bad input
# ---------------------------------------------------------------------------------------------------------------------
NASTY = ["<pad>", "</script>", "a\\N", '"', "&amp;", "$x_1$", "日本語", "😀", "\x1b[31m", "x" * 80, "<!--"]


def test_names_are_text_and_differ(tmp_path):
    leaves = [parameter(float(i), name) for i, name in enumerate([*NASTY, "w", "w"])]
    total = leaves[0] * leaves[0]
    for leaf in leaves[1:]:
        total = total + leaf
    walk = steps(total)
    known = [name for node in walk.picture.graph.nodes for name in node.names]
    assert len(set(known)) == len(known) and {"w", "w_2"} <= set(known)
    shown = "".join(ET.fromstring(walk.svg(1)).itertext())
    assert "<pad>" in shown and "</script>" in shown and "\x1b" not in shown and "日本語" in shown
    assert walk.html().count("<script") == 2 and "</script>" not in json.loads(_data(walk.html()))["groups"]


def test_labels_are_drawn_and_checked():
    assert ">cat</text>" in example("attention").svg(1)
    output, leaves = EXAMPLES["attention"]()
    for labels in ({"k": (("a",), None)}, {"nosuch": (("a",), None)}, {"k": (None, ("a",) * 3)}):
        with pytest.raises(InputError, match="^steps: labels of"):
            steps(output, leaves, labels=labels)


@pytest.mark.parametrize("names, labels, reason", [
    (["x"], None, "names: expected {name: Tensor} or a module, got list"), ("ab", None, "names: .* got str"),
    (None, [1], "labels: expected"), (None, {"m": 3}, "labels: expected"), (None, {"m": (3, None)}, "labels: expected"),
    (None, {"m": ("ab",)}, "labels of 'm'")])
def test_names_and_labels_of_another_kind_are_refused(names, labels, reason):
    m = parameter(np.ones((2, 2)), "m")
    with pytest.raises(InputError, match=f"^steps: {reason}"):
        steps((m * m).sum(), names, labels=labels)


def test_labels_are_printable_and_short_and_a_title_is_text():
    m = parameter(np.ones((2, 2)), "m")
    walk = steps((m * m).sum(), labels={"m": ((1, "\0\x1b"), ("</svg>", "x" * 1000))}, title=3)
    shown = walk.svg(1)
    ET.fromstring(shown)
    assert "\0" not in shown and "x" * 13 not in shown and "&lt;/svg&gt;" in shown and "<h1>3</h1>" in walk.html()


def test_a_value_that_was_changed_in_place_is_refused():
    x = parameter([1.0, 2.0], "x")
    y = (x * x).sum()
    with autograd.no_grad():
        x.copy_(Tensor([3.0, 4.0]))
    with pytest.raises(InputError, match="changed in place"):
        steps(y, {"x": x})


def test_numbers_that_are_none_and_arrays_without_elements_are_walked():
    for x, y in ((np.nan, 2.0), (np.inf, 0.0), (1e308, 1e308), (np.zeros((0, 3)), np.ones(3)), (np.ones((1, 1, 1)), 2)):
        walk = steps((parameter(x, "x") * parameter(y, "y")).sum())
        assert walk.frames[-1]["numbers"]["wrong"] == [] and walk.svg(len(walk.frames))


def test_what_cannot_be_walked_is_refused_with_a_reason():
    x = parameter([1.0, 2.0])
    for bad, reason in ((x.tanh(), "one element"), (x, "nothing was recorded"), (3, "expected a Tensor, got int"),
                        (Tensor([1.0]) * 2, "nothing was recorded")):
        with pytest.raises(InputError, match=reason):
            steps(bad)
    with pytest.raises(InputError, match="order 'topological' or 'wrong', got 'random'"):
        steps(x.sum(), order="random")
    y = x
    for _ in range(58):
        y = y.tanh()
    assert len(steps(y.sum()).picture.graph.nodes) == 60
    with pytest.raises(InputError, match="61 nodes, more than the 60"):
        steps(y.tanh().sum())


def test_steps_change_nothing():
    x = parameter([1.0, 2.0], "x")
    y = (x * x).sum()
    before = y.op.__dict__.copy()
    walk = steps(y)
    walk.html()
    assert x.grad is None and y.op.__dict__ == before and x.name == "x"
    y.backward()
    assert x.grad.tolist() == [2.0, 4.0] and isinstance(walk, Steps) and "nodes=3" in repr(walk)


# ---------------------------------------------------------------------------------------------------------------------
# layout and files
# ---------------------------------------------------------------------------------------------------------------------
@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(st.lists(st.integers(0, 30), min_size=0, max_size=3), min_size=2, max_size=20), st.booleans(),
       st.integers(1, 3), st.booleans())
def test_boxes_never_overlap_and_inputs_come_first(below, across, pieces, late):
    edges = [(s % t, t) for t, sources in enumerate(below) if t for s in sources]
    sizes = [(60 + 7 * (i % 5), 30 + 5 * (i % 3)) for i in range(len(below))]
    plan = layout(sizes, edges, across, pieces, late=late)
    assert plan == layout(sizes, edges, across, pieces, late=late)
    boxes = [(x - w / 2, y - h / 2, x + w / 2, y + h / 2) for (x, y), (w, h) in zip(plan.places, sizes, strict=True)]
    assert min(b[0] for b in boxes) >= -1e-6 and max(b[2] for b in boxes) <= plan.width + 1e-6
    assert min(b[1] for b in boxes) >= -1e-6 and max(b[3] for b in boxes) <= plan.height + 1e-6
    for i, a in enumerate(boxes):
        for b in boxes[:i]:
            assert a[0] >= b[2] - 1e-6 or b[0] >= a[2] - 1e-6 or a[1] >= b[3] - 1e-6 or b[1] >= a[3] - 1e-6
    if pieces == 1:
        assert all(boxes[s][2 if across else 3] < boxes[t][0 if across else 1] for s, t in edges)


def test_a_box_may_wait_until_just_before_its_first_use():
    edges = [(0, 2), (2, 3), (3, 4), (1, 4), (0, 1)]                # 1 is used last, and could stand beside 2
    rows = [[y for _, y in layout([(60, 30)] * 5, edges, late=late).places] for late in (False, True)]
    assert rows[0][1] == rows[0][2] and rows[1][1] == rows[1][3]


def test_boxes_that_want_the_same_place_share_it():
    x = {}
    _spread([0, 1, 2], [1.0, 3.0, -4.0], [1.0] * 3, [1.0] * 3, 0.0, x)  # 2 joins 1, and both join 0
    assert x == {0: -1.0, 1: 0.0, 2: 1.0}
    _spread([0, 1], [0.0, 9.0], [1.0] * 2, [1.0] * 2, 0.0, x)
    assert (x[0], x[1]) == (0.0, 9.0)


def test_all_frames_share_one_layout():
    walk = example("gru")
    title = re.compile(r'<text x="(\S+)" y="(\S+)"[^>]*font-weight="bold">(\w+)(?: = [^<]*?)?(?: ✓)?</text>')
    places = [title.findall(walk.svg(i)) for i in (1, 12, 37)]
    known = [{name: (x, y) for x, y, name in found if float(x) < 860 and float(y) > 60} for found in places]
    assert known[0] == known[1] == known[2] and len(known[0]) == 25


def texts(walk, number, node, order="topological"):
    """What the box of a node says in a frame."""
    boxes = walk.marks(number, order)[2:]                           # after the heading and the quiet edges
    return [mark[3] for mark in boxes[node] if mark[0] == "text"]


def test_a_box_shows_its_value_and_the_gradient_as_it_is_in_that_frame():
    walk = example("twice")
    assert texts(walk, 4, 1) == ["b = a + a", "value", "2", "grad", "–"]
    assert texts(walk, 7, 1) == ["b = a + a ✓", "value", "2", "grad 2 of 2", "2"]
    assert texts(walk, 5, 1, "wrong") == ["b = a + a", "value", "2", "grad 1 of 2", "1"]
    walk = example("attention")
    k = next(n.id for n in walk.picture.graph.nodes if n.names == ["k"])
    assert texts(walk, 1, k)[:11] == ["k", "the", "cat", "sat", "value", "0.2", "−0.4", "1", "0.8", "−0.5", "0.6"]
    assert tint(-1) == COLDEST and tint(1) == HOTTEST and tint(0) == "#FFFFFF"


def test_an_edge_carries_what_is_sent_along_it():
    walk = example("product")                                       # d * f: grad d = f, grad f = d
    frame = next(f for f in walk.frames if f["phase"] == "backward" and f["title"] == "L = d · f")
    loud = walk.marks(frame["number"])[-2]
    assert sorted(mark[3] for mark in loud if mark[0] == "text") == ["4", "−2"]
    ends = {mark[3]: mark[1] for mark in loud if mark[0] == "text"}
    x = {n.names[0]: walk.picture.plan.places[n.id][0] for n in walk.picture.graph.nodes}
    assert (ends["−2"] < ends["4"]) is (x["d"] < x["f"])


def test_a_pdf_has_all_frames_in_order(tmp_path, monkeypatch):
    walk, seen = example("twice"), []
    monkeypatch.setattr(sys.modules[Steps.__module__], "_one_pdf", lambda slides: seen.extend(slides) or b"%PDF-")
    walk.save(tmp_path / "all.pdf", order="wrong")
    assert seen == [walk.marks(i, "wrong") for i in range(1, 10)]


def test_edges_carry_numbers_or_the_rule_that_made_them():
    shown = "".join(example("attention").svg(i) for i in range(10, 17))
    assert ">g vᵀ</text>" in shown and ">wᵀ g</text>" in shown
    walk = example("two_layer")
    assert ">sum(g)</text>" in "".join(walk.svg(i) for i in range(12, 21))      # a bias: summed over the samples
    assert ">part</text>" in "".join(walk.svg(i) for i in range(12, 21))        # a rule too long for an edge


@pytest.mark.parametrize("name", EXAMPLES)
def test_letters_of_the_examples_are_large_enough_to_project(name):
    walk = example(name)
    sizes = [mark[4] for order in walk.walks for i in range(len(walk.frames_of(order)))
             for group in walk.marks(i + 1, order) for mark in group if mark[0] == "text"]
    assert min(sizes) > 10


def test_frames_are_files_and_the_same_again(tmp_path):
    walk = example("product")
    folder = walk.save(tmp_path / "frames")
    assert [p.name for p in sorted(folder.iterdir())] == [f"frame-0{i}.svg" for i in range(1, 10)]
    assert (folder / "frame-03.svg").read_text(encoding="utf-8") == walk.svg(3) == example("product").svg(3)
    ET.fromstring(walk.svg(3))
    assert "id=" not in walk.svg(3).replace("width=", "")
    assert walk.html() == example("product").html() and "id=" not in _section(walk._repr_html_())


def test_frames_as_pdf_and_png(tmp_path):
    pytest.importorskip("matplotlib")
    walk = example("twice")
    pages = walk.save(tmp_path / "all.pdf").read_bytes()
    assert pages.startswith(b"%PDF-") and len(re.findall(rb"/Type /Page\b", pages)) == 7
    assert pages == example("twice").save(tmp_path / "again.pdf").read_bytes()
    del walk.walks["wrong"].frames[2:]                              # a frame takes a while
    walk.save(tmp_path / "png", kind="png", order="wrong")
    assert len(list((tmp_path / "png").glob("frame-0*.png"))) == 2
    assert (tmp_path / "png" / "frame-01.png").read_bytes().startswith(b"\x89PNG")


def test_bad_names_of_files_are_refused_and_nothing_is_written(tmp_path):
    walk = example("twice")
    (tmp_path / "file").write_text("mine")
    for path in ("frames.gif", "missing/page.html", "file/frames", "file"):
        with pytest.raises(InputError, match="^steps: "):
            walk.save(tmp_path / path)
    with pytest.raises(InputError, match="frames 1 to 7, not 8"):
        walk.svg(8)
    assert [p.name for p in tmp_path.iterdir()] == ["file"] and (tmp_path / "file").read_text() == "mine"


# ---------------------------------------------------------------------------------------------------------------------
# the page, in a browser
# ---------------------------------------------------------------------------------------------------------------------
def _data(html):
    return re.search(r'<script type="application/json">(.*?)</script>', html, re.S)[1]


def _section(html):
    """The HTML around the data."""
    html = html[html.index("<section"):html.rindex("<script>")]
    return re.sub(r'<script type="application/json">.*?</script>', "", html, flags=re.S)


def at(page, which=0):
    return page.locator(".number").nth(which).inner_text()


def until(page, selector, text):
    """Wait until that is what it says; fails after 5 seconds."""
    from playwright.sync_api import expect
    expect(page.locator(selector)).to_have_text(text, timeout=5000)


def drawn(page, which=0):
    return page.locator(".tinyattn-steps > svg").nth(which).evaluate("svg => svg.innerHTML")


def test_the_page_turns_by_buttons_keys_slider_and_address(tmp_path, opened):
    walk = example("twice")
    path = walk.save(tmp_path / "page.html")
    page = opened(path)
    assert at(page) == "1 / 7" and page.is_disabled(".first") and page.is_disabled(".previous")
    page.click(".next")
    page.click(".next")
    assert at(page) == "3 / 7" and "c = b + b" in page.text_content(".tinyattn-steps > svg")
    page.click(".previous")
    assert at(page) == "2 / 7" and page.evaluate("location.hash") == "#2"
    page.click(".last")
    assert at(page) == "7 / 7" and page.is_disabled(".next") and not page.is_disabled(".previous")
    for key, number in (("Home", 1), ("ArrowRight", 2), ("ArrowRight", 3), ("ArrowLeft", 2), ("End", 7),
                        ("ArrowRight", 7)):
        page.keyboard.press(key)
        assert at(page) == f"{number} / 7", key
    page.locator(".place").fill("4")
    assert at(page) == "4 / 7" and page.locator(".place").input_value() == "4"
    page.evaluate("location.hash = '#6'")
    until(page, ".number", "6 / 7")
    assert "grad b" in page.locator(".said").inner_text()
    assert page.evaluate("document.documentElement.scrollHeight <= innerHeight")


def test_any_address_shows_a_frame_and_keys_may_come_fast(tmp_path, opened):
    path = example("twice").save(tmp_path / "page.html")
    page = opened(path)
    for hash_, number in (("#999", "7 / 7"), ("#0", "1 / 7"), ("#abc", "1 / 7"), ("#wrong-999", "9 / 9")):
        page.goto("about:blank")
        page.goto(path.as_uri() + hash_)
        assert at(page) == number
    page.evaluate("void (history.replaceState = () => { throw new DOMException('too often', 'SecurityError'); })")
    page.keyboard.press("Home")
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert at(page) == "4 / 9"
    page.set_viewport_size({"width": 800, "height": 600})
    assert page.evaluate("[document.documentElement.scrollWidth, document.documentElement.scrollHeight]") == [800, 600]


def test_without_javascript_the_page_shows_a_frame_and_says_how_to_see_the_others(tmp_path, chromium):
    walk = example("twice")
    path = walk.save(tmp_path / "page.html")
    context = chromium.new_context(java_script_enabled=False, offline=True)
    try:
        page = context.new_page()
        page.goto(path.as_uri())
        assert "-o all.pdf" in page.inner_text("noscript") and page.locator("svg text").count() > 10
    finally:
        context.close()


def test_every_frame_of_the_page_is_the_frame_of_the_file(tmp_path, opened):
    walk = example("twice")
    page = opened(walk.save(tmp_path / "page.html"))
    for order, hash_ in (("topological", "#"), ("wrong", "#wrong-")):
        for number in range(1, len(walk.frames_of(order)) + 1):
            page.evaluate(f"location.hash = '{hash_}{number}'")
            until(page, ".number", f"{number} / {len(walk.frames_of(order))}")
            file = walk.svg(number, order)
            assert drawn(page) == file[file.index(">") + 1:file.rindex("</svg>")]


def test_play_advances_and_stops_at_the_end(tmp_path, opened):
    page = opened(example("twice").save(tmp_path / "page.html"))
    page.locator(".speed").select_option("0.5")
    page.locator(".speed").evaluate("e => e.blur()")
    page.keyboard.press("Home")
    page.keyboard.press(" ")
    assert page.inner_text(".play") == "pause"
    until(page, ".number", re.compile("^[3-7] / 7$"))
    page.keyboard.press(" ")
    assert page.inner_text(".play") == "play"
    stopped = at(page)
    page.wait_for_timeout(700)
    assert at(page) == stopped
    page.evaluate("location.hash = '#6'")
    until(page, ".number", "6 / 7")
    page.click(".play")
    until(page, ".play", "play")
    assert at(page) == "7 / 7" and page.get_attribute(".play", "aria-pressed") == "false"
    page.click(".play")  # from the end it begins again
    assert at(page) == "1 / 7" and page.inner_text(".play") == "pause"


def test_the_wrong_order_switch_shows_other_numbers_and_why(tmp_path, opened):
    page = opened(str(example("twice").save(tmp_path / "page.html")))
    page.keyboard.press("End")
    right = drawn(page)
    assert "grad a = 4" in page.text_content(".tinyattn-steps > svg") and "Topological order" in page.inner_text(".why")
    page.locator(".wrong").check()
    shown = page.text_content(".tinyattn-steps > svg")
    assert at(page) == "9 / 9" and "grad a = 2 not 4" in shown and "grad b = 1 after 1 of 2 parts" in shown
    assert "as soon as any gradient reaches it" in page.inner_text(".why") and drawn(page) != right
    assert page.evaluate("location.hash") == "#wrong-9"
    page.keyboard.press("Home")
    page.locator(".wrong").uncheck()
    assert at(page) == "1 / 7"


def test_two_in_one_notebook_do_not_meet(tmp_path, opened):
    one, two = example("twice"), example("product", order="wrong")
    path = tmp_path / "notebook.html"
    html = "".join(walk._repr_html_() for walk in (one, two, one))  # one of them twice
    path.write_text(f"<!DOCTYPE html><meta charset='utf-8'><input id='cell'><div>{html}</div>", encoding="utf-8")
    page = opened(path)
    assert [at(page, i) for i in range(3)] == ["1 / 7", "1 / 12", "1 / 7"]
    page.locator(".next").nth(1).click()
    page.locator(".tinyattn-steps").nth(2).focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert [at(page, i) for i in range(3)] == ["1 / 7", "2 / 12", "3 / 7"] and drawn(page, 0) != drawn(page, 2)
    page.locator("#cell").focus()
    page.keyboard.press("ArrowRight")  # a key in a cell of the notebook turns nothing
    assert [at(page, i) for i in range(3)] == ["1 / 7", "2 / 12", "3 / 7"] and page.evaluate("location.hash") == ""
    found = page.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert found == ["cell"]


# ---------------------------------------------------------------------------------------------------------------------
# the command
# ---------------------------------------------------------------------------------------------------------------------
def test_the_command_lists_its_examples_and_writes_pages_and_frames(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["steps"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed] == list(EXAMPLES) and max(map(len, listed)) <= 100
    assert not any(line.endswith("...") for line in listed)
    assert main(["steps", "twice"]) == 0
    said = capsys.readouterr()
    assert said.out == "twice-steps.html\n" and said.err == "7 frames of 3 nodes\n"
    assert (tmp_path / "twice-steps.html").exists()
    assert main(["steps", "gru", "-o", "slides", "--order", "wrong"]) == 0
    assert (tmp_path / "slides" / "frame-50.svg").exists()
    capsys.readouterr()
    (tmp_path / "slides" / "frame-mine.txt").write_text("mine")
    assert main(["steps", "twice", "-o", "slides"]) == 0
    assert "slides: frame-08.svg to frame-50.svg are of an earlier walk" in capsys.readouterr().err
    assert (tmp_path / "slides" / "frame-mine.txt").read_text() == "mine"


def test_the_command_takes_ops_mechanisms_modules_and_files(tmp_path, capsys):
    mine = tmp_path / "mine.py"
    mine.write_text('''"""Mine."""
from tinyattn.attention.core import variant, weigh


@variant()
def mine(q, k, v, mask=None, return_weights=False):
    """Dot products."""
    return weigh(q @ k.transpose(-1, -2), v, mask, return_weights)


def example(rng):
    return {"q": rng.normal(size=(1, 2)), "k": rng.normal(size=(3, 2)), "v": rng.normal(size=(3, 2))}
''')
    for name in ("softmax", "op:cross_entropy", "additive", "GRUCell", f"{mine}:mine"):
        path = tmp_path / "page.html"
        assert main(["steps", name, "-o", str(path)]) == 0, name
        assert "gives the same" in path.read_text(encoding="utf-8"), name
        path.unlink()
    capsys.readouterr()


@pytest.mark.parametrize("arguments, reason", [
    (["aspects"], "nodes, more than the 60"), (["nosuch"], "an example of `tinyattn steps`"),
    (["twice", "-o", "x.gif"], "ends in .html or .pdf"), (["twice", "--frames", "gif"], "gif"),
    (["op:softmax", "--sample", "99"], "samples")])
def test_bad_input_is_one_line_and_exit_2(arguments, reason, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["steps", *arguments]) == 2
    said = capsys.readouterr()
    assert reason in said.err and len(said.err.splitlines()) == 1 and said.out == ""
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------------------------------------------------------------
# rules that are wrong
# ---------------------------------------------------------------------------------------------------------------------
class Swish(autograd.Op):
    """x sigmoid(x). Its rule has a factor too few."""

    def cpu(self, x):
        return x / (1 + np.exp(-x))

    def grad_x(self, g, y, x):
        return g * (x.sigmoid() + y)


class RightSwish(Swish):
    """x sigmoid(x)"""
    name = "right_swish"

    def grad_x(self, g, y, x):
        return g * (x.sigmoid() + y * (1 - x.sigmoid()))


class Noise(autograd.Op):
    """x times another number at each call"""
    calls = 0

    def cpu(self, x):
        Noise.calls += 1
        return x * Noise.calls

    def grad_x(self, g, y, x):
        return g * (y / x)


def test_a_wrong_rule_is_named_and_nothing_reads_as_verified():
    x = parameter([0.5, 1.0], "x")
    walk = steps((Swish()(x) * x).sum())
    last = walk.frames[-1]
    assert last["title"] == "a rule is wrong, and so are these gradients" and "✓" not in " ".join(last["text"])
    assert "the rule of swish disagrees with finite differences: 1.46, slope 0.928 (at x[1]) ✗" in last["text"]
    assert last["numbers"]["rules"] == {"wrong": ["swish"], "unchecked": []}
    frame = next(f for f in walk.frames if f["title"] == "v1 = swish(x)" and f["phase"] == "backward")
    assert any("the rule disagrees" in line for line in frame["text"])
    assert "v1 = swish(x) ✗" in walk.svg(len(walk.frames)) and "✗" not in steps((x * x).sum()).html()
    assert any("swish disagrees" in line for line in walk.frames_of("wrong")[-1]["text"])
    fine = steps((RightSwish()(x) * x).sum()).frames[-1]
    assert fine["numbers"]["rules"] == {"wrong": [], "unchecked": []} and "Each rule agrees" in fine["text"][-1]


def test_what_cannot_be_compared_is_not_called_right():
    x = parameter([0.5, 1.0], "x")
    for output in (Noise()(x).sum(), (parameter(np.inf, "y") * x).sum()):
        last = steps(output).frames[-1]
        assert last["text"][-1].startswith("Not compared with finite differences: ") and not any(
            "✓" in line for line in last["text"])
        assert last["numbers"]["rules"]["wrong"] == [] and len(last["numbers"]["rules"]["unchecked"]) >= 1


def test_the_command_says_that_a_rule_of_my_file_is_wrong(tmp_path, capsys):
    mine = tmp_path / "mine.py"
    mine.write_text('''"""Mine."""
import numpy as np
from tinyattn.autograd import Op


class Swish(Op):
    """x sigmoid(x)"""

    def cpu(self, x):
        return x / (1 + np.exp(-x))

    def grad_x(self, g, y, x):
        return g * (x.sigmoid() + y)

    def samples(rng):
        yield {}, (rng.normal(size=2),)
''')
    assert main(["steps", f"{mine}:Swish", "-o", str(tmp_path / "page.html")]) == 0
    assert "the rule of swish disagrees with finite differences" in capsys.readouterr().err
    assert "✗" in (tmp_path / "page.html").read_text(encoding="utf-8")


# ---------------------------------------------------------------------------------------------------------------------
# signs, stills, labels
# ---------------------------------------------------------------------------------------------------------------------
def test_products_by_element_and_axes_are_written_as_such():
    titles = [f["title"] for f in example("attention").frames]
    assert "square = error ⊙ error" in titles and "c = w v" in titles
    assert "b = 3 · a" in [f["title"] for f in example("diamond").frames]
    rules = {s["rule"] for f in example("two_layer").frames for s in f["numbers"].get("sent", ())}
    assert "g − exp(logp) ⊙ sum(g, axis −1)" in rules
    m = parameter(np.ones((2, 3)), "m")
    for made, said in ((m.sum(-1).sum(), "v1 = sum(m, axis −1)"), (m.sum((0, 1)) * 2, "v1 = sum(m)"),
                       (m.max(0).sum(), "v1 = max(m, axis 0)"), ((2 * m).sum(), "v1 = 2 · m")):
        assert said in [f["title"] for f in steps(made).frames]
    masked = steps(parameter([1.0, 2.0], "x").relu().sum())  # of relu the mask is the rule, also if all are True
    assert any("where mask" in line for line in lines(masked))


def test_one_frame_is_a_still(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for more in ([], ["-o", "a.svg"]):
        assert main(["steps", "twice", "--frame", "3", *more]) == 0
    assert capsys.readouterr().out == "twice-3.svg\na.svg\n"
    assert (tmp_path / "a.svg").read_text(encoding="utf-8") == example("twice").svg(3)
    for bad, reason in ((["-o", "b.svg"], "--frame N"), (["-o", "b.html", "--frame", "3"], ".svg, .pdf or .png"),
                        (["-o", "b.svg", "--frame", "8"], "frames 1 to 7, not 8")):
        assert main(["steps", "twice", *bad]) == 2
        said = capsys.readouterr().err
        assert reason in said and len(said.splitlines()) == 1
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    for more in (["-o", "b.pdf"], ["-o", "b.png", "--frame", "2"]):
        assert main(["steps", "twice", *more]) == 2
        assert "this picture needs matplotlib: pip install tinyattn[plot]" in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.svg", "twice-3.svg"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_labels_of_edges_cover_neither_each_other_nor_what_a_box_says(name):
    walk = example(name)
    for i in range(len(walk.frames)):
        _, _, *boxes, loud, _ = walk.marks(i + 1)
        tags = [(x, y, x + w, y + h) for kind, x, y, w, h, *_ in (m[:5] for m in loud if m[0] == "box")]
        said = [_extent(*m[1:5]) for box in boxes for m in box if m[0] == "text" and m[6] == "middle"]
        for k, tag in enumerate(tags):
            assert all(_shared(tag, other) < 1 for other in tags[:k]), (name, i + 1)
            assert all(_shared(tag, words) < 5 for words in said), (name, i + 1)


def test_shapes_fit_their_boxes_and_are_explained_once():
    x = parameter(np.ones((2, 3, 4, 2, 11)), "x")
    y = x
    for _ in range(26):
        y = y.tanh()
    walk = steps(y.sum())
    assert walk.picture.shapes_only and sum("shapes only" in line for line in lines(walk)) == 1
    for frame in (1, len(walk.frames)):
        for box in walk.marks(frame)[2:-2]:
            _, left, _, width, *_ = box[1] if box[0][4] < box[1][4] else box[0]
            texts = [_extent(*m[1:5]) for m in box if m[0] == "text"]
            assert min(t[0] for t in texts) >= left and max(t[2] for t in texts) <= left + width
    assert not any("shapes only" in line for line in lines(example("attention")))


@pytest.mark.parametrize("x, text", [
    (999.6, "1000"), (1234.0, "1234"), (-12345.6, "−12346"), (2e5, "2e+05"), (0.25, "0.25"), (3e-4, "3e−04"),
    (0.0, "0"), (12.34, "12.3"), (float("nan"), "nan")])
def test_numbers_are_written_out_where_they_fit(x, text):
    from viz.backprop.formula import number
    assert number(x) == text
