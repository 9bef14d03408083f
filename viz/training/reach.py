"""How far back a state reaches: the curves of `tinyattn forget`."""
import numpy as np

from tinyattn.errors import InputError

from ..plot import COLOURS, MARKS, bare, figure, kind_of, literally, save
from ..text import printable

FLOOR = 1e-8  # smaller reaches are not drawn: so little of an input is as good as none


def reach(curves, path=None, title=""):
    """Reach by distance, before training and after, a line for each network. Returns the Figure.

    curves  a list of `tinyattn.forgetting.Curve`
    path    also write the file, by its suffix: .svg, .pdf or .png
    A line ends where the reach falls below 1e-8; the axis then begins there.
    Raises InputError for an empty list.
    """
    if path is not None:
        kind_of(path)
    if not curves:
        raise InputError("reach: expected at least one curve, got none")
    parts = [("untrained", "before")] + [("trained to recall", "after")] * any(c.after is not None for c in curves)
    fig = figure(6.2 * len(parts), 4.6)
    axes = fig.subplots(1, len(parts), sharey=True, squeeze=False)[0]
    for ax, (name, key) in zip(axes, parts, strict=True):
        for i, curve in enumerate(curves):
            values = getattr(curve, key)
            if values is not None:
                label = curve.name + ": |dc / dh(T - d)|" * (curve.name == "attention" and key == "before")
                if key == "after" and curve.accuracy is not None:
                    label += f", {100 * curve.accuracy:.0f} % recalled"
                ax.plot(np.where(values < FLOOR, np.nan, values), color=COLOURS[i % len(COLOURS)],
                        marker=MARKS[i % len(MARKS)], markevery=max(1, len(values) // 12), linewidth=2,
                        label=printable(label))
        ax.set_yscale("log")
        ax.set_xlabel("distance d, steps back from the end", size=12)
        ax.set_title(name, size=14)
        bare(ax)
        literally(ax.legend(fontsize=11, frameon=False).get_texts())
    drawn = [v for c in curves for v in (c.before, c.after) if v is not None]
    if min(np.min(v) for v in drawn) < FLOOR <= max(np.max(v) for v in drawn):
        axes[0].set_ylim(bottom=FLOOR)
    axes[0].set_ylabel("|dh(T) / dh(T - d)|", size=12)
    if title:
        fig.suptitle(printable(title, 100), size=15)
    save(fig, path)
    return fig
