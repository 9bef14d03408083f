r"""Hierarchical attention: words make sentences, sentences make a document, with an attention of its own at each level.

    s_i = sum_t softmax_t(u_w^T u_it) h_it        u_it = tanh(W_w h_it + b_w)        h_it = BiGRU(x_it)
    v   = sum_i softmax_i(u_s^T u_i) h_i          u_i  = tanh(W_s h_i + b_s)         h_i  = BiGRU(s_i)

u_w and u_s are learned: "what is the informative word?" The GRUs are the paper's, n = tanh(W x + r * (U h) + b), h' =
(1 - z) * h + z * n.

Yang et al. 2016, "Hierarchical attention networks for document classification"; Hu 2018 eqs 12-15.

Cost: two directions of a GRU over N T words (6 U (D + U) multiplications each), two over N sentences, and the hidden
layers, 2 A U a word.

Survey: eqs 13 and 15 leave out the hidden layer and score the state itself, softmax(u_w^T h_it). That is
`hidden=False`; u_w and u_s are then as wide as the states, and w_w, b_w, w_s, b_s are not looked at (None will do).

u_w = 0 makes all weights of a sentence the same, plain averaging (the paper's HN-AVE), so start from anything else.
Many copies sum the projected u_it in place of h_it, leave padding words in the softmax, or give weight to sentences that are
all padding.
"""

import numpy as np

from ..autograd import scope
from ..functional import concat, linear
from ..ops.broadcast import ShapeError
from ..ops.gru import GRUScan
from ..tensor import Tensor
from .core import variant, weigh
from .mask import lengths_of
from .shapes import expect


@variant("hierarchical", params={"word_ih": "PGD", "word_hh": "PGU", "word_b": "PG", "w_w": "AF",
                 "b_w": "A", "u_w": "A", "sent_ih": "PMF", "sent_hh": "PMZ", "sent_b": "PM", "w_s": "CL", "b_s": "C",
                 "u_s": "C"},
         paper="Yang et al. 2016; Hu 2018 eqs 12-15", sums=(0.0, 1.0))
def han(x, word_ih, word_hh, word_b, w_w, b_w, u_w, sent_ih, sent_hh, sent_b, w_s, b_s, u_s, word_mask=None,
        hidden=True, return_weights=False):
    """x (B, N, T, D), N sentences of T word vectors, to (B, 2Z). word_mask (B, N, T), bool, True at a word.

    word_ih (2, 3U, D), word_hh (2, 3U, U), word_b (2, 3U): the two directions over words, gates in the order r, z, n;
    w_w (A, 2U), b_w (A,), u_w (A,): the attention over words. sent_ih (2, 3Z, 2U), sent_hh (2, 3Z, Z), sent_b (2, 3Z),
    w_s (C, 2Z), b_s (C,), u_s (C,): the same for sentences. (As letters P = 2, G = 3U, F = 2U, M = 3Z, L = 2Z.)
    The weights are a pair: (B, N, 1, T) of the words, (B, 1, N) of the sentences; padding gets exactly 0.
    ShapeError; ValueError where words do not fill a sentence, or sentences a document, from its start.
    """
    check(x, word_ih, word_hh, word_b, w_w, b_w, u_w, sent_ih, sent_hh, sent_b, w_s, b_s, u_s, word_mask, hidden)
    B, N, T, D = x.shape
    words = Tensor(np.ones((B, N, T), bool), device=x.device) if word_mask is None else word_mask
    lengths = lengths_of("han", words, B, N, T)                            # (B N,)
    sentences = (lengths > 0).reshape(B, N)
    with scope("words"):
        h = bigru(x.reshape(B * N, T, D), word_ih, word_hh, word_b, lengths)  # (B N, T, 2U)
        h = h.reshape(B, N, T, h.shape[-1])                                # (B, N, T, 2U)
        s, alpha = attend(h, u_w, w_w if hidden else None, b_w, words)     # (B, N, 2U), (B, N, 1, T)
    with scope("sentences"):
        h = bigru(s, sent_ih, sent_hh, sent_b, lengths_of("han", sentences, B, N))  # (B, N, 2Z)
        v, beta = attend(h, u_s, w_s if hidden else None, b_s, sentences)  # (B, 2Z), (B, 1, N)
    return (v, (alpha, beta)) if return_weights else v


def attend(h, u, w, b, mask):
    """sum_t softmax_t(u^T tanh(w h_t + b)) h_t of states h (..., T, F); scores are u^T h_t where w is None."""
    hidden = h if w is None else linear(h, w, b).tanh()                    # (..., T, A)
    out, weights = weigh((hidden @ u).unsqueeze(-2), h, mask.unsqueeze(-2), return_weights=True)
    return out.squeeze(-2), weights                                        # (..., F), (..., 1, T)


def bigru(x, w_ih, w_hh, b, lengths):
    """Both directions side by side: x (B, T, D), w_ih (2, 3U, D), w_hh (2, 3U, U), b (2, 3U) to (B, T, 2U)."""
    start = Tensor(np.zeros((len(x), w_hh.shape[2])), dtype=x.dtype, device=x.device)  # (B, U)
    states = []
    for d in (0, 1):
        run = GRUScan(reverse=d == 1, reset="after", update="write")
        states.append(run(linear(x, w_ih[d], b[d]), start, w_hh[d], None, lengths)[0])  # (B, T, U)
    return concat(states, -1)


def check(x, word_ih, word_hh, word_b, w_w, b_w, u_w, sent_ih, sent_hh, sent_b, w_s, b_s, u_s, word_mask, hidden):
    """ShapeError unless the shapes fit."""
    given = {"x": (x, "BNTD"), "word_ih": (word_ih, "2GD"), "word_hh": (word_hh, "2GU"), "word_b": (word_b, "2G"),
             "u_w": (u_w, "A"), "sent_ih": (sent_ih, "2MF"), "sent_hh": (sent_hh, "2MZ"), "sent_b": (sent_b, "2M"),
             "u_s": (u_s, "C")}
    if hidden:
        given |= {"w_w": (w_w, "AF"), "b_w": (b_w, "A"), "w_s": (w_s, "CL"), "b_s": (b_s, "C")}
    expect("han", **given, **({} if word_mask is None else {"word_mask": (word_mask, "BNT")}))
    for level, ih, hh, w, u in (("word", sent_ih, word_hh, w_w, u_w), ("sent", None, sent_hh, w_s, u_s)):
        U, wide = hh.shape[2], (w if hidden else u).shape[-1]
        if hh.shape[1] != 3 * U or wide != 2 * U or (ih is not None and ih.shape[2] != 2 * U):
            reader = "" if ih is None else f", sent_ih {ih.shape}"
            raise ShapeError(f"han: expected {level}_hh (2, 3U, U), its attention and what reads it 2U wide, got "
                             f"{level}_hh {hh.shape}, an attention {wide} wide{reader}")


def reference(x, word_ih, word_hh, word_b, w_w, b_w, u_w, sent_ih, sent_hh, sent_b, w_s, b_s, u_s, word_mask=None,
              hidden=True):
    """Sentence by sentence, word by word; padding is never touched."""
    def sigmoid(z):
        return 1 / (1 + np.exp(-z))

    def run(xs, w_ih, w_hh, b):
        U, h, hs = w_hh.shape[1], np.zeros(w_hh.shape[1]), []
        for z in xs:
            pre = w_ih @ z + b
            r = sigmoid(pre[:U] + w_hh[:U] @ h)
            update = sigmoid(pre[U:2 * U] + w_hh[U:2 * U] @ h)
            n = np.tanh(pre[2 * U:] + r * (w_hh[2 * U:] @ h))
            h = (1 - update) * h + update * n
            hs.append(h)
        return hs

    def level(xs, ih, hh, bias, w, b, u):
        forward, back = run(xs, ih[0], hh[0], bias[0]), run(xs[::-1], ih[1], hh[1], bias[1])[::-1]
        hs = [np.concatenate(pair) for pair in zip(forward, back, strict=True)]
        e = [np.exp(u @ (np.tanh(w @ h + b) if hidden else h)) for h in hs]
        return sum(a * h for a, h in zip(e, hs, strict=True)) / sum(e)

    documents = []
    for b in range(len(x)):
        sentences = []
        for i in range(x.shape[1]):
            words = [x[b, i, t] for t in range(x.shape[2]) if word_mask is None or word_mask[b, i, t]]
            if words:
                sentences.append(level(words, word_ih, word_hh, word_b, w_w, b_w, u_w))
        documents.append(level(sentences, sent_ih, sent_hh, sent_b, w_s, b_s, u_s))
    return np.stack(documents)


def example(rng):
    """Two documents of at most 3 sentences of at most 4 words; the second has two sentences."""
    D, U, A, Z, C = 3, 2, 5, 1, 4
    shapes = {"word_ih": (2, 3 * U, D), "word_hh": (2, 3 * U, U), "word_b": (2, 3 * U), "w_w": (A, 2 * U), "b_w": (A,),
              "u_w": (A,), "sent_ih": (2, 3 * Z, 2 * U), "sent_hh": (2, 3 * Z, Z), "sent_b": (2, 3 * Z),
              "w_s": (C, 2 * Z), "b_s": (C,), "u_s": (C,)}
    words = np.array([[4, 2, 3], [1, 4, 0]])
    return {"x": rng.normal(size=(2, 3, 4, D)), **{name: rng.normal(size=shape) for name, shape in shapes.items()},
            "word_mask": np.arange(4) < words[..., None]}


def labels():
    """Names of queries and keys, and what lies between batch and queries."""
    return None, None, "sentence"
