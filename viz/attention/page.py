"""Attention that answers to the mouse and the keyboard: a page of tokens, lines, a matrix and a table.

    attention_page(prediction.finest, "look.html")        every layer, head and hop of a run, to choose from
    attention_page(seen, "look.html", rows=queries, columns=keys)         of a `capture()`, whatever model ran in it

Two columns of tokens stand beside each other, or one text. Of the token that is pointed at, or moved to by keys, the
weights are shown on the other side, as a tint, a number and a line; a click holds it. Which layer, head, hop, step
or kind is shown is chosen from lists that hold what there is; a mean is one of the choices and says what it is of. The
matrix beside marks the row or column; the table has all numbers, for print and for screen readers.

Numbers on the page are weights to 4 digits. Everything counts from 1.
"""
import zlib
from html import escape

import numpy as np

from tinyattn.errors import InputError
from tinyattn.models.system import Look, said

from ..page import _closed, embedded, page, write
from .maps import choices, looks_of, offered, token
from .script import SCRIPT, STYLE

UNIT = 10_000                 # a weight on the page is a whole number of these parts
MOST, LONGEST = 1_200_000, 1_000  # numbers on a page (about 3 MB), tokens of a side
LARGEST = 1e6                 # no weight is that large
LONG = 24                     # more tokens than that are shown as running text first
MEANS = ("head", "layer", "feature", "row", "sentence_row", "word_row")  # what a mean is offered over
VIEWS = ("lines", "text", "table")


def attention_page(looks, path=None, title="", *, view=None, rows=None, columns=None, batch=0, inner="head"):
    """An `AttentionPage` of looks, written to `path` (.html) if there is one.

    looks     a list of Looks, a prediction of a system, a list of (weights, rows, columns[, title[, gold]]), or a
              `capture()`, to which rows, columns, batch and inner belong: see `looks_of`
    title     of the page
    view      what is shown first: "lines", "text" or "table"; by default what suits
    InputError if there is nothing, if names and weights do not fit, if a weight is not a number, if it is too much.
    """
    if hasattr(looks, "taps"):
        looks = looks_of(looks, rows, columns, batch, inner)
    elif rows is not None or columns is not None:
        raise InputError("attention page: rows and columns name the maps of a `capture()`; looks have their own")
    looks = getattr(looks, "finest", looks)
    looks = [look if hasattr(look, "place") else _look(look) for look in _listed(looks)]
    if view is not None and view not in VIEWS:
        raise InputError(f"attention page: expected a view of {', '.join(VIEWS)}, got {view!r}")
    if path is not None and not str(path).lower().endswith((".html", ".htm")):
        raise InputError(f"attention page: expected a file name that ends in .html, got {str(path)!r}")
    made = AttentionPage(_data(looks, view), str(title))
    if path is not None:
        made.save(path)
    return made


class AttentionPage:
    """What `attention_page` gives; in a notebook it shows itself. `data` is what the script reads."""

    def __init__(self, data, title):
        self.data, self.title = data, title

    def fragment(self, key=None):
        """HTML for the middle of any page: style, picture and script. The same picture twice in a page needs two
        keys."""
        numbers = embedded("", self.data)
        code = zlib.crc32((numbers if key is None else str(key)).encode("utf-8", "surrogatepass"))
        name = f"look-{code:08x}"
        body = _section(embedded(name, self.data))
        return f"<style>{STYLE}</style>\n{body}\n<script>\n{_closed(SCRIPT)}\n</script>\n"

    def html(self):
        """The text of a whole page that holds everything it shows."""
        head = f"<h1>{escape(self.title)}</h1>\n" if self.title else ""
        body = head + _section(embedded("look", self.data))
        return page(self.title or "What attention looks at", body, STYLE, SCRIPT)

    def save(self, path):
        """Write the page. Returns the path; InputError if that cannot be."""
        return write(path, self.html(), "attention page")

    def _repr_html_(self):
        """In a frame of its own: styles and scripts of a notebook and of other pictures cannot touch it."""
        return (f'<iframe srcdoc="{escape(self.html())}" sandbox="allow-scripts" title="attention" '
                'style="width:100%;height:700px;border:0"></iframe>')


def _section(numbers):
    buttons = "".join(f'<button type="button" data-view="{view}" aria-pressed="false">{view}</button>'
                      for view in VIEWS)
    return (f'<section class="look">{numbers}<div class="controls"><span class="choices"></span><span role="group" '
            f'aria-label="view">{buttons}</span><button type="button" class="scale" aria-pressed="false">colours up '
            'to the largest weight</button></div><p class="what"></p><p class="said" role="status"></p>'
            '<div class="stage"></div>'
            '<p class="legend">weight 0 <i></i><span></span></p><noscript>This page draws by JavaScript, which is '
            'switched off here. A drawing needs none: tinyattn heatmap RUN -o look.svg</noscript>'
            "</section>")


def _look(parts):
    """A Look of a tuple (weights, rows, columns[, title[, gold]])."""
    if not 3 <= len(_listed(parts)) <= 5:
        raise InputError(f"attention page: expected (weights, rows, columns[, title[, gold]]), got {len(parts)} things")
    return Look(*parts)


def _listed(things):
    if not isinstance(things, (list, tuple)):
        raise InputError(f"attention page: expected a list of maps, got {type(things).__name__}")
    return things


# ---------------------------------------------------------------------------------------------------------------------
# what the script reads
# ---------------------------------------------------------------------------------------------------------------------
def _data(looks, view):
    """Places, tokens and numbers, each list of tokens once."""
    if not looks:
        raise InputError("attention page: expected at least one map, got none")
    looks = _told_apart(looks)
    axes, tokens, sides, maps = list(choices(looks)), [], [], []
    for look in looks:
        weights = _checked(look)                                           # (T, S)
        one = {"p": [_value(look.place.get(axis)) for axis in axes], "r": _number(tokens, list(map(token, look.rows))),
               "c": _number(tokens, list(map(token, look.columns))), "s": _number(sides, list(look.sides)),
               "t": str(look.title), "g": [[int(i), int(j)] for i, j in look.gold],
               "w": np.rint(weights * UNIT).astype(int).ravel().tolist()}
        if look.parts:
            one["parts"] = [[int(n), round(float(w), 4)] for n, w in look.parts]
        maps.append(one)
    total = sum(len(one["w"]) for one in maps)
    if total > MOST:
        raise InputError(f"attention page: expected at most {MOST:,} weights, got {total:,} in {len(maps)} maps; leave "
                         f"some out: {offered(looks)}")
    long = any(look.parts for look in looks) or max(len(look.columns) for look in looks) > LONG
    return {"axes": list(map(str, axes)), "maps": maps, "tokens": tokens, "sides": sides, "unit": UNIT,
            "means": list(MEANS), "view": view or ("text" if long else "lines"), "scale": "largest" if long else "one"}


def _told_apart(looks):
    """The looks, with the number of the map as one more place where their places do not tell them apart."""
    keys = [said(look.place) for look in looks]
    if len(set(keys)) == len(keys):
        return looks
    return [Look(look.weights, look.rows, look.columns, look.title, look.gold, {"map": i, **look.place}, look.sides,
                 look.parts, look.rest) for i, look in enumerate(looks, 1)]


def _value(place):
    """A value of a place as JSON has it: a number, a text, or None for none."""
    if isinstance(place, (int, np.integer)) and not isinstance(place, bool):
        return int(place)
    return place if place is None else str(place)


def _number(known, names):
    if names not in known:
        known.append(names)
    return known.index(names)


def _checked(look):
    """The weights (T, S) of a Look as numbers. InputError unless they are, one for each pair of tokens."""
    which = "attention page: " + (said(look.place) or str(look.title).partition("\n")[0] or "the map")
    w = look.weights
    try:
        w = np.asarray(w.numpy() if hasattr(w, "numpy") else w)
        T, S, gold = len(look.rows), len(look.columns), [(int(i), int(j)) for i, j in look.gold]
        parts = [(int(count), float(weight)) for count, weight in look.parts]
    except (TypeError, ValueError) as error:
        raise InputError(f"{which}: expected a matrix of weights, lists of tokens and pairs, got something else: "
                         f"{error}") from None
    if w.shape != (T, S):
        raise InputError(f"{which}: expected weights of shape ({T} rows, {S} columns), one for each pair of tokens, "
                         f"got shape {w.shape}")
    if not w.size:
        raise InputError(f"{which}: nothing to show, there are {T} rows and {S} columns")
    if w.dtype.kind not in "fiub":
        raise InputError(f"{which}: expected numbers, got {w.dtype}")
    if max(T, S) > LONGEST:
        raise InputError(f"{which}: expected at most {LONGEST:,} tokens on a side, got {max(T, S):,}")
    if not np.isfinite(w.astype(float)).all():
        i, j = (int(n) for n in np.argwhere(~np.isfinite(w.astype(float)))[0])
        raise InputError(f"{which}: the weight of row {i + 1} ({token(look.rows[i])}), column {j + 1} "
                         f"({token(look.columns[j])}) is {w[i, j]}")
    if np.abs(w).max() > LARGEST:
        raise InputError(f"{which}: expected weights, at most {LARGEST:,.0f}, got {np.abs(w).max():g}")
    if any(not (0 <= i < T and 0 <= j < S) for i, j in gold):
        raise InputError(f"{which}: a gold pair is outside {T} rows and {S} columns")
    if any(count < 0 or not np.isfinite(weight) for count, weight in parts):
        raise InputError(f"{which}: expected sentences of (number of words, weight), got {parts[:3]}")
    if parts and (T != 1 or sum(count for count, _ in parts) != S):
        raise InputError(f"{which}: expected the sentences of a document to fill one row of {S} words, got {T} rows "
                         f"and {sum(count for count, _ in parts)} words in sentences")
    return w.astype(float)
