"""A finished layout (Graphviz' JSON with drawing operations) as a vector PDF, drawn by matplotlib.

Every object lists what is to be painted, in points, with y growing upwards:

    C c      fill and line colour            P p   a filled or open polygon     E e   an ellipse: centre and radii
    S        line style                      B b   a filled or open Bezier      L     a line
    F t      font size, font flags (1 bold)  T     a text with the width that the layout gave it
"""
import json

from ..plot import figure, fonts, quiet, save_bytes


def pdf(layout):
    """The PDF of a layout as `dot -Tjson` gives it. InputError without matplotlib."""
    layout = json.loads(layout)
    left, bottom, right, top = map(float, layout["bb"].split(","))
    margin = 4.0
    fig = figure((right - left + 2 * margin) / 72, (top - bottom + 2 * margin) / 72)
    axes = fig.add_axes((0, 0, 1, 1))
    axes.set_xlim(left - margin, right + margin)
    axes.set_ylim(bottom - margin, top + margin)
    axes.axis("off")
    things = [thing for thing in layout.get("objects", []) if "nodes" in thing or "subgraphs" in thing or "bb" in thing]
    things.sort(key=lambda thing: -_area(thing))  # outer boxes first
    things += layout.get("edges", []) + [thing for thing in layout.get("objects", []) if "bb" not in thing]
    # the graph itself comes first: its paper, and the label under it
    for z, thing in enumerate([layout, *things]):
        painter = _Painter(axes, z)
        for key in ("_draw_", "_hdraw_", "_tdraw_", "_ldraw_", "_hldraw_", "_tldraw_"):
            painter.style = "solid"
            for op in thing.get(key, []):
                painter.paint(op)
    return save_bytes(fig, "pdf", tight=False)


def _area(thing):
    left, bottom, right, top = map(float, thing["bb"].split(",")) if "bb" in thing else (0, 0, 0, 0)
    return (right - left) * (top - bottom)


class _Painter:
    """Carries colours, line and font from one drawing operation to the next, as the format wants it."""
    DASHES = {"dashed": (0, (5, 2)), "dotted": (0, (1, 2))}

    def __init__(self, axes, z):
        self.axes, self.z = axes, z
        self.line, self.fill, self.style, self.line_width = "#000000", "#ffffff", "solid", 1.0
        self.size, self.bold = 14.0, False

    def paint(self, op):
        kind = op["op"]
        if kind == "c":
            self.line = op["color"]
        elif kind == "C":
            self.fill = op["color"]
        elif kind == "S":
            self.set_style(op["style"])
        elif kind == "F":
            self.size = op["size"]
        elif kind == "t":
            self.bold = bool(op["fontchar"] & 1)
        elif kind == "T":
            self.text(op)
        elif kind in "PpBbL":
            self.path(op["points"], curved=kind in "Bb", closed=kind in "Pp", filled=kind in "PB")
        elif kind in "Ee":
            self.ellipse(op["rect"], kind == "E")

    def set_style(self, style):
        if style.startswith("setlinewidth("):
            self.line_width = float(style[13:-1])
        elif style in ("solid", "dashed", "dotted"):
            self.style = style

    def look(self, filled):
        return {"facecolor": self.fill if filled else "none", "edgecolor": self.line, "linewidth": self.line_width,
                "linestyle": self.DASHES.get(self.style, "solid"), "zorder": self.z}

    def path(self, points, curved, closed, filled):
        from matplotlib.patches import PathPatch
        from matplotlib.path import Path
        codes = [Path.MOVETO] + [Path.CURVE4 if curved else Path.LINETO] * (len(points) - 1)
        if closed:
            points, codes = [*points, points[0]], [*codes, Path.CLOSEPOLY]
        self.axes.add_patch(PathPatch(Path(points, codes), **self.look(filled)))

    def ellipse(self, rect, filled):
        from matplotlib.patches import Ellipse
        self.axes.add_patch(Ellipse(rect[:2], 2 * rect[2], 2 * rect[3], **self.look(filled)))

    def text(self, op):
        """A text, set smaller if this font runs wider than the one that the layout was made for."""
        from matplotlib.font_manager import FontProperties
        from matplotlib.textpath import TextPath
        text = op["text"].strip()
        if not text:
            return
        room = op["width"] - 0.28 * self.size * (len(op["text"]) - len(text))  # a space is 0.28 of the size wide
        font = FontProperties(family=fonts(), weight="bold" if self.bold else "normal")
        with quiet():
            wide = TextPath((0, 0), text.replace("$", "S"), size=self.size, prop=font).get_extents().width
        size = self.size * min(1.0, room / wide) if wide else self.size
        (x, y), side = op["pt"], {"l": "left", "c": "center", "r": "right"}[op["align"]]
        self.axes.text(x, y, op["text"], size=size, ha=side, va="baseline", color=self.line, weight=font.get_weight(),
                       family=fonts(), zorder=self.z, parse_math=False)
