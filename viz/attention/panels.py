"""The four panels of attention: scores, mask, masked scores, weights. What a mask and a softmax do, seen side by side.

    with capture() as seen:
        attend(q, k, v, mask=mask)
    panels(seen, path="panels.svg")
"""
import numpy as np

from tinyattn.attention import properties
from tinyattn.attention.core import blame, example_of
from tinyattn.autograd import capture
from tinyattn.errors import InputError

from ..plot import figure, kind_of, literally, quiet, save, signed_colours
from ..text import printable, width

TITLES = ("scores", "mask", "masked scores", "weights")
MOST = 6           # rows of panels on one page: hops, heads or features beyond are counted, not drawn
FORBIDDEN = "////"  # hatching of a masked place, to be told from a small number in print too
SAID = (("scores: orange above 0, blue below", lambda found: any(m[1] is not None for m in found)),  # below the panels
        ("hatched: masked, weight 0", lambda found: not all(m[2].all() for m in found)))


def panels(seen, path=None, rows=None, columns=None, title="", batch=None, inner="number"):
    """Four panels a row, one row for each tapped weight matrix: each layer or hop, and each head or feature of it.

    seen     a `capture()` in which "weights" (..., T, S) were tapped, and "scores" and "mask" if there are any
    rows     names of the T queries; columns: of the S keys; q1, q2, ... and k1, k2, ... by default
    inner    what the axes between batch and queries count: "head", "hop", "feature"
    batch    which element of the batch; by default the one of which most is masked, but not all
    Returns the Figure; writes it to `path` (.svg, .pdf or .png). InputError if nothing was tapped.
    """
    if path is not None:
        kind_of(path)
    found = matrices(seen, _telling(seen) if batch is None else batch, inner)
    if not found:
        raise InputError("panels: nothing was tapped as \"weights\", or only empty ones; the code inside "
                         "`capture()` ran no attention")
    shown = found[:MOST]
    more = f"\n{len(shown)} of {len(found)} are shown" if len(found) > len(shown) else ""
    return _page(shown, rows, columns, printable(title, 100) + more, path)


def matrices(seen, batch=0, inner="number"):
    """[(name, scores or None, mask or None, weights)], each of shape (T, S), of everything tapped as "weights"."""
    found, taps = [], _by_scope(seen)
    for number, (scope, w) in enumerate(taps["weights"]):
        if not w.size:
            continue
        w = _matrix_axes(w, batch)
        scores = _partner(taps["scores"], scope, number, len(taps["weights"]))
        mask = _partner(taps["mask"], scope, number, len(taps["weights"]))
        for at in np.ndindex(w.shape[:-2]):
            name = ", ".join([*_scope_name(scope, number, len(taps["weights"])), *_axis_names(at, w.shape[:-2], inner)])
            found.append((name, _same(scores, w.shape, batch, at), _allowed(mask, w.shape, batch, at), w[at]))
    return found


def _telling(seen):
    """The element of the batch that shows a mask best."""
    masks = [t.numpy() for path, t in seen.taps if path.rpartition("/")[2] == "mask" and t.ndim > 2]
    if not masks or not masks[0].size:
        return 0
    share = 1 - masks[0].reshape(len(masks[0]), -1).mean(1)
    return int(np.argmax(np.where(share < 1, share, -1)))


def _by_scope(seen):
    taps = {"scores": [], "mask": [], "weights": []}
    for path, t in seen.taps:
        scope, _, name = path.rpartition("/")
        if name in taps:
            taps[name].append((scope, t.numpy()))
    return taps


def _partner(taps, scope, number, count):
    """What was tapped beside the weights number `number`: the tap of the same turn if each has one, else that of its
    scope."""
    if len(taps) == count:
        return taps[number][1]
    mine = [t for s, t in taps if s == scope]
    return mine[0] if len(mine) == 1 else None


def _matrix_axes(x, batch):
    """x (B, ..., T, S) to (..., T, S) of one element; (B, S) to (1, S)."""
    if x.ndim == 1:
        return x[None]
    if x.ndim == 2:
        return x[min(batch, len(x) - 1)][None]
    return x[min(batch, len(x) - 1)]


def _scope_name(scope, number, count):
    parts = scope.split("/")[1:]
    return ["/".join(parts)] if parts else [f"number {number + 1}"] if count > 1 else []


def _axis_names(at, sizes, inner):
    """"head 2" for the one axis between batch and queries; with several, each by its own number."""
    long = [i + 1 for i, size in zip(at, sizes, strict=True) if size > 1]
    return [f"{inner} {', '.join(map(str, long))}"] if long else []


def _same(x, shape, batch, at):
    if x is None:
        return None
    x = _matrix_axes(x, batch)
    return x[at] if x.shape == shape else None


def _allowed(mask, shape, batch, at):
    """The mask (T, S), (B, 1, S), (B, T, S) or as wide as the weights, at one matrix."""
    if mask is None:
        return np.ones(shape[-2:], bool)
    mask = mask if mask.ndim < 3 else mask[min(batch, len(mask) - 1)]
    if mask.ndim > 2:
        mask = np.broadcast_to(mask, (*shape[:-2], *mask.shape[-2:]))[at]
    try:
        return np.broadcast_to(mask, shape[-2:])
    except ValueError:
        return np.ones(shape[-2:], bool)


def example_panels(variant, path=None, title=""):
    """The panels of a mechanism (a `Variant`) on its own example. Returns the Figure; InputError where it has no
    weights to show, or no example."""
    arrays = example_of(variant)
    inputs = properties.leaves(arrays, np.float32)
    with blame(variant), capture() as seen:
        variant(**inputs)
    if "weights" not in seen:
        raise InputError(f"panels: {variant.name} taps no weights while it runs, so there is nothing to show")
    rows, columns, inner = names_of(variant, arrays)
    return panels(seen, path, rows, columns, title, inner=inner)


def names_of(variant, arrays):
    """(names of the queries or None, of the keys or None, what the axes between batch and queries count) of the
    example of a mechanism: its `labels()`, or the same words twice where a sequence attends to itself."""
    labels = variant.part("labels")
    with blame(variant):
        rows, columns, *inner = labels() if labels else (None, None)
    if not labels and variant.keys == ("x",) and isinstance(arrays.get("x"), np.ndarray) and variant.causal:
        rows = columns = [f"word {i + 1}" for i in range(arrays["x"].shape[1])]
    several = "heads" in variant.arguments or "H" in "".join(variant.params.values())
    return rows, columns, inner[0] if inner else "head" if several else "number"


# ---------------------------------------------------------------------------------------------------------------------
# the page
# ---------------------------------------------------------------------------------------------------------------------
def _page(found, rows, columns, title, path):
    high, wide = (max(m[3].shape[n] for m in found) for n in (0, 1))
    rows, columns = _names(rows, "q", high), _names(columns, "k", wide)
    cell = 0.46 if max(high, wide) <= 12 else 0.3
    size = 11 if cell > 0.4 else 10
    left = max(width(t, size) for t in rows) * 1.12 / 72 + 0.2
    top = max(width(t, size) for t in columns) * 1.12 / 72 + 0.2
    named = 0.32 if any(m[0] for m in found) else 0.0                       # a line for the name of a row of panels
    panel = max(left + wide * cell, 1.75) + 0.25
    bottoms = np.cumsum([top + len(m[3]) * cell + 0.6 + named for m in found])  # of each row of panels, from the head
    head = 0.35 * len([line for line in title.split("\n") if line])
    foot = [line for line, there in SAID if there(found)]
    page = (4 * panel + 0.9, bottoms[-1] + head + 0.3 * bool(foot))
    fig = figure(*page)
    for i, (name, scores, mask, weights) in enumerate(found):
        y = page[1] - head - bottoms[i] + len(weights) * cell + 0.2          # the upper edge of its matrices
        if name:
            high = (y + top + named + 0.25) / page[1]
            literally([fig.text(0.1 / page[0], high, name, va="top", size=12, color="#555555")])
        bound = _bound(scores)
        masked = None if scores is None else np.where(mask, scores, np.nan)
        for j, values in enumerate((scores, mask, masked, weights)):
            t, s = weights.shape
            place = ((j * panel + left) / page[0], (y - t * cell) / page[1], s * cell / page[0], t * cell / page[1])
            axes = fig.add_axes(place)
            _panel(axes, j, values, mask, bound, rows[:t], columns[:s], size)
    if title:
        literally([fig.text(0.1 / page[0], 1 - 0.1 / page[1], title.strip(), va="top", size=14)])
    if foot:
        fig.text(0.1 / page[0], 0.1 / page[1], "; ".join(foot), size=11, color="#555555")
    save(fig, path)
    return fig


def _names(names, letter, n):
    names = [printable(str(x), 30) for x in names] if names is not None else []
    return names + [f"{letter}{i + 1}" for i in range(len(names), n)]


def _bound(scores):
    """The scores' colours go from -bound to bound, the same in both panels."""
    finite = np.abs(scores[np.isfinite(scores)]) if scores is not None else np.zeros(0)
    return max(float(finite.max(initial=0)), 1e-9)


def _panel(axes, kind, values, mask, bound, rows, columns, size):
    from matplotlib.patches import Rectangle
    axes.set_title(TITLES[kind], size=12, loc="left", pad=4)
    if values is None:
        axes.set_axis_off()
        axes.text(0, 0.5, "none: these weights\nhave no single score", size=10, color="#555555", va="center",
                  transform=axes.transAxes)
        literally([axes.title])
        return
    style = ({"cmap": signed_colours(), "vmin": -bound, "vmax": bound} if kind in (0, 2) else
             {"cmap": "Greys_r", "vmin": -0.6, "vmax": 1} if kind == 1 else {"cmap": "Blues", "vmin": 0, "vmax": 1})
    with quiet():
        axes.imshow(np.ma.masked_invalid(np.asarray(values, float)), aspect="auto", interpolation="nearest", **style)
    if kind != 1:
        _numbers(axes, np.asarray(values, float), mask, kind)
    else:
        at = np.argwhere(mask)  # a dot is True, as in `masks`
        axes.plot(at[:, 1], at[:, 0], "o", color="black", markersize=5, linestyle="none")
    if kind >= 1:
        for t, s in np.argwhere(~mask):
            axes.add_patch(Rectangle((s - 0.5, t - 0.5), 1, 1, fill=kind == 2, facecolor="#EEEEEE", hatch=FORBIDDEN,
                                     edgecolor="#999999", linewidth=0))
    axes.set_xticks(np.arange(1, len(columns)) - 0.5, minor=True)
    axes.set_yticks(np.arange(1, len(rows)) - 0.5, minor=True)
    axes.grid(which="minor", color="#D9D9D9", linewidth=0.5)
    axes.xaxis.tick_top()
    axes.set_xticks(range(len(columns)), columns, rotation=90, size=size)
    axes.set_yticks(range(len(rows)), rows, size=size)
    axes.tick_params(which="both", length=0)
    axes.spines[:].set_color("#999999")
    literally([*axes.get_xticklabels(), *axes.get_yticklabels(), axes.title])


def _numbers(axes, values, mask, kind):
    """The numbers themselves, where they fit; over hatching on white."""
    t, s = values.shape
    if max(t, s) > 12 or values.size > 80:
        return
    for (t, s), x in np.ndenumerate(values):
        if np.isfinite(x):
            dark = kind == 3 and x > 0.6
            text = (f"{x:.2f}" if abs(x) < 9.95 else f"{x:.0f}").replace("-0.00", "0.00")
            masked = kind == 3 and not mask[t, s]
            axes.text(s, t, text, ha="center", va="center", size=9.5 if len(text) < 6 else 8.5,
                      color="white" if dark else "#222222",
                      bbox={"facecolor": "white", "linewidth": 0, "pad": 0.6} if masked else None)
