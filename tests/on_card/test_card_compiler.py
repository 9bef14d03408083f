"""Captured steps on a card: replays give the eager step's bits, chains are one kernel, and nothing waits or allocates."""
import numpy as np
import pytest

import tinyattn as ta
from tinyattn import device, nn, optim, random, systems
from tinyattn.compiler import card, compile, fusion_cuda
from tinyattn.compiler.fusion import Fused, bound, renamed
from tinyattn.device import default_device
from tinyattn.functional import cross_entropy, dropout
from tinyattn.tensor import Tensor


@pytest.fixture(autouse=True)
def on_the_card():
    with default_device("cuda"):
        yield


def array(rng, *shape):
    return rng.normal(size=shape).astype(np.float32)


def clear(leaves):
    for t in leaves:
        t.grad = None


def gradients(leaves):
    return [None if t.grad is None else t.grad.numpy().copy() for t in leaves]


def assert_replays(step, leaves, *batches, fused=True):
    """As in tests/test_compiler.py: the compiled step gives the bits of the eager one."""
    fast = compile(step, fused=fused)
    for batch in batches:
        got = fast(*batch)
        ours = got.numpy().copy(), gradients(leaves)
        assert got.device == "cuda" and not got.requires_grad
        want = step(*batch)
        np.testing.assert_array_equal(ours[0], want.numpy())
        for a, b in zip(ours[1], gradients(leaves), strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                np.testing.assert_array_equal(a, b)
    assert fast.reason == "" and fast.captures == 1 and fast.replays == len(batches) - 2
    return fast


def calls_of(fast):
    return next(iter(fast.programs.values())).replay.captured.program.instructions


def test_a_step_of_an_mlp():
    rng = np.random.default_rng(0)
    ta.manual_seed(0)
    a, b = nn.Linear(4, 5), nn.Linear(5, 3)
    leaves = [*a.parameters(), *b.parameters()]

    def step(x, y):
        clear(leaves)
        h = a(Tensor(x))
        loss = cross_entropy(b((h * 0.5 + 1).tanh() * h.sigmoid()), y)
        loss.backward()
        return loss
    fast = assert_replays(step, leaves, *[(array(rng, 3, 4), rng.integers(0, 3, 3)) for _ in range(3)])
    assert sum(isinstance(c, Fused) for c in calls_of(fast)) >= 2


def test_a_recurrent_layer_with_lengths_and_dropout():
    """Tokens and lengths are sent, the seed is drawn, once a replay; what the checks of an id need is not read back."""
    rng = np.random.default_rng(1)
    ta.manual_seed(1)
    layer, table = nn.GRU(2, 2), Tensor(array(rng, 4, 2), requires_grad=True)
    leaves = [table, *layer.parameters()]

    def step(ids, lengths):
        clear(leaves)
        hs, h = layer(dropout(ta.embedding(table, Tensor(ids)), 0.3, True), lengths=Tensor(lengths))
        loss = (hs * hs).sum() + (h * hs[:, 1]).mean()
        loss.backward()
        return loss
    random.manual_seed(3)
    fast = compile(step)
    for _ in range(4):
        batch = rng.integers(0, 4, (2, 3)), rng.integers(1, 4, 2)
        before, waits = random.get_state(), device.waits["reads"]
        loss = fast(*batch)
        assert not fast.replays or device.waits["reads"] == waits
        ours, after = (loss.numpy(), gradients(leaves)), random.get_state()
        random.set_state(before)
        want = step(*batch).numpy(), gradients(leaves)
        assert after == random.get_state()
        np.testing.assert_array_equal(ours[0], want[0])
        for a, b in zip(ours[1], want[1], strict=True):
            np.testing.assert_array_equal(a, b)
    assert fast.reason == "" and fast.replays == 2


def test_training_neither_waits_nor_allocates(monkeypatch):
    """Of a replay only what it returns is a new array. Gradients stand where they stood, so their places are not sent again."""
    rng, made, module = np.random.default_rng(0), [], device.numba_cuda()
    batches = [(rng.integers(0, 4, 4), rng.integers(0, 3, 4)) for _ in range(5)]
    make = module.device_array
    monkeypatch.setattr(module, "device_array", lambda *args, **options: made.append(args) or make(*args, **options))

    def train(wrap):
        ta.manual_seed(0)
        table, b = Tensor(np.ones((4, 3), np.float32), requires_grad=True), nn.Linear(3, 3)
        optimizer, found = optim.Adam([table, *b.parameters()], 0.1), []

        def step(ids, y):
            optimizer.zero_grad()
            loss = cross_entropy(b((ta.embedding(table, Tensor(ids)) * 0.5).tanh()), Tensor(y))
            loss.backward()
            return loss
        step = wrap(step)
        for batch in batches:
            waits, _ = device.waits["reads"], made.clear()
            loss = step(*batch)
            cost = device.waits["reads"] - waits, len(made)
            optimizer.guard(loss)
            optimizer.clip_grad_norm(0.3)
            optimizer.step()
            found.append((loss.item(), [p.tolist() for p in optimizer_parameters(optimizer)], cost))
        return found, step
    want, _ = train(lambda step: step)
    got, fast = train(compile)
    assert [f[:2] for f in got] == [f[:2] for f in want] and fast.replays == 3 and fast.reason == ""
    assert [f[2] for f in got[2:]] == [(0, 1)] * 3 and want[2][2][1] > 10


def optimizer_parameters(optimizer):
    return [slot.tensor for slot in optimizer.slots]


def test_clipping_and_updates_in_the_step():
    rng = np.random.default_rng(5)
    batches = [array(rng, 3) for _ in range(4)]

    def train(wrap):
        w = Tensor(np.ones(3, np.float32), requires_grad=True)
        optimizer = optim.SGD([w], 0.5)

        def step(x):
            optimizer.zero_grad()
            loss = (w * Tensor(x)).tanh().sum()
            loss.backward()
            optimizer.clip_grad_norm(0.3)
            optimizer.step()
            return loss
        step = wrap(step)
        return [(step(x).item(), w.tolist()) for x in batches], step
    (got, fast), (want, _) = train(compile), train(lambda step: step)
    assert got == want and fast.replays == 2


def random_step(rng, leaves):
    """As in tests/test_compiler.py, but shorter."""
    plan = [(int(rng.integers(0, 12)), *rng.integers(0, 1 << 20, 2)) for _ in range(12)]

    def step(x):
        clear(leaves)
        made = [*leaves, Tensor(x)]
        for kind, i, j in plan:
            a, b = made[i % len(made)], made[j % len(made)]
            made.append([lambda a, b: a + b, lambda a, b: a - b, lambda a, b: a * b, lambda a, b: a / (b * b + 1), lambda a, b: a.tanh(),
                         lambda a, b: a.sigmoid(), lambda a, b: a.relu(), lambda a, b: -a, lambda a, b: a.where(b > 0, b),
                         lambda a, b: (a * 0.1).exp(), lambda a, b: (a.abs() + 1).log() + (b * b).sqrt(),
                         lambda a, b: a + b.sum(-1, keepdims=True)][kind](a, b))
        loss = sum((t * t).mean() for t in made[len(leaves):] if t.requires_grad) + leaves[0].sum()
        loss.backward()
        return loss
    return step


@pytest.mark.parametrize("seed", range(3))
def test_random_programs(seed):
    rng = np.random.default_rng(seed)
    shapes = [(2, 3), (3,), (2, 1), (1, 3), ()]
    leaves = [Tensor(array(rng, *s), requires_grad=True) for s in shapes]
    fast = assert_replays(random_step(rng, leaves), leaves, *[(array(rng, 2, 3),) for _ in range(3)])
    assert any(isinstance(c, Fused) for c in calls_of(fast))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_chain_reads_rows_columns_and_numbers_where_they_lie(dtype):
    rng, n = np.random.default_rng(0), 3
    x, row, column, one = (rng.normal(size=s).astype(dtype) for s in ((300, n), (n,), (300, 1), ()))
    mask = rng.random((300, n)) < 0.5
    steps = [("t0", "a0 * a1"), ("t1", "t0 - a2"), ("t2", "t1 if a4 else a3"), ("t3", "a3 * (1 - t2 * t2)")]
    chain = Fused("fused", [], [], "", {"of": "test"}, input_names=[f"a{i}" for i in range(5)], steps=steps, stored=["t1", "t3"],
                  kinds="same row column one same", bools=[False] * 4 + [True], n=n, replaces={0: 0}, card=True)
    arrays = [device.to_device(a, "cuda") for a in (x, row, column, one, mask)]
    out = device.empty(x.shape, x.dtype, "cuda")
    bound(chain, arrays, [out])()
    t1 = x * row - column
    t2 = np.where(mask, t1, one)
    np.testing.assert_array_equal(arrays[0].copy_to_host(), t1)
    np.testing.assert_array_equal(out.copy_to_host(), one * (1 - t2 * t2))
    text = fusion_cuda.source_of(chain, dtype, renamed)
    assert "t3 = times(a3_, number(1) - t2 * t2)" in text and "t1 = minus(t0, a2_)" in text


def test_comparisons_and_what_else_is_made_of_data():
    w = Tensor(np.ones((2, 3), np.float32), requires_grad=True)

    def step(x, ids):
        clear([w])
        x, ids = Tensor(x), Tensor(ids)
        h = (w * x).where(~(x > 0.2) | (ids != 1), 0.5)
        loss = (h * ids.float()).sum() + (h.argmax(1) * 2 - 1).float().sum() + x.isfinite().float().mean()
        loss.backward()
        return loss
    rng = np.random.default_rng(4)
    assert_replays(step, [w], *[(array(rng, 2, 3), rng.integers(0, 3, (2, 3))) for _ in range(4)])


def test_arguments_on_the_card():
    """Floats are copied there; whole numbers that the host has sent are sent again, since it may plan by them."""
    w = Tensor(np.ones((3, 2), np.float32), requires_grad=True)

    def step(x, ids):
        clear([w])
        loss = (ta.embedding(w, ids) * x).sum()
        loss.backward()
        return loss
    rng = np.random.default_rng(4)
    batches = [(Tensor(array(rng, 4, 2)), Tensor(rng.integers(0, 3, 4))) for _ in range(4)]
    fast, waits = assert_replays(step, [w], *batches), device.waits["reads"]
    fast(*batches[0])
    assert device.waits["reads"] == waits


def test_numbers_that_the_host_knows_are_followed():
    """The tokens, and what is made of them: the host need not ask the card for them, and in a replay they are the new ones."""
    w = Tensor(np.ones((3, 4), np.float32), requires_grad=True)

    def step(ids):
        clear([w])
        ids = Tensor(ids)
        picked = w.gather(1, (ids * 2).reshape(3, 1).expand(3, 2))
        weights = ids.numpy() * 0.5 + (ids != 0).numpy() + (ids.reshape(1, 3) * 3).numpy()[0]
        loss = (picked * Tensor(weights.astype(np.float32).reshape(3, 1))).sum()
        loss.backward()
        return loss
    batches = [(np.array(ids),) for ids in ([0, 1, 0], [1, 1, 1], [1, 0, 0], [0, 0, 1])]
    fast = assert_replays(step, [w], *batches)
    waits = device.waits["reads"]
    fast(*batches[0])
    assert device.waits["reads"] == waits
    with pytest.raises(IndexError, match="index 4 is outside 0 .. 3"):
        fast(np.array([1, 2, 0]))
    assert fast(*batches[0]).item() == step(*batches[0]).item()


def test_gradients_that_meet_are_added():
    w = Tensor(np.ones((4, 2), np.float32), requires_grad=True)

    def step(x):
        clear([w])
        h = w * Tensor(x)
        loss = (h[0] * h[1] + h[2]).sum() + h.reshape(2, 4).sum() + (w + h).tanh().sum() + w[1].sum()
        loss.backward()
        return loss
    rng = np.random.default_rng(4)
    assert_replays(step, [w], *[(array(rng, 4, 2),) for _ in range(4)])


@pytest.mark.parametrize("read", [lambda x: x.item(), float, lambda x: x.numpy().sum(), bool, lambda x: x.tolist()])
def test_a_step_that_reads_from_the_card_stays_eager_and_says_where(read, capfd):
    w = Tensor(np.ones(1, np.float32), requires_grad=True)

    def step(x):
        clear([w])
        loss = (w * Tensor(x)).sum()
        if read(loss):
            loss = loss * 2
        loss.backward()
        return loss
    fast = compile(step)
    for x in ([1.0], [0.0], [3.0]):
        assert fast(np.float32(x)).item() == step(np.float32(x)).item()
    assert fast.reason.startswith("numbers are read from the card, in ") and "test_card_compiler.py, line" in fast.reason


def test_the_default_device_tells_programs_apart():
    fast = compile(lambda x: (Tensor(x) * 2).sum())
    x = np.ones(2, np.float32)
    assert fast(x).device == fast(x).device == "cuda"
    with default_device("cpu"):
        assert fast(x).device == fast(x).device == "cpu"
    assert fast.captures == 2 and fast.reason == ""


def test_memory_is_used_again_and_not_for_two_at_once():
    w = Tensor(np.ones((9, 9), np.float32), requires_grad=True)

    def step(x):
        clear([w])
        h = Tensor(x)
        for _ in range(3):
            h = (h.cumsum(0) * w).tanh().reshape(81).reshape(9, 9)
        loss = h.sum()
        loss.backward()
        return loss
    rng = np.random.default_rng(0)
    fast = assert_replays(step, [w], *[(array(rng, 9, 9),) for _ in range(3)])
    layout = next(iter(fast.programs.values())).replay.layout
    blocks = [b for b in layout.blocks if b.card and b.bytes]
    assert 0 < layout.on_card < layout.apart and all(b.place % card.ALIGN == 0 for b in blocks)
    for i, a in enumerate(blocks):
        for b in blocks[:i]:
            if a.birth <= b.death and b.birth <= a.death:
                assert a.place + a.bytes <= b.place or b.place + b.bytes <= a.place


def test_a_system():
    """Questions about a story, as small as can be."""
    system = systems.find("qa")
    system = system.prepare(system.Options(hidden=2, memory=2, hops=1), seed=1)
    system.model.to("cuda").train()
    leaves = list(system.model.parameters())

    def step(*arrays):
        clear(leaves)
        loss = system.loss_of(*arrays)
        loss.backward()
        return loss
    first = system.epoch(np.random.default_rng(0), 1)[0]
    assert_replays(step, leaves, *[system.arrays(first) for _ in range(3)])
