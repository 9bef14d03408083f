r"""How time and memory grow with the length T of a sequence, forward and backward: the survey's case for and against
attention, measured.

                            time                memory
    rnn, gru, lstm          T steps in turn     T states
    attention               T^2 scores          T: no score is kept, see `ops/attention.py`
    attention-twin          T^2                 T^2: its readable twin holds scores, weights and their gradients
    additive                T^2, each a tanh    T^2 scores, which are an output, but never their T^2 D sums

One sequence (B = 1) of width D attends to itself, or is read. On axes of powers a curve c T^a is a straight line, and
`slope` is a: the line of least squares through the longer half of the lengths, for at small T what is measured is the
cost of a call.

    curves = measure(["gru", "attention"], lengths_up_to(8192))

Time is that of the processor, on one thread, the shortest of several rounds: other programs disturb it least. Memory is
the peak of what NumPy allocates beyond the inputs, as `tracemalloc` counts it: outputs, gradients and whatever is held
between the two passes; what a kernel takes for itself, a few tiles, is not seen.
"""
import time
import tracemalloc
from dataclasses import dataclass

import numpy as np

from . import device, nn, random
from .attention import find
from .autograd import fused, grad
from .errors import InputError
from .functional import scaled_dot_product_attention
from .tensor import Tensor

WIDTH = 32
SHORTEST = 64
MOST = 2 * 2**30  # bytes: a curve ends before the length that would take more
ROUNDS, SECONDS = 15, 0.3  # a length is timed so often, or for so long


@dataclass
class Curve:
    """Of one workload: lengths, and for each the processor's seconds and the bytes of a forward and backward pass."""
    name: str
    lengths: list
    seconds: list
    bytes: list

    @property
    def slopes(self):
        """(a, b): time grows as T^a, memory as T^b."""
        return slope(self.lengths, self.seconds), slope(self.lengths, self.bytes)


def recurrent(kind):
    """A function from T to (output, inputs): a layer that reads a sequence."""
    def make(T):
        layer, x = kind(WIDTH, WIDTH), _normal(1, T, WIDTH)
        return lambda: layer(x)[0], [x, *layer.parameters()]
    return make


def attention(T):
    q, k, v = (_normal(1, T, WIDTH) for _ in range(3))
    return lambda: scaled_dot_product_attention(q, k, v), [q, k, v]


def twin(T):
    """`attention` by its readable twin."""
    run, inputs = attention(T)
    return fused("never")(run), inputs


def additive(T):
    variant = find("additive")
    q, k, v = (_normal(1, T, WIDTH) for _ in range(3))
    parameters = {name: _normal(*shape) for name, shape in variant.shapes(**dict.fromkeys("AQKED", WIDTH)).items()}
    return lambda: variant.function(q, k, v, **parameters), [q, k, v, *parameters.values()]


WORKLOADS = {"rnn": recurrent(nn.RNN), "gru": recurrent(nn.GRU), "lstm": recurrent(nn.LSTM), "attention": attention,
             "attention-twin": twin, "additive": additive}


def _normal(*shape):
    """Small normal numbers, float32, with a gradient."""
    return Tensor(random.generator().normal(size=shape) / np.sqrt(WIDTH), requires_grad=True, dtype=np.float32)


# ---------------------------------------------------------------------------------------------------------------------
# measuring
# ---------------------------------------------------------------------------------------------------------------------
def lengths_up_to(longest):
    """64, 128, 256, ... up to `longest`. InputError below 256: a slope needs three lengths."""
    if longest < 4 * SHORTEST:
        raise InputError(f"growth: expected a longest length of at least {4 * SHORTEST}, got {longest}")
    found = [SHORTEST]
    while 2 * found[-1] <= longest:
        found.append(2 * found[-1])
    return found


def measure(names=(), lengths=None, say=lambda line: None):
    """A Curve for each name, of WORKLOADS, all by default. InputError for another name."""
    names = list(dict.fromkeys(names)) or list(WORKLOADS)
    for name in names:
        if name not in WORKLOADS:
            raise InputError(f"growth: expected one of {', '.join(WORKLOADS)}, got {name!r}")
    lengths, curves = lengths or lengths_up_to(8192), []
    for name in names:
        curve = Curve(name, [], [], [])
        for T in lengths:
            if curve.bytes and curve.bytes[-1] * (T / curve.lengths[-1]) ** 2 > MOST:
                break
            run, inputs = WORKLOADS[name](T)
            curve.lengths.append(T)
            curve.bytes.append(peak(run, inputs))
            curve.seconds.append(shortest(run, inputs))
        say(line(curve))
        curves.append(curve)
    return curves


def both_passes(run, inputs):
    """The output, and the gradients of its sum."""
    y = run()
    return y, grad([y], inputs, [Tensor(np.ones(y.shape, y.dtype))])


def peak(run, inputs):
    """Bytes beyond the inputs that both passes hold at most, outputs and gradients among them."""
    both_passes(run, inputs)  # kernels are compiled
    tracing = tracemalloc.is_tracing()
    if not tracing:
        tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        both_passes(run, inputs)
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        if not tracing:
            tracemalloc.stop()


def shortest(run, inputs):
    """The processor's seconds for both passes, on one thread, in the quickest round."""
    rounds, threads = [], device.get_num_threads()
    device.set_num_threads(1)
    try:
        end = time.process_time() + SECONDS
        while len(rounds) < 2 or len(rounds) < ROUNDS and time.process_time() < end:
            begun = time.process_time()
            both_passes(run, inputs)
            rounds.append(time.process_time() - begun)
    finally:
        device.set_num_threads(threads)
    return min(rounds)


def slope(lengths, values):
    """a of the line log y = a log T + b of least squares, through the longer half of the lengths, three at least."""
    count = max(3, (len(lengths) + 1) // 2)
    x, y = np.log(np.asarray(lengths[-count:], float)), np.log(np.asarray(values[-count:], float))
    x = x - x.mean()
    return float((x * y).sum() / (x * x).sum())


def line(curve):
    """One line of text: how both grow, and what the longest took."""
    a, b = curve.slopes
    return (f"{curve.name:19}  time T^{a:.2f}, memory T^{b:.2f}; T = {curve.lengths[-1]:,}: {1e3 * curve.seconds[-1]:,.1f} ms, "
            f"{curve.bytes[-1] / 2**20:,.1f} MB")
