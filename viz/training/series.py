"""Numbers by step, out of the logs of runs: points, running means, the spread of runs that differ in the seed."""
import math
import numbers
import os

from tinyattn.errors import InputError

from ..text import printable

MANY = 60  # more points than this get a running mean
MOST = 1e100  # of a number that is drawn; squares of it, and quotients, are still numbers


def records_of(given, who):
    """The records of a log, of a `History`, of a `viz.Run` or of a run's folder, as a list of dictionaries. InputError,
    that begins with `who`, for anything else."""
    if isinstance(given, (str, os.PathLike)):
        from .run import Run  # which draws curves itself
        given = Run(given)
    if hasattr(given, "records"):
        given = given.records()
    if not isinstance(given, (list, tuple)) or not all(isinstance(record, dict) for record in given):
        raise InputError(f"{who}: expected the records of a log, a list of tables such as {{'step': 1, 'loss': 2.3}}, "
                         f"got {printable(repr(given), 80)}")
    return list(given)


def number(value):
    """`value` as a float, or None for what cannot be drawn: nan, inf, a text, a number beyond 1e100, for a log may hold
    what somebody else wrote. Less than 1e-100 is 0."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return None
    try:
        value = float(value)
    except OverflowError:  # a whole number beyond float64
        return None
    return (value if abs(value) >= 1 / MOST else 0.0) if abs(value) <= MOST else None


def step_of(record, who):
    """The step of a record, or InputError for one that no axis can show."""
    step = record["step"]
    if number(step) is None or not 0 <= step <= 2 ** 53:
        raise InputError(f"{who}: expected steps to be numbers from 0 to 2^53, got {printable(repr(step), 60)}")
    return step


def points(label, records, key, who="curves"):
    """(step, value) of the records that have the key, in order of steps; of a step that is there twice, the last."""
    found = {}
    for record in records:
        value = number(record.get(key))
        if value is None:
            continue
        if record.get("step") is None:
            raise InputError(f"{who}: {printable(label, 60)}: a record has {key!r} but no 'step'")
        found[step_of(record, f"{who}: {printable(label, 60)}")] = value
    return sorted(found.items())


def smooth(line, window=None):
    """The mean over `window` points around each one, fewer at the ends. None: a twentieth of a line of more than 60
    points, and no mean of a shorter one. Returns None where there is nothing to smooth."""
    if window is None:
        half = len(line) // 40 if len(line) > MANY else 0
    else:
        half = window // 2
    if not half or not line:
        return None
    sums, means = [0.0], []
    for _, y in line:
        sums.append(sums[-1] + y)
    for i, (x, _) in enumerate(line):
        begin, end = max(0, i - half), min(len(line), i + half + 1)
        means.append((x, (sums[end] - sums[begin]) / (end - begin)))
    return means


def spread_of(lines, kind="range"):
    """[(step, mean, low, high)] at the steps that all lines have. kind: "range", the lowest and the highest, or "sd",
    one standard deviation of the sample (n - 1) below and above the mean."""
    lines = [dict(line) for line in lines if line]
    if not lines:
        return []
    found = []
    for step in sorted(set(lines[0]).intersection(*lines[1:])):
        values = [line[step] for line in lines]
        mean = math.fsum(values) / len(values)
        if kind == "range":
            low, high = min(values), max(values)
        else:
            sd = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1)) if len(values) > 1 else 0.0
            low, high = mean - sd, mean + sd
        found.append((step, mean, low, high))
    return found
