"""Feature-wise attention on a card: every form of mask, sizes around the groups of a thread, extremes, and that it ran."""
import numpy as np
import pytest
from agreement import agree

from tinyattn import Tensor, grad
from tinyattn import cuda as card
from tinyattn.ops.featurewise import FeaturewiseAttention
from tinyattn.ops.featurewise_cuda import FEW

RNG = np.random.default_rng(11)


def inputs(B, T, S, D):
    return RNG.normal(size=(B, T, D)), RNG.normal(size=(B, S, D)), RNG.normal(size=(B, S, D))


def attend(c=5.0):
    return lambda q, k, v, mask=None: FeaturewiseAttention(c)(q, k, v, mask)


def loops(*arrays, mask=None, c=5.0, dtype="float64", needs=(True, True, True), tolerance=1e-12):
    """Values and first gradients by the loops of both devices agree; returns those of the card."""
    both, seed = [], RNG.normal(size=arrays[0].shape).astype(dtype)
    for device in ("cpu", "cuda"):
        xs = [Tensor(a.astype(dtype), device=device, requires_grad=need) for a, need in zip(arrays, needs, strict=True)]
        out = FeaturewiseAttention(c)(*xs, None if mask is None else Tensor(mask, device=device))
        assert out.op.name == "featurewise_attention"
        grads = grad(out, [x for x, need in zip(xs, needs, strict=True) if need], Tensor(seed, device=device))
        both.append([x.numpy() for x in (out, *grads)])
    for a, b in zip(*both, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        np.testing.assert_allclose(b, a, rtol=tolerance, atol=tolerance)
    return both[1]


# ---------------------------------------------------------------------------------------------------------------------
# values and gradients
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("c", [5.0, 50.0])
def test_to_second_order(c, dtype):
    agree(attend(c), *inputs(2, 2, 3, 2), dtype=dtype)


def test_to_second_order_under_a_mask():
    agree(attend(), *inputs(2, 3, 3, 2), np.array([[True, False, True], [False] * 3, [True] * 3]))


@pytest.mark.parametrize("B, T, S, D", [(1, 1, 1, 1), (2, FEW - 1, FEW + 1, 3), (1, FEW, 2 * FEW, 5), (3, 2 * FEW + 1, 1, 2),
                                        (1, 5, 2, 70)])
def test_sizes_around_the_groups(B, T, S, D):
    loops(*inputs(B, T, S, D))


@pytest.mark.parametrize("shape", [(2, 5, 6), (2, 1, 6), (2, 5, 1), (1, 5, 6), (5, 6), (1, 6), (6,), (5, 1), (2, 1, 1), (1,), ()])
def test_every_form_of_mask(shape):
    mask = np.asarray(RNG.random(shape) < 0.5)
    mask.flat[0] = False
    loops(*inputs(2, 5, 6, 3), mask=mask)
    q, k, v = inputs(2, 5, 6, 3)
    loops(q, k * 1e3, v, mask=mask, c=1e3, tolerance=1e-10)  # e^f is finite only less the largest of the allowed
    loops(*inputs(2, 5, 6, 3), mask=np.ones(shape, bool))


def test_masks_of_one_query_and_one_key():
    loops(*inputs(2, 1, 3, 2), mask=np.array([[[True, False, True]], [[False] * 3]]))
    loops(*inputs(2, 3, 1, 2), mask=np.array([[[True], [False], [True]], [[False]] * 3]))


def test_what_is_masked_gets_and_sends_nothing():
    q, k, v = inputs(2, 3, 4, 3)
    mask = np.ones((2, 3, 4), bool)
    mask[0, 1] = mask[:, :, 2] = mask[1] = False
    out, dq, dk, dv = loops(q, k, v, mask=mask)
    assert (out[0, 1] == 0).all() and (dq[0, 1] == 0).all() and (out[1] == 0).all() and (dq[1] == 0).all()
    assert (dk[:, 2] == 0).all() and (dv[:, 2] == 0).all() and (dk[1] == 0).all() and (dv[1] == 0).all()
    k[:, 2], v[:, 2], k[1] = 1e4, 1e4, -1e4
    assert np.array_equal(loops(q, k, v, mask=mask)[0], out)


@pytest.mark.parametrize("c", [1e-3, 1.0, 5.0, 19.0, 25.0, 1e3])
def test_bounds_small_and_large(c):
    loops(*inputs(1, 3, 5, 2), c=c, tolerance=1e-11)


def test_large_values_saturate():
    q, k, v = inputs(1, 3, 4, 2)
    loops(q * 1e4, k, v)
    loops(q - 1e4, k, v)
    loops(q, k * 1e4, v, c=100.0)
    loops(q + 10, k - 10, v, tolerance=1e-11)
    k[0, 1], k[0, 2] = -np.inf, np.inf
    out, *_ = loops(q, k, v)
    assert np.isfinite(out).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_one_key_is_its_value_to_the_last_digit(dtype):
    q, k, v = inputs(2, 3, 4, 2)
    mask = np.zeros((2, 3, 4), bool)
    mask[:, :, 1] = True
    out, dq, dk, _ = loops(q, k, v, mask=mask, dtype=dtype, tolerance=1e-6)
    assert np.array_equal(out, np.broadcast_to(v[:, 1:2].astype(dtype), out.shape))
    assert (dq == 0).all() and (dk == 0).all()


def test_a_nan_stays_in_its_feature():
    q, k, v = inputs(1, 3, 4, 2)
    k[0, 1, 0] = np.nan
    out, dq, dk, dv = loops(q, k, v)
    for x in (out, dq, dk, dv):
        assert np.isnan(x[..., 0]).all() and np.isfinite(x[..., 1]).all()


@pytest.mark.parametrize("shape", [(0, 2, 3, 2), (2, 0, 3, 2), (2, 3, 0, 2), (2, 3, 2, 0)])
def test_nothing_gives_zeros(shape):
    for mask in (None, np.ones((shape[1], 1), bool)):
        for x in loops(*inputs(*shape), mask=mask):
            assert (x == 0).all()


@pytest.mark.parametrize("needs", [(True, False, False), (False, True, False), (False, False, True), (True, False, True)])
def test_only_some_gradients(needs):
    loops(*inputs(2, 3, 2, 3), needs=needs)


def test_views_and_a_name_twice():
    x, mask = RNG.normal(size=(3, 2, 4)), ~np.eye(3, dtype=bool)
    agree(lambda x, m: attend()(x.permute(1, 0, 2), x.permute(1, 0, 2), x.permute(1, 0, 2), m), x, mask)


# ---------------------------------------------------------------------------------------------------------------------
# how it runs
# ---------------------------------------------------------------------------------------------------------------------
def test_launches_and_memory(monkeypatch):
    B, T, S, D = 2, 9, 8, 6
    xs = [Tensor(a, device="cuda", requires_grad=True) for a in inputs(B, T, S, D)]
    seed, mask = Tensor(np.ones((B, T, D)), device="cuda"), Tensor(np.ones((1, 1, S), bool), device="cuda")
    names, sizes, before = [], [], card.CudaKernel._launch

    def launch(kernel, grid, arguments):
        names.append(kernel.name)
        sizes.extend(a.size for a in arguments if hasattr(a, "dtype") and hasattr(a, "size"))
        before(kernel, grid, arguments)

    monkeypatch.setattr(card.CudaKernel, "_launch", launch)
    grad(FeaturewiseAttention()(*xs, mask), xs, seed)
    assert names == ["featurewise.attend", "featurewise.queries_grad", "featurewise.keys_grad"]
    assert max(sizes) == B * max(T, S) * D
    for i, name in enumerate(["queries_grad", "keys_grad", "keys_grad"]):
        del names[:]
        grad(FeaturewiseAttention()(*(x if i == j else x.detach() for j, x in enumerate(xs))), [xs[i]], seed)
        assert names == ["featurewise.attend", f"featurewise.{name}"]


def test_the_same_bits_every_time():
    xs = [Tensor(x.astype("float32"), device="cuda", requires_grad=True) for x in inputs(2, 7, 5, 3)]
    first, second = ([x.numpy() for x in grad(FeaturewiseAttention()(*xs).sum(), xs)] for _ in range(2))
    assert all(map(np.array_equal, first, second))


def test_errors_read_as_on_the_cpu():
    q, k, v = inputs(2, 3, 4, 5)
    bad = [((q, k[:1], v), ValueError), ((q, k, v[..., :4]), ValueError), ((q[0], k, v), ValueError),
           ((q, k.astype("float32"), v), TypeError), ((q.astype(int), k, v), TypeError),
           ((q, k, v, np.ones((3, 5), bool)), ValueError), ((q, k, v, np.ones((1, 2, 3, 4), bool)), ValueError),
           ((q, k, v, np.ones((3, 4), int)), TypeError)]
    for arrays, error in bad:
        said = []
        for device in ("cpu", "cuda"):
            with pytest.raises(error) as caught:
                FeaturewiseAttention()(*(Tensor(x, device=device) for x in arrays))
            said.append(str(caught.value))
        assert said[0] == said[1]
