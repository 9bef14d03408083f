"""Training on a card: the same losses and weights as on the CPU, no number read at a step, and what happens when one is nan."""
import json
from dataclasses import dataclass

import numpy as np
import pytest

from tinyattn import device, nn, random
from tinyattn.autograd import Op
from tinyattn.compiler.step import Compiled
from tinyattn.config import Config
from tinyattn.functional import cross_entropy
from tinyattn.models.system import System
from tinyattn.tasks.corpus import Corpus
from tinyattn.tensor import Tensor
from tinyattn.train import UNREAD, train


class Points(System):
    """A system as small as can be: which of two classes a point belongs to."""
    name = "points"
    spoilt = None  # (step, what): the loss is to be nan, or a gradient (the slope of a root at 0)

    @dataclass
    class Options:
        attention: str = "none"

    def __init__(self):
        super().__init__(self.Options())
        random.manual_seed(1)
        self.model, self.made, self.fed = _Net(), 0, 0
        rng = np.random.default_rng(0)
        points = [(x.astype(np.float32), int(x.sum() > 0)) for x in rng.normal(size=(24, 3))]
        self.corpus = Corpus(points[:16], points[16:], points[16:], [])

    def extra(self):
        return {}

    def size(self, sample):
        return 3, 0

    def arrays(self, batch):
        self.fed += self.model.training
        x = np.stack([x for x, _ in batch])
        return x * np.nan if self.spoilt == (self.fed, "data") else x, np.array([y for _, y in batch])

    def loss_of(self, x, y):
        loss = cross_entropy(self.model(Tensor(x)), Tensor(y))
        self.made += self.model.training
        if self.spoilt and self.made == self.spoilt[0] and self.model.training:
            loss = loss * np.nan if self.spoilt[1] == "loss" else loss + (self.model.second.bias * 0).sqrt().sum()
        return loss


class _Net(nn.Module):
    def __init__(self):
        self.first, self.drop, self.second = nn.Linear(3, 4), nn.Dropout(0.2), nn.Linear(4, 2)

    def forward(self, x):
        return self.second(self.drop(self.first(x).tanh()))


def run(where, steps=9, folder=None, spoilt=None, optimizer="adam", **more):
    system = Points()
    system.spoilt = spoilt
    system.model.to(where)
    config = Config(system="points", options={}, steps=steps, batch_size=8, validate_every=100, learning_rate=0.05, seed=3,
                    optimizer=optimizer, clip=0.5)
    history = train(system, config, folder, **more)
    return history, {name: p.numpy() for name, p in system.model.named_parameters()}, system


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_losses_and_weights_are_those_of_the_cpu(optimizer):
    here, weights, _ = run("cpu", optimizer=optimizer)
    there, moved, _ = run("cuda", optimizer=optimizer)
    np.testing.assert_allclose([x for _, x in there.losses], [x for _, x in here.losses], rtol=2e-5)
    assert [s for s, _ in there.losses] == list(range(1, 10)) and there.stopped == "steps"
    for name, w in weights.items():
        np.testing.assert_allclose(moved[name], w, rtol=1e-4, atol=1e-5)
    assert there.norms[0][1].keys() == here.norms[0][1].keys() and there.tokens == here.tokens


def test_no_number_is_read_at_a_step(monkeypatch):
    reads, before = [], System.targets_in

    def counted(system, batch):
        reads.append(device.waits["reads"])
        return before(system, batch)

    monkeypatch.setattr(System, "targets_in", counted)
    run("cuda", steps=12)
    between = np.diff(reads)[1:10]  # after step 1, whose norms are for a picture, and before the last one's
    assert (between == 0).all() and len(between) == 9


def test_what_is_unread_is_read_in_time(monkeypatch):
    monkeypatch.setattr("tinyattn.train.UNREAD", 4)
    seen = []
    history, *_ = run("cuda", steps=11, report=lambda p: seen.append(p.loss))
    assert len(history.losses) == 11 and UNREAD == 50 and all(np.isfinite(seen))


def test_a_run_is_kept_and_resumed(tmp_path):
    whole, weights, _ = run("cuda", 8, tmp_path / "one")
    run("cuda", 8, tmp_path / "two", stop_at=5)
    rest, again, _ = run("cuda", 8, tmp_path / "two", resume=True)
    for name, w in weights.items():
        assert np.array_equal(again[name], w)
    assert rest.losses == whole.losses
    lines = [json.loads(line) for line in (tmp_path / "one/log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 9))
    assert all(isinstance(line["norm"], float) for line in lines if "norm" in line)
    on_cpu, moved, _ = run("cpu", 8, tmp_path / "two", resume=True)  # a finished run is the same wherever it is opened
    assert all(np.array_equal(moved[name], w) for name, w in weights.items())


@pytest.mark.parametrize("what, says", [("loss", "the loss is nan"), ("gradient", "the norm of the gradients is nan or inf")])
def test_a_bad_step_is_named_late_and_changes_nothing(what, says, tmp_path):
    _, weights, _ = run("cuda", 4)
    system = Points()
    system.spoilt = (5, what)
    system.model.to("cuda")
    config = Config(system="points", options={}, steps=9, batch_size=8, validate_every=100, learning_rate=0.05, seed=3,
                    clip=0.5)
    with pytest.raises(FloatingPointError, match=f"step 5: {says}"):
        train(system, config, tmp_path / "r")
    for name, p in system.model.named_parameters():
        assert np.array_equal(p.numpy(), weights[name])
    log = [json.loads(line) for line in (tmp_path / "r/log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in log] == [1, 2, 3, 4]


def test_no_op_runs_on_the_cpu(monkeypatch):
    before = Op._run

    def watched(op, inputs, arrays, recorded, here):
        assert not here or op.name == "transfer", f"{op.name} runs on the CPU"
        return before(op, inputs, arrays, recorded, here)

    monkeypatch.setattr(Op, "_run", watched)
    history, *_ = run("cuda", steps=2)
    assert len(history.losses) == 2
    with pytest.raises(AssertionError, match="runs on the CPU"):
        run("cpu", steps=2)


@pytest.mark.parametrize("spoilt", [None, (9, "data")])
def test_captured_steps_train_alike(spoilt, monkeypatch):
    """With a capture at the second step of a shape, the run is that of eager steps, and a nan is found in a replay too."""
    monkeypatch.setattr("tinyattn.train.AFTER", 1)
    made = []
    before = Compiled.__init__
    monkeypatch.setattr(Compiled, "__init__", lambda self, *a, **k: (made.append(self), before(self, *a, **k))[1])
    if spoilt:
        with pytest.raises(FloatingPointError, match="step 9: the loss is nan"):
            run("cuda", 14, spoilt=spoilt)
    else:
        there, weights, _ = run("cuda", 14)
        assert made[0].replays > 8
        plain, again, _ = run("cuda", 14, compiled=False)
        assert there.losses == plain.losses and all(np.array_equal(w, again[name]) for name, w in weights.items())
