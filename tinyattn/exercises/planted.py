"""The ops of the break-it lab, as texts: each with its right rules, and with wrong ones to be planted.

A wrong rule is one that is easily written: a forgotten factor, a sum that is missing, a rule that holds for square
matrices only, one whose values are right but whose own derivative is not. `inputs(rng)` gives the inputs on which the
fault shows; those that stand in the learner's file as `samples` are kinder.
"""
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Planted:
    """text: the class, with {rule} where the right or a wrong rule goes; wrong: [(rule, what is wrong with it)]."""
    name: str
    text: str
    right: str
    wrong: tuple
    inputs: object


OPS = (
    Planted("Square", '''
class Square(Op):
    """x * x"""
    def cpu(self, x):
        return x * x

    def grad_x(self, g, y, x):
        {rule}

    def samples(rng):
        yield {}, (rng.normal(size=(2, 3)),)
''', "return g * 2.0 * x", (
        ("return g * x", "the factor 2 is missing: x is used twice"),
        ("return g * 2.0 * x.detach()", "right once, but its own derivative is cut off by detach()")),
            lambda rng: [(rng.normal(size=(2, 3)),)]),
    Planted("Tanh", '''
class Tanh(Op):
    """tanh x"""
    def cpu(self, x):
        return np.tanh(x)

    def grad_x(self, g, y, x):
        {rule}

    def samples(rng):
        yield {}, (rng.normal(size=(4,)) / 100,)
''', "return g * (1.0 - y * y)", (
        ("return g * (1.0 - y)", "the output is not squared"),
        ("return g * (1.0 - x * x)", "x in place of tanh x: nearly right where x is small")),
            lambda rng: [(rng.normal(size=(4,)),)]),
    Planted("Softmax", '''
class Softmax(Op):
    """exp(x_j) / sum_k exp(x_k), over the last axis"""
    def cpu(self, x):
        e = np.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    def grad_x(self, g, y, x):
        {rule}

    def samples(rng):
        yield {}, (rng.normal(size=(1, 3)),)
''', "return y * (g - (g * y).sum(-1, keepdims=True))", (
        ("return y * (g - (g * y).sum())", "the sum runs over all rows: right for one row only"),
        ("return g * y * (1.0 - y)", "the diagonal of the Jacobian alone"),
        ("return y * (g - g.mean(-1, keepdims=True))", "the sum is not weighted by y")),
            lambda rng: [(rng.normal(size=(3, 4)),)]),
    Planted("Product", '''
class Product(Op):
    """a b, of two matrices"""
    def cpu(self, a, b):
        return a @ b

    def grad_a(self, g, y, a, b):
        {rule}

    def grad_b(self, g, y, a, b):
        return a.T @ g

    def samples(rng):
        yield {}, (rng.normal(size=(3, 3)), rng.normal(size=(3, 3)))
''', "return g @ b.T", (
        ("return g @ b", "b is not transposed: its shape fits for square matrices, the numbers do not"),
        ("return (b @ g).T", "the factors stand in the wrong order")),
            lambda rng: [(rng.normal(size=(2, 2)), rng.normal(size=(2, 2)))]),
    Planted("Mean", '''
class Mean(Op):
    """the mean over the last axis"""
    def cpu(self, x):
        return x.mean(-1)

    def grad_x(self, g, y, x):
        {rule}

    def samples(rng):
        yield {}, (rng.normal(size=(3, 3)),)
''', "return (g / x.shape[-1]).unsqueeze(-1) + x * 0.0", (
        ("return (g / x.shape[0]).unsqueeze(-1) + x * 0.0", "divided by the length of the first axis, not of the last"),
        ("return g.unsqueeze(-1) + x * 0.0", "not divided: that is the rule of the sum")),
            lambda rng: [(rng.normal(size=(2, 5)),)]),
    Planted("Divide", '''
class Divide(Op):
    """a / b, element by element"""
    def cpu(self, a, b):
        return a / b

    def grad_a(self, g, y, a, b):
        return g / b

    def grad_b(self, g, y, a, b):
        {rule}

    def samples(rng):
        yield {}, (rng.normal(size=(3,)), np.ones(3))
''', "return -g * y / b", (
        ("return -g * y", "divided by b once too seldom: right where b is 1"),
        ("return g * y / b", "the sign is wrong")),
            lambda rng: [(rng.normal(size=(3,)), rng.uniform(1.5, 3, size=(3,)))]),
    Planted("LogSumExp", '''
class LogSumExp(Op):
    """log of the sum of exp(x), over the last axis"""
    def cpu(self, x):
        top = x.max(-1, keepdims=True)
        return np.log(np.exp(x - top).sum(-1)) + top[..., 0]

    def grad_x(self, g, y, x):
        {rule}

    def samples(rng):
        yield {}, (np.zeros((2, 2)),)
''', "return g.unsqueeze(-1) * (x - y.unsqueeze(-1)).exp()", (
        ("return g.unsqueeze(-1) * (x - y.detach().unsqueeze(-1)).exp()", "right once, but the second derivative lacks "
         "what comes through y"),
        ("return g.unsqueeze(-1) * x.softmax(0)", "softmax over the wrong axis")),
            lambda rng: [(rng.normal(size=(2, 3)),)]),
    Planted("Pick", '''
class Pick(Op):
    """rows of a table: y_n = table[ids_n]"""
    def cpu(self, table, ids):
        return table[ids]

    def grad_table(self, g, y, table, ids):
        {rule}

    def samples(rng):
        yield {}, (rng.normal(size=(4, 2)), np.array([2, 0]))
''', "return ta.Tensor(np.eye(len(table.numpy()))[ids.numpy()]).T @ g", (
        ("rows = np.zeros((len(table.numpy()), len(ids.numpy())))\n        last = {i: n for n, i in "
         "enumerate(ids.numpy().tolist())}\n        for i, n in last.items():\n            rows[i, n] = 1.0\n        "
         "return ta.Tensor(rows) @ g", "a row that was taken twice gets the last gradient only, not the sum"),),
            lambda rng: [(rng.normal(size=(4, 2)), np.array([2, 0, 2, 2]))]),
    Planted("Cube", '''
class Cube(Op):
    """x * x * x"""
    def cpu(self, x):
        return x * x * x

    def grad_x(self, g, y, x):
        {rule}

    def samples(rng):
        yield {}, (np.ones((2,)),)
''', "return 3.0 * g * x * x", (
        ("return 3.0 * g * y / x.abs()", "x squared was had by dividing by |x|: the sign is wrong below 0"),
        ("return 3.0 * g * y", "y in place of x squared: right where x is 1")),
            lambda rng: [(np.array([0.7, -1.3]),)]),
)
