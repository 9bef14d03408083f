"""One training step: forward, backward, clipping of the gradients' common norm at 1, Adam. See `core.py` for the rules."""
from importlib import import_module

FILES = "mlp", "translator", "han", "memory", "language_model"


def rows():
    """The rows of all files, in order."""
    return [row for name in FILES for row in import_module(f"{__name__}.{name}").rows()]
