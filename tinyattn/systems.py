"""The table of systems: every file of `models/` that ends with `SYSTEM = ClassName` is one, under the file's name.

What a system must offer is described in `train.py`. Names are found by reading the files, so that listing them for
`--help` imports nothing.
"""
import ast
import importlib
import re
from pathlib import Path

from .errors import InputError

FOLDER = Path(__file__).parent / "models"


def names():
    """The names of all systems, in alphabetic order."""
    return sorted(path.stem for path in FOLDER.glob("*.py")
                  if re.search(r"^SYSTEM = \w", path.read_text(encoding="utf-8"), re.MULTILINE))


def summary(name):
    """The first line of a system's file, without importing it."""
    return ast.get_docstring(ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8"))).partition("\n")[0]


def find(name):
    """The class of the system called `name`. InputError if there is none."""
    if name not in names():
        raise InputError(f"system: expected one of {', '.join(names())}, got {name!r}")
    return importlib.import_module(f"tinyattn.models.{name}").SYSTEM
