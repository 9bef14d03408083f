"""Moving a Tensor between devices: x.to('cuda'), x.to('cpu')."""
from ..autograd import Op
from ..device import copy, device_of, to_device


class Transfer(Op):
    """The same numbers on another device. The gradient goes the way back."""
    tex = "{x}"

    def __init__(self, target):
        self.target = target

    def cpu(self, x):
        return copy(x) if device_of(x) == self.target else to_device(x, self.target)

    cuda = cpu

    def grad_x(self, g, y, x):
        return g.to(x.device)

    def samples(rng):
        yield {"target": "cpu"}, (rng.normal(size=(2, 3)),)
        yield {"target": "cpu"}, (rng.normal(size=()),)
