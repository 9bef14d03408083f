"""Questions about films, answered from memories: MetaQA and WikiMovies files, and text about the same films.

Files, told apart by what they hold (each may be gzipped, name ending in .gz):

    *.jsonl       {"question": "who directed [Alien]", "triples": [{"h": "Alien", "r": "directed_by", "t": "Ridley
                  Scott"}]}: the triples give the answers (t), and those of all files together are the knowledge base.
                  "directed_by [inverse]" turns a triple round.
    questions     who directed [Alien] TAB Ridley Scott|another answer
    facts         Alien|directed_by|Ridley Scott: more of the knowledge base
    entities      one name a line, in a file whose name holds "entities"
    documents     any other text: its first line is a title, each further line a piece of text, a blank line ends it

A question whose file has "test" in its name is a test question, where another file has none; the others are divided, so
that no entity is asked about in two parts. Each right answer of a training question is a sample of its own: the loss
asks for one, and hits@1 is content with any (`Question.answers`). An entity is one word, "Ridley Scott", in its own
spelling; all other words are in lower case.

A question's memories (`Question.pairs`) are found by **key hashing** (Miller et al. 2016, section 3.1): all those that
share a rare word with it, one in fewer than `RARE` memories, up to `most`: those with the entity first, then by the
rarest words. An entity counts with the words of its name too, so that [Tom Cullen] brings along facts about other Toms:
among them a network has to choose.
The same memories stand in `Question.story`, key and value as one sentence, for networks that know no keys (MemNN in the
paper's tables). What memories are (`KINDS`), for comparing them as the paper does:

    kb          key (subject, relation), value object; each fact both ways round
    window      a window of text around an entity: key its words and the title, value the entity; and the other way
                round, value the title (`attention/key_value.py`, `windows`). The title is a word of the first
                dictionary, as in the question: of the second it would be found by those entities alone that
                training questions ask about, and there are few questions here
    sentence    key and value a sentence

Without documents, the text is rendered from the knowledge base by the sentences of `movies_text.write`. It is simpler
than Wikipedia: whatever the knowledge base knows is said once, in one of three ways.
"""
import re
from collections import Counter
from dataclasses import dataclass, field, replace

from tinyattn.attention.key_value import NEAR, TITLE, WINDOW, windows
from tinyattn.errors import InputError
from tinyattn.tasks.corpus import Corpus, divide
from tinyattn.tasks.movies_text import cut, write
from tinyattn.tasks.qa import Question
from tinyattn.tasks.text import json_line, text_lines, tokenize

KINDS = ("kb", "window", "sentence")
INVERSE = " [inverse]"
RARE = 1000  # a word of so many memories says too little to find one by
_NAME = re.compile(r"\[([^\[\]]+)\]")


# ---------------------------------------------------------------------------------------------------------------------
# files
# ---------------------------------------------------------------------------------------------------------------------
def is_movies(path):
    """Is this a file for `load`? True for .jsonl(.gz), and for text whose first line is a question with an [entity],
    TAB and answers. Files that cannot be read are not; whoever reads them next says why."""
    name = str(path)
    if name.endswith((".jsonl", ".jsonl.gz")):
        return True
    try:
        first = next((line for line in text_lines(path) if line.strip()), "")
    except InputError:
        return False
    question, tab, answers = first.partition("\t")
    return bool(tab and answers.strip() and "\t" not in answers and len(_NAME.findall(question)) == 1)


@dataclass
class Found:
    """What the files hold: questions [(words, entity, answers)] by use, facts {(subject, relation, object): None} in
    the order of the files, documents [(title, [line])], and how much was left out {what: number}."""
    train: list = field(default_factory=list)
    test: list = field(default_factory=list)
    facts: dict = field(default_factory=dict)
    entities: dict = field(default_factory=dict)
    documents: list = field(default_factory=list)
    left_out: Counter = field(default_factory=Counter)


def read(paths):
    """All files of `paths` as one Found. InputError, naming file and line, for what is none of the forms above."""
    found = Found()
    for path in paths:
        lines = [(n, line.strip()) for n, line in enumerate(text_lines(path), 1)]
        full = [(n, line) for n, line in lines if line]
        if not full:
            raise InputError(f"{path}: expected questions, facts or text, found blank lines alone")
        name = str(path).rsplit("/", 1)[-1]
        questions = found.test if "test" in name else found.train
        if name.endswith((".jsonl", ".jsonl.gz")):
            for n, line in full:
                _json_question(f"{path}, line {n}", line, questions, found)
        elif "\t" in full[0][1]:
            for n, line in full:
                _tab_question(f"{path}, line {n}", line, questions, found)
        elif "entities" in name:
            found.entities |= {line: None for _, line in full}
        elif full[0][1].count("|") == 2:
            for n, line in full:
                _fact(f"{path}, line {n}", line.split("|"), found)
        else:
            found.documents += _documents(lines)
    if found.test and not found.train:
        found.train, found.test = found.test, []
    return found


def _json_question(where, line, questions, found):
    expected = '{"question": text, "triples": [{"h", "r", "t"}]}'
    record = json_line(line, where, expected)
    try:
        text, triples = record["question"], [(t["h"], t["r"], t["t"]) for t in record["triples"]]
    except (TypeError, KeyError):
        raise InputError(f"{where}: expected {expected}, found {line[:60]!r}") from None
    if not isinstance(text, str) or not all(isinstance(x, str) and x.strip() for triple in triples for x in triple):
        raise InputError(f"{where}: expected texts, not empty, for the question, h, r and t, found {line[:60]!r}")
    for triple in triples:
        _fact(where, triple, found)
    _question(where, text, [t for _, _, t in triples], questions, found)


def _tab_question(where, line, questions, found):
    parts = line.split("\t")
    if len(parts) != 2:
        raise InputError(f"{where}: expected a question, TAB and answers parted by |, found {len(parts)} columns")
    _question(where, parts[0], parts[1].split("|"), questions, found)


def _question(where, text, answers, questions, found):
    words, names = parse(text)
    if len(names) != 1:
        raise InputError(f"{where}: expected a question with one [entity], found {len(names)}: {text[:60]!r}")
    answers = tuple(dict.fromkeys(a.strip() for a in answers if a.strip()))
    if not answers:
        found.left_out["questions without an answer"] += 1
        return
    found.entities |= dict.fromkeys((names[0], *answers))
    questions.append((words, names[0], answers))


def parse(text):
    """(words, entities) of a question with entities in [brackets]: each is one word; the others are in lower case."""
    words, names = [], []
    for i, part in enumerate(_NAME.split(text)):
        if i % 2:
            names.append(part.strip())
            words.append(part.strip())
        else:
            words += [w for w in tokenize(part) if w.isalnum() or len(w) > 1]
    return tuple(words), names


def _fact(where, parts, found):
    subject, relation, thing = (p.strip() for p in parts) if len(parts) == 3 else ("",) * 3
    if not (subject and relation and thing):
        raise InputError(f"{where}: expected subject|relation|object, found {'|'.join(parts)[:60]!r}")
    if relation.endswith(INVERSE):
        subject, relation, thing = thing, relation.removesuffix(INVERSE), subject
    found.facts[subject, relation, thing] = None
    found.entities |= {subject: None, thing: None}


def _documents(lines):
    documents, fresh = [], True
    for _, line in lines:
        if line and fresh:
            documents.append((line, []))
        elif line:
            documents[-1][1].append(line)
        fresh = not line
    return documents


# ---------------------------------------------------------------------------------------------------------------------
# memories
# ---------------------------------------------------------------------------------------------------------------------
class Memories:
    """Pairs ((key words), (value words)), and the ones that a question hashes to."""

    def __init__(self, pairs, most=64, rare=RARE):
        self.pairs, self.most, self.rare, self.places = pairs, most, rare, {}
        self.told = [key if key == value else (*key, *value) for key, value in pairs]
        for i, (key, _) in enumerate(pairs):
            for word in spelled_out(key):
                self.places.setdefault(word, []).append(i)

    def of(self, question, entity=""):
        """(pairs, the same as sentences) that share a rare word with the question's words, at most `most`: first those
        with the entity, then those with the rarest words."""
        words = [w for w in spelled_out(question) if len(self.places.get(w, ())) < self.rare]
        chosen = {}
        for word in sorted(words, key=lambda w: (w != entity, len(self.places.get(w, ())), w)):
            chosen |= dict.fromkeys(self.places.get(word, ()))
            if len(chosen) >= self.most:
                break
        chosen = list(chosen)[:self.most]
        return tuple(self.pairs[i] for i in chosen), tuple(self.told[i] for i in chosen)

    def ask(self, text):
        """A Question, without an answer, from text with the entity in [brackets]. InputError if there is none."""
        words, names = parse(text)
        if len(names) != 1:
            raise InputError(f"expected a question with one [entity] in brackets, found {len(names)}: {text[:60]!r}")
        pairs, told = self.of(words, names[0])
        return Question(told, words, "", pairs=pairs)

    def to_list(self, words):
        """[[key, value]] as numbers of a Vocabulary that has all their words: what a checkpoint keeps."""
        return [[words.encode(key), words.encode(value)] for key, value in self.pairs]

    @classmethod
    def from_list(cls, pairs, words, most=64):
        """The memories that `to_list` wrote down."""
        names = words.to_list()
        return cls([tuple(tuple(names[i] for i in part) for part in pair) for pair in pairs], most)


def spelled_out(words):
    """The words, and for an entity of several words those of its name, each once; "1:word" is the word itself."""
    plain = [w.removeprefix(NEAR) for w in words]
    return dict.fromkeys([*plain, *(part for w in plain if " " in w for part in w.lower().split())])


def in_words(told, asked=()):
    """A memory, as a sentence, for people: without the marks of a window, nor the entity `asked` about where it begins
    with that: "directed_by Ridley Scott"."""
    words = [w.removeprefix(NEAR) for w in told if w not in (WINDOW, TITLE)]
    return " ".join(words[1:] if len(words) > 1 and words[0] in asked else words)


def memories(kind, facts, documents, entities, size=3):
    """The pairs of a kind: from facts {(subject, relation, object)} or documents [(title, [sentence as words])].

    size    how many words a window has on each side
    """
    if kind == "kb":
        return [pair for s, r, o in facts for pair in (((s, r), (o,)), ((o, r + INVERSE), (s,)))]
    pairs = []
    for title, sentences in documents:
        if kind == "sentence":
            pairs += [(sentence, sentence) for sentence in sentences]
        for sentence in sentences if kind == "window" else ():
            keys, values = windows(sentence, [w for w in sentence if w in entities], size, title, inverse=True)
            keys = [tuple(title if w == NEAR + title else w for w in key) for key in keys]
            pairs += [(key, (value,)) for key, value in zip(keys, values)]
    return pairs


# ---------------------------------------------------------------------------------------------------------------------
# the task
# ---------------------------------------------------------------------------------------------------------------------
@dataclass
class Movies(Corpus):
    """The samples; `candidates`: every entity, in the order of its name: what an answer may be; `memories`, to ask."""
    candidates: list = field(default_factory=list)
    memories: Memories = None

    def ask(self, text):
        """See `Memories.ask`."""
        return self.memories.ask(text)

    def sentences(self):
        """Everything that has words, for a vocabulary: questions, keys, values, candidates."""
        for sample in self.train:
            yield sample.question
        for key, value in self.memories.pairs:
            yield key
            yield value
        for name in self.candidates:
            yield (name,)


def load(paths, seed=1, kind="kb", size=3, most=64):
    """The questions of some files with their memories: Movies.

    kind    "kb", "window" or "sentence": what a memory is
    size    words on each side of a window
    most    memories of a question
    InputError for files that hold no question, or nothing to make memories from.
    """
    if kind not in KINDS:
        raise InputError(f"movies: expected memories of the kind {', '.join(KINDS)}, got {kind!r}")
    found = read(paths)
    where = ", ".join(map(str, paths))
    if not found.train:
        raise InputError(f"{where}: expected questions, found none")
    return _corpus(found, _store(found, kind, size, most, where), kind, seed, where)


def load_all(paths, kind="kb", size=3, most=64, store=None):
    """(every question of some files, each once and with all its answers; notes), to be measured.

    store    Memories, for files that hold questions alone
    The rest as in `load`.
    """
    found, where = read(paths), ", ".join(map(str, paths))
    if not found.train:
        raise InputError(f"{where}: expected questions, found none")
    alone = store is not None and not found.facts and not found.documents
    store = store if alone else _store(found, kind, size, most, where)
    asked, counts = list(dict.fromkeys([*found.train, *found.test])), Counter(known=0, asked=0)
    samples = [_sample(question, store, kind, counts) for question in asked]
    return samples, [f"{len(asked)} questions; {len(store.pairs)} memories ({kind})"
                     + (", those of the training" if alone else ""), _known(counts)]


def _store(found, kind, size, most, where):
    """The Memories that files make."""
    if not found.facts and (kind == "kb" or not found.documents):
        raise InputError(f"{where}: expected facts for the memories too: a .jsonl file with triples, or lines "
                         f"subject|relation|object{'' if kind == 'kb' else ', or documents'}")
    documents = cut(found.documents, found.entities) if found.documents else write(found.facts)
    return Memories(memories(kind, found.facts, documents, found.entities, size), most)


def _sample(question, store, kind, counts):
    """The Question of (words, entity, answers); counts those asked, and those of which a memory holds an answer."""
    words, entity, answers = question
    pairs, told = store.of(words, entity)
    values = {word for _, value in pairs for word in value}
    counts.update(asked=1, known=not values.isdisjoint(answers))
    return Question(told, words, answers[0], task=kind, pairs=pairs, answers=answers)


def _known(counts):
    return f"for {counts['asked'] - counts['known']} of {counts['asked']} questions no memory holds an answer"


def _corpus(found, store, kind, seed, where):
    once = {q: q[1] for q in found.train}
    parts = divide(list(once), seed, where, key=lambda q: q[1], most=1000)
    tests = list(dict.fromkeys(found.test)) or parts.test
    if found.test:
        parts.train += parts.test
    counts = Counter(known=0, asked=0)

    train, *held = ([_sample(q, store, kind, counts) for q in part] for part in (parts.train, parts.validation, tests))
    train = [replace(s, answer=a) for s in train for a in s.answers]
    notes = [f"{len(once) + len(dict.fromkeys(found.test))} questions, {len(found.facts)} facts, {len(found.entities)} "
             f"entities; {len(store.pairs)} memories ({kind})",
             _known(counts)]
    double = len(found.train) + len(found.test) - len(once) - len(dict.fromkeys(found.test))
    left_out = {**found.left_out, "questions that stood there twice": double}
    notes += [f"left out: {n} {what}" for what, n in left_out.items() if n]
    return Movies(train, *held, notes, sorted(found.entities), store)
