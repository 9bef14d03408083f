"""Runs found in folders, and groups of those that differ in nothing but the seed."""
from pathlib import Path

from tinyattn.errors import InputError

from .run import Run

ABOUT = ("config.json", "log.jsonl")  # what a folder of a run has in it
MOST = 2000  # runs below one folder


def find_runs(paths):
    """The Runs in folders: of each the run that it is, or all runs below it, such as those that `tinyattn compare`
    left. A run that is named twice counts once. InputError for a folder without any."""
    found = {}
    for path in map(Path, paths):
        folders = [path] if _is_run(path) else sorted(file.parent for file in path.rglob(ABOUT[0])
                                                      if _is_run(file.parent)) if path.is_dir() else []
        if not folders:
            what = "none in it" if path.is_dir() else "a file" if path.exists() else "no such folder"
            raise InputError(f"{path}: expected the folder of a run, or of several, found {what}")
        if len(folders) > MOST:
            raise InputError(f"{path}: expected at most {MOST:,} runs, found {len(folders):,}; name a folder in it")
        for folder in folders:
            found.setdefault(folder.resolve(), folder)
    return [Run(folder) for folder in found.values()]


def _is_run(folder):
    return (folder / ABOUT[0]).is_file() and ((folder / ABOUT[1]).is_file() or (folder / "model.safetensors").is_file())


def by_run(runs):
    """{name of the folder, with as much of the way to it as tells it apart: Run}"""
    parts = [run.folder.resolve().parts for run in runs]
    depth = 1
    while depth < max(map(len, parts), default=1) and len({p[-depth:] for p in parts}) < len(parts):
        depth += 1
    return {"/".join(p[-depth:]): run for p, run in zip(parts, runs, strict=True)}


def by_group(runs):
    """{label: [Run]}: runs that differ in the seed alone, labelled by the settings in which the groups differ."""
    groups = {}
    for run in runs:
        groups.setdefault(repr(sorted(run.kind().items())), []).append(run)
    kinds = [members[0].kind() for members in groups.values()]
    if len(kinds) == 1:
        return {_label(kinds[0], ["system", "attention"]): list(groups.values())[0]}
    names = list(dict.fromkeys(name for kind in kinds for name in kind))
    differ = [name for name in names if len({repr(kind.get(name)) for kind in kinds}) > 1]
    if "system" in differ:  # other systems have other options, and the name says enough if it tells them apart
        lean = [name for name in differ if name in ("system", "attention")]
        if len({_label(kind, lean) for kind in kinds}) == len(kinds):
            differ = lean
    elif "attention" in differ and len({kind["attention"] for kind in kinds}) == len(kinds):
        differ = ["attention"]
    return {_label(kind, differ): members for kind, members in zip(kinds, groups.values(), strict=True)}


def _label(kind, names):
    return ", ".join(str(kind[name]) if name == "system" else f"{name.replace('_', '-')} {kind[name]}"
                     for name in names if name in kind)
