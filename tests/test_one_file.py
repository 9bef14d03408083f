"""Adding a mechanism touches one file: dropped into the package's folder, or anywhere and named `my.py:name`."""
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tinyattn.cli import main

ROOT = Path(__file__).parent.parent
# A copy of additive.py under another name and formula: e_ts = w (q_t . W k_s)^3, which no file of the package has.
CUBIC = '''r"""Cubic attention: a bilinear score to the third power.

    e_ts = w (q_t^T W k_s)^3        alpha_t = softmax_s(e_ts)        c_t = sum_s alpha_ts v_s

Made up for this test.

Cost: T S multiplications of width Q, after K Q of them a key.
"""
import math

import numpy as np

from {spine} import variant, weigh


def prepare(k, m):
    """k (B, S, K), m (Q, K) to (B, S, Q)."""
    return k @ m.T


def scores(q, prepared, w):
    """q (B, T, Q), prepared (B, S, Q), w () to (B, T, S)."""
    return w * (q @ prepared.transpose(1, 2)) ** 3


@variant(params={{"m": "QK", "w": ""}}, paper="nobody 2026")
def cubic(q, k, v, m, w, mask=None, return_weights=False):
    """q (B, T, Q), k (B, S, K), v (B, S, E) to (B, T, E)."""
    return weigh(scores(q, prepare(k, m), w), v, mask, return_weights)


def reference(q, k, v, m, w, mask=None):
    out = np.zeros((*q.shape[:2], v.shape[2]))
    for b in range(len(q)):
        for t in range(q.shape[1]):
            places = [s for s in range(k.shape[1]) if mask[b, 0, s]]
            alpha = {{s: math.exp(w * float(q[b, t] @ m @ k[b, s]) ** {power}) for s in places}}
            for s, a in alpha.items():
                out[b, t] += a / sum(alpha.values()) * v[b, s]
    return out


def example(rng):
    return {{"q": rng.normal(size=(2, 3, 2)), "k": rng.normal(size=(2, 4, 3)), "v": rng.normal(size=(2, 4, 5)),
            "m": rng.normal(size=(2, 3)) / 2, "w": np.array(0.3),
            "mask": np.arange(4) < np.array([4, 2])[:, None, None]}}
'''


def test_a_file_dropped_into_the_folder_is_listed_explained_checked_and_drawn(tmp_path):
    shutil.copytree(ROOT / "tinyattn", tmp_path / "tinyattn", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "viz", tmp_path / "viz", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "tinyattn" / "attention" / "cubic.py").write_text(CUBIC.format(spine=".core", power=3))

    def run(*arguments):  # without the compiler: a copied package would compile every kernel anew
        env = os.environ | {"NUMBA_DISABLE_JIT": "1", "PYTHONPATH": str(tmp_path)}
        done = subprocess.run([sys.executable, "-m", "tinyattn", *arguments], cwd=tmp_path, capture_output=True,
                              text=True, env=env, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    listed = [line for line in run("list", "attention").splitlines() if line.startswith("  cubic ")]
    assert len(listed) == 1 and "w (q_t^T W k_s)^3" in listed[0] and "nobody 2026" in listed[0]
    shown = run("explain", "cubic")
    assert "e_ts = w (q_t^T W k_s)^3" in shown and "m (Q, K)" in shown and "Cost:" in shown and "cubic.py" in shown
    assert "all 7 checks passed" in run("check", "cubic")
    run("graph", "cubic", "-o", "cubic.dot")
    assert "softmax" in (tmp_path / "cubic.dot").read_text(encoding="utf-8")


@pytest.fixture
def mine(tmp_path):
    file = tmp_path / "my.py"
    file.write_text(CUBIC.format(spine="tinyattn.attention", power=3))
    return f"{file}:cubic"


def test_a_file_of_ones_own_works_everywhere(mine, tmp_path, capfd):
    assert main(["explain", mine]) == 0
    assert "e_ts = w (q_t^T W k_s)^3" in capfd.readouterr().out
    assert main(["check", mine]) == 0
    assert "all 7 checks passed" in capfd.readouterr().out
    assert main(["graph", mine, "-o", str(tmp_path / "g.dot")]) == 0
    assert main(["gallery", mine, "-o", str(tmp_path / "gallery")]) == 0
    assert {"index.html", "cubic.html"} <= {p.name for p in (tmp_path / "gallery").iterdir()}
    assert main(["train", "translate", "--attention", mine, "--steps", "3", "--hidden", "4", "--embed", "4", "--run",
                 str(tmp_path / "run")]) == 0
    assert (tmp_path / "run" / "model.safetensors").is_file()


def test_a_wrong_formula_of_ones_own_is_found(tmp_path, capfd):
    file = tmp_path / "my.py"
    file.write_text(CUBIC.format(spine="tinyattn.attention", power=2))
    assert main(["check", f"{file}:cubic"]) == 1
    assert "value against reference): WRONG" in capfd.readouterr().out


def test_what_a_beginner_forgets_is_said(tmp_path, capfd):
    text = CUBIC.format(spine="tinyattn.attention", power=3)
    file = tmp_path / "my.py"
    file.write_text(text.replace('"m": "QK"', '"m": "KQQ"'))
    assert main(["check", f"{file}:cubic"]) == 1
    assert "parameter m is declared as (K, Q, Q), its example has shape (2, 3)" in capfd.readouterr().out
    file.write_text(text.replace("def reference(", "def refrence("))
    assert main(["check", f"{file}:cubic"]) == 0
    assert "not compared: its file has no reference" in capfd.readouterr().err
    file.write_text(text.replace("from tinyattn.attention import", "from .core import"))
    assert main(["check", f"{file}:cubic"]) == 2
    assert "write `from tinyattn.attention.core import ...`" in capfd.readouterr().err


def test_what_a_decoder_cannot_use_is_refused_before_training(tmp_path, capfd):
    file = tmp_path / "my.py"
    file.write_text("from tinyattn.attention import variant, weigh\n\n"
                    "@variant()\ndef plain(q, k, v, mask=None):\n    return weigh(q @ k.transpose(), v, mask)\n\n"
                    "@variant()\ndef alone(x, mask=None):\n    return weigh(x @ x.transpose(), x, mask)\n\n"
                    "@variant(params={'w': 'QZ'})\ndef odd(q, k, v, w, mask=None):\n    return q\n")
    for name, message in (("plain", "does not fit this decoder"), ("alone", "a decoder attends with q, k, v"),
                          ("odd", "need the sizes Z")):
        run = ["--steps", "1", "--run", str(tmp_path / name)]
        assert main(["train", "translate", "--attention", f"{file}:{name}", *run]) == 2
        said = capfd.readouterr().err
        assert message in said and "Traceback" not in said
        assert not (tmp_path / name).exists()
