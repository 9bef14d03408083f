"""The course: each lesson runs alone and holds, and its page says nothing that the code did not compute."""
import ast
import builtins
import os
import re
import resource
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
FILES = sorted(EXAMPLES.glob("[0-9][0-9]_*.py"))
each_lesson = pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])

sys.path.insert(0, str(EXAMPLES))
import lesson  # noqa: E402  (it stands in examples/, where the lessons find it)

TINY = """# %% [markdown]
# # 1. Tiny
#
# The claim, $x^2 < 9$ & more.

# %%
from lesson import show

x, names = 2.5, {"a": "<pad>"}
print("<i>said</i>")
show('<svg xmlns="http://www.w3.org/2000/svg"><g id="top"/></svg>', "one", "A <caption> & $")

# %% [drawing]
show('<svg xmlns="http://www.w3.org/2000/svg"><g id="top"/></svg>', "two")
print("late")

# %% [markdown]
# It was {{x:.2f}}, `{{names["a"]}}`; and $y = {{x}}$. It costs \\$5.
#
# $$
# \\frac{a}{b}
# - 1
# $$
#
# {{"| a | b |\\n|---|---|\\n| $x$ | 7 |"}}
"""


def run(*arguments, cwd, first=""):
    """Python in a process of its own, which finds the package, and before all else what is in the folder `first`."""
    return subprocess.run([sys.executable, *map(str, arguments)], cwd=cwd, capture_output=True, text=True, timeout=300,
                          env=os.environ | {"PYTHONPATH": f"{first}{os.pathsep if first else ''}{ROOT}"})


@pytest.fixture(scope="module", autouse=True)
def building(request, tmp_path_factory):
    """The command that builds all pages, at work beside the first tests, if any test wants pages."""
    if not any("pages" in getattr(item, "fixturenames", ()) for item in request.session.items):
        yield None
        return
    folder = tmp_path_factory.mktemp("pages")
    with open(folder / "out", "w") as out, open(folder / "err", "w") as err:
        process = subprocess.Popen([sys.executable, str(EXAMPLES / "lesson.py"), "-o", "lessons"], cwd=folder,
                                   stdout=out, stderr=err, env=os.environ | {"PYTHONPATH": str(ROOT)})
    yield process, folder
    process.kill()
    process.wait()


def course_of(folder, **files):
    """A folder with these lessons: name=source."""
    for name, source in files.items():
        (folder / f"{name}.py").write_text(source, encoding="utf-8")
    return folder


def build(folder, *arguments):
    return lesson.main([*arguments, "-o", str(folder / "out")], folder)


# ---------------------------------------------------------------------------------------------------------------------
# the lessons
# ---------------------------------------------------------------------------------------------------------------------
def test_there_is_a_course():
    numbers = [path.name[:2] for path in FILES]
    assert numbers == [f"{i:02}" for i in range(1, len(FILES) + 1)] and len(FILES) >= 7


@each_lesson
def test_runs_as_a_script_from_anywhere(path, tmp_path, tmp_path_factory):
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    absent = tmp_path_factory.mktemp("absent")      # what no lesson may need
    for name in ("torch", "scipy"):
        (absent / f"{name}.py").write_text("raise ImportError('not here')")
    done = run(path, "-o", tmp_path / "figures", cwd=tmp_path, first=absent)
    assert done.returncode == 0, done.stderr
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 60
    said = re.findall(r"^\[figure\] ([a-z0-9-]+): \S", done.stdout, re.MULTILINE)
    left = sorted(file.stem for file in (tmp_path / "figures").iterdir())
    assert said and left == sorted(f"{path.stem}-{name}" for name in said)
    assert [file.name for file in tmp_path.iterdir()] == ["figures"], "a lesson writes its figures and nothing else"


@each_lesson
def test_ends_with_what_it_should(path):
    one = lesson.Lesson.read(path)
    text = "\n".join(cell.text for cell in one.cells if cell.kind == "markdown")
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert headings[-3:] == ["What to take home", "Questions", "Where it stands in the code"]
    assert 1 <= len(re.findall(r"^- ", one.section("What to take home"), re.MULTILINE)) <= 4
    assert 1 <= len(re.findall(r"^\d\. ", one.section("Questions"), re.MULTILINE)) <= 3
    assert re.match(rf"# {int(one.number)}\. \S", one.cells[0].text) and "{{" not in one.claim
    assert any("assert " in cell.text for cell in one.cells if cell.kind != "markdown")


@each_lesson
def test_what_it_names_in_the_code_exists(path):
    bullets = re.split(r"^- ", lesson.Lesson.read(path).section("Where it stands in the code"), flags=re.MULTILINE)[1:]
    assert bullets
    for bullet in bullets:
        file, *names = re.findall(r"`([^`]+)`", bullet)
        assert (ROOT / file).is_file(), f"{path.name} names {file}"
        there = defined(ROOT / file)
        missing = [name for name in names if re.fullmatch(r"[A-Za-z_][\w.]*", name) and name not in there]
        assert not missing, f"{path.name}: {file} has no {missing}"


def test_every_exercise_has_its_lesson():
    from tinyattn.exercises import table
    named = [name for path in FILES for name in re.findall(r"`tinyattn exercise (\w+)`", path.read_text("utf-8"))]
    assert sorted(named) == sorted([*table(), "lab"])


def defined(file):
    """The names at the top of a Python file, and those in its classes as Class.name."""
    found = set()
    if file.suffix == ".py":
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                found.add(node.name)
                inner = node.body if isinstance(node, ast.ClassDef) else []
                found |= {f"{node.name}.{n.name}" for n in inner if isinstance(n, ast.FunctionDef)}
            elif isinstance(node, ast.Assign):
                found |= {n.id for target in node.targets for n in ast.walk(target) if isinstance(n, ast.Name)}
    return found


def test_the_check_of_names_can_fail():
    assert "Op.__call__" in defined(ROOT / "tinyattn/op.py") and "Op.nothing" not in defined(ROOT / "tinyattn/op.py")


@each_lesson
def test_stands_alone(path):
    stems = {file.stem for file in EXAMPLES.glob("*.py")} - {"lesson"}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [a.name for a in node.names] if isinstance(node, (ast.Import, ast.ImportFrom)) else []
        names.append(node.module or "" if isinstance(node, ast.ImportFrom) else "")
        assert not {name.split(".")[0] for name in names} & stems, path.name


def test_readme_lists_them():
    text = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert lesson.index_lines(lesson.course()) in text, "run python examples/lesson.py --index"


# ---------------------------------------------------------------------------------------------------------------------
# their pages
# ---------------------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def pages(building):
    """The folder of all pages, built by one command from another folder."""
    pytest.importorskip("markdown_it")
    process, folder = building
    assert process.wait(300) == 0, (folder / "err").read_text()
    said = (folder / "out").read_text().split()
    assert [line.split("/")[-1] for line in said] == [*(f"{f.stem}.html" for f in FILES), "index.html"]
    return folder / "lessons"


@each_lesson
def test_page_opens(path, pages, opened):
    shown = opened(pages / f"{path.stem}.html")
    one = lesson.Lesson.read(path)
    assert shown.title() == f"{int(one.number)}. {one.title}" == shown.inner_text("h1")
    prose = "\n".join(shown.locator("main > :not(pre, figure, details:has(> pre))").all_text_contents())
    assert not re.search(r"\{\{|\}\}|\$(?!\d)|`|\*\*", prose), "something was not filled, or not read as Markdown"
    source = "\n".join(cell.text for cell in one.cells if cell.kind == "markdown")
    formulas = shown.eval_on_selector_all("math", "all => all.map(m => m.getBoundingClientRect().width)")
    assert len(formulas) >= len(re.findall(r"\$\$[^$]+\$\$", source)) and (formulas or "$" not in source)
    assert shown.locator("merror").count() == 0
    ids = shown.evaluate("[...document.querySelectorAll('main > *')].map(m => "
                         "[...new Set([m, ...m.querySelectorAll('[id]')].map(e => e.id))].filter(id => id)).flat()")
    assert len(ids) == len(set(ids)), "the ids of two pictures clash"
    assert shown.evaluate("document.documentElement.scrollWidth") <= 1280, "the page is wider than the window"
    captions = shown.locator("figcaption").all_inner_texts()
    assert captions and all(re.match(rf"Figure {i}\. \w", text) for i, text in enumerate(captions, 1))
    for file in pages.glob(f"{path.stem}-*.svg"):
        ElementTree.parse(file)


def test_one_can_go_from_page_to_page(pages, opened):
    shown, titles = opened(pages / "index.html"), [f"{int(one.number)}. {one.title}" for one in lesson.course()]
    assert shown.locator("ol.course li").count() == len(titles)
    shown.click("ol.course a >> nth=0")
    walked = [shown.inner_text("h1")]
    while shown.locator("a[rel=next]").count():
        shown.locator("a[rel=next]").first.click()
        walked.append(shown.inner_text("h1"))
    assert walked == titles
    shown.keyboard.press("Tab")                     # the first thing that the keyboard reaches is the way back
    shown.keyboard.press("Enter")
    shown.wait_for_function("title => document.title == title", arg=titles[-2])
    shown.locator("nav a", has_text="All lessons").first.click()
    assert shown.title() == "tinyattn: the course"


def test_a_walk_can_be_stepped_through_in_its_lesson(pages, opened):
    shown = opened(pages / "03_topological_order.html")
    walk = shown.locator(".tinyattn-steps")
    assert walk.get_attribute("data-frame") == "1" and walk.get_attribute("data-order") == "wrong"
    walk.locator("button.next").click()
    assert walk.get_attribute("data-frame") == "2" and walk.bounding_box()["height"] < 800
    shown.locator("figcaption a").first.click()
    shown.wait_for_url("**steps.html*")
    assert "/03_topological_order-steps.html" in shown.url


# ---------------------------------------------------------------------------------------------------------------------
# the builder
# ---------------------------------------------------------------------------------------------------------------------
def test_a_page_holds_what_was_computed(tmp_path, opened):
    course_of(tmp_path, **{"01_tiny": TINY})
    assert build(tmp_path) == 0
    shown = opened(tmp_path / "out" / "01_tiny.html")
    assert "It was 2.50, <pad>; and" in shown.inner_text("main") and "It costs $5." in shown.inner_text("main")
    assert "2.5" in shown.locator("p math").last.text_content()
    assert [t.strip() for t in shown.locator("pre.said").all_inner_texts()] == ["<i>said</i>", "late"]
    captions = shown.locator("figcaption").all_inner_texts()
    assert captions[0] == "Figure 1. A <caption> & $" and captions[1].strip() == "Figure 2."
    assert shown.locator("math[display=block] mfrac").count() == 1 and shown.locator("td").last.inner_text() == "7"
    order = shown.evaluate("[...document.querySelectorAll('pre.said, figure, details')].map(e => e.tagName)")
    assert order == ["PRE", "FIGURE", "DETAILS", "FIGURE", "PRE"]
    ids = shown.evaluate("[...document.querySelectorAll('g[id]')].map(e => e.id)")
    assert len(set(ids)) == 2
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "01_tiny-one.svg", "01_tiny-two.svg", "01_tiny.html", "index.html"]


def test_the_same_lesson_is_the_same_page(tmp_path):
    course_of(tmp_path, **{"01_tiny": TINY})
    found = []
    for _ in range(2):
        assert build(tmp_path) == 0
        found.append({p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()})
    assert found[0] == found[1]


@pytest.mark.parametrize("old, new, line, said", [
    ('print("<i>', 'assert x == 3\nprint("<i>', 10, "AssertionError\n    assert x == 3"),
    ('print("<i>', 'assert x == 3, "not three"\nprint("<i>', 10, "AssertionError: not three"),
    ("{{x:.2f}}", "{{missing}}", 18, "{{missing}}: NameError"),
    ("{{x:.2f}}", "{{x:.2q}}", 18, "{{x:.2q}}: ValueError"),
    ("{{x:.2f}}", "{{1 +}}", 18, "{{1 +}}: SyntaxError"),
    ("x, names = 2.5", "x, names = = 2.5", 9, "SyntaxError"),
    ('"two")', '"one")', 14, "InputError: show: the lesson has two figures named 'one'"),
    ('"two")', '"../two")', 14, "InputError: show: expected a name of a-z, 0-9 and -, got '../two'"),
    ('print("late")', "show(3, 'three')", 15, "InputError: show: expected a figure, a graph or a page, got int"),
], ids=lambda value: re.sub(r"\W+", " ", str(value))[:20])
def test_a_lesson_that_is_wrong_gives_no_page(tmp_path, capsys, old, new, line, said):
    assert TINY.count(old) == 1
    course_of(tmp_path, **{"01_tiny": TINY.replace(old, new), "02_right": TINY})
    assert build(tmp_path) == 1
    told = capsys.readouterr()
    assert told.err.startswith(f"{tmp_path / '01_tiny.py'}:{line}: {said}"), told.err
    assert sorted(p.name for p in (tmp_path / "out").glob("*.html")) == ["02_right.html", "index.html"]
    assert not list((tmp_path / "out").glob("01_*")), "nothing of the wrong lesson is left"
    assert "01_tiny" not in (tmp_path / "out" / "index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("source, line, said", [
    ("print(1)\n" + TINY, 1, "a lesson begins with a cell"),
    ("", 1, "a lesson begins with a cell"),
    (TINY.replace("# # 1. Tiny", "Tiny"), 2, "a line of a Markdown cell begins with #"),
    (TINY.replace("# The claim, $x^2 < 9$ & more.\n", ""), 2, "expected a title, an empty line, and the claim"),
])
def test_a_file_that_is_no_lesson_is_one_line(tmp_path, capsys, source, line, said):
    course_of(tmp_path, **{"01_tiny": source})
    assert build(tmp_path) == 2
    assert re.fullmatch(rf"{re.escape(str(tmp_path))}/01_tiny.py:{line}: {said}.*\n", capsys.readouterr().err)


def test_what_is_asked_for_wrongly_is_one_line(tmp_path, capsys):
    course_of(tmp_path, **{"01_tiny": TINY})
    assert build(tmp_path, "2", "01") == 2
    assert capsys.readouterr().err == "lesson: there is no lesson 02; expected one of 01\n"
    assert not (tmp_path / "out").exists()
    (tmp_path / "out").write_text("a file")
    assert build(tmp_path) == 2
    assert capsys.readouterr().err.startswith("lesson: cannot write")
    (tmp_path / "README.md").write_text("no marks")
    assert lesson.main(["--index"], tmp_path) == 2
    assert "the two marks" in capsys.readouterr().err


def test_one_lesson_is_built_alone_and_links_to_what_is_there(tmp_path):
    course_of(tmp_path, **{"01_a": TINY, "02_b": TINY, "03_c": TINY})
    assert build(tmp_path, "2") == 0
    assert "rel=" not in (tmp_path / "out" / "02_b.html").read_text(encoding="utf-8")
    assert build(tmp_path, "3") == 0
    assert 'rel="prev" href="02_b.html"' in (tmp_path / "out" / "03_c.html").read_text(encoding="utf-8")
    assert "01_a.html" not in (tmp_path / "out" / "index.html").read_text(encoding="utf-8")


def test_cells_share_a_namespace_and_lessons_do_not(tmp_path, capsys):
    uses = TINY.replace("x, names = 2.5, {", "assert __name__ == '__main__'\nnames = {")
    uses = uses.replace('print("late")', "print(x)")
    course_of(tmp_path, **{"01_a": TINY, "02_b": uses})
    assert build(tmp_path) == 1
    assert "02_b.py:16: NameError: name 'x' is not defined" in capsys.readouterr().err


def test_the_last_expression_shows_itself_once(tmp_path):
    shown = "class Shown:\n    def _repr_html_(self):\n        return '<u>me</u>'\n\n\nShown()"
    shows = TINY.replace('print("late")', shown)
    course_of(tmp_path, **{"01_tiny": shows})
    assert build(tmp_path) == 0
    assert (tmp_path / "out" / "01_tiny.html").read_text(encoding="utf-8").count("<u>me</u><figcaption>") == 1


def test_in_a_notebook_the_picture_is_displayed(monkeypatch):
    display = pytest.importorskip("IPython.display")
    shown = []
    monkeypatch.setattr(builtins, "get_ipython", lambda: None, raising=False)
    monkeypatch.setattr(display, "display", shown.append)
    lesson.show("<svg/>", "name")
    assert shown == ["<svg/>"]


# ---------------------------------------------------------------------------------------------------------------------
# what two lessons claim of code that is not the package's
# ---------------------------------------------------------------------------------------------------------------------
def engine():
    """The names that the scalar engine of lesson 1 defines, from its own cells and nothing else."""
    path = next(EXAMPLES.glob("01_*.py"))
    heads = path.read_text(encoding="utf-8").splitlines()
    cells = [c.text for c in lesson.Lesson.read(path).cells if heads[c.line - 2].startswith("# %% engine")]
    space = {}
    exec("\n".join(cells), space)
    return cells, space


def test_the_scalar_engine_is_whole_and_has_at_most_120_lines():
    cells, space = engine()
    assert 60 < sum(len(text.splitlines()) for text in cells) <= 120
    own = {name for name, value in space.items() if isinstance(value, type) and value is not space["Op"]}
    assert own >= {"Add", "Sub", "Mul", "Div", "Neg", "Exp", "Log", "Tanh", "Relu"}
    for name in own - {"Scalar"}:
        real = __import__("tinyattn").Op.registry[name.lower()]
        assert real.__name__ == name and real.input_names == tuple(
            r.__name__.removeprefix("grad_") for r in space[name].rules)


def test_the_scalar_engine_agrees_with_the_package(rng):
    import tinyattn as ta
    _, space = engine()

    def value(x, y, z):
        u = (x * y - z / x).tanh() + (-y).exp() * 0.5 + (x - 3.0).relu() + (x * x).log()
        return u * u + 2.0 / x - (u - 1.0).relu() * y

    for _ in range(10):
        start = [float(n) for n in rng.uniform(0.5, 2, 3)]
        ours = [space["Scalar"](n, requires_grad=True) for n in start]
        theirs = [ta.Tensor(n, requires_grad=True, dtype="float64") for n in start]
        mine, real = value(*ours), value(*theirs)
        mine.backward(create_graph=True)
        first = ta.grad(real, theirs, create_graph=True)
        for a, b in zip(ours, first, strict=True):
            assert a.grad.data == pytest.approx(b.item(), rel=1e-12)
        second = space["walk"](ours[0].grad)
        for a, b in zip(ours, ta.grad(first[0], theirs, allow_unused=True), strict=True):
            assert second[a].data == pytest.approx(b.item(), rel=1e-11)


def test_what_true_means_in_pytorch():
    torch = pytest.importorskip("torch")
    from tinyattn import Tensor
    from tinyattn.attention import find
    x = np.random.default_rng(0).normal(size=(1, 3, 4))
    keep = np.array([[True, True, False]] * 3)
    ours = find("scaled_dot")(Tensor(x), Tensor(x), Tensor(x), mask=keep).numpy()
    t = torch.tensor(x)
    same = torch.nn.functional.scaled_dot_product_attention(t, t, t, attn_mask=torch.tensor(keep)).numpy()
    assert np.allclose(ours, same)
    heads = torch.nn.MultiheadAttention(4, 1, batch_first=True, dtype=torch.float64)
    for mask in ({"attn_mask": torch.tensor(~keep)}, {"key_padding_mask": torch.tensor(~keep[:1])}):
        _, weights = heads(t, t, t, **mask)
        assert (weights[..., 2] == 0).all() and (weights[..., :2] > 0).all()


TIMED = """
import ast, sys
path = sys.argv[1]
space, keep = {"__name__": "__main__"}, []
for node in ast.parse(open(path, encoding="utf-8").read(), path).body:
    names = [n for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    constant = (isinstance(node, ast.Assign) and all(n.id.isupper() for n in names)
                and not any(isinstance(n, ast.Call) for n in ast.walk(node)))
    if constant or isinstance(node, (ast.Import, ast.ImportFrom, ast.FunctionDef)):
        keep.append(node)
exec(compile(ast.Module(keep, []), path, "exec"), space)
space["CARD"] = True
space["seconds"] = lambda launch, *arguments: (launch(*arguments), 1.0)[1]
took = space["product_times"]((64,)) | space["attention_times"]((32,), 16) | space["chain_times"](300)
print(*(f"{name} {size}" for name, size in took), sep=", ")
print(space["gflops"]({("naive", 1000): 0.5}, "naive", 1000), space["microseconds"]({("a", 1): 0.5}, "a", 1))
"""


def test_the_ladder_of_a_card_can_be_timed(monkeypatch):
    """What lesson 17 does where a card is, on small sizes in the simulator: each rung is launched and compared."""
    monkeypatch.setenv("NUMBA_ENABLE_CUDASIM", "1")
    done = run("-c", TIMED, EXAMPLES / "17_on_a_card.py", cwd=EXAMPLES)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "wrong way 64, naive 64, tiled 64, blocked 64, package 64, three kernels 32, fused 32, three launches 300, "
        "one launch 300", "4 GFLOP/s 500,000 us"]
