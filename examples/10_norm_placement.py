# %% [markdown]
# # 10. Norm before or after: where the LayerNorm stands decides how a deep stack trains
#
# With the norm after the sum, one step of Adam moves the output of a deep stack much further than with the norm before,
# and without warm-up the training gets stuck; with the norm on the branch, the sum stays free and training is easy.
#
# A Transformer layer wraps each sub-layer $f$ (attention, feed-forward) in a sum and a norm, in one of two orders:
#
# $$\text{post:}\quad x \leftarrow \mathrm{LN}(x + f(x))
# \qquad\qquad \text{pre:}\quad x \leftarrow x + f(\mathrm{LN}(x))$$
#
# "Attention is all you need" draws post-norm; much code, some of it by the same authors, does pre-norm. A pre-norm
# stack needs one more LN at its end.

# %%
import math

import numpy as np
from lesson import beside, show

from tinyattn import Tensor, cross_entropy, manual_seed, nn, optim
from tinyattn.models.transformer import EncoderLayer, PreNormEncoderLayer, Words
from viz import graph
from viz.plot import COLOURS, bare, figure

# %% [drawing]


def drawn(kind):
    layer, (x, mask) = kind.example(np.random.default_rng(0))
    x = Tensor(x.numpy(), requires_grad=True, dtype="float32")
    return graph(layer(x, mask), names={"x": x, **dict(layer.named_parameters())}, depth=2)


show(beside(drawn(EncoderLayer), drawn(PreNormEncoderLayer)), "layers",
     "An encoder layer with post-norm (left) and pre-norm (right), as the engine recorded them.")

# %% [markdown]
# Follow one line from top to bottom on the right: from $x$ to the end it passes two additions and nothing else. On the
# left each way from top to bottom goes through both norms.
#
# ## The size of the sum
#
# Post-norm brings every layer's output back to size 1. Under pre-norm each sub-layer adds something of about one
# size to a sum that is never scaled down, so the sum grows, like a random walk, about with the root of the depth: twice
# the depth, some 1.4 to 1.6 times the size.


# %%
N, HEADS, B, S, V = 32, 4, 8, 12, 20                 # width, heads, sentences, words, classes


class Stack(nn.Module):
    """L encoder layers and a classifier of words; with pre-norm one more LayerNorm before that."""

    def __init__(self, norm, L, classes=V, hidden=4 * N):
        self.layers = [EncoderLayer(N, HEADS, hidden, norm) for _ in range(L)]
        self.norm = nn.LayerNorm(N) if norm == "pre" else None
        self.classify = nn.Linear(N, classes)

    def forward(self, x):
        """x (B, S, N) to logits (B, S, classes); keeps the last hidden words and all sizes."""
        self.sizes = []
        for layer in self.layers:
            x = layer(x, None)
            self.sizes.append(float(np.sqrt(np.mean(x.numpy() ** 2))))
        self.last = x if self.norm is None else self.norm(x)
        return self.classify(self.last)

    @staticmethod
    def example(rng):
        return Stack("pre", 1), (Tensor(rng.normal(size=(2, 3, N))),)


def random_task(norm, L, seed):
    """A new stack, random words and classes for them, and the loss, differentiated."""
    manual_seed(seed)
    rng = np.random.default_rng(seed)
    stack = Stack(norm, L)
    x = Tensor(rng.normal(size=(B, S, N)).astype(np.float32))
    y = rng.integers(0, V, (B, S))
    cross_entropy(stack(x), y).backward()
    return stack, x


L = 24
sizes = {norm: random_task(norm, L, 0)[0].sizes for norm in ("post", "pre")}
print("after layer  ", *[f"{n:5}" for n in (1, 6, 12, 24)])
for norm, found in sizes.items():
    print(f"{norm:4} size    ", *[f"{found[n - 1]:5.2f}" for n in (1, 6, 12, 24)])
assert np.allclose(sizes["post"], 1, atol=0.02)
assert 1.3 < sizes["pre"][23] / sizes["pre"][11] < 1.7, "twice the depth"
assert 1.3 < sizes["pre"][11] / sizes["pre"][5] < 1.7, "twice the depth"

# %% [markdown]
# ## Gradients at the beginning
#
# Before any training: how large is the gradient of each layer? It is the mean over 4 random starts of the norm of the
# gradient of the feed-forward's last matrix, layer by layer, for stacks of 2 to 24 layers.


# %%
def slopes(norm, L):
    """The norm of the gradient of W_2 in each layer, (L,), and the mean over starts."""
    found = []
    for seed in range(4):
        stack, _ = random_task(norm, L, seed)
        parts = [layer.feed_forward.sublayer.out_of.weight.grad for layer in stack.layers]
        found.append([np.linalg.norm(g.numpy()) for g in parts])
    return np.mean(found, 0)


DEPTHS = (2, 6, 12, 24)
found = {(norm, L): slopes(norm, L) for norm in ("post", "pre") for L in DEPTHS}
print("gradient of the top layer, by depth")
print("     ", *[f"L = {L:<4}" for L in DEPTHS])
for norm in ("post", "pre"):
    print(f"{norm:5}", *[f"{found[norm, L][-1]:<8.3f}" for L in DEPTHS])
shrunk = {norm: found[norm, 24][-1] / found[norm, 2][-1] for norm in ("post", "pre")}
assert shrunk["post"] > 0.8, "post-norm: the top does not know how deep the stack is"
assert abs(shrunk["pre"] - np.sqrt(2 / 24)) < 0.1, "pre-norm: about as 1 / sqrt(L)"
assert min(found["post", 24]) > 0.5 * max(found["post", 24]), "none vanishes"

# %% [drawing]
fig = figure(11, 4)
axes = fig.subplots(1, 2)
for norm, colour, style in (("post", COLOURS[1], "s-"), ("pre", COLOURS[0], "o--")):
    axes[0].plot(range(1, 25), found[norm, 24], style, color=colour, label=f"{norm}-norm", markersize=5)
    top = [found[norm, L][-1] for L in DEPTHS]
    axes[1].plot(DEPTHS, top, style, color=colour, label=f"{norm}-norm")
axes[1].plot(DEPTHS, found["pre", 2][-1] * np.sqrt(2 / np.array(DEPTHS)), ":", color="black",
             label="falling as 1 / √L")
axes[0].set_title("24 layers: gradient by layer", size=13)
axes[0].set_xlabel("layer, from the input", size=12)
axes[1].set_title("the top layer: gradient by depth", size=13)
axes[1].set_xlabel("layers L", size=12)
axes[1].set_xticks(DEPTHS)
for one in axes:
    bare(one)
    one.set_ylim(0)
    one.legend(fontsize=11, frameon=False)
fig.tight_layout()
show(fig, "gradients",
     "Norm of the gradient of a feed-forward matrix before training, mean over 4 starts.")

# %% [markdown]
# With post-norm the gradient of the top layer does not fall with the depth; with pre-norm it falls about as
# $1 / \sqrt{L}$: the last LN divides by the size of the sum, which grows as $\sqrt{L}$. That is the theorem of Xiong et
# al. (2020), seen in numbers. What one often hears, that gradients *vanish* towards the input under post-norm, is
# **not** what is measured here: the left picture shows none so small at any layer. It depends on how the weights begin
# and on what attention passes on; measure your own network before you say so.
#
# ## One step of Adam
#
# But Adam divides by the size of the gradient, so a large gradient alone is no larger step. Ask the other way round:
# each weight moves by the learning rate, up or down. How far does the *output* of the stack move? Its size is 1.


# %%
def moved(norm, L, rate=1e-4):
    """How far the last words move by one step of Adam, root mean square, mean of 4 starts."""
    found = []
    for seed in range(4):
        stack, x = random_task(norm, L, seed)
        before = stack.last.numpy().copy()
        optim.Adam([p for layer in stack.layers for p in layer.parameters()], rate).step()
        stack(x)
        found.append(np.sqrt(np.mean((stack.last.numpy() - before) ** 2)))
    return float(np.mean(found))


print("one step with rate 0.0001 moves the output by")
print("     ", *[f"L = {L:<4}" for L in DEPTHS])
steps = {norm: [moved(norm, L) for L in DEPTHS] for norm in ("post", "pre")}
for norm, row in steps.items():
    print(f"{norm:5}", *[f"{one:<8.3f}" for one in row])
times = [post / pre for post, pre in zip(steps["post"], steps["pre"], strict=True)]
print("ratio", *[f"{one:<8.1f}" for one in times])
assert times[0] < 1.3 and times[-1] > 2.5, "the deeper, the worse for post-norm"
assert steps["post"][-1] > 0.2, "a step this small has moved the output by a good part of its size"

# %% [markdown]
# With two layers they hardly differ. With {{DEPTHS[-1]}} the post-norm stack moves {{times[-1]:.1f}} times as far as
# the pre-norm stack: by {{steps["post"][-1]:.2f}}, where the whole output has size 1, at a rate of one in ten thousand.
# Each norm brings the sum back to size 1, so what a changed layer adds is never small beside it, and the next layers
# pass it on; under pre-norm it is a small part of a long sum. (Liu et al. 2020 call it amplification.)
#
# ## A small training
#
# Six layers must write a word list in reverse: 6 words out of 8, Adam, a rate of 0.01. **Warm-up** means that the rate
# rises from 0 to 0.01 over the first 100 steps.


# %%
class Reverse(nn.Module):
    """Words with their places, and a stack: ids (B, S) to logits (B, S, V)."""

    def __init__(self, norm, L, V):
        self.words, self.stack = Words(V, N), Stack(norm, L, V, hidden=2 * N)

    def forward(self, ids):
        return self.stack(self.words(ids))

    @staticmethod
    def example(rng):
        return Reverse("pre", 1, 8), (Tensor(rng.integers(0, 8, (2, 6))),)


def trained(norm, warm, L=6, rate=0.01, steps=300, V=8, seed=0):
    """The loss at each step."""
    manual_seed(seed)
    rng, model, losses = np.random.default_rng(seed), Reverse(norm, L, V), []
    adam = optim.Adam(model.parameters(), rate)
    at = optim.learning_rate(rate, optim.warmup(warm)) if warm else (lambda step: rate)
    for step in range(1, steps + 1):
        ids = rng.integers(0, V, (32, 6))
        loss = cross_entropy(model(Tensor(ids)), ids[:, ::-1].copy())
        adam.zero_grad()
        loss.backward()
        adam.lr = at(step)
        adam.step()
        losses.append(loss.item())
    return np.array(losses)


runs = {(norm, warm): trained(norm, warm) for norm in ("post", "pre") for warm in (0, 100)}
ends = {run: losses[-40:].mean() for run, losses in runs.items()}
for (norm, warm), end in ends.items():
    print(f"{norm:4}  warm-up {warm:3} steps:  loss at the end {end:.2f}")
gentler = trained("post", 0, L=4, rate=0.005)[-40:].mean()
print(f"post, 4 layers, half the rate, no warm-up:  {gentler:.2f}")
print(f"a guess costs ln 8 = {math.log(8):.2f}")
assert ends["post", 0] > 1.0, "post-norm without warm-up is stuck"
assert max(ends["post", 100], ends["pre", 0], ends["pre", 100]) < 0.6, "the others learn"
assert gentler < 0.6, "it is depth and rate together"

# %% [drawing]
fig = figure(9, 4.2)
axes = fig.add_subplot()
for (norm, warm), losses in runs.items():
    smooth = np.convolve(losses, np.ones(15) / 15, "valid")
    axes.plot(np.arange(15, 301), smooth, "--" if warm else "-", linewidth=2,
              color=COLOURS[1] if norm == "post" else COLOURS[0],
              label=f"{norm}-norm, {'with' if warm else 'without'} warm-up")
bare(axes)
axes.set_xlabel("step", size=12)
axes.set_ylabel("loss (nats), mean of 15 steps", size=12)
axes.legend(fontsize=11, frameon=False)
fig.tight_layout()
show(fig, "training",
     "Six layers, rate 0.01: only post-norm without warm-up does not learn to reverse.")

# %% [markdown]
# With the same rate, reached slowly, post-norm learns. With 4 layers and half the rate it learns without warm-up too
# (loss {{gentler:.2f}}): depth and rate hurt together. Pre-norm forgives both.
#
# ## What to take home
#
# - Post: $\mathrm{LN}(x + f(x))$, in the way of the sum. Pre: $x + f(\mathrm{LN}(x))$, beside it, and one at the end.
# - At the start, the top layer's gradient does not fall with the depth (post), or falls as $1/\sqrt{L}$ (pre).
# - One step of Adam moves a deep post-norm stack several times as far. Hence the warm-up.
# - Read the code, not the drawing: text and code of well-known Transformers differ in just this.
#
# ## Questions
#
# 1. Why does a pre-norm stack need another LayerNorm at its end?
#    <details><summary>Answer</summary>
#
#    Its output is a sum that grows with the depth ({{sizes["pre"][-1]:.1f}} after 24 layers here). Without the norm the
#    logits would grow with it.
#
#    </details>
# 2. Would clipping the gradients to a smaller norm make Adam's first step smaller?
#    <details><summary>Answer</summary>
#
#    No. The first step is the rate times $g / (|g| + \epsilon)$ for each weight, so a factor common to all gradients
#    cancels. What warm-up changes is the rate itself.
#
#    </details>
#
# ## Where it stands in the code
#
# - `tinyattn/models/transformer.py`: `PostNorm`, `PreNorm`, `EncoderLayer`, `PreNormEncoderLayer`: the two wraps
# - `tinyattn/ops/norm.py`: `LayerNorm`: the norm and its gradient
# - `tinyattn/optim.py`: `Adam`, `warmup`, `learning_rate`: the step, and rates that depend on the step
