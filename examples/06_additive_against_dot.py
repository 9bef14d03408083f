# %% [markdown]
# # 6. Additive against dot
#
# A dot product can only ask for *more* of something; a small network can ask for *just that much*, and
# costs more. And a dot product must be divided by $\sqrt{D}$, or wide vectors leave no gradient.

# %%
import time

import numpy as np
from lesson import show

import tinyattn as ta
from tinyattn import Tensor
from tinyattn.attention.additive import scores as additive_scores
from tinyattn.attention.scaled_dot import scores as scaled_scores
from viz.plot import COLOURS, MARKS, bare, figure

rng = np.random.default_rng(0)


def dot_scores(q, k):
    return q @ k.transpose()

# %% [markdown]
# $$e_{ts} = q_t^{\top} k_s \qquad \text{or} \qquad e_{ts} = v_a^{\top} \tanh(W_q q_t + W_k k_s)$$
#
# The first is Luong's *dot* (2015), with a divisor $\sqrt{D}$ the Transformer's (Vaswani et al. 2017). The second is
# *additive* (Bahdanau et al. 2015): a network with one hidden layer of $A$ units.
#
# ## What each can score
#
# Let keys be places on a line, from -2 to 2, and let each query ask for its own place. For a given query the dot
# product is a linear function of the key, so its largest value stands at one of the two ends, whatever the query is:

# %%
places = np.linspace(-2, 2, 9)
line = Tensor(places[:, None])                              # (9, 1), queries and keys
by_dot = dot_scores(line, line).numpy()                     # (9, 9)
found = places[by_dot.argmax(1)]
print("asked for:", places)
print("found:    ", found)
assert set(found[places != 0]) == {-2, 2}

# %% [markdown]
# Two hidden units are enough to find the place. One rises where the key comes within 0.25 of the query, the other falls
# where it leaves again:
#
# $$e(q, k) = \tanh(4(q - k) + 1) - \tanh(4(q - k) - 1)$$
#
# A bias is written as a second number in the key that is always 1.

# %%
with_one = Tensor(np.stack([places, np.ones(9)], 1)[None])  # (1, 9, 2), keys with a 1
w_q = Tensor([[4.0], [4.0]], dtype="float64")               # (A, Q)
w_k = Tensor([[-4.0, 1.0], [-4.0, -1.0]], dtype="float64")  # (A, K)
v_a = Tensor([1.0, -1.0], dtype="float64")                  # (A,)
by_network = additive_scores(line[None], with_one @ w_k.T, w_q, v_a).numpy()[0]
assert (places[by_network.argmax(1)] == places).all()

# %% [drawing]
fig = figure(11, 4)
for i, (e, name) in enumerate([(by_dot, "dot: q k"), (by_network, "additive, two hidden units")]):
    axes = fig.add_axes((0.06 + 0.5 * i, 0.14, 0.42, 0.74))
    for n, t in enumerate((2, 4, 7)):
        axes.plot(places, e[t], marker=MARKS[n], color=COLOURS[n], label=f"q = {places[t]:g}")
    axes.set_title(name, fontsize=14)
    axes.set_xlabel("key", fontsize=13)
    axes.set_ylabel("score", fontsize=13)
    axes.legend(fontsize=12)
    bare(axes)
show(fig, "line", "Scores of nine keys on a line for three queries. Only the right ones have their top at the query.")

# %% [markdown]
# Is the dot product weaker, then? Not if what it compares is rich enough. With $q' = (2q, -1)$ and $k' = (k, k^2)$ it
# gives $2qk - k^2 = q^2 - (q - k)^2$, which is largest at $k = q$. Networks in front of the scores can learn such maps.
# So: the network of additive attention stands inside the score, that of dot-product attention in front of it, where it
# runs once for each word and not once for each pair.

# %%
richer_q = Tensor(np.stack([2 * places, -np.ones(9)], 1))   # (9, 2)
richer_k = Tensor(np.stack([places, places**2], 1))         # (9, 2)
by_richer = dot_scores(richer_q, richer_k).numpy()
assert (places[by_richer.argmax(1)] == places).all()

# %% [markdown]
# One more difference: a dot product has no bound, the network has. $|e_{ts}| \le \sum_a |v_a|$, since no tanh is beyond
# 1.

# %%
wild = Tensor(places[None, :, None] * 1000)
bounded = additive_scores(wild, with_one @ w_k.T * 1000, w_q, v_a).numpy()
print("largest score, inputs times 1000: dot", dot_scores(line * 1000, line * 1000).numpy().max(),
      " additive", np.abs(bounded).max())
assert np.abs(bounded).max() <= np.abs(v_a.numpy()).sum()

# %% [markdown]
# ## What it costs
#
# Both need $T S D$ multiplications or so. The network adds $T S A$ tanh, and no way is known to write them as a matrix
# product. Measured here, on this machine, one thread:

# %%
T = S = 512
D = A = 64
q = Tensor(rng.normal(size=(1, T, D)).astype("float32"), requires_grad=True)
k = Tensor(rng.normal(size=(1, S, D)).astype("float32"), requires_grad=True)
w = Tensor(rng.normal(size=(A, D)).astype("float32") / 8, requires_grad=True)
u = Tensor(rng.normal(size=A).astype("float32") / 8, requires_grad=True)


def milliseconds(call):
    """The shortest of nine calls; the first, which may compile, does not count."""
    call()
    taken = []
    for _ in range(9):
        begun = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begun)
    return 1e3 * min(taken)


threads = ta.get_num_threads()
ta.set_num_threads(1)
cost = {}
for name, call in {"dot": lambda: dot_scores(q, k),
                   "additive": lambda: additive_scores(q, k, w, u)}.items():
    cost[name] = milliseconds(call), milliseconds(lambda call=call: call().sum().backward())
ta.set_num_threads(threads)
for name, (forward, both) in cost.items():
    print(f"{name:9} forward {forward:7.2f} ms   with backward {both:7.2f} ms")
ratio = [cost["additive"][i] / cost["dot"][i] for i in (0, 1)]
assert min(ratio) > 1, ratio

# %% [markdown]
# For {{T}} queries and keys of width {{D}} the network took {{ratio[0]:.0f}} times as long forward, {{ratio[1]:.0f}}
# times with the backward pass. In a decoder that asks once a step, over 30 source words, nobody notices; over every
# pair of a long text it decides.
#
# ## Why $1 / \sqrt{D}$
#
# Let the numbers of $q$ and $k$ be independent, with mean 0 and variance 1. Each product $q_d k_d$ has variance 1, and
# variances of independent terms add:
#
# $$\mathrm{Var}(q^{\top} k) = D, \qquad \mathrm{Var}\left(\frac{q^{\top} k}{\sqrt{D}}\right) = 1$$
#
# So scores of width 256 are spread like $\pm 16$, the softmax puts nearly all weight on one key, and its Jacobian is
# nearly 0 ([lesson 4](04_softmax.html)). Sampled: 400 queries, 16 keys each.

# %%
widths = [4, 16, 64, 256, 1024]
names = ["dot", "scaled dot", "additive"]
variance, slope = {n: [] for n in names}, {n: [] for n in names}


def all_scores(D):
    """The three scores of random queries and keys of width D, (400, 1, 16) each."""
    q, k = Tensor(rng.normal(size=(400, 1, D))), Tensor(rng.normal(size=(400, 16, D)))
    w_q, w_k = (Tensor(rng.normal(size=(D, D)) / np.sqrt(D)) for _ in range(2))
    v_a = Tensor(rng.normal(size=D) / np.sqrt(D))
    return dot_scores(q, k), scaled_scores(q, k), additive_scores(q, k @ w_k.T, w_q, v_a)


for D in widths:
    for name, e in zip(names, all_scores(D), strict=True):
        e = Tensor(e.numpy(), requires_grad=True)
        values = Tensor(rng.normal(size=(400, 16, 1)))
        (e.softmax() @ values).sum().backward()
        variance[name].append(e.numpy().var())
        slope[name].append(np.abs(e.grad.numpy()).sum(-1).mean())   # |dc/de| of a query

for i, D in enumerate(widths):
    assert abs(variance["dot"][i] / D - 1) < 0.15, (D, variance["dot"][i])
    assert abs(variance["scaled dot"][i] - 1) < 0.15
    assert variance["additive"][i] < 2
assert slope["dot"][-1] < slope["dot"][0] / 4
assert min(slope["scaled dot"]) > 0.8 * max(slope["scaled dot"])

# %% [drawing]
rows = ["| D | variance: " + " | ".join(names) + " | gradient: " + " | ".join(names) + " |", "|---:" * 7 + "|"]
for i, D in enumerate(widths):
    numbers = [f"{variance[n][i]:.2f}" for n in names] + [f"{slope[n][i]:.3f}" for n in names]
    rows.append(f"| {D} | " + " | ".join(numbers) + " |")
table = "\n".join(rows)

# %% [markdown]
# {{table}}

# %% [drawing]
fig = figure(11, 4)
for i, (measured, title) in enumerate([(variance, "variance of the scores"), (slope, "gradient of the scores")]):
    axes = fig.add_axes((0.07 + 0.5 * i, 0.15, 0.41, 0.73))
    for n, name in enumerate(names):
        axes.plot(widths, measured[name], marker=MARKS[n], color=COLOURS[n], label=name)
    axes.set_xscale("log")
    axes.set_yscale("log" if i == 0 else "linear")
    if i:
        axes.set_ylim(0, 1)
    axes.set_xticks(widths, [str(D) for D in widths])
    axes.minorticks_off()
    axes.set_xlabel("width D", fontsize=13)
    axes.set_title(title, fontsize=14)
    axes.legend(fontsize=12)
    bare(axes)
show(fig, "width", "Without the divisor scores spread with the width, and the gradient behind the softmax fades.")

# %% [markdown]
# From width {{widths[0]}} to {{widths[-1]}} the gradient of the plain dot product shrinks by a factor of
# {{slope["dot"][0] / slope["dot"][-1]:.0f}}. The other two do not care: one is divided, the other's score is a sum of
# bounded terms, whose weights $v_a$ start with variance $1 / A$.
#
# ## What to take home
#
# - Dot: one matrix product; linear in the key. Additive: a network for each pair; any shape, bounded, slower.
# - The variance of a dot product is its width. Divide by $\sqrt{D}$ and the softmax stays where it can learn.
# - A network in front of the scores can make up for a plain score; that is the Transformer's bargain.
#
# ## Questions
#
# 1. Why divide by $\sqrt{D}$ and not by $D$?
#    <details><summary>Answer</summary>The variance would be 1/D: at width 1024 all scores are nearly equal,
#    and so are all weights.</details>
# 2. Queries and keys that have been trained are not independent. Is the divisor still right?
#    <details><summary>Answer</summary>It is right at the start, where training must get going. Later the
#    maps in front of the scores can set any size they like.</details>
#
# ## Where it stands in the code
#
# - `tinyattn/attention/dot.py`: `dot`
# - `tinyattn/attention/scaled_dot.py`: `scaled_dot`, `scores`
# - `tinyattn/attention/additive.py`: `additive`, `prepare`, which maps the keys once a sentence
# - `tinyattn/ops/additive.py`: `AdditiveScores`, the loop that never holds T x S x A numbers
