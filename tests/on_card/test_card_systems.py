"""Training steps of every system on a card: the losses and gradients of the CPU, and no number is read on the way."""
from dataclasses import replace

import numpy as np
import pytest
from test_capturable import corpus_of, name_of

from tinyattn import Tensor, device, optim, random, systems
from tinyattn.attention import find
from tinyattn.attention.cache import Cache
from tinyattn.attention.properties import leaves
from tinyattn.autograd import no_grad
from tinyattn.models.search import beam_search
from tinyattn.tasks.text import Vocabulary

FEW = 8  # the shortest samples: all that there is to learn from, so vocabularies are small
SIZES = {"translate": {"hidden": 4, "embed": 3}, "classify": {"hidden": 4, "embed": 3, "align": 3}, "sense": {"width": 4},
         "aspects": {"hidden": 4, "embed": 3, "scores": 2}, "qa": {"hidden": 4, "hops": 2}}
TRANSFORMER = {"decoder": "transformer", "heads": 2, "layers": 1, "feed_forward": 5}
LUONG = {"decoder": "luong", "input_feeding": False}
KINDS = [  # system, options: together they use all ops that training has
    *[("translate", {"attention": name}) for name in ("additive", "none")],
    ("translate", {"cell": "rnn", "label_smoothing": 0.1}), ("translate", {"cell": "lstm", "attention": "none", "bidirectional": False}),
    ("translate", {"decoder": "luong", "attention": "luong_global", "input_feeding": True}),
    *[("translate", {**LUONG, "attention": name}) for name in ("luong_global", "local_p")],
    ("translate", {**TRANSFORMER, "attention": "multi_head", "norm": "pre", "tie": True}),
    *[("classify", {"attention": name}) for name in ("han", "max", "none", "cnn")],
    *[("classify", {"attention": name, "penalty": 0.5, "rows": 2}) for name in ("structured_self", "two_level")],
    ("aspects", {"attention": "cmla"}), ("aspects", {"attention": "none", "bidirectional": True}),
    *[("sense", {"attention": name, "heads": 2}) for name in
      ("shaw", "multi_head", "pairwise", "disan", "static", "rope", "alibi", "learned_positions", "none")],
    *[("qa", {"attention": name}) for name in ("memn2n", "dmn_plus", "key_value", "none")],
    ("qa", {"gates": 0.5, "attention": "dmn"}), ("qa", {"attention": "key_value", "windows": 2}),
    ("qa", {"linear_start": 0, "encoding": "bag", "tying": "layerwise", "temporal": False, "nonlinear": True}),
]
TWICE = [next(kind for kind in KINDS if kind[0] == name) for name in ("translate", "qa")]  # two steps: the second sees the update


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
    assert {name for name, _ in KINDS} == set(systems.names())


# ---------------------------------------------------------------------------------------------------------------------
# decoding, as a translator does it after training
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["multi_head", "multi_query", "grouped_query", "rope", "alibi", "linear_attention"])
def test_decoding_with_a_cache(name):
    """Word by word, then the batch changes places, as beams do."""
    variant, rows, found = find(name), np.array([1, 1, 0]), []
    arrays = {k: x for k, x in variant.part("example")(np.random.default_rng(0)).items() if "mask" not in k and k != "causal"}
    x = np.random.default_rng(1).normal(size=(2, 4, arrays["x"].shape[2]))
    for where in ("cpu", "cuda"):
        cache, options = Cache(capacity=1), leaves({k: a for k, a in arrays.items() if k != "x"}, where=where)
        with no_grad(), device.default_device(where):
            found.append([variant(x=Tensor(x[:, t:t + 1]), cache=cache, **options) for t in range(2)])
            cache.reorder(rows)
            found[-1].append(variant(x=Tensor(x[rows, 2:]), cache=cache, **options))
    for here, there in zip(*found, strict=True):
        assert there.device == "cuda"
        np.testing.assert_allclose(there.numpy(), here.numpy(), rtol=1e-12, atol=1e-12)


def test_translating_with_a_cache():
    """A whole beam search: the same words on both devices."""
    system, batch = tiny(next(kind for kind in KINDS if kind[1].get("attention") == "multi_head" and "decoder" in kind[1]))
    said = []
    for where in ("cpu", "cuda"):
        system.model.to(where).eval()
        with device.default_device(where):
            source, lengths = map(Tensor, system.arrays(batch[:1])[:2])
            said.append(beam_search(system.model, source, lengths, Vocabulary.BOS, Vocabulary.EOS, width=2, longest=2))
    assert said[0] == said[1] and said[0][0]
