r"""End-to-end memory network: a question, as a vector, reads a story sentence by sentence, several times over.

    p_i = softmax_i(u^T m_i)      o = sum_i p_i c_i      u <- H u + o,  H = I unless it is learnt
    m_i = sum_j l_j * A x_ij + T_A(i)      c_i = sum_j l_j * C x_ij + T_C(i)      u_1 = sum_j l_j * B q_j

    x_ij is word j of sentence i; A, B, C are tables of word vectors; T_A and T_C have a vector for each age

    l_kj = (1 - j/J) - (k/D)(1 - 2j/J)                          encoding="paper", J words in the sentence
    l_kj = 1 + 4 (k - (D+1)/2)(j - (J+1)/2) / (D J)             encoding="code", J slots in each sentence
    l_kj = 1                                                    encoding="bow", a bag of words

    adjacent     A_{h+1} = C_h and B = A_1: H hops have H + 1 tables, and so for T
    layer-wise   one A, one C and one B for all hops

Sukhbaatar, Szlam, Weston and Fergus 2015, "End-to-end memory networks"; Hu 2018, section 3.4 and eq. 29.

Cost: a hop takes 2 S D multiplications; before it S J rows of each table are added up.

Survey: eq. 29 prints the sum only, and none of what makes it work: word order, time, tying, linear start.

What the published code does otherwise than the paper: its l is twice the paper's at j - 1/2 and k - 1/2, so that each
row averages 1 and not about 1/2; J counts the padding and one more slot, which holds the time as a word, so that T(i)
is weighed by the last row. "code" does all that.

Empty slots of the memory are vectors of 0, score 0 and **take their share of the softmax**, e^0, as published; with a
mask they do not. Common mistakes: the newest sentence has age 0, ages are not counted from the start of the story;
linear start drops the softmax of the hops, not that of the answer. Without noise in the ages the vectors of the oldest
are hardly learnt.
"""
import math
from functools import lru_cache

import numpy as np

from ..autograd import scope
from ..functional import concat, linear
from ..ops.bag import Bag
from ..ops.broadcast import ShapeError
from ..ops.index import check_range
from ..tensor import Tensor
from . import mask as masks
from .core import show, variant
from .normalise import softmax as shares
from .shapes import one_of, whole

ENCODINGS, TYINGS = ("paper", "code", "bow"), ("adjacent", "layer-wise")
SHAPES = {"story": "(B, S, J)", "question": "(B, Jq)", "ages": "(B, S)"}


@variant("memory", params={"tables": "LVD", "times": "LMD"}, paper="Sukhbaatar et al. 2015; Hu 2018 eq. 29",
         keys=("story",), empty=False)
def memn2n(story, question, tables, times, h=None, ages=None, tying="adjacent", encoding="paper", hops=2, softmax=True,
           nil=0, mask=None, return_weights=False, relu=False, slots=None):
    """u_{hops+1} (B, D), from which the answer is softmax(W u); with adjacent tying W is the last table.

    story, question   word ids (B, S, J) and (B, Jq), oldest sentence first, `nil` where there is no word
    tables, times     adjacent: (hops + 1, V, D) and (hops + 1, M, D), or lists of as many tables; layer-wise: tables
                      A, C, B (3, V, D), times T_A, T_C (2, M, D). M is more than the greatest age. Without times (None)
                      the order of the sentences is not known.
    h                 H (D, D), the paper has it with layer-wise tying; None is the identity
    ages              (B, S): the row of `times` for each sentence, from `ages_of` (the default) or `noisy_ages`
    softmax           False: linear start, p_i = u^T m_i
    mask              (B, 1, S): None as published, where empty slots take weight too
    return_weights    gives the weights of all hops too, (B, hops, S)
    relu              u <- relu(H u + o): the paper's larger model
    slots             J of encoding="code", the slot of the time included: to be given where batches are padded to
                      unlike lengths. None, or too few: as many as these sentences need

    InputError for another tying or encoding; ValueError for hops below 1; ShapeError for shapes that do not fit;
    IndexError for an id or age not in its table.
    """
    story, question = _ids("story", story, 3), _ids("question", question, 2)
    _check(story, question, tables, times, tying, encoding, hops)
    mask = masks.fit("memn2n", mask, len(story), 1, story.shape[1])
    timed = times is not None
    ages = None if not timed else ages_of(story, nil) if ages is None else _ids("ages", ages, 2)
    if timed and ages.shape != story.shape[:2]:
        raise ShapeError(f"memn2n: expected ages (B, S) = {story.shape[:2]}, got {ages.shape}")
    adjacent = tying == "adjacent"
    slots = max(slots or 0, timed + max(story.shape[2], question.shape[1]))
    sentences = _sentences(story, tables[0], encoding, slots, nil, times[0] if timed else None, ages)
    asked = _sentences(question[:, None], tables[0], encoding, slots, nil)
    memories = [sentences(concat([tables[i], times[i]]) if timed else tables[i])
                for i in range(hops + 1 if adjacent else 2)]               # (B, S, D) each
    u = asked(tables[0 if adjacent else 2])                                # (B, 1, D)

    scores, weights = [], []
    for hop in range(hops):
        m, c = memories[hop:hop + 2] if adjacent else memories
        with scope(f"hop{hop}"):
            scores.append(u @ m.transpose())                               # (B, 1, S)
            weights.append((shares if softmax else as_they_are)(scores[hop], mask))
            u = (u if h is None else linear(u, h)) + weights[hop] @ c      # (B, 1, D)
            u = u.relu() if relu else u
    show(lambda: concat(scores, 1), mask, lambda: concat(weights, 1))      # (B, hops, S)
    return (u.squeeze(1), concat(weights, 1)) if return_weights else u.squeeze(1)


def as_they_are(scores, mask=None):
    """Linear start: the scores are the weights."""
    return scores if mask is None else scores.where(mask, 0.0)


def _sentences(words, table, encoding, slots, nil, times=None, ages=None):
    """A function from a table (V, D) to each sentence as one vector: words (B, S, J) to (B, S, D).

    With times (M, D) the table must have their rows below its own: the time of a sentence is one more word of it, in a
    last slot. A word that is `nil` counts nothing, nor does the age of a sentence without words.
    """
    check_range("memn2n: embedding", words, len(table), "id")
    there, width, timed = words != nil, table.shape[1], times is not None  # (B, S, J)
    share = kinds = None
    if encoding == "paper":
        lengths = (there * np.arange(1, words.shape[2] + 1)).max(-1)       # up to the last word
        kinds = Tensor(np.maximum(lengths - 1, 0), device=table.device)
    if encoding != "bow":
        share = _weights_of_words(encoding, words.shape[2], slots, width, timed, table.dtype, table.device)
    if timed:
        check_range("memn2n: embedding", ages, len(times), "id")
        time = np.where(there.any(-1), len(table) + ages, nil)             # (B, S)
        words = np.concatenate([words, time[..., None]], -1)
    words = Tensor(words, device=table.device)
    return lambda rows: Bag(nil)(rows, words, share, kinds)


@lru_cache(64)
def _weights_of_words(encoding, J, slots, width, timed, dtype, device):
    """l (K, J, D), for sentences of 1, 2, ... J words ("paper") or for all (K = 1), with one more row for the time."""
    if encoding == "code":
        share = position_encoding(slots, width, "code")                    # (slots, D)
        share = np.concatenate([share[:J], share[-1:]] if timed else [share[:J]])[None]
    else:
        share = np.ones((J, J + timed, width))
        for n in range(J):
            share[n, :J] = position_encoding(n + 1, width, "paper", J)
    return Tensor(share, dtype=dtype, device=device)


def position_encoding(length, width, form="paper", slots=None):
    """l (slots, width) for sentences of `length` words: row j weighs word j. Beyond the length, up to `slots`, it is 0.

    form is "paper" or "code", as in the formula above; both count places j and k from 1.
    """
    j, k = np.arange(1, length + 1)[:, None], np.arange(1, width + 1)
    share = np.zeros((slots or length, width))
    if form == "paper":
        share[:length] = (1 - j / length) - (k / width) * (1 - 2 * j / length)
    else:
        share[:length] = 1 + 4 * (k - (width + 1) / 2) * (j - (length + 1) / 2) / (width * length)
    return share


def ages_of(story, nil=0):
    """How many sentences come after each one, (B, S): 0 for the newest. Empty sentences count nothing."""
    there = ((story if isinstance(story, np.ndarray) else np.asarray(story)) != nil).any(-1)
    return np.where(there, there[:, ::-1].cumsum(1)[:, ::-1] - 1, 0)


def noisy_ages(story, rng, most, rate=0.1, nil=0):
    """Ages as if blank sentences stood between those of the story: up to `rate` of their number, rounded up.

    story (B, S, J); rng a NumPy Generator; most M, the number of rows of `times`: no age is above M - 1. Gives (B, S).
    For training only.
    """
    ages = ages_of(story, nil)
    there = ((story if isinstance(story, np.ndarray) else np.asarray(story)) != nil).any(-1)
    n = there.sum(1, keepdims=True)                                        # (B, 1)
    blanks = rng.integers(np.ceil(rate * n).astype(int) + 1)
    at = np.arange((n + blanks).max(initial=1))                            # the places, (W,)
    drawn = np.argsort(np.where(at < n + blanks, rng.random((len(n), len(at))), 2.0), 1)  # n + blanks places, shuffled
    drawn = np.sort(np.where(at < n, drawn, len(at)), 1)                   # the first n of them, the newest first
    return np.where(there, np.minimum(np.take_along_axis(drawn, ages, 1), most - 1), 0)


def _ids(name, ids, ndim):
    ids = ids.numpy() if isinstance(ids, Tensor) else ids
    ids = ids if isinstance(ids, np.ndarray) else np.asarray(ids)
    if ids.dtype.kind not in "iu" or ids.ndim != ndim:
        raise ShapeError(f"memn2n: expected {name} of integers {SHAPES[name]}, got "
                         f"{ids.dtype} of shape {ids.shape}")
    return ids


def _check(story, question, tables, times, tying, encoding, hops):
    one_of("memn2n", tying=(tying, TYINGS), encoding=(encoding, ENCODINGS))
    whole("memn2n", 1, hops=hops)
    want = (hops + 1, hops + 1) if tying == "adjacent" else (3, 2)
    found = [_shapes("tables", tables), *([] if times is None else [_shapes("times", times)])]
    fits = all(len(shapes) == n and len(set(shapes)) == 1 and len(shapes[0]) == 2 for shapes, n in zip(found, want))
    fits = fits and found[0][0][1] == found[-1][0][1] and len(story) == len(question)
    if not fits or min(story.shape[2], question.shape[1]) == 0:
        given = " and ".join(f"{len(shapes)} {what} {sorted(set(shapes))}"
                             for what, shapes in zip(("tables", "times"), found))
        raise ShapeError(f"memn2n: expected story (B, S, J), question (B, Jq), {want[0]} tables (V, D) and {want[1]} "
                         f"times (M, D) for {hops} hops and {tying} tying, got {story.shape}, {question.shape}, "
                         f"{given}")


def _shapes(what, given):
    """The shape of each table in one Tensor or a list of them."""
    if isinstance(given, Tensor):
        return [given.shape[1:]] * given.shape[0] if given.ndim else []
    if not isinstance(given, (list, tuple)) or not all(isinstance(t, Tensor) for t in given):
        raise TypeError(f"memn2n: expected {what} to be a Tensor or a list of them, got {type(given).__name__}")
    return [t.shape for t in given]


def reference(story, question, tables, times, hops, mask=None):
    """The formula as the paper has it, adjacent tying, one number at a time."""
    (B, S, _), D = story.shape, tables.shape[2]

    def add_up(table, words):
        words = [w for w in words if w != 0]
        J = len(words)
        return [sum(table[w, k - 1] * ((1 - j / J) - k / D * (1 - 2 * j / J)) for j, w in enumerate(words, 1))
                for k in range(1, D + 1)]

    out = np.zeros((B, D))
    for b in range(B):
        u, filled = add_up(tables[0], question[b]), [i for i in range(S) if any(story[b, i])]
        for hop in range(hops):
            m, c = [[0.0] * D for _ in range(S)], [[0.0] * D for _ in range(S)]
            for age, i in enumerate(reversed(filled)):
                m[i] = [x + t for x, t in zip(add_up(tables[hop], story[b, i]), times[hop, age])]
                c[i] = [x + t for x, t in zip(add_up(tables[hop + 1], story[b, i]), times[hop + 1, age])]
            e = [math.exp(sum(x * y for x, y in zip(u, m[i]))) * (mask is None or mask[b, 0, i]) for i in range(S)]
            u = [u[d] + sum(e[i] * c[i][d] for i in range(S)) / sum(e) for d in range(D)]
        out[b] = u
    return out


def example(rng):
    """A story of 4 sentences of up to 3 words and one of 3, the last slot empty; 7 words, 2 hops."""
    story = np.array([[[1, 2, 3], [4, 5, 0], [1, 5, 6], [4, 6, 2]], [[3, 2, 1], [6, 4, 0], [2, 0, 0], [0, 0, 0]]])
    return {"story": story, "question": np.array([[4, 6], [3, 0]]), "tables": 0.7 * rng.normal(size=(3, 7, 5)),
            "times": 0.7 * rng.normal(size=(3, 4, 5)), "hops": 2,
            "mask": np.arange(4) < np.array([4, 3])[:, None, None]}


def labels():
    """Names of the hops and of the example's slots."""
    return ["hop 1", "hop 2"], ["sentence 1", "sentence 2", "sentence 3", "sentence 4"]
