r"""Two-level structured attention: a few rows read the words of each sentence, a few rows read the sentences of a bag.

    A_i = softmax_t(W_2 tanh(W_1 X_i^T))            m_i = the R rows of A_i X_i, end to end
    S = softmax_i(W_4 tanh(W_3 [m_1 .. m_N]^T))     M = S [m_1 .. m_N]

X_i (T, D) are the hidden states of sentence i, A_i (R, T) and S (Q, N) hold one distribution a row: one over words for
each aspect of a sentence, one over sentences for each way to choose among them. The bag is M (Q, R D).

Du, Han, Way and Wan 2018, "Multi-level structured self-attentions for distantly supervised relation extraction"; cited
by Hu 2018 with eq. 11.

Cost: that of `structured_self` for N sentences of T words, and once more for one of N "words" of width R D.

Survey: it cites the paper and gives no formula. That the R rows of a sentence are joined into one vector is our
reading. With R = Q = 1 this is the attention of `han` with neither biases nor recurrent layers. The penalty is taken at
both levels, see `penalties`.
"""
import numpy as np

from ..autograd import scope
from ..ops.broadcast import ShapeError
from .core import variant
from .shapes import expect
from .structured_self import attend, penalty


@variant("multi-dimensional", params={"w_1": "AD", "w_2": "RA", "w_3": "CF", "w_4": "QC"},
         paper="Du et al. 2018; Hu 2018 section 3.1", sums=(0.0, 1.0))
def two_level(x, w_1, w_2, w_3, w_4, word_mask=None, return_weights=False):
    """x (B, N, T, D), N sentences of T words, to (B, Q, R D). w_1 (A, D), w_2 (R, A), w_3 (C, F), w_4 (Q, C), with
    F = R D.

    word_mask (B, N, T), bool, True at a word; a sentence without a word gets weight 0. The weights are a pair:
    (B, N, R, T) of the words and (B, Q, N) of the sentences. ShapeError.
    """
    masked = {} if word_mask is None else {"word_mask": (word_mask, "BNT")}
    expect("two_level", x=(x, "BNTD"), w_1=(w_1, "AD"), w_2=(w_2, "RA"), w_3=(w_3, "CF"), w_4=(w_4, "QC"), **masked)
    (B, N, _, D), R = x.shape, len(w_2)
    if w_3.shape[1] != R * D:
        raise ShapeError(f"two_level: expected w_3 (C, R D) with R = {R}, D = {D}, got {w_3.shape}")
    with scope("words"):
        rows, words = attend(x, w_1, w_2, word_mask.unsqueeze(2) if masked else None)  # (B, N, R, D), (B, N, R, T)
    with scope("sentences"):
        some = present(word_mask).unsqueeze(1) if masked else None         # (B, 1, N)
        bag, chosen = attend(rows.reshape(B, N, R * D), w_3, w_4, some)    # (B, Q, R D), (B, Q, N)
    return (bag, (words, chosen)) if return_weights else bag


def present(word_mask):
    """(B, N): the sentences of word_mask (B, N, T) that have a word."""
    return word_mask.long().sum(-1) > 0


def penalties(words, chosen, word_mask=None, scale="sum"):
    """Lin's penalty at both levels, added: of words (B, N, R, T), the mean over sentences that have a word, and of
    chosen (B, Q, N)."""
    return penalty(words, scale, None if word_mask is None else present(word_mask)) + penalty(chosen, scale)


def reference(x, w_1, w_2, w_3, w_4, word_mask=None):
    """Row by row."""
    B, N, T, D = x.shape
    R, Q = len(w_2), len(w_4)
    out = np.zeros((B, Q, R * D))
    for b in range(B):
        sentences = {}
        for i in range(N):
            words = [t for t in range(T) if word_mask is None or word_mask[b, i, t]]
            if words:
                parts = []
                for r in range(R):
                    e = [np.exp(w_2[r] @ np.tanh(w_1 @ x[b, i, t])) for t in words]
                    parts.append(sum(w * x[b, i, t] for w, t in zip(e, words, strict=True)) / sum(e))
                sentences[i] = np.concatenate(parts)
        for r in range(Q):
            e = {i: np.exp(w_4[r] @ np.tanh(w_3 @ m)) for i, m in sentences.items()}
            for i in e:
                out[b, r] += e[i] / sum(e.values()) * sentences[i]
    return out


def example(rng):
    """Two bags of at most 3 sentences of at most 4 words; the second has two sentences."""
    words = np.array([[4, 2, 3], [1, 4, 0]])
    return {"x": rng.normal(size=(2, 3, 4, 2)), "w_1": rng.normal(size=(3, 2)), "w_2": rng.normal(size=(2, 3)),
            "w_3": rng.normal(size=(5, 4)), "w_4": rng.normal(size=(3, 5)),
            "word_mask": np.arange(4) < words[..., None]}


def labels():
    """Names of queries and keys, and what lies between batch and queries."""
    return None, None, "sentence"
