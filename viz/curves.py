"""Curves of training: loss by step, and scores by class of test samples."""
import math
import re

from tinyattn.errors import InputError

from .plot import COLOURS, HATCHES, MARKS, bare, figure, kind_of, literally, save
from .text import printable, width

MANY = 60  # more training losses than this get a running mean
UPRIGHT = 8  # more classes than this lie on their side


def curves(runs, path=None, title=""):
    """Training and validation loss by step, a colour for each run. Returns the Figure.

    runs  {label: records}, a record being one line of a run's `log.jsonl`, such as
          {"step": 100, "loss": 2.3, "validation_loss": 2.5}. It may lack either loss; other keys are ignored. In nats.
    path  also write the file, by its suffix: .svg, .pdf or .png
    Training is a thin line, validation a strong one with marks. Where there are many steps, training is a pale line and
    its running mean; the axis then fits the mean and validation, and the pale line may be cut.
    Raises InputError if there is no loss in any record.
    """
    if path is not None:
        kind_of(path)
    lines = {label: [_points(label, records, key) for key in ("loss", "validation_loss")]
             for label, records in runs.items()}
    means = {label: _smooth(train) if len(train) > MANY else None for label, (train, _) in lines.items()}
    strong = [y for label, (train, valid) in lines.items() for _, y in [*(means[label] or train), *valid]]
    if not strong:
        raise InputError("curves: expected records with a step and a 'loss' or 'validation_loss', got none")
    fig = figure(8.0, 4.8)
    axes = fig.add_subplot()
    for i, (label, (train, valid)) in enumerate(lines.items()):
        _draw_run(axes, i, "" if len(lines) == 1 and not label else printable(label) + ", ", train, valid,
                  means[label])
    log = min(strong) > 0 and max(strong) / min(strong) > 50
    if log:
        axes.set_yscale("log")
    if any(means.values()) and min(strong) < max(strong):
        axes.set_ylim(*_limits(min(strong), max(strong), log))
    axes.set_xlabel("step", size=13)
    axes.set_ylabel("loss (nats)", size=13)
    return _finish(fig, axes, title, path)


def _points(label, records, key):
    """(step, value) of the records that have the key, in order of steps; of a step that is there twice, the last."""
    points = {}
    for record in records:
        value = record.get(key)
        if value is None or not math.isfinite(value):
            continue
        if record.get("step") is None:
            raise InputError(f"curves: {label}: a record has {key!r} but no 'step'")
        points[record["step"]] = value
    return sorted(points.items())


def _limits(low, high, log):
    """A little below `low` and a little above `high`, as the axis measures."""
    if log:
        return low * (low / high) ** 0.05, high * (high / low) ** 0.05
    return low - 0.05 * (high - low), high + 0.05 * (high - low)


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


def _smooth(points):
    """The mean over a window around each point, a twentieth of the curve; half as wide at its ends."""
    half, sums = max(1, len(points) // 40), [0.0]
    for _, y in points:
        sums.append(sums[-1] + y)
    smooth = []
    for i, (x, _) in enumerate(points):
        begin, end = max(0, i - half), min(len(points), i + half + 1)
        smooth.append((x, (sums[end] - sums[begin]) / (end - begin)))
    return smooth


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
