"""The penalty of structured self-attention (Lin et al. 2017) as a picture: A, the overlaps A A^T of its rows, and
A A^T - I, whose squared Frobenius norm is what the loss adds."""
import numpy as np

from tinyattn.attention.structured_self import penalty as penalty_of
from tinyattn.errors import InputError
from tinyattn.tensor import Tensor

from ..plot import figure, kind_of, literally, save
from ..plot import numbers as array_of
from ..text import printable, width
from .heatmap import checked
from .matrix import bar, matrix

MOST_ROWS, MOST = 30, 60   # rows and tokens of A
CELL, WIDE = 0.46, 0.62    # inches of a cell of A, and of A A^T, which has numbers


def penalty(weights, path=None, title="", *, tokens=None, names=None):
    """A (R, T), a row a distribution over T tokens; A A^T (R, R); A A^T - I with its squared norm. Returns the Figure.

    weights  a Tensor or array, rows are hops: whoever has them token by token transposes first
    tokens   names of the T tokens, "token 1", ... by default; names: of the R rows, "hop 1", ... by default
    Raises InputError for weights of another shape, or for more than 30 rows or 60 tokens.
    """
    if path is not None:
        kind_of(path)
    a = array_of("penalty", weights)
    R, T = a.shape if a.ndim == 2 else (0, 0)
    tokens = [f"token {t + 1}" for t in range(T)] if tokens is None else tokens
    one = checked("penalty", a, [f"hop {r + 1}" for r in range(R)] if names is None else names, tokens)
    if R > MOST_ROWS or T > MOST:
        raise InputError(f"penalty: expected A of at most {MOST_ROWS} rows and {MOST} tokens, got {R} and {T}")
    a = Tensor(one.weights)
    overlaps = (a @ a.T).numpy()                                           # (R, R)
    fig = _page(one, overlaps, penalty_of(a).item(), title)
    save(fig, path)
    return fig


def _page(one, overlaps, norm, title):
    R, T = one.weights.shape
    cell = CELL if T <= 20 else 0.27
    left, top = (max(width(t, 11) for t in side) * 1.1 / 72 + 0.2 for side in (one.rows, one.columns))
    high, wide = R * CELL * 0.85, R * WIDE
    head = 0.65 if title else 0.3
    below = head + top + high + 0.4 + left                                # upper edge of the matrices below A
    page = max(left + T * cell + 0.9, 2 * (left + wide) + 1.6), below + wide * 0.75 + 0.5
    fig = figure(*page)

    def axes(x, y, width_, height):
        return fig.add_axes((x / page[0], 1 - (y + height) / page[1], width_ / page[0], height / page[1]))

    upper = axes(left, head + top, T * cell, high)
    numbers = "{:.2f}" if cell == CELL and R * T <= 120 else ""
    weights = matrix(upper, one.weights, one.rows, one.columns, numbers=numbers)
    whole = np.allclose(one.weights.sum(1), 1, atol=1e-4)
    upper.set_title("A: each row sums to 1" if whole else "A", size=13, loc="left")
    bar(fig, weights, ((left + T * cell + 0.15) / page[0], 1 - (head + top + high) / page[1], 0.14 / page[0],
                       high / page[1]), "weight")
    form = "{:.2f}" if R <= 12 else ""
    bound = max(1.0, float(np.abs(overlaps).max()))
    first = axes(left, below, wide, wide * 0.75)
    matrix(first, overlaps, one.rows, one.rows, bound=bound, numbers=form)
    first.set_title("A Aᵀ: overlaps of the rows", size=13, loc="left")
    second = axes(2 * left + wide + 0.9, below, wide, wide * 0.75)
    matrix(second, overlaps - np.eye(R), one.rows, one.rows, bound=bound, signed=True, numbers=form)
    second.set_title("A Aᵀ − I", size=13, loc="left")
    literally([upper.title, first.title, second.title])
    literally([fig.text(left / page[0], 0.1 / page[1], f"‖A Aᵀ − I‖² = {norm:.4f}, the sum of the squares on the right",
                        size=13)])
    if title:
        literally([fig.text(0.1 / page[0], 1 - 0.1 / page[1], printable(title, 110), va="top", size=15)])
    return fig
