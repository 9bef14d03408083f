"""The graph of a computation as a picture: `graph(loss).save("graph.svg")`.

Nothing is traced and no source is read: the graph is what the engine recorded. Gradients made with `create_graph=True`
are such graphs too, so the backward pass is drawn by the same lines.
"""
import json
import math
import sys
import zlib
from contextlib import contextmanager
from pathlib import Path

from tinyattn.autograd import grad
from tinyattn.errors import InputError
from tinyattn.program import Program, _in_order
from tinyattn.tensor import Tensor

from . import render
from .dot import THEMES, dot_text
from .fold import depth_of, fold

_NO_SCOPES = "put parts of it into `with scope(...)`, draw a Tensor nearer to the inputs, or raise max_nodes"
LIMIT = 1000  # nodes beyond which nothing is drawn: nobody could read it, and the layout would take minutes


class Graph:
    """A drawn computation. `dot` is its DOT text, `nodes` and `edges` are counts; a notebook shows the picture.

    `program` is the list of instructions that was drawn, `drawing` the nodes and edges after folding.
    """

    def __init__(self, program, drawing, dot):
        self.program, self.drawing, self.dot = program, drawing, dot

    @property
    def nodes(self):
        return len(self.drawing.nodes)

    @property
    def edges(self):
        return len(self.drawing.edges)

    def __repr__(self):
        return f"Graph(nodes={self.nodes}, edges={self.edges})"

    def save(self, path, timeout=30.0):
        """Write the picture to `path`, by its suffix: .svg, .pdf, .png, .dot (DOT text) or .json (the whole Program).

        Returns the Path written. On a machine that cannot draw, that is the DOT text under the same name with .dot, and
        one line on stderr says how to get the rest. timeout: seconds for the layout. InputError for another suffix.
        """
        path = Path(path)
        kind = path.suffix[1:].lower()
        if kind not in (*render.PICTURES, "dot", "json"):
            raise InputError(f"graph: expected a name that ends in .svg, .pdf, .png, .dot or .json, got {path.name!r}")
        if kind == "dot":
            return _write(path, self.dot.encode("utf-8"))
        if kind == "json":
            text = json.dumps(_finite(self.program.to_json()), ensure_ascii=False, indent=1, allow_nan=False)
            return _write(path, text.encode("utf-8", "replace"))
        try:
            picture = render.render(self.dot, kind, timeout)
        except render.Unavailable as problem:
            path = _write(path.with_suffix(".dot"), self.dot.encode("utf-8"))
            print(f"graph: wrote the DOT text {path} in place of a .{kind}: {problem}", file=sys.stderr)
            return path
        return _write(path, self.unique(picture.decode("utf-8")).encode("utf-8") if kind == "svg" else picture)

    def svg(self, timeout=30.0):
        """The picture as SVG text, without the XML head, to be put into a page. Raises render.Unavailable."""
        text = render.render(self.dot, "svg", timeout).decode("utf-8")
        return self.unique(text[text.index("<svg"):])

    def unique(self, svg):
        """Ids that differ from those of another picture in the same page; the same graph keeps the same ids."""
        return svg.replace(' id="', f' id="g{zlib.crc32(self.dot.encode("utf-8")):08x}-')

    def _repr_svg_(self):
        try:
            return self.svg()
        except render.Unavailable:
            return None


def graph(outputs, names=None, depth=None, max_nodes=150, values=False, theme="colour", direction="TB", *,
          backward=False, steps=None):
    """Draw what computed `outputs`: a Tensor, a list of Tensors, or a Program. Returns a Graph.

    names       {name: Tensor} for Tensors without a name, or a module with `named_parameters()`
    depth       how many scopes deep to look; each scope below is one node with the number of its ops. Without it the
                graph is folded no more than `max_nodes` nodes ask for
    values      write small values, ranges of large ones, and the gradients of parameters beside the nodes
    theme       "colour" (told apart by colour-blind readers) or "print" (black and white)
    direction   "TB" from top to bottom, "LR" from left to right
    backward    draw the backward pass of a one-element Tensor too, down to all its parameters
    steps       lay equal time steps (`step 0`, `step 1`, ...) on top of each other; None: if `depth` is given or the
                graph has more than `max_nodes` nodes

    Solid edges carry values, with their shapes; "(64,) → (32, 64)" says that a value was broadcast. Dashed edges go to
    the next time step; dotted ones bring values saved in the forward pass to the backward pass.
    Raises InputError if nothing was recorded, or if more than 1,000 nodes (or `max_nodes`, if larger) are left.
    """
    _check(depth, max_nodes, theme, direction)
    arrays = None
    if isinstance(outputs, Program):
        if values or backward or names:
            raise InputError("graph: a Program holds no Tensors, so values, backward and names need the Tensor itself")
        program = outputs
    else:
        outputs = _tensors(outputs)
        with _named(names):
            outputs, titles = _with_gradients(outputs) if backward else (outputs, {})
            program = Program.of(outputs)
        if backward:
            _tell_backward(program, len(_in_order(outputs[:1])), titles)
        arrays = _arrays(program, outputs) if values else None
    if not program.instructions:
        raise InputError("graph: nothing was recorded for this Tensor: no input requires a gradient, or it was made "
                         "under no_grad()")
    drawing = _few_enough(program, depth, max_nodes, steps)
    return Graph(program, drawing, dot_text(program, drawing, arrays, theme, direction))


def _check(depth, max_nodes, theme, direction):
    if depth is not None and (not isinstance(depth, int) or depth < 0):
        raise InputError(f"graph: expected a depth of 0 or more, got {depth!r}")
    if not isinstance(max_nodes, int) or max_nodes < 1:
        raise InputError(f"graph: expected max_nodes of 1 or more, got {max_nodes!r}")
    if theme not in THEMES:
        raise InputError(f"graph: expected the theme {' or '.join(map(repr, THEMES))}, got {theme!r}")
    if direction not in ("TB", "LR"):
        raise InputError(f"graph: expected the direction 'TB' or 'LR', got {direction!r}")


def _few_enough(program, depth, max_nodes, steps):
    """The Drawing that shows most: all of it, else time steps as one, else ever fewer scopes."""
    limit = max(LIMIT, max_nodes)
    if depth is not None:
        drawing = fold(program, depth, steps is not False)
        if len(drawing.nodes) > limit:
            raise InputError(f"graph: depth {depth} leaves {len(drawing.nodes):,} nodes, more than {limit:,}: "
                             + ("choose a smaller depth (--depth), or none" if depth else _NO_SCOPES))
        return drawing
    ways = [(None, False), (None, True)] if steps is None else [(None, steps)]
    for deep, merge in ways + [(d, ways[-1][1]) for d in range(min(depth_of(program) - 1, 20), -1, -1)]:
        drawing = fold(program, deep, merge)
        if len(drawing.nodes) <= max_nodes:
            return drawing
    if len(drawing.nodes) > limit:
        raise InputError(f"graph: {len(drawing.nodes):,} nodes are left with every scope folded (--depth 0), more than "
                         f"{limit:,}: {_NO_SCOPES}")
    return drawing


# ---------------------------------------------------------------------------------------------------------------------
# what the Tensors add to the Program: names, values, gradients
# ---------------------------------------------------------------------------------------------------------------------
def _tensors(outputs):
    outputs = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
    for t in outputs:
        if not isinstance(t, Tensor):
            raise InputError(f"graph: expected a Tensor, a list of Tensors or a Program, got {type(t).__name__}")
    if not outputs:
        raise InputError("graph: expected at least one Tensor, got an empty list")
    return outputs


@contextmanager
def _named(names):
    """Tensors carry their name from `names` while the Program is made."""
    names = dict(names.named_parameters()) if hasattr(names, "named_parameters") else dict(names or {})
    names = {name: t for name, t in names.items() if isinstance(t, Tensor)}
    before = [(t, t.name) for t in names.values()]
    try:
        for name, t in names.items():
            t.name = name
        yield
    finally:
        for t, name in reversed(before):
            t.name = name


def _with_gradients(outputs):
    """The outputs and their gradients in one list, with titles for the gradients: {position: "∂loss/∂w"}."""
    if len(outputs) != 1 or outputs[0].size != 1:
        raise InputError("graph: the backward pass is drawn from one Tensor of one element, such as a loss; got "
                         + ", ".join(f"shape {t.shape}" for t in outputs))
    leaves = {}
    for op in _in_order(outputs):
        leaves.update((id(t), t) for t in op.inputs if t is not None and t.op is None and t.requires_grad)
    leaves = list(leaves.values())
    found = grad(outputs, leaves, create_graph=True, allow_unused=True) if leaves else ()
    top, titles = outputs[0].name or "loss", {}
    for leaf, gradient in zip(leaves, found, strict=True):
        if gradient is not None and gradient.op is not None:
            titles[len(outputs)] = f"∂{top}/∂{leaf.name or 'parameter'}"
            outputs = [*outputs, gradient]
    return outputs, titles


def _tell_backward(program, forward, titles):
    """Name the gradients, and put the sums that the walk makes between two rules into the scope of what they sum up.
    `forward` is the number of instructions before the backward pass."""
    for i, name in titles.items():
        program.values[program.outputs[i]].name = program.values[program.outputs[i]].name or name
    scope_of = {}
    for step in program.instructions[forward:]:
        if "backward" not in step.scope.split("/"):
            step.scope = next((scope_of[v] for v in reversed(step.inputs) if v in scope_of), f"backward/{step.op}")
        scope_of.update((v, step.scope) for v in step.outputs)


def _arrays(program, outputs):
    """{value id: (numbers, gradient or None)} for everything in the Program."""
    arrays = {}
    for step, op in zip(program.instructions, _in_order(outputs), strict=True):
        for value, t in zip(step.inputs, op.inputs, strict=True):
            if value is not None:
                arrays[value] = t.numpy(), None if t.op is not None or t.grad is None else t.grad.numpy()
        floats = [a for a in op.outs if a.dtype.kind == "f"]
        for value, a in zip(step.outputs, floats, strict=True):
            arrays.setdefault(value, (Tensor._wrap(a, None, 0, False).numpy(), None))
    return arrays


def _finite(x):
    """nan and inf as words: JSON has no numbers for them. The nesting is that of the data, at most a Tensor's axes."""
    if isinstance(x, dict):
        return {k: _finite(v) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        return [_finite(v) for v in x]
    return str(x) if isinstance(x, float) and not math.isfinite(x) else x


def _write(path, data):
    try:
        path.write_bytes(data)
    except OSError as error:
        raise InputError(f"graph: cannot write {path}: {error.strerror or error}") from None
    return path
