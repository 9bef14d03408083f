"""`tinyattn compare SYSTEM`: a grid of runs, every attention with every seed, as tables and a picture."""
import math
import os
import re
import shlex
import sys
from dataclasses import fields, replace
from pathlib import Path

import click

from .. import systems
from ..errors import InputError
from .console import columns, note, out, out_json
from .options import absolute_mechanism, data_options, given, setting_options, system_options
from .progress import Bar, duration
from .train import RUNS, Systems, new_name

WIDTH = 100  # of a table on the console
NO_SCIPY = 'the intervals of differences need SciPy: pip install "tinyattn[compare]"'

WARNING = """Trains SYSTEM with every attention and every seed, and shows two tables in one. Extrinsic: the score of the
task, with attention and without (none). Intrinsic: how well the attention itself agrees with gold alignments or gold
attention, where the data have them.

A better score cannot be credited to attention alone (Hu 2018, section 5.1): with it change the number of parameters,
the steps that fit into a time, the way that gradients take, and the best settings, which were chosen for one of both.
Parameters and seconds stand in the table. Differences are taken seed by seed, with a 95 % interval where SciPy is
installed; `not separable` means that these seeds cannot tell the two apart. The console shows as much of a table as
fits 100 columns, comparison.md in the folder all of it.

Runs are trained by processes of this machine, or by a Dask cluster that is there (--scheduler): data files are sent to
its workers as bytes, and each run comes back into the same folder. Workers execute what they are sent, so use a cluster
that you trust; they need tinyattn installed, and one thread each (dask worker ADDRESS --nthreads 1)."""


class ComparedSystems(Systems):
    """One subcommand a system, found in `models/`; its flags come from its dataclasses."""

    def get_command(self, ctx, name):
        return _command(systems.find(name))


@click.group("compare", cls=ComparedSystems, subcommand_metavar="SYSTEM [OPTIONS]...")
def compare_command():
    """Train a grid of runs, every attention with every seed, and compare them: `tinyattn compare SYSTEM --help`."""


def _command(cls):
    """The click command of a system."""
    @click.pass_context
    def run(ctx, **values):
        return _Comparison(cls, values, given(ctx)).run()

    text = f"Compare attentions on {cls.name}: {cls.help}.\n\n{WARNING}"
    command = click.command(cls.name, help=text)(_more(cls, run))
    own = [option for option in system_options(cls.Options) if option.name != "attention"]
    settings = [option for option in setting_options(cls.Training) if option.name != "seed"]
    command.params = [*command.params, *own, *data_options(cls), *settings]
    return command


def _more(cls, function):
    usual = ",".join(dict.fromkeys([cls.Options().attention, "none"]))
    for option in (
            click.option("--json", "as_json", is_flag=True, help="print everything as JSON"),
            click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True,
                         help="where to compute"),
            click.option("--resume", is_flag=True,
                         help="go on with the comparison in --run, or with the last one in runs/; finished runs stand, "
                              "and what is not on the command line is as it was"),
            click.option("--run", metavar="DIR", help="folder of it all [default: runs/compare-SYSTEM-TIME]"),
            click.option("--retries", type=click.IntRange(0), default=2, show_default=True,
                         help="how often a run is begun again whose worker has died"),
            click.option("--scheduler", metavar="ADDRESS", help="a Dask scheduler whose workers do the work"),
            click.option("--threads", type=click.IntRange(1), help="threads of a worker [default: cores / workers]"),
            click.option("--workers", type=click.IntRange(1), help="runs at a time [default: cores / threads]"),
            click.option("--bound", type=float,
                         help="with --each: count the values at which the first figure is worse than this"),
            click.option("--pick", metavar="KEY",
                         help="of a cell's seeds take the best by validation_loss, or by this figure of the training "
                              "samples, in place of the mean"),
            click.option("--baseline-of", metavar="NAME",
                         help="attention that differences are taken to [default: none, or the first]"),
            click.option("--each", metavar="OPTION=V1,V2,..", multiple=True,
                         help="a further dimension: values of an option or setting; 1-20 is all whole numbers"),
            click.option("--seeds", metavar="N", default="5", show_default=True,
                         help="so many seeds, from 1; or these: 3,5,7"),
            click.option("--attention", metavar="A,B,..", default=usual, show_default=True,
                         help="mechanisms of `tinyattn list attention`, FILE.py:NAME, or none")):
        function = option(function)
    return function


# ---------------------------------------------------------------------------------------------------------------------
# reading the command line
# ---------------------------------------------------------------------------------------------------------------------
MOST = 10_000  # values of a dimension: more is a slip of the pen


def attentions_of(text):
    """"a,b,my.py:c" as a tuple, files with their absolute paths. InputError for none at all."""
    found = tuple(absolute_mechanism(name.strip()) for name in text.split(",") if name.strip())
    if not found:
        raise InputError(f"--attention: expected names such as additive,none, got {text!r}")
    return found


def _range(what, low, high):
    """The numbers from `low` to `high`. InputError if they are none, or very many."""
    if not 0 <= high - low < MOST:
        raise InputError(f"{what}: expected 1 to {MOST:,} values, got {low} to {high}")
    return range(low, high + 1)


def numbers_of(text, what):
    """"3,5-7" as (3, 5, 6, 7). InputError for anything else."""
    found = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if match is None:
            raise InputError(f"{what}: expected whole numbers such as 3,5,7 or 1-20, got {text!r}")
        found += _range(what, int(match[1]), int(match[2] or match[1]))
    return tuple(found)


def seeds_of(text):
    """"5" as (1, 2, 3, 4, 5), "3,5,7" as it stands."""
    if re.fullmatch(r"\s*\d+\s*", text):
        return tuple(_range("--seeds", 1, int(text)))
    return numbers_of(text.rstrip(", "), "--seeds")


def each_of(cls, texts):
    """["tasks=1-3"] as {"tasks": (1, 2, 3)}, each value of the type of the option's default."""
    defaults = {f.name: f for f in (*fields(cls.Training), *fields(cls.Options))}
    each = {}
    for text in texts:
        name, equals, values = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or name not in defaults or name in ("attention", "seed") or name in each:
            hint = {"attention": "--attention", "seed": "--seeds"}.get(name, f"an option of {cls.name}, once")
            raise InputError(f"--each: expected OPTION=V1,V2,.. with {hint}, got {text!r}")
        each[name] = tuple(_value(f"--each {name}", part.strip(), defaults[name].default)
                           for part in _parts(f"--each {name}", values))
    return each


def _parts(what, text):
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)-(\d+)\s*", part)
        yield from map(str, _range(what, int(match[1]), int(match[2]))) if match else [part]


def _value(what, text, default):
    if isinstance(default, bool):
        known = dict.fromkeys(("true", "yes", "on"), True) | dict.fromkeys(("false", "no", "off"), False)
        if text.lower() in known:
            return known[text.lower()]
        raise InputError(f"{what}: expected true or false, got {text!r}")
    if isinstance(default, str):
        return text
    try:
        return int(text) if isinstance(default, int) else float(text)
    except ValueError:
        kind = "a whole number" if isinstance(default, int) else "a number"
        raise InputError(f"{what}: expected {kind}, got {text!r}") from None


# ---------------------------------------------------------------------------------------------------------------------
# the command
# ---------------------------------------------------------------------------------------------------------------------
class _Comparison:
    """One call of the command. `values` are all parameters, `given` the names of those on the command line."""

    def __init__(self, cls, values, given):
        self.cls, self.values, self.given = cls, values, given
        if values["scheduler"] is not None and values["workers"]:
            raise InputError("--workers: the cluster of --scheduler has the workers that it has")

    def run(self):
        from ..compare import run_grid
        from ..tables import check_pick, has_scipy
        v = self.values
        folder = Path(v["run"]) if v["run"] else _last(self.cls.name) if v["resume"] else new_name("compare", self.cls.name)
        grid = self._grid(folder)
        baseline = self._baseline(grid)
        check_pick(self.cls, v["pick"])
        if v["bound"] is not None and not (grid.each and math.isfinite(v["bound"])):
            raise InputError(f"--bound: expected a number, and with it --each, of whose values it counts some; got "
                             f"{v['bound']:g}" + ("" if grid.each else " alone"))
        if not has_scipy():
            note(NO_SCIPY)
        progress = _Progress(self.cls)
        try:
            found = run_grid(grid, folder, v["workers"], v["threads"], v["scheduler"], v["retries"], v["resume"],
                             v["device"], progress, progress.say)
        finally:
            progress.close()
        if found.interrupted:
            done = sum(outcome.metrics is not None for outcome in found.outcomes)
            note(f"stopped with {done} of {len(found.outcomes)} runs finished, all saved; to go on: "
                 f"{self._again(folder)}")
            return 130
        self._show(folder, found, found.tables(baseline, v["pick"], v["bound"]))
        for outcome in found.failed:
            note(f"{outcome.run.name} failed: {outcome.error}")
        if found.failed:
            note(f"to try what has failed again: {self._again(folder)}")
        return 1 if found.failed else 0

    def _again(self, folder):
        return f"tinyattn compare {self.cls.name} --run {shlex.quote(str(folder))} --resume"

    # -- the grid ----------------------------------------------------------------------------------------------------
    def _grid(self, folder):
        """The grid of the command line. With --resume: the one in the folder, changed by what stands there."""
        from ..compare import Grid
        v, cls, resume = self.values, self.cls, self.values["resume"]
        wanted = {f.name for c in (cls.Options, cls.Training) for f in fields(c)}
        own = {f.name for f in fields(cls.Options)} - {"attention"}
        changes = {
            "attentions": attentions_of(v["attention"]), "seeds": seeds_of(v["seeds"]),
            "each": each_of(cls, v["each"]), "data": tuple(map(os.path.abspath, v["data"])),
            "links": v.get("links") and os.path.abspath(v["links"]),
            "links_order": v.get("links_order") or "source-target",
            "options": {k: v[k] for k in own & self.given},
            "settings": {k: v[k] for k in (wanted - own) & self.given - {"attention", "seed"}}}
        if not resume:
            return Grid(cls, **changes)
        old = Grid.load(folder)
        if old.system != cls.name:
            raise InputError(f"{folder}: is a comparison of {old.system}, not of {cls.name}")
        flags = {"attentions": "attention"}
        stay = {name: getattr(old, name) for name in changes if flags.get(name, name) not in self.given}
        merged = {name: {**getattr(old, name), **changes[name]} for name in ("options", "settings")}
        return replace(old, **{**changes, **stay, **merged, "system": cls})

    def _baseline(self, grid):
        name = self.values["baseline_of"]
        if name is None:
            return "none" if "none" in grid.attentions else grid.attentions[0]
        name = absolute_mechanism(name)
        if name not in grid.attentions:
            raise InputError(f"--baseline-of: expected one of {', '.join(grid.attentions)}, got {name!r}")
        return name

    # -- the end -----------------------------------------------------------------------------------------------------
    def _show(self, folder, found, tables):
        from .. import checkpoint
        from ..tables import caption, has_scipy, layout, where
        command = shlex.join(["tinyattn", *sys.argv[1:]])
        everything = {"system": self.cls.name, "command": command, "grid": found.grid.to_json(),
                      "seconds": round(found.seconds, 2), **tables, "runs": found.records()}
        numbers = [(where(table["at"]), table["rows"]) for table in tables["tables"]]
        if tables["summary"]:
            title = f"mean over {len(tables['tables'])} of {', '.join(found.grid.each)}".replace("_", "-")
            numbers.append((title, tables["summary"]))
        shown = [(title, layout(tables, rows)) for title, rows in numbers]
        self._write(folder, found, everything, shown, caption(tables), checkpoint.write)
        drawn = _draw(folder, self.cls.name, tables)
        if self.values["as_json"]:
            out_json(everything)
            return
        fitted = _fitted(tables, numbers)
        for title, rows in fitted:
            for line in [*([title] if title else []), *columns(rows), ""]:
                out(line)
        for line in caption(tables):
            out(line)
        if not has_scipy():
            out(NO_SCIPY)
        if fitted != shown:
            out(f"all figures: {folder / 'comparison.md'}")
        out(f"trained   {len(found.outcomes)} runs, {_trained(found)} in all; this call took {duration(found.seconds)}")
        out(f"kept in   {folder}: comparison.md, comparison.json" + (f", {drawn}" if drawn else ""))

    def _write(self, folder, found, everything, shown, lines, write):
        import json

        from ..tables import markdown
        write(folder / "comparison.json", json.dumps(everything, indent=1, ensure_ascii=False) + "\n")
        text = [f"# {self.cls.name}: attentions compared", ""]
        for title, rows in shown:
            text += [*([f"## {title}", ""] if title else []), *markdown(rows), ""]
        text += [*(f"{line[0].upper()}{line[1:]}.\n" for line in lines), f"Made by `{everything['command']}`: "
                 f"{len(found.outcomes)} runs, {_trained(found)} of training in all, {duration(found.seconds)} for the "
                 "last call.", ""]
        text += [f"- {outcome.run.name} failed: {outcome.error}" for outcome in found.failed]
        write(folder / "comparison.md", "\n".join(text).rstrip() + "\n")


def _fitted(tables, numbers):
    """[(title, rows of texts)] for the console: all columns if they fit, else the first figure with two, one or none of
    the others, else as many columns as fit. `numbers` is [(title, rows of numbers)]."""
    from ..tables import fit, layout, width_of
    titles = [title for title, _ in numbers]
    for further in (None, 2, 1, 0):
        shown = [layout(tables, rows, further=further) for _, rows in numbers]
        if all(width_of(texts) <= WIDTH for texts in shown):
            return list(zip(titles, shown, strict=True))
    return list(zip(titles, fit(shown, WIDTH), strict=True))


def _trained(found):
    return duration(sum(outcome.metrics["seconds"] for outcome in found.outcomes if outcome.metrics))


def _draw(folder, name, tables):
    """The picture, by its file's name; None, with a line on stderr, where it cannot be drawn."""
    try:
        from viz import comparison
        comparison(tables, folder / "comparison.svg", title=f"{name}: attentions compared")
        return "comparison.svg"
    except InputError as error:
        note(f"no picture comparison.svg: {error}")
        return None


class _Progress(Bar):
    """A line for each finished run on stderr, and a bar on a terminal."""

    def __init__(self, system):
        self.system = system

    def __call__(self, outcome, done, of):
        if self.bar is None:
            self.begin(total=of, desc="comparing")
        self.say(f"{done} of {of}  {outcome.run.name}  {self._result(outcome)}")
        if self.bar is not None:
            self.bar.update(done - self.bar.n)

    def _result(self, outcome):
        if outcome.error is not None:
            return f"failed: {outcome.error}"
        key, figure = next(iter(self.system.figures.items()), ("loss", None))
        value = outcome.metrics["test"].get(key)
        headline = "" if value is None or figure is None else f"{figure.title} {value:.{figure.digits}f}  "
        return f"{headline}{outcome.metrics['seconds']:.1f} s"


def _last(system):
    found = sorted(RUNS.glob(f"compare-{system}-*/grid.json"), key=lambda p: p.stat().st_mtime)
    if not found:
        raise InputError(f"--resume: expected a comparison of {system} in {RUNS}/, found none; name its folder with "
                         "--run")
    return found[-1].parent
