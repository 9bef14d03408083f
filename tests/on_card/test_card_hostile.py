"""What a fuzzer found: uses that nobody intends, in which a card once gave other values or errors than the CPU."""
import numpy as np
import pytest
from agreement import agree

from tinyattn import Tensor, embedding, grad, no_grad
from tinyattn.attention import find
from tinyattn.autograd import _memory
from tinyattn.cli import main
from tinyattn.device import default_device, get_default_device
from tinyattn.functional import dropout, entmax15, sparsemax
from tinyattn.ops.index import Putitem, ScatterRows
from tinyattn.random import manual_seed
from viz.backprop.steps import steps

RNG = np.random.default_rng(17)
X = RNG.normal(size=(3, 4))


def same_error(f):
    """The type and the text of the error that f(device) raises on both devices."""
    errors = []
    for device in ("cpu", "cuda"):
        with pytest.raises(Exception) as error:
            f(device)
        errors.append((error.type, str(error.value)))
    assert errors[0] == errors[1]
    return errors[0]


def alike(f, *data):
    """f of Tensors of these data gives the same numbers, of the same type, on both devices."""
    here, there = (f(*[Tensor(a, device=device) for a in data]) for device in ("cpu", "cuda"))
    assert there.device == "cuda" and here.dtype == there.dtype
    np.testing.assert_array_equal(there.numpy(), here.numpy())


# ---------------------------------------------------------------------------------------------------------------------
# indices and windows
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("index", [(True,), (False,), (np.True_, 1), (True, slice(None), 2), (slice(1, 3), True, [0, 1])], ids=str)
def test_true_and_false_are_no_numbers_as_an_index(index):
    """True was taken for the number 1 and the view of another memory for one of x: a card read what is not its own."""
    index = tuple(np.array(i) if isinstance(i, list) else i for i in index)
    agree(lambda x: (lambda y: y * y)(x[index]), X)


def test_what_is_put_has_the_shape_of_its_place():
    """A card wrote row after row from the place on, into what was not named."""
    for index, shape in [((0,), (4, 3)), ((slice(0, 2),), (3, 4)), ((np.array([0, 1]),), (3, 4)), ((Ellipsis,), (2, 4))]:
        kind, text = same_error(lambda d, i=index, s=shape: Putitem(i, s)(Tensor(X, device=d)))
        assert issubclass(kind, ValueError) and text.startswith("putitem: x has shape (3, 4)")
    agree(lambda x: Putitem((1, slice(None, None, -1)), (3, 4))(x), X[0])


def test_rows_are_scattered_to_rows_that_exist():
    """On the CPU a wrong id wrote into the memory of somebody else."""
    for ids in ([0, 1, 7], [0, -1, 0]):
        assert same_error(lambda d, ids=ids: ScatterRows(3)(Tensor(X, device=d), Tensor(ids, device=d)))[0] is IndexError
    assert "ids (...)" in same_error(lambda d: ScatterRows(3)(Tensor(X, device=d), Tensor([[0, 1]], device=d)))[1]
    assert "padding 9" in same_error(lambda d: embedding(Tensor(X, device=d), Tensor([0], device=d), padding=9))[1]


def test_windows_of_a_tensor_without_axes():
    assert "the last axis of () is shorter" in same_error(lambda d: Tensor(1.0, device=d).unfold(2))[1]


# ---------------------------------------------------------------------------------------------------------------------
# axes, masks, types
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("axis", [2, -3, (0, 1), 1.5])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_the_place_along_an_axis_that_is_none(name, axis):
    assert same_error(lambda d: getattr(Tensor(X, device=d), name)(axis))[1].startswith(name)
    assert same_error(lambda d: getattr(Tensor(1.0, device=d), name)(0))[0] is IndexError


@pytest.mark.parametrize("f", [Tensor.softmax, Tensor.log_softmax, sparsemax, entmax15])
@pytest.mark.parametrize("shape, mask", [((2, 0), (4,)), ((2, 3), (2,)), ((2, 3), (4, 2, 3)), ((0, 3), (5, 3))])
def test_a_mask_that_does_not_fit(f, shape, mask):
    kind, text = same_error(lambda d: f(Tensor(np.zeros(shape), device=d), mask=np.ones(mask, bool)))
    assert f"the mask of shape {mask} does not broadcast to the scores of shape {shape}" in text
    assert same_error(lambda d: f(Tensor(np.zeros(shape), device=d), 0, mask=np.ones(mask, bool))) == (kind, text)


def test_extremes_and_products_of_bools():
    for data in (RNG.random((3, 4)) > 0.5, np.array(True), np.ones((2, 3), bool)):
        for f in (Tensor.max, Tensor.min, Tensor.prod):
            alike(f, data)
    alike(lambda x: x.max(1, keepdims=True), X > 0)
    alike(Tensor.relu, np.array([-3, 0, 5]))


def test_reductions_over_no_axis():
    for f in (Tensor.max, Tensor.min, Tensor.prod, Tensor.sum):
        agree(lambda x, f=f: f(x, ()), X)
        agree(lambda x, f=f: f(x * x), np.array(1.5))
    nan, g = np.where(X > 0, X, np.nan), Tensor(X, device="cuda")
    x = Tensor(nan, device="cuda", requires_grad=True)
    np.testing.assert_array_equal(grad(x.max(()), [x], g)[0].numpy(), X)


# ---------------------------------------------------------------------------------------------------------------------
# changes in place: another shape of the same memory
# ---------------------------------------------------------------------------------------------------------------------
def test_another_shape_is_seen_to_change():
    """Backward gave the gradient of the new values: on a card a reshaped array does not know whose memory it shows."""
    def f(device):
        x, w = Tensor(X, device=device, requires_grad=True), Tensor(X, device=device)
        y = (x.reshape(12) * w.reshape(12)).sum()
        w.fill_(0.0)
        y.backward()
    kind, text = same_error(f)
    assert kind is RuntimeError and "changed in place" in text


def test_memories_are_told_apart():
    x, y = Tensor(X, device="cuda"), Tensor(X, device="cuda")
    assert _memory(x.array) == _memory(x.reshape(2, 6).array) == _memory(x.detach().array) != _memory(y.array)
    nothing = Tensor(np.zeros((0, 3)), device="cuda")
    assert _memory(nothing.array) != _memory(Tensor(np.zeros((0, 3)), device="cuda").array)


@pytest.mark.parametrize("change", [lambda x: x.__setitem__(0, 9), lambda x: x.copy_(np.arange(6) + 3), lambda x: x.add_(1)])
def test_integers_under_another_shape_follow(change):
    """The host went on with the numbers that it had sent."""
    def f(x):
        y, z = x.reshape(2, 3), x.detach()
        change(x)
        return (y + 0).reshape(6) * 100 + y.reshape(6) * 10 + z
    alike(f, np.arange(6))
    x = Tensor(np.arange(6), device="cuda")
    y = x.reshape(2, 3)
    change(x)
    np.testing.assert_array_equal(y.numpy().ravel(), x.numpy())
    np.testing.assert_array_equal(y.array.copy_to_host().ravel(), x.numpy())


def test_gradients_that_are_recorded_have_memory_of_their_own():
    def f(device):
        x = Tensor(X, device=device, requires_grad=True)
        z = Tensor(X.reshape(12), device=device, requires_grad=True)
        g = Tensor(np.ones(12), device=device)
        (x.reshape(12) + z).backward(g, create_graph=True)
        x, z = x.grad, z.grad
        assert len({_memory(t.array) for t in (x, z, g)}) == 3
        with no_grad():
            return x.reshape(12) + z
    np.testing.assert_array_equal(f("cuda").numpy(), f("cpu").numpy())


def test_dropout_asks_no_default_device():
    """Its seed was made where Tensors are made by default."""
    x = Tensor(X, device="cuda")
    manual_seed(5)
    there = dropout(x, 0.5, training=True)
    manual_seed(5)
    with default_device("cuda"):
        here = dropout(Tensor(X, device="cpu"), 0.5, training=True)
    assert there.device == "cuda" and here.device == "cpu"
    np.testing.assert_array_equal(there.numpy(), here.numpy())


def test_a_mechanism_takes_masks_as_arrays_and_makes_its_own_tensors_where_its_inputs_are():
    assert get_default_device() == "cpu"
    for name in ("additive", "alibi", "cosine"):
        variant = find(name)
        arrays = variant.part("example")(np.random.default_rng(0))
        inputs = {k: Tensor(v, device="cuda") if k != "mask" and isinstance(v, np.ndarray) else v for k, v in arrays.items()}
        out = variant(**inputs)
        assert (out[0] if isinstance(out, tuple) else out).device == "cuda"


def test_steps_of_a_computation_on_a_card():
    x = Tensor(np.array([1.0, 2.0]), device="cuda", requires_grad=True)
    here = Tensor(np.array([1.0, 2.0]), requires_grad=True)
    assert steps((x * x).sum()).html() == steps((here * here).sum()).html()


def test_check_goes_on_behind_an_op_without_a_kernel(tmp_path, capsys):
    (tmp_path / "my.py").write_text(MINE)
    assert main(["check", str(tmp_path / "my.py"), "--device", "cuda"]) == 1
    said = capsys.readouterr().out
    assert "thrice: has no kernel for device 'cuda'" in said and "all" not in said.splitlines()[-1]
    assert any("near" in line and "ok" in line for line in said.splitlines())


MINE = '''"""An op without a kernel for cards, and a mechanism."""
import numpy as np

from tinyattn.attention import variant, weigh
from tinyattn.autograd import Op


class Thrice(Op):
    """3 x"""
    def cpu(self, x):
        return 3 * x

    def grad_x(self, g, y, x):
        return g * 3

    def samples(rng):
        yield {}, (rng.normal(size=3),)


@variant(params={}, paper="nobody")
def near(q, k, v, mask=None, return_weights=False):
    return weigh(q @ k.transpose(-1, -2), v, mask, return_weights)


def reference(q, k, v, mask):
    raise NotImplementedError


def example(rng):
    return {"q": rng.normal(size=(1, 2, 3)), "k": rng.normal(size=(1, 2, 3)), "v": rng.normal(size=(1, 2, 3)),
            "mask": np.ones((1, 1, 2), bool)}
'''
