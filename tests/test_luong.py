"""Attention over a source sentence, step by step: the survey's encoder-decoder, Luong's local forms and input feeding,
hard draws."""
import numpy as np
import pytest

from tinyattn import Tensor, capture, grad
from tinyattn.attention import find, mask
from tinyattn.functional import concat, linear
from tinyattn.ops.lstm import LSTMScan


def example(name, seed=0):
    arrays = find(name).part("example")(np.random.default_rng(seed))
    return {k: Tensor(a, requires_grad=a.dtype.kind == "f") if isinstance(a, np.ndarray) else a
            for k, a in arrays.items()}


def weights_of(name, **inputs):
    with capture() as seen:
        find(name)(**inputs)
    return seen["weights"][0].numpy()


def long_sentence(S=41, T=3):
    """Equal scores everywhere: the general score with a matrix of zeros."""
    return {"q": Tensor(np.ones((1, T, 2))), "k": Tensor(np.ones((1, S, 2))), "v": Tensor(np.ones((1, S, 1))),
            "w": Tensor(np.zeros((2, 2)))}


# ---------------------------------------------------------------------------------------------------------------------
# local
# ---------------------------------------------------------------------------------------------------------------------
def test_local_p_weights_sum_to_less_than_1_and_its_network_learns():
    inputs = example("local_p")
    sums = weights_of("local_p", **inputs).sum(-1)
    assert (sums < 1).all() and (sums > 0).all()
    found = grad(find("local_p")(**inputs).sum(), [inputs["w_p"], inputs["v_p"]])
    assert all(np.abs(g.numpy()).max() > 1e-3 for g in found)


def test_local_p_sums_to_058_for_equal_scores_and_10_places():
    w = weights_of("local_p", **long_sentence(S=40), w_p=Tensor(np.zeros((2, 2))), v_p=Tensor(np.zeros(2)), width=10)
    np.testing.assert_allclose(w.sum(-1), np.exp(-np.arange(-10, 11) ** 2 / 50).sum() / 21)
    np.testing.assert_allclose(w.sum(-1), 0.58, atol=0.005)
    assert (w[0, 0] > 0).sum() == 21 and w[0, 0].argmax() == 20


def test_local_p_renormalised_sums_to_1_and_equals_its_reference():
    arrays = find("local_p").part("example")(np.random.default_rng(1))
    tensors = {k: Tensor(a) if isinstance(a, np.ndarray) else a for k, a in arrays.items()}
    out, weights = find("local_p")(**tensors, renormalise=True, return_weights=True)
    np.testing.assert_allclose(weights.numpy().sum(-1), 1)
    np.testing.assert_allclose(out.numpy(), find("local_p").part("reference")(**arrays, renormalise=True), atol=1e-12)


def test_local_p_looks_at_the_sentence_not_at_its_padding():
    """sigmoid(0) S is the middle of each sentence, of its own length."""
    inputs = long_sentence() | {"mask": mask.from_lengths([21], 41)}
    w = weights_of("local_p", **inputs, w_p=Tensor(np.zeros((2, 2))), v_p=Tensor(np.zeros(2)), width=4)
    np.testing.assert_array_equal(np.flatnonzero(w[0, 0]), np.arange(6, 15))


def test_local_m_keeps_the_valid_mass_at_the_borders_and_stays_at_the_last_word():
    inputs = long_sentence(S=6, T=8) | {"mask": mask.from_lengths([5], 6)}
    w = weights_of("local_m", **inputs, width=1)
    np.testing.assert_allclose(w.sum(-1), 1)
    expected = [{0, 1}, {0, 1, 2}, {1, 2, 3}, {2, 3, 4}, {3, 4}, {3, 4}, {3, 4}, {3, 4}]
    assert [set(np.flatnonzero(row)) for row in w[0]] == expected


def test_local_m_one_query_at_a_time_equals_all_at_once():
    inputs = example("local_m")
    whole, q = find("local_m")(**inputs).numpy(), inputs.pop("q")
    for t in range(q.shape[1]):
        alone = find("local_m")(q[:, t:t + 1], **(inputs | {"start": t})).numpy()[:, 0]
        np.testing.assert_allclose(alone, whole[:, t], atol=1e-12)


def test_a_wide_window_is_global_attention():
    inputs = example("local_m") | {"width": 100}
    plain = {k: x for k, x in inputs.items() if k not in ("width", "start")}
    np.testing.assert_allclose(find("local_m")(**inputs).numpy(), find("luong_global")(**plain).numpy(), atol=1e-12)


@pytest.mark.parametrize("score", ["dot", "general", "additive", "location"])
def test_luongs_four_scores(score):
    rng = np.random.default_rng(0)
    q, k, v = (Tensor(rng.normal(size=(2, n, 3))) for n in (2, 4, 4))
    a = {p: Tensor(rng.normal(size=s)) for p, s in
         find("luong_global").shapes(score, **dict.fromkeys("AQKDE", 3), S=4, N=4, L=4).items()}
    for name, more in (("luong_global", {}), ("local_m", {}), ("local_p", {"w_p": q[0], "v_p": q[0, 0, :2]})):
        assert find(name)(q, k, v, **more, score=score, **a).shape == (2, 2, 3)


@pytest.mark.parametrize(("name", "change", "message"), [
    ("local_p", {"width": 0}, "local_p: expected a width D of at least 1"),
    ("local_m", {"width": -1}, "local_m: expected width and start of at least 0"),
    ("local_m", {"mask": Tensor(np.ones((2, 1, 3), bool))},
     r"local_m: expected a mask that broadcasts to \(B, T, S\) = \(2, 5, 4\)"),
    ("encoder_decoder", {"feed": "all"}, "encoder_decoder: expected feed to be one of none, context, input"),
    ("encoder_decoder", {"feed": "none"}, "encoder_decoder: f goes with"),
])
def test_wrong_settings_are_one_clear_line(name, change, message):
    with pytest.raises(ValueError, match=message):
        find(name)(**example(name) | change)


# ---------------------------------------------------------------------------------------------------------------------
# what enters the next state
# ---------------------------------------------------------------------------------------------------------------------
def test_eq_5_as_printed_lets_no_context_into_the_state():
    inputs = example("encoder_decoder")
    inputs["w_o"] = Tensor(np.concatenate([np.eye(2, 2), np.zeros((2, 8))], 1))  # read out the state itself
    def change(feed, f):
        out = [find("encoder_decoder")(**inputs | {"h": h, "feed": feed, "f": f}).numpy()
               for h in (inputs["h"], inputs["h"] * 2)]
        return np.abs(out[0] - out[1]).max()
    assert change("none", None) == 0
    assert change("context", inputs["f"]) > 1e-3


def test_eq_5_the_next_state_reads_the_word_that_was_just_said():
    inputs = example("encoder_decoder")
    inputs["w_o"] = Tensor(np.concatenate([np.eye(2, 2), np.zeros((2, 8))], 1))  # read out the state itself
    got = find("encoder_decoder")(**inputs | {"feed": "none", "f": None}).numpy()
    s_1, y, w_y, u = (inputs[n].numpy() for n in ("s", "y", "w_y", "u"))
    np.testing.assert_allclose(got[:, 0], np.tanh(s_1), atol=1e-12)
    np.testing.assert_allclose(got[:, 1], np.tanh(np.tanh(y[:, 1] @ w_y.T + s_1 @ u.T)), atol=1e-12)  # y_1, not y_0


def test_feeding_the_features_equals_the_reference():
    arrays = find("encoder_decoder").part("example")(np.random.default_rng(2))
    arrays["f"] = np.random.default_rng(3).normal(size=(2, 4))
    tensors = {k: Tensor(a) for k, a in arrays.items()}
    want = find("encoder_decoder").part("reference")(**arrays, feed="input")
    np.testing.assert_allclose(find("encoder_decoder")(**tensors, feed="input").numpy(), want, atol=1e-12)


def test_without_its_share_of_the_weights_input_feeding_is_an_lstm_under_global_attention():
    inputs = example("input_feeding")
    blind = inputs["w_ih"].numpy().copy()
    blind[:, 4:] = 0  # the columns of h~
    got = find("input_feeding")(**inputs | {"w_ih": Tensor(blind)})
    x = linear(inputs["y"], Tensor(blind[:, :4]), inputs["b"])
    hs, _, _ = LSTMScan()(x, inputs["h"], inputs["c"], inputs["w_hh"], None, None)
    context = find("luong_global")(hs, inputs["k"], inputs["k"], w=inputs["w"], mask=inputs["mask"])
    want = linear(concat([context, hs], -1), inputs["w_c"]).tanh()
    np.testing.assert_allclose(got.numpy(), want.numpy(), atol=1e-12)
    assert np.abs(got.numpy() - find("input_feeding")(**inputs).numpy()).max() > 1e-3


# ---------------------------------------------------------------------------------------------------------------------
# hard
# ---------------------------------------------------------------------------------------------------------------------
def one_query():
    rng = np.random.default_rng(7)
    return {"q": Tensor(rng.normal(size=(1, 1, 3)), requires_grad=True), "k": Tensor(rng.normal(size=(1, 5, 2))),
            "v": Tensor(rng.normal(size=(1, 5, 2))), "w": Tensor(rng.normal(size=(3, 2)), requires_grad=True),
            "mask": Tensor(np.array([[[True, True, False, True, True]]]))}


def test_in_the_mean_over_all_draws_hard_attention_is_soft_attention():
    inputs = one_query()
    soft, weights = find("luong_global")(**inputs, return_weights=True)
    mean = sum(weights.numpy()[0, 0, s] * inputs["v"].numpy()[0, s] for s in range(5))
    np.testing.assert_allclose(soft.numpy()[0, 0], mean, atol=1e-12)
    counts = np.zeros(5)
    for seed in range(4000):
        place = find("hard").module.draw(weights, seed).numpy()[0, 0]
        counts[place] += 1
    assert counts[2] == 0  # masked
    p = weights.numpy()[0, 0]
    assert (np.abs(counts / 4000 - p) <= 4 * np.sqrt(p * (1 - p) / 4000)).all()


@pytest.mark.parametrize("baseline", [0.0, 0.7, -3.0])
def test_in_the_mean_the_surrogates_gradient_is_that_of_the_expected_reward(monkeypatch, baseline):
    inputs, module = one_query(), find("hard").module
    reward = lambda c: (c * c).sum(-1) - c[..., 0]  # noqa: E731
    leaves = [inputs["q"], inputs["w"]]
    _, weights = find("luong_global")(**inputs, return_weights=True)
    expected = (weights * reward(inputs["v"]).unsqueeze(1)).sum()          # E[R], by going through all places
    want = [g.numpy() for g in grad(expected, leaves)]
    got = [np.zeros(t.shape) for t in leaves]
    for s in (0, 1, 3, 4):
        monkeypatch.setattr(module, "draw", lambda w, seed, s=s: Tensor(np.array([[s]])))
        c, log_alpha = find("hard")(**inputs, seed=0)
        np.testing.assert_array_equal(c.numpy()[0, 0], inputs["v"].numpy()[0, s])
        for total, g in zip(got, grad(module.surrogate(log_alpha, reward(c), baseline), leaves), strict=True):
            total += weights.numpy()[0, 0, s] * g.numpy()
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)
        assert np.abs(b).max() > 1e-3


def test_hard_attention_with_nothing_to_attend_to_is_0():
    inputs = one_query() | {"mask": Tensor(np.zeros((1, 1, 5), bool))}
    c, log_alpha = find("hard")(**inputs, seed=0)
    assert (c.numpy() == 0).all() and (log_alpha.numpy() == 0).all()
    slopes = grad(log_alpha.sum(), [inputs["q"], inputs["w"]])
    assert all(np.isfinite(g.numpy()).all() and (g.numpy() == 0).all() for g in slopes)
