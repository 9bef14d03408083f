"""`tinyattn growth`: time and memory by the length of a sequence."""
from pathlib import Path

import click

from .console import note, out, out_json


@click.command("growth")
@click.argument("names", metavar="[NAME...]", nargs=-1)
@click.option("--longest", type=click.IntRange(1), default=8192, show_default=True,
              help="up to this length, from 64 on, each twice the one before")
@click.option("-o", "--output", metavar="FILE", default="growth.svg", show_default=True, help="a .svg, .pdf or .png file")
@click.option("--json", "as_json", is_flag=True, help="print JSON")
def growth_command(names, longest, output, as_json):
    """Measure how time and memory grow with the length T of a sequence, forward and backward. NAME is rnn, gru, lstm, attention
    (scaled dot-product), attention-twin (the same by its readable twin) or additive; all of them by default.

    A workload ends before the length that would take more than 2 GB.
    """
    from viz.plot import kind_of

    from .. import growth
    from ..errors import InputError
    kind_of(output)
    curves = growth.measure(names, growth.lengths_up_to(longest), say=note if as_json else out)
    if as_json:
        out_json([{"name": c.name, "lengths": c.lengths, "seconds": c.seconds, "bytes": c.bytes,
                   "time_grows_as": c.slopes[0], "memory_grows_as": c.slopes[1]} for c in curves])
    from viz import growth as draw
    try:
        draw(curves, Path(output))
    except InputError as error:
        note(f"no picture: {error}")
        return
    (note if as_json else out)(f"picture  {output}")
