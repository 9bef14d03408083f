"""Every mechanism of the table, from its own file: value, gradients to second order, masks, weights."""
import numpy as np
import pytest

from tinyattn import InputError, Program, Tensor, capture, grad
from tinyattn.attention import core, find, mask, properties, table, weigh
from tinyattn.attention.core import FAMILIES
from tinyattn.attention.properties import leaves
from tinyattn.gradcheck import check_function

NAMES = list(table())
ERRATA = {  # the mechanisms of which the survey prints something else, leaves something out or leaves something open
    "additive", "attention_gru", "cdme", "cmla", "dependency", "disan", "dme", "dmn", "dmn_plus", "encoder_decoder",
    "gated_reader", "han", "input_feeding", "key_value", "local_p", "luong_global", "memn2n", "memory", "mlp", "mlp_2d",
    "multi_head", "nested", "ntm", "pagerank", "pairwise", "pattern", "raw", "scaled_dot", "segmentation",
    "self_attention", "shaw", "static", "structured_self", "tensor", "token2token", "two_level"}


def example(name, seed=0):
    arrays = find(name).part("example")(np.random.default_rng(seed))
    return leaves(arrays), arrays


def show(reports):
    bad = [str(r) for r in reports if not r.ok]
    assert not bad, "\n".join(bad)


@pytest.mark.parametrize("name", NAMES)
def test_value_is_that_of_the_slow_reference(name):
    for seed in range(3):
        show([properties.value(find(name), example(name, seed)[1])])


@pytest.mark.parametrize("name", NAMES)
def test_gradients_to_second_order(name):
    _, arrays = example(name)
    names = list(arrays)

    def call(*values):
        return find(name)(**dict(zip(names, values, strict=True)))

    show(check_function(name, call, list(arrays.values()), 2, 0, names=names))


@pytest.mark.parametrize("name", NAMES)
def test_masks_weights_empty_rows_and_causality(name):
    reports = properties.check(find(name), example(name)[1])
    show(reports)
    assert reports and sum(r.compared for r in reports) > 0


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_is_learnt(name):
    tensors, _ = example(name)
    parameters = [p for p in find(name).letters() if p in tensors]
    assert set(find(name).params) <= set(tensors)
    outs = properties.outputs_of(find(name)(**tensors))
    g = [Tensor(np.random.default_rng(5).normal(size=out.shape)) for out in outs]
    for p, found in zip(parameters, grad(outs, [tensors[p] for p in parameters], g), strict=True):
        assert (np.abs(found.numpy()).max() > 1e-10) == (p not in find(name).null), p


@pytest.mark.parametrize("name", NAMES)
def test_looking_at_the_weights_does_not_change_the_path(name):
    outs = properties.outputs_of(find(name)(**example(name)[0]))
    with capture() as seen:
        watched = properties.outputs_of(find(name)(**example(name)[0]))
    assert "weights" in seen
    ops = [[step.op for step in Program.of(o).instructions] for o in (outs, watched)]
    assert ops[0] == ops[1]
    for a, b in zip(outs, watched, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


@pytest.mark.parametrize("name", [n for n in NAMES if "return_weights" in find(n).arguments])
def test_weights_that_are_returned_are_in_the_graph(name):
    tensors, _ = example(name)
    with capture() as seen:
        plain = properties.outputs_of(find(name)(**tensors))
    both = properties.outputs_of(find(name)(**tensors, return_weights=True))
    outs, weights = both[:len(plain)], both[len(plain):]
    for a, b in zip(plain, outs, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), atol=1e-12)
    tapped = [t.numpy() for t in seen["weights"]]
    if len(weights) == 1 and tapped[-1].size != weights[0].size:  # steps or hops, one after the other
        tapped = [np.concatenate(tapped, -2)]
    assert weights
    for w in weights:
        assert any(t.size == w.size and np.allclose(w.numpy(), t.reshape(w.shape), atol=1e-12) for t in tapped)
        g = Tensor(np.random.default_rng(6).normal(size=w.shape))
        floats = [t for t in properties._tensors(tensors) if t.requires_grad]
        found = grad([w], floats, [g], allow_unused=True)
        assert w.requires_grad and any(x is not None and np.abs(x.numpy()).max(initial=0) > 1e-9 for x in found)


@pytest.mark.parametrize("name", NAMES)
def test_parameters_have_the_shapes_that_are_declared(name):
    _, arrays = example(name)
    sizes = {}
    for p, letters in find(name).letters().items():
        shape = np.shape(arrays[p])
        assert len(shape) == len(letters), (p, shape, letters)
        for letter, n in zip(letters, shape, strict=True):
            assert sizes.setdefault(letter, n) == n, (p, letter, n, sizes)


@pytest.mark.parametrize("name", NAMES)
def test_its_file_says_what_it_computes_what_it_costs_and_where_it_is_from(name):
    v = find(name)
    assert v.formula and v.paper and v.doc.splitlines()[0].endswith(".") and v.paragraph("Cost:")
    assert v.part("reference") and v.part("example") and v.function.__doc__ and v.family in FAMILIES
    if name in ERRATA:
        assert v.paragraph("Survey:"), "the survey prints something else here; say what"


def test_a_query_that_may_attend_to_nothing_gives_0_and_sends_0():
    scores, v = Tensor(np.ones((1, 2, 3)), requires_grad=True), Tensor(np.ones((1, 3, 2)), requires_grad=True)
    allowed = Tensor(np.array([[[True, True, False], [False, False, False]]]))
    out, weights = weigh(scores, v, allowed, return_weights=True)
    np.testing.assert_array_equal(weights.numpy()[0], [[0.5, 0.5, 0], [0, 0, 0]])
    np.testing.assert_array_equal(out.numpy()[0, 1], [0, 0])
    g_scores, g_v = grad(out.sum(), [scores, v])
    np.testing.assert_array_equal(g_scores.numpy(), np.zeros((1, 2, 3)))
    np.testing.assert_array_equal(g_v.numpy()[0], [[0.5, 0.5], [0.5, 0.5], [0, 0]])


def test_a_mask_may_be_an_array():
    scores, v, allowed = Tensor(np.ones((1, 2, 3))), Tensor(np.ones((1, 3, 2))), np.array([True, False, True])
    with capture() as seen:
        out, weights = weigh(scores, v, allowed, return_weights=True)
    np.testing.assert_allclose(weights.numpy()[0], [[0.5, 0, 0.5]] * 2)
    np.testing.assert_array_equal(seen["mask"][0].numpy(), allowed)


def test_masks_are_made_by_constructors():
    np.testing.assert_array_equal(mask.from_lengths([2, 0, 3]).numpy()[:, 0], [[1, 1, 0], [0, 0, 0], [1, 1, 1]])
    np.testing.assert_array_equal(mask.causal(2, 4).numpy(), [[1, 1, 1, 0], [1, 1, 1, 1]])
    np.testing.assert_array_equal(mask.causal(3).numpy(), np.tril(np.ones((3, 3))))
    with pytest.raises(ValueError, match="between 0 and S = 2"):
        mask.from_lengths([3], 2)
    with pytest.raises(TypeError, match="bools"):
        Tensor([1.0]).softmax(mask=Tensor([1.0]))


def test_a_mechanism_of_ones_own_is_one_file(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("from tinyattn.attention.core import variant, weigh\n\n"
                    "@variant(params={'w': 'QK'})\ndef bilinear(q, k, v, w, mask=None):\n"
                    "    return weigh(q @ w @ k.transpose(), v, mask)\n")
    found = find(f"{file}:bilinear")
    assert found.shapes(Q=2, K=3) == {"w": (2, 3)} and "bilinear" not in table()
    for bad, message in [(f"{file}:nothing", "bilinear"), (tmp_path / "no.py:x", "no file"),
                         ("cosy", "expected one of")]:
        with pytest.raises(InputError, match=message):
            find(str(bad))


def test_show_taps_in_order_and_computes_only_where_somebody_looks():
    x = Tensor(np.ones((1, 2)))

    def unasked():
        raise AssertionError("nobody looks")

    core.show(unasked, unasked, unasked)
    with capture() as seen:
        core.show(lambda: x, lambda: None, x * 0.5)
        core.show(x, x > 0, lambda: x)
    assert [name for name, _ in seen.taps] == ["scores", "weights", "scores", "mask", "weights"]
    assert seen["weights"][0].tolist() == [[0.5, 0.5]]
