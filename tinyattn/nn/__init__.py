"""Modules: functions with parameters. Begin with `module.py`."""
from . import init
from .attention import MultiHeadAttention
from .layers import Dropout, Embedding, LayerNorm, Linear
from .module import Module, Parameter, example_of, outputs_of
from .recurrent import GRU, LSTM, RNN, GRUCell, LSTMCell, RNNCell

__all__ = ["GRU", "LSTM", "RNN", "Dropout", "Embedding", "GRUCell", "LSTMCell", "LayerNorm", "Linear", "Module",
           "MultiHeadAttention", "Parameter", "RNNCell", "example_of", "init", "outputs_of"]
