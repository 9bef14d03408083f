# %% [markdown]
# # 1. Back-propagation on scalars: a whole engine in 120 lines
#
# Reverse-mode differentiation needs three things: a node that remembers its inputs, one rule for each input of each
# operation, and a walk that visits a node when its gradient is complete.
#
# The engine below is complete: it differentiates any program made of its operations, to any order, and trains a
# classifier. Its names are those of the package, so whoever has read it can read `tinyattn/op.py` and
# `tinyattn/autograd.py`. There, numbers are arrays and loops are compiled; the idea is all here.

# %% engine: what it imports
import math

# %%
from unittest import mock

import numpy as np
from lesson import show

import tinyattn as ta
from tinyattn import autograd
from viz import graph
from viz.plot import COLOURS, figure

# %% [markdown]
# ## The node
#
# Every call of an operation is a node. It keeps what went in and what came out; a `Scalar` keeps the node that made
# it. Nothing is recorded if no input asks for a gradient.

# %% engine: the node
class Op:
    """One operation. A subclass gives the formula, an instance is one call: a node."""
    recording = True

    def __init_subclass__(cls):
        cls.rules = [rule for name, rule in vars(cls).items() if name.startswith("grad_")]

    def __call__(self, *inputs):
        inputs = [t if isinstance(t, Scalar) else Scalar(t) for t in inputs]
        out = self.cpu(*[t.data for t in inputs])
        recorded = Op.recording and any(t.requires_grad for t in inputs)
        if recorded:
            self.inputs, self.out = inputs, out
        return Scalar(out, recorded, self if recorded else None)

class Scalar:
    """A number, and the node that made it (None: a leaf)."""

    def __init__(self, data, requires_grad=False, op=None):
        self.data, self.requires_grad, self.op, self.grad = data, requires_grad, op, None

    def backward(self, create_graph=False):
        """Add d self / d leaf to the `grad` of every leaf that requires one."""
        for leaf, g in walk(self, create_graph).items():
            leaf.grad = g if leaf.grad is None else leaf.grad + g

    def __add__(self, other): return Add()(self, other)
    def __radd__(self, other): return Add()(other, self)
    def __sub__(self, other): return Sub()(self, other)
    def __rsub__(self, other): return Sub()(other, self)
    def __mul__(self, other): return Mul()(self, other)
    def __rmul__(self, other): return Mul()(other, self)
    def __truediv__(self, other): return Div()(self, other)
    def __rtruediv__(self, other): return Div()(other, self)
    def __neg__(self): return Neg()(self)
    def exp(self): return Exp()(self)
    def log(self): return Log()(self)
    def tanh(self): return Tanh()(self)
    def relu(self): return Relu()(self)

# %% [markdown]
# ## The rules
#
# Let $L$ be the last number, and $y = f(x)$ one operation on the way to it. The chain rule for that
# edge of the graph is
#
# $$\frac{\partial L}{\partial x} = \frac{\partial L}{\partial y} \cdot \frac{\partial y}{\partial x}$$
#
# `grad_x` is the right side: `g` is $\partial L / \partial y$, the gradient that comes in. A rule is written in the
# engine's own numbers, so it is recorded like anything else, and gradients have gradients.

# %% engine: operations and their rules
class Add(Op):
    def cpu(self, x, y): return x + y
    def grad_x(self, g, out, x, y): return g
    def grad_y(self, g, out, x, y): return g

class Sub(Op):
    def cpu(self, x, y): return x - y
    def grad_x(self, g, out, x, y): return g
    def grad_y(self, g, out, x, y): return -g

class Mul(Op):
    def cpu(self, x, y): return x * y
    def grad_x(self, g, out, x, y): return g * y
    def grad_y(self, g, out, x, y): return g * x

class Div(Op):
    def cpu(self, x, y): return x / y
    def grad_x(self, g, out, x, y): return g / y
    def grad_y(self, g, out, x, y): return -g * out / y

class Neg(Op):
    def cpu(self, x): return -x
    def grad_x(self, g, y, x): return -g

class Exp(Op):
    def cpu(self, x): return math.exp(x)
    def grad_x(self, g, y, x): return g * y

class Log(Op):
    def cpu(self, x): return math.log(x)
    def grad_x(self, g, y, x): return g / x

class Tanh(Op):
    def cpu(self, x): return math.tanh(x)
    def grad_x(self, g, y, x): return g * (1.0 - y * y)

class Relu(Op):
    def cpu(self, x): return max(x, 0.0)
    def grad_x(self, g, y, x): return g * float(x.data > 0)

# %% [markdown]
# ## The walk
#
# 1. Count for every node how many edges will send it a gradient: its *uses*.
# 2. Visit a node when its count is down to 0. Only then is its gradient complete. [Lesson 3](03_topological_order.html)
#    shows what happens otherwise.
#
# There is no recursion, so no graph is too deep.

# %% engine: the walk
def count_uses(root):
    uses, stack = {root.op: 0}, [root.op]
    while stack:
        for t in stack.pop().inputs:
            if t.op is not None:
                if t.op not in uses:
                    stack.append(t.op)
                uses[t.op] = uses.get(t.op, 0) + 1
    return uses

def visit(op, g, inner, leaves):
    """Apply the rules of a node to its complete gradient g; add what they give to the inputs' sums."""
    y = Scalar(op.out, True, op)
    for t, rule in zip(op.inputs, op.rules):
        if t.requires_grad:
            sums, key = (leaves, t) if t.op is None else (inner, t.op)
            part = rule(op, g, y, *op.inputs)
            sums[key] = sums[key] + part if key in sums else part

def walk(root, create_graph=False):
    """{leaf: d root / d leaf}, the gradients as Scalars."""
    inner, leaves, ready = {root.op: Scalar(1.0)}, {}, [root.op]
    uses, before, Op.recording = count_uses(root), Op.recording, create_graph
    while ready:
        op = ready.pop()
        visit(op, inner.pop(op), inner, leaves)
        for t in op.inputs:
            if t.op is not None:
                uses[t.op] -= 1
                if uses[t.op] == 0:
                    ready.append(t.op)
    Op.recording = before
    return leaves

# %% [markdown]
# ## The same numbers as the package, in the same order
#
# One neuron with two inputs, $y = \tanh(w_1 x_1 + w_2 x_2 + b)$, and a loss that uses $y$ twice.

# %%


def loss_of(w1, w2, b):
    y = (w1 * 2.0 + w2 * 0.5 + b).tanh()
    return (y - 1.0) * (y - 1.0) / 2.0 + (-y).exp()


start = {"w1": 0.3, "w2": -0.8, "b": 0.1}
ours = {name: Scalar(x, requires_grad=True) for name, x in start.items()}
theirs = {name: ta.Tensor(x, requires_grad=True, dtype="float64", name=name)
          for name, x in start.items()}
our_loss, their_loss = loss_of(**ours), loss_of(**theirs)

here, there = mock.Mock(wraps=visit), mock.Mock(wraps=autograd._visit)  # both walks are overheard
with mock.patch.dict(globals(), visit=here), mock.patch.object(autograd, "_visit", there):
    our_loss.backward()
    their_loss.backward()
ours_visited = [call.args[0] for call in here.call_args_list]
theirs_visited = [call.args[0] for call in there.call_args_list]

for name in start:
    print(f"dL/d{name:2} = {ours[name].grad.data:+.6f}   {theirs[name].grad.item():+.6f}")
    assert abs(ours[name].grad.data - theirs[name].grad.item()) < 1e-15
order = [op.name for op in theirs_visited]
print("order of the walk:", ", ".join(order))
assert [type(op).__name__.lower() for op in ours_visited] == order and len(order) == 12
for op, twin in zip(ours_visited, theirs_visited):
    assert abs(op.out - twin.outs[0]) < 1e-15, (op, twin)

# %% [markdown]
# Two columns, one number: left this engine, right the package, to the last bit that counts. Both visit the same
# {{len(order)}} nodes in the same order. The graph that both walk, from the bottom up:

# %%
show(graph(their_loss, values=True, direction="LR"), "neuron",
     "One neuron and its loss. The walk goes against the arrows; y has three uses.")

# %% [markdown]
# Gradients of gradients come for nothing. The derivatives of $x^3$ are $3x^2$, $6x$ and $6$; at $x = 2$:

# %%
x = Scalar(2.0, requires_grad=True)
derivative, found = x * x * x, []
for _ in range(3):
    derivative = walk(derivative, create_graph=True)[x]
    found.append(derivative.data)
print(found)
assert found == [12.0, 12.0, 6.0]

# %% [markdown]
# ## It learns
#
# Two half moons of points, a network of 2 inputs, 8 hidden units and one output. A point is right if the output
# has the sign of its class. The loss is $\max(0, 1 - t\,s)^2$, summed over the points; $t = \pm 1$ is the class, $s$
# the output.

# %%
rng = np.random.default_rng(0)
angle = rng.uniform(0, np.pi, 60)
side = np.repeat([1.0, -1.0], 30)                                # the class of each point
points = np.stack([np.cos(angle) + (side < 0), side * np.sin(angle) + 0.4 * (side < 0)], 1)
points += rng.normal(scale=0.1, size=points.shape)               # (60, 2)

hidden = [[Scalar(w, requires_grad=True) for w in rng.normal(size=3)] for _ in range(8)]
last = [Scalar(w, requires_grad=True) for w in rng.normal(size=9) * 0.3]
weights = [w for unit in hidden for w in unit] + last


def score(p, q):
    s = last[8]
    for unit, out in zip(hidden, last):
        s = s + (unit[0] * p + unit[1] * q + unit[2]).tanh() * out
    return s


for step in range(81):
    loss, right = Scalar(0.0), 0
    for (p, q), t in zip(points.tolist(), side.tolist()):
        s = score(p, q)
        gap = (1.0 - s * t).relu()
        loss, right = loss + gap * gap, right + (s.data * t > 0)
    if step % 20 == 0:
        print(f"step {step:2}   loss {loss.data:7.3f}   right {right} of 60")
    for w in weights:
        w.grad = None
    loss.backward()
    for w in weights:
        w.data -= 0.01 * w.grad.data
assert right == 60 and loss.data < 5, (right, loss.data)

# %% [drawing]
Op.recording = False                                             # nothing here is differentiated
grid_x, grid_y = np.meshgrid(np.linspace(-1.6, 2.6, 60), np.linspace(-1.2, 1.6, 40))
plane = np.reshape([score(p, q).data for p, q in zip(grid_x.flat, grid_y.flat)], grid_x.shape)
Op.recording = True
fig = figure(6.4, 4)
axes = fig.add_axes((0.08, 0.1, 0.9, 0.88))
axes.contourf(grid_x, grid_y, plane, levels=[-99, 0, 99], colors=["#FBE3D6", "#DCEBF5"])
axes.contour(grid_x, grid_y, plane, levels=[-1, 0, 1], colors="#444444", linestyles=["--", "-", "--"])
for t, mark, colour in ((1, "o", COLOURS[0]), (-1, "^", COLOURS[1])):
    axes.scatter(*points[side == t].T, marker=mark, color=colour, s=40, label=f"class {t:+d}")
axes.legend(loc="upper right", fontsize=12)
axes.tick_params(labelsize=11)
show(fig, "moons", "What the network learned: the line where its output is 0; dashed, where it is 1 and -1.")

# %% [markdown]
# ## No graph is too deep
#
# A chain of 50,000 additions. Python's own stack ends near 1,000 calls, which is where a recursive engine ends too.

# %%
x = Scalar(1.0, requires_grad=True)
y = x
for _ in range(50_000):
    y = y + x
y.backward()
print(f"y = {y.data:.0f}, dy/dx = {x.grad.data:.0f}")
assert x.grad.data == y.data == 50_001

# %% [markdown]
# ## What to take home
#
# - A node keeps its inputs; an operation has one rule for each input; the walk sums what the rules send.
# - The gradient of a number that is used several times is the sum over its uses.
# - Rules that are written in the engine's own numbers give derivatives of every order.
#
# ## Questions
#
# 1. Why does `Exp.grad_x` use `y`, not `x`?
#    <details><summary>Answer</summary>Its derivative is itself, $e^x = y$, and $y$ has been computed already.</details>
# 2. Which leaf gradients would be wrong without the line `w.grad = None`?
#    <details><summary>Answer</summary>All, from the second step on: `backward` adds to what is there.</details>
# 3. Add `sin`. What does it need?
#    <details><summary>Answer</summary>A class with `cpu` and `grad_x`, which returns $g \cos x$. To differentiate that
#    twice, `cos` too.</details>
#
# ## Where it stands in the code
#
# - `tinyattn/op.py`: `Op`, the node, and `Op.__call__`, which records it
# - `tinyattn/autograd.py`: `walk`, `_count_uses`, `_send`, which sums
# - `tinyattn/ops/binary.py`: `Add`, `Sub`, `Mul`, `Div`
# - `tinyattn/ops/unary.py`: `Exp`, `Log`, `Tanh`, `Relu`
