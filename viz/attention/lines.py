"""Attention as lines between two sentences: the queries down the left side, the keys down the right, one line a weight.

A line is as thick and as dark as its weight. The same sentence on both sides is self-attention, two are
cross-attention. Token i stands in row i, also when it comes twice, and a line belongs to a row and not to a word.
"""
import numpy as np

from tinyattn.errors import InputError

from ..plot import figure, kind_of, literally, no_path, numbers, save
from ..text import printable, width
from .heatmap import beside, checked

MOST = 60                   # tokens on a side
ROW, SIZE = 0.34, 13        # inches from token to token; points of their letters
SPAN = 2.2                  # inches between the two sentences; more for long ones, or lines would be too steep
THICK = 7.0                 # points of a line of weight 1
LIGHT, DARK = np.array([0.70, 0.82, 0.92]), np.array([0.03, 0.19, 0.42])  # of weight 0 and 1, as in the heatmaps
GOLD = {"color": "#D55E00", "linewidth": 1.8, "linestyle": (0, (4, 3))}


def lines(weights, left, right, title="", path=None, *, least=0.05, gold=(), names=None, sides=("query", "key"),
          across=None):
    """Lines from each of T queries to the S keys that it looks at. Returns the Figure.

    weights  (T, S) from 0 to 1, a Tensor or array; or (H, T, S), one picture a head
    left     T tokens, of the queries; right: S tokens, of the keys
    title    what the picture shows: sentence, layer, head
    path     also write the file, by its suffix: .svg, .pdf or .png
    least    weights below are not drawn; a line at the bottom says how many
    gold     pairs (query, key), drawn as dashed lines of another colour
    names    titles of the H pictures; "head 1", "head 2", ... by default
    sides    what stands above the two columns
    across   how many pictures stand side by side; None: as many as make the page a little wider than high
    Raises InputError for weights of another shape, beyond 0 to 1 or no numbers, and for more than 60 tokens on a side.
    """
    no_path("lines", title, path)
    if path is not None:
        kind_of(path)
    maps = _maps(weights, left, right, names, gold, least)
    texts, sides = (maps[0].rows, maps[0].columns), [printable(side, 40) for side in sides]
    room = [max(width(side, 11), *(width(t, SIZE) for t in tokens)) * 1.05 / 72 + 0.12
            for side, tokens in zip(sides, texts)]
    above = 0.35 if any(m.title for m in maps) else 0.0
    span = max(SPAN, 0.11 * max(map(len, texts)))
    panel = sum(room) + span + 0.3, (max(map(len, texts)) + 1.4) * ROW + above
    across = beside(len(maps), panel, 1.5) if across is None else max(1, min(across, len(maps)))
    head = 0.45 if title else 0.05
    page = max(across * panel[0], 5.2), -(-len(maps) // across) * panel[1] + head + 0.75
    fig, start = figure(*page), (page[0] - across * panel[0]) / 2
    for i, one in enumerate(maps):
        x, y = start + i % across * panel[0] + room[0] + 0.15, head + i // across * panel[1] + above
        high = (max(map(len, texts)) + 1) * ROW
        axes = fig.add_axes((x / page[0], 1 - (y + high) / page[1], span / page[0], high / page[1]))
        axes.set(xlim=(0, 1), ylim=(max(map(len, texts)) - 0.5, -1.5))
        axes.set_axis_off()
        _draw(axes, one, sides, least, f"-{i + 1}" if len(maps) > 1 else "")
    if title:
        literally([fig.text(0.5, 1 - 0.1 / page[1], printable(title, 100), ha="center", va="top", size=15)])
    _say_below(fig, page, maps, least)
    save(fig, path)
    return fig


def _maps(weights, left, right, names, gold, least):
    """The pictures as checked maps, one a head."""
    if not 0 <= least < 1:
        raise InputError(f"lines: expected `least` from 0 up to 1, got {least}")
    weights = numbers("lines", weights)
    several = weights.ndim == 3
    names = [f"head {h + 1}" for h in range(len(weights))] if several and names is None else list(names or [""])
    each = list(weights) if several else [weights]
    if not each or len(names) != len(each):
        raise InputError(f"lines: expected weights (T, S), or (H, T, S) with a name for each of H heads, got shape "
                         f"{weights.shape} and {len(names)} names")
    maps = [checked("lines", w, left, right, name, gold) for w, name in zip(each, names)]
    if max(len(maps[0].rows), len(maps[0].columns)) > MOST:
        raise InputError(f"lines: expected at most {MOST} tokens on a side, got {len(maps[0].rows)} and "
                         f"{len(maps[0].columns)}; a heatmap takes more")
    for one in maps:
        if one.weights.min() < -1e-6 or one.weights.max() > 1 + 1e-6:
            t, s = np.unravel_index(np.argmax(np.abs(one.weights - 0.5)), one.weights.shape)
            raise InputError(f"lines: expected weights from 0 to 1, got {one.weights[t, s]:g} from {one.rows[t]} to "
                             f"{one.columns[s]}; a heatmap shows any numbers")
    return maps


def _draw(axes, one, sides, least, picture):
    """The tokens, then the lines from the lightest to the heaviest, so that none is hidden, then gold. `picture` ends
    the ids, which are those of no other picture on the page."""
    literally([axes.text(0.5, -1.62, one.title, ha="center", va="bottom", size=14)])
    for x, tokens, side, ha in ((-0.03, one.rows, sides[0], "right"), (1.03, one.columns, sides[1], "left")):
        literally([axes.text(x, row, token, ha=ha, va="center", size=SIZE) for row, token in enumerate(tokens)])
        literally([axes.text(x, -1, side, ha=ha, va="center", size=11, color="#555555", style="italic")])
    drawn = [(w, t, s) for (t, s), w in np.ndenumerate(one.weights) if w >= least and w > 0]
    for w, t, s in sorted(drawn):
        axes.plot([0, 1], [t, s], gid=f"line-{t}-{s}{picture}", clip_on=False, **style(w))
    for t, s in one.gold:
        axes.plot([0, 1], [t, s], gid=f"gold-{t}-{s}{picture}", zorder=5, clip_on=False, **GOLD)


def style(weight):
    """Thickness and colour of the line of a weight from 0 to 1."""
    weight = float(np.clip(weight, 0, 1))
    return {"linewidth": max(THICK * weight, 0.4), "color": tuple(LIGHT + (DARK - LIGHT) * weight),
            "solid_capstyle": "butt"}


def _say_below(fig, page, maps, least):
    """The lines of a few weights, what dashes mean, and what was left out."""
    from matplotlib.lines import Line2D
    handles = [Line2D([], [], **style(w)) for w in (0.1, 0.5, 1.0)]
    words = ["0.1", "0.5", "1.0"]
    if any(m.gold for m in maps):
        handles, words = [*handles, Line2D([], [], **GOLD)], [*words, "gold"]
    fig.legend(handles, words, loc="lower center", ncols=len(words), fontsize=11, frameon=False, handlelength=2.2,
               columnspacing=1.2, borderaxespad=0, bbox_to_anchor=(0.5, 0.3 / page[1]))
    left = [m.weights[m.weights < least] for m in maps]
    count, total = sum(w.size for w in left), sum(float(w.sum()) for w in left)
    whole = sum(float(m.weights.sum()) for m in maps)
    share = f", {100 * total / whole:.0f} % of all weight" if whole > 0 else ""
    fig.text(0.5, 0.06 / page[1], f"weights under {least:g} are not drawn: {count} of "
             f"{sum(m.weights.size for m in maps)}{share}", ha="center", va="bottom", size=11, color="#555555")
