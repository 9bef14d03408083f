r"""Recurrent layers over whole sequences (RNN, GRU, LSTM), and one step of each (RNNCell, GRUCell, LSTMCell).

For every layer and direction the input is projected for all steps at once, and one fused op runs along the sequence:

    p = x W_ih^T + b_ih                          (B, T, gates * D), one product
    hs, h = scan(p, h0, W_hh, b_hh, lengths)     (B, T, D) and the last state (B, D), see `ops/recurrent.py`

Layout, names and order of the gates are PyTorch's, so weights can be exchanged both ways:
    weight_ih_l0 (gates * D, inputs), weight_hh_l0 (gates * D, D), bias_ih_l0 and bias_hh_l0 (gates * D,); l1 ... for
    further layers, and `_reverse` behind the names of the backward direction.
Sequences are batch first, and padding is what lies beyond `lengths`: it changes nothing, and outputs there are 0.
"""
import math
from contextlib import nullcontext

import numpy as np

from .. import functional
from ..autograd import scope
from ..ops.broadcast import ShapeError
from ..ops.gru import GRUScan
from ..ops.lstm import LSTMScan
from ..ops.matmul import Affine
from ..ops.rnn import RNNScan
from ..tensor import Tensor
from . import init
from .layers import size
from .module import Module, Parameter, as_input


def _weights(module, gates, inputs, width, bias, suffix=""):
    """Give `module` the four parameters of one layer and direction, uniform in +-1/sqrt(width)."""
    bound = 1 / math.sqrt(width)
    for name, shape in (("weight_ih", (gates * width, inputs)), ("weight_hh", (gates * width, width)),
                        ("bias_ih", (gates * width,)), ("bias_hh", (gates * width,))):
        with_it = bias or not name.startswith("bias")
        setattr(module, name + suffix, Parameter(init.uniform(shape, bound)) if with_it else None)


def _run(module, x, states, lengths, suffix="", reverse=False):
    """One layer in one direction: x (B, T, inputs) to (hs, h) or (hs, h, c)."""
    w_ih, w_hh = getattr(module, "weight_ih" + suffix), getattr(module, "weight_hh" + suffix)
    b_ih, b_hh = getattr(module, "bias_ih" + suffix), getattr(module, "bias_hh" + suffix)
    return module.scan(reverse)(Affine()(x, w_ih, b_ih), *states, w_hh, b_hh, lengths)


class Recurrent(Module, abstract=True):
    """What RNN, GRU and LSTM share; a subclass gives `gates`, `scan` and, for the LSTM, a second state.

    inputs, width   of x and of the state (D)
    layers          each further layer reads the outputs of the one below
    bidirectional   a second pass from the last step to the first; outputs are [forward, backward], 2 D wide
    dropout         between layers, in training
    bias            False leaves out both biases

    module(x, state=None, lengths=None) -> (output, last state)
        x (B, T, inputs); lengths (B,) integers 0 .. T, or None where every sequence has T steps
        state (L, B, D), L = layers * directions in the order layer 0 forward, layer 0 backward, layer 1 ...; None for 0
        output (B, T, D * directions), last state (L, B, D): that of each sequence's own last step (first step backward)
    ShapeError names the shapes with these letters.
    """
    gates = 1
    states = ("h",)

    def __init__(self, inputs, width, layers=1, bidirectional=False, dropout=0.0, bias=True):
        who = type(self).__name__
        self.inputs, self.width = size(who, "inputs", inputs), size(who, "width", width)
        self.layers = size(who, "layers", layers)
        if not 0 <= dropout <= 1:
            raise ValueError(f"{who}: expected dropout between 0 and 1, got {dropout}")
        if dropout and layers == 1:
            raise ValueError(f"{who}: dropout={dropout} acts between layers, and there is one layer; use Dropout")
        self.bidirectional, self.dropout = bool(bidirectional), dropout
        for layer, suffix, _ in self._passes():
            below = self.inputs if layer == 0 else self.width * (1 + self.bidirectional)
            _weights(self, self.gates, below, self.width, bias, suffix)

    def _passes(self):
        """(layer, suffix of the names, reverse) in the order of the states."""
        for layer in range(self.layers):
            yield layer, f"_l{layer}", False
            if self.bidirectional:
                yield layer, f"_l{layer}_reverse", True

    def forward(self, x, state=None, lengths=None):
        like = self.weight_hh_l0
        x = as_input(x, like)
        who = type(self).__name__
        if x.ndim != 3 or x.shape[2] != self.inputs:
            raise ShapeError(f"{who}: expected x (B,T,I) with I = {self.inputs}, got {x.shape}")
        lengths = _lengths(who, lengths, x)
        first = self._first(who, x, state)
        passes, outputs, finals = list(self._passes()), [], []
        for i, (layer, suffix, reverse) in enumerate(passes):
            if layer and not reverse:
                x, outputs = _join(outputs), []
                x = functional.dropout(x, self.dropout, self.training)
            with scope(suffix[1:]) if len(passes) > 1 else nullcontext():
                hs, *last = _run(self, x, [s[i] for s in first], lengths, suffix, reverse)
            outputs.append(hs)
            finals.append(last)
        finals = tuple(last[0].unsqueeze(0) if len(last) == 1 else functional.stack(last)
                       for last in zip(*finals, strict=True))
        return _join(outputs), finals if len(finals) > 1 else finals[0]

    def _first(self, who, x, state):
        """The first states: for each kind (h, and c) a list of (B, D) over the passes."""
        count, b = self.layers * (1 + self.bidirectional), x.shape[0]
        shape = (count, b, self.width)
        if state is None:
            return [[_zeros(b, self.width, self.weight_hh_l0)] * count] * len(self.states)
        state = state if isinstance(state, (tuple, list)) else (state,)
        state = [as_input(s, x) for s in state]
        if [s.shape for s in state] != [shape] * len(self.states):
            expected = " and ".join(self.states)
            raise ShapeError(f"{who}: expected the first state {expected} (L,B,D) = {shape}, got "
                             f"{' and '.join(str(s.shape) for s in state)}")
        return [[s.reshape(shape[1:])] if count == 1 else [s[i] for i in range(count)] for s in state]


class RNN(Recurrent):
    r"""h' = tanh(W_ih x + b_ih + W_hh h + b_hh), or relu. See `Recurrent` for the options and what comes in and out."""

    def __init__(self, inputs, width, layers=1, bidirectional=False, dropout=0.0, bias=True, nonlinearity="tanh"):
        super().__init__(inputs, width, layers, bidirectional, dropout, bias)
        self.nonlinearity = nonlinearity
        self.scan(False)  # raises where the option has no such value

    def scan(self, reverse):
        return RNNScan(reverse, self.nonlinearity)

    @staticmethod
    def example(rng):
        return RNN(3, 2, layers=2, bidirectional=True), _example_inputs(rng, 4)


class GRU(Recurrent):
    r"""The gated recurrent unit. See `Recurrent` for the options and what comes in and out. U is W_hh.

        r = sigmoid(W_r x + U_r h + b)                  reset gate
        z = sigmoid(W_z x + U_z h + b)                  update gate
        n = tanh(W_n x + b + r * (U_n h + b'))          reset="after" the product: PyTorch, cuDNN
        n = tanh(W_n x + b + U_n (r * h) + b')          reset="before" it: Cho et al. 2014, Bahdanau et al. 2015
        h' = z * h + (1 - z) * n                        update="keep": z keeps the old state, as PyTorch has it
        h' = (1 - z) * h + z * n                        update="write": z lets the new in, as Chung et al. 2014 and Bahdanau
    """
    gates = 3

    def __init__(self, inputs, width, layers=1, bidirectional=False, dropout=0.0, bias=True, reset="after",
                 update="keep"):
        super().__init__(inputs, width, layers, bidirectional, dropout, bias)
        self.reset, self.update = reset, update
        self.scan(False)

    def scan(self, reverse):
        return GRUScan(reverse, self.reset, self.update)

    @staticmethod
    def example(rng):
        return GRU(3, 2, layers=2, bidirectional=True, reset="before", update="write"), _example_inputs(rng, 4)


class LSTM(Recurrent):
    r"""The long short-term memory. See `Recurrent` for the options; the states are the pair (h, c), each (L, B, D).

        i, f, o = sigmoid(W x + U h + b) each;   g = tanh(W_g x + U_g h + b)
        c' = f * c + i * g;   h' = o * tanh(c')
    """
    gates = 4
    states = ("h", "c")

    def scan(self, reverse):
        return LSTMScan(reverse)

    @staticmethod
    def example(rng):
        x, h, lengths = _example_inputs(rng, 4)
        return LSTM(3, 2, layers=2, bidirectional=True), (x, (h, Tensor(rng.normal(size=h.shape))), lengths)


# ---------------------------------------------------------------------------------------------------------------------
# one step, for decoders that choose their next input themselves
# ---------------------------------------------------------------------------------------------------------------------
class Cell(Module, abstract=True):
    """One step of a recurrent layer: cell(x, h) -> h with x (B, inputs) and h (B, D); the LSTM's h is the pair (h, c).

    Names and layout are those of PyTorch's cells: weight_ih, weight_hh, bias_ih, bias_hh.
    """
    gates = 1
    states = ("h",)

    def __init__(self, inputs, width, bias=True):
        self.inputs, self.width = size(type(self).__name__, "inputs", inputs), size(type(self).__name__, "width", width)
        _weights(self, self.gates, self.inputs, self.width, bias)

    def forward(self, x, state=None):
        x, who = as_input(x, self.weight_hh), type(self).__name__
        if x.ndim != 2 or x.shape[1] != self.inputs:
            raise ShapeError(f"{who}: expected x (B,I) with I = {self.inputs}, got {x.shape}")
        shape = (x.shape[0], self.width)
        if state is None:
            state = [_zeros(*shape, self.weight_hh)] * len(self.states)
        state = [as_input(s, x) for s in (state if isinstance(state, (tuple, list)) else [state])]
        if [s.shape for s in state] != [shape] * len(self.states):
            raise ShapeError(f"{who}: expected the state {' and '.join(self.states)} (B,D) = {shape}, got "
                             f"{' and '.join(str(s.shape) for s in state)}")
        _, *new = _run(self, x.unsqueeze(1), state, None)
        return tuple(new) if len(new) > 1 else new[0]


class RNNCell(Cell):
    """One step of `RNN`."""

    def __init__(self, inputs, width, bias=True, nonlinearity="tanh"):
        super().__init__(inputs, width, bias)
        self.nonlinearity = nonlinearity
        self.scan(False)

    scan = RNN.scan

    @staticmethod
    def example(rng):
        return RNNCell(3, 2), (Tensor(rng.normal(size=(2, 3))), Tensor(rng.normal(size=(2, 2))))


class GRUCell(Cell):
    """One step of `GRU`, with the same conventions."""
    gates = 3

    def __init__(self, inputs, width, bias=True, reset="after", update="keep"):
        super().__init__(inputs, width, bias)
        self.reset, self.update = reset, update
        self.scan(False)

    scan = GRU.scan

    @staticmethod
    def example(rng):
        return GRUCell(3, 2), (Tensor(rng.normal(size=(2, 3))), Tensor(rng.normal(size=(2, 2))))


class LSTMCell(Cell):
    """One step of `LSTM`: cell(x, (h, c)) -> (h, c)."""
    gates = 4
    states = ("h", "c")
    scan = LSTM.scan

    @staticmethod
    def example(rng):
        h, c = (Tensor(rng.normal(size=(2, 2))) for _ in range(2))
        return LSTMCell(3, 2), (Tensor(rng.normal(size=(2, 3))), (h, c))


# ---------------------------------------------------------------------------------------------------------------------
# helpers
# ---------------------------------------------------------------------------------------------------------------------
def _zeros(b, d, like):
    return Tensor(np.zeros((b, d), like.dtype), device=like.device)


def _join(outputs):
    return outputs[0] if len(outputs) == 1 else functional.concat(outputs, -1)


def _lengths(who, lengths, x):
    """lengths (B,) as an integer Tensor, or None."""
    if lengths is None:
        return None
    if not isinstance(lengths, Tensor):
        lengths = Tensor(lengths if isinstance(lengths, np.ndarray) else np.asarray(lengths), device=x.device)
    if lengths.dtype.kind != "i" or lengths.shape != x.shape[:1]:
        raise ShapeError(f"{who}: expected integer lengths (B,) = ({x.shape[0]},) for x (B,T,I) = {x.shape}, got "
                         f"{lengths.dtype} {lengths.shape}")
    return lengths


def _example_inputs(rng, passes):
    """x (3, 4, 3), a first state and lengths, one of them 1."""
    return Tensor(rng.normal(size=(3, 4, 3))), Tensor(rng.normal(size=(passes, 3, 2))), np.array([4, 1, 3])
