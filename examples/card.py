"""Everything that can be asked of a card, in one go: for the day there is one.

    python examples/card.py -o card                 # perhaps two hours; --quick: less, with gaps
    python examples/card.py --only tests,training   # some of the parts, in their order
    python examples/card.py --simulate              # the script itself tried in Numba's simulator, tiny, without times

    doctor      what this machine has
    ptx         every kernel compiled: registers, spills
    tests       tests/on_card, on the card
    check       every op, mechanism and module: the card against the CPU, to second order
    sanitizer   NVIDIA's compute-sanitizer over every op: wrong addresses, races, memory that is read before it is written
    training    every system trained on both devices from one seed: losses and test figures side by side
    pool        a training step with memory from the pool (TINYATTN_CUDA_POOL=1) and from the driver
    start       the first step of a fresh process, with nothing compiled and with what that left in the caches
    bench       `tinyattn bench --device cuda --peers`: what PERFORMANCE asks, as ratios
    lesson      examples/17_on_a_card.py

Each part runs in processes of its own and is ended at its limit of time, so that one that fails or hangs does not stop the
rest. card.json and CARD.md in FOLDER are written anew after each part. Exit code 0: nothing failed; 1: something did; 2:
there is no card, and nothing was written.
"""
import argparse
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tinyattn import systems
from tinyattn.errors import InputError
from tinyattn.tables import markdown
from tinyattn.train import UNREAD
from tinyattn.workloads.row import PEERS

ROOT = Path(__file__).resolve().parent.parent
TOOLS = {"memcheck": "addresses outside an array", "racecheck": "two threads at one place of shared memory",
         "initcheck": "memory that is read before it is written"}
ERRORS = 86                  # the exit code that the sanitizer gives where it found something
LOSS_AT_FIRST = 1e-5         # how far the first loss on a card may be from the CPU's, as a share
LOSS_SOON = 1e-4             # any of the first ten
LOSS_AT_LAST = 0.05          # the mean of the last fifth: 300 steps made 0.005 of a difference of 1e-7 in the weights, on the CPU alone
FIGURE = 0.05                # the first test figure, as a share of the larger one
LEAST = 0.01                 # differences below this are none, of losses near 0, and of a figure's whole, 1 or 100


# ---------------------------------------------------------------------------------------------------------------------
# child processes
# ---------------------------------------------------------------------------------------------------------------------
@dataclass
class Ran:
    """A process that has ended. code: None where it was ended at its limit of `limit` seconds."""
    code: int | None
    seconds: float
    out: str
    err: str
    limit: float

    @property
    def why(self):
        """"" if all was well, else one line."""
        if self.code == 0:
            return ""
        last = next((line.strip() for line in reversed(f"{self.out}\n{self.err}".splitlines()) if line.strip()), "it said nothing")
        return f"no end after {self.limit:g} s, ended" if self.code is None else f"exit code {self.code}: {last[:300]}"

    @property
    def told(self):
        """The JSON in the last line of what it printed."""
        return json.loads(self.out.splitlines()[-1])


def run(words, limit, **environment):
    """Run a program in the repository, for at most `limit` seconds; what it started ends with it. None unsets a variable."""
    names = {k: v for k, v in (os.environ | environment).items() if v is not None}
    names["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), names.get("PYTHONPATH")]))
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:  # a pipe would wait for grandchildren
        begun = time.perf_counter()
        child = subprocess.Popen(words, cwd=ROOT, env=names, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                 start_new_session=True)
        try:
            code = child.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                with suppress(subprocess.TimeoutExpired):  # one that waits for a broken driver cannot be ended
                    child.wait(10)
        took = time.perf_counter() - begun
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read())
    return Ran(code, took, *texts, limit)


# ---------------------------------------------------------------------------------------------------------------------
# parts
# ---------------------------------------------------------------------------------------------------------------------
@dataclass
class Found:
    """What a part found. state: "passed", "failed" or "skipped"; why: one line; tables: {title: rows of texts, the first the
    head}; facts: what else card.json keeps."""
    state: str
    why: str = ""
    tables: dict = field(default_factory=dict)
    facts: dict = field(default_factory=dict)
    seconds: float = 0.0


@dataclass
class Asked:
    """What the command line asks for."""
    folder: Path
    quick: bool = False
    simulate: bool = False

    def of(self, full, quick, simulated):
        return simulated if self.simulate else quick if self.quick else full

    def python(self, *words, limit, tool=(), **environment):
        """Run Python on the card, or in the simulator."""
        environment = {"NUMBA_ENABLE_CUDASIM": "1" if self.simulate else None, **environment}
        return run([*tool, sys.executable, *map(str, words)], limit, **environment)

    def tinyattn(self, *words, **more):
        return self.python("-m", "tinyattn", *words, **more)

    def do(self, name, *words, **more):
        """Run one of CHILDREN, below. What one that fails has printed is kept."""
        ran = self.python(Path(__file__).resolve(), "--do", name, *words, **more)
        if ran.why:
            self.keep("-".join(map(str, (name, *words))), ran)
        return ran

    def keep(self, name, ran):
        """What a process printed, as a file beside the report, since a line of it may not be enough."""
        (self.folder / f"{name}.txt").write_text(f"{ran.out}\n{ran.err}", encoding="utf-8")


def verdict(ran, **more):
    """Passed if the process says so."""
    return Found("failed" if ran.why else "passed", ran.why, **more)


def doctor(asked):
    ran = asked.tinyattn("doctor", "--json", limit=180)
    facts = json.loads(ran.out) if ran.code == 0 else {}
    rows = [[name, line] for name, line in facts.items() if line != "not installed"]
    return verdict(ran, tables={"": [["what", "on this machine"], *rows]} if rows else {}, facts=facts)


def ptx(asked):
    """The compiler needs no card, and the simulator would hide it."""
    names = asked.of([], [], ["arrays"])
    ran = asked.tinyattn("ptx", *names, "--json", limit=1800, NUMBA_ENABLE_CUDASIM=None)
    if ran.code == 2 and "tinyattn[cuda]" in ran.err:
        return Found("skipped", ran.err.strip())
    asked.keep("ptx", ran)
    with suppress(ValueError):
        rows = json.loads(ran.out)
        faults = [f"{row['kernel']} {row['capability']}: {row['fault']}" for row in rows if row["fault"]]
        counts = {"kernels": len({row["kernel"] for row in rows}), "times compiled": len(rows), "faults": len(faults),
                  "spilling, with a reason": len({row["kernel"] for row in rows if row.get("spill_stores")}),
                  "most registers": max((row.get("registers") or 0 for row in rows), default=0)}
        why = "; ".join(faults)[:500] or ran.why
        return Found("failed" if why else "passed", why, {"": [[*counts], [*map(str, counts.values())]]}, counts)
    return verdict(ran)


def tests(asked):
    some = asked.of([], [], ["-k", "chain_of_elementwise or affine"])
    ran = asked.python("-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", "--no-header", "tests/on_card", *some,
                       limit=asked.of(3600, 1800, 300))
    asked.keep("tests", ran)
    last = next((line for line in reversed(ran.out.splitlines()) if re.search(r"\d (passed|failed|error)", line)), "")
    wrong = [[line.split(" - ")[0]] for line in ran.out.splitlines() if line.startswith(("FAILED", "ERROR"))]
    counted = re.sub(r" in [\d.]+s.*", "", last.strip("= "))
    return Found("failed" if ran.why else "passed", counted or ran.why, {"": [["tests that failed"], *wrong]} if wrong else {})


def check(asked):
    names = asked.of(["--all"], ["--all"], ["op:softmax", "attention:dot"])
    ran = asked.tinyattn("check", *names, "--device", "cuda", limit=asked.of(3600, 1800, 300))
    asked.keep("check", ran)
    last = (ran.out.strip().splitlines() or [""])[-1]
    return Found("failed" if ran.why else "passed", last if ran.code in (0, 1) else ran.why)


def sanitizer(asked):
    """In the simulator our own watch takes the place of NVIDIA's, over a few ops."""
    if asked.simulate:
        return verdict(asked.do("kernels", "softmax", "sum", "embedding", limit=300))
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        return Found("skipped", "compute-sanitizer is not on the PATH; it comes with the CUDA toolkit")
    rows, wrong = [["tool", "looks for", "found"]], []
    for name, what in TOOLS.items():
        ran = asked.do("kernels", limit=asked.of(3600, 1200, 0), TINYATTN_CUDA_POOL=None,  # a pool would hide addresses from it
                       tool=[tool, "--tool", name, "--error-exitcode", str(ERRORS), "--print-limit", "20"])
        asked.keep(f"sanitizer-{name}", ran)
        said = [line.strip("= ") for line in ran.out.splitlines() if "SUMMARY" in line]
        rows.append([name, what, said[-1] if said else ran.why or "nothing"])
        wrong += [f"{name}: {ran.why}"] if ran.why else []
    return Found("failed" if wrong else "passed", "; ".join(wrong), {"": rows})


def training(asked):
    steps = asked.of(300, 160, 2)
    rows, wrong, facts = [["system", "first loss", "CPU", "last fifth", "CPU", "test figure", "CPU", "ms a step", "CPU", "agree"]], [], {}
    for name in systems.names():
        both = []
        for where in ("cuda", "cpu"):
            ran = asked.do("train", name, where, steps, limit=asked.of(1800, 900, 600))
            both.append(None if ran.why else ran.told)
            wrong += [f"{name} on {where}: {ran.why}"] if ran.why else []
        if None in both:
            rows.append([name, *"-" * 8, "no"])
            continue
        why = apart(*both)
        wrong += [f"{name}: {why}"] if why else []
        facts[name] = both
        pairs = zip(*([f"{r['losses'][0]:.6f}", f"{last_fifth(r['losses']):.4f}", f"{r['figure']} {r['value']:.4g}", ms(r["step"])]
                      for r in both), strict=True)
        rows.append([name, *(text for pair in pairs for text in pair), "no" if why else "yes"])
    return Found("failed" if wrong else "passed", "; ".join(wrong), {f"{steps} steps, float32, one seed": rows}, facts)


def last_fifth(losses):
    last = losses[-max(len(losses) // 5, 1):]
    return sum(last) / len(last)


def apart(card, cpu):
    """"" where two trainings agree, else how they do not. Each rounds in its own way, and training makes differences grow: so
    the first loss is held to LOSS_AT_FIRST, and later ones to less."""
    def differ(a, b, share, least=0.0):
        return not abs(a - b) <= max(share * max(abs(a), abs(b)), least)  # nan differs from everything

    if len(card["losses"]) != len(cpu["losses"]):
        return f"{len(card['losses'])} losses on the card, {len(cpu['losses'])} on the cpu"
    for i, (a, b) in enumerate(zip(card["losses"][:10], cpu["losses"], strict=False)):
        if differ(a, b, LOSS_SOON if i else LOSS_AT_FIRST):
            return f"the loss of step {i + 1} is {a:.7g}, on the cpu {b:.7g}"
    ends = last_fifth(card["losses"]), last_fifth(cpu["losses"])
    if differ(*ends, LOSS_AT_LAST, LEAST):
        return "the mean of the last losses is {:.4g}, on the cpu {:.4g}".format(*ends)
    figures = card["value"], cpu["value"]
    if differ(*figures, FIGURE, LEAST * (100 if max(figures) > 1 else 1)):
        return f"{card['figure']} is {card['value']:.4g}, on the cpu {cpu['value']:.4g}"
    return ""


def ms(seconds):
    return "-" if seconds is None else f"{1000 * seconds:.2f}"


def pool(asked):
    rows, wrong, facts = [["system", "memory from", "ms a step"]], [], {}
    for name in asked.of(systems.names(), ["translate"], ["qa"]):
        for source, value in (("the driver", None), ("the pool", "1")):
            ran = asked.do("train", name, "cuda", asked.of(300, 160, 1), limit=asked.of(1800, 900, 600), TINYATTN_CUDA_POOL=value)
            wrong += [f"{name}, memory from {source}: {ran.why}"] if ran.why else []
            step = None if ran.why else ran.told["step"]
            facts[f"{name}, {source}"] = step
            rows.append([name, source, ms(step)])
    return Found("failed" if wrong else "passed", "; ".join(wrong), {"": rows}, facts)


def start(asked):
    """The first step of a process, with nothing compiled and once more: kernels are kept on disk, ours and the driver's own (in
    the folder that CUDA_CACHE_PATH names)."""
    rows, wrong, facts = [["first step of", "caches", "seconds"]], [], {}
    for name in asked.of(systems.names(), ["qa"], ["qa"]):
        with tempfile.TemporaryDirectory() as caches:
            for state in asked.of(["empty", "filled", "filled"], ["empty", "filled"], ["empty"]):
                ran = asked.do("first", name, limit=asked.of(600, 600, 600), CUDA_CACHE_PATH=f"{caches}/driver",
                               TINYATTN_CACHE=None if asked.simulate else f"{caches}/ours")
                wrong += [f"{name}, {state} caches: {ran.why}"] if ran.why else []
                facts.setdefault(f"{name}, {state}", []).append(ran.seconds)
                rows.append([name, state, "-" if asked.simulate or ran.why else f"{ran.seconds:.1f}"])
    return Found("failed" if wrong else "passed", "; ".join(wrong), {"": rows}, {} if asked.simulate else facts)


def bench(asked):
    if asked.simulate:
        return Found("skipped", "the simulator's times mean nothing")
    beside = ["--peers"] if importlib.util.find_spec("torch") or importlib.util.find_spec("jax") else []
    file = asked.folder / "bench.json"
    file.unlink(missing_ok=True)
    ran = asked.tinyattn("bench", *asked.of([], ["card"], []), "--device", "cuda", *beside, "-o", file, limit=asked.of(7200, 1800, 0))
    asked.keep("bench", ran)
    if not file.is_file():
        return verdict(ran)
    return rated(json.loads(file.read_text(encoding="utf-8")), ran.why, "" if beside else "no peer is installed: pip install torch")


def rated(document, why="", remark=""):
    """What a benchmark has of what is asked: a row that counts and has too little fails."""
    rows = [["workload", "sizes", "beside", "ratio", "asked", ""]]
    below = []
    for r in document["asked"]:
        mark = "" if r["enough"] else "BELOW"
        mark += "" if r["counts"] else " disturbed, does not count"
        beside = PEERS.get(r["peer"], r["peer"])
        rows.append([r["name"], r["sizes"], beside, f"{r['ratio']:.3g}", f"{r['asked']:g}", mark.strip()])
        if r["counts"] and not r["enough"]:
            below.append(f"{r['name']}, {r['sizes']}: {r['ratio']:.3g} of {beside}, asked {r['asked']:g}")
    why = "; ".join(filter(None, [why, *below])) or remark
    return Found("failed" if why and why != remark else "passed", why, {"": rows},
                 {"rows": len(document["results"]), "asked": len(document["asked"]), "below": len(below), "left out": document["left_out"]})


def lesson(asked):
    """It asks the simulator by itself."""
    ran = asked.python(ROOT / "examples" / "17_on_a_card.py", limit=1800, NUMBA_ENABLE_CUDASIM=None)
    asked.keep("lesson", ran)
    return verdict(ran)


PARTS = {f.__name__: f for f in (doctor, ptx, tests, check, sanitizer, training, pool, start, bench, lesson)}


# ---------------------------------------------------------------------------------------------------------------------
# what runs in child processes, on the card or in the simulator
# ---------------------------------------------------------------------------------------------------------------------
def kernels(*names):
    """What the sanitizer watches: every op's kernels on its samples, forward and backward, in both types; then, without names,
    comparisons, the optimisers and clipping, and a captured step with its fused chains."""
    import importlib
    import pkgutil

    import numpy as np

    import tinyattn.ops
    from tinyattn import Tensor, grad
    from tinyattn.cuda import SIMULATED, checker
    from tinyattn.op import Op
    for module in pkgutil.iter_modules(tinyattn.ops.__path__):
        importlib.import_module(f"tinyattn.ops.{module.name}")

    def both_ways(op, attributes, inputs, dtype):
        given = [None if x is None else np.asarray(x) for x in inputs]
        given = [None if x is None else Tensor(x.astype(dtype) if x.dtype.kind == "f" else x, device="cuda",
                                               requires_grad=x.dtype.kind == "f") for x in given]
        outs = op(**attributes)(*given)
        outs = [out for out in (outs if isinstance(outs, tuple) else (outs,)) if out.requires_grad]
        if outs:
            ones = [Tensor(np.ones(out.shape, dtype), device="cuda") for out in outs]
            for g in grad(outs, [x for x in given if x is not None and x.requires_grad], ones, allow_unused=True):
                if g is not None:
                    g.numpy()

    with checker.watch() if SIMULATED else nullcontext():
        for op in Op.registry.values():
            if op.cuda is not None and (not names or op.name in names):
                for dtype in (np.float32, np.float64):
                    for attributes, inputs in op.samples(np.random.default_rng(1)):
                        both_ways(op, attributes, inputs, dtype)
        if not names:
            _the_rest()


def _the_rest():
    """Kernels that no op launches."""
    import numpy as np

    from tinyattn import Tensor, compile, nn, optim
    from tinyattn.device import default_device
    with default_device("cuda"):
        x = Tensor(np.random.default_rng(1).normal(size=(6, 5)).astype(np.float32))
        for found in (x > 0, ~(x > 0), (x > 0) & (x < 1), x.isnan(), x.isfinite(), x.argmax(1), x.argmin(), (x > 0).to(np.int64)):
            found.numpy()
        for rule in (lambda p: optim.SGD(p, 0.1), lambda p: optim.SGD(p, 0.1, momentum=0.9), lambda p: optim.Adam(p, 0.1),
                     lambda p: optim.Adadelta(p)):
            model = nn.Linear(5, 3)
            optimizer = rule(list(model.parameters()))

            @compile
            def loss_of(x, model=model, optimizer=optimizer):
                optimizer.zero_grad()
                loss = ((model(x).tanh() * 2 + 1).exp() * model(x)).mean()
                loss.backward()
                return loss

            for _ in range(4):
                loss = loss_of(x)
                optimizer.guard(loss)
                optimizer.clip_grad_norm(1.0)
                optimizer.step()
            loss.item()


def train(name, where, steps):
    """Train a system on its built-in task; prints its losses, its first test figure and the seconds of a step."""
    from tinyattn.train import train
    system, config = _system(name, int(steps))
    times = {}
    with _on(system, where):
        history = train(system, config, report=lambda progress: times.setdefault(progress.step, time.perf_counter()))
        system.model.eval()
        found = system.evaluate("test", limit=2 if _simulated() else 500)
    key, figure = next((k, f) for k, f in system.figures.items() if found.get(k) is not None)
    waited = [times[step] for step in range(UNREAD, config.steps, UNREAD)]  # where a card has done all that it was given
    step = (waited[-1] - waited[0]) / UNREAD / (len(waited) - 1) if len(waited) > 1 else None
    print(json.dumps({"system": name, "device": where, "losses": [loss for _, loss in history.losses], "figure": figure.title,
                      "value": found[key], "step": step}))


def first(name):
    """One training step on the card."""
    from tinyattn.train import train
    system, config = _system(name, 2)  # the second one is for what comes at the end: it is not reached
    with _on(system, "cuda"):
        train(system, config, report=lambda progress: os._exit(0))


def _system(name, steps):
    """A system as it proposes itself; in the simulator a tiny one, and few samples."""
    from dataclasses import replace

    from tinyattn.config import Config
    cls = systems.find(name)
    options = cls.Options(**_TINY[name]) if _simulated() else cls.Options()
    config = Config.proposed(cls, options, steps=steps, validate_every=steps, seed=1)
    system = cls.prepare(options, **config.sources(cls))
    if _simulated():
        few = sorted(system.corpus.train, key=lambda sample: len(str(sample)))[:2]
        system.corpus = replace(system.corpus, train=few, validation=few, test=few)
    return system, config


_TINY = {"translate": {"hidden": 2, "embed": 2, "max_vocabulary": 12}, "classify": {"hidden": 2, "embed": 2, "align": 2, "max_vocabulary": 12},
         "sense": {"width": 4, "max_vocabulary": 12}, "aspects": {"hidden": 2, "embed": 2, "scores": 1, "layers": 1, "max_vocabulary": 12},
         "qa": {"hidden": 2, "hops": 1}}


def _simulated():
    from tinyattn.cuda import SIMULATED
    return SIMULATED


def _on(system, where):
    from tinyattn.device import default_device
    system.model.to(where)
    return default_device(where)


CHILDREN = {f.__name__: f for f in (kernels, train, first)}


# ---------------------------------------------------------------------------------------------------------------------
# the report
# ---------------------------------------------------------------------------------------------------------------------
def page(found, facts, simulated=False, quick=False):
    """The text of CARD.md."""
    head = ["# On a card", ""]
    if simulated:
        head += ["**SIMULATED.** This is the script itself, tried in Numba's simulator on tiny sizes: no card has been asked, and "
                 "there are no times.", ""]
    head += [f"- {name}: {facts[name]}" for name in ("date", "cuda card 0", "cuda driver", "tinyattn", "python", "numba", "numpy")
             if name in facts]
    head += ["- quick: fewer steps and rows than the whole"] if quick and not simulated else []
    states = [f.state for f in found.values()]
    head += ["", f"{states.count('passed')} parts passed, {states.count('failed')} failed, {states.count('skipped')} skipped.", ""]
    rows = [["part", "", *([] if simulated else ["seconds"]), "why"]]
    for name, f in found.items():
        rows.append([name, f.state.upper() if f.state == "failed" else f.state, *([] if simulated else [f"{f.seconds:.0f}"]), f.why])
    text = [*head, *markdown(rows), ""]
    for name, f in found.items():
        if f.tables:
            text += [f"## {name}", "", *([ABOUT[name], ""] if name in ABOUT else [])]
            for title, table in f.tables.items():
                text += [*([title, ""] if title else []), *markdown(table), ""]
    return "\n".join(text)


ABOUT = {
    "training": f"Losses may differ by {LOSS_AT_FIRST:g} of themselves at the first step, {LOSS_SOON:g} within ten, {LOSS_AT_LAST:g} in "
                f"the mean of the last fifth, and the test figure by {FIGURE:g} of itself: rounding differs, and training makes "
                "differences grow.",
    "start": "Seconds of a fresh process from its start to its end, data and one training step in it. Empty: neither our folder of "
             "kernels nor the driver's holds anything.",
    "bench": "Asked on a card: what memory bounds reaches 0.8 of a copy's bandwidth, additive scores 5 times PyTorch eager, float32 "
             "attention half of PyTorch's. The ratio is the peer's time divided by ours."}


def write(asked, found, facts):
    """Both files, each written beside its place and moved there."""
    document = {"simulated": asked.simulate, "quick": asked.quick, "machine": facts, "parts": {n: asdict(f) for n, f in found.items()}}
    if asked.simulate:
        for part in document["parts"].values():
            del part["seconds"]
    for name, text in (("card.json", json.dumps(document, indent=1) + "\n"), ("CARD.md", page(found, facts, asked.simulate, asked.quick))):
        place = asked.folder / f"{name}.part"
        place.write_text(text, encoding="utf-8")
        os.replace(place, asked.folder / name)


# ---------------------------------------------------------------------------------------------------------------------
# the script
# ---------------------------------------------------------------------------------------------------------------------
def machine(asked):
    """{what: one line}: asked in a process of its own, since a broken driver may hang. InputError where there is no card."""
    ran = asked.python("-m", "tinyattn.cuda", limit=120)
    facts = json.loads(ran.out) if ran.code == 0 else {"cuda": f"the driver gives no answer ({ran.why})"}
    if facts["cuda"] != ("simulated" if asked.simulate else "present"):
        raise InputError(f"card: no CUDA card can be used here: {facts['cuda']}; --simulate tries this script without one")
    return {"date": time.strftime("%Y-%m-%d %H:%M"), **facts}


def parts_of(text):
    """Names from the command line as parts, in their order."""
    names = text.split(",") if text else [*PARTS]
    if unknown := [name for name in names if name not in PARTS]:
        raise InputError(f"card: --only {', '.join(unknown)}: expected some of {', '.join(PARTS)}")
    return {name: part for name, part in PARTS.items() if name in names}


def report(asked, parts, say=lambda line: print(line, flush=True)):
    """Run parts one after the other; {name: Found}."""
    facts, found = machine(asked), {}
    asked.folder.mkdir(parents=True, exist_ok=True)
    for name, part in parts.items():
        begun = time.perf_counter()
        try:
            found[name] = part(asked)
        except Exception as error:  # whatever it is, the other parts are to be run
            found[name] = Found("failed", f"{type(error).__name__}: {error}")
        found[name].seconds = round(time.perf_counter() - begun, 1)
        if name == "doctor":
            facts |= found[name].facts
        say(f"{name:10} {found[name].state:8} {found[name].why}".rstrip())
        write(asked, found, facts)
    return found


def main(arguments=None):
    ask = argparse.ArgumentParser(prog="card.py", description=__doc__.splitlines()[0])
    ask.add_argument("-o", metavar="FOLDER", default="card", help="where the report is written [card]")
    ask.add_argument("--quick", action="store_true", help="fewer steps and rows")
    ask.add_argument("--simulate", action="store_true", help="try this script in the simulator, tiny and without times")
    ask.add_argument("--only", metavar="PART,...", help=f"some of {', '.join(PARTS)}")
    ask.add_argument("--do", nargs="+", help=argparse.SUPPRESS)
    given = ask.parse_args(arguments)
    if given.do:
        CHILDREN[given.do[0]](*given.do[1:])
        return 0
    try:
        asked = Asked(Path(given.o).resolve(), given.quick, given.simulate)
        found = report(asked, parts_of(given.only))
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    print(asked.folder / "CARD.md")
    return int(any(f.state == "failed" for f in found.values()))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
