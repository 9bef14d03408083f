"""BERT's masking: how many places, what becomes of them, what is never touched."""
import math

import numpy as np
import pytest

from tinyattn.functional import cross_entropy
from tinyattn.tasks.masked_lm import IGNORE, mask_tokens
from tinyattn.tensor import Tensor

V, PAD, CLS, SEP, MASK = 50, 0, 1, 2, 3
SPECIAL = [PAD, CLS, SEP]  # mask_id counts as special without being named


def sentences(rng, B=400, T=32):
    ids = rng.integers(4, V, size=(B, T))
    ids[:, 0], ids[:, -1] = CLS, SEP
    return ids


def masked(ids, seed=0, **options):
    return mask_tokens(ids, np.random.default_rng(seed), V, SPECIAL, MASK, **options)


def within_3_sigma(count, n, p):
    return abs(count - n * p) < 3 * math.sqrt(n * p * (1 - p))


def test_the_rates_are_those_of_bert(rng):
    ids = sentences(rng, B=2000)
    inputs, targets = masked(ids)
    chosen = targets != IGNORE
    np.testing.assert_array_equal(chosen.sum(1), 4)  # 15% of 30 words is 4.5, and half goes to the even number
    n = int(chosen.sum())
    assert within_3_sigma((inputs[chosen] == MASK).sum(), n, 0.8)
    other, kept = chosen & (inputs != MASK) & (inputs != ids), chosen & (inputs == ids)
    drawn = V - 4  # a drawn word is the same again once in so many times
    assert within_3_sigma(other.sum(), n, 0.1 * (1 - 1 / drawn))
    assert within_3_sigma(kept.sum(), n, 0.1 * (1 + 1 / drawn))
    off = (chosen[:, 1:31].sum(0) - len(ids) * 4 / 30) / math.sqrt(len(ids) * 4 / 30 * 26 / 30)
    assert np.abs(off).max() < 4  # 30 places, none of which is preferred


def test_every_word_is_drawn_as_often_as_another(rng):
    ids = np.full((4000, 22), 4)
    inputs, targets = masked(ids, rate=0.5)
    drawn = inputs[(targets != IGNORE) & (inputs != MASK)]
    assert set(drawn.tolist()) == set(range(4, V))
    others = np.bincount(drawn, minlength=V)[5:]
    expected = others.sum() / len(others)
    assert ((others - expected) ** 2 / expected).sum() < len(others) + 4 * math.sqrt(2 * len(others))


def test_special_tokens_are_never_chosen_and_never_drawn(rng):
    ids = sentences(rng)
    ids[:, 20:] = PAD
    special = np.isin(ids, [*SPECIAL, MASK])
    for seed in range(3):
        inputs, targets = masked(ids, seed)
        np.testing.assert_array_equal(inputs[special], ids[special])
        assert (targets[special] == IGNORE).all()
        changed = inputs != ids
        assert not np.isin(inputs[changed], SPECIAL).any() and (inputs[changed] == MASK).any()


def test_targets_are_the_words_that_were_there(rng):
    ids = sentences(rng, 20)
    before = ids.copy()
    inputs, targets = masked(ids)
    np.testing.assert_array_equal(ids, before)
    chosen = targets != IGNORE
    np.testing.assert_array_equal(targets[chosen], ids[chosen])
    np.testing.assert_array_equal(inputs[~chosen], ids[~chosen])
    assert inputs.dtype == targets.dtype == np.int64 and inputs.shape == targets.shape == ids.shape


def test_how_many():
    for words, expected in [(1, 1), (3, 1), (10, 2), (20, 3), (40, 6), (200, 20)]:  # 1.5 goes to 2, 30 is cut at 20
        _, targets = masked(np.full((1, words), 7))
        assert (targets != IGNORE).sum() == expected, words
    assert (masked(np.full((1, 200), 7), most=5)[1] != IGNORE).sum() == 5
    assert (masked(np.full((1, 9), 7), rate=1.0)[1] != IGNORE).all()
    inputs, targets = masked(np.array([[CLS, SEP, PAD, MASK]]))  # nothing to choose
    np.testing.assert_array_equal(inputs, [[CLS, SEP, PAD, MASK]])
    assert (targets == IGNORE).all()
    for shape in [(0, 5), (5, 0)]:
        assert masked(np.zeros(shape, int))[0].shape == shape


def test_one_seed_one_mask_and_any_layout(rng):
    ids = sentences(rng, 6)
    for a, b in zip(masked(ids), masked(np.asfortranarray(ids)), strict=True):
        np.testing.assert_array_equal(a, b)
    assert (masked(ids)[1] != masked(ids, seed=1)[1]).any()


def test_the_loss_counts_the_chosen_places_only(rng):
    ids = sentences(rng, 3)
    _, targets = masked(ids)
    logits = Tensor(rng.normal(size=(3, 32, V)), requires_grad=True)
    loss = cross_entropy(logits, targets)
    loss.backward()
    p = np.exp(logits.numpy()) / np.exp(logits.numpy()).sum(-1, keepdims=True)
    chosen = targets != IGNORE
    wanted = -np.log(np.take_along_axis(p, np.maximum(targets, 0)[..., None], -1))[..., 0][chosen].mean()
    assert float(loss) == pytest.approx(wanted, rel=1e-12)
    np.testing.assert_array_equal(logits.grad.numpy()[~chosen], 0)


@pytest.mark.parametrize("ids, options, error, message", [
    (np.ones((2, 3)), {}, TypeError, "mask_tokens: expected integer ids, got float64"),
    (np.ones(3, int), {}, ValueError, r"mask_tokens: expected ids \(B, T\), got shape \(3,\)"),
    (np.array([[4, V]]), {}, ValueError, f"mask_tokens: expected ids of 0 .. {V - 1}, got 4 .. {V}"),
    (np.array([[4]]), {"rate": 0}, ValueError, "mask_tokens: expected 0 < rate <= 1"),
    (np.array([[4]]), {"most": 0}, ValueError, "mask_tokens: .*most of at least 1"),
])
def test_bad_input(ids, options, error, message):
    with pytest.raises(error, match=message):
        masked(ids, **options)
    with pytest.raises(ValueError, match="mask_tokens: expected special ids and mask_id of 0 .. 49"):
        mask_tokens(np.array([[4]]), np.random.default_rng(0), V, SPECIAL, V)
