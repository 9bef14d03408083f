"""The course: what its lessons share, and the builder of their pages.

    python examples/lesson.py -o lessons            # run all lessons; a page for each, its figures, and index.html
    python examples/lesson.py 03 07 -o lessons      # only these
    python examples/lesson.py --index               # bring the table of lessons in README.md up to date

A lesson is one Python file in percent format: cells of Markdown (`# %% [markdown]`) and cells of code (`# %%`; those
of `# %% [drawing]` are folded in the page). The builder runs the cells in order, in one fresh namespace, and puts what
they print and show under them. A Markdown cell may hold {{expression}} or {{expression:.3f}}, which is computed at that
point: so no number in the text can differ from what the code gives.
"""
import argparse
import ast
import builtins
import contextlib
import functools
import io
import re
import sys
import traceback
from collections import namedtuple
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from tinyattn.errors import InputError

HERE = Path(__file__).resolve().parent


# ---------------------------------------------------------------------------------------------------------------------
# what a lesson calls
# ---------------------------------------------------------------------------------------------------------------------
def show(picture, name, caption=""):
    """Show a picture of the lesson: in its page, in a notebook, or, in a script with `-o DIR`, as a file.

    picture  a matplotlib Figure, a viz Graph, whatever has `_repr_svg_`, or a page (`html`, `_repr_html_`); or the text
             of an SVG or of HTML
    name     its name among the figures of the lesson: a-z, 0-9 and "-"
    caption  what it shows, in a sentence
    """
    if not re.fullmatch(r"[a-z0-9-]+", name):
        raise InputError(f"show: expected a name of a-z, 0-9 and -, got {name!r}")
    _stages[-1](picture, name, caption)


def _outside(picture, name, caption):
    """`show` where no page is being built: a script, or a notebook."""
    if hasattr(builtins, "get_ipython"):
        from IPython.display import display
        display(picture)
        return
    print(f"[figure] {name}: {caption}")
    script = argparse.ArgumentParser(description="A lesson: it prints, asserts what it claims, and draws.")
    script.add_argument("-o", metavar="DIR", help="write the figures to this folder")
    folder = script.parse_args().o
    if folder:
        kind, text = text_of(picture)
        _write(Path(folder) / f"{Path(sys.modules['__main__'].__file__).stem}-{name}.{kind}", text)


_stages = [_outside]  # who takes the pictures: the last one


class beside:
    """Several graphs in one row of a page: show(beside(one, other), ...)."""

    def __init__(self, *graphs):
        self.graphs = graphs

    def _repr_html_(self):
        from viz.page import inline
        drawn = "".join(f"<div>{inline(g.svg(), f'graph{i}')}</div>" for i, g in enumerate(self.graphs))
        return f'<div style="display: flex; gap: 3rem; align-items: flex-start">{drawn}</div>'


def text_of(picture):
    """("svg" or "html", the text of its file)."""
    if hasattr(picture, "savefig"):
        from viz.plot import save_bytes
        return "svg", save_bytes(picture, "svg").decode("utf-8")
    ways = [getattr(picture, way) for way in ("_repr_svg_", "html", "_repr_html_", "svg") if hasattr(picture, way)]
    text = ways[0] if ways else picture
    text = text() if callable(text) else text
    if not isinstance(text, str):
        raise InputError(f"show: expected a figure, a graph or a page, got {type(picture).__name__}")
    return ("svg" if re.match(r"\s*(<\?xml|<svg)", text) else "html"), text


def _write(path, text):
    from viz.page import write
    with contextlib.suppress(OSError):  # then `write` says what is wrong
        path.parent.mkdir(parents=True, exist_ok=True)
    return write(path, text, "lesson")


# ---------------------------------------------------------------------------------------------------------------------
# a lesson's file
# ---------------------------------------------------------------------------------------------------------------------
class Failure(Exception):
    """A lesson is wrong: the text says in which file, on which line, and how."""


# kind: "markdown", "code" or "drawing"; line: of the file, from 1, where the text begins
Cell = namedtuple("Cell", "kind line text")


@dataclass
class Lesson:
    """One file of the course. `figures` maps the names of files beside the page to their texts, once it was run."""
    path: Path
    cells: list
    figures: dict = field(default_factory=dict)

    @classmethod
    def read(cls, path):
        path, cells = Path(path), []
        lines = path.read_text(encoding="utf-8").splitlines()
        begins = [i for i, line in enumerate(lines) if re.match(r"# %%(\s|$)", line)]
        if not begins or any(line.strip() for line in lines[:begins[0]]):
            raise Failure(f"{path}:1: a lesson begins with a cell, `# %% [markdown]`")
        for begin, end in zip(begins, [*begins[1:], len(lines)], strict=True):
            kind = (re.search(r"\[(\w+)\]", lines[begin]) or [0, "code"])[1]
            body = lines[begin + 1:end]
            if kind == "markdown":
                for i, line in enumerate(body):
                    if line.strip() and not line.startswith("#"):
                        raise Failure(f"{path}:{begin + 2 + i}: a line of a Markdown cell begins with #")
                body = [re.sub("^# ?", "", line) for line in body]
            cells.append(Cell(kind, begin + 2, "\n".join(body).rstrip()))
        if not re.match(r"# .+\n\n.", cells[0].text):
            raise Failure(f"{path}:2: expected a title, an empty line, and the claim as a paragraph")
        return cls(path, cells)

    @property
    def number(self):
        return self.path.stem[:2]

    @property
    def title(self):
        """The title, without its number."""
        return re.sub(r"^#\s+(\d+\.\s+)?", "", self.cells[0].text.split("\n")[0])

    @property
    def claim(self):
        """The paragraph below the title."""
        return " ".join(self.cells[0].text.split("\n\n")[1].split())

    def section(self, title):
        """The text of a `## title` section of the Markdown cells, or ""."""
        text = "\n\n".join(cell.text for cell in self.cells if cell.kind == "markdown")
        found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
        return found[1].strip() if found else ""


def course(folder=HERE):
    """All lessons of a folder, in order."""
    return [Lesson.read(path) for path in sorted(Path(folder).glob("[0-9][0-9]_*.py"))]


# ---------------------------------------------------------------------------------------------------------------------
# running it
# ---------------------------------------------------------------------------------------------------------------------
def body_of(lesson):
    """Run a lesson and return its page's body as HTML. Raises Failure, with file and line, where a cell fails."""
    space, parts = {"__name__": "__main__", "__file__": str(lesson.path)}, []
    lesson.figures = {}
    before, sys.argv = sys.argv, [str(lesson.path)]
    try:
        for cell in lesson.cells:
            if cell.kind == "markdown":
                parts.append(_markdown().render(_unfolded(_filled(lesson, cell, space))))
            else:
                parts += [_code(cell), *_run(lesson, cell, space)]
    finally:
        sys.argv = before
    return "\n".join(parts)


def _run(lesson, cell, space):
    """Run a cell of code; what it printed and showed, in order, as HTML."""
    parts, out = [], io.StringIO()

    def said():
        if out.getvalue():
            parts.append(f'<pre class="said">{escape(out.getvalue().rstrip())}</pre>')
        out.seek(0)
        out.truncate()

    def stage(picture, name, caption):
        said()
        parts.append(_figure(lesson, picture, name, caption))

    _stages.append(stage)
    try:
        with contextlib.redirect_stdout(out):
            value = _value_of(cell, str(lesson.path), space)
        if any(hasattr(value, way) for way in ("_repr_svg_", "_repr_html_")):
            stage(value, f"line-{cell.line}", "")
    except Exception as error:
        raise Failure(_said(error, lesson.path)) from error
    finally:
        _stages.pop()
    said()
    return parts


def _value_of(cell, path, space):
    """Run the code; the value of its last statement, None if that is no expression."""
    tree = ast.parse("\n" * (cell.line - 1) + cell.text, path)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, path, "exec"), space)
    return eval(compile(ast.Expression(last.value), path, "eval"), space) if last else None


def _said(error, path):
    """"FILE:LINE: what went wrong" of an exception that came through the lesson `path`."""
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else 1
    source = path.read_text(encoding="utf-8").splitlines()
    return f"{path}:{line}: {type(error).__name__}: {error}".rstrip(": ") + f"\n    {source[line - 1].strip()}"


def _filled(lesson, cell, space):
    """A Markdown cell's text with every {{expression}} computed."""
    def value(found):
        line = cell.line + cell.text[:found.start()].count("\n")
        code, spec = found[1].strip(), ""
        try:
            try:
                run = compile(code, "", "eval")
            except SyntaxError:  # {{x:.3f}} is not Python up to its last colon
                code, _, spec = code.rpartition(":")
                run = compile(code.strip(), "", "eval")
            return format(eval(run, space), spec)
        except Exception as error:
            raise Failure(f"{lesson.path}:{line}: {found[0]}: {type(error).__name__}: {error}") from error

    return re.sub(r"\{\{(.+?)\}\}", value, cell.text)


def _unfolded(text):
    """Empty lines around what stands in <details>, without which it would not be read as Markdown."""
    return re.sub(r"^( *)(<details>.*?</summary>)(.*?)(</details>)", r"\1\2\n\n\1\3\n\n\1\4", text,
                  flags=re.MULTILINE | re.DOTALL)


# ---------------------------------------------------------------------------------------------------------------------
# pages, and the command that builds them
# ---------------------------------------------------------------------------------------------------------------------
@functools.cache
def _markdown():
    """A renderer of Markdown with tables and formulas between dollar signs. InputError without markdown-it-py."""
    try:
        from markdown_it import MarkdownIt
    except ImportError:
        raise InputError("lesson: the pages need markdown-it-py and pygments: pip install tinyattn[plot]") from None
    from viz.page import math

    def inline(state, silent):
        found = re.compile(r"(\$\$?)(?=\S)((?:\\.|[^$\\])+)\1").match(state.src, state.pos)
        if not found:
            return False
        if not silent:
            state.push("formula", "", 0).content = math(found[2].strip(), block=len(found[1]) == 2)
        state.pos = found.end()
        return True

    def block(state, begin, end, silent):
        found = re.compile(r"\s*\$\$((?:\\.|[^$\\])+)\$\$[ ]*(?=\n|$)").match(state.src, state.bMarks[begin])
        if not found:
            return False
        if not silent:
            state.push("formula", "", 0).content = math(" ".join(found[1].split()), block=True) + "\n"
            state.line = begin + found[0].count("\n") + 1
        return True

    reader = MarkdownIt("commonmark", {"html": True}).enable("table")
    reader.inline.ruler.before("escape", "formula", inline)
    reader.block.ruler.before("fence", "formula", block, {"alt": ["paragraph", "list"]})
    reader.renderer.rules["formula"] = lambda tokens, i, options, env: tokens[i].content
    return reader


def _code(cell):
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import PythonLexer
    code = f"<pre><code>{highlight(cell.text, PythonLexer(), HtmlFormatter(nowrap=True)).rstrip()}</code></pre>"
    if cell.kind == "drawing":
        return f"<details><summary>How the next picture or table is made</summary>{code}</details>"
    return code if cell.text else ""


def _figure(lesson, picture, name, caption):
    """A figure of the page. Its file stands beside the page; an interactive page is shown in a frame too."""
    from viz.page import inline
    kind, text = text_of(picture)
    file = f"{lesson.path.stem}-{name}.{kind}"
    if file in lesson.figures:
        raise InputError(f"show: the lesson has two figures named {name!r}")
    lesson.figures[file] = text
    whole = re.match(r"\s*<!doctype", text, re.IGNORECASE)
    if kind == "svg":
        shown = f'<div role="img" aria-label="{escape(caption or name)}">{inline(text, file)}</div>'
    elif whole and hasattr(picture, "_repr_html_"):
        shown = f'<div class="wide">{picture._repr_html_()}</div>'
    elif whole:
        shown = f'<div class="wide"><iframe title="{escape(caption or name)}" srcdoc="{escape(text)}"></iframe></div>'
    else:
        shown = text
    link = f' <a href="{file}">On a page of its own</a>.' if whole else ""
    return (f'<figure id="{escape(name)}">{shown}<figcaption>Figure {len(lesson.figures)}. {escape(caption)}{link}'
            "</figcaption></figure>")


@functools.cache
def style():
    return (HERE / "lesson.css").read_text(encoding="utf-8")


def page_of(lesson, previous=None, following=None):
    """The text of a lesson's page; `lesson.figures` then holds its figures. Runs the lesson."""
    from viz.page import page
    body = body_of(lesson)
    links = "".join(f"<span>{link}</span>" for link in (
        f'<a rel="prev" href="{previous.path.stem}.html">← {escape(previous.title)}</a>' if previous else "",
        '<a href="index.html">All lessons</a>',
        f'<a rel="next" href="{following.path.stem}.html">{escape(following.title)} →</a>' if following else ""))
    whole = f'<nav aria-label="above">{links}</nav>\n<main>\n{body}\n</main>\n<nav aria-label="below">{links}</nav>'
    return page(f"{int(lesson.number)}. {lesson.title}", whole, style())


def index_of(lessons):
    """The text of the page that lists the lessons."""
    from viz.page import page
    text = _markdown().renderInline
    items = "\n".join(f'<li>{int(one.number)}. <a href="{one.path.stem}.html">{text(one.title)}</a><br>'
                      f"{text(one.claim)}</li>" for one in lessons)
    return page("tinyattn: the course", "<main><h1>Attention and back-propagation, lesson by lesson</h1>\n"
                "<p>Each page was made by running its lesson.</p>\n"
                f'<ol class="course">\n{items}\n</ol></main>', style())


def index_lines(lessons):
    """The table of lessons for README.md."""
    rows = [f"| {one.number} | [{one.title}]({one.path.name}) | {one.claim} |" for one in lessons]
    return "\n".join(["| | lesson | what it shows |", "|---|---|---|", *rows])


def build(lessons, chosen, folder):
    """Build the pages of the `chosen` lessons into `folder`. Returns what failed, one text a lesson; a page is written
    with all its figures or not at all."""
    folder, failed = Path(folder), []
    there = [one for one in lessons if one in chosen or (folder / f"{one.path.stem}.html").is_file()]
    for one in chosen:
        i = there.index(one)
        try:
            text = page_of(one, there[i - 1] if i else None, there[i + 1] if i + 1 < len(there) else None)
        except Failure as failure:
            failed.append(str(failure))
            continue
        for file, figure in one.figures.items():
            _write(folder / file, figure)
        print(_write(folder / f"{one.path.stem}.html", text))
    there = [one for one in there if (folder / f"{one.path.stem}.html").is_file()]
    if there:
        print(_write(folder / "index.html", index_of(there)))
    return failed


def write_index(lessons, path):
    """Put the table of lessons into a README, between its two marks."""
    text = path.read_text(encoding="utf-8")
    begin, end = "<!-- lessons: python examples/lesson.py --index -->\n", "\n<!-- end of lessons -->"
    if text.count(begin) != 1 or text.count(end) != 1:
        raise InputError(f"lesson: expected the two marks of the table of lessons in {path}")
    _write(path, text.split(begin)[0] + begin + index_lines(lessons) + end + text.split(end)[1])


def main(arguments=None, folder=HERE):
    ask = argparse.ArgumentParser(prog="lesson.py", description="Build the pages of the course by running its lessons.")
    ask.add_argument("numbers", nargs="*", metavar="NN", help="only these lessons")
    ask.add_argument("-o", metavar="DIR", default="lessons", help="the folder of the pages (default: lessons)")
    ask.add_argument("--index", action="store_true", help="only bring the table in README.md up to date")
    asked = ask.parse_args(arguments)
    try:
        lessons = course(folder)
        if asked.index:
            write_index(lessons, Path(folder) / "README.md")
            return 0
        numbers, known = {number.zfill(2) for number in asked.numbers}, [one.number for one in lessons]
        if not numbers <= set(known):
            raise InputError(f"lesson: there is no lesson {', '.join(sorted(numbers - set(known)))}; expected one of "
                             f"{', '.join(known)}")
        failed = build(lessons, [one for one in lessons if not numbers or one.number in numbers], asked.o)
    except (InputError, Failure) as error:
        print(error, file=sys.stderr)
        return 2
    sys.stderr.writelines(f"{text}\n" for text in failed)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.modules["lesson"] = sys.modules["__main__"]  # so that the lessons' `show` is this file's
    sys.exit(main())
