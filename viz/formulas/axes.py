"""Axes of expressions: attributes of ops in one form, and the letters of axes, as far as they follow from the leaves'.
"""
import numpy as np

from .algebra import ELEMENTWISE, REDUCTIONS, At, Call, Name


def settled(op, settings, shape):
    """Axes counted from 0; a reduction says its axes and whether they are kept."""
    n = len(shape)
    if op in REDUCTIONS:
        axis = settings.pop("axis", None)
        axes = range(n) if axis is None else [axis] if isinstance(axis, int) else axis
        return {**settings, "axes": tuple(sorted(a % n for a in axes)), "keepdims": bool(settings.get("keepdims"))}
    if "axes" in settings:
        settings["axes"] = tuple(a % n for a in settings["axes"])
    if "axis" in settings and isinstance(settings["axis"], int):
        settings["axis"] %= n + (op == "stack") or 1
    return settings


def index_of(index, shape, first):
    """An index as a tuple that names every axis of `shape`: numbers, slices, None for a new axis, `At` for an array.
    Returns it and the arrays; the first array is argument number `first`."""
    index = index if isinstance(index, tuple) else (index,)
    index = tuple(np.asarray(i) if isinstance(i, (list, np.ndarray)) else i for i in index)

    def axes(i):
        return 0 if i is None else i.ndim if isinstance(i, np.ndarray) and i.dtype.kind == "b" else 1

    left = len(shape) - sum(axes(i) for i in index if i is not Ellipsis)
    full, arrays = [], []
    for i in index if any(i is Ellipsis for i in index) else (*index, Ellipsis):
        if i is Ellipsis:
            full += [slice(None)] * left
        elif isinstance(i, np.ndarray):
            full.append(At(first + len(arrays)))
            arrays.append(i)
        elif isinstance(i, slice):
            full.append(slice(None) if i.indices(shape[_axis(full, arrays, first)])
                        == (0, shape[_axis(full, arrays, first)], 1) else i)
        else:
            full.append(i if i is None else int(i))
    return tuple(full), arrays


def _axis(full, arrays, first):
    """How many axes the entries so far have taken."""
    return sum(0 if i is None else arrays[i.argument - first].ndim if isinstance(i, At)
               and arrays[i.argument - first].dtype.kind == "b" else 1 for i in full)


# ---------------------------------------------------------------------------------------------------------------------
# letters of axes
# ---------------------------------------------------------------------------------------------------------------------
def write_letters(values, chosen, declared):
    """Write into `values` the letters of their axes, as far as they follow from those declared for leaves."""
    by_name, lengths = {v.name: v for v in values.values() if v.array is not None and v.name}, {}
    fits = {n: _filled(tuple(letters), len(by_name[n].shape)) for n, letters in declared.items() if n in by_name}
    fits = {n: letters for n, letters in fits.items() if len(letters) == len(by_name[n].shape)}
    for name, letters in fits.items():
        for letter, n in zip(letters, by_name[name].shape, strict=True):
            lengths.setdefault(letter, set()).add(n)
    lengths[None] = ()
    for name, letters in fits.items():  # a letter with two lengths, or a length of 1 for another, says nothing
        by_name[name].letters = tuple(x if len(lengths[x]) == 1 else None for x in letters)
    for e in chosen:
        v = values[e.id]
        v.letters = tuple(_letters_of(e.expression, values)) if v.of is None else ()
    for v in values.values():
        if v.of is not None:
            v.letters = values[v.of].letters


def _filled(letters, ndim):
    """Letters with a leading "..." for any number of axes: one axis is the batch."""
    if letters[:1] != ("...",):
        return letters
    lead = ndim - len(letters) + 1
    return (*(("B",) if lead == 1 else (None,) * lead), *letters[1:])


def _letters_of(e, values):
    """The letters of an expression's axes; None for an axis without."""
    unknown = [None] * len(e.shape)
    if isinstance(e, Name):
        return list(values[e.id].letters or unknown)
    if not isinstance(e, Call) or not e.args:
        return unknown
    parts = [_letters_of(a, values) for a in e.args]
    if e.op == "matmul":
        a, b = parts
        if len(a) > 1 and len(b) > 1:
            return _overlaid(e.shape, [a[:-2] + [None, None], b[:-2] + [None, None]])[:-2] + [a[-2], b[-1]]
        return (a[:-1] if len(b) == 1 else b[:-2] + b[-1:])[-len(e.shape):] if e.shape else []
    if e.op == "permute":
        return [parts[0][a] for a in e.settings["axes"]]
    if e.op in REDUCTIONS:
        axes, kept = e.settings["axes"], e.settings["keepdims"]
        return [None if i in axes else x for i, x in enumerate(parts[0]) if kept or i not in axes]
    if e.op == "getitem" and len(e.args) == 1:
        left = iter(parts[0])
        found = [(i, None if i is None else next(left)) for i in e.settings["index"]]
        return [x if i == slice(None) else None for i, x in found if not isinstance(i, int)]
    fits = [p for p, a in zip(parts, e.args, strict=True) if e.op in ELEMENTWISE or a.shape == e.shape]
    return _overlaid(e.shape, fits) if e.op not in ("reshape", "getitem", "putitem") else unknown


def _overlaid(shape, parts):
    """Letters of inputs that are broadcast: for each axis, the first letter that one of them has."""
    out = [None] * len(shape)
    for letters in parts:
        for back in range(1, min(len(letters), len(shape)) + 1):
            out[-back] = out[-back] or letters[-back]
    return out
