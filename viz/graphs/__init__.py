"""Computation graphs.

    recorded.py   what Tensors add to a Program: names, values, gradients, the backward pass
    cut.py        the inside of one box          paths.py   the paths between two nodes
    fold.py       fewer nodes: closed boxes, equal time steps on top of each other
    dot.py        nodes, edges and boxes as DOT text; labels.py: what they say; grids.py: numbers; themes.py: colours
    render.py     from DOT to a picture with whatever the machine has; fit.py and xdot.py mend what it gives
    exchange.py   JSON and GraphML               page.py    a page to move about in
    graph.py      `graph`, which puts these together
"""
