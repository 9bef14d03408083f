"""Curves of training: loss by step, and scores by class of test samples."""
import math
import re

from tinyattn.errors import InputError

from .plot import COLOURS, HATCHES, MARKS, bare, figure, kind_of, literally, save
from .text import printable


def curves(runs, path=None, title=""):
    """Training and validation loss by step, a colour for each run. Returns the Figure.

    runs  {label: records}, a record being one line of a run's `log.jsonl`, such as
          {"step": 100, "loss": 2.3, "validation_loss": 2.5}. It may lack either loss; other keys are ignored. In nats.
    path  also write the file, by its suffix: .svg, .pdf or .png
    Training is a thin line (and its running mean, where there are many steps), validation a strong one with marks.
    Raises InputError if there is no loss in any record.
    """
    if path is not None:
        kind_of(path)
    lines = {label: [_points(label, records, key) for key in ("loss", "validation_loss")]
             for label, records in runs.items()}
    values = [y for pair in lines.values() for points in pair for _, y in points]
    if not values:
        raise InputError("curves: expected records with a step and a 'loss' or 'validation_loss', got none")
    fig = figure(8.0, 4.8)
    axes = fig.add_subplot()
    for i, (label, (train, valid)) in enumerate(lines.items()):
        _draw_run(axes, i, "" if len(lines) == 1 and not label else printable(label) + ", ", train, valid)
    if min(values) > 0 and max(values) / min(values) > 50:
        axes.set_yscale("log")
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


def _draw_run(axes, i, label, train, valid):
    colour = COLOURS[i % len(COLOURS)]
    if train:
        many = len(train) > 60
        axes.plot(*zip(*train, strict=True), color=colour, linewidth=1.0, alpha=0.3 if many else 0.9,
                  label=None if many else label + "training")
        if many:
            axes.plot(*zip(*_smooth(train), strict=True), color=colour, linewidth=1.3, label=label + "training (mean)")
    if valid:
        axes.plot(*zip(*valid, strict=True), color=colour, linewidth=2.2, linestyle="--", marker=MARKS[i % len(MARKS)],
                  markersize=6, markevery=max(1, len(valid) // 15), label=label + "validation")


def _smooth(points):
    """The mean over a window around each point, a twentieth of the curve; narrower at its ends."""
    half, sums = max(1, len(points) // 40), [0.0]
    for _, y in points:
        sums.append(sums[-1] + y)
    smooth = []
    for i, (x, _) in enumerate(points):
        reach = min(half, i, len(points) - 1 - i)
        smooth.append((x, (sums[i + reach + 1] - sums[i - reach]) / (2 * reach + 1)))
    return smooth


def scores_by_group(models, path=None, title="", of="", score="score"):
    """A score for each class of samples, such as BLEU by sentence length: a bar for each model. Returns the Figure.

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
    fig = figure(max(5.5, (0.55 * len(models) + 0.5) * len(names) + 1.5), 4.8)
    axes = fig.add_subplot()
    for i, (label, rows) in enumerate(models.items()):
        _bars(axes, i, len(models), printable(label), [score for _, _, score in rows])
    counts = [sorted({rows[i][1] for rows in models.values()}) for i in range(len(names))]
    ticks = [re.sub("^([<>]=?) ?", r"\1 ", name).replace("<=", "≤") + f"\nn = {'/'.join(f'{n:,}' for n in count)}"
             for name, count in zip(names, counts, strict=True)]
    axes.set_xticks(range(len(names)), ticks)
    literally(axes.get_xticklabels())
    axes.set_ylim(0, 105)
    axes.set_yticks(range(0, 101, 20))
    axes.set_xlabel(printable(of, 100), size=13)
    axes.set_ylabel(printable(score, 60), size=13)
    literally([axes.xaxis.label, axes.yaxis.label])
    return _finish(fig, axes, title, path)


def _bars(axes, i, models, label, scores):
    """One model's bars, with the score over each and a dash where there was no sentence."""
    width = 0.84 / models
    places = [x + (i - (models - 1) / 2) * width for x in range(len(scores))]
    axes.bar(places, [score or 0.0 for score in scores], 0.92 * width, color=COLOURS[i % len(COLOURS)], label=label,
             hatch=HATCHES[i % len(HATCHES)], edgecolor="white", linewidth=0)
    for x, score in zip(places, scores, strict=True):
        axes.text(x, (score or 0.0) + 1, "–" if score is None else f"{score:.1f}", ha="center", va="bottom", size=11)


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
