"""Two calls timed in turn, and each alone: is the ratio what it seems, or do the two disturb each other?

    block:   their call alone, thrice     ours, theirs, ours, theirs, ours, theirs     our call alone, thrice       and again

A machine that slows down for a while slows both, so ratios of neighbours hold where times do not. But what ran before also
counts: it leaves its data in the caches, and threads that spin or sleep. So every timing begins with calls that are
not counted, and lasts long enough that a thread woken late does not show. What remains shows as a difference between
a call's time in turn and its time alone, which is measured with the same calls in between the rounds.
"""
import gc
import os
import statistics
import time
from contextlib import contextmanager, suppress
from pathlib import Path

LONG, SETTLE = 0.020, 0.008  # seconds that one timing lasts at least, and the uncounted calls before it
BLOCKS, PAIRS = 3, 3
PATIENCE = 3.0               # seconds that a pair may take; slow calls are timed less often
TRIES = 3                    # for a pair that is disturbed
WITHIN = 0.05                # alone and in turn may differ by this share
clock = time.perf_counter


class Timed:
    """A call, with how often it is to be repeated in one timing.

    wait    returns when all calls so far are done. On a card a call returns before that, and the next one is prepared
            meanwhile; so one timing is of many calls, and ends when the last one is done
    """

    def __init__(self, call, wait=lambda: None):
        self.call, self.wait = call, wait
        call()
        wait()
        self.once = self._turn(1)
        if self.once < LONG:
            self.once = max(min(self._turn(3), self._turn(3)), 1e-7)
        self.count, self.before = (max(1, round(seconds / self.once)) for seconds in (LONG, SETTLE))

    def _turn(self, count):
        begun = clock()
        for _ in range(count):
            self.call()
        self.wait()
        return (clock() - begun) / count

    def turn(self):
        """Seconds of one call."""
        for _ in range(self.before):
            self.call()
        self.wait()
        return self._turn(self.count)

    def alone(self, count):
        """Several timings one after the other; the first is a turn that follows the other side's, and does not count."""
        self.turn()
        return [self.turn() for _ in range(count)]


@contextmanager
def without_collector():
    """Python's garbage collector comes when it likes; while timing it does not."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def one(ours):
    """A dictionary of the times of one call alone."""
    with without_collector():
        busy, times = Busy(), ours.alone(BLOCKS * PAIRS)
        return {**summary("ours", times), "others": busy.share()}


def pair(ours, theirs, tries=None):
    """A dictionary: medians in microseconds, in turn and alone, and the ratio theirs / ours with its middle half.

    `counts`: alone and in turn agree for the peer; `ours_counts`: for ours. A pair that does not count is tried again, and
    the try kept that was disturbed least, whatever its ratio; up to `tries` times (TRIES).
    """
    best, begun = None, clock()
    for count in range(1, (tries or TRIES) + 1):
        found = _try(ours, theirs)
        if best is None or found["disturbed"] < best["disturbed"]:
            best = found
        best["tries"] = count
        if best["counts"] and best["ours_counts"] or clock() - begun > 2 * PATIENCE:
            break
    return best


def _try(ours, theirs):
    turns = 4 * BLOCKS * PAIRS + 2 * BLOCKS  # of both together
    expected = turns * sum(max(LONG + SETTLE, 2 * side.once) for side in (ours, theirs)) / 2
    count = max(1, min(PAIRS, round(PAIRS * PATIENCE / expected)))
    a, b, a_alone, b_alone = [], [], [], []
    with without_collector():
        busy = Busy()
        for _ in range(BLOCKS):
            b_alone += theirs.alone(count)
            for _ in range(count):
                a.append(ours.turn())
                b.append(theirs.turn())
            a_alone += ours.alone(count)
        others = busy.share()
    ratios = [y / x for x, y in zip(a, b, strict=True)]
    low, high = _middle_half(ratios)
    off = {side: abs(statistics.median(turn) / statistics.median(alone) - 1)
           for side, turn, alone in (("ours", a, a_alone), ("peer", b, b_alone))}
    return {**summary("ours", a), "ours_alone_us": statistics.median(a_alone) * 1e6, **summary("peer", b),
            "peer_alone_us": statistics.median(b_alone) * 1e6, "ratio": statistics.median(ratios), "ratio_low": low,
            "ratio_high": high, "counts": off["peer"] <= WITHIN, "ours_counts": off["ours"] <= WITHIN,
            "disturbed": max(off.values()), "rounds": len(a), "others": others}


def summary(who, times):
    low, high = _middle_half(times)
    return {f"{who}_us": statistics.median(times) * 1e6, f"{who}_low_us": low * 1e6, f"{who}_high_us": high * 1e6}


def _middle_half(values):
    values = sorted(values)
    return values[len(values) // 4], values[-1 - len(values) // 4]


class Busy:
    """How much of the machine other programs have used since this was made (Linux; None elsewhere)."""

    def __init__(self):
        self.wall, self.mine, self.all = time.perf_counter(), time.process_time(), _busy_seconds()

    def share(self):
        now = _busy_seconds()
        if now is None or self.all is None:
            return None
        others = (now - self.all) - (time.process_time() - self.mine)
        return max(0.0, others / ((time.perf_counter() - self.wall) * (os.cpu_count() or 1)))


def _busy_seconds():
    """Seconds that all cores together have worked since the machine started."""
    with suppress(OSError, ValueError, AttributeError):
        fields = [int(x) for x in Path("/proc/stat").read_text(encoding="utf-8").split("\n", 1)[0].split()[1:9]]
        user, nice, system, idle, waiting, interrupts, soft, stolen = fields
        return (user + nice + system + interrupts + soft + stolen) / os.sysconf("SC_CLK_TCK")
    return None
