# %% [markdown]
# # 15. What a compiler does: a training step as a list that can be made shorter
#
# A training step does the same arithmetic in each round; only the numbers change. Written down once, as a list of calls,
# it can be replayed without a graph and without a walk; and a list can be made shorter before it is replayed, without
# changing one bit of what comes out.
#
# The step of this lesson has two projections of one input, content and gate, as the cells of recurrent networks have:
#
# $$h = \tanh(x W) \odot \sigma(x U) \qquad o = h V \qquad \mathcal{L} = \mathrm{mean}\,(o - y)^2$$
#
# It is written carelessly, as steps are: it computes $o - y$ twice, and a mean absolute error that nobody reads.

# %%
import contextlib
import difflib
import io
import time
import tracemalloc

import numpy as np
from lesson import show

import tinyattn as ta
from tinyattn.compiler import capture, stages
from tinyattn.compiler.fusion import Fused, source_of
from tinyattn.compiler.replay import laid_out
from tinyattn.compiler.show import lines_of
from tinyattn.compiler.trace import Hole
from tinyattn.device import JIT
from tinyattn.optim import Adam
from viz.plot import COLOURS, HATCHES, bare, figure


def build(B, K, D, E):
    """A step on x (B, K) and y (B, E), its weights, and a function that draws such x and y."""
    rng = np.random.default_rng(0)

    def weight(name, *shape):
        values = rng.normal(size=shape) / shape[0] ** 0.5
        return ta.Tensor(values, requires_grad=True, dtype="float32", name=name)

    weights = w, u, v = weight("W", K, D), weight("U", K, D), weight("V", D, E)
    optimizer = Adam(weights, lr=1e-3)

    def step(x, y):
        optimizer.zero_grad()
        x, y = ta.Tensor(x), ta.Tensor(y)
        h = (x @ w).tanh() * (x @ u).sigmoid()       # (B, D)
        o = h @ v                                    # (B, E)
        (o - y).abs().mean()                         # nobody reads it
        loss = ((o - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss

    def draw():
        return [rng.normal(size=shape).astype(np.float32) for shape in ((B, K), (B, E))]
    return step, weights, draw


SMALL, LARGE = ((32, 16, 64, 8), (1024, 32, 512, 16)) if JIT else ((4, 3, 5, 2), (8, 4, 6, 3))

# %% [markdown]
# ## Written down
#
# The step runs once, on real numbers. Meanwhile the engine tells a *tape* of every array that it makes: by an operation,
# by the rule of an operation on the way back, by the sum of two gradients. An array is known by its identity, so the
# tape needs to understand neither Python nor the graph. What it leaves is a list of calls on numbered values, each of
# which is made once. A `Hole` stands for an argument: it will hold other numbers in the next round.

# %%
step, weights, draw = build(*LARGE)
captured, _, reason = capture(step, ((Hole(0), Hole(1)), {}), draw())
assert not reason
print("\n".join(lines_of(captured)))
print("and then:", ", ".join(name for name, _ in captured.effects))
values = captured.program.values
out_of, *gradients = captured.program.outputs
assert {leaf.name: values[v].shape for leaf, v in zip(captured.leaves, gradients, strict=True)} == {
    leaf.name: leaf.shape for leaf in weights}

# %% [markdown]
# The step returns `%{{out_of}}`. What is marked `backward` are the rules of lessons 1 and 2, in the order in which the
# walk of lesson 3 called them. Updating the weights is no part of the list; it comes after it.
#
# ## Made shorter
#
# A *pass* makes a list from a list. Each pass knows one reason why a call may go:
#
# - **Needless copies.** `Tensor(x)` copies, so that nobody changes $x$ behind its back; and the walk copies a gradient
#   before it adds another to it. Here each value is made once and then only read.
# - **Dead code.** Go through the list backwards and keep what an output needs: the loss, and the gradients of $W$, $U$
#   and $V$.
# - **Common subexpressions.** Two calls of one operation with the same inputs give the same.
# - **Fusion.** Elementwise calls that follow one another become one loop, so that what only they need is never stored.
#
# What each pass takes out (`-`) and puts in (`+`):

# %%
def texts(captured):
    """The lines, without where each call comes from."""
    return [line.split("  #")[0] for line in lines_of(captured)]


after, counts = dict(stages(captured)), {}
before = texts(captured)
for name, changed in after.items():
    counts[name] = len(changed.program)
    print(f"{name}: {counts[name]} calls")
    for line in difflib.unified_diff(before, texts(changed), lineterm="", n=0):
        if line[0] in "+-" and line[1:3] not in ("++", "--"):
            print("   ", line[0], line[1:])
    before = texts(changed)

order = list(counts.values())
assert order == sorted(order, reverse=True), "no pass makes it longer"
for name in ("needless copies", "dead code", "common subexpressions", "fusion"):
    assert counts[name] < order[list(counts).index(name) - 1], f"{name} found nothing"
assert not any(c.op == "abs" for c in after["dead code"].program.instructions)
assert sum(c.op == "sub" for c in after["common subexpressions"].program.instructions) == 1

# %% [markdown]
# ## A kernel that nobody wrote
#
# A fused chain is written as Python and compiled by Numba, as every other kernel here. What stands in a `_row` is read
# or written once for each element; `t0` never leaves the processor. Each operation is rounded on its own (`as_stored`, and
# no multiply-add across two of them): that is why the bits stay those of the single operations.

# %%
optimised, _ = laid_out(after["dead code again"])
chains = [call for call in optimised.program.instructions if isinstance(call, Fused)]
last = chains[-1]
serial = source_of(last).split("@exact(parallel")[0]
print(serial[serial.index("@exact()"):].rstrip())
assert all(name in last.stored or f"{name}_row" not in serial for name, _ in last.steps)

# %% [markdown]
# ## Who needs which memory, and until when
#
# A value is born in the call that makes it, and dead after the last call that reads it. All lives are known before the
# first replay. So memory is dealt out once: values whose lives do not overlap may share a place, and a result may take over
# the place of an operand that dies in the very call (*in place*). What comes out lives to the end.
#
# A deeper network shows more of it: six layers of $\tanh(x W)$. On the way forward nearly nothing can go, as the rules
# will ask for it: the mountain that every training step has to climb. On the way back, new values move into the places of
# those that are done with.

# %%
matrices = [ta.Tensor(np.eye(LARGE[2]) / 2, requires_grad=True, dtype="float32") for _ in range(6)]


def deep(x):
    for w in matrices:
        w.grad = None
    x = ta.Tensor(x)
    for w in matrices:
        x = (x @ w).tanh()
    loss = (x * x).mean()
    loss.backward()
    return loss


written, _, reason = capture(deep, ((Hole(0),), {}), [np.ones((LARGE[2], LARGE[2]), np.float32)])
assert not reason
mountain, layout = laid_out(dict(stages(written))["dead code again"])


def overlap(a, b):
    """Do two blocks share a byte while both are needed?"""
    together = a.birth <= b.death and b.birth <= a.death
    return together and a.place < b.place + b.bytes and b.place < a.place + a.bytes


blocks, in_place = layout.blocks, [c for c in mountain.program.instructions
                                     if isinstance(c, Fused) and c.replaces]
assert not any(overlap(a, b) for i, a in enumerate(blocks) for b in blocks[:i])
assert layout.arena < layout.apart and in_place
print(f"{len(blocks)} blocks, {layout.arena:,} bytes in place of {layout.apart:,}; no two clash")
print(f"{len(in_place)} calls write in place")

# %% [drawing]
fig = figure(11, 5)
panels, apart = fig.subplots(1, 2, sharey=True), 0
for block in blocks:
    forward = mountain.program.instructions[block.birth].part == "forward"
    for axes, place in zip(panels, (apart, block.place), strict=True):
        axes.broken_barh([(block.birth, block.death + 1 - block.birth)],
                         (place / 1e6, block.bytes / 1e6), facecolor=COLOURS[4 if forward else 5],
                         hatch="" if forward else "//", edgecolor="white", linewidth=0.8)
    apart += block.bytes
for axes, title, total in zip(panels, ("each for itself", "by lifetime"),
                              (layout.apart, layout.arena), strict=True):
    axes.axhline(total / 1e6, color="#555555", linestyle=":")
    axes.set_title(f"{title}: {total / 1e6:.1f} MB", size=13)
    axes.set_xlim(0, len(mountain.program) + 1)
    axes.set_xlabel("call", size=12)
    bare(axes)
panels[0].set_ylabel("place in memory (MB)", size=12)
fig.tight_layout()
show(fig, "memory", "A bar a block of memory: from birth to death, as high as it is large. Plain: made on the "
                    "way forward; hatched: on the way back. The dotted line is the memory in all.")

# %% [markdown]
# ## The ladder
#
# **1. Eager:** the step as it stands. Each round builds a graph, walks it and throws it away.
#
# **2. Replayed:** the list as it was captured, no pass (`ta.compile(step, fused=False)`). Memory is dealt out; no Tensor,
# no graph, no walk.
#
# **3. Compiled:** all passes (`ta.compile(step)`).
#
# Each rung trains weights of its own, on the same eight batches. They must agree to the last bit, weights too.

# %%
def rung(name, size):
    """A step of this rung, its weights, and batches."""
    step, weights, draw = build(*size)
    if name != "eager":
        step = ta.compile(step, fused=name == "compiled")
    return step, weights, draw


def peak(call, *arguments):
    """Bytes that one call allocates at its highest point, as far as Python sees them."""
    tracemalloc.start()
    try:
        call(*arguments)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def microseconds(call, *arguments):
    times = []
    for _ in range(40 if JIT else 2):
        begun = time.perf_counter()
        call(*arguments)
        times.append(time.perf_counter() - begun)
    return 1e6 * min(times)


took, bytes_of, made, results = {}, {}, {}, {}
for size in (SMALL, LARGE):
    for name in ("eager", "replayed", "compiled"):
        step, weights, draw = rung(name, size)
        losses = [step(*draw()).item() for _ in range(8)]
        results[size, name] = losses, [w.numpy().tobytes() for w in weights]
        assert results[size, name] == results[size, "eager"], "the same bits"
        batch = draw()
        bytes_of[size, name] = min(peak(step, *batch) for _ in range(3))  # some replays are checked
        took[size, name] = microseconds(step, *batch)
        if name != "eager":
            (program,) = step.programs.values()
            made[name] = len(program.replay.steps)
            assert (step.captures, step.reason) == (1, "")

print(f"calls of one replay: {made['replayed']}, after the passes {made['compiled']}")
for size in (SMALL, LARGE):
    print(f"B, K, D, E = {size}")
    for name in ("eager", "replayed", "compiled"):
        gain = took[size, "eager"] / took[size, name]
        print(f"  {name:9} {took[size, name]:9.0f} us {gain:6.1f} x the first"
              f" {bytes_of[size, name] / 1e3:10,.0f} kB allocated")
assert made["compiled"] < made["replayed"] <= counts["captured"]
if JIT:
    assert bytes_of[LARGE, "compiled"] < bytes_of[LARGE, "replayed"] < bytes_of[LARGE, "eager"]

# %% [drawing]
fig = figure(11, 2.9)
for axes, size, what in zip(fig.subplots(1, 2), (SMALL, LARGE), ("small", "large"), strict=True):
    for i, name in enumerate(("eager", "replayed", "compiled")):
        gain = took[size, "eager"] / took[size, name]
        axes.barh(i, gain, color=COLOURS[i], hatch=HATCHES[i], edgecolor="white", height=0.7)
        axes.text(gain, i, f"  {gain:.1f} x", va="center", size=12)
    axes.set_yticks(range(3), ("eager", "replayed", "compiled"), size=12)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.25 * took[size, "eager"] / min(took[size, "replayed"], took[size, "compiled"]))
    axes.set_title(f"{what} step: times as fast as eager", size=13)
    bare(axes)
    axes.grid(visible=False)
fig.tight_layout()
show(fig, "ladder", "The same bits three times. In the small step Python is what costs, in the large one "
                    "memory: fresh memory, and going through it.")

# %% [markdown]
# In the small step the arrays are so small that arithmetic hardly counts: what is gained is Python's work for Tensors,
# graph and walk. In the large step it is memory. The eager step asks for {{bytes_of[LARGE, "eager"] / 1e6:.0f}} MB of
# fresh memory in each round, the compiled one for {{bytes_of[LARGE, "compiled"] / 1e6:.1f}}, which single calls take for
# themselves while they run.
#
# ## What cannot be written down
#
# Python runs in the first call only. What it *decided* there would be decided for all batches. So a step that reads a value
# in Python stays eager: right, and not faster. One line says why.

# %%
w = ta.Tensor(np.ones((3, 3), np.float32), requires_grad=True, name="w")


def branches(x):
    """Another program for another batch."""
    w.grad = None
    loss = (x @ w).sum()
    if loss.item() > 0:
        loss = loss * 2
    loss.backward()
    return loss


def chooses(x):
    """The shape of x[x > 0] is known only when its values are."""
    w.grad = None
    loss = (ta.Tensor(x[x > 0]).sum() * w).sum()
    loss.backward()
    return loss


calls_so_far = 0


def counts_calls(x):
    """Depends on what is neither an argument nor a parameter."""
    global calls_so_far
    calls_so_far += 1
    w.grad = None
    loss = (x @ w).sum() * calls_so_far
    loss.backward()
    return loss


rng = np.random.default_rng(1)
for careless, given in ((branches, ta.Tensor), (chooses, np.asarray), (counts_calls, ta.Tensor)):
    batches, calls_so_far = [rng.normal(size=(2, 3)).astype(np.float32) for _ in range(4)], 0
    right = [careless(given(x)).item() for x in batches]
    compiled, calls_so_far, said = ta.compile(careless), 0, io.StringIO()
    with contextlib.redirect_stderr(said):
        found = [compiled(given(x)).item() for x in batches]
    print(said.getvalue().strip())
    assert said.getvalue().count("\n") == 1 and compiled.reason and compiled.replays == 0
    assert found == right, "slower, but not wrong"

# %% [markdown]
# The third one is the treacherous one: nothing in it looks at a value of the batch. It is found because some replays, the
# first on other data and ever fewer later, are compared with the eager step, whose result is then the one that counts. This
# finds only what shows in those rounds: what a step uses and what changes from round to round should be an argument.
#
# Another shape is no failure. It is captured too, and has a list of its own:

# %%
step, weights, draw = build(*SMALL)
compiled = ta.compile(step)
x, y = draw()
for rows in (len(x), len(x) // 2) * 3:
    compiled(x[:rows], y[:rows])
print(f"6 calls: captured {compiled.captures} times")
assert compiled.captures == len(compiled.programs) == 2 and not compiled.reason

# %% [markdown]
# ## What to take home
#
# - A step is a list of calls on arrays. Whoever makes the arrays can write it down; nobody needs to read Python for it.
# - On a list, questions are easy that are hard on a program: who reads this, and who is the last?
# - No pass changes a bit. "Nearly the same" would hide the first mistake of a pass.
# - Python decides once. What it decided by a value, or by a variable outside, is what a compiler must refuse.
#
# ## Questions
#
# 1. Why does dead code come *before* fusion, and once more after it?
#    <details><summary>Answer</summary>
#
#    A dead call in the middle of a chain would be fused into it and computed for ever. And fusion leaves dead calls behind:
#    where a single number was stretched over an array (`expand`) only to be multiplied, the loop reads the number itself,
#    and nobody reads the stretched array any more.
#
#    </details>
# 2. When may $y = \tanh(x)$ be written over $x$, and when may $y = xW$ not?
#    <details><summary>Answer</summary>
#
#    The loop of tanh reads element $i$ before it writes element $i$, and never again: if nobody else needs $x$ later, its
#    place is free. A product reads each row of $x$ for every element of a row of $y$: the first number written would
#    destroy what the second needs.
#
#    </details>
# 3. A step calls dropout. Its mask must be another one in each round, although the list is the same. How?
#    <details><summary>Answer</summary>
#
#    The seed is a value of the list, made by a call that draws it (`draws`). Such calls are never dropped, merged or
#    moved across each other, so the numbers drawn are those of the eager step.
#
#    </details>
#
# `tinyattn explain NAME --passes` prints the lists of any op, mechanism, module or system; `tinyattn graph NAME --after
# fusion` draws one.
#
# ## Where it stands in the code
#
# - `tinyattn/compiler/tape.py`: `Tape`: how a step is written down
# - `tinyattn/compiler/calls.py`: `Call`, `Captured`: what is left of it
# - `tinyattn/compiler/passes.py`: `needless_copies`, `dead_code`, `common_subexpressions`
# - `tinyattn/compiler/fusion.py`: `fuse`, `source_of`: chains, and their kernels
# - `tinyattn/compiler/memory.py`: `lay_out`, `Block`: lives and places
# - `tinyattn/compiler/replay.py`: `Replay`: the calls, bound to their memory
# - `tinyattn/compiler/step.py`: `compile`, `Compiled`: from the first call to the replay
