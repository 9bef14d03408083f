"""Softmax and its relatives, cross-entropy, layer norm, dropout: against loops, PyTorch and their readable twins."""
import math
import os
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

from tinyattn import device
from tinyattn.autograd import Op, fused, grad
from tinyattn.device import kernel
from tinyattn.ops.additive import AdditiveScores
from tinyattn.ops.broadcast import ShapeError
from tinyattn.ops.dropout import Dropout
from tinyattn.ops.loss import CrossEntropy
from tinyattn.ops.norm import LayerNorm
from tinyattn.ops.shared import exp, exp_below, log
from tinyattn.ops.softmax import LogSoftmax, LogSumExp, Softmax
from tinyattn.tensor import Tensor

INF, NAN = np.inf, np.nan
OPS = (Softmax, LogSoftmax, LogSumExp, CrossEntropy, LayerNorm, Dropout, AdditiveScores)
SAMPLES = [pytest.param(op, attributes, inputs, id=f"{op.__name__}{n}")
           for op in OPS for n, (attributes, inputs) in enumerate(op.samples(np.random.default_rng(0)))]


# ---------------------------------------------------------------------------------------------------------------------
# tools
# ---------------------------------------------------------------------------------------------------------------------
def tensors(inputs):
    return [None if a is None else Tensor(np.array(a), requires_grad=np.asarray(a).dtype.kind == "f") for a in inputs]


def run(op, inputs, g, create_graph=False):
    """(output, gradients of the float inputs) as arrays."""
    ts = tensors(inputs)
    y = op(*ts)
    wanted = [t for t in ts if t is not None and t.requires_grad]
    return y.numpy(), [d.numpy() for d in grad([y], wanted, [Tensor(np.asarray(g, y.dtype))], create_graph=create_graph)]


def slopes(function, inputs, i, eps=1e-5):
    """Central differences of a number along every element of input i."""
    out = np.zeros(inputs[i].shape)
    for at in np.ndindex(*out.shape):
        ends = []
        for sign in (1, -1):
            moved = [None if a is None else np.array(a) for a in inputs]
            step = eps * max(1.0, abs(moved[i][at]))
            moved[i][at] += sign * step
            ends.append(function(moved))
        out[at] = (ends[0] - ends[1]) / (2 * step)
    return out


def finite(y):
    return np.where(np.isfinite(y), y, 0.0)


# ---------------------------------------------------------------------------------------------------------------------
# every op, on its samples
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("op, attributes, inputs", SAMPLES)
def test_gradients_to_order_two(op, attributes, inputs):
    """The loop against central differences, the rules against the loop, the rules' own gradient against differences."""
    rng = np.random.default_rng(1)
    inputs = [None if a is None else np.asarray(a) for a in inputs]
    y = op(**attributes)(*tensors(inputs)).numpy()
    g = np.where(np.isfinite(y), rng.normal(size=y.shape), 0.0)
    floats = [i for i, a in enumerate(inputs) if a is not None and a.dtype.kind == "f"]
    _, loops = run(op(**attributes), inputs, g)
    _, rules = run(op(**attributes), inputs, g, create_graph=True)

    def value(moved):
        return float((finite(op(**attributes)(*tensors(moved)).numpy()) * g).sum())

    pull = [rng.normal(size=inputs[i].shape) for i in floats]

    def slope(moved):
        return float(sum((d * p).sum() for d, p in zip(run(op(**attributes), moved, g)[1], pull, strict=True)))

    ts = tensors(inputs)
    wanted = [ts[i] for i in floats]
    first = grad([op(**attributes)(*ts)], wanted, [Tensor(g)], create_graph=True)
    total = sum(((d * Tensor(p)).sum() for d, p in zip(first, pull, strict=True)), Tensor(np.zeros(())))
    second = grad([total], wanted, allow_unused=True) if total.requires_grad else [None] * len(wanted)
    smooth = all(np.isfinite(inputs[i]).all() for i in floats)
    for i, loop, rule, twice in zip(floats, loops, rules, second, strict=True):
        assert loop.shape == inputs[i].shape
        np.testing.assert_allclose(rule, loop, rtol=1e-10, atol=1e-11)
        if smooth and np.abs(inputs[i]).max(initial=0) < 100:
            np.testing.assert_allclose(loop, slopes(value, inputs, i), rtol=1e-6, atol=1e-7)
            numeric = slopes(slope, inputs, i)
            np.testing.assert_allclose(0 if twice is None else twice.numpy(), numeric, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("op, attributes, inputs", SAMPLES)
def test_float32_gives_float32(op, attributes, inputs):
    inputs = [None if a is None else np.asarray(a, np.float32) if np.asarray(a).dtype.kind == "f" else a for a in inputs]
    y = op(**attributes)(*tensors(inputs))
    assert y.dtype == np.float32
    g = np.ones(y.shape, np.float32)
    for d in run(op(**attributes), inputs, g)[1]:
        assert d.dtype == np.float32


def twisted(a):
    """The same numbers in memory that is transposed, reversed and strided; or a scalar repeated with stride 0."""
    if a.ndim == 0:
        return a
    wide = np.zeros(tuple(2 * n for n in reversed(a.shape)), a.dtype)
    view = wide[tuple(slice(None, None, 2) for _ in a.shape)].T[::-1]
    view[...] = a
    return view


@pytest.mark.parametrize("op, attributes, inputs", SAMPLES)
def test_any_memory_layout(op, attributes, inputs):
    """Raw arrays in, inputs and incoming gradient: what a strided view gives is what its copy gives, bit for bit."""
    arrays = [None if a is None else np.asarray(a) for a in inputs]
    results = []
    for change in (np.array, twisted):
        node = op(**attributes)
        node.recorded, node.saved = True, None
        node.needs = [a is not None and a.dtype.kind == "f" for a in arrays]
        changed = [None if a is None else change(a) for a in arrays]
        y = node.cpu(*changed)
        g = change(np.broadcast_to(np.arange(1.0, y.shape[-1] + 1) if y.ndim else np.array(2.0), y.shape))
        results.append([y, *[d for d in node.cpu_grad(g, y, *changed) if d is not None]])
        stretched = np.broadcast_to(np.array(1.0), y.shape)
        results[-1] += [d for d in node.cpu_grad(stretched, y, *changed) if d is not None]
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)


def test_without_the_jit(tmp_path):
    """NUMBA_DISABLE_JIT=1 runs the same functions as plain Python, with the same results and no warnings."""
    code = """if True:
        import sys, warnings, numpy as np
        warnings.simplefilter("error")
        from test_softmax_loss_norm import OPS, run, tensors
        out = {}
        for op in OPS:
            for dtype in ("float32", "float64"):
                for n, (attributes, inputs) in enumerate(op.samples(np.random.default_rng(0))):
                    floats = [a is not None and np.asarray(a).dtype.kind == "f" for a in inputs]
                    inputs = [np.asarray(a, dtype) if f else a for a, f in zip(inputs, floats)]
                    y = op(**attributes)(*tensors(inputs)).numpy()
                    y, grads = run(op(**attributes), inputs, np.ones(y.shape))
                    for i, a in enumerate([y, *grads]):
                        out[f"{op.__name__}.{dtype}.{n}.{i}"] = a
        np.savez(sys.argv[1], **out)
    """
    files = []
    for jit in ("0", "1"):
        file = tmp_path / f"{jit}.npz"
        here = os.path.dirname(__file__)
        env = {**os.environ, "NUMBA_DISABLE_JIT": jit, "PYTHONPATH": os.pathsep.join([here, os.path.dirname(here)])}
        subprocess.run([sys.executable, "-c", code, str(file)], check=True, env=env)
        files.append(np.load(file))
    assert set(files[0].files) == set(files[1].files)
    for name in files[0].files:
        tolerance = 2e-5 if "float32" in name else 1e-11
        np.testing.assert_allclose(files[0][name], files[1][name], rtol=tolerance, atol=tolerance * 10, err_msg=name)


@pytest.mark.skipif(not device.JIT or device.get_num_threads() < 2, reason="needs two threads")
@pytest.mark.parametrize("op, inputs", [
    (Softmax(), ((512, 300), None)), (Softmax(), ((3000, 60), None)), (Softmax(), ((512, 300), (300,))),
    (LogSoftmax(), ((3000, 60), None)), (LogSoftmax(), ((512, 300), (512, 1))), (LogSumExp(), ((512, 301),)),
    (LayerNorm(), ((1001, 300), (300,), (300,))), (AdditiveScores(), ((19, 20, 33), (19, 21, 33), (33,)))], ids=str)
def test_one_and_two_threads_give_the_same_bits(op, inputs):
    rng = np.random.default_rng(0)
    kinds = [np.float32] * len(inputs)
    if isinstance(op, (Softmax, LogSoftmax)):
        arrays = [rng.normal(size=inputs[0]).astype(np.float32), None if inputs[1] is None else rng.random(inputs[1]) < 0.6]
    else:
        arrays = [rng.normal(size=s).astype(k) for s, k in zip(inputs, kinds, strict=True)]
    same_bits(op, arrays)


@pytest.mark.skipif(not device.JIT or device.get_num_threads() < 2, reason="needs two threads")
def test_same_bits_of_loss_and_dropout():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(512, 300)).astype(np.float32)
    same_bits(CrossEntropy(label_smoothing=0.1), [x, rng.integers(0, 300, 512)])
    same_bits(CrossEntropy(), [rng.normal(size=(4000, 60)).astype(np.float32), rng.integers(0, 60, 4000)])
    same_bits(Dropout(0.3), [np.tile(x, (3, 1)), np.array(5)])


def same_bits(op, arrays):
    results = []
    try:
        for threads in (1, 2):
            device.set_num_threads(threads)
            y = type(op)(**op.attributes())(*tensors(arrays)).numpy()
            y, grads = run(type(op)(**op.attributes()), arrays, np.cos(np.arange(y.size)).reshape(y.shape))
            results.append([y, *grads])
    finally:
        device.set_num_threads(2)
    for a, b in zip(*results, strict=True):
        assert a.tobytes() == b.tobytes()


# ---------------------------------------------------------------------------------------------------------------------
# softmax, log-softmax, log-sum-exp
# ---------------------------------------------------------------------------------------------------------------------
def softmax_loop(x, mask):
    """Row by row, in float64; x and mask are matrices."""
    out = np.zeros(x.shape)
    for i in range(x.shape[0]):
        live = [j for j in range(x.shape[1]) if mask[i, j] and x[i, j] > -INF]
        if live:
            high = max(float(x[i, j]) for j in live)
            powers = {j: math.exp(float(x[i, j]) - high) for j in live}
            for j in live:
                out[i, j] = powers[j] / sum(powers.values())
    return out


@pytest.mark.parametrize("width", [1, 2, 7, 16, 20, 63, 64, 255, 256, 300, 1001])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_softmax_values(width, dtype):
    rng = np.random.default_rng(width)
    x = (rng.normal(size=(5, width)) * 3).astype(dtype)
    x[1] *= 1e4
    x[2] = -INF
    x[3, ::2] = -INF
    mask = rng.random((5, width)) < 0.5
    mask[0] = False
    tolerance = 3e-6 if dtype == np.float32 else 1e-13
    for m in (None, mask):
        expected = softmax_loop(x, np.ones(x.shape, bool) if m is None else m)
        inputs = [Tensor(x)] + ([] if m is None else [Tensor(m)])
        y = Softmax()(*inputs).numpy()
        np.testing.assert_allclose(y, expected, rtol=tolerance, atol=1e-37)
        if m is not None:
            assert not y[~m].any()
        with np.errstate(divide="ignore"):
            expected = np.log(expected)
        logs = LogSoftmax()(*inputs).numpy()
        far = expected < -600  # the loop's probability has underflowed, the logarithm is still there
        np.testing.assert_allclose(logs[~far], expected[~far], rtol=tolerance, atol=tolerance * 3)
        if m is not None:
            assert (logs[~m] == -INF).all()
    lse = LogSumExp()(Tensor(x)).numpy()
    assert lse[2] == -INF
    expected = [max(r) + math.log(sum(math.exp(float(v) - float(max(r))) for v in r)) for r in x[[0, 1, 4]]]
    np.testing.assert_allclose(lse[[0, 1, 4]], expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("op", [Softmax, LogSoftmax])
@pytest.mark.parametrize("width", [5, 300])
def test_rows_that_attend_to_nothing(op, width):
    """Fully masked, or -inf throughout: constant output, gradient exactly 0, on every path; the other rows unharmed."""
    x = np.random.default_rng(0).normal(size=(3, width))
    x[2] = -INF
    mask = np.ones((3, width), bool)
    mask[0] = False
    for create_graph in (False, True):
        y, (dx,) = run(op(), [x, mask], np.random.default_rng(1).normal(size=x.shape), create_graph)
        assert (y[[0, 2]] == (0 if op is Softmax else -INF)).all()
        assert not dx[[0, 2]].any()
        assert np.isfinite(dx).all() and dx[1].any()


def test_masked_places_send_nothing():
    rng = np.random.default_rng(0)
    x, mask = rng.normal(size=(2, 3, 4, 5)), rng.random((2, 1, 1, 5)) < 0.6
    everywhere = np.broadcast_to(mask, x.shape)
    for op in (Softmax, LogSoftmax):
        for create_graph in (False, True):
            _, (dx,) = run(op(), [x, mask], rng.normal(size=x.shape), create_graph)
            assert not dx[~everywhere].any()


def test_masks_of_every_shape_are_one_mask():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 3, 4, 5))
    for shape in [(5,), (4, 5), (4, 1), (3, 1, 5), (2, 1, 1, 5), (1, 3, 1, 5), (2, 1, 4, 5), (2, 3, 4, 1), (1,), (),
                  (2, 3, 4, 5)]:
        mask = rng.random(shape) < 0.6
        whole = np.ascontiguousarray(np.broadcast_to(mask, x.shape))
        for axis in (-1, 0, 2):
            np.testing.assert_array_equal(Softmax(axis)(Tensor(x), Tensor(np.array(mask))).numpy(),
                                          Softmax(axis)(Tensor(x), Tensor(whole)).numpy())


@pytest.mark.parametrize("op", [Softmax, LogSoftmax, LogSumExp])
def test_extreme_rows(op):
    """+-1e4 is shifted away, nan stays in its row, inf behaves as in PyTorch, and nothing warns."""
    torch = pytest.importorskip("torch")
    rows = np.array([[1e4, 1e4 - 1, -1e4], [-1e4, -1e4, -1e4 - 2], [0, -INF, 1], [NAN, 0, 1], [0, NAN, -INF], [-NAN, -INF, -INF],
                     [INF, 0, 1]])
    their = {Softmax: torch.softmax, LogSoftmax: torch.log_softmax, LogSumExp: torch.logsumexp}[op]
    for dtype in (np.float32, np.float64):
        x = rows.astype(dtype)
        mine = op()(Tensor(x)).numpy()
        expected = their(torch.tensor(x), -1).numpy()
        np.testing.assert_allclose(mine, expected, rtol=1e-6)
        _, (dx,) = run(op(), [x[:3]], np.ones(mine[:3].shape))
        assert np.isfinite(dx).all()


def test_log_softmax_keeps_what_softmax_loses():
    x = np.array([[0.0, -2000.0], [500.0, -500.0]])
    y, (dx,) = run(LogSoftmax(), [x], np.array([[0.0, 1.0], [0.0, 1.0]]))
    np.testing.assert_array_equal(y, [[0, -2000], [0, -1000]])
    np.testing.assert_array_equal(dx, [[-1, 1], [-1, 1]])  # no division by the underflowed probability


@pytest.mark.parametrize("axis", [0, 1, 2, -1, (0, 1), (0, 2), (2, 0), (0, 1, 2), None])
@pytest.mark.parametrize("keepdims", [False, True])
def test_log_sum_exp_axes(axis, keepdims):
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(0).normal(size=(2, 3, 4))
    t = torch.tensor(x, requires_grad=True)
    expected = torch.logsumexp(t, tuple(range(3)) if axis is None else axis, keepdim=keepdims)
    g = np.random.default_rng(1).normal(size=expected.shape)
    expected.backward(torch.tensor(g))
    for create_graph in (False, True):
        y, (dx,) = run(LogSumExp(axis, keepdims), [x], g, create_graph)
        assert y.shape == tuple(expected.shape)
        np.testing.assert_allclose(y, expected.detach().numpy(), rtol=1e-12)
        np.testing.assert_allclose(dx, t.grad.numpy(), rtol=1e-12)


def test_log_sum_exp_of_nothing():
    for x in (np.full((2, 3), -INF), np.zeros((2, 0))):
        for create_graph in (False, True):
            y, (dx,) = run(LogSumExp(), [x], np.ones(2), create_graph)
            assert (y == -INF).all() and not dx.any()


def test_softmax_errors():
    x = Tensor(np.zeros((2, 3)))
    with pytest.raises(ShapeError, match=r"softmax.*\(2, 4\).*\(2, 3\)"):
        Softmax()(x, Tensor(np.ones((2, 4), bool)))
    with pytest.raises(ShapeError, match=r"log_softmax.*\(5, 2, 3\).*\(2, 3\)"):
        LogSoftmax(0)(x, Tensor(np.ones((5, 2, 3), bool)))
    with pytest.raises(TypeError, match="softmax.*boolean.*int64"):
        Softmax()(x, Tensor(np.ones((2, 3), np.int64)))
    with pytest.raises(ValueError, match=r"softmax.*axis 2.*\(2, 3\)"):
        Softmax(2)(x)
    with pytest.raises(TypeError, match="softmax.*int64"):
        Softmax()(Tensor(np.arange(3)))
    with pytest.raises(ValueError, match=r"log_sum_exp.*twice"):
        LogSumExp((0, -2))(x)


# ---------------------------------------------------------------------------------------------------------------------
# cross-entropy
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("ignore", [-100, 2])
@pytest.mark.parametrize("shape, classes", [((6,), 5), ((2, 3), 300), ((4,), 1), ((), 4), ((0,), 3)])
def test_cross_entropy_is_pytorchs(reduction, smoothing, ignore, shape, classes):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    x, t = rng.normal(size=(*shape, classes)) * 3, rng.integers(0, classes, shape)
    if t.size > 1:
        t.flat[1] = ignore
    a = torch.tensor(x, requires_grad=True)
    n = int(np.prod(shape))
    y = torch.nn.functional.cross_entropy(a.reshape(n, classes), torch.tensor(t).reshape(n), ignore_index=ignore,
                                          label_smoothing=smoothing, reduction=reduction)
    g = rng.normal(size=shape if reduction == "none" else ())
    y.reshape(g.shape).backward(torch.tensor(g))
    options = {"ignore_index": ignore, "label_smoothing": smoothing, "reduction": reduction}
    empty = reduction == "mean" and not (t != ignore).any()  # PyTorch gives nan there, we give 0
    for mode in ("auto", "never"):
        with fused(mode):
            value, (dx,) = run(CrossEntropy(**options), [x, t], g)
        np.testing.assert_allclose(value, 0 if empty else y.detach().numpy().reshape(g.shape), rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(dx, 0 if empty else a.grad.numpy(), rtol=1e-10, atol=1e-12)


def test_cross_entropy_with_nothing_to_predict():
    for reduction in ("mean", "sum", "none"):
        g = np.ones(3) if reduction == "none" else 1.0
        value, (dx,) = run(CrossEntropy(reduction=reduction), [np.ones((3, 4)), np.full(3, -100)], g)
        assert not value.any() and not dx.any()


def test_ignored_rows_may_hold_anything():
    """The branch that is not taken poisons neither the loss nor the gradient."""
    x = np.array([[NAN, INF, 0.0], [1.0, 2.0, 3.0]])
    for mode in ("auto", "never"):
        with fused(mode):
            value, (dx,) = run(CrossEntropy(label_smoothing=0.1), [x, np.array([-100, 1])], 1.0)
        assert np.isfinite(value) and not dx[0].any() and np.isfinite(dx[1]).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("classes", [3, 300])
def test_cross_entropy_of_rows_that_are_not_finite(classes, dtype):
    """Short rows and long ones are computed in different ways: what infinite logits give is one thing."""
    x = np.zeros((6, classes), dtype)
    x[1, 1], x[2, 1], x[3, 1], x[4], x[5, 0] = INF, INF, NAN, -INF, -INF
    loss = CrossEntropy(reduction="none")(Tensor(x), Tensor(np.array([0, 0, 1, 0, 0, 1]))).numpy()
    np.testing.assert_allclose(loss[[0, 5]], np.log([classes, classes - 1]), rtol=1e-6)
    assert loss[1] == INF and np.isnan(loss[2:5]).all()  # inf - inf, where the target is itself infinite


def test_cross_entropy_does_not_depend_on_batching():
    rng = np.random.default_rng(0)
    x, t = rng.normal(size=(8, 5)), rng.integers(0, 5, 8)
    t[[1, 2, 6]] = -100
    padded = CrossEntropy()(Tensor(x), Tensor(t)).item()
    alone = CrossEntropy()(Tensor(x[t >= 0]), Tensor(t[t >= 0])).item()
    assert padded == pytest.approx(alone, rel=1e-14)


@pytest.mark.compiled
def test_cross_entropy_large_vocabulary_and_logits():
    rng = np.random.default_rng(0)
    x, t = rng.normal(size=(6, 50_000)).astype(np.float32), rng.integers(0, 50_000, 6)
    x[1] += 1e4
    x[2, 7] = 1e4
    value, (dx,) = run(CrossEntropy(reduction="none"), [x, t], np.ones(6))
    wide = x.astype(np.float64)
    gold = np.log(np.exp(wide - wide.max(1, keepdims=True)).sum(1)) + wide.max(1) - wide[np.arange(6), t]
    np.testing.assert_allclose(value, gold, rtol=2e-6)
    p = np.exp(wide - wide.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    p[np.arange(6), t] -= 1
    np.testing.assert_allclose(dx, p, rtol=3e-6, atol=1e-12)


def test_cross_entropy_errors():
    x = Tensor(np.zeros((2, 3, 4)))
    with pytest.raises(IndexError, match=r"cross_entropy: target 4 at \(1, 2\).*V = 4"):
        CrossEntropy()(x, Tensor(np.array([[0, 1, 2], [0, -100, 4]])))
    with pytest.raises(IndexError, match=r"target -1 at \(0, 0\)"):
        CrossEntropy()(x, Tensor(np.array([[-1, 1, 2], [0, 1, 3]])))
    with pytest.raises(ShapeError, match=r"cross_entropy.*\(2, 3, 4\).*\(2, 3\).*\(6,\)"):
        CrossEntropy()(x, Tensor(np.zeros(6, np.int64)))
    with pytest.raises(TypeError, match="whole numbers.*float"):
        CrossEntropy()(x, Tensor(np.zeros((2, 3))))
    with pytest.raises(ValueError, match="reduction"):
        CrossEntropy(reduction="average")
    with pytest.raises(ValueError, match="label_smoothing"):
        CrossEntropy(label_smoothing=1.5)
    assert CrossEntropy()(x, Tensor(np.zeros((2, 3), np.int32))).item() == pytest.approx(math.log(4))


# ---------------------------------------------------------------------------------------------------------------------
# layer norm
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("shape", [(4, 7), (2, 3, 64), (5,), (3, 1), (0, 4), (100, 33)])
@pytest.mark.parametrize("with_weight, with_bias", [(True, True), (True, False), (False, True), (False, False)])
def test_layer_norm_is_pytorchs(shape, with_weight, with_bias):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    n = shape[-1]
    weight, bias = (rng.normal(size=n) if given else None for given in (with_weight, with_bias))
    arrays = [rng.normal(size=shape) * 2 + 5, weight, bias]
    g = rng.normal(size=shape)
    a = [None if v is None else torch.tensor(v, requires_grad=True) for v in arrays]
    y = torch.nn.functional.layer_norm(a[0], (n,), a[1], a[2], eps=1e-3)
    y.backward(torch.tensor(g))
    expected = [v.grad.numpy() for v in a if v is not None]
    for mode in ("auto", "never"):
        with fused(mode):
            value, grads = run(LayerNorm(eps=1e-3), arrays, g)
        np.testing.assert_allclose(value, y.detach().numpy(), rtol=1e-10, atol=1e-10)
        for mine, theirs in zip(grads, expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-10, atol=1e-10)


def test_layer_norm_errors():
    x = Tensor(np.zeros((2, 3)))
    with pytest.raises(ShapeError, match=r"layer_norm.*\(2, 3\).*weight.*\(3,\).*\(2,\)"):
        LayerNorm()(x, Tensor(np.ones(2)))
    with pytest.raises(TypeError, match="layer_norm.*float64.*bias.*float32"):
        LayerNorm()(x, None, Tensor(np.ones(3, np.float32)))


# ---------------------------------------------------------------------------------------------------------------------
# dropout
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.compiled
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_statistics(p):
    """The share that is kept, its independence of neighbours, of the bit position and of the next seed, within 5 sigma."""
    n = 200_000
    x = Tensor(np.ones(n, np.float32))
    kept = [Dropout(p)(x, Tensor(np.array(seed))).numpy() != 0 for seed in (0, 1)]
    sigma = math.sqrt(p * (1 - p) / n)
    for k in kept:
        assert abs(k.mean() - (1 - p)) < 5 * sigma
    both = (1 - p) ** 2
    spread = 5 * math.sqrt(both * (1 - both) / n)
    assert abs((kept[0] & kept[1]).mean() - both) < spread
    for lag in (1, 2, 16, 64, 4096):
        assert abs((kept[0][lag:] & kept[0][:-lag]).mean() - both) < spread * 1.2
    for bit in range(12):
        side = (np.arange(n) >> bit) & 1 == 1
        assert abs(kept[0][side].mean() - (1 - p)) < 5 * sigma * 1.5


def test_dropout_is_inverted_and_repeats():
    x = np.random.default_rng(0).normal(size=(7, 9)) + 10
    seed = np.array(11)
    y, (dx,) = run(Dropout(0.25), [x, seed], np.ones(x.shape))
    again, (rule,) = run(Dropout(0.25), [x, seed], np.ones(x.shape), create_graph=True)
    kept = y != 0
    assert 0 < kept.sum() < kept.size
    np.testing.assert_array_equal(y, again)
    np.testing.assert_allclose(y[kept], x[kept] / 0.75, rtol=1e-15)
    np.testing.assert_array_equal(dx, np.where(kept, 1 / 0.75, 0))
    np.testing.assert_array_equal(dx, rule)
    assert (Dropout(0.25)(Tensor(x), Tensor(np.array(12))).numpy() != y).any()
    np.testing.assert_array_equal(Dropout(0.0)(Tensor(x), Tensor(seed)).numpy(), x)
    assert not Dropout(1.0)(Tensor(x), Tensor(seed)).numpy().any()
    assert not Dropout(0.25)(Tensor(np.where(kept, 0, INF)), Tensor(seed)).numpy().any()  # what is dropped may be anything
    narrow = Dropout(0.25)(Tensor(x.astype(np.float32)), Tensor(seed)).numpy()
    np.testing.assert_array_equal(narrow != 0, kept)
    for big in (-1, 2**63 - 1):
        Dropout(0.25)(Tensor(x), Tensor(np.array(big)))


def test_dropout_numbers_stay_what_they_are():
    """The draw is part of the file format of a run: resuming must give the same numbers in ten years."""
    kept = Dropout(0.5)(Tensor(np.ones(32)), Tensor(np.array(2024))).numpy() != 0
    assert "".join("01"[int(k)] for k in kept) == DRAWN
    with pytest.raises(ValueError, match="dropout.*1.5"):
        Dropout(1.5)
    with pytest.raises(TypeError, match="dropout.*seed"):
        Dropout(0.5)(Tensor(np.ones(3)), Tensor(np.ones(1)))


DRAWN = "01010011001001010100010110101011"


# ---------------------------------------------------------------------------------------------------------------------
# twins, float32 accuracy, memory
# ---------------------------------------------------------------------------------------------------------------------
def assert_as_accurate(op, inputs, g):
    """float32: the fused error against float64 is at most 3 times the twin's error, plus 4 ulp of the largest value. (A weight
    below the smallest normal number, 1e-38, is 0 in a fused loop: so what is no larger than a hundred of them may be.)"""
    narrow = [a.astype(np.float32) if a is not None and a.dtype.kind == "f" else a for a in inputs]
    g = g.astype(np.float32)

    def both(arrays, mode):
        with fused(mode):
            y, grads = run(type(op)(**op.attributes()), arrays, g.astype(arrays[0].dtype))
        return [y, *grads]

    gold = both([a.astype(np.float64) if a is not None and a.dtype == np.float32 else a for a in narrow], "never")
    for mine, twin, true in zip(both(narrow, "force"), both(narrow, "never"), gold, strict=True):
        assert mine.dtype == np.float32
        if true.size:
            allowed = 3 * np.abs(twin - true).max() + 4 * np.spacing(np.float32(np.abs(true).max()))
            allowed += 100 * float(np.finfo(np.float32).tiny)
            assert np.abs(mine - true).max() <= allowed


@pytest.mark.compiled
@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
@pytest.mark.parametrize("shape", [(1, 1), (7, 33), (3, 5, 64), (20, 1000)])
def test_float32_is_as_accurate_as_the_twin(shape, scale):
    rng = np.random.default_rng(0)
    x, n = rng.normal(size=shape) * scale, shape[-1]
    for reduction in ("mean", "none"):
        g = rng.normal(size=shape[:-1] if reduction == "none" else ())
        op = CrossEntropy(reduction=reduction, label_smoothing=0.1)
        assert_as_accurate(op, [x, rng.integers(0, n, shape[:-1])], np.asarray(g))
    if n > 1:
        assert_as_accurate(LayerNorm(), [x, rng.normal(size=n), rng.normal(size=n)], rng.normal(size=shape))


@pytest.mark.compiled
def test_loss_keeps_no_probabilities():
    x, t = Tensor(np.zeros((200, 5000), np.float32), requires_grad=True), Tensor(np.zeros(200, np.int64))
    CrossEntropy()(x, t)
    tracemalloc.start()
    loss = CrossEntropy()(x, t)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert loss.requires_grad and peak < x.size * 4 / 50


@kernel
def _apply_functions(x, low, exps, exps_below, logs):
    for i in range(len(x)):
        exps[i], exps_below[i], logs[i] = exp(x[i]), exp_below(low[i]), log(abs(x[i]))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_functions_of_kernels(dtype):
    """Against NumPy in float64: within 1.5 units in the last place, down to where `exp_below` says 0."""
    x = np.concatenate([np.linspace(-87, 88, 3001), np.linspace(-0.01, 0.01, 101), np.geomspace(1e-37, 1e37, 101)]).astype(dtype)
    x = x[x < 88]
    out = [np.empty_like(x) for _ in range(3)]
    _apply_functions(x, -abs(x[::-1].copy()), *out)
    with np.errstate(all="ignore"):
        wanted = np.exp(x.astype(float)), np.exp(-abs(x[::-1].astype(float))), np.log(abs(x.astype(float)))
    for mine, true in zip(out, wanted, strict=True):
        near = np.isfinite(true) & (true != 0)
        np.testing.assert_allclose(mine[near], true[near], rtol=1.5 * np.finfo(dtype).eps, atol=1e-38)
    x = np.array([-INF, -200.0, 0.0, INF, NAN], dtype)
    out = [np.empty_like(x) for _ in range(3)]
    _apply_functions(x, np.array([-INF, -2000.0, 0.0, -2000.0, NAN], dtype), *out)
    np.testing.assert_allclose(out[0], [0, np.exp(dtype(-200)), 1, INF, NAN], rtol=1e-6)
    np.testing.assert_array_equal(out[1], [0, 0, 1, 0, NAN])
    np.testing.assert_allclose(out[2], [INF, np.log(200), -INF, INF, NAN], rtol=1e-6)
    subnormal, negative = np.finfo(dtype).smallest_subnormal * np.ones(1, dtype), -np.ones(1, dtype)
    _apply_functions(subnormal, negative, *(o[:1] for o in out))
    np.testing.assert_allclose(out[2][0], math.log(float(subnormal[0])), rtol=1e-6)


def test_every_op_here_is_registered():
    for op in OPS:
        assert Op.registry[op.name] is op
