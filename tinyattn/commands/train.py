"""`tinyattn train SYSTEM`: from files to a folder with the trained run, its figures and its pictures."""
import json
import os
import re
import textwrap
import time
from dataclasses import asdict, fields, replace
from pathlib import Path

import click

from .. import systems
from ..errors import InputError
from .console import columns, note, out, out_json
from .options import absolute_mechanism, data_options, given, setting_options, system_options

RUNS = Path("runs")


class Systems(click.Group):
    """One subcommand a system, found in `models/`; its flags come from its dataclasses."""

    def list_commands(self, ctx):
        return systems.names()

    def get_command(self, ctx, name):
        return _command(systems.find(name))

    def format_commands(self, ctx, formatter):
        with formatter.section("Systems"):
            formatter.write_dl([(name, systems.summary(name)) for name in systems.names()])


@click.group("train", cls=Systems, subcommand_metavar="SYSTEM [OPTIONS]...")
def train_command():
    """Train a system on the built-in task or on your files. `tinyattn train SYSTEM --help` lists its options."""


def _command(cls):
    """The click command of a system."""
    @click.pass_context
    def run(ctx, **values):
        from .. import device
        device.require(values["device"])
        if values["threads"] is not None:
            device.set_num_threads(values["threads"])
        if "attention" in values:
            values["attention"] = absolute_mechanism(values["attention"])
        with device.default_device(values["device"]):
            return _Training(cls, values, given(ctx)).run()

    command = click.command(cls.name, help=f"Train {cls.help}.")(_more(run))
    command.params = [*system_options(cls.Options), *data_options(cls), *setting_options(cls.Training), *command.params]
    return command


def _more(function):
    for option in (
            click.option("--json", "as_json", is_flag=True, help="print the test figures as JSON"),
            click.option("--compare", metavar="RUN", multiple=True, help="another run to show beside this one"),
            click.option("--baseline/--no-baseline", default=False,
                         help="then train the same without attention for the same time, in RUN/baseline, and compare"),
            click.option("--stop-at", type=click.IntRange(1), help="stop after this step as if interrupted"),
            click.option("--resume", is_flag=True, help="go on with the run in --run, or with the last one in runs/"),
            click.option("--run", metavar="DIR", help="folder of the run [default: runs/SYSTEM-ATTENTION-TIME]"),
            click.option("--watch", type=click.IntRange(0, 16), is_flag=False, flag_value=2, default=0, metavar="[N]",
                         help="note at each validation what the model looks at for N test samples [2], for "
                              "`tinyattn frames`"),
            click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True,
                         help="where to compute"),
            click.option("--compile/--no-compile", "compiled", default=True, show_default=True,
                         help="capture the steps and replay them: the same numbers, sooner"),
            click.option("--threads", type=click.IntRange(1), help="threads for large kernels [default: all]")):
        function = option(function)
    return function


class _Training:
    """One call of the command. `values` are all parameters, `given` the names of those on the command line."""

    def __init__(self, cls, values, given):
        self.cls, self.values, self.given = cls, values, given
        if not values["resume"]:
            self._check_baseline(values)

    def _check_baseline(self, options):
        if self.values["baseline"] and options.get("attention", "none") == "none":
            raise InputError("--baseline: compares with the same model without attention, but this one has none")

    def run(self):
        from ..workers import measure
        compared = {_label_of(self._comparable(other), other): other for other in self.values["compare"]}  # may fail
        folder, system, config = self._resumed() if self.values["resume"] else self._fresh()
        if self.values["baseline"]:  # what it cannot be is said before anything is trained
            self.cls.prepare(self.cls.Options(**self._twin(config).options), **config.sources(self.cls))
        for line in system.notes:
            note(line)
        note(f"{system.describe()}; the run is kept in {folder}")
        history = self._train(system, config, folder, self.values["resume"])
        if history.stopped in ("interrupted", "stop_at"):
            return self._goes_on(history, folder)
        twin = None
        if self.values["baseline"]:
            twin, twin_history, twin_config = self._baseline(config, folder, history.seconds)
            if twin_history.stopped == "interrupted":
                return self._goes_on(twin_history, folder)
            measure(folder / "baseline", twin, twin_config, twin_history)
        metrics = measure(folder, system, config, history)
        self._show(folder, system, metrics, compared)
        return 0

    def _comparable(self, folder):
        """The metrics of a run of this system. InputError for one of another: its figures are other figures."""
        metrics = read_metrics(folder)
        if metrics.get("system") != self.cls.name:
            raise InputError(f"--compare: expected a run of {self.cls.name}, found in {folder} one of "
                             f"{metrics.get('system')}")
        return metrics

    # -- the two ways to begin ---------------------------------------------------------------------------------------
    def _fresh(self):
        from ..checkpoint import new_folder
        from ..config import Config
        v, cls = self.values, self.cls
        options = cls.Options(**{f.name: v[f.name] for f in fields(cls.Options)})
        folder = Path(v["run"]) if v["run"] else new_name(cls.name, _safe(options.attention))
        new_folder(folder, make=False)
        settings = {f.name: v[f.name] for f in fields(cls.Training) if f.name in self.given}
        if cls.takes_links:
            settings |= {"links_order": v["links_order"] or "source-target",
                         "links": v["links"] and os.path.abspath(v["links"])}
        config = Config.proposed(cls, options, data=tuple(map(os.path.abspath, v["data"])), watch=v["watch"],
                                 **settings)
        system = cls.prepare(options, **{**config.sources(cls), "paths": v["data"]})  # errors show the name as given
        return folder, self._placed(system), config.with_digests()

    def _resumed(self):
        """The run as it was saved. What stands on the command line must agree with it, and is compared first."""
        from .. import checkpoint
        from ..config import Config, check_same
        v, folder = self.values, Path(self.values["run"]) if self.values["run"] else _last_run(self.cls.name)
        old = Config.from_json(checkpoint.load(folder).config)
        old = replace(old, options=checkpoint.completed(self.cls.Options, old.options))
        changes = {name: v[name] for name in self.given if name in {f.name for f in fields(Config)}}
        if "data" in changes:
            changes["data"] = tuple(map(os.path.abspath, v["data"]))
        if "links" in changes:
            changes["links"] = os.path.abspath(v["links"])
        options = {f.name: v[f.name] for f in fields(self.cls.Options) if f.name in self.given}
        new = replace(old, system=self.cls.name, options={**old.options, **options}, **changes).checked()
        check_same(old, new, folder)
        self._check_baseline(new.options)
        new = new.with_digests()
        check_same(old, new, folder)
        if (new.steps, new.seconds) != (old.steps, old.seconds) and new.schedule in ("cosine", "linear", "halving"):
            note(f"the schedule {new.schedule!r} spans all of training: the learning rate follows the new length now")
        mechanism = v["attention"] if "attention" in self.given and ".py" in v["attention"] else None
        system, _ = checkpoint.restore(folder, mechanism)
        system.attach(**new.sources(self.cls))
        return folder, self._placed(system), new

    def _placed(self, system):
        if self.values["device"] != "cpu":
            system.model.to(self.values["device"])
        return system

    # -- training ----------------------------------------------------------------------------------------------------
    def _train(self, system, config, folder, resume, title="training"):
        from .. import train
        from .progress import Reporter
        report = Reporter(title)
        try:
            return train.train(system, config, folder, resume, report, self.values["stop_at"], report.say,
                               self.values["compiled"])
        finally:
            report.close()

    def _baseline(self, config, folder, seconds):
        """The same without attention, trained for the same time, as many steps as fit: (system, History, Config)."""
        from .. import checkpoint
        from ..checkpoint import FILE
        from ..config import Config
        folder, cls = folder / "baseline", self.cls
        resume = (folder / FILE).is_file()
        if resume:
            config = Config.from_json(checkpoint.load(folder).config)
            system, _ = checkpoint.restore(folder)
            system.attach(**config.sources(cls))
        else:
            config = replace(self._twin(config), seconds=max(seconds, 1.0))
            system = cls.prepare(cls.Options(**config.options), **config.sources(cls))
        note(f"baseline: {system.describe()}; {config.seconds:.0f} seconds")
        return system, self._train(self._placed(system), config, folder, resume, "baseline"), config

    def _twin(self, config):
        """The Config of the baseline: what was asked for stays, what was left open is what suits a model without
        attention."""
        from ..config import Config
        cls = self.cls
        usual = asdict(cls.Options(attention=config.options["attention"]))
        asked = {name: value for name, value in config.options.items() if value != usual[name]}
        options = cls.Options(**{**asked, "attention": "none"})
        usual = asdict(cls.training_for(config.options))
        asked = {name: getattr(config, name) for name in usual if getattr(config, name) != usual[name]}
        return Config.proposed(cls, options, data=config.data, links=config.links, links_order=config.links_order,
                               digests=config.digests, **{**asked, "steps": None, "seconds": 1.0})

    def _goes_on(self, history, folder):
        more = " --baseline" if self.values["baseline"] else ""
        note(f"stopped at step {history.step:,}, all saved; to go on: "
             f"tinyattn train {self.cls.name} --run {folder} --resume{more}")
        return 130 if history.stopped == "interrupted" else 0

    # -- the end -----------------------------------------------------------------------------------------------------
    def _show(self, folder, system, metrics, compared):
        from .pictures import draw_all
        twin = folder / "baseline"
        if (twin / "metrics.json").is_file():
            compared = {"baseline: " + _label_of(read_metrics(twin), folder): twin, **compared}
        others = {label: (where, read_metrics(where)["test"]) for label, where in compared.items()}
        drawn = draw_all(folder, _label_of(metrics, folder), system, metrics["test"], others)
        if self.values["as_json"]:
            out_json({"run": str(folder), **metrics, "pictures": drawn,
                      "compared": {label: read_metrics(where)["test"] for label, (where, _) in others.items()}})
            return
        out(f"run       {folder}")
        best = f"best at step {metrics['best_step']:,}"
        out(f"training  {metrics['steps']:,} steps in {metrics['seconds']:.1f} s, {best} "
            f"(validation loss {metrics['validation_loss']:.4f})")
        show_figures(system, "test", metrics["test"], {label: figures for label, (_, figures) in others.items()})
        if drawn:
            out(f"pictures  {', '.join(drawn)}")


def show_figures(system, title, figures, others=()):
    """The figures of `evaluate` as a few lines, beside those of other runs: {label: figures}."""
    others = dict(others)
    texts = [f"{title:8}  {figures[system.counts]:,} {system.counts}: {_in_words(system, figures)}",
             *(f"{'':8}  {label}: {_in_words(system, theirs)}" for label, theirs in others.items())]
    for text in texts:
        kept = re.sub(r" (?=-?[\d.]+(, |$))", "\xa0", text)  # a value stays on the line of its title
        lines = textwrap.wrap(kept, 100, subsequent_indent=" " * 10, break_long_words=False, break_on_hyphens=False)
        for line in lines:
            out(line.replace("\xa0", " "))
    for remark in figures.get("remarks", ()):
        out(f"{'':8}  {remark}")
    groups = system.groups
    if groups is None or not figures.get(groups.key):
        return
    rows = [[groups.of, system.counts, groups.score, *others]]
    beside = [{row[0]: row[2] for row in theirs.get(groups.key) or ()} for theirs in others.values()]
    for label, count, score in figures[groups.key]:
        scores = score, *(them.get(label) for them in beside)
        rows.append([label, f"{count:,}", *("-" if s is None else f"{s:.1f}" for s in scores)])
    for line in columns(rows, indent=" " * 10):
        out(line)


def _in_words(system, figures):
    return ", ".join(f"{figure.title} {figures[key]:.{figure.digits}f}" for key, figure in system.figures.items()
                     if figures.get(key) is not None)


def read_metrics(folder):
    """The metrics.json of a finished run. InputError if there is none."""
    path = Path(folder) / "metrics.json"
    try:
        metrics = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise InputError(f"{folder}: expected the folder of a finished run, found no metrics.json in it") from None
    except (ValueError, RecursionError):
        raise InputError(f"{path}: expected JSON as tinyattn writes it") from None
    if not isinstance(metrics, dict) or not all(isinstance(metrics.get(key), dict) for key in ("test", "options")):
        raise InputError(f"{path}: expected the figures of a run, found something else")
    return metrics


def _label_of(metrics, folder):
    """What a run is called in a picture's legend."""
    attention = metrics["options"].get("attention")
    return f"attention {_short(attention)}" if attention is not None else Path(folder).name


def _safe(attention):
    return re.sub(r"\W+", "-", _short(attention or ""))


def _short(attention):
    return re.sub(r".*[\\/]", "", str(attention))


def new_name(*parts):
    """A folder in runs/ that is not there yet, named by the parts and the time."""
    name = "-".join(filter(None, [*parts, time.strftime("%Y%m%d-%H%M%S")]))
    return next(p for p in (RUNS / f"{name}{end}" for end in ["", *range(-2, -100, -1)]) if not p.exists())


def _last_run(system):
    from ..checkpoint import FILE
    found = sorted(RUNS.glob(f"{system}-*/{FILE}"), key=lambda p: p.stat().st_mtime)
    if not found:
        raise InputError(f"--resume: expected a run of {system} in {RUNS}/, found none; name its folder with --run")
    return found[-1].parent
