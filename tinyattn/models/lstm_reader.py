"""The reader without attention: an LSTM goes over the story and the question as one text, and answers from its last
state (Weston et al. 2015, "Towards AI-complete question answering", the LSTM baseline).

    x = words of the story, oldest first, then those of the question       (B, T)
    h = LSTM(words[x]), its state behind the last word                     (B, D)
    answer = softmax(W h + b)                                              (B, A)

Whatever an answer needs has to pass through that one state.
"""
from .. import functional, nn
from ..tasks.text import pad
from ..tensor import Tensor


class LSTMReader(nn.Module):
    """Texts (B, T) of word ids and their lengths (B,) to logits (B, A).

    options     with the fields hidden (D), memory (sentences kept of a story, the newest) and dropout
    """

    def __init__(self, vocabulary, answers, options):
        self.memory, self.dropout = options.memory, options.dropout
        self.words = nn.Embedding(vocabulary, options.hidden, padding=0)
        self.reader = nn.LSTM(options.hidden, options.hidden)
        self.answer = nn.Linear(options.hidden, answers)

    def arrays(self, samples, words, bucket=1):
        """The story's newest sentences and the question as one text: ids (B, T), 0 for padding, and lengths (B,)."""
        texts = [[w for sentence in (*s.story[-self.memory:], s.question) for w in sentence] for s in samples]
        ids, lengths = pad([words.encode(text) for text in texts], bucket=bucket)
        return Tensor(ids), Tensor(lengths)

    def forward(self, ids, lengths):
        x = functional.dropout(self.words(ids), self.dropout, self.training)     # (B, T, D)
        h = self.reader(x, lengths=lengths)[1][0].squeeze(0)                     # (B, D)
        return self.answer(functional.dropout(h, self.dropout, self.training))   # (B, A)

    def hops(self, ids, lengths):
        """None: it looks back at nothing."""

    @staticmethod
    def example(rng):
        options = type("Sizes", (), {"hidden": 3, "memory": 4, "dropout": 0.0})
        return LSTMReader(7, 3, options), (rng.integers(1, 7, size=(2, 5)), Tensor([5, 3]))
