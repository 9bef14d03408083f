"""Optimisers against PyTorch in float64, exact resume, clipping, learning rates against their formulas."""
import copy
import math
import pickle
import weakref

import numba
import numpy as np
import pytest

from tinyattn import device, nn, optim
from tinyattn.nn import Linear, Parameter
from tinyattn.optim import SGD, Adadelta, Adam, AdamW, clip_grad_norm, learning_rate
from tinyattn.tensor import Tensor

KINDS = [("SGD", {"lr": 0.1}), ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.02}),
         ("SGD", {"lr": 0.1, "momentum": 0.8, "nesterov": True, "weight_decay": 0.02}),
         ("Adam", {"lr": 0.01}), ("Adam", {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1}),
         ("AdamW", {"lr": 0.01}), ("AdamW", {"lr": 0.01, "weight_decay": 0.3}),
         ("Adadelta", {}), ("Adadelta", {"lr": 0.5, "rho": 0.8, "eps": 1e-4, "weight_decay": 0.1})]
SHAPES = [(3, 4), (5,), (), (2, 1, 3)]


def with_gradients(parameters, rng):
    for p in parameters:
        p.grad = Tensor(rng.normal(size=p.shape), dtype=p.dtype)


@pytest.mark.parametrize(("name", "options"), KINDS, ids=str)
def test_is_pytorchs(name, options):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    mine = [Parameter(rng.normal(size=s), dtype=np.float64) for s in SHAPES]
    theirs = [torch.tensor(p.numpy().copy(), requires_grad=True) for p in mine]
    a, b = getattr(optim, name)(mine, **options), getattr(torch.optim, name)(theirs, **options)
    for step in range(20):
        if step == 10:
            a.lr = b.param_groups[0]["lr"] = 0.003
        for i, (p, t) in enumerate(zip(mine, theirs, strict=True)):
            g = rng.normal(size=p.shape)
            skipped = i == 1 and step in (0, 5)  # without a gradient nothing happens, not even the count of its steps
            p.grad, t.grad = (None, None) if skipped else (Tensor(g, dtype=np.float64), torch.tensor(g))
        a.step()
        b.step()
    for p, t in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(p.numpy(), t.detach().numpy(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("name", "options"), KINDS, ids=str)
def test_float32_stays_close_to_float64_and_large_parameters_to_small_ones(name, options):
    """200,000 elements run in the parallel kernel; every element is what it is alone, to the bit."""
    rng = np.random.default_rng(0)
    values, gradients = rng.normal(size=200_000), rng.normal(size=(3, 200_000))
    large, single, part = (Parameter(values), Parameter(values, dtype=np.float64), Parameter(values[131_000:131_100]))
    optimizers = [getattr(optim, name)([p], **options) for p in (large, single, part)]
    for g in gradients:
        large.grad, single.grad = Tensor(g, dtype=np.float32), Tensor(g)
        part.grad = Tensor(g[131_000:131_100], dtype=np.float32)
        for o in optimizers:
            o.step()
    assert large.dtype == np.float32
    np.testing.assert_allclose(large.numpy(), single.numpy(), rtol=1e-4, atol=2e-6)
    np.testing.assert_array_equal(large.numpy()[131_000:131_100], part.numpy())


@pytest.mark.parametrize(("name", "options"), KINDS, ids=str)
def test_resume_is_exact(name, options):
    def run(parameters, optimizer, steps, rng):
        for _ in range(steps):
            with_gradients(parameters, rng)
            optimizer.step()

    start = [np.random.default_rng(1).normal(size=s) for s in SHAPES]
    whole = [Parameter(a) for a in start]
    optimizer = getattr(optim, name)(whole, **options)
    rng = np.random.default_rng(2)
    run(whole, optimizer, 5, rng)
    optimizer.lr = 0.02
    state, values = optimizer.state_dict(), [p.numpy().copy() for p in whole]
    assert all(isinstance(a, np.ndarray) for a in state.values()) and state["steps"] == 5
    later = [Parameter(a) for a in values]
    resumed = getattr(optim, name)(later, **options)
    resumed.load_state_dict(state)
    assert resumed.lr == 0.02 and resumed.steps == 5
    run(later, resumed, 5, np.random.default_rng(3))
    run(whole, optimizer, 5, np.random.default_rng(3))
    for a, b in zip(whole, later, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    for a, b in zip(optimizer.state_dict().values(), resumed.state_dict().values(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_state_carries_names_and_refuses_anothers():
    layer = Linear(2, 3)
    optimizer = Adam(layer.parameters())
    state = optimizer.state_dict()
    assert set(state) == {"steps", "lr", *(f"{n}.{k}" for n in ("weight", "bias") for k in ("steps", "m", "v"))}
    bad = {**state, "weight.m": np.zeros(2), "other.m": np.zeros(1), "steps": np.array(9)}
    del bad["bias.v"]
    with pytest.raises(ValueError, match=r"missing bias.v; unexpected other.m; weight.m has shape \(3, 2\), got"):
        optimizer.load_state_dict(bad)
    assert optimizer.steps == 0
    state["weight.m"][...] = 7  # a copy: the optimiser does not see it
    assert not optimizer.state_dict()["weight.m"].any()


def test_a_tied_parameter_is_stepped_once():
    p, q = Parameter([1.0, 2.0]), Parameter([1.0])
    optimizer = SGD([p, q, p], lr=1.0)
    p.grad, q.grad = Tensor([1.0, 1.0]), Tensor([1.0])
    optimizer.step()
    np.testing.assert_array_equal(p.numpy(), [0.0, 1.0])
    assert len(optimizer.slots) == 2


def test_a_step_is_seen_by_a_graph_that_needs_the_old_weights():
    layer = Linear(2, 2)
    optimizer = SGD(layer.parameters(), 0.1)
    loss = (layer(np.ones((1, 2))) ** 2).sum()
    loss.backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match="changed in place"):
        loss.backward()
    optimizer.zero_grad()
    assert layer.weight.grad is None


def test_it_follows_a_module_to_another_dtype():
    layer = Linear(2, 2)
    optimizer = Adam(layer.parameters(), 0.1)
    with_gradients(layer.parameters(), np.random.default_rng(0))
    optimizer.step()
    layer.to(np.float64)
    before = layer.weight.numpy().copy()
    with_gradients(layer.parameters(), np.random.default_rng(1))
    optimizer.step()
    assert np.abs(layer.weight.numpy() - before).min() > 1e-3
    assert optimizer.state_dict()["weight.m"].dtype == np.float64


def test_a_gradient_in_any_memory_order():
    p, q = Parameter(np.zeros((2, 3))), Parameter(np.zeros((2, 3)))
    g = np.arange(6, dtype=np.float32).reshape(3, 2)
    p.grad, q.grad = Tensor(g).T, Tensor(np.ascontiguousarray(g.T))
    for t in (p, q):
        SGD([t], lr=1.0).step()
    np.testing.assert_array_equal(p.numpy(), -g.T)
    np.testing.assert_array_equal(q.numpy(), -g.T)


def test_it_learns():
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(64, 3)), np.array([[1.0, -2.0, 0.5]])
    for make in (lambda p: SGD(p, 0.1, 0.5), lambda p: Adam(p, 0.05), lambda p: AdamW(p, 0.05, weight_decay=0.0),
                 lambda p: Adadelta(p, 3.0)):
        layer = Linear(3, 1)
        optimizer = make(layer.parameters())
        for _ in range(300):
            optimizer.zero_grad()
            loss = ((layer(x) - (x @ w.T).astype(np.float32)) ** 2).mean()
            loss.backward()
            optimizer.step()
        assert loss.item() < 0.01, optimizer  # from about 5


@pytest.mark.parametrize(("call", "error", "message"), [
    (lambda: Adam([]), ValueError, "at least one parameter"),
    (lambda: Adam(Parameter([1.0])), TypeError, "got one Tensor"),
    (lambda: Adam([1.0]), TypeError, "expected Tensors, got float"),
    (lambda: Adam([Parameter([1.0]) * 2]), ValueError, "result of mul"),
    (lambda: Adam([Parameter([1.0])], lr=-1), ValueError, "lr of at least 0, got -1"),
    (lambda: Adam([Parameter([1.0])], lr=math.nan), ValueError, "lr"),
    (lambda: Adam([Parameter([1.0])], betas=(1.0, 0.9)), ValueError, "betas"),
    (lambda: SGD([Parameter([1.0])], 0.1, nesterov=True), ValueError, "momentum"),
    (lambda: Adadelta([Parameter([1.0])], rho=2), ValueError, "rho"),
])
def test_options_that_cannot_be_used_raise(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("g", [Tensor(np.zeros(3)), Tensor(np.zeros(2))])
def test_a_gradient_that_does_not_fit_raises(g):
    p = Parameter([1.0, 2.0], name="w")
    p.grad = g
    with pytest.raises(ValueError, match=r"SGD: parameter w \(2,\) float32 has a gradient of shape"):
        SGD([p], 0.1).step()


# ---------------------------------------------------------------------------------------------------------------------
# clipping
# ---------------------------------------------------------------------------------------------------------------------
def test_clipping():
    p, q, idle = Parameter(np.zeros((2, 2))), Parameter(np.zeros(3)), Parameter(np.zeros(1))
    g = [np.full((2, 2), 3.0, np.float32), np.array([1.0, -2.0, 2.0], np.float32)]

    def fresh():
        p.grad, q.grad = Tensor(g[0]), Tensor(g[1])

    fresh()
    assert clip_grad_norm([p, q, p, idle], 100.0) == pytest.approx(math.sqrt(45))
    np.testing.assert_array_equal(p.grad.numpy(), g[0])
    assert clip_grad_norm([p, q, p, idle], 1.0) == pytest.approx(math.sqrt(45))
    for t, array in ((p, g[0]), (q, g[1])):
        np.testing.assert_allclose(t.grad.numpy(), array / math.sqrt(45), rtol=1e-6)
        assert t.grad.dtype == np.float32
    assert idle.grad is None and clip_grad_norm([idle], 1.0) == 0.0
    fresh()
    shared = p.grad
    clip_grad_norm((t for t in (p, q)), 0.5)
    np.testing.assert_array_equal(shared.numpy(), g[0])  # who holds the old gradient keeps it
    with pytest.raises(ValueError, match="max_norm"):
        clip_grad_norm([p], -1)


def test_clipping_is_pytorchs():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    mine = [Parameter(np.zeros(s), dtype=np.float64) for s in SHAPES]
    with_gradients(mine, rng)
    theirs = [torch.zeros(p.shape, dtype=torch.float64, requires_grad=True) for p in mine]
    for p, t in zip(mine, theirs, strict=True):
        t.grad = torch.tensor(p.grad.numpy())
    assert clip_grad_norm(mine, 0.7) == pytest.approx(float(torch.nn.utils.clip_grad_norm_(theirs, 0.7)), rel=1e-12)
    for p, t in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(p.grad.numpy(), t.grad.numpy(), rtol=1e-12)


def test_the_norm_is_summed_in_float64():
    many = Parameter(np.zeros(100_000))
    many.grad = Tensor(np.full(100_000, 0.1), dtype=np.float32)
    assert clip_grad_norm([many], 1e9) == pytest.approx(float(np.float32(0.1)) * math.sqrt(100_000), rel=1e-10)
    large = Parameter(np.zeros(2))
    large.grad = Tensor([3e30, 4e30])  # the squares are beyond float32
    assert clip_grad_norm([large], 1.0) == pytest.approx(5e30)
    np.testing.assert_allclose(large.grad.numpy(), [0.6, 0.8], rtol=1e-6)
    huge = Parameter(np.zeros(2), dtype=np.float64)
    huge.grad = Tensor(np.array([3e200, 4e200]))  # and these beyond float64
    assert clip_grad_norm([huge], 1.0) == pytest.approx(5e200)
    np.testing.assert_allclose(huge.grad.numpy(), [0.6, 0.8], rtol=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_gradient_that_is_not_finite_is_named(value):
    layer = nn.GRU(2, 2)
    with_gradients(layer.parameters(), np.random.default_rng(0))
    bad = np.zeros((6, 2), np.float32)
    bad[4, 1] = value
    layer.weight_hh_l0.grad = Tensor(bad)
    weights, gradients = layer.state_dict(), [p.grad.numpy().copy() for p in layer.parameters()]
    with pytest.raises(FloatingPointError, match=rf"weight_hh_l0 \(6, 2\) holds {value} at index \(4, 1\)"):
        clip_grad_norm(layer.parameters(), 1.0)
    for (name, p), g in zip(layer.named_parameters(), gradients, strict=True):
        np.testing.assert_array_equal(p.numpy(), weights[name])
        np.testing.assert_array_equal(p.grad.numpy(), g)


# ---------------------------------------------------------------------------------------------------------------------
# one kernel for all parameters: the table of addresses
# ---------------------------------------------------------------------------------------------------------------------
MIXED = [((3, 4), np.float32), ((5,), np.float64), ((), np.float32), ((0, 2), np.float32), ((150, 300), np.float32),
         ((7, 3), np.float32), ((130, 130), np.float64), ((1,), np.float64)]  # two of them longer than a chunk


def some_gradients(parameters, step, rng):
    """None for parameter number `step`, one with its axes swapped, one that is read-only; the others plain."""
    for i, p in enumerate(parameters):
        g = rng.normal(size=p.shape).astype(p.dtype)
        if i == 5:
            g = np.asfortranarray(g)
        g.flags.writeable = i != 4
        p.grad = None if i == step else Tensor._wrap(g, None, 0, False)


@pytest.mark.compiled
@pytest.mark.parametrize(("name", "options"), KINDS, ids=str)
@pytest.mark.parametrize("threads", [1, 2])
def test_together_each_is_what_it_is_alone(name, options, threads, monkeypatch):
    if threads > numba.config.NUMBA_NUM_THREADS:
        pytest.skip("one core")
    make = getattr(optim, name)
    monkeypatch.setitem(device._state, "threads", threads)
    monkeypatch.setattr(device, "PARALLEL_ABOVE", 0)  # the parallel kernel, also for a table of one element
    rng = np.random.default_rng(0)
    start = [rng.normal(size=shape).astype(dtype) for shape, dtype in MIXED]
    together, alone = ([Parameter(a, dtype=a.dtype) for a in start] for _ in range(2))
    optimizer, own = make(together, **options), [make([p], **options) for p in alone]
    for step in range(6):
        some_gradients(together, step - 1, rng)
        for p, q in zip(together, alone, strict=True):
            q.grad = None if p.grad is None else Tensor(p.grad.numpy().copy())
        optimizer.step()
        monkeypatch.setattr(device, "PARALLEL_ABOVE", math.inf)
        for o in own:
            o.step()
        monkeypatch.setattr(device, "PARALLEL_ABOVE", 0)
    state = optimizer.state_dict()
    for i, (p, q, o) in enumerate(zip(together, alone, own, strict=True)):
        np.testing.assert_array_equal(p.numpy(), q.numpy())
        for key, value in o.state_dict().items():
            if key.startswith("parameter"):
                np.testing.assert_array_equal(state[key.replace("parameter0", f"parameter{i}")], value)
    assert [int(state[f"parameter{i}.steps"]) for i in range(len(MIXED))] == [5] * 5 + [6] * 3
    assert len(optimizer.tables) == 2


def test_adam_is_its_formula():
    """Against a loop in NumPy, with parameters that fall behind: each has the bias correction of its own steps."""
    rng, lr, b1, b2, eps = np.random.default_rng(0), 0.01, 0.9, 0.999, 1e-8
    parameters = [Parameter(rng.normal(size=s), dtype=np.float64) for s in SHAPES]
    w, optimizer = [p.numpy().copy() for p in parameters], Adam(parameters, lr)
    m, v, t = [np.zeros(s) for s in SHAPES], [np.zeros(s) for s in SHAPES], [0] * len(SHAPES)
    for step in range(9):
        for i, p in enumerate(parameters):
            g = rng.normal(size=p.shape)
            p.grad = Tensor(g) if (step + i) % 3 or i == 0 else None
            if p.grad is not None:
                t[i] += 1
                m[i], v[i] = b1 * m[i] + (1 - b1) * g, b2 * v[i] + (1 - b2) * g * g
                w[i] = w[i] - lr * (m[i] / (1 - b1**t[i])) / (np.sqrt(v[i] / (1 - b2**t[i])) + eps)
        optimizer.step()
    assert t == [9, 6, 6, 6]
    for p, expected in zip(parameters, w, strict=True):
        np.testing.assert_allclose(p.numpy(), expected, rtol=1e-13, atol=1e-14)


def test_gradients_that_stay_move_or_go():
    p, q = Parameter(np.zeros(3)), Parameter(np.zeros(2))
    optimizer = SGD([p, q], lr=1.0)
    g = np.ones(3, np.float32)
    p.grad = Tensor._wrap(g, None, 0, False)
    optimizer.step()
    g[:] = 2  # new numbers in the same memory
    optimizer.step()
    np.testing.assert_array_equal(p.numpy(), [-3] * 3)
    swapped = np.asfortranarray(np.ones((2, 2), np.float32))
    r = Parameter(np.zeros((2, 2)))
    other = SGD([r], lr=1.0)
    r.grad = Tensor._wrap(swapped, None, 0, False)
    other.step()
    swapped[0, 1] = 5  # also where the optimiser works on a copy
    other.step()
    np.testing.assert_array_equal(r.numpy(), [[-2, -6], [-2, -2]])
    for n in range(20):  # arrays that die, in whose places others are made
        p.grad, q.grad = Tensor([float(n)] * 3), Tensor([1.0, 2.0]) if n % 2 else None
        optimizer.step()
    np.testing.assert_array_equal(p.numpy(), [-3 - 190] * 3)
    np.testing.assert_array_equal(q.numpy(), [-10, -20])
    seen = weakref.ref(p.grad.array)
    optimizer.zero_grad()
    assert seen() is None  # the optimiser keeps no gradient alive
    optimizer.step()
    np.testing.assert_array_equal(p.numpy(), [-193] * 3)


def test_a_gradient_that_does_not_fit_changes_nothing():
    p, q = Parameter(np.zeros(3)), Parameter(np.zeros(2))
    optimizer = Adam([p, q])
    p.grad, q.grad = Tensor(np.ones(3, np.float32)), Tensor(np.ones(4, np.float32))
    with pytest.raises(ValueError, match=r"Adam: parameter parameter1 \(2,\) float32 has a gradient of shape \(4,\)"):
        optimizer.step()
    assert not p.numpy().any() and optimizer.steps == 0 and not optimizer.state_dict()["parameter0.steps"]
    q.grad = Tensor(np.ones(2, np.float32))
    optimizer.step()
    assert p.numpy().all() and q.numpy().all()
    q.array = np.zeros(4, np.float32)
    with pytest.raises(ValueError, match="parameter1 has 4 elements now, and had 2"):
        optimizer.step()


def test_a_parameter_in_another_memory():
    p, q = Parameter(np.zeros(3)), Parameter(np.zeros(2))
    optimizer, old = SGD([p, q], lr=1.0), p.array
    p.grad, q.grad = Tensor(np.ones(3, np.float32)), Tensor(np.ones(2, np.float32))
    optimizer.step()
    p.array = p.array.copy()
    optimizer.step()
    np.testing.assert_array_equal(p.numpy(), [-2] * 3)
    np.testing.assert_array_equal(old, [-1] * 3)
    np.testing.assert_array_equal(q.numpy(), [-2] * 2)


def test_copies_step_their_own_parameters():
    p = Parameter(np.zeros(3))
    optimizer = Adam([p], 0.1)
    p.grad = Tensor(np.ones(3, np.float32))
    optimizer.step()
    for twin in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        before, other = p.numpy().copy(), twin.slots[0].tensor
        twin.step()
        np.testing.assert_array_equal(p.numpy(), before)
        assert other is not p and int(twin.state_dict()["parameter0.steps"]) == 2
        assert (other.numpy() < before).all()


def test_the_error_of_a_stale_graph_names_the_parameter():
    layer = Linear(2, 2)
    optimizer = Adam(layer.parameters())
    loss = (layer(np.ones((1, 2))) ** 2).sum()
    loss.backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match=r"a Tensor 'weight' of shape \(2, 2\) was changed in place"):
        loss.backward()


@pytest.mark.compiled
@pytest.mark.parametrize("threads", [1, 2])
def test_clipping_in_place_is_clipping(threads, monkeypatch):
    monkeypatch.setitem(device._state, "threads", min(threads, numba.config.NUMBA_NUM_THREADS))
    monkeypatch.setattr(device, "PARALLEL_ABOVE", 0)
    rng = np.random.default_rng(0)
    mine, theirs = ([Parameter(np.zeros(shape), dtype=dtype) for shape, dtype in MIXED[:4] + MIXED[6:]] for _ in range(2))
    optimizer = Adam(mine)
    for bound in (1e9, 0.5):
        for p, q in zip(mine, theirs, strict=True):
            p.grad = Tensor(rng.normal(size=p.shape), dtype=p.dtype)
            q.grad = Tensor(p.grad.numpy().copy())
        mine[0].grad = theirs[0].grad = None
        held = [None if p.grad is None else p.grad.array for p in mine]
        assert optimizer.clip_grad_norm(bound) == pytest.approx(clip_grad_norm(theirs, bound), rel=1e-15)
        for p, q, array in zip(mine[1:], theirs[1:], held[1:], strict=True):
            assert p.grad.array is array
            np.testing.assert_array_equal(p.grad.numpy(), q.grad.numpy())
    with pytest.raises(ValueError, match="max_norm"):
        optimizer.clip_grad_norm(-1)
    mine[1].grad = Tensor(np.full(5, np.nan))
    with pytest.raises(FloatingPointError, match="holds nan"):
        optimizer.clip_grad_norm(1.0)


def test_clipping_in_place_leaves_what_it_may_not_write():
    p = Parameter(np.zeros((2, 2)))
    optimizer = Adam([p])
    for flags in ("F", "read-only", "recorded"):
        g = np.array([[3.0, 4.0], [0.0, 0.0]], np.float32, order="F" if flags == "F" else "C")
        g.flags.writeable = flags != "read-only"
        p.grad = Tensor._wrap(g, None, 0, flags == "recorded")
        assert optimizer.clip_grad_norm(1.0) == 5.0
        np.testing.assert_array_equal(g, [[3, 4], [0, 0]])
        np.testing.assert_allclose(p.grad.numpy(), [[0.6, 0.8], [0, 0]], rtol=1e-6)


# ---------------------------------------------------------------------------------------------------------------------
# learning rates
# ---------------------------------------------------------------------------------------------------------------------
def test_learning_rates():
    assert [learning_rate(2.0, optim.constant())(s) for s in (1, 99)] == [2.0, 2.0]
    assert [optim.warmup(4)(s) for s in (1, 2, 4, 9)] == [0.25, 0.5, 1.0, 1.0]
    noam, scaled = optim.inverse_sqrt(4000, width=512), optim.inverse_sqrt(4000)
    for s in (1, 100, 4000, 50_000):
        assert noam(s) == pytest.approx(512**-0.5 * min(s**-0.5, s * 4000**-1.5))
        assert scaled(s) == pytest.approx(min((4000 / s) ** 0.5, s / 4000))
    assert [optim.cosine(10, 0.2)(s) for s in (0, 5, 10, 20)] == pytest.approx([1.0, 0.6, 0.2, 0.2])
    assert [optim.linear(10)(s) for s in (0, 5, 6, 9, 10, 20)] == pytest.approx([1, 1, 0.8, 0.2, 0, 0])
    decay = optim.exponential(0.5, every=10, start=10)
    assert [decay(s) for s in (5, 10, 15, 30)] == pytest.approx([1, 1, 0.5**0.5, 0.25])
    assert [optim.halving(10, start=5)(s) for s in (1, 5, 14, 15, 24, 25)] == [1, 1, 1, 0.5, 0.5, 0.25]
    both = learning_rate(3.0, optim.warmup(2), optim.halving(2))
    assert [both(s) for s in (1, 2, 4)] == [1.5, 1.5, 0.75]
    for make in (optim.warmup, optim.cosine, optim.linear, optim.halving, optim.inverse_sqrt):
        with pytest.raises(ValueError, match="of at least 1, got 0"):
            make(0)
