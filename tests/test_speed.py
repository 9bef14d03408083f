"""The page of speed is what its script makes of the files that benchmarks left; the README's table too."""
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "examples"))
import speed  # noqa: E402
import startup  # noqa: E402

from tinyattn import InputError  # noqa: E402
from tinyattn.workloads import rows  # noqa: E402
from tinyattn.workloads.row import OURS, PEERS  # noqa: E402

KEPT = sorted(speed.KEPT.glob("*.json"))
RUNS = [path for path in KEPT if path.stem.startswith("run")]


# ---------------------------------------------------------------------------------------------------------------------
# what stands in the repository
# ---------------------------------------------------------------------------------------------------------------------
def test_page_and_table_are_made_from_the_files():
    text = speed.README.read_text(encoding="utf-8")
    assert speed.BEGIN + speed.readme_part() + speed.END in text, "run python examples/speed.py"
    if RUNS:
        assert speed.PAGE.read_text(encoding="utf-8") == speed.page(), "run python examples/speed.py"
    else:
        assert not speed.PAGE.exists(), "a page of numbers that were not measured"


def test_what_is_kept_is_small_and_names_no_place():
    for path in KEPT:
        text = path.read_text(encoding="utf-8")
        assert len(text) < 100_000, path.name
        assert '"/' not in text and "/home/" not in text and "/tmp/" not in text


def test_what_is_kept_holds_every_row_that_asks():
    for path in RUNS:
        run = json.loads(path.read_text(encoding="utf-8"))
        measured = {(r["name"], r["sizes"], r.get("peer")) for r in run["results"]}
        asked = {(row.name, row.sizes, peer) for row in rows() for peer in row.asked}
        assert asked <= measured, f"{path.name} lacks {sorted(asked - measured)}"


# ---------------------------------------------------------------------------------------------------------------------
# made from files of a benchmark that never ran
# ---------------------------------------------------------------------------------------------------------------------
def result(name, sizes, group, ours, peer, ratio, asked=None, counts=True, ours_us=1000.0):
    return {"name": name, "sizes": sizes, "group": group, "floor_us": None, "ours": ours, "peer": peer, "ours_us": ours_us,
            "ours_low_us": ours_us, "ours_high_us": ours_us, "ours_alone_us": ours_us, "peer_us": ours_us * ratio,
            "peer_low_us": 1.0, "peer_high_us": 1.0, "peer_alone_us": 1.0, "ratio": ratio, "ratio_low": ratio,
            "ratio_high": ratio, "counts": counts, "ours_counts": True, "disturbed": 0.01, "rounds": 9, "others": 0.01,
            "tries": 1, "asked": asked}


def document(results, **changes):
    return {"date": "2026-01-02T03:04:05+0000", "processor": "Abacus 9", "cores": 2, "threads": 2, "system": "Linux-0",
            "python": "3.11.0", "versions": {"numpy": "2.4.0", "torch": "2.13.0"}, "peers": ["torch", "jax"], "left_out": {},
            "peak_gflops": 100.0, "others": 0.01, "asked": [], "results": results, **changes}


def every_row(seed):
    """A result for each row, side and peer of the real table."""
    draw = random.Random(seed)
    return [result(row.name, row.sizes, row.group, ours, peer, draw.uniform(1, 9), row.asked.get(peer), draw.random() > 0.1)
            for row in rows() for ours in OURS if ours in row.sides for peer in PEERS if peer in row.sides]


GROWTH = [{"name": "gru", "lengths": [64, 128, 256], "seconds": [0.1, 0.2, 0.4], "bytes": [2**20, 2**21, 2**22],
           "time_grows_as": 1.0, "memory_grows_as": 1.004}]
START = document([{"what": "help", "cache": None, "seconds": [0.1, 0.2, 0.3], "asked": 0.3},
                  {"what": "qa", "cache": "empty", "seconds": [31.0], "asked": 30.0}])


@pytest.fixture
def make(tmp_path, monkeypatch):
    """A function that makes the page and the table, in a folder of its own, from documents."""
    for name, path in {"KEPT": "speed", "PAGE": "SPEED.md", "README": "README.md"}.items():
        monkeypatch.setattr(speed, name, tmp_path / path)
    speed.README.write_text(f"before\n{speed.BEGIN}old{speed.END}\nafter\n", encoding="utf-8")

    def run(*documents, growth=None, start=None):
        paths = []
        for i, given in enumerate(documents):
            paths.append(tmp_path / f"given{i}.json")
            paths[-1].write_text(json.dumps(given), encoding="utf-8")
        options = []
        for name, given in (("growth", growth), ("start", start)):
            if given:
                (tmp_path / f"{name}.json").write_text(json.dumps(given), encoding="utf-8")
                options += [f"--{name}", str(tmp_path / f"{name}.json")]
        return speed.main([*map(str, paths), *options])
    return run


def row_of(text, *words):
    """The cells of the one line of a table that holds all words."""
    line, = (line for line in text.splitlines() if line.startswith("| ") and all(word in line for word in words))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_three_runs_of_everything(make):
    assert make(*(document(every_row(seed)) for seed in range(3)), growth=GROWTH, start=START) == 0
    page, readme = speed.PAGE.read_text("utf-8"), speed.README.read_text("utf-8")
    for row in rows():
        for peer in PEERS:
            if peer in row.sides:
                assert len(row_of(page, f" {row.name} ", f"| {row.sizes} |", PEERS[peer])) == 11 \
                    if row.group != "training" else f"| {row.sizes} | {PEERS[peer]} |" in page
    assert sum(path.stat().st_size for path in speed.KEPT.iterdir()) < 300_000
    assert readme.startswith("before\n") and readme.endswith(f"{speed.END}\nafter\n") and "old" not in readme
    for name in ("additive scores", "attention, causal", "LSTM layer", "training step: character GPT"):
        assert f"| {name} |" in readme
    assert row_of(readme, "| additive scores |")[1:2] + row_of(readme, "| additive scores |")[3:4] == [
        "B,T,S,D = 32,20,20,64 / 32,50,50,128 / 16,128,128,128", "6 / 18 / 18"]
    assert row_of(page, "| gru |") == ["gru", "T^1.00", "T^1.00", "T^1, T^1", "256", "400 ms", "4.0 MB"]
    assert row_of(page, "tinyattn --help")[2:] == ["< 0.3", "0.20", ""]
    assert row_of(page, "train qa")[1:] == ["empty", "< 30", "31.00", "LATE"]
    assert "Abacus 9, 2 cores, 2 threads" in page and "numpy 2.4.0" in page and "2026-01-02, 3 runs" in page


def test_from_what_is_kept_the_same_page_is_made(make):
    make(*(document(every_row(seed)) for seed in range(3)), growth=GROWTH, start=START)
    before = speed.PAGE.read_text("utf-8"), speed.README.read_text("utf-8")
    speed.PAGE.unlink()
    assert speed.main([]) == 0 and (speed.PAGE.read_text("utf-8"), speed.README.read_text("utf-8")) == before


def test_the_median_is_of_the_runs_that_count(make):
    runs = [document([result("softmax", "(1, 2)", "layers", "ours", "torch", ratio, 2, counts, us)])
            for ratio, counts, us in ((3.0, True, 500.0), (9.0, False, 1.0), (1.0, True, 800.0))]
    make(*runs)
    cells = row_of(speed.PAGE.read_text("utf-8"), "| softmax |")
    assert cells[3:8] == ["2", "2.00 (1.00-3.00)", "3.00", "~9.00", "1.00"] and cells[-1] == "disturbed: run 2"
    assert cells[8:10] in (["500 us", "1.5 ms"], ["800 us", "800 us"])
    assert "Of 1 rows of which something is asked 1 have it." in speed.PAGE.read_text("utf-8")
    assert row_of(speed.README.read_text("utf-8"), "| softmax |") == ["softmax", "(1, 2)", "2.00", "2", "-", "-"]


def test_below_what_is_asked_is_said(make):
    make(*(document([result("softmax", "(1, 2)", "layers", "ours", "torch", ratio, 2)]) for ratio in (1.9, 1.99, 5.0)))
    page = speed.PAGE.read_text("utf-8")
    assert row_of(page, "| softmax |")[-1] == "BELOW" and "1 have it" not in page
    assert "Below it: softmax, (1, 2), beside PyTorch, eager." in page


def test_where_no_run_counts_it_is_marked(make):
    make(document([result("softmax", "(1, 2)", "layers", "ours", "torch", 3.0, 2, counts=False)]))
    assert row_of(speed.PAGE.read_text("utf-8"), "| softmax |")[4] == "~3.00"
    assert row_of(speed.README.read_text("utf-8"), "| softmax |")[2] == "~3.00"
    assert "1 have it. Of 1 of them no run counts." in speed.PAGE.read_text("utf-8")


def test_of_a_training_step_the_better_side_is_shown_and_both_compared(make):
    name, group = "training step: MLP", "training"
    make(document([result(name, "B = 1", group, side, peer, ratio, asked, ours_us=us)
                   for side, us, ratios in (("ours", 300.0, (1.5, 0.5)), ("compiled", 100.0, (4.5, 1.5)))
                   for peer, ratio, asked in zip(("torch", "jax"), ratios, (2, 1), strict=True)]))
    page = speed.PAGE.read_text("utf-8")
    assert row_of(page, f"{name} (captured)", "PyTorch")[3:6] == ["2", "4.50", "4.50"]
    assert "BELOW" not in page.split(speed.HOW)[1]
    assert row_of(page, "| MLP |") == ["MLP", "300 us", "100 us", "3.00", "1.50", "4.50", "0.50", "1.50"]
    assert row_of(speed.README.read_text("utf-8"), f"| {name} |") == [name, "B = 1", "4.50", "2", "1.50", "1"]


def test_a_side_that_does_not_count_is_not_the_better_one(make):
    name, group = "training step: MLP", "training"
    make(document([result(name, "B = 1", group, "ours", "torch", 2.5, 2),
                   result(name, "B = 1", group, "compiled", "torch", 9.0, 2, counts=False)]))
    page = speed.PAGE.read_text("utf-8")
    assert row_of(page, f"| {name} |")[3:6] == ["2", "2.50", "2.50"] and f"{name} (captured)" not in page
    assert row_of(page, "| MLP |")[-2:] == ["2.50", "~9.00"]


def test_what_is_left_out_or_wrong_is_said(make):
    about = {"name": "dropout", "sizes": "(2, 3)", "group": "layers", "ours": "ours"}
    make(document([result("softmax", "(1, 2)", "layers", "ours", "torch", 3.0),
                   {**about, "peer": "jax", "left_out": "no such thing"},
                   {**about, "peer": "torch", "error": "disagrees: result 0"}]))
    page = speed.PAGE.read_text("utf-8")
    assert "- dropout, (2, 3): JAX, jit: no such thing" in page
    assert "- dropout, (2, 3): PyTorch, eager: disagrees: result 0" in page


def test_runs_of_two_machines_make_no_page(make, capsys):
    one = [result("softmax", "(1, 2)", "layers", "ours", "torch", 3.0)]
    assert make(document(one), document(one, threads=1)) == 2
    assert capsys.readouterr().err == "speed: the runs differ in threads: 2 and 1\n"
    assert make(document(one, device="cuda")) == 2
    assert "expected a run on the cpu, got one on cuda" in capsys.readouterr().err
    assert not speed.PAGE.exists() and not speed.KEPT.exists()


@pytest.mark.parametrize("given, said", [({"results": []}, "expected what `tinyattn bench --peers -o FILE.json` writes"),
                                         ([], "expected what"), (None, "expected what")])
def test_another_file_is_one_line(make, capsys, given, said):
    assert make(given) == 2
    assert said in capsys.readouterr().err


def test_without_any_file_there_is_no_page(make, capsys, tmp_path):
    assert make() == 2 and "nothing in speed/ yet" in capsys.readouterr().err
    assert speed.readme_part() == speed.NOTHING
    assert speed.main([str(tmp_path / "absent.json")]) == 2 and "absent.json" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------------------------------
# starting
# ---------------------------------------------------------------------------------------------------------------------
def test_a_start_is_measured_and_written(tmp_path, monkeypatch, capsys):
    asked = []

    def seconds(arguments, cache=None):
        asked.append((arguments[0], cache))
        return 0.1 if cache is None or len(asked) % 2 else 40.0
    monkeypatch.setattr(startup, "seconds", seconds)
    startup.main(["-o", str(tmp_path / "start.json"), "--only", "help,qa"])
    found = json.loads((tmp_path / "start.json").read_text("utf-8"))["results"]
    assert [(r["what"], r["cache"], len(r["seconds"])) for r in found] == [
        ("help", None, 3), ("qa", "empty", 1), ("qa", "filled", 3)]
    caches = [cache for _, cache in asked[4:]]
    assert asked[0] == ("-m", None) and len(set(caches)) == 1 and not Path(caches[0]).exists()
    assert [r["asked"] for r in found] == [0.3, 30.0, 2.0] and "LATE" not in capsys.readouterr().out.splitlines()[0]
    with pytest.raises(InputError, match="expected some of help, import, mlp"):
        startup.main(["--only", "nothing"])


def test_what_is_started_runs(tmp_path):
    assert startup.seconds(startup.PLAIN["help"]) > 0
    assert startup.seconds(["-c", startup.SYSTEM.format(name="qa")], None) > 0
    with pytest.raises(RuntimeError, match="told so"):
        startup.seconds(["-c", "raise SystemExit('told so')"])


def test_it_is_a_script():
    done = subprocess.run([sys.executable, str(ROOT / "examples" / "speed.py"), "absent.json"], capture_output=True, text=True,
                          env={"PYTHONPATH": str(ROOT), "PATH": ""})
    assert done.returncode == 2 and done.stderr.startswith("speed: absent.json: ")
