# %% [markdown]
# # 9. Why several heads: one softmax cannot read two places apart
#
# A softmax gives one mean. A word that must know two things from two places gets them stirred together, whatever the
# weights are; two heads, each half as wide, bring them separately and cost no more parameters.
#
# ## A word with two needs
#
# There are $S$ words, each with a content $x_s$ of $d$ numbers, drawn at random. A query needs the content of place $i$
# *and* that of place $j$, in this order: the target is $[x_i;\ x_j]$, $2d$ numbers. (Think of a verb that needs its
# subject and its object.)
#
# One head reads $\sum_s w_s M x_s$, where $w$ are the weights and $M$ is all that values and output do, $W_o W_v$,
# a matrix of any width. Of what comes from place $i$ and from place $j$,
#
# $$w_i M x_i + w_j M x_j \;\stackrel{!}{=}\; \begin{pmatrix} x_i \\ x_j \end{pmatrix}
# \qquad\Longrightarrow\qquad w_i M = \begin{pmatrix} 1 \\ 0 \end{pmatrix}, \quad
# w_j M = \begin{pmatrix} 0 \\ 1 \end{pmatrix} .$$
#
# Both are multiples of *one* matrix $M$, so that cannot be. How near can it come? The upper half of $M$ is best as
# a number $m$ times the identity; its error for each number is $(w_i m - 1)^2 + (w_j m)^2$, least at
# $m = w_i / (w_i^2 + w_j^2)$, and then it is $w_j^2 / (w_i^2 + w_j^2)$. The lower half has $w_i^2 / (w_i^2 + w_j^2)$.
# Together that is **1, of 2, however the weight is shared out**: better for one need is exactly as much worse for the
# other. Weight on any other place only adds noise.
#
# Least squares finds the best $M$ for given weights, so this can be measured:

# %%
import numpy as np
from lesson import show

from tinyattn import Tensor, manual_seed, nn, optim

S, d, FIRST, SECOND = 6, 4, 1, 4                     # the places i and j
rng = np.random.default_rng(0)
x = rng.normal(size=(20_000, S, d))                  # (B, S, d), variance 1
target = np.concatenate([x[:, FIRST], x[:, SECOND]], -1)  # (B, 2 d)

print("w_i    w_j    error a number (0: all is known, 1: nothing)")
for at_i in (0.0, 0.1, 0.3, 0.5, 0.8, 1.0):
    w = np.zeros(S)
    w[FIRST], w[SECOND] = at_i, 1 - at_i
    mean = np.einsum("s,bsd->bd", w, x)              # what one head reads
    M, *_ = np.linalg.lstsq(mean, target, rcond=None)
    error = np.mean((mean @ M - target) ** 2)
    print(f"{at_i:.1f}    {1 - at_i:.1f}    {error:.3f}")
    assert abs(error - 0.5) < 0.02, "half of the variance is lost, however it is shared out"

# %% [markdown]
# Half of what is needed is lost in every line. With weights of 1/2 the loss is shared fairly, with a weight of 1 it is
# all on one side.
#
# ## Two heads
#
# Multi-head attention cuts the width $D$ into $H$ slices of $d_h = D / H$; each slice has a softmax of its own:
#
# $$\mathrm{head}_h = \mathrm{softmax}\!\left(\frac{Q_h K_h^\top}{\sqrt{d_h}}\right) V_h \qquad
# y = W_o\,[\mathrm{head}_1;\ \ldots;\ \mathrm{head}_H]$$
#
# Now train the module on the task, with one head and with two. The query is always the same; a word's vector holds its
# content and its place.

# %%
D = 16                                               # width of the model


def words(rng, B):
    """Word vectors (B, S, D): content, place, zeros; and their targets (B, 2 d)."""
    x = np.zeros((B, S, D), np.float32)
    x[:, :, :d] = rng.normal(size=(B, S, d))
    x[:, :, d:d + S] = 3 * np.eye(S)
    return x, np.concatenate([x[:, FIRST, :d], x[:, SECOND, :d]], -1)


def trained(heads, steps=700, B=64, seed=0):
    """(module, losses) after training on fresh words at each step."""
    manual_seed(seed)
    rng, layer = np.random.default_rng(seed), nn.MultiHeadAttention(D, heads)
    adam, losses = optim.Adam(layer.parameters(), lr=0.01), []
    for _ in range(steps):
        memory, wanted = words(rng, B)
        y = layer(asked(B), Tensor(memory))          # (B, 1, D)
        loss = ((y[:, 0, :2 * d] - Tensor(wanted)) ** 2).mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(loss.item())
    return layer, losses


def asked(B):
    return Tensor(np.ones((B, 1, D), np.float32))


found = {heads: trained(heads) for heads in (1, 2)}
ends = {heads: np.mean(losses[-50:]) for heads, (_, losses) in found.items()}
for heads, (layer, _) in found.items():
    size = sum(p.size for p in layer.parameters())
    print(f"{heads} head{'s' if heads > 1 else ' '}  {size} parameters,  error {ends[heads]:.4f}")
assert ends[1] > 0.3, "one head cannot"
assert ends[2] < 0.05, "two heads know both"

# %% [drawing]
from viz import heatmaps  # noqa: E402

memory, _ = words(np.random.default_rng(5), 1)
PLACES = [f"word {s + 1}" for s in range(S)]
maps = []
for heads, (layer, _) in found.items():
    _, w = layer(asked(1), Tensor(memory), return_weights=True)  # (1, H, 1, S)
    rows = [f"head {h + 1}" for h in range(heads)]
    gold = [(h, s) for h in range(heads) for s in (FIRST, SECOND)]
    maps.append((w.numpy()[0, :, 0], rows, PLACES, f"{heads} head{'s' if heads > 1 else ''}", gold))
looked = maps[1][0].argmax(-1)
assert sorted(looked) == [FIRST, SECOND], "each head has taken one of the needs"
show(heatmaps(maps, across=2), "heads",
     "Framed: the two places that are needed. One head must share its weight out, two heads take "
     "one place each.")

# %% [markdown]
# Nobody told head 1 to look at word {{looked[0] + 1}} and head 2 at word {{looked[1] + 1}}: that is how the error
# falls.
#
# But the error of one head is {{ends[1]:.2f}}, less than the one half of the table. Has it learnt to look at the right
# place? No, it looks much alike each time. The table held weights that never change; these change a *little* with
# the contents, and a value also tells the place it comes from. So the head reads its own weights, and they are a
# message: one more number, beside the $d$ of the mean. Then $d + 1 = 5$ of $2d = 8$ numbers are known, and 3/8 lost.

# %%
memory, wanted = words(np.random.default_rng(6), 2000)
_, w = found[1][0](asked(2000), Tensor(memory), return_weights=True)  # (B, 1, 1, S)
w = w.numpy()[:, 0, 0]                               # (B, S)
mean = np.einsum("bs,bsd->bd", w, memory[:, :, :d])  # (B, d): what is read of the contents


def lost(known):
    """The error a number of the best linear guess at what is needed."""
    known = np.column_stack([known, np.ones(len(known))])
    M, *_ = np.linalg.lstsq(known, wanted, rcond=None)
    return np.mean((known @ M - wanted) ** 2)


print(f"weight of word {FIRST + 1}: {w[:, FIRST].mean():.2f}, varying by {w[:, FIRST].std():.2f}")
print(f"lost with the mean alone {lost(mean):.2f}, "
      f"with the weight as well {lost(np.column_stack([mean, w[:, FIRST]])):.2f}")
assert w[:, FIRST].std() < 0.1, "it looks much alike each time"
assert lost(mean) > 0.46 and lost(np.column_stack([mean, w[:, FIRST]])) < 0.42

# %% [markdown]
# ## A head is a slice of the width
#
# No loop over heads is needed, only a change of shape: $(B, T, D) \to (B, T, H, d_h) \to (B, H, T, d_h)$. The
# first head owns the first $d_h$ rows of $W_q$, $W_k$ and $W_v$ and the first $d_h$ *columns* of $W_o$, the second head
# the next, and so on. Written out by hand for three heads:

# %%
manual_seed(1)
H, T, WIDTH = 3, 5, 12
layer = nn.MultiHeadAttention(WIDTH, H).to("float64")
x = np.random.default_rng(1).normal(size=(2, T, WIDTH))
y, weights = layer(Tensor(x), return_weights=True)   # (B, T, D), (B, H, T, T)


def projected(x, linear, rows):
    return x @ linear.weight.numpy()[rows].T + linear.bias.numpy()[rows]  # (B, T, d_h)


def softmax(e):
    p = np.exp(e - e.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


d_h, total = WIDTH // H, layer.out_proj.bias.numpy()
for h in range(H):
    rows = slice(h * d_h, (h + 1) * d_h)
    q, k, v = (projected(x, p, rows) for p in (layer.q_proj, layer.k_proj, layer.v_proj))
    w = softmax(q @ k.transpose(0, 2, 1) / np.sqrt(d_h))  # (B, T, T)
    np.testing.assert_allclose(weights.numpy()[:, h], w, rtol=1e-10)
    total = total + w @ v @ layer.out_proj.weight.numpy()[:, rows].T  # (B, T, D)
    print(f"head {h + 1}: rows {rows.start} to {rows.stop - 1}, weights", w.shape)
np.testing.assert_allclose(y.numpy(), total, rtol=1e-10)
print("the sum over heads, and the bias, is the module's output", total.shape)

# %% [markdown]
# The last line of the loop says something that the formula with $[\ldots;\ \ldots]$ hides: joining the heads and
# multiplying by $W_o$ *adds* one term for each head, $W_o^{(h)}\,\mathrm{head}_h$. Heads do not mix before they are
# added.
#
# ## What it costs
#
# The number of parameters does not depend on the number of heads: $4 D^2 + 4 D$. What is paid is rank. The scores of
# head $h$ are $x\, W_{q,h}^\top W_{k,h}\, x^\top$, a matrix of rank at most $d_h$, so a narrow head can ask only few
# different questions.

# %%
long = np.random.default_rng(2).normal(size=(40, WIDTH))
for heads in (1, 2, 3, 4, 6, 12):
    one = nn.MultiHeadAttention(WIDTH, heads).to("float64")
    count, d_h = sum(p.size for p in one.parameters()), WIDTH // heads
    assert count == 4 * WIDTH**2 + 4 * WIDTH
    q, k = (long @ p.weight.numpy()[:d_h].T for p in (one.q_proj, one.k_proj))  # (T, d_h) of head 1
    rank = np.linalg.matrix_rank(q @ k.T)
    assert rank == d_h
    print(f"{heads:2} heads of width {d_h:2}: {count} parameters, scores of a head of rank {rank:2}")

# %% [markdown]
# ## The mean over heads is not the attention
#
# Many pictures show the mean of the weights over heads. For the two heads above it is the compromise that one head was
# forced into: half the weight at each place. Nothing in the model reads with these weights.

# %%
mean = maps[1][0].mean(0)                            # (S,)
print("head 1", maps[1][0][0].round(2), "\nhead 2", maps[1][0][1].round(2), "\nmean  ", mean.round(2))
assert abs(mean[FIRST] - mean[SECOND]) < 0.2 < min(mean[FIRST], mean[SECOND])

# %% [markdown]
# ## What to take home
#
# - One softmax is one mean: with one head, two needs share the weight, and together they lose nearly half.
# - A head is a slice of the width: the same matrices, reshaped; the same number of parameters; narrower questions.
# - $W_o$ adds one term for each head.
# - Look at heads one by one. Their mean is nobody's attention.
#
# ## Questions
#
# 1. The task needs three places. What do two heads lose?
#    <details><summary>Answer</summary>
#
#    One third. $H$ heads with given weights are $H$ means of the $n$ contents that are needed, a projection of rank $H$
#    at most: $n - H$ of $n$ is lost. One head and two needs was the case of the table above.
#
#    </details>
# 2. Why does the bias of $k$ change no weight?
#    <details><summary>Answer</summary>
#
#    It adds $q_t^\top b_k$ to every score of a row: one number for the whole row, which a softmax does not see.
#
#    </details>
#
# ## Where it stands in the code
#
# - `tinyattn/nn/attention.py`: `MultiHeadAttention`: the module with its four projections
# - `tinyattn/attention/multi_head.py`: `multi_head`, `reference`: the formula, and the slow loop head by head
# - `tinyattn/attention/heads.py`: `split`, `join`, `attend`, `output`: from the width to heads and back
# - `tests/test_self_attention.py`: the mechanism against its references and PyTorch
