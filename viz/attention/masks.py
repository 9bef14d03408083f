"""Masks as pictures: a dot where a query may attend to a key, hatching where it may not.

True = may be attended to, everywhere in the package. The pictures come from `tinyattn.attention.mask`, whose functions
they name.
"""
from collections.abc import Mapping

import numpy as np

from tinyattn.attention import mask
from tinyattn.errors import InputError

from ..plot import figure, kind_of, literally, numbers, save
from ..text import printable, width
from .heatmap import beside, token_text
from .matrix import FORBIDDEN, edges

MEANS = "True = may be attended to"
WORDS = ("the", "cat", "saw", "the", "dog")
KINDS = ("causal", "last", "forward", "backward", "diagonal", "window", "lengths", "both")
MOST, CELL, SIZE = 40, 0.4, 12


def masks(given=None, path=None, title=MEANS, *, words=None, rows=None, columns=None, across=None):
    """Pictures of masks, several on a page. Returns the Figure.

    given    names out of `KINDS`, by default all; or your own, {title: bool mask (T, S), or (B, T, S) or (B, 1, S), of
             which the first of the batch is shown where T > 1, else a row for each of the batch}
    words    the sentence of the named kinds; five words by default
    rows     names of the queries of your own masks, columns: of the keys; q1, ... and k1, ... by default
    across   how many pictures stand side by side
    Raises InputError for a name that is none, for a mask that is not bool, and for more than 40 tokens.
    """
    if path is not None:
        kind_of(path)
    if isinstance(given, Mapping):
        found = [_own(name, m, rows, columns) for name, m in given.items()]
    else:
        words = [token_text(w) for w in (WORDS if words is None else words)]
        kinds = KINDS if given is None else [given] if isinstance(given, str) else list(given)
        if not words:
            raise InputError("masks: expected a sentence of at least one word, got none")
        found = [_named(kind, words) for kind in kinds]
    if not found:
        raise InputError("masks: expected at least one mask, got none")
    for name, allowed, *_ in found:
        if not allowed.size or max(allowed.shape) > MOST:
            raise InputError(f"masks: {name.splitlines()[0]}: expected 1 to {MOST} queries and keys, got "
                             f"{allowed.shape[0]} and {allowed.shape[1]}")
    fig = _page(found, printable(title, 100), across)
    save(fig, path)
    return fig


def _named(kind, words):
    """(title, allowed (T, S), names of queries, names of keys) of a kind on this sentence."""
    T = len(words)
    few, short = max(1, min(2, T - 1)), max(1, T - 2)
    square = {"causal": (mask.causal, "itself and what came before"),
              "forward": (mask.forward, "only what came before"),
              "backward": (mask.backward, "only what comes after"), "diagonal": (mask.diagonal, "all but itself")}
    if kind in square:
        make, says = square[kind]
        return f"{kind}({T})\n{says}", make(T).numpy(), words, words
    if kind == "last":
        return (f"causal({few}, {T})\nT = {few}, S = {T}: the ends are aligned",
                mask.causal(few, T).numpy(), words[-few:], words)
    if kind == "window":
        allowed = mask.window(T, before=1, after=1).numpy()
        return f"window({T}, before=1, after=1)\nitself and its neighbours", allowed, words, words
    if kind == "lengths":
        lengths = sorted({T, short, 1}, reverse=True)
        allowed = mask.from_lengths(lengths, T)                            # (B, 1, S)
        return (f"from_lengths({lengths})\n{_shape(allowed)}: no padding", allowed.numpy()[:, 0],
                [f"{n} word{'s' * (n > 1)}" for n in lengths], [str(s + 1) for s in range(T)])
    if kind == "both":
        allowed = mask.causal(T) & mask.from_lengths([short], T)           # (1, T, S)
        padded = [*words[:short], *["<pad>"] * (T - short)]
        return (f"causal({T}) & from_lengths([{short}])\n{_shape(allowed)}: both allow it", allowed.numpy()[0],
                padded, padded)
    raise InputError(f"masks: expected kinds out of {', '.join(KINDS)}, got {kind!r}")


def _shape(allowed):
    letters = "(B, 1, S)" if allowed.shape[1] == 1 else "(B, T, S)"
    return f"{letters} = ({', '.join(map(str, allowed.shape))})"


def _own(name, given, rows, columns):
    """The same for a mask of the caller's."""
    name = str(name)
    who = f"masks: {printable(', '.join(name.splitlines()), 60)}"
    allowed = numbers(who, given)
    if allowed.dtype.kind != "b" or allowed.ndim not in (2, 3):
        raise InputError(f"{who}: expected a mask of bools (T, S), (B, 1, S) or (B, T, S), {MEANS}, got "
                         f"{allowed.dtype} of shape {allowed.shape}")
    letter = "q"
    if allowed.ndim == 3:
        letter = "sentence " if allowed.shape[1] == 1 else "q"
        allowed = allowed[:, 0] if allowed.shape[1] == 1 else allowed[0] if len(allowed) else allowed.reshape(0, 0)
    T, S = allowed.shape
    rows = [f"{letter}{t + 1}" for t in range(T)] if rows is None else [token_text(t) for t in rows]
    columns = [f"k{s + 1}" for s in range(S)] if columns is None else [token_text(t) for t in columns]
    if (len(rows), len(columns)) != (T, S):
        raise InputError(f"{who}: expected {T} names of queries and {S} of keys, got {len(rows)} and "
                         f"{len(columns)}")
    return "\n".join(printable(line, 60) for line in name.split("\n")), allowed, rows, columns


def _page(found, title, across):
    left = max(width(t, SIZE) for m in found for t in m[2]) * 1.1 / 72 + 0.2
    top = max(width(t, SIZE) for m in found for t in m[3]) * 1.25 / 72 + 0.2
    said = max(width(line, 11.5) for m in found for line in m[0].split("\n")) / 72
    wide, high = (max(m[1].shape[axis] for m in found) * CELL for axis in (1, 0))
    empty = 0.6 if any((~m[1]).all(1).any() for m in found) else 0.0     # room for "nothing"
    panel = max(left + wide + empty, said) + 0.25, top + high + 0.75
    across = beside(len(found), panel, 1.9) if across is None else max(1, min(across, len(found)))
    head, foot = 0.5 if title else 0.1, 0.5
    page = across * panel[0], -(-len(found) // across) * panel[1] + head + foot
    fig = figure(*page)
    for i, (name, allowed, rows, columns) in enumerate(found):
        x, y = i % across * panel[0], head + i // across * panel[1]
        t, s = allowed.shape
        own = max(width(t, SIZE) for t in columns) * 1.25 / 72 + 0.14     # room that its own names of keys take
        literally([fig.text((x + 0.05) / page[0], 1 - (y + 0.5 + top - own) / page[1], name, va="bottom", size=11.5)])
        axes = fig.add_axes(((x + left) / page[0], 1 - (y + 0.5 + top + t * CELL) / page[1], s * CELL / page[0],
                             t * CELL / page[1]))
        _draw(axes, allowed, rows, columns, f"-{i + 1}" if len(found) > 1 else "")
    _say(fig, page, title, empty)
    return fig


def _draw(axes, allowed, rows, columns, picture):
    """A box a pair of tokens: tinted and with a dot if allowed, else hatched. A row without a dot says what follows.
    `picture` ends the ids, which are those of no other picture on the page."""
    from matplotlib.patches import Rectangle
    t, s = allowed.shape
    axes.set(xlim=(-0.5, s - 0.5), ylim=(t - 0.5, -0.5))
    for (i, j), may in np.ndenumerate(allowed):
        style = {"facecolor": "#B7D4EA"} if may else {"facecolor": "white", "hatch": FORBIDDEN, "edgecolor": "#888888"}
        gid = f"{'may' if may else 'not'}-{i}-{j}{picture}"
        axes.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, linewidth=0, gid=gid, **style))
    at = np.argwhere(allowed)
    axes.plot(at[:, 1], at[:, 0], "o", color="black", markersize=6, linestyle="none")
    for i in np.flatnonzero(~allowed.any(1)):
        axes.text(s - 0.4, i, "nothing", va="center", size=10, style="italic", color="#8C3A00")
    edges(axes, rows, columns, (t, s), SIZE)


def _say(fig, page, title, empty):
    """The title, and what the signs mean: rows ask, columns are asked."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Rectangle
    if title:
        literally([fig.text(0.05 / page[0], 1 - 0.08 / page[1], title, va="top", size=15, weight="bold")])
    dot = Line2D([], [], marker="o", color="black", linestyle="none", markersize=6)
    crossed = Rectangle((0, 0), 1, 1, facecolor="white", hatch=FORBIDDEN, edgecolor="#888888", linewidth=0)
    said = "rows: queries, columns: keys" + ("; nothing: all weights of this query are 0" if empty else "")
    fig.legend([dot, crossed, Rectangle((0, 0), 0, 0, alpha=0)], ["True", "False", said],
               loc="lower left", ncols=3, fontsize=12, frameon=False,
               handlelength=1.6, handleheight=1.2, bbox_to_anchor=(0, 0), borderaxespad=0.1)
