"""What all exercises share: the table, the text that a learner begins with, and the marking."""
import functools
import importlib
import inspect
import pkgutil
import re
import traceback
import types
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..errors import InputError
from ..slopes import Element, Report

TOLERANCE = 1e-8  # of an answer, relative where the right one is above 1
TOLERANCES = {"f": 1e-5}  # a right answer may be in float32
UNTOUCHED = 777.0  # what a kernel finds in `out`
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
    if inspect.isclass(function):
        report.fail("expected a function, got a class")
        return report
    answers = []  # what the learner's function gave, case by case
    with np.errstate(all="ignore"):  # whatever the learner's file has set
        try:
            function = _kernel(function, exercise, seed) if exercise.kernel else _safe(function)
            for what, arguments, right in exercise.module.cases(np.random.default_rng(seed)):
                answers.append(_answer(exercise, function, arguments, right, what))
                _mark(report, answers[-1], right, what)
        except _Failed as failure:
            report.fail(" ".join(str(failure).split()))
        words = "" if report.ok else _known_mistake(exercise, answers, seed)
    if not report.ok and not words and any(a.dtype.char in "ef" for one in answers for a in one):
        words = "Your answer is not in float64, as what comes in is."
    if words:
        report.reason = f"{report.reason or f'worst {report.worst}'}. {words}"
    return report


class _Failed(Exception):
    """The answer could not be marked at all; the text says why."""


def _mark(report, got, right, what):
    """Compare one answer, a list of arrays, with the right one, and note the worst element."""
    many = isinstance(right, tuple)
    for n, (mine, wanted) in enumerate(zip(got, right if many else (right,), strict=True)):
        where = f"{what}, answer {n + 1}" if many else what
        wanted = np.asarray(wanted)
        if mine.shape != wanted.shape:
            raise _Failed(f"{where}: expected shape {wanted.shape}, got {mine.shape}")
        if (wanted.dtype.kind == "b") != (mine.dtype.kind == "b"):
            raise _Failed(f"{where}: expected numbers of the kind {wanted.dtype}, got {mine.dtype}")
        _worst(report, where, mine.astype(float), wanted.astype(float), TOLERANCES.get(mine.dtype.char, TOLERANCE))


def _worst(report, where, mine, right, tolerance):
    same = (mine == right) | (np.isnan(mine) & np.isnan(right))
    size = np.maximum(1.0, np.abs(np.where(np.isfinite(right), right, 1.0)))
    off = np.where(same, 0.0, np.abs(mine - right)) / size
    off = np.where(np.isnan(off), np.inf, off)
    if off.size == 0:
        report.compared += 1
        return
    at = tuple(int(i) for i in np.unravel_index(np.argmax(off), off.shape))
    report.add(Element(where, at, float(mine[at]), float(right[at]), ("yours", "right")), float(off[at]) / tolerance,
               not off[at] <= tolerance)
    report.compared += off.size - 1


def _answer(exercise, function, arguments, right, what):
    """What the learner's function gives, as a list of arrays. It gets copies, so it cannot change what it is compared
    with."""
    given = [np.array(x) if isinstance(x, np.ndarray) else x for x in arguments]
    out = np.full(right.shape, UNTOUCHED) if exercise.kernel else None
    judge = getattr(exercise.module, "answer", None)  # where many answers are right, what is said of them is compared
    run = function if judge is None else functools.partial(judge, function)
    try:
        with np.errstate(all="ignore"):
            result = run(*given, *([out] if exercise.kernel else []))
    except NotImplementedError:
        raise _Failed("not written yet") from None
    except _Failed:
        raise
    except (Exception, SystemExit) as error:
        raise _Failed(f"{what}: {_said(error, function)}") from None
    for n, (before, after) in enumerate(zip(arguments, given, strict=True)):
        if isinstance(before, np.ndarray) and not np.array_equal(before, after, equal_nan=before.dtype.kind == "f"):
            raise _Failed(f"{what}: argument {n + 1} was changed; leave what comes in as it is")
    if exercise.kernel and out.size and np.all(out == UNTOUCHED):
        raise _Failed(f"{what}: nothing was written into out; a kernel fills it in place, element by element")
    return _arrays(out if exercise.kernel else result, right, what)


def _arrays(result, right, what):
    """A learner's answer, of whatever kind, as a list of arrays, as many as are wanted."""
    if result is None:
        raise _Failed(f"{what}: expected an array, got nothing; is there a `return`?")
    many = isinstance(right, tuple)
    if many and (not isinstance(result, (tuple, list)) or len(result) != len(right)):
        raise _Failed(f"{what}: expected {len(right)} arrays, got {type(result).__name__}"
                      + (f" of {len(result)}" if isinstance(result, (tuple, list)) else ""))
    arrays = []
    for n, (one, wanted) in enumerate(zip(result if many else (result,), right if many else (right,), strict=True)):
        where = f"{what}, answer {n + 1}" if many else what
        try:
            one = one.detach() if hasattr(one, "detach") else one
            array = np.asarray(one.numpy() if hasattr(one, "numpy") else one)
        except Exception:  # of another library's array, or of a list of lists of different length
            array = np.asarray(None)
        if array.dtype.kind not in "biuf":
            got = f"one of {one.dtype}" if isinstance(one, np.ndarray) else type(one).__name__
            hint = "; `yield` in place of `return`?" if inspect.isgenerator(one) else ""
            raise _Failed(f"{where}: expected an array of numbers of shape {np.shape(wanted)}, got {got}{hint}")
        if isinstance(one, (list, tuple)) and array.size == np.size(wanted) == 0:
            array = array.reshape(np.shape(wanted))  # an empty list does not tell its shape
        arrays.append(array)
    return arrays


def _said(error, function):
    """"line 3: ValueError: what it says", the line being one of the learner's file."""
    if type(error).__module__ == "numba.core.errors":
        return _refused(str(error))
    file = _source(getattr(function, "py_func", function))
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__)
             if file and Path(f.filename).resolve() == Path(file).resolve()]
    return (f"line {lines[-1]}: " if lines else "") + f"{type(error).__name__}: {error}"


def _refused(said):
    """Of the page that Numba says about a function that it cannot compile: the reason and the place."""
    lines = [line.strip() for line in re.sub(r"\x1b\[\d*m", "", said).splitlines() if line.strip()]
    telling = [line for line in lines if re.search("NameError|not supported|Unknown|No implementation", line)]
    about = (telling or lines[-1:] or ["no reason given"])[0]
    at = next((line for line in lines if line.startswith("File ")), "")
    return f"it does not compile: {about} {at}".rstrip(" :")


def _source(function):
    try:
        return inspect.getsourcefile(function)
    except TypeError:  # a partial, or something else that can be called
        return None


# ---------------------------------------------------------------------------------------------------------------------
# kernels
# ---------------------------------------------------------------------------------------------------------------------
def _kernel(function, exercise, seed):
    """The loop, compiled by Numba with its indices checked, once it has run as plain Python.

    Compiled code that writes beyond an array spoils the memory of this process, and one that never ends cannot be
    stopped by Ctrl-C. As plain Python the first is an IndexError with its line, and the second can be stopped.
    """
    plain = getattr(function, "py_func", function)
    if not inspect.isfunction(plain):
        raise _Failed(f"expected a function that Numba can compile, got {type(function).__name__}")
    _try_plain(_rebuilt(plain, lambda one, _: one), exercise, seed)
    return _rebuilt(plain, lambda one, _: _checked(one))


def _safe(function):
    """An answer that is no kernel: what Numba compiles of it is compiled with its indices checked."""
    plain = getattr(function, "py_func", function)
    if not inspect.isfunction(plain) or not any(hasattr(f, "py_func") for f in (function, *plain.__globals__.values())):
        return function
    return _rebuilt(plain, lambda one, compiled: _checked(one) if compiled else one, plain is not function)


def _checked(function):
    import numba
    return numba.njit(error_model="numpy", boundscheck=True)(function)


def _rebuilt(function, make, decorated=False):
    """make(function, decorated), where the helpers, the other functions of its file, are made anew in the same way. The
    learner's module stays as it is."""
    space = dict(function.__globals__)

    def twin(one, decorated):
        copy = types.FunctionType(one.__code__, space, one.__name__, one.__defaults__, one.__closure__)
        copy.__kwdefaults__ = one.__kwdefaults__
        return make(copy, decorated)

    for name, value in function.__globals__.items():
        plain = getattr(value, "py_func", value)
        if inspect.isfunction(plain) and plain.__globals__ is function.__globals__:
            space[name] = twin(plain, plain is not value)
    return twin(function, decorated)


def _try_plain(function, exercise, seed):
    """Run a kernel as plain Python on all cases. What Python's `math` refuses, such as log(0), compiled code may do."""
    for what, arguments, right in exercise.module.cases(np.random.default_rng(seed)):
        given = [np.array(x) for x in arguments]
        try:
            function(*given, np.full(right.shape, UNTOUCHED))
        except NotImplementedError:
            raise _Failed("not written yet") from None
        except (ArithmeticError, ValueError):
            continue
        except (Exception, SystemExit) as error:
            raise _Failed(f"{what}: {_said(error, function)}") from None


# ---------------------------------------------------------------------------------------------------------------------
# well-known mistakes
# ---------------------------------------------------------------------------------------------------------------------
def _known_mistake(exercise, answers, seed):
    """What well-known mistake gives the learner's wrong answers, in words, or ""."""
    for wrong, words in getattr(exercise.module, "MISTAKES", ()):
        if _agrees(exercise, answers, wrong, seed):
            return words
    return ""


def _agrees(exercise, answers, wrong, seed):
    """Are these, as far as they go, the answers of `wrong`, and do they differ anywhere from the right ones?"""
    differs = False
    cases = exercise.module.cases(np.random.default_rng(seed))
    for mine, (what, arguments, right) in zip(answers, cases, strict=False):
        try:
            others = _answer(exercise, wrong, arguments, right, what)
        except _Failed:
            return False
        rights = [np.asarray(a, float) for a in (right if isinstance(right, tuple) else (right,))]
        for one, other, good in zip(mine, others, rights, strict=True):
            if one.shape != other.shape or not _close(one, other):
                return False
            differs |= other.shape != good.shape or not _close(other, good)
    return differs


def _close(one, other):
    return np.allclose(one.astype(float), other.astype(float), rtol=1e-7, atol=1e-9, equal_nan=True)
