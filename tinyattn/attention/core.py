"""The spine of every mechanism: the table of mechanisms, and `weigh`, the one place that masks, normalises and taps weights.

A mechanism is a function of Tensors, put into the table by `@variant`. Its file also holds

    reference(...)    the same in plain NumPy loops, sharing nothing with it
    example(rng)      small inputs: a dictionary of arrays for the function's arguments
    prepare(k, ...)   optional: what depends on the keys alone, so that a decoder computes it once a sentence
    scores(q, prepared, ...)  optional: the scores of queries against prepared keys

From the table come the tests, `tinyattn list / explain / check / graph`, and the `--attention` option.
"""
import importlib
import importlib.util
import inspect
import pkgutil
import sys
from dataclasses import dataclass
from pathlib import Path

from ..autograd import scope, tap
from ..errors import InputError

_table = {}


@dataclass(frozen=True)
class Variant:
    """One mechanism. `params` gives each learned parameter's shape, in letters that the model fills in."""
    name: str
    function: object
    params: dict
    null: tuple       # parameters whose gradient is 0 by nature
    paper: str

    @property
    def module(self):
        return sys.modules[self.function.__module__]

    @property
    def doc(self):
        return inspect.getdoc(self.module) or ""

    def part(self, name):
        """The module's `reference`, `example`, `prepare` or `scores`, or None."""
        return getattr(self.module, name, None)

    def shapes(self, **sizes):
        """The shapes of the parameters for given sizes: `shapes(A=64, Q=64, K=128)`."""
        return {p: tuple(sizes[letter] for letter in letters) for p, letters in self.params.items()}

    def __call__(self, *args, **kwargs):
        with scope(self.name):
            return self.function(*args, **kwargs)


def variant(params=None, null=(), paper=""):
    """Put a function into the table under its own name. Letters in `params`: A alignment units, Q and K width of a query
    and of a key."""
    def register(function):
        entry = Variant(function.__name__, function, dict(params or {}), tuple(null), paper)
        if function.__module__.startswith("tinyattn.") and entry.name in _table:
            raise ValueError(f"variant: there are two mechanisms named {entry.name!r}")
        _table[entry.name] = entry
        return entry
    return register


def table():
    """name -> Variant, for every mechanism of the package, in alphabetic order."""
    here = importlib.import_module("tinyattn.attention")
    for found in pkgutil.iter_modules(here.__path__):
        importlib.import_module(f"tinyattn.attention.{found.name}")
    return {name: v for name, v in sorted(_table.items()) if v.function.__module__.startswith("tinyattn.")}


def find(name):
    """The mechanism called `name`, or `path/to/file.py:name` for one of the user's own. InputError if there is none."""
    if ".py" in name:
        path, _, function = name.rpartition(":") if ".py:" in name else (name, "", "")
        return _from_file(Path(path), function)
    known = table()
    if name not in known:
        raise InputError(f"attention: expected one of {', '.join(known)}, or FILE.py:NAME, got {name!r}")
    return known[name]


def _from_file(path, function):
    if not path.is_file():
        raise InputError(f"attention: there is no file {path}")
    key = f"tinyattn_user_{abs(hash(str(path.resolve())))}"
    spec = importlib.util.spec_from_file_location(key, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[key] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever a user's file raises is the user's to see, as one line
        raise InputError(f"attention: {path} cannot be run: {type(error).__name__}: {error}") from error
    found = {v.name: v for v in vars(module).values() if isinstance(v, Variant) and v.function.__module__ == key}
    if not found or (function and function not in found):
        raise InputError(f"attention: {path} defines {', '.join(found) or 'no mechanism'}; expected a function "
                         f"{function or 'NAME'} under @variant(...)")
    return found[function] if function else next(iter(found.values()))


def weigh(scores, v, mask=None, return_weights=False):
    """Weights softmax(scores) over the keys, and the mean of the values under them.

    scores (..., T, S), v (..., S, E), mask broadcasts to the scores, True = may be attended. Returns (..., T, E), and the
    weights (..., T, S) too if asked. A query that may attend to nothing gets 0. The weights are tapped as "weights".
    """
    weights = scores.softmax(-1, mask)                                     # (..., T, S)
    tap("weights", weights)
    context = weights @ v                                                  # (..., T, E)
    return (context, weights) if return_weights else context
