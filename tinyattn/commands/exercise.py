"""The command `exercise`, and what of a learner's own file `check` looks at."""
import inspect
import shlex
from pathlib import Path

import click

from ..errors import InputError
from . import names
from .console import columns, note, out


@click.command("exercise")
@click.argument("wanted", metavar="[NAME...]", nargs=-1)
@click.option("-o", "--output", metavar="FILE", help="the file to write [default: NAME.py, or exercises.py]")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="of the lab: which ops are wrong")
def exercise_command(wanted, output, seed):
    """Write the file of an exercise: the task, and the function to be written. `tinyattn check FILE` marks it.

    Without a NAME, list the exercises. `lab` is the break-it lab: ops of which some have a wrong rule, to be found and
    mended; each --seed plants other faults. Several NAMEs, or all, go into one file.
    """
    from .. import exercises
    if not wanted:
        rows = [(name, e.title) for name, e in exercises.table().items()]
        for line in columns([*rows, ("lab", _lab().__doc__.partition("\n")[0])]):
            out(line)
        return
    if "lab" in wanted and len(wanted) > 1:
        raise InputError("exercise: the lab is a file of its own; ask for it alone")
    if wanted == ("lab",):
        text = _lab().text(seed)
    else:
        chosen = list(exercises.table()) if "all" in wanted else list(dict.fromkeys(wanted))
        text = exercises.skeleton([exercises.find(name) for name in chosen])
    path = Path(output or (f"{wanted[0]}.py" if len(wanted) == 1 and "all" not in wanted else "exercises.py"))
    _write_new(path, text)
    out(str(path))
    note(f"mark it with: tinyattn check {shlex.quote(str(path))}")


def _lab():
    from ..exercises import lab
    return lab


def _write_new(path, text):
    """Write a file that is not there yet: nobody's answers are written over."""
    if path.suffix != ".py":
        raise InputError(f"exercise: expected a file name that ends in .py, got {path.name!r}")
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise InputError(f"exercise: {path} is there already, perhaps with answers in it; choose another -o") from None


def things_of(name):
    """[(kind, name, thing)] of what FILE.py, or FILE.py:NAME, defines: mechanisms, ops, answers to exercises, a lab."""
    from ..attention.core import load_file
    from ..exercises import table
    from ..exercises.lab import is_lab
    path, wanted = names.parted(name)
    module = load_file(path, "check")
    if is_lab(module) and not wanted:
        return [("lab", "lab", module)]
    found = names.things_in(module)
    answers = [n for n in table() if callable(vars(module).get(n)) and n not in {f[1] for f in found}]
    found += [("exercise", n, (table()[n], getattr(module, n))) for n in answers]
    for _, n, thing in found:
        if inspect.isclass(thing) and not hasattr(thing, "samples"):
            raise InputError(f"check: {path}: the op {n} has no samples(rng), so there is nothing to check it on")
    chosen = names.called(found, wanted)
    if not chosen:
        raise InputError(f"check: {path} defines {', '.join(n for _, n, _ in found) or 'nothing that can be checked'}; "
                         f"expected {wanted or 'a mechanism, an op or an answer to an exercise'}")
    return chosen
