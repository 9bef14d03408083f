"""What every mechanism must satisfy, checked on its own example: read by `tinyattn check` and by the tests.

    parameters  the example has every parameter, in a shape that fits the declared letters
    value       the function equals its slow reference
    weights     masked places get exactly 0; the rest sums to what the mechanism says
    masked      a key that no query may attend to sends no gradient
    empty       a query that may attend to nothing gets weights 0, gives 0 and sends 0; nothing is nan
    causal      under a causal mask no output depends on a later token
    devices     the CPU and the card (or its simulator), where there is one, agree

Each check gives a `gradcheck.Report`. Gradients against finite differences are the business of `gradcheck.py`.
"""
import numpy as np

from .. import device, devicecheck
from ..autograd import capture, grad
from ..gradcheck import Element, Report
from ..tensor import Tensor
from . import mask as masks

TOLERANCE = 1e-9  # of a value against the slow reference, both in float64; relative where the value is above 1
SLACK = 1e-9      # of a sum of weights


def leaves(value, dtype=np.float64, where="cpu"):
    """An example's arrays as Tensors, floats in `dtype` and to be differentiated; lists one by one, settings as they
    are."""
    if isinstance(value, dict):
        return {k: leaves(x, dtype, where) for k, x in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(leaves(x, dtype, where) for x in value)
    if not isinstance(value, (np.ndarray, np.generic)):
        return value
    if value.dtype.kind != "f":
        return Tensor(value, device=where)
    with np.errstate(over="ignore"):
        return Tensor(np.asarray(value, dtype), requires_grad=True, device=where)


def outputs_of(result):
    """The float Tensors in a result, in order."""
    if isinstance(result, dict):
        result = list(result.values())
    if isinstance(result, (tuple, list)):
        return [t for part in result for t in outputs_of(part)]
    return [result] if isinstance(result, Tensor) and result.dtype.kind == "f" else []


def sum_of_squares(outs):
    """One number made of all outputs that have a gradient: of a plain sum the gradients could be constants, which are
    not recorded."""
    squares = [(t * t).sum() for t in outs if t.requires_grad]
    return sum(squares[1:], squares[0])


def check(variant, arrays):
    """The Reports on one mechanism with these inputs (a dictionary, as from `example`)."""
    result = variant(**leaves(arrays))
    outs = outputs_of(result)
    if not outs or not outs[0].size or not outs[0].ndim:
        report = _report(variant, "result")
        report.fail("expected a float Tensor with something in it, sequences on its first axis, got "
                    + (f"shape {outs[0].shape}" if outs else type(result).__name__))
        return [report]
    checks = [parameters, value]
    if "mask" in variant.arguments and isinstance(arrays.get("mask"), np.ndarray):
        checks += [weights, masked, empty]
    elif "return_weights" in variant.arguments:
        checks += [weights]
    checks += [causal] * variant.causal + [devices] * (device.cuda_status() != "absent")
    return [one(variant, arrays) for one in checks]


def _report(variant, what):
    return Report(f"attention {variant.name} ({what})")


def _compare(report, got, want, what, tolerance=TOLERANCE):
    """Add the worst difference of two arrays to the report."""
    got, want = np.asarray(got), np.asarray(want)
    if got.shape != want.shape:
        report.fail(f"{what}: the shapes are {got.shape} and {want.shape}")
        return
    if got.size == 0:
        return
    off = np.nan_to_num(np.abs(got - want), nan=np.inf) / np.maximum(1.0, np.abs(want))
    at = tuple(int(i) for i in np.unravel_index(np.argmax(off), off.shape))
    report.add(Element(what, at, float(got[at]), float(want[at])), float(off[at]) / tolerance, not off[at] <= tolerance)


def _zero(report, array, what):
    """Add that an array is 0 throughout, exactly."""
    bad = np.argwhere(~(array == 0))
    at = tuple(int(i) for i in bad[0]) if len(bad) else None
    report.add(Element(what, at, float(array[at]) if at is not None else 0.0, 0.0), float(len(bad) > 0), len(bad) > 0)


# ---------------------------------------------------------------------------------------------------------------------
# the checks
# ---------------------------------------------------------------------------------------------------------------------
def parameters(variant, arrays):
    """The example's parameters have the shapes that `params` declares: one length a letter."""
    report, sizes = _report(variant, "parameters"), {}
    for name, letters in variant.letters().items():
        if arrays.get(name) is None:
            if name in variant.params and name not in arrays:
                report.fail(f"its example has no parameter {name}")
            continue
        shape, said = np.shape(arrays[name]), f"({', '.join(letters)})"
        fits = len(shape) == len(letters) and all(sizes.setdefault(letter, n) == n for letter, n in zip(letters, shape))
        if not fits:
            known = ", ".join(f"{letter} = {n}" for letter, n in sizes.items() if letter in letters)
            report.fail(f"parameter {name} is declared as {said}, its example has shape {shape}"
                        + (f" where {known}" if known else ""))
        report.add(Element(f"shape of {name}", None, len(shape), len(letters)), 0.0 if fits else 2.0, not fits)
    return report


def value(variant, arrays):
    """The function against its slow reference, in float64."""
    report = _report(variant, "value against reference")
    if variant.part("reference") is None:  # said, not hidden: the report counts nothing
        report.reason = "its file has no reference(...), a slow twin in NumPy loops; values were not compared"
        return report
    got = [t.numpy() for t in outputs_of(variant(**leaves(arrays)))]
    want = variant.part("reference")(**arrays)
    want = list(want) if isinstance(want, (tuple, list)) else [want]
    if len(got) != len(want):
        report.fail(f"the function gives {len(got)} arrays, its reference {len(want)}")
    for i, (a, b) in enumerate(zip(got, want, strict=False)):
        output = f", output {i}" if len(got) > 1 else ""
        _compare(report, a, b, "function (analytic) against reference (numeric)" + output)
    return report


def _seen(variant, inputs):
    """(outputs, tapped weights)."""
    with capture() as taps:
        outs = outputs_of(variant(**inputs))
    return outs, [w.numpy() for w in taps["weights"]] if "weights" in taps else []


def allowed_places(mask, weights):
    """A mask (T, S), (B, 1, S) or (B, T, S) broadcast to weights (..., T, S), which may have axes between B and T."""
    mask = np.asarray(mask)
    while 2 < mask.ndim < weights.ndim:
        mask = mask[:, None]
    return np.broadcast_to(mask, weights.shape)


def weights(variant, arrays):
    """Masked places get exactly 0, the weights of a query sum to what the mechanism declares, none is nan."""
    report = _report(variant, "weights")
    _, seen = _seen(variant, leaves(arrays))
    if not seen:
        report.fail("it taps no \"weights\"; let `weigh` do it, or `show`")
    for w in seen:
        allowed = np.ones(w.shape, bool)
        if "mask" in variant.arguments and isinstance(arrays.get("mask"), np.ndarray):
            allowed = allowed_places(arrays["mask"], w)
            _zero(report, w[~allowed], "weight of a masked key")
        if variant.sums is None:
            _zero(report, np.isnan(w), "weights that are nan")
            continue
        low, high = variant.sums if isinstance(variant.sums, tuple) else (variant.sums, variant.sums)
        for total in np.unique(w.sum(-1)[allowed.any(-1)]):
            ok = low - SLACK <= total <= high + SLACK
            report.add(Element("sum of a query's weights", None, float(total), float(low)), 0.0 if ok else 2.0, not ok)
    return report


def _key_gradients(variant, inputs, out, g):
    keys = [name for name in variant.keys if isinstance(inputs.get(name), Tensor) and inputs[name].requires_grad]
    found = grad([out], [inputs[k] for k in keys], [Tensor(g)], allow_unused=True)
    return {k: np.zeros(inputs[k].shape) if x is None else x.numpy() for k, x in zip(keys, found, strict=True)}


def _is_per_token(variant, out, inputs):
    return any(k in ("x",) and out.ndim > 2 and out.shape[:2] == inputs[k].shape[:2] for k in variant.keys)


def masked(variant, arrays):
    """Keys that no query may attend to send no gradient; in self-attention, to the outputs of the other tokens."""
    report = _report(variant, "masked keys send nothing")
    inputs = leaves(arrays)
    for out in outputs_of(variant(**inputs))[:1]:
        first = inputs[variant.keys[0]]
        B, S = first.shape[:2]
        mask = np.broadcast_to(arrays["mask"], (B, *np.broadcast_shapes(arrays["mask"].shape[-2:], (1, S))))
        dead = ~mask.any(1)                                                # (B, S)
        if not dead.any():
            report.fail("its example masks no key altogether; let `mask` forbid one key to every query")
        g = np.random.default_rng(1).normal(size=out.shape)
        if _is_per_token(variant, out, inputs):
            g[dead] = 0
        for name, x in _key_gradients(variant, inputs, out, g).items():
            _zero(report, x[dead], f"gradient of {name} at a masked key")
            if not np.abs(x[~dead]).max(initial=0) > 0:
                report.fail(f"the gradient of {name} is 0 at every key that may be attended to")
    return report


def empty(variant, arrays):
    """With nothing to attend to in the first sequence: weights 0, finite outputs and gradients; 0 if `empty`."""
    report = _report(variant, "nothing to attend to")
    batch = len(arrays[variant.keys[0]])
    closed = np.broadcast_to(arrays["mask"], np.broadcast_shapes(arrays["mask"].shape, (batch, 1, 1)))
    closed = np.array(closed)
    closed[0] = False
    inputs = leaves({**arrays, "mask": closed})
    outs, seen = _seen(variant, inputs)
    for w in seen:
        _zero(report, w[0], "weight of a query that may attend to nothing")
    for out in outs[:1]:
        _zero(report, ~np.isfinite(out.numpy()), "outputs that are not finite")
        if variant.empty:
            _zero(report, out.numpy()[0], "output of a query that may attend to nothing")
        g = np.random.default_rng(2).normal(size=out.shape)
        for name, x in _key_gradients(variant, inputs, out, g).items():
            _zero(report, ~np.isfinite(x), f"gradients of {name} that are not finite")
            if variant.empty:
                _zero(report, x[0], f"gradient of {name} where nothing may be attended to")
    return report


def causal(variant, arrays):
    """Output row t, under a causal mask, sends no gradient to token s > t."""
    report = _report(variant, "causal, nothing leaks")
    inputs = leaves(arrays)
    name = variant.keys[-1]
    T = inputs[name].shape[1]
    if "mask" in variant.arguments:
        inputs["mask"] = masks.causal(T)
    out = outputs_of(variant(**inputs))[0]
    rng = np.random.default_rng(3)
    for t in range(T):
        g = np.zeros(out.shape)
        g[:, t] = rng.normal(size=g[:, t].shape)
        for key, x in _key_gradients(variant, inputs, out, g).items():
            _zero(report, x[:, t + 1:], f"gradient of {key} at tokens after the query's, token {t}")
    return report


def devices(variant, arrays):
    """Values, gradients and second derivatives on the card, or in its simulator, equal those of the CPU. (In float64.)"""
    inputs = leaves(arrays, where="cpu")

    def call(*values):
        return outputs_of(variant(**dict(zip(inputs, values, strict=True))))

    name = _report(variant, f"cpu against cuda, {device.cuda_status()}").name
    return devicecheck.check_function(name, call, list(inputs.values()), names=list(inputs))


def _tensors(value):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [t for part in value for t in _tensors(part)]
    return [value] if isinstance(value, Tensor) else []
