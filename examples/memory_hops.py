"""Two hops through a story: what the first one finds says what the second one looks for (Hu 2018, figure 3).

    python examples/memory_hops.py

The story has four sentences, the question is: where is the apple? No sentence says it. Hop 0 must land on "Sam drops
the apple", and only what is read there, that Sam had it, makes hop 1 look for where Sam was: "Sam walks into the
bedroom".

A key counts the words of a sentence and tells its time, a value counts words too. Nothing is learnt here: the maps are
written by hand, so that one can read what a trained memory network has to find.

The query is updated in both ways that the survey has: by a sum (its eq. 29), and by putting what was read beside the
question (its figure 3). There the second hop needs a map of the keys of its own, as wide as the longer query; with the
same map for both halves, as here, the two ways are one.
"""
import numpy as np

from tinyattn import Tensor
from tinyattn.attention import find

STORY = ["Sam walks into the kitchen", "Sam picks up the apple", "Sam walks into the bedroom", "Sam drops the apple"]
QUESTION = "where is the apple"
WORDS = sorted({word for sentence in [*STORY, QUESTION] for word in sentence.lower().split()})
TIME = len(WORDS)      # the place of the time in a key, after the words
LANDS = [3, 2]         # the sentence that each hop must land on

# what is worth looking for in a key, beside "the later the better"
ASKED = {"apple": 4.0}
# what reading a word makes one look for: the apple is found, its holder had it where he walked last
LEADS_TO = {"apple": {"apple": -8.0, "walks": 4.0}}
LATER = 2.0


def counts(sentence):
    """How often each word stands in a sentence, (words,)."""
    return np.array([sentence.lower().split().count(word) for word in WORDS], float)


def memories():
    """Keys (S, words + 1) with the time 1, 2, 3, 4, and values (S, words)."""
    values = np.array([counts(sentence) for sentence in STORY])
    return np.column_stack([values, np.arange(1, len(STORY) + 1)]), values


def query():
    """What the question looks for, (words + 1,)."""
    q = np.zeros(len(WORDS) + 1)
    for word in QUESTION.split():
        q[WORDS.index(word)] = ASKED.get(word, 0.0)
    q[TIME] = LATER
    return q


def lead():
    """phi_v (words + 1, words): a column says what its word leads to."""
    phi = np.zeros((len(WORDS) + 1, len(WORDS)))
    for read, sought in LEADS_TO.items():
        for word, much in sought.items():
            phi[WORDS.index(word), WORDS.index(read)] = much
    return phi


def hops(update):
    """The weights of both hops, (2, S)."""
    keys, values = memories()
    phi_k = None
    if update == "concat":  # the second query is [question; what was read]: each half meets the keys
        same = np.eye(len(WORDS) + 1)
        phi_k = [None, Tensor(np.vstack([same, same]))]
    memory = find("memory")
    _, weights = memory(Tensor(query()[None, None]), Tensor(keys[None]), Tensor(values[None]), phi_k=phi_k,
                        phi_v=Tensor(lead()), hops=2, update=update, return_weights=True)  # (1, 2, 1, S)
    return weights.numpy()[0, :, 0]


def main():
    print(f"Question: {QUESTION}?")
    for update in ("sum", "concat"):
        weights = hops(update)
        print(f"\n{f'update {update!r}':<30}hop 0   hop 1")
        for sentence, (first, second) in zip(STORY, weights.T, strict=True):
            print(f"  {sentence:<28}{first:.3f}   {second:.3f}")
        for hop, place in enumerate(LANDS):
            assert weights[hop].argmax() == place and weights[hop, place] > 0.9, (update, hop, weights[hop])
    print(f"\nHop 0 lands on {STORY[LANDS[0]]!r}, hop 1 on {STORY[LANDS[1]]!r}.")


if __name__ == "__main__":
    main()
