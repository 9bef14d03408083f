"""The translator: gradients, equality with the same model in PyTorch, search, padding, learning."""
import numpy as np
import pytest

import tinyattn as ta
from tinyattn import InputError, Tensor, optim
from tinyattn.gradcheck import gradcheck
from tinyattn.models.search import beam_search
from tinyattn.models.seq2seq import Seq2Seq, pack
from tinyattn.models.translate import Options, Translate
from tinyattn.tasks.text import Vocabulary

F64 = np.float64
KINDS = [{"attention": "additive"}, {"attention": "additive", "cell": "lstm"}, {"attention": "additive", "cell": "rnn"},
         {"attention": "none"}, {"attention": "none", "context": "start", "bidirectional": False},
         {"attention": "none", "cell": "lstm"}]


def small(seed=1, **options):
    ta.manual_seed(seed)
    return Seq2Seq(9, 8, 4, 3, **options).to(F64)


def batch(seed=0, lengths=((5, 4), (2, 6), (4, 1))):
    rng = np.random.default_rng(seed)
    sources = [rng.integers(4, 9, s).tolist() for s, _ in lengths]
    targets = [rng.integers(4, 8, t).tolist() for _, t in lengths]
    source, n = pack(sources)
    return source, n, pack([[1, *t] for t in targets])[0], pack([[*t, 2] for t in targets])[0]


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_gradients_of_the_whole_translator(options):
    model = small(**options)
    data = batch()
    report = gradcheck(lambda: model.loss(*data), [], parameters=dict(model.named_parameters()))
    assert report.ok, str(report)


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_every_parameter_of_the_translator_is_learnt(options):
    model = small(**options)
    model.loss(*batch()).backward()
    for name, p in model.named_parameters():
        assert p.grad is not None and np.abs(p.grad.numpy()).max() > 0, name


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_a_padded_batch_equals_each_sentence_alone(options):
    model, (source, n, before, after) = small(**options), batch()
    together = model(source, n, before).numpy()
    for i, length in enumerate(n.tolist()):
        words = int((after.numpy()[i] != 0).sum())
        alone = model(source[i:i + 1, :length], n[i:i + 1], before[i:i + 1, :words]).numpy()
        np.testing.assert_allclose(together[i, :words], alone[0], atol=1e-12)


def torch_twin(torch, model):
    """The equations of models/seq2seq.py, written for PyTorch, on the same weights."""
    w = {name: torch.tensor(p.numpy().copy(), requires_grad=True) for name, p in model.named_parameters()}
    F = torch.nn.functional

    def gru(x, h, u, bias):
        n = h.shape[1]
        r = torch.sigmoid(x[:, :n] + h @ u[:n].T + bias[:n])
        z = torch.sigmoid(x[:, n:2 * n] + h @ u[n:2 * n].T + bias[n:2 * n])
        new = torch.tanh(x[:, 2 * n:] + (r * h) @ u[2 * n:].T + bias[2 * n:])
        return (1 - z) * h + z * new

    def read(x, n, suffix, backwards):
        u, bias = w["encoder.rnn.weight_hh_l0" + suffix], w["encoder.rnn.bias_hh_l0" + suffix]
        x = x @ w["encoder.rnn.weight_ih_l0" + suffix].T + w["encoder.rnn.bias_ih_l0" + suffix]
        h, out = torch.zeros(x.shape[0], u.shape[1], dtype=x.dtype), [None] * x.shape[1]
        for t in reversed(range(x.shape[1])) if backwards else range(x.shape[1]):
            alive = (n > t)[:, None]
            h = torch.where(alive, gru(x[:, t], h, u, bias), h)
            out[t] = torch.where(alive, h, torch.zeros_like(h))
        return torch.stack(out, 1), h

    def loss(source, n, before, after):
        source, n, before, after = (torch.tensor(t.numpy().copy()) for t in (source, n, before, after))
        x = w["encoder.embedding.weight"][source]
        forward, _ = read(x, n, "", False)
        backward, last = read(x, n, "_reverse", True)
        h = torch.cat([forward, backward], -1)
        s = torch.tanh(last @ w["decoder.start.weight"].T + w["decoder.start.bias"])
        word = w["decoder.embedding.weight"][before]
        seen = torch.arange(source.shape[1]) < n[:, None]
        zero, logits = torch.zeros(3 * s.shape[1], dtype=s.dtype), []
        for t in range(before.shape[1]):
            e = torch.tanh((s @ w["decoder.attention.w_q"].T)[:, None] + h @ w["decoder.attention.w_k"].T) \
                @ w["decoder.attention.v_a"]
            c = (torch.softmax(e.masked_fill(~seen, -torch.inf), -1)[:, None] @ h)[:, 0]
            read_out = s @ w["decoder.out_state.weight"].T + w["decoder.out_state.bias"] \
                + word[:, t] @ w["decoder.out_word.weight"].T + c @ w["decoder.out_context.weight"].T
            logits.append(read_out.reshape(*s.shape, 2).amax(-1) @ w["decoder.output.weight"].T + w["decoder.output.bias"])
            gates = word[:, t] @ w["decoder.from_word.weight"].T + w["decoder.from_word.bias"] \
                + c @ w["decoder.from_context.weight"].T
            s = gru(gates, s, w["decoder.w_hh"], zero)
        return F.cross_entropy(torch.stack(logits, 1).flatten(0, 1), after.flatten(), ignore_index=0)

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
        optim.clip_grad_norm(model.parameters(), 1.0)
        torch.nn.utils.clip_grad_norm_(list(w.values()), 1.0)
        ours.step()
        theirs.step()
    for name, p in model.named_parameters():
        np.testing.assert_allclose(p.numpy(), w[name].detach().numpy(), rtol=0, atol=1e-8, err_msg=name)


def greedy(model, source, n, longest):
    """One sentence, one word at a time, by running the whole decoder on what there is so far."""
    words = [1]
    for _ in range(longest):
        logits = model(source, n, Tensor([words])).numpy()[0, -1]
        words.append(int(logits.argmax()))
        if words[-1] == 2:
            return words[1:-1]
    return words[1:]


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_stepwise_search_equals_running_the_whole_decoder(options):
    model, (source, n, _, _) = small(3, **options), batch(4)
    found = beam_search(model, source, n, 1, 2, width=1, longest=7)
    for i, length in enumerate(n.tolist()):
        assert found[i] == greedy(model, source[i:i + 1, :length], n[i:i + 1], 7)


def test_a_wide_beam_finds_the_most_probable_translation_by_enumeration():
    import itertools
    model, (source, n, _, _) = small(7), batch(2)
    source, n = source[:1], n[:1]
    best, best_score = None, -np.inf
    for length in range(4):
        for words in itertools.product([0, 1, *range(3, 8)], repeat=length):
            log_p = model(source, n, Tensor([[1, *words]])).log_softmax().numpy()[0]
            score = sum(log_p[t, word] for t, word in enumerate([*words, 2])) / (length + 1)
            if score > best_score:
                best, best_score = list(words), score
    found = beam_search(model, source, n, 1, 2, width=600, longest=4)[0]
    assert found == best


def test_the_attention_of_a_batch_is_that_of_each_sentence_and_sums_to_1():
    model, (source, n, before, _) = small(), batch()
    weights = model.alignment(source, n, before)
    np.testing.assert_allclose(weights.sum(-1), 1)
    assert (weights[1, :, 2:] == 0).all()
    alone = model.alignment(source[1:2, :2], n[1:2], before[1:2])
    np.testing.assert_allclose(weights[1, :, :2], alone[0], atol=1e-12)


def system(**options):
    ta.manual_seed(0)
    words = Vocabulary.build([["a", "b", "c", "d"]])
    return Translate(Options(hidden=8, embed=8, **options), words, words)


def test_reversed_sources_are_read_backwards_and_shown_forwards():
    from tinyattn.tasks.translate import Pair
    there, back = system(), system(reverse_source=True)
    assert back.source_ids(["a", "b"]) == [*there.source_ids(["a", "b"])[1::-1], 2]
    back.model.load_state_dict(there.model.state_dict())
    pair, turned = Pair(("a", "b", "c"), ("a", "b")), Pair(("c", "b", "a"), ("a", "b"))
    np.testing.assert_allclose(back.weights([turned])[0][:, [2, 1, 0, 3]], there.weights([pair])[0], atol=1e-6)


def test_unknown_words_and_bad_options_are_one_line():
    assert system().predict("zebra a").source == ["zebra", "a"]
    for bad, message in [({"hidden": 0}, "hidden"), ({"dropout": 1.5}, "dropout"), ({"bidirectional": False}, "bidirectional"),
                         ({"attention": "addictive"}, "additive")]:
        with pytest.raises(InputError, match=message):
            Translate(Options(**bad), *[Vocabulary.build([["a"]])] * 2)


def test_it_learns_to_copy_and_its_attention_shows_that():
    ta.manual_seed(2)
    model = Seq2Seq(9, 9, 16, 16)
    step, rng = optim.Adam(model.parameters(), lr=1e-2), np.random.default_rng(1)
    for _ in range(250):
        sentences = [rng.integers(4, 9, rng.integers(2, 6)).tolist() for _ in range(16)]
        source, n = pack([[*s, 2] for s in sentences])
        loss = model.loss(source, n, pack([[1, *s] for s in sentences])[0], pack([[*s, 2] for s in sentences])[0])
        model.zero_grad()
        loss.backward()
        optim.clip_grad_norm(model.parameters(), 1.0)
        step.step()
    source, n = pack([[4, 6, 8, 5, 2], [7, 7, 5, 2]])
    assert beam_search(model, source, n, 1, 2) == [[4, 6, 8, 5], [7, 7, 5]] == beam_search(model, source, n, 1, 2, width=3)
