"""tinyattn: attention and back-propagation from the inside.

    import tinyattn as ta
    x = ta.Tensor([[1.0, 2.0]], requires_grad=True)
    (x * x).sum().backward()
    x.grad

Where things are: `op.py` (what an op is), `autograd.py` (the backward walk), `ops/` (formulas, loops, rules), `tensor.py`,
`compiler/` (captured steps), `attention/` (one file a mechanism), `nn/`, `models/`, `tasks/`, `workloads/` (what `tinyattn
bench` times). Names below are imported when they are first used, so importing is quick.
"""
import importlib

__version__ = "0.1.0"
_HOMES = {
    "autograd": ["Op", "grad", "no_grad", "enable_grad", "is_grad_enabled", "scope", "capture", "tap", "fused", "detect_anomaly"],
    "tensor": ["Tensor", "get_default_dtype", "set_default_dtype"],
    "device": ["kernel", "get_num_threads", "set_num_threads", "cuda_status", "default_device", "get_default_device",
               "set_default_device"],
    "random": ["manual_seed"],
    "errors": ["InputError"],
    "program": ["Program"],
    "compiler": ["compile"],
    "functional": [
        "from_numpy", "full", "zeros", "ones", "zeros_like", "ones_like", "arange", "eye", "randn", "rand", "randint",
        "where", "maximum", "minimum", "concat", "cat", "stack", "unbind", "embedding", "solve", "linear", "conv1d", "einsum",
        "softmax", "log_softmax", "layer_norm", "dropout", "cross_entropy", "additive_scores"],
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_MODULES = {"attention", "autograd", "compiler", "device", "functional", "gradcheck", "nn", "ops", "optim", "program", "random", "models", "tasks", "train"}
__all__ = list(_HOME_OF)


def __getattr__(name):
    if name in _HOME_OF:
        value = getattr(importlib.import_module(f".{_HOME_OF[name]}", __name__), name)
        globals()[name] = value
        return value
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module 'tinyattn' has no attribute {name!r}")


def __dir__():
    return sorted({*globals(), *_HOME_OF, *_MODULES})
