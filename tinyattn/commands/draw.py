"""The commands that show what there is: graph, gallery, list, explain."""
import inspect
from contextlib import nullcontext
from pathlib import Path

import click
import numpy as np

from .. import systems
from ..errors import InputError
from . import names
from .console import columns, note, out, out_json, shortened
from .options import trust_option


@click.command("graph")
@click.argument("name", metavar="NAME|RUN")
@click.option("-o", "--output", metavar="FILE",
              help="a .svg, .pdf, .png, .html, .dot, .json or .graphml file [default: NAME.svg, or RUN/graph.svg]")
@click.option("--backward", is_flag=True, help="draw the backward pass too; outputs are squared and added up for it")
@click.option("--backward-only", is_flag=True, help="draw the backward pass alone: the gradient's own graph")
@click.option("--expand", is_flag=True, help="open fused ops: draw what they compute, op by op")
@click.option("--length", type=click.IntRange(1), metavar="N",
              help="of a system that unrolls: how many words, or steps")
@click.option("--depth", type=click.IntRange(0),
              help="how many boxes deep to look [default: as deep as stays readable]")
@click.option("--full", is_flag=True, help="fold nothing, up to 1,000 nodes")
@click.option("--scope", metavar="BOX", help='draw just the inside of a box: "decoder", "step 3"')
@click.option("--path", nargs=2, metavar="FROM TO",
              help="draw all paths between two leaves, values, ops or boxes strong; the result is called output")
@click.option("--values", is_flag=True, help="write the numbers into the nodes")
@click.option("--gradients", is_flag=True,
              help="write the gradient at every value into the nodes; outputs are squared and added up for it")
@click.option("--theme", type=click.Choice(["colour", "print", "dark"]), default="colour", show_default=True,
              help="print is black and white, dark is for a projector")
@click.option("--direction", type=click.Choice(["TB", "LR"]), default="TB", show_default=True,
              help="from top to bottom or from left to right")
@click.option("--saved/--no-saved", default=None,
              help="draw the edges that carry saved values to the backward pass [default: if they are few]")
@click.option("--legend/--no-legend", default=True, show_default=True, help="say what colours and lines mean")
@click.option("--sample", type=click.IntRange(0), default=0, show_default=True, help="of an op: which of its samples")
@click.option("--after", metavar="PASS",
              help="draw the captured step, forward and backward, after a pass of the compiler: captured, needless-copies, "
                   "dead-code, common-subexpressions, fusion")
@trust_option
def graph_command(name, output, backward, backward_only, expand, length, depth, sample, after, attention, **look):
    """Draw a computation graph: of an op, an attention mechanism, a module, a system, or a trained run.

    Graphs of more than 60 nodes (with the backward pass, 150) are folded: time steps are laid on top of each other,
    then boxes are closed. An .html file is a page to zoom, to follow paths and to ask nodes what they hold.

    NAME may be a file of your own, my.py or my.py:name, with a mechanism or an op. Gradients are those of one number,
    so --backward and --gradients square the outputs of anything but a system and add them up: the ops `mul` and `sum`
    at the end. Where a picture cannot be drawn, the DOT text is written in its place; asked for with -o, the exit code
    is 1.
    """
    from ..op import fused
    backward = "only" if backward_only else backward
    scalar = bool(backward or look["gradients"])
    with fused("never") if expand else nullcontext():
        if after is not None:
            if backward or look["values"] or look["gradients"] or Path(name).is_dir():
                raise InputError("graph: --after draws a captured step, which is whole and holds no numbers: it goes with the name "
                                 "of an op, mechanism, module or system, and without --backward, --values and --gradients")
            from .passes import program_after
            kind, full, thing = names.find(name)
            tensor, names_of, path = program_after(name, after, length), None, Path(f"{full}.svg")
        elif Path(name).is_dir():
            from .. import checkpoint
            system, _ = checkpoint.restore(name, attention)
            kind, thing, full = "system", type(system), f"{Path(name).name}: {system.name}"
            tensor, names_of, path = _unrolled(system, length), system.model, Path(name) / "graph.svg"
        else:
            kind, full, thing = names.find(name, runs=True)
            tensor, names_of = example(kind, full, thing, sample, scalar, length)
            path = Path(f"{full}.svg")
        from viz import graph
        with names.blame(kind, thing):
            drawing = graph(tensor, names=names_of, depth=depth, backward=backward, title=full, **look,
                            inputs=getattr(names_of, "inputs", ()),
                            remark=SQUARED if (scalar or after) and kind != "system" else "",
                            **({} if depth is not None or backward else {"max_nodes": 60}))
    path = Path(output) if output else path
    written = drawing.save(path)
    out(str(written))
    note(f"{drawing.nodes:,} node{'s' * (drawing.nodes != 1)}, {drawing.edges:,} edge{'s' * (drawing.edges != 1)}")
    return 1 if output and written != path else 0


SQUARED = "mul and sum at the end are not part of it: outputs are squared and added up, for a gradient is of one number"


class Leaves(dict):
    """{name: Tensor} of the leaves of an example. `inputs`: those Tensors that are given and not learned, though they
    require a gradient, so that it can be shown."""

    def __init__(self, named, inputs):
        super().__init__(named)
        self.inputs = list(inputs)


def example(kind, name, thing, sample=0, scalar=False, length=None):
    """A small recorded Tensor that shows an op, mechanism, module or system, and names for its leaves.

    sample   of an op: which of its samples
    scalar   one number in place of all outputs
    length   of a system that unrolls: how many words or steps
    """
    if kind == "system":
        system = thing.to_draw(thing.Options())
        return _unrolled(system, length), system.model
    if length is not None:
        raise InputError(f"{name}: --length is of systems, such as translate; this is a kind of {kind}")
    if kind == "module":
        outputs, leaves = _module(thing)
    else:
        with names.blame(kind, thing):
            outputs, leaves = _call(kind, name, thing, sample)
    outputs = [t for t in outputs if t.requires_grad and t.op is not None]
    if not outputs:
        raise InputError(f"{name}: computes nothing that has a gradient, so no graph is recorded")
    if scalar:
        from ..attention.properties import sum_of_squares
        return sum_of_squares(outputs), leaves
    return outputs, leaves


def _unrolled(system, length):
    """The example graph of a system, of a length if one is asked for."""
    if length is None:
        return system.example_graph()
    if "length" not in inspect.signature(system.example_graph).parameters:
        raise InputError(f"{system.name}: its example graph has no length to choose; leave out --length")
    return system.example_graph(length=length)


def _module(cls):
    """The outputs of a module on its example, and Leaves: its parameters, and its inputs by the names that `forward`
    has for them. What is done to an input that requires no gradient is not recorded, so floats do require one."""
    from ..nn import example_of, outputs_of
    from ..tensor import Tensor
    module, inputs = example_of(cls, np.random.default_rng(0), np.float32)
    inputs = inputs if isinstance(inputs, (tuple, list)) else [inputs]
    inputs = [leaf(x.array) if isinstance(x, Tensor) else x for x in inputs]
    given = {name: x for name, x in zip(inspect.signature(module.forward).parameters, inputs, strict=False)
             if isinstance(x, Tensor)}
    return outputs_of(module(*inputs)), Leaves(given | dict(module.named_parameters()), given.values())


def _call(kind, name, thing, sample):
    """The outputs of an op or mechanism on its example, and Leaves by the names of its inputs."""
    from ..nn import outputs_of
    rng = np.random.default_rng(0)
    if kind == "attention":
        from ..attention import properties
        from ..attention.core import blame, example_of
        leaves = properties.leaves(example_of(thing), np.float32)
        with blame(thing):
            given = _tensors_in([x for n, x in leaves.items() if n not in thing.letters()])
            return outputs_of(thing(**leaves)), Leaves(leaves, given)
    if not hasattr(thing, "samples"):
        raise InputError(f"{name}: this op has no samples(rng), so there is nothing to show it on")
    samples = list(thing.samples(rng))
    if sample >= len(samples):
        raise InputError(f"{name}: has the samples 0 to {len(samples) - 1}, not {sample}")
    attributes, inputs = samples[sample]
    tensors = [None if x is None else leaf(x) for x in inputs]
    slots = [f"{thing.input_names[0]}{i}" for i in range(len(inputs))] if thing.variadic else thing.input_names
    leaves = {n: t for n, t in zip(slots, tensors, strict=False) if t is not None}
    return outputs_of(thing(**attributes)(*tensors)), Leaves(leaves, leaves.values())


def _tensors_in(value):
    """The Tensors in nested lists and dictionaries."""
    from ..tensor import Tensor
    if isinstance(value, (list, tuple, dict)):
        return [t for x in (value.values() if isinstance(value, dict) else value) for t in _tensors_in(x)]
    return [value] if isinstance(value, Tensor) else []


def leaf(array, dtype=np.float32):
    """An array as a Tensor; floats in `dtype`, to be differentiated. Anything else as it is."""
    from ..tensor import Tensor
    if not isinstance(array, (np.ndarray, np.generic)):
        return array
    return Tensor(np.asarray(array, dtype), requires_grad=True) if array.dtype.kind == "f" else Tensor(array)


@click.command("gallery")
@click.argument("wanted", metavar="[NAME...]", nargs=-1)
@click.option("-o", "--output", metavar="DIR", default="gallery", show_default=True, help="the folder to write")
def gallery_command(wanted, output):
    """Write a page for every attention mechanism: formula, weights, graphs. Open DIR/index.html.

    NAME picks mechanisms; a file of your own, my.py:name, too.
    """
    from viz import gallery
    pages = gallery(output, [_mechanism(name) for name in wanted], report=note)
    out(str(Path(output) / "index.html"))
    note(f"{len(pages)} page{'s' if len(pages) != 1 else ''}")


def _mechanism(name):
    """The mechanism of this name, with or without `attention:` before it."""
    if ".py" in name:
        from ..attention import find
        return find(name)
    kind, _, thing = names.find(name if ":" in name else f"attention:{name}")
    if kind != "attention":
        raise InputError(f"gallery: {name} is no attention mechanism but a kind of {kind}")
    return thing


@click.command("list")
@click.argument("what", type=click.Choice(["attention", "systems", "tasks", "ops", "modules"]), required=False)
@click.option("--json", "as_json", is_flag=True, help="print JSON")
def list_command(what, as_json):
    """List the mechanisms, systems, tasks, ops and modules that there are."""
    tables = {
        "attention": lambda: [(n, _first(v.doc), v.paper, v.headline) for n, v in names.mechanisms().items()],
        "systems": lambda: [(n, systems.summary(n), "") for n in systems.names()],
        "tasks": lambda: [(n, text, "") for n, text in names.tasks().items()],
        "ops": lambda: [(n, _first(inspect.getdoc(c)), "") for n, c in names.ops().items()],
        "modules": lambda: [(n, _first(inspect.getdoc(c)), "") for n, c in names.modules().items()],
    }
    found = {kind: table() for kind, table in tables.items() if what in (None, kind)}
    if as_json:
        keys = ("name", "about", "paper", "formula")
        out_json({kind: [{k: text for k, text in zip(keys, row, strict=False) if text} for row in rows]
                  for kind, rows in found.items()})
        return
    if what == "attention":
        _list_attention()
        return
    for kind, rows in found.items():
        if what is None:
            out(kind)
        _table([row[:2] for row in rows], "  " if what is None else "")


def _list_attention():
    """Name, formula and paper of every mechanism, one table for each family."""
    from ..attention.core import by_family
    for number, (title, variants) in enumerate(by_family()):
        if number:
            out()
        out(title)
        _table([(v.name, v.headline, v.paper) for v in variants], "  ")


def _table(rows, indent):
    """Rows of a name, what it is and more, what it is cut where the console ends."""
    for line in columns(shortened(rows, 1, len(indent)), indent=indent):
        out(line)


def _first(text):
    return (text or "").partition("\n")[0]


@click.command("explain")
@click.argument("name")
@click.option("--passes", is_flag=True,
              help="its captured step, forward and backward, before and after each pass of the compiler")
@click.option("--length", type=click.IntRange(1), metavar="N", help="with --passes, of a system that unrolls: how many words")
def explain_command(name, passes, length):
    """Say what an op, mechanism, module or system computes, what it takes, and in which file it stands."""
    if passes:
        from .passes import explain_passes
        explain_passes(name, length)
        return
    if length is not None:
        raise InputError("explain: --length goes with --passes")
    kind, full, thing = names.find(name)
    source = {"attention": lambda: thing.module, "system": lambda: inspect.getmodule(thing)}.get(kind, lambda: thing)()
    text = inspect.getdoc(source) if kind != "op" else inspect.cleandoc(thing.__doc__ or "")  # not that of `Op`
    out(f"{kind} {full}")
    out()
    if text:
        out(text)
        out()
    if kind == "attention":
        out(f"call        {thing.name}{inspect.signature(thing.function)}")
        for line in (inspect.getdoc(thing.function) or "").splitlines():
            out(f"            {line}".rstrip())
        out(f"parameters  {_shapes(thing.letters())}")
        if thing.score:
            out(f"score       {thing.score}, or another by name (score=...)")
        if thing.paper:
            out(f"paper       {thing.paper}")
    if kind == "op":
        if thing.tex:
            from viz.text import formula
            out(f"formula     {formula(thing.tex, {n: n for n in thing.input_names})}")
        out(f"inputs      {', '.join(thing.input_names)}")
        rules = [n for n, rule in zip(thing.input_names, thing.rules, strict=True) if rule is not None]
        out(f"rules for   {', '.join(rules) or ('its readable twin' if thing.composed is not None else 'none')}")
    if kind == "system":
        from dataclasses import fields
        for f in fields(thing.Options):
            out(f"  --{f.name.replace('_', '-'):16} {f.metadata.get('help', '')} [{f.default}]")
    out(f"stands in   {inspect.getsourcefile(source)}")


def _shapes(params):
    return ", ".join(f"{name} ({', '.join(letters)})" for name, letters in params.items()) or "none"
