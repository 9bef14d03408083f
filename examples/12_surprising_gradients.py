# %% [markdown]
# # 12. Surprising gradients: each rule is right, and the answer is still not what you wanted
#
# At kinks, at the edge of a domain and in flat places a gradient needs a convention, or is infinite, or is 0 where one
# hoped for a push. Here is each such place, what tinyattn does there, and why.
#
# One helper does it all: the gradient of a function at a point.

# %%
import numpy as np
from lesson import show

from tinyattn import Tensor, cross_entropy, grad, layer_norm, maximum, no_grad, optim, where
from viz import graph
from viz.plot import COLOURS, bare, figure


def slope(f, *x):
    """The gradient of sum(f) at x; one array an argument. None: f does not depend on it."""
    x = [Tensor(np.array(one, float), requires_grad=True) for one in x]
    found = grad(f(*x).sum(), x, allow_unused=True)
    found = [None if g is None else g.numpy().copy() for g in found]
    return found[0] if len(found) == 1 else found


def same(found, expected):
    """Equal, nan and inf too."""
    np.testing.assert_array_equal(found, expected)


# %% [markdown]
# ## Kinks: what is the slope at a corner?
#
# $|x|$ has slope $-1$ on one side of 0 and $+1$ on the other. At 0 every number between is a *subgradient*: as good a
# slope as any. A program must choose one. In tinyattn **equal claims share equally** ($|x|$, `max`, `norm`); `relu`
# takes its flat side at 0, and `clip` its sloping side at both edges.

# %%
same(slope(abs, [-1, 0, 2]), [-1, 0, 1])             # the middle of -1 and 1
same(slope(lambda x: x.relu(), [-1, 0, 2]), [0, 0, 1])  # the flat side
same(slope(lambda x: x.max(), [3, 1, 3]), [0.5, 0, 0.5])  # two share the maximum
same(slope(maximum, 1, 1), [0.5, 0.5])
same(slope(lambda x: x.norm(), [0, 0]), [0, 0])      # the tip of a cone: its middle
same(slope(lambda x: x.clip(-1, 1), [-2, -1, 0, 1, 2]), [0, 1, 1, 1, 0])
print("max of [3, 1, 3]:", slope(lambda x: x.max(), [3, 1, 3]))
print("clip to -1 .. 1 at -2, -1, 0, 1, 2:", slope(lambda x: x.clip(-1, 1), [-2, -1, 0, 1, 2]))

# %% [drawing]
fig = figure(11, 3.2)
examples = [("|x|", abs, 1.0), ("relu(x)", lambda x: x.relu(), 1.0),
            ("clip(x, -1, 1)", lambda x: x.clip(-1, 1), 2.0), ("√x", lambda x: x.sqrt(), 1.0)]
for axes, (name, f, wide) in zip(fig.subplots(1, 4), examples, strict=True):
    at = np.linspace(-wide if name != "√x" else 0, wide, 201)
    kinks = [-1.0, 1.0] if "clip" in name else [0.0]
    slopes = slope(f, at)
    for kink in kinks:
        slopes[np.isclose(at, kink)] = np.nan        # the line breaks where a point is drawn
    axes.plot(at, f(Tensor(at)).numpy(), "-", color="black", label=name)
    axes.plot(at, np.where(slopes < 4, slopes, np.nan), "--", color=COLOURS[0], label="its slope")
    for kink in kinks:
        value = float(slope(f, kink))
        if np.isfinite(value):
            axes.plot([kink], [value], "o", color=COLOURS[1], markersize=8,
                      label="what is taken at the kink")
        else:
            axes.text(0.1, 3.1, "slope ∞ at 0", size=11, color=COLOURS[1])
    axes.set_title(name, size=13)
    bare(axes)
handles, labels = fig.axes[0].get_legend_handles_labels()
fig.legend(handles[1:], labels[1:], loc="lower center", ncols=2, fontsize=11, frameon=False)
fig.tight_layout(rect=(0, 0.09, 1, 1))
show(fig, "kinks",
     "Black: the function. Dashed: its slope. A dot: the slope that tinyattn takes at a kink.")

# %% [markdown]
# Sharing a tie matters less than it seems, since two floats are rarely equal; but they *are* equal in a max over padded
# zeros, over repeated words, over a layer that begins as zeros. `argmax` would have given it all to the first.
#
# At the edges of `clip` the slope is 1: a weight that sits exactly on its bound can still be pulled back inside. Beyond
# the edge it is 0, and the weight is stuck.
#
# ## `norm` has a gradient at 0; `sqrt` of a sum of squares has none
#
# $\lVert x \rVert = \sqrt{x_1^2 + x_2^2}$, twice the same formula. As one op its rule knows about the tip of the cone.
# As three ops each rule is right for itself, and together they give $\frac{1}{2 \sqrt 0} \cdot 2 \cdot 0 = \infty \cdot
# 0$:

# %%
same(slope(lambda x: x.sqrt(), [0, 4]), [np.inf, 0.25])  # a vertical tangent: inf is right
same(slope(lambda x: (x * x).sum().sqrt(), [0, 0]), [np.nan, np.nan])
same(slope(lambda x: x.norm(), [0, 0]), [0, 0])
eps = 1e-12
same(slope(lambda x: ((x * x).sum() + eps).sqrt(), [0, 0]), [0, 0])  # the usual way out
print("three ops:", slope(lambda x: (x * x).sum().sqrt(), [0, 0]))
print("one op:   ", slope(lambda x: x.norm(), [0, 0]))

# %% [markdown]
# The same happens to a standard deviation of equal numbers, $\sqrt{\mathrm{var}}$. That is what the $\varepsilon$ in a
# layer norm is for: not (only) against dividing by 0, but against this.

# %%
same(slope(lambda x: x.var().sqrt(), [5, 5, 5]), [np.nan] * 3)
assert np.isfinite(slope(lambda x: layer_norm(x), [5, 5, 5])).all()

# %% [markdown]
# ## `where` does not protect the branch that was not taken
#
# "The root where $x > 0$, else 0." Its value is right everywhere, and its gradient is nan where the root was never
# wanted:


# %%
def plain(x):
    return where(x > 0, x.sqrt(), 0.0)


def safe(x):
    return where(x > 0, where(x > 0, x, 1.0).sqrt(), 0.0)


at = [-1.0, 0.0, 4.0]
same(plain(Tensor(np.array(at))).numpy(), [0, 0, 2])
same(slope(plain, at), [np.nan, np.nan, 0.25])
same(slope(safe, at), [0, 0, 0.25])
print("where outside:          ", slope(plain, at))
print("where inside as well:   ", slope(safe, at))

# %% [drawing]
x = Tensor(np.array(at), requires_grad=True)
show(graph(plain(x), names={"x": x}, values=True, direction="LR"), "where",
     "All of the graph is computed, also the root of -1. On the way back it gets the gradient 0, and "
     "0 times ∞ is nan.")

# %% [markdown]
# `where` sends the gradient 0 into the root. The root multiplies by its own slope, which is nan at $-1$ and $\infty$ at
# 0, and $0 \cdot \infty$ is nan. Both rules are right. The way out is to give the root something harmless to work on
# *before* it: a `where` inside as well. Multiplying by a mask of 0 and 1 is no way out either, not even for the value:


# %%
def masked(x):
    return (x > 0).to("float64") * x.log()


same(masked(Tensor(np.array([0.0, 1.0]))).numpy(), [np.nan, 0])
same(slope(masked, [0, 1]), [np.nan, 1])

# %% [markdown]
# A masked softmax is safe because the mask is a part of the op: what is forbidden gets exactly 0 weight and 0 gradient,
# and a row in which all is forbidden is 0, not nan.

# %%
mask = Tensor(np.array([[True, False], [False, False]]))
scores = [[1.0, 2.0], [3.0, 4.0]]
same(Tensor(np.array(scores)).softmax(-1, mask).numpy(), [[1, 0], [0, 0]])
same(slope(lambda e: e.softmax(-1, mask) ** 2, scores), np.zeros((2, 2)))

# %% [markdown]
# ## Zeros in a product
#
# The slope of $\prod x_i$ by $x_j$ is the product of the *others*. Many write it as $\prod x / x_j$, which is $0 / 0$
# at a zero. With one zero only its own slope is not 0; with two all are 0.

# %%
same(slope(lambda x: x.prod(), [2, 0, 3]), [0, 6, 0])
same(slope(lambda x: x.prod(), [0, 0, 3]), [0, 0, 0])
same(slope(lambda x: x.log().sum().exp(), [2, 0, 3]), [0, np.nan, 0])  # through logarithms
print("prod at [2, 0, 3]:        ", slope(lambda x: x.prod(), [2, 0, 3]))
print("exp of the sum of logs:   ", slope(lambda x: x.log().sum().exp(), [2, 0, 3]))

# %% [markdown]
# Powers have the same corner. By the rule, the slope of $x^0$ is $0 \cdot x^{-1}$, and at 0 that would be
# $0 \cdot \infty$. But $x^0$ is 1 everywhere, so its slope is 0:

# %%
same(slope(lambda x: x**0, [0, 2]), [0, 0])
same(slope(lambda x: x**1, [0, 2]), [1, 1])
same(slope(lambda x: x**0.5, [0, 4]), [np.inf, 0.25])

# %% [markdown]
# ## Flat places: a gradient that is right, and useless
#
# A **saturated softmax** is certain. Its slope is 0 in floating point, and if it is certainly *wrong*, nothing pushes
# it back. The logarithm of it makes that nan; the cross-entropy, which is one op over the scores, gives the full push:

# %%
wrong = [1000.0, 0.0]                                # sure of class 0; class 1 is right
loss = {"softmax": lambda e: 1 - e.softmax(-1)[1],
        "log of softmax": lambda e: -e.softmax(-1)[1].log(),
        "log_softmax": lambda e: -e.log_softmax(-1)[1],
        "cross_entropy": lambda e: cross_entropy(e.reshape(1, 2), np.array([1]))}
found = {name: slope(f, wrong) for name, f in loss.items()}
for name, g in found.items():
    print(f"{name:15}", g)
same(found["softmax"], [0, 0])
same(found["log of softmax"], [np.nan, np.nan])
same(found["log_softmax"], [1, -1])
same(found["cross_entropy"], [1, -1])

# %% [markdown]
# **`argmax` and comparisons are steps.** Their slope is 0 wherever it exists, so they are no part of the graph at all.
# What is computed from them alone cannot be differentiated, and tinyattn says so:

# %%
x = Tensor(np.array([1.0, 3.0]), requires_grad=True)
assert not x.argmax().requires_grad and not (x > 2).requires_grad
try:
    grad(x.argmax().to("float64"), x)
except RuntimeError as error:
    print(error)
    said = str(error)
assert "does not depend on" in said

# %% [markdown]
# ## What is in the graph, and what is not
#
# **`detach`** makes a constant. $x \cdot x$ has slope $2x$; with one of the two detached it is $x$. That is no bug in
# the engine and a frequent one in programs.

# %%
same(slope(lambda x: x * x, 3), 6)
same(slope(lambda x: x * x.detach(), 3), 3)
assert slope(lambda x, y: x * y.detach(), 3, 5)[1] is None  # not 0: there is no way from y

# %% [markdown]
# **None is not 0.** A parameter that is not in the graph has no gradient; one that is in it may have the gradient 0. An
# optimiser leaves the first alone, and still moves the second by its momentum or its weight decay.

# %%
unused, flat = Tensor(1.0, requires_grad=True), Tensor(1.0, requires_grad=True)
(0 * flat).backward()
optim.SGD([unused, flat], lr=0.1, weight_decay=0.5).step()
print(f"after a step with weight decay: no gradient {unused.item()}, gradient 0 {flat.item():.2f}")
assert unused.grad is None and unused.item() == 1 and flat.item() < 1

# %% [markdown]
# **Broadcasting copies forward, so it sums backward.** A bias that was added to 3 rows gets 3 gradients, as a sum. A
# row that is taken twice from a table likewise.

# %%
same(slope(lambda x, b: x + b, np.ones((3, 2)), [0.0, 0.0])[1], [3, 3])
same(slope(lambda x: x[np.array([0, 0, 2])], [7, 8, 9]), [2, 0, 1])

# %% [markdown]
# **A second backward adds.** Gradients of leaves accumulate until they are set to None. That is the same sum, over two
# uses of the leaf, and it is how one trains with a batch that does not fit at once.

# %%
x = Tensor(2.0, requires_grad=True)
(x * x).backward()
(x * x).backward()
same(x.grad.numpy(), 8)

# %% [markdown]
# **Changing a Tensor in place** after it was used would make the recorded formula one of other numbers. It is caught at
# the backward pass:

# %%
x = Tensor(np.array([1.0, 2.0]), requires_grad=True)
loss_before = (x * x).sum()
with no_grad():
    x.add_(1.0)                                      # what an optimiser does
try:
    loss_before.backward()
except RuntimeError as error:
    said = str(error)
print(said.replace(". If", ".\nIf").replace(" had used it,", "\nhad used it,"))
assert "changed in place" in said and x.grad is None

# %% [markdown]
# ## And PyTorch?
#
# Conventions differ between libraries. If PyTorch is installed here, the next cell asks it the same questions.


# %%
def pytorchs(torch, f, x):
    x = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    f(torch, x).sum().backward()
    return x.grad.numpy()


QUESTIONS = {                                        # name: (tinyattn, PyTorch, where)
    "abs at 0": (abs, lambda t, x: x.abs(), [0.0]),
    "relu at 0": (lambda x: x.relu(), lambda t, x: x.relu(), [0.0]),
    "max of a tie": (lambda x: x.max(), lambda t, x: x.max(), [3.0, 1, 3]),
    "max of a tie, axis": (lambda x: x.max(axis=0), lambda t, x: x.max(dim=0)[0], [3.0, 1, 3]),
    "clip at its edge": (lambda x: x.clip(-1, 1), lambda t, x: x.clip(-1, 1), [-1.0, 1]),
    "norm at 0": (lambda x: x.norm(), lambda t, x: x.norm(), [0.0, 0]),
    "root of -1, not taken": (plain, lambda t, x: t.where(x > 0, x.sqrt(), 0.0), at),
    "prod with a zero": (lambda x: x.prod(), lambda t, x: x.prod(), [2.0, 0, 3]),
    "x ** 0 at 0": (lambda x: x**0, lambda t, x: x**0, [0.0]),
}
try:
    import torch
except ImportError:
    print("PyTorch is not installed here, so nothing is said about it.")
else:
    print(f"{'':24}{'tinyattn':22}PyTorch {torch.__version__}")
    for name, (ours, theirs, where_) in QUESTIONS.items():
        mine, its = slope(ours, where_), pytorchs(torch, theirs, where_)
        differs = "" if np.array_equal(mine, its, equal_nan=True) else "   <- another convention"
        print(f"{name:24}{str(mine):22}{its}{differs}")

# %% [markdown]
# ## What to take home
#
# - At a kink any number between the slopes of both sides is a right answer. Know which one your library takes.
# - The chain rule multiplies: $0 \cdot \infty$ is nan. Make the dangerous input harmless *before* the dangerous op.
# - One op with its own rule (norm, prod, masked softmax, cross-entropy) can be right where its parts are not.
# - A zero gradient, no gradient (None) and nan are three different messages.
#
# ## Questions
#
# 1. Why is `where(x > 0, x.log(), 0)` right in the forward pass and wrong in the backward pass?
#    <details><summary>Answer</summary>
#
#    The value is chosen, so the bad one is dropped. The gradient of the one that was not chosen is 0, but it is still
#    multiplied by the slope $1/x$, which is infinite at 0.
#
#    </details>
# 2. Max pooling over a sentence whose padding is 0 and whose other values are all negative: who gets the gradient?
#    <details><summary>Answer</summary>
#
#    The padding, shared out equally. The max should have been masked before, with $-\infty$ in place of 0.
#
#    </details>
# 3. A loss is nan from step 700 on. How do you find the op?
#    <details><summary>Answer</summary>
#
#    Run that step under `detect_anomaly()`: it stops at the first op, forward or backward, that makes a nan or an
#    infinity out of finite numbers.
#
#    </details>
#
# To find wrong rules yourself: `tinyattn exercise lab`; `tinyattn check FILE.py` marks what you wrote.
#
# ## Where it stands in the code
#
# - `tinyattn/ops/reduce.py`: `Extreme.grad_x`, `Norm.grad_x`, `Prod`: ties, the tip of the cone, zeros in a product
# - `tinyattn/ops/unary.py`: `Abs`, `Relu`, `Sqrt`: kinks and edges of functions of one number
# - `tinyattn/ops/select.py`: `Clip`: where the edges belong to the inside
# - `tinyattn/ops/softmax.py`: `Softmax`, `LogSoftmax`: the mask inside the op
# - `tinyattn/autograd.py`: `grad`, `changed`, `_check_unchanged`: None against 0, and changes in place
# - `tinyattn/gradcheck.py`: the checker, which recognises kinks
