"""How far back a state reaches: the curves of `tinyattn forget`."""
import numpy as np

from tinyattn.errors import InputError

from .plot import COLOURS, MARKS, bare, figure, kind_of, literally, save
from .text import printable

FLOOR = 1e-8  # smaller reaches are drawn here


def reach(curves, path=None, title=""):
    """Reach by distance, before training and after, a line for each network. Returns the Figure.

    curves  a list of `tinyattn.forgetting.Curve`
    path    also write the file, by its suffix: .svg, .pdf or .png
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
                label = curve.name
                if key == "after" and curve.accuracy is not None:
                    label += f", {100 * curve.accuracy:.0f} % recalled"
                ax.plot(np.maximum(values, FLOOR), color=COLOURS[i % len(COLOURS)], marker=MARKS[i % len(MARKS)],
                        markevery=max(1, len(values) // 12), linewidth=2, label=printable(label))
        ax.set_yscale("log")
        ax.set_xlabel("distance d, steps back from the end", size=12)
        ax.set_title(name, size=14)
        bare(ax)
        literally(ax.legend(fontsize=11, frameon=False).get_texts())
    axes[0].set_ylabel("|dh(T) / dh(T - d)|, through attention |dc / dh|", size=12)
    if title:
        fig.suptitle(printable(title, 100), size=15)
    save(fig, path)
    return fig
