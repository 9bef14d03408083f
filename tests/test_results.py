"""The page of results is what its script makes of the files that runs left."""
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "examples"))
import results  # noqa: E402

KEPT = sorted(results.KEPT.glob("*.json"))


def test_the_page_is_made_from_the_files():
    assert KEPT and results.PAGE.read_text(encoding="utf-8") == results.page()


@pytest.mark.parametrize("path", KEPT, ids=[p.stem for p in KEPT])
def test_what_is_kept_is_what_runs_write(path):
    """A kind, a command of ours, and figures; no path of the machine that it was measured on."""
    text = path.read_text(encoding="utf-8")
    kept = json.loads(text)
    assert kept["kind"] in ("run", "comparison", "lengths", "steps")
    assert kept["command"].startswith(("tinyattn ", "python examples/"))
    assert '"/' not in text and "/home/" not in text and "/tmp/" not in text
    if kept["kind"] == "run":
        assert kept["metrics"]["steps"] > 0 and kept["metrics"]["test"]


def test_a_run_is_taken_in(tmp_path, monkeypatch):
    metrics = {"system": "qa", "options": {"attention": "memn2n"}, "seed": 1, "parameters": 5, "steps": 7,
               "seconds": 2.0, "best_step": 7, "validation_loss": 1.0,
               "test": {"questions": 9, "accuracy": 0.5, "error": 50.0, "failed": 1, "loss": 2.0}}
    for where in ("run", "run/baseline"):
        (tmp_path / where).mkdir()
        (tmp_path / where / "metrics.json").write_text(json.dumps(metrics))
    monkeypatch.setattr(results, "KEPT", tmp_path / "kept")
    results.add("built-in-qa", tmp_path / "run", "tinyattn train qa --baseline")
    page = results.page()
    assert "| qa | memn2n | 5 | 7 | 2 | 9 questions | " in page and "    tinyattn train qa --baseline" in page
