"""Functions of Tensors that are no methods: making them, choosing, joining, contracting, losses.

Whatever is not an op of its own is built here from ops, in the open: `conv1d` is windows times weights, `einsum` a sequence of
matrix products.
"""
import math

import numpy as np

from . import random
from .autograd import tap
from .ops.additive import AdditiveScores
from .ops.additive_2d import Additive2d
from .ops.attention import Attention
from .ops.binary import Maximum, Minimum
from .ops.broadcast import ShapeError
from .ops.dropout import Dropout
from .ops.featurewise import FeaturewiseAttention
from .ops.index import Embedding
from .ops.linalg import Solve
from .ops.loss import CrossEntropy
from .ops.matmul import Affine
from .ops.norm import LayerNorm
from .ops.sparsemax import Entmax15, Sparsemax
from .tensor import Tensor, _arithmetic, _float, _ids, _mask, _match, _operand, get_default_dtype


# ---------------------------------------------------------------------------------------------------------------------
# factories
# ---------------------------------------------------------------------------------------------------------------------
def from_numpy(array):
    """A Tensor that shows the memory of a NumPy array, which must not be changed while a graph uses it."""
    array = np.asarray(array)
    if array.dtype not in (np.float32, np.float64, np.int64, np.bool_):
        raise TypeError(f"from_numpy: expected float32, float64, int64 or bool, got {array.dtype}; Tensor(array) converts")
    view = array.view()
    view.flags.writeable = False
    return Tensor._wrap(view, None, 0, False)


def full(shape, value, dtype=None, requires_grad=False, device=None):
    """A Tensor of `shape` filled with one value."""
    dtype = dtype or (get_default_dtype() if isinstance(value, float) else None)
    return Tensor(np.full(shape, value, dtype), requires_grad, device=device)


def zeros(*shape, dtype=None, requires_grad=False, device=None):
    return full(_sizes(shape), 0.0, dtype, requires_grad, device)


def ones(*shape, dtype=None, requires_grad=False, device=None):
    return full(_sizes(shape), 1.0, dtype, requires_grad, device)


def zeros_like(x):
    return Tensor(np.zeros(x.shape, x.dtype), device=x.device)


def ones_like(x):
    return Tensor(np.ones(x.shape, x.dtype), device=x.device)


def arange(start, stop=None, step=1, dtype=None, device=None):
    """start, start + step, ... below stop, as in NumPy."""
    return Tensor(np.arange(start, stop, step) if stop is not None else np.arange(start), dtype=dtype, device=device)


def eye(n, m=None, dtype=None, device=None):
    return Tensor(np.eye(n, m, dtype=dtype or get_default_dtype()), device=device)


def randn(*shape, dtype=None, requires_grad=False, device=None):
    """Normal random numbers from the package's generator."""
    return Tensor(random.generator().normal(size=_sizes(shape)), requires_grad, dtype or get_default_dtype(), device)


def rand(*shape, dtype=None, requires_grad=False, device=None):
    """Random numbers spread evenly over [0, 1), from the package's generator."""
    return Tensor(random.generator().random(_sizes(shape)), requires_grad, dtype or get_default_dtype(), device)


def randint(low, high, shape, device=None):
    """Whole random numbers low .. high - 1."""
    return Tensor(random.generator().integers(low, high, shape), device=device)


def _sizes(shape):
    return tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape


# ---------------------------------------------------------------------------------------------------------------------
# choosing and joining
# ---------------------------------------------------------------------------------------------------------------------
def where(condition, x, y):
    """x where `condition` is True, y elsewhere; what is not chosen reaches neither value nor gradient."""
    if not isinstance(x, Tensor):
        x = _operand(x, y) if isinstance(y, Tensor) else Tensor(x)
    return x.where(condition, y)


def maximum(x, y):
    return _arithmetic(Maximum, x, y)


def minimum(x, y):
    return _arithmetic(Minimum, x, y)


def concat(tensors, axis=0):
    """Tensors one after the other along an axis that exists."""
    return Tensor.concat(tensors, axis)


cat = concat


def stack(tensors, axis=0):
    """Tensors of one shape along a new axis."""
    return Tensor.stack(tensors, axis)


def unbind(x, axis=0):
    """The Tensors along an axis, without that axis."""
    return tuple(piece.squeeze(axis) for piece in x.split(1, axis)) if x.shape[axis] else ()


def embedding(weight, ids, padding=None):
    """weight (V, D), ids (...) to (..., D). The row `padding` gets no gradient. IndexError for an id outside 0 .. V-1."""
    return Embedding(padding)(weight, _ids("embedding", ids, weight.device))


def rows_at(x, places):
    """x (B, T, D), places (B, ...) to (B, ..., D): from each sequence its rows at these places, whole numbers below T."""
    B, T, D = x.shape
    places = _ids("rows_at", places, x.device).numpy()
    first = (np.arange(B) * T).reshape(B, *[1] * (places.ndim - 1))        # where each sequence begins among all rows
    return embedding(x.reshape(B * T, D), Tensor(first + places, device=x.device))


def solve(a, b):
    """x with a x = b: a (..., n, n), b (..., n, m) or (n,). ValueError if a is singular."""
    a, b = map(_float, _match(a, b))
    return Solve()(a, b.unsqueeze(-1)).squeeze(-1) if b.ndim == 1 else Solve()(a, b)


# ---------------------------------------------------------------------------------------------------------------------
# products
# ---------------------------------------------------------------------------------------------------------------------
def linear(x, weight, bias=None):
    """x (..., I) times weight (O, I) transposed, plus bias (O,): (..., O)."""
    return Affine()(x, weight, bias)


def conv1d(x, weight, bias=None, stride=1, padding=0, dilation=1):
    """y[b, o, t] = bias[o] + sum over c, k of weight[o, c, k] x[b, c, t * stride + k * dilation].

    x (B, C, T), weight (O, C, K), bias (O,); zeros are put on both sides (`padding` of them). Result (B, O, T').
    """
    if x.ndim != 3 or weight.ndim != 3 or x.shape[1] != weight.shape[1]:
        raise ShapeError(f"conv1d: expected x (B, C, T) and weight (O, C, K) with one C, got {x.shape} and {weight.shape}")
    x = x.pad(((0, 0), (0, 0), (padding, padding))) if padding else x
    windows = x.unfold(weight.shape[2], stride, dilation)                       # (B, C, T', K)
    b, c, t, k = windows.shape
    rows = windows.permute(0, 2, 1, 3).reshape(b, t, c * k)                     # (B, T', C K)
    y = (rows @ weight.reshape(weight.shape[0], c * k).T).transpose(1, 2)       # (B, O, T')
    return y if bias is None else y + bias.reshape(-1, 1)


def einsum(equation, *operands):
    """Einstein's summation: `einsum("bij,bjk->bik", x, y)`. Letters name axes; those absent on the right are summed up.

    Without `->` the result has the letters that occur once, in alphabetic order. No `...`; a letter may occur twice in one
    operand (the diagonal). Operands are contracted from left to right, each step one batched matrix product.
    """
    equation = equation.replace(" ", "")
    left, arrow, right = equation.partition("->")
    names = left.split(",")
    if len(names) != len(operands):
        raise ShapeError(f"einsum: {equation!r} names {len(names)} operands, got {len(operands)}")
    if not arrow:
        right = "".join(sorted(c for c in set(left) - {","} if left.count(c) == 1))
    if not set(right) <= set(left) or len(set(right)) != len(right) or not left.replace(",", "").isalpha():
        raise ShapeError(f"einsum: cannot read {equation!r}: expected letters, as in 'ij,jk->ik'")
    like = next((x for x in operands if isinstance(x, Tensor)), None)
    operands = [x if isinstance(x, Tensor) else Tensor(x) if like is None else _operand(x, like) for x in operands]
    sizes = {}
    for name, x in zip(names, operands, strict=True):
        if len(name) != x.ndim:
            raise ShapeError(f"einsum: {name!r} names {len(name)} axes, the operand has shape {x.shape}")
        for letter, n in zip(name, x.shape, strict=True):
            if sizes.setdefault(letter, n) != n:
                raise ShapeError(f"einsum: axis {letter!r} of {equation!r} has lengths {sizes[letter]} and {n}")
    terms = [_diagonal(name, x) for name, x in zip(names, operands, strict=True)]
    while len(terms) > 1:
        later = set(right).union(*(name for name, _ in terms[2:]))
        terms[:2] = [_contract(terms[0], terms[1], later, sizes)]
    name, x = _sum_out(*terms[0], set(right))
    return x.permute(*[name.index(c) for c in right]) if name != right else x


def _diagonal(name, x):
    """Take the diagonal of axes that share a letter."""
    for letter in dict.fromkeys(name):
        while name.count(letter) > 1:
            i = name.index(letter)
            j = name.index(letter, i + 1)
            x = x.permute(*[a for a in range(x.ndim) if a not in (i, j)], i, j)
            steps = np.arange(x.shape[-1])
            x = x[(..., steps, steps)]
            name = name[:i] + name[i + 1:j] + name[j + 1:] + letter
    return name, x


def _sum_out(name, x, keep):
    drop = tuple(i for i, c in enumerate(name) if c not in keep)
    return ("".join(c for c in name if c in keep), x.sum(drop)) if drop else (name, x)


def _contract(first, second, keep, sizes):
    """Two operands as (batch, rows, summed) times (batch, summed, columns)."""
    a, x = _sum_out(*first, keep | set(second[0]))
    b, y = _sum_out(*second, keep | set(a))
    both = [c for c in a if c in b]
    batch, summed = [c for c in both if c in keep], [c for c in both if c not in keep]
    rows, columns = [c for c in a if c not in b], [c for c in b if c not in a]
    size = [math.prod(sizes[c] for c in group) for group in (batch, rows, summed, columns)]
    x = x.permute(*[a.index(c) for c in batch + rows + summed]).reshape(size[0], size[1], size[2])
    y = y.permute(*[b.index(c) for c in batch + summed + columns]).reshape(size[0], size[2], size[3])
    name = "".join(batch + rows + columns)
    return name, (x @ y).reshape(tuple(sizes[c] for c in name))


# ---------------------------------------------------------------------------------------------------------------------
# layers and losses without parameters of their own
# ---------------------------------------------------------------------------------------------------------------------
def softmax(x, axis=-1, mask=None):
    return x.softmax(axis, mask)


def log_softmax(x, axis=-1, mask=None):
    return x.log_softmax(axis, mask)


def sparsemax(x, axis=-1, mask=None):
    """The point of the simplex nearest to x along `axis` (Martins and Astudillo 2016): many elements are exactly 0."""
    x = _float(x)
    return Sparsemax(axis)(x, _mask(mask, x.device))


def entmax15(x, axis=-1, mask=None):
    """Half way from softmax to sparsemax (Peters et al. 2019, alpha = 1.5)."""
    x = _float(x)
    return Entmax15(axis)(x, _mask(mask, x.device))


def elu(x):
    """x from 0 on, e^x - 1 below (Clevert et al. 2016). At 0 the slope is 1 from both sides, but the second
    derivative jumps from 1 to 0; at 0 itself it is 0, as in PyTorch."""
    return where(x >= 0, x, x.clip(max=0.0).exp() - 1)


def layer_norm(x, weight=None, bias=None, eps=1e-5):
    """(x - mean) / sqrt(var + eps) * weight + bias over the last axis: x (..., D), weight and bias (D,)."""
    return LayerNorm(eps)(x, weight, bias)


def dropout(x, p, training):
    """Zero each element with probability p and divide the rest by 1 - p, in training; x itself otherwise.

    `training` has no default, so that evaluation with dropout on cannot happen by forgetting it.
    """
    if not 0 <= p <= 1:
        raise ValueError(f"dropout: expected a probability between 0 and 1, got {p}")
    return Dropout(p)(x, Tensor(random.next_seed(), device=x.device)) if training and p > 0 else x


def cross_entropy(logits, targets, ignore_index=-100, label_smoothing=0.0, reduction="mean"):
    """-log softmax(logits)[target]: logits (..., V), integer targets (...).

    Targets equal to `ignore_index` are skipped. "mean" divides by the number of targets that are left (0 if none is),
    "sum" adds up, "none" gives one loss a target. `label_smoothing` s mixes in s / V of every class. IndexError for a
    target outside 0 .. V-1.
    """
    return CrossEntropy(ignore_index, label_smoothing, reduction)(_float(logits), _ids("cross_entropy", targets, logits.device))


def additive_scores(q, k, v):
    """e[b, t, s] = sum over d of v[d] tanh(q[b, t, d] + k[b, s, d]) (Bahdanau 2014): q (B, T, D), k (B, S, D), v (D,)."""
    return AdditiveScores()(q, k, v)


def additive_scores_2d(q, k, w):
    """e[b, m, t, s] = sum over d of w[m, d] tanh(q[b, t, d] + k[b, s, d]): q (B, T, D), k (B, S, D), w (M, D) to (B, M, T, S)."""
    return Additive2d()(q, k, w)


def featurewise_attention(q, k, v, mask=None, c=5.0):
    """out[b, t, d] = sum over s of P[b, t, s, d] v[b, s, d], where P is the softmax over s of c tanh((q[b, t, d] + k[b, s, d]) / c), for
    each feature d by itself (DiSAN, Shen et al. 2018): q (B, T, D), k and v (B, S, D), mask broadcast to (B, T, S)."""
    return FeaturewiseAttention(c)(q, k, v, _mask(mask, q.device))


def scaled_dot_product_attention(q, k, v, mask=None, causal=False, scale=None, bias=None):
    """softmax over s of (scale q_t . k_s + bias) times v, without the T x S matrix in memory (Vaswani et al. 2017).

    q (..., T, D), k (..., S, D), v (..., S, E) to (..., T, E); the leading axes broadcast. mask: bool, True = may be attended;
    causal: t sees s <= t + S - T; scale: 1 / sqrt(D) by default; mask and bias broadcast to (..., T, S).
    """
    mask = _mask(mask, q.device)
    return Attention(scale, causal)(q, k, v, mask) if bias is None else Attention(scale, causal)(q, k, v, mask, bias)


__all__ = [n for n, f in list(globals().items()) if callable(f) and getattr(f, "__module__", "") == __name__
           and not n.startswith("_")] + ["cat", "tap"]
