"""The commands that use a trained run: evaluate, predict, heatmap."""
import sys
from pathlib import Path

import click

from ..errors import InputError
from .console import note, out, out_json
from .options import data_options, trust_option
from .train import show_figures

run_argument = click.argument("run", metavar="RUN")
beam_option = click.option("--beam", type=click.IntRange(1), default=1, show_default=True,
                           help="translations kept at each step; 1 takes the best word each time")


@click.command("evaluate")
@run_argument
@data_options
@click.option("--split", type=click.Choice(["test", "validation"]), default="test", show_default=True,
              help="which part of the run's own data; --data measures all of the given files")
@beam_option
@click.option("--limit", type=click.IntRange(1), help="only the first so many sentences")
@click.option("--json", "as_json", is_flag=True, help="print JSON")
@trust_option
def evaluate_command(run, data, links, links_order, split, beam, limit, as_json, attention):
    """Measure a trained run: loss, BLEU, BLEU by length, and the alignment error rate where gold links are known."""
    from .. import checkpoint
    if links and not data:
        raise InputError("--links: alignments belong to files, which --data names")
    system, saved = checkpoint.restore(run, attention)
    if data:
        system.attach_all(data, links, links_order or "source-target")
        split = "all"
    else:
        attach_own(system, saved)
    for line in system.notes:
        note(line)
    figures = system.evaluate(split, beam=beam, limit=limit)
    if as_json:
        out_json({"run": run, "split": split, "beam": beam, **figures})
    else:
        show_figures("data" if data else split, figures)


def attach_own(system, saved):
    """Read the data that the run was trained on again, for its test and validation sentences."""
    from ..config import Config
    config = Config.from_json(saved.config)
    for path, digest in config.with_digests().digests.items():
        if config.digests.get(path) != digest:
            note(f"{path} has changed since the run was trained, so some test sentences may have been seen in training")
    system.attach(config.data, config.links, config.links_order, config.seed)


@click.command("predict")
@run_argument
@click.argument("text", nargs=-1)
@beam_option
@click.option("--json", "as_json", is_flag=True, help="one JSON object a line: source, target, weights")
@trust_option
def predict_command(run, text, beam, as_json, attention):
    """Ask a trained run. TEXT is one sentence; without it, each line of stdin is one, and gives one line."""
    import json

    from .. import checkpoint
    system, _ = checkpoint.restore(run, attention)
    for sentence in [" ".join(text)] if text else lines_of_stdin():
        if not sentence.strip() and not text:
            out("")
            continue
        found = system.predict(sentence, beam=beam)
        if as_json:
            weights = None if found.weights is None else [[round(float(w), 6) for w in row] for row in found.weights]
            out(json.dumps({"source": found.source, "target": found.target, "weights": weights}))
        else:
            out(" ".join(found.target))


def lines_of_stdin():
    """The lines of stdin as UTF-8, whatever the locale, each as soon as it is there."""
    stream = getattr(sys.stdin, "buffer", None)
    if sys.stdin is None or stream is None:
        raise InputError("stdin: expected text, found it closed; give the sentence as an argument")
    if sys.stdin.isatty():
        note("one sentence a line, Ctrl-D to end:")
    for number, line in enumerate(stream, 1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"stdin, line {number}: expected UTF-8 text, found the byte "
                             f"0x{line[error.start]:02x}") from None
        yield text.rstrip("\r\n")


@click.command("heatmap")
@run_argument
@click.argument("text", nargs=-1)
@click.option("-o", "--output", metavar="FILE", help="a .svg, .pdf or .png file [default: RUN/heatmap.svg]")
@click.option("-n", "number", type=click.IntRange(1, 16), default=4, show_default=True,
              help="without TEXT: so many test sentences")
@beam_option
@trust_option
def heatmap_command(run, text, output, number, beam, attention):
    """Draw what a trained run looks at: for TEXT, or for a few of its test sentences."""
    from .. import checkpoint
    from .pictures import map_of
    path = Path(output) if output else Path(run) / "heatmap.svg"
    system, saved = checkpoint.restore(run, attention)
    if text:
        predictions = [system.predict(" ".join(text), beam=beam)]
    else:
        attach_own(system, saved)
        predictions = system.examples(number)
    maps = [map_of(p) for p in predictions if p.weights is not None]
    if not maps:
        raise InputError(f"{run}: has no attention to draw (attention {saved.config['options'].get('attention')!r})")
    from viz import heatmaps
    heatmaps(maps, path)
    out(str(path))
