"""Equations: a recorded graph and its gradient as formulas.

    namer.py      names of values, from the variables of the code while it runs
    build.py      from a Program to a table of expressions; axes.py the letters and brackets of axes
    algebra.py    expressions, and the rules that simplify them
    notation.py   as text and LaTeX              numpy_source.py  as source that runs with NumPy alone
    page.py       whole outputs, HTML too        equations.py     `equations`, which puts these together
"""
