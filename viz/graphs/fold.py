"""From a Program to what is drawn of it: nodes, edges and boxes, few enough to be read.

Two ways to draw less:
1. **Depth.** Scopes are boxes. A box deeper than `depth` is closed: all its ops become one node.
2. **Steps.** Sibling scopes that differ only in a number at the end and hold the same ops (`step 0`, `step 1`, ...) are
   laid on top of each other: "step × 15" is drawn once. What step 3 passes to step 4 is an edge from step to step.

Everything is iterative and linear in the number of ops, so that a graph of any size can at least be counted.
"""
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import lru_cache

_PATHS = 100_000  # scopes whose boxes are remembered
_NUMBERED = re.compile(r"(.*?)[ _.:#-]?(\d+)$")


@dataclass
class Node:
    """`path` is the box it stands in; `steps`: how many time steps it stands for. A closed box has its name in `part`
    and counts the parameters that are used nowhere else: its own, and those that its steps share."""
    kind: str                  # "op", "scope", or that of a leaf: "parameter", "input", "constant", "outside"
    path: tuple
    members: list = field(default_factory=list)   # instruction numbers of an op or scope, value ids of a leaf
    steps: int = 1
    part: object = None
    parameters: int = 0
    shared: int = 0

    @property
    def level(self):
        """How many parts of a path this node shows."""
        return len(self.path) + (self.part is not None)
    backward: bool = False


@dataclass
class Edge:
    source: int                # positions in `Drawing.nodes`
    target: int
    loop: bool = False         # from one time step to a later one
    saved: bool = False        # from the forward into the backward pass
    only: str = ""             # "step 0", if it leads into just that one of several steps
    uses: list = field(default_factory=list)      # (instruction number, input slot) for each edge that lies here


@dataclass
class Drawing:
    nodes: list
    edges: list
    boxes: dict                # path -> title, outer boxes first


def fold(program, depth=None, steps=False):
    """The Drawing of `program`, with boxes open down to `depth` (None: all) and, with `steps`, equal steps as one."""
    return _Folding(program, depth, steps).run()


def depth_of(program):
    """The number of boxes around the innermost op."""
    return max((len(path) for path in map(path_of, program.instructions)), default=0)


def path_of(instruction):
    """The boxes around an op. The rule of an op is recorded as `backward/op`; only `backward` is a box, or every
    product in the whole graph would lie in one box `backward/mul`."""
    return _boxes_of(instruction.scope)


@lru_cache(_PATHS)
def _boxes_of(scope):
    parts = tuple(scope.split("/")) if scope else ()
    if "backward" not in parts:
        return parts
    first = parts.index("backward") + 1
    inner = parts[first:]  # a rule may be made of ops that are differentiated in their turn: backward/op/backward/op
    inner = inner[:inner.index("backward")] if "backward" in inner else inner
    return parts[:first] + inner[:-1]


class _Folding:
    def __init__(self, program, depth, steps):
        self.program, self.depth = program, depth
        self.paths = [path_of(step) for step in program.instructions]       # where each op really is
        self.merged = _merged_paths(program, self.paths) if steps else {}  # real path -> path of the drawing
        self.nodes, self.at = [], {}                                       # key -> position in `nodes`
        self.producer = {value: i for i, step in enumerate(program.instructions) for value in step.outputs}

    def run(self):
        self._place_ops()
        self._place_leaves()
        edges = self._edges()
        return Drawing(self.nodes, edges, self._boxes())

    def drawn(self, path):
        return self.merged.get(path, path)

    def closed(self, path):
        """The part of `path` that is drawn as one node, or None if `path` is open."""
        return None if self.depth is None or len(path) <= self.depth else path[:self.depth + 1]

    def node(self, key, kind, path, steps, part, backward):
        if key not in self.at:
            self.at[key] = len(self.nodes)
            self.nodes.append(Node(kind, path, steps=steps, part=part, backward=backward))
        return self.at[key]

    # -- ops ---------------------------------------------------------------------------------------------------------
    def _place_ops(self):
        twins = _twins(self.program, self.paths, self.producer, self.drawn) if self.merged else None
        self.node_of = []
        for i, real in enumerate(self.paths):
            path = self.drawn(real)
            closed, backward = self.closed(path), "backward" in real
            if closed is not None:
                n = self.node(("scope", closed), "scope", closed[:-1], _times(closed), closed[-1], backward)
            else:
                n = self.node(("op", path, i if twins is None else twins[i]), "op", path, _times(path), None, backward)
            self.nodes[n].members.append(i)
            self.node_of.append(n)

    # -- leaves ------------------------------------------------------------------------------------------------------
    def _place_leaves(self):
        """A leaf stands in the innermost box around its uses, if there are any in the forward pass around those; if
        that box is closed, it is in there."""
        uses, groups = defaultdict(list), defaultdict(list)
        for i, step in enumerate(self.program.instructions):
            for slot, value in enumerate(step.inputs):
                if value is not None and value not in self.producer and not is_number(self.program.values[value]):
                    uses[value].append((i, slot))
        for value, places in uses.items():
            places = uses[value] = [(i, slot) for i, slot in places if "backward" not in self.paths[i]] or places
            real = _common([self.paths[i] for i, _ in places])
            kind = leaf_kind(self.program.values[value])
            peers = tuple(sorted({(self.node_of[i], slot) for i, slot in places}))
            groups[(kind, self.drawn(real), peers) if self.drawn(real) != real else value].append((value, real))
        self.leaf_of = {}
        for key, members in groups.items():
            kind, path = leaf_kind(self.program.values[members[0][0]]), self.drawn(members[0][1])
            if self._shared_inside(uses, members, kind):
                continue
            while _times(path) > max(1, len(members)):   # the first step's start value does not belong to every step
                path = path[:-1]
            closed = self.closed(path)
            if closed is not None:
                inside = self.nodes[self.at["scope", closed]]
                inside.parameters += len(members) if kind == "parameter" else 0
                self.leaf_of.update((value, self.at["scope", closed]) for value, _ in members)
                continue
            n = self.node(("leaf", key), kind, path, len(members), None, "backward" in path)
            self.nodes[n].members = [value for value, _ in members]
            self.leaf_of.update((value, n) for value, _ in members)

    def _shared_inside(self, uses, members, kind):
        """Do only the steps of one closed box use this leaf, more than one of them? Then it is counted there."""
        users = {self.node_of[i] for value, _ in members for i, _ in uses[value]}
        steps = {self.paths[i] for value, _ in members for i, _ in uses[value]}
        node = self.nodes[next(iter(users))]
        if len(users) > 1 or node.kind != "scope" or node.steps == 1 or len({path[:node.level] for path in steps}) == 1:
            return False
        node.shared += kind == "parameter"
        self.leaf_of.update((value, next(iter(users))) for value, _ in members)
        return True

    # -- edges -------------------------------------------------------------------------------------------------------
    def _edges(self):
        edges = {}
        for i, step in enumerate(self.program.instructions):
            target = self.node_of[i]
            for slot, value in enumerate(step.inputs):
                source, maker = self.leaf_of.get(value), self.producer.get(value)
                if maker is not None:
                    source = self.node_of[maker]
                if source is None:
                    continue
                start, end = self.nodes[source], self.nodes[target]
                level = min(start.level, end.level)
                loop = maker is not None and self._crosses(self.paths[maker], self.paths[i], level)
                if source == target and not loop:
                    continue
                key = (source, target, loop, slot if end.kind == "op" and start.steps <= end.steps else None)
                if key not in edges:
                    saved = end.backward and (not start.backward or start.kind == "outside")
                    edges[key] = Edge(source, target, loop, saved)
                edges[key].uses.append((i, slot))
        for edge in edges.values():
            edge.only = "" if edge.loop else self._only_step(edge)
        return list(edges.values())

    def _crosses(self, one, other, level):
        """Do two ops lie in different time steps of the same loop, as far as `level` parts of their paths are drawn?"""
        if one == other or not self.merged:
            return False
        for a, b, c, d in zip(one[:level], other[:level], self.drawn(one), self.drawn(other), strict=False):
            if c != d:
                return False
            if a != b:
                return True
        return False

    def _only_step(self, edge):
        """The name of the one time step into which an edge leads, or "" if it leads into several or there are none."""
        target = self.nodes[edge.target]
        real = {self.paths[i][:target.level] for i, _ in edge.uses}
        if target.steps == 1 or len(real) > 1:
            return ""
        path, drawn = self.paths[edge.uses[0][0]], self.drawn(self.paths[edge.uses[0][0]])
        return next((a for a, b in zip(path, drawn, strict=True) if isinstance(b, Steps)), "")

    def _boxes(self):
        boxes = {}
        for node in self.nodes:
            for i in range(len(node.path)):
                boxes.setdefault(node.path[:i + 1], title(node.path[i]))
        return dict(sorted(boxes.items(), key=lambda item: len(item[0])))


# ---------------------------------------------------------------------------------------------------------------------
# time steps: which scopes are equal, and which of their ops belong together
# ---------------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Steps:
    """A part of a path that stands for several equal scopes: `name` `first` to `last`."""
    name: str
    first: int
    last: int
    times: int


def title(part):
    """What is written over a box."""
    if not isinstance(part, Steps):
        return part
    if len(part.name) < 2:  # "l × 2" says little: l0, l1
        between = ", " if part.times == 2 else "–"
        ends = f"{part.name}{part.first}{between}{part.name}{part.last}"
        return ends if part.times == 2 else f"{ends} × {part.times}"
    whole = part.first <= 1 and part.times == part.last - part.first + 1
    return f"{part.name}{'' if whole else f' {part.first}–{part.last}'} × {part.times}".strip()


def _times(path):
    """How many steps lie on top of each other at `path`."""
    n = 1
    for part in path:
        if isinstance(part, Steps):
            n *= part.times
    return n


def _base(part):
    found = _NUMBERED.fullmatch(part)
    return found.group(1) if found else part


def _merged_paths(program, paths):
    """{real path: its path in the drawing} for all paths, from the outer scopes to the inner ones."""
    contents, prefixes, ops = defaultdict(Counter), set(), defaultdict(Counter)
    for step, path in zip(program.instructions, paths, strict=True):
        ops[path][step.op] += 1
    for path, here in ops.items():
        bases = tuple(map(_base, path))
        for n in range(1, len(path) + 1):
            prefixes.add(path[:n])
            if _NUMBERED.fullmatch(path[n - 1]):
                contents[path[:n]].update({(bases[n:], op): times for op, times in here.items()})
    merged = {(): ()}
    groups, by_length = defaultdict(list), defaultdict(list)
    for prefix in prefixes:
        by_length[len(prefix)].append(prefix)
    for n in sorted(by_length):
        groups.clear()
        for prefix in by_length[n]:
            kind = (_base(prefix[-1]), frozenset(contents[prefix].items())) if prefix in contents else prefix[-1]
            groups[merged[prefix[:-1]], kind].append(prefix)
        for (parent, kind), members in groups.items():
            numbers = {int(_NUMBERED.fullmatch(p[-1]).group(2)) for p in members} if isinstance(kind, tuple) else ()
            part = Steps(kind[0], min(numbers), max(numbers), len(numbers)) if len(numbers) > 1 else None
            merged.update((p, (*parent, part or p[-1])) for p in members)
    return merged


def _twins(program, paths, producer, drawn):
    """For every op the number of its place in a step, the same for ops of different steps that do the same.

    Two ops of one kind in a step are told apart by what they are made of inside the step, and by the leaves they share
    with other steps (W h and U h). Nothing else from outside counts: the first step starts from another value.
    """
    seen, shared = defaultdict(set), set()
    for i, step in enumerate(program.instructions):
        for value in step.inputs:
            if value is not None and value not in producer:
                seen[value, drawn(paths[i])].add(paths[i])
                if len(seen[value, drawn(paths[i])]) > 1:
                    shared.add(value)
    table, made_of = {}, []
    for i, step in enumerate(program.instructions):
        sources = tuple(made_of[producer[v]] if v in producer and paths[producer[v]] == paths[i] else
                        -v - 2 if v in shared else -1 for v in step.inputs)
        made_of.append(table.setdefault((step.op, sources), len(table)))
    scopes = defaultdict(lambda: defaultdict(list))
    for i, path in enumerate(paths):
        scopes[drawn(path)][path].append(i)
    place = [0] * len(paths)
    for members in scopes.values():
        _match(list(members.values()), made_of, program.instructions, place)
    return place


def _match(steps, made_of, instructions, place):
    """Give each op of every step the place of the model step's op that is made alike, else of the next of its kind."""
    model = steps[len(steps) // 2]
    extra = len(model)
    for step in steps:
        alike, kinds, taken, left = defaultdict(list), defaultdict(list), set(), []
        for n, i in reversed(list(enumerate(model))):
            alike[made_of[i]].append(n)
            kinds[instructions[i].op].append(n)
        for i in step:
            if alike[made_of[i]]:
                place[i] = alike[made_of[i]].pop()
                taken.add(place[i])
            else:
                left.append(i)
        for i in left:
            free = kinds[instructions[i].op]
            while free and free[-1] in taken:
                free.pop()
            place[i] = free.pop() if free else extra
            extra += place[i] == extra


def leaf_kind(value):
    """A leaf that requires a gradient is a parameter unless it is said to be an input; of the others, one with a name
    was given: an input."""
    return "input" if value.kind == "constant" and value.name else value.kind


def is_number(value):
    """Is it one plain number, to be written into the formula rather than drawn as a node?"""
    return value.kind == "constant" and not value.name and isinstance(value.data, (bool, int, float))


def _common(paths):
    """The longest path that all of `paths` begin with."""
    low, high = min(paths), max(paths)
    for i, (a, b) in enumerate(zip(low, high, strict=False)):
        if a != b:
            return low[:i]
    return low[:min(len(low), len(high))]
