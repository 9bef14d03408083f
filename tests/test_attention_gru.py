"""The attention GRU: against plain loops, PyTorch, the GRU it is made of, the readable twin; conventions, padding."""
import math
import tracemalloc

import numpy as np
import pytest
from test_softmax_loss_norm import twisted

from tinyattn import Tensor, device
from tinyattn.autograd import fused, grad
from tinyattn.gradcheck import check_op
from tinyattn.ops.attention_gru import AttentionGRUScan
from tinyattn.ops.broadcast import ShapeError
from tinyattn.ops.gru import GRUScan

KINDS = [("replace", "after", None), ("replace", "before", None)] + [
    ("blend", reset, update) for reset in ("after", "before") for update in ("keep", "write")]
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda k: "-".join(map(str, k)))
both_ways = pytest.mark.parametrize("reverse", [False, True])


def problem(kind, b, t, d, dtype=np.float64, seed=0, padded=True):
    """[x, alpha, h0, w_hh, b_hh], lengths, gradients of hs and h."""
    rng, n = np.random.default_rng(seed), 2 if kind[0] == "replace" else 3
    arrays = [rng.normal(size=(b, t, n * d)), rng.uniform(size=(b, t)), rng.normal(size=(b, d)),
              rng.normal(size=(n * d, d)) / math.sqrt(d), rng.normal(size=n * d)]
    lengths = rng.integers(1, t + 1, size=b) if padded else None
    return [a.astype(dtype) for a in arrays], lengths, [rng.normal(size=s).astype(dtype) for s in ((b, t, d), (b, d))]


def run(op, arrays, lengths, gs, create_graph=False):
    """Outputs and the gradients of all float inputs, as arrays."""
    inputs = [Tensor(a, requires_grad=True) for a in arrays]
    outs = op(*inputs, None if lengths is None else Tensor(lengths))
    grads = grad(list(outs), inputs, [Tensor(g) for g in gs], create_graph=create_graph, allow_unused=True)
    grads = [np.zeros(a.shape) if g is None else g.numpy() for a, g in zip(arrays, grads, strict=True)]
    return [o.numpy() for o in outs], grads


def close(found, expected, tolerance=1e-10):
    for f, e in zip(found[0] + found[1], expected[0] + expected[1], strict=True):
        assert f.shape == e.shape
        np.testing.assert_allclose(f, e, rtol=tolerance, atol=tolerance)


def loops(kind, reverse, arrays, lengths):
    """Unit by unit, from the formulas."""
    mode, reset, update = kind
    x, alpha, h0, w, bias = arrays
    (b_end, t_end), d = alpha.shape, h0.shape[1]
    hs, last = np.zeros((b_end, t_end, d)), h0.copy()

    def sigmoid(v):
        return 1 / (1 + math.exp(-v))

    def inner(gate, j, h):
        return sum(w[gate * d + j, i] * h[i] for i in range(d)) + bias[gate * d + j]
    for b in range(b_end):
        h = list(h0[b])
        n_end = t_end if lengths is None else lengths[b]
        for t in reversed(range(n_end)) if reverse else range(n_end):
            r = [sigmoid(x[b, t, j] + inner(0, j, h)) for j in range(d)]
            n_at = 1 if mode == "replace" else 2
            candidate = []
            for j in range(d):
                if reset == "after":
                    candidate.append(math.tanh(x[b, t, n_at * d + j] + r[j] * inner(n_at, j, h)))
                else:
                    candidate.append(math.tanh(x[b, t, n_at * d + j] + inner(n_at, j, [p * q for p, q in zip(r, h)])))
            if mode == "blend":
                z = [sigmoid(x[b, t, d + j] + inner(1, j, h)) for j in range(d)]
                z = z if update == "keep" else [1 - v for v in z]
                candidate = [z[j] * h[j] + (1 - z[j]) * candidate[j] for j in range(d)]
            h = [alpha[b, t] * candidate[j] + (1 - alpha[b, t]) * h[j] for j in range(d)]
            hs[b, t] = h
        last[b] = h
    return hs, last


# ---------------------------------------------------------------------------------------------------------------------
# values
# ---------------------------------------------------------------------------------------------------------------------
@every_kind
@both_ways
@pytest.mark.parametrize("size", [(3, 4, 3), (1, 1, 1), (5, 3, 17)])
def test_is_the_plain_loop(kind, reverse, size):
    for padded in (True, False):
        arrays, lengths, _ = problem(kind, *size, padded=padded)
        lengths = lengths if lengths is None else np.where(np.arange(size[0]) == 2, 0, lengths)
        found = AttentionGRUScan(*kind, reverse)(*map(Tensor, arrays), None if lengths is None else Tensor(lengths))
        for f, e in zip(found, loops(kind, reverse, arrays, lengths), strict=True):
            np.testing.assert_allclose(f.numpy(), e, rtol=1e-12, atol=1e-14)


def test_by_numbers():
    """One unit, one step, U = 0: r = 1/2, and with b_n = 0.4: n = tanh(0.3 + 0.2); alpha = 1/4 of it, 3/4 of h = 2."""
    as_tensor = [Tensor(a, dtype="float64") for a in ([[[0.0, 0.3]]], [[0.25]], [[2.0]], [[0.0], [0.0]], [0.0, 0.4])]
    for reset, n in (("after", math.tanh(0.5)), ("before", math.tanh(0.7))):
        hs, h = AttentionGRUScan("replace", reset)(*as_tensor, None)
        assert hs.item() == h.item() == pytest.approx(n / 4 + 1.5, rel=1e-15)


@pytest.mark.parametrize("kind", KINDS[2:], ids=lambda k: "-".join(map(str, k)))
@both_ways
def test_blend_with_one_is_the_gru(kind, reverse):
    arrays, lengths, gs = problem(kind, 5, 6, 20)
    x, _, *rest = arrays
    mine = run(AttentionGRUScan(*kind, reverse), [x, np.ones(x.shape[:2]), *rest], lengths, gs)
    gru = run(GRUScan(reverse, *kind[1:]), [x, *rest], lengths, gs)
    for a, b in zip(mine[0], gru[0], strict=True):
        np.testing.assert_array_equal(a, b)  # exactly
    close((mine[0], [mine[1][0], *mine[1][2:]]), gru, 1e-13)


@every_kind
@both_ways
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_zero_keeps_the_state(kind, reverse, dtype):
    """Bit for bit; x and the weights get no gradient, alpha does: it could let something in."""
    arrays, lengths, gs = problem(kind, 4, 5, 9, dtype)
    arrays[1][:] = 0
    (hs, h), (dx, dalpha, dh, dw, db) = run(AttentionGRUScan(*kind, reverse), arrays, lengths, gs)
    np.testing.assert_array_equal(h, arrays[2])
    for b, n in enumerate(lengths):
        np.testing.assert_array_equal(hs[b, :n], np.broadcast_to(arrays[2][b], hs[b, :n].shape))
        assert (dalpha[b, :n] != 0).all() and (dalpha[b, n:] == 0).all()
    assert all((d == 0).all() for d in (dx, dw, db))
    all_that_comes = gs[1] + np.stack([g[:n].sum(0) for g, n in zip(gs[0], lengths, strict=True)])
    np.testing.assert_allclose(dh, all_that_comes, rtol=1e-5)


def test_one_step_of_attention_takes_in_one_step_of_input():
    """alpha one-hot in time: the last state is that of a sequence with that one step, and nothing else matters."""
    arrays, _, _ = problem(KINDS[0], 3, 5, 4, padded=False)
    arrays[1][:] = np.eye(5)[2]
    _, h = AttentionGRUScan()(*map(Tensor, arrays), None)
    _, one = AttentionGRUScan()(*map(Tensor, [arrays[0][:, 2:3], arrays[1][:, 2:3], *arrays[2:]]), None)
    np.testing.assert_array_equal(h.numpy(), one.numpy())


@pytest.mark.parametrize("reset", ["after", "before"])
def test_alpha_takes_the_place_of_the_gate_that_writes(reset):
    """"replace" is a GRU whose z does not look at anything and is alpha: of the convention "write". In the convention
    "keep" it has to be 1 - alpha; alpha there turns the attention upside down."""
    (x, alpha, h0, w, b), lengths, _ = problem(("replace", reset), 4, 5, 3)
    alpha = 0.2 + 0.5 * alpha

    def gru(z, update):
        """x_z = log(z / (1 - z)), U_z = 0, b_z = 0."""
        x3 = np.concatenate([x[..., :3], np.repeat(np.log(z / (1 - z))[..., None], 3, 2), x[..., 3:]], 2)
        w3, b3 = np.concatenate([w[:3], 0 * w[:3], w[3:]]), np.concatenate([b[:3], 0 * b[:3], b[3:]])
        return GRUScan(reset=reset, update=update)(*map(Tensor, (x3, h0, w3, b3, lengths)))[0].numpy()
    hs = AttentionGRUScan("replace", reset)(*map(Tensor, (x, alpha, h0, w, b, lengths)))[0].numpy()
    np.testing.assert_allclose(gru(alpha, "write"), hs, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(gru(1 - alpha, "keep"), hs, rtol=1e-10, atol=1e-12)
    assert np.abs(gru(alpha, "keep") - hs).max() > 0.1


def test_update_conventions_are_each_others_mirror():
    """z -> 1 - z is x_z -> -x_z, U_z -> -U_z, b_z -> -b_z; the flag alone gives something else."""
    (x, alpha, h0, w, b), lengths, _ = problem(KINDS[2], 3, 4, 5)
    def turned(a):
        return a * np.repeat([1.0, -1.0, 1.0], 5)

    def outputs(*inputs, **options):
        return AttentionGRUScan("blend", **options)(*map(Tensor, inputs))[0].numpy()
    keep, write = (outputs(x, alpha, h0, w, b, lengths, update=update) for update in ("keep", "write"))
    mirror = outputs(turned(x), alpha, h0, turned(w.T).T, turned(b), lengths, update="write")
    np.testing.assert_allclose(mirror, keep, rtol=1e-12, atol=1e-14)
    assert np.abs(write - keep).max() > 0.1
    np.testing.assert_array_equal(outputs(x, alpha, h0, w, b, lengths), keep)


# ---------------------------------------------------------------------------------------------------------------------
# gradients
# ---------------------------------------------------------------------------------------------------------------------
def in_torch(kind, reverse, arrays, gs):
    torch = pytest.importorskip("torch")
    mode, reset, update = kind
    x, alpha, h0, w, b = inputs = [torch.tensor(a, requires_grad=True) for a in arrays]
    d, h, hs = h0.shape[1], h0, [None] * x.shape[1]
    cut = w.shape[0] - d
    for t in reversed(range(x.shape[1])) if reverse else range(x.shape[1]):
        gates = torch.sigmoid(x[:, t, :cut] + torch.nn.functional.linear(h, w[:cut], b[:cut]))
        r = gates[:, :d]
        if reset == "after":
            new = torch.tanh(x[:, t, cut:] + r * torch.nn.functional.linear(h, w[cut:], b[cut:]))
        else:
            new = torch.tanh(x[:, t, cut:] + torch.nn.functional.linear(r * h, w[cut:], b[cut:]))
        if mode == "blend":
            new = torch.lerp(new, h, gates[:, d:]) if update == "keep" else torch.lerp(h, new, gates[:, d:])
        h = hs[t] = torch.lerp(h, new, alpha[:, t:t + 1])
    hs = torch.stack(hs, 1)
    ((hs * torch.tensor(gs[0])).sum() + (h * torch.tensor(gs[1])).sum()).backward()
    return [hs.detach().numpy(), h.detach().numpy()], [i.grad.numpy() for i in inputs]


@every_kind
@both_ways
@pytest.mark.parametrize("size", [(3, 5, 4), (1, 1, 1), (33, 6, 70)])
def test_is_pytorchs(kind, reverse, size):
    if not device.JIT and size[0] > 5:
        size = (5, 3, 7)
    arrays, _, gs = problem(kind, *size, padded=False)
    close(run(AttentionGRUScan(*kind, reverse), arrays, None, gs), in_torch(kind, reverse, arrays, gs))


@every_kind
@both_ways
def test_fused_is_its_twin(kind, reverse):
    for b, t, d, padded in ((4, 5, 6, True), (2, 3, 1, True), (9, 2, 33, False), (0, 3, 2, False), (2, 0, 3, False)):
        arrays, lengths, gs = problem(kind, b, t, d, padded=padded and b and t)
        op = (*kind, reverse)
        fast = run(AttentionGRUScan(*op), arrays, lengths, gs)
        close(run(AttentionGRUScan(*op), arrays, lengths, gs, create_graph=True), fast, 1e-12)
        with fused("never"):
            close(run(AttentionGRUScan(*op), arrays, lengths, gs), fast, 1e-12)


def test_derivatives_to_order_two():
    for report in check_op(AttentionGRUScan, order=2, seed=1):
        report.raise_if_wrong()


def test_without_a_bias():
    arrays, lengths, gs = problem(KINDS[0], 3, 4, 5)
    arrays[4][:] = 0
    whole = run(AttentionGRUScan(), arrays, lengths, gs)
    inputs = [Tensor(a, requires_grad=True) for a in arrays[:4]]
    for mode in ("force", "never"):
        with fused(mode):
            outs = AttentionGRUScan()(*inputs, None, Tensor(lengths))
            grads = grad(list(outs), inputs, [Tensor(g) for g in gs])
        close(([o.numpy() for o in outs], [g.numpy() for g in grads]), (whole[0], whole[1][:4]), 1e-12)


def test_a_wrong_loop_is_found():
    class Late(AttentionGRUScan):
        """The gradient at alpha of the step after."""
        def cpu_grad(self, *args):
            grads = list(super().cpu_grad(*args))
            if grads[1] is not None:
                grads[1] = np.roll(grads[1], 1, axis=1)
            return grads

    assert any(not r.ok for r in check_op(Late, order=1))


# ---------------------------------------------------------------------------------------------------------------------
# padding, time, corners
# ---------------------------------------------------------------------------------------------------------------------
@every_kind
@both_ways
def test_a_padded_batch_is_each_sequence_alone(kind, reverse):
    arrays, _, gs = problem(kind, 4, 6, 3)
    lengths = np.array([6, 2, 0, 5])
    arrays[0][1, 2:], arrays[1][1, 2:] = 1e30, 1e30  # what stands in the padding does not matter
    outs, grads = run(AttentionGRUScan(*kind, reverse), arrays, lengths, gs)
    sums = [0, 0]
    for i, n in enumerate(lengths):
        alone = [arrays[0][i:i + 1, :n], arrays[1][i:i + 1, :n], arrays[2][i:i + 1], *arrays[3:]]
        one, own = run(AttentionGRUScan(*kind, reverse), alone, None, [gs[0][i:i + 1, :n], gs[1][i:i + 1]])
        for whole, part in ((outs[0], one[0]), (grads[0], own[0]), (grads[1], own[1])):
            np.testing.assert_allclose(whole[i, :n], part[0], rtol=1e-12, atol=1e-13)
            assert (whole[i, n:] == 0).all()
        for whole, part in ((outs[1], one[1]), (grads[2], own[2])):
            np.testing.assert_allclose(whole[i], part[0], rtol=1e-12, atol=1e-13)
        sums = [s + g for s, g in zip(sums, own[3:], strict=True)]
    for whole, total in zip(grads[3:], sums, strict=True):
        np.testing.assert_allclose(whole, total, rtol=1e-11, atol=1e-13)
    np.testing.assert_array_equal(outs[1][2], arrays[2][2])


@every_kind
def test_reverse_is_the_other_direction(kind):
    arrays, _, gs = problem(kind, 3, 5, 4, padded=False)
    x, alpha, *rest = arrays
    one = run(AttentionGRUScan(*kind, reverse=True), arrays, None, gs)
    two = run(AttentionGRUScan(*kind), [x[:, ::-1], alpha[:, ::-1], *rest], None, [gs[0][:, ::-1], gs[1]])
    np.testing.assert_allclose(one[0][0], two[0][0][:, ::-1], rtol=1e-13)
    np.testing.assert_allclose(one[1][1], two[1][1][:, ::-1], rtol=1e-11, atol=1e-13)


def test_step_by_step_is_the_whole():
    arrays, _, _ = problem(KINDS[2], 3, 4, 5, padded=False)
    x, alpha, h, w, b = map(Tensor, arrays)
    whole, _ = AttentionGRUScan("blend")(x, alpha, h, w, b, None)
    for t in range(4):
        out, h = AttentionGRUScan("blend")(x[:, t:t + 1], alpha[:, t:t + 1], h, w, b, None)
        np.testing.assert_allclose(out.numpy()[:, 0], whole.numpy()[:, t], rtol=1e-12, atol=1e-14)


@every_kind
def test_without_recording_and_from_strided_arrays(kind):
    arrays, lengths, gs = problem(kind, 3, 4, 5)
    outs, grads = run(AttentionGRUScan(*kind), arrays, lengths, gs)
    plain = AttentionGRUScan(*kind)(*map(Tensor, arrays), Tensor(lengths))
    for o, p in zip(outs, plain, strict=True):
        assert o.tobytes() == p.numpy().tobytes()
    op = AttentionGRUScan(*kind)
    op.recorded, op.needs = True, [True] * 5 + [False]
    strided = [twisted(a) for a in arrays]
    y = op.cpu(*strided, lengths)
    again = op.cpu_grad([twisted(g) for g in gs], y, *strided, lengths)[:5]
    for a, c in zip([*outs, *grads], [*y, *again], strict=True):
        np.testing.assert_allclose(a, c, rtol=1e-13, atol=1e-15)


def test_only_what_is_asked():
    arrays, lengths, gs = problem(KINDS[0], 2, 3, 4)
    _, whole = run(AttentionGRUScan(), arrays, lengths, gs)
    for i in range(5):
        inputs = [Tensor(a, requires_grad=j == i) for j, a in enumerate(arrays)]
        (one,) = grad(list(AttentionGRUScan()(*inputs, Tensor(lengths))), [inputs[i]], [Tensor(g) for g in gs])
        assert one.numpy().tobytes() == whole[i].tobytes()


@every_kind
def test_float32_is_close_to_float64(kind):
    arrays, lengths, gs = problem(kind, 5, 20, 17)
    gold = run(AttentionGRUScan(*kind), arrays, lengths, gs)
    found = run(AttentionGRUScan(*kind), [a.astype("f") for a in arrays], lengths, [g.astype("f") for g in gs])
    for f, e in zip(found[0] + found[1], gold[0] + gold[1], strict=True):
        assert f.dtype == np.float32
        np.testing.assert_allclose(f, e, rtol=0, atol=2e-6 * max(1, np.abs(e).max()))


@pytest.mark.skipif(not device.JIT, reason="threads belong to compiled kernels")
@every_kind
def test_the_same_bits_for_one_thread_and_for_all(kind, monkeypatch):
    monkeypatch.setattr(device, "PARALLEL_ABOVE", 0)
    arrays, lengths, gs = problem(kind, 13, 5, 20, np.float32)
    before, results = device.get_num_threads(), []
    try:
        for threads in (1, before):
            device.set_num_threads(threads)
            results.append(run(AttentionGRUScan(*kind), arrays, lengths, gs))
    finally:
        device.set_num_threads(before)
    for one, two in zip(results[0][0] + results[0][1], results[1][0] + results[1][1], strict=True):
        assert one.tobytes() == two.tobytes()


def test_memory():
    """Without a backward pass nothing of a step is kept but its output; with one: the gates, r * h and the state."""
    b, t, d = 4, 500, 32
    arrays, _, _ = problem(KINDS[0], b, t, d, np.float32, padded=False)
    unit = b * t * d * 4
    for requires_grad, parts in ((False, 1), (True, 5)):
        inputs = [Tensor(a, requires_grad=requires_grad) for a in arrays]
        AttentionGRUScan()(*inputs, None)
        tracemalloc.start()
        outs = AttentionGRUScan()(*inputs, None)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert outs[0].shape == (b, t, d) and peak < (parts + 0.2) * unit


def test_a_nan_stays_in_its_sequence():
    arrays, _, _ = problem(KINDS[0], 5, 3, 4, padded=False)
    arrays[1][2, 1] = np.nan
    hs = AttentionGRUScan()(*map(Tensor, arrays), None)[0].numpy()
    assert np.isnan(hs[2, 1:]).all() and np.isfinite(np.delete(hs, 2, axis=0)).all() and np.isfinite(hs[2, 0]).all()


def test_errors():
    x, a, h, w, b = (Tensor(np.ones(s)) for s in ((2, 3, 8), (2, 3), (2, 4), (8, 4), (8,)))
    with pytest.raises(ShapeError, match=r"^attention_gru: expected x \(B,T,2D\).* got x \(2, 3, 8\), h0 \(3, 4\)"):
        AttentionGRUScan()(x, a, Tensor(np.ones((3, 4))), w, b, None)
    with pytest.raises(ShapeError, match=r"^attention_gru: expected x \(B,T,3D\).* got x \(2, 3, 8\)"):
        AttentionGRUScan("blend")(x, a, h, w, b, None)
    with pytest.raises(ShapeError, match=r"^attention_gru: expected alpha \(B,T\) = \(2, 3\), .* got \(2, 3, 1\)"):
        AttentionGRUScan()(x, a.reshape(2, 3, 1), h, w, b, None)
    with pytest.raises(TypeError, match="^attention_gru: expected floats of one type, got x float64, alpha float32"):
        AttentionGRUScan()(x, a.to("float32"), h, w, b, None)
    with pytest.raises(ValueError, match="^attention_gru: expected lengths between 0 and T = 3, got 1 to 4"):
        AttentionGRUScan()(x, a, h, w, b, Tensor([1, 4]))
    for arguments, message in ((("mix",), "expected mode 'replace'"), (("replace", "never"), "expected reset 'after'"),
                               (("blend", "after", "turn"), "expected update 'keep'"),
                               (("replace", "after", "keep"), "which has no update gate, got 'keep'")):
        with pytest.raises(ValueError, match=f"^attention_gru: .*{message}"):
            AttentionGRUScan(*arguments)
