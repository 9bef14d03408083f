"""Names of values, as the code that computes them has them: `with names_from_code(file) as names: run()`.

    with names_from_code(path) as names:
        y = mechanism(**inputs)
    names.of(y)                     "context", if that is the local variable which holds it
    graph(y, names=names.table())   {name: Tensor}

And how a name is written: `latex_name("w_hh")` is w_{hh}, `plain_name` one for Unicode text, `python_name` for source.
"""
import builtins
import keyword
import re
import sys
import unicodedata
from contextlib import contextmanager
from pathlib import Path

from tinyattn.tensor import Tensor

GREEK = {name: chr(code) for code, name in enumerate(
    ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda", "mu", "nu", "xi",
     "omicron", "pi", "rho", "_", "sigma", "tau", "upsilon", "phi", "chi", "psi", "omega"], 0x3B1)
    if name not in ("_", "omicron")}
_CAPITAL = {name.capitalize(): chr(ord(sign) - 32) for name, sign in GREEK.items()
            if name in ("gamma", "delta", "theta", "lambda", "xi", "pi", "sigma", "upsilon", "phi", "psi", "omega")}
SIGNS = {**GREEK, **_CAPITAL}
_COMMAND = {sign: "\\" + name for name, sign in SIGNS.items()}
_LOW = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
_NORMAL = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")


def place(t):
    """What a Tensor is in a graph, whichever object holds it: the key of names."""
    return id(t) if t.op is None else (t.op, t.index)


class NamesFromCode:
    """The names found: `of(tensor)`, `items()`, `table()`. It holds the Tensors, so that none is mistaken."""

    def __init__(self):
        self._found = {}  # place -> (rank of the file, name, Tensor)

    def add(self, name, t, rank=0):
        """Keep the first name of a Tensor; one of a file of lower rank (nearer to the reader) goes before."""
        if place(t) not in self._found or rank < self._found[place(t)][0]:
            self._found[place(t)] = rank, name, t

    def of(self, t):
        """The name of a Tensor, or ""."""
        return self._found[place(t)][1] if place(t) in self._found else ""

    def items(self):
        """[(name, Tensor)] in the order in which they came to be."""
        return [(name, t) for _, name, t in self._found.values()]

    def table(self):
        """{name: Tensor}; of several with one name the first keeps it, and the next are called name 2, name 3, ..."""
        table, times = {}, {}
        for name, t in self.items():
            times[name] = times.get(name, 0) + 1
            table[name if times[name] == 1 else f"{name} {times[name]}"] = t
        return table


@contextmanager
def names_from_code(*files):
    """Collect which local variables hold which Tensors while code of `files` runs inside the block, in this thread.

    files   paths of Python files; of two names for one Tensor the one from the earlier file is taken

    It watches by `sys.settrace`: code of other files runs as always, and afterwards, on an exception too, the trace
    function that was there before (of a debugger, say) is put back.
    """
    ranks = {str(Path(file).resolve()): rank for rank, file in enumerate(files)}
    names, known, before = NamesFromCode(), {}, sys.gettrace()

    def rank_of(code):
        if code not in known:
            known[code] = ranks.get(str(Path(code.co_filename).resolve()))
        return known[code]

    def enter(frame, event, argument):
        return look if rank_of(frame.f_code) is not None else None

    def look(frame, event, argument):
        if event != "exception":
            for name, value in frame.f_locals.items():
                if isinstance(value, Tensor) and not name.startswith((".", "_")):
                    names.add(name, value, known[frame.f_code])
        return look

    sys.settrace(enter)
    try:
        yield names
    finally:
        sys.settrace(before)


# ---------------------------------------------------------------------------------------------------------------------
# how a name is written
# ---------------------------------------------------------------------------------------------------------------------
def plain_name(name):
    """A name for one line of Unicode: letters, digits, `_`, `.` and `′`; Greek words as letters, a number at the end
    lowered. plain_name("alpha_1") is α₁."""
    name = re.sub(r"[^\w.′]|ᵀ", "_", unicodedata.normalize("NFC", str(name).replace("'", "′"))).strip(".") or "_"
    if name[0].isdigit():
        name = "_" + name
    found = re.fullmatch(r"([^\W\d_]+)_?(\d*)(.*)", name)
    if not found:
        return name
    head, number, rest = found.groups()
    tail = number.translate(_LOW) + rest if number and rest[:1] not in ("_", ".") else name[len(head):]
    return SIGNS.get(head, head) + tail


def canonical(name):
    """Equal for names that would look alike in some notation: h1, h_1 and h₁."""
    return re.sub(r"[_.′]", "", plain_name(name).translate(_NORMAL))


def latex_name(name):
    r"""A name in LaTeX: w_hh is w_{hh}, alpha1 is \alpha_{1}, weights is \mathrm{weights}, gru.w_hh is
    w_{hh,\mathrm{gru}}; a sign that LaTeX cannot take in formulas is put into \text{}."""
    name = plain_name(name).translate(_NORMAL)
    owner, _, last = name.rpartition(".")
    primes = len(last) - len(last.rstrip("′"))
    last = last.rstrip("′")
    found = re.fullmatch(r"([^\W\d_]+?)_?(\d*)", last) or re.fullmatch(r"([^\W\d_]+\d*)_(\w+)", last)
    head, low = found.groups() if found else (last, "")
    below = [_word(part, True) for part in low.split("_") if part]
    below += [rf"\mathrm{{{_escaped(owner)}}}"] if owner else []
    return _word(head) + "'" * primes + (f"_{{{','.join(below)}}}" if below else "")


def _word(text, below=False):
    if text in _COMMAND or len(text) == 1 and text.isascii() and text.isalnum() or text.isdigit():
        return _COMMAND.get(text, text)
    if below and text.isascii() and text.isalpha() and len(text) <= 2:
        return text
    if not text:
        return ""
    return rf"\mathrm{{{_escaped(text)}}}" if text.isascii() else rf"\text{{{_escaped(text)}}}"


def _escaped(text):
    return text.replace("_", r"\_")


def python_name(name):
    """A name for Python source."""
    name = re.sub(r"\W", "_", plain_name(name).translate(_NORMAL).replace("′", "_prime"))
    name = "".join({s: n for n, s in SIGNS.items()}.get(c, c) for c in name)
    return name + "_" if keyword.iskeyword(name) or hasattr(builtins, name) or name in ("np", "_") else name


def lowered(n):
    """A number as a Unicode subscript."""
    return str(n).translate(_LOW)
