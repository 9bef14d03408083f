"""The slopes of a function of Tensors by central differences in float64, against the gradients that its rules give.

    slope along u  =  (f(x + h u) - f(x - h u)) / 2h

What `gradcheck.py` is made of: `Function` (a function of Tensors as one of plain arrays), `compare`, and the `Report`
that comes out.
"""
import itertools
import math
from dataclasses import dataclass

import numpy as np

from .autograd import changed, enable_grad, grad
from .tensor import Tensor

ROUNDING = 2.0 ** -52


# ---------------------------------------------------------------------------------------------------------------------
# what comes out
# ---------------------------------------------------------------------------------------------------------------------
@dataclass
class Element:
    """One comparison. `index` is the place in the input; None for a whole random direction. `words` name its numbers."""
    where: str
    index: tuple | None
    analytic: float
    numeric: float
    words: tuple = ("analytic", "numeric")

    @property
    def relative(self):
        """|analytic - numeric| over the larger of the two."""
        return _ratio(abs(self.analytic - self.numeric), max(abs(self.analytic), abs(self.numeric)))

    def __str__(self):
        at = " along a random direction" if self.index is None else f" at {list(self.index)}"
        one, other = self.words
        return (f"{self.where}{at}: {one} {self.analytic:.8g}, {other} {self.numeric:.8g}, "
                f"relative error {self.relative:.1e}")


@dataclass
class Report:
    """What one check found. `worst` is the Element that is furthest off, or None where there was nothing to compare."""
    name: str
    ok: bool = True
    compared: int = 0      # numbers that were compared
    kinks: int = 0         # elements at which there is no derivative
    worst: Element | None = None
    reason: str = ""       # why it failed, if not by a number
    excess: float = 0.0    # how far `worst` is off, as a multiple of what is tolerated

    def add(self, element, excess, wrong=False):
        """Count one comparison."""
        self.compared += 1
        if self.worst is None or wrong > (not self.ok) or (excess > self.excess and wrong == (not self.ok)):
            self.worst, self.excess = element, excess
        self.ok = self.ok and not wrong

    def fail(self, reason):
        """Not ok, for a reason that is no number. The first reason is kept."""
        self.ok, self.reason = False, self.reason or reason

    def __str__(self):
        kinks = f", {self.kinks} kinks" if self.kinks else ""
        worst = self.reason or (f"worst {self.worst}" if self.worst else "no float in it")
        return f"{self.name}: {'ok' if self.ok else 'WRONG'}, {self.compared} compared{kinks}, {worst}"

    def raise_if_wrong(self):
        """AssertionError with the report as its text, unless it is ok; else the report itself."""
        if not self.ok:
            raise AssertionError(str(self))
        return self


def _ratio(a, b):
    return a / b if b else (math.inf if a else 0.0)


# ---------------------------------------------------------------------------------------------------------------------
# a function of Tensors as one of float64 arrays
# ---------------------------------------------------------------------------------------------------------------------
class Function:
    """fn(*inputs) with its float inputs and `parameters` as one list of arrays, `point`. Everything else is data."""

    def __init__(self, fn, inputs, parameters, names):
        self.fn, self.inputs, self.parameters = fn, tuple(inputs), dict(parameters or {})
        self.before = [t.array for t in self.parameters.values()]
        self.point, self.names = [], []
        for i, x in enumerate(self.inputs):
            self._collect(x, names[i] if names else f"input {i}")
        for name, t in self.parameters.items():
            if t.dtype != np.float64 or not t.requires_grad:
                raise TypeError(f"gradcheck: expected parameter {name} to be float64 and to require a gradient, got "
                                f"{t.dtype}; use module.to('float64')")
            self.point.append(np.array(t.numpy()))
            self.names.append(f"parameter {name}")

    def _collect(self, x, name):
        if isinstance(x, (tuple, list)):
            for i, part in enumerate(x):
                self._collect(part, f"{name}.{i}")
        elif is_float(x):
            x = x.numpy() if isinstance(x, Tensor) else x
            self.point.append(np.array(x, np.float64))  # this keeps the memory's order
            self.names.append(name)

    def __call__(self, arrays):
        """(float outputs, the Tensors that stand for `arrays`), recorded."""
        todo = iter(arrays[:len(arrays) - len(self.parameters)])
        variables = []

        def build(x):
            if isinstance(x, (tuple, list)):
                return type(x)(build(part) for part in x)
            if is_float(x):
                variables.append(Tensor._wrap(next(todo), None, 0, False).requires_grad_())
                return variables[-1]
            return Tensor(x) if isinstance(x, np.ndarray) else x

        inputs = [build(x) for x in self.inputs]
        self._put(arrays[len(variables):])
        with enable_grad():
            outs = [t for t in flat(self.fn(*inputs)) if t.dtype.kind == "f"]
        return outs, variables + list(self.parameters.values())

    def _put(self, arrays):
        for t, array in zip(self.parameters.values(), arrays, strict=True):
            if t.array is not array:
                t.array = array
                changed(t)

    def restore(self):
        """Give the parameters the memory back that they came with."""
        self._put(self.before)

    def values(self, arrays):
        return [t.numpy() for t in self(arrays)[0]]


def is_float(x):
    if isinstance(x, (Tensor, np.ndarray, np.floating)):
        return x.dtype.kind == "f"
    return False


def flat(result):
    """The Tensors in a result that may be nested."""
    if isinstance(result, Tensor):
        return [result]
    if isinstance(result, dict):
        result = list(result.values())
    return [t for part in result for t in flat(part)] if isinstance(result, (list, tuple)) else []


def _pull(outs, variables, weights):
    """J^T weights as arrays, None where nothing depends on a variable."""
    pairs = [(o, w) for o, w in zip(outs, weights, strict=True) if o.requires_grad]
    if not pairs or not variables:
        return [None] * len(variables)
    grads = grad([o for o, _ in pairs], variables, [Tensor(w) for _, w in pairs], allow_unused=True)
    return [None if g is None else g.numpy() for g in grads]


# ---------------------------------------------------------------------------------------------------------------------
# the comparison
# ---------------------------------------------------------------------------------------------------------------------
class _Line:
    """t -> <weights, f(x + t u)>, where only input number i moves."""

    def __init__(self, function, at, i, u):
        self.function, self.at, self.i, self.u, self.seen = function, at, i, u, {0.0: at}

    def values(self, t):
        if t not in self.seen:
            arrays = list(self.function.point)
            x = arrays[self.i]
            arrays[self.i] = np.add(x, t * self.u, out=np.empty_like(x))  # in the same memory order
            self.seen[t] = self.function.values(arrays)
        return self.seen[t]

    def slope(self, weights, behind, ahead):
        """The slope between -behind and ahead, over the step that x really took in floating point."""
        x = self.function.point[self.i]
        with np.errstate(all="ignore"):
            rise = sum(float(np.sum(w * (b - a), where=w != 0)) for w, a, b in
                       zip(weights, self.values(-behind), self.values(ahead), strict=True))
            moved = np.where(self.u == 0, 0.0, (x + ahead * self.u) - (x - behind * self.u))
            run = float(np.vdot(moved, self.u)) / max(float(np.vdot(self.u, self.u)), 1e-300)
        return rise / run if run else 0.0


def _judge(line, weights, analytic, h, tolerance):
    """("ok", "kink" or "wrong", numeric value) for one direction, by several steps."""
    slopes = [line.slope(weights, s * h, s * h) for s in (100, 10, 1, 0.1, 0.01)]
    gaps = [abs(a - b) for a, b in itertools.pairwise(slopes)]
    best = min(range(4), key=lambda k: gaps[k] if math.isfinite(gaps[k]) else math.inf)
    numeric, gap = slopes[best + 1], gaps[best]
    settled = math.isfinite(gap) and gap <= 1e-4 * abs(numeric) + tolerance
    if settled and abs(analytic - numeric) <= tolerance + 2 * gap:
        return "ok", numeric
    right, left = line.slope(weights, 0.0, 0.1 * h), line.slope(weights, 0.1 * h, 0.0)
    wide = abs(line.slope(weights, 0.0, h) - line.slope(weights, h, 0.0))
    sides = [s for s in (right, left) if math.isfinite(s)]
    if not sides:
        return "kink", numeric
    between = min(sides) - tolerance <= analytic <= max(sides) + tolerance
    if len(sides) == 1:  # the edge of the domain: there is a slope on one side, or it has no limit
        behind, ahead = (0.0, h) if right in sides else (h, 0.0)
        grows = abs(line.slope(weights, 0.01 * behind, 0.01 * ahead)) > 5 * abs(line.slope(weights, behind, ahead))
        return ("kink" if between or grows else "wrong"), sides[0]
    apart = abs(right - left)  # of a smooth function this falls with the step, tenfold from `wide`
    if apart > 10 * tolerance and apart > 0.5 * wide and (between or apart > 5 * wide):
        return "kink", numeric
    jump = abs(slopes[3]) > 5 * abs(slopes[2]) > tolerance and abs(slopes[4]) > 5 * abs(slopes[3])  # no slope at all
    return "kink" if jump else "wrong", numeric


def _random(rng, shape):
    """Numbers of 0.5 to 1.5, of either sign: no element counts for so little that its error would be overlooked."""
    return rng.uniform(0.5, 1.5, shape) * rng.choice([-1.0, 1.0], shape)


def _directions(x, whole, rng):
    """(index, u): one random direction through all finite elements, or each element by itself."""
    if whole:
        if x.size:
            yield None, np.where(np.isfinite(x), _random(rng, x.shape), 0.0)
        return
    for index in np.ndindex(*x.shape):
        u = np.zeros(x.shape)
        u[index] = 1.0
        if np.isfinite(x[index]):
            yield index, u


def _weightings(outs, mode, rng):
    """(label, weights): random numbers for all outputs at once, or each element of each output by itself. Outputs that
    are not finite have no slope and weigh 0."""
    if mode == "projection":
        yield "", [np.where(np.isfinite(o.numpy()), _random(rng, o.shape), 0.0) for o in outs]
        return
    for k, out in enumerate(outs):
        for index in np.ndindex(*out.shape):
            if np.isfinite(out.numpy()[index]):
                weights = [np.zeros(o.shape) for o in outs]
                weights[k][index] = 1.0
                yield f"output {k} at {list(index)} by ", weights


def compare(report, function, eps, atol, rtol, mode, rng):
    """Fill `report` with what the gradients and the slopes of a `Function` are at its point. See `gradcheck`."""
    outs, variables = function(function.point)
    at = [o.numpy() for o in outs]
    if any(not np.array_equal(a, b, equal_nan=True) for a, b in zip(at, function.values(function.point), strict=True)):
        report.fail("gives different results for the same inputs")
        return
    probes = [(label, w, _pull(outs, variables, w)) for label, w in _weightings(outs, mode, rng)]
    for i, (x, name) in enumerate(zip(function.point, function.names, strict=True)):
        for _, _, grads in probes:
            if grads[i] is not None and (grads[i].shape != x.shape or grads[i].dtype != x.dtype):
                report.fail(f"{name} is {x.dtype} of shape {x.shape}, "
                            f"its gradient {grads[i].dtype} of shape {grads[i].shape}")
                return
        todo = list(_directions(x, mode == "projection", rng))
        while todo:
            index, u = todo.pop(0)
            line = _Line(function, at, i, u)
            settled = [_compare_along(report, line, probe, index, name, eps, atol, rtol) for probe in probes]
            if not all(settled):
                todo = list(_directions(x, False, rng))  # something along u: look at each element


def _compare_along(report, line, probe, index, name, eps, atol, rtol):
    """Compare one direction. False if that settles nothing, because a random direction differs somewhere."""
    label, weights, grads = probe
    g = grads[line.i]
    with np.errstate(all="ignore"):
        parts = np.zeros(()) if g is None else np.where(line.u == 0, 0.0, g * line.u)
        analytic, size = float(parts.sum()), float(np.abs(parts).sum())
        numeric = line.slope(weights, eps, eps)
        level = sum(float(np.abs(w * a).sum(where=w != 0)) for w, a in zip(weights, line.at, strict=True))
    noise = 4 * ROUNDING * level / eps
    size = max((abs(s) for s in (size, numeric) if math.isfinite(s)), default=0.0)
    tolerance = atol + rtol * size + noise
    element = Element(label + name, index, analytic, numeric)
    excess = abs(analytic - numeric) / tolerance
    if excess <= 1:
        report.add(element, excess)
        return True
    if index is None:
        return False
    verdict, element.numeric = _judge(line, weights, analytic, eps, atol + rtol * abs(analytic) + noise)
    if verdict == "kink":
        report.kinks += 1
    else:
        off = abs(analytic - element.numeric)
        report.add(element, off / tolerance if math.isfinite(off) else math.inf, verdict == "wrong")
    return True
