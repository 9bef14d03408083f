"""The classifier: readers and built-in documents, sentences, training and resuming, predictions, what it looks at."""
import json
import os
import subprocess
import sys
import zipfile
import zlib
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from tinyattn import checkpoint
from tinyattn.config import Config
from tinyattn.errors import InputError
from tinyattn.models.classify import NETWORKS, Classify, network
from tinyattn.tasks import docstrings
from tinyattn.tasks.classify import Document, load, read, split_sentences
from tinyattn.train import train

ROOT = Path(__file__).parents[1]
DATA = ROOT / "../shared/data/nltk-cc-by"
real = pytest.mark.skipif(not DATA.is_dir(), reason="the sample files are not on this machine")
HIERARCHIES = ("han", "average", "max", "two_level")


def write(folder, name, content):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def refused(call, *fragments):
    with pytest.raises(InputError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    for fragment in fragments:
        assert fragment in message, message


def reviews(count=60, seed=0):
    """label TAB text: the kind of a review is said by one word in one of its sentences."""
    rng, lines = np.random.default_rng(seed), []
    for i in range(count):
        label = ("good", "bad")[i % 2]
        telling = {"good": ["superb", "lovely"], "bad": ["awful", "dull"]}[label][rng.integers(2)]
        sentences = [" ".join(rng.choice(["the", "film", "is", "plot", "actor", "a", "long", "story"], 5))
                     for _ in range(rng.integers(2, 5))]
        sentences[rng.integers(len(sentences))] += f" {telling} scene"
        lines.append(f"{label}\t" + " ".join(s.capitalize() + "." for s in sentences))
    return "\n".join(lines) + "\n"


# ---------------------------------------------------------------------------------------------------------------------
# sentences
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("text, sentences", [
    ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
    ("Mr. Smith saw J. Doe, e.g. Bob. He left.", ["Mr. Smith saw J. Doe, e.g. Bob.", "He left."]),
    ('"Really?" she said. "Yes!" (No.) So I. Then', ['"Really?" she said.', '"Yes!"', "(No.)", "So I.", "Then"]),
    ("it was good . it was bad .", ["it was good . it was bad ."]),
    ("first line\r\nsecond. Line\n\nthird", ["first line", "second.", "Line", "third"]),
    ("Pi is 3.14 or so... Or not?! 9 of 10.", ["Pi is 3.14 or so...", "Or not?!", "9 of 10."]),
    ("1. Open it. 2. Close it.", ["1. Open it.", "2. Close it."]),
    ("这是。那是！好", ["这是。", "那是！", "好"]),
    (" \n \t", []), ("...", ["..."]), (". . .", [". . ."]),
])
def test_split_sentences(text, sentences):
    assert split_sentences(text) == sentences


def test_splitting_a_hostile_line_takes_no_time_that_grows_with_its_square():
    for text in ("." * 300_000 + "x", "a" * 300_000, "a." * 100_000, '.")' * 100_000, "?!" * 100_000 + " A"):
        assert "".join(split_sentences(text)).replace(" ", "") == text.replace(" ", "")


# ---------------------------------------------------------------------------------------------------------------------
# readers
# ---------------------------------------------------------------------------------------------------------------------
def test_tables_and_json_lines_are_read_alike(tmp_path):
    tsv = write(tmp_path, "a.tsv", "\ufeffpos\tA film. Good\tone\r\n\n neg \tbad\n1\tx\n")
    rows = [{"label": "pos", "text": "A film. Good\tone"}, {"label": "neg", "text": "bad", "more": 1},
            {"label": 1, "text": "x"}]
    lines = write(tmp_path, "a.txt", "\n" + "\n".join(map(json.dumps, rows)))
    expected = [Document((("a", "film", "."), ("good", "one")), "pos"), Document((("bad",),), "neg"),
                Document((("x",),), "1")]
    for path in (tsv, lines):
        documents, notes = read(path)
        assert documents == expected
        assert "1 left out: blank line" in notes
    assert read([tsv, lines])[0] == expected * 2
    as_bool = write(tmp_path, "b", '{"label": true, "text": "x"}\n{"label": 1.5, "text": "y"}')
    assert [d.label for d in read(as_bool)[0]] == ["true", "1.5"]


def test_long_documents_are_cut_and_counted(tmp_path):
    path = write(tmp_path, "a.tsv", "x\tA b c d. E f. G h.\ny\t ...\nz\t\u00ad \n")
    documents, notes = read(path, max_words=3, max_sentences=2)
    assert documents[0].sentences == (("a", "b", "c"), ("e", "f", "."))
    assert "1 documents cut after 2 sentences" in notes and "1 sentences cut after 3 words" in notes
    path = write(tmp_path, "b.tsv", "x\ta\ny\t \n")
    documents, notes = read(path)
    assert len(documents) == 1 and "1 left out: without a word" in notes


@pytest.mark.parametrize("content, fragments", [
    ("", ["empty file"]), ("\n \n", ["expected at least 1 document", "2 left out: blank line"]),
    ("pos good", ["line 1", "label<TAB>text", "no tab", "'pos good'"]), ("a\tb\n\tgood\n", ["line 2", "no label"]),
    ("a\t \n", ["without a word"]), (b"a\tb\na\tcaf\xe9\n", ["line 2", "0xe9", "UTF-8"]),
    (b"a\tb\0\n", ["line 1", "NUL"]), ("a\tb\n".encode("utf-16"), ["line 1", "UTF-8"]),
    ('{"label": "a", "text": "b"}\n{"label": "a"}\n', ["line 2", '"text"']),
    ('{"label": "a", "text": "b"}\nnone\n', ["line 2", "not JSON"]), ("{" * 30, ["line 1", "not JSON"]),
    ('{"label": ["a"], "text": "b"}', ["line 1", "label", '["a"]']), ('{"label": "", "text": "b"}', ["line 1"]),
    ('{"label": "a", "text": 3}', ["line 1", "text", "3"]), ('{"label": "a", "text": "\\ud800"}', ["line 1", "half"]),
    ('{"a":' * 100_000, ["line 1", "not JSON"]), ('{"label": NaN, "text": "b"}', ["line 1", "NaN is no number"]),
    ('{"label": 1e999, "text": "b"}', ["line 1", "1e999 is too large a number"]),
    ('{"label": "a", "text": "b", "label": "c"}', ["line 1", "a key comes twice"]),
])
def test_files_that_cannot_be_used_are_refused_with_the_line(tmp_path, content, fragments):
    path = write(tmp_path, "data.txt", content)
    refused(lambda: read(path), "data.txt", *fragments)


def test_data_that_cannot_be_divided_are_refused(tmp_path):
    refused(lambda: load(tmp_path / "none"), "no such file")
    few = write(tmp_path, "few.tsv", "a\tx\nb\ty\n" * 4)
    refused(lambda: load(few), "few.tsv", "at least 10")
    one = write(tmp_path, "one.tsv", "".join(f"a\tword {i}\n" for i in range(20)))
    refused(lambda: load(one), "at least 2 labels", "'a' alone")
    swapped = write(tmp_path, "swapped.tsv", "".join(f"word {i}\ta {i}\n" for i in range(20)))
    refused(lambda: load(swapped), "20 labels", "order")


def zipped(path, files):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


TREE = {"top/README": b"what this is", "top/pos/1.txt": b"A film.\r\nGood one.\n", "top/pos/.hidden": b"no",
        "top/neg/b.txt": "caf\u00e9 bad".encode("latin-1"), "top/neg/a.txt": "caf\u00e9".encode()}


def test_folders_and_zips_of_label_slash_file(tmp_path):
    for name, content in TREE.items():
        write(tmp_path / "tree", name, content)
    expected = [("neg", (("café",),)), ("neg", (("café", "bad"),)), ("pos", (("a", "film", "."), ("good", "one", ".")))]
    for path in (tmp_path / "tree/top", tmp_path / "tree", zipped(tmp_path / "a.zip", TREE)):
        documents, notes = read(path)
        assert [(d.label, d.sentences) for d in documents] == expected
        assert "1 files that are not UTF-8, read as Latin-1" in notes


def test_files_of_one_sentence_a_line_are_labelled_by_what_tells_their_names_apart(tmp_path):
    for names, labels in ((("x.pos", "x.neg"), ("neg", "pos")), (("q.tok.5", "p.tok.5"), ("p", "q")),
                          (("b.txt", "a.more.txt"), ("a.more", "b"))):
        path = zipped(tmp_path / "a.zip", dict.fromkeys(names, "one line\n\nanother. Two\n") | {"README.txt": "no"})
        documents = read(path)[0]
        assert [d.label for d in documents] == [labels[0]] * 2 + [labels[1]] * 2
        assert len(documents[1].sentences) == 2


def test_broken_zips_and_folders_are_refused(tmp_path):
    refused(lambda: read(write(tmp_path, "a.zip", b"no zip at all")), "a.zip", "zip")
    refused(lambda: read(write(tmp_path, "a.zip", b"")), "empty")
    (tmp_path / "empty").mkdir()
    refused(lambda: read(tmp_path / "empty"), "no file")
    refused(lambda: read(zipped(tmp_path / "b.zip", {"p/1": b"ok", "q/1": b"x\ny\0"})), "b.zip", "q/1", "line 2", "NUL")
    path = zipped(tmp_path / "c.zip", {"p/1": b"some text here", "q/1": b"other"})
    data = path.read_bytes()
    path.write_bytes(data.replace(b"some text", b"sxme text"))
    refused(lambda: read(path), "c.zip", "p/1", "cannot be read")
    path.write_bytes(data[:len(data) // 2])
    refused(lambda: read(path), "c.zip", "zip")
    for method in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA, zipfile.ZIP_DEFLATED):
        with zipfile.ZipFile(tmp_path / "d.zip", "w", method) as archive:
            archive.writestr("p/1", "some text here " * 20)
        data, rng = (tmp_path / "d.zip").read_bytes(), np.random.default_rng(0)
        for place in rng.integers(len(data), size=150):
            path = write(tmp_path, "e.zip", data[:place] + bytes([rng.integers(256)]) + data[place + 1:])
            try:
                read(path)
            except InputError as error:
                assert "e.zip" in str(error)
    nameless = zipped(tmp_path / "f.zip", {"p/1": b"ok", "qqqq": b"no"}).read_bytes().replace(b"qqqq", b"\0qqq")
    assert [d.label for d in read(write(tmp_path, "f.zip", nameless))[0]] == ["1"]


@pytest.mark.skipif(sys.platform != "linux", reason="names are bytes on Linux alone")
def test_names_that_are_not_utf8_are_told(tmp_path):
    write(tmp_path, "a/1.txt", "good")
    odd = os.fsdecode(os.fsencode(tmp_path / "a") + b"/\xff.txt")
    Path(odd).write_text("bad")
    refused(lambda: read(tmp_path), "names of files and folders in UTF-8", r"'\udcff.txt'")


def test_a_label_is_one_line(tmp_path):
    path = write(tmp_path, "a.jsonl", '{"label": " a\\n b\\tc", "text": "x"}\n{"label": "a b c", "text": "y"}\n')
    documents, notes = read(path)
    assert {d.label for d in documents} == {"a b c"} and not any("\n" in note for note in notes)


@real
def test_the_real_collections():
    for name, labels, size in (("movie_reviews", {"pos": 1000, "neg": 1000}, 24),
                               ("sentence_polarity", {"pos": 5331, "neg": 5331}, 1),
                               ("subjectivity", {"plot": 5000, "quote": 5000}, 1)):
        documents, notes = read(DATA / f"{name}.zip")
        assert Counter(d.label for d in documents) == labels
        assert sorted(len(d.sentences) for d in documents)[len(documents) // 2] == size
        assert not any("left out" in note for note in notes)


# ---------------------------------------------------------------------------------------------------------------------
# the built-in documents. Versions of Python differ, so bounds are wide
# ---------------------------------------------------------------------------------------------------------------------
def test_the_built_in_documents_are_real_english_of_many_families():
    documents = docstrings.documents()
    counts = Counter(family for family, _ in documents)
    assert set(counts) <= set(docstrings.FAMILIES) and len(counts) >= 6
    assert len(documents) > 800 and all(docstrings.FEWEST <= n <= docstrings.MOST for n in counts.values())
    texts = [text for _, text in documents]
    assert len(set(texts)) == len(texts) and all(len(text.split()) >= 8 for text in texts)
    common = Counter(word for text in texts for word in set(text.lower().split()))
    assert common["the"] > 0.6 * len(texts) and not any(">>>" in text for text in texts)
    assert documents == docstrings.documents()


def test_a_module_does_not_tell_its_name(tmp_path):
    text = "Open the Wave_file that wave gives; the waves of a WAVE, or xwave, are read by it in order."
    for i in range(docstrings.FEWEST):
        write(tmp_path, f"xml/m{i}.py", f'class A:\n    """{text} {i}"""\n')
        write(tmp_path, f"os/io{i}.py", f'def f():\n    """{text} in os {i}."""\n')
    write(tmp_path, "wave.py", f'"""Short."""\ndef f():\n    """{text} wave"""\n')
    write(tmp_path, "xml/broken.py", "def f(:\n")
    write(tmp_path, "xml/test/a.py", f'"""{text} tests"""\n')
    found = docstrings.documents(tmp_path)
    of_wave = [text for family, text in found if family == "data formats" and "…" in text]
    assert of_wave == ["Open the …_file that … gives; the waves of a …, or xwave, are read by it in order. …"]
    assert not any(" os " in text for family, text in found if family == "files")
    assert len(found) == 2 * docstrings.FEWEST + 1 and not any("tests" in text for _, text in found)


def test_paragraphs_become_lines_and_examples_go(tmp_path):
    doc = ('"""Words that go on\nover two lines.\n\nItems here:\n\n- one of them\n  goes on\n- the other\n\n'
           '>>> print(1)\n1\n"""')
    path = write(tmp_path, "a.py", doc)
    assert list(docstrings._texts(path, {"a"})) == [
        "Words that go on over two lines.\nItems here:\n- one of them\ngoes on\n- the other"]


def test_a_python_without_sources_is_told(tmp_path):
    refused(lambda: docstrings.documents(tmp_path), str(tmp_path), "sources", "--data")


def test_the_division_is_without_leaks_and_depends_on_the_seed_alone():
    corpus = load(seed=3)
    parts = [corpus.train, corpus.validation, corpus.test]
    for i, part in enumerate(parts):
        for other in parts[i + 1:]:
            assert not {d.sentences for d in part} & {d.sentences for d in other}
    assert len(corpus.test) >= len(corpus.train) // 10
    assert {d.label for d in corpus.test} == {d.label for d in corpus.train}
    code = ("from tinyattn.tasks.classify import load; import zlib; c = load(seed=3); "
            "print(zlib.crc32(repr((c.train, c.test)).encode()))")
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT,
                          env={**os.environ, "PYTHONHASHSEED": "77"}).stdout
    assert said == f"{zlib.crc32(repr((corpus.train, corpus.test)).encode())}\n"


# ---------------------------------------------------------------------------------------------------------------------
# the system
# ---------------------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write(tmp_path_factory.mktemp("data"), "reviews.tsv", reviews(240))


def prepare(path, seed=1, **options):
    small = {"embed": 8, "hidden": 6, "align": 6, "dropout": 0.1, **options}
    return Classify.prepare(Classify.Options(**small), [path], seed=seed)


@pytest.fixture(scope="module")
def trained(path):
    system = prepare(path)
    train(system, Config.of(system, steps=60, batch_size=16, learning_rate=2e-2, seed=1))
    return system


def test_han_finds_the_telling_words(trained):
    scores = trained.evaluate("test")
    assert scores["accuracy"] >= 0.9 and scores["macro_f1"] >= 0.9 and scores["loss"] < 0.4
    assert trained.evaluate("test", limit=5)["documents"] == 5
    hits = 0
    for document in trained.corpus.test:
        (_, _), (_, words) = trained.model.looks(trained.ids([document]))
        found = [(i, t) for i, s in enumerate(document.sentences) for t, w in enumerate(s)
                 if w in ("superb", "lovely", "awful", "dull")]
        hits += sum(words[0, i].argmax() in (t, t + 1, t + 2) for i, t in found)
    assert hits > 0.6 * len(trained.corpus.test)


def test_a_prediction_names_its_label_and_shows_what_it_looked_at(trained):
    text = "The film is long. A superb scene in the plot! Zebra"
    got = trained.predict(text)
    label, probability = got.line.split("\t")
    assert label == "good" == got.record["label"] and float(probability) > 0.5
    assert sum(got.record["probabilities"].values()) == pytest.approx(1)
    assert got.record["text"] == text and json.dumps(got.record)
    look, = got.looks
    assert look.columns == ["the", "film", "is", "long", ".", "a", "superb", "scene", "in", "the", "plot", "!", "zebra"]
    assert look.weights.shape == (3, 13) and "good" in look.title
    np.testing.assert_allclose(look.weights.sum(1), 1, atol=1e-6)
    assert [np.flatnonzero(row).tolist() for row in look.weights] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9, 10, 11], [12]]
    assert sum(float(row.partition(": ")[2]) for row in look.rows) == pytest.approx(1, abs=0.02)
    refused(lambda: trained.predict(" \n"), "a text to classify")


def test_of_a_long_document_the_heaviest_sentences_are_drawn(trained):
    got = trained.predict("The film is a story the plot is a long story. " * 9 + "A superb one.")
    weights = got.record["weights"]["sentences"]
    look, = got.looks
    shown = [int(row.split()[1].strip(":")) - 1 for row in look.rows]
    assert len(look.columns) <= 48 and "of 10 sentences" in look.title and shown == sorted(shown)
    assert min(weights[i] for i in shown) >= max(w for i, w in enumerate(weights) if i not in shown)


@pytest.mark.parametrize("attention", NETWORKS)
def test_every_network_trains_predicts_and_draws(path, attention):
    system = prepare(path, attention=attention)
    assert system.model.hierarchical == (attention in HIERARCHIES)
    train(system, Config.of(system, steps=2, batch_size=16))
    scores = system.evaluate("validation")
    assert set(system.figures) <= set(scores) and [row[0] for row in scores["by_label"]] == ["bad", "good"]
    assert sum(row[1] for row in scores["by_label"]) == scores["documents"]
    together = system.probabilities(system.corpus.test)
    alone = np.concatenate([system.probabilities([d]) for d in system.corpus.test])
    np.testing.assert_allclose(together, alone, atol=1e-5)
    examples = system.examples(2)
    assert len(examples) == 2 and bool(examples[0].looks) == (attention not in ("max", "none", "cnn"))
    for look in examples[0].looks:
        assert np.shape(look.weights) == (len(look.rows), len(look.columns)) and np.isfinite(look.weights).all()
    assert system.example_graph().op is not None
    assert attention in system.describe() and json.dumps(system.extra())


@pytest.mark.parametrize("attention", NETWORKS)
def test_word_vectors_begin_alike_in_all_networks(path, attention):
    table = prepare(path, attention=attention).model.embedding.weight.numpy()
    assert (table[0] == 0).all() and 0.08 < table[1:].std() < 0.12


@pytest.mark.parametrize("attention", NETWORKS)
def test_five_steps_and_five_more_equal_ten_bit_for_bit(path, tmp_path, attention):
    def run(folder, **stops):
        system = prepare(path, attention=attention, dropout=0.3)
        config = Config.of(system, data=(str(path),), steps=10, batch_size=16, validate_every=4, seed=2)
        train(system, config, tmp_path / folder, **stops)
        return system

    run("whole")
    run("parts", stop_at=5)
    last = run("parts", resume=True)
    one, two = (checkpoint.load(tmp_path / name) for name in ("whole", "parts"))
    for part in checkpoint.PARTS:
        a, b = getattr(one, part), getattr(two, part)
        assert a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a), part
    back = Classify.restore(asdict(last.options), two.extra)
    back.model.load_state_dict(two.best)
    assert back.predict("A lovely film.").record == last.predict("A lovely film.").record


def test_other_files_are_evaluated_whole_and_unknown_labels_are_told(trained, tmp_path):
    trained.attach_all([write(tmp_path, "a.tsv", "good\tA superb film.\nbad\tAn awful one.\n")])
    assert trained.evaluate("all")["documents"] == 2
    trained.attach_all([write(tmp_path, "b.tsv", "good\tA superb film.\nugly\tAn awful one.\n")])
    refused(lambda: trained.evaluate("all"), "bad, good", "'ugly'")


@pytest.mark.parametrize("labels", ["ab", ["good", "good"], ["good", "b\nad"], {"good": 1, "bad": 2}])
def test_labels_of_a_checkpoint_are_texts_of_one_line_each_once(trained, labels):
    with pytest.raises(ValueError, match="expected a list of labels"):
        Classify.restore(asdict(trained.options), {**trained.extra(), "labels": labels})


def test_bad_options_are_one_line(path):
    for bad, fragments in [({"hidden": 0}, ["hidden"]), ({"dropout": 1.0}, ["dropout"]),
                           ({"max_words": 0}, ["max_words"]),
                           ({"attention": "hann"}, ["attention", "structured_self", "'hann'"]),
                           ({"penalty": 1e300, "attention": "two_level"}, ["penalty", "at most"]),
                           ({"rows": 2}, ["rows", "han"]), ({"penalty": 1.0, "attention": "cnn"}, ["penalty", "cnn"]),
                           ({"max_vocabulary": 1}, ["max_vocabulary"])]:
        refused(lambda bad=bad: prepare(path, **bad), "classify", *fragments)


def test_the_penalty_is_in_the_loss_of_training_alone(path):
    plain, punished = (prepare(path, attention="structured_self", penalty=p, dropout=0.0) for p in (0.0, 5.0))
    batch = plain.corpus.train[:8]
    losses = [[system.loss(batch)[0].item() for system in (plain, punished)]
              for mode in (True, False) if [s.model.train(mode) for s in (plain, punished)]]
    assert losses[0][1] > losses[0][0] + 0.01 and losses[1][1] == pytest.approx(losses[1][0])


def test_f1_is_that_of_a_count_by_hand(path):
    system = prepare(path)
    documents = [replace(d, label=label) for d, label in zip(system.corpus.test, ["good"] * 4 + ["bad"] * 4)]
    system.corpus.test = documents
    said = np.array([[0, 1], [0, 1], [0, 1], [1, 0], [1, 0], [1, 0], [0, 1], [0, 1]], float)  # columns: bad, good
    system.probabilities = lambda documents: said
    scores = system.evaluate("test")
    assert scores["accuracy"] == 5 / 8  # good: 3 hits, said 5 times, true 4 times; bad: 2 hits, said 3, true 4
    assert scores["by_label"] == [["bad", 4, pytest.approx(400 / 7)], ["good", 4, pytest.approx(600 / 9)]]
    assert scores["macro_f1"] == pytest.approx((4 / 7 + 6 / 9) / 2)


def test_networks_are_found_by_name():
    assert [network(name).__name__ for name in NETWORKS] == ["HAN", "Average", "Max", "BiGRU", "Lin", "Du", "DiSAN",
                                                             "CNN"]
