"""The grader: right answers pass, each well-known mistake is named, and whatever a learner's file does is one line."""
import contextlib
import functools
import inspect
import io
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import exercise_answers
import numpy as np
import pytest

from tinyattn.cli import main
from tinyattn.exercises import find, grade, lab, skeleton, table
from tinyattn.exercises.planted import OPS

NAMES = list(table())


def raises(error):
    raise error


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
    (lambda g, y: [1, [2]], "expected an array"), (lambda g, y: (x for x in g), "got generator; `yield`"),
    (lambda g, y: sys.exit("gone"), "SystemExit: gone"), (type("softmax_rule", (), {}), "got a class"),
    (lambda g, y: raises(ValueError("one\ntwo\n\nthree")), "ValueError: one two three"),
    (lambda g, y: np.array(["a"] * 3), "expected an array"), (lambda g, y: g * 1j, "got one of complex128"),
    (lambda g, y: type("Odd", (), {"numpy": lambda self: 1 / 0})(), "got Odd"),
    (max, "ValueError: The truth"),
])
def test_what_cannot_be_marked_is_said_in_one_line(answer, said):
    report = grade(find("softmax_rule"), answer)
    assert not report.ok and re.search(said, report.reason) and "\n" not in report.reason


def test_a_kernel_must_compile(tmp_path, capsys):
    (tmp_path / "my.py").write_text("def softmax_kernel(x, out):\n    out[:] = eval('x')\n")
    assert main(["check", str(tmp_path / "my.py")]) == 1
    said = capsys.readouterr().out
    assert "does not compile" in said and "\x1b" not in said and len(said.splitlines()) == 4


def marked(folder, name, text, code):
    """What `check` prints of a file with this text."""
    (folder / "my.py").write_text(text, encoding="utf-8")
    with contextlib.redirect_stdout(io.StringIO()) as said:
        assert main(["check", f"{folder / 'my.py'}:{name}"]) == code, said.getvalue()
    return said.getvalue()


KERNEL = "import math\nimport numba\n{0}\ndef rows(x):\n    return x.shape[0]\n\n{1}\n" + inspect.getsource(
    exercise_answers.softmax_kernel).replace("range(x.shape[0])", "range(rows(x))")


@pytest.mark.parametrize("helper, own", [("", ""), ("@numba.njit", "@numba.njit"), ("@numba.njit", ""),
                                         ("from tinyattn import kernel\n@kernel", "@kernel(reduces=True)")])
def test_kernels_may_be_decorated_and_have_helpers(helper, own, tmp_path):
    marked(tmp_path, "softmax_kernel", KERNEL.format(helper, own), 0)


BEYOND = """
def softmax_kernel(x, out):
    for n in range(x.shape[0]):
        out[n, x.shape[1]] = 1.0
""", """
import numba
@numba.njit
def softmax_kernel(x, out):
    for n in range(10 ** 6):
        out[n, 0] = 1.0
""", """
import numba
@numba.njit
def put(out, n):
    out[n * 10 ** 6, 0] = 1.0

@numba.njit
def softmax_kernel(x, out):
    for n in range(9):
        put(out, n)
"""


@pytest.mark.parametrize("text", BEYOND)
def test_a_kernel_that_writes_beyond_its_array_is_an_index_error_with_its_line(text, tmp_path):
    said = marked(tmp_path, "softmax_kernel", text, 1)
    assert re.search(r"line \d: IndexError: index \d+ is out of bounds", said)


LATE = """
import math
def softmax_kernel(x, out):
    for n in range(x.shape[0]):
        for s in range(x.shape[1]):
            out[n, s] = math.exp(x[n, s])
    if x.shape == (3, 5):
        out[10 ** 7, 0] = 1.0
"""


def test_compiled_indices_are_checked_too(tmp_path):
    """Python's math refuses exp(1e4), so the plain run ends there, and only the compiled one goes on."""
    assert "elements of 1e4: IndexError: index is out of bounds" in marked(tmp_path, "softmax_kernel", LATE, 1)


COMPILED = """
import numba
import numpy as np

@numba.njit
def fill(mask, T, S):
    for t in range(T):
        for s in range(S{more}):
            mask[t, s] = s - S <= t - T

def causal_mask(T, S):
    mask = np.zeros((T, S), np.bool_)
    fill(mask, T, S)
    return mask
"""


@pytest.mark.parametrize("own", ["", "@numba.njit\n"])
def test_compiled_parts_of_other_answers_are_checked(own, tmp_path):
    def said(more, code):
        text = COMPILED.format(more=more).replace("def causal", own + "def causal")
        return marked(tmp_path, "causal_mask", text, code)

    said("", 0)
    assert "IndexError: index is out of bounds" in said(" + 10 ** 7", 1)
    refused = said(" + nothing", 1)
    assert re.search(r"does not compile: .*\bnothing\b", refused) and "\x1b" not in refused


def test_a_kernel_that_does_not_fill_out_is_told_so(tmp_path):
    said = marked(tmp_path, "softmax_kernel", "def softmax_kernel(x, out):\n    out = x * 2\n", 1)
    assert "nothing was written into out" in said


def test_a_kernel_may_rest_on_what_math_does_in_compiled_code(tmp_path):
    """log(0) is -inf there, and an error in Python."""
    text = ("import math\n\ndef online_softmax(x, out):\n    for n in range(len(x)):\n        m, l = -math.inf, 0.0\n"
            "        for v in x[n]:\n            if v > m:\n                l, m = l * math.exp(m - v), v\n"
            "            if v > -math.inf:\n                l += math.exp(v - m)\n        out[n] = m + math.log(l)\n")
    marked(tmp_path, "online_softmax", text, 0)


def heeds_interrupts():
    """A test that runs in the background of a shell inherits that Ctrl-C is ignored; a user's command does not."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_an_endless_kernel_can_be_stopped(tmp_path):
    (tmp_path / "my.py").write_text("import numba\n@numba.njit\ndef softmax_kernel(x, out):\n    print('begun')\n"
                                    "    while True:\n        out[0, 0] += 1.0\n")
    process = subprocess.Popen([sys.executable, "-u", "-m", "tinyattn", "check", "my.py"], cwd=tmp_path, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               env=os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent)},
                               preexec_fn=heeds_interrupts)
    try:
        assert process.stdout.readline() == "begun\n"
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130 and "Traceback" not in error


def in_float32(g, y):
    return exercise_answers.softmax_rule(g.astype(np.float32), y.astype(np.float32))


def in_lists(g, y):
    return exercise_answers.softmax_rule(g, y).tolist()


def in_tensors(g, y):
    from tinyattn import Tensor
    y = Tensor(y, requires_grad=True)
    return exercise_answers.softmax_rule(Tensor(g), y) if y.size else Tensor(g)


def in_place(g, y):
    g = g.copy()
    g -= (g * y).sum(-1, keepdims=True)
    g *= y
    return g


@pytest.mark.parametrize("answer", [in_float32, in_lists, in_tensors, in_place, functools.partial(in_place),
                                    lambda *given, **more: in_place(*given)])
def test_right_answers_in_another_style_pass(answer):
    report = grade(find("softmax_rule"), answer)
    assert report.ok and report.compared > 10, str(report)


def test_tensors_of_pytorch_pass():
    torch = pytest.importorskip("torch")

    def answer(g, y):
        g, y = torch.tensor(g), torch.tensor(y, requires_grad=True)
        return y * (g - (g * y).sum(-1, keepdim=True))

    assert grade(find("softmax_rule"), answer).ok


def test_floats_that_are_too_coarse_are_told_so():
    report = grade(find("softmax_rule"), lambda g, y: exercise_answers.softmax_rule(g.astype("f2"), y.astype("f2")))
    assert not report.ok and "not in float64" in report.reason


def test_what_a_file_does_to_numpy_does_not_matter(tmp_path):
    text = ("import numpy as np\nnp.seterr(all='raise')\n\ndef softmax_rule(g, y):\n    np.random.seed(0)\n"
            "    np.seterr(all='raise')\n    return y * (g - (g * y).sum(-1, keepdims=True))\n")
    before = np.geterr()
    try:
        marked(tmp_path, "softmax_rule", text, 0)
        assert grade(find("masked_softmax"), find("masked_softmax").module.MISTAKES[0][0]).reason.endswith("wanted.")
    finally:
        np.seterr(**before)


def test_files_of_other_systems_are_read(tmp_path, capsys):
    (tmp_path / "my answers.py").write_bytes(b"\xef\xbb\xbfimport numpy as np\r\n\r\ndef causal_mask(T, S):\r\n"
                                             b"    return np.tri(T, S, S - T, dtype=bool)\r\n")
    assert main(["check", str(tmp_path / "my answers.py")]) == 0
    assert main(["exercise", "attention", "-o", str(tmp_path / "two words.py")]) == 0
    assert f"check '{tmp_path / 'two words.py'}'" in capsys.readouterr().err


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


@pytest.mark.parametrize("name, number", [(op.name, i) for op in OPS for i in range(len(op.wrong))])
def test_every_planted_rule_shows_on_samples_of_ones_own(name, number, tmp_path):
    """As the text of the lab says: `check FILE:OP`, once kinder samples were replaced."""
    op = next(op for op in OPS if op.name == name)
    for rule, code in ((op.right, 0), (op.wrong[number][0], 1)):
        text = op.text.replace("{rule}", rule)
        inputs = ", ".join(f"np.array({x.tolist()})" for x in op.inputs(np.random.default_rng(1))[0])
        text = re.sub(r"yield \{\}, .*", lambda _, own=inputs: f"yield {{}}, ({own},)", text)
        marked(tmp_path, name, f"import numpy as np\nimport tinyattn as ta\nfrom tinyattn.autograd import Op\n"
                               f"LAB, FOUND = 0, set()\n{text}", code)


def test_found_is_judged_without_names():
    one = sorted(truth())[0]
    right = sorted({op.name for op in OPS} - truth())[0]
    report, = lab.grade(planted({}, {one, right}))
    assert not report.ok and report.reason == f"1 of {lab.HOW_MANY} wrong ops found, and 1 named that is right"
    assert not any(op.name in report.reason for op in OPS)
    report, = lab.grade(planted({}, {op.name for op in OPS}))
    assert f"4 of 4 wrong ops found, and {len(OPS) - 4} named that are right" in report.reason


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
