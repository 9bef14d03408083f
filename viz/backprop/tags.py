"""Where the labels of edges stand: on their edges, but not on each other and not on what a box says."""
from .marks import measure

SIZE, TALL = 16, 22


def placed(curves, texts, boxes, said):
    """A (x, y, width) for each label, its centre first.

    curves   of the edges: a start and then Bezier triples       boxes   (left, top, right, bottom) of the nodes
    said     the same of the words and numbers in them, which are not to be covered
    """
    widths = [measure(text, SIZE, True) + 8 for text in texts]
    choices = [list(_places(curve, w)) for curve, w in zip(curves, widths, strict=True)]
    chosen = [ways[0] for ways in choices]
    for _ in range(3):  # each gives way to where the others stand now
        for i, w in enumerate(widths):
            others = [_around(*chosen[j][1:], widths[j]) for j in range(len(widths)) if j != i]

            def cost(way, w=w, others=others):
                mine = _around(*way[1:], w)
                return way[0] + sum(weight * _shared(mine, box) for weight, there in
                                    ((2, others), (1, boxes), (9, said)) for box in there)

            chosen[i] = min(choices[i], key=cost)
    return [(x, y, w) for (_, x, y), w in zip(chosen, widths, strict=True)]


def _places(curve, w):
    """(how far from the best, x, y) along the curve and beside it: the middle of its last part is best."""
    for back, first in enumerate(range(len(curve) - 4, -1, -3)):
        for t in (0.5, 0.35, 0.65, 0.2, 0.8):
            shares = ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t ** 3)
            x, y = (sum(p[i] * s for p, s in zip(curve[first:first + 4], shares, strict=True)) for i in (0, 1))
            for dx, dy in ((0, 0), (-w / 2, 0), (w / 2, 0), (0, -TALL / 2), (0, TALL / 2), (0, -TALL), (0, TALL)):
                yield 40 * back + 20 * abs(t - 0.5) + 15 * bool(dx) + abs(dy), x + dx, y + dy


def _around(x, y, w):
    return x - w / 2 - 2, y - TALL / 2 - 1, x + w / 2 + 2, y + TALL / 2 + 1


def _shared(a, b):
    """The area that two boxes share."""
    return max(min(a[2], b[2]) - max(a[0], b[0]), 0) * max(min(a[3], b[3]) - max(a[1], b[1]), 0)
