"""Aspect and opinion terms of reviews: the [battery life]a is [great]o. Samples from the generator or from files.

    load()                                  reviews of five domains, generated (`reviews.py`)
    load(["Restaurants_Train.xml"])     SemEval 2014 (aspectTerm term from to), 2015 and 2016 (Opinion target from to)
    load(["train.tsv"])                 a word a line: word TAB B, I or O (aspect) TAB B, I or O (opinion), or word TAB
                                        one of O, B-ASP, I-ASP, B-OPN, I-OPN; a blank line ends a sentence
    load(["product_reviews_1.zip"])     Hu and Liu's format, `battery life[+2]##the sentence`: a .txt, or a .zip of them
    load([..., "opinion_lexicon.zip"])  with opinion words as weak labels: positive-words.txt and negative-words.txt

Files are told apart by what is in them. Terms are whole words: spans (start, end) of the words that `tokenize` gives.

- BIO tags become spans as `spans_of` says.
- A term of XML that ends within a word takes in the whole word. Of two terms that overlap the longer one stays.
- Hu and Liu name an aspect by sentence without saying where it is. It is looked for by its words, without regard to
  hyphens, to spaces between its parts and to the endings that `stem` takes off: the longest term first, all places
  where it is, none of them within another term. Terms marked [u] or [p] are not in the sentence and not looked for.
- Each word of a lexicon is an opinion term by itself, unless it is within an aspect term.
- Without a lexicon and without opinion tags a sample's `opinions` is None: nothing to learn or to measure.

Whatever is left out is counted in the notes; whatever is not as expected is an InputError with file and line.
"""
import lzma
import re
import unicodedata
import zipfile
import zlib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from xml.etree.ElementTree import TreeBuilder
from xml.parsers import expat

from tinyattn.errors import InputError
from tinyattn.tasks import reviews
from tinyattn.tasks.corpus import Corpus, divide
from tinyattn.tasks.reviews import Review
from tinyattn.tasks.spans import TAGS, spans_of
from tinyattn.tasks.text import as_paths, read_bytes, read_lines, tokenize

GENERATED = (3_000, 300, 600)   # sentences for training, validation and test
LARGEST = 64 << 20              # bytes that the files within a .zip may have together
_TAGGED = re.compile(r"\s*[^\t\r\n]+\t[OBI](-\w+)?[ ]*(\t|\r|\n|$)", re.IGNORECASE)  # how a file of tags begins


def load(paths=(), seed=0, max_length=80, unmarked=False, sizes=GENERATED):
    """A Corpus of `Review`s; files are divided by sentence, a tenth each to validation and test. See `read`."""
    if not paths:
        made, notes = reviews.generate(sizes, seed), [f"built-in reviews: {sum(sizes):,} sentences of seed {seed}"]
        parts = [[s for s in part if len(s.words) <= max_length] for part in made]
        if not all(parts):
            raise InputError(f"built-in reviews: expected sentences of at most {max_length} words in training, "
                             "validation and test, found none; allow longer ones")
        left_out = sum(map(len, made)) - sum(map(len, parts))
        notes += [f"{left_out:,} left out: more than {max_length} words"] * bool(left_out)
        return Corpus(*parts, notes)
    samples, notes = read(paths, max_length, unmarked)
    corpus = divide(samples, seed, _names(as_paths(paths)), key=lambda sample: sample.words)
    notes.append(f"divided by sentence: {len(corpus.train):,} train, {len(corpus.validation):,} validation, "
                 f"{len(corpus.test):,} test")
    corpus.notes = notes
    return corpus


def read(paths, max_length=80, unmarked=False):
    """All usable sentences of some files, and notes: (list of Review, list of lines).

    max_length   longer sentences are left out
    unmarked     also sentences of Hu and Liu's files for which no aspect is named (more than half of them)
    """
    paths = as_paths(paths)
    samples, lexicon, counted = [], set(), Counter()
    for path in paths:
        for where, lines in _texts(path):
            kind = _kind(where, lines)
            if kind == "lexicon":
                lexicon |= {line.strip().lower() for line in lines if line.strip() and not line.startswith(";")}
            elif kind == "product reviews":
                samples += _product_reviews(lines, counted, unmarked)
            else:
                samples += _xml(where, lines, counted) if kind == "XML" else _bio(where, lines)
    if not samples:
        raise InputError(f"{_names(paths)}: expected sentences with marked aspects, found none{_list(counted)}")
    if lexicon:
        samples = [s if s.opinions is not None else replace(s, opinions=_words_in(s, lexicon)) for s in samples]
    kept = [replace(s, kind=reviews.by_length(len(s.words))) for s in samples if len(s.words) <= max_length]
    counted[f"left out: more than {max_length} words"] = len(samples) - len(kept)
    if not any(s.aspects for s in kept):
        raise InputError(f"{_names(paths)}: expected at least one marked aspect, found none in {len(kept):,} sentences"
                         f"{_list(counted)}")
    marked = sum(bool(s.aspects) for s in kept)
    opinions = f"{sum(len(s.opinions or ()) for s in kept):,} opinion terms"
    if all(s.opinions is None for s in kept):
        opinions = "no opinion labels"
    elif lexicon:
        opinions += f" by a lexicon of {len(lexicon):,} words"
    return kept, [f"{_names(paths)}: {len(kept):,} sentences, {marked:,} with aspects to be found in them; "
                  f"{sum(len(s.aspects) for s in kept):,} aspect terms, {opinions}",
                  *(f"{n:,} {what}" for what, n in counted.items() if n)]


def parse_input(text):
    """The words of a sentence that a user typed. InputError if there are none."""
    words = tuple(tokenize(text))
    if not words:
        raise InputError(f"expected a sentence of a review, got {text!r}")
    return words


def _names(paths):
    return " and ".join(map(str, paths))


def _list(counted):
    some = [f"{n:,} {what}" for what, n in counted.items() if n]
    return f" ({'; '.join(some)})" if some else ""


# ----------------------------------------------------------------------------------------------------------- files

def _texts(path):
    """[(what to call it, lines)] : a text file, or each text in a .zip. XML comes as its bytes."""
    data = read_bytes(path)
    if data[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        return _unpacked(path)
    if _TAGGED.match(data[:10_000].decode("latin-1")):
        return [(str(path), read_lines(path))]
    start = data[:200].decode("utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig", "ignore")
    if start.lstrip().startswith("<"):
        return [(str(path), data)]
    if b"##" in data or data.startswith(b";") or path.name.endswith("-words.txt"):
        return [(str(path), _decoded(path, data))]
    return [(str(path), read_lines(path))]


def _unpacked(path):
    try:
        with zipfile.ZipFile(path) as box:
            members = [m for m in box.infolist() if m.filename.lower().endswith(".txt")
                       and not Path(m.filename).name.lower().startswith((".", "readme"))]
            size = 0
            for m in members:
                size += m.file_size
                if size > LARGEST:
                    raise InputError(f"{path}: expected texts of at most {LARGEST >> 20} MB together, with "
                                     f"{m.filename} it is {size >> 20}")
            texts = [(f"{path}: {m.filename}", _decoded(f"{path}: {m.filename}", box.read(m))) for m in members]
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, OSError, EOFError, RuntimeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: expected a .zip of text files, which cannot be read ({error})") from None
    if not texts:
        raise InputError(f"{path}: expected a .zip of text files, found no .txt in it")
    return texts


def _decoded(where, data):
    """Lines of UTF-8 or, where it is not that, of Latin-1, which these two collections are in."""
    if b"\0" in data:
        raise InputError(f"{where}, line {data[:data.find(0)].count(10) + 1}: expected text, found a NUL byte")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def _kind(where, lines):
    if isinstance(lines, bytes):
        return "XML"
    first = next((line for line in lines if line.strip()), "")
    if _TAGGED.match(first):
        return "BIO"
    if any("##" in line for line in lines):
        return "product reviews"
    if where.endswith("-words.txt") or first.startswith(";"):
        return "lexicon"
    return "BIO"


# ------------------------------------------------------------------------------------------------------------- BIO

def _bio(where, lines):
    """word TAB tag, or word TAB aspect tag TAB opinion tag. Without any opinion tag in one column, none are known."""
    samples, rows, columns = [], [], None
    for number, line in enumerate([*lines, ""], 1):
        if line.strip():
            cells = line.rstrip().split("\t")
            columns = columns or len(cells)
            if len(cells) not in (2, 3) or len(cells) != columns or not cells[0].strip():
                raise InputError(f"{where}, line {number}: expected word<TAB>tag or word<TAB>tag<TAB>tag, the same in "
                                 f"all lines, found {line[:40]!r}")
            rows.append((cells[0].strip().lower(), *_two_tags(f"{where}, line {number}", cells[1:])))
        elif rows:
            words, *tags = zip(*rows)
            samples.append(Review(words, *map(spans_of, tags)))
            rows = []
    if columns == 2 and not any(s.opinions for s in samples):
        samples = [replace(s, opinions=None) for s in samples]
    return samples


def _two_tags(where, cells):
    """(aspect tag, opinion tag) as numbers, from one cell or two."""
    found, allowed = [0, 0], (("ASP", "OPN"),) if len(cells) == 1 else (("ASP",), ("OPN",))
    for i, (cell, kinds) in enumerate(zip(cells, allowed)):
        tag, _, kind = cell.strip().upper().partition("-")
        if len(tag) != 1 or tag not in TAGS or kind not in ("", *kinds) or (tag == "O" and kind):
            expected = ", ".join(["O", "B", "I", *(f"{t}-{k}" for k in kinds for t in "BI")])
            raise InputError(f"{where}: expected a tag of {expected}, found {cell[:20]!r}")
        found[i + (kind == "OPN" and len(cells) == 1)] = TAGS.index(tag)
    return found


# ------------------------------------------------------------------------------------------------------------- XML

def _xml(where, data, counted):
    """The sentences of a SemEval file, both layouts. There are no opinion terms in it."""
    root, lines = _tree(where, data)
    samples = []
    for sentence in root.iter("sentence"):
        text = sentence.findtext("text") or ""
        if sentence.get("OutOfScope", "").upper() == "TRUE" or not text.strip():
            counted["left out: empty, or marked as out of scope"] += 1
            continue
        places = set()
        for mark in [*sentence.iter("aspectTerm"), *sentence.iter("Opinion")]:
            term = mark.get("term", mark.get("target"))
            if term is None:
                raise InputError(f"{where}, line {lines[mark]}: expected the attribute term or target, found "
                                 f"{str(mark.attrib)[:60]}")
            if term == "NULL":
                counted["opinions without a target in the sentence"] += 1
                continue
            start, end = (_offset(f"{where}, line {lines[mark]}", mark, name, len(text)) for name in ("from", "to"))
            if text[start:end].split() != term.split():
                counted["left out: aspect terms that are not at their place in the text"] += 1
                continue
            places.add((start, end))
        samples.append(_with_spans(text, places, counted))
    if not samples:
        raise InputError(f"{where}: expected <sentence> elements with a <text>, found none under <{root.tag}>")
    return samples


def _tree(where, data):
    """(root element, {element: its line}). Document types and entities, which can be made to grow or to read other
    files, are refused before anything is made of them."""
    builder, lines, parser = TreeBuilder(), {}, expat.ParserCreate()

    def start(tag, attributes):
        lines[builder.start(tag, attributes)] = parser.CurrentLineNumber

    def refuse(name, *rest):
        raise InputError(f"{where}, line {parser.CurrentLineNumber}: expected plain elements, found a document type or "
                         f"entity declaration ({name}), which is not read")

    parser.StartElementHandler, parser.EndElementHandler = start, builder.end
    parser.CharacterDataHandler, parser.buffer_text = builder.data, True
    parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = refuse
    try:
        parser.Parse(data, True)
        return builder.close(), lines
    except (expat.ExpatError, ValueError, LookupError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{where}, line {parser.CurrentLineNumber}: expected XML, cannot read it ({error})") from None


def _offset(where, mark, name, length):
    text = mark.get(name, "")
    if not re.fullmatch(r"\d{1,9}", text, re.ASCII) or int(text) > length:
        raise InputError(f"{where}: expected {name} to be a number of characters from 0 to {length}, found {text!r}")
    return int(text)


def _with_spans(text, places, counted):
    """The Review of a text with terms from character to character."""
    words = words_at(text)
    spans = {tuple(i for i, (_, a, b) in enumerate(words) if a < end and start < b) for start, end in places}
    taken, kept = set(), []
    for inside in sorted(spans, key=lambda inside: (-len(inside), inside)):
        if not inside or taken & set(inside):
            counted["left out: aspect terms that overlap a longer one, or are empty"] += 1
            continue
        taken |= set(inside)
        kept.append((inside[0], inside[-1] + 1))
    return Review(tuple(word for word, _, _ in words), tuple(sorted(kept)), None)


def words_at(text):
    """[(word, start, end)] : the words of `tokenize`, each with its place among the characters of the text.

    Where composing characters (NFC) makes a chunk shorter than it was, places within this chunk are approximate.
    """
    found = []
    for chunk in re.finditer(r"\S+", text):
        at, whole = chunk.start(), unicodedata.normalize("NFC", chunk.group())
        for word in tokenize(whole):
            found.append((word, at, min(at + len(word), chunk.end())))
            at = found[-1][2]
    return found


# --------------------------------------------------------------------------------------------- Hu and Liu's reviews

# a term and its marks, of which a bracket may be amiss: `size[+2][u]`, `look{+1]`
_ITEM = re.compile(r"([^\[\]{}(),#]+)((?:\s*[\[{(][^\[\]{}(),#]*[\]})]*)*)")


def _product_reviews(lines, counted, unmarked):
    samples = []
    for line in lines:
        head, split, sentence = line.partition("##")
        words = tuple(tokenize(sentence))
        if not split:
            if line.strip() and not line.startswith(("*", "[t]")):
                counted["lines left out: no ## in them"] += 1
        elif not words:
            counted["lines left out: no sentence in them"] += 1
        elif head.strip() or unmarked:
            samples.append(Review(words, _marked_aspects(head, words, counted), None))
        else:
            counted["sentences left out: no aspect is named for them"] += 1
    return samples


def _marked_aspects(head, words, counted):
    """The spans of the terms named in a head such as `picture[+3], size[+2][u]`."""
    terms = set()
    counted["sentences for which an aspect and a strength are given"] += bool(re.search(r"[\[{][+-]\d", head))
    for text, marks in _ITEM.findall(head):
        term = "".join(stem(part) for part in _parts(re.sub(r"[+-]\d\s*$", "", text)))
        if term and re.search(r"[\[{(]\s*[up]\b", marks):
            counted["terms marked as not in the sentence"] += 1
        elif term:
            terms.add(term)
    parts = [(stem(part), i) for i, word in enumerate(words) for part in _parts(word)]
    taken, spans = set(), []
    for term in sorted(terms, key=lambda term: (-len(term), term)):
        places = [place for place in _places(term, parts) if not taken & set(range(*place))]
        counted["terms found in their sentence"] += bool(places)
        counted["terms not found in their sentence"] += not places
        spans += places
        taken |= {i for place in places for i in range(*place)}
    return tuple(sorted(spans))


def _parts(text):
    """The words of a text, cut at hyphens, without marks."""
    return [part for word in tokenize(text) for part in word.split("-") if any(c.isalnum() for c in part)]


def _places(term, parts):
    """Where the parts, put together, spell the term: [(first word, last word + 1)], without overlap."""
    found, i = [], 0
    while i < len(parts):
        joined, j = "", i
        while j < len(parts) and len(joined) < len(term) and term.startswith(joined):
            joined, j = joined + parts[j][0], j + 1
        if joined == term:
            found.append((parts[i][1], parts[j - 1][1] + 1))
            i = j
        else:
            i += 1
    return [place for n, place in enumerate(found) if n == 0 or place[0] >= found[n - 1][1]]


def stem(word):
    """A word without its plural or verbal ending, roughly: pictures as picture, batteries as battery."""
    if len(word) > 3 and word.endswith("ies"):
        word = word[:-1]
    elif len(word) > 3 and word.endswith(("ses", "xes", "zes", "ches", "shes")):
        word = word[:-2]
    elif len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    if word.endswith("ie"):
        word = word[:-2] + "y"
    for ending in ("ing", "ed"):
        rest = word.removesuffix(ending)
        if rest != word and len(rest) > 1 and re.search("[aeiouy]", rest) and not word.endswith("eed"):
            word = rest[:-1] if rest[-1] == rest[-2] and rest[-1] not in "lsz" else rest
            break
    return word[:-1] if len(word) > 2 and word.endswith("e") else word


def _words_in(sample, lexicon):
    inside = {i for span in sample.aspects for i in range(*span)}
    return tuple((i, i + 1) for i, word in enumerate(sample.words) if word in lexicon and i not in inside)
