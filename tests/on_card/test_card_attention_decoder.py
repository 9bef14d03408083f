"""Bahdanau's decoder on a card, all steps in one launch. (Second gradients: `test_engine.py`, on its samples.)"""
import numpy as np
import pytest
from agreement import TIGHT

from tinyattn import Tensor, cuda, grad
from tinyattn.ops.attention_decoder import AttentionDecoder

CONVENTIONS = [(r, u) for r in ("after", "before") for u in ("keep", "write")]
HOLES = np.array([[True, False, True, True, False, True, True], [False] * 7, [False, True, False, False, False, False, False]])


def inputs_of(b, t, s, n, a, e, mask=None, dtype="float64", seed=0):
    rng = np.random.default_rng(seed)
    shapes = (b, t, 3 * n), (b, n), (b, s, e), (b, s, a), (a, n), (a,), (3 * n, e), (3 * n, n)
    return [rng.normal(size=shape).astype(dtype) for shape in shapes] + [None if mask is None else mask.reshape(b, 1, s)]


def run(arrays, device, convention=("before", "write"), wanted=None):
    """Outputs, and gradients of the inputs (or of those with the numbers `wanted`), by loops."""
    xs = [None if a is None else Tensor(a, device=device, requires_grad=a.dtype.kind == "f" and (wanted is None or i in wanted))
          for i, a in enumerate(arrays)]
    outs = AttentionDecoder(*convention)(*xs)
    rng = np.random.default_rng(9)
    g = [Tensor(rng.normal(size=out.shape).astype(out.dtype), device=device) for out in outs]
    grads = grad(list(outs), [x for x in xs if x is not None and x.requires_grad], g)
    assert all(t.device == device for t in (*outs, *grads))
    return [t.numpy() for t in (*outs, *grads)]


def close(found, expected, **tolerance):
    for a, b in zip(found, expected, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        np.testing.assert_allclose(a, b, **(tolerance or TIGHT["float64"]))


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("sizes", [(3, 4, 9), (5, 3, 2)])
def test_decoder_agrees(sizes, convention):
    """Masks with holes, a sentence that may attend to nothing, more words, keys and units than a block takes at a time."""
    arrays = inputs_of(3, 2, 7, *sizes, HOLES)
    here, there = [run(arrays, device, convention) for device in ("cpu", "cuda")]
    close(there, here)
    hidden = ~HOLES
    assert (there[4][hidden] == 0).all() and (there[5][hidden] == 0).all() and (there[1][1] == 0).all()


def test_decoder_in_float32():
    arrays = inputs_of(2, 3, 4, 3, 2, 3, HOLES[:2, :4], "float32")
    close(run(arrays, "cuda"), run(arrays, "cpu"), rtol=2e-5, atol=3e-6)


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1, 1, 1), (0, 2, 2, 2, 2, 2), (2, 0, 2, 2, 2, 2), (2, 1, 0, 2, 2, 2)])
def test_sizes_at_the_edge(sizes):
    for convention in CONVENTIONS[::3]:
        close(run(inputs_of(*sizes), "cuda", convention), run(inputs_of(*sizes), "cpu", convention))


def test_large_scores_and_what_is_hidden():
    arrays = inputs_of(2, 2, 3, 2, 2, 2, np.array([[True, True, False], [True, False, True]]))
    arrays[5] *= 1e4
    close(run(arrays, "cuda"), run(arrays, "cpu"), rtol=1e-9, atol=1e-9)
    arrays[2][0, 2] = arrays[3][0, 2] = np.nan  # what stands behind the mask is not looked at
    assert all(np.isfinite(a).all() for a in run(arrays, "cuda"))
    arrays[3][0, 1] = np.nan
    s, c = run(arrays, "cuda")[:2]
    assert np.isnan(c[0, 0]).all() and np.isfinite(c[1]).all() and np.isfinite(s[1]).all()


@pytest.mark.parametrize("i", range(8))
def test_each_gradient_alone(i):
    arrays = inputs_of(2, 2, 3, 2, 2, 2, HOLES[:2, :3])
    convention = CONVENTIONS[i % 4]
    whole = run(arrays, "cpu", convention)
    close(run(arrays, "cuda", convention, {i}), [*whole[:2], whole[2 + i]])


def test_one_launch_for_all_steps_and_the_same_bits_twice(monkeypatch):
    names = []

    def launch(kernel, grid, arguments, before=cuda.CudaKernel._launch):
        names.append(kernel.name)
        before(kernel, grid, arguments)

    monkeypatch.setattr(cuda.CudaKernel, "_launch", launch)
    counts = []
    for t in (1, 3):
        names.clear()
        found, again = [run(inputs_of(2, t, 3, 2, 3, 2), "cuda") for _ in range(2)]
        for a, b in zip(found, again, strict=True):
            np.testing.assert_array_equal(a, b)
        counts.append(len(names))
        assert names.count("recurrent.decoder") == names.count("recurrent.decoder_back") == 2
    assert counts[0] == counts[1]


def test_errors_read_as_on_the_cpu():
    arrays = inputs_of(2, 2, 3, 2, 2, 2, HOLES[:2, :3])
    for i, value, error, what in [(8, np.ones((2, 3), bool), ValueError, r"mask \(B,1,S\), got"),
                                  (8, np.ones((2, 1, 3)), TypeError, "a mask is boolean"),
                                  (5, np.ones(3), ValueError, r"attention_decoder: expected x \(B,T,3N\)"),
                                  (1, np.ones((2, 2), "f"), TypeError, "expected floats of one type")]:
        changed = [*arrays[:i], value, *arrays[i + 1:]]
        with pytest.raises(error, match=what):
            AttentionDecoder()(*[Tensor(a, device="cuda") for a in changed])
