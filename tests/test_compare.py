"""Comparing attentions: a grid of runs, workers that die, a cluster, going on, tables and their intervals."""
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
from compare_system import Toy

from tinyattn import checkpoint, systems, tables, workers
from tinyattn import device as devices
from tinyattn.cli import main
from tinyattn.commands import compare as command
from tinyattn.commands.console import columns
from tinyattn.compare import Grid, _finished, run_grid
from tinyattn.config import Config
from tinyattn.errors import InputError
from tinyattn.train import train

ROOT = Path(__file__).parent.parent


def toy(marks, *attentions, seeds=(1, 2), **more):
    return Grid(Toy, attentions, seeds, options={"marks": str(marks)}, **more)


def figures(folder):
    """All of a run's metrics that do not depend on the clock."""
    metrics = json.loads((folder / "metrics.json").read_text())
    return {k: v for k, v in metrics.items() if k not in ("seconds", "options")}


def assert_same_run(a, b):
    """The same weights, optimiser, random numbers and losses, bit for bit."""
    one, two = checkpoint.load(a), checkpoint.load(b)
    for part in checkpoint.PARTS:
        assert getattr(one, part).keys() == getattr(two, part).keys()
        assert all(np.array_equal(x, getattr(two, part)[name]) for name, x in getattr(one, part).items()), part
    logs = [[{k: v for k, v in line.items() if k != "seconds"} for line in checkpoint.read_log(f)] for f in (a, b)]
    assert logs[0] == logs[1] and one.state["random"] == two.state["random"]
    assert figures(a) == figures(b)


@pytest.fixture(scope="module")
def disturbed(tmp_path_factory):
    """A grid with a run whose worker is killed once, and with runs that diverge."""
    folder = tmp_path_factory.mktemp("disturbed")
    (folder / "marks").mkdir()
    grid, lines, seen = toy(folder / "marks", "none", "plain", "once", "nan"), [], []
    found = run_grid(grid, folder / "grid", workers=2, threads=1, retries=1, say=lines.append,
                     report=lambda outcome, done, of: seen.append((outcome.run.name, done, of)))
    return folder, found, lines, seen


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The same runs as `tinyattn train` makes them, one after the other in this process; none dies."""
    folder = tmp_path_factory.mktemp("alone")
    (folder / "once-0").touch()
    for kind in ("none", "plain", "once"):
        for seed in (1, 2):
            options = Toy.Options(attention=kind, marks=str(folder))
            system, config = Toy.prepare(options, seed=seed), Config.proposed(Toy, options, seed=seed)
            history = train(system, config, folder / f"{kind}-{seed}")
            workers.measure(folder / f"{kind}-{seed}", system, config, history)
    return folder


# ---------------------------------------------------------------------------------------------------------------------
# processes of this machine
# ---------------------------------------------------------------------------------------------------------------------
def test_each_run_is_a_folder_as_train_leaves_it(disturbed, alone):
    folder, found, _, seen = disturbed
    names = [f"{kind}-{seed}" for kind in ("none", "plain", "once", "nan") for seed in (1, 2)]
    assert [outcome.run.name for outcome in found.outcomes] == names
    assert sorted(name for name, _, _ in seen) == sorted(names)
    assert [(done, of) for _, done, of in seen] == [(i, 8) for i in range(1, 9)]
    for name in names[:6]:
        held = {p.name for p in (folder / "grid" / name).iterdir()}
        assert held == {"config.json", "model.safetensors", "log.jsonl", "metrics.json"}
        assert_same_run(folder / "grid" / name, alone / name)
    metrics = json.loads((folder / "grid" / "plain-2" / "metrics.json").read_text())
    assert metrics["seed"] == 2 and metrics["parameters"] == 26 and set(metrics["train"]) == set(metrics["test"])


def test_a_killed_worker_costs_its_own_run_alone_which_goes_on(disturbed):
    folder, found, lines, _ = disturbed
    by_name = {outcome.run.name: outcome for outcome in found.outcomes}
    assert sorted(by_name[f"once-{seed}"].attempts for seed in (1, 2)) == [1, 2]
    assert all(by_name[f"{kind}-{seed}"].attempts == 1 for kind in ("none", "plain") for seed in (1, 2))
    died = [line for line in lines if line.startswith("once")]
    assert len(died) == 1 and "killed by SIGKILL" in died[0] and "1 of 1 retries" in died[0]


def test_a_run_that_diverges_is_reported_and_not_tried_again(disturbed):
    _, found, _, _ = disturbed
    assert [outcome.run.name for outcome in found.failed] == ["nan-1", "nan-2"]
    for outcome in found.failed:
        assert outcome.metrics is None and "\n" not in outcome.error and "the loss is inf" in outcome.error
        assert outcome.attempts == 1
    rows = {row["attention"]: row for row in found.tables("none")["tables"][0]["rows"]}
    assert (rows["nan"]["n"], rows["nan"]["failed"], rows["plain"]["n"]) == (0, 2, 2)
    assert tables.layout(found.tables("none"), list(rows.values()))[4][1:3] == ["-", "-"]


def test_a_run_that_always_dies_is_reported_and_the_others_stand(alone, tmp_path):
    found = run_grid(toy(tmp_path, "always", "plain", seeds=(1,)), tmp_path / "grid", 1, 1, retries=1)
    assert [(o.attempts, o.error) for o in found.outcomes] == [
        (2, "its worker was killed by SIGKILL (out of memory?)"), (1, None)]
    assert_same_run(tmp_path / "grid" / "plain-1", alone / "plain-1")


def test_resume_trains_what_is_missing_and_nothing_else(disturbed, tmp_path):
    """A finished grid is left alone; of one that lacks a file, only the run that lacks it is made again."""
    folder, _, _, _ = disturbed
    before = {p: p.stat().st_mtime_ns for p in (folder / "grid").rglob("*") if p.is_file() and p.name != "grid.json"}
    grid = toy(folder / "marks", "none", "plain")
    found = run_grid(grid, folder / "grid", resume=True)
    assert [outcome.attempts for outcome in found.outcomes] == [0] * 4 and not found.failed
    assert before == {p: p.stat().st_mtime_ns for p in before}
    with pytest.raises(InputError, match="hidden: the run has 5, now it is 6"):
        wider = Grid(Toy, ("none",), (1,), {"marks": str(folder / "marks"), "hidden": 6})
        run_grid(wider, folder / "grid", resume=True)
    with pytest.raises(InputError, match="none-1: the run has 20 steps .* now it is 30"):
        run_grid(toy(folder / "marks", "none", settings={"steps": 30}), folder / "grid", resume=True)
    with pytest.raises(InputError, match="holds a comparison already"):
        run_grid(grid, folder / "grid")
    with pytest.raises(InputError, match="found no grid.json"):
        run_grid(grid, tmp_path, resume=True)


INTERRUPTED = textwrap.dedent("""
    import sys
    from compare_system import Toy
    from tinyattn.compare import Grid, _finished, run_grid
    if __name__ == "__main__":
        grid = Grid(Toy, ("slow", "plain"), (1, 2), {"marks": sys.argv[1]}, {"steps": 30})
        found = run_grid(grid, sys.argv[1] + "/grid", 2, 1, resume=len(sys.argv) > 2, say=print)
        print(found.interrupted, [o.run.name for o in found.outcomes if o.metrics is None and o.error is None])
""")


def test_ctrl_c_saves_and_the_grid_goes_on_bit_for_bit(tmp_path):
    """The signal goes to the whole group, as from a terminal."""
    (tmp_path / "it.py").write_text(INTERRUPTED)
    start = [sys.executable, str(tmp_path / "it.py"), str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}
    process = subprocess.Popen(start, env=env, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while len(list(tmp_path.glob("slow-*"))) < 2 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert err == b"" and b"True ['slow-1', 'slow-2', 'plain-1', 'plain-2']" in out
    steps = [checkpoint.load(tmp_path / "grid" / f"slow-{seed}").state["step"] for seed in (1, 2)]
    assert all(4 < step < 30 for step in steps)
    done = subprocess.run([*start, "resume"], env=env, capture_output=True, check=True)
    assert b"False []" in done.stdout
    options = Toy.Options(attention="plain")
    for seed in (1, 2):
        system, config = Toy.prepare(options, seed=seed), Config.proposed(Toy, options, seed=seed, steps=30)
        workers.measure(tmp_path / f"whole-{seed}", system, config, train(system, config, tmp_path / f"whole-{seed}"))
        assert_same_run(tmp_path / "grid" / f"plain-{seed}", tmp_path / f"whole-{seed}")
        first, other = (checkpoint.load(tmp_path / name).model for name in (f"grid/slow-{seed}", f"whole-{seed}"))
        assert all(np.array_equal(first[name], other[name]) for name in first)


def test_workers_end_when_their_parent_is_killed(tmp_path):
    (tmp_path / "it.py").write_text(INTERRUPTED.replace('"steps": 30', '"steps": 3000'))
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}
    process = subprocess.Popen([sys.executable, str(tmp_path / "it.py"), str(tmp_path)], env=env)
    deadline = time.monotonic() + 60
    while len(marks := list(tmp_path.glob("slow-*"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    process.wait()
    pids = [int(mark.name.partition("-")[2]) for mark in marks]
    while any(_alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(pids) == 2 and not any(_alive(pid) for pid in pids)
    assert all(checkpoint.load(tmp_path / "grid" / f"slow-{seed}").state["step"] > 4 for seed in (1, 2))


def _alive(pid):
    try:
        os.kill(pid, 0)
        return True
    except ProcessLookupError:
        return False


def test_shares_of_the_cores(monkeypatch):
    monkeypatch.setattr(workers, "cores", lambda: 8)
    monkeypatch.setattr(workers.devices, "get_num_threads", lambda: 8)
    assert workers.shares(None, None, 20) == (8, 1) and workers.shares(None, None, 2) == (2, 4)
    assert workers.shares(None, 2, 20) == (4, 2) and workers.shares(3, None, 20) == (3, 2)
    assert workers.shares(3, 20, 20) == (3, 8) and workers.shares(None, 20, 3) == (1, 8)
    with pytest.raises(InputError, match="expected workers of at least 1, got 0"):
        workers.Local(0, None, 2, 5)


# ---------------------------------------------------------------------------------------------------------------------
# a cluster
# ---------------------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def cluster():
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as found:
        yield found.scheduler_address


def test_a_cluster_gives_what_processes_here_give_even_if_a_worker_is_killed(cluster, alone, tmp_path):
    found = run_grid(toy(tmp_path, "plain", "once", "nan"), tmp_path / "grid", scheduler=cluster)
    assert [outcome.run.name for outcome in found.failed] == ["nan-1", "nan-2"]
    assert all("the loss is inf" in o.error and "kept in its folder" in o.error for o in found.failed)
    assert len(list(tmp_path.glob("once-[1-9]*"))) == 1, "no worker was killed"
    for name in ("plain-1", "plain-2", "once-1", "once-2"):
        assert_same_run(tmp_path / "grid" / name, alone / name)
    assert checkpoint.load(tmp_path / "grid" / "nan-1").state["step"] >= 4


def test_files_travel_to_a_cluster_and_half_runs_go_on_there(cluster, alone, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "one.txt").write_text("0.5")
    options = Toy.Options(attention="plain", marks=str(tmp_path))
    paths = (str(tmp_path / "data" / "one.txt"),)
    config = Config.proposed(Toy, options, seed=1, data=paths).with_digests()
    (tmp_path / "grid").mkdir()
    half = tmp_path / "grid" / "plain-1"
    train(Toy.prepare(options, paths, 1), config, half, stop_at=7)
    saved = checkpoint.load(half)
    saved.model["outer.bias"] = saved.model["outer.bias"] + 1  # so that going on is not the same as beginning again
    checkpoint.save(half, saved)
    shutil.copytree(half, tmp_path / "whole")
    (tmp_path / "grid" / "grid.json").write_text("{}")
    found = run_grid(toy(tmp_path, "plain", data=paths), tmp_path / "grid", scheduler=cluster, resume=True)
    assert not found.failed
    whole = Toy.prepare(options, paths, 1)
    workers.measure(tmp_path / "whole", whole, config, train(whole, config, tmp_path / "whole", resume=True))
    assert_same_run(half, tmp_path / "whole")
    assert not np.array_equal(checkpoint.load(alone / "plain-2").model["outer.bias"],  # the file mattered
                              checkpoint.load(tmp_path / "grid" / "plain-2").model["outer.bias"])
    saved = json.loads((tmp_path / "grid" / "plain-2" / "config.json").read_text())
    assert saved["data"] == [str(tmp_path / "data" / "one.txt")] and saved["digests"].keys() == set(saved["data"])


def test_a_cluster_that_is_not_there_is_one_clear_line(tmp_path, monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr(workers, "REACH", 0.5)
    for address in ("tcp://127.0.0.1:9", "no address at all", "", "http://127.0.0.1:80", "tcp://127.0.0.1:x", ":8786"):
        with pytest.raises(InputError, match="expected the address of a Dask scheduler"):
            run_grid(toy(tmp_path, "plain"), tmp_path / "grid", scheduler=address)
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InputError, match=r'pip install "tinyattn\[cluster\]"'):
        run_grid(toy(tmp_path, "plain"), tmp_path / "grid", scheduler="tcp://127.0.0.1:9")
    assert not (tmp_path / "grid").exists()


def test_damaged_metrics_do_not_count_as_finished(alone, tmp_path):
    shutil.copytree(alone / "plain-1", tmp_path / "plain-1")
    run = Grid(Toy, ("plain",), options={"marks": str(alone)}).runs()[0]
    path = tmp_path / "plain-1" / "metrics.json"
    whole = json.loads(path.read_text())
    assert _finished(tmp_path / "plain-1", run, Toy) == whole
    for odd in ({"parameters": None}, {"seconds": "x"}, {"validation_loss": None}, {"test": []}, {"train": None},
                {"seed": 9}, "", "[]", "{}"):
        path.write_text(odd if isinstance(odd, str) else json.dumps({**whole, **odd}))
        assert _finished(tmp_path / "plain-1", run, Toy) is None, odd


def test_what_is_no_number_is_no_figure():
    records = [record("plain", 1, float("nan")), record("plain", 2, 0.5), record("none", 1, 0.25)]
    row = tables.summarise(Toy, records, "none")["tables"][0]["rows"][0]
    assert row["figures"]["score"]["seeds"] == {2: 0.5} and not row["difference"]


# ---------------------------------------------------------------------------------------------------------------------
# the grid
# ---------------------------------------------------------------------------------------------------------------------
def test_further_dimensions_and_names(tmp_path):
    grid = Grid(Toy, ("none", "/a/b.py:x"), (3, 5), each={"hidden": (4, 8), "learning_rate": (0.1,)})
    runs = grid.runs()
    assert len(runs) == 8 and len({run.name for run in runs}) == 8
    assert runs[0].name == "none-hidden=4-learning_rate=0.1-3"
    assert runs[-1].name == "b.py-x-hidden=8-learning_rate=0.1-5"
    assert runs[-1].config.options["hidden"] == 8 and runs[-1].config.learning_rate == 0.1
    assert runs[-1].config.options["attention"] == "/a/b.py:x" and runs[-1].config.seed == 5
    (tmp_path / "grid.json").write_text(json.dumps(grid.to_json()))
    again = Grid.load(tmp_path)
    assert [r.config for r in Grid(**{**vars(again), "system": Toy}).runs()] == [r.config for r in runs]
    assert Grid(Toy, ("a/m.py:x", "b/m.py:x")).labels() == {"a/m.py:x": "a/m.py:x", "b/m.py:x": "b/m.py:x"}


@pytest.mark.parametrize("changes, message", [
    ({"attentions": ()}, "attentions: expected values, each once, got none"),
    ({"seeds": (1, 1)}, "seeds: expected values, each once"),
    ({"seeds": (-1,)}, "seed: expected a whole number"),
    ({"each": {"heads": (1,)}}, "heads: expected an option or setting of toy"),
    ({"each": {"seed": (1,)}}, "seed: expected an option or setting"),
    ({"each": {"hidden": ()}}, "hidden: expected values"),
    ({"each": {"hidden": (1,)}, "options": {"hidden": 2}}, "hidden is a dimension of the grid"),
    ({"options": {"hidden": "x"}}, "option hidden: expected int"),
    ({"options": {"width": 3}}, "missing or unknown: width"),
    ({"attentions": ("plain", "odd")}, "odd-1: toy: expected an attention of none, plain"),
    ({"data": ("/no/such/file",)}, "/no/such/file: cannot be read"),
    ({"attentions": ("x:y", "x-y")}, "two runs would have the folder"),
])
def test_bad_grids_are_refused_before_anything_is_trained(tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        run_grid(Grid(**{"system": Toy, "attentions": ("plain",), **changes}), tmp_path / "grid", workers=1)
    assert not (tmp_path / "grid").exists()


@pytest.mark.parametrize("text", ["", "[]", "{", '{"system": 3}', '{"odd": 1}', "[" * 100_000,
                                  '{"system": "x", "each": 1}', '{"system": "x", "seeds": 3}', '{"seeds": [1]}',
                                  '{"system": "x", "seeds": [[1]]}', '{"system": "x", "attentions": [1]}',
                                  '{"system": "x", "attentions": "han"}', '{"system": "x", "options": 5}',
                                  '{"system": "x", "settings": []}', '{"system": "x", "settings": {"odd": 1}}',
                                  '{"system": "x", "settings": {"digests": {}}}', '{"system": "x", "data": null}',
                                  '{"system": "x", "each": {"hidden": 5}}', '{"system": "x", "each": {"a": [[1]]}}',
                                  '{"system": "x", "links": 5}'])
def test_a_broken_grid_file_is_refused(tmp_path, text):
    (tmp_path / "grid.json").write_text(text)
    with pytest.raises(InputError, match="expected a grid as tinyattn writes it"):
        Grid.load(tmp_path)


# ---------------------------------------------------------------------------------------------------------------------
# tables
# ---------------------------------------------------------------------------------------------------------------------
def record(attention, seed, score, at=None, train=0.0, loss=1.0, **more):
    test = {"score": score, **more}
    return {"name": f"{attention}-{seed}", "attention": attention, "at": at or {}, "seed": seed, "error": None,
            "attempts": 1, "metrics": {"parameters": 10, "seconds": 2.0, "validation_loss": loss, "test": test,
                                       "train": {"score": train}}}


def test_intervals_against_numbers_by_hand():
    """Differences 1, 2, 3, 6: mean 3, standard deviation sqrt(14/3) = 2.1602; t(0.975, 3) = 3.1824, so half the
    interval is 3.1824 * 2.1602 / 2 = 3.4374. For 1, 2, 3: t(0.975, 2) = 4.3027, half 4.3027 / sqrt(3) = 2.4841."""
    pytest.importorskip("scipy")
    low, high = tables.interval([1, 2, 3, 6])
    assert low == pytest.approx(3 - 3.4374, abs=1e-4) and high == pytest.approx(3 + 3.4374, abs=1e-4)
    assert tables.interval([1, 2, 3]) == pytest.approx((2 - 2.4841, 2 + 2.4841), abs=1e-4)
    assert tables.interval([1, 2, 3], 0.9) == pytest.approx((2 - 2.92 / 3 ** 0.5, 2 + 2.92 / 3 ** 0.5), abs=1e-3)
    assert tables.interval([4.0]) is None and tables.interval([0.0, 0.0]) == (0.0, 0.0)


def test_differences_are_paired_by_seed():
    """The scores lie far apart from seed to seed, the differences do not; a seed that one of them lacks is left out."""
    pytest.importorskip("scipy")
    base, gain = {1: 10.0, 2: 50.0, 3: 90.0}, {1: 1.0, 2: 1.2, 3: 1.1}
    records = [record("plain", s, base[s] + gain[s]) for s in (3, 1, 2)] + [record("none", s, base[s]) for s in base]
    records += [record("plain", 4, 1000.0), record("odd", 1, 11.0), record("odd", 2, 49.0)]
    found = tables.summarise(Toy, records, "none")
    plain, none, odd = found["tables"][0]["rows"]
    d = plain["difference"]["score"]
    assert d["mean"] == pytest.approx(1.1) and d["n"] == 3 and d["separable"] and d["low"] > 0.8
    assert plain["n"] == 4 and none["difference"] == {} and odd["difference"]["score"]["separable"] is False
    texts = tables.layout(found, found["tables"][0]["rows"])
    assert texts[0][:3] == ["attention", "score", "minus none"] and texts[2][1:3] == ["50.000 ± 40.000", "-"]
    assert texts[1][2] == "+1.100 [+0.852, +1.348]" and texts[3][2].endswith("not separable")


def test_intrinsic_figures_stand_beside_the_score():
    records = [record("none", 1, 0.5), record("plain", 1, 0.75, gold_kl=0.25, gold_mass=None, aer=0.125, odd=3.0)]
    found = tables.summarise(Toy, records, "none")
    assert {k: f["intrinsic"] for k, f in found["figures"].items()} == {"score": False, "aer": True, "gold_kl": True}
    texts = tables.layout(found, found["tables"][0]["rows"])
    assert texts[0] == ["attention", "score", "minus none", "AER", "gold KL", "seeds", "parameters", "seconds"]
    assert texts[2] == ["plain", "0.750", "+0.250", "0.1250", "0.2500", "1", "10", "2.0"] and texts[1][3] == "-"
    assert tables.markdown([["a|b"], ["1"]]) == ["| a\\|b |", "| --- |", "| 1 |"]


def test_the_best_seed_by_a_figure_of_training():
    """The paper's way: of a cell's seeds the best in training stands for it, not the best in the test."""
    records = [record("plain", s, score, {"hidden": h}, train, loss) for h, s, score, train, loss in (
        (4, 1, 0.2, 0.9, 3.0), (4, 2, 0.9, 0.5, 1.0), (8, 1, 0.4, 0.7, 2.0), (8, 2, 0.6, 0.8, 2.5))]
    found = tables.summarise(Toy, records, "none", "score", bound=0.5)
    assert [t["rows"][0]["picked"] for t in found["tables"]] == [1, 2]
    assert found["summary"][0]["figures"]["score"]["mean"] == pytest.approx((0.2 + 0.6) / 2)
    assert found["summary"][0]["beyond"] == [1, 2]
    by_loss = tables.summarise(Toy, records, "none", "validation_loss")
    assert [t["rows"][0]["picked"] for t in by_loss["tables"]] == [2, 1]
    texts = tables.layout(found, found["tables"][0]["rows"])
    assert texts[1][:3] == ["plain", "0.200", "1"] and texts[0][2] == "best seed"
    with pytest.raises(InputError, match="pick: expected validation_loss or a figure of toy"):
        tables.check_pick(Toy, "error")


def test_the_summary_is_the_mean_over_the_values_seed_by_seed():
    pytest.importorskip("scipy")
    records = [record(a, s, 0.1 * s + h + (a == "plain") * 0.5, {"hidden": h})
               for a in ("none", "plain") for s in (1, 2, 3) for h in (4, 8)]
    records[-1]["metrics"] = None  # seed 3 of plain has no run at 8, and is left out of the summary
    found = tables.summarise(Toy, records, "none")
    none, plain = found["summary"]
    assert list(plain["figures"]["score"]["seeds"]) == [1, 2] and plain["failed"] == 1 and plain["n"] == 2
    score, difference = none["figures"]["score"], plain["difference"]["score"]
    assert score["mean"] == pytest.approx(6.2) and score["sd"] == pytest.approx(0.1)
    assert difference["mean"] == pytest.approx(0.5) and difference["n"] == 2


def test_without_scipy_there_are_differences_but_no_intervals(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    found = tables.summarise(Toy, [record(a, s, s + (a == "plain")) for a in ("none", "plain") for s in (1, 2)], "none")
    assert found["tables"][0]["rows"][1]["difference"]["score"] == {"mean": 1.0, "n": 2, "low": None, "high": None,
                                                                    "separable": None}
    texts = tables.layout(found, found["tables"][0]["rows"])
    assert texts[0][2] == "minus none" and texts[2][2] == "+1.000"
    assert tables.caption(found)[-1].endswith("differences are paired by seed")


def test_without_scipy_the_hint_stands_below_the_table(only_toy, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    assert main(["compare", "toy", "--attention", "none,plain", "--seeds", "2", "--marks", ".", "--steps", "4",
                 "--workers", "1", "--threads", "1", "--run", "r"]) == 0
    out, err = capsys.readouterr()
    hint = 'the intervals of differences need SciPy: pip install "tinyattn[compare]"'
    assert hint in err and out.index("minus none") < out.index("paired by seed\n") < out.index(hint)
    assert "95 %" not in out + Path("r/comparison.md").read_text() and "all figures" not in out


def test_the_caption_speaks_of_intervals_where_there_are_some():
    pytest.importorskip("scipy")
    for seeds, end in (((1, 2), "paired by seed, with their 95 % interval"), ((1,), "paired by seed")):
        records = [record(a, s, s + (a == "plain")) for a in ("none", "plain") for s in seeds]
        assert tables.caption(tables.summarise(Toy, records, "none"))[-1].endswith(end)


def wide_records():
    """Seven figures, each with its deviation: about 150 columns."""
    intrinsic = dict.fromkeys(tables.INTRINSIC, 0.25)
    return [record(a, s, 0.1 * s + (a == "plain") * 0.01 * s, **intrinsic) for a in ("none", "plain") for s in (1, 2)]


def test_a_table_is_cut_from_the_right_until_it_fits():
    found = tables.summarise(Toy, wide_records(), "none")
    rows = found["tables"][0]["rows"]
    whole, short = tables.layout(found, rows), tables.layout(found, rows, further=2)
    assert tables.width_of(whole) > 100 and len(whole[0]) == 12
    assert short[0] == ["attention", "score", "minus none", "gold mass", "AER", "seeds", "parameters", "seconds"]
    assert tables.width_of(short) == max(map(len, columns(short)))
    cut, = tables.fit([short], tables.width_of(short) - 1)
    assert cut == [row[:-1] for row in short] and len(short[0]) == 8
    limit = tables.width_of([row[:4] for row in short])
    both = tables.fit([short, [["attention", "score", "minus none", "seconds"], ["a", "1", "-", "2"]]], limit)
    assert [len(rows[0]) for rows in both] == [4, 3] and "seconds" not in both[0][0] + both[1][0]
    assert tables.fit([short], 1) == [[row[:3] for row in short]]


def test_the_console_shows_what_fits():
    found = tables.summarise(Toy, wide_records(), "none")
    numbers = [("", found["tables"][0]["rows"]), ("mean", found["tables"][0]["rows"])]
    shown = command._fitted(found, numbers)
    assert [title for title, _ in shown] == ["", "mean"] and shown[0][1] == shown[1][1]
    assert all(len(line) <= 100 for line in columns(shown[0][1])) and "gold KL" not in shown[0][1][0]
    small = tables.summarise(Toy, [record("none", 1, 0.5), record("plain", 1, 0.75, aer=0.25)], "none")
    rows = small["tables"][0]["rows"]
    assert command._fitted(small, [("", rows)]) == [("", tables.layout(small, rows))]


def test_the_command_says_where_all_figures_are_that_it_does_not_show(only_toy, capsys, monkeypatch):
    monkeypatch.setattr(command, "WIDTH", 20)
    assert main(["compare", "toy", "--attention", "none,plain", "--seeds", "1", "--marks", ".", "--steps", "4",
                 "--workers", "1", "--threads", "1", "--run", "r"]) == 0
    out = capsys.readouterr().out
    assert f"\nall figures: {Path('r/comparison.md')}\n" in out and "parameters" not in out
    assert "| parameters | seconds |" in Path("r/comparison.md").read_text()


# ---------------------------------------------------------------------------------------------------------------------
# the picture
# ---------------------------------------------------------------------------------------------------------------------
def test_the_picture_shows_every_seed_and_the_means(tmp_path):
    pytest.importorskip("matplotlib")
    from viz import comparison
    records = [record(a, s, 0.1 * s, gold_mass=0.2 * s if a == "<$x_y$>" else None)
               for a in ("none", "<$x_y$>") for s in (1, 2, 3)]
    fig = comparison(tables.summarise(Toy, records, "none"), tmp_path / "a.svg", title="$a_b$")
    score, mass = fig.axes
    assert [len(dots.get_offsets()) for dots in score.collections if hasattr(dots, "get_sizes")][:1] == [3]
    heights = sorted(round(float(y), 6) for dots in score.collections for _, y in dots.get_offsets() if len(
        dots.get_offsets()) == 3)
    assert heights == [0.1, 0.1, 0.2, 0.2, 0.3, 0.3]
    assert [text.get_text() for text in score.get_xticklabels()] == ["none", "<$x_y$>"]
    assert "higher is better" in score.get_ylabel() and "gold mass" in mass.get_ylabel()
    assert (tmp_path / "a.svg").stat().st_size > 1000
    many = [record(a, s, 0.1 * s, {"hidden": h}) for a in ("none", "plain") for s in (1, 2) for h in (2, 4, 8)]
    many[0]["metrics"] = None
    fig = comparison(tables.summarise(Toy, many, "none"))
    assert [text.get_text() for text in fig.axes[0].get_xticklabels()] == ["2", "4", "8"]
    assert [text.get_text() for text in fig.axes[0].get_legend().get_texts()] == ["none", "plain"]
    for record_ in many:
        record_["metrics"] = None
    with pytest.raises(InputError, match="at least one run with a figure"):
        comparison(tables.summarise(Toy, many, "none"))


# ---------------------------------------------------------------------------------------------------------------------
# the command
# ---------------------------------------------------------------------------------------------------------------------
@pytest.fixture
def only_toy(monkeypatch, tmp_path):
    monkeypatch.setattr(systems, "names", lambda: ["toy"])
    monkeypatch.setattr(systems, "find", lambda name: Toy)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_command_leaves_tables_and_a_picture(only_toy, capsys):
    arguments = ["compare", "toy", "--attention", "none,plain,nan", "--seeds", "2", "--each", "hidden=3,4", "--marks",
                 ".", "--steps", "8", "--workers", "2", "--threads", "1", "--bound", "0.99"]
    assert main([*arguments, "--run", "r"]) == 1
    out, err = capsys.readouterr()
    assert "12 of 12  " in err and "nan-hidden=3-1 failed: step " in err
    assert out.count("minus none") == 3 and "hidden 3\n" in out and "mean over 2 of hidden" in out and "2 of 2" in out
    saved = json.loads(Path("r/comparison.json").read_text())
    assert len(saved["runs"]) == 12 and len(saved["tables"]) == 2 and saved["baseline"] == "none"
    text = Path("r/comparison.md").read_text()
    assert text.count("| plain |") == 3 and "nan-hidden=4-2 failed" in text and "of training in all" in text
    if pytest.importorskip("matplotlib"):
        assert Path("r/comparison.svg").read_text().lstrip().startswith("<?xml")
    assert main(["compare", "toy", "--attention", "none,plain", "--run", "r", "--resume", "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert len(again["runs"]) == 8 and again["grid"]["each"] == {"hidden": [3, 4]}
    assert all(run["attempts"] == 0 for run in again["runs"])


@pytest.mark.parametrize("arguments, message", [
    (["--seeds", "x"], "--seeds: expected whole numbers"),
    (["--seeds", "0"], "--seeds: expected 1 to 10,000 values, got 1 to 0"),
    (["--seeds", "5-2"], "--seeds: expected 1 to 10,000 values, got 5 to 2"),
    (["--seeds", "99999999999"], "--seeds: expected 1 to 10,000 values"),
    (["--each", "hidden=1-99999999999"], "--each hidden: expected 1 to 10,000 values"),
    (["--seeds", "3,3"], "seeds: expected values, each once, got 3, 3"),
    (["--attention", " ,"], "--attention: expected names such as additive,none, got ' ,'"),
    (["--bound", "1"], "--bound: expected a number, and with it --each"),
    (["--bound", "nan", "--each", "hidden=3"], "--bound: expected a number"),
    (["--device", "cuda"], "device 'cuda': no CUDA card"),
    (["--each", "hidden"], "--each: expected OPTION=V1,V2"),
    (["--each", "seed=1"], "with --seeds"),
    (["--each", "hidden=a"], "--each hidden: expected a whole number, got 'a'"),
    (["--baseline-of", "plain", "--attention", "none"], "--baseline-of: expected one of none, got 'plain'"),
    (["--pick", "error"], "pick: expected validation_loss or"),
    (["--scheduler", "x", "--workers", "2"], "--workers: the cluster"),
    (["--resume"], "expected a comparison of toy in runs"),
    (["--run", "nowhere", "--resume"], "nowhere: expected the folder of a comparison"),
    (["--attention", "odd"], "odd-1: toy: expected an attention"),
])
def test_bad_arguments_are_one_line(only_toy, capsys, monkeypatch, arguments, message):
    monkeypatch.setattr(devices, "cuda_status", lambda: "absent")
    assert main(["compare", "toy", *arguments]) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1 and not list(only_toy.iterdir())


def test_reading_the_command_line():
    assert command.seeds_of("3") == (1, 2, 3) and command.seeds_of("4,") == (4,)
    assert command.seeds_of("3,5,7") == (3, 5, 7)
    assert command.seeds_of("2-4,9") == (2, 3, 4, 9)
    assert command.attentions_of("none, my.py:x") == ("none", os.path.abspath("my.py") + ":x")
    assert command.each_of(Toy, ["hidden=3-5", "learning-rate=0.1,1e-3", "marks=1-2,x"]) == {
        "hidden": (3, 4, 5), "learning_rate": (0.1, 1e-3), "marks": ("1", "2", "x")}


def test_translators_compared(tmp_path, capsys):
    """A real system with its own options, files and gold links; its runs are used as any others."""
    from tinyattn.tasks.english_french import generate
    pairs = [p for p in generate(400, seed=3) if len(p.source) < 10][:40]
    lines = ["\t".join(" ".join(words) for words in (p.source, p.target)) for p in pairs]
    (tmp_path / "p.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "l.txt").write_text("".join(" ".join(f"{i}-{j}" for i, j in sorted(p.sure)) + "\n" for p in pairs))
    assert main(["compare", "translate", "--attention", "none,additive", "--seeds", "2", "--steps", "20", "--hidden",
                 "8", "--embed", "8", "--batch-size", "8", "--validate-every", "10", "--workers", "2", "--json",
                 "--data", str(tmp_path / "p.tsv"), "--links", str(tmp_path / "l.txt"), "--run", str(tmp_path / "r")
                 ]) == 0
    found = json.loads(capsys.readouterr().out)
    none, additive = found["tables"][0]["rows"]
    assert none["figures"]["aer"]["mean"] is None and 0 <= additive["figures"]["aer"]["mean"] <= 1
    assert list(additive["difference"]["bleu"]) == ["mean", "n", "low", "high", "separable"]
    assert main(["evaluate", str(tmp_path / "r" / "additive-2"), "--json"]) == 0
    test = json.loads((tmp_path / "r" / "additive-2" / "metrics.json").read_text())["test"]
    again = json.loads(capsys.readouterr().out)
    assert all(again[key] == test[key] for key in ("bleu", "aer", "loss"))
