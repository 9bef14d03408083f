"""Stories that stand still, by kind: which room is north of which, who admires whom, what is larger, how to get there.

Each function tells one story into a Tale and asks its questions; all answers are read from places, sizes and classes
that were drawn first.
"""
from collections import deque

from .stories_world import NAMES, PLACES

NORTH, EAST, SOUTH, WEST = (0, 1), (1, 0), (0, -1), (-1, 0)
COMPASS = {"north": NORTH, "east": EAST, "south": SOUTH, "west": WEST}
SIDES = {"above": NORTH, "to the right of": EAST, "below": SOUTH, "to the left of": WEST}
TRADES = {"baker": "bakers", "pilot": "pilots", "singer": "singers", "doctor": "doctors"}
ANIMALS = ["parrot", "lizard", "beetle", "fox", "snail"]
COLOURS = ["crimson", "amber", "black", "violet"]
SHAPES = [f"{colour} {form}" for colour in ("red", "blue", "green") for form in ("cube", "ball", "star")]
BOXES = ["crate", "basket", "drawer", "trunk", "jar", "tin"]


def _between(one, other):
    return one[0] - other[0], one[1] - other[1]


def _name(directions, step):
    return next(name for name, s in directions.items() if s == step)


def _grow(tale, names):
    """Places on a grid, each next to one before: ({name: point}, [(name, the one it hangs on)])."""
    at, edges = {names[0]: (0, 0)}, []
    for name in names[1:]:
        free = [(old, (p[0] + d[0], p[1] + d[1])) for old, p in at.items() for d in COMPASS.values()
                if (p[0] + d[0], p[1] + d[1]) not in at.values()]
        old, point = tale.pick(free)
        at[name] = point
        edges.append((name, old))
    return at, edges


def _path(links, start, end):
    """The shortest way from start to end: [name]. links: {name: {neighbour: anything}}. None where there is none."""
    came, todo = {start: None}, deque([start])
    while todo:
        here = todo.popleft()
        if here == end:
            way = [end]
            while came[way[-1]] is not None:
                way.append(came[way[-1]])
            return way[::-1]
        for there in links.get(here, ()):
            if there not in came:
                came[there] = here
                todo.append(there)
    return None


def _tell_edges(tale, at, edges, directions, sentence):
    """Tell how each pair lies, in any order and from either side; {name: {neighbour: place of the sentence}}."""
    links = {}
    for one, other in tale.some(edges, len(edges)):
        one, other = (one, other) if tale.chance(0.5) else (other, one)
        said = tale.tell(sentence.format(one, _name(directions, _between(at[one], at[other])), other))
        links.setdefault(one, {})[other] = links.setdefault(other, {})[one] = said
    return links


def two_arguments(tale):
    """4: what is north of the attic, what is the attic north of? Of the same words, the order decides."""
    rooms = tale.some(PLACES, 3)
    at, edges = _grow(tale, rooms)
    links = _tell_edges(tale, at, edges, COMPASS, "The {} is {} of the {}.")
    one, other = tale.pick(edges)
    one, other = (one, other) if tale.chance(0.5) else (other, one)
    way = _name(COMPASS, _between(at[one], at[other]))
    if tale.chance(0.5):  # in a story of three rooms at most one lies directly on a side of another
        tale.ask(f"What is {way} of the {other}?", one, (links[one][other],))
    else:
        tale.ask(f"What is the {one} {way} of?", other, (links[one][other],))


def deduction(tale):
    """15: whom does Nora admire? She is a baker, and bakers admire pilots."""
    admires, trades = {}, list(TRADES)
    for trade in trades:
        admires[trade] = tale.pick([t for t in trades if t != trade])
    people = tale.some(list(NAMES), 4)
    is_a = {person: tale.pick(trades) for person in people}
    said = {}
    for what in tale.some([*trades, *people], len(trades) + len(people)):
        said[what] = tale.tell(f"{what} is a {is_a[what]}." if what in is_a else
                               f"{TRADES[what].capitalize()} admire {TRADES[admires[what]]}.")
    for person in people:
        trade = is_a[person]
        tale.ask(f"Who does {person} admire?", TRADES[admires[trade]], (said[person], said[trade]))


def induction(tale):
    """16: what colour is Nora? She is a parrot, and so is Sam, who is crimson. In a story an animal has one colour."""
    animals = tale.some(ANIMALS, 3)
    colours = dict(zip(animals, tale.some(COLOURS, 3)))
    people = tale.some(list(NAMES), 5)
    is_a = dict(zip(people, [*animals, *(tale.pick(animals) for _ in people[3:])]))
    asked = people[-1]
    facts = [(p, what) for p in people for what in ("kind", "colour") if (p, what) != (asked, "colour")]
    said = {}
    for person, what in tale.some(facts, len(facts)):
        word = colours[is_a[person]]
        said[person, what] = tale.tell(f"{person} is a {is_a[person]}." if what == "kind" else f"{person} is {word}.")
    alike = [p for p in people[:-1] if is_a[p] == is_a[asked]]
    alike = max(alike, key=lambda p: min(said[p, "kind"], said[p, "colour"]))  # the newest
    tale.ask(f"What colour is {asked}?", colours[is_a[asked]],
             (said[asked, "kind"], said[alike, "kind"], said[alike, "colour"]))


def position(tale):
    """17: is the red cube above the blue ball? Each sentence says that a thing lies one step from another."""
    shapes = tale.some(SHAPES, 3)
    at, edges = _grow(tale, shapes)
    links = _tell_edges(tale, at, edges, SIDES, "The {} is {} the {}.")
    ends = [s for s in shapes if len(links[s]) == 1]
    for _ in range(4):
        one, other = tale.some(ends, 2)
        apart = _between(at[one], at[other])
        true = [side for side, step in SIDES.items() if step[0] * apart[0] > 0 or step[1] * apart[1] > 0]
        yes = tale.chance(0.5)
        side = tale.pick(true if yes else [side for side in SIDES if side not in true])
        tale.ask(f"Is the {one} {side} the {other}?", "yes" if yes else "no",
                 [said for shape in ends for said in links[shape].values()])


def size(tale):
    """18: does the jar fit into the crate? By a chain of sentences on which is larger."""
    boxes = tale.some(BOXES, 5)  # from large to small
    pairs = [(i, i + 1) for i in range(4)]
    pairs += [tuple(sorted(tale.some(range(5), 2))) for _ in range(2)]
    larger = {}
    for i, j in tale.some(pairs, len(pairs)):
        one, other = boxes[i], boxes[j]
        said = tale.tell(f"The {one} is bigger than the {other}." if tale.chance(0.5) else
                         f"The {other} fits inside the {one}.")
        larger.setdefault(one, {})[other] = said
    for _ in range(5):
        i, j = sorted(tale.some(range(5), 2))
        one, other = boxes[i], boxes[j]
        way = _path(larger, one, other)
        support = [larger[a][b] for a, b in zip(way, way[1:])]
        yes = tale.chance(0.5)
        if tale.chance(0.5):
            one, other = (one, other) if yes else (other, one)
            tale.ask(f"Is the {one} bigger than the {other}?", "yes" if yes else "no", support)
        else:
            one, other = (other, one) if yes else (one, other)
            tale.ask(f"Does the {one} fit inside the {other}?", "yes" if yes else "no", support)


def path(tale):
    """19: how do you go from the attic to the porch? Two steps, such as `north,east`."""
    rooms = tale.some(PLACES, 5)
    at, edges = _grow(tale, rooms)
    links = _tell_edges(tale, at, edges, COMPASS, "The {} is {} of the {}.")
    ways = [way for one in rooms for other in rooms if len(way := _path(links, one, other)) == 3]
    way = tale.pick(ways)
    steps = list(zip(way, way[1:]))
    tale.ask(f"How do you go from the {way[0]} to the {way[2]}?",
             ",".join(_name(COMPASS, _between(at[b], at[a])) for a, b in steps), [links[a][b] for a, b in steps])
