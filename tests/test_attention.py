"""Every mechanism of the table, from its own file: value, gradients to second order, masks, weights."""
import numpy as np
import pytest

from tinyattn import InputError, Tensor, capture, grad
from tinyattn.attention import find, mask, table, weigh
from tinyattn.gradcheck import gradcheck, gradgradcheck

NAMES = list(table())


def example(name, seed=0):
    arrays = find(name).part("example")(np.random.default_rng(seed))
    return {k: Tensor(a, requires_grad=a.dtype.kind == "f") for k, a in arrays.items()}, arrays


@pytest.mark.parametrize("name", NAMES)
def test_value_is_that_of_the_slow_reference(name):
    for seed in range(3):
        tensors, arrays = example(name, seed)
        np.testing.assert_allclose(find(name)(**tensors).numpy(), find(name).part("reference")(**arrays), atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_to_second_order(name):
    tensors, arrays = example(name)
    floats = [k for k, a in arrays.items() if a.dtype.kind == "f"]
    rest = {k: t for k, t in tensors.items() if k not in floats}

    def call(*values):
        return find(name)(**dict(zip(floats, values, strict=True)), **rest)

    for check in (gradcheck, gradgradcheck):
        report = check(call, [arrays[k] for k in floats])
        assert report.ok, str(report)


@pytest.mark.parametrize("name", NAMES)
def test_masked_keys_get_no_weight_and_send_no_gradient(name):
    tensors, arrays = example(name)
    if "mask" not in arrays:
        pytest.skip("this mechanism takes no mask")
    with capture() as seen:
        out = find(name)(**tensors)
    weights = seen["weights"][0].numpy()
    allowed = np.broadcast_to(arrays["mask"], weights.shape)
    assert (weights[~allowed] == 0).all() and (~allowed).any()
    np.testing.assert_allclose(weights.sum(-1), 1)
    g_k, g_v = grad(out.sum(), [tensors["k"], tensors["v"]])
    dead = ~allowed.any(1)
    assert (g_k.numpy()[dead] == 0).all() and (g_v.numpy()[dead] == 0).all()
    assert (g_v.numpy()[~dead] != 0).all()


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_is_learnt(name):
    tensors, _ = example(name)
    parameters = [tensors[p] for p in find(name).params]
    out = find(name)(**tensors)
    g = Tensor(np.random.default_rng(5).normal(size=out.shape))
    for p, found in zip(find(name).params, grad(out, parameters, [g]), strict=True):
        assert (np.abs(found.numpy()).max() > 1e-12) == (p not in find(name).null), p


def test_a_query_that_may_attend_to_nothing_gives_0_and_sends_0():
    scores, v = Tensor(np.ones((1, 2, 3)), requires_grad=True), Tensor(np.ones((1, 3, 2)), requires_grad=True)
    allowed = Tensor(np.array([[[True, True, False], [False, False, False]]]))
    out, weights = weigh(scores, v, allowed, return_weights=True)
    np.testing.assert_array_equal(weights.numpy()[0], [[0.5, 0.5, 0], [0, 0, 0]])
    np.testing.assert_array_equal(out.numpy()[0, 1], [0, 0])
    g_scores, g_v = grad(out.sum(), [scores, v])
    np.testing.assert_array_equal(g_scores.numpy(), np.zeros((1, 2, 3)))
    np.testing.assert_array_equal(g_v.numpy()[0], [[0.5, 0.5], [0.5, 0.5], [0, 0]])


def test_masks_are_made_by_constructors():
    np.testing.assert_array_equal(mask.from_lengths([2, 0, 3]).numpy()[:, 0], [[1, 1, 0], [0, 0, 0], [1, 1, 1]])
    np.testing.assert_array_equal(mask.causal(2, 4).numpy(), [[1, 1, 1, 0], [1, 1, 1, 1]])
    np.testing.assert_array_equal(mask.causal(3).numpy(), np.tril(np.ones((3, 3))))
    with pytest.raises(ValueError, match="between 0 and S = 2"):
        mask.from_lengths([3], 2)
    with pytest.raises(TypeError, match="bools"):
        Tensor([1.0]).softmax(mask=Tensor([1.0]))


def test_a_mechanism_of_ones_own_is_one_file(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("from tinyattn.attention.core import variant, weigh\n\n"
                    "@variant(params={'w': 'QK'})\ndef bilinear(q, k, v, w, mask=None):\n"
                    "    return weigh(q @ w @ k.transpose(), v, mask)\n")
    found = find(f"{file}:bilinear")
    assert found.shapes(Q=2, K=3) == {"w": (2, 3)} and "bilinear" not in table()
    for bad, message in [(f"{file}:nothing", "bilinear"), (tmp_path / "no.py:x", "no file"), ("cosy", "expected one of")]:
        with pytest.raises(InputError, match=message):
            find(str(bad))
