"""The CUDA kernels on a machine without a card: in Numba's simulator, and compiled to PTX, each in its own process.

What this shows: the kernels' logic, thread by thread, gives the CPU's results (simulator), and NVIDIA's compiler takes
them for both capabilities (PTX). It shows nothing about speed, nor about what only a card can do wrong.
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
    run = python("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "tests/on_card",
                 NUMBA_ENABLE_CUDASIM="1")
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]


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
    from tinyattn.cuda import ptx
    missing = ptx.toolkit_missing()
    table = [] if missing else [
        (name, s, f"sm_{c[0]}{c[1]}", ptx.ptx(k, s, c))
        for name, k in cuda.CudaKernel.registry.items() for s in k.signatures for c in cuda.CAPABILITIES]
    print(json.dumps([missing, table]))"""


@pytest.fixture(scope="module")
def ptx():
    """[(kernel, signature, capability, PTX text)] of every kernel. Where TINYATTN_NEED_PTX=1 is set, as in .ci/run, a
    missing toolkit is a failure."""
    run = python("-c", PTX)
    assert run.returncode == 0, run.stderr[-4000:]
    missing, table = json.loads(run.stdout)
    if missing:
        assert not os.environ.get("TINYATTN_NEED_PTX"), missing
        pytest.skip(missing)
    return table


def test_every_kernel_compiles_to_ptx(ptx):
    assert {c for _, _, c, _ in ptx} == {"sm_80", "sm_90"}
    families = {name.split(".")[0] for name, *_ in ptx}
    assert families >= {"binary", "unary", "reduce", "softmax", "matmul", "index", "shape", "select"}
    for name, _, capability, text in ptx:
        assert f".target {capability}" in text and ".visible .entry" in text, name
        if name in ("reduce.sum", "reduce.extreme", "softmax.softmax", "softmax.softmax_grad", "softmax.log_sum_exp",
                    "matmul.product"):
            assert ".shared " in text and "bar.sync" in text, name


def test_float32_kernels_compute_in_float32(ptx):
    """A literal in the wrong place widens to float64, which many cards do far slower. The sum does it on purpose."""
    wide = {name for name, signature, _, text in ptx
            if "float32" in signature and "float64[" not in signature and ".f64" in text}
    assert wide == {"reduce.sum"}


def test_no_fast_math_in_device_code(ptx):
    for name, signature, _, text in ptx:
        assert not any(word in text for word in ("div.approx", "div.full.f32", "sqrt.approx", "tanh.approx")), name
        if name == "binary.div":
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
    run = python("-c", "import sys, tinyattn.tensor; print([m for m in sys.modules if m.startswith('numba.cuda')])")
    assert run.stdout.strip() == "[]", run.stdout + run.stderr


def test_nvidias_compiler_is_found_in_its_packages(tmp_path):
    """nvidia-nvvm and nvidia-cuda-runtime put it where Numba itself does not look."""
    files = ["lib/libnvvm.so.4", "lib/libcudart.so.13", "nvvm/libdevice/libdevice.10.bc"]
    for file in files:
        (tmp_path / "nvidia/cu13" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "nvidia/cu13" / file).touch()
    code = f"""if True:
        from types import SimpleNamespace
        from numba.cuda import cuda_paths
        cuda_paths.get_system_ctk = cuda_paths.get_cuda_home = lambda *names: None
        from tinyattn import device
        there = SimpleNamespace(submodule_search_locations=[{str(tmp_path / "nvidia")!r}])
        device.importlib.util.find_spec = lambda name: there  # also where the real packages are installed
        device.numba_cuda()
        paths = cuda_paths.get_cuda_paths()
        print(*[paths[kind].info for kind in ("nvvm", "libdevice", "cudalib_dir")], sep="\\n")"""
    run = python("-c", code)
    root = tmp_path / "nvidia/cu13"
    assert run.stdout.split() == [str(root / "lib/libnvvm.so.4"), str(root / "nvvm/libdevice/libdevice.10.bc"),
                                  str(root / "lib")], run.stderr
