"""The Transformer: gradients, the same in PyTorch, decoding with a cache, both norms, tied words, runs and options."""
import dataclasses
import itertools
import json

import numpy as np
import pytest

import tinyattn as ta
from tinyattn import InputError, Tensor, checkpoint, optim
from tinyattn.attention.sinusoid import encode
from tinyattn.autograd import no_grad
from tinyattn.config import Config
from tinyattn.functional import cross_entropy
from tinyattn.gradcheck import gradcheck
from tinyattn.models.search import beam_search
from tinyattn.models.seq2seq import pack
from tinyattn.models.transformer import EncoderLayer, FeedForward, PostNorm, PreNorm, Transformer, Words
from tinyattn.models.translate import OF, Options, Translate
from tinyattn.tasks.text import Vocabulary
from tinyattn.tasks.translate import Pair
from tinyattn.train import train

F64 = np.float64
KINDS = [{"norm": norm, "tie": tie, "attention": attention}
         for norm, tie, attention in itertools.product(("post", "pre"), (False, True), ("multi_head", "none"))]


def small(seed=1, dtype=F64, **options):
    ta.manual_seed(seed)
    return Transformer(9, 8, **{"width": 8, "layers": 2, "heads": 2, "feed_forward": 12, **options}).to(dtype)


def batch(seed=0, lengths=((5, 4), (2, 6), (4, 1))):
    rng = np.random.default_rng(seed)
    sources = [rng.integers(4, 9, s).tolist() for s, _ in lengths]
    targets = [rng.integers(4, 8, t).tolist() for _, t in lengths]
    source, n = pack(sources)
    return source, n, pack([[1, *t] for t in targets])[0], pack([[*t, 2] for t in targets])[0]


# ---------------------------------------------------------------------------------------------------------------------
# what is computed
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("options", KINDS, ids=str)
def test_gradients_of_the_whole_model_and_every_parameter_is_learnt(options):
    model, data = small(layers=1, **options), batch()
    parameters = dict(model.named_parameters())
    report = gradcheck(lambda: model.loss(*data), [], parameters=parameters)
    assert report.ok, str(report)
    model.loss(*data).backward()
    for name, p in parameters.items():
        size = np.abs(p.grad.numpy()).max()
        assert size < 1e-12 if name.endswith("k_proj.bias") else size > 1e-6, name


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_a_padded_batch_equals_each_sentence_alone(options):
    model, (source, n, before, after) = small(**options), batch()
    together = model(source, n, before)
    cross_entropy(together, after, 0, reduction="sum").backward()
    padded = {name: p.grad.numpy().copy() for name, p in model.named_parameters()}
    model.zero_grad()
    for i, length in enumerate(n.tolist()):
        words = int((after.numpy()[i] != 0).sum())
        alone = model(source[i:i + 1, :length], n[i:i + 1], before[i:i + 1, :words])
        np.testing.assert_allclose(together.numpy()[i, :words], alone.numpy()[0], atol=1e-12)
        cross_entropy(alone, after[i:i + 1, :words], reduction="sum").backward()
    for name, p in model.named_parameters():
        np.testing.assert_allclose(p.grad.numpy(), padded[name], atol=1e-12, err_msg=name)


def test_no_word_sees_a_later_one_and_every_word_sees_the_source():
    model, (source, n, before, _) = small(), batch()
    logits = model(source, n, before).numpy()
    for t in range(1, 7):
        changed = before.numpy().copy()
        changed[:, t] = 3
        moved = np.abs(model(source, n, Tensor(changed)).numpy() - logits).max(-1)
        assert (moved[:, :t] == 0).all() and (moved[:, t] > 1e-9).all()
    other = source.numpy().copy()
    other[:, 0] = 3
    assert np.abs(model(Tensor(other), n, before).numpy() - logits).max(-1).min() > 1e-9


def test_words_are_scaled_by_the_root_of_the_width_and_placed():
    words = Words(9, 6).to(F64)
    ids = Tensor([[4, 7, 4], [5, 1, 0]])
    expected = words.table.weight.numpy()[ids.numpy()] * np.sqrt(6) + encode(3, 6)
    np.testing.assert_allclose(words(ids).numpy(), expected, atol=1e-14)
    np.testing.assert_allclose(words(ids[:, 1:2], start=1).numpy(), expected[:, 1:2], atol=1e-14)
    assert 0.8 < Words(400, 64).table.weight.numpy().std() * np.sqrt(64) < 1.2  # words as large as 1


def normed(x):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)


def test_pre_and_post_differ_in_where_the_norm_stands_and_in_the_last_norm():
    ta.manual_seed(3)
    f = FeedForward(6, 8).to(F64)
    x = np.random.default_rng(0).normal(size=(2, 3, 6))
    of = lambda array: f(Tensor(array)).numpy()  # noqa: E731
    np.testing.assert_allclose(PostNorm(f, 6).to(F64)(Tensor(x)).numpy(), normed(x + of(x)), atol=1e-12)
    np.testing.assert_allclose(PreNorm(f, 6).to(F64)(Tensor(x)).numpy(), x + of(normed(x)), atol=1e-12)
    post, pre = (small(norm=norm) for norm in ("post", "pre"))
    last = {f"{half}.norm.{name}" for half in ("encoder", "decoder") for name in ("weight", "bias")}
    assert set(pre.state_dict()) - set(post.state_dict()) == last and not set(post.state_dict()) - set(pre.state_dict())
    source, n, before, _ = batch()
    for model, is_normed in ((post, True), (pre, True)):
        h = model.encoder(source, n)[0].numpy()
        assert np.allclose(normed(h), h, atol=1e-3) == is_normed
    pre.encoder.norm = None
    h = pre.encoder(source, n)[0].numpy()
    assert not np.allclose(normed(h), h, atol=1e-1)


def graph_ops(t):
    """The names of all ops that made a Tensor."""
    seen, todo = {}, [t]
    while todo:
        op = todo.pop().op
        if op is not None and id(op) not in seen:
            seen[id(op)] = op.name
            todo += [x for x in op.inputs if isinstance(x, Tensor)]
    return list(seen.values())


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_dropout_is_where_the_paper_has_it_and_in_training_only(norm):
    model, data = small(dropout=0.3, norm=norm), batch()
    parts = 2 * (2 + 3)                                                        # sub-layers of 2 layers
    assert graph_ops(model.loss(*data)).count("dropout") == 2 + parts + 2 * 3  # words, sub-layers, weights
    a, b = model.loss(*data).item(), model.loss(*data).item()
    assert a != b
    model.eval()
    assert "dropout" not in graph_ops(model.loss(*data))
    assert model.loss(*data).item() == model.loss(*data).item()


# ---------------------------------------------------------------------------------------------------------------------
# the same in PyTorch
# ---------------------------------------------------------------------------------------------------------------------
def system(**options):
    ta.manual_seed(0)
    words = Vocabulary.build([["a", "b", "c", "d"]])
    return Translate(Options(**{"decoder": "transformer", "hidden": 8, "heads": 2, **options}), words, words)


def random_pairs(rng, count=5):
    draw = lambda: tuple(rng.choice(list("abcd"), rng.integers(1, 7)).tolist())  # noqa: E731
    return [Pair(draw(), draw()) for _ in range(count)]


def torch_twin(torch, translator):
    """The same model of PyTorch's own layers, on the same weights: (loss of pairs, {our name: tensor or slice})."""
    o, nn = translator.options, torch.nn
    settings = {"d_model": o.hidden, "nhead": o.heads, "dim_feedforward": 4 * o.hidden, "dropout": 0.0,
                "batch_first": True, "norm_first": o.norm == "pre", "dtype": torch.float64}
    layers = {"encoder": [nn.TransformerEncoderLayer(**settings) for _ in range(o.layers)],
              "decoder": [nn.TransformerDecoderLayer(**settings) for _ in range(o.layers)]}
    w = {name: torch.tensor(p.numpy().copy(), requires_grad=True)
         for name, p in translator.model.named_parameters() if ".layers." not in name}
    owned, pairs = list(w.values()), dict(w)
    for half, stack in layers.items():
        for i, layer in enumerate(stack):
            parts = {"attention": (layer.self_attn, layer.norm1), "feed_forward": (None, layer.norm2)}
            if half == "decoder":
                parts |= {"cross": (layer.multihead_attn, layer.norm2), "feed_forward": (None, layer.norm3)}
            for part, (attention, norm) in parts.items():
                begin = f"{half}.layers.{i}.{part}."
                for kind in ("weight", "bias"):
                    pairs[f"{begin}norm.{kind}"] = getattr(norm, kind)
                    if attention is None:
                        pairs[f"{begin}sublayer.into.{kind}"] = getattr(layer.linear1, kind)
                        pairs[f"{begin}sublayer.out_of.{kind}"] = getattr(layer.linear2, kind)
                        continue
                    for j, one in enumerate("qkv"):
                        rows = getattr(attention, f"in_proj_{kind}")[j * o.hidden:(j + 1) * o.hidden]
                        pairs[f"{begin}sublayer.{one}_proj.{kind}"] = rows
                    pairs[f"{begin}sublayer.out_proj.{kind}"] = getattr(attention.out_proj, kind)
            owned += list(layer.parameters())
    ours = dict(translator.model.named_parameters())
    assert set(ours) == set(pairs)
    with torch.no_grad():
        for name, tensor in pairs.items():
            tensor.copy_(torch.tensor(ours[name].numpy()))

    def last(x, half):
        if f"{half}.norm.weight" not in w:
            return x
        return nn.functional.layer_norm(x, x.shape[-1:], w[f"{half}.norm.weight"], w[f"{half}.norm.bias"])

    def words(ids, half):
        t, i = (torch.arange(*of, dtype=torch.float64) for of in ((ids.shape[1],), (0, o.hidden, 2)))
        angle = t[:, None] / 10000 ** (i / o.hidden)
        place = torch.stack([angle.sin(), angle.cos()], -1).reshape(len(t), o.hidden)
        return w[f"{half}.words.table.weight"][ids] * o.hidden ** 0.5 + place

    def loss(batch):
        number = {word: i for i, word in enumerate(["a", "b", "c", "d"], 4)}
        of = [[[number[word] for word in side] for side in (p.source, p.target)] for p in batch]
        pad = lambda rows: nn.utils.rnn.pad_sequence([torch.tensor(r) for r in rows], batch_first=True)  # noqa: E731
        source, before, after = (pad(rows) for rows in zip(*(([*s, 2], [1, *t], [*t, 2]) for s, t in of), strict=True))
        x, hidden = words(source, "encoder"), source == 0
        for layer in layers["encoder"]:
            x = layer(x, src_key_padding_mask=hidden)
        h, y = last(x, "encoder"), words(before, "decoder")
        later = torch.triu(torch.ones(before.shape[1], before.shape[1], dtype=torch.bool), 1)
        for layer in layers["decoder"]:
            y = layer(y, h, tgt_mask=later, memory_key_padding_mask=hidden)
        table = w["decoder.words.table.weight"] if o.tie else w["decoder.output.weight"]
        logits = last(y, "decoder") @ table.T + w["decoder.output.bias"]
        return nn.functional.cross_entropy(logits.flatten(0, 1), after.flatten(), ignore_index=0,
                                           label_smoothing=translator.label_smoothing)

    return loss, owned, pairs


@pytest.mark.parametrize("options", [{"norm": "post", "tie": True}, {"norm": "pre", "tie": True},
                                     {"norm": "pre", "tie": False, "label_smoothing": 0.0}], ids=str)
def test_20_adam_steps_equal_the_same_model_in_pytorch(options):
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)  # small matrices: two threads take longer
    translator = system(dropout=0.0, **options)
    translator.model.to(F64)
    loss, owned, pairs = torch_twin(torch, translator)
    ours, theirs = optim.Adam(translator.model.parameters(), lr=1e-3), torch.optim.Adam(owned, lr=1e-3)
    rng = np.random.default_rng(0)
    for _ in range(20):
        sentences = random_pairs(rng)
        a, b = translator.loss(sentences)[0], loss(sentences)
        assert abs(a.item() - b.item()) < 1e-8
        ours.zero_grad()
        theirs.zero_grad()
        a.backward()
        b.backward()
        for name, p in translator.model.named_parameters():  # 0 but for rounding, which Adam would divide by itself
            if name.endswith("k_proj.bias"):
                p.grad = Tensor(np.zeros(p.shape))
        for tensor in owned:
            if tensor.ndim == 1 and len(tensor) == 3 * translator.options.hidden:
                tensor.grad[translator.options.hidden:2 * translator.options.hidden] = 0
        optim.clip_grad_norm(translator.model.parameters(), 1.0)
        torch.nn.utils.clip_grad_norm_(owned, 1.0)
        ours.step()
        theirs.step()
    for name, p in translator.model.named_parameters():
        np.testing.assert_allclose(p.numpy(), pairs[name].detach().numpy(), rtol=0, atol=1e-8, err_msg=name)


# ---------------------------------------------------------------------------------------------------------------------
# one word at a time
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("options", KINDS, ids=str)
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 1e-6)])
def test_decoding_with_a_cache_equals_the_full_forward(options, dtype, tolerance):
    model, (source, n, before, _) = small(dtype=dtype, **options), batch()
    with no_grad():
        full = model(source, n, before).numpy()
        h, summary = model.encoder(source, n)
        memory, state = model.decoder.prepare(h, summary, n), model.decoder.first_state(summary)
        for t in range(before.shape[1]):
            logits, state = model.decoder.next_word(before[:, t], state, memory, summary)
            np.testing.assert_allclose(logits.numpy(), full[:, t], atol=tolerance)


def test_keys_and_values_of_the_source_are_computed_once_a_sentence(monkeypatch):
    model, (source, n, _, _) = small(), batch()
    calls = []
    for layer in model.decoder.layers:
        for projection in (layer.cross.sublayer.k_proj, layer.cross.sublayer.v_proj):
            forward = projection.forward
            monkeypatch.setattr(projection, "forward", lambda x, f=forward: calls.append(x.shape) or f(x))
    beam_search(model, source, n, 1, 2, width=2, longest=6)
    assert calls == [(3, 5, 8)] * 4


class WithoutCache:
    """The decoder's face for `beam_search`, which runs the whole decoder on all words so far at every step."""

    def __init__(self, model, source, lengths):
        self.encoder, self.decoder, self.model = model.encoder, self, model

    def prepare(self, h, summary, lengths):
        return {"h": h, "lengths": lengths}

    def first_state(self, summary):
        return (Tensor(np.zeros((len(summary), 0), np.int64)),)

    def next_word(self, ids, state, memory, summary):
        words = Tensor(np.concatenate([state[0].numpy(), ids.numpy()[:, None]], 1))
        logits = self.model.decoder(words, memory["h"], summary, memory["lengths"])
        return logits[:, -1], (words,)


@pytest.mark.parametrize("width", [1, 3, 5])
@pytest.mark.parametrize("options", [KINDS[0], KINDS[4], KINDS[1]], ids=str)
def test_a_beam_with_caches_finds_what_one_without_finds(width, options):
    for seed in range(4):
        model, (source, n, _, _) = small(seed, **options), batch(seed)
        with_it = beam_search(model, source, n, 1, 2, width, longest=9)
        assert with_it == beam_search(WithoutCache(model, source, n), source, n, 1, 2, width, longest=9)


def test_a_wide_beam_finds_the_most_probable_translation_by_enumeration():
    model, (source, n, _, _) = small(7), batch(2)
    source, n, scores = source[:1], n[:1], {}
    for length in range(4):
        for words in itertools.product([0, 1, *range(3, 8)], repeat=length):
            log_p = model(source, n, Tensor([[1, *words]])).log_softmax().numpy()[0]
            scores[words] = sum(log_p[t, word] for t, word in enumerate([*words, 2])) / (length + 1)
    assert beam_search(model, source, n, 1, 2, width=600, longest=4)[0] == list(max(scores, key=scores.get))


# ---------------------------------------------------------------------------------------------------------------------
# attention to the source
# ---------------------------------------------------------------------------------------------------------------------
def test_weights_of_every_head_are_there_and_the_alignment_is_their_mean():
    model, data = small(layers=3), batch()
    found = model.weights_by_head(*data[:3])
    assert {name: [w.shape for w in layers] for name, layers in found.items()} == {
        "encoder": [(3, 2, 5, 5)] * 3, "decoder": [(3, 2, 7, 7)] * 3, "cross": [(3, 2, 7, 5)] * 3}
    for layers in found.values():
        for w in layers:
            np.testing.assert_allclose(w.sum(-1), 1, atol=1e-12)
    assert all((w[1, :, :, 2:] == 0).all() for w in (*found["encoder"], *found["cross"]))
    assert all((np.triu(w, 1) == 0).all() for w in found["decoder"])
    mean = sum(w[:, head] for w in found["cross"] for head in range(2)) / 6
    np.testing.assert_allclose(model.alignment(*data[:3]), mean, atol=1e-12)


def test_weights_by_word_are_of_the_step_that_predicts_it_or_of_the_one_that_reads_it():
    model, (source, n, before, after) = small(), batch()
    predicts, reads = (model.word_weights(source, n, before, after, lag) for lag in (0, 1))
    steps = np.concatenate([np.ones((3, 1), int), after.numpy()], 1)
    for t in range(7):
        real = after.numpy()[:, t] != 0
        for rows, at in ((predicts, t), (reads, t + 1)):
            alone = model.alignment(source, n, Tensor(steps[:, :at + 1]))
            np.testing.assert_allclose(rows[real, t], alone[real, -1], atol=1e-12)


def test_without_attention_the_source_is_its_mean():
    model, (source, n, before, after) = small(attention="none"), batch()
    assert model.alignment(source, n, before) is None and model.word_weights(source, n, before, after, 1) is None
    assert set(model.weights_by_head(source, n, before)) == {"encoder", "decoder"}
    h, summary = model.encoder(source, n)
    np.testing.assert_allclose(summary.numpy()[1], h.numpy()[1, :2].mean(0), atol=1e-12)
    assert np.abs(summary.numpy() - h.numpy().mean(1)).max() > 1e-3


# ---------------------------------------------------------------------------------------------------------------------
# tied words, smoothed labels, the learning rate
# ---------------------------------------------------------------------------------------------------------------------
def test_tied_words_are_one_tensor_counted_saved_and_stepped_once_with_the_gradient_of_both_uses():
    tied, loose = small(tie=True), small(tie=False)
    table, output = tied.decoder.words.table.weight, tied.decoder.output.weight
    assert table is output
    assert loose.number_of_parameters() - tied.number_of_parameters() == table.size
    assert "decoder.words.table.weight" in tied.state_dict() and "decoder.output.weight" not in tied.state_dict()
    state = {**loose.state_dict(), "decoder.output.weight": loose.state_dict()["decoder.words.table.weight"]}
    loose.load_state_dict(state)
    tied.load_state_dict(state)
    for model in (tied, loose):
        model.loss(*batch()).backward()
    both = loose.decoder.words.table.weight.grad.numpy() + loose.decoder.output.weight.grad.numpy()
    np.testing.assert_allclose(table.grad.numpy(), both, atol=1e-12)
    before = table.numpy().copy()
    optim.SGD(tied.parameters(), lr=0.5).step()
    np.testing.assert_allclose(table.numpy(), before - 0.5 * both, atol=1e-12)


def test_smoothed_labels_by_hand_with_ignored_places_and_none_in_validation():
    translator = system(label_smoothing=0.3, dropout=0.0)
    translator.model.to(F64)
    pairs = random_pairs(np.random.default_rng(1), 3)
    source, n, before, after = translator.tensors(pairs)
    log_p, after = translator.model(source, n, before).log_softmax().numpy(), after.numpy()
    assert (after == 0).any()
    total = plain = count = 0
    for row, targets in zip(log_p, after, strict=True):
        for q, target in zip(row, targets, strict=True):
            if target != 0:
                wanted = np.full(8, 0.3 / 8)
                wanted[target] += 0.7
                total, plain, count = total - wanted @ q, plain - q[target], count + 1
    loss, words = translator.loss(pairs)
    assert words == count == sum(len(p.target) + 1 for p in pairs)
    assert loss.item() == pytest.approx(total / count, abs=1e-12)
    assert translator.mean_loss(pairs) == pytest.approx(plain / count, abs=1e-12)
    translator.model.train()
    assert translator.loss(pairs)[0].item() == pytest.approx(total / count, abs=1e-12)


@pytest.mark.parametrize(("options", "share"), [
    ({}, 0.1), ({"label_smoothing": 0.0}, 0), ({"label_smoothing": 0.2}, 0.2), ({"decoder": "bahdanau"}, 0),
    ({"decoder": "luong"}, 0), ({"decoder": "bahdanau", "label_smoothing": 0.2}, 0.2)])
def test_labels_are_smoothed_as_asked_or_as_the_decoder_has_it(options, share):
    options = {"heads": 4, "hidden": 64} | options if options.get("decoder") else options
    translator, pairs = system(dropout=0.0, **options), random_pairs(np.random.default_rng(2), 4)
    source, n, before, after = translator.tensors(pairs)
    expected = cross_entropy(translator.model(source, n, before), after, 0, share).item()
    assert translator.loss(pairs)[0].item() == pytest.approx(expected, rel=1e-6)


def test_the_papers_learning_rate():
    rate = optim.inverse_sqrt(4000, width=512)
    assert rate(1) == pytest.approx(1.7469e-7, rel=1e-4) and rate(4000) == pytest.approx(6.9877e-4, rel=1e-4)
    assert rate(100_000) == pytest.approx(512 ** -0.5 * 100_000 ** -0.5) and rate(2000) == pytest.approx(rate(4000) / 2)
    assert max(range(1, 20_000), key=rate) == 4000


def test_the_decoder_proposes_how_it_is_trained():
    by_decoder = {d: Config.proposed(Translate, Options(decoder=d)) for d in ("bahdanau", "luong", "transformer")}
    assert by_decoder["bahdanau"].steps == by_decoder["luong"].steps == Translate.Training().steps
    own = by_decoder["transformer"]
    assert own.warmup > 0 and own.learning_rate < Translate.Training().learning_rate
    assert Config.proposed(Translate, Options(decoder="transformer"), steps=5, warmup=2).warmup == 2


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_it_learns_to_copy(norm):
    ta.manual_seed(2)
    model = Transformer(9, 9, 16, 1, 2, 32, norm)
    step, rng = optim.Adam(model.parameters(), lr=1e-2), np.random.default_rng(1)

    def copying(count):
        sentences = [rng.permutation(np.arange(4, 9))[:rng.integers(3, 6)].tolist() for _ in range(count)]
        return (*pack([[*s, 2] for s in sentences]), pack([[1, *s] for s in sentences])[0],
                pack([[*s, 2] for s in sentences])[0])

    for _ in range(200):
        model.zero_grad()
        model.loss(*copying(32)).backward()
        optim.clip_grad_norm(model.parameters(), 1.0)
        step.step()
    source, n = pack([[4, 6, 8, 5, 2], [7, 5, 6, 2]])
    for width in (1, 3):
        assert beam_search(model, source, n, 1, 2, width) == [[4, 6, 8, 5], [7, 5, 6]]


# ---------------------------------------------------------------------------------------------------------------------
# options and runs
# ---------------------------------------------------------------------------------------------------------------------
def test_defaults_of_the_decoder():
    translator = system(hidden=12, heads=3)
    assert (translator.options.attention, translator.options.dropout) == ("multi_head", 0.05)
    assert (Options().attention, Options().dropout, Options(dropout=0.0).dropout) == ("additive", 0.15, 0.0)
    layer = translator.model.encoder.layers[0]
    assert layer.feed_forward.sublayer.into.weight.shape == (48, 12) and layer.attention.sublayer.heads == 3
    assert "transformer" in translator.describe() and "post-norm" in translator.describe()


@pytest.mark.parametrize(("options", "message"), [
    *(({name: value}, f"{name} {value!r} is an option of --decoder .*; the decoder is transformer") for name, value in (
        ("cell", "lstm"), ("embed", 32), ("align", 3), ("context", "start"), ("bidirectional", False),
        ("reverse_source", True), ("init", "paper"), ("score", "dot"), ("input_feeding", False), ("window", 2))),
    *(({"decoder": decoder, "hidden": 64, "heads": 4, name: value},
       f"{name} {value!r} is an option of --decoder transformer; the decoder is {decoder}")
      for decoder in ("bahdanau", "luong") for name, value in (
          ("layers", 3), ("heads", 2), ("feed_forward", 7), ("norm", "pre"), ("tie", True))),
    ({"decoder": "transformers"}, "decoder of bahdanau, luong, transformer, got 'transformers'"),
    ({"attention": "additive"}, "attention of a transformer to be multi_head or none, got 'additive'"),
    ({"hidden": 9}, "hidden to be a multiple of heads, got 9 and 2"), ({"layers": 0}, "layers and heads of at least 1"),
    ({"heads": 0}, "layers and heads of at least 1"), ({"feed_forward": -1}, "feed_forward of at least 0"),
    ({"label_smoothing": 1.0}, "label_smoothing between 0 and 1"), ({"label_smoothing": -0.5}, "label_smoothing"),
    ({"label_smoothing": float("nan")}, "label_smoothing"), ({"dropout": 1.0}, "dropout")], ids=str)
def test_bad_options_are_one_line(options, message):
    with pytest.raises(InputError, match=message) as refused:
        system(**options)
    assert "\n" not in str(refused.value)
    assert set(OF) <= {f.name for f in dataclasses.fields(Options)}


def pairs_file(folder, count=40):
    rng = np.random.default_rng(0)
    lines = [" ".join(rng.choice(list("abcd"), rng.integers(2, 6))) for _ in range(count)]
    (folder / "pairs.tsv").write_text("".join(f"{line}\t{line}\n" for line in lines))
    return [str(folder / "pairs.tsv")]


def test_a_run_goes_on_bit_for_bit_and_its_checkpoint_gives_the_same_translations(tmp_path):
    paths = pairs_file(tmp_path)
    options = Options(decoder="transformer", hidden=8, heads=2, norm="pre", tie=True, dropout=0.2)
    translators = {}
    for run, stops in (("whole", [None]), ("parts", [3, None])):
        for i, stop in enumerate(stops):
            translator = translators[run] = Translate.prepare(options, paths, seed=1)
            config = Config.of(translator, data=tuple(paths), steps=6, batch_size=8, validate_every=2, warmup=4, seed=1)
            train(translator, config, tmp_path / run, resume=i > 0, stop_at=stop)
    for name, a in translators["whole"].model.state_dict().items():
        np.testing.assert_array_equal(a, translators["parts"].model.state_dict()[name])
    restored, _ = checkpoint.restore(tmp_path / "parts")
    assert restored.model.decoder.words.table.weight is restored.model.decoder.output.weight
    a, b = translators["whole"].predict("a b d", beam=3), restored.predict("a b d", beam=3)
    assert a.target == b.target
    np.testing.assert_array_equal(a.weights, b.weights)


def test_a_prediction_shows_the_mean_and_on_request_every_head():
    one = system()
    found = one.predict("a b d")
    assert [look.title for look in found.looks] == ["mean of 4 heads"]
    cross = [look for look in found.finest if look.place["kind"] == "cross"]
    assert [look.place for look in cross] == [
        {"kind": "cross", "layer": i, "head": j} for i in (1, 2) for j in (1, 2)]
    assert {np.shape(look.weights) for look in cross} == {(len(found.target) + 1, 4)}
    np.testing.assert_allclose(np.mean([look.weights for look in cross], 0), found.weights, atol=1e-6)
    nothing = system(attention="none").predict("a b d")
    assert nothing.looks == nothing.finest == []
    assert [look.title for look in system(decoder="luong", hidden=64, heads=4).predict("a b").looks] == [""]


def test_evaluate_measures_the_alignment_both_ways():
    pair = Pair(("a", "b", "c"), ("c", "b", "a"), frozenset({(0, 2), (1, 1), (2, 0)}), frozenset())
    translator = system()
    translator.whole = [pair] * 2
    figures = translator.evaluate("all")
    assert {name for name in figures if name.startswith("aer")} == {"aer", "aer_next_step"}
    links = {"aer": [{(1, 0)}], "aer_next_step": [{(0, 2), (1, 1)}]}  # of lag 0 and of lag 1
    translator.links = lambda pairs, lag: list(links.values())[lag] * len(pairs)
    figures = translator.evaluate("all")
    assert figures["aer"] == 1.0 and figures["aer_next_step"] == pytest.approx(1 - 4 / 5)
    baseline = system(attention="none")
    baseline.whole = [pair]
    assert not any(name.startswith("aer") for name in baseline.evaluate("all"))


def test_the_command_line_takes_every_option_and_resumes_predicts_and_draws(tmp_path, capsys):
    from tinyattn.cli import main
    paths, run = pairs_file(tmp_path), str(tmp_path / "r")
    flags = ["--decoder", "transformer", "--layers", "1", "--heads", "2", "--hidden", "8", "--feed-forward", "10",
             "--norm", "pre", "--tie", "--label-smoothing", "0.2", "--dropout", "0.2"]
    assert main(["train", "translate", "--data", *paths, *flags, "--steps", "4", "--batch-size", "8",
                 "--validate-every", "2", "--stop-at", "2", "--run", run]) == 0
    assert main(["train", "translate", "--resume", "--run", run, "--baseline"]) == 0
    saved = {name: json.loads((tmp_path / "r" / name / "config.json").read_text()) for name in (".", "baseline")}
    expected = {"decoder": "transformer", "layers": 1, "heads": 2, "hidden": 8, "feed_forward": 10, "norm": "pre",
                "tie": True, "label_smoothing": 0.2, "dropout": 0.2}
    assert expected.items() <= saved["."]["options"].items()
    assert [saved[name]["options"]["attention"] for name in saved] == ["multi_head", "none"]
    proposed = Config.proposed(Translate, Options(decoder="transformer"))
    assert (saved["."]["warmup"], saved["."]["learning_rate"]) == (proposed.warmup, proposed.learning_rate)
    for picture in ("alignment.svg", "graph.svg", "curve.svg"):
        assert (tmp_path / "r" / picture).is_file()
    capsys.readouterr()
    assert main(["predict", run, "a b", "--beam", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert np.shape(found["weights"]) == (len(found["target"]) + 1, 3)
    assert main(["train", "translate", "--resume", "--run", run, "--norm", "post"]) == 2
    assert "norm: the run has pre, now it is post" in capsys.readouterr().err
    assert main(["train", "translate", "--decoder", "transformer", "--cell", "lstm", "--data", *paths]) == 2
    assert "cell 'lstm' is an option of --decoder bahdanau or luong" in capsys.readouterr().err


def test_runs_from_before_there_was_a_transformer_load(tmp_path):
    paths = pairs_file(tmp_path)
    translator = Translate.prepare(Options(hidden=6, embed=5), paths, seed=1)
    config = Config.of(translator, data=tuple(paths), steps=4, batch_size=8, validate_every=2, seed=1)
    train(translator, config, tmp_path / "old", stop_at=2)
    saved = checkpoint.load(tmp_path / "old")
    new = ("layers", "heads", "feed_forward", "norm", "tie", "label_smoothing")
    old = {k: v for k, v in saved.config["options"].items() if k not in new}
    checkpoint.save(tmp_path / "old", dataclasses.replace(saved, config={**saved.config, "options": old}))
    restored, _ = checkpoint.restore(tmp_path / "old")
    assert restored.options == translator.options
    restored.attach(paths, seed=1)
    train(restored, config, tmp_path / "old", resume=True)


def test_both_norms_are_drawn():
    from tinyattn.models.transformer import PreNormEncoderLayer
    from tinyattn.nn import example_of
    from viz import graph
    drawn = {}
    for cls in (EncoderLayer, PreNormEncoderLayer):
        layer, inputs = example_of(cls, np.random.default_rng(0), np.float32)
        drawn[cls] = graph(layer(*inputs), names=layer, depth=2)
    assert drawn[EncoderLayer].nodes == drawn[PreNormEncoderLayer].nodes == 7
    assert str(drawn[EncoderLayer].dot) != str(drawn[PreNormEncoderLayer].dot)
