"""A comparison as a picture: each seed a dot, its mean a bar and its spread a whisker, for every attention."""
import math

from tinyattn.errors import InputError

from ..plot import COLOURS, MARKS, bare, figure, kind_of, literally, save
from ..text import printable

PANELS = 3  # figures that are drawn: the first one, then those of the attention itself


def comparison(tables, path=None, title=""):
    """The figures of a comparison, a panel for each of the first few. Returns the Figure.

    tables  what `tinyattn.tables.summarise` gave
    path    also write the file, by its suffix: .svg, .pdf or .png
    Without further dimensions each attention has a place on the axis; with them each value has one, and each attention
    a colour and a mark. Raises InputError if no run has a figure.
    """
    if path is not None:
        kind_of(path)
    figures = tables["figures"]
    if not figures:
        raise InputError("comparison: expected at least one run with a figure, got none")
    keys = [next(iter(figures)), *(key for key, f in figures.items() if f["intrinsic"])]
    keys = list(dict.fromkeys(keys))[:PANELS]
    labels = [row["attention"] for row in tables["tables"][0]["rows"]]
    alone = len(tables["tables"]) == 1
    places = len(labels) if alone else len(tables["tables"])
    wide = max(5.0, min(20.0, 1.5 + places * (1.1 if alone else 0.4 + 0.22 * len(labels))))
    across = alone and len(keys) * wide <= 16  # panels side by side, or one above the other
    fig = figure(wide * len(keys) if across else wide, 4.2 if across else 3.8 * len(keys) + 0.6)
    grid = fig.subplots(1 if across else len(keys), len(keys) if across else 1, squeeze=False).ravel()
    for axes, key in zip(grid, keys, strict=True):
        (_by_attention if alone else _by_value)(axes, tables["tables"], key)
        _label(axes, figures[key])
    if not alone:
        _legend(grid[-1], labels)
    fig.tight_layout(pad=1.5)
    if title:
        fig.suptitle(printable(title, 100), size=15, y=1.02)
        literally([fig._suptitle])
    save(fig, path)
    return fig


def _by_attention(axes, tables, key):
    rows = tables[0]["rows"]
    for x, row in enumerate(rows):
        _cell(axes, x, row, key, COLOURS[x % len(COLOURS)], MARKS[x % len(MARKS)], 0.6)
    axes.set_xticks(range(len(rows)), [printable(row["attention"], 24) for row in rows])
    axes.set_xlim(-0.6, len(rows) - 0.4)
    _slant(axes, [row["attention"] for row in rows], 12)


def _by_value(axes, tables, key):
    """Places on the axis are the values of the further dimensions, and the attentions stand beside each other."""
    many = len(tables[0]["rows"])
    for x, table in enumerate(tables):
        for i, row in enumerate(table["rows"]):
            at = x + (i - (many - 1) / 2) * 0.8 / many
            _cell(axes, at, row, key, COLOURS[i % len(COLOURS)], MARKS[i % len(MARKS)], 0.8 / many)
    names = [", ".join(map(str, table["at"].values())) for table in tables]
    axes.set_xticks(range(len(tables)), [printable(name, 24) for name in names])
    axes.set_xlim(-0.6, len(tables) - 0.4)
    axes.set_xlabel(", ".join(tables[0]["at"]).replace("_", "-"), size=12)
    _slant(axes, names, 60 / len(tables))


def _cell(axes, x, row, key, colour, mark, width):
    """One attention at one place: the seeds' dots, beside the bar of their mean with its spread."""
    cell = row["figures"][key]
    seeds = {seed: value for seed, value in cell["seeds"].items() if math.isfinite(value)}
    n = len(seeds)
    spots = [x + width * 0.28 * (0 if n == 1 else 2 * i / (n - 1) - 1) for i in range(n)]
    axes.scatter(spots, list(seeds.values()), s=30, color=colour, marker=mark, alpha=0.65, linewidths=0, zorder=3)
    mean = cell["mean"]
    if mean is None or not math.isfinite(mean):
        if not n:
            axes.text(x, 0.02, "–", ha="center", transform=axes.get_xaxis_transform(), size=12)
        return
    axes.hlines(mean, x - width * 0.4, x + width * 0.4, color=colour, linewidth=2.4, zorder=4)
    if cell["sd"] is not None:
        axes.errorbar([x], [mean], [cell["sd"]], color=colour, linewidth=1.3, capsize=4, zorder=2)


def _label(axes, figure):
    better = f" ({figure['better']} is better)" if figure["better"] else ""
    axes.set_ylabel(printable(figure["title"] + better, 60), size=12)
    bare(axes)
    axes.margins(y=0.12)
    literally([axes.yaxis.label, axes.xaxis.label, *axes.get_xticklabels()])


def _slant(axes, names, room):
    """Long names on the axis are turned, so that they do not run into each other."""
    if max(len(str(name)) for name in names) > room:
        axes.tick_params(axis="x", labelrotation=30)
        for text in axes.get_xticklabels():
            text.set_horizontalalignment("right")


def _legend(axes, labels):
    from matplotlib.lines import Line2D
    handles = [Line2D([], [], color=COLOURS[i % len(COLOURS)], marker=MARKS[i % len(MARKS)], linewidth=2.4)
               for i in range(len(labels))]
    legend = axes.legend(handles, [printable(label, 40) for label in labels], fontsize=11, frameon=False,
                         loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=min(4, len(labels)))
    literally(legend.get_texts())
