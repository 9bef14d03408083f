# %% [markdown]
# # 11. Four GRUs under one name: which one do you have?
#
# Two details of the GRU differ between papers and libraries, so there are four. Weights of one give other numbers in
# another; one of the two details can be converted exactly by changing signs, the other cannot.
#
# All four have a reset gate $r$, an update gate $z$ and a candidate $n$. ($W$ meets the input $x$, $U$ the old state
# $h$, and $\odot$ multiplies element by element.)
#
# $$r = \sigma(W_r x + U_r h + b_r) \qquad z = \sigma(W_z x + U_z h + b_z)$$
#
# **First detail:** does the reset gate act after the product with $U_n$, or before it?
#
# $$\text{after:}\quad n = \tanh(W_n x + b + r \odot (U_n h + b'))
# \qquad \text{before:}\quad n = \tanh(W_n x + b + U_n (r \odot h) + b')$$
#
# **Second detail:** does $z$ keep the old state, or write the new one?
#
# $$\text{keep:}\quad h' = z \odot h + (1 - z) \odot n
# \qquad\qquad \text{write:}\quad h' = (1 - z) \odot h + z \odot n$$
#
# | who | reset | update |
# |---|---|---|
# | PyTorch, cuDNN | after | keep |
# | Keras, `reset_after=True` (its default) | after | keep |
# | Cho et al. 2014, eqs 7 and 8; Keras, `reset_after=False` | before | keep |
# | Chung et al. 2014, Bahdanau et al. 2015 | before | write |
#
# `tinyattn.nn.GRU` has both as options, by these words: `reset=` and `update=`.
#
# ## Same weights, four answers
#
# The four steps in NumPy, against the package's fused layer:

# %%
import numpy as np
from lesson import beside, show

from tinyattn import Tensor, grad, manual_seed, nn, scope
from viz import graph
from viz.plot import COLOURS, MARKS, bare, figure

FOUR = [(reset, update) for reset in ("after", "before") for update in ("keep", "write")]
D, INPUTS, T = 3, 2, 12


def sigma(x):
    return 1 / (1 + np.exp(-x))


def step(x, h, w, reset, update):
    """One step of a GRU in NumPy: x (INPUTS,), h (D,), w the parameters by name, to h' (D,)."""
    p = w["weight_ih_l0"] @ x + w["bias_ih_l0"]      # (3 D,): rows of r, of z, of n
    U, b = w["weight_hh_l0"], w["bias_hh_l0"]
    R, Z, N = slice(0, D), slice(D, 2 * D), slice(2 * D, 3 * D)
    r = sigma(p[R] + U[R] @ h + b[R])
    z = sigma(p[Z] + U[Z] @ h + b[Z])
    inner = r * (U[N] @ h + b[N]) if reset == "after" else U[N] @ (r * h) + b[N]
    n = np.tanh(p[N] + inner)
    return z * h + (1 - z) * n if update == "keep" else (1 - z) * h + z * n


def layer(w, reset, update):
    """The package's GRU with these weights."""
    gru = nn.GRU(INPUTS, D, reset=reset, update=update).to("float64")
    gru.load_state_dict(w)
    return gru


manual_seed(3)
w = {name: 2 * p.numpy().astype(float) for name, p in nn.GRU(INPUTS, D).named_parameters()}
x = np.random.default_rng(3).normal(size=(T, INPUTS))
states = {}
for reset, update in FOUR:
    h, by_hand = np.zeros(D), []
    for x_t in x:
        h = step(x_t, h, w, reset, update)
        by_hand.append(h)
    hs, last = layer(w, reset, update)(Tensor(x[None]))  # (1, T, D), (1, 1, D)
    np.testing.assert_allclose(hs.numpy()[0], by_hand, rtol=1e-10, atol=1e-12)
    states[reset, update] = np.array(by_hand)        # (T, D)
    print(f"reset {reset:6} update {update:5}  last state", last.numpy()[0, 0].round(3))
for i, one in enumerate(FOUR):
    for other in FOUR[:i]:
        assert np.abs(states[one] - states[other])[-1].max() > 0.01, "no two are alike"

# %% [drawing]
fig = figure(9, 3.8)
axes = fig.add_subplot()
for i, kind in enumerate(FOUR):
    axes.plot(range(1, T + 1), states[kind][:, 0], f"{MARKS[i]}{'-' if kind[0] == 'after' else '--'}",
              color=COLOURS[i], label=f"reset {kind[0]}, {kind[1]}")
bare(axes)
axes.set_xlabel("step", size=12)
axes.set_ylabel("first number of the state", size=12)
axes.legend(fontsize=11, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
fig.tight_layout()
show(fig, "four", "The same weights and the same inputs under the four conventions.")

# %% [markdown]
# Nothing fails, no shape is wrong: a network that was moved to the wrong convention just works badly.
#
# ## One step, drawn
#
# What differs is the candidate. Here it is, with the reset gate as given:

# %% [drawing]


def leaf(*shape):
    return Tensor(np.random.default_rng(0).normal(size=shape), requires_grad=True)


def candidate(reset):
    r, h, U_n, b_n, x_n = leaf(1, D), leaf(1, D), leaf(D, D), leaf(D), leaf(1, D)
    with scope(f"reset {reset}"):
        inner = r * (h @ U_n + b_n) if reset == "after" else (r * h) @ U_n + b_n
        n = (x_n + inner).tanh()
    return graph(n, names={"r": r, "h": h, "U_n": U_n, "b_n": b_n, "x_n": x_n})


show(beside(candidate("after"), candidate("before")), "candidate",
     "The candidate n. Left: r scales what comes out of the product. Right: r scales what goes in.")

# %% [markdown]
# - **After:** $r_1$ belongs to the unit that *listens*. Closed, unit 1 hears nothing of the old state.
# - **Before:** $r_2$ belongs to the unit that *speaks*. Closed, no unit hears unit 2.
#
# The derivatives say the same. Does the candidate of unit 1 depend on the gate of unit 2?

# %%
rng = np.random.default_rng(0)
U_n, h = Tensor(rng.normal(size=(D, D))), Tensor(rng.normal(size=D))
for reset in ("after", "before"):
    r = Tensor(rng.random(D), requires_grad=True)
    inner = r * (U_n @ h) if reset == "after" else U_n @ (r * h)
    slopes = np.array([grad(one, r)[0].numpy() for one in inner.tanh()])  # (D, D): dn_i / dr_j
    print(f"dn/dr, reset {reset}:\n{slopes.round(2)}")
    diagonal = np.allclose(slopes, np.diag(np.diag(slopes)))
    assert diagonal == (reset == "after")

# %% [markdown]
# A diagonal matrix against a full one. So no change of weights turns one into the other for all inputs, but for special
# cases: where $U_n$ is diagonal and there is no bias inside, $r \odot (U_n h) = U_n (r \odot h)$.

# %%
special = {name: p.copy() for name, p in w.items()}
special["weight_hh_l0"][2 * D:] = np.diag([0.5, -1.0, 2.0])
special["bias_hh_l0"][2 * D:] = 0
one, other = (layer(special, reset, "keep")(Tensor(x[None]))[0].numpy()
              for reset in ("after", "before"))
np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-14)
print(f"U_n diagonal, no inner bias: greatest difference {np.abs(one - other).max():.1e}")

# %% [markdown]
# ## The update gate can be converted, exactly
#
# Since $\sigma(-a) = 1 - \sigma(a)$, change the sign of everything that makes $z$: its rows in $W$, in $U$ and in both
# biases. In PyTorch's layout these are the rows $D$ to $2D - 1$.


# %%
def converted(w):
    """Weights for the other update: "keep" to "write", or back."""
    turned = {name: p.copy() for name, p in w.items()}
    for p in turned.values():
        p[D:2 * D] *= -1
    return turned


for reset in ("after", "before"):
    kept = layer(w, reset, "keep")(Tensor(x[None]))[0].numpy()
    written = layer(converted(w), reset, "write")(Tensor(x[None]))[0].numpy()
    print(f"reset {reset:6}  greatest difference in {T} steps: {np.abs(kept - written).max():.1e}")
    np.testing.assert_allclose(kept, written, rtol=1e-12, atol=1e-14)
back = converted(converted(w))
assert all(np.array_equal(p, w[name]) for name, p in back.items()), "bit for bit"

# %% [markdown]
# This is also why both conventions train equally well from random weights: the one is the other with another sign. But
# a plot of $z$ reads the other way round: $z = 0.9$ means "keeps nine tenths" in PyTorch and "forgets nine tenths" in
# Bahdanau's paper. And a trick such as "begin with the bias of $z$ at $+1$, so that the state is kept" must change its
# sign.
#
# ## Why there are two biases
#
# PyTorch has a bias beside $W$ and one beside $U$. For $r$ and $z$ only their sum counts. For the candidate that holds
# with reset *before*; with reset *after* the inner one is multiplied by $r$, so the two are different parameters.

# %%
moved = {name: p.copy() for name, p in w.items()}
moved["bias_ih_l0"][2 * D:] += moved["bias_hh_l0"][2 * D:]  # all of b' goes into b
moved["bias_hh_l0"][2 * D:] = 0
change = {}
for reset in ("after", "before"):
    one, other = (layer(p, reset, "keep")(Tensor(x[None]))[0].numpy() for p in (w, moved))
    change[reset] = np.abs(one - other).max()
    print(f"reset {reset:6}  moving n's inner bias outside changes the states by {change[reset]:.1e}")
assert change["before"] < 1e-12 and change["after"] > 1e-3

# %% [markdown]
# ## A whole step
#
# PyTorch's GRU, drawn from the engine's record. Find $z$ and $1 - z$: which of them meets $h$?

# %%


def whole(h, x, U, b_n):
    """One step with reset after and update keep; x are the three projected inputs."""
    with scope("reset gate"):
        r = (x["r"] + h @ U["r"]).sigmoid()
    with scope("update gate"):
        z = (x["z"] + h @ U["z"]).sigmoid()
    with scope("candidate"):
        n = (x["n"] + r * (h @ U["n"] + b_n)).tanh()
    with scope("new state"):
        return z * h + (1 - z) * n


h, b_n = leaf(1, D), leaf(D)
inputs, U = {k: leaf(1, D) for k in "rzn"}, {k: leaf(D, D) for k in "rzn"}
names = {"h": h, "b_n": b_n}
names |= {f"x_{k}": inputs[k] for k in "rzn"} | {f"U_{k}": U[k] for k in "rzn"}
show(graph(whole(h, inputs, U, b_n), names=names), "step",
     "One step of a GRU: reset after, update keep.")

# %% [markdown]
# ## What to take home
#
# - "GRU" is four functions. Say which: reset after or before the product, $z$ keeps or writes.
# - Keep and write are the same function with other signs; the conversion is exact.
# - Reset after and before are different functions; weights of one cannot be used in the other.
# - With reset after, the candidate's two biases are two parameters.
#
# ## Questions
#
# 1. Why might cuDNN have chosen "after"?
#    <details><summary>Answer</summary>
#
#    $U_r h$, $U_z h$ and $U_n h$ then need only $h$: one product $U h$ of three times the height. With "before" the
#    third product must wait for $r$.
#
#    </details>
# 2. In which convention does $z = 0$ for all steps give a state that never changes?
#    <details><summary>Answer</summary>
#
#    In "write": $h' = h$. In "keep", $z = 0$ gives $h' = n$, a plain recurrent network with a reset gate.
#
#    </details>
#
# ## Where it stands in the code
#
# - `tinyattn/nn/recurrent.py`: `GRU`, `GRUCell`: the layer and its two options, reset and update
# - `tinyattn/ops/gru.py`: `GRUScan`, `GRUScan.composed`: the fused loop and its readable twin, both conventions
# - `tinyattn/ops/recurrent.py`: `Scan`: what RNN, GRU and LSTM share
# - `tests/test_nn_recurrent.py`: the default against PyTorch, and all options against each other
