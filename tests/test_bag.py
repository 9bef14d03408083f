"""Sentences as weighted sums of word vectors: against loops, PyTorch and the readable twin; nil; memory; errors."""
import tracemalloc

import numpy as np
import pytest
from test_softmax_loss_norm import assert_as_accurate, run

from tinyattn import Tensor
from tinyattn.autograd import fused, grad
from tinyattn.ops.bag import Bag
from tinyattn.ops.broadcast import ShapeError

SHAPES = [((4, 3), 5, 2, 1), ((7,), 1, 1, 2), ((2, 3, 2), 4, 7, 3), ((40,), 9, 20, 4), ((0, 3), 2, 3, 1),
          ((3,), 0, 2, 1)]


def arrays(shape, J, D, K, V=6, seed=0):
    """table, ids (some of them nil = 0), share, kinds; and the gradient that comes in."""
    rng = np.random.default_rng(seed)
    inputs = [rng.normal(size=(V, D)), rng.integers(0, V, (*shape, J)), rng.normal(size=(K, J, D)),
              rng.integers(0, K, shape)]
    return inputs, rng.normal(size=(*shape, D))


def loops(table, ids, share, kinds, g, nil=0):
    """Value and gradients of table and share, number by number."""
    y, d_table, d_share = np.zeros(g.shape), np.zeros(table.shape), np.zeros(share.shape)
    for at in np.ndindex(*ids.shape):
        *n, j = at
        word, k = ids[at], kinds[tuple(n)]
        if word != nil:
            for d in range(table.shape[1]):
                y[(*n, d)] += share[k, j, d] * table[word, d]
                d_table[word, d] += share[k, j, d] * g[(*n, d)]
                d_share[k, j, d] += table[word, d] * g[(*n, d)]
    return y, d_table, d_share


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mode", ["force", "never"])
def test_values_and_gradients(shape, mode):
    inputs, g = arrays(*shape)
    with fused(mode):
        y, grads = run(Bag(0), inputs, g)
    for mine, expected in zip([y, *grads], loops(*inputs, g), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("mode", ["force", "never"])
def test_without_share_it_is_pytorchs_embedding_bag(mode):
    torch = pytest.importorskip("torch")
    (table, ids, _, _), g = arrays((8,), 5, 4, 1)
    theirs = torch.tensor(table, requires_grad=True)
    expected = torch.nn.functional.embedding_bag(torch.tensor(ids), theirs, mode="sum", padding_idx=0)
    expected.backward(torch.tensor(g))
    with fused(mode):
        y, (d_table,) = run(Bag(0), [table, ids, None, None], g)
    np.testing.assert_allclose(y, expected.detach().numpy(), rtol=1e-12)
    np.testing.assert_allclose(d_table, theirs.grad.numpy(), rtol=1e-12, atol=1e-13)


def test_nil_counts_nothing_and_learns_nothing():
    (table, ids, share, kinds), g = arrays((6,), 4, 3, 2)
    y, (d_table, _) = run(Bag(0), [table, ids, share, kinds], g)
    assert (ids == 0).any() and (d_table[0] == 0).all() and (d_table[1:] != 0).any()
    table[0] = np.nan  # a word that is skipped is not multiplied by 0
    other = run(Bag(0), [table, ids, share, kinds], g)
    np.testing.assert_array_equal(other[0], y)
    assert (run(Bag(), [table, ids, share, kinds], g)[0] != y).any()


@pytest.mark.parametrize("shape", [((3, 50), 8, 20, 8), ((40,), 9, 33, 1)])
def test_float32_is_as_accurate_as_the_twin(shape):
    assert_as_accurate(Bag(0), *arrays(*shape, V=50))


def test_only_what_is_needed():
    inputs, g = arrays((5,), 3, 4, 2)
    _, (d_table, d_share) = run(Bag(0), inputs, g)
    for which, expected in ((0, d_table), (2, d_share)):
        ts = [Tensor(a, requires_grad=i == which) for i, a in enumerate(inputs)]
        np.testing.assert_array_equal(grad([Bag(0)(*ts)], [ts[which]], [Tensor(g)])[0].numpy(), expected)


def test_no_array_of_all_word_vectors():
    N, J, D = 1600, 10, 40
    inputs, g = arrays((N,), J, D, 2, V=50)
    table, share, g = (Tensor(a.astype(np.float32)) for a in (inputs[0], inputs[2], g))
    ids, kinds, table = Tensor(inputs[1]), Tensor(inputs[3]), table.requires_grad_()
    grad([Bag(0)(table, ids, share, kinds)], [table], [g])
    tracemalloc.start()
    grad([Bag(0)(table, ids, share, kinds)], [table], [g])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * N * D * 4 < N * J * D * 4 / 4


def test_errors():
    table, ids, share = Tensor(np.zeros((4, 3))), Tensor(np.zeros((2, 5), int)), Tensor(np.zeros((2, 5, 3)))
    kinds = Tensor(np.array([0, 1]))
    for bad, error, message in [
            ((Tensor(np.zeros(3)), ids, None, None), ShapeError, r"bag: expected table \(V, D\) and ids \(..., J\), g"),
            ((table, ids, share, None), ShapeError, r"bag: expected share \(K, J, D\), K = 1 without kinds"),
            ((table, ids, Tensor(np.zeros((1, 4, 3))), None), ShapeError, "bag: expected share"),
            ((table, ids, share, Tensor(np.array([0]))), ShapeError, "bag: expected kinds"),
            ((table, ids, None, kinds), TypeError, "bag: expected no kinds"),
            ((table, ids, Tensor(share.numpy(), dtype="float32"), kinds), TypeError, "bag: .*float64, float32"),
            ((table, ids, share, Tensor(np.array([0, 2]))), IndexError, "bag: kind 2 is outside 0 .. 1"),
            ((table, Tensor(np.full((2, 5), 4)), share, kinds), IndexError, "bag: id 4 is outside 0 .. 3"),
            ((table, Tensor(np.full((2, 5), -1)), share, kinds), IndexError, "bag: id -1 is outside 0 .. 3")]:
        with pytest.raises(error, match=message):
            Bag(0)(*bad)
    with pytest.raises(IndexError, match="bag: nil 4 is outside 0 .. 3"):
        Bag(4)(table, ids, None, None)
