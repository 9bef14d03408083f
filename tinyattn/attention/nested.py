r"""Nested attention: a decoder looks at words, picks the one it looks at most, and looks at that word's characters.

    c'_tj = sum_i beta_tji h_zi, z = argmax_s alpha_ts        if word z is unknown, else 0
    c_t   = sum_s alpha_ts v_s
    alpha_t = softmax_s(v_a^T tanh(W_q q_t + W_k k_s))        beta_tj = softmax_i(v_c^T tanh(U_q p_tj + U_k h_zi))

q_t is the state of the word decoder at step t; p_tj that of the character decoder at letter j of the word it spells
there; h_si is the state at character i of source word s, wanted for words outside the vocabulary ("unknown") only.

Ji et al. 2017, "A nested attention neural hybrid model for grammatical error correction"; Hu 2018 section 3.2, its
top-down form.

Cost: T S A tanh for words, T J C' A' for the C' characters of one word a step, in place of those of all S words. (To take
a word's characters out costs T S C' F multiplications more, with 1 and 0: so what is picked on a card is never read by the
host.)

z is a choice, not an average: a constant of the graph, through which no gradient flows. So alpha learns from c_t alone,
and the characters of a word that was not picked get no gradient. Many copies mix the characters of all words by alpha, and
leave this unsaid.

Survey: it tells this in words, without an equation. Additive scores at both levels are our reading.
"""
import numpy as np

from ..autograd import scope
from ..functional import additive_scores, linear
from ..ops.broadcast import ShapeError
from . import mask as masks
from .core import variant, weigh
from .shapes import expect


@variant("hierarchical", params={"w_q": "AQ", "w_k": "AK", "v_a": "A", "u_q": "GP", "u_k": "GF", "v_c": "G"},
         paper="Ji et al. 2017; Hu 2018 section 3.2", sums=(0.0, 1.0))
def nested(q, k, v, p, h, unknown, w_q, w_k, v_a, u_q, u_k, v_c, word_mask=None, char_mask=None, return_weights=False):
    """The pair of contexts, of words (B, T, E) and of characters (B, T, J, F).

    q (B, T, Q), k (B, S, K), v (B, S, E) words; p (B, T, J, P) states of the character decoder, h (B, S, C, F) of the
    source's characters, unknown (B, S), bool. w_q (A, Q), w_k (A, K), v_a (A,); u_q (G, P), u_k (G, F), v_c (G,).
    word_mask (B, 1, S) or (B, T, S), char_mask (B, S, C), bool. The weights are a pair: (B, T, S) and (B, T, J, C), the
    latter 0 where the picked word is known. ShapeError, also where there is no word to pick; TypeError where unknown or
    a mask is not bool.
    """
    expect("nested", q=(q, "BTQ"), k=(k, "BSK"), v=(v, "BSE"), p=(p, "BTJP"), h=(h, "BSCF"), unknown=(unknown, "BS"),
           w_q=(w_q, "AQ"), w_k=(w_k, "AK"), v_a=(v_a, "A"), u_q=(u_q, "GP"), u_k=(u_k, "GF"), v_c=(v_c, "G"),
           **({} if char_mask is None else {"char_mask": (char_mask, "BSC")}))
    if unknown.dtype.kind != "b" or (char_mask is not None and char_mask.dtype.kind != "b"):
        raise TypeError("nested: expected bools in unknown and char_mask")
    if k.shape[1] == 0:
        raise ShapeError(f"nested: expected at least one word to pick from, got k {k.shape}")
    (B, T, J), (S, C, F), G = p.shape[:3], h.shape[1:], len(v_c)
    with scope("words"):
        scores = additive_scores(linear(q, w_q), linear(k, w_k), v_a)      # (B, T, S)
        words = masks.fit("nested", word_mask, B, T, S)
        context, alpha = weigh(scores, v, words, return_weights=True)      # (B, T, E), (B, T, S)
    picked = alpha.argmax(-1).unsqueeze(-1) == np.arange(S)                # (B, T, S), a constant
    open_ = picked_open(alpha, unknown, picked, char_mask, C)              # (B, T, 1, C)
    with scope("characters"):
        spelt = (picked.to(h.dtype) @ h.reshape(B, S, C * F)).reshape(B, T, C, F)
        asked, keys = linear(p, u_q).reshape(B * T, J, G), linear(spelt, u_k).reshape(B * T, C, G)
        scores = additive_scores(asked, keys, v_c).reshape(B, T, J, C)
        letters, beta = weigh(scores, spelt, open_, return_weights=True)   # (B, T, J, F), (B, T, J, C)
    return (context, letters, (alpha, beta)) if return_weights else (context, letters)


def picked_open(alpha, unknown, picked, char_mask, C):
    """(B, T, 1, C): the characters that may be attended to: those of picked words that are unknown, and not masked."""
    picked = picked & unknown.unsqueeze(1) & (alpha.detach() > 0)          # (B, T, S)
    letters = unknown.unsqueeze(-1).expand(*unknown.shape, C) if char_mask is None else char_mask  # (B, S, C)
    return (picked.to(alpha.dtype) @ letters.to(alpha.dtype) > 0).unsqueeze(2)


def reference(q, k, v, p, h, unknown, w_q, w_k, v_a, u_q, u_k, v_c, word_mask=None, char_mask=None):
    """Step by step, letter by letter."""
    B, T, S, J, C = *q.shape[:2], k.shape[1], p.shape[2], h.shape[2]
    words, letters = np.zeros((B, T, v.shape[2])), np.zeros((B, T, J, h.shape[3]))
    for b in range(B):
        for t in range(T):
            e = {}
            for s in range(S):
                if word_mask is None or np.broadcast_to(word_mask, (B, T, S))[b, t, s]:
                    e[s] = np.exp(v_a @ np.tanh(w_q @ q[b, t] + w_k @ k[b, s]))
            if not e:
                continue
            words[b, t] = sum(e[s] * v[b, s] for s in e) / sum(e.values())
            z = max(e, key=e.get)
            if not unknown[b, z]:
                continue
            for j in range(J):
                f = {i: np.exp(v_c @ np.tanh(u_q @ p[b, t, j] + u_k @ h[b, z, i]))
                     for i in range(C) if char_mask is None or char_mask[b, z, i]}
                if f:
                    letters[b, t, j] = sum(f[i] * h[b, z, i] for i in f) / sum(f.values())
    return words, letters


def example(rng):
    """Two sentences of 4 and 3 words of at most 5 characters; words 0 and 2 are unknown; 6 steps, two letters each."""
    B, T, S, J, C = 2, 6, 4, 2, 5
    shapes = {"q": (B, T, 3), "k": (B, S, 4), "v": (B, S, 2), "p": (B, T, J, 3), "h": (B, S, C, 2), "w_q": (3, 3),
              "w_k": (3, 4), "v_a": (3,), "u_q": (4, 3), "u_k": (4, 2), "v_c": (4,)}
    arrays = {name: 2 * rng.normal(size=shape) for name, shape in shapes.items()}
    return {**arrays, "unknown": np.array([[True, False, True, False]] * 2),
            "word_mask": np.arange(S) < np.array([4, 3])[:, None, None],
            "char_mask": np.arange(C) < np.array([[5, 3, 4, 1], [2, 5, 3, 1]])[..., None]}


def labels():
    """Names of queries and keys, and what lies between batch and queries."""
    return None, None, "word"
