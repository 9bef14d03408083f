"""Module: a layer or a model, that is a function with parameters.

Write a class with parameters and parts as plain attributes, and `forward`; there is no `super().__init__()` to call:

    class Score(Module):
        def __init__(self, width):
            self.query = Linear(width, width)                   # a part
            self.v = Parameter(init.uniform((width,), 0.1))     # a parameter

        def forward(self, q):
            return self.query(q).tanh() @ self.v

What counts, as an attribute or inside lists, tuples and dictionaries that are attributes:
    parameter   a leaf Tensor with requires_grad=True
    constant    a leaf Tensor without: a frozen parameter, a table. Saved and moved with the parameters, not trained;
                left out of `state_dict` if its attribute begins with an underscore
    part        a Module

A Tensor that is reached in two ways (tied weights) is one parameter: counted, saved and stepped once, under the first
name.
"""
import numpy as np

from .. import random
from ..autograd import changed, no_grad, scope
from ..tensor import Tensor, get_default_dtype

SCALARS = (str, bytes, int, float, type(None))


def Parameter(array, name="", dtype=None):
    """A Tensor that is trained: requires_grad=True, of the default dtype unless `dtype` says otherwise."""
    return Tensor(array, requires_grad=True, dtype=dtype or get_default_dtype(), name=name)


class Module:
    """A function with parameters. A subclass gives `forward`, and is called as `module(...)`. See the file's head.

    training   True in training, False in use: `train()` and `eval()` set it for all parts
    null       names of parameters whose gradient is zero by nature, such as a key bias under softmax
    example    of a subclass: static, `example(rng)` gives (module, inputs), small and with Tensors or integer arrays as
               inputs, so that module(*inputs) is the same at every call. Checks and tests run on it, see `example_of`
    """
    training = True
    null = ()
    registry = {}  # "nn.layers.Linear" -> the class, for all modules of the package
    _label = None  # the name in the parent

    def __init_subclass__(cls, abstract=False, **options):
        super().__init_subclass__(**options)
        if cls.__module__.startswith("tinyattn.") and not abstract:
            if "example" not in cls.__dict__:
                raise TypeError(f"{cls.__name__}: a module of the package needs `example(rng)`, to be checked on")
            Module.registry[f"{cls.__module__.removeprefix('tinyattn.')}.{cls.__name__}"] = cls

    def __call__(self, *inputs, **options):
        """Run `forward` in a scope of the module's name, so that pictures show it as a box."""
        with scope(self._label or type(self).__name__):
            return self.forward(*inputs, **options)

    def forward(self, *inputs, **options):
        raise NotImplementedError(f"{type(self).__name__}: a module needs `forward`, what it computes from its inputs")

    def __setattr__(self, attribute, value):
        """Keep the attribute, and tell parameters and parts their names: `encoder.gru.bias_ih_l0` grows from within."""
        object.__setattr__(self, attribute, value)
        for name, part in _items(attribute, value):
            if isinstance(part, Module):
                if part._label is None:
                    object.__setattr__(part, "_label", name)
                for inner, t in part.named_tensors():
                    if t.name == inner:
                        t.name = f"{name}.{inner}"
            elif not part.name:
                part.name = name

    # -- what it is made of ------------------------------------------------------------------------------------------
    def _members(self, above=()):
        """(dotted name, leaf Tensor) for all Tensors, in order of definition; a tied one comes with all its names."""
        for attribute, value in list(vars(self).items()):
            for name, part in _items(attribute, value):
                if not isinstance(part, Module):
                    yield name, part
                elif part is not self and part not in above:
                    for inner, t in part._members((*above, self)):
                        yield f"{name}.{inner}", t

    def named_modules(self):
        """(dotted name, Module) for this module (named "") and all parts, each once."""
        seen, todo = set(), [("", self)]
        while todo:
            path, module = todo.pop(0)
            if id(module) in seen:
                continue
            seen.add(id(module))
            yield path, module
            parts = [item for a, v in vars(module).items() for item in _items(a, v) if isinstance(item[1], Module)]
            todo[:0] = [(f"{path}.{name}" if path else name, part) for name, part in parts]

    def modules(self):
        """This module and all its parts, each once."""
        return (module for _, module in self.named_modules())

    def named_tensors(self):
        """(dotted name, Tensor) for parameters and constants, each Tensor once, under its first name."""
        seen = set()
        for name, t in self._members():
            if id(t) not in seen:
                seen.add(id(t))
                yield name, t

    def named_parameters(self):
        """(dotted name, Tensor) for what is trained, each once."""
        return ((name, t) for name, t in self.named_tensors() if t.requires_grad)

    def parameters(self):
        """The Tensors that are trained, each once."""
        return (t for _, t in self.named_parameters())

    # -- changing all of it ------------------------------------------------------------------------------------------
    def train(self, training=True):
        """Set `training` here and in all parts; returns the module."""
        for module in self.modules():
            module.training = bool(training)
        return self

    def eval(self):
        """No dropout from here on: `training` is False here and in all parts; returns the module."""
        return self.train(False)

    def zero_grad(self):
        """Forget the gradients."""
        for t in self.parameters():
            t.grad = None

    def to(self, target):
        """Move all floats to another dtype (float32, float64), or all Tensors to a device; returns the module.

        The Tensors stay the same objects with other memory, so tied weights stay tied and an optimiser keeps its hold.
        """
        is_device = isinstance(target, str) and target in ("cpu", "cuda")
        if not is_device and np.dtype(target) not in (np.float32, np.float64):
            raise TypeError(f"{type(self).__name__}.to: expected float32, float64, 'cpu' or 'cuda', got {target!r}")
        with no_grad():
            for _, t in self.named_tensors():
                if not is_device and t.dtype.kind != "f":
                    continue
                moved = t.to(target)
                if moved is not t:
                    t.array = moved.array
                    changed(t, anew=True)
                    t.grad = None if t.grad is None else t.grad.to(target)
        return self

    # -- saving ------------------------------------------------------------------------------------------------------
    def state_dict(self):
        """{dotted name: NumPy array} of all parameters and constants, as copies."""
        return {name: np.array(t.numpy()) for name, t in self.named_tensors() if _is_saved(name, t)}

    def load_state_dict(self, state, strict=True):
        """Put back what `state_dict` gave; arrays are converted to each Tensor's dtype. Nothing changes if it raises.

        state     {dotted name: NumPy array}. A tied Tensor may come under any of its names, under several if they agree
        strict    raise ValueError also for names that are missing or unexpected
        Returns the lists (missing, unexpected), both empty where strict. ValueError names what does not fit.
        """
        names = {name: t for name, t in self._members() if _is_saved(name, t)}
        came = {id(names[name]) for name in state if name in names}
        missing = [name for name, t in self.named_tensors() if _is_saved(name, t) and id(t) not in came]
        unexpected = [name for name in state if name not in names]
        found = {name: np.asarray(state[name]) for name in names if name in state}
        wrong = [f"{name} has shape {names[name].shape}, got {a.shape}" for name, a in found.items()
                 if a.shape != names[name].shape]
        wrong += [f"{name} is {names[name].dtype}, got {a.dtype}" for name, a in found.items()
                  if a.dtype.kind not in ("fiu" if names[name].dtype.kind == "f" else names[name].dtype.kind)]
        wrong += _disagreements(names, found) if not wrong else []
        if strict:
            wrong += [f"missing {', '.join(missing)}"] * bool(missing)
            wrong += [f"unexpected {', '.join(unexpected)}"] * bool(unexpected)
        if wrong:
            raise ValueError(f"{type(self).__name__}.load_state_dict: {'; '.join(wrong)}")
        for name, array in found.items():
            _overwrite(names[name], array)
        return missing, unexpected

    # -- showing -----------------------------------------------------------------------------------------------------
    def number_of_parameters(self):
        """How many numbers are trained."""
        return sum(t.size for t in self.parameters())

    def settings(self):
        """What stands behind the class name in `repr`: the plain numbers, texts and switches among the attributes."""
        return {a: v for a, v in vars(self).items()
                if isinstance(v, SCALARS) and not a.startswith("_") and a != "training"}

    def __repr__(self):
        return "\n".join(self._lines("", ())) + f"\n{self.number_of_parameters():,} parameters"

    def _lines(self, label, above):
        text = ", ".join(f"{a}={v!r}" for a, v in self.settings().items())
        items = [item for a, v in vars(self).items() for item in _items(a, v)]
        shapes = ", ".join(f"{name} {t.shape}" for name, t in items if not isinstance(t, Module))
        lines = [f"{label}{type(self).__name__}({text})" + (f": {shapes}" if shapes else "")]
        for name, part in items:
            if isinstance(part, Module) and part is not self and part not in above:
                lines += ["  " + line for line in part._lines(f"{name}: ", (*above, self))]
        return lines


# ---------------------------------------------------------------------------------------------------------------------
# helpers
# ---------------------------------------------------------------------------------------------------------------------
def _items(name, value):
    """(name, leaf Tensor or Module) for what an attribute holds, also in lists, tuples and dictionaries: `layers.0`."""
    if isinstance(value, (Tensor, Module)):
        if isinstance(value, Module) or value.op is None:
            yield name, value
    elif isinstance(value, (list, tuple, dict)) and value:
        pairs = list(value.items() if isinstance(value, dict) else enumerate(value))
        if len(pairs) > 1000 and isinstance(pairs[0][1], SCALARS):  # a vocabulary: a look at every word would cost
            return
        for key, item in pairs:
            yield from _items(f"{name}.{key}", item)


def _is_saved(name, t):
    return t.requires_grad or not any(part.startswith("_") for part in name.split("."))


def _disagreements(names, found):
    """Two names of one tied Tensor that came with different values."""
    first, wrong = {}, []
    for name, array in found.items():
        other = first.setdefault(id(names[name]), name)
        if not np.array_equal(found[other], array, equal_nan=True):
            wrong.append(f"{other} and {name} are one tied parameter here, but came with different values")
    return wrong


def _overwrite(t, array):
    """New values in the memory of `t`, seen by every graph that needs the old ones."""
    if t.device == "cpu":
        t.array[...] = array
    else:
        t.array = Tensor(array, dtype=t.dtype, device=t.device).array
    changed(t, anew=t.device != "cpu")


def as_input(x, like):
    """A Tensor as it is; an array or nested list as a Tensor of the dtype of `like`."""
    return x if isinstance(x, Tensor) else Tensor(x, dtype=like.dtype)


def example_of(cls, rng, dtype=np.float64):
    """`cls.example(rng)` with module and float inputs in `dtype`; the package's random numbers stay as they were."""
    before = random.get_state()
    try:
        random.manual_seed(int(rng.integers(2**31)))
        module, inputs = cls.example(rng)
    finally:
        random.set_state(before)
    return module.to(dtype), _floats_to(dtype, inputs)


def _floats_to(dtype, inputs):
    if isinstance(inputs, (tuple, list)):
        return tuple(_floats_to(dtype, x) for x in inputs)
    is_float = isinstance(inputs, Tensor) and inputs.dtype.kind == "f"
    return Tensor(inputs.numpy(), dtype=dtype) if is_float else inputs  # memory of its own, which a checker may change


def outputs_of(result):
    """The Tensors in what a module returned, which may be nested in tuples, lists and dictionaries, as a flat list."""
    if isinstance(result, Tensor):
        return [result]
    if isinstance(result, dict):
        result = list(result.values())
    return [t for part in result for t in outputs_of(part)] if isinstance(result, (list, tuple)) else []
