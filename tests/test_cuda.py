"""The CUDA kernels on a machine without a card: in Numba's simulator, and compiled to PTX, each in its own process.

What this shows: the kernels' logic, thread by thread, gives the CPU's results (simulator), and NVIDIA's compiler takes
them for both capabilities (PTX). It shows nothing about speed, nor about what only a card can do wrong.
"""
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def surroundings(**environment):
    env = {k: v for k, v in os.environ.items() if k != "NUMBA_ENABLE_CUDASIM"} | environment
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "tests"), *filter(None, [env.get("PYTHONPATH")])])
    return env


def python(*arguments, **environment):
    """Run Python in the repository with or without the simulator; the finished process."""
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, env=surroundings(**environment), capture_output=True,
                          text=True, timeout=600)


PARTS = {"engine": ["test_card_engine.py"],  # about half of the time
         "families": sorted(p.name for p in (ROOT / "tests/on_card").glob("test_*.py") if p.stem != "test_card_engine")}


@pytest.fixture(scope="module")
def simulations(tmp_path_factory):
    """The tests of `on_card` in the simulator, which has one thread: two processes side by side."""
    folder, running = tmp_path_factory.mktemp("simulated"), {}
    for part, files in PARTS.items():
        with open(folder / part, "w") as said:
            running[part] = subprocess.Popen(
                [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *(f"tests/on_card/{f}" for f in files)],
                cwd=ROOT, env=surroundings(NUMBA_ENABLE_CUDASIM="1"), stdout=said, stderr=subprocess.STDOUT)
    yield {part: (process, folder / part) for part, process in running.items()}
    for process in running.values():
        process.kill()


@pytest.mark.parametrize("part", list(PARTS))
def test_kernels_in_the_simulator_agree_with_the_cpu(part, simulations):
    process, said = simulations[part]
    assert process.wait(timeout=1800) == 0, said.read_text()[-6000:]


def test_kernels_in_the_simulator_without_the_jit():
    code = """if True:
        import numpy as np, tinyattn as ta
        x = ta.Tensor(np.arange(6.0).reshape(2, 3), device='cuda', requires_grad=True)
        ((x * 2).softmax() @ x.T).sum().backward()
        print(x.grad.device)"""
    run = python("-c", code, NUMBA_ENABLE_CUDASIM="1", NUMBA_DISABLE_JIT="1")
    assert run.stdout.strip() == "cuda" and not run.stderr, run.stderr


# ---------------------------------------------------------------------------------------------------------------------
# compiled for cards that are not there
# ---------------------------------------------------------------------------------------------------------------------
def missing(run):
    """Skips where NVIDIA's compiler is missing; with TINYATTN_NEED_PTX=1, as in .ci/run, that is a failure."""
    if run.returncode == 2 and "tinyattn[cuda]" in run.stderr:
        assert not os.environ.get("TINYATTN_NEED_PTX"), run.stderr
        pytest.skip(run.stderr)


@pytest.fixture(scope="module")
def ptx():
    """A row of `tinyattn ptx` for every kernel, signature and capability, with the PTX text."""
    run = python("-m", "tinyattn", "ptx", "--json", "--text")
    missing(run)
    assert run.returncode in (0, 1), run.stderr[-4000:]
    return json.loads(run.stdout)


WITH_BARRIERS = {"reduce.sum", "reduce.fold", "softmax.softmax", "softmax.softmax_grad", "softmax.log_sum_exp",
                 "matmul.product_wide", "attention.attention", "recurrent.gru"}


def test_every_kernel_compiles_to_ptx(ptx):
    assert {row["kernel"] for row in ptx} >= WITH_BARRIERS
    assert {row["capability"] for row in ptx} == {"sm_80", "sm_90"}
    families = {row["kernel"].split(".")[0] for row in ptx}
    assert families >= {"binary", "unary", "reduce", "softmax", "matmul", "index", "shape", "select"}
    for row in ptx:
        assert row["text"], row["fault"]
        assert f".target {row['capability']}" in row["text"] and ".visible .entry" in row["text"], row["kernel"]
        if row["kernel"] in WITH_BARRIERS:
            assert ".shared " in row["text"] and "bar.sync" in row["text"], row["kernel"]


def test_no_two_kernels_have_one_name_and_none_is_forgotten(ptx):
    written = sum(len(re.findall(r"\n@(?:cuda_kernel|elementwise)\(", path.read_text(encoding="utf-8")))
                  for path in (ROOT / "tinyattn").rglob("*.py"))
    assert len({row["kernel"] for row in ptx}) == written


def test_no_kernel_spills_without_a_reason(ptx):
    """Registers spilled to memory, an array kept there, more shared memory or registers than a block has."""
    assert not {f"{row['kernel']} {row['capability']}: {row['fault']}" for row in ptx if row["fault"]}
    for row in ptx:
        assert row["shared"] <= 48 * 1024 and row["registers"] * 256 <= 65536 and row["threads"] >= 256, row["kernel"]
    reasons = {row["kernel"] for row in ptx if row["reason"]}
    assert reasons == {row["kernel"] for row in ptx if row["stack"] or row["spill_stores"]}, "a reason, but no spill"


def test_float32_kernels_compute_in_float32(ptx):
    """A literal in the wrong place widens to float64, which many cards do far slower. Who does it on purpose says so."""
    for row in ptx:
        if "float32" in row["arguments"] and "float64[" not in row["arguments"] and ".f64" in row["text"]:
            assert "float64" in (row["about"] or ""), row["kernel"]


def test_no_fast_math_in_device_code(ptx):
    for row in ptx:
        for word in ("div.approx", "div.full.f32", "sqrt.approx", "tanh.approx"):
            assert word not in row["text"], row["kernel"]
        if row["kernel"] == "binary.div":
            assert ("div.rn.f32" if "float32" in row["arguments"] else "div.rn.f64") in row["text"]


SPILLS = r"""if True:
    from tinyattn.cuda import cuda, cuda_kernel, link, ptx

    def _keeps(x, at):
        kept = cuda.local.array(20, x.dtype)
        for j in range(20):
            kept[j] = x[j]
        x[0] = kept[at[0]]  # which one is known at run time only, so they stand in memory

    def _wrong(x, at):
        x[0] = x.no_such_thing

    print(ptx.missing())
    for function, reason in ((_keeps, ""), (_keeps, "it must"), (_wrong, "")) if not ptx.missing() else ():
        kernel = cuda_kernel("T[::1], int64[::1]", ["float64"], spills=reason)(function)
        row, = ptx._compiled((kernel.name, kernel.signatures[0], [(9, 0)]))
        print(row.usage and row.usage.stack, row.fault)
    try:
        link.usage(".version 9.0\n.target sm_90\n.address_size 64\n.visible .entry f() { bad; }", (9, 0))
    except (RuntimeError, ValueError) as error:
        print(error)"""


def test_a_kernel_that_spills_is_found():
    run = python("-c", SPILLS)
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    if lines[0]:
        assert not os.environ.get("TINYATTN_NEED_PTX"), lines
        pytest.skip(lines[0])
    without, reasoned, wrong, assembler = lines[1:]
    assert without.startswith("160 a stack frame of 160 bytes") and "say why" in without
    assert reasoned.strip() == "160"
    assert wrong.startswith("None ptx: __main__.wrong (float64[::1], int64[::1]) does not compile") and "\x1b" not in wrong
    assert "no_such_thing" in wrong
    assert "Not a name of any known instruction: 'bad'" in assembler


def test_what_the_assembler_says():
    from tinyattn.cuda.link import Usage, most_threads, read
    small = """ptxas info    : Function properties for k
ptxas         .     8 bytes stack frame, 16 bytes spill stores, 24 bytes spill loads
ptxas info    : Used 33 registers, used 1 barriers, 1024 bytes smem, 624 bytes cmem[0]"""
    assert read(small, 1024) == Usage(33, 8, 16, 24, 1024, 1024)
    several = small + "\ninfo    : used 46 registers, used 1 barriers, 40 stack, 3072 bytes smem, 640 bytes cmem[0], 0 bytes lmem"
    assert read(several, 0) == Usage(46, 40, 16, 24, 0, 1024)
    with pytest.raises(ValueError, match="names no registers: it is empty"):
        read("", 0)
    assert [most_threads(n) for n in (0, 16, 64, 65, 80, 96, 128, 168, 255)] == [
        1024, 1024, 1024, 896, 768, 640, 512, 384, 256]


def test_the_limits_of_a_block():
    from tinyattn.cuda.link import Usage
    from tinyattn.cuda.ptx import fault_of
    assert fault_of(Usage(32, 0, 0, 0, 48 * 1024, 1024), "") == ""
    assert "49153 bytes of shared memory" in fault_of(Usage(32, 0, 0, 0, 48 * 1024 + 1, 1024), "")
    assert "4 bytes stored, 8 loaded" in fault_of(Usage(32, 8, 4, 8, 0, 1024), "")
    assert fault_of(Usage(32, 8, 4, 8, 0, 1024), "why") == ""


BROKEN = """if True:
    import sys
    from tinyattn.cli import main
    from tinyattn.cuda import cuda_kernel

    def _broken_cuda(x):
        x[0] = x.no_such_thing
    cuda_kernel('T[::1]', ['float32'])(_broken_cuda)
    sys.exit(main(['ptx', '__main__.broken', '--capability', '9.0', '--spills']))"""


def test_the_command_ptx():
    one = python("-m", "tinyattn", "ptx", "arrays.fill", "--capability", "8.6", "--text")
    missing(one)
    assert one.returncode == 0 and one.stdout.count(".target sm_86") == 3, one.stderr
    assert one.stdout.startswith("// arrays.fill (float32")
    table = python("-m", "tinyattn", "ptx", "logic.opposite", "arrays.fill", "--capability", "9.0")
    assert table.returncode == 0 and "logic.opposite" in table.stdout and "sm_80" not in table.stdout, table.stderr
    assert re.fullmatch(r"2 kernels, \d times compiled, 0 not as they should be", table.stdout.splitlines()[-1])
    broken = python("-c", BROKEN)
    assert broken.returncode == 1 and "1 not as they should be" in broken.stdout and "no_such_thing" in broken.stderr
    for words, said in ((["softmaks"], "softmaks: there is no such kernel; did you mean softmax"),
                        (["--capability", "9"], "--capability: expected such as 8.0,9.0, got '9'")):
        run = python("-m", "tinyattn", "ptx", *words)
        assert run.returncode == 2 and said in run.stderr and run.stderr.count("\n") == 1 and not run.stdout


HIDDEN = """
import os, sys
os.environ.pop('CUDA_HOME', None)
from numba.cuda import cuda_paths
cuda_paths.get_system_ctk = cuda_paths.get_cuda_home = cuda_paths.get_conda_ctk = lambda *names: None
from tinyattn import device
device.importlib.util.find_spec = lambda name: None
sys.modules['cuda'] = sys.modules['cuda.bindings'] = None
"""


def test_the_command_ptx_without_a_compiler():
    run = python("-m", "tinyattn", "ptx", NUMBA_ENABLE_CUDASIM="1")
    assert run.returncode == 2 and run.stderr == "tinyattn: ptx: the simulator compiles nothing; unset NUMBA_ENABLE_CUDASIM\n"
    for code in (HIDDEN, "import sys; sys.modules['cuda'] = sys.modules['cuda.bindings'] = None\n"):
        run = python("-c", code + "from tinyattn.cli import main; sys.exit(main(['ptx', 'binary.add']))")
        assert run.returncode == 2 and run.stderr.count("\n") == 1 and "tinyattn[cuda]" in run.stderr, run.stderr


# ---------------------------------------------------------------------------------------------------------------------
# doctor
# ---------------------------------------------------------------------------------------------------------------------
ASK = "import json; from tinyattn.cuda import __main__ as asked; print(json.dumps(asked.facts()))"
FACTS = {"cuda", "cuda driver", "libNVVM", "libdevice", "nvJitLink", "PTX", "compute-sanitizer"}


def test_what_doctor_says_of_a_machine_with_nothing():
    run = python("-c", HIDDEN + ASK, PATH="")
    facts = json.loads(run.stdout)
    assert set(facts) >= FACTS and all("\n" not in line for line in facts.values())
    for name in ("libNVVM", "libdevice", "nvJitLink", "PTX"):
        assert facts[name].startswith("none; install the extra tinyattn[cuda]"), facts
    assert facts["compute-sanitizer"].startswith("not on the PATH") and not run.stderr


def test_what_doctor_says_of_a_card():
    """The driver is pretended (see `fake_driver.py`); Numba and NVIDIA's compiler are the real ones."""
    card = "import fake_driver; fake_driver.install(version={}, total=80 << 30, capability=(8, 6))\n"
    facts = json.loads(python("-c", card.format(13000) + ASK).stdout)
    assert facts["cuda"] == "present" and facts["cuda driver"].endswith("for CUDA 13.0")
    assert facts["cuda card 0"] == "Pretended 100, 80.0 GiB, capability 8.6, 132 multiprocessors"
    if facts["PTX"].startswith("none"):
        assert not os.environ.get("TINYATTN_NEED_PTX"), facts
    else:
        assert facts["PTX"] == "compiles for 8.0, 9.0, 8.6"
        old = json.loads(python("-c", card.format(12040) + ASK).stdout)
        assert "the driver is for 12.4: take a newer driver" in old["PTX"]


def test_doctor_neither_waits_nor_breaks(monkeypatch):
    from tinyattn.commands import health
    facts = health._cuda()
    assert set(facts) >= {*FACTS, "cuda simulator", "cuda memory pool"}
    monkeypatch.setattr(health, "PATIENCE", 0.01)
    assert "has not answered for 0.01 s" in health._cuda()["cuda"]
    monkeypatch.setattr(health.subprocess, "run",
                        lambda *words, **options: subprocess.CompletedProcess(words, -11, "", "much\nbroken\n"))
    assert health._cuda()["cuda"] == "unknown: the process that asked the driver ended with -11: broken"


# ---------------------------------------------------------------------------------------------------------------------
# a machine without a card
# ---------------------------------------------------------------------------------------------------------------------
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
