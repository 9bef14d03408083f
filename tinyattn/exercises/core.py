"""What all exercises share: the table, the text that a learner begins with, and the marking."""
import functools
import importlib
import inspect
import pkgutil
import re
import traceback
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..errors import InputError
from ..slopes import Element, Report

TOLERANCE = 1e-8  # of an answer, relative where the right one is above 1
_NOT_EXERCISES = ("core", "lab", "planted")


@dataclass(frozen=True)
class Exercise:
    """One exercise: see the head of the package. `module` is its file."""
    name: str
    module: object

    @property
    def title(self):
        return inspect.getdoc(self.module).partition("\n")[0]

    @property
    def task(self):
        return inspect.getdoc(self.module)

    @property
    def kernel(self):
        return getattr(self.module, "KERNEL", False)


@functools.cache
def table():
    """{name: Exercise}, in the order in which they are meant to be done."""
    package = importlib.import_module(__package__)
    found = [importlib.import_module(f"{__package__}.{m.name}") for m in pkgutil.iter_modules(package.__path__)
             if m.name not in _NOT_EXERCISES]
    found.sort(key=lambda module: (module.ORDER, module.__name__))
    return {m.__name__.rpartition(".")[2]: Exercise(m.__name__.rpartition(".")[2], m) for m in found}


def find(name):
    """The Exercise of this name. InputError where there is none."""
    if name not in table():
        raise InputError(f"exercise: expected one of {', '.join(table())}, or lab, got {name!r}")
    return table()[name]


def skeleton(exercises):
    """The text of a file to begin with: the task of each exercise, and the function to be written."""
    head = ('"""Exercises of tinyattn. Write the functions; `tinyattn check FILE` marks them as often as you like.\n'
            'Arrays are NumPy\'s, in float64; leave those that come in as they are.\n"""\nimport numpy as np\n')
    parts = []
    for exercise in exercises:
        task = "\n".join(f"# {line}".rstrip() for line in exercise.task.splitlines())
        parts.append(f"\n\n{task}\n{exercise.module.SKELETON.strip()}\n")
    return head + "".join(parts)


# ---------------------------------------------------------------------------------------------------------------------
# marking
# ---------------------------------------------------------------------------------------------------------------------
def grade(exercise, function, seed=0):
    """The Report on an answer: a function of the name of the exercise, from a file of the learner's."""
    report = Report(f"exercise {exercise.name}")
    try:
        if exercise.kernel:
            function = _compiled(function)
        for what, arguments, right in exercise.module.cases(np.random.default_rng(seed)):
            _mark(report, exercise, function, what, arguments, right)
    except _Failed as failure:
        report.fail(str(failure))
    words = "" if report.ok else _known_mistake(exercise, function, seed)
    if words:
        report.reason = f"{report.reason or f'worst {report.worst}'}. {words}"
    return report


class _Failed(Exception):
    """The answer could not be marked at all; the text says why."""


def _mark(report, exercise, function, what, arguments, right):
    """Compare one answer with the right one, and note the worst element."""
    got = _answer(exercise, function, arguments, right, what)
    many = isinstance(right, tuple)
    got, right = (got, right) if many else ((got,), (right,))
    if not isinstance(got, (tuple, list)) or len(got) != len(right):
        raise _Failed(f"{what}: expected {len(right)} arrays, got {type(got).__name__}"
                      + (f" of {len(got)}" if isinstance(got, (tuple, list)) else ""))
    for n, (mine, wanted) in enumerate(zip(got, right, strict=True)):
        where = f"{what}, answer {n + 1}" if many else what
        wanted = np.asarray(wanted)
        try:
            mine = np.asarray(mine.numpy() if hasattr(mine, "numpy") else mine)
        except ValueError:
            raise _Failed(f"{where}: expected an array of shape {wanted.shape}, got {type(mine).__name__}") from None
        if mine.shape != wanted.shape:
            raise _Failed(f"{where}: expected shape {wanted.shape}, got {mine.shape}")
        if (wanted.dtype.kind == "b") != (mine.dtype.kind == "b") or mine.dtype.kind not in "biuf":
            raise _Failed(f"{where}: expected numbers of the kind {wanted.dtype}, got {mine.dtype}")
        _worst(report, where, mine.astype(float), wanted.astype(float))


def _worst(report, where, mine, right):
    same = (mine == right) | (np.isnan(mine) & np.isnan(right))
    size = np.maximum(1.0, np.abs(np.where(np.isfinite(right), right, 1.0)))
    with np.errstate(all="ignore"):
        off = np.where(same, 0.0, np.abs(mine - right)) / size
    off = np.where(np.isnan(off), np.inf, off)
    if off.size == 0:
        report.compared += 1
        return
    at = tuple(int(i) for i in np.unravel_index(np.argmax(off), off.shape))
    report.add(Element(where, at, float(mine[at]), float(right[at]), ("yours", "right")), float(off[at]) / TOLERANCE,
               not off[at] <= TOLERANCE)
    report.compared += off.size - 1


def _answer(exercise, function, arguments, right, what):
    """What the learner's function gives. It gets copies, so it cannot change what it is compared with."""
    given = [np.array(x) if isinstance(x, np.ndarray) else x for x in arguments]
    out = np.full(right.shape, 777.0) if exercise.kernel else None
    judge = getattr(exercise.module, "answer", None)  # where many answers are right, what is said of them is compared
    run = function if judge is None else functools.partial(judge, function)
    try:
        with np.errstate(all="ignore"):
            result = run(*given, *([out] if exercise.kernel else []))
    except NotImplementedError:
        raise _Failed("not written yet") from None
    except _Failed:
        raise
    except Exception as error:
        raise _Failed(f"{what}: {_said(error, function)}") from None
    for n, (before, after) in enumerate(zip(arguments, given, strict=True)):
        if isinstance(before, np.ndarray) and not np.array_equal(before, after, equal_nan=before.dtype.kind == "f"):
            raise _Failed(f"{what}: argument {n + 1} was changed; leave what comes in as it is")
    if not exercise.kernel and result is None:
        raise _Failed(f"{what}: expected an array, got nothing; is there a `return`?")
    return out if exercise.kernel else result


def _compiled(function):
    """The loop, compiled by Numba; one that is compiled already stays as it is."""
    import numba
    if not inspect.isfunction(function):
        return function
    loop = numba.njit(error_model="numpy")(function)

    def run(*arguments):
        try:
            return loop(*arguments)
        except numba.core.errors.NumbaError as error:
            lines = [line.strip() for line in re.sub(r"\x1b\[\d*m", "", str(error)).splitlines() if line.strip()]
            telling = [line for line in lines if re.search("NameError|not supported|Unknown|No implementation", line)]
            about = (telling or lines[-1:] or ["no reason given"])[0]
            at = next((line for line in lines if line.startswith("File ")), "")
            raise _Failed(f"it does not compile: {about} {at}".strip()) from None
    run.file = inspect.getsourcefile(function)
    return run


def _said(error, function):
    """"line 3: ValueError: what it says", the line being one of the learner's file."""
    file = getattr(function, "file", None) or inspect.getsourcefile(getattr(function, "py_func", function))
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__)
             if file and Path(f.filename).resolve() == Path(file).resolve()]
    return (f"line {lines[-1]}: " if lines else "") + f"{type(error).__name__}: {error}"


def _known_mistake(exercise, function, seed):
    """What well-known mistake gives the learner's wrong answers, in words, or ""."""
    for wrong, words in getattr(exercise.module, "MISTAKES", ()):
        if _agrees(exercise, function, wrong, seed):
            return words
    return ""


def _agrees(exercise, function, wrong, seed):
    """Do two wrong answers agree wherever the wrong one differs from the right one, and is that anywhere?"""
    differs = False
    for what, arguments, right in exercise.module.cases(np.random.default_rng(seed)):
        answers = []
        for f in (function, wrong):
            try:
                answer = _answer(exercise, f, arguments, right, what)
                answers.append([np.asarray(a, float) for a in (answer if isinstance(right, tuple) else (answer,))])
            except (_Failed, ValueError, TypeError):
                return False
        rights = [np.asarray(a, float) for a in (right if isinstance(right, tuple) else (right,))]
        for mine, other, good in zip(*answers, rights, strict=True):
            if mine.shape != other.shape or not np.allclose(mine, other, rtol=1e-7, atol=1e-9, equal_nan=True):
                return False
            differs |= other.shape != good.shape or not np.allclose(other, good, rtol=1e-7, atol=1e-9, equal_nan=True)
    return differs
