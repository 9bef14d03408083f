"""Elementwise ops on a card, broadcasting, dropout, windows, bags of words, and copies: transposes, parts, joins."""
import itertools

import numpy as np
import pytest
from agreement import agree

from tinyattn import Tensor, autograd, grad
from tinyattn import cuda as card
from tinyattn import device as devices
from tinyattn.autograd import Op
from tinyattn.cuda import cuda, cuda_kernel, place
from tinyattn.functional import concat, conv1d, stack
from tinyattn.ops import bag, shape
from tinyattn.ops.bag import Bag
from tinyattn.ops.binary import broadcasting_samples
from tinyattn.ops.broadcast import plan_of
from tinyattn.ops.conv import Fold, Unfold
from tinyattn.ops.dropout import Dropout

RNG = np.random.default_rng(11)
UNARY = ("neg", "exp", "abs", "sign", "tanh", "sigmoid", "relu", "gelu", "erf", "softplus", "sin", "cos", "clip")
BINARY = ("add", "sub", "mul", "div", "pow", "maximum", "minimum")


@pytest.fixture
def launches(monkeypatch):
    """The names of the kernels that were launched, and their grids."""
    seen = []

    def launch(kernel, grid, arguments, before=card.CudaKernel._launch):
        seen.append((kernel.name, grid))
        before(kernel, grid, arguments)

    monkeypatch.setattr(card.CudaKernel, "_launch", launch)
    return seen


@pytest.fixture
def no_rules(monkeypatch):
    """On the card every gradient must come from `cuda_grad`."""
    def refuse(op, *arguments, before=autograd._by_unrecorded_rules):
        assert devices.device_of(op.outs[0]) == "cpu", f"{op.name}: went by its rules"
        return before(op, *arguments)
    monkeypatch.setattr("tinyattn.autograd._by_unrecorded_rules", refuse)


def gradients(f, *arrays, needs=None, device="cuda"):
    needs = needs or [a.dtype.kind == "f" for a in arrays]
    xs = [Tensor(a, device=device, requires_grad=need) for a, need in zip(arrays, needs, strict=True)]
    y = f(*xs)
    g = Tensor(np.random.default_rng(2).normal(size=y.shape).astype(y.dtype), device=device)
    return [t.numpy() for t in grad([y], [x for x in xs if x.requires_grad], [g])]


def same_gradients(f, *arrays, **options):
    here, there = gradients(f, *arrays, device="cpu", **options), gradients(f, *arrays, **options)
    for a, b in zip(here, there, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-12, atol=1e-12)


# ---------------------------------------------------------------------------------------------------------------------
# functions of one and of two arrays
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one(name, dtype):
    options = {"low": -0.3, "high": 0.4} if name == "clip" else {}
    for n in (1, 6):
        agree(lambda x: Op.registry[name](**options)(x), RNG.normal(size=n), dtype=dtype)


@pytest.mark.parametrize("name", ["abs", "sqrt", "tanh", "sigmoid", "relu", "gelu", "erf", "softplus", "sin", "cos", "clip"])
def test_gradients_of_one_are_one_launch(name, launches, no_rules):
    x = Tensor(np.array([0.5, 1.5]), device="cuda", requires_grad=True)
    y = Op.registry[name]()(x)
    g = Tensor(np.ones(2), device="cuda")
    del launches[:]
    grad([y], [x], [g])
    assert [kernel for kernel, _ in launches if kernel.split(".")[0] in ("unary", "select")] == [
        f"{'select' if name == 'clip' else 'unary'}.{name}_grad"]


def test_two_elements_a_thread_and_several_blocks(launches):
    for n, grid in [(1, (1, 1)), (2, (1, 1)), (3, (1, 2)), (511, (1, 256)), (513, (2, 256)), (1025, (3, 256))]:
        x, y = RNG.normal(size=n), RNG.normal(size=n)
        assert ((Tensor(x, device="cuda") + Tensor(y, device="cuda")).numpy() == x + y).all()
        assert (Tensor(x, device="cuda").abs().numpy() == abs(x)).all()
        assert launches == [("binary.add", grid), ("unary.abs", grid)]
        del launches[:]


def test_functions_at_the_ends_of_the_range():
    x = np.array([-np.inf, -40.0, -9.0, -0.0, 1e-30, 9.0, 40.0, np.inf, np.nan])
    for dtype, name in itertools.product(("float32", "float64"), ("gelu", "erf", "softplus", "abs", "clip")):
        op, data = Op.registry[name], x.astype(dtype)
        np.testing.assert_allclose(op()(Tensor(data, device="cuda")).numpy(), op()(Tensor(data)).numpy(), rtol=5e-6, atol=1e-37)
    for name in ("sin", "cos"):
        assert np.isnan(Op.registry[name]()(Tensor(x[[0, -2, -1]], device="cuda")).numpy()).all()
    far = np.array([1e5, -1e9])
    np.testing.assert_allclose(Tensor(far, device="cuda").sin().numpy(), np.sin(far), rtol=1e-9)


def test_clip_passes_gradients_at_its_bounds():
    x = np.array([-0.5, -0.3, 0.0, 0.4, 0.5, np.nan, np.inf])
    for low, high in ((-0.3, 0.4), (0.4, 0.4), (0.4, -0.3)):
        same_gradients(lambda x, low=low, high=high: x.clip(low, high), x)


def test_gelu_keeps_its_digits_on_the_left():
    x = np.array([-4.0, -5.0, -12.0], np.float32)
    want = Op.registry["gelu"]()(Tensor(x.astype(np.float64))).numpy()
    np.testing.assert_allclose(Op.registry["gelu"]()(Tensor(x, device="cuda")).numpy(), want, rtol=1e-5)


@pytest.mark.parametrize("name", [name for name in BINARY if name != "sub"])  # its rules are no more than one launch
def test_gradients_where_only_some_are_needed(name, no_rules):
    """What is stretched is not asked for: to sum its gradient is another op's work."""
    for needs, (_, (x, y)) in itertools.product(((True, False), (False, True), (True, True)), broadcasting_samples(RNG, True)):
        whole = [a.shape == np.broadcast_shapes(x.shape, y.shape) for a in (x, y)]
        if all(w or not need for w, need in zip(whole, needs, strict=True)):
            same_gradients(lambda x, y: Op.registry[name]()(x, y), x, y, needs=needs)


@pytest.mark.parametrize("name, launched", [("mul", 1), ("div", 1), ("pow", 1), ("maximum", 1), ("minimum", 1), ("add", 0)])
def test_both_gradients_are_one_launch(name, launched, launches):
    x, y = (Tensor(RNG.random(size=(2, 3)) + 1, device="cuda", requires_grad=True) for _ in range(2))
    out, g = Op.registry[name]()(x, y), Tensor(np.ones((2, 3)), device="cuda")
    del launches[:]
    grad([out], [x, y], [g])
    assert len([kernel for kernel, _ in launches if kernel.startswith("binary.")]) == launched


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_ties_and_powers_of_nothing(dtype):
    x, y = np.array([1.0, 2.0, 3.0, -1.0]), np.array([1.0, 3.0, 2.0, -1.0])
    agree(lambda x, y: Op.registry["maximum"]()(x, y) * 2, x, y, dtype=dtype)
    agree(lambda x, y: Op.registry["minimum"]()(x, y) * 2, x, y, dtype=dtype)
    base, power = np.array([0.0, 0.0, 0.0, 2.0]).astype(dtype), np.array([0.0, 1.0, 2.0, 0.0]).astype(dtype)
    same_gradients(lambda x, y: x ** y, base, power)
    nan = np.array([np.nan, 1.0, np.nan]).astype(dtype), np.array([1.0, np.nan, np.nan]).astype(dtype)
    for name in ("maximum", "minimum"):
        assert np.isnan(Op.registry[name]()(*(Tensor(a, device="cuda") for a in nan)).numpy()).all()
        same_gradients(lambda x, y, name=name: Op.registry[name]()(x, y), *nan)


def test_whole_numbers():
    x, y = np.array([[3, -4], [5, 0]]), np.array([2, 3])
    for f in (lambda x, y: x + y, lambda x, y: x * y - x, lambda x, y: x ** y, lambda x, y: Op.registry["maximum"]()(x, y)):
        np.testing.assert_array_equal(f(Tensor(x, device="cuda"), Tensor(y, device="cuda")).numpy(), f(Tensor(x), Tensor(y)).numpy())
    with pytest.raises(ValueError, match="to the power -1 is no whole number"):
        Tensor(x, device="cuda") ** -1


# ---------------------------------------------------------------------------------------------------------------------
# broadcasting
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("a, b", [((3,), (3,)), ((2, 3), (3,)), ((2, 3), (2, 1)), ((2, 3, 2), ()), ((), (2, 2)),
                                  ((2, 2, 3, 2), (2, 1, 1, 2)), ((2, 1, 3, 1), (1, 2, 1, 2)), ((1, 3), (2, 1)),
                                  ((2, 1, 2, 1, 2), (1, 2, 1, 2, 1)), ((0, 3), (3,)), ((2, 0, 1), (1, 4)), ((1, 1), (1,))])
def test_broadcasting(a, b):
    agree(lambda x, y: x * y - x, RNG.normal(size=a), RNG.normal(size=b))
    agree(lambda x, y: (x - y) / (y * y + 1), RNG.normal(size=b), RNG.normal(size=a))


@pytest.mark.parametrize("shapes", [((2, 3), (2, 3), (2, 3)), ((3,), (2, 3), ()), ((2, 1, 1), (3, 1), (2, 1, 4)),
                                    ((2, 2, 1, 3), (2, 2, 2, 3), (1,)), ((0, 2), (2,), ())])
def test_where(shapes):
    condition, x, y = RNG.random(shapes[0]) < 0.5, RNG.normal(size=shapes[1]), RNG.normal(size=shapes[2])
    agree(lambda c, x, y: x.where(c, y) * x, condition, x, y)
    agree(lambda c, x: x.where(c, 0.0), condition, x)
    agree(lambda c, x: Op.registry["where"]()(c, x.detach(), x), condition, x)


def test_where_keeps_what_is_not_taken_out():
    c = np.array([True, False, True])
    x, y = np.array([1.0, np.nan, 2.0]), np.array([np.inf, 3.0, np.nan])
    assert Tensor(x, device="cuda").where(Tensor(c, device="cuda"), Tensor(y, device="cuda")).tolist() == [1, 3, 2]
    for data in (np.arange(3), c):
        there = Tensor(data, device="cuda").where(Tensor(c, device="cuda"), Tensor(data[::-1].copy(), device="cuda"))
        np.testing.assert_array_equal(there.numpy(), np.where(c, data, data[::-1]))


@cuda_kernel("int64[::1], int64[::1], int64[:, ::1], int64", types=["int64"])
def _places_cuda(e, out, plan, i):
    k = cuda.grid(1)
    if k < e.size:
        out[k] = place(e[k], plan, i)


@pytest.mark.parametrize("shapes", [((70_000, 70_000), (70_000,)), ((70_000, 70_000), (70_000, 1)), ((1 << 33,), (1 << 33,)),
                                    ((3, 50_000, 1, 7_000), (50_000, 9, 1), (1, 50_000, 1, 1)), ((5, 1, 3), (4, 1), (5, 4, 3))])
def test_places_also_beyond_32_bits(shapes):
    out, plan = plan_of("test", *shapes)
    size = int(np.prod(out, dtype=np.int64))
    e = np.unique(np.concatenate([RNG.integers(0, size, 20), [0, 1, size // 2, size - 1]]))
    at = np.array(np.unravel_index(e, out))
    for i, s in enumerate(shapes):
        found = devices.empty(e.shape, np.int64, "cuda")
        _places_cuda.each(e.size)(devices.to_device(e, "cuda"), found, card.on_card(plan), i)
        inside = [np.where(n > 1, digits, 0) for n, digits in zip(s, at[len(out) - len(s):], strict=True)]
        np.testing.assert_array_equal(found.copy_to_host(), np.ravel_multi_index(inside, s))


def test_plans_say_which_inputs_are_whole():
    for shapes, whole in [(((4, 2, 3), (4, 1, 3)), [1, 0]), (((2, 3), (3,)), [1, 0]), (((2, 1), (2, 3), (1, 3)), [0, 1, 0]),
                          (((2, 1, 3), (1, 2, 3)), [0, 0])]:
        _, plan = plan_of("test", *shapes)
        assert plan[-1, 1:1 + len(shapes)].tolist() == whole and plan[0, 0] > 1
    assert plan_of("test", (2, 3, 4), (2, 3, 4), ())[1][0, 0] == 1  # one row: nothing is divided


# ---------------------------------------------------------------------------------------------------------------------
# dropout
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("p", [0.0, 0.3, 0.9, 1.0])
def test_dropout_draws_as_on_the_cpu(p, dtype):
    x = RNG.normal(size=(3, 13))
    for seed in (7, 2**62 + 5, -3):
        value, *_ = agree(lambda x, s: Dropout(p)(x, s), x, np.array(seed), dtype=dtype)
        np.testing.assert_array_equal(value == 0, Dropout(p)(Tensor(x), Tensor(np.array(seed))).numpy() == 0)
    assert value.all() if p == 0 else not value.all()


def test_dropout_reads_its_seed_on_the_card():
    x = Tensor(np.ones(50), device="cuda", requires_grad=True)
    seed = Tensor(np.array(5), device="cuda")
    seed = seed + 1 - 1  # a number that the host has not sent
    before = devices.waits["reads"]
    y = Dropout(0.5)(x, seed)
    g, = grad([y], [x], [Tensor(np.ones(50), device="cuda")])
    assert devices.waits["reads"] == before
    assert (g.numpy() == y.numpy()).all() and 0 < (y.numpy() == 0).sum() < 50
    small = Dropout(0.5)(x, Tensor(np.array([5], np.int32), device="cuda"))
    assert (small.numpy() == y.numpy()).all()


def test_dropout_refuses_as_on_the_cpu():
    x, i = Tensor(np.ones(3), device="cuda"), Tensor(np.arange(2), device="cuda")
    for inputs, what in [((x, i), "one whole number as seed"), ((x, x), "one whole number as seed"), ((i, i), "float32 or")]:
        with pytest.raises(TypeError, match=what):
            Dropout(0.5)(*inputs)


# ---------------------------------------------------------------------------------------------------------------------
# windows, bags of words
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("size, step, dilation", [(1, 1, 1), (3, 1, 1), (2, 3, 1), (3, 2, 3), (2, 3, 2), (3, 1, 3), (7, 2, 1)])
def test_windows(size, step, dilation):
    for x in (RNG.normal(size=(2, 7)), RNG.normal(size=(2, 1, 9)), RNG.normal(size=(0, 8))):
        agree(lambda x: (lambda w: w * w)(Unfold(size, step, dilation)(x)), x)
    windows = RNG.normal(size=(2, 3, size)).astype(np.float32)
    length = 3 * step + (size - 1) * dilation  # step - 1 places more than three windows reach over
    value, *_ = agree(lambda x: Fold(length, step, dilation)(x), windows, dtype="float32")
    np.testing.assert_array_equal(value, Fold(length, step, dilation)(Tensor(windows)).numpy())  # to the bit


def test_windows_that_do_not_fit_and_convolution():
    with pytest.raises(ValueError, match="reaches over 4 places"):
        Unfold(4)(Tensor(np.ones((2, 3)), device="cuda"))
    agree(lambda x, w: conv1d(x, w), RNG.normal(size=(2, 3, 5)), RNG.normal(size=(2, 3, 3)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bags_of_words(dtype, launches):
    D = bag.COLUMNS + 1                                                  # two stretches of columns
    ids = np.array([[1, 2, 0], [1, 1, 1], [0, 0, 0], [1, 2, 1]])           # word 1 falls into every lane, word 3 into none
    words, share, kinds = RNG.normal(size=(4, D)), RNG.normal(size=(2, 3, D)), np.array([1, 0, 1, 1])
    agree(lambda t, i, s, k: Bag(0)(t, i, s, k), words, ids, share, kinds, dtype=dtype)
    agree(lambda t, i: (lambda y: y * y)(Bag()(t, i, None, None)), words, ids, dtype=dtype)
    same_gradients(lambda t, i, s: Bag(0)(t, i, s, None), words, ids.reshape(2, 2, 3), share[:1])
    for needs in ([True, False, False, False], [False, False, True, False]):
        same_gradients(lambda t, i, s, k: Bag(1)(t, i, s, k), words, ids, share, kinds, needs=needs)
    assert "bag.sums_of_products" in {kernel for kernel, _ in launches}


def test_bags_of_nothing():
    for ids in (np.zeros((0, 3), np.int64), np.zeros((2, 0), np.int64)):
        agree(lambda t, i: Bag()(t, i, None, None) * 2, RNG.normal(size=(2, 3)), ids)


# ---------------------------------------------------------------------------------------------------------------------
# copies: transposes, parts, joins
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("axes", list(itertools.permutations(range(4))), ids=str)
def test_every_order_of_four_axes(axes):
    for x in (np.arange(2 * 5 * 3 * 6).reshape(2, 5, 3, 6), RNG.normal(size=(2, 1, 5, 3))):
        np.testing.assert_array_equal(Tensor(x, device="cuda").permute(*axes).numpy(), x.transpose(axes))


@pytest.mark.parametrize("size", [(1, 1), (1, 5), (4, 4), (5, 9), (8, 3), (0, 3), (2, 0)])
def test_transposes(size, launches):
    for x in (RNG.normal(size=size), RNG.normal(size=size).astype(np.float32), RNG.normal(size=size) > 0):
        there = Tensor(x, device="cuda").T
        assert there.shape == size[::-1]
        np.testing.assert_array_equal(there.numpy(), x.T)
    turned = min(size) > 1 and min(size) >= shape.SIDE // 4
    assert {kernel for kernel, grid in launches if grid[0]} <= {"shape.turn" if turned else "shape.copy"}


def test_a_transpose_that_keeps_the_last_axis_copies_rows(launches):
    Tensor(RNG.normal(size=(2, 3, 4)), device="cuda").transpose(0, 1)
    assert [kernel for kernel, _ in launches] == ["shape.copy"]
    del launches[:]
    Tensor(RNG.normal(size=(3, 4, 1)), device="cuda").permute(1, 2, 0)  # an axis of length 1 is not in the way
    assert [kernel for kernel, _ in launches] == ["shape.turn"]


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gradients_of_joins_are_parts(axis, launches, no_rules):
    lengths = [2, 0, 1, 3]
    xs = [RNG.normal(size=[n if i == axis % 3 else 2 for i in range(3)]) for n in lengths]
    same_gradients(lambda *xs: concat(xs, axis), *xs)
    same_gradients(lambda *xs: concat(xs, axis), *xs, needs=[False, False, True, True])
    same = [RNG.normal(size=(2, 3)) for _ in range(3)]
    del launches[:]
    same_gradients(lambda *xs: stack(xs, axis), *same, needs=[True, False, True])
    assert [kernel for kernel, _ in launches] == ["shape.copy"] * 5  # three to join them, two gradients


def test_splits_and_their_gradients():
    x = RNG.normal(size=(3, 6))
    agree(lambda x: x.split([1, 0, 2, 3], 1), x)
    agree(lambda x: (lambda a, b: a * a + b)(*x.split([3, 3], -1)), x)
    agree(lambda x: x.split([1, 2], 0)[1] * 3, x)  # of a piece that nobody uses the gradient is 0
    agree(lambda x: x.flip((0,)).pad(((1, 0), (0, 2))).T, x)
