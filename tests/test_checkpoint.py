"""Checkpoints: exact there and back, killed at any byte, and refused with a reason if they are not ours."""
import json
import os
import struct

import numpy as np
import pytest
from safetensors.numpy import save as to_bytes

from tinyattn import checkpoint
from tinyattn.checkpoint import FILE, Checkpoint, load, new_folder, read_log, save
from tinyattn.errors import InputError


def example(step=3):
    return Checkpoint({"system": "translate", "options": {}, "data": ["caf\u00e9 \u2028 \udce9.tsv"]},
                      {"source": ["<pad>", "été", "\U0001f600"]}, {"step": step, "loss": 0.1},
                      {"w": np.arange(6, dtype=np.float32).reshape(2, 3).T, "empty": np.zeros((0, 2))},
                      {"w": np.full((3, 2), np.nan, np.float32)},
                      {"steps": np.array(7), "lr": np.array(1e-3), "w.m": np.zeros(2)})


def assert_same(a, b):
    assert (a.config, a.extra, a.state) == (b.config, b.extra, b.state)
    for part in ("model", "best", "optimizer"):
        first, second = getattr(a, part), getattr(b, part)
        assert first.keys() == second.keys()
        for name in first:
            assert first[name].dtype == second[name].dtype and first[name].shape == second[name].shape
            np.testing.assert_array_equal(first[name], second[name])


def test_there_and_back_and_equal_checkpoints_are_equal_files(tmp_path):
    save(tmp_path, example())
    assert_same(load(tmp_path), example())
    first = (tmp_path / FILE).read_bytes()
    save(tmp_path, example())
    assert (tmp_path / FILE).read_bytes() == first
    assert os.listdir(tmp_path) == [FILE]


@pytest.mark.parametrize("failing", ["fsync", "replace", "write"])
def test_a_save_that_fails_leaves_the_old_checkpoint(tmp_path, monkeypatch, failing):
    save(tmp_path, example(1))

    def fail(*args, **kwargs):
        raise OSError(28, "No space left on device")
    if failing == "write":
        class Full:
            def __init__(self, path, mode):
                self.file = open(path, mode)  # noqa: SIM115  (closed below)

            def __enter__(self):
                return self

            def __exit__(self, *error):
                self.file.close()

            def write(self, data):
                self.file.write(data[:100])
                fail()
        monkeypatch.setattr(checkpoint, "open", Full, raising=False)
    else:
        monkeypatch.setattr(checkpoint.os, failing, fail)
    with pytest.raises(OSError, match="No space") as failed:
        save(tmp_path, example(2))
    assert failed.value.filename == str(tmp_path / FILE)
    monkeypatch.undo()
    assert load(tmp_path).state["step"] == 1
    assert os.listdir(tmp_path) == [FILE]


def test_killed_at_any_byte_of_a_save_the_old_checkpoint_loads(tmp_path):
    """What a kill leaves behind is the old file and a part of the new one beside it; the next save goes over both."""
    save(tmp_path, example(2))
    whole = (tmp_path / FILE).read_bytes()
    save(tmp_path, example(1))
    for cut in [*range(0, len(whole), 37), len(whole)]:
        (tmp_path / f"{FILE}.part").write_bytes(whole[:cut])
        assert load(tmp_path).state["step"] == 1
    save(tmp_path, example(2))
    assert load(tmp_path).state["step"] == 2
    assert os.listdir(tmp_path) == [FILE]


def test_the_file_is_never_written_in_place(tmp_path, monkeypatch):
    """While the new bytes go to the disk, the name still leads to the old file, whole."""
    save(tmp_path, example(1))
    seen, fsync = [], os.fsync

    def look(handle):
        seen.append(load(tmp_path).state["step"])
        fsync(handle)
    monkeypatch.setattr(checkpoint.os, "fsync", look)
    save(tmp_path, example(2))
    assert seen[0] == 1 and load(tmp_path).state["step"] == 2


def test_a_truncated_file_is_refused_at_every_length(tmp_path):
    save(tmp_path, example())
    whole = (tmp_path / FILE).read_bytes()
    for cut in [0, 1, 7, 8, 9, *range(10, len(whole), 41), len(whole) - 1]:
        (tmp_path / FILE).write_bytes(whole[:cut])
        with pytest.raises(InputError, match=r"model\.safetensors: cannot be read as a run"):
            load(tmp_path)


def header(about):
    return {"tinyattn": about if isinstance(about, str) else json.dumps(about)}


GOOD = {"format": 1, "config": {}, "extra": {}, "state": {}}


@pytest.mark.parametrize(("content", "reason"), [
    (b"\x80\x04\x95 pickle", "cannot be read"),
    (b"PK\x03\x04 a zip of torch", "cannot be read"),
    (struct.pack("<Q", 2**63) + b"{}", "cannot be read"),
    (struct.pack("<Q", 10) + b"[" * 10, "cannot be read"),
    (to_bytes({"w": np.zeros(2)}), "another program"),
    (to_bytes({"w": np.zeros(2)}, {"format": "pt"}), "another program"),
    (to_bytes({}, header("not json")), "cannot be read"),
    (to_bytes({}, header("[" * 100_000)), "cannot be read"),
    (to_bytes({}, header("1" * 10_000)), "cannot be read"),
    (to_bytes({}, header([1])), "format 'list'"),
    (to_bytes({}, header({**GOOD, "format": 99})), "format 99"),
    (to_bytes({}, header({**GOOD, "config": [1]})), "'config'"),
    (to_bytes({"other/w": np.zeros(2)}, header(GOOD)), "'other/w'"),
], ids=range(13))
def test_foreign_and_hostile_files_are_refused_with_a_reason(tmp_path, content, reason):
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(InputError) as refused:
        load(tmp_path)
    assert reason in str(refused.value) and FILE in str(refused.value) and "\n" not in str(refused.value)


def test_what_is_no_run_folder_is_said(tmp_path):
    for path, what in ((tmp_path / "none", "no such folder"), (tmp_path, f"no {FILE}")):
        with pytest.raises(InputError, match=what):
            load(path)
    (tmp_path / "f").write_text("x")
    with pytest.raises(InputError, match="a file"):
        load(tmp_path / "f")


OPTIONS = {"attention": "additive", "cell": "gru", "hidden": 4, "embed": 3, "align": 0, "context": "every",
           "bidirectional": True, "reverse_source": False, "dropout": 0.0, "init": "modern", "min_count": 1,
           "max_vocabulary": 100, "max_length": 50}
WORDS = ["<pad>", "<s>", "</s>", "<unk>", "a", "b"]


def translator(**options):
    from tinyattn.models.translate import Translate
    return Translate.restore({**OPTIONS, **options}, {"source": WORDS, "target": WORDS})


def test_restore_gives_the_system_with_its_best_weights(tmp_path):
    system = translator()
    best = {name: a + 1 for name, a in system.model.state_dict().items()}
    save(tmp_path,
         Checkpoint({"system": "translate", "options": OPTIONS}, system.extra(), {}, system.model.state_dict(), best))
    restored, _ = checkpoint.restore(tmp_path)
    assert restored.extra() == system.extra() and restored.options == system.options
    for name, a in restored.model.state_dict().items():
        np.testing.assert_array_equal(a, best[name])


@pytest.mark.parametrize(("config", "extra", "reason"), [
    ({"system": "nothing"}, {}, "translate, got 'nothing'"),
    ({"system": "../../x"}, {}, "sense, translate"),
    ({"system": 5}, {}, "expected a system and its options"),
    ({"options": None}, {}, "expected a system and its options"),
    ({"options": {**OPTIONS, "hidden": "4"}}, {}, "hidden: expected int, found '4'"),
    ({"options": {**OPTIONS, "hidden": True}}, {}, "hidden: expected int, found True"),
    ({"options": {**OPTIONS, "cell": "tape"}}, {}, "cell: expected one of rnn, gru, lstm, found 'tape'"),
    ({"options": {**OPTIONS, "surprise": 1}}, {}, "surprise"),
    ({"options": {**OPTIONS, "hidden": 10**12}}, {}, "does not fit|memory"),
    ({"options": {**OPTIONS, "hidden": 5}}, {}, "has shape"),
    ({"options": {**OPTIONS, "attention": "eval"}}, {}, "got 'eval'"),
    ({}, {"source": None}, "does not fit"),
    ({}, {"source": WORDS[:-1]}, "has shape"),
    ({}, {"source": ["x", *WORDS]}, "expected to begin with <pad>"),
    ({}, {"source": [*WORDS[:-1], 5]}, "vocabulary: expected words as texts, found 5 at 5"),
    ({}, {"source": [*WORDS[:-1], ["b"]]}, "vocabulary: expected words as texts"),
])
def test_restore_refuses_what_does_not_fit_in_one_line(tmp_path, config, extra, reason):
    import re
    system = translator()
    config = {"system": "translate", "options": OPTIONS, **config}
    save(tmp_path, Checkpoint(config, {**system.extra(), **extra}, {}, system.model.state_dict()))
    with pytest.raises(InputError) as refused:
        checkpoint.restore(tmp_path)
    assert re.search(reason, str(refused.value)) and "\n" not in str(refused.value)


@pytest.mark.parametrize("part", ["model", "best"])
@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_weights_that_are_no_numbers_are_refused(tmp_path, part, value):
    system = translator()
    weights = system.model.state_dict()
    name = list(weights)[3]
    broken = weights[name].copy()
    broken.flat[-1] = value
    parts = {"model": weights, part: {**weights, name: broken}}
    save(tmp_path, Checkpoint({"system": "translate", "options": OPTIONS}, system.extra(), {}, **parts))
    with pytest.raises(InputError, match=rf"model\.safetensors: expected finite weights, found nan or inf in {name}$"):
        checkpoint.restore(tmp_path)


MECHANISM = """
import pathlib
from tinyattn.attention import variant, weigh
pathlib.Path(__file__).with_name("ran").touch()

@variant(params={"w": "QK"})
def mine(q, k, v, w, mask=None, return_weights=False):
    return weigh((q @ w) @ k.transpose(-1, -2), v, mask, return_weights)
"""


def test_loading_runs_no_file_unless_the_caller_names_it(tmp_path):
    script = tmp_path / "my.py"
    script.write_text(MECHANISM)
    system = translator(attention=f"{script}:mine")
    (tmp_path / "ran").unlink()
    config = {"system": "translate", "options": {**OPTIONS, "attention": f"{script}:mine"}}
    save(tmp_path, Checkpoint(config, system.extra(), {}, system.model.state_dict()))
    with pytest.raises(InputError, match="executes nothing.*--attention"):
        checkpoint.restore(tmp_path)
    assert not (tmp_path / "ran").exists()
    restored, _ = checkpoint.restore(tmp_path, f"{script}:mine")
    assert (tmp_path / "ran").exists()
    np.testing.assert_array_equal(
        restored.model.state_dict()["decoder.attention.w"], system.model.state_dict()["decoder.attention.w"]
    )


def test_a_new_run_needs_an_empty_folder(tmp_path):
    new_folder(tmp_path / "a" / "b")
    (tmp_path / "a" / "b" / f"{FILE}.part").write_text("left by a kill before the first save")
    new_folder(tmp_path / "a" / "b")
    with pytest.raises(InputError, match="found b in it"):
        new_folder(tmp_path / "a")
    (tmp_path / "a" / FILE).write_text("x")
    with pytest.raises(InputError, match="holds a run already; --resume"):
        new_folder(tmp_path / "a")
    with pytest.raises(InputError, match="cannot be the folder of a run"):
        new_folder(tmp_path / "a" / FILE)


def test_a_log_is_read_up_to_a_step_and_past_garbage(tmp_path):
    (tmp_path / "log.jsonl").write_bytes(
        b'{"step": 1, "loss": 2.0}\n\xff\xfe\n[1]\n{"loss": 1}\n{"step": 2, "loss": 1.5}\n'
        + b"[" * 100_000 + b'\n{"step": 3, "lo'
    )
    assert read_log(tmp_path) == [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.5}]
    assert read_log(tmp_path, last=1) == [{"step": 1, "loss": 2.0}]
    assert read_log(tmp_path / "none") == []
