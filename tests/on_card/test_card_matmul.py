"""Products on a card: each size of square, the depth in parts, batches, transposes, biases; against the CPU."""
import numpy as np
import pytest
from agreement import agree

from tinyattn import Tensor
from tinyattn import cuda as card
from tinyattn import device as devices
from tinyattn.functional import linear
from tinyattn.ops import matmul_cuda as products
from tinyattn.ops.matmul import MatMul

RNG = np.random.default_rng(4)


@pytest.fixture
def launched(monkeypatch):
    """The names of the kernels that run."""
    names, before = [], card.CudaKernel._launch

    def launch(kernel, grid, arguments):
        names.append(kernel.name.partition(".")[2])
        before(kernel, grid, arguments)

    monkeypatch.setattr(card.CudaKernel, "_launch", launch)
    return names


def product(a, b, turned_a=False, turned_b=False, bias=None):
    there = [None if x is None else devices.to_device(x, "cuda") for x in (a, b, bias)]
    return products.matmul_cuda(*there[:2], turned_a, turned_b, there[2]).copy_to_host()


def check(m, n, depth, way, monkeypatch, dtype="float32"):
    """All four ways in which a and b may lie, with and without bias, with squares and parts that are given."""
    monkeypatch.setattr(products, "way", lambda *_: way)
    a, b, bias = (RNG.normal(size=shape).astype(dtype) for shape in ((m, depth), (depth, n), (n,)))
    want = a.astype("float64") @ b
    for turned_a, turned_b in [(False, False), (True, False), (False, True), (True, True)]:
        left, right = np.ascontiguousarray(a.T if turned_a else a), np.ascontiguousarray(b.T if turned_b else b)
        with_bias = bias if turned_a == turned_b else None
        np.testing.assert_allclose(product(left, right, turned_a, turned_b, with_bias),
                                   want + (bias if with_bias is not None else 0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("each", [products.WIDE, products.MIDDLE, products.SMALL])
@pytest.mark.parametrize("parts", [1, 3])
def test_each_square_at_sizes_that_do_not_fit(each, parts, monkeypatch, launched):
    side = each * products.SIDE
    check(side + 1, side + side // 2 + 1, 3 * products.SIDE + 1, (each, parts), monkeypatch)
    check(1, 2, 3, (each, parts), monkeypatch)  # fewer stretches than parts: some parts are nothing
    size = {products.WIDE: "wide", products.MIDDLE: "middle", products.SMALL: "small"}[each]
    assert set(launched) == {f"product_{size}"} | ({"add_parts"} if parts > 1 else set())


@pytest.mark.parametrize("each", [products.MIDDLE, products.SMALL])
def test_squares_in_float64(each, monkeypatch):
    check(each * products.SIDE + 3, 5, products.SIDE + 2, (each, 2), monkeypatch, "float64")


def test_the_way_fits_the_shape():
    """The numbers of a card, whatever is simulated here."""
    side, busy = products.SIDE, products.BUSY
    wide, middle, small = (each * side for each in (products.WIDE, products.MIDDLE, products.SMALL))
    assert products.way(busy * wide, wide, 1, 1, 4) == (products.WIDE, 2 if products.LEAST == 1 else 1)
    assert products.way(busy * wide, wide, 1, 1, 8)[0] == products.MIDDLE
    assert products.way(middle, middle, 1, busy, 4)[0] == products.MIDDLE
    assert products.way(small, small, 1, busy, 4) == (products.SMALL, 1)
    assert products.way(1, busy * wide, 1, 1, 4)[0] == products.SMALL        # a square would be mostly empty
    each, parts = products.way(wide, wide, 2 * busy * products.LEAST, 1, 4)  # the gradient of a weight
    assert (each, parts) == (products.WIDE, 2 * busy)
    assert products.way(3, 3, 0, 0, 4) == (products.SMALL, 1)


def test_a_deep_product_runs_in_parts_and_gives_the_same_bits(launched):
    a, b = (RNG.normal(size=(5 * products.LEAST, 3)).astype("float32") for _ in range(2))
    first = product(a, b, turned_a=True)
    assert launched == ["product_small", "add_parts"]
    np.testing.assert_allclose(first, a.T @ b, rtol=1e-5, atol=1e-5)
    assert np.array_equal(first, product(a, b, turned_a=True))


@pytest.mark.parametrize("a, b", [((2, 1, 3, 2), (3, 2, 5)), ((3, 4, 2), (2, 6)), ((3, 5), (2, 5, 1)), ((1, 3, 7), (4, 7, 1)),
                                  ((2, 0, 3), (3, 2)), ((0, 2, 3), (3, 2)), ((2, 3, 0), (0, 2)), ((2, 2), (3, 2, 0))])
def test_batches_broadcast(a, b):
    agree(lambda a, b: a @ b, RNG.normal(size=a), RNG.normal(size=b))


@pytest.mark.parametrize("parts", [1, 2])
def test_batches_in_parts(parts, monkeypatch):
    monkeypatch.setattr(products, "way", lambda *_: (products.SMALL, parts))
    a, b = RNG.normal(size=(2, 1, 5, 9)), RNG.normal(size=(3, 9, 6))
    np.testing.assert_allclose(product(a, b), a @ b, rtol=1e-12)
    bias = RNG.normal(size=6)
    np.testing.assert_allclose(product(a, b, bias=bias), a @ b + bias, rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gradients_in_parts(dtype, monkeypatch, launched):
    monkeypatch.setattr(products, "way", lambda *_: (products.MIDDLE, 2))
    agree(linear, RNG.normal(size=(2, 7, 5)), RNG.normal(size=(9, 5)), RNG.normal(size=9), dtype=dtype)
    assert "product_middle" in launched and "add_parts" in launched


def test_transposes_and_one_tensor_twice():
    agree(lambda a, b: a.T @ b.transpose(0, 1), RNG.normal(size=(3, 2)), RNG.normal(size=(5, 3)))
    agree(lambda a: a @ a.T @ a, RNG.normal(size=(3, 2)))


def test_only_what_is_needed_is_computed(launched):
    a, b = Tensor(RNG.normal(size=(3, 2)), device="cuda"), Tensor(RNG.normal(size=(2, 4)), device="cuda", requires_grad=True)
    c = MatMul()(a, b)
    before = len(launched)
    c.backward(Tensor(np.ones((3, 4)), device="cuda"))
    assert [name for name in launched[before:] if name.startswith("product")] == ["product_small"]


def test_inf_and_nan_come_through():
    a, b = np.array([[np.inf, 1.0], [0.0, 1.0], [np.nan, 0.0]]), np.array([[1.0, 0.0], [2.0, 3.0]])
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(product(a, b), a @ b)
