"""The command `bench`: our speed, and the ratio to the peers that are installed."""
import json
import os
from pathlib import Path

import click

from ..errors import InputError
from ..workloads.row import PEERS
from .console import note, out, out_json


@click.command("bench")
@click.argument("wanted", metavar="[NAME...]", nargs=-1)
@click.option("--peers", is_flag=True, help="beside every peer that is installed (but torch-compile), in turn, with the ratio")
@click.option("--peer", "some", multiple=True, type=click.Choice(list(PEERS)),
              help="beside this peer; may be given several times")
@click.option("--twins", is_flag=True, help="measure each fused op beside its own readable twin instead")
@click.option("--device", "where", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True,
              help="where to compute: every row, and on a card those of the group card")
@click.option("--threads", type=click.IntRange(1), help="threads of every side [default: all]")
@click.option("--check", is_flag=True, help="exit code 1 if a ratio is below what is asked of it")
@click.option("--json", "as_json", is_flag=True, help="print JSON; the table goes to stderr")
@click.option("-o", "--output", metavar="FILE.json", help="write the JSON to a file beside the table")
def bench_command(wanted, peers, some, twins, where, threads, check, as_json, output):
    """Measure the speed of ops, layers and training steps. NAME picks rows of the table: a group (small, recurrent,
    attention, layers, optimiser, training; on a card also card, all of which something is asked there) or a part of a row's
    name.

    The ratio is the peer's time divided by ours. Every peer's results are compared with ours before it is timed. A row whose
    peer, or ours, takes another time alone than in turn is marked with that time: it does not count. On a card the time ends
    when the card is done, and what its memory bounds stands beside a copy: that ratio is the share of its bandwidth.
    """
    from .. import bench
    if (peers or some) and twins:
        raise InputError("bench: give --peers or --twins, not both")
    if check and not (peers or some or twins or where == "cuda"):
        raise InputError("bench --check: nothing is asked of our times alone; give --peers, --peer or --twins too")
    _writable(output)
    names = list(dict.fromkeys([*(bench.peers.BY_ITSELF if peers else ()), *some]))
    document = bench.run(wanted, names, twins, threads, report=note if as_json else out, note=note, where=where)
    if as_json:
        out_json(document)
    if output:
        _write(output, document)
    return _judge(document, check)


def _writable(output):
    """InputError before the work rather than after it."""
    if output is None:
        return
    path = Path(output)
    if path.suffix.lower() != ".json" or path.is_dir() or not path.parent.is_dir():
        raise InputError(f"bench: -o {output}: expected the name of a .json file in a folder that exists")


def _write(output, document):
    """Written beside its place and then moved there, so that an old file is whole until the new one is."""
    part = Path(f"{output}.part")
    part.write_text(json.dumps(document, indent=1), encoding="utf-8")
    os.replace(part, output)


def _judge(document, check):
    """Say which rows are below what is asked, and which do not count. The exit code."""
    wrong = [r for r in document["results"] if "error" in r]
    asked = document["asked"]
    if check and not asked and not wrong:
        raise InputError("bench --check: nothing is asked of any row that was measured")
    below = [r for r in asked if not r["enough"]]
    for r in wrong:
        note(f"error: {r['name']} {r['sizes']}: {r['peer'] or r['ours']}: {r['error']}")
    for r in below:
        disturbed = "" if r["counts"] else " (disturbed, does not count)"
        note(f"below: {r['name']} {r['sizes']}: {r['ratio']:.3g} of {r['peer']}, asked {r['asked']:g}{disturbed}")
    if asked:
        note(f"{len(asked) - len(below)} of {len(asked)} rows with something asked have it; "
             f"{sum(not r['counts'] for r in asked)} of them were disturbed and do not count")
    return 1 if wrong or check and below else 0
