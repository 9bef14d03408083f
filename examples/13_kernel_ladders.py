# %% [markdown]
# # 13. Ladders of kernels: the same sum, each rung faster than the one below
#
# A product of matrices takes the same multiplications in any order, and still the order decides how long it takes: what
# counts is how memory is read. A softmax shows a second thing: fewer passes are not always faster.
#
# Each rung is a few lines of Python that Numba compiles (`tinyattn.kernel`). Values are compared first, times after;
# the times are those of the machine that built this page.

# %%
import time

import numpy as np
from lesson import show

from tinyattn import Tensor, get_num_threads, kernel, set_num_threads
from tinyattn.device import JIT
from tinyattn.ops.matmul import matmul
from viz.plot import COLOURS, HATCHES, bare, figure

threads = get_num_threads()
set_num_threads(1)                                   # a ladder compares loops, not threads


def seconds(call, repeats=5):
    """The least of some runs, the first of which (compiling) does not count."""
    call()
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return min(times)


def ladder(rungs, check):
    """Run {name: call}, check what each gives, and return {name: seconds}."""
    took = {}
    for name, call in rungs.items():
        call()
        check(name)
        took[name] = seconds(call)
    return took


# %% [markdown]
# ## The product of two matrices
#
# $$c_{ij} = \sum_k a_{ik}\, b_{kj}$$
#
# **1. Naive:** as it is written. The inner loop runs down a column of $b$: each step is another row, so another line of
# the cache, and of each line that was fetched one number is used.
#
# **2. Reordered:** loops $i, k, j$ instead of $i, j, k$. A row of $c$ grows by $a_{ik}$ times a row of $b$. The same
# arithmetic; now all memory is read in order, and the inner loop becomes vector instructions.
#
# **3. Blocked:** 4 rows of $a$ and 4 steps of $k$ at once. Four rows of $b$ are used four times while they are in the
# nearest cache, each number of $c$ is loaded and stored a quarter as often.
#
# **4. Package:** what `@` runs. Strips of $b$ are copied so that they lie together, and 4 rows of $c$ are summed up in
# registers, so that $c$ is stored once in 128 steps of $k$.


# %%
@kernel
def naive(a, b, c):
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            total = a.dtype.type(0)
            for k in range(a.shape[1]):
                total += a[i, k] * b[k, j]
            c[i, j] = total


@kernel
def reordered(a, b, c):
    c[:] = 0
    for i in range(a.shape[0]):
        for k in range(a.shape[1]):
            left = a[i, k]
            for j in range(b.shape[1]):
                c[i, j] += left * b[k, j]


@kernel
def blocked(a, b, c):
    """Sizes must be multiples of 4: the rungs are for reading."""
    c[:] = 0
    for i in range(0, a.shape[0], 4):
        for k in range(0, a.shape[1], 4):
            x, y0, y1, y2, y3 = a[i:i + 4, k:k + 4], b[k], b[k + 1], b[k + 2], b[k + 3]
            for r in range(4):
                x0, x1, x2, x3, out = x[r, 0], x[r, 1], x[r, 2], x[r, 3], c[i + r]
                for j in range(b.shape[1]):
                    out[j] += x0 * y0[j] + x1 * y1[j] + x2 * y2[j] + x3 * y3[j]


n = 256 if JIT else 16                               # without the compiler a loop is slow
rng = np.random.default_rng(0)
a, b, c = (rng.normal(size=(n, n)).astype(np.float32) for _ in range(3))
right = a.astype(np.float64) @ b.astype(np.float64)


def right_product(name):
    error = np.abs(c - right).max() / np.abs(right).max()
    assert error < 1e-5, (name, error)
    c[:] = np.nan                                    # so that the next rung must write it all


products = ladder({"naive": lambda: naive(a, b, c), "reordered": lambda: reordered(a, b, c),
                   "blocked": lambda: blocked(a, b, c),
                   "package": lambda: c.__setitem__(..., matmul(a, b))}, right_product)
print(f"{n} x {n} times {n} x {n}, float32, one core")
for name, took in products.items():
    print(f"{name:10} {took * 1e3:8.3f} ms {2 * n**3 / took / 1e9:7.1f} GFLOP/s"
          f" {products['naive'] / took:6.1f} x the first")
if JIT:
    assert products["reordered"] < products["naive"], "the order of the loops alone"
    assert products["naive"] / products["reordered"] > products["reordered"] / products["blocked"]
    assert products["package"] < products["naive"]

# %% [drawing]


def bars(took, title):
    """A bar a rung: how many times as fast as the first."""
    fig = figure(8, 0.5 + 0.55 * len(took))
    axes = fig.add_subplot()
    first = next(iter(took.values()))
    for i, one in enumerate(took.values()):
        axes.barh(i, first / one, color=COLOURS[i], hatch=HATCHES[i], edgecolor="white", height=0.7)
        axes.text(first / one, i, f"  {first / one:.1f} x", va="center", size=12)
    axes.set_yticks(range(len(took)), took, size=12)
    axes.invert_yaxis()
    bare(axes)
    axes.grid(visible=False)
    axes.set_title(title, size=13)
    axes.set_xlim(0, 1.15 * max(first / one for one in took.values()))
    fig.tight_layout()
    return fig


show(bars(products, f"product of {n} x {n}: times as fast as the first rung"), "product",
     "The same multiplications; what differs is the order in which memory is read.")

# %% [markdown]
# The greatest step of the first three is the exchange of two lines, {{products["naive"] / products["reordered"]:.1f}}
# times. Nothing was taken out, nothing is approximate.
#
# ## Softmax over rows
#
# $$y_j = \frac{e^{x_j}}{\sum_k e^{x_k}}$$
#
# **1. Plain:** exponentials and their sum in one pass, the division in a second. It is right as long as no $e^x$
# overflows; from $x \approx 89$ on it does in float32, and $\infty / \infty$ is nan.
#
# **2. Shifted:** subtract the largest $m$ first. $e^{x_j - m} / \sum_k e^{x_k - m}$ is the same number and cannot
# overflow. One pass more: three.
#
# **3. Online:** find $m$ and the sum in *one* pass. When a larger number comes, all that was summed up with the old $m$
# is multiplied by $e^{m_{\text{old}} - m}$ (Milakov and Gimelshein 2018). Two passes over memory, but each exponential
# is computed twice, and each number must wait for the one before.
#
# **4. Package:** more passes still, but over a few rows that stay in the cache, and with a polynomial for $e^x$ that
# becomes vector instructions.


# %%
@kernel
def plain(x, y):
    for i in range(x.shape[0]):
        total = x.dtype.type(0)
        for j in range(x.shape[1]):
            y[i, j] = np.exp(x[i, j])
            total += y[i, j]
        for j in range(x.shape[1]):
            y[i, j] /= total


@kernel
def shifted(x, y):
    for i in range(x.shape[0]):
        m = x[i, 0]
        for j in range(1, x.shape[1]):
            m = max(m, x[i, j])
        total = x.dtype.type(0)
        for j in range(x.shape[1]):
            y[i, j] = np.exp(x[i, j] - m)
            total += y[i, j]
        for j in range(x.shape[1]):
            y[i, j] /= total


@kernel
def online(x, y):
    for i in range(x.shape[0]):
        m, total = x[i, 0], x.dtype.type(0)
        for j in range(x.shape[1]):
            if x[i, j] > m:
                total *= np.exp(m - x[i, j])         # what was summed with the old m
                m = x[i, j]
            total += np.exp(x[i, j] - m)
        for j in range(x.shape[1]):
            y[i, j] = np.exp(x[i, j] - m) / total


@kernel
def exponentials(x, y):
    """No softmax: what the exponentials alone cost."""
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            y[i, j] = np.exp(x[i, j])


rows = (512, 1024) if JIT else (4, 16)
x = rng.normal(size=rows).astype(np.float32)
y = np.empty_like(x)
wide = np.exp(x.astype(np.float64))
wide /= wide.sum(-1, keepdims=True)


def right_softmax(name):
    assert np.allclose(y, wide, rtol=1e-5, atol=0), name
    y[:] = np.nan


scores = Tensor(x)
softmaxes = ladder({"plain": lambda: plain(x, y), "shifted": lambda: shifted(x, y),
                    "online": lambda: online(x, y),
                    "package": lambda: y.__setitem__(..., scores.softmax(-1).numpy())},
                   right_softmax)
print(f"{rows[0]} rows of {rows[1]}, float32, one core")
for name, took in softmaxes.items():
    print(f"{name:10} {took * 1e3:8.3f} ms {took / x.size * 1e9:7.2f} ns a number"
          f" {softmaxes['plain'] / took:6.1f} x the first")
share = seconds(lambda: exponentials(x, y)) / softmaxes["plain"]
print(f"exponentials alone: {share:.0%} of the plain rung")
if JIT:
    assert softmaxes["package"] < softmaxes["plain"]
    assert share > 0.3, "much of a softmax is its exponentials"
    assert softmaxes["online"] > softmaxes["shifted"], "a pass fewer, and slower"

large = np.array([[1000.0, 999.0]], np.float32)
out = np.empty_like(large)
for loop in (plain, shifted, online):
    loop(large, out)
    print(f"{loop.__name__:10} softmax of {large[0]}: {out[0].round(4)}")
    assert np.isnan(out).any() == (loop is plain), "only the plain one overflows"
set_num_threads(threads)

# %% [drawing]
show(bars(softmaxes, f"softmax of {rows[0]} rows: times as fast as the first rung"), "softmax",
     "Not the number of passes decides here, but how fast an exponential is.")

# %% [markdown]
# The online rung took {{softmaxes["online"] / softmaxes["shifted"]:.1f}} times as long as the shifted one. Why does
# anybody want it? Because of the case in which a row is never stored at all: flash attention computes scores
# tile by tile and throws them away. It cannot go through them three times. That is lesson 14.
#
# Exponentials alone take {{share:.0%}} of the time of the plain rung: `np.exp` in a compiled loop is a call for each
# number. A polynomial, after a reduction of the range, is a dozen multiplications without a branch, and the compiler
# does several numbers at once.
#
# ## How to climb
#
# 1. Write the loop as the formula stands. It is the reference for all others.
# 2. Compare values *before* times, on sizes that are not friendly, too.
# 3. Change one thing: the order of loops, the reuse of what was loaded, the number of passes, the function inside.
# 4. Measure again; the least of several runs, compilation left out.
#
# ## What to take home
#
# - Memory read in order, and each number used several times while it is near: most of the speed is there.
# - A softmax must be shifted; that is about right and wrong, not about speed.
# - The online softmax saves a pass and costs exponentials. Its use is that it needs no row at once.
# - Times are facts about one machine. Values are compared first, everywhere.
#
# ## Questions
#
# 1. Why may the compiler not turn the naive inner loop into vector instructions by itself?
#    <details><summary>Answer</summary>
#
#    Eight lanes would be eight partial sums, added up in another order. In floating point that is another number, so a
#    compiler must be told that it may: `kernel(reduces=True)` does. The reordered loop has no such sum: its lanes are
#    eight different numbers of $c$.
#
#    </details>
# 2. In the online loop, how often is the branch taken for a row in random order of 1,024 numbers?
#    <details><summary>Answer</summary>
#
#    Number $j$ is a new maximum with probability $1/j$. The first is $m$ from the start, so the branch is taken
#    $\sum_{j=2}^{1024} 1/j$ times in the mean, about 6.5.
#
#    </details>
#
# To do it yourself: `tinyattn exercise softmax_kernel`; `tinyattn check FILE.py` marks what you wrote.
#
# ## Where it stands in the code
#
# - `tinyattn/device.py`: `kernel`, `set_num_threads`: how a loop is compiled and cached
# - `tinyattn/ops/matmul.py`: `matmul`: panels, blocks and threads around the inner product
# - `tinyattn/ops/softmax.py`: `_softmax`, `_exp_in_place`: the passes of the package
# - `tinyattn/ops/shared.py`: `product`, `exp_below_32`: the product in tiles, and the polynomial
