"""Additive scores: against loops, PyTorch and the readable twin; both ways to compute them; memory."""
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
from tinyattn.ops import additive
from tinyattn.ops.additive import AdditiveScores
from tinyattn.ops.broadcast import ShapeError
from tinyattn.tensor import Tensor

SHAPES = [(2, 1, 3, 4), (1, 1, 1, 1), (2, 4, 1, 7), (3, 5, 7, 33), (2, 6, 20, 64), (1, 7, 19, 130), (0, 4, 3, 2), (2, 0, 3, 4),
          (2, 4, 0, 3), (2, 4, 3, 0)]


def arrays(B, T, S, D, scale=1.0, seed=0):
    rng = np.random.default_rng(seed)
    q, k, v = rng.normal(size=(B, T, D)) * scale, rng.normal(size=(B, S, D)) * scale, rng.normal(size=D)
    return [q, k, v], rng.normal(size=(B, T, S))


def loops(q, k, v, g):
    """Scores and gradients, element by element."""
    e = np.zeros((q.shape[0], q.shape[1], k.shape[1]))
    dq, dk, dv = np.zeros(q.shape), np.zeros(k.shape), np.zeros(v.shape)
    for b, t, s in np.ndindex(*e.shape):
        for d in range(len(v)):
            y = math.tanh(q[b, t, d] + k[b, s, d])
            e[b, t, s] += v[d] * y
            dq[b, t, d] += g[b, t, s] * v[d] * (1 - y * y)
            dk[b, s, d] += g[b, t, s] * v[d] * (1 - y * y)
            dv[d] += g[b, t, s] * y
    return e, dq, dk, dv


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mode", ["force", "never"])
def test_values_and_gradients(shape, mode):
    inputs, g = arrays(*shape)
    with fused(mode):
        e, grads = run(AdditiveScores(), inputs, g)
    for mine, expected in zip([e, *grads], loops(*inputs, g), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("shape", [(3, 5, 7, 33), (2, 20, 20, 64)])
def test_is_pytorchs(shape):
    torch = pytest.importorskip("torch")
    inputs, g = arrays(*shape)
    q, k, v = (torch.tensor(a, requires_grad=True) for a in inputs)
    expected = torch.einsum("btsd,d->bts", torch.tanh(q[:, :, None] + k[:, None]), v)
    expected.backward(torch.tensor(g))
    e, grads = run(AdditiveScores(), inputs, g)
    for mine, theirs in zip([e, *grads], [expected.detach(), q.grad, k.grad, v.grad], strict=True):
        np.testing.assert_allclose(mine, theirs.numpy(), rtol=1e-10, atol=1e-11)


@pytest.mark.compiled
@pytest.mark.parametrize("shape", [(2, 1, 3, 4), (3, 5, 7, 33), (2, 8, 20, 64), (1, 4, 1, 1)])
@pytest.mark.parametrize("scale", [1e-3, 0.1, 1.0, 4.0, 30.0, 1e4])
def test_float32_is_as_accurate_as_the_twin(shape, scale):
    """From the linear range of tanh to far beyond where the loop over fractions has to give way."""
    inputs, g = arrays(*shape, scale=scale)
    assert_as_accurate(AdditiveScores(), inputs, g)


def test_float32_when_large_parts_cancel():
    """q + k near 0 while each is not: the shift makes the fractions' e^(2 q) large and e^(2 k) small."""
    inputs, g = arrays(2, 6, 20, 64)
    inputs[0] += 7
    inputs[1] -= 7
    narrow = [a.astype(np.float32) for a in inputs]
    e, grads = run(AdditiveScores(), narrow, g)
    for a, b in zip([e, *grads], loops(*[a.astype(np.float64) for a in narrow], g.astype(np.float32)), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5 * np.abs(b).max())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("place", ["q", "k"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30, -1e30])
def test_strange_values_stay_where_they_are(dtype, place, value):
    """nan reaches its own query or key only; infinities saturate."""
    inputs, g = arrays(1, 5, 4, 3)
    inputs = [a.astype(dtype) for a in inputs]
    inputs["qk".index(place)][0, 1, 2] = value
    q, k, v = inputs
    e = AdditiveScores()(*map(Tensor, inputs)).numpy()
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(e, np.tanh(q[:, :, None] + k[:, None]) @ v, rtol=1e-5, atol=1e-5)
    grads = run(AdditiveScores(), inputs, g)[1]
    if not np.isnan(value):
        assert all(np.isfinite(d).all() for d in grads)


def test_all_keys_minus_infinity():
    q, k, v = arrays(1, 5, 4, 3)[0]
    k[:] = -np.inf
    np.testing.assert_allclose(AdditiveScores()(Tensor(q), Tensor(k), Tensor(v)).numpy(), np.full((1, 5, 4), -v.sum()))


def test_plain_loop_and_fractions_agree():
    """The two ways to compute the same thing, on the same inputs: few queries at a time take the plain loop."""
    inputs, g = arrays(2, 6, 5, 40)
    fast = run(AdditiveScores(), inputs, g)
    few = [run(AdditiveScores(), [inputs[0][:, t:t + 1], inputs[1], inputs[2]], g[:, t:t + 1]) for t in range(6)]  # T = 1: plain
    np.testing.assert_allclose(fast[0], np.concatenate([e for e, _ in few], 1), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(fast[1][0], np.concatenate([d[0] for _, d in few], 1), rtol=1e-12, atol=1e-13)
    for i in (1, 2):
        np.testing.assert_allclose(fast[1][i], sum(d[i] for _, d in few), rtol=1e-12, atol=1e-13)
    assert additive.FEW < 6


def test_only_what_is_needed():
    (q, k, v), g = arrays(2, 4, 3, 5)
    whole = run(AdditiveScores(), [q, k, v], g)[1]
    for needs in [(True, False, False), (False, True, False), (False, False, True), (True, False, True)]:
        ts = [Tensor(a, requires_grad=n) for a, n in zip((q, k, v), needs, strict=True)]
        wanted = [t for t in ts if t.requires_grad]
        found = grad([AdditiveScores()(*ts)], wanted, [Tensor(g)])
        for mine, expected in zip(found, [w for w, n in zip(whole, needs, strict=True) if n], strict=True):
            np.testing.assert_array_equal(mine.numpy(), expected)


def test_one_tensor_in_two_slots():
    """attend(x, x): the gradient is the sum of both roles, in both orders of differentiation."""
    (q, _, v), g = arrays(2, 4, 4, 3)
    _, dq, dk, _ = loops(q, q, v, g)
    for create_graph in (False, True):
        x = Tensor(q, requires_grad=True)
        (dx,) = grad([AdditiveScores()(x, x, Tensor(v))], [x], [Tensor(g)], create_graph=create_graph)
        np.testing.assert_allclose(dx.numpy(), dq + dk, rtol=1e-12)


@pytest.mark.skipif(not device.JIT or device.get_num_threads() < 2, reason="needs two threads")
@pytest.mark.parametrize("shape", [(1, 40, 40, 64), (33, 5, 9, 100), (32, 1, 200, 64)])
def test_one_and_two_threads_give_the_same_bits(shape):
    same_bits(AdditiveScores(), [a.astype(np.float32) for a in arrays(*shape)[0]])


@pytest.mark.compiled
def test_memory_of_arrays():
    """Beyond inputs, output and gradients nothing near B T S D, and not even B T S, is allocated by NumPy."""
    B, T, S, D = 4, 64, 64, 64
    inputs, g = arrays(B, T, S, D)
    inputs, g = [a.astype(np.float32) for a in inputs], Tensor(g.astype(np.float32))
    run(AdditiveScores(), inputs, g.numpy())
    ts = [Tensor(a, requires_grad=True) for a in inputs]
    tracemalloc.start()
    e = AdditiveScores()(*ts)
    grad([e], ts, [g])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    named = e.size * 4 + 2 * sum(t.size * 4 for t in ts)  # the gradients, and their copies for the caller
    assert peak - named < B * T * S * 4
    assert peak < B * T * S * D * 4 / 10


@pytest.mark.skipif(sys.platform != "linux" or not device.JIT, reason="reads the peak of the process as Linux counts it")
def test_memory_of_the_process():
    """tracemalloc does not see what a kernel allocates, so: the peak of a process that runs B T S D = 256 MB worth of scores."""
    code = """if True:
        import resource, numpy as np
        from tinyattn.ops.additive import AdditiveScores
        def go(B, T, S, D):
            q, k, v, g = (np.ones(s, np.float32) * 0.1 for s in ((B, T, D), (B, S, D), (D,), (B, T, S)))
            op = AdditiveScores()
            op.recorded, op.needs = True, (True, True, True)
            op.cpu_grad(g, op.cpu(q, k, v), q, k, v)
        go(2, 4, 4, 4), go(32, 20, 20, 64)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        go(4, 256, 256, 256)
        print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
    """
    here = os.path.dirname(os.path.dirname(__file__))
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True,
                         env={**os.environ, "PYTHONPATH": here}).stdout
    assert int(out) < 25e6  # inputs, output, gradients and scratch are 10 MB


def test_errors():
    q, k, v = (Tensor(np.zeros(s)) for s in ((2, 3, 4), (2, 5, 4), (4,)))
    for bad in [(q, k, Tensor(np.zeros(3))), (q, Tensor(np.zeros((3, 5, 4))), v), (Tensor(np.zeros((3, 4))), k, v)]:
        with pytest.raises(ShapeError, match=r"additive_scores: expected q \(B, T, D\), k \(B, S, D\), v \(D,\), got q \("):
            AdditiveScores()(*bad)
    with pytest.raises(TypeError, match="additive_scores.*float32"):
        AdditiveScores()(q, k, Tensor(np.zeros(4, np.float32)))
    with pytest.raises(TypeError, match="additive_scores.*int64"):
        AdditiveScores()(Tensor(np.zeros((2, 3, 4), np.int64)), k, v)
