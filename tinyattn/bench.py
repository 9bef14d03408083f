"""Benchmarks: our time for a workload, and the ratio to a peer's, both measured in one run.

A row of `workloads.py` is one workload: a function that makes ours (a call to time) and one that makes the peer's, the same work on
the same numbers. The two run in turn, A B A B ..., so that a machine that slows down slows both; medians are compared. The peer is
then timed alone: if that differs from its time in turn by more than 5%, the two disturb each other (thread pools do) and
the row is marked. An absolute time means little on a shared machine; the ratio is what to read.
"""
import statistics
import time

from .autograd import fused
from .device import get_num_threads
from .errors import InputError
from .workloads import rows

ROUNDS = 15       # timings of each side
SHORTEST = 0.004  # seconds that one timing lasts at least: short calls are repeated


def _timed(call, repeat):
    begun = time.perf_counter()
    for _ in range(repeat):
        call()
    return (time.perf_counter() - begun) / repeat


def _warm(call):
    """Run until compiled and settled; how many calls fill one timing."""
    call()
    once = min(_timed(call, 3), _timed(call, 3))
    return max(1, int(SHORTEST / max(once, 1e-7)))


def measure(row, peers=False, twins=False):
    """A dictionary: median microseconds of ours (and its middle half), and with `peers` PyTorch's and the ratio; with `twins` our
    own readable twin is the peer."""
    ours = row.ours()
    n = _warm(ours)
    theirs = _twin_of(row) if twins else row.torch() if peers and row.torch else None
    if theirs is None:
        times = [_timed(ours, n) for _ in range(ROUNDS)]
        return {"name": row.name, "sizes": row.sizes, "ours_us": _middle(times), "spread_us": _spread(times)}
    m = _warm(theirs)
    alone = [_timed(theirs, m) for _ in range(ROUNDS)]
    pairs = [(_timed(ours, n), _timed(theirs, m)) for _ in range(ROUNDS)]
    a, b = [p[0] for p in pairs], [p[1] for p in pairs]
    ratios = sorted(y / x for x, y in pairs)
    peer = "twin" if twins else "torch"
    return {"name": row.name, "sizes": row.sizes, "ours_us": _middle(a), "spread_us": _spread(a), "peer": peer, "peer_us": _middle(b),
            "peer_alone_us": _middle(alone), "ratio": statistics.median(ratios),
            "ratio_low": ratios[len(ratios) // 4], "ratio_high": ratios[-len(ratios) // 4], "asked": 1 if twins else row.asked,
            "undisturbed": abs(_middle(b) / _middle(alone) - 1) <= 0.05}


def _twin_of(row):
    """The same call, with every fused op replaced by its readable twin."""
    call = row.ours()

    def run():
        with fused("never"):
            call()
    return run


def _middle(times):
    return statistics.median(times) * 1e6


def _spread(times):
    times = sorted(times)
    return [times[len(times) // 4] * 1e6, times[-len(times) // 4] * 1e6]


def run(names=(), peers=False, twins=False, report=lambda line: None):
    """Measure the rows whose name contains one of `names` (all by default); a list of dictionaries. `report` gets a line a row.

    peers: beside PyTorch. twins: the fused ops alone, each beside its own readable twin.
    """
    table = [r for r in rows() if r.twin or not twins]
    chosen = [r for r in table if not names or any(n.lower() in f"{r.name} {r.sizes}".lower() for n in names)]
    if not chosen:
        raise InputError(f"bench: no workload is named like {', '.join(names)}; there are: "
                         + ", ".join(dict.fromkeys(r.name for r in table)))
    if peers:
        try:
            import torch
        except ImportError:
            raise InputError("bench --peers: PyTorch is not installed (pip install torch)") from None
        torch.set_num_threads(get_num_threads())
    results = []
    for row in chosen:
        results.append(measure(row, peers, twins))
        report(line(results[-1]))
    return results


def line(r):
    """One result as text."""
    text = f"{r['name']:22} {r['sizes']:38} {r['ours_us']:10.1f} us"
    if "ratio" not in r:
        return text
    peer = {"torch": "PyTorch", "twin": "twin"}[r["peer"]]
    asked = f" (asked {r['asked']:g})" if r["asked"] else ""
    noisy = "" if r["undisturbed"] else f"  [{peer} alone: {r['peer_alone_us']:.1f} us]"
    return (f"{text}  {peer} {r['peer_us']:10.1f} us  ratio {r['ratio']:5.2f} "
            f"({r['ratio_low']:.2f}-{r['ratio_high']:.2f}){asked}{noisy}")
