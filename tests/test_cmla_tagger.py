"""The tagger with coupled attentions: gradients, padding, equality with the same model in PyTorch."""
import numpy as np
import pytest

import tinyattn as ta
from tinyattn import nn, optim
from tinyattn.attention.cmla import cmla, reference
from tinyattn.autograd import no_grad
from tinyattn.gradcheck import gradcheck
from tinyattn.models.cmla import IGNORE, Tagger
from tinyattn.tensor import Tensor

F64 = np.float64
KINDS = [{}, {"tanh": False}, {"bidirectional": True}, {"layers": 3}, {"attention": "none"},
         {"attention": "none", "bidirectional": True}]


def small(seed=1, words=7, embed=3, hidden=3, scores=2, **options):
    ta.manual_seed(seed)
    return Tagger(words, embed, hidden, scores=scores, **options).to(F64)


def batch(seed=0, lengths=(4, 1, 3), words=7):
    """Sentences, and tags of which one sentence knows the aspects only."""
    rng, lengths = np.random.default_rng(seed), np.array(lengths)
    inside = np.arange(lengths.max()) < lengths[:, None]
    ids = np.where(inside, rng.integers(1, words, inside.shape), 0)
    tags = np.where(inside[:, None], rng.integers(0, 3, (len(lengths), 2, lengths.max())), IGNORE)
    tags[-1, 1] = IGNORE
    return ids, lengths, tags


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_gradients_of_the_whole_tagger(options):
    model, data = small(embed=2, hidden=2, scores=1, **options), batch()
    report = gradcheck(lambda: model.loss(*data), [], parameters=dict(model.named_parameters()))
    assert report.ok, str(report)


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_every_parameter_is_learnt(options):
    model = small(**options)
    model.loss(*batch()).backward()
    for name, p in model.named_parameters():
        assert p.grad is not None and np.abs(p.grad.numpy()).max() > 0, name
    assert (model.embedding.weight.grad.numpy()[0] == 0).all()


def test_with_one_layer_what_moves_the_prototypes_is_unused():
    model = small(layers=1)
    model.loss(*batch()).backward()
    without = {name for name, p in model.named_parameters() if p.grad is None or not p.grad.numpy().any()}
    assert without == {"m", "v"} == set(model.null)


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_a_padded_batch_equals_each_sentence_alone(options):
    model, (ids, lengths, tags) = small(**options), batch()
    together, alpha = model(ids, lengths, return_weights=True)
    model.loss(ids, lengths, tags).backward()
    grads, count = {name: p.grad.numpy().copy() for name, p in model.named_parameters()}, (tags != IGNORE).sum()
    model.zero_grad()
    for i, n in enumerate(lengths.tolist()):
        one = ids[i:i + 1, :n], lengths[i:i + 1]
        alone, weights = model(*one, return_weights=True)
        np.testing.assert_allclose(together.numpy()[i, :, :n], alone.numpy()[0], atol=1e-13)
        if alpha is not None:
            np.testing.assert_allclose(alpha.numpy()[i, :, :, :n], weights.numpy()[0], atol=1e-13)
            assert (alpha.numpy()[i, :, :, n:] == 0).all()
            np.testing.assert_allclose(alpha.numpy()[i].sum(-1), 1)
        share = float((tags[i] != IGNORE).sum() / count)
        (model.loss(*one, tags[i:i + 1, :, :n]) * share).backward()
    for name, p in model.named_parameters():
        np.testing.assert_allclose(p.grad.numpy(), grads[name], atol=1e-12, err_msg=name)


def test_what_the_heads_read_is_the_mechanism_over_the_states():
    model, (ids, lengths, _) = small(), batch()
    h, _ = model.gru(model.window(ids, lengths), lengths=lengths)
    names = ("own", "crossed", "u", "m", "v", "r0", "w_ih", "w_hh")
    r = reference(h.numpy(), *(getattr(model, n).numpy() for n in names), mask=np.arange(4) < lengths[:, None, None])
    logits = np.einsum("bptc,pnc->bptn", r, model.heads.numpy()) + model.bias.numpy()
    inside = np.arange(4) < lengths[:, None]
    got = model(ids, lengths).numpy()
    for side in (0, 1):
        np.testing.assert_allclose(got[:, side][inside], logits[:, side][inside], atol=1e-12)


def test_the_window_is_a_word_and_its_neighbours():
    model = small()
    table = model.embedding.weight.numpy()
    got = model.window(np.array([[2, 5, 3, 6]]), np.array([3])).numpy()[0]
    np.testing.assert_array_equal(got[0], np.concatenate([0 * table[2], table[2], table[5]]))
    np.testing.assert_array_equal(got[1], np.concatenate([table[2], table[5], table[3]]))
    np.testing.assert_array_equal(got[2], np.concatenate([table[5], table[3], 0 * table[2]]))


def test_the_sides_are_coupled_through_the_crossed_terms_alone():
    """Another opinion prototype changes the aspects' tags; without the crossed tensors it does not."""
    def aspects(crossed, shift):
        model = small()
        model.crossed = Tensor(model.crossed.numpy() * crossed)
        model.u = Tensor(model.u.numpy() + np.array([[0.0], [shift]]))
        return model(*batch()[:2]).numpy()[:, 0]
    assert np.abs(aspects(1.0, 0.5) - aspects(1.0, 0.0)).max() > 1e-4
    np.testing.assert_array_equal(aspects(0.0, 0.5), aspects(0.0, 0.0))


def test_a_plain_tagger_sees_no_more_than_its_window_and_what_came_before():
    """Its answer for a word cannot depend on a word two places on; that of the coupled attentions does."""
    first, second = np.array([[1, 2, 3, 4, 5]]), np.array([[1, 2, 3, 4, 6]])
    for attention, equal in (("none", True), ("cmla", False)):
        model = small(attention=attention)
        a, b = (model(ids, np.array([5])).numpy()[0, :, :3] for ids in (first, second))
        assert np.array_equal(a, b) == equal


def test_dropout_acts_in_training_only_and_its_masks_come_from_the_seed():
    model, data = small(dropout=0.5), batch()
    values = []
    for _ in range(2):
        ta.manual_seed(5)
        values.append(model.train().loss(*data).item())
    assert values[0] == values[1] != model.train().loss(*data).item()
    assert model.eval().loss(*data).item() == model.loss(*data).item() == small().loss(*data).item()


@pytest.mark.parametrize("attention", ["cmla", "none"])
def test_dropout_acts_on_the_windows_the_states_and_the_scores(attention, monkeypatch):
    dropped, forward = [], nn.Dropout.forward

    def seen(self, x):
        dropped.append(x.shape)
        return forward(self, x)
    monkeypatch.setattr(nn.Dropout, "forward", seen)
    small(attention=attention, dropout=0.5).loss(*batch())
    assert dropped == [(3, 4, 9), (3, 4, 3), (3, 2, 4, 4)][:3 if attention == "cmla" else 2]


def torch_twin(torch, model):
    """The equations of models/cmla.py and attention/cmla.py, written for PyTorch, on the same weights."""
    w = {name: torch.tensor(p.numpy().copy(), requires_grad=True) for name, p in model.named_parameters()}

    def gates(x, h, u, bias, after):
        n = h.shape[1]
        r, z = torch.sigmoid(x[:, :2 * n] + h @ u[:2 * n].T + bias[:2 * n]).split(n, 1)
        inner = r * (h @ u[2 * n:].T + bias[2 * n:]) if after else (r * h) @ u[2 * n:].T
        return z, torch.tanh(x[:, 2 * n:] + inner)

    def run(x, h, u, bias=None, after=True):
        """A GRU along x (B, T, 3 D); `after`: PyTorch's way, else with the opposite sense of z and of the reset."""
        bias, out = torch.zeros(len(u), dtype=x.dtype) if bias is None else bias, []
        for t in range(x.shape[1]):
            z, new = gates(x[:, t], h, u, bias, after)
            h = z * h + (1 - z) * new if after else (1 - z) * h + z * new
            out.append(h)
        return torch.stack(out, 1)

    def loss(ids, lengths, tags):
        ids, lengths, tags = (torch.tensor(a) for a in (ids, lengths, tags))
        beside = torch.nn.functional.pad(ids, (1, 1))
        table = torch.cat([torch.zeros_like(w["embedding.weight"][:1]), w["embedding.weight"][1:]])  # 0 is padding here
        x = torch.cat([table[beside[:, i:i + ids.shape[1]]] for i in range(3)], -1)
        h = run(x @ w["gru.weight_ih_l0"].T + w["gru.bias_ih_l0"],
                torch.zeros(len(ids), model.gru.width, dtype=x.dtype), w["gru.weight_hh_l0"], w["gru.bias_hh_l0"])
        seen = torch.arange(ids.shape[1]) < lengths[:, None]
        h, total = h * seen[..., None], [0, 0]
        now = [w["u"][p].expand(len(ids), -1) for p in (0, 1)]
        for _ in range(model.layers):
            moved = []
            for p in (0, 1):
                b = torch.cat([torch.stack([((h @ g) * u[:, None]).sum(-1) for g in w[name][p]], -1)
                               for name, u in (("own", now[p]), ("crossed", now[1 - p]))], -1)
                r = run(torch.tanh(b) @ w["w_ih"][p].T, w["r0"][p].expand(len(ids), -1), w["w_hh"][p], after=False)
                total[p] = total[p] + r
                alpha = torch.softmax((r @ w["v"][p]).masked_fill(~seen, -torch.inf), -1)
                moved.append(torch.tanh(now[p] @ w["m"][p]) + (alpha[..., None] * h).sum(1))
            now = moved
        logits = torch.stack([total[p] @ w["heads"][p].T + w["bias"][p] for p in (0, 1)], 1)
        return torch.nn.functional.cross_entropy(logits.flatten(0, 2), tags.flatten(), ignore_index=IGNORE)

    return loss, w


def test_20_training_steps_equal_the_same_model_in_pytorch():
    torch = pytest.importorskip("torch")
    model = small()
    loss, w = torch_twin(torch, model)
    ours, theirs = optim.Adam(model.parameters(), lr=1e-2), torch.optim.Adam(list(w.values()), lr=1e-2)
    for step in range(20):
        data = batch(step)
        a, b = model.loss(*data), loss(*data)
        assert abs(a.item() - b.item()) < 1e-8
        model.zero_grad()
        theirs.zero_grad()
        a.backward()
        b.backward()
        ours.step()
        theirs.step()
    for name, p in model.named_parameters():
        np.testing.assert_allclose(p.numpy(), w[name].detach().numpy(), rtol=0, atol=1e-8, err_msg=name)


def test_the_mechanism_is_the_one_of_the_collection():
    """One call of `cmla` a forward pass, with what the options say."""
    model, seen = small(layers=3, tanh=False), []
    import tinyattn.models.cmla as place
    original = place.cmla
    try:
        place.cmla = lambda *inputs, **options: seen.append(options) or cmla(*inputs, **options)
        with no_grad():
            model(*batch()[:2])
    finally:
        place.cmla = original
    assert [(o["layers"], o["tanh"]) for o in seen] == [(3, False)]
    np.testing.assert_array_equal(seen[0]["mask"].numpy()[:, 0].sum(-1), [4, 1, 3])


def test_unknown_attention_is_refused():
    with pytest.raises(ValueError, match="cmla or none"):
        small(attention="additive")
