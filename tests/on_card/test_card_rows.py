"""Rows on a card: softmax and its relatives, cross-entropy, layer norm, reductions, picking and scatter-adding; against the CPU."""
import numpy as np
import pytest
from agreement import agree, results

from tinyattn import Tensor, embedding, grad
from tinyattn import cuda as card
from tinyattn import device as devices
from tinyattn.functional import cross_entropy, layer_norm, stack
from tinyattn.ops import index_cuda, norm, reduce_cuda
from tinyattn.ops.index import Getitem, Putitem, ScatterRows

RNG = np.random.default_rng(6)
INF, NAN = np.inf, np.nan


@pytest.fixture
def launched(monkeypatch):
    """The names of the kernels that run."""
    names, before = [], card.CudaKernel._launch

    def launch(kernel, grid, arguments):
        names.append(kernel.name.partition(".")[2])
        before(kernel, grid, arguments)

    monkeypatch.setattr(card.CudaKernel, "_launch", launch)
    return names


def both(f, x, dtype=np.float64):
    """f on the CPU and on the card: values, and the gradient by the loops."""
    found = []
    for device in ("cpu", "cuda"):
        t = Tensor(np.asarray(x, dtype), device=device, requires_grad=True)
        y = f(t)
        found.append((y.numpy(), grad(y, [t], Tensor(np.arange(1.0, y.numel() + 1).reshape(y.shape).astype(dtype),
                                                     device=device))[0].numpy()))
    return found


# ---------------------------------------------------------------------------------------------------------------------
# softmax, log-softmax, log-sum-exp
# ---------------------------------------------------------------------------------------------------------------------
SOFTMAX = {"softmax": lambda x, m: x.softmax(mask=m), "log_softmax": lambda x, m: x.log_softmax(mask=m)}


@pytest.mark.parametrize("name", SOFTMAX)
@pytest.mark.parametrize("shape", [(2, 2, 3, 5), (5,), (3, 5), (2, 1, 1, 5), (1, 2, 3, 1)])
def test_a_mask_of_each_shape(name, shape):
    mask = RNG.random(shape) < 0.6
    x = RNG.normal(size=(2, 2, 3, 5))
    value, *rest = agree(lambda x, m: SOFTMAX[name](x, m).where(m, 0.0), x, mask)
    assert (value[~np.broadcast_to(mask, x.shape)] == 0).all() and all(np.isfinite(r).all() for r in rest)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_softmax_over_each_axis_with_a_mask(axis):
    for mask in (RNG.random((3, 4)) < 0.6, RNG.random((2, 1, 4)) < 0.6, RNG.random((2, 3, 1)) < 0.6, np.zeros((3, 1), bool)):
        agree(lambda x, m: x.softmax(axis, mask=m), RNG.normal(size=(2, 3, 4)), mask)
        agree(lambda x, m: x.log_softmax(axis, mask=m).where(m, 0.0), RNG.normal(size=(2, 3, 4)), mask)


@pytest.mark.parametrize("f", [Tensor.softmax, Tensor.log_softmax, Tensor.logsumexp], ids=["softmax", "log_softmax", "logsumexp"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_scores_at_the_ends_of_the_range(f, dtype):
    rows = [[1e4, 1e4 - 1, -1e4], [-INF] * 3, [-INF, 0, 1], [0, -INF, -INF], [NAN, 0, 1], [-INF, NAN, -INF], [1, 0, NAN]]
    (value, slope), (value_there, slope_there) = both(lambda x: f(x, -1), rows, dtype)
    np.testing.assert_allclose(value_there, value, rtol=1e-6)
    np.testing.assert_allclose(slope_there, slope, rtol=1e-5, atol=1e-6)
    with np.errstate(invalid="ignore"):
        inf = np.array([[INF, 0, 1], [0, INF, INF], [INF, -INF, 0]], dtype)
        np.testing.assert_array_equal(f(Tensor(inf, device="cuda"), -1).numpy(), f(Tensor(inf), -1).numpy())


def test_a_row_longer_than_a_block_by_loops_alone():
    x = RNG.integers(0, 4, (1, card.THREADS + 44)).astype(float)  # the largest comes again and again
    x[0, :9] = x[0, card.THREADS:][:9] = -INF  # and some threads see nothing else
    for f in (Tensor.softmax, Tensor.log_softmax, Tensor.logsumexp):
        here, there = both(lambda x, f=f: f(x, -1), x)
        for a, b in zip(here, there, strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("axis", [0, (0, 2), (1, 2), None])
def test_log_sum_exp_over_each_axis(axis, launched):
    agree(lambda x: x.logsumexp(axis), RNG.normal(size=(2, 3, 4)), dtype="float32")
    assert "log_sum_exp_grad" in launched


def test_a_softmax_and_its_gradient_are_one_launch_each(launched):
    x = Tensor(RNG.normal(size=(2, 3, 4)), device="cuda", requires_grad=True)
    for name in ("softmax", "log_softmax"):
        y, g = getattr(x, name)(1), Tensor(np.ones((2, 3, 4)), device="cuda")
        del launched[:]
        grad(getattr(x, name)(1), [x], g)
        assert launched == ["softmax", f"{name}_grad"] and y.shape == x.shape


# ---------------------------------------------------------------------------------------------------------------------
# cross-entropy
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_cross_entropy(reduction, smoothing, dtype, launched):
    targets = np.array([[0, 6, -1], [3, -1, 2]])
    agree(lambda x, t: cross_entropy(x, t, -1, smoothing, reduction), RNG.normal(size=(2, 3, 7)), targets, dtype=dtype)
    assert {"cross_entropy", "cross_entropy_grad"} <= set(launched)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy_where_nothing_is_left(reduction):
    value, slope, *_ = agree(lambda x, t: cross_entropy(x, t, 1, 0.1, reduction), RNG.normal(size=(2, 3)), np.array([1, 1]))
    assert (value == 0).all() and (slope == 0).all()
    agree(lambda x, t: cross_entropy(x, t, reduction=reduction), RNG.normal(size=(0, 3)), np.zeros(0, int))
    ignored = np.array([5, 5])
    here, there = both(lambda x: cross_entropy(x, Tensor(ignored, device=x.device), 5, 0.1, reduction), np.zeros((2, 0)))
    assert np.array_equal(here[0], there[0]) and there[1].shape == (2, 0)


def test_an_ignored_row_may_hold_anything():
    x, t = np.array([[NAN, INF, 0], [1.0, 2, 3]]), np.array([-100, 1])
    here, there = both(lambda x: cross_entropy(x, Tensor(t, device=x.device)), x)
    for a, b in zip(here, there, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-12)
    assert np.isfinite(there[1]).all()


def test_cross_entropy_of_large_and_infinite_logits():
    t = np.array([0, 2, 1, 0])
    x = np.array([[1e4, 1e4 - 1, -1e4], [1e4, 1e4 - 1, -1e4], [-INF, 2, 1], [-INF, 2, 1]])
    for smoothing in (0.0, 0.1):
        here, there = both(lambda x, s=smoothing: cross_entropy(x, Tensor(t, device=x.device), -100, s, "none"), x)
        for a, b in zip(here, there, strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-12)


def test_rows_of_many_classes():
    here, there = both(lambda x: cross_entropy(x, Tensor(np.array([290]), device=x.device), -100, 0.1),
                       RNG.normal(size=(1, card.THREADS + 44)), np.float32)
    for a, b in zip(here, there, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-7)


def test_the_loss_of_a_step_reads_nothing_back(launched):
    x = Tensor(RNG.normal(size=(4, 3)), device="cuda", requires_grad=True)
    t = Tensor(np.array([0, 2, -100, 1]), device="cuda")
    before = devices.waits["reads"]
    cross_entropy(x, t).backward()
    assert devices.waits["reads"] == before
    assert [n for n in launched if n != "fill"] == ["cross_entropy", "total", "cross_entropy_grad"]


def test_a_target_out_of_range_reads_as_on_the_cpu():
    for device in ("cpu", "cuda"):
        x = Tensor(np.zeros((2, 2, 3)), device=device)
        for bad in (3, -1):
            with pytest.raises(IndexError, match=rf"target {bad} at \(1, 0\) is out of range for V = 3 classes"):
                cross_entropy(x, Tensor(np.array([[0, 1], [bad, 2]]), device=device))
        with pytest.raises(ValueError, match="logits of shape"):
            cross_entropy(x, Tensor(np.array([0, 1]), device=device))


# ---------------------------------------------------------------------------------------------------------------------
# layer norm
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(2, 7, 5), (1, 1), (9, 6), (6,)])
def test_layer_norm(shape, dtype, launched):
    w, b = RNG.normal(size=shape[-1]), RNG.normal(size=shape[-1])
    agree(lambda x, w, b: layer_norm(x, w, b, eps=0.1), RNG.normal(size=shape), w, b, dtype=dtype)
    assert {"layer_norm", "layer_norm_grad", "column_parts", "add_parts"} <= set(launched)


def test_layer_norm_of_parts_and_of_nothing():
    x, w = RNG.normal(size=(3, 4)), RNG.normal(size=4)
    agree(lambda x: layer_norm(x), x)
    agree(lambda x, w: layer_norm(x, w), x, w)
    agree(lambda x, b: layer_norm(x, None, b), x, w)
    agree(lambda x, w, b: layer_norm(x, w, b), RNG.normal(size=(0, 4)), w, w)
    agree(lambda x, w: layer_norm(x + 1e3, w), x, w)


def test_layer_norm_computes_what_is_needed(launched):
    x, w, b = (Tensor(RNG.normal(size=s), device="cuda", requires_grad=True) for s in ((3, 4), (4,), (4,)))
    g = Tensor(np.ones((3, 4)), device="cuda")
    for wanted, kernels in ([x], ["layer_norm_grad"]), ([w], ["column_parts", "add_parts"]), ([b], ["column_parts", "add_parts"]):
        y = layer_norm(x, w, b)
        del launched[:]
        grad(y, wanted, g)
        assert launched == kernels


def test_layer_norm_weights_over_many_chunks_give_the_same_bits():
    shape = (norm.CHUNK_ROWS * norm.MOST_CHUNKS + 3, norm.WIDE + 1)  # more rows than chunks would hold
    x = RNG.normal(size=shape)
    arrays = [a.astype("float32") for a in (x, RNG.normal(size=shape[1]), RNG.normal(size=shape[1]))]
    f = lambda x, w, b: layer_norm(x, w, b)  # noqa: E731
    first, again = (results(f, arrays, "cuda")[1:4] for _ in range(2))
    for a, b, c in zip(first, again, results(f, arrays, "cpu")[1:4], strict=True):
        assert np.array_equal(a, b)
        np.testing.assert_allclose(a, c, rtol=1e-5, atol=1e-5)


# ---------------------------------------------------------------------------------------------------------------------
# reductions
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("axis", [0, 1, 2, (0, 2), (0, 1), None])
@pytest.mark.parametrize("name", ["prod", "max", "min"])
def test_reductions_over_each_axis(name, axis, launched):
    agree(lambda x: getattr(x, name)(axis), RNG.normal(size=(3, 4, 2)))
    assert {"fold", "prod_grad" if name == "prod" else "extreme_grad"} <= set(launched)


@pytest.mark.parametrize("how, f", [(reduce_cuda.PROD, np.prod), (reduce_cuda.MAX, np.max), (reduce_cuda.MIN, np.min)])
def test_folds_of_many_in_several_launches(how, f, launched):
    x = RNG.normal(size=(2, 37, 3))
    out = devices.empty((2, 3), np.float64, "cuda")
    reduce_cuda.fold_cuda(card.flat(devices.to_device(x, "cuda")), card.flat(out), 2, 37, 3, how, chunk=5)
    np.testing.assert_allclose(out.copy_to_host(), f(x, axis=1), rtol=1e-13)
    assert launched == ["fold"] * 3


def test_a_block_adds_up_its_share_of_a_leading_axis():
    """Enough blocks for a card: a bias's gradient, all of a large array, and rows of middle length."""
    for lengths, least in [((1, 8192, 512), 512), ((1, 2**24, 1), 2048), ((64, 512, 1), 64)]:
        (blocks, threads), (chunk, chunks, width) = reduce_cuda._cut(*lengths, None)
        assert blocks >= least and chunk * chunks >= lengths[1] and threads == card.THREADS
        assert chunk * width <= reduce_cuda.SHARE


def test_products_with_zeros_and_of_nothing():
    x = np.array([[0.0, 2, 3, 4, 5], [0, 2, 0, 4, 5], [1, 2, 3, 4, 0], [0, 0, 0, 0, 0]])
    agree(lambda x: x.prod(1), x)
    agree(lambda x: x.prod(0), x)
    agree(lambda x: x.prod(1), np.zeros((2, 0)))
    agree(lambda x: x.prod(0), np.zeros((2, 0)))
    ids = np.arange(1, 7).reshape(2, 3)
    for f in (lambda x: x.prod(0), lambda x: x.max(1), lambda x: x.min(0)):
        np.testing.assert_array_equal(f(Tensor(ids, device="cuda")).numpy(), f(Tensor(ids)).numpy())


def test_products_longer_than_a_block():
    here, there = both(lambda x: x.prod(1), 1 + RNG.normal(size=(1, card.THREADS + 44)) / 20)
    for a, b in zip(here, there, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-11)


def test_ties_share_and_a_nan_takes_all():
    x = np.array([[1.0, 3, 3, 0], [2, 2, 2, 2], [NAN, 1, 2, 3], [INF, INF, 0, 1], [-INF, -INF, 0, 1]])
    for f in (Tensor.max, Tensor.min):
        for axis in (0, 1):
            for a, b in zip(*both(lambda x, f=f, axis=axis: f(x, axis), x), strict=True):
                np.testing.assert_array_equal(b, a)


# ---------------------------------------------------------------------------------------------------------------------
# picking and scatter-adding
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("n", [1, 7, 8, 9, 40])
def test_ids_are_sorted_and_equal_ones_stay_in_order(n):
    ids = RNG.integers(0, 5, n)
    keys, order = (a.copy_to_host() for a in index_cuda.sorted_ids(devices.to_device(ids, "cuda")))
    want = np.argsort(ids, kind="stable")
    assert np.array_equal(order, want) and np.array_equal(keys, ids[want])


@pytest.mark.parametrize("window", [1, 2, 5, 64])
@pytest.mark.parametrize("kinds", [1, 4, 30])
@pytest.mark.parametrize("padding", [None, 0])
def test_rows_are_added_whatever_the_windows(window, kinds, padding):
    ids, x, table = RNG.integers(0, kinds, 23), RNG.normal(size=(23, 3)), RNG.normal(size=(31, 3))
    want = table.copy()
    np.add.at(want, ids[ids != padding], x[ids != padding])
    there = devices.to_device(table, "cuda")
    index_cuda.add_rows(devices.to_device(x, "cuda"), devices.to_device(ids, "cuda"), there, 3, padding, window)
    np.testing.assert_allclose(there.copy_to_host(), want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("index", [
    (1,), (Ellipsis, slice(0, 2)), (slice(None, None, -2), None, 1), (np.array([2, 0, 2]),), (np.array([[1, -1], [1, 1]]), 2),
    (slice(1, 3), np.array([0, 0])), (np.array([0, 0]), slice(1, 3), np.array([4, 4])), (Ellipsis, np.array([1, 1])),
    (np.arange(12).reshape(3, 4) % 2 == 0,), (np.array([True, False, True]), slice(None, 2)), (None, np.array([1])),
    (np.zeros(3, bool),), (np.array(1), np.array([2, 2]))], ids=str)
def test_what_is_picked_twice_gets_twice(index):
    x = RNG.normal(size=(3, 4, 5))
    agree(lambda x: (lambda y: y * y)(x[index]) if x[index].numel() else x[index], x)
    g = RNG.normal(size=x[index].shape)
    agree(lambda g: Putitem(index, x.shape)(g), g)
    buffer, want = devices.to_device(x, "cuda"), x.copy()
    op = Getitem(index)
    op(Tensor(x, device="cuda", requires_grad=True))
    op.accumulate_cuda(devices.to_device(g, "cuda"), buffer)
    np.add.at(want, index, g)
    np.testing.assert_allclose(buffer.copy_to_host(), want, rtol=1e-12, atol=1e-12)


def test_slices_in_a_loop_add_into_one_buffer(launched):
    x = Tensor(RNG.normal(size=(2, 6, 3)), device="cuda", requires_grad=True)
    y = stack([x[:, t] for t in range(6)])
    del launched[:]
    grad(y, [x], Tensor(np.ones(y.shape), device="cuda"))
    assert launched.count("add_part") == 6 and launched.count("fill") == 1 and "add_to" not in launched


def test_an_embedding_adds_into_what_is_there(launched):
    ids = np.array([[0, 4, 2, 0], [2, 0, 4, 0]])
    agree(lambda w: embedding(w, ids, 2) + embedding(w, ids[:1]) * 2 + w.sum(), RNG.normal(size=(5, 3)))
    assert "add_rows" in launched
    agree(lambda x, i: ScatterRows(4, 0)(x, i), RNG.normal(size=(2, 0, 3)), np.zeros((2, 0), np.int64))
    agree(lambda w: embedding(w, np.array([1, 1])), RNG.normal(size=(2, 0)))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_gather_and_scatter_add_along_each_axis(axis):
    shape = [2, 3, 4]
    shape[axis] = 5
    ids = RNG.integers(0, (2, 3, 4)[axis], shape)
    agree(lambda x, i: (lambda y: y * y)(x.gather(axis, i)), RNG.normal(size=(2, 3, 4)), ids)
    agree(lambda x, i: (lambda y: y * y)(x.scatter_add(axis, i, (2, 3, 4))), RNG.normal(size=shape), ids)
    with pytest.raises(IndexError, match="gather: index 9 is outside"):
        Tensor(np.zeros((2, 3, 4)), device="cuda").gather(axis, np.full(shape, 9))


def test_picking_reads_nothing_back_and_its_cost_is_that_of_the_result():
    w, ids = Tensor(RNG.normal(size=(5, 3)), device="cuda", requires_grad=True), Tensor(np.array([1, 0, 1]), device="cuda")
    before = devices.waits["reads"]
    (embedding(w, ids) + w[np.array([0, 0, 1])] + w.gather(0, np.array([[0, 1, 2]]))).sum().backward()
    assert devices.waits["reads"] == before
    at, width, shape = index_cuda.rows_at((10**6, 10**6, 8), (np.array([3, 999999]), np.array([5, 6])))
    assert at.copy_to_host().tolist() == [3 * 10**6 + 5, 999999 * 10**6 + 6] and width == 8 and shape == (2, 8)
