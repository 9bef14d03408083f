"""Which network waits, and for how long: parameters, steps in a row, longest path, time (Hu 2018 section 3.3).

    python examples/parallel_steps.py            # 512 words at most; --longest 64 is quicker

The survey gives three reasons for self-attention over recurrent networks: fewer parameters, steps that need not wait
for one another, and short paths between words that are far apart. Here they are counted and timed on the networks of
`tinyattn train classify`, all with word vectors and states of the same width, for texts of different length:

    parameters   without the table of word vectors, which is the same for all
    in a row     steps that must wait for one another: n for a recurrent layer over n words, 2 for DiSAN
    path         steps that lie between the first and the last word
    time         forward and backward of 16 texts in milliseconds, the median of several runs, on this machine

The second and third reasons hold by their construction. The first does not: at one width DiSAN has *more* parameters
than the bidirectional GRU; a plain self-attention layer (4 D^2) would have fewer. And on two cores, which cannot use
thousands of independent steps, feature-wise attention pays for its n^2 pairs, so the time grows faster with n than
that of the GRU: what is parallel is quick only where there is something to run it on.
"""
import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np

import tinyattn as ta
from tinyattn.functional import cross_entropy
from tinyattn.models.classify import NETWORKS, network

WIDTH, VOCABULARY, CLASSES, TEXTS = 64, 1000, 4, 16


def build(name):
    """The network `name`, every layer of the same width."""
    ta.manual_seed(0)
    return network(name)(VOCABULARY, CLASSES, embed=WIDTH, hidden=WIDTH).eval()


def texts(model, n, rng):
    """Ids of 16 texts of n words: one row of words, or sqrt(n) sentences of sqrt(n) words."""
    t = int(np.sqrt(n)) if model.hierarchical else n
    return ta.Tensor(rng.integers(4, VOCABULARY, (TEXTS, n // t, t)))


def milliseconds(model, ids, runs=5):
    """The median time of forward and backward."""
    times, targets = [], ta.Tensor(np.arange(TEXTS) % CLASSES)
    for _ in range(runs + 1):
        begun = time.perf_counter()
        cross_entropy(model(ids), targets).backward()
        times.append(time.perf_counter() - begun)
        model.zero_grad()
    return 1000 * statistics.median(times[1:])  # the first one may have compiled kernels


def table(lengths):
    """{name: (parameters, [(steps in a row, path, milliseconds) for each length])}."""
    found = {}
    for name in NETWORKS:
        model, rng = build(name), np.random.default_rng(0)
        count = model.number_of_parameters() - model.embedding.weight.size
        found[name] = count, [(model.steps(n), model.path(n), milliseconds(model, texts(model, n, rng)))
                              for n in lengths]
    return found


def main(longest=512, output=None):
    """Print the table, and check what is said above. output: also write it there, as JSON."""
    lengths = [n for n in (16, 64, 256, 512, 1024) if n <= max(16, longest)]
    found = table(lengths)
    print(" " * 28 + "".join(f"{f'{n} words':^26}" for n in lengths))
    print(f"{'network':16}{'parameters':>12}" + f"{'in a row':>10}{'path':>7}{'ms':>9}" * len(lengths))
    for name, (count, rows) in found.items():
        cells = "".join(f"{steps:>10,}{path:>7,}{ms:>9.1f}" for steps, path, ms in rows)
        print(f"{'bi-GRU' if name == 'none' else name:16}{count:>12,}{cells}")
    n = lengths[-1]
    steps = {name: (rows[-1][0], rows[-1][1]) for name, (_, rows) in found.items()}
    assert steps["none"] == (n, n) and steps["disan"] == (2, 1) and steps["han"][0] < n
    assert found["disan"][0] > found["none"][0], "at one width DiSAN has more parameters than the GRU"
    if output is not None:
        text = json.dumps({"lengths": lengths, "networks": found}, indent=1)
        Path(output).write_text(text + "\n", encoding="utf-8")
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Parameters, steps in a row, path and time of text classifiers.")
    parser.add_argument("--longest", type=int, default=512, help="words of the longest text [512]")
    parser.add_argument("-o", "--output", metavar="FILE", help="write the table as JSON too")
    given = parser.parse_args()
    main(given.longest, given.output)
