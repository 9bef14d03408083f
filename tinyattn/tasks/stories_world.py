"""The little world that stories are told from: people who move about and carry things, and who said what where.

Whatever happens is told in one sentence, and the world keeps with each fact the place of that sentence in the story, so
that an answer always comes with the sentences it follows from.
"""
NAMES = {"Sam": "he", "Nora": "she", "Omar": "he", "Ruth": "she", "Felix": "he", "Ivy": "she"}
PLACES = ["kitchen", "bedroom", "cellar", "attic", "library", "porch"]
THINGS = ["apple", "lamp", "violin", "kettle"]
MOVES = {"walks into": "walk into", "goes to": "go to", "runs to": "run to", "strolls to": "stroll to"}
TAKES = ["picks up", "takes", "grabs"]
DROPS = ["drops", "puts down", "leaves"]
LATER = ["Then", "Afterwards", "After that", "Next"]


class Tale:
    """A story as it is told, with its questions. rng: where every choice comes from."""

    def __init__(self, rng):
        self.rng, self.sentences, self.questions = rng, [], []

    def tell(self, sentence):
        """Add a sentence; returns its place in the story."""
        self.sentences.append(sentence)
        return len(self.sentences) - 1

    def ask(self, question, answer, support):
        """Ask about the story so far. support: places of the sentences that the answer follows from."""
        self.questions.append((tuple(self.sentences), question, answer, tuple(sorted(set(support)))))

    def pick(self, items):
        return items[int(self.rng.integers(len(items)))]

    def some(self, items, n):
        """n different items in random order."""
        return [items[i] for i in self.rng.permutation(len(items))[:n]]

    def chance(self, p):
        return bool(self.rng.random() < p)


class World:
    """Who is where, who carries what, and since which sentence.

    at       {person: (place, sentences that say so)}; nobody is anywhere before it was told
    before   {person: the same of the place before, or None}
    load     {person: {thing: sentence}}, in the order of picking up
    lies     {thing: (place, sentences)} for what was put down, or has been seen nowhere yet (None)
    loads    {person: sentences that changed what is carried}
    journeys {thing: [(place, sentences that brought it there, (place before, sentences) of who brought it, or None)]}
    """

    def __init__(self, tale, people=4, things=3):
        self.tale = tale
        self.people, self.things = tale.some(list(NAMES), people), tale.some(THINGS, things)
        self.at, self.before, self.lies = {}, {}, dict.fromkeys(self.things)
        self.load, self.loads = {p: {} for p in self.people}, {p: [] for p in self.people}
        self.journeys = {thing: [] for thing in self.things}

    # -- what happens ------------------------------------------------------------------------------------------------
    def move(self, *people, to=None, told=None, also=()):
        """Some people go to a place where none of them is; returns the place of the sentence.

        told    the beginning of the sentence, if it does not name them
        also    places of sentences that it leans on
        """
        here = {self.place(p) for p in people}
        to = to or self.tale.pick([place for place in PLACES if place not in here])
        verb = self.tale.pick(list(MOVES))
        start = told or (people[0] if len(people) == 1 else " and ".join(people))
        plural = len(people) > 1
        said = self.tale.tell(f"{start} {MOVES[verb] if plural else verb} the {to}.")
        for person in people:
            self.before[person], self.at[person] = self.at.get(person), (to, (said, *also))
            for thing, taken in self.load[person].items():
                self.journeys[thing].append((to, (taken, said), self.before[person]))
        return said

    def take(self, person, thing):
        """The first time, it is `an apple`; from then on it is `the apple`."""
        known = self.lies[thing] is not None
        article = "the" if known else "an" if thing[0] in "aeiou" else "a"
        said = self.tale.tell(f"{person} {self.tale.pick(TAKES)} {article} {thing}.")
        if not known:
            self.journeys[thing].append((self.place(person), (said,), None))
        self.lies[thing], self.load[person][thing] = (), said
        self.loads[person].append(said)

    def drop(self, person, thing):
        said = self.tale.tell(f"{person} {self.tale.pick(DROPS)} the {thing}.")
        place, why = self.at[person]
        del self.load[person][thing]
        self.lies[thing] = place, (said, *why)
        self.loads[person].append(said)

    def give(self, person, thing, other):
        """Returns the place of the sentence."""
        said = self.tale.tell(f"{person} {self.tale.pick(['gives', 'hands', 'passes'])} the {thing} to {other}.")
        del self.load[person][thing]
        self.load[other][thing] = said
        for someone in (person, other):
            self.loads[someone].append(said)
        return said

    def step(self, carry=0.5):
        """Somebody picks up or drops something with probability `carry`, where that is possible, or else goes away."""
        person = self.tale.pick(self.people)
        here = self.place(person)
        deeds = [(self.drop, thing) for thing in self.load[person]]
        deeds += [(self.take, t) for t in self.things if here and self.holder(t) is None
                  and (self.lies[t] is None or self.lies[t][0] == here)]
        if deeds and self.tale.chance(carry):
            deed, thing = self.tale.pick(deeds)
            deed(person, thing)
        else:
            self.move(person)

    # -- what is so --------------------------------------------------------------------------------------------------
    def place(self, person):
        return self.at[person][0] if person in self.at else None

    def holder(self, thing):
        return next((p for p in self.people if thing in self.load[p]), None)

    def where(self, thing):
        """(place, sentences) of a thing that was spoken of, else None."""
        holder = self.holder(thing)
        if holder is None:
            return self.lies[thing]
        place, why = self.at[holder]
        return place, (self.load[holder][thing], *why)

    def located(self):
        """The people who are known to be somewhere."""
        return [p for p in self.people if p in self.at]
