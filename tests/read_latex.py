r"""A reader of printed LaTeX: it computes the rows of `align*` environments with NumPy, from the leaves.

    expression  term ((+|-) term)*, after a leading "-" or none
    term        factor ((\odot|\,) factor)*          \, is the product of matrices, or with a number its multiple
    factor      atom (^{...} | _{[index]})*
    atom        number | name | \infty | \sqrt{...} | \frac{...}{...} | |...| | (...) | {...} | \sum_{[axes]} factor
                | function_{[settings]}(arguments)
"""
import re

import numpy as np
from read_equations import CONSTANTS, FUNCTIONS, Settings, index_of

NUMBERS = re.compile(r"\d+(\.\d+)?")
FUNCTION = re.compile(r"\\mathrm\{+([\w\\]+?)\}+|\\(tanh|log|exp|cos|sin|max|min|prod|sigma)(?![a-zA-Z])"
                      r"|\\log\\mathrm\{\{(softmax)\}\}")
OTHER = {"sigma": "σ", "logsoftmax": "log_softmax"}


def rows_in(latex):
    """[(name, right-hand side)] of all equations."""
    found = []
    for block in re.findall(r"\\begin\{align\*\}\n(.*?)\n\\end\{align\*\}", latex, re.DOTALL):
        for row in re.sub(r" \\\\\n  &\\qquad ", " ", block).split(" \\\\\n"):
            found.append(tuple(row.split(" &= ")))
    return found


def computed(latex, leaves):
    """{name in LaTeX: array}."""
    values, known = dict(leaves), {}
    for name in leaves:
        known.setdefault(name[:2], []).append(name)
    with np.errstate(all="ignore"):
        for name, right in rows_in(latex):
            values[name] = Reader(right, values, known).all()
            known.setdefault(name[:2], []).append(name)
    return values


class Reader:
    def __init__(self, tex, values, known):
        self.tex, self.at, self.values, self.known = tex, 0, values, known  # known: names by how they begin

    def all(self):
        value = self.expression()
        self.skip()
        assert self.at == len(self.tex), f"{self.tex} goes on with {self.tex[self.at:]}"
        return value

    def skip(self):
        while self.tex[self.at:self.at + 1] == " ":
            self.at += 1

    def next(self, *signs):
        self.skip()
        for sign in signs:
            if self.tex.startswith(sign, self.at):
                self.at += len(sign)
                return sign
        return None

    def expect(self, sign):
        assert self.next(sign), f"{self.tex}: expected {sign} before {self.tex[self.at:]}"

    def expression(self):
        value = -self.term() if self.next("-") else self.term()
        while sign := self.next("+", "-"):
            value = value + self.term() if sign == "+" else value - self.term()
        return value

    def term(self):
        value = self.factor()
        while sign := self.next(r"\odot", r"\,"):
            other = self.factor()
            single = sign == r"\odot" or np.ndim(value) == 0 or np.ndim(other) == 0
            value = value * other if single else value @ other
        return value

    def factor(self):
        value = self.atom()
        while sign := self.next(r"^{\top}", r"^{\top[", "_{[", "^{"):
            if sign == r"^{\top}":
                value = np.swapaxes(value, -1, -2)
            elif sign == "^{":
                value = np.power(value, self.closed("}", self.expression))
            else:
                inside = self.until("]}")
                value = value[index_of(inside, self.values)] if sign == "_{[" else value.transpose(
                    [int(i) for i in inside.split(",")])
        return value

    def closed(self, end, read):
        value = read()
        self.expect(end)
        return value

    def until(self, end):
        """What stands before `end`, in the signs of the Unicode text."""
        begin, self.at = self.at, self.tex.index(end, self.at) + len(end)
        text = self.tex[begin:self.at - len(end)].replace(r"\to", "→").replace(r"\times", "×").replace("{+}", "+")
        text = re.sub(r"\\mathrm\{(.*?)\}=", r"\1=", text).replace(r"\_", "_").replace(r"\infty", "∞")
        return re.sub(r"\s", "", text)

    def atom(self):
        self.skip()
        begins = (self.tex[self.at:self.at + 2], self.tex[self.at:self.at + 1])
        for name in sorted((n for b in begins for n in self.known.get(b, ())), key=len, reverse=True):
            if self.tex.startswith(name, self.at) and not re.match(r"_\{(?!\[)|\w", self.tex[self.at + len(name):]):
                self.at += len(name)
                return self.values[name]
        if number := NUMBERS.match(self.tex, self.at):
            self.at = number.end()
            return float(number[0])
        if sign := self.next("(", r"\left(", "|", "{"):
            return (np.abs if sign == "|" else np.asarray)(self.closed(
                {"(": ")", "|": "|", "{": "}"}.get(sign, r"\right)"), self.expression))
        if self.next(r"\lVert"):
            inside = self.closed(r"\rVert", self.expression)
            return np.sqrt((inside * inside).sum())
        if self.next(r"\frac{"):
            over = self.closed("}", self.expression)
            self.expect("{")
            return over / self.closed("}", self.expression)
        if self.next(r"\sqrt{"):
            return np.sqrt(self.closed("}", self.expression))
        if sign := self.next(r"\infty", "True", "False"):
            return CONSTANTS.get(sign, np.inf)
        if self.next(r"\sum"):
            return FUNCTIONS["Σ"](self.settings(), self.factor())
        return self.function()

    def settings(self):
        return Settings(self.until("]}") if self.next("_{[") else "", self.values)

    def function(self):
        found = FUNCTION.match(self.tex, self.at)
        assert found, f"{self.tex}: what is {self.tex[self.at:]}?"
        self.at = found.end()
        name = "log_softmax" if found[3] else (found[1] or found[2]).replace(r"\_", "_")
        settings = self.settings()
        if name in ("max", "min") and self.comma():
            name += "imum"
        end = {"(": ")", r"\left(": r"\right)"}.get(self.next("(", r"\left("))
        if end is None:  # \log x
            return FUNCTIONS[name](settings, self.factor())
        arguments = [self.expression()]
        while self.next(","):
            arguments.append(self.expression())
        self.expect(end)
        return FUNCTIONS[OTHER.get(name, name)](settings, *arguments)

    def comma(self):
        """Are there several arguments in the parentheses that begin here?"""
        depth = 0
        for c in self.tex[self.at:].replace(r"\,", ""):
            depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(c, 0)
            if c == "," and depth == 1:
                return True
            if c == ")" and depth == 0:
                return False
        return False
