"""The graph of a computation as a picture: `graph(loss).save("graph.svg")`.

Nothing is traced and no source is read: the graph is what the engine recorded. Gradients made with `create_graph=True`
are such graphs too, so the backward pass is drawn by the same lines. What a fused op does inside is seen if it runs as
its readable twin: `with tinyattn.fused("never"): y = f(x)`, and then `graph(y)`.
"""
import sys
import zlib
from collections import Counter
from pathlib import Path

from tinyattn.errors import InputError
from tinyattn.program import Program

from ..page import inline, write
from . import exchange, render
from .cut import inside
from .dot import dot_text
from .fold import depth_of, fold
from .paths import marks
from .recorded import Recorded, held, recorded
from .themes import THEMES

LIMIT = 1000  # nodes beyond which nothing is drawn: nobody could read it, and the layout would take minutes
_NO_SCOPES = "put parts of it into `with scope(...)`, draw a Tensor nearer to the inputs, or raise max_nodes"
_TEXTS = {"dot": lambda g: g.dot, "json": lambda g: exchange.to_json(g.program),
          "graphml": lambda g: exchange.graphml(g.program, g.drawing)}
SUFFIXES = (*render.PICTURES, "html", *_TEXTS)
_shown = Counter()  # how often a notebook was shown each picture


class Graph:
    """A drawn computation. `dot` is its DOT text, `nodes` and `edges` are counts; a notebook shows the picture.

    `program` is the list of instructions that was drawn, `drawing` the nodes and edges after folding, `held` what the
    values hold where that was asked for, `title` the heading of its page.
    """

    def __init__(self, program, drawing, dot, held=None, title=""):
        self.program, self.drawing, self.dot, self.held = program, drawing, dot, held or {}
        self.title = title or "Computation graph"

    @property
    def nodes(self):
        return len(self.drawing.nodes)

    @property
    def edges(self):
        return len(self.drawing.edges)

    def __repr__(self):
        return f"Graph(nodes={self.nodes}, edges={self.edges})"

    def save(self, path, timeout=30.0):
        """Write the picture to `path`, by its suffix:

        .svg, .pdf, .png    the picture
        .html               a page to move about in, see `page.py`
        .dot                the DOT text
        .json, .graphml     the whole Program, and what is drawn, for other tools: see `exchange.py`

        Returns the Path written. On a machine that cannot draw, that is the DOT text under the same name with .dot, and
        one line on stderr says how to get the rest. timeout: seconds for the layout. InputError for another suffix.
        """
        path = Path(path)
        kind = path.suffix[1:].lower()
        if kind not in SUFFIXES:
            raise InputError(f"graph: expected a name that ends in {', '.join('.' + s for s in SUFFIXES[:-1])} or "
                             f".{SUFFIXES[-1]}, got {path.name!r}")
        if kind in _TEXTS:
            return write(path, _TEXTS[kind](self).encode("utf-8", "replace"), "graph")
        try:
            if kind == "html":
                return write(path, self.html(timeout), "graph")
            picture = render.render(self.dot, kind, timeout)
        except render.Unavailable as problem:
            path = write(path.with_suffix(".dot"), self.dot.encode("utf-8"), "graph")
            print(f"graph: wrote the DOT text {path} in place of a .{kind}: {problem}", file=sys.stderr)
            return path
        if kind == "svg":
            text = picture.decode("utf-8")
            return write(path, text[:text.index("<svg")] + self._unique(text), "graph")
        return write(path, picture, "graph")

    def svg(self, timeout=30.0, key=None):
        """The picture as SVG text, without the XML head, to be put into a page. Raises render.Unavailable.

        Its ids differ from those of other pictures; the same graph keeps the same ids. key: makes them others, for one
        picture twice in a page.
        """
        return self._unique(render.render(self.dot, "svg", timeout).decode("utf-8"), key)

    def html(self, timeout=30.0):
        """The text of a page that shows the graph, to zoom and to ask nodes what they are. May raise Unavailable."""
        from .page import graph_page
        return graph_page(self, self.svg(timeout), self.title)

    def _unique(self, svg, key=None):
        return inline(svg, self.dot if key is None else f"{key} {self.dot}")

    def _repr_svg_(self):
        picture = zlib.crc32(self.dot.encode("utf-8"))
        try:
            svg = self.svg(key=_shown[picture] or None)
        except render.Unavailable:
            return None
        _shown[picture] += 1
        return svg


def graph(outputs, names=None, depth=None, max_nodes=150, values=False, theme="colour", direction="TB", *,
          backward=False, steps=None, scope=None, path=None, gradients=False, full=False, legend=False, saved=None,
          inputs=(), title="", remark=""):
    """Draw what computed `outputs`: a Tensor, a list of Tensors, or a Program. Returns a Graph.

    names       {name: Tensor} for Tensors without a name, or a module with `named_parameters()`
    depth       how many scopes deep to look; each scope below is one node with the number of its ops. Without it the
                graph is folded no more than `max_nodes` nodes ask for. The box that `scope` asks for is always open
    values      write the numbers into the nodes, small tensors as tinted grids, large ones as range and histogram; for
                parameters their `.grad` too, which is absent before `backward()`
    theme       "colour" (told apart by colour-blind readers), "print" (black and white) or "dark" (for a projector)
    direction   "TB" from top to bottom, "LR" from left to right
    backward    draw the backward pass of a one-element Tensor too, down to all its parameters; "only": that alone
    steps       lay equal time steps (`step 0`, `step 1`, ...) on top of each other; None: if `depth` is given or the
                graph has more than `max_nodes` nodes
    scope       draw just what is inside the box of this name: "decoder", "step 3", "decoder/step 3"
    path        (from, to): draw all paths between two names strong and the rest pale. A name is that of a leaf or
                value, of an op, or of a box; "output" is what the graph computes
    gradients   write the gradient of a one-element Tensor at every value, computed for the picture: `.grad` stays
    full        fold nothing
    legend      say under the picture what its colours and lines mean
    saved       draw the dotted edges; None: if there are few
    inputs      Tensors that are given and not learned, though they require a gradient: drawn as inputs
    title       the heading of the page that `save("NAME.html")` writes
    remark      a line of text for the legend: what else must be said of the picture

    Solid edges carry values, with their shapes; "(64,) → (32, 64)" says that a value was broadcast. Dashed edges go to
    the next time step; dotted ones bring values saved in the forward pass to the backward pass.
    Raises InputError if nothing was recorded, or if more than 1,000 nodes (or `max_nodes`, if larger) are left.
    """
    _check(depth, max_nodes, theme, direction, backward)
    if isinstance(outputs, Program):
        if values or backward or names or gradients:
            raise InputError("graph: a Program holds no Tensors, so values, gradients, backward and names need the "
                             "Tensor itself")
        found = Recorded(inside(outputs, scope)[0] if scope is not None else outputs)
    else:
        found = recorded(outputs, names, backward, scope, inputs)
    if not found.program.instructions:
        raise InputError("graph: nothing was recorded for this Tensor: no input requires a gradient, or it was made "
                         "under no_grad()")
    drawing = _few_enough(found.program, depth, max_nodes, steps, full, _open(found.program, scope))
    numbers = held(found, drawing, values, gradients) if values or gradients else None
    strong = marks(found.program, drawing, path) if path is not None else None
    dot = dot_text(found.program, drawing, numbers, theme, direction, strong, legend, saved, remark)
    return Graph(found.program, drawing, dot, numbers, title)


def _check(depth, max_nodes, theme, direction, backward):
    if depth is not None and (not isinstance(depth, int) or depth < 0):
        raise InputError(f"graph: expected a depth of 0 or more, got {depth!r}")
    if not isinstance(max_nodes, int) or max_nodes < 1:
        raise InputError(f"graph: expected max_nodes of 1 or more, got {max_nodes!r}")
    if theme not in THEMES:
        raise InputError(f"graph: expected the theme {' or '.join(map(repr, THEMES))}, got {theme!r}")
    if direction not in ("TB", "LR"):
        raise InputError(f"graph: expected the direction 'TB' or 'LR', got {direction!r}")
    if backward not in (True, False, "only"):
        raise InputError(f"graph: expected backward to be True, False or 'only', got {backward!r}")


def _open(program, scope):
    """How many boxes deep a picture of one box must look for that box to be open."""
    if scope is None:
        return 0
    return len(scope.split("/")) + any(step.scope.split("/")[0] == "backward" for step in program.instructions)


def _few_enough(program, depth, max_nodes, steps, full, least=0):
    """The Drawing that shows most: all of it, else time steps as one, else ever fewer scopes, down to `least`."""
    limit = max(LIMIT, max_nodes)
    if full or depth is not None:
        depth = depth if depth is None else max(depth, least)
        drawing = fold(program, depth, bool(steps) if full else steps is not False)
        if len(drawing.nodes) > limit:
            where = f"depth {depth} leaves" if depth is not None else "in full there are"
            raise InputError(f"graph: {where} {len(drawing.nodes):,} nodes, more than {limit:,}: "
                             + ("leave out full (--full), and it is folded" if full else
                                "choose a smaller depth (--depth), or none" if depth else _NO_SCOPES))
        return drawing
    ways = [(None, False), (None, True)] if steps is None else [(None, steps)]
    for deep, merge in ways + [(d, ways[-1][1]) for d in range(min(depth_of(program) - 1, 20), least - 1, -1)]:
        drawing = fold(program, deep, merge)
        if len(drawing.nodes) <= max_nodes:
            return drawing
    if len(drawing.nodes) > limit:
        raise InputError(f"graph: {len(drawing.nodes):,} nodes are left with every scope folded (--depth {least}), "
                         f"more than {limit:,}: {_NO_SCOPES}")
    return drawing
