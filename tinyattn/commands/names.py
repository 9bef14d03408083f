"""Names of things, as commands take them: `softmax`, `op:softmax`, `attention:additive`, `my.py:mine`, `translate`."""
import importlib
import inspect
import pkgutil
from contextlib import contextmanager
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

    A file, my.py or my.py:name, gives its mechanism or op; an op goes by the name of its class or its own.

    runs   the command takes a run's folder too, and the message says so
    """
    prefix, _, rest = name.partition(":")
    if ".py" in name:
        return _in_file(name)
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


# ---------------------------------------------------------------------------------------------------------------------
# a file of one's own
# ---------------------------------------------------------------------------------------------------------------------
def parted(name):
    """(path, name in it or "") of FILE.py or FILE.py:NAME."""
    path, _, wanted = name.rpartition(":") if ".py:" in name else (name, "", "")
    return path, wanted


def things_in(module):
    """[(kind, name, thing)] of the mechanisms and ops that a loaded file defines itself; an op by its class's name."""
    from ..attention.core import own_mechanisms
    from ..autograd import Op
    found = [("attention", name, variant) for name, variant in own_mechanisms(module).items()]
    ops_of_it = {thing: name for name, thing in reversed(vars(module).items()) if inspect.isclass(thing)
                 and issubclass(thing, Op) and thing.__module__ == module.__name__ and thing.cpu}
    return found + [("op", name, thing) for thing, name in reversed(ops_of_it.items())]


def called(found, wanted):
    """Those of [(kind, name, thing)] that are called `wanted`; all if it is "". An op also goes by its own name (swish
    for the class Swish). Upper and lower case count only where they tell two apart."""
    if not wanted:
        return found
    own = [item[2].name if item[0] == "op" else item[1] for item in found]
    for same in (lambda item, name: wanted == item[1], lambda item, name: wanted == name,
                 lambda item, name: wanted.lower() in (item[1].lower(), name.lower())):
        chosen = [item for item, name in zip(found, own, strict=True) if same(item, name)]
        if chosen:
            return chosen
    return []


def _in_file(name):
    """(kind, name, thing) of the one mechanism or op that FILE.py:NAME names, or that FILE.py defines."""
    from ..attention.core import load_file
    path, wanted = parted(name)
    there = things_in(load_file(path, "NAME"))
    found = called(there, wanted)
    listed = ", ".join(n for _, n, _ in there)
    if not found:
        raise InputError(f"{path} defines {listed or 'no mechanism and no op'}; expected "
                         + (wanted or "a function under @variant(...), or a subclass of Op with samples(rng)"))
    if len(found) > 1:
        several = ", ".join(n for _, n, _ in found)
        raise InputError(f"{path}: holds {several}; say which, such as {path}:{found[0][1]}")
    kind, _, thing = found[0]
    return kind, thing.name, thing


@contextmanager
def blame(kind, thing):
    """What goes wrong inside, while an op from a user's own file runs, becomes one line that names the file:
    InputError. (Of mechanisms, `attention.core.blame` does that.)"""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        if kind != "op" or thing.__module__.startswith("tinyattn."):
            raise
        from ..attention.core import _said
        path = inspect.getsourcefile(thing)
        raise InputError(f"op {thing.name}: {path} fails: {_said(error, path)}") from error
