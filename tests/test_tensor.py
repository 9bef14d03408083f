"""Tensor against NumPy (values) and PyTorch (values and gradients): arithmetic, types, indexing, shapes, errors."""
import math
import operator
import warnings

import numpy as np
import pytest

from tinyattn import functional as F
from tinyattn import tensor as tensor_module
from tinyattn.autograd import grad, no_grad
from tinyattn.ops.broadcast import ShapeError
from tinyattn.tensor import Tensor, get_default_dtype, set_default_dtype

F32, F64, I64, BOOL = (np.dtype(t) for t in (np.float32, np.float64, np.int64, np.bool_))


def leaf(data, dtype=np.float64):
    return Tensor(np.array(data, dtype), requires_grad=True)


def equal(t, expected, rtol=1e-12):
    """Same shape and numbers; float kinds agree too."""
    expected = np.asarray(expected)
    assert isinstance(t, Tensor) and t.shape == expected.shape and t.dtype.kind == expected.dtype.kind
    np.testing.assert_allclose(t.numpy(), expected, rtol, 1e-12)


# ---------------------------------------------------------------------------------------------------------------------
# values against NumPy: every method, over shapes with axes of length 0 and 1 and none
# ---------------------------------------------------------------------------------------------------------------------
SHAPES = [(), (1,), (3,), (2, 3), (1, 1), (0,), (2, 0, 3), (2, 3, 4)]
ELEMENTWISE = {
    "exp": np.exp, "log": lambda x: np.log(x), "sqrt": lambda x: np.sqrt(x), "abs": np.abs, "sign": np.sign,
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "relu": lambda x: np.maximum(x, 0), "sin": np.sin, "cos": np.cos,
    "softplus": lambda x: np.logaddexp(0, x), "erf": np.vectorize(math.erf, otypes=[float]),
    "gelu": lambda x: 0.5 * x * (1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2)))}


@pytest.mark.parametrize("name", ELEMENTWISE)
@pytest.mark.filterwarnings("ignore:invalid value|divide by zero:RuntimeWarning")
def test_functions_of_an_element(name, rng):
    for shape in SHAPES:
        x = np.asarray(rng.normal(size=shape))
        equal(getattr(Tensor(x), name)(), ELEMENTWISE[name](x))
    ends = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-300, 700.0, -700.0])
    with np.errstate(all="ignore"):
        expected = ELEMENTWISE[name](ends) if name not in ("softplus", "gelu") else None
    if expected is not None:
        np.testing.assert_allclose(getattr(Tensor(ends), name)().numpy(), expected, 1e-12)
    assert getattr(Tensor([1, 2]), name)().dtype == (I64 if name in ("abs", "sign", "relu") else F32)


BINARY = {"+": lambda x, y: x + y, "-": lambda x, y: x - y, "*": lambda x, y: x * y, "/": lambda x, y: x / y,
          "==": lambda x, y: x == y, "!=": lambda x, y: x != y, "<": lambda x, y: x < y, "<=": lambda x, y: x <= y,
          ">": lambda x, y: x > y, ">=": lambda x, y: x >= y}
PAIRS = [((2, 3), (2, 3)), ((2, 3), (3,)), ((3,), (2, 1)), ((2, 1, 3), (4, 1)), ((), (2, 2)), ((3,), ()),
         ((1,), (1, 1)), ((), ()),
         ((0, 3), (3,)), ((0, 1), (1, 4)), ((5, 1, 0), (2, 1)), ((2, 1, 3, 1), (1, 4, 1, 5))]


@pytest.mark.parametrize("name", BINARY)
def test_arithmetic_and_comparison(name, rng):
    function = BINARY[name]
    for a, b in PAIRS:
        x, y = np.asarray(rng.normal(size=a)), np.asarray(rng.normal(size=b))
        for left, right in [(Tensor(x), Tensor(y)), (x, Tensor(y)), (Tensor(x), y)]:
            equal(function(left, right), function(x, y))
    one, two = [1.0, 2.0], [2.0, 2.0]
    assert function(Tensor(one), two).tolist() == function(np.array(one), np.array(two)).tolist()
    with pytest.raises(ShapeError, match=r"\(2, 3\) and \(2,\) do not broadcast"):
        function(Tensor(np.ones((2, 3))), Tensor(np.ones(2)))


def test_maximum_minimum_power_where(rng):
    for a, b in PAIRS:
        x, y = np.asarray(rng.normal(size=a)), np.asarray(rng.normal(size=b))
        equal(F.maximum(Tensor(x), y), np.maximum(x, y))
        equal(F.minimum(x, Tensor(y)), np.minimum(x, y))
        equal(np.abs(x) ** Tensor(y), np.abs(x) ** y)
        equal(F.where(x > 0, Tensor(x), y), np.where(x > 0, x, y))
        equal(Tensor(y).where(Tensor(x) > 0, 5), np.where(x > 0, y, 5.0))
    nan = Tensor([np.nan, 1.0, np.nan])
    assert np.isnan(F.maximum(nan, [0.0, np.nan, np.nan]).numpy()).all()
    assert np.isnan(nan.max().item())
    assert np.isnan(nan.min().item())
    assert (Tensor([1.0, 0.0, -1.0]) / 0).numpy().tolist()[::2] == [math.inf, -math.inf]


REDUCTIONS = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min, "prod": np.prod, "var": np.var,
              "norm": lambda x, axis, keepdims: np.sqrt(np.sum(x * x, axis=axis, keepdims=keepdims)),
              "logsumexp": lambda x, axis, keepdims: np.log(np.sum(np.exp(x), axis=axis, keepdims=keepdims))}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name, rng):
    for shape in [(), (1,), (4,), (2, 3), (2, 3, 4), (1, 5, 1), (3, 1, 2, 2)]:
        x = np.asarray(rng.normal(size=shape))
        axes = [None, *range(-len(shape), len(shape)), *([(0, -1)] if len(shape) > 1 else []),
                *([(0, 2)] if len(shape) > 2 else [])]
        for axis in axes:
            for keepdims in (False, True):
                expected = REDUCTIONS[name](x, axis=axis, keepdims=keepdims)
                equal(getattr(Tensor(x), name)(axis, keepdims=keepdims), expected, 1e-10)
                equal(getattr(Tensor(x), name)(dim=axis, keepdims=keepdims), expected, 1e-10)
    x = Tensor(rng.normal(size=(2, 0, 3)))
    for axis, shape in [(0, (0, 3)), (2, (2, 0))]:
        assert getattr(x, name)(axis).shape == shape
    if name in ("max", "min"):
        with pytest.raises(ShapeError, match=f"no {name} of nothing"):
            getattr(x, name)(1)
    elif name != "var":
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            got = getattr(x, name)(1).numpy()
        of_nothing = {"sum": 0, "prod": 1, "norm": 0, "mean": np.nan, "logsumexp": -np.inf}[name]
        np.testing.assert_array_equal(got, np.full((2, 3), of_nothing))
    for bad in (5, (0, 0), "x"):
        with pytest.raises((IndexError, ShapeError, ValueError, TypeError)):
            getattr(x, name)(bad)
    with pytest.raises(TypeError, match="axis or dim"):
        getattr(x, name)(0, dim=1)


def test_places_and_running_sum(rng):
    x = rng.normal(size=(3, 4))
    for axis in (None, 0, 1, -1):
        equal(Tensor(x).argmax(axis), np.argmax(x, axis))
        equal(Tensor(x).argmin(axis), np.argmin(x, axis))
    for axis in (0, 1):
        equal(Tensor(x).cumsum(axis), np.cumsum(x, axis))
    assert not leaf(x).argmax(0).requires_grad and not (leaf(x) > 0).requires_grad
    assert Tensor(x).var(ddof=1).item() == pytest.approx(x.var(ddof=1))
    with pytest.raises(ValueError, match="1 elements and ddof=1"):
        Tensor([1.0]).var(ddof=1)


def test_whole_numbers_stay_exact():
    big = Tensor([2**53, 1, 2**53])
    assert big.sum().item() == 2**54 + 1
    assert big.sum(0, keepdims=True).tolist() == [2**54 + 1]
    assert big.max().item() == 2**53
    assert Tensor([[2**60, 3]]).prod(0).tolist() == [2**60, 3] and big.cumsum()[1].item() == 2**53 + 1
    assert (Tensor([3, -2]) ** 3).tolist() == [27, -8] and (2 ** Tensor([0, 5])).tolist() == [1, 32]
    for call in (lambda: Tensor([2]) ** -1, lambda: Tensor([2, 3]) ** Tensor([1, -2])):
        with pytest.raises(ValueError, match="whole number to the power -. is no whole number"):
            call()
    assert Tensor([True, True]).sum().item() == 2 and (-Tensor([True, False])).tolist() == [-1, 0]


@pytest.mark.parametrize(("a", "b"),
                         [((3,), (3,)), ((3,), (3, 2)), ((2, 3), (3,)), ((4, 2, 3), (3,)), ((3,), (4, 3, 2)),
                          ((1, 1), (1, 1)),
                                      ((4, 2, 3), (4, 3, 5)), ((4, 1, 2, 3), (5, 3, 2)), ((0, 3), (3, 2)),
                                      ((2, 0), (0, 3)),
                                      ((0, 2, 3), (3, 4)), ((1, 2, 3), (0, 3, 4)), ((2, 3), (4, 3, 2)),
                                      ((6, 5, 1, 3), (6, 1, 3, 2))])
def test_matmul(a, b, rng):
    x, y = rng.normal(size=a), rng.normal(size=b)
    tx, ty = leaf(x), leaf(y)
    out = tx @ ty
    equal(out, x @ y)
    equal(x @ ty, x @ y)
    equal(F.einsum("i,i->", tx, ty) if x.ndim == y.ndim == 1 else tx.matmul(y), x @ y)
    weights = rng.normal(size=out.shape)
    gx, gy = grad(out, [tx, ty], [weights])
    torch = pytest.importorskip("torch")
    px, py = (torch.tensor(v, requires_grad=True) for v in (x, y))
    (px @ py).backward(torch.tensor(weights))
    np.testing.assert_allclose(gx.numpy(), px.grad.numpy(), 1e-10, 1e-12)
    np.testing.assert_allclose(gy.numpy(), py.grad.numpy(), 1e-10, 1e-12)


def test_matmul_errors():
    for a, b in [((2, 3), (2, 3)), ((), (2, 2)), ((2, 2, 3), (3, 3, 2))]:
        with pytest.raises(ShapeError, match="matmul"):
            Tensor(np.ones(a)) @ Tensor(np.ones(b))


@pytest.mark.parametrize(("equation", "shapes"), [
    ("ij,jk", [(2, 3), (3, 4)]), ("ii->i", [(3, 3)]), ("ii", [(3, 3)]), ("ij->ji", [(2, 3)]), ("i,j->ij", [(2,), (3,)]),
    ("bij,bkj->bik", [(2, 3, 4), (2, 5, 4)]), ("i,i,i->", [(3,), (3,), (3,)]),
    ("abc,cd,de->abe", [(2, 3, 4), (4, 5), (5, 6)]),
    ("ij,k->i", [(2, 3), (4,)]), ("iij,jk->ik", [(3, 3, 2), (2, 4)]), ("ijk->", [(2, 0, 3)]),
    ("ij,jk->ik", [(2, 0), (0, 3)]),
    (",i->i", [(), (3,)]), ("ba,bd", [(2, 3), (2, 4)]), ("bthd,bshd->bhts", [(2, 3, 4, 5), (2, 6, 4, 5)])])
def test_einsum(equation, shapes, rng):
    arrays = [np.asarray(rng.normal(size=s)) for s in shapes]
    tensors = [leaf(a) for a in arrays]
    equal(F.einsum(equation, *tensors), np.einsum(equation, *arrays), 1e-10)
    if len(arrays) > 1:
        equal(F.einsum(equation, arrays[0], *tensors[1:]), np.einsum(equation, *arrays), 1e-10)
    grads = grad(F.einsum(equation, *tensors).sum(), tensors)
    torch = pytest.importorskip("torch")
    theirs = [torch.tensor(a, requires_grad=True) for a in arrays]
    torch.einsum(equation, *theirs).sum().backward()
    for g, t in zip(grads, theirs, strict=True):
        np.testing.assert_allclose(g.numpy(), t.grad.numpy(), 1e-10, 1e-12)


@pytest.mark.parametrize("equation", ["ij", "ij,jk->il", "i1,jk->ik", "ij,jk->ii"])
def test_einsum_errors(equation):
    with pytest.raises(ShapeError, match="einsum"):
        F.einsum(equation, Tensor(np.ones((2, 3))), Tensor(np.ones((3, 4))))
    with pytest.raises(ShapeError, match="lengths 3 and 4"):
        F.einsum("ij,jk", Tensor(np.ones((2, 3))), Tensor(np.ones((4, 4))))


def test_conv1d_and_solve(rng):
    torch = pytest.importorskip("torch")
    for t, k, options in [(7, 3, {}), (7, 2, {"stride": 2, "padding": 1}), (9, 3, {"dilation": 2, "padding": 2}),
                          (1, 1, {}), (3, 3, {})]:
        arrays = [rng.normal(size=s) for s in ((2, 3, t), (4, 3, k), (4,))]
        ours, theirs = [leaf(a) for a in arrays], [torch.tensor(a, requires_grad=True) for a in arrays]
        y, z = F.conv1d(*ours, **options), torch.nn.functional.conv1d(*theirs, **options)
        equal(y, z.detach().numpy())
        y.sin().sum().backward()
        z.sin().sum().backward()
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), 1e-10, 1e-12)
    a, b = rng.normal(size=(2, 3, 3)) + 3 * np.eye(3), rng.normal(size=(2, 3, 2))
    equal(F.solve(Tensor(a), b), np.linalg.solve(a, b), 1e-10)
    equal(F.solve(a[0], Tensor(b[0, :, 0])), np.linalg.solve(a[0], b[0, :, 0]), 1e-10)
    assert F.solve(Tensor([[2, 0], [0, 4]]), [2, 4]).dtype == F32
    with pytest.raises(ValueError, match="singular"):
        F.solve(Tensor([[1.0, 1.0], [1.0, 1.0]]), [1.0, 2.0])
    with pytest.raises(ShapeError, match="longer|reaches over 3"):
        F.conv1d(Tensor(np.ones((1, 1, 2))), Tensor(np.ones((1, 1, 3))))
    with pytest.raises(ShapeError, match=r"with one C, got \(1, 2, 3\)"):
        F.conv1d(Tensor(np.ones((1, 2, 3))), Tensor(np.ones((1, 1, 3))))


# ---------------------------------------------------------------------------------------------------------------------
# shapes
# ---------------------------------------------------------------------------------------------------------------------
def test_shapes(rng):
    x = rng.normal(size=(2, 3, 4))
    t = Tensor(x)
    equal(t.reshape(6, -1), x.reshape(6, 4))
    equal(t.reshape((4, 6)), x.reshape(4, 6))
    equal(t.view(-1), x.reshape(-1))
    equal(t.flatten(1), x.reshape(2, 12))
    equal(Tensor(2.0).flatten(), np.array([2.0]))
    equal(t.permute(2, 0, -2), x.transpose(2, 0, 1))
    equal(t.transpose(), x.swapaxes(-1, -2))
    equal(t.transpose(0, 2), x.swapaxes(0, 2))
    equal(t[0].T, x[0].T)
    equal(t.flip(-1), x[..., ::-1])
    equal(t.flip((0, 2)), x[::-1, :, ::-1])
    equal(t.pad([(1, 0), (0, 2), (0, 0)], 9.0), np.pad(x, [(1, 0), (0, 2), (0, 0)], constant_values=9))
    equal(t[:, :1].expand(2, 5, 4), np.broadcast_to(x[:, :1], (2, 5, 4)))
    equal(t[0, 0].expand(3, -1), np.broadcast_to(x[0, 0], (3, 4)))
    equal(t.unsqueeze(-1), x[..., None])
    equal(t.unsqueeze(0).squeeze(), x)
    equal(t[:1].squeeze(0), x[0])
    equal(t.sum_to((3, 1)), x.sum((0, 2))[:, None])
    for axis, lengths in [(0, 1), (1, 2), (2, [1, 0, 3]), (-1, 4)]:
        ends = np.cumsum(lengths)[:-1] if isinstance(lengths, list) else np.arange(lengths, x.shape[axis], lengths)
        for a, b in zip(t.split(lengths, axis), np.split(x, ends, axis), strict=True):
            equal(a, b)
    for axis in range(3):
        equal(F.stack(F.unbind(t, axis), axis), x)
        equal(F.concat([t, x[:1].mean(0, keepdims=True).repeat(2, 0), t], axis),
              np.concatenate([x, x[:1].repeat(2, 0), x], axis))
    assert F.unbind(Tensor(np.zeros((2, 0))), 1) == () and F.unbind(Tensor(np.zeros((2, 0))))[1].shape == (0,)
    equal(F.stack([1.0, Tensor(2.0)]), np.array([1, 2.0]))
    equal(t.unfold(3, 1), np.lib.stride_tricks.sliding_window_view(x, 3, -1))
    assert F.cat is F.concat and [r.shape for r in t] == [(3, 4)] * 2


@pytest.mark.parametrize(("call", "message"), [
    (lambda t: t.reshape(5), r"reshape: 6 elements of shape \(2, 3\) do not fill shape \(5,\)"),
    (lambda t: t.reshape(-1, -1), "reshape"), (lambda t: t.permute(0, 0), "permute: expected each of the 2 axes"),
    (lambda t: t.permute(0), "permute"),
    (lambda t: t.expand(4, 3), r"expand: shape \(2, 3\) cannot be repeated to \(4, 3\)"),
    (lambda t: t.transpose(0, 2), "transpose: axis 2 does not exist"), (lambda t: t.flip(2), "flip: axis 2"),
    (lambda t: t.pad([(1, 1)]), "pad: expected one"), (lambda t: t.pad([(0, -1), (0, 0)]), "pad"),
    (lambda t: t.squeeze(0), "squeeze: axis 0 of shape"),
    (lambda t: t.split([1, 2], 0), r"split: lengths \(1, 2\) do not add up to 2"),
    (lambda t: t.split(0), "split: expected a length of at least 1"), (lambda t: t.sum_to((2, 2)), "sum_to"),
    (lambda t: F.stack([t, t[0]]), "stack: expected inputs of one shape"),
    (lambda t: F.concat([t, t[:, :2]]), "concat: shapes"),
    (lambda t: F.concat([]), "at least one"), (lambda t: t.unfold(4), "reaches over 4"),
    (lambda t: Tensor(1.0).unfold(1), "reaches over 1"),
    (lambda t: t[0].T, "T: expected a matrix"), (lambda t: t.gather(1, [[0]]), "gather: index of shape"),
    (lambda t: t.gather(1, [[0], [3]]), "gather: index 3 is outside 0 .. 2"),
    (lambda t: t.scatter_add(1, np.zeros((2, 3), int), (3, 3)), "scatter_add"),
    (lambda t: t.gather(0, [[0.5]]), "expected integers")])
def test_shape_errors_name_the_op(call, message):
    with pytest.raises((ShapeError, IndexError, ValueError, TypeError), match=message):
        call(Tensor(np.ones((2, 3))))


# ---------------------------------------------------------------------------------------------------------------------
# indexing: as NumPy has it, with the gradient that adds up
# ---------------------------------------------------------------------------------------------------------------------
INDICES = [
    0, -1, (1, 2), slice(None), slice(1, None), slice(None, None, -1), (slice(None), 1), (Ellipsis, 0), (None, 0),
    (0, None, Ellipsis),
    (slice(3, 0, -2), slice(None, None, 2)), slice(2, 2), [0, 2, 0], [-1, -1], ([0, 1], [2, 2]),
    (slice(None), [1, 1, 0]),
    ([1, 1], slice(1)), ([[0, 1], [2, 2]], 1), (0, [1, 1]), ([0, 1], slice(None), [1, 1]),
    np.array([True, False, True, True]), [], True,
    (slice(None), np.array([False, False, False])), False, np.int64(2), np.array(1), np.array([], int),
    (Ellipsis, None, [1, 0])]


@pytest.mark.parametrize("index", INDICES, ids=[str(i).replace(" ", "") for i in INDICES])
def test_indexing(index, rng):
    x = rng.normal(size=(4, 3, 2))
    t = leaf(x)
    wanted = np.array(index, int) if isinstance(index, list) and not index else index
    got = t[index]
    equal(got, x[wanted])
    weights = np.asarray(rng.normal(size=got.shape))
    expected = np.zeros_like(x)
    np.add.at(expected, wanted, weights)
    for create_graph in (False, True):
        g, = grad(got, t, [weights], create_graph=create_graph)
        np.testing.assert_allclose(g.numpy(), expected, 1e-12)
    with no_grad():
        t[index] = 7.0
    x[wanted] = 7.0
    equal(t, x)


def test_indexing_with_tensors(rng):
    x = rng.normal(size=(3, 4))
    t = Tensor(x)
    equal(t[Tensor([2, 0])], x[[2, 0]])
    equal(t[Tensor(1)], x[1])
    equal(t[t > 0], x[x > 0])
    equal(t[t > 1e9], x[x > 1e9])
    equal(t[Tensor(1):Tensor(3)], x[1:3])
    equal(t[Tensor([True, False, True]), Tensor([1, 2])], x[[True, False, True], [1, 2]])
    for bad, error in [(5, IndexError), ([7], IndexError), (Tensor([0.5]), IndexError), ((0, 0, 0), IndexError),
                       (np.array([True, False]), IndexError), ("a", IndexError)]:
        with pytest.raises(error):
            t[bad]
    index = np.array([0, 1])
    y = leaf(x)[index]
    index[:] = 2  # the index was copied
    assert np.array_equal(y.op.index[0], [0, 1])


def test_gather_and_scatter(rng):
    torch = pytest.importorskip("torch")
    x, index = rng.normal(size=(3, 4)), rng.integers(0, 4, (3, 6))
    t, p = leaf(x), torch.tensor(x, requires_grad=True)
    y, z = t.gather(1, index), torch.gather(p, 1, torch.tensor(index))
    equal(y, z.detach().numpy())
    (y * y).sum().backward()
    (z * z).sum().backward()
    np.testing.assert_allclose(t.grad.numpy(), p.grad.numpy())
    added = np.zeros((3, 9))
    np.add.at(added, (np.arange(3)[:, None], index), x[:, [0] * 6])
    equal(Tensor(x[:, [0] * 6]).scatter_add(1, index, (3, 9)), added)
    equal(Tensor(x[0]).put([3, 3, 1, 0], (5,)), np.array([x[0, 3], x[0, 2], 0, x[0, 0] + x[0, 1], 0]))


# ---------------------------------------------------------------------------------------------------------------------
# 14, 15: types; NumPy on either side
# ---------------------------------------------------------------------------------------------------------------------
OPERANDS = {"f32": Tensor([1.0, 2.0]), "f64": Tensor(np.array([1.0, 2.0])), "i64": Tensor([1, 2]),
            "bool": Tensor([True, False]),
            "int": 2, "float": 2.5, "npf32": np.float32(2), "npf64": np.float64(2), "npi": np.int64(2),
            "npi32": np.int32(2), "flag": True,
            "a32": np.array([1, 2], np.float32), "a64": np.array([1.0, 2.0]), "ai": np.array([1, 2]),
            "ab": np.array([True, False]),
            "af16": np.array([1, 2], np.float16), "list": [1.0, 2.0]}
ARRAYS = {"f32": F32, "f64": F64, "i64": I64, "bool": BOOL, "a32": F32, "a64": F64, "ai": I64, "ab": BOOL, "af16": F32,
          "list": F32}


def expected_type(a, b):
    """The documented rule: the wider float of the Tensors and arrays wins; numbers take the Tensor's type."""
    kinds = [ARRAYS[n] for n in (a, b) if n in ARRAYS]
    floats = [k for k in kinds if k.kind == "f"]
    if floats:
        return max(floats, key=lambda k: k.itemsize)
    if any(n in ("float", "npf32", "npf64") for n in (a, b)):
        return F32
    return I64


@pytest.mark.parametrize("a", ["f32", "f64", "i64", "bool"])
@pytest.mark.parametrize("b", OPERANDS)
def test_one_rule_for_types_whatever_the_order(a, b):
    x, y = OPERANDS[a], OPERANDS[b]
    wide = expected_type(a, b)
    for f in (operator.add, operator.mul, operator.sub, F.maximum, F.minimum):
        assert f(x, y).dtype == f(y, x).dtype == wide
    assert (x / y).dtype == (y / x).dtype == (wide if wide.kind == "f" else F32)
    chosen = F.where([True, False], x, y).dtype
    assert chosen == F.where([True, False], y, x).dtype and (chosen == wide or {a, b} <= {"bool", "flag", "ab"})


def test_gradients_through_mixed_types():
    x, y = leaf([1.0, 2.0], np.float32), leaf([3.0, 4.0])
    (x * y).sum().backward()
    assert x.grad.dtype == F32 and y.grad.dtype == F64 and x.grad.tolist() == [3, 4]
    z = F.concat([x, y, Tensor([1])])
    assert z.dtype == F64
    assert grad(z.sum(), [x, y])[0].dtype == F32


def test_numpy_on_the_left():
    x, a = leaf([1.0, 2.0]), np.array([3.0, 4.0])
    for f in (operator.add, operator.sub, operator.mul, operator.truediv, operator.pow, operator.matmul):
        for left in (a,) if f is operator.matmul else (a, np.float64(2.0), np.int64(3)):
            y = f(left, x)
            equal(y, f(left, x.numpy()))
            assert y.requires_grad and grad(y.sum(), x)[0].shape == (2,)
    assert (a == x).tolist() == [False, False] and (a > x).tolist() == [True, True] and isinstance(a < x, Tensor)
    with pytest.raises(TypeError):
        a += x
    with pytest.raises(TypeError):
        np.exp(x)
    with pytest.raises(RuntimeError, match=r"x\.detach\(\) or x\.numpy\(\)"):
        np.asarray(x)
    with pytest.raises(RuntimeError, match="out of the graph"):
        Tensor([x, x])
    assert np.asarray(x.detach()).tolist() == [1, 2] and np.array(Tensor([1, 2]), float).dtype == F64
    with no_grad():
        assert np.asarray(x).tolist() == [1, 2]
    b = np.ones(2)
    x = leaf([1.0, 2.0])
    b = b + x
    x += 1  # makes a new Tensor
    assert b.requires_grad and x.op is not None


def test_only_floats_require_gradients():
    with pytest.raises(TypeError, match=r"write Tensor\(\[1, 2\], dtype='float32'\)"):
        Tensor([1, 2], requires_grad=True)
    with pytest.raises(TypeError, match=r"x\.float\(\)"):
        Tensor(np.arange(100)).requires_grad_()
    with pytest.raises(TypeError, match="leave the graph; detach"):
        leaf([1.0]).long()
    assert (leaf([1.0]).detach().long().dtype, Tensor([1.5]).bool().dtype) == (I64, BOOL)
    x = leaf([1.0], np.float32)
    assert x.double().requires_grad and x.float() is x and grad(x.double().sum(), x)[0].dtype == F32


def test_what_a_tensor_is_made_of():
    for data, dtype in [(1, I64), (1.0, F32), ([1.0, 2], F32), (True, BOOL), (np.float64(1), F64), (np.ones(2), F64),
                        (np.ones(2, np.float32), F32),
                        (np.ones(2, np.float16), F32), (np.ones(2, np.uint8), I64), (np.array(5, np.int32), I64),
                        ([], F32), ([[]], F32)]:
        assert Tensor(data).dtype == dtype, data
    source = np.ones(3)
    t = Tensor(source)
    source[:] = 5
    assert t.tolist() == [1, 1, 1]
    shown = F.from_numpy(source)
    assert np.shares_memory(shown.array, source) and (shown * 2).tolist() == [10, 10, 10]
    for bad, error in [("a", TypeError), ([[1], [1, 2]], ValueError), (Tensor([1.0]), TypeError), (1j, TypeError),
                       (None, TypeError)]:
        with pytest.raises(error, match="Tensor"):
            Tensor(bad)
    with pytest.raises(TypeError, match="dtype: expected float32"):
        Tensor([1.0], dtype="complex64")
    assert Tensor(np.ones((2, 3)).T).array.flags.c_contiguous
    set_default_dtype(np.float64)
    try:
        assert Tensor(1.0).dtype == F64 == get_default_dtype() and F.zeros(2).dtype == F64
    finally:
        set_default_dtype(np.float32)
    with pytest.raises(TypeError):
        set_default_dtype(np.int64)


def test_python_protocols():
    x = Tensor([[1.5, 2.0]])
    assert len(x) == 1
    assert float(Tensor([2.5])) == 2.5
    assert int(Tensor(3)) == 3
    assert bool(Tensor(True))
    assert [10, 20][Tensor(1)] == 20
    assert x.tolist() == [[1.5, 2.0]] and x[0, 1].item() == 2.0 and type(Tensor(3).item()) is int
    assert len({x, x}) == 1 and x in [x] and (x == None) is False and (x != None) is True  # noqa: E711
    for call, error in [(lambda: len(Tensor(1.0)), TypeError), (lambda: bool(Tensor([1.0, 2.0])), ValueError),
                        (lambda: x.item(), ValueError),
                        (lambda: [1][Tensor(0.0)], TypeError), (lambda: list(Tensor(1.0)), TypeError),
                        (lambda: x + "a", TypeError),
                        (lambda: x + None, TypeError), (lambda: x & x, TypeError), (lambda: ~x, TypeError),
                        (lambda: x.where([1, 0], 0.0), TypeError), (lambda: x.no_such_thing, AttributeError)]:
        with pytest.raises(error):
            call()
    a, b = Tensor([True, True, False]), Tensor([True, False, False])
    assert (a & b).tolist() == [True, False, False] and (a | b).tolist() == [True, True, False]
    assert (a ^ b).tolist() == [False, True, False] and (~a).tolist() == [False, False, True]
    assert a.any() and not a.all() and Tensor([1.0, np.nan]).isnan().tolist() == [False, True]
    assert Tensor([1.0, np.inf]).isfinite().tolist() == [True, False]


def test_repr():
    assert repr(Tensor([1.0, 2.0])) == "Tensor([1., 2.])" and repr(Tensor(3)) == "Tensor(3)"
    assert "requires_grad=True" in repr(leaf([1.0])) and "dtype=float64" in repr(leaf([1.0]))
    assert "op=mul" in repr(leaf([1.0]) * 2) and "shape=(0, 3)" in repr(Tensor(np.zeros((0, 3))))
    assert "name='w'" in repr(Tensor([1.0], name="w")) and "shape=(1000,)" in repr(Tensor(np.zeros(1000)))
    assert len(repr(Tensor(np.zeros((1000, 1000))))) < 2000
    shown = Tensor([[1.0, 2.0]], name="<w>")._repr_html_()
    assert "<table>" in shown and "&lt;w&gt;" in shown and "<pre>" in Tensor(np.zeros((2, 2, 2)))._repr_html_()


def test_in_place_and_copies():
    x = Tensor([1.0, 2.0])
    x[0] = 5
    x[[False, True]] = 6.0
    assert x.tolist() == [5, 6] and x.copy_([1, 2]).tolist() == [1, 2] and x.add_(1, alpha=2).tolist() == [3, 4]
    assert x.fill_(7).tolist() == [7, 7] and x.zero_().tolist() == [0, 0]
    with pytest.raises(ShapeError, match=r"copy_: shape \(3,\) does not fit into \(2,\)|do not broadcast"):
        x.copy_([1, 2, 3])
    with pytest.raises(ShapeError, match="does not fit"):
        x.copy_([[1, 2], [3, 4]])
    y = x.clone()
    y.fill_(3)
    assert x.tolist() == [0, 0] and Tensor([1, 2]).clone().dtype == I64
    z = leaf([1.0])
    assert z.clone().requires_grad
    assert not np.shares_memory(z.clone().array, z.array)
    assert np.shares_memory(z.detach().array, z.array)
    with pytest.raises(RuntimeError, match="only a leaf"):
        (z * 2).requires_grad_(False)
    assert not z.requires_grad_(False).requires_grad


def test_factories_and_random_numbers():
    from tinyattn import random
    random.manual_seed(3)
    a, state = F.randn(2, 3), random.get_state()
    b = F.rand((4,))
    random.set_state(state)
    assert np.array_equal(b.numpy(), F.rand(4).numpy()) and a.shape == (2, 3) and a.dtype == F32
    random.manual_seed(3)
    assert np.array_equal(a.numpy(), F.randn(2, 3).numpy())
    before = np.random.get_state()[1].copy()
    F.dropout(F.ones(100), 0.5, training=True)
    assert np.array_equal(before, np.random.get_state()[1])
    assert F.zeros(2, 3).shape == F.ones((2, 3)).shape == (2, 3)
    assert F.full((2,), 7).dtype == I64
    assert F.full((2,), 7.0).dtype == F32
    assert F.arange(3).tolist() == [0, 1, 2]
    assert F.arange(1, 2, 0.5).tolist() == [1, 1.5]
    assert F.eye(2).tolist() == [[1, 0], [0, 1]]
    assert F.zeros_like(leaf([1.0])).dtype == F64 and F.ones_like(Tensor([3])).tolist() == [1]
    ids = F.randint(2, 5, (100,)).numpy()
    assert ids.min() == 2 and ids.max() == 4
    for bad in (-1, 1.5, "x"):
        with pytest.raises(ValueError, match="manual_seed"):
            random.manual_seed(bad)


# ---------------------------------------------------------------------------------------------------------------------
# 6: every public float function joins the graph
# ---------------------------------------------------------------------------------------------------------------------
X = np.array([[0.3, -0.7, 1.1], [0.9, 0.2, -0.4]])
JOINS = {
    "exp": (), "log": (), "sqrt": (), "abs": (), "sign": (), "tanh": (), "sigmoid": (), "relu": (), "gelu": (),
    "erf": (), "softplus": (), "sin": (),
    "cos": (), "clip": (-0.5, 0.5), "clamp": (0.0, 1.0), "where": (X > 0, 1.0), "maximum": (0.1,), "minimum": (0.1,),
    "matmul": (X.T,), "sum": (),
    "mean": (1,), "var": (0,), "max": (), "min": (1,), "prod": (), "norm": (), "cumsum": (), "logsumexp": (),
    "softmax": (), "log_softmax": (),
    "reshape": (6,), "view": (3, 2), "flatten": (), "squeeze": (), "unsqueeze": (0,), "permute": (1, 0),
    "transpose": (), "expand": (4, 2, 3),
    "sum_to": ((3,),), "flip": (0,), "pad": ([(1, 1), (0, 0)],), "split": (1,), "unfold": (2,),
    "put": ((slice(0, 2), slice(0, 3)), (3, 4)),
    "gather": (1, [[0], [1]]), "scatter_add": (1, [[0, 1, 1], [2, 2, 2]], (2, 4)), "to": ("float32",), "float": (),
    "double": (), "clone": (),
    "cpu": ()}
APART = {  # give no float Tensor, stand outside the graph by name, or change the Tensor itself
    "numpy", "item", "tolist", "numel", "argmax", "argmin", "all", "any", "isfinite", "isnan", "requires_grad_",
    "backward", "detach", "copy_",
    "fill_", "zero_", "add_", "long", "bool", "cuda", "concat", "stack", "data", "shape", "dtype", "ndim", "size",
    "device", "is_leaf", "T", "array",
    "op", "index", "requires_grad", "grad", "name"}


def test_every_method_is_known():
    public = {n for n in dir(Tensor) if not n.startswith("_")}
    assert public == set(JOINS) | APART, public ^ (set(JOINS) | APART)


@pytest.mark.parametrize("name", JOINS)
def test_every_method_joins_the_graph(name):
    x = leaf(np.abs(X) + 0.1 if name in ("log", "sqrt") else X)
    result = getattr(x, name)(*JOINS[name])
    for out in result if isinstance(result, tuple) else (result,):
        assert out.requires_grad
    total = sum((o.double() * Tensor(np.arange(1.0, o.size + 1).reshape(o.shape))).sum()
                for o in (result if isinstance(result, tuple) else (result,)))
    g = grad(total, x)[0].numpy()
    assert np.isfinite(g).all() and (g != 0).any() == (name != "sign")


FUNCTIONS = {
    "where": lambda x: F.where(X > 0, x, 0.0), "maximum": lambda x: F.maximum(0.0, x),
    "minimum": lambda x: F.minimum(x, 1),
    "concat": lambda x: F.concat([X, x]), "cat": lambda x: F.cat([x, x], 1), "stack": lambda x: F.stack([x, X]),
    "unbind": lambda x: F.unbind(x),
    "embedding": lambda x: F.embedding(x, [0, 0]), "rows_at": lambda x: F.rows_at(x.unsqueeze(0), [[1, 1]]), "solve": lambda x: F.solve(np.eye(2), x),
    "linear": lambda x: F.linear(x, x),
    "conv1d": lambda x: F.conv1d(x.unsqueeze(0), Tensor(np.ones((1, 2, 2)))), "einsum": lambda x: F.einsum("ij->i", x),
    "softmax": lambda x: F.softmax(x), "log_softmax": lambda x: F.log_softmax(x),
    "elu": lambda x: F.elu(x - 1), "layer_norm": lambda x: F.layer_norm(x),
    "dropout": lambda x: F.dropout(x, 0.1, training=True), "cross_entropy": lambda x: F.cross_entropy(x, [0, 1]),
    "additive_scores": lambda x: F.additive_scores(x.unsqueeze(0), x.unsqueeze(0), x[0]),
    "additive_scores_2d": lambda x: F.additive_scores_2d(x.unsqueeze(0), x.unsqueeze(0), x),
    "featurewise_attention": lambda x: F.featurewise_attention(*[x.unsqueeze(0)] * 3),
    "scaled_dot_product_attention": lambda x: F.scaled_dot_product_attention(x, x, x, causal=True),
    "sparsemax": lambda x: F.sparsemax(x / 9), "entmax15": lambda x: F.entmax15(x / 9)}
FACTORIES = {"from_numpy", "full", "zeros", "ones", "zeros_like", "ones_like", "arange", "eye", "randn", "rand",
             "randint", "tap"}


def test_every_function_joins_the_graph():
    assert set(F.__all__) == set(FUNCTIONS) | FACTORIES, set(F.__all__) ^ (set(FUNCTIONS) | FACTORIES)
    for name, function in FUNCTIONS.items():
        x = leaf(X)
        result = function(x)
        for out in result if isinstance(result, tuple) else (result,):
            assert out.requires_grad, name
            g = grad(out.sin().sum(), x)[0].numpy()
            assert np.isfinite(g).all() and (g != 0).any(), name
    assert tensor_module.Tensor is Tensor


def test_dropout_needs_to_be_told():
    x = leaf(X)
    assert F.dropout(x, 0.5, training=False) is x and F.dropout(x, 0.0, training=True) is x
    with pytest.raises(TypeError, match="training"):
        F.dropout(x, 0.5)
    with pytest.raises(ValueError, match="probability between 0 and 1, got 1.5"):
        F.dropout(x, 1.5, training=True)


@pytest.mark.parametrize("name", ["gelu", "softplus", "relu", "sigmoid", "tanh", "erf"])
def test_activations_are_pytorchs(name, rng):
    torch = pytest.importorskip("torch")
    x = np.concatenate([rng.normal(size=50) * 3, [0.0, -30.0, 30.0, 90.0, -90.0]])
    theirs = torch.tensor(x, requires_grad=True)
    function = getattr(torch.nn.functional, name, None) or getattr(torch, name)
    out = function(theirs)
    out.sum().backward()
    t = leaf(x)
    y = getattr(t, name)()
    rtol = 1e-7 if name == "softplus" else 1e-12  # PyTorch's softplus is x itself above 20
    np.testing.assert_allclose(y.numpy(), out.detach().numpy(), rtol, 1e-15)
    np.testing.assert_allclose(grad(y.sum(), t)[0].numpy(), theirs.grad.numpy(), rtol, 1e-15)
    small = getattr(leaf(x, np.float32), name)()
    np.testing.assert_allclose(small.numpy(), out.detach().numpy(), 3e-6, 1e-7)


def test_elu_is_pytorchs_also_at_its_kink():
    torch = pytest.importorskip("torch")
    numbers = [-800.0, -30.0, -1.0, -1e-9, -0.0, 0.0, 1e-9, 1.0, 800.0]
    x, theirs = leaf(np.array(numbers)), torch.tensor(numbers, dtype=torch.float64, requires_grad=True)
    y, out = F.elu(x), torch.nn.functional.elu(theirs)
    np.testing.assert_allclose(y.numpy(), out.detach().numpy(), atol=1e-15)
    slope, = grad(y.sum(), [x], create_graph=True)
    wanted, = torch.autograd.grad(out.sum(), theirs, create_graph=True)
    np.testing.assert_allclose(slope.numpy(), wanted.detach().numpy(), atol=1e-15)
    bend = torch.autograd.grad(wanted.sum(), theirs)[0].numpy()
    np.testing.assert_allclose(grad(slope.sum(), [x])[0].numpy(), bend, atol=1e-15)


def test_a_number_beyond_float32_is_inf_without_a_warning():
    x, wide = Tensor(np.ones(2, np.float32)), Tensor(np.ones(2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (x * 1e300).tolist() == [np.inf] * 2 and (np.float64(-1e39) + x).tolist() == [-np.inf] * 2
        assert (x < 1e300).numpy().all() and (x * 3e38).tolist() == [float(np.float32(3e38))] * 2
        assert (wide * 1e300).tolist() == [1e300] * 2
