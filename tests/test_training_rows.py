"""The benchmark's training steps: every side does the same steps, from the same weights, and the floors are right.

Only rounding may tell the sides apart. float32 has 6e-8, a loss is a mean over some dozen numbers, and one side, JAX, has
1 - 0.999^t in float32, which moves the first updates by a share of 6e-5: 1e-6 was seen after four steps. TOLERANCE is ten
times that; the planted faults below, which are as small as faults of a rule come, are beyond it.
"""
import math

import numpy as np
import pytest

from tinyattn import Tensor, functional
from tinyattn.ops.attention import Attention
from tinyattn.ops.matmul import Affine
from tinyattn.optim import Adam
from tinyattn.workloads.training import core, language_model, mlp

TOLERANCE, STEPS = 1e-5, 4
SMALL = {"MLP": (mlp, mlp.Sizes(B=6, I=5, D=8, V=4)),
         "ReLU": (language_model, language_model.Sizes(B=2, T=5, V=7, L=2, D=8, H=2)),
         "GELU": (language_model, language_model.Sizes(B=3, T=4, V=6, L=1, D=12, H=3, activation="gelu"))}
PEERS = "torch", "jax", "autograd", "tinygrad"


@pytest.fixture(params=SMALL)
def small(request):
    return SMALL[request.param]


def losses(module, s, side):
    call = core.sides(vars(module), s)[side]()
    return [call() for _ in range(STEPS)]


def apart(a, b):
    """The largest difference of two lists of losses, as a share."""
    return max(abs(x / y - 1) for x, y in zip(a, b, strict=True))


def need(side):
    """Skip where the library, or what it compiles with, is not there."""
    pytest.importorskip(side)
    if side == "tinygrad":
        from tinygrad import Device
        try:
            Device[Device.DEFAULT]
        except Exception as error:
            pytest.skip(f"tinygrad has no device here: {error}")


@pytest.mark.parametrize("side", PEERS)
def test_a_peer_makes_the_same_steps(small, side):
    need(side)
    module, s = small
    mine = losses(module, s, "ours")
    assert mine[0] > mine[1] > mine[2] > mine[3] and mine[0] - mine[3] > 1e-2, "nothing is learned"
    assert apart(losses(module, s, side), mine) < TOLERANCE


def test_a_captured_step_is_the_step(small):
    module, s = small
    assert apart(losses(module, s, "compiled"), losses(module, s, "ours")) < TOLERANCE


@pytest.mark.parametrize("side", PEERS[:3])  # tinygrad compiles for long
def test_the_weights_are_shared(small, side, monkeypatch):
    """From other weights all sides go elsewhere, and together."""
    need(side)
    module, s = small
    before, own = losses(module, s, "ours"), module.weights
    monkeypatch.setattr(module, "weights", lambda s: {k: w * np.float32(1.5) for k, w in own(s).items()})
    after = losses(module, s, "ours")
    assert apart(after, before) > 0.01
    assert apart(losses(module, s, side), after) < TOLERANCE


def test_every_weight_counts(small, monkeypatch):
    """One number of each array, changed by itself, moves the loss, but for key biases, to which a softmax is blind."""
    module, s = small
    own, before = module.weights, losses(module, s, "ours")
    for name in own(s):
        def nudged(s, name=name):
            w = own(s)
            place = (module.batch(s)[0].flat[0],) if name == "words.weight" else (0,)  # the row of a word that occurs
            w[name][(*place, *(0,) * (w[name].ndim - 1))] += 0.5
            return w
        monkeypatch.setattr(module, "weights", nudged)
        moved = apart(losses(module, s, "ours")[:1], before[:1])
        assert moved < 1e-6 if name.endswith("k_proj.bias") else moved > 1e-6, name


def test_the_losses_are_ours_alone_to_judge(small):
    """A side's calls do not change the numbers that the next side is given."""
    module, s = small
    assert losses(module, s, "ours") == losses(module, s, "ours")


@pytest.mark.parametrize("name", ["ReLU", "GELU"])
def test_planted_faults_show(name, monkeypatch):
    """Adam's step is blind to the scale of gradients, but for how it changes from step to step: faults of clipping and of the
    running means are the smallest there are. (The perceptron's gradients hardly change in four steps.)"""
    module, s = SMALL[name]
    right = losses(module, s, "ours")

    def with_fault(name, fault):
        with monkeypatch.context() as patch:
            patch.setattr(core, name, fault)
            return apart(losses(module, s, "ours"), right)

    assert with_fault("Adam", lambda p, lr: Adam(p, lr, betas=(0.9, 0.99))) > TOLERANCE
    assert with_fault("Adam", lambda p, lr: Adam(p[:-1], lr)) > TOLERANCE
    assert with_fault("clip_grad_norm", lambda parameters, most: None) > TOLERANCE


def multiply_adds(loss):
    """What the products of a graph need, forward and backward, counted from its nodes."""
    seen, todo, total = set(), [loss.op], 0
    while todo:
        op = todo.pop()
        if op is None or id(op) in seen:
            continue
        seen.add(id(op))
        todo += [t.op for t in op.inputs if isinstance(t, Tensor)]
        wanted = [t is not None and t.requires_grad for t in op.inputs]
        if type(op) is Affine:
            x, w = op.inputs[:2]
            total += math.prod(x.shape) * w.shape[0] * (1 + wanted[0] + wanted[1])
        elif type(op) is Attention:
            q, k, v = op.inputs[:3]
            assert op.causal and all(wanted[:3])
            T, D = q.shape[-2:]
            pairs = math.prod(q.shape[:-2]) * np.tri(T).sum()
            total += pairs * (D + v.shape[-1]) + pairs * (2 * D + 2 * v.shape[-1])  # dq, dk; the weights' gradient, dv
    return total


def test_floor_is_what_the_graph_needs(small):
    module, s = small
    model = mlp.MLP(s) if module is mlp else language_model.LanguageModel(s)
    x, y = module.batch(s)
    loss = functional.cross_entropy(model(Tensor(x) if x.dtype.kind == "f" else x), y)
    assert module.floor(s) == 2 * multiply_adds(loss)


def test_the_table():
    for row in [*mlp.rows(), *language_model.rows()]:
        assert {"ours", "torch", "torch-compile", "jax", "tinygrad", "autograd"} <= set(row.sides)
        assert row.tolerance <= TOLERANCE and row.floor > 1e6 and set(row.asked) == {"torch", "jax"}
    assert [round(row.floor / 1e9, 1) for row in language_model.rows()] == [6.6, 10.6]
