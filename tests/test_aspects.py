"""Aspect and opinion terms: scores, readers, the generator, the system from data to picture."""
import io
import json
import subprocess
import sys
import zipfile
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from tinyattn import checkpoint
from tinyattn.config import Config
from tinyattn.errors import InputError
from tinyattn.models.aspects import Aspects, Options, by_kind, marked, scores
from tinyattn.models.cmla import IGNORE
from tinyattn.tasks import aspects, reviews
from tinyattn.tasks.aspects import load, read, stem, words_at
from tinyattn.tasks.reviews import Review, generate
from tinyattn.tasks.spans import span_f1, spans_of, tags_of
from tinyattn.train import train

DATA = Path(__file__).parents[1] / "../shared/data/nltk-cc-by"
real_files = pytest.mark.skipif(not DATA.is_dir(), reason="the product reviews are not in ../shared/data")
LAPTOPS = """<?xml version="1.0" encoding="UTF-8"?>
<sentences>
  <sentence id="1">
    <text>Great battery life\u2019s here, but the wi-fi card\u2014ugh!</text>
    <aspectTerms>
      <aspectTerm term="battery life" polarity="positive" from="6" to="18"/>
      <aspectTerm term="wi-fi card" polarity="negative" from="35" to="45"/>
      <aspectTerm term="card" polarity="negative" from="41" to="45"/>
      <aspectTerm term="card" polarity="negative" from="0" to="4"/>
    </aspectTerms>
  </sentence>
  <sentence id="2"><text>Nothing to see.</text></sentence>
</sentences>
"""
HOTELS = """<Reviews><Review rid="1"><sentences>
<sentence id="1:0"><text>Small rooms, big view</text><Opinions>
  <Opinion target="rooms" category="ROOMS#DESIGN" polarity="negative" from="6" to="11"/>
  <Opinion target="rooms" category="ROOMS#GENERAL" polarity="negative" from="6" to="11"/>
  <Opinion target="vie" category="VIEW#GENERAL" polarity="positive" from="17" to="20"/>
  <Opinion target="NULL" category="HOTEL#GENERAL" polarity="positive" from="0" to="0"/></Opinions></sentence>
<sentence id="1:1" OutOfScope="TRUE"><text>My hat.</text></sentence>
</sentences></Review></Reviews>"""


def write(folder, name, content):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def packed(**texts):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as box:
        for name, text in texts.items():
            box.writestr(name.replace("__", "/") + ".txt", text)
    return out.getvalue()


def refused(call, *fragments):
    """The call ends in an InputError of one line that holds all fragments."""
    with pytest.raises(InputError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    for fragment in fragments:
        assert fragment in message, message


def terms(sample):
    """[aspects], [opinions] as texts."""
    return [[" ".join(sample.words[a:b]) for a, b in spans or ()] for spans in (sample.aspects, sample.opinions)]


# ------------------------------------------------------------------------------------------------- spans and scores

def test_tags_become_spans_and_back():
    spans = ((0, 1), (1, 3), (4, 5))
    assert tags_of(spans, 6) == [1, 1, 2, 0, 1, 0]
    assert spans_of(tags_of(spans, 6)) == spans
    assert spans_of([2, 2, 0, 2, 1, 2]) == ((0, 2), (3, 4), (4, 6))  # an I without a B begins one
    assert spans_of([]) == () == spans_of([0, 0])


def test_span_f1_by_hand():
    """Two of three found terms are right, of four there are: P 66.7, R 50, F1 57.1. A part of a term is not right."""
    gold = [[(0, 2), (3, 4)], [], [(1, 2), (5, 6)]]
    found = [[(0, 2), (3, 5)], [], [(1, 2)]]
    np.testing.assert_allclose(span_f1(found, gold), (200 / 3, 50, 400 / 7))
    assert span_f1([[(0, 1)]], [[(0, 2)]]) == (0, 0, 0)
    assert span_f1([[]], [[(0, 2)]]) == (0, 0, 0) == span_f1([[(0, 1)]], [[]])
    assert span_f1([[]], [[]]) is None
    assert span_f1(gold, gold) == (100, 100, 100)
    with pytest.raises(ValueError, match="as many"):
        span_f1([[]], [])


def test_scores_of_both_sides():
    samples = [Review(("a", "b"), ((0, 1),), ((1, 2),), "x"), Review(("a",), (), None, "y"),
               Review(("a",), (), (), "z")]
    spans = [(((0, 1),), ()), ((), ((0, 1),)), ((), ())]
    found = scores(samples, spans)
    assert (found["aspect_f1"], found["opinion_f1"], found["f1"]) == (100, 0, 50)  # opinions of y are not known
    assert by_kind(samples, spans) == [["x", 1, 50.0], ["y", 1, None], ["z", 1, None]]
    alone = scores(samples[1:2], spans[1:2])
    assert alone == {"f1": 0.0}
    assert "opinion_f1" not in scores([Review(("a",), ((0, 1),), None)], [(((0, 1),), ())])


# --------------------------------------------------------------------------------------------------------- readers

def test_semeval_2014(tmp_path):
    samples, notes = read([write(tmp_path, "a.xml", LAPTOPS)])
    assert samples[0].words[:5] == ("great", "battery", "life", "'s", "here")
    assert terms(samples[0]) == [["battery life", "wi-fi card"], []]
    assert samples[0].opinions is None and samples[1].aspects == ()
    assert any("1 left out: aspect terms that are not at their place" in n for n in notes)
    assert any("1 left out: aspect terms that overlap a longer one" in n for n in notes)


def test_semeval_2015_and_a_lexicon(tmp_path):
    lexicon = write(tmp_path, "words.txt", b"; opinion words\n;\n\nbig\nna\xefve\nview\n")
    samples, notes = read([write(tmp_path, "b.xml", HOTELS), lexicon])
    assert [terms(s) for s in samples] == [[["rooms", "view"], ["big"]]]  # "vie" takes in its word, which is an aspect
    assert "3 words" in notes[0] and any("1 opinions without a target" in n for n in notes)


@pytest.mark.parametrize("text, fragments", [
    ('<!DOCTYPE x [<!ENTITY a "b">]>\n<sentences/>', ["line 1", "declaration (x)"]),
    ('<sentences>\n<!ENTITY a SYSTEM "file:///etc/passwd"></sentences>', ["line 2", "cannot read it"]),
    ("<sentences>\n<sentence>", ["line 2", "expected XML"]),
    ("<sentences></sentences>", ["expected <sentence>", "<sentences>"]),
    (HOTELS.replace('"17"', '"x"'), ["line 5", "from", "from 0 to 21", "'x'"]),
    (HOTELS.replace('"20"', '"99"'), ["line 5", "to", "'99'"]),
    (HOTELS.replace('target="vie"', ""), ["line 5", "term or target"]),
    ('<?xml version="1.0" encoding="x-odd"?><a/>', ["cannot read it"]),
    ("<sentences><sentence><text>a\0b</text></sentence></sentences>", ["line 1"]),
])
def test_bad_xml_is_one_line(tmp_path, text, fragments):
    refused(lambda: read([write(tmp_path, "bad.xml", text)]), "bad.xml", *fragments)


def test_bio_with_two_columns_and_with_three(tmp_path):
    one = "The\tO\nBattery\tB-ASP\nlife\tI-ASP\nis\tO\ngreat\tB-OPN\n\n\nok\tO\n"
    two = "\ufeffthe\tO\tO\r\nbattery\tB\tO\r\nlife\tI\tO\r\nis\tO\tO\r\ngreat\tO\tB\r\n\r\nok\tO\tO"
    a, b = (read([write(tmp_path, n, t)])[0] for n, t in (("one.tsv", one), ("two.tsv", two)))
    assert a == b and terms(a[0]) == [["battery life"], ["great"]] and a[1].opinions == ()
    plain = read([write(tmp_path, "c.tsv", "a\tB\nb\tI\nc\tO\n")])[0]
    assert plain[0].aspects == ((0, 2),) and plain[0].opinions is None


def test_a_file_of_tags_may_begin_with_any_word(tmp_path):
    """Words that other formats begin with: of XML, of an opinion lexicon, of Hu and Liu's reviews."""
    for word in ("<", "<text>", ";", "##ing", "c##"):
        sample, = read([write(tmp_path, "positive-words.txt", f"{word}\tO\tO\nscreen\tB\tO\ngreat\tO\tB\n")])[0]
        assert sample.words == (word, "screen", "great") and terms(sample) == [["screen"], ["great"]]
    for text in ("screen\tB\n", "x[+1]##x\n"):
        refused(lambda text=text: read([write(tmp_path, "a.txt", text.encode("utf-16"))]), "line 1", "not UTF-8")


@pytest.mark.parametrize("text, fragments", [
    ("", ["empty file"]), ("\n\n", ["expected sentences"]), ("no tabs here\n", ["line 1", "word<TAB>tag"]),
    ("a\tB\n\nb\tO\tO\n", ["line 3", "same in all"]), ("a\tX\n", ["line 1", "B-OPN", "'X'"]),
    ("a\tB-OPN\tO\n", ["line 1", "'B-OPN'"]), ("a\tO-ASP\n", ["'O-ASP'"]), ("\tB\n", ["line 1"]),
    (b"a\tB\nb\0\tO\n", ["line 2", "NUL"]), (b"a\tB\n\xe9\tO\n", ["line 2", "UTF-8"]),
    ("a\tO\nb\tO\n", ["at least one marked aspect"]), ("a\tB\n" * 81, ["none", "more than 80 words"]),
])
def test_bad_bio_is_one_line(tmp_path, text, fragments):
    refused(lambda: read([write(tmp_path, "bad.tsv", text)]), "bad.tsv", *fragments)


def test_fewer_sentences_than_can_be_divided(tmp_path):
    refused(lambda: load([write(tmp_path, "few.tsv", "a\tB\n\nb\tB\n")]), "at least 10", "found 2")
    refused(lambda: load([tmp_path / "none.xml"]), "no such file")


def test_product_reviews(tmp_path):
    text = """* a head of stars
[t]a title
auto focus[+2], picture[+3][u], Battery[-1]##The auto-focus is fine , batteries and a battery are not .
picture quality[+1],picture{+1]##picture  qualities and pictures
camera[+2][p]##it is great
##nothing here
touchpad[-1] no marks
weight[+1]##
"""
    path = write(tmp_path, "Camera.txt", text)
    samples, notes = read([path])
    assert [terms(s)[0] for s in samples] == [["auto-focus", "batteries", "battery"], ["picture qualities", "pictures"],
                                              []]
    assert len(read([path], unmarked=True)[0]) == 4
    for note in ("4 terms found", "2 terms marked as not in", "1 lines left out: no ##", "no sentence in them",
                 "1 sentences left out: no aspect is named"):
        assert any(note in n for n in notes), (note, notes)
    folder = packed(p__Camera=text, p__README="not a review ## at all")
    assert read([write(tmp_path, "p.zip", folder)])[0] == samples
    lists = {"positive-words": ";\nfine\ngreat\nbattery", "negative-words": ";\nbad"}
    words = write(tmp_path, "w.zip", packed(**lists))
    assert [terms(s)[1] for s in read([path, words])[0]] == [["fine"], [], ["great"]]  # battery is an aspect


def test_bad_archives_are_one_line(tmp_path, monkeypatch):
    good = packed(a="x[+1]##x is good\n" * 30)
    refused(lambda: read([write(tmp_path, "cut.zip", good[:60])]), "cut.zip", ".zip")
    broken = good[:40] + bytes([good[40] ^ 255]) + good[41:]
    refused(lambda: read([write(tmp_path, "broken.zip", broken)]), "broken.zip", "cannot be read")
    refused(lambda: read([write(tmp_path, "none.zip", packed(README="x"))]), "none.zip", "no .txt")
    refused(lambda: read([write(tmp_path, "nul.zip", packed(a="x[+1]##x\n\0"))]), "nul.zip: a.txt, line 2", "NUL")
    refused(lambda: read([write(tmp_path, "lexicon.txt", "; only words\ngood\n")]), "expected sentences")
    box = io.BytesIO()
    with zipfile.ZipFile(box, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("a.txt", "x[+1]##x is good\n" * 30)
    lzma = box.getvalue()
    lzma = lzma[:60] + b"\xff" * 9 + lzma[69:]
    refused(lambda: read([write(tmp_path, "lzma.zip", lzma)]), "lzma.zip", "cannot be read")
    named = packed(**{"\u00e9": "x[+1]##x"}).replace("\u00e9".encode(), b"\xff\xfe")
    refused(lambda: read([write(tmp_path, "name.zip", named)]), "name.zip", "cannot be read")
    monkeypatch.setattr(aspects, "LARGEST", 100)
    two = packed(a="x[+1]##x\n" * 8, b="x[+1]##x\n" * 8)
    refused(lambda: read([write(tmp_path, "two.zip", two)]), "two.zip", "together, with b.txt")
    refused(lambda: read([write(tmp_path, "large.zip", good)]), "large.zip", "a.txt")


def test_stems_and_places_of_words():
    for words in (("picture", "pictures"), ("battery", "batteries"), ("look", "looking", "looked", "looks"),
                  ("stop", "stopped"), ("use", "used", "using"), ("box", "boxes"), ("movie", "movies"),
                  ("glass", "glasses"), ("speed", "speeds")):
        assert len({stem(w) for w in words}) == 1, words
    assert len({stem(w) for w in ("size", "set", "ring", "bed", "red", "bus")}) == 6
    text = "It\u2019s a wi-fi  card, isn't it?"
    assert [(w, text[a:b].replace("\u2019", "'").lower()) for w, a, b in words_at(text)] == [
        (w, w) for w in ("it", "'s", "a", "wi-fi", "card", ",", "isn't", "it", "?")]


@real_files
def test_the_real_product_reviews():
    """3,807 or so sentences have a marked aspect; nine tenths of the terms that should be in them are found."""
    paths = [DATA / f"{name}.zip" for name in ("product_reviews_1", "product_reviews_2", "opinion_lexicon")]
    corpus = load(paths, seed=1)
    count = {note.partition(" ")[2]: int(note.partition(" ")[0].replace(",", "")) for note in corpus.notes[1:-1]}
    assert abs(count["sentences for which an aspect and a strength are given"] - 3807) <= 5
    found, lost = count["terms found in their sentence"], count["terms not found in their sentence"]
    assert found > 3600 and found / (found + lost) > 0.9
    every = [s.words for s in corpus.train], [s.words for s in corpus.validation], [s.words for s in corpus.test]
    assert sum(map(len, every)) == 3851 and not set(every[0]) & {*every[1], *every[2]}
    assert all(s.opinions is not None for s in corpus.test)
    assert [s.words for s in load(paths, seed=1).test] == every[2] != [s.words for s in load(paths, seed=2).test]
    assert all(s.opinions is None for s in load(paths[:2]).test)


# ------------------------------------------------------------------------------------------------------- generator

@pytest.fixture(scope="module")
def generated():
    return generate((1500, 100, 400), seed=3)


def test_the_generator_depends_on_the_seed_alone(generated):
    code = "from tinyattn.tasks.reviews import generate; print(generate((30, 3, 5), 7))"
    outs = {subprocess.run([sys.executable, "-c", code], env={"PYTHONHASHSEED": h, "PYTHONPATH": "."}, text=True,
                           cwd=Path(__file__).parents[1], capture_output=True, check=True).stdout for h in ("0", "1")}
    assert outs == {f"{generate((30, 3, 5), 7)}\n"} != {f"{generate((30, 3, 5), 8)}\n"}


def test_long_sentences_are_left_out_of_the_built_in_reviews_too(generated):
    corpus = load(seed=5, max_length=8, sizes=(300, 30, 60))
    assert 0 < len(corpus.train) < 300 and all(len(s.words) <= 8 for s in corpus.train + corpus.test)
    assert corpus.notes[1].endswith("left out: more than 8 words")
    refused(lambda: load(max_length=1, sizes=(30, 3, 6)), "built-in reviews", "at most 1 words")


def test_no_sentence_is_in_two_parts_and_new_words_are_in_the_test_only(generated):
    every = [[s.words for s in part] for part in generated]
    assert [len(part) for part in every] == [1500, 100, 400] and len({w for part in every for w in part}) == 2000
    new = [{w for d in reviews.DOMAINS for w in (d.aspects, d.opinions)[side][-reviews.NEW:]} for side in (0, 1)]
    new[1] |= set(reviews.GENERAL[-reviews.NEW:])
    old = [{w for d in reviews.DOMAINS for w in (d.aspects, d.opinions)[side][:-reviews.NEW]} for side in (0, 1)]
    for part in generated[:2]:
        for sample in part:
            assert not any(set(t) & (n - o) for t, n, o in zip(terms(sample), new, old))
    for side, kind in enumerate(("new aspect", "new opinion")):
        some = [s for s in generated[2] if s.kind == kind]
        assert len(some) > 50 and all(set(terms(s)[side]) & new[side] for s in some)


def test_labels_say_what_the_head_of_the_generator_says(generated):
    for sample in [s for part in generated for s in part]:
        aspects_, opinions = terms(sample)
        assert bool(aspects_) == bool(opinions), sample
        assert len({*sample.aspects, *sample.opinions}) == len(sample.aspects) + len(sample.opinions)
        if sample.kind == "nothing":
            assert not aspects_
        if sample.kind in ("plain", "attribute", "verb", "conjunction", "contrast", "relative", "negation"):
            assert aspects_, sample
    assert {s.kind for s in generated[0]} == {*reviews.PATTERNS, "two clauses"}


def test_the_same_word_is_a_term_here_and_none_there(generated):
    """No list of words can do it: tagging each word as it mostly is in training leaves much wrong."""
    counts = {}
    for s in generated[0]:
        for word, *tags in zip(s.words, tags_of(s.aspects, len(s.words)), tags_of(s.opinions, len(s.words))):
            for side, tag in enumerate(tags):
                counts.setdefault((side, word), [0, 0, 0])[tag] += 1
    found = [tuple(spans_of([int(np.argmax(counts.get((side, w), [1, 0, 0]))) for w in s.words]) for side in (0, 1))
             for s in generated[2]]
    assert scores(generated[2], found)["f1"] < 75


# ---------------------------------------------------------------------------------------------------------- system

def small(tmp_path=None, seed=1, **options):
    text = "".join(f"the\tO\n{a}\tB-ASP\nis\tO\n{o}\tB-OPN\n\n" for a in ("food", "wine", "room", "bed", "soup")
                   for o in ("good", "bad", "poor", "hot", "new"))
    paths = [write(tmp_path, "data.tsv", text)]
    return Aspects.prepare(Options(**{"hidden": 6, "embed": 5, "scores": 3, **options}), paths, seed)


def test_opinions_that_are_not_known_are_no_targets(tmp_path):
    system = small(tmp_path)
    known = Review(("the", "food", "is", "good"), ((1, 2),), ((3, 4),))
    unknown = Review(("bad", "food"), ((1, 2),), None)
    ids, lengths, tags = system.tensors([known, unknown])
    assert lengths.tolist() == [4, 2] and ids[1, 2:].tolist() == [0, 0]
    assert tags.tolist() == [[[0, 1, 0, 0], [0, 0, 0, 1]], [[0, 1, IGNORE, IGNORE], [IGNORE] * 4]]
    system.model.eval()
    loss, count = system.loss([known, unknown])
    alone = [system.loss([s]) for s in (known, unknown)]
    assert count == 10 == sum(n for _, n in alone)
    assert loss.item() == pytest.approx(sum(x.item() * n for x, n in alone) / 10, rel=1e-6)


def test_a_run_that_has_learnt_no_opinions_says_none(tmp_path):
    """The opinion side of such a run is as chance made it: its tags would be noise."""
    text = "\n".join(f"the\tO\nlens{i}\tB\nis\tO\ngood\tO\n" for i in range(20))
    system = Aspects.prepare(Options(hidden=4, embed=4, scores=2), [write(tmp_path, "a.tsv", text)])
    begins = np.array([[[0.0, 0, 0]], [[0, 9, 0]]], np.float32)  # the opinion side would tag every word
    back = Aspects.restore(asdict(system.options), json.loads(json.dumps(system.extra())))
    for one in (system, back):
        one.model.load_state_dict({**one.model.state_dict(), "bias": begins})
    for one in (system, back):
        found = one.predict("the lens is good")
        assert found.record["opinions"] is None and "]o" not in found.line
    both = "\n".join(f"the\tO\tO\nlens{i}\tB\tO\ngood\tO\tB\n" for i in range(3))
    back.attach_all([write(tmp_path, "b.tsv", both)])
    figures = back.evaluate("all")
    assert "opinion_f1" not in figures and figures["f1"] == figures.get("aspect_f1", 0.0)


def test_ten_steps_equal_five_and_five_bit_for_bit(tmp_path):
    whole, part = small(tmp_path), small(tmp_path)
    settings = {"steps": 10, "batch_size": 4, "validate_every": 3}
    train(whole, Config.of(whole, **settings), tmp_path / "whole")
    train(part, Config.of(part, **settings), tmp_path / "part", stop_at=5)
    again = small(tmp_path)
    again.model.load_state_dict(small(tmp_path, seed=4).model.state_dict())  # all must come from the checkpoint
    train(again, Config.of(again, **settings), tmp_path / "part", resume=True)
    one, two = (checkpoint.load(tmp_path / name) for name in ("whole", "part"))
    assert one.state["random"] == two.state["random"]
    for name, array in one.model.items():
        assert np.array_equal(array, two.model[name]), name
    restored = Aspects.restore(one.config["options"], json.loads(json.dumps(one.extra)))
    restored.model.load_state_dict(one.model)
    assert restored.predict("the food is odd").record["weights"]
    assert restored.words.to_list() == whole.words.to_list() and restored.describe() == whole.describe()


def test_it_learns_the_built_in_task_beyond_its_words():
    """In half a minute's part of the training: above the list of words (72)."""
    system = Aspects.prepare(Options(attention="cmla"), seed=1)
    train(system, Config.of(system, steps=120, learning_rate=6e-3))
    result = system.evaluate("test", limit=300)
    assert result["f1"] > 76 and 0 < result["gold_mass"] < 1 and result["sentences"] == 300
    assert {"aspect_f1", "opinion_precision", "aspect_recall", "loss", "gold_top", "by_kind"} <= set(result)
    assert json.dumps(result)
    assert sum(n for _, n, _ in result["by_kind"]) == 300
    some = system.examples(2)
    assert len(some) == 2 and any("]a" in p.line and "]o" in p.line for p in some) and some[0].looks[0].gold


def test_a_prediction_and_its_picture(tmp_path):
    system = small(tmp_path)
    answer = system.predict("The food is ZEBRA-like")
    look = answer.looks[0]
    assert answer.record["words"] == look.columns == ["the", "food", "is", "zebra-like"]
    assert look.rows == ["aspect, layer 1", "aspect, layer 2", "opinion, layer 1", "opinion, layer 2"]
    np.testing.assert_allclose(look.weights.sum(1), 1, rtol=1e-6)
    aspects, opinions = ([t["text"] for t in answer.record[side]] or ["none"] for side in ("aspects", "opinions"))
    assert look.title == f"aspects: {', '.join(aspects)}\nopinions: {', '.join(opinions)}"
    assert set(answer.record) == {"words", "aspects", "opinions", "weights"} and json.dumps(answer.record)
    plain = small(tmp_path, attention="none").predict("the food is good")
    assert plain.looks == [] and "weights" not in plain.record
    refused(lambda: system.predict("  "), "expected a sentence")
    alpha = system.tag([Review(("the", "food"), (), None)])[1][0]
    np.testing.assert_allclose(system.predict("the food").looks[0].weights[2:], alpha[:, 1], rtol=1e-6)


def test_terms_are_marked_in_the_sentence():
    words = ["the", "battery", "life", "is", "great"]
    assert marked(words, [(1, 3)], [(4, 5)]) == "the [battery life]a is [great]o"
    assert marked(["hot", "dog"], [(0, 2)], [(0, 1)]) == "[[hot]o dog]a"
    assert marked(["ok"], [(0, 1)], [(0, 1)]) == "[[ok]o]a"
    assert marked(words, [], []) == "the battery life is great"


@pytest.mark.parametrize("bad, message", [
    ({"hidden": 0}, "hidden"), ({"dropout": 1.0}, "dropout"), ({"layers": 0}, "layers"), ({"unknown": -0.1}, "unknown"),
    ({"attention": "additive"}, "cmla or none"),
])
def test_options_that_cannot_be_are_one_line(tmp_path, bad, message):
    refused(lambda: small(tmp_path, **bad), "aspects", message)


@pytest.mark.parametrize("options", [{}, {"attention": "none"}, {"bidirectional": True, "tanh": False, "layers": 1}],
                         ids=str)
def test_every_kind_of_model_gives_a_graph_to_draw(tmp_path, options):
    system = small(tmp_path, **options)
    loss = system.example_graph()
    assert loss.shape == () and loss.op is not None
    loss.backward()
    assert "parameters" in system.describe() and system.mean_loss(system.corpus.test) > 0
