"""Time and memory by length: the curves of `tinyattn growth`."""
from tinyattn.errors import InputError

from ..plot import COLOURS, MARKS, bare, figure, kind_of, literally, save
from ..text import printable

PANELS = (("seconds", "milliseconds of one processor", 1e3, "time"), ("bytes", "megabytes beyond the inputs", 2.0**-20, "memory"))


def growth(curves, path=None, title=""):
    """Time and memory of both passes by length T, on axes of powers, a line for each workload. Returns the Figure.

    curves  a list of `tinyattn.growth.Curve`
    path    also write the file, by its suffix: .svg, .pdf or .png
    The legend says as which power of T each grows; grey lines grow as T and as T^2, wherever they stand.
    Raises InputError for an empty list.
    """
    if path is not None:
        kind_of(path)
    if not curves:
        raise InputError("growth: expected at least one curve, got none")
    fig = figure(13.0, 6.2)
    for axes, (key, unit, scale, word), panel in zip(fig.subplots(1, 2), PANELS, (0, 1), strict=True):
        for i, curve in enumerate(curves):
            axes.plot(curve.lengths, [value * scale for value in getattr(curve, key)], color=COLOURS[i % len(COLOURS)],
                      marker=MARKS[i % len(MARKS)], markersize=6, linewidth=2, clip_on=False,
                      label=printable(f"{curve.name}: T^{curve.slopes[panel]:.2f}"))
        _scales(axes, curves)
        axes.set_ylabel(unit, size=12)
        axes.set_title(f"{word}, forward and backward", size=14)
        legend = axes.legend(fontsize=11, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3)
        literally(legend.get_texts())
    if title:
        literally([fig.suptitle(printable(title, 100), size=15)])
    fig.tight_layout(pad=1.5)
    save(fig, path)
    return fig


def _scales(axes, curves):
    """Logarithmic axes, lengths as plain numbers, and the two grey lines."""
    from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    lengths = sorted({T for curve in curves for T in curve.lengths})
    low, high = axes.get_ylim()
    for power in (1, 2):  # through the middle of what is drawn
        middle, at = (low * high) ** 0.5, (lengths[0] * lengths[-1]) ** 0.5
        axes.plot(lengths, [middle * (T / at) ** power for T in lengths], color="#BBBBBB", linewidth=1.2, zorder=0,
                  linestyle=(0, (5, 3)) if power == 1 else (0, (1, 2)), label=f"as T^{power}")
    axes.set_ylim(low, high)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,.10g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xticks(lengths, [f"{T:,}" for T in lengths])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("length T", size=12)
    bare(axes)
