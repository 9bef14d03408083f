"""An op in a file of one's own: graph, steps, equations, explain and check find it and show it on its samples."""
import json

import pytest

pytest.importorskip("graphviz")

from tinyattn.cli import main  # noqa: E402
from tinyattn.commands import names  # noqa: E402
from tinyattn.errors import InputError  # noqa: E402

SWISH = '''
import numpy as np
from tinyattn.op import Op


class Swish(Op):
    """y = x σ(x)."""
    tex = r"{x} \\sigma({x})"

    def cpu(self, x):
        return x / (1 + np.exp(-x))

    def grad_x(self, g, y, x):
        s = x.sigmoid()
        return g * (s + x * s * (1 - s))

    def samples(rng):
        yield {}, (rng.normal(size=(2, 3)),)
        yield {}, (rng.normal(size=(4,)),)
'''
DOUBLE = '''

class TwiceIt(Op):
    def cpu(self, x):
        return 2 * x

    def grad_x(self, g, y, x):
        return 2 * g

    def samples(rng):
        yield {}, (rng.normal(size=3),)


Again = TwiceIt
'''
MECHANISM = '''

from tinyattn.attention.core import variant, weigh


@variant(params={"w": "QK"})
def swish_like(q, k, v, w):
    """A bilinear score."""
    return weigh(q @ w @ k.transpose(-1, -2), v)


def example(rng):
    shapes = {"q": (2, 3), "k": (4, 3), "v": (4, 2), "w": (3, 3)}
    return {n: rng.normal(size=s) for n, s in shapes.items()}
'''


@pytest.fixture
def mine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.py").write_text(SWISH, "utf-8")
    return tmp_path


@pytest.fixture
def both(mine):
    (mine / "my.py").write_text(SWISH + DOUBLE + MECHANISM, "utf-8")
    return mine


NAMES = ("my.py", "my.py:Swish", "my.py:swish", "my.py:SWISH")


@pytest.mark.parametrize("name", NAMES)
def test_the_graph_of_an_op_of_ones_own(name, mine, capsys):
    assert main(["graph", name, "-o", "g.json"]) == 0
    program = json.loads((mine / "g.json").read_text("utf-8"))
    assert [step["op"] for step in program["instructions"]] == ["swish"]
    assert [(v["name"], v["kind"], v["shape"]) for v in program["values"]][0] == ("x", "input", [2, 3])
    assert main(["graph", name, "--sample", "1", "--gradients", "-o", "g.dot"]) == 0
    dot = (mine / "g.dot").read_text("utf-8")
    assert "(4,)" in dot and ">gradient<" in dot and "squared and added up" in dot
    assert main(["graph", name, "--backward-only", "-o", "b.dot"]) == 0
    assert "sigmoid" in (mine / "b.dot").read_text("utf-8")
    assert main(["graph", name, "--sample", "2", "-o", "no.dot"]) == 2
    assert "swish: has the samples 0 to 1, not 2" in capsys.readouterr().err and not (mine / "no.dot").exists()


def test_the_file_is_called_like_the_op(mine, capsys):
    main(["graph", "my.py"])
    assert capsys.readouterr().out.strip() in ("swish.svg", "swish.dot")


@pytest.mark.parametrize("name", NAMES)
def test_its_equations(name, mine, capsys):
    assert main(["equations", name]) == 0
    said = capsys.readouterr().out
    assert "x (2, 3)" in said and "σ(x)" in said and "∂L/∂x = " in said
    assert main(["equations", name, "--sample", "1"]) == 0
    assert "x (4,)" in capsys.readouterr().out


@pytest.mark.parametrize("name", NAMES)
def test_it_is_explained(name, mine, capsys):
    assert main(["explain", name]) == 0
    said = capsys.readouterr().out
    assert said.startswith("op swish\n\ny = x σ(x).\n") and str(mine / "my.py") in said
    assert "formula     x σ(x)\n" in said and "inputs      x\n" in said and "rules for   x\n" in said


def test_an_op_without_words_is_not_explained_by_those_of_its_base(both, capsys):
    assert main(["explain", "my.py:twice_it"]) == 0
    assert capsys.readouterr().out.startswith("op twice_it\n\ninputs      x\n")


@pytest.mark.parametrize("name", NAMES)
def test_its_steps(name, mine, capsys):
    assert main(["steps", name, "--sample", "1", "-o", "s.html"]) == 0
    text = (mine / "s.html").read_text("utf-8")
    assert "swish" in text and "gives the same" in text


def test_it_is_checked_by_either_name(both, capsys):
    for name in ("my.py:Swish", "my.py:swish"):
        assert main(["check", name]) == 0
        assert "swish" in capsys.readouterr().out
    assert main(["check", "my.py"]) in (0, 1)  # the mechanism has no reference
    assert capsys.readouterr().out.count("twice_it") == 1  # its second name is no second op


def test_an_op_of_the_lab(mine, capsys):
    assert main(["exercise", "lab"]) == 0
    for command in (["graph", "lab.py:Cube", "-o", "c.dot"], ["steps", "lab.py:Cube", "-o", "c.html"],
                    ["equations", "lab.py:cube"], ["explain", "lab.py:Cube"]):
        assert main(command) == 0, command
    assert "cube" in (mine / "c.dot").read_text("utf-8") and "op cube" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["graph", "steps", "equations", "explain"])
def test_of_several_one_must_be_said_in_one_line(command, both, capsys):
    assert main([command, "my.py"]) == 2
    said = capsys.readouterr().err
    assert said == "tinyattn: my.py: holds swish_like, Swish, TwiceIt; say which, such as my.py:swish_like\n"
    assert main([command, "my.py:nothing"]) == 2
    said = capsys.readouterr().err
    assert said == "tinyattn: my.py defines swish_like, Swish, TwiceIt; expected nothing\n"
    assert sorted(p.name for p in both.iterdir() if p.name != "__pycache__") == ["my.py"]


def test_names_that_differ_in_case_alone_are_told_apart(mine):
    text = (SWISH + DOUBLE).replace("TwiceIt", "swish")
    text = text.replace("class swish(Op):", 'class swish(Op):\n    name = "other"')
    (mine / "my.py").write_text(text, "utf-8")
    found = {name: names.find(f"my.py:{name}")[1] for name in ("Swish", "swish", "other", "OTHER")}
    assert found == {"Swish": "swish", "swish": "other", "other": "other", "OTHER": "other"}
    with pytest.raises(InputError, match="holds Swish, swish; say which, such as my.py:Swish"):
        names.find("my.py:SWISH")


@pytest.mark.parametrize("change, says", [
    (("def samples(rng)", "def unused(rng)"), "has no samples(rng)"),
    (("return x / (1 + np.exp(-x))", "return x[None].nothing"), "line 11: AttributeError"),
    (("s = x.sigmoid()", "s = x.nothing()"), "line 14: AttributeError"),
    (("yield {}, (rng", "yield {}, (1 / 0, rng"), "line 18: ZeroDivisionError"),
    (("import numpy as np", "import numpy as"), "SyntaxError"),
    (("class Swish(Op)", "class Swish"), "my.py defines no mechanism and no op; expected")])
def test_a_file_that_is_wrong_is_one_line_that_names_it(change, says, mine, capsys):
    (mine / "my.py").write_text(SWISH.replace(*change), "utf-8")
    assert main(["graph", "my.py", "--backward", "-o", "g.dot"]) == 2
    said = capsys.readouterr().err
    assert says in said and ("my.py" in said or "swish" in said) and len(said.splitlines()) == 1
    assert not (mine / "g.dot").exists()


def test_a_file_that_is_not_there(mine, capsys):
    assert main(["explain", "nowhere.py"]) == 2
    assert "there is no file nowhere.py" in capsys.readouterr().err


def test_the_declared_parameters_of_ones_own_mechanism_are_its_parameters(both):
    assert main(["graph", "my.py:swish_like", "-o", "g.json"]) == 0
    values = json.loads((both / "g.json").read_text("utf-8"))["values"]
    assert {v["name"]: v["kind"] for v in values if v["name"]} == {
        "q": "input", "k": "input", "v": "input", "w": "parameter"}
