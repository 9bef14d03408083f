r"""The tables of a comparison: means, spreads, and differences that are paired by seed.

A *record* is one run: {"attention": label, "at": {other dimension: value}, "seed": n, "metrics": what its metrics.json
holds, or None for a run that failed}. `summarise` makes rows of numbers from records, `layout` makes texts from rows.

The difference of an attention to the baseline is taken seed by seed, d_s = score_s - baseline_s, because a seed fixes
the division of the data, which moves both scores together. With n seeds that both have, mean m and standard deviation s
of the d_s,

    interval = m +- t s / sqrt(n),      t the 97.5 % point of Student's distribution with n - 1 degrees of freedom

An interval that holds 0 says that these seeds cannot tell the two apart: *not separable*.
"""
import math
from statistics import fmean, stdev

from .errors import InputError

# what is measured on the attention itself, where gold alignments or gold attention are known: (title, digits, better)
INTRINSIC = {"aer": ("AER", 4, "lower"), "aer_next_step": ("AER (next step)", 4, "lower"),
             "gold_mse": ("gold MSE", 4, "lower"), "gold_kl": ("gold KL", 4, "lower"),
             "gold_mass": ("gold mass", 4, "higher"), "gold_top": ("gold top", 4, "higher")}


# ---------------------------------------------------------------------------------------------------------------------
# numbers
# ---------------------------------------------------------------------------------------------------------------------
def spread(values):
    """(mean, standard deviation) of some numbers; the deviation, which divides by n - 1, is None for a single one."""
    return fmean(values), stdev(values) if len(values) > 1 else None


def interval(differences, level=0.95):
    """(low, high) of the mean of paired differences by Student's t, None for fewer than two. Needs SciPy."""
    from scipy.stats import t
    mean, deviation = spread(differences)
    if deviation is None:
        return None
    half = float(t.ppf((1 + level) / 2, len(differences) - 1)) * deviation / math.sqrt(len(differences))
    return mean - half, mean + half


def has_scipy():
    """Is SciPy, which knows Student's distribution, here?"""
    try:
        import scipy.stats  # noqa: F401
    except ImportError:
        return False
    return True


def figures_of(system, records):
    """{key: {title, digits, better, intrinsic}} of what the records have, the extrinsic ones first, as `figures` of the
    system has them: the first is what systems are compared by."""
    known = {key: (f.title, f.digits, f.better) for key, f in system.figures.items()}
    keys = sorted({**known, **INTRINSIC}, key=lambda key: key in INTRINSIC)
    found = {}
    for key in keys:
        if any(value_of(record, key) is not None for record in records):
            title, digits, better = known.get(key) or INTRINSIC[key]
            found[key] = {"title": title, "digits": digits, "better": better, "intrinsic": key in INTRINSIC}
    return found


def value_of(record, key, split="test"):
    """A figure of a record, or None; nan and inf are no figures."""
    value = ((record["metrics"] or {}).get(split) or {}).get(key)
    known = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if known else None


# ---------------------------------------------------------------------------------------------------------------------
# rows
# ---------------------------------------------------------------------------------------------------------------------
def summarise(system, records, baseline, pick=None, bound=None):
    """The tables as numbers, as JSON can hold them.

    system     class of the system: its `figures`
    baseline   label of the attention that differences are taken to
    pick       "validation_loss", or a figure of the training split: of each cell's seeds the best one by it stands for
               the cell, instead of the mean over seeds. There are no differences then: picked seeds are no sample.
    bound      with other dimensions: count the cells whose first figure is worse than this
    Returns {"figures", "baseline", "pick", "bound", "tables": [{"at", "rows"}], "summary": rows or None}.
    """
    figures = figures_of(system, records)
    places = _distinct(record["at"] for record in records)
    labels = _distinct(record["attention"] for record in records)
    tables = []
    for at in places:
        here = {label: [r for r in records if r["at"] == at and r["attention"] == label] for label in labels}
        rows = [_row(system, label, here[label], figures, pick) for label in labels]
        tables.append({"at": at, "rows": _with_differences(rows, figures, baseline, pick)})
    summary = None
    if len(places) > 1:
        rows = [_mean_row([row for table in tables for row in table["rows"] if row["attention"] == label],
                          figures, pick, bound) for label in labels]
        summary = _with_differences(rows, figures, baseline, pick)
    return {"figures": figures, "baseline": baseline, "pick": pick, "bound": bound, "tables": tables,
            "summary": summary}


def _distinct(values):
    found = []
    for value in values:
        if value not in found:
            found.append(value)
    return found


def _row(system, label, records, figures, pick):
    """One attention at one place: all its seeds."""
    done = [r for r in records if r["metrics"] is not None]
    picked = _best(system, done, pick) if pick and done else None
    row = {"attention": label, "n": len(done), "failed": len(records) - len(done), "picked": picked and picked["seed"],
           "parameters": _mean([r["metrics"]["parameters"] for r in done]),
           "seconds": _mean([r["metrics"]["seconds"] for r in done]), "figures": {}}
    for key in figures:
        seeds = {r["seed"]: value for r in done if (value := value_of(r, key)) is not None}
        if picked is not None:
            row["figures"][key] = {"mean": seeds.get(picked["seed"]), "sd": None, "seeds": seeds}
        else:
            row["figures"][key] = _figure(seeds)
    return row


def _mean_row(rows, figures, pick, bound):
    """One attention over all places. A seed counts if it has a value at each of them."""
    row = {"attention": rows[0]["attention"], "n": min(r["n"] for r in rows), "failed": sum(r["failed"] for r in rows),
           "picked": None, "parameters": _mean([r["parameters"] for r in rows if r["parameters"] is not None]),
           "seconds": _mean([r["seconds"] for r in rows if r["seconds"] is not None]), "figures": {}}
    for place, (key, figure) in enumerate(figures.items()):
        cells = [r["figures"][key] for r in rows]
        means = [cell["mean"] for cell in cells]
        if pick:
            row["figures"][key] = {"mean": None if None in means else fmean(means), "sd": None, "seeds": {}}
        else:
            common = [s for s in cells[0]["seeds"] if all(s in cell["seeds"] for cell in cells)]
            row["figures"][key] = _figure({s: fmean(cell["seeds"][s] for cell in cells) for s in common})
        if place == 0 and bound is not None:
            worse = [m is None or (m < bound if figure["better"] == "higher" else m > bound) for m in means]
            row["beyond"] = [sum(worse), len(worse)]
    return row


def _figure(seeds):
    mean, deviation = spread(list(seeds.values())) if seeds else (None, None)
    return {"mean": mean, "sd": deviation, "seeds": seeds}


def _mean(values):
    return fmean(values) if values else None


def _with_differences(rows, figures, baseline, pick):
    """The rows, each with "difference" {key: {mean, n, low, high, separable}} to the baseline's row."""
    base = next((row for row in rows if row["attention"] == baseline), None)
    for row in rows:
        row["difference"] = {}
        if pick or base is None or row is base:
            continue
        for key in figures:
            ours, theirs = row["figures"][key]["seeds"], base["figures"][key]["seeds"]
            found = [value - theirs[seed] for seed, value in ours.items() if seed in theirs]
            if found:
                row["difference"][key] = _difference(found)
    return rows


def _difference(found):
    limits = interval(found) if has_scipy() else None
    low, high = limits or (None, None)
    return {"mean": fmean(found), "n": len(found), "low": low, "high": high,
            "separable": None if limits is None else bool(low > 0 or high < 0)}


# ---------------------------------------------------------------------------------------------------------------------
# picking a seed
# ---------------------------------------------------------------------------------------------------------------------
def check_pick(system, pick):
    """InputError if runs of the system will not have what `pick` names."""
    if pick is None or pick == "validation_loss":
        return
    if "train" not in system.also_measured:
        raise InputError(f"pick: expected validation_loss, got {pick!r} ({system.name} is not measured on its training "
                         "samples)")
    if pick not in system.figures:
        raise InputError(f"pick: expected validation_loss or a figure of {system.name} ({', '.join(system.figures)}), "
                         f"got {pick!r}")


def _best(system, records, pick):
    """The record that is best by `pick`; of equal ones the lowest validation loss, then the first."""
    def order(record):
        loss = record["metrics"]["validation_loss"]
        if pick == "validation_loss":
            return loss
        value = value_of(record, pick, "train")
        if value is None:
            raise InputError(f"pick: the run of {record['attention']}, seed {record['seed']}, has no training figure "
                             f"{pick!r}")
        return (value if system.figures[pick].better == "lower" else -value), loss
    return min(records, key=order)


# ---------------------------------------------------------------------------------------------------------------------
# texts
# ---------------------------------------------------------------------------------------------------------------------
def layout(tables, rows, of="seeds", further=None):
    """Rows of numbers as rows of texts, the first one the names of the columns. `tables` is what `summarise` gave.

    further   show at most so many figures after the first
    """
    figures, baseline = tables["figures"], tables["baseline"]
    first = next(iter(figures), None)
    compared = any(row["difference"] for row in rows)
    columns = [("attention", lambda row: str(row["attention"]))]
    for key, figure in list(figures.items())[:None if further is None else 1 + further]:
        columns.append((figure["title"], lambda row, k=key, d=figure["digits"]: _cell(row["figures"][k], d)))
        if key == first and compared:
            columns.append((f"minus {baseline}", lambda row, k=key, d=figure["digits"]: _against(row, k, d)))
        if key == first and any("beyond" in row for row in rows):
            columns.append((f"beyond {tables['bound']:g}", lambda row: "{} of {}".format(*row["beyond"])))
    if any(row["picked"] is not None for row in rows):
        columns.append(("best seed", lambda row: "-" if row["picked"] is None else str(row["picked"])))
    columns += [(of, _count), ("parameters", lambda row: _number(row["parameters"], 0)),
                ("seconds", lambda row: _number(row["seconds"], 1))]
    return [[name for name, _ in columns], *([text(row) for _, text in columns] for row in rows)]


def width_of(rows):
    """How wide rows of texts are as lines, with two spaces between columns."""
    return sum(max(map(len, column)) + 2 for column in zip(*rows, strict=True)) - 2


def fit(shown, width):
    """Tables as `layout` makes them, cut to a width: of all of them the last column goes, then the one before it, as
    long as one is too wide. The first three stay: the attention, the first figure and its difference."""
    shown = [[list(row) for row in rows] for rows in shown]
    while wide := [rows for rows in shown if width_of(rows) > width and len(rows[0]) > 3]:
        name = wide[0][0][-1]
        for rows in shown:
            if len(rows[0]) > 3 and rows[0][-1] == name:
                for row in rows:
                    row.pop()
    return shown


def has_intervals(tables):
    """Does a difference that is shown have an interval? It needs SciPy, and two seeds that both have."""
    rows = [row for table in tables["tables"] for row in table["rows"]] + (tables["summary"] or [])
    first = next(iter(tables["figures"]), None)
    return any(row["difference"].get(first, {}).get("low") is not None for row in rows)


def caption(tables):
    """What the columns are, in a line or two."""
    figures = tables["figures"].values()
    better = {way: [f["title"] for f in figures if f["better"] == way] for way in ("higher", "lower")}
    lines = ["; ".join(f"{way} is better: {', '.join(titles)}" for way, titles in better.items() if titles)]
    if tables["pick"]:
        lines.append(f"of each cell's seeds the best by {_pick_in_words(tables['pick'])}, not the mean")
    else:
        lines.append("mean ± standard deviation over seeds; differences are paired by seed"
                     + (", with their 95 % interval" if has_intervals(tables) else ""))
    return [line for line in lines if line]


def _pick_in_words(pick):
    return "validation loss" if pick == "validation_loss" else f"{pick} on the training samples"


def where(at):
    """{"tasks": 2, "hidden": 8} as a title: "tasks 2, hidden 8"."""
    return ", ".join(f"{name.replace('_', '-')} {value}" for name, value in at.items())


def markdown(rows):
    """Rows of texts as a table in Markdown, as lines."""
    cells = [[text.replace("|", "\\|") for text in row] for row in rows]
    lines = ["| " + " | ".join(row) + " |" for row in cells]
    return [lines[0], "|" + " --- |" * len(rows[0]), *lines[1:]]


def _cell(figure, digits):
    if figure["mean"] is None:
        return "-"
    if digits == 0 and figure["mean"] != round(figure["mean"]):  # a mean of counts is no count
        digits = 2
    text = f"{figure['mean']:.{digits}f}"
    return text if figure["sd"] is None else f"{text} ± {figure['sd']:.{digits}f}"


def _against(row, key, digits):
    d = row["difference"].get(key)
    if d is None:
        return "-"
    if d["low"] is None:
        return f"{d['mean']:+.{digits}f}"
    text = f"{d['mean']:+.{digits}f} [{d['low']:+.{digits}f}, {d['high']:+.{digits}f}]"
    return text if d["separable"] else text + " not separable"


def _count(row):
    return f"{row['n']}" + (f" ({row['failed']} failed)" if row["failed"] else "")


def _number(value, digits):
    return "-" if value is None else f"{value:,.{digits}f}"
