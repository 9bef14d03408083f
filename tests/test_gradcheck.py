"""The checker: it passes what is right, and each planted mistake fails with the element that is wrong."""
import numpy as np
import pytest

from tinyattn.autograd import Op
from tinyattn.functional import dropout, where
from tinyattn.gradcheck import Report, check_all, check_function, check_op, gradcheck, gradgradcheck, table
from tinyattn.tensor import Tensor

MODES = ("projection", "full")


def arrays(rng, *shapes):
    return tuple(rng.normal(size=shape) for shape in shapes)


# ---------------------------------------------------------------------------------------------------------------------
# planted mistakes. These ops are of this file, so they do not join the package's registry
# ---------------------------------------------------------------------------------------------------------------------
class Square(Op):
    """x^2, right in every order."""
    def cpu(self, x):
        return np.asarray(x * x)

    def grad_x(self, g, y, x):
        return g * x * 2

    def samples(rng):
        yield {}, (rng.normal(size=(2, 3)),)


class WrongFirst(Square):
    """The factor of one element is wrong."""
    def grad_x(self, g, y, x):
        factor = np.full(x.shape, 2.0)
        factor[-1, -1] = 2.001
        return g * x * factor


class WrongSecond(Square):
    """The gradient is right, but a part of it is cut off from the graph: its own derivative is 0."""
    def grad_x(self, g, y, x):
        return g * x.detach() * 2


class WrongInIncoming(Square):
    """As it happens with a rule that computes with arrays: the derivative in the incoming gradient is lost."""
    def grad_x(self, g, y, x):
        return g.detach() * x * 2


class WrongLoop(Square):
    """The rule is right, the loop is not."""
    def cpu_grad(self, g, y, x):
        return (g * x * (2 + 1e-7),)


class WrongTwin(Op):
    """A fused op whose readable twin is another function, by very little."""
    def cpu(self, x):
        return x * x * x

    def composed(self, x):
        return x * x * x + 1e-9

    def cpu_grad(self, g, y, x):
        return (3 * g * x * x,)

    samples = Square.samples


class WrongSubset(Op):
    """Right where both inputs need a gradient; where only one does, the two are mixed up."""
    def cpu(self, x, y):
        return x * y

    def grad_x(self, g, out, x, y):
        return g * y

    def grad_y(self, g, out, x, y):
        return g * x

    def cpu_grad(self, g, out, x, y):
        return (g * y, g * x) if all(self.needs) else (g * x, g * y)

    def samples(rng):
        yield {}, arrays(rng, (3,), (3,))


@pytest.mark.parametrize("mode", MODES)
def test_right_rules_pass(mode, rng):
    for check in (gradcheck, gradgradcheck):
        report = check(lambda x: Square()(x), arrays(rng, (2, 3)), mode=mode)
        assert report.ok and report.compared > 0 and report.kinks == 0
        assert report.raise_if_wrong() is report


@pytest.mark.parametrize("mode", MODES)
def test_wrong_rule_of_first_order(mode, rng):
    x, = arrays(rng, (2, 3))
    report = gradcheck(lambda x: WrongFirst()(x), (x,), mode=mode, names=["x"])
    assert not report.ok
    assert report.worst.index == (1, 2)                      # the very element
    assert "x at [1, 2]" in report.worst.where + f" at {list(report.worst.index)}"
    assert report.worst.relative == pytest.approx(0.0005, rel=0.01)
    if mode == "full":
        assert report.worst.analytic == pytest.approx(2.001 * x[1, 2])
        assert report.worst.numeric == pytest.approx(2 * x[1, 2])
    with pytest.raises(AssertionError, match="WRONG.*analytic.*numeric.*relative error"):
        report.raise_if_wrong()
    assert "\n" not in str(report)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("wrong", "named"), [(WrongSecond, "input 0"), (WrongInIncoming, "incoming gradient")])
def test_wrong_rule_of_second_order(wrong, named, mode, rng):
    x = arrays(rng, (2, 3))
    assert gradcheck(lambda x: wrong()(x), x, mode=mode).ok
    report = gradgradcheck(lambda x: wrong()(x), x, mode=mode)
    assert not report.ok and named in report.worst.where and report.worst.index is not None


@pytest.mark.parametrize("wrong", [WrongFirst, WrongSecond, WrongInIncoming, WrongLoop, WrongTwin, WrongSubset])
def test_check_op_finds_it(wrong):
    assert not all(r.ok for r in check_op(wrong))
    assert all(r.ok for r in check_op(Square))
    second = wrong in (WrongSecond, WrongInIncoming)
    assert all(r.ok for r in check_op(wrong, order=1)) == second  # the first derivatives of these are right


def test_wrong_shape_and_missing_gradient(rng):
    class Cut(Square):
        def grad_x(self, g, y, x):
            return None

    report = gradcheck(lambda x: Cut()(x), arrays(rng, (2,)))
    assert not report.ok and report.worst.analytic == 0


def test_nan_gradient_is_wrong(rng):
    class Poisoned(Square):
        def grad_x(self, g, y, x):
            return g * x * 2 + Tensor(np.array([0.0, np.nan]))

    assert not gradcheck(lambda x: Poisoned()(x), arrays(rng, (2,))).ok


def test_a_function_that_changes_is_found(rng):
    report = gradcheck(lambda x: dropout(x, 0.5, training=True), arrays(rng, (50,)))
    assert not report.ok and "different results" in str(report)


# ---------------------------------------------------------------------------------------------------------------------
# kinks
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("function", [lambda x: x.relu(), lambda x: x.clip(0, 5), lambda x: x.sign()],
                         ids=["relu", "clip", "sign"])
def test_kinks_are_recognised(function, mode):
    report = gradcheck(function, (np.array([0.0, 0.7]),), mode=mode)
    assert report.ok and report.kinks == 1, str(report)


@pytest.mark.parametrize("function", [lambda x: x.abs(), lambda x: x.norm(0), lambda x: x.sqrt(), lambda x: x ** 2.5],
                         ids=["abs", "norm", "sqrt", "power"])
def test_corners_and_edges_are_not_called_wrong(function):
    """At 0: the mean of both slopes is the gradient, or there is a slope on one side only, or an infinite one."""
    assert gradcheck(function, (np.array([[0.0]]),)).ok


def test_ties_are_kinks():
    report = gradcheck(lambda x: x.max(0), (np.array([1.0, 3.0, 3.0]),))
    assert report.ok                           # a half each: what central differences give too
    report = gradcheck(lambda x: x.max(0), (np.array([1.0, 3.0, 3.0, 3.0]),))
    assert report.ok and report.kinks == 3     # a third each


@pytest.mark.parametrize("offset", [3e-7, -3e-7, 2e-8])
def test_near_a_kink_a_smaller_step_decides(offset):
    report = gradcheck(lambda x: x.relu(), (np.array([offset]),))
    assert report.ok


def test_a_kink_is_no_excuse():
    class WrongAbs(Op):
        """|x| with a gradient at 0 that lies outside the slopes -1 and 1, and a wrong one elsewhere."""
        def __init__(self, at_zero, elsewhere):
            self.at_zero, self.elsewhere = at_zero, elsewhere

        def cpu(self, x):
            return abs(x)

        def grad_x(self, g, y, x):
            return g * where(x == 0, self.at_zero, x.sign() * self.elsewhere)

    x = np.array([0.0, 0.5])
    assert gradcheck(lambda x: WrongAbs(0.3, 1.0)(x), (x,)).kinks == 1
    assert gradcheck(lambda x: WrongAbs(-1.0, 1.0)(x), (x,)).ok
    report = gradcheck(lambda x: WrongAbs(1.5, 1.0)(x), (x,))
    assert not report.ok and report.worst.index == (0,)
    report = gradcheck(lambda x: WrongAbs(0.3, 0.9)(x), (x,))
    assert not report.ok and report.worst.index == (1,)


# ---------------------------------------------------------------------------------------------------------------------
# what may come in and out
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("mode", MODES)
def test_inputs_and_outputs_of_every_kind(mode, rng):
    def function(pair, ids, scale, nothing, mask):
        x, y = pair
        assert nothing is None and ids.dtype == np.int64 and mask.dtype == np.bool_ and isinstance(scale, float)
        return {"a": x[ids] * y, "b": [(x * scale).where(mask, 0.0), x > 0, x.argmax()]}

    inputs = ((rng.normal(size=3).astype(np.float32), Tensor([0.5, 1.5])), np.array([0, 0]), 2.0, None,
              np.array([True, False, True]))
    for check in (gradcheck, gradgradcheck):
        report = check(function, inputs, mode=mode)
        assert report.ok and report.compared >= 2, str(report)
    report = gradcheck(lambda i: i + 1, (np.array([1, 2]),))
    assert report.ok and report.compared == 0


def test_numbers_that_are_not_finite_are_left_out():
    x = np.array([1.0, 2.0, -np.inf])
    report = gradcheck(lambda x: x.log_softmax(), (x,))
    assert report.ok and report.compared > 0


def test_large_numbers_are_not_called_wrong():
    assert gradcheck(lambda x: x.softmax(), (np.array([1e4, 1e4 - 1, 0.0]),)).ok
    assert gradcheck(lambda x: x * x * x, (np.array([1e5, -3e4]),)).ok
    assert gradcheck(lambda x: (x * 1e3).sin(), (np.array([0.3]),)).ok


def test_parameters_are_varied_and_come_back_unchanged(rng):
    w = Tensor(rng.normal(size=(2, 3)), requires_grad=True)
    memory, before = w.array, w.numpy().copy()
    reports = check_function("linear", lambda x: (x @ w.T).tanh(), arrays(rng, (4, 3)), parameters={"w": w})
    assert len(reports) == 2 and all(r.ok for r in reports)
    assert w.array is memory and np.array_equal(w.numpy(), before) and w.grad is None
    wrong = gradcheck(lambda x: x @ WrongFirst()(w).T, arrays(rng, (4, 3)), parameters={"w": w})
    assert not wrong.ok and "parameter w" in wrong.worst.where and wrong.worst.index == (1, 2)
    with pytest.raises(TypeError, match="w to be float64"):
        gradcheck(lambda x: x, (), parameters={"w": Tensor([1.0], dtype="float32", requires_grad=True)})
    with pytest.raises(ValueError, match="'projection' or 'full', got 'fast'"):
        gradcheck(lambda x: x, (), mode="fast")


def test_the_inputs_are_left_alone(rng):
    x = rng.normal(size=(2, 2))
    before = x.copy()
    gradcheck(lambda x: x * x, (x,), mode="full")
    assert np.array_equal(x, before)


def test_the_memory_order_of_an_input_is_kept(rng):
    seen = []

    def function(x):
        seen.append(x.array.flags.f_contiguous)
        return x * x

    gradcheck(function, (rng.normal(size=(3, 2)).T,))
    assert seen and all(seen)


def test_same_seed_same_report(rng):
    x = arrays(rng, (3,))
    one, two = (str(gradcheck(lambda x: x.tanh(), x, rng=5)) for _ in range(2))
    assert one == two


def test_table():
    rows = table([Report("relu (order 1)", compared=3), Report("relu (order 2)", kinks=2), Report("tanh", ok=False)])
    assert rows[0] == ("what", "checks", "numbers", "kinks", "worst/tolerated", "result")
    assert rows[1] == ("relu", "2", "3", "2", "0.0e+00", "ok") and rows[2][-1] == "WRONG"
    assert all(isinstance(cell, str) for row in rows for cell in row)


def test_check_all_walks_the_registry(monkeypatch):
    few = {name: Op.registry[name] for name in ("mul", "tanh")}
    monkeypatch.setattr(Op, "registry", few)
    reports = list(check_all(order=1))
    assert {r.name.partition(" ")[0] for r in reports} == set(few) and all(r.ok for r in reports)
