# %% [markdown]
# # 5. One attention, by hand
#
# Attention is a weighted mean whose weights are computed from the data. Forward it is two matrix products with a
# softmax between them; backward it is four products and the softmax's rule. Three tokens and numbers of one digit are
# enough to see all of it.

# %%
import numpy as np
from lesson import show

from tinyattn import Tensor, capture
from tinyattn.attention import find
from tinyattn.functional import linear
from viz import panels, steps
from viz.attention.matrix import matrix
from viz.plot import figure

words = ["she", "ate", "fish"]
q = np.array([[2.0, 0, 0, 1], [0, 2, 1, 0], [1, 1, 0, 0]])   # (T, D) what each word asks for
k = np.array([[1.0, 0, 0, 0], [0, 1, 1, 0], [1, 1, 0, 2]])   # (S, D) what each word offers
v = np.array([[1.0, 0], [0, 2], [3, 1]])                     # (S, E) what is read there

# %% [markdown]
# In a network $q$, $k$ and $v$ are three linear maps of the same words. Here they are written down. $T$ counts queries,
# $S$ keys (here both 3), $D = 4$ is the width of queries and keys, $E = 2$ that of values.
#
# ## Forward
#
# **Scores.** How well does query $t$ match key $s$? The dot product says it, divided by $\sqrt{D} = 2$:
#
# $$e_{ts} = \frac{1}{\sqrt{D}} \sum_d q_{td} \, k_{sd}$$

# %%
e = q @ k.T / 2                                              # (T, S)
print(e)
assert e[0, 2] == (2 * 1 + 0 * 1 + 0 * 0 + 1 * 2) / 2 == 2

# %% [markdown]
# Check one: "she" asks with (2, 0, 0, 1), "fish" offers (1, 1, 0, 2): $(2 + 0 + 0 + 2) / 2 = 2$.
#
# **Weights.** A softmax along each row: each query shares out one unit among the keys.
#
# $$\alpha_{ts} = \frac{e^{e_{ts}}}{\sum_j e^{e_{tj}}}$$

# %%
alpha = np.exp(e) / np.exp(e).sum(1, keepdims=True)          # (T, S)
print(alpha.round(3))
assert np.allclose(alpha.sum(1), 1)

# %% [markdown]
# "she" gives "fish" $e^2 / (e^1 + e^0 + e^2) = 7.39 / (2.72 + 1 + 7.39) = {{alpha[0, 2]:.3f}}$.
#
# **Context.** The mean of the values under the weights:
#
# $$c_t = \sum_s \alpha_{ts} v_s$$

# %%
c = alpha @ v                                                # (T, E)
print(c.round(3))
for t in range(3):
    assert np.allclose(c[t], sum(alpha[t, s] * v[s] for s in range(3)))

# %% [markdown]
# That is all. The package's `scaled_dot` gives the same numbers, and a `capture()` shows what went on inside:

# %%
scaled_dot = find("scaled_dot")
Q, K, V = (Tensor(x[None], requires_grad=True) for x in (q, k, v))   # a batch of one: (1, 3, 4)
with capture() as seen:
    out = scaled_dot(Q, K, V)                                # (1, T, E)
assert np.allclose(out.numpy()[0], c)
assert np.allclose(seen["weights"][0].numpy()[0], alpha)
show(panels(seen, rows=words, columns=words), "panels",
     "Scores and weights. Rows ask, columns are asked; nothing is masked here.")

# %% [markdown]
# ## Backward
#
# Let a gradient $g_{te} = \partial L / \partial c_{te}$ come in. Each step has a rule from the lessons before.
#
# The context is a product, so both factors get one:
#
# $$\frac{\partial L}{\partial v_{se}} = \sum_t \alpha_{ts} \, g_{te}, \qquad
# \frac{\partial L}{\partial \alpha_{ts}} = \sum_e g_{te} \, v_{se}$$

# %%
g = np.array([[1.0, 0], [0, 0], [0, 1]])                     # (T, E)
grad_v = alpha.T @ g                                         # (S, E)
grad_alpha = g @ v.T                                         # (T, S)
print(grad_alpha)

# %% [markdown]
# The first row of this gradient is the first column of $v$: (1, 0, 3). More weight on "fish", whose value is 3 there,
# raises the first number of what "she" reads most.
#
# The softmax, row by row (lesson 4): what counts is how much better than the mean a key is.
#
# $$\frac{\partial L}{\partial e_{ts}} = \alpha_{ts} \left( \frac{\partial L}{\partial \alpha_{ts}}
# - \sum_j \alpha_{tj} \frac{\partial L}{\partial \alpha_{tj}} \right)$$

# %%
mean = (alpha * grad_alpha).sum(1, keepdims=True)            # (T, 1)
grad_e = alpha * (grad_alpha - mean)                         # (T, S)
print(grad_e.round(3))
assert np.allclose(grad_e.sum(1), 0)
assert np.allclose(mean[:, 0], (g * c).sum(1))               # the mean is <g, c>

# %% [markdown]
# For "she" the mean is {{mean[0, 0]:.3f}}. "fish" offers 3, more than that, so its score should rise; the others'
# should fall. The second row is 0: no gradient came in there.
#
# The scores are a product again, with $1 / \sqrt{D}$:
#
# $$\frac{\partial L}{\partial q_{td}} = \frac{1}{\sqrt{D}} \sum_s \frac{\partial L}{\partial e_{ts}} k_{sd}, \qquad
# \frac{\partial L}{\partial k_{sd}} = \frac{1}{\sqrt{D}} \sum_t \frac{\partial L}{\partial e_{ts}} q_{td}$$

# %%
grad_q = grad_e @ k / 2                                      # (T, D)
grad_k = grad_e.T @ q / 2                                    # (S, D)

out.backward(g[None])
for name, hand, tensor in [("q", grad_q, Q), ("k", grad_k, K), ("v", grad_v, V)]:
    error = np.abs(hand - tensor.grad.numpy()[0]).max()
    print(f"gradient of {name}: by hand and by the engine differ by {error:.0e}")
    assert error < 1e-14

# %% [markdown]
# The whole computation on one page. Forward from left to right in the upper row, backward from right to left in the
# lower one; each gradient stands under what it belongs to.

# %% [drawing]
fig = figure(12.6, 4.9)
upper = [("q", q), ("k", k), ("v", v), ("scores e", e), ("weights α", alpha), ("context c", c)]
lower = [grad_q, grad_k, grad_v, grad_e, grad_alpha, g]
x = 0.055
for (name, values), slope in zip(upper, lower, strict=True):
    width = values.shape[1] * 0.0425
    keys = name in ("scores e", "weights α")
    for y, what, text in ((0.56, values, name), (0.06, slope, f"∂L/∂{name.split()[-1]}")):
        axes = fig.add_axes((x, y, width, 0.30))
        matrix(axes, what, words if x < 0.1 else None, words if keys else None, size=12, signed=True,
               bound=3, numbers="{:.2f}" if (what % 1).any() else "{:.0f}")
        fig.text(x, y + (0.42 if keys else 0.325), text, fontsize=14, weight="bold")
    x += width + 0.026
show(fig, "whole", "One attention, forward (above) and backward (below). Orange is below 0, violet above.")

# %% [markdown]
# And node by node, for a single query that looks at three words. Step through it: what comes in, what each rule makes
# of it, what has been summed up.

# %%
q1, k1, v1 = (Tensor(x, requires_grad=True) for x in (q[:1], k, v))
s1 = linear(q1, k1)                                          # (1, S) q k^T
e1 = s1 / 2.0                                                # (1, S)
a1 = e1.softmax()                                            # (1, S)
c1 = a1 @ v1                                                 # (1, E)
walk = steps(c1[0, 0], {"q": q1, "k": k1, "v": v1, "s": s1, "e": e1, "α": a1, "c": c1},
             title="The query of “she”, step by step",
             labels={"α": (["she"], words), "e": (["she"], words),
                     "k": (words, None), "v": (words, None)})
show(walk, "steps", "The first number of what “she” reads, forward and then backward.")

# %% [markdown]
# ## What to take home
#
# - Scores, softmax, mean: $c = \mathrm{softmax}(q k^{\top} / \sqrt{D}) \, v$.
# - Values learn through the weights they got. Queries and keys learn only through the scores.
# - A score rises if its value serves the loss better than what is read on average.
#
# ## Questions
#
# 1. What is the gradient of the scores if all values are equal?
#    <details><summary>Answer</summary>0. The mean does not depend on the weights then, so there is nothing to
#    learn about where to look.</details>
# 2. Which gradients are 0 if one weight of a row is exactly 1?
#    <details><summary>Answer</summary>Those of the scores of that row, so the query gets none. The value that was read
#    gets all of $g$.</details>
# 3. Rows of $\alpha$ sum to 1. What do its columns sum to?
#    <details><summary>Answer</summary>To how much is read of each word, by all queries together. Nothing makes that
#    1.</details>
#
# To do it yourself: `tinyattn exercise attention`; `tinyattn check FILE.py` marks what you wrote.
#
# ## Where it stands in the code
#
# - `tinyattn/attention/scaled_dot.py`: `scaled_dot`, `scores`, and `reference`, the same in loops
# - `tinyattn/attention/core.py`: `weigh`, `weights_of`
# - `tinyattn/ops/attention.py`: `Attention.cpu_grad`, these rules without a T x S matrix in memory
