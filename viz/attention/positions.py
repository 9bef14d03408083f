"""How position gets into attention, as pictures: codes that are added to words, vectors that are turned, numbers that
are added to scores. All numbers come from the mechanisms themselves, in `tinyattn.attention`."""
import math

import numpy as np

from tinyattn.autograd import capture
from tinyattn.errors import InputError

from ..plot import COLOURS, MARKS, bare, figure, kind_of, literally, numbers, save
from ..text import printable
from .matrix import bar, matrix
from .panels import matrices

LAYOUTS = {"sinusoid": ("interleaved", "halves", "tensor2tensor"), "rope": ("interleaved", "halves"),
           "memn2n": ("paper", "code"), "learned": (), "shaw": (), "alibi": (), "distance": ()}
KINDS = tuple(LAYOUTS)
SIZES = {"sinusoid": (40, 32), "rope": (40, 32), "memn2n": (8, 24), "shaw": (9, 3), "alibi": (8, 4), "distance": (8, 1)}
MEANS = {"shaw": "the farthest distance told apart", "alibi": "heads", "distance": "heads"}  # else: width of the code
MOST = {"shaw": (30, 30), "alibi": (60, 16), "distance": (60, 1)}
DASHES = ("-", "--", ":", "-.")


def positions(kind, length=None, width=None, path=None, *, layout=None, table=None):
    """One way of telling positions as a picture. Returns the Figure.

    kind     sinusoid, rope, memn2n (weights of the words of a sentence), learned: the code by position and dimension,
             some of its curves, the products p_t . p_s, and its first values as a table;
             shaw: which row of the table of relative positions a pair of words gets;
             alibi, distance: what is added to the scores, by head or direction
    length   how many positions; width: of the code. Of shaw, the farthest distance told apart; of alibi, heads
    path     also write the file, by its suffix: .svg, .pdf or .png
    layout   of sinusoid, "interleaved", "halves" or "tensor2tensor"; of rope, the first two; of memn2n, "paper" or
             "code"; the first of each by default
    table    (N, D), an array or Tensor: the table of "learned", which has no values before it is trained
    Raises InputError for another kind, layout or size.
    """
    if path is not None:
        kind_of(path)
    if kind not in LAYOUTS:
        raise InputError(f"positions: expected one of {', '.join(KINDS)}, got {kind!r}")
    layout = (LAYOUTS[kind] or (None,))[0] if layout is None else layout
    if layout is not None and layout not in LAYOUTS[kind]:
        known = " or ".join(LAYOUTS[kind]) or "None"
        raise InputError(f"positions: {kind}: expected the layout {known}, got {layout!r}")
    if kind == "learned":
        fig = _code_page(kind, _checked_table(table), "learned positions: the rows of the table", 0)
    else:
        length, width = _sizes(kind, length, width)
        fig = {"shaw": _shaw, "alibi": _alibi, "distance": _distance}[kind](length, width) if kind in MEANS else \
            _code_page(kind, *_code(kind, length, width, layout))
    save(fig, path)
    return fig


def _sizes(kind, length, width):
    length, width = (default if given is None else given for default, given in zip(SIZES[kind], (length, width)))
    for what, number, most in zip(("length", "width"), (length, width), MOST.get(kind, (512, 512))):
        if not isinstance(number, (int, np.integer)) or not 1 <= number <= most:
            raise InputError(f"positions: {kind}: expected {what} to be a whole number from 1 to {most}, got "
                             f"{number!r}")
    if kind == "rope" and width % 2:
        raise InputError(f"positions: rope turns pairs: expected an even width, got {width}")
    return length, width


def _checked_table(table):
    if table is None:
        raise InputError("positions: learned positions have no values before they are trained; give table=, (N, D)")
    table = numbers("positions", table)
    if table.ndim != 2 or not table.size or table.dtype.kind not in "fiu" or not np.isfinite(table).all():
        raise InputError(f"positions: expected a table (N, D) of finite numbers, got {table.dtype} of shape "
                         f"{table.shape}")
    return table.astype(float)


# ---------------------------------------------------------------------------------------------------------------------
# codes: a vector a position
# ---------------------------------------------------------------------------------------------------------------------
def _code(kind, length, width, layout):
    """(the code (length, width), title, number of the first position)"""
    from tinyattn.attention import memn2n, rope, sinusoid
    from tinyattn.tensor import Tensor
    if kind == "memn2n":
        return (_module(memn2n).position_encoding(length, width, layout),
                f"MemN2N ({layout}): weights of the words of a sentence of {length}", 1)
    if kind == "sinusoid":
        return _module(sinusoid).encode(length, width, layout), f"sinusoid ({layout}): added to word t", 0
    start = np.zeros(width)
    start[slice(0, None, 2) if layout == "interleaved" else slice(0, width // 2)] = 1  # each pair begins as (1, 0)
    turned = _module(rope).rotate(Tensor(np.tile(start, (length, 1))), pairing=layout)
    return turned.numpy(), f"rope ({layout}): where place t turns the pairs (1, 0)", 0


def _module(named):
    """The module behind a name of `tinyattn.attention`, be that the module or the mechanism in it."""
    return getattr(named, "module", named)


def _code_page(kind, code, title, first):
    """The code, some curves, products, values."""
    length, width = code.shape
    page, rows = (13.0, 7.3), np.arange(first, first + length)
    fig, bound = figure(*page), max(float(np.abs(code).max()), 1e-9)
    literally([fig.text(0.02, 0.985, f"{title}; {length} positions, width {width}", va="top", size=15)])
    axes = fig.add_axes((0.06, 0.55, 0.33, 0.33))
    image = matrix(axes, code, bound=bound, signed=True)
    _counted(axes, (first, length), (0, width), "position t", "dimension", "the code")
    bar(fig, image, (0.40, 0.55, 0.011, 0.33))
    _curves(fig.add_axes((0.54, 0.55, 0.33, 0.33)), code, rows)
    if kind != "memn2n":
        axes, products = fig.add_axes((0.06, 0.06, 0.33, 0.33)), code @ code.T
        image = matrix(axes, products, bound=float(np.abs(products).max()) or 1.0, signed=True)
        _counted(axes, (first, length), (first, length), "position t", "position s", "products p_t · p_s")
        bar(fig, image, (0.40, 0.06, 0.011, 0.33))
    _values(fig.add_axes((0.0 if kind == "memn2n" else 0.49, 0.06, 0.5, 0.33)), code, rows)
    return fig


def _counted(axes, down, over, y, x, title):
    """Numbers at the edges, at most about eight a side; the minor lines of cells only where these are large."""
    for axis, (first, n) in ((axes.yaxis, down), (axes.xaxis, over)):
        step = next(s for s in (1, 2, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100, 128) if n / s <= 9)
        axis.set_ticks(range(0, n, step), [str(first + i) for i in range(0, n, step)], size=11, rotation=0)
        if n > 24:
            axis.set_ticks([], minor=True)
    axes.set_ylabel(y, size=12)
    axes.set_xlabel(x, size=12)
    axes.xaxis.tick_bottom()
    axes.tick_params(which="both", length=0)
    axes.set_title(title, size=13, loc="left", weight="bold")


def _curves(axes, code, rows):
    """A few dimensions by position, from the first to the last."""
    width = code.shape[1]
    chosen = sorted({0, min(1, width - 1), width // 2, width - 1} if width > 4 else range(width))
    for k, dim in enumerate(chosen):
        marks = {"marker": MARKS[k], "markersize": 5, "markevery": max(1, len(rows) // 12)}
        axes.plot(rows, code[:, dim], color=COLOURS[k], linestyle=DASHES[k], linewidth=1.8, label=f"dimension {dim}",
                  **marks)
    bare(axes)
    axes.set_xlabel("position t", size=12)
    axes.set_title("some of its dimensions", size=13, loc="left", weight="bold")
    axes.legend(fontsize=11, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _values(axes, code, rows):
    """The first values as a table of five digits."""
    axes.set_axis_off()
    down, over = min(4, len(rows)), min(6, code.shape[1])
    cells = [[number(x) for x in code[t, :over]] for t in range(down)]
    table = axes.table(cells, rowLabels=[f"position {rows[t]}" for t in range(down)], cellLoc="right",
                       colLabels=[f"dim {i}" for i in range(over)], bbox=(0.16, 0.25, 0.84 * over / 6, 0.72))
    table.auto_set_font_size(False)
    table.set_fontsize(11)
    for cell in table.get_celld().values():
        cell.set_edgecolor("#BBBBBB")
    more = "" if over == code.shape[1] else f": {over} of {code.shape[1]} dimensions"
    axes.set_title(f"its first values{more}", size=13, loc="left", weight="bold")


def number(x):
    """Five digits that count, written out: 0.84147, 0.0099998, 1."""
    text = f"{x:#.5g}"
    return f"{x:.4g}" if "e" in text or x == round(x) else text


# ---------------------------------------------------------------------------------------------------------------------
# what is done to the scores: a number, or a row of a table, for each pair of words
# ---------------------------------------------------------------------------------------------------------------------
def _shaw(length, farthest):
    from tinyattn.attention import shaw
    rows = _module(shaw).distances(length, 2 * farthest + 1) - farthest   # (T, T)
    names = [f"{t}" for t in range(length)]
    return _pairs([("r = clip(j − i, −n, n)", rows, np.zeros(rows.shape, bool))], names, "{:.0f}",
                  f"Shaw: word i at key j uses row r of its tables, n = {farthest}", "r")


def _alibi(length, heads):
    from tinyattn.attention import alibi
    module = _module(alibi)
    slopes = module.slopes(heads)
    found = _added(module.alibi, length, heads)
    return _pairs([(f"head {h + 1}, slope {slopes[h]:.4g}", *found[h]) for h in range(heads)],
                  [f"{t}" for t in range(length)], "{:.2f}", "ALiBi: added to the score of query i at key j", "added")


def _distance(length, _):
    from tinyattn.attention import distance
    module = _module(distance)
    found = [(direction, *_added(module.distance, length, 1, direction=direction)[0])
             for direction in ("forward", "backward", "both")]
    return _pairs(found, [f"{t}" for t in range(length)], "{:.4g}",
                  "distance mask (Im and Cho): added to the score of query i at key j", "added")


def _added(mechanism, length, heads, **settings):
    """[(scores (T, T), forbidden (T, T))] a head of a mechanism whose words are all 0: what stays of the scores is what
    the mechanism adds for the position."""
    from tinyattn.tensor import Tensor
    words, w, w_o = Tensor(np.zeros((1, length, 1))), Tensor(np.zeros((heads, 1))), Tensor(np.zeros((1, heads)))
    with capture() as seen:
        mechanism(words, w, w, w, w_o, heads=heads, **settings)
    return [(scores, ~mask) for _, scores, mask, _ in matrices(seen, 0, "head")]


def _pairs(maps, names, numbers, title, label):
    """A matrix for each (title, values (T, T), forbidden (T, T)), in one scale, with numbers where they fit."""
    n, T = len(maps), len(names)
    across = n if n <= 3 else min(4, -(-n // 2))
    cell = 0.44 if T <= 10 else min(0.3, 14 / (across * T))
    panel, head = (max(T * cell, len(max((m[0] for m in maps), key=len)) * 0.115) + 0.75, T * cell + 0.85), 0.5
    page = across * panel[0] + 0.9, -(-n // across) * panel[1] + head + 0.35
    fig, bound = figure(*page), max(float(np.abs(m[1][~m[2]]).max(initial=0)) for m in maps) or 1.0
    for i, (name, values, forbidden) in enumerate(maps):
        x, y = i % across * panel[0] + 0.6, head + i // across * panel[1] + 0.6
        axes = fig.add_axes((x / page[0], 1 - (y + T * cell) / page[1], T * cell / page[0], T * cell / page[1]))
        image = matrix(axes, np.where(forbidden, 0, values), bound=bound, signed=True, forbidden=forbidden,
                       numbers=numbers if cell == 0.44 else "", size=10)
        step = max(1, math.ceil(0.25 / cell))
        axes.set_xticks(range(0, T, step), names[::step], size=11)
        axes.set_yticks(range(0, T, step), names[::step], size=11)
        axes.set_ylabel("query i", size=11)
        axes.set_title(f"{printable(name, 60)}", size=12, loc="left", weight="bold")
        literally([axes.title])
    tall = min(T * cell, 4)
    bar(fig, image, ((across * panel[0] + 0.05) / page[0], 1 - (head + 0.6 + tall) / page[1], 0.15 / page[0],
                     tall / page[1]), label)
    hatched = "; hatched: may not be attended to" if any(m[2].any() for m in maps) else ""
    fig.text(0.15 / page[0], 0.08 / page[1], "columns: key j" + hatched, size=11, color="#444444")
    literally([fig.text(0.1 / page[0], 1 - 0.1 / page[1], title, va="top", size=15)])
    return fig
