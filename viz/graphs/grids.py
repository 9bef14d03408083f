"""Numbers inside a node: a small tensor as a tinted grid, a large one as its range and a small histogram.

The number stands in every cell, so neither its sign nor its size hangs on a colour: orange is above 0, blue below, and
the tint is strongest at the largest magnitude of the tensor.
"""
import numpy as np

from ..text import markup
from .labels import number_text

SIDE, CELLS, SLICES = 8, 64, 4   # the largest grid: 8 x 8, or up to 4 slices of an array of more axes side by side
BINS, LEVELS = 12, 4             # of a histogram
ABOVE, BELOW, GREY = (213, 94, 0), (0, 114, 178), (110, 110, 110)
SIZE = 11                        # points of the numbers


def block(array, coloured=True):
    """An array as the inside of a DOT table cell: a grid, or a range with a histogram, or the word on what it is."""
    array = np.asarray(array)
    if array.size == 0:
        return _small("empty")
    if _fits(array.shape):
        return _grid(array, coloured)
    return _large(array)


def _fits(shape):
    rows, columns = (1, 1, *shape)[-2:]
    return rows <= SIDE and columns <= SIDE and np.prod(shape) <= CELLS and np.prod(shape[:-2]) <= SLICES


def _small(text):
    return f'<FONT POINT-SIZE="12">{markup(text)}</FONT>'


# ---------------------------------------------------------------------------------------------------------------------
# grids
# ---------------------------------------------------------------------------------------------------------------------
def _grid(array, coloured):
    """One table a slice; more than one stand side by side under their indices."""
    rows, columns = (1, 1, *array.shape)[-2:]
    finite = array[np.isfinite(array)] if array.dtype.kind == "f" else array.ravel()
    largest = float(np.abs(finite.astype(float)).max()) if finite.size else 0.0
    slices = [_table([[_cell(x, largest, coloured) for x in row] for row in part])
              for part in array.reshape(-1, rows, columns)]
    if len(slices) == 1:
        return slices[0]
    names = [", ".join(map(str, index)) for index in np.ndindex(array.shape[:-2])]
    heads = "".join(f'<TD><FONT POINT-SIZE="{SIZE}">[{name}]</FONT></TD>' for name in names)
    return ('<TABLE BORDER="0" CELLBORDER="0" CELLSPACING="4" CELLPADDING="0">'
            f'<TR>{heads}</TR><TR>{"".join(f"<TD>{s}</TD>" for s in slices)}</TR></TABLE>')


def _table(rows):
    body = "".join(f"<TR>{''.join(row)}</TR>" for row in rows)
    return f'<TABLE BORDER="0" CELLBORDER="1" CELLSPACING="0" CELLPADDING="2" COLOR="#777777">{body}</TABLE>'


def _cell(x, largest, coloured):
    text = cell_text(x)
    return (f'<TD BGCOLOR="{_tint(x, largest, coloured)}"><FONT COLOR="black" POINT-SIZE="{SIZE}">'
            f'{markup(f" {text} ")}</FONT></TD>')


def cell_text(x):
    """A number in a cell: three digits of a float (two below 0.1), an integer as it is, T or F, nan and inf."""
    x = x.item() if hasattr(x, "item") else x
    if isinstance(x, bool):
        return "T" if x else "F"
    if isinstance(x, int):
        return str(x) if abs(x) < 10**7 else f"{x:.3e}"
    if np.isfinite(x) and x and not 1e-3 <= abs(x) < 1e5:
        digits, _, power = f"{x:.1e}".partition("e")
        return f"{digits.removesuffix('.0')}e{int(power)}"
    if x == 0:
        return "0"  # no "-0"
    return f"{x:.2g}" if abs(x) < 0.1 else f"{x:.0f}" if 999.5 <= abs(x) < 1e5 else number_text(x)


def _tint(x, largest, coloured):
    x = x.item()
    if isinstance(x, bool):
        return "#FFFFFF" if x else "#CCCCCC"
    if not np.isfinite(x):
        return "#BBBBBB"
    share = 0.7 * (abs(x) / largest) if largest else 0.0
    hue = GREY if not coloured else ABOVE if x > 0 else BELOW
    return "#" + "".join(f"{round(255 + (c - 255) * share):02X}" for c in hue)


# ---------------------------------------------------------------------------------------------------------------------
# ranges
# ---------------------------------------------------------------------------------------------------------------------
def summary(array):
    """A large array in words: its range, what is not finite, how many are True."""
    array = np.asarray(array)
    if array.size == 0:
        return "empty"
    if array.dtype.kind == "b":
        return f"{int(array.sum())} of {array.size} True"
    finite = array[np.isfinite(array)]
    bad = array.size - finite.size
    words = [f"{bad} of {array.size} not finite"] if bad else []
    if finite.size:
        low, high = cell_text(finite.min()), cell_text(finite.max())
        words.append(f"all {low}" if finite.min() == finite.max() else f"{low} … {high}")
    return ", ".join(words)


def _large(array):
    text, bars = _small(summary(array)), _bars(array)
    if not bars:
        return text
    return (f'<TABLE BORDER="0" CELLBORDER="0" CELLSPACING="0" CELLPADDING="1"><TR><TD>{text}</TD></TR>'
            f'<TR><TD>{bars}</TD></TR></TABLE>')


def _bars(array):
    """A histogram as a table of tiny cells, from the smallest to the largest number; "" where there is no spread."""
    finite = np.asarray(array, float)[np.isfinite(array)] if array.dtype.kind != "b" else np.zeros(0)
    if finite.size == 0 or not 0 < float(finite.max()) - float(finite.min()) < np.inf:
        return ""
    heights = np.histogram(finite, BINS)[0]
    levels = np.ceil(LEVELS * heights / heights.max()).astype(int)  # a bin that holds anything is seen
    rows = ""
    for level in range(LEVELS, 0, -1):
        cells = "".join(f'<TD WIDTH="7" HEIGHT="5" FIXEDSIZE="TRUE"{_FULL if n >= level else ""}></TD>' for n in levels)
        rows += f"<TR>{cells}</TR>"
    return f'<TABLE BORDER="0" CELLBORDER="0" CELLSPACING="0" CELLPADDING="0">{rows}</TABLE>'


_FULL = ' BGCOLOR="#666666"'
