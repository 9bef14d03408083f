"""Numbers against rules: is the gradient that a rule gives the slope that the function has?

    slope along u  =  (f(x + h u) - f(x - h u)) / 2h        central differences, in float64
    gradcheck      compares <v, slope> with <grad_x <v, f>, u>: one random direction u an input and one random weighting
                   v of the outputs ("projection"), or every element against every element ("full", the whole Jacobian)
    gradgradcheck  the same for the function (x, g) -> gradients that `grad(create_graph=True)` makes
    check_op       both for every sample of an op, and the op's fused loops against its rules

Where the two sides differ, each element is looked at alone and with several steps. A *kink* (relu at 0, a tie) is a
place where the slopes from the left and from the right stay apart however small the step; a gradient between them is right
there.
"""
import itertools

import numpy as np

from .autograd import Op, enable_grad, fused, grad
from .slopes import Element, Function, Report, compare, flat, is_float
from .tensor import Tensor

HEADER = ("what", "checks", "numbers", "kinks", "worst/tolerated", "result")


# ---------------------------------------------------------------------------------------------------------------------
# the ways in
# ---------------------------------------------------------------------------------------------------------------------
def gradcheck(fn, inputs, eps=1e-6, atol=1e-8, rtol=1e-6, mode="projection", rng=0, parameters=None, names=None,
              name=None):
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
    function = Function(fn, inputs, parameters, names)
    with enable_grad():
        try:
            compare(report, function, eps, atol, rtol, mode, np.random.default_rng(rng))
        finally:
            function.restore()
    return report


def gradgradcheck(fn, inputs, eps=1e-6, atol=1e-8, rtol=1e-6, mode="projection", rng=0, parameters=None, names=None,
                  name=None):
    """Check the second derivatives of `fn(*inputs)`: `gradcheck` of the function (inputs, g) -> gradients of the inputs.
    g are random incoming gradients, so the derivatives of the gradients in g are checked too. Arguments as there."""
    rng = np.random.default_rng(rng)
    inputs, parameters = tuple(inputs), dict(parameters or {})
    function = Function(fn, inputs, parameters, names)
    outs, _ = function(function.point)
    function.restore()
    incoming = tuple(rng.normal(size=o.shape) for o in outs)
    names = [*(names or [f"input {i}" for i in range(len(inputs))]), "incoming gradient"]

    def gradients(*arguments):
        *xs, gs = arguments
        outs = [t for t in flat(fn(*xs)) if t.dtype.kind == "f"]
        pairs = [(o, g) for o, g in zip(outs, gs, strict=True) if o.requires_grad]
        wanted = [t for t in flat(xs) if t.requires_grad] + list(parameters.values())
        if not pairs or not wanted:
            return ()
        found = grad([o for o, _ in pairs], wanted, [g for _, g in pairs], create_graph=True, allow_unused=True)
        return [g for g in found if g is not None]

    return gradcheck(gradients, (*inputs, incoming), eps, atol, rtol, mode, rng, parameters, names,
                     name or f"{getattr(fn, '__name__', 'function')}, second order")


def check_function(name, fn, inputs, order=2, seed=0, parameters=None, names=None, mode="projection"):
    """The Reports of gradcheck and, for order 2, of gradgradcheck. Arguments as there."""
    options = {"mode": mode, "rng": seed, "parameters": parameters, "names": names}
    checks = (gradcheck, gradgradcheck)[:order]
    return [check(fn, inputs, name=f"{name} (order {n})", **options) for n, check in enumerate(checks, 1)]


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
            reports.append(_compare_fused(f"{name} (fused)", cls, attributes, inputs, names, seed))
    return reports


def check_all(order=2, seed=0):
    """Yield the reports of every op that has been imported; `check_op` for each in `Op.registry`."""
    for cls in list(Op.registry.values()):
        yield from check_op(cls, order, seed)


def table(reports):
    """Plain rows for printing, `HEADER` first: the reports of one thing ("relu (order 1)", "relu (order 2)") make one
    row, under the part of their name before the first '('."""
    groups = {}
    for r in reports:
        groups.setdefault(r.name.partition("(")[0].strip(), []).append(r)
    rows = [HEADER]
    for name, group in groups.items():
        rows.append((name, str(len(group)), str(sum(r.compared for r in group)), str(sum(r.kinks for r in group)),
                     f"{max(r.excess for r in group):.1e}", "ok" if all(r.ok for r in group) else "WRONG"))
    return rows


# ---------------------------------------------------------------------------------------------------------------------
# fused loops against rules
# ---------------------------------------------------------------------------------------------------------------------
def _compare_fused(name, cls, attributes, inputs, names, seed, tolerance=1e-11):
    """Values against the readable twin; gradients by loops against gradients by rules, for each set of inputs that need
    one and each set of outputs that are used. Both are float64 arithmetic, in another order."""
    report, rng = Report(name), np.random.default_rng(seed)
    floats = [i for i, x in enumerate(inputs) if is_float(x)]
    for some in _subsets(floats):
        outs, wanted = _run("auto", cls, attributes, inputs, some)
        if cls.composed is not None:
            for k, (a, b) in enumerate(zip(outs, _run("never", cls, attributes, inputs, some)[0], strict=True)):
                same(report, f"output {k}", a.numpy(), b.numpy(), tolerance)
        weights = [rng.normal(size=o.shape) for o in outs]
        for keep in _subsets(list(range(len(outs)))):
            used = [(outs[k], Tensor(weights[k])) for k in keep if outs[k].requires_grad]
            if not used:
                continue
            fast, slow = (grad([o for o, _ in used], wanted, [w for _, w in used], create_graph, allow_unused=True)
                          for create_graph in (False, True))
            for i, t, a, b in zip(some, wanted, fast, slow, strict=True):
                a, b = (np.zeros(t.shape) if x is None else x.numpy() for x in (a, b))
                same(report, names[i], a, b, tolerance)
    return report


def _run(mode, cls, attributes, inputs, some):
    """(float outputs, inputs number `some`) of one call in which only those need a gradient."""
    tensors = [None if x is None else Tensor(x) if not is_float(x) else
               Tensor._wrap(np.array(x, np.float64), None, 0, False).requires_grad_(i in some)
               for i, x in enumerate(inputs)]
    with enable_grad(), fused(mode):
        return [t for t in flat(cls(**attributes)(*tensors)) if t.dtype.kind == "f"], [tensors[i] for i in some]


def _subsets(items):
    """All non-empty subsets of up to 3 items; of more, each alone, all but each one, and all."""
    if len(items) <= 3:
        return [s for n in range(1, len(items) + 1) for s in itertools.combinations(items, n)]
    return [(i,) for i in items] + [tuple(j for j in items if j != i) for i in items] + [tuple(items)]


def same(report, what, fast, slow, tolerance, sides="loop (analytic) against rule (numeric)"):
    """Count in a Report whether two arrays agree up to `tolerance`, a share of the largest number, at least of 1."""
    if fast.shape != slow.shape or fast.dtype != slow.dtype:
        report.fail(f"{what}, {sides}: {fast.dtype} of shape {fast.shape} against {slow.dtype} of shape {slow.shape}")
        return
    if fast.dtype.kind != "f":
        fast, slow = fast.astype(np.float64), slow.astype(np.float64)
    with np.errstate(all="ignore"):
        off = np.where((fast == slow) | (np.isnan(fast) & np.isnan(slow)), 0.0, np.abs(fast - slow))
        size = max(1.0, float(np.abs(slow[np.isfinite(slow)]).max(initial=0.0)))
    if off.size:
        at = tuple(int(i) for i in np.unravel_index(np.argmax(np.where(np.isnan(off), np.inf, off)), off.shape))
        excess = float(off[at]) / (tolerance * size)
        report.add(Element(f"{what}, {sides}", at, float(fast[at]), float(slow[at])), excess, not excess <= 1)
