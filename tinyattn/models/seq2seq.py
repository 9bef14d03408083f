r"""A recurrent encoder-decoder, with and without attention over the source words.

Encoder    h_j = [forward_j ; backward_j], the states of a bidirectional recurrent layer over the source words
With attention (Bahdanau et al. 2015, their appendix A, exactly):

    s_0 = tanh(W_s backward_1)                          the backward state at the first word has read the whole sentence
    c_i = attention(query s_{i-1}, keys h, values h)    the *previous* state asks
    s_i = GRU(s_{i-1}, [E y_{i-1} ; c_i])               the context enters all three gates; reset before, z writes
    t_i = U_o s_{i-1} + V_o E y_{i-1} + C_o c_i         read-out, from s_{i-1} as the paper has it
    p(y_i) = softmax(W_o maxout(t_i))                   maxout: the larger of each two neighbours

Without attention the same decoder has one fixed c, a summary of the whole sentence:

    context="every"    c enters every step, as in Cho et al. 2014
    context="start"    c only makes s_0, as in Sutskever et al. 2014, who also read the source backwards

There is no word for "end" in s_0's place and no state carried between batches. B batch, S source length, T target length, N
hidden width, M embedding width, A alignment units, V vocabulary.
"""
import inspect

import numpy as np

from .. import nn
from ..attention import find, mask, table, weigh
from ..attention.core import show, wanted
from ..autograd import capture, no_grad, scope
from ..errors import InputError
from ..functional import concat, cross_entropy, stack
from ..nn import init
from ..ops.attention_decoder import AttentionDecoder
from ..ops.gru import GRUScan
from ..ops.lstm import LSTMScan
from ..ops.rnn import RNNScan
from ..tensor import Tensor

CELLS = {"rnn": 1, "gru": 3, "lstm": 4}  # blocks of N rows in the weights of a cell
PAPER = {"reset": "before", "update": "write"}  # the paper's GRU, see `ops/gru.py`


class Encoder(nn.Module):
    """Source ids (B, S) to annotations (B, S, 2N) and a summary of the sentence (B, 2N); N in place of 2N if one-way."""

    def __init__(self, vocabulary, embed, hidden, cell="gru", bidirectional=True, dropout=0.0):
        self.embedding = nn.Embedding(vocabulary, embed)
        self.drop = nn.Dropout(dropout)
        layer = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}[cell]
        self.rnn = layer(embed, hidden, bidirectional=bidirectional, **(PAPER if cell == "gru" else {}))
        self.width = hidden * (2 if bidirectional else 1)
        self.cell, self.bidirectional = cell, bidirectional

    def forward(self, ids, lengths):
        h, last = self.rnn(self.drop(self.embedding(ids)), lengths=lengths)           # (B, S, 2N), (directions, B, N)
        last = last[0] if self.cell == "lstm" else last
        return h, concat([last[0], last[1]], -1) if self.bidirectional else last[0]

    @staticmethod
    def example(rng):
        """Two source sentences of 4 and 2 words, two targets of 3."""
        source, lengths, before, _ = _example(rng)
        return Encoder(6, 3, 2), (source, lengths)


class Decoder(nn.Module):
    """Target ids (B, T), annotations and summary to logits (B, T, V)."""
    gru = PAPER  # the conventions of the cell "gru"

    def __init__(self, vocabulary, embed, hidden, annotation, cell="gru", attention="additive", context="every",
                 align=None, dropout=0.0):
        self.hidden, self.cell, self.context = hidden, cell, context
        rows = CELLS[cell] * hidden
        self.embedding = nn.Embedding(vocabulary, embed)
        self.drop = nn.Dropout(dropout)
        self.start = nn.Linear(hidden if attention != "none" else annotation, hidden)  # W_s
        self.from_word = nn.Linear(embed, rows)                                        # W, with the biases of the gates
        self.w_hh = nn.Parameter(init.orthogonal((rows, hidden), CELLS[cell]))         # U
        fed = attention != "none" or context == "every"
        self.from_context = nn.Linear(annotation, rows, bias=False) if fed else None   # C
        self.out_state = nn.Linear(hidden, 2 * hidden)                                 # U_o; without attention it reads s_i
        self.out_word = nn.Linear(embed, 2 * hidden, bias=False)                       # V_o
        self.out_context = nn.Linear(annotation, 2 * hidden, bias=False) if fed else None  # C_o
        self.output = nn.Linear(hidden, vocabulary)                                    # W_o
        self.variant = None if attention == "none" else find(attention)
        if self.variant is not None:
            check_serves(self.variant)
            sizes = {"D": hidden} if hidden == annotation else {}
            self._make_attention(self.variant.shapes(A=align or hidden, Q=hidden, K=annotation, E=annotation, **sizes))
            if self.variant is not find("additive"):  # which fits all widths, and to try it compiles kernels
                self._try_attention(annotation, (1, hidden))

    # -- what is computed once a sentence ----------------------------------------------------------------------------
    def prepare(self, h, summary, lengths):
        """The memory of a source batch: what every decoder step needs. A dictionary of Tensors whose axis 0 is B."""
        if self.variant is None:
            memory = {"c": summary}
            if self.from_context is not None:
                memory["gates"] = self.from_context(summary)                           # (B, 3N), the same at every step
            return memory
        memory = {"h": h, "mask": mask.from_lengths(lengths, h.shape[1])}
        if self.variant.part("prepare"):
            memory["keys"] = self._with_parameters(self.variant.part("prepare"), h)    # U_a h_j, once a sentence
        return memory

    def first_state(self, summary):
        """s_0 (and a cell of zeros for the LSTM)."""
        s = self.start(summary if self.variant is None else summary[:, -self.hidden:]).tanh()
        return (s, s * 0.0) if self.cell == "lstm" else (s,)

    def _with_parameters(self, function, *args, **more):
        """Call a mechanism's function with the learned parameters that it names (all, if it passes them on)."""
        return function(*args, **wanted(function, self.attention), **more)

    def _make_attention(self, shapes):
        """The learned parameters of the mechanism, of shapes {name: shape}."""
        self.attention = {name: nn.Parameter(init.uniform(shape, 1 / np.sqrt(shape[-1] if shape else 1)))
                          for name, shape in shapes.items()}

    def _try_attention(self, annotation, query):
        """InputError, now and not in the first step, unless the mechanism fits this decoder's widths: annotations
        (1, 2, annotation) and states of the shape `query`."""
        ones, width = Tensor(np.ones((1, 2, annotation), np.float32)), annotation
        try:
            with no_grad():
                memory = self.prepare(ones, ones[:, 0], Tensor([2]))
                width = memory["h"].shape[-1]
                c = self.attend(Tensor(np.ones(query, np.float32)), memory)
        except ValueError as error:
            raise InputError(f"attention {self.variant.name}: does not fit this decoder, whose queries are "
                             f"{self.hidden} and keys {width} wide: {error}") from error
        if c.shape != (*query[:-1], width):
            raise InputError(f"attention {self.variant.name}: does not fit this decoder: expected one context of width "
                             f"{width} for a query, got shape {c.shape[1:]}")

    def attend(self, s, memory):
        """c_i (B, 2N) for the states s (B, N)."""
        q, h = s.reshape(s.shape[0], 1, -1), memory["h"]                               # (B, 1, N)
        with scope(self.variant.name):
            if "keys" in memory:
                e = self._with_parameters(self.variant.part("scores"), q, memory["keys"])
                c = weigh(e, h, memory["mask"])                                        # (B, 1, 2N)
            else:
                c = self._with_parameters(self.variant.function, q, h, h, mask=memory["mask"])
        return c.reshape(c.shape[0], -1)

    # -- steps -------------------------------------------------------------------------------------------------------
    def scan(self, x, state):
        """Run the cell over projected inputs x (B, T, rows): all states (B, T, N), the last state."""
        if self.cell == "lstm":
            out, h, c = LSTMScan()(x, *state, self.w_hh, None, None)
            return out, (h, c)
        op = GRUScan(**self.gru) if self.cell == "gru" else RNNScan()
        out, h = op(x, *state, self.w_hh, None, None)
        return out, (h,)

    def step(self, x, state, memory):
        """One step with attention: x (B, rows) the word's share of the gates. Returns (c, new state)."""
        c = self.attend(state[0], memory)
        gates = x + self.from_context(c)                                               # c enters all gates
        _, state = self.scan(gates.reshape(x.shape[0], 1, -1), state)
        return c, state

    def read_out(self, s, word, c):
        """Logits (..., V) of states (..., N), words (..., M) and contexts (..., 2N)."""
        t = self.out_state(s) + self.out_word(word)
        t = t if c is None or self.out_context is None else t + self.out_context(c)
        t = t.reshape(*t.shape[:-1], self.hidden, 2).max(-1)                           # maxout
        return self.output(self.drop(t))

    def forward(self, ids, h, summary, lengths):
        """Teacher forcing: ids (B, T) are the words before each target word. Logits (B, T, V)."""
        word = self.drop(self.embedding(ids))                                          # (B, T, M)
        x = self.from_word(word)                                                       # (B, T, rows)
        memory, state = self.prepare(h, summary, lengths), self.first_state(summary)
        if self.variant is None:
            if "gates" in memory:
                x = x + memory["gates"].unsqueeze(1)
            s, _ = self.scan(x, state)                                                 # all T steps in one op
            return self.read_out(s, word, summary.unsqueeze(1))
        s, c = (self.paper_steps if self.cell == "gru" and self.variant is find("additive") else self.steps)(
            x, state, memory)
        return self.read_out(s, word, c)

    def steps(self, x, state, memory):
        """The states before each step (B, T, N) and what they found (B, T, 2N), with any mechanism, step by step."""
        before, contexts = [], []
        for t in range(x.shape[1]):
            before.append(state[0])
            with scope(f"step {t}"):
                c, state = self.step(x[:, t], state, memory)
            contexts.append(c)
        return stack(before, 1), stack(contexts, 1)

    def paper_steps(self, x, state, memory):
        """The same in one op, with the paper's mechanism and cell. The weights can be had again from the states."""
        def scores():
            return self._with_parameters(self.variant.part("scores"), s, memory["keys"])  # (B, T, S)

        a, where = self.attention, memory["mask"]
        s, c = AttentionDecoder(**self.gru)(x, *state, memory["h"], memory["keys"], a["w_q"], a["v_a"],
                                            self.from_context.weight, self.w_hh, where)
        with scope(self.variant.name):
            show(scores, where, lambda: scores().softmax(-1, where))
        return s, c

    def next_word(self, ids, state, memory, summary):
        """Logits (B, V) of the word after `ids` (B,), and the new state. For translating one word at a time."""
        word = self.embedding(ids)
        x = self.from_word(word)
        if self.variant is not None:
            before = state[0]
            c, state = self.step(x, state, memory)
            return self.read_out(before, word, c), state
        x = x + memory["gates"] if "gates" in memory else x
        _, state = self.scan(x.unsqueeze(1), state)
        return self.read_out(state[0], word, summary), state

    @staticmethod
    def example(rng):
        """Two source sentences of 4 and 2 words, two targets of 3."""
        _, lengths, before, _ = _example(rng)
        h = Tensor(rng.normal(size=(2, 4, 4)))
        return Decoder(6, 3, 2, 4), (before, h, h[:, 0], lengths)


class Seq2Seq(nn.Module):
    """Encoder and decoder. `init_as`: "modern" (uniform by width as in nn.Linear and nn.GRU, U orthogonal) or "paper"."""

    def __init__(self, source_size, target_size, embed=64, hidden=64, cell="gru", attention="additive", context="every",
                 bidirectional=True, align=None, dropout=0.0, init_as="modern"):
        if attention != "none" and not bidirectional:
            raise ValueError("seq2seq: attention needs the bidirectional encoder, whose states it attends to")
        self.encoder = Encoder(source_size, embed, hidden, cell, bidirectional, dropout)
        self.decoder = Decoder(target_size, embed, hidden, self.encoder.width, cell, attention, context, align, dropout)
        if init_as == "paper":
            _as_in_paper(self)

    def forward(self, source, source_lengths, before):
        """source (B, S), lengths (B,), target words shifted right (B, T): logits (B, T, V)."""
        h, summary = self.encoder(source, source_lengths)
        return self.decoder(before, h, summary, source_lengths)

    def loss(self, source, source_lengths, before, after, pad=0):
        """The mean cross-entropy of the target words `after` (B, T), padding left out."""
        return cross_entropy(self(source, source_lengths, before), after, ignore_index=pad)

    def weights_by_hop(self, source, source_lengths, before):
        """Attention weights (B, hops, T, S) of each step under teacher forcing, as an array; most mechanisms have one
        hop. None for a model without attention."""
        if self.decoder.variant is None:
            return None
        with no_grad(), capture() as seen:
            self(source, source_lengths, before)
        weights = [w.numpy() for w in seen["weights"]]                                 # (B, T, S), or T times (B, 1, S)
        return np.concatenate([w if w.ndim == 4 else w[:, None] for w in weights], 2)  # (B, hops, T, S)

    def alignment(self, source, source_lengths, before):
        """Attention weights (B, T, S) of each step under teacher forcing, or None for a model without attention. Of a
        mechanism with hops, those of the last hop."""
        weights = self.weights_by_hop(source, source_lengths, before)
        return None if weights is None else weights[:, -1]

    def word_weights(self, source, source_lengths, before, after, lag=0):
        """Attention weights (B, T, S) by target word, or None: row t tells where the word after[:, t] came from.

        lag = 0 takes them from the step that predicts the word; lag = 1 from the step after it, which reads the word
        (`models/luong.py` says why). The end mark is read too then, in one more step, so that each word has its row.
        """
        if not lag:
            return self.alignment(source, source_lengths, before)
        weights = self.alignment(source, source_lengths, concat([before[:, :1], after], 1))
        return None if weights is None else weights[:, 1:]

    @staticmethod
    def example(rng):
        """Two source sentences of 4 and 2 words, two targets of 3."""
        source, lengths, before, _ = _example(rng)
        return Seq2Seq(6, 6, 3, 2), (source, lengths, before)


def check_serves(variant, start=False):
    """InputError if a mechanism asks for more than a decoder can give: q, k, v and a mask, and with `start` the place
    of the query in its sentence."""
    if not _serves(variant, start):
        raise InputError(f"attention {variant.name}: a decoder attends with q, k, v and a mask, one query at a time; "
                         f"{variant.name} takes {', '.join(variant.arguments)}. Expected one of "
                         f"{', '.join(name for name, v in table().items() if _serves(v, start))}")


def _serves(variant, start):
    """Does it take q, k, v, its parameters and a mask, and nothing else that a decoder would have to give?"""
    needed = {name for name, p in inspect.signature(variant.function).parameters.items()
              if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD and name not in variant.letters()}
    several = "M" in "".join(variant.letters().values())  # several contexts for a query
    placed = "start" in variant.arguments and not start
    return needed == {"q", "k", "v"} and "mask" in variant.arguments and not placed and not several


def _set(parameter, value):
    with no_grad():
        parameter.copy_(value)


def _as_in_paper(model):
    """Bahdanau et al. 2015, B.1: recurrent matrices orthogonal, W_a and U_a of variance 0.001^2, v_a and biases 0, the
    rest of variance 0.01^2."""
    n = model.decoder.hidden
    for name, p in model.named_parameters():
        last = name.rsplit(".", 1)[-1]
        if "w_hh" in name or "weight_hh" in name:
            value = init.orthogonal(p.shape, p.shape[0] // n)
        elif p.ndim == 1:
            value = np.zeros(p.shape)
        else:
            value = init.normal(p.shape, 0.001 if last in ("w_q", "w_k") else 0.01)
        _set(p, value)


def _example(rng):
    draw = lambda lengths: [rng.integers(1, 6, n).tolist() for n in lengths]  # noqa: E731
    source, lengths = pack(draw([4, 2]))
    return source, lengths, pack(draw([3, 3]))[0], pack(draw([3, 3]))[0]


def pack(sentences, pad=0):
    """Lists of ids to (B, T) and lengths (B,), as data for the model."""
    lengths = np.array([len(s) for s in sentences], np.int64)
    ids = np.full((len(sentences), int(lengths.max(initial=1))), pad, np.int64)
    for row, s in zip(ids, sentences, strict=True):
        row[:len(s)] = s
    return Tensor(ids), Tensor(lengths)
