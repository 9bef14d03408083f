"""Sparsemax and entmax-1.5: against the papers' sorting algorithms in plain loops, PyTorch, and what defines them."""
import math

import numpy as np
import pytest
from test_softmax_loss_norm import run, same_bits, twisted

from tinyattn import device
from tinyattn.autograd import grad
from tinyattn.gradcheck import check_op, gradcheck, gradgradcheck
from tinyattn.ops.broadcast import ShapeError
from tinyattn.ops.sparsemax import Entmax15, Sparsemax
from tinyattn.tensor import Tensor

OPS = [Sparsemax, Entmax15]
every_op = pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)


def sorted_way(op, row):
    """The algorithm of the paper for one row of Python floats: sort, find the support, cut off."""
    z = sorted((v if op is Sparsemax else v / 2 for v in row), reverse=True)
    threshold = None
    for k in range(1, len(z) + 1):
        mean = math.fsum(z[:k]) / k
        if op is Sparsemax:
            if 1 + k * z[k - 1] > math.fsum(z[:k]):
                threshold = mean - 1 / k
        else:
            delta = (1 - math.fsum((v - mean) ** 2 for v in z[:k])) / k
            if delta >= 0 and mean - math.sqrt(delta) <= z[k - 1]:
                threshold = mean - math.sqrt(delta)
    if op is Sparsemax:
        return [max(v - threshold, 0.0) for v in row]
    return [max(v / 2 - threshold, 0.0) ** 2 for v in row]


def jacobian(op, p):
    """diag(s) - s s^T / sum s, s = 1 (sparsemax) or sqrt(p) (entmax-1.5) on the support."""
    s = [(1.0 if op is Sparsemax else math.sqrt(v)) if v > 0 else 0.0 for v in p]
    total = sum(s)
    return [[(s[i] if i == j else 0.0) - s[i] * s[j] / total for j in range(len(p))] for i in range(len(p))]


def loops(op, x, g, mask):
    """Outputs and gradients, row by row, of matrices."""
    y, dx = np.zeros(x.shape), np.zeros(x.shape)
    for i in range(len(x)):
        live = [j for j in range(x.shape[1]) if mask[i, j] and x[i, j] > -math.inf]
        if not live:
            continue
        p = sorted_way(op, [float(x[i, j]) for j in live])
        rows = jacobian(op, p)
        for a, j in enumerate(live):
            y[i, j] = p[a]
            dx[i, j] = sum(rows[a][b] * g[i, live[b]] for b in range(len(live)))
    return y, dx


def values(op, x, mask=None, axis=-1):
    return op(axis)(Tensor(np.asarray(x)), None if mask is None else Tensor(mask)).numpy()


# ---------------------------------------------------------------------------------------------------------------------
# what they are
# ---------------------------------------------------------------------------------------------------------------------
def test_by_hand():
    np.testing.assert_allclose(values(Sparsemax, [0.5, 0.0]), [0.75, 0.25])
    np.testing.assert_allclose(values(Sparsemax, [2.0, 0.5, 0.0]), [1.0, 0.0, 0.0])
    np.testing.assert_allclose(values(Sparsemax, [0.4, 0.1, -2.0]), [0.65, 0.35, 0.0], rtol=1e-15)
    # z = (0.5, 0.3): t^2 - 0.8 t - 0.33 = 0, so t = 0.4 - 0.7, and 0.8^2 + 0.6^2 = 1
    np.testing.assert_allclose(values(Entmax15, [0.2, -0.2, -9.0]), [0.64, 0.36, 0.0], rtol=1e-14)
    np.testing.assert_allclose(values(Entmax15, [1.0, 3.0, 0.0]), [0.0, 1.0, 0.0], atol=1e-15)


@every_op
@pytest.mark.parametrize("scale", [0.01, 0.3, 1.0, 5.0])
@pytest.mark.parametrize("size", [(1, 1), (7, 2), (5, 20), (3, 131), (2, 700)])
def test_is_the_sorting_algorithm(op, scale, size):
    rng = np.random.default_rng(0)
    x, g = rng.normal(size=size) * scale, rng.normal(size=size)
    y, (dx,) = run(op(), [x], g)
    expected, slope = loops(op, x, g, np.ones(size, bool)) if size[1] < 200 else (
        np.array([sorted_way(op, list(r)) for r in x]), None)
    np.testing.assert_allclose(y, expected, rtol=1e-11, atol=1e-13)
    np.testing.assert_array_equal(y > 1e-12, expected > 1e-12)
    np.testing.assert_allclose(y.sum(-1), 1, rtol=1e-13)
    if slope is not None:
        np.testing.assert_allclose(dx, slope, rtol=1e-9, atol=1e-11)


@every_op
def test_sparsemax_is_nearest_and_entmax_has_the_largest_score(op):
    """What defines them: no other point of the simplex does better. x p - |p|^2 / 2, or x p + 4/3 sum(p - p^1.5)."""
    rng = np.random.default_rng(1)

    def score(x, p):
        return (x * p).sum(-1) + ((-p * p / 2) if op is Sparsemax else 4 / 3 * (p - p ** 1.5)).sum(-1)
    for scale in (0.1, 1.0, 3.0):
        x = rng.normal(size=6) * scale
        p = values(op, x)
        others = rng.dirichlet(np.ones(6), size=500)
        near = p + rng.uniform(0, 1e-3, size=(500, 1)) * (others - p)
        assert (score(x, others) < score(x, p)).all() and (score(x, near) <= score(x, p)).all()


@every_op
def test_sparser_than_softmax_and_in_its_order(op):
    x = np.random.default_rng(2).normal(size=(50, 10))
    y = values(op, x)
    assert (y == 0).any() and (y >= 0).all()
    order = np.argsort(x, -1)
    assert (np.diff(np.take_along_axis(y, order, -1), axis=-1) >= 0).all()
    if op is Entmax15:  # between the two
        assert ((y > 0).sum(-1) >= (values(Sparsemax, x) > 0).sum(-1)).all()
    np.testing.assert_allclose(values(op, x + 3.25), y, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(values(op, x[:, ::-1]), y[:, ::-1], rtol=1e-12, atol=1e-14)


@every_op
def test_elements_close_to_the_threshold(op):
    """Rows made so that Newton's method meets one element after the other, at distances that shrink to nothing."""
    for steps in (1e-1, 1e-4, 1e-9, 1e-13):
        row = [0.0]
        for k in range(1, 12):
            p = sorted_way(op, row)
            threshold = -p[0] if op is Sparsemax else -2 * math.sqrt(p[0])
            row.append(threshold - steps / math.factorial(k) * (-1) ** k)
        expected = sorted_way(op, row)
        np.testing.assert_allclose(values(op, row), expected, rtol=1e-12, atol=1e-14)


@every_op
def test_is_pytorchs(op):
    """Sorting in torch, differentiated by torch."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(3)
    a, g = rng.normal(size=(4, 3, 9)), rng.normal(size=(4, 3, 9))
    x = torch.tensor(a, requires_grad=True)
    z = x if op is Sparsemax else x / 2
    s, _ = z.sort(-1, descending=True)
    k = torch.arange(1, 10, dtype=torch.float64)
    if op is Sparsemax:
        t = (s.cumsum(-1) - 1) / k
    else:
        mean = s.cumsum(-1) / k
        t = mean - ((1 - ((s * s).cumsum(-1) - k * mean ** 2)) / k).clamp(min=1e-300).sqrt()
    n = (s > t).sum(-1, keepdim=True)
    y = (z - t.gather(-1, n - 1)).clamp(min=0) ** (1 if op is Sparsemax else 2)
    y.backward(torch.tensor(g))
    mine, (dx,) = run(op(), [a], g)
    np.testing.assert_allclose(mine, y.detach().numpy(), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(dx, x.grad.numpy(), rtol=1e-10, atol=1e-10)


# ---------------------------------------------------------------------------------------------------------------------
# corners
# ---------------------------------------------------------------------------------------------------------------------
@every_op
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_ties_and_large_scores(op, dtype):
    for n in (1, 2, 5, 64):
        np.testing.assert_allclose(values(op, np.full((1, n), 3.0, dtype)), np.full((1, n), 1 / n), rtol=1e-6)
    y = values(op, np.array([[1e4, 1e4, -1e4, 0.0], [1e4, -1e4, 1e4, 1e4], [-1e4, -1e4, 0.0, -1e4]], dtype))
    np.testing.assert_allclose(y, [[0.5, 0.5, 0, 0], [1 / 3, 0, 1 / 3, 1 / 3], [0, 0, 1, 0]], rtol=1e-6)
    assert (y[0, 2:] == 0).all() and y.dtype == dtype


@every_op
def test_masked_rows(op):
    """Masked places are left out altogether: 0 in value and gradient; masks that broadcast, rows without a place."""
    rng = np.random.default_rng(4)
    x, g = 0.5 * rng.normal(size=(2, 3, 7)), rng.normal(size=(2, 3, 7))
    for mask in (rng.random((2, 1, 7)) < 0.6, rng.random((3, 7)) < 0.5, rng.random((2, 3, 1)) < 0.5, np.zeros(7, bool),
                 np.tri(3, 7, 4, dtype=bool)):
        y, (dx,) = run(op(), [x, mask], g)
        whole = np.broadcast_to(mask, x.shape)
        expected = loops(op, x.reshape(6, 7), g.reshape(6, 7), whole.reshape(6, 7))
        np.testing.assert_allclose(y.reshape(6, 7), expected[0], rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(dx.reshape(6, 7), expected[1], rtol=1e-10, atol=1e-12)
        assert (y[~whole] == 0).all() and (dx[~whole] == 0).all()
        np.testing.assert_allclose(y.sum(-1), whole.any(-1))


@every_op
def test_other_axes(op):
    rng = np.random.default_rng(5)
    x, g = rng.normal(size=(3, 4, 5)), rng.normal(size=(3, 4, 5))
    for axis in (0, 1, -2, 2):
        y, (dx,) = run(op(axis), [x], g)
        moved, (dm,) = run(op(), [np.moveaxis(x, axis, -1)], np.moveaxis(g, axis, -1))
        np.testing.assert_array_equal(y, np.moveaxis(moved, -1, axis))
        np.testing.assert_array_equal(dx, np.moveaxis(dm, -1, axis))


@every_op
def test_rows_of_strange_numbers(op):
    inf, nan = math.inf, math.nan
    y = values(op, [[0.1, -inf, 0.0], [-inf] * 3, [0.0, nan, -inf], [0.0, -nan, 0.0], [inf, 0.0, 0.0], [0.1, 0.0, 0.1]])
    np.testing.assert_allclose(y[0, [0, 2]], sorted_way(op, [0.1, 0.0]), rtol=1e-6)
    assert y[0, 1] == 0 and (y[1] == 0).all() and np.isnan(y[2:5]).all() and np.isfinite(y[5]).all()
    _, (dx,) = run(op(), [np.full((2, 3), -inf)], np.ones((2, 3)))
    assert (dx == 0).all()
    for shape in ((0, 3), (2, 0), (0,)):
        y, (dx,) = run(op(), [np.zeros(shape)], np.zeros(shape))
        assert y.shape == dx.shape == shape
    assert values(op, np.zeros((2, 0)), np.zeros((2, 0), bool)).shape == (2, 0)


# ---------------------------------------------------------------------------------------------------------------------
# derivatives, dtypes, memory, threads
# ---------------------------------------------------------------------------------------------------------------------
@every_op
@pytest.mark.parametrize("mode", ["projection", "full"])
def test_derivatives_to_order_two(op, mode):
    for report in check_op(op, order=2, seed=1, mode=mode):
        report.raise_if_wrong()


@every_op
def test_rules_and_loops_agree(op):
    rng = np.random.default_rng(6)
    x, g, mask = rng.normal(size=(5, 9)), rng.normal(size=(5, 9)), rng.random((5, 9)) < 0.7
    mask[2] = False
    loop, rule = (run(op(), [x, mask], g, create_graph)[1][0] for create_graph in (False, True))
    np.testing.assert_allclose(loop, rule, rtol=1e-12, atol=1e-14)


def test_a_kink_is_called_a_kink():
    """At x = (1, 0) sparsemax leaves the corner of the simplex in a kink. Entmax-1.5 does so at (2, 0), smoothly."""
    def call(op):
        return lambda x: op()(x)
    assert gradcheck(call(Sparsemax), [np.array([1.0, 0.0])]).raise_if_wrong().kinks > 0
    assert gradcheck(call(Entmax15), [np.array([1.0, 0.0])], mode="full").raise_if_wrong().kinks == 0
    assert gradcheck(call(Entmax15), [np.array([1.99, 0.0])], mode="full").raise_if_wrong().kinks == 0


def test_a_wrong_rule_is_found():
    class Dense(Sparsemax):
        def grad_x(self, g, y, x, mask=None):
            return g - g.mean(self.axis, keepdims=True)  # forgets the support

        cpu_grad = None

    class Half(Entmax15):
        def grad_x(self, g, y, x, mask=None):
            s = y.detach().sqrt()  # right to first order only
            return s * (g - (s * g).sum(-1, keepdims=True) / s.sum(-1, keepdims=True))

        cpu_grad = None

    x = np.array([0.7, 0.2, -0.9, 0.4])
    assert not gradcheck(lambda x: Dense()(x), [x]).ok
    assert gradcheck(lambda x: Half()(x), [x]).ok and not gradgradcheck(lambda x: Half()(x), [x]).ok


@every_op
def test_float32_error(op):
    rng = np.random.default_rng(7)
    for size, scale in (((6, 20), 1.0), ((3, 400), 0.05)):
        x, g = (rng.normal(size=size) * s for s in (scale, 1.0))
        x = x.astype(np.float32)
        y, (dx,) = run(op(), [x], g.astype(np.float32))
        gold, (slope,) = run(op(), [x.astype(np.float64)], g)
        assert y.dtype == dx.dtype == np.float32
        np.testing.assert_allclose(y, gold, rtol=0, atol=2e-7)
        np.testing.assert_allclose(dx, slope, rtol=0, atol=2e-5)


@every_op
def test_strided_arrays(op):
    rng = np.random.default_rng(8)
    x, g, mask = rng.normal(size=(2, 4, 5)), rng.normal(size=(2, 4, 5)), rng.random((2, 4, 5)) < 0.7
    for axis in (-1, 1):
        one, two = run(op(axis), [x, mask], g), run(op(axis), [twisted(x), twisted(mask)], twisted(g))
        np.testing.assert_array_equal(one[0], two[0])
        np.testing.assert_array_equal(one[1][0], two[1][0])


@every_op
@pytest.mark.skipif(not device.JIT or device.get_num_threads() < 2, reason="needs two threads")
def test_one_and_two_threads_give_the_same_bits(op):
    same_bits(op(), [np.random.default_rng(9).normal(size=(300, 101)).astype(np.float32)])


def test_only_scores_have_a_gradient():
    x = Tensor(np.zeros((2, 3)), requires_grad=True)
    y = Sparsemax()(x, Tensor(np.ones((2, 3), bool)))
    assert grad([y.sum()], [x])[0].shape == (2, 3)


@every_op
def test_errors(op):
    x = Tensor(np.zeros((2, 3)))
    with pytest.raises(ValueError, match=rf"^{op.name}: axis 2 is out of range for a Tensor of shape \(2, 3\)"):
        op(2)(x)
    with pytest.raises(TypeError, match=rf"^{op.name}: expected float32 or float64, got int64"):
        op()(Tensor([1, 2]))
    with pytest.raises(TypeError, match=rf"^{op.name}: a mask is boolean"):
        op()(x, Tensor(np.ones((2, 3))))
    with pytest.raises(ShapeError, match=rf"^{op.name}: the mask of shape \(2, 2\) does not broadcast"):
        op()(x, Tensor(np.ones((2, 2), bool)))
