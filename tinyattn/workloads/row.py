"""One row of the benchmark's table, and the sides that can stand in it."""
from collections.abc import Callable
from dataclasses import dataclass, field

OURS = {"ours": "tinyattn", "compiled": "tinyattn, captured step"}
PEERS = {"torch": "PyTorch, eager", "torch-compile": "PyTorch, torch.compile", "jax": "JAX, jit", "tinygrad": "tinygrad, TinyJit",
         "autograd": "autograd (HIPS), NumPy"}
COPY = "copy"  # no library: what only a card is measured by


@dataclass
class Row:
    """One workload, as several sides do it with the same numbers.

    group      a part of the table: `tinyattn bench GROUP` picks it
    sides      {side: make}: the keys of OURS and PEERS; "ours" must be there. make() imports what it needs, builds, and returns a
               call without arguments, the work to be timed. The call returns its result: an array of its library, a number, or a
               tuple of such (None in a tuple is left out), or a function that gives it, called only to compare. Before
               anything is timed the results of the first calls of every side must agree with ours: a training step
               returns its loss, so the second shows whether the first has moved the weights.
    asked      {peer: the least ratio, the peer's time divided by ours (the better of "ours" and "compiled")}
    card       the same, on a card. There "copy" is a peer too: a copy, by the driver, of as many bytes as `moved` says, so
               the ratio to it is the share that we reach of what the card's memory can do
    moved      bytes that the work cannot do without reading from or writing to a card's memory, if it is bound by that
    twin       does it run a fused op, which has a readable twin to be compared with?
    floor      arithmetic operations that the work cannot do without (a multiply-add counts as two), if they were counted
    tolerance  how far a result may be from ours, as a share of the largest element of it
    apart      a row that is timed in a process of its own: a function that gives the dictionary of times
    """
    name: str
    sizes: str
    group: str
    sides: dict
    asked: dict = field(default_factory=dict)
    twin: bool = False
    floor: float | None = None
    tolerance: float = 1e-4
    card: dict = field(default_factory=dict)
    moved: int | None = None
    apart: Callable | None = None
