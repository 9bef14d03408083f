"""The short ways that small operations take: past Numba's look at types, past what is known already. They must give what
the long ways give, to the bit, and say nothing in the way of warnings. And a tape must hear of every array."""
import operator
import warnings

import numpy as np
import pytest

import tinyattn as ta
from tinyattn import Tensor, autograd, device
from tinyattn.autograd import Op, _set, grad, no_grad
from tinyattn.device import JIT, Entries, Shortcuts, kernel
from tinyattn.ops import binary, matmul

OPS = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}
SHAPES = [((3, 5), (3, 5)), ((3, 5), (5,)), ((3, 5), (3, 1)), ((1, 4, 1), (2, 1, 3)), ((), ()), ((3,), ()), ((), (2, 2)),
          ((0, 3), (0, 3)), ((1,), (1,)), ((17, 33), (17, 33))]
LAYOUTS = {
    "as it is": lambda a: a,
    "columns first": np.asfortranarray,
    "reversed": lambda a: a[::-1].copy()[::-1] if a.ndim else a,
    "every second": lambda a: np.repeat(a, 2, axis=-1)[..., ::2] if a.ndim else a,
    "read-only": lambda a: _read_only(a),
}


def _read_only(a):
    a = a.copy()
    a.flags.writeable = False
    return a


def _tensor(a, requires_grad=False):
    """Around this very array, whatever its layout."""
    return Tensor._wrap(a, None, 0, False).requires_grad_(requires_grad)


def _numbers(rng, shape, kind):
    a = np.asarray(rng.normal(size=shape)).astype(kind)
    if a.size > 3:
        a.flat[:4] = [0, np.inf, -np.inf, np.nan]
    return a


@pytest.mark.parametrize("kind", ["float32", "float64"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", OPS)
def test_arithmetic_is_that_of_ieee_in_every_layout_and_warns_of_nothing(name, layout, kind):
    rng = np.random.default_rng(0)
    for shape_x, shape_y in SHAPES:
        x, y = (LAYOUTS[layout](_numbers(rng, s, kind)) for s in (shape_x, shape_y))
        with np.errstate(all="ignore"):
            expected = np.asarray(OPS[name](x, y))
        with warnings.catch_warnings(), np.errstate(all="warn"):
            warnings.simplefilter("error")
            for recorded in (False, True):
                a, b = _tensor(x, recorded), _tensor(y, recorded)
                out = getattr(operator, "truediv" if name == "div" else name)(a, b)
                assert out.dtype == kind
                assert out.requires_grad == recorded
                assert out.shape == expected.shape
                np.testing.assert_array_equal(out.numpy(), expected)
                general = {"add": binary.Add, "sub": binary.Sub, "mul": binary.Mul, "div": binary.Div}[name]()(a, b)
                np.testing.assert_array_equal(out.numpy(), general.numpy())


def test_overflow_and_nothing_over_nothing_warn_of_nothing():
    with warnings.catch_warnings(), np.errstate(all="warn"):
        warnings.simplefilter("error")
        x = Tensor([3e38, np.inf, 0.0, 1e-30], requires_grad=True)
        y = Tensor([3e38, np.inf, 0.0, 1e-30], requires_grad=True)
        assert np.isinf((x + y).numpy()[0]) and np.isnan((x - y).numpy()[1]) and np.isnan((x / y).numpy()[2])
        assert (x * y).numpy()[3] == 0
        ((x - y) * x / y).sum().backward()


@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_small_products_are_those_of_the_long_way(kind):
    rng = np.random.default_rng(0)
    turn = {"rows": lambda a: a, "columns": np.asfortranarray, "strided": lambda a: np.repeat(a, 2, axis=1)[:, ::2],
            "reversed": lambda a: a[::-1].copy()[::-1], "read-only": _read_only}
    for m, k, n in [(1, 1, 1), (2, 3, 4), (32, 64, 64), (100, 7, 65), (1, 5, 3), (5, 1, 3), (3, 5, 1), (0, 2, 3), (2, 0, 3),
                    (2, 3, 0)]:
        x, y = rng.normal(size=(m, k)).astype(kind), rng.normal(size=(k, n)).astype(kind)
        expected = x.astype(float) @ y.astype(float)
        whole = matmul.matmul_into(x, y, np.empty((m, n), kind))
        for left in turn.values():
            for right in turn.values():
                out = matmul.matmul(left(x), right(y))
                assert out.dtype == kind and out.flags.c_contiguous
                np.testing.assert_allclose(out, expected, rtol=0, atol=1e-13 if kind == "float64" else 3e-5)
                if JIT and m > 1 and n > 1:  # NumPy's bits depend on the layout, and so do those of a vector times a matrix
                    np.testing.assert_array_equal(out, whole)


def test_products_of_mixed_types_are_refused_and_whole_numbers_are_multiplied():
    with pytest.raises(TypeError, match="matmul: expected a and b of one type"):
        matmul.MatMul()(Tensor(np.ones((2, 2), np.float32)), Tensor(np.ones((2, 2), np.float64)))
    out = matmul.matmul(np.arange(4).reshape(2, 2), np.arange(4).reshape(2, 2))
    np.testing.assert_array_equal(out, [[2, 3], [6, 11]])


@kernel
def _doubled(x, out):
    for i in range(len(x)):
        out[i] = 2 * x[i]


def test_entries_compile_for_what_they_know_and_leave_the_rest_to_the_kernel():
    entries = Entries(_doubled, "T[::1], T[::1]")
    for kind in ("float32", "float64", "int64", "int32", ">f4"):
        known = kind in ("float32", "float64", "int64")
        call, x = entries[np.dtype(kind)], np.arange(5).astype(kind)
        assert (call is not _doubled) == (known and JIT)
        if kind != ">f4":  # which Numba does not take
            out = np.empty_like(x)
            call(x, out)
            np.testing.assert_array_equal(out, 2 * x)


def test_an_operand_of_another_type_does_not_reach_the_compiled_code():
    x, y = np.array([1.5, 2.5], np.float32), np.array([2, 3], np.int64)
    np.testing.assert_array_equal(binary.run("mul", binary._MUL, x, y), np.array([3, 7.5], np.float32))


# -- the short ways against the long ones: two matrices of one shape, small products, a graph of one node -----------------
SHORTCUTS = [s for module in (binary, matmul) for s in vars(module).values() if isinstance(s, Shortcuts)]
PRODUCTS = [((m, k), (k, n)) for m, k, n in [
    (2, 3, 4), (32, 64, 64), (5, 64, 65), (4, 129, 200), (2, 70, 300), (3, 65, 128), (3, 65, 129), (3, 65, 85), (1, 5, 3),
    (5, 1, 3), (3, 5, 1), (0, 2, 3), (2, 0, 3), (2, 3, 0), (60, 60, 60)]]


def _forward_and_backward(name, arrays, needs, g):
    """The output and the gradients of one op on these very arrays; one array is one leaf, in however many places it stands."""
    leaves = {}
    for a, need in zip(arrays, needs, strict=True):
        leaves.setdefault(id(a), _tensor(a, need))
    x, w = (leaves[id(a)] for a in arrays)
    y = getattr(operator, "truediv" if name == "div" else name)(x, w)
    if g is None:
        g = _tensor(np.random.default_rng(1).normal(size=y.shape).astype(y.dtype))
    y.backward(g)
    gradients = [t.grad.array for t in leaves.values() if t.grad is not None]
    for i, a in enumerate(gradients):
        assert a.dtype == y.dtype and not any(np.may_share_memory(a, b) for b in [*gradients[:i], *arrays, g.array, y.array])
    return [y.array, *gradients]


def _go_the_long_ways(monkeypatch):
    for shortcut in SHORTCUTS:
        for kind in ("float32", "float64"):
            monkeypatch.setitem(shortcut, np.dtype(kind), device._no_shortcut)
    monkeypatch.setattr(autograd, "_of_one_node", lambda *_: None)


@pytest.mark.parametrize("kind", ["float32", "float64"])
@pytest.mark.parametrize("name", [*OPS, "matmul"])
def test_short_and_long_ways_give_the_same_bits_forward_and_backward(name, kind, monkeypatch):
    rng = np.random.default_rng(0)
    cases = []
    for shapes in PRODUCTS if name == "matmul" else SHAPES:
        for first in LAYOUTS.values():
            for second in LAYOUTS.values():
                numbers = [rng.normal(size=s).astype(kind) if name == "matmul" else _numbers(rng, s, kind) for s in shapes]
                arrays = [np.asarray(layout(a)) for layout, a in zip((first, second), numbers, strict=True)]
                cases += [(arrays, needs) for needs in ((True, True), (True, False), (False, True))]
    for layout in LAYOUTS.values():  # one leaf in both places
        a = layout(_numbers(rng, (8, 8), kind))
        cases.append(([a, a], (True, True)))
    g = _tensor(np.asfortranarray(rng.normal(size=(17, 17)).astype(kind)))  # a gradient from above in another layout
    cases.append(([rng.normal(size=(17, 17)).astype(kind) for _ in range(2)], (True, True)))
    with warnings.catch_warnings(), np.errstate(all="warn"):
        warnings.simplefilter("error")
        run = [_forward_and_backward(name, arrays, needs, g if arrays[0].shape == (17, 17) else None) for arrays, needs in cases]
        _go_the_long_ways(monkeypatch)
        for (arrays, needs), short in zip(cases, run, strict=True):
            long = _forward_and_backward(name, arrays, needs, g if arrays[0].shape == (17, 17) else None)
            assert len(long) == len(short) >= 2
            for a, b in zip(short, long, strict=True):
                np.testing.assert_array_equal(a, b)


def _spied(monkeypatch, heard):
    """Note in `heard` what every shortcut and the walk over one node answered."""
    for shortcut in SHORTCUTS:
        inner = shortcut[np.dtype("float32")]
        monkeypatch.setitem(shortcut, np.dtype("float32"), lambda *a, inner=inner: heard.append(inner(*a)) or heard[-1])
    inner_walk = autograd._of_one_node
    monkeypatch.setattr(autograd, "_of_one_node", lambda *a: heard.append(inner_walk(*a)) or heard[-1])


@pytest.mark.skipif(not JIT, reason="there are no shortcuts without it")
def test_the_short_ways_are_taken_where_they_can_be_and_only_there(monkeypatch):
    heard = []
    _spied(monkeypatch, heard)
    rows, columns = np.ones((4, 4), np.float32), np.asfortranarray(np.ones((4, 4), np.float32))
    for name, times in {"add": 2, "mul": 3, "matmul": 3}.items():  # forward, the gradients of both inputs, the walk
        heard.clear()
        _forward_and_backward(name, [rows, rows.copy()], (True, True), None)
        assert len(heard) == times and all(heard), name
        heard.clear()
        _forward_and_backward(name, [columns, rows], (True, True), None)
        assert heard[0] is False and isinstance(heard[-1], dict), name
    room = matmul._ROOM[np.dtype(np.float32)]
    for m, k, n in ((3, room.shape[1], len(room)), (3, room.shape[1], len(room) + 1), (3, room.shape[1] + 1, len(room))):
        heard.clear()
        _forward_and_backward("matmul", [np.ones(s, np.float32) for s in ((m, k), (k, n))], (True, True), None)
        assert heard[:2] == [True, (k, n) == room.shape[::-1]]  # do the panels of b^T fit?
    x = _tensor(rows, True)
    for y in (x * x * x, x.reshape(2, 8)[0]):
        heard.clear()
        y.backward(_tensor(np.ones(y.shape, np.float32)))
        assert heard[0] is None  # more than one node, or one that adds into a buffer
    heard.clear()
    assert binary.run_alike("add", binary._ADD_ALIKE, binary._ADD, rows, rows.astype(np.int64)).dtype == np.float32 and not heard
    with pytest.raises(ValueError, match="matmul: expected a .* and b"):
        x @ _tensor(np.ones((5, 4), np.float32))


def test_shortcuts_refuse_types_that_they_have_no_code_for():
    assert binary._ADD_ALIKE[np.dtype(np.int32)]() is False and binary._ADD_ALIKE[np.dtype(">f4")]() is False


def test_a_graph_of_one_node_is_freed_and_watched_as_any_other():
    x, w = (Tensor([[2.0, 3.0]], requires_grad=True) for _ in range(2))
    g, y = Tensor([[1.0, 1.0]]), x * w
    y.backward(g, free_graph=True)
    with pytest.raises(RuntimeError, match="was freed by an earlier backward"):
        y.backward(g)
    y = x * w
    with no_grad():
        w.fill_(5.0)
    with pytest.raises(RuntimeError, match="was changed in place after mul"):
        y.backward(g)
    x.grad = w.grad = None
    y = x + w[:1]
    (x * x).backward(g)
    (x * x).backward(g)
    np.testing.assert_array_equal(x.grad.numpy(), [[8.0, 12.0]])
    assert w.grad is None


def test_gradients_of_one_pass_share_no_memory():
    x, w = (Tensor(np.ones((3, 4)), requires_grad=True) for _ in range(2))
    g = Tensor(np.full((3, 4), 2.0))
    (x + w).backward(g)
    arrays = [x.array, w.array, g.array, x.grad.array, w.grad.array]
    assert not any(np.may_share_memory(a, b) for i, a in enumerate(arrays) for b in arrays[:i])
    (x + w).backward(g)
    np.testing.assert_array_equal(g.numpy(), 2)
    np.testing.assert_array_equal(x.grad.numpy(), 4)


def test_gradients_are_recorded_where_they_are_asked_for_under_no_grad():
    x = Tensor([2.0], requires_grad=True)
    y = x * x * x + x * x
    with no_grad():
        first, = grad(y, [x], create_graph=True)
    assert first.requires_grad
    np.testing.assert_allclose(grad(first, [x])[0].numpy(), [14.0])


def test_a_loop_that_gives_too_few_gradients_is_refused():
    class Short(Op):
        def cpu(self, x, y):
            return x + y

        def cpu_grad(self, g, out, x, y):
            return (g,)

    x = Tensor([1.0, 2.0], requires_grad=True)
    for y in (Tensor([1.0, 2.0], requires_grad=True), Tensor([1.0, 2.0])):
        with pytest.raises(ValueError, match="short: its loop gave 1 gradients for 2 inputs"):
            Short()(x, y).sum().backward()


class _Heard:
    """A tape that asks of every array that it is told of as an input: who made it?"""
    def __init__(self, leaves):
        self.known, self.calls = {id(a): a for a in leaves}, []

    def need(self, *arrays):
        for a in arrays:
            assert a is None or id(a) in self.known, f"{self.calls[-1]}: nobody said who made this array"

    def note(self, *arrays):
        self.known.update({id(a): a for a in arrays if a is not None})  # kept, so that no identity comes twice

    def called(self, op, arrays, outs, inputs):
        self.calls.append(f"called {op.name}")
        self.need(*arrays)
        self.note(*outs)

    def ruled(self, op, g, y, arrays, grads):
        self.calls.append(f"ruled {op.name}")
        self.need(*(g if type(g) is tuple else (g,)), *(y if type(y) is tuple else (y,)), *arrays)
        self.note(*grads)

    def accumulated(self, op, g, before, total):
        self.calls.append(f"accumulated {op.name}")
        self.need(g, before)
        self.note(total)

    def added(self, before, part, after):
        self.calls.append("added")
        self.need(before, part)
        self.note(after)

    def made(self, array):
        self.calls.append("made")
        self.note(array)

    def copied(self, source, copy):
        self.calls.append("copied")
        self.need(source)
        self.note(copy)

    def graded(self, leaf, array, before=None):
        self.calls.append("graded")
        self.need(array)

    def number(self, array):
        self.note(array)

    def wrapped(self, data, array):
        self.note(array)

    def shown(self, view):
        return view


def _step(x, w):
    """A node used twice, slices of one Tensor, an output of two that is not used, a rule in Tensor algebra, a broadcast."""
    first, _ = (x @ w).split([2, 2], axis=-1)
    a = x * w[0] + x
    return (first.sum() + (a[:, 1:] * a[:, :3]).sum() + (x - w.sum(0) / 2.0).tanh().sum() + a[0, 0])


@pytest.mark.parametrize("again", [False, True])
def test_a_tape_hears_of_every_array_that_a_step_makes(again):
    rng = np.random.default_rng(0)
    x, w = (Tensor(rng.normal(size=(4, 4)), requires_grad=True) for _ in range(2))
    _step(x, w).backward()
    expected = [t.grad.numpy().copy() for t in (x, w)]
    if not again:
        x.grad = w.grad = None
    leaves = [t.array for t in (x, w)] + [t.grad.array for t in (x, w) if again]
    heard = _Heard(leaves)
    with _set(tape=heard):
        _step(x, w).backward()
    for t, e in zip((x, w), expected, strict=True):
        np.testing.assert_allclose(t.grad.numpy(), e * (2 if again else 1), rtol=1e-12)
    said = {c.split()[0] for c in heard.calls}
    assert said >= {"called", "ruled", "accumulated", "added", "made", "graded"}, said
    assert heard.calls.count("graded") == 2


def test_a_tape_hears_of_copies_for_leaves_that_share_a_gradient():
    x, w = (Tensor(np.ones(3), requires_grad=True) for _ in range(2))
    g = Tensor(np.ones(3))
    heard = _Heard([x.array, w.array, g.array])
    with _set(tape=heard):
        (x + w).backward(g)
    assert heard.calls.count("copied") == 2 and ta.is_grad_enabled()
