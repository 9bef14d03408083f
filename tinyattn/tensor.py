"""Tensor: an array that remembers the operation that made it.

`x.op` and `x.index` say where it came from (None for a leaf), `x.array` is its memory, `x.grad` (leaves only) is what
`backward()` added up. Every method that computes calls an op of `ops/`; nothing is computed here.

Types. float32 is the default, float64 is for checking gradients; integers and bools are data. In a mixed operation the
wider float wins, whatever the order; Python and NumPy *numbers* take the Tensor's type; integers become floats.
"""
import math
from html import escape

import numpy as np

from . import device as _device
from .autograd import Op, backward, changed, no_grad, state
from .cuda import number
from .ops import logic
from .ops.binary import Add, Div, Maximum, Minimum, Mul, Pow, Sub
from .ops.broadcast import ShapeError, broadcast
from .ops.conv import Unfold
from .ops.index import Gather, Getitem, Putitem, ScatterAdd
from .ops.matmul import MatMul
from .ops.reduce import Cumsum, Max, Mean, Min, Norm, Prod, Sum
from .ops.select import Clip, Where
from .ops.shape import Concat, Expand, Flip, Pad, Permute, Reshape, Split, Stack, axis_of
from .ops.softmax import LogSoftmax, LogSumExp, Softmax
from .ops.unary import Abs, Cast, Cos, Erf, Exp, Gelu, Log, Neg, Relu, Sigmoid, Sign, Sin, Softplus, Sqrt, Tanh

NUMBERS = (bool, int, float, np.number, np.bool_)
_FLOATS = (np.dtype(np.float32), np.dtype(np.float64))
_default = {"dtype": np.dtype(np.float32)}


def get_default_dtype():
    return _default["dtype"]


def set_default_dtype(dtype):
    """float32 or float64 for Tensors made from Python numbers."""
    if np.dtype(dtype) not in _FLOATS:
        raise TypeError(f"set_default_dtype: expected float32 or float64, got {dtype!r}")
    _default["dtype"] = np.dtype(dtype)


def _dtype(dtype):
    try:
        dtype = np.dtype(dtype)
    except TypeError:
        raise TypeError(f"dtype: expected float32, float64, int64 or bool, got {dtype!r}") from None
    if dtype.kind == "f":
        return dtype if dtype in _FLOATS else _default["dtype"]
    if dtype.kind in "iu":
        return np.dtype(np.int64)
    if dtype.kind == "b":
        return dtype
    raise TypeError(f"dtype: expected float32, float64, int64 or bool, got {dtype}")


def _as_array(data, dtype=None):
    """A fresh array of a type that we compute with. Python floats become the default type, NumPy arrays keep theirs."""
    if isinstance(data, Tensor):
        raise TypeError("Tensor: the data is a Tensor already; use .clone(), .detach() or stack([...])")
    try:
        array = np.array(data, order="C")
    except ValueError as error:
        raise ValueError(f"Tensor: the data is ragged: {error}") from None
    if array.dtype.kind not in "fiub":
        raise TypeError(f"Tensor: expected numbers, got data of type {array.dtype} ({str(data)[:40]!r})")
    if dtype is None:
        keeps = isinstance(data, (np.ndarray, np.generic))
        dtype = array.dtype if keeps or array.dtype.kind != "f" else _default["dtype"]
    return array.astype(_dtype(dtype), copy=False)


def _one(axis, dim):
    """`axis`, or PyTorch's name for it."""
    if dim is None:
        return axis
    if axis is not None:
        raise TypeError("give either axis or dim, which are two names of one thing")
    return dim


class Tensor:
    """An n-dimensional array with a gradient. `Tensor(data, requires_grad=False, dtype=None, device=None, name='')`

    data is a number, a nested list or a NumPy array (copied). Only float Tensors can require a gradient. device: 'cpu' or
    'cuda'; None is the CPU, unless `default_device` says otherwise.
    """
    __slots__ = ("array", "op", "index", "requires_grad", "grad", "name", "__weakref__")
    __array_ufunc__ = None  # NumPy on the left hands over to us: array + T is T.__radd__(array)

    def __init__(self, data, requires_grad=False, dtype=None, device=None, name=""):
        self.array = _device.to_device(_as_array(data, dtype), device or _device.get_default_device())
        self.op, self.index, self.grad, self.name = None, 0, None, name
        self.requires_grad = False
        if state.special and state.tape is not None:
            state.tape.wrapped(data, self.array)
        self.requires_grad_(requires_grad)

    @staticmethod
    def _wrap(array, op, index, requires_grad):
        """A Tensor around an array that nobody else writes to. For the engine; users call Tensor(...)."""
        t = _new(Tensor)
        t.array, t.index, t.grad, t.name = array, index, None, ""
        if requires_grad and array.dtype.kind == "f":
            t.op, t.requires_grad = op, True
        else:
            t.op, t.requires_grad = None, False
        return t

    # -- what it is --------------------------------------------------------------------------------------------------
    @property
    def shape(self):
        return self.array.shape

    @property
    def dtype(self):
        return self.array.dtype

    @property
    def ndim(self):
        return self.array.ndim

    @property
    def size(self):
        """The number of elements (as in NumPy)."""
        return self.array.size

    def numel(self):
        return self.array.size

    @property
    def device(self):
        return _device.device_of(self.array)

    @property
    def is_leaf(self):
        return self.op is None

    @property
    def data(self):
        """A read-only NumPy view of the values."""
        return self.numpy()

    def numpy(self):
        """The values as a read-only NumPy view, outside the graph (a copy if they live on a card)."""
        view = _device.to_device(self.array, "cpu").view()
        view.flags.writeable = False
        return view if not state.special or state.tape is None else state.tape.shown(view)

    def __array__(self, dtype=None, copy=None):
        if self.requires_grad and state.recording:
            raise RuntimeError("NumPy would take this Tensor out of the graph, and its gradient would be lost: say so with "
                               "x.detach() or x.numpy(), or use the Tensor's own method")
        array = self.numpy()
        return np.array(array, dtype) if copy or dtype not in (None, array.dtype) else array

    def item(self):
        """The value of a Tensor with one element, as a Python number."""
        if self.size != 1:
            raise ValueError(f"item: expected a Tensor of one element, got shape {self.shape}")
        return self.numpy().reshape(-1)[0].item()

    def tolist(self):
        return self.numpy().tolist()

    def __float__(self):
        return float(self.item())

    def __int__(self):
        return int(self.item())

    def __bool__(self):
        return bool(self.item())

    def __index__(self):
        if self.dtype.kind != "i":
            raise TypeError(f"only an integer Tensor can be an index, got {self.dtype}")
        return self.item()

    def __len__(self):
        if self.ndim == 0:
            raise TypeError("a Tensor without axes has no length")
        return self.shape[0]

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    __hash__ = object.__hash__

    def __repr__(self):
        lines = np.array2string(self.numpy(), separator=", ", precision=4, prefix="Tensor(", threshold=200)
        extra = "" if self.dtype in (_default["dtype"], np.int64, np.bool_) else f", dtype={self.dtype}"
        extra += f", shape={self.shape}" if self.size == 0 or self.size > 200 else ""
        extra += f", op={self.op.name}" if self.op is not None else ", requires_grad=True" if self.requires_grad else ""
        extra += f", name={self.name!r}" if self.name else ""
        extra += ", device='cuda'" if self.device == "cuda" else ""
        return f"Tensor({lines}{extra})"

    def _repr_html_(self):
        """In a notebook: a small matrix as a table, anything else as text."""
        head = f"Tensor {self.name} shape {self.shape} {self.dtype}{' op ' + self.op.name if self.op else ''}"
        if self.ndim in (1, 2) and self.size and max(self.shape) <= 16:
            rows = "".join("<tr>" + "".join(f"<td>{v:.4g}</td>" for v in row) + "</tr>"
                           for row in np.atleast_2d(self.numpy()).astype(float))
            return f"<div>{escape(head)}<table>{rows}</table></div>"
        return f"<div>{escape(head)}<pre>{escape(repr(self))}</pre></div>"

    # -- gradients ---------------------------------------------------------------------------------------------------
    def requires_grad_(self, requires_grad=True):
        """Switch gradients on or off for this leaf, and return it."""
        if self.op is not None:
            raise RuntimeError("requires_grad_: only a leaf can be switched; detach() the Tensor first")
        if requires_grad and self.dtype.kind != "f":
            shown = str(self.tolist())
            raise TypeError(f"only float Tensors can require a gradient, this one holds {self.dtype}: write "
                            + (f"Tensor({shown}, dtype='float32')" if len(shown) < 40 else "x.float()"))
        self.requires_grad = bool(requires_grad)
        return self

    def backward(self, gradient=None, create_graph=False, free_graph=False):
        """Add d(self)/d(leaf) to `.grad` of every leaf that requires it.

        gradient      what comes in from above, of this shape; may be left out for one element
        create_graph  make the gradients differentiable themselves
        free_graph    drop the saved values on the way; a second backward through them then raises RuntimeError
        """
        backward(self, gradient, create_graph, free_graph)

    def detach(self):
        """The same memory, read-only, as a leaf outside the graph."""
        shown = self.array.view() if self.device == "cpu" else self.array  # a view cannot be changed in place, see _writable
        return Tensor._wrap(shown, None, 0, False)

    def clone(self):
        """A copy that is joined to the graph."""
        if self.requires_grad and state.recording:
            return self * 1
        array = _device.copy(self.array)
        if state.special and state.tape is not None:
            state.tape.copied(self.array, array)
        return Tensor._wrap(array, None, 0, False)

    # -- in place: only a leaf that owns its memory ------------------------------------------------------------------
    def _writable(self, who):
        if self.op is not None or (self.requires_grad and state.recording):
            raise RuntimeError(f"{who}: a Tensor that takes part in a graph cannot be changed in place; for a parameter do it "
                               "under no_grad(), else compute a new Tensor (where, pad, concat, ...)")
        if self.device == "cpu" and (self.array.base is not None or not self.array.flags.writeable):
            raise RuntimeError(f"{who}: this Tensor shows another's memory; change the owner, or clone() it first")
        changed(self)
        return self.array

    def copy_(self, other):
        """Overwrite the values with those of `other` (broadcast)."""
        value = other.array if isinstance(other, Tensor) else np.asarray(other)
        if broadcast("copy_", self.shape, value.shape) != self.shape:
            raise ShapeError(f"copy_: shape {value.shape} does not fit into {self.shape}")
        _device.overwrite(self._writable("copy_"), ..., value)
        return self

    def fill_(self, value):
        return self.copy_(value)

    def zero_(self):
        return self.copy_(0)

    def add_(self, other, alpha=1):
        """self += alpha * other, in place."""
        with no_grad():
            return self.copy_(self + (other * alpha if isinstance(other, Tensor) else alpha * np.asarray(other)))

    def __setitem__(self, index, value):
        value = value.array if isinstance(value, Tensor) else value
        _device.overwrite(self._writable("x[...] = value"), _index(index), value)

    # -- arithmetic --------------------------------------------------------------------------------------------------
    def __add__(self, other):
        return _arithmetic(Add, self, other)

    def __radd__(self, other):
        return _arithmetic(Add, other, self)

    def __sub__(self, other):
        return _arithmetic(Sub, self, other)

    def __rsub__(self, other):
        return _arithmetic(Sub, other, self)

    def __mul__(self, other):
        return _arithmetic(Mul, self, other)

    def __rmul__(self, other):
        return _arithmetic(Mul, other, self)

    def __truediv__(self, other):
        return _arithmetic(Div, self, other, to_float=True)

    def __rtruediv__(self, other):
        return _arithmetic(Div, other, self, to_float=True)

    def __pow__(self, other):
        if isinstance(other, NUMBERS) and self.dtype.kind == "f" and other in (1, 2, 0.5, -1):
            return {1: lambda x: x * 1, 2: lambda x: x * x, 0.5: Tensor.sqrt, -1: lambda x: 1 / x}[float(other)](self)
        return _arithmetic(Pow, self, other)

    def __rpow__(self, other):
        return _arithmetic(Pow, other, self)

    def __neg__(self):
        return Neg()(self if self.array.dtype.kind != "b" else self.to(np.int64))

    def __abs__(self):
        return self.abs()

    def __matmul__(self, other):
        return _matmul(self, other)

    def __rmatmul__(self, other):
        return _matmul(other, self)

    matmul = __matmul__

    def maximum(self, other):
        """The larger of the two, element by element. See `Maximum` for ties."""
        return _arithmetic(Maximum, self, other)

    def minimum(self, other):
        return _arithmetic(Minimum, self, other)

    # -- comparison and logic: bool Tensors, never in the graph ------------------------------------------------------
    def __eq__(self, other):
        return _compare(np.equal, self, other)

    def __ne__(self, other):
        return _compare(np.not_equal, self, other)

    def __lt__(self, other):
        return _compare(np.less, self, other)

    def __le__(self, other):
        return _compare(np.less_equal, self, other)

    def __gt__(self, other):
        return _compare(np.greater, self, other)

    def __ge__(self, other):
        return _compare(np.greater_equal, self, other)

    def __and__(self, other):
        return _compare(np.logical_and, self, other, logical=True)

    def __or__(self, other):
        return _compare(np.logical_or, self, other, logical=True)

    def __xor__(self, other):
        return _compare(np.logical_xor, self, other, logical=True)

    def __invert__(self):
        if self.dtype.kind != "b":
            raise TypeError(f"~x: expected a bool Tensor, got {self.dtype}")
        return Tensor._wrap(logic.opposite(self.array), None, 0, False)

    def isfinite(self):
        return Tensor._wrap(logic.isfinite(self.array), None, 0, False)

    def isnan(self):
        return Tensor._wrap(logic.isnan(self.array), None, 0, False)

    def all(self):
        return bool(self.numpy().all())

    def any(self):
        return bool(self.numpy().any())

    # -- functions of each element -----------------------------------------------------------------------------------
    def exp(self):
        return Exp()(_float(self))

    def log(self):
        return Log()(_float(self))

    def sqrt(self):
        return Sqrt()(_float(self))

    def abs(self):
        return Abs()(self)

    def sign(self):
        return Sign()(self)

    def tanh(self):
        return Tanh()(_float(self))

    def sigmoid(self):
        return Sigmoid()(_float(self))

    def relu(self):
        return Relu()(self)

    def gelu(self):
        return Gelu()(_float(self))

    def erf(self):
        return Erf()(_float(self))

    def softplus(self):
        return Softplus()(_float(self))

    def sin(self):
        return Sin()(_float(self))

    def cos(self):
        return Cos()(_float(self))

    def clip(self, min=None, max=None):
        """min(max(x, min), max); a bound that is None does nothing."""
        return Clip(-math.inf if min is None else min, math.inf if max is None else max)(_float(self))

    clamp = clip

    def where(self, condition, other):
        """self where `condition` is True, `other` elsewhere."""
        condition = condition if isinstance(condition, Tensor) else Tensor(condition, device=self.device)
        if condition.dtype.kind != "b":
            raise TypeError(f"where: expected a bool condition, got {condition.dtype}")
        x, y = _match(self, other)
        return Where()(condition, x, y)

    # -- reductions --------------------------------------------------------------------------------------------------
    def sum(self, axis=None, keepdims=False, *, dim=None):
        x = self.to(np.int64) if self.dtype.kind == "b" else self
        return Sum(_one(axis, dim), keepdims)(x)

    def mean(self, axis=None, keepdims=False, *, dim=None):
        return Mean(_one(axis, dim), keepdims)(_float(self))

    def var(self, axis=None, ddof=0, keepdims=False, *, dim=None):
        """The mean squared distance from the mean, with n - ddof in the denominator (NumPy's ddof=0 by default)."""
        axis = _one(axis, dim)
        x = _float(self)
        off = x - x.mean(axis, keepdims=True)
        n = math.prod(self.shape[a] for a in Sum(axis).axes(self.ndim))
        if n - ddof <= 0:
            raise ValueError(f"var: {n} elements and ddof={ddof} leave nothing to divide by")
        return (off * off).sum(axis, keepdims) * (1 / (n - ddof))

    def max(self, axis=None, keepdims=False, *, dim=None):
        """The largest values (argmax gives the places). Places that tie share the gradient equally."""
        return Max(_one(axis, dim), keepdims)(self)

    def min(self, axis=None, keepdims=False, *, dim=None):
        return Min(_one(axis, dim), keepdims)(self)

    def argmax(self, axis=None, keepdims=False, *, dim=None):
        """The place of the first largest value, as int64; never in the graph."""
        return Tensor._wrap(logic.place_of(self.array, _one(axis, dim), keepdims, True), None, 0, False)

    def argmin(self, axis=None, keepdims=False, *, dim=None):
        return Tensor._wrap(logic.place_of(self.array, _one(axis, dim), keepdims, False), None, 0, False)

    def prod(self, axis=None, keepdims=False, *, dim=None):
        return Prod(_one(axis, dim), keepdims)(self)

    def norm(self, axis=None, keepdims=False, *, dim=None):
        """The Euclidean norm over the axes; its gradient at 0 is 0."""
        return Norm(_one(axis, dim), keepdims)(_float(self))

    def cumsum(self, axis=-1, *, dim=None):
        return Cumsum(axis if dim is None else dim)(self)

    def logsumexp(self, axis=None, keepdims=False, *, dim=None):
        return LogSumExp(_one(axis, dim), keepdims)(_float(self))

    def softmax(self, axis=-1, mask=None, *, dim=None):
        """e^x / sum e^x over an axis. Places where the bool `mask` (broadcast) is False get exactly 0; a row that may
        attend to nothing is all 0."""
        return Softmax(axis if dim is None else dim)(_float(self), _mask(mask, self.device))

    def log_softmax(self, axis=-1, mask=None, *, dim=None):
        return LogSoftmax(axis if dim is None else dim)(_float(self), _mask(mask, self.device))

    # -- shape -------------------------------------------------------------------------------------------------------
    def reshape(self, *shape):
        shape = _shape(shape)
        return self if shape == self.array.shape else Reshape(shape)(self)

    view = reshape

    def flatten(self, start=0, end=-1):
        """Merge the axes from `start` to `end` into one; a single number gets an axis."""
        if self.ndim == 0:
            return self.reshape(1)
        start, end = axis_of("flatten", start, self.ndim), axis_of("flatten", end, self.ndim)
        return self.reshape(*self.shape[:start], -1, *self.shape[end + 1:])

    def squeeze(self, axis=None, *, dim=None):
        """Drop axes of length 1: all of them, or one."""
        axis = _one(axis, dim)
        drop = [i for i, n in enumerate(self.shape) if n == 1] if axis is None else [axis_of("squeeze", axis, self.ndim)]
        if any(self.shape[i] != 1 for i in drop):
            raise ShapeError(f"squeeze: axis {axis} of shape {self.shape} does not have length 1")
        return self.reshape(tuple(n for i, n in enumerate(self.shape) if i not in drop))

    def unsqueeze(self, axis):
        """A new axis of length 1."""
        axis = axis_of("unsqueeze", axis, self.ndim + 1)
        return self.reshape((*self.shape[:axis], 1, *self.shape[axis:]))

    def permute(self, *axes):
        return Permute(_shape(axes))(self)

    def transpose(self, i=-2, j=-1):
        """Swap two axes."""
        i, j = axis_of("transpose", i, self.ndim), axis_of("transpose", j, self.ndim)
        axes = list(range(self.ndim))
        axes[i], axes[j] = j, i
        return Permute(axes)(self)

    @property
    def T(self):
        """A matrix with rows and columns swapped."""
        if self.ndim != 2:
            raise ShapeError(f"T: expected a matrix, got shape {self.shape}; use transpose(i, j) or permute(...)")
        return Permute((1, 0))(self)

    def expand(self, *shape):
        return Expand(_shape(shape))(self)

    def sum_to(self, shape):
        """Sum over the axes along which `shape` would be stretched to this shape: the reverse of broadcasting."""
        shape = tuple(shape)
        if shape == self.shape:
            return self
        lead = self.ndim - len(shape)
        if lead < 0 or any(n not in (1, m) for n, m in zip(shape, self.shape[lead:], strict=True)):
            raise ShapeError(f"sum_to: shape {shape} does not broadcast to {self.shape}")
        axes = tuple(range(lead)) + tuple(i + lead for i, n in enumerate(shape) if n == 1 and self.shape[i + lead] != 1)
        return Sum(axes, keepdims=True)(self).reshape(shape) if axes else self.reshape(shape)

    def flip(self, axes):
        return Flip((axes,) if isinstance(axes, int) else axes)(self)

    def pad(self, widths, value=0.0):
        """Put `value` around the Tensor: `widths` is one (before, after) pair an axis, as in NumPy."""
        return Pad(widths, value)(self)

    def split(self, lengths, axis=0, *, dim=None):
        """Pieces of the given lengths, or of one length (the last may be shorter), along an axis."""
        axis = axis_of("split", axis if dim is None else dim, self.ndim)
        if isinstance(lengths, int):
            if lengths < 1:
                raise ValueError(f"split: expected a length of at least 1, got {lengths}")
            n = self.shape[axis]
            lengths = [min(lengths, n - i) for i in range(0, n, lengths)] or [0]
        return Split(lengths, axis)(self)

    def unfold(self, size, step=1, dilation=1):
        """All windows of `size` elements over the last axis: (..., T) to (..., windows, size)."""
        return Unfold(size, step, dilation)(self)

    def __getitem__(self, index):
        return Getitem(_index(index))(self)

    def put(self, index, shape):
        """Zeros of `shape`, to which this Tensor is added at `index`."""
        return Putitem(_index(index), shape)(self)

    def gather(self, axis, index):
        """y[..., i, ...] = x[..., index[..., i, ...], ...] along `axis`."""
        return Gather(axis)(self, _ids("gather", index, self.device))

    def scatter_add(self, axis, index, shape):
        """Zeros of `shape`, to which this Tensor is added at the places `index` along `axis`."""
        return ScatterAdd(axis, shape)(self, _ids("scatter_add", index, self.device))

    # -- type and place ----------------------------------------------------------------------------------------------
    def to(self, target):
        """Another dtype, or another device ('cpu', 'cuda')."""
        if isinstance(target, str) and target in _device.DEVICES:
            if target == self.device:
                return self
            from .ops.transfer import Transfer
            return Transfer(target)(self)
        dtype = _dtype(target)
        if dtype == self.dtype:
            return self
        if self.dtype.kind == "f" and dtype.kind == "f":
            return Cast(dtype)(self)
        if self.requires_grad and state.recording:
            raise TypeError(f"to({dtype}): a Tensor that requires a gradient would leave the graph; detach() it first")
        return Tensor._wrap(logic.converted(self.array, dtype), None, 0, False)

    def float(self):
        return self.to(np.float32)

    def double(self):
        return self.to(np.float64)

    def long(self):
        return self.to(np.int64)

    def bool(self):
        return self.to(np.bool_)

    def cpu(self):
        return self.to("cpu")

    def cuda(self):
        return self.to("cuda")

    @staticmethod
    def concat(tensors, axis=0):
        return Concat(axis)(*_same_type(tensors, "concat"))

    @staticmethod
    def stack(tensors, axis=0):
        return Stack(axis)(*_same_type(tensors, "stack"))


Op.result = Tensor
_new = object.__new__


# ---------------------------------------------------------------------------------------------------------------------
# operands: what may stand beside a Tensor, and the type that the two agree on
# ---------------------------------------------------------------------------------------------------------------------
def _operand(value, like):
    """A Tensor for a number, list or array that stands beside the Tensor `like`; None if it is something else."""
    if isinstance(value, NUMBERS):
        kind = like.dtype
        if isinstance(value, (float, np.floating)) and kind.kind != "f":
            kind = _default["dtype"]
        elif kind.kind == "b" and not isinstance(value, (bool, np.bool_)):
            kind = np.dtype(np.int64)
        if abs(value) > 1e38:  # beyond float32 it is inf there
            with np.errstate(over="ignore"):
                value = np.array(value, kind)
        array = np.array(value, kind) if type(like.array) is np.ndarray else number(value, kind)
        if state.special and state.tape is not None:
            state.tape.number(array)
        return Tensor._wrap(array, None, 0, False)
    if isinstance(value, (np.ndarray, list, tuple)):
        return Tensor(value, device=like.device)
    return None


def _match(x, y):
    """Both as Tensors of one type; at least one of them is a Tensor."""
    if type(y) is not Tensor:
        y = _operand(y, x)
    elif type(x) is not Tensor:
        x = _operand(x, y)
    if x is None or y is None:
        return None, None
    a, b = x.array.dtype, y.array.dtype
    if a is not b and a != b:
        wide = b if a.kind != "f" and b.kind == "f" else a if b.kind != "f" and a.kind == "f" else np.result_type(a, b)
        x, y = x.to(wide), y.to(wide)
    return x, y


def _arithmetic(op, x, y, to_float=False):
    if type(x) is Tensor and type(y) is Tensor:
        kind = x.array.dtype
        if kind is y.array.dtype and (kind is _FLOATS[0] or kind is _FLOATS[1]):
            return op().of_two(x, y)
    x, y = _match(x, y)
    if x is None:
        return NotImplemented
    kind = x.array.dtype.kind
    if kind != "f":
        wide = _default["dtype"] if to_float else np.int64
        x, y = x.to(wide), y.to(wide)
    return op()(x, y)


def _compare(function, x, y, logical=False):
    x, y = _match(x, y)
    if x is None:
        return NotImplemented
    if logical and x.dtype.kind != "b":
        raise TypeError(f"{function.__name__}: expected bool Tensors, got {x.dtype}")
    if x.device != y.device:
        raise ValueError(f"{function.__name__}: the inputs live on different devices ({x.device}, {y.device}); move them together "
                         "with .to(device)")
    return Tensor._wrap(logic.compare(function, x.array, y.array), None, 0, False)


def _matmul(x, y):
    """NumPy's matmul: a vector on the left is a row, on the right a column, and its axis is dropped again."""
    if type(x) is Tensor and type(y) is Tensor:
        a, b = x.array, y.array
        kind = a.dtype
        if kind is b.dtype and (kind is _FLOATS[0] or kind is _FLOATS[1]) and a.ndim > 1 and b.ndim > 1:
            return MatMul().of_two(x, y)
    x, y = _match(x, y)
    if x is None:
        return NotImplemented
    if x.ndim == 0 or y.ndim == 0:
        raise ShapeError(f"matmul: expected at least one axis on each side, got shapes {x.shape} and {y.shape}; use *")
    x, y = _float(x), _float(y)
    if x.ndim > 1 and y.ndim > 1:
        return MatMul()(x, y)
    out = MatMul()(x if x.ndim > 1 else x.unsqueeze(0), y if y.ndim > 1 else y.unsqueeze(1))
    return out.reshape(out.shape[:-1] if x.ndim > 1 else (*out.shape[:-2], out.shape[-1]) if y.ndim > 1 else ())


def _float(x):
    return x if x.array.dtype.kind == "f" else x.to(_default["dtype"])


def _mask(mask, device=None):
    if mask is None:
        return None
    mask = mask if isinstance(mask, Tensor) else Tensor(mask, device=device)
    if mask.dtype.kind != "b":
        raise TypeError(f"mask: expected bools, True where attention is allowed, got {mask.dtype}")
    return mask


def _ids(name, ids, device=None):
    ids = ids if isinstance(ids, Tensor) else Tensor(np.asarray(ids), device=device)
    if ids.dtype.kind != "i":
        raise TypeError(f"{name}: expected integers, got {ids.dtype}")
    return ids


def _shape(shape):
    if len(shape) == 1 and isinstance(shape[0], (tuple, list)):
        shape = shape[0]
    return tuple(int(n) for n in shape)


def _index(index):
    """An index with its Tensors and lists turned into arrays of their own."""
    def one(i):
        if isinstance(i, Tensor):
            if i.dtype.kind == "f":
                raise IndexError(f"x[...]: expected integers or bools as an index, got a Tensor of {i.dtype}")
            return i.numpy().copy()
        if isinstance(i, (list, np.ndarray)):
            array = i.copy() if isinstance(i, np.ndarray) else np.array(i)
            return array.astype(np.int64) if array.size == 0 else array
        return i
    return tuple(one(i) for i in index) if isinstance(index, tuple) else (one(index),)


def _same_type(tensors, name):
    tensors = list(tensors)
    if not tensors:
        raise ValueError(f"{name}: expected at least one Tensor, got none")
    like = next((t for t in tensors if isinstance(t, Tensor)), None)
    tensors = [t if isinstance(t, Tensor) else _operand(t, like) if like is not None else Tensor(t) for t in tensors]
    kinds = {t.dtype for t in tensors}
    if len(kinds) > 1:
        wide = np.result_type(*[k for k in kinds if k.kind == "f"] or kinds)
        tensors = [t.to(wide) for t in tensors]
    return tensors
