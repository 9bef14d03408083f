"""The translator with Luong's decoder: the same in PyTorch, all steps at once, search, alignment, all combinations."""
import dataclasses
import json

import numpy as np
import pytest

import tinyattn as ta
from tinyattn import InputError, Tensor, checkpoint, optim
from tinyattn.attention import find, table
from tinyattn.autograd import capture
from tinyattn.config import Config
from tinyattn.gradcheck import gradcheck
from tinyattn.models.luong import Luong
from tinyattn.models.search import beam_search
from tinyattn.models.seq2seq import Seq2Seq, pack
from tinyattn.models.translate import Options, Translate
from tinyattn.tasks.text import Vocabulary
from tinyattn.tasks.translate import Pair
from tinyattn.train import train

F64 = np.float64
SCORES = ("dot", "general", "additive", "location")
FORMS = [{"attention": a, "score": s, "window": w} for a, w in (("luong_global", 0), ("local_m", 1), ("local_p", 2))
         for s in SCORES]
KINDS = [{"attention": "luong_global", "score": "general"}, {"attention": "local_m", "score": "dot", "window": 1},
         {"attention": "local_p", "score": "additive", "window": 2, "cell": "gru"},
         {"attention": "location", "bidirectional": False}, {"attention": "entmax15", "cell": "rnn"},
         {"attention": "memory"}, {"attention": "none"}, {"attention": "none", "context": "start", "cell": "gru"}]
BOTH = [{**kind, "input_feeding": feeding} for kind in KINDS for feeding in (True, False)]


def small(seed=1, **options):
    ta.manual_seed(seed)
    return Luong(9, 8, 4, 3, **{"longest": 6, **options}).to(F64)


def batch(seed=0, lengths=((5, 4), (2, 6), (4, 1))):
    rng = np.random.default_rng(seed)
    sources = [rng.integers(4, 9, s).tolist() for s, _ in lengths]
    targets = [rng.integers(4, 8, t).tolist() for _, t in lengths]
    source, n = pack(sources)
    return source, n, pack([[1, *t] for t in targets])[0], pack([[*t, 2] for t in targets])[0]


def logits_by_steps(model, source, n, before):
    """What `next_word` says of each word, with the true words before it."""
    h, summary = model.encoder(source, n)
    memory, state = model.decoder.prepare(h, summary, n), model.decoder.first_state(summary)
    out = []
    for t in range(before.shape[1]):
        logits, state = model.decoder.next_word(before[:, t], state, memory, summary)
        out.append(logits.numpy())
    return np.stack(out, 1)


# ---------------------------------------------------------------------------------------------------------------------
# what is computed
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("options", BOTH, ids=str)
def test_gradients_of_the_whole_translator_and_every_parameter_is_learnt(options):
    model, data = small(**options), batch()
    report = gradcheck(lambda: model.loss(*data), [], parameters=dict(model.named_parameters()))
    assert report.ok, str(report)
    model.loss(*data).backward()
    for name, p in model.named_parameters():
        assert p.grad is not None and np.abs(p.grad.numpy()).max() > 0, name


@pytest.mark.parametrize("options", [*BOTH, *FORMS], ids=str)
def test_one_word_at_a_time_equals_teacher_forcing(options):
    model, (source, n, before, _) = small(**options), batch()
    np.testing.assert_allclose(logits_by_steps(model, source, n, before), model(source, n, before).numpy(), atol=1e-12)


@pytest.mark.parametrize("options", BOTH, ids=str)
def test_a_padded_batch_equals_each_sentence_alone(options):
    model, (source, n, before, after) = small(**options), batch()
    together = model(source, n, before).numpy()
    for i, length in enumerate(n.tolist()):
        words = int((after.numpy()[i] != 0).sum())
        alone = model(source[i:i + 1, :length], n[i:i + 1], before[i:i + 1, :words]).numpy()
        np.testing.assert_allclose(together[i, :words], alone[0], atol=1e-12)


@pytest.mark.parametrize("options", FORMS, ids=str)
def test_all_at_once_equals_step_by_step_with_nothing_fed(options):
    """Input feeding with a matrix of zeros is none; without it there is one scan and one call of the mechanism."""
    at_once, fed = small(**options, input_feeding=False), small(**options)
    zeros = {"decoder.from_fed.weight": np.zeros_like(fed.decoder.from_fed.weight.numpy())}
    fed.load_state_dict({**at_once.state_dict(), **zeros})
    source, n, before, after = batch()
    np.testing.assert_allclose(at_once(source, n, before).numpy(), fed(source, n, before).numpy(), atol=1e-12)
    with capture() as seen:
        at_once(source, n, before)
    assert [w.shape for w in seen["weights"]] == [(3, 7, 5)]
    for model in (at_once, fed):
        model.loss(source, n, before, after).backward()
    for name, p in at_once.named_parameters():
        np.testing.assert_allclose(p.grad.numpy(), dict(fed.named_parameters())[name].grad.numpy(), atol=1e-12)


def test_what_was_found_is_told_to_the_next_step():
    model, (source, n, before, _) = small(), batch()
    with_it = model(source, n, before).numpy()
    model.decoder.from_fed.weight.array[:] = 0
    without = model(source, n, before).numpy()
    np.testing.assert_allclose(with_it[:, 0], without[:, 0], atol=1e-12)       # h~_0 is 0
    assert np.abs(with_it[:, 1:] - without[:, 1:]).max(-1).min() > 1e-6


def test_keys_are_prepared_once_a_sentence(monkeypatch):
    calls, module = [], find("additive").module
    prepare = module.prepare
    monkeypatch.setattr(module, "prepare", lambda k, w_k: calls.append(1) or prepare(k, w_k))
    model, (source, n, before, _) = small(attention="local_p", score="additive"), batch()
    calls.clear()
    model(source, n, before)
    beam_search(model, source, n, 1, 2, width=2, longest=5)
    assert len(calls) == 2


# ---------------------------------------------------------------------------------------------------------------------
# the same in PyTorch
# ---------------------------------------------------------------------------------------------------------------------
def torch_twin(torch, model, form, score, feeding, window):
    """The equations of models/luong.py, one sentence and one step at a time, on the same weights."""
    w = {name: torch.tensor(p.numpy().copy(), requires_grad=True) for name, p in model.named_parameters()}
    a = {name.rpartition(".")[2]: p for name, p in w.items() if name.startswith("decoder.attention.")}

    def lstm(x, h, c, u, bias):
        i, f, g, o = (x + u @ h + bias).chunk(4)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c

    def read(x, suffix):
        u, bias = w["encoder.rnn.weight_hh_l0" + suffix], w["encoder.rnn.bias_hh_l0" + suffix]
        h = c = torch.zeros(u.shape[1], dtype=x.dtype)
        out = []
        for x_t in x @ w["encoder.rnn.weight_ih_l0" + suffix].T + w["encoder.rnn.bias_ih_l0" + suffix]:
            h, c = lstm(x_t, h, c, u, bias)
            out.append(h)
        return torch.stack(out)

    def found(h, hs, t):
        S = len(hs)
        e = {"dot": lambda: hs @ h, "general": lambda: hs @ (h @ a["w"]), "location": lambda: a["w"][:S] @ h,
             "additive": lambda: torch.tanh(a["w_q"] @ h + hs @ a["w_k"].T) @ a["v_a"]}[score]()
        places = torch.arange(S, dtype=e.dtype)
        p = torch.tensor(min(t, S - 1), dtype=e.dtype)
        if form == "local_p":
            p = S * torch.sigmoid(a["v_p"] @ torch.tanh(a["w_p"] @ h))
        if form != "luong_global":
            e = e.masked_fill((places - p.floor()).abs() > window, -torch.inf)
        alpha = torch.softmax(e, -1)
        return (alpha * torch.exp(-(places - p) ** 2 / (2 * (window / 2) ** 2)) if form == "local_p" else alpha) @ hs

    def loss(source, n, before, after):
        total, count = 0.0, 0
        for ids, length, words, answers in zip(*(x.tolist() for x in (source, n, before, after)), strict=True):
            x = w["encoder.embedding.weight"][ids[:length]]
            there, back = read(x, ""), read(x.flip(0), "_reverse").flip(0)
            hs = torch.cat([there, back], -1) @ w["decoder.bridge.weight"].T
            summary = torch.cat([there[-1], back[0]])
            h = torch.tanh(w["decoder.start.weight"] @ summary + w["decoder.start.bias"])
            c, fed = torch.zeros_like(h), torch.zeros_like(h)
            for t in range(sum(y != 0 for y in answers)):
                word = w["decoder.embedding.weight"][words[t]]
                gates = w["decoder.from_word.weight"] @ word + w["decoder.from_word.bias"]
                gates = gates + w["decoder.from_fed.weight"] @ fed if feeding else gates
                h, c = lstm(gates, h, c, w["decoder.w_hh"], 0)
                fed = torch.tanh(w["decoder.w_c"] @ torch.cat([found(h, hs, t), h]))
                logits = w["decoder.output.weight"] @ fed + w["decoder.output.bias"]
                total, count = total - torch.log_softmax(logits, -1)[answers[t]], count + 1
        return total / count

    return loss, w


@pytest.mark.parametrize(("form", "score", "feeding", "window"), [
    ("luong_global", "general", True, 0), ("luong_global", "dot", False, 0), ("luong_global", "location", False, 0),
    ("local_m", "additive", True, 1), ("local_p", "general", True, 2), ("local_p", "additive", False, 3)])
def test_5_training_steps_equal_the_same_model_in_pytorch(form, score, feeding, window):
    torch = pytest.importorskip("torch")
    model = small(attention=form, score=score, input_feeding=feeding, window=window)
    loss, w = torch_twin(torch, model, form, score, feeding, window)
    ours, theirs = optim.Adam(model.parameters(), lr=1e-2), torch.optim.Adam(list(w.values()), lr=1e-2)
    for step in range(5):
        data = batch(step)
        a, b = model.loss(*data), loss(*data)
        assert abs(a.item() - b.item()) < 1e-9
        model.zero_grad()
        theirs.zero_grad()
        a.backward()
        b.backward()
        ours.step()
        theirs.step()
    for name, p in model.named_parameters():
        np.testing.assert_allclose(p.numpy(), w[name].detach().numpy(), rtol=0, atol=1e-8, err_msg=name)


# ---------------------------------------------------------------------------------------------------------------------
# search
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("options", BOTH, ids=str)
def test_search_equals_running_the_whole_decoder(options):
    model, (source, n, _, _) = small(3, **options), batch(4)
    found = beam_search(model, source, n, 1, 2, width=1, longest=7)
    for i, length in enumerate(n.tolist()):
        words = [1]
        while len(words) < 8 and words[-1] != 2:
            words.append(int(model(source[i:i + 1, :length], n[i:i + 1], Tensor([words])).numpy()[0, -1].argmax()))
        assert found[i] == [x for x in words[1:] if x != 2]


def test_a_wide_beam_finds_the_most_probable_translation_by_enumeration():
    import itertools
    model, (source, n, _, _) = small(7, attention="local_m", score="general", window=1), batch(2)
    source, n = source[:1], n[:1]
    scores = {}
    for length in range(4):
        for words in itertools.product([0, 1, *range(3, 8)], repeat=length):
            log_p = model(source, n, Tensor([[1, *words]])).log_softmax().numpy()[0]
            scores[words] = sum(log_p[t, word] for t, word in enumerate([*words, 2])) / (length + 1)
    assert beam_search(model, source, n, 1, 2, width=600, longest=4)[0] == list(max(scores, key=scores.get))


# ---------------------------------------------------------------------------------------------------------------------
# which word a step's weights belong to
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("options", [k for k in BOTH if k["attention"] != "none"], ids=str)
def test_weights_by_word_are_of_the_step_that_predicts_it_or_of_the_one_that_reads_it(options):
    model, (source, n, before, after) = small(**options), batch()
    predicts, reads = (model.word_weights(source, n, before, after, lag) for lag in (0, 1))
    assert predicts.shape == reads.shape == (3, 7, 5)
    steps = np.concatenate([np.ones((3, 1), int), after.numpy()], 1)           # the end mark is read as well
    for t in range(7):
        real = after.numpy()[:, t] != 0
        for rows, at in ((predicts, t), (reads, t + 1)):
            alone = model.alignment(source, n, Tensor(steps[:, :at + 1]))
            np.testing.assert_allclose(rows[real, t], alone[real, -1], atol=1e-12)


def test_without_attention_there_are_no_weights():
    assert small(attention="none").word_weights(*batch()) is None
    assert small(attention="none").word_weights(*batch(), lag=1) is None


def test_bahdanaus_weights_by_word_are_those_of_its_steps():
    model, data = Seq2Seq(9, 8, 4, 3), batch()
    np.testing.assert_array_equal(model.word_weights(*data), model.alignment(*data[:3]))


@pytest.mark.parametrize("options", [
    {"attention": "luong_global", "score": "dot"},
    {"attention": "local_p", "score": "general", "input_feeding": False}], ids=str)
def test_it_learns_to_copy_and_each_word_comes_from_the_step_that_predicts_it(options):
    ta.manual_seed(2)
    model = Luong(9, 9, 16, 16, cell="gru", **options)
    step, rng = optim.Adam(model.parameters(), lr=1e-2), np.random.default_rng(1)

    def copying(count):
        sentences = [rng.permutation(np.arange(4, 9))[:rng.integers(3, 6)].tolist() for _ in range(count)]
        return (*pack([[*s, 2] for s in sentences]), pack([[1, *s] for s in sentences])[0],
                pack([[*s, 2] for s in sentences])[0])

    for _ in range(300):
        loss = model.loss(*copying(16))
        model.zero_grad()
        loss.backward()
        optim.clip_grad_norm(model.parameters(), 1.0)
        step.step()
    source, n = pack([[4, 6, 8, 5, 2], [7, 5, 6, 2]])
    for width in (1, 3):
        assert beam_search(model, source, n, 1, 2, width) == [[4, 6, 8, 5], [7, 5, 6]]
    data = copying(64)
    words = data[3].numpy() > 2
    right = [(model.word_weights(*data, lag).argmax(-1) == np.arange(words.shape[1]))[words].mean() for lag in (0, 1)]
    assert right[0] > 0.9 and right[1] < 0.5


# ---------------------------------------------------------------------------------------------------------------------
# as a system
# ---------------------------------------------------------------------------------------------------------------------
def system(**options):
    ta.manual_seed(0)
    words = Vocabulary.build([["a", "b", "c", "d"]])
    return Translate(Options(**{"decoder": "luong", "hidden": 6, "embed": 5, **options}), words, words)


def pairs_file(folder, count=40):
    rng = np.random.default_rng(0)
    lines = [" ".join(rng.choice(list("abcd"), rng.integers(2, 6))) for _ in range(count)]
    (folder / "pairs.tsv").write_text("".join(f"{line}\t{line}\n" for line in lines))
    return [str(folder / "pairs.tsv")]


@pytest.mark.parametrize("options", [
    *({**form, "input_feeding": feeding} for form in FORMS for feeding in (True, False)), *BOTH,
    *({"attention": "luong_global", "cell": cell, "bidirectional": way, "reverse_source": not way, "init": init}
      for cell in ("rnn", "gru", "lstm") for way, init in ((True, "modern"), (False, "paper")))], ids=str)
def test_every_combination_trains_two_steps_and_predicts(options):
    translator = system(**options)
    step, pairs = optim.Adam(translator.model.parameters(), lr=1e-2), [Pair(("a", "b", "c"), ("b", "a")),
                                                                       Pair(("d",), ("d", "c", "a", "b"))]
    losses = []
    for _ in range(3):
        loss, words = translator.loss(pairs)
        losses.append(loss.item())
        translator.model.zero_grad()
        loss.backward()
        step.step()
    assert words == 8 and losses[2] < losses[0]
    for beam in (1, 3):
        found = translator.predict("a c d", beam=beam)
        assert set(found.target) <= {"a", "b", "c", "d", "<unk>", "<pad>", "<s>"}
        if options["attention"] == "none":
            assert found.weights is None
        else:
            assert found.weights.shape == (len(found.target) + 1, 4) and (found.weights >= 0).all()
    assert "luong" in translator.describe() and translator.example_graph().item() > 0


def test_each_score_of_the_package_serves_and_no_two_parameters_share_a_name():
    scores = [name for name, v in table().items() if v.is_score]
    assert {"dot", "general", "additive", "location"} < set(scores)
    for name in ("luong_global", "local_m", "local_p"):
        for score in scores:
            found = dict(system(attention=name, score=score).model.decoder.attention)
            assert set(found) == {*find(name).params, *find(score).params}
            assert not {*find(name).params} & {*find(score).params}


def test_location_knows_as_many_places_as_the_longest_sentence_has_words_and_longer_ones_lose_the_tail():
    translator = system(attention="location", max_length=3)
    assert translator.model.decoder.attention["w"].shape == (4, 6)
    weights = translator.predict("a b c d a b").weights
    assert (weights[:, 4:] == 0).all() and (weights[:, :4] > 0).all()


def test_a_word_that_looked_at_no_source_word_has_no_link():
    translator = system()
    translator.weights = lambda pairs, lag: [np.array([[0.1, 0.7, 0.2], [0.0, 0.0, 1.0], [0.3, 0.3, 0.4]])]
    assert translator.links([None]) == [{(1, 0)}]


def test_the_window_is_the_one_that_was_asked_for():
    for options, near in (({"window": 1}, 1), ({}, 10)):
        seen = system(attention="local_m", score="dot", **options).look(["a"] * 15, ["b"] * 4)
        assert [np.flatnonzero(row).tolist() for row in seen] == [
            list(range(max(0, t - near), min(15, t + near) + 1)) for t in range(5)]


@pytest.mark.parametrize(("options", "message"), [
    ({"score": "dott"}, "attention additive: takes no score by name, got score 'dott'"),
    ({"attention": "luong_global", "score": "dott"}, "score: expected one of additive, .*, got 'dott'"),
    ({"attention": "local_m", "score": "entmax15"}, "score: expected one of additive, .*, got 'entmax15'"),
    ({"attention": "local_p", "window": -1}, "window: expected a number of at least 0, got -1"),
    ({"attention": "luong_global", "window": 3}, "attention luong_global: has no window, got window 3"),
    ({"attention": "additive_2d"}, "attention additive_2d: a decoder attends.*Expected one of .*local_m"),
    ({"attention": "wrong"}, "attention: expected one of .*got 'wrong'"),
    ({"decoder": "bahdanau", "score": "dot"}, "score 'dot' is an option of --decoder luong; the decoder is bahdanau"),
    ({"decoder": "bahdanau", "window": 2}, "window 2 is an option of --decoder luong"),
    ({"decoder": "bahdanau", "input_feeding": False}, "input_feeding False is an option of --decoder luong"),
    ({"decoder": "bahdanau", "attention": "local_m"}, "attention local_m: a decoder attends"),
    ({"hidden": 0}, "hidden"), ({"dropout": 1.5}, "dropout")])
def test_bad_options_are_one_line(options, message):
    with pytest.raises(InputError, match=message) as refused:
        system(**options)
    assert "\n" not in str(refused.value)


def test_a_score_that_is_a_file_is_refused_and_not_run(tmp_path):
    script = tmp_path / "my.py"
    script.write_text("import pathlib\npathlib.Path(__file__).with_name('ran').touch()\n")
    with pytest.raises(InputError, match="score: expected one of"):
        system(attention="luong_global", score=f"{script}:mine")
    assert not (tmp_path / "ran").exists()


def test_a_mechanism_of_somebodys_own_serves_and_one_of_the_wrong_width_is_refused(tmp_path):
    script = tmp_path / "my.py"
    script.write_text("""
from tinyattn.attention import variant, weigh
@variant(params={"w": "QK"})
def mine(q, k, v, w, mask=None, return_weights=False):
    return weigh((q @ w) @ k.transpose(-1, -2), v, mask, return_weights)
@variant()
def wide(q, k, v, mask=None):
    return q.sum(-1, keepdims=True)
""")
    general = system(attention="luong_global", score="general", dropout=0.0)
    own = system(attention=f"{script}:mine", dropout=0.0)
    own.model.load_state_dict(general.model.state_dict())
    pair = [Pair(("a", "b"), ("c",))]
    assert own.loss(pair)[0].item() == pytest.approx(general.loss(pair)[0].item(), rel=1e-6)
    with pytest.raises(InputError, match="attention wide: does not fit this decoder: expected one context of width 6"):
        system(attention=f"{script}:wide")


# ---------------------------------------------------------------------------------------------------------------------
# runs
# ---------------------------------------------------------------------------------------------------------------------
def trained(folder, paths, run, steps=6, **more):
    options = Options(decoder="luong", attention="local_p", score="general", hidden=6, embed=5, cell="lstm",
                      max_length=8)
    translator = Translate.prepare(options, paths, seed=1)
    config = Config.of(translator, data=tuple(paths), steps=steps, batch_size=8, validate_every=2, seed=1)
    train(translator, config, folder / run, **more)
    return translator, config


def test_a_run_goes_on_bit_for_bit_and_its_checkpoint_gives_the_same_translations(tmp_path):
    paths = pairs_file(tmp_path)
    whole, config = trained(tmp_path, paths, "whole")
    trained(tmp_path, paths, "parts", stop_at=3)
    translator = Translate.prepare(whole.options, paths, seed=1)
    translator.model.decoder.w_c.array[:] = 0                                  # it goes on from the checkpoint
    train(translator, config, tmp_path / "parts", resume=True)
    for name, a in whole.model.state_dict().items():
        np.testing.assert_array_equal(a, translator.model.state_dict()[name])
    restored, _ = checkpoint.restore(tmp_path / "parts")
    assert restored.options == whole.options
    a, b = whole.predict("a b d", beam=2), restored.predict("a b d", beam=2)
    assert a.target == b.target
    np.testing.assert_array_equal(a.weights, b.weights)


def test_evaluate_measures_the_alignment_both_ways_for_luong(tmp_path):
    pair = Pair(("a", "b", "c"), ("c", "b", "a"), frozenset({(0, 2), (1, 1), (2, 0)}), frozenset())
    for decoder, names in (("luong", {"aer", "aer_next_step"}), ("bahdanau", {"aer"})):
        translator = system(decoder=decoder)
        translator.whole = [pair] * 2
        figures = translator.evaluate("all")
        assert {name for name in figures if name.startswith("aer")} == names
        assert all(0 <= figures[name] <= 1 for name in names)
        json.dumps(figures)


SMALL = ["--hidden", "6", "--embed", "5", "--batch-size", "8", "--validate-every", "2"]


def test_the_command_line_trains_compares_resumes_predicts_and_draws(tmp_path, capsys):
    from tinyattn.cli import main
    paths, run = pairs_file(tmp_path), str(tmp_path / "r")
    begin = ["train", "translate", "--data", *paths, "--decoder", "luong", "--attention", "local_m", "--score", "dot",
             "--no-input-feeding", "--window", "2", "--steps", "4", *SMALL, "--run", run]
    assert main([*begin, "--stop-at", "2"]) == 0
    assert main(["train", "translate", "--resume", "--run", run, "--baseline"]) == 0
    for picture in ("alignment.svg", "graph.svg", "curve.svg"):
        assert (tmp_path / "r" / picture).is_file()
    options = {name: json.loads((tmp_path / "r" / name / "config.json").read_text())["options"]
               for name in (".", "baseline")}
    assert options["."]["attention"] == "local_m" and options["baseline"]["attention"] == "none"
    assert {o["decoder"] for o in options.values()} == {"luong"}
    capsys.readouterr()
    assert main(["predict", run, "a b", "--beam", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert np.shape(found["weights"]) == (len(found["target"]) + 1, 3)
    assert main(["heatmap", run, "a b c"]) == 0 and (tmp_path / "r" / "heatmap.svg").is_file()
    assert main(["train", "translate", "--resume", "--run", run, "--score", "general"]) == 2
    assert "score: the run has dot, now it is general" in capsys.readouterr().err


def test_a_run_from_before_there_was_a_choice_of_decoders_loads_and_goes_on(tmp_path):
    paths = pairs_file(tmp_path)
    translator = Translate.prepare(Options(hidden=6, embed=5), paths, seed=1)
    config = Config.of(translator, data=tuple(paths), steps=4, batch_size=8, validate_every=2, seed=1)
    train(translator, config, tmp_path / "whole")
    again = Translate.prepare(translator.options, paths, seed=1)
    train(again, config, tmp_path / "old", stop_at=2)
    saved = checkpoint.load(tmp_path / "old")
    old = {k: v for k, v in saved.config["options"].items() if k not in ("decoder", "score", "input_feeding", "window")}
    checkpoint.save(tmp_path / "old", dataclasses.replace(saved, config={**saved.config, "options": old}))
    restored, _ = checkpoint.restore(tmp_path / "old")
    assert restored.options == translator.options and isinstance(restored.model, Seq2Seq)
    train(restored_with_data(restored, paths), config, tmp_path / "old", resume=True)
    for name, a in translator.model.state_dict().items():
        np.testing.assert_array_equal(a, restored.model.state_dict()[name])


def restored_with_data(translator, paths):
    translator.attach(paths, seed=1)
    return translator
