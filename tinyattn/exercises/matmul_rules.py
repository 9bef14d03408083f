"""The two rules of the matrix product.

y = a b, with a (..., T, K) and b (..., K, S); the leading axes are stretched against each other. g (..., T, S) is the
gradient of y. Give the gradients of a and of b, as a tuple: each of the shape of its own input, so what was stretched
is summed.
"""
import numpy as np

ORDER = 3
SKELETON = """
def matmul_rules(g, a, b):
    raise NotImplementedError
"""


def _slow(g, a, b):
    """y_ts = sum_k a_tk b_ks: every product sends g_ts b_ks to a_tk, and g_ts a_tk to b_ks."""
    ga, gb = np.zeros(a.shape), np.zeros(b.shape)
    lead = g.shape[:-2]
    places = [np.broadcast_to(np.arange(x.size).reshape(x.shape), (*lead, *x.shape[-2:])) for x in (a, b)]
    for at in np.ndindex(lead):
        for t, s, k in np.ndindex(*g.shape[-2:], a.shape[-1]):
            i, j = places[0][at][t, k], places[1][at][k, s]
            ga.reshape(-1)[i] += g[at][t, s] * b.reshape(-1)[j]
            gb.reshape(-1)[j] += g[at][t, s] * a.reshape(-1)[i]
    return ga, gb


def cases(rng):
    for left, right in [((2, 3), (3, 4)), ((1, 3), (3, 1)), ((5, 2, 3), (5, 3, 4)), ((5, 2, 3), (3, 4)),
                        ((2, 1, 2, 3), (4, 3, 2)), ((0, 3), (3, 2))]:
        a, b = rng.normal(size=left), rng.normal(size=right)
        g = rng.normal(size=(a @ b).shape)
        yield f"a {left}, b {right}", (g, a, b), _slow(g, a, b)


MISTAKES = [(lambda g, a, b: _slow(g, a, b)[::-1], "The two gradients come in the wrong order.")]
