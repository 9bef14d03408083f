"""The graph and the walk over it: kinds of fault 1-11 and 16-17, one by one."""
import gc
import threading
import tracemalloc
import weakref

import numpy as np
import pytest

from tinyattn import functional as F
from tinyattn.autograd import (
    Op,
    capture,
    detect_anomaly,
    enable_grad,
    fused,
    grad,
    is_grad_enabled,
    no_grad,
    scope,
    state,
    tap,
)
from tinyattn.ops.additive import AdditiveScores
from tinyattn.ops.gru import GRUScan
from tinyattn.ops.index import Embedding
from tinyattn.ops.lstm import LSTMScan
from tinyattn.ops.rnn import RNNScan
from tinyattn.ops.unary import Exp
from tinyattn.program import Program
from tinyattn.tensor import Tensor


def leaf(data, name=""):
    return Tensor(np.array(data, np.float64), requires_grad=True, name=name)


def chain(x, n, step):
    for _ in range(n):
        x = step(x)
    return x


# ---------------------------------------------------------------------------------------------------------------------
# 1: each node once, on a complete gradient
# ---------------------------------------------------------------------------------------------------------------------
def test_diamonds():
    a = leaf(1.0)
    b = a + a
    (b + b).backward()
    assert a.grad.item() == 4
    x = leaf(2.0)
    chain(x, 60, lambda y: y + y).backward()  # 2^60 paths
    assert x.grad.item() == 2.0**60


def test_paths_of_different_length():
    x = leaf(0.5)
    short, long = x * 3, chain(x, 10, lambda y: y * 2)
    (short * long + short + x).backward()
    assert x.grad.item() == pytest.approx(2 * 3 * 1024 * 0.5 + 3 + 1)


def test_every_node_is_visited_once():
    visits = []

    class Count(Op):
        def cpu(self, x):
            return x * 2

        def grad_x(self, g, y, x):
            visits.append(g.item())
            return g * 2

    x = leaf(1.0)
    y = Count()(x)
    z = Count()(y)
    (y * y + z + y.sin() * 0 + z * z).backward()
    assert visits == [9.0, 4.0 + 18.0]  # dz = 1 + 2 z, dy = 2 y + 2 dz


# ---------------------------------------------------------------------------------------------------------------------
# 2: depth
# ---------------------------------------------------------------------------------------------------------------------
def test_long_chain():
    x = leaf(1.0)
    y = chain(x, 50_000, lambda y: y * 1.0)
    y.backward()
    assert x.grad.item() == 1
    program = Program.of(y)
    assert len(program) == 50_000 and str(program).count("\n") == 49_999
    node = weakref.ref(y)
    del y, program
    assert node() is None


def test_long_chain_of_second_order():
    x = leaf(1.0)
    y = chain(x, 10_000, lambda y: y + x * 0.5)
    g, = grad(y * y, x, create_graph=True)
    h, = grad(g, x)
    assert g.item() == 2 * 5001.0**2 and h.item() == 2 * 5001.0**2


def test_a_recurrent_layer_over_many_steps(rng):
    x, h, w = leaf(rng.normal(size=(1, 5_000, 3))), leaf([[0.1]]), leaf(rng.normal(size=(3, 1)))
    states, last = GRUScan()(x, h, w, None, None)
    (states.sum() + last.sum()).backward()
    assert all(np.isfinite(t.grad.numpy()).all() for t in (x, h, w))


def test_one_tensor_used_often():
    x = leaf(np.ones(3))
    total = x[0]
    for i in range(5_000):
        total = total + x[i % 3]
    total.backward()
    assert x.grad.numpy().sum() == 5_001


# ---------------------------------------------------------------------------------------------------------------------
# 3: twice, freed
# ---------------------------------------------------------------------------------------------------------------------
def test_backward_twice_accumulates_exactly():
    x = leaf(2.0)
    y = x * x * x
    y.backward()
    assert x.grad.item() == 12
    y.backward()
    assert x.grad.item() == 24
    a, = grad(y, x)
    assert a.item() == 12 and x.grad.item() == 24  # grad() leaves .grad alone


def test_only_leaves_get_grad():
    x = leaf(2.0)
    y = x * x
    (y * 3).backward()
    assert y.grad is None and x.grad.item() == 12


@pytest.mark.parametrize("again", [lambda y: y.backward(), lambda y: (y * 2).sum().backward(), lambda y: Program.of(y),
                                   lambda y: grad(y * 2, y), lambda y: grad(y, y)],
                                   ids=["backward", "above", "program", "grad", "self"])
def test_a_freed_graph_says_so(again):
    x = leaf(2.0, "w")
    with scope("encoder"):
        y = x * x
    y.name = "energy"
    y.backward(free_graph=True)
    assert x.grad.item() == 4
    with pytest.raises(RuntimeError, match="freed"):
        again(y)
    with pytest.raises(RuntimeError, match=r"'energy' of shape \(\), made by mul\(\), .*free_graph=True.*encoder"):
        y.backward()


# ---------------------------------------------------------------------------------------------------------------------
# 4, 5: repeated places, ties
# ---------------------------------------------------------------------------------------------------------------------
def test_repeated_places_add_up():
    x = leaf([1.0, 2.0, 3.0])
    x[[0, 0]].sum().backward()
    assert x.grad.tolist() == [2, 0, 0]
    x.grad = None
    (x[[0, -1, -3]] * Tensor(np.array([1.0, 10.0, 100.0]))).sum().backward()
    assert x.grad.tolist() == [101, 0, 10]


@pytest.mark.parametrize("bad", [-1, 5])
def test_ids_out_of_range(bad):
    with pytest.raises(IndexError, match=rf"embedding: id {bad} is outside 0 \.\. 4"):
        F.embedding(leaf(np.ones((5, 2))), [[0, bad]])
    with pytest.raises(IndexError, match="padding 7 is outside"):
        F.embedding(leaf(np.ones((5, 2))), [0], padding=7)


def test_padding_gets_no_gradient_by_loop_and_by_rule():
    table, ids = leaf(np.ones((3, 2))), Tensor([1, 0, 1, 2])
    for create_graph in (False, True):
        g, = grad(Embedding(1)(table, ids).sum(), table, create_graph=create_graph)
        assert g.tolist() == [[1, 1], [0, 0], [1, 1]]


def test_ties_share():
    x = leaf([[1.0, 1.0, 0.0], [2.0, 2.0, 2.0]])
    assert grad(x.max(1).sum(), x)[0].tolist() == [[0.5, 0.5, 0], [1 / 3] * 3]
    assert grad(x.max(0).sum(), x)[0].tolist() == [[0, 0, 0], [1, 1, 1]]
    assert grad(x.max(), x)[0].tolist() == [[0, 0, 0], [1 / 3] * 3]
    assert grad((-x).min(1).sum(), x)[0].tolist() == [[-0.5, -0.5, 0], [-1 / 3] * 3]
    for create_graph in (False, True):
        y = leaf([1.0, 2.0])
        assert grad(F.maximum(x[0, :2], y).sum(), [x, y], create_graph=create_graph)[1].tolist() == [0.5, 1]
        assert grad(F.maximum(y, y).sum(), y, create_graph=create_graph)[0].tolist() == [1, 1]
        assert grad(F.minimum(y, y).sum(), y, create_graph=create_graph)[0].tolist() == [1, 1]


@pytest.mark.parametrize(("name", "arguments", "expected"), [
    ("relu", (), [0, 0, 1]), ("abs", (), [-1, 0, 1]), ("sign", (), [0, 0, 0]), ("clip", (0, 2), [0, 1, 1]),
    ("clip", (-1, 1), [1, 1, 0]), ("norm", (1,), [-1, 0, 1])])
def test_at_a_corner_loop_and_rule_give_the_documented_slope(name, arguments, expected):
    x = leaf([[-1.0], [0.0], [2.0]])
    for create_graph in (False, True):
        g, = grad(getattr(x, name)(*arguments).sum(), x, create_graph=create_graph)
        assert g.numpy().ravel().tolist() == expected


# ---------------------------------------------------------------------------------------------------------------------
# 7, 8: shapes, memory
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("a", "b"),
                         [((2, 3), (3,)), ((2, 3), (2, 1)), ((2, 1, 3), (4, 1)), ((), (2, 2)), ((1,), (1, 1)),
                                      ((0, 3), (3,)), ((0, 1), (1, 4)), ((1, 1), ()), ((3,), (1, 1, 3))])
def test_a_gradient_has_the_shape_and_type_of_its_tensor(a, b):
    for dtype in (np.float32, np.float64):
        for create_graph in (False, True):
            x, y = (Tensor(np.ones(s, dtype), requires_grad=True) for s in (a, b))
            for f in (lambda x, y: x + y, lambda x, y: x * y / 2, lambda x, y: F.where(x > y, x, y), F.maximum,
                      lambda x, y: x.double() - y):
                for t, g in zip((x, y), grad(f(x, y).sum(), [x, y], create_graph=create_graph), strict=True):
                    assert g.shape == t.shape and g.dtype == t.dtype


def memory(*tensors):
    return [t.array for t in tensors]


def test_gradients_share_no_memory():
    for create_graph in (False, True):
        a, b, seed = leaf([[1.0, 2.0]]), leaf([[3.0, 4.0]]), Tensor(np.ones(2))
        (a + b).reshape(2).backward(seed, create_graph=create_graph)
        found = memory(a.grad, b.grad, seed, a, b)
        assert not any(np.shares_memory(x, y) for i, x in enumerate(found) for y in found[:i])
    x = leaf([1.0, 2.0])
    y = x * 2
    one, two, three = grad((y * y).sum(), [y, y, x])
    assert not np.shares_memory(one.array, two.array)
    assert one.tolist() == two.tolist() == [4, 8]
    assert three.tolist() == [8, 16]
    one, two = grad(x.sum(), [x, x])
    assert not np.shares_memory(one.array, two.array)


def test_accumulating_does_not_touch_the_first_gradient():
    a, b = leaf([1.0]), leaf([1.0])
    (a + b).sum().backward()
    kept = a.grad
    (a * 5).sum().backward()
    assert kept.tolist() == [1] and a.grad.tolist() == [6] and b.grad.tolist() == [1]


def test_a_users_loop_that_gives_g_itself_spoils_nothing():
    class Join(Op):
        def cpu(self, x, y):
            return x + y

        def cpu_grad(self, g, out, x, y):
            return g, g

    x, y, seed = leaf([1.0, 2.0]), leaf([1.0, 2.0]), Tensor(np.ones(2))
    (Join()(x, y) * 1 + Join()(Join()(x, x), y)).backward(seed)
    assert x.grad.tolist() == [3, 3] and y.grad.tolist() == [2, 2] and seed.tolist() == [1, 1]


# ---------------------------------------------------------------------------------------------------------------------
# 9, 17: changed in place after use
# ---------------------------------------------------------------------------------------------------------------------
def test_changed_after_use():
    w = leaf([1.0, 2.0], "weights")
    loss = (w * w).sum()
    with no_grad():
        w.add_([1.0, 1.0])
    with pytest.raises(RuntimeError, match=r"'weights' of shape \(2,\) was changed in place after mul\(\).*detach\(\)"):
        loss.backward()


@pytest.mark.parametrize("shown", [lambda x: x.detach(), lambda x: x.reshape(4)[:2], lambda x: x.T[0], lambda x: x,
                                   lambda x: x.flip(0)[1], lambda x: x.split(1)[0].reshape(2)])
def test_changed_behind_a_view(shown):
    """The changed Tensor is not in the graph itself: a view of it is, or a detached one."""
    x, w = Tensor(np.ones((2, 2)), name="memory"), leaf([1.0, 1.0])
    loss = (w * shown(x)).sum()
    x.fill_(7.0)
    with pytest.raises(RuntimeError, match="'memory' of shape .* was changed in place"):
        loss.backward()
    (w * shown(x)).sum().backward()  # a graph that is newer than the change
    assert w.grad is not None


def test_only_an_owner_can_be_changed():
    x = Tensor(np.ones((2, 2)))
    for view in (x.detach(), x[0], x.T, x.expand(3, 2, 2)):
        with pytest.raises(RuntimeError, match="another's memory"):
            view.fill_(0)
    y = leaf([1.0]) * 2
    for t in (y, leaf([1.0])):
        with pytest.raises(RuntimeError, match="takes part in a graph"):
            t[0] = 3.0
    with pytest.raises(ValueError, match="read-only"):
        x.numpy()[0] = 5
    with pytest.raises(ValueError, match="read-only"):
        x.data[0] = 5


def test_a_carried_state():
    w, state_ = leaf([0.5, 0.5], "recurrent.weight"), Tensor(np.zeros(2))

    def step(h):
        h = (h + w).tanh()
        w.grad = None
        h.sum().backward()
        with no_grad():
            w.add_(w.grad, alpha=-0.1)
        return h

    carried = step(state_)
    with pytest.raises(RuntimeError, match=r"'recurrent.weight'.*`state = state\.detach\(\)`"):
        step(carried)
    carried = step(carried.detach())
    step(carried.detach())


# ---------------------------------------------------------------------------------------------------------------------
# 10, 11: at zero, and the branch not taken
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("x", "expected"),
                         [([0, 2, 3], [6, 0, 0]), ([0, 2, 0], [0, 0, 0]), ([1, 2, 3], [6, 3, 2]), ([0], [1]),
                                             ([], []), ([0, 0, 0], [0, 0, 0]), ([-1, 0, 2], [0, -2, 0])])
def test_product_at_zero(x, expected):
    for create_graph in (False, True):
        t = leaf(x)
        assert grad(t.prod(), t, create_graph=create_graph)[0].tolist() == expected


def test_second_derivative_of_a_product_with_zeros():
    x = leaf([0.0, 2.0, 0.0])
    g, = grad(x.prod(), x, create_graph=True)
    assert grad(g[0], x)[0].tolist() == [0, 0, 2] and grad(x.prod(), x)[0].tolist() == [0, 0, 0]


def test_norm_at_zero():
    x = leaf([[0.0, 0.0], [3.0, 4.0]])
    g, = grad(x.norm(1).sum(), x, create_graph=True)
    assert g.tolist() == [[0, 0], [0.6, 0.8]]
    assert np.isfinite(grad(g.sum(), x)[0].numpy()).all()
    assert grad(x[0].norm(), x)[0].tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize(("base", "exponent", "slopes"), [
    (0.0, 3, [0, 0, 6, 0]), (0.0, 2, [0, 2, 0, 0]), (0.0, 1, [1, 0, 0, 0]), (0.0, 0, [0, 0, 0, 0]),
    (2.0, 0, [0, 0, 0, 0]),
    (-2.0, 3, [12, -12, 6, 0]), (-2.0, 2, [-4, 2, 0, 0]), (4.0, 0.5, [0.25, -1 / 32, 3 / 256, -15 / 2048])])
@pytest.mark.parametrize("general", [False, True])
def test_powers(base, exponent, slopes, general):
    x = leaf([base])
    y = x ** (Tensor(np.array([exponent], np.float64)) if general else exponent)
    for slope in slopes:
        y, = grad(y.sum(), x, create_graph=True, allow_unused=True) if y is not None and y.requires_grad else (None,)
        assert (0 if y is None else y.item()) == pytest.approx(slope)


def test_exponent_that_is_differentiated():
    x, y = leaf([0.0, 2.0, 0.0]), leaf([2.0, 0.0, 0.0])
    gx, gy = grad((x ** y).sum(), [x, y], create_graph=True)
    assert gx.tolist() == [0, 0, 0] and gy.tolist() == pytest.approx([0, np.log(2), 0])
    mixed, = grad(gx.sum(), y, create_graph=True)
    assert mixed.tolist() == pytest.approx([0, 0.5, 1])  # d/dy y x^(y-1); at 0^0 the base stands in as 1
    assert np.isfinite(grad(gx.sum(), x, allow_unused=True)[0].numpy()).all()
    with np.errstate(all="raise"):
        g, = grad((leaf([-2.0]) ** (e := leaf([2.0]))).sum(), e)
    assert np.isnan(g.item())  # documented: a real power of a negative base has no derivative in the exponent


def test_the_branch_not_taken():
    nan = leaf([np.nan, 1.0, np.inf])
    keep = np.array([False, True, False])
    for create_graph in (False, True):
        y = F.where(keep, nan, 0.0)
        assert y.tolist() == [0, 1, 0]
        assert grad(y.sum(), nan, create_graph=create_graph)[0].tolist() == [0, 1, 0]
    x = leaf([0.0, 4.0])
    safe = F.where(x > 0, x, 1.0).log().where(x > 0, 0.0)
    assert grad(safe.sum(), x)[0].tolist() == [0, 0.25]


def test_anomaly_mode_names_the_first_op():
    with detect_anomaly():
        first = r"log\(\) is the first to give nan \(at index \(1,\).*in encoder"
        with pytest.raises(FloatingPointError, match=first), scope("encoder"):
            (leaf([1.0, -1.0]).log() * 2).exp()
        with pytest.raises(FloatingPointError, match="gradient|div|sqrt"):
            leaf([0.0, 1.0]).sqrt().sum().backward()
        leaf([1.0]).log().sum().backward()
    leaf([-1.0]).log()


# ---------------------------------------------------------------------------------------------------------------------
# fused ops, several outputs, any Tensor of the graph
# ---------------------------------------------------------------------------------------------------------------------
def agree(output, wanted):
    fast, slow = (grad(output, wanted, create_graph=c) for c in (False, True))
    for a, b in zip(fast, slow, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), 1e-12, 1e-12)


def test_one_tensor_in_several_slots_of_a_fused_op(rng):
    x, v = leaf(rng.normal(size=(1, 3, 3))), leaf(rng.normal(size=3))
    agree(AdditiveScores()(x, x, v).sum(), [x, v])
    w = leaf(rng.normal(size=(2, 2)))
    agree(RNNScan()(leaf(rng.normal(size=(2, 3, 2))), w, w, None, None)[0].sin().sum(), [w])
    y = x * 2  # not a leaf
    agree(AdditiveScores()(y, y, v).sum(), [y, x, v])


@pytest.mark.parametrize(("scan", "gates", "states"), [(RNNScan, 1, 1), (GRUScan, 3, 1), (LSTMScan, 4, 2)])
def test_unused_outputs(scan, gates, states, rng):
    x, h, w = (leaf(rng.normal(size=s)) for s in ((2, 3, 2 * gates), (2, 2), (2 * gates, 2)))
    outs = scan()(x, *[h] * states, w, None, None)
    for out in outs:
        agree((out * out).sum(), [x, h, w])
    agree(sum((o * o).sum() for o in outs), [w, h])
    x.grad = None
    outs[-1].T.flip(0).sum().backward()  # a gradient that is not contiguous
    reference, = grad(outs[-1].sum(), x)
    np.testing.assert_allclose(x.grad.numpy(), reference.numpy())


def test_split_with_one_piece_used():
    x = leaf([1.0, 2.0, 3.0])
    a, b = x.split([1, 2])
    assert [g.tolist() for g in grad((b * b).sum(), [b, x])] == [[4, 6], [0, 4, 6]]
    assert grad((b * b).sum(), a, allow_unused=True) == (None,)
    with pytest.raises(ValueError, match="do not depend on input 0"):
        grad((b * b).sum(), a)


def test_inner_tensors_as_inputs():
    x = leaf(3.0)
    y = x * x
    z = y * y
    for wanted in ([y, x], [x, y]):
        values = dict(zip(map(id, wanted), (g.item() for g in grad(z, wanted)), strict=True))
        assert values[id(y)] == 18 and values[id(x)] == 108
    assert grad(z, z)[0].item() == 1 and grad(x, x)[0].item() == 1 and grad(z, [z, y])[1].item() == 18
    assert grad([y, z], x)[0].item() == 6 + 108 and grad([y, y], x)[0].item() == 12
    assert grad([z, y], [y, x])[0].item() == 18 + 1


def test_derivatives_of_any_order():
    x = leaf(2.0)
    y = x ** 4
    for expected in (32, 48, 48, 24, 0):
        y, = grad(y, x, create_graph=True)
        assert y.item() == expected
    x = leaf(0.3)
    y = x.sin()
    for k in range(1, 7):
        y, = grad(y, x, create_graph=True)
        assert y.item() == pytest.approx(np.sin(0.3 + k * np.pi / 2))


def test_a_gradient_in_a_loss():
    w = leaf([1.0, 2.0])
    g, = grad((w * w * w).sum(), w, create_graph=True)
    (g * g).sum().backward()
    assert w.grad.tolist() == [36, 288]
    w.grad = None
    (w * w * w).sum().backward(create_graph=True)
    assert grad(w.grad.sum(), w)[0].tolist() == [6, 12]


def test_errors_of_grad_and_backward():
    x = leaf([1.0, 2.0])
    for call, message in [
            (lambda: x.backward(), r"shape \(2,\); give its gradient"),
            (lambda: (x * 2).backward(np.ones(3)), r"expected a gradient of shape \(2,\) and float64, got \(3,\)"),
            (lambda: Tensor([1.0]).backward(), "does not depend on any Tensor with requires_grad"),
            (lambda: grad((x * 2).sum(), Tensor([1.0])), "does not require a gradient"),
            (lambda: grad((x * 2).sum(), leaf(1.0, "w")), r"do not depend on input 0 \(w, shape \(\)\)"),
            (lambda: grad([x.sum(), x.sum()], x, [1.0]), "shorter")]:
        with pytest.raises((RuntimeError, ValueError), match=message):
            call()


def test_an_op_without_a_rule_says_so():
    class Flat(Op):
        def cpu(self, x, y):
            return x + y

        def grad_x(self, g, out, x, y):
            return g

    x, y = leaf([1.0]), leaf([1.0])
    assert grad(Flat()(x, y).sum(), x)[0].tolist() == [1]
    with pytest.raises(TypeError, match="flat: is not differentiable in its input 'y'"):
        Flat()(x, y).sum().backward()


def test_an_op_of_the_package_needs_samples():
    with pytest.raises(TypeError, match="samples"):
        type("Lazy", (Op,), {"cpu": lambda self, x: x, "__module__": "tinyattn.ops.lazy"})
    assert "lazy" not in Op.registry


def test_a_users_op_that_gives_numbers():
    """NumPy's arithmetic on arrays without axes gives scalars."""
    class Twice(Op):
        def cpu(self, x):
            return x + x

        def grad_x(self, g, y, x):
            return g + g

    x = leaf(3.0)
    y = Twice()(x)
    y.backward()
    assert y.item() == 6 and x.grad.item() == 2


# ---------------------------------------------------------------------------------------------------------------------
# 16: switches and memory
# ---------------------------------------------------------------------------------------------------------------------
def test_grad_mode_belongs_to_a_thread():
    seen = {}
    with no_grad():
        thread = threading.Thread(target=lambda: seen.update(other=is_grad_enabled()))
        thread.start()
        thread.join()
        seen["this"] = is_grad_enabled()
    assert seen == {"other": True, "this": False} and is_grad_enabled()


def test_two_threads_work_on_graphs_of_their_own():
    results = [None, None]

    def work(i):
        x = leaf(np.full(50, 1.0 + i))
        for _ in range(30):
            x.grad = None
            y = chain(x, 20, lambda y: (y * 1.01).tanh())
            y.sum().backward()
        results[i] = x.grad.numpy()

    expected = []
    for i in (0, 1):
        work(i)
        expected.append(results[i])
    threads = [threading.Thread(target=work, args=(i,)) for i in (0, 1)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(np.array_equal(a, b) for a, b in zip(results, expected, strict=True))


def test_switches_survive_exceptions():
    class Bad(Op):
        def cpu(self, x):
            return x * 1

        def grad_x(self, g, y, x):
            raise KeyError("boom")

    for block in (no_grad(), enable_grad(), fused("never"), detect_anomaly(), scope("a"), capture()):
        with pytest.raises(KeyError), block:
            raise KeyError
    with pytest.raises(KeyError):
        (Bad()(leaf([1.0])) * 2).sum().backward()
    x = leaf([1.0])
    with pytest.raises(KeyError):
        grad(Bad()(x).sum(), x, create_graph=True)
    assert is_grad_enabled()
    assert state.fused == "auto"
    assert not state.anomaly
    assert state.scope == ""
    assert not state.captures


def test_nested_switches():
    off = no_grad()
    with off:
        with off:
            pass
        assert not is_grad_enabled()
        with enable_grad():
            assert is_grad_enabled() and (leaf(1.0) * 2).requires_grad
        assert not (leaf(1.0) * 2).requires_grad
    assert is_grad_enabled()
    with pytest.raises(ValueError, match="'never' or 'force', got 'maybe'"):
        fused("maybe")


def test_decorators():
    @no_grad()
    def function(x):
        """Its text."""
        return (x * 2).requires_grad, is_grad_enabled()

    assert function(leaf(1.0)) == (False, False) and function.__doc__ == "Its text." and is_grad_enabled()

    @no_grad()
    def generator():
        got = yield is_grad_enabled()
        try:
            yield got, is_grad_enabled()
        except ValueError:
            yield "caught", is_grad_enabled()
        return "end"

    steps = generator()
    assert next(steps) is False and is_grad_enabled()
    assert steps.send(5) == (5, False) and is_grad_enabled()
    assert steps.throw(ValueError()) == ("caught", False) and is_grad_enabled()
    with pytest.raises(StopIteration) as end:
        next(steps)
    assert end.value.value == "end"
    closed = generator()
    next(closed)
    closed.close()
    assert is_grad_enabled()


@pytest.mark.compiled
def test_memory_is_flat_without_the_collector(rng):
    w, x = leaf(rng.normal(size=(64, 64))), Tensor(rng.normal(size=(64, 64)))
    ids = rng.integers(0, 64, 20)

    def step():
        w.grad = None
        y = (x @ w).tanh()
        h = y[:, :32] * y[:, 32:] + w[ids].mean()
        ((h * h).mean() + F.cross_entropy(y, np.arange(64)) + LSTMScan()(
            y.reshape(4, 16, 64)[:, :3, :32], *[x[:4, :8]] * 2, x[:32, :8], None, None)[0].sum()).backward()
        g, = grad((y * w).sum(), w, create_graph=True)
        grad((g * g).sum(), w)
        with no_grad():
            w.add_(w.grad, alpha=-0.01)

    for _ in range(20):
        step()
    gc.collect()
    gc.disable()
    try:
        tracemalloc.start()
        for _ in range(10):
            step()
        before, objects = tracemalloc.get_traced_memory()[0], len(gc.get_objects())
        for _ in range(1_000):
            step()
        after = tracemalloc.get_traced_memory()[0]
        grown = len(gc.get_objects()) - objects
    finally:
        tracemalloc.stop()
        gc.enable()
    assert after - before < 500_000 and grown < 200  # one activation is 32 kB; Python keeps some freed tuples for later


@pytest.mark.parametrize("create_graph", [False, True])
def test_a_dropped_loss_is_freed_at_once(create_graph):
    gc.collect()
    gc.disable()
    try:
        x = leaf([1.0, 2.0])
        y = (x * x).tanh()
        loss = y.softmax().sum()
        g, = grad(loss, x, create_graph=create_graph)
        alive = [weakref.ref(y), weakref.ref(g), weakref.ref(loss)]
        del y, g, loss
        assert [r() for r in alive] == [None] * 3
    finally:
        gc.enable()


# ---------------------------------------------------------------------------------------------------------------------
# scopes, taps, Program
# ---------------------------------------------------------------------------------------------------------------------
def test_capture_and_scope():
    with capture() as seen, scope("decoder"), scope("attention"):
        with capture() as inner:
            tap("weights", leaf([1.0]) * 2)
        tap("weights", lambda: leaf([2.0]) * 2)
    assert [t.tolist() for t in seen["weights"]] == [[2], [4]] == [t.tolist()
                                                                   for t in seen["decoder/attention/weights"]]
    assert len(inner["weights"]) == 1 and "weights" in seen and "nothing" not in seen
    assert not any(t.requires_grad for t in seen["weights"])
    with pytest.raises(KeyError, match="nothing was tapped as 'scores'; tapped:.*decoder/attention/weights"):
        seen["scores"]
    tap("weights", lambda: pytest.fail("nobody listens"))


def test_program():
    x, w = leaf([[1.0, 2.0]], "x"), leaf([[1.0], [1.0]], "w")
    with scope("layer"):
        y = x @ w
    z = (y + y).tanh()
    program = Program.of(z)
    assert [i.op for i in program.instructions] == ["matmul", "add", "tanh"]
    assert program.instructions[0].scope == "layer" and program.scopes() == ["layer"]
    assert [program.values[i].name for i in program.instructions[0].inputs] == ["x", "w"]
    assert program.instructions[1].inputs[0] == program.instructions[1].inputs[1]
    assert all(v.id == i for i, v in enumerate(program.values))
    pieces = Program.of(list(x.split([1, 1], 1)))
    assert len(pieces) == 1 and len(pieces.instructions[0].outputs) == 2 == len(set(pieces.outputs))
    g, = grad(z.sum(), x, create_graph=True)
    assert len(Program.of([g, z])) > 3 and len(Program.of(x)) == 0
    import json
    json.dumps(Program.of(F.where(x > 0, x[[0, 0]], 1.0).clip(0, 1).sum()).to_json())


def test_an_op_takes_tensors_and_says_so():
    with pytest.raises(TypeError, match="exp: expected Tensors, got ndarray"):
        Exp()(np.ones(2))


def test_an_op_object_is_one_node_and_says_so():
    op, x = Exp(), Tensor([1.0], requires_grad=True)
    op(x)
    with pytest.raises(RuntimeError, match="exp: this object has been called before"):
        op(x)
    with no_grad():
        op(x)  # nothing is recorded, so nothing is lost
