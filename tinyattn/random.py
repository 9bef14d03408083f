"""The package's own random numbers. NumPy's global state is never read or changed.

One generator serves initial weights, dropout seeds and shuffles; its state is saved with a run, so that a resumed run draws
what an uninterrupted one would have drawn.
"""
import json

import numpy as np

_generator = {"now": np.random.Generator(np.random.PCG64(0))}


def manual_seed(seed):
    """Begin the package's random numbers anew from an integer seed."""
    if not isinstance(seed, (int, np.integer)) or seed < 0:
        raise ValueError(f"manual_seed: expected a whole number of at least 0, got {seed!r}")
    _generator["now"] = np.random.Generator(np.random.PCG64(int(seed)))


def generator():
    """The NumPy Generator that the package draws from."""
    return _generator["now"]


class Seed(int):
    """A number that `next_seed` drew. Its type tells a captured step to draw anew each time (see `compiler/`)."""


def next_seed():
    """A fresh integer seed, for kernels that make their own random numbers (dropout)."""
    return Seed(_generator["now"].integers(0, 2**63 - 1))


def get_state():
    """The generator's state as a JSON text."""
    return json.dumps(_generator["now"].bit_generator.state)


def set_state(text):
    """Put back what `get_state` gave."""
    fresh = np.random.PCG64(0)
    fresh.state = json.loads(text)
    _generator["now"] = np.random.Generator(fresh)
