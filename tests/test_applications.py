"""Attention put to use: several sets of word vectors, the gated reader, copying words, the attention GRU."""
import numpy as np
import pytest

from tinyattn import Tensor, capture, grad
from tinyattn.attention import find


def example(name, seed=0):
    arrays = find(name).part("example")(np.random.default_rng(seed))
    def leaf(a):
        if isinstance(a, list):
            return [leaf(x) for x in a]
        return Tensor(a, requires_grad=a.dtype.kind == "f") if isinstance(a, np.ndarray) else a
    return {k: leaf(a) for k, a in arrays.items()}


# ---------------------------------------------------------------------------------------------------------------------
# meta-embeddings
# ---------------------------------------------------------------------------------------------------------------------
def test_one_source_is_its_projection():
    inputs = example("dme")
    x, p, c = (inputs[n][:1] for n in "xpc")
    out = find("dme")(x, p, c, inputs["a"], inputs["b"])
    np.testing.assert_allclose(out.numpy(), x[0].numpy() @ p[0].numpy().T + c[0].numpy(), atol=1e-12)


@pytest.mark.parametrize("name", ["dme", "cdme"])
def test_weights_are_shared_out_among_the_sources_that_have_the_word(name):
    inputs = example(name)
    with capture() as seen:
        out = find(name)(**inputs)
    w, present = seen["weights"][0].numpy()[:, :, 0], inputs["present"].numpy()
    np.testing.assert_allclose(w.sum(-1), 1)
    assert (w[~present] == 0).all() and (w[present] > 0).all()
    for i, g in enumerate(grad(out.sum(), inputs["x"])):
        assert (g.numpy()[~present[..., i]] == 0).all() or name == "cdme"  # whose BiLSTM reads them all


def test_a_word_that_no_source_has_is_0():
    inputs = example("dme") | {"present": Tensor(np.zeros((2, 3, 3), bool))}
    assert (find("dme")(**inputs).numpy() == 0).all()


def test_the_bias_counts_only_without_a_softmax():
    inputs = example("dme")
    assert np.abs(grad(find("dme")(**inputs).sum(), [inputs["b"]])[0].numpy()) < 1e-12
    assert np.abs(grad(find("dme")(**inputs, normalise="sigmoid").sum(), [inputs["b"]])[0].numpy()) > 1e-3


def test_cdme_looks_at_the_sentence_and_dme_does_not():
    for name, same in (("dme", True), ("cdme", False)):
        inputs = example(name)
        before = find(name)(**inputs).numpy()[0, 0]
        last = np.arange(3)[:, None] == 2
        changed = [Tensor(np.where(last, 5.0, x.numpy())) for x in inputs["x"]]  # another last word
        assert np.allclose(find(name)(**inputs | {"x": changed}).numpy()[0, 0], before) == same


def test_every_source_needs_its_projection():
    inputs = example("dme")
    with pytest.raises(ValueError, match="dme: expected one projection and one bias a source, got 3 sources, 2 and 3"):
        find("dme")(**inputs | {"p": inputs["p"][:2]})


# ---------------------------------------------------------------------------------------------------------------------
# the gated reader
# ---------------------------------------------------------------------------------------------------------------------
def test_the_three_gates():
    inputs = example("gated_reader")
    arrays = find("gated_reader").part("example")(np.random.default_rng(0))
    outs = {gate: find("gated_reader")(**inputs | {"gate": gate}).numpy() for gate in ("multiply", "sum", "concat")}
    for gate in ("multiply", "sum"):
        expected = find("gated_reader").part("reference")(**arrays | {"gate": gate})
        np.testing.assert_allclose(outs[gate], expected, atol=1e-12)
    np.testing.assert_allclose(outs["concat"][..., :3], arrays["q"])
    np.testing.assert_allclose(outs["concat"][..., 3:], outs["sum"] - arrays["q"], atol=1e-12)
    with pytest.raises(ValueError, match="gated_reader: expected gate to be one of multiply, sum, concat, got 'max'"):
        find("gated_reader")(**inputs | {"gate": "max"})


def test_a_candidates_mass_is_the_sum_over_the_places_where_it_stands():
    answer = find("gated_reader").part("answer")
    d = Tensor(np.random.default_rng(0).normal(size=(2, 5, 3)))
    cloze = Tensor(np.random.default_rng(1).normal(size=(2, 3)))
    p = answer(d, cloze, np.array([[0, 1, 0, -1, 2], [-1, -1, -1, -1, -1]]), 3).numpy()
    s = np.exp(d.numpy()[0] @ cloze.numpy()[0])
    np.testing.assert_allclose(p[0], np.array([s[0] + s[2], s[1], s[4]]) / (s.sum() - s[3]), atol=1e-12)
    assert (p[1] == 0).all()
    with pytest.raises(ValueError, match="answer: expected candidates"):
        answer(d, cloze, np.full((2, 5), 3), 3)


# ---------------------------------------------------------------------------------------------------------------------
# copying
# ---------------------------------------------------------------------------------------------------------------------
def test_probabilities_sum_to_1_and_a_word_that_stands_twice_gets_both_weights():
    inputs = example("pointer_generator")
    p, _, alpha = find("pointer_generator")(**inputs, return_weights=True)
    np.testing.assert_allclose(p.numpy().sum(-1), 1)
    module = find("pointer_generator").module
    context, _, _ = module.attend(*(inputs[n] for n in ("q", "k", "w_q", "w_k", "b", "v_a", "w_c", "mask")))
    g = module.gate(context, *(inputs[n] for n in ("q", "x", "w_h", "w_s", "w_x", "c"))).numpy()
    a, made = alpha.numpy(), inputs["logits"].softmax(-1).numpy()
    twice = (g * made)[0, :, 2] + (1 - g[0, :, 0]) * (a[0, :, 0] + a[0, :, 2])
    np.testing.assert_allclose(p.numpy()[0, :, 2], twice, atol=1e-12)
    np.testing.assert_allclose(p.numpy()[0, :, 5], (1 - g[0, :, 0]) * a[0, :, 1], atol=1e-12)  # unknown: copied alone
    assert (a[1, :, 2:] == 0).all()  # padding is never copied: word 0 gets only what the first place gives
    np.testing.assert_allclose(p.numpy()[1, :, 0], (g * made)[1, :, 0] + (1 - g[1, :, 0]) * a[1, :, 0], atol=1e-12)


def test_the_log_likelihood_is_that_of_the_mixture_and_survives_tiny_probabilities():
    inputs = example("pointer_generator")
    p, _, alpha = find("pointer_generator")(**inputs, return_weights=True)
    module = find("pointer_generator").module
    context, _, _ = module.attend(*(inputs[n] for n in ("q", "k", "w_q", "w_k", "b", "v_a", "w_c", "mask")))
    g = module.gate(context, *(inputs[n] for n in ("q", "x", "w_h", "w_s", "w_x", "c")))
    targets = np.array([[2, 5, 0], [3, 5, 0]])
    got = module.log_likelihood(inputs["logits"], alpha, g, inputs["ids"], targets).numpy()
    with np.errstate(divide="ignore"):
        want = np.log(np.take_along_axis(p.numpy(), targets[..., None], 2)[..., 0])
    np.testing.assert_allclose(got, want, atol=1e-12)
    assert np.isneginf(got[1, 1])  # an unknown word that the second source does not hold
    far = Tensor(np.array([[[0.0, -2000.0]]]), requires_grad=True)
    half = Tensor(np.full((1, 1, 1), 0.5))
    loss = module.log_likelihood(far, Tensor(np.ones((1, 1, 1))), half, np.array([[0]]), np.array([[1]]))
    np.testing.assert_allclose(loss.numpy(), np.log(0.5) - 2000)
    np.testing.assert_allclose(grad(loss.sum(), [far])[0].numpy(), [[[-1, 1]]])


def test_coverage_counts_what_was_looked_at_twice():
    inputs = example("pointer_generator")
    _, loss, alpha = find("pointer_generator")(**inputs, return_weights=True)
    a = alpha.numpy()
    by_hand = np.minimum(a[:, 1], a[:, 0]).sum(-1) + np.minimum(a[:, 2], a[:, 0] + a[:, 1]).sum(-1)
    np.testing.assert_allclose(loss.numpy(), by_hand, atol=1e-12)
    _, _, plain = find("pointer_generator")(**inputs | {"w_c": None}, return_weights=True)
    np.testing.assert_allclose(plain.numpy()[:, 0], a[:, 0], atol=1e-12)   # the first step has covered nothing
    assert np.abs(plain.numpy()[:, 1] - a[:, 1]).max() > 1e-3


def test_wrong_sizes_are_one_clear_line():
    inputs = example("pointer_generator")
    with pytest.raises(ValueError, match=r"pointer_generator: expected ids \(B, S\) = \(2, 4\), got \(2, 3\)"):
        find("pointer_generator")(**inputs | {"ids": np.zeros((2, 3), int)})
    with pytest.raises(ValueError, match="pointer_generator: expected a size V' of at least V = 5, got 4"):
        find("pointer_generator")(**inputs | {"size": 4})


# ---------------------------------------------------------------------------------------------------------------------
# attention as a gate
# ---------------------------------------------------------------------------------------------------------------------
def test_the_attention_gru_knows_the_order_of_the_facts_and_a_weighted_sum_does_not():
    inputs = example("attention_gru") | {"mask": None}
    turned = inputs | {"k": Tensor(inputs["k"].numpy()[:, ::-1].copy())}
    assert np.abs(find("attention_gru")(**inputs).numpy() - find("attention_gru")(**turned).numpy()).max() > 1e-2
    plain = [find("general")(i["q"], i["k"], i["k"], i["w"]).numpy() for i in (inputs, turned)]
    np.testing.assert_allclose(*plain, atol=1e-12)


def test_with_all_the_weight_on_one_fact_the_state_is_that_facts_candidate():
    inputs = example("attention_gru") | {"mask": None}
    scale = Tensor(np.array(1000.0))
    _, alpha = find("attention_gru")(**inputs | {"w": inputs["w"] * scale}, return_weights=True)
    chosen = alpha.numpy()[:, 0].argmax(-1)
    np.testing.assert_allclose(alpha.numpy().max(-1), 1)
    alone = inputs["k"][np.arange(2), chosen].unsqueeze(1)
    got = find("attention_gru")(**inputs | {"w": inputs["w"] * scale})
    np.testing.assert_allclose(got.numpy(), find("attention_gru")(**inputs | {"k": alone}).numpy(), atol=1e-12)
