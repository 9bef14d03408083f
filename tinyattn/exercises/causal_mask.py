"""A causal mask.

Give a bool array (T, S), True = may be attended to: a query sees no key after its own place. With T != S the ends are
aligned, as when the last T words of a text of S are asked: the last query sees every key.
"""
import numpy as np

ORDER = 6
SKELETON = """
def causal_mask(T, S):
    raise NotImplementedError
"""


def cases(rng):
    for T, S in [(3, 3), (1, 1), (2, 4), (1, 5), (4, 2), (0, 3)]:
        right = np.zeros((T, S), bool)
        for t in range(T):
            for s in range(S):
                right[t, s] = s - (S - 1) <= t - (T - 1)  # both places counted from the end
        yield f"T = {T}, S = {S}", (T, S), right


def _start(T, S):
    return np.tri(T, S, dtype=bool)


MISTAKES = [(lambda T, S: ~np.tri(T, S, S - T, dtype=bool), "True means here that a key may be attended to; this is "
             "the other way round."),
            (_start, "That is aligned at the start: with T < S the last query must see every key."),
            (lambda T, S: np.tri(T, S, S - T - 1, dtype=bool), "A query may see its own place as well.")]
