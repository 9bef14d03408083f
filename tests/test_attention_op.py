"""The fused attention op: against loops, PyTorch and its twin; masks, shared keys, memory, accuracy, threads."""
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
from tinyattn.ops import attention, attention_loops
from tinyattn.ops.attention import Attention, attention_weights
from tinyattn.ops.broadcast import ShapeError
from tinyattn.tensor import Tensor


def normal(*shapes, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=s) for s in shapes]


def attend(*arrays, **options):
    """The output for arrays as they are: no Tensor makes them contiguous first."""
    op = Attention(**options)
    op.recorded = False
    return op.cpu(*arrays)


def loops(q, k, v, g, mask=None, bias=None, scale=None, causal=False):
    """Output, weights and gradients of one matrix each: q (T,D), k (S,D), v (S,E), g (T,E), number by number."""
    (T, D), (S, E) = q.shape, v.shape
    scale = 1 / math.sqrt(D) if scale is None else scale
    o, w = np.zeros((T, E)), np.zeros((T, S))
    dq, dk, dv, de = np.zeros((T, D)), np.zeros((S, D)), np.zeros((S, E)), np.zeros((T, S))
    for t in range(T):
        e = {}
        for s in range(S):
            if (mask is None or mask[t, s]) and not (causal and s > t + S - T):
                e[s] = scale * sum(q[t, d] * k[s, d] for d in range(D)) + (0 if bias is None else bias[t, s])
        high = max(e.values(), default=0)
        total = sum(math.exp(x - high) for x in e.values())
        for s in e:
            w[t, s] = math.exp(e[s] - high) / total
        for s in e:
            o[t] += w[t, s] * v[s]
        for s in e:
            de[t, s] = w[t, s] * sum(g[t, j] * (v[s, j] - o[t, j]) for j in range(E))
            dq[t] += scale * de[t, s] * k[s]
            dk[s] += scale * de[t, s] * q[t]
            dv[s] += w[t, s] * g[t]
    return o, w, dq, dk, dv, de


def batched(q, k, v, g, mask=None, bias=None, **options):
    """`loops` over leading axes that broadcast; gradients summed over those that were stretched."""
    lead = np.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2])
    T, S = q.shape[-2], k.shape[-2]
    full = [np.broadcast_to(x, (*lead, *x.shape[-2:])) for x in (q, k, v)]
    extra = [None if x is None else np.broadcast_to(x, (*lead, T, S)) for x in (mask, bias)]
    o, w, grads = np.zeros((*lead, T, v.shape[-1])), np.zeros((*lead, T, S)), [np.zeros(x.shape) for x in full]
    grads += [np.zeros((*lead, T, S))]
    for at in np.ndindex(*lead):
        m, b = [None if x is None else x[at] for x in extra]
        o[at], w[at], *found = loops(*[x[at] for x in full], g[at], m, b, **options)
        for whole, part in zip(grads, found, strict=True):
            whole[at] = part
    inputs = [q, k, v] if bias is None else [q, k, v, bias]
    return o, w, [summed(d, x.shape) for d, x in zip(grads, inputs, strict=False)]


def summed(d, shape):
    d = d.sum(axis=tuple(range(d.ndim - len(shape))))
    return d.sum(axis=tuple(i for i, n in enumerate(shape) if n == 1), keepdims=True)


def holes(*shape, seed=1):
    """A random mask; its first row forbids everything."""
    mask = np.random.default_rng(seed).random(shape) < 0.6
    mask[..., 0, :] = False
    return mask


# name: shapes of q, k, v; mask; shape of a bias; options
CASES = {
    "one of everything": ((1, 1), (1, 1), (1, 1), None, None, {}),
    "one query": ((2, 1, 3), (2, 5, 3), (2, 5, 2), None, None, {}),
    "two queries, many keys": ((2, 2, 5), (2, 300, 5), (2, 300, 3), None, None, {"causal": True}),
    "one key": ((2, 3, 4), (2, 1, 4), (2, 1, 3), None, None, {}),
    "odd sizes": ((3, 13, 7), (3, 29, 7), (3, 29, 5), None, None, {"scale": 0.3}),
    "wide heads": ((1, 5, 70), (1, 30, 70), (1, 30, 67), None, None, {}),
    "several tiles": ((70, 2), (270, 2), (270, 1), None, None, {}),
    "several tiles, causal": ((1, 270, 2), (1, 270, 2), (1, 270, 1), None, None, {"causal": True}),
    "several tiles, masked": ((1, 70, 2), (1, 270, 2), (1, 270, 1), holes(70, 270), None, {}),
    "a tile of keys forbidden": ((1, 30, 3), (1, 300, 3), (1, 300, 2), np.arange(300) >= 256, None, {}),
    "causal, T < S": ((2, 3, 4), (2, 8, 4), (2, 8, 4), None, None, {"causal": True}),
    "causal, T > S: first rows see nothing": ((2, 30, 4), (2, 25, 4), (2, 25, 4), None, None, {"causal": True}),
    "mask (B,1,1,S)": ((2, 3, 4, 2), (2, 3, 5, 2), (2, 3, 5, 2), holes(2, 5)[:, None, None], None, {}),
    "mask (T,S)": ((2, 3, 4, 2), (2, 3, 5, 2), (2, 3, 5, 2), holes(4, 5), None, {}),
    "mask (B,1,T,S), causal": ((2, 3, 4, 2), (2, 3, 5, 2), (2, 3, 5, 2), holes(2, 1, 4, 5), None, {"causal": True}),
    "mask (B,H,T,1)": ((2, 3, 4, 2), (2, 3, 5, 2), (2, 3, 5, 2), holes(2, 3, 4, 1), None, {}),
    "shared keys (B,1,S,D)": ((2, 3, 4, 2), (2, 1, 25, 2), (2, 1, 25, 3), holes(2, 3, 4, 25), None, {}),
    "grouped keys": ((2, 2, 3, 4, 2), (2, 2, 1, 5, 2), (2, 2, 1, 5, 3), None, None, {"causal": True}),
    "shared queries": ((4, 2), (3, 5, 2), (2, 1, 5, 3), None, None, {}),
    "values with more axes": ((4, 2), (5, 2), (3, 5, 2), holes(3, 4, 5), None, {}),
    "bias (T,S)": ((2, 3, 4, 2), (2, 3, 5, 2), (2, 3, 5, 2), None, (4, 5), {}),
    "bias and mask, causal": ((2, 3, 4, 2), (2, 3, 5, 2), (2, 3, 5, 2), holes(4, 5), (3, 1, 5), {"causal": True}),
    "bias (B,1,T,1)": ((2, 3, 4, 2), (2, 3, 5, 2), (2, 3, 5, 2), None, (2, 1, 4, 1), {}),
    "scale 0": ((2, 3, 4), (2, 5, 4), (2, 5, 4), None, None, {"scale": 0.0, "causal": True}),
    "scale below 0": ((2, 3, 4), (2, 30, 4), (2, 30, 4), None, None, {"scale": -2.0, "causal": True}),
}


@pytest.mark.parametrize("mode", ["force", "never"])
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name, mode):
    *shapes, mask, of_bias, options = CASES[name]
    *inputs, bias = normal(*shapes, of_bias or ())
    inputs += [mask, bias] if of_bias else [mask] if mask is not None else []
    lead = np.broadcast_shapes(*[s[:-2] for s in shapes])
    g = normal((*lead, shapes[0][-2], shapes[2][-1]), seed=2)[0]
    with fused(mode):
        o, grads = run(Attention(**options), inputs, g)
    expected, w, slopes = batched(*inputs[:3], g, mask, bias if of_bias else None, **options)
    for mine, true in zip([o, *grads], [expected, *slopes], strict=True):
        assert mine.shape == true.shape
        np.testing.assert_allclose(mine, true, rtol=1e-10, atol=1e-11)
    weights = attention_weights(Tensor(inputs[0]), Tensor(inputs[1]), None if mask is None else Tensor(mask),
                                bias=Tensor(bias) if of_bias else None, batch=shapes[2][:-2], **options)
    np.testing.assert_allclose(np.broadcast_to(weights.numpy(), w.shape), w, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", ["plain", "causal", "mask"])
@pytest.mark.parametrize("T", [5, 70])
def test_is_pytorchs(kind, T):
    torch = pytest.importorskip("torch")
    *inputs, g = normal((2, 3, T, 8), (2, 3, T, 8), (2, 3, T, 8), (2, 3, T, 8))
    mask = np.random.default_rng(1).random((2, 1, T, T)) < 0.7
    mask[..., 0] = True  # PyTorch gives nan for a row that sees nothing
    q, k, v = (torch.tensor(a, requires_grad=True) for a in inputs)
    expected = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=torch.tensor(mask) if kind == "mask" else None, is_causal=kind == "causal")
    expected.backward(torch.tensor(g))
    o, grads = run(Attention(causal=kind == "causal"), inputs + [mask] * (kind == "mask"), g)
    for mine, theirs in zip([o, *grads], [expected.detach(), q.grad, k.grad, v.grad], strict=True):
        np.testing.assert_allclose(mine, theirs.numpy(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("T, S, D", [(1, 1, 1), (1, 300, 16), (5, 7, 33), (20, 20, 64), (30, 40, 32), (64, 64, 32),
                                     (70, 600, 48)])
@pytest.mark.parametrize("size", [1e-2, 1.0, 6.0, 60.0])
def test_float32_is_as_accurate_as_the_twin(T, S, D, size):
    """From nearly equal weights to scores of thousands, of which one takes all."""
    *inputs, g = normal((2, T, D), (2, S, D), (2, S, D), (2, T, D))
    inputs[0] *= size
    inputs[1] *= size
    for causal in (False, True):
        assert_as_accurate(Attention(causal=causal), inputs, g)
    assert_as_accurate(Attention(), [*inputs, holes(T, S)], g)
    assert_as_accurate(Attention(), [*inputs, None, np.random.default_rng(3).normal(size=(T, S))], g)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_scores_of_ten_thousand(dtype):
    q, k, v = (np.array(a, dtype)[:, None] for a in ([100, -100, 0], [100, 100, -100], [1, 3, 7]))
    o, grads = run(Attention(scale=1.0), [q, k, v], np.ones((3, 1)))
    np.testing.assert_allclose(o, [[2.0], [7.0], [11 / 3]], rtol=1e-6)
    assert all(np.isfinite(d).all() for d in grads)
    np.testing.assert_allclose(grads[2], [[0.5 + 1 / 3], [0.5 + 1 / 3], [1 + 1 / 3]], rtol=1e-6)


@pytest.mark.parametrize("T", [2, 40, 300])
def test_a_row_that_sees_nothing(T):
    """Exactly 0, value and gradient; and masked keys get exactly 0."""
    *inputs, g = normal((2, T, 4), (2, T, 4), (2, T, 4), (2, T, 4))
    mask = np.ones((2, T, T), np.bool_)
    mask[0, 1], mask[1, :, -1], mask[0, 0] = False, False, False
    for causal in (False, True):
        o, (dq, dk, dv) = run(Attention(causal=causal), [*inputs, mask], g)
        assert not o[0, :2].any() and not dq[0, :2].any() and not dk[1, -1].any() and not dv[1, -1].any()
        assert o[1].all() and dv[1, 0].all()
    o, grads = run(Attention(), [*inputs, np.zeros((1, 1), np.bool_)], g)
    assert not any(x.any() for x in [o, *grads])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("T", [2, 30])
def test_nan_stays_in_its_query(T, dtype):
    q, k, v = (a.astype(dtype) for a in normal((T, 3), (25, 3), (25, 2)))
    q[1, 0] = np.nan
    o = Attention()(Tensor(q), Tensor(k), Tensor(v)).numpy()
    assert np.isnan(o[1]).all() and np.isfinite(np.delete(o, 1, 0)).all()


def test_causal_leaks_nothing():
    """Later keys and values are never looked at, not even where they share a tile; nan there does not show."""
    (q, k, v), T = normal((100, 3), (100, 3), (100, 2)), 40
    before = Attention(causal=True)(Tensor(q), Tensor(k), Tensor(v)).numpy()[:T]
    k[T:] += 5
    v[T:] -= 3
    np.testing.assert_array_equal(Attention(causal=True)(Tensor(q), Tensor(k), Tensor(v)).numpy()[:T], before)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_step_by_step_is_the_whole(dtype):
    """Decoding with a cache: query t against the first t + 1 keys, one, two or five queries at a time."""
    q, k, v = (a.astype(dtype) for a in normal((2, 30, 8), (2, 30, 8), (2, 30, 8)))
    whole = Attention(causal=True)(Tensor(q), Tensor(k), Tensor(v)).numpy()
    for step in (1, 2, 5):
        parts = [attend(q[:, t:t + step], k[:, :t + step], v[:, :t + step], causal=True) for t in range(0, 30, step)]
        np.testing.assert_allclose(np.concatenate(parts, 1), whole, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("lead", [(2, 3), (1, 3), (2, 1), (1, 1), (4,), ()])
def test_a_part_of_a_buffer_is_not_copied(lead):
    """A cache shows the filled part of a longer buffer; what lies beyond, nan here, is never read."""
    q, k, v = normal((*lead, 1, 4), (*lead, 40, 4), (*lead, 40, 3))
    for x in (k, v):
        x[..., 25:, :] = np.nan
    for begin, end in [(0, 25), (3, 24)]:
        shown = [x[..., begin:end, :] for x in (k, v)]
        assert all(np.shares_memory(attention._matrices(x), x) for x in shown)
        np.testing.assert_array_equal(attend(q, *shown), attend(q, *[x.copy() for x in shown]))


def test_other_views_are_copied():
    """What is no part of a buffer, though it may look like one, gives what its copy gives."""
    k, q = normal((4, 3, 40, 8), (4, 3, 2, 8))
    views = [k[..., :25:2, :], k[..., ::2][..., :4], k[..., 1:5], k[::-1, :, :25], k[::2, :, :25], k[:, ::2, :25],
             k.swapaxes(0, 1)[..., :25, :], k.swapaxes(-1, -2)[..., :25], np.broadcast_to(k[:1, :, :25], (4, 3, 25, 8))]
    for x in views:
        few = np.resize(q, (*x.shape[:2], 2, x.shape[-1]))
        np.testing.assert_array_equal(attend(few, x, x), attend(few, x.copy(), x.copy()))


def test_second_order_through_the_twin():
    inputs = normal((2, 3, 2), (1, 4, 2), (2, 4, 3), (3, 4))
    mask = Tensor(holes(3, 4))

    def biased(q, k, v, bias):
        return Attention(causal=True)(q, k, v, mask, bias)

    for check in (gradcheck, gradgradcheck):
        report = check(biased, inputs, mode="full")
        assert report.ok, str(report)


def test_one_tensor_in_three_slots():
    (x,), g = normal((2, 5, 3)), normal((2, 5, 3), seed=1)[0]
    expected = sum(batched(x, x, x, g, causal=True)[2])
    for create_graph in (False, True):
        t = Tensor(x, requires_grad=True)
        (d,) = grad([Attention(causal=True)(t, t, t)], [t], [Tensor(g)], create_graph=create_graph)
        np.testing.assert_allclose(d.numpy(), expected, rtol=1e-10, atol=1e-12)


def test_only_what_is_needed():
    *inputs, g = normal((2, 4, 3), (2, 6, 3), (2, 6, 2), (4, 6), (2, 4, 2))
    inputs.insert(3, None)
    whole = run(Attention(), inputs, g)[1]
    for needs in [(0,), (1,), (2,), (4,), (0, 2), (1, 4)]:
        ts = [None if a is None else Tensor(a, requires_grad=i in needs) for i, a in enumerate(inputs)]
        found = grad([Attention()(*ts)], [ts[i] for i in needs], [Tensor(g)])
        for i, d in zip(needs, found, strict=True):
            np.testing.assert_array_equal(d.numpy(), whole[i - (i == 4)])


# ---------------------------------------------------------------------------------------------------------------------
# the fast path: that it ran, what it holds, threads
# ---------------------------------------------------------------------------------------------------------------------
def test_weights_on_demand():
    q, k, v = (Tensor(a, requires_grad=True) for a in normal((2, 3, 4), (2, 5, 4), (2, 5, 2)))
    mask = Tensor(holes(3, 5))
    o = Attention(scale=0.5, causal=True)(q, k, v, mask)
    assert o.op.name == "attention" and o.op.saved.shape == (2, 2, 3)
    w = o.op.weights()
    assert not w.requires_grad and w.shape == (2, 3, 5)
    np.testing.assert_allclose(w.numpy() @ v.numpy(), o.numpy(), rtol=1e-12, atol=1e-14)
    assert not w.numpy()[~np.broadcast_to(mask.numpy(), w.shape)].any()
    live = o.op.saved[0] > -np.inf
    np.testing.assert_allclose(w.numpy().sum(-1), live, atol=1e-14)
    op = Attention()
    op(q.detach(), k.detach(), v.detach())
    with pytest.raises(RuntimeError, match="attention: weights.. needs a recorded call"):
        op.weights()
    assert op.saved is None


@pytest.mark.parametrize("causal", [False, True])
def test_memory_of_arrays(causal):
    """Forward and backward, masked: nothing as large as B H T S is allocated by NumPy, not even for one head."""
    B, H, T, D = 2, 2, 512, 8
    inputs = [a.astype(np.float32) for a in normal((B, H, T, D), (B, H, T, D), (B, H, T, D), (B, H, T, D))]
    q, k, v = (Tensor(a, requires_grad=True) for a in inputs[:3])
    g, mask = Tensor(inputs[3]), Tensor(np.ones((B, 1, 1, T), np.bool_))
    grad([Attention(causal=causal)(q, k, v, mask)], [q, k, v], [g])
    tracemalloc.start()
    o = Attention(causal=causal)(q, k, v, mask)
    grad([o], [q, k, v], [g])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < T * T * 4


@pytest.mark.skipif(sys.platform != "linux" or not device.JIT, reason="reads the peak as Linux counts it")
def test_memory_of_the_process():
    """tracemalloc does not see what a kernel allocates, so: the peak of a process whose weights would take 256 MB."""
    code = """if True:
        import resource, numpy as np
        from tinyattn.ops.attention import Attention
        def go(B, T, D):
            q, k, v, g = (np.full((B, T, D), 0.1, np.float32) for _ in range(4))
            op = Attention()
            op.recorded, op.needs = True, [True, True, True]
            op.cpu_grad(g, op.cpu(q, k, v), q, k, v)
        go(2, 4, 16), go(16, 300, 16)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        go(4, 4096, 16)
        print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
    """
    here = os.path.dirname(os.path.dirname(__file__))
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True,
                         env={**os.environ, "PYTHONPATH": here}).stdout
    assert int(out) < 20e6  # inputs, output, gradients in two parts and tiles are 11 MB


@pytest.mark.skipif(not device.JIT, reason="counts how often a loop is compiled")
def test_one_compilation_for_every_layout_and_mask():
    """Numba compiles anew for every kind of array; a caller's views and read-only arrays must not cause it."""
    q, k, v = normal((2, 3, 4), (2, 5, 4), (2, 5, 2))
    run(Attention(), [q, k, v], np.ones((2, 3, 2)))
    before = [len(f.signatures) for f in (attention_loops.forward, attention_loops.backward)]
    shown = np.asfortranarray(k)
    shown.flags.writeable = False
    for mask in (None, holes(3, 5), np.ones((2, 1, 5), np.bool_), np.ones(5, np.bool_)):
        op = Attention(causal=True)
        op.recorded, op.needs = True, [True, True, True, False, False]
        y = op.cpu(q[:, ::-1], shown, v, mask, None)
        op.cpu_grad(np.ones((2, 2, 3)).swapaxes(1, 2), y, q[:, ::-1], shown, v, mask, None)
    assert [len(f.signatures) for f in (attention_loops.forward, attention_loops.backward)] == before


@pytest.mark.skipif(not device.JIT or device.get_num_threads() < 2, reason="needs two threads")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("B, T, S", [(3, 300, 300), (1, 700, 600), (40, 20, 100), (33, 1, 600)])
def test_one_and_two_threads_give_the_same_bits(B, T, S, causal, monkeypatch):
    monkeypatch.setattr(device, "PARALLEL_ABOVE", -1)
    arrays = [a.astype(np.float32) for a in normal((B, T, 24), (B, S, 24), (B, S, 24))]
    same_bits(Attention(causal=causal), arrays)
    same_bits(Attention(causal=causal), [*arrays, holes(T, S), np.ones((1, S), np.float32)])


# ---------------------------------------------------------------------------------------------------------------------
# errors
# ---------------------------------------------------------------------------------------------------------------------
def test_errors():
    q, k, v = (Tensor(a) for a in normal((2, 3, 4), (2, 5, 4), (2, 5, 2)))

    def bad(error, match, *inputs, **options):
        with pytest.raises(error, match=match):
            Attention(**options)(*inputs)

    shapes = r"attention: expected q \(..., T, D\), k \(..., S, D\) and v \(..., S, E\), got q \("
    bad(ShapeError, shapes, q, Tensor(np.zeros((2, 5, 3))), v)
    bad(ShapeError, shapes, q, k, Tensor(np.zeros((2, 4, 2))))
    bad(ShapeError, shapes, q, k, Tensor(np.zeros(5)))
    bad(ShapeError, "attention: the axes before .* do not broadcast, got", q, k, Tensor(np.zeros((3, 5, 2))))
    for shape in [(2, 3, 4), (3, 3, 5), (1, 2, 3, 5), (2, 1, 3, 5)]:
        bad(ShapeError, r"attention: the mask of shape \(.*does not broadcast", q, k, v, Tensor(np.ones(shape)) > 0)
    bad(ShapeError, r"attention: the bias of shape \(4,\)", q, k, v, None, Tensor(np.ones(4)))
    bad(TypeError, "attention: a mask is boolean.*int64", q, k, v, Tensor(np.ones((3, 5), np.int64)))
    bad(TypeError, "attention: .*one dtype, got float64 and, for v, float32", q, k, v.float())
    bad(TypeError, "attention: .*for bias, float32", q, k, v, None, Tensor(np.zeros(5, np.float32)))
    bad(TypeError, "attention: expected float32 or float64, got int64", Tensor(np.zeros((2, 3, 4), np.int64)), k, v)
    for scale in (np.nan, np.inf):
        with pytest.raises(ValueError, match="attention: expected a finite scale"):
            Attention(scale=scale)


def test_a_planted_fault_is_seen(monkeypatch):
    """The reference tells the causal rule aligned at the end from one aligned at the start."""
    q, k, v, g = normal((2, 3, 4), (2, 8, 4), (2, 8, 4), (2, 3, 4))
    late = np.arange(8) <= np.arange(3)[:, None]
    right = batched(q, k, v, g, causal=True)[0]
    assert np.abs(run(Attention(), [q, k, v, late], g)[0] - right).max() > 0.1
    assert attention.Attention(causal=True).attributes() == {"scale": None, "causal": True}
