"""The spine of every mechanism: the table of mechanisms, scores by name, and `weigh`, the one place that masks,
normalises and taps weights. (Beside it: `mask.py` makes masks, `normalise.py` turns scores into weights, `cache.py`
keeps keys and values while decoding, `heads.py` is what mechanisms with heads share, `shapes.py` checks shapes and
options, `properties.py` holds what every mechanism must satisfy. Every other file is a mechanism.)

A mechanism is a function of Tensors, put into the table by `@variant`. Its file also holds

    reference(...)    the same in plain NumPy loops, sharing nothing with it
    example(rng)      small inputs: a dictionary of arrays (and plain settings) for the function's arguments
    prepare(k, ...)   optional: what depends on the keys alone, so that a decoder computes it once a sentence
    scores(q, prepared, ...)  optional: the scores of queries against prepared keys. A mechanism with this part is a
                      score function, and others take it by name: `score="general"`
    labels()          optional: (names of the queries, names of the keys) of the example, for pictures, and a third,
                      what the axes between batch and queries count: "head", "hop", "feature"

(`reference_NAME` and `example_NAME` go first, where one file holds two mechanisms.) The file's docstring is a sentence,
the formula indented below it, then paragraphs; one begins with "Cost:", and one with "Survey:" where the survey (Hu
2018) prints something else. From the table come the tests, `tinyattn list / explain / check / graph / gallery`, and the
`--attention` option.

Conventions: q (B, T, Q), k (B, S, K), v (B, S, E), or x (B, T, D) where a sequence attends to itself; mask is bool,
True = may be attended, of shape (T, S), (B, 1, S) or (B, T, S); weights are tapped with keys on the last axis, queries
before: (..., T, S).
"""
import functools
import importlib
import importlib.util
import inspect
import pkgutil
import re
import sys
import traceback
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..autograd import no_grad, scope, tap
from ..device import default_device
from ..errors import InputError
from ..functional import dropout as drop
from ..op import state
from ..ops.broadcast import ShapeError
from ..tensor import NUMBERS, Tensor
from .normalise import normaliser

_table = {}
FAMILIES = {  # in the order of the survey: what `tinyattn list attention` and the gallery group by
    "score": "Score functions: how well a key fits a query", "normaliser": "Normalisers: from scores to weights",
    "basic": "Basic attention", "multi-dimensional": "Multi-dimensional attention",
    "hierarchical": "Hierarchical attention", "self": "Self-attention and positions",
    "memory": "Memory-based attention", "task-specific": "Task-specific attention",
    "application": "Attention put to use"}


# ---------------------------------------------------------------------------------------------------------------------
# the table
# ---------------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Variant:
    """One mechanism. `params` gives each learned parameter's shape, in letters that the model fills in."""
    name: str
    function: object
    params: dict
    null: tuple = ()      # parameters whose gradient is 0 by nature
    paper: str = ""
    score: str = ""       # the score that it takes by name, by default
    sums: object = 1.0    # what the weights of a query sum to: a number, a pair (at least, at most), or None
    keys: tuple = ()      # the inputs (B, S, ...) that `mask` masks
    causal: bool = False  # a sequence attends to itself, row t of the output belongs to token t
    family: str = ""      # one of FAMILIES: where the survey tells of it
    empty: bool = True    # a query that may attend to nothing gives output 0 (False: a gate or residue gives something)

    @property
    def module(self):
        return sys.modules[self.function.__module__]

    @property
    def doc(self):
        return inspect.getdoc(self.module) or ""

    @property
    def formula(self):
        """The first indented block of the file's docstring, its lines without the indent."""
        block = []
        for line in self.doc.splitlines()[1:]:
            if line.startswith("    "):
                block.append(line.strip())
            elif block:
                break
        return block

    @property
    def headline(self):
        """The formula in one line: the first of the block, up to a wide gap."""
        return re.split(r" {3,}", self.formula[0])[0] if self.formula else ""

    def paragraph(self, begins):
        """The docstring's paragraph that begins with this word, such as "Cost:" or "Survey:", as one line; or ""."""
        found = [p for p in self.doc.split("\n\n") if p.startswith(begins)]
        return " ".join(found[0].split()) if found else ""

    def part(self, name):
        """The module's `reference`, `example`, `prepare`, `scores` or `labels`, or None."""
        return getattr(self.module, f"{name}_{self.name}", None) or getattr(self.module, name, None)

    @property
    def of_the_package(self):
        return self.function.__module__.startswith("tinyattn.")

    @property
    def is_score(self):
        """Is it a score function: are its parts `scores` and `prepare` there, and do they take just its parameters?"""
        scores, prepare = self.part("scores"), self.part("prepare")
        if scores is None:
            return False
        return {*_names(scores)[0][2:], *(_names(prepare)[0][1:] if prepare else ())} == set(self.params)

    @property
    def arguments(self):
        """The names of the function's arguments."""
        return tuple(inspect.signature(self.function).parameters)

    def letters(self, score=None):
        """{parameter: letters of its shape}, those of the score that it takes by name too."""
        score = score or self.score
        return {**self.params, **(find(score).params if isinstance(score, str) and score else {})}

    def shapes(self, score=None, **sizes):
        """The shapes of the parameters for given sizes: `shapes(A=64, Q=64, K=128)`."""
        letters = self.letters(score)
        unknown = sorted(set("".join(letters.values())) - set(sizes))
        if unknown:
            shapes = ", ".join(f"{p} ({', '.join(s)})" for p, s in letters.items())
            raise InputError(f"attention {self.name}: its parameters need the sizes {', '.join(unknown)} too: {shapes}")
        return {p: tuple(sizes[letter] for letter in s) for p, s in letters.items()}

    def __call__(self, *args, **kwargs):
        first = next((t for t in (*args, *kwargs.values()) if type(t) is Tensor), None)
        if first is not None and type(first.array) is not np.ndarray:
            with default_device("cuda"), scope(self.name):  # masks given as arrays, and what the function makes itself
                return self.function(*args, **kwargs)
        with scope(self.name):
            return self.function(*args, **kwargs)


def variant(family="", *, params=None, null=(), paper="", score="", sums=1.0, keys=None, causal=False, empty=True):
    """Put a function into the table under its own name. The fields are those of `Variant`; a user's own needs no
    family.

    Letters in `params`: A alignment units, Q and K width of a query and of a key, D of a token, E of a value, H heads,
    V vocabulary; others as the mechanism's file says. A scalar has no letter.
    """
    def register(function):
        names = inspect.signature(function).parameters
        _check_fields(function.__name__, names, params or {}, null, score, sums, () if keys is None else keys)
        own = tuple(n for n in ("k", "v", "x") if n in names) if keys is None else tuple(keys)
        entry = Variant(function.__name__, function, dict(params or {}), tuple(null), paper, score, sums, own,
                        causal, family, empty)
        if entry.of_the_package:  # a user's own is found by its file, and may have any name
            if entry.name in _table:
                raise ValueError(f"variant: there are two mechanisms named {entry.name!r}")
            _table[entry.name] = entry
        return entry
    return register


def _check_fields(name, arguments, params, null, score, sums, keys):
    """TypeError or ValueError for fields of `@variant` that cannot be meant."""
    texts = isinstance(params, dict) and all(isinstance(letters, str) for letters in params.values())
    if not (texts and isinstance(null, (tuple, list)) and isinstance(keys, (tuple, list)) and isinstance(score, str)):
        raise TypeError(f"variant {name}: expected params {{name: letters}}, tuples null and keys, and the name of a "
                        f"score, got params={params!r}, null={null!r}, keys={keys!r}, score={score!r}")
    if not (sums is None or isinstance(sums, NUMBERS) or (isinstance(sums, tuple) and len(sums) == 2)):
        raise TypeError(f"variant {name}: expected sums to be a number, a pair (at least, at most) or None, got "
                        f"{sums!r}")
    unknown = [k for k in (*params, *keys) if k not in arguments]
    if unknown:
        raise ValueError(f"variant {name}: expected params and keys to name arguments of the function, got "
                         f"{', '.join(unknown)}")


def table():
    """name -> Variant, for every mechanism of the package, in alphabetic order."""
    here = importlib.import_module("tinyattn.attention")
    for found in pkgutil.iter_modules(here.__path__):
        importlib.import_module(f"tinyattn.attention.{found.name}")
    return dict(sorted(_table.items()))


def by_family():
    """[(title, [Variant, ...])] of the whole table, in the order of `FAMILIES`; those without a family last."""
    known = table().values()
    groups = [(title, [v for v in known if v.family == family]) for family, title in FAMILIES.items()]
    groups.append(("Others", [v for v in known if v.family not in FAMILIES]))
    return [(title, found) for title, found in groups if found]


def find(name):
    """The mechanism called `name`, or `path/to/file.py:name` for one of the user's own. InputError if there is none."""
    if isinstance(name, Variant):
        return name
    if not isinstance(name, str):
        raise InputError(f"attention: expected the name of a mechanism, or FILE.py:NAME, got {name!r}")
    if ".py" in name:
        path, _, function = name.rpartition(":") if ".py:" in name else (name, "", "")
        return _from_file(Path(path), function)
    here = importlib.import_module("tinyattn.attention")
    if name not in _table and name.isidentifier() and importlib.util.find_spec(f"{here.__name__}.{name}"):
        importlib.import_module(f"{here.__name__}.{name}")  # one file, not all: a decoder asks for one mechanism
    if name in _table:
        return _table[name]
    known = table()
    if name not in known:
        raise InputError(f"attention: expected one of {', '.join(known)}, or FILE.py:NAME, got {name!r}")
    return known[name]


def _from_file(path, function):
    module = load_file(path)
    found = own_mechanisms(module)
    if not found or (function and function not in found):
        raise InputError(f"attention: {path} defines {', '.join(found) or 'no mechanism'}; expected a function "
                         f"{function or 'NAME'} under @variant(...)")
    return found[function] if function else next(iter(found.values()))


def own_mechanisms(module):
    """{name: Variant} of those that a loaded file defines itself."""
    return {v.name: v for v in vars(module).values()
            if isinstance(v, Variant) and v.function.__module__ == module.__name__}


def load_file(path, who="attention"):
    """A user's own Python file, run, as a module. InputError with the line if it is not there or cannot be run."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{who}: there is no file {path}")
    key = f"tinyattn_user_{abs(hash(str(path.resolve())))}"
    spec = importlib.util.spec_from_file_location(key, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[key] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # whatever a user's file raises is the user's to see, as one line
        relative = "relative import" in str(error)
        hint = "; outside the package write `from tinyattn.attention.core import ...`" if relative else ""
        raise InputError(f"{who}: {path} cannot be run: {_said(error, path)}{hint}") from error
    return module


def _said(error, path):
    """"line 3: ValueError: what it says" of an exception that came through the file `path`."""
    path = Path(path).resolve()
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == path]
    return (f"line {lines[-1]}: " if lines else "") + f"{type(error).__name__}: {error}"


@contextmanager
def blame(entry):
    """What goes wrong inside, while a mechanism from a user's own file runs, becomes one line that names the file:
    InputError."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        if entry.of_the_package:
            raise
        path = inspect.getsourcefile(entry.function)
        raise InputError(f"attention {entry.name}: {path} fails: {_said(error, path)}") from error


def example_of(entry, seed=0):
    """The example of a mechanism: a dictionary of arrays and settings. InputError where it is missing or is no such
    thing."""
    example = entry.part("example")
    if example is None:
        raise InputError(f"{entry.name}: expected `example(rng)` beside the mechanism, inputs to run it on; found none")
    with blame(entry):
        arrays = example(np.random.default_rng(seed))
    if not isinstance(arrays, dict) or not all(isinstance(name, str) for name in arrays):
        raise InputError(f"{entry.name}: expected `example(rng)` to give a dictionary {{name of an argument: array}}, "
                         f"got {type(arrays).__name__}")
    return arrays


# ---------------------------------------------------------------------------------------------------------------------
# scores by name
# ---------------------------------------------------------------------------------------------------------------------
def scores_of(score, q, k, parameters):
    """e (B, T, S), the scores of queries q (B, T, Q) against keys k (B, S, K) under the score named `score`."""
    return asker(score, k, parameters)(q)


def asker(score, k, parameters):
    """The function from queries q (B, T, Q) to their scores (B, T, S) against these keys: what depends on the keys
    alone is computed once, here, and not at every step of a decoder.

    score: a name, FILE.py:NAME, or a function a(q, k, **parameters). InputError for a name that is no score function,
    or for other parameters than its own.
    """
    if callable(score) and not isinstance(score, Variant):
        return lambda q: score(q, k, **parameters)
    entry = find(score)
    if not entry.is_score:
        known = ", ".join(n for n, v in table().items() if v.is_score)
        raise InputError(f"score: {entry.name} is no score function; expected one of {known}, or FILE.py:NAME with "
                         "a part scores(q, k, ...)")
    if set(parameters) != set(entry.params):
        raise InputError(f"score {entry.name}: expected the parameters {', '.join(entry.params) or 'none'}, got "
                         f"{', '.join(parameters) or 'none'}")
    _tensors(entry, {"k": k, **parameters})
    scores, prepare = entry.part("scores"), entry.part("prepare")
    prepared = k if prepare is None else prepare(k, **wanted(prepare, parameters))
    own = wanted(scores, parameters)

    def ask(q):
        _tensors(entry, {"q": q})
        return scores(q, prepared, **own)
    return ask


def _tensors(entry, given):
    for what, x in given.items():
        if not isinstance(x, (Tensor, NUMBERS)):
            raise TypeError(f"score {entry.name}: expected a Tensor for {what}, got {type(x).__name__}")


def wanted(function, parameters):
    """Those of the parameters that a function names; all of them if it takes `**more`."""
    names, more = _names(function)
    return dict(parameters) if more else {name: p for name, p in parameters.items() if name in names}


@functools.cache
def _names(function):
    """The names of a function's arguments, and whether it takes `**more`; kept, since a decoder asks at every step."""
    arguments = inspect.signature(function).parameters
    return tuple(arguments), any(p.kind is p.VAR_KEYWORD for p in arguments.values())


# ---------------------------------------------------------------------------------------------------------------------
# scores to weights to the mean of the values
# ---------------------------------------------------------------------------------------------------------------------
def weights_of(scores, mask=None, normalise="softmax"):
    """The weights (..., T, S) of scores (..., T, S): masked, normalised over the keys, tapped for pictures.

    mask broadcasts to the scores, True = may be attended; masked places get exactly 0, a query that may attend to
    nothing gets 0 throughout. normalise is a name of `normalise.py`. Taps "scores", "mask" and "weights". ShapeError or
    TypeError for a mask that does not fit, which begins with the mechanism's name.
    """
    mask = fitted(mask, scores.shape, normalise if isinstance(normalise, str) else "attention")
    weights = normaliser(normalise)(scores, mask)
    show(scores, mask, weights)
    return weights


def show(scores, mask, weights):
    """Tap what pictures show, in this order: "scores", "mask" and "weights". Each is a Tensor, None where there is
    none, or a function that gives either and is called only where somebody looks."""
    if state.captures:
        for name, value in (("scores", scores), ("mask", mask), ("weights", weights)):
            with no_grad():
                value = value() if callable(value) else value
            if value is not None:
                tap(name, value)


def fitted(mask, shape, name="attention"):
    """A mask (array or Tensor) as a Tensor, checked against scores of `shape` (..., T, S): bools, S on the last axis,
    the axes before broadcast. None stays None. Errors begin with the mechanism that runs, or with `name` outside of
    any."""
    if mask is None:
        return None
    mask = mask if isinstance(mask, Tensor) else Tensor(mask)
    aligned = zip(mask.shape[::-1], shape[::-1], strict=False)
    if mask.dtype.kind == "b" and 1 <= mask.ndim <= len(shape) and mask.shape[-1] == shape[-1] and all(
            n in (1, m) for n, m in aligned):
        return mask
    name = state.scope or name
    if mask.dtype.kind != "b":
        raise TypeError(f"{name}: expected a mask of bools, True = may be attended to, got {mask.dtype}")
    letters = "(B, T, S)" if len(shape) == 3 else "(..., T, S)"
    raise ShapeError(f"{name}: expected a mask that broadcasts to {letters} = {tuple(shape)}, with all S keys on its "
                     f"last axis, got {mask.shape}")


def weigh(scores, v, mask=None, return_weights=False, normalise="softmax", dropout=0.0, training=False):
    """Weights of the scores, and the mean of the values under them.

    scores (..., T, S), v (..., S, E), mask and normalise as in `weights_of`. Returns (..., T, E), and the weights
    (..., T, S) too if asked. In training, each weight is dropped with probability `dropout`; the weights
    returned and tapped are those before.
    """
    weights = weights_of(scores, mask, normalise)                          # (..., T, S)
    context = (drop(weights, dropout, training) if dropout else weights) @ v  # (..., T, E)
    return (context, weights) if return_weights else context
