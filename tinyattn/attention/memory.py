r"""Memory attention: a loop of address, read and update; what one hop reads decides what the next one looks for.

    e_ts = a(q_t, phi_k(k_s))    alpha_t = softmax_s(e_ts)    c_t = sum_s alpha_ts phi_v(v_s)
    q_t <- update(q_t, c_t), and again: `hops` times in all; the last c_t is the result

    sum       q + c                              MemN2N; eq. 29 of Hu 2018
    concat    [q; c]                             what figure 3 of Hu 2018 draws: the query grows by c at each hop
    rnn       tanh(W_ih c + W_hh q + b)          q is the state of a recurrent net, what was read its input
    gru       GRU(c, q), as PyTorch has it       DMN; see `dmn`
    content+location    q stays; alpha becomes sharpen(shift(g softmax(e) + (1 - g) alpha_before))     NTM; see `ntm`

Sukhbaatar et al. 2015, "End-to-end memory networks", and Kumar et al. 2016, "Ask me anything"; Hu 2018, section 3.4
and figure 2.

Cost: T S scores and T S E multiplications a hop, and what a, phi_k and phi_v take.

Survey: figure 2 leaves a, phi_k, phi_v and the update free, and so they are here. Eq. 29 adds what was read to the
query, figure 3 draws the two side by side; both are here, by name. Its third way of updating, by content and
location, is named without a formula; it is that of the neural Turing machine, whose reading and writing are in `ntm`.

With one hop, k = v and no maps this is basic attention. More hops need a phi_v, or an update, that turns what was found
into what to look for: with k = v and the update "sum", what was read only makes the query more like the key that it had
found already.
"""
import math

import numpy as np

from ..autograd import scope
from ..functional import concat, linear, stack
from ..ops.broadcast import ShapeError
from ..ops.gru import GRUScan
from ..tensor import Tensor
from . import mask as masks
from .core import scores_of, show, variant
from .normalise import softmax
from .ntm import checked_place, sharpened, shifted
from .shapes import expect, one_of, whole

LOCATION = "content+location"
UPDATES = ("sum", "concat", "rnn", "gru", LOCATION)


@variant("memory", params={"phi_k": "KK", "phi_v": "QE"}, paper="Sukhbaatar et al. 2015; Hu 2018 fig. 2, eq. 29",
         score="dot")
def memory(q, k, v, phi_k=None, phi_v=None, score="dot", hops=1, update="sum", cell=None, location=None, mask=None,
           return_weights=False, **a):
    """q (B, T, Q), k (B, S, K), v (B, S, E) to the last hop's c (B, T, width of phi_v(v)).

    phi_k, phi_v    None (as it is), a matrix (out, in), a function, or a list of those, one a hop
    score, a        the name of a score and its parameters
    update          a name as above, or a function (q, c) -> the next q
    cell            for "rnn" and "gru": (w_ih, w_hh, b_ih, b_hh), of shapes (G Q, E), (G Q, Q), (G Q,), (G Q,),
                    where G is 1 or 3 (gates r, z, n) and E the width of phi_v(v)
    location        for "content+location": (g, s, gamma), of shapes (B, T), (B, T, R), (B, T), as in `ntm`; without a mask,
                    since a shift would carry weight to what is masked. The first hop goes by content alone
    return_weights  gives the weights of all hops too, (B, hops, T, S)

    InputError for another update, ValueError for hops below 1; ShapeError for shapes that do not fit.
    """
    whole("memory", 1, hops=hops)
    if not callable(update):
        one_of("memory", update=(update, UPDATES))
    expect("memory", q=(q, "BTQ"), k=(k, "BSK"), v=(v, "BSE"))
    mask = masks.fit("memory", mask, *q.shape[:2], k.shape[1])
    if (location is None) != (update != LOCATION) or (location is not None and mask is not None):
        raise ValueError(f"memory: location = (g, s, gamma) goes with update {LOCATION!r} and no mask, got update {update!r}")
    scores, weights = [], []
    for hop in range(hops):
        with scope(f"hop{hop}"):
            scores.append(scores_of(score, q, _mapped("phi_k", phi_k, k, hop), a))  # (B, T, S)
            weights.append(softmax(scores[hop], mask))
            if update == LOCATION and hop:
                weights[hop] = _moved(weights[hop], weights[hop - 1], *location)
            c = weights[hop] @ _mapped("phi_v", phi_v, v, hop)             # (B, T, E)
            if hop < hops - 1 and update != LOCATION:
                q = update(q, c) if callable(update) else _updated(update, q, c, cell)
    show(lambda: stack(scores, 1), mask, lambda: stack(weights, 1))        # (B, hops, T, S)
    return (c, stack(weights, 1)) if return_weights else c


def _mapped(name, phi, x, hop):
    """phi(x) at this hop."""
    if isinstance(phi, (list, tuple)):
        if hop >= len(phi):
            raise ValueError(f"memory: expected one {name} a hop, got {len(phi)} for hop {hop}, counted from 0")
        phi = phi[hop]
    if not (phi is None or isinstance(phi, Tensor) or callable(phi)):
        raise TypeError(f"memory: expected {name} to be None, a Tensor or a function, got {type(phi).__name__}")
    return x if phi is None else linear(x, phi) if isinstance(phi, Tensor) else phi(x)


def _moved(content, before, g, s, gamma):
    """The weights (B, T, S) by content and by the place of the hop before: interpolate, shift, sharpen."""
    expect("memory", weights=(content, "BTS"), g=(g, "BT"), s=(s, "BTR"), gamma=(gamma, "BT"))
    g, gamma = checked_place("memory", g, s, gamma)
    g = g.unsqueeze(-1)
    return sharpened(shifted(g * content + (1 - g) * before, s), gamma)


def _updated(update, q, c, cell):
    """The next query, by one of UPDATES."""
    if update == "concat":
        return concat([q, c], -1)
    if update == "sum":
        if q.shape != c.shape:
            raise ShapeError(f"memory: expected q and c of one shape for update 'sum', got q {q.shape} and c {c.shape}")
        return q + c
    if cell is None or len(cell) != 4:
        raise ValueError(f"memory: expected cell = (w_ih, w_hh, b_ih, b_hh) for update {update!r}, got {cell!r}")
    w_ih, w_hh, b_ih, b_hh = cell
    if update == "rnn":
        return (linear(c, w_ih, b_ih) + linear(q, w_hh, b_hh)).tanh()
    rows = q.shape[0] * q.shape[1]
    x = linear(c, w_ih, b_ih).reshape(rows, 1, w_ih.shape[0])              # a sequence of one step
    return GRUScan()(x, q.reshape(rows, q.shape[2]), w_hh, b_hh, None)[1].reshape(q.shape)


def reference(q, k, v, phi_k, phi_v, hops, mask=None):
    """The formula with the dot product and the update "sum", one number at a time."""
    q, (B, T, Q), S = q.copy(), q.shape, k.shape[1]
    for _ in range(hops):
        c = np.zeros(q.shape)
        for b in range(B):
            for t in range(T):
                alpha = {}
                for s in range(S):
                    if mask is None or mask[b, t if mask.shape[1] > 1 else 0, s]:
                        key = [sum(row * k[b, s]) for row in phi_k]
                        alpha[s] = math.exp(sum(q[b, t, d] * key[d] for d in range(Q)))
                for s in alpha:
                    for d in range(Q):
                        c[b, t, d] += alpha[s] / sum(alpha.values()) * sum(phi_v[d] * v[b, s])
        q = q + c
    return c


def example(rng):
    """The story of figure 3 with two questions, and a random story of five sentences.

    A key counts "Sam", "apple", "walks", "drops", "picks" and tells the time; a value says whether Sam, the apple and a
    room are in the sentence. phi_v: once the apple is found, look no longer for it, but for a walk.
    """
    k = [[1, 0, 1, 0, 0, 1], [1, 1, 0, 0, 1, 2], [1, 0, 1, 0, 0, 3], [1, 1, 0, 1, 0, 4], [0, 0, 0, 0, 0, 0]]
    v = [[1, 0, 1], [1, 1, 0], [1, 0, 1], [1, 1, 0], [0, 0, 0]]
    q = [[0, 4, 0, 0, 0, 2], [0, 0, 4, 0, 0, 2]]
    phi_v = np.zeros((6, 3))
    phi_v[1, 1], phi_v[2, 1] = -8, 4
    q, k, v = (np.stack([story, rng.normal(size=np.shape(story))]) for story in (q, k, v))
    return {"q": q, "k": k, "v": v, "phi_k": np.eye(6) + 0.01 * rng.normal(size=(6, 6)),
            "phi_v": phi_v + 0.01 * rng.normal(size=(6, 3)), "hops": 2,
            "mask": np.arange(5) < np.array([4, 5])[:, None, None]}


def labels():
    """The two questions, the four sentences of the example's story, which is padded to five, and what is counted."""
    return (["where is the apple?", "where is Sam?"],
            ["Sam walks into the kitchen", "Sam picks up the apple", "Sam walks into the bedroom",
             "Sam drops the apple", "(padding)"], "hop")
