"""How a kernel with two or three inputs of different shapes walks over them without making copies.

NumPy's rule: shapes are aligned at the end, and an axis of length 1 is repeated. A stretched axis has stride 0, so the
loop reads the same element again. Neighbouring axes that behave alike are merged, and what is left is a list of rows:

    for r in range(rows):                     # the outer axes, any number of them
        a, b = offset(r, ...)                 # where this row begins in x and in y
        for j in range(n):                    # the innermost axis: stride 1, or 0 where the input is stretched
            out[r * n + j] = x[a + j * xi] + y[b + j * yi]
"""
import math
from functools import lru_cache

import numpy as np


class ShapeError(ValueError):
    """Shapes that do not fit each other."""


# plan[0] = rows, n, and the inner strides of each input; plan[1] = lengths of the outer axes; then their strides, an input a row.
# n = -1 stands for "as many as out has": one plan serves all sizes. With several rows there is a last line for cards: the
# number of outer axes, and for each input 1 if its elements lie in the order of the result's, that is if no axis of it is stretched.
SAME = np.array([[1, -1, 1, 1], [1, 1, 1, 1], [0, 0, 0, 0], [0, 0, 0, 0]])         # x and y have one shape
RIGHT = np.array([[1, -1, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0], [0, 0, 0, 0]])        # y is one number
LEFT = np.array([[1, -1, 0, 1], [1, 1, 1, 1], [0, 0, 0, 0], [0, 0, 0, 0]])         # x is one number


def broadcast(name, *shapes):
    """The common shape of `shapes`, or a ShapeError that names the op and prints them."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        listed = " and ".join(str(s) for s in shapes)
        raise ShapeError(f"{name}: shapes {listed} do not broadcast: aligned at the end, two lengths of an axis must be "
                         "equal or one of them 1") from None


@lru_cache(maxsize=4096)
def plan_of(name, *shapes):
    """(shape of the result, plan) for inputs of these shapes. See the module docstring."""
    out = broadcast(name, *shapes)
    strides = []
    for shape in shapes:
        padded = (1,) * (len(out) - len(shape)) + tuple(shape)
        step, row = 1, []
        for length in reversed(padded):
            row.append(0 if length == 1 else step)
            step *= length
        strides.append(row[::-1])
    return out, planned(out, strides)


def planned(lengths, strides):
    """The plan for inputs with these strides along axes of these lengths."""
    axes = [(length, [s[i] for s in strides]) for i, length in enumerate(lengths) if length != 1]
    axes = axes or [(1, [1] * len(strides))]
    merged = [axes[-1]]
    for length, steps in reversed(axes[:-1]):
        inner, inner_steps = merged[0]
        if all(s == t * inner for s, t in zip(steps, inner_steps, strict=True)):
            merged[0] = (length * inner, inner_steps)
        else:
            merged.insert(0, (length, steps))
    step, whole = 1, [1] * len(strides)
    for length, steps in reversed(merged):
        whole = [int(w and s == step) for w, s in zip(whole, steps, strict=True)]
        step *= length
    n, inner = merged.pop()
    rows = math.prod(m[0] for m in merged)
    width = max(4, len(merged), 2 + len(strides))
    plan = np.zeros((3 + len(strides), width), np.int64)
    plan[0, :2 + len(strides)] = [rows, n, *inner]
    plan[1] = 1
    for i, (length, steps) in enumerate(merged):
        plan[1, i] = length
        plan[2:-1, i] = steps
    plan[-1, :1 + len(strides)] = [len(merged), *whole]
    plan.flags.writeable = False
    return plan


def binary(name, x, y):
    """(shape of the result, plan) for two arrays."""
    if x.shape == y.shape:
        return x.shape, SAME
    if y.ndim == 0:
        return x.shape, RIGHT
    if x.ndim == 0:
        return y.shape, LEFT
    return plan_of(name, x.shape, y.shape)
