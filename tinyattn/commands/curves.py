"""The commands that draw how runs were trained: curves, frames, show."""
from pathlib import Path

import click

from ..errors import InputError
from .console import note, out
from .options import trust_option

KEYS = {"loss": ("loss", "validation_loss"), "norm": ("norm",), "rate": ("rate",)}  # of a record of the log


@click.command("curves")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@click.option("-o", "--output", metavar="FILE", default="curves.svg", show_default=True,
              help="a .svg, .pdf or .png file")
@click.option("--what", type=click.Choice(["loss", "norm", "rate", "layers"]), default="loss", show_default=True,
              help="training and validation loss, norm of the gradient, learning rate; layers: norm of the gradient of "
                   "each layer, of one run")
@click.option("--by", type=click.Choice(["group", "run"]), default="group", show_default=True,
              help="group: runs that differ in the seed alone are one mean and band; run: each is a line")
@click.option("--spread", type=click.Choice(["range", "sd"]), default="range", show_default=True,
              help="what the band of a group is: lowest to highest, or one standard deviation about the mean")
@click.option("--log/--no-log", default=None, help="logarithmic axis [default: where values span a factor of 50]")
@click.option("--smooth", metavar="N", type=click.IntRange(0),
              help="running mean over so many steps, 0 for none [default: a twentieth of a long run]")
@click.option("--title", default="", help="title of the picture")
def curves_command(runs, output, what, by, spread, log, smooth, title):
    """Draw how runs were trained, several in one picture. RUN is the folder of a run, or one with runs below it, such
    as `tinyattn compare` leaves."""
    from viz.training.runs import find_runs
    found = find_runs(runs)
    if what == "layers":
        _layers(found, output, title)
        return
    kept = _with_records(found, what)
    _say_remarks(found)
    found = kept
    from viz import curves
    curves(_arranged(found, by), output, title, what=what, spread=spread, log=log, window=smooth)
    out(output)


def _say_remarks(runs):
    for run in runs:
        for line in run.remarks():
            note(f"{run.folder}: {line}")


def _odd(run):
    """What is odd about a run, in brackets, for the end of a refusal; "" where nothing is."""
    remarks = "; ".join(run.remarks())
    return f" ({remarks})" if remarks else ""


def _layers(found, output, title):
    """The picture of one run's gradient norms."""
    if len(found) > 1:
        raise InputError(f"--what layers: expected one run, got {len(found)}: {found[0].folder}, {found[1].folder}"
                         + (", ..." if len(found) > 2 else "")
                         + f"; one run: tinyattn curves {found[0].folder} --what layers")
    from viz import norms
    run, = found
    if not any("norms" in record for record in run.log):
        raise InputError(f"{run.folder}: its log has no norms by layer; it was trained before they were noted, or has "
                         f"made no step{_odd(run)}")
    _say_remarks(found)
    norms(run, output, title or run.title)
    out(output)


def _with_records(found, what):
    """The runs that have something to draw. InputError if none has."""
    kept = [run for run in found if any(key in record for record in run.log for key in KEYS[what])]
    if not kept:
        folders = ", ".join(str(run.folder) for run in found[:3]) + (", ..." if len(found) > 3 else "")
        raise InputError(f"curves: nothing to draw, no step in the log of {folders}{_odd(found[0])}")
    if what == "loss" and len({run.config.system for run in kept}) > 1:
        systems = sorted({run.config.system for run in kept})
        note(f"these are runs of {' and '.join(systems)}: losses of different systems measure different things")
    return kept


def _arranged(found, by):
    """{label: run or runs} for `viz.curves`, with a word on stderr where the runs of a group do not match."""
    from viz.training.runs import by_group, by_run
    if by == "run":
        return by_run(found)
    groups = by_group(found)
    for label, members in groups.items():
        ends = sorted((run.step, str(run.folder)) for run in members)
        if ends[0][0] < ends[-1][0]:
            note(f"{label}: the mean ends at step {ends[0][0]:,}, where the shortest run does ({ends[0][1]}); the "
                 f"longest has {ends[-1][0]:,}")
        seeds = [run.config.seed for run in members]
        twice = sorted({seed for seed in seeds if seeds.count(seed) > 1})
        if twice:
            note(f"{label}: seed {', '.join(map(str, twice))} is there more than once, so the band is too narrow")
    return {label: members if len(members) > 1 else members[0] for label, members in groups.items()}


@click.command("frames")
@click.argument("run", metavar="RUN")
@click.option("-o", "--output", metavar="FILE",
              help="a .html file, in which it moves, or .svg, .pdf or .png with the steps side by side "
                   "[default: RUN/frames.html]")
@click.option("--map", "number", type=click.IntRange(1), default=1, show_default=True,
              help="of several maps at a step: this one (the .html has all)")
@click.option("-n", "--frames", "count", type=click.IntRange(2, 24), default=8, show_default=True,
              help="at most so many steps side by side")
def frames_command(run, output, number, count):
    """Draw what a run looked at while it was trained: before the first step, and at each validation. It must have been
    trained with --watch."""
    from viz.training.run import Run
    path, run = Path(output) if output else Path(run) / "frames.html", Run(run)
    if not any("looks" in record for record in run.log):
        raise InputError(f"{run.folder}: its log does not say what it looked at; train it with --watch{_odd(run)}")
    _say_remarks([run])
    run.frames().save(path, number - 1, count)
    out(str(path))


@click.command("show")
@click.argument("run", metavar="RUN")
@click.option("-o", "--output", metavar="FILE", help="a .html file [default: RUN/run.html]")
@trust_option
def show_command(run, output, attention):
    """Write all of a run on one page: figures, curve, gradient norms, what it looks at, graph, settings."""
    from viz.training.run import Run
    path, run = Path(output) if output else Path(run) / "run.html", Run(run, attention)
    if attention is not None:  # named to be run: what is wrong with it is said, and not written into the page
        run.system()
    run.save(path)
    out(str(path))
