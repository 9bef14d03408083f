"""The float32 loops of GELU against the C library's erfc in float64, the tails included; and loops that share out work."""
import math

import numpy as np
import pytest

from tinyattn import Tensor, device
from tinyattn.ops.unary import CHUNK, Gelu, Relu


def exactly(x):
    """(x Phi(x), its slope) for a float64 array."""
    below = np.array([0.5 * math.erfc(-v / math.sqrt(2)) for v in x.tolist()])
    return x * below, below + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)


@pytest.fixture
def x():
    return np.concatenate([np.linspace(-13, 13, 5001), [0.0, -0.0, 1e-30, -1e-8, 1e30]]).astype(np.float32)


def test_values(x):
    """Against float64: 1e-6 of the value itself where a sum of 0.5 and 0.5 erf would have lost its digits."""
    value, _ = exactly(x.astype(np.float64))
    mine = Gelu().cpu(x)
    assert mine.dtype == np.float32
    near = x > -5
    np.testing.assert_allclose(mine[near], value[near], rtol=1e-6)
    np.testing.assert_allclose(mine, value, rtol=5e-6)


def test_slopes(x):
    """The slope passes 0 at -0.75, so it is compared as a share of 1."""
    t = Tensor(x, requires_grad=True)
    t.gelu().sum().backward()
    np.testing.assert_allclose(t.grad.numpy(), exactly(x.astype(np.float64))[1], atol=5e-7)


def test_what_is_no_number():
    """As in the formula: inf stays, -inf times 0 is nan, and nan stays."""
    far = Gelu().cpu(np.array([np.inf, -np.inf, np.nan], np.float32))
    assert far[0] == np.inf and np.isnan(far[1:]).all()
    assert Gelu().cpu(np.array([-20.0, -200.0], np.float32)).tolist() == [0, 0]


@pytest.mark.parametrize("op", [Gelu, Relu])
def test_one_and_two_threads_give_the_same_bits(op, rng):
    x, results = rng.normal(size=40 * CHUNK + 7).astype(np.float32), []
    for threads in {1, min(2, device.get_num_threads())}:
        device.set_num_threads(threads)
        t = Tensor(x, requires_grad=True)
        y = op()(t)
        y.backward(Tensor(x))
        results.append((y.numpy(), t.grad.numpy()))
    assert all(np.array_equal(a, b) for a, b in zip(results[0], results[-1], strict=True))
    value = exactly(x[-1000:].astype(np.float64))[0] if op is Gelu else np.maximum(x[-1000:], 0)
    np.testing.assert_allclose(results[-1][0][-1000:], value, rtol=1e-6)
