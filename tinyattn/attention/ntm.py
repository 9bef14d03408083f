r"""Addressing of the neural Turing machine: find a slot by what it holds, then step to its neighbours.

    w^c = softmax(beta cos(k, M_i))              by content; beta > 0 says how sharply
    w^g = g w^c + (1 - g) w_before               g = 0 keeps the place of the step before
    w~_i = sum_j w^g_j s(i - j mod N)            step: s are the shares of the shifts, -1, 0 and 1, say
    w_i = w~_i^gamma / sum_j w~_j^gamma          sharpen, gamma >= 1: each shift blurs a little
    r = sum_i w_i M_i                            read
    M_i <- M_i * (1 - w_i e) + w_i a             write: erase first, then add

Graves, Wayne and Danihelka 2014, "Neural Turing machines", section 3; Hu 2018, section 3.4: the update "content +
location".

Cost: T N D multiplications by content, T N R for R shifts, T N D to read and to write.

Survey: names the update and gives no formula.

Common mistakes: the direction (with s all on +1 the weight of slot i goes to slot i + 1); a shift that stops at
the ends, where this one goes round; gamma below 1, which blurs; erasing after adding; nan as the gradient of 0^gamma;
and a large gamma that makes all weights 0, so that their sum is 0 too. Here they are divided by the greatest first.
"""
import math

import numpy as np

from .core import variant, weights_of
from .cosine import prepare, scores
from .shapes import expect


@variant("memory", paper="Graves et al. 2014; Hu 2018 section 3.4", keys=("m",))
def ntm(m, k, beta, g, s, gamma, before, erase=None, add=None, return_weights=False):
    """T heads address one memory: r (B, T, D), and with `erase` and `add` the memory after writing too, (B, N, D).

    m             the memory (B, N, D), N slots
    k             what to look for (B, T, D)
    beta, g, gamma   (B, T): sharpness of the search, share of the content in 0 .. 1, sharpening of at least 1
    s             (B, T, R), R odd: shares of the shifts -(R - 1) / 2 .. (R - 1) / 2, which sum to 1 (a softmax)
    before        the weights of the step before (B, T, N)
    erase, add    (B, T, D) what to erase, in 0 .. 1, and to add; r is read before that. All heads erase, then all add.
    return_weights   gives w (B, T, N) too, last

    ShapeError for shapes that do not fit; ValueError for an even R, g outside 0 .. 1, gamma below 1, erase without add. On a
    card, where looking at numbers would be waiting, such a g or gamma gives nan.
    """
    g, gamma = _check(m, k, beta, g, s, gamma, before, erase, add)
    w = address(m, k, beta, g, s, gamma, before)                           # (B, T, N)
    r = w @ m                                                              # (B, T, D)
    out = (r,) if erase is None else (r, write(m, w, erase, add))
    out = (*out, w) if return_weights else out
    return out if len(out) > 1 else r


def address(m, k, beta, g, s, gamma, before):
    """w (B, T, N), from content and from the place before."""
    e = scores(k, prepare(m), beta.unsqueeze(-1))                          # (B, T, N)
    g = g.unsqueeze(-1)                                                    # (B, T, 1)
    return weights_of(e, None, lambda e, mask: sharpened(shifted(g * e.softmax() + (1 - g) * before, s), gamma))


def shifted(w, s):
    """w~_i = sum_j w_j s(i - j mod N): w (B, T, N), s (B, T, R) to (B, T, N)."""
    slots, reach = w.shape[-1], s.shape[-1] // 2
    source = (np.arange(slots)[:, None] - np.arange(-reach, reach + 1)) % max(slots, 1)  # (N, R) where it comes from
    return (w[:, :, source] * s.unsqueeze(2)).sum(-1)


def sharpened(w, gamma):
    """w_i^gamma / sum_j w_j^gamma: w (B, T, N), gamma (B, T)."""
    if w.shape[-1] == 0:
        return w
    greatest = w.max(-1, keepdims=True).detach()                           # it cancels out, in the gradients too
    power = (w / greatest.where(greatest > 0, 1.0)) ** gamma.unsqueeze(-1)
    total = power.sum(-1, keepdims=True)                                   # (B, T, 1) at least 1
    return power / total.where(total > 0, 1.0)


def write(m, w, erase, add):
    """M_i prod_t (1 - w_ti e_t) + sum_t w_ti a_t: m (B, N, D), w (B, T, N), erase and add (B, T, D)."""
    kept = (1 - w.unsqueeze(3) * erase.unsqueeze(2)).prod(1)               # (B, N, D)
    return m * kept + w.transpose() @ add


def _check(m, k, beta, g, s, gamma, before, erase, add):
    given = {"m": (m, "BND"), "k": (k, "BTD"), "beta": (beta, "BT"), "g": (g, "BT"), "s": (s, "BTR"),
             "gamma": (gamma, "BT"), "before": (before, "BTN")}
    if (erase is None) != (add is None):
        raise ValueError(f"ntm: expected erase and add, or neither, got {'add' if erase is None else 'erase'} alone")
    if erase is not None:
        given.update(erase=(erase, "BTD"), add=(add, "BTD"))
    expect("ntm", **given)
    return checked_place("ntm", g, s, gamma)


def checked_place(name, g, s, gamma):
    """g and gamma. ValueError for an even number of shifts, g outside 0 .. 1, or gamma below 1; the latter two are nan on a
    card."""
    if s.shape[-1] % 2 == 0:
        raise ValueError(f"{name}: expected an odd number of shifts, the middle one to stay, got s {s.shape}")
    if g.device != "cpu":
        return g.where((g.detach() >= 0) & (g.detach() <= 1), np.nan), gamma.where(gamma.detach() >= 1, np.nan)
    low, high, least = g.numpy().min(initial=0), g.numpy().max(initial=0), gamma.numpy().min(initial=1)
    if low < 0 or high > 1 or least < 1:
        raise ValueError(f"{name}: expected g in 0 .. 1 and gamma of at least 1, got g in {low:g} .. {high:g} and gamma "
                         f"from {least:g}")
    return g, gamma


def reference(m, k, beta, g, s, gamma, before, erase, add):
    """The formula, one number at a time."""
    (B, N, D), T, R = m.shape, k.shape[1], s.shape[2]
    r, after = np.zeros((B, T, D)), m.copy()
    for b in range(B):
        w = np.zeros((T, N))
        for t in range(T):
            cosines = [sum(k[b, t] * m[b, i]) / math.hypot(*k[b, t]) / math.hypot(*m[b, i]) for i in range(N)]
            content = [math.exp(beta[b, t] * c) for c in cosines]
            place = [g[b, t] * content[i] / sum(content) + (1 - g[b, t]) * before[b, t, i] for i in range(N)]
            for i in range(N):
                for n in range(R):
                    w[t, (i + n - R // 2) % N] += place[i] * s[b, t, n]
            w[t] = [x ** gamma[b, t] for x in w[t]]
            w[t] /= sum(w[t])
            r[b, t] = [sum(w[t, i] * m[b, i, d] for i in range(N)) for d in range(D)]
        for i in range(N):
            for t in range(T):
                after[b, i] *= 1 - w[t, i] * erase[b, t]
            for t in range(T):
                after[b, i] += w[t, i] * add[b, t]
    return r, after


def example(rng):
    """Two memories of 5 slots, 4 wide, and two heads that may step by one."""
    shares = rng.random((2, 2, 3)) + 0.1
    before = rng.random((2, 2, 5)) + 0.1
    return {"m": rng.normal(size=(2, 5, 4)), "k": rng.normal(size=(2, 2, 4)), "beta": 1 + rng.random((2, 2)),
            "g": 0.2 + 0.6 * rng.random((2, 2)), "s": shares / shares.sum(-1, keepdims=True),
            "gamma": 1.5 + rng.random((2, 2)), "before": before / before.sum(-1, keepdims=True),
            "erase": rng.random((2, 2, 4)), "add": rng.normal(size=(2, 2, 4))}


CAPTION = "The scores are those of the content; interpolation, shift and sharpening come after them."
