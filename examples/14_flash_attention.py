# %% [markdown]
# # 14. Flash attention: the same numbers without the matrix of weights
#
# Attention over $T$ words needs $T^2$ weights, but nobody needs them all at once. A running maximum and a running sum
# give exactly the same output tile by tile, in memory that grows with $T$ and not with $T^2$, forward and backward.
#
# Plain attention stores the scores $e$ and the weights $w$, both $T \times S$:
#
# $$e_{ts} = \frac{q_t^\top k_s}{\sqrt{D}} \qquad w_{ts} = \frac{e^{e_{ts}}}{\sum_u e^{e_{tu}}}
# \qquad o_t = \sum_s w_{ts} v_s$$
#
# ## A softmax that never sees its whole row
#
# Cut the keys into two parts. For each part keep three things: the largest score $m$, the sum
# $\ell = \sum_s e^{e_s - m}$, and the vector $a = \sum_s e^{e_s - m} v_s$. Both sums are measured against the part's
# own $m$. To join two parts, bring both to the larger maximum:
#
# $$m = \max(m_1, m_2) \qquad \ell = e^{m_1 - m}\,\ell_1 + e^{m_2 - m}\,\ell_2
# \qquad a = e^{m_1 - m}\,a_1 + e^{m_2 - m}\,a_2$$
#
# and in the end $o = a / \ell$. No factor is larger than 1, so nothing overflows; and the order of joining does not
# matter.

# %%
import tracemalloc

import numpy as np
from lesson import show

from tinyattn import Tensor, grad
from tinyattn.autograd import fused
from tinyattn.functional import scaled_dot_product_attention
from viz.plot import COLOURS, MARKS, bare, figure


def part(e, v):
    """(m, l, a) of some keys: scores e (S,), values v (S, E)."""
    m = e.max()
    p = np.exp(e - m)
    return m, p.sum(), p @ v


def join(one, other):
    m = max(one[0], other[0])
    f, g = np.exp(one[0] - m), np.exp(other[0] - m)
    return m, f * one[1] + g * other[1], f * one[2] + g * other[2]


rng = np.random.default_rng(0)
e, v = 30 * rng.normal(size=12), rng.normal(size=(12, 4))
x, y, z = part(e[:5], v[:5]), part(e[5:6], v[5:6]), part(e[6:], v[6:])
m, total, a = join(join(x, y), z)
w = np.exp(e - e.max())
np.testing.assert_allclose(a / total, w @ v / w.sum(), rtol=1e-12)
other = join(z, join(y, x))
np.testing.assert_allclose(other[2] / other[1], a / total, rtol=1e-12)
print("three parts, joined:", (a / total).round(4))
print("the whole row:      ", (w @ v / w.sum()).round(4))

# %% [markdown]
# ## Tiles
#
# Now for all queries at once, tile by tile. Each tile of scores is computed, used and forgotten. All that is kept for a
# query is its $m$, its $\ell$, and its row of the output. Under a causal mask, tiles above the diagonal are not even
# computed.


# %%
def flash(q, k, v, rows=4, keys=4, causal=False):
    """q (T, D), k (S, D), v (S, E) to the output (T, E) and log-sum-exp L (T,), by tiles.

    `total` is l; o holds a, until it is divided by l in the end.
    """
    T, S, D = len(q), len(k), q.shape[1]
    o, m, total = np.zeros((T, v.shape[1])), np.full(T, -np.inf), np.zeros(T)
    for t in range(0, T, rows):
        of = slice(t, min(t + rows, T))
        for s in range(0, S, keys):
            if causal and s > of.stop - 1 + S - T:   # all of this tile is forbidden
                break
            e = q[of] @ k[s:s + keys].T / np.sqrt(D)  # (rows, keys): the only scores there are
            if causal:
                allowed = np.arange(S)[s:s + keys] <= np.arange(T)[of, None] + S - T
                e = np.where(allowed, e, -np.inf)
            new = np.maximum(m[of], e.max(-1))
            p, old = np.exp(e - new[:, None]), np.exp(m[of] - new)
            total[of] = old * total[of] + p.sum(-1)
            o[of] = old[:, None] * o[of] + p @ v[s:s + keys]
            m[of] = new
    return o / total[:, None], m + np.log(total)


def plain(q, k, v, causal=False):
    """The same with the whole matrix: output (T, E) and weights (T, S)."""
    T, S = len(q), len(k)
    e = q @ k.T / np.sqrt(q.shape[1])                # (T, S)
    if causal:
        e = np.where(np.arange(S) <= np.arange(T)[:, None] + S - T, e, -np.inf)
    w = np.exp(e - e.max(-1, keepdims=True))
    w /= w.sum(-1, keepdims=True)
    return w @ v, w


q, k, v = rng.normal(size=(12, 8)), rng.normal(size=(12, 8)), rng.normal(size=(12, 4))
for causal in (False, True):
    for rows, keys in ((4, 4), (5, 7), (1, 1), (12, 12), (100, 3)):
        o, _ = flash(q, k, v, rows, keys, causal)
        np.testing.assert_allclose(o, plain(q, k, v, causal)[0], rtol=1e-10)
o, _ = flash(1000 * q, k, v)                         # scores of thousands
np.testing.assert_allclose(o, plain(1000 * q, k, v)[0], rtol=1e-10)
v_later = np.where(np.arange(12)[:, None] < 4, v, np.nan)  # whoever reads a later value gets nan
assert np.isfinite(flash(q, k, v_later, causal=True)[0][:4]).all(), "no tile above the diagonal"
print("tiles of any size give the output of the whole matrix")

# %% [drawing]
from matplotlib.patches import Rectangle  # noqa: E402

T = 12
fig = figure(11, 4.6)
whole, tiles = fig.subplots(1, 2)
for axes, title in ((whole, "plain: T × S weights in memory"),
                    (tiles, "flash: one tile at a time (causal)")):
    axes.set_xlim(-3.8, T + 0.2)
    axes.set_ylim(T + 0.2, -1.6)
    axes.set_aspect("equal")
    axes.axis("off")
    axes.set_title(title, size=14)
    axes.text(T / 2, -0.5, "keys and values s", ha="center", size=12)
    axes.text(-0.4, T / 2, "queries t", rotation=90, va="center", ha="right", size=12)
whole.imshow(plain(q, k, v, True)[1], cmap="Blues", vmin=0, vmax=1, extent=(0, T, T, 0))
whole.add_patch(Rectangle((0, 0), T, T, fill=False, edgecolor="#777777"))
for t in range(0, T, 4):
    for s in range(0, T, 4):
        now, skipped, done = (t, s) == (4, 4), s > t, (t, s) < (4, 4)
        face = COLOURS[4] if now else "#EEEEEE" if done and not skipped else "white"
        tiles.add_patch(Rectangle((s, t), 4, 4, edgecolor="#777777", facecolor=face,
                                  hatch="//" if skipped else None))
        text = "now" if now else "skipped" if skipped else "used,\nforgotten" if done else "to come"
        tiles.text(s + 2, t + 2, text, ha="center", va="center", size=12,
                   bbox={"facecolor": "white", "edgecolor": "none", "pad": 2} if skipped else None)
tiles.add_patch(Rectangle((-3.7, 4), 2.4, 4, facecolor=COLOURS[5], edgecolor="#777777"))
tiles.text(-2.5, 6, "m, ℓ, a\nof these\nqueries", ha="center", va="center", size=11)
fig.tight_layout()
show(fig, "tiles",
     "Left: all weights at once. Right: the tile that is being computed, and what is kept so far.")

# %% [markdown]
# The package's op does this in one compiled loop, `Attention`; its readable twin stores the matrix. They agree, and
# with the NumPy above:

# %%
shape = (2, 3, 100, 16)                              # (B, H, T, D)
many = [Tensor(rng.normal(size=shape), requires_grad=True) for _ in range(3)]
g = rng.normal(size=shape)


def run(mode, causal=True):
    """Output and three gradients, by the fused op ("force") or by its twin ("never")."""
    with fused(mode):
        out = scaled_dot_product_attention(*many, causal=causal)
        return [out.numpy(), *[x.numpy() for x in grad(out, many, Tensor(g))]]


for name, fast, slow in zip(("o", "dq", "dk", "dv"), run("force"), run("never"), strict=True):
    print(f"{name:3} greatest difference {np.abs(fast - slow).max():.1e}")
    np.testing.assert_allclose(fast, slow, rtol=1e-9, atol=1e-11)
first = [x.numpy()[0, 0] for x in many]
by_hand, _ = flash(*first, 32, 32, True)
np.testing.assert_allclose(run("force")[0][0, 0], by_hand, rtol=1e-9, atol=1e-12)

# %% [markdown]
# ## Backward, without having kept the weights
#
# The rule of attention needs $w$ again: with $g$ the gradient that comes in at $o$,
#
# $$\mathrm{d}v_s = \sum_t w_{ts}\, g_t \qquad
# \mathrm{d}e_{ts} = w_{ts} \Bigl( g_t^\top v_s - \sum_u w_{tu}\, g_t^\top v_u \Bigr)
# = w_{ts}\,(g_t^\top v_s - g_t^\top o_t)$$
#
# $$\mathrm{d}q_t = \frac{1}{\sqrt D} \sum_s \mathrm{d}e_{ts}\, k_s \qquad
# \mathrm{d}k_s = \frac{1}{\sqrt D} \sum_t \mathrm{d}e_{ts}\, q_t$$
#
# The inner sum is $g_t^\top o_t$, one number for each query, so no row is needed for it. And each weight can be had
# again from one number for each query, the log-sum-exp $L_t = m_t + \log \ell_t$:
#
# $$w_{ts} = e^{e_{ts} - L_t}$$
#
# So the backward pass computes the tiles a second time: more arithmetic, much less memory.


# %%
def flash_backward(g, q, k, v, o, L, rows=4, keys=4):
    """dq, dk, dv for the gradient g (T, E), from the output and L alone."""
    scale = 1 / np.sqrt(q.shape[1])
    dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    delta = (g * o).sum(-1)                          # (T,)
    for t in range(0, len(q), rows):
        of = slice(t, t + rows)
        for s in range(0, len(k), keys):
            at = slice(s, s + keys)
            w = np.exp(q[of] @ k[at].T * scale - L[of, None])  # the weights of this tile, again
            de = w * (g[of] @ v[at].T - delta[of, None]) * scale
            dv[at] += w.T @ g[of]
            dq[of] += de @ k[at]
            dk[at] += de.T @ q[of]
    return dq, dk, dv


o, L = flash(q, k, v)
g = rng.normal(size=o.shape)
leaves = [Tensor(x, requires_grad=True) for x in (q, k, v)]
with fused("never"):
    right = grad(scaled_dot_product_attention(*leaves), leaves, Tensor(g))
by_tiles = flash_backward(g, q, k, v, o, L)
for name, found, wanted in zip(("dq", "dk", "dv"), by_tiles, right, strict=True):
    np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-9, atol=1e-12)
    print(name, "by tiles is the gradient of the plain formula")

# %% [markdown]
# ## Memory, measured
#
# The peak of what is allocated while attention runs forward and backward, with 8 heads in float32, for ever longer
# sequences. (Python counts what NumPy allocates. The compiled loops also have room for one tile a thread, which it does
# not see; its size does not depend on $T$.)


# %%
HEADS, LENGTHS = 8, (128, 256, 512, 1024)


def peak(mode, T):
    """Bytes at the highest point of a forward and backward pass."""
    x = [Tensor(rng.normal(size=(HEADS, T, 16)).astype(np.float32), requires_grad=True)
         for _ in range(3)]
    seed = Tensor(np.ones((HEADS, T, 16), np.float32))
    with fused(mode):
        grad(scaled_dot_product_attention(*x), x, seed)  # once before, so that all is compiled
        tracemalloc.start()
        try:
            grad(scaled_dot_product_attention(*x), x, seed)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()


peaks = {mode: [peak(mode, T) for T in LENGTHS] for mode in ("never", "force")}
print("T           ", *[f"{T:>10,}" for T in LENGTHS])
for mode, name in (("never", "plain twin"), ("force", "flash")):
    print(f"{name:10} kB", *[f"{b / 1000:>10,.0f}" for b in peaks[mode]])
growth = {mode: row[-1] / row[-2] for mode, row in peaks.items()}
print(f"the last doubling of T: plain x {growth['never']:.2f}, flash x {growth['force']:.2f}")
assert growth["never"] > 3.5, "twice the length, four times the memory"
assert growth["force"] < 2.3, "twice the length, twice the memory"

# %% [drawing]
fig = figure(8, 4)
axes = fig.add_subplot()
for i, (mode, name) in enumerate((("never", "plain: grows as T²"), ("force", "flash: grows as T"))):
    axes.loglog(LENGTHS, [b / 1e6 for b in peaks[mode]], f"{MARKS[i]}{'-' if i else '--'}", base=10,
                color=COLOURS[1 - i], label=name, markersize=8)
bare(axes)
axes.set_xticks(LENGTHS, [f"{T:,}" for T in LENGTHS])
axes.minorticks_off()
axes.set_xlabel("length T", size=12)
axes.set_ylabel("peak memory (MB)", size=12)
axes.legend(fontsize=12, frameon=False)
fig.tight_layout()
show(fig, "memory", "Peak of the memory of a forward and backward pass, both axes logarithmic.")

# %% [markdown]
# At $T = 1024$ the plain pass takes {{peaks["never"][-1] / peaks["force"][-1]:.0f}} times the memory of flash
# attention, and each doubling doubles that again.
#
# ## What is given up
#
# The weights. There is no matrix to look at, and no gradient of a loss *on* the weights. tinyattn computes them when a
# picture asks (`Attention.weights`), and where the weights themselves are a part of the graph
# (`return_weights=True`), the plain twin runs.
#
# ## What to take home
#
# - $(m, \ell, a)$ of two parts join exactly: a softmax needs no whole row.
# - Flash attention is exact. It is another order of the same sums, not an approximation.
# - Backward from $L_t$: one number for each query gives every weight again.
# - Memory grows as $T$ in place of $T^2$; the arithmetic still grows as $T^2$.
#
# ## Questions
#
# 1. Why is $L_t$ kept for the backward pass and not $m_t$ alone?
#    <details><summary>Answer</summary>
#
#    $w_{ts} = e^{e_{ts} - m_t} / \ell_t$ needs both. $L_t = m_t + \log \ell_t$ holds them in one number. (In float32
#    tinyattn keeps the two apart: if $L_t$ is 100, its rounding alone can be an error of 4e-6 in each weight.)
#
#    </details>
# 2. A query may attend to nothing. What are $m$ and $\ell$, and what must the code do?
#    <details><summary>Answer</summary>
#
#    $m = -\infty$, $\ell = 0$. $e - m$ would be $-\infty + \infty$, nan: the shift must be 0 there, and $o = 0$ must be
#    written in place of $0/0$.
#
#    </details>
#
# To do it yourself: `tinyattn exercise online_softmax`; `tinyattn check FILE.py` marks what you wrote.
#
# ## Where it stands in the code
#
# - `tinyattn/ops/attention.py`: `Attention`, `Attention.composed`, `Attention.weights`: the op, its twin, its weights
# - `tinyattn/ops/attention_loops.py`: `forward`, `_shift`, `backward`, `_deltas`: the tiles
# - `tinyattn/attention/heads.py`: `attend`: who calls it, for all heads at once
# - `tests/test_attention_op.py`: fused against twin, on shapes that are no multiples of a tile
