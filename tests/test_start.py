"""What a fresh process waits for: the notice that kernels are compiled, the files they are kept in, `tinyattn warmup`."""
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from numba.core import caching

from tinyattn import device

ROOT = Path(__file__).parent.parent
needs_jit = pytest.mark.skipif(not device.JIT, reason="without the JIT nothing is compiled")
COMPILES = "compiling kernels: up to half a minute, "


def run(code, **changes):
    """A fresh Python that runs some lines; a value None takes a variable out of its environment."""
    env = {name: value for name, value in {**os.environ, "PYTHONPATH": str(ROOT), **changes}.items() if value is not None}
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)


# ---------------------------------------------------------------------------------------------------------------------
# the notice
# ---------------------------------------------------------------------------------------------------------------------
SLOW = """
import time
from tinyattn import device
clock = [0.0]
time.perf_counter = lambda: clock[0]
for seconds in ({seconds}):
    with device.event.trigger_event("numba:compile", data={{"dispatcher": device.numba.njit({function})}}):
        clock[0] += seconds
        with device.event.trigger_event("numba:compile", data={{"dispatcher": device.numba.njit({function})}}):
            clock[0] += seconds
"""


def say(seconds, function="device.notice", **changes):
    return run(SLOW.format(seconds=seconds, function=function), **changes).stderr


@needs_jit
def test_the_notice_comes_once_and_only_after_a_second_of_compiling(tmp_path):
    """A clock of our own; each compilation here has another one within it, as that of a kernel that calls one."""
    assert say("0.1, 0.2, 0.1, 0.0", TINYATTN_CACHE=str(tmp_path)) == ""  # 0.8 s in all
    assert say("0.1, 0.2, 0.3, 0.0", TINYATTN_CACHE=str(tmp_path)) == COMPILES + "once on a machine\n"  # 1.2 s
    assert say("1.1,", TINYATTN_CACHE=str(tmp_path)) == COMPILES + "once on a machine\n"  # within the first


@needs_jit
def test_the_notice_is_about_our_kernels_only(tmp_path):
    assert say("2.0, 2.0", "(lambda x: x)", TINYATTN_CACHE=str(tmp_path)) == ""


@needs_jit
def test_the_notice_says_if_nothing_can_be_kept(tmp_path):
    (tmp_path / "file").write_text("x")
    said = say("2.0, 2.0", TINYATTN_CACHE=str(tmp_path / "file"))
    assert said.startswith(COMPILES + "each time") and "TINYATTN_CACHE" in said and said.count("\n") == 1


def test_a_notice_does_not_tear_a_bar(capsys):
    from tqdm import tqdm
    with tqdm(total=2, file=sys.stderr, leave=False):
        device.notice("one line")
    assert "\rone line\n" in capsys.readouterr().err


@needs_jit
def test_numba_reports_each_compilation(monkeypatch):
    seen, start = [], device.patience.on_start

    def on_start(compilation):
        seen.append(compilation.data["dispatcher"])
        start(compilation)

    monkeypatch.setattr(device.patience, "on_start", on_start)
    kernel = device.numba.njit(_twice)
    assert not seen and kernel(2.0) == 4.0 and seen == [kernel]
    assert kernel(3.0) == 6.0 and seen == [kernel] and not device.patience.begun


def _twice(x):
    return 2 * x


# ---------------------------------------------------------------------------------------------------------------------
# the files of a kernel
# ---------------------------------------------------------------------------------------------------------------------
def files(folder, stamp="now", cls=device._KernelFile):
    return cls(cache_path=str(folder), filename_base="kernel", source_stamp=stamp)


def test_every_kernel_uses_these_files():
    from tinyattn.ops import unary
    if device.JIT and device.CACHE:
        assert type(unary._tanh._cache._cache_file) is device._KernelFile


def test_signatures_saved_at_one_moment_get_files_of_their_own(tmp_path, monkeypatch):
    """Each saver reads the index, and is then held up. With Numba's class all four take the first number."""
    load = caching.IndexDataCacheFile._load_index

    def slow(file):
        found = load(file)
        time.sleep(0.05)
        return found

    def collide(cls, folder):
        folder.mkdir()
        with monkeypatch.context() as patch:
            patch.setattr(caching.IndexDataCacheFile, "_load_index", slow)
            savers = [threading.Thread(target=files(folder, cls=cls).save, args=(n, f"code {n}")) for n in range(4)]
            for saver in savers:
                saver.start()
            for saver in savers:
                saver.join()
        return [files(folder, cls=cls).load(n) for n in range(4)]

    if device.flock:
        assert collide(device._KernelFile, tmp_path / "ours") == [f"code {n}" for n in range(4)]
    assert collide(caching.IndexDataCacheFile, tmp_path / "numba") != [f"code {n}" for n in range(4)]


@pytest.mark.parametrize("place", ["_save_index", "_save_data"])
def test_a_kill_while_saving_leaves_no_stale_kernel(tmp_path, monkeypatch, place):
    files(tmp_path, "before the edit").save("signature", "old code")
    with monkeypatch.context() as patch:
        def die(*args):
            raise KeyboardInterrupt
        patch.setattr(device._KernelFile, place, die)
        with pytest.raises(KeyboardInterrupt):
            files(tmp_path, "after the edit").save("signature", "new code")
    assert files(tmp_path, "after the edit").load("signature") is None
    files(tmp_path, "after the edit").save("signature", "new code")
    files(tmp_path, "after the edit").save("other", "more code")
    files(tmp_path, "after the edit").save("signature", "newer code")
    assert [files(tmp_path, "after the edit").load(n) for n in ("signature", "other")] == ["newer code", "more code"]
    assert files(tmp_path, "before the edit").load("signature") is None


@needs_jit
def test_doctor_names_the_pool_before_anything_has_run():
    said = run("from tinyattn.cli import main; main(['doctor'])").stdout
    assert any(line.split()[-1] in ("omp", "tbb", "workqueue") for line in said.splitlines() if line.startswith("threading"))


# ---------------------------------------------------------------------------------------------------------------------
# warmup
# ---------------------------------------------------------------------------------------------------------------------
def warmup(*words, **changes):
    env = {**os.environ, "PYTHONPATH": str(ROOT), **changes}
    return subprocess.Popen([sys.executable, "-m", "tinyattn", "warmup", *words], env=env, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, start_new_session=True)


def whole(folder):
    """How many kernels a cache folder holds; each index names files that can be read."""
    indices = [p for p in Path(folder).rglob("*.nbi") if "fused_" not in p.name]
    count = len(list(Path(folder).rglob("fused_*.nbc")))  # of captured steps: their modules have no place to be imported from
    for index in indices:
        with open(index, "rb") as file:
            pickle.load(file)
            _, names = pickle.load(file)
        for name in names.values():
            pickle.loads((index.parent / name).read_bytes())
        count += len(set(names.values()))
    return count


@needs_jit
def test_warmup_of_a_system_leaves_nothing_to_compile(tmp_path):
    process = warmup("qa", TINYATTN_CACHE=str(tmp_path))
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0 and err == "" and int(out.split()[0]) == whole(tmp_path) > 10
    trained = run(f"""
        import sys
        from tinyattn import device
        from tinyattn.cli import main
        device.event.register("numba:compile", type("Listener", (device.event.Listener,), {{
            "on_start": lambda self, e: print("compiled", e.data["dispatcher"].py_func.__name__), "on_end": print}})())
        sys.exit(main(["train", "qa", "--steps", "2", "--run", {str(tmp_path / "run")!r}]))
    """.replace("\n        ", "\n"), TINYATTN_CACHE=str(tmp_path))
    assert "training" in trained.stdout and "compiled" not in trained.stdout


@needs_jit
@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_ctrl_c_ends_warmup_and_its_processes_and_keeps_what_was_compiled(tmp_path):
    process = warmup("--jobs", "2", TINYATTN_CACHE=str(tmp_path))
    deadline = time.monotonic() + 120
    while len(list(tmp_path.rglob("*.nbc"))) < 3 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)  # ends only when no process holds the pipes any more
    assert process.returncode == 130 and out == "" and err.strip() == "interrupted"
    assert whole(tmp_path) >= 3


def test_warmup_names_the_systems_there_are():
    process = warmup("nonsense")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 2 and out == "" and err.startswith("tinyattn: system: expected one of aspects, ")
    assert err.count("\n") == 1
