"""HAN and its ablations: gradients, padding, the zero context vector, equality with the same model in PyTorch."""
import numpy as np
import pytest

import tinyattn as ta
from tinyattn import Tensor, optim
from tinyattn.functional import cross_entropy
from tinyattn.gradcheck import gradcheck
from tinyattn.models.han import HAN, Average, BiGRU, Max

F64 = np.float64
NETWORKS = [HAN, Average, Max, BiGRU]
HIERARCHIES = [HAN, Average, Max]


def small(kind, seed=1, **options):
    ta.manual_seed(seed)
    return kind(11, 3, 4, 3, 5, **options).to(F64).eval()


def ragged(seed=0, lengths=((4, 1, 3, 2), (2, 5), (3,)), flat=False):
    """Documents with sentences of these lengths, as one padded array (B, N, T); flat: each in one row."""
    rng = np.random.default_rng(seed)
    if flat:
        lengths = [[sum(n)] for n in lengths]
    ids = np.zeros((len(lengths), max(map(len, lengths)), max(map(max, lengths))), np.int64)
    for b, sentences in enumerate(lengths):
        for i, n in enumerate(sentences):
            ids[b, i, :n] = rng.integers(1, 11, n)
    return Tensor(ids)


def inputs(kind, seed=0):
    return ragged(seed, flat=not kind.hierarchical)


def loss_of(model, ids):
    return cross_entropy(model(ids), Tensor(np.arange(len(ids)) % 3))


@pytest.mark.parametrize("kind", NETWORKS)
def test_gradients_of_the_whole_network(kind):
    model, ids = small(kind), inputs(kind)
    report = gradcheck(lambda: loss_of(model, ids), [], parameters=dict(model.named_parameters()))
    assert report.ok, str(report)


@pytest.mark.parametrize("kind", NETWORKS)
def test_every_parameter_is_learnt_but_the_padding_row(kind):
    model, ids = small(kind), inputs(kind)
    loss_of(model, ids).backward()
    for name, p in model.named_parameters():
        assert p.grad is not None and np.abs(p.grad.numpy()).max() > 0, name
    assert (model.embedding.weight.grad.numpy()[0] == 0).all()


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_padded_batch_equals_each_document_alone_in_values_and_gradients(kind):
    model, ids = small(kind), inputs(kind)
    together = model(ids)
    together.sum().backward()
    names = dict(model.named_parameters())
    gradients = {name: p.grad.numpy().copy() for name, p in names.items()}
    model.zero_grad()
    for b, document in enumerate(ids.numpy()):
        rows = document[document.any(1)]
        alone = model(Tensor(rows[None, :, :int((rows != 0).sum(1).max())]))
        np.testing.assert_allclose(together.numpy()[b], alone.numpy()[0], atol=1e-12)
        alone.sum().backward()
    for name, p in names.items():
        np.testing.assert_allclose(gradients[name], p.grad.numpy(), atol=1e-12, err_msg=name)


@pytest.mark.parametrize("kind", HIERARCHIES)
def test_order_within_a_sentence_and_of_sentences_matters(kind):
    model, ids = small(kind), ragged().numpy()[:1]
    other, turned = ids.copy(), ids[:, [1, 0, 2, 3]]
    other[0, 0, :4] = other[0, 0, [3, 2, 1, 0]]
    for changed in (other, turned):
        assert np.abs(model(Tensor(changed)).numpy() - model(Tensor(ids)).numpy()).max() > 1e-4


def test_padding_gets_exactly_0_and_the_weights_sum_to_1():
    for kind in (HAN, Average):
        (_, sentences), (_, words) = small(kind).looks(ragged())
        ids = ragged().numpy()
        assert sentences.shape == ids.shape[:2] and words.shape == ids.shape
        assert (words[ids == 0] == 0).all() and (words[ids != 0] > 0).all()
        assert (sentences[~ids.any(-1)] == 0).all() and (sentences[ids.any(-1)] > 0).all()
        np.testing.assert_allclose(sentences.sum(1), 1)
        np.testing.assert_allclose(words.sum(-1)[ids.any(-1)], 1)
    np.testing.assert_allclose(words[0, 0, :4], 0.25)
    assert small(Max).looks(ragged()) == []


def test_a_zero_context_vector_is_the_average_exactly():
    han, average = small(HAN), small(Average)
    shared = set(average.state_dict())
    average.load_state_dict({name: a for name, a in han.state_dict().items() if name in shared})
    ids = ragged()
    assert not np.allclose(han(ids).numpy(), average(ids).numpy())
    han.load_state_dict({**han.state_dict(), "u_w": np.zeros(5), "u_s": np.zeros(5)})
    np.testing.assert_array_equal(han(ids).numpy(), average(ids).numpy())


def test_average_and_max_are_those_of_the_true_states():
    rng = np.random.default_rng(0)
    h, mask = rng.uniform(-1, 1, (3, 4, 2)), np.arange(4) < np.array([[4], [2], [0]])
    for kind, by_hand in ((Average, np.mean), (Max, np.max)):
        got = small(kind).pool(Tensor(h, dtype=F64), mask).numpy()
        np.testing.assert_allclose(got[:2], [by_hand(h[0], 0), by_hand(h[1, :2], 0)], atol=1e-15)
        assert (got[2] == 0).all()


def test_parameters_of_the_paper_s_size():
    """V 100, D 200, U 50 each way, A 100, C 5, counted by hand. A GRU's direction has 3 U (inputs + U + 1) numbers."""
    gru = [2 * 3 * 50 * (inputs + 50 + 1) for inputs in (200, 100)]
    attention = 2 * (100 * 100 + 100 + 100)
    expected = 100 * 200 + sum(gru) + (100 * 5 + 5)
    assert HAN(100, 5, 200, 50, 100).number_of_parameters() == expected + attention
    assert Average(100, 5, 200, 50).number_of_parameters() == Max(100, 5, 200, 50).number_of_parameters() == expected


def test_dropout_acts_in_training_alone():
    for kind in NETWORKS:
        model, ids = small(kind, dropout=0.5), inputs(kind)
        np.testing.assert_array_equal(model(ids).numpy(), model(ids).numpy())
        model.train()
        assert np.abs(model(ids).numpy() - model(ids).numpy()).max() > 1e-4


# ---------------------------------------------------------------------------------------------------------------------
# the same model in PyTorch
# ---------------------------------------------------------------------------------------------------------------------
def turned(a, U):
    """A GRU's rows r, z, n with those of z negated: PyTorch's z keeps the old state, HAN's lets the new one in, and
    1 - sigmoid(x) = sigmoid(-x)."""
    return np.concatenate([a[:U], -a[U:2 * U], a[2 * U:]])


class TorchHAN:
    """HAN by torch.nn.GRU on packed sequences, from our weights. b_hh, which HAN has not, stays 0."""

    def __init__(self, torch, model):
        self.torch, state = torch, model.state_dict()
        self.w = {name: torch.tensor(a, requires_grad=True) for name, a in state.items()
                  if not name.endswith(("_ih", "_hh", "_b")) or name in ("w_b",)}
        self.rnn = {}
        for level in ("word", "sent"):
            ih, hh, b = (state[f"{level}_{part}"] for part in ("ih", "hh", "b"))
            rnn = torch.nn.GRU(ih.shape[2], hh.shape[2], batch_first=True, bidirectional=True, dtype=torch.float64)
            with torch.no_grad():
                for d, suffix in enumerate(("", "_reverse")):
                    for name, a in (("weight_ih", ih[d]), ("weight_hh", hh[d]), ("bias_ih", b[d])):
                        getattr(rnn, f"{name}_l0{suffix}").copy_(torch.tensor(turned(a, hh.shape[2])))
                    getattr(rnn, f"bias_hh_l0{suffix}").zero_().requires_grad_(False)
            self.rnn[level] = rnn

    def parameters(self):
        return [*self.w.values(), *(p for rnn in self.rnn.values() for p in rnn.parameters() if p.requires_grad)]

    def level(self, x, n, level, letter):
        """x (M, T, D) with n (M,) >= 1 true places each, to (M, 2U)."""
        torch, pack = self.torch, self.torch.nn.utils.rnn
        packed = pack.pack_padded_sequence(x, n, batch_first=True, enforce_sorted=False)
        h, _ = pack.pad_packed_sequence(self.rnn[level](packed)[0], batch_first=True)
        scores = torch.tanh(h @ self.w[f"w_{letter}"].T + self.w[f"b_{letter}"]) @ self.w[f"u_{letter}"]
        scores = scores.masked_fill(torch.arange(h.shape[1]) >= n[:, None], -torch.inf)
        return (torch.softmax(scores, -1)[..., None] * h).sum(1)

    def loss(self, ids, targets):
        torch = self.torch
        ids = torch.tensor(ids)
        there = (ids != 0).any(-1)
        sentences = ids[there]
        s = self.level(self.w["embedding.weight"][sentences], (sentences != 0).sum(-1), "word", "w")
        rows = torch.zeros(*there.shape, s.shape[-1], dtype=s.dtype)
        rows[there] = s
        v = self.level(rows, there.sum(-1), "sent", "s")
        return torch.nn.functional.cross_entropy(v @ self.w["output.weight"].T + self.w["output.bias"],
                                                 torch.tensor(targets))

    def state(self):
        """The weights under our names and in our form."""
        found = {name: t.detach().numpy() for name, t in self.w.items()}
        for level, rnn in self.rnn.items():
            for part, name in (("ih", "weight_ih"), ("hh", "weight_hh"), ("b", "bias_ih")):
                found[f"{level}_{part}"] = np.stack([turned(getattr(rnn, f"{name}_l0{suffix}").detach().numpy(),
                                                            rnn.hidden_size) for suffix in ("", "_reverse")])
        return found


def test_20_training_steps_equal_the_same_model_in_pytorch():
    torch = pytest.importorskip("torch")
    model = small(HAN, 5).train()
    model.before.p = model.after.p = 0.0
    twin = TorchHAN(torch, model)
    ours, theirs = optim.Adam(model.parameters(), lr=1e-2), torch.optim.Adam(twin.parameters(), lr=1e-2)
    clipped = 0
    for step in range(20):
        ids, targets = ragged(step, ((4, 1, 3), (2, 5, 1, 1), (3,), (1, 2))), np.array([0, 1, 2, step % 3])
        a, b = cross_entropy(model(ids), Tensor(targets)), twin.loss(ids.numpy(), targets)
        assert abs(a.item() - b.item()) < 1e-8, step
        model.zero_grad()
        theirs.zero_grad()
        a.backward()
        b.backward()
        clipped += optim.clip_grad_norm(model.parameters(), 0.1) > 0.1
        torch.nn.utils.clip_grad_norm_(twin.parameters(), 0.1)
        ours.step()
        theirs.step()
    assert clipped > 3
    theirs = twin.state()
    assert set(theirs) == set(model.state_dict())
    for name, a in model.state_dict().items():
        np.testing.assert_allclose(a, theirs[name], rtol=0, atol=1e-8, err_msg=name)
    assert np.abs(model.u_w.numpy() - small(HAN, 5).u_w.numpy()).max() > 1e-3
