"""The benchmark compares the same work: ours and PyTorch's calls give the same gradients. Speed itself is no test."""
import json

import numpy as np
import pytest

from tinyattn import InputError, bench, workloads


def test_an_unknown_workload_is_one_line():
    with pytest.raises(InputError, match="small add"):
        bench.run(["no such thing"])


def test_a_row_is_measured_with_its_spread(monkeypatch):
    monkeypatch.setattr(bench, "ROUNDS", 3)
    monkeypatch.setattr(bench, "SHORTEST", 1e-5)
    lines = []
    result, = bench.run(["small mul (32, 64) alone, forward + backward"], report=lines.append)
    assert result["ours_us"] > 0 and result["spread_us"][0] <= result["ours_us"] <= result["spread_us"][1]
    assert "small mul" in lines[0]
    json.dumps(result)


def test_both_sides_do_the_same_work(monkeypatch):
    pytest.importorskip("torch")
    kept = []
    monkeypatch.setattr(workloads, "_both_ways", lambda forward, g, leaves, backward=True: kept.append((forward, g, leaves)))
    for row in workloads.rows():
        if "layer" in row.name and row.name != "layer norm" or "chain of" in row.sizes or row.torch is None:
            continue  # layers draw their own weights; a chain repeats the op that was compared alone
        kept.clear()
        row.ours(), row.torch()
        (ours, g, mine), (theirs, h, its) = kept
        ours, theirs = ours(), theirs()
        (ours[0] if isinstance(ours, tuple) else ours).backward(g)
        theirs.backward(h)
        for a, b in zip(mine, its, strict=True):
            if a.grad is not None:
                np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=2e-3, atol=2e-4 * max(1, np.abs(b.grad.numpy()).max()), err_msg=row.name)


def test_peers_are_compared_in_turn(monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setattr(bench, "ROUNDS", 3)
    monkeypatch.setattr(bench, "SHORTEST", 1e-5)
    result, = bench.run(["small add (32, 64) alone, forward + backward"], peers=True)
    assert result["ratio_low"] <= result["ratio"] <= result["ratio_high"] and result["peer_us"] > 0


def test_a_fused_op_is_compared_with_its_twin(monkeypatch):
    monkeypatch.setattr(bench, "ROUNDS", 3)
    monkeypatch.setattr(bench, "SHORTEST", 1e-5)
    result, = bench.run(["linear chain"], twins=True)
    assert result["peer"] == "twin" and result["ratio"] > 1
    with pytest.raises(InputError, match="no workload is named like small add"):  # an op without a twin
        bench.run(["small add"], twins=True)
