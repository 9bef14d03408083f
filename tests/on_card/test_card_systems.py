"""Training steps of every system on a card: the losses and gradients of the CPU, and no number is read on the way."""
from dataclasses import replace

import numpy as np
import pytest
from test_capturable import corpus_of, name_of

from tinyattn import device, optim, random, systems
from tinyattn.tasks.text import Vocabulary

FEW = 8  # the shortest samples: all that there is to learn from, so vocabularies are small
SIZES = {"translate": {"hidden": 4, "embed": 3}, "classify": {"hidden": 4, "embed": 3, "align": 3}, "sense": {"width": 4},
         "aspects": {"hidden": 4, "embed": 3, "scores": 2}, "qa": {"hidden": 4, "hops": 2}}
TRANSFORMER = {"decoder": "transformer", "heads": 2, "layers": 1, "feed_forward": 5}
LUONG = {"decoder": "luong", "input_feeding": False}
KINDS = [  # system, options: together they use all ops that training has
    *[("translate", {"attention": name}) for name in ("additive", "none", "general")],
    ("translate", {"cell": "rnn", "label_smoothing": 0.1}), ("translate", {"cell": "lstm", "attention": "none", "bidirectional": False}),
    ("translate", {"decoder": "luong", "attention": "luong_global", "input_feeding": True}),
    *[("translate", {**LUONG, "attention": name}) for name in ("luong_global", "local_m", "local_p")],
    ("translate", {**TRANSFORMER, "attention": "multi_head", "norm": "post"}),
    ("translate", {**TRANSFORMER, "attention": "none", "norm": "pre", "tie": True}),
    *[("classify", {"attention": name}) for name in ("han", "max", "none", "disan", "cnn")],
    *[("classify", {"attention": name, "penalty": 0.5, "rows": 2}) for name in ("structured_self", "two_level")],
    ("aspects", {"attention": "cmla"}), ("aspects", {"attention": "none", "bidirectional": True}),
    *[("sense", {"attention": name, "heads": 2}) for name in
      ("shaw", "multi_head", "pairwise", "disan", "static", "rope", "alibi", "learned_positions", "none")],
    *[("qa", {"attention": name}) for name in ("memn2n", "dmn_plus", "key_value", "none")],
    ("qa", {"gates": 0.5, "attention": "dmn"}), ("qa", {"attention": "key_value", "windows": 2}),
    ("qa", {"linear_start": 0, "encoding": "bag", "tying": "layerwise", "temporal": False, "nonlinear": True}),
]
TWICE = [next(kind for kind in KINDS if kind[0] == name) for name in SIZES]  # of each system one


def tiny(kind):
    """A system of a kind, float32, and a batch of its shortest and its longest sample."""
    name, options = kind
    cls, whole = systems.find(name), corpus_of(name)
    few = sorted(whole.train, key=lambda sample: len(str(sample)))[:FEW]
    corpus = replace(whole, train=few, validation=few, test=few)
    sizes = {key: n for key, n in SIZES[name].items() if key != "embed" or options.get("decoder") != "transformer"}
    options = cls.Options(**sizes, **options)
    random.manual_seed(3)
    if name == "translate":  # builds no system from a corpus
        system = cls(options, *(Vocabulary.build([getattr(p, side) for p in few]) for side in ("source", "target")))
    else:
        system = cls.build(options, corpus)
    system.corpus = corpus
    system.at_epoch(0)
    few = sorted(few, key=system.size)
    return system, [few[0], few[-1]]


def steps(system, batch, where, weights, count):
    """What steps on a device give: losses, norms and gradients; and how often the host waited for numbers."""
    system.model.load_state_dict(weights)
    system.model.to(where).train()
    random.manual_seed(7)  # for dropout, hidden words and blanks
    found, optimizer = {}, optim.SGD(system.model.parameters(), lr=0.3)
    with device.default_device(where):
        begun = device.waits["reads"]
        for step in range(1, count + 1):
            optimizer.zero_grad()
            loss, _ = system.loss(batch)
            loss.backward()
            optimizer.guard(loss)
            for name, p in system.model.named_parameters():
                if p.grad is not None:
                    found[f"step {step}, {name}"] = p.grad.clone()
            found[f"step {step}, norm"] = optimizer.clip_grad_norm(1.0)
            optimizer.step()
            found[f"step {step}, loss"] = loss.detach()
        reads = device.waits["reads"] - begun
    assert optimizer.halted() is None
    return {name: np.array(x if isinstance(x, float) else x.numpy()) for name, x in found.items()}, reads


@pytest.mark.parametrize("kind", KINDS, ids=map(name_of, KINDS))
def test_steps_of_training(kind):
    system, batch = tiny(kind)
    weights = system.model.state_dict()
    here, _ = steps(system, batch, "cpu", weights, 1 + (kind in TWICE))
    there, reads = steps(system, batch, "cuda", weights, 1 + (kind in TWICE))
    assert here.keys() == there.keys() and len(here) > 3
    for name, x in here.items():
        np.testing.assert_allclose(there[name], x, rtol=1e-5, atol=1e-5 * np.abs(x).max() + 1e-7, err_msg=name)
    assert reads == 0


def test_the_kinds_are_of_every_system():
    assert {name for name, _ in TWICE} == set(systems.names())
