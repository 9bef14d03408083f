"""`tinyattn forget`: the forgetful RNN, measured."""
from pathlib import Path

import click

from .console import columns, note, out, out_json


@click.command("forget")
@click.option("--cells", default="rnn,gru,lstm,attention", show_default=True,
              help="which networks: rnn, gru, lstm, and attention over the states of a gru")
@click.option("--mechanism", default="additive", show_default=True, help="how attention looks back")
@click.option("--length", type=click.IntRange(4), default=60, show_default=True, help="steps of a sequence")
@click.option("--width", type=click.IntRange(1), default=32, show_default=True, help="numbers of a state")
@click.option("--steps", type=click.IntRange(0), default=600, show_default=True,
              help="updates on the recall task before the second measurement; 0 is none")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="seed of all random numbers")
@click.option("-o", "--output", metavar="FILE", default="forget.svg", show_default=True,
              help="a .svg, .pdf or .png file")
@click.option("--json", "as_json", is_flag=True, help="print JSON")
def forget_command(cells, mechanism, length, width, steps, seed, output, as_json):
    """Measure how much of an early input reaches a late state, |dh_T / dh_t| by distance: RNN, GRU, LSTM, attention.

    Then train each to say which symbol was marked, somewhere before the end, and measure again.
    """
    from viz.plot import kind_of

    from .. import forgetting
    from ..errors import InputError
    kind_of(output)
    names = [name.strip() for name in cells.split(",") if name.strip()]
    if not names:
        raise InputError("--cells: expected at least one network, got none")
    curves = forgetting.measure(names, length, width, steps, seed, mechanism=mechanism, say=note)
    if as_json:
        out_json([{"network": c.name, "reach": c.before.tolist(), "accuracy": c.accuracy, "by_distance": c.right,
                   "trained_reach": None if c.after is None else c.after.tolist()} for c in curves])
    else:
        for line in table(curves, [1, length // 4, length // 2, length - 1]):
            out(line)
    from viz import reach
    try:
        reach(curves, Path(output))
    except InputError as error:
        note(f"no picture: {error}")
        return
    (note if as_json else out)(f"picture  {output}")


def table(curves, far):
    """The reach of each network over the distances `far`, before and after training, as lines. Of many digits the
    second distances give way until the lines fit 100 columns."""
    far, steps = list(far), curves[0].after is not None
    rows = [["network", *(f"d = {d}" for d in far), *([*(f"trained {d}" for d in far), "recalled"] if steps else [])]]
    for c in curves:
        trained = [*(f"{c.after[d]:.2g}" for d in far), f"{100 * c.accuracy:.1f}%"] if steps else []
        rows.append([c.name, *(f"{c.before[d]:.2g}" for d in far), *trained])
    lines = columns(rows)
    return table(curves, [far[0], *far[2:]]) if max(map(len, lines)) > 100 and len(far) > 2 else lines
