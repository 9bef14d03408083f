"""The engine on a card: every op on its samples, the graph, transfers, errors, and every mechanism of attention."""

import numpy as np
import pytest
from agreement import agree

from tinyattn import Tensor, devicecheck, embedding, grad, nn, no_grad
from tinyattn import cuda as card
from tinyattn import device as devices
from tinyattn.attention import find, mask, properties, table
from tinyattn.autograd import Op, detect_anomaly
from tinyattn.commands.names import modules
from tinyattn.functional import arange, concat, eye, full, linear, ones, rand, randint, randn, stack, zeros
from tinyattn.ops import reduce, transfer
from tinyattn.ops.index import ScatterRows
from tinyattn.ops.matmul import MatMul
from tinyattn.ops.softmax import Softmax

RNG = np.random.default_rng(3)



# ---------------------------------------------------------------------------------------------------------------------
# every op that has a CUDA kernel, on its own samples
# ---------------------------------------------------------------------------------------------------------------------
ON_CARD = sorted(name for name, op in Op.registry.items() if op.cuda is not None)


def test_each_family_is_there():
    for name in ("add", "sub", "mul", "div", "neg", "exp", "tanh", "sigmoid", "relu", "cast", "where", "sum", "softmax",
                 "matmul", "embedding", "scatter_rows", "reshape", "permute", "expand", "transfer", "affine", "getitem",
                 "putitem", "gather", "scatter_add", "concat", "stack", "split", "flip", "pad", "mean", "norm", "max",
                 "min", "cumsum", "log_softmax", "log_sum_exp", "log", "sqrt", "abs", "sign", "pow", "maximum", "minimum",
                 "clip"):
        assert name in ON_CARD


@pytest.mark.parametrize("name", ON_CARD)
def test_op_agrees_on_its_samples(name):
    op = Op.registry[name]
    for attributes, inputs in op.samples(np.random.default_rng(1)):
        if op is not transfer.Transfer:
            arrays = [None if x is None else np.asarray(x) for x in inputs]
            agree(lambda *xs, attributes=attributes: op(**attributes)(*xs), *arrays)


# ---------------------------------------------------------------------------------------------------------------------
# chains, types, odd sizes
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_broadcast_multiply_add(dtype):
    x, y, z = RNG.normal(size=(2, 1, 3)), RNG.normal(size=(2, 1)), RNG.normal(size=(3,))
    agree(lambda x, y, z: x * y + z, x, y, z, dtype=dtype)
    agree(lambda x, y: (x - y) / y, RNG.normal(size=(2, 1, 2)), RNG.normal(size=(3, 1)) + 3, dtype=dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_chain_of_elementwise_functions(dtype):
    agree(lambda x: ((x * 0.5).exp().tanh().sigmoid() - (-x).sigmoid()).relu(), RNG.normal(size=(7,)), dtype=dtype)
    agree(lambda x: x.tanh().exp().sigmoid(), RNG.normal(size=(0, 3)), dtype=dtype)


def test_elementwise_at_the_ends_of_the_range():
    x = np.array([-np.inf, -1000.0, -0.0, 1000.0, np.inf, np.nan], np.float32)
    for f in (Tensor.exp, Tensor.tanh, Tensor.sigmoid, Tensor.relu):
        np.testing.assert_array_equal(f(Tensor(x, device="cuda")).numpy(), f(Tensor(x)).numpy())
    one = Tensor(np.array([1.0, -1.0, 0.0]), device="cuda")
    np.testing.assert_array_equal((one / 0.0).numpy(), [np.inf, -np.inf, np.nan])


@pytest.mark.parametrize("axis", [0, 1, 2, (0, 2), (0, 1), (-1,), None])
@pytest.mark.parametrize("keepdims", [False, True])
def test_sum_over_each_axis(axis, keepdims):
    agree(lambda x: (x * x).sum(axis, keepdims), RNG.normal(size=(3, 5, 2)))


def test_sum_of_many_in_several_launches():
    x = RNG.normal(size=(2, 37, 3))
    out = devices.empty((2, 3), np.float64, "cuda")
    reduce.sum_cuda(card.flat(devices.to_device(x, "cuda")), card.flat(out), 2, 37, 3, chunk=5)  # 8 parts, 2 parts, 1
    np.testing.assert_allclose(out.copy_to_host(), x.sum(1), rtol=1e-13)


def test_sum_of_float32_adds_up_in_float64():
    x = np.concatenate([[2.0**24], np.ones(600)]).astype(np.float32)
    assert Tensor(x, device="cuda").sum().item() == 2.0**24 + 600


def test_sum_of_integers_and_bools():
    ids = Tensor(np.arange(7), device="cuda")
    assert ids.sum().item() == 21 and (ids > 2).sum().item() == 4 and (ids * 2 - 1).tolist()[-1] == 11


def test_softmax_with_masks():
    x = RNG.normal(size=(2, 2, 3))
    keys = np.array([[[True, True, False]], [[False] * 3]])  # the second sentence may attend to nothing
    value, *_ = agree(lambda x, m: x.softmax(mask=m), x, keys, dtype="float32")
    assert (value[:, :, 2] == 0).all() and (value[1] == 0).all()
    agree(lambda x: (x * x).softmax(axis=0), x)


def test_softmax_of_large_and_infinite_scores():
    x = np.array([[1e4, 1e4 - 1, -1e4], [-np.inf, -np.inf, -np.inf], [-np.inf, 0.0, 1.0], [np.nan, 0.0, 1.0]])
    np.testing.assert_allclose(Tensor(x, device="cuda").softmax().numpy(), Tensor(x).softmax().numpy(), rtol=1e-12)


def test_softmax_row_longer_than_a_block():
    x = RNG.normal(size=(1, card.THREADS + 44))
    np.testing.assert_allclose(Tensor(x, device="cuda").softmax().numpy(), Tensor(x).softmax().numpy(), rtol=1e-12)


@pytest.mark.parametrize("a, b", [((5, 6), (6, 9)), ((1, 1), (1, 1)), ((3, 0), (0, 2)), ((0, 3), (3, 2))])
def test_matmul_of_odd_sizes(a, b):
    agree(lambda a, b: a @ b, RNG.normal(size=a), RNG.normal(size=b))


@pytest.mark.parametrize("axis", [0, 1, (0, 2), None])
@pytest.mark.parametrize("name", ["mean", "norm", "max", "min", "logsumexp"])
def test_reductions_over_each_axis(name, axis):
    agree(lambda x: getattr(x, name)(axis, keepdims=True), RNG.normal(size=(3, 5, 2)))


def test_reductions_at_the_ends_of_the_range():
    x = np.array([[np.nan, 1.0, 2.0], [3.0, np.nan, -np.inf], [np.inf, 1.0, -1.0], [-np.inf, -np.inf, -np.inf]])
    for f in (lambda x: x.max(1), lambda x: x.min(1), lambda x: x.logsumexp(1), lambda x: x.log_softmax(), Tensor.sign,
              Tensor.log):
        np.testing.assert_allclose(f(Tensor(x, device="cuda")).numpy(), f(Tensor(x)).numpy(), rtol=1e-15)
    zero = Tensor(np.zeros((2, 3)), device="cuda", requires_grad=True)
    assert grad(zero.norm(), [zero])[0].tolist() == [[0, 0, 0], [0, 0, 0]]
    assert Tensor(np.array([3e30, 4e30], np.float32), device="cuda").norm().item() == np.float32(5e30)
    assert np.isnan(Tensor(np.zeros((2, 0)), device="cuda").mean(1).numpy()).all()
    with pytest.raises(ValueError, match="max: there is no max of nothing"):
        Tensor(np.zeros((2, 0)), device="cuda").max(1)


def test_rows_longer_than_a_block():
    x = RNG.normal(size=(card.THREADS + 44, 1))
    for f in (Tensor.max, Tensor.min, Tensor.logsumexp, lambda x: x.log_softmax(0)):
        np.testing.assert_allclose(f(Tensor(x, device="cuda")).numpy(), f(Tensor(x)).numpy(), rtol=1e-12)


def test_norm_and_mean_of_many_in_several_launches():
    x = RNG.normal(size=(2, 37, 3))
    out = devices.empty((2, 3), np.float64, "cuda")
    for options, want in [({"squares": True, "root": True}, np.sqrt((x * x).sum(1))), ({"factor": 1 / 37}, x.mean(1))]:
        reduce.sum_cuda(card.flat(devices.to_device(x, "cuda")), card.flat(out), 2, 37, 3, chunk=5, **options)
        np.testing.assert_allclose(out.copy_to_host(), want, rtol=1e-13)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_affine(dtype):
    x, w, b = RNG.normal(size=(2, 3, 5)), RNG.normal(size=(6, 5)), RNG.normal(size=6)
    agree(linear, x, w, b, dtype=dtype)
    agree(linear, RNG.normal(size=5), RNG.normal(size=(6, 5)), dtype=dtype)


@pytest.mark.parametrize("index", [
    (1, 2, 3), (Ellipsis,), (slice(None, None, -2), None, Ellipsis, -1), (0, slice(3, 0, -2)), (slice(2, 2),),
    (None, 1, None), (np.array([2, 0, 2]),), (slice(None), np.array([[1, -1], [0, 1]])),
    (np.arange(3) != 1, slice(1, None)), (np.array([], int),)], ids=str)
def test_every_kind_of_index(index):
    agree(lambda x: (lambda y: y * y)(x[index]), RNG.normal(size=(3, 4, 5)))
    ids = np.arange(60).reshape(3, 4, 5)
    for data in (ids, ids % 2 == 0):
        np.testing.assert_array_equal(Tensor(data, device="cuda")[index].numpy(), data[index])


def test_an_index_outside_reads_as_on_the_cpu():
    x = Tensor(np.ones((2, 3)), device="cuda")
    for index in ((2,), (0, -4), (np.array([0, 2]),), (0, 0, 0)):
        for t in (x, x.cpu()):
            with pytest.raises(IndexError, match="out of bounds|too many"):
                t[index]


def test_joining_and_padding_of_every_type():
    six = np.arange(6).reshape(2, 3)
    for data in (six, six > 2, six.astype(np.float32)):
        here, there = Tensor(data), Tensor(data, device="cuda")
        for f in (lambda x: concat([x, x, x[:, :0]], 1), lambda x: stack([x, x], -1), lambda x: x.pad(((0, 1), (2, 0))),
                  lambda x: x.flip((0, 1)), lambda x: concat(x.split([1, 0, 2], 1)[::2], 1)):
            np.testing.assert_array_equal(f(there).numpy(), f(here).numpy())


def test_a_long_graph_of_slices():
    def steps(x, w):
        h = x[:, 0]
        for t in range(1, x.shape[1]):
            h = (concat([h, x[:, t]], -1) @ w).tanh()
        return stack([h, x[:, -1]], 1).flip(1).cumsum(1).log_softmax(mask=np.array([True, True, False]))[:, :, :2]
    agree(steps, RNG.normal(size=(2, 3, 3)), RNG.normal(size=(6, 3)))


def test_matmul_with_batches_vectors_and_transposes():
    agree(lambda a, b: a @ b, RNG.normal(size=(2, 1, 3, 2)), RNG.normal(size=(3, 2, 5)), dtype="float32")
    agree(lambda a, b: a @ b, RNG.normal(size=(3,)), RNG.normal(size=(3, 4)))
    agree(lambda a, b: a.T @ b.transpose(0, 1), RNG.normal(size=(3, 2)), RNG.normal(size=(5, 3)))


@pytest.mark.parametrize("padding", [None, 2])
def test_embedding_and_scatter_add(padding):
    ids = np.array([[0, 4, 2, 0], [2, 0, 4, 0]])
    agree(lambda w: (lambda e: e * e)(embedding(w, ids, padding)), RNG.normal(size=(5, 3)))
    agree(lambda x, i: (lambda t: t * t)(ScatterRows(6, padding)(x, i)), RNG.normal(size=(2, 4, 3)), ids)
    agree(lambda w: embedding(w, np.zeros((0, 2), np.int64)), RNG.normal(size=(5, 3)))
    agree(lambda x, i: ScatterRows(4)(x, i), np.zeros((0, 3)), np.zeros(0, np.int64))


def test_scatter_add_gives_the_bits_of_the_cpu():
    x, ids = RNG.normal(size=(50, 2)).astype(np.float32), RNG.integers(0, 3, 50)
    assert np.array_equal(ScatterRows(3)(Tensor(x), Tensor(ids)).numpy(),
                          ScatterRows(3)(Tensor(x, device="cuda"), Tensor(ids, device="cuda")).numpy())


def test_an_attention_with_every_family():
    def attend(q, k, v, table):
        q = (q + embedding(table, np.array([1, 0, 1]))).tanh()
        return (q @ k.T * 0.5).softmax(mask=np.array([[True] * 4, [False] * 4, [True, False, True, True]])) @ v
    agree(attend, RNG.normal(size=(3, 2)), RNG.normal(size=(4, 2)), RNG.normal(size=(4, 5)), RNG.normal(size=(2, 2)))


# ---------------------------------------------------------------------------------------------------------------------
# arrays: strides, sizes, transfers, ownership
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("make", [lambda x: x.T, lambda x: x[::2, ::-1], lambda x: x[:1, :0],
                                  lambda x: np.broadcast_to(x[0], (3, 5)), lambda x: x[1:2, 2].reshape(()),
                                  lambda x: x[:, :1][::-1]])
def test_an_array_of_any_strides_arrives_whole(make):
    x = make(np.arange(20.0).reshape(4, 5))
    there = devices.to_device(x, "cuda")
    assert there.shape == x.shape and np.array_equal(there.copy_to_host(), x)
    steps = np.empty(x.shape).strides
    assert there.strides == steps  # kernels take flat memory
    t = Tensor(x, device="cuda")
    np.testing.assert_array_equal((t + t).numpy(), x + x)


def test_views_of_the_cpu_are_right_on_a_card():
    x = RNG.normal(size=(2, 3, 4))
    agree(lambda x: x.permute(2, 0, 1).exp().reshape(4, 6).T, x)
    agree(lambda x: x.expand(2, 3, 4) * x, RNG.normal(size=(3, 1)))
    agree(lambda x: x.reshape(()) * x.reshape(1, 1), RNG.normal(size=(1,)))
    agree(lambda x: x.reshape(3, 0).sum(1) + 1, RNG.normal(size=(0, 2)))


def test_transfer_sends_the_gradient_back():
    x = Tensor(RNG.normal(size=(2, 3)), requires_grad=True)
    y = x.to("cuda")
    assert y.device == "cuda" and y.requires_grad
    (y * y).to("cpu").sum().backward()
    assert x.grad.device == "cpu"
    np.testing.assert_allclose(x.grad.numpy(), 2 * x.numpy())
    z = x.cuda()
    first, = grad((z * z * z).sum(), [x], create_graph=True)
    second, = grad(first.sum(), [x])
    np.testing.assert_allclose(second.numpy(), 6 * x.numpy())
    assert Tensor(2.0).to("cuda").shape == () and Tensor(2.0).to("cuda").item() == 2


def test_gradients_do_not_share_memory():
    a, b = (Tensor(np.ones(3), device="cuda", requires_grad=True) for _ in range(2))
    seed = Tensor(np.ones(3), device="cuda")
    (a + b).backward(seed)
    a.grad.zero_()
    assert b.grad.tolist() == [1, 1, 1] and seed.tolist() == [1, 1, 1]
    (a * 2).backward(seed)
    assert a.grad.tolist() == [2, 2, 2]


def test_in_place_changes_and_copies():
    a = Tensor(np.arange(4.0), device="cuda")
    b = a.clone()
    a.fill_(7)
    a[1:3] = 0
    assert a.tolist() == [7, 0, 0, 7] and b.tolist() == [0, 1, 2, 3]
    w = Tensor(np.ones(2), device="cuda", requires_grad=True)
    y = w * w
    with no_grad():
        w.zero_()
    with pytest.raises(RuntimeError, match="changed in place"):
        y.sum().backward()


def test_conditions_stay_on_the_card():
    a = Tensor(np.array([1.0, np.nan, -1.0]), device="cuda")
    for t in (a > 0, ~(a > 0), a.isnan(), a.isfinite(), a.argmax()):
        assert t.device == "cuda"
    assert a.where(a > 0, 0.0).tolist() == [1, 0, 0]


def test_masks_and_constants_are_made_where_they_are_asked_for():
    for t in (zeros(2, device="cuda"), ones(2, 3, device="cuda"), arange(3, device="cuda"), eye(2, device="cuda"),
              full((2,), 3.0, device="cuda"), randn(2, device="cuda"), rand(2, device="cuda"),
              randint(0, 3, (2,), device="cuda"), mask.causal(2, 3, device="cuda"), mask.forward(2, device="cuda"),
              mask.backward(2, device="cuda"), mask.diagonal(2, device="cuda"), mask.window(3, before=1, device="cuda"),
              mask.from_lengths([1, 2], device="cuda"), mask.from_lengths(Tensor(np.array([1, 2]), device="cuda"))):
        assert t.device == "cuda"
    assert mask.causal(2).device == zeros(2).device == "cpu"


# ---------------------------------------------------------------------------------------------------------------------
# mechanisms of attention: values and gradients on both devices, by `properties.devices`
# ---------------------------------------------------------------------------------------------------------------------
def compared(name):
    return properties.devices(find(name), find(name).part("example")(np.random.default_rng(0)))


def test_every_op_has_a_kernel():
    assert [name for name, op in Op.registry.items() if op.cuda is None] == []


@pytest.mark.parametrize("name", list(table()))
def test_mechanism_agrees(name):
    report = compared(name)
    assert report.ok, str(report)
    assert report.compared > 3


def test_a_comparison_can_fail(monkeypatch):
    before = Op.registry["additive_scores"].cuda

    def wrong(op, *arrays):
        return Op.registry["mul"]().cuda(before(op, *arrays), devices.to_device(np.array(1 + 1e-6), "cuda"))

    monkeypatch.setattr(Op.registry["additive_scores"], "cuda", wrong)
    report = compared("additive")
    assert not report.ok and "on the card (analytic) against the cpu" in str(report)


MODULES = modules()


@pytest.mark.parametrize("name", list(MODULES))
def test_module_agrees(name):
    module, inputs = nn.example_of(MODULES[name], np.random.default_rng(0))
    report = devicecheck.check_function(name, module, inputs, module=module)
    assert report.ok and report.compared > 1, str(report)


# ---------------------------------------------------------------------------------------------------------------------
# errors
# ---------------------------------------------------------------------------------------------------------------------
def test_mixed_devices_name_both():
    here, there = Tensor(np.ones((2, 2))), Tensor(np.ones((2, 2)), device="cuda")
    for f in (lambda: here + there, lambda: there @ here, lambda: there > here):
        with pytest.raises(ValueError, match="cpu, cuda|cuda, cpu"):
            f()


def test_an_op_without_a_kernel_names_itself_and_the_device():
    class Twice(Op):
        """An op of the user's own, without a kernel for cards."""
        def cpu(self, x):
            return x + x

    with pytest.raises(NotImplementedError, match="twice.*cuda"):
        Twice()(Tensor(np.ones(3), device="cuda"))


def test_bad_shapes_and_ids_read_as_on_the_cpu():
    t, two = Tensor(np.ones((2, 3)), device="cuda"), Tensor(np.arange(2), device="cuda")
    for f, what in [(lambda: t @ t, "matmul: expected a"), (lambda: t + two, "do not broadcast"),
                    (lambda: t.reshape(4), "reshape: 6 elements"), (lambda: t.expand(4, 3), "expand"),
                    (lambda: t.permute(0, 0), "permute"), (lambda: t.softmax(mask=np.ones((4, 1, 3), bool)), "mask"),
                    (lambda: embedding(t, np.array([0, 2])), "id 2 is outside 0 .. 1"),
                    (lambda: Softmax(2)(t), "axis 2"), (lambda: ScatterRows(1)(t, two), "id 1")]:
        with pytest.raises((ValueError, IndexError), match=what):
            f()


def test_wrong_types_are_named_before_numba_sees_them():
    ints = Tensor(np.ones((2, 2), np.int64), device="cuda")
    floats = Tensor(np.ones((2, 2)), device="cuda")
    with pytest.raises(TypeError, match="unary.exp: the CUDA kernel takes .*float32.*got .int64 with 1 axes"):
        Op.registry["exp"]()(ints)
    with pytest.raises(TypeError, match="matmul: expected a and b of one type"):
        MatMul()(floats, floats.float())


def test_anomalies_are_found_on_a_card():
    with pytest.raises(FloatingPointError, match="div.. is the first to give inf"), detect_anomaly():
        Tensor(np.ones(2), device="cuda") / Tensor(np.zeros(2), device="cuda")
