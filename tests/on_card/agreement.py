"""Does a function give on a card what it gives on the CPU?"""
import numpy as np

from tinyattn import Tensor, grad

TIGHT = {"float32": {"rtol": 3e-6, "atol": 3e-6}, "float64": {"rtol": 1e-12, "atol": 1e-12}}


def results(f, arrays, device, seed=5):
    """Values, gradients by loops, by rules, and of a fixed combination of those: NumPy arrays, or None."""
    xs = [None if a is None else Tensor(a, device=device, requires_grad=a.dtype.kind == "f") for a in arrays]
    outs = f(*xs)
    outs = list(outs) if isinstance(outs, tuple) else [outs]
    wanted = [x for x in xs if x is not None and x.requires_grad]
    found, ends = outs[:], [out for out in outs if out.requires_grad]
    if ends:
        rng = np.random.default_rng(seed)
        g = [Tensor(rng.normal(size=out.shape).astype(out.dtype), device=device) for out in ends]
        found += grad(ends, wanted, g, allow_unused=True)
        first = grad(ends, wanted, g, create_graph=True, allow_unused=True)
        found += first
        probes = [Tensor(rng.normal(size=x.shape).astype(x.dtype), device=device) for x in wanted]
        parts = [(a * p).sum() for a, p in zip(first, probes, strict=True) if a is not None and a.requires_grad]
        if parts:
            found += grad(sum(parts[1:], parts[0]), wanted, allow_unused=True)
    assert all(t is None or t.device == device for t in found)
    return [None if t is None else t.numpy() for t in found]


def agree(f, *arrays, dtype="float64"):
    arrays = [a.astype(dtype) if a is not None and a.dtype.kind == "f" else a for a in arrays]
    cpu, cuda = results(f, arrays, "cpu"), results(f, arrays, "cuda")
    assert len(cpu) == len(cuda)
    for a, b in zip(cpu, cuda, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            assert a.shape == b.shape and a.dtype == b.dtype
            np.testing.assert_allclose(b, a, **TIGHT[dtype])
    return cuda
