"""Exercises with a grader: write a rule, a mask, a kernel, and `tinyattn check my.py` marks it with the worst element.

One file an exercise, found by being in the folder. It holds

    docstring        the task; its first line is the title
    SKELETON         the function to be written, as text: it runs, and raises NotImplementedError
    cases(rng)       yields (what, arguments, right answer): arrays, or tuples of arrays
    MISTAKES         [(function, words)]: well-known wrong answers; who gives one is told so
    KERNEL           True if the function gets an array `out` as its last argument and fills it, and must compile

Right answers come from finite differences, from slow loops, or from the engine, never from the text of a solution.
The break-it lab (`lab.py`) is an exercise of another kind: ops with planted wrong rules, to be found and mended.
"""
from .core import Exercise, find, grade, skeleton, table

__all__ = ["Exercise", "find", "grade", "skeleton", "table"]
