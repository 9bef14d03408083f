r"""The translator of Bahdanau et al. 2015, the package's own (`models/seq2seq.py`): a step waits for the one before, T times.

    h_j = [forward_j ; backward_j]                                         a bidirectional GRU over the source words
    c_i = sum_j softmax_j(v^T tanh(W_q s_{i-1} + W_k h_j)) h_j;   s_i = GRU([E y_{i-1} ; c_i], s_{i-1})
    p(y_i) = softmax(W_o maxout(U_o s_{i-1} + V_o E y_{i-1} + C_o c_i))

All GRUs reset after the product and let z keep the old state, PyTorch's convention, not the paper's: so PyTorch's user has
`nn.GRU` for the encoder, its fast path, and `nn.GRUCell` for the decoder. Our decoder has one bias for its gates, so
the second of `nn.GRUCell` is 0 and is not learned. No sentence is padded, so peers need neither masks nor packing; ours
takes the lengths and masks all the same.
"""
from dataclasses import dataclass

import numpy as np

from ... import nn
from ...models.seq2seq import Seq2Seq
from ...tensor import Tensor
from ..row import Row
from . import core


@dataclass
class Sizes:
    """B pairs of sentences of T words out of V; D units in every layer."""
    B: int = 32
    T: int = 15
    V: int = 1000
    D: int = 128


def weights(s):
    """Under the names of our model."""
    rng, rows = np.random.default_rng(0), 3 * s.D
    shapes = {"encoder.embedding.weight": (s.V, s.D), "decoder.embedding.weight": (s.V, s.D)}
    for suffix in ("l0", "l0_reverse"):
        shapes |= {f"encoder.rnn.{name}_{suffix}": (rows, s.D) for name in ("weight_ih", "weight_hh")}
        shapes |= {f"encoder.rnn.{name}_{suffix}": (rows,) for name in ("bias_ih", "bias_hh")}
    decoder = {"start.weight": (s.D, s.D), "start.bias": (s.D,), "from_word.weight": (rows, s.D), "from_word.bias": (rows,),
               "w_hh": (rows, s.D), "from_context.weight": (rows, 2 * s.D), "attention.w_q": (s.D, s.D),
               "attention.w_k": (s.D, 2 * s.D), "attention.v_a": (s.D,), "out_state.weight": (2 * s.D, s.D),
               "out_state.bias": (2 * s.D,), "out_word.weight": (2 * s.D, s.D), "out_context.weight": (2 * s.D, 2 * s.D),
               "output.weight": (s.V, s.D), "output.bias": (s.V,)}
    shapes |= {f"decoder.{name}": shape for name, shape in decoder.items()}
    return {name: (rng.normal(size=shape) / shape[-1] ** 0.5).astype(np.float32) for name, shape in shapes.items()}


def batch(s):
    """Source words, target words before and target words to predict; 0 is padding, and does not occur."""
    rng = np.random.default_rng(1)
    target = rng.integers(1, s.V, (s.B, s.T + 1))
    return rng.integers(1, s.V, (s.B, s.T)), target[:, :-1].copy(), target[:, 1:].copy()


def floor(s):
    """Multiplications and additions. The matrices of the encoder have 12 D^2 numbers, those of the decoder 23 D^2 and D V,
    and each meets each word three times: forward, and for both gradients. So do v, 2 D numbers of h, and pairs of words."""
    words = s.B * s.T
    return 2 * 3 * words * (35 * s.D ** 2 + s.D * s.V + s.T * 3 * s.D)


# ---------------------------------------------------------------------------------------------------------------------
# the sides
# ---------------------------------------------------------------------------------------------------------------------
def ours(s, compiled=False):
    model = Seq2Seq(s.V, s.V, s.D, s.D)
    model.encoder.rnn = nn.GRU(s.D, s.D, bidirectional=True)
    model.decoder.gru = {"reset": "after", "update": "keep"}

    def loss(model, source, lengths, before, after):
        return model.loss(Tensor(source), Tensor(lengths), Tensor(before), Tensor(after))
    source, before, after = batch(s)
    return core.ours(model, loss, weights(s), (source, np.full(s.B, s.T), before, after), compiled)


def for_torch(s):
    """`weights` under the names of PyTorch's model. The two matrices of the decoder's gates stand side by side."""
    w = weights(s)
    names = {"attention.w_q": "query.weight", "attention.w_k": "keys.weight", "w_hh": "cell.weight_hh"}
    w = {name.replace("encoder.rnn.", "encoder."): a for name, a in w.items()}
    w = {names.get(name.replace("decoder.", ""), name.replace("decoder.", "")): a for name, a in w.items()}
    w["source.weight"], w["target.weight"] = w.pop("encoder.embedding.weight"), w.pop("embedding.weight")
    w["cell.weight_ih"] = np.concatenate([w.pop("from_word.weight"), w.pop("from_context.weight")], axis=1)
    w["cell.bias_ih"], w["cell.bias_hh"] = w.pop("from_word.bias"), np.zeros(3 * s.D, np.float32)
    w["score.weight"] = w.pop("attention.v_a")[None]
    return w


def torch(s, compiled=False):
    import torch
    from torch import nn
    from torch.nn.functional import cross_entropy

    class Translator(nn.Module):
        def __init__(self):
            super().__init__()
            self.source, self.target = nn.Embedding(s.V, s.D), nn.Embedding(s.V, s.D)
            self.encoder = nn.GRU(s.D, s.D, batch_first=True, bidirectional=True)
            self.start = nn.Linear(s.D, s.D)
            self.query, self.keys = nn.Linear(s.D, s.D, bias=False), nn.Linear(2 * s.D, s.D, bias=False)
            self.score, self.cell = nn.Linear(s.D, 1, bias=False), nn.GRUCell(3 * s.D, s.D)
            self.cell.bias_hh.requires_grad_(False)
            self.out_state, self.out_word = nn.Linear(s.D, 2 * s.D), nn.Linear(s.D, 2 * s.D, bias=False)
            self.out_context, self.output = nn.Linear(2 * s.D, 2 * s.D, bias=False), nn.Linear(s.D, s.V)

        def forward(self, source, before):
            h, last = self.encoder(self.source(source))                    # (B, S, 2D), (2, B, D)
            state, keys, words = torch.tanh(self.start(last[1])), self.keys(h), self.target(before)
            states, contexts = [], []
            for t in range(s.T):
                scores = self.score(torch.tanh(self.query(state).unsqueeze(1) + keys))  # (B, S, 1)
                context = torch.bmm(torch.softmax(scores, 1).transpose(1, 2), h).squeeze(1)
                states.append(state)
                contexts.append(context)
                state = self.cell(torch.cat([words[:, t], context], 1), state)
            read = self.out_state(torch.stack(states, 1)) + self.out_word(words) + self.out_context(torch.stack(contexts, 1))
            return self.output(read.view(s.B, s.T, s.D, 2).amax(-1))

    def loss(model, source, before, after):
        return cross_entropy(model(source, before).view(-1, s.V), after.view(-1))
    return core.torch(Translator(), loss, for_torch(s), batch(s), compiled)


def jax(s):
    import jax
    from jax import lax, nn, numpy

    def gru(x, inner, state):
        """From the input's and the state's share of the gates, (B, 3D) each."""
        (x_r, x_z, x_n), (h_r, h_z, h_n) = numpy.split(x, 3, 1), numpy.split(inner, 3, 1)
        z = nn.sigmoid(x_z + h_z)
        return z * state + (1 - z) * numpy.tanh(x_n + nn.sigmoid(x_r + h_r) * h_n)

    def one_way(w, x, suffix, reverse):
        ih, hh, b_ih, b_hh = (w[f"encoder.rnn.{name}_{suffix}"] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))

        def step(state, x):
            state = gru(x, state @ hh.T + b_hh, state)
            return state, state
        return lax.scan(step, numpy.zeros((s.B, s.D)), x @ ih.T + b_ih, reverse=reverse)

    def loss(w, source, before, after):
        d = {name.replace("decoder.", ""): a for name, a in w.items() if name.startswith("decoder.")}
        x = w["encoder.embedding.weight"][source.T]                        # (S, B, D): scans run over the first axis
        (_, forward), (last, back) = one_way(w, x, "l0", False), one_way(w, x, "l0_reverse", True)
        h = numpy.concatenate([forward, back], 2).swapaxes(0, 1)           # (B, S, 2D)
        keys, words = h @ d["attention.w_k"].T, d["embedding.weight"][before.T]

        def step(state, x):
            scores = numpy.tanh((state @ d["attention.w_q"].T)[:, None] + keys) @ d["attention.v_a"]  # (B, S)
            context = numpy.einsum("bs,bse->be", nn.softmax(scores), h)
            return gru(x + context @ d["from_context.weight"].T, state @ d["w_hh"].T, state), (state, context)

        first = numpy.tanh(last @ d["start.weight"].T + d["start.bias"])
        _, (states, contexts) = lax.scan(step, first, words @ d["from_word.weight"].T + d["from_word.bias"])
        read = (states @ d["out_state.weight"].T + d["out_state.bias"] + words @ d["out_word.weight"].T
                + contexts @ d["out_context.weight"].T).reshape(s.T, s.B, s.D, 2).max(-1)
        logits = read @ d["output.weight"].T + d["output.bias"]            # (T, B, V)
        return -jax.numpy.take_along_axis(nn.log_softmax(logits), after.T[..., None], 2).mean()
    return core.jax(loss, weights(s), batch(s))


def row(s):
    return Row("training step: Bahdanau translator", f"B,T,V,D = {s.B},{s.T},{s.V},{s.D}", "training",
               core.sides(globals(), s), {"torch": 1.8, "jax": 1}, twin=True, floor=floor(s), tolerance=core.TOLERANCE)


def rows():
    return [row(Sizes())]
