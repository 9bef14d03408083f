r"""Contextualised meta-embeddings: as `dme`, but which set of word vectors to trust depends on the sentence.

    alpha_ij = softmax_i(a^T h_ij + b)        h_i = BiLSTM(w'_i1 .. w'_iT), of width 2 each way
    w'_ij = P_i w_ij + c_i        w_j = sum_i alpha_ij w'_ij

Kiela, Wang and Cho 2018, "Dynamic meta-embeddings for improved sentence representations" (CDME); Hu 2018 section 4.1.
One tiny BiLSTM reads the sentence in each source's vectors, with the same weights; its states are so narrow that they
can say little else than whom to trust.

Cost: that of `dme`, and S tiny BiLSTMs over T words.

Survey: as in `dme`, the projection is missing in print.
"""
import math

import numpy as np

from ..functional import concat, linear, zeros
from ..ops.lstm import LSTMScan
from ..tensor import Tensor
from .core import fitted, variant, weigh
from .dme import project
from .shapes import expect


@variant("application", params={"w_ih": "RGD", "w_hh": "RGN", "bias": "RG", "a": "J", "b": ""}, null=("b",), keys=(),
         paper="Kiela et al. 2018, CDME; Hu 2018 section 4.1")
def cdme(x, p, c, w_ih, w_hh, bias, a, b, lengths=None, present=None, return_weights=False):
    """x: a list of S sources (B, T, D_i), with p[i] (D, D_i) and c[i] (D,); w_ih (R, G, D), w_hh (R, G, N), bias (R, G)
    the BiLSTM, R = 2 directions (forward, backward), G = 4 N; a (J,) with J = 2 N, b (); lengths (B,);
    present (B, T, S) bool. To (B, T, D). ShapeError."""
    w = project("cdme", x, p, c)                                           # (B, T, S, D)
    lengths = lengths if lengths is None or isinstance(lengths, Tensor) else Tensor(lengths, device=w.device)
    expect("cdme", **{"P x + c": (w, "BTSD")}, w_ih=(w_ih, "2GD"), w_hh=(w_hh, "2GN"), bias=(bias, "2G"), a=(a, "J"),
           b=(b, ""), **({} if lengths is None else {"lengths": (lengths, "B")}))
    h = _both_ways(w, w_ih, w_hh, bias, lengths)                           # (B, T, S, 2N)
    scores = (h @ a + b).unsqueeze(2)                                      # (B, T, 1, S)
    present = None if present is None else fitted(present, w.shape[:3]).unsqueeze(-2)  # (B, T, 1, S)
    out, weights = weigh(scores, w, present, return_weights=True)
    return (out.squeeze(2), weights) if return_weights else out.squeeze(2)


def _both_ways(w, w_ih, w_hh, bias, lengths):
    """The BiLSTM over the words, each source a sequence of its own: (B, T, S, D) to (B, T, S, 2N)."""
    (B, T, S, D), N = w.shape, w_hh.shape[-1]
    rows = w.permute(0, 2, 1, 3).reshape(B * S, T, D)
    lengths = None if lengths is None else Tensor(np.repeat(lengths.numpy(), S), device=w.device)
    start = zeros(B * S, N, dtype=w.dtype, device=w.device)
    ways = [LSTMScan(reverse=bool(r))(linear(rows, w_ih[r], bias[r]), start, start, w_hh[r], None, lengths)[0]
            for r in range(2)]
    return concat(ways, -1).reshape(B, S, T, 2 * N).permute(0, 2, 1, 3)


def reference(x, p, c, w_ih, w_hh, bias, a, b, lengths, present):
    """One sentence, one source, one unit at a time."""
    (B, T), S, D, N = x[0].shape[:2], len(x), len(c[0]), w_hh.shape[-1]
    sigmoid = lambda z: 1 / (1 + math.exp(-z))  # noqa: E731
    out = np.zeros((B, T, D))
    for n in range(B):
        w = [[[sum(p[i][d] * x[i][n, j]) + c[i][d] for d in range(D)] for j in range(T)] for i in range(S)]
        states = np.zeros((S, T, 2 * N))
        for i in range(S):
            for r in range(2):
                h, cell = [0.0] * N, [0.0] * N
                for j in range(lengths[n]) if r == 0 else reversed(range(lengths[n])):
                    z = [sum(w_ih[r, g] * w[i][j]) + sum(w_hh[r, g] * h) + bias[r, g] for g in range(4 * N)]
                    cell = [sigmoid(z[N + u]) * cell[u] + sigmoid(z[u]) * math.tanh(z[2 * N + u]) for u in range(N)]
                    h = [sigmoid(z[3 * N + u]) * math.tanh(cell[u]) for u in range(N)]
                    states[i, j, r * N:(r + 1) * N] = h
        for j in range(T):
            e = {i: math.exp(sum(a * states[i, j]) + b) for i in range(S) if present[n, j, i]}
            for i in e:
                out[n, j] += e[i] / sum(e.values()) * np.array(w[i][j])
    return out


def example(rng):
    """Two sources of widths 3 and 5; sentences of 3 and 2 words, one of which the second source lacks."""
    widths, present = (3, 5), np.ones((2, 3, 2), bool)
    present[1, 0, 1] = False
    return {"x": [rng.normal(size=(2, 3, n)) for n in widths], "p": [rng.normal(size=(4, n)) for n in widths],
            "c": [rng.normal(size=4) for _ in widths], "w_ih": rng.normal(size=(2, 8, 4)) / 2,
            "w_hh": rng.normal(size=(2, 8, 2)), "bias": rng.normal(size=(2, 8)), "a": rng.normal(size=4),
            "b": np.array(rng.normal()), "lengths": np.array([3, 2]),
            "present": present}


def labels():
    """Names of queries and keys, and what lies between batch and queries."""
    return ["the word"], ["source 1", "source 2"], "word"
