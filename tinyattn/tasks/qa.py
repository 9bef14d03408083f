r"""Questions over stories: the one form of a sample, the reader of the bAbI files, and what `qa` is trained on.

The bAbI form (Weston et al. 2015). Each line begins with its number in the story, and a 1 begins a new story. A line
with tabs is a question: `text TAB answer TAB numbers of the supporting lines` (the last column may be missing). All
others are sentences. Questions are no part of the story: each is asked over the sentences before it.

    1 Sam walks into the kitchen.
    2 Sam picks up an apple.
    3 Where is the apple? TAB kitchen TAB 2 1

Files whose names end in `_train.txt` and `_test.txt` (and `_valid.txt`) and begin alike belong together, and are used
as they are; without a validation file the last tenth of the training stories is it. A file that stands alone is
divided by stories. A folder stands for all files in it of the names `qaN_..._train.txt`, `qaN_..._test.txt`.
"""
import re
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tinyattn.errors import InputError

from . import stories
from .corpus import Corpus, divide
from .text import as_paths, read_lines, tokenize

DEFAULT = "1,2,15,16"  # the kinds of the simulator, where none are asked for
SIZES = (1000, 100, 500)  # training, validation and test questions that the simulator gives for each kind
_MARKS = frozenset(".?!")
_NAME = re.compile(r"(?:qa(\d+)_)?.*?_?(train|valid|test)\.txt", re.IGNORECASE)


@dataclass(frozen=True)
class Question:
    """One question, the story told before it, and its answer."""

    story: tuple[tuple[str, ...], ...]  # sentences so far, oldest first
    question: tuple[str, ...]
    answer: str  # as the file has it: "apple,football" is one class, as in the papers
    support: frozenset[int] = frozenset()  # places in `story` of the supporting sentences, from 0
    task: str = ""  # kind: "1" .. "20", or the name of the file
    pairs: tuple = ()  # key-value memories ((key words), (value words)), where the data have them
    answers: tuple[str, ...] = ()  # all right answers where there are several; empty: `answer` alone


@lru_cache(maxsize=100_000)
def cut(sentence):
    """The words of a sentence or question, in lower case and without . ? and !"""
    return tuple(word for word in tokenize(sentence) if word not in _MARKS)


def parse_input(text):
    """A story and the question at its end, as somebody types it: (story, question) in words.

    Sentences end with . ! ? or the line; earlier questions are left out of the story. InputError without a question at
    the end, or without a sentence before it.
    """
    parts = [part.strip() for part in re.split(r"(?<=[.?!])\s+|[\r\n]+", text)]
    parts = [part for part in parts if cut(part)]
    if not parts or not parts[-1].endswith("?"):
        raise InputError(f"qa: expected a story and a question that ends with a question mark, got {text.strip()!r}")
    told = tuple(cut(part) for part in parts if not part.endswith("?"))
    if not told:
        raise InputError(f"qa: expected a sentence before the question, got {text.strip()!r}")
    return told, cut(parts[-1])


def task_numbers(text):
    """The numbers of "1,5,16" or "1-20", rising and each once. InputError for what is no such list."""
    numbers = set()
    for part in text.replace(" ", "").split(","):
        found = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", part, re.ASCII)
        low, high = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
        if not 1 <= low <= high:
            raise InputError(f"tasks: expected numbers such as 1,5,16 or 1-20, got {text!r}")
        numbers.update(range(low, high + 1))
    return sorted(numbers)


# ---------------------------------------------------------------------------------------------------------- reading

def read_stories(path, task="", counted=None):
    """The stories of one file, each as the tuple of its Questions. `counted`: a Counter of what was passed over.

    InputError with file and line for a line without number, a number out of turn, a question without answer or
    before any sentence, too many columns, or supporting lines that are no earlier sentences of the story; and for a
    file without any question.
    """
    counted = Counter() if counted is None else counted
    found, lines = [], _Lines(path, task or Path(path).stem)
    for n, line in enumerate(read_lines(path), 1):
        if not line.strip():
            counted["blank lines passed over"] += 1
            continue
        if lines.begins_story(n, line):
            found.append(lines.questions)
        lines.take(n, line)
    found = [tuple(questions) for questions in found]
    if unasked := sum(not questions for questions in found):
        counted["stories without a question left out"] += unasked
    found = [questions for questions in found if questions]
    if not found:
        raise InputError(f"{path}: expected at least 1 question (text TAB answer TAB supporting lines), found none")
    return found


class _Lines:
    """The story that is being read."""

    def __init__(self, path, task):
        self.path, self.task, self.number = path, task, 0

    def wrong(self, n, expected, found):
        return InputError(f"{self.path}, line {n}: expected {expected}, found {found[:60]!r}")

    def begins_story(self, n, line):
        """Check the line's number; forget the story so far where it is 1."""
        found = re.match(r"\s*(\d{1,7})\s+(?=\S)", line, re.ASCII)
        if not found:
            raise self.wrong(n, "a line number and a sentence", line)
        number = int(found[1])
        if number not in (1, self.number + 1):
            raise self.wrong(n, "the line number 1" + (f" or {self.number + 1}" if self.number else ""), found[1])
        self.number, self.text = number, line[found.end():]
        if number == 1:
            self.sentences, self.places, self.questions = [], {}, []
        return number == 1

    def take(self, n, line):
        columns = [column.strip() for column in self.text.split("\t")]
        words = cut(columns[0])
        if not words:
            raise self.wrong(n, "words", line)
        if len(columns) > 1:
            self.questions.append(self.question(n, line, columns, words))
        elif columns[0].endswith("?"):
            raise self.wrong(n, "a question, a tab and its answer", line)
        else:
            self.places[self.number] = len(self.sentences)
            self.sentences.append(words)

    def question(self, n, line, columns, words):
        if len(columns) > 3:
            raise self.wrong(n, "at most 3 columns (question, answer, supporting lines)", line)
        if not columns[1]:
            raise self.wrong(n, "an answer behind the tab", line)
        if not self.sentences:
            raise self.wrong(n, "a sentence of the story before its first question", line)
        support = columns[2].split() if len(columns) == 3 else []
        for text in support:
            if not (text.isascii() and text.isdigit() and len(text) < 8 and int(text) in self.places):
                raise self.wrong(n, "supporting lines that are earlier sentences of the story", text)
        return Question(tuple(self.sentences), words, columns[1], frozenset(self.places[int(t)] for t in support),
                        self.task)


def _files(paths, tasks):
    """{(name that files have in common, task): {"train", "valid", "test" or "alone": path}}, by task and name.

    InputError for a folder without such files, for tasks that are asked for and not there, and for two files of the
    same use.
    """
    wanted = {str(n) for n in task_numbers(tasks)} if tasks else None
    groups = {}
    for path in [file for given in paths for file in _inside(given)]:
        found = _NAME.fullmatch(path.name)
        stem = path.name[:found.start(2)].rstrip("_") if found else path.stem
        task, use = (found[1] and str(int(found[1])), found[2].lower()) if found else (None, "alone")
        if wanted is not None and task not in wanted:
            continue
        group = groups.setdefault((str(path.parent / stem), task or stem), {})
        if use in group:
            raise InputError(f"{path}: expected one file for this use, found {group[use]} too")
        group[use] = path
    there = {task for _, task in groups}
    if missing := sorted((wanted or set()) - there, key=int):
        raise InputError(f"{' '.join(map(str, paths))}: expected a file qaN_..._train.txt for task "
                         f"{', '.join(missing)}, found none")
    return dict(sorted(groups.items(), key=lambda item: (not item[0][1].isdigit(), item[0][1].zfill(5), item[0][0])))


def _inside(path):
    """The bAbI files of a folder; a file itself."""
    path = Path(path)
    if not path.is_dir():
        return [path]
    inside = sorted(file for file in path.iterdir() if (found := _NAME.fullmatch(file.name)) and found[1])
    if not inside:
        raise InputError(f"{path}: expected files qaN_..._train.txt and qaN_..._test.txt in the folder, found none")
    return inside


def read(paths, tasks=""):
    """(all questions of some files, notes). Of a folder with test files, these alone."""
    paths, samples, counted, count = as_paths(paths), [], Counter(), 0
    for (_, task), uses in _files(paths, tasks).items():
        named = any(path in paths for path in uses.values())
        for path in uses.values() if named or "test" not in uses else [uses["test"]]:
            samples += [q for story in read_stories(path, task, counted) for q in story]
            count += 1
    return samples, [f"{len(samples):,} questions of {count} file{'s' * (count > 1)}", *_listed(counted)]


def _listed(counted):
    return [f"{n:,} {what}" for what, n in counted.items()]


def load(paths=(), tasks="", seed=1):
    """A Corpus of Questions: of the files, or of the simulator where there are no paths.

    tasks    "1,5,16" or "1-20": the tasks of the files, or the kinds of the simulator; "" is all files, or DEFAULT
    InputError as in `read_stories`, and for less than two stories to train on or ten to divide.
    """
    if not paths:
        return _simulated([str(n) for n in task_numbers(tasks or DEFAULT)], seed)
    corpus, counted, alone = Corpus([], [], []), Counter(), []
    for (_, task), uses in _files(as_paths(paths), tasks).items():
        if not {"train", "test"} <= uses.keys():
            alone.append(f"divided by stories: {', '.join(path.name for path in uses.values())}")
        told = {use: read_stories(path, task, counted) for use, path in uses.items()}
        for part, chosen in zip((corpus.train, corpus.validation, corpus.test), _parts(told, uses, seed)):
            part += [question for story in chosen for question in story]
    tasks = len({q.task for q in corpus.train})
    corpus.notes = [f"{tasks} task{'s' * (tasks > 1)}: {len(corpus.train):,} training, {len(corpus.validation):,} "
                    f"validation and {len(corpus.test):,} test questions",
                    *_listed(counted)]
    corpus.notes += [*alone, *_seen_again(corpus)]
    return corpus


def _seen_again(corpus):
    """A note on test questions that stand in training too: stories that differ later may begin alike."""
    seen = {(q.story, q.question) for q in corpus.train}
    again = sum((q.story, q.question) in seen for q in corpus.test)
    return [f"{again:,} test questions stand in training too, with the same story"] * bool(again)


def _parts(told, uses, seed):
    """Stories for training, validation and test of one task."""
    if "train" in told and "test" in told:
        train = told["train"]
        if "valid" in told:
            return train, told["valid"], told["test"]
        if len(train) < 2:
            raise InputError(f"{uses['train']}: expected at least 2 stories, one of them for validation, found "
                             f"{len(train)}")
        held = max(1, len(train) // 10)
        return train[:-held], train[-held:], told["test"]
    both = [story for some in told.values() for story in some]
    parts = divide(both, seed, " and ".join(map(str, uses.values())), key=lambda story: story[-1].story)
    return parts.train, parts.validation, parts.test


def _simulated(kinds, seed):
    corpus = Corpus([], [], [])
    for kind in kinds:
        if kind not in stories.KINDS:
            raise InputError(f"tasks: expected kinds of the simulator ({', '.join(stories.KINDS)}), got {kind}")
        for part, told in zip((corpus.train, corpus.validation, corpus.test), stories.generate(kind, SIZES, seed)):
            part += [Question(tuple(map(cut, story)), cut(question), answer, frozenset(support), kind)
                     for story, question, answer, support in told]
    corpus.notes = [f"built-in stories of kind {', '.join(kinds)}: {len(corpus.train):,} training, "
                    f"{len(corpus.validation):,} validation and {len(corpus.test):,} test questions, seed {seed}",
                    *_seen_again(corpus)]
    return corpus
