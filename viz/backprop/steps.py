"""Backpropagation step by step: `steps(loss).save("steps.html")`.

A frame a visit: first the forward pass, op by op, then the backward pass, node by node: the gradient that comes in, the
rule and its numbers, what is sent to each input, and what has been added up where. A node is visited when its gradient
is complete; the *wrong order* visits it as soon as anything arrives, and shows what goes wrong then.
"""
from html import escape
from pathlib import Path

import numpy as np

from tinyattn.errors import InputError

from ..page import page, write
from ..plot import KINDS, figure, literally, quiet, save_bytes
from ..text import printable
from .check import check
from .draw import FONT, HEIGHT, WIDTH, Picture, heading, panel
from .formula import number
from .marks import svg_of
from .page import PAGE_STYLE, SCRIPT, STYLE, section
from .record import Recording
from .walk import EXPLAINED, finish, too_early, topological

ORDERS = ("topological", "wrong")


class Steps:
    """Both walks over one graph, the one in `order` first. A notebook shows the page.

    frames   a list of plain dictionaries, one a frame: number, phase, node, title, text (lines), numbers
    """

    def __init__(self, recording, order="topological", title="Backpropagation step by step", labels=None):
        self.order, self.title, truth = order, title, recording.truth()
        rules = check(recording)
        right = finish(topological(recording, rules), truth, rules)
        self.walks = {"topological": right, "wrong": finish(too_early(recording), truth, rules, right)}
        self.picture = Picture(recording, labels, rules)
        if self.picture.shapes_only:
            for walk in self.walks.values():
                walk.frames[0].rows.append(["Large arrays: shapes only."])

    def __repr__(self):
        return f"Steps(frames={len(self.frames)}, nodes={len(self.picture.graph.nodes)}, order={self.order!r})"

    @property
    def frames(self):
        return self.frames_of(self.order)

    def frames_of(self, order):
        """The frames of "topological" or "wrong"."""
        nodes = self.picture.graph.nodes
        return [{"number": i + 1, "phase": f.phase, "node": ", ".join(nodes[f.current].names) if f.current >= 0 else "",
                 "title": f.title, "text": [line for line in map(_line, f.rows) if line], "numbers": _plain(f.numbers)}
                for i, f in enumerate(self.walks[order].frames)]

    # -- pictures ----------------------------------------------------------------------------------------------------
    def marks(self, number, order=None):
        """The groups of marks of one frame, see draw.py."""
        order = order or self.order
        frames = self.walks[order].frames
        if not 1 <= number <= len(frames):
            raise InputError(f"steps: there are the frames 1 to {len(frames)}, not {number}")
        frame = frames[number - 1]
        head = heading(number, len(frames), frame, order == "wrong")
        return [head, *self.picture.groups(frame), panel(frame.rows)]

    def svg(self, number, order=None):
        """One frame as the text of an SVG file."""
        inner = "".join(map(svg_of, self.marks(number, order)))
        return _svg(inner, f'width="{WIDTH}" height="{HEIGHT}"')

    def save(self, path, kind="svg", order=None, frame=None):
        """Write a page (a name that ends in .html), all frames as one PDF (.pdf), or a folder of frames.

        frame    the number of one frame, counted from 1, to be written alone as a .svg, .pdf or .png
        kind     "svg", "pdf" or "png" for the frames of a folder: frame-01.svg, frame-02.svg, ...
        order    of the frames, or to begin with in a page: "topological" or "wrong"; by default as it was made
        Returns the Path written. InputError for another suffix, or if it cannot be written.
        """
        path, order = Path(path), order or self.order
        if order not in ORDERS or kind not in KINDS:
            raise InputError(f"steps: expected an order of {', '.join(ORDERS)} and a kind of {', '.join(KINDS)}, got "
                             f"{order!r} and {kind!r}")
        suffix = path.suffix.lower()
        if frame is not None:
            return self._still(path, suffix[1:], order, frame)
        if suffix in (".html", ".htm"):
            return write(path, self.html(order), "steps")
        count = range(1, len(self.walks[order].frames) + 1)
        if suffix == ".pdf":
            return write(path, _one_pdf([self.marks(i, order) for i in count]), "steps")
        if suffix and not path.is_dir():
            raise InputError("steps: expected a name that ends in .html or .pdf, or a folder (.svg and .png hold one "
                             f"frame: say which, --frame N), got {path.name!r}")
        files = [self.svg(i, order) if kind == "svg" else save_bytes(_figure(self.marks(i, order)), kind, tight=False)
                 for i in count]
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"steps: cannot make the folder {path}: {error.strerror or error}") from None
        for i, data in zip(count, files, strict=True):
            write(path / f"frame-{i:0{max(len(str(len(files))), 2)}}.{kind}", data, "steps")
        return path

    def _still(self, path, kind, order, number):
        if kind not in KINDS:
            raise InputError(f"steps: one frame is a name that ends in .svg, .pdf or .png, got {path.name!r}")
        data = self.svg(number, order) if kind == "svg" else save_bytes(_figure(self.marks(number, order)), kind,
                                                                        tight=False)
        return write(path, data, "steps")

    # -- pages -------------------------------------------------------------------------------------------------------
    def html(self, order=None):
        """The text of a page with both orders; see `save`."""
        body = f"<h1>{escape(self.title)}</h1>\n" + self._section(order or self.order, True)
        return page(self.title, body, STYLE + PAGE_STYLE, SCRIPT)

    def _repr_html_(self):
        return f"<style>{STYLE}</style>\n{self._section(self.order, False)}\n<script>{SCRIPT}</script>"

    def _section(self, order, whole):
        groups, orders = {}, {}
        for name, walk in self.walks.items():
            pictures = [[groups.setdefault(svg_of(group), len(groups)) for group in self.marks(i + 1, name)]
                        for i in range(len(walk.frames))]
            frames = self.frames_of(name)
            orders[name] = {"frames": pictures, "titles": [f"{f['phase']}: {f['title']}" for f in frames],
                            "said": [". ".join([f["title"], *f["text"]]) for f in frames],
                            "seed": next(i for i, f in enumerate(frames) if f["phase"] == "backward"),
                            "why": self.why(name)}
        first = "".join(map(svg_of, self.marks(1, order)))
        data = {"groups": list(groups), "orders": orders}
        return section(data, self.title, order, _svg(first, 'role="img"'), whole)

    def why(self, order):
        """What is to be said of an order, in a line or two."""
        if order == "topological":
            return ("Topological order: a node is visited after all nodes that use it, when every part of its gradient "
                    "has arrived. Keys: ← → Home End, space.")
        last = self.walks["wrong"].frames[-1].numbers
        said = f"Wrong order: {EXPLAINED}. "
        if not last["wrong"]:
            return said + "On this graph the numbers are right all the same."
        return said + f"Wrong at the end: {', '.join(last['wrong'])}."


def steps(output, names=None, order="topological", title="Backpropagation step by step", labels=None):
    """Walk through the graph of a Tensor of one element, forward and backward. Returns Steps.

    names    {name: Tensor} for leaves and for values between, or a module with `named_parameters()`
    order    "topological": each node once its gradient is complete, as the engine does it. "wrong": each node as
             soon as any gradient arrives, and only once. A page holds both, and begins with this one
    labels   {name of a value: (texts for its rows, texts for its columns)}, either None: tokens, for instance
    Raises InputError if nothing was recorded, for more than one element, above 60 nodes, or where the engine itself
    finds no gradient.
    """
    if order not in ORDERS:
        raise InputError(f"steps: expected the order {' or '.join(map(repr, ORDERS))}, got {order!r}")
    recording = Recording(output, names)
    return Steps(recording, order, str(title), _checked(recording, labels or {}))


def _checked(recording, labels):
    """Labels of values that are there, as many as rows and columns; anything else is an InputError."""
    shapes, found = {n: a.shape for node in recording.nodes for n, a in zip(node.names, node.values, strict=True)}, {}
    try:
        pairs = [(name, tuple(None if t is None else [printable(x, 12) for x in t] for t in pair))
                 for name, pair in labels.items()]
    except (TypeError, AttributeError):
        raise InputError("steps: labels: expected {name: (texts for its rows, texts for its columns)}, got "
                         f"{printable(repr(labels), 60)}") from None
    for name, pair in pairs:
        shape = shapes.get(name)
        if shape is None or len(shape) != 2 or len(pair) != 2 or any(
                t is not None and len(t) != n for t, n in zip(pair, shape, strict=True)):
            raise InputError(f"steps: labels of {name!r}: expected one text for each row and column of a matrix, got "
                             f"{' and '.join(str(len(t or ())) for t in pair)} for shape {shape}")
        found[name] = pair
    return found


def _svg(inner, more):
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" {more} font-family="{FONT}">'
            f"{inner}</svg>")


def _line(row):
    """A row as plain text."""
    def said(item):
        if isinstance(item, str):
            return item[2:] if item[:2] in ("# ", "! ") else item
        if item.size == 1:
            return number(item.item())
        return " ".join(np.array2string(item, precision=4, separator=", ", threshold=60).split())

    return " ".join(map(said, row)).strip()


def _plain(value):
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value.tolist() if isinstance(value, np.ndarray) else value


# ---------------------------------------------------------------------------------------------------------------------
# PDF and PNG, by matplotlib
# ---------------------------------------------------------------------------------------------------------------------
def _figure(groups):
    """A slide as a matplotlib Figure of 12.8 x 7.2 inches."""
    fig = figure(WIDTH / 100, HEIGHT / 100)
    axes = fig.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, WIDTH), ylim=(HEIGHT, 0))
    axes.axis("off")
    for mark in (mark for group in groups for mark in group):
        _draw(axes, *mark)
    literally(axes.texts)
    return fig


def _draw(axes, kind, *rest):
    from matplotlib.patches import PathPatch, Polygon, Rectangle
    from matplotlib.path import Path as Curve
    axes.order = getattr(axes, "order", 0) + 1  # drawn one over the other, in order
    if kind == "box":
        x, y, w, h, fill, stroke, thick, dash = rest
        axes.add_patch(Rectangle((x, y), w, h, facecolor=fill, edgecolor=stroke, linewidth=thick * 0.72,
                                 linestyle=(0, tuple(map(float, dash.split()))) if dash else "-", zorder=axes.order))
    elif kind == "line":
        codes = [Curve.MOVETO] + [Curve.CURVE4] * (len(rest[0]) - 1)
        axes.add_patch(PathPatch(Curve(rest[0], codes), fill=False, edgecolor=rest[1], linewidth=rest[2] * 0.72,
                                 zorder=axes.order))
    elif kind == "area":
        axes.add_patch(Polygon(rest[0], facecolor=rest[1], linewidth=0, zorder=axes.order))
    else:
        x, y, text, size, fill, anchor, bold = rest
        across = {"start": "left", "middle": "center", "end": "right"}[anchor]
        axes.text(x, y, text, fontsize=size * 0.72 * 0.88, color=fill, ha=across, va="center_baseline",
                  fontweight="bold" if bold else "normal", zorder=axes.order)


def _one_pdf(slides):
    """All slides as the pages of one PDF. InputError without matplotlib."""
    figure(1, 1)
    import io

    import matplotlib
    from matplotlib.backends.backend_pdf import PdfPages
    out = io.BytesIO()
    with matplotlib.rc_context({"pdf.fonttype": 42}), quiet(), PdfPages(out, metadata={"CreationDate": None}) as book:
        for groups in slides:
            book.savefig(_figure(groups))
    return out.getvalue()
