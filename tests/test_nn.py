"""Modules: names, tied weights, state dicts; the layers against PyTorch; every parameter of every module is reached."""
import importlib
import pkgutil

import numpy as np
import pytest

from tinyattn import models, nn, random
from tinyattn.autograd import no_grad
from tinyattn.nn import GRU, Dropout, Embedding, LayerNorm, Linear, Module, Parameter, init
from tinyattn.program import Program
from tinyattn.tensor import Tensor

F64 = np.float64
for _, file, _ in pkgutil.walk_packages(models.__path__, "tinyattn.models."):  # the registry knows what was imported
    importlib.import_module(file)


@pytest.fixture(autouse=True)
def same_numbers():
    random.manual_seed(0)


def projected(module, inputs, seed=1, **options):
    """The outputs of a module as arrays, and what a fixed random mixture of them sends to parameters and inputs."""
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
    nulls = {f"{path}.{n}" if path else n for path, part in module.named_modules() for n in part.null}
    _, grads, _ = projected(module, inputs)
    for n, p in parameters.items():
        assert n in grads, f"{name}: {n} gets no gradient"
        assert grads[n].shape == p.shape and grads[n].dtype == p.dtype
        if n in nulls:
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
        g = np.zeros(t.shape) if g is None else g  # an input that nothing depends on
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
    with pytest.raises(ValueError, match=r"Tied.*0.bias has shape \(4,\), got \(3,\); missing scale; unexpected extra"):
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
