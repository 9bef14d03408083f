"""Masked language modelling, BERT's way to make a task out of plain text: hide some words, guess what they were.

Source: Devlin et al. 2018 and the data script that was published with it (`create_pretraining_data.py`).
"""
import numpy as np

IGNORE = -100  # the target where nothing is asked: what `cross_entropy` leaves out by default


def mask_tokens(ids, rng, vocabulary_size, special_ids, mask_id, rate=0.15, most=20, ignore=IGNORE):
    """Choose places of each sentence and hide what stands there: (inputs, targets), both (B, T) like ids.

        chosen      `rate` of a sentence's words, rounded, but one at least and `most` at most
        80%         become `mask_id`, the rest is what the model will meet when nobody masks:
        10%         become another word, drawn from the vocabulary
        10%         stay as they are, and are asked for all the same
        targets     the word that was there at the chosen places, `ignore` elsewhere

    ids             integers (B, T), 0 .. vocabulary_size - 1
    rng             a NumPy Generator; the same generator gives the same masks
    special_ids     [CLS], [SEP], [PAD] and the like: never chosen, never drawn; `mask_id` is one of them anyway
    rate, most      BERT: 0.15 and 20 of at most 128 tokens

    A sentence of special tokens alone has nothing to choose. The loss counts the chosen places only: its mean is over
    these, not over all tokens. A drawn word may be the one that was there, as in BERT. Two things differ from BERT's
    script: it counts [CLS] and [SEP] among the words that `rate` is taken of, and it draws from the whole vocabulary,
    special tokens too.

    TypeError for ids that are no integers; ValueError for other shapes, ids or settings than these.
    """
    ids = np.asarray(ids)
    special = np.unique(np.append(np.asarray(list(special_ids), np.int64), mask_id))
    _check(ids, vocabulary_size, special, rate, most)
    ordinary = np.setdiff1d(np.arange(vocabulary_size), special)           # what may be drawn
    free = ~np.isin(ids, special)                                          # (B, T) what may be chosen
    n = free.sum(1)
    count = np.where(n > 0, np.clip(np.rint(rate * n), 1, most), 0)        # (B,)

    order = np.where(free, rng.random(ids.shape), np.inf).argsort(1)       # a random order, special tokens last
    chosen = order.argsort(1) < count[:, None]                             # (B, T) the first `count` of that order

    fate = rng.random(ids.shape)
    drawn = ordinary[rng.integers(max(len(ordinary), 1), size=ids.shape)] if len(ordinary) else ids
    inputs = np.where(chosen & (fate < 0.8), mask_id, np.where(chosen & (fate >= 0.9), drawn, ids))
    return inputs.astype(np.int64), np.where(chosen, ids, ignore).astype(np.int64)


def _check(ids, vocabulary_size, special, rate, most):
    if ids.dtype.kind not in "iu":
        raise TypeError(f"mask_tokens: expected integer ids, got {ids.dtype}")
    if ids.ndim != 2:
        raise ValueError(f"mask_tokens: expected ids (B, T), got shape {ids.shape}")
    if ids.size and (ids.min() < 0 or ids.max() >= vocabulary_size):
        raise ValueError(f"mask_tokens: expected ids of 0 .. {vocabulary_size - 1}, got {ids.min()} .. {ids.max()}")
    if special.min() < 0 or special.max() >= vocabulary_size:
        raise ValueError(f"mask_tokens: expected special ids and mask_id of 0 .. {vocabulary_size - 1}, got "
                         f"{special.tolist()}")
    if not 0 < rate <= 1 or most < 1:
        raise ValueError(f"mask_tokens: expected 0 < rate <= 1 and most of at least 1, got {rate} and {most}")
