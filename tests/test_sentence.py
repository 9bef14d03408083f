"""The sentence networks: padding, penalties, PyTorch's equations, what their pictures show."""
import runpy
from pathlib import Path

import numpy as np
import pytest

import tinyattn as ta
from tinyattn import InputError, Tensor, optim
from tinyattn.functional import cross_entropy
from tinyattn.gradcheck import gradcheck
from tinyattn.models.classify import NETWORKS, network
from tinyattn.models.sentence import CNN, DiSAN, Du, Lin

F64 = np.float64
ROOT = Path(__file__).parent.parent
FLAT = [Lin, DiSAN, CNN]


def ids_of(lengths, seed=0, t=None):
    rng, lengths = np.random.default_rng(seed), np.array(lengths)
    t = t or int(lengths.max())
    ids = rng.integers(1, 9, (*lengths.shape, t))
    return Tensor(np.where(np.arange(t) < lengths[..., None], ids, 0))


def made(cls, **options):
    ta.manual_seed(3)
    return cls(9, 3, 4, 3, **options).to(F64)


@pytest.mark.parametrize("cls, options", [
    (Lin, {"rows": 2}), *((Lin, {"rows": 2, "weight": 0.7, "scale": scale}) for scale in ("sum", "norm")),
    (Du, {"rows": 2, "weight": 0.7}), (DiSAN, {}), (CNN, {"widths": (2, 3)})], ids=str)
def test_gradients_of_the_whole_loss_and_every_parameter_is_learnt(cls, options):
    ta.manual_seed(3)
    model = cls(9, 3, 2, 2, **options).to(F64).train()
    ids = ids_of([[3, 2], [4, 0]] if cls is Du else [[4], [1], [3]])
    targets = Tensor(np.arange(len(ids)) % 3)

    def loss():
        found = cross_entropy(model(ids), targets)
        return found if model.penalty() is None else found + model.penalty()

    parameters = dict(model.named_parameters())
    report = gradcheck(loss, [], parameters=parameters)
    assert report.ok, str(report)
    model.zero_grad()
    loss().backward()
    for name, p in parameters.items():
        assert (np.abs(p.grad.numpy()).max() > 1e-12) != (name in getattr(model, "null", ())), name
    assert not model.embedding.weight.grad.numpy()[0].any()


@pytest.mark.parametrize("cls", FLAT)
def test_padding_changes_nothing(cls):
    model = made(cls)
    ids = ids_of([[7], [1], [4]])
    together = model(ids)
    (together * Tensor(np.arange(9.0).reshape(3, 3))).sum().backward()
    gradients = {name: p.grad.numpy().copy() for name, p in model.named_parameters()}
    model.zero_grad()
    for i, n in enumerate((7, 1, 4)):
        alone = model(Tensor(ids.numpy()[i:i + 1, :, :n]))
        np.testing.assert_allclose(together.numpy()[i], alone.numpy()[0], atol=1e-13)
        (alone * Tensor(np.arange(9.0).reshape(3, 3)[i])).sum().backward()
    for name, p in model.named_parameters():
        np.testing.assert_allclose(gradients[name], p.grad.numpy(), atol=1e-12, err_msg=name)


def test_padding_of_du():
    model, push = made(Du), Tensor(np.arange(6.0).reshape(2, 3))
    ids = ids_of([[3, 5, 2], [4, 0, 0]])
    together = model(ids)
    (together * push).sum().backward()
    gradients = {name: p.grad.numpy().copy() for name, p in model.named_parameters()}
    model.zero_grad()
    for i, one in enumerate((ids.numpy()[:1], ids.numpy()[1:, :1, :4])):
        alone = model(Tensor(one))
        np.testing.assert_allclose(together.numpy()[i], alone.numpy()[0], atol=1e-13)
        (alone * push[i]).sum().backward()
    for name, p in model.named_parameters():
        np.testing.assert_allclose(p.grad.numpy(), gradients[name], atol=1e-12, err_msg=name)
    sentences, words = (a for _, a in model.looks(ids))
    assert (sentences[1, :, 1:] == 0).all() and np.allclose(sentences.sum(-1), 1)
    assert (words[1, 1:] == 0).all() and (words[0, 0, :, 3:] == 0).all()


@pytest.mark.parametrize("cls", [Lin, Du])
def test_the_penalty_is_there_in_training_only(cls):
    ids = ids_of([[5], [3]]) if cls is Lin else ids_of([[5, 2], [3, 0]])
    for weight, scale in ((0.5, "sum"), (0.5, "mean"), (0.0, "mean")):
        model = made(cls, rows=2, weight=weight, scale=scale)
        model(ids)
        found = model.penalty()
        assert (found is None) == (weight == 0)
        if weight and cls is Lin:
            a = dict(model.looks(ids))["rows of A"]
            gap = np.einsum("brt,bst->brs", a, a) - np.eye(2)
            per_text = (gap ** 2).sum((1, 2))
            np.testing.assert_allclose(found.item(), 0.5 * per_text.mean() / (4 if scale == "mean" else 1), atol=1e-12)
        if weight and cls is Du:
            (_, chosen), (_, words) = model.looks(ids)
            real = words.reshape(4, 2, -1)[[0, 1, 2]]                      # the last sentence is padding
            both = [((np.einsum("brt,bst->brs", a, a) - np.eye(a.shape[1])) ** 2).sum((1, 2)).mean()
                    / (a.shape[1] ** 2 if scale == "mean" else 1) for a in (real, chosen)]
            np.testing.assert_allclose(found.item(), 0.5 * sum(both), atol=1e-12)
        model.eval()
        model(ids)
        assert model.penalty() is None


@pytest.mark.parametrize("cls", [Lin, Du, DiSAN, CNN])
def test_dropout_acts_twice_and_in_training_only(cls):
    """On word vectors and on what the classes are read from."""
    model, ids = made(cls, dropout=0.4), ids_of([[5], [3]])
    assert str(ta.Program.of(model(ids))).count("dropout") == 2
    model.eval()
    assert "dropout" not in str(ta.Program.of(model(ids)))


def test_pictures_are_distributions_over_words():
    ids = ids_of([[5], [3]])
    for cls in (Lin, DiSAN):
        for _, w in made(cls).looks(ids):
            np.testing.assert_allclose(w.sum(-1), 1, atol=1e-12)
            assert (w[1, ..., 3:] == 0).all()


def test_one_row_of_words_is_asked_for():
    with pytest.raises(InputError, match=r"\(B, 1, T\)"):
        made(CNN)(ids_of([[3, 2], [2, 1]]))


def test_a_text_without_words_gives_finite_numbers():
    for cls in FLAT:
        assert np.isfinite(made(cls)(ids_of([[0], [2]])).numpy()).all()


def torch_lin(torch, model, ids, w):
    F = torch.nn.functional
    x = F.embedding(torch.tensor(ids.numpy()[:, 0]), w["embedding.weight"], padding_idx=0)
    n = torch.tensor((ids.numpy()[:, 0] != 0).sum(1))
    lstm = torch.nn.LSTM(4, 3, bidirectional=True, batch_first=True, dtype=torch.float64)
    names = [name for name, _ in lstm.named_parameters()]
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, n, batch_first=True, enforce_sorted=False)
    out, _ = torch.func.functional_call(lstm, {name: w["lstm." + name] for name in names}, (packed,))
    h, _ = torch.nn.utils.rnn.pad_packed_sequence(out, batch_first=True)
    e = torch.tanh(h @ w["w_1"].T) @ w["w_2"].T
    e = e.masked_fill((torch.tensor(ids.numpy()[:, 0]) == 0)[..., None], -torch.inf)
    a = torch.softmax(e, 1).transpose(1, 2)
    flat = (a @ h).reshape(len(h), -1)
    logits = torch.relu(flat @ w["hidden.weight"].T + w["hidden.bias"]) @ w["output.weight"].T + w["output.bias"]
    gap = a @ a.transpose(1, 2) - torch.eye(a.shape[1], dtype=torch.float64)
    return logits, 0.3 * (gap ** 2).sum((1, 2)).mean() / a.shape[1] ** 2


def torch_cnn(torch, model, ids, w):
    F = torch.nn.functional
    x = F.embedding(torch.tensor(ids.numpy()[:, 0]), w["embedding.weight"], padding_idx=0).transpose(1, 2)
    found = []
    for i in range(len(ids)):  # each text alone, so that no padding is seen
        n = int((ids.numpy()[i, 0] != 0).sum())
        found.append(torch.cat([torch.relu(F.conv1d(x[i:i + 1, :, :n], w[f"filters.w{k}"], w[f"biases.b{k}"],
                                                    padding=k - 1)).max(-1).values for k in model.widths], -1))
    return torch.cat(found) @ w["output.weight"].T + w["output.bias"], 0.0


@pytest.mark.parametrize("cls, twin", [(Lin, torch_lin), (CNN, torch_cnn)])
def test_20_steps_equal_pytorch(cls, twin):
    torch = pytest.importorskip("torch")
    model = made(cls, **({"weight": 0.3, "rows": 2} if cls is Lin else {}))
    w = {name: torch.tensor(p.numpy().copy(), requires_grad=True) for name, p in model.named_parameters()}
    ours, theirs = optim.Adam(list(model.parameters()), 0.01), torch.optim.Adam(list(w.values()), 0.01)
    for step in range(20):
        ids, y = ids_of([[6], [2], [4]], step), np.array([0, 2, 1])
        ours.zero_grad(), theirs.zero_grad()
        loss = cross_entropy(model(ids), Tensor(y))
        loss = loss if model.penalty() is None else loss + model.penalty()
        logits, extra = twin(torch, model, ids, w)
        other = torch.nn.functional.cross_entropy(logits, torch.tensor(y)) + extra
        np.testing.assert_allclose(loss.item(), other.item(), atol=1e-9)
        loss.backward(), other.backward()
        ours.step(), theirs.step()
    for name, p in model.named_parameters():
        np.testing.assert_allclose(p.numpy(), w[name].detach().numpy(), rtol=0, atol=1e-8, err_msg=name)


def test_disan_reads_in_both_directions():
    """The first half of a word's state knows the words before it and the word itself, the second half those behind."""
    model, there = made(DiSAN), Tensor(np.ones((1, 5), bool))
    states = model.states(Tensor([[1, 2, 3, 4, 5]]), there)                # (1, 5, 2U)
    assert states.shape == (1, 5, 6)
    for half, known in ((states[0, 2, :3], {1, 2, 3}), (states[0, 2, 3:], {3, 4, 5})):
        d, = ta.grad((half * half).sum(), [model.embedding.weight])
        assert set(np.flatnonzero(np.abs(d.numpy()).max(1) > 1e-9).tolist()) == known


def test_steps_and_paths_are_counted_and_timed(capsys):
    """Of a recurrent layer both grow with the text, of DiSAN neither; the claims of the page are asserted in it."""
    found = runpy.run_path(str(ROOT / "examples" / "parallel_steps.py"))["main"](16)
    assert found.keys() == NETWORKS.keys() and all(ms > 0 for _, rows in found.values() for _, _, ms in rows)
    said = capsys.readouterr().out
    assert "in a row" in said and "bi-GRU" in said
    gru, disan, flat = network("none"), network("disan"), network("structured_self")
    assert [gru.steps(n) for n in (9, 900)] == [flat.path(n) for n in (9, 900)] == [9, 900]
    assert disan.steps(900) == 2 and disan.path(900) == 1 and network("han").steps(900) == 60
