r"""Luong's encoder-decoder: the state that has just read a word asks, and what it finds helps to predict the next one.

    hs     = W_m [forward ; backward]               the encoder's states (B, S, N), N the decoder's width
    h_t    = cell(h_{t-1}, [E y_{t-1} ; h~_{t-1}])  h~ with input feeding only; h~_0 = 0, h_0 = tanh(W_s summary)
    c_t    = attention(query h_t, keys hs, values hs)
    h~_t   = tanh(W_c [c_t ; h_t])
    p(y_t) = softmax(W_o h~_t + b)

Luong, Pham and Manning 2015, "Effective approaches to attention-based neural machine translation"; the mechanisms and
their scores are files of `attention/`: `luong_global`, `local_m`, `local_p`, `input_feeding`. The order is that of Hu
2018, eq. 1. Bahdanau's (`seq2seq.py`) asks with the state before, and has no h~.

Differences from the paper: it has four LSTM layers in each half, that read one way; here there is one, of any cell,
and the encoder reads both ways unless told otherwise. W_m brings both ways together to the width N, so that the dot
product is defined; there is none where the encoder reads one way. The decoder starts from a projection of the
encoder's last states, not from the states themselves.

Without input feeding no step waits for what the one before it found: one scan makes all h_t, one call all c_t. Without
attention c_t is the summary of the sentence at every step (context="every") or is left out ("start").

Which word do the weights of step t belong to, the step that reads y_{t-1} and predicts y_t? The paper (footnote 14)
takes them for y_t under the score `location`, and for y_{t-1} under the scores that look at content. Here they belong
to y_t under all of them, which c_t is there to predict: after 1,500 steps on the built-in task the alignment error
rate was 0.08 to 0.19 for `general`, global and local-p, GRU and LSTM, against 0.76 to 0.79 when read off for y_{t-1}.
`Seq2Seq.word_weights` is the one place that knows (its `lag`), and `evaluate` measures it both ways.

Shapes: B batch, S source length, T target length, N hidden width, M embedding width, V vocabulary.
"""
import numpy as np

from .. import nn
from ..attention import find, mask, table, weigh
from ..attention.core import scores_of
from ..attention.luong_global import attentional
from ..autograd import scope
from ..errors import InputError
from ..functional import linear, stack, zeros
from ..nn import init
from ..tensor import Tensor
from .seq2seq import CELLS, Decoder, Encoder, Seq2Seq, _example, _set, check_serves


class LuongDecoder(Decoder):
    """Target ids (B, T), annotations and summary to logits (B, T, V).

    score           of a mechanism that takes one by name: that name; "" for the mechanism's own
    input_feeding   h~ enters the next step
    window          D of local_m and local_p; 0 for their own
    longest         L of the score `location`: the most source words that it knows the places of
    InputError for what does not fit together.
    """

    def __init__(self, vocabulary, embed, hidden, annotation, cell="gru", attention="luong_global", context="every",
                 align=None, dropout=0.0, score="", input_feeding=True, window=0, longest=51):
        self.hidden, self.cell, self.context = hidden, cell, context
        rows = CELLS[cell] * hidden
        self.embedding = nn.Embedding(vocabulary, embed)
        self.drop = nn.Dropout(dropout)
        self.start = nn.Linear(annotation, hidden)                                     # W_s
        self.from_word = nn.Linear(embed, rows)
        self.from_fed = nn.Linear(hidden, rows, bias=False) if input_feeding else None
        self.w_hh = nn.Parameter(init.orthogonal((rows, hidden), CELLS[cell]))
        self.variant, self.score, self.settings = None if attention == "none" else find(attention), "", {}
        attends = self.variant is not None
        self.bridge = nn.Linear(annotation, hidden, bias=False) if attends and annotation != hidden else None  # W_m
        if self.bridge is not None:  # rows at right angles: keys as large as states, or the scores begin near 0
            self.bridge.weight = nn.Parameter(init.orthogonal((hidden, annotation)))
        found = hidden if attends else annotation if context == "every" else 0         # how wide c_t is
        self.w_c = nn.Parameter(init.xavier((hidden, found + hidden)))
        self.output = nn.Linear(hidden, vocabulary)                                    # W_o
        if attends:
            self._choose(score, window)
            sizes = dict.fromkeys("QKED", hidden)
            self._make_attention(self.variant.shapes(self.score or None, A=align or hidden, L=longest, **sizes))
            self._try_attention(annotation, (1, 1, hidden))

    def _choose(self, score, window):
        """Set `score` (a name, or "" for none), `asks` (the score itself, or None) and `settings`."""
        v = self.variant
        check_serves(v, start=True)
        known = [name for name, entry in table().items() if entry.is_score] if score else []
        if score and "score" not in v.arguments:
            raise InputError(f"attention {v.name}: takes no score by name, got score {score!r}")
        if score and score not in known:
            raise InputError(f"score: expected one of {', '.join(known)}, got {score!r}")
        if window and "width" not in v.arguments:
            raise InputError(f"attention {v.name}: has no window, got window {window}")
        if window < 0:
            raise InputError(f"window: expected a number of at least 0, got {window}")
        self.score = score or v.score
        self.asks = v if v.is_score else find(self.score) if self.score else None
        self.settings = {"width": window} if window else {}

    # -- what is computed once a sentence ----------------------------------------------------------------------------
    def prepare(self, h, summary, lengths):
        """The memory of a source batch: what every decoder step needs. A dictionary of Tensors whose axis 0 is B."""
        if self.variant is None:
            return {"c": summary.unsqueeze(1)} if self.context == "every" else {}
        h = h if self.bridge is None else self.bridge(h)                               # (B, S, N)
        memory = {"h": h, "mask": mask.from_lengths(lengths, h.shape[1])}
        if self.asks is not None:
            prepare = self.asks.part("prepare")
            memory["keys"] = h if prepare is None else self._with_parameters(prepare, h)
        return memory

    def first_state(self, summary):
        """h_0 (and a cell of zeros for the LSTM), h~_0 = 0, and how many words were read, (B,) zeros."""
        h = self.start(summary).tanh()
        nothing = zeros(*h.shape, dtype=h.dtype, device=h.device)
        read = Tensor(np.zeros(len(h), np.int64), device=h.device)
        return (h, nothing, nothing, read) if self.cell == "lstm" else (h, nothing, read)

    # -- steps -------------------------------------------------------------------------------------------------------
    def attend(self, h, memory, place=0):
        """c (B, T, N) for the states h (B, T, N), the first of which belongs to the target word `place`."""
        hs, where, v = memory["h"], memory["mask"], self.variant
        with scope(v.name):
            if v.is_score:
                return weigh(self._scores(h, memory), hs, where)
            more = {"start": place} if "start" in v.arguments else {}
            if self.asks is not None:
                more["score"] = lambda q, k, **a: self._scores(q, memory) if k is hs else scores_of(self.score, q, k, {
                    name: p for name, p in self.attention.items() if name in self.asks.params})
            return self._with_parameters(v.function, h, hs, hs, mask=where, **self.settings, **more)

    def _scores(self, q, memory):
        """(B, T, S), from keys that were prepared once a sentence."""
        return self._with_parameters(self.asks.part("scores"), q, memory["keys"])

    def attentional(self, h, memory, place=0):
        """h~ (B, T, N) for the states h (B, T, N)."""
        if self.variant is not None:
            return attentional(self.attend(h, memory, place), h, self.w_c)
        if "c" not in memory:
            return linear(h, self.w_c).tanh()
        return attentional(memory["c"].expand(-1, h.shape[1], -1), h, self.w_c)

    def step(self, x, state, memory, place=None):
        """One step: x (B, rows) the word's share of the gates. Returns (h~ (B, N), new state). place: how many words were
        read, where it is known without looking into the state."""
        *state, fed, read = state
        gates = x if self.from_fed is None else x + self.from_fed(fed)
        hs, state = self.scan(gates.unsqueeze(1), state)                               # (B, 1, N)
        place = int(read.numpy()[0]) if place is None else place
        fed = self.attentional(hs, memory, place).squeeze(1)
        return fed, (*state, fed, read + 1)

    def forward(self, ids, h, summary, lengths):
        """Teacher forcing: ids (B, T) are the words before each target word. Logits (B, T, V)."""
        x = self.from_word(self.drop(self.embedding(ids)))                             # (B, T, rows)
        memory, state = self.prepare(h, summary, lengths), self.first_state(summary)
        if self.from_fed is None:
            hs, _ = self.scan(x, state[:-2])                                           # all T steps in one op
            return self.output(self.drop(self.attentional(hs, memory)))
        outs = []
        for t in range(ids.shape[1]):
            with scope(f"step {t}"):
                fed, state = self.step(x[:, t], state, memory, t)
            outs.append(fed)
        return self.output(self.drop(stack(outs, 1)))

    def next_word(self, ids, state, memory, summary):
        """Logits (B, V) of the word after `ids` (B,), and the new state. For translating one word at a time."""
        fed, state = self.step(self.from_word(self.embedding(ids)), state, memory)
        return self.output(fed), state

    @staticmethod
    def example(rng):
        """Two source sentences of 4 and 2 words, two targets of 3."""
        _, lengths, before, _ = _example(rng)
        h = Tensor(rng.normal(size=(2, 4, 4)))
        return LuongDecoder(6, 3, 2, 4, "lstm", "local_p", window=2), (before, h, h[:, 0], lengths)


class Luong(Seq2Seq):
    """Encoder and decoder, in Luong's order.

    `init_as`: "modern" (uniform by width as in nn.Linear and nn.GRU, w_hh and W_m orthogonal) or "paper" (all uniform
    in +-0.1). The other options are those of `LuongDecoder`.
    """

    def __init__(self, source_size, target_size, embed=64, hidden=64, cell="lstm", attention="luong_global",
                 context="every", bidirectional=True, align=None, dropout=0.0, init_as="modern", score="",
                 input_feeding=True, window=0, longest=51):
        self.encoder = Encoder(source_size, embed, hidden, cell, bidirectional, dropout)
        self.decoder = LuongDecoder(target_size, embed, hidden, self.encoder.width, cell, attention, context, align,
                                    dropout, score, input_feeding, window, longest)
        if init_as == "paper":
            for p in self.parameters():
                _set(p, init.uniform(p.shape, 0.1))

    @staticmethod
    def example(rng):
        """Two source sentences of 4 and 2 words, two targets of 3."""
        source, lengths, before, _ = _example(rng)
        return Luong(6, 6, 3, 2, score="dot"), (source, lengths, before)
