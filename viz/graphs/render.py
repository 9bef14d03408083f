"""From DOT text to a picture, with whatever the machine has: never a traceback because `dot` is missing.

    1. `dot`, the program of Graphviz, if it is on the PATH
    2. `graphviz-pure`, which pip installs beside Python. It writes SVG and PNG; matplotlib draws a PDF from its layout
    3. `pygraphviz`, whose wheels carry Graphviz inside

Each gets DOT text on stdin and a time limit. If none can do it, `Unavailable` says why, in one line.
"""
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from contextlib import suppress
from pathlib import Path

from tinyattn.errors import InputError

from .fit import fitted

PICTURES = {"svg": b"<svg", "pdf": b"%PDF-", "png": b"\x89PNG"}  # what is in the head of each
ADVICE = "to draw it: pip install graphviz-pure (or tinyattn[plot], or your system's graphviz package)"

# pygraphviz in a process of its own, with the options of `dot`: so it can be stopped, and takes nothing down with it
_PYGRAPHVIZ = """
import sys, pygraphviz
graph = pygraphviz.AGraph(string=sys.stdin.buffer.read().decode("utf-8"))
for name, _, value in (option[2:].partition("=") for option in sys.argv[2:]):
    graph.graph_attr[name] = value
sys.stdout.buffer.write(graph.draw(format=sys.argv[1][2:], prog="dot"))
"""


class Unavailable(InputError):
    """No program on this machine could draw the graph; the message says what was tried."""


def render(dot, kind, timeout=30.0):
    """The bytes of the picture that the text `dot` describes. kind: "svg", "pdf" or "png"; timeout: seconds a program.

    Raises Unavailable if there is no layout program, or if none of those found manages.
    """
    if kind not in PICTURES:
        raise InputError(f"render: expected one of {', '.join(PICTURES)}, got {kind!r}")
    problems = []
    for name, draw in _programs():
        try:
            picture = draw(dot, kind, timeout)
            if PICTURES[kind] not in picture[:2000]:
                raise ValueError(f"what it gave is no {kind}")
            return fitted(picture.decode("utf-8")).encode("utf-8") if kind == "svg" else picture
        except subprocess.TimeoutExpired:
            problems.append(f"{name} took longer than {timeout:g} s (fold more: a smaller depth, or fewer nodes)")
        except (OSError, ValueError, RuntimeError, ImportError) as error:
            problems.append(f"{name}: {(str(error).strip() or type(error).__name__).splitlines()[0]}")
    raise Unavailable("; ".join(problems) if problems else f"no program that lays out graphs was found; {ADVICE}")


def _programs():
    """(name, function) for each way to draw that this machine has, best first."""
    found = []
    system = shutil.which("dot")
    if system:
        found.append(("dot", lambda dot, kind, timeout: _run([system, f"-T{kind}", *_dpi(kind)], dot, timeout)))
    pure = _graphviz_pure()
    if pure:
        found.append(("graphviz-pure", lambda dot, kind, timeout: _draw_pure(pure, dot, kind, timeout)))
    if sys.executable and importlib.util.find_spec("pygraphviz"):
        command = [sys.executable, "-c", _PYGRAPHVIZ]
        found.append(("pygraphviz", lambda dot, kind, timeout: _run([*command, f"-T{kind}", *_dpi(kind)], dot,
                                                                    timeout)))
    return found


def _dpi(kind):
    return ["-Gdpi=144"] if kind == "png" else []  # 72, the default, is too coarse for a projector


def _run(command, dot, timeout):
    """stdout of a program that reads `dot` from stdin. Its warnings (on font metrics) are of no use to anybody.

    Graphviz' first way to rank nodes fails on some graphs with nested boxes and edges upwards; its second, `newrank`,
    does not, but needs more room.
    """
    for more in ([], ["-Gnewrank=true"]):
        code, out, said = _limited(command + more, dot.encode("utf-8"), timeout)
        if code == 0 and out:
            return out
    said = said.decode("utf-8", "replace").strip().splitlines()
    errors = [line for line in said if line.startswith("Error")] + said[-1:] + ["no picture came"]
    raise RuntimeError(errors[0])


def _limited(command, given, timeout):
    """(exit code, stdout, stderr) of a program; subprocess.TimeoutExpired, and neither it nor a child of it is left."""
    own = {"creationflags": subprocess.CREATE_NO_WINDOW} if os.name == "nt" else {"start_new_session": True}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          **own) as process:
        try:
            out, said = process.communicate(given, timeout)
        except BaseException:  # Ctrl-C too
            if os.name != "nt":
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            raise
        return process.returncode, out, said


def _graphviz_pure():
    """The program of the package graphviz-pure: beside Python, in the scripts folder of the user, or on the PATH."""
    name = "graphviz-pure" + (".exe" if os.name == "nt" else "")
    folders = [Path(sys.executable).parent if sys.executable else None, sysconfig.get_path("scripts")]
    for folder in filter(None, folders):
        if os.access(Path(folder) / name, os.X_OK):
            return str(Path(folder) / name)
    return shutil.which(name)


def _draw_pure(program, dot, kind, timeout):
    if kind == "pdf":
        from .xdot import pdf
        return pdf(_run([program, "-Tjson"], dot, timeout))
    return _run([program, f"-T{kind}", *_dpi(kind)], dot, timeout)
