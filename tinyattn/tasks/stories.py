"""A simulator of stories with questions: the twenty kinds of Weston et al. 2015, in words and a world of its own.

A story is drawn as things that happen or hold in a small world (`stories_world.py`); each is told in one sentence, and
a question is answered from the state of the world, never from the text. With each answer come the sentences that it
follows from. The kinds have the numbers of the bAbI tasks:

     1 one fact             6 yes or no      11 coreference             16 induction
     2 two facts            7 counting       12 conjunction             17 position
     3 three facts          8 lists          13 compound coreference    18 size
     4 two arguments        9 negation       14 time                    19 finding a way
     5 three arguments     10 indefinite     15 deduction               20 motives
"""
import numpy as np

from . import stories_people as people
from . import stories_relations as relations
from .stories_world import Tale

KINDS = {
    "1": people.one_fact, "2": people.two_facts, "3": people.three_facts, "4": relations.two_arguments,
    "5": people.giving, "6": people.yes_or_no, "7": people.counting, "8": people.lists, "9": people.negation,
    "10": people.indefinite, "11": people.coreference, "12": people.conjunction, "13": people.compound_coreference,
    "14": people.time, "15": relations.deduction, "16": relations.induction, "17": relations.position,
    "18": relations.size, "19": relations.path, "20": people.motivation,
}


def tell(kind, rng):
    """One story of a kind, as its questions: [(sentences so far, question, answer, places of its support)]."""
    tale = Tale(rng)
    KINDS[kind](tale)
    return tale.questions


def generate(kind, sizes, seed):
    """Stories of a kind for several uses: for each of `sizes` a list of so many questions, as `tell` gives them.

    No whole story comes twice. Those that differ later may begin alike, so an early question may come again over the
    same few sentences: `tasks/qa.py` counts in its notes how many test questions do. Depends on `kind`, `sizes` and
    `seed` alone. RuntimeError if a kind has not so many different stories.
    """
    rng, told, parts, in_vain = np.random.default_rng([seed, int(kind)]), set(), [], 0
    for count in sizes:
        part = []
        while len(part) < count:
            questions = tell(kind, rng)
            story = questions[-1][0]
            if story in told:
                in_vain += 1
                if in_vain > 100 * sum(sizes):
                    raise RuntimeError(f"stories of kind {kind}: expected {sum(sizes):,} questions, found "
                                       f"{len(told):,} different stories")
                continue
            told.add(story)
            part += questions[:count - len(part)]
        parts.append(part)
    return parts
