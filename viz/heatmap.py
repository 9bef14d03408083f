"""Attention weights as a picture: target tokens down, source tokens across, one cell a pair.

Token i sits at cell i, also when it comes twice. The colour bar goes from 0 to 1 in every picture, so that two can be
compared.
"""
import math

import numpy as np

from tinyattn.errors import InputError

from .plot import figure, kind_of, literally, quiet, save
from .text import printable, width

_VISIBLE = {" ": "␣", "": "∅"}  # tokens that would leave no trace
_FRAME = {"fill": False, "edgecolor": "#D55E00", "linewidth": 1.8}  # around a gold pair


def heatmap(weights, rows, columns, title="", path=None, *, gold=()):
    """One map. weights (T, S), a Tensor or array; rows: T target tokens; columns: S source tokens. Returns the Figure.

    title  what the map shows: sentence, layer, head
    path   also write the file, by its suffix: .svg, .pdf or .png
    gold   pairs (row, column) to be framed, such as a reference alignment; a line at the bottom then says so
    Raises InputError if the shape is not (T, S), or if a weight is not a number.
    """
    return heatmaps([(weights, rows, columns, title, gold)], path)


def heatmaps(maps, path=None, title="", across=None):
    """Several maps on one page, in one scale: sentences, heads, layers or hops. Returns the Figure.

    maps    a list of (weights, rows, columns[, title[, gold]]), each as in `heatmap`
    across  how many stand side by side; None: as many as make the page a little wider than high
    Where any map has gold, one line at the bottom of the page says what the frames are.
    """
    maps = [_checked(i, *one) for i, one in enumerate(maps)]
    if not maps:
        raise InputError("heatmap: expected at least one map, got none")
    if path is not None:
        kind_of(path)
    cell, size = _cell(max(max(m[0].shape) for m in maps))
    left, top = (_label_room([token for m in maps for token in m[side]], size) for side in (1, 2))
    wide, high = max(m[0].shape[1] for m in maps) * cell, max(m[0].shape[0] for m in maps) * cell
    gap = 0.3
    heads = max((len(m[3].split("\n")) for m in maps if m[3]), default=0) * 0.26
    panel = (left + wide + gap, top + high + heads + gap)
    across = min(len(maps), across or max(1, round(math.sqrt(1.5 * len(maps) * panel[1] / panel[0]))))
    down = -(-len(maps) // across)
    head, foot = 0.4 if title else 0.0, 0.3 if any(m[4] for m in maps) else 0.0
    page = (across * panel[0] + 0.8, down * panel[1] + head + foot)
    fig = figure(*page)
    for i, one in enumerate(maps):
        x = (i % across) * panel[0] + left
        y = page[1] - head - (i // across) * panel[1] - heads - top
        t, s = one[0].shape
        axes = fig.add_axes((x / page[0], (y - t * cell) / page[1], s * cell / page[0], t * cell / page[1]))
        image = _draw(axes, one, size)
    _colour_bar(fig, image, maps, page, panel, across, head + heads + top, min(high, 4.0))
    if foot:
        _say_gold(fig)
    if title:
        literally([fig.text(0.5, 1 - 0.15 / page[1], printable(title, 120), ha="center", va="top", size=15)])
    save(fig, path)
    return fig


def _checked(i, weights, rows, columns, title="", gold=()):
    which = f"map {i}" + (f" ({title})" if title else "")
    weights = np.asarray(weights.numpy() if hasattr(weights, "numpy") else weights)
    rows, columns = [_token(t) for t in rows], [_token(t) for t in columns]
    if weights.shape != (len(rows), len(columns)):
        raise InputError(f"heatmap: {which}: expected weights of shape ({len(rows)} rows, {len(columns)} columns), one "
                         f"for each pair of tokens, got shape {weights.shape}")
    if weights.size == 0:
        raise InputError(f"heatmap: {which}: nothing to draw, there are {len(rows)} rows and {len(columns)} columns")
    if weights.dtype.kind not in "fiub":
        raise InputError(f"heatmap: {which}: expected numbers, got {weights.dtype}")
    weights = weights.astype(float)
    if not np.isfinite(weights).all():
        row, column = (int(n) for n in np.argwhere(~np.isfinite(weights))[0])
        raise InputError(f"heatmap: {which}: the weight at row {row} ({rows[row]}), column {column} "
                         f"({columns[column]}) is {weights[row, column]}")
    for row, column in gold:
        if not (0 <= row < len(rows) and 0 <= column < len(columns)):
            raise InputError(f"heatmap: {which}: the gold link ({row}, {column}) is outside {len(rows)} rows and "
                             f"{len(columns)} columns")
    return weights, rows, columns, "\n".join(printable(line, 80) for line in title.split("\n")), gold


def _token(token):
    """A token as it stands at its cell: literal, and seen also where it is white space."""
    token = printable(token, 24)
    return _VISIBLE.get(token.strip(" ") and token or token[:1], token)


def _cell(n):
    """Side of a cell in inches and size of the letters in points, for n tokens on the longer side."""
    cell = 0.42 if n <= 12 else 0.34 if n <= 25 else 0.27
    return cell, {0.42: 13, 0.34: 12, 0.27: 10.5}[cell]


def _label_room(tokens, size):
    """Inches that the longest token takes."""
    return max(width(t, size) for t in tokens) * 1.12 / 72 + 0.18


def _draw(axes, one, size):
    from matplotlib.patches import Rectangle
    weights, rows, columns, title, gold = one
    with quiet():
        image = axes.imshow(weights, cmap="Blues", vmin=0.0, vmax=1.0, aspect="auto", interpolation="nearest")
    axes.xaxis.tick_top()
    axes.set_xticks(range(len(columns)), columns, rotation=90, size=size)
    axes.set_yticks(range(len(rows)), rows, size=size)
    axes.set_xticks(np.arange(len(columns) + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(len(rows) + 1) - 0.5, minor=True)
    axes.grid(which="minor", color="#D9D9D9", linewidth=0.5)
    axes.tick_params(which="both", length=0)
    axes.spines[:].set_color("#999999")
    for row, column in gold:
        axes.add_patch(Rectangle((column - 0.42, row - 0.42), 0.84, 0.84, **_FRAME))
    if title:
        axes.set_title(title, size=14, pad=6)
    literally([*axes.get_xticklabels(), *axes.get_yticklabels(), axes.title])
    return image


def _say_gold(fig):
    """The line at the bottom: a small frame and what it means."""
    from matplotlib.patches import Rectangle
    fig.legend([Rectangle((0, 0), 1, 1, **_FRAME)], ["framed: gold"], loc="lower center", fontsize=12, frameon=False,
               handlelength=1, handleheight=1, borderaxespad=0.1)


def _colour_bar(fig, image, maps, page, panel, across, above, height):
    """One bar for all maps, 0 to 1; a pointed end says that there are weights beyond it, which no probability is."""
    low, high = min(m[0].min() for m in maps) < -1e-6, max(m[0].max() for m in maps) > 1 + 1e-6
    place = ((across * panel[0] - 0.1) / page[0], 1 - (above + height) / page[1], 0.16 / page[0], height / page[1])
    bar = fig.colorbar(image, cax=fig.add_axes(place), ticks=[0, 0.5, 1] if height < 2 else [0, 0.2, 0.4, 0.6, 0.8, 1],
                       extend="both" if low and high else "min" if low else "max" if high else "neither")
    bar.ax.tick_params(labelsize=11)
    bar.outline.set_edgecolor("#999999")
