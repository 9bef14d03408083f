"""Text about films: written from facts, or read and cut into words with each entity as one."""
import zlib

from tinyattn.attention.key_value import merge
from tinyattn.tasks.text import tokenize

LEADS = {  # relation: ways to say it in the first sentence
    "release_year": ("from {things}", ", shown in {things}", "of the year {things}"),
    "directed_by": (", directed by {things}", "by {things}", "that {things} made"),
}
SENTENCES = {  # relation: ways to say it; "{things}" is the list of things
    "written_by": ("it was written by {things} .", "the script is by {things} .", "{things} wrote the story ."),
    "starred_actors": ("it stars {things} .", "in the main parts we see {things} .", "{things} play in it ."),
    "has_genre": ("it is a {things} film .", "the genre is {things} .", "most would call it {things} ."),
    "has_tags": ("people think of {things} .", "viewers describe it by {things} .", "it has to do with {things} ."),
    "in_language": ("the language is {things} .", "it is spoken in {things} .", "the actors speak {things} ."),
}


def write(facts):
    """[(title, [sentence as words])] of the facts {(subject, relation, object)}, a document for each subject.

    The first sentence names the film, its year and who directed it; what else is known has a sentence for each
    relation, its objects as a list: "it stars A , B and C .". There the film is "it", and who reads such a sentence by
    itself does not know which. How a thing is said depends on title and relation alone.
    """
    about = {}
    for subject, relation, thing in facts:
        about.setdefault(subject, {}).setdefault(relation, []).append(thing)
    documents = []
    for title, relations in about.items():
        lead, others = [title, "is", "a", "film"], []
        for relation, things in relations.items():
            name = f"{title}|{relation}"
            if relation in LEADS:
                lead += _say(_one_of(LEADS[relation], name), things)
            else:
                ways = SENTENCES.get(relation, (f"its {relation} is {{things}} .",))
                others.append(_say(_one_of(ways, name), things))
        documents.append((title, [(*lead, "."), *others]))
    return documents


def _one_of(ways, name):
    return ways[zlib.crc32(name.encode()) % len(ways)]


def _say(way, things):
    """The words of a sentence with {things} in it."""
    return tuple(w for word in way.split() for w in (_list(things) if word == "{things}" else [word]))


def _list(things):
    """["A", "B", "C"] to A , B and C as words."""
    words = []
    for i, thing in enumerate(things):
        words += ([] if i == 0 else ["and"] if i == len(things) - 1 else [","]) + [thing]
    return words


def cut(documents, entities):
    """Documents as they were read, [(title, [line])], cut into words: [(title, [words of the line])]. An entity is
    one word."""
    by_words = {" ".join(tokenize(name, lower=False)): name for name in entities}
    by_first = {}
    for spelled in by_words:
        if spelled:
            by_first.setdefault(spelled.split()[0], []).append(spelled)

    def words(line):
        tokens = tokenize(line, lower=False)
        likely = [name for first in sorted(set(tokens)) for name in by_first.get(first, ())]
        return tuple(by_words.get(w, w.lower()) for w in merge(tokens, likely))

    return [(title, [words(line) for line in lines]) for title, lines in documents]
