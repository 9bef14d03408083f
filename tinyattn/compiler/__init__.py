"""Captured steps: a training step is run once, written down, and replayed.

    trace.py     arguments that tell which NumPy functions were applied to them
    tape.py      writes a step down while it runs: a Program of calls that can be run again
    calls.py     what it writes down
    passes.py    needless copies, dead code, common subexpressions
    fusion.py    chains of elementwise operations become one generated loop; on a card (fusion_cuda.py) one generated kernel
    memory.py    which memory each array stands in, by its lifetime; results in place of dying operands
    replay.py    the calls bound to their memory: what is left of a step
    card.py      what is otherwise on a card: numbers sent there, memory dealt out there
    check.py     is a replay what the eager step is?
    step.py      `compile(step)`: from the first call to the replay, and `capture` for those who want to look
"""
from .calls import Captured
from .step import Compiled, capture, compile, optimised, stages
from .tape import Tape

__all__ = ["Captured", "Compiled", "Tape", "capture", "compile", "optimised", "stages"]
