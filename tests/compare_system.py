"""A system to compare, small and able to misbehave: its attentions "once", "always", "slow" and "nan" are what happens
from step 6 on. A file of its own, because workers are new processes that import it."""
import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from tiny_system import Tiny
from tiny_system import Training as TinyTraining

from tinyattn.errors import InputError
from tinyattn.models.system import Figure

KINDS = ("none", "plain", "once", "always", "slow", "nan")


@dataclass(frozen=True)
class Options:
    attention: str = field(default="plain", metadata={"help": "what happens", "choices": None})
    hidden: int = field(default=5, metadata={"help": "width", "choices": None})
    dropout: float = field(default=0.25, metadata={"help": "dropout", "choices": None})
    marks: str = field(default="", metadata={"help": "folder in which a death leaves its mark", "choices": None})


@dataclass(frozen=True)
class Training(TinyTraining):
    steps: int = 20
    validate_every: int = 4


class Toy(Tiny):
    name, help, data_help = "toy", "a regression that may die", "a file of numbers"
    Options, Training = Options, Training
    figures = {"score": Figure("score", 3), "gold_mass": Figure("gold mass", 3)}
    also_measured = ("train",)

    @classmethod
    def prepare(cls, options, paths=(), seed=1):
        if options.attention not in KINDS:
            raise InputError(f"toy: expected an attention of {', '.join(KINDS)}, got {options.attention!r}")
        system = cls(options, seed=seed)
        for path in paths:
            system.y = system.y + np.float32(Path(path).read_text())
            system.notes.append("a file was read")
        return system

    def loss(self, batch):
        self.made = getattr(self, "made", 0) + (len(batch) == 4)  # validation has batches of 3
        self.poison = lambda: self.options.attention == "nan" and self.made > 5
        if self.made > 5:
            self._misbehave()
        return super().loss(batch)

    def _misbehave(self):
        kind, mark = self.options.attention, Path(self.options.marks) / f"{self.options.attention}-{os.getpid()}"
        if kind == "always" or (kind == "once" and self._first()):
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "slow":
            mark.touch()
            time.sleep(0.08)

    def _first(self):
        """Is this the first process to come here? Two may come at the same time: only one can make the folder."""
        try:
            (Path(self.options.marks) / "once-0").mkdir()
        except FileExistsError:
            return False
        return True

    def evaluate(self, split="test", limit=None):
        rows = {"train": np.arange(17), "test": np.arange(17, 20)}[split]
        loss = self.mean_loss_of(rows)
        return {"samples": len(rows), "score": 1 - loss, "loss": loss,
                **({} if self.options.attention == "none" else {"gold_mass": 0.5})}

    def mean_loss_of(self, rows):
        self.model.eval()
        return Tiny.loss(self, rows)[0].item()
