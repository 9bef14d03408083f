"""What every task gives to a system: samples for training, validation and test, and how a file is divided into them."""
from dataclasses import dataclass, field

import numpy as np

from tinyattn.errors import InputError

FEWEST = 10  # different keys that a file must hold to be divided


@dataclass
class Corpus:
    """Samples for the three uses. `notes`: lines on what was read, what was left out and why."""

    train: list
    validation: list
    test: list
    notes: list[str] = field(default_factory=list)


def divide(samples, seed, where, key=lambda sample: sample, share=0.1, most=None):
    """Samples at random to train, validation and test: a Corpus without notes.

    key     samples of the same key stay together, so that no test sample has been seen in training
    share   of the keys that validation and test get, each (at least one key)
    most    bound on the number of keys of validation and of test, each
    The division depends on the samples and on `seed` alone. InputError, naming `where`, for fewer than 10 keys.
    """
    groups = {}
    for sample in samples:
        groups.setdefault(key(sample), []).append(sample)
    if len(groups) < FEWEST:
        raise InputError(f"{where}: expected at least {FEWEST} different samples to divide into training, validation "
                         f"and test, found {len(groups)}")
    groups = list(groups.values())
    order = np.random.default_rng(seed).permutation(len(groups))
    held = max(1, round(share * len(groups)))
    held = held if most is None else max(1, min(held, most))
    parts = order[2 * held:], order[:held], order[held:2 * held]
    return Corpus(*([sample for i in sorted(part) for sample in groups[i]] for part in parts))
