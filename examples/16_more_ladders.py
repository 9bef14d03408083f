# %% [markdown]
# # 16. Two more ladders: what is never stored, and what Python never sees
#
# Additive scores need $T S D$ hyperbolic tangents, but nobody needs them all at once; and they can be had for far fewer
# exponentials. A recurrent network must take its $T$ steps one after the other; how long that takes is decided by who takes
# them: Python, operation by operation, or one loop.
#
# As in lesson 13 each rung is a few lines. Values are compared first, gradients too; the times are those of the machine
# that built this page.

# %%
import time
import tracemalloc

import numpy as np
from lesson import show

import tinyattn as ta
from tinyattn import Op, Program, Tensor, get_num_threads, grad, kernel, set_num_threads
from tinyattn.device import JIT
from tinyattn.ops.matmul import matmul
from tinyattn.ops.rnn import RNNScan
from tinyattn.ops.shared import tanh
from viz.plot import COLOURS, HATCHES, bare, figure

threads = get_num_threads()
set_num_threads(1)                                   # a ladder compares loops, not threads


def seconds(call, *arguments):
    """The least of some runs, the first of which (compiling) does not count."""
    call(*arguments)
    times = []
    for _ in range(7 if JIT else 1):
        begun = time.perf_counter()
        call(*arguments)
        times.append(time.perf_counter() - begun)
    return min(times)


def peak(call, *arguments):
    """Bytes that NumPy holds at most while the call runs."""
    tracemalloc.start()
    try:
        call(*arguments)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def same(found, right, name):
    """Equal up to a few roundings of float32, as a share of the largest element."""
    for a, b in zip(found, right, strict=True):
        error = np.abs(a - b).max() / np.abs(b).max()
        assert error < 1e-5, (name, error)


# %% [markdown]
# ## Additive scores
#
# $$e_{ts} = \sum_d v_d \tanh(q_{td} + k_{sd})$$
#
# and with $g$ the gradient that comes in, $y_{tsd} = \tanh(q_{td} + k_{sd})$ and
# $\delta_{tsd} = g_{ts}\, v_d\, (1 - y_{tsd}^2)$,
#
# $$\mathrm{d}q_{td} = \sum_s \delta_{tsd} \qquad \mathrm{d}k_{sd} = \sum_t \delta_{tsd} \qquad
# \mathrm{d}v_d = \sum_{ts} g_{ts}\, y_{tsd}$$
#
# **1. Whole array:** as the formulas stand. All $y$ in one array of $T \times S \times D$, and on the way back $\delta$,
# too.
#
# **2. Never stored:** a loop computes $y$, adds it up and forgets it. The way back computes it again. (`tanh` is the
# package's: `np.tanh` in a compiled loop would be a call for each number, as the exponential of lesson 13.)
#
# **3. Taken apart:** $\tanh z = (e^{2z} - 1) / (e^{2z} + 1)$, and $e^{2(q + k)} = e^{2q}\, e^{2k}$. So $(T + S) D$
# exponentials are enough; what is left in the innermost loop is a product, a sum and a division, which become vector
# instructions.
#
# **4. Package:** the third idea, with one division for two queries, and written so that it neither overflows nor loses
# digits.


# %%
def whole_array(q, k, v, g):
    y = np.tanh(q[:, None] + k)                      # (T, S, D)
    delta = g[..., None] * v * (1 - y * y)           # (T, S, D)
    return y @ v, delta.sum(1), delta.sum(0), (g[..., None] * y).sum((0, 1))


@kernel(reduces=True)
def stores_nothing(q, k, v, g, e, dq, dk, dv):
    one = v.dtype.type(1)                            # a bare 1 would turn float32 into float64
    for t in range(len(q)):
        for s in range(len(k)):
            total = v.dtype.type(0)
            for d in range(len(v)):
                total += v[d] * tanh(q[t, d] + k[s, d])
            e[t, s] = total
            for d in range(len(v)):
                y = tanh(q[t, d] + k[s, d])          # once more
                delta = g[t, s] * v[d] * (one - y * y)
                dq[t, d] += delta
                dk[s, d] += delta
                dv[d] += g[t, s] * y


@kernel(reduces=True)
def products(x, w, v, g, e, dq, dk, dv):
    """x = exp(2 q), w = exp(2 k)."""
    one = v.dtype.type(1)
    for t in range(len(x)):
        for s in range(len(w)):
            total = v.dtype.type(0)
            for d in range(len(v)):
                n = x[t, d] * w[s, d]
                total += v[d] * ((n - one) / (n + one))
            e[t, s] = total
            for d in range(len(v)):
                n = x[t, d] * w[s, d]
                y = (n - one) / (n + one)
                delta = g[t, s] * v[d] * (one - y * y)
                dq[t, d] += delta
                dk[s, d] += delta
                dv[d] += g[t, s] * y


def room(q, k, v, g):
    return np.empty_like(g), np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)


def never_stored(q, k, v, g):
    results = room(q, k, v, g)
    stores_nothing(q, k, v, g, *results)
    return results


def taken_apart(q, k, v, g):
    results = room(q, k, v, g)
    products(np.exp(2 * q), np.exp(2 * k), v, g, *results)
    return results


def package(q, k, v, g):
    leaves = [Tensor(a[None] if a.ndim == 2 else a, requires_grad=True) for a in (q, k, v)]
    e = ta.additive_scores(*leaves)
    dq, dk, dv = grad(e, leaves, Tensor(g[None]))
    return e.numpy()[0], dq.numpy()[0], dk.numpy()[0], dv.numpy()


T, S, D = (128, 128, 64) if JIT else (5, 4, 3)
rng = np.random.default_rng(0)
q, k, v, g = (rng.normal(size=n).astype(np.float32) for n in ((T, D), (S, D), D, (T, S)))
right = whole_array(*(a.astype(np.float64) for a in (q, k, v, g)))
rungs = {"whole array": whole_array, "never stored": never_stored,
         "taken apart": taken_apart, "package": package}
scores, held = {}, {}
print(f"T, S, D = {T}, {S}, {D}, float32, forward and backward, one core")
for name, rung in rungs.items():
    same(rung(q, k, v, g), right, name)
    scores[name], held[name] = seconds(rung, q, k, v, g), peak(rung, q, k, v, g)
    print(f"{name:13} {scores[name] * 1e3:8.2f} ms"
          f" {scores['whole array'] / scores[name]:6.1f} x the first {held[name] / 1e3:10,.0f} kB")
whole = 4 * T * S * D
print(f"one array of T S D numbers: {whole / 1e3:,.0f} kB")
if JIT:
    assert held["whole array"] > 2 * whole
    assert all(held[name] < whole / 4 for name in rungs if name != "whole array")

far = [np.full((1, 1), 50, np.float32), np.zeros((1, 1), np.float32), np.ones(1, np.float32),
       np.ones((1, 1), np.float32)]
with np.errstate(over="ignore"):
    found = {name: rung(*far)[0].item() for name, rung in rungs.items()}
print("tanh(50 + 0) by each rung:", found)
assert np.isnan(found["taken apart"]) and found["package"] == 1

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


show(bars(scores, "additive scores: times as fast as the first rung"), "additive",
     "The same scores and gradients. What differs is what is stored, and how a tangent is had.")

# %% [markdown]
# The second rung holds {{held["whole array"] / held["never stored"]:.0f}} times less memory than the first. It computes
# each tangent twice, and took {{scores["never stored"] / scores["whole array"]:.0%}} of the first one's time: on a
# processor that adds eight or sixteen numbers at once, fetching an array can cost more than making it again. The third
# rung changes the arithmetic, and pays for it at the edge: $e^{100}$ is beyond float32, and $\infty / \infty$ is nan. A
# rung is not done when it is fast.
#
# ## A recurrent network
#
# $$h_t = \tanh(x_t + h_{t-1} U), \qquad h_0 = 0$$
#
# $x$ was multiplied by its own matrix before, for all steps at once. Backward, with $g_t$ the gradient at $h_t$ from
# outside:
#
# $$a_t = (g_t + a_{t+1} U^\top) \odot (1 - h_t^2) \qquad \mathrm{d}x_t = a_t \qquad
# \mathrm{d}U = \sum_t h_{t-1}^\top a_t$$
#
# **1. Op by op:** product, sum, tangent, for each step. The graph has a node for each, and the walk visits them all.
#
# **2. The same, captured:** `ta.compile`, lesson 15. No graph any more, but still a call for every operation.
#
# **3. One node a step:** an op of our own, whose rule knows that a tangent's slope is $1 - h^2$.
#
# **4. One kernel for all steps:** Python is left once. And $\mathrm{d}U$ need not be summed up step by step: with all $a_t$
# in one array it is one product.
#
# **5. Package:** the same loops around a product in blocks (lesson 13).


# %%
def op_by_op(x, u):
    h, hs = None, []
    for t in range(x.shape[1]):
        h = x[:, t].tanh() if h is None else (x[:, t] + h @ u).tanh()
        hs.append(h)
    return Tensor.stack(hs, 1)


class Cell(Op):
    """h' = tanh(x + h U)"""

    def cpu(self, x, h, u):
        return np.tanh(x + matmul(h, u))

    def composed(self, x, h, u):
        return (x + h @ u).tanh()

    def cpu_grad(self, g, y, x, h, u):
        a = g * (1 - y * y)
        return a, matmul(a, u.T), matmul(h.T, a)


def node_a_step(x, u):
    h, hs = ta.zeros(x.shape[0], x.shape[2]), []
    for t in range(x.shape[1]):
        h = Cell()(x[:, t], h, u)
        hs.append(h)
    return Tensor.stack(hs, 1)


@kernel
def forward(x, u, hs):
    """For each sequence, for each step: the row of x, plus h times each row of U, tanh."""
    for b in range(len(x)):
        for t in range(x.shape[1]):
            h = hs[b, t]
            h[:] = x[b, t]
            if t > 0:
                before = hs[b, t - 1]
                for i in range(len(u)):
                    left, row = before[i], u[i]
                    for j in range(len(row)):
                        h[j] += left * row[j]
            for j in range(len(h)):
                h[j] = tanh(h[j])


@kernel
def backward(g, turned, hs, a):
    """The same from the last step to the first. turned is U transposed, so that rows are read."""
    one = g.dtype.type(1)
    for b in range(len(g)):
        for t in range(g.shape[1] - 1, -1, -1):
            now = a[b, t]
            now[:] = g[b, t]
            if t + 1 < g.shape[1]:
                after = a[b, t + 1]
                for i in range(len(turned)):
                    left, row = after[i], turned[i]
                    for j in range(len(row)):
                        now[j] += left * row[j]
            for j in range(len(now)):
                now[j] *= one - hs[b, t, j] * hs[b, t, j]


class Layer(Op):
    """All h_t = tanh(x_t + h_{t-1} U)"""

    def cpu(self, x, u):
        hs = np.empty_like(x)
        forward(x, u, hs)
        return hs

    def composed(self, x, u):
        return op_by_op(x, u)

    def cpu_grad(self, g, y, x, u):
        a, d = np.empty_like(x), len(u)
        backward(g, np.ascontiguousarray(u.T), y, a)
        return a, matmul(y[:, :-1].reshape(-1, d).T, a[:, 1:].reshape(-1, d))


def one_kernel(x, u):
    return Layer()(x, u)


def of_the_package(x, u):
    hs, _ = RNNScan()(x, ta.zeros(x.shape[0], x.shape[2]), u.T, None, None)
    return hs


B, T, D = (16, 64, 32) if JIT else (2, 5, 3)
x = Tensor(rng.normal(size=(B, T, D)).astype(np.float32), requires_grad=True)
u = Tensor((rng.normal(size=(D, D)) / D**0.5).astype(np.float32), requires_grad=True)
seed = Tensor(rng.normal(size=(B, T, D)).astype(np.float32))


def train_step(rung):
    """A function that gives the states, and leaves the gradients at x and u."""
    def step():
        x.grad = u.grad = None
        hs = rung(x, u)
        (hs * seed).sum().backward()
        return hs
    return step


def results_of(step):
    hs = step().numpy()
    return hs, x.grad.numpy().copy(), u.grad.numpy().copy()


wide = [Tensor(a.numpy(), requires_grad=True, dtype="float64") for a in (x, u)]
states = op_by_op(*wide)
total = (states * Tensor(seed.numpy(), dtype="float64")).sum()
right = [states.numpy(), *(a.numpy() for a in grad(total, wide))]
steps = {"op by op": train_step(op_by_op), "captured": ta.compile(train_step(op_by_op)),
         "node a step": train_step(node_a_step), "one kernel": train_step(one_kernel),
         "package": train_step(of_the_package)}
networks = {}
print(f"B, T, D = {B}, {T}, {D}, float32, forward and backward, one core")
for name, step in steps.items():
    for _ in range(2):                               # the second time the captured one is replayed
        same(results_of(step), right, name)
    networks[name] = seconds(step)
    print(f"{name:12} {networks[name] * 1e3:8.3f} ms"
          f" {networks['op by op'] / networks[name]:6.1f} x the first")
assert steps["captured"].replays > 0 and not steps["captured"].reason
nodes = {rung.__name__: len(Program.of(rung(x, u))) for rung in (op_by_op, node_a_step, one_kernel)}
print("nodes:", nodes)
assert nodes == {"op_by_op": 4 * T - 1, "node_a_step": 2 * T + 1, "one_kernel": 1}
set_num_threads(threads)

# %% [drawing]
show(bars(networks, "recurrent network: times as fast as the first rung"), "recurrent",
     "The same states and gradients. What differs is how often Python is asked.")

# %% [markdown]
# Op by op the graph has {{nodes["op_by_op"]}} nodes for {{T}} steps, and each costs microseconds forward and backward,
# whatever it computes. Capturing takes the Python away and leaves the calls; a kernel for all steps takes the calls away.
# The product in it is a plain loop, the second rung of lesson 13, and still it is {{networks["op by op"] / networks["one kernel"]:.0f}}
# times as fast as the first rung: so little of the time was arithmetic.
#
# ## What to take home
#
# - What can be computed again need not be stored. That is a trade: arithmetic for memory.
# - A sum in an exponent is a product outside of it: $T S D$ hard operations become $(T + S) D$.
# - Small operations in a row cost what the calls cost. Fewer, larger nodes are what helps, and one loop helps most.
# - Every rung keeps its slow twin: `composed` is what the fast loop is tested against, and what is differentiated twice.
#
# ## Questions
#
# 1. Why may the loop of a recurrent network run over sequences outside and over time inside, as `forward` does?
#    <details><summary>Answer</summary>
#
#    Sequences know nothing of one another, so their order is free, and threads may take different ones. Time is not free:
#    $h_t$ needs $h_{t-1}$.
#
#    </details>
# 2. `products` gives nan for $q + k = 50$. Subtracting a maximum, as softmax does, does not help by itself. Why not, and what
#    does the package do?
#    <details><summary>Answer</summary>
#
#    A softmax is the same for scores that are all shifted; $\tanh(q + k)$ is not: what is taken from $k$ must be added to
#    $q$. The package does just that, so that $e^{2k} \le 1$; and where $e^{2q}$ is still too large it takes the loop with
#    tanh.
#
#    </details>
#
# ## Where it stands in the code
#
# - `tinyattn/ops/additive.py`: `AdditiveScores`, `_prepare`, `_sum_fractions`, `_sum_tanh`: the third rung, made safe
# - `tinyattn/ops/rnn.py`: `RNNScan`, `_forward_chunk`, `_backward_chunk`: the loop over all steps
# - `tinyattn/ops/recurrent.py`: `Scan`, `Scan.weight_gradients`: what RNN, GRU and LSTM share; one product in the end
# - `tinyattn/op.py`: `Op`: what the two ops of our own are made of
