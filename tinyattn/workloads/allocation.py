"""`python -m tinyattn.workloads.allocation BYTES`: what an array on the card costs, as JSON, with the pool or without, as
TINYATTN_CUDA_POOL says. The row of `card.py` starts it."""
import json
import sys

from .. import device
from ..cuda import memory
from . import timing
from .card import _allocation
from .sides import wait_of


def main(size):
    with device.default_device("cuda"):
        call = _allocation(size, memory.POOL).sides["ours"]()
        found = timing.one(timing.Timed(call, wait_of("ours")))
    json.dump({**found, "pool": memory.POOL, **memory.stats()._asdict()}, sys.stdout)


if __name__ == "__main__":
    main(int(sys.argv[1]))
