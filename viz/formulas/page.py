"""Whole programs of equations as text, LaTeX, Markdown and HTML: what the notation means, what is given, the equations.
"""
import re
from html import escape

from .algebra import ELEMENTWISE, REDUCTIONS, Call
from .namer import latex_name, plain_name
from .notation import BREAK, Latex, Text

WIDTH = 100  # columns of text; LaTeX breaks lines earlier, by its own measure
_LEGEND = [  # (ops, text, LaTeX)
    ({"mul"}, "x ⊙ y: by element", r"$x \odot y$: by element"),
    (ELEMENTWISE, "shapes are broadcast as in NumPy", "shapes are broadcast as in NumPy"),
    ({"matmul"}, "x · y: product of matrices in the last two axes",
     r"$x\,y$: product of matrices in the last two axes"),
    ({"permute"}, "xᵀ: last two axes swapped, xᵀ[0,2,1]: axes in this order",
     r"$x^{\top}$: last two axes swapped, $x^{\top[0,2,1]}$: axes in this order"),
    (REDUCTIONS, "Σ[2]: over axis 2 (from 0), Σ[2→1]: axis 2 kept with length 1",
     r"$\sum_{[2]}$: over axis 2 (from 0), $\sum_{[2 \to 1]}$: axis 2 kept with length 1"),
    ({"softmax", "log_softmax", "sparsemax", "entmax15"}, "softmax(x, m): over the last axis, where m is true",
     r"$\mathrm{softmax}(x, m)$: over the last axis, where $m$ is true"),
    ({"getitem"}, "x[:, 0], x[:, +]: NumPy's index, + a new axis",
     r"$x_{[:,0]}$, $x_{[:,{+}]}$: NumPy's index, $+$ a new axis"),
    ({"putitem"}, "put[i → 2×3](x): zeros of shape 2×3 with x added at i",
     r"$\mathrm{put}_{[i \to 2 \times 3]}(x)$: zeros of shape $2 \times 3$ with $x$ added at $i$"),
]


def legend(equations, latex=False):
    """The notation that these equations use, as a list of short texts."""
    ops, stack = set(), [e.expression for e in equations.list]
    while stack:
        e = stack.pop()
        if isinstance(e, Call):
            ops.add(e.op)
            stack.extend(e.args)
    lines = [tex if latex else line for used, line, tex in _LEGEND if used & ops]
    if any(v.of is not None for v in equations.values.values()):
        top = latex_name(equations.top) if latex else plain_name(equations.top)
        one = equations.top if equations.top in (v.name for v in equations.values.values()) else None
        what = "" if one else ", L any number made of the result"
        lines.append(rf"$\bar{{x}} = \partial {top} / \partial x$" + (what.replace(" L ", " $L$ ")) if latex
                     else f"∂{top}/∂x: the gradient of {top} by x{what}")
    nameless = [v.name for v in map(equations.values.get, equations.given) if v.nameless]
    if nameless:
        shown = [f"${latex_name(n)}$" if latex else plain_name(n) for n in nameless[:1] + nameless[1:][-1:]]
        lines.append((" to " if latex else " … ").join(shown) + ": computed outside of the graph, constants in it")
    for v in equations.values.values():
        if v.at is not None:
            names = v.name, equations.values[v.at].name
            g, y = (f"${latex_name(n)}$" if latex else plain_name(n) for n in names)
            lines.append(f"{g}: what comes in at {y} from outside")
    return lines


def shape_of(v):
    """A shape in letters where they are known: (B, T, 4)."""
    parts = [letter or str(n) for letter, n in zip(v.letters or [None] * len(v.shape), v.shape, strict=True)]
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"


def given(equations, printer):
    """[(name, shape)] of what is given, small constants with their numbers."""
    rows = []
    for i in equations.given:
        v = equations.values[i]
        sizes = f"({', '.join(map(str, v.shape))}{',' if len(v.shape) == 1 else ''})"
        rows.append((printer.name(i), shape_of(v) + (f" = {sizes}" if any(v.letters or ()) else "")))
    return rows


def parts_of(equations):
    """[(title, equations)]: the forward and the backward pass."""
    found = [(part, [e for e in equations.list if e.part == part]) for part in ("forward", "backward")]
    return [(part, chosen) for part, chosen in found if chosen]


def count_line(equations):
    """What is missing, if some equations are."""
    return f"{equations.cut} equations, the first {len(equations.list)} shown" if equations.cut else ""


def text(equations, shapes=False):
    """See `Equations.text`."""
    printer = Text(equations)
    lines = wrapped("notation: ", legend(equations), "; ")
    lines += wrapped("given: ", [f"{name} {shape}" for name, shape in given(equations, printer)], ", ")
    for part, chosen in parts_of(equations):
        lines += ["", f"{part}:"]
        left = [printer.name(e.id) for e in chosen]
        wide = min(max(map(len, left)), 24)
        for name, e in zip(left, chosen, strict=True):
            first = f"  {name:>{wide}} = "
            right = broken(printer.top_level(e.expression), WIDTH - len(first))
            tail = f"    {shape_of(equations.values[e.id])}" if shapes else ""
            lines += [first + right[0] + (tail if len(right) == 1 else "")]
            lines += [" " * (wide + 7) + line for line in right[1:-1]]
            lines += [" " * (wide + 7) + right[-1] + tail] if len(right) > 1 else []
    return "\n".join(lines + ([count_line(equations)] if equations.cut else []))


def wrapped(head, items, between):
    """Items in lines of at most WIDTH columns, the first behind `head`."""
    if not items:
        return []
    lines, line = [], head + items[0]
    for item in items[1:]:
        if len(line) + len(between) + len(item) > WIDTH:
            lines.append(line + between.rstrip())
            line = " " * len(head) + item
        else:
            line += between + item
    return [*lines, line]


def broken(shown, room, measure=len):
    """The lines of a right-hand side: it breaks at its marks, where it must."""
    lines, line = [], ""
    for piece in shown.split(BREAK):
        if line and measure(line) + measure(piece) > room:
            lines.append(line.rstrip())
            line = ""
        line += piece
    return [*lines, line]


def _tex_width(tex):
    """About how many letters wide a formula is."""
    tex = re.sub(r"\\(frac|sqrt|mathrm|left|right|bar|overline|text|,)", "", tex)
    return len(re.sub(r"[{}^_\s]", "", re.sub(r"\\[A-Za-z]+", "x", tex)))


def latex(equations, shapes=False, document=False):
    """See `Equations.latex`."""
    printer, blocks = Latex(equations), []
    known = ", ".join(f"${name}$ {_shape_tex(shape)}" for name, shape in given(equations, printer))
    blocks.append("\\noindent Notation: " + "; ".join(legend(equations, True)) + ".")
    blocks += [f"\\noindent Given: {known}."] if known else []
    for part, chosen in parts_of(equations):
        rows = []
        for e in chosen:
            right = broken(printer.top_level(e.expression), 60, _tex_width)
            tail = rf" && {_shape_tex(shape_of(equations.values[e.id]))[1:-1]}" if shapes else ""
            right = [line + (tail if n == len(right) - 1 else "") for n, line in enumerate(right)]
            rows.append(f"{printer.name(e.id)} &= " + " \\\\\n  &\\qquad ".join(right))
        blocks.append(f"% {part}\n\\begin{{align*}}\n" + " \\\\\n".join(rows) + "\n\\end{align*}")
    blocks += [count_line(equations)] if equations.cut else []
    body = "\n\n".join(blocks)
    if not document:
        return body
    return ("\\documentclass{article}\n\\usepackage[a4paper,margin=2cm]{geometry}\n\\usepackage{amsmath}\n"
            "\\allowdisplaybreaks\n" + ("% xelatex or lualatex: there are names in other scripts than Latin\n"
                                        if not body.isascii() else "")
            + f"\\begin{{document}}\n{body}\n\\end{{document}}\n")


def _shape_tex(shape):
    return "$" + shape.replace(" = ", r" = ") + "$"


def markdown(equations, title, shapes):
    """The text as a code block, the LaTeX between dollars."""
    printer, lines = Latex(equations), [f"# {title}", "", "```", text(equations, shapes), "```"]
    for part, chosen in parts_of(equations):
        rows = [f"{printer.name(e.id)} &= {printer.top_level(e.expression).replace(BREAK, '')}" for e in chosen]
        lines += ["", f"## {part}", "", "$$", "\\begin{aligned}", " \\\\\n".join(rows), "\\end{aligned}", "$$"]
    return "\n".join(lines) + "\n"


STYLE = """
table.equations { margin: 0.25rem 0 0.75rem 1rem; }
table.equations td { padding: 0.2rem 0.3rem; vertical-align: baseline; }
table.equations td.left { text-align: right; white-space: nowrap; }
table.equations td.shape { color: var(--pale); font-size: 15px; padding-left: 2rem; white-space: nowrap; }
math { font-size: 1.1em; } math .bar { border-top: 1.5px solid; padding-top: 1px; }
.more { padding-left: 2.5rem; } .notation { font-size: 15px; }
"""


def html(equations, title, shapes=True):
    """See `Equations.html`."""
    from .. import page
    printer = Latex(equations)
    body = [f"<h1>{escape(title)}</h1>", '<p class="pale notation">Notation: '
            + "; ".join(_with_math(line) for line in legend(equations, True)) + "</p>"]
    known = [f"{_set(name)} {escape(shape)}" for name, shape in given(equations, printer)]
    body += ["<p>Given: " + ", ".join(known) + "</p>"] if known else []
    for part, chosen in parts_of(equations):
        body.append(f'<h2>{part.capitalize()} pass</h2>\n<table class="equations">')
        for e in chosen:
            right = broken(printer.top_level(e.expression), 75, _tex_width)
            lines = [_set(r"\displaystyle " + line) for line in right]
            cell = lines[0] + "".join(f'<div class="more">{line}</div>' for line in lines[1:])
            shape = f'<td class="shape">{escape(shape_of(equations.values[e.id]))}</td>' if shapes else ""
            body.append(f'<tr><td class="left">{_set(printer.name(e.id))}</td><td>=</td><td>{cell}</td>{shape}</tr>')
        body.append("</table>")
    body += [f"<p>{count_line(equations)}</p>"] if equations.cut else []
    return page.page(title, "\n".join(body), STYLE)


def _set(tex):
    """A formula as MathML that is set well with any font: a bar as wide as what it lies over, T for a transpose."""
    from .. import page
    made = re.sub(r'<mover>((?:(?!<mover>).)*?)<mo (?:accent|stretchy)="true">&#x0(?:2015|00AF);</mo></mover>',
                  r'<mrow class="bar">\1</mrow>', page.math(tex))
    return made.replace("&#x022A4;", "T").replace("⊤", "T")


def _with_math(line):
    """Text with LaTeX between dollars, as HTML."""
    return "".join(_set(part) if i % 2 else escape(part) for i, part in enumerate(line.split("$")))
