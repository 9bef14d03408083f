"""Windows over the last axis. A convolution is a product of windows with weights: see `functional.conv1d`."""
import numpy as np

from ..autograd import Op
from ..cuda import cuda, cuda_kernel, flat
from ..device import empty
from .broadcast import ShapeError
from .shape import steps, strided_copy


class Unfold(Op):
    """y[..., t, k] = x[..., t * step + k * dilation]: all windows of `size` elements, as a view; on a card a copy."""
    tex = r"\mathrm{windows}({x})"

    def __init__(self, size, step=1, dilation=1):
        self.size, self.step, self.dilation = size, step, dilation

    def check(self, x):
        """How many places a window reaches over."""
        reach = (self.size - 1) * self.dilation + 1
        if min(self.size, self.step, self.dilation) < 1:
            raise ValueError(f"unfold: size, step and dilation must be at least 1, got {self.size}, {self.step}, {self.dilation}")
        if x.ndim == 0 or x.shape[-1] < reach:
            raise ShapeError(f"unfold: a window reaches over {reach} places, but the last axis of {x.shape} is shorter")
        return reach

    def cpu(self, x):
        reach = self.check(x)
        view = np.lib.stride_tricks.sliding_window_view(x, reach, axis=-1)
        return view[..., ::self.step, ::self.dilation]

    def cuda(self, x):
        reach = self.check(x)
        windows = (x.shape[-1] - reach) // self.step + 1
        return strided_copy(x, (*x.shape[:-1], windows, self.size), (*steps(x.shape)[:-1], self.step, self.dilation))

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

    def cuda(self, x):
        out = empty((*x.shape[:-2], self.length), x.dtype, "cuda")
        _fold_cuda.each(out.size)(flat(x), flat(out), self.length, *x.shape[-2:], self.step, *divmod(self.dilation, self.step))
        return out

    def grad_x(self, g, y, x):
        return Unfold(x.shape[-1], self.step, self.dilation)(g)

    def samples(rng):
        yield {"length": 5}, (rng.normal(size=(2, 3, 3)),)
        yield {"length": 6, "step": 2, "dilation": 2}, (rng.normal(size=(2, 2)),)


# ---------------------------------------------------------------------------------------------------------------------
# on a card (unfold is a copy, see shape.py)
# ---------------------------------------------------------------------------------------------------------------------
@cuda_kernel("T[::1], T[::1], int64, int64, int64, int64, int64, int64")
def _fold_cuda(x, out, length, windows, size, step, back, short):
    """Thread e owns element p = e % length of a row and adds up what falls on it, k by k, in the order of the CPU.

    With p - k dilation = t step + rest, element k of window t falls there if the rest is 0. From k to k + 1 the place
    moves back by dilation = back * step + short, and t and the rest are kept up to date without a division.
    """
    e = cuda.grid(1)
    if e < out.size:
        row = e // length
        p = e - row * length
        t = p // step
        rest, total = p - t * step, x.dtype.type(0)
        for k in range(size):
            if rest == 0 and t >= 0 and t < windows:
                total += x[(row * windows + t) * size + k]
            t -= back
            rest -= short
            if rest < 0:
                rest += step
                t -= 1
        out[e] = total
