"""Windows over the last axis. A convolution is a product of windows with weights: see `functional.conv1d`."""
import numpy as np

from ..autograd import Op
from .broadcast import ShapeError


class Unfold(Op):
    """y[..., t, k] = x[..., t * step + k * dilation]: all windows of `size` elements, as a view."""
    tex = r"\mathrm{windows}({x})"

    def __init__(self, size, step=1, dilation=1):
        self.size, self.step, self.dilation = size, step, dilation

    def cpu(self, x):
        reach = (self.size - 1) * self.dilation + 1
        if min(self.size, self.step, self.dilation) < 1:
            raise ValueError(f"unfold: size, step and dilation must be at least 1, got {self.size}, {self.step}, {self.dilation}")
        if x.ndim == 0 or x.shape[-1] < reach:
            raise ShapeError(f"unfold: a window reaches over {reach} places, but the last axis of {x.shape} is shorter")
        view = np.lib.stride_tricks.sliding_window_view(x, reach, axis=-1)
        return view[..., ::self.step, ::self.dilation]

    def grad_x(self, g, y, x):
        return Fold(x.shape[-1], self.step, self.dilation)(g)

    def samples(rng):
        yield {"size": 3}, (rng.normal(size=(2, 5)),)
        yield {"size": 2, "step": 2, "dilation": 2}, (rng.normal(size=(6,)),)


class Fold(Op):
    """y[..., t * step + k * dilation] += x[..., t, k]: the reverse of unfold, where windows overlap they are added."""
    tex = r"\mathrm{overlap}({x})"

    def __init__(self, length, step=1, dilation=1):
        self.length, self.step, self.dilation = length, step, dilation

    def cpu(self, x):
        windows, size = x.shape[-2:]
        out = np.zeros((*x.shape[:-2], self.length), x.dtype)
        for k in range(size):
            begin = k * self.dilation
            out[..., begin:begin + (windows - 1) * self.step + 1:self.step] += x[..., k]
        return out

    def grad_x(self, g, y, x):
        return Unfold(x.shape[-1], self.step, self.dilation)(g)

    def samples(rng):
        yield {"length": 5}, (rng.normal(size=(2, 3, 3)),)
        yield {"length": 6, "step": 2, "dilation": 2}, (rng.normal(size=(2, 2)),)
