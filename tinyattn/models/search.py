"""Translating with a trained model: beam search, one word at a time. Width 1 is greedy search."""
import numpy as np

from ..attention.cache import Cache
from ..autograd import no_grad
from ..tensor import Tensor


def beam_search(model, source, lengths, begin, end, width=1, longest=None):
    """The most probable translations of a batch: a list of B lists of ids, without `begin` and `end`.

    A hypothesis is ranked by its log-probability divided by its length (with the end word), so that short ones are not
    preferred; one that has ended comes before one that was cut off. source (B, S), lengths (B,) Tensors; `longest`
    bounds the length, by default 2 S + 10. All B x width hypotheses run as one batch; a finished one keeps its place
    and its score.
    """
    if width < 1:
        raise ValueError(f"beam_search: expected a beam of at least 1, got {width}")
    longest = longest or 2 * source.shape[1] + 10
    b = source.shape[0]
    with no_grad():
        h, summary = model.encoder(source, lengths)
        rows = np.repeat(np.arange(b), width)
        memory = {k: v[rows] for k, v in model.decoder.prepare(h, summary, lengths).items()}
        state = tuple(_rows_of(s, rows) for s in model.decoder.first_state(summary))
        summary = summary[rows]
        words = np.full((b * width, 1), begin, np.int64)
        total = np.where(np.arange(b * width) % width == 0, 0.0, -np.inf)     # at first all of a beam are one
        done, length = np.zeros(b * width, bool), np.zeros(b * width)
        for _ in range(longest):
            logits, state = model.decoder.next_word(Tensor(words[:, -1]), state, memory, summary)
            log_p = logits.log_softmax().numpy().astype(np.float64)            # (B width, V)
            pick, words_new, total, length, done = _extend(log_p, total, length, done, b, width, end)
            words = np.concatenate([words[pick], words_new[:, None]], 1)
            state = tuple(_rows_of(s, pick) for s in state)
            if done.all():
                break
    rank = np.where(done, total / np.maximum(length, 1), -np.inf).reshape(b, width)
    unfinished = np.isneginf(rank).all(1)[:, None]                            # only then what has no end may be chosen
    rank = np.where(unfinished, (total / np.maximum(length, 1)).reshape(b, width), rank)
    best = rank.argmax(1) + np.arange(b) * width
    return [_until(row[1:], end) for row in words[best]]


def _rows_of(state, rows):
    """The rows of a part of the state: of a Tensor (B, ...), or of a Cache, whose survivors change places in it."""
    if not isinstance(state, Cache):
        return state[rows]
    if not np.array_equal(rows, np.arange(len(rows))):  # in a greedy search nobody moves
        state.reorder(rows)
    return state


def _extend(log_p, total, length, done, b, width, end):
    """Keep the best `width` continuations of each sentence, by log-probability a word. A finished one stays as it is.
    """
    v = log_p.shape[1]
    log_p[done] = -np.inf
    log_p[done, end] = 0.0
    grown = length + ~done
    score = (total[:, None] + log_p) / np.maximum(grown, 1)[:, None]           # (B width, V)
    flat = score.reshape(b, width * v)
    top = np.argpartition(-flat, width - 1, 1)[:, :width] if width < flat.shape[1] else np.argsort(-flat, 1)[:, :width]
    top = np.take_along_axis(top, np.argsort(-np.take_along_axis(flat, top, 1), 1, kind="stable"), 1)
    pick = (top // v + np.arange(b)[:, None] * width).ravel()
    word = (top % v).ravel()
    total = total[pick] + log_p[pick, word]
    return pick, word, total, grown[pick], done[pick] | (word == end)


def _until(ids, end):
    ids = ids.tolist()
    return ids[:ids.index(end)] if end in ids else ids
