"""Film questions: files of all forms, key hashing, memories of all kinds; in `qa`: hits@1, going on, being asked."""
import gzip
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_train import assert_same_run

from tinyattn import InputError, Tensor, checkpoint
from tinyattn.attention.key_value import NEAR, TITLE, WINDOW, hashed
from tinyattn.config import Config
from tinyattn.functional import cross_entropy
from tinyattn.models.qa import NETWORKS, QA, SHOWN
from tinyattn.tasks import movies
from tinyattn.tasks.movies import INVERSE, Memories, cut, is_movies, load, memories, parse, read, spelled_out, write
from tinyattn.train import train

REAL = Path(__file__).parent.parent.parent / "shared" / "data" / "metaqa-1hop"
FILMS = [(f"Film {i}", f"Maker {i % 7}", str(1980 + i % 9)) for i in range(20)]


def record(question, *triples):
    return json.dumps({"question": question, "triples": [dict(zip("hrt", t)) for t in triples]})


@pytest.fixture
def file(tmp_path):
    """A file of 40 questions about 20 films."""
    lines = []
    for film, maker, year in FILMS:
        lines += [record(f"who directed [{film}]", (film, "directed_by", maker)),
                  record(f"when was [{film}] shown", (film, "release_year", year))]
    lines.append(record("films by [Maker 1]", *(("Maker 1", "directed_by" + INVERSE, f) for f, m, _ in FILMS
                                               if m == "Maker 1")))
    path = tmp_path / "all.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


# ---------------------------------------------------------------------------------------------------------------------
# the task
# ---------------------------------------------------------------------------------------------------------------------
def test_questions_facts_and_entities_of_a_file(file):
    found = read([file])
    assert len(found.train) == 41 and not found.test
    assert found.train[0] == (("who", "directed", "Film 0"), "Film 0", ("Maker 0",))
    assert found.train[-1] == (("films", "by", "Maker 1"), "Maker 1", ("Film 1", "Film 8", "Film 15"))
    assert len(found.facts) == 40 and ("Film 8", "directed_by", "Maker 1") in found.facts  # turned round, and once
    assert {"Film 3", "Maker 3", "1983"} <= set(found.entities)


def test_no_entity_is_asked_about_in_two_parts_and_memories_come_from_all_facts(file):
    corpus = load([file], seed=3)
    parts = [{w for s in part for w in s.question if w.startswith(("Film", "Maker"))}
             for part in (corpus.train, corpus.validation, corpus.test)]
    assert all(parts) and not (parts[0] & parts[1] or parts[0] & parts[2] or parts[1] & parts[2])
    for sample in corpus.test:
        entity = next(w for w in sample.question if w in corpus.candidates)
        mine = {(key[1], value[0]) for key, value in sample.pairs if key[0] == entity}
        assert {"directed_by", "release_year"} <= {r for r, _ in mine} or entity.startswith("Maker")
        assert any(value[0] in sample.answers for _, value in sample.pairs)
    assert corpus.candidates == sorted({x for row in FILMS for x in row})
    assert "41 questions, 40 facts" in corpus.notes[0]


def test_each_right_answer_is_a_training_sample_and_a_test_question_has_them_all(file):
    corpus = next(c for c in (load([file], seed=s) for s in range(30))
                  if any(s.question[:2] == ("films", "by") for s in c.train))
    samples = [s for s in corpus.train if s.question[:2] == ("films", "by")]
    assert [s.answer for s in samples] == ["Film 1", "Film 8", "Film 15"]
    assert {s.answers for s in samples} == {("Film 1", "Film 8", "Film 15")}


def test_a_file_named_test_is_the_test_set_and_twins_are_left_out(file, tmp_path):
    other = tmp_path / "qa_test.txt"
    other.write_text("who made [Film 2]\tMaker 2|Maker 9\nwho made [Film 2]\tMaker 2|Maker 9\n", encoding="utf-8")
    corpus = load([file, other])
    assert [(s.question, s.answers) for s in corpus.test] == [(("who", "made", "Film 2"), ("Maker 2", "Maker 9"))]
    assert "left out: 1 questions that stood there twice" in corpus.notes
    assert len({s.question for s in [*corpus.train, *corpus.validation]}) == 41
    alone = load([other.rename(tmp_path / "test.txt"), file.rename(tmp_path / "test.jsonl")])  # then there is no other
    assert len(alone.test) > 1 and alone.train


def test_the_division_depends_on_the_seed_alone_and_on_no_hash(file):
    script = ("import sys; from tinyattn.tasks.movies import load; c = load([sys.argv[1]], 5, kind='window'); "
              "print([s.question for s in c.test], [s.pairs for s in c.train][:3])")
    outs = {subprocess.run([sys.executable, "-c", script, str(file)], capture_output=True, text=True, check=True,
                           cwd=Path(__file__).parent.parent, env={**os.environ, "PYTHONHASHSEED": s}).stdout
            for s in ("1", "2")}
    assert len(outs) == 1 and outs.pop().strip()


def test_words_of_questions_are_in_lower_case_and_entities_as_they_are():
    assert parse("What films did [Lily Tomlin] act in?") == (("what", "films", "did", "Lily Tomlin", "act", "in"),
                                                            ["Lily Tomlin"])


def test_asking_in_words(file):
    corpus = load([file])
    asked = corpus.ask("who directed [Film 3]")
    assert asked.pairs[:2] == ((("Film 3", "directed_by"), ("Maker 3",)), (("Film 3", "release_year"), ("1983",)))
    assert asked.story[:2] == (("Film 3", "directed_by", "Maker 3"), ("Film 3", "release_year", "1983"))
    with pytest.raises(InputError, match="one .entity. in brackets, found 0"):
        corpus.ask("who directed Film 3")
    words = {w for s in corpus.sentences() for w in s}
    assert {"who", "Film 3", "directed_by", "directed_by" + INVERSE, "1983"} <= words


# ---------------------------------------------------------------------------------------------------------------------
# memories
# ---------------------------------------------------------------------------------------------------------------------
def test_key_hashing_finds_what_the_mechanisms_file_says():
    rng, names = np.random.default_rng(0), [f"{a} {b}" for a in ("Tom", "Ann", "Sam") for b in ("Ray", "Lee", "Fox")]
    pairs = [((names[rng.integers(9)], ("made", "wrote")[i % 2]), (names[rng.integers(9)],)) for i in range(60)]
    store = Memories(pairs, most=1000, rare=25)
    keys = [list(spelled_out(key)) for key, _ in pairs]
    counts = {w: sum(w in key for key in keys) for key in keys for w in key}
    for question in (("who", "made", "Tom Ray"), ("what", "Ann Fox", "wrote"), ("nobody",)):
        expected = [pairs[i] for i in hashed(list(spelled_out(question)), keys, counts, 25)]
        assert sorted(store.of(question)[0]) == sorted(expected)
    assert counts["made"] >= 25 and store.of(("made",)) == ((), ())


def test_facts_about_the_entity_come_first_then_the_rarest_words_and_no_more_than_most():
    pairs = [(("Tom Ray", "r"), (str(i),)) for i in range(3)] + [(("Tom Lee", "r"), ("x",)), (("which", "r"), ("y",))]
    store = Memories(pairs, most=4, rare=100)
    assert [v for _, v in store.of(("which", "Tom Lee"), "Tom Lee")[0]] == [("x",), ("y",), ("0",), ("1",)]


def test_each_fact_is_a_memory_both_ways_round():
    assert memories("kb", {("Alien", "directed_by", "Ridley Scott"): None}, [], {}) == [
        (("Alien", "directed_by"), ("Ridley Scott",)), (("Ridley Scott", "directed_by" + INVERSE), ("Alien",))]


def test_a_window_holds_the_words_around_an_entity_and_the_title():
    """Centre and title are words of the first dictionary, those near the centre of the second; a tag says which kind of
    window it is, and the same window with the title as value is a memory too."""
    text = [("Alien", [("it", "was", "made", "by", "Ridley Scott", ".")])]
    near = [NEAR + w for w in ("made", "by")]
    assert memories("window", {}, text, {"Ridley Scott": None, "Alien": None}, size=2) == [
        ((WINDOW, "Alien", *near, "Ridley Scott", NEAR + "."), ("Ridley Scott",)),
        ((TITLE, *near, "Ridley Scott", NEAR + "."), ("Alien",))]
    about_itself = [("Alien", [("Alien", "is", "a", "film")])]
    assert [v for _, v in memories("window", {}, about_itself, {"Alien": None})] == [("Alien",)]  # the inverse alone


def test_a_sentence_is_its_own_key_and_value():
    sentence = ("Alien", "is", "a", "film")
    assert memories("sentence", {}, [("Alien", [sentence])], {}) == [(sentence, sentence)]


def test_text_from_facts_says_every_fact_once():
    facts = {("Alien", "directed_by", "Ridley Scott"): None, ("Alien", "release_year", "1979"): None,
             ("Alien", "starred_actors", "Sigourney Weaver"): None, ("Alien", "starred_actors", "John Hurt"): None,
             ("Heat", "has_colour", "blue"): None}
    (alien, first), (heat, second) = write(facts)
    assert (alien, heat) == ("Alien", "Heat") and len(first) == 2 and len(second) == 2
    assert first[0][0] == "Alien" and {"Ridley Scott", "1979"} <= set(first[0])
    assert "Alien" not in first[1] and " ".join(("Sigourney Weaver", "and", "John Hurt")) in " ".join(first[1])
    assert second[1] == ("its", "has_colour", "is", "blue", ".")
    assert write(facts) == write(facts)


def test_a_text_of_ones_own_with_a_list_of_entities(file, tmp_path):
    (tmp_path / "entities.txt").write_text("Maker 3\nFilm 3, Part 2\n", encoding="utf-8")
    (tmp_path / "text.txt").write_text("Film 3\nMaker 3 shot Film 3, Part 2 in ROME.\nTwo lines.\n\n\nFilm 4\nNo.\n",
                                       encoding="utf-8-sig", newline="\r\n")
    paths = [file, tmp_path / "entities.txt", tmp_path / "text.txt"]
    found = read(paths)
    assert found.documents == [("Film 3", ["Maker 3 shot Film 3, Part 2 in ROME.", "Two lines."]), ("Film 4", ["No."])]
    assert cut(found.documents, found.entities)[0][1][0] == ("Maker 3", "shot", "Film 3, Part 2", "in", "rome", ".")
    corpus = load(paths, kind="window")
    assert "4 memories (window)" in corpus.notes[0]
    assert corpus.memories.of(("Maker 3",), "Maker 3")[0][1][1] == ("Film 3",)


@pytest.mark.parametrize("kind", movies.KINDS)
def test_all_kinds_of_memories_hold_answers(file, kind):
    corpus = load([file], kind=kind)
    assert all(any(set(value) & set(s.answers) for _, value in s.pairs) for s in corpus.test)
    assert {s.task for s in corpus.test} == {kind}


# ---------------------------------------------------------------------------------------------------------------------
# files
# ---------------------------------------------------------------------------------------------------------------------
def test_files_that_are_and_are_not_film_questions(file, tmp_path):
    def written(name, text):
        (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path / name

    packed = tmp_path / "qa.txt.gz"
    packed.write_bytes(gzip.compress("\nwho made [Amélie]\tJean-Pierre Jeunet\n".encode()))
    assert is_movies(file) and is_movies(packed) and is_movies("missing.jsonl.gz")
    babi = written("qa1_x_train.txt", "1 Sam left.\n2 Where is Sam?\thall\t1\n")
    for other in (babi, written("empty.txt", ""), written("pairs.tsv", "a [b]\tc\td\n"), tmp_path, "missing.txt"):
        assert not is_movies(other)


def test_gzipped_files_byte_order_marks_blank_lines_and_crlf_read_alike(file, tmp_path):
    plain = read([file])
    text = file.read_text(encoding="utf-8")
    for name, data in (("a.jsonl.gz", gzip.compress(text.encode())), ("b.jsonl", b"\xef\xbb\xbf" + text.encode()),
                       ("c.jsonl", text.replace("\n", "\r\n\r\n").encode()),
                       ("d.jsonl.gz", gzip.compress(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode()))):
        (tmp_path / name).write_bytes(data)
        assert read([tmp_path / name]) == plain


GOOD = record("who directed [A]", ("A", "directed_by", "B"))
BROKEN = [
    ("x.jsonl", b"", "expected text, found an empty file"),
    ("x.jsonl", b"\n \n", "expected questions, facts or text, found blank lines alone"),
    ("x.jsonl", GOOD.encode() + b"\n{oops\n", "line 2: expected {\"question\""),
    ("x.jsonl", b"[1, 2]", "line 1: expected {\"question\""),
    ("x.jsonl", b'{"question": "a [b]", "triples": [["b", "r", "c"]]}', "line 1: expected {\"question\""),
    ("x.jsonl", b'{"question": "a [b]", "triples": null}', "line 1: expected {\"question\""),
    ("x.jsonl", b'{"question": 3, "triples": []}', "line 1: expected texts"),
    ("x.jsonl", b'{"question": "a [b]", "triples": [{"h": "b", "r": "", "t": "c"}]}', "line 1: expected texts"),
    ("x.jsonl", b'{"question": "no entity", "triples": []}', "line 1: expected a question with one .entity., found 0"),
    ("x.jsonl", b"[" * 100_000, "line 1: expected {\"question\""),
    ("x.jsonl", b'{"question": "a [b]", "triples": [], "question": "c [d]"}', "line 1: expected .*a key comes twice"),
    ("x.jsonl", b'{"question": "a [\\ud800]", "triples": []}', "line 1: expected .*half of a character pair"),
    ("x.jsonl", GOOD.encode() + b"\n\xff\xfe", "line 2, byte 1: expected UTF-8 text, found the byte 0xff"),
    ("x.jsonl.gz", b"no gzip", "expected a gzipped file"),
    ("x.jsonl.gz", gzip.compress(GOOD.encode())[:-9], "expected a gzipped file"),
    ("x.jsonl.gz", gzip.compress(GOOD.encode() + b"\n\xe9"), "line 2, byte 1: expected UTF-8 text, found the byte"),
    ("x.jsonl.gz", gzip.compress(GOOD.encode() + b"\n\0"), "line 2, byte 1: expected UTF-8 text, found a NUL byte"),
    ("x.jsonl.gz", gzip.compress(b""), "found an empty file"),
    ("x.txt", b"a [b]\tc\nd [e]\n", "line 2: expected a question, TAB and answers parted by .*, found 1 columns"),
    ("x.txt", b"a [b] [c]\td\n", "line 1: expected a question with one .entity., found 2"),
    ("x.txt", b"a|r|b\nc|r\n", "line 2: expected subject.relation.object, found 'c.r'"),
    ("x.txt", b"Title\nsome text\n", "expected questions, found none"),
    ("x.txt", b"a [b]\tc\n", "expected facts for the memories too"),
    ("x.jsonl", GOOD.encode(), "expected at least 10 different samples"),
]


@pytest.mark.parametrize("name, data, message", BROKEN, ids=[f"{i}-{b[0]}" for i, b in enumerate(BROKEN)])
def test_a_broken_file_is_one_clear_line(name, data, message, tmp_path):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match=message) as error:
        load([tmp_path / name])
    assert str(tmp_path / name) in str(error.value) and "\n" not in str(error.value)


def test_questions_without_an_answer_are_counted(file):
    file.write_text(file.read_text(encoding="utf-8") + "\n" + record("who directed [Film 99]"), encoding="utf-8")
    assert "left out: 1 questions without an answer" in load([file]).notes


def test_an_unknown_kind_of_memory(file):
    with pytest.raises(InputError, match="kb, window, sentence"):
        load([file], kind="page")


# ---------------------------------------------------------------------------------------------------------------------
# in the system `qa`
# ---------------------------------------------------------------------------------------------------------------------
def system_for(*paths, seed=1, **options):
    return QA.prepare(QA.Options(**{"attention": "key_value", "hidden": 8, "hops": 2, "memory": 12, **options}), paths,
                      seed)


@pytest.mark.parametrize("attention", NETWORKS)
@pytest.mark.parametrize("kind", movies.KINDS)
def test_every_network_answers_film_questions_from_every_kind_of_memory(file, kind, attention):
    system = system_for(file, attention=attention, memories=kind)
    assert set(system.answers) == {x for row in FILMS for x in row} and f"memories ({kind})" in system.describe()
    train(system, Config.of(system, steps=2, validate_every=2))
    assert {"accuracy", "loss"} <= system.evaluate("test").keys() and system.evaluate("validation")["questions"]
    found, unknown = system.predict("who directed [Film 3]"), system.predict("why [zzz]")
    assert found.record["answer"] in system.answers and "unknown" not in found.line and json.dumps(found.record)
    assert unknown.record["unknown_words"] == ["why", "zzz"] and not unknown.record["story"] and not unknown.looks
    assert np.isfinite(system.example_graph().item()) and len(system.examples(2)) == 2
    if attention != "none":
        weights, rows, columns, title, _ = found.looks[0].as_map()
        assert weights.shape == (2, len(columns)) and title.startswith("who directed Film 3? ")


def test_hits_at_1_by_hand(file):
    """Any of the right answers will do, the first is that of the loss, and an answer that cannot be given is wrong."""
    system = system_for(file)
    assert system.figures["accuracy"].title == "hits@1" and "failed" not in system.figures
    assert QA.figures["accuracy"].title == "accuracy"
    places = {name: i for i, name in enumerate(system.answers)}
    logits = np.zeros((4, len(places)))
    logits[[0, 1, 2, 3], [places[a] for a in ("Film 8", "Film 8", "Maker 3", "1983")]] = 5
    samples = [replace(system.corpus.ask(f"which [{i}]"), answer=right[0], answers=right) for i, right in enumerate(
        [("Film 1", "Film 8"), ("Film 1", "Film 15"), ("Maker 3",), ("Maker 99",)])]
    system.model.arrays = lambda batch, words, bucket=1: (Tensor([int(q.question[1]) for q in batch]),)
    system.model.forward = lambda rows: Tensor(logits[rows.numpy()])
    system.model.loss = lambda targets, rows: cross_entropy(system.model(rows), targets)
    system.whole = samples
    result = system.evaluate("all")
    assert (result["accuracy"], result["unknown_answers"]) == (0.5, 1)
    total = np.log(np.exp(5) + len(places) - 1)
    assert result["loss"] == pytest.approx((total + total + total - 5) / 3, abs=1e-6)
    best, likely = system.answer(samples)
    assert [system.answers[i] for i in best] == ["Film 8", "Film 8", "Maker 3", "1983"]
    np.testing.assert_allclose(likely, np.exp(5 - total), rtol=1e-6)


@pytest.mark.parametrize("kind", movies.KINDS)
def test_a_run_goes_on_bit_for_bit_and_can_be_asked_without_its_files(file, tmp_path, kind):
    options = {"memories": kind, "dropout": 0.1}
    config = Config.of(system_for(file, **options), steps=8, validate_every=4, seed=3, batch_size=8)
    whole = system_for(file, **options)
    train(whole, config, run=tmp_path / "whole")
    train(system_for(file, **options), config, run=tmp_path / "parts", stop_at=5)
    train(system_for(file, seed=1, **options), config, run=tmp_path / "parts", resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    again, _ = checkpoint.restore(tmp_path / "parts")
    assert again.corpus is None and again.memories.pairs == whole.memories.pairs
    assert again.figures["accuracy"].title == "hits@1"
    for asked in ("who directed [Film 3]", "films by [Maker 1]", "what about [Film 99]"):
        assert again.predict(asked).record == whole.predict(asked).record
    with pytest.raises(InputError, match="one .entity. in brackets, found 0"):
        again.predict("who directed Film 3?")


def test_a_run_measures_other_files_each_question_once(file, tmp_path):
    """Questions alone are asked of the memories of the run; with facts beside them, of these."""
    system = system_for(file)
    other = tmp_path / "asked.txt"
    other.write_text("films by [Maker 1]\tFilm 1|Film 8\nfilms by [Maker 1]\tFilm 1|Film 8\nwho made [Zzz]\tYyy\n",
                     encoding="utf-8")
    system.attach_all([other])
    assert [q.answers for q in system.whole] == [("Film 1", "Film 8"), ("Yyy",)]
    assert system.whole[0].pairs == system.memories.ask("films by [Maker 1]").pairs
    assert system.notes == ["2 questions; 80 memories (kb), those of the training",
                            "for 1 of 2 questions no memory holds an answer"]
    assert system.evaluate("all")["unknown_answers"] == 1
    facts = tmp_path / "facts.txt"
    facts.write_text("Zzz|directed_by|Yyy\n", encoding="utf-8")
    system.attach_all([other, facts])
    assert system.whole[1].pairs == ((("Zzz", "directed_by"), ("Yyy",)),) and not system.whole[0].pairs
    assert "2 memories (kb)" in system.notes[0] and "training" not in system.notes[0]


def test_films_and_stories_are_not_mixed_up(file, tmp_path):
    story = tmp_path / "story.txt"
    story.write_text("".join(f"1 S{i % 2} left {i}.\n2 Who left?\tS{i % 2}\t1\n" for i in range(20)), encoding="utf-8")
    with pytest.raises(InputError, match="trained on questions about films, and these files hold stories"):
        system_for(file).attach_all([story])
    with pytest.raises(InputError, match="trained on stories with questions, and these files hold questions about"):
        system_for(story).attach_all([file])
    with pytest.raises(InputError, match="tasks is an option for stories; .*all.jsonl holds questions about films"):
        system_for(file, tasks="1")
    with pytest.raises(InputError, match="memories window is an option for questions about films"):
        system_for(story, memories="window")
    with pytest.raises(InputError, match="memories of the kind kb, window, sentence, got .page."):
        system_for(file, memories="page")


def test_windows_of_another_width(file):
    """3 words to each side unless said otherwise; the network makes no windows of its own then."""
    keys = [max(len(k) for k, _ in system_for(file, memories="window", windows=n).memories.pairs) for n in (0, 1, 3)]
    assert keys[1] < keys[2] == keys[0]
    system = system_for(file, memories="window", windows=1)
    assert system.model.windows == 0 and len(system.model.table) == len(system.words) + 12


def test_a_memory_in_words_has_no_marks_and_no_entity_that_is_asked_about():
    told = ("Alien", "directed_by", "Ridley Scott")
    assert movies.in_words(told) == "Alien directed_by Ridley Scott"
    assert movies.in_words(told, {"Alien"}) == "directed_by Ridley Scott"
    assert movies.in_words((WINDOW, "Alien", NEAR + "made", NEAR + "by", "Ridley Scott"), {"Alien"}) == (
        "made by Ridley Scott")
    assert movies.in_words((TITLE, NEAR + "by", "Ridley Scott", "Alien"), {"Alien"}) == "by Ridley Scott Alien"
    assert movies.in_words(("Alien",), {"Alien"}) == "Alien"


def test_in_a_picture_stand_the_memories_looked_at_the_most(file):
    system = system_for(file, memory=40)
    asked = "what film shown with [Film 3] film"
    sample = system.memories.ask(asked)
    assert len(sample.story) > SHOWN
    found, weights = system.predict(asked), system.weights([sample])[0]
    look = found.looks[0]
    assert len(look.columns) == SHOWN == look.weights.shape[1] and len(found.record["story"]) == len(sample.story)
    names = [name.removeprefix("Film 3 ") for name in found.record["story"]]  # what is asked about goes without saying
    chosen = [names.index(name) for name in look.columns]
    assert chosen == sorted(chosen)
    np.testing.assert_array_equal(look.weights, weights[:, chosen])
    assert weights.max(0)[chosen].min() >= np.delete(weights.max(0), chosen).max()


@pytest.mark.skipif(not REAL.is_dir(), reason=f"no published files in {REAL}")
def test_the_published_questions():
    corpus = load([REAL / "dev.jsonl.gz"])
    assert "9989 questions, 18114 facts, 17527 entities" in corpus.notes[0]
    assert len(corpus.test) > 900 and len(corpus.train) > 10_000
    assert sum(any(v[0] in s.answers for _, v in s.pairs) for s in corpus.test) == len(corpus.test)
    assert np.mean([len(s.pairs) for s in corpus.test]) > 30               # not the answer's own triples alone
    assert is_movies(REAL / "qa_dev.txt.gz") and len(read([REAL / "qa_dev.txt.gz"]).train) == 9992
