"""Feature-wise attention and multi-dimensional scores: against loops, PyTorch and the readable twin; both ways to
compute each; masks, strange values, memory."""
import math
import os
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from test_softmax_loss_norm import assert_as_accurate, run, same_bits

from tinyattn import device
from tinyattn.autograd import fused, grad
from tinyattn.gradcheck import gradcheck, gradgradcheck
from tinyattn.ops import featurewise
from tinyattn.ops.additive import AdditiveScores
from tinyattn.ops.additive_2d import Additive2d
from tinyattn.ops.broadcast import ShapeError
from tinyattn.ops.featurewise import FeaturewiseAttention, featurewise_weights
from tinyattn.tensor import Tensor

SHAPES = [(2, 1, 3, 4), (1, 1, 1, 1), (2, 4, 1, 7), (3, 5, 7, 33), (2, 6, 9, 64), (1, 7, 5, 130),
          (0, 4, 3, 2), (2, 0, 3, 4), (2, 4, 0, 3), (2, 4, 3, 0)]
M = 3


def arrays(B, T, S, D, scale=1.0, seed=0):
    """q, k, v and an incoming gradient."""
    rng = np.random.default_rng(seed)
    q, k = rng.normal(size=(B, T, D)) * scale, rng.normal(size=(B, S, D)) * scale
    return [q, k, rng.normal(size=(B, S, D))], rng.normal(size=(B, T, D))


def scores_arrays(B, T, S, D, scale=1.0, M=M, seed=0):
    """q, k, w and an incoming gradient."""
    rng = np.random.default_rng(seed)
    q, k = rng.normal(size=(B, T, D)) * scale, rng.normal(size=(B, S, D)) * scale
    return [q, k, rng.normal(size=(M, D))], rng.normal(size=(B, M, T, S))


def masks(B, T, S, seed=0):
    """name -> mask of every form; a row of the last one, and one batch element of the first, may attend to nothing."""
    rng = np.random.default_rng(seed)
    keys = rng.random((B, 1, S)) < 0.7
    keys[-1] = False
    some = rng.random((B, T, S)) < 0.5
    some[0, T // 2] = False
    places = np.arange(S) - np.arange(T)[:, None]
    return {"keys": keys, "forward": places < 0, "backward": places > 0, "diagonal": places != 0, "some": some}


def attention_loops(q, k, v, g, mask=None, c=5.0):
    """Output and gradients, one number at a time."""
    (B, T, D), S = q.shape, k.shape[1]
    mask = np.ones((B, T, S), bool) if mask is None else np.broadcast_to(mask, (B, T, S))
    out, dq, dk, dv = np.zeros(q.shape), np.zeros(q.shape), np.zeros(k.shape), np.zeros(v.shape)
    for b, t, d in np.ndindex(B, T, D):
        y = {s: math.tanh((q[b, t, d] + k[b, s, d]) / c) for s in range(S) if mask[b, t, s]}
        if not y:
            continue
        high = max(y.values())
        powers = {s: math.exp(c * (y[s] - high)) for s in y}
        weights = {s: powers[s] / sum(powers.values()) for s in y}
        out[b, t, d] = sum(weights[s] * v[b, s, d] for s in y)
        slope = sum(weights[s] * g[b, t, d] * v[b, s, d] for s in y)
        for s in y:
            dv[b, s, d] += weights[s] * g[b, t, d]
            df = weights[s] * (g[b, t, d] * v[b, s, d] - slope)
            dq[b, t, d] += df * (1 - y[s] ** 2)
            dk[b, s, d] += df * (1 - y[s] ** 2)
    return out, dq, dk, dv


def scores_loops(q, k, w, g):
    """Scores and gradients, one number at a time."""
    e, dq, dk, dw = np.zeros(g.shape), np.zeros(q.shape), np.zeros(k.shape), np.zeros(w.shape)
    for b, t, s, d in np.ndindex(q.shape[0], q.shape[1], k.shape[1], q.shape[2]):
        y = math.tanh(q[b, t, d] + k[b, s, d])
        for m in range(len(w)):
            e[b, m, t, s] += w[m, d] * y
            dq[b, t, d] += g[b, m, t, s] * w[m, d] * (1 - y * y)
            dk[b, s, d] += g[b, m, t, s] * w[m, d] * (1 - y * y)
            dw[m, d] += g[b, m, t, s] * y
    return e, dq, dk, dw


def same(found, expected, rtol=1e-11, atol=1e-12):
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)


# ---------------------------------------------------------------------------------------------------------------------
# against loops and PyTorch
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("shape", SHAPES)
def test_attention_is_the_loops(shape):
    inputs, g = arrays(*shape)
    for mode in ("force", "never"):
        with fused(mode):
            y, grads = run(FeaturewiseAttention(), inputs, g)
        same([y, *grads], attention_loops(*inputs, g))


@pytest.mark.parametrize("shape", SHAPES)
def test_scores_are_the_loops(shape):
    inputs, g = scores_arrays(*shape)
    for mode in ("force", "never"):
        with fused(mode):
            e, grads = run(Additive2d(), inputs, g)
        same([e, *grads], scores_loops(*inputs, g))


def test_attention_by_hand():
    """One query 0, keys 0 and a large one: f = 0 and c, so the weights are 1 : e^c, for each feature by itself."""
    q, k = np.zeros((1, 1, 2)), np.array([[[0.0, 1e4], [1e4, 0.0]]])
    v = np.array([[[1.0, 10.0], [2.0, 20.0]]])
    for c in (0.5, 5.0, 30.0):
        large, small = 1 / (1 + math.exp(-c)), 1 / (1 + math.exp(c))
        out = FeaturewiseAttention(c)(Tensor(q), Tensor(k), Tensor(v)).numpy()
        np.testing.assert_allclose(out[0, 0], [small + 2 * large, 10 * large + 20 * small], rtol=1e-12)


@pytest.mark.parametrize("name", ["keys", "forward", "backward", "diagonal", "some"])
@pytest.mark.parametrize("c", [5.0, 50.0])
def test_attention_under_masks(name, c):
    """Empty rows give 0 and send none; the two ways to compute it (c = 50 takes the plain loop)."""
    inputs, g = arrays(2, 5, 5, 19)
    mask = masks(2, 5, 5)[name]
    y, grads = run(FeaturewiseAttention(c), [*inputs, mask], g)
    same([y, *grads], attention_loops(*inputs, g, mask, c))
    seen = np.broadcast_to(mask, (2, 5, 5))
    assert (y[~seen.any(2)] == 0).all() and (grads[0][~seen.any(2)] == 0).all()
    for d in grads[1:]:
        assert (d[~seen.any(1)] == 0).all()


def test_a_key_that_nobody_may_see_has_no_influence():
    inputs, g = arrays(1, 4, 3, 5)
    mask = np.array([True, False, True])
    before = run(FeaturewiseAttention(), [*inputs, mask], g)
    inputs[1][:, 1], inputs[2][:, 1] = 1e4, -1e4
    after = run(FeaturewiseAttention(), [*inputs, mask], g)
    same([after[0], *after[1]], [before[0], *before[1]])


def test_a_query_with_one_key_copies_its_value():
    """To the last digit, and without a gradient at q and k: a directional mask leaves some words one key."""
    inputs, g = arrays(2, 6, 6, 40)
    for dtype in (np.float32, np.float64):
        for scale in (1.0, 1e4):
            few = [(inputs[0] * scale).astype(dtype), *[a.astype(dtype) for a in inputs[1:]]]
            y, grads = run(FeaturewiseAttention(), [*few, np.eye(6, k=1, dtype=bool)], g)
            np.testing.assert_array_equal(y[:, :-1], few[2][:, 1:])
            assert (grads[0] == 0).all() and (grads[1] == 0).all()


@pytest.mark.parametrize("shape", [(3, 5, 7, 33), (2, 20, 20, 64)])
def test_is_pytorchs(shape):
    torch = pytest.importorskip("torch")
    inputs, g = arrays(*shape)
    q, k, v = (torch.tensor(a, requires_grad=True) for a in inputs)
    f = 5 * torch.tanh((q[:, :, None] + k[:, None]) / 5)
    expected = (torch.softmax(f, 2) * v[:, None]).sum(2)
    expected.backward(torch.tensor(g))
    y, grads = run(FeaturewiseAttention(), inputs, g)
    same([y, *grads], [t.numpy() for t in (expected.detach(), q.grad, k.grad, v.grad)], 1e-10, 1e-10)

    inputs, g = scores_arrays(*shape, M=8)
    q, k, w = (torch.tensor(a, requires_grad=True) for a in inputs)
    expected = torch.einsum("btsd,md->bmts", torch.tanh(q[:, :, None] + k[:, None]), w)
    expected.backward(torch.tensor(g))
    e, grads = run(Additive2d(), inputs, g)
    same([e, *grads], [t.numpy() for t in (expected.detach(), q.grad, k.grad, w.grad)], 1e-10, 1e-10)


def test_one_score_is_additive_scores():
    (q, k, w), g = scores_arrays(2, 6, 9, 33, M=1)
    e, (dq, dk, dw) = run(Additive2d(), [q, k, w], g)
    f, (dq1, dk1, dv1) = run(AdditiveScores(), [q, k, w[0]], g[:, 0])
    same([e[:, 0], dq, dk, dw[0]], [f, dq1, dk1, dv1])


@pytest.mark.parametrize("M", [1, 8, 70])
def test_any_number_of_scores(M):
    inputs, g = scores_arrays(2, 5, 30, 17, M=M)
    e, grads = run(Additive2d(), inputs, g)
    w, y = inputs[2], np.tanh(inputs[0][:, :, None] + inputs[1][:, None])
    h = np.einsum("bmts,md->btsd", g, w) * (1 - y * y)
    same([e, *grads], [np.einsum("btsd,md->bmts", y, w), h.sum(2), h.sum(1), np.einsum("bmts,btsd->md", g, y)])


# ---------------------------------------------------------------------------------------------------------------------
# derivatives by differences; the second ones go through the twin
# ---------------------------------------------------------------------------------------------------------------------
def test_gradients_by_differences():
    """Also with one Tensor in all three slots, in both orders."""
    (q, k, v), _ = arrays(1, 3, 4, 3)
    mask = np.array([[True, False, True, True], [False] * 4, [True] * 4])

    def attention(q, k, v):
        return FeaturewiseAttention(2.0)(q, k, v, Tensor(mask))

    def alone(x):
        return FeaturewiseAttention()(x, x, x, Tensor(~np.eye(4, dtype=bool)))

    def scores(q, w):
        return Additive2d()(q, q, w)

    for function, inputs in [(attention, (q, k, v)), (alone, (k,)), (scores, (k, v[0]))]:
        assert gradcheck(function, inputs).ok and gradgradcheck(function, inputs).ok


@pytest.mark.parametrize("make", [arrays, scores_arrays])
def test_only_what_is_needed(make):
    op = FeaturewiseAttention if make is arrays else Additive2d
    inputs, g = make(2, 4, 3, 5)
    whole = run(op(), inputs, g)[1]
    for needs in [(True, False, False), (False, True, False), (False, False, True), (True, False, True)]:
        ts = [Tensor(a, requires_grad=n) for a, n in zip(inputs, needs, strict=True)]
        found = grad([op()(*ts)], [t for t in ts if t.requires_grad], [Tensor(g)])
        for mine, expected in zip(found, [w for w, n in zip(whole, needs, strict=True) if n], strict=True):
            np.testing.assert_array_equal(mine.numpy(), expected)


# ---------------------------------------------------------------------------------------------------------------------
# accuracy and strange values
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("shape", [(2, 1, 3, 4), (3, 5, 7, 33), (2, 20, 20, 64), (1, 4, 1, 1)])
@pytest.mark.parametrize("scale", [1e-3, 0.1, 1.0, 4.0, 30.0, 1e4])
def test_float32_is_as_accurate_as_the_twin(shape, scale):
    """From the linear range of tanh to far beyond where the fast loops have to give way."""
    inputs, g = arrays(*shape, scale=scale)
    for c in (1.0, 5.0, 20.0, 100.0):
        assert_as_accurate(FeaturewiseAttention(c), inputs, g)
    assert_as_accurate(Additive2d(), *scores_arrays(*shape, scale=scale))


def test_float32_when_large_parts_cancel():
    """q + k near 0 while each is not."""
    (q, k, v), g = arrays(2, 6, 20, 64)
    narrow = [a.astype(np.float32) for a in (q + 7, k - 7, v)]
    assert_as_accurate(FeaturewiseAttention(), narrow, g)
    (q, k, w), g = scores_arrays(2, 6, 20, 64)
    narrow = [a.astype(np.float32) for a in (q + 7, k - 7, w)]
    e, grads = run(Additive2d(), narrow, g)
    expected = scores_loops(*[a.astype(np.float64) for a in narrow], g.astype(np.float32))
    for a, b in zip([e, *grads], expected, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5 * np.abs(b).max())


@pytest.mark.parametrize("c", [1e-3, 0.1, 1.0, 19.9, 20.1, 45.0, 300.0, 1e5])
def test_any_bound(c):
    """c small: scores of +-c, nearly equal weights. c large: tanh is nearly straight, and e^c is beyond float64."""
    inputs, g = arrays(1, 4, 5, 6, scale=3.0)
    y, grads = run(FeaturewiseAttention(c), inputs, g)
    same([y, *grads], attention_loops(*inputs, g, c=c), 1e-9, 1e-11)
    narrow = [a.astype(np.float32) for a in inputs]
    y, grads = run(FeaturewiseAttention(c), narrow, g)
    assert all(np.isfinite(a).all() for a in [y, *grads])
    np.testing.assert_allclose(y, attention_loops(*inputs, g, c=c)[0], atol=1e-6 * max(c, 3.0))


def test_plain_loop_and_fractions_agree():
    """Two ways to compute the same. A query of 1e4 in another feature of the stretch sends all to the plain loop."""
    inputs, g = arrays(2, 6, 5, 40)
    far = np.copy(inputs[0])
    far[:, 0, 39] = 1e4
    fast, plain = (run(FeaturewiseAttention(), [q, *inputs[1:]], g) for q in (inputs[0], far))
    for a, b in zip([fast[0], *fast[1]], [plain[0], *plain[1]], strict=True):
        np.testing.assert_allclose(a[..., :39], b[..., :39], rtol=1e-12, atol=1e-13)
        assert not np.array_equal(a[..., :39], b[..., :39])
    (q, k, w), g = scores_arrays(1, 6, 5, 40)
    w[:, 39], far = 0, np.copy(q)
    far[:, 0, 39] = 1e4
    fast, plain = (run(Additive2d(), [a, k, w], g) for a in (q, far))
    same([fast[0], *fast[1][:2]], [plain[0], *plain[1][:2]], 1e-12, 1e-13)
    assert not np.array_equal(fast[0], plain[0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30, -1e30])
def test_strange_values_stay_where_they_are(dtype, value):
    """As in the twin: nan reaches its own query (from a key, all queries) in its own feature; infinities saturate."""
    for make, op in ((arrays, FeaturewiseAttention), (scores_arrays, Additive2d)):
        for slot in (0, 1, 2) if op is FeaturewiseAttention else (0, 1):
            inputs, g = make(1, 5, 4, 3)
            inputs = [a.astype(dtype) for a in inputs]
            inputs[slot][0, 1, 2] = value
            results = []
            for mode in ("force", "never"):
                with fused(mode), np.errstate(all="ignore"):
                    results.append(run(op(), inputs, g))
            np.testing.assert_allclose(results[0][0], results[1][0], rtol=1e-4, atol=1e-5)
            if np.isfinite(value):
                for mine, twin in zip(results[0][1], results[1][1], strict=True):
                    np.testing.assert_allclose(mine, twin, rtol=1e-4, atol=1e-5 * max(1, np.abs(twin).max()))
            elif slot < 2 and not np.isnan(value):
                assert all(np.isfinite(d).all() for d in results[0][1])


@pytest.mark.parametrize("bits", [np.array([0x7FC00155], np.uint32), np.array([0x7FF8000000000555], np.uint64)])
def test_a_nan_of_any_bits_stays_one(bits):
    """A nan whose last bits are not 0, at a key, would come out of `power` as a number."""
    nan = bits.view(np.float32 if bits.dtype == np.uint32 else np.float64)
    (q, k, v), _ = arrays(1, 5, 4, 3)
    q, k, v = (a.astype(nan.dtype) for a in (q, k, v))
    k[0, 1, 2:] = nan
    out = FeaturewiseAttention()(*map(Tensor, (q, k, v))).numpy()
    assert np.isnan(out[..., 2]).all() and np.isfinite(out[..., :2]).all()


def test_all_keys_minus_infinity():
    """Every tanh is -1: equal weights."""
    (q, k, v), _ = arrays(1, 5, 4, 3)
    k[:] = -np.inf
    out = FeaturewiseAttention()(*map(Tensor, (q, k, v))).numpy()
    np.testing.assert_allclose(out, np.broadcast_to(v.mean(1, keepdims=True), out.shape))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_power(dtype):
    """2^y, alone: within 2 units in the last place, and exact at whole numbers."""
    y = np.concatenate([np.linspace(-40, 40, 4001), np.linspace(-1, 1, 4001)]).astype(dtype)
    wide = y.astype(np.longdouble)
    power = featurewise.power32 if dtype is np.float32 else featurewise.power64
    off = np.array([power(v) for v in y]) / np.exp2(wide) - 1
    assert np.abs(off).max() < 2 * np.finfo(dtype).eps
    assert all(power(dtype(n)) == 2.0 ** n for n in range(-100, 100))


# ---------------------------------------------------------------------------------------------------------------------
# weights, threads, memory, errors
# ---------------------------------------------------------------------------------------------------------------------
def test_weights_for_pictures():
    (q, k, v), _ = arrays(2, 4, 5, 3)
    mask = masks(2, 4, 5)["some"]
    ts = [Tensor(a, requires_grad=True) for a in (q, k)]
    weights = featurewise_weights(*ts, Tensor(mask), 3.0)
    assert weights.shape == (2, 3, 4, 5) and not weights.requires_grad
    p = weights.numpy()
    assert (p[~np.broadcast_to(mask[:, None], p.shape)] == 0).all()
    np.testing.assert_allclose(p.sum(-1), np.broadcast_to(mask.any(-1)[:, None], p.shape[:3]), rtol=1e-12)
    out = FeaturewiseAttention(3.0)(Tensor(q), Tensor(k), Tensor(v), Tensor(mask)).numpy()
    np.testing.assert_allclose(np.einsum("bdts,bsd->btd", p, v), out, rtol=1e-12, atol=1e-14)
    assert featurewise_weights(*ts).shape == (2, 3, 4, 5)


def test_views_and_read_only_masks():
    """Inputs and masks that are not contiguous; a mask that stretches along the keys."""
    inputs, g = arrays(2, 4, 5, 6)
    mask = masks(2, 4, 5)["some"]
    expected = run(FeaturewiseAttention(), [*inputs, mask], g)
    turned = [np.asfortranarray(a) for a in inputs]
    found = run(FeaturewiseAttention(), [*turned, np.asfortranarray(mask)], np.asfortranarray(g))
    same([found[0], *found[1]], [expected[0], *expected[1]], 0, 0)
    rows = mask[:, :, :1]
    found = run(FeaturewiseAttention(), [*inputs, rows], g)
    same([found[0], *found[1]], attention_loops(*inputs, g, rows))


@pytest.mark.skipif(not device.JIT or device.get_num_threads() < 2, reason="needs two threads")
@pytest.mark.parametrize("shape", [(1, 40, 40, 130), (33, 5, 9, 100), (32, 1, 200, 64)])
def test_one_and_two_threads_give_the_same_bits(shape):
    inputs, _ = arrays(*shape)
    inputs = [a.astype(np.float32) for a in inputs]
    same_bits(FeaturewiseAttention(), inputs)
    same_bits(Additive2d(), [a.astype(np.float32) for a in scores_arrays(*shape)[0]])


@pytest.mark.parametrize("make", [arrays, scores_arrays])
def test_memory(make):
    """Beyond inputs, outputs and gradients a thread takes O((T + S) D), and nobody B T S D as the twin does."""
    op = FeaturewiseAttention if make is arrays else Additive2d
    B, T, S, D = 4, 64, 64, 128
    inputs, g = make(B, T, S, D)
    inputs, g = [a.astype(np.float32) for a in inputs], Tensor(g.astype(np.float32))
    threads, peaks = device.get_num_threads(), []
    device.set_num_threads(1)
    try:
        run(op(), inputs, g.numpy())
        for mode in ("auto", "never"):
            ts = [Tensor(a, requires_grad=True) for a in inputs]
            tracemalloc.start()
            with fused(mode):
                y = op()(*ts)
                grad([y], ts, [g])
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
    finally:
        device.set_num_threads(threads)
    named = 4 * (y.size * (2 if make is arrays else 1) + sum(t.size for t in ts))  # twice: `scale`
    assert peaks[0] - named < 4 * 8 * (T + S) * D
    assert peaks[0] < 4 * B * T * S * D / 5 < 4 * B * T * S * D < peaks[1]


@pytest.mark.skipif(sys.platform != "linux" or not device.JIT, reason="reads the peak of the process, as Linux counts")
def test_memory_of_the_process():
    """Whoever allocates it, and with all threads: the peak of a process that runs each with B T S D = 256 MB."""
    code = """if True:
        import resource, numpy as np
        from tinyattn.ops.additive_2d import Additive2d
        from tinyattn.ops.featurewise import FeaturewiseAttention
        def go(B, T, S, D):
            q, k, v, w = (np.ones(s, np.float32) * 0.1 for s in ((B, T, D), (B, S, D), (B, S, D), (2, D)))
            for op, inputs in ((FeaturewiseAttention(), (q, k, v, None)), (Additive2d(), (q, k, w))):
                op.recorded, op.needs = True, (True, True, True, False)[:len(inputs)]
                y = op.cpu(*inputs)
                op.cpu_grad(np.ones_like(y), y, *inputs)
        go(2, 4, 4, 4), go(32, 20, 20, 64)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        go(4, 256, 256, 256)
        print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
    """
    here = os.path.dirname(os.path.dirname(__file__))
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True,
                         env={**os.environ, "PYTHONPATH": here}).stdout
    assert int(out) < 30e6  # inputs, outputs, gradients and scratch are about 15 MB


def test_errors():
    q, k, v, w = (Tensor(np.zeros(s)) for s in ((2, 3, 4), (2, 5, 4), (2, 5, 4), (6, 4)))
    name = "featurewise_attention"
    for bad in [(q, k, q), (q, Tensor(np.zeros((3, 5, 4))), v), (Tensor(np.zeros((3, 4))), k, v)]:
        with pytest.raises(ShapeError, match=rf"{name}: expected q \(B, T, D\), k .*, v \(B, S, D\), got q \("):
            FeaturewiseAttention()(*bad)
    for c in (0, -1.0, np.inf, np.nan):
        with pytest.raises(ValueError, match=f"{name}: expected a finite c > 0, got c = "):
            FeaturewiseAttention(c)
        with pytest.raises(ValueError, match="featurewise_weights: expected a finite c > 0"):
            featurewise_weights(q, k, c=c)
    with pytest.raises(TypeError, match=f"{name}: expected a number c > 0, got 'five'"):
        FeaturewiseAttention("five")
    with pytest.raises(TypeError, match=f"{name}: a mask is boolean"):
        FeaturewiseAttention()(q, k, v, Tensor(np.ones((3, 5))))
    with pytest.raises(ShapeError, match=f"{name}: the mask of shape"):
        FeaturewiseAttention()(q, k, v, Tensor(np.ones((5, 3), bool)))
    with pytest.raises(TypeError, match=f"{name}.*float32"):
        FeaturewiseAttention()(q, k, Tensor(np.zeros((2, 5, 4), np.float32)))
    for bad in [(q, k, Tensor(np.zeros(4))), (q, k, Tensor(np.zeros((6, 3)))), (q, Tensor(np.zeros((3, 5, 4))), w)]:
        with pytest.raises(ShapeError, match=r"additive_2d: expected q \(B, T, D\), k .*, w \(M, D\), got q \("):
            Additive2d()(*bad)
    with pytest.raises(TypeError, match="additive_2d.*float32"):
        Additive2d()(q, k, Tensor(np.zeros((6, 4), np.float32)))
    with pytest.raises(TypeError, match="additive_2d.*int64"):
        Additive2d()(Tensor(np.zeros((2, 3, 4), np.int64)), k, w)
