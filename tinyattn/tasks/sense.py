"""Word sense: which "bank" is it? Sentences with one ambiguous word each, made by rule or read from a file.

The generator (no file needed) makes sentences from which a bag of words learns next to nothing. Most hold nouns of two
senses,

    he read about the river at noon , and then she saw the bank beside the street        bank.money
    he read about the street at noon , and then she saw the bank beside the river        bank.river

and come in such pairs: the same words, with the two nouns changed round, and opposite senses. Which noun counts is told
by the build of the sentence: it is the one in the clause of the ambiguous word, and as a rule the nearer one. Both
sentences of a pair go into the same part of the data, so whoever sees only which words there are has, in each pair, one
right for one wrong. A tenth of the test are simple sentences with one noun; the survey's own two (Hu 2018) are among
them: "I arrived at the bank after crossing the street", "... the river".

For each word, a quarter of the nouns of each sense are kept from training and stand beside it in the test alone
(`Sample.unseen`); in training they stand beside other words of their field.

Own data: `read_samples`. Real text without labels: `pseudo_words`.
"""
import functools
import re
from collections import Counter
from dataclasses import dataclass

import numpy as np

from tinyattn.errors import InputError

from . import sense_lexicon as lexicon
from .corpus import Corpus, divide
from .text import json_line, text_lines, tokenize

SIZES = {"train": (3000, 2000), "validation": (150, 40), "test": (450, 98)}  # pairs, simple sentences
FORMS = ("near after", "near before") * 7 + ("both before", "both after")    # of the pairs, in turn
PERIOD = 4                                                                   # one noun in so many is kept for the test
WORDS = tuple(sorted(lexicon.SENSES))
SURVEY = (("i arrived at the bank after crossing the street", "bank.money", "street"),
          ("i arrived at the bank after crossing the river", "bank.river", "river"))


@dataclass(frozen=True)
class Sample:
    """A sentence (lower case words), the place `at` of its ambiguous word, that word as senses name it, and its sense.

    gold    places that tell the sense, where known
    form    the build of the sentence, one of `lexicon.FRAMES`; "" for a file's
    pair    a number that both sentences of a pair have, within one part of the data; -1 for none
    unseen  is the noun that counts one that never stood beside this word in training?
    """
    words: tuple
    at: int
    word: str
    sense: str
    gold: tuple = ()
    form: str = ""
    pair: int = -1
    unseen: bool = False


# ------------------------------------------------------------------------------------------------------ generator

@functools.cache
def nouns(word, field, kept):
    """The nouns of a field that are kept from standing beside `word` in training, or (kept=False) the others."""
    k = sorted(w for w, senses in lexicon.SENSES.items() if field in senses.values()).index(word)
    return tuple(noun for c, noun in enumerate(lexicon.FIELDS[field]) if ((c + k) % PERIOD == 0) == kept)


def generate(seed=1, sizes=None):
    """A Corpus of made-up sentences, the same for the same seed. sizes: {part: (pairs, simple sentences)}."""
    rng, seen, parts = np.random.default_rng(seed), {tuple(text.split()) for text, _, _ in SURVEY}, {}
    for part, (pairs, simple) in (sizes or SIZES).items():
        held = 0.0 if part == "train" else 0.5  # how often a noun is one of those kept from training
        found = [_pair(rng, n, held, seen) for n in range(pairs)]
        parts[part] = [s for both in found for s in both] + [_simple(rng, held, seen) for _ in range(simple)]
        if part == "test":
            parts[part] += [_survey(*one, pair=pairs) for one in SURVEY]
    notes = [f"made up, {len(lexicon.SENSES)} ambiguous words: {len(parts['train']):,} sentences to train on, "
             f"{len(parts['validation']):,} for validation, {len(parts['test']):,} for the test"]
    return Corpus(parts["train"], parts["validation"], parts["test"], notes)


def _survey(text, sense, noun, pair):
    words, word = tuple(text.split()), sense.split(".")[0]
    kept = noun in nouns(word, lexicon.SENSES[word][sense.split(".")[1]], True)
    return Sample(words, words.index(word), word, sense, (words.index(noun),), "simple", pair, kept)


def _pair(rng, number, held, seen):
    """Two sentences of the same words, the nouns changed round."""
    form = FORMS[number % len(FORMS)]
    while True:
        word, senses = _word(rng)
        i, j = rng.permutation(len(senses))[:2]
        near, far = (_noun(rng, word, senses[k][1], held) for k in (i, j))
        parts = _parts(rng, form)
        both = [_sample(parts, word, f"{word}.{senses[k][0]}", form, number, n, f, senses[k][1])
                for k, n, f in ((i, near, far), (j, far, near))]
        if not seen & {s.words for s in both}:
            seen |= {s.words for s in both}
            return both


def _simple(rng, held, seen):
    """A sentence with one noun that counts and none that does not."""
    while True:
        word, senses = _word(rng)
        sense, field = senses[rng.integers(len(senses))]
        near = _noun(rng, word, field, held)
        s = _sample(_parts(rng, "simple"), word, f"{word}.{sense}", "simple", -1, near, "", field)
        if s.words not in seen:
            seen.add(s.words)
            return s


def _word(rng):
    word = WORDS[rng.integers(len(WORDS))]
    return word, sorted(lexicon.SENSES[word].items())


def _noun(rng, word, field, held):
    some = nouns(word, field, bool(rng.random() < held))
    return some[rng.integers(len(some))]


def _parts(rng, form):
    """A frame of this form, and what fills it beside the ambiguous word and the nouns, of a length that is allowed."""
    def one(words):
        return words[rng.integers(len(words))]
    while True:
        p, q = (lexicon.WHO[i] for i in rng.permutation(len(lexicon.WHO))[:2])
        frame = one(lexicon.FRAMES[form])
        fill = {"o": one(lexicon.OPENING), "p": p, "q": q, "v": one(lexicon.DID), "d": one(lexicon.FAR),
                "a": one(lexicon.TIED), "t": one(lexicon.WHEN), "c": one(lexicon.REACHED)}
        n = len(frame.format(w="w", n="n", f="f", **fill).replace(",", " ").split())
        if lexicon.SHORTEST <= n <= lexicon.LONGEST:
            return frame, fill


def _sample(parts, word, sense, form, pair, near, far, field):
    frame, fill = parts
    if near in lexicon.CROSSED:
        fill = {**fill, "c": "crossing"}
    words = tuple(frame.format(w=word, n=near, f=far, **fill).split())
    return Sample(words, words.index(word), word, sense, (words.index(near),), form, pair,
                  near in nouns(word, field, True))


# ---------------------------------------------------------------------------------------------------------- files

_MARK = re.compile(r"\*([^*\s]+)\*")
EXPECTED = "expected word.sense, a tab, and a sentence with the word between asterisks (bank.river TAB the *bank* ...)"


def read_samples(paths, max_length=60):
    """(samples, notes) of files with one sentence a line, .gz or not, in either form; which, its first line tells.

        bank.river<TAB>They fished from the *bank* of the stream.
        {"word": "bank", "sense": "bank.river", "text": "They fished from the *bank* of the stream."}

    A sense is named word.sense; the marked word may be inflected (*banks*). In JSON lines the asterisks may be missing
    where the text holds the word just once, and the sense may go without "word.". A sentence of more than `max_length`
    words is cut to so many around the marked one. InputError, with file and line, for anything else.
    """
    samples, blank, cut = [], 0, 0
    for path in paths:
        lines = text_lines(path)
        read = _from_json if next((x for x in lines if x.strip()), "").lstrip().startswith("{") else _from_tab
        for number, line in enumerate(lines, 1):
            if not line.strip():
                blank += 1
                continue
            sample = read(line, f"{path}, line {number}")
            cut += len(sample.words) > max_length
            samples.append(crop(sample, max_length))
    if not samples:
        raise InputError(f"{', '.join(map(str, paths))}: {EXPECTED}; found blank lines only")
    counts = [f"{len(samples):,} sentences", f"{len({s.word for s in samples}):,} ambiguous words",
              f"{len({s.sense for s in samples}):,} senses"]
    notes = [f"read {', '.join(counts)} from {', '.join(map(str, paths))}"]
    notes += [f"left out {blank:,} blank lines"] * bool(blank)
    return samples, notes + [f"cut {cut:,} sentences to {max_length} words around the ambiguous one"] * bool(cut)


def _from_tab(line, where):
    sense, tab, text = line.partition("\t")
    if not tab or not sense.strip() or "\t" in text:
        raise InputError(f"{where}: {EXPECTED}; found {line.count(chr(9)) + 1} columns in {line[:60]!r}")
    return _labelled(sense.strip(), text, where)


def _from_json(line, where):
    expected, keys = '{"word": ..., "sense": ..., "text": ...}, all of them texts', ("word", "sense", "text")
    given = json_line(line, where, expected)
    if not all(isinstance(given.get(k), str) for k in keys):
        raise InputError(f"{where}: expected {expected}, found {line[:60]!r}")
    word, sense, text = (given[k].strip() for k in keys)
    if "." not in sense:
        sense = f"{word}.{sense}"
    if sense.rpartition(".")[0].lower() != word.lower():
        raise InputError(f"{where}: expected a sense of {word!r}, named word.sense, found {sense!r}")
    if not _MARK.search(text):
        words = tuple(tokenize(text))
        if words.count(word.lower()) != 1:
            raise InputError(f"{where}: expected *{word}* between asterisks in the text, or once without; found it "
                             f"{words.count(word.lower())} times in {text[:60]!r}")
        return _named(sense, words, words.index(word.lower()), where)
    return _labelled(sense, text, where)


def _labelled(sense, text, where):
    words, places = parse(text, where)
    if len(places) != 1:
        raise InputError(f"{where}: expected one word between asterisks, found {len(places)} in {text[:60]!r}")
    return _named(sense, words, places[0], where)


def _named(sense, words, at, where):
    word, _, kind = sense.rpartition(".")
    if not word or not kind:
        raise InputError(f"{where}: expected a sense named word.sense, such as bank.river, found {sense!r}")
    return Sample(words, at, word.lower(), f"{word.lower()}.{kind}")


def parse(text, where="sense"):
    """(words, places of those between asterisks) of a text. InputError, beginning with `where`, for a marked piece that
    is more than one word, and for a text without words."""
    words, places, end = [], [], 0
    for found in _MARK.finditer(text):
        words += tokenize(text[end:found.start()])
        inside = tokenize(found.group(1))
        if len(inside) != 1:
            raise InputError(f"{where}: expected one word between asterisks, found {found.group()!r}")
        places.append(len(words))
        words += inside
        end = found.end()
    words += tokenize(text[end:])
    if not words:
        raise InputError(f"{where}: expected a sentence, found no word in it")
    return tuple(words), places


def crop(sample, most):
    """The sample with at most so many words, the ambiguous one in their middle where the sentence goes on both ways."""
    n = len(sample.words)
    if n <= most:
        return sample
    start = min(max(0, sample.at - most // 2), n - most)
    return Sample(sample.words[start:start + most], sample.at - start, sample.word, sample.sense)


# ----------------------------------------------------------------------------------------------------- pseudo-words

_DETERMINERS = {"the", "a", "an", "his", "her", "their", "its", "this", "that", "my", "our", "your", "of"}


def parse_pseudo(text):
    """"door/window,cat/dog" to [("door", "window"), ("cat", "dog")]; "auto" stays. InputError for anything else."""
    if text.strip().lower() == "auto":
        return "auto"
    merged = [tuple(word.strip().lower() for word in group.split("/")) for group in text.split(",")]
    words = [word for group in merged for word in group]
    if any(len(group) < 2 for group in merged) or len(set(words)) != len(words) or \
            not all(tokenize(word) == [word] and "." not in word for word in words):
        raise InputError("pseudo: expected words to merge, each once, such as door/window,cat/dog, or auto; got "
                         f"{text!r}")
    return merged


def pseudo_words(lines, merged="auto", max_length=60):
    """Labelled data from any text: (groups, notes). Words are merged, "window" and "door" into "door-window", and the
    word that stood there is its sense, door-window.door (Gale, Church and Yarowsky 1992; Schuetze 1992).

    lines   of text; blank lines part paragraphs, and . ! ? end sentences
    merged  [("door", "window"), ...], or "auto": frequent words of like frequency (`choose`)
    A group is the tuple of all samples of one sentence, which must not be torn apart.
    """
    sentences = list(_sentences(lines))
    counts = Counter(word for sentence in sentences for word in sentence)
    merged = choose(sentences) if merged == "auto" else merged
    into = {word: "-".join(sorted(group)) for group in merged for word in group}
    groups, cut = {}, 0
    for sentence in sentences:
        words = tuple(into.get(word, word) for word in sentence)
        found = [Sample(words, at, into[w], f"{into[w]}.{w}") for at, w in enumerate(sentence) if w in into]
        if found:
            cut += len(found) * (len(words) > max_length)
            groups.setdefault(words, []).extend(crop(s, max_length) for s in found)
    listed = ", ".join("/".join(f"{word} ({counts[word]})" for word in group) for group in merged)
    notes = [f"{sum(map(len, groups.values())):,} samples in {len(groups):,} sentences of {len(sentences):,}, for the "
             f"pseudo-words {listed}"]
    notes += [f"cut {cut:,} sentences to {max_length} words around the ambiguous one"] * bool(cut)
    return [tuple(group) for group in groups.values()], notes


def choose(sentences, most=10, least=20):
    """Pairs of words of like frequency, the frequent ones first: of at least four letters, seen `least` times, a third
    of them behind an article or the like, which most nouns are, and some adjectives. InputError where there are none.
    """
    counts = Counter(word for sentence in sentences for word in sentence)
    behind = Counter(b for sentence in sentences for a, b in zip(sentence, sentence[1:]) if a in _DETERMINERS)
    found = sorted((word for word, n in counts.items() if n >= least and len(word) >= 4 and word.isalpha()
                    and 3 * behind[word] >= n), key=lambda word: (-counts[word], word))
    pairs = list(zip(found[::2], found[1::2]))[:most]
    if not pairs:
        raise InputError(f"pseudo: expected a text with at least two words that come {least} times or more, often "
                         f"behind an article, found {len(found)} of them in {len(sentences):,} sentences")
    return pairs


def all_lines(paths):
    """The lines of several text files, a blank one after each."""
    return [line for path in paths for line in [*text_lines(path), ""]]


def _sentences(lines):
    paragraph = []
    for line in [*lines, ""]:
        if line.strip():
            paragraph.append(line.replace("<unk>", " "))
            continue
        sentence = []
        for word in tokenize(" ".join(paragraph)):
            sentence.append(word)
            if word in (".", "!", "?"):
                yield tuple(sentence)
                sentence = []
        if sentence:
            yield tuple(sentence)
        paragraph = []


# ----------------------------------------------------------------------------------------------------------- parts

def load(paths=(), pseudo="", seed=1, max_length=60):
    """A Corpus: of the generator without paths; of labelled files; with `pseudo`, of any text (`parse_pseudo`).

    Validation and test samples whose sense is not in training are left out, and counted in the notes. InputError where
    no word has two senses in training.
    """
    if not paths:
        if pseudo:
            raise InputError("sense: pseudo-words are made of a text; expected --data FILE.txt beside --pseudo")
        return generate(seed)
    where = ", ".join(map(str, paths))
    if pseudo:
        merged = parse_pseudo(pseudo)
        groups, notes = pseudo_words(all_lines(paths), merged, max_length)
        found = {s.sense.rpartition(".")[2] for group in groups for s in group}
        missing = [word for group in merged for word in group if word not in found] if merged != "auto" else []
        if missing:
            raise InputError(f"{where}: expected the words of --pseudo in the text, found no {', '.join(missing)}")
        parts = divide(groups, seed, where)
        corpus = Corpus(*([s for group in part for s in group] for part in (parts.train, parts.validation, parts.test)))
    else:
        samples, notes = read_samples(paths, max_length)
        corpus = divide(samples, seed, where, key=lambda s: s.words)
    known = inventory(corpus.train)
    if not any(len(senses) > 1 for senses in known.values()):
        raise InputError(f"{where}: expected a word with at least two senses among the samples to train on, found "
                         f"{len(known)} words with one sense each")
    corpus.validation, few = _known(corpus.validation, known)
    corpus.test, more = _known(corpus.test, known)
    if not corpus.validation or not corpus.test:
        raise InputError(f"{where}: expected validation and test samples of senses that are in training too, found "
                         "none")
    corpus.notes = notes + [f"left out {few + more:,} validation and test samples of senses that are not in "
                            "training"] * bool(few + more)
    return corpus


def inventory(samples):
    """{word: its senses}, both in alphabetic order."""
    return {word: sorted({s.sense for s in samples if s.word == word}) for word in sorted({s.word for s in samples})}


def _known(samples, known):
    kept = [s for s in samples if s.sense in known.get(s.word, ())]
    return kept, len(samples) - len(kept)
