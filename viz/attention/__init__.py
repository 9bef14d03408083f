"""What attention looks at.

    heatmap.py    maps, alone and in a grid by layer and head; matrix.py, which others share
    lines.py      lines between two sentences    tinted.py     text tinted by weight
    hops.py       hops over a story              penalty.py    rows that should differ, and how much they overlap
    masks.py      what a mask allows             positions.py  codes and biases of positions
    panels.py     scores, mask, masked scores, weights
    maps.py       choosing, averaging and stacking what a model looked at, and the same of a `capture()`
    page.py       the page that answers to mouse and keyboard; its script is in script.py and moves.py
"""
