"""PageRank: against the power iteration, elimination in plain loops, PyTorch, the readable twin; masks and corners."""
import numpy as np
import pytest
from test_softmax_loss_norm import run, same_bits, twisted

from tinyattn import device
from tinyattn.autograd import fused, grad
from tinyattn.gradcheck import check_op, gradcheck
from tinyattn.ops.broadcast import ShapeError
from tinyattn.ops.linalg import Solve
from tinyattn.ops.pagerank import BLOCK, CHUNKS, PageRank
from tinyattn.tensor import Tensor

SIZES = [(3, 1), (2, 2), (4, 7), (1, BLOCK), (2, BLOCK + 1), (1, 3 * BLOCK - 5), (CHUNKS + 3, 5)]


def problem(b, n, m=None, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.uniform(size=(b, n) if m is None else (b, n, m))
    return rng.uniform(0.1, 2, size=(b, n, n)), y / y.sum(1, keepdims=True)


def transitions(w):
    """Column by column, in loops: w_ij over the sum of column j; 0 where that is 0."""
    m = np.zeros(w.shape)
    for j in range(len(w)):
        total = sum(w[i, j] for i in range(len(w)))
        for i in range(len(w)):
            m[i, j] = w[i, j] / total if total != 0 else 0.0
    return m


def iterated(w, y, damping, steps=2000):
    """Eq 30, again and again, for one graph and one restart."""
    m, alpha = transitions(w), y.copy()
    for _ in range(steps):
        alpha = damping * m @ alpha + (1 - damping) * y
    return alpha


def eliminated(a, b):
    """x with a x = b by Gauss and Jordan, in loops, with the largest pivot of the whole column."""
    a, x = a.copy(), b.copy()
    n, order = len(a), []
    for k in range(n):
        p = max((i for i in range(n) if i not in order), key=lambda i: abs(a[i, k]))
        order.append(p)
        for i in range(n):
            if i != p:
                f = a[i, k] / a[p, k]
                a[i] -= f * a[p]
                x[i] -= f * x[p]
    return np.array([x[p] / a[p, k] for k, p in enumerate(order)])


def slow(w, y, g, damping):
    """alpha, dw, dy of one graph and one restart, from the formulas: dM = lam c alpha^T, then through the division."""
    n, m = len(w), transitions(w)
    a = np.eye(n) - damping * m
    alpha, c = eliminated(a, (1 - damping) * y), eliminated(a.T, g)
    dw = np.zeros((n, n))
    for j in range(n):
        total = w[:, j].sum()
        for i in range(n):
            for k in range(n):  # M_kj depends on w_ij
                slope = ((k == i) * total - w[k, j]) / total ** 2 if total != 0 else 0.0
                dw[i, j] += damping * c[k] * alpha[j] * slope
    return alpha, dw, (1 - damping) * c


def ranks(w, y, damping=0.9):
    return PageRank(damping)(Tensor(np.asarray(w)), Tensor(np.asarray(y))).numpy()


# ---------------------------------------------------------------------------------------------------------------------
# values and gradients
# ---------------------------------------------------------------------------------------------------------------------
def test_two_nodes_by_hand():
    """Node 0 always goes to 1, node 1 stays or leaves with even odds: alpha_0 = .45 alpha_1 + .05, their sum 1."""
    alpha = ranks([[[0.0, 3.0], [2.0, 3.0]]], [[0.5, 0.5]])
    np.testing.assert_allclose(alpha[0], [0.5 / 1.45, 0.95 / 1.45], rtol=1e-6)


@pytest.mark.parametrize("size", SIZES)
def test_is_the_power_iteration_and_sums_to_one(size):
    w, y = problem(*size)
    for damping in (0.0, 0.5, 0.9):
        alpha = ranks(w, y, damping)
        assert (alpha > 0).all()
        np.testing.assert_allclose(alpha.sum(1), 1, rtol=1e-13)
        for b in range(min(size[0], 3)):
            np.testing.assert_allclose(alpha[b], iterated(w[b], y[b], damping, 400), rtol=1e-12)
    np.testing.assert_array_equal(ranks(w, y, 0.0), y)


def test_uniform_and_one_hot_restarts():
    w, _ = problem(1, 6, seed=1)
    uniform = ranks(w, np.full((1, 6), 1 / 6))[0]
    topics = ranks(np.repeat(w, 6, 0), np.eye(6))  # all the mass starts at one node
    np.testing.assert_allclose(topics.mean(0), uniform, rtol=1e-12)  # alpha is linear in y
    assert (np.diag(topics) > uniform).all()
    together = ranks(w, np.eye(6)[None])[0]  # (1,N,M): six restarts of one graph
    np.testing.assert_allclose(together.T, topics, rtol=1e-12)


def test_columns_are_normalised_and_not_rows():
    w, y = problem(1, 4, seed=2)
    scaled = w * np.array([1.0, 20, 0.3, 5])  # each column by a number
    np.testing.assert_allclose(ranks(scaled, y), ranks(w, y), rtol=1e-12)
    assert np.abs(ranks(w * np.array([[1.0], [20], [0.3], [5]]), y) - ranks(w, y)).max() > 0.1


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("mode", ["force", "never"])
def test_against_loops(size, mode):
    w, y = problem(*size, seed=3)
    g = np.random.default_rng(4).normal(size=y.shape)
    with fused(mode):
        alpha, (dw, dy) = run(PageRank(0.8), [w, y], g)
    for b in (0, size[0] - 1):
        for mine, expected in zip((alpha[b], dw[b], dy[b]), slow(w[b], y[b], g[b], 0.8), strict=True):
            np.testing.assert_allclose(mine, expected, rtol=1e-10, atol=1e-13)


def test_several_restarts_are_the_sum_of_each():
    w, y = problem(3, 5, 4, seed=5)
    g = np.random.default_rng(6).normal(size=y.shape)
    alpha, (dw, dy) = run(PageRank(), [w, y], g)
    alone = [run(PageRank(), [w, y[..., m]], g[..., m]) for m in range(4)]
    np.testing.assert_allclose(alpha, np.stack([a for a, _ in alone], -1), rtol=1e-12)
    np.testing.assert_allclose(dy, np.stack([d for _, (_, d) in alone], -1), rtol=1e-12)
    np.testing.assert_allclose(dw, sum(d for _, (d, _) in alone), rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("size", [(2, 6), (2, 5, 3), (1, 40)])
def test_is_pytorchs(size):
    torch = pytest.importorskip("torch")
    w, y = problem(*size, seed=7)
    g = np.random.default_rng(8).normal(size=y.shape)
    tw, ty = (torch.tensor(a, requires_grad=True) for a in (w, y))
    right = 0.1 * (ty if ty.ndim == 3 else ty[..., None])
    expected = torch.linalg.solve(torch.eye(w.shape[1]) - 0.9 * tw / tw.sum(1, keepdim=True), right).reshape(y.shape)
    expected.backward(torch.tensor(g))
    alpha, grads = run(PageRank(), [w, y], g)
    for mine, theirs in zip((alpha, *grads), (expected.detach(), tw.grad, ty.grad), strict=True):
        np.testing.assert_allclose(mine, theirs.numpy(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("mode", ["projection", "full"])
def test_derivatives_to_order_two(mode):
    for report in check_op(PageRank, order=2, seed=2, mode=mode):
        report.raise_if_wrong()


def test_a_gradient_without_the_column_sum_is_found():
    class Frozen(PageRank):
        """Takes W D^-1 for the variable and D for a constant."""
        composed = cpu_grad = None

        def grad_w(self, g, alpha, w, y):
            sums = w.sum(axis=1, keepdims=True)
            a = Tensor(np.eye(w.shape[-1])) - self.damping * w / sums
            return self.damping * Solve()(a.transpose(1, 2), g.unsqueeze(2)) * alpha.unsqueeze(1) / sums

    w, y = problem(1, 3)
    assert not gradcheck(lambda w: Frozen()(w, Tensor(y)), [w]).ok


def test_only_what_is_needed():
    w, y = problem(2, 4)
    g = np.random.default_rng(9).normal(size=y.shape)
    _, whole = run(PageRank(), [w, y], g)
    for needs in ((True, False), (False, True)):
        ts = [Tensor(a, requires_grad=n) for a, n in zip((w, y), needs, strict=True)]
        (found,) = grad([PageRank()(*ts)], [t for t in ts if t.requires_grad], [Tensor(g)])
        np.testing.assert_array_equal(found.numpy(), whole[needs.index(True)])


# ---------------------------------------------------------------------------------------------------------------------
# masked nodes, nodes without a way out, negative weights
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("n", [5, 3 * BLOCK])
def test_masked_nodes_are_not_there(n):
    """Zero rows and columns: exactly 0 there in value and gradient, elsewhere what the smaller graph gives."""
    rng = np.random.default_rng(10)
    keep = np.stack([np.ones(n, bool), rng.random(n) < 0.6, np.zeros(n, bool), np.arange(n) == 1])
    w, y = problem(4, n, seed=11)
    w, y = w * keep[:, :, None] * keep[:, None], y * keep
    g = rng.normal(size=y.shape)
    alpha, (dw, dy) = run(PageRank(), [w, y], g)
    assert all(np.isfinite(a).all() for a in (alpha, dw, dy))
    assert (alpha[~keep] == 0).all()
    for b in range(4):
        k = np.flatnonzero(keep[b])
        small, (sw, sy) = run(PageRank(), [w[b][None, k][:, :, k], y[b][None, k]], g[b][None, k])
        np.testing.assert_allclose(alpha[b, k], small[0], rtol=1e-12)
        np.testing.assert_allclose(dw[b][k][:, k], sw[0], rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(dy[b, k], sy[0], rtol=1e-12)
        assert (dw[b][:, ~keep[b]] == 0).all()


def test_a_node_without_a_way_out_loses_what_comes():
    """Node 1 has no edges out: w[:, 1] = 0. Both ways to compute it agree, and mass that reaches it is lost."""
    w = np.array([[[1.0, 0, 0], [1, 0, 0], [0, 0, 1]]])
    for y, total in (([[0, 0, 1.0]], 1.0), ([[1.0, 0, 0]], None)):
        alpha, (dw, _) = run(PageRank(0.5), [w, np.array(y)], np.array([[0.3, -1, 2]]))
        with fused("never"):
            twin, (tw, _) = run(PageRank(0.5), [w, np.array(y)], np.array([[0.3, -1, 2]]))
        np.testing.assert_allclose(alpha, twin, rtol=1e-14)
        np.testing.assert_allclose(dw, tw, rtol=1e-13, atol=1e-15)
        assert (dw[0, :, 1] == 0).all()
        if total:
            np.testing.assert_allclose(alpha.sum(), total)
        else:  # alpha = M alpha / 2 + y / 2: (2, 0, 0) / 3 and half of half of that at node 1, which sends nothing on
            np.testing.assert_allclose(alpha[0], [2 / 3, 1 / 6, 0], rtol=1e-14)


@pytest.mark.parametrize("size", [(20, 9), (4, 2 * BLOCK + 3)])
def test_negative_weights(size):
    """What the docstring says: no distribution, the iteration diverges, the solution is right all the same."""
    rng = np.random.default_rng(12)
    w, y = rng.normal(size=(*size, size[1])), np.full(size, 1 / size[1])
    g = rng.normal(size=y.shape)
    alpha, (dw, dy) = run(PageRank(), [w, y], g)
    radius = np.array([np.abs(np.linalg.eigvals(0.9 * transitions(m))).max() for m in w])
    assert (radius > 1).any() and (alpha < 0).any()
    for b in range(size[0]):
        expected = slow(w[b], y[b], g[b], 0.9)
        for mine, right in zip((alpha[b], dw[b], dy[b]), expected, strict=True):
            np.testing.assert_allclose(mine, right, rtol=0, atol=1e-7 * np.abs(right).max())


def test_a_singular_matrix_is_named():
    with pytest.raises(ValueError, match=r"^pagerank: expected weights that are not negative.* graph 1 is singular"):
        ranks([[[1.0, 1], [1, 1]], [[2.0, 0], [-1, 1]]], np.ones((2, 2)) / 2, 0.5)


def test_pivots_are_searched():
    """I - lam W D^-1 = (0, -1/4; 1/2, 3/4): without a change of rows this would divide by 0."""
    w, y = np.array([[[2.0, 1.0], [-1.0, 1.0]]]), np.array([[0.25, 0.75]])
    alpha, (dw, dy) = run(PageRank(0.5), [w, y], np.array([[1.0, -2.0]]))
    np.testing.assert_allclose(alpha, [[1.5, -0.5]], rtol=1e-14)  # -x_1 / 4 = 1/8, x_0 / 2 + 3/4 x_1 = 3/8
    for mine, right in zip((alpha, dw, dy), slow(w[0], y[0], np.array([1.0, -2.0]), 0.5), strict=True):
        np.testing.assert_allclose(mine[0], right, rtol=1e-13)


# ---------------------------------------------------------------------------------------------------------------------
# corners, dtypes, memory, threads, errors
# ---------------------------------------------------------------------------------------------------------------------
def test_no_graph_no_node_no_restart():
    for w, y in (((0, 3, 3), (0, 3)), ((2, 0, 0), (2, 0)), ((2, 3, 3), (2, 3, 0)), ((0, 3, 3), (0, 3, 2))):
        alpha, (dw, dy) = run(PageRank(), [np.ones(w), np.ones(y)], np.ones(y))
        assert alpha.shape == dy.shape == y and dw.shape == w and (dw == 0).all()
    np.testing.assert_allclose(ranks([[[7.0]]], [[1.0]]), [[1.0]])  # a node alone keeps what it has
    np.testing.assert_allclose(ranks([[[0.0]]], [[1.0]]), [[0.1]], rtol=1e-6)


def test_a_nan_stays_in_its_graph():
    w, y = problem(3, 4)
    w[1, 2, 0] = np.nan
    alpha = ranks(w, y)
    assert np.isnan(alpha[1]).any() and np.isfinite(alpha[[0, 2]]).all()


@pytest.mark.parametrize("size", [(4, 12), (2, 3 * BLOCK), (3, 6, 2)])
def test_without_recording_the_same_bits(size):
    """Then the factors of one graph overwrite those of the one before."""
    w, y = problem(size[0] + CHUNKS, *size[1:])
    recorded = PageRank()(Tensor(w, requires_grad=True), Tensor(y)).numpy()
    assert ranks(w, y).tobytes() == recorded.tobytes()


@pytest.mark.parametrize("size", [(4, 12), (2, 70), (3, 6, 2)])
def test_float32_error(size):
    """Weights from e^-5 to e^5: as near to float64 as the twin in float32, or within a few units of the last place."""
    rng = np.random.default_rng(13)
    y = problem(*size)[1]
    w, g = np.exp(rng.uniform(-5, 5, size=(size[0], size[1], size[1]))), rng.normal(size=y.shape)
    narrow = [a.astype(np.float32) for a in (w, y)]
    gold = run(PageRank(), [a.astype(np.float64) for a in narrow], g.astype(np.float32))
    mine = run(PageRank(), narrow, g)
    with fused("never"):
        twin = run(PageRank(), narrow, g)
    for a, b, c in zip((mine[0], *mine[1]), (twin[0], *twin[1]), (gold[0], *gold[1]), strict=True):
        assert a.dtype == np.float32
        assert np.abs(a - c).max() <= 3 * np.abs(b - c).max() + 1e-6 * np.abs(c).max()


def test_strided_arrays():
    w, y = problem(2, 5, 3)
    g = np.random.default_rng(14).normal(size=y.shape)
    one, two = run(PageRank(), [w, y], g), run(PageRank(), [twisted(w), twisted(y)], twisted(g))
    for a, b in zip((one[0], *one[1]), (two[0], *two[1]), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.skipif(not device.JIT or device.get_num_threads() < 2, reason="needs two threads")
@pytest.mark.parametrize("size", [(40, 30), (5, 100), (9, 40, 3)])
def test_one_and_two_threads_give_the_same_bits(size):
    same_bits(PageRank(), [a.astype(np.float32) for a in problem(*size)])


def test_errors():
    w, y = (Tensor(a) for a in problem(2, 3))
    for damping in (1.0, -0.1, 2, float("nan")):
        with pytest.raises(ValueError, match=r"^pagerank: expected a damping in \[0, 1\), got"):
            PageRank(damping)
    for bad in ((w[0], y), (w, y[:, :2]), (w, y[0]), (w[:, :2], y), (w[:1], y)):
        with pytest.raises(ShapeError, match=r"^pagerank: expected w \(B,N,N\) and y \(B,N\) or \(B,N,M\), got w \("):
            PageRank()(*bad)
    with pytest.raises(TypeError, match="^pagerank: expected w and y of one type"):
        PageRank()(w, y.to("float32"))
    with pytest.raises(TypeError, match="^pagerank: expected float32 or float64, got int64"):
        PageRank()(Tensor(np.ones((1, 2, 2), np.int64)), y)
