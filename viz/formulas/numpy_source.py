"""Equations as Python source that runs with NumPy alone: `equations(y).numpy()`.

One line an equation, its shape behind it. What is given stands above as arrays; functions that NumPy has not stand on
top, written out, and only those that are used.
"""
import numpy as np

from tinyattn.errors import InputError

from .algebra import REDUCTIONS, At
from .namer import plain_name, python_name
from .notation import ATOM, POSTFIX, POWER, Text
from .page import broken, parts_of, shape_of

LITERAL = 2000  # numbers of an array that are written out; of a larger one the seed of a random generator is
WIDTH = 100
DATA_WIDTH = 110  # of lines of given numbers

HELPERS = {
    "softmax": '''
def softmax(x, mask=True, axis=-1):
    """e^x / sum e^x where mask is true, 0 elsewhere; a row without any true place is 0."""
    x = np.where(mask, x, -np.inf)
    high = x.max(axis=axis, keepdims=True)
    e = np.exp(x - np.where(np.isfinite(high), high, 0))
    total = e.sum(axis=axis, keepdims=True)
    return e / np.where(total == 0, 1, total)
''',
    "log_softmax": '''
def log_softmax(x, mask=True, axis=-1):
    """x - log sum e^x where mask is true, -inf elsewhere."""
    return np.where(mask, x - log_sum_exp(np.where(mask, x, -np.inf), axis, True), -np.inf)
''',
    "log_sum_exp": '''
def log_sum_exp(x, axis=None, keepdims=False):
    """log sum e^x, the largest x taken out first."""
    high = x.max(axis=axis, keepdims=True)
    high = np.where(np.isfinite(high), high, 0)
    total = np.exp(x - high).sum(axis=axis, keepdims=True)
    y = high + np.where(total > 0, np.log(np.where(total > 0, total, 1)), -np.inf)
    return y if keepdims else np.squeeze(y, axis)
''',
    "sparsemax": '''
def sparsemax(x, mask=True, axis=-1):
    """max(x - t, 0) with the t for which it sums to 1 (by sorting), 0 where mask is false."""
    x = np.moveaxis(np.where(mask, x, -np.inf), axis, -1)
    z = -np.sort(-x, axis=-1)
    n = np.arange(1, z.shape[-1] + 1)
    sums = np.cumsum(np.where(np.isfinite(z), z, 0), -1)
    count = np.maximum((np.isfinite(z) & (1 + n * z > sums)).sum(-1, keepdims=True), 1)
    t = (np.take_along_axis(sums, count - 1, -1) - 1) / count
    return np.moveaxis(np.where(np.isfinite(x), np.maximum(x - t, 0), 0), -1, axis)
''',
    "entmax15": '''
def entmax15(x, mask=True, axis=-1):
    """max(x / 2 - t, 0)^2 with the t for which it sums to 1 (by halving), 0 where mask is false."""
    x = np.moveaxis(np.where(mask, x, -np.inf) / 2, axis, -1)
    high = np.where(np.isfinite(x.max(-1, keepdims=True)), x.max(-1, keepdims=True), 0)
    low = high - 1
    for _ in range(100):
        t = (low + high) / 2
        much = (np.maximum(x - t, 0) ** 2).sum(-1, keepdims=True) >= 1
        low, high = np.where(much, t, low), np.where(much, high, t)
    return np.moveaxis(np.where(np.isfinite(x), np.maximum(x - low, 0) ** 2, 0), -1, axis)
''',
    "sigmoid": '''
def sigmoid(x):
    """1 / (1 + e^-x), without overflow."""
    return (1 + np.tanh(x / 2)) / 2
''',
    "erf": '''
def erf(x):
    """2 / sqrt(pi) times the integral of e^(-t^2) from 0 to x."""
    return np.vectorize(math.erf, otypes=[float])(x)
''',
    "gelu": '''
def gelu(x):
    """x times the probability that a standard normal number is below x."""
    return x * (1 + np.vectorize(math.erf, otypes=[float])(x / np.sqrt(2))) / 2
''',
    "put": '''
def put(x, index, shape):
    """Zeros of this shape, with x added at the index."""
    out = np.zeros(shape)
    np.add.at(out, index, x)
    return out
''',
    "unfold": '''
def unfold(x, size, step, dilation):
    """All windows of `size` elements along the last axis: (..., windows, size)."""
    windows = np.lib.stride_tricks.sliding_window_view(x, (size - 1) * dilation + 1, axis=-1)
    return windows[..., ::step, ::dilation]
''',
    "fold": '''
def fold(x, length, step, dilation):
    """Windows (..., windows, size) laid back to a row of `length` elements; where they overlap they are added."""
    out = np.zeros((*x.shape[:-2], length))
    for i in range(x.shape[-2]):
        for k in range(x.shape[-1]):
            out[..., i * step + k * dilation] += x[..., i, k]
    return out
''',
    "scatter_rows": '''
def scatter_rows(x, ids, rows, padding=None):
    """A table of zeros, x[...] added to its row ids[...]; the row `padding` gets nothing."""
    out = np.zeros((rows, x.shape[-1]))
    np.add.at(out, ids, x)
    if padding is not None:
        out[padding] = 0
    return out
''',
    "scatter_add": '''
def scatter_add(x, index, axis, shape):
    """Zeros of this shape, with x added at the places `index` along one axis."""
    at = list(np.indices(index.shape, sparse=True))
    at[axis] = index
    out = np.zeros(shape)
    np.add.at(out, tuple(at), x)
    return out
''',
}
_NEEDS = {"log_softmax": ["log_sum_exp"], "putitem": ["put"]}
_PLAIN = {"abs", "exp", "log", "sin", "cos", "tanh", "sqrt", "sign", "maximum", "minimum", "where"}
_METHODS = {"sum": "sum", "mean": "mean", "max": "max", "min": "min", "prod": "prod"}


class Source(Text):
    """Prints expressions as Python."""
    infix = {"add": " + ", "sub": " - ", "mul": " * ", "matmul": " @ ", "div": " / "}
    times, new, infinity = " * ", "None", "np.inf"

    def __init__(self, equations):
        super().__init__(equations)
        self.helpers, self.names, taken = set(), {}, {*HELPERS, "np", "math", "random"}
        for i in [*equations.given, *(e.id for e in equations.list)]:
            v = self.values[i]
            name = python_name(v.name) if v.of is None else "d_" + python_name(self.values[v.of].name)
            while name in taken:
                name += "_"
            taken.add(name)
            self.names[i] = name

    def name(self, i):
        return self.names[i]

    def tight(self, i):
        return ATOM

    def number(self, x, dtype):
        shown, level = super().number(x, dtype)
        return ("np.nan", ATOM) if shown == "nan" else (shown, level)

    def root(self, n):
        return f"np.sqrt({n})"

    def over(self, a, b):
        return f"{a} / {b}"

    def power_of_ten(self, head, n):
        return f"{head}e{n}"

    def power(self, a, b):
        return f"{self.inside(a, POSTFIX)} ** {self.inside(b, POSTFIX)}", POWER

    def transposed(self, x, axes):
        if axes is None:
            return f"{self.inside(x, POSTFIX)}.T" if len(x.shape) == 2 else f"np.swapaxes({self.show(x)[0]}, -1, -2)"
        return f"{self.inside(x, POSTFIX)}.transpose({axes.replace(',', ', ')})"

    def holds(self, x):
        return POSTFIX

    def function(self, e, after_comma=""):
        s, x = e.settings, self.inside(e.args[0], POSTFIX) if e.args else ""
        plain = [self.show(a)[0] for a in e.args]
        if e.op in REDUCTIONS:
            return self.reduction(e, x, plain[0]), ATOM
        if e.op in _PLAIN:
            return f"np.{e.op}({', '.join(plain)})", ATOM
        made = {
            "relu": lambda: f"np.maximum({plain[0]}, 0)", "softplus": lambda: f"np.logaddexp(0, {plain[0]})",
            "reshape": lambda: f"{x}.reshape({', '.join(map(str, e.shape)) or '()'})",
            "expand": lambda: f"np.broadcast_to({plain[0]}, {e.shape})",
            "stack": lambda: f"np.stack([{(', ' + after_comma).join(plain)}], {s['axis']})",
            "concat": lambda: f"np.concatenate([{(', ' + after_comma).join(plain)}], {s['axis']})",
            "flip": lambda: f"np.flip({plain[0]}, {s['axes']})",
            "cumsum": lambda: f"np.cumsum({plain[0]}, {s['axis']})",
            "pad": lambda: f"np.pad({plain[0]}, {s['widths']}, constant_values={s['value']!r})",
            "clip": lambda: f"np.clip({plain[0]}, {self.plain(s['low'])}, {self.plain(s['high'])})",
            "gather": lambda: f"np.take_along_axis({plain[0]}, {plain[1]}, {s['axis']})",
            "solve": lambda: f"np.linalg.solve({plain[0]}, {plain[1]})",
            "cast": lambda: f"{x}.astype({str(np.dtype(s['dtype']))!r})",
            "unfold": lambda: f"unfold({plain[0]}, {s['size']}, {s['step']}, {s['dilation']})",
            "fold": lambda: f"fold({plain[0]}, {s['length']}, {s['step']}, {s['dilation']})",
            "putitem": lambda: f"put({plain[0]}, {self.place(e)}, {e.shape})",
            "scatter_add": lambda: f"scatter_add({plain[0]}, {plain[1]}, {s['axis']}, {e.shape})",
            "scatter_rows": lambda: f"scatter_rows({plain[0]}, {plain[1]}, {s['rows']}"
                                    + (")" if s["padding"] is None else f", padding={s['padding']})")}
        self.helpers.update(_NEEDS.get(e.op, []), [e.op] if e.op in HELPERS else [])
        if e.op in made:
            return made[e.op](), ATOM
        if e.op in HELPERS:
            axis = s.get("axis", len(e.shape) - 1)
            return f"{e.op}({', '.join(plain)}{'' if axis == len(e.shape) - 1 else f', axis={axis}'})", ATOM
        raise InputError(f"equations: the op {e.op} has no form in NumPy; print these equations as text or LaTeX")

    def reduction(self, e, x, plain):
        axes, kept = e.settings["axes"], ", keepdims=True" if e.settings["keepdims"] else ""
        whole = len(axes) == len(e.args[0].shape) and not kept
        axis = "" if whole else f"axis={axes[0] if len(axes) == 1 else axes}{kept}"
        if e.op in _METHODS:
            return f"{x}.{_METHODS[e.op]}({axis})"
        if e.op == "norm":
            return f"np.sqrt(({x} ** 2).sum({axis}))"
        self.helpers.add(e.op)
        return f"{e.op}({plain}{', ' if axis else ''}{axis})"

    def plain(self, x):
        return self.number(float(x), "float64")[0]

    def place(self, e):
        def part(i):
            if isinstance(i, At):
                return self.show(e.args[i.argument])[0]
            if isinstance(i, slice):
                return "slice(None)" if i == slice(None) else repr(i)
            return str(i)
        parts = [part(i) for i in e.settings["index"]]
        return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"


def source(equations):
    """See `Equations.numpy`."""
    printer, body = Source(equations), []
    for part, chosen in parts_of(equations):
        body += ["", f"# the {part} pass"]
        for e in chosen:
            v, first = equations.values[e.id], f"{printer.name(e.id)} = "
            right = broken(printer.top_level(e.expression), WIDTH - len(first))
            if len(right) > 1:
                right = ["(" + right[0], *right[1:-1], right[-1] + ")"]
            whole = f"\n{' ' * (len(first) + 1)}".join([first + right[0], *right[1:]])
            body.append(f"{whole}  # {_comment(equations, v)}{shape_of(v)}")
    data = [_given(equations, printer.name(i), i) for i in equations.given]
    helpers = "".join("\n\n" + HELPERS[h].strip("\n") + "\n" for h in HELPERS if h in printer.helpers)
    top = plain_name(equations.top)
    what = ['"""The equations of a computation, written with NumPy alone.',
            f"d_x is the gradient of {top} by x." if any(v.of is not None for v in equations.values.values()) else "",
            "", "Made from the graph that the engine recorded: what is changed here is not changed there.", '"""']
    imports = (["import math"] if {"erf", "gelu"} & printer.helpers else []) + ["", "import numpy as np"]
    lines = [line for n, line in enumerate(what) if line or n == 2] + imports[("import math" not in imports):]
    return "\n".join([*lines, helpers + ("\n" if helpers else ""), "# given", *data, *body, ""])


def _comment(equations, v):
    """The name in the formulas, where Python could not have it."""
    if v.of is not None:
        return f"∂{plain_name(equations.top)}/∂{plain_name(equations.values[v.of].name)} "
    return "" if plain_name(v.name).isascii() else f"{plain_name(v.name)} "


def _given(equations, name, i):
    """The lines that make a given array, with its shape behind them."""
    v = equations.values[i]
    return _array(v.array, i, f"{name} = ", f"  # {_comment(equations, v)}{shape_of(v)}")


def _array(array, seed, before="", after=""):
    """Source that makes an array, with every digit that counts, between two texts; a long one in several lines."""
    array = np.asarray(array)
    made = _short(array, seed)
    if made is not None:
        return before + made + after
    kind = "" if array.dtype.kind in "fb" else f", dtype={str(array.dtype)!r}"
    line = f"{before}np.array({_finite(repr(array.tolist()))}{kind}){after}"
    if len(line) <= DATA_WIDTH or not array.ndim:
        return line
    rows = np.array2string(array, DATA_WIDTH, separator=", ", prefix="    ", suffix=f"{kind})",
                           threshold=array.size + 1, formatter={"all": lambda x: _finite(repr(x.item()))})
    return f"{before}np.array({after}\n    {rows}{kind})"


def _short(array, seed):
    """Source for an array whose numbers need not be written out, or None."""
    if array.size and array.ndim and (array == array.flat[0]).all():
        value = array.flat[0].item()
        return f"np.ones({array.shape})" if value == 1 and array.dtype.kind == "f" else (
            f"np.full({array.shape}, {_finite(repr(value))})")
    if array.size > LITERAL:
        if array.dtype.kind == "f":
            return f"np.random.default_rng({seed}).normal(size={array.shape})"
        return f"np.random.default_rng({seed}).integers({int(array.max()) + 1}, size={array.shape})"
    if not array.size:
        kind = "" if array.dtype.kind in "fb" else f", dtype={str(array.dtype)!r}"
        return f"np.zeros({array.shape}{kind})"
    return None


def _finite(text):
    return text.replace("inf", "np.inf").replace("nan", "np.nan")

