# %% [markdown]
# # 17. On a card: the same formulas, computed by a grid
#
# A card has thousands of threads and a memory that cannot feed them. What decides how fast a kernel is, is how often a
# number is fetched: a product of $n \times n$ matrices can fetch $2n$ numbers for each result, or a sixteenth, or a
# sixty-fourth, and the results are the same.
#
# ## What a card is
#
# **Threads.** A kernel is a function that says what *one* thread does. It is launched with thousands of them, and each asks:
# which one am I, so which element is mine? Where a CPU has a loop over elements, a card has no loop: there is a thread for
# each. 32 threads with numbers that follow each other are a *warp*; a warp does one instruction at a time, for all its threads.
#
# **Blocks.** Threads come in blocks, here of 256. A block runs in one place of the card (an H100 has 132 such places), and
# its threads can work together. Blocks cannot: they run in any order, some when others are long done, so no block may wait
# for another or read what another one writes.
#
# **Shared memory.** The threads of a block have a small memory in common, some tens of kilobytes next to where they
# compute. It is filled by the kernel itself: what all of them need is fetched once from the card's *global* memory.
#
# **Barriers.** Threads of a block do not run in step. Before one reads what another has put into shared memory, all must have
# come to a barrier, `cuda.syncthreads()`. And to another before anybody overwrites it.
#
# **Coalesced reads.** Global memory gives 32 bytes at once, eight float32 that lie side by side. If the 32 threads of a
# warp ask for 32 neighbours, that is 4 pieces; if they ask for numbers that lie far apart, it is 32 pieces, and seven
# eighths of what comes is thrown away. So neighbouring threads should read neighbouring numbers.
#
# **Registers.** What a thread computes with. They are the fastest memory and there are many of them: 65,536 in each place.
# The more a thread takes, the fewer threads there can be.
#
# ## How it is measured here
#
# Times need a card. But how often a kernel reads and writes is a fact about the kernel, and Numba's simulator, which plays
# the threads one after the other in Python, can be watched: `tinyattn.cuda.checker.count`. How many registers and how much
# shared memory a kernel takes is known to NVIDIA's compiler, which needs no card either. So this lesson asks three times: the
# simulator for results and counts, in a second process, since Numba must be told before it begins; the compiler for registers;
# and a card for times, if there is one.

# %%
import json
import math
import os
import subprocess
import sys
import time

import numpy as np
from lesson import HERE, show

from tinyattn import Tensor
from tinyattn.autograd import fused
from tinyattn.cuda import SIMULATED, checker, cuda, cuda_kernel, flat, link, ptx
from tinyattn.cuda import exp as cuda_exp
from tinyattn.cuda import tanh as cuda_tanh
from tinyattn.device import cuda_status, empty, numba_cuda, to_device
from tinyattn.functional import scaled_dot_product_attention
from tinyattn.ops import attention_cuda
from viz.plot import COLOURS, HATCHES, bare, figure

CARD = cuda_status() == "present"
noted = {}


def in_the_simulator(experiment):
    """What experiment() returns in the simulator: there this whole file is run once, and notes it."""
    if SIMULATED:
        noted[experiment.__name__] = experiment()
    elif not noted:
        environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "1", "LESSON_NOTES": "1"}
        done = subprocess.run([sys.executable, HERE / "17_on_a_card.py"], env=environment,
                              capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        noted.update(json.loads(done.stdout.splitlines()[-1]))
    return noted[experiment.__name__]


print("a card is here: times are measured on it." if CARD else "no card is here: no times.",
      "Results and counts are those of the simulator")


def on_card(x):
    return flat(to_device(x, "cuda"))


def close(found, right, what):
    """Equal up to the roundings of float32, as a share of the largest element."""
    error = np.abs(found - right).max() / np.abs(right).max()
    assert error < 1e-5, (what, error)


def seconds(launch, *arguments):
    """Of one launch: the least of three rounds, in each of which 20 are waited for together."""
    launch(*arguments)
    numba_cuda().synchronize()
    rounds = []
    for _ in range(3):
        begun = time.perf_counter()
        for _ in range(20):
            launch(*arguments)
        numba_cuda().synchronize()
        rounds.append((time.perf_counter() - begun) / 20)
    return min(rounds)


def taken(kernel):
    """What NVIDIA's compiler says that a kernel takes of a card of compute capability 9.0."""
    return link.usage(ptx.ptx(kernel, kernel.signatures[0], (9, 0)), (9, 0))


# %% [markdown]
# ## The product of two matrices
#
# $$c_{ij} = \sum_k a_{ik}\, b_{kj}$$
#
# **0. The wrong way round:** a thread an element, neighbouring threads in neighbouring *rows*. In one step of $k$ the threads
# of a warp read 32 numbers of $a$ that lie a row apart: 32 pieces.
#
# **1. Naive:** a thread an element, neighbouring threads in neighbouring columns. All threads of a warp want the same number
# of $a$ and 32 neighbours of $b$: 1 + 4 pieces. Two numbers are read for one multiplication.
#
# **2. Tiled:** a block computes a square of 16 x 16 elements. Its 16 rows need the same 16 columns of $b$, so for 16 steps of $k$
# after another the block fetches a square of $a$ and one of $b$ into shared memory, each thread one number of either; each is used
# 16 times.
#
# **3. Blocked:** a thread computes 4 x 4 elements, a block 64 x 64. Of shared memory a thread now reads 4 + 4
# numbers for 16 multiplications in place of 2 for one. The rows of the tiles are two numbers longer than needed: shared memory
# has 32 banks, each of which gives one number at a time, and so the threads of a warp write to 32 different ones.

# %%
SIDE, EACH = 16, 4         # threads along the side of a block; elements along the side of a thread
WIDE = SIDE * EACH
LINE = WIDE + 2
PRODUCT = "T[::1], T[::1], T[::1], int64, int64"     # a (m, depth), b (depth, n), c (m, n)


@cuda_kernel(PRODUCT, ("float32",))
def wrong_way_round(a, b, c, depth, n):
    """Thread e computes one element: i counts faster than j."""
    e, m = cuda.grid(1), c.size // n
    i, j = e % m, e // m
    total = a.dtype.type(0)
    for k in range(depth):
        total += a[i * depth + k] * b[k * n + j]
    c[i * n + j] = total


@cuda_kernel(PRODUCT, ("float32",))
def naive(a, b, c, depth, n):
    """Thread e computes element e: j counts faster."""
    e = cuda.grid(1)
    i, j = e // n, e % n
    total = a.dtype.type(0)
    for k in range(depth):
        total += a[i * depth + k] * b[k * n + j]
    c[e] = total


@cuda_kernel(PRODUCT, ("float32",))
def tiled(a, b, c, depth, n):
    """A block computes a square of 16 x 16, its thread (r, s) one element of it."""
    left = cuda.shared.array((SIDE, SIDE), a.dtype)
    right = cuda.shared.array((SIDE, SIDE), a.dtype)
    r, s, across = cuda.threadIdx.x // SIDE, cuda.threadIdx.x % SIDE, n // SIDE
    i, j = cuda.blockIdx.x // across * SIDE + r, cuda.blockIdx.x % across * SIDE + s
    total = a.dtype.type(0)
    for k in range(0, depth, SIDE):
        left[r, s] = a[i * depth + k + s]
        right[r, s] = b[(k + r) * n + j]
        cuda.syncthreads()                           # now both squares are there
        for x in range(SIDE):
            total += left[r, x] * right[x, s]
        cuda.syncthreads()                           # now nobody reads them any more
    c[i * n + j] = total


@cuda_kernel(PRODUCT, ("float32",))
def blocked(a, b, c, depth, n):
    """A block computes a square of 64 x 64, its thread (r, s) its elements (r + 16 u, s + 16 v)."""
    left = cuda.shared.array((SIDE, LINE), a.dtype)  # a turned: [step, row]
    right = cuda.shared.array((SIDE, LINE), a.dtype)
    sums = cuda.local.array((EACH, EACH), a.dtype)   # loops of 4 are unrolled, so these are registers
    down = cuda.local.array(EACH, a.dtype)
    r, s, across = cuda.threadIdx.x // SIDE, cuda.threadIdx.x % SIDE, n // WIDE
    i, j = cuda.blockIdx.x // across * WIDE + r, cuda.blockIdx.x % across * WIDE + s
    for u in range(EACH):
        for v in range(EACH):
            sums[u, v] = 0
    for k in range(0, depth, SIDE):
        for u in range(EACH):
            left[s, r + u * SIDE] = a[(i + u * SIDE) * depth + k + s]
            right[r, s + u * SIDE] = b[(k + r) * n + j + u * SIDE]
        cuda.syncthreads()
        for x in range(SIDE):
            for u in range(EACH):
                down[u] = left[x, r + u * SIDE]
            for v in range(EACH):
                other = right[x, s + v * SIDE]
                for u in range(EACH):
                    sums[u, v] += down[u] * other
        cuda.syncthreads()
    for u in range(EACH):
        for v in range(EACH):
            c[(i + u * SIDE) * n + j + v * SIDE] = sums[u, v]


# name: the kernel, and how many elements a block of 256 threads computes
RUNGS = {"wrong way": (wrong_way_round, 256), "naive": (naive, 256), "tiled": (tiled, 256),
         "blocked": (blocked, WIDE * WIDE)}


def multiply(rung, a, b, c, depth, n):
    """Launch a rung on flat arrays of the card. Sizes must be multiples of 64 (of 16 for `tiled`)."""
    kernel, elements = RUNGS[rung]
    kernel[c.size // elements, 256](a, b, c, depth, n)


def matrices(n, rng):
    return [rng.normal(size=(n, n)).astype(np.float32) for _ in range(2)]


def product_counts():
    """For each rung, how often an element of c had its block, or itself, read and write."""
    n, found = WIDE, {}
    a, b = matrices(n, np.random.default_rng(0))
    for rung, (kernel, _) in RUNGS.items():
        c = empty(n * n, a.dtype, "cuda")
        with checker.count() as counts:
            multiply(rung, on_card(a), on_card(b), c, n, n)
        close(c.copy_to_host().reshape(n, n), a.astype(np.float64) @ b, rung)
        one = counts[kernel.name]
        found[rung] = {"reads": one.reads.total() / c.size, "writes": one.writes.total() / c.size,
                       "pieces": one.pieces.total() / c.size, "shared": one.shared_reads / c.size,
                       "barriers": one.barriers / one.blocks, "launches": one.launches}
    return found


products = in_the_simulator(product_counts)
n = WIDE
print(f"{n} x {n} times {n} x {n}: all rungs give NumPy's product; an element of the result takes")
print(f"{'':10} {'reads':>7} {'pieces':>7} {'writes':>7} {'of shared memory':>17} {'barriers':>9}")
for rung, one in products.items():
    print(f"{rung:10} {one['reads']:7.0f} {one['pieces']:7.2f} {one['writes']:7.0f}"
          f" {one['shared']:17.0f} {one['barriers']:9.0f}")

reads = {rung: one["reads"] for rung, one in products.items()}
assert reads == {"wrong way": 2 * n, "naive": 2 * n, "tiled": 2 * n / SIDE, "blocked": 2 * n / WIDE}
shared = {rung: one["shared"] for rung, one in products.items()}
assert shared == {"wrong way": 0, "naive": 0, "tiled": 2 * n, "blocked": 2 * n / EACH}
# a warp's pieces in one step of k, for 32 elements; and those of c, written once
assert products["wrong way"]["pieces"] == (n * (32 + 1) + 32) / 32
assert products["naive"]["pieces"] == (n * (1 + 4) + 4) / 32
# the others get nothing that they did not ask for: eight numbers a piece
assert all(products[rung]["pieces"] == (reads[rung] + 1) / 8 for rung in ("tiled", "blocked"))
assert all(one["writes"] == one["launches"] == 1 for one in products.values())
assert [one["barriers"] for one in products.values()] == [0, 0, 2 * n / SIDE, 2 * n / SIDE]

# %% [drawing]


def bars(groups, title):
    """Bars side by side: {group: {name: number}}."""
    fig = figure(8, 0.8 + 0.42 * sum(map(len, groups.values())))
    axes = fig.add_subplot()
    names, y, ticks = list(next(iter(groups.values()))), 0, []
    most = max(max(group.values()) for group in groups.values())
    for group in groups.values():
        ticks.append(y + (len(group) - 1) / 2)
        for name, number in group.items():
            i = names.index(name)
            axes.barh(y, number, color=COLOURS[i], hatch=HATCHES[i], edgecolor="white", height=0.9,
                      label=name if y == i else None)
            axes.text(number, y, f"  {number:.3g}", va="center", size=12)
            y += 1
        y += 0.6
    axes.set_yticks(ticks, groups, size=12)
    axes.invert_yaxis()
    bare(axes)
    axes.grid(visible=False)
    axes.set_title(title, size=13)
    axes.set_xlim(0, 1.15 * most)
    axes.legend(fontsize=11, frameon=False, loc="lower right")
    fig.tight_layout()
    return fig


show(bars({rung: {"pieces of 32 bytes asked for": one["pieces"],
                  "reads of global memory": one["reads"],
                  "reads of shared memory": one["shared"]} for rung, one in products.items()},
          f"product of {n} x {n}: an element of the result takes"), "reads",
     "Counted in the simulator. What a rung takes from global memory it must wait for; "
     "the wrong way round reads as often as the naive one, but asks for "
     f"{products['wrong way']['pieces'] / products['naive']['pieces']:.1f} times as many pieces.")

# %% [markdown]
# The counts are what the formulas say: naive $2n$, tiled $2n/16$, blocked $2n/64$ reads of global memory for an element; and of
# shared memory $2n$ tiled, $2n/4$ blocked. The second rung spares global memory and reads shared memory in its place, as
# often as ever. The third spares both.
#
# How much is enough? By its data sheet an H100 multiplies and adds $33 \cdot 10^{12}$ pairs of float32 a second, and
# its memory gives $0.84 \cdot 10^{12}$ float32: a number that was fetched must be used some 40 times. Naive
# uses it {{n / reads["naive"]:.1f}} times, tiled {{n / reads["tiled"]:.0f}}, blocked {{n / reads["blocked"]:.0f}} times. (The card's
# caches help the naive one; a product of large matrices does not fit into them.) So the package goes one rung
# further, 8 x 8 elements a thread and 128 x 128 a block.
#
# What that costs are registers and shared memory:

# %%
print(ptx.missing() or "for compute capability 9.0:  registers  stack bytes  shared bytes")
for rung, (kernel, _) in RUNGS.items() if not ptx.missing() else ():
    use = taken(kernel)
    print(f"{rung:27} {use.registers:10} {use.stack:12} {use.shared:13}")
    assert use.stack == use.spill_stores == use.spill_loads == 0 and use.threads >= 256
    assert use.shared == {"tiled": 2 * 4 * SIDE**2, "blocked": 2 * 4 * SIDE * LINE}.get(rung, 0)

# %% [markdown]
# And the times:


# %%
def product_times(sizes=(512, 2048)):
    """{(rung, n): seconds} on the card, the package's product last; nothing without a card."""
    took = {}
    for n in sizes if CARD else ():
        a, b = matrices(n, np.random.default_rng(0))
        right, x, y = a.astype(np.float64) @ b, Tensor(a, device="cuda"), Tensor(b, device="cuda")
        flat_a, flat_b, c = on_card(a), on_card(b), empty(n * n, a.dtype, "cuda")
        for rung in RUNGS:
            took[rung, n] = seconds(multiply, rung, flat_a, flat_b, c, n, n)
            close(c.copy_to_host().reshape(n, n), right, rung)
        took["package", n] = seconds(Tensor.__matmul__, x, y)
        close((x @ y).numpy(), right, "package")
    return took


def gflops(took, rung, n):
    if not took:
        return "not yet measured (no card)"
    return f"{2 * n**3 / took[rung, n] / 1e9:,.0f} GFLOP/s"


product_took = product_times()
for rung in [*RUNGS, "package"]:
    print(f"{rung:10} {gflops(product_took, rung, 512):>27} at 512"
          f" {gflops(product_took, rung, 2048):>27} at 2048")

# %% [markdown]
# ## A barrier too few
#
# The tiled product has two barriers a round. Without the second one a thread that is early overwrites a number that another
# one has still to read. On a card that goes well on some days: nothing says when a thread is early. So values are no
# test of it. The package's race checker watches every access in the simulator, and asks of any two threads that touch one
# element, one of them writing: is there a barrier between them?


# %%
@cuda_kernel(PRODUCT, ("float32",))
def without_the_second(a, b, c, depth, n):
    """`tiled`, but for its last barrier."""
    left = cuda.shared.array((SIDE, SIDE), a.dtype)
    right = cuda.shared.array((SIDE, SIDE), a.dtype)
    r, s, across = cuda.threadIdx.x // SIDE, cuda.threadIdx.x % SIDE, n // SIDE
    i, j = cuda.blockIdx.x // across * SIDE + r, cuda.blockIdx.x % across * SIDE + s
    total = a.dtype.type(0)
    for k in range(0, depth, SIDE):
        left[r, s] = a[i * depth + k + s]
        right[r, s] = b[(k + r) * n + j]
        cuda.syncthreads()
        for x in range(SIDE):
            total += left[r, x] * right[x, s]
    c[i * n + j] = total


def races():
    """What the checker says of a product of 16 x 32 and 32 x 16, with the barrier and without."""
    rng, said = np.random.default_rng(0), {}
    a, b = (on_card(rng.normal(size=512).astype(np.float32)) for _ in range(2))
    for kernel in (tiled, without_the_second):
        try:
            with checker.watch():
                kernel[1, 256](a, b, empty(256, "float32", "cuda"), 32, 16)
            said[kernel.__name__] = "nothing"
        except checker.Fault as fault:
            said[kernel.__name__] = str(fault).removeprefix(f"{kernel.name}: ")
    return said


verdicts = in_the_simulator(races)
for name, said in verdicts.items():
    print(f"{name}: {said}")
assert verdicts["tiled"] == "nothing"
assert "reads what thread 0 writes, with no barrier between" in verdicts["without_the_second"]

# %% [markdown]
# ## Attention
#
# $$e = q\,k^\top \qquad w_{ts} = \frac{e^{e_{ts} / \sqrt D}}{\sum_u e^{e_{tu} / \sqrt D}} \qquad o = w\,v$$
#
# **1. Three kernels:** the tiled product for $e$, a softmax with one block a row, the tiled product for $o$. Between
# them $e$ and $w$ lie in global memory, $T \times S$ numbers each. $e$ is written once and read three times (for the largest of a row,
# for the sum, for the result), $w$ is written once and read by the product.
#
# **2. Fused:** the package's flash attention (lesson 14). A block has a tile of queries and goes through the keys and values
# tile by tile, with a running maximum and a running sum; scores live in registers and are forgotten.

# %%
LANES = 32                                           # threads of a row


@cuda_kernel("T[::1], T[::1], int64, T", ("float32",))
def softmax(e, w, n, scale):
    """Block b computes row b; its thread t has the elements t, t + 32, ..., each row n long."""
    shared = cuda.shared.array(LANES, e.dtype)
    t, first = cuda.threadIdx.x, cuda.blockIdx.x * n
    high = e.dtype.type(-math.inf)
    for j in range(t, n, LANES):
        x = e[first + j]
        high = x if x > high else high
    shared[t] = high
    cuda.syncthreads()
    for other in range(LANES):                       # each thread by itself: the largest of all
        high = shared[other] if shared[other] > high else high
    cuda.syncthreads()
    total = e.dtype.type(0)
    for j in range(t, n, LANES):
        total += cuda_exp((e[first + j] - high) * scale)
    shared[t] = total
    cuda.syncthreads()
    total = e.dtype.type(0)
    for other in range(LANES):
        total += shared[other]
    for j in range(t, n, LANES):
        w[first + j] = cuda_exp((e[first + j] - high) * scale) / total


def three_kernels(q, k, v):
    """The output on the card, and {name: launch}, for q (T, D), k (S, D), v (S, D) of the host."""
    (T, D), S = q.shape, len(k)
    e, w, o = (empty(size, q.dtype, "cuda") for size in (T * S, T * S, T * D))
    q, k, v = on_card(q), on_card(np.ascontiguousarray(k.T)), on_card(v)
    return o, {"scores": lambda: multiply("tiled", q, k, e, D, S),
               "softmax": lambda: softmax[T, LANES](e, w, S, np.float32(D**-0.5)),
               "product": lambda: multiply("tiled", w, v, o, S, D)}


def one_after_another(launches):
    for launch in launches.values():
        launch()


def flash(*tensors):
    with fused("force"):
        return scaled_dot_product_attention(*tensors)


def inputs(T, S, D, rng):
    """q, k, v, and the right output in float64."""
    q, k, v = (rng.normal(size=(rows, D)).astype(np.float32) for rows in (T, S, S))
    e = q.astype(np.float64) @ k.T / D**0.5
    w = np.exp(e - e.max(-1, keepdims=True))
    return q, k, v, w / w.sum(-1, keepdims=True) @ v


def attention_counts():
    """{launch: reads and writes by array}, and the sizes."""
    T, S, D = 32, 64, 16
    q, k, v, right = inputs(T, S, D, np.random.default_rng(1))
    o, launches = three_kernels(q, k, v)
    launches["fused"] = lambda: close(flash(*tensors).numpy(), right, "fused")
    tensors, found = [Tensor(x, device="cuda") for x in (q, k, v)], {}
    for name, launch in launches.items():
        with checker.count() as counts:
            launch()
        (one,) = counts.values()
        assert one.launches == 1
        found[name] = [one.reads, one.writes]
    close(o.copy_to_host().reshape(T, D), right, "three kernels")
    return {"sizes": [T, S, D], "tile": attention_cuda.TILE, "launches": found}


def through_three(T, S, D):
    """How many numbers go through global memory: of q, k, v and o; of the matrices T x S."""
    return T * S * D // SIDE * 3 + T * D, T * S * (1 + 3 + 1) + T * S * D // SIDE


def through_fused(T, S, D, tile):
    """The same of the fused kernel. D // tile blocks have the same tile of queries; each needs
    all of q and k for the scores, and `tile` columns of v."""
    return T // tile * (D // tile) * (S // tile) * tile * (2 * D + tile) + T * D, 0


attention = in_the_simulator(attention_counts)
(T, S, D), tile, launches = attention["sizes"], attention["tile"], attention["launches"]
r, w = ({name: one[i] for name, one in launches.items()} for i in (0, 1))
three = (r["scores"]["a"] + r["scores"]["b"] + r["product"]["b"] + w["product"]["c"],
         w["scores"]["c"] + r["softmax"]["e"] + w["softmax"]["w"] + r["product"]["a"])
one = sum(r["fused"][name] for name in "qkv") + w["fused"]["o"], 0
print(f"T, S, D = {T}, {S}, {D}: both give NumPy's output. Numbers read and written:")
print(f"{'':14} {'launches':>9} {'of q, k, v, o':>14} {'of T x S':>9}")
print(f"{'three kernels':14} {3:9} {three[0]:14,} {three[1]:9,}")
print(f"{'fused':14} {1:9} {one[0]:14,} {one[1]:9,}    (tiles of {tile} x {tile}, simulated)")
assert three == through_three(T, S, D) and one == through_fused(T, S, D, tile)
assert w["fused"] == {"o": T * D, "high": 2 * T}     # and nothing else is written

# %% [markdown]
# The fused kernel writes its output and two numbers a query, which the backward pass wants. It reads much here, as its
# tiles are small in the simulator, whose threads are slow. But the formulas that the counts have
# confirmed hold for tiles of 64, too:

# %%
big, tile = (4096, 4096, 64), 64
assert SIMULATED or tile == attention_cuda.TILE
memory = {}
for name, (vectors, matrix), held in (("three kernels", through_three(*big), 2 * big[0] * big[1]),
                                      ("fused", through_fused(*big, tile), 0)):
    memory[name] = (vectors + matrix) * 4e-6
    print(f"T, S, D = {big}, by formula: {name:14} {memory[name]:6,.0f} MB read and written,"
          f"{held * 4e-6:5,.0f} MB held")
assert memory["three kernels"] > 6 * memory["fused"]


def attention_times(lengths=(512, 4096), D=64):
    """{(name, T): seconds} on the card."""
    took = {}
    for T in lengths if CARD else ():
        q, k, v, right = inputs(T, T, D, np.random.default_rng(1))
        o, launches = three_kernels(q, k, v)
        tensors = [Tensor(x, device="cuda") for x in (q, k, v)]
        took["three kernels", T] = seconds(one_after_another, launches)
        close(o.copy_to_host().reshape(T, D), right, "three kernels")
        took["fused", T] = seconds(flash, *tensors)
        close(flash(*tensors).numpy(), right, "fused")
    return took


def microseconds(took, *key):
    return f"{took[key] * 1e6:,.0f} us" if took else "not yet measured (no card)"


attention_took = attention_times()
for name in ("three kernels", "fused"):
    print(f"{name:14} {microseconds(attention_took, name, 512):>27} at T = 512"
          f" {microseconds(attention_took, name, 4096):>27} at T = 4096")

# %% [markdown]
# A part of the difference is the larger tiles: with the blocked product the three kernels would read a quarter of what
# they read for their products. What no tiles can save is the matrix: it is written, read
# three times, written again as weights, and read at least once more.
#
# One head with 512 queries is 8 tiles, so 8 blocks, on a card with more than a hundred places for blocks. It is
# batches and heads that keep a card busy.
#
# ## A chain of elementwise operations
#
# $$y = \tanh(x + b) \cdot g$$
#
# Each operation by itself reads its inputs and writes its result, and computes almost nothing in between. Three launches
# move eight numbers for each element; a kernel that does all three moves four, since what lies between stays in a
# register. And a launch costs the host some microseconds, whatever it computes.


# %%
@cuda_kernel("T[::1], T[::1], T[::1]", ("float32",))
def plus(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] + y[i]


@cuda_kernel("T[::1], T[::1]", ("float32",))
def tangent(x, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = cuda_tanh(x[i])


@cuda_kernel("T[::1], T[::1], T[::1]", ("float32",))
def times(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] * y[i]


@cuda_kernel("T[::1], T[::1], T[::1], T[::1]", ("float32",))
def all_at_once(x, b, g, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = cuda_tanh(x[i] + b[i]) * g[i]


def chain(x, b, g, room, out):
    plus.each(out.size)(x, b, room)
    tangent.each(out.size)(room, room)
    times.each(out.size)(room, g, out)


def at_once(x, b, g, room, out):
    all_at_once.each(out.size)(x, b, g, out)


CHAINS = {"three launches": chain, "one launch": at_once}


def chains(n):
    """The arguments, and what is right."""
    x, b, g = (np.random.default_rng(2).normal(size=(3, n))).astype(np.float32)
    rooms = (empty(n, x.dtype, "cuda") for _ in range(2))
    return [*map(on_card, (x, b, g)), *rooms], np.tanh(x + b) * g


def chain_counts():
    """{name: launches, reads and writes an element}; the length is no multiple of a block's."""
    found = {}
    for name, launch in CHAINS.items():
        arguments, right = chains(1000)
        with checker.count() as counts:
            launch(*arguments)
        close(arguments[-1].copy_to_host(), right, name)
        ones = counts.values()
        found[name] = [sum(one.launches for one in ones),
                       sum(one.reads.total() for one in ones) / right.size,
                       sum(one.writes.total() for one in ones) / right.size]
    return found


def chain_times(n=2**24):
    took = {}
    for name, launch in CHAINS.items() if CARD else ():
        arguments, right = chains(n)
        took[name, n] = seconds(launch, *arguments)
        close(arguments[-1].copy_to_host(), right, name)
    return took


counted, chain_took = in_the_simulator(chain_counts), chain_times()
for name, (_, r, w) in counted.items():
    print(f"{name:14} {r:.0f} reads and {w:.0f} writes an element;"
          f" 2^24 elements: {microseconds(chain_took, name, 2**24)}")
assert counted == {"three launches": [3, 5, 3], "one launch": [1, 3, 1]}
if "LESSON_NOTES" in os.environ:
    print(json.dumps(noted))

# %% [markdown]
# `ta.compile` (lesson 15) finds such chains in a training step and writes the fused kernel by itself, for a card as for the CPU.
#
# ## What to take home
#
# - A kernel says what one thread does; a block shares memory and barriers; between blocks there is nothing.
# - Speed is how often a fetched number is used: $1/2$, 8, 32 multiplications for a read, on three rungs.
# - Fusing takes away what no tile can: results that go to memory only to be fetched again.
# - Reads, registers and races can be found out without a card. Times cannot, and none are claimed here without one.
#
# ## Questions
#
# 1. Why does `tiled` need its first barrier, if each thread fetches numbers into places of its own?
#    <details><summary>Answer</summary>
#
#    It writes two places and reads 32, of which other threads have written nearly all. Without the barrier it may read
#    what is left from the round before.
#
#    </details>
# 2. A block of 1024 threads, each with 8 x 8 elements, would read even less. Why does nobody do that?
#    <details><summary>Answer</summary>
#
#    64 sums and what is multiplied are some hundred registers a thread; 1024 threads would need 100,000, and a place has
#    65,536. And its square is 256 x 256: a product of 2048 x 2048 would have only 64 blocks, and half of the
#    card would have nothing to do.
#
#    </details>
# 3. `tangent` is launched with the same array as input and output. Why may it, and why may `tiled` not?
#    <details><summary>Answer</summary>
#
#    Thread $i$ reads element $i$ and writes element $i$, and nobody else touches it. In a product each element of $a$ is read
#    by a row of blocks, of which the first may have finished before the last begins.
#
#    </details>
#
# ## Where it stands in the code
#
# - `tinyattn/cuda/kernel.py`: `cuda_kernel`, `CudaKernel.each`: what a kernel is, and its launch
# - `tinyattn/ops/matmul_cuda.py`: `square`, `way`: the blocked product for all sizes, and which size of square when
# - `tinyattn/ops/attention_cuda.py`: `_attention_cuda`, `_add_product`: flash attention by a grid
# - `tinyattn/compiler/fusion_cuda.py`: `source_of`: chains of elementwise operations as one kernel
# - `tinyattn/cuda/checker.py`: `watch`, `count`: races and reads, without a card
# - `tinyattn/cuda/link.py`: `usage`: registers and spills; `tinyattn ptx` shows them for every kernel
