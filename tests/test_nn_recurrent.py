"""RNN, GRU, LSTM and their cells: against PyTorch in float64, the conventions of the GRU, padding, shapes."""
import numpy as np
import pytest
from test_nn import F64, close, projected

from tinyattn import nn
from tinyattn.nn import GRU, LSTM, RNN, Dropout, Embedding, GRUCell, LayerNorm, Linear
from tinyattn.ops.broadcast import ShapeError
from tinyattn.tensor import Tensor

# ---------------------------------------------------------------------------------------------------------------------
# recurrent layers and PyTorch
# ---------------------------------------------------------------------------------------------------------------------
OPTIONS = [{}, {"layers": 2}, {"bidirectional": True}, {"layers": 2, "bidirectional": True}, {"bias": False}]


@pytest.mark.parametrize("lengths", [None, [5, 1, 3]])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", ["RNN", "RNN-relu", "GRU", "LSTM"])
def test_recurrent_layers_are_pytorchs(kind, options, lengths):
    torch = pytest.importorskip("torch")
    kind, *more = kind.split("-")
    extra = {"nonlinearity": more[0]} if more else {}
    mine = getattr(nn, kind)(4, 3, **options, **extra).to(F64)
    theirs = getattr(torch.nn, kind)(4, 3, num_layers=options.get("layers", 1), batch_first=True,
                                     bidirectional=options.get("bidirectional", False), bias=options.get("bias", True),
                                     dtype=torch.float64, **extra)
    assert list(theirs.state_dict()) == [n for n, _ in mine.named_parameters()]
    mine.load_state_dict({k: v.numpy() for k, v in theirs.state_dict().items()})
    rng = np.random.default_rng(3)
    count = mine.layers * (1 + mine.bidirectional)
    x, states = rng.normal(size=(3, 5, 4)), [rng.normal(size=(count, 3, 3)) for _ in mine.states]
    outs, grads, at_inputs = projected(mine, (Tensor(x), tuple(Tensor(s) for s in states)), lengths=lengths)

    tx, ts = torch.tensor(x, requires_grad=True), [torch.tensor(s, requires_grad=True) for s in states]
    packed = tx if lengths is None else torch.nn.utils.rnn.pack_padded_sequence(tx, lengths, True, enforce_sorted=False)
    out, last = theirs(packed, tuple(ts) if len(ts) > 1 else ts[0])
    out = out if lengths is None else torch.nn.utils.rnn.pad_packed_sequence(out, batch_first=True)[0]
    expected = [out, *(last if isinstance(last, tuple) else [last])]
    mix = np.random.default_rng(1)
    sum((o * torch.tensor(mix.normal(size=o.shape))).sum() for o in expected).backward()
    for a, b in zip(outs, expected, strict=True):
        close(a, b.detach().numpy())
    for a, b in zip(at_inputs, [tx, *ts], strict=True):
        close(a, b.grad.numpy())
    for name, p in theirs.named_parameters():
        close(grads[name], p.grad.numpy())


@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
def test_weights_go_back_to_pytorch(kind):
    torch = pytest.importorskip("torch")
    mine = getattr(nn, kind)(2, 3, layers=2, bidirectional=True)
    theirs = getattr(torch.nn, kind)(2, 3, num_layers=2, bidirectional=True, batch_first=True)
    theirs.load_state_dict({k: torch.tensor(v) for k, v in mine.state_dict().items()})
    x = np.random.default_rng(0).normal(size=(2, 4, 2)).astype(np.float32)
    with torch.no_grad():
        close(mine(x)[0].numpy(), theirs(torch.tensor(x))[0].numpy(), 1e-5)


@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
def test_cells_are_pytorchs(kind):
    torch = pytest.importorskip("torch")
    mine = getattr(nn, kind + "Cell")(4, 3).to(F64)
    theirs = getattr(torch.nn, kind + "Cell")(4, 3, dtype=torch.float64)
    mine.load_state_dict({k: v.numpy() for k, v in theirs.state_dict().items()})
    rng = np.random.default_rng(0)
    x, states = rng.normal(size=(2, 4)), [rng.normal(size=(2, 3)) for _ in mine.states]
    outs, grads, at_inputs = projected(mine, (Tensor(x), tuple(Tensor(s) for s in states)))
    tx, ts = torch.tensor(x, requires_grad=True), [torch.tensor(s, requires_grad=True) for s in states]
    expected = theirs(tx, tuple(ts) if len(ts) > 1 else ts[0])
    expected = expected if isinstance(expected, tuple) else (expected,)
    mix = np.random.default_rng(1)
    sum((o * torch.tensor(mix.normal(size=o.shape))).sum() for o in expected).backward()
    theirs_all = [*(e.detach() for e in expected), tx.grad, *(t.grad for t in ts)]
    for a, b in zip([*outs, *at_inputs], theirs_all, strict=True):
        close(a, b.numpy())
    for name, p in theirs.named_parameters():
        close(grads[name], p.grad.numpy())
    zero = theirs(tx) if kind != "LSTM" else theirs(tx)[0]
    close(nn.outputs_of(mine(Tensor(x)))[0].numpy(), zero.detach().numpy())


# ---------------------------------------------------------------------------------------------------------------------
# the conventions of the GRU, by numbers and by loops
# ---------------------------------------------------------------------------------------------------------------------
def gru_step(x, h, w, u, b, c, reset, update):
    """One unit after the other, as the formulas of the four conventions stand in the papers."""
    sigmoid = lambda a: 1 / (1 + np.exp(-a))  # noqa: E731
    d = len(h)
    r = sigmoid(w[:d] @ x + b[:d] + u[:d] @ h + c[:d])
    z = sigmoid(w[d:2 * d] @ x + b[d:2 * d] + u[d:2 * d] @ h + c[d:2 * d])
    if reset == "after":
        n = np.tanh(w[2 * d:] @ x + b[2 * d:] + r * (u[2 * d:] @ h + c[2 * d:]))
    else:
        n = np.tanh(w[2 * d:] @ x + b[2 * d:] + u[2 * d:] @ (r * h) + c[2 * d:])
    return z * h + (1 - z) * n if update == "keep" else (1 - z) * h + z * n


@pytest.mark.parametrize("update", ["keep", "write"])
@pytest.mark.parametrize("reset", ["after", "before"])
def test_gru_conventions(reset, update):
    gru, cell = GRU(4, 3, reset=reset, update=update).to(F64), GRUCell(4, 3, reset=reset, update=update).to(F64)
    cell.load_state_dict({k.removesuffix("_l0"): v for k, v in gru.state_dict().items()})
    rng = np.random.default_rng(2)
    x, h0 = rng.normal(size=(2, 5, 4)), rng.normal(size=(1, 2, 3))
    out, _ = gru(Tensor(x), Tensor(h0))
    w, u, b, c = gru.state_dict().values()
    for i in range(2):
        h, state = h0[0, i], Tensor(h0[0, i:i + 1])
        for t in range(5):
            h, state = gru_step(x[i, t], h, w, u, b, c, reset, update), cell(Tensor(x[i:i + 1, t]), state)
            close(out.numpy()[i, t], h, 1e-12)
            close(state.numpy()[0], h, 1e-12)


@pytest.mark.parametrize(("reset", "update", "expected"), [
    ("after", "keep", 0.818407), ("before", "keep", 0.814345),
    ("after", "write", 0.891171), ("before", "write", 0.871052)])
def test_gru_conventions_by_numbers(reset, update, expected):
    """One unit, x = 0.3, h = 0.8, all weights 1: r = sigmoid(1.1), z = sigmoid(1.6), n = tanh(1.3 + r 0.3), and with
    the reset before n = tanh(0.8 + r 0.8)."""
    cell = GRUCell(1, 1, reset=reset, update=update).to(F64)
    cell.load_state_dict({"weight_ih": np.ones((3, 1)), "weight_hh": np.ones((3, 1)),
                          "bias_ih": np.array([0.0, 0.5, 1.0]), "bias_hh": np.array([0.0, 0.0, -0.5])})
    assert cell(Tensor([[0.3]], dtype=F64), Tensor([[0.8]], dtype=F64)).item() == pytest.approx(expected, abs=1e-6)


def test_write_is_keep_with_the_gate_turned_round():
    keep, write = GRU(4, 3).to(F64), GRU(4, 3, update="write").to(F64)
    state = keep.state_dict()
    for array in state.values():
        array[3:6] *= -1
    write.load_state_dict(state)
    x = Tensor(np.random.default_rng(0).normal(size=(2, 6, 4)))
    close(keep(x)[0].numpy(), write(x)[0].numpy(), 1e-13)


# ---------------------------------------------------------------------------------------------------------------------
# padding, sizes, states
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
def test_a_padded_batch_is_each_sample_alone(kind):
    rng = np.random.default_rng(0)
    layer = getattr(nn, kind)(4, 3, layers=2, bidirectional=True).to(F64)
    lengths = [5, 2, 0, 1]
    x, states = rng.normal(size=(4, 5, 4)), [rng.normal(size=(4, 4, 3)) for _ in layer.states]
    mix_out, mix_last = rng.normal(size=(4, 5, 6)), [rng.normal(size=(4, 4, 3)) for _ in layer.states]

    def run(x, states, lengths, mix_out, mix_last):
        x, states = Tensor(x, requires_grad=True), tuple(Tensor(s, requires_grad=True) for s in states)
        out, *last = nn.outputs_of(layer(x, states, lengths=lengths))
        layer.zero_grad()
        sum([(last_ * m).sum() for last_, m in zip(last, mix_last, strict=True)], (out * mix_out).sum()).backward()
        return ([out.numpy(), *[v.numpy() for v in last]], x.grad.numpy(), [s.grad.numpy() for s in states],
                {n: p.grad.numpy() for n, p in layer.named_parameters() if p.grad is not None})

    batch = run(x, states, lengths, mix_out, mix_last)
    total = {n: 0 for n, _ in layer.named_parameters()}
    for i, n in enumerate(lengths):
        alone = run(x[i:i + 1, :n], [s[:, i:i + 1] for s in states], None, mix_out[i:i + 1, :n],
                    [m[:, i:i + 1] for m in mix_last])
        close(batch[0][0][i, :n], alone[0][0][0])
        assert not batch[0][0][i, n:].any() and not batch[1][i, n:].any()
        for a, b in zip(batch[0][1:] + batch[2], alone[0][1:] + alone[2], strict=True):
            close(a[:, i], b[:, 0])
        close(batch[1][i, :n], alone[1][0])
        for name, g in alone[3].items():
            total[name] = total[name] + g
    for name, g in batch[3].items():
        close(g, total[name])


def test_sizes_of_one_and_none():
    for b, t in [(1, 1), (0, 3), (2, 0), (1, 4)]:
        out, (h, c) = LSTM(2, 3, layers=2, bidirectional=True)(np.zeros((b, t, 2)))
        assert out.shape == (b, t, 6) and h.shape == c.shape == (4, b, 3)


def test_a_sequence_in_two_halves():
    gru, x = GRU(2, 3, layers=2).to(F64), Tensor(np.random.default_rng(0).normal(size=(2, 6, 2)))
    whole, last = gru(x)
    first, state = gru(x[:, :3])
    second, end = gru(x[:, 3:], state)
    close(np.concatenate([first.numpy(), second.numpy()], 1), whole.numpy(), 1e-14)
    close(end.numpy(), last.numpy(), 1e-14)


@pytest.mark.parametrize(("call", "message"), [
    (lambda: GRU(4, 3)(np.zeros((2, 5, 3))), r"GRU: expected x \(B,T,I\) with I = 4, got \(2, 5, 3\)"),
    (lambda: RNN(4, 3)(np.zeros((5, 4))), r"RNN: expected x \(B,T,I\)"),
    (lambda: GRU(4, 3, layers=2)(np.zeros((2, 5, 4)), np.zeros((1, 2, 3))),
     r"state h \(L,B,D\) = \(2, 2, 3\), got \(1, 2, 3\)"),
    (lambda: LSTM(4, 3)(np.zeros((2, 5, 4)), np.zeros((1, 2, 3))),
     r"state h and c \(L,B,D\) = \(1, 2, 3\), got \(1, 2, 3\)"),
    (lambda: GRU(4, 3)(np.zeros((2, 5, 4)), lengths=[1, 2, 3]), r"lengths \(B,\) = \(2,\).*got int64 \(3,\)"),
    (lambda: GRU(4, 3)(np.zeros((2, 5, 4)), lengths=[1.0, 2.0]), r"integer lengths"),
    (lambda: GRU(4, 3)(np.zeros((2, 5, 4)), lengths=[1, 6]), r"between 0 and T = 5"),
    (lambda: GRUCell(4, 3)(np.zeros((2, 3))), r"GRUCell: expected x \(B,I\) with I = 4"),
    (lambda: GRUCell(4, 3)(np.zeros((2, 4)), Tensor(np.zeros((1, 3)))), r"state h \(B,D\) = \(2, 3\), got \(1, 3\)"),
    (lambda: Linear(4, 3)(np.zeros((2, 5))), r"affine: expected x"),
    (lambda: LayerNorm(4)(Tensor(np.zeros((2, 1)))), r"LayerNorm: expected x \(..., D\) with D = 4, got \(2, 1\)"),
])
def test_shape_errors_have_letters(call, message):
    with pytest.raises((ShapeError, ValueError), match=message):
        call()


@pytest.mark.parametrize("call", [
    lambda: GRU(4, 3, dropout=0.5), lambda: GRU(0, 3), lambda: GRU(4, 3, reset="never"), lambda: GRU(4, 3, update="x"),
    lambda: RNN(4, 3, nonlinearity="gelu"), lambda: Linear(2.5, 3), lambda: Dropout(1.5),
    lambda: Embedding(3, 2, padding=3)])
def test_options_that_cannot_be_used_raise(call):
    with pytest.raises(ValueError, match="expected|there is one layer"):
        call()


@pytest.mark.parametrize("cell", [nn.RNNCell, nn.GRUCell, nn.LSTMCell])
def test_a_cell_takes_its_state_as_arrays(cell):
    module, rng = cell(3, 2).to(F64), np.random.default_rng(0)
    x, state = rng.normal(size=(4, 3)), [rng.normal(size=(4, 2)) for _ in cell.states]
    wrap = tuple if len(state) > 1 else (lambda s: s[0])
    first, second = (module(x, wrap([kind(s) for s in state])) for kind in (np.asarray, Tensor))
    for a, b in zip(*(out if isinstance(out, tuple) else (out,) for out in (first, second)), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
