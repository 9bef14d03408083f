"""Curves of training: loss by step, and translation quality by sentence length."""
import math

from tinyattn.errors import InputError

from .plot import COLOURS, DASHES, MARKS, bare, figure, kind_of, literally, save
from .text import printable


def curves(runs, path=None, title=""):
    """Training and validation loss by step, a colour for each run. Returns the Figure.

    runs  {label: records}, a record being one line of a run's `log.jsonl`: {"step": 100, "loss": 2.3, "validation_loss": 2.5}.
          A record may lack either loss; other keys are ignored. Losses are in nats.
    path  also write the file, by its suffix: .svg, .pdf or .png
    Training is a thin line (and its running mean, where there are many steps), validation a strong one with marks.
    Raises InputError if there is no loss in any record.
    """
    if path is not None:
        kind_of(path)
    lines = {label: [_points(label, records, key) for key in ("loss", "validation_loss")] for label, records in runs.items()}
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
    """(step, value) of the records that have the key, in order of steps; a resumed run may repeat one: the last counts."""
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
        axes.plot(*zip(*valid, strict=True), color=colour, linewidth=2.2, linestyle=DASHES[1], marker=MARKS[i % len(MARKS)],
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


def bleu_by_length(models, path=None, title=""):
    """BLEU by length of the source sentence, a line for each model. Returns the Figure.

    models  {label: [(bucket, n, bleu), ...]} as `tinyattn.tasks.metrics.bleu_by_length` gives it: the bucket's name, its
            number of sentences, BLEU from 0 to 100 or None for an empty bucket
    path    also write the file, by its suffix: .svg, .pdf or .png
    Raises InputError if there is nothing to draw or the models have different buckets.
    """
    if path is not None:
        kind_of(path)
    buckets = {label: [str(bucket) for bucket, _, _ in rows] for label, rows in models.items()}
    names = next(iter(buckets.values()), [])
    if not names:
        raise InputError("bleu_by_length: expected at least one model with at least one bucket")
    for label, found in buckets.items():
        if found != names:
            raise InputError(f"bleu_by_length: {label!r} has the buckets {', '.join(found)}; expected {', '.join(names)} as the "
                             "others have")
    fig = figure(max(5.5, 1.7 * len(names) + 2), 4.8)
    axes = fig.add_subplot()
    spread = {}
    for i, (label, rows) in enumerate(models.items()):
        points = [(x, bleu) for x, (_, _, bleu) in enumerate(rows) if bleu is not None]
        if points:
            axes.plot(*zip(*points, strict=True), color=COLOURS[i % len(COLOURS)], marker=MARKS[i % len(MARKS)], markersize=9,
                      linewidth=2.2, linestyle=DASHES[i % len(DASHES)], label=printable(label), clip_on=False)
        for x, y in points:
            spread.setdefault(x, []).append((y, COLOURS[i % len(COLOURS)]))
    _numbers(axes, spread)
    counts = [sorted({rows[i][1] for rows in models.values()}) for i in range(len(names))]
    ticks = [name.replace("<=", "≤ ") + f"\nn = {'/'.join(f'{n:,}' for n in count)}" for name, count in zip(names, counts, strict=True)]
    axes.set_xticks(range(len(names)), ticks)
    axes.set_xlim(-0.4, len(names) - 0.6)
    axes.set_ylim(0, 105)
    axes.set_yticks(range(0, 101, 20))
    axes.set_xlabel("words in the source sentence", size=13)
    axes.set_ylabel("BLEU", size=13)
    return _finish(fig, axes, title, path)


def _numbers(axes, spread):
    """The score at every point, moved apart where two points lie close together."""
    for x, scores in spread.items():
        below = -100.0
        for y, colour in sorted(scores):
            place = max(y + 1.5, below + 5.5)
            axes.annotate(f"{y:.1f}", (x, place), xytext=(9, 0), textcoords="offset points", color=colour, size=11, va="center")
            below = place


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
