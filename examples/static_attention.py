"""Static attention: where a tanh stands decides whether a word can choose what it looks at (Hu 2018, eq. 19 and eq. 8).

    python examples/static_attention.py
    python examples/static_attention.py -o static.svg       (or .png, .pdf: the three tables of weights as pictures)

Three ways to score how well word j fits word i, each followed by a softmax over j:

    eq. 19             tanh(w_1^T v_i + w_2^T v_j + b)        the tanh outermost
    without its tanh   w_1^T v_i + w_2^T v_j + b
    eq. 8, additive    v_a^T tanh(W_q v_i + W_k v_j)          the tanh between two layers

Of the first, all rows have their largest weight at the same word, whoever asks: tanh rises, so the order of the scores
of a row is the order of w_2^T v_j, in which i does not occur. And since a score lies between -1 and 1, no weight is
more than e^2 = 7.39 times another, however large w is made. Without the tanh it is worse: what the asking word adds is
one number for its whole row, and a softmax is blind to that, so all rows are equal. Only the third can look at
different words for different words, and as hard as it likes.

Nothing is learnt here: the vectors are drawn at random, many times over, so what holds each time is no accident.
"""
import argparse
import math

import numpy as np

from tinyattn import Tensor
from tinyattn.attention import find

SENTENCE = ["I", "arrived", "at", "this", "bank", "after", "crossing", "the", "river"]
WIDTH, UNITS, DRAWS, SHOWN = 8, 16, 200, 21
BOUND = math.exp(2)
NAMES = ("static", "static without its tanh", "additive")


def weights(rng, scale=1.0):
    """{name: weights (T, T)} of the three for one sentence of random words; `scale` makes all other numbers larger."""
    def draw(*shape):
        return Tensor(scale * rng.normal(size=shape) / math.sqrt(WIDTH))
    x = Tensor(rng.normal(size=(1, len(SENTENCE), WIDTH)))
    w_1, w_2, b = draw(WIDTH), draw(WIDTH), draw()
    static, pairwise = find("static"), find("pairwise")
    found = (static(x, w_1, w_2, b, return_weights=True), static(x, w_1, w_2, b, return_weights=True, outer=False),
             pairwise(x, w_q=draw(UNITS, WIDTH), w_k=draw(UNITS, WIDTH), v_a=draw(UNITS), return_weights=True))
    return {name: a.numpy()[0] for name, (_, a) in zip(NAMES, found, strict=True)}


def favourites(a):
    """The words that the rows of a (T, T) look at most, each once, in the order of the sentence."""
    return [SENTENCE[j] for j in sorted(set(a.argmax(-1).tolist()))]


def ratio(a):
    """The largest weight of a row as a multiple of the smallest in it, at its largest over the rows."""
    return float((a.max(-1) / a.min(-1)).max())


def unequal(a):
    """How far two rows differ at most."""
    return float(np.abs(a - a[0]).max())


def claims(rng):
    """Check what the head of this file says, over many draws. Returns the share of draws in which the rows of the
    additive score have more than one favourite, and the largest ratio that it reached."""
    several, largest = 0, 0.0
    for _ in range(DRAWS):
        a = weights(rng)
        static, plain, additive = (a[name] for name in NAMES)
        assert len(favourites(static)) == 1, "eq. 19 has one favourite"
        assert ratio(static) <= BOUND, "eq. 19 is bounded by e^2"
        assert unequal(static) > 0, "its rows do differ, in how sharp they are"
        assert unequal(plain) < 1e-12, "without the tanh all rows are equal"
        several += len(favourites(additive)) > 1
        largest = max(largest, ratio(additive))
    assert several > DRAWS / 2 and largest > BOUND, "the additive score is neither static nor bounded"
    return several / DRAWS, largest


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-o", metavar="FILE", help="draw the weights, .svg, .png or .pdf")
    path = parser.parse_args().o
    one = weights(np.random.default_rng(SHOWN), 2.0)
    print(f"{'':<26}{'looked at most, by any word':<34}{'largest : smallest':<20}rows differ by")
    for name in NAMES:
        a = one[name]
        print(f"{name:<26}{', '.join(favourites(a)):<34}{ratio(a):<20.2f}{unequal(a):.3f}")
    print(f"\nWith all w, W and v_a made larger, largest : smallest grows, but of eq. 19 not beyond e^2 = {BOUND:.2f}:")
    print(f"{'times':>8}{'static':>12}{'additive':>14}")
    for scale in (1, 2, 4, 8, 16):
        a = weights(np.random.default_rng(SHOWN), scale)
        assert ratio(a["static"]) <= BOUND * (1 + 1e-12)
        print(f"{scale:>8}{ratio(a['static']):>12.3f}{ratio(a['additive']):>14.4g}")
    share, largest = claims(np.random.default_rng(0))
    print(f"\n{DRAWS} draws: eq. 19 always had one favourite; without its tanh all rows were always equal; the\n"
          f"additive score had several in {share:.0%} of them, and weights up to {largest:.3g} times others.")
    if path:
        from viz import heatmaps
        maps = [(one[name], SENTENCE, SENTENCE, name, list(enumerate(one[name].argmax(-1)))) for name in NAMES]
        heatmaps(maps, path, title="framed: what each row looks at most", across=3)
        print(f"\ndrawn: {path}")


if __name__ == "__main__":
    main()
