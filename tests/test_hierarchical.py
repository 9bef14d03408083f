"""Attention at two levels: HAN, Du's two-level rows, Ji's nested attention from words down to characters."""
import numpy as np
import pytest
from test_multidimensional import arrays_of, assert_right

from tinyattn import Tensor, grad
from tinyattn.attention import find, properties
from tinyattn.attention.han import attend, han, lengths_of
from tinyattn.attention.nested import nested
from tinyattn.attention.properties import leaves
from tinyattn.attention.structured_self import penalty, structured_self
from tinyattn.attention.two_level import penalties, two_level
from tinyattn.ops.broadcast import ShapeError


def gradients(outs, tensors):
    """{name: gradient} for random gradients of the outputs."""
    names = [n for n, t in tensors.items() if isinstance(t, Tensor) and t.requires_grad]
    g = [Tensor(np.random.default_rng(7).normal(size=o.shape)) for o in outs]
    found = grad(outs, [tensors[n] for n in names], g, allow_unused=True)
    return {n: np.zeros(tensors[n].shape) if x is None else x.numpy() for n, x in zip(names, found, strict=True)}


# ---------------------------------------------------------------------------------------------------------------------
# HAN
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("hidden", [True, False])
def test_context_vectors_of_0_average(hidden):
    """HN-AVE: every word of a sentence, and every sentence of a document, counts the same; padding not at all."""
    a = {**arrays_of("han"), "hidden": hidden}
    a |= {"u_w": np.zeros(5 if hidden else 4), "u_s": np.zeros(4 if hidden else 2)}
    v, (words, sentences) = han(**leaves(a), return_weights=True)
    lengths = a["word_mask"].sum(-1)                                       # (B, N)
    for b, n in np.ndindex(2, 3):
        np.testing.assert_allclose(words.numpy()[b, n, 0], a["word_mask"][b, n] / max(lengths[b, n], 1), atol=1e-15)
    np.testing.assert_allclose(sentences.numpy()[:, 0], [[1 / 3] * 3, [1 / 2, 1 / 2, 0]], atol=1e-15)
    report = properties.value(find("han"), a)
    assert report.ok, str(report)


def test_without_the_hidden_layer_as_the_survey_prints_it():
    a = {**arrays_of("han"), "hidden": False, "u_w": np.array([1.0, -0.5, 2.0, 0.3]), "u_s": np.array([3.0, -1.0])}
    assert_right("han", a)
    missing = {**a, "w_w": None, "b_w": None, "w_s": None, "b_s": None}
    np.testing.assert_array_equal(han(**leaves(missing)).numpy(), han(**leaves(a)).numpy())


def test_padding_words_and_sentences_get_exactly_0_and_send_0():
    a = arrays_of("han")
    tensors = leaves(a)
    v, (words, sentences) = han(**tensors, return_weights=True)
    assert (words.numpy()[:, :, 0][~a["word_mask"]] == 0).all()
    assert sentences.numpy()[1, 0, 2] == 0 and (sentences.numpy()[0] > 0).all()
    np.testing.assert_allclose(words.numpy().sum(-1)[..., 0], a["word_mask"].any(-1), atol=1e-12)
    np.testing.assert_allclose(sentences.numpy().sum(-1), 1, atol=1e-12)
    g = gradients([v], tensors)["x"]
    assert (g[~a["word_mask"]] == 0).all() and (np.abs(g[a["word_mask"]]).max(-1) > 0).all()
    other = {**a, "x": np.where(a["word_mask"][..., None], a["x"], 1e3)}
    np.testing.assert_array_equal(han(**leaves(other)).numpy(), v.numpy())


def test_a_padded_document_is_the_document_alone():
    a = arrays_of("han")
    alone = {**a, "x": a["x"][1:, :2], "word_mask": a["word_mask"][1:, :2]}
    np.testing.assert_allclose(han(**leaves(alone)).numpy(), han(**leaves(a)).numpy()[1:], atol=1e-12)


def test_an_empty_document_gives_0_and_sends_0():
    a = arrays_of("han")
    a["word_mask"] = a["word_mask"].copy()
    a["word_mask"][0] = False
    tensors = leaves(a)
    v = han(**tensors)
    g = gradients([v], tensors)
    assert (v.numpy()[0] == 0).all() and (v.numpy()[1] != 0).all() and (g["x"][0] == 0).all()
    assert all(np.isfinite(x).all() for x in g.values())


def test_han_is_pytorchs():
    """With torch.nn.GRU, whose update gate keeps where the paper's writes: sigmoid(-z) = 1 - sigmoid(z)."""
    torch = pytest.importorskip("torch")
    a = {**arrays_of("han", 1), "word_mask": None}

    def gru(ih, hh, b):
        units = hh.shape[2]
        sign = np.repeat([1.0, -1.0, 1.0], units)[:, None]
        layer = torch.nn.GRU(ih.shape[2], units, batch_first=True, bidirectional=True).double()
        with torch.no_grad():
            for d, end in enumerate(["l0", "l0_reverse"]):
                values = {"weight_ih": ih[d] * sign, "weight_hh": hh[d] * sign, "bias_ih": b[d] * sign[:, 0],
                          "bias_hh": b[d] * 0}
                for part, value in values.items():
                    getattr(layer, f"{part}_{end}").copy_(torch.tensor(value))
        return layer

    def level(x, kind, w, b, u):
        h, _ = gru(a[kind + "_ih"], a[kind + "_hh"], a[kind + "_b"])(x)
        alpha = torch.softmax(torch.tanh(h @ torch.tensor(a[w]).T + torch.tensor(a[b])) @ torch.tensor(a[u]), -1)
        return (alpha[..., None] * h).sum(-2)

    s = level(torch.tensor(a["x"]).reshape(6, 4, 3), "word", "w_w", "b_w", "u_w").reshape(2, 3, 4)
    theirs = level(s, "sent", "w_s", "b_s", "u_s")
    np.testing.assert_allclose(han(**leaves(a)).numpy(), theirs.detach().numpy(), atol=1e-10)


@pytest.mark.parametrize("shape", [(0, 2, 3), (2, 1, 1), (1, 2, 0), (2, 0, 3)])
def test_han_of_no_document_one_word_no_word_no_sentence(shape):
    a = arrays_of("han")
    v = han(**leaves({**a, "x": np.random.default_rng(0).normal(size=(*shape, 3)), "word_mask": None}))
    assert v.shape == (shape[0], 2) and np.isfinite(v.numpy()).all()
    assert (v.numpy() == 0).all() == (0 in shape)


def test_lengths_and_han_errors():
    np.testing.assert_array_equal(lengths_of("f", Tensor([[[True, True, False]]]), 2, 1, 3).numpy(), [2, 2])
    np.testing.assert_array_equal(lengths_of("f", Tensor(np.ones((2, 3, 0), bool)), 2, 3, 0).numpy(), [0] * 6)
    a = leaves(arrays_of("han"))
    hole = a["word_mask"].numpy().copy()
    hole[0, 0] = [True, False, True, False]
    with pytest.raises(ValueError, match="han: expected a mask that is True from the start"):
        han(**{**a, "word_mask": Tensor(hole)})
    with pytest.raises(TypeError, match="han: expected a mask of bools"):
        han(**{**a, "word_mask": Tensor(np.ones((2, 3, 4)))})
    with pytest.raises(ShapeError, match=r"han: expected x \(B, N, T, D\)"):
        han(**{**a, "x": a["x"][0]})
    with pytest.raises(ShapeError, match=r"han: expected word_hh \(2, 3U, U\)"):
        han(**{**a, "word_hh": a["word_hh"][:, :, :1]})
    with pytest.raises(ShapeError, match=r"han: expected word_hh .*an attention 3 wide"):
        han(**{**a, "w_w": a["w_w"][:, :3], "sent_ih": a["sent_ih"][:, :, :3]})
    with pytest.raises(ShapeError, match="word_mask"):
        han(**{**a, "word_mask": a["word_mask"][:, :2]})


# ---------------------------------------------------------------------------------------------------------------------
# two levels of rows
# ---------------------------------------------------------------------------------------------------------------------
def test_two_levels_are_structured_self_attention_twice():
    a = leaves(arrays_of("two_level"))
    bag, (words, chosen) = two_level(**a, return_weights=True)
    each = [structured_self(a["x"][:, n], a["w_1"], a["w_2"], a["word_mask"][:, n:n + 1]) for n in range(3)]
    joined = Tensor.stack([rows.reshape(2, 4) for rows in each], 1)        # (B, N, R D)
    present = Tensor(np.array([[[True] * 3], [[True, True, False]]]))
    np.testing.assert_allclose(structured_self(joined, a["w_3"], a["w_4"], present).numpy(), bag.numpy(), atol=1e-12)
    assert words.shape == (2, 3, 2, 4) and chosen.shape == (2, 3, 3)


def test_with_one_row_at_each_level_it_is_hans_attention():
    a = leaves(arrays_of("two_level"))
    none = Tensor(np.zeros(3)), Tensor(np.zeros(5))                        # no biases
    w_3 = a["w_3"][:, :2]
    bag = two_level(a["x"], a["w_1"], a["w_2"][:1], w_3, a["w_4"][:1], a["word_mask"])
    s, _ = attend(a["x"], a["w_2"][0], a["w_1"], none[0], a["word_mask"])
    v, _ = attend(s, a["w_4"][0], w_3, none[1], Tensor(a["word_mask"].numpy().any(-1)))
    np.testing.assert_allclose(bag.numpy()[:, 0], v.numpy(), atol=1e-12)


def test_penalties_are_lins_at_both_levels():
    a = leaves(arrays_of("two_level"))
    _, (words, chosen) = two_level(**a, return_weights=True)
    real = [penalty(words[b, n]).item() for b, n in ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1))]
    total = penalties(words, chosen, a["word_mask"])
    assert total.item() == pytest.approx(np.mean(real) + penalty(chosen).item())
    assert all(np.abs(g).max() > 1e-6 for n, g in gradients([total], a).items() if n != "x")
    mean = penalties(words, chosen, a["word_mask"], "mean").item()
    assert mean == pytest.approx(np.mean(real) / 4 + penalty(chosen).item() / 9)


def test_two_level_padding():
    a = arrays_of("two_level")
    tensors = leaves(a)
    bag, (words, chosen) = two_level(**tensors, return_weights=True)
    assert (np.moveaxis(words.numpy(), 2, 3)[~a["word_mask"]] == 0).all() and (chosen.numpy()[1, :, 2] == 0).all()
    assert (gradients([bag], tensors)["x"][~a["word_mask"]] == 0).all()
    a["word_mask"] = a["word_mask"].copy()
    a["word_mask"][0] = False
    tensors = leaves(a)
    bag = two_level(**tensors)
    assert (bag.numpy()[0] == 0).all() and (gradients([bag], tensors)["x"][0] == 0).all()
    assert_right("two_level", {**arrays_of("two_level"), "word_mask": None})
    with pytest.raises(ShapeError, match=r"two_level: expected w_3 \(C, R D\) with R = 2, D = 2, got \(5, 3\)"):
        two_level(**{**tensors, "w_3": tensors["w_3"][:, :3]})
    with pytest.raises(ShapeError, match=r"two_level: expected x \(B, N, T, D\).*word_mask \(B, N, T\)"):
        two_level(**{**tensors, "word_mask": tensors["word_mask"][:, :, :3]})


# ---------------------------------------------------------------------------------------------------------------------
# from words down to characters
# ---------------------------------------------------------------------------------------------------------------------
def picked_by(a):
    """(word weights, picked word) of each step."""
    alpha = nested(**leaves(a), return_weights=True)[2][0].numpy()
    return alpha, alpha.argmax(-1)


def test_characters_are_those_of_the_one_word_that_is_picked():
    """The letters' context is soft attention over one word's characters alone, and 0 for a word of the vocabulary."""
    a = arrays_of("nested")
    alpha, z = picked_by(a)
    words, letters, (_, beta) = nested(**leaves(a), return_weights=True)
    assert len(set(z.ravel())) >= 3 and (alpha.max(-1) < 0.99).any()
    for b, t in np.ndindex(*z.shape):
        n = z[b, t]
        if not a["unknown"][b, n]:
            assert (letters.numpy()[b, t] == 0).all() and (beta.numpy()[b, t] == 0).all()
            continue
        long = a["char_mask"][b, n].sum()
        h = a["h"][b, n, :long]
        for j in range(2):
            e = np.exp(np.tanh(a["u_q"] @ a["p"][b, t, j] + h @ a["u_k"].T) @ a["v_c"])
            np.testing.assert_allclose(beta.numpy()[b, t, j], np.pad(e / e.sum(), (0, 5 - long)), atol=1e-12)
            np.testing.assert_allclose(letters.numpy()[b, t, j], e / e.sum() @ h, atol=1e-12)
    np.testing.assert_allclose(words.numpy(), np.einsum("bts,bse->bte", alpha, a["v"]), atol=1e-12)


def test_no_gradient_flows_through_the_choice():
    a = arrays_of("nested")
    _, z = picked_by(a)
    tensors = leaves(a)
    letters = nested(**tensors)[1]
    g = gradients([letters], tensors)
    for name in ("q", "k", "v", "w_q", "w_k", "v_a"):
        assert (g[name] == 0).all(), name
    for name in ("p", "u_q", "u_k", "v_c"):
        assert np.abs(g[name]).max() > 1e-6, name
    for b, s in np.ndindex(2, 4):
        looked_at = a["unknown"][b, s] and s in z[b]
        assert (np.abs(g["h"][b, s]).max() > 0) == looked_at
    assert (g["h"][~a["char_mask"]] == 0).all()


def test_a_masked_word_is_never_picked():
    a = arrays_of("nested")
    a["unknown"] = np.ones((2, 4), bool)
    _, z = picked_by(a)
    favourite = np.bincount(z[0]).argmax()
    closed = np.ones((2, 1, 4), bool)
    closed[0, 0, favourite] = False
    tensors = leaves({**a, "word_mask": closed})
    words, letters, (alpha, beta) = nested(**tensors, return_weights=True)
    assert (alpha.numpy()[0, :, favourite] == 0).all() and (alpha.numpy()[0].argmax(-1) != favourite).all()
    g = gradients([words, letters], tensors)
    for name in ("k", "v", "h"):
        assert (g[name][0, favourite] == 0).all()
    np.testing.assert_allclose(beta.numpy().sum(-1), 1, atol=1e-12)


def test_with_no_word_and_with_no_character_nothing_is_attended_to():
    a = arrays_of("nested")
    a["unknown"] = np.ones((2, 4), bool)
    words, chars = np.ones((2, 6, 4), bool), a["char_mask"].copy()
    words[0, 2], chars[1] = False, False  # one step without words; words without characters
    a |= {"word_mask": words, "char_mask": chars}
    tensors = leaves(a)
    c, letters = nested(**tensors)
    assert (c.numpy()[0, 2] == 0).all() and (letters.numpy()[0, 2] == 0).all() and (letters.numpy()[1] == 0).all()
    assert (letters.numpy()[0, [0, 1, 3, 4, 5]] != 0).all()
    g = gradients([c, letters], tensors)
    assert all(np.isfinite(x).all() for x in g.values()) and (g["h"][1] == 0).all() and (g["q"][0, 2] == 0).all()
    assert_right("nested", a)


def test_nested_errors():
    a = leaves(arrays_of("nested"))
    with pytest.raises(TypeError, match="nested: expected bools"):
        nested(**{**a, "unknown": Tensor(np.ones((2, 4)))})
    with pytest.raises(ShapeError, match="nested: expected at least one word"):
        nested(**{**a, **{n: a[n][:, :0] for n in ("k", "v", "h", "unknown", "char_mask")}})
    with pytest.raises(ShapeError, match=r"nested: expected q \(B, T, Q\)"):
        nested(**{**a, "p": a["p"][:, :3]})
    with pytest.raises(ShapeError, match="nested: expected a mask"):
        nested(**{**a, "word_mask": a["word_mask"][:, :, :3]})
    none = {n: a[n][:0] for n in ("q", "k", "v", "p", "h", "unknown", "word_mask", "char_mask")}
    words, letters = nested(**{**a, **none})
    assert words.shape == (0, 6, 2) and letters.shape == (0, 6, 2, 2)
