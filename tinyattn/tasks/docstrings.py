"""Real English that every Python has: the documentation strings of its standard library, labelled by family of modules.

The sources are read with `ast`; no module is imported. What a family holds is listed below; modules that a version of
Python has not are passed over, so counts differ from version to version, and for one version nothing does.
"""
import ast
import functools
import re
import sys
import sysconfig
from pathlib import Path

from tinyattn.errors import InputError
from tinyattn.tasks.kept import kept

FAMILIES = {
    "concurrency": "_threading_local asyncio concurrent multiprocessing queue sched selectors subprocess threading",
    "data formats": "base64 configparser csv dbm email html json mimetypes netrc pickle pickletools plistlib quopri "
                    "shelve sqlite3 tomllib wave xml",
    "files": "_pyio bz2 filecmp fileinput fnmatch genericpath glob gzip io linecache lzma mailbox ntpath os pathlib "
             "posixpath shutil stat tarfile tempfile zipapp zipfile",
    "language": "abc ast code codeop collections compileall contextlib copy copyreg ctypes dataclasses dis enum "
                "functools importlib inspect modulefinder opcode operator pkgutil py_compile pyclbr pydoc runpy site "
                "symtable sysconfig tokenize types typing weakref zipimport",
    "network": "ftplib http imaplib ipaddress nntplib poplib smtplib socket socketserver ssl telnetlib urllib "
               "webbrowser wsgiref xmlrpc",
    "numbers": "_pydatetime _pydecimal _strptime bisect calendar colorsys datetime decimal fractions heapq numbers "
               "random statistics zoneinfo",
    "testing": "bdb cProfile doctest logging pdb profile pstats timeit trace traceback tracemalloc unittest warnings",
    "text": "argparse cmd codecs difflib encodings getopt gettext locale optparse pprint re readline reprlib "
            "rlcompleter shlex sre_parse string stringprep textwrap",
    "windows and drawing": "curses tkinter turtle turtledemo",
}
FEWEST_WORDS = 12   # a shorter one says little: "Return the size."
MOST = 500          # of a family, so that none outweighs the others; taken evenly over its modules in order
FEWEST = 40         # a family with fewer (tkinter is a package of its own on some systems) is left out
NOT_SOURCES = {"test", "tests", "idle_test", "__pycache__"}
MASK = "…"          # stands for the names of the module itself


def documents(folder=None):
    """[(family, text)] in order of family, module and place in the file, each text once.

    folder  of the standard library; that of the running Python by default
    Left out: texts of fewer than 12 words, examples at the prompt, what several families have in common, and all but
    500 texts of a family. The parts of a module's own name are masked in its texts, as otherwise "asyncio" would give
    the answer away. A text is one line a paragraph or item of a list.
    InputError where the sources are not there: a Python may come with its library compiled, or zipped.
    """
    return list(_documents(str(folder or sysconfig.get_path("stdlib"))))


@functools.cache
def _documents(folder):
    """To read 500 files takes seconds, so what was found is kept in the cache folder until one of them changes."""
    files = {name: list(_files(Path(folder), modules.split())) for name, modules in FAMILIES.items()}
    state = [[name, str(path), path.stat().st_size, path.stat().st_mtime_ns] for name in files for path, _ in files[name]]
    found = kept("docstrings", [sys.modules[__name__]], state, lambda: _found(files)) if state else []
    if len({name for name, _ in found}) < 2:
        raise InputError(f"{folder}: expected the sources of the standard library, whose documentation strings are the "
                         f"built-in data; found {len(found)} usable. Give a file of your own with --data")
    return tuple(map(tuple, found))


def _found(files):
    """[family, text] of all that is used of some files, by family."""
    families = {name: [text for path, inside in some for text in _texts(path, _name_parts(inside))]
                for name, some in files.items()}
    homes = {}
    for name, texts in families.items():
        for text in texts:
            homes.setdefault(text, set()).add(name)
    found = []
    for name, texts in families.items():
        own = [text for text in dict.fromkeys(texts) if len(homes[text]) == 1]
        if len(own) >= FEWEST:
            step = max(1.0, len(own) / MOST)
            found += [[name, own[int(i * step)]] for i in range(min(len(own), MOST))]
    return found


def _files(folder, modules):
    """(path, path within the folder) of the files of some modules; a package is all that is in it."""
    for name in modules:
        single = folder / f"{name}.py"
        for path in [single] if single.is_file() else sorted((folder / name).rglob("*.py")):
            inside = path.relative_to(folder)
            if path.is_file() and not NOT_SOURCES & set(inside.parts):
                yield path, inside


def _name_parts(path):
    """The words of a module's dotted name: of concurrent/futures/_base.py concurrent, futures and base."""
    return {part for part in re.split(r"[\W_]+", str(path.with_suffix("")).lower()) if part} - {"init", "main"}


def _texts(path, own_names):
    """The documentation strings of one file, in order, masked."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):  # a template, or a file of another version
        return
    nodes = _documented(tree)
    own = re.compile(rf"(?<![^\W_])(?:{'|'.join(map(re.escape, sorted(own_names, key=len, reverse=True)))})(?![^\W_])",
                     re.IGNORECASE)
    for node in sorted(nodes, key=lambda node: getattr(node, "lineno", 0)):
        text = _unwrap(ast.get_docstring(node) or "")
        if len(text.split()) >= FEWEST_WORDS:
            yield own.sub(MASK, text)


def _documented(node):
    """The module, classes and functions in `node`, at any depth. Expressions, most of a tree, hold none and are passed over."""
    found = [node] if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) else []
    for name in ("body", "handlers", "orelse", "finalbody", "cases"):
        for statement in getattr(node, name, ()):
            found += _documented(statement)
    return found


def _unwrap(text):
    """One line a paragraph or item of a list: an item begins with a mark, or is indented otherwise than the line above.
    Paragraphs with an example at the prompt are left out."""
    lines = []
    for paragraph in re.split(r"\n\s*\n", text):
        if ">>>" in paragraph:
            continue
        indent = None
        for line in paragraph.splitlines():
            here = len(line) - len(line.lstrip())
            if here == indent and not re.match(r"\s*[-*•]\s", line):
                lines[-1] += " " + line.strip()
            else:
                lines.append(line.strip())
            indent = here
    return "\n".join(line for line in lines if line)
