r"""Graph attention: sentences vote for one another, and a sentence's weight is its PageRank.

    alpha = lam W D^-1 alpha + (1 - lam) y        alpha = (1 - lam) (I - lam W D^-1)^-1 y        W_ij = exp(x_i^T P x_j)
    c = sum_i alpha_i x_i

D holds the sums of the columns of W, so that W D^-1 is a softmax down each column, and y is where a walker starts anew.
Without a query y is uniform over the sentences. With one, the query joins the graph as a node of its own and takes all
of y (topic-sensitive PageRank): sentences get what flows to them from there, renormalised without the query's own
share.

With `distraction` a decoder's query is kept from what the one before already looked at, f being the ranks at step t:

    alpha_t = max(f_t - f_{t-1}, 0) / sum,  f_0 = 0

Where nothing grew, alpha_t = 0; so also where exp(q^T P q) is so large that, in floats, the query keeps all rank to
itself.

Tan, Wan and Xiao 2017, "Abstractive document summarization with a graph-based attentional neural model"; Hu 2018 eqs
30-31.

Cost: a system of N + 1 equations a query, (N + 1)^3 / 3 multiplications, and (N + 1)^2 exponentials.

Survey: W_ij = x_i^T P x_j may be negative: then ranks are negative or above 1, and the iteration of eq. 30 can run away
although eq. 31 has a solution. The exponential is our choice. The survey keeps y uniform and leaves out the query node
and the distraction. D sums *columns*; whoever normalises rows loses the sum of 1.
"""
import numpy as np

from ..functional import concat
from ..ops.pagerank import PageRank
from ..tensor import NUMBERS, Tensor
from . import mask as masks
from .core import variant, weigh
from .shapes import expect


@variant("task-specific", params={"p": "DD"}, paper="Tan et al. 2017; Hu 2018 eqs 30-31", sums=(0.0, 1.0))
def pagerank(x, p, q=None, mask=None, damping=0.9, distraction=False, return_weights=False):
    """x (B, N, D) sentences, p (D, D), q (B, T, D) or None to (B, T, D), or (B, 1, D) without q.

    damping: lam, 0 <= lam < 1. mask is (B, 1, N) or (B, T, N), the weights are (B, T, N). ShapeError; ValueError for
    another damping.
    """
    expect("pagerank", x=(x, "BND"), p=(p, "DD"), **({} if q is None else {"q": (q, "BTD")}))
    if not isinstance(damping, NUMBERS) or not 0 <= damping < 1:
        raise ValueError(f"pagerank: expected a damping of at least 0 and below 1, got {damping!r}")
    mask = masks.fit("pagerank", mask, len(x), 1 if q is None else q.shape[1], x.shape[1])
    f = ranks(x, p, q, mask, damping)                                      # (B, T, N)
    if distraction:
        f = (f - f[:, :-1].pad(((0, 0), (1, 0), (0, 0)))).relu()
    return weigh(f, x, mask, return_weights, normalise="raw")


def ranks(x, p, q, mask, damping):
    """(B, T, N): the PageRank of each sentence; T graphs a document, one a query, or a single one without a query."""
    (B, N, D), T = x.shape, 1 if q is None else q.shape[1]
    allowed = np.broadcast_to(True if mask is None else mask.numpy(), (B, T, N))
    nodes = x.unsqueeze(1)                                                 # (B, 1, N, D)
    if q is None:
        y = allowed / np.maximum(allowed.sum(-1, keepdims=True), 1)        # (B, 1, N)
    else:
        nodes = concat([nodes.expand(B, T, N, D), q.unsqueeze(2)], 2)      # (B, T, N + 1, D)
        y = np.broadcast_to(np.arange(N + 1) == N, (B, T, N + 1))
        allowed = np.concatenate([allowed, np.ones((B, T, 1), bool)], -1)
    edges = Tensor(allowed[..., :, None] & allowed[..., None, :], device=x.device)
    w = (nodes @ p @ nodes.transpose()).softmax(-2, edges)                 # (B, T, N + 1, N + 1), W D^-1
    M = y.shape[-1]
    y = Tensor(y.reshape(B * T, M), dtype=x.dtype, device=x.device)
    return PageRank(damping)(w.reshape(B * T, M, M), y).reshape(B, T, M)[:, :, :N]


def reference(x, p, q=None, mask=None, damping=0.9, distraction=False):
    """Eq. 30 as it stands, again and again until nothing changes."""
    (B, N, D), T = x.shape, 1 if q is None else q.shape[1]
    out = np.zeros((B, T, D))
    for b in range(B):
        before = np.zeros(N)
        for t in range(T):
            sentences = [i for i in range(N) if mask is None or np.broadcast_to(mask, (B, T, N))[b, t, i]]
            nodes = [x[b, i] for i in sentences] + ([] if q is None else [q[b, t]])
            w = np.array([[np.exp(u @ p @ v) for v in nodes] for u in nodes])
            for j in range(len(nodes)):
                w[:, j] /= sum(w[:, j])
            y = np.ones(len(nodes)) / len(nodes) if q is None else np.eye(len(nodes))[-1]
            alpha = y
            for _ in range(2000):
                alpha = damping * w @ alpha + (1 - damping) * y
            f = np.zeros(N)
            for i, a in zip(sentences, alpha, strict=False):
                f[i] = a
            weights = np.array([max(a, 0) for a in f - before]) if distraction else f
            before = f
            for i in sentences:
                if weights.sum() > 0:
                    out[b, t] += weights[i] / weights.sum() * x[b, i]
    return out


def example(rng):
    """Two documents of 4 and 3 sentences; a decoder's three queries, each kept from what the one before looked at."""
    return {"x": rng.normal(size=(2, 4, 2)), "p": rng.normal(size=(2, 2)), "q": rng.normal(size=(2, 3, 2)),
            "damping": 0.8, "distraction": True, "mask": np.arange(4) < np.array([4, 3])[:, None, None]}


CAPTION = "The scores shown are the ranks that the walk ends with, before they are divided among the sentences."
