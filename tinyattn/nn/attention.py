"""Multi-head attention as a layer with parameters of its own; what it computes stands in `attention/multi_head.py`."""
import numpy as np

from ..attention.grouped_query import grouped_query
from ..attention.multi_head import multi_head
from ..tensor import Tensor
from . import init
from .layers import Linear, size
from .module import Module, Parameter, as_input


class MultiHeadAttention(Module):
    r"""y = W_o [head_1; ...; head_H] + b_o, head_h = softmax(q_h k_h^T / sqrt(d)) v_h: x (B, T, D) to (B, T, D).

    width           D, a multiple of `heads`, H; a head has the width d = D / H
    kv_heads        G < H: so many sets of keys and values, each shared by H / G heads (grouped-query; 1: multi-query)
    bias            q_proj, k_proj, v_proj and out_proj have biases; they begin as 0
    dropout         probability for each weight to be dropped in training

    Parts: q_proj (D, D), k_proj and v_proj (G d, D), out_proj (D, D), matrices by Glorot's rule. PyTorch's
    `in_proj_weight` is the first three, one below the other. Called as layer(x, memory=None, mask=None, causal=False,
    cache=None, return_weights=False, average=False); see `multi_head` for what these are. ShapeError where the last
    axis of x or memory is not D.
    """
    null = ("k_proj.bias",)

    def __init__(self, width, heads, kv_heads=None, bias=True, dropout=0.0):
        self.width, self.heads = size("MultiHeadAttention", "width", width), size("MultiHeadAttention", "heads", heads)
        self.kv_heads = self.heads if kv_heads is None else size("MultiHeadAttention", "kv_heads", kv_heads)
        if self.width % self.heads or self.heads % self.kv_heads:
            raise ValueError(f"MultiHeadAttention: expected width to be a multiple of heads, and heads of kv_heads, "
                             f"got {self.width}, {self.heads} and {self.kv_heads}")
        if not 0 <= dropout <= 1:
            raise ValueError(f"MultiHeadAttention: expected dropout to be a probability between 0 and 1, got {dropout}")
        self.dropout, few = dropout, self.width // self.heads * self.kv_heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (
            _glorot(Linear(self.width, n, bias)) for n in (self.width, few, few, self.width))

    def forward(self, x, memory=None, mask=None, causal=False, cache=None, return_weights=False, average=False):
        like = self.q_proj.weight
        parts = self.q_proj, self.k_proj, self.v_proj, self.out_proj
        options = {"mask": mask, "heads": self.heads, "causal": causal, "cache": cache,
                   "return_weights": return_weights, "average": average, "dropout": self.dropout,
                   "training": self.training, "memory": None if memory is None else as_input(memory, like)}
        attend = multi_head
        if self.kv_heads != self.heads:
            attend, options["groups"] = grouped_query, self.kv_heads
        return attend(as_input(x, like), *(p.weight for p in parts), *(p.bias for p in parts), **options)

    @staticmethod
    def example(rng):
        x, memory = Tensor(rng.normal(size=(2, 3, 8))), Tensor(rng.normal(size=(2, 5, 8)))
        return MultiHeadAttention(8, 4, kv_heads=2), (x, memory, np.arange(5) < np.array([5, 2])[:, None, None])


def _glorot(layer):
    """The layer with Glorot's matrix and a bias of 0, as Transformers begin."""
    layer.weight = Parameter(init.xavier(layer.weight.shape))
    layer.bias = None if layer.bias is None else Parameter(init.zeros(layer.bias.shape))
    return layer
