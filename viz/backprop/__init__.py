"""Backpropagation step by step.

    record.py     the graph as boxes: what is drawn, in which order, with which names
    walk.py       forward and backward, one node at a time, by the engine's own rules; in the right and in a wrong order
    check.py      the rules against finite differences
    formula.py    rules and local slopes as formulas, read off the rules themselves
    layout.py     where the boxes stand          marks.py, draw.py  what a slide is made of
    tags.py       where the labels of edges stand
    page.py       the page that turns            examples.py        those for a first lecture
    steps.py      `steps`, which puts these together
"""
