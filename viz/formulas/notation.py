r"""How equations are written: as Unicode text and as LaTeX, by one printer with two sets of signs.

Everything printed is exact, so it can be read back and computed (the tests do). Brackets hold what NumPy calls axes,
indexes and shapes; axes count from 0:

    x ⊙ y, x + y       element by element, broadcast as NumPy does: axes of length 1, and missing ones in front, are
                       repeated. 2 · x is twice x
    x · y              the product of matrices in the last two axes (NumPy's @); in LaTeX they stand side by side
    xᵀ, xᵀ[1,2,0]      the last two axes swapped; all axes in that order
    x[:, 0], x[:, +]   a part of x; + is a new axis of length 1
    Σ[2](x), Σ[2→1](x) the sum over axis 2, which goes; over axis 2, which stays with length 1. Without brackets: over
                       all axes. So too mean, max, min, prod, norm
    softmax(x, m)      over the last axis unless one is named, where m is True
    ∂L/∂x              the gradient of the result by x, of x's shape; in LaTeX a bar over x, which is shorter
"""
import math
import re

import numpy as np

from .algebra import REDUCTIONS, At, Call, Name, Number
from .namer import latex_name, plain_name

SUM, PRODUCT, GRADIENT, POWER, POSTFIX, ATOM = range(1, 7)  # how tightly an expression holds together
BREAK = "\u2028"                                            # where a line may end
_LAST = {"softmax", "log_softmax", "sparsemax", "entmax15", "cumsum"}


class Text:
    """Prints expressions as one line of Unicode."""
    infix = {"add": " + ", "sub": " - ", "mul": " ⊙ ", "matmul": " · ", "div": " / "}
    times, new, to, cross, infinity = " · ", "+", "→", "×", "∞"
    functions = {"sum": "Σ", "sigmoid": "σ", "putitem": "put", "log_sum_exp": "logsumexp"}

    def __init__(self, equations):
        self.values, self.top = equations.values, equations.top

    # -- names and numbers -------------------------------------------------------------------------------------------
    def name(self, i):
        v = self.values[i]
        return plain_name(v.name) if v.of is None else f"∂{plain_name(self.top)}/∂{plain_name(self.values[v.of].name)}"

    def tight(self, i):
        return ATOM if self.values[i].of is None else GRADIENT

    def number(self, x, dtype):
        """A number, in the shortest form that is exactly it: 1/√3 for 0.5773502691896258."""
        if isinstance(x, bool) or not isinstance(x, float):
            return (str(x), ATOM if not isinstance(x, int) or x >= 0 else SUM)
        if not math.isfinite(x):
            shown = "nan" if math.isnan(x) else f"{'-' if x < 0 else ''}{self.infinity}"
            return shown, SUM if x < 0 else ATOM
        kind = np.dtype(dtype).type if np.dtype(dtype).kind == "f" else np.float64
        short = (np.format_float_positional(kind(x), trim="-") if 1e-4 <= abs(x) < 1e7 or x == 0 else
                 np.format_float_scientific(kind(x), trim="-"))
        if len(short) > 6:
            for n in range(2, 1025):
                for form, value in ((self.root(n), math.sqrt(n)), (self.over("1", self.root(n)), 1 / math.sqrt(n)),
                                    (self.over("1", str(n)), 1 / n)):
                    if kind(value) == kind(x):
                        return form, ATOM if form[0] in "√\\" else PRODUCT
        if "e" in short:
            head, _, tail = short.partition("e")
            return self.power_of_ten(head, int(tail)).removeprefix(f"1{self.times}"), PRODUCT if x > 0 else SUM
        return short, ATOM if x >= 0 else SUM

    def root(self, n):
        return f"√{n}"

    def over(self, a, b):
        return f"{a}/{b}"

    def power_of_ten(self, head, n):
        return f"{head} · 10^({n})" if n < 0 else f"{head} · 10^{n}"

    # -- expressions -------------------------------------------------------------------------------------------------
    def top_level(self, e):
        """An equation's right-hand side, with marks where a line may end."""
        if isinstance(e, Call) and e.op in ("add", "sub"):
            a, b = e.args
            sign = self.infix[e.op]
            return self.top_level(a) + sign[:1] + BREAK + sign[1:] + self.inside(b, PRODUCT)
        return self.show(e, BREAK)[0]

    def inside(self, e, level):
        """`e` where at least this level is needed: in parentheses if it does not hold so tightly."""
        shown, own = self.show(e)
        return shown if own >= level else self.parentheses(shown)

    def parentheses(self, shown):
        return f"({shown})"

    def show(self, e, after_comma=""):
        """An expression and its level."""
        if isinstance(e, Name):
            return self.name(e.id), self.tight(e.id)
        if isinstance(e, Number):
            return self.number(e.value, e.dtype)
        if e.op in self.infix:
            return self.operation(e)
        if e.op == "neg":
            return "-" + self.inside(e.args[0], PRODUCT), SUM
        if e.op == "pow":
            return self.power(*e.args)
        if e.op == "permute":
            n, axes = len(e.shape), e.settings["axes"]
            swapped = axes == (*range(n - 2), n - 1, n - 2)
            return self.transposed(e.args[0], None if swapped else ",".join(map(str, axes))), POSTFIX
        if e.op == "getitem":
            return self.indexed(e), POSTFIX
        return self.function(e, after_comma)

    def operation(self, e):
        a, b = e.args
        if e.op in ("add", "sub"):
            return self.inside(a, SUM) + self.infix[e.op] + self.inside(b, PRODUCT), SUM
        scaled = e.op == "mul" and isinstance(a, Number)
        sign = self.times if scaled else self.infix[e.op]
        alike = isinstance(a, Call) and (a.op == e.op and e.op != "div")
        return self.inside(a, PRODUCT if alike or scaled else GRADIENT) + sign + self.inside(b, GRADIENT), PRODUCT

    def power(self, a, b):
        return f"{self.inside(a, POSTFIX)}^{self.inside(b, POSTFIX)}", POWER

    def transposed(self, x, axes):
        return self.inside(x, POSTFIX) + ("ᵀ" if axes is None else f"ᵀ[{axes}]")

    def holds(self, x):
        """The level that x needs before an index: a transpose gets parentheses, for xᵀ[0,1] is another transpose."""
        return ATOM if isinstance(x, Call) and x.op == "permute" else POSTFIX

    def indexed(self, e):
        return f"{self.inside(e.args[0], self.holds(e.args[0]))}[{self.index(e)}]"

    def function(self, e, after_comma=""):
        settings = self.settings(e)
        brackets = f"[{settings}]" if settings else ""
        return f"{self.functions.get(e.op, e.op)}{brackets}({self.arguments(e, after_comma)})", ATOM

    def arguments(self, e, after_comma=""):
        shown = e.args[:1] if e.op == "putitem" else e.args
        return (", " + after_comma).join(self.show(a)[0] for a in shown)

    # -- what stands in brackets -------------------------------------------------------------------------------------
    def settings(self, e):
        s = e.settings
        if e.op in REDUCTIONS:
            everything = len(s["axes"]) == len(e.args[0].shape) and not s["keepdims"]
            return "" if everything else ",".join(map(str, s["axes"])) + (f"{self.to}1" if s["keepdims"] else "")
        if e.op in _LAST and s["axis"] == len(e.shape) - 1:
            return ""
        if e.op in ("reshape", "expand"):
            return self.lengths(e.shape)
        if e.op == "putitem":
            return f"{self.index(e)} {self.to} {self.lengths(e.shape)}"
        if e.op == "scatter_add":
            return f"{s['axis']} {self.to} {self.lengths(e.shape)}"
        if e.op == "flip":
            return ",".join(map(str, s["axes"]))
        if e.op == "pad":
            widths = ", ".join(f"{a}{self.new}{b}" for a, b in s["widths"])
            return widths + (f"; {self.number(float(s['value']), e.dtype)[0]}" if s["value"] else "")
        if set(s) == {"axis"}:
            return str(s["axis"])
        if e.op == "cast":
            return self.word(s["dtype"])
        return ", ".join(f"{self.word(k)}={self.setting(v)}" for k, v in s.items() if v is not None)

    def setting(self, v):
        if isinstance(v, float):
            return self.number(v, "float64")[0]
        return str(v) if isinstance(v, (int, np.integer)) else self.word(v)

    def word(self, text):
        return re.sub(r"[^\w.]", "", str(text))

    def lengths(self, shape):
        return self.cross.join(map(str, shape)) or "()"

    def index(self, e):
        parts, index = [], list(e.settings["index"])
        while len(index) > 1 and index[-1] == slice(None):  # what is not named is taken whole
            index.pop()
        for i in index:
            if isinstance(i, At):
                parts.append(self.show(e.args[i.argument])[0])
            elif isinstance(i, slice):
                ends = ["" if x is None else str(x) for x in (i.start, i.stop)]
                parts.append(":".join(ends) + ("" if i.step in (None, 1) else f":{i.step}"))
            else:
                parts.append(self.new if i is None else str(i))
        return ", ".join(parts)


class Latex(Text):
    """Prints expressions in LaTeX; formulas of single ops are the ops' own (`tex`)."""
    infix = {"add": " + ", "sub": " - ", "mul": r" \odot ", "matmul": r"\, ", "div": "/"}
    times, new, to, cross, infinity = r"\, ", "{+}", r" \to ", r" \times ", r"\infty"
    functions = {"sum": r"\sum", "max": r"\max", "min": r"\min", "prod": r"\prod", "putitem": r"\mathrm{put}",
                 "log_sum_exp": r"\mathrm{logsumexp}", "exp": r"\exp", "softplus": r"\mathrm{softplus}",
                 "log_softmax": r"\mathrm{log\_softmax}", "log": r"\log",
                 "solve": r"\mathrm{solve}"}  # e may be a variable, x^{-1} is by element

    def name(self, i):
        v = self.values[i]
        if v.of is None:
            return latex_name(v.name)
        whole = latex_name(self.values[v.of].name)
        head, low = re.fullmatch(r"(.*?)(_\{.*\})?", whole, re.DOTALL).groups()
        wide = "overline" if len(head) > 1 and not re.fullmatch(r"\\[a-zA-Z]+", head) or "mathrm" in head else "bar"
        return rf"\{wide}{{{head}}}{low or ''}"

    def tight(self, i):
        return ATOM

    def root(self, n):
        return rf"\sqrt{{{n}}}"

    def over(self, a, b):
        return rf"\frac{{{a}}}{{{b}}}"

    def power_of_ten(self, head, n):
        return rf"{head}\, 10^{{{n}}}"

    def parentheses(self, shown):
        return rf"\left({shown}\right)" if r"\frac" in shown or r"\sum" in shown else f"({shown})"

    def operation(self, e):
        if e.op == "div":
            return rf"\frac{{{self.show(e.args[0])[0]}}}{{{self.show(e.args[1])[0]}}}", POWER
        return super().operation(e)

    def power(self, a, b):
        return rf"{{{self.inside(a, ATOM)}}}^{{{self.show(b)[0]}}}", POWER

    def transposed(self, x, axes):
        inner = self.inside(x, ATOM)
        return rf"{{{inner}}}^{{\top}}" if axes is None else rf"{{{inner}}}^{{\top[{axes}]}}"

    def indexed(self, e):
        return rf"{{{self.inside(e.args[0], self.holds(e.args[0]))}}}_{{[{self.index(e)}]}}"

    def function(self, e, after_comma=""):
        settings = self.settings(e)
        low = f"_{{[{settings}]}}" if settings else ""
        if not settings and e.tex and e.op not in self.functions and len(e.inputs) == len(e.args) and all(
                f"{{{slot}}}" in e.tex for slot in e.inputs):
            return self.filled(e), ATOM if _closed(e.tex) else SUM
        head = self.functions.get(e.op) or rf"\mathrm{{{self.word(e.op)}}}"
        arguments = self.arguments(e, after_comma)
        if e.op == "sum":
            only = e.args[0]
            return f"{head}{low} {self.inside(only, ATOM)}", PRODUCT
        wrapped = f"({arguments})" if after_comma and len(e.args) > 1 else self.parentheses(arguments)
        return f"{head}{low}{wrapped}", ATOM

    def filled(self, e):
        """The op's own formula, its slots filled: in parentheses where nothing in the formula keeps a slot apart."""
        def fill(found):
            slot = found.group(1)
            if slot not in e.inputs:
                return found.group(0)
            before, after = e.tex[:found.start()].rstrip()[-1:], e.tex[found.end():].lstrip()[:1]
            apart = before in "({|," and before and after in ")}|," and after
            return self.inside(e.args[e.inputs.index(slot)], 0 if apart else ATOM)
        return re.sub(r"\{(\w+)\}", fill, e.tex)

    def word(self, text):
        return re.sub(r"[^\w.]", "", str(text)).replace("_", r"\_")

    def settings(self, e):
        shown = super().settings(e)
        return re.sub(r"([A-Za-z](?:[A-Za-z.]|\\_)*)=", r"\\mathrm{\1}=", shown) if "=" in shown else shown


def _closed(tex):
    """Is this formula one function, such as f({x}) or |{x}|, that needs no parentheses around it?"""
    return bool(re.fullmatch(r"(\\?\w+|\\\w+\{+\w+\}+)\([^()]*\)|\|\{\w+\}\||\\sqrt\{\{\w+\}\}|\\lVert.*\\rVert", tex))
