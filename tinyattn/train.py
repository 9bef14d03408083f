"""Training: any system, from its batches to a folder with the trained run.

    system = Translate.prepare(Translate.Options(hidden=32), ["pairs.tsv"], seed=1)
    history = train(system, Config.of(system, steps=500, seed=1), run="runs/mine")
    history = train(system, Config.of(system, steps=500, seed=1), run="runs/mine", resume=True)     # if interrupted

One step: loss, backward, clip, learning rate, update. Batches come by epochs; the order within epoch e depends on
(seed, e) alone, so a place in the training is two numbers, and with the weights, the optimiser's arrays and the state
of the random numbers in the checkpoint a resumed run gives bit for bit what an uninterrupted one gives.

Each step is a line of the run's log.jsonl; a step that ends with a validation has in it the norm of the gradient of
each layer, and with `Config(watch=2)` a line follows of what the model looks at for two test samples.

What a system offers is described in `models/system.py`.
"""
import json
import math
import signal
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from . import checkpoint, optim, random
from .autograd import detect_anomaly, no_grad
from .checkpoint import FILE, Checkpoint, new_folder, read_log, state_value
from .compiler import compile
from .config import OPTIMIZERS, SCHEDULES, Config, check_extra, check_same
from .device import default_device
from .errors import InputError
from .models.system import System

UNREAD = 50        # steps on a card after which the host asks for their losses
AFTER = 50         # steps of one shape before it is captured: to capture takes as long as 30 replays save
SAVE_EVERY = 30.0  # seconds without a validation after which a checkpoint is written all the same


# ---------------------------------------------------------------------------------------------------------------------
# what a training reports
# ---------------------------------------------------------------------------------------------------------------------
@dataclass
class History:
    """What happened. losses [(step, loss of that batch)], validation [(step, loss)]; norms [(step, {layer: norm of its
    gradient})] and looks [(step, [what was looked at])] as in the log, at the steps that have them."""
    losses: list = field(default_factory=list)
    validation: list = field(default_factory=list)
    norms: list = field(default_factory=list)
    looks: list = field(default_factory=list)
    best_step: int | None = None
    best_loss: float | None = None
    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    stopped: str = ""    # "steps", "seconds", "interrupted" or "stop_at"

    def records(self):
        """The same as records of a log, as `viz.curves` and its like take them."""
        parts = {"loss": self.losses, "validation_loss": self.validation, "norms": self.norms, "looks": self.looks}
        return [{"step": step, key: value} for key, part in parts.items() for step, value in part]


@dataclass
class Progress:
    """What `report` is called with, after each step."""
    step: int
    steps: int | None
    loss: float                  # a running mean
    tokens_per_second: float
    done: float                  # share of the whole, 0 to 1
    left: float | None           # seconds, an estimate; None as long as there is nothing to go by
    validation: float | None     # the loss, if it was measured after this step
    best: bool                   # was that the lowest so far?


class Interrupt:
    """Ctrl-C as a wish: the first one sets `asked`, the second raises KeyboardInterrupt at once."""

    def __init__(self, say=None):
        self.asked, self.say, self.before = False, say, None

    def __enter__(self):
        if threading.current_thread() is threading.main_thread():
            self.before = signal.signal(signal.SIGINT, self._on)
        return self

    def __exit__(self, *error):
        if self.before is not None:
            signal.signal(signal.SIGINT, self.before)

    def _on(self, number, frame):
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        if self.say is not None:
            self.say("finishing this step, then saving; Ctrl-C again leaves at once, without saving")


# ---------------------------------------------------------------------------------------------------------------------
# the loop
# ---------------------------------------------------------------------------------------------------------------------
def train(system, config, run=None, resume=False, report=None, stop_at=None, say=None, compiled=True):
    """Train a system as `config` says, and return the History. Ctrl-C ends it after the step, with everything saved.

    run       folder to keep the run in: new, or empty; None keeps nothing
    resume    go on from the checkpoint in `run`. InputError, before any step, if config or vocabulary are not its own
    report    called with a Progress after each step
    stop_at   stop after this step as if interrupted, for going on later
    say       called with a line for the user when Ctrl-C is pressed
    compiled  capture the steps and replay them (see `compiler/`): the same numbers, sooner. Where a system's loss cannot
              be captured, it is computed as without
    A model on a card is trained there, and what is made without a device while it lasts is made there too. The host
    reads no number from the card at each step: losses and norms are read, and a nan or inf is noticed, after UNREAD steps and
    before anything is measured or saved; from the bad step on no weight changes.
    At the end `system.model` has the weights of the lowest validation loss, or the last ones if `config.keep` says so.
    FloatingPointError, naming the step and the
    first op that made it, for a loss or gradient that is nan or inf; the checkpoint of before is kept.
    """
    device = next(system.model.parameters()).device
    with Interrupt(say) as interrupt, default_device(device):
        kind = _Loop if device == "cpu" else _LoopOnCard
        loop = kind(system, config.checked(), None if run is None else Path(run), compiled)
        try:
            loop.resume() if resume else loop.begin()
            loop.run_on(report or (lambda progress: None), interrupt, stop_at)
        finally:
            loop.close()
    return loop.history


class _Loop:
    def __init__(self, system, config, run, compiled=True):
        self.system, self.config, self.run, self.log = system, config, run, None
        system.bucket = config.bucket
        capturable = type(system).loss is System.loss  # of arrays alone
        self.gradients = compile(self._gradients, after=AFTER) if compiled and capturable else None
        if self.gradients is not None:
            self.gradients.title = f"the steps of {system.name}"
        self.parameters = list(system.model.parameters())
        self.optimizer = OPTIMIZERS[config.optimizer](self.parameters, config.learning_rate)
        self.rate = self._schedule()
        self.history = History()
        self.epoch, self.place, self.batches = 0, 0, None
        self.best = {}
        self.began = None                       # when the clock began to run, as perf_counter
        self.saved_at, self.mean_loss, self.speed = time.perf_counter(), None, None

    # -- beginning and going on --------------------------------------------------------------------------------------
    def begin(self):
        """Step 0. The checkpoint is the first thing to be in the folder."""
        random.manual_seed(self.config.seed)
        self._open_epoch()
        looks = self._looks()
        if self.run is not None:
            new_folder(self.run)
            self.save()
            self._write_config()
            self._open_log()
        self._keep_looks(looks)

    def resume(self):
        if self.run is None:
            raise InputError("resume: expected the folder of a run, got none")
        saved = checkpoint.load(self.run)
        check_same(self._completed(Config.from_json(saved.config)), self._completed(self.config), self.run)
        check_extra(saved.extra, self.system.extra(), self.run)
        h, state = self.history, saved.state
        try:
            self.system.model.load_state_dict(saved.model)
            self.optimizer.load_state_dict(saved.optimizer)
            random.set_state(state["random"])
            self.epoch, self.place, h.step, h.tokens = (state_value(state, name, (int,)) for name in
                                                        ("epoch", "place", "step", "tokens"))
            h.seconds = state_value(state, "seconds", (int, float))
            h.best_step = state_value(state, "best_step", (int,), none=True)
            h.best_loss = state_value(state, "best_loss", (int, float), none=True)
            self.best = saved.best
        except checkpoint.BAD as error:
            raise InputError(f"{self.run / FILE}: does not fit this system ({str(error)[:200]})") from None
        self._open_epoch()
        if len(self.batches) != state.get("batches"):
            raise InputError(f"{self.run}: the run has {state.get('batches')} batches an epoch, the data now give "
                             f"{len(self.batches)}; a run goes on only with the data it began with")
        self._cut_log()
        looks = None if h.step or h.looks else self._looks()  # a kill before the first flush has lost those of step 0
        self._write_config()
        self._open_log()
        self._keep_looks(looks)

    def _completed(self, config):
        return replace(config, options=checkpoint.completed(type(self.system).Options, config.options))

    def _schedule(self):
        c = self.config
        total = c.steps or 1000  # without a number of steps, the share of the time counts as the share of 1,000
        factors = [SCHEDULES[c.schedule](total, c.warmup)]
        warm = optim.warmup(c.warmup) if c.warmup and c.schedule != "inverse-sqrt" else optim.constant()

        def rate(step, elapsed):
            at = step if c.steps else 0
            if c.seconds:  # whichever limit will be met first
                at = max(at, total * min(1.0, elapsed / c.seconds))
            return c.learning_rate * warm(step) * math.prod(f(at) for f in factors)
        return rate

    def _open_epoch(self):
        order = np.random.default_rng([self.config.seed, self.epoch])
        self.system.at_epoch(self.epoch)
        self.batches = self.system.epoch(order, self.config.batch_size)
        if not self.batches:
            raise InputError(f"{self.config.system}: the data give no batch to train on")

    # -- running -----------------------------------------------------------------------------------------------------
    def run_on(self, report, interrupt, stop_at):
        h, c = self.history, self.config
        while not h.stopped:
            if c.steps is not None and h.step >= c.steps:
                h.stopped = "steps"
            elif c.seconds is not None and self.elapsed() >= c.seconds:
                h.stopped = "seconds"
            elif interrupt.asked or (stop_at is not None and h.step >= stop_at):
                h.stopped = "interrupted" if interrupt.asked else "stop_at"
            else:
                self.step()
                due = h.step % c.validate_every == 0
                if due:
                    self.validate()
                report(self._progress(due))
                if due or time.perf_counter() - self.saved_at > SAVE_EVERY:
                    self.save()
        if h.stopped in ("steps", "seconds"):
            if not h.validation or h.validation[-1][0] != h.step:
                self.validate()
            self.save()
            if c.keep == "best":
                self.system.model.load_state_dict(self.best)
        else:
            self.save()

    def step(self):
        """Loss, backward, clip, learning rate, update."""
        if self.place >= len(self.batches):
            self.epoch, self.place = self.epoch + 1, 0
            self._open_epoch()
        batch, before, begun = self.batches[self.place], random.get_state(), time.perf_counter()
        self.system.model.train()
        tokens = self._make(batch, before)
        if self.began is None:  # the first step may have compiled kernels, which is no training
            self.began = time.perf_counter()
        else:
            self._took(tokens, time.perf_counter() - begun)

    def _make(self, batch, before):
        """One step on a batch; the number of targets in it. `before`: the state of the random numbers, to make it again."""
        value, tokens = self._loss_and_gradients(batch)
        if not math.isfinite(value):
            raise self._diverged(f"the loss is {value}", batch, before)
        norms = self._norms() if self._norms_due() else None
        try:
            norm = self.optimizer.clip_grad_norm(self.config.clip or math.inf)
        except FloatingPointError as error:
            raise self._diverged(str(error), batch, before) from None
        self._set_rate()
        self.optimizer.step()
        self._forward(tokens)
        self._record(self.history.step, value, tokens, norm, self.optimizer.lr, norms)
        return tokens

    def _set_rate(self):
        self.optimizer.lr = self.rate(self.history.step + 1, self.elapsed()) * self.system.rate_factor(self.epoch)

    def _forward(self, tokens):
        h = self.history
        h.step, h.tokens, self.place = h.step + 1, h.tokens + tokens, self.place + 1

    def _record(self, step, value, tokens, norm, rate, norms):
        self.history.losses.append((step, value))
        line = {"step": step, "loss": value, "tokens": tokens, "norm": norm, "rate": rate}
        if norms:
            self.history.norms.append((step, norms))
            line["norms"] = norms
        self._note(line)

    def _took(self, tokens, seconds):
        self.speed = (tokens, seconds) if self.speed is None else tuple(
            0.95 * a + 0.05 * b for a, b in zip(self.speed, (tokens, seconds), strict=True))

    def _loss_and_gradients(self, batch):
        """(the loss, the number of targets); the gradients are in the parameters, unless the loss is nan or inf."""
        if self.gradients is not None:
            return self.gradients(self.system.stage(), *self.system.arrays(batch)).item(), self.system.targets_in(batch)
        self.optimizer.zero_grad()
        loss, tokens = self.system.loss(batch)
        if math.isfinite(loss.item()):
            loss.backward()
        return loss.item(), tokens

    def _gradients(self, stage, *arrays):
        """The part of a step that is captured. `stage` tells apart formulas of the loss."""
        self.optimizer.zero_grad()
        loss = self.system.loss_of(*arrays)
        loss.backward()
        return loss

    def elapsed(self):
        """Seconds of training so far, those of earlier sittings included."""
        return self.history.seconds + (0.0 if self.began is None else time.perf_counter() - self.began)

    def validate(self):
        h = self.history
        loss = float(self.system.validation_loss())
        if not math.isfinite(loss):
            cause = self._weights_or(self.system.validation_loss)
            raise FloatingPointError(f"step {h.step}: the validation loss is {loss}; {cause}")
        h.validation.append((h.step, loss))
        if h.best_loss is None or loss < h.best_loss:
            h.best_step, h.best_loss, self.best = h.step, loss, self.system.model.state_dict()
        self._note({"step": h.step, "validation_loss": loss, "seconds": round(self.elapsed(), 3)})
        self._keep_looks(self._looks())

    # -- for pictures ------------------------------------------------------------------------------------------------
    def _norms_due(self):
        """At the first step, and where the coming one is the last before a validation."""
        coming, c = self.history.step + 1, self.config
        return coming in (1, c.steps) or coming % c.validate_every == 0

    def _norms(self):
        """{layer: L2 norm of its gradient, before clipping}, a layer being the module that owns the parameters."""
        owned = {}
        for name, p in self.system.model.named_parameters():
            if p.grad is not None:
                owned.setdefault(name.rpartition(".")[0], []).append(_norm(p.grad.numpy()))
        return {layer: math.hypot(*norms) for layer, norms in owned.items()}

    def _looks(self):
        """What the model looks at now for the first few test samples; no random number is used up by it."""
        if not self.config.watch:
            return None
        before = random.get_state()
        self.system.model.eval()
        with no_grad():
            looks = [look for found in self.system.examples(self.config.watch) for look in found.looks]
        random.set_state(before)
        if not looks:
            raise InputError(f"watch: {self.config.system} with these options has no attention to look at")
        return [_look_record(look) for look in looks]

    def _keep_looks(self, looks):
        if looks is not None:
            self.history.looks.append((self.history.step, looks))
            self._note({"step": self.history.step, "looks": looks})

    # -- numbers that are none ---------------------------------------------------------------------------------------
    def _diverged(self, what, batch, before):
        def again():
            random.set_state(before)
            self.optimizer.zero_grad()
            self.system.loss(batch)[0].backward()
        kept = "" if self.run is None else f"; the checkpoint of before is kept in {self.run}"
        return FloatingPointError(f"step {self.history.step + 1}: {what}; {self._weights_or(again)}{kept}")

    def _weights_or(self, again):
        """Where the first nan or inf came from: the last update, or an op that `again` runs once more under watch."""
        for name, p in self.system.model.named_parameters():
            if not np.isfinite(p.numpy()).all():
                return f"the last update (learning rate {self.optimizer.lr:.3g}) had left a nan or inf in {name}"
        try:
            with detect_anomaly():
                again()
        except FloatingPointError as error:
            return str(error)
        return "no single op made it when it was run again"

    # -- reporting and keeping ---------------------------------------------------------------------------------------
    def _progress(self, due):
        h, c = self.history, self.config
        last = h.losses[-1][1]
        self.mean_loss = last if self.mean_loss is None else 0.95 * self.mean_loss + 0.05 * last
        tokens, took = self.speed or (0, math.inf)
        done = max(h.step / c.steps if c.steps else 0.0, self.elapsed() / c.seconds if c.seconds else 0.0)
        by_steps = (c.steps - h.step) * took if c.steps else math.inf
        left = min(by_steps, c.seconds - self.elapsed()) if c.seconds else by_steps
        left = None if left == math.inf else max(0.0, left)
        return Progress(h.step, c.steps, self.mean_loss, tokens / took, min(1.0, done), left,
                        h.validation[-1][1] if due else None, due and h.best_step == h.step)

    def _note(self, line):
        if self.log is not None:
            with checkpoint.naming(self.log.name):
                self.log.write(json.dumps(line) + "\n")

    def save(self):
        """The log first, then the checkpoint: a log may be ahead of its checkpoint, never behind."""
        if self.run is None:
            return
        if self.log is not None:
            with checkpoint.naming(self.log.name):
                self.log.flush()
        h = self.history
        state = {"step": h.step, "epoch": self.epoch, "place": self.place, "batches": len(self.batches),
                 "tokens": h.tokens, "seconds": self.elapsed(), "random": random.get_state(),
                 "best_step": h.best_step, "best_loss": h.best_loss}
        checkpoint.save(self.run, Checkpoint(self.config.to_json(), self.system.extra(), state,
                                             self.system.model.state_dict(), self.best, self.optimizer.state_dict()))
        self.saved_at = time.perf_counter()

    def close(self):
        self.history.seconds, self.began = self.elapsed(), None
        if self.log is not None:
            with checkpoint.naming(self.log.name):
                self.log.close()

    def _write_config(self):
        text = json.dumps(self.config.to_json(), indent=1, ensure_ascii=False)
        checkpoint.write(self.run / "config.json", text + "\n")

    def _open_log(self):
        self.log = open(self.run / "log.jsonl", "a", encoding="utf-8")  # noqa: SIM115  (closed by `close`)

    def _cut_log(self):
        """Drop what the log has beyond the checkpoint's step, and a last line that a kill has cut."""
        lines = read_log(self.run, self.history.step)
        checkpoint.write(self.run / "log.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
        h = self.history
        h.losses, h.validation, h.norms, h.looks = ([(line["step"], line[key]) for line in lines if key in line]
                                                    for key in ("loss", "validation_loss", "norms", "looks"))


class _LoopOnCard(_Loop):
    """The same on a card, which the host runs ahead of.

    What a step gave, its loss and the norm of its gradients, stays on the card and in `unread`. Where one is nan or inf the
    optimiser stands still from then on (`Optimizer.halted`), so that its step can be named and made again later.
    """
    def __init__(self, system, config, run, compiled):
        super().__init__(system, config, run, compiled)
        self.unread, self.read_at = [], None

    def _make(self, batch, before):
        if self.gradients is not None:
            loss, tokens = self.gradients(self.system.stage(), *self.system.arrays(batch)), self.system.targets_in(batch)
        else:
            self.optimizer.zero_grad()
            loss, tokens = self.system.loss(batch)
            loss.backward()
        self.optimizer.guard(loss)
        due = self._norms_due()
        norms = self._norms() if due else None
        norm = self.optimizer.clip_grad_norm(self.config.clip or math.inf)
        self._set_rate()
        self.optimizer.step()
        self._forward(tokens)
        self.unread.append((self.history.step, loss.detach(), tokens, norm, self.optimizer.lr, norms, batch, before))
        if due or len(self.unread) >= UNREAD:
            self._read()
        return tokens

    def _read(self):
        """Ask the card for what is unread. FloatingPointError, naming step and op, if one of those steps went wrong."""
        bad, why = self.optimizer.halted() or (math.inf, "")
        for step, loss, tokens, norm, rate, norms, batch, before in self.unread:
            if step == bad:
                self.history.step = step - 1
                value = loss.item()
                raise self._diverged(why if math.isfinite(value) else f"the loss is {value}", batch, before)
            self._record(step, loss.item(), tokens, norm.item(), rate, norms)
        now = time.perf_counter()
        if self.read_at is not None and self.unread:
            count = len(self.unread)
            super()._took(sum(u[2] for u in self.unread) / count, (now - self.read_at) / count)
        self.unread, self.read_at = [], now

    def _took(self, tokens, seconds):
        """How long it took to give the card its work says nothing; see `_read`."""

    def validate(self):
        super().validate()
        self.read_at = time.perf_counter()

    def save(self):
        self._read()
        super().save()


def _norm(g):
    """The L2 norm of an array, in float64, also where its square is beyond that."""
    g = np.abs(g, dtype=np.float64)
    largest = g.max(initial=0.0)
    return float(largest * np.sqrt(np.square(g / largest).sum())) if 0 < largest < math.inf else float(largest)


def _look_record(look):
    """A Look as JSON, with four digits; weights None where one of them is no number."""
    look = look.with_rest() if hasattr(look, "with_rest") else look
    weights = np.asarray(look.weights, dtype=np.float64)
    place = getattr(look, "place", None)
    return {"title": look.title, "rows": list(map(str, look.rows)), "columns": list(map(str, look.columns)),
            "weights": weights.round(4).tolist() if np.isfinite(weights).all() else None,
            **({"place": place} if isinstance(place, dict) and place else {})}
