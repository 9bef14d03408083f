"""What all systems share: the division of data, agreement with gold attention, hooks of the epoch; and every system
from the command line: train, resume, evaluate, predict, draw."""
import json
from dataclasses import fields

import numpy as np
import pytest
from test_train import assert_same_run
from tiny_system import Tiny

from tinyattn import Tensor, checkpoint, systems
from tinyattn.cli import main
from tinyattn.config import Config
from tinyattn.errors import InputError
from tinyattn.models.system import System
from tinyattn.tasks.corpus import divide
from tinyattn.tasks.metrics import accuracy_by, gold_attention
from tinyattn.train import train


# ---------------------------------------------------------------------------------------------------------------------
# division of data
# ---------------------------------------------------------------------------------------------------------------------
def test_divide_keeps_what_belongs_together():
    samples = [(i % 40, i) for i in range(200)]
    corpus = divide(samples, 3, "file", key=lambda s: s[0])
    parts = [corpus.train, corpus.validation, corpus.test]
    assert sorted(s for part in parts for s in part) == sorted(samples)
    keys = [{s[0] for s in part} for part in parts]
    assert not keys[0] & keys[1] and not keys[0] & keys[2] and not keys[1] & keys[2]
    assert [len(k) for k in keys] == [32, 4, 4]
    again, other = divide(samples, 3, "file", key=lambda s: s[0]), divide(samples, 4, "file", key=lambda s: s[0])
    assert again == corpus and other.test != corpus.test
    assert [len(p) for p in (divide(samples, 3, "f", most=2).test, divide(samples, 3, "f", share=0.01).test)] == [2, 2]


def test_divide_refuses_too_few():
    with pytest.raises(InputError, match=r"short\.tsv: expected at least 10 different samples.*found 9"):
        divide([i % 9 for i in range(100)], 1, "short.tsv")


# ---------------------------------------------------------------------------------------------------------------------
# agreement with gold attention
# ---------------------------------------------------------------------------------------------------------------------
def test_gold_attention_by_hand():
    """The survey's example has four words of mass 0.25 each; here two of four."""
    found = gold_attention([np.array([0.5, 0.25, 0.25, 0.0]), np.array([1.0, 0.0])], [{0, 1}, {0}])
    assert found["gold_mse"] == pytest.approx((0.0625 + 0.0625 + 0) / 2)
    assert found["gold_kl"] == pytest.approx(0.5 * np.log(0.5 / 0.25) / 2)
    assert found["gold_mass"] == pytest.approx((0.75 + 1.0) / 2)
    assert found["gold_top"] == 1.0
    assert gold_attention([np.array([0.2, 0.8])], [{0}])["gold_top"] == 0.0


def test_gold_attention_edges():
    assert gold_attention([np.ones(2) / 2], [set()]) == {} == gold_attention([], [])
    assert gold_attention([np.array([0.0, 1.0])], [{0}])["gold_kl"] == pytest.approx(np.log(1e9))
    blurred = gold_attention([np.array([0.25, 0.5, 0.25])], [{1}], blur=1.0)
    tail = np.exp(-0.5)
    right = np.array([tail, 1, tail]) / (1 + 2 * tail)
    assert blurred["gold_mse"] == pytest.approx(((right - [0.25, 0.5, 0.25]) ** 2).sum())
    with pytest.raises(ValueError, match="from 0 to 1, got"):
        gold_attention([np.ones(2)], [{2}])
    with pytest.raises(ValueError, match="1 and 2"):
        gold_attention([np.ones(2)], [{0}, {1}])


def test_accuracy_by_kind():
    assert accuracy_by(["b", "a", "b"], [True, False, False]) == [("a", 1, 0.0), ("b", 2, 50.0)]


# ---------------------------------------------------------------------------------------------------------------------
# the mean loss
# ---------------------------------------------------------------------------------------------------------------------
class Counted(Tiny):
    """A sample is a number of targets, each with that loss; `loss` is their mean."""

    def size(self, sample):
        return sample, sample

    def loss(self, batch):
        return Tensor(sum(n * n for n in batch) / sum(batch)), sum(batch)


def test_the_mean_loss_is_one_of_targets_and_not_of_batches():
    samples = [1] * 64 + [5, 2]                                            # two batches of unlike size
    assert Counted().mean_loss(samples) == pytest.approx((64 + 25 + 4) / (64 + 7))
    assert Counted().mean_loss([]) == 0


# ---------------------------------------------------------------------------------------------------------------------
# hooks of the epoch
# ---------------------------------------------------------------------------------------------------------------------
class Hooked(Tiny):
    def __init__(self, **more):
        super().__init__(**more)
        self.told = []

    def at_epoch(self, epoch):
        self.told.append(epoch)

    def rate_factor(self, epoch):
        return 0.5 ** epoch


def test_a_system_hears_of_each_epoch_also_after_resuming(tmp_path):
    """23 samples in batches of 4 are 6 steps an epoch."""
    system = Hooked()
    config = Config.of(system, steps=14, schedule="constant", warmup=0)
    train(system, config, tmp_path / "r")
    assert system.told == [0, 1, 2]
    rates = [line["rate"] for line in checkpoint.read_log(tmp_path / "r") if "rate" in line]
    np.testing.assert_allclose(rates, 0.05 * np.array([1.0] * 6 + [0.5] * 6 + [0.25] * 2))
    other = Hooked()
    train(other, config, tmp_path / "s", stop_at=8)
    other = Hooked(seed=5)
    train(other, config, tmp_path / "s", resume=True)
    assert other.told == [1, 2]
    assert_same_run(tmp_path / "r", tmp_path / "s")


# ---------------------------------------------------------------------------------------------------------------------
# every system
# ---------------------------------------------------------------------------------------------------------------------
SMALL = {  # options that make each small, and a text that it understands
    "aspects": (["--hidden", "6", "--embed", "5"], "the battery life is great ."),
    "classify": (["--hidden", "4", "--embed", "5", "--align", "3"], "Open a file. Read all of its lines."),
    "qa": (["--hidden", "6"], "Sam walks into the kitchen. Sam picks up the apple. Where is the apple?"),
    "sense": (["--width", "8"], "i sat on the *bank* of the river ."),
    "translate": (["--hidden", "6", "--embed", "5"], "the boy sees the house ."),
}


@pytest.mark.parametrize("name", systems.names())
def test_a_system_says_what_it_is(name):
    cls = systems.find(name)
    assert issubclass(cls, System) and cls.name == name
    assert cls.help and cls.data_help and cls.figures and cls.counts.endswith("s")
    assert all(f.metadata["help"] for f in fields(cls.Options)) and "attention" in {f.name for f in fields(cls.Options)}
    assert {f.name for f in fields(cls.Training)} == {f.name for f in fields(System.Training)}
    assert all(f.better in ("higher", "lower", None) for f in cls.figures.values())


@pytest.mark.parametrize("name", systems.names())
def test_a_system_from_the_command_line(name, tmp_path, monkeypatch, capsys):
    """Trained in one go and in two, the run is the same; then it is measured, asked and drawn."""
    monkeypatch.chdir(tmp_path)
    small, text = SMALL[name]
    call = ["train", name, *small, "--steps", "6", "--validate-every", "3"]
    assert main([*call, "--run", "one", "--json"]) == 0
    metrics = json.loads(capsys.readouterr().out)
    cls = systems.find(name)
    assert metrics["test"][cls.counts] > 0 and metrics["parameters"] > 0 and metrics["seed"] == 1
    assert next(iter(cls.figures)) in metrics["test"]
    if cls.groups is not None:
        assert sum(count for _, count, _ in metrics["test"][cls.groups.key]) > 0
    assert "graph.svg" in metrics["pictures"] and "curve.svg" in metrics["pictures"]
    assert main([*call, "--run", "two", "--stop-at", "4"]) == 0
    assert main(["train", name, "--run", "two", "--resume"]) == 0
    assert_same_run(tmp_path / "one", tmp_path / "two")
    capsys.readouterr()
    assert main(["evaluate", "one", "--limit", "9", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[cls.counts] == 9
    assert main(["predict", "one", text]) == 0
    assert capsys.readouterr().out.strip()
    assert main(["predict", "one", text, "--json"]) == 0
    assert isinstance(json.loads(capsys.readouterr().out), dict)
    if cls.groups is not None:
        assert cls.groups.picture in metrics["pictures"]
    assert main(["heatmap", "one", text, "-o", "look.png"]) == 0
    assert (tmp_path / "look.png").read_bytes().startswith(b"\x89PNG")
    assert main(["graph", "one", "-o", "graph.dot"]) == 0
    capsys.readouterr()


@pytest.mark.parametrize("name", systems.names())
def test_a_system_refuses_what_is_no_data(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    small, _ = SMALL[name]
    (tmp_path / "empty.tsv").write_bytes(b"")
    (tmp_path / "nul.tsv").write_bytes(b"a\tb\nc\0\td\n")
    (tmp_path / "latin.tsv").write_bytes("a\tcaf\xe9\n".encode("latin-1"))
    (tmp_path / "one.tsv").write_bytes(b"a\tb\n")
    (tmp_path / "blank.txt").write_bytes(b"\n\n\n")
    for path in ("empty.tsv", "nul.tsv", "latin.tsv", "one.tsv", "blank.txt", "missing.tsv", "."):
        assert main(["train", name, *small, "--steps", "2", "--run", "r", "--data", path]) == 2, path
        shown = capsys.readouterr().err.strip()
        assert path in shown and "Traceback" not in shown and len(shown.splitlines()) == 1, (path, shown)
        assert not (tmp_path / "r").exists()


FEW = {  # sample i of a small file in the format of each system
    "aspects": lambda i: f"the\tO\tO\nsoup{i}\tB\tO\nis\tO\tO\ngood\tO\tB\n\n",
    "classify": lambda i: f"{'ab'[i % 2]}\tsome text number {i} of kind {'ab'[i % 2]} .\n",
    "qa": lambda i: f"1 Sam walks into the room{i}.\n2 Where is Sam?\troom{i % 3}\t1\n",
    "sense": lambda i: f"bank.{['money', 'river'][i % 2]}\ti saw the *bank* near {['cash', 'water'][i % 2]} {i} .\n",
    "translate": lambda i: f"the word {i}\tle mot {i}\n",
}


@pytest.mark.parametrize("name", systems.names())
def test_fewer_samples_than_a_batch(name, tmp_path, monkeypatch, capsys):
    """Twelve to fourteen samples, and a batch of 64: they are one batch. Byte-order mark and CRLF are no matter."""
    monkeypatch.chdir(tmp_path)
    text = "".join(FEW[name](i) for i in range(13))
    (tmp_path / "few.txt").write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    small, _ = SMALL[name]
    call = ["train", name, *small, "--steps", "3", "--validate-every", "2", "--batch-size", "64", "--data", "few.txt"]
    assert main([*call, "--run", "r", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["steps"] == 3 and found["test"][systems.find(name).counts] >= 1
    assert main(["evaluate", "r", "--data", "few.txt", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[systems.find(name).counts] == 13



def test_a_baseline_has_settings_of_its_own(tmp_path, monkeypatch, capsys):
    """MemN2N trains by SGD at 0.32, which would not suit an LSTM; what was asked for holds for both."""
    monkeypatch.chdir(tmp_path)
    call = ["train", "qa", "--tasks", "1", "--hidden", "6", "--batch-size", "16", "--steps", "4", "--run", "r"]
    assert main([*call, "--baseline", "--seconds", "1"]) == 0
    one, two = (json.loads((tmp_path / where / "config.json").read_text()) for where in ("r", "r/baseline"))
    assert (one["optimizer"], two["optimizer"]) == ("sgd", "adam") and two["options"]["attention"] == "none"
    assert one["learning_rate"] == 0.32 > two["learning_rate"] and (one["keep"], two["keep"]) == ("last", "best")
    assert two["options"]["hidden"] == 6 and two["batch_size"] == 16 and two["options"]["tasks"] == "1"
    assert two["steps"] is None and two["seconds"] >= 1
    assert main(["train", "classify", "--attention", "structured_self", "--rows", "4", "--baseline", "--run", "c"]) == 2
    assert "rows" in capsys.readouterr().err and not (tmp_path / "c").exists()
