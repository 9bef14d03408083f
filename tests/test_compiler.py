"""Captured steps: what is replayed equals the eager step bit for bit, whatever the passes do; and what cannot be captured
says so and stays right."""
import copy
import gc
import re
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import tinyattn as ta
from tinyattn import compiler, device, nn, optim, random
from tinyattn.attention import properties, table
from tinyattn.attention.core import example_of
from tinyattn.autograd import Op
from tinyattn.commands import names
from tinyattn.compiler import capture, compile, fusion, passes, stages
from tinyattn.compiler.fusion import Fused, fuse, kind_of, source_of
from tinyattn.compiler.replay import laid_out
from tinyattn.compiler.tape import rounds_alike
from tinyattn.functional import cross_entropy, dropout
from tinyattn.tensor import Tensor

OPS = {name: cls for name, cls in names.ops().items() if name != "transfer"}


def array(rng, *shape):
    return rng.normal(size=shape).astype(np.float32)


def forget(leaves):
    for t in leaves:
        t.grad = None


def gradients(leaves):
    return [None if t.grad is None else t.grad.numpy().copy() for t in leaves]


def assert_same(a, b):
    assert len(a) == len(b)
    for x, y in zip(a, b):
        assert (x is None) == (y is None)
        if x is not None:
            np.testing.assert_array_equal(x, y)
            assert x.dtype == y.dtype


def assert_replays(step, leaves, *batches, fused=True):
    """The compiled step gives, on all batches, the bits of the eager one; it was captured once and then replayed."""
    fast = compile(step, fused=fused)
    for batch in batches:
        got = fast(*batch)
        got = got if isinstance(got, tuple) else (got,)
        ours = [t.numpy().copy() for t in got], gradients(leaves)
        want = step(*batch)
        want = want if isinstance(want, tuple) else (want,)
        assert_same(ours[0], [t.numpy() for t in want])
        assert_same(ours[1], gradients(leaves))
        assert not any(t.requires_grad for t in got)
    assert fast.reason == "" and fast.captures == 1 and fast.replays == len(batches) - 2  # the second is the check
    return fast


# ---------------------------------------------------------------------------------------------------------------------
# replayed equals eager
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", OPS)
def test_every_op(name):
    for attributes, inputs in list(OPS[name].samples(np.random.default_rng(0)))[:3]:
        given = [None if x is None else np.asarray(x) for x in inputs]
        given = [x if x is None or x.dtype.kind != "f" else x.astype(np.float32) for x in given]
        leaves = [None if x is None else Tensor(x, requires_grad=x.dtype.kind == "f") for x in given]
        learned = [t for t in leaves if t is not None and t.requires_grad]

        def step(s, attributes=attributes, leaves=leaves, learned=learned):
            forget(learned)
            outs = OPS[name](**attributes)(*leaves)
            outs = outs if isinstance(outs, tuple) else (outs,)
            parts = [(o * o * s).sum() for o in outs if o.requires_grad]
            if not parts:
                return outs
            total = sum(parts[1:], parts[0])
            total.backward()
            return (*outs, total)
        assert_replays(step, learned, *[(Tensor(np.float32(s)),) for s in (0.5, 0.7, 0.9)], fused=False)  # chains: below


READS = {"raw": "float()", "ntm": "bool()",
         "pagerank": "float()", "pointer_generator": "bool()"}  # mechanisms that look at a value in Python, and how


@pytest.mark.parametrize("name", table())
def test_every_mechanism(name):
    variant = table()[name]
    leaves = properties.leaves(example_of(variant), np.float32)
    learned = [t for t in _all_tensors(list(leaves.values())) if t.requires_grad]

    def step(s):
        forget(learned)
        out = variant(**leaves)
        loss = properties.sum_of_squares([t for t in nn.outputs_of(out) if t.requires_grad]) * s
        loss.backward()
        return loss
    if name in READS:
        fast = compile(step)
        fast(Tensor(np.float32(1)))
        assert READS[name] in fast.reason
    else:
        assert_replays(step, learned, *[(Tensor(np.float32(s)),) for s in (0.5, 0.7, 0.9)], fused=name in ("additive", "cdme"))


def _all_tensors(x):
    if isinstance(x, (list, tuple)):
        return [t for y in x for t in _all_tensors(y)]
    return [x] if isinstance(x, Tensor) else []


def mlp(rng_seed=0):
    ta.manual_seed(rng_seed)
    return nn.Linear(6, 8), nn.Linear(8, 3)


def test_a_whole_step_with_clipping_and_update():
    rng = np.random.default_rng(0)
    batches = [(array(rng, 4, 6), rng.integers(0, 3, 4)) for _ in range(8)]

    def train(wrap):
        a, b = mlp()
        parameters = [*a.parameters(), *b.parameters()]
        optimizer = optim.Adam(parameters, 0.01)

        def step(x, y):
            optimizer.zero_grad()
            loss = cross_entropy(b(a(Tensor(x)).tanh()), y)
            loss.backward()
            optim.clip_grad_norm(parameters, 0.3)
            optimizer.step()
            return loss
        step = wrap(step)
        losses = [step(x, y).item() for x, y in batches]
        return losses, [p.numpy().copy() for p in parameters], optimizer.steps, step
    losses, weights, steps, fast = train(compile)
    want_losses, want_weights, want_steps, _ = train(lambda step: step)
    assert losses == want_losses and steps == want_steps == 8
    assert_same(weights, want_weights)
    assert (fast.captures, fast.replays, fast.reason) == (1, 6, "")


def test_dropout_draws_what_the_eager_step_draws():
    rng = np.random.default_rng(0)
    w = Tensor(array(rng, 5, 5), requires_grad=True)

    def step(x):
        w.grad = None
        loss = (dropout(dropout(Tensor(x), 0.3, True) @ w, 0.5, True) ** 2).sum()
        loss.backward()
        return loss
    batches = [array(rng, 4, 5) for _ in range(5)]
    runs = []
    for one in (compile(step), step):
        random.manual_seed(3)
        runs.append([(one(x).item(), w.grad.numpy().tolist()) for x in batches])
    assert runs[0] == runs[1]


def test_numpy_on_arguments_is_replayed():
    rng = np.random.default_rng(0)
    w = Tensor(array(rng, 5), requires_grad=True)

    def step(x, lengths, ids):
        w.grad = None
        mask = (np.arange(x.shape[1]) < lengths[:, None]) & (x[:, ::-1] > -9)
        shift = np.concatenate([ids[:, 1:], ids[:, :1]], 1)
        many = np.where(mask, x, 0).sum(1) / np.maximum(lengths, 1)
        total = (Tensor(np.where(mask, x, 0).astype(np.float32)) * w).sum() + Tensor(shift.astype("f4")).sum() \
            + Tensor(many.max(keepdims=True).astype(np.float32)).sum()
        total.backward()
        return total, w * Tensor(mask).float()
    batches = [(array(rng, 3, 5), rng.integers(1, 6, 3), rng.integers(0, 9, (3, 5))) for _ in range(4)]
    assert_replays(step, [w], *batches)


def test_values_of_tensors_as_numpy_are_replayed():
    w = Tensor([1.0, -2.0, 3.0], requires_grad=True)

    def step(x):
        w.grad = None
        best = np.argmax((x * w).numpy()[None], axis=1)
        chosen = w.gather(0, Tensor(best))
        loss = (chosen * 2).sum() + w.where(x > 0, w * 3).sum()
        loss.backward()
        return loss, Tensor(best)
    rng = np.random.default_rng(1)
    assert_replays(step, [w], *[(Tensor(array(rng, 3)),) for _ in range(6)])


def test_two_backward_passes_add_up():
    w = Tensor([1.0, 2.0], requires_grad=True)

    def step(x):
        w.grad = None
        (Tensor(x) * w).sum().backward()
        loss = (w * w * Tensor(x)).sum()
        loss.backward()
        return loss
    assert_replays(step, [w], *[(np.array([i, 2.0], np.float32),) for i in range(4)])


def test_slices_of_a_sequence_share_a_buffer():
    w = Tensor(np.ones((3, 4, 2), np.float32), requires_grad=True)

    def step(x):
        w.grad = None
        h = w * Tensor(x)
        total = sum((h[:, t] * (t + 1) for t in range(4)), Tensor(np.zeros((3, 2), np.float32)))
        loss = (total * total).sum() + h[0].sum()
        loss.backward()
        return loss
    rng = np.random.default_rng(0)
    assert_replays(step, [w], *[(array(rng, 3, 4, 2),) for _ in range(4)])


def test_tied_weights_and_shared_gradients_keep_memory_of_their_own():
    a, b = (Tensor(np.ones(3, np.float32), requires_grad=True) for _ in "ab")

    def step(x):
        forget([a, b])
        loss = ((a + b) * Tensor(x)).sum()
        loss.backward()
        return loss
    assert_replays(step, [a, b], *[(np.arange(3, dtype=np.float32) + i,) for i in range(4)])
    fast = compile(step)
    for _ in range(3):
        fast(np.ones(3, np.float32))
    assert not np.shares_memory(a.grad.array, b.grad.array)


def random_step(rng, leaves):
    """A random program of elementwise functions, broadcasting and a few reductions."""
    plan = []
    for _ in range(rng.integers(3, 14)):
        plan.append((rng.integers(0, 11), rng.integers(0, 1000), rng.integers(0, 1000)))

    def step(x):
        forget(leaves)
        made = [*leaves, Tensor(x)]
        for kind, i, j in plan:
            a, b = made[i % len(made)], made[j % len(made)]
            made.append([lambda a, b: a + b, lambda a, b: a - b, lambda a, b: a * b, lambda a, b: a / (b * b + 1), lambda a, b: a.tanh(),
                         lambda a, b: a.sigmoid(), lambda a, b: a.relu(), lambda a, b: -a, lambda a, b: a.where(b > 0, b), lambda a, b: (a * 0.1).exp(),
                         lambda a, b: a + b.sum(-1, keepdims=True)][kind](a, b))
        loss = sum((t * t).mean() for t in made[len(leaves):] if t.requires_grad) + leaves[0].sum()
        loss.backward()
        return loss, made[-1]
    return step


@pytest.mark.parametrize("seed", range(14))
def test_random_programs(seed):
    rng = np.random.default_rng(seed)
    shapes = [(4, 3), (3,), (4, 1), (1, 3), (), (4, 3)]
    leaves = [Tensor(array(rng, *s), requires_grad=True) for s in shapes]
    step = random_step(rng, leaves)
    assert_replays(step, leaves, *[(array(rng, 4, 3),) for _ in range(4)])


# ---------------------------------------------------------------------------------------------------------------------
# the passes
# ---------------------------------------------------------------------------------------------------------------------
def captured(step, *arrays):
    holes = tuple(compiler.step._arrays_out((arrays, {}), []))
    found, _, reason = capture(step, holes, [np.array(a) for a in arrays])
    assert reason == ""
    return found


def ops_of(c):
    return [call.op for call in c.program.instructions]


def test_dead_code_goes_and_what_is_needed_stays():
    w = Tensor([1.0, 2.0], requires_grad=True)

    def step(x):
        x = Tensor(x)
        x.exp().sum()                     # nobody reads it
        random.next_seed and dropout(x, 0.5, True)  # nor this, but its random number counts
        return (w * x).sum()
    before = captured(step, np.ones(2, np.float32))
    after = passes.dead_code(before)
    assert "exp" in ops_of(before) and "exp" not in ops_of(after) and "dropout" not in ops_of(after)
    assert "seed" in ops_of(after) and "mul" in ops_of(after)


def test_equal_calls_are_made_once_but_not_if_a_setting_differs():
    x = Tensor(np.arange(6, dtype=np.float32).reshape(2, 3), requires_grad=True)

    def step(s):
        return x.sum(0) * s + x.sum(0) + x.sum(1).sum() + x[0].exp() + x[0].exp() + x[1].exp()
    before = captured(step, np.float32([1.0]))
    after = passes.common_subexpressions(before)
    assert ops_of(before).count("sum") == 4 and ops_of(after).count("sum") == 3
    assert ops_of(before).count("exp") == 3 and ops_of(after).count("exp") == 2


def test_an_op_that_saves_for_its_rule_is_not_merged():
    x = Tensor(np.arange(4, dtype=np.float32), requires_grad=True)

    def step(s):
        x.grad = None
        loss = (x.softmax() * s).sum() + (x.softmax() * s * 2).sum()
        loss.backward()
        return loss
    assert_replays(step, [x], *[(Tensor(np.float32([i, 1, 2, 3])),) for i in range(4)])


@pytest.mark.parametrize("shape, whole, kind", [
    ((4, 3), (4, 3), ("same", None)), ((), (4, 3), ("one", None)), ((1, 1), (4, 3), ("one", None)), ((3,), (4, 3), ("row", 3)),
    ((1, 3), (4, 3), ("row", 3)), ((4, 1), (4, 3), ("column", 3)), ((2, 1, 1), (2, 4, 3), ("column", 12)),
    ((4, 3), (2, 4, 3), ("row", 12)), ((2, 1, 3), (2, 4, 3), None), ((2, 4, 1), (2, 4, 3), ("column", 3)),
    ((1, 4, 1), (2, 4, 3), None)])
def test_how_an_operand_stretches(shape, whole, kind):
    assert kind_of(shape, whole) == kind


def test_a_chain_becomes_one_call_that_stores_only_what_others_need():
    w = Tensor(np.ones((4, 3), np.float32), requires_grad=True)
    after = fuse(captured(lambda x: ((Tensor(x) * w + 1).tanh() * 2).sum(), np.ones((4, 3), np.float32)))
    chain = [c for c in after.program.instructions if isinstance(c, Fused)]
    assert len(chain) == 1 and len(chain[0].steps) == 4 and len(chain[0].outputs) == 1
    assert [e for _, e in chain[0].steps] == ["a0 * a1", "t0 + a2", "tanh(t1)", "t2 * a3"]


def test_a_chain_does_not_pass_over_a_reader():
    """`b` needs the sum of `a`, so `a` must be there before the chain goes on."""
    w = Tensor(np.arange(6, dtype=np.float32).reshape(2, 3), requires_grad=True)

    def step(x):
        w.grad = None
        a = w * Tensor(x)
        b = a + a.sum()
        loss = (b * a).sum()
        loss.backward()
        return loss
    rng = np.random.default_rng(0)
    fast = assert_replays(step, [w], *[(array(rng, 2, 3),) for _ in range(4)])
    program = next(iter(fast.programs.values())).replay.captured.program
    seen = set()
    for call in program.instructions:
        made = {v for c in program.instructions for v in c.outputs}
        assert {v for v in call.inputs if v is not None and v in made} <= seen
        seen.update(call.outputs)


def test_a_generated_kernel_says_what_it_computes_and_is_kept_in_a_file():
    w = Tensor(np.ones((4, 3), np.float32), requires_grad=True)
    after = fuse(captured(lambda x: (Tensor(x) * w + w[0]).tanh() - w[:, :1], np.ones((4, 3), np.float32)))
    call = next(c for c in after.program.instructions if isinstance(c, Fused))
    text = source_of(call)
    assert "for r in range(first, end):" in text and "for j in range(n):" in text and "tanh(t1)" in text
    if device.JIT and device.CACHE is not None:
        compiler.fusion.kernel_of(call)
        assert any(p.read_text(encoding="utf-8") == text for p in (device.CACHE / "steps").glob("*.py"))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", [n for n, c in OPS.items() if c.each])
def test_the_expression_of_an_op_is_its_loop(name, dtype):
    """`each` and `each_grad` give, bit for bit, what `cpu` and the rules give; also for nan, inf, 0 and negative numbers."""
    rng = np.random.default_rng(0)
    op = OPS[name]
    special = np.array([0.0, -0.0, 1.0, -1.0, np.nan, np.inf, -np.inf, 1e-30, 1e30, -3.5], dtype)
    x = np.concatenate([special, (array(rng, 200) * 3).astype(dtype)])
    given = {n: x if i == len(op.input_names) - 1 else rng.permutation(x) for i, n in enumerate(op.input_names)}
    if "condition" in given:
        given["condition"] = rng.random(len(x)) < 0.5
    leaves = {n: Tensor(a, requires_grad=a.dtype.kind == "f") for n, a in given.items()}
    out = op()(*leaves.values())
    names_of = {n: f"a{i}" for i, n in enumerate(given)}
    call = Fused("fused", [], [0], attributes={"of": name}, input_names=list(names_of.values()),
                 steps=[("t0", compiler.fusion.renamed(op.each, names_of))], stored=["t0"], kinds=" ".join(["same"] * len(given)))
    result = np.empty_like(x)
    with np.errstate(all="ignore"):
        compiler.fusion.bound(call, list(given.values()), [result])()
    np.testing.assert_array_equal(result, out.numpy())
    for slot, expression in op.each_grad.items():
        if not rounds_alike(expression, dtype):  # it is not fused
            continue
        g = array(rng, len(x)).astype(dtype)
        names_of = {"g": "a0", "y": "a1", slot: "a2"}
        call = Fused("fused", [], [0], attributes={"of": name}, input_names=["a0", "a1", "a2"],
                     steps=[("t0", compiler.fusion.renamed(expression, names_of))], stored=["t0"], kinds="same same same")
        with np.errstate(all="ignore"):
            compiler.fusion.bound(call, [g, np.array(out.numpy()), given[slot]], [result])()
        forget(leaves.values())
        out.backward(Tensor(g))
        np.testing.assert_array_equal(result, leaves[slot].grad.numpy())


def test_blocks_that_live_at_one_time_lie_apart():
    rng = np.random.default_rng(5)
    leaves = [Tensor(array(rng, *s), requires_grad=True) for s in [(4, 3), (3,), (4, 1), (1, 3), (), (4, 3)]]
    *_, (_, c) = stages(captured(random_step(rng, leaves), array(rng, 4, 3)))
    _, layout = laid_out(c)
    assert layout.arena < layout.apart
    for i, a in enumerate(layout.blocks):
        assert 0 <= a.place <= layout.arena - a.bytes
        for b in layout.blocks[:i]:
            if a.birth <= b.death and b.birth <= a.death and a.bytes and b.bytes:
                assert a.place + a.bytes <= b.place or b.place + b.bytes <= a.place


def test_results_take_the_place_of_operands_that_die():
    w = Tensor(np.ones((64, 64), np.float32), requires_grad=True)

    def step(x):
        h = Tensor(x) @ w
        return ((h * 2 + 1).tanh() @ w).sum()
    c, layout = laid_out(fuse(captured(step, np.ones((64, 64), np.float32))))
    chain = next(call for call in c.program.instructions if isinstance(call, Fused))
    assert chain.replaces == {0: 0}
    assert layout.of_value[chain.outputs[0]] is layout.of_value[chain.inputs[0]]


def test_arguments_and_parameters_are_never_written_over():
    w = Tensor(np.full((8, 8), 0.5, np.float32), requires_grad=True)

    def step(x):
        w.grad = None
        loss = ((Tensor(x) * 2 + w) * w).sum()
        loss.backward()
        return loss
    fast, x = compile(step), np.ones((8, 8), np.float32)
    for _ in range(3):
        fast(x)
    assert (x == 1).all() and (w.numpy() == 0.5).all()


# ---------------------------------------------------------------------------------------------------------------------
# what cannot be captured
# ---------------------------------------------------------------------------------------------------------------------
W = Tensor(np.ones(4, np.float32), requires_grad=True)


def _if(x):
    return (W * Tensor(x)).sum() if x.sum() > 0 else (W - Tensor(x)).sum()


def _int(x):
    return (W * Tensor(x))[:int(x[0])].sum()


def _item(x):
    return W.sum() * (W * Tensor(x)).sum().item()


def _loop(x):
    return sum((W * float(v)).sum() for v in x)


def _select(x):
    return Tensor(x[x > 0]).sum() * W.sum()


def _write(x):
    x[0] = 3
    return (W * Tensor(x)).sum()


def _index(x):
    return W[np.argsort(x)].exp()[0]


def _own_random(x):
    return (W * Tensor(x) * float(random.generator().random())).sum()


def _list(x):
    return Tensor([x, x]).sum() * W.sum()


def _numpy_result(x):
    return x + 1


@pytest.mark.parametrize("step, why", [
    (_if, "bool()"), (_int, "int()"), (_item, "item()"), (_loop, "loop"), (_select, "depends on values"), (_write, "written to"),
    (_index, "its setting was computed from an argument"), (_own_random, "random numbers itself"), (_list, "list of arrays"),
    (_numpy_result, "returns a NumPy array")], ids=lambda x: getattr(x, "__name__", ""))
def test_it_stays_eager_and_says_why(step, why, capfd):
    fast = compile(step)
    for x in ([1.0, 2, 3, 4], [2.0, 1, -3, 4], [-1.0, -2, -3, -4]):
        x = np.array(x, np.float32)
        random.manual_seed(1)
        got = fast(x.copy())
        random.manual_seed(1)
        want = step(x.copy())
        np.testing.assert_array_equal(getattr(got, "array", got), getattr(want, "array", want))
    assert why in fast.reason and fast.replays == fast.captures == 0
    said = capfd.readouterr().err
    assert said.count("\n") == 1 and "stays eager" in said and fast.reason in said
    if step in (_if, _int, _item, _loop, _select, _write):
        assert "test_compiler.py, line" in fast.reason and step.__name__ in fast.reason


def test_gradients_from_before_and_computing_after_the_update(capfd):
    w = Tensor(np.ones(2, np.float32), requires_grad=True)

    def adds(x):
        loss = (w * Tensor(x)).sum()
        loss.backward()
        return loss
    fast = compile(adds)
    w.grad = None
    fast(np.ones(2, np.float32))
    fast(np.ones(2, np.float32))
    assert fast.reason == "" or "zero_grad" in fast.reason
    w.grad = Tensor([5.0, 5.0])
    fast = compile(adds)
    fast(np.ones(2, np.float32))
    assert "zero_grad" in fast.reason and w.grad.tolist() == [6.0, 6.0]
    optimizer = optim.SGD([w], 0.1)

    def late(x):
        optimizer.zero_grad()
        loss = (w * Tensor(x)).sum()
        loss.backward()
        optimizer.step()
        return loss * 2
    fast, before = compile(late), w.numpy().copy()
    fast(np.ones(2, np.float32))
    assert "after" in fast.reason and optimizer.steps == 1
    np.testing.assert_allclose(w.numpy(), before - 0.1)


def test_what_changes_outside_is_found_by_the_check(capfd):
    w = Tensor(np.ones(2, np.float32), requires_grad=True)
    scale = {"now": 1.0}

    def step(x):
        w.grad = None
        loss = (w * Tensor(x) * scale["now"]).sum()
        loss.backward()
        return loss
    fast = compile(step)
    fast(np.array([1, 2], np.float32))
    scale["now"] = 2.0
    assert fast(np.array([1, 3], np.float32)).item() == 8
    assert "neither an argument nor a parameter" in fast.reason
    assert fast(np.array([1, 4], np.float32)).item() == 10


def test_equal_data_are_no_check():
    w = Tensor(np.ones(2, np.float32), requires_grad=True)
    calls = []

    def step(x, y):
        calls.append(1)
        w.grad = None
        loss = (w * Tensor(x) * Tensor(y)).sum()
        loss.backward()
        return loss
    fast, x, y = compile(step), np.array([1, 2], np.float32), np.array([3, 4], np.float32)
    for _ in range(3):
        fast(x, y)
    assert len(calls) == 2 and fast.replays == 1   # the second call is compared, whatever it is given
    fast(x + 1, y)
    fast(x + 2, y)
    assert len(calls) == 3 and fast.replays == 2
    fast(x, y + 1)                                 # an argument that had never changed
    fast(x, y + 2)
    assert len(calls) == 4 and fast.replays == 3
    for i in range(8):
        fast(x + i, y + i)
    assert len(calls) == 5                         # the tenth


# ---------------------------------------------------------------------------------------------------------------------
# shapes, settings, memory
# ---------------------------------------------------------------------------------------------------------------------
def test_other_shapes_and_settings_are_other_programs():
    w = Tensor(np.ones(3, np.float32), requires_grad=True)

    def step(x, power=1, names=("a",)):
        w.grad = None
        loss = (w * Tensor(x)).sum() * power
        loss.backward()
        return {"loss": loss, "names": names}
    fast = compile(step)
    for rows in (2, 5, 2, 5, 2, 5):
        for power in (1, 2):
            x = np.full((rows, 3), rows, np.float32)
            assert fast(x, power=power)["loss"].item() == 3 * rows * rows * power
            assert w.grad.tolist() == [rows * rows * power] * 3
    assert fast.captures == 4 and fast.replays == 4
    assert fast(np.ones((1, 3), np.float64))["names"] == ("a",)


def test_the_first_calls_of_a_shape_can_be_eager():
    w = Tensor(np.ones(3, np.float32), requires_grad=True)

    def step(x):
        w.grad = None
        loss = (w * Tensor(x)).sum()
        loss.backward()
        return loss
    fast = compile(step, after=2)
    for i in range(5):
        fast(np.full(3, i, np.float32))
    assert (fast.eager, fast.captures, fast.replays) == (2, 1, 1)  # and one is compared


def test_the_least_used_program_goes(monkeypatch):
    monkeypatch.setattr(compiler.step, "KEPT", 2)
    fast = compile(lambda x: W.sum() * Tensor(x).sum())
    for n in (1, 2, 1, 3, 1, 2):
        fast(np.ones(n, np.float32))
    assert fast.captures == 4 and len(fast.programs) == 2


def test_a_parameter_that_moved_is_noticed():
    layer = nn.Linear(2, 2)

    def step(x):
        for p in layer.parameters():
            p.grad = None
        loss = layer(Tensor(x)).sum()
        loss.backward()
        return loss
    fast = compile(step)
    x = np.ones((1, 2), np.float32)
    fast(x), fast(x)
    layer.weight.array = np.full((2, 2), 2, np.float32)
    assert fast(x).item() == step(x).item() and fast.captures == 2


def test_two_programs_share_memory_and_do_not_disturb_each_other():
    w = Tensor(np.ones(8, np.float32), requires_grad=True)

    def step(x):
        w.grad = None
        loss = ((w * Tensor(x)).tanh() * Tensor(x)).sum()
        loss.backward()
        return loss
    fast, rng = compile(step), np.random.default_rng(0)
    for i in range(12):
        x = array(rng, 2 + i % 3, 8)
        got, gradient = fast(x).item(), w.grad.numpy().copy()
        assert got == step(x).item()
        np.testing.assert_array_equal(gradient, w.grad.numpy())


def test_the_graph_of_the_first_run_is_let_go():
    w = Tensor(np.ones(8, np.float32), requires_grad=True)
    kept = []

    def step(x):
        w.grad = None
        h = w * Tensor(x)
        kept.append(weakref.ref(h))
        loss = (h @ h.reshape(8, 1)).sum()
        loss.backward()
        return loss
    fast = compile(step)
    fast(np.ones((1, 8), np.float32))
    gc.collect()
    assert kept[0]() is None


def test_arguments_of_a_wrong_kind():
    with pytest.raises(TypeError, match="expected a function"):
        compile(3)
    fast = compile(lambda x: W.sum())
    with pytest.raises(TypeError, match="expected arrays, Tensors"):
        fast(object())
    with pytest.raises(TypeError, match="requires a gradient"):
        fast(W)


def test_an_error_in_the_step_is_the_users_own():
    fast = compile(lambda x: Tensor(x) @ W)
    with pytest.raises(ValueError, match="matmul"):
        fast(np.ones((2, 3), np.float32))
    assert fast.reason == ""
    assert ta.autograd.state.tape is None and not ta.autograd.state.special


def test_without_gradients_it_runs_as_it_is():
    fast = compile(lambda x: (W * Tensor(x)).sum())
    with ta.no_grad():
        assert fast(np.ones(4, np.float32)).item() == 4
    assert fast.captures == 0
    assert isinstance(compile(fused=False)(lambda x: W.sum()), compiler.Compiled)


def test_an_op_of_a_user_needs_nothing_to_be_captured():
    class Cube(Op):
        def cpu(self, x):
            return x * x * x

        def grad_x(self, g, y, x):
            return g * x * x * 3
    w = Tensor([1.0, 2.0], requires_grad=True)

    def step(x):
        w.grad = None
        loss = (Cube()(w * Tensor(x))).sum()
        loss.backward()
        return loss
    assert_replays(step, [w], *[(np.array([i, 2.0], np.float32),) for i in range(4)])


# ---------------------------------------------------------------------------------------------------------------------
# what a replay could get wrong in silence
# ---------------------------------------------------------------------------------------------------------------------
def product(w, zero=True):
    """A step: the sum of w * x, with its gradient."""
    def step(x):
        if zero:
            w.grad = None
        loss = (w * Tensor(x)).sum()
        loss.backward()
        return loss
    return step


def many(n, *shape):
    rng = np.random.default_rng(0)
    return [array(rng, *shape) for _ in range(n)]


@pytest.mark.parametrize("what", ["gradient", "random", "setting", "result", "leaf", "clip"])
def test_the_check_finds_what_does_not_show_in_the_loss(what, capfd):
    w, v = (Tensor(np.ones(3, np.float32), requires_grad=True) for _ in "wv")
    now = {"first": True}

    def step(x):
        first, w.grad, v.grad = now["first"], None, None
        loss = (w * Tensor(x)).sum()
        if what == "gradient":
            (loss * (1.0 if first else 2.0)).backward()
        elif what == "leaf":
            (loss + (w if first else v).sum() * 0).backward()
        else:
            loss.backward()
        if what == "random" and not first:
            random.next_seed()
        if what == "clip":
            optim.clip_grad_norm([w], 1.0 if first else 2.0)
        return (loss, first) if what == "setting" else [loss] * (1 if first or what != "result" else 2)
    fast, (x, y, z, *_) = compile(step), many(4, 3)
    fast(x)
    now["first"] = False
    got = fast(y), fast(z)
    assert fast.reason and fast.replays == 0, fast.reason
    want = step(y), step(z)
    assert [str(g) for g in got] == [str(d) for d in map(compiler.step.detached, want)]


def test_gradients_of_before_are_added_to_or_it_says_so(capfd):
    """A step without zero_grad, after which somebody forgets the gradients, and then nobody does."""
    w, u = (Tensor(np.ones(3, np.float32), requires_grad=True) for _ in "wu")
    fast, slow = compile(product(w, zero=False)), product(u, zero=False)
    for i, x in enumerate(many(7, 3)):
        if i < 4:
            forget([w, u])
        fast(x), slow(x)
        np.testing.assert_array_equal(w.grad.numpy(), u.grad.numpy())
    assert "zero_grad" in fast.reason and fast.replays == 2


def test_a_gradient_that_only_another_program_makes_is_forgotten():
    """Of two programs one uses `b`, and the optimiser must not see its gradient after the other."""
    def train(wrap):
        a, b = (Tensor(np.ones(3, np.float32), requires_grad=True) for _ in "ab")
        optimizer = optim.Adam([a, b], 0.1)

        def step(x, both):
            optimizer.zero_grad()
            loss = (a * Tensor(x)).sum() + ((b * b).sum() if both else 0)
            loss.backward()
            optimizer.step()
            return loss
        step, out = wrap(step), []
        for i, x in enumerate(many(14, 3)):
            step(x, i % 3 == 1)
            out += [a.numpy().tolist(), b.numpy().tolist(), b.grad is None]
        return out, step
    (got, fast), (want, _) = train(compile), train(lambda step: step)
    assert got == want and fast.reason == "" and fast.replays > 4


def test_gradients_outlive_another_program():
    """Without zero_grad in the step: what one program left in `b` stays, while others use the memory."""
    a, b = (Tensor(np.ones((8, 8), np.float32), requires_grad=True) for _ in "ab")

    def step(x, both):
        loss = ((a * Tensor(x)).tanh() * 2).sum() + ((b * Tensor(x)).sum() if both else 0)
        loss.backward()
        return loss
    fast, (x, *batches) = compile(step), many(12, 8, 8)
    for one in batches[:3]:
        for both in (True, False):
            forget([a, b])
            fast(one, both)
    forget([a, b])
    fast(x, True)
    a.grad = None
    for one in batches[3:]:
        a.grad = None
        fast(one, False)
        np.testing.assert_array_equal(b.grad.numpy(), x)
    assert fast.reason == "" and fast.replays >= 6


def test_other_memory_or_another_switch_of_a_frozen_parameter_is_noticed():
    frozen = Tensor(np.ones(3, np.float32))
    w = Tensor(np.ones(3, np.float32), requires_grad=True)

    def step(x):
        w.grad = frozen.grad = None
        loss = (w * frozen * Tensor(x)).sum()
        loss.backward()
        return loss
    fast, batches = compile(step), many(9, 3)
    for x in batches[:3]:
        fast(x)
    frozen.array = np.full(3, 2, np.float32)
    for x in batches[3:6]:
        assert fast(x).item() == step(x).item()
    frozen.requires_grad_(True)
    w.requires_grad_(False)
    for x in batches[6:]:
        fast(x)
        np.testing.assert_array_equal(frozen.grad.numpy(), 2 * 0 + w.numpy() * x)
        assert w.grad is None
    assert fast.captures == 3 and fast.reason == ""


def test_dtypes_that_share_a_letter_are_other_programs():
    w = Tensor(np.ones(2), requires_grad=True)

    def step(words, x):
        w.grad = None
        loss = (w * Tensor((words == "abcd").astype(np.float64)) * Tensor(x)).sum()
        loss.backward()
        return loss
    fast = compile(step)
    third = np.full(2, 1 / 3)
    for words in (["a", "b"], ["c", "d"], ["abcd", "b"], ["abcd", "abcd"], ["abcd", "a"]):
        for x in (third, third.astype(">f8"), third * 2):
            assert fast(np.array(words), x).item() == step(np.array(words), x).item()
    assert fast.reason == ""


def test_results_are_kept_and_parameters_are_given_out_as_copies(capfd):
    w = Tensor(np.ones(3, np.float32), requires_grad=True)
    optimizer = optim.SGD([w], 0.5)

    def step(x):
        optimizer.zero_grad()
        loss = (w * Tensor(x)).sum()
        loss.backward()
        optimizer.step()
        return loss, w
    for one, why in ((step, "returns what the optimiser's step makes or changes"), (lambda x: (step(x)[0], w.grad), "")):
        fast, kept = compile(one), []
        for x in many(5, 3):
            loss, second = fast(x)
            kept.append((loss, loss.item(), second, second.tolist()))
        assert why in fast.reason
        assert all(loss.item() == a and second.tolist() == b for loss, a, second, b in kept)


def test_what_is_changed_in_place_keeps_it_eager(capfd):
    w, mean = Tensor(np.ones(3, np.float32), requires_grad=True), Tensor(np.zeros(3, np.float32))

    def step(x):
        mean.copy_(mean * 0.9 + Tensor(x) * 0.1)
        return product(w)(x)
    fast = compile(step)
    for x in many(4, 3):
        fast(x)
    want = np.zeros(3, np.float32)
    for x in many(4, 3):
        want = want * np.float32(0.9) + x * np.float32(0.1)
    np.testing.assert_allclose(mean.numpy(), want, rtol=1e-6)
    assert "in place" in fast.reason


def test_what_the_step_writes_into_its_argument_is_there(capfd):
    def step(x):
        x *= 2
        return (W * Tensor(x)).sum()
    fast, x = compile(step), np.ones(4, np.float32)
    fast(x)
    assert x.tolist() == [2] * 4 and "writes into an array" in fast.reason


def test_random_numbers_of_numpy_and_a_generator_that_is_held(capfd):
    w, held = Tensor(np.ones(3, np.float32), requires_grad=True), random.generator()
    fast = compile(lambda x: (w * Tensor(x * np.random.rand(3).astype(np.float32))).sum())
    before = np.random.get_state()
    try:
        fast(np.ones(3, np.float32))
    finally:
        np.random.set_state(before)
    assert "random numbers itself" in fast.reason
    fast = compile(lambda x: dropout(w * Tensor(x), 0.5, True).sum())
    for x in many(3, 3):
        fast(x)
    assert fast.reason == "" and random.generator() is held


def test_code_that_takes_no_traced_array_runs_on_its_own(capfd):
    w, calls = Tensor(np.ones(3, np.float32), requires_grad=True), []

    def step(x):
        calls.append(type(x) is np.ndarray)
        random.next_seed()
        if not calls[-1]:
            product(w)(x)
            raise TypeError("cannot determine the type of Traced")
        return product(w)(x)
    fast, x = compile(step), np.float32([1, 2, 3])
    random.manual_seed(0)
    assert fast(x).item() == 6 and w.grad.tolist() == [1, 2, 3]
    after = random.get_state()
    random.manual_seed(0)
    random.next_seed()
    assert random.get_state() == after and "cannot determine" in fast.reason and calls == [False, True]


def test_a_fault_of_ours_is_told_in_a_line(monkeypatch, capfd):
    def broken(captured):
        raise IndexError("list index out of range")
    monkeypatch.setitem(compiler.step.PASSES, "fusion", broken)
    w = Tensor(np.ones(3, np.float32), requires_grad=True)
    fast = compile(product(w))
    assert fast(np.float32([1, 2, 3])).item() == 6 and "cannot be run again: IndexError" in fast.reason


def test_taps_are_seen_and_nested_steps_join():
    w = Tensor(np.ones(3, np.float32), requires_grad=True)

    def step(x):
        w.grad = None
        h = w * Tensor(x)
        ta.autograd.tap("h", h)
        loss = h.sum()
        loss.backward()
        return loss
    inner = compile(step)
    outer = compile(lambda x: inner(x * 2) * 3)
    for x in many(4, 3):
        with ta.autograd.capture() as seen:
            inner(x)
        assert len(seen["h"]) == 1
        assert outer(x).item() == (step(x * 2) * 3).item()
        np.testing.assert_array_equal(w.grad.numpy(), 2 * x)
    assert outer.reason == inner.reason == "" and outer.replays == 2


def test_threads_take_turns():
    fast = compile(lambda x: ((Tensor(x) * 2 + 1).tanh() @ Tensor(x).transpose(0, 1)).sum() + W.sum())
    batches = [np.full((40, 40), i, np.float32) for i in range(60)]
    want = [fast.step(x).item() for x in batches]
    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda x: fast(x).item(), batches))
    assert got == want and fast.reason == ""


def test_copies_capture_anew():
    layer = nn.Linear(2, 2)
    fast = compile(layer.forward)
    fast(Tensor(np.ones((1, 2), np.float32)))
    other = copy.deepcopy(fast)
    assert other.programs == {} and other.step.__self__ is not layer
    assert other(Tensor(np.ones((1, 2), np.float32))).tolist() == fast(Tensor(np.ones((1, 2), np.float32))).tolist()


def test_an_interrupted_replay_leaves_nothing_behind():
    w = Tensor(np.ones(3, np.float32), requires_grad=True)
    fast, batches = compile(product(w)), many(6, 3)
    for x in batches[:3]:
        fast(x)
    replay = next(iter(fast.programs.values())).replay
    steps = list(replay.steps)

    def interrupt():
        raise KeyboardInterrupt
    replay.steps.insert(1, (interrupt, None, None))
    with pytest.raises(KeyboardInterrupt):
        fast(batches[3])
    replay.steps[:] = steps
    assert fast(batches[4]).item() == product(w)(batches[4]).item() and device.planned.take is None


def test_a_masked_array_is_no_argument():
    with pytest.raises(TypeError, match="MaskedArray"):
        compile(lambda x: W.sum())(np.ma.masked_less([1.0, 2.0], 2))


def test_many_settings_do_not_grow_without_bound(monkeypatch):
    monkeypatch.setattr(compiler.step, "KEPT", 3)
    fast = compile(lambda x, i: W.sum() * Tensor(x).sum() * i)
    for i in range(120):
        fast(np.ones(1, np.float32), i)
    assert len(fast.programs) == 3 and len(fast.seen) <= 16 * 3 + 1


def test_a_long_chain():
    w = Tensor(np.ones((3, 4), np.float32), requires_grad=True)

    def step(x):
        w.grad, h = None, w * Tensor(x)
        for i in range(700):
            h = (h * 0.5 + w).tanh() if i % 7 else h - h.mean()
        loss = h.sum()
        loss.backward()
        return loss
    assert_replays(step, [w], *[(x,) for x in many(4, 3, 4)])


TABLE = np.arange(12, dtype=np.float32).reshape(4, 3)


@pytest.mark.parametrize("read", [lambda ids: TABLE[ids], lambda ids: np.take(TABLE, ids, 0), lambda ids: np.array(ids), lambda ids: np.eye(4)[ids],
                                  np.asarray, np.ascontiguousarray, lambda ids: ids.view(np.float64), lambda ids: np.array(list(ids.flat)),
                                  lambda ids: np.fromiter(ids, float), lambda ids: np.frombuffer(ids.tobytes(), int),
                                  lambda ids: np.asarray(memoryview(ids)), lambda ids: np.full(2, ids.max())])
def test_a_trace_is_not_lost_in_silence(read, capfd):
    """Even where the first two batches happen to give the same."""
    w = Tensor(np.ones(1, np.float32), requires_grad=True)

    def step(ids):
        w.grad = None
        loss = (w * Tensor(read(ids)).float().sum()).sum()
        loss.backward()
        return loss
    fast = compile(step)
    for ids in ([0, 1, 2], [2, 1, 0], [3, 3, 3]):
        np.testing.assert_array_equal(fast(np.array(ids)).numpy(), step(np.array(ids)).numpy())
    assert fast.reason and fast.captures == 0


def test_a_frozen_parameter_that_no_recorded_op_reads_is_noticed():
    frozen, w = Tensor(np.ones((2, 3), np.float32)), Tensor(np.ones(2, np.float32), requires_grad=True)

    def step(x):
        w.grad = frozen.grad = None
        loss = ((frozen @ Tensor(x)) * w).sum()
        loss.backward()
        return loss
    fast = compile(step)
    for i, x in enumerate(many(9, 3)):
        if i == 3:
            frozen.array = frozen.array * 2
        if i == 6:
            frozen.requires_grad_(True)
        assert fast(x).item() == step(x).item() and (frozen.grad is not None) == (i >= 6)
        fast(x)
        assert (frozen.grad is not None) == (i >= 6)
    assert fast.captures == 3 and fast.reason == ""


def test_a_clone_is_replayed():
    w = Tensor(np.ones(3, np.float32), requires_grad=True)

    def step(x):
        w.grad = None
        loss = (w * x.clone()).sum()
        loss.backward()
        return loss, w.detach().clone()
    assert_replays(step, [w], *[(Tensor(x),) for x in many(4, 3)])


def test_what_a_rule_does_not_look_at_need_not_live():
    """The rule of a product needs its factors, not its result: tanh may be written over it."""
    w = Tensor(np.ones((32, 32), np.float32), requires_grad=True)

    def step(x):
        w.grad = None
        loss = (Tensor(x) @ w).tanh().sum()
        loss.backward()
        return loss
    rng = np.random.default_rng(0)
    fast = assert_replays(step, [w], *[(array(rng, 32, 32),) for _ in range(4)])
    rule = next(c for c in next(iter(fast.programs.values())).replay.captured.program.instructions if c.op == "matmul.grad")
    assert [name for name, value in zip(rule.input_names, rule.inputs) if value is None] == ["y"]


def test_which_parameters_a_function_looks_at():
    class Any:
        def plain(self, g, y, a, b):
            return g * b

        def inner(self, g, y, a, b):
            return [g + a for _ in range(2)], lambda: y

        def two(self, g, y, a, b):
            a = 1
            return g * (1 - y * y), a

        def many(self, g, y, *xs):
            return g
    reads = compiler.tape.reads
    assert reads(Any.plain) == [True, False, False, True] and reads(Any.inner) == [True, True, True, False]
    assert reads(Any.two)[:2] == [True, True] and not reads(Any.two)[3]
    assert reads(Any.many) == reads(len) == [True, True]


def test_what_an_op_saved_may_be_a_view_of_what_its_rule_does_not_look_at():
    """Cross-entropy saves its targets: their memory must not be given to another before its rule has run."""
    rng = np.random.default_rng(0)
    w = Tensor(array(rng, 16, 12), requires_grad=True)

    def step(x, t):
        w.grad = None
        loss = cross_entropy(Tensor(x) @ w, Tensor(np.where(t > 3, t, 3) % 12))
        v = w[:, 0]
        for _ in range(3):
            v = v.cumsum(0) * 0.1
        loss = loss + v.sum()
        loss.backward()
        return loss
    assert_replays(step, [w], *[(array(rng, 32, 16), rng.integers(0, 12, 32)) for _ in range(5)])


def test_a_large_operation_that_no_loop_can_stretch_stays_as_it_is():
    """(2, 1, 90, 1) over (2, 3, 90, 90) is neither a row nor a column."""
    w = Tensor(np.ones((2, 1, 90, 1), np.float32), requires_grad=True)

    def step(x):
        w.grad = None
        loss = (w * Tensor(x)).sum()
        loss.backward()
        return loss
    rng = np.random.default_rng(0)
    assert_replays(step, [w], *[(array(rng, 2, 3, 90, 90),) for _ in range(4)])


def test_training_replays_its_steps_and_gives_the_same_numbers(monkeypatch):
    from tinyattn import systems, train
    from tinyattn.config import Config
    monkeypatch.setattr(train, "AFTER", 1)
    cls, found = systems.find("qa"), []
    for compiled in (True, False):
        options = cls.Options()
        system = cls.prepare(options, seed=1)
        loop = train._Loop(system, Config.proposed(cls, options, steps=25), None, compiled)
        loop.begin()
        for _ in range(25):
            loop.step()
        found.append((loop.history.losses, {n: w.tolist() for n, w in system.model.state_dict().items()}))
        assert (loop.gradients is not None) == compiled
        if compiled:
            assert loop.gradients.reason == "" and loop.gradients.replays > 5
    assert found[0] == found[1]


# ---------------------------------------------------------------------------------------------------------------------
# on a card: see tests/on_card/test_card_compiler.py. What that one cannot see, since the simulator computes as Python does:
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("steps, want", [
    ([("t0", "a0 * a1"), ("t1", "t0 + a2"), ("t2", "t1 - t0")], "mul.rn add.rn neg add.rn"),
    ([("t0", "a0 * a1"), ("t1", "a2 * (1 - t0 * t0)"), ("t2", "t1 + a0")], "mul.rn mul sub mul.rn add.rn"),
    ([("t0", "a0 * a1 * (1 - a1)"), ("t1", "a0 if t0 > 0 else a2"), ("t2", "abs(-t1)")], "mul neg add.rn mul.rn neg abs")])
def test_a_chain_on_a_card_rounds_after_each_operation(steps, want, dtype):
    """A product and a sum of two operations are never joined into one instruction; in one of them the driver may, as it does in the
    kernel of that operation alone. float32 stays float32."""
    from tinyattn.cuda import link, ptx
    if ptx.missing():
        pytest.skip(ptx.missing())
    chain = Fused("fused", [], [], "", {"of": "test"}, input_names=["a0", "a1", "a2"], steps=steps, stored=["t2"],
                  kinds="same row one", bools=[False] * 3, card=True)
    kernel = fusion.card_kernel_of(chain, np.dtype(dtype))
    text = ptx.ptx(kernel, kernel.signatures[0], (9, 0))
    letter = dtype.replace("float", "f")
    found = re.findall(rf"\b((?:mul|add|sub|fma|neg|abs|div)(?:\.rn)?)\.{letter}", text)
    assert " ".join(found) == want and (dtype == "float64" or ".f64" not in text)
    assert ptx.fault_of(link.usage(text, (9, 0)), "") == "" and kernel.name not in ptx.kernels()
