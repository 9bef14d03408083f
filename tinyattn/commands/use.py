"""The commands that use a trained run: evaluate, predict, heatmap."""
import sys
from pathlib import Path

import click

from ..errors import InputError
from .console import columns, note, out, out_json
from .options import trust_option, with_data
from .train import show_figures

run_argument = click.argument("run", metavar="RUN")
beam_option = click.option("--beam", type=click.IntRange(1), default=1, show_default=True,
                           help="of a translator: translations kept at each step; 1 takes the best word each time")


@with_data
@click.command("evaluate")
@run_argument
@click.option("--split", type=click.Choice(["test", "validation"]), default="test", show_default=True,
              help="which part of the run's own data; --data measures all of the given files")
@beam_option
@click.option("--limit", type=click.IntRange(1), help="only the first so many samples")
@click.option("--against", metavar="RUN",
              help="of a translator: another one, on the same sentences; BLEU and its difference with a 95 % interval")
@click.option("--json", "as_json", is_flag=True, help="print JSON")
@trust_option
def evaluate_command(run, data, links, links_order, split, beam, limit, against, as_json, attention):
    """Measure a trained run on its test samples, or on your files: the figures of its system, and its loss."""
    from .. import checkpoint
    if links and not data:
        raise InputError("--links: alignments belong to files, which --data names")
    system, saved = checkpoint.restore(run, attention)
    if (links or links_order) and not system.takes_links:
        raise InputError(f"--links: {run} is a run of {system.name}, whose data have no alignments")
    if data:
        system.attach_all(data, **({"links": links, "links_order": links_order or "source-target"}
                                   if system.takes_links else {}))
        split = "all"
    else:
        attach_own(system, saved)
    for line in system.notes:
        note(line)
    searched = _beam(system, beam)
    other = None if against is None else _other(system, against)
    figures = system.evaluate(split, limit=limit, **searched)
    if other is not None:
        figures["against"] = [list(row) for row in system.against(other, split, limit, **searched)]
    if as_json:
        out_json({"run": run, "split": split, **searched, **figures})
        return
    show_figures(system, "data" if data else split, figures)
    if other is not None:
        show_difference(against, figures["against"])


def _other(system, run):
    """The run to compare with: a translator as well."""
    from .. import checkpoint
    other, _ = checkpoint.restore(run)
    if not hasattr(system, "against") or other.name != system.name:
        raise InputError(f"--against: compares two runs of translate, got {system.name} and {other.name}")
    return other


def show_difference(run, rows):
    """The rows of `against` as a table. An interval that does not hold 0 is called significant."""
    lines = [["words", "sentences", "BLEU", str(run), "difference", "95 % interval", ""]]
    for label, count, ours, theirs, difference, low, high in rows:
        lines.append([label, f"{count:,}", f"{ours:.1f}", f"{theirs:.1f}", f"{difference:+.1f}",
                      f"{low:+.1f} to {high:+.1f}", "not separable" if low <= 0 <= high else "significant"])
    for line in columns(lines):
        out(line)


def _beam(system, beam):
    """The beam as an argument, for a system that has one."""
    if beam != 1 and not system.takes_beam:
        raise InputError(f"--beam: {system.name} writes no sentences, so it has nothing to search")
    return {"beam": beam} if system.takes_beam else {}


def attach_own(system, saved):
    """Read the data that the run was trained on again, for its test and validation sentences."""
    from ..config import Config
    config = Config.from_json(saved.config)
    for path, digest in config.with_digests().digests.items():
        if config.digests.get(path) != digest:
            note(f"{path} has changed since the run was trained, so some test sentences may have been seen in training")
    system.attach(**config.sources(system))


@click.command("predict")
@run_argument
@click.argument("text", nargs=-1)
@beam_option
@click.option("--json", "as_json", is_flag=True, help="one JSON object a line: the answer and the weights")
@trust_option
def predict_command(run, text, beam, as_json, attention):
    """Ask a trained run. TEXT is one sample (a sentence, a document, a story with its question): words are joined, and
    of several quoted texts, "a b" "c d", each is a sample of its own. Without TEXT, each line of stdin is one. Each
    sample gives one line."""
    import json

    from .. import checkpoint
    system, _ = checkpoint.restore(run, attention)
    searched = _beam(system, beam)
    for where, sentence in samples_of(text) if text else lines_of_stdin():
        if not sentence.strip() and not text:
            out("")
            continue
        try:
            found = system.predict(sentence, **searched)
        except InputError as error:
            raise InputError(f"{where}{error}") from None
        out(json.dumps(found.record) if as_json else found.line)


def samples_of(arguments):
    """The samples of the command line, each as ("text 2: ", text): one, of words, or, if an argument of several holds a
    space, one for each."""
    if len(arguments) > 1 and any(" " in argument for argument in arguments):
        return [(f"text {number}: ", argument) for number, argument in enumerate(arguments, 1)]
    return [("", " ".join(arguments))]


def lines_of_stdin():
    """The lines of stdin as UTF-8, whatever the locale, each as soon as it is there: ("stdin, line 1: ", text)."""
    stream = getattr(sys.stdin, "buffer", None)
    if sys.stdin is None or stream is None:
        raise InputError("stdin: expected text, found it closed; give the text as an argument")
    if sys.stdin.isatty():
        note("one sample a line, Ctrl-D to end:")
    for number, line in enumerate(stream, 1):
        where = f"stdin, line {number}: "
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"{where}expected UTF-8 text, found the byte 0x{line[error.start]:02x}") from None
        yield where, text.rstrip("\r\n")


@click.command("heatmap")
@run_argument
@click.argument("text", nargs=-1)
@click.option("-o", "--output", metavar="FILE", help="a .svg, .pdf or .png file, or .html: a page that answers to the "
                                                     "mouse and the keyboard [default: RUN/heatmap.svg]")
@click.option("--as", "form", type=click.Choice(["map", "lines", "text", "hops"]),
              help="of a drawing [default: text for a document, hops for a story, else map]")
@click.option("--layer", metavar="N", help="this layer alone, from 1")
@click.option("--head", metavar="N", help="this head alone, from 1")
@click.option("--hop", metavar="N", help="this hop alone, from 1")
@click.option("--only", metavar="NAME=N,...", help="what else there is to choose by: kind=cross, layer=2,head=1")
@click.option("--mean", is_flag=True, help="the mean over heads, features or rows in place of each by itself")
@click.option("-n", "number", type=click.IntRange(1, 16),
              help="without TEXT: so many test samples [default: 4; 1 for --as lines, text, hops]")
@beam_option
@trust_option
def heatmap_command(run, text, output, form, layer, head, hop, only, mean, number, beam, attention):
    """Draw what a trained run looks at: for TEXT, or for a few of its test samples. For TEXT, and where one is chosen,
    layers, heads and hops are drawn each by itself; they count from 1. For samples it is the small map that training
    leaves, which says so where it is a mean; --as lines, text and hops draw one sample, as if it were TEXT."""
    from .. import checkpoint
    from .looks import ONE, draw, wanted_of
    path = Path(output) if output else Path(run) / "heatmap.svg"
    wanted = wanted_of({"layer": layer, "head": head, "hop": hop}, only)
    system, saved = checkpoint.restore(run, attention)
    if text:
        predictions = [system.predict(" ".join(text), **_beam(system, beam))]
    else:
        attach_own(system, saved)
        predictions = system.examples(number or (1 if form in ONE else 4))
    if not any(p.looks for p in predictions):
        raise InputError(f"{run}: has no attention to draw (attention {saved.config['options'].get('attention')!r})")
    draw(predictions, path, form, wanted, mean)
    out(str(path))
