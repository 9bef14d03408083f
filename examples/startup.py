"""How long one waits for a first answer, measured in fresh processes.

    python examples/startup.py -o start.json            # every system, about four minutes; --only help,mlp: these

    help         tinyattn --help
    import       import tinyattn, and its Tensor
    mlp          the first training step of a small perceptron
    SYSTEM       the first training step of `tinyattn train SYSTEM`, its data made before it

A first step is measured twice: with an empty cache folder, where kernels are compiled and data are made (once), and with
what that left there (the median of three). Seconds are from the start of the process to its end, Python's own included.
`speed.py --start` takes the file that is written.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tinyattn import get_num_threads, systems
from tinyattn.errors import InputError
from tinyattn.workloads import peers

ROOT = Path(__file__).resolve().parent.parent
ROUNDS = 3
ASKED = {"help": 0.3, "import": 0.5}                 # seconds
STEP = {"filled": 2.0, "empty": 30.0}                # of a first step, by what the cache folder holds
PLAIN = {"help": ["-m", "tinyattn", "--help"], "import": ["-c", "import tinyattn; tinyattn.Tensor"]}
MLP = """
import numpy as np
import tinyattn as ta
from tinyattn import nn, optim
from tinyattn.functional import cross_entropy

class MLP(nn.Module):
    def __init__(self):
        self.into, self.out_of = nn.Linear(64, 128), nn.Linear(128, 10)

    def forward(self, x):
        return self.out_of(self.into(x).relu())

model = MLP()
optimizer = optim.Adam(model.parameters(), lr=1e-3)
x, y = ta.randn(32, 64), ta.Tensor(np.arange(32) % 10)
cross_entropy(model(x), y).backward()
optim.clip_grad_norm(model.parameters(), 1.0)
optimizer.step()
"""
SYSTEM = """
import os
from dataclasses import replace
from tinyattn import get_num_threads, systems
from tinyattn.config import Config
from tinyattn.train import train

cls = systems.find({name!r})
options = cls.Options()
config = Config.proposed(cls, options)
system = cls.prepare(options, **config.sources(cls))
train(system, replace(config, steps=2, validate_every=2), report=lambda progress: os._exit(0))
"""


def seconds(arguments, cache=None):
    """Seconds of one fresh Python from its start to its end. RuntimeError with what it said, if it fails."""
    found = {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}
    if cache is not None:
        found["TINYATTN_CACHE"] = str(cache)
    begun = time.perf_counter()
    done = subprocess.run([sys.executable, *arguments], env=os.environ | found, capture_output=True, text=True)
    took = time.perf_counter() - begun
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)[:60]}: {done.stderr.strip()[-400:]}")
    return took


def row(what, cache, times, asked):
    return {"what": what, "cache": cache, "seconds": [round(t, 3) for t in times], "asked": asked}


def measure(what):
    """Yield what was measured of one of `names()`."""
    if what in PLAIN:
        seconds(PLAIN[what])                          # the first one may write .pyc files
        yield row(what, None, [seconds(PLAIN[what]) for _ in range(ROUNDS)], ASKED[what])
        return
    arguments = ["-c", MLP if what == "mlp" else SYSTEM.format(name=what)]
    with tempfile.TemporaryDirectory() as cache:
        yield row(what, "empty", [seconds(arguments, cache)], STEP["empty"])
        yield row(what, "filled", [seconds(arguments, cache) for _ in range(ROUNDS)], STEP["filled"])


def names():
    return [*PLAIN, "mlp", *systems.names()]


def line(r):
    cache = f"{r['cache']} cache" if r["cache"] else ""
    late = "" if statistics.median(r["seconds"]) < r["asked"] else "  LATE"
    return f"{r['what']:10} {cache:13} {statistics.median(r['seconds']):7.2f} s  (asked: < {r['asked']:g} s){late}"


def main(arguments=None):
    ask = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ask.add_argument("-o", metavar="FILE.json", help="write what was measured to a file")
    ask.add_argument("--only", metavar="NAME,...", help=f"some of {', '.join(names())}")
    asked = ask.parse_args(arguments)
    chosen = asked.only.split(",") if asked.only else names()
    if unknown := [name for name in chosen if name not in names()]:
        raise InputError(f"startup: expected some of {', '.join(names())}, got {', '.join(unknown)}")
    document = {**peers.facts([], get_num_threads()), "results": []}
    for what in chosen:
        for result in measure(what):
            document["results"].append(result)
            print(line(result), flush=True)
    if asked.o:
        Path(asked.o).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    try:
        main()
    except (InputError, RuntimeError) as error:
        sys.exit(str(error))
