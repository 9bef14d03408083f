"""The grader: right answers pass, each well-known mistake is named, and whatever a learner's file does is one line."""
import re

import exercise_answers
import numpy as np
import pytest

from tinyattn.cli import main
from tinyattn.exercises import find, grade, lab, skeleton, table
from tinyattn.exercises.planted import OPS

NAMES = list(table())


@pytest.mark.parametrize("name", NAMES)
def test_the_right_answer_passes(name):
    for seed in (0, 1):
        report = grade(find(name), getattr(exercise_answers, name), seed)
        assert report.ok and report.compared > 10, str(report)


@pytest.mark.parametrize("name", NAMES)
def test_a_file_not_written_yet_says_so(name):
    space = {}
    exec(skeleton([find(name)]), space)
    report = grade(find(name), space[name])
    assert not report.ok and report.reason.startswith("not written yet")


@pytest.mark.parametrize("name, number", [(n, i) for n in NAMES for i in range(len(find(n).module.MISTAKES))])
def test_a_well_known_mistake_is_marked_and_named(name, number):
    wrong, words = find(name).module.MISTAKES[number]
    report = grade(find(name), wrong)
    assert not report.ok and words in report.reason


def test_another_mistake_gets_the_worst_element_and_no_words():
    def off(g, y):
        return exercise_answers.softmax_rule(g, y) + (np.arange(y.shape[-1]) == 1)

    report = grade(find("softmax_rule"), off)
    assert not report.ok and not report.reason and report.worst.index[-1] == 1
    assert "yours" in str(report) and "right" in str(report)
    assert np.isclose(report.worst.analytic - report.worst.numeric, 1)


@pytest.mark.parametrize("answer, said", [
    (lambda g, y: None, "got nothing"), (lambda g, y: g[0], r"expected shape \(3,\), got \(\)"),
    (lambda g, y: "no", "expected"), (lambda g, y: g.nothing, "AttributeError"),
    (lambda g: g, "TypeError"), (lambda g, y: y.__imul__(g), "argument 2 was changed"),
    (lambda g, y: [1, [2]], "expected an array"),
])
def test_what_cannot_be_marked_is_said_in_one_line(answer, said):
    report = grade(find("softmax_rule"), answer)
    assert not report.ok and re.search(said, report.reason) and "\n" not in report.reason


def test_a_kernel_must_compile(tmp_path, capsys):
    (tmp_path / "my.py").write_text("def softmax_kernel(x, out):\n    out[:] = sorted({1: x})[0].nothing\n")
    assert main(["check", str(tmp_path / "my.py")]) == 1
    said = capsys.readouterr().out
    assert "does not compile" in said and "\x1b" not in said and len(said.splitlines()) == 4


def test_files_are_written_marked_and_never_written_over(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["exercise"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in [*NAMES, "lab"])
    assert main(["exercise", "all"]) == 0 and main(["check", "exercises.py"]) == 1
    said = capsys.readouterr().out
    assert said.count("not written yet") == len(NAMES) and f"{len(NAMES)} of {len(NAMES)} checks failed" in said
    assert main(["exercise", "all"]) == 2
    assert "there already" in capsys.readouterr().err
    assert main(["exercise", "softmax_rule", "causal_mask", "-o", "two.py"]) == 0
    text = (tmp_path / "two.py").read_text()
    assert "# The rule of softmax." in text and "def causal_mask(T, S):" in text
    text = text.replace("    raise NotImplementedError", "    return np.tri(T, S, dtype=bool)")
    (tmp_path / "two.py").write_text(text)
    assert main(["check", "two.py:causal_mask"]) == 1
    said = capsys.readouterr().out
    assert "aligned at the start" in said and "softmax_rule" not in said


@pytest.mark.parametrize("text, said", [
    ("x = 1\n", "nothing that can be checked"), ("def f(:\n", "SyntaxError"),
    ("import nothing_of_this_name\n", "line 1"),
    ("from tinyattn.autograd import Op\nclass Mine(Op):\n    def cpu(self, x):\n        return x\n", "no samples"),
])
def test_files_that_cannot_be_checked_are_one_line(text, said, tmp_path, capsys):
    (tmp_path / "my.py").write_text(text)
    assert main(["check", str(tmp_path / "my.py")]) == 2
    error = capsys.readouterr().err
    assert said in error and len(error.strip().splitlines()) == 1


@pytest.mark.parametrize("arguments, said", [(["nothing"], "expected one of"), (["lab", "attention"], "alone"),
                                             (["attention", "-o", "x.txt"], "ends in .py")])
def test_bad_wishes_are_one_line(arguments, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["exercise", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error and len(error.strip().splitlines()) == 1 and not list(tmp_path.iterdir())


def test_ops_of_ones_own_are_checked(tmp_path, capsys):
    text = ("import numpy as np\nfrom tinyattn.autograd import Op\n\n\nclass Twice(Op):\n    def cpu(self, x):\n"
            "        return 2.0 * x\n\n    def grad_x(self, g, y, x):\n        return {} * g\n\n"
            "    def samples(rng):\n        yield {{}}, (rng.normal(size=3),)\n")
    for factor, code in ((2.0, 0), (3.0, 1)):
        (tmp_path / "my.py").write_text(text.format(factor))
        assert main(["check", str(tmp_path / "my.py")]) == code
        assert ("WRONG" in capsys.readouterr().out) == bool(code)


# ---------------------------------------------------------------------------------------------------------------------
# the break-it lab
# ---------------------------------------------------------------------------------------------------------------------
def planted(rules, found):
    """A lab's module with these rules: {name: text}, else the right one."""
    parts = ["import numpy as np\nimport tinyattn as ta\nfrom tinyattn.autograd import Op\n"]
    parts += [op.text.replace("{rule}", rules.get(op.name, op.right)) for op in OPS]
    module = type("Module", (), {})()
    space = {}
    exec("\n".join(parts), space)
    module.__dict__.update(space, LAB=0, FOUND=found)
    return module


def truth(seed=0):
    return {op.name for op, wrong in lab.plan(seed) if wrong is not None}


def test_a_mended_lab_passes():
    reports = lab.grade(planted({}, truth()))
    assert len(reports) == 1 + len(OPS) and all(r.ok for r in reports), [str(r) for r in reports]


@pytest.mark.parametrize("name, number", [(op.name, i) for op in OPS for i in range(len(op.wrong))])
def test_every_planted_rule_is_wrong(name, number):
    op = next(op for op in OPS if op.name == name)
    wrong = [r.name for r in lab.grade(planted({name: op.wrong[number][0]}, truth())) if not r.ok]
    assert len(wrong) == 1 and wrong[0].startswith(f"lab, {name}")


def test_some_faults_do_not_show_on_the_samples_of_the_file():
    """As the text of the lab says: with these, a first-order check on the samples passes."""
    from tinyattn.gradcheck import check_op
    kind = []
    for op in OPS:
        for rule, _ in op.wrong:
            cls = getattr(planted({op.name: rule}, set()), op.name)
            kind += [op.name] * all(r.ok for r in check_op(cls, order=1))
    assert {"Softmax", "Divide", "Pick", "Square"} <= set(kind)


def test_found_is_judged_without_names():
    one = sorted(truth())[0]
    right = sorted({op.name for op in OPS} - truth())[0]
    report, = lab.grade(planted({}, {one, right}))
    assert not report.ok and report.reason == f"1 of {lab.HOW_MANY} wrong ops found, and 1 named that is right"
    assert not any(op.name in report.reason for op in OPS)


def test_the_lab_as_a_file(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["exercise", "lab", "--seed", "3"]) == 0 and main(["check", "lab.py"]) == 1
    assert f"0 of {lab.HOW_MANY} wrong ops found" in capsys.readouterr().out
    text = (tmp_path / "lab.py").read_text()
    assert text == lab.text(3) != lab.text(4) and not any(why in text for op in OPS for _, why in op.wrong)
    (tmp_path / "lab.py").write_text(text.replace("FOUND = set()", f"FOUND = {sorted(truth(3))}"))
    assert main(["check", "lab.py"]) == 1
    said = capsys.readouterr().out
    assert f"{lab.HOW_MANY} of {len(OPS) + 1} checks failed" in said
    assert set(re.findall(r"lab, (\w+) \(order.*WRONG", said)) == truth(3)


@pytest.mark.parametrize("change, said", [("FOUND = {'Sqare'}", "Sqare"), ("FOUND = 3", "set of names"),
                                          ("FOUND = set(); LAB = 'x'", "expected LAB")])
def test_a_spoilt_lab_is_one_line(change, said, tmp_path, capsys):
    (tmp_path / "lab.py").write_text(lab.text(0).replace("FOUND = set()", change))
    assert main(["check", str(tmp_path / "lab.py")]) == 2
    error = capsys.readouterr().err
    assert said in error and len(error.strip().splitlines()) == 1
