"""The normalisers, from scores to weights: softmax, sparsemax, entmax-1.5, raw, sigmoid."""
import numpy as np
import pytest

from tinyattn import InputError, Tensor, grad
from tinyattn.attention import find, weights_of
from tinyattn.ops.broadcast import ShapeError

NORMALISERS = ["softmax", "sparsemax", "entmax15", "raw", "sigmoid"]


def tensor(array, grad=True):
    return Tensor(np.asarray(array, np.float64), requires_grad=grad)

def normalised(name, e, allowed=None):
    return weights_of(tensor(e, False), None if allowed is None else Tensor(allowed), name).numpy()


@pytest.mark.parametrize("name", NORMALISERS)
def test_a_row_that_may_attend_to_nothing_gets_0_and_sends_0(name):
    e = tensor(np.random.default_rng(0).random((2, 3, 4)))
    allowed = np.ones((2, 3, 4), bool)
    allowed[0, 1], allowed[1, :, 2] = False, False
    w = weights_of(e, Tensor(allowed), name)
    np.testing.assert_array_equal(w.numpy()[~allowed], 0)
    assert (w.numpy().sum(-1)[allowed.any(-1)] > 0.99).all()
    (g,) = grad([w], [e], [Tensor(np.random.default_rng(1).normal(size=w.shape))])
    assert np.isfinite(g.numpy()).all() and not g.numpy()[~allowed].any() and g.numpy()[0, 0].any()


@pytest.mark.parametrize("name", NORMALISERS)
def test_what_is_masked_has_no_say(name):
    e = np.random.default_rng(0).random((2, 3, 4))
    allowed = np.array([True, False, True, True])
    other = e.copy()
    other[..., 1] = 1e30
    np.testing.assert_array_equal(normalised(name, e, allowed), normalised(name, other, allowed))
    left = [0, 2, 3]
    np.testing.assert_allclose(normalised(name, e, allowed)[..., left], normalised(name, e[..., left]), rtol=1e-12)


@pytest.mark.parametrize("name", NORMALISERS)
def test_shifted_and_large_scores(name):
    e = np.random.default_rng(0).normal(size=(2, 3, 4))
    if name in ("softmax", "sparsemax", "entmax15"):
        np.testing.assert_allclose(normalised(name, e + 1e4), normalised(name, e), rtol=1e-8, atol=1e-11)
    else:
        assert np.abs(normalised(name, np.abs(e) + 1) - normalised(name, np.abs(e))).max() > 0.01
    x = tensor([[1e4, 0.0, -1e4, 9999.0]] if name != "raw" else [[1e4, 0.0, 1e-4, 9999.0]])
    w = weights_of(x, None, name)
    (g,) = grad([w], [x], [Tensor(np.ones(w.shape))])
    assert np.isfinite(w.numpy()).all() and np.isfinite(g.numpy()).all() and w.numpy()[0, 0] > 0.5


@pytest.mark.parametrize("name", ["sparsemax", "entmax15"])
def test_sparse_weights_are_sparse_and_sum_to_1(name):
    e = np.random.default_rng(0).normal(size=(40, 30)) * 2
    w = normalised(name, e)
    np.testing.assert_allclose(w.sum(-1), 1, rtol=1e-12)
    zeros = (w == 0).mean()
    assert zeros > 0.5 and (w >= 0).all()
    np.testing.assert_array_equal(w[e < e.max(-1, keepdims=True) - (1 if name == "sparsemax" else 2)], 0)
    assert np.count_nonzero(normalised("softmax", e)) == e.size


def test_sparsemax_is_cut_at_1_and_entmax_15_at_2():
    """By hand: two keys, the second behind by d. Sparsemax: (1 + d) / 2. Entmax: a^2 + b^2 = 1 and a - b = d / 2."""
    for d in (0.3, 0.9):
        np.testing.assert_allclose(normalised("sparsemax", [[d, 0.0]]), [[(1 + d) / 2, (1 - d) / 2]], rtol=1e-12)
    np.testing.assert_array_equal(normalised("sparsemax", [[1.0, 0.0]]), [[1, 0]])
    for d in (0.3, 1.6):
        a, b = normalised("entmax15", [[d, 0.0]])[0] ** 0.5
        assert abs(a - b - d / 2) < 1e-12 and abs(a * a + b * b - 1) < 1e-12 and b > 0
    np.testing.assert_allclose(normalised("entmax15", [[2.0, 0.0]]), [[1, 0]], atol=1e-15)


def test_raw_is_refused_where_eq_2_is_no_weighting():
    with pytest.raises(ValueError, match=r"^raw: scores must not be negative .*got -0.4"):
        normalised("raw", [[0.5, -0.4, 0.2]])
    w = normalised("raw", [[0.5, -0.4, 0.2]], [True, False, True])
    np.testing.assert_allclose(w, [[5 / 7, 0, 2 / 7]], rtol=1e-12)
    np.testing.assert_array_equal(normalised("raw", [[0.0, 0.0]]), [[0, 0]])
    q, k = tensor([[[1.0, 0.0]]]), tensor([[[1.0, 0.0], [-1.0, 0.0]]])
    with pytest.raises(ValueError, match="^raw: scores must not be negative"):
        find("raw")(q, k, k, score="dot")


def test_sigmoid_weighs_each_key_by_itself():
    e = np.random.default_rng(0).normal(size=(2, 6))
    w = normalised("sigmoid", e)
    np.testing.assert_allclose(w, 1 / (1 + np.exp(-e)), rtol=1e-12)
    np.testing.assert_array_equal(w[:, :2], normalised("sigmoid", e[:, :2]))  # other keys do not matter


@pytest.mark.parametrize("name", NORMALISERS)
def test_a_mask_that_does_not_fit_is_an_error(name):
    e = np.ones((2, 3, 4))
    for bad in (np.ones((2, 3, 5), bool), np.ones((3, 2, 3, 4), bool), np.ones(3, bool)):
        with pytest.raises(ShapeError, match=rf"{name}: expected a mask that broadcasts to \(B, T, S\)"):
            normalised(name, e, bad)
    with pytest.raises(TypeError, match=f"{name}: expected a mask of bools"):
        normalised(name, e, np.ones((2, 3, 4)))


def test_normalisers_by_name_and_as_functions():
    e = tensor(np.random.default_rng(0).normal(size=(2, 3)), False)
    np.testing.assert_array_equal(weights_of(e, None, lambda s, m: s * 2).numpy(), 2 * e.numpy())
    with pytest.raises(InputError, match="attention: expected normalise to be one of softmax, .*, got 'hardmax'"):
        weights_of(e, None, "hardmax")
