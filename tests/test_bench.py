"""The benchmark: sides are compared before they are timed, timed in turn and alone, and judged. Speed itself is no test."""
import gc
import importlib
import itertools
import json
import os

import numpy as np
import pytest

from tinyattn import InputError, Tensor, bench, device
from tinyattn.cli import main
from tinyattn.compiler import compile
from tinyattn.optim import SGD
from tinyattn.workloads import GROUPS, peers, rows, sides, timing
from tinyattn.workloads.row import COPY, OURS, PEERS, Row


class Clock:
    """Time that passes only when a fake side works."""

    def __init__(self):
        self.now, self.log = 0.0, []

    def __call__(self):
        return self.now

    def side(self, name, seconds, result=0.0):
        """seconds: of one call, or a function of the name of the call before."""
        def call():
            before = self.log[-1] if self.log else None
            self.log.append(name)
            self.now += seconds(before) if callable(seconds) else seconds
            return result
        return call


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(timing, "clock", clock)
    return clock


@pytest.fixture
def quick(monkeypatch):
    """Timings of next to no time, for what real sides give and not how fast."""
    for name, value in {"LONG": 1e-5, "SETTLE": 0, "BLOCKS": 1, "PAIRS": 2, "TRIES": 1}.items():
        monkeypatch.setattr(timing, name, value)


def table(monkeypatch, *made):
    """Let the table be these rows."""
    monkeypatch.setattr(bench, "rows", lambda: list(made))


def fake(clock, asked=None, **sides):
    makers = {side: (lambda call=call: call) for side, call in sides.items()}
    return Row("fake", "of 1", "small", makers, asked or {})


# ---------------------------------------------------------------------------------------------------------------------
# the table
# ---------------------------------------------------------------------------------------------------------------------
def test_every_row_has_ours_and_known_sides():
    there = rows()
    assert {row.group for row in there} == set(GROUPS)
    assert len({(row.name, row.sizes) for row in there}) == len(there)
    for row in there:
        assert "ours" in row.sides and set(row.sides) <= {*OURS, *PEERS}, row.name
        for asked in (row.asked, row.card):
            assert set(asked) <= set(row.sides), f"{row.name}: something is asked of a side that is not there"


@pytest.mark.parametrize("name, sizes, asked", [
    ("additive scores", "B,T,S,D = 32,50,50,128", 18), ("additive scores 2-D", "B,T,S,D,M = 32,20,20,64,8", 5),
    ("feature-wise attention", "B,T,S,D = 16,64,64,128", 5), ("attention", "B*H,T,D = 8,1024,64", 0.8),
    ("attention", "B*H,T,D = 8,1024,64, causal", 1), ("RNN layer", "B,T,D = 32,32,128", 2), ("GRU layer", "B,T,D = 64,64,256", 1.2),
    ("LSTM layer", "B,T,D = 32,32,64", 1.2), ("softmax", "(512, 1000)", 1), ("embedding", "(5000, 128), 480 ids", 1),
    ("small mul", "(32, 64) alone, forward + backward", 3), ("small matmul", "(32, 64) chain of 100, forward", 1),
    ("small add", "(32, 64) chain of 100, forward + backward", 0.9)])
def test_what_is_asked(name, sizes, asked):
    row, = (r for r in rows() if (r.name, r.sizes) == (name, sizes))
    assert row.asked == {"torch": asked}


def smallest():
    """The first, smallest row of each name, forward and backward; and the causal one."""
    found = {}
    for row in rows():
        if row.group not in ("training", "small") or row.sizes.endswith("alone, forward + backward"):
            found.setdefault((row.name, "causal" in row.sizes), row)
    return list(found.values())


@pytest.mark.parametrize("peer", ["torch", "jax", "tinygrad", "autograd"])
def test_peers_compute_what_we_do(peer):
    why = peers.load([peer], device.get_num_threads())[peer]
    if why:
        pytest.skip(f"{peer}: {why}")
    compared = 0
    for row in smallest():
        if peer in row.sides:
            ours, mine, failed = bench._begin(row.sides["ours"])
            theirs, its, its_failed = bench._begin(row.sides[peer])
            assert failed is None and its_failed is None, (row.name, failed, its_failed)
            assert bench.disagreement(mine, its, row.tolerance) is None, f"{row.name} {row.sizes}"
            compared += 1
    assert compared > 5


# ---------------------------------------------------------------------------------------------------------------------
# timing
# ---------------------------------------------------------------------------------------------------------------------
def test_two_sides_run_in_turn_and_each_alone(clock):
    ours, theirs = timing.Timed(clock.side("a", 0.001)), timing.Timed(clock.side("b", 0.003))
    clock.log.clear()
    found = timing.pair(ours, theirs)
    assert found["ratio"] == pytest.approx(3) and found["ours_us"] == pytest.approx(1000) and found["peer_us"] == pytest.approx(3000)
    assert found["ours_alone_us"] == pytest.approx(1000) and found["peer_alone_us"] == pytest.approx(3000)
    assert found["counts"] and found["ours_counts"] and found["tries"] == 1 and found["rounds"] == timing.BLOCKS * timing.PAIRS
    turns = [name for i, name in enumerate(clock.log) if i == 0 or clock.log[i - 1] != name]
    assert turns == ["b", *["a", "b"] * timing.PAIRS, "a"] * 1 + ["b", *["a", "b"] * timing.PAIRS, "a"] * (timing.BLOCKS - 1)
    turns_of_each = timing.BLOCKS * (2 * timing.PAIRS + 1)  # alone begins with one that does not count
    assert [clock.log.count(name) for name in "ab"] == [turns_of_each * (side.before + side.count) for side in (ours, theirs)]
    assert ours.count * 0.001 >= timing.LONG and ours.before * 0.001 >= timing.SETTLE


def test_each_timing_begins_with_calls_that_do_not_count(clock):
    """The first call after another side's takes ten times as long: caches, sleeping threads. It is not in the times."""
    ours = timing.Timed(clock.side("a", lambda before: 0.001 if before == "a" else 0.01))
    theirs = timing.Timed(clock.side("b", lambda before: 0.001 if before == "b" else 0.01))
    found = timing.pair(ours, theirs)
    assert found["ratio"] == pytest.approx(1) and found["counts"] and found["ours_us"] == pytest.approx(1000)


@pytest.mark.parametrize("who", ["ours", "peer"])
def test_a_side_that_the_other_disturbs_is_marked(clock, who):
    """Its calls take twice as long for a while after the other has run: what settling cannot take away."""
    last = {}

    def slow(before):
        if before != "b" and before is not None:
            last["other"] = clock.now
        return 0.002 if clock.now - last.get("other", -9) < 0.09 else 0.001
    disturbed, other = timing.Timed(clock.side("b", slow)), timing.Timed(clock.side("a", 0.001))
    found = timing.pair(*((disturbed, other) if who == "ours" else (other, disturbed)))
    assert not found["counts" if who == "peer" else "ours_counts"] and found["counts" if who == "ours" else "ours_counts"]
    assert found["tries"] > 1


def test_a_disturbed_pair_is_tried_again(clock, monkeypatch):
    tries = iter([{"disturbed": 0.3, "counts": False, "ours_counts": True, "ratio": 9}, {"disturbed": 0.01, "counts": True, "ours_counts": True, "ratio": 2}])
    monkeypatch.setattr(timing, "_try", lambda ours, theirs: next(tries))
    assert timing.pair(None, None) == {"disturbed": 0.01, "counts": True, "ours_counts": True, "ratio": 2, "tries": 2}


def test_the_try_that_is_kept_is_the_least_disturbed_not_the_best(clock, monkeypatch):
    tries = iter([{"disturbed": d, "counts": False, "ours_counts": True, "ratio": ratio} for d, ratio in ((0.3, 9), (0.1, 1), (0.2, 5))])
    monkeypatch.setattr(timing, "_try", lambda ours, theirs: next(tries))
    found = timing.pair(None, None)
    assert found["ratio"] == 1 and found["tries"] == 3


def test_without_anything_asked_there_is_one_try(clock, monkeypatch):
    monkeypatch.setattr(timing, "_try", lambda ours, theirs: {"disturbed": 0.5, "counts": False, "ours_counts": False})
    assert timing.pair(None, None, tries=1)["tries"] == 1 and timing.pair(None, None)["tries"] == timing.TRIES


def test_slow_calls_are_timed_less_often(clock):
    found = timing.pair(timing.Timed(clock.side("a", 0.5)), timing.Timed(clock.side("b", 1.0)))
    assert found["rounds"] == timing.BLOCKS and found["ratio"] == 2


def test_the_collector_rests_while_timing(clock):
    seen = []
    call = clock.side("a", 0.001)
    timing.one(timing.Timed(lambda: (call(), seen.append(gc.isenabled()))))
    assert gc.isenabled() and not all(seen) and not any(seen[-timing.BLOCKS * timing.PAIRS:])
    with pytest.raises(ZeroDivisionError), timing.without_collector():
        raise ZeroDivisionError
    assert gc.isenabled()


# ---------------------------------------------------------------------------------------------------------------------
# agreement
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("theirs, why", [
    ([1.0, 2.001], "result 1 of call 1"), ([1.0, np.nan], "nan"), ([1.0], "shapes"), ([1.0, [2.0]], "shapes")])
def test_a_different_result_is_found(theirs, why):
    mine = [[np.float32(1), np.float32(2)]]
    assert bench.disagreement(mine, [[np.float32(x) for x in (1, 2.00001)]], 1e-4) is None
    assert why in bench.disagreement(mine, [[np.array(x, np.float32) for x in theirs]], 1e-4)


def test_a_peer_in_double_precision_does_other_work():
    assert "float64" in bench.disagreement([[np.ones(2, np.float32)]], [[np.ones(2)]], 1e-4)


def test_results_of_all_kinds_are_fetched():
    lazy = [0]
    parts = (Tensor([1.0]), 2.0, None, (np.ones(2),), lambda: lazy)
    assert [a.tolist() for a in bench.fetched(parts)] == [[1.0], 2.0, [1.0, 1.0], 0]
    kept = np.ones(2)
    fetched, = bench.fetched(kept)
    kept += 1
    assert fetched.tolist() == [1, 1]


def test_a_peer_that_disagrees_is_an_error_and_no_number(clock, monkeypatch, capfd):
    table(monkeypatch, fake(clock, {"torch": 1}, ours=clock.side("a", 0.001, 1.0), torch=clock.side("b", 0.002, 1.1)))
    monkeypatch.setattr(peers, "load", lambda wanted, threads: dict.fromkeys(wanted))
    assert main(["bench", "--peer", "torch", "--json"]) == 1
    captured = capfd.readouterr()
    result, = json.loads(captured.out)["results"]
    assert "error" in result and "ratio" not in result and "disagrees" in captured.err


def test_a_step_that_moves_no_weights_disagrees(clock):
    losses = itertools.count(3.0, -0.1)
    row = Row("fake", "", "training", {"ours": lambda: lambda: next(losses), "torch": lambda: lambda: 3.0})
    result, = bench.measure(row, ["torch"])
    assert "call 2" in result["error"]


def test_a_replay_that_moves_no_weights_disagrees():
    """Two calls of a captured step are eager: the first, and the one that its replay is compared with."""
    def make(capture):
        w = Tensor(np.ones(3), requires_grad=True)
        optimizer = SGD([w], lr=0.1)

        def step():
            optimizer.zero_grad()
            loss = (w * w).sum()
            loss.backward()
            optimizer.step()
            return loss
        return compile(step) if capture else step

    def faulty():
        step = make(True)

        def run():
            for entry in step.programs.values():
                if entry.calls:
                    entry.replay.captured.effects.clear()
            return step()
        return run

    eager, captured, wrong = (bench._begin(side)[1] for side in (lambda: make(False), lambda: make(True), faulty))
    assert bench.disagreement(eager, captured, 1e-6) is None
    assert "call 4" in bench.disagreement(eager, wrong, 1e-6)


# ---------------------------------------------------------------------------------------------------------------------
# a run
# ---------------------------------------------------------------------------------------------------------------------
def test_the_document(clock, monkeypatch, tmp_path, capfd):
    table(monkeypatch, fake(clock, {"torch": 2.5, "jax": 1}, ours=clock.side("a", 0.004), compiled=clock.side("c", 0.001),
                            torch=clock.side("b", 0.003), jax=clock.side("d", 0.0005)))
    monkeypatch.setattr(peers, "load", lambda wanted, threads: {p: None if p in ("torch", "jax") else "not installed" for p in wanted})
    file = tmp_path / "bench.json"
    assert main(["bench", "--peers", "-o", str(file)]) == 0
    assert main(["bench", "--peers", "--check"]) == 1  # JAX's is below
    printed = capfd.readouterr()
    document = json.loads(file.read_text(encoding="utf-8"))
    assert {"date", "processor", "cores", "threads", "versions", "peers", "left_out", "results", "asked", "others"} <= set(document)
    assert document["peers"] == ["torch", "jax"] and document["left_out"] == {"tinygrad": "not installed", "autograd": "not installed"}
    assert [(r["ours"], r["peer"], round(r["ratio"], 3)) for r in document["results"]] == [
        ("ours", "torch", 0.75), ("compiled", "torch", 3), ("ours", "jax", 0.125), ("compiled", "jax", 0.5)]
    assert [(v["peer"], v["ours"], v["enough"]) for v in document["asked"]] == [("torch", "compiled", True), ("jax", "compiled", False)]
    assert printed.out.count("fake") == 8 and "left out: tinygrad" in printed.err and "below: fake" in printed.err
    assert [p.name for p in tmp_path.iterdir()] == ["bench.json"]


def test_a_ratio_that_counts_goes_before_a_better_one_that_does_not():
    common = dict.fromkeys(("name", "sizes", "group", "ratio_low", "ratio_high"), "") | {"peer": "torch", "asked": 2}
    found, = bench.verdicts([{**common, "ours": "ours", "ratio": 1.0, "counts": True},
                             {**common, "ours": "compiled", "ratio": 3.0, "counts": False}])
    assert found["ours"] == "ours" and not found["enough"]


def test_check_passes_where_all_have_it(clock, monkeypatch, capfd):
    table(monkeypatch, fake(clock, {"torch": 2.5}, ours=clock.side("a", 0.001), torch=clock.side("b", 0.003)))
    monkeypatch.setattr(peers, "load", lambda wanted, threads: dict.fromkeys(wanted))
    assert main(["bench", "--peer", "torch", "--check"]) == 0
    assert "1 of 1 rows" in capfd.readouterr().err


def test_a_peer_that_fails_on_a_row_is_left_out(clock, monkeypatch):
    def broken():
        raise RuntimeError("no such op\nhere")
    row = Row("fake", "", "small", {"ours": lambda: clock.side("a", 0.001), "torch": broken, "jax": lambda: clock.side("b", 0.002)})
    first, second = bench.measure(row, ["torch", "jax"])
    assert first["left_out"] == "RuntimeError: no such op here" and second["ratio"] == pytest.approx(2)
    assert "left out" in bench.line({**first}) and "jax" in bench.line(second)


def test_none_installed_is_one_line(monkeypatch, capfd):
    importing = importlib.import_module

    def without(name, *rest):
        if name in ("torch", "jax", "tinygrad", "autograd"):
            raise ImportError(name)
        return importing(name, *rest)
    monkeypatch.setattr(peers.importlib, "import_module", without)
    assert main(["bench", "small add", "--peers"]) == 2
    captured = capfd.readouterr()
    assert captured.out == "" and len(captured.err.splitlines()) == 1 and "tinygrad: not installed" in captured.err


@pytest.mark.parametrize("arguments, words", [
    (["nothing"], "no workload is named like nothing"), (["small", "nothing"], "like nothing"), (["--peer", "nothing"], "nothing"),
    (["--peers", "--twins"], "not both"), (["--check"], "--peers"), (["small", "--twins"], "small"), (["-o", "x.txt"], ".json"),
    (["-o", "no/such/folder/x.json"], "no/such/folder"), (["small add", "--threads", "0"], "threads"),
    (["small add", "--threads", "999"], "999"), (["--device", "gpu"], "gpu"), (["card"], "--device cuda"), (["softmax", "Card"], "--device cuda")])
def test_bad_usage_is_one_line(arguments, words, capfd):
    assert main(["bench", *arguments]) == 2
    captured = capfd.readouterr()
    assert captured.out == "" and len(captured.err.splitlines()) == 1 and words in captured.err


def test_a_group_and_a_part_of_a_name_pick_rows():
    assert {row.group for row in bench.choose(["recurrent"])} == {"recurrent"}
    assert {row.name for row in bench.choose(["gru layer", "softmax (480"])} == {"GRU layer", "softmax"}


def test_environment_threads_and_cores_are_left_as_they_were(monkeypatch):
    monkeypatch.setenv("NPROC", "7")
    monkeypatch.delenv("PJRT_NPROC", raising=False)
    environment, threads = dict(os.environ), device.get_num_threads()
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    with bench._threads(1) as now:
        peers.load(["autograd"], now)
        assert now == device.get_num_threads() == 1
        assert cores is None or len(os.sched_getaffinity(0)) == 1
    assert dict(os.environ) == environment and device.get_num_threads() == threads
    assert cores is None or os.sched_getaffinity(0) == cores


def test_peers_see_the_number_of_threads(monkeypatch):
    seen = {}
    monkeypatch.setattr(peers.importlib, "import_module", lambda name: seen.update({name: os.environ["PJRT_NPROC"]}))
    monkeypatch.setattr(peers, "START", {})
    assert peers.load(["jax", "torch-compile"], 3) == {"jax": None, "torch-compile": None} and seen == {"jax": "3", "torch": "3"}


def test_rows_are_measured_without_a_peer(quick):
    lines, notes = [], []
    document = bench.run(["small mul (32, 64) alone, forward + backward"], report=lines.append, note=notes.append)
    result, = document["results"]
    assert result["ours_us"] > 0 and result["ours_low_us"] <= result["ours_us"] <= result["ours_high_us"] and result["peer"] is None
    assert "small mul" in lines[0] and "threads" in notes[0]
    json.dumps(document)


def test_a_row_with_pytorch(quick):
    pytest.importorskip("torch")
    result, = bench.run(["small add (32, 64) alone, forward + backward"], ["torch"])["results"]
    assert result["ratio_low"] <= result["ratio"] <= result["ratio_high"] and result["peer_us"] > 0


def test_a_fused_op_is_compared_with_its_twin(quick):
    document = bench.run(["linear chain"], twins=True)
    result, = document["results"]
    assert result["peer"] == "twin" and result["ratio"] > 1 and result["asked"] == 1 and document["peak_gflops"] is None
    with pytest.raises(InputError, match="no workload is named like small add"):  # an op without a twin
        bench.run(["small add"], twins=True)


def test_a_floor_is_said_as_time(quick):
    document = bench.run(["attention B*H,T,D = 32,64,32", "linear layer (480"])
    assert all(r["floor_us"] == pytest.approx(row.floor / document["peak_gflops"] / 1e3)
               for r, row in zip(document["results"], bench.choose(["attention B*H,T,D = 32,64,32", "linear layer (480"]), strict=True))
    assert document["peak_gflops"] > 0


# ---------------------------------------------------------------------------------------------------------------------
# on a card; its rows are tested in tests/on_card/test_card_bench.py
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.skipif(device.cuda_status() != "absent", reason="there is a card")
@pytest.mark.parametrize("more", [[], ["--peers"], ["card", "--check"], ["small", "--json"]])
def test_without_a_card_there_is_one_clear_line(more, capfd):
    assert main(["bench", "--device", "cuda", *more]) == 2
    captured = capfd.readouterr()
    assert captured.out == "" and len(captured.err.splitlines()) == 1 and "no CUDA card or driver" in captured.err
    assert device.get_default_device() == "cpu"


@pytest.fixture
def as_if(clock, monkeypatch):
    """A card that is none: the fake sides do not need it, nor is anything copied."""
    waited = []
    monkeypatch.setattr(device, "cuda_status", lambda: "present")
    monkeypatch.setattr(bench, "wait_of", lambda side: lambda: waited.append(side))
    monkeypatch.setattr(peers, "card_facts", lambda: {"card": "A card, 80 GiB", "driver": "550.1 for CUDA 12.4", "pool": False})
    monkeypatch.setattr(bench.card, "rows", lambda: [])
    monkeypatch.setattr(bench.card, "copying", lambda moved: clock.side("copy", moved / 1e12))
    monkeypatch.setattr(peers, "load", lambda wanted, threads: {p: None if p == "torch" else peers.NO_CARD for p in wanted})
    return waited


def test_the_document_of_a_card(as_if, clock, monkeypatch, tmp_path, capfd):
    made = {"ours": lambda: clock.side("a", 0.004), "torch": lambda: clock.side("b", 0.003)}
    table(monkeypatch, Row("bound", "by memory", "card", made, moved=3_600_000_000, card={COPY: 0.8}),
          Row("slow", "by memory", "card", made, moved=2_000_000_000, card={COPY: 0.8}),
          Row("scores", "", "attention", made, {"torch": 18}, card={"torch": 0.5}))
    file = tmp_path / "card.json"
    assert main(["bench", "--device", "cuda", "--peers", "-o", str(file)]) == 0
    document = json.loads(file.read_text(encoding="utf-8"))
    assert (document["device"], document["card"], document["driver"]) == ("cuda", "A card, 80 GiB", "550.1 for CUDA 12.4")
    assert document["left_out"] == dict.fromkeys(("jax", "tinygrad", "autograd"), "computes on the CPU only")
    found = {(r["name"], r["peer"]): r for r in document["results"]}
    assert found.keys() == {("bound", "copy"), ("bound", "torch"), ("slow", "copy"), ("slow", "torch"), ("scores", "torch")}
    assert found["bound", "copy"]["ratio"] == pytest.approx(0.9) and found["bound", "copy"]["gb_per_s"] == pytest.approx(900)
    assert [(v["name"], v["peer"], round(v["ratio"], 3), v["asked"], v["enough"]) for v in document["asked"]] == [
        ("bound", "copy", 0.9, 0.8, True), ("slow", "copy", 0.5, 0.8, False), ("scores", "torch", 0.75, 0.5, True)]
    printed = capfd.readouterr()
    assert "A card, 80 GiB; driver 550.1" in printed.err and "below: slow" in printed.err and "900 GB/s" in printed.out
    assert {"ours", "torch", "copy"} == set(as_if) and device.get_default_device() == "cpu"


def test_check_on_a_card_needs_no_peer(as_if, clock, monkeypatch):
    made = {"ours": lambda: clock.side("a", 0.004)}
    table(monkeypatch, Row("bound", "", "card", made, moved=3_600_000_000, card={COPY: 0.8}))
    assert main(["bench", "card", "--device", "cuda", "--check"]) == 0
    table(monkeypatch, Row("slow", "", "card", made, moved=2_000_000_000, card={COPY: 0.8}))
    assert main(["bench", "slow", "--device", "cuda", "--check"]) == 1


def test_on_the_cpu_nothing_of_a_card_is_said_or_asked(clock, monkeypatch):
    made = {"ours": lambda: clock.side("a", 0.004), "torch": lambda: clock.side("b", 0.003)}
    table(monkeypatch, Row("fake", "", "small", made, {"torch": 0.7}, floor=1e6, card={COPY: 0.8}, moved=1000))
    monkeypatch.setattr(peers, "load", lambda wanted, threads: dict.fromkeys(wanted))
    monkeypatch.setattr(bench, "peak", lambda: 100.0)  # no product moves this clock
    document = bench.run(wanted=["torch"])
    result, = document["results"]
    assert document["device"] == "cpu" and "card" not in document and result["peer"] == "torch" and result["asked"] == 0.7
    assert not {"moved", "gb_per_s", "gflop_per_s"} & set(result)


def test_peers_without_a_card_say_so(monkeypatch):
    torch, seen = pytest.importorskip("torch"), {}
    importing = peers.importlib.import_module
    monkeypatch.setattr(peers, "on_card", lambda: True)
    monkeypatch.setattr(peers.importlib, "import_module", lambda name: importing(name) if name == "torch" else seen.update(
        {name: os.environ["JAX_PLATFORMS"]}))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    assert peers.load(["torch", "autograd"], 1) == {"torch": "its build is for the CPU", "autograd": "computes on the CPU only"}
    assert seen == {"autograd": "cuda"}
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    assert peers.load(["torch-compile"], 1) == {"torch-compile": "finds no card"}
    torch.set_num_threads(device.get_num_threads())


def test_pytorch_computes_in_float32_on_a_card(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert peers._torch_on_card() is None
    assert not torch.backends.cudnn.allow_tf32 and torch.get_float32_matmul_precision() == "highest"
    monkeypatch.setattr(sides, "on_card", lambda: True)
    assert sides.made_there("torch-compile") == torch.device("cuda")  # as a context it is where tensors are made
    with sides.made_there("ours"):
        assert torch.get_default_device().type == "cpu"
    assert sides.wait_of("torch") is torch.cuda.synchronize
