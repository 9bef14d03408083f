"""Numbers against rules: is the gradient that a rule gives the slope that the function has?

    slope along u  =  (f(x + h u) - f(x - h u)) / 2h        central differences, in float64
    gradcheck      compares <v, slope> with <grad_x <v, f>, u>: one random direction u an input and one random weighting v of
                   the outputs ("projection"), or every element against every element ("full", the whole Jacobian)
    gradgradcheck  the same for the function (x, g) -> gradients that `grad(create_graph=True)` makes
    check_op       both for every sample of an op, and the op's fused loops against its rules

Where the two sides differ, each element is looked at alone and with several steps. A *kink* (|x| at 0, a tie) is a place
where the slopes from the left and from the right stay apart however small the step; a gradient between the two is right there.
"""
import itertools
import math
from dataclasses import dataclass

import numpy as np

from .autograd import Op, changed, enable_grad, fused, grad
from .tensor import Tensor

ROUNDING = 2.0 ** -52
HEADER = ("what", "checks", "numbers", "kinks", "worst/tolerated", "result")


# ---------------------------------------------------------------------------------------------------------------------
# what comes out
# ---------------------------------------------------------------------------------------------------------------------
@dataclass
class Element:
    """One comparison. `index` is the place in the input; None for a whole random direction."""
    where: str
    index: tuple | None
    analytic: float
    numeric: float

    @property
    def relative(self):
        """|analytic - numeric| over the larger of the two."""
        return _ratio(abs(self.analytic - self.numeric), max(abs(self.analytic), abs(self.numeric)))

    def __str__(self):
        at = " along a random direction" if self.index is None else f" at {list(self.index)}"
        return (f"{self.where}{at}: analytic {self.analytic:.8g}, numeric {self.numeric:.8g}, "
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


def table(reports):
    """Plain rows for printing, `HEADER` first: the reports of one thing ("softmax(axis=0) ...", "softmax(...) ...") make one
    row, under the part of their name before the first '('."""
    groups = {}
    for r in reports:
        groups.setdefault(r.name.partition("(")[0].strip(), []).append(r)
    rows = [HEADER]
    for name, group in groups.items():
        rows.append((name, str(len(group)), str(sum(r.compared for r in group)), str(sum(r.kinks for r in group)),
                     f"{max(r.excess for r in group):.1e}", "ok" if all(r.ok for r in group) else "WRONG"))
    return rows


def _ratio(a, b):
    return a / b if b else (math.inf if a else 0.0)


# ---------------------------------------------------------------------------------------------------------------------
# a function of Tensors as one of float64 arrays
# ---------------------------------------------------------------------------------------------------------------------
class _Function:
    """fn(*inputs) with its float inputs and `parameters` as one list of arrays, `point`. Everything else is data."""

    def __init__(self, fn, inputs, parameters, names):
        self.fn, self.inputs, self.parameters = fn, tuple(inputs), dict(parameters or {})
        self.before = [t.array for t in self.parameters.values()]
        self.point, self.names = [], []
        for i, x in enumerate(self.inputs):
            self._collect(x, names[i] if names else f"input {i}")
        for name, t in self.parameters.items():
            if t.dtype != np.float64 or not t.requires_grad:
                raise TypeError(f"gradcheck: expected parameter {name} to be float64 and to require a gradient, got {t.dtype}; "
                                "use module.to('float64')")
            self.point.append(np.array(t.numpy()))
            self.names.append(f"parameter {name}")

    def _collect(self, x, name):
        if isinstance(x, (tuple, list)):
            for i, part in enumerate(x):
                self._collect(part, f"{name}.{i}")
        elif _is_float(x):
            self.point.append(np.array(x.numpy() if isinstance(x, Tensor) else x, np.float64))  # keeps the memory's order
            self.names.append(name)

    def __call__(self, arrays):
        """(float outputs, the Tensors that stand for `arrays`), recorded."""
        todo = iter(arrays[:len(arrays) - len(self.parameters)])
        variables = []

        def build(x):
            if isinstance(x, (tuple, list)):
                return type(x)(build(part) for part in x)
            if _is_float(x):
                variables.append(Tensor._wrap(next(todo), None, 0, False).requires_grad_())
                return variables[-1]
            return Tensor(x) if isinstance(x, np.ndarray) else x

        inputs = [build(x) for x in self.inputs]
        self._put(arrays[len(variables):])
        with enable_grad():
            outs = [t for t in _flat(self.fn(*inputs)) if t.dtype.kind == "f"]
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


def _is_float(x):
    if isinstance(x, (Tensor, np.ndarray, np.floating)):
        return x.dtype.kind == "f"
    return False


def _flat(result):
    """The Tensors in a result that may be nested."""
    if isinstance(result, Tensor):
        return [result]
    if isinstance(result, dict):
        result = list(result.values())
    return [t for part in result for t in _flat(part)] if isinstance(result, (list, tuple)) else []


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
            arrays[self.i] = np.add(arrays[self.i], t * self.u, out=np.empty_like(arrays[self.i]))  # in the same memory order
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
        one = [line.slope(weights, 0.0, s * h) if right in sides else line.slope(weights, s * h, 0.0) for s in (1, 0.01)]
        return ("kink" if between or abs(one[1]) > 5 * abs(one[0]) else "wrong"), sides[0]
    apart = abs(right - left)  # of a smooth function this falls with the step, tenfold from `wide`
    if apart > 10 * tolerance and apart > 0.5 * wide and (between or apart > 5 * wide):
        return "kink", numeric
    if abs(slopes[3]) > 5 * abs(slopes[2]) > tolerance and abs(slopes[4]) > 5 * abs(slopes[3]):  # a jump: no slope at all
        return "kink", numeric
    return "wrong", numeric


def _random(rng, shape):
    """Numbers between 0.5 and 1.5, of either sign: no element counts for so little that its error would be overlooked."""
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
    """(label, weights): random numbers for all outputs at once, or each element of each output by itself. Outputs that are
    not finite have no slope and weigh 0."""
    if mode == "projection":
        yield "", [np.where(np.isfinite(o.numpy()), _random(rng, o.shape), 0.0) for o in outs]
        return
    for k, out in enumerate(outs):
        for index in np.ndindex(*out.shape):
            if np.isfinite(out.numpy()[index]):
                weights = [np.zeros(o.shape) for o in outs]
                weights[k][index] = 1.0
                yield f"output {k} at {list(index)} by ", weights


def _compare(report, function, eps, atol, rtol, mode, rng):
    outs, variables = function(function.point)
    at = [o.numpy() for o in outs]
    if any(not np.array_equal(a, b, equal_nan=True) for a, b in zip(at, function.values(function.point), strict=True)):
        report.fail("gives different results for the same inputs")
        return
    probes = [(label, w, _pull(outs, variables, w)) for label, w in _weightings(outs, mode, rng)]
    for i, (x, name) in enumerate(zip(function.point, function.names, strict=True)):
        for _, _, grads in probes:
            if grads[i] is not None and (grads[i].shape != x.shape or grads[i].dtype != x.dtype):
                report.fail(f"{name} is {x.dtype} of shape {x.shape}, its gradient {grads[i].dtype} of shape {grads[i].shape}")
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
    tolerance = atol + rtol * max(abs(numeric) if math.isfinite(numeric) else 0.0, size if math.isfinite(size) else 0.0) + noise
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


# ---------------------------------------------------------------------------------------------------------------------
# the ways in
# ---------------------------------------------------------------------------------------------------------------------
def gradcheck(fn, inputs, eps=1e-6, atol=1e-8, rtol=1e-6, mode="projection", rng=0, parameters=None, names=None, name=None):
    """Compare the gradients of `fn(*inputs)` with central differences in float64; returns a Report.

    fn          takes Tensors, gives a Tensor or a tuple, list or dictionary of them; the same result at each call
    inputs      NumPy arrays, Tensors, or tuples of them; floats are copied to float64 and varied, all else is data
    eps         the step; where the numbers differ, steps from 100 eps to eps / 100 are tried
    atol, rtol  a difference up to atol + rtol * size, plus the rounding error of the values themselves, is accepted
    mode        "projection": one random direction an input, then each element if that differs; "full": the Jacobian
    rng         a seed or a NumPy Generator
    parameters  {name: float64 Tensor} that fn uses beside its inputs, such as dict(module.named_parameters())
    names       a name an input, for the report
    """
    if mode not in ("projection", "full"):
        raise ValueError(f"gradcheck: expected mode 'projection' or 'full', got {mode!r}")
    report = Report(name or getattr(fn, "__name__", "function"))
    function = _Function(fn, inputs, parameters, names)
    with enable_grad():
        try:
            _compare(report, function, eps, atol, rtol, mode, np.random.default_rng(rng))
        finally:
            function.restore()
    return report


def gradgradcheck(fn, inputs, eps=1e-6, atol=1e-8, rtol=1e-6, mode="projection", rng=0, parameters=None, names=None, name=None):
    """Check the second derivatives of `fn(*inputs)`: `gradcheck` of the function (inputs, g) -> gradients of the inputs, where
    g are random incoming gradients. So the derivatives of the gradients in g are checked too. Arguments as there."""
    rng = np.random.default_rng(rng)
    inputs, parameters = tuple(inputs), dict(parameters or {})
    function = _Function(fn, inputs, parameters, names)
    outs, _ = function(function.point)
    function.restore()
    incoming = tuple(rng.normal(size=o.shape) for o in outs)
    names = [*(names or [f"input {i}" for i in range(len(inputs))]), "incoming gradient"]

    def gradients(*arguments):
        *xs, gs = arguments
        outs = [t for t in _flat(fn(*xs)) if t.dtype.kind == "f"]
        pairs = [(o, g) for o, g in zip(outs, gs, strict=True) if o.requires_grad]
        wanted = [t for t in _flat(xs) if t.requires_grad] + list(parameters.values())
        if not pairs or not wanted:
            return ()
        found = grad([o for o, _ in pairs], wanted, [g for _, g in pairs], create_graph=True, allow_unused=True)
        return [g for g in found if g is not None]

    return gradcheck(gradients, (*inputs, incoming), eps, atol, rtol, mode, rng, parameters, names,
                     name or f"{getattr(fn, '__name__', 'function')}, second order")


def check_function(name, fn, inputs, order=2, seed=0, parameters=None, names=None, mode="projection"):
    """[Report] or, for order 2, [Report, Report] of gradcheck and gradgradcheck."""
    options = {"mode": mode, "rng": seed, "parameters": parameters, "names": names}
    reports = [gradcheck(fn, inputs, name=f"{name}, order 1" if "(" in name else f"{name} (order 1)", **options)]
    if order > 1:
        reports.append(gradgradcheck(fn, inputs, name=f"{name}, order 2" if "(" in name else f"{name} (order 2)", **options))
    return reports


def check_op(cls, order=2, seed=0, mode="projection"):
    """Reports for every sample of an op: gradients, second derivatives, and its fused loops against its rules."""
    reports = []
    for number, (attributes, inputs) in enumerate(cls.samples(np.random.default_rng(seed))):
        shapes = ", ".join("-" if x is None else "x".join(map(str, np.shape(x))) or "1" for x in inputs)
        name = f"{cls.name} (sample {number}: {shapes})"
        names = [f"{cls.input_names[0]}{i}" for i in range(len(inputs))] if cls.variadic else list(cls.input_names)

        def call(*tensors, attributes=attributes):
            return cls(**attributes)(*tensors)

        reports += check_function(name, call, inputs, order, seed, None, names, mode)
        if any(part is not None for part in (cls.cpu_grad, cls.accumulate, cls.composed)):
            reports.append(_compare_fused(f"{name}, fused", cls, attributes, inputs, names, seed))
    return reports


def check_all(order=2, seed=0):
    """Yield the reports of every op that has been imported; `check_op` for each in `Op.registry`."""
    for cls in list(Op.registry.values()):
        yield from check_op(cls, order, seed)


# ---------------------------------------------------------------------------------------------------------------------
# fused loops against rules
# ---------------------------------------------------------------------------------------------------------------------
def _compare_fused(name, cls, attributes, inputs, names, seed, tolerance=1e-11):
    """Values against the readable twin; gradients by loops against gradients by rules, for each set of inputs that need one
    and for each output alone. Both are float64 arithmetic, in another order."""
    report, rng = Report(name), np.random.default_rng(seed)
    floats = [i for i, x in enumerate(inputs) if _is_float(x)]
    for some in _subsets(floats):
        def run(mode, some=some):
            tensors = [None if x is None else Tensor(x) if not _is_float(x) else
                       Tensor._wrap(np.array(x, np.float64), None, 0, False).requires_grad_(i in some) for i, x in enumerate(inputs)]
            with enable_grad(), fused(mode):
                return [t for t in _flat(cls(**attributes)(*tensors)) if t.dtype.kind == "f"], [tensors[i] for i in some]
        outs, wanted = run("auto")
        if cls.composed is not None:
            for k, (a, b) in enumerate(zip(outs, run("never")[0], strict=True)):
                _same(report, f"output {k}", a.numpy(), b.numpy(), tolerance)
        weights = [rng.normal(size=o.shape) for o in outs]
        for keep in _subsets(list(range(len(outs)))):
            used = [(outs[k], Tensor(weights[k])) for k in keep if outs[k].requires_grad]
            if not used or not wanted:
                continue
            fast, slow = (grad([o for o, _ in used], wanted, [w for _, w in used], create_graph, allow_unused=True)
                          for create_graph in (False, True))
            for i, a, b in zip(some, fast, slow, strict=True):
                zero = np.zeros(wanted[0].shape if a is None and b is None else (a if b is None else b).shape)
                _same(report, names[i], zero if a is None else a.numpy(), zero if b is None else b.numpy(), tolerance)
    return report


def _subsets(items):
    """All non-empty subsets of up to 3 items; of more, each alone, all but each one, and all."""
    if len(items) <= 3:
        return [s for n in range(1, len(items) + 1) for s in itertools.combinations(items, n)]
    return [(i,) for i in items] + [tuple(j for j in items if j != i) for i in items] + [tuple(items)]


def _same(report, what, fast, slow, tolerance):
    if fast.shape != slow.shape or fast.dtype != slow.dtype:
        report.fail(f"{what}: the loop gives {fast.dtype} of shape {fast.shape}, the rule {slow.dtype} of shape {slow.shape}")
        return
    with np.errstate(all="ignore"):
        off = np.where((fast == slow) | (np.isnan(fast) & np.isnan(slow)), 0.0, np.abs(fast - slow))
        size = max(1.0, float(np.abs(slow[np.isfinite(slow)]).max(initial=0.0)))
    if off.size:
        at = tuple(int(i) for i in np.unravel_index(np.argmax(np.where(np.isnan(off), np.inf, off)), off.shape))
        excess = float(off[at]) / (tolerance * size)
        report.add(Element(f"{what}, loop (analytic) against rule (numeric)", at, float(fast[at]), float(slow[at])), excess,
                   not excess <= 1)
