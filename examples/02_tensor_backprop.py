# %% [markdown]
# # 2. From scalars to arrays: broadcasting, products, shapes
#
# A gradient has the shape of its tensor. Every rule for arrays follows from the rule for scalars by summing over the
# uses of each element: a broadcast becomes a sum, and the gradients of a matrix product are two matrix products.

# %%
import numpy as np
from lesson import show

import tinyattn as ta
from viz import graph

rng = np.random.default_rng(0)

# %% [markdown]
# ## Broadcasting is use, so its gradient is a sum
#
# In $y_{ij} = x_{ij} + b_j$ each $b_j$ is used once in every row $i$. Its gradient is the sum over these uses, with
# $g_{ij} = \partial L / \partial y_{ij}$:
#
# $$\frac{\partial L}{\partial b_j} = \sum_i g_{ij}$$
#
# No operation of the graph stretches $b$. The kernel reads it again and again, and the walk sums a gradient that is
# larger than its tensor.

# %%
x = ta.Tensor(rng.normal(size=(2, 3)), requires_grad=True, name="x")   # (2, 3)
b = ta.Tensor(rng.normal(size=3), requires_grad=True, name="b")        # (3,)
g = rng.normal(size=(2, 3))                                            # (2, 3), any gradient
(x + b).backward(g)

by_hand = np.zeros(3)
for i in range(2):
    for j in range(3):
        by_hand[j] += g[i, j]
print("the gradient of b", b.grad.numpy(), "has the shape of b:", b.grad.shape)
assert np.allclose(b.grad.numpy(), by_hand) and b.grad.shape == b.shape
assert np.allclose(x.grad.numpy(), g)

# %% [markdown]
# The other way round it holds too: the gradient of a sum is a broadcast. In $y_j = \sum_i x_{ij}$ each $x_{ij}$ is used
# once, in $y_j$, so $\partial L / \partial x_{ij} = g_j$. Summing and broadcasting are each other's transpose.

# %%
x.grad = None
x.sum(axis=0).backward(g[0])
print(x.grad.numpy())
assert np.allclose(x.grad.numpy(), np.broadcast_to(g[0], (2, 3)))

# %% [markdown]
# Which axes are summed? Those along which the tensor was stretched, seen from the right: axes that it has not, and axes
# of size 1.

# %% [drawing]
rows = ["| shape of b | x * b, x of shape (4, 2, 3) | summed over the axes | gradient of b |",
        "|---|---|---|---|"]
for shape, axes in [((3,), (0, 1)), ((2, 1), (0, 2)), ((4, 1, 1), (1, 2)), ((), (0, 1, 2))]:
    large = ta.Tensor(rng.normal(size=(4, 2, 3)))
    small = ta.Tensor(rng.normal(size=shape), requires_grad=True)
    y = large * small
    y.sum().backward()
    expected = large.numpy().sum(axis=axes).reshape(shape)
    assert np.allclose(small.grad.numpy(), expected), shape
    rows.append(f"| {shape} | {y.shape} | {axes} | {small.grad.shape} |")
table = "\n".join(rows)

# %% [markdown]
# {{table}}
#
# ## The rules of a matrix product, index by index
#
# $$C_{ij} = \sum_k A_{ik} B_{kj}$$
#
# Where is $A_{ik}$ used? In every $C_{ij}$ of row $i$, each time multiplied by $B_{kj}$. So
#
# $$\frac{\partial L}{\partial A_{ik}} = \sum_j g_{ij} B_{kj} \qquad \text{that is} \qquad
# \frac{\partial L}{\partial A} = g B^{\top}$$
#
# And $B_{kj}$ is used in every $C_{ij}$ of column $j$, multiplied by $A_{ik}$:
#
# $$\frac{\partial L}{\partial B_{kj}} = \sum_i A_{ik} g_{ij} \qquad \text{that is} \qquad
# \frac{\partial L}{\partial B} = A^{\top} g$$

# %%
A = ta.Tensor(rng.normal(size=(2, 4)), requires_grad=True)             # (i, k)
B = ta.Tensor(rng.normal(size=(4, 3)), requires_grad=True)             # (k, j)
(A @ B).backward(g)                                                    # (i, j)

grad_A, grad_B = np.zeros((2, 4)), np.zeros((4, 3))
for i in range(2):
    for j in range(3):
        for k in range(4):
            grad_A[i, k] += g[i, j] * B.numpy()[k, j]
            grad_B[k, j] += A.numpy()[i, k] * g[i, j]
assert np.allclose(A.grad.numpy(), grad_A) and np.allclose(A.grad.numpy(), g @ B.numpy().T)
assert np.allclose(B.grad.numpy(), grad_B) and np.allclose(B.grad.numpy(), A.numpy().T @ g)
print(f"largest difference to the loops: {np.abs(A.grad.numpy() - grad_A).max():.0e}")

# %% [markdown]
# Nobody needs to learn the two rules by heart: of $g$ $(i, j)$ and $B$ $(k, j)$ only $g B^{\top}$ has the shape
# $(i, k)$ of $A$. Shapes check a derivation before any number does.
#
# A layer has it all: a product, a broadcast bias, a curve, a sum.

# %%
w = ta.Tensor(rng.normal(size=(3, 2)), requires_grad=True, name="w")
bias = ta.Tensor(np.zeros(2), requires_grad=True, name="b")
data = ta.Tensor(rng.normal(size=(5, 3)), name="x")
loss = (data @ w + bias).tanh().sum()
show(graph(loss, direction="LR"), "layer",
     "A layer. The edge from b says that (2,) was stretched to (5, 2).")

# %% [markdown]
# ## The backward pass is a graph
#
# Rules are written in Tensor algebra. With `create_graph=True` they are recorded like any other computation, and can be
# drawn, or differentiated once more.

# %%
show(graph(loss, backward=True), "backward",
     "The same layer with its backward pass. Dotted edges bring what the forward pass kept.")

# %% [markdown]
# A Hessian $H$ of $n$ parameters has $n^2$ numbers, but $H v$ for one vector $v$ is a gradient of a gradient:
#
# $$H v = \frac{\partial}{\partial w} \left( \frac{\partial L}{\partial w} \cdot v \right)$$

# %%
v = ta.Tensor(rng.normal(size=(3, 2)))
first, = ta.grad(loss, [w], create_graph=True)                         # dL/dw, (3, 2)
product, = ta.grad((first * v).sum(), [w])                             # H v, (3, 2)


def slope(step):
    """dL/dw where w has moved by a step along v."""
    moved = ta.Tensor(w.numpy() + step * v.numpy(), requires_grad=True)
    return ta.grad((data @ moved + bias).tanh().sum(), [moved])[0].numpy()


by_difference = (slope(1e-5) - slope(-1e-5)) / 2e-5
error = np.abs(product.numpy() - by_difference).max()
print(f"largest difference to a difference of gradients: {error:.0e}")
assert error < 1e-8

# %% [markdown]
# ## What to take home
#
# - A gradient has the shape of its tensor. If a broadcast made the result larger, the gradient is summed back.
# - For $C = AB$: $\partial L / \partial A = g B^{\top}$, $\partial L / \partial B = A^{\top} g$.
#   The shapes leave no choice.
# - Summing and broadcasting are each other's gradient.
#
# ## Questions
#
# 1. `y = x * x.sum()`, with x of shape (3,). How many uses has each element of x?
#    <details><summary>Answer</summary>Four: once as itself, and once in the sum, which is used for all three
#    outputs.</details>
# 2. What is the gradient of `x.transpose()`?
#    <details><summary>Answer</summary>The incoming gradient, transposed: each element is used once, at the mirrored
#    place.</details>
#
# To do it yourself: `tinyattn exercise broadcast_rule` and `tinyattn exercise matmul_rules`;
# `tinyattn check FILE.py` marks what you wrote.
#
# ## Where it stands in the code
#
# - `tinyattn/autograd.py`: `_summed`, called by `_send`, sums what was broadcast
# - `tinyattn/ops/matmul.py`: `MatMul.grad_a`, `MatMul.grad_b`
# - `tinyattn/tensor.py`: `Tensor.sum_to`
# - `tinyattn/gradcheck.py`: `gradcheck`, `gradgradcheck` compare all rules with differences
