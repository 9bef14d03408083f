"""Marks, of which the slides of `steps` are made, and grids of numbers as marks.

    ("box", x, y, w, h, fill, stroke, width, dash)      ("line", points, stroke, width, dash)
    ("area", points, fill)                              ("text", x, y, text, size, fill, anchor, bold)

A line's points are a start and then Bezier triples. One description gives SVG text and, by matplotlib, PDF and PNG.
"""
import unicodedata
from html import escape

import numpy as np

from ..plot import COLOURS
from .formula import number

BLUE, ORANGE = COLOURS[0], COLOURS[1]
INK, GREY, PALE, LINE = "#222222", "#666666", "#AAAAAA", "#8A8A8A"
ROOM = 24  # elements of an array that is drawn as cells, 6 by 6 at most; a larger one is said in words
_NARROW, _WIDE = set("iljI.,:;'|()[]! ft/"), set("mwMWQO@%∑—+=−·<>≤×⊙✓✗∂…")


def measure(text, size, bold=False):
    """A width that `text` surely fits in: that of DejaVu Sans, the widest of the fonts named above, roughly."""
    ems = sum(0.42 if c in _NARROW else 0.86 if c in _WIDE else 1.0 if unicodedata.east_asian_width(c) in "WF" else 0.62
              for c in text)
    return size * ems * (1.1 if bold else 1.0)


# ---------------------------------------------------------------------------------------------------------------------
# grids of numbers
# ---------------------------------------------------------------------------------------------------------------------
def grid_size(array, room=ROOM):
    """(width, height) of an array drawn as cells, or as a line of text if it has more than `room` elements."""
    rows = _cells(array, room)
    if rows is None:
        return (150.0, 22.0) if room == ROOM else (max(66.0, measure(_shape(array), 15) + 10), 26.0)
    if array.size == 1:
        return 66.0, 26.0
    return rows.shape[1] * 48.0, rows.shape[0] * 22.0


def grid(x, y, shape_of, array, room=ROOM, large=False):
    """Marks of `array` as tinted cells at (x, y); of an empty field if it is None. shape_of: an array of its shape.

    large    larger letters with fewer digits
    """
    w, h = grid_size(shape_of, room)
    if array is None:
        return [("box", x, y, w, h, "#FFFFFF", PALE, 1, "3 2")]
    rows = _cells(array, room)
    if rows is None:
        said, size = (_in_words(array), 11) if room == ROOM else (_shape(array), 15)
        size *= min(1.0, (w - 4) / measure(said, size))
        return [("box", x, y, w, h, "#FFFFFF", PALE, 1, ""),
                ("text", x + w / 2, y + h / 2, said, size, INK, "middle", False)]
    size = 17 if array.size == 1 else 15 if large else 12.5
    write = shorter if large and array.size > 1 else number
    words = [[str(bool(v)) if array.dtype.kind == "b" else write(v) for v in row] for row in rows]
    size *= min([1.0, *((w / rows.shape[1] - 4) / measure(said, size) for row in words for said in row)])
    marks, high = [], max([abs(v) for v in rows.flat if np.isfinite(v)], default=0) or 1
    w, h = w / rows.shape[1], h / rows.shape[0]
    for r in range(rows.shape[0]):
        for c in range(rows.shape[1]):
            fill = "#FFFFFF" if array.size == 1 else tint(rows[r, c] / high)
            marks += [("box", x + c * w, y + r * h, w, h, fill, PALE, 0.8, ""),
                      ("text", x + (c + 0.5) * w, y + (r + 0.5) * h, words[r][c], size, INK, "middle", False)]
    return marks


def tint(share):
    """−1 blue, 0 white, 1 orange, all light enough for black numbers."""
    if not np.isfinite(share):
        return "#DDDDDD"
    colour = (86, 160, 220) if share < 0 else (240, 170, 70)
    part = min(abs(float(share)), 1.0) * 0.75
    return "#" + "".join(f"{round(255 + (c - 255) * part):02X}" for c in colour)


def shorter(x):
    """A number of at most 5 letters: "0.43", "−1.05", "2e−4"."""
    text = number(x)
    if len(text) > 4 and np.isfinite(x):
        text = f"{x:.2f}" if 0.01 <= abs(x) < 10 else f"{x:.3g}" if 10 <= abs(x) < 1000 else f"{x:.0e}"
        text = text.replace("e-0", "e-").replace("e+0", "e").replace("-", "−")
    return text


def in_cells(array, room=ROOM):
    """Is the array drawn with its numbers?"""
    return _cells(array, room) is not None


def _in_words(array):
    """A large array in a few words: its shape, and the range of its numbers."""
    numbers = array[np.isfinite(array)]
    said = f"{number(numbers.min())} … {number(numbers.max())}" if numbers.size else "no numbers"
    return f"{_shape(array)}: {said}"


def _shape(array):
    return "×".join(map(str, array.shape))


def _cells(array, room):
    """The array as rows and columns of numbers; None if it is too large, or empty."""
    if array.size == 0:
        return None
    rows = array.reshape(-1, array.shape[-1]) if array.ndim else array.reshape(1, 1)
    fits = max(rows.shape) <= 6 and array.size <= room
    return rows if fits else None


# ---------------------------------------------------------------------------------------------------------------------
# marks to SVG
# ---------------------------------------------------------------------------------------------------------------------
def moved(marks, dx, dy, scale=1.0):
    """Marks made larger by `scale` and then moved."""
    out = []
    for kind, *rest in marks:
        if kind == "box":
            x, y, w, h, fill, stroke, thick, dash = rest
            out.append((kind, dx + x * scale, dy + y * scale, w * scale, h * scale, fill, stroke, thick * scale, dash))
        elif kind == "text":
            x, y, text, size, *look = rest
            out.append((kind, dx + x * scale, dy + y * scale, text, size * scale, *look))
        else:
            points = [(dx + x * scale, dy + y * scale) for x, y in rest[0]]
            out.append((kind, points, rest[1], *([rest[2] * scale, rest[3]] if kind == "line" else [])))
    return out


def svg_of(marks):
    """The marks as SVG elements, without ids, so that any number of pictures can share a page."""
    out = []
    for kind, *rest in marks:
        if kind == "box":
            x, y, w, h, fill, stroke, thick, dash = rest
            dashed = f' stroke-dasharray="{dash}"' if dash else ""
            out.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" fill="{fill}" '
                       f'stroke="{stroke}" stroke-width="{thick:.1f}"{dashed}></rect>')
        elif kind == "line":
            (x, y), *points = rest[0]
            path = f"M{x:.1f} {y:.1f}C" + " ".join(f"{x:.1f} {y:.1f}" for x, y in points)
            out.append(f'<path d="{path}" fill="none" stroke="{rest[1]}" stroke-width="{rest[2]:.1f}"></path>')
        elif kind == "area":
            points = " ".join(f"{x:.1f},{y:.1f}" for x, y in rest[0])
            out.append(f'<polygon points="{points}" fill="{rest[1]}"></polygon>')
        else:
            x, y, text, size, fill, anchor, bold = rest
            at = "" if anchor == "start" else f' text-anchor="{anchor}"'
            weight = ' font-weight="bold"' if bold else ""
            out.append(f'<text x="{x:.1f}" y="{y + size * 0.35:.1f}" font-size="{size:.1f}" fill="{fill}"{at}{weight}>'
                       f"{escape(text)}</text>")
    return "".join(out)
