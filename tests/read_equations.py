"""A reader of printed equations: it parses the Unicode text of `viz.equations` and computes it with NumPy.

It shares nothing with the printer; what it knows is the notation, as the docstring of `viz/formulas/notation.py` states it.

    expression  product (+|- product)*, after a leading "-" or none
    product     power ((⊙|·|/) power)*
    power       postfix (^ postfix)?
    postfix     atom (ᵀ | ᵀ[axes] | [index])*
    atom        number | √number | ∞ | name | function[settings](arguments) | (expression)
"""
import re
from math import erf

import numpy as np

WORD = r"[^\W\dᵀ](?:[^\Wᵀ]|[.′])*"  # letters, digits, lowered digits, `_`, `.`, `′`
TOKEN = re.compile(rf"\s*(∂{WORD}/∂{WORD}|\d+(?:\.\d+)?|{WORD}|.)")


def equations_in(text):
    """[(name, right-hand side)] of a printed text; lines that go on are joined."""
    found, inside = [], False
    for line in text.splitlines():
        if line in ("forward:", "backward:"):
            inside = True
        elif inside and line.strip():
            start = re.match(r"\s+(\S+) = (.*)", line)
            if start:
                found.append([start[1], start[2]])
            else:
                found[-1][1] += " " + line.strip()
    return found


def computed(text, leaves):
    """{name: array} of all that is printed, from the leaves {name: array}."""
    values = dict(leaves)
    with np.errstate(all="ignore"):
        for name, right in equations_in(text):
            assert name not in values, f"{name} is there twice"
            values[name] = Reader(right, values).all()
    return values


CONSTANTS = {"∞": np.inf, "nan": np.nan, "True": True, "False": False}


class Reader:
    def __init__(self, line, values):
        self.tokens, self.at, self.values, self.line = TOKEN.findall(line), 0, values, line

    def all(self):
        value = self.expression()
        assert self.at == len(self.tokens), f"{self.line!r} goes on with {self.tokens[self.at:]}"
        return value

    def next(self, *wanted):
        """The next token if it is one of these, else None."""
        if self.at < len(self.tokens) and (self.tokens[self.at] in wanted):
            self.at += 1
            return self.tokens[self.at - 1]
        return None

    def expect(self, sign):
        assert self.next(sign), f"{self.line!r}: expected {sign!r} before {self.tokens[self.at:]}"

    def expression(self):
        value = -self.product() if self.next("-") else self.product()
        while sign := self.next("+", "-"):
            value = value + self.product() if sign == "+" else value - self.product()
        return value

    def product(self):
        value = self.power()
        while sign := self.next("⊙", "·", "/"):
            other = self.power()
            if sign == "·":
                value = value * other if np.ndim(value) == 0 or np.ndim(other) == 0 else value @ other
            else:
                value = value * other if sign == "⊙" else value / other
        return value

    def power(self):
        value = self.postfix()
        return np.power(value, self.postfix()) if self.next("^") else value

    def postfix(self):
        value = self.atom()
        while sign := self.next("ᵀ", "["):
            if sign == "[":
                value = value[self.index()]
                self.expect("]")
            elif self.next("["):
                value = value.transpose([int(i) for i in self.raw()])
            else:
                value = np.swapaxes(value, -1, -2)
        return value

    def atom(self):
        if self.next("("):
            value = self.expression()
            self.expect(")")
            return value
        token = self.tokens[self.at]
        self.at += 1
        if token == "√":
            return np.sqrt(float(self.next(self.tokens[self.at])))
        if token in CONSTANTS:
            return CONSTANTS[token]
        if token[0].isdecimal():
            return float(token)
        start, settings = self.at, []
        if self.next("["):
            depth = 1
            while depth:
                depth += {"[": 1, "]": -1}.get(self.tokens[self.at], 0)
                settings.append(self.tokens[self.at])
                self.at += 1
            settings.pop()
        if self.next("("):
            arguments = [self.expression()]
            while self.next(","):
                arguments.append(self.expression())
            self.expect(")")
            return FUNCTIONS[token](Settings("".join(settings), self.values), *arguments)
        self.at = start
        return self.values[token]

    def raw(self):
        """What stands up to the next `]`, cut at commas."""
        begin = self.at
        self.at = self.tokens.index("]", begin) + 1
        return "".join(self.tokens[begin:self.at - 1]).split(",")

    def index(self):
        begin, self.at = self.at, self.tokens.index("]", self.at)
        return index_of("".join(self.tokens[begin:self.at]), self.values)


def index_of(text, values):
    def item(part):
        if ":" in part:
            return slice(*(int(x) if x else None for x in part.split(":")))
        return None if part == "+" else int(part) if re.fullmatch(r"-?\d+", part) else values[part]
    return tuple(map(item, text.split(","))) if text else ()


class Settings:
    """What stands in the brackets of a function."""

    def __init__(self, text, values):
        self.text, self.values = text, values
        self.before, _, self.after = text.partition("→")

    def axis(self, default=-1):
        return int(self.before) if self.before else default

    def axes(self):
        return tuple(map(int, self.before.split(","))) if self.before else None

    def shape(self):
        text = self.after or self.text
        return () if text == "()" else tuple(map(int, text.split("×")))

    def table(self):
        pairs = [part.split("=") for part in self.text.split(",") if part]
        return {k: Reader(v, {}).all() for k, v in pairs}


# ---------------------------------------------------------------------------------------------------------------------
# the functions by name
# ---------------------------------------------------------------------------------------------------------------------
def reduction(f):
    return lambda s, x: f(np.asarray(x), axis=s.axes(), keepdims=bool(s.after))


def softmax(s, x, mask=None):
    axis = s.axis()
    e = np.exp(x - np.max(x, axis=axis, keepdims=True))
    e = e if mask is None else e * mask
    total = e.sum(axis=axis, keepdims=True)
    return e / np.where(total == 0, 1, total)


def log_softmax(s, x, mask=None):
    y = softmax(s, x, mask)
    return np.where(y > 0, np.log(y), -np.inf)


def sparsemax(s, x, mask=None, power=1):
    """By bisection: the threshold at which the weights sum to 1."""
    x = np.moveaxis(np.asarray(x, float), s.axis(), -1)
    x = x * (0.5 if power == 2 else 1)
    x = x if mask is None else np.where(np.moveaxis(np.broadcast_to(mask, x.shape), s.axis(), -1), x, -np.inf)
    high = x.max(-1, keepdims=True)
    low = high - 1
    for _ in range(200):
        middle = (low + high) / 2
        big = (np.maximum(x - middle, 0) ** power).sum(-1, keepdims=True) >= 1
        low, high = np.where(big, middle, low), np.where(big, high, middle)
    return np.moveaxis(np.nan_to_num(np.maximum(x - low, 0) ** power), -1, s.axis())


def put(s, x):
    out = np.zeros(s.shape())
    np.add.at(out, index_of(s.before, s.values), x)
    return out


def pad(s, x):
    widths, _, value = s.text.partition(";")
    pairs = [tuple(map(int, part.split("+"))) for part in widths.split(",")]
    return np.pad(x, pairs, constant_values=float(value or 0))


def scatter_rows(s, x, ids):
    table = s.table()
    out, ids = np.zeros((int(table["rows"]), x.shape[-1])), np.asarray(ids)
    for i in np.ndindex(ids.shape):
        if ids[i] != table.get("padding"):
            out[ids[i]] += x[i]
    return out


def scatter_add(s, x, index):
    out = np.zeros(s.shape())
    for i in np.ndindex(index.shape):
        out[(*i[:s.axis()], index[i], *i[s.axis() + 1:])] += x[i]
    return out


def clip(s, x):
    table = s.table()
    return np.clip(x, table.get("low", -np.inf), table.get("high", np.inf))


def windows(s, x):
    n = {k: int(v) for k, v in s.table().items()}
    reach = (n["size"] - 1) * n["dilation"] + 1
    starts = range(0, x.shape[-1] - reach + 1, n["step"])
    return np.stack([np.stack([x[..., t + k * n["dilation"]] for k in range(n["size"])], -1) for t in starts], -2)


def overlap(s, x):
    n = {k: int(v) for k, v in s.table().items()}
    out = np.zeros((*x.shape[:-2], n["length"]))
    for t, k in np.ndindex(x.shape[-2:]):
        out[..., t * n["step"] + k * n["dilation"]] += x[..., t, k]
    return out


FUNCTIONS = {
    "unfold": windows, "fold": overlap,
    "Σ": reduction(np.sum), "mean": reduction(np.mean), "max": reduction(np.max), "min": reduction(np.min),
    "prod": reduction(np.prod), "norm": reduction(lambda x, **k: np.sqrt((x * x).sum(**k))),
    "logsumexp": reduction(lambda x, **k: np.log(np.exp(x).sum(**k))),
    "softmax": softmax, "log_softmax": log_softmax, "sparsemax": sparsemax,
    "entmax15": lambda s, x, mask=None: sparsemax(s, x, mask, 2),
    "reshape": lambda s, x: np.reshape(x, s.shape()), "expand": lambda s, x: np.broadcast_to(x, s.shape()),
    "stack": lambda s, *xs: np.stack(xs, s.axis()), "concat": lambda s, *xs: np.concatenate(xs, s.axis()),
    "flip": lambda s, x: np.flip(x, s.axes()), "cumsum": lambda s, x: np.cumsum(x, s.axis()),
    "gather": lambda s, x, i: np.take_along_axis(x, i, s.axis()), "scatter_add": scatter_add,
    "scatter_rows": scatter_rows, "put": put, "pad": pad, "clip": clip, "where": lambda s, c, x, y: np.where(c, x, y),
    "solve": lambda s, a, b: np.linalg.solve(a, b), "maximum": lambda s, x, y: np.maximum(x, y),
    "minimum": lambda s, x, y: np.minimum(x, y), "σ": lambda s, x: 1 / (1 + np.exp(-x)),
    "relu": lambda s, x: np.maximum(x, 0), "softplus": lambda s, x: np.log(1 + np.exp(x)),
    "erf": lambda s, x: np.vectorize(erf)(x), "gelu": lambda s, x: x * (1 + np.vectorize(erf)(x / np.sqrt(2))) / 2,
    **{n: (lambda f: lambda s, x: f(x))(getattr(np, n))
       for n in ("tanh", "exp", "log", "sqrt", "abs", "sign", "sin", "cos")}}
