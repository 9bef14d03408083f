"""The commands that draw attention without an input of yours: positions, masks, panels; and penalty, of a run."""
from pathlib import Path

import click

from ..errors import InputError
from .console import out
from .options import trust_option

FILE = "a .svg, .pdf or .png file"
# kinds of `viz.positions` and `viz.masks`, named here because --help imports no drawing
POSITIONS = ("sinusoid", "rope", "memn2n", "shaw", "alibi", "distance")
MASKS = ("causal", "last", "forward", "backward", "diagonal", "window", "lengths", "both")


@click.command("positions")
@click.argument("kind", type=click.Choice(POSITIONS), default="sinusoid", metavar="[KIND]")
@click.option("--length", type=int, help="how many positions [default: what suits the kind]")
@click.option("--width", type=int, help="width of the code; shaw: the farthest distance told apart; alibi: heads")
@click.option("--layout", help="sinusoid: interleaved, halves or tensor2tensor; rope: interleaved or halves; memn2n: "
                               "paper or code [default: the first]")
@click.option("-o", "--output", metavar="FILE", help=f"{FILE} [default: positions-KIND.svg]")
def positions_command(kind, length, width, layout, output):
    """Draw how position gets into attention: sinusoid (the default), rope, memn2n, shaw, alibi or distance. Codes come
    with curves, products and a table of their first values."""
    from viz import positions
    path = output or f"positions-{kind}.svg"
    positions(kind, length, width, path, layout=layout)
    out(path)


@click.command("masks")
@click.argument("kinds", nargs=-1, type=click.Choice(MASKS), metavar="[KIND]...")
@click.option("--words", help="the sentence; five words by default")
@click.option("-o", "--output", metavar="FILE", help=f"{FILE} [default: masks.svg]")
def masks_command(kinds, words, output):
    """Draw masks, True = may be attended to: causal, last (causal with fewer queries than keys), forward, backward,
    diagonal, window, lengths (padding), both (causal and padding). Without KIND, all of them on a page."""
    from viz import masks
    path = output or "masks.svg"
    masks(kinds or None, path, words=None if words is None else words.split())
    out(path)


@click.command("panels")
@click.argument("name")
@click.option("-o", "--output", metavar="FILE", help=f"{FILE} [default: NAME-panels.svg]")
def panels_command(name, output):
    """Draw the four panels of an attention mechanism on its example: scores, mask, masked scores, weights. NAME is one
    of `tinyattn list attention`, or FILE.py:NAME for one of your own."""
    from viz import example_panels

    from ..attention import find
    mechanism = find(name.removeprefix("attention:"))
    path = output or f"{mechanism.name}-panels.svg"
    example_panels(mechanism, path, title=mechanism.name)
    out(path)


@click.command("penalty")
@click.argument("run", metavar="RUN")
@click.argument("text", nargs=-1)
@click.option("-o", "--output", metavar="FILE", help=f"{FILE} [default: RUN/penalty.svg]")
@trust_option
def penalty_command(run, text, output, attention):
    """Draw the rows A of a run of `train classify --attention structured_self`, their overlaps A A^T, and A A^T - I,
    whose squared norm is the penalty: for TEXT, or for one of the run's test samples."""
    from .. import checkpoint
    from .use import attach_own
    system, saved = checkpoint.restore(run, attention)
    if saved.config["options"].get("attention") != "structured_self":
        raise InputError(f"{run}: expected a run of `train classify --attention structured_self`, whose rows have a "
                         f"penalty; this is {system.name}, attention {saved.config['options'].get('attention')!r}")
    if text:
        found = system.predict(" ".join(text))
    else:
        attach_own(system, saved)
        found = system.examples(1)[0]
    from viz import penalty
    a, path = found.record["weights"]["rows of A"], output or str(Path(run) / "penalty.svg")
    tokens = found.record["rows"][0]
    title = f"{Path(run).name}: A of {len(a)} rows, says {found.record['label']}"
    penalty([row[:len(tokens)] for row in a], path, title, tokens=tokens,
            names=[f"row {r + 1}" for r in range(len(a))])
    out(path)
