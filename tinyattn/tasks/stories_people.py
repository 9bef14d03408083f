"""Stories of people and things, by kind: where somebody is, what was carried where, who gave what to whom, and why.

Each function tells one story into a Tale and asks its questions; all answers are read from the World.
"""
from .stories_world import LATER, NAMES, PLACES, World

ASKED = 5  # questions a story
COUNTS = ["none", "one", "two", "three", "four"]
TIMES = ["Yesterday", "This morning", "This afternoon", "This evening"]
NEEDS = {  # who feels so goes there and takes that
    "hungry": ("kitchen", "sandwich"), "tired": ("bedroom", "blanket"), "bored": ("library", "novel"),
    "cold": ("attic", "coat"), "thirsty": ("cellar", "cider"),
}


def _rounds(tale, world, question, steps=2, carry=0.5, step=None):
    """Let things happen, `steps` at a time, and ask when `question()` can: it gives its text, answer and support."""
    step = step or (lambda: world.step(carry))
    while len(tale.questions) < ASKED:
        for _ in range(steps):
            step()
        if asked := question():
            tale.ask(*asked)


def one_fact(tale):
    """1: where is Sam? By his last move."""
    world = World(tale, things=0)
    _rounds(tale, world, lambda: _whereabouts(tale, world))


def two_facts(tale):
    """2: where is the apple? By who dropped it or has it, and where that person went. Half the time a dropped one."""
    world = World(tale)

    def question():
        known = [t for t in world.things if world.where(t)]
        if not known:
            return None
        lying = [t for t in known if world.holder(t) is None]
        thing = tale.pick(lying if lying and tale.chance(0.5) else known)
        return (f"Where is the {thing}?", *world.where(thing))
    _rounds(tale, world, question)


def three_facts(tale):
    """3: where was the apple before the attic? By who picked it up, the move there, and the move before."""
    world = World(tale, people=3)

    def question():
        known = []
        for thing in world.things:
            stops = [stop[0] for stop in world.journeys[thing]]
            known += [(thing, to, before, why) for to, why, before in world.journeys[thing]
                      if before and stops.count(to) == 1]
        if not known:
            return None
        thing, to, (place, said), why = tale.pick(known)
        return f"Where was the {thing} before the {to}?", place, (*why, *said)
    _rounds(tale, world, question, steps=3)


def giving(tale):
    """5: who gave the lamp to Nora, what, to whom? By the last such gift."""
    world, gifts = World(tale, people=3, things=2), []

    def step():
        pairs = [(p, t, o) for p in world.people for t in world.load[p] for o in world.located()
                 if o != p and world.place(o) == world.place(p)]
        if pairs and tale.chance(0.8):
            gift = tale.pick(pairs)
            gifts.append((*gift, world.give(*gift)))
            return
        holders = [p for p in world.people if world.load[p]]
        if holders and tale.chance(0.6):  # to whom they can give something
            giver = tale.pick(holders)
            comer = tale.pick([p for p in world.people if p != giver])
            if world.place(comer) != world.place(giver):
                world.move(comer, to=world.place(giver))
                return
        world.step(0.6)

    def question():
        if not gifts:
            return None
        giver, thing, taker, _ = tale.pick(gifts[-2:])
        ways = [(f"What did {giver} give to {taker}?", 1, (0, 2)), (f"Who gave the {thing} to {taker}?", 0, (1, 2)),
                (f"Who did {giver} give the {thing} to?", 2, (0, 1)), (f"Who gave the {thing}?", 0, (1,)),
                (f"Who received the {thing}?", 2, (1,))]
        text, asked, same = tale.pick(ways)
        told = (giver, thing, taker)
        last = next(g for g in reversed(gifts) if all(g[i] == told[i] for i in same))
        return text, last[asked], last[3:]
    _rounds(tale, world, question, step=step)


def yes_or_no(tale):
    """6: is Sam in the kitchen?"""
    world = World(tale, things=2)

    def question():
        if not world.at:
            return None
        person = tale.pick(world.located())
        place, why = world.at[person]
        asked = place if tale.chance(0.5) else tale.pick([p for p in PLACES if p != place])
        return f"Is {person} in the {asked}?", "yes" if asked == place else "no", why
    _rounds(tale, world, question, carry=0.2)


def _about_loads(tale, text, answer):
    """Questions on what somebody carries who has taken or dropped something; by all that changed it."""
    world = World(tale, people=3, things=4)

    def question():
        known = [p for p in world.people if world.loads[p]]
        if not known:
            return None
        person = tale.pick(known)
        return text.format(person), answer(world.load[person]), world.loads[person]
    _rounds(tale, world, question, carry=0.6)


def counting(tale):
    """7: how many things does Sam carry?"""
    _about_loads(tale, "How many things does {} carry?", lambda load: COUNTS[len(load)])


def lists(tale):
    """8: what does Sam carry? The things by their alphabet, with commas, or nothing."""
    _about_loads(tale, "What does {} carry?", lambda load: ",".join(sorted(load)) or "nothing")


def negation(tale):
    """9: is Sam in the kitchen, where some sentences only say where somebody is not?"""
    world, gone = World(tale, things=0), {}

    def step():
        person, way = tale.pick(world.people), tale.pick(["moves", "moves", "is", "leaves", "is not"])
        place = tale.pick([p for p in PLACES if p != world.place(person)])
        if way == "leaves" and person in world.at or way == "is not":
            if way == "leaves":
                place, _ = world.at[person]
            said = tale.tell(f"{person} is {'no longer' if way == 'leaves' else 'not'} in the {place}.")
            if way == "leaves" or person not in world.at:
                world.at.pop(person, None)
                gone[person] = place, (said,)
        elif way == "is":
            world.at[person] = place, (tale.tell(f"{person} is in the {place}."),)
        else:
            world.move(person)

    def question():
        known = [p for p in world.people if p in world.at or p in gone]
        if not known:
            return None
        person = tale.pick(known)
        place, why = world.at.get(person) or gone[person]
        if person not in world.at:
            return f"Is {person} in the {place}?", "no", why
        asked = place if tale.chance(0.7) else tale.pick([p for p in PLACES if p != place])
        return f"Is {person} in the {asked}?", "yes" if asked == place else "no", why
    _rounds(tale, world, question, step=step)


def indefinite(tale):
    """10: is Sam in the kitchen, if he is either there or in the attic? Maybe."""
    world = World(tale, things=0)

    def step():
        person = tale.pick(world.people)
        if tale.chance(0.5):
            world.move(person)
            return
        one, other = tale.some(PLACES, 2)
        world.at[person] = (one, other), (tale.tell(f"{person} is either in the {one} or the {other}."),)

    def question():
        if not world.at:
            return None
        person = tale.pick(world.located())
        place, why = world.at[person]
        there = place if isinstance(place, tuple) else (place,)
        asked = tale.pick(there) if tale.chance(0.6) else tale.pick([p for p in PLACES if p not in there])
        answer = "no" if asked not in there else "maybe" if len(there) > 1 else "yes"
        return f"Is {person} in the {asked}?", answer, why
    _rounds(tale, world, question, step=step)


def coreference(tale):
    """11: where is Sam, if `then he` went on? `He` is the one of the sentence before."""
    world = World(tale, things=0)

    def step():
        person = tale.pick(world.people)
        said = world.move(person)
        if tale.chance(0.8):
            world.move(person, told=f"{tale.pick(LATER)} {NAMES[person]}", also=(said,))
    _rounds(tale, world, lambda: _whereabouts(tale, world), steps=1, step=step)


def conjunction(tale):
    """12: where is Sam, if he and Nora went together?"""
    world = World(tale, things=0)
    _rounds(tale, world, lambda: _whereabouts(tale, world), step=lambda: world.move(*tale.some(world.people, 2)))


def compound_coreference(tale):
    """13: where is Sam, if he and Nora went somewhere and `then they` went on?"""
    world = World(tale, things=0)

    def step():
        pair = tale.some(world.people, 2)
        said = world.move(*pair)
        world.move(*pair, told=f"{tale.pick(LATER)} they", also=(said,))
    _rounds(tale, world, lambda: _whereabouts(tale, world), steps=1, step=step)


def time(tale):
    """14: where was Sam before the attic? The days' parts are told in any order."""
    people = tale.some(list(NAMES), 3)
    were, todo = {}, tale.some([(p, t) for p in people for t in range(len(TIMES))], 3 * len(TIMES))
    while todo:
        for person, when in todo[:2]:
            place = tale.pick([p for p in PLACES if p not in [v[0] for k, v in were.items() if k[0] == person]])
            verb = tale.pick(["walked into", "went to", "ran to"])
            one, other = f"{person} {verb} the {place}", TIMES[when]
            said = tale.tell(f"{other} {one}." if tale.chance(0.5) else f"{one} {other[0].lower()}{other[1:]}.")
            were[person, when] = place, said
        todo = todo[2:]
        later = [(p, t) for p, t in were if any((p, earlier) in were for earlier in range(t))]
        if later and len(tale.questions) < ASKED:
            person, when = tale.pick(later)
            before = max(t for p, t in were if p == person and t < when)
            (place, said), (answer, earlier) = were[person, when], were[person, before]
            tale.ask(f"Where was {person} before the {place}?", answer, (said, earlier))


def motivation(tale):
    """20: where will Sam go, why does he go there, why does he take that? By what he feels."""
    people = tale.some(list(NAMES), 3)
    feels, said = dict(zip(people, tale.some(list(NEEDS), 3))), {}
    done, turns = dict.fromkeys(people, 0), [*people] * 3
    for person in tale.some(turns, len(turns)):
        feeling = feels[person]
        place, thing = NEEDS[feeling]
        if done[person] == 0:
            said[person] = tale.tell(f"{person} is {feeling}.")
            question, answer = f"Where will {person} go?", place
        elif done[person] == 1:
            verb = tale.pick(["walks into", "goes to", "runs to"])
            tale.tell(f"{person} {verb} the {place}.")
            question, answer = f"Why does {person} go to the {place}?", feeling
        else:
            tale.tell(f"{person} {tale.pick(['picks up', 'takes', 'grabs'])} the {thing}.")
            question, answer = f"Why does {person} take the {thing}?", feeling
        tale.ask(question, answer, (said[person],))
        done[person] += 1


def _whereabouts(tale, world):
    """Where is one of those who are known to be somewhere?"""
    person = tale.pick(world.located()) if world.at else None
    return person and (f"Where is {person}?", *world.at[person])
