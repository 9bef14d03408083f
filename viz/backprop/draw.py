"""The frames of `steps` as slides of 1280 x 720: the graph on the left, what is done on the right.

A slide is a list of groups of marks, see marks.py. Most groups are the same in many frames: a page keeps each once.
"""
from itertools import product

from ..text import printable
from .formula import number
from .layout import layout
from .marks import BLUE, GREY, INK, LINE, ORANGE, PALE, ROOM, grid, grid_size, in_cells, measure, moved
from .tags import SIZE, TALL, placed

WIDTH, HEIGHT = 1280, 720
PICTURE = (20, 72, 848, 632)   # x, y, width, height of the graph's part
PANEL = (892, 66, 372, 638)
FONT = "Helvetica, Arial, 'DejaVu Sans', sans-serif"
SMALL = 16                     # letters of the words in a box, before it is scaled


# ---------------------------------------------------------------------------------------------------------------------
# the graph
# ---------------------------------------------------------------------------------------------------------------------
class Picture:
    """The graph laid out once; `groups(frame)` are its marks in one frame."""

    def __init__(self, graph, labels=None, rules=None):
        self.graph, self.labels, self.rules = graph, labels or {}, rules or {}
        self.edges = [(way[0], n.id, way[1], way[2]) for n in graph.nodes for way in n.ways]
        for self.room in (ROOM, 9, 1):  # a crowded graph shows its larger arrays by their shapes alone
            self.sizes = [self._size(n) for n in graph.nodes]
            self.scale, self.across, self.plan = self._best()
            if self.scale > 0.55:
                break
        x, y, w, h = PICTURE
        self.origin = (x + (w - self.plan.width * self.scale) / 2, y + (h - self.plan.height * self.scale) / 2)
        self.lines = self._routes()

    @property
    def shapes_only(self):
        """Are there arrays that are drawn without their numbers?"""
        return any(a.size and not in_cells(a, self.room) for n in self.graph.nodes for a in n.values)

    def _best(self):
        """(scale, across, Layout) of the layout that is drawn largest; unbroken and wide ones if that costs little."""
        _, _, w, h = PICTURE
        ends, best = [(s, t) for s, t, _, _ in self.edges], (0.0,)
        for pieces, across, between, late in product((1, 2, 3), (False, True), (64.0, 38.0), (False, True)):
            plan = layout(self.sizes, ends, across, pieces, between=between, late=late)
            scale = min(w / plan.width, h / plan.height, 1.5)
            worth = scale * 0.9 ** pieces * (1.0 if between > 50 else 0.9)
            best = max(best, (worth, scale, across, plan), key=lambda way: way[0])
        return best[1:]

    def _size(self, node):
        inner = max(self._strip(node, i)[0] for i in range(len(node.values)))
        tall = sum(self._strip(node, i)[1] for i in range(len(node.values)))
        title = measure(self._title(node), 18, True) + (10 if node.kind == "op" else 4)  # a tick comes after it
        return max(inner, title) + 14, tall + 32

    def _strip(self, node, i):
        """(width, height) of one output: value and gradient side by side, headed."""
        w, h = grid_size(node.values[i], self.room)
        rows, columns = self.labels.get(node.names[i], (None, None))
        left = max([measure(t, SMALL) + 5 for t in rows or ()], default=0)
        both = w if node.kind == "constant" else w + 10 + self._grad_width(node, w)
        return both + left, h + 20 + (17 if columns else 0) + (17 if len(node.values) > 1 else 0)

    def _grad_width(self, node, w):
        """A count of parts stands above a gradient that is a sum: "grad 1 of 2"."""
        return max(w, measure("grad 9 of 9", SMALL, True)) if self.graph.uses[node.id] > 1 else w

    def _title(self, node):
        if node.kind != "op":
            return node.names[0] + ("  (data)" if node.kind == "constant" else "")
        return printable(f"{', '.join(node.names)} = {node.formula}", 34)

    def groups(self, frame):
        """The marks of a frame: edges, boxes, then the gradients that are on their way."""
        sent = {(target, slot): array for target, slot, array in frame.sent}
        quiet, loud, curves, texts = [], [], [], []
        for edge, line in zip(self.edges, self.lines, strict=True):
            array = sent.get((edge[1], edge[3]))
            if array is None:
                alive = edge[0] in frame.computed and edge[1] in frame.computed
                quiet += self._edge(line, LINE if alive else "#CCCCCC", 1.6)
            else:
                loud += self._edge(line[::-1], ORANGE, 3.5)
                curves.append(loud[-2][1])
                texts.append(_carried(frame, edge[3], array))
        boxes = [self._in_place(self._box(n, frame), n) for n in self.graph.nodes]
        said = [_extent(*mark[1:5]) for box in boxes for mark in box if mark[0] == "text" and mark[6] == "middle"]
        for text, (x, y, w) in zip(texts, placed(curves, texts, list(self._rooms()), said), strict=True):
            loud += [("box", x - w / 2, y - TALL / 2, w, TALL, "#FFFFFF", ORANGE, 1.2, ""),
                     ("text", x, y, text, SIZE, ORANGE, "middle", True)]
        return [self._moved(quiet), *map(self._moved, boxes), self._moved(loud)]

    def _rooms(self):
        """(left, top, right, bottom) of every box, with the double frame of a leaf."""
        for n, (x, y), (w, h) in zip(self.graph.nodes, self.plan.places, self.sizes, strict=True):
            more = 4 if n.kind == "leaf" else 0
            yield x - w / 2 - more, y - h / 2 - more, x + w / 2 + more, y + h / 2 + more

    def _box(self, node, frame):
        w, h = self.sizes[node.id]
        current, seen = node.id == frame.current, node.id in frame.computed
        back = frame.phase == "backward"
        done = node.id in frame.done if back and node.kind == "op" else seen
        colour = (ORANGE if back else BLUE) if current else INK if done else PALE
        marks = [("box", 0, 0, w, h, "#FFFFFF", colour, 4 if current else 1.8 if done else 1.2,
                  "" if seen else "5 3")]
        if node.kind == "leaf":
            marks.insert(0, ("box", -4, -4, w + 8, h + 8, "#FFFFFF", PALE, 1, ""))  # a double frame: a leaf
        title = self._title(node)
        if back and node.id in frame.done:
            title += " ✗" if self.rules.get(node.id) else " ✓"
        marks.append(("text", w / 2, 15, title, 18, INK if seen else GREY, "middle", True))
        y = 29
        for i in range(len(node.values)):
            wide, tall = self._strip(node, i)
            marks += self._output(node, i, (w - wide) / 2, y, frame)
            y += tall
        return marks

    def _output(self, node, i, x, y, frame):
        seen, array = node.id in frame.computed, node.values[i]
        w, h = grid_size(array, self.room)
        marks, (rows, columns) = [], self.labels.get(node.names[i], (None, None))
        if len(node.values) > 1:
            marks.append(("text", x, y + 8, node.names[i], SMALL, INK, "start", True))
            y += 17
        left = max([measure(t, SMALL) + 5 for t in rows or ()], default=0)
        top = 18 + (17 if columns else 0)
        marks += [("text", x + left - 5, y + top + (r + 0.5) * h / len(rows), t, SMALL, GREY, "end", False)
                  for r, t in enumerate(rows or ())]
        fields = [("value", array if seen else None, INK)]
        if node.kind != "constant":
            got = frame.grads.get((node.id, i))
            uses, arrived = self.graph.uses[node.id], frame.arrived.get(node.id, 0)
            part = uses > 1 and arrived > 0
            short = part and arrived < uses
            fields.append((f"grad {arrived} of {uses}" if part else "grad", got, ORANGE if short else GREY))
        x += left
        for head, numbers, colour in fields:
            x += (self._grad_width(node, w) - w) / 2 if head != "value" else 0
            marks.append(("text", x + w / 2, y + 8, head, SMALL, GREY if head == "value" else colour, "middle",
                          colour == ORANGE))
            marks += [("text", x + (c + 0.5) * w / len(columns), y + 26, t, SMALL, GREY, "middle", False)
                      for c, t in enumerate(columns or ())]
            marks += grid(x, y + top, array, numbers, self.room, large=True)
            if numbers is None and head != "value":
                marks.append(("text", x + w / 2, y + top + h / 2, "–", SMALL, GREY, "middle", False))
            x += w + 10
        return marks

    # -- edges -------------------------------------------------------------------------------------------------------
    def _routes(self):
        """The curve of every edge, from the source's side to the target's, each with a place of its own at both."""
        places, axis = self.plan.places, 1 if self.across else 0
        lines = [[None, *bends, None] for bends in self.plan.routes]
        for end, side in ((0, 1), (1, -1)):
            for node in self.graph.nodes:
                mine = [k for k, e in enumerate(self.edges) if e[end] == node.id]

                def key(k, end=end):
                    bends = self.plan.routes[k]
                    near = (bends[0] if end == 0 else bends[-1]) if bends else places[self.edges[k][1 - end]]
                    return near[axis], k

                mine.sort(key=key)
                extent = self.sizes[node.id][axis]
                for place, k in enumerate(mine):
                    step = (place + 1) / (len(mine) + 1) - 0.5
                    at = list(places[node.id])
                    at[axis] += step * extent * 0.8
                    at[1 - axis] += side * (self.sizes[node.id][1 - axis] / 2 + (5 if node.kind == "leaf" else 1))
                    lines[k][0 if end == 0 else -1] = (*at, None)
        return lines

    def _edge(self, points, colour, thick):
        """A curve through the points with a head at its end."""
        axis, head = 1 if self.across else 0, 12.0 if thick > 3 else 9.0
        (*last, _), (*end, turn) = points[-2], points[-1]
        turn = points[-2][2] if turn is None else turn
        sign = 1 if end[1 - axis] > (last[1 - axis] if turn is None else turn) else -1
        tip = list(end)
        tip[1 - axis] -= sign * head
        stops, curve = [*points[:-1], (*tip, None)], [points[0][:2]]
        for a, b in zip(stops, stops[1:], strict=False):
            turns = [t for t in (a[2], b[2]) if t is not None]
            at = turns[0] if len(turns) == 1 else (a[1 - axis] + b[1 - axis]) / 2
            curve += [(a[0], at), (b[0], at), b[:2]] if axis == 0 else [(at, a[1]), (at, b[1]), b[:2]]
        wing = head * 0.45
        sides = [(tip[0] + s * wing, tip[1]) if axis == 0 else (tip[0], tip[1] + s * wing) for s in (-1, 1)]
        return [("line", curve, colour, thick, ""), ("area", [end, *sides], colour)]

    def _in_place(self, marks, node):
        (x, y), (w, h) = self.plan.places[node.id], self.sizes[node.id]
        return moved(marks, x - w / 2, y - h / 2)

    def _moved(self, marks):
        return moved(marks, *self.origin, self.scale)


def _extent(x, y, text, size):
    """(left, top, right, bottom) of a text around (x, y)."""
    w = measure(text, size)
    return x - w / 2, y - size / 2, x + w / 2, y + size / 2


def _carried(frame, slot, array):
    """What an edge carries, in a few letters: its number, or the rule that made it: "g vᵀ", "sum(g)"."""
    if array.size == 1:
        return number(array.item())
    said = next(s for s in frame.numbers["sent"] if s["slot"] == slot)
    rule = said["rule"] if said["rule_gives"].shape == array.shape or not said["rule"] else f"sum({said['rule']})"
    return rule if 0 < len(rule) <= 12 else "part"


# ---------------------------------------------------------------------------------------------------------------------
# the words beside it
# ---------------------------------------------------------------------------------------------------------------------
def panel(rows):
    """Marks of rows of texts and arrays, as large as fits."""
    x, y, w, h = PANEL
    for size in (1.05, 1.0, 0.92, 0.85, 0.78, 0.7, 0.62, 0.55):
        marks, tall = _set_rows(rows, w / size)
        if tall * size <= h:
            break
    else:
        size = h / tall
    return moved(marks, x, y, size)


def _set_rows(rows, room):
    marks, y = [], 0.0
    for row in rows:
        if row == [""]:
            y += 10
            continue
        x, line, tall, look = 0.0, [], 0.0, _LOOKS.get(str(row[0])[:2], (INK, False))
        for item in _pieces(row):
            w, h = (measure(item, 17, look[1]), 24.0) if isinstance(item, str) else grid_size(item)
            if x and x + w > room:
                marks += _set_line(line, y, tall, look)
                x, line, y, tall = 16.0, [], y + tall + 4, 0.0
            line.append((x, item))
            x, tall = x + w + 7, max(tall, h)
        marks += _set_line(line, y, tall, look)
        y += tall + 7
    return marks, y


_LOOKS = {"# ": (INK, True), "! ": (ORANGE, True)}


def _pieces(row):
    """Words and arrays; an array of one element is a word."""
    for item in row:
        if not isinstance(item, str) and item.size != 1:
            yield item
            continue
        text = item if isinstance(item, str) else number(item.item())
        yield from (printable(word, 30) for word in (text[2:] if text[:2] in _LOOKS else text).split())


def _set_line(line, y, tall, look):
    """Words that follow each other are one text, so that their spaces are the font's own."""
    marks, words = [], []
    for x, item in [*line, (None, None)]:
        if isinstance(item, str):
            words.append((x, item))
            continue
        if words:
            text = " ".join(word for _, word in words)
            marks.append(("text", words[0][0], y + tall / 2, text, 17, look[0], "start", look[1]))
            words = []
        if item is not None:
            marks += grid(x, y + (tall - grid_size(item)[1]) / 2, item, item)
    return marks


def heading(place, count, frame, wrong):
    """Marks of the line above: number, phase, what is done."""
    back, count = frame.phase == "backward", f"{place} / {count}"
    marks, x = [("text", 16, 32, count, 22, INK, "start", True)], 30 + measure(count, 22, True)
    for text, colour in [("backward" if back else "forward", ORANGE if back else BLUE)] + (
            [("wrong order", INK)] if wrong else []):
        w = measure(text, 18, True) + 14
        marks += [("box", x, 17, w, 30, colour, colour, 1, ""),
                  ("text", x + w / 2, 32, text, 18, "#FFFFFF", "middle", True)]
        x += w + 12
    marks.append(("text", x + 6, 32, printable(frame.title, 78), 22, INK, "start", False))
    marks.append(("line", [(16, 56), (16, 56), (1264, 56), (1264, 56)], "#DDDDDD", 1, ""))
    return marks
