"""Word sense: the made-up sentences, readers, the network, and what each kind of attention can and cannot know."""
import gzip
import json
import os
import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tinyattn as ta
from tinyattn import InputError, Tensor, optim
from tinyattn.config import Config
from tinyattn.gradcheck import gradcheck
from tinyattn.models.sense import Options, Sense
from tinyattn.models.sense_network import SenseNetwork, _serves
from tinyattn.tasks import sense as task
from tinyattn.tasks import sense_lexicon as lexicon
from tinyattn.tasks.corpus import Corpus
from tinyattn.tasks.sense import Sample, generate, load, parse_pseudo, pseudo_words, read_samples
from tinyattn.train import train

ROOT = Path(__file__).parent.parent
DATA = ROOT.parent / "shared" / "data"
SMALL = {"train": (200, 100), "validation": (10, 4), "test": (32, 10)}
KINDS = [{"attention": "pairwise"}, {"attention": "pairwise", "score": "general"}, {"attention": "multi_head"},
         {"attention": "shaw", "reach": 2}, {"attention": "disan"}, {"attention": "static"}, {"attention": "none"}]
IDS = ["-".join(map(str, k.values())) for k in KINDS]
SERVING = [name for name, v in ta.attention.table().items() if _serves(v)]
each_kind = pytest.mark.parametrize("kind", KINDS, ids=IDS)


@pytest.fixture(scope="module")
def made():
    return generate(1)


def small(seed=1, **options):
    """A network of 9 words and 5 senses, in float64."""
    ta.manual_seed(seed)
    return SenseNetwork(9, 5, 4, heads=2, **options).to(np.float64)


def batch(seed=0, lengths=(5, 2, 4)):
    rng = np.random.default_rng(seed)
    ids = np.zeros((len(lengths), max(lengths)), np.int64)
    for row, n in zip(ids, lengths):
        row[:n] = rng.integers(1, 9, n)
    allowed = np.zeros((len(lengths), 5), bool)
    allowed[::2, :2], allowed[1::2, 2:] = True, True
    target = np.where(allowed[:, 0], rng.integers(0, 2, len(lengths)), rng.integers(2, 5, len(lengths)))
    return [Tensor(ids), Tensor(lengths), Tensor([2, 1, 1]), Tensor(allowed)], target


def loss_of(model, inputs, target):
    return -model(*inputs)[np.arange(len(target)), target].mean()


def system(corpus=None, seed=1, **options):
    """The system on a small corpus, with fresh weights."""
    ta.manual_seed(seed)
    corpus = corpus or generate(seed, SMALL)
    made = Sense.build(Options(**{"width": 16, "dropout": 0.0, **options}), corpus)
    made.corpus = corpus
    return made


# ---------------------------------------------------------------------------------------------------------------------
# the network
# ---------------------------------------------------------------------------------------------------------------------
@each_kind
def test_gradients_of_the_whole_network(kind):
    model, (inputs, target) = small(**kind), batch()
    report = gradcheck(lambda: loss_of(model, inputs, target), [], parameters=dict(model.named_parameters()))
    assert report.ok, str(report)


@each_kind
def test_every_parameter_is_learnt(kind):
    model, (inputs, target) = small(**kind), batch()
    loss_of(model, inputs, target).backward()
    for name, p in model.named_parameters():
        grown = np.abs(p.grad.numpy()).max() > 1e-12
        assert grown != (name in model.null), name


@each_kind
def test_a_padded_batch_equals_each_sentence_alone(kind):
    model, ((ids, n, at, allowed), target) = small(**kind), batch()
    together = model(ids, n, at, allowed).numpy()
    loss_of(model, (ids, n, at, allowed), target).backward()
    of_all = {name: p.grad.numpy() * len(target) for name, p in model.named_parameters()}
    model.zero_grad()
    for i, length in enumerate(n.numpy()):
        one = ids[i:i + 1, :int(length)], n[i:i + 1], at[i:i + 1], allowed[i:i + 1]
        np.testing.assert_allclose(model(*one).numpy()[0], together[i], atol=1e-12)
        loss_of(model, one, target[i:i + 1]).backward()
    for name, p in model.named_parameters():
        np.testing.assert_allclose(p.grad.numpy(), of_all[name], atol=1e-12, err_msg=name)


@each_kind
def test_only_the_words_own_senses_compete(kind):
    model, ((ids, n, at, allowed), _) = small(**kind), batch()
    p = np.exp(model(ids, n, at, allowed).numpy())
    np.testing.assert_allclose(p.sum(-1), 1)
    assert (p[~allowed.numpy()] == 0).all() and (p[allowed.numpy()] > 0).all()


@pytest.mark.parametrize("name", SERVING)
def test_every_self_attention_of_the_table_serves(name):
    model, (inputs, target) = small(attention=name), batch()
    loss_of(model, inputs, target).backward()
    assert all(np.isfinite(p.grad.numpy()).all() for p in model.parameters() if p.grad is not None)
    weights = model.look(*inputs[:2])
    assert weights.shape[0] == 3 and weights.shape[2:] == (5, 5)
    assert (weights[1, :, :2, 2:] == 0).all(), "padding is looked at"


def test_20_training_steps_equal_the_same_model_in_pytorch():
    torch = pytest.importorskip("torch")
    model = small(attention="multi_head")
    w = {name: torch.tensor(p.numpy().copy(), requires_grad=True) for name, p in model.named_parameters()}
    code = torch.tensor([[f(t / 10000 ** (c // 2 * 2 / 4)) for c, f in enumerate((np.sin, np.cos, np.sin, np.cos))]
                         for t in range(5)])

    def theirs(inputs, target):
        ids, n, at, allowed = (torch.tensor(t.numpy().copy()) for t in inputs)
        x = w["embedding.weight"][ids] + code
        q, k, v = (x @ w[f"blocks.0.w_{c}"].T + w[f"blocks.0.b_{c}"] for c in "qkv")
        q, k, v = (t.reshape(3, 5, 2, 2).transpose(1, 2) for t in (q, k, v))
        seen = (torch.arange(5) < n[:, None])[:, None, None]
        a = torch.softmax((q @ k.transpose(2, 3) / 2 ** 0.5).masked_fill(~seen, -torch.inf), -1)
        y = x + (a @ v).transpose(1, 2).reshape(3, 5, 4) @ w["blocks.0.w_o"].T + w["blocks.0.b_o"]
        logits = y[torch.arange(3), at] @ w["output.weight"].T + w["output.bias"]
        return torch.nn.functional.cross_entropy(logits.masked_fill(~allowed, -torch.inf), torch.tensor(target))

    ours, other = optim.Adam(model.parameters(), lr=1e-2), torch.optim.Adam(list(w.values()), lr=1e-2)
    for step in range(20):
        inputs, target = batch(step)
        a, b = loss_of(model, inputs, target), theirs(inputs, target)
        assert abs(a.item() - b.item()) < 1e-8
        model.zero_grad()
        other.zero_grad()
        a.backward()
        b.backward()
        ours.step()
        other.step()
    for name, p in model.named_parameters():
        if name not in model.null:  # Adam turns the rounding of a gradient that is 0 into steps
            np.testing.assert_allclose(p.numpy(), w[name].detach().numpy(), rtol=0, atol=1e-8, err_msg=name)


def test_what_is_shown_of_weights_by_feature_is_their_mean_for_each_direction():
    model, (inputs, _) = small(attention="disan"), batch()
    with ta.no_grad(), ta.capture() as seen:
        model.states(*inputs[:2])
    forward, backward = (w.numpy() for w in seen["weights"])               # (B, U, T, T)
    np.testing.assert_array_equal(model.look(*inputs[:2]), np.stack([forward.mean(1), backward.mean(1)], 1))


# ---------------------------------------------------------------------------------------------------------------------
# what a mechanism can know
# ---------------------------------------------------------------------------------------------------------------------
def pairs_of(samples, forms):
    found = {}
    for s in samples:
        if s.pair >= 0 and s.form in forms:
            found.setdefault(s.pair, []).append(s)
    return [two for two in found.values() if len(two) == 2]


def differences(made, forms):
    """How far log p of the two sentences of each pair lie apart."""
    two = pairs_of(made.corpus.test, forms)
    assert two
    first, second = (made.log_p([pair[i] for pair in two]) for i in (0, 1))
    return np.abs(np.exp(first) - np.exp(second)).max(-1)


PAIRED = ("near after", "near before", "both after", "both before")


def test_a_bag_of_words_says_the_same_of_both_sentences_of_a_pair(made):
    bag = system(made, attention="none")
    assert differences(bag, PAIRED).max() < 1e-5
    assert bag.evaluate()["paired"] < 1, "the survey's two sentences differ in a word, all other pairs do not"
    assert np.median(differences(system(made, attention="multi_head"), PAIRED)) > 1e-4


def test_direction_alone_cannot_tell_two_nouns_on_one_side(made):
    blind = system(made, attention="disan")
    assert differences(blind, ("both after", "both before")).max() < 1e-5
    assert np.median(differences(blind, ("near after", "near before"))) > 1e-4
    seeing = system(made, attention="disan", positions="sinusoid")
    assert np.median(differences(seeing, ("both after", "both before"))) > 1e-4


def test_static_attention_has_one_favourite_and_a_bound(made):
    def favourites(attention):
        model = system(made, attention=attention)
        ids, lengths, *_ = model.tensors(made.test[:40])
        maps = [w[0, :n, :n] for w, n in zip(model.model.look(ids, lengths), lengths.numpy())]
        return [len(set(w.argmax(-1))) for w in maps], max((w.max(-1) / w.min(-1)).max() for w in maps)
    counts, ratio = favourites("static")
    assert set(counts) == {1} and ratio <= np.exp(2) * (1 + 1e-6)
    assert max(favourites("pairwise")[0]) > 1


# ---------------------------------------------------------------------------------------------------------------------
# made-up sentences
# ---------------------------------------------------------------------------------------------------------------------
def field_of(sample):
    return lexicon.SENSES[sample.word][sample.sense.split(".")[1]]


def test_the_lexicon_is_sound():
    everything = [noun for some in lexicon.FIELDS.values() for noun in some]
    frames = {w for frames in lexicon.FRAMES.values() for f in frames for w in f.split()}
    fill = {w for some in (lexicon.OPENING, lexicon.WHO, lexicon.DID, lexicon.FAR, lexicon.TIED, lexicon.WHEN,
                           lexicon.REACHED) for text in some for w in text.split()}
    assert len(set(everything)) == len(everything), "a noun gives away one field"
    assert not {*everything} & {*lexicon.SENSES} and not {*everything, *lexicon.SENSES} & (frames | fill)
    assert set(everything) >= lexicon.CROSSED
    assert len(lexicon.SENSES) >= 20 and all(2 <= len(s) <= 3 for s in lexicon.SENSES.values())
    for field in lexicon.FIELDS:
        served = [w for w, senses in lexicon.SENSES.items() if field in senses.values()]
        assert len(served) >= 2, field
        for noun in lexicon.FIELDS[field]:
            assert any(noun in task.nouns(w, field, False) for w in served), noun
    assert all(len(set(senses.values())) == len(senses) for senses in lexicon.SENSES.values())


def test_the_noun_that_counts_is_of_the_senses_field_and_in_the_words_clause(made):
    everything = {noun for some in lexicon.FIELDS.values() for noun in some}
    for s in made.train + made.test:
        assert s.words[s.at] == s.word
        (at,) = s.gold
        assert s.words[at] in lexicon.FIELDS[field_of(s)]
        assert "," not in s.words[min(at, s.at):max(at, s.at)]
        others = [i for i, w in enumerate(s.words) if w in everything and i != at]
        assert len(others) == (s.form != "simple")
        assert all("," in s.words[min(i, s.at):max(i, s.at)] for i in others)
        assert lexicon.SHORTEST <= len([w for w in s.words if w != ","]) <= lexicon.LONGEST


def test_pairs_hold_the_same_words_and_opposite_senses(made):
    for part in (made.train, made.validation, made.test):
        two = pairs_of(part, PAIRED)
        assert len(two) == sum(s.form != "simple" for s in part) / 2
        for a, b in two:
            assert sorted(a.words) == sorted(b.words) and a.sense != b.sense and a.word == b.word and a.at == b.at
            assert a.words[a.gold[0]] in b.words and a.gold == b.gold


def test_parts_do_not_leak_and_some_nouns_are_kept_for_the_test(made):
    bags = [{tuple(sorted(s.words)) for s in part} for part in (made.train, made.validation, made.test)]
    assert not bags[0] & bags[1] and not bags[0] & bags[2] and not bags[1] & bags[2]
    beside = {(s.word, w) for s in made.train for w in s.words}
    unseen = [s for s in made.test if s.unseen]
    assert all(s.unseen == ((s.word, s.words[s.gold[0]]) not in beside) for s in made.test)
    assert 0.3 < len(unseen) / len(made.test) < 0.7
    assert {w for s in made.test for w in s.words} <= {w for s in made.train for w in s.words}


def test_the_surveys_two_sentences_are_in_the_test_alone_and_few_are_simple(made):
    for text, sense, noun in task.SURVEY:
        words = tuple(text.split())
        assert [(s.sense, s.words[s.gold[0]], s.pair) for s in made.test if s.words == words] == [(sense, noun, 450)]
        assert not any(s.words == words for s in made.train + made.validation)
    assert sum(s.form == "simple" for s in made.test) <= 0.2 * len(made.test)
    chance = np.mean([1 / len(lexicon.SENSES[s.word]) for s in made.test])
    assert 0.4 < chance < 0.5


def test_it_depends_on_the_seed_alone():
    assert generate(3, SMALL) == generate(3, SMALL) != generate(4, SMALL)
    code = ("from tinyattn.tasks.sense import generate; import hashlib; "
            "print(hashlib.sha256(repr(generate(1, {'train': (20, 9), 'validation': (3, 1), 'test': (3, 1)}))"
            ".encode()).hexdigest())")
    outs = {subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT,
                           env={**os.environ, "PYTHONHASHSEED": n}).stdout for n in "12"}
    assert len(outs) == 1


# ---------------------------------------------------------------------------------------------------------------------
# files
# ---------------------------------------------------------------------------------------------------------------------
LINES = ["bank.river\tThey fished from the *bank* of the stream.", "bank.money\tThe *banks* raised their rates."]


def write(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_both_forms_of_file_are_read(tmp_path):
    tab = write(tmp_path / "a.tsv", "\ufeff" + "\r\n\r\n".join(LINES) + "\r\n")
    samples, notes = read_samples([tab])
    assert samples[0] == Sample(("they", "fished", "from", "the", "bank", "of", "the", "stream", "."), 4, "bank",
                                "bank.river")
    assert (samples[1].words[samples[1].at], samples[1].word, samples[1].sense) == ("banks", "bank", "bank.money")
    assert any("1 blank line" in note for note in notes)
    rows = [{"word": "bank", "sense": "river", "text": "They fished from the bank of the stream."},
            {"word": "bank", "sense": "bank.money", "text": "The *banks* raised their rates."}]
    lines = "\n".join(map(json.dumps, rows)).encode()
    for name, data in (("a.jsonl", lines), ("a.jsonl.gz", gzip.compress(lines))):
        assert read_samples([write(tmp_path / name, data)])[0] == samples


@pytest.mark.parametrize("text, expected", [
    (b"", "empty file"), (b"\n\n", "blank lines only"), (b"bank.river They *fish*", "line 1: expected word.sense"),
    (LINES[0].encode() + b"\nx\ty\tz", "line 2"), (b"bank\tThe *bank*.", "named word.sense"),
    (b"bank.\tThe *bank*.", "named word.sense"), (b"bank.river\tThe bank.", "found 0"),
    (b"bank.river\t*The* *bank*.", "found 2"), (b"bank.river\tThe *bank!*", "one word between asterisks"),
    (b"\t*bank*", "line 1"), (b"bank.river\t\xff\xfe", "line 1, byte 12"), (b"bank.river\t*a*\0", "NUL"),
    (b'{"word": "bank"}', "line 1: expected {"), (b'{"word": 1, "sense": "a", "text": "b"}', "line 1: expected {"),
    (b'{"word": "a", "sense": "b", "text": "c"', "JSON"),
    (b'{"word": "a", "sense": "b.c", "text": "a"}', "a sense of 'a'"),
    (b'{"word": "a", "sense": "b", "text": "a or a"}', "found it 2 times"),
    (b'{"word": "a", "sense": "\\ud800", "text": "a"}', "line 1: expected {"),
    (b'{"word": "a", "sense": "b", "text": "a", "text": "b"}', "a key comes twice"),
], ids=range(19))
def test_hostile_files_are_one_line(tmp_path, text, expected):
    with pytest.raises(InputError) as error:
        read_samples([write(tmp_path / "bad", text)])
    message = str(error.value)
    assert str(tmp_path / "bad") in message and expected in message and "\n" not in message


def test_files_that_cannot_be_learnt_from(tmp_path):
    with pytest.raises(InputError, match="at least 10 different"):
        load([write(tmp_path / "few", "\n".join(LINES))])
    one = "\n".join(f"bank.river\tsentence {n} by the *bank*" for n in range(30))
    with pytest.raises(InputError, match="at least two senses"):
        load([write(tmp_path / "one", one)])
    with pytest.raises(InputError, match="no such file"):
        load([tmp_path / "none"])


def test_a_long_sentence_is_cut_around_the_word_and_rare_senses_are_counted(tmp_path):
    long = " ".join(f"w{n}" for n in range(50))
    rows = [f"bank.{'ab'[n % 2]}\t{long} {n} *bank* {long}" for n in range(40)] + ["bank.rare\tonce a *bank*"]
    corpora = [load([write(tmp_path / "long", "\n".join(rows))], seed=seed, max_length=11) for seed in range(12)]
    s = corpora[0].train[0]
    assert len(s.words) == 11 and s.words[s.at] == "bank" and s.at == 5
    assert any("cut 40 sentences" in note for note in corpora[0].notes)
    kept = [any("not in training" in note for note in c.notes) for c in corpora]
    assert any(kept) and not all(kept)
    for c in corpora:
        assert {s.sense for s in c.test + c.validation} <= {s.sense for s in c.train}


def test_sentences_with_the_same_words_stay_in_one_part(tmp_path):
    rows = [f"bank.{'ab'[n % 2]}\tnumber {n % 15} by the *bank*" for n in range(60)]
    corpus = load([write(tmp_path / "same", "\n".join(rows))])
    parts = [{s.words for s in part} for part in (corpus.train, corpus.validation, corpus.test)]
    assert not parts[0] & parts[1] and not parts[0] & parts[2] and not parts[1] & parts[2]


# ---------------------------------------------------------------------------------------------------------------------
# pseudo-words
# ---------------------------------------------------------------------------------------------------------------------
def test_two_words_become_one_and_the_old_word_is_its_sense():
    lines = ["The door was open. Nobody saw", "the window near the door!", "", "A cat."]
    groups, notes = pseudo_words(lines, [("door", "window")])
    assert [[(s.words[s.at], s.sense, s.at) for s in group] for group in groups] == [
        [("door-window", "door-window.door", 1)],
        [("door-window", "door-window.window", 3), ("door-window", "door-window.door", 6)]]
    assert not any(w in ("door", "window") for group in groups for s in group for w in s.words)
    assert "3 samples in 2 sentences of 3" in notes[0] and "door (2)/window (1)" in notes[0]


@pytest.mark.parametrize("text", ["door", "door/", "door/door", "a/b,b/c", "", "two words/x", "x.y/z"])
def test_pseudo_words_are_spelled_right(text):
    with pytest.raises(InputError, match="pseudo: expected"):
        parse_pseudo(text)


def test_pseudo_words_need_a_text_with_these_words(tmp_path):
    text = "\n".join(f"{number} men saw the {('door', 'cat')[number % 2]} ." for number in range(60))
    for name, data in (("a.txt", text.encode()), ("a.txt.gz", gzip.compress(text.encode()))):
        corpus = load([write(tmp_path / name, data)], "door/cat")
        assert len(corpus.train) == 48 and {s.word for s in corpus.test} == {"cat-door"}
    for message, arguments in [("found no window", ([tmp_path / "a.txt"], "door/window")),
                               ("expected a gzipped file", ([write(tmp_path / "bad.gz", b"\x1f\x8bno")], "auto")),
                               ("--data", ([], "auto")), ("at least two words", ([tmp_path / "a.txt"], "auto"))]:
        with pytest.raises(InputError, match=message):
            load(*arguments)


@pytest.mark.parametrize("pseudo", ["wolf/cat", "auto"])
def test_a_run_with_pseudo_words_reads_another_text_with_the_same_ones(tmp_path, pseudo):
    text = [f"{number} men saw the {('wolf', 'cats')[number % 2]} ." for number in range(60)]
    if pseudo == "wolf/cat":
        text = [line.replace("cats", "cat") for line in text]
    options = Options(width=4, heads=1, pseudo=pseudo)
    one = Sense.prepare(options, [write(tmp_path / "a.txt", "\n".join(text))])
    one.attach_all([write(tmp_path / "b.txt", "One wolf .\nA queen, a queen, a king .\n" + text[1])])
    figures = one.evaluate("all")
    assert figures["sentences"] == 2 and len(figures["by_word"]) == 1
    with pytest.raises(InputError, match="found none"):
        one.attach_all([write(tmp_path / "c.txt", "Nothing of it.")])


def test_pseudo_words_of_a_real_text():
    path = DATA / "wikitext2-small" / "test.txt.gz"
    if not path.exists():
        pytest.skip("the shared data are not here")
    corpus = load([path], "auto")
    words = {s.word for s in corpus.train}
    assert len(words) == 10 and len(corpus.train) > 2000 and "samples in" in corpus.notes[0]
    sentences = [{s.words for s in part} for part in (corpus.train, corpus.test)]
    assert not sentences[0] & sentences[1]
    assert corpus.train == load([path], "auto").train


# ---------------------------------------------------------------------------------------------------------------------
# the system
# ---------------------------------------------------------------------------------------------------------------------
def test_a_short_training_reads_the_order_and_a_bag_does_not(made):
    """Of five words alone, which is soon learnt."""
    words = ("bank", "bat", "bark", "match", "palm")
    train_on, test = ([s for s in part if s.word in words] for part in (made.train, made.test))
    corpus = replace(made, train=train_on, test=test, validation=test)
    scores = {}
    for attention, steps in (("multi_head", 400), ("none", 200)):
        learner = system(corpus, attention=attention, width=32)
        train(learner, Config.of(learner, steps=steps, learning_rate=6e-3, validate_every=200))
        scores[attention] = learner.evaluate()
    assert scores["multi_head"]["accuracy"] > 80 and scores["multi_head"]["gold_mass"] > 0.3, scores["multi_head"]
    assert scores["none"]["paired"] < 10 and scores["none"]["accuracy"] < 65, scores["none"]


@pytest.mark.parametrize("attention", ["disan", "multi_head"])
def test_resume_is_bit_for_bit(tmp_path, attention):
    def fresh():
        return system(seed=2, attention=attention, dropout=0.2)
    whole, begun, resumed = fresh(), fresh(), fresh()
    config = Config.of(whole, steps=10, validate_every=4, seed=2)
    train(whole, config, run=tmp_path / "whole")
    train(begun, config, run=tmp_path / "parts", stop_at=5)
    train(resumed, config, run=tmp_path / "parts", resume=True)
    for name, value in whole.model.state_dict().items():
        np.testing.assert_array_equal(value, resumed.model.state_dict()[name], err_msg=name)
    again = Sense.restore(vars(whole.options), json.loads(json.dumps(whole.extra())))
    again.model.load_state_dict(whole.model.state_dict())
    some = whole.corpus.test[:5]
    np.testing.assert_array_equal(again.log_p(some), whole.log_p(some))


@each_kind
def test_what_it_says_is_json_and_what_it_shows_fits(kind):
    one = system(**kind)
    figures = json.loads(json.dumps(one.evaluate()))
    assert figures["sentences"] == len(one.corpus.test) and {"paired", "simple", "unseen", "by_form"} <= set(figures)
    assert ("gold_mass" in figures) == (kind["attention"] != "none") and set(one.figures) >= {"gold_mass", "accuracy"}
    assert sum(n for _, n, _ in figures["by_word"]) == len(one.corpus.test)
    for p in [*one.examples(3), one.predict("They saw the *bank* of the river, and a bat.")]:
        json.dumps(p.record)
        for look in p.looks:
            assert look.weights.shape == (len(look.rows), len(look.columns))
            assert (look.weights[0].sum() == pytest.approx(1, abs=1e-5))
    assert [s["words"] for s in (p.record for p in one.examples(2))] == [text.split() for text, _, _ in task.SURVEY]
    assert np.isfinite(one.example_graph().item()) and one.describe().startswith("sense: ")


def test_chance_and_the_most_frequent_sense_by_hand():
    train = [Sample(("the", "bank"), 1, "bank", f"bank.{s}") for s in "aab"]
    train += [Sample(("the", "bat"), 1, "bat", f"bat.{s}") for s in "abccc"]
    one = system(Corpus(train, train, [*train[:2], train[3], train[6]]), width=4, heads=1)
    figures = one.evaluate()
    assert figures["majority"] == 75.0  # bank.a and bat.c, not bank.b and bat.a
    assert figures["chance"] == pytest.approx(100 * (1 / 2 + 1 / 2 + 1 / 3 + 1 / 3) / 4)


def test_it_answers_for_the_marked_word_or_for_all_it_knows():
    one = system()
    assert [a["word"] for a in one.predict("the bat by the bank").record["answers"]] == ["bat", "bank"]
    assert [a["at"] for a in one.predict("the bank by the *bank*").record["answers"]] == [4]
    answer = one.predict("a zebra at the *bank*").record["answers"][0]
    assert sum(answer["senses"].values()) == pytest.approx(1) and answer["sense"].startswith("bank.")
    for text, message in [("nothing here", "expected a sentence with an ambiguous word"), ("", "no word"),
                          ("a *zebra*", "found 'zebra'"), ("the *bank!*", "one word between")]:
        with pytest.raises(InputError, match=message):
            one.predict(text)


def test_evaluating_a_file_leaves_out_senses_that_it_does_not_know(tmp_path):
    one = system()
    one.attach_all([write(tmp_path / "more", "\n".join([*LINES, "bank.blood\tA *bank* of blood."]))])
    figures = one.evaluate("all")
    assert figures["sentences"] == 2 and "paired" not in figures and "gold_mass" not in figures
    assert any("left out 1 " in note for note in one.notes)
    with pytest.raises(InputError, match="expected senses that were in training"):
        one.attach_all([write(tmp_path / "other", "zebra.a\tThe *zebra*.")])


@pytest.mark.parametrize("options, message", [
    ({"attention": "addictive"}, "expected one of"), ({"attention": "additive"}, "attends to itself"),
    ({"attention": "structured_self"}, "attends to itself"), ({"attention": "multi_head", "score": "dot"}, "pairwise"),
    ({"attention": "pairwise", "score": "han"}, "no score function"), ({"attention": "multi_head", "width": 6}, "of 4"),
    ({"attention": "pairwise", "score": "location"}, "sizes L"), ({"heads": 0}, "heads"),
    ({"dropout": 1.0}, "dropout"), ({"max_length": 0}, "max_length")], ids=str)
def test_bad_options_are_one_line(options, message):
    with pytest.raises(InputError, match=message):
        system(**options)


# ---------------------------------------------------------------------------------------------------------------------
# the lesson of eq. 19
# ---------------------------------------------------------------------------------------------------------------------
def lesson():
    return runpy.run_path(str(ROOT / "examples" / "static_attention.py"))


def test_the_static_lesson_runs_and_draws(capsys, monkeypatch, tmp_path):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(sys, "argv", ["static_attention.py", "-o", str(tmp_path / "out.svg")])
    lesson()["main"]()
    said = capsys.readouterr().out
    assert "eq. 19 always had one favourite" in said and "7.39" in said
    assert "<svg" in (tmp_path / "out.svg").read_text()


def test_the_static_lesson_would_notice():
    script = lesson()
    names = script["claims"].__globals__
    for wrong in (("additive", "static without its tanh", "static"), ("static", "additive", "static without its tanh"),
                  ("static without its tanh", "static", "additive")):
        names["NAMES"] = script["NAMES"] = wrong
        script["weights"].__globals__["NAMES"] = ("static", "static without its tanh", "additive")
        with pytest.raises(AssertionError):
            claims_with(script, wrong)


def claims_with(script, order):
    """`claims`, with the three kinds under each other's names."""
    honest = script["weights"]

    def exchanged(rng, scale=1.0):
        found = honest(rng, scale)
        return dict(zip(("static", "static without its tanh", "additive"), (found[name] for name in order)))
    script["claims"].__globals__["weights"] = exchanged
    try:
        script["claims"](np.random.default_rng(0))
    finally:
        script["claims"].__globals__["weights"] = honest
