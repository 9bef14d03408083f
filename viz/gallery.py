"""A page for every attention mechanism, made from its own file: `gallery("gallery")`, then open gallery/index.html.

A page holds the formula and words of the file, the function itself, the four panels of its example (scores, mask,
masked scores, weights), its equations, forward and backward, and its graphs: forward as it runs, forward with every
fused op opened into its readable twin, and backward. Pages need no network and no script; everything lies in the one
folder.
"""
import inspect
import re
from html import escape
from pathlib import Path

import numpy as np

from tinyattn.attention import by_family, find, properties
from tinyattn.attention.core import blame, example_of
from tinyattn.attention.normalise import NORMALISERS
from tinyattn.autograd import capture, fused
from tinyattn.errors import InputError
from tinyattn.program import Program
from tinyattn.tensor import Tensor

from .attention.panels import names_of, panels
from .formulas import page as formulas
from .formulas.equations import equations
from .graphs import render
from .graphs.graph import graph
from .page import write

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
h1 { font-size: 1.7rem; margin-bottom: 0; } h2 { font-size: 1.15rem; margin: 2rem 0 0.5rem; }
pre { background: #f5f5f2; padding: 0.8rem 1rem; overflow-x: auto; border-left: 4px solid #0072B2; font-size: 14px; }
figure { margin: 0.5rem 0; overflow-x: auto; border: 1px solid #eee; }
figcaption, .paper { color: #555; font-size: 14px; } table { border-collapse: collapse; width: 100%; }
td { border-top: 1px solid #ddd; padding: 0.6rem 0.6rem; vertical-align: top; }
img { max-width: 100%; height: auto; } td img { max-width: 16rem; max-height: 9rem; } code { font-size: 14px; }
a { color: #0072B2; }
.equations { overflow-x: auto; } .equations h3 { font-size: 1rem; margin: 1rem 0 0; } :root { --pale: #555; }
"""
SHOWN = 60  # equations on a page: those of the mechanisms that loop go on and on
GRAPHS = (("forward", "The forward pass as it runs; equal steps lie on top of each other."),
          ("expanded", "The forward pass with every fused op opened into its readable twin."),
          ("backward", "The backward pass, derived from the rules of the ops; dotted edges bring saved values. So that "
                       "there is one number to begin from, the outputs are squared and added up first."))
LEGEND = """<h2>How to read these pages</h2>
<p>B sequences in a batch, T queries, S keys, D the width of a word, Q, K and E the widths of a query, a key and a
value, H heads, A units of a hidden layer, V words of a vocabulary; other letters are told on their page. A mask is True
where a query may attend. A <i>fused</i> op computes in one loop what its <i>readable twin</i> says in several ops; the
tests compare the two. "Survey" is D. Hu, "An Introductory Survey on Attention Mechanisms in NLP Problems" (2018, arXiv
1811.05544): a paragraph that begins so tells where the survey prints, or leaves out, something else. In the panels,
orange is above 0, blue below, and hatched places are masked: their weight is exactly 0. Every picture is made from a
small example of random numbers that stands in the mechanism's file, unless its words say otherwise. The equations are
those of the example too, as the engine recorded them; L is any number made of the result.</p>"""


def gallery(folder, names=None, report=None):
    """Write index.html and a page for each mechanism into `folder`; return the paths of the pages.

    names    which mechanisms (FILE.py:NAME too); all of the package by default
    report   called with a line for each mechanism: its name and what could not be drawn; the reason, if it is that of
             an earlier one, is not said again
    InputError if the folder cannot be made.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"gallery: cannot make the folder {folder}: {error.strerror or error}") from None
    variants = [find(name) for name in names] if names else [v for _, found in by_family() for v in found]
    named = {}
    for variant in variants:
        if named.setdefault(variant.name, variant) is not variant:
            raise InputError(f"gallery: expected mechanisms with names of their own, for a page each, got two "
                             f"named {variant.name}")
    variants, pages, told = list(named.values()), [], set()
    for variant in variants:
        shown, missing = draw(folder, variant)
        pages.append(_write(folder / f"{variant.name}.html", _page(folder, variant, variants, shown)))
        if report:
            report(f"{variant.name}: {_said(missing, told) or 'drawn'}")
    _write(folder / "index.html", _index(folder, variants))
    return pages


# ---------------------------------------------------------------------------------------------------------------------
# pictures
# ---------------------------------------------------------------------------------------------------------------------
def draw(folder, variant):
    """Draw the pictures of one mechanism on its example. Returns its equations as HTML, and {why something could not be
    drawn: what}."""
    missing = {}
    if variant.part("example") is None:
        return "", {f"{Path(inspect.getsourcefile(variant.function)).name} has no example(rng) to be drawn": []}
    arrays = example_of(variant)
    rows, columns, inner = names_of(variant, arrays)
    inputs = properties.leaves(arrays, np.float32)
    with blame(variant), capture() as seen:
        outs = properties.outputs_of(variant(**inputs))
    if not any(t.requires_grad for t in outs):
        return "", {f"{variant.name} gives no Tensor with a gradient, so there is no graph": []}
    given = _given(variant, inputs)
    pictures = {
        "panels": lambda path: panels(seen, path, rows, columns, inner=inner),
        "forward": lambda path: _save(graph(outs, names=_flat(inputs), steps=True, inputs=given), path),
        "expanded": lambda path: _expanded(variant, arrays, path),
        "backward": lambda path: _save(graph(properties.sum_of_squares(outs), names=_flat(inputs), backward=True,
                                             inputs=given), path),
    }
    for what, make in pictures.items():
        path = folder / f"{variant.name}-{what}.svg"
        try:
            if what == "panels" and "weights" not in seen:
                continue
            make(path)
        except InputError as problem:  # no matplotlib, or a graph that is too large
            missing.setdefault(str(problem), []).append(what)
    return _equations(outs, inputs, variant, missing), missing


def _given(variant, inputs):
    """The Tensors of an example that are no learned parameters: they are drawn as inputs."""
    found = _flat({name: x for name, x in inputs.items() if name not in variant.letters()})
    return [t for t in found.values() if isinstance(t, Tensor)]


def _said(missing, told):
    """What could not be drawn, and why; `told` are the reasons that were said before, and becomes more."""
    said = [f"{', '.join(what)}{' as above' if why in told else ''}{': ' * bool(what and why not in told)}"
            f"{'' if why in told else why}" for why, what in missing.items()]
    told.update(missing)
    return "; ".join(said)


def _save(made, path):
    """Write a graph; its DOT text, and the reason as an error, where the machine cannot draw."""
    try:
        write(path, made.svg(), "graph")
    except render.Unavailable:
        write(path.with_suffix(".dot"), made.dot, "graph")
        raise


def _equations(outs, inputs, variant, missing):
    """The equations of the example as HTML: MathML, or their text where nothing here can set formulas."""
    try:
        made = equations(outs, names=_flat(inputs), letters={n: tuple(s) for n, s in variant.letters().items()})
    except InputError as problem:
        missing.setdefault(str(problem), []).append("equations")
        return ""
    made = made.first(SHOWN)
    try:
        body = made.html().partition("<body>\n")[2].partition("</body>")[0].partition("</h1>")[2]
        return f'<div class="equations">{body.replace("<h2>", "<h3>").replace("</h2>", "</h3>")}</div>'
    except InputError as problem:  # no latex2mathml
        missing.setdefault(str(problem), []).append("equations as text")
        return f"<pre>{escape(made.text())}</pre>"


def _expanded(variant, arrays, path):
    """Draw the graph with no op fused, if one is. Its leaves are new: a Tensor belongs to one graph."""
    programs = []
    for mode in ("auto", "never"):
        inputs = properties.leaves(arrays, np.float32)
        with fused(mode):
            outs = properties.outputs_of(variant(**inputs))
        programs.append([step.op for step in Program.of(outs).instructions])
    if programs[0] == programs[1]:
        path.unlink(missing_ok=True)
    else:
        _save(graph(outs, names=_flat(inputs), inputs=_given(variant, inputs)), path)


def _flat(inputs, prefix=""):
    """{name: Tensor} of inputs that may be nested lists."""
    named = {}
    for key, x in inputs.items() if isinstance(inputs, dict) else enumerate(inputs):
        name = f"{prefix}{'.' if prefix else ''}{key}"
        named.update(_flat(x, name) if isinstance(x, (dict, list, tuple)) else {name: x})
    return named


# ---------------------------------------------------------------------------------------------------------------------
# pages
# ---------------------------------------------------------------------------------------------------------------------
def _html(title, body):
    return (f"<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{escape(title)}</title>"
            f"<meta name=\"viewport\" content=\"width=device-width\"><style>{STYLE}{formulas.STYLE}</style></head>\n"
            f"<body>\n{body}\n</body></html>\n")


def _picture(folder, variant, what, caption):
    """A figure, or nothing if the picture is not there."""
    name = f"{variant.name}-{what}.svg"
    if not (folder / name).is_file():
        dot = folder / f"{variant.name}-{what}.dot"
        return f'<p>{escape(caption)} <a href="{dot.name}">As DOT text.</a></p>' if dot.is_file() else ""
    return (f'<figure><a href="{name}"><img src="{name}" alt="{escape(caption)}"></a>'
            f"<figcaption>{escape(caption)}</figcaption></figure>")


def _marked(text, pages):
    """`code` and **strong** words of a docstring as HTML; the name of a mechanism leads to its page."""
    def code(found):
        name = found.group(1)
        return f'<a href="{name}.html"><code>{name}</code></a>' if name in pages else f"<code>{name}</code>"

    return re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", re.sub(r"`([^`]+)`", code, escape(text)))


def _paragraphs(text, pages):
    """A docstring as HTML: indented blocks as they are, the rest as paragraphs."""
    html = []
    for block in text.split("\n\n"):
        lines = [line for line in block.splitlines() if line.strip()]
        if lines and all(line.startswith("    ") for line in lines):
            cut = min(len(line) - len(line.lstrip()) for line in lines)
            html.append("<pre>" + escape("\n".join(line[cut:] for line in lines)) + "</pre>")
        elif lines:
            html.append(f"<p>{_marked(' '.join(line.strip() for line in lines), pages)}</p>")
    return "\n".join(html)


def _page(folder, variant, variants, shown):
    at = [v.name for v in variants].index(variant.name)
    around = ['<a href="index.html">all mechanisms, and how to read these pages</a>']
    around += [f'<a href="{v.name}.html">{escape(v.name)}</a>'
               for v in variants[max(at - 1, 0):at + 2] if v is not variant]
    parameters = ", ".join(f"{p} ({', '.join(s)})" for p, s in variant.letters().items()) or "none"
    body = [f"<p>{' · '.join(around)}</p>", f"<h1>{escape(variant.name)}</h1>",
            f"<p class=\"paper\">{escape(variant.paper)}</p>", _paragraphs(variant.doc, [v.name for v in variants]),
            "<h2>The function</h2>", f"<pre>{escape(_source(variant))}</pre>",
            f"<p>Learned parameters: <code>{escape(parameters)}</code>. It stands in <code>"
            f"{escape(Path(inspect.getsourcefile(variant.function)).name)}</code>.</p>"]
    seen = _picture(folder, variant, "panels",
                    "Scores, mask, masked scores and weights of one sequence of its example. "
                    "Orange is above 0, blue below; hatched places are masked: their weight is exactly 0. "
                    + (variant.part("CAPTION") or ""))
    body += ["<h2>What it looks at</h2>", seen] if seen else []
    body += ["<h2>Equations</h2>", shown] if shown else []
    body += ["<h2>What is computed</h2>", *[_picture(folder, variant, what, caption) for what, caption in GRAPHS]]
    return _html(f"{variant.name}: tinyattn", "\n".join(body))


def _source(variant):
    """The code of the function, and of the normaliser where that is what the mechanism is about."""
    source, normalise = inspect.getsource(variant.function), NORMALISERS.get(variant.name)
    return source + (f"\n\n{inspect.getsource(normalise)}" if normalise else "")


def _index(folder, variants):
    count = f"{len(variants)} mechanism{'s' if len(variants) != 1 else ''}"
    body = [f"<h1>Attention mechanisms</h1>\n<p>{count}, each from its own file: formula, function, weights "
            "and graphs.</p>"]
    groups = [(title, [v for v in found if v in variants]) for title, found in by_family()]
    groups.append(("Of your own", [v for v in variants if not any(v in found for _, found in groups)]))
    for title, found in groups:
        if found:
            body += [f"<h2>{escape(title)}</h2>", "<table>", *[_row(folder, v) for v in found], "</table>"]
    body.append(LEGEND)
    return _html("Attention mechanisms: tinyattn", "\n".join(body))


def _row(folder, v):
    thumb = f"{v.name}-panels.svg"
    image = f'<a href="{v.name}.html"><img src="{thumb}" alt=""></a>' if (folder / thumb).is_file() else ""
    return (f'<tr><td><a href="{v.name}.html"><b>{escape(v.name)}</b></a><br>{escape(v.doc.partition(chr(10))[0])}<br>'
            f'<code>{escape(v.headline)}</code><br><span class="paper">{escape(v.paper)}</span></td>'
            f'<td>{image}</td></tr>')


def _write(path, text):
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"gallery: cannot write {path}: {error.strerror or error}") from None
    return path
