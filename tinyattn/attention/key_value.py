r"""Key-value memory network: each memory is found by its key, and what is read is its value.

    p_i = softmax_i(q_j^T A k_i)      o = sum_i p_i A v_i      q_{j+1} = R_j (q_j + o),  q_1 = A x

    A x is the sum of the vectors, in one table, of the words of x; A k_i and A v_i likewise

Miller et al. 2016, "Key-value memory networks for directly reading documents"; Hu 2018, section 3.4.

Cost: a hop takes 2 S D multiplications and D D for R; before it all words of all keys and values are added up once.

Survey: says that keys are windows around an entity and values the entities, and leaves out R and the shared table.
As in the authors' code, question, keys, values and answers share **one** table A, and R_j stands between two hops, not
before the answer: the answer is argmax_y q_{H+1}^T A y with q_{H+1} = q_H + o. The paper's formula has R_H there too:
`last=True`.

Common mistakes: a second table for the values; no R; and the softmax over all memories of the corpus, where
`hashed` picks those that share a rare word with the question.

Beside the mechanism stands what makes a text into memories: `merge`, `windows`, `hashed`, in plain words.
"""
import math

import numpy as np

from ..autograd import scope
from ..functional import concat, embedding, linear
from ..ops.broadcast import ShapeError
from ..tensor import Tensor
from . import mask as masks
from .core import show, variant
from .normalise import softmax

WINDOW, TITLE, NEAR = "__WINDOW_CENTER__", "__MOVIE__", "1:"  # as the authors' script has them


@variant("memory", params={"table": "VD", "r": "LDD"}, paper="Miller et al. 2016; Hu 2018 section 3.4",
         keys=("keys", "values"), empty=False)
def key_value(question, keys, values, table, r, last=False, nil=0, mask=None, return_weights=False):
    """q_{H+1} (B, D), to be compared with the rows of `table`: its product with an answer's row is the answer's score.

    question, keys, values   word ids (B, J), (B, S, Jk) and (B, S, Jv), or (B, S) for values of one word; `nil`: none
    table                    (V, D), for all of them
    r                        (L, D, D): there are L + 1 hops, or L with last=True
    mask                     (B, 1, S): which memories there are
    return_weights           gives the weights of all hops too, (B, hops, S)

    ShapeError for shapes that do not fit, IndexError for an id outside the table.
    """
    question, keys, values = (_ids(ids) for ids in (question, keys, values))
    values = values[..., None] if values.ndim == 2 else values
    _check(question, keys, values, table, r, last)
    mask = masks.fit("key_value", mask, len(keys), 1, keys.shape[1])
    q = _bag(table, question[:, None], nil)                                # (B, 1, D)
    k, v = _bag(table, keys, nil), _bag(table, values, nil)                # (B, S, D)

    scores, weights, hops = [], [], len(r) + (not last)
    for hop in range(hops):
        with scope(f"hop{hop}"):
            scores.append(q @ k.transpose())                               # (B, 1, S)
            weights.append(softmax(scores[hop], mask))
            q = q + weights[hop] @ v                                       # (B, 1, D)
            if hop < len(r):
                q = linear(q, r[hop])
    show(lambda: concat(scores, 1), mask, lambda: concat(weights, 1))      # (B, hops, S)
    return (q.squeeze(1), concat(weights, 1)) if return_weights else q.squeeze(1)


def _bag(table, words, nil):
    """The sum of the words' vectors: (B, S, J) to (B, S, D)."""
    return embedding(table, Tensor(words, device=table.device), nil).where((words != nil)[..., None], 0.0).sum(2)


def _ids(ids):
    ids = ids.numpy() if isinstance(ids, Tensor) else ids
    return ids if isinstance(ids, np.ndarray) else np.asarray(ids)


def _check(question, keys, values, table, r, last):
    for what, x in (("table", table), ("r", r)):
        if not isinstance(x, Tensor):
            raise TypeError(f"key_value: expected a Tensor for {what}, got {type(x).__name__}")
    fits = (question.ndim == 2 and keys.ndim == 3 and values.ndim == 3 and keys.shape[:2] == values.shape[:2]
            and len(question) == len(keys) and table.ndim == 2 and tuple(r.shape[1:]) == (table.shape[1],) * 2)
    if not fits or any(ids.dtype.kind not in "iu" for ids in (question, keys, values)):
        raise ShapeError("key_value: expected integers question (B, J), keys (B, S, Jk), values (B, S, Jv) or (B, S), "
                         f"floats table (V, D), r (L, D, D), got {question.shape}, {keys.shape}, {values.shape}, "
                         f"{table.shape}, {r.shape}")
    if last and not len(r):
        raise ValueError("key_value: expected at least one matrix in r with last=True, got none, which makes no hop")


# ---------------------------------------------------------------------------------------------------------------------
# from a text to memories
# ---------------------------------------------------------------------------------------------------------------------
def merge(tokens, entities):
    """Each entity of several words as one token: `["by", "john", "turturro"]` to `["by", "john turturro"]`.

    The longest entity goes first, wherever it stands, so that no shorter one breaks it.
    """
    taken = [False] * len(tokens)
    found = {}                                                             # where an entity begins: its words
    for entity in sorted(set(entities), key=lambda e: (-len(e), e)):
        words = entity.split()
        for i in range(len(tokens) - len(words) + 1):
            if words and tokens[i:i + len(words)] == words and not any(taken[i:i + len(words)]):
                taken[i:i + len(words)] = [True] * len(words)
                found[i] = words
    merged, i = [], 0
    while i < len(tokens):
        merged.append(" ".join(found[i]) if i in found else tokens[i])
        i += len(found.get(i, " "))
    return merged


def windows(tokens, entities, size, title=None, centre=True, inverse=False):
    """Memories of one document, (keys, values): for each entity in it the words around it, and the entity.

    tokens      the document's words, entities merged (`merge`)
    size        D, how many words on each side
    centre      the words around are marked as words of a second dictionary ("1:word"), so that the entity in the
                middle can be told from them
    title       the name of what the document is about: a word of each key
    inverse     for each window, the other way round too: from the window to the title. Then the keys begin with a tag,
                of which kind they are, and a window whose entity is the title itself, no fact about it, is left out.

    ValueError for a size below 0, or inverse without a title.
    """
    if size < 0 or (inverse and title is None):
        raise ValueError(f"windows: expected a size of at least 0, and a title with inverse=True, got size = {size}, "
                         f"title = {title!r}, inverse = {inverse}")
    near = NEAR if centre else ""
    entities, keys, values = set(entities), [], []
    for i, entity in enumerate(tokens):
        if entity not in entities:
            continue
        around = ([near + w for w in tokens[max(i - size, 0):i]], [near + w for w in tokens[i + 1:i + 1 + size]])
        window = [*around[0], entity, *around[1]]
        if not (inverse and entity == title):
            keys.append([WINDOW] * inverse + ([] if title is None else [near + title]) + window)
            values.append(entity)
        if inverse:
            keys.append([TITLE, *window])
            values.append(title)
    return keys, values


def hashed(question, keys, counts, most=1000):
    """The places of the keys that share a rare word with the question, one that `counts` has fewer than `most` times.

    A word of the second dictionary is the word itself here.
    """
    rare = {w for w in question if counts.get(w, 0) < most}
    return [i for i, key in enumerate(keys) if any(w.removeprefix(NEAR) in rare for w in key)]


def reference(question, keys, values, table, r, mask=None):
    """The formula, one number at a time."""
    (B, S), D = keys.shape[:2], table.shape[1]

    def bag(words):
        return [sum(table[w, d] for w in words if w != 0) for d in range(D)]

    out = np.zeros((B, D))
    for b in range(B):
        q = bag(question[b])
        for hop in range(len(r) + 1):
            e = [0.0] * S
            for i in range(S):
                if mask is None or mask[b, 0, i]:
                    e[i] = math.exp(sum(x * y for x, y in zip(q, bag(keys[b, i]))))
            q = [q[d] + sum(e[i] / sum(e) * bag(values[b, i])[d] for i in range(S)) for d in range(D)]
            if hop < len(r):
                q = [sum(x * y for x, y in zip(row, q)) for row in r[hop]]
        out[b] = q
    return out


def example(rng):
    """Two questions of up to 3 words, 4 and 3 memories with keys of up to 2 words and values of one or two; 2 hops."""
    return {"question": np.array([[1, 2, 3], [4, 0, 0]]),
            "keys": np.array([[[1, 5], [2, 6], [7, 0], [4, 3]], [[4, 2], [1, 1], [3, 0], [0, 0]]]),
            "values": np.array([[[6, 0], [5, 1], [2, 0], [3, 0]], [[7, 0], [2, 5], [6, 0], [0, 0]]]),
            "table": 0.7 * rng.normal(size=(8, 5)), "r": 0.5 * rng.normal(size=(1, 5, 5)),
            "mask": np.arange(4) < np.array([4, 3])[:, None, None]}


def labels():
    """Names of the hops and of the example's memories."""
    return ["hop 1", "hop 2"], ["memory 1", "memory 2", "memory 3", "memory 4"]
