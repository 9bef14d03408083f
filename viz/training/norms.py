"""Gradient norms by layer over training: does the gradient reach the first layers, and does it stay small?"""
import math

import numpy as np

from tinyattn.errors import InputError

from ..plot import COLOURS, MARKS, bare, figure, kind_of, literally, plain_log, quiet, save, short
from ..text import printable, width
from .series import number, records_of, step_of

LINES = 7  # more layers than this are rows of a map
ROWS = 40  # more rows than this are joined with those of the module around them
COLUMNS = 120  # more steps than this are thinned out
DASHES = ("-", (0, (6, 2)), (0, (2, 1.5)))


def norms(run, path=None, title=""):
    """The L2 norm of each layer's gradient, before clipping, by step and on a logarithmic axis. Returns the Figure.

    run    records of a log that have "norms": {layer: norm}, a layer being the module that owns the parameters; or a
           `History`, a `viz.Run` or its folder
    path   also write the file, by its suffix: .svg, .pdf or .png
    Up to 7 layers are lines, named at their ends with their last norm; more are rows of a map, the first layer on top.
    Norms of exactly 0, which have no logarithm, lie on a line of their own below, or are cells marked 0; a layer
    without a gradient at a step has a gap there. More than 40 layers are joined by the modules around them.
    Raises InputError if no record has norms.
    """
    if path is not None:
        kind_of(path)
    table = _table(records_of(run, "norms"))
    if not table:
        raise InputError("norms: expected records with the norms of gradients by layer, found none; runs that were "
                         "trained before those were noted have to be trained again")
    steps = sorted({step for line in table.values() for step in line})
    fig = (_lines if len(table) <= LINES else _map)(table, steps)
    if title:
        literally([fig.axes[0].set_title(printable(title, 100), size=15, pad=14)])
    save(fig, path)
    return fig


def _table(records):
    """{layer: {step: norm}}, layers in the order of the model, joined until there are at most 40."""
    table = {}
    for record in records:
        given = record.get("norms")
        for layer, value in given.items() if isinstance(given, dict) and "step" in record else ():
            value = number(value)
            if value is not None and value >= 0:
                table.setdefault(str(layer), {})[step_of(record, "norms")] = value
    depth = max((layer.count(".") for layer in table), default=0)
    while len(table) > ROWS and depth:
        joined = {}
        for layer, line in table.items():
            into = joined.setdefault(".".join(layer.split(".")[:depth]), {})
            for step, value in line.items():
                into[step] = math.hypot(into.get(step, 0.0), value)
        table, depth = joined, depth - 1
    return {layer or "(the model itself)": line for layer, line in table.items()}


def _floor(table):
    """Where a norm of 0 is drawn: below all others."""
    above = [v for line in table.values() for v in line.values() if v > 0]
    return min(above, default=1.0) / 10, above


def _lines(table, steps):
    """A line for each layer, labelled at its end."""
    labels = [f"{printable(layer, 48)}  {short(line[max(line)])}" for layer, line in table.items()]
    room = max(width(label, 12) for label in labels) / 72 + 0.5
    fig = figure(6.8 + room, 4.8)
    axes = fig.add_axes((0.85 / (6.8 + room), 0.13, 5.7 / (6.8 + room), 0.75))
    floor, above = _floor(table)
    ends = []
    for i, line in enumerate(table.values()):
        ys = [math.nan if line.get(step) is None else line[step] or floor for step in steps]
        axes.plot(steps, ys, color=COLOURS[i], marker=MARKS[i], markersize=6, linewidth=2.0,
                  linestyle=DASHES[i % len(DASHES)], markevery=max(1, len(steps) // 15), clip_on=False)
        ends.append((max(line), line[max(line)] or floor))
    axes.set_yscale("log")
    low = floor / 1.5 if any(v == 0 for line in table.values() for v in line.values()) else min(above) / 1.6
    axes.set_ylim(low, max(above, default=1.0) * 1.6)
    if low < floor:
        axes.axhline(floor, color="#999999", linewidth=1, linestyle=":")
    plain_log(axes)
    if low < floor:  # the numbers stop above the line of the zeros
        ticks = [y for y in axes.get_yticks() if floor * 3 < y <= axes.get_ylim()[1]]
        axes.set_yticks([floor, *ticks], ["0", *map(short, ticks)])
        axes.set_yticks([], minor=True)
    axes.set_xlim(right=steps[-1])
    _name_ends(axes, labels, ends)
    axes.set_xlabel("step", size=13)
    axes.set_ylabel("norm of the gradient", size=13)
    bare(axes)
    return fig


def _name_ends(axes, labels, ends):
    """Labels on the right of the lines' ends, moved apart, with a thin line from end to label."""
    low, high = (math.log(y) for y in axes.get_ylim())
    least = 0.062  # of the height of the axes: that of a label
    order = sorted(range(len(labels)), key=lambda i: ends[i][1])
    at = [(math.log(ends[i][1]) - low) / (high - low) for i in order]
    for k in range(1, len(at)):
        at[k] = max(at[k], at[k - 1] + least)
    over = max(0.0, at[-1] - 1.0)
    for k in reversed(range(len(at))):
        at[k] = min(at[k] - (over if k == len(at) - 1 else 0), at[k + 1] - least if k + 1 < len(at) else 1.0)
    texts = []
    for i, y in zip(order, at, strict=True):
        axes.annotate("", ends[i], (1.045, y), xycoords="data", textcoords="axes fraction", annotation_clip=False,
                      arrowprops={"arrowstyle": "-", "color": COLOURS[i], "linewidth": 0.8, "shrinkA": 0, "shrinkB": 3})
        texts.append(axes.text(1.05, y, labels[i], transform=axes.transAxes, va="center", size=12, color="#222222"))
    literally(texts)


def _map(table, steps):
    """A row for each layer, the first on top; columns are steps, as evenly spaced as they are in the log."""
    from matplotlib.colors import LogNorm
    shown = steps if len(steps) <= COLUMNS else [steps[round(i * (len(steps) - 1) / (COLUMNS - 1))]
                                                 for i in range(COLUMNS)]
    values = np.array([[line.get(step, math.nan) for step in shown] for line in table.values()])
    _, above = _floor(table)
    names = [printable(layer, 48) for layer in table]
    left, row = max(width(name, 11) for name in names) / 72 + 0.25, 0.26
    high, wide = row * len(names), 6.4
    page = left + wide + 1.3, high + 1.1
    fig = figure(*page)
    axes = fig.add_axes((left / page[0], 0.65 / page[1], wide / page[0], high / page[1]))
    low, top = min(above, default=0.1), max(above, default=1.0)
    scale = LogNorm(low, top if top > low else low * 10)
    axes.set_facecolor("#FFFFFF")
    with quiet():
        image = axes.imshow(np.where(values > 0, values, math.nan), cmap="cividis", norm=scale, aspect="auto",
                            interpolation="nearest")
    for y, x in np.argwhere(values == 0):
        axes.text(x, y, "0", ha="center", va="center", size=10)
    for y, x in np.argwhere(np.isnan(values)):
        axes.text(x, y, "–", ha="center", va="center", size=10, color="#666666")
    axes.set_yticks(range(len(names)), names, size=11)
    ticks = range(0, len(shown), -(-len(shown) // 8))
    axes.set_xticks(ticks, [f"{shown[i]:,}" for i in ticks], size=11)
    axes.tick_params(length=0)
    axes.set_xlabel("step", size=13)
    axes.spines[:].set_color("#999999")
    literally(axes.get_yticklabels())
    bar = fig.colorbar(image, cax=fig.add_axes(((left + wide + 0.15) / page[0], 0.65 / page[1], 0.16 / page[0],
                                                high / page[1])))
    bar.ax.tick_params(labelsize=11)
    bar.set_label("norm of the gradient", size=12)
    return fig
