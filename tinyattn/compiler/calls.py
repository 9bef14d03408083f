"""What a tape writes down: calls that can be run again, and all of a step."""
from dataclasses import dataclass, field

import numpy as np

from .. import random
from ..program import Instruction, Program
from . import card

ndarray = np.ndarray


@dataclass
class Call(Instruction):
    """An Instruction that can be run.

    run      arrays in, a tuple of arrays out, one for each of `outputs`; None stands for an optional input left out
    part     "numpy", "forward" or "backward"
    node     the op whose `saved` this call fills (forward) or reads (backward): the two stay in this order
    each     a Python expression in the input names: element i of the output from the elements i of the inputs; or ""
    takes    `run` has a parameter `out` and may be given there the memory of the input at this position
    draws    does it draw a random number? Such calls keep their order, and stay even if unused
    told     `run` has a parameter `out`, whether or not that may be the memory of an input
    card     are its results made on a card?
    settings a text: two calls of one op with equal settings and inputs give the same. None where nobody can tell
    bare     arrays in, a function without arguments out: `run` without the tuple around its result
    """
    run: object = None
    part: str = "forward"
    node: object = None
    each: str = ""
    takes: int | None = None
    told: bool = False
    card: bool = False
    draws: bool = False
    settings: str | None = None
    bare: object = None


@dataclass
class Captured:
    """A step as written down. `program.outputs` are the values of the returned Tensors, then of the gradients.

    arrays      {value: array} of all leaves: inputs, parameters and constants
    inputs      the values of the arguments' arrays
    returned    how many of `program.outputs` are returned
    leaves      the Tensors whose `.grad` the step sets; their gradients are the rest of `program.outputs`
    result      what the step returned, with a Hole in the place of each Tensor
    effects     [(name, function)]: clipping and updates, to be called in this order after the rest
    aliases     {value: value}: this one is a view of that one's memory
    strided     the values whose elements do not lie one after the other
    nodes       the ops that were recorded: their graph is not needed once the calls are bound
    tensors     [(leaf, its array, does it require a gradient?)] of the Tensors from outside that ops read
    """
    program: Program
    arrays: dict
    inputs: list
    returned: int
    leaves: list
    result: object
    effects: list
    aliases: dict = field(default_factory=dict)
    strided: set = field(default_factory=set)
    nodes: list = field(default_factory=list)
    tensors: list = field(default_factory=list)


def drawn():
    """The state of the package's random numbers."""
    return random.generator().bit_generator.state


def rewind(state):
    """Put back what `drawn` gave, in the same generator: others may hold it."""
    random.generator().bit_generator.state = state


def root_of(array):
    """The array that owns the memory."""
    while isinstance(array.base, ndarray):
        array = array.base
    return array


def memory_of(array):
    """What is the same for all arrays in the same memory: the identity of the array that owns it, or its place on a card, where
    there are no views but of the whole."""
    return card.memory_of(array) if card.holds(array) else id(root_of(array))
