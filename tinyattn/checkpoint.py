"""A run's one file of truth, `model.safetensors`: weights, optimiser, random state, vocabulary and settings as data.

    tensors     model/NAME       weights as of the last step
                best/NAME        weights at the lowest validation loss (absent before the first validation)
                optimizer/NAME   what the optimiser keeps
    header      "tinyattn": JSON {format, config, extra, state}; `extra` is the system's own (vocabularies), `state` is
                where training stands: step, epoch, place in it, random numbers, best validation loss, seconds

Writing it is the only commit: a new file is written beside the old one, forced to the disk, and renamed over it, so a
process killed at any byte leaves the old file. Everything else in the folder of a run (config.json, log.jsonl, ...) is
for people, and is brought into line with this file on resume.

Reading it executes nothing. The format holds numbers and text alone, and each reason to refuse a file is an InputError.
"""
import json
import math
import os
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_bytes

from . import systems
from .errors import InputError

FILE = "model.safetensors"
FORMAT = 1
PARTS = ("model", "best", "optimizer")
# what code raises that is given data of another shape than it was written for
BAD = (AttributeError, IndexError, KeyError, MemoryError, OverflowError, RecursionError, TypeError, ValueError)


@dataclass
class Checkpoint:
    """What the file holds. The three parts are {name: NumPy array}, the rest is what JSON can hold."""
    config: dict
    extra: dict
    state: dict
    model: dict = field(default_factory=dict)
    best: dict = field(default_factory=dict)
    optimizer: dict = field(default_factory=dict)

    @property
    def weights(self):
        """The weights to use: the best ones, or the last before there was a validation, or where the run keeps those."""
        return self.model if self.config.get("keep") == "last" else self.best or self.model


# ---------------------------------------------------------------------------------------------------------------------
# writing
# ---------------------------------------------------------------------------------------------------------------------
def write(path, data):
    """Write bytes or text to a file so that it holds, at any moment, the old content or the new, never a part."""
    path = Path(path)
    part = path.with_name(path.name + ".part")
    try:
        with naming(path):
            with open(part, "wb") as file:
                file.write(data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
    except BaseException:  # a full disk, Ctrl-C: leave nothing half done behind
        part.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


@contextmanager
def naming(path):
    """An OSError within names this file: that of a full disk does not say by itself what could not be written."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def _sync_folder(folder):
    """Force the renaming itself to the disk, where a folder can be opened (not on Windows)."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        except OSError:  # some network disks refuse; the rename itself has been done
            pass
        finally:
            os.close(handle)


def save(folder, checkpoint):
    """Put the checkpoint into the folder of a run, in place of the one that is there."""
    tensors = {f"{part}/{name}": np.asarray(array, order="C")
               for part in PARTS for name, array in getattr(checkpoint, part).items()}
    about = {"format": FORMAT, "config": checkpoint.config, "extra": checkpoint.extra, "state": checkpoint.state}
    # One key: the library keeps the header's keys in no order, and equal runs shall be equal files.
    write(Path(folder) / FILE, to_bytes(tensors, {"tinyattn": json.dumps(about, allow_nan=False)}))


# ---------------------------------------------------------------------------------------------------------------------
# reading
# ---------------------------------------------------------------------------------------------------------------------
def load(folder):
    """The Checkpoint in the folder of a run. InputError, with the reason, for anything that `save` did not write."""
    path = Path(folder) / FILE
    if not path.is_file():
        folder = Path(folder)
        what = "no such folder" if not folder.exists() else f"no {FILE} in it" if folder.is_dir() else "a file"
        raise InputError(f"{folder}: expected the folder of a run, found {what}")
    try:
        with safe_open(path, "numpy") as file:
            text = (file.metadata() or {}).get("tinyattn")
            if text is None:
                raise InputError(f"{path}: expected a run of tinyattn, found a safetensors file of another program")
            about = _about(json.loads(text), path)
            tensors = {key: np.array(file.get_tensor(key)) for key in file.keys()}  # noqa: SIM118  (not a dict)
    except InputError:
        raise
    except (SafetensorError, OSError, *BAD) as error:
        raise InputError(f"{path}: cannot be read as a run of tinyattn, it is cut off or damaged "
                         f"({_brief(error)})") from None
    parts = {part: {} for part in PARTS}
    for key, array in tensors.items():
        part, _, name = key.partition("/")
        if part not in parts:
            raise InputError(f"{path}: expected tensors under {', '.join(PARTS)}, found {key!r}")
        parts[part][name] = array
    return Checkpoint(about["config"], about["extra"], about["state"], **parts)


def _about(about, path):
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        found = about.get("format") if isinstance(about, dict) else type(about).__name__
        raise InputError(f"{path}: expected a run of format {FORMAT}, found format {found!r}; "
                         "it may need another version of tinyattn")
    for key in ("config", "extra", "state"):
        if not isinstance(about.get(key), dict):
            raise InputError(f"{path}: expected {key!r} in the header, found {type(about.get(key)).__name__}")
    return about


def _brief(error):
    return str(error).partition("\n")[0][:200] or type(error).__name__


def state_value(state, name, kinds, none=False):
    """A number of at least 0 from the state of a checkpoint. ValueError if it is none."""
    value = state[name]
    if none and value is None:
        return None
    if type(value) not in kinds or not 0 <= value < math.inf:
        raise ValueError(f"state {name}: expected a number of at least 0, found {value!r}")
    return value


def completed(cls, options):
    """The options of a run, with the default of each that the run is older than (`later` in the field's metadata)."""
    return {**{f.name: f.default for f in fields(cls) if f.metadata.get("later")}, **options}


def options_from(cls, given, where):
    """The dataclass `cls` with the values `given`, each of the type of its default. InputError names what is amiss."""
    defaults = {f.name: f.default for f in fields(cls)}
    if set(given) != set(defaults):
        odd = sorted(set(given) ^ set(defaults))
        raise InputError(f"{where}: expected the options {', '.join(defaults)}; missing or unknown: {', '.join(odd)}")
    for name, value in given.items():
        whole = type(defaults[name]) is float and type(value) is int
        if type(value) is not type(defaults[name]) and not whole:
            raise InputError(f"{where}: option {name}: expected {type(defaults[name]).__name__}, found {value!r}"[:300])
        allowed = cls.__dataclass_fields__[name].metadata.get("choices")
        if allowed and value not in allowed:
            raise InputError(f"{where}: option {name}: expected one of {', '.join(allowed)}, found {value!r}"[:300])
    return cls(**given)


def restore(folder, attention=None):
    """The trained system in the folder of a run, with its best weights and no data: (system, Checkpoint).

    A run may use a mechanism from somebody's own file. Loading executes nothing, so that file is run only if the caller
    names it: `attention="my.py:name"`. InputError if the run needs it and it is not named, for a bad file, and for
    weights that are nan or inf.
    """
    saved, path = load(folder), Path(folder) / FILE
    options = saved.config.get("options")
    if not isinstance(options, dict) or not isinstance(saved.config.get("system"), str):
        raise InputError(f"{path}: expected a system and its options in the header, found none")
    uses = options.get("attention")
    if attention is not None:
        if "attention" not in options or ".py" not in str(uses):
            raise InputError(f"{folder}: uses attention {uses!r}, which is no file; leave --attention away")
        options = {**options, "attention": attention}
    elif ".py" in str(uses):
        raise InputError(f"{folder}: uses the attention of a Python file, and loading a run executes nothing by "
                         f"itself; name the file to have it run: --attention {uses}")
    system = systems.find(saved.config["system"])
    try:
        options = asdict(options_from(system.Options, completed(system.Options, options), path))
        system = system.restore(options, saved.extra)
        system.model.load_state_dict(saved.weights)
        for name, weights in saved.weights.items():
            if not np.isfinite(weights).all():
                raise InputError(f"{path}: expected finite weights, found nan or inf in {name}")
    except InputError:
        raise
    except BAD as error:
        raise InputError(f"{path}: does not fit the system {saved.config['system']!r} ({_brief(error)})") from None
    return system, saved


# ---------------------------------------------------------------------------------------------------------------------
# the folder of a run
# ---------------------------------------------------------------------------------------------------------------------
def new_folder(run, make=True):
    """Make the folder of a new run, or only look. InputError if it cannot be made, or holds anything."""
    run = Path(run)
    try:
        if make:
            run.mkdir(parents=True, exist_ok=True)
        elif not run.exists():
            return
        held = [p.name for p in run.iterdir() if not p.name.endswith(".part")]
    except OSError as error:
        raise InputError(f"{run}: cannot be the folder of a run ({error.strerror})") from None
    if FILE in held:
        raise InputError(f"{run}: holds a run already; --resume goes on with it, another --run begins a new one")
    if held:
        raise InputError(f"{run}: expected a new or empty folder for the run, found {min(held)} in it")


def read_log(run, last=None):
    """The lines of `log.jsonl` up to step `last`, as dictionaries. Lines that are no entries are left out."""
    try:
        text = (Path(run) / "log.jsonl").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    lines = []
    for line in text.splitlines():
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):  # brackets within brackets by the thousand
            continue
        if isinstance(entry, dict) and isinstance(entry.get("step"), int) and (last is None or entry["step"] <= last):
            lines.append(entry)
    return lines
