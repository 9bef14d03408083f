"""Curves of training: loss by step, runs with the spread of their seeds, and scores by class of test samples."""
import math
import re
from collections.abc import Mapping

from tinyattn.errors import InputError

from ..plot import COLOURS, HATCHES, MARKS, bare, figure, kind_of, literally, plain_log, save
from ..text import printable, width
from .series import number, points, records_of, smooth, spread_of

UPRIGHT = 8  # more classes than this lie on their side
FEW = 4  # more runs than this have training and validation side by side, and no pale lines
MOST = 24  # more lines than this nobody can tell apart
DASHES = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (6, 2, 1.5, 2)))
WHAT = {  # what a curve can show: {key of a record: what it is called}, and the name of the axis
    "loss": ({"loss": "training", "validation_loss": "validation"}, "loss (nats)"),
    "norm": ({"norm": "gradient"}, "norm of the whole gradient, before clipping"),
    "rate": ({"rate": "learning rate"}, "learning rate"),
}
SPREADS = {"range": "lowest to highest", "sd": "mean ± 1 standard deviation"}


def curves(runs, path=None, title="", *, what="loss", spread="range", log=None, window=None):
    """Figures of training by step, a colour, mark and dash for each run or group of runs. Returns the Figure.

    runs    {label: records}, a record being one line of a run's `log.jsonl`, such as
            {"step": 100, "loss": 2.3, "validation_loss": 2.5}; it may lack either loss, other keys are ignored. In
            place of records: a `History`, a `viz.Run` or its folder; or a list of such runs, as a rule of one kind with
            several seeds: they are drawn faintly, with their mean over the steps that all of them have, and a band
    path    also write the file, by its suffix: .svg, .pdf or .png
    what    "loss" (training and validation, in nats), "norm" (of the gradient before clipping) or "rate"
    spread  what the band is: "range", lowest to highest, or "sd", one standard deviation (n - 1) about the mean
    log     logarithmic axis; None: where the values span more than a factor of 50
    window  points of the running mean of the training loss; 0 for none; None: a twentieth of more than 60 points
    Up to 4 runs: training is a thin line, validation a strong one with marks, on one pair of axes; of a long run
    training is a pale line and its running mean, the axis fits mean and validation, and the pale line may be cut.
    Groups, and more runs: training and validation stand side by side. Raises InputError if no record has such a value.
    """
    if path is not None:
        kind_of(path)
    for name, given, known in (("what", what, WHAT), ("spread", spread, SPREADS)):
        if given not in known:
            raise InputError(f"curves: {name}: expected one of {', '.join(known)}, got {given!r}")
    if not isinstance(runs, Mapping):
        raise InputError(f"curves: expected {{label: records}}, got {printable(repr(runs), 80)}")
    if window is not None and not (isinstance(window, int) and window >= 0):
        raise InputError(f"curves: expected a window of 0 or more points, got {window!r}")
    if len(runs) > MOST:
        raise InputError(f"curves: expected at most {MOST} lines, got {len(runs)}; name fewer runs, or draw groups of "
                         "runs that differ in the seed")
    groups, keys = {label: _members(given) for label, given in runs.items()}, WHAT[what][0]
    lines = {label: {key: [points(label, records, key) for records in members] for key in keys}
             for label, members in groups.items()}
    if not any(line for found in lines.values() for members in found.values() for line in members):
        wanted = " or ".join(map(repr, keys))
        raise InputError(f"curves: expected records with a step and a {wanted}, got none")
    alone = what == "loss" and len(runs) <= FEW and all(len(members) == 1 for members in groups.values())
    fig = (_one_panel if alone else _panels)(lines, what, spread, log, window)
    return _titled(fig, title, path)


def _members(given):
    """The runs of a group, each a list of records; of a single run, itself."""
    many = isinstance(given, (list, tuple)) and given and not isinstance(given[0], dict)
    return [records_of(run, "curves") for run in (given if many else [given])]


def _limits(low, high, log):
    """A little below `low` and a little above `high`, as the axis measures."""
    if log:
        return low * (low / high) ** 0.05, high * (high / low) ** 0.05
    return low - 0.05 * (high - low), high + 0.05 * (high - low)


def _scale(axes, strong, log, fit):
    """The axis for the values of the strong lines: logarithmic if that suits them, and no longer than they ask for."""
    above = [y for y in strong if y > 0]
    if log is None:
        log = len(above) == len(strong) and max(strong) / min(strong) > 50
    if log and above:
        axes.set_yscale("log")
    else:
        log = False
    low, high = min(above if log else strong), max(strong)
    if fit and low < high:
        axes.set_ylim(*_limits(low, high, log))
    if log:
        plain_log(axes)


# ---------------------------------------------------------------------------------------------------------------------
# single runs: training and validation on one pair of axes
# ---------------------------------------------------------------------------------------------------------------------
def _one_panel(lines, what, spread, log, window):
    lines = {label: [found[key][0] for key in ("loss", "validation_loss")] for label, found in lines.items()}
    means = {label: smooth(train, window) for label, (train, _) in lines.items()}
    fig = figure(8.0, 4.8)
    axes = fig.add_subplot()
    for i, (label, (train, valid)) in enumerate(lines.items()):
        _draw_run(axes, i, "" if len(lines) == 1 and not label else printable(label) + ", ", train, valid,
                  means[label])
    strong = [y for label, (train, valid) in lines.items() for _, y in [*(means[label] or train), *valid]]
    _scale(axes, strong, log, any(means.values()))
    axes.set_xlabel("step", size=13)
    axes.set_ylabel("loss (nats)", size=13)
    bare(axes)
    legend = axes.legend(fontsize=12, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
    literally(legend.get_texts())
    return fig


def _draw_run(axes, i, label, train, valid, mean):
    colour = COLOURS[i % len(COLOURS)]
    if train:
        axes.plot(*zip(*train, strict=True), color=colour, linewidth=1.0, alpha=0.3 if mean else 0.9,
                  label=None if mean else label + "training")
        if mean:
            axes.plot(*zip(*mean, strict=True), color=colour, linewidth=1.3, label=label + "training (mean)")
    if valid:
        axes.plot(*zip(*valid, strict=True), color=colour, linewidth=2.2, linestyle="--", marker=MARKS[i % len(MARKS)],
                  markersize=6, markevery=max(1, len(valid) // 15), label=label + "validation")


# ---------------------------------------------------------------------------------------------------------------------
# groups: a panel for each figure, in it the mean and the spread of each group
# ---------------------------------------------------------------------------------------------------------------------
def _panels(lines, what, spread, log, window):
    keys, name = WHAT[what]
    keys = {key: title for key, title in keys.items() if any(line for f in lines.values() for line in f[key])}
    fig = figure(6.2 * len(keys) + (1.8 if len(keys) == 1 else 0.4), 5.0)
    grid = fig.subplots(1, len(keys), sharey=True, squeeze=False)[0]
    handles, strong = {}, []
    for axes, (key, title) in zip(grid, keys.items(), strict=True):
        for i, (label, found) in enumerate(lines.items()):
            handle, values = _draw_group(axes, i, found[key], spread, window if key != "rate" else 0,
                                         pale=len(lines) <= FEW)
            strong += values
            if handle is not None:
                n = sum(map(bool, found[key]))
                handles.setdefault(printable(label, 60) + (f", n = {n}" if len(found[key]) > 1 else ""), handle)
        if len(keys) > 1:
            axes.set_title(title, size=14)
        axes.set_xlabel("step", size=13)
        bare(axes)
    grid[0].set_ylabel(name, size=13)
    _scale(grid[0], strong, log, True)
    across = 1 if max(map(len, handles)) > 45 else min(3 if len(keys) > 1 else 2, len(handles))
    legend = fig.legend(handles.values(), handles, fontsize=12, frameon=False, loc="upper center", handlelength=3.2,
                        bbox_to_anchor=(0.5, 0.0), ncols=across)
    literally(legend.get_texts())
    if any(len(members) > 1 for found in lines.values() for members in found.values()):
        rows = -(-len(handles) // across)
        fig.text(0.5, -0.045 - 0.052 * rows, "strong: mean of the n runs of a group · band: "
                 f"{SPREADS[spread]} · faint: each run", ha="center", va="top", size=11, color="#444444")
    return fig


def _draw_group(axes, i, members, spread, window, pale):
    """One group's runs, mean and band; returns what stands for it in the legend, and the values that must be seen."""
    means = [smooth(line, window) for line in members]
    best = [mean or line for mean, line in zip(means, members, strict=True)]
    colour, many = COLOURS[i % len(COLOURS)], sum(map(bool, members)) > 1
    for line in [line for line in best if many and line] or [line for m, line in zip(means, members) if m and pale]:
        axes.plot(*zip(*line, strict=True), color=colour, linewidth=0.9, alpha=0.4)
    band = spread_of(best, spread)
    if not band:  # nothing, or no step that all of them have
        return (axes.get_lines() or [None])[-1] if any(best) else None, [y for line in best for _, y in line]
    steps, mean, low, high = zip(*band, strict=True)
    floor = min(y for line in best for _, y in line)
    low = [y if y > 0 or floor <= 0 else floor for y in low]  # a mean less its deviation has no logarithm below 0
    if many:
        axes.fill_between(steps, low, high, color=colour, alpha=0.18, linewidth=0)
    handle, = axes.plot(steps, mean, color=colour, linewidth=2.4, linestyle=DASHES[i % len(DASHES)],
                        marker=MARKS[(i + i // len(COLOURS)) % len(MARKS)], markersize=6.5,
                        markevery=(i * max(1, len(steps) // 12) // max(1, len(DASHES)), max(1, len(steps) // 12)))
    return handle, [*mean, *low, *high, *(y for line in best if many for _, y in line)]


def _titled(fig, title, path):
    if title:
        if len(fig.axes) == 1:
            literally([fig.axes[0].set_title(printable(title, 100), size=15, pad=14)])
        else:
            literally([fig.suptitle(printable(title, 100), size=15, y=1.0)])
    save(fig, path)
    return fig


def scores_by_group(models, path=None, title="", of="", score="score"):
    """A score for each class of samples, such as BLEU by sentence length: a bar for each model. Returns the Figure.

    Bars stand side by side; more than 8 classes, or names that would run into each other, get a row each, first on top,
    in up to three panels.
    models  {label: [(class, n, score), ...]}: the class's name, its number of samples, the score from 0 to 100 or None
            for an empty class
    path    also write the file, by its suffix: .svg, .pdf or .png
    of      what the classes are: "words in the source sentence"
    score   what the score is: "BLEU"
    Raises InputError if there is nothing to draw or the models have different classes.
    """
    if path is not None:
        kind_of(path)
    _check_scores(models)
    classes = {label: [str(group) for group, _, _ in rows] for label, rows in models.items()}
    names = next(iter(classes.values()), [])
    if not names:
        raise InputError("scores_by_group: expected at least one model with at least one group")
    for label, found in classes.items():
        if found != names:
            raise InputError(f"scores_by_group: {label!r} has the classes {', '.join(found)}; expected those of the "
                             f"first model, {', '.join(names)}")
    counts = ["n = " + "/".join(f"{n:,}" for n in sorted({rows[i][1] for rows in models.values()}))
              for i in range(len(names))]
    names = [printable(re.sub("^([<>]=?) ?", r"\1 ", name).replace("<=", "≤")) for name in names]
    wide = max(5.5, (0.55 * len(models) + 0.5) * len(names) + 1.5)
    if len(names) > UPRIGHT or _collide([max(map(_points_of, pair)) for pair in zip(names, counts)], wide):
        return _lying(models, names, counts, path, title, of, score)
    fig = figure(wide, 4.8)
    axes = fig.add_subplot()
    for i, (label, rows) in enumerate(models.items()):
        _bars(axes, i, len(models), printable(label), [score for _, _, score in rows])
    axes.set_xticks(range(len(names)), [f"{name}\n{count}" for name, count in zip(names, counts, strict=True)])
    literally(axes.get_xticklabels())
    axes.set_ylim(0, 105)
    axes.set_yticks(range(0, 101, 20))
    literally([axes.set_xlabel(printable(of, 100), size=13), axes.set_ylabel(printable(score, 60), size=13)])
    return _finish(fig, axes, title, path)


def _check_scores(models):
    """InputError for anything but {label: [(class, n, score), ...]}."""
    if not isinstance(models, Mapping):
        raise InputError(f"scores_by_group: expected {{label: rows}}, got {printable(repr(models), 80)}")
    for label, rows in models.items():
        for row in rows:
            fits = isinstance(row, (list, tuple)) and len(row) == 3 and isinstance(row[1], int) and (
                row[2] is None or number(row[2]) is not None and -1e-6 <= row[2] <= 100 + 1e-6)
            if not fits:
                raise InputError(f"scores_by_group: {printable(label, 60)}: expected (class, number of samples, score "
                                 f"from 0 to 100 or None), got {printable(repr(row), 80)}")


def _points_of(label):
    return width(label, 11)


def _collide(widths, wide):
    """Would labels of these widths, in points, touch each other under the bars of a figure `wide` inches wide?"""
    room = 72 * 0.775 * wide / (1.1 * len(widths))  # the axes take 0.775 of the figure, and have a tenth to spare
    return any((a + b) / 2 + 6 > room for a, b in zip(widths, widths[1:], strict=False))


def _lying(models, names, counts, path, title, of, score):
    """A row for each class, its bars from left to right; in panels side by side when the page would be too high."""
    row = max(0.32, 0.19 * len(models) + 0.08)
    panels = min(3, math.ceil(len(names) * row / 7.5))
    rows = math.ceil(len(names) / panels)
    ticks = [f"{name}  {count}" for name, count in zip(names, counts, strict=True)]
    left = max(map(_points_of, ticks)) / 72 + 0.2
    panel, page = left + 3.9, rows * row + 1.4
    wide = panels * panel + 0.2
    fig = figure(wide, page)
    for p in range(panels):
        part = slice(p * rows, (p + 1) * rows)
        here = len(ticks[part])
        axes = fig.add_axes(((p * panel + left) / wide, (page - 0.6 - here * row) / page, 3.5 / wide,
                             here * row / page))
        for i, (label, found) in enumerate(models.items()):
            _bars(axes, i, len(models), printable(label), [score for _, _, score in found[part]], lying=True)
        _lay(axes, ticks[part], score)
    head = [printable(title, 100)] * bool(title) + [" by ".join(printable(s, 100) for s in (score, of) if s)]
    literally([fig.text(0.5, 1 - 0.4 / page, "\n".join(head), ha="center", va="bottom", size=15)])
    legend = fig.legend(*fig.axes[0].get_legend_handles_labels(), fontsize=12, frameon=False, loc="upper center",
                        bbox_to_anchor=(0.5, 0.25 / page), ncols=2)
    literally(legend.get_texts())
    save(fig, path)
    return fig


def _lay(axes, ticks, score):
    """The axes of bars that lie: names on the left, first on top, and the score along the bottom."""
    axes.set_yticks(range(len(ticks)), ticks)
    axes.set_ylim(len(ticks) - 0.5, -0.5)
    axes.set_xlim(0, 112)
    axes.set_xticks(range(0, 101, 20))
    axes.set_xlabel(printable(score, 60), size=13)
    bare(axes)
    axes.grid(visible=False, axis="y")
    axes.grid(axis="x", color="#DDDDDD", linewidth=0.8)
    axes.tick_params(axis="y", length=0)
    literally([*axes.get_yticklabels(), axes.xaxis.label])


def _bars(axes, i, models, label, scores, lying=False):
    """One model's bars, with the score at the end of each and a dash where there was no sentence."""
    wide = 0.84 / models
    places = [x + (i - (models - 1) / 2) * wide for x in range(len(scores))]
    (axes.barh if lying else axes.bar)(
        places, [score or 0.0 for score in scores], 0.92 * wide, color=COLOURS[i % len(COLOURS)], label=label,
             hatch=HATCHES[i % len(HATCHES)], edgecolor="white", linewidth=0)
    for x, score in zip(places, scores, strict=True):
        place, text = (x, (score or 0.0) + 1), "–" if score is None else f"{score:.1f}"
        if lying:
            axes.text(*place[::-1], text, ha="left", va="center", size=10)
        else:
            axes.text(*place, text, ha="center", va="bottom", size=11)


def _finish(fig, axes, title, path):
    bare(axes)
    if axes.get_legend_handles_labels()[0]:
        legend = axes.legend(fontsize=12, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
        literally(legend.get_texts())
    if title:
        axes.set_title(printable(title, 100), size=15, pad=14)
        literally([axes.title])
    save(fig, path)
    return fig
