"""The script for the day there is a card, `examples/card.py`: without one, in the simulator, and with parts that fail or hang."""
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "examples"))
import card  # noqa: E402

from tinyattn import device  # noqa: E402

SCRIPT = ROOT / "examples" / "card.py"


# ---------------------------------------------------------------------------------------------------------------------
# without a card, and with a wrong command line
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.skipif(device.cuda_status() == "present", reason="there is a card")
def test_without_a_card_one_line_and_nothing_written(tmp_path):
    done = subprocess.run([sys.executable, SCRIPT, "-o", tmp_path / "card"], cwd=ROOT, capture_output=True, text=True,
                          env={"PATH": "", "PYTHONPATH": str(ROOT)})
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.startswith("card: no CUDA card can be used here: absent") and done.stderr.count("\n") == 1
    assert not (tmp_path / "card").exists()


def test_an_unknown_part_is_named_before_anything_runs(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(card, "run", lambda *words, **more: pytest.fail("something was run"))
    assert card.main(["-o", str(tmp_path / "card"), "--only", "doctor,test"]) == 2
    assert capsys.readouterr().err.startswith("card: --only test: expected some of doctor, ptx, tests, ")
    assert list(card.parts_of("check,doctor")) == ["doctor", "check"] and not (tmp_path / "card").exists()


def test_a_driver_that_hangs_is_no_card(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(card, "run", lambda words, limit, **more: card.Ran(None, limit, "", "", limit))
    assert card.main(["-o", str(tmp_path / "card")]) == 2
    assert "the driver gives no answer (no end after 120 s, ended)" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------------------------------
# child processes
# ---------------------------------------------------------------------------------------------------------------------
def test_a_process_that_hangs_is_ended_with_all_that_it_started(tmp_path):
    slow = f"import time; print('here', flush=True); time.sleep(3); open({str(tmp_path / 'late')!r}, 'w')"
    begun = time.perf_counter()
    ran = card.run([sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {slow!r}])"], 1.5)
    assert ran.code is None and ran.why == "no end after 1.5 s, ended" and ran.out == "here\n"
    time.sleep(max(0.0, 4 - (time.perf_counter() - begun)))
    assert not (tmp_path / "late").exists()


def test_what_a_process_says_of_its_end():
    assert card.run([sys.executable, "-c", "print('{}')"], 60).why == ""
    ran = card.run([sys.executable, "-c", "import os; raise SystemExit(os.environ['WORD'])"], 60, WORD="no such kernel")
    assert ran.why == "exit code 1: no such kernel"
    assert card.run([sys.executable, "-c", "import os; print(os.environ.get('PATH'))"], 60, PATH=None).out == "None\n"


def test_a_part_that_fails_or_breaks_does_not_stop_the_rest(tmp_path, monkeypatch, capsys):
    def broken(asked):
        raise OSError("a wire is loose")

    parts = {"doctor": lambda asked: card.Found("passed", facts={"numpy": "2.4"}), "tests": broken,
             "check": lambda asked: card.Found("failed", "1 of 9 checks failed"),
             "bench": lambda asked: card.Found("skipped", "no time"), "lesson": lambda asked: card.Found("passed")}
    monkeypatch.setattr(card, "PARTS", parts)
    monkeypatch.setattr(card, "machine", lambda asked: {"cuda card 0": "Pretended 100"})
    assert card.main(["-o", str(tmp_path)]) == 1
    found = json.loads((tmp_path / "card.json").read_text(encoding="utf-8"))
    assert [part["state"] for part in found["parts"].values()] == ["passed", "failed", "failed", "skipped", "passed"]
    text = (tmp_path / "CARD.md").read_text(encoding="utf-8")
    assert "SIMULATED" not in text and "- cuda card 0: Pretended 100" in text and "- numpy: 2.4" in text
    assert "2 parts passed, 2 failed, 1 skipped." in text and "OSError: a wire is loose" in text and "| seconds |" in text
    assert capsys.readouterr().out.splitlines()[1] == "tests      failed   OSError: a wire is loose"
    monkeypatch.setattr(card, "PARTS", {"bench": parts["bench"], "lesson": parts["lesson"]})
    assert card.main(["-o", str(tmp_path)]) == 0


# ---------------------------------------------------------------------------------------------------------------------
# what is judged
# ---------------------------------------------------------------------------------------------------------------------
def trained(losses=None, value=40.0):
    return {"losses": losses or [2 - 0.01 * i for i in range(100)], "figure": "BLEU", "value": value, "step": 0.01}


def with_loss(step, loss):
    losses = trained()["losses"]
    losses[step] = loss
    return trained(losses)


@pytest.mark.parametrize("there, says", [
    (with_loss(0, 2.0001), "the loss of step 1 is 2.0001, on the cpu 2"), (with_loss(7, 1.94), "the loss of step 8 is 1.94"),
    (trained([2 - 0.009 * i if i > 9 else 2 - 0.01 * i for i in range(100)]), "the mean of the last losses is 1.19"),
    (with_loss(90, float("nan")), "the mean of the last losses is nan"), (trained(value=36.0), "BLEU is 36, on the cpu 40"),
    (trained([2.0]), "1 losses on the card, 100 on the cpu")])
def test_trainings_that_do_not_agree(there, says):
    assert card.apart(there, trained()).startswith(says)


def test_trainings_that_agree():
    assert card.apart(trained(), trained()) == ""
    assert card.apart(with_loss(0, 2.00001), trained(value=39.0)) == ""
    assert card.apart(trained(value=0.0), trained(value=0.005)) == ""


def measured(ratio, asked, counts=True, peer="copy"):
    return {"name": "softmax", "sizes": "(9, 9)", "peer": peer, "ratio": ratio, "asked": asked, "counts": counts,
            "enough": ratio >= asked}


def test_what_a_benchmark_has_of_what_is_asked():
    document = {"asked": [measured(0.9, 0.8), measured(0.4, 0.5, counts=False, peer="torch")], "results": [{}] * 5, "left_out": {}}
    found = card.rated(document)
    assert found.state == "passed" and found.facts["below"] == 0
    assert found.tables[""][1:] == [["softmax", "(9, 9)", "copy", "0.9", "0.8", ""],
                                    ["softmax", "(9, 9)", "PyTorch, eager", "0.4", "0.5", "BELOW disturbed, does not count"]]
    document["asked"].append(measured(4.2, 5, peer="torch"))
    found = card.rated(document)
    assert (found.state, found.why) == ("failed", "softmax, (9, 9): 4.2 of PyTorch, eager, asked 5")
    assert card.rated(document | {"asked": []}, remark="no peer").state == "passed"
    assert card.rated(document | {"asked": []}, "exit code 1: error").state == "failed"


# ---------------------------------------------------------------------------------------------------------------------
# the whole, in the simulator
# ---------------------------------------------------------------------------------------------------------------------
def test_the_script_in_the_simulator(tmp_path, monkeypatch, capsys):
    """All parts but the two that ask nothing of a card: the compiler, and the lesson with its own simulator. One system."""
    monkeypatch.setattr(card.systems, "names", lambda: ["qa"])
    parts = [name for name in card.PARTS if name not in ("ptx", "lesson")]
    assert card.main(["--simulate", "-o", str(tmp_path), "--only", ",".join(parts)]) == 0, capsys.readouterr().out
    found = json.loads((tmp_path / "card.json").read_text(encoding="utf-8"))
    assert found["simulated"] and list(found["parts"]) == parts
    assert {name for name, part in found["parts"].items() if part["state"] != "passed"} == {"bench"}
    assert all("seconds" not in part for part in found["parts"].values())
    card_run, cpu_run = found["parts"]["training"]["facts"]["qa"]
    assert card_run["device"] == "cuda" and len(cpu_run["losses"]) == 2 and card_run["step"] is None
    text = (tmp_path / "CARD.md").read_text(encoding="utf-8")
    assert text.splitlines()[2].startswith("**SIMULATED.**") and "| seconds |" not in text.split("## start")[0]
    assert "7 parts passed, 0 failed, 1 skipped." in text


def test_what_a_child_that_fails_has_printed_is_kept(tmp_path):
    asked = card.Asked(tmp_path, simulate=True)
    ran = asked.do("train", "no_such_system", "cuda", 1, limit=120)
    assert ran.code == 1 and "no_such_system" in ran.why and (tmp_path / "train-no_such_system-cuda-1.txt").is_file()
