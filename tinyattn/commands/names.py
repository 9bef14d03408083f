"""Names of things, as commands take them: `softmax`, `op:softmax`, `attention:additive`, `my.py:mine`, `translate`."""
import importlib
import inspect
import pkgutil
from pathlib import Path

from .. import systems
from ..errors import InputError

KINDS = ("op", "attention", "system", "module")


def ops():
    """{name: Op class} of the package, all families imported."""
    from ..autograd import Op
    _import_all("tinyattn.ops")
    return dict(sorted(Op.registry.items()))


def mechanisms():
    """{name: Variant} of the package."""
    from ..attention import table
    return table()


def modules():
    """{dotted name: Module class} of the package: layers, models."""
    from ..nn import Module
    _import_all("tinyattn.nn")
    _import_all("tinyattn.models")
    return dict(sorted(Module.registry.items()))


def all_systems():
    """{name: class} of the systems."""
    return {name: systems.find(name) for name in systems.names()}


def tasks():
    """{name: first line of its file}: the modules of `tasks/` that load data."""
    folder = Path(__file__).parent.parent / "tasks"
    found = {}
    for path in sorted(folder.glob("*.py")):
        if "\ndef load(" in path.read_text(encoding="utf-8"):
            found[path.stem] = inspect.getdoc(importlib.import_module(f"tinyattn.tasks.{path.stem}")).partition("\n")[0]
    return found


def _import_all(package):
    for found in pkgutil.iter_modules(importlib.import_module(package).__path__):
        importlib.import_module(f"{package}.{found.name}")


def find(name, runs=False):
    """(kind, name, thing) for a name. InputError where there is none, or several and the kind is not said.

    runs   the command takes a run's folder too, and the message says so
    """
    prefix, _, rest = name.partition(":")
    if ".py" in name:
        from ..attention import find as find_mechanism
        variant = find_mechanism(name)
        return "attention", variant.name, variant
    tables = {"op": ops, "attention": mechanisms, "system": all_systems, "module": modules}
    if prefix in tables and rest:
        known = tables[prefix]()
        if rest not in known:
            raise InputError(f"{name}: there is no {prefix} of this name; expected one of {', '.join(known)}")
        return prefix, rest, known[rest]
    found = []
    for kind, table in tables.items():
        known = table()
        full = name if name in known else None
        if kind == "module" and full is None:  # `GRU` will do for `nn.recurrent.GRU`
            full = next((n for n in known if n.rpartition(".")[2] == name), None)
        if full is not None:
            found.append((kind, full, known[full]))
    if not found:
        raise InputError(f"{name}: expected an op, mechanism, system or module of `tinyattn list`"
                         + (", or a run's folder" if runs else ""))
    if len(found) > 1:
        raise InputError(f"{name}: could be {' or '.join(f'{kind}:{full}' for kind, full, _ in found)}; say which")
    return found[0]
