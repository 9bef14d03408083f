"""The CPU against a card (or its simulator): does a function give the same on both?

    values                     what the function gives
    gradients by kernels       as `backward()` computes them, with `cpu_grad` and `cuda_grad` where an op has them
    gradients by rules         as they are recorded
    second derivatives         of a fixed combination of those

Everything is computed once on each device from the same numbers. Finite differences, which say whether a gradient is
right at all, are the business of `gradcheck.py`, on the CPU.
"""
import numpy as np

from .autograd import enable_grad, grad
from .device import default_device
from .gradcheck import same
from .ops.transfer import Transfer
from .slopes import Report, flat, is_float
from .tensor import Tensor

TOLERANCE = {"float64": 1e-11, "float32": 2e-5}  # of the largest number in what is compared, at least 1
CARD = "on the card (analytic) against the cpu (numeric)"


def check_function(name, fn, inputs, dtype="float64", seed=0, names=None, module=None):
    """Report on `fn(*inputs)` on both devices.

    inputs   Tensors, or tuples and dictionaries of them: moved, floats taken in `dtype` and differentiated; what is no
             Tensor is handed on as it is
    names    a name an input, for the report
    module   a module whose parameters `fn` uses beside its inputs; it is moved, and comes back to the CPU
    """
    report = Report(name)
    try:
        here, there = (_results(where, fn, inputs, dtype, seed, names, module, report) for where in ("cpu", "cuda"))
    finally:
        if module is not None:
            module.to("cpu")
    if here.keys() != there.keys():
        report.fail(f"on one device only: {', '.join(sorted(here.keys() ^ there.keys()))}")
    for what in here.keys() & there.keys():
        same(report, what, there[what], here[what], TOLERANCE[dtype], CARD)
    return report


def check_op(cls, dtype="float64", seed=0):
    """A Report for every sample of an op."""
    reports = []
    if cls is Transfer:  # it moves what it is given
        return reports
    for number, (attributes, inputs) in enumerate(cls.samples(np.random.default_rng(seed))):
        names = [f"{cls.input_names[0]}{i}" for i in range(len(inputs))] if cls.variadic else list(cls.input_names)

        def call(*tensors, attributes=attributes):
            return cls(**attributes)(*tensors)

        tensors = [None if x is None else Tensor(np.asarray(x)) for x in inputs]
        reports.append(check_function(f"{cls.name} (sample {number})", call, tensors, dtype, seed, names))
    return reports


def _results(where, fn, inputs, dtype, seed, names, module, report):
    """{what: array} on one device."""
    if module is not None:
        module.to(where)
    with default_device(where), enable_grad():
        inputs = [_placed(x, dtype) for x in inputs]
        outs = list(flat(fn(*inputs)))
        found = {f"output {k}": out for k, out in enumerate(outs)}
        labels = [(names[i] if names else f"input {i}", t) for i, x in enumerate(inputs) for t in _leaves(x)]
        labels += list(module.named_parameters()) if module is not None else []
        wanted = [t for _, t in labels]
        ends, rng = [out for out in outs if out.requires_grad], np.random.default_rng(seed)
        if ends and wanted:
            g = [Tensor(rng.normal(size=out.shape), dtype=out.dtype) for out in ends]
            fast = grad(ends, wanted, g, allow_unused=True)
            slow = grad(ends, wanted, g, create_graph=True, allow_unused=True)
            probes = [Tensor(rng.normal(size=x.shape), dtype=x.dtype) for x in wanted]
            parts = [(a * p).sum() for a, p in zip(slow, probes, strict=True) if a is not None and a.requires_grad]
            second = grad(sum(parts[1:], parts[0]), wanted, allow_unused=True) if parts else [None] * len(wanted)
            for kind, grads in (("gradient of", fast), ("by rules, gradient of", slow), ("second derivative in", second)):
                found |= {f"{kind} {label} ({i})": t for i, ((label, _), t) in enumerate(zip(labels, grads, strict=True))
                          if t is not None}
        strange = sorted(what for what, t in found.items() if t.device != where)
        if strange:
            report.fail(f"computed elsewhere than on {where!r}: {', '.join(strange)}")
        return {what: t.numpy() for what, t in found.items()}


def _placed(x, dtype):
    """Tensors anew, on the default device."""
    if isinstance(x, dict):
        return {k: _placed(part, dtype) for k, part in x.items()}
    if isinstance(x, (list, tuple)):
        return type(x)(_placed(part, dtype) for part in x)
    if not isinstance(x, Tensor):
        return x
    with np.errstate(over="ignore"):
        return Tensor(x.numpy().astype(dtype), requires_grad=True) if is_float(x) else Tensor(x.numpy())


def _leaves(x):
    if isinstance(x, dict):
        x = list(x.values())
    if isinstance(x, (list, tuple)):
        return [t for part in x for t in _leaves(part)]
    return [x] if isinstance(x, Tensor) and x.requires_grad else []
