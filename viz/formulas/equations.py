"""The forward and the backward pass of a computation as equations: `print(equations(y).text())`.

What is printed is made from the graph that the engine recorded, and the backward pass from the gradients' own graph
(`create_graph=True`), so these are the engine's formulas and no second description of them. The stages:

    Tensors -> Program -> a table of values and an expression for each (`build.py`), simplified by visible
    rules (`algebra.py`) -> text, LaTeX (`notation.py`), NumPy source (`numpy_source.py`), a page (`page.py`)
"""
from dataclasses import dataclass
from pathlib import Path

from tinyattn.errors import InputError
from tinyattn.program import _in_order
from tinyattn.tensor import Tensor

from .algebra import names_in
from .build import Builder, opened, wanted_names


@dataclass
class Equations:
    """The equations of a computation, in an order in which they can be computed.

    values     {id: Value}
    list       [Equation]
    given      ids of the leaves: inputs, constants, and the gradients that come in
    outputs    ids; `gradients` {id of a leaf: id of its gradient}; `top` the name that stands for L in ∂L/∂x
    """
    values: dict
    list: list
    given: list
    outputs: list
    gradients: dict
    top: str = "L"
    cut: int = 0               # how many equations there were before `first`
    backward: bool = False

    def __len__(self):
        return len(self.list)

    def __str__(self):
        return self.text()

    def text(self, shapes=False):
        """Unicode text: a line of notation, what is given, the equations."""
        from .page import text
        return text(self, shapes)

    def latex(self, shapes=False, document=False):
        """LaTeX: `align*` environments for amsmath, or a whole document that compiles."""
        from .page import latex
        return latex(self, shapes, document)

    def numpy(self):
        """Python source that computes the same with NumPy alone."""
        from .numpy_source import source
        return source(self)

    def html(self, title="Equations", shapes=True):
        """A page: every equation a row, with its shape."""
        from .page import html
        return html(self, title, shapes)

    def only(self, part):
        """The equations of one part, "forward" or "backward"; what they need from the other is given."""
        return self._of([e for e in self.list if e.part == part], backward=part == "backward")

    def first(self, count):
        """The first `count` equations; `cut` says how many there are."""
        return self if len(self.list) <= count else self._of(self.list[:count], cut=len(self.list))

    def _of(self, chosen, backward=None, cut=None):
        made = {e.id for e in chosen}
        used = {i for e in chosen for i in names_in(e.expression)} | made
        before = [*self.given, *(e.id for e in self.list)]
        return Equations(self.values, chosen, [i for i in before if i in used and i not in made],
                         [i for i in self.outputs if i in made], {k: v for k, v in self.gradients.items() if v in used},
                         self.top, self.cut if cut is None else cut, self.backward if backward is None else backward)

    def save(self, path, shapes=False, title="Equations"):
        """Write to `path` by its suffix: .tex (a document that compiles), .txt, .md, .html or .py. Returns the path."""
        from ..page import write
        from .page import markdown
        kind = Path(path).suffix.lower()
        made = {".tex": lambda: self.latex(shapes, True), ".txt": lambda: self.text(shapes) + "\n",
                ".md": lambda: markdown(self, title, shapes), ".html": lambda: self.html(title),
                ".py": self.numpy}
        if kind not in made:
            raise InputError(f"equations: expected a name that ends in .tex, .txt, .md, .html or .py, got "
                             f"{Path(path).name!r}")
        return write(Path(path), made[kind](), "equations")


def equations(outputs, names=None, *, backward=True, fused=False, letters=None):
    """The Equations that computed `outputs`, a Tensor or a list of them, from what is recorded.

    names      {name: Tensor}, a module with `named_parameters()`, a `NamesFromCode`, or a list of those, first come
               first named
    backward   the gradients of all leaves too. L is the output, if it is one number, else any number made of the
               outputs: then the gradients ∂L/∂y that come in at the outputs are given
    fused      leave fused ops as one function; by default each is opened into its readable twin
    letters    {name of a leaf: "BTD"}: letters for its axes, from which those of the other values follow

    Raises InputError where nothing was recorded.
    """
    outputs = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
    for t in outputs:
        if not isinstance(t, Tensor):
            raise InputError(f"equations: expected a Tensor or a list of Tensors, got {type(t).__name__}")
    outputs = [t for t in outputs if t.op is not None]
    if not outputs:
        raise InputError("equations: nothing was recorded: no input requires a gradient, no output is made of floats, "
                         "or it was made under no_grad()")
    try:
        _in_order(outputs)
    except RuntimeError:
        raise InputError("equations: nothing is left: backward(free_graph=True) has freed the graph; make them before "
                         "it") from None
    wanted = wanted_names(names)
    if not fused:
        outputs, moved, inner = opened(outputs)
        wanted = {moved.get(where, where): name for where, name in wanted.items()}
        wanted = {**{where: name for where, name in inner.items() if where not in moved.values()}, **wanted}
    return Equations(**Builder(outputs, wanted, letters or {}).run(backward))
