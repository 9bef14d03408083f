"""Reading questions over stories: the bAbI files themselves, what belongs together, and files that are broken."""
from collections import Counter
from pathlib import Path

import pytest

from tinyattn.errors import InputError
from tinyattn.tasks import qa
from tinyattn.tasks.qa import Question, cut, load, parse_input, read, read_stories, task_numbers

BABI = Path(__file__).parents[1] / "../shared/data/babi"
TEXT = ("1 Sam walks into the kitchen.\n2 Sam picks up an apple.\n3 Where is the apple? \tkitchen\t2 1\n"
        "4 Sam walks into the attic.\n5 What does Sam carry? \tapple,Lamp\t4 2\n1 Ruth is tired.\n"
        "2 Where will ruth go?\tbed\n")


def file(folder, text, name="some.txt"):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def many(n, word="attic"):
    """A file of n stories with two questions each."""
    return "".join(f"1 Sam is in the {word}{i}.\n2 Where is Sam?\t{word}\t1\n3 Ruth is there.\n"
                   f"4 Where is Ruth?\t{word}\t3 1\n" for i in range(n))


# ---------------------------------------------------------------------------------------------------------------------
# one file
# ---------------------------------------------------------------------------------------------------------------------
def test_a_file_is_read_as_it_stands(tmp_path):
    stories = read_stories(file(tmp_path, TEXT))
    kitchen, took, attic = map(cut, ("Sam walks into the kitchen", "Sam picks up an apple", "Sam walks into the attic"))
    assert took == ("sam", "picks", "up", "an", "apple")
    assert stories == [
        (Question((kitchen, took), ("where", "is", "the", "apple"), "kitchen", frozenset({0, 1}), "some"),
         Question((kitchen, took, attic), ("what", "does", "sam", "carry"), "apple,Lamp",
                  frozenset({1, 2}), "some")),  # line 3 is a question, so line 4 is the third sentence
        (Question((("ruth", "is", "tired"),), ("where", "will", "ruth", "go"), "bed", frozenset(), "some"),)]


@pytest.mark.parametrize("text", [TEXT.replace("\n", "\r\n"), "\ufeff" + TEXT, TEXT.replace("\n", "\n\n"), TEXT[:-1],
                                  "\n\n" + TEXT.replace("Sam", " Sam")],
                         ids=["crlf", "mark", "blank", "no end", "space"])
def test_line_ends_marks_and_blank_lines_change_nothing(tmp_path, text):
    counted = Counter()
    assert read_stories(file(tmp_path, text), "some", counted) == read_stories(file(tmp_path, TEXT, "b.txt"), "some")
    assert counted["blank lines passed over"] == sum(not line.strip() for line in text.splitlines())


@pytest.mark.parametrize("text, message", [
    (b"", "empty file"), (b"\n\n", "at least 1 question"), ("1 Sam is here.\n", "at least 1 question"),
    ("Sam is here.\n", "line 1: expected a line number and a sentence, found 'Sam is here.'"),
    ("1\n", "line 1: expected a line number"), ("1 Sam.\n3 Ruth.\n", "line 2: expected the line number 1 or 2, .* '3'"),
    ("2 Sam.\n", "line 1: expected the line number 1, found '2'"), ("0 Sam.\n", "line 1: .* found '0'"),
    ("1 Sam.\n2 Where?\t\t1\n", "line 2: expected an answer"),
    ("1 Where?\there\t1\n", "line 1: expected a sentence of the story before its first question"),
    ("1 Sam.\n2 Where?\there\t1\t1\n", "line 2: expected at most 3 columns"),
    ("1 Sam.\n2 Where?\there\t2\n", "line 2: expected supporting lines that are earlier sentences .*, found '2'"),
    ("1 Sam.\n2 Where?\there\tx\n", "found 'x'"), ("1 Sam.\n2 Where?\there\t-1\n", "found '-1'"),
    ("1 Sam.\n2 Where?\there\t" + "9" * 5000 + "\n", "found '999"),
    ("1 Sam.\n2 Where?\there\t0000000123\n", "found '0000000123'"),  # begins with the number of a sentence
    ("1 Sam.\n2 Where?\there\t00000001" + "9" * 5000 + "\n", "found '00000001"),
    ("1 Sam.\n2 Where?\there\t1\n1 Ruth.\n2 Where?\there\t3\n", "line 4: expected supporting"),
    ("1 Sam.\n2 Where?\ta\t1\n3 And?\tb\t2\n", "line 3: expected supporting"),  # line 2 is a question
    ("1 Sam.\n2 Where is Sam?\n", "line 2: expected a question, a tab and its answer"),
    ("1 ...\n", "line 1: expected words"), (b"1 S\x00m.\n", "line 1, byte 4: .*NUL"),
    ("1 Sam is in the caf\xe9.\n".encode("latin-1"), "line 1, byte 20.*0xe9"),
    ("1 Sam.\n".encode("utf-16"), "0xff"), (b"\x89PNG\r\n\x1a\n\0\0", "0x89"),
])
def test_broken_files_are_one_clear_line(tmp_path, text, message):
    with pytest.raises(InputError, match=message) as found:
        read_stories(file(tmp_path, text))
    assert "some.txt" in str(found.value) and "\n" not in str(found.value)


def test_a_missing_file_and_a_folder_without_files_are_named(tmp_path):
    with pytest.raises(InputError, match="nowhere.txt: no such file"):
        load([tmp_path / "nowhere.txt"])
    file(tmp_path, TEXT, "SOURCE.txt")
    with pytest.raises(InputError, match="expected files qaN_..._train.txt and qaN_..._test.txt in the folder"):
        load([tmp_path])


# ---------------------------------------------------------------------------------------------------------------------
# what belongs together
# ---------------------------------------------------------------------------------------------------------------------
def test_train_and_test_files_are_used_as_they_are_and_no_story_is_cut(tmp_path):
    file(tmp_path, many(20), "qa3_some_train.txt")
    file(tmp_path, many(4, "cellar") + many(1), "qa3_some_test.txt")
    corpus = load([tmp_path])
    assert (len(corpus.train), len(corpus.validation), len(corpus.test)) == (36, 4, 10)
    given = [q for story in read_stories(tmp_path / "qa3_some_train.txt", "3") for q in story]
    assert corpus.train + corpus.validation == given
    assert {q.task for q in corpus.test} == {"3"}
    assert "2 test questions stand in training too, with the same story" in corpus.notes
    assert load([tmp_path / "qa3_some_test.txt", tmp_path / "qa3_some_train.txt"]) == corpus
    file(tmp_path, many(3, "porch"), "qa3_some_valid.txt")
    corpus = load([tmp_path])
    assert (len(corpus.train), {q.answer for q in corpus.validation}) == (40, {"porch"})
    assert len(read([tmp_path])[0]) == 10 and len(read([tmp_path / "qa3_some_train.txt"])[0]) == 40


def test_one_file_is_divided_by_stories(tmp_path):
    path = file(tmp_path, many(30))
    corpus = load([path], seed=4)
    parts = [{q.story[0] for q in part} for part in (corpus.train, corpus.validation, corpus.test)]
    assert [len(p) for p in parts] == [24, 3, 3] and not parts[0] & parts[1] | parts[0] & parts[2] | parts[1] & parts[2]
    assert load(path, seed=4) == corpus and load(path, seed=5).test != corpus.test
    assert corpus.notes[1] == f"divided by stories: {path.name}"
    with pytest.raises(InputError, match="expected at least 10 different samples.*found 3"):
        load([file(tmp_path, many(3))])
    file(tmp_path, many(1), "qa1_a_train.txt")
    file(tmp_path, many(1), "qa1_a_test.txt")
    with pytest.raises(InputError, match="qa1_a_train.txt: expected at least 2 stories"):
        load([tmp_path])


def test_tasks_choose_among_the_files(tmp_path):
    for n in (1, 2, 10):
        file(tmp_path, many(10, f"place{n}x"), f"qa{n}_a_train.txt")
        file(tmp_path, many(2, f"place{n}x"), f"qa{n}_a_test.txt")
    assert [q.task for q in load([tmp_path]).test[::4]] == ["1", "2", "10"]
    assert {q.task for q in load([tmp_path], "10,1").train} == {"1", "10"}
    with pytest.raises(InputError, match="expected a file qaN_..._train.txt for task 3, 4, found none"):
        load([tmp_path], "1-4")
    with pytest.raises(InputError, match="for task 1, found none"):
        load([file(tmp_path, many(20))], "1")


@pytest.mark.parametrize("text, numbers", [("1", [1]), ("1,5,16", [1, 5, 16]), ("3-5,1,4", [1, 3, 4, 5]),
                                           ("1 - 2", [1, 2])])
def test_lists_of_tasks(text, numbers):
    assert task_numbers(text) == numbers


@pytest.mark.parametrize("text", ["x", "0", "3-1", "1,", "1-", "-3", "1-2-3", "\u00b2", "99999999999"])
def test_what_is_no_list_of_tasks(text):
    with pytest.raises(InputError, match="tasks: expected numbers such as 1,5,16 or 1-20"):
        task_numbers(text)


def test_built_in_stories_come_with_their_sizes():
    corpus = load((), "4,20", seed=2)
    assert [len(p) for p in (corpus.train, corpus.validation, corpus.test)] == [2 * n for n in qa.SIZES]
    assert all(q.support and max(q.support) < len(q.story) for q in corpus.train) and load((), "4,20", 2) == corpus
    assert {q.task for q in load().train} == set(qa.DEFAULT.split(","))
    seen = {(q.story, q.question) for q in corpus.train}  # of kind 20 the first of several questions often comes again
    again = sum((q.story, q.question) in seen for q in corpus.test)
    assert f"{again} test questions stand in training too, with the same story" in corpus.notes and 0 < again < 100
    with pytest.raises(InputError, match="expected kinds of the simulator .*, got 21"):
        load((), "20-21")


def test_typed_stories():
    story, question = parse_input("Sam walks in. Ruth is there!\nWho knows?  She has 2.5 apples.\nWhere is Ruth?")
    assert story == (("sam", "walks", "in"), ("ruth", "is", "there"), ("she", "has", "2.5", "apples"))
    assert question == ("where", "is", "ruth")
    for text, message in (("Sam walks in.", "ends with a question mark"), ("Where? Sam.", "ends with a question"),
                          ("Where is Sam?", "a sentence before the question"), ("", "ends with"), ("?", "ends with")):
        with pytest.raises(InputError, match=message):
            parse_input(text)


# ---------------------------------------------------------------------------------------------------------------------
# the real files
# ---------------------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def babi():
    if not BABI.is_dir():
        pytest.skip(f"{BABI} is not there")
    return load([BABI / "en"])


def test_all_twenty_tasks_are_read(babi):
    train, test = Counter(q.task for q in babi.train + babi.validation), Counter(q.task for q in babi.test)
    assert train == test == {str(n): 1000 for n in range(1, 21)}
    assert all(80 <= n <= 120 for n in Counter(q.task for q in babi.validation).values())
    assert all(q.support for q in babi.train + babi.test)
    first = babi.train[0]
    assert first == Question((cut("Mary moved to the bathroom."), cut("John went to the hallway.")),
                             ("where", "is", "mary"), "bathroom", frozenset({0}), "1")
    second = next(q for q in babi.train if q.task == "2")
    assert (second.answer, second.support, len(second.story)) == ("garden", frozenset({2, 5}), 6)


def test_the_answers_of_the_real_files_are_classes(babi):
    answers = {n: {q.answer for q in babi.train if q.task == n} for n in ("6", "8", "10", "19")}
    assert answers["6"] == {"yes", "no"} and answers["10"] == {"yes", "no", "maybe"}
    assert "apple,football" in answers["8"] and "n,w" in answers["19"]


def test_the_10k_files_are_read():
    if not BABI.is_dir():
        pytest.skip(f"{BABI} is not there")
    corpus = load([BABI / "en-10k-original"], "1")
    assert (len(corpus.train) + len(corpus.validation), len(corpus.test)) == (10_000, 1000)
