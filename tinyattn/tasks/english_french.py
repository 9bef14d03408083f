"""English sentences with their French translation and the gold word alignment, from a small grammar of our own.

The words stand in `english_french_lexicon.py`, what a clause is in `english_french_grammar.py`; here clauses are joined
to sentences, and French spelling is put right:

    the small red car is not in the garden .
    la petite voiture rouge n' est pas dans le jardin .

It is built to need attention: adjectives move behind the noun, negation wraps the verb, pronoun objects move before
it, words agree in gender and number, `paul 's dog` turns around, and sentences run from 3 to 50 words. **Each English
sentence has exactly one translation**, so a perfect model reaches BLEU 100. What English leaves open is fixed:
`they` is `ils`, the object `it` is `le`, `friend` is `ami`; `i` and `we` are never subject of an adjective.

Links. Sure: a French word and the English word it translates; `ne` and `pas` both come from `not`, `du` from `of` and
`the`. Possible: what a word owes its form or place to (a determiner's noun, the verb a pronoun object leans on, what
follows an elided word), and helpers such as `does` and `to`. The article of `le chien de paul` has possible links alone.
"""

import sys
from itertools import pairwise

import numpy as np

from tinyattn.tasks import english_french_grammar, english_french_phrase
from tinyattn.tasks import english_french_lexicon as lexicon
from tinyattn.tasks.english_french_grammar import clause
from tinyattn.tasks.english_french_lexicon import LEMMAS
from tinyattn.tasks.english_french_phrase import Draw, Mot, Phrase, fixed, starts_with_vowel
from tinyattn.tasks.kept import kept
from tinyattn.tasks.text import Pair

__all__ = ["LEMMAS", "LONGEST", "generate"]

LONGEST = 50  # English words in a sentence, the full stop included
MANY = 2000   # pairs that are worth keeping
FIRST = 0x100  # of the characters that stand for words and links where pairs are kept


def sentence(draw):
    """Clauses joined until the sentence is as long as was drawn; three in ten have over 25 words."""
    low, high = draw.pick([(3, 9), (7, 14), (12, 23), (20, 31), (30, 44)])
    aim = low + int((high - low) * draw.random())
    time = "past" if draw.chance(0.3) else "present"
    comma, text = fixed(",", ","), Phrase()
    if aim > 5 and draw.chance(0.1):
        english = draw.pick(lexicon.OPENINGS[time])
        text += fixed(english, lexicon.OPENINGS[time][english]) + comma
    elif aim > 12 and draw.chance(0.15):
        text += subordinate(draw, ["when"] if time == "past" else ["when", "if", "while"], 6, time) + comma
    while not text.french or len(text.english) < aim - 3:
        if text.french and text.english[-1].text != ",":
            text += joint(draw, time)
        room = min(aim - len(text.english), 5 + int(12 * draw.random()))
        text += clause(draw, room, time)
    return text + fixed(".", ".")


def joint(draw, time):
    """What stands between two clauses."""
    english = draw.pick(["and", "but", "because", "when", "so"] + (["if", "while"] if time == "present" else []))
    if english in lexicon.SUBORDINATORS:
        return fixed(english, lexicon.SUBORDINATORS[english])
    joint = fixed(english, lexicon.COORDINATORS[english])
    return joint if english == "and" else fixed(",", ",") + joint


def subordinate(draw, options, room, time):
    english = draw.pick(options)
    return fixed(english, lexicon.SUBORDINATORS[english]) + clause(draw, room, time)


_LEANING = {*lexicon.BEFORE_VOWEL, *(first for first, _ in lexicon.CONTRACTIONS)}


def surface(mots):
    """Contract (de le: du) and elide (le homme: l' homme) as French spelling asks.

    A contraction keeps all links. A word whose form hangs on the next one gets possible links to where that is from.
    """
    merged = []
    for i, mot in enumerate(mots):
        following = mots[i + 1].text if i + 1 < len(mots) else ""
        both = (merged[-1].text, mot.text) if merged else None
        if both in lexicon.CONTRACTIONS and not (mot.text == "le" and starts_with_vowel(following)):
            first = merged.pop()
            mot = Mot(lexicon.CONTRACTIONS[both], first.sure + mot.sure, first.possible + mot.possible)
        merged.append(mot)
    for mot, following in pairwise(merged):
        if mot.text in _LEANING:
            mot.possible += following.sure
        if starts_with_vowel(following.text):
            mot.text = lexicon.BEFORE_VOWEL.get(mot.text, mot.text)
        if mot.text == "si" and following.text in ("il", "ils"):
            mot.text = "s'"
    return merged


def as_pair(phrase):
    """The finished sentence as a `Pair`: words become texts, and links between words links between positions."""
    mots = surface(phrase.french)
    place = {id(word): i for i, word in enumerate(phrase.english)}
    sure = frozenset((place[id(word)], j) for j, mot in enumerate(mots) for word in mot.sure)
    possible = frozenset((place[id(word)], j) for j, mot in enumerate(mots) for word in mot.possible)
    return Pair(tuple(word.text for word in phrase.english), tuple(mot.text for mot in mots), sure, sure | possible)


def generate(n, seed=0):
    """`n` pairs of sentences (English, French) with gold links, all English sides different.

    The same n and seed give the same pairs on every machine, and a larger n only appends. Many pairs take seconds, so they
    are kept in the cache folder, see `kept.py`.
    """
    if n < MANY or not isinstance(seed, int):
        return _generate(n, seed)
    made_by = [sys.modules[__name__], english_french_grammar, lexicon, english_french_phrase]
    return _from_table(kept("english-french", made_by, [n, seed], lambda: _table(_generate(n, seed))))


def _generate(n, seed):
    draw, pairs = Draw(np.random.default_rng(seed)), {}
    while len(pairs) < n:
        pair = as_pair(sentence(draw))
        if len(pair.source) <= LONGEST:
            pairs.setdefault(pair.source, pair)
    return list(pairs.values())


def _table(pairs):
    """Pairs as four short texts each, in which a character stands for a word or a link. (Python reads texts faster than
    lists of numbers.)"""
    words, links = {}, {}

    def coded(some, table):
        return "".join(chr(FIRST + table.setdefault(item, len(table))) for item in some)

    return {"pairs": [[coded(pair.source, words), coded(pair.target, words), coded(sorted(pair.sure), links),
                       coded(sorted(pair.possible), links)] for pair in pairs],
            "words": list(words), "links": list(links)}


def _from_table(table):
    word = {chr(FIRST + i): word for i, word in enumerate(table["words"])}.__getitem__
    link = {chr(FIRST + i): tuple(link) for i, link in enumerate(table["links"])}.__getitem__
    return [Pair(tuple(map(word, source)), tuple(map(word, target)), frozenset(map(link, sure)), frozenset(map(link, possible)))
            for source, target, sure, possible in table["pairs"]]
