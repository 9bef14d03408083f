"""Attention weights as a picture: target tokens down, source tokens across, one cell a pair.

Token i sits at cell i, also when it comes twice. The colour bar goes from 0 to 1 in every picture, so that two can be
compared; where `scale` asks for another, the bar and the title say so.
"""
import math
import textwrap
from dataclasses import dataclass

import numpy as np

from tinyattn.errors import InputError
from tinyattn.models.system import said

from ..plot import figure, kind_of, literally, no_path, numbers, quiet, save
from ..text import printable, width

MOST = 200        # tokens on a side; more would be a smear
ALL_NAMED = 60    # up to so many tokens, each has its name at the edge
SCALES = ("own", "map", "row")
_VISIBLE = {" ": "␣", "": "∅"}  # tokens that would leave no trace
_FRAME = {"fill": False, "edgecolor": "#D55E00", "linewidth": 1.8}  # around a gold pair
_WIDEST = 15      # inches that the cells of a grid may take, side by side


def heatmap(weights, rows, columns, title="", path=None, *, gold=(), scale=1.0):
    """One map. weights (T, S), a Tensor or array; rows: T target tokens; columns: S source tokens. Returns the Figure.

    title  what the map shows: sentence, layer, head
    path   also write the file, by its suffix: .svg, .pdf or .png
    gold   pairs (row, column) to be framed, such as a reference alignment; a line at the bottom then says so
    scale  the weight that is darkest, 1 by default; "own": the largest weight of the picture, "map": of each map,
           "row": of each row. Any but 1 is said by the title and the colour bar
    Raises InputError if the shape is not (T, S), if a weight is not a number, or for more than 200 tokens on a side.
    """
    no_path("heatmap", title, path)
    return heatmaps([(weights, rows, columns, title, gold)], path, scale=scale)


def heatmaps(maps, path=None, title="", across=None, *, scale=1.0):
    """Several maps on one page, in one scale: sentences, heads, layers or hops. Returns the Figure.

    maps    a list of (weights, rows, columns[, title[, gold[, place]]]), each as in `heatmap`. place says where a map
            stands in a model: {"layer": 1, "head": 2}, {"hop": 1}
    across  how many stand side by side; None: as many as make the page a little wider than high
    Where all maps have places by which they can stand as in `grid`, they do. Where any map has gold, one line at the
    bottom of the page says what the frames are.
    """
    maps = _checked_all(maps)
    if across is None and _grid_names(maps):
        return _grid(maps, path, title, scale)
    return _flow(maps, path, title, across, scale)


def grid(maps, path=None, title="", *, scale=1.0):
    """Maps in rows and columns by their places, such as layers down and heads across. Returns the Figure.

    maps   as in `heatmaps`, each with a place of the same two names: the first says the row, the second the column.
           Of more names, those with one value in all maps, such as {"kind": "cross"}, are added to the title
    Rows and columns have titles in place of the maps' own. Tokens that all maps share are written at the edges alone.
    InputError where a place is missing, or comes twice.
    """
    maps = _checked_all(maps)
    if not _grid_names(maps):
        raise InputError("heatmap: grid: expected for each map a place of its own with the same two names, such as "
                         f"{{'layer': 1, 'head': 2}}, got {', '.join(str(m.place) for m in maps[:4])}")
    return _grid(maps, path, title, scale)


# ---------------------------------------------------------------------------------------------------------------------
# what is given
# ---------------------------------------------------------------------------------------------------------------------
@dataclass
class Map:
    """One map, checked: weights (T, S) of floats, T and S tokens that can be printed."""
    weights: np.ndarray
    rows: list
    columns: list
    title: str
    gold: tuple
    place: dict


def _checked_all(maps):
    maps = [checked(f"heatmap: map {i + 1}", *one) for i, one in enumerate(maps)]
    if not maps:
        raise InputError("heatmap: expected at least one map, got none")
    return maps


def checked(who, weights, rows, columns, title="", gold=(), place=None):
    """A Map, or InputError that begins with `who`."""
    who += f" ({printable(', '.join(title.splitlines()), 80)})" if title else ""
    weights = numbers(who, weights)
    rows, columns = [token_text(t, 48 if " " in str(t) else 24) for t in rows], [token_text(t) for t in columns]
    if weights.shape != (len(rows), len(columns)):
        raise InputError(f"{who}: expected weights of shape ({len(rows)} rows, {len(columns)} columns), one "
                         f"for each pair of tokens, got shape {weights.shape}")
    if weights.size == 0:
        raise InputError(f"{who}: nothing to draw, there are {len(rows)} rows and {len(columns)} columns")
    if weights.dtype.kind not in "fiub":
        raise InputError(f"{who}: expected numbers, got {weights.dtype}")
    weights = weights.astype(float)
    if not np.isfinite(weights).all():
        row, column = (int(n) for n in np.argwhere(~np.isfinite(weights))[0])
        raise InputError(f"{who}: the weight at row {row} ({rows[row]}), column {column} "
                         f"({columns[column]}) is {weights[row, column]}")
    for tokens, what in ((rows, "rows"), (columns, "columns")):
        if len(tokens) > MOST:
            raise InputError(f"{who}: expected at most {MOST} tokens on a side, got {len(tokens)} {what}; draw a part")
    for row, column in gold:
        if not (0 <= row < len(rows) and 0 <= column < len(columns)):
            raise InputError(f"{who}: the gold link ({row}, {column}) is outside {len(rows)} rows and "
                             f"{len(columns)} columns")
    return Map(weights, rows, columns, "\n".join(printable(line, 80) for line in title.split("\n")), gold, place or {})


def token_text(token, longest=24):
    """A token as it stands at its cell: literal, and seen also where it is white space. A sentence may be longer."""
    token = printable(token, longest)
    return _VISIBLE.get(token.strip(" ") and token or token[:1], token)


def _grid_names(maps):
    """The two names that tell the places of all maps apart, such as layer and head; None where there are no such two,
    or two maps have one place."""
    names = list(maps[0].place)
    if len(names) < 2 or any(list(m.place) != names for m in maps):
        return None
    several = [name for name in names if len({m.place[name] for m in maps}) > 1]
    two = names[-2:] if set(several) <= set(names[-2:]) else several
    places = {tuple(m.place.items()) for m in maps}
    return two if len(two) == 2 and len(places) == len(maps) else None


class Scale:
    """From weights to shades: what is darkest, and the words that say so where that is not 1."""

    def __init__(self, scale, weights):
        number = isinstance(scale, (int, float)) and not isinstance(scale, bool)
        if not (number and math.isfinite(scale) and scale > 0) and scale not in SCALES:
            raise InputError(f"picture: expected a scale above 0, or one of {', '.join(SCALES)}, got {scale!r}")
        largest = max(float(w.max(initial=0)) for w in weights)
        self.kind = "number" if number else scale
        self.top = float(scale) if number else largest if scale == "own" and largest > 0 else 1.0
        self.relative = scale in ("map", "row")

    @property
    def said(self):
        """The line for the title: "" for the common scale from 0 to 1."""
        if self.relative:
            return f"each {self.kind} in a scale of its own: darkest is its largest weight, not 1"
        where = ", the largest weight here" if self.kind == "own" else ""
        return "" if self.top == 1 else f"scale from 0 to {self.top:.3g}{where}, not to 1"

    @property
    def label(self):
        """The words beside the colour bar."""
        return f"share of the largest weight of its {self.kind}" if self.relative else \
            "" if self.top == 1 else f"weight, up to {self.top:.3g}"

    def shade(self, weights):
        """Numbers to be drawn from 0 to `top`."""
        axis = {"row": -1, "map": None}.get(self.kind)
        if not self.relative:
            return weights
        largest = weights.max(axis, keepdims=True)
        return weights / np.where(largest > 0, largest, 1)


# ---------------------------------------------------------------------------------------------------------------------
# the page
# ---------------------------------------------------------------------------------------------------------------------
@dataclass
class Cells:
    """Measures in inches that all maps of a page share; letters in points; of `every` so many tokens one is named."""
    x: float
    y: float
    size: float
    left: float
    top: float
    wide: float
    high: float

    def every(self, cell):
        return max(1, math.ceil(self.size * 1.25 / 72 / cell - 1e-9))


def _cells(maps, across=1):
    """The measures for maps of which `across` stand side by side and may not grow wider than a page."""
    t, s = (max(m.weights.shape[axis] for m in maps) for axis in (0, 1))
    y, x = ((0.42 if n <= 12 else 0.34 if n <= 25 else 0.27 if n <= ALL_NAMED else 0.11) for n in (t, s))
    if max(t, s) <= ALL_NAMED:
        x = y = min(x, y)
    else:
        x, y = min(x, 0.27), min(y, 0.27)
    if across > 1:
        x = y = min(x, y, max(_WIDEST / (across * s), 0.05))
    size = {0.42: 13, 0.34: 12, 0.27: 10.5}.get(max(x, y), 10)
    left, top = (max(width(t, size) for m in maps for t in tokens(m)) * 1.12 / 72 + 0.18
                 for tokens in (lambda m: m.rows, lambda m: m.columns))
    return Cells(x, y, size, left, top, s * x, t * y)


def _flow(maps, path, title, across, scale):
    """Maps one after the other, each with its title and its tokens."""
    if path is not None:
        kind_of(path)
    scale, cells, gap = Scale(scale, [m.weights for m in maps]), _cells(maps), 0.3
    titles = [_title_of(m, scale) for m in maps]
    heads = max((len(t.split("\n")) for t in titles if t), default=0) * 0.26
    room = _widest(titles, 14) if len(maps) > 1 else 0.0
    panel = max(cells.left + cells.wide, room) + gap, cells.top + cells.high + heads + gap
    across = beside(len(maps), panel, 1.5) if across is None else max(1, min(across, len(maps)))
    head = _head(title, scale)
    page = (across * panel[0] + 0.8, -(-len(maps) // across) * panel[1] + head + _foot(maps, cells))
    fig = figure(*page)
    for i, one in enumerate(maps):
        at = (i % across * panel[0] + cells.left, head + i // across * panel[1] + heads + cells.top)
        axes, image = _draw(fig, page, at, one, cells, scale)
        if titles[i]:
            axes.set_title(titles[i], size=14, pad=6)
            literally([axes.title])
    bar = (across * panel[0] - 0.1, head + heads + cells.top, min(cells.high, 4.0))
    return _finish(fig, page, image, bar, maps, cells, scale, title, path)


def beside(count, panel, shape):
    """How many of `count` pictures, each panel[0] wide and panel[1] high, stand side by side on a page about `shape`
    times as wide as high; the rows are filled evenly."""
    across = max(1, min(count, round(math.sqrt(shape * count * panel[1] / panel[0]))))
    return -(-count // -(-count // across))


def _title_of(one, scale):
    """A map's title: its own, or where it stands; and its largest weight, where that makes its scale."""
    title = one.title or said(one.place)
    if scale.kind == "map":
        title += f"{chr(10) if title else ''}largest {one.weights.max():.2g}"
    return title


def _widest(titles, size):
    """Inches that the longest line takes, but no more than a page has."""
    return min(max((width(line, size) for t in titles for line in t.split("\n")), default=0) / 72, 6.0)


def _grid(maps, path, title, scale):
    """Maps by place: a title for each row and column; tokens at the edges alone, where all maps have the same."""
    if path is not None:
        kind_of(path)
    down, over = _grid_names(maps)
    common = said({name: value for name, value in maps[0].place.items() if name not in (down, over)})
    title = "; ".join(filter(None, (title, common)))
    downs, overs = (_sorted([m.place[name] for m in maps]) for name in (down, over))
    same = all((m.rows, m.columns) == (maps[0].rows, maps[0].columns) for m in maps)
    cells, scale = _cells(maps, len(overs)), Scale(scale, [m.weights for m in maps])
    names = [printable(said({down: n}), 30) for n in downs], [printable(said({over: n}), 30) for n in overs]
    line, gap, more = 0.3, 0.22, 0.24 if scale.kind == "map" else 0.0
    left, top = (0.0, 0.0) if same else (cells.left, cells.top)            # of each map
    step = (max(cells.wide + left, _widest(names[1], 13)) + gap,
            max(cells.high + top + more, _widest(names[0], 13)) + gap)
    head = _head(title, scale)
    edge = line + (cells.left if same else 0), head + line + (cells.top if same else 0)
    page = (edge[0] + len(overs) * step[0] + 0.9, edge[1] + len(downs) * step[1] + _foot(maps, cells))
    fig, corner = figure(*page), (edge[0] + left, edge[1] + top)
    for one in maps:
        i, j = downs.index(one.place[down]), overs.index(one.place[over])
        at = corner[0] + j * step[0], corner[1] + i * step[1]
        axes, image = _draw(fig, page, at, one, cells, scale, not same or j == 0, not same or i == 0)
        if more:
            axes.text(0, -0.05 / cells.high, f"largest {one.weights.max():.2g}", size=10, va="top",
                      transform=axes.transAxes)
    for j, name in enumerate(names[1]):
        x = (corner[0] + j * step[0] + cells.wide / 2) / page[0]
        literally([fig.text(x, 1 - (head + line - 0.06) / page[1], name, ha="center", size=13, weight="bold")])
    for i, name in enumerate(names[0]):
        y = 1 - (corner[1] + i * step[1] + cells.high / 2) / page[1]
        literally([fig.text(0.12 / page[0], y, name, ha="center", va="center", rotation=90, size=13, weight="bold")])
    bar = (edge[0] + len(overs) * step[0], corner[1], min(max(cells.high, 1.5), 4.0))
    return _finish(fig, page, image, bar, maps, cells, scale, title, path)


def _sorted(values):
    """Each value once: numbers by size, others as they come."""
    once = list(dict.fromkeys(values))
    return sorted(once) if all(isinstance(v, (int, np.integer)) for v in once) else once


def _head(title, scale):
    return (0.4 if title else 0.0) + (0.32 if scale.said else 0.0)


def _foot(maps, cells):
    return 0.3 if any(m.gold for m in maps) or _thinned(cells) else 0.0


def _thinned(cells):
    """The line that says which tokens have no name at the edge."""
    every = max(cells.every(cells.x), cells.every(cells.y))
    return f"of every {every} tokens the first is named" if every > 1 else ""


def _draw(fig, page, at, one, cells, scale, named_rows=True, named_columns=True):
    """A map whose upper left corner is `at`, inches from that of the page: its Axes and image."""
    from matplotlib.patches import Rectangle
    t, s = one.weights.shape
    place = at[0] / page[0], 1 - (at[1] + t * cells.y) / page[1], s * cells.x / page[0], t * cells.y / page[1]
    axes = fig.add_axes(place)
    with quiet():
        image = axes.imshow(scale.shade(one.weights), cmap="Blues", vmin=0.0, vmax=scale.top, aspect="auto",
                            interpolation="nearest")
    axes.xaxis.tick_top()
    _name(axes.xaxis, one.columns if named_columns else [], cells.every(cells.x), cells.size, rotation=90)
    _name(axes.yaxis, one.rows if named_rows else [], cells.every(cells.y), cells.size)
    axes.set_xticks(np.arange(s + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(t + 1) - 0.5, minor=True)
    axes.grid(which="minor", color="#D9D9D9", linewidth=0.5 if min(cells.x, cells.y) > 0.15 else 0.2)
    axes.tick_params(which="both", length=0)
    axes.spines[:].set_color("#999999")
    for row, column in one.gold:
        axes.add_patch(Rectangle((column - 0.42, row - 0.42), 0.84, 0.84, **_FRAME))
    return axes, image


def _name(axis, tokens, every, size, **how):
    """Tokens at their cells; where there is no room for all, of `every` so many the first."""
    shown = range(0, len(tokens), every)
    axis.set_ticks(shown, [tokens[i] for i in shown], size=size, **how)
    literally(axis.get_ticklabels())


def _finish(fig, page, image, bar, maps, cells, scale, title, path):
    """The colour bar, the lines at the top and the bottom, and the file."""
    _colour_bar(fig, page, image, bar, maps, scale)
    _say_below(fig, any(m.gold for m in maps), _thinned(cells))
    y = 1 - 0.12 / page[1]
    if title:
        literally([fig.text(0.5, y, printable(title, 120), ha="center", va="top", size=15)])
        y -= 0.36 / page[1]
    if scale.said:
        fig.text(0.5, y, scale.said, ha="center", va="top", size=12, color="#8C3A00")
    save(fig, path)
    return fig


def _say_below(fig, gold, thinned):
    """The line at the bottom: a small frame and what it means; how tokens are named where not all are."""
    from matplotlib.patches import Rectangle
    said = [(Rectangle((0, 0), 1, 1, **_FRAME), "framed: gold")] if gold else []
    said += [(Rectangle((0, 0), 0, 0, alpha=0), thinned)] if thinned else []
    if said:
        handles, words = zip(*said, strict=True)
        fig.legend(handles, words, loc="lower center", fontsize=12, frameon=False, handlelength=1, handleheight=1,
                   borderaxespad=0.1, ncols=2)


def _colour_bar(fig, page, image, at, maps, scale):
    """One bar for all maps; a pointed end says that there are weights beyond it, which no probability is."""
    x, y, height = at
    shades = [scale.shade(m.weights) for m in maps]
    low = min(s.min() for s in shades) < -1e-6
    high = max(s.max() for s in shades) > scale.top * (1 + 1e-6)
    place = x / page[0], 1 - (y + height) / page[1], 0.16 / page[0], height / page[1]
    ticks = [0, 0.5, 1] if height < 2 else [0, 0.2, 0.4, 0.6, 0.8, 1]
    bar = fig.colorbar(image, cax=fig.add_axes(place), ticks=ticks if scale.top == 1 else None,
                       extend="both" if low and high else "min" if low else "max" if high else "neither")
    if scale.said:
        bar.set_label(textwrap.fill(scale.label, max(12, int(height * 12))), size=11)
    bar.ax.tick_params(labelsize=11)
    bar.outline.set_edgecolor("#999999")
