"""From a text file to padded arrays of word numbers: lines, words, vocabulary, batches."""

import gzip
import io
import json
import math
import re
import stat
import unicodedata
import zlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tinyattn.errors import InputError


@dataclass(frozen=True)
class Pair:
    """A sentence and its translation as words; where known, the gold links (source index, target index) from 0.

    `sure` links are beyond doubt; `possible` ones are acceptable too, and take in the sure ones.
    """

    source: tuple[str, ...]
    target: tuple[str, ...]
    sure: frozenset | None = None
    possible: frozenset | None = None


# ---------------------------------------------------------------------------------------------------------- files

MOST_BYTES = 2**30  # of what is unpacked: more is a mistake, or malice


def as_paths(paths):
    """A list of Paths, of one path too."""
    return [Path(path) for path in ([paths] if isinstance(paths, str | Path) else paths)]


def read_bytes(path):
    """The bytes of a file. InputError, naming it, if it is missing, a folder, a pipe or device, unreadable or empty."""
    path = Path(path)
    try:
        kind = path.stat().st_mode
        data = path.read_bytes() if stat.S_ISREG(kind) else None  # a pipe can be read once, a device without end
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if data is None:
        raise InputError(f"{path}: expected a file, found a {'folder' if stat.S_ISDIR(kind) else 'pipe or device'}")
    if not data:
        raise InputError(f"{path}: expected text, found an empty file")
    return data


def read_lines(path):
    r"""The lines of a UTF-8 text file, without their line ends.

    A byte-order mark is dropped; `\n`, `\r\n` and `\r` end a line, and nothing else does (a U+2028 or a form feed
    within a sentence stays there, so two aligned files cannot slip). InputError with file, line and byte for what is
    not UTF-8 or holds a NUL.
    """
    return _lines(read_bytes(path), path)


def text_lines(path):
    """`read_lines`, of a file packed by gzip too, whose name ends in .gz. InputError as there, for what cannot be
    unpacked, and for more than MOST_BYTES."""
    if not str(path).lower().endswith(".gz"):
        return read_lines(path)
    packed = read_bytes(path)
    try:
        with gzip.open(io.BytesIO(packed)) as file:
            data = file.read(MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: expected a gzipped file, found one that cannot be unpacked ({error})") from None
    if len(data) > MOST_BYTES:
        raise InputError(f"{path}: expected at most {MOST_BYTES:,} bytes when unpacked, found more")
    if not data:
        raise InputError(f"{path}: expected text, found an empty file")
    return _lines(data, path)


def _lines(data, path):
    nul, bad, reason = data.find(b"\0"), -1, ""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # The codec counts from behind the mark it has dropped.
        bad = error.start + (3 if data.startswith(b"\xef\xbb\xbf") else 0)
        reason = f"found the byte 0x{data[bad]:02x}, which is not UTF-8"
    if nul >= 0 and (bad < 0 or nul < bad):
        bad, reason = nul, "found a NUL byte"
    if bad >= 0:
        before = data[:bad].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        column = len(before) - (before.rfind(b"\n") + 1) + 1
        raise InputError(f"{path}, line {before.count(10) + 1}, byte {column}: expected UTF-8 text, {reason}")
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def json_line(line, where, expected):
    """The object that one line of JSON holds, as a dictionary.

    InputError, beginning with `where`, for anything but an object, and for what readers of JSON read differently: a key
    that comes twice, NaN and infinity, a number that is too large for a float, half of a surrogate pair.
    """
    try:
        found = json.loads(line, object_pairs_hook=_each_once, parse_constant=_no_number, parse_float=_finite)
        if "\\u" in line:  # where alone such a half can come from
            json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        why = "half of a character pair" if isinstance(error, UnicodeEncodeError) else error
        raise InputError(f"{where}: expected {expected}, found what is not JSON ({why}) in {line[:60]!r}") from None
    if not isinstance(found, dict):
        raise InputError(f"{where}: expected {expected}, found {line[:60]!r}")
    return found


def _each_once(pairs):
    record = dict(pairs)
    if len(record) < len(pairs):
        raise ValueError("a key comes twice")
    return record


def _no_number(name):
    raise ValueError(f"{name} is no number of JSON")


def _finite(digits):
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"{digits[:20]} is too large a number")
    return value


# ---------------------------------------------------------------------------------------------------------- words

# What programs put between words: %(name)s, %s, %d, {name}, {0}. They stay whole.
_PLACEHOLDER = re.compile(r"(%\(\w+\)[a-z]|%[sd]\b|\{\w*\})")
_ELISION = re.compile(r"(?:[cdjlmnst]|qu|jusqu|lorsqu|puisqu|quoiqu)'(?=\w|$)", re.IGNORECASE)
_ENGLISH_ENDING = re.compile(r"'(?:s|m|re|ve|ll|d)$", re.IGNORECASE)


def tokenize(text, lower=True):
    """The words and punctuation marks of an English or French text.

    - Unicode is composed (NFC); any white space, no-break spaces too, parts words; curly apostrophes become straight.
    - French elision ends a word: `l'homme` gives `l'` `homme`, `qu'il` gives `qu'` `il`; `aujourd'hui` stays whole.
    - English endings begin one: `king's` gives `king` `'s`, `we'll` gives `we` `'ll`; but `don't` stays whole.
    - Hyphens and apostrophes within a word belong to it, points and commas within a number to the number.
    - What is cut already stays so: `n'` and `'s` on their own are words.
    - Every other mark or symbol is a word of its own. Other alphabets are cut at white space and marks alone.
    """
    text = unicodedata.normalize("NFC", text)
    if lower:
        text = unicodedata.normalize("NFC", text.lower())
    text = text.replace("\u2019", "'").replace("\u02bc", "'")
    words = []
    for chunk in text.split():
        if chunk.isalnum() or _ELISION.fullmatch(chunk) or _ENGLISH_ENDING.fullmatch(chunk):
            words.append(chunk)
            continue
        for number, part in enumerate(_PLACEHOLDER.split(chunk)):
            words.extend([part] if number % 2 else _cut(part))
    return words


def _cut(chunk):
    """Split marks off a chunk without white space, then elided words and English endings off its words."""
    pieces, word = [], ""
    for i, char in enumerate(chunk):
        before, after = chunk[i - 1:i] if i else "", chunk[i + 1:i + 2]
        inside = (char in "'-" and before.isalnum() and after.isalnum()
                  or char in ".," and before.isdigit() and after.isdigit())
        if not inside and unicodedata.category(char)[0] in "PS":
            pieces += [word, char]
            word = ""
        else:
            word += char
    words = []
    for piece in [*pieces, word]:
        while elided := _ELISION.match(piece):
            words.append(elided.group())
            piece = piece[elided.end():]
        ending = _ENGLISH_ENDING.search(piece)
        words += [piece[:ending.start()], ending.group()] if ending else [piece]
    return [word for word in words if word]


# ----------------------------------------------------------------------------------------------------- vocabulary

class Vocabulary:
    """Words to numbers and back. Numbers 0 to 3 are the special ones, and no word of a text can become one of them.

    A text that holds the five letters `<pad>` gets a number of its own for it, from 4 on, like any other word.
    """

    SPECIALS = ("<pad>", "<s>", "</s>", "<unk>")
    PAD, BOS, EOS, UNK = range(4)

    def __init__(self, words=()):
        self._words = [*self.SPECIALS, *words]
        self._numbers = {word: i for i, word in enumerate(self._words) if i >= len(self.SPECIALS)}
        if len(self._numbers) + len(self.SPECIALS) != len(self._words):
            twice = Counter(words).most_common(1)[0][0]
            raise InputError(f"vocabulary: expected each word once, found {twice!r} again")

    @classmethod
    def build(cls, sentences, max_size=None, min_count=1):
        """Count the words of an iterable of word lists: the frequent first, equally frequent ones by spelling.

        Words seen fewer than `min_count` times are left out; `max_size` bounds len(vocabulary), specials included.
        """
        counts = Counter(word for sentence in sentences for word in sentence)
        words = sorted((word for word in counts if counts[word] >= min_count), key=lambda word: (-counts[word], word))
        return cls(words if max_size is None else words[:max(0, max_size - len(cls.SPECIALS))])

    def encode(self, tokens):
        """Word numbers, UNK for a word that is not in the vocabulary; no BOS or EOS is added."""
        return [self._numbers.get(token, self.UNK) for token in tokens]

    def decode(self, ids):
        """Words up to the first EOS, without PAD and BOS; UNK reads `<unk>`. IndexError for a number out of range."""
        words = []
        for i in ids:
            if i == self.EOS:
                break
            if not 0 <= i < len(self):
                raise IndexError(f"vocabulary: expected a number from 0 to {len(self) - 1}, got {i}")
            if i not in (self.PAD, self.BOS):
                words.append(self._words[i])
        return words

    def __len__(self):
        return len(self._words)

    def __contains__(self, word):
        return word in self._numbers

    def to_list(self):
        """All entries in order, the specials first: what a checkpoint keeps."""
        return list(self._words)

    @classmethod
    def from_list(cls, words):
        """The vocabulary that `to_list` wrote down. InputError if the list does not begin with the specials, or holds
        what is no text."""
        head = tuple(words[:len(cls.SPECIALS)])
        if head != cls.SPECIALS:
            raise InputError(f"vocabulary: expected to begin with {' '.join(cls.SPECIALS)}, found {head}")
        for place, word in enumerate(words):
            if not isinstance(word, str):
                raise InputError(f"vocabulary: expected words as texts, found {word!r:.60} at {place}")
        return cls(words[len(cls.SPECIALS):])


class Kept:
    """What was made of samples met before, for in every epoch it is the same: `of(sample, words, make)` is
    make(sample), as long as the vocabulary `words` is one and the same. Forgets all of them beyond `most`."""

    def __init__(self, most):
        self.most, self.words, self.known = most, None, {}

    def of(self, sample, words, make):
        if self.words is not words or len(self.known) > self.most:
            self.words, self.known = words, {}
        found = self.known.get(id(sample))
        if found is None:  # with the sample itself, so that none of another can come under its number
            found = self.known[id(sample)] = sample, make(sample)
        return found[1]


# -------------------------------------------------------------------------------------------------------- batches

POOL = 50  # batches sorted together: enough for even lengths, few enough for fresh company every epoch


def batches(lengths, batch_size, rng):
    """One epoch of batches with sentences of similar length together, so that little is padded.

    lengths: (source length, target length) for each pair, (N, 2). Shuffled with `rng` (a NumPy Generator), sorted by
    target then source length within pools of `POOL` batches, cut, and the batches shuffled. Returns a list of index
    arrays (b,), b = batch_size but for a smaller one at the end of the last pool; every index comes exactly once.
    """
    if batch_size < 1:
        raise ValueError(f"batches: batch_size must be at least 1, got {batch_size}")
    lengths = np.asarray(lengths, dtype=np.int64).reshape(-1, 2)
    order = rng.permutation(len(lengths))
    cut = []
    for start in range(0, len(order), POOL * batch_size):
        pool = order[start:start + POOL * batch_size]
        pool = pool[np.lexsort((lengths[pool, 0], lengths[pool, 1]))]
        cut += [pool[i:i + batch_size] for i in range(0, len(pool), batch_size)]
    return [cut[i] for i in rng.permutation(len(cut))]


def roomy(length, bucket=1, most=None):
    """The length to pad to: a multiple of `bucket`, but beyond `most` no further than `length` itself."""
    up = -(-int(length) // bucket) * bucket
    return up if most is None else max(int(length), min(up, most))


def pad(sequences, pad=Vocabulary.PAD, bucket=1, most=None):
    """Lists of numbers as one array: (B, T) int64 filled up with `pad`, and their lengths (B,). T is that of the longest,
    made `roomy`."""
    lengths = np.array([len(sequence) for sequence in sequences], dtype=np.int64)
    padded = np.full((len(sequences), roomy(lengths.max(initial=0), bucket, most)), pad, dtype=np.int64)
    for row, sequence in zip(padded, sequences):
        row[:len(sequence)] = sequence
    return padded, lengths
