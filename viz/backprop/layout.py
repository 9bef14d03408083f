"""Where the boxes of a small graph stand: layers by longest path, order by barycentre, places by least squares.

Sugiyama, Tagawa and Toda (1981) in short. 1. A box stands one layer after the last of its inputs, or as late as its
first use allows; a leaf just before its first use. 2. An edge over several layers gets a bend in each. 3. Within the
layers the boxes are ordered by the mean place of their neighbours, to and fro, and the order with the fewest crossings
is kept. 4. Each box is pulled to the mean of its neighbours; boxes that would overlap share the mean of what they want
(pool adjacent violators).
"""
from dataclasses import dataclass


@dataclass
class Layout:
    """Centres of the boxes, bends of the edges (from the source's side to the target's), and the size of it all.

    A bend is (x, y, None), or (x, y, turn) at the two ends of a way back, where the curve turns round at depth `turn`.
    """
    places: list
    routes: list
    width: float
    height: float


def layout(sizes, edges, across=False, pieces=1, gap=16.0, between=38.0, late=False):
    """sizes: [(width, height)] of boxes; edges: [(source, target)], without a cycle. Returns a Layout.

    across    layers from left to right, in place of from top to bottom
    pieces    how many columns (or rows) the layers are broken into, as a newspaper breaks a long text
    gap       between boxes of a layer; between: from one layer to the next
    late      boxes stand just before their first use, in place of just after their inputs
    """
    along = [(h, w) if across else (w, h) for w, h in sizes]  # (within the layer, through the layers)
    layers, chains = _with_bends(_layers(len(sizes), edges, late), edges)
    width = [w for w, _ in along] + [14.0] * (sum(map(len, layers)) - len(sizes))
    thick = [max([along[i][1] for i in layer if i < len(sizes)], default=0.0) for layer in layers]
    layers = _ordered(layers, *_neighbours(len(width), chains))
    u, v, part, total, lanes = {}, {}, {}, 0.0, {}
    rim = 0.0 if pieces == 1 else 12.0 + 7.0 * len(chains) ** 0.5
    for number, block in enumerate(_blocks(thick, between, pieces)):
        mine = {i for n in block for i in layers[n]}
        inside = [[i for i in chain if i in mine] for chain in chains]
        x = _placed([layers[n] for n in block], *_neighbours(len(width), inside), width, gap, len(sizes))
        shift = total - min(x[i] - width[i] / 2 for i in mine)
        depth = rim
        for n in block:
            for i in layers[n]:
                u[i], v[i], part[i] = x[i] + shift, (depth, depth + thick[n]), number
            depth += thick[n] + between
        total = max(u[i] + width[i] / 2 for i in mine)
        lanes[number] = total, depth - between
        crossing = sum(part_of(chain, mine) for chain in chains)
        total += 0.0 if number == pieces - 1 else 2 * gap + 9.0 * crossing
    depth = max(end for _, end in lanes.values()) + rim

    def at(u, v, turn=None):
        return (v, u, turn) if across else (u, v, turn)

    used, routes = dict.fromkeys(lanes, 0), [None] * len(chains)
    for k in sorted(range(len(chains)), key=lambda k: -max(u[i] for i in chains[k])):
        route, chain = [], chains[k]
        for a, b in zip(chain, chain[1:], strict=False):
            if part[a] != part[b]:
                right, bottom = lanes[part[a]]
                used[part[a]] += 1
                lane, turn = right + gap + 9.0 * used[part[a]], rim * used[part[a]] / (used[part[a]] + 1)
                route += [at(lane, bottom, bottom + turn), at(lane, rim, rim - turn)]
            if b is not chain[-1]:
                route += [at(u[b], v[b][0]), at(u[b], v[b][1])]
        routes[k] = route
    places = [at(u[i], (v[i][0] + v[i][1]) / 2)[:2] for i in range(len(sizes))]
    return Layout(places, routes, *((depth, total) if across else (total, depth)))


def part_of(chain, mine):
    """Does an edge leave these layers for the next piece?"""
    return any(a in mine and b not in mine for a, b in zip(chain, chain[1:], strict=False))


def _blocks(thick, between, pieces):
    """The numbers of the layers in `pieces` runs, about equally deep."""
    whole, blocks, depth = sum(thick) + between * len(thick), [[]], 0.0
    for n, t in enumerate(thick):
        if depth + (t + between) / 2 > whole * len(blocks) / pieces and len(blocks) < pieces and blocks[-1]:
            blocks.append([])
        blocks[-1].append(n)
        depth += t + between
    return blocks


def _layers(count, edges, late):
    """The layer of each box: after its inputs; one without inputs, and if `late` any, just before its first use."""
    below = [[t for s, t in edges if s == i] for i in range(count)]
    above = [[s for s, t in edges if t == i] for i in range(count)]
    layer = [0] * count
    for i in range(count):  # boxes are numbered in topological order
        layer[i] = max([layer[s] + 1 for s in above[i]], default=0)
    for i in reversed(range(count)):
        if below[i] and (late or not above[i]):
            layer[i] = min(layer[t] for t in below[i]) - 1
    first = min(layer, default=0)
    return [n - first for n in layer]


def _with_bends(layer, edges):
    """Boxes by layer, with a bend for every layer that an edge crosses; and each edge as a chain of them."""
    layers = [[] for _ in range(max(layer) + 1)]
    for i, n in enumerate(layer):
        layers[n].append(i)
    chains, free = [], len(layer)
    for s, t in edges:
        chain = [s]
        for n in range(layer[s] + 1, layer[t]):
            layers[n].append(free)
            chain.append(free)
            free += 1
        chains.append([*chain, t])
    return layers, chains


def _neighbours(count, chains):
    up, down = [[] for _ in range(count)], [[] for _ in range(count)]
    for chain in chains:
        for s, t in zip(chain, chain[1:], strict=False):
            down[s].append(t)
            up[t].append(s)
    return up, down


def _ordered(layers, up, down):
    """The layers ordered by barycentre, to and fro; of 12 sweeps the one with the fewest crossings."""
    layers = [list(layer) for layer in layers]
    best, least = [list(layer) for layer in layers], _crossings(layers, down)
    for sweep in range(12):
        near = up if sweep % 2 == 0 else down
        place = {i: k for layer in layers for k, i in enumerate(layer)}
        for layer in layers if sweep % 2 == 0 else layers[::-1]:
            wish = {i: sum(place[j] for j in near[i]) / len(near[i]) if near[i] else place[i] for i in layer}
            layer.sort(key=lambda i, wish=wish, place=place: (wish[i], place[i]))
            place.update({i: k for k, i in enumerate(layer)})
        crossings = _crossings(layers, down)
        if crossings < least:
            best, least = [list(layer) for layer in layers], crossings
    return best


def _crossings(layers, down):
    total = 0
    for upper, lower in zip(layers, layers[1:], strict=False):
        place = {i: k for k, i in enumerate(lower)}
        ends = [place[j] for i in upper for j in sorted(down[i], key=place.get)]
        total += sum(a > b for k, a in enumerate(ends) for b in ends[k + 1:])
    return total


def _placed(layers, up, down, width, gap, boxes):
    """Where each box and bend stands within its layer."""
    x = {}
    for layer in layers:
        cursor = 0.0
        for i in layer:
            x[i] = cursor + width[i] / 2
            cursor += width[i] + gap
        for i in layer:
            x[i] -= (cursor - gap) / 2
    for sweep in range(24):
        both = sweep >= 8
        for layer in layers if sweep % 2 == 0 else layers[::-1]:
            wishes, weights = [], []
            for i in layer:
                near = up[i] + down[i] if both else up[i] if sweep % 2 == 0 else down[i]
                wishes.append(sum(x[j] for j in near) / len(near) if near else x[i])
                weights.append(1.0 if i < boxes else 4.0)  # bends in a line make straight edges
            _spread(layer, wishes, weights, width, gap, x)
    return x


def _spread(layer, wishes, weights, width, gap, x):
    """The places nearest to the wishes, in this order and without overlap."""
    offset, offsets = 0.0, []
    for k, i in enumerate(layer):
        if k:
            offset += (width[layer[k - 1]] + width[i]) / 2 + gap
        offsets.append(offset)
    blocks = []  # (mean wish, weight, members)
    for wish, weight, off in zip(wishes, weights, offsets, strict=True):
        blocks.append([wish - off, weight, 1])
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            mean, heavy, n = blocks.pop()
            last = blocks[-1]
            last[0] = (last[0] * last[1] + mean * heavy) / (last[1] + heavy)
            last[1] += heavy
            last[2] += n
    k = 0
    for mean, _, n in blocks:
        for _ in range(n):
            x[layer[k]] = mean + offsets[k]
            k += 1
