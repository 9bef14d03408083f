"""Printed equations are read back and computed: they give the engine's values and gradients."""
import re
import sys

import numpy as np
import pytest
import read_latex
from read_equations import computed, equations_in

from tinyattn import nn
from tinyattn.attention import core, properties, table
from tinyattn.autograd import Alias, Op, grad, no_grad
from tinyattn.cli import main
from tinyattn.commands.equations import LIMIT, recorded
from tinyattn.commands.names import find
from tinyattn.errors import InputError
from tinyattn.nn import example_of, outputs_of
from tinyattn.tensor import Tensor
from viz.formulas import numpy_source
from viz.formulas.algebra import Call, Name, Number, key, simplify
from viz.formulas.equations import equations
from viz.formulas.namer import canonical, latex_name, names_from_code, plain_name, python_name
from viz.formulas.notation import BREAK, Latex, Text
from viz.formulas.numpy_source import Source
from viz.graphs.graph import graph

CLOSE = 1e-10
SOME_OPS = ["add", "affine", "div", "exp", "softmax", "log_softmax", "log_sum_exp", "matmul", "permute", "getitem",
            "concat", "norm", "pow", "sigmoid", "sub", "tanh", "where", "layer_norm", "cross_entropy", "gather",
            "embedding", "gelu", "clip", "cumsum", "pad", "unfold", "fold", "reshape", "split", "stack", "sum", "mean",
            "prod", "neg", "abs", "mul", "sqrt", "attention", "gru", "lstm", "bag", "solve"]


def leaf(a, name=""):
    t = Tensor(np.asarray(a, np.float64), requires_grad=True)
    t.name = name
    return t


def mechanism(name):
    """Outputs, leaves and the names in its code, in float64."""
    entry = table()[name]
    leaves = properties.leaves(core.example_of(entry), np.float64)
    with names_from_code(entry.module.__file__, core.__file__) as names:
        outputs = outputs_of(entry(**leaves))
    return [t for t in outputs if t.op is not None], leaves, names


def seeds_of(made):
    """Gradients that come in at the outputs: {id of the output: array}."""
    rng = np.random.default_rng(1)
    return {into(made.values[i]): rng.normal(size=made.values[i].shape) for i in made.given
            if into(made.values[i]) is not None}


def into(value):
    """The output at which this given gradient comes in, or None."""
    return value.at if value.at is not None else value.of


def given_values(made, printer, seeds):
    return {printer.name(i): made.values[i].array if into(made.values[i]) is None else seeds[into(made.values[i])]
            for i in made.given}


def differences(made, values, printer, outputs, leaves, seeds):
    """How far the values read back are from the engine's: {name: largest difference}."""
    off = {}
    for i, t in zip(made.outputs, outputs, strict=True):
        off[printer.name(i)] = apart(values[printer.name(i)], t.numpy())
    leaves = {n: t for n, t in leaves.items() if isinstance(t, Tensor) and t.requires_grad}
    incoming = [Tensor(seeds.get(i, np.ones(t.shape))) for i, t in zip(made.outputs, outputs, strict=True)]
    found = grad(outputs, list(leaves.values()), incoming, allow_unused=True)
    ids = {made.values[i].name: d for i, d in made.gradients.items()}
    for (n, _), d in zip(leaves.items(), found, strict=True):
        if d is not None:
            off[f"gradient of {n}"] = apart(values[printer.name(ids[n])], d.numpy())
    return off


def apart(a, b):
    """The largest difference; infinite if the shapes differ."""
    return np.abs(a - b).max(initial=0) if np.shape(a) == b.shape else np.inf


def check(outputs, leaves, names=None, fused=False):
    """The text of these equations gives the engine's values and gradients."""
    outputs = outputs if isinstance(outputs, list) else [outputs]
    made = equations(outputs, [leaves, names] if names else leaves, fused=fused)
    printer, seeds = Text(made), seeds_of(made)
    values = computed(made.text(), given_values(made, printer, seeds))
    off = differences(made, values, printer, outputs, leaves, seeds)
    assert off and max(off.values()) < CLOSE, off
    return made


def said_the_same(made, outputs, leaves):
    """The LaTeX gives the engine's values and gradients too, and the NumPy source runs and gives them."""
    printer, seeds = Latex(made), seeds_of(made)
    values = read_latex.computed(made.latex(), given_values(made, printer, seeds))
    off = differences(made, values, printer, outputs, leaves, seeds)
    assert max(off.values()) < CLOSE, off
    printer, space = Source(made), {}
    exec(compile(made.numpy(), "numpy", "exec"), space)
    off = differences(made, space, printer, outputs, leaves, {})
    assert max(off.values()) < CLOSE, off


# ---------------------------------------------------------------------------------------------------------------------
# what is printed is computed
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", SOME_OPS)
def test_ops(name, rng):
    done = 0
    for attributes, inputs in Op.registry[name].samples(rng):
        tensors = [None if x is None else leaf(x) if np.asarray(x).dtype.kind == "f" else Tensor(x) for x in inputs]
        outputs = [t for t in outputs_of(Op.registry[name](**attributes)(*tensors)) if t.size]
        if outputs and done < 4 and np.isfinite(outputs[0].numpy()).all():
            leaves = {f"x{i}": t for i, t in enumerate(tensors) if t is not None}
            said_the_same(check(outputs, leaves), outputs, leaves)
            done += 1
    assert done


@pytest.mark.parametrize("name", table())
def test_mechanisms(name):
    outputs, leaves, names = mechanism(name)
    made = check(outputs, leaves, names)
    assert {e.part for e in made.list} == {"forward", "backward"}
    well_formed(made)
    said_the_same(made, outputs, leaves)


@pytest.mark.parametrize("cls", [nn.GRU, nn.LSTM, nn.RNN, nn.MultiHeadAttention, nn.LayerNorm, nn.GRUCell])
def test_modules(cls):
    module, inputs = example_of(cls, np.random.default_rng(0), np.float64)
    inputs = [leaf(x.numpy(), f"input{i}") if isinstance(x, Tensor) and x.dtype.kind == "f" else x
              for i, x in enumerate(inputs if isinstance(inputs, (list, tuple)) else [inputs])]
    outputs = outputs_of(module(*inputs))
    leaves = dict(module.named_parameters())
    leaves.update({t.name: t for t in inputs if isinstance(t, Tensor) and t.requires_grad})
    well_formed(check(outputs, leaves))


def two_layers(rng):
    x, w1, b1, w2, b2 = (rng.normal(size=s) for s in [(4, 3), (5, 3), 5, (2, 5), 2])
    leaves = {n: leaf(a, n) for n, a in [("x", x), ("w1", w1), ("b1", b1), ("w2", w2), ("b2", b2)]}
    x, w1, b1, w2, b2 = leaves.values()
    h = (x @ w1.T + b1).tanh()
    return ((h @ w2.T + b2) ** 2).sum(), leaves


def test_a_two_layer_net(rng):
    loss, leaves = two_layers(rng)
    made = check(loss, leaves)
    found = dict(equations_in(made.text()))
    assert found == {
        "z₁": "tanh(x · w₁ᵀ + b₁)", "z₂": "z₁ · w₂ᵀ + b₂", "L": "Σ(z₂ ⊙ z₂)", "∂L/∂z₂": "2 · z₂",
        "∂L/∂z₁": "∂L/∂z₂ · w₂", "δ₁": "∂L/∂z₁ ⊙ (1 - z₁ ⊙ z₁)", "∂L/∂w₁": "δ₁ᵀ · x", "∂L/∂x": "δ₁ · w₁",
        "∂L/∂b₁": "Σ[0](δ₁)", "∂L/∂w₂": "(∂L/∂z₂)ᵀ · z₁", "∂L/∂b₂": "Σ[0](∂L/∂z₂)"}
    assert "number made of the result" not in made.text()


def test_a_wrong_sign_in_the_text_is_found(rng):
    """The reader and the comparison can fail."""
    loss, leaves = two_layers(rng)
    made = equations(loss, leaves)
    text = made.text().replace("(1 - ", "(1 + ")
    assert text != made.text()
    printer = Text(made)
    values = computed(text, given_values(made, printer, {}))
    assert max(differences(made, values, printer, [loss], leaves, {}).values()) > 0.01


def test_fused_ops_are_opened_or_left():
    outputs, leaves, names = mechanism("additive")
    opened = equations(outputs, [leaves, names], backward=False).text()
    left = equations(outputs, [leaves, names], backward=False, fused=True).text()
    assert "tanh(" in opened and "additive_scores" not in opened
    assert "additive_scores(" in left and "tanh(" not in left


# ---------------------------------------------------------------------------------------------------------------------
# simplification
# ---------------------------------------------------------------------------------------------------------------------
def lines(t, leaves, backward=False):
    return [f"{name} = {right}" for name, right in equations_in(equations(t, leaves, backward=backward).text())]


def test_the_trivial_is_gone(rng):
    x, y = leaf(rng.normal(size=(2, 3)), "x"), leaf(rng.normal(size=(2, 3)), "y")
    same, minus = {"x": x, "y": y}, -x
    assert lines(x * 1.0 + 0.0 + y, same) == ["y₁ = x + y"]
    for t, right in [(-minus * y, "x ⊙ y"), (x + (-y), "x - y"), (-x + y, "y - x"), (x - (-y), "x + y"),
                     (x.T.T * y, "x ⊙ y"), (x.reshape(3, 2).reshape(2, 3) * y, "x ⊙ y"), (x * 2, "2 · x"),
                     (x.reshape(2, 3) / y, "x / y"), (Alias()(x) - y, "x - y"), (x * -1.0, "-x"),
                     (x.reshape(2, 1, 3), "x[:, +]"), (x[:, None, :][:, 0, 1], "x[:, 1]"),
                     (x.expand(4, 2, 3) * y.expand(4, 2, 3).exp(), None), ((x.T @ y).T, "yᵀ · x"), (-x * y, "-x ⊙ y"),
                     (x.permute(1, 0).reshape(1, 3, 2).permute(0, 2, 1), None)]:
        found = lines(t, same)
        assert len(found) == 1 and (right is None or found[0].partition(" = ")[2] == right), found
        check(t, same)


def test_an_output_that_another_is_made_of(rng):
    """The gradient that comes in there is only a part of its gradient."""
    x = leaf(rng.normal(size=(2, 3)), "x")
    h = x.tanh()
    made = check([h, h * x, h], {"x": x})
    assert "g: what comes in at y₁ from outside" in made.text() and "∂L/∂y₁ = " in made.text()
    well_formed(made)


def test_axes_that_matter_are_not_simplified(rng):
    """x * 1 with a larger 1 makes a larger array; a transpose of another order is not undone; 0 - x is -x."""
    x = leaf(rng.normal(size=(3,)), "x")
    ones = Tensor(np.ones((2, 3)))
    check(x * ones, {"x": x})
    t = leaf(rng.normal(size=(2, 3, 4)), "t")
    check(t.permute(1, 2, 0).permute(1, 2, 0), {"t": t})
    check(0.0 - t, {"t": t})
    check(t.sum(axis=(0, 2), keepdims=True).reshape(3), {"t": t})
    check(t.sum(axis=(0, 2), keepdims=True).reshape(1, 3), {"t": t})
    check((t.reshape(6, 4) @ t[0, :, :].T).reshape(2, 3, 3)[:, 1:, None, ::2], {"t": t})
    check(t[:, [0, 0, 2]] + t[1, None], {"t": t})
    check(t[t.numpy() > 0], {"t": t})
    check(x.expand(2, 3) * x.expand(2, 3), {"x": x})
    check((t.sum(keepdims=True) * t).sum(keepdims=True), {"t": t})
    y = leaf(rng.normal(size=(3,)), "y")
    check((x - (y - x.exp())).tanh(), {"x": x, "y": y})
    for e in ((-x).max(-1), (-x).exp() + (-t).min(-1).sum(), -(x + y) * y, ((x * x + 1) ** 2.0) ** 0.5, t[:, 1:][:, 1:],
              t.permute(1, 2, 0).permute(0, 2, 1), t.sum(1, keepdims=True).reshape(4, 2), t[1:, 0][:, 1:][..., None]):
        said_the_same(check(e, {"x": x, "y": y, "t": t}), [e], {"x": x, "y": y, "t": t})


@pytest.mark.parametrize("op, number, right, better", [
    ("add", 0.0, True, True), ("sub", 0.0, True, True), ("div", 1.0, True, True), ("pow", 1.0, True, True),
    ("mul", 1.0, True, True), ("add", 0.0, False, True), ("mul", 1.0, False, True),
    ("sub", 0.0, False, False), ("div", 1.0, False, False), ("pow", 1.0, False, False), ("pow", 0.0, True, False),
    ("mul", 0.0, True, False), ("mul", 0.0, False, False), ("div", 0.0, False, False), ("add", 1.0, True, False)])
def test_a_number_goes_only_where_it_changes_nothing(op, number, right, better):
    """1 / x, 1^x, 0 x, x^0 and 0 - x are not x, and x + 0 of a larger shape is not x either."""
    x, n = Name(0, (2, 3)), Number(number)
    args = (x, n) if right else (n, x)
    assert (simplify(Call(op, args, {}, (2, 3)), lambda e, named=False: e) == x) == better
    assert simplify(Call(op, args, {}, (4, 2, 3)), lambda e, named=False: e) != x


def test_leaves_and_forward_values_that_are_gradients_too_keep_their_names(rng):
    """Of sum(x y) the gradient by y is x: x must not be printed as a gradient, nor given as one."""
    x, y = leaf(rng.normal(size=(2, 3)), "x"), leaf(rng.normal(size=(2, 3)), "y")
    made = check((x * y.tanh()).sum(), {"x": x, "y": y})
    assert {made.values[i].name for i in made.given} == {"x", "y"} and not any(made.values[i].of for i in made.given)
    made = check(((y * 2) * x).sum(), {"x": x, "y": y})
    assert not any(made.values[e.id].of for e in made.list if e.part == "forward")
    check((x * x).sum() * 1.5, {"x": x})


def test_outputs_that_are_leaves(rng):
    """What comes in there from outside is g, for the gradient of the leaf may be more."""
    x, y = leaf(rng.normal(size=(2, 3)), "x"), leaf(rng.normal(size=3), "y")
    for outputs in ([x * 1.0, x.T], [3.0 - y, y * 1.0], [x + 0.0], [y * 1.0, x.exp() + y]):
        made = check(outputs, {"x": x, "y": y})
        assert "from outside" in made.text()
        well_formed(made)


def ways_of(a, b, n, c):
    return [lambda: a + b, lambda: a - b, lambda: a * b, lambda: a / (b * b + 1), lambda: a @ b, lambda: -a,
            lambda: a * n, lambda: n - a, lambda: a + n, lambda: n * a, lambda: n / (a * a + 1), lambda: a * c,
            lambda: a + c, lambda: a.sum(0, keepdims=True), lambda: a.sum(-1), lambda: a.transpose(-1, -2),
            lambda: a.reshape(-1), lambda: a[None], lambda: a[..., 0], lambda: a.softmax(-1), lambda: a.tanh(),
            lambda: a.expand(2, *a.shape), lambda: a.norm(-1), lambda: a.max(-1), lambda: (a * a + 1) ** n]


def program_of(rng):
    """Outputs and leaves of a computation by chance, with shapes that are broadcast and numbers that vanish."""
    shapes = [(2, 3), (3,), (1, 3), (2, 1), (3, 3), (2, 2, 3), ()]
    leaves = {n: leaf(rng.uniform(0.5, 1.5, size=shapes[rng.integers(7)]), n)
              for n in ("x", "y", "L", "g", "z1")[:rng.integers(1, 6)]}
    known = list(leaves.values())
    for _ in range(rng.integers(2, 9)):
        a, b = (known[rng.integers(len(known))] for _ in "ab")
        n, c = (0.0, 1.0, -1.0, 2.0, 0.5)[rng.integers(5)], Tensor(np.full(shapes[rng.integers(7)], rng.integers(2)))
        try:
            ways = ways_of(a, b, n, c)
            t = ways[rng.integers(len(ways))]()
        except (ValueError, IndexError, TypeError):  # shapes that do not fit
            continue
        if t.op is not None and t.size <= 60 and np.isfinite(t.numpy()).all():
            known.append(t)
    outputs = known[len(leaves):][-rng.integers(1, 3):]
    return ([(o * 1.5).sum() for o in outputs[:1]] if rng.integers(2) else outputs), leaves


def test_computations_by_chance():
    """Their text, LaTeX and source give the engine's values and gradients, whatever was simplified and renamed."""
    done = 0
    for seed in range(150):
        outputs, leaves = program_of(np.random.default_rng(seed))
        if outputs:
            said_the_same(check(outputs, leaves), outputs, leaves)
            done += 1
    assert done > 100


def test_letters_of_axes(rng):
    """They follow the axes through products, transposes, sums, indexes and broadcasts, or are left out."""
    q, k, b = (leaf(rng.normal(size=s), n) for s, n in [((2, 3, 4), "q"), ((2, 5, 4), "k"), ((5,), "b")])
    for t, letters in [(q @ k.transpose(1, 2), "(B, T, S)"), (q.permute(2, 0, 1), "(D, B, T)"),
                       (q.sum(1), "(B, D)"), (q.sum(1, keepdims=True).exp(), "(B, 1, D)"), (q[:, 0].exp(), "(B, D)"),
                       (q[:, 1:].exp(), "(B, 2, D)"), (b + k.transpose(1, 2), "(B, D, S)"),
                       (q.reshape(6, 4), "(6, 4)")]:
        made = equations(t.tanh(), {"q": q, "k": k, "b": b}, letters={"q": "BTD", "k": "BSD", "b": "S"})
        found = re.findall(r"  y = .*    (\(.*\))", made.text(shapes=True))
        assert found == [letters], made.text(shapes=True)
    made = equations((q * k[:, :3]).sum(), {"q": q, "k": k}, letters={"q": "BTD", "k": "BSD"})
    assert re.search(r"∂L/∂q = .*    \(B, T, D\)", made.text(shapes=True))


def test_rules_look_through_names_from_the_code_only_where_they_vanish():
    x = Name(0, (2, 3))
    turned = Call("permute", (x,), {"axes": (1, 0)}, (3, 2))
    twice = Call("permute", (Name(1, (3, 2)),), {"axes": (1, 0)}, (2, 3))
    assert simplify(twice, lambda e, named=False: turned if named and e == Name(1, (3, 2)) else e) == x
    assert key(simplify(twice, lambda e, named=False: e)) == key(twice)
    assert simplify(Call("mul", (Number(1.0), x), {}, (2, 3)), lambda e, named=False: e) == x
    assert simplify(Call("mul", (Number(1.0), x), {}, (4, 2, 3)), lambda e, named=False: e) != x


def test_equal_values_are_one_and_unused_ones_are_not_printed(rng):
    x = leaf(rng.normal(size=(2, 2)), "x")
    y = x.tanh() + x.tanh()
    x.exp()
    found = lines(y, {"x": x})
    assert found == ["z₁ = tanh(x)", "y = 2 · z₁"] or found == ["y = 2 · tanh(x)"] and check(y, {"x": x})
    made = check(x.tanh() * x + x.tanh().exp(), {"x": x})  # two parts of one gradient: none of them is called ∂L/∂z₁
    assert "∂L/∂z₁ =" not in made.text()


# ---------------------------------------------------------------------------------------------------------------------
# names
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name,plain,tex,python", [
    ("q", "q", "q", "q"), ("w_hh", "w_hh", "w_{hh}", "w_hh"), ("alpha", "α", r"\alpha", "alpha"),
    ("alpha_1", "α₁", r"\alpha_{1}", "alpha1"), ("h0", "h₀", "h_{0}", "h0"), ("x_t_1", "x_t_1", "x_{t,1}", "x_t_1"),
    ("weights", "weights", r"\mathrm{weights}", "weights"),
    ("gru.w_hh", "gru.w_hh", r"w_{hh,\mathrm{gru}}", "gru_w_hh"),
    ("x'", "x′", "x'", "x_prime"), ("注意", "注意", r"\text{注意}", "注意"), ("$x\\", "_x_", r"\mathrm{\_x\_}", "_x_"),
    ("lambda", "λ", r"\lambda", "lambda_"), ("sum", "sum", r"\mathrm{sum}", "sum_"), ("", "_", r"\mathrm{\_}", "__"),
    ("0.weight", "_0.weight", r"\mathrm{weight}_{\mathrm{\_0}}", "_0_weight")])
def test_names_are_written(name, plain, tex, python):
    assert (plain_name(name), latex_name(name), python_name(name)) == (plain, tex, python)


def test_names_that_would_look_alike_are_told_apart(rng):
    leaves = {n: leaf(rng.normal(size=2)) for n in ["h1", "h_1", "h₁", "Σ", "∂L/∂x", "δ1", "$", "%"]}
    total = sum(t.exp() * i for i, t in enumerate(leaves.values(), 1))
    made = equations(total, leaves)
    names = [made.values[i].name for i in made.given if made.values[i].of is None]
    assert len({canonical(n) for n in names}) == len(leaves)
    printer, seeds = Text(made), seeds_of(made)
    values = computed(made.text(), given_values(made, printer, seeds))
    assert np.allclose(values[printer.name(made.outputs[0])], total.numpy())
    well_formed(made)
    exec(made.numpy(), {})


def test_names_that_the_source_needs_itself(rng):
    """A leaf called d_x beside the gradient of x, leaves called as functions and modules that the source has."""
    leaves = {n: leaf(rng.normal(size=(2, 3)), n) for n in ("x", "d_x", "softmax", "np", "math", "gelu", "abs")}
    x, d_x, soft, *others = leaves.values()
    total = (x.softmax(-1) * d_x + soft.gelu()).sum() + sum((t * t).mean() for t in others)
    made, space = check(total, leaves), {}
    exec(compile(made.numpy(), "numpy", "exec"), space)
    assert max(differences(made, space, Source(made), [total], leaves, {}).values()) < CLOSE


def test_constants_without_a_name_are_explained(rng):
    x = leaf(rng.normal(size=(2, 3)), "x")
    made = check(x * Tensor(rng.normal(size=3)) + Tensor(rng.normal(size=(2, 3))), {"x": x})
    assert "c₁ … c₂: computed outside of the graph" in made.text() and "$c_{1}$ to $c_{2}$: computed" in made.latex()
    assert "outside of the graph" not in equations(x.exp(), {"x": x}).text()


def test_local_names_are_those_of_the_code():
    outputs, leaves, names = mechanism("additive")
    text = equations(outputs, [leaves, names]).text()
    assert "weights = softmax(scores, mask)" in text and "context = weights · v" in text
    assert "∂L/∂weights" in text
    assert names.of(outputs[0]) == "context" and names.table()["context"] is outputs[0]


def test_the_names_serve_drawings_too():
    outputs, leaves, names = mechanism("gated_reader")
    drawn = graph(outputs[0], names=names.table()).dot
    assert {"read", "weights", "x"} <= set(names.table()) and all(name in drawn for name in names.table())


def test_a_name_for_several_values_is_numbered(rng):
    x = leaf(rng.normal(size=2), "x")
    with names_from_code(__file__) as names:
        h = steps(x)
    assert [line.split(" = ")[0].strip() for line in lines(h, [{"x": x}, names])] == ["h₁", "h₂", "h₃"]


def steps(x):
    h = x
    for _ in range(3):
        h = h.tanh()
    return h


def test_no_trace_function_is_left_behind():
    def before(*arguments):
        return None

    outer = sys.gettrace()
    try:
        sys.settrace(before)
        with names_from_code(__file__):
            assert sys.gettrace() is not before
        assert sys.gettrace() is before
        with pytest.raises(ZeroDivisionError), names_from_code(__file__):
            1 / 0  # noqa: B018
        assert sys.gettrace() is before
    finally:
        sys.settrace(outer)


def test_only_code_of_the_named_files_is_watched(rng):
    x = leaf(rng.normal(size=2), "x")
    with names_from_code(core.__file__) as names:
        steps(x)
    assert names.items() == []


# ---------------------------------------------------------------------------------------------------------------------
# LaTeX and pages
# ---------------------------------------------------------------------------------------------------------------------
def well_formed(made):
    """Every equation converts to MathML, braces and environments are closed, no slot of an op's formula is open."""
    convert = pytest.importorskip("latex2mathml.converter").convert
    printer, whole = Latex(made), made.latex(shapes=True, document=True)
    for e in made.list:
        tex = f"{printer.name(e.id)} = {printer.top_level(e.expression).replace(BREAK, '')}"
        assert "<math" in convert(tex) and balanced(tex), tex
    assert balanced(whole) and whole.count(r"\begin{") == whole.count(r"\end{")
    stack = []
    for kind, name in re.findall(r"\\(begin|end)\{(\w+\*?)\}", whole):
        if kind == "begin":
            stack.append(name)
        else:
            assert stack.pop() == name
    assert not stack and whole.count(r"\left") - whole.count(r"\leftarrow") == whole.count(r"\right")
    assert whole.count("$") % 2 == 0


def balanced(tex):
    depth = 0
    for c in re.sub(r"\\[{}]", "", tex):
        depth += {"{": 1, "}": -1}.get(c, 0)
        assert depth >= 0, tex
    return depth == 0


def test_latex_of_every_op_with_a_gradient(op, rng):
    attributes, inputs = next(iter(op.samples(rng)))
    tensors = [None if x is None else leaf(x) if np.asarray(x).dtype.kind == "f" else Tensor(x) for x in inputs]
    outputs = [t for t in outputs_of(op(**attributes)(*tensors)) if t.op is not None]
    if outputs:
        leaves = {n: t for n, t in zip(op.input_names, tensors, strict=False) if t is not None}
        well_formed(equations(outputs, leaves))
        well_formed(equations(outputs, leaves, backward=False, fused=True))


def test_the_same_gives_the_same():
    first, second = (equations(*made[:1], [made[1], made[2]]) for made in (mechanism("gated_reader"),) * 2)
    again = equations(mechanism("gated_reader")[0], None)
    assert first.text() == second.text() and first.latex() == second.latex() and first.numpy() == second.numpy()
    assert again.text() == equations(mechanism("gated_reader")[0], None).text()


def test_a_page_shows_each_equation_in_a_row(tmp_path, opened):
    outputs, leaves, names = mechanism("additive")
    made = equations(outputs, [leaves, names], letters={"q": "BTQ", "k": "BSK", "v": "BSE"})
    shown = opened(made.save(tmp_path / "page.html"))
    assert shown.locator("table.equations tr").count() == len(made)
    assert shown.inner_text("h1") == "Equations" and shown.locator("h2").all_inner_texts() == ["Forward pass",
                                                                                             "Backward pass"]
    rows = shown.locator("table.equations").nth(0).locator("tr")
    assert "(B, T, E)" in rows.last.inner_text()
    equals = [box["x"] for box in (rows.nth(i).locator("td").nth(1).bounding_box() for i in range(rows.count()))]
    assert max(equals) - min(equals) < 1
    assert shown.evaluate("document.documentElement.scrollWidth") <= 1280


def test_pages_and_markdown_hold_every_part_of_every_equation(tmp_path, opened, rng):
    leaves = {n: leaf(rng.normal(size=2), n) for n in (f"parameter_of_a_long_name{i}" for i in range(6))}
    total = sum(leaves.values()).tanh()
    made = equations(total, leaves)
    shown = opened(made.save(tmp_path / "page.html"))
    assert shown.locator(".more").count() > 0 and shown.locator("math .bar").count() >= len(leaves)
    said = shown.locator("table.equations").nth(0).inner_text()
    assert re.sub(r"\s", "", said).count("parameter") == 6
    assert set(shown.locator("td.shape").all_inner_texts()) == {"(2,)"}
    text, printer = made.save(tmp_path / "e.md").read_text(encoding="utf-8"), Latex(made)
    assert all(f"\n{printer.name(e.id)} &= " in text for e in made.list)


def test_of_one_part_the_rest_is_given(rng):
    loss, leaves = two_layers(rng)
    made = equations(loss, leaves)
    back = made.only("backward")
    assert {plain_name(back.values[i].name) for i in back.given} == {"x", "w₁", "w₂", "z₁", "z₂"}
    assert [e.part for e in back.list] == ["backward"] * 8 and not made.only("forward").gradients


@pytest.mark.parametrize("suffix,begins", [(".txt", "notation: "), (".tex", r"\documentclass"), (".md", "# Equations"),
                                           (".html", "<!DOCTYPE html>"), (".py", '"""')])
def test_files(suffix, begins, tmp_path, rng):
    loss, leaves = two_layers(rng)
    path = equations(loss, leaves).save(tmp_path / f"e{suffix}", shapes=True)
    assert path.read_text(encoding="utf-8").startswith(begins)


# ---------------------------------------------------------------------------------------------------------------------
# the command, and what goes wrong
# ---------------------------------------------------------------------------------------------------------------------
def test_parts_and_forms(capsys):
    assert main(["equations", "scaled_dot", "--forward", "--shapes"]) == 0
    text = capsys.readouterr().out
    assert "forward:" in text and "backward:" not in text and "(B, T, S)" in text
    assert main(["equations", "scaled_dot", "--backward", "--latex"]) == 0
    text = capsys.readouterr().out
    assert "% backward" in text and "% forward" not in text and r"\begin{align*}" in text
    assert main(["equations", "scaled_dot", "--numpy"]) == 0
    exec(capsys.readouterr().out, {})


def test_many_equations_are_cut_with_a_line_that_says_so(capsys, monkeypatch):
    monkeypatch.setattr("tinyattn.commands.equations.LIMIT", 12)
    assert main(["equations", "additive"]) == 0
    shown = capsys.readouterr()
    count = int(re.match(r"(\d+) equations, more than 12; --all prints them", shown.err)[1])
    assert len(equations_in(shown.out)) == 12 < count <= LIMIT
    assert main(["equations", "additive", "--all"]) == 0
    shown = capsys.readouterr()
    assert len(equations_in(shown.out)) == count and not shown.err


OWN = """
import numpy as np
from tinyattn.attention.core import variant, weigh

@variant()
def mine(q, k, v):
    '''q (B, T, D), k (B, S, D), v (B, S, E).'''
    sharp = 3 * (q @ k.transpose(1, 2))
    return weigh(sharp, v)

def example(rng):
    return {"q": rng.normal(size=(1, 2, 3)), "k": rng.normal(size=(1, 4, 3)), "v": rng.normal(size=(1, 4, 2))}
"""


def test_a_users_own_file(tmp_path, capsys):
    path = tmp_path / "my.py"
    path.write_text(OWN)
    for name in (str(path), f"{path}:mine"):
        assert main(["equations", name, "--shapes"]) == 0
        assert re.search(r"sharp = 3 · \(q · kᵀ\) +\(B, T, S\)", capsys.readouterr().out)
    path.write_text(OWN + "\n@variant()\ndef other(q, k, v):\n    return weigh(q @ k.transpose(1, 2), v)\n")
    assert main(["equations", str(path)]) == 2
    assert "holds mine, other; say which" in capsys.readouterr().err
    assert main(["equations", f"{path}:other", "-o", str(tmp_path / "o.tex")]) == 0


@pytest.mark.parametrize("arguments,says", [
    (["nothing_of_this_name"], "expected an op, mechanism, system or module"),
    (["missing.py"], "there is no file"), (["sign"], None),
    (["additive", "-o", "x.svg"], "expected a name that ends in .txt, .tex, .py, .md, .html"),
    (["additive", "-o", "x.tex", "--numpy"], "would be latex, not numpy"),
    (["additive", "-o", "missing/folder/x.tex"], "cannot write"), (["op:add", "--sample", "99"], "has the samples"),
    (["op:dropout", "--numpy"], "has no form in NumPy"), (["pagerank"], "say which")])
def test_one_clear_line(arguments, says, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = main(["equations", *arguments])
    error = capsys.readouterr().err
    if says is not None:
        assert code == 2 and says in error and len(error.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_a_graph_that_was_freed(rng):
    loss = (leaf(rng.normal(size=2)) * 2).sum()
    loss.backward(free_graph=True)
    with pytest.raises(InputError, match="has freed the graph"):
        equations(loss * 2)


def test_nothing_recorded(rng):
    x = leaf(rng.normal(size=2))
    with no_grad():
        y = x.exp()
    for t in (y, x, Tensor(np.arange(3)), []):
        with pytest.raises(InputError, match="^equations: nothing was recorded"):
            equations(t)
    with pytest.raises(InputError, match="expected a Tensor or a list of Tensors, got ndarray"):
        equations(np.zeros(2))
    with pytest.raises(InputError, match="ends in .tex"):
        equations(x.exp()).save("x.svg")


def test_letters_that_contradict_are_not_written(rng):
    a, b = leaf(rng.normal(size=(2, 3)), "a"), leaf(rng.normal(size=(3, 4)), "b")
    text = equations(a @ b, {"a": a, "b": b}, letters={"a": "TT", "b": "DE"}).text(shapes=True)
    assert "(2, E)" in text and "T" not in text.split("forward")[1]


def test_find_takes_what_graph_takes():
    assert find("additive")[0] == "attention" and find("op:softmax")[0] == "op"
    assert "h₁" in recorded(*find("op:gru")).text()


@pytest.mark.parametrize("array", [
    np.random.default_rng(0).normal(size=(2, 3, 7)).astype("f"), np.random.default_rng(1).normal(size=1999),
    np.arange(300).reshape(3, 100), np.arange(90) % 3 == 0, np.r_[np.nan, -np.inf, np.inf, np.arange(40) / 3],
    np.float64(0.1), np.arange(3.0), np.zeros((0, 2)), np.random.default_rng(2).normal(size=(40, 1, 1))])
def test_given_numbers_are_written_exactly_on_lines_that_fit(array):
    text = numpy_source._array(array, 0, "name = ", "  # (B, T)")
    assert max(map(len, text.splitlines())) <= 110 and text.startswith("name = np.") and "  # (B, T)" in text
    scope = {"np": np}
    exec(text, scope)
    np.testing.assert_array_equal(scope["name"], array.astype(float) if array.dtype.kind == "f" else array)
    assert scope["name"].shape == array.shape and scope["name"].dtype.kind == array.dtype.kind


def test_the_source_of_a_mechanism_has_no_long_line():
    text = recorded(*find("additive")).numpy()
    assert max(map(len, text.splitlines())) <= 120 and "q = np.array(  # (B, T, Q)\n    [[[" in text
