"""RNN, GRU and LSTM over a sequence: against PyTorch, against loops, against the readable twin, and padding."""
import numpy as np
import pytest

from tinyattn import Tensor, device
from tinyattn.autograd import fused, grad
from tinyattn.ops.broadcast import ShapeError
from tinyattn.ops.gru import GRUScan
from tinyattn.ops.lstm import LSTMScan
from tinyattn.ops.rnn import RNNScan

LAYERS = {"rnn": (RNNScan, 1, 1), "gru": (GRUScan, 3, 1), "lstm": (LSTMScan, 4, 2)}  # op, gates, states
every_layer = pytest.mark.parametrize("layer", LAYERS)
both_ways = pytest.mark.parametrize("reverse", [False, True])


def problem(layer, b, t, d, dtype=np.float64, seed=0, padded=True):
    """(x, states..., w_hh, b_hh), lengths, gradients of the outputs."""
    _, gates, states = LAYERS[layer]
    rng = np.random.default_rng(seed)
    arrays = [rng.normal(size=(b, t, gates * d)), *rng.normal(size=(states, b, d)),
              rng.normal(size=(gates * d, d)) / np.sqrt(d), rng.normal(size=gates * d)]
    lengths = rng.integers(1, t + 1, size=b) if padded else None
    gs = [rng.normal(size=(b, t, d)), *rng.normal(size=(states, b, d))]
    return [a.astype(dtype) for a in arrays], lengths, [g.astype(dtype) for g in gs]


def run(op, arrays, lengths, gs, create_graph=False):
    """Outputs and the gradients of all float inputs, as arrays."""
    inputs = [Tensor(a, requires_grad=True) for a in arrays]
    outs = op(*inputs, None if lengths is None else Tensor(lengths))
    grads = grad(list(outs), inputs, [Tensor(g) for g in gs], create_graph=create_graph, allow_unused=True)
    return [o.numpy() for o in outs], [np.zeros(a.shape) if g is None else g.numpy() for a, g in zip(arrays, grads, strict=True)]


def close(found, expected, tolerance=1e-10):
    for f, e in zip(found[0] + found[1], expected[0] + expected[1], strict=True):
        assert f.shape == e.shape
        np.testing.assert_allclose(f, e, rtol=tolerance, atol=tolerance)


def in_torch(layer, arrays, lengths, gs, reverse, **options):
    """The same by torch.nn, whose input weights are set to the identity: its input is our projected one."""
    torch = pytest.importorskip("torch")
    _, gates, states = LAYERS[layer]
    x, w, b = arrays[0], arrays[-2], arrays[-1]
    d = w.shape[1]
    module = getattr(torch.nn, layer.upper())(gates * d, d, batch_first=True, bidirectional=True, **options).double()
    end, way = ("_reverse", 1) if reverse else ("", 0)
    own = dict(module.named_parameters())
    with torch.no_grad():
        own["weight_ih_l0" + end].copy_(torch.eye(gates * d))
        own["bias_ih_l0" + end].zero_()
        own["weight_hh_l0" + end].copy_(torch.tensor(w))
        own["bias_hh_l0" + end].copy_(torch.tensor(b))
    inputs = [torch.tensor(a, requires_grad=True) for a in (x, *arrays[1:1 + states])]
    first = [torch.stack([s, s]) for s in inputs[1:]]
    given = inputs[0]
    if lengths is not None:
        given = torch.nn.utils.rnn.pack_padded_sequence(given, torch.tensor(lengths), batch_first=True, enforce_sorted=False)
    hs, last = module(given, first[0] if states == 1 else tuple(first))
    if lengths is not None:
        hs, _ = torch.nn.utils.rnn.pad_packed_sequence(hs, batch_first=True, total_length=x.shape[1])
    outs = [hs[..., way * d:(way + 1) * d], *[s[way] for s in ([last] if states == 1 else last)]]
    sum((o * torch.tensor(g)).sum() for o, g in zip(outs, gs, strict=True)).backward()
    grads = [i.grad for i in inputs] + [own["weight_hh_l0" + end].grad, own["bias_hh_l0" + end].grad]
    return [o.detach().numpy() for o in outs], [g.numpy() for g in grads]


@every_layer
@both_ways
@pytest.mark.parametrize("size", [(3, 5, 4), (1, 1, 1), (5, 7, 9), (33, 6, 70)])
def test_as_pytorch(layer, reverse, size):
    if not device.JIT and size[0] > 5:
        pytest.skip("slow without the JIT")
    for padded in (True, False):
        arrays, lengths, gs = problem(layer, *size, padded=padded)
        close(run(LAYERS[layer][0](reverse=reverse), arrays, lengths, gs), in_torch(layer, arrays, lengths, gs, reverse))


@both_ways
def test_relu_as_pytorch(reverse):
    arrays, lengths, gs = problem("rnn", 4, 5, 6)
    close(run(RNNScan(reverse, "relu"), arrays, lengths, gs), in_torch("rnn", arrays, lengths, gs, reverse, nonlinearity="relu"))


@pytest.mark.parametrize("reset", ["after", "before"])
@pytest.mark.parametrize("update", ["keep", "write"])
def test_gru_conventions_by_numbers(reset, update):
    """One unit, two steps, the formulas of the file written out once more."""
    s, (u_r, u_z, u_n), (b_r, b_z, b_n) = lambda v: 1 / (1 + np.exp(-v)), (0.5, -1.5, 0.8), (0.1, 0.2, -0.3)
    h, hs = 0.7, []
    for x_r, x_z, x_n in [(0.3, -0.4, 0.9), (-1.0, 0.6, 0.2)]:
        r, z = s(x_r + u_r * h + b_r), s(x_z + u_z * h + b_z)
        n = np.tanh(x_n + r * (u_n * h + b_n)) if reset == "after" else np.tanh(x_n + u_n * (r * h) + b_n)
        h = z * h + (1 - z) * n if update == "keep" else (1 - z) * h + z * n
        hs.append(h)
    found, last = GRUScan(reset=reset, update=update)(
        Tensor([[[0.3, -0.4, 0.9], [-1.0, 0.6, 0.2]]], dtype="float64"), Tensor([[0.7]], dtype="float64"),
        Tensor([[u_r], [u_z], [u_n]], dtype="float64"), Tensor([b_r, b_z, b_n], dtype="float64"), None)
    np.testing.assert_allclose(found.numpy()[0, :, 0], hs, rtol=1e-14)
    np.testing.assert_allclose(last.numpy(), [[h]], rtol=1e-14)


@every_layer
def test_fused_is_its_twin(layer):
    op = LAYERS[layer][0]
    rng = np.random.default_rng(1)
    for attributes, inputs in op.samples(rng):
        arrays, lengths = list(inputs[:-1]), inputs[-1]
        b, t, d = arrays[0].shape[0], arrays[0].shape[1], arrays[1].shape[1]
        gs = [rng.normal(size=(b, t, d))] + [rng.normal(size=(b, d)) for _ in arrays[1:-2]]
        fast = run(op(**attributes), arrays, lengths, gs)
        close(run(op(**attributes), arrays, lengths, gs, create_graph=True), fast, 1e-12)
        with fused("never"):
            close(run(op(**attributes), arrays, lengths, gs), fast, 1e-12)


@every_layer
def test_fused_gradients_by_differences(layer):
    op, _, states = LAYERS[layer]
    arrays, lengths, gs = problem(layer, 2, 3, 2)
    options = [{"reset": r, "update": u} for r in ("after", "before") for u in ("keep", "write")] if layer == "gru" else [{}]

    def value(o):
        outs = op(**o)(*map(Tensor, arrays), Tensor(lengths))
        return sum((out.numpy() * g).sum() for out, g in zip(outs, gs, strict=True))
    for o in options:
        _, grads = run(op(**o), arrays, lengths, gs)
        for a, g in zip(arrays, grads, strict=True):
            for i in np.ndindex(*a.shape):
                old = a[i]
                a[i] = old + 1e-5
                up = value(o)
                a[i] = old - 1e-5
                down = value(o)
                a[i] = old
                assert abs((up - down) / 2e-5 - g[i]) < 1e-8


@every_layer
@both_ways
def test_a_padded_batch_is_each_sequence_alone(layer, reverse):
    op = LAYERS[layer][0](reverse=reverse)
    arrays, _, gs = problem(layer, 4, 6, 3)
    lengths = np.array([6, 2, 0, 5])
    outs, grads = run(op, arrays, lengths, gs)
    sums = [0, 0]
    for i, n in enumerate(lengths):
        alone = [arrays[0][i:i + 1, :n], *[s[i:i + 1] for s in arrays[1:-2]], *arrays[-2:]]
        outs_1, grads_1 = run(LAYERS[layer][0](reverse=reverse), alone, None, [gs[0][i:i + 1, :n], *[g[i:i + 1] for g in gs[1:]]])
        np.testing.assert_allclose(outs[0][i, :n], outs_1[0][0], rtol=1e-12, atol=1e-14)
        assert (outs[0][i, n:] == 0).all() and (grads[0][i, n:] == 0).all()
        np.testing.assert_allclose(grads[0][i, :n], grads_1[0][0], rtol=1e-12, atol=1e-13)
        for whole, one in zip(outs[1:] + grads[1:-2], outs_1[1:] + grads_1[1:-2], strict=True):
            np.testing.assert_allclose(whole[i], one[0], rtol=1e-12, atol=1e-13)
        sums = [s + g for s, g in zip(sums, grads_1[-2:], strict=True)]
    for whole, total in zip(grads[-2:], sums, strict=True):
        np.testing.assert_allclose(whole, total, rtol=1e-11, atol=1e-13)
    np.testing.assert_array_equal(outs[1][2], arrays[1][2])  # a sequence of length 0 keeps its first state


@every_layer
def test_step_by_step_is_the_whole(layer):
    """A decoder runs the op with T = 1 in a loop."""
    op = LAYERS[layer][0]
    arrays, _, _ = problem(layer, 3, 4, 5, padded=False)
    x, *states, w, b = [Tensor(a, requires_grad=True) for a in arrays]
    whole = op()(x, *states, w, b, None)
    now = states
    for t in range(4):
        out, *now = op()(x[:, t:t + 1], *now, w, b, None)
        np.testing.assert_allclose(out.numpy()[:, 0], whole[0].numpy()[:, t], rtol=1e-12, atol=1e-14)
    loop = grad([s.sum() for s in now], [x, *states, w, b])
    once = grad([s.sum() for s in whole[1:]], [x, *states, w, b])
    for a, c in zip(loop, once, strict=True):
        np.testing.assert_allclose(a.numpy(), c.numpy(), rtol=1e-12, atol=1e-14)


@every_layer
def test_without_recording_and_from_strided_arrays(layer):
    arrays, lengths, _ = problem(layer, 3, 4, 5)
    recorded = LAYERS[layer][0]()(*[Tensor(a, requires_grad=True) for a in arrays], Tensor(lengths))
    strided = []
    for a in arrays:
        wide = np.zeros([2 * n for n in a.shape])
        wide[tuple(slice(None, None, 2) for _ in a.shape)] = a
        strided.append(wide[tuple(slice(None, None, 2) for _ in a.shape)])
    op = LAYERS[layer][0]()
    op.recorded = False
    for o, p in zip(recorded, op.cpu(*strided, lengths), strict=True):
        assert o.numpy().tobytes() == p.tobytes()


@every_layer
def test_only_what_is_asked(layer):
    arrays, lengths, gs = problem(layer, 2, 3, 4)
    _, all_of_them = run(LAYERS[layer][0](), arrays, lengths, gs)
    for i in range(len(arrays)):
        inputs = [Tensor(a, requires_grad=j == i) for j, a in enumerate(arrays)]
        outs = LAYERS[layer][0]()(*inputs, Tensor(lengths))
        (one,) = grad(list(outs), [inputs[i]], [Tensor(g) for g in gs])
        assert one.numpy().tobytes() == all_of_them[i].tobytes()


@every_layer
def test_float32_is_close_to_float64(layer):
    arrays, lengths, gs = problem(layer, 5, 20, 17)
    gold = run(LAYERS[layer][0](), arrays, lengths, gs)
    found = run(LAYERS[layer][0](), [a.astype("f") for a in arrays], lengths, [g.astype("f") for g in gs])
    for f, e in zip(found[0] + found[1], gold[0] + gold[1], strict=True):
        assert f.dtype == np.float32
        np.testing.assert_allclose(f, e, rtol=0, atol=2e-6 * max(1, np.abs(e).max()))


@pytest.mark.skipif(not device.JIT, reason="threads belong to compiled kernels")
@every_layer
def test_the_same_bits_for_one_thread_and_for_all(layer, monkeypatch):
    monkeypatch.setattr(device, "PARALLEL_ABOVE", 0)
    arrays, lengths, gs = problem(layer, 13, 5, 20, np.float32)
    before, results = device.get_num_threads(), []
    try:
        for threads in (1, before):
            device.set_num_threads(threads)
            results.append(run(LAYERS[layer][0](), arrays, lengths, gs))
    finally:
        device.set_num_threads(before)
    for one, two in zip(results[0][0] + results[0][1], results[1][0] + results[1][1], strict=True):
        assert one.tobytes() == two.tobytes()


def test_a_nan_stays_in_its_sequence():
    arrays, _, _ = problem("gru", 5, 3, 4, padded=False)
    arrays[0][2, 1, 0] = np.nan
    hs, _ = GRUScan()(*map(Tensor, arrays), None)
    assert np.isnan(hs.numpy()[2, 1:]).any() and np.isfinite(np.delete(hs.numpy(), 2, axis=0)).all()
    assert np.isfinite(hs.numpy()[2, 0]).all()
    assert np.isnan(RNNScan(nonlinearity="relu")(Tensor([[[np.nan]]]), Tensor([[0.0]]), Tensor([[1.0]]), None, None)[0].item())


def test_errors_name_the_op_and_the_shapes():
    x, h, w, b = Tensor(np.ones((2, 3, 12))), Tensor(np.ones((2, 4))), Tensor(np.ones((12, 4))), Tensor(np.ones(12))
    with pytest.raises(ShapeError, match=rf"^{GRUScan.name}: expected x \(B,T,3D\).* got x \(2, 3, 12\), h0 \(3, 4\)"):
        GRUScan()(x, Tensor(np.ones((3, 4))), w, b, None)
    with pytest.raises(ShapeError, match=rf"^{LSTMScan.name}: .*c0 \(2, 4\)"):
        LSTMScan()(x, h, h, w, b, None)
    with pytest.raises(ValueError, match=rf"^{GRUScan.name}: expected lengths between 0 and T = 3, got 1 to 4"):
        GRUScan()(x, h, w, b, Tensor([1, 4]))
    with pytest.raises(TypeError, match=rf"^{GRUScan.name}: expected integer lengths"):
        GRUScan()(x, h, w, b, Tensor([1.0, 2.0]))
    with pytest.raises(TypeError, match=rf"^{GRUScan.name}: expected floats of one type"):
        GRUScan()(x, Tensor(np.ones((2, 4)), dtype="float32" if x.dtype == np.float64 else "float64"), w, b, None)
    with pytest.raises(ValueError, match="reset 'after'"):
        GRUScan(reset="never")
