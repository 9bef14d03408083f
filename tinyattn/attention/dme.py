r"""Dynamic meta-embeddings: attention over several sets of word vectors chooses, for each word, whom to trust.

    alpha_ij = softmax_i(a^T w'_ij + b)        w'_ij = P_i w_ij + c_i        w_j = sum_i alpha_ij w'_ij

Kiela, Wang and Cho 2018, "Dynamic meta-embeddings for improved sentence representations" (DME); Hu 2018 eqs 33-34. i is
the source (fastText, GloVe, image vectors, ...), each with its own width D_i and projection; j is the word.

Cost: one projection a source; T scores a source.

Survey: eq. 33 leaves the projection out, without which sources of different widths cannot be added up.

The softmax is over the sources of one word, never over the words. The released code means to put zeros where a source
lacks a word, but does not; `present` says which sources have it, and those alone are weighed. b is added to all sources
alike and cancels in the softmax (`normalise="sigmoid"`, a gate a source, needs it).
"""
import math

import numpy as np

from ..functional import linear, stack
from ..tensor import Tensor
from .core import fitted, variant, weigh
from .shapes import expect


def project(name, x, p, c):
    """w' (B, T, S, D) of S sources: x[i] (B, T, D_i), p[i] (D, D_i), c[i] (D,). Errors begin with `name`."""
    if not all(isinstance(some, (list, tuple, Tensor)) for some in (x, p, c)):
        raise TypeError(f"{name}: expected lists x, p and c, got "
                        f"{', '.join(type(some).__name__ for some in (x, p, c))}")
    if not len(x) == len(p) == len(c) or not len(x):
        raise ValueError(f"{name}: expected one projection and one bias a source, got {len(x)} sources, {len(p)} and "
                         f"{len(c)}")
    given = {}
    for i, parts in enumerate(zip(x, p, c, strict=True)):
        width = chr(ord("a") + i)                                          # D_i
        letters = "BT" + width, "D" + width, "D"
        given |= {f"{n}[{i}]": (t, shape) for n, t, shape in zip("xpc", parts, letters, strict=True)}
    expect(name, **given)
    return stack([linear(*parts) for parts in zip(x, p, c, strict=True)], 2)


@variant("application", params={"a": "D", "b": ""}, null=("b",), keys=(),
         paper="Kiela et al. 2018, DME; Hu 2018 eqs 33-34")
def dme(x, p, c, a, b, present=None, normalise="softmax", return_weights=False):
    """x: a list of S sources (B, T, D_i), with learned projections p[i] (D, D_i) and c[i] (D,); a (D,), b (); present
    (B, T, S) bool: does the source have the word? To (B, T, D). The weights are (B, T, 1, S): one query, the word
    itself, over the sources. ShapeError."""
    w = project("dme", x, p, c)                                            # (B, T, S, D)
    expect("dme", **{"P x + c": (w, "BTSD")}, a=(a, "D"), b=(b, ""))
    scores = (w @ a + b).unsqueeze(2)                                      # (B, T, 1, S)
    present = None if present is None else fitted(present, w.shape[:3]).unsqueeze(-2)  # (B, T, 1, S)
    out, weights = weigh(scores, w, present, return_weights=True, normalise=normalise)  # (B, T, 1, D)
    return (out.squeeze(2), weights) if return_weights else out.squeeze(2)


def reference(x, p, c, a, b, present):
    """One word, one source, one number at a time."""
    B, T, D = *x[0].shape[:2], len(a)
    out = np.zeros((B, T, D))
    for n in range(B):
        for j in range(T):
            w = {i: [sum(p[i][d] * x[i][n, j]) + c[i][d] for d in range(D)] for i in range(len(x)) if present[n, j, i]}
            e = {i: math.exp(sum(a[d] * w[i][d] for d in range(D)) + b) for i in w}
            for i in w:
                for d in range(D):
                    out[n, j, d] += e[i] / sum(e.values()) * w[i][d]
    return out


def example(rng):
    """Three sources of widths 4, 2 and 5; two words of the second sentence are missing in one source each."""
    widths, present = (4, 2, 5), np.ones((2, 3, 3), bool)
    present[1, 0, 2] = present[1, 1, 0] = False
    return {"x": [rng.normal(size=(2, 3, n)) for n in widths], "p": [rng.normal(size=(6, n)) for n in widths],
            "c": [rng.normal(size=6) for _ in widths], "a": rng.normal(size=6), "b": np.array(rng.normal()),
            "present": present}


def labels():
    """Names of queries and keys, and what lies between batch and queries."""
    return ["the word"], ["source 1", "source 2", "source 3"], "word"
