"""Products: against NumPy in float64, their rules, the same bits for any number of threads, and no fight with BLAS."""
import subprocess
import sys

import numpy as np
import pytest

from tinyattn import Tensor, device
from tinyattn.autograd import grad
from tinyattn.ops import matmul as module
from tinyattn.ops.broadcast import ShapeError
from tinyattn.ops.matmul import Affine, MatMul, column_sums, matmul, matmul_into
from tinyattn.ops.shared import pack, product

SIZES = [(1, 1, 1), (5, 7, 9), (4, 64, 64), (3, 300, 70), (65, 129, 257), (0, 3, 4), (3, 0, 4), (3, 4, 0),
         (1, 5, 300), (1, 30, 5), (270, 5, 1), (7, 30, 1), (5, 1, 7), (1, 0, 3), (3, 0, 1), (1, 3, 0), (0, 3, 1)]
if device.JIT:
    SIZES += [(300, 40, 65), (70, 513, 200)]


def layouts(rng, rows, columns, dtype):
    """The same numbers: rows contiguous, columns contiguous, neither, backwards."""
    x = rng.normal(size=(rows, columns)).astype(dtype)
    wide = np.zeros((2 * rows, 3 * columns), dtype)
    wide[::2, ::3] = x
    return x, np.asfortranarray(x), wide[::2, ::3], np.ascontiguousarray(x[::-1, ::-1])[::-1, ::-1]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", SIZES)
def test_every_layout_of_both_sides(size, dtype):
    m, k, n = size
    rng = np.random.default_rng(0)
    for a, b in zip(layouts(rng, m, k, dtype), reversed(layouts(rng, k, n, dtype)), strict=True):
        gold = a.astype(np.float64) @ b.astype(np.float64)
        bound = 4 * np.finfo(dtype).eps * (np.abs(a).astype(float) @ np.abs(b).astype(float)) + 1e-30
        assert (np.abs(matmul(a, b) - gold) <= bound).all()
        into = np.full((m, n + 3), 7, dtype)
        matmul_into(a, b, into[:, :n], bias=np.ones(n, dtype))
        assert (np.abs(into[:, :n] - gold - 1) <= bound + 4 * np.finfo(dtype).eps * (1 + np.abs(gold))).all()
        assert (into[:, n:] == 7).all(), "wrote beyond its columns"


@pytest.mark.parametrize("shapes", [((2, 3, 4), (2, 4, 5)), ((3, 4), (2, 4, 5)), ((2, 1, 3, 4), (3, 4, 2)), ((0, 2, 3), (3, 2)),
                                    ((0, 2, 3), (0, 3, 2)), ((2, 3, 4, 5, 6), (3, 1, 6, 2)), ((20, 2, 3), (20, 3, 2))])
def test_batch_axes_broadcast(shapes):
    rng = np.random.default_rng(1)
    a, b = [rng.normal(size=s) for s in shapes]
    np.testing.assert_allclose(matmul(a, b), a @ b, rtol=1e-13, atol=1e-13)
    a, b = np.asfortranarray(a), b.swapaxes(-1, -2).copy().swapaxes(-1, -2)
    np.testing.assert_allclose(matmul(a, b), a @ b, rtol=1e-13, atol=1e-13)


THIN = [((20, 1, 3), (20, 3, 5)), ((2, 3, 1, 9), (2, 3, 9, 300)), ((4, 270, 6), (4, 6, 1)), ((3, 1, 6), (3, 6, 1)),
        ((3, 2, 5, 4), (4, 1)), ((2, 7, 1), (2, 1, 6)), ((0, 1, 3), (0, 3, 2)), ((0, 2, 1), (0, 1, 2)), ((3, 1, 0), (3, 0, 2)),
        ((3, 2, 0), (3, 0, 1)), ((2, 1, 3), (2, 3, 0)), ((2, 1, 3), (3, 4)), ((1, 3), (2, 3, 4)), ((2, 1, 1, 3), (5, 3, 1)),
        ((1, 1, 5), (4, 5, 6)), ((4, 6, 1), (1, 1, 5)), ((1, 7), (7, 4)), ((6, 7), (7, 1)), ((5, 1), (1, 7))]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shapes", THIN)
def test_vectors_in_every_layout(shapes, dtype):
    """One row, one column or a depth of 1: values and gradients, rows or columns lying together, and neither."""
    rng = np.random.default_rng(8)
    (a, b), turn = [rng.normal(size=s).astype(dtype) for s in shapes], (-1, -2)
    g = rng.normal(size=(a @ b).shape)
    close = {"rtol": 1e-5, "atol": 1e-5} if dtype == "float32" else {"rtol": 1e-12, "atol": 1e-12}
    ways = [np.array, lambda x: x.swapaxes(*turn).copy().swapaxes(*turn), lambda x: x.repeat(2, -1)[..., ::2],
            lambda x: x[..., ::-1, :].copy()[..., ::-1, :]]
    golds = [a.astype(float) @ b, g @ b.swapaxes(*turn), a.swapaxes(*turn) @ g]
    for way in ways:
        for other in ways:
            x, y = Tensor(a, requires_grad=True), Tensor(b, requires_grad=True)
            x.array, y.array = way(a), other(b)
            c = x @ y
            for mine, gold in zip([c, *grad([c], [x, y], [Tensor(g, dtype=dtype)])], golds, strict=True):
                gold = gold.sum(tuple(range(gold.ndim - mine.ndim)))
                gold = gold.sum(tuple(i for i, n in enumerate(mine.shape) if n == 1 < gold.shape[i]), keepdims=True)
                np.testing.assert_allclose(mine.numpy(), gold, **close)


@pytest.mark.skipif(not device.JIT, reason="without the JIT a product is NumPy's")
def test_vectors_have_loops_of_their_own(monkeypatch):
    """No copy of b, no tile of four rows, and the gradient of a transpose lies as what was transposed does."""
    for loops in ("_batched", "_blocks", "_BLOCKS"):
        monkeypatch.setattr(module, loops, None)
    for a, b in [((4, 1, 5), (4, 5, 6)), ((4, 6, 5), (4, 5, 1)), ((4, 6, 1), (4, 1, 5)), ((1, 5), (5, 6)), ((2, 6, 5), (5, 1))]:
        a, b = np.ones(a, "f"), np.ones(b, "f")
        turned = b.swapaxes(-1, -2).copy().swapaxes(-1, -2)
        assert (matmul(a, b) == a.shape[-1]).all() and (matmul(a, turned) == a.shape[-1]).all()
        op = MatMul()
        op.needs = (False, True)
        if a.ndim > 2 < b.ndim:
            assert op.cpu_grad(matmul(a, b), None, a, turned)[1].swapaxes(-1, -2).flags.c_contiguous


def test_heads_are_read_where_they_lie():
    """(B, T, H, D) seen as (B, H, T, D): four axes that cannot be merged."""
    rng = np.random.default_rng(2)
    q, k = rng.normal(size=(2, 5, 3, 4)).swapaxes(1, 2), rng.normal(size=(2, 7, 3, 4)).swapaxes(1, 2)
    np.testing.assert_allclose(matmul(q, k.swapaxes(-1, -2)), q @ k.swapaxes(-1, -2), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("op", [MatMul, Affine])
def test_loops_give_what_the_rules_give(op):
    rng = np.random.default_rng(3)
    for attributes, inputs in op.samples(rng):
        tensors = [None if x is None else Tensor(x, requires_grad=True) for x in inputs]
        y = op(**attributes)(*tensors)
        g = Tensor(rng.normal(size=y.shape))
        wanted = [t for t in tensors if t is not None]
        loops, rules = grad(y, wanted, g), grad(y, wanted, g, create_graph=True)
        for loop, rule in zip(loops, rules, strict=True):
            np.testing.assert_allclose(loop.numpy(), rule.numpy(), rtol=1e-12, atol=1e-12)


def test_affine_is_product_and_bias():
    rng = np.random.default_rng(4)
    x, w, b = rng.normal(size=(3, 2, 5)), rng.normal(size=(4, 5)), rng.normal(size=4)
    np.testing.assert_allclose(Affine()(Tensor(x), Tensor(w), Tensor(b)).numpy(), x @ w.T + b, rtol=1e-13)
    for rows, n in [((1,), 4), ((), 4), ((3, 2), 1), ((1,), 1)]:  # one row, one column
        x, w, b = rng.normal(size=(*rows, 5)), rng.normal(size=(n, 5)), rng.normal(size=n)
        np.testing.assert_allclose(Affine()(Tensor(x), Tensor(w), Tensor(b)).numpy(), x @ w.T + b, rtol=1e-12, atol=1e-14)


def test_inf_and_nan_reach_only_what_they_touch():
    a = np.ones((5, 3), np.float32)
    a[2, 1] = np.nan
    a[4, 0] = np.inf
    y = matmul(a, np.ones((3, 70), np.float32))
    assert np.isnan(y[2]).all() and np.isinf(y[4]).all() and np.isfinite(y[[0, 1, 3]]).all()


def test_column_sums():
    x = np.random.default_rng(5).normal(size=(3, 700, 600)).astype(np.float32)[1]
    np.testing.assert_allclose(column_sums(x), x.astype(float).sum(0), rtol=1e-5, atol=1e-4)
    assert column_sums(np.zeros((0, 3))).tolist() == [0, 0, 0]


def test_pack_and_product_add():
    rng = np.random.default_rng(6)
    for m, k, n in [(5, 3, 70), (66, 130, 9)]:
        a, c = rng.normal(size=(m, k)), rng.normal(size=(m, n))
        for b in layouts(rng, k, n, "float64"):
            out = c.copy()
            product(out, a, pack(b), True)
            np.testing.assert_allclose(out, c + a @ b, rtol=1e-12, atol=1e-12)


def test_errors_name_the_op_and_the_shapes():
    with pytest.raises(ShapeError, match=rf"^{MatMul.name}: .*\(2, 3\) and \(2, 3\)"):
        MatMul()(Tensor(np.ones((2, 3))), Tensor(np.ones((2, 3))))
    with pytest.raises(ShapeError, match="^mat.*do not broadcast"):
        MatMul()(Tensor(np.ones((2, 3, 4))), Tensor(np.ones((3, 4, 5))))
    with pytest.raises(ShapeError, match=r"^affine: .*\(2, 3\), \(4, 2\)"):
        Affine()(Tensor(np.ones((2, 3))), Tensor(np.ones((4, 2))), None)
    with pytest.raises(TypeError, match="float64.*float32"):
        MatMul()(Tensor(np.ones((2, 3))), Tensor(np.ones((3, 2), np.float32)))


needs_jit = pytest.mark.skipif(not device.JIT, reason="without the JIT a product is NumPy's")


@needs_jit
def test_the_same_bits_for_one_thread_and_for_all(monkeypatch):
    monkeypatch.setattr(device, "PARALLEL_ABOVE", 0)
    rng = np.random.default_rng(7)
    a, b = rng.normal(size=(300, 130)).astype("f"), rng.normal(size=(130, 300)).astype("f")
    heads, vectors = rng.normal(size=(3, 2, 70, 20)).astype("f"), rng.normal(size=(3, 2, 70, 1)).astype("f")
    before, results = device.get_num_threads(), []
    try:
        for threads in (1, before):
            device.set_num_threads(threads)
            results.append([matmul(a, b), matmul(b.T, a.T), matmul(a[:70], b), matmul(heads, heads.swapaxes(2, 3)),
                            column_sums(a), matmul(a, b[:, :1].copy()), matmul(a[:1], b), matmul(b[:1], b.T),
                            matmul(vectors.swapaxes(2, 3), heads), matmul(vectors, vectors.swapaxes(2, 3))])
    finally:
        device.set_num_threads(before)
    for one, two in zip(*results, strict=True):
        assert one.tobytes() == two.tobytes()


@needs_jit
def test_numpy_is_not_asked(monkeypatch):
    def never(*args, **options):
        raise AssertionError("a product was left to NumPy's BLAS")
    monkeypatch.setattr(module.np, "matmul", never)
    monkeypatch.setattr(module.np, "dot", never)
    x, w = Tensor(np.ones((600, 70)), requires_grad=True), Tensor(np.ones((90, 70)), requires_grad=True)
    ((x @ w.T).sum() + Affine()(x, w, None).sum()).backward()
    assert w.grad.numpy()[0, 0] == 1200


ASLEEP = """
import os, numpy as np
def threads(): return set(os.listdir('/proc/self/task'))
def on_cpu(ids): return sum(int(open(f'/proc/self/task/{i}/schedstat').read().split()[0]) for i in ids)
blas = threads() - {str(os.getpid())}               # made when NumPy was imported
from tinyattn.ops.matmul import matmul
a = np.ones((512, 512), np.float32)
matmul(a, a)                                        # compiled, pool started
before = on_cpu(blas)
for _ in range(50): matmul(a, a)
ours = on_cpu(blas) - before
for _ in range(50): a @ a
print(len(blas), ours, on_cpu(blas) - before - ours)
"""


@needs_jit
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the run time of each thread from /proc")
def test_blas_threads_stay_asleep():
    """A product of ours gives the threads of NumPy's BLAS nothing to do, so they do not spin when a kernel comes after it."""
    done = subprocess.run([sys.executable, "-c", ASLEEP], capture_output=True, text=True, check=True)
    count, ours, numpys = map(int, done.stdout.split())
    if not count or numpys < 1_000_000:
        pytest.skip("this NumPy starts no threads of its own")
    assert ours < numpys / 20
