"""Attention over a story in several hops: the sentences as lines of text, a column a hop, the weights as tinted cells.

A triangle points at the sentence that a hop looks at most.
"""
import numpy as np

from tinyattn.errors import InputError

from ..plot import figure, kind_of, literally, no_path, numbers, quiet, save
from ..text import printable, width
from .heatmap import Scale, checked

MOST = 60                     # sentences on a page
LINE, CELL, SIZE = 0.36, 0.85, 13
LONGEST = 70                  # signs of a sentence
GOLD = "#D55E00"


def hops(weights, sentences, title="", path=None, *, gold=(), names=None, scale=1.0, rest=""):
    """What each hop looked at in a story. Returns the Figure.

    weights    (hops, S), a Tensor or array
    sentences  S sentences, in the order of the story; a list of words counts as one
    title      question and answer
    gold       the numbers of the sentences that hold the answer, from 0, or pairs (hop, sentence); each is framed
    names      titles of the columns; "hop 1", "hop 2", ... by default
    scale      the weight that is darkest, 1 by default; "own": the largest of the picture; "row": of each hop
    rest       where the weights lie that a hop lacks to a sum of 1: "empty slots"; said beside the sums
    Raises InputError for weights of another shape, and for more than 60 sentences.
    """
    no_path("hops", title, path)
    if path is not None:
        kind_of(path)
    sentences = [" ".join(map(str, s)) if isinstance(s, (list, tuple)) else str(s) for s in sentences]
    weights = numbers("hops", weights)
    count = len(weights) if weights.ndim == 2 else 0
    names = [printable(n, 20) for n in (names or [f"hop {i + 1}" for i in range(count)])]
    one = checked("hops", weights, names, sentences)
    if len(sentences) > MOST:
        raise InputError(f"hops: expected at most {MOST} sentences, got {len(sentences)}; draw those with most weight")
    gold = {g if isinstance(g, (int, np.integer)) else g[1] for g in gold}
    if not all(0 <= g < len(sentences) for g in gold):
        raise InputError(f"hops: expected gold sentences from 0 to {len(sentences) - 1}, got {sorted(gold)}")
    scale, texts = Scale(scale, [one.weights]), [printable(s, LONGEST) for s in sentences]
    fig = _page(one.weights, names, texts, title, gold, scale, rest)
    save(fig, path)
    return fig


def _page(weights, names, texts, title, gold, scale, rest):
    below = f"sum; the rest lies on {printable(rest, 40)}" if rest else "sum"
    left = 0.45 + max(width(t, SIZE) for t in [*texts, below]) / 72 + 0.2
    head = (0.5 if title else 0.1) + (0.3 if scale.said else 0.0) + 0.35
    cell = max(CELL, max(width(n, SIZE) for n in names) / 72 + 0.1)
    sums = weights.sum(1) if not np.allclose(weights.sum(1), 1, atol=0.005) else []  # gates, or weight of empty slots
    page = max(left + len(names) * cell + 0.1, 5.6), head + (len(texts) + (len(sums) > 0)) * LINE + 0.5
    fig = figure(*page)
    axes = fig.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, page[0]), ylim=(page[1], 0))  # inches, counted from the upper left corner
    axes.set_axis_off()
    shades = scale.shade(weights)
    for i, text in enumerate(texts):
        _sentence(axes, head + i * LINE, i, text, left, i in gold)
    for h, name in enumerate(names):
        x = left + h * cell
        literally([axes.text(x + cell / 2, head - 0.08, name, ha="center", va="bottom", size=SIZE, weight="bold")])
        top = int(weights[h].argmax()) if weights[h].max() > 0 else None
        for i in range(len(texts)):
            _cell(axes, (x, head + i * LINE), cell, weights[h, i], shades[h, i] / scale.top, f"cell-{h}-{i}", i == top)
    for h, total in enumerate(sums):
        axes.text(left + h * cell + cell / 2 + 0.04, head + (len(texts) + 0.5) * LINE, f"{total:.2f}", ha="center",
                  va="center", size=12, color="#444444")
    if len(sums):
        axes.text(left - 0.1, head + (len(texts) + 0.5) * LINE, below, ha="right", va="center", size=12,
                  color="#444444")
    _say(axes, page, title, scale, gold)
    return fig


def _sentence(axes, y, i, text, left, gold):
    """A line of the story with its number; what holds the answer has a dashed frame."""
    from matplotlib.patches import Rectangle
    axes.text(0.4, y + LINE / 2, str(i + 1), ha="right", va="center", size=11, color="#666666")
    literally([axes.text(0.5, y + LINE / 2, text, va="center", size=SIZE)])
    if gold:
        axes.add_patch(Rectangle((0.12, y + 0.04), left - 0.22, LINE - 0.08, fill=False, edgecolor=GOLD, linewidth=1.8,
                                 linestyle=(0, (4, 2)), gid=f"gold-{i}"))


def _cell(axes, at, cell, weight, shade, gid, largest):
    """A cell with its weight; a triangle and a bold number where the weight is the largest of the hop."""
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle
    x, y = at
    shade = min(max(float(shade), 0.0), 1.0)
    with quiet():
        axes.add_patch(Rectangle((x, y), cell - 0.06, LINE, facecolor=colormaps["Blues"](shade), edgecolor="#BBBBBB",
                                 linewidth=0.6, gid=gid))
    ink = "white" if shade > 0.55 else "black"
    axes.text(x + (cell - 0.06) / 2 + 0.07, y + LINE / 2, f"{weight:.2f}".replace("-0.00", "0.00"), ha="center",
              va="center", size=12, color=ink, weight="bold" if largest else "normal")
    if largest:
        axes.plot([x + 0.13], [y + LINE / 2], marker=">", markersize=8, color=ink, markeredgewidth=0, gid=f"most-{gid}")


def _say(axes, page, title, scale, gold):
    """The title, the scale where it is another than 0 to 1, and what the signs mean."""
    y = 0.1
    if title:
        literally([axes.text(0.15, y, printable(title, 110), va="top", size=15, weight="bold")])
        y += 0.4
    if scale.said:
        axes.text(0.15, y, scale.said.replace("each row", "each hop"), va="top", size=12, color="#8C3A00")
    tint = "tint: weight" + (", from 0 to 1" if not scale.said else "")
    said = [tint, "▶ the largest of the hop"] + (["dashed frame: holds the answer"] if gold else [])
    axes.text(0.15, page[1] - 0.2, "     ".join(said), va="center", size=11, color="#444444")
