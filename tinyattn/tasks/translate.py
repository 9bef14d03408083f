"""The translation task: sentence pairs from the built-in generator or from the user's own files.

    load()                                      English-French, generated, with gold alignments
    load(["eng-fra.tsv"])                       source TAB target, one pair a line
    load(["django.po"]), load(["django.mo"])    a gettext catalogue: msgid -> msgstr
    load(["train.en", "train.fr"])              two files, line by line (or joined by a number before a TAB)
    load([...], links="align.txt")              with gold alignments: `3-4` sure, `3p4` possible, one line a sentence

Whatever is left out (empty, too long, fuzzy, repeated) is counted in `notes`; whatever is not as expected is an
`InputError` with file, line, what was expected and what was found.
"""

import re
from collections import Counter

import numpy as np

from tinyattn.errors import InputError
from tinyattn.tasks import english_french
from tinyattn.tasks.catalogue import read_mo, read_po
from tinyattn.tasks.corpus import Corpus
from tinyattn.tasks.text import Pair, as_paths, read_lines, tokenize

GENERATED = (18_000, 300, 500)  # train, validation and test pairs of the built-in task
CAPS = (None, 500, 1_000)       # of a file: at most so many; validation and test are a twentieth of it each
FEWEST = 10                     # pairs with different sources that a file must hold to be split
ORDERS = ("source-target", "target-source")


def load(paths=(), links=None, links_order="source-target", seed=0, lower=True, max_length=50, sizes=None):
    """A corpus, split into train, validation and test by the source side: all translations of a sentence stay together.

    paths: none for the generator, or one or two files (see the head of this file). links, links_order, lower,
    max_length: as in `read_pairs`. sizes: (train, validation, test); numbers of pairs to generate, or for files the
    most to use (None: no bound). The split depends on the file and the seed only. A source sentence with several
    translations gives all of them to training, but only its first to validation or test.
    """
    paths = as_paths(paths)
    if not paths:
        if links is not None:
            raise InputError(f"{links}: alignments need the files they align, but no text file was given")
        train, validation, test = sizes or GENERATED
        pairs = english_french.generate(train + validation + test, seed)
        notes = [f"built-in English-French task: {len(pairs):,} sentence pairs generated with seed {seed}"]
        return Corpus(pairs[:train], pairs[train:train + validation], pairs[train + validation:], notes)
    pairs, notes = read_pairs(paths, links, links_order, lower, max_length)
    return _split(pairs, notes, " and ".join(map(str, paths)), seed, sizes or CAPS)


def read_pairs(paths, links=None, links_order="source-target", lower=True, max_length=50):
    """All usable pairs of one or two files, in order, and notes on the others: (list of Pair, list of lines).

    links: a file of gold alignments, one line a sentence; its numbers count the words between white space from 0, so
    the text is then taken as tokenised already. links_order: what the first number of a link counts. A line without
    links means none. Pairs with more than `max_length` words on a side are left out, as are pairs with an empty side.
    InputError if nothing is left.
    """
    paths = as_paths(paths)
    if links_order not in ORDERS:
        raise InputError(f"links order: expected {' or '.join(ORDERS)}, got {links_order!r}")
    if len(paths) not in (1, 2):
        raise InputError(f"expected one or two files of sentence pairs, got {len(paths)}: {' '.join(map(str, paths))}")
    counted = Counter()
    catalogue = len(paths) == 1 and paths[0].suffix.lower() in (".po", ".mo")
    if catalogue and links is not None:
        raise InputError(f"{links}: alignments go with lines of text, not with the catalogue {paths[0]}")
    if catalogue:
        read = read_mo if paths[0].suffix.lower() == ".mo" else read_po
        rows = list(enumerate(read(paths[0], counted), 1))
    else:
        rows = _read_table(paths[0], counted) if len(paths) == 1 else _read_two(*paths, counted)
    gold = _read_links(links, rows, paths[0]) if links is not None else None
    pairs = []
    for row, (_, texts) in enumerate(rows):
        if texts is None:
            continue
        source, target = (_words(text, lower, cut_already=gold is not None) for text in texts)
        marks = _check_links(*gold[row], source, target, links_order, links) if gold is not None else (None, None)
        if not source or not target:
            counted["left out: a side is empty"] += 1
        elif max(len(source), len(target)) > max_length:
            counted[f"left out: more than {max_length} words on a side"] += 1
        else:
            pairs.append(Pair(source, target, *marks))
    where = " and ".join(map(str, paths))
    if not pairs:
        raise InputError(f"{where}: expected at least 1 sentence pair, found none usable{_list(counted)}")
    return pairs, [f"{where}: {len(pairs):,} sentence pairs", *(f"{n:,} {what}" for what, n in counted.items())]


def parse_input(text, lower=True):
    """The words of a sentence that a user typed. InputError if there are none."""
    words = tuple(tokenize(text, lower))
    if not words:
        raise InputError(f"expected a sentence to translate, got {text!r}")
    return words


def _words(text, lower, cut_already):
    if not cut_already:
        return tuple(tokenize(text, lower))
    return tuple((text.lower() if lower else text).split())


def _list(counted):
    return " (" + "; ".join(f"{n:,} {what}" for what, n in counted.items()) + ")" if counted else ""


# ---------------------------------------------------------------------------------------------------------- split

def _split(pairs, notes, where, seed, sizes):
    """A twentieth of the source sentences each (at least one, at most `sizes`) to validation and test."""
    groups = {}
    for pair in pairs:
        groups.setdefault(pair.source, []).append(pair)
    if len(groups) < FEWEST:
        found = f"{len(groups)}" if len(groups) == len(pairs) else f"{len(groups)} among {len(pairs):,} pairs"
        raise InputError(f"{where}: expected at least {FEWEST} sentence pairs with different sources, found {found}")
    sources = list(groups)
    order = [sources[i] for i in np.random.default_rng(seed).permutation(len(sources))]
    held, share = [], max(1, len(order) // 20)
    for cap in sizes[1:]:
        count = share if cap is None else min(share, cap)
        held.append([groups[source] for source in order[:count]])
        order = order[count:]
    train = [pair for source in order for pair in groups[source]][:sizes[0]]
    spare = sum(len(group) - 1 for part in held for group in part)
    if spare:
        notes.append(f"{spare:,} left out: further translations of validation and test sentences")
    validation, test = ([group[0] for group in part] for part in held)
    notes.append(f"split by source: {len(train):,} train, {len(validation):,} validation, {len(test):,} test pairs")
    return Corpus(train, validation, test, notes)


# ---------------------------------------------------------------------------------------------------------- files
# Each reader gives rows (key, (source, target)), None for a blank line; the key is the line number or, where lines
# begin with a number of their own, that.

def _read_table(path, counted):
    """source TAB target; further columns are ignored and blank lines skipped, both counted."""
    rows = []
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            counted["left out: blank line"] += 1
            rows.append((number, None))
            continue
        columns = line.split("\t")
        if len(columns) < 2:
            shown = line if len(line) <= 40 else line[:37] + "..."
            raise InputError(f"{path}, line {number}: expected source<TAB>target, found no tab in {shown!r}")
        if len(columns) > 2:
            counted["lines with further columns, which were ignored"] += 1
        rows.append((number, (columns[0], columns[1])))
    return rows


def _read_two(source_path, target_path, counted):
    """Two files line by line; if every line of both begins with a number and a TAB, joined by that number."""
    sources, targets = read_lines(source_path), read_lines(target_path)
    numbered = [_numbered(lines) for lines in (sources, targets)]
    if all(numbered):
        first, second = (_by_number(lines, path) for lines, path in zip(numbered, (source_path, target_path)))
        alone = len(first.keys() ^ second.keys())
        if alone:
            counted["left out: number in one file only"] += alone
        return [(key, (text, second[key])) for key, text in first.items() if key in second]
    if len(sources) != len(targets):
        raise InputError(f"expected as many lines in both files, found {len(sources):,} in {source_path} "
                         f"and {len(targets):,} in {target_path}")
    return list(enumerate(zip(sources, targets), 1))


def _numbered(lines):
    """[(number, rest)] if every line is `number TAB rest`, else None."""
    matches = [re.fullmatch(r"\s*(\d{1,18})\t(.*)", line, re.DOTALL) for line in lines]
    return [(int(match[1]), match[2]) for match in matches] if all(matches) else None


def _by_number(numbered, path):
    texts = {}
    for line, (key, text) in enumerate(numbered, 1):
        if key in texts:
            raise InputError(f"{path}, line {line}: expected each number once, found {key} again")
        texts[key] = text
    return texts


# ----------------------------------------------------------------------------------------------------- alignments

def _read_links(path, rows, text_path):
    """For each row its line number in the file of links, and the links' text."""
    lines = read_lines(path)
    numbered = _numbered(lines)
    if numbered:
        texts = _by_number(numbered, path)
        place = {key: line for line, (key, _) in enumerate(numbered, 1)}
        missing = [key for key, _ in rows if key not in texts]
        if missing:
            raise InputError(f"{path}: expected links for each sentence of {text_path}, found none for {missing[0]}")
        return [(place[key], texts[key]) for key, _ in rows]
    if len(lines) != len(rows):
        raise InputError(f"expected as many lines in both files, found {len(rows):,} sentences in {text_path} "
                         f"and {len(lines):,} in {path}")
    return list(enumerate(lines, 1))


def _check_links(line, text, source, target, order, path):
    """(sure, possible) sets of (source index, target index). InputError for a link beyond the sentence."""
    sure, possible = set(), set()
    for item in text.split():
        match = re.fullmatch(r"(\d{1,9})([-p])(\d{1,9})", item)
        if not match:
            raise InputError(f"{path}, line {line}: expected links such as 3-4 (sure) or 3p4 (possible), found {item!r}")
        i, j = int(match[1]), int(match[3])
        if order == "target-source":
            i, j = j, i
        if i >= len(source) or j >= len(target):
            raise InputError(f"{path}, line {line}: expected word numbers below {len(source)} (source) and "
                             f"{len(target)} (target), counted from 0, found the link {item} ({order})")
        (sure if match[2] == "-" else possible).add((i, j))
    return frozenset(sure), frozenset(sure | possible)
