"""Pictures of training: groups with their spread, gradient norms, attention over training, runs."""
import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from tiny_system import Tiny

import tinyattn.train as training
from tinyattn import checkpoint, systems
from tinyattn.cli import main
from tinyattn.errors import InputError
from tinyattn.models.system import Look, Prediction
from tinyattn.train import Config, train
from tinyattn.workers import measure
from viz import Run, curves, frames, norms
from viz.training.runs import by_group, by_run, find_runs
from viz.training.series import number, smooth, spread_of

pytest.importorskip("matplotlib")
HOSTILE = "</script><b>$x_1$ & \"q\" 日本 \\n"


class Looking(Tiny):
    """The tiny system with something to look at: it draws random numbers and switches the model's mode on the way."""
    name = "tiny"

    def examples(self, n=4):
        from tinyattn import random
        from tinyattn.tensor import Tensor
        assert not self.model.training
        random.next_seed()
        w = np.abs(self.model.inner(Tensor(self.x[:n])).numpy())
        w = w / w.sum(-1, keepdims=True)
        self.model.train()
        return [Prediction("", {}, [Look(w[i:i + 1], [HOSTILE], ["a", "a", "<pad>", "😀", "$"], f"sample {i}")])
                for i in range(n)]


def trained(folder=None, cls=Tiny, resume=False, stop_at=None, seed=1, **changes):
    system = cls(seed=seed)
    return train(system, Config.of(system, **{"seed": seed, **changes}), folder, resume=resume, stop_at=stop_at), system


def log_of(folder):
    return [{k: v for k, v in line.items() if k != "seconds"} for line in checkpoint.read_log(folder)]


def texts(fig):
    from matplotlib.text import Text
    return " | ".join(text.get_text() for text in fig.findobj(Text) if text.get_text())


# ---------------------------------------------------------------------------------------------------------------------
# what training writes down
# ---------------------------------------------------------------------------------------------------------------------
def test_norms_are_those_of_the_gradients_before_clipping(tmp_path):
    history, _ = trained(tmp_path / "r", clip=1e-3)
    noted = {line["step"]: line for line in log_of(tmp_path / "r") if "norms" in line}
    assert list(noted) == [1, 3, 6, 9, 10] and history.norms == [(s, line["norms"]) for s, line in noted.items()]
    for line in noted.values():
        assert list(line["norms"]) == ["inner", "outer"]
        assert math.hypot(*line["norms"].values()) == pytest.approx(line["norm"], rel=1e-6) and line["norm"] > 1e-2
    system = Tiny()
    loop = training._Loop(system, Config.of(system), None)
    loop.begin()
    loop.step()
    w, b = (t.grad.numpy().astype(float) for t in (system.model.inner.weight, system.model.inner.bias))
    assert loop._norms()["inner"] == pytest.approx(math.sqrt((w ** 2).sum() + (b ** 2).sum()))
    assert training._norm(np.full(4, 1e200)) == 2e200 and training._norm(np.zeros(3)) == 0


def test_norms_and_looks_change_no_number_of_the_run(tmp_path, monkeypatch):
    trained(tmp_path / "with")
    trained(tmp_path / "watched", Looking, watch=2)
    monkeypatch.setattr(training._Loop, "_norms_due", lambda self: False)
    trained(tmp_path / "without")
    found = {name: checkpoint.load(tmp_path / name) for name in ("with", "watched", "without")}
    plain = found["without"]
    for name in ("with", "watched"):
        for part in checkpoint.PARTS:
            one, two = getattr(found[name], part), getattr(plain, part)
            assert one.keys() == two.keys() and all(np.array_equal(one[k], two[k]) for k in one), (name, part)
        assert {**found[name].state, "seconds": 0} == {**plain.state, "seconds": 0}
        lines = [{k: v for k, v in line.items() if k != "norms"} for line in log_of(tmp_path / name)
                 if "looks" not in line]
        assert lines == log_of(tmp_path / "without")
    assert any("norms" in line for line in log_of(tmp_path / "with"))


@pytest.mark.parametrize("stop_at", [0, 3, 5])
def test_looks_are_noted_and_cut_back_on_resume(tmp_path, stop_at):
    history, system = trained(tmp_path / "whole", Looking, watch=2)
    assert [step for step, _ in history.looks] == [0, 3, 6, 9, 10]
    trained(tmp_path / "parts", Looking, watch=2, stop_at=stop_at)
    with open(tmp_path / "parts" / "log.jsonl", "a", encoding="utf-8") as log:
        log.write('{"step": 9, "looks": []}\n{"step": 6, "looks": [{"ti')
    again, _ = trained(tmp_path / "parts", Looking, watch=2, resume=True)
    assert log_of(tmp_path / "parts") == log_of(tmp_path / "whole")
    assert again.looks == history.looks and again.norms == history.norms
    one = history.looks[-1][1][0]
    assert one["columns"] == ["a", "a", "<pad>", "😀", "$"] and one["rows"] == [HOSTILE]
    assert history.looks[0][1] != history.looks[-1][1]
    assert all(w == round(w, 4) for w in one["weights"][0]) and sum(one["weights"][0]) == pytest.approx(1, abs=1e-3)


def test_a_kill_before_anything_of_the_log_is_on_the_disk_loses_no_look(tmp_path):
    trained(tmp_path / "whole", Looking, steps=4, validate_every=2, watch=1)
    trained(tmp_path / "killed", Looking, stop_at=0, steps=4, validate_every=2, watch=1)
    (tmp_path / "killed" / "log.jsonl").write_text("")  # its lines had not been written when it was killed
    trained(tmp_path / "killed", Looking, resume=True, steps=4, validate_every=2, watch=1)
    assert log_of(tmp_path / "killed") == log_of(tmp_path / "whole")


def test_watching_may_begin_or_end_on_resume_and_asks_for_something_to_see(tmp_path):
    trained(tmp_path / "r", Looking, stop_at=5)
    trained(tmp_path / "r", Looking, watch=1, resume=True)
    assert [line["step"] for line in log_of(tmp_path / "r") if "looks" in line] == [6, 9, 10]

    class Blind(Tiny):
        def examples(self, n=4):
            return [Prediction("", {})]
    with pytest.raises(InputError, match="^watch: tiny .* no attention"):
        trained(tmp_path / "b", Blind, watch=1)
    assert not (tmp_path / "b").exists()


def test_a_run_from_before_there_were_such_settings_is_read():
    given = Config.of(Tiny()).to_json()
    del given["watch"]
    assert Config.from_json(given).watch == 0
    with pytest.raises(InputError, match="^watch: expected a whole number"):
        replace(Config.of(Tiny()), watch=-1).checked()


@pytest.mark.parametrize("name", ["aspects", "qa", "sense"])
def test_watching_a_real_system_changes_no_bit(name, tmp_path):
    cls, saved = systems.find(name), []
    for watch in (0, 2):
        system = cls.prepare(cls.Options(), seed=1)
        history = train(system, Config.of(system, steps=4, validate_every=2, watch=watch), tmp_path / str(watch))
        saved.append((history.losses, history.validation, checkpoint.load(tmp_path / str(watch)).model))
    (losses, valid, one), (others, other, two) = saved
    assert losses == others and valid == other and all(np.array_equal(one[k], two[k]) for k in one)
    assert [step for step, _ in history.looks] == [0, 2, 4] and all(looks for _, looks in history.looks)
    assert frames(history).figure().axes


# ---------------------------------------------------------------------------------------------------------------------
# curves of groups
# ---------------------------------------------------------------------------------------------------------------------
def log(*losses, every=2, **more):
    return [{"step": i + 1, "loss": x, **({"validation_loss": x + 1} if (i + 1) % every == 0 else {}), **more}
            for i, x in enumerate(losses)]


def band_of(axes):
    """The corners of the band of an axes, {step: (low, high)}."""
    from matplotlib.collections import PolyCollection
    band, = axes.findobj(PolyCollection)
    found = {}
    for step, y in band.get_paths()[0].vertices:
        found.setdefault(round(step), []).append(y)
    return {step: (min(ys), max(ys)) for step, ys in found.items()}


def test_a_group_is_its_mean_its_band_and_each_run(tmp_path):
    runs = [log(4.0, 3.0, 2.0, 1.0), log(6.0, 5.0, 4.0, 3.0, 2.0, 1.0), log(5.0, 4.0, 3.0, 2.0)]
    fig = curves({"GRU $x$": runs, "alone": log(3.0, 3.0)}, tmp_path / "c.svg", "title_1")
    train_axes, valid_axes = fig.axes
    assert [axes.get_title() for axes in fig.axes] == ["training", "validation"]
    faint = [line for line in train_axes.get_lines() if line.get_alpha() is not None]
    mean, alone = [line for line in train_axes.get_lines() if line.get_alpha() is None]
    assert len(faint) == 3 and len(faint[1].get_xdata()) == 6
    np.testing.assert_allclose(mean.get_xydata(), [(1, 5), (2, 4), (3, 3), (4, 2)])  # where all three have a step
    assert band_of(train_axes) == {1: (4, 6), 2: (3, 5), 3: (2, 4), 4: (1, 3)}
    assert set(band_of(valid_axes)) == {2, 4}
    assert (mean.get_color(), mean.get_marker(), mean.get_linestyle()) != (
        alone.get_color(), alone.get_marker(), alone.get_linestyle())
    assert mean.get_marker() != alone.get_marker() and mean.get_linestyle() != alone.get_linestyle()
    said = texts(fig)
    assert "GRU $x$, n = 3" in said and "lowest to highest" in said and "alone" in said and "title_1" in said
    sd = curves({"GRU": runs}, spread="sd")
    assert band_of(sd.axes[0])[1] == pytest.approx((4, 6)) and "± 1 standard deviation" in texts(sd)  # n - 1: sd is 1
    curves({"GRU $x$": runs, "alone": log(3.0, 3.0)}, tmp_path / "d.svg", "title_1")
    assert (tmp_path / "c.svg").read_bytes() == (tmp_path / "d.svg").read_bytes()


def test_many_runs_are_told_apart_by_more_than_colour():
    fig = curves({f"run {i}": log(*np.linspace(3 + i, 1, 8)) for i in range(20)})
    looks = [(line.get_color(), line.get_marker(), str(line.get_linestyle())) for line in fig.axes[0].get_lines()]
    assert len(set(looks)) == 20
    with pytest.raises(InputError, match="at most 24 lines, got 25"):
        curves({str(i): log(1.0) for i in range(25)})


def test_other_figures_and_axes():
    runs = {"a": log(3.0, 1.0, rate=0.1, norm=2.0), "b": log(3.0, 1.0, rate=0.2, norm=1e-9)}
    for what, name in (("rate", "learning rate"), ("norm", "norm of the whole gradient")):
        axes, = curves(runs, what=what).axes
        assert name in axes.get_ylabel() and len(axes.get_lines()) == 2
    assert axes.get_yscale() == "log" and curves(runs, what="rate", log=True).axes[0].get_yscale() == "log"
    assert curves({"a": log(*[5.0, 0.001] * 5)}, log=False).axes[0].get_yscale() == "linear"
    assert curves({"a": log(-1.0, 2.0)}, log=True).axes[0].get_yscale() == "log"  # what has a logarithm is seen
    assert curves({"a": log(-1.0, -2.0)}, log=True).axes[0].get_yscale() == "linear"
    for wrong in ({"what": "x"}, {"spread": "x"}):
        with pytest.raises(InputError, match="expected one of"):
            curves(runs, **wrong)


def test_values_that_are_none_are_left_out():
    strange = [{"step": 1, "loss": "3"}, {"step": 2, "loss": True}, {"step": 3, "loss": 10 ** 400},
               {"step": 4, "loss": math.inf}, {"step": 5, "loss": [1]}, {"step": 6, "loss": 2}]
    line, = curves({"a": strange}).axes[0].get_lines()
    assert line.get_xydata().tolist() == [[6, 2]]
    assert number(None) is None and number(3) == 3.0


def test_groups_without_a_common_step_and_empty_members_are_drawn():
    fig = curves({"a": [[{"step": 1, "loss": 1.0}], [{"step": 2, "loss": 2.0}]], "b": [[], log(1.0, 2.0)]})
    assert "a, n = 2" in texts(fig) and "b, n = 1" in texts(fig)
    with pytest.raises(InputError, match="got none"):
        curves({"a": [[], []], "b": []})


def test_running_means_and_spread_against_plain_loops():
    line = [(i, float(i * i % 7)) for i in range(30)]
    found = smooth(line, 5)
    assert [x for x, _ in found] == [x for x, _ in line]
    for i, (_, y) in enumerate(found):
        part = [v for _, v in line[max(0, i - 2):i + 3]]
        assert y == pytest.approx(sum(part) / len(part))
    assert smooth(line) is None and smooth(line, 0) is None and smooth([], 9) is None and smooth(line * 3) is not None
    assert spread_of([[(1, 1.0)], [(2, 2.0)]]) == [] and spread_of([[(1, 1.0), (2, 4.0)]], "sd") == [
        (1, 1, 1, 1), (2, 4, 4, 4)]


def test_a_history_can_be_drawn():
    history, _ = trained(cls=Looking, watch=1)
    axes, = curves({"mine": history}).axes
    assert len(axes.get_lines()) == 2 and len(axes.get_lines()[0].get_xdata()) == 10
    assert norms(history).axes and frames(history).steps == [0, 3, 6, 9, 10]


# ---------------------------------------------------------------------------------------------------------------------
# gradient norms
# ---------------------------------------------------------------------------------------------------------------------
def norm_log(layers, steps=5):
    return [{"step": 10 * s, "norms": {f"layer.{i}": 10.0 ** (i - layers) for i in range(layers)}}
            for s in range(steps)]


def test_few_layers_are_lines_with_their_names_at_the_ends(tmp_path):
    records = norm_log(3)
    records[2]["norms"]["layer.1"] = 0
    del records[3]["norms"]["layer.0"]
    fig = norms(records, tmp_path / "a.svg", "a_$b$")
    axes, = fig.axes
    lines = axes.get_lines()[:3]
    assert axes.get_yscale() == "log" and np.isnan(lines[0].get_ydata()[3])  # a gap, not 0
    ticks = dict(zip(axes.get_yticks(), [t.get_text() for t in axes.get_yticklabels()], strict=True))
    assert ticks[lines[1].get_ydata()[2]] == "0"
    names = [t for t in axes.texts if t.get_text().startswith("layer")]
    assert sorted(t.get_text() for t in names) == ["layer.0  0.001", "layer.1  0.01", "layer.2  0.1"]
    heights = [t.get_position()[1] for t in names]
    assert heights == sorted(heights) and len({line.get_marker() for line in lines}) == 3
    norms(records, tmp_path / "b.svg", "a_$b$")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_equal_ends_do_not_write_over_each_other():
    records = [{"step": s, "norms": {f"l{i}": 1.0 for i in range(7)}} for s in range(3)]
    heights = sorted(t.get_position()[1] for t in norms(records).axes[0].texts if t.get_text().startswith("l"))
    assert len(heights) == 7 and min(np.diff(heights)) > 0.06 and max(heights) <= 1


def test_many_layers_are_rows_of_a_map_and_very_many_are_joined():
    axes, bar = norms(norm_log(12)).axes
    assert [t.get_text() for t in axes.get_yticklabels()] == [f"layer.{i}" for i in range(12)]
    assert axes.get_images()[0].get_array().shape == (12, 5) and "norm" in bar.get_ylabel()
    parts = {"a": 3.0, "b": 4.0}
    many = [{"step": 1, "norms": {f"stack.{i}.{part}": norm for i in range(30) for part, norm in parts.items()}}]
    axes, _ = norms(many).axes
    assert len(axes.get_yticklabels()) == 30 and np.allclose(axes.get_images()[0].get_array(), 5.0)
    long = [{"step": s, "norms": {f"l{i}": 1.0 + s for i in range(9)}} for s in range(1000)]
    assert norms(long).axes[0].get_images()[0].get_array().shape == (9, 120)
    zero = norm_log(9)
    zero[1]["norms"]["layer.4"], zero[2]["norms"]["layer.5"] = 0, None
    assert sorted(t.get_text() for t in norms(zero).axes[0].texts) == ["0", "–"]


@pytest.mark.parametrize("records", [[], [{"step": 1, "loss": 1.0}], [{"step": 1, "norms": [1]}],
                                     [{"norms": {"a": 1.0}}], [{"step": 1, "norms": {"a": "x", "b": -1, "c": None}}]])
def test_logs_without_norms_are_refused_in_one_line(records):
    with pytest.raises(InputError, match="^norms: expected records .*none"):
        norms(records)


def test_norms_of_nothing_but_zero_are_drawn():
    assert norms([{"step": 1, "norms": {"a": 0}}]).axes
    assert norms([{"step": 1, "norms": {f"a{i}": 0 for i in range(9)}}]).axes


# ---------------------------------------------------------------------------------------------------------------------
# attention over training
# ---------------------------------------------------------------------------------------------------------------------
def look_log(steps=12, looks=2):
    return [{"step": 5 * s, "looks": [
        {"title": f"sample {i}: {HOSTILE}", "rows": ["r 1", HOSTILE], "columns": ["<pad>", "<pad>", "日本"],
         "weights": [[round(s / 20 + 0.01 * i, 4), 0.25, 0.1234], [0.5, 0.3, 0.2]]} for i in range(looks)]}
            for s in range(steps)] + [{"step": 5 * s, "validation_loss": 2.0 - s / 10} for s in range(1, steps)]


def test_frames_side_by_side_have_the_first_and_the_last(tmp_path):
    made = frames(look_log(), "a run")
    fig = made.figure()
    maps = [axes for axes in fig.axes if axes.get_images()]
    heads = [axes.get_title().split("\n")[:2] for axes in maps]
    assert len(maps) == 8 and heads[0] == ["step 0", "before training"]
    assert heads[-1] == ["step 55", "validation loss 0.900"]
    assert maps[-1].get_images()[0].get_array()[0, 0] == 0.55
    assert [t.get_text() for t in maps[0].get_xticklabels()] == ["<pad>", "<pad>", "日本"]
    assert made.figure(look=1).axes[0].get_images()[0].get_array()[0, 0] == 0.01
    made.save(tmp_path / "a.svg")
    frames(look_log(), "a run").save(tmp_path / "b.svg")
    made.save(tmp_path / "a.html")
    frames(look_log(), "a run").save(tmp_path / "b.html")
    for kind in ("svg", "html"):
        assert (tmp_path / f"a.{kind}").read_bytes() == (tmp_path / f"b.{kind}").read_bytes()


@pytest.mark.parametrize("wrong, says", [
    (lambda: frames([]), "--watch"), (lambda: frames([{"step": 1, "looks": "x"}]), "none"),
    (lambda: frames([{"step": 1, "looks": [{"rows": ["a"], "columns": ["b"], "weights": [[None]]}]}]), "none"),
    (lambda: frames([{"step": 1, "looks": [{"rows": ["a"], "columns": ["b"], "weights": [[1.0, 2.0]]}]}]), "none"),
    (lambda: frames([{"step": 1, "looks": [None, {"rows": [], "columns": [], "weights": []}]}]), "none"),
    (lambda: frames(look_log()).figure(look=2), "1 to 2, got 3"), (lambda: frames(look_log()).figure(count=1), "got 1"),
    (lambda: frames(look_log()).save("x.gif"), "x.gif"), (lambda: frames(look_log()).save("no/dir/x.html"), "no/dir")])
def test_clear_refusals_of_frames(wrong, says):
    with pytest.raises(InputError) as error:
        wrong()
    assert says in str(error.value) and "\n" not in str(error.value)


def test_the_page_of_frames_plays_and_shows_the_numbers_of_the_log(tmp_path, opened):
    records = look_log(4)
    shown = opened(frames(records, HOSTILE).save(tmp_path / "f.html"))

    def weights():
        return [[float(cell.get_attribute("data-w")) for cell in row.query_selector_all("td")]
                for row in shown.query_selector_all("#map tbody tr")]

    def says(i, look=0):
        step = records[i]["step"]
        assert shown.inner_text("#said").startswith(f"step {step}, ")
        assert f"(frame {i + 1} of 4)" in shown.inner_text("#said")
        assert shown.get_attribute("#map", "data-step") == str(step) and shown.input_value("#slider") == str(i)
        assert weights() == records[i]["looks"][look]["weights"]
        assert shown.get_attribute("#curve line", "data-step") == str(step)

    says(0)
    assert "before training" in shown.inner_text("#said") and shown.is_disabled("#previous")
    assert [t.inner_text() for t in shown.query_selector_all("#map thead th")] == ["<pad>", "<pad>", "日本"]
    assert shown.inner_text("#map tbody tr:nth-child(2) th") == HOSTILE and shown.inner_text("h1") == HOSTILE
    shown.click("#next")
    says(1)
    for key, i in (("ArrowRight", 2), ("End", 3), ("ArrowRight", 3), ("ArrowLeft", 2), ("Home", 0)):
        shown.keyboard.press(key)
        says(i)
    shown.fill("#slider", "2")
    says(2)
    assert "validation loss 1.800" in shown.inner_text("#said")
    shown.select_option("#look", "1")
    says(2, look=1)
    shown.hover("#map tbody tr:nth-child(1) td:nth-child(4)")
    assert "column 3: weight 0.1234" in shown.inner_text("#cell") and "日本" in shown.inner_text("#cell")
    assert shown.query_selector("#map td.at").get_attribute("data-w") == "0.1234"
    shown.click("#last")
    shown.click("#play")  # from the end it begins again
    assert "Pause" in shown.inner_text("#play")
    says(0, look=1)
    shown.wait_for_selector('#map[data-step="15"]', timeout=5000)
    says(3, look=1)
    assert "Play" in shown.inner_text("#play") and shown.is_disabled("#next")
    shown.keyboard.press("Home")
    shown.focus("#slider")
    shown.keyboard.press(" ")
    shown.wait_for_selector('#map[data-step="5"]', timeout=5000)
    shown.keyboard.press(" ")
    at = shown.get_attribute("#map", "data-step")
    shown.wait_for_timeout(1000)
    assert shown.get_attribute("#map", "data-step") == at and "Play" in shown.inner_text("#play")


def test_the_page_fits_a_projector(tmp_path, opened):
    tall = [{"step": s, "looks": [{"title": "t", "rows": [f"row{i}" for i in range(14)],
                                   "columns": [f"word{i}" for i in range(14)],
                                   "weights": np.eye(14).tolist()}]} for s in (0, 10)]
    shown = opened(frames(tall).save(tmp_path / "f.html"))
    box = shown.query_selector("#map table").bounding_box()
    assert box["y"] + box["height"] < 720 and box["x"] + box["width"] <= 1280
    assert shown.evaluate("document.documentElement.scrollWidth") <= 1280


# ---------------------------------------------------------------------------------------------------------------------
# folders of runs, and the commands
# ---------------------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """qa with 3 seeds and another width with 1, 6 steps each; the first is watched."""
    folder, cls = tmp_path_factory.mktemp("runs"), systems.find("qa")
    options = ["--tasks", "1", "--hidden", "8", "--steps", "6", "--validate-every", "2", "--run", str(folder / "8-1")]
    assert main(["train", "qa", *options, "--watch"]) == 0
    for hidden, seed in ((8, 2), (8, 3), (12, 1)):
        system = cls.prepare(cls.Options(tasks="1", hidden=hidden), seed=seed)
        config, where = Config.of(system, steps=6, validate_every=2, seed=seed), folder / f"{hidden}-{seed}"
        measure(where, system, config, train(system, config, where))
    return folder


def test_runs_are_found_and_grouped_by_all_but_the_seed(folder):
    runs = find_runs([folder, folder / "8-1"])  # named twice, once there
    assert len(runs) == 4 and set(by_run(runs)) == {"8-1", "8-2", "8-3", "12-1"}
    groups = by_group(runs)
    assert {label: len(members) for label, members in groups.items()} == {"hidden 8": 3, "hidden 12": 1}
    assert list(by_group(runs[:1])) == ["qa, attention memn2n"]
    with pytest.raises(InputError, match="absent: expected the folder of a run, or of several, found no such folder"):
        find_runs(["absent"])


def test_the_command_draws_groups_and_says_what_is_odd(folder, tmp_path, capfd):
    assert main(["curves", str(folder), "-o", str(tmp_path / "c.svg"), "--title", "$x_1$"]) == 0
    shown = capfd.readouterr()
    assert shown.out == f"{tmp_path / 'c.svg'}\n" and shown.err == ""
    for more in (["--by", "run"], ["--what", "norm", "--log", "--smooth", "3"], ["--what", "rate", "--spread", "sd"]):
        assert main(["curves", str(folder), "-o", str(tmp_path / "m.pdf"), *more]) == 0
    assert main(["curves", str(folder / "8-2"), "--what", "layers", "-o", str(tmp_path / "l.png")]) == 0
    capfd.readouterr()
    assert main(["curves", str(folder), "--what", "layers", "-o", str(tmp_path / "no.png")]) == 2
    said = capfd.readouterr().err
    assert "expected one run, got 4" in said and f"tinyattn curves {folder / '12-1'} --what layers" in said
    assert not (tmp_path / "no.png").exists()
    assert main(["curves", str(tmp_path), "-o", str(tmp_path / "no.png")]) == 2
    assert main(["curves", str(folder), "-o", str(tmp_path / "no.gif")]) == 2
    assert "no.gif" in capfd.readouterr().err


def copy_of(folder, to, cut=None):
    import shutil
    shutil.copytree(folder, to)
    (to / "metrics.json").unlink()
    if cut is not None:
        text = (to / "log.jsonl").read_text(encoding="utf-8")
        (to / "log.jsonl").write_text(text[:cut], encoding="utf-8")


def test_unfinished_empty_and_cut_logs(folder, tmp_path, capfd):
    text = (folder / "8-2" / "log.jsonl").read_text(encoding="utf-8")
    third = text.index('{"step": 3')
    copy_of(folder / "8-2", tmp_path / "all" / "cut", third + 20)
    copy_of(folder / "8-3", tmp_path / "all" / "empty", 0)
    copy_of(folder / "8-1", tmp_path / "all" / "whole")
    assert main(["curves", str(tmp_path / "all"), "-o", str(tmp_path / "c.svg")]) == 0
    said = " ".join(capfd.readouterr().err.split())
    for text in ("cut: left out 1 line of log.jsonl", "cut: unfinished (no metrics.json), at step 2 of 6",
                 "empty: no step has been logged", "the mean ends at step 2", "the longest has 6"):
        assert text in said, text
    assert main(["curves", str(tmp_path / "all" / "empty"), "-o", str(tmp_path / "e.svg")]) == 2
    assert "nothing to draw" in capfd.readouterr().err and not (tmp_path / "e.svg").exists()
    old = tmp_path / "old"
    copy_of(folder / "8-2", old)
    lines = [{k: v for k, v in line.items() if k != "norms"} for line in checkpoint.read_log(old)]
    (old / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    assert main(["curves", str(old), "--what", "layers", "-o", str(tmp_path / "n.svg")]) == 2
    assert "has no norms by layer" in capfd.readouterr().err
    copy_of(folder / "8-2", tmp_path / "all" / "twin")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "config.json").write_text("[" * 100_000)
    (tmp_path / "bad" / "log.jsonl").write_text("")
    assert main(["curves", str(tmp_path / "bad"), "-o", str(tmp_path / "n.svg")]) == 2
    assert "expected JSON" in capfd.readouterr().err


def test_a_folder_stands_for_the_records_in_it(folder):
    run = str(folder / "8-1")
    for given in (run, folder / "8-1"):
        line = curves({"a": given}).axes[0].lines[-1]
        assert list(line.get_xdata()) == list(curves({"a": Run(run)}).axes[0].lines[-1].get_xdata())
        assert norms(given).axes and frames(given).steps == frames(Run(run)).steps
    assert len(curves({"a": [run, folder / "8-2"]}).axes) == 2
    with pytest.raises(InputError, match="no.such"):
        curves({"a": "no.such"})


def test_the_commands_frames_and_show(folder, tmp_path, capfd, opened):
    assert main(["frames", str(folder / "8-1"), "-o", str(tmp_path / "f.html")]) == 0
    assert main(["frames", str(folder / "8-1"), "-o", str(tmp_path / "f.png"), "-n", "3"]) == 0
    assert main(["frames", str(folder / "8-1"), "-o", str(tmp_path / "g.png"), "--map", "99"]) == 2
    assert main(["frames", str(folder / "8-2"), "-o", str(tmp_path / "g.html")]) == 2
    assert "train it with --watch" in capfd.readouterr().err and not (tmp_path / "g.html").exists()
    shown = opened(tmp_path / "f.html")
    looks = [line["looks"] for line in checkpoint.read_log(folder / "8-1") if "looks" in line]
    shown.keyboard.press("End")
    assert [float(cell.get_attribute("data-w")) for cell in shown.query_selector_all("#map tbody td")] == [
        w for column in zip(*looks[-1][0]["weights"], strict=True) for w in column]  # sentences are rows
    rows = [cell.inner_text() for cell in shown.query_selector_all("#map tbody th")]
    assert rows == looks[-1][0]["columns"] and rows[-1] == "(empty slots)"
    np.testing.assert_allclose(np.sum(looks[-1][0]["weights"], 1), 1, atol=1e-3)
    shown.hover("#map tbody tr:nth-child(2) td:nth-child(2)")
    assert shown.inner_text("#cell").startswith(f"hop 1, column 1, looks at {rows[1]}, row 2: weight ")
    assert main(["show", str(folder / "8-1"), "-o", str(tmp_path / "run.html")]) == 0
    assert main(["show", str(folder / "8-1"), "-o", str(tmp_path / "again.html")]) == 0
    text = (tmp_path / "run.html").read_text(encoding="utf-8")
    assert text == (tmp_path / "again.html").read_text(encoding="utf-8")
    ids = re.findall(r'\sid="([^"]+)"', text)
    assert len(ids) == len(set(ids)) and str(folder) not in text
    page = opened(tmp_path / "run.html")
    said = page.inner_text("body")
    metrics = json.loads((folder / "8-1" / "metrics.json").read_text(encoding="utf-8"))
    assert f"{metrics['validation_loss']:.5g}" in said and f"{metrics['parameters']:,}" in said
    for heading in ("Figures", "Loss", "What it looks at", "Gradient by layer", "Attention over training", "Settings"):
        assert heading in said, heading
    assert page.locator("figure svg").count() >= 5
    assert main(["show", str(folder / "8-1"), "-o", str(tmp_path / "run.svg")]) == 2
    assert main(["show", str(tmp_path), "-o", str(tmp_path / "no.html")]) == 2


def test_a_page_of_a_run_shows_what_it_can(folder, tmp_path):
    """Without a checkpoint there is no system, and a hostile folder's words are words."""
    copy_of(folder / "8-2", tmp_path / "r")
    (tmp_path / "r" / "model.safetensors").write_bytes(b"no")
    config = json.loads((tmp_path / "r" / "config.json").read_text(encoding="utf-8"))
    config["options"]["attention"] = HOSTILE
    (tmp_path / "r" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    text = Run(tmp_path / "r").html()
    assert "cut off or damaged" in text and "unfinished (no metrics.json), at step 6 of 6" in text
    assert str(tmp_path) not in text
    assert "<script" not in text and "<b>" not in text and "&lt;/script&gt;" in text
