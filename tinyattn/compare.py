"""Many runs of one system side by side: every attention with every seed, trained on this machine or on a cluster.

    from tinyattn.compare import Grid, run_grid

    if __name__ == "__main__":                          # the workers are new processes that read this file too
        grid = Grid("translate", attentions=("none", "additive"), seeds=(1, 2, 3), settings={"steps": 500})
        found = run_grid(grid, "runs/mine", workers=2)  # runs/mine/none-1, none-2, ..., additive-3: a folder a run
        tables = found.tables("none")                   # numbers; `tables.layout` makes texts of them
        for row in tables["tables"][0]["rows"]:
            print(row["attention"], row["figures"]["bleu"], row["difference"].get("bleu"))

Each run is what `train` would have left in a folder of its own, with its metrics.json. `run_grid(..., resume=True)`
goes on with a grid that was interrupted: finished runs stand, half ones go on from their checkpoints. The places that
runs are trained at, `Local` processes or a Dask `Cluster`, stand in `workers.py`.
"""
import itertools
import json
import re
import time
from collections import deque
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from . import checkpoint, systems
from . import device as devices
from .checkpoint import FILE, new_folder, options_from
from .config import Config, check_same
from .errors import InputError
from .tables import summarise
from .train import Interrupt
from .workers import Cluster, Local, measure

__all__ = ["Found", "Grid", "Outcome", "Run", "measure", "run_grid"]
GRID_FILE = "grid.json"
FIXED = ("attention", "seed")  # dimensions that every grid has


# ---------------------------------------------------------------------------------------------------------------------
# what is to be trained
# ---------------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Run:
    """One cell of the grid with one seed. `name` is its folder, `at` its place along the other dimensions."""
    name: str
    attention: str
    at: dict
    seed: int
    config: Config


@dataclass(frozen=True)
class Grid:
    """Every attention with every seed, at every place of the other dimensions. InputError for what cannot be.

    system      name or class of a system
    attentions  values of its option `attention`, "none" is the baseline; seeds: whole numbers
    options     its other options, where they differ from the defaults
    settings    settings of `config.Config` for all runs, such as {"steps": 500}
    each        further dimensions: {name of an option or setting: values}
    data, links, links_order    as `Config` has them
    """
    system: object
    attentions: tuple = ("none",)
    seeds: tuple = (1,)
    options: dict = field(default_factory=dict)
    settings: dict = field(default_factory=dict)
    each: dict = field(default_factory=dict)
    data: tuple = ()
    links: str | None = None
    links_order: str = "source-target"

    @property
    def cls(self):
        return systems.find(self.system) if isinstance(self.system, str) else self.system

    def places(self):
        """The places along the further dimensions: dictionaries, one empty one if there are none."""
        return [dict(zip(self.each, values)) for values in itertools.product(*self.each.values())]

    def labels(self):
        """{attention: what it is called in tables}: a mechanism's file without its folder, if that tells it apart."""
        short = {a: re.sub(r".*[\\/]", "", a) for a in self.attentions}
        return {a: label if list(short.values()).count(label) == 1 else a for a, label in short.items()}

    def runs(self):
        """All of them, place by place, attention by attention."""
        self._check_dimensions()
        base = Config(self.cls.name, {}, tuple(self.data), self.links, self.links_order).with_digests()  # read once
        runs, labels = [], self.labels()
        for at, attention, seed in itertools.product(self.places(), self.attentions, self.seeds):
            name = "-".join([_safe(labels[attention]), *(f"{k}={_safe(v)}" for k, v in at.items()), str(seed)])
            runs.append(Run(name, labels[attention], at, seed, self._config(base, at, attention, seed)))
        names = [run.name.lower() for run in runs]  # some disks do not tell A from a
        for run in runs:
            if names.count(run.name.lower()) > 1:
                raise InputError(f"compare: two runs would have the folder {run.name}; name the mechanisms differently")
        return runs

    def _config(self, base, at, attention, seed):
        own = [f.name for f in fields(self.cls.Options)]
        options = {**{f.name: f.default for f in fields(self.cls.Options)}, **self.options,
                   **{k: v for k, v in at.items() if k in own}, "attention": attention}
        options = asdict(options_from(self.cls.Options, options, f"compare {self.cls.name}"))
        settings = {**self.settings, **{k: v for k, v in at.items() if k not in own}, "seed": seed}
        return Config.proposed(self.cls, options, data=base.data, links=base.links, links_order=base.links_order,
                               digests=base.digests, **settings)

    def _check_dimensions(self):
        own, set_ = ([f.name for f in fields(c)] for c in (self.cls.Options, self.cls.Training))
        if "attention" not in own:
            raise InputError(f"compare: {self.cls.name} has no option `attention` to compare by")
        for name in self.each:
            if name in FIXED or name not in [*own, *set_]:
                raise InputError(f"compare: {name}: expected an option or setting of {self.cls.name} as a further "
                                 f"dimension ({', '.join(n for n in [*own, *set_] if n not in FIXED)})")
            if name in self.options or name in self.settings:
                raise InputError(f"compare: {name} is a dimension of the grid, and has a value for all runs too")
        for name, values in {"attentions": self.attentions, "seeds": self.seeds, **self.each}.items():
            if not values or len(set(values)) < len(values):
                listed = ", ".join(map(str, values)) or "none"
                raise InputError(f"compare: {name}: expected values, each once, got {listed}")

    def check(self, runs):
        """Prepare one of the runs for each set of options: InputError if options or data cannot be used. Returns what
        there is to say about the data."""
        notes, seen = [], set()
        for run in runs:
            key = json.dumps(run.config.options, sort_keys=True)
            if key in seen:
                continue
            seen.add(key)
            try:
                system = self.cls.prepare(self.cls.Options(**run.config.options), **run.config.sources(self.cls))
            except InputError as error:
                raise InputError(f"{run.name}: {error}") from None
            notes += [line for line in system.notes if line not in notes]
        return notes

    def _is_sound(self):
        """Are all fields of the kinds that `to_json` writes? What the values are is checked by `runs`."""
        lists = (self.attentions, str), (self.seeds, int), (self.data, str)
        tables = self.options, self.settings, self.each
        may_be_set = {f.name for f in fields(Config)} - {"system", "options", "digests", "data", "links", "links_order",
                                                         "seed"}
        return (all(type(values) is tuple and all(type(v) is kind for v in values) for values, kind in lists)
                and all(type(table) is dict for table in tables) and self.settings.keys() <= may_be_set
                and all(type(values) is list and all(type(v) in (str, int, float, bool) for v in values)
                        for values in self.each.values())
                and type(self.system) is type(self.links_order) is str and type(self.links) in (str, type(None)))

    def to_json(self):
        return {**asdict(self), "system": self.cls.name}

    @classmethod
    def load(cls, folder):
        """The grid that a folder was begun with. InputError if there is none."""
        path = Path(folder) / GRID_FILE
        try:
            given = json.loads(path.read_text(encoding="utf-8"))
            grid = cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in given.items()})
            return grid if grid._is_sound() else _no_grid(path)
        except OSError:
            raise InputError(f"{folder}: expected the folder of a comparison, found no {GRID_FILE} in it") from None
        except (ValueError, TypeError, AttributeError, RecursionError):
            _no_grid(path)


def _no_grid(path):
    raise InputError(f"{path}: expected a grid as tinyattn writes it, found something else")


def _safe(value):
    return re.sub(r"[^\w.+]+", "-", str(value)).strip("-.") or "empty"


# ---------------------------------------------------------------------------------------------------------------------
# what came of it
# ---------------------------------------------------------------------------------------------------------------------
@dataclass
class Outcome:
    """What came of a run: its metrics, or the reason in one line why there are none. `attempts`: how often it was begun
    in this call, 0 if it was finished before."""
    run: Run
    metrics: dict | None = None
    error: str | None = None
    attempts: int = 0

    def record(self):
        """As `tables.summarise` takes it."""
        run = self.run
        return {"name": run.name, "attention": run.attention, "at": run.at, "seed": run.seed,
                "metrics": self.metrics, "error": self.error, "attempts": self.attempts}


@dataclass
class Found:
    """Outcomes in the order of the grid's runs, the seconds that the call took, and whether Ctrl-C ended it early."""
    grid: Grid
    outcomes: list
    seconds: float
    interrupted: bool = False

    @property
    def failed(self):
        return [outcome for outcome in self.outcomes if outcome.error is not None]

    def records(self):
        return [outcome.record() for outcome in self.outcomes]

    def tables(self, baseline, pick=None, bound=None):
        """See `tables.summarise`; `baseline` is one of the grid's attentions."""
        return summarise(self.grid.cls, self.records(), self.grid.labels().get(baseline, baseline), pick, bound)


# ---------------------------------------------------------------------------------------------------------------------
# training it
# ---------------------------------------------------------------------------------------------------------------------
def run_grid(grid, folder, workers=None, threads=None, scheduler=None, retries=2, resume=False, device="cpu",
             report=None, say=None):
    """Train all runs of a grid, each in its folder inside `folder`. Returns what was Found.

    workers, threads   processes on this machine, and threads of each; by default they share the cores
    scheduler          address of a Dask scheduler: its workers do the work instead
    retries            how often a run is begun again whose worker has died; then it has failed, and the grid goes on
    resume             go on with the grid in `folder`
    report             called with (Outcome, number of finished runs, number of all) after each run
    say                called with lines for the user
    InputError, before anything is trained, for options or data that cannot be. Ctrl-C ends it after the steps that are
    being made, with all saved; a second one at once.
    """
    begun, folder = time.perf_counter(), Path(folder)
    say, report = say or (lambda line: None), report or (lambda outcome, done, of: None)
    runs = grid.runs()
    if resume and not (folder / GRID_FILE).is_file():
        Grid.load(folder)
    outcomes = {run.name: Outcome(run) for run in runs}
    for run in runs if resume else []:
        outcomes[run.name].metrics = _finished(folder / run.name, run, grid.cls)
    todo = deque(run for run in runs if outcomes[run.name].metrics is None)
    if not resume:
        if (folder / GRID_FILE).is_file():
            raise InputError(f"{folder}: holds a comparison already; --resume goes on with it, another --run begins a "
                             "new one")
        new_folder(folder, make=False)
    if scheduler is None:
        _require(device)
    for line in grid.check(todo):
        say(line)
    place = None
    if todo:
        place = (Local(workers, threads, retries, len(todo)) if scheduler is None else
                 Cluster(scheduler, retries, threads, say))
    interrupted = False
    try:
        folder.mkdir(parents=True, exist_ok=True)
        checkpoint.write(folder / GRID_FILE, json.dumps(grid.to_json(), indent=1) + "\n")
        if todo:
            say(f"{len(todo)} of {len(runs)} runs to train, {place.describe()}; kept in {folder}")
            interrupted = _work(grid, folder, place, todo, outcomes, device, report, say)
    finally:
        if place is not None:
            place.close()
    return Found(grid, list(outcomes.values()), time.perf_counter() - begun, interrupted)


def _require(device):
    """InputError unless this machine has the device: no run could begin."""
    try:
        devices.require(device)
    except RuntimeError as error:
        raise InputError(f"compare: {error}") from None


def _work(grid, folder, place, todo, outcomes, device, report, say):
    """Keep every worker busy until nothing is left. True if Ctrl-C was pressed."""
    pending, done = {}, len(outcomes) - len(todo)
    with Interrupt(lambda line: say("finishing the steps that are being made, then saving; Ctrl-C again leaves at once")
                   ) as interrupt:
        while pending or (todo and not interrupt.asked):
            while todo and not interrupt.asked and place.has_room():
                run = todo.popleft()
                outcomes[run.name].attempts += 1
                pending[place.start(grid.cls, run, folder / run.name, device)] = outcomes[run.name]
            finished, _ = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
            for future in finished:
                outcome = pending.pop(future)
                again = _take(place, future, outcome, folder, interrupt.asked, say)
                if again:
                    todo.appendleft(outcome.run)
                elif outcome.metrics is not None or outcome.error is not None:
                    done += 1
                    report(outcome, done, len(outcomes))
            if interrupt.asked:
                place.ask_to_stop()
    return interrupt.asked


def _take(place, future, outcome, folder, stopping, say):
    """Note what came of a run. True if it is to be begun again."""
    state, text = place.take(future, folder / outcome.run.name)
    if state == "finished":
        outcome.metrics = json.loads((folder / outcome.run.name / "metrics.json").read_text(encoding="utf-8"))
    elif state == "died" and outcome.attempts <= place.retries and not stopping:
        say(f"{outcome.run.name}: {text}; it goes on with a new worker ({outcome.attempts} of {place.retries} retries)")
        return True
    elif state in ("died", "failed"):
        outcome.error = " ".join(text.split())
    return False


def _finished(folder, run, cls):
    """The metrics of a run that is complete, None for one that is not. InputError if it is not this grid's run."""
    if not (folder / FILE).is_file():
        return None
    saved = Config.from_json(checkpoint.load(folder).config)
    check_same(saved, run.config, folder)
    if (saved.steps, saved.seconds) != (run.config.steps, run.config.seconds):
        raise InputError(f"{folder}: the run has {saved.steps} steps and {saved.seconds} seconds, now it is "
                         f"{run.config.steps} and {run.config.seconds}; all runs of a comparison are equally long")
    try:
        metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
        tables = (metrics[split] for split in ("test", *cls.also_measured))
        numbers = (metrics[key] for key in ("parameters", "seconds", "validation_loss"))
        whole = all(isinstance(t, dict) for t in tables) and all(type(n) in (int, float) for n in numbers)
        return metrics if whole and metrics["seed"] == run.seed else None
    except (OSError, ValueError, KeyError, TypeError):  # it was ended before or while it was measured: do it again
        return None
