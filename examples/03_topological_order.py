# %% [markdown]
# # 3. Why the order must be topological
#
# A node may send its gradient on only when all nodes that use it have sent theirs. Any other order gives wrong numbers,
# and the recursion that is always right takes $2^n$ calls where the engine takes $n$.

# %%
from lesson import show

import tinyattn as ta
from viz import graph, steps

# %% [markdown]
# ## The smallest example
#
# $$a = 1, \qquad b = a + a, \qquad c = b + b$$
#
# So $c = 4a$ and $\partial c / \partial a = 4$. The program is two lines long, and a walk that looks
# right gets it wrong.

# %%


def doubled(times, start=1.0):
    """a and the last of b = a + a, c = b + b, ..."""
    a = ta.Tensor(start, requires_grad=True, name="a")
    last = a
    for _ in range(times):
        last = last + last
    return a, last


a, c = doubled(2)
c.backward()
print("dc/da =", a.grad.item())
assert a.grad.item() == 4
show(graph(c, values=True, direction="LR"), "graph",
     "a is used twice by b, b twice by c: four paths lead from c to a, each of slope 1.")

# %% [markdown]
# ## Three ways to walk, two of them wrong
#
# All three below start at $c$ with gradient 1 and add what arrives to a table `total`. The operation is always a sum,
# so the gradient of each input is the gradient of the output: nothing but the order can go wrong.
#
# **As soon as reached.** A node is visited once, the first time that anything arrives.

# %%


def key(t):
    """What gradients are summed under: the node that made a Tensor; for a leaf, itself."""
    return t.op or t


def as_soon_as_reached(last):
    total, visited, visits = {key(last): 1}, set(), 0

    def visit(op):
        nonlocal visits
        visits += 1
        visited.add(op)
        for t in op.inputs:
            total[key(t)] = total.get(key(t), 0) + total[op]
            if t.op is not None and t.op not in visited:
                visit(t.op)

    visit(last.op)
    return total, visits


a, c = doubled(2)
total, visits = as_soon_as_reached(c)
early = total[a]
print(f"dc/da = {early}, and dc/db was {total[c.op.inputs[0].op]} in the end")
assert early == 2

# %% [markdown]
# {{early}} in place of 4. Step through it, in the right order and in this one; the switch is in the page:

# %%
walk = steps(c, {"a": a, "b": c.op.inputs[0], "c": c}, order="wrong",
             title="a = 1, b = a + a, c = b + b")
show(walk, "steps", "The wrong order: b sends on what it has as soon as anything has arrived.")

# %% [markdown]
# The first edge from $c$ brought 1 to $b$, and $b$ sent it on at once; the second edge came
# too late. Note that $\partial c / \partial b$ is right in the end. Only what was passed on is not.
#
# **At every arrival.** A node is visited each time something arrives, with its total so far.

# %%


def at_every_arrival(last):
    total, visits = {key(last): 1}, 0

    def visit(op):
        nonlocal visits
        visits += 1
        for t in op.inputs:
            total[key(t)] = total.get(key(t), 0) + total[op]
            if t.op is not None:
                visit(t.op)

    visit(last.op)
    return total, visits


a, c = doubled(2)
total, visits = at_every_arrival(c)
often = total[a]
print(f"dc/da = {often}")
assert often == 6

# %% [markdown]
# {{often}} in place of 4. The first time $b$ sent 1 along both its edges, the second time its total, 2: so the first
# 1 was sent twice.
#
# **At every arrival, with the new part only.** This is the chain rule, path by path, and it is right. It is also what a
# short recursion does.

# %%


def path_by_path(last):
    total, visits = {}, 0

    def send(t, part):
        nonlocal visits
        if t.op is None:
            total[t] = total.get(t, 0) + part
            return
        visits += 1
        for below in t.op.inputs:
            send(below, part)

    send(last, 1)
    return total, visits


a, c = doubled(2)
total, visits = path_by_path(c)
print(f"dc/da = {total[a]}, after {visits} visits of 2 nodes")
assert total[a] == 4 and visits == 3

# %% [markdown]
# Right, but $b$ was visited twice: once for each path to it. The number of paths doubles with each line.
#
# ## What the engine does
#
# It counts, for every node, the edges that will bring it a gradient, and visits a node when its count is down to 0. So
# every node comes after all nodes above it, which is what *topological order* means, and is visited once.

# %%


def by_uses(last):
    uses, stack = {last.op: 0}, [last.op]
    while stack:                                            # first walk: count
        for t in stack.pop().inputs:
            if t.op is not None:
                if t.op not in uses:
                    stack.append(t.op)
                uses[t.op] = uses.get(t.op, 0) + 1
    total, visits, ready = {last.op: 1}, 0, [last.op]
    while ready:                                            # second walk: send
        op = ready.pop()
        visits += 1
        for t in op.inputs:
            total[key(t)] = total.get(key(t), 0) + total[op]
            if t.op is not None:
                uses[t.op] -= 1
                if uses[t.op] == 0:
                    ready.append(t.op)
    return total, visits


walks = [as_soon_as_reached, at_every_arrival, path_by_path, by_uses]
found, counts = {}, {}
for n in (1, 2, 3, 8, 16):
    found[n], counts[n] = [], []
    for walk in walks:
        a, last = doubled(n)
        total, visits = walk(last)
        found[n].append(total[a])
        counts[n].append(visits)
    assert found[n][2] == found[n][3] == 2**n
    assert counts[n][2] == 2**n - 1 and counts[n][3] == n
    assert n == 1 or found[n][0] == 2 and found[n][1] > 2**n

# %% [drawing]
rows = ["| lines | right | as soon as reached | at every arrival | path by path, visits | by uses, visits |",
        "|---:|---:|---:|---:|---:|---:|"]
rows += [f"| {n} | {2**n:,} | {found[n][0]:,} | {found[n][1]:,} | {counts[n][2]:,} | {counts[n][3]} |" for n in found]
table = "\n".join(rows)

# %% [markdown]
# {{table}}
#
# With one line there is nothing to get wrong, which is why the mistake survives a first test. With 16 lines the
# recursion makes {{counts[16][2]:,}} visits, the engine {{counts[16][3]}}. A network whose layers use their input
# twice, as every residual connection and every attention over `x, x, x` does, is such a graph.
#
# A recursion fails in another way too: it is as deep as the graph. Python stops near 1,000 calls.

# %%
a, last = doubled(0)
for _ in range(50_000):                                     # a chain, no paths to count
    last = last + 1.0
try:
    path_by_path(last)
    failed = ""
except RecursionError as error:
    failed = type(error).__name__
last.backward()
print(f"recursion: {failed}; the engine: da = {a.grad.item():.0f}")
assert failed == "RecursionError" and a.grad.item() == 1

# %% [markdown]
# ## What to take home
#
# - A node is visited once, after everything that uses it.
# - Counting uses finds this order without recursion, in two passes over the edges.
# - A test without a shared value cannot find a wrong order. Test with `b + b`.
#
# ## Questions
#
# 1. `as_soon_as_reached` gives 2 for every number of lines. Why not less, why not more?
#    <details><summary>Answer</summary>Every node sends on the 1 that its first edge brought; a gets it twice, from both
#    slots of the last sum.</details>
# 2. A depth-first search lists the nodes so that inputs come first; read backwards, is the list good for the walk?
#    <details><summary>Answer</summary>Yes: it is a topological order too. It needs a search that does not
#    recurse.</details>
#
# To do it yourself: `tinyattn exercise topological_order`; `tinyattn check FILE.py` marks what you wrote.
#
# ## Where it stands in the code
#
# - `tinyattn/autograd.py`: `walk`, `_count_uses`
# - `tinyattn/program.py`: `_in_order`, the depth-first search with a stack of its own
# - `tests/test_autograd.py`: the same example, and chains as long
