# %% [markdown]
# # 7. Masks
#
# A mask says who may look at whom. Here True always means *may be attended to*; a masked place gets exactly 0, and a
# row that may look at nothing gives 0, not nan. Most mistakes with masks raise no error: each is shown failing below.

# %%
import numpy as np
from lesson import show

from tinyattn import Tensor, capture
from tinyattn.attention import find, mask
from tinyattn.ops.broadcast import ShapeError
from viz import panels
from viz.attention.masks import masks

rng = np.random.default_rng(0)
scaled_dot = find("scaled_dot")


def weights_of(e, allowed=None):
    """Softmax of scores behind a mask, as an array."""
    return Tensor(e).softmax(mask=None if allowed is None else Tensor(allowed)).numpy()

# %% [markdown]
# ## What True means
#
# | library, argument | True means |
# |---|---|
# | tinyattn, everywhere | may be attended to |
# | PyTorch, `scaled_dot_product_attention(attn_mask=)` | may be attended to |
# | PyTorch, `nn.MultiheadAttention(attn_mask=, key_padding_mask=)` | is **left out** |
# | Keras, `MultiHeadAttention(attention_mask=)` | may be attended to |
# | Flax, `dot_product_attention(mask=)` | may be attended to |
# | Hugging Face, `attention_mask=` | 1 for a real token, 0 for padding |
#
# Two answers inside one library: so a mask that was moved from one call to another must be looked at, not trusted.
#
# ## The masks
#
# A dot: the query of this row may look at the key of this column.

# %%
words = ["the", "cat", "saw", "the", "dog"]
show(masks(["causal", "window", "lengths", "both"], words=words, across=2), "kinds",
     "Causal: itself and what came before. Lengths: no padding. Combined by &.")

# %% [markdown]
# **Padding.** Sentences of a batch have different lengths, and the shorter ones are filled up. Nobody may look at the
# filling. The mask is the same for every query, so its axis of queries has size 1.
#
# **Causal.** A word may look at itself and at what came before, or a language model would read the answer.
#
# | mask | shape | made by | used in |
# |---|---|---|---|
# | padding of the source | $(B, 1, S)$ | `mask.from_lengths(source)` | encoder, and decoder looking at the encoder |
# | causal | $(T, S)$ | `mask.causal(T, S)` | decoder looking at itself, in generation |
# | both | $(B, T, S)$ | `mask.causal(T) & mask.from_lengths(target)` | decoder looking at itself, in training |
#
# They broadcast against scores of shape $(B, T, S)$. With heads the scores are $(B, H, T, S)$.

# %%
padding = mask.from_lengths([4, 2])                          # (B, 1, S)
causal = mask.causal(4)                                      # (T, S)
combined = causal & padding                                  # (B, T, S)
assert padding.shape == (2, 1, 4) and causal.shape == (4, 4) and combined.shape == (2, 4, 4)
print(combined.numpy()[1].astype(int))

# %% [markdown]
# ## What a mask does to the scores
#
# A masked score becomes $-\infty$ before the softmax, since $e^{-\infty} = 0$ exactly. Then the rest of the row shares
# out the whole unit, and the gradient of a masked score is exactly 0.

# %%
q, k, v = (Tensor(rng.normal(size=(2, 4, 3)), requires_grad=True) for _ in range(3))
with capture() as seen:
    out = scaled_dot(q, k, v, mask=combined)
w = seen["weights"][0].numpy()
allowed = combined.numpy()
assert (w[~allowed] == 0).all() and np.allclose(w.sum(-1), 1)
out.sum().backward()
assert (k.grad.numpy()[1, 2:] == 0).all() and (v.grad.numpy()[1, 2:] == 0).all()
words = ["he", "sleeps", "<pad>", "<pad>"]
show(panels(seen, rows=words, columns=words, batch=1), "panels",
     "The second sentence. Hatched places are masked: their weight is 0, not small.")

# %% [markdown]
# ## A row that may look at nothing
#
# The arithmetic of $-\infty$ has one trap. The softmax subtracts the largest score first, and $-\infty - (-\infty)$ is
# nan. In a batch with an empty sentence, or in the first row of a mask that forbids one's own place, every score is
# $-\infty$.

# %%
nothing = np.full(3, -np.inf)
with np.errstate(invalid="ignore"):
    shifted = nothing - nothing.max()
    naive = np.exp(shifted) / np.exp(shifted).sum()
print("as it is written:", naive, "  here:", weights_of(np.zeros(3), np.zeros(3, bool)))
assert np.isnan(naive).all()
assert (weights_of(np.zeros(3), np.zeros(3, bool)) == 0).all()

q.grad = None
strict = mask.forward(4)                                     # the first row sees nothing
out = scaled_dot(q, k, v, mask=strict)
out.sum().backward()
assert (out.numpy()[:, 0] == 0).all() and (q.grad.numpy()[:, 0] == 0).all()
assert np.isfinite(q.grad.numpy()).all()

# %% [markdown]
# Here such a row gives 0 and sends no gradient. That is a choice, and the only one that leaves the rest of the batch
# whole: nan times 0 is nan, so one nan in a padded row would reach every weight of the network.
#
# ## Queries that are fewer than keys
#
# A model that generates keeps the keys of the past and asks for its newest word only: $T = 1$, $S = 5$. The newest word
# may see all five. So the **ends** of queries and keys are aligned: query $t$ stands at place $t + S - T$.

# %%
at_start = np.tril(np.ones((2, 5), bool))                    # what NumPy's tril gives
at_end = mask.causal(2, 5).numpy()
show(masks({"causal(2, 5): ends aligned": at_end, "tril: starts aligned": at_start},
           rows=["saw", "it"], columns=["the", "cat", "I", "saw", "it"]), "ends",
     "Two new words, five keys. Aligned at the start the last word sees two keys, and not itself.")

x = Tensor(rng.normal(size=(1, 5, 3)))
whole = scaled_dot(x, x, x, causal=True).numpy()             # all five at once
two = scaled_dot(x[:, 3:], x, x, causal=True).numpy()        # only the last two, over the cached keys
wrong = scaled_dot(x[:, 3:], x, x, mask=Tensor(at_start)).numpy()
for name, rows in (("ends", two), ("starts", wrong)):
    print(f"{name} aligned: the last two rows of the whole?", np.allclose(rows, whole[:, 3:]))
assert np.allclose(two, whole[:, 3:]) and not np.allclose(wrong, whole[:, 3:])

# %% [markdown]
# ## Six mistakes, each failing
#
# One row of scores, the last two places are padding.

# %%
e = np.array([1.0, 0.5, 2.0, -1.0])
real = np.array([True, True, False, False])
right = weights_of(e, real)
print("right:                          ", right.round(3))

inverted = weights_of(e, ~real)
print("1 True for padding:             ", inverted.round(3))
assert (inverted[real] == 0).all()                           # looks at the padding only

after = weights_of(e) * real
print("2 masked after the softmax:     ", after.round(3), f"  sum {after.sum():.2f}")
assert after.sum() < 0.5                                     # shares no longer sum to 1

zeroed = weights_of(np.where(real, e, 0.0))
print("3 masked scores set to 0:       ", zeroed.round(3))
assert (zeroed[~real] > 0.1).all()                           # e^0 is 1, not 0

# %% [markdown]
# The fourth looks harmless: a large negative number in place of $-\infty$. It works until a row is masked throughout.
# Then all its scores are equally bad, and the padding gets all of the weight.

# %%
finite = weights_of(np.where(np.zeros(4, bool), 0.0, -1e9))
print("4 -1e9 for -inf, an empty row:  ", finite)
assert np.allclose(finite, 0.25)

# %% [markdown]
# The fifth is a padding mask on the wrong axis. $(B, T, 1)$ masks queries, not keys, and would broadcast without a
# word. Here all keys must be on the last axis:

# %%
try:
    scaled_dot(q, k, v, mask=Tensor(padding.numpy().transpose(0, 2, 1)))
    said = ""
except ShapeError as error:
    said = str(error)
print("5", said)
assert "with all S keys on its last axis" in said

# %% [markdown]
# The sixth multiplies by 0 to forget. If the value behind a mask is nan or infinite, its weight of 0 does not help,
# since $0 \cdot \mathrm{nan}$ is nan. Padded places must hold numbers; a mask does not clean them.

# %%
dirty = v.numpy().copy()
dirty[1, 3] = np.nan                                         # padding of the second sentence
spoilt = scaled_dot(q, k, Tensor(dirty), mask=padding).numpy()
print("6 nan behind a mask reaches", int(np.isnan(spoilt[1]).any(-1).sum()), "of 4 queries")
assert np.isnan(spoilt[1]).any() and np.isfinite(spoilt[0]).all()

# %% [markdown]
# ## What to take home
#
# - True = may be attended to. Draw a mask before you trust it.
# - Mask the scores, with $-\infty$, before the softmax. A masked place has weight 0 and gradient 0.
# - An empty row gives 0. Ends are aligned. Keys are on the last axis.
#
# ## Questions
#
# 1. Which of the six mistakes still train, and to what?
#    <details><summary>Answer</summary>All but the fifth and the sixth. The losses go down: the model learns
#    to live with the padding, or, with a wrong causal mask, to read the answer.</details>
# 2. Must queries of padded places be masked too?
#    <details><summary>Answer</summary>No. What they read is not used: the loss leaves their places out, and the padding
#    mask keeps others from looking at them.</details>
# 3. Why is a causal mask of shape $(1, S)$ the same as none?
#    <details><summary>Answer</summary>With ends aligned the only query is the newest word, and may see
#    every key.</details>
#
# To do it yourself: `tinyattn exercise causal_mask` and `tinyattn exercise masked_softmax`;
# `tinyattn check FILE.py` marks what you wrote.
#
# ## Where it stands in the code
#
# - `tinyattn/attention/mask.py`: `causal`, `from_lengths`, `window`, `both`, `fit`
# - `tinyattn/attention/core.py`: `weights_of`, `fitted`, the one place where scores meet a mask
# - `tinyattn/ops/softmax.py`: `Softmax.composed`, which handles rows of -inf
# - `viz/attention/masks.py`: `masks`
