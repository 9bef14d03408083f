"""A small matrix in its own Axes: names at the edges, numbers in the cells, hatching where nothing may be. What the
pictures of masks, positions and penalties share."""
import numpy as np

from ..plot import literally, quiet, signed_colours

FORBIDDEN = "////"  # hatching of a place that is masked, to be told from a small number in print too
WEIGHTS = "Blues"


def matrix(axes, values, rows=None, columns=None, *, bound=1.0, signed=False, numbers="", forbidden=None, size=11):
    """Draw values (R, C) into axes, row 0 on top, cell (i, j) at (j, i). Returns the image.

    rows, columns  names at the left and above; None: none
    bound          the number that is darkest; signed: from minus that number: orange above 0, blue below
    numbers        a format such as "{:.2f}" writes the number into each cell
    forbidden      bool (R, C): cells that are hatched, without a colour or a number
    """
    from matplotlib.patches import Rectangle
    values = np.asarray(values, float)
    forbidden = np.zeros(values.shape, bool) if forbidden is None else np.asarray(forbidden)
    with quiet():
        image = axes.imshow(np.ma.masked_array(values, forbidden), cmap=signed_colours() if signed else WEIGHTS,
                            aspect="auto", vmin=-bound if signed else 0.0, vmax=bound, interpolation="nearest")
    for i, j in np.argwhere(forbidden):
        axes.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, facecolor="#F4F4F4", hatch=FORBIDDEN, edgecolor="#999999",
                                 linewidth=0))
    if numbers:
        for (i, j), x in np.ndenumerate(values):
            if not forbidden[i, j]:
                axes.text(j, i, plain(numbers, x), ha="center", va="center", size=max(size - 1, 9),
                          color="white" if not signed and x > 0.55 * bound else "black")
    edges(axes, rows, columns, values.shape, size)
    return image


def edges(axes, rows, columns, shape, size):
    """Names at the left and above, a thin line between cells, a grey frame."""
    axes.xaxis.tick_top()
    axes.set_xticks(range(len(columns or [])), columns or [], rotation=90, size=size)
    axes.set_yticks(range(len(rows or [])), rows or [], size=size)
    axes.set_xticks(np.arange(1, shape[1]) - 0.5, minor=True)
    axes.set_yticks(np.arange(1, shape[0]) - 0.5, minor=True)
    axes.grid(which="minor", color="#D9D9D9", linewidth=0.5)
    axes.tick_params(which="both", length=0)
    axes.spines[:].set_color("#999999")
    literally([*axes.get_xticklabels(), *axes.get_yticklabels()])


def plain(form, x):
    """A number as text: no minus before a zero."""
    text = form.format(x)
    return text.lstrip("-") if not text.strip("-0.") else text


def bar(fig, image, place, label=""):
    """A colour bar at `place`, as fractions of the page. Of colours for both signs, the half that is not used is cut
    off."""
    drawn, values = fig.colorbar(image, cax=fig.add_axes(place)), image.get_array()
    low, high = image.get_clim()
    if low < 0 and values.count() and (values.min() >= 0) != (values.max() <= 0):
        drawn.ax.set_ylim(0 if values.min() >= 0 else low, 0 if values.max() <= 0 else high)
    drawn.ax.tick_params(labelsize=10)
    drawn.outline.set_edgecolor("#999999")
    if label:
        drawn.set_label(label, size=11)
    return drawn
