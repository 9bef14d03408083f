"""In which order may a backward pass visit the nodes?

`inputs` tells, for every node of a graph, which nodes it was computed from: {"c": ["b", "b"], "b": ["a", "a"], "a": []}
is a = ..., b = a + a, c = b + b. `last` is the node to be differentiated. Give the list of all nodes below it (it too),
each once, in an order in which a node comes only after every node that uses it: then its gradient is complete when it
is visited. Graphs may be deeper than Python's recursion goes (the last one has 5,000 nodes in a row).

Any right order will do. What is compared is what is said of your list: 1 for a node that stands where it may, 0 for
one that does not, is missing, or comes twice; and at the end 1 if there is nothing in it that should not be.
"""
from collections import Counter, defaultdict

import numpy as np

ORDER = 1
SKELETON = """
def topological_order(inputs, last):
    raise NotImplementedError
"""


def _below(inputs, last):
    seen, stack = {last: None}, [last]
    while stack:
        for node in inputs[stack.pop()]:
            if node not in seen:
                seen[node] = None
                stack.append(node)
    return list(seen)


def judged(order, inputs, last):
    """1 for each node below `last` that is there once, after all that use it, else 0; then 1 if nothing else is."""
    nodes, users = _below(inputs, last), defaultdict(set)
    for user in nodes:
        for node in inputs[user]:
            users[node].add(user)
    count, place = Counter(order), {node: i for i, node in enumerate(order)}
    good = [count[node] == 1 and all(count[user] and place[user] < place[node] for user in users[node])
            for node in nodes]
    return np.array([*good, set(count) <= set(nodes)], float)


def answer(function, inputs, last):
    """What the grader compares in place of the list itself."""
    order = function({node: list(below) for node, below in inputs.items()}, last)
    if not isinstance(order, (list, tuple)):
        raise TypeError(f"expected a list of nodes, got {type(order).__name__}")
    return judged(order, inputs, last)


def cases(rng):
    """Small graphs that trip up a walk without counting, random ones, and a deep one."""
    graphs = [("b = a + a, c = b + b", {"a": [], "b": ["a", "a"], "c": ["b", "b"]}, "c"),
              ("paths of different length", {"a": [], "b": ["a"], "c": ["b", "a"], "d": ["a", "c"]}, "d"),
              ("a node that nothing below needs", {"a": [], "b": ["a"], "x": ["a", "b"], "c": ["b"]}, "c")]
    for k in range(3):
        inputs = {f"m{i}": [f"m{int(j)}" for j in rng.integers(0, i, size=2)] if i else [] for i in range(12)}
        graphs.append((f"random graph {k}", inputs, "m11"))
    graphs.append(("5,000 nodes in a row", {f"n{i}": [f"n{i - 1}"] if i else [] for i in range(5000)}, "n4999"))
    for what, inputs, last in graphs:
        yield what, (inputs, last), np.ones(len(_below(inputs, last)) + 1)


def _before_complete(inputs, last):
    """Breadth first: a node is visited as soon as it is reached."""
    return _below(inputs, last)


MISTAKES = [(_before_complete, "That is breadth-first order: a node must wait until all that use it were visited. "
             "Count its uses first.")]
