"""The command that shows backpropagation step by step."""
from pathlib import Path

import click

from ..errors import InputError
from . import names
from .console import columns, note, out, shortened
from .draw import example


@click.command("steps")
@click.argument("name", required=False)
@click.option("-o", "--output", metavar="FILE|DIR",
              help="a .html page, a .pdf with a page a frame, or a folder for the frames [default: NAME-steps.html]")
@click.option("--frame", "number", type=click.IntRange(1), metavar="N",
              help="write this one frame alone, as -o FILE.svg, .pdf or .png [default: NAME-N.svg]")
@click.option("--frames", "kind", type=click.Choice(["svg", "pdf", "png"]), default="svg", show_default=True,
              help="of a folder: what the frames are")
@click.option("--order", type=click.Choice(["topological", "wrong"]), default="topological", show_default=True,
              help="the order of the frames; a page has both")
@click.option("--sample", type=click.IntRange(0), default=0, show_default=True, help="of an op: which of its samples")
def steps_command(name, output, number, kind, order, sample):
    """Show the forward and the backward pass step by step, as a page to click through or as frames.

    NAME is one of the examples that are listed without it, or an op, mechanism or module, or my.py:name. The page turns
    by buttons and by the keys left, right, Home, End and space; `page.html#12` opens it at frame 12.
    """
    from viz.backprop.examples import EXAMPLES, LABELS
    if name is None:
        rows = [(n, f.__doc__.partition("\n")[0]) for n, f in EXAMPLES.items()]
        for line in columns(shortened(rows, 1), numbers=False):
            out(line)
        return
    from viz import steps
    if name in EXAMPLES:
        tensor, leaves = EXAMPLES[name]()
        walk = steps(tensor, leaves, order, f"Backpropagation step by step: {EXAMPLES[name].__doc__}", LABELS.get(name))
        full = name
    else:
        full, walk = _of_package(name, order, sample)
    path = f"{full}-steps.html" if number is None else f"{full}-{number}.svg"
    path = walk.save(Path(output or path), kind, frame=number)
    out(str(path))
    note(f"{len(walk.frames)} frames of {len(walk.picture.graph.nodes)} nodes" if number is None else
         f"frame {number} of {len(walk.frames)}")
    for op in walk.frames[-1]["numbers"]["rules"]["wrong"]:
        note(f"the rule of {op} disagrees with finite differences: see the last frame, and `tinyattn check`")
    if path.is_dir():
        _note_others(path, kind, len(walk.frames))


def _note_others(folder, kind, count):
    """Say which frames of the folder are older ones that were not written now: nothing is ever deleted."""
    older = sorted(p.name for p in folder.glob("frame-*.*") if p.suffix in (".svg", ".pdf", ".png")
                   and not (p.suffix == f".{kind}" and p.stem[6:].isdigit() and int(p.stem[6:]) <= count))
    if older:
        several = f"{older[0]} to {older[-1]} are" if len(older) > 1 else f"{older[0]} is"
        note(f"{folder}: {several} of an earlier walk; this one has frame-01.{kind} to frame-{count:02}.{kind}")


def _of_package(name, order, sample):
    """(name, Steps) of an op, mechanism or module: with its fused ops opened, unless that is too large to follow."""
    from viz import steps

    from ..autograd import fused
    try:
        kind, full, thing = names.find(name)
    except InputError as error:
        if ".py" in name or ":" in name:
            raise
        raise InputError(f"{error}, or an example of `tinyattn steps`") from None
    title = f"Backpropagation step by step: {full}"
    try:
        with fused("never"):
            tensor, leaves = example(kind, full, thing, sample, scalar=True)
        with names.blame(kind, thing):
            return full, steps(tensor, leaves, order, title)
    except InputError as opened:
        if "more than the" not in str(opened):
            raise
    tensor, leaves = example(kind, full, thing, sample, scalar=True)
    try:
        with names.blame(kind, thing):
            walk = steps(tensor, leaves, order, title)
    except InputError as error:
        raise InputError(f"{full}: {error}") from None
    note(f"{full}: its fused ops stay closed, since opened there would be too many nodes")
    return full, walk
