"""Additive scores on a card, one and several of each pair: sizes around the tiles, parts, extremes, and that the kernels ran."""
import numpy as np
import pytest
from agreement import agree

from tinyattn import Tensor, grad
from tinyattn import cuda as card
from tinyattn.autograd import fused
from tinyattn.ops import additive, additive_2d
from tinyattn.ops.additive import AdditiveScores
from tinyattn.ops.additive_2d import Additive2d

RNG = np.random.default_rng(7)


def inputs(B, T, S, D, *M):
    return RNG.normal(size=(B, T, D)), RNG.normal(size=(B, S, D)), RNG.normal(size=(*M, D))


def of(op):
    return lambda *xs: op()(*xs)


def loops(op, *arrays, dtype="float64", needs=(True, True, True), tolerance=1e-12):
    """Values and first gradients by the loops of both devices agree; returns those of the card."""
    both, seed = [], None
    for device in ("cpu", "cuda"):
        xs = [Tensor(a.astype(dtype), device=device, requires_grad=need) for a, need in zip(arrays, needs, strict=True)]
        e = op()(*xs)
        assert e.op.name == op.name
        seed = RNG.normal(size=e.shape).astype(dtype) if seed is None else seed
        grads = grad(e, [x for x, need in zip(xs, needs, strict=True) if need], Tensor(seed, device=device))
        both.append([x.numpy() for x in (e, *grads)])
    for a, b in zip(*both, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        np.testing.assert_allclose(b, a, rtol=tolerance, atol=tolerance)
    return both[1]


# ---------------------------------------------------------------------------------------------------------------------
# values and gradients
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("op, M", [(AdditiveScores, ()), (Additive2d, (5,))])
def test_to_second_order(op, M, dtype):
    agree(of(op), *inputs(2, 2, 3, 3, *M), dtype=dtype)


@pytest.mark.parametrize("B, T, S, D", [(1, 1, 1, 1), (2, 1, 9, 7), (1, 3, 4, 8), (1, 9, 5, 3), (3, 5, 1, 5), (1, 13, 6, 2)])
def test_scores_around_the_tiles(B, T, S, D):
    loops(AdditiveScores, *inputs(B, T, S, D))


@pytest.mark.parametrize("B, T, S, D, M", [(1, 1, 1, 1, 1), (2, 1, 9, 7, 2), (1, 3, 4, 4, 4), (1, 5, 3, 5, 9), (3, 3, 1, 2, 5)])
def test_several_scores_around_the_tiles(B, T, S, D, M):
    loops(Additive2d, *inputs(B, T, S, D, M))


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_queries_in_parts_of_several_tiles(monkeypatch, parts):
    monkeypatch.setattr(additive, "PARTS", parts)
    loops(AdditiveScores, *inputs(2, 4 * additive.TILE + 1, 3, 3))


def test_few_blocks_are_enough(monkeypatch):
    monkeypatch.setattr(additive, "BLOCKS", 1)
    monkeypatch.setattr(additive_2d, "BLOCKS", 1)
    loops(AdditiveScores, *inputs(1, 2 * additive.TILE + 1, 3, 2))
    loops(Additive2d, *inputs(1, 3, 3, 2, 2))


@pytest.mark.parametrize("shape", [(0, 2, 3, 2), (2, 0, 3, 2), (2, 3, 0, 2), (2, 3, 2, 0)])
def test_nothing_gives_zeros(shape):
    for op, M in ((AdditiveScores, ()), (Additive2d, (2,))):
        for x in loops(op, *inputs(*shape, *M)):
            assert (x == 0).all()
    loops(Additive2d, *inputs(1, 2, 3, 2, 0))


@pytest.mark.parametrize("op, M", [(AdditiveScores, ()), (Additive2d, (3,))])
@pytest.mark.parametrize("needs", [(True, False, False), (False, True, False), (False, False, True), (True, False, True)])
def test_only_some_gradients(op, M, needs):
    loops(op, *inputs(2, 3, 2, 3, *M), needs=needs)


@pytest.mark.parametrize("op, M", [(AdditiveScores, ()), (Additive2d, (2,))])
def test_large_values_saturate(op, M):
    q, k, v = inputs(1, 3, 4, 3, *M)
    loops(op, q * 1e4, k, v)
    loops(op, q + 10, k - 10, v, tolerance=1e-11)
    value, *_ = loops(op, q + 1e4, k, v)
    np.testing.assert_allclose(value, np.broadcast_to(v.sum(-1).reshape(-1, 1, 1), (1, *value.shape[1:])).reshape(value.shape))


@pytest.mark.parametrize("op, M", [(AdditiveScores, ()), (Additive2d, (2,))])
def test_a_nan_stays_in_its_row(op, M):
    q, k, v = inputs(1, 3, 5, 3, *M)
    q[0, 1, 2], k[0, 4, 0] = np.nan, np.inf
    e, dq, dk, dv = loops(op, q, k, v)
    assert np.isnan(e[..., 1, :]).all() and np.isfinite(e[..., ::2, :]).all()
    assert np.isnan(dq[0, 1, 2]) and np.isfinite(np.delete(dq.ravel(), 5)).all()
    assert np.isnan(dk[0, :, 2]).all() and np.isfinite(dk[0, :, :2]).all()
    assert np.isnan(dv[..., 2]).all() and np.isfinite(dv[..., :2]).all()


def test_views_and_a_name_twice():
    x, v = RNG.normal(size=(3, 2, 4)), RNG.normal(size=4)
    agree(lambda x, v: AdditiveScores()(x.permute(1, 0, 2), x.permute(1, 0, 2), v), x, v)


def test_one_score_is_the_additive_one():
    q, k, v = (Tensor(x, device="cuda") for x in inputs(2, 3, 4, 5))
    np.testing.assert_allclose(Additive2d()(q, k, v.reshape(1, 5)).numpy()[:, 0], AdditiveScores()(q, k, v).numpy(), rtol=1e-13)


# ---------------------------------------------------------------------------------------------------------------------
# how they run
# ---------------------------------------------------------------------------------------------------------------------
def launched(monkeypatch, work):
    """Names of the kernels that `work` launches, and the largest array that it makes."""
    names, largest, before = [], [0], card.CudaKernel._launch

    def launch(kernel, grid, arguments):
        names.append(kernel.name)
        largest[0] = max(largest[0], *(a.size for a in arguments if hasattr(a, "dtype") and hasattr(a, "size")))
        before(kernel, grid, arguments)

    with monkeypatch.context() as m:
        m.setattr(card.CudaKernel, "_launch", launch)
        work()
    return names, largest[0]


def test_launches_and_memory(monkeypatch):
    B, T, S, D = 2, 9, 8, 6
    for op, M, want in [(AdditiveScores, (), ["additive.scores", "additive.scores_grad"]),
                        (Additive2d, (2,), ["additive_2d.scores", "additive_2d.rows_grad", "additive_2d.rows_grad",
                                            "additive_2d.weights_grad"])]:
        arrays = inputs(B, T, S, D, *M)
        xs = [Tensor(a, device="cuda", requires_grad=True) for a in arrays]
        seed = Tensor(np.ones((B, *M, T, S)), device="cuda")
        names, largest = launched(monkeypatch, lambda op=op, xs=xs, seed=seed: grad(op()(*xs), xs, seed))
        assert [n for n in names if n.startswith("additive")] == want
        assert set(names) - set(want) <= {"reduce.sum"} and len(names) <= len(want) + 2
        assert largest < B * T * S * D


def test_the_twin_is_taken_only_when_asked():
    xs = [Tensor(a, device="cuda", requires_grad=True) for a in inputs(1, 2, 3, 2)]
    assert AdditiveScores()(*xs).op.name == "additive_scores"
    with fused("never"):
        assert AdditiveScores()(*xs).op.name == "sum"


@pytest.mark.parametrize("op, M", [(AdditiveScores, ()), (Additive2d, (3,))])
def test_the_same_bits_every_time(op, M):
    xs = [Tensor(x.astype("float32"), device="cuda", requires_grad=True) for x in inputs(2, 7, 5, 3, *M)]
    first, second = ([x.numpy() for x in grad(op()(*xs).sum(), xs)] for _ in range(2))
    assert all(map(np.array_equal, first, second))


def test_errors_read_as_on_the_cpu():
    q, k, v = inputs(2, 3, 4, 5)
    for op, w in ((AdditiveScores, v), (Additive2d, v.reshape(1, 5))):
        for change, error in [((q, k[:1], w), ValueError), ((q, k, w[..., :4]), ValueError), ((q[0], k, w), ValueError),
                              ((q, k.astype("float32"), w), TypeError), ((q.astype(int), k, w), TypeError)]:
            said = []
            for device in ("cpu", "cuda"):
                with pytest.raises(error) as caught:
                    op()(*(Tensor(x, device=device) for x in change))
                said.append(str(caught.value))
            assert said[0] == said[1]
