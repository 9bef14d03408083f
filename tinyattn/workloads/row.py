"""One row of the benchmark's table, and the sides that can stand in it."""
from dataclasses import dataclass, field

OURS = {"ours": "tinyattn", "compiled": "tinyattn, captured step"}
PEERS = {"torch": "PyTorch, eager", "torch-compile": "PyTorch, torch.compile", "jax": "JAX, jit", "tinygrad": "tinygrad, TinyJit",
         "autograd": "autograd (HIPS), NumPy"}


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
    twin       does it run a fused op, which has a readable twin to be compared with?
    floor      arithmetic operations that the work cannot do without (a multiply-add counts as two), if they were counted
    tolerance  how far a result may be from ours, as a share of the largest element of it
    """
    name: str
    sizes: str
    group: str
    sides: dict
    asked: dict = field(default_factory=dict)
    twin: bool = False
    floor: float | None = None
    tolerance: float = 1e-4
