"""BLEU against sacreBLEU, alignment error rate against numbers worked out by hand."""

import numpy as np
import pytest

from tinyattn.tasks.metrics import aer, bleu, bleu_by_length, bleu_difference


def random_corpus(rng, size, words, longest):
    return [[f"w{i}" for i in rng.integers(words, size=rng.integers(longest + 1))] for _ in range(size)]


@pytest.mark.parametrize("seed", range(40))
def test_bleu_is_sacrebleu(seed):
    sacrebleu = pytest.importorskip("sacrebleu")
    rng = np.random.default_rng(seed)
    size, words, longest = rng.integers(1, 20), rng.integers(1, 12), rng.integers(1, 15)
    references = [sentence or ["w0"] for sentence in random_corpus(rng, size, words, longest)]
    hypotheses = random_corpus(rng, size, words, longest)
    for i in range(0, size, 2):  # some of them near the reference, as real ones are
        hypotheses[i] = references[i][:rng.integers(len(references[i]) + 1)] + hypotheses[i][:2]
    expected = sacrebleu.corpus_bleu([" ".join(words) for words in hypotheses],
                                     [[" ".join(words) for words in references]], tokenize="none", force=True)
    assert bleu(hypotheses, references) == pytest.approx(expected.score, abs=1e-9)


def test_bleu_at_its_ends():
    sentence = ["the", "cat", "is", "on", "the", "mat"]
    assert bleu([sentence], [sentence]) == pytest.approx(100, abs=1e-12)
    assert bleu([[]], [sentence]) == 0.0
    assert bleu([], []) == 0.0
    assert bleu([["the", "cat"]], [["the", "cat"]]) == 0.0  # no run of four words at all
    assert bleu([["dog"] * 6], [sentence]) == 0.0
    with pytest.raises(ValueError, match="1 and 2"):
        bleu([sentence], [sentence, sentence])


def test_bleu_by_hand():
    """Matches 5/6, 3/5, 1/4, and no run of four: half of 1/3; as long as the reference."""
    hypothesis, reference = ["the", "cat", "sat", "on", "the", "mat"], ["the", "cat", "is", "on", "the", "mat"]
    assert bleu([hypothesis], [reference]) == pytest.approx(100 * (5 / 6 * 3 / 5 * 1 / 4 * 1 / 6) ** 0.25, abs=1e-9)


def test_bleu_by_length():
    good, bad = ["a", "b", "c", "d"], ["x", "y", "z", "w"]
    rows = bleu_by_length([good, good, bad], [good, good, good], [4, 10, 30], edges=(10, 25))
    assert [(label, n) for label, n, _ in rows] == [("<=10", 2), ("11-25", 0), (">25", 1)]
    assert [score for _, _, score in rows] == [pytest.approx(100), None, 0.0]
    with pytest.raises(ValueError, match="rise"):
        bleu_by_length([good], [good], [4], edges=(25, 10))


def test_aer():
    a = {(0, 0), (1, 1)}
    assert aer([a], [a], [a]) == 0.0
    predicted, sure = {(0, 0), (2, 1), (3, 2)}, {(0, 0), (1, 1)}
    assert aer([predicted], [sure], [sure | {(2, 1)}]) == pytest.approx(0.4)
    assert aer([predicted], [sure], [{(2, 1)}]) == pytest.approx(0.4)  # sure links are possible anyway
    # Sums over the corpus, not a mean over sentences.
    assert aer([predicted, a], [sure, a], [sure | {(2, 1)}, a]) == pytest.approx(1 - (1 + 2 + 2 + 2) / (3 + 2 + 2 + 2))
    assert aer([set()], [sure], [sure]) == 1.0
    assert aer([set()], [set()], [{(0, 0)}]) == 0.0
    assert aer([], [], []) == 0.0
    with pytest.raises(ValueError, match="1 and 0"):
        aer([a], [], [a])


def test_bleu_difference_by_paired_bootstrap():
    rng = np.random.default_rng(5)
    references = [[f"w{i}" for i in rng.integers(50, size=12)] for _ in range(150)]

    def spoiled(share):
        return [[w if rng.random() > share else "x" for w in r] for r in references]
    better, worse, as_good = spoiled(0.1), spoiled(0.3), spoiled(0.1)
    difference, low, high = bleu_difference(better, worse, references)
    assert difference == pytest.approx(bleu(better, references) - bleu(worse, references))
    assert 0 < low < difference < high
    other = bleu_difference(worse, better, references)
    assert other[0] == -difference and other[1] < other[2] < 0
    even, low, high = bleu_difference(better, as_good, references)
    assert low < 0 < high and low < even < high
    assert bleu_difference(better, better, references) == (0, 0, 0) == bleu_difference([], [], [])
    assert bleu_difference(better, worse, references) == bleu_difference(better, worse, references)
    spread = [bleu_difference(better, worse, references, 300, seed)[1:] for seed in range(4)]
    assert np.ptp(np.array(spread), 0).max() < 1.5  # the interval does not hang on the seed
