"""How good is a translation, an alignment, attention: BLEU, alignment error rate, agreement with gold attention.

Sources: Papineni et al. 2002 (BLEU); Chen and Cherry 2014, method 3, as in sacreBLEU 2 (smoothing);
Och and Ney 2003 (alignment error rate).
"""

import math
from collections import Counter

import numpy as np

ORDER = 4  # BLEU-4: runs of one to four words


def bleu(hypotheses, references):
    r"""Corpus BLEU-4 with one reference a sentence, from 0 to 100.

        BLEU = 100 * min(1, exp(1 - r / h)) * (p_1 p_2 p_3 p_4)^(1/4)

    p_n is the share of the hypotheses' n-grams that their references hold too (each as often as it occurs there),
    summed over the corpus; h and r are the total numbers of words. **Smoothing** is the exponential one: the k-th
    order that has n-grams but no match counts as p_n = 1 / (2^k * number of n-grams). Without any n-gram of some
    order (every hypothesis shorter than four words), or without any common word, the score is 0. These are
    sacreBLEU's conventions (`tokenize="none", smooth_method="exp"`).

    hypotheses, references: lists of lists of words, of the same length (ValueError otherwise).
    """
    return _bleu_of(_counts(hypotheses, references).sum(0))


def _counts(hypotheses, references):
    """What BLEU needs of each sentence: matches and n-grams of orders 1 to 4, words of hypothesis and reference."""
    _same_number(hypotheses, references)
    counts = np.zeros((len(hypotheses), 2 * ORDER + 2), np.int64)
    for row, hypothesis, reference in zip(counts, hypotheses, references):
        row[-2:] = len(hypothesis), len(reference)
        for n in range(1, ORDER + 1):
            found, wanted = _ngrams(hypothesis, n), _ngrams(reference, n)
            row[n - 1] = sum(min(count, wanted[gram]) for gram, count in found.items() if gram in wanted)
            row[ORDER + n - 1] = max(0, len(hypothesis) - n + 1)
    return counts


def _bleu_of(counts):
    """BLEU from a corpus's sums of `_counts`."""
    *both, h, r = counts.tolist()
    matches, totals = both[:ORDER], both[ORDER:]
    if not any(matches) or not all(totals):
        return 0.0
    halved, log_precision = 1.0, 0.0
    for match, total in zip(matches, totals):
        if match == 0:
            halved *= 2
        log_precision += math.log(match / total if match else 1 / (halved * total)) / ORDER
    brevity = 1.0 if h >= r else math.exp(1 - r / h)
    return 100 * brevity * math.exp(log_precision)


def bleu_by_length(hypotheses, references, lengths, edges=(10, 25)):
    """BLEU of the sentences of each length, to show where a model loses the thread.

    lengths: one number a sentence (say, source words). edges: the last length of each class, rising; one more class
    holds what is longer. Returns (label, number of sentences, BLEU) for each class, BLEU None where it is empty.
    """
    _same_number(hypotheses, references)
    _same_number(hypotheses, lengths)
    return [(label, len(inside),
             bleu([hypotheses[i] for i in inside], [references[i] for i in inside]) if inside else None)
            for label, inside in by_length(lengths, edges)]


def by_length(lengths, edges=(10, 25)):
    """[(label, places)]: which of the lengths are in each class. See `bleu_by_length`."""
    if list(edges) != sorted(set(edges)):
        raise ValueError(f"bleu_by_length: edges must rise, got {tuple(edges)}")
    rows, low = [], -math.inf
    for high in [*edges, math.inf]:
        label = f"<={high}" if low == -math.inf else f">{low}" if high == math.inf else f"{low + 1}-{high}"
        rows.append((label if edges else "all", [i for i, length in enumerate(lengths) if low < length <= high]))
        low = high
    return rows


def bleu_difference(first, second, references, resamples=1000, seed=0):
    """How much higher BLEU is for the hypotheses `first` than for `second`, and the 95 % interval of that difference:
    (difference, low, high).

    Paired bootstrap (Koehn 2004): the test set is drawn anew from its own sentences, with replacement, `resamples`
    times, the same sentences for both. An interval that does not hold 0 is called significant.
    """
    counts = _counts(first, references), _counts(second, references)
    n, rng = len(references), np.random.default_rng(seed)
    found = []
    for _ in range(resamples if n else 0):
        drawn = rng.integers(0, n, n)
        found.append(_bleu_of(counts[0][drawn].sum(0)) - _bleu_of(counts[1][drawn].sum(0)))
    low, high = np.percentile(found, [2.5, 97.5]) if found else (0.0, 0.0)
    return _bleu_of(counts[0].sum(0)) - _bleu_of(counts[1].sum(0)), float(low), float(high)


def aer(predicted, sure, possible):
    """Alignment error rate of a corpus, 0 (perfect) to 1.

        AER = 1 - (|A & S| + |A & P|) / (|A| + |S|)

    predicted A, sure S, possible P: one set of (source position, target position) a sentence, all three lists of
    the same length. P takes in S whether the caller added it or not. The counts are summed over the corpus first.
    A corpus without any predicted and any sure link has nothing to get wrong: 0.
    """
    _same_number(predicted, sure)
    _same_number(predicted, possible)
    right = asked = 0
    for a, s, p in zip(predicted, sure, possible):
        a, s = set(a), set(s)
        right += len(a & s) + len(a & (s | set(p)))
        asked += len(a) + len(s)
    return 1 - right / asked if asked else 0.0


def _ngrams(words, n):
    return Counter(tuple(words[i:i + n]) for i in range(len(words) - n + 1))


def _same_number(first, second):
    if len(first) != len(second):
        raise ValueError(f"expected as many items in both lists, got {len(first)} and {len(second)}")


def gold_attention(weights, gold, blur=0.0):
    """How near attention comes to gold attention vectors (Liu et al. 2017; Hu 2018 section 5.1): a dictionary of means.

        gold vector   equal mass on the labelled places, blurred by a Gaussian of width `blur` if that is above 0, of sum 1
        gold_mse      mean over samples of the sum of (weight - gold)^2
        gold_kl       mean of the Kullback-Leibler divergence sum gold log(gold / weight), in nats; weights below 1e-9
                      count as 1e-9, so that one zero does not make it infinite
        gold_mass     mean of the weight on labelled places, from 0 to 1
        gold_top      share of the samples whose largest weight lies on a labelled place

    weights: one vector (S,) a sample. gold: its labelled places, whole numbers from 0. A sample without any is left out;
    an empty dictionary where none is left. ValueError for a place outside its vector.
    """
    _same_number(weights, gold)
    sums, count = dict.fromkeys(("gold_mse", "gold_kl", "gold_mass", "gold_top"), 0.0), 0
    for w, places in zip(weights, gold):
        w, places = np.asarray(w, np.float64), sorted(places)
        if not places:
            continue
        if places[0] < 0 or places[-1] >= len(w):
            raise ValueError(f"gold_attention: expected places from 0 to {len(w) - 1}, got {places}")
        right = np.zeros(len(w))
        right[places] = 1.0
        if blur > 0:
            apart = np.arange(len(w))[:, None] - np.asarray(places)
            right = np.exp(-apart ** 2 / (2 * blur ** 2)).sum(1)
        right /= right.sum()
        some = right > 0
        sums["gold_mse"] += ((w - right) ** 2).sum()
        sums["gold_kl"] += (right[some] * np.log(right[some] / np.maximum(w[some], 1e-9))).sum()
        sums["gold_mass"] += w[places].sum()
        sums["gold_top"] += float(int(w.argmax()) in places)
        count += 1
    return {name: total / count for name, total in sums.items()} if count else {}


def accuracy_by(kinds, right):
    """[(kind, number of samples, accuracy in percent)] by kind, in order of their names; right: one bool a sample."""
    _same_number(kinds, right)
    return [(str(kind), sum(k == kind for k in kinds),
             100 * sum(r for k, r in zip(kinds, right) if k == kind) / sum(k == kind for k in kinds))
            for kind in sorted(set(kinds))]
