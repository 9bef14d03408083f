"""What the embedded English-French grammar is written in: words that remember where they come from, and phrases.

A French word (`Mot`) holds the English `Word`s it translates. So both sides of a phrase are plain lists in whatever
order their language wants, and the alignment needs no bookkeeping: it is read off the finished sentence.
"""

from tinyattn.tasks import english_french_lexicon as lexicon


class Word:
    """An English word. Its identity matters, not its spelling: links point at it."""

    def __init__(self, text):
        self.text = text


class Mot:
    """A French word with the English words it surely and possibly comes from."""

    def __init__(self, text, sure=(), possible=()):
        self.text, self.sure, self.possible = text, list(sure), list(possible)


class Phrase:
    """Both sides of a part of a sentence, and what other words must agree with. Things are not `willing`."""

    def __init__(self, english=(), french=(), gender="m", plural=False, person=3, willing=True):
        self.english, self.french = list(english), list(french)
        self.gender, self.plural, self.person, self.willing = gender, plural, person, willing

    def __add__(self, other):
        """Put `other` behind on both sides; agreement is that of the first."""
        english, french = self.english + other.english, self.french + other.french
        return Phrase(english, french, self.gender, self.plural, self.person, self.willing)


class Draw:
    """The random choices. Earlier entries of a table are drawn somewhat more often (up to 1.5 times as often)."""

    def __init__(self, rng):
        self.random = rng.random

    def chance(self, p):
        return self.random() < p

    def pick(self, options):
        options = options if isinstance(options, list) else list(options)
        return options[int(len(options) * self.random() ** 1.1)]


def fixed(english, french):
    """A phrase that never changes, linked one to one, or all French words to a single English one (because)."""
    words, mots = [Word(text) for text in english.split()], french.split()
    return Phrase(words, [Mot(mot, [words[min(i, len(words) - 1)]]) for i, mot in enumerate(mots)])


def starts_with_vowel(mot):
    """Whether le becomes l' before it: a vowel or a mute h."""
    plain = mot[:1] in "aeiouâàéèêëîïôöœ" if mot else False
    return plain or (mot.startswith("h") and mot not in lexicon.ASPIRATED)


def adjective_phrase(draw, adjective, gender, plural, next_mot=""):
    """An adjective that agrees, at times with `very`; masculine ones before a vowel have a form of their own (bel)."""
    form = 2 * plural + (gender == "f")
    if form == 0 and starts_with_vowel(next_mot):
        form = 4
    word = Word(adjective.english)
    phrase = Phrase([word], [Mot(adjective.french[form], [word])])
    return fixed("very", lexicon.VERY["very"]) + phrase if draw.chance(0.15) else phrase


def name(draw):
    text = draw.pick(lexicon.NAMES)
    phrase = fixed(text, text)
    phrase.gender = lexicon.NAMES[text]
    return phrase


def pronoun(draw, table, options):
    english = draw.pick(options)
    word = Word(english)
    return word, Mot(table[english], [word])
