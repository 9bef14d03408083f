"""Training: exact resume, interruptions, numbers that are none, limits, settings."""
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from tiny_system import Tiny

import tinyattn.train as training
from tinyattn import checkpoint, optim, random
from tinyattn.checkpoint import FILE
from tinyattn.config import OPTIMIZERS, RATES, SCHEDULES, check_extra
from tinyattn.errors import InputError
from tinyattn.train import Config, train

ROOT = Path(__file__).parent.parent


def run_state(folder):
    """All of a run that must not depend on how it came about: the checkpoint and the log without times."""
    saved = checkpoint.load(folder)
    saved.state.pop("seconds")
    log = [{k: v for k, v in line.items() if k != "seconds"} for line in checkpoint.read_log(folder)]
    return saved, log


def assert_same_run(a, b):
    (first, log), (second, other) = run_state(a), run_state(b)
    assert log == other
    assert (first.config, first.extra, first.state) == (second.config, second.extra, second.state)
    for part in checkpoint.PARTS:
        one, two = getattr(first, part), getattr(second, part)
        assert one.keys() == two.keys()
        assert all(np.array_equal(one[name], two[name]) for name in one), part


# ---------------------------------------------------------------------------------------------------------------------
# exact resume
# ---------------------------------------------------------------------------------------------------------------------
FRESH = textwrap.dedent("""
    import sys
    from tiny_system import Tiny
    from tinyattn.train import Config, train
    system = Tiny(seed=99)                       # other first weights: all must come from the checkpoint
    history = train(system, Config.of(system), sys.argv[1], resume=True, stop_at=int(sys.argv[2]) or None)
    print(history.step, history.stopped)
""")


def fresh_process(folder, stop_at, hash_seed):
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}", "PYTHONHASHSEED": str(hash_seed)}
    done = subprocess.run(
        [sys.executable, "-c", FRESH, str(folder), str(stop_at)], env=env, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


@pytest.mark.parametrize("stop_at", [5, 7])
def test_ten_steps_equal_some_a_fresh_process_and_the_rest_bit_for_bit(tmp_path, stop_at):
    """Dropout, clipping, warm-up, a schedule over all steps, validations at 3, 6, 9, 10, the end of an epoch at 6."""
    whole = Tiny()
    history = train(whole, Config.of(whole), tmp_path / "whole")
    assert (history.step, history.stopped, [s for s, _ in history.validation]) == (10, "steps", [3, 6, 9, 10])
    part = Tiny()
    assert train(part, Config.of(part), tmp_path / "parts", stop_at=stop_at).stopped == "stop_at"
    assert fresh_process(tmp_path / "parts", 0, stop_at) == ["10", "steps"]
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_a_resumed_run_is_not_the_same_by_accident(tmp_path):
    """The comparison above can fail: another seed is another run, and the steps before and after the break matter."""
    for name, seed in (("a", 1), ("b", 2)):
        system = Tiny()
        train(system, Config.of(system, seed=seed), tmp_path / name)
    a, b = (run_state(tmp_path / name)[0].model for name in "ab")
    assert not all(np.array_equal(a[name], b[name]) for name in a)
    assert run_state(tmp_path / "a")[1] != run_state(tmp_path / "b")[1]


def test_a_log_that_ran_ahead_of_its_checkpoint_is_cut_back(tmp_path):
    whole = Tiny()
    train(whole, Config.of(whole), tmp_path / "whole")
    part = Tiny()
    train(part, Config.of(part), tmp_path / "parts", stop_at=4)
    with open(tmp_path / "parts" / "log.jsonl", "a") as log:
        log.write(
            '{"step": 5, "loss": 9.0, "tokens": 4, "norm": 1, "rate": 1}\n{"step": 6, "validation_loss": 1e-9, "seco'
        )
    system = Tiny()
    train(system, Config.of(system), tmp_path / "parts", resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_the_global_random_state_of_numpy_is_never_touched(tmp_path):
    np.random.seed(5)
    before = np.random.get_state()[1].copy()
    system = Tiny()
    train(system, Config.of(system), tmp_path / "r")
    np.testing.assert_array_equal(np.random.get_state()[1], before)


def test_without_a_folder_nothing_is_written_and_the_best_weights_remain(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kept, alone = Tiny(), Tiny()
    history = train(kept, Config.of(kept), tmp_path / "r")
    other = train(alone, Config.of(alone))
    assert history.losses == other.losses and os.listdir(tmp_path) == ["r"]
    best = checkpoint.load(tmp_path / "r").best
    for system in (kept, alone):
        assert all(np.array_equal(a, best[name]) for name, a in system.model.state_dict().items())
    assert history.best_loss == min(loss for _, loss in history.validation) == kept.validation_loss()


def test_a_finished_run_can_be_made_longer(tmp_path):
    system = Tiny()
    train(system, Config.of(system, schedule="constant", steps=6), tmp_path / "r")
    system = Tiny()
    history = train(system, Config.of(system, schedule="constant", steps=9), tmp_path / "r", resume=True)
    assert history.step == 9 and len(history.losses) == 9
    whole = Tiny()
    train(whole, Config.of(whole, schedule="constant", steps=9), tmp_path / "w")
    a, b = (checkpoint.load(tmp_path / name).model for name in "rw")
    assert all(np.array_equal(a[name], b[name]) for name in a)


# ---------------------------------------------------------------------------------------------------------------------
# what does not fit is found before training
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("changes", "message"), [
    ({"batch_size": 5}, "batch_size: the run has 4, now it is 5"),
    ({"seed": 2}, "seed: the run has 1, now it is 2"),
    ({"options": {"hidden": 6, "dropout": 0.25}}, "hidden: the run has 5, now it is 6"),
    ({"data": ("other.tsv",)}, r"data: the run has \[\], now it is \['other.tsv'\]"),
])
def test_a_mismatch_names_both_sides_and_nothing_is_trained(tmp_path, changes, message):
    system = Tiny()
    train(system, Config.of(system), tmp_path / "r", stop_at=4)
    before = (tmp_path / "r" / FILE).read_bytes()
    system.loss = None  # would raise if it were called
    with pytest.raises(InputError, match=message):
        train(system, Config.of(system, **changes), tmp_path / "r", resume=True)
    assert (tmp_path / "r" / FILE).read_bytes() == before


def test_another_vocabulary_is_found(tmp_path):
    system = Tiny()
    train(system, Config.of(system), tmp_path / "r", stop_at=4)
    system = Tiny(words=["a", "c", "d"])
    with pytest.raises(
        InputError, match="words vocabulary: the run has 2 entries, at 1 'b'; the data now give 3 entries, at 1 'c'"
    ):
        train(system, Config.of(system), tmp_path / "r", resume=True)
    check_extra({"words": ["a"]}, {"words": ["a"]}, "r")


def test_a_data_file_that_has_changed_is_found(tmp_path):
    data = tmp_path / "data.tsv"
    data.write_text("a\tb\n")
    system = Tiny()
    config = Config.of(system, data=(str(data),)).with_digests()
    train(system, config, tmp_path / "r", stop_at=4)
    data.write_text("a\tc\n")
    with pytest.raises(InputError, match=r"file .*data\.tsv: the run has [0-9a-f]{64}, now it is [0-9a-f]{64}"):
        train(system, config.with_digests(), tmp_path / "r", resume=True)


@pytest.mark.parametrize(
    ("name", "value"),
    [("step", -1), ("step", "3"), ("epoch", None), ("random", "{}"), ("random", 5), ("place", 1.5),
     ("best_loss", "low"), ("batches", 7)],
)
def test_a_hostile_state_is_refused(tmp_path, name, value):
    system = Tiny()
    train(system, Config.of(system), tmp_path / "r", stop_at=4)
    saved = checkpoint.load(tmp_path / "r")
    saved.state[name] = value
    checkpoint.save(tmp_path / "r", saved)
    with pytest.raises(InputError):
        train(Tiny(), Config.of(system), tmp_path / "r", resume=True)


# ---------------------------------------------------------------------------------------------------------------------
# Ctrl-C and kill
# ---------------------------------------------------------------------------------------------------------------------
def test_ctrl_c_finishes_the_step_and_saves_it(tmp_path):
    system, said = Tiny(), []

    def press(progress):
        if progress.step == 4:
            os.kill(os.getpid(), signal.SIGINT)
    handler = signal.getsignal(signal.SIGINT)
    history = train(system, Config.of(system), tmp_path / "r", report=press, say=said.append)
    assert (history.stopped, history.step) == ("interrupted", 4) and len(said) == 1
    assert checkpoint.load(tmp_path / "r").state["step"] == 4
    assert signal.getsignal(signal.SIGINT) is handler


def test_a_second_ctrl_c_leaves_at_once(tmp_path):
    system = Tiny()

    def press(progress):
        if progress.step == 5:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        train(system, Config.of(system), tmp_path / "r", report=press)
    assert checkpoint.load(tmp_path / "r").state["step"] == 3  # of the last validation


KILLED = textwrap.dedent("""
    import sys
    from tiny_system import Tiny
    from tinyattn.train import Config, train
    system = Tiny()
    config = Config.of(system, steps=400, validate_every=1)
    report = lambda p: print(p.step, flush=True)
    train(system, config, sys.argv[1], resume=sys.argv[2] == "resume", report=report)
""")


def test_kill_minus_nine_loses_only_the_steps_since_the_last_save(tmp_path):
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}
    for turn, step in enumerate((37, 120)):
        how = "resume" if turn else "begin"
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(tmp_path / "r"), how], env=env, stdout=subprocess.PIPE, text=True
        )
        for line in process.stdout:
            if int(line) >= step:
                break
        process.kill()
        process.wait()
        process.stdout.close()
        assert checkpoint.load(tmp_path / "r").state["step"] >= step - 1
    system = Tiny()
    train(system, Config.of(system, steps=400, validate_every=1), tmp_path / "r", resume=True)
    whole = Tiny()
    train(whole, Config.of(whole, steps=400, validate_every=1), tmp_path / "whole")
    assert_same_run(tmp_path / "whole", tmp_path / "r")


# ---------------------------------------------------------------------------------------------------------------------
# numbers that are none
# ---------------------------------------------------------------------------------------------------------------------
def test_a_loss_that_is_inf_stops_with_the_step_and_the_first_op(tmp_path):
    system = Tiny()
    steps = []
    system.poison = lambda: system.model.training and len(steps) == 6
    with pytest.raises(
        FloatingPointError, match=r"step 7: the loss is inf; mul\(\) is the first to give inf .*kept in"
    ):
        train(system, Config.of(system), tmp_path / "r", report=lambda p: steps.append(p.step))
    assert checkpoint.load(tmp_path / "r").state["step"] == 6
    for p in system.model.parameters():
        assert np.isfinite(p.numpy()).all()


def test_a_gradient_that_is_nan_is_named_and_not_stepped():
    system = Tiny()
    real = system.loss

    def loss(batch):
        value, n = real(batch)
        return value + (system.model.outer.bias * 0).sqrt().sum() * 0, n  # slope 0 * inf
    system.loss = loss
    before = system.model.state_dict()
    with pytest.raises(
        FloatingPointError, match=r"step 1: clip_grad_norm: .*outer\.bias.*; div\(\) is the first to give nan"
    ):
        train(system, Config.of(system, clip=0.0))
    assert all(np.array_equal(a, before[name]) for name, a in system.model.state_dict().items())


def test_weights_that_an_update_ruined_are_named():
    system = Tiny()
    with pytest.raises(
        FloatingPointError, match=r"the last update \(learning rate .*\) had left a nan or inf in (inner|outer)"
    ):
        train(system,
              Config.of(system, optimizer="sgd", learning_rate=1e39, schedule="constant", clip=0.0, warmup=0, steps=50))


def test_a_validation_loss_that_is_nan_stops_too():
    system = Tiny()
    system.poison = lambda: not system.model.training
    with pytest.raises(FloatingPointError, match=r"step 3: the validation loss is (inf|nan); .* is the first to give"):
        train(system, Config.of(system))


# ---------------------------------------------------------------------------------------------------------------------
# limits, schedules, settings
# ---------------------------------------------------------------------------------------------------------------------
class Clock:
    """perf_counter by hand: `step` seconds pass at each look."""

    def __init__(self, monkeypatch, step):
        self.now, self.step = 0.0, step
        monkeypatch.setattr(training.time, "perf_counter", self)

    def __call__(self):
        self.now += self.step
        return self.now


def test_a_time_limit_ends_training_and_the_schedule_with_it(monkeypatch):
    Clock(monkeypatch, 0.5)
    system, rates = Tiny(), []
    step = optim.Adam.step
    monkeypatch.setattr(optim.Adam, "step", lambda self: (rates.append(self.lr), step(self))[1])
    history = train(system, Config.of(system, steps=None, seconds=60.0, warmup=0))
    assert history.stopped == "seconds" and 60 <= history.seconds < 70
    assert rates[0] == 0.05 and rates == sorted(rates, reverse=True) and rates[-1] < 0.002
    assert history.validation[-1][0] == history.step


def test_whichever_limit_comes_first(monkeypatch):
    Clock(monkeypatch, 0.001)
    system = Tiny()
    assert train(system, Config.of(system, seconds=100.0)).stopped == "steps"


def test_progress_tells_steps_loss_speed_and_time_left(monkeypatch):
    Clock(monkeypatch, 0.25)
    system, seen = Tiny(), []
    train(system, Config.of(system), report=seen.append)
    assert [p.step for p in seen] == list(range(1, 11)) and {p.steps for p in seen} == {10}
    assert seen[0].left is None and seen[0].tokens_per_second == 0
    assert all(p.left > 0 and p.tokens_per_second > 0 for p in seen[1:-1]) and seen[-1].left == 0
    assert [p.step for p in seen if p.validation is not None] == [3, 6, 9] and seen[2].best
    assert [p.done for p in seen] == [s / 10 for s in range(1, 11)]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_runs_and_warms_up(tmp_path, schedule):
    system = Tiny()
    train(system, Config.of(system, schedule=schedule, warmup=4), tmp_path / "r")
    rates = [line["rate"] for line in checkpoint.read_log(tmp_path / "r") if "rate" in line]
    assert rates[0] < rates[1] < rates[2] and max(rates) <= 0.05 and rates[0] == pytest.approx(0.05 / 4, rel=0.03)
    assert (rates[-1] == 0.05) if schedule == "constant" else rates[-1] < 0.035


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_lowers_the_loss_with_the_rate_that_suits_it(optimizer):
    system = Tiny()
    before = system.validation_loss()
    config = Config.of(system, optimizer=optimizer, steps=120, warmup=0)
    assert config.learning_rate == RATES.get(optimizer, 0.05)
    train(system, config)
    assert system.validation_loss() < before


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"steps": 0}, "steps: expected a whole number of at least 1, got 0"),
     ({"steps": None}, "expected a number of steps, of seconds or both"), ({"batch_size": 2.5}, "batch_size"),
     ({"validate_every": 0}, "validate_every"), ({"seed": -1}, "seed"), ({"warmup": -1}, "warmup"),
     ({"learning_rate": 0}, "learning_rate: expected a number above 0"),
     ({"learning_rate": float("nan")}, "learning_rate"), ({"learning_rate": float("inf")}, "learning_rate"),
     ({"clip": -1.0}, "clip: expected a number of at least 0"), ({"seconds": 0}, "seconds"),
     ({"optimizer": "adamm"}, "expected one of sgd, .*, got 'adamm'"), ({"schedule": "x"}, "schedule")],
)
def test_settings_that_cannot_be_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        Config.of(Tiny(), **changes)


def test_settings_survive_json():
    config = Config.of(Tiny(), data=("a", "b"), links="l", seconds=1.5, learning_rate=0.1 + 0.2, digests={"a": "0"})
    assert Config.from_json(json.loads(json.dumps(config.to_json()))) == config
    for broken in ({"steps": "1"}, {"data": "abc"}, {"data": [1]}, {"options": []}, {"links": 3}, {"optimizer": []},
                   {"more": 1}):
        with pytest.raises(InputError):
            Config.from_json({**config.to_json(), **broken})


def test_data_without_a_batch_is_refused():
    system = Tiny()
    system.epoch = lambda rng, batch_size: []
    with pytest.raises(InputError, match="tiny: the data give no batch"):
        train(system, Config.of(system))


def test_epochs_differ_and_each_shows_everything_once():
    system, seen = Tiny(), []
    real = system.loss
    system.loss = lambda batch: (seen.append(tuple(batch)) if system.model.training else None, real(batch))[1]
    train(system, Config.of(system, steps=12))
    first, second = seen[:6], seen[6:]
    assert sorted(i for b in first for i in b) == sorted(i for b in second for i in b) == list(range(23))
    assert first != second


def test_weights_do_not_depend_on_what_was_drawn_before(tmp_path):
    a = Tiny()
    train(a, Config.of(a))
    b = Tiny()
    random.generator().normal(size=1000)
    train(b, Config.of(b))
    assert all(np.array_equal(x, b.model.state_dict()[name]) for name, x in a.model.state_dict().items())


def test_digests_of_files_and_folders(tmp_path):
    """A run notices on resume that a file of its data has changed, been renamed or added, in a folder too."""
    folder = tmp_path / "data"
    (folder / "a").mkdir(parents=True)
    (folder / "a" / "x.txt").write_bytes(b"one")
    config = Config.of(Tiny(), data=(str(folder),))

    def digest():
        return config.with_digests().digests[str(folder)]
    first = digest()
    assert digest() == first
    (folder / "a" / "x.txt").write_bytes(b"two")
    second = digest()
    (folder / "a" / "x.txt").rename(folder / "a" / "y.txt")
    third = digest()
    (folder / "z").write_bytes(b"")
    assert len({first, second, third, digest()}) == 4
    with pytest.raises(InputError, match="missing: cannot be read"):
        Config.of(Tiny(), data=(str(tmp_path / "missing"),)).with_digests()


def test_which_weights_are_kept(tmp_path):
    """With a learning rate that grows wild the last weights are not the best ones."""
    kept = {}
    for keep in ("best", "last"):
        system = Tiny()
        config = Config.of(system, steps=24, learning_rate=0.5, schedule="constant", warmup=0, keep=keep)
        history = train(system, config, tmp_path / keep)
        kept[keep] = system.validation_loss()
        assert history.best_step < 24
        assert all(np.array_equal(checkpoint.load(tmp_path / keep).weights[name], value)
                   for name, value in system.model.state_dict().items())
    assert kept["best"] == pytest.approx(history.best_loss) and kept["last"] == pytest.approx(history.validation[-1][1])
    assert kept["last"] > kept["best"]
    with pytest.raises(InputError, match="keep: expected one of best, last, got 'first'"):
        Config.of(Tiny(), keep="first")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_disk_that_is_full_is_said_of_the_log_too(tmp_path, monkeypatch):
    def full(loop):
        loop.log = open("/dev/full", "a", encoding="utf-8")  # noqa: SIM115
    monkeypatch.setattr(training._Loop, "_open_log", full)
    with pytest.raises(OSError, match="No space left") as failed:
        train(Tiny(), Config.of(Tiny(), steps=2), tmp_path / "r")
    assert failed.value.filename == "/dev/full"


@pytest.mark.skipif(sys.platform != "linux", reason="names are bytes on Linux alone")
def test_the_digest_of_a_folder_with_a_name_that_is_not_utf8(tmp_path):
    def digest():
        return Config.of(Tiny(), data=(str(tmp_path),)).with_digests().digests[str(tmp_path)]
    (tmp_path / "é").write_text("a")
    before = digest()
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff")).write_text("b")
    assert digest() != before
    with pytest.raises(InputError, match="/dev/zero: expected a file, found a pipe or device"):
        Config.of(Tiny(), data=("/dev/zero",)).with_digests()


def test_runs_from_before_a_setting_existed_still_load():
    given = Config.of(Tiny()).to_json()
    del given["keep"]
    assert Config.from_json(given).keep == "best"
