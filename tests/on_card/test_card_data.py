"""On a card: what is data and never in the graph, where Tensors are made, and what the host waits for."""
import numpy as np
import pytest

from tinyattn import Tensor, device, zeros
from tinyattn.functional import arange, ones_like, zeros_like

X = np.array([[1.0, np.nan, 3.0, 3.0], [2.0, -1.0, 0.0, np.inf], [-np.inf, 0.0, -0.0, 2.0]])


def card(x):
    return Tensor(x, device="cuda")


@pytest.mark.parametrize("compare", [lambda x, y: x == y, lambda x, y: x != y, lambda x, y: x < y, lambda x, y: x <= y,
                                     lambda x, y: x > y, lambda x, y: x >= y])
def test_comparisons(compare):
    for x, y in ((X, X[:, ::-1].copy()), (X, X[0]), (X[:, :1].copy(), X), (np.arange(6).reshape(2, 3), np.array(3)),
                 (X > 0, X[0] > 2), (np.zeros((0, 3)), np.zeros(3)), (X.astype(np.float32), np.float32(2))):
        want = compare(Tensor(x), Tensor(y))
        got = compare(card(x), card(y))
        assert got.device == "cuda" and got.shape == want.shape and np.array_equal(got.numpy(), want.numpy())
    assert compare(card(X), 2).tolist() == compare(Tensor(X), 2).tolist()


def test_logic():
    a, b = X > 0, X[:1] < 2
    for f in (lambda x, y: x & y, lambda x, y: x | y, lambda x, y: x ^ y, lambda x, y: ~x):
        assert np.array_equal(f(card(a), card(b)).numpy(), f(Tensor(a), Tensor(b)).numpy())
    whole = np.array([0, 5, -3])
    for x in (X, X.astype(np.float32), whole):
        assert np.array_equal(card(x).isnan().numpy(), np.isnan(x))
        assert np.array_equal(card(x).isfinite().numpy(), np.isfinite(x))


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("keepdims", [False, True])
def test_places_of_extremes(axis, keepdims):
    tied = np.array([[1, 5, 5, 2], [3, 3, 3, 3], [0, -1, 7, -1]])
    for x in (X, X.astype(np.float32), tied, tied > 2, np.random.default_rng(0).normal(size=(3, 70))):
        for f in (Tensor.argmax, Tensor.argmin):
            want, got = f(Tensor(x), axis, keepdims), f(card(x), axis, keepdims)
            assert got.device == "cuda" and got.shape == want.shape and np.array_equal(got.numpy(), want.numpy())


def test_there_is_no_extreme_of_nothing():
    for t in (Tensor(np.zeros((2, 0))), card(np.zeros((2, 0)))):
        with pytest.raises(ValueError, match="empty"):
            t.argmax(1)


def test_conversions():
    for x in (np.array([-1.7, 0.0, 2.5, 1e9]), np.array([-1.5, 3.0], np.float32), np.array([0, -4, 7]), np.array([True, False])):
        for dtype in (np.float32, np.float64, np.int64, np.bool_):
            want, got = Tensor(x).to(dtype), card(x).to(dtype)
            assert got.device == "cuda" and got.dtype == dtype and np.array_equal(got.numpy(), want.numpy())


def test_the_default_device():
    with device.default_device("cuda"):
        made = [Tensor([1.0, 2.0]), zeros(2), arange(3), Tensor(X) + 1, Tensor(X).where(Tensor(X) > 0, 0.0)]
        with device.default_device("cpu"):
            assert Tensor(1.0).device == "cpu"
        assert Tensor(1.0, device="cpu").device == "cpu" and Tensor(1.0).device == "cuda"
    assert {t.device for t in made} == {"cuda"} and Tensor(1.0).device == device.get_default_device() == "cpu"
    with pytest.raises(ValueError, match="device: expected one of cpu, cuda, got 'gpu'"):
        device.set_default_device("gpu")
    with pytest.raises(ZeroDivisionError), device.default_device("cuda"):
        1 / 0  # noqa: B018
    assert device.get_default_device() == "cpu"


def test_whole_numbers_and_masks_that_the_host_has_sent_are_not_read_back():
    ids, mask, x = card(np.array([[1, 2], [3, 0]])), card(np.array([True, False])), card(X)
    before = device.waits["reads"]
    assert ids.tolist() == [[1, 2], [3, 0]] and mask.tolist() == [True, False] and ids.to("cpu").tolist()[0] == [1, 2]
    assert device.waits["reads"] == before
    with pytest.raises(ValueError, match="read-only"):
        ids.numpy()[0, 0] = 7
    ids.fill_(7)  # now what is remembered would be wrong
    mask[1] = True
    assert ids.tolist() == [[7, 7], [7, 7]] and mask.tolist() == [True, True]
    assert x.isnan().any() and device.waits["reads"] > before


def test_what_is_remembered_goes_with_its_array():
    before = len(device._remembered)
    kept = card(np.arange(5))
    assert len(device._remembered) == before + 1
    del kept
    assert len(device._remembered) == before


def test_a_graph_and_its_gradients_ask_the_card_for_nothing():
    w = Tensor(np.ones((3, 2)), device="cuda", requires_grad=True)
    ids, there = np.array([0, 2, 2]), np.array([True, False, True])
    before = device.waits["reads"]
    y = (w[ids] * 2 + 1.5).where(card(there[:, None]), 0.0)
    loss = ((y > 1).to(np.float64) * y).mean() + zeros_like(y).sum() + ones_like(y).max()
    loss.backward()
    assert device.waits["reads"] == before
    assert w.grad.tolist() == [[1 / 3] * 2, [0.0] * 2, [1 / 3] * 2]


def test_changes_in_place():
    t = card(np.ones(3))
    before = device.waits["reads"]
    t.add_(1, alpha=2)
    t.copy_(t + card(np.arange(3.0)))
    assert device.waits["reads"] == before and t.tolist() == [3, 4, 5]
    here = Tensor(np.zeros(3))
    here.copy_(t)
    t.copy_(Tensor(np.ones(3)))
    assert here.tolist() == [3, 4, 5] and t.tolist() == [1, 1, 1]
    t[1:] = card(np.array([8.0, 9.0]))
    assert t.tolist() == [1, 8, 9]


def test_what_follows_from_known_numbers_is_known():
    ids = card(np.array([[1, 2, 0], [3, 0, 0]]))
    x = card(np.arange(12.0).reshape(4, 3))
    before = device.waits["reads"]
    for f in (lambda t: t.reshape(3, 2), lambda t: t[:, 1:], lambda t: t != 0, lambda t: ~(t == 0) & (t < 3), lambda t: t.T,
              lambda t: t + 1, lambda t: t.sum(1), lambda t: (t > 0).to(np.int64), lambda t: t.where(t > 0, -1)):
        assert f(ids).tolist() == f(Tensor(ids.numpy())).tolist()
    assert x.gather(1, (ids[:, :2] > 1).to(np.int64)[[0, 1, 0, 1]]).shape == (4, 2)
    assert device.waits["reads"] == before
    assert (x.argmax(1) > 0).any() and device.waits["reads"] == before + 1  # this only the card knows
