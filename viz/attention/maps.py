"""Many attention maps: made from a `capture()`, chosen by layer, head, hop or step, averaged or stacked on request.

    with capture() as seen:
        model(x)
    looks_of(seen, queries, keys)               a Look for each map that ran: scope, head, hop and step in its `place`
    chosen(looks, {"layer": 2, "head": 1})      some of them
    averaged(looks, ("head",))                  the mean over heads, which its place calls "mean of 4 heads"
    stacked(looks)                              looks of one row each, such as hops, as one look with a row each

A Look is `tinyattn.models.system.Look`; its `place` counts from 1.
"""
import re

import numpy as np

from tinyattn.errors import InputError
from tinyattn.models.system import Look, said

from ..text import printable
from .panels import _matrix_axes

_COUNTED = re.compile(r"([A-Za-z][A-Za-z_]*?)[ _]?(\d+)")  # a part of a scope with a number: "layer0", "step 3"
VISIBLE = {" ": "␣", "": "∅"}  # tokens that would leave no trace


def looks_of(seen, rows=None, columns=None, batch=0, inner="head", title=""):
    """The Looks of everything tapped as "weights" inside `seen`, a `capture()`.

    rows       names of the T queries; columns: of the S keys. A sequence that attends to itself takes the one of both
               that is as long as it is; where neither fits, names are q1, q2, ... and k1, k2, ...
    batch      which element of the batch, from 0, as in arrays
    inner      what the axes between batch and queries count: "head", "hop", "feature"
    A scope such as "decoder/layer0" becomes {"scope": "decoder", "layer": 1}; numbers that begin with 0 somewhere in
    the capture are counted from 1. Calls that share a scope are told apart as "call". InputError if nothing was tapped,
    or if names fit no axis.
    """
    taps = [(path.rpartition("/")[0], t.numpy()) for path, t in seen.taps if path.rpartition("/")[2] == "weights"]
    taps = [(scope, w) for scope, w in taps if w.size]
    if not taps:
        raise InputError('looks: nothing was tapped as "weights", or only empty ones; the code inside `capture()` ran '
                         "no attention")
    rows, columns = (None if names is None else [str(name) for name in names] for names in (rows, columns))
    places, found = _places([scope for scope, _ in taps]), []
    for place, (_, w) in zip(places, taps, strict=True):
        if w.ndim > 1 and not 0 <= batch < len(w):
            raise InputError(f"looks: expected a batch element from 0 to {len(w) - 1}, got {batch}")
        w = _matrix_axes(w, batch)                                         # (..., T, S)
        for at in np.ndindex(w.shape[:-2]):
            where = {**place, **_inside(at, w.shape[:-2], inner)}
            found.append(Look(w[at], *_named(w.shape[-2:], rows, columns), title, place=where))
    _check_named(found, rows, columns)
    return found


def _places(scopes):
    """The place of each tap, from its scope: numbers apart from words, and "call" where that tells them not apart."""
    parts = [[(_COUNTED.fullmatch(part), part) for part in scope.split("/") if part] for scope in scopes]
    zero = {m[1] for some in parts for m, _ in some if m and int(m[2]) == 0}
    places = []
    for some in parts:
        words, place = [], {}
        for m, part in some:
            if m and m[1] not in place:
                place[m[1]] = int(m[2]) + (m[1] in zero)
            else:
                words.append(part)
        places.append(({"scope": "/".join(words)} if words else {}) | place)
    if len({p.get("scope") for p in places}) == 1:                         # it would tell nothing apart
        places = [{name: value for name, value in p.items() if name != "scope"} for p in places]
    keys, count = [said(p) for p in places], {}
    for key, place in zip(keys, places):
        count[key] = count.get(key, 0) + 1
        if keys.count(key) > 1:
            place["call"] = count[key]
    return places


def _inside(at, sizes, inner):
    """The places on the axes between batch and queries that are longer than 1: {"head": 2}."""
    long = [i + 1 for i, size in zip(at, sizes, strict=True) if size > 1]
    return {inner if n == 0 else f"{inner}_{n + 1}": i for n, i in enumerate(long)}


def _named(shape, rows, columns):
    """Names of T queries and S keys: those given, where they are as many."""
    T, S = shape
    own = T == S and (rows is None or columns is None or len(rows) != len(columns))
    for names in (rows, columns) if own else ():                           # a sequence attends to itself
        if names is not None and len(names) == T:
            return names, names
    return (rows if rows is not None and len(rows) == T else [f"q{i + 1}" for i in range(T)],
            columns if columns is not None and len(columns) == S else [f"k{i + 1}" for i in range(S)])


def _check_named(found, rows, columns):
    """InputError for names that no map has."""
    shapes = ", ".join(sorted({f"{len(look.rows)} x {len(look.columns)}" for look in found}))
    for what, names in (("row", rows), ("column", columns)):
        if names is not None and not any(names in (look.rows, look.columns) for look in found):
            raise InputError(f"looks: expected one {what} name for each query or key of some map, got {len(names)} "
                             f"names; the maps are {shapes} (queries x keys)")


# ---------------------------------------------------------------------------------------------------------------------
# choosing
# ---------------------------------------------------------------------------------------------------------------------
def choices(looks):
    """{"layer": [1, 2], "head": [1, 2, 3, 4]}: what the places of looks can be, in the order in which they come."""
    found = {}
    for look in looks:
        for name, value in look.place.items():
            values = found.setdefault(name, [])
            if value not in values:
                values.append(value)
    return found


def offered(looks):
    """What there is to choose by, in words: "layer 1, 2; head 1..16"."""
    return "; ".join(f"{name} {_listed(values)}" for name, values in choices(looks).items())


def _listed(values):
    """1, 2, 3 as they are; a long row of numbers as 1..64."""
    if len(values) > 8 and values == list(range(1, len(values) + 1)):
        return f"1..{len(values)}"
    return ", ".join(map(str, values))


def chosen(looks, wanted):
    """The looks whose place is as wanted, {"layer": 2}. InputError, that says what there is, if none is."""
    there = choices(looks)
    for name, value in wanted.items():
        if name not in there:
            raise InputError(f"attention: cannot choose by {name}; there is {offered(looks) or 'one map alone'}")
        if str(value) not in map(str, there[name]):
            raise InputError(f"attention: expected {name} to be one of {_listed(there[name])}, got {value}")
    found = [look for look in looks if all(str(look.place.get(name)) == str(value) for name, value in wanted.items())]
    if not found:
        raise InputError(f"attention: there is no map of {said(wanted)}; there is {offered(looks)}")
    return found


def averaged(looks, names):
    """The mean over all values of each of these names of places, in which it says so: {"layer": 1, "head": "mean of 4
    heads"}. InputError where there is nothing to take a mean of, or where maps of unlike words would be mixed."""
    for name in names:
        if len(choices(looks).get(name, ())) < 2:
            raise InputError(f"attention: there are no several {plural(name)} to take the mean of; there is "
                             f"{offered(looks) or 'one map alone'}")
        groups = {}
        for look in looks:
            key = tuple((n, v) for n, v in look.place.items() if n != name)
            groups.setdefault(key, []).append(look)
        looks = [_mean(some, name) if name in some[0].place else some[0] for some in groups.values()]
    return looks


def _mean(some, name):
    first = some[0]
    if any((look.rows, look.columns) != (first.rows, first.columns) for look in some):
        raise InputError(f"attention: a mean over {plural(name)} would mix maps of unlike words")
    place = {n: f"mean of {len(some)} {plural(name)}" if n == name else v for n, v in first.place.items()}
    parts = tuple((count, float(np.mean([look.parts[i][1] for look in some])))
                  for i, (count, _) in enumerate(first.parts))
    return Look(np.mean([look.weights for look in some], 0), first.rows, first.columns, first.title, first.gold, place,
                first.sides, parts, first.rest)


def plural(name):
    """The name of a place for several: "heads", "passes"."""
    name = name.replace("_", " ")
    return name + ("es" if name.endswith(("s", "x", "ch")) else "s")


def stacked(looks):
    """Looks of one row each and the same columns as one Look with a row each, named by its place: "hop 1", "hop 2"."""
    first = looks[0]
    if any(len(look.rows) != 1 or look.columns != first.columns or look.parts for look in looks):
        raise InputError("attention: only maps of one row each, over the same words, can be put below each other")
    names = [said(look.place) or look.rows[0] for look in looks]
    gold = tuple((row, column) for row, look in enumerate(looks) for _, column in look.gold)
    return Look(np.concatenate([look.weights for look in looks]), names, first.columns, first.title, gold,
                sides=(" and ".join(first.place) or first.sides[0], first.sides[1]), rest=first.rest)


def are_sentences(columns, rows):
    """Are the names of columns so long that they are read more easily at the left, as rows?"""
    longest = max(map(len, columns))
    return longest > 16 and any(" " in name for name in columns) and longest > max(map(len, rows))


def token(text, limit=120):
    """A token as it stands in a picture: literal, and seen also where it is empty or white space."""
    text = printable(text, limit)
    return text if text.strip() else VISIBLE[" "] * len(text) or VISIBLE[""]
