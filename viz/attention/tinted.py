"""Text tinted by attention: the words flow as a paragraph, each on a box as dark as its weight.

A line below a word is as thick as its weight too, so that a print in grey still shows it. A document of sentences has
the weight of each sentence as a bar beside it.
"""
import numpy as np

from tinyattn.errors import InputError

from ..plot import figure, fonts, kind_of, literally, no_path, numbers, quiet, save
from ..text import printable
from .heatmap import Scale, checked

MOST = 600                   # words on a page
SIZE, LINE = 14, 0.36        # points of the letters, inches from line to line
PAD, GAP = 0.06, 0.05        # inches between a word and the edge of its box, and between boxes
THICK = 0.06                 # inches of the line below a word of weight 1
BAR = 0.9                    # inches of the bar of a sentence of weight 1
GOLD, ASKED = "#D55E00", "#000000"
WHAT = {"word": "weight of the word", "product": "weight of the word times that of its sentence"}


def tinted(parts, title="", path=None, *, by="word", gold=(), asked=(), scale=1.0, wide=9.0):
    """Words tinted by their weights, as running text. Returns the Figure.

    parts   sentences, each (words, weights) or (words, weights, weight of the sentence): T words, T weights
    by      "word": a word has its own weight; "product": times the weight of its sentence, its share of the document
    gold    places (sentence, word) in a dashed frame, such as a known answer
    asked   places (sentence, word) in a black frame: the word that asks
    scale   the weight that is darkest, 1 by default; "own": the largest of the text; "row": of each sentence
    wide    inches of a line of text
    Raises InputError for weights that are not one number a word, and for more than 600 words.
    """
    no_path("tinted", title, path)
    if path is not None:
        kind_of(path)
    sentences = [_checked(i, part) for i, part in enumerate(parts)]
    _check_all(sentences, by, (*gold, *asked))
    beside = any(weight is not None for _, _, weight in sentences)
    weights = [w * (weight if by == "product" else 1.0) for _, w, weight in sentences]
    scale = Scale(scale, weights)
    fig = figure(wide + 1, 1)
    boxes, lines = _flow(fig, [words for words, _, _ in sentences], BAR + 0.75 if beside else 0.1, wide)
    head = (0.45 if title else 0.1) + (0.3 if scale.said else 0.0)
    page = max([7.0 if by == "word" else 8.6, *(x + room for x, _, room in boxes.values())]) + 0.2, \
        head + lines * LINE + 0.85
    fig.set_size_inches(page)
    axes = fig.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, page[0]), ylim=(page[1], 0))  # inches, counted from the upper left corner
    axes.set_axis_off()
    for (n, i), box in boxes.items():
        frame = (GOLD, (0, (3, 2))) if (n, i) in set(map(tuple, gold)) else None
        frame = (ASKED, "solid") if (n, i) in set(map(tuple, asked)) else frame
        _word(axes, box, head, sentences[n][0][i], scale.shade(weights[n])[i] / scale.top, f"word-{n}-{i}", frame)
    if beside:
        for n, (_, _, weight) in enumerate(sentences):
            _sentence(axes, head + boxes[n, 0][1] * LINE, n, weight)
    _say_above(axes, page, title, scale)
    _legend(axes, page, WHAT[by], scale, gold, asked, beside)
    save(fig, path)
    return fig


def _checked(i, part):
    """(words, weights, weight of the sentence or None), checked."""
    part = tuple(part)
    if len(part) not in (2, 3):
        raise InputError(f"tinted: sentence {i}: expected (words, weights) or (words, weights, weight of the "
                         f"sentence), got {len(part)} things")
    weights = numbers(f"tinted: sentence {i}", part[1])
    one = checked(f"tinted: sentence {i}", weights[None], ["weight"], list(part[0]))
    whole = None if len(part) == 2 or part[2] is None else float(part[2])
    if whole is not None and not (np.isfinite(whole) and -1e-6 <= whole <= 1 + 1e-6):
        raise InputError(f"tinted: sentence {i}: expected a weight of the sentence from 0 to 1, got {part[2]}")
    if one.weights.min() < -1e-6:
        raise InputError(f"tinted: sentence {i}: expected weights of at least 0, got {one.weights.min():g}")
    return one.columns, one.weights[0], whole


def _check_all(sentences, by, places):
    """InputError for what no single sentence can be blamed for."""
    count = sum(len(words) for words, _, _ in sentences)
    if not 1 <= count <= MOST:
        raise InputError(f"tinted: expected 1 to {MOST} words, got {count}")
    if by not in WHAT:
        raise InputError(f"tinted: expected by to be one of {', '.join(WHAT)}, got {by!r}")
    if by == "product" and any(weight is None for _, _, weight in sentences):
        raise InputError("tinted: by=\"product\" needs the weight of each sentence")
    for n, i in places:
        if not (0 <= n < len(sentences) and 0 <= i < len(sentences[n][0])):
            raise InputError(f"tinted: there is no word ({n}, {i}): (sentence, word), both counted from 0")


def _flow(fig, sentences, left, wide):
    """Where each word stands: {(sentence, word): (x, line, width)} in inches; and the number of lines. A sentence
    begins on a line of its own; a word that does not fit begins the next one."""
    measured, boxes, line = _measure(fig, {w for words in sentences for w in words}), {}, -1
    for n, words in enumerate(sentences):
        line, x = line + 1, left
        for i, word in enumerate(words):
            room = measured[word] + 2 * PAD
            if x + room > wide and x > left:
                line, x = line + 1, left
            boxes[n, i] = x, line, room
            x += room + GAP
    return boxes, line + 1


def _measure(fig, words):
    """{word: width in inches}, as its letters will be drawn."""
    renderer, text = fig.canvas.get_renderer(), fig.text(0, 0, "", size=SIZE)
    literally([text])
    found = {}
    with quiet():
        for word in sorted(words):
            text.set_text(word)
            found[word] = max(text.get_window_extent(renderer).width / fig.dpi, 0.08)
    text.remove()
    return found


def _word(axes, box, head, word, shade, gid, frame=None, size=SIZE):
    """A word on its box: shade 0 to 1 (more is drawn as 1), the line below it, and a frame (colour, dash) or None."""
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle
    shade = min(max(float(shade), 0.0), 1.0)
    x, room, y = box[0], box[2], head + box[1] * LINE
    edge, dash = frame or ("#E3E3E3", "solid")
    axes.add_patch(Rectangle((x, y), room, LINE - 0.1, facecolor=colormaps["Blues"](shade), edgecolor=edge,
                             linestyle=dash, linewidth=1.8 if frame else 0.4, zorder=3 if frame else 1, gid=gid))
    axes.text(x + room / 2, y + (LINE - 0.1) / 2, word, ha="center", va="center", size=size, zorder=4,
              color="white" if shade > 0.55 else "black", parse_math=False, fontfamily=fonts())
    if shade > 0:
        axes.add_patch(Rectangle((x, y + LINE - 0.085), room, THICK * shade, facecolor="#222222", linewidth=0,
                                 zorder=2, snap=False, gid=f"under-{gid}"))


def _sentence(axes, y, n, weight):
    """The weight of a sentence as a bar within an outline of weight 1, and as a number."""
    from matplotlib.patches import Rectangle
    if weight is None:
        return
    style = {"height": LINE - 0.16, "edgecolor": "#8C3A00", "linewidth": 0.6}
    axes.add_patch(Rectangle((0.1, y + 0.03), BAR, facecolor="none", **style))
    axes.add_patch(Rectangle((0.1, y + 0.03), BAR * weight, facecolor="#E69F00", gid=f"sentence-{n}", **style))
    axes.text(0.1 + BAR + 0.08, y + (LINE - 0.1) / 2, f"{weight:.2f}", va="center", size=12)


def _say_above(axes, page, title, scale):
    y = 0.08
    if title:
        literally([axes.text(page[0] / 2, y, printable(title, 110), ha="center", va="top", size=15)])
        y += 0.36
    if scale.said:
        axes.text(page[0] / 2, y, scale.said, ha="center", va="top", size=12, color="#8C3A00")


def _legend(axes, page, what, scale, gold, asked, beside):
    """What the tint means: boxes from 0 to the darkest; and what frames and bars mean."""
    y, x = page[1] - 0.72, 0.1
    for k in range(6):
        number = k / 5 * scale.top
        _word(axes, (x, 0, 0.62), y, f"{number:.1f}" if scale.top == 1 else f"{number:.2g}", k / 5, f"legend-{k}",
              size=SIZE - 2)
        x += 0.67
    where = " (share of the largest)" if scale.relative else ""
    axes.text(x + 0.1, y + (LINE - 0.1) / 2, what + where, va="center", size=12)
    said = ["bar: weight of the sentence, its outline is 1"] if beside else []
    said += ["dashed frame: the right place to look (gold)"] if gold else []
    said += ["black frame: the word that asks"] if asked else []
    axes.text(0.1, page[1] - 0.18, "; ".join(said), va="center", size=12, color="#444444")
