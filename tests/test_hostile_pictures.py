"""Pictures and what is hostile: texts, numbers, logs, folders and file names of all kinds."""
import json
import math
import re
import shutil
import sys
import xml.dom.minidom
from collections import Counter

import numpy as np
import pytest

pytest.importorskip("matplotlib")
from test_training_pictures import Looking, trained  # noqa: E402

from tinyattn import checkpoint, systems  # noqa: E402
from tinyattn.attention import find  # noqa: E402
from tinyattn.cli import main  # noqa: E402
from tinyattn.errors import InputError  # noqa: E402
from tinyattn.train import Config, train  # noqa: E402
from viz import (  # noqa: E402
    curves,
    example_panels,
    frames,
    grid,
    heatmap,
    heatmaps,
    hops,
    lines,
    masks,
    norms,
    penalty,
    positions,
    scores_by_group,
    tinted,
)
from viz.page import inline  # noqa: E402
from viz.plot import save_bytes  # noqa: E402

NASTY = ["<pad>", "$x_1$", "\\frac", "😀", "e\u0301\u0301", "שלום", "a\nb", "\x00", "\ud800", "x" * 10000, "", " ",
         "]]>", "\u202eabc", "&amp;", "\ufffe", "\x1b[0m", "$", "{", "^_"]
BAD = "a\nb\x00\ud800$x_1$<\\frac"
N = len(NASTY)
EVEN = np.full((N, N), 1 / N)


def log(layers=("a", "b"), title="t"):
    look = {"title": title, "rows": NASTY, "columns": NASTY, "weights": EVEN.tolist(), "place": {title: title}}
    return [{"step": s, "loss": 1 / s, "validation_loss": 2 / s, "norms": dict.fromkeys(layers, 0.1 * s),
             "looks": [look]} for s in range(1, 4)]


PICTURES = {
    "heatmap": lambda: heatmap(EVEN, NASTY, NASTY, BAD, gold=[(0, 0)]),
    "heatmaps": lambda: heatmaps([(EVEN, NASTY, NASTY, BAD, [(0, 1)])] * 3, title=BAD),
    "grid": lambda: grid([(EVEN, NASTY, NASTY, BAD, (), {"layer": i, BAD: j}) for i in (1, 2) for j in (1, 2)]),
    "lines": lambda: lines(np.stack([EVEN, EVEN]), NASTY, NASTY, BAD, gold=[(0, 0)], least=0, sides=(BAD, BAD)),
    "tinted": lambda: tinted([(NASTY, EVEN[0], 0.5)] * 2, BAD, gold=[(0, 0), (1, 0)], asked=[(0, 1), (1, 1)]),
    "hops": lambda: hops(EVEN[:2], NASTY, BAD, names=[BAD, BAD], gold=[0]),
    "penalty": lambda: penalty(EVEN[:3], title=BAD, tokens=NASTY, names=[BAD] * 3),
    **{f"positions {kind}": lambda kind=kind: positions(kind) for kind in ("sinusoid", "rope", "shaw", "distance")},
    "masks": lambda: masks(words=NASTY[:6], title=BAD),
    "own masks": lambda: masks({BAD: np.eye(N, dtype=bool), "b": np.eye(N, dtype=bool)}, rows=NASTY, columns=NASTY),
    "panels": lambda: example_panels(find("multi_head"), title=BAD),
    "curves": lambda: curves({BAD: log(), "b": log()}, title=BAD),
    "curves of groups": lambda: curves({BAD: [log(), log()], "b": [log(), log()]}, title=BAD),
    "norms": lambda: norms(log(("a", BAD)), title=BAD),
    "many norms": lambda: norms(log([*(t + str(i) for i, t in enumerate(NASTY))]), title=BAD),
    "frames": lambda: frames(log(title=BAD), BAD).figure(),
    "scores": lambda: scores_by_group({BAD: [(t, 2, 3.0) for t in NASTY[:3]], "b": [(t, 2, 3.0) for t in NASTY[:3]]},
                                      title=BAD, of=BAD, score=BAD),
    "many scores": lambda: scores_by_group({BAD: [(t, 2, 3.0) for t in NASTY]}, title=BAD, of=BAD, score=BAD),
}


@pytest.mark.parametrize("draw", PICTURES.values(), ids=PICTURES)
def test_every_picture_is_sound_svg_with_each_id_once_whatever_its_texts_are(draw, recwarn, capfd):
    fig = draw()
    names = [thing.get_gid() for thing in fig.findobj() if thing.get_gid()]
    assert len(names) == len(set(names))
    svg = save_bytes(fig, "svg").decode("utf-8")
    xml.dom.minidom.parseString(svg.encode("utf-8"))
    for text in (svg, inline(svg, "in a page")):
        ids = Counter(re.findall(r'<[^<>]*\sid="([^"]+)"', text))
        assert ids and max(ids.values()) == 1, ids.most_common(3)
        pointed = set(re.findall(r'<(?!!)[^<>]*(?:url\(|href=")#([^")]+)', text))
        assert pointed <= set(ids), pointed - set(ids)
    assert not recwarn.list and capfd.readouterr().err == ""


def test_a_word_that_looks_like_an_id_stays_as_it_is_in_a_page():
    svg = save_bytes(heatmap([[1.0]], ['\U00010000 id="x" href="#x"'], ["a"]), "svg").decode("utf-8")  # no font has it
    assert '\U00010000 id="x" href="#x"<' in svg and '\U00010000 id="x" href="#x"<' in inline(svg)


# ---------------------------------------------------------------------------------------------------------------------
# numbers and logs
# ---------------------------------------------------------------------------------------------------------------------
ROW = ["a", "b", "c"]


@pytest.mark.parametrize("draw", [lambda w: heatmap(w, ROW, ROW), lambda w: lines(w, ROW, ROW), lambda w: hops(w, ROW),
                                  lambda w: penalty(w, tokens=ROW), lambda w: positions("learned", table=w)],
                         ids=["heatmap", "lines", "hops", "penalty", "positions"])
def test_lists_of_unequal_lengths_and_numbers_that_no_axis_shows_are_refused(draw, recwarn):
    with pytest.raises(InputError, match="lists of unequal lengths"):
        draw([[1], [1, 2], [3]])
    for sign in (1, -1):
        with pytest.raises(InputError, match="up to 1e30, got 1e\\+308"):
            draw(np.full((3, 3), sign * 1e308))
    draw(np.eye(3, dtype=np.float16))
    assert not recwarn.list


def test_a_refusal_is_one_line_also_where_the_title_has_two():
    with pytest.raises(InputError) as problem:
        heatmap([[1.0, 2.0]], ["a"], ["b"], "two\nlines")
    assert "(two, lines)" in str(problem.value) and "\n" not in str(problem.value)
    with pytest.raises(InputError) as problem:
        masks({"two\nlines": np.ones((2, 2))})
    assert "\n" not in str(problem.value)


def changed(**values):
    return [{**record, **values} for record in log()]


@pytest.mark.parametrize("step", ["1", -1, math.nan, math.inf, [1], None, True, 10 ** 30, 10 ** 400])
def test_steps_that_are_none_are_named(step):
    for draw in (lambda records: curves({"a": records}), norms, frames):
        with pytest.raises(InputError, match="step"):
            draw(changed(step=step))
        with pytest.raises(InputError, match="step"):
            draw([*log(), *changed(step=step)])


@pytest.mark.parametrize("records", [[[1, 2]], ["a"], [None], [*log(), None], {"step": 1, "loss": 2.0}, "log.jsonl", 3])
def test_what_is_no_log_is_refused(records):
    for draw in (lambda r: curves({"a": r}), lambda r: curves({"a": [log(), r]}), norms, frames):
        with pytest.raises(InputError, match="expected (the records of a log|records with|the folder of a run)"):
            draw(records)


def test_numbers_at_the_edge_of_floats_are_drawn_without_a_word(recwarn):
    edges = [1e308, -1e308, 5e-324, 1e99, -1e99, 10 ** 400, 10 ** 99, math.nan, 0.0, 1e-99]
    records = [{"step": s, "loss": x, "validation_loss": abs(x), "norms": {"a": x, "b": 1.0}}
               for s, x in enumerate(edges)]
    for how in ({}, {"log": True}, {"window": 3}):
        save_bytes(curves({"a": records}, **how), "svg")
    for spread in ("range", "sd"):
        save_bytes(curves({"a": [records, records[::-1]]}, spread=spread), "svg")
    save_bytes(norms(records), "svg")
    save_bytes(norms(changed(norms={f"m.{i}": 1e99 for i in range(60)})), "svg")
    assert not recwarn.list


def test_numbers_of_numpy_are_numbers(recwarn):
    records = [{"step": np.int64(s), "loss": np.float32(s), "norms": {"a": np.float32(s)}} for s in (1, 2)]
    assert list(curves({"": records}).axes[0].lines[0].get_ydata()) == [1, 2] and norms(records).axes
    assert not recwarn.list


@pytest.mark.parametrize("wrong, says", [
    (lambda: curves([log()]), "{label: records}"), (lambda: curves({"a": log()}, window=-3), "0 or more points"),
    (lambda: scores_by_group([]), "{label: rows}"), (lambda: scores_by_group({"a": [("x", 1)]}), "('x', 1)"),
    (lambda: scores_by_group({"a": [("x", 1, math.nan)]}), "0 to 100"),
    (lambda: scores_by_group({"a": [("x", "n", 1.0)]}), "number of samples"),
    (lambda: frames(log()).figure(look=None), "number of a map"), (lambda: frames(log()).figure(count=2.5), "2 frames"),
    (lambda: masks(path=7), "a file name, got 7")])
def test_refusals_in_one_line(wrong, says):
    with pytest.raises(InputError, match=re.escape(says)) as problem:
        wrong()
    assert "\n" not in str(problem.value)


# ---------------------------------------------------------------------------------------------------------------------
# files
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["nul\0.svg", "\ud800.svg", "no\nsuch/x.svg", "x" * 300 + ".svg", "folder.svg"])
def test_names_that_no_file_can_have_are_one_line_and_leave_nothing(name, tmp_path):
    (tmp_path / "folder.svg").mkdir()
    with pytest.raises(InputError, match="^picture: cannot write ") as problem:
        masks("causal", f"{tmp_path}/{name}")
    assert "\n" not in str(problem.value) and [p.name for p in tmp_path.iterdir()] == ["folder.svg"]


@pytest.mark.skipif(sys.platform == "win32", reason="no limit on the size of files there")
def test_a_full_disk_leaves_the_old_picture_whole(tmp_path):
    import resource
    import signal
    path = tmp_path / "m.svg"
    path.write_text("old")
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))
    try:
        with pytest.raises(InputError, match="cannot write"):
            masks("causal", path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["m.svg"]


def test_a_page_with_halves_of_characters_is_written(tmp_path, opened):
    path = frames(log(title="\ud800 </script><script>window.ran = 1</script>")).save(tmp_path / "f.html")
    shown = opened(path)
    assert shown.inner_text("#title").startswith("\ufffd </script>") and shown.evaluate("window.ran") is None


# ---------------------------------------------------------------------------------------------------------------------
# runs
# ---------------------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "one"
    trained(folder, Looking, steps=4, validate_every=2, watch=1)
    return folder


@pytest.mark.parametrize("text", ["", "[1]\n[2]\n", '{"step": "1", "loss": 2.0}\n', "\x00\x01\n", '{"step": 1, "lo'])
@pytest.mark.parametrize("command", [["curves", "-o", "x.svg"], ["curves", "--what", "layers"], ["frames"]])
def test_a_log_with_nothing_in_it_is_one_line_that_says_why(command, text, run, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run, "r")
    (tmp_path / "r" / "log.jsonl").write_text(text)
    before = sorted(tmp_path.rglob("*"))
    assert main([*command, "r"]) == 2
    said = capfd.readouterr().err
    assert said.count("\n") == 1 and "no step has been logged yet" in said and sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("change, says", [({"seed": "x"}, "seed"), ({"options": []}, "config"),
                                          ({"digests": {"a": 5}}, "")])
def test_settings_that_are_none_name_their_run(change, says, run, tmp_path, capfd):
    shutil.copytree(run, tmp_path / "odd")
    config = json.loads((run / "config.json").read_text())
    (tmp_path / "odd" / "config.json").write_text(json.dumps({**config, **change}))
    code = main(["curves", str(run), str(tmp_path / "odd"), "-o", str(tmp_path / "x.svg")])
    said = capfd.readouterr().err
    assert code == (2 if says else 0) and (not says or f"odd: {says}" in said), said


def test_values_of_a_log_that_are_hostile_are_drawn_or_refused_but_never_crash(run, tmp_path, capfd):
    lines_ = [json.dumps(line) for line in checkpoint.read_log(run)]
    texts = {"nan": [t.replace('"loss": ', '"loss": NaN, "x": ') for t in lines_], "twice": lines_ * 2,
             "strings": [t.replace('"norms": {', '"norms": {"x": "y", ') for t in lines_],
             "looks": [t.replace('"looks": [', '"looks": [7, ') for t in lines_],
             "cut": [*lines_[:-1], lines_[-1][:20]]}
    for name, text in texts.items():
        shutil.copytree(run, tmp_path / name)
        (tmp_path / name / "log.jsonl").write_text("\n".join(text))
        for command in (["curves"], ["curves", "--what", "layers"], ["frames"]):
            path = tmp_path / f"{name}.svg"
            assert main([*command, str(tmp_path / name), "-o", str(path)]) in (0, 2)
            said = capfd.readouterr().err
            assert "Traceback" not in said and "Warning" not in said and "fault of ours" not in said


MINE = """from tinyattn.attention import variant, weigh


@variant(params={"w": "QK"}, paper="nobody")
def mine(q, k, v, w, mask=None, return_weights=False):
    return weigh(q @ w @ k.transpose(), v, mask, return_weights)
"""


def test_a_run_with_a_mechanism_of_ones_own_shows_it_if_asked_and_no_folders_of_this_machine(tmp_path, capfd):
    file, folder, page = tmp_path / "my.py", tmp_path / "own", tmp_path / "own.html"
    file.write_text(MINE)
    cls = systems.find("translate")
    options = cls.Options(attention=f"{file}:mine", hidden=8, embed=8)
    config = Config.proposed(cls, options, steps=2)
    train(cls.prepare(options, **config.sources(cls)), config, folder, stop_at=1)
    assert main(["show", str(folder), "-o", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert "--attention my.py:mine" in text and str(tmp_path) not in text
    assert main(["show", str(folder), "--attention", f"{file}:mine", "-o", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert "name the file" not in text and str(tmp_path) not in text and "<td>my.py:mine</td>" in text
    page.unlink()
    capfd.readouterr()
    assert main(["show", str(folder), "--attention", f"{tmp_path}/gone.py:mine", "-o", str(page)]) == 2
    assert "there is no file" in capfd.readouterr().err and not page.exists()
