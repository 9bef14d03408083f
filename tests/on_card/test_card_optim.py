"""The optimisers on a card: the CPU's numbers, by one launch, without waiting; models that move; steps that are halted."""
import math

import numpy as np
import pytest

from tinyattn import Tensor, nn, optim, updates_cuda
from tinyattn import cuda as card
from tinyattn import device as devices

KINDS = [("SGD", {"lr": 0.1}), ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.02}),
         ("SGD", {"lr": 0.1, "momentum": 0.8, "nesterov": True, "weight_decay": 0.02}),
         ("Adam", {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1}),
         ("AdamW", {"lr": 0.01, "weight_decay": 0.3}), ("Adadelta", {"lr": 0.5, "rho": 0.8, "eps": 1e-4, "weight_decay": 0.1})]
PIECE = updates_cuda.PIECE
SHAPES = [((3, 4), "f4"), ((5,), "f8"), ((), "f4"), ((0, 2), "f4"), ((3, PIECE), "f4"), ((PIECE + 1,), "f8"), ((1,), "f8"),
          ((2 * PIECE - 1,), "f4")]
CLOSE = {"float32": {"rtol": 3e-6, "atol": 1e-6}, "float64": {"rtol": 1e-12, "atol": 1e-14}}


def parameters(device, seed=0):
    rng = np.random.default_rng(seed)
    return [Tensor(rng.normal(size=s).astype(t), requires_grad=True, device=device) for s, t in SHAPES]


def give(tensors, seed, absent=None, scale=1.0):
    """New gradients, as a backward pass makes them, the same on each device; parameter number `absent` gets none."""
    rng = np.random.default_rng(seed)
    for i, p in enumerate(tensors):
        g = (scale * rng.normal(size=p.shape)).astype(p.dtype)
        p.grad = None if i == absent else Tensor(g, device=p.device)


def gradients(tensors):
    return [p.grad for p in tensors if p.grad is not None]


def same(here, there):
    for a, b in zip(here, there, strict=True):
        a, b = (x if isinstance(x, np.ndarray) else x.numpy() for x in (a, b))
        assert a.shape == b.shape and a.dtype == b.dtype
        np.testing.assert_allclose(b, a, **CLOSE[a.dtype.name] if a.dtype.kind == "f" else {})


def same_state(a, b):
    a, b = a.state_dict(), b.state_dict()
    assert list(a) == list(b) and all(type(x) is np.ndarray for x in b.values())
    same(a.values(), b.values())


@pytest.fixture
def launches(monkeypatch):
    """The names of the kernels of the optimisers, as they are launched."""
    names = []

    def launch(kernel, grid, arguments, before=card.CudaKernel._launch):
        if kernel.name.startswith("updates.") and grid[0]:
            names.append(kernel.name.removeprefix("updates."))
        before(kernel, grid, arguments)

    monkeypatch.setattr(card.CudaKernel, "_launch", launch)
    return names


@pytest.fixture
def reads(monkeypatch):
    """How often a card was read, and so waited for."""
    module, count = devices.numba_cuda(), []
    kind = type(module.device_array(1))

    def copy_to_host(array, *arguments, before=kind.copy_to_host, **named):
        count.append(array.size)
        return before(array, *arguments, **named)

    monkeypatch.setattr(kind, "copy_to_host", copy_to_host)
    return count


# ---------------------------------------------------------------------------------------------------------------------
# steps
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("name", "options"), KINDS, ids=str)
def test_steps_are_those_of_the_cpu(name, options, launches, reads):
    """Two dtypes, no element and one, pieces that are whole, cut and single, gradients that are missing for a step."""
    here, there = parameters("cpu"), parameters("cuda")
    a, b = (getattr(optim, name)(p, **options) for p in (here, there))
    for step in range(4):
        give(here, step, absent=step)
        give(there, step, absent=step)
        if step == 2:
            a.lr = b.lr = 0.3
        a.step()
        del launches[:], reads[:]
        b.step()
        assert launches == ["update", "update"] and not reads  # one for each dtype
    same(here, there)
    same_state(a, b)


def test_many_small_parameters_are_one_launch(launches):
    there = [Tensor(np.ones(3), requires_grad=True, dtype=np.float32, device="cuda") for _ in range(120)]
    optimizer = optim.SGD(there, lr=1.0)
    for p in there:
        p.grad = Tensor(np.ones(3), dtype=np.float32, device="cuda")
    optimizer.step()
    assert launches == ["update"] and not any(p.numpy().any() for p in there)


def test_only_what_changed_is_sent(monkeypatch):
    sent = []
    there = parameters("cuda")[:1]
    optimizer = optim.SGD(there, lr=0.1)
    give(there, 0)
    kind = type(there[0].array)
    monkeypatch.setattr(kind, "copy_to_device", lambda array, other, stream=0, before=kind.copy_to_device:
                        (sent.append((array.shape, array.dtype.name)), before(array, other, stream=stream)))
    places, numbers = ((1, 4), "int64"), ((1, 4), "float32")
    optimizer.step()
    assert sent == [places, numbers]
    optimizer.step()
    optimizer.lr = 0.2
    optimizer.step()
    assert sent[2:] == [numbers]
    held = there[0].grad  # so that the next one lies elsewhere
    give(there, 1)
    del sent[:]
    optimizer.step()
    assert sent == [places] and held is not there[0].grad


def test_an_outbox_writes_nowhere_where_the_card_may_still_read(monkeypatch):
    """Each of its memories is written to again only after its copy was waited for; on the card stands what came last."""
    box, log = updates_cuda.Outbox((2,), np.int64), []
    for n, (memory, event) in enumerate(box.ring):
        monkeypatch.setattr(event, "synchronize", lambda n=n: log.append(("waited", n)), raising=False)
        monkeypatch.setattr(event, "record", lambda stream=0, n=n: log.append(("copied", n)), raising=False)
        memory[...] = -1
    for k in range(2 * updates_cuda.DEPTH):
        assert box.send(np.array([k, 7])).copy_to_host().tolist() == [k, 7]
    assert log == [(what, n % updates_cuda.DEPTH) for n in range(2 * updates_cuda.DEPTH) for what in ("waited", "copied")]


def test_a_gradient_that_does_not_fit_is_named():
    p = Tensor(np.ones(2), requires_grad=True, device="cuda", name="w")
    optimizer = optim.Adam([p])
    for bad in (Tensor(np.ones(2)), Tensor(np.ones(3), device="cuda")):
        p.grad = bad
        with pytest.raises(ValueError, match=rf"Adam: parameter w \(2,\) .* gradient of shape .* on {bad.device}"):
            optimizer.step()
    assert optimizer.steps == 0


def test_a_step_is_seen_by_a_graph_that_needs_the_old_weights():
    w = Tensor(np.ones((2, 2)), requires_grad=True, device="cuda")
    loss = (w * w).sum()
    loss.backward()
    optim.SGD([w], 0.1).step()
    with pytest.raises(RuntimeError, match="changed in place"):
        loss.backward()


def test_it_learns():
    x = np.random.default_rng(0).normal(size=(4, 3))
    y = Tensor(x @ [[1.0], [-2.0], [0.5]], device="cuda")
    w = Tensor(np.zeros((3, 1)), requires_grad=True, device="cuda")
    optimizer = optim.Adam([w], 0.2)
    losses = []
    for _ in range(25):
        optimizer.zero_grad()
        loss = (((Tensor(x, device="cuda") @ w) - y) ** 2).mean()
        optimizer.guard(loss)
        loss.backward()
        optimizer.clip_grad_norm(5.0)
        optimizer.step()
        losses.append(loss)
    assert optimizer.halted() is None and losses[-1].item() < 0.05 * losses[0].item()


# ---------------------------------------------------------------------------------------------------------------------
# models that move, and what is saved
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("name", "options"), KINDS[1:4:2] + KINDS[5:], ids=str)
def test_a_model_may_move_at_any_time(name, options):
    still, moving = nn.Linear(3, 5), nn.Linear(3, 5)
    moving.load_state_dict(still.state_dict())
    a, b = (getattr(optim, name)(m.parameters(), **options) for m in (still, moving))
    for step, place in enumerate(["cuda", "cuda", "cpu", "cpu", "cuda"]):
        moving.to(place)
        for model, optimizer in ((still, a), (moving, b)):
            give(list(model.parameters()), step, absent=1 if step == 3 else None)
            optimizer.step()
        assert {p.device for p in moving.parameters()} == {place}
        same_state(a, b)
    same(list(still.parameters()), list(moving.parameters()))
    moving.to(np.float64)
    give(list(moving.parameters()), 9)
    b.step()
    assert b.state_dict()["weight.steps"] == 6 and moving.weight.device == "cuda"


@pytest.mark.parametrize(("saved", "loaded"), [("cpu", "cuda"), ("cuda", "cpu"), ("cuda", "cuda")])
def test_a_state_goes_from_any_device_to_any(saved, loaded):
    before = parameters(saved)
    first = optim.Adam(before, 0.01)
    for step in range(3):
        give(before, step, absent=step)
        first.step()
    state = first.state_dict()
    after = [Tensor(p.numpy(), requires_grad=True, device=loaded) for p in before]
    second = optim.Adam(after)
    second.load_state_dict(state)
    with pytest.raises(ValueError, match="missing steps"):
        second.load_state_dict({k: v for k, v in state.items() if k != "steps"})
    for tensors, optimizer in ((before, first), (after, second)):
        give(tensors, 7)
        optimizer.step()
    same(before, after)
    same_state(first, second)


def test_parameters_on_two_devices(launches):
    here, both = parameters("cpu"), parameters("cpu")
    for p in both[::2]:
        p.array = devices.to_device(p.array, "cuda")
    a, b = optim.Adam(here, 0.01), optim.Adam(both, 0.01)
    for step in range(2):
        give(here, step)
        give(both, step)
        assert b.clip_grad_norm(0.5) == pytest.approx(a.clip_grad_norm(0.5), rel=1e-7)
        a.step()
        b.step()
    same(here, both)
    same_state(a, b)
    assert len(b.tables) == 4 and launches == ["update"] * 4
    both[0].grad = Tensor(np.full((3, 4), np.inf, np.float32), device="cuda")
    with pytest.raises(FloatingPointError, match="holds inf"):
        b.clip_grad_norm(1.0)
    for p in both[1::2]:
        p.grad = None
    with pytest.raises(FloatingPointError, match="norm of the gradients is inf"):
        b.clip_grad_norm(1.0)
    with pytest.raises(FloatingPointError, match="Adam.guard: the loss is nan at step 3"):
        b.guard(Tensor(math.nan, device="cuda"))


# ---------------------------------------------------------------------------------------------------------------------
# clipping
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("scale", [1.0, 1e-30])
@pytest.mark.parametrize("most", [0.5, 1e9, math.inf, 0.0])
def test_clipping_is_that_of_the_cpu(scale, most, launches, reads):
    here, there = parameters("cpu"), parameters("cuda")
    a, b = optim.SGD(here, 0.1), optim.SGD(there, 0.1)
    give(here, 1, 2, scale)
    give(there, 1, 2, scale)
    held = [g.array for g in gradients(there)]
    want, found = a.clip_grad_norm(most), b.clip_grad_norm(most)
    assert (launches, reads) == (["squares", "squares", "norm"] + ["scale", "scale"] * (most < math.inf), [])
    assert all(g.array is array for g, array in zip(gradients(there), held, strict=True))
    assert found.device == "cuda" and found.dtype == np.float64 and found.shape == ()
    assert found.item() == pytest.approx(want, rel=1e-13)
    same(gradients(here), gradients(there))
    assert b.halted() is None


def test_the_function_makes_new_gradients(launches, reads):
    here, there = parameters("cpu"), parameters("cuda")
    give(here, 1, 2)
    give(there, 1, 2)
    held = gradients(there)
    old = [g.numpy() for g in held]
    del reads[:]
    want, found = optim.clip_grad_norm(here, 0.5), optim.clip_grad_norm([*there, there[0]], 0.5)
    assert launches == ["squares", "squares", "norm", "scale", "scale"] and not reads and found.device == "cuda"
    assert found.item() == pytest.approx(want, rel=1e-13)
    same(gradients(here), gradients(there))
    for g, was in zip(held, old, strict=True):
        assert np.array_equal(g.numpy(), was)
    there[0].grad = Tensor(np.full((3, 4), np.nan, np.float32), device="cuda")
    rest = [p.grad.numpy() for p in there[3:]]
    assert math.isnan(optim.clip_grad_norm(there, 0.5).item())
    assert all(np.array_equal(p.grad.numpy(), g) for p, g in zip(there[3:], rest, strict=True))
    assert optim.clip_grad_norm([Tensor(np.ones(2), requires_grad=True, device="cuda")], 1.0) == 0.0


def test_recorded_gradients_stay_recorded():
    w = Tensor(np.array([3.0, 4.0], np.float32), requires_grad=True, device="cuda")
    (w * w * 0.5).sum().backward(create_graph=True)
    optimizer = optim.SGD([w], 0.1)
    assert optimizer.clip_grad_norm(1.0).item() == 5 and w.grad.requires_grad and w.grad.dtype == np.float32
    np.testing.assert_allclose(w.grad.numpy(), [0.6, 0.8], rtol=1e-6)
    w.grad = w.grad * math.inf
    optimizer.clip_grad_norm(1.0)
    assert optimizer.halted() == (1, updates_cuda.CAUSES[updates_cuda.NORM])


def test_the_norm_is_summed_in_float64_and_beyond():
    def norm(values, dtype):
        p = Tensor(np.zeros(len(values)), requires_grad=True, dtype=dtype, device="cuda")
        p.grad = Tensor(np.array(values), dtype=dtype, device="cuda")
        optimizer = optim.SGD([p], 1.0)
        found = optimizer.clip_grad_norm(1.0).item()
        np.testing.assert_allclose(p.grad.numpy(), np.array(values) / found, rtol=1e-6)
        assert optimizer.halted() is None
        return found
    assert norm([2.0**13] + [1.0] * 60, np.float32) == math.sqrt(2.0**26 + 60)
    assert norm([3e30, 4e30], np.float32) == pytest.approx(5e30)
    assert norm([3e200, 4e200], np.float64) == pytest.approx(5e200, rel=1e-14)
    assert norm([1e150] * 3 + [1e108] * 20, np.float64) == pytest.approx(math.sqrt(3) * 1e150, rel=1e-14)
    assert norm([3e120, 4e120, 1e119], np.float64) == pytest.approx(math.hypot(3e120, 4e120, 1e119), rel=1e-14)
    assert norm([2.0**401, 2.0**399, 1.0], np.float64) == pytest.approx(math.hypot(2.0**401, 2.0**399), rel=1e-14)


def test_more_pieces_than_threads():
    rng = np.random.default_rng(0)
    g = rng.normal(size=(5, 60))
    rows = [Tensor(np.zeros(60), requires_grad=True, dtype=np.float64, device="cuda") for _ in g]
    for p, x in zip(rows, g, strict=True):
        p.grad = Tensor(x, dtype=np.float64, device="cuda")
    work = updates_cuda.Places([60] * 5)
    places = work.box.send(np.array([(0, updates_cuda.address_of(p.grad.array), 0, 60) for p in rows]))
    parts = devices.empty((work.count, 2), np.float64, "cuda")
    updates_cuda._squares_cuda[work.count, 2](work.pieces, places, card.full((1, 1), 0, np.float64), parts, 0)
    norm, scale = (devices.empty(1, np.float64, "cuda") for _ in range(2))
    assert work.count == 5 * math.ceil(60 / PIECE)
    for threads in (1, 2, 4):
        updates_cuda._norm_cuda[1, threads](parts, norm, scale, card.zeros(2, np.int64), 0, work.count, 1.0)
        assert norm.copy_to_host()[0] == pytest.approx(np.sqrt((g * g).sum()), rel=1e-14)


# ---------------------------------------------------------------------------------------------------------------------
# steps that are halted
# ---------------------------------------------------------------------------------------------------------------------
def trained(optimizer, tensors, seeds, bad_loss=None, bad_norm=None):
    for k in seeds:
        give(tensors, k, absent=5 - k)
        optimizer.guard(Tensor(math.nan if k == bad_loss else 1.0, device="cuda"))
        if k == bad_norm:
            tensors[6].grad = Tensor(np.array([-math.inf]), device="cuda")
        optimizer.clip_grad_norm(1.0)
        optimizer.step()


@pytest.mark.parametrize("bad", [{"bad_loss": 2}, {"bad_norm": 2}, {"bad_loss": 2, "bad_norm": 1},
                                 {"bad_loss": 1, "bad_norm": 2}, {"bad_loss": 0}])
@pytest.mark.parametrize("asked", [False, True], ids=["", "asked"])
def test_a_bad_step_and_all_later_ones_change_nothing(bad, asked, reads):
    first = min(bad.values())
    good, there = parameters("cuda"), parameters("cuda")
    a, b = optim.Adam(good, 0.1), optim.Adam(there, 0.1)
    trained(a, good, range(first))
    if asked:
        assert a.halted() is None
    trained(b, there, range(first))
    del reads[:]
    trained(b, there, range(first, 5), **bad)
    assert not reads and b.steps == 5
    what = "loss" if "bad_loss" in bad and bad["bad_loss"] == first else "norm"
    if asked:
        step, found = b.halted()
        assert step == first + 1 and what in found and b.steps == first
        assert b.halted() == (step, found)
    for p, q in zip(good, there, strict=True):
        assert np.array_equal(p.numpy(), q.numpy())
    for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True):
        assert np.array_equal(x, y)  # the numbers of steps too
    trained(b, there, range(first, 5))
    assert b.halted()[0] == first + 1 and b.steps == first
    b.go_on()
    assert b.halted() is None
    trained(a, good, range(3, 5))
    trained(b, there, range(3, 5))
    for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True):
        assert np.array_equal(x, y)


def test_steps_are_counted_rightly_however_often_they_are_halted():
    p, q = (Tensor(np.ones(2), requires_grad=True, device="cuda", name=name) for name in "pq")
    optimizer = optim.SGD([p, q], 0.1)

    def step(active):
        for t in (p, q):
            t.grad = Tensor(np.ones(2), device="cuda") if t.name in active else None
        optimizer.step()

    def counts():
        state = optimizer.state_dict()
        return [int(state[name]) for name in ("steps", "p.steps", "q.steps")]

    step("p")
    step("")
    step("pq")
    optimizer.guard(Tensor(math.nan, device="cuda"))
    step("pq")
    step("q")
    step("q")
    assert counts() == [3, 2, 1] and optimizer.halted()[0] == 4
    step("q")
    step("q")
    assert counts() == [3, 2, 1]
    optimizer.go_on()
    step("q")
    step("p")
    assert counts() == [5, 3, 2] and np.allclose([p.numpy(), q.numpy()], [[0.7] * 2, [0.8] * 2])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_bad_norm_leaves_the_gradients(value):
    p = Tensor(np.zeros(3), requires_grad=True, device="cuda")
    for clip in (optim.SGD([p], 0.1).clip_grad_norm, lambda most: optim.clip_grad_norm([p], most)):
        p.grad = Tensor(np.array([1.0, value, 2.0]), dtype=p.dtype, device="cuda")
        assert not math.isfinite(clip(0.1).item())
        np.testing.assert_array_equal(p.grad.numpy(), [1.0, value, 2.0])


def test_a_loaded_state_goes_on():
    there = parameters("cuda")
    optimizer = optim.Adam(there, 0.1)
    trained(optimizer, there, range(1))
    state = optimizer.state_dict()
    trained(optimizer, there, range(1, 3), bad_loss=1)
    optimizer.load_state_dict(state)
    trained(optimizer, there, range(1, 3))
    assert optimizer.halted() is None and optimizer.steps == 3


def test_a_halt_outlives_a_change_of_dtype():
    layer = nn.Linear(2, 2).to("cuda")
    optimizer = optim.Adam(layer.parameters(), 0.1)
    give(list(layer.parameters()), 0)
    optimizer.guard(Tensor(math.inf, device="cuda"))
    optimizer.step()
    before = layer.weight.numpy()
    layer.to(np.float64)
    give(list(layer.parameters()), 0)
    optimizer.step()
    assert optimizer.halted()[0] == 1 and optimizer.steps == 0
    assert np.array_equal(layer.weight.numpy(), before.astype(np.float64)) and not optimizer.state_dict()["weight.m"].any()


def test_guarding_on_the_cpu_raises():
    optimizer = optim.SGD([Tensor([1.0], requires_grad=True)], 0.1)
    optimizer.guard(Tensor(1.0))
    for loss in (Tensor(math.inf), Tensor(math.inf, device="cuda")):
        with pytest.raises(FloatingPointError, match="SGD.guard: the loss is inf at step 1"):
            optimizer.guard(loss)
    with pytest.raises(ValueError, match=r"one element, got shape \(2,\)"):
        optimizer.guard(Tensor([1.0, 2.0]))
    assert optimizer.halted() is None
    optimizer.go_on()
