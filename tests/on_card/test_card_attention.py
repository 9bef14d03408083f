"""Attention on a card against the CPU: tiles and their edges, masks, biases, shared keys, sizes 0, and the launches made.

A simulated tile is 8 x 8 (`attention_cuda.TILE`), of which 4 columns are in shared memory at once."""
import numpy as np
import pytest
from agreement import agree

from tinyattn import Tensor, grad
from tinyattn import cuda as card
from tinyattn.autograd import fused
from tinyattn.ops import attention_cuda as grids
from tinyattn.ops.attention import Attention

RNG = np.random.default_rng(7)
TILE = grids.TILE if card.SIMULATED else 64


def normal(*shapes):
    return [RNG.normal(size=s) for s in shapes]


def attend(**options):
    return lambda *xs: Attention(**options)(*xs)


def both(arrays, **options):
    """Values and first gradients by loops, on the CPU and on a card."""
    found = []
    for place in ("cpu", "cuda"):
        xs = [None if a is None else Tensor(a, device=place, requires_grad=a.dtype.kind == "f") for a in arrays]
        y = Attention(**options)(*xs)
        wanted = [x for x in xs if x is not None and x.requires_grad]
        g = Tensor(np.random.default_rng(1).normal(size=y.shape).astype(y.dtype), device=place)
        found.append([t.numpy() for t in (y, *grad([y], wanted, [g]))])
    return found


def same(arrays, tolerance=1e-12, **options):
    cpu, cuda = both(arrays, **options)
    for a, b in zip(cpu, cuda, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        np.testing.assert_allclose(b, a, rtol=tolerance, atol=tolerance)
    return cuda


@pytest.fixture
def launches(monkeypatch):
    """The names and grids of the kernels of attention that are launched."""
    seen, before = [], card.CudaKernel._launch

    def launch(kernel, grid, arguments):
        if kernel.name.startswith("attention."):
            seen.append((kernel.name.partition(".")[2], grid[0]))
        before(kernel, grid, arguments)

    monkeypatch.setattr(card.CudaKernel, "_launch", launch)
    return seen


# ---------------------------------------------------------------------------------------------------------------------
# tiles and their edges
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("T, S, D, E, causal", [
    (1, 1, 1, 1, False), (TILE + 1, 2 * TILE + 3, 5, 3, False), (TILE, TILE, 4, TILE, True),
    (3, TILE + 5, 9, TILE + 1, True), (2 * TILE + 3, TILE + 2, 2, 2, True), (TILE + 1, TILE - 3, TILE + 1, 2, False)])
def test_every_edge_of_a_tile(T, S, D, E, causal):
    o, *_ = same(normal((T, D), (S, D), (S, E)), causal=causal)
    if causal and T > S:
        assert (o[:T - S] == 0).all()  # they see nothing


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_values_and_gradients_to_second_order(dtype):
    agree(attend(causal=True, scale=0.7), *normal((2, 3, 2), (1, 5, 2), (2, 5, 3)), np.array([True, True, False, True, True]),
          normal((3, 5))[0], dtype=dtype)


def test_float32_over_several_tiles():
    x = [a.astype(np.float32) for a in normal((TILE + 2, 6), (2 * TILE + 1, 6), (2 * TILE + 1, 3))]
    same(x, tolerance=3e-6, causal=True)


def test_a_causal_query_sees_nothing_later():
    q, k, v = normal((TILE + 3, 3), (TILE + 5, 3), (TILE + 5, 2))
    there = [Tensor(x, device="cuda") for x in (q, k, v)]
    whole = Attention(causal=True)(*there).numpy()
    k[-1], v[-1] = 100, 100
    changed = Attention(causal=True)(there[0], *(Tensor(x, device="cuda") for x in (k, v))).numpy()
    assert np.array_equal(whole[:-1], changed[:-1]) and not np.array_equal(whole[-1], changed[-1])


# ---------------------------------------------------------------------------------------------------------------------
# masks, biases, shared keys
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("shape", [(9,), (1,), (10, 9), (10, 1), (2, 1, 1, 9), (3, 1, 9), (2, 3, 10, 9), (1, 3, 10, 1)], ids=str)
def test_a_mask_and_a_bias_broadcast(shape):
    q, k, v = normal((2, 3, 10, 2), (2, 1, 9, 2), (2, 1, 9, 2))
    mask = RNG.random(shape) < 0.6
    o, *grads = same([q, k, v, mask, RNG.normal(size=shape)], causal=shape == (9,))
    seen = np.broadcast_to(mask, (2, 3, 10, 9)).any(-1)
    assert (o[~seen] == 0).all() and (grads[0][~seen] == 0).all()
    assert grads[3].shape == shape


def test_rows_that_see_nothing_send_nothing():
    q, k, v, bias = normal((2, TILE + 1, 2), (2, 5, 2), (2, 5, 3), (TILE + 1, 5))
    for mask in (np.zeros((1, 5), bool), np.arange(TILE + 1)[:, None] > 2):
        o, dq, dk, dv, dbias = same([q, k, v, mask, bias])
        dead = ~np.broadcast_to(mask, (TILE + 1, 5)).any(-1)
        for x in (o[:, dead], dq[:, dead], dbias[dead]):
            assert (x == 0).all()
        assert mask.any() or not (dk.any() or dv.any())


def test_leading_axes_of_each_input():
    same(normal((3, 2, 1), (2, 1, 4, 1), (1, 3, 4, 2)))
    same([*normal((4, 2), (5, 2), (2, 3, 5, 2)), RNG.random((2, 1, 1, 5)) < 0.5], causal=True)


def test_large_and_infinite_scores():
    q, k, v = (np.array(x)[:, None] for x in ([100.0, -1.0], [100.0, 99.0, -100.0], [1.0, 3.0, 7.0]))
    same([q, k, v], tolerance=1e-11)
    q, k, v, bias = normal((3, 2), (TILE + 2, 2), (TILE + 2, 2), (3, TILE + 2))
    bias[0], bias[1, :TILE], bias[2, 1] = -np.inf, -np.inf, 1e4
    o, *_ = same([q, k, v, None, bias])
    assert (o[0] == 0).all()
    k[1] = np.nan
    cpu, cuda = both([q, k, v])
    assert np.isnan(cpu[0]).all() and np.isnan(cuda[0]).all()


@pytest.mark.parametrize("shapes", [((0, 2, 3), (0, 4, 3), (0, 4, 2)), ((2, 3), (0, 3), (0, 2)), ((0, 3), (2, 3), (2, 1)),
                                    ((2, 3), (2, 3), (2, 0)), ((2, 0), (3, 0), (3, 2))], ids=str)
def test_sizes_of_zero(shapes):
    x = normal(*shapes)
    same(x, causal=True)
    same([*x, None, RNG.normal(size=shapes[1][-2:-1])])


# ---------------------------------------------------------------------------------------------------------------------
# what is launched
# ---------------------------------------------------------------------------------------------------------------------
def test_no_twin_and_no_work_that_nobody_asked_for(launches):
    shapes = (2, 3, TILE + 1, 2), (1, 1, 5, 2), (2, 1, 5, TILE + 1)
    q, k, v = (Tensor(x, device="cuda") for x in normal(*shapes))
    bias = Tensor(np.zeros(5), device="cuda")
    with fused("force"):
        Attention()(q, k, v)
    assert launches == [("attention", 6 * 2 * 2)]  # 6 matrices, 2 tiles of queries, 2 of columns
    for wanted, kernels in [("v", ["values_gradient"]), ("q", ["deltas", "slopes"]), ("b", ["deltas", "slopes"]),
                            ("kv", ["values_gradient", "deltas", "slopes"]),
                            ("qkvb", ["values_gradient", "deltas", "slopes", "slopes"])]:
        xs = [Tensor(x.numpy(), device="cuda", requires_grad=name in wanted)
              for x, name in zip((q, k, v, bias), "qkvb", strict=True)]
        y = Attention()(*xs[:3], None, xs[3])
        assert y.op.name == "attention"
        launches.clear()
        grad([y], [x for x in xs if x.requires_grad], [Tensor(np.ones(y.shape), device="cuda")])
        assert [name for name, _ in launches] == kernels


def test_the_same_bits_each_time():
    x = [a.astype(np.float32) for a in normal((2, 9, 3), (1, 11, 3), (1, 11, 2))]
    for a, b in zip(both(x)[1], both(x)[1], strict=True):
        assert np.array_equal(a, b)


def test_errors_read_as_on_the_cpu():
    for place in ("cpu", "cuda"):
        q, k = (Tensor(np.ones(s), device=place) for s in ((2, 3), (4, 2)))
        with pytest.raises(ValueError, match=r"attention: expected q \(..., T, D\)"):
            Attention()(q, k, k)
        with pytest.raises(TypeError, match="must have one dtype"):
            Attention()(k, k.float(), k)
        with pytest.raises(TypeError, match="a mask is boolean"):
            Attention()(k, k, k, k)
        with pytest.raises(ValueError, match="the mask of shape"):
            Attention()(k, k, k, Tensor(np.ones((3, 3), bool), device=place))


def test_weights_are_computed_there():
    q, k, v = (Tensor(x, device="cuda", requires_grad=True) for x in normal((2, 2), (3, 2), (3, 1)))
    y = Attention()(q, k, v)
    np.testing.assert_allclose((y.op.weights() @ v).numpy(), y.numpy(), rtol=1e-12)
