"""Modules: against PyTorch in float64, padding, tied weights, state dicts, names; every parameter of every module is reached."""
import importlib
import pkgutil

import numpy as np
import pytest

from tinyattn import models, nn, random
from tinyattn.autograd import no_grad
from tinyattn.nn import GRU, LSTM, RNN, Dropout, Embedding, GRUCell, LayerNorm, Linear, Module, Parameter, init
from tinyattn.ops.broadcast import ShapeError
from tinyattn.program import Program
from tinyattn.tensor import Tensor

F64 = np.float64
for _, file, _ in pkgutil.walk_packages(models.__path__, "tinyattn.models."):  # so that the registry knows their modules
    importlib.import_module(file)


@pytest.fixture(autouse=True)
def same_numbers():
    random.manual_seed(0)


def projected(module, inputs, seed=1, **options):
    """The outputs of a module as arrays, and the gradients of a fixed random mixture of them for parameters and inputs."""
    flat = [x for x in _flat(inputs) if isinstance(x, Tensor) and x.dtype.kind == "f"]
    for t in [*flat, *module.parameters()]:
        t.grad = None
    for t in flat:
        t.requires_grad_()
    outs = nn.outputs_of(module(*inputs, **options))
    rng = np.random.default_rng(seed)
    sum([(o * rng.normal(size=o.shape)).sum() for o in outs]).backward()
    grads = {n: p.grad.numpy() for n, p in module.named_parameters() if p.grad is not None}
    return [o.numpy() for o in outs], grads, [None if t.grad is None else t.grad.numpy() for t in flat]


def _flat(x):
    return [t for part in x for t in _flat(part)] if isinstance(x, (tuple, list)) else [x]


def close(mine, theirs, tolerance=1e-10):
    np.testing.assert_allclose(mine, theirs, rtol=tolerance, atol=tolerance)


# ---------------------------------------------------------------------------------------------------------------------
# every module
# ---------------------------------------------------------------------------------------------------------------------
def test_the_registry_knows_the_modules():
    assert {"nn.layers.Linear", "nn.recurrent.GRU", "nn.recurrent.LSTMCell"} <= set(Module.registry)


@pytest.mark.parametrize("name", sorted(Module.registry))
def test_every_parameter_gets_a_gradient(name):
    module, inputs = nn.example_of(Module.registry[name], np.random.default_rng(0))
    parameters = dict(module.named_parameters())
    if not parameters:
        return
    _, grads, _ = projected(module, inputs)
    for n, p in parameters.items():
        assert n in grads, f"{name}: {n} gets no gradient"
        assert grads[n].shape == p.shape and grads[n].dtype == p.dtype
        if n in module.null:
            assert np.abs(grads[n]).max() < 1e-10
        else:
            assert np.abs(grads[n]).max() > 1e-6, f"{name}: the gradient of {n} is all zero"


@pytest.mark.parametrize("name", sorted(Module.registry))
def test_the_gradients_are_those_of_central_differences(name):
    module, inputs = nn.example_of(Module.registry[name], np.random.default_rng(0))
    _, grads, at_inputs = projected(module, inputs)
    rng, eps = np.random.default_rng(1), 1e-6
    mixtures = [rng.normal(size=o.shape) for o in nn.outputs_of(module(*inputs))]

    def loss():
        with no_grad():
            return sum((o.numpy() * r).sum() for o, r in zip(nn.outputs_of(module(*inputs)), mixtures, strict=True))

    floats = [x for x in _flat(inputs) if isinstance(x, Tensor) and x.dtype.kind == "f"]
    pairs = [(p, grads[n]) for n, p in module.named_parameters()] + list(zip(floats, at_inputs, strict=True))
    for t, g in pairs:
        flat = t.array.reshape(-1)
        for i in rng.permutation(flat.size)[:4]:
            before = flat[i]
            flat[i] = before + eps
            up = loss()
            flat[i] = before - eps
            down = loss()
            flat[i] = before
            assert g.reshape(-1)[i] == pytest.approx((up - down) / (2 * eps), rel=1e-5, abs=1e-7), f"{name}: {t.name}"


@pytest.mark.parametrize("name", sorted(Module.registry))
def test_a_state_dict_goes_out_and_in(name):
    module, inputs = nn.example_of(Module.registry[name], np.random.default_rng(0))
    other, _ = nn.example_of(Module.registry[name], np.random.default_rng(5))
    state = module.state_dict()
    assert other.load_state_dict(state) == ([], [])
    for a, b in zip(nn.outputs_of(module(*inputs)), nn.outputs_of(other(*inputs)), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    for array in state.values():
        array[...] = 0  # copies: the module does not see it
    for key, array in module.state_dict().items():
        np.testing.assert_array_equal(array, other.state_dict()[key])


def test_a_module_of_the_package_needs_an_example():
    with pytest.raises(TypeError, match="example"):
        type("Bare", (Module,), {"__module__": "tinyattn.models.bare"})
    assert not any("bare" in name for name in Module.registry)


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
    for a, b in zip([*outs, *at_inputs], [*(e.detach() for e in expected), tx.grad, *(t.grad for t in ts)], strict=True):
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
    ("after", "keep", 0.818407), ("before", "keep", 0.814345), ("after", "write", 0.891171), ("before", "write", 0.871052)])
def test_gru_conventions_by_numbers(reset, update, expected):
    """One unit, x = 0.3, h = 0.8, all weights 1: r = sigmoid(1.1), z = sigmoid(1.6), n = tanh(1.3 + r 0.3) or tanh(0.8 + r 0.8)."""
    cell = GRUCell(1, 1, reset=reset, update=update).to(F64)
    cell.load_state_dict({"weight_ih": np.ones((3, 1)), "weight_hh": np.ones((3, 1)), "bias_ih": np.array([0.0, 0.5, 1.0]),
                          "bias_hh": np.array([0.0, 0.0, -0.5])})
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
        alone = run(x[i:i + 1, :n], [s[:, i:i + 1] for s in states], None, mix_out[i:i + 1, :n], [m[:, i:i + 1] for m in mix_last])
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
    (lambda: GRU(4, 3, layers=2)(np.zeros((2, 5, 4)), np.zeros((1, 2, 3))), r"state h \(L,B,D\) = \(2, 2, 3\), got \(1, 2, 3\)"),
    (lambda: LSTM(4, 3)(np.zeros((2, 5, 4)), np.zeros((1, 2, 3))), r"state h and c \(L,B,D\) = \(1, 2, 3\), got \(1, 2, 3\)"),
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
    lambda: RNN(4, 3, nonlinearity="gelu"), lambda: Linear(2.5, 3), lambda: Dropout(1.5), lambda: Embedding(3, 2, padding=3)])
def test_options_that_cannot_be_used_raise(call):
    with pytest.raises(ValueError, match="expected|there is one layer"):
        call()


# ---------------------------------------------------------------------------------------------------------------------
# the other layers
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["Linear", "LayerNorm"])
def test_layers_are_pytorchs(kind):
    torch = pytest.importorskip("torch")
    sizes = (4, 3) if kind == "Linear" else (4,)
    mine, theirs = getattr(nn, kind)(*sizes).to(F64), getattr(torch.nn, kind)(*sizes, dtype=torch.float64)
    rng = np.random.default_rng(0)
    state = {k: rng.normal(size=v.shape) for k, v in mine.state_dict().items()}
    mine.load_state_dict(state)
    theirs.load_state_dict({k: torch.tensor(v) for k, v in state.items()})
    x = rng.normal(size=(2, 5, 4))
    (out,), grads, (at_x,) = projected(mine, (Tensor(x),))
    tx = torch.tensor(x, requires_grad=True)
    expected = theirs(tx)
    (expected * torch.tensor(np.random.default_rng(1).normal(size=out.shape))).sum().backward()
    close(out, expected.detach().numpy())
    close(at_x, tx.grad.numpy())
    for name, p in theirs.named_parameters():
        close(grads[name], p.grad.numpy())


def test_embedding_is_pytorchs_and_padding_learns_nothing():
    torch = pytest.importorskip("torch")
    mine, theirs = Embedding(6, 3, padding=0).to(F64), torch.nn.Embedding(6, 3, padding_idx=0, dtype=torch.float64)
    assert not mine.weight.numpy()[0].any()
    mine.load_state_dict({k: v.numpy() for k, v in theirs.state_dict().items()})
    ids = np.array([[1, 5, 0, 1], [0, 1, 2, 2]])
    (out,), grads, _ = projected(mine, (ids,))
    expected = theirs(torch.tensor(ids))
    (expected * torch.tensor(np.random.default_rng(1).normal(size=out.shape))).sum().backward()
    close(out, expected.detach().numpy())
    close(grads["weight"], theirs.weight.grad.numpy())
    assert not grads["weight"][0].any() and grads["weight"][1].any()
    with pytest.raises(IndexError, match="id 6"):
        mine(np.array([6]))


def test_dropout_acts_in_training_alone():
    x, layer = Tensor(np.ones((100, 100))), Dropout(0.25)
    out = layer(x).numpy()
    assert set(np.unique(out)) == {0.0, 1 / 0.75} and abs((out == 0).mean() - 0.25) < 0.02
    assert not np.array_equal(out, layer(x).numpy())
    np.testing.assert_array_equal(layer.eval()(x).numpy(), x.numpy())
    random.manual_seed(4)
    first = layer.train()(x).numpy()
    random.manual_seed(4)
    np.testing.assert_array_equal(first, layer(x).numpy())


def test_dropout_between_recurrent_layers_in_training_alone():
    plain, dropped = GRU(3, 4, layers=2), GRU(3, 4, layers=2, dropout=0.5)
    dropped.load_state_dict(plain.state_dict())
    x = np.random.default_rng(0).normal(size=(2, 5, 3))
    assert not np.allclose(plain(x)[0].numpy(), dropped(x)[0].numpy())
    close(plain(x)[1].numpy()[0], dropped(x)[1].numpy()[0])  # the lower layer comes before it
    np.testing.assert_array_equal(plain(x)[0].numpy(), dropped.eval()(x)[0].numpy())


# ---------------------------------------------------------------------------------------------------------------------
# Module
# ---------------------------------------------------------------------------------------------------------------------
class Tied(Module):
    def __init__(self):
        self.table = Embedding(5, 4)
        self.layers = [Linear(4, 4), {"norm": LayerNorm(4)}]
        self.out = Linear(4, 5, bias=False)
        self.out.weight = self.table.weight
        self.scale = Tensor([2.0])
        self._mask = Tensor([True])
        self.words = {"a": 0, "b": 1}

    def forward(self, ids):
        return self.out(self.layers[1]["norm"](self.layers[0](self.table(ids)))) * self.scale


NAMES = ["table.weight", "layers.0.weight", "layers.0.bias", "layers.1.norm.weight", "layers.1.norm.bias"]


def test_names_and_tied_weights():
    model = Tied()
    assert [n for n, _ in model.named_parameters()] == NAMES == [p.name for p in model.parameters()]
    assert list(model.state_dict()) == [*NAMES, "scale"]
    assert model.number_of_parameters() == 20 + 20 + 8
    assert [n for n, _ in model.named_modules()] == ["", "table", "layers.0", "layers.1.norm", "out"]
    model.to(F64)
    assert model.out.weight is model.table.weight and model.scale.dtype == F64 and model._mask.dtype == np.bool_
    ids = np.array([0, 3])
    (both,), grads, _ = projected(model, (ids,))
    free = Tied().to(F64)  # the same numbers in two Tensors: their gradients add up to that of the one
    free.out.weight = Parameter(np.zeros((5, 4)), dtype=F64)
    state = model.state_dict()
    free.load_state_dict({**state, "out.weight": state["table.weight"]})
    (apart,), parts, _ = projected(free, (ids,))
    close(both, apart)
    close(grads["table.weight"], parts["table.weight"] + parts["out.weight"])
    assert parts["table.weight"].any() and parts["out.weight"].any()


def test_loading_names_what_is_wrong_and_changes_nothing():
    model = Tied()
    before = model.state_dict()
    good = {k: v + 1 for k, v in before.items()}
    bad = {**good, "layers.0.bias": np.zeros(3), "extra": np.zeros(1)}
    del bad["scale"]
    with pytest.raises(ValueError, match=r"Tied.*layers.0.bias has shape \(4,\), got \(3,\); missing scale; unexpected extra"):
        model.load_state_dict(bad)
    with pytest.raises(ValueError, match="table.weight and out.weight are one tied"):
        model.load_state_dict({**good, "out.weight": good["table.weight"] + 1})
    with pytest.raises(ValueError, match="scale is float32, got <U1"):
        model.load_state_dict({**good, "scale": np.array(["x"])})
    for name, array in model.state_dict().items():
        np.testing.assert_array_equal(array, before[name])
    assert model.load_state_dict({**good, "out.weight": good["table.weight"]}) == ([], [])
    close(model.out.weight.numpy(), good["table.weight"])
    part = {"out.weight": before["table.weight"], "extra": np.zeros(1)}
    assert model.load_state_dict(part, strict=False) == ([*NAMES[1:], "scale"], ["extra"])
    close(model.table.weight.numpy(), before["table.weight"])


def test_loading_is_seen_by_a_graph_that_needs_the_old_values():
    layer = Linear(2, 2)
    loss = (layer(np.ones((1, 2))) ** 2).sum()
    layer.load_state_dict(layer.state_dict())
    with pytest.raises(RuntimeError, match="weight.*changed in place"):
        loss.backward()


def test_a_frozen_parameter_is_saved_and_not_trained():
    layer = Linear(2, 2)
    layer.weight.requires_grad_(False)
    assert [n for n, _ in layer.named_parameters()] == ["bias"] and list(layer.state_dict()) == ["weight", "bias"]


def test_a_carried_result_is_no_parameter():
    layer = Linear(2, 2)
    layer.state = layer(np.ones((1, 2)))
    assert [n for n, _ in layer.named_parameters()] == ["weight", "bias"]


def test_train_and_eval_reach_every_part():
    model = Tied()
    model.eval()
    assert not any(m.training for m in model.modules())
    model.train()
    assert all(m.training for m in model.modules()) and len(list(model.modules())) == 5


def test_to_keeps_the_tensors_and_converts_gradients():
    layer = Linear(2, 2)
    layer(np.ones((1, 2))).sum().backward()
    tensors = list(layer.parameters())
    layer.to(F64)
    assert all(a is b for a, b in zip(tensors, layer.parameters(), strict=True))
    assert {t.dtype for t in tensors} == {t.grad.dtype for t in tensors} == {np.dtype(F64)}
    for wrong in (np.int64, "int32"):
        with pytest.raises(TypeError, match="Linear.to"):
            layer.to(wrong)
    layer.zero_grad()
    assert all(t.grad is None for t in tensors)


def test_pictures_show_modules_as_boxes():
    program = Program.of(Tied()(np.array([1, 2])))
    assert {"Tied", "Tied/table", "Tied/layers.0", "Tied/layers.1.norm", "Tied/out"} <= set(program.scopes())
    assert {v.name for v in program.values if v.kind == "parameter"} == set(NAMES)


def test_repr_shows_shapes_and_sizes():
    text = repr(Tied())
    assert "Tied()" in text and "  table: Embedding(vocabulary=5, width=4, padding=None): weight (5, 4)" in text
    assert "  layers.1.norm: LayerNorm(" in text and text.endswith("48 parameters")
    assert "reset='after'" in repr(GRU(2, 3))


def test_forward_is_asked_for():
    with pytest.raises(NotImplementedError, match="needs `forward`"):
        Module()()


# ---------------------------------------------------------------------------------------------------------------------
# first values
# ---------------------------------------------------------------------------------------------------------------------
def test_first_values():
    assert np.abs(init.uniform((50, 50), 0.1)).max() <= 0.1 < np.abs(init.uniform((50, 50), 0.2)).max()
    assert init.normal((200, 200), 3.0).std() == pytest.approx(3, rel=0.05)
    assert np.abs(init.xavier((30, 24))).max() == pytest.approx((6 / 54) ** 0.5, rel=0.02)
    for rows, columns in [(4, 6), (6, 4), (5, 5)]:
        q = init.orthogonal((rows, columns)).astype(F64)
        close(q @ q.T if rows < columns else q.T @ q, np.eye(min(rows, columns)), 1e-6)
    gates = init.orthogonal((9, 3), gates=3)
    close(gates[3:6] @ gates[3:6].T, np.eye(3), 1e-6)
    assert gates.dtype == init.zeros(2).dtype == np.float32
    for call in (lambda: init.xavier((3,)), lambda: init.orthogonal((4, 3), gates=3)):
        with pytest.raises(ValueError, match="expected a shape"):
            call()


def test_first_values_come_from_the_packages_generator():
    np.random.seed(0)
    before = np.random.get_state()[1].copy()
    random.manual_seed(3)
    first = GRU(2, 3).state_dict()
    random.manual_seed(3)
    for a, b in zip(first.values(), GRU(2, 3).state_dict().values(), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(before, np.random.get_state()[1])
    state = random.get_state()
    nn.example_of(GRU, np.random.default_rng(0))
    assert random.get_state() == state
