"""The rows of `tinyattn bench --device cuda` at tiny sizes: they compute what the CPU does, and what PyTorch does; how they are
timed and judged. In the simulator times mean nothing: only results are looked at."""
import json
import subprocess
import sys
from functools import partial

import numpy as np
import pytest

from tinyattn import InputError, bench, device, random
from tinyattn.cuda import SIMULATED
from tinyattn.tensor import Tensor
from tinyattn.workloads import attention, card, layers, optimiser, recurrent, sides, timing
from tinyattn.workloads.row import COPY, Row
from tinyattn.workloads.training import mlp

TINY = card.Sizes(numbers=96, widths=(4, 32), classes=12, table=(7, 3, 9), matrix=(5, 6), parameters=160, products=(5,), small=3,
                  allocated=(4096,))
ROWS = [row for row in card.rows(TINY) if not row.apart]
SHARED = [attention._additive(2, 3, 4, 5, 6), attention._attention(2, 5, 5, 4, True, 1), attention._attention(2, 5, 5, 4, False, 1),
          attention._featurewise(2, 3, 4, 5), layers._softmax(3, 5), layers._cross_entropy(4, 6), layers._embedding(6, 3, 5),
          layers._linear(4, 3, 5, "tanh"), layers._dropout(40, 50), recurrent._layer("GRU", 2, 3, 4, 2),
          optimiser.adam("some", [(3, 4), (5,)]), mlp.row(mlp.Sizes(4, 3, 5, 2))]


def ids(rows):
    return [f"{row.name} {row.sizes}" for row in rows]


@pytest.fixture
def there():
    with device.default_device("cuda"):
        yield


@pytest.fixture
def quick(monkeypatch):
    for name, value in {"LONG": 1e-5, "SETTLE": 0, "BLOCKS": 1, "PAIRS": 1, "TRIES": 1}.items():
        monkeypatch.setattr(timing, name, value)


def begun(row, side, where, monkeypatch):
    monkeypatch.setattr(bench, "CALLS", 3)
    random.manual_seed(0)  # the same dropout on both devices
    with device.default_device(where):
        _, results, failed = bench._begin(row.sides[side], side)
    assert failed is None
    return results


@pytest.mark.parametrize("row", SHARED + ROWS, ids=ids(SHARED + ROWS))
def test_a_row_computes_on_a_card_what_it_does_elsewhere(row, monkeypatch):
    """Several calls: those after the first write into memory that is used again."""
    mine = begun(row, "ours", "cuda", monkeypatch)
    assert all(np.isfinite(a).all() and a.size for call in mine for a in call)
    if row.name not in ("copy", "launch"):  # these two are kernels of a card, not ops
        cpu, late = begun(row, "ours", "cpu", monkeypatch), row.name == "dropout" and row.group == "card"
        if late:  # `again` has made a call before these, which drew a mask
            cpu, mine = cpu[1:], mine[:-1]
        assert bench.disagreement(cpu, mine, 1e-5) is None
    if SIMULATED:
        pytest.importorskip("torch")
        tolerance = 0.4 if row.name.startswith("dropout") else row.tolerance  # another draw of few numbers
        assert bench.disagreement(begun(row, "torch", "cpu", monkeypatch)[:len(mine)], mine, tolerance) is None


def test_a_captured_step_leaves_its_loss_on_the_card(there, monkeypatch):
    row = mlp.row(mlp.Sizes(3, 2, 4, 2))
    loss = row.sides["compiled"]()()
    assert loss.device == "cuda" and loss.shape == ()
    mine, captured = (begun(row, side, "cuda", monkeypatch) for side in ("ours", "compiled"))
    assert bench.disagreement(mine, captured, row.tolerance) is None and mine[0][0] > mine[2][0]


def test_what_is_moved():
    """Counted by hand, for 96 numbers in rows of 4 and of 32, 8 rows of 12 classes, 9 ids into a table of (7, 3)."""
    named = len(set(np.random.default_rng(1).integers(0, 7, 9).tolist()))
    by_hand = {"add": 96 + 96 + 96, "multiply by a row": 96 + 32 + 96, "exp": 96 + 96, "sum over axis 0": 96 + 32,
               "sum over axis 1": 96 + 3, "transpose": 30 + 30, "softmax": 96 + 96, "softmax gradient": 96 + 96 + 96,
               "cross-entropy": 96 + 2 * 8 + 1, "cross-entropy gradient": 96 + 2 * 8 + 96, "embedding": 2 * 9 + 3 * named + 27,
               "embedding gradient": 2 * 9 + 27 + 21, "dropout": 96 + 96, "dropout gradient": 96 + 96, "Adam step": 7 * 160}
    for row in ROWS:
        if row.card:
            assert row.card == {COPY: 0.8} and {"ours", "torch"} <= set(row.sides)
            width = 4 if row.sizes == "(24, 4)" else 32
            norm = {"layer norm": 2 * 96 + 2 * width, "layer norm gradient": 3 * 96 + 3 * width}
            assert row.moved == 4 * (by_hand | norm)[row.name], row.name
    assert {row.name for row in ROWS if row.card} == by_hand.keys() | {"layer norm", "layer norm gradient"}


def test_memory_is_given_again(there):
    x = Tensor(np.arange(6, dtype=np.float32))
    call = card.again(lambda: (x + x).exp())
    first, second, third = call(), call(), call()
    assert first.array is second.array is third.array and device.planned.take is None
    np.testing.assert_allclose(third.numpy(), np.exp(2 * np.arange(6)), rtol=1e-6)
    sizes = iter([2, 3, 2])
    call = card.again(lambda: card.zeros((next(sizes),), np.float32))  # the first of these is made with the call
    assert call().shape == (3,) and call().shape == (2,)
    with pytest.raises(StopIteration):
        call()
    assert device.planned.take is None


def test_memory_is_not_given_again_on_the_cpu():
    def call():
        return None
    assert card.again(call) is call


def test_a_row_is_measured_beside_a_copy(there, quick, monkeypatch):
    monkeypatch.setattr(bench, "CALLS", 2)
    row = next(row for row in ROWS if row.name == "exp")
    result, = bench.measure(row, [])
    assert result["peer"] == COPY and result["asked"] == 0.8 and result["moved"] == 2 * 96 * 4
    assert result["gb_per_s"] == pytest.approx(row.moved / result["ours_us"] / 1e3)
    verdict, = bench.verdicts([result])
    assert verdict["peer"] == COPY and verdict["enough"] == (result["ratio"] >= 0.8)
    assert "GB/s" in bench.line(result) and "asked 0.8" in bench.line(result)
    json.dumps([result, verdict])


def test_a_copy_moves_what_it_says(there, monkeypatch):
    copies, array = [], type(card.zeros((1,), np.float32))
    before = array.copy_to_device
    monkeypatch.setattr(array, "copy_to_device", lambda to, ary, **more: (copies.append(to.size), before(to, ary, **more)))
    card.copying(4000)()
    assert copies == [500]  # 2,000 bytes read, and as many written


def test_rates_of_rows_without_a_copy(there, quick, monkeypatch):
    monkeypatch.setattr(bench, "CALLS", 1)
    product, = bench.measure(next(row for row in ROWS if row.name == "product"), [])
    assert product["peer"] is None and product["gflop_per_s"] == pytest.approx(2 * 5**3 / product["ours_us"] / 1e3)
    copy, = bench.measure(next(row for row in ROWS if row.name == "copy"), [])
    assert copy["moved"] == 2 * 96 * 4 and "GFLOP/s" in bench.line(product) and "GB/s" in bench.line(copy)


def test_a_timing_waits_for_the_card_before_its_clock_starts_and_before_it_stops(there, monkeypatch):
    log = []
    monkeypatch.setattr(device.numba_cuda(), "synchronize", lambda: log.append("wait"))
    monkeypatch.setattr(timing, "clock", lambda: log.append("clock") or len(log) * 0.01)
    timed = timing.Timed(lambda: log.append("call"), sides.wait_of("ours"))
    timed.count, timed.before = 3, 2
    log.clear()
    timed.turn()
    assert log == ["call", "call", "wait", "clock", "call", "call", "call", "wait", "clock"]


def test_what_is_asked_on_a_card(there):
    chosen = bench.choose(["card"])
    asked = [(row.name, row.card) for row in chosen if row.card and row.group != "card"]
    assert asked == [("additive scores", {"torch": 5})] * 3 + [("attention", {"torch": 0.5})] * 6
    names = [row.name for row in chosen if row.group == "card"]
    assert len({(row.name, row.sizes) for row in chosen}) == len(chosen)
    for name in ("copy", "softmax gradient", "embedding gradient", "Adam step", "product", "launch", "sending a number", "allocation"):
        assert name in names
    for row in chosen:
        if COPY in row.card:
            assert row.moved > 1.2e8, "so small an array lies in a card's cache"
    with pytest.raises(InputError, match="training, card and the rows"):
        bench.choose(["nothing"])


def test_the_cards_rows_use_the_cards_asks(there, quick, monkeypatch):
    monkeypatch.setattr(bench, "CALLS", 1)
    row = Row("fake", "", "attention", {"ours": lambda: lambda: 1.0, "jax": lambda: lambda: 1.0}, {"jax": 9}, card={"jax": 2})
    monkeypatch.setattr(bench, "wait_of", lambda side: lambda: None)
    result, = bench.measure(row, ["jax"])
    assert result["asked"] == 2


def test_allocation_is_measured_in_a_process_of_its_own(there):
    from_driver, from_pool = (row for row in card.rows(TINY) if row.apart)
    assert "driver" in from_driver.sizes and "pool" in from_pool.sizes
    for row, pool in ((from_driver, False), (from_pool, True)):
        assert row.apart.func is card.allocation and row.apart.args == (4096, pool)
    result, = bench.measure(from_pool, [])
    assert result["pool"] and result["reused"] > result["asked"] == 1 and result["ours_us"] > 0 and result["peer"] is None
    assert "allocation" in bench.line({"floor_us": None, **result})
    broken = Row("allocation", "", "card", {}, apart=partial(card.allocation, "many", False))
    result, = bench.measure(broken, [])
    assert "invalid literal" in result["error"] and "ERROR" in bench.line(result)


@pytest.mark.skipif(not SIMULATED, reason="a card is measured")
def test_the_simulator_is_refused():
    done = subprocess.run([sys.executable, "-m", "tinyattn", "bench", "card", "--device", "cuda"], capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout == "" and len(done.stderr.splitlines()) == 1 and "simulator" in done.stderr
