"""The shapes that a mechanism expects, told in letters, and its options; one line says so where they do not fit."""
import numpy as np

from ..errors import InputError
from ..ops.broadcast import ShapeError
from ..tensor import NUMBERS, Tensor


def expect(name, **given):
    """Check shapes against letters: `expect("dot", q=(q, "...TD"), k=(k, "...SD"))`.

    A letter is one length wherever it stands, a digit that length, "..." any number of leading axes, which broadcast
    against those of the others; "" is a scalar, for which a Python number will do. ShapeError, or TypeError for what is
    no Tensor; the message begins with `name` and tells what was expected and what came.
    """
    sizes = {}
    for argument, (tensor, letters) in given.items():
        if isinstance(tensor, NUMBERS) and not letters:
            continue
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name}: expected a Tensor for {argument}, got {type(tensor).__name__}")
        if not _fits(tensor.shape, letters, sizes):
            expected = ", ".join(f"{a} {_spelled(wanted)}" for a, (_, wanted) in given.items())
            came = ", ".join(f"{a} {getattr(x, 'shape', x)}" for a, (x, _) in given.items())
            raise ShapeError(f"{name}: expected {expected}, got {came}")


def whole(name, least, **given):
    """Check options that are whole numbers: `whole("dmn", 1, hops=hops)`. ValueError for others and below `least`."""
    for option, n in given.items():
        if not isinstance(n, (int, np.integer)) or n < least:
            raise ValueError(f"{name}: expected {option} of at least {least}, a whole number, got {n!r}")


def one_of(name, **given):
    """Check options that are words: `one_of("disan", direction=(direction, DIRECTIONS))`. InputError for others."""
    for option, (value, words) in given.items():
        if not isinstance(value, (str, type(None))) or value not in words:
            raise InputError(f"{name}: expected {option} to be one of {', '.join(map(str, words))}, got {value!r}")


def _fits(shape, letters, sizes):
    """Whether a shape is that of the letters, whose lengths so far are `sizes`; adds the new ones."""
    if letters[:3] == "...":
        letters = letters[3:]
        lead = len(shape) - len(letters)
        if lead < 0:
            return False
        before = sizes.setdefault("...", shape[:lead])
        if before != shape[:lead]:
            try:
                sizes["..."] = np.broadcast_shapes(before, shape[:lead])
            except ValueError:
                return False
        shape = shape[lead:]
    return len(shape) == len(letters) and all(
        n == (int(c) if c.isdigit() else sizes.setdefault(c, n)) for c, n in zip(letters, shape, strict=True))


def _spelled(letters):
    """The letters as a shape is printed: "(..., T, D)" for "...TD"."""
    parts = [*letters] if letters[:3] != "..." else ["...", *letters[3:]]
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
