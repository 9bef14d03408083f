"""The command `equations`: the forward and the backward pass as formulas, made from the recorded graph."""
import inspect
import re
from pathlib import Path

import click

from ..errors import InputError
from . import names
from .console import note, out

LIMIT = 120  # equations that are printed unless --all is said: more than anybody reads
FORMS = {".txt": "text", ".tex": "latex", ".py": "numpy", ".md": "md", ".html": "html"}


@click.command("equations")
@click.argument("name", metavar="NAME|FILE.py[:NAME]")
@click.option("-o", "--output", metavar="FILE", help="a .txt, .tex, .md, .html or .py file [default: print]")
@click.option("--as", "form", type=click.Choice(["text", "latex", "numpy"]), help="the form to print [default: text]")
@click.option("--text", "form", flag_value="text", help="print Unicode text")
@click.option("--latex", "form", flag_value="latex", help="print LaTeX, for amsmath")
@click.option("--numpy", "form", flag_value="numpy", help="print Python source that runs with NumPy alone")
@click.option("--forward", "forward", is_flag=True, help="only the forward pass")
@click.option("--backward", "backward", is_flag=True, help="only the backward pass")
@click.option("--shapes", is_flag=True, help="write the shape beside each equation")
@click.option("--fused", is_flag=True, help="leave fused ops as one function")
@click.option("--all", "everything", is_flag=True, help=f"print them all, even if they are more than {LIMIT}")
@click.option("--sample", type=click.IntRange(0), default=0, show_default=True, help="of an op: which of its samples")
def equations_command(name, output, form, forward, backward, shapes, fused, everything, sample):
    """Print the equations of an op, an attention mechanism, a module or a system, and of their gradients.

    They are made from what the engine recorded and from its own derivatives.
    """
    form = _form(output, form)
    kind, full, thing = names.find(name)
    made = recorded(kind, full, thing, sample, fused, backward or not forward)
    if forward != backward:
        made = made.only("forward" if forward else "backward")
    if not made.list:
        raise InputError(f"{full}: no equation is left of it: its result is one of its inputs")
    if not everything and form != "numpy" and len(made) > LIMIT:
        note(f"{len(made)} equations, more than {LIMIT}; --all prints them")
        made = made.first(LIMIT)
    if output:
        out(str(made.save(output, shapes, f"{full}: equations")))
    else:
        out({"text": lambda: made.text(shapes), "latex": lambda: made.latex(shapes), "numpy": made.numpy}[form]()
            .rstrip("\n"))


def _form(output, form):
    """The form that is asked for by the file's suffix or by an option; InputError where the two differ."""
    if not output:
        return form or "text"
    suffix = Path(output).suffix.lower()
    if suffix not in FORMS:
        raise InputError(f"equations: expected a name that ends in {', '.join(FORMS)}, got {Path(output).name!r}")
    if form and form != FORMS[suffix]:
        raise InputError(f"equations: {Path(output).name} would be {FORMS[suffix]}, not {form}; choose the suffix or "
                         "the option")
    return FORMS[suffix]


def recorded(kind, name, thing, sample=0, fused=False, backward=True):
    """The Equations of an op, mechanism, module or system on its example, with the names of its code."""
    from viz.formulas.equations import equations
    from viz.formulas.namer import names_from_code

    from .draw import example
    with names_from_code(*_files(kind, thing)) as found:
        outputs, leaves = module_example(thing) if kind == "module" else example(kind, name, thing, sample)
    with names.blame(kind, thing):
        return equations(outputs, [leaves, found], backward=backward, fused=fused, letters=_letters(kind, thing))


def module_example(cls):
    """The outputs of a module on its example and the module. Its float inputs are differentiated too: what depends on
    nothing that needs a gradient is not recorded."""
    import numpy as np

    from ..nn import example_of, outputs_of
    from ..tensor import Tensor
    module, inputs = example_of(cls, np.random.default_rng(0), np.float32)
    inputs = [Tensor(x.numpy(), requires_grad=True) if isinstance(x, Tensor) and x.dtype.kind == "f" else x
              for x in (inputs if isinstance(inputs, (tuple, list)) else [inputs])]
    return outputs_of(module(*inputs)), module


def _files(kind, thing):
    """The files whose local variables give the names, nearest to the reader first."""
    from ..attention import core
    if kind == "attention":
        return inspect.getsourcefile(thing.function), core.__file__
    return () if kind == "op" else (inspect.getsourcefile(thing),)


def _letters(kind, thing):
    """{leaf: letters of its axes}: those declared for the parameters, and "q (B, T, Q)" of the docstring."""
    if kind == "op":
        return {}
    function = thing.function if kind == "attention" else thing
    texts = [inspect.getdoc(f) or "" for f in (function, getattr(thing, "forward", None)) if f is not None]
    found, shape = {}, r"((?:\w+(?:, | and ))*\w+) \(((?:\.\.\., )?(?:[A-Z], ?)*[A-Z],?)\)"
    for whole, letters in re.findall(shape, "\n".join(texts)):
        for leaf in re.split(r", | and ", whole):
            found.setdefault(leaf, tuple(re.findall(r"[A-Z]|\.{3}", letters)))
    return {**found, **({n: tuple(s) for n, s in thing.letters().items()} if kind == "attention" else {})}
