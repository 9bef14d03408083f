"""Reviews of five kinds of thing, made by rule, with their aspect and opinion terms: the built-in task of `aspects`.

An aspect term is a part or property of the thing reviewed of which the sentence says that it is good or bad; an opinion
term is a word that says so. Neither is a matter of the word alone:

    the [zoom]a that came with the case is [sharp]o .       case is no aspect here: nothing is said about it
    the zoom that came with the case is black .             nor is zoom here: black is no opinion
    this camera is sharp .                                  an opinion about the whole thing has no aspect: not marked
    the pool was clean and the [zoom]a was [sharp]o for this camera .       a camera has no pool
    the [quiet mode]a is [loud]o .                          and quiet is no opinion here

Some aspect and opinion words are in the test sentences only. What such a word is tells the other term of its sentence.
"""
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Review:
    """A sentence. aspects, opinions: spans (start, end) of words, end not included; opinions None where they are not
    known. kind: the class under which its score is reported."""
    words: tuple
    aspects: tuple
    opinions: tuple | None
    kind: str = ""


def by_length(count):
    """A class of sentences by their number of words, spelt so that the classes sort."""
    classes = (10, "01-10 words"), (20, "11-20 words"), (30, "21-30 words")
    return next((name for most, name in classes if count <= most), "31 words or more")


# -------------------------------------------------------------------------------------------------------- the words

def _list(text):
    return tuple(item.strip() for item in text.split(","))


@dataclass(frozen=True)
class Domain:
    """The words of one kind of thing. The last `NEW` aspects and opinions are for test sentences only. playful: aspects
    that have an opinion word in them."""
    things: tuple
    aspects: tuple
    playful: tuple
    opinions: tuple


NEW = 5
DOMAINS = tuple(Domain(*map(_list, texts)) for texts in (
    ("laptop, notebook, computer",
     "screen, keyboard, battery life, price, touchpad, sound card, fan, hinge, operating system, "
     "startup time, hard drive, graphics card, memory, weight, lid, cooling, web camera, power cord, trackball, "
     "docking station, backlight, charging brick, webcam shutter",
     "quiet mode, fast charger, quick start guide, smart cover, slow motion filter",
     "fast, slow, light, heavy, quiet, responsive, snappy, sluggish, bulky, sturdy, powerful, laggy, nimble, creaky, "
     "zippy, whiny, rugged"),
    ("restaurant, bistro, diner",
     "food, service, menu, price, wine list, waiter, dessert, soup, pasta, music, portion size, table setting, bread, "
     "decor, tasting menu, salad, lunch special, seafood, risotto, beef stew, sorbet, house wine, tiramisu",
     "happy hour, fresh juice, cold beer, hot sauce, sweet potato, rich chocolate cake",
     "delicious, bland, fresh, stale, tasty, greasy, salty, crisp, rude, attentive, hot, cold, juicy, soggy, "
     "flavorful, overcooked, succulent"),
    ("camera, camcorder, shooter",
     "zoom, lens, picture quality, flash, price, screen, viewfinder, shutter, battery life, image stabilizer, grip, "
     "dial, autofocus, color balance, white balance, memory card slot, strap, sensor, aperture ring, hot shoe, "
     "tripod mount, histogram, burst rate",
     "silent shutter, sharp mode, bright light setting, easy share button, clean dust filter",
     "sharp, blurry, bright, dim, accurate, grainy, compact, vivid, noisy, clunky, precise, washed out, crisp, smeary, "
     "punchy, hazy, jittery"),
    ("hotel, inn, guesthouse",
     "room, bed, service, pool, breakfast buffet, price, location, front desk, shower, view, lobby, air conditioning, "
     "light, bath towel, parking lot, elevator, balcony, room service, minibar, concierge desk, sauna, "
     "pillow menu, spa",
     "free breakfast, hot water, quiet hour, happy kids club, clean linen fee",
     "clean, dirty, comfortable, cramped, spacious, noisy, quiet, cozy, musty, friendly, shabby, stylish, central, "
     "drafty, luxurious, moldy, serene"),
    ("phone, handset, smartphone",
     "screen, sound, signal, ringtone, speaker, battery life, price, call quality, touch screen, voice dialing, "
     "antenna, menu, keypad, text editor, headset, charger, color display, belt clip, vibration, sim tray, earpiece, "
     "address book, predictive text",
     "loud speaker mode, clear case, smart assistant, quick dial, silent alarm",
     "clear, loud, tinny, handy, intuitive, confusing, slim, fragile, muffled, durable, weak, flimsy, sleek, garbled, "
     "dainty, scratchy, dependable"),
))
GENERAL = _list("great, good, excellent, awful, bad, poor, amazing, perfect, terrible, superb, disappointing, "
                "wonderful, horrible, decent, nice, fantastic, mediocre, impressive, lovely, useless, outstanding, "
                "dreadful, cheap, overpriced, stunning, lousy, marvelous, abysmal, splendid")
OTHER = {
    "U": _list("black, silver, digital, round, made of plastic, on the left, at the back, two years old, standard, "
               "included, from japan, rectangular, downstairs, the same as before, by the door, switched on, new, "
               "optional, blue, under the cover"),
    "B": _list("black, silver, digital, round, plastic, standard, second, new, blue, spare, japanese, metal"),
    "V": _list("love, hate, like, enjoy, adore, dislike, admire, appreciate, regret, praise, loathe, despise, cherish"),
    "v": _list("use, have, know, saw, tried, found, carry, mention, skipped, described, checked, moved, looked at"),
    "W": _list("my wife, my husband, my brother, a friend, our neighbor, my boss, my uncle, my mother, a colleague, "
               "the salesman, everyone, my roommate"),
    "R": _list("very, really, so, quite, rather, simply, always, just, surprisingly, a bit, too, extremely"),
    "H": _list("last week, on monday, in may, two days ago, at noon, after the trip, during our stay, in the evening, "
               "for a month, over the holidays, before work, last year"),
}

# ----------------------------------------------------------------------------------------------------- the sentences
# A aspect, O opinion, V opinion as a verb: marked. S is an aspect with an opinion word in it. N, s: the same words as A
# and S, of which nothing is said. X is an aspect of another kind of thing. P, Q: words like O and V that are about
# something else. T is the thing. U, B, v, W, R, H: `OTHER`.
PATTERNS = {
    "plain": ("the A is R O", "the A is O", "R O A", "what a O A", "its A was R O H", "i find the A R O"),
    "attribute": ("it has a O A", "this T comes with a O A", "W wanted a O A", "the O A won W over", "you get a R O A",
                  "the T has a B N and a O A"),
    "verb": ("i V the A", "W and i V the A", "we V the A of this T", "H we began to V the A", "i V how the A works",
             "we v the N and V the A"),
    "conjunction": ("the A and the A are O", "the A is O and O", "the A is O , the A is O and the A is O",
                    "both A and A are R O", "the N and the N are B , but the A is O"),
    "contrast": ("the A is O but the A is O", "although the A is O , the A is R O", "i V the A , yet the A is O",
                 "the A is O while the N is U", "the N is U while the A is O"),
    "relative": ("the A that came with the N is O", "the A , which W saw near the N H , is R O",
                 "the N came with a A that is O", "the A that W v with the N that i v is O",
                 "W v the N whose A is R O", "the N that i v H has a A which W would call O"),
    "negation": ("the A is not O", "there is nothing O about the A", "i never found the A O",
                 "nobody would call the A O", "W does not V the A"),
    "nothing": ("the N is U", "the N that came with the N is U", "W bought the T H", "we v the N next to the N",
                "W asked about the N H", "the N , which W saw near the N H , is U", "it has a B N",
                "i v how the N works",
                "this T comes with a B N", "the N and the N are U", "it stopped H and W sent it back",
                "i could not stop smiling H"),
    "whole thing": ("this T is R P", "i Q this T", "a R P T", "the T is P and it has a B N", "W and i Q the T H",
                    "the T is P but the A is O", "i Q the T but the A is R O"),
    "other thing": ("the X next door was P , but the A of this T is O",
                    "on this T the A is O , while the X at home is P",
                    "W told me that the X was P and bought this T", "the X was P and the A was O for this T",
                    "the A was O and the X was P for this T", "i Q the X and V the A of this T",
                    "we v a P X but we bought this T"),
    "comparison": ("the A is more O than the N of my last one", "next to the N of my last T , the A is O",
                   "unlike the B N of W , this A is O", "the N of my last T was U , this A is O",
                   "no other T has such a O A"),
    "play on words": ("the S is R O", "i V the S", "it has a O S", "we v the s H", "the s is U", "it has a B s",
                      "the S that came with the s is O", "the A is O and the s is U"),
}
BEFORE = ("", "", "", "", "to be fair ,", "H ,", "W says that", "we think", "as for me ,", "i must say")
AFTER = ("", "", "", "", "H", ", as W said", "for W", "and W agrees", "if you ask W", ", that is all")
JOINTS = (", and", ";", "and", ", but", ". also ,")
COMPOUND = 0.25  # share of sentences that are two patterns, one after the other


class _Maker:
    """One sentence: its words, and the spans found while they are put together."""

    def __init__(self, rng, domain, new=None):
        self.rng, self.domain = rng, domain
        self.new = new  # "A" or "O": a slot to be given a word of the test only
        self.words, self.aspects, self.opinions, self.used = [], [], [], set()

    def one(self, items):
        return items[int(self.rng.integers(len(items)))]

    def another(self, items):
        """An item that the sentence does not have yet, so that one word does not play two parts."""
        item = self.one([item for item in items if item not in self.used])
        self.used.add(item)
        return item

    def choose(self, slot):
        """The text for a slot."""
        d, shared = self.domain, set(self.domain.aspects)
        if slot == self.new:
            self.new = None
            return self.another(d.aspects[-NEW:] if slot == "A" else d.opinions[-NEW:] + GENERAL[-NEW:])
        if slot in "AN":
            return self.another(d.aspects[:-NEW])
        if slot in "Ss":
            return self.another(d.playful)
        if slot in "OP":
            return self.another(d.opinions[:-NEW] + GENERAL[:-NEW])
        if slot == "X":
            return self.another([a for other in DOMAINS for a in other.aspects[:-NEW] if a not in shared])
        return self.one(d.things if slot == "T" else OTHER["V" if slot == "Q" else slot])

    def write(self, pattern):
        for token in pattern.split():
            if len(token) > 1 or token not in "AONXPSsTUBVQvWRH":
                self.words.append(token)
                continue
            start = len(self.words)
            self.words += self.choose(token).split()
            if token in "AS":
                self.aspects.append((start, len(self.words)))
            elif token in "OV":
                self.opinions.append((start, len(self.words)))


def generate(sizes, seed):
    """Sentences for training, validation and test: a list of Reviews for each of `sizes`. No sentence comes twice.

    Half of the test sentences that have an aspect hold a word of the test only, and are of the kind "new aspect" or
    "new opinion". The same seed gives the same sentences.
    """
    rng, seen, parts = np.random.default_rng(seed), set(), []
    for n, size in enumerate(sizes):
        part = []
        while len(part) < size:
            review = _review(rng, n == 2)
            if review.words not in seen:
                seen.add(review.words)
                part.append(review)
        parts.append(part)
    return parts


def _review(rng, test):
    kind = list(PATTERNS)[int(rng.integers(len(PATTERNS)))]
    maker = _Maker(rng, DOMAINS[int(rng.integers(len(DOMAINS)))])
    pattern = maker.one(PATTERNS[kind])
    slots = [slot for slot in "AO" if slot in pattern.split()]
    if test and slots and rng.random() < 0.5:
        maker.new = maker.one(slots)
        kind = "new aspect" if maker.new == "A" else "new opinion"
    maker.write(maker.one(BEFORE))
    maker.write(pattern)
    if rng.random() < COMPOUND:
        second = maker.one(list(PATTERNS))
        maker.write(maker.one(JOINTS))
        maker.write(maker.one(PATTERNS[second]))
        kind = kind if kind.startswith("new") else "two clauses"
    maker.write(maker.one(AFTER))
    maker.write(maker.one((".", ".", ".", "!")))
    words = ["an" if word == "a" and after[0] in "aeiou" else word
             for word, after in zip(maker.words, [*maker.words[1:], "."])]
    return Review(tuple(words), tuple(maker.aspects), tuple(maker.opinions), kind)
