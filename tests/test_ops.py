"""Every op of the package, from its samples: gradients to order 2, dtypes, memory layouts, threads, without the JIT."""
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tinyattn import device
from tinyattn.autograd import Op, grad
from tinyattn.gradcheck import check_op
from tinyattn.slopes import flat, is_float
from tinyattn.tensor import Tensor

ROOT = Path(__file__).parent.parent
SEED = 3


def samples(op):
    return list(op.samples(np.random.default_rng(SEED)))


def run(op, attributes, inputs, weights=None, dtype=np.float64, kinds=None):
    """(outputs, gradients, weights): float outputs and the gradients of all float inputs as arrays."""
    tensors = [x if x is None else Tensor(x) if not is_float(x) else
               Tensor._wrap(np.asarray(x).astype(dtype, copy=False), None, 0, False).requires_grad_() for x in inputs]
    outs = [t for t in flat(op(**attributes)(*tensors)) if t.dtype.kind == "f"]
    wanted = [t for t in tensors if t is not None and t.requires_grad]
    if weights is None:
        rng = np.random.default_rng(SEED)
        weights = [np.asarray(rng.normal(size=o.shape), o.dtype) for o in outs]
    used = [(o, Tensor._wrap(w, None, 0, False)) for o, w in zip(outs, weights) if o.requires_grad]
    grads = grad([o for o, _ in used], wanted, [w for _, w in used], allow_unused=True) if used else []
    return [o.numpy() for o in outs], [None if g is None else g.numpy() for g in grads], weights


def same(found, expected, rtol=1e-12, atol=1e-12):
    for a, b in zip(found, expected, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            assert a.shape == b.shape and a.dtype == b.dtype
            np.testing.assert_allclose(a, b, rtol, atol)


def test_gradients_to_order_two(op):
    """Kind 7 too: the checker compares shape and dtype of every gradient with those of its Tensor."""
    reports = check_op(op, order=2, seed=0)
    assert reports and all(r.ok for r in reports), "\n".join(str(r) for r in reports if not r.ok)


@pytest.mark.parametrize("name",
                         ["mul", "where", "softmax", "matmul", "prod", "split", "concat", "cumsum", "layer_norm"])
def test_whole_jacobian(name):
    reports = check_op(Op.registry[name], order=2, seed=1, mode="full")
    assert all(r.ok for r in reports), "\n".join(str(r) for r in reports if not r.ok)


# ---------------------------------------------------------------------------------------------------------------------
# kind 13: memory layouts. kind 14: dtypes. kind 8: no shared memory
# ---------------------------------------------------------------------------------------------------------------------
def layouts(x):
    """The numbers of x in other orders of memory."""
    x = np.asarray(x)
    if x.ndim == 0:
        yield from ((name, x) for name in ("columns", "reversed", "every second"))
        return
    yield "columns", np.asfortranarray(x)
    backwards = (slice(None, None, -1),) * x.ndim
    yield "reversed", x[backwards].copy()[backwards]
    wide = np.zeros([2 * n for n in x.shape], x.dtype)
    wide[(slice(None, None, 2),) * x.ndim] = x
    yield "every second", wide[(slice(None, None, 2),) * x.ndim]


def stretched(x):
    """x with its first element everywhere: as a copy, and with strides of 0."""
    shown = np.broadcast_to(x[(slice(0, 1),) * x.ndim], x.shape)
    return np.array(shown, order="C"), shown


def test_any_memory_layout(op):
    for attributes, inputs in samples(op):
        outs, grads, weights = run(op, attributes, inputs)
        moved = [dict(layouts(x)) if is_float(x) else None for x in inputs]
        for name in ("columns", "reversed", "every second"):
            found = run(op, attributes, [x if m is None else m[name] for x, m in zip(inputs, moved, strict=True)],
                        weights)
            same(found[0] + found[1], outs + grads)
        kinds = [dict(layouts(w)) for w in weights]
        for name in kinds[0] if kinds else ():
            same(run(op, attributes, inputs, [k[name] for k in kinds])[1], grads)
        if all(w.size for w in weights):
            pairs = [stretched(w) for w in weights]
            same(run(op, attributes, inputs, [b for _, b in pairs])[1],
                 run(op, attributes, inputs, [a for a, _ in pairs])[1])


def test_float32_stays_float32(op):
    for attributes, inputs in samples(op):
        if attributes.get("dtype"):
            continue
        outs, grads, weights = run(op, attributes, inputs)
        few = run(op, attributes, inputs, [w.astype(np.float32) for w in weights], np.float32)
        large = max(np.abs(x[np.isfinite(x)]).max(initial=1.0) for x in map(np.asarray, inputs) if is_float(x))
        for single, exact in zip(few[0] + few[1], outs + grads, strict=True):
            if single is not None:
                assert single.dtype == np.float32 and single.shape == exact.shape
                size = np.abs(exact[np.isfinite(exact)]).max(initial=1.0)
                np.testing.assert_allclose(single, exact, 2e-5 + 1e-7 * large, 2e-5 * size)


def test_gradients_have_memory_of_their_own(op):
    """Kind 8. `fresh` promises it of the loop itself, and the walk adds in place because of it."""
    for attributes, inputs in samples(op):
        outs, grads, weights = run(op, attributes, inputs)
        held = [a for a in [*outs, *weights, *[x for x in inputs if is_float(x)]] if a.size]
        grads = [g for g in grads if g is not None and g.size]
        for i, g in enumerate(grads):
            assert not any(np.shares_memory(g, other) for other in [*held, *grads[:i]])
        if op.cpu_grad is None or not op.fresh:
            continue
        tensors = [x if x is None else Tensor(x, requires_grad=is_float(x), dtype="float64" if is_float(x) else None)
                   for x in inputs]
        result = op(**attributes)(*tensors)
        node = flat(result)[0].op
        if node is None:
            continue
        node.needs = [t is not None and t.requires_grad for t in tensors]
        g = tuple(weights) if isinstance(result, tuple) else weights[0]
        y = node.outs if isinstance(result, tuple) else node.outs[0]
        made = [a for a in node.cpu_grad(g, y, *[None if t is None else t.array for t in tensors]) if a is not None
                and a.size]
        others = [*weights, *node.outs, *[t.array for t in tensors if t is not None]]
        for i, a in enumerate(made):
            assert not any(np.shares_memory(a, b) for b in [*others, *made[:i]] if b.size), f"{op.name}: not fresh"


def test_inputs_and_incoming_gradients_are_not_changed(op):
    for attributes, inputs in samples(op):
        before = [None if x is None else np.array(x) for x in inputs]
        _, _, weights = run(op, attributes, inputs)
        kept = [w.copy() for w in weights]
        run(op, attributes, inputs, weights)
        for x, y in zip([*inputs, *weights], [*before, *kept], strict=True):
            assert x is None or np.array_equal(x, y, equal_nan=True)


def test_samples_are_complete(op):
    """Each op has a formula, a docstring, and a sample in which something is differentiated."""
    assert op.tex and op.__doc__
    assert any(is_float(x) for _, inputs in samples(op) for x in inputs)


def test_every_op_is_here():
    names = ("add mul div pow maximum exp log tanh sigmoid relu gelu softplus where clip sum mean max prod norm cumsum "
             "matmul affine softmax log_softmax log_sum_exp cross_entropy layer_norm dropout getitem embedding gather "
             "scatter_add reshape permute expand flip pad split stack concat unfold solve additive_scores")
    assert set(names.split()) <= set(Op.registry)
    assert not {"extreme", "reduction", "scan"} & set(Op.registry)


# ---------------------------------------------------------------------------------------------------------------------
# kind 45: threads, and without the JIT
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.skipif(not device.JIT, reason="without the JIT there is one thread")
def test_one_and_two_threads_give_the_same_bits(op, monkeypatch):
    if device.numba.config.NUMBA_NUM_THREADS < 2:
        pytest.skip("this machine has one thread")
    threads = device.get_num_threads()
    results = []
    for count, limit in ((1, device.PARALLEL_ABOVE), (2, -1)):  # below -1 ns every kernel that can goes parallel
        monkeypatch.setattr(device, "PARALLEL_ABOVE", limit)
        device.set_num_threads(count)
        try:
            results.append([run(op, attributes, inputs, dtype=np.float32) for attributes, inputs in samples(op)[:3]])
        finally:
            device.set_num_threads(threads)
    for one, two in zip(*results, strict=True):
        for a, b in zip(one[0] + one[1], two[0] + two[1], strict=True):
            assert (a is None and b is None) or a.tobytes() == b.tobytes()


PLAIN = """
import importlib, pkgutil, sys
import numpy as np
sys.path.insert(0, "tests")
import tinyattn.ops
for module in pkgutil.iter_modules(tinyattn.ops.__path__):
    importlib.import_module("tinyattn.ops." + module.name)
from tinyattn import device
from test_ops import first_results
assert not device.JIT
np.savez(sys.argv[1], **first_results())
"""


def first_results():
    """name -> array: outputs and gradients of the first three samples of every op, in float32."""
    results = {}
    for name, op in sorted(Op.registry.items()):
        for n, (attributes, inputs) in enumerate(samples(op)[:3]):
            outs, grads, _ = run(op, attributes, inputs, dtype=np.float32)
            results.update({f"{name}/{n}/{i}": a for i, a in enumerate(outs + grads) if a is not None})
    return results


@pytest.mark.skipif(not device.JIT, reason="compares with the JIT")
def test_without_the_jit(tmp_path):
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"}
    path = tmp_path / "plain.npz"
    done = subprocess.run([sys.executable, "-c", PLAIN, str(path)], cwd=ROOT, env=environment, capture_output=True,
                          text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    plain, compiled = np.load(path), first_results()
    assert set(plain.files) == set(compiled) and len(compiled) > 300
    for name, a in compiled.items():
        assert plain[name].dtype == a.dtype and plain[name].shape == a.shape, name
        np.testing.assert_allclose(plain[name], a, 1e-4, 1e-4, err_msg=name)


# ---------------------------------------------------------------------------------------------------------------------
# kind 46: importing, the cache folder, child processes
# ---------------------------------------------------------------------------------------------------------------------
def python(code, **environment):
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=ROOT, capture_output=True, text=True,
                          timeout=300,
                          env={**os.environ, "PYTHONPATH": str(ROOT), **environment})
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_import_compiles_nothing():
    shown = python("""
import importlib, pkgutil, sys
import tinyattn, tinyattn.ops
assert "numba" not in sys.modules, "import tinyattn alone must be quick"
for package in (tinyattn, tinyattn.ops):
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(package.__name__ + "." + module.name)
kernels = [v for m in list(sys.modules.values()) if m.__name__.startswith("tinyattn") for v in vars(m).values()
           if hasattr(v, "signatures") and hasattr(v, "py_func")]
print(len(kernels), sum(len(k.signatures) for k in kernels), "numba.cuda.cudadrv.driver" in sys.modules)
""")
    kernels, signatures, _ = shown.split()
    assert int(kernels) > 60 and int(signatures) == 0


ONE_STEP = """
import numpy as np
from tinyattn.tensor import Tensor
x = Tensor([1.0, 2.0], requires_grad=True)
(x * x).sum().backward()
print(x.grad.tolist())
"""


@pytest.mark.parametrize("kind", ["a file in the way", "read-only", "no home"])
def test_a_cache_folder_that_cannot_be_used_only_costs_time(kind, tmp_path):
    if kind == "a file in the way":
        place = tmp_path / "file"
        place.write_text("not a folder")
        environment = {"TINYATTN_CACHE": str(place)}
    elif kind == "read-only":
        place = Path("/proc") if Path("/proc").is_dir() else tmp_path / "closed"
        place.mkdir(mode=0o500, exist_ok=True)
        environment = {"TINYATTN_CACHE": str(place)}
    else:
        environment = {"HOME": "/nonexistent/home", "XDG_CACHE_HOME": "", "TINYATTN_CACHE": ""}
    environment["NUMBA_CACHE_DIR"] = ""
    assert python(ONE_STEP, **environment).strip() == "[2.0, 4.0]"


def big_step(seed):
    """A product large enough for several threads, and its gradient."""
    x = Tensor(np.random.default_rng(seed).normal(size=(600, 300)).astype(np.float32), requires_grad=True)
    (x @ x.T).softmax().sum().backward()
    return float(np.abs(x.grad.numpy()).sum())


def _child(seed, results):
    results.put(big_step(seed))


@pytest.mark.parametrize("method", [m for m in ("fork", "spawn") if m in multiprocessing.get_all_start_methods()])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_children_after_a_parallel_kernel(method):
    expected = big_step(0)  # the pool of threads is running now
    context = multiprocessing.get_context(method)
    results = context.Queue()
    child = context.Process(target=_child, args=(0, results))
    child.start()
    try:
        assert results.get(timeout=120) == pytest.approx(expected, rel=1e-5)
    finally:
        child.join(30)
        if child.is_alive():
            child.kill()
    assert child.exitcode == 0
    assert big_step(0) == expected
