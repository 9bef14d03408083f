r"""The forgetful RNN, measured: how much of an early input reaches a late state.

    reach(d) = mean over sequences of || dh_T / dh_{T-d} ||_F / sqrt(N)

h_t (N,) is the state after step t of a recurrent layer; of an LSTM, state and cell together (2N). The derivative goes
through all d steps in between, one Jacobian for each, so it shrinks (or grows) like a product of d matrices (Bengio et
al. 1994). A layer that keeps its state as it is has reach 1 at every distance. Through attention the reading is

    c = attention(query h_T, keys h_1 .. h_T, values h_1 .. h_T)        reach(d) = || dc / dh_{T-d} ||_F / sqrt(N)

and there is a way of one step to every state: the survey's reason for attention (Hu 2018 section 1).

The same layers then learn a task that only long memory solves, and are measured again: each sequence holds one marked
symbol at a random place, and at the end the network is asked which it was. reach(d) is always taken at the marked
place, so after training it tells how much of the one input that matters is still there.

    curves = measure(["rnn", "gru", "lstm", "attention"], length=60, width=32, steps=600, seed=1)

Shapes: B sequences, T length, N width of the state, K symbols.
"""
import time
from dataclasses import dataclass

import numpy as np

from . import nn, optim, random
from .attention import find
from .autograd import grad, no_grad
from .errors import InputError
from .functional import concat, cross_entropy, stack
from .nn import init
from .tensor import Tensor

LAYERS = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}
SYMBOLS, BATCH = 8, 64


@dataclass
class Curve:
    """What was measured of one network. `before` and `after` are reach(0 .. T-1), untrained and trained; `right` is
    (largest distance of the class, share answered right) of fresh sequences, by how long ago the marked symbol was."""
    name: str
    before: np.ndarray
    after: np.ndarray | None
    right: list
    accuracy: float | None
    seconds: float


class Recall(nn.Module):
    """Reads symbols (B, T), one of them marked, and says which: logits (B, K).

    cell       "rnn", "gru" or "lstm"
    attention  None, or the name of a mechanism through which the last state looks at all states
    """

    def __init__(self, cell="gru", attention=None, width=32, symbols=SYMBOLS):
        self.symbol = nn.Embedding(symbols, width)
        self.mark = nn.Parameter(init.normal((width,)))
        self.rnn = LAYERS[cell](width, width)
        self.variant = None if attention is None else find(attention)
        shapes = {} if attention is None else self.variant.shapes(**dict.fromkeys("AQKED", width))
        self.attention = {name: nn.Parameter(init.uniform(s, 1 / np.sqrt(s[-1]))) for name, s in shapes.items()}
        self.output = nn.Linear(width if attention is None else 2 * width, symbols)

    def inputs(self, ids, place):
        """(B, T, N) of symbols (B, T), with the mark added at `place` (B,)."""
        marked = np.arange(ids.shape[1]) == place[:, None]
        return self.symbol(Tensor(ids)) + Tensor(marked[..., None], dtype=self.mark.dtype) * self.mark

    def read(self, q, h):
        """c (B, N) of a query (B, N) and states (B, T, N)."""
        return self.variant.function(q.unsqueeze(1), h, h, **self.attention).squeeze(1)

    def forward(self, ids, place):
        h, _ = self.rnn(self.inputs(ids, place))                                       # (B, T, N)
        last = h[:, -1]
        return self.output(last if self.variant is None else concat([self.read(last, h), last], -1))

    @staticmethod
    def example(rng):
        """Two sequences of three symbols."""
        return Recall("gru", "additive", 3, 4), (rng.integers(0, 4, (2, 3)), np.array([0, 2]))


def reach(model, ids, place):
    """reach(0 .. T-1) of a `Recall` network on the sequences ids (B, T), marked at `place` (B,): see the head of this
    file. nan at a distance at which no sequence is marked."""
    x, states, state = model.inputs(ids, place), [], None
    for t in range(ids.shape[1]):  # step by step, so that each state is a Tensor that can be asked for
        h, state = model.rnn(x[:, t:t + 1], state)
        states.append(state if isinstance(state, tuple) else (state,))
    if model.variant is None:
        ends = list(states[-1])                                                        # each (1, B, N)
    else:
        hs = stack([s[0].squeeze(0) for s in states], 1)                               # (B, T, N)
        ends = [model.read(hs[:, -1], hs).unsqueeze(0)]
    kinds = len(states[0]) if model.variant is None else 1
    wanted = [s for step in states for s in step[:kinds]]
    squares = np.zeros((len(states), ids.shape[0]))
    for end in ends:
        for i in range(end.shape[2]):  # a row of the Jacobian at a time, for all sequences together
            rows = grad(end[..., i].sum(), wanted, allow_unused=True)
            for j, row in enumerate(rows):
                if row is not None:
                    squares[j // kinds] += (row.numpy().astype(np.float64) ** 2).sum((0, 2))
    norms = np.sqrt(squares / sum(end.shape[2] for end in ends))                      # (T, B)
    return np.array([norms[t, place == t].mean() if (place == t).any() else np.nan
                     for t in reversed(range(len(norms)))])


def sequences(rng, count, length):
    """Symbols (B, T) and the marked place of each (B,); what is to be said is the symbol there."""
    return rng.integers(0, SYMBOLS, (count, length)), rng.integers(0, length, count)


def learn(model, length, steps, seed):
    """Train a `Recall` network with Adam, clipping at 1; the same sequences for every network."""
    rng, parameters = np.random.default_rng(seed), list(model.parameters())
    optimizer = optim.Adam(parameters, 3e-3)
    for _ in range(steps):
        ids, place = sequences(rng, BATCH, length)
        optimizer.zero_grad()
        loss = cross_entropy(model(ids, place), Tensor(ids[np.arange(BATCH), place]))
        loss.backward()
        optim.clip_grad_norm(parameters, 1.0)
        optimizer.step()


def recalled(model, length, seed, count=2048, classes=4):
    """Share of fresh sequences answered right, and the same by distance: (share, [(largest distance, share), ...])."""
    ids, place = sequences(np.random.default_rng([seed, 1]), count, length)
    with no_grad():
        found = np.concatenate([model(ids[i:i + 256], place[i:i + 256]).numpy().argmax(1)
                                for i in range(0, count, 256)])
    right, distance = found == ids[np.arange(count), place], length - 1 - place
    edges = [round(length * (i + 1) / classes) - 1 for i in range(classes)]
    below = [-1, *edges[:-1]]
    return float(right.mean()), [(high, float(right[(distance > low) & (distance <= high)].mean()))
                                 for low, high in zip(below, edges, strict=True)]


def measure(names=("rnn", "gru", "lstm", "attention"), length=60, width=32, steps=600, seed=1, samples=4,
            mechanism="additive", say=None):
    """A Curve for each of "rnn", "gru", "lstm" and "attention" (a GRU whose last state attends to all, by `mechanism`).

    steps    of training on the recall task; 0 measures untrained networks only
    samples  sequences for each distance at which reach is measured
    say      called with a line when a network is done
    InputError for an unknown name, or sizes that cannot be.
    """
    for name in names:
        if name not in (*LAYERS, "attention"):
            raise InputError(f"forget: expected names out of {', '.join(LAYERS)}, attention, got {name!r}")
    sizes = ("length", length, 4), ("width", width, 1), ("steps", steps, 0), ("samples", samples, 1)
    for what, value, least in sizes:
        if value < least:
            raise InputError(f"forget: expected {what} of at least {least}, got {value}")
    curves = []
    for name in names:
        random.manual_seed(seed)
        begun, attends = time.perf_counter(), name == "attention"
        model = Recall("gru" if attends else name, mechanism if attends else None, width)
        ids, _ = sequences(np.random.default_rng([seed, 2]), samples * length, length)
        place = np.repeat(np.arange(length), samples)
        curve = Curve(name, reach(model, ids, place), None, [], None, 0.0)
        if steps:
            learn(model, length, steps, seed)
            curve.after = reach(model, ids, place)
            curve.accuracy, curve.right = recalled(model, length, seed)
        curve.seconds = time.perf_counter() - begun
        curves.append(curve)
        if say is not None:
            say(f"{name}: {curve.seconds:.1f} s")
    return curves
