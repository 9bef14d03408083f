"""What generators make and the cache folder keeps: the same with and without, whatever stands in the folder."""
import json
import os
import subprocess
import sys
import threading
import types
from pathlib import Path

import pytest

from tinyattn.tasks import docstrings, english_french
from tinyattn.tasks import kept as module
from tinyattn.tasks.kept import kept

ROOT = Path(__file__).parent.parent


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TINYATTN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tinyattn" / "made"


class Maker:
    """Counts how often it makes a value."""

    def __init__(self, path, value=("a", [1, 2.5, None], {"\ud800é": True})):
        self.path, self.value, self.made = path, value, 0
        path.write_text("a generator")
        self.module = types.SimpleNamespace(__file__=str(path))

    def make(self):
        self.made += 1
        return json.loads(json.dumps(self.value))

    def __call__(self, *arguments, name="words"):
        return kept(name, [self.module], arguments, self.make)


@pytest.fixture
def maker(tmp_path):
    return Maker(tmp_path / "generator.py")


def test_made_once_and_read_again(folder, maker):
    first, second = maker(1), maker(1)
    assert first == second == ["a", [1, 2.5, None], {"\ud800é": True}] and maker.made == 1
    assert len(list(folder.iterdir())) == 1


def test_made_anew_for_other_arguments_an_edit_another_version(folder, maker, monkeypatch):
    maker(1), maker(2), maker(1), maker(2)
    assert maker.made == 2
    maker.path.write_text("a generator, edited")
    maker(1), maker(1)
    assert maker.made == 3
    monkeypatch.setattr(module.np, "__version__", "0")
    maker(1), maker(1)
    assert maker.made == 4
    monkeypatch.setattr(module.sys, "version", "0")
    maker(1), maker(1)
    assert maker.made == 5


@pytest.mark.parametrize("spoil", [
    lambda path: path.write_bytes(b""), lambda path: path.write_bytes(path.read_bytes()[:-1]),
    lambda path: path.write_bytes(path.read_bytes().replace(b"2.5", b"3.5")), lambda path: path.write_bytes(b"\xff\n[1]"),
    lambda path: path.write_bytes(b"[]"), lambda path: path.write_bytes(b"[" * 10**6)],
    ids=["empty", "cut off", "altered", "bytes", "foreign", "deep"])
def test_what_is_not_as_written_is_made_anew(folder, maker, spoil):
    value = maker(1)
    path, = folder.iterdir()
    spoil(path)
    assert maker(1) == value and maker.made == 2
    assert maker(1) == value and maker.made == 2


def test_a_folder_in_the_way(folder, maker):
    value = maker(1)
    path, = folder.iterdir()
    path.unlink()
    path.mkdir()
    assert maker(1) == value and maker(1) == value and maker.made == 3
    assert list(folder.iterdir()) == [path]  # nothing half written is left


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the system's owner may read everything")
def test_a_file_that_may_not_be_read(folder, maker):
    value = maker(1)
    path, = folder.iterdir()
    path.chmod(0)
    assert maker(1) == value and maker.made == 2


def test_no_folder(tmp_path, maker, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TINYATTN_CACHE", str(tmp_path / "file"))
    assert maker(1) == maker(1) and maker.made == 2
    monkeypatch.setenv("TINYATTN_CACHE", str(tmp_path / "other"))
    place = tmp_path / "other" / "tinyattn"
    place.mkdir(parents=True)
    (place / "made").write_text("")
    assert maker(1) == maker(1) and maker.made == 4


def test_a_disk_without_room(folder, maker, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")
    monkeypatch.setattr(module.os, "replace", full)
    assert maker(1) == maker(1) and maker.made == 2 and not list(folder.iterdir())


def test_the_last_used_of_a_name_stay(folder, maker):
    maker(0, name="other")
    for n in range(module.MOST):
        maker(n)
        for path in folder.iterdir():  # one second older each
            os.utime(path, ns=(0, path.stat().st_mtime_ns - 10**9))
    maker(0)
    maker(module.MOST)
    assert len(list(folder.glob("words-*"))) == module.MOST and len(list(folder.glob("other-*"))) == 1
    made = maker.made
    maker(0), maker(module.MOST), maker(0, name="other")
    assert maker.made == made  # number 0 was used, 1 went
    maker(1)
    assert maker.made == made + 1


def test_several_at_once(folder, maker):
    values = []

    def work():
        for n in range(20):
            values.append(maker(n % 6))
    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(values) == 80 and all(value == values[0] for value in values)
    assert len(list(folder.iterdir())) <= module.MOST + 4


def test_two_processes_at_once(folder):
    code = ("from tinyattn.tasks.english_french import generate\n"
            "for seed in range(3): print(hash(tuple((p.source, p.target) for p in generate(2000, seed))))")
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0"}
    both = [subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate()[0] for process in both]
    assert said[0] == said[1] and len(set(said[0].split())) == 3 and len(list(folder.iterdir())) == 3


# ---------------------------------------------------------------------------------------------------------------------
# what is kept so
# ---------------------------------------------------------------------------------------------------------------------
def test_sentence_pairs_are_the_same_with_and_without(folder, monkeypatch):
    n = english_french.MANY
    plain = english_french._generate(n, 3)
    first = english_french.generate(n, 3)
    assert len(list(folder.iterdir())) == 1
    monkeypatch.setattr(english_french, "_generate", None)
    again = english_french.generate(n, 3)
    for pair, other, third in zip(plain, first, again, strict=True):
        assert pair == other == third
        for same in (other, third):
            assert [type(part) for part in (same.source, same.sure, same.possible)] == [tuple, frozenset, frozenset]
            assert all(type(link) is tuple for link in same.possible)


def test_few_pairs_and_other_seeds_are_not_kept(folder):
    english_french.generate(20, 3)
    english_french.generate(english_french.MANY, [1, 2])
    assert not folder.exists()


def library(folder):
    (folder / "asyncio").mkdir(parents=True)
    for name in ("base64", "asyncio/base"):
        words = "\n".join(f'def f{i}():\n    """{name} says {i} that one two three four five six seven eight nine"""'
                          for i in range(60))
        (folder / f"{name}.py").write_text(words)


def test_documentation_strings_are_the_same_with_and_without(folder, tmp_path, monkeypatch):
    library(tmp_path / "lib")
    read = docstrings._documents.__wrapped__
    monkeypatch.setattr(docstrings, "kept", lambda name, modules, arguments, make: make())
    plain = read(str(tmp_path / "lib"))
    monkeypatch.undo()
    monkeypatch.setenv("TINYATTN_CACHE", str(tmp_path / "cache"))
    assert read(str(tmp_path / "lib")) == plain and len(plain) == 120
    with monkeypatch.context() as patch:
        patch.setattr(docstrings, "_found", None)
        assert read(str(tmp_path / "lib")) == plain and all(type(pair) is tuple for pair in plain)
    path = tmp_path / "lib" / "base64.py"
    path.write_text(path.read_text().replace("says 7 ", "says 7777 "))
    edited = read(str(tmp_path / "lib"))
    assert edited != plain and sum("7777" in text for _, text in edited) == 1
