"""The training steps of three systems in the benchmark: every side makes the same steps, and the floors are right.

TOLERANCE is as in `test_training_rows.py`: only rounding may tell the sides apart, and the faults planted below, which are
as small as faults of a rule come, are beyond it.
"""
import math

import numpy as np
import pytest
from test_training_rows import STEPS, TOLERANCE, apart, losses, need

from tinyattn import Tensor, functional
from tinyattn.models.memory_network import MemoryNetwork
from tinyattn.models.seq2seq import Seq2Seq
from tinyattn.ops.attention_decoder import AttentionDecoder
from tinyattn.ops.gru import GRUScan
from tinyattn.ops.matmul import Affine, MatMul
from tinyattn.workloads.training import core, han, memory, translator

SMALL = {"translator": (translator, translator.Sizes(B=3, T=4, V=9, D=6)),
         "HAN": (han, han.Sizes(B=2, N=3, T=4, V=9, D=5, U=3, A=4, C=3)),
         "MemN2N": (memory, memory.Sizes(B=5, M=6, J=3, V=12, D=7, H=2))}


@pytest.fixture(params=SMALL)
def small(request):
    return SMALL[request.param]


@pytest.mark.parametrize("side", ["torch", "jax"])
def test_a_peer_makes_the_same_steps(small, side):
    need(side)
    module, s = small
    mine = losses(module, s, "ours")
    assert len(mine) == STEPS and mine[0] > mine[1] > mine[2] and mine[0] - mine[-1] > 1e-3, "nothing is learned"
    assert apart(losses(module, s, side), mine) < TOLERANCE


def test_every_weight_counts(small, monkeypatch):
    """Each array, changed by itself, moves the loss: so a side that forgot one would have another loss."""
    module, s = small
    own, before = module.weights, losses(module, s, "ours")[:1]
    for name in own(s):
        monkeypatch.setattr(module, "weights", lambda s, name=name: {**own(s), name: 3 * own(s)[name][::-1]})
        assert apart(losses(module, s, "ours")[:1], before) > TOLERANCE, name


def test_a_captured_step_is_the_step(small):
    module, s = small
    assert apart(losses(module, s, "compiled"), losses(module, s, "ours")) < TOLERANCE


def test_ours_is_the_package_s_own_model():
    """Not one that was written for the benchmark; the translator runs its decoder as one op."""
    source, before, after = translator.batch(SMALL["translator"][1])
    model = Seq2Seq(9, 9, 6, 6)
    loss = model.loss(*(Tensor(a) for a in (source, np.full(3, 4), before, after)))
    names = {type(op) for op in ops_below(loss)}
    assert {AttentionDecoder, GRUScan} <= names


def test_every_place_of_the_batch_is_a_word(small):
    """What the docstrings promise the peers, which neither mask nor pack: word 0 does not occur."""
    module, s = small
    assert all(part.min() > 0 for part in module.batch(s)[:2 if module is not han else 1])
    assert all(part.min() > 0 for part in module.batch(module.Sizes())[:2 if module is not han else 1])


def test_planted_faults_show(monkeypatch):
    """A wrong direction, gate, place or age moves the losses by far more than rounding."""
    s, right = SMALL["translator"][1], losses(*SMALL["translator"], "ours")
    with monkeypatch.context() as patch:
        patch.setattr(core, "ours", lambda model, *args, ours=core.ours: ours(_with(model, "write"), *args))
        assert apart(losses(translator, s, "ours"), right) > 10 * TOLERANCE
    right = losses(*SMALL["MemN2N"], "ours")
    with monkeypatch.context() as patch:
        patch.setattr(MemoryNetwork, "_ages", lambda self, story: np.tile(np.arange(story.shape[1]), (len(story), 1)))
        assert apart(losses(*SMALL["MemN2N"], "ours"), right) > 10 * TOLERANCE


def _with(model, update):
    model.decoder.gru = {**model.decoder.gru, "update": update}
    return model


# ---------------------------------------------------------------------------------------------------------------------
# floors
# ---------------------------------------------------------------------------------------------------------------------
def ops_below(loss):
    seen, todo = {}, [loss.op]
    while todo:
        op = todo.pop()
        if op is not None and id(op) not in seen:
            seen[id(op)] = op
            todo += [t.op for t in op.inputs if isinstance(t, Tensor)]
    return list(seen.values())


def multiply_adds(op):
    """What the products of a node need, forward and backward."""
    wanted, shapes = [t is not None and t.requires_grad for t in op.inputs], [t if t is None else t.shape for t in op.inputs]
    if type(op) is Affine:
        return math.prod(shapes[0]) * shapes[1][0] * (1 + wanted[0] + wanted[1])
    if type(op) is MatMul:
        return math.prod(op.outs[0].shape) * shapes[0][-1] * (1 + wanted[0] + wanted[1])
    if type(op) is GRUScan:
        return 3 * math.prod(shapes[0]) * shapes[1][1]
    if type(op) is AttentionDecoder:
        (b, t, rows), n, s, (a, e) = shapes[0], shapes[1][1], shapes[2][1], (len(op.inputs[5].array), shapes[2][2])
        return 3 * b * t * (rows * (n + e) + a * n + s * (a + e))
    return 0


def test_floor_is_what_the_graph_needs(small):
    """Within what the formulas leave out: products with one row a sentence."""
    module, s = small
    calls = []

    def keep(model, loss, weights, batch, compiled=False):
        model.load_state_dict(weights)
        calls.append(loss(model, *batch))
    original, core.ours = core.ours, keep
    try:
        module.ours(s)
    finally:
        core.ours = original
    counted = 2 * sum(multiply_adds(op) for op in ops_below(calls[0]))
    if module is memory:  # words are added up by `Bag`, forward and backward
        counted += 2 * 2 * s.B * s.J * s.D * (s.M * (s.H + 1) + 1)
    if module is translator:
        counted -= 2 * 3 * s.B * s.D ** 2  # the first state
    assert counted == module.floor(s)


def test_the_floors_of_the_table():
    """At the sizes that are timed, in millions."""
    assert [round(m.floor(m.Sizes()) / 1e6, 1) for m in (translator, han, memory)] == [2036.7, 226.2, 5.4]
    assert [functional.__name__, *(len(m.rows()) for m in (translator, han, memory))] == ["tinyattn.functional", 1, 1, 1]
