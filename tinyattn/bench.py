"""Benchmarks: our time for a workload, and the ratio to a peer's, both measured in one run.

A row of `workloads/` is one workload, as several sides do it on the same numbers. First the results are compared, outputs
and gradients: a peer that computes something else is an error, not a number. Then ours and one peer at a time run in
turn, A B A B ..., see `workloads/timing.py`. An absolute time means little on a shared machine; the ratio is what to read,
and only where it counts: the peer alone takes as long as in turn. All sides are held to the same number of threads.

On a card a call returns before its work is done. There a timing is of many calls and ends when the card has done them all, so
it shows what is longer: to prepare the work or to do it. What memory bounds is measured beside a copy, as beside a peer.
"""
import gc
from contextlib import contextmanager
from functools import partial

import numpy as np

from . import device
from .autograd import fused
from .errors import InputError
from .workloads import GROUPS, card, peers, rows, timing
from .workloads.row import COPY, OURS, PEERS
from .workloads.sides import fetched, made_there, on_card, wait_of

CALLS = 4   # whose results are compared
BUSY = 0.1  # the share of the machine that other programs may use, before we say that they do


def run(names=(), wanted=(), twins=False, threads=None, report=lambda line: None, note=lambda line: None, where="cpu"):
    """Measure the rows whose group is one of `names` or whose name contains one (all by default); a dictionary for JSON.

    wanted: peers, by their names in PEERS. twins: the fused ops alone, each beside its own readable twin.
    report gets a line a row and peer, note what else there is to say. where: "cpu" or "cuda".
    """
    device.require(where)
    if where == "cuda" and device.cuda_status() == "simulated":
        raise InputError("bench: the simulator's times mean nothing; unset NUMBA_ENABLE_CUDASIM to measure a card")
    with device.default_device(where):
        return _run(choose(names, twins), wanted, twins, threads, report, note)


def _run(chosen, wanted, twins, threads, report, note):
    with _threads(threads) as threads:
        here, missing = _loaded(wanted, threads)
        gc.freeze()  # the collector, which comes between timings, need not look through all that was imported
        document = {**peers.facts(here, threads), "device": device.get_default_device(), "peers": here, "left_out": missing}
        if on_card():
            document |= peers.card_facts()
            note(f"{document['card']}; driver {document['driver']}; memory from {'the pool' if document['pool'] else 'the driver'}")
        note(", ".join([f"{threads} threads", document["processor"], *map(" ".join, document["versions"].items())]))
        for peer, why in missing.items():
            note(f"left out: {PEERS[peer]}: {why}")
        gflops = document["peak_gflops"] = peak() if any(row.floor for row in chosen) else None
        results = document["results"] = []
        for row in chosen:
            for result in measure(row, here, twins, gflops):
                results.append(result)
                report(line(result))
    shares = [r["others"] for r in results if r.get("others") is not None]
    document["others"] = sum(shares) / len(shares) if shares else None
    document["asked"] = verdicts(results)
    if shares and document["others"] > BUSY:
        note(f"other programs used {document['others']:.0%} of this machine meanwhile: these times are worth little")
    return document


@contextmanager
def _threads(wanted):
    """Hold ours and all that begins inside to a number of threads; None is as many as we have."""
    before = device.get_num_threads()
    with peers.on_cores(wanted or before):
        device.set_num_threads(wanted or before)
        try:
            yield wanted or before
        finally:
            device.set_num_threads(before)
            gc.unfreeze()


def _loaded(wanted, threads):
    """([peers that can be measured], {peer: why not})"""
    missing = {peer: why for peer, why in peers.load(wanted, threads).items() if why}
    here = [peer for peer in wanted if peer not in missing]
    if wanted and not here:
        raise InputError("bench: no peer can be measured here (pip install 'tinyattn[peers]'): "
                         + "; ".join(f"{peer}: {why}" for peer, why in missing.items()))
    return here, missing


def choose(names, twins=False):
    """The rows of the table that `names` pick. On a card "card" is those that exist only there, or of which something is asked."""
    table = [row for row in (*rows(), *(card.rows() if on_card() else ())) if row.twin or not twins]
    for name in names:
        if not any(_named(row, name) for row in table):
            if name.lower() == "card" and not on_card():
                raise InputError("bench: the group card is measured on a card: give --device cuda")
            groups = dict.fromkeys([*GROUPS, *(row.group for row in table)])
            raise InputError(f"bench: no workload is named like {name}; there are the groups {', '.join(groups)} and the rows "
                             + ", ".join(dict.fromkeys(row.name for row in table)))
    return [row for row in table if not names or any(_named(row, name) for name in names)]


def _named(row, name):
    name = name.lower()
    if name == "card":
        return on_card() and (row.group == name or bool(row.card))
    return name == row.group or name in f"{row.name} {row.sizes}".lower()


def peak():
    """Billions of operations a second in our own product of two matrices of 512 (on a card 4096): what a floor is counted by."""
    from .functional import full
    n = 4096 if on_card() else 512
    a = full((n, n), 1.0, np.float32)
    return 2 * n**3 / min(timing.Timed(lambda: a @ a, wait_of("ours")).alone(timing.BLOCKS * timing.PAIRS)) / 1e9


# ---------------------------------------------------------------------------------------------------------------------
# one row
# ---------------------------------------------------------------------------------------------------------------------
def measure(row, here, twins=False, gflops=None):
    """Dictionaries, one for each of our sides and each peer in `here` that can do the row; without peers one for each side."""
    about = {"name": row.name, "sizes": row.sizes, "group": row.group,
             "floor_us": row.floor / gflops / 1e3 if row.floor and gflops else None}
    if row.apart:
        yield _apart(row, about)
        return
    mine, first = {}, None
    for side in OURS:
        if side in row.sides and not (twins and side != "ours"):
            call, results, wrong = _begin(row.sides[side], side)
            first = first or results
            wrong = wrong or disagreement(first, results, row.tolerance)
            if wrong:
                yield {**about, "ours": "ours", "peer": side, "error": wrong}
            else:
                mine[side] = timing.Timed(call, wait_of(side))
    if not mine:
        return
    theirs = {"twin": partial(_twin_of, row)} if twins else {peer: row.sides[peer] for peer in here if peer in row.sides}
    asks = row.card if on_card() else row.asked
    if COPY in asks and not twins:
        theirs = {COPY: partial(card.copying, row.moved), **theirs}
    for peer, make in theirs.items():
        call, results, failed = _begin(make, peer)
        if failed:
            yield {**about, "ours": "ours", "peer": peer, "left_out": failed}
            continue
        wrong = None if peer == COPY else disagreement(first, results, row.tolerance)
        if wrong:
            yield {**about, "ours": "ours", "peer": peer, "error": wrong}
            continue
        call, asked = timing.Timed(call, wait_of(peer)), 1 if twins else asks.get(peer)
        for side, ours in mine.items():
            found = timing.pair(ours, call, tries=None if asked else 1)
            yield {**about, "ours": side, "peer": peer, **found, **_rates(row, found), "asked": asked}
    if not theirs:
        for side, ours in mine.items():
            found = timing.one(ours)
            yield {**about, "ours": side, "peer": None, **found, **_rates(row, found)}


def _apart(row, about):
    try:
        return {**about, "ours": "ours", "peer": None, **row.apart()}
    except RuntimeError as error:
        return {**about, "ours": "ours", "peer": None, "error": peers.short(error)}


def _rates(row, found):
    """On a card: what a row has moved and computed in a second."""
    if not on_card():
        return {}
    rates = {"moved": row.moved, "gb_per_s": row.moved / found["ours_us"] / 1e3} if row.moved else {}
    return rates | ({"gflop_per_s": row.floor / found["ours_us"] / 1e3} if row.floor else {})


def _begin(make, side="ours"):
    """(a side's call, the results of its first calls, None or why it fails). A captured step is replayed from its third call
    on, and whether that has changed the weights shows in the fourth."""
    try:
        with made_there(side):
            call = make()
        return call, [fetched(call()) for _ in range(CALLS)], None
    except Exception as error:  # each library fails in its own ways; that is no failure of the others
        return None, None, peers.short(error)


def _twin_of(row):
    """The same call, with every fused op replaced by its readable twin."""
    call = row.sides["ours"]()

    def run():
        with fused("never"):
            return call()
    return run


def disagreement(mine, its, tolerance):
    """None, or what differs between the results of two sides, each a list over calls of lists of arrays."""
    for call, (ours, theirs) in enumerate(zip(mine, its, strict=True), 1):
        if [a.shape for a in ours] != [b.shape for b in theirs]:
            return f"disagrees: results of shapes {[a.shape for a in theirs]}, ours {[a.shape for a in ours]}"
        for place, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            if b.dtype == np.float64 and b.ndim and a.dtype != b.dtype:
                return f"disagrees: result {place} is {b.dtype}, ours {a.dtype}"
            largest = max(np.abs(a).max(initial=0), np.abs(b).max(initial=0))
            off = np.abs(np.subtract(a, b, dtype=np.float64)).max(initial=0)
            if not off <= tolerance * largest:
                return f"disagrees: result {place} of call {call} is {off:.2g} from ours, the largest element is {largest:.2g}"
    return None


# ---------------------------------------------------------------------------------------------------------------------
# what came out
# ---------------------------------------------------------------------------------------------------------------------
def verdicts(results):
    """For each row and peer with something asked: the better ratio of ours and the captured step's, of those that count if one
    does, and is it enough?"""
    best = {}
    for r in results:
        if r.get("asked"):
            key = r["name"], r["sizes"], r["peer"]
            if key not in best or (r["counts"], r["ratio"]) > (best[key]["counts"], best[key]["ratio"]):
                best[key] = r
    keep = ("name", "sizes", "group", "peer", "ours", "ratio", "ratio_low", "ratio_high", "asked", "counts")
    return [{**{k: r[k] for k in keep}, "enough": r["ratio"] >= r["asked"]} for r in best.values()]


def line(r):
    """One result as text."""
    text = f"{r['name']:22} {r['sizes']:40} "
    if "left_out" in r or "error" in r:
        return f"{text}{r['peer'] or r['ours']}: " + (f"left out: {r['left_out']}" if "left_out" in r else f"ERROR: {r['error']}")
    text += f"{r['ours']:8} {r['ours_us']:10.1f} us"
    remarks = [f"floor {r['floor_us']:.0f}"] if r["floor_us"] else []
    remarks += [f"{r['gb_per_s']:.0f} GB/s of {r['moved'] / 1e6:.1f} MB"] if "gb_per_s" in r else []
    remarks += [f"{r['gflop_per_s']:.0f} GFLOP/s"] if "gflop_per_s" in r else []
    if r["peer"] is None:
        return "  ".join([text, *remarks])
    asked = f" asked {r['asked']:<4g}" + ("" if r["ratio"] >= r["asked"] else "BELOW") if r["asked"] else ""
    if not r["counts"]:
        remarks.append(f"does not count: {r['peer']} alone {r['peer_alone_us']:.1f}")
    if not r["ours_counts"]:
        remarks.append(f"{r['ours']} alone {r['ours_alone_us']:.1f}")
    return (f"{text}  {r['peer']:9} {r['peer_us']:10.1f} us  x{r['ratio']:<6.3g} ({r['ratio_low']:.3g}-{r['ratio_high']:.3g})"
            f"{asked}  {'; '.join(remarks)}").rstrip()
