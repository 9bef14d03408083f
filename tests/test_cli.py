"""The command line: what it leaves behind, what it says, with which exit code; odd consoles and odd files."""
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as xml
from pathlib import Path

import numpy as np
import pytest

from tinyattn import checkpoint
from tinyattn.cli import COMMANDS, main
from tinyattn.commands import console, names, warmup
from tinyattn.errors import InputError
from tinyattn.models.system import Prediction
from tinyattn.tasks.english_french import generate

ROOT = Path(__file__).parent.parent
SMALL = ["--hidden", "6", "--embed", "5", "--batch-size", "8", "--validate-every", "4", "--dropout", "0.1"]


def environment(**changes):
    env = {**os.environ, "PYTHONPATH": str(ROOT), **changes}
    return {k: v for k, v in env.items() if v is not None}


def command(*arguments, stdin=None, cwd=None, **changes):
    """Run `tinyattn` in a process of its own; stdout and stderr as bytes."""
    return subprocess.run([sys.executable, "-m", "tinyattn.cli", *map(str, arguments)], input=stdin, cwd=cwd,
                          check=False, capture_output=True, env=environment(**changes), timeout=300)


@pytest.fixture(scope="session")
def pairs(tmp_path_factory):
    """A file of 80 sentence pairs, and their gold links."""
    folder = tmp_path_factory.mktemp("pairs")
    found = [p for p in generate(500, seed=3) if len(p.source) < 12][:80]
    (folder / "pairs.tsv").write_text(
        "".join(f"{' '.join(p.source)}\t{' '.join(p.target)}\n" for p in found), encoding="utf-8"
    )
    (folder / "links.txt").write_text("".join(" ".join(f"{i}-{j}" for i, j in sorted(p.sure)) + "\n" for p in found))
    return folder


@pytest.fixture(scope="session")
def trained(pairs, tmp_path_factory):
    """A run of 12 steps, with its baseline: (folder, stdout, stderr)."""
    folder = tmp_path_factory.mktemp("runs") / "r"
    done = command("train", "translate", "--data", pairs / "pairs.tsv", "--links", pairs / "links.txt", "--steps", 12,
                   *SMALL, "--run", folder, "--baseline")
    assert done.returncode == 0, done.stderr.decode()
    return folder, done.stdout.decode(), done.stderr.decode()


def said(capsys):
    captured = capsys.readouterr()
    return captured.out, captured.err


def assert_one_line(err, *parts):
    assert err.count("\n") == 1 and err.endswith("\n") and "Traceback" not in err, err
    assert all(part in err for part in parts), err


# ---------------------------------------------------------------------------------------------------------------------
# train
# ---------------------------------------------------------------------------------------------------------------------
def test_training_leaves_a_run_with_figures_and_pictures(trained):
    folder, out, err = trained
    have = {p.name for p in folder.iterdir()}
    assert {"config.json", "model.safetensors", "log.jsonl", "metrics.json", "graph.svg", "baseline"} <= have
    for picture in ("curve.svg", "alignment.svg", "bleu-by-length.svg", "graph.svg"):
        if picture in have:
            assert xml.parse(folder / picture).getroot().tag.endswith("svg")
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["steps"] == 12 and metrics["test"]["sentences"] == 4 and 0 <= metrics["test"]["aer"] <= 1
    twin = json.loads((folder / "baseline" / "metrics.json").read_text())
    assert twin["options"] == {**metrics["options"], "attention": "none"} and "aer" not in twin["test"]
    assert twin["seconds"] >= 1.0
    assert "BLEU" in out and "baseline: attention none" in out and "12 steps" in out
    assert "step 12/12" in err and "validation" in err and "targets/s" in err and "split by source" in err
    assert "\r" not in err and "\x1b" not in err


def test_the_pictures_are_drawn_where_matplotlib_is(trained):
    pytest.importorskip("matplotlib")
    assert {"curve.svg", "alignment.svg", "bleu-by-length.svg"} <= {p.name for p in trained[0].iterdir()}


def test_without_matplotlib_training_ends_well(pairs, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    arguments = ["--data", str(pairs / "pairs.tsv"), "--steps", "2", *SMALL, "--run", str(tmp_path / "r"), "--json"]
    assert main(["train", "translate", *arguments]) == 0
    out, err = said(capsys)
    assert "no picture curve.svg: this picture needs matplotlib" in err
    assert json.loads(out)["test"]["sentences"] == 4 and (tmp_path / "r" / "metrics.json").is_file()


def run_state(folder):
    saved = checkpoint.load(folder)
    saved.state.pop("seconds")
    return saved, [{k: v for k, v in line.items() if k != "seconds"} for line in checkpoint.read_log(folder)]


def test_an_interrupted_run_goes_on_bit_for_bit_in_a_fresh_process(pairs, tmp_path):
    """Another hash seed and another number of threads in the second process; the data found from another folder."""
    begin = ["train", "translate", "--data", "pairs.tsv", "--steps", 10, *SMALL]
    assert command(*begin, "--run", tmp_path / "whole", cwd=pairs, PYTHONHASHSEED="1").returncode == 0
    assert command(*begin, "--run", tmp_path / "parts", "--stop-at", 5, cwd=pairs, PYTHONHASHSEED="2").returncode == 0
    assert checkpoint.load(tmp_path / "parts").state["step"] == 5
    done = command("train", "translate", "--run", "parts", "--resume", "--threads", 1, cwd=tmp_path, PYTHONHASHSEED="3")
    assert done.returncode == 0, done.stderr.decode()
    (first, log), (second, other) = run_state(tmp_path / "whole"), run_state(tmp_path / "parts")
    assert log == other
    assert (first.state, first.config, first.extra) == (second.state, second.config, second.extra)
    for part in checkpoint.PARTS:
        one, two = getattr(first, part), getattr(second, part)
        assert one.keys() == two.keys() and all(np.array_equal(one[name], two[name]) for name in one)


@pytest.mark.skipif(os.name == "nt", reason="signals are sent otherwise")
def test_ctrl_c_saves_and_exits_130_and_resume_goes_on(pairs, tmp_path):
    arguments = ["train", "translate", "--data", pairs / "pairs.tsv", "--steps", "1000000", *SMALL, "--run",
                 tmp_path / "r"]
    process = subprocess.Popen([sys.executable, "-m", "tinyattn.cli", *map(str, arguments)], env=environment(),
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    lines = []
    for line in process.stderr:
        lines.append(line)
        if "validation" in line and "step" in line:
            process.send_signal(signal.SIGINT)
            break
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130 and out == "", err
    stopped = int(re.search(r"stopped at step ([\d,]+), all saved", err)[1].replace(",", ""))
    assert checkpoint.load(tmp_path / "r").state["step"] == stopped
    last = [line["step"] for line in checkpoint.read_log(tmp_path / "r")][-1]
    assert last == stopped and "--resume" in err and "Traceback" not in err
    done = command("train", "translate", "--run", tmp_path / "r", "--resume", "--stop-at", stopped + 2)
    assert done.returncode == 0 and checkpoint.load(tmp_path / "r").state["step"] == stopped + 2


@pytest.mark.parametrize(("arguments", "parts"), [
    (["--hidden", "7"], ["hidden: the run has 6, now it is 7"]),
    (["--attention", "none"], ["attention: the run has additive, now it is none"]),
    (["--seed", "9"], ["seed: the run has 1, now it is 9"]),
    (["--data", "x.tsv"], ["data: the run has", "x.tsv"]),
])
def test_a_mismatch_on_resume_is_one_line_that_names_both_sides(trained, capsys, arguments, parts):
    before = (trained[0] / "model.safetensors").read_bytes()
    assert main(["train", "translate", "--run", str(trained[0]), "--resume", *arguments]) == 2
    assert_one_line(said(capsys)[1], *parts)
    assert (trained[0] / "model.safetensors").read_bytes() == before


def test_a_run_is_not_overwritten_nor_resumed_from_nothing(trained, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "translate", "--run", str(trained[0])]) == 2
    assert_one_line(said(capsys)[1], "holds a run already; --resume")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("x")
    assert main(["train", "translate", "--run", "full"]) == 2
    assert_one_line(said(capsys)[1], "thesis.tex")
    assert main(["train", "translate", "--run", "none", "--resume"]) == 2
    assert_one_line(said(capsys)[1], "none: expected the folder of a run, found no such folder")
    assert main(["train", "translate", "--resume"]) == 2
    assert_one_line(said(capsys)[1], "expected a run of translate in runs/, found none")
    assert sorted(os.listdir(tmp_path)) == ["full"]


def test_the_default_folder_and_resume_of_the_last_run(pairs, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = ["train", "translate", "--data", str(pairs / "pairs.tsv"), "--steps", "4", *SMALL, "--attention",
                 "none"]
    assert main([*arguments, "--stop-at", "2"]) == 0
    [run] = (tmp_path / "runs").iterdir()
    assert re.fullmatch(r"translate-none-\d{8}-\d{6}", run.name)
    assert main(["train", "translate", "--resume"]) == 0
    assert checkpoint.load(run).state["step"] == 4
    assert f"run       {Path('runs') / run.name}" in said(capsys)[0]


def test_a_mechanism_of_ones_own_trains_and_is_run_only_when_named(pairs, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.py").write_text(MECHANISM)
    arguments = ["--data", str(pairs / "pairs.tsv"), "--steps", "2", *SMALL, "--run", "r", "--attention", "my.py:mine"]
    assert main(["train", "translate", *arguments]) == 0
    said(capsys)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert main(["predict", "../r", "the cat sleeps"]) == 2
    assert_one_line(said(capsys)[1], "executes nothing by itself", "--attention")
    assert main(["predict", "../r", "the cat sleeps", "--attention", "../my.py:mine"]) == 0
    assert main(["train", "translate", "--run", "../r", "--resume", "--attention", "../my.py:mine"]) == 0


MECHANISM = """
import numpy as np
from tinyattn.attention import variant, weigh

@variant(params={"w": "QK"})
def mine(q, k, v, w, mask=None, return_weights=False):
    return weigh((q @ w) @ k.transpose(-1, -2), v, mask, return_weights)

def reference(q, k, v, w, mask=None):
    e = np.exp(q @ w @ k.swapaxes(1, 2))
    return e / e.sum(-1, keepdims=True) @ v

def example(rng):
    sizes = {"q": (2, 3, 4), "k": (2, 5, 2), "v": (2, 5, 3), "w": (4, 2)}
    return {name: rng.normal(size=size) for name, size in sizes.items()}
"""


# ---------------------------------------------------------------------------------------------------------------------
# bad usage and bad files: exit 2, one line
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("arguments", "parts"),
    [(["fly"], ["No such command 'fly'"]), (["train", "nothing"], ["translate, got 'nothing'"]),
     (["train", "translate", "--steps", "0"], ["steps", "at least 1"]),
     (["train", "translate", "--steps", "many"], ["--steps", "many"]),
     (["train", "translate", "--hidden", "-3"], ["hidden", "-3"]),
     (["train", "translate", "--cell", "tape"], ["--cell", "tape", "gru"]),
     (["train", "translate", "--attention", "wrong"], ["attention", "additive", "wrong"]),
     (["train", "translate", "--attention", "no.py:f"], ["no.py"]),
     (["train", "translate", "--optimizer", "x"], ["optimizer", "adam", "'x'"]),
     (["train", "translate", "--schedule", "x"], ["schedule", "cosine"]),
     (["train", "translate", "--dropout", "1.5"], ["dropout", "1.5"]),
     (["train", "translate", "--seed", "-1"], ["seed", "-1"]),
     (["train", "translate", "--learning-rate", "nan"], ["learning_rate", "nan"]),
     (["train", "translate", "--threads", "4096"], ["threads", "4096"]),
     (["train", "translate", "--attention", "none", "--baseline"], ["--baseline"]),
     (["train", "translate", "--data", "a", "--data", "b", "--data", "c"], ["one or two files", "3"]),
     (["train", "translate", "--links", "l.txt"], ["l.txt"]),
     (["train", "translate", "--compare", "nowhere"], ["nowhere", "metrics.json"]),
     (["train", "translate", "--data", ""], ["--data", "expected a path"]),
     (["train", "translate", "--data", "a", "--data", ""], ["--data", "expected a path"]),
     (["train", "translate", "--links", ""], ["--links", "expected a path"]),
     (["compare", "classify", "--data", ""], ["--data", "expected a path"]),
     (["evaluate", "nowhere", "--data", ""], ["--data", "expected a path"]),
     (["train", "translate", "--what"], ["--what"]), (["evaluate"], ["RUN"]),
     (["evaluate", "nowhere"], ["nowhere", "no such folder"]),
     (["evaluate", "nowhere", "--links", "x"], ["--links", "--data"]), (["predict", "nowhere", "x"], ["nowhere"]),
     (["heatmap", "nowhere"], ["nowhere"]), (["graph", "nothing"], ["nothing", "op, mechanism, system or module"]),
     (["graph", "op:nothing"], ["no op of this name"]), (["graph", "softmax", "-o", "x.tiff"], [".svg", "x.tiff"]),
     (["graph", "softmax", "--sample", "99"], ["samples 0 to"]), (["graph", "softmax", "--depth", "-1"], ["--depth"]),
     (["check", "nothing"], ["nothing"]), (["check", "exp", "--all"], ["not both"]),
     (["check", "none.py"], ["none.py"]), (["list", "songs"], ["songs"]), (["explain", "nothing"], ["nothing"]),
     (["bench", "nothing"], ["nothing"])],
)
def test_bad_usage_is_one_line_and_exit_code_2(arguments, parts, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    out, err = said(capsys)
    assert out == ""
    assert_one_line(err, *parts)
    assert os.listdir(tmp_path) == []


PAIR = b"the cat %d sleeps .\tle chat %d dort .\n"
MANY = b"".join(PAIR % (i, i) for i in range(12))


@pytest.mark.parametrize(("name", "content", "parts"), [
    ("empty.tsv", b"", ["empty.tsv", "found an empty file"]),
    ("one.tsv", PAIR % (1, 1), ["one.tsv", "at least 10 sentence pairs", "found 1"]),
    ("blank.tsv", b"\n\n\n", ["blank.tsv", "found none usable", "3 left out: blank line"]),
    ("ragged.tsv", MANY + b"no tab here\n", ["ragged.tsv, line 13", "expected source<TAB>target"]),
    ("latin.tsv", MANY + b"x\t\xe9t\xe9\n", ["latin.tsv, line 13, byte 3", "expected UTF-8", "0xe9"]),
    ("nul.tsv", b"a\0b\tc\n" + MANY, ["nul.tsv, line 1", "NUL"]),
    ("utf16.tsv", "a\tb\n".encode("utf-16"), ["utf16.tsv, line 1", "expected UTF-8"]),
    ("bad.mo", b"not a catalogue", ["bad.mo"]),
    (None, b"", ["no such file"]),
])
def test_bad_files_are_one_line_and_exit_code_2(name, content, parts, capsys, tmp_path):
    path = tmp_path / (name or "none.tsv")
    if name:
        path.write_bytes(content)
    assert main(["train", "translate", "--data", str(path), "--run", str(tmp_path / "r")]) == 2
    assert_one_line(said(capsys)[1], *parts)
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    "content",
    [MANY.replace(b"\n", b"\r\n"), b"\xef\xbb\xbf" + MANY, MANY.rstrip(b"\n"), MANY + b"\n\t\n only\t\n"],
    ids=["crlf", "bom", "no last line end", "blank lines and empty sides"],
)
def test_odd_but_usable_files_train(content, capsys, tmp_path):
    (tmp_path / "t.tsv").write_bytes(content)
    arguments = ["--data", str(tmp_path / "t.tsv"), "--steps", "2", *SMALL, "--run", str(tmp_path / "r")]
    assert main(["train", "translate", *arguments]) == 0
    words = checkpoint.load(tmp_path / "r").extra
    assert not any("\r" in w or "\ufeff" in w for side in ("source", "target") for w in words[side])


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs devices that are files")
@pytest.mark.parametrize("arguments", [["train", "translate"], ["train", "classify"], ["train", "qa"],
                                       ["compare", "sense", "--attention", "none", "--seeds", "2"]])
def test_a_pipe_or_device_is_no_data(arguments, capsys, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in ("/dev/zero", str(tmp_path / "pipe")):
        assert main([*arguments, "--data", path, "--run", str(tmp_path / "r")]) == 2
        assert_one_line(said(capsys)[1], path, "found a pipe or device")
    assert not (tmp_path / "r").exists()


def test_a_run_of_another_system_is_nothing_to_compare_with(capsys, tmp_path):
    (tmp_path / "metrics.json").write_text(json.dumps({"system": "qa", "options": {}, "test": {}}))
    assert main(["train", "translate", "--compare", str(tmp_path), "--run", str(tmp_path / "r")]) == 2
    assert_one_line(said(capsys)[1], f"--compare: expected a run of translate, found in {tmp_path} one of qa")
    assert not (tmp_path / "r").exists()


def test_cuda_without_a_card_is_one_line_and_never_a_silent_cpu_run(capsys, tmp_path, monkeypatch):
    from tinyattn import device
    monkeypatch.setattr(device, "cuda_status", lambda: "absent")
    assert main(["train", "translate", "--device", "cuda", "--run", str(tmp_path / "r")]) == 2
    assert_one_line(said(capsys)[1], "device 'cuda': no CUDA card")
    assert not (tmp_path / "r").exists()


def test_a_fault_of_ours_is_one_line_too_and_debug_shows_where(capsys, monkeypatch):
    def broken():
        raise KeyError("lost")
    monkeypatch.setattr(names, "ops", broken)
    assert main(["list", "ops"]) == 1
    assert_one_line(said(capsys)[1], "KeyError", "TINYATTN_DEBUG=1")
    monkeypatch.setenv("TINYATTN_DEBUG", "1")
    with pytest.raises(KeyError):
        main(["list", "ops"])


# ---------------------------------------------------------------------------------------------------------------------
# using a run
# ---------------------------------------------------------------------------------------------------------------------
def test_evaluate_gives_the_figures_of_training_again(trained, capsys):
    assert main(["evaluate", str(trained[0]), "--json"]) == 0
    out, err = said(capsys)
    figures, kept = json.loads(out), json.loads((trained[0] / "metrics.json").read_text())["test"]
    for name in ("bleu", "loss", "aer", "sentences", "by_length"):
        assert figures[name] == kept[name]
    assert "split by source" in err
    assert main(["evaluate", str(trained[0]), "--split", "validation", "--beam", "3", "--limit", "2"]) == 0
    assert "validation  2 sentences: BLEU" in said(capsys)[0]


def test_evaluate_measures_other_files_with_gold_links(trained, pairs, capsys):
    data = ["--data", str(pairs / "pairs.tsv"), "--links", str(pairs / "links.txt")]
    assert main(["evaluate", str(trained[0]), *data, "--json"]) == 0
    figures = json.loads(said(capsys)[0])
    assert figures["sentences"] == 80 and 0 < figures["aer"] <= 1
    assert main(["evaluate", str(trained[0]), *data, "--links-order", "target-source"]) == 2
    assert_one_line(said(capsys)[1], "links.txt, line")


def test_evaluate_says_when_the_data_have_changed(pairs, tmp_path, capsys):
    data = tmp_path / "t.tsv"
    data.write_bytes((pairs / "pairs.tsv").read_bytes())
    assert main(["train", "translate", "--data", str(data), "--steps", "2", *SMALL, "--run", str(tmp_path / "r")]) == 0
    said(capsys)
    data.write_bytes((pairs / "pairs.tsv").read_bytes() + b"one more\tencore une\n")
    assert main(["evaluate", str(tmp_path / "r")]) == 0
    assert "has changed since the run was trained" in said(capsys)[1]
    assert main(["train", "translate", "--run", str(tmp_path / "r"), "--resume"]) == 2
    assert_one_line(said(capsys)[1], "t.tsv: the run has", "now it is")


def test_predict_takes_words_or_lines(trained, capsys):
    assert main(["predict", str(trained[0]), "the", "cat", "sleeps"]) == 0
    one = said(capsys)[0]
    assert one.count("\n") == 1
    done = command("predict", trained[0], stdin="\ufeffthe cat sleeps\r\n\r\nle chat \U0001f600\n".encode())
    lines = done.stdout.decode().split("\n")
    assert done.returncode == 0 and len(lines) == 4 and lines[0] == one.strip() and lines[1] == ""
    assert main(["predict", str(trained[0]), "--json", "the cat sleeps"]) == 0
    found = json.loads(said(capsys)[0])
    weights = np.array(found["weights"])
    assert found["source"] == ["the", "cat", "sleeps"] and weights.shape == (len(found["target"]) + 1, 4)
    np.testing.assert_allclose(weights.sum(1), 1, atol=1e-4)
    done = command("predict", trained[0], stdin=b"ok\n\xe9t\xe9\n")
    assert done.returncode == 2
    assert_one_line(done.stderr.decode(), "stdin, line 2: expected UTF-8 text, found the byte 0xe9")


class Echo:
    """In place of a run: it answers with the text, and not to "bad"."""
    name, takes_beam = "echo", False

    def predict(self, text):
        if text == "bad":
            raise InputError("expected better")
        return Prediction(text, {"text": text})


def test_an_answer_that_cannot_be_names_its_line_of_stdin(capsys, monkeypatch):
    monkeypatch.setattr(checkpoint, "restore", lambda run, attention=None: (Echo(), None))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"good\n\nbad\n")))
    assert main(["predict", "r"]) == 2
    assert said(capsys) == ("good\n\n", "tinyattn: stdin, line 3: expected better\n")
    assert main(["predict", "r", "bad"]) == 2
    assert said(capsys) == ("", "tinyattn: expected better\n")


def test_several_quoted_texts_have_an_answer_each(capsys, monkeypatch):
    monkeypatch.setattr(checkpoint, "restore", lambda run, attention=None: (Echo(), None))
    for arguments, answers in ((["the", "boy", "sees"], "the boy sees\n"), (["the boy sees"], "the boy sees\n"),
                               (["the boy", "a girl runs", "no"], "the boy\na girl runs\nno\n")):
        assert main(["predict", "r", *arguments]) == 0
        assert said(capsys)[0] == answers
    assert main(["predict", "r", "a b", "bad"]) == 2
    assert said(capsys) == ("a b\n", "tinyattn: text 2: expected better\n")
    assert main(["predict", "--help"]) == 0
    assert "several quoted texts" in " ".join(said(capsys)[0].split())


def test_words_cannot_steer_the_terminal(capsys, monkeypatch):
    monkeypatch.setattr(checkpoint, "restore", lambda run, attention=None: (Echo(), None))
    odd = "\x1b]0;owned\x07 \x9b2J\ta\x00\x7f\rb"
    assert main(["predict", "r", odd]) == 0
    assert said(capsys)[0] == "\\u001b]0;owned\\u0007 \\u009b2J\ta\\u0000\\u007f\\u000db\n"
    assert main(["predict", "r", "--json", odd]) == 0
    assert json.loads(said(capsys)[0]) == {"text": odd}
    console.out_json([odd])
    shown = said(capsys)[0]
    assert json.loads(shown) == [odd] and not console.CONTROL.search(shown)
    console.note("a\x1b[31m\nb")
    assert said(capsys)[1] == "a\\u001b[31m\nb\n"


def test_heatmap_and_graph_of_a_run(trained, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    for arguments in (["the cat sleeps"], []):
        path = tmp_path / f"map{len(arguments)}.svg"
        assert main(["heatmap", str(trained[0]), *arguments, "-o", str(path)]) == 0
        assert xml.parse(path).getroot().tag.endswith("svg") and str(path) in said(capsys)[0]
    assert main(["heatmap", str(trained[0] / "baseline"), "the cat"]) == 2
    assert_one_line(said(capsys)[1], "has no attention to draw")
    assert main(["graph", str(trained[0]), "-o", str(tmp_path / "g.dot"), "--depth", "2"]) == 0
    assert "encoder" in (tmp_path / "g.dot").read_text()


@pytest.mark.parametrize("content", [b"", b"x" * 50, b"\x80\x04pickle"])
def test_a_bad_checkpoint_is_one_line(content, tmp_path, capsys):
    (tmp_path / "model.safetensors").write_bytes(content)
    for name in ("evaluate", "predict", "heatmap", "graph"):
        assert main([name, str(tmp_path), *(["x"] if name == "predict" else [])]) == 2
        assert_one_line(said(capsys)[1], "model.safetensors", "cannot be read as a run")


# ---------------------------------------------------------------------------------------------------------------------
# what there is, and is it right
# ---------------------------------------------------------------------------------------------------------------------
def test_list_names_what_there_is(capsys):
    assert main(["list", "--json"]) == 0
    found = {kind: [row["name"] for row in rows] for kind, rows in json.loads(said(capsys)[0]).items()}
    assert "additive" in found["attention"] and found["systems"] == ["aspects", "classify", "qa", "sense", "translate"] and "translate" in found["tasks"]
    assert {"softmax", "tanh", "embedding"} <= set(found["ops"]) and "nn.recurrent.GRU" in found["modules"]
    assert main(["list", "attention"]) == 0
    shown = said(capsys)[0]
    assert shown.startswith("Score functions") and re.search(r"^  additive +e_ts = v_a.*Hu 2018 eq. 8$", shown, re.MULTILINE)
    assert shown.count("\n  ") == len(found["attention"]) >= 57


@pytest.mark.parametrize("what", [[], ["attention"], ["systems"], ["tasks"], ["ops"], ["modules"]])
def test_list_fits_the_console(what, capsys, monkeypatch):
    assert main(["list", *what]) == 0
    lines = said(capsys)[0].splitlines()
    assert max(map(len, lines)) <= 100 and (what in (["systems"], ["tasks"]) or any("..." in line for line in lines))
    monkeypatch.setattr(console, "width", lambda: 1000)
    assert main(["list", *what]) == 0
    assert len(said(capsys)[0].splitlines()) == len(lines)


def test_the_width_is_that_of_a_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "70")
    assert console.width() == 100
    monkeypatch.setattr(sys, "stdout", type("Terminal", (io.StringIO,), {"isatty": lambda self: True})())
    assert console.width() == 70
    assert console.shortened([["a", "x" * 90, "end"]], 1, 2) == [["a", "x" * 57 + "...", "end"]]
    monkeypatch.setattr(sys, "stdout", None)
    assert console.width() == 100


def test_the_first_lines_of_modules_stand_alone():
    for name in ("transformer.EncoderLayer", "transformer.PreNormEncoderLayer", "han.HAN",
                 "key_value_network.KeyValueNetwork"):
        first = names.modules()[f"models.{name}"].__doc__.partition("\n")[0]
        assert first.endswith(".") and len(first) > 40


@pytest.mark.parametrize("name", ["aspects", "classify", "qa", "sense", "translate"])
def test_the_help_of_a_system_reads_as_a_sentence(name, capsys):
    for verb in ("train", "compare"):
        assert main([verb, name, "--help"]) == 0
        assert re.search(rf"(Train|Compare attentions on {name}:) an? [a-z-]+", " ".join(said(capsys)[0].split()))


def test_a_runs_folder_is_offered_only_where_it_is_taken(capsys, tmp_path):
    for name, offered in (("graph", True), ("explain", False), ("check", False)):
        assert main([name, "nothing"]) == 2
        assert ("or a run's folder" in said(capsys)[1]) == offered


def test_figures_are_wrapped_and_keep_their_titles(capsys):
    from tinyattn.commands.train import show_figures
    from tinyattn.models.system import Figure

    class Wide:
        figures, counts, groups = {f"f{i}": Figure(f"a figure, called {chr(97 + i)}", 2) for i in range(9)}, "samples", None
    found = {"samples": 1234, **{f"f{i}": -i / 7 for i in range(9)}}
    show_figures(Wide, "test", found, {"other": found})
    lines = said(capsys)[0].splitlines()
    assert lines[0].startswith("test      1,234 samples: a figure, called a 0.00, ") and len(lines) == 6
    assert max(map(len, lines)) <= 100 and all(line.startswith(" " * 10) for line in lines[1:])
    assert not any(re.match(r" *-?\d", line) for line in lines) and lines[3].startswith(" " * 10 + "other: a")


def test_the_table_of_forget_fits():
    from types import SimpleNamespace

    from tinyattn.commands.forget import table
    for length, end in ((60, 1.234e-29), (4000, 1.234e-300)):
        reach = np.geomspace(0.5, end, length)
        curve = SimpleNamespace(name="attention", before=reach, after=reach, accuracy=0.123)
        lines = table([curve], [1, length // 4, length // 2, length - 1])
        assert max(map(len, lines)) <= 100 and f"trained {length - 1}" in lines[0]
        assert (f"d = {length // 4}" in lines[0]) == (length == 60)
        assert "trained" not in table([SimpleNamespace(**{**vars(curve), "after": None})], [1, 3])[0]


def test_explain_every_kind(capsys):
    for name, part in (("softmax", "rules for   x"), ("additive", "w_q (A, Q)"), ("raw", "Survey:"), ("luong_global", "score       general"), ("system:translate", "--hidden"),
                       ("GRU", "recurrent.py")):
        assert main(["explain", name]) == 0
        assert part in said(capsys)[0]


@pytest.mark.parametrize("name", ["softmax", "attention:additive", "Linear", "translate"])
@pytest.mark.parametrize("backward", [False, True])
def test_graph_of_every_kind(name, backward, tmp_path, capsys):
    path = tmp_path / "g.dot"
    assert main(["graph", name, "-o", str(path), *(["--backward"] if backward else [])]) == 0
    out, err = said(capsys)
    assert out.strip() == str(path) and path.read_text().startswith("digraph")
    assert ("backward" in path.read_text()) == backward


def test_check_passes_and_prints_a_table(capsys):
    assert main(["check", "exp", "additive", "Linear", "--order", "2"]) == 0
    out, _ = said(capsys)
    assert (
        out.startswith("what") and "attention additive" in out and "nn.layers.Linear" in out and "checks passed" in out
    )


@pytest.mark.parametrize("order", [1, 2])
def test_check_finds_a_planted_wrong_rule(order, capsys, monkeypatch):
    cls = names.ops()["tanh"]
    if order == 1:
        monkeypatch.setattr(cls, "rules", (lambda self, g, y, x: g * (1 - y),))
    else:  # right as a number, but cut off from the graph: only the second derivative is wrong
        monkeypatch.setattr(cls, "rules", (lambda self, g, y, x: g * (1 - (y * y).detach()),))
    assert main(["check", "tanh", "--order", "1"]) == (1 if order == 1 else 0)
    said(capsys)
    assert main(["check", "tanh"]) == 1
    out, _ = said(capsys)
    assert "WRONG" in out and "checks failed" in out and "analytic" in out


def test_check_of_a_file_of_ones_own(tmp_path, capsys):
    (tmp_path / "my.py").write_text(MECHANISM)
    assert main(["check", str(tmp_path / "my.py")]) == 0
    (tmp_path / "bad.py").write_text(MECHANISM.replace("np.exp(q", "np.exp(2 * q"))
    assert main(["check", f"{tmp_path / 'bad.py'}:mine"]) == 1
    assert "function (analytic) against reference" in said(capsys)[0]


def test_warmup_compiles_into_the_cache_folder(tmp_path):
    code = ("from tinyattn.commands import names; from tinyattn.cli import main; ops = names.ops()\n"
            "names.ops = lambda: {'tanh': ops['tanh']}; names.modules = lambda: {}; raise SystemExit(main(['warmup']))")
    done = subprocess.run([sys.executable, "-c", code], env=environment(TINYATTN_CACHE=str(tmp_path)),
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0 and int(done.stdout.split()[0]) > 0 and list(tmp_path.rglob("*.nbc"))


def test_doctor_says_what_there_is(capsys):
    assert main(["doctor", "--json"]) == 0
    facts = json.loads(said(capsys)[0])
    assert facts["numpy"] == np.__version__ and {"threads", "cuda", "graphs", "python"} <= set(facts)
    assert main(["doctor"]) == 0
    assert re.search(r"^numba +\d", said(capsys)[0], re.MULTILINE)


# ---------------------------------------------------------------------------------------------------------------------
# odd consoles
# ---------------------------------------------------------------------------------------------------------------------
def test_help_imports_nothing_heavy():
    code = ("import sys; from tinyattn.cli import main; code = main(['--help'])\n"
            "heavy = {'numpy', 'numba', 'safetensors', 'tqdm', 'matplotlib'} & set(sys.modules)\n"
            "raise SystemExit(code or (f'imports {heavy}' if heavy else 0))")
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name, capsys):
    assert main([name, "--help"]) == 0
    assert said(capsys)[0].startswith(f"Usage: tinyattn {name}")


def test_a_console_that_cannot_print_a_character(trained):
    done = command("predict", trained[0], "x", LANG="C", LC_ALL="C", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.returncode == 0
    done = command("explain", "translate", PYTHONIOENCODING="ascii")
    assert done.returncode == 0 and done.stdout.isascii()
    code = ("from tinyattn.commands.console import *; prepare_streams()\n"
            "out('caf\\u00e9 \\u2028'); out_json(['\\u00e9', float('nan')])")
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(PYTHONIOENCODING="ascii"), capture_output=True, check=True
    )
    first, rest = done.stdout.decode("ascii").split("\n", 1)
    assert first == "caf\\xe9 \\u2028" and json.loads(rest) == ["é", None]


@pytest.mark.skipif(os.name == "nt", reason="needs a shell of Unix")
@pytest.mark.parametrize(
    "shell", ["{} list >&-", "{} list 2>&-", "{} list | head -1", "{} list >&- 2>&- <&-", "{} doctor | true"]
)
def test_a_closed_or_broken_pipe_stops_nothing(shell):
    line = "set -o pipefail; " + shell.format(f"'{sys.executable}' -m tinyattn.cli")
    done = subprocess.run(["bash", "-c", line], env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stderr == ""


@pytest.mark.skipif(os.name == "nt", reason="needs a shell of Unix")
def test_training_goes_on_without_stdout_and_stderr(pairs, tmp_path):
    line = (
        f"'{sys.executable}' -m tinyattn.cli train translate --data {pairs / 'pairs.tsv'} --steps 6 {' '.join(SMALL)} "
        f"--run {tmp_path / 'r'} >&- 2>&-"
    )
    assert subprocess.run(["bash", "-c", line], env=environment(), check=False).returncode == 0
    assert checkpoint.load(tmp_path / "r").state["step"] == 6
    assert [entry["step"] for entry in checkpoint.read_log(tmp_path / "r") if "loss" in entry] == [1, 2, 3, 4, 5, 6]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_results_that_cannot_be_written_are_an_error():
    line = f"'{sys.executable}' -m tinyattn.cli list --json >/dev/full"
    done = subprocess.run(["bash", "-c", line], env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert_one_line(done.stderr, "No space left")


def test_no_home_and_no_folder_for_kernels(tmp_path):
    (tmp_path / "file").write_text("x")
    done = command("check", "exp", "--order", 1, HOME=None, XDG_CACHE_HOME=None, TINYATTN_CACHE=str(tmp_path / "file"))
    assert done.returncode == 0 and b"checks passed" in done.stdout
    done = command("doctor", HOME=str(tmp_path / "none"), TINYATTN_CACHE=str(tmp_path / "file"))
    assert done.returncode == 0 and b"no folder can be written" in done.stdout


def test_a_bar_on_a_terminal_and_lines_elsewhere(capsys, monkeypatch):
    from tinyattn.commands import progress
    from tinyattn.train import Progress
    steps = [Progress(1, 4, 2.0, 0, 0.25, None, None, False), Progress(2, 4, 1.5, 900.0, 0.5, 61.0, 1.25, True)]
    report = progress.Reporter("training")
    for p in steps:
        report(p)
    report.close()
    assert said(capsys)[1] == ("training: step 1/4  loss 2.000\n"
                               "training: step 2/4  loss 1.500  900 targets/s  1:01 left  validation 1.2500 (best)\n")
    monkeypatch.setattr(progress, "on_terminal", lambda: True)
    report = progress.Reporter("training")
    for p in steps:
        time.sleep(0.11)  # the bar moves ten times a second
        report(p)
    report.close()
    err = said(capsys)[1]
    assert "\r" in err and "validation 1.2500 (best)\n" in err and "50%" in err
    assert progress.duration(3725) == "1:02:05"


def test_columns_are_aligned():
    assert console.columns([["a", "1,000"], ["bcd", "7"], ["e", "-"]]) == ["a    1,000", "bcd      7", "e    -"]
    assert warmup.cached(None) == 0 and console.columns([]) == []


def test_evaluate_against_another_run(trained, capsys):
    folder = str(trained[0])
    assert main(["evaluate", folder, "--against", f"{folder}/baseline"]) == 0
    out, _ = said(capsys)
    assert "difference" in out and re.search(r"^all .* (significant|not separable)$", out, re.MULTILINE)
    assert main(["evaluate", folder, "--against", folder, "--json"]) == 0
    rows = json.loads(said(capsys)[0])["against"]
    assert rows[-1][0] == "all" and rows[-1][2] == rows[-1][3] and rows[-1][4:] == [0, 0, 0]
    assert main(["evaluate", folder, "--against", "nothing"]) == 2
    assert "nothing" in said(capsys)[1]
