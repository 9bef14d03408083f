"""What `tinyattn heatmap` draws: the looks of predictions, chosen, averaged if asked, in one of several forms."""
import numpy as np

from ..errors import InputError
from .console import note

MOST = 48  # maps on one page
ONE = ("lines", "text", "hops")  # forms that draw one sample
SUFFIXES = (".svg", ".pdf", ".png", ".htm", ".html")
MEANS = ("head", "feature", "sentence_row", "word_row", "row")  # what --mean is over, where it is there


def wanted_of(given, only):
    """{"layer": "2", "head": "1"} of the options and of --only "layer=2,head=1". InputError for what is neither."""
    wanted = {name: value for name, value in given.items() if value is not None}
    for part in filter(None, (only or "").split(",")):
        name, equals, value = (x.strip() for x in part.partition("="))
        if not (equals and name and value):
            raise InputError(f"--only: expected NAME=N,... such as layer=2,head=1, got {only!r}")
        if wanted.setdefault(name, value) != value:
            raise InputError(f"--only: {name} is asked to be {wanted[name]} and {value}")
    return wanted


def draw(predictions, path, form=None, wanted=None, mean=False):
    """Draw what predictions looked at into `path`: an interactive page for .html, else a picture of this form."""
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"heatmap: expected a file name that ends in {', '.join(SUFFIXES[:-2])} or .html, got "
                         f"{path.name!r}")
    samples = [_chosen(p.finest, wanted or {}, mean) for p in predictions if p.looks]
    if path.suffix.lower() in (".html", ".htm"):
        if form is not None:
            raise InputError(f"--as {form}: is for drawings; a page, {path.name}, has its views by itself")
        return _page(samples, path)
    one = samples[0]
    if form is None:
        form = "map" if len(samples) > 1 else "text" if one[0].parts else "hops" if _are_hops(one) else "map"
    if form == "map":
        if not (wanted or mean) and (len(samples) > 1 or one[0].parts):
            samples = [p.looks for p in predictions if p.looks]            # few maps, the heaviest sentences
        return _maps(samples, path)
    if len(samples) > 1:
        raise InputError(f"--as {form}: draws one sample, and here are {len(samples)}; give its TEXT, or -n 1")
    return {"lines": _lines, "text": _text, "hops": _hops}[form](one, path)


def _chosen(looks, wanted, mean):
    from viz.attention.maps import averaged, choices, chosen, offered
    looks = chosen(looks, wanted)
    if mean:
        over = [name for name in MEANS if len(choices(looks).get(name, ())) > 1]
        if not over:
            raise InputError(f"--mean: there are no several heads to take the mean of; there is "
                             f"{offered(looks) or 'one map alone'}")
        looks = averaged(looks, over)
    return looks


def _are_hops(looks):
    return all(list(look.place) == ["hop"] and len(look.rows) == 1 for look in looks)


def _page(samples, path):
    from dataclasses import replace

    from viz import attention_page
    looks = [look if len(samples) == 1 else replace(look, place={"sample": i, **look.place})
             for i, some in enumerate(samples, 1) for look in (one.with_rest() for one in some)]
    attention_page(looks, path, "What attention looks at")


def _maps(samples, path):
    """Small multiples. Of several kinds of attention the first alone, with a notice; single rows below each other."""
    from viz import heatmaps
    from viz.attention.maps import choices, offered, stacked
    looks, maps = [look for some in samples for look in some], []
    kinds = choices(looks).get("kind", [])
    if len(kinds) > 1:
        samples = [[look for look in some if look.place.get("kind") == kinds[0]] for some in samples]
        note(f"drawn: {kinds[0]}; --only kind={' or kind='.join(kinds[1:])} draws the others, -o FILE.html shows all")
    for some in samples:
        if len(some) > 1 and all(len(look.rows) == 1 and look.columns == some[0].columns for look in some) and not any(
                look.parts for look in some):
            some = [stacked(some)]
        maps += [_map(look) for look in some]
    if len(maps) > MOST:
        raise InputError(f"heatmap: expected at most {MOST} maps on a page, got {len(maps)}; choose some by --only or "
                         f"--mean ({offered(looks)}), or -o FILE.html for all")
    titles = {look.title for some in samples for look in some}
    if len(titles) == 1 and len(maps) > 1:  # once for all, above the page
        maps = [(*one[:3], one[3].removeprefix(*titles).strip("\n"), *one[4:]) for one in maps]
        heatmaps(maps, path, titles.pop().replace("\n", "; "))
    else:
        heatmaps(maps, path)


def _map(look):
    """A map for `viz.heatmaps`, with its place, so that layers and heads stand in a grid. Sentences are rows."""
    from viz.attention.maps import are_sentences
    weights, rows, columns, title, gold = look.with_rest().as_map()
    if are_sentences(columns, rows):
        weights, rows, columns, gold = np.asarray(weights).T, columns, rows, [(c, r) for r, c in gold]
    place = {name: value for name, value in look.place.items() if name != "kind"}
    return weights, rows, columns, title, gold, {} if look.parts else place


def _single(form, looks):
    from viz.attention.maps import offered
    if len(looks) > 1:
        raise InputError(f"--as {form}: draws one map, and here are {len(looks)}: {offered(looks)}; choose one by "
                         "--only, or take the --mean")
    return looks[0]


def _lines(looks, path):
    """One map; or all heads of one layer, a picture each."""
    if any(len(look.parts) > 1 for look in looks):
        raise InputError("--as lines: this document's words have weights within their sentences, so lines of different "
                         "sentences cannot be compared: --as text or map")
    from viz import lines
    from viz.attention.maps import choices, offered, stacked

    from ..models.system import said
    if len(looks) > 1 and all(len(look.rows) == 1 and look.columns == looks[0].columns for look in looks):
        looks = [stacked(looks)]
    if len(looks) > 1 and sum(len(values) > 1 for values in choices(looks).values()) == 1 and len(looks) <= 8:
        (axis,) = (name for name, values in choices(looks).items() if len(values) > 1)
        same = {name: value for name, value in looks[0].place.items() if name != axis}
        title = "; ".join(filter(None, (looks[0].title.replace("\n", "; "), said(same))))
        lines([look.weights for look in looks], looks[0].rows, looks[0].columns, title, path, gold=looks[0].gold,
              names=[said({axis: look.place[axis]}) for look in looks], sides=looks[0].sides)
        return
    if len(looks) > 1:
        raise InputError(f"--as lines: draws one map, or the heads of one layer; here are {len(looks)}: "
                         f"{offered(looks)}; choose by --layer, --head or --only, or take the --mean")
    look = looks[0]
    title = "; ".join(filter(None, (look.title.replace("\n", "; "), said(look.place))))
    lines(look.weights, look.rows, look.columns, title, path, gold=look.gold, sides=look.sides)


def _text(looks, path):
    """A document with its sentences, or the words that one row of attention looked at."""
    from viz import tinted
    look, start, parts = _single("text", looks), 0, []
    if len(look.rows) > 1:
        raise InputError(f"--as text: tints one text by one row of weights; this map has {len(look.rows)} rows, one "
                         "for each word that looks: --as map or lines, or -o FILE.html")
    for count, weight in look.parts or ((len(look.columns), None),):
        parts.append((look.columns[start:start + count], look.weights[0, start:start + count],
                      *([] if weight is None else [weight])))
        start += count
    tinted(parts, look.as_map()[3].replace("\n", "; "), path)


def _hops(looks, path):
    from viz import hops
    from viz.attention.maps import stacked

    from ..models.system import said
    if not all(len(look.rows) == 1 and not look.parts for look in looks):
        raise InputError("--as hops: draws what each hop of a question looked at in a story; this run has other maps: "
                         "--as map")
    one = stacked(looks)
    hops(one.weights, one.columns, looks[0].title.replace("\n", "; "), path, gold=sorted(set(one.gold)),
         names=[said(look.place) or "weight" for look in looks], rest=one.rest)
