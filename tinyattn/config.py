"""The settings of a run: one frozen dataclass that goes into the checkpoint and comes back from it."""
import hashlib
import math
import os
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path

from . import optim
from .errors import InputError

OPTIMIZERS = {
    "sgd": optim.SGD,
    "momentum": lambda parameters, lr: optim.SGD(parameters, lr, momentum=0.9),
    "adam": optim.Adam,
    "adamw": optim.AdamW,
    "adadelta": optim.Adadelta,
}
RATES = {"sgd": 0.5, "momentum": 0.1, "adadelta": 1.0}  # learning rates that suit, where the system's own is for Adam
SCHEDULES = {  # factor of the learning rate, a function of the step, for `total` steps in all
    "constant": lambda total, warmup: optim.constant(),
    "cosine": lambda total, warmup: optim.cosine(total),
    "linear": lambda total, warmup: optim.linear(total),
    "halving": lambda total, warmup: optim.halving(max(1, total // 10), start=total // 2),
    "inverse-sqrt": lambda total, warmup: optim.inverse_sqrt(max(1, warmup)),
}
MAY_CHANGE = ("steps", "seconds", "watch")  # on resume: a run can be made longer
LATER = {"keep": "best", "watch": 0, "bucket": 1}  # what runs of before these settings had in their place


@dataclass(frozen=True)
class Config:
    """All settings of a run; with the data they determine it. `to_json` and `from_json` are exact inverses."""
    system: str
    options: dict
    data: tuple = ()                     # files, or none for the system's own generator
    links: str | None = None
    links_order: str = "source-target"
    digests: dict = field(default_factory=dict)  # of the data files, to notice on resume that one has changed
    steps: int | None = 1000
    seconds: float | None = None         # of training; the first step, which may compile kernels, is not counted
    batch_size: int = 32
    learning_rate: float = 1e-3
    optimizer: str = "adam"
    clip: float = 1.0                    # bound on the norm of the gradient; 0 is none
    warmup: int = 0                      # steps over which the learning rate rises from 0
    schedule: str = "constant"
    validate_every: int = 200
    seed: int = 1
    keep: str = "best"                   # weights of the lowest validation loss, or the "last"
    watch: int = 0                       # test samples for which each validation notes what the model looks at
    bucket: int = 1                      # batches are padded to a length that is a multiple of it

    @classmethod
    def of(cls, system, **changes):
        """The settings that a system proposes, with `changes`."""
        return cls.proposed(type(system), **{"options": system.options, **changes})

    @classmethod
    def proposed(cls, system, options, **changes):
        """The same before there is a system: from its class and the options it will have."""
        table = options if isinstance(options, dict) else asdict(options)
        own = asdict(system.training_for(table))
        if "optimizer" in changes and changes["optimizer"] != own["optimizer"]:
            own["learning_rate"] = RATES.get(changes["optimizer"], own["learning_rate"])
        return cls(**{"system": system.name, "options": table, **own, **changes}).checked()

    def checked(self):
        """Itself, or InputError for a value that cannot be."""
        if self.steps is None and self.seconds is None:
            raise InputError("training: expected a number of steps, of seconds or both, got neither")
        for name, least in (("steps", 1), ("batch_size", 1), ("validate_every", 1), ("warmup", 0), ("seed", 0),
                            ("watch", 0), ("bucket", 1)):
            value = getattr(self, name)
            if not (type(value) is int and value >= least or name == "steps" and value is None):
                raise InputError(f"{name}: expected a whole number of at least {least}, got {value!r}")
        for name, least in (("learning_rate", 0), ("clip", 0), ("seconds", 0)):
            value = getattr(self, name)
            positive = name == "clip" or value is None or (isinstance(value, (int, float)) and value > 0)
            if value is not None and not (isinstance(value, (int, float)) and least <= value < math.inf and positive):
                bound = "of at least" if name == "clip" else "above"
                raise InputError(f"{name}: expected a number {bound} 0, got {value!r}")
        for name, table in (("optimizer", OPTIMIZERS), ("schedule", SCHEDULES), ("keep", ("best", "last"))):
            if getattr(self, name) not in table:
                raise InputError(f"{name}: expected one of {', '.join(table)}, got {getattr(self, name)!r}")
        return self

    def to_json(self):
        return {**asdict(self), "data": [str(p) for p in self.data]}

    @classmethod
    def from_json(cls, given):
        """InputError if `given` is not what `to_json` gave."""
        names, given = [f.name for f in fields(cls)], {**LATER, **given}
        if set(given) != set(names):
            raise InputError(f"config: expected the keys {', '.join(names)}, got {', '.join(given)}")
        texts = [given["system"], given["links_order"], given["optimizer"], given["schedule"], given["links"] or ""]
        texts += given["data"] if isinstance(given["data"], (list, tuple)) else [None]
        tables = [given["options"], given["digests"]]
        if not all(isinstance(x, str) for x in texts) or not all(isinstance(x, dict) for x in tables):
            raise InputError("config: expected data as a list of texts, options and digests as tables, names as texts")
        return cls(**{**given, "data": tuple(given["data"])}).checked()

    def sources(self, system):
        """What the class of a system wants to know to read the data: the arguments of its `prepare` and `attach`."""
        links = {"links": self.links, "links_order": self.links_order} if system.takes_links else {}
        return {"paths": self.data, "seed": self.seed, **links}

    def with_digests(self):
        """The settings with the digest of each data file."""
        paths = [*self.data, *([self.links] if self.links else [])]
        return replace(self, digests={str(p): _digest(p) for p in paths})


def _digest(path):
    """Of a file's bytes; of a folder, of the names and bytes of all files in it."""
    path, digest = Path(path), hashlib.sha256()
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise InputError(f"{path}: expected a file, found a pipe or device")
    try:
        if not path.is_dir():
            digest.update(path.read_bytes())
        for file in sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else []:
            digest.update(os.fsencode(f"{file.relative_to(path).as_posix()}\0{file.stat().st_size}\0"))
            digest.update(file.read_bytes())
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    return digest.hexdigest()


def check_same(old, new, run):
    """InputError, naming both sides, if a run that began with the Config `old` cannot go on with `new`."""
    for f in fields(Config):
        a, b = getattr(old, f.name), getattr(new, f.name)
        if f.name in MAY_CHANGE or a == b:
            continue
        if isinstance(a, dict):
            name = next(k for k in [*a, *b] if a.get(k) != b.get(k))
            what, a, b = ("file " if f.name == "digests" else "") + name, a.get(name), b.get(name)
        else:
            what = f.name
        raise InputError(f"{run}: {what}: the run has {_short(a)}, now it is {_short(b)}; a run goes on only with what "
                         "it began with (begin another with --run)")


def check_extra(old, new, run):
    """The same for what the system keeps: its vocabularies."""
    for name in [*old, *new]:
        a, b = old.get(name), new.get(name)
        if a != b:
            if isinstance(a, list) and isinstance(b, list):
                i = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
                a, b = (f"{len(v):,} entries, at {i} {v[i] if i < len(v) else 'none'!r}" for v in (a, b))
            raise InputError(f"{run}: {name} vocabulary: the run has {_short(a)}; the data now give {_short(b)}")


def _short(value):
    text = str(list(value) if isinstance(value, tuple) else value)
    return text if len(text) <= 120 else text[:117] + "..."
