r"""The classification task: documents with a label, from the standard library's own texts or from the user's files.

    load()                                  documentation strings of the standard library, by family (`docstrings.py`)
    load(["reviews.tsv"])                   label TAB text, one document a line
    load(["reviews.jsonl"])                 {"label": ..., "text": ...}, one document a line
    load(["reviews/"]), load(["r.zip"])     a folder, or the same zipped: pos/1.txt, pos/2.txt, neg/1.txt: one document
                                            a file, labelled by its folder. Without folders inside one document a line,
                                            labelled by what tells the names of the files apart: polarity.pos,
                                            polarity.neg

Several paths are pooled; files of the first two forms may be gzipped, their names ending in .gz. A file that is UTF-8
is read as such; within folders and zips any other is read as Latin-1, in which every byte is a character, and counted.
Whatever is left out or cut is counted in `notes`; whatever is not as expected is an `InputError` with file, line, what
was expected and what was found. White space within a label counts as one space, so that a label is one line everywhere.
"""
import json
import lzma
import os
import re
import zipfile
import zlib
from collections import Counter
from dataclasses import dataclass

from tinyattn.errors import InputError
from tinyattn.tasks import docstrings
from tinyattn.tasks.corpus import divide
from tinyattn.tasks.text import MOST_BYTES, as_paths, json_line, read_bytes, text_lines, tokenize

# what `zipfile` raises for a zip that is none, cut off, damaged, with a password or made in a way it does not know
BROKEN = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, OSError, EOFError, RuntimeError, ValueError, IndexError)
ABBREVIATIONS = frozenset([
    "a.k.a", "al", "approx", "capt", "cf", "co", "col", "corp", "dept", "dr", "e.g", "ed", "eds", "eq", "eqs", "esp",
    "est", "etc", "fig", "figs", "gen", "gov", "i.e", "inc", "jr", "lt", "ltd", "mr", "mrs", "ms", "mt", "no", "nos",
    "op", "p.s", "pp", "prof", "rep", "rev", "sen", "sr", "st", "u.k", "u.s", "viz", "vol", "vs"])
_MARKS = re.compile(r"""(?<![.!?。！？])[.!?。！？]+["'”’)\]]*""")
_OPENING = "\"'“‘(["


@dataclass(frozen=True)
class Document:
    """Sentences of words, and what the document is: its label."""
    sentences: tuple[tuple[str, ...], ...]
    label: str


def load(paths=(), seed=0, max_words=24, max_sentences=24):
    """A Corpus: a tenth of the documents each for validation and test, at most 1,000. Equal texts stay together.

    paths: none for the built-in documents, or files, folders and zips. InputError for a single label.
    """
    paths = as_paths(paths)
    documents, notes = read(paths, max_words, max_sentences)
    where = " and ".join(map(str, paths)) or "built-in documents"
    labels = len({document.label for document in documents})
    if labels < 2:
        raise InputError(f"{where}: expected documents of at least 2 labels, found {documents[0].label!r} alone")
    if 2 * labels > len(documents):
        raise InputError(f"{where}: expected at least 2 documents a label, found {labels:,} labels in "
                         f"{len(documents):,} documents; are label and text in the right order?")
    corpus = divide(documents, seed, where, key=lambda document: document.sentences, most=1000)
    parts = ", ".join(f"{len(getattr(corpus, part)):,} {part}" for part in ("train", "validation", "test"))
    corpus.notes += [*notes, f"divided by text: {parts}"]
    return corpus


def read(paths=(), max_words=24, max_sentences=24):
    """All usable documents of the paths, in order, and notes on the others: (list of Document, list of lines).

    max_words, max_sentences: what is longer is cut there. InputError if nothing is left.
    """
    paths, counted, documents = as_paths(paths), Counter(), []
    for label, lines in _labelled(paths, counted):
        document = Document(_cut(lines, max_words, max_sentences, counted), " ".join(label.split()))
        if document.sentences:
            documents.append(document)
        else:
            counted["left out: without a word"] += 1
    where = " and ".join(map(str, paths)) or "standard library, its documentation strings"
    if not documents:
        raise InputError(f"{where}: expected at least 1 document, found none usable"
                         + "".join(f"; {n:,} {what}" for what, n in counted.items()))
    labels = Counter(document.label for document in documents)
    some = ", ".join(f"{label} ({labels[label]:,})" for label in sorted(labels)[:12])
    more = f" and {len(labels) - 12:,} more" if len(labels) > 12 else ""
    return documents, [f"{where}: {len(documents):,} documents of {len(labels):,} labels: {some}{more}",
                       *(f"{n:,} {what}" for what, n in counted.items())]


# ------------------------------------------------------------------------------------------------------- sentences

def split_sentences(text):
    """The sentences of a text, as texts.

    A line end ends one. Within a line `.`, `!` and `?` do, with the quotes and brackets that close after them, before
    white space and a capital letter or digit, which may stand in quotes or brackets. So text in small letters, as
    corpora have it that are cut into words, is one sentence a line. The point of an abbreviation (Mr., e.g.), of an
    initial (J. Smith) or behind the number of an item ends none. The full-width marks of Chinese and Japanese always
    do.
    """
    found = []
    for line in re.split(r"[\r\n]+", text):
        start = 0
        for marks in _MARKS.finditer(line):
            if _ends(line, start, marks):
                found.append(line[start:marks.end()].strip())
                start = marks.end()
        found.append(line[start:].strip())
    return [sentence for sentence in found if sentence]


def _ends(line, start, marks):
    """Do these marks end the sentence that begins at `start`?"""
    if marks[0][0] in "。！？":
        return True
    after = line[marks.end():marks.end() + 8]
    follows = after.lstrip().lstrip(_OPENING)[:1]
    if after and not (after[0].isspace() and (follows.isupper() or follows.isdigit())):
        return False
    before = line[max(start, marks.start() - 16):marks.start()]
    last = before.split()[-1].lstrip(_OPENING) if before[-1:].strip() else ""
    initial = len(last) == 1 and last.isupper() and last != "I"
    number = line[start:marks.start()].strip().isdigit()  # "1. Open the file."
    return not (marks[0] == "." and (initial or number or last.lower() in ABBREVIATIONS))


def _cut(lines, max_words, max_sentences, counted):
    """Words of the sentences of some lines, at most so many, as a tuple of tuples."""
    sentences = [words for line in lines for sentence in split_sentences(line) if (words := tokenize(sentence))]
    if len(sentences) > max_sentences:
        counted[f"documents cut after {max_sentences} sentences"] += 1
    sentences = sentences[:max_sentences]
    if long := sum(len(words) > max_words for words in sentences):
        counted[f"sentences cut after {max_words} words"] += long
    return tuple(tuple(words[:max_words]) for words in sentences)


# ----------------------------------------------------------------------------------------------------------- files
# Each reader yields (label, lines of text).

def _labelled(paths, counted):
    if not paths:
        for label, text in docstrings.documents():
            yield label, text.split("\n")
    for path in paths:
        if path.is_dir():
            yield from _read_tree(path, _of_folder(path), counted)
        elif path.suffix.lower() == ".zip":
            yield from _read_tree(path, _of_zip(path), counted)
        else:
            yield from _read_table(path, counted)


def _read_table(path, counted):
    """label TAB text, or one JSON object a line."""
    lines = text_lines(path)
    is_json = next((line.lstrip()[:1] == "{" for line in lines if line.strip()), False)
    for number, line in enumerate(lines, 1):
        if not line.strip():
            counted["left out: blank line"] += 1
        elif is_json:
            yield _from_json(line, f"{path}, line {number}")
        else:
            label, tab, text = line.partition("\t")
            if not tab or not label.strip():
                found = "no tab" if not tab else "no label"
                raise InputError(f"{path}, line {number}: expected label<TAB>text, found {found} in {_shown(line)}")
            yield label.strip(), [text]


def _from_json(line, where):
    expected = '{"label": ..., "text": ...}'
    record = json_line(line, where, expected)
    if not {"label", "text"} <= record.keys():
        raise InputError(f"{where}: expected {expected}, found {_shown(line)}")
    label, text = record["label"], record["text"]
    if not isinstance(label, str | int | float) or not str(label).strip():
        raise InputError(f"{where}: expected {expected}, a text or a number as label, found the label "
                         f"{_shown(json.dumps(label))}")
    if not isinstance(text, str):
        raise InputError(f"{where}: expected {expected}, found the text {_shown(json.dumps(text))}")
    return json.dumps(label) if isinstance(label, bool) else str(label).strip(), [text]


def _read_tree(path, files, counted):
    """Files [(parts of the name, function that gives the bytes)] of a folder or zip, as the head of this file says."""
    usual = [(parts, content) for parts, content in files
             if not any(part.startswith((".", "__MACOSX")) for part in parts)
             and not parts[-1].lower().startswith(("readme", "license", "licence"))]
    if not usual:
        raise InputError(f"{path}: expected documents in files such as pos/1.txt, found no file")
    shared = len(os.path.commonprefix([parts[:-1] for parts, _ in usual]))
    inside = [(parts, content) for parts, content in usual if len(parts) > shared + 1]
    if inside:
        if len(usual) > len(inside):
            counted["left out: files beside the folders of documents"] += len(usual) - len(inside)
        for parts, content in inside:
            yield parts[-2], _lines(path, parts, content, counted)
        return
    labels = _apart([parts[-1] for parts, _ in usual])
    for (parts, content), label in zip(usual, labels, strict=True):
        for line in _lines(path, parts, content, counted):
            yield label, [line]


def _apart(names):
    """What tells names apart: a.pos and a.neg by pos and neg, b.tok.1 and c.tok.1 by b and c."""
    split = [name.split(".") for name in names]
    if len(names) == 1 or len({len(parts) for parts in split}) > 1:
        return [name.rpartition(".")[0] or name for name in names]
    differ = [len(set(column)) > 1 for column in zip(*split)]
    return [".".join(part for part, differs in zip(parts, differ) if differs) for parts in split]


def _of_folder(path):
    files = [file for file in sorted(path.rglob("*")) if file.is_file()]
    for file in files:
        try:
            str(file).encode()
        except UnicodeEncodeError:
            raise InputError(f"{path}: expected names of files and folders in UTF-8, found {file.name!a}") from None
    return [(file.relative_to(path).parts, lambda file=file: file.read_bytes()) for file in files]


def _of_zip(path):
    read_bytes(path)
    try:
        archive = zipfile.ZipFile(path)
    except BROKEN as error:
        raise InputError(f"{path}: expected a zip, found what is none ({error})") from None
    members = sorted((m for m in archive.infolist() if not m.filename.endswith("/")), key=lambda m: m.filename)
    size = sum(member.file_size for member in members)
    if size > MOST_BYTES:
        raise InputError(f"{path}: expected at most {MOST_BYTES:,} bytes when unpacked, found {size:,}")
    return [(tuple(filter(None, member.filename.split("/"))) or (".",), lambda member=member: archive.read(member))
            for member in members]


def _lines(path, parts, content, counted):
    """The lines of a file that is UTF-8, or else Latin-1."""
    where = f"{path}, {'/'.join(parts)}"
    try:
        data = content()
    except BROKEN as error:
        raise InputError(f"{where}: cannot be read ({error})") from None
    if b"\0" in data:
        line = data[:data.index(b"\0")].count(b"\n") + 1
        raise InputError(f"{where}, line {line}: expected text, found a NUL byte")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        counted["files that are not UTF-8, read as Latin-1"] += 1
        text = data.decode("latin-1")
    return [line for line in re.split(r"\r\n|\r|\n", text) if line.strip()]


def _shown(text):
    return repr(text if len(text) <= 40 else text[:37] + "...")
