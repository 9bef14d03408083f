"""Chains, trees, PageRank, linear systems, sparsemax and entmax-1.5 on a card: sizes, levels, blocks, masks, corners.

The ops' own samples, with second gradients, are compared in `test_engine.py`. Here the loops are compared alone: the
readable twins of a chain and of trees take hundreds of launches.
"""
import math

import numpy as np
import pytest
from agreement import TIGHT, agree

from tinyattn import Tensor, grad, solve
from tinyattn import cuda as card
from tinyattn import device as devices
from tinyattn.cuda import simulator
from tinyattn.ops import eisner, linalg, linear_chain, sum_product_cuda
from tinyattn.ops.broadcast import ShapeError
from tinyattn.ops.eisner import Eisner
from tinyattn.ops.linear_chain import LinearChain
from tinyattn.ops.pagerank import PageRank
from tinyattn.ops.sparsemax import Entmax15, Sparsemax

RNG = np.random.default_rng(11)
INF = math.inf


@pytest.fixture(autouse=True)
def launches(monkeypatch):
    """The names of the kernels that have run."""
    seen, before = [], card.CudaKernel._launch
    monkeypatch.setattr(card.CudaKernel, "_launch", lambda k, grid, a: seen.append(k.name) or before(k, grid, a))
    return seen


@pytest.fixture(params=["first to last", "last to first"])
def order_of_threads(request, monkeypatch):
    """In the simulator the threads of a block run one after the other from barrier to barrier. Where a barrier is missing
    one order may give by chance what was meant, but hardly the other, too."""
    class Backwards:
        def __getattr__(self, name):
            return getattr(np, name)

        def ndindex(self, *shape):
            return list(np.ndindex(*shape))[::-1]

    if request.param == "last to first":
        monkeypatch.setattr(simulator, "np", Backwards())


def by_loops(make, arrays, constants, device, needs=None):
    """Outputs, and gradients of the arrays that need one, by `cpu_grad` or `cuda_grad`."""
    ts = [Tensor(a, device=device, requires_grad=needs is None or needs[i]) for i, a in enumerate(arrays)]
    outs = make()(*ts, *[None if c is None else Tensor(c, device=device) for c in constants])
    outs = outs if isinstance(outs, tuple) else (outs,)
    rng = np.random.default_rng(4)
    gs = [Tensor(rng.normal(size=o.shape).astype(o.dtype), device=device) for o in outs]
    found = grad(list(outs), [t for t in ts if t.requires_grad], gs)
    return [t.numpy() for t in (*outs, *found)]


def alike(make, arrays, *constants, dtype="float64", needs=None, tolerance=None):
    arrays = [a.astype(dtype) for a in arrays]
    here, there = (by_loops(make, arrays, constants, device, needs) for device in ("cpu", "cuda"))
    for a, b in zip(here, there, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        np.testing.assert_allclose(b, a, **({"rtol": tolerance, "atol": tolerance} if tolerance else TIGHT[dtype]))
    return there


# ---------------------------------------------------------------------------------------------------------------------
# chains and trees: the tables
# ---------------------------------------------------------------------------------------------------------------------
def rows(table, width=3):
    """A flat table on the card as a matrix; one without rows is held by a single number."""
    table = table.copy_to_host()
    return table.reshape(-1, width) if table.size >= width else np.zeros((0, width), np.int64)


def products(table):
    """[(parent, factor, factor)] of the rows of a table, one row after the other."""
    return [(row[0], row[1] + k * row[2], row[3] + k * row[4]) for row in table.tolist() for k in range(row[5])]


TABLES = [(linear_chain._levels, LinearChain, (T, C), T * C, C * C, ()) for T, C in [(0, 2), (1, 3), (2, 2), (3, 1), (4, 3)]]
TABLES += [(eisner._levels, lambda single=single: Eisner(single), (N,), N * N, N, (single,))
           for N in (0, 1, 2, 5) for single in (True, False)]


@pytest.mark.parametrize("levels, make, sizes, x, y, more", TABLES)
def test_the_uses_are_the_sums_seen_from_the_factors(levels, make, sizes, x, y, more):
    """Of all items but those that are 1: there nobody asks."""
    table, _ = make()._table(*sizes)
    ones = {x + y} | {row[0] for row in table.tolist() if row[1] == row[3] == x + y}
    wanted = [use for p, a, b in products(table) for use in ((a, p, b), (b, p, a)) if use[0] not in ones]
    assert sorted(products(rows(levels(*sizes, *more).uses, 6))) == sorted(wanted)


@pytest.mark.parametrize("levels, make, sizes, x, y, more", TABLES)
def test_a_level_asks_only_for_what_is_there(levels, make, sizes, x, y, more):
    found, table = levels(*sizes, *more), make()._table(*sizes)[0]
    sums, uses, slots, down, up = rows(found.sums, 6), rows(found.uses, 6), rows(found.slots), rows(found.down), rows(found.up)
    assert sorted(sums.tolist()) == sorted(table.tolist()) and (len(down), len(up)) == found.counts[:2]
    known = set(range(x + y + 1))
    for begin, end, lanes in down.tolist():
        assert all(a in known and b in known for _, a, b in products(sums[begin:end]))
        known |= set(sums[begin:end, 0].tolist())
        assert lanes & lanes - 1 == 0 and 1 <= lanes <= found.threads
    assert sorted(slots[:, 0].tolist()) == sorted(known - {x + y})
    known = set()
    for begin, end, _ in up.tolist():
        assert all(p in known for _, a, b in slots[begin:end].tolist() for _, p, _ in products(uses[a:b]))
        known |= set(slots[begin:end, 0].tolist())
    assert len(known) == len(slots)


# ---------------------------------------------------------------------------------------------------------------------
# chains and trees: values and gradients
# ---------------------------------------------------------------------------------------------------------------------
def chain(B, T, C, scale=1.0):
    return [RNG.normal(size=(B, T, C)) * scale, RNG.normal(size=(C, C)) * scale]


def tree(B, N, scale=1.0):
    return [RNG.normal(size=(B, N, N)) * scale, RNG.normal(size=(B, N)) * scale]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("sizes, lengths", [((1, 1, 1), None), ((2, 1, 3), [1, 0]), ((2, 5, 3), [5, 2]), ((1, 7, 1), None),
                                            ((1, 3, 6), None), ((3, 4, 2), [0, 4, 3])])
def test_chain(sizes, lengths, dtype, launches):
    alike(LinearChain, chain(*sizes), None if lengths is None else np.array(lengths), dtype=dtype)
    assert launches.count("sum_product.infer") == 2 and len(launches) == 3


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize("sizes, lengths", [((1, 1), None), ((2, 2), [2, 0]), ((2, 5), [5, 3])])
def test_trees(sizes, lengths, single, dtype, launches):
    p, r, *_ = alike(lambda: Eisner(single), tree(*sizes), None if lengths is None else np.array(lengths), dtype=dtype)
    assert launches == ["sum_product.infer"] * 2
    for b, n in enumerate(lengths or [sizes[1]] * sizes[0]):
        np.testing.assert_allclose((p.sum(1) + r)[b], np.arange(sizes[1]) < n, atol=1e-6)


@pytest.mark.parametrize("threads", [1, 4])
def test_levels_wider_than_a_block(threads, monkeypatch):
    monkeypatch.setattr(sum_product_cuda, "threads_for", lambda n, most=None: card.threads_for(n, threads))
    for module in (linear_chain, eisner):
        monkeypatch.setattr(module, "_levels", module._levels.__wrapped__)
    alike(LinearChain, chain(2, 4, 3), np.array([4, 3]))
    alike(lambda: Eisner(False), tree(1, 5), None)


@pytest.mark.parametrize("scale", [30.0, 1e4])
@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-5), ("float64", 1e-9)])
def test_large_scores(scale, dtype, tolerance):
    """As in tests/test_structured.py: beyond any float, so each number has an exponent of its own."""
    u, w = chain(2, 4, 3, scale)
    theta, root = tree(1, 4, scale)
    u[0, 1, 0], theta[0, 1, 0] = u[0, 1, 2], theta[0, 1, 2]
    alike(LinearChain, [u, w], None, dtype=dtype, tolerance=tolerance)
    alike(lambda: Eisner(True), [theta, root], None, dtype=dtype, tolerance=tolerance)


def test_a_way_that_is_hopeless_at_first_may_win():
    u = np.array([[[0.0, -1e4], [0.0, 0.0], [-2e4, 0.0]]])
    p, logz, *_ = alike(LinearChain, [u, np.where(np.eye(2) == 1, 0.0, -INF)], None)
    assert p.tolist() == [[[0, 1]] * 3] and logz == -1e4


def test_scores_beyond_all_measure(order_of_threads):
    """More than 7e14 counts as that much."""
    theta, root = tree(1, 3)
    theta[0, 0, 1], theta[0, 1, 2], theta[0, 2, 1], root[0, 1] = 1e30, 1e200, -1e100, -1e20
    alike(lambda: Eisner(True), [theta, root], None)
    u, w = chain(2, 3, 2)
    w[0, 1], u[0, 1, 1], u[1, 2, 0] = 1e100, 1e50, -1e50
    alike(LinearChain, [u, w], None)


def test_forbidden_parts_and_no_way_at_all(order_of_threads):
    u, w = chain(2, 4, 3)
    u[0, 1, 2] = u[0, 3, 0] = w[0, 1] = u[1, 2] = -INF
    p, logz, du, dw = alike(LinearChain, [u, w], None)
    assert logz[1] == -INF and not p[1].any() and not du[1].any() and p[0, 1, 2] == du[0, 3, 0] == dw[0, 1] == 0
    theta, root = tree(2, 4)
    theta[0, 0, 1] = theta[1, :, 1] = root[1, 1] = -INF
    p, r, logz, dt, dr = alike(lambda: Eisner(True), [theta, root], None)
    assert logz[1] == -INF and not (p[1].any() or r[1].any() or dt[1].any() or dr[1].any()) and p[0, 0, 1] == 0


def test_a_nan_stays_in_its_sentence():
    u, w = chain(2, 3, 2)
    u[0, 1, 1] = np.nan
    p, logz = (t.numpy() for t in LinearChain()(Tensor(u, device="cuda"), Tensor(w, device="cuda"), None))
    assert np.isnan(logz[0]) and np.isnan(p[0]).any() and np.isfinite(p[1]).all() and np.isfinite(logz[1])


@pytest.mark.parametrize("make, arrays", [(LinearChain, chain(0, 3, 2)), (LinearChain, chain(2, 0, 2)), (Eisner, tree(0, 3)),
                                          (Eisner, tree(2, 0)), (Eisner, tree(0, 0))])
def test_nothing(make, arrays):
    alike(make, arrays, None)


@pytest.mark.parametrize("needs", [(True, False), (False, True)])
def test_only_what_is_needed(needs):
    alike(LinearChain, chain(2, 3, 2), None, needs=needs)
    alike(Eisner, tree(2, 3), np.array([3, 2]), needs=needs)


@pytest.mark.parametrize("make, arrays, name", [(LinearChain, chain(2, 3, 2), "linear_chain"), (Eisner, tree(2, 3), "eisner")])
def test_lengths_are_checked_as_on_the_cpu_and_not_fetched(make, arrays, name):
    ts = [Tensor(a, device="cuda") for a in arrays]
    with pytest.raises(ValueError, match=f"{name}: expected lengths between 0 and . = 3, got 2 to 4"):
        make()(*ts, Tensor(np.array([2, 4]), device="cuda"))
    with pytest.raises(ShapeError, match=rf"{name}: expected lengths \(B,\) = \(2,\), got \(1,\)"):
        make()(*ts, Tensor(np.array([2]), device="cuda"))
    before = devices.waits["reads"]
    make()(*ts, Tensor(np.array([2, 3]), device="cuda"))
    assert devices.waits["reads"] == before


# ---------------------------------------------------------------------------------------------------------------------
# linear systems
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("n, m", [(1, 1), (2, 3), (3, 1), (5, 2), (7, 1), (2, linalg.COLUMNS + 1)])
def test_solve(n, m, launches):
    """In the simulator 2 columns are factored at a time, so 5 and 7 take several blocks."""
    agree(solve, RNG.normal(size=(n, n)) + 2 * np.eye(n), RNG.normal(size=(n, m)))
    assert "linalg.factor" in launches and "linalg.solve" in launches


def test_solve_exchanges_rows(order_of_threads):
    a = RNG.normal(size=(6, 6)) + 4 * np.eye(6)[RNG.permutation(6)]
    a[0, 0] = 0
    x = np.array(RNG.normal(size=(6, 2)))
    agree(solve, a, a @ x)
    np.testing.assert_allclose(solve(Tensor(a, device="cuda"), Tensor(a @ x, device="cuda")).numpy(), x, rtol=1e-11)
    turn = np.eye(5)[[3, 0, 4, 2, 1]]
    np.testing.assert_array_equal(solve(Tensor(turn, device="cuda"), Tensor(np.eye(5), device="cuda")).numpy(), turn.T)


def test_the_factors_of_a_matrix(order_of_threads):
    a = RNG.normal(size=(2, 7, 7))
    lu = devices.to_device(a, "cuda")
    order = linalg.factor_cuda(lu, 7).copy_to_host().reshape(2, 7)
    lu = lu.copy_to_host()
    for b in range(2):
        lower = np.tril(lu[b], -1) + np.eye(7)
        assert np.abs(lower).max() == 1 and sorted(order[b]) == list(range(7))
        np.testing.assert_allclose(lower @ np.triu(lu[b]), a[b][order[b]], atol=1e-13)


@pytest.mark.parametrize("a, b", [((2, 1, 2, 2), (2, 2, 1)), ((3, 3), (2, 3, 2)), ((2, 3, 3), (3, 1)), ((0, 2, 2), (2, 1)),
                                  ((2, 0, 0), (0, 3)), ((2, 2), (2, 0))])
def test_solve_of_batches(a, b):
    agree(solve, RNG.normal(size=a) + 3 * np.eye(a[-1]), RNG.normal(size=b))


def test_solve_in_float32():
    agree(solve, RNG.normal(size=(2, 4, 4)) + 5 * np.eye(4), RNG.normal(size=(4, 1)), dtype="float32")


def test_a_singular_matrix_gives_nan_for_itself_alone():
    a = np.stack([np.ones((3, 3)), np.eye(3), np.zeros((3, 3))])
    x = solve(Tensor(a, device="cuda"), Tensor(np.ones((3, 2)), device="cuda")).numpy()
    assert np.isnan(x[[0, 2]]).all() and (x[1] == 1).all()
    with pytest.raises(ShapeError, match=r"solve: expected a \(..., n, n\) and b \(..., n, m\), got \(2, 3\) and \(3, 1\)"):
        solve(Tensor(np.ones((2, 3)), device="cuda"), Tensor(np.ones((3, 1)), device="cuda"))


# ---------------------------------------------------------------------------------------------------------------------
# PageRank
# ---------------------------------------------------------------------------------------------------------------------
def graph(b, n, *m):
    return [RNG.uniform(0.2, 2, size=(b, n, n)), RNG.uniform(size=(b, n, *m))]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("sizes", [(1, 1), (2, 5), (3, 4, 1), (1, 3, 4), (0, 3), (2, 0), (1, 2, 0)])
def test_pagerank(sizes, dtype, launches):
    alike(lambda: PageRank(0.8), graph(*sizes), dtype=dtype, tolerance=None if dtype == "float64" else 2e-5)
    assert launches == ["pagerank.matrix", "linalg.factor", "linalg.solve", "linalg.solve", "pagerank.weights_grad"]


def test_pagerank_with_dead_ends_and_masked_nodes(order_of_threads):
    w, y = graph(2, 4)
    w[0, :, 2] = 0
    w[1, 3] = w[1, :, 3] = y[1, 3] = 0
    alpha, dw, _ = alike(PageRank, [w, y])
    assert alpha[1, 3] == 0 and not dw[0, :, 2].any()
    for needs in ((True, False), (False, True)):
        alike(PageRank, [w, y], needs=needs)
    alike(lambda: PageRank(0.0), [w, y])


def test_pagerank_of_a_singular_graph_is_nan():
    w = np.stack([np.ones((2, 2)), [[3.0, 0.0], [-1.0, 1.0]]])  # 1 - 2/3 * 3/2 = 0
    alpha = PageRank(2 / 3)(Tensor(w, device="cuda"), Tensor(np.ones((2, 2)), device="cuda")).numpy()
    assert np.isfinite(alpha[0]).all() and (np.isnan(alpha[1]).all() or np.abs(alpha[1]).max() > 1e12)
    w[1] = [[2.0, 0.0], [-1.0, 1.0]]
    alpha = PageRank(0.5)(Tensor(w, device="cuda"), Tensor(np.ones((2, 2)), device="cuda")).numpy()  # 1 - 1/2 * 2 = 0
    assert np.isfinite(alpha[0]).all() and np.isnan(alpha[1]).all()


# ---------------------------------------------------------------------------------------------------------------------
# sparsemax and entmax-1.5
# ---------------------------------------------------------------------------------------------------------------------
BOTH = pytest.mark.parametrize("op", [Sparsemax, Entmax15])


@BOTH
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape, axis", [((1, 1), -1), ((3, 7), 1), ((2, 5, 3), 1), ((5, 2), 0), ((0, 3), 1), ((3, 0), 1)])
def test_cut(op, shape, axis, dtype, launches):
    x = RNG.normal(size=shape)
    y, _ = alike(lambda: op(axis), [x], dtype=dtype)
    assert [k.split(".")[1] for k in launches] == ["cut", "cut_grad"]
    if y.size:
        np.testing.assert_allclose(y.sum(axis), 1, rtol=1e-6)


@BOTH
def test_cut_of_a_row_longer_than_a_block(op):
    alike(op, [RNG.normal(size=(1, card.THREADS + 44))], dtype="float32")


@BOTH
def test_cut_of_equal_and_of_far_scores(op):
    y, _ = alike(op, [np.stack([np.zeros(20), np.arange(20) * 1e4, np.linspace(0, 1e-3, 20)])])
    assert (y[0] == y[0, 0]).all() and y[1].tolist() == [0] * 19 + [1] and (y[2] > 0).all()


@BOTH
def test_cut_with_masks(op, order_of_threads):
    x = RNG.normal(size=(2, 3, 5))
    keys = np.array([[[True, True, False, True, False]], [[False] * 5]])  # the second sentence may attend to nothing
    y, dx = alike(op, [x], keys)
    assert not y[1].any() and not dx[1].any() and not y[:, :, 2].any() and not dx[:, :, 2].any()
    for mask in (RNG.random((3, 5)) < 0.6, RNG.random((2, 3, 1)) < 0.5, np.array([True, False, True, True, False]),
                 np.array(True)):
        alike(op, [x], mask, dtype="float32")
    alike(lambda: op(0), [x], RNG.random((2, 1, 5)) < 0.6)
    with pytest.raises(ShapeError, match="the mask of shape .* does not broadcast to the scores of shape"):
        op()(Tensor(x, device="cuda"), Tensor(np.ones((2, 2, 3, 5), bool), device="cuda"))


@BOTH
def test_cut_at_the_ends_of_the_range(op):
    x = np.array([[np.nan, 0.0, 1.0], [np.inf, 0.0, 1.0], [-np.inf] * 3, [-np.inf, 0.0, 0.1], [1.0, np.nan, -np.inf]])
    y = op()(Tensor(x, device="cuda")).numpy()
    np.testing.assert_allclose(y, op()(Tensor(x)).numpy(), rtol=1e-14)
    assert np.isnan(y[[0, 1, 4]]).all() and not y[2].any() and y[3, 0] == 0
