# %% [markdown]
# # 4. Softmax and its gradient
#
# Softmax turns scores into weights. Computed as it is written it fails at scores of 1,000; shifted by the largest score
# it never does. Its Jacobian is $\mathrm{diag}(p) - p\,p^{\top}$, but nobody needs to build it: one sum is enough.

# %%
import numpy as np
from lesson import show

import tinyattn as ta
from viz.plot import figure, signed_colours

# %% [markdown]
# $$p_j = \frac{e^{x_j}}{\sum_k e^{x_k}}$$
#
# ## The shift
#
# Multiply above and below by $e^{-m}$: nothing changes. So softmax does not know how high its scores lie, only how far
# they lie apart, and we are free to choose $m = \max_k x_k$. Then the largest exponent is 0, and nothing overflows.

# %%


def naive(x):
    e = x.exp()
    return e / e.sum(axis=-1, keepdims=True)


def shifted(x):
    m = x.max(axis=-1, keepdims=True).detach()        # a constant: p does not depend on it
    return naive(x - m)


x = ta.Tensor([1.0, 2.0, 4.0], requires_grad=True, dtype="float64")
large = ta.Tensor([1e4, 1e4 - 1, 0.0], requires_grad=True, dtype="float64")
with np.errstate(all="ignore"):
    failed = naive(large)
print("scores 1, 2, 4:       ", naive(x).numpy().round(4), shifted(x).numpy().round(4))
print("scores 1e4, 1e4-1, 0: ", failed.numpy().round(4), shifted(large).numpy().round(4))
assert np.allclose(naive(x).numpy(), shifted(x).numpy(), rtol=1e-12)
assert np.isnan(failed.numpy()).any()
limit = next(s for s in range(200) if np.log(np.finfo("float32").max) < s)
assert np.allclose(shifted(large).numpy(), large.softmax().numpy())
assert np.allclose(x.softmax().numpy(), (x + 7.0).softmax().numpy())

# %% [markdown]
# `inf / inf` is nan, and one nan in the weights makes everything behind them nan. In float32 it takes a score
# of {{limit}}.
#
# The logarithm of the sum, which losses need, has the same cure:
#
# $$\log \sum_k e^{x_k} = m + \log \sum_k e^{x_k - m}$$

# %%
m = large.numpy().max()
by_hand = m + np.log(np.exp(large.numpy() - m).sum())
print(f"log-sum-exp: {by_hand:.4f}, the package: {large.logsumexp().item():.4f}")
assert np.isclose(large.logsumexp().item(), by_hand) and np.isfinite(by_hand)

# %% [markdown]
# ## The Jacobian
#
# How does $p_i$ change with $x_j$? Differentiate the quotient. The numerator depends on $x_j$ only if $i = j$, the
# denominator always, with derivative $e^{x_j}$:
#
# $$\frac{\partial p_i}{\partial x_j} = p_i (\delta_{ij} - p_j), \qquad J = \mathrm{diag}(p) - p\,p^{\top}$$

# %%
p = x.softmax()
J = np.diag(p.numpy()) - np.outer(p.numpy(), p.numpy())
rows = [ta.grad(p, [x], [unit])[0].numpy() for unit in np.eye(3)]  # the engine, row by row
step = 1e-6
differences = np.stack([(ta.Tensor(x.numpy() + step * u).softmax().numpy()
                         - ta.Tensor(x.numpy() - step * u).softmax().numpy()) / (2 * step)
                        for u in np.eye(3)], axis=1)
print(J.round(4))
assert np.allclose(J, rows, atol=1e-15) and np.allclose(J, differences, atol=1e-9)
assert np.allclose(J.sum(0), 0) and np.allclose(J.sum(1), 0) and np.allclose(J, J.T)

# %% [drawing]
fig = figure(8.4, 3.1)
left, right = fig.add_axes((0.07, 0.16, 0.34, 0.68)), fig.add_axes((0.53, 0.16, 0.38, 0.68))
left.bar(["1", "2", "4"], p.numpy(), color="#0072B2", width=0.6)
for i, height in enumerate(p.numpy()):
    left.text(i, height + 0.02, f"{height:.3f}", ha="center", fontsize=12)
left.set_ylim(0, 1.08)
left.set_title("weights p of the scores 1, 2, 4", fontsize=13)
left.spines[["top", "right"]].set_visible(False)
image = right.imshow(J, cmap=signed_colours(), vmin=-0.2, vmax=0.2)
for (i, j), number in np.ndenumerate(J):
    right.text(j, i, f"{number:+.3f}", ha="center", va="center", fontsize=12)
right.set_xticks(range(3), ["$x_1$", "$x_2$", "$x_3$"], fontsize=13)
right.set_yticks(range(3), ["$p_1$", "$p_2$", "$p_3$"], fontsize=13)
right.set_title("$\\partial p_i / \\partial x_j$", fontsize=13)
left.tick_params(labelsize=12)
fig.colorbar(image, ax=right)
show(fig, "jacobian", "Raising a score raises its own weight and lowers the others: each row and column sums to 0.")

# %% [markdown]
# The rows sum to 0 because a shift of all scores changes nothing, the columns because the weights always sum to 1.
#
# ## The rule: one sum in place of a matrix
#
# Back-propagation never needs $J$, only what it does to the gradient $g$ that comes in:
#
# $$\frac{\partial L}{\partial x_j} = \sum_i g_i \, p_i (\delta_{ij} - p_j) = g_j p_j - p_j \sum_i g_i p_i$$
#
# With $y$ for the output this is `g * y - y * sum(g * y)`. A row of $n$ weights costs about $3n$ steps, and the matrix
# would have had $n^2$ elements. The sum is the mean of $g$ under the weights: a score rises if its $g_j$ is better than
# the mean.

# %%
g = np.array([0.5, -1.0, 2.0])
y = p.numpy()
by_rule = g * y - y * (g * y).sum()
by_engine = ta.grad(p, [x], [g])[0].numpy()
print("by the matrix:", (g @ J).round(5), "  by the rule:", by_rule.round(5))
assert np.allclose(by_rule, g @ J) and np.allclose(by_rule, by_engine, atol=1e-15)

# %% [markdown]
# The shift must be a constant in the graph, and is: `detach` in `shifted`. If it were not, the result would be the
# same, for a shift has slope 0, and only work would be lost. The gradient of the naive form is lost too, of course:

# %%
with np.errstate(all="ignore"):
    naive(large)[0].backward()
lost = large.grad.numpy()
large.grad = None
large.softmax()[0].backward()
kept = large.grad.numpy()
print("naive:", lost, "  package:", kept.round(4))
assert np.isnan(lost).any() and np.isfinite(kept).all()

# %% [markdown]
# ## Cross-entropy: the weights minus the truth
#
# The loss of the right class $t$ is $L = -\log p_t = \log \sum_k e^{x_k} - x_t$. The first term has the gradient $p$,
# the second $-1$ at $t$:
#
# $$\frac{\partial L}{\partial x} = p - \mathrm{onehot}(t)$$
#
# No division by $p_t$ is left. So loss and softmax are one operation: taken one after the other, $\log p_t$ is
# $-\infty$ as soon as $p_t$ is too small for a float, and learning stops where it is needed most.

# %%
loss = ta.cross_entropy(x, ta.Tensor(0))
x.grad = None
loss.backward()
print(f"loss {loss.item():.4f}, gradient {x.grad.numpy().round(4)}")
assert np.allclose(x.grad.numpy(), y - np.array([1, 0, 0]), atol=1e-15)

wrong = ta.Tensor([0.0, 1000.0], requires_grad=True, dtype="float64")   # sure, and wrong
with np.errstate(all="ignore"):
    two_steps = -wrong.softmax()[0].log()
one_step = ta.cross_entropy(wrong, ta.Tensor(0))
one_step.backward()
print("softmax, then log:", two_steps.item())
print("in one step:      ", one_step.item(), " gradient", wrong.grad.numpy())
assert two_steps.item() == np.inf and one_step.item() == 1000 and wrong.grad.tolist() == [-1, 1]

# %% [markdown]
# ## Saturation
#
# If one weight is nearly 1, all of $J$ is nearly 0: no score gets a gradient any more. Multiply the scores 1, 2, 4 by a
# factor $s$:

# %%
factors = np.array([0.25, 0.5, 1, 2, 4, 8])
sizes = []
for s in factors:
    q = ta.Tensor(x.numpy() * s).softmax().numpy()
    sizes.append(np.abs(np.diag(q) - np.outer(q, q)).max())
    print(f"s = {s:4}   largest weight {q.max():.6f}   largest derivative {sizes[-1]:.2e}")
assert sizes[-1] < 1e-6 < 0.1 < sizes[0]

# %% [markdown]
# That is why scores must not grow with the width of a network: [lesson 6](06_additive_against_dot.html).
#
# ## What to take home
#
# - Subtract the largest score first. Softmax sees differences only, so nothing is lost.
# - The gradient of the scores is $p \odot (g - \langle g, p \rangle)$: one sum, no matrix.
# - Cross-entropy with softmax has the gradient $p - \mathrm{onehot}$. Sharp weights have hardly any.
#
# ## Questions
#
# 1. What is the gradient of the scores if $g$ is the same everywhere?
#    <details><summary>Answer</summary>0: the weights sum to 1 whatever the scores, so their sum cannot be
#    moved.</details>
# 2. Two scores are equal and all others far below. What is $J$ there?
#    <details><summary>Answer</summary>With both weights 1/2 the four numbers are 1/4 and -1/4; all else is 0.</details>
# 3. Why is $p_t$ never exactly 0 on paper, but is in floats?
#    <details><summary>Answer</summary>Below about 10 to the power -324 (float64) there is no number but 0: a gap of 746
#    between two scores is enough.</details>
#
# To do it yourself: `tinyattn exercise softmax_rule` and `tinyattn exercise layer_norm_rule`;
# `tinyattn check FILE.py` marks what you wrote.
#
# ## Where it stands in the code
#
# - `tinyattn/ops/softmax.py`: `Softmax.grad_x`, the rule, and `Softmax.composed`, the shift; `LogSumExp`
# - `tinyattn/ops/loss.py`: `CrossEntropy`
# - `tests/test_softmax_loss_norm.py`: scores of 1e4, rows of -inf
