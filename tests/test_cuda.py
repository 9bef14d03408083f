"""The CUDA kernels on a machine without a card: in Numba's simulator, and compiled to PTX. Both need a process of their own.

What this shows: the kernels' logic, thread by thread, gives the CPU's results (simulator), and NVIDIA's compiler takes them for
both capabilities (PTX). It shows nothing about speed, nor about what only a card can do wrong.
"""
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def python(*arguments, **environment):
    """Run Python in the repository with or without the simulator; the finished process."""
    env = {k: v for k, v in os.environ.items() if k != "NUMBA_ENABLE_CUDASIM"} | environment
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [env.get("PYTHONPATH")])])
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, env=env, capture_output=True, text=True, timeout=600)


def test_kernels_in_the_simulator_agree_with_the_cpu():
    run = python("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "tests/simulated_cuda.py", NUMBA_ENABLE_CUDASIM="1")
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
    assert " passed" in run.stdout and "failed" not in run.stdout


def test_kernels_in_the_simulator_without_the_jit():
    code = """if True:
        import numpy as np, tinyattn as ta
        x = ta.Tensor(np.arange(6.0).reshape(2, 3), device='cuda', requires_grad=True)
        ((x * 2).softmax() @ x.T).sum().backward()
        print(x.grad.device)"""
    run = python("-c", code, NUMBA_ENABLE_CUDASIM="1", NUMBA_DISABLE_JIT="1")
    assert run.stdout.strip() == "cuda" and not run.stderr, run.stderr


PTX = """if True:
    import json
    from tinyattn import cuda, tensor
    missing = cuda.toolkit_missing()
    table = [] if missing else [
        (name, s, f"sm_{c[0]}{c[1]}", cuda.ptx(k, s, c))
        for name, k in cuda.CudaKernel.registry.items() for s in k.signatures for c in cuda.CAPABILITIES]
    print(json.dumps([missing, table]))"""


@pytest.fixture(scope="module")
def ptx():
    """[(kernel, signature, capability, PTX text)] of every kernel. TINYATTN_NEED_PTX=1 (set where it must run, as in .ci/run) makes
    a missing toolkit a failure."""
    run = python("-c", PTX)
    assert run.returncode == 0, run.stderr[-4000:]
    missing, table = json.loads(run.stdout)
    if missing:
        assert not os.environ.get("TINYATTN_NEED_PTX"), missing
        pytest.skip(missing)
    return table


def test_every_kernel_compiles_to_ptx(ptx):
    assert {c for _, _, c, _ in ptx} == {"sm_80", "sm_90"}
    assert {name.split(".")[0] for name, *_ in ptx} >= {"binary", "unary", "reduce", "softmax", "matmul", "index"}
    for name, _, capability, text in ptx:
        assert f".target {capability}" in text and ".visible .entry" in text, name
        if name in ("reduce.sum", "softmax.softmax", "softmax.softmax_grad", "matmul.product"):
            assert ".shared " in text and "bar.sync" in text, name


def test_float32_kernels_compute_in_float32(ptx):
    """A literal in the wrong place widens to float64, which a card does many times slower. The sum does it on purpose."""
    wide = {name for name, signature, _, text in ptx
            if "float32" in signature and "float64" not in signature and ".f64" in text}
    assert wide == {"reduce.sum"}


def test_no_fast_math_in_device_code(ptx):
    for name, signature, _, text in ptx:
        assert not any(word in text for word in ("div.approx", "div.full.f32", "sqrt.approx", "tanh.approx")), name
        if name in ("binary.div", "unary.sigmoid"):
            assert ("div.rn.f32" if "float32" in signature else "div.rn.f64") in text


def test_a_machine_without_a_card_says_so_in_one_line():
    code = """if True:
        import tinyattn as ta
        from tinyattn import device
        if device.cuda_status() == 'present':
            print('present')
        else:
            try:
                ta.Tensor([1.0]).to('cuda')
            except RuntimeError as error:
                print(error)"""
    run = python("-c", code)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "present" or \
        run.stdout.startswith("device 'cuda': no CUDA card or driver was found") and run.stdout.count("\n") == 1


def test_importing_the_ops_imports_no_cuda():
    run = python("-c", "import sys, tinyattn.tensor; print('numba.cuda' in sys.modules, 'numba.cuda.compiler' in sys.modules)")
    assert run.stdout.split() == ["False", "False"], run.stdout + run.stderr
