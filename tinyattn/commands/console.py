"""Writing to the console so that nothing about the console can stop the work.

A terminal that cannot print a character, a pipe whose reader has gone, a closed stdout: the text is changed or lost,
the command goes on. Words of a file cannot steer the terminal either: control characters in them are shown as \\u001b,
which in JSON is the same text. A full disk behind stdout is an error, because results would be lost without a word.
"""
import errno
import json
import math
import os
import re
import shutil
import sys
from contextlib import suppress

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tab and line end
GONE = {errno.EPIPE, errno.EBADF, errno.EINVAL}  # the reader has gone (EINVAL is what Windows says)


def prepare_streams():
    """Make stdout and stderr usable whatever they are. Called once, before anything else."""
    for number in (0, 1, 2):  # a closed stdout would leave its number to the next file that is opened
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def release_streams():
    """Flush both, so that Python has nothing left to say about a broken pipe when it ends."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def out(text=""):
    """A line of the result, on stdout."""
    _write(sys.stdout, text, strict=True)


def out_json(value):
    """A result for machines, on stdout. nan and inf, which JSON has not, become null."""
    out(json.dumps(_finite(value), ensure_ascii=not _prints_all(), indent=1))


def note(text):
    """A line for the person before the terminal, on stderr."""
    _write(sys.stderr, text, strict=False)


def on_terminal():
    """Is stderr a terminal, on which a bar can move?"""
    try:
        return sys.stderr is not None and sys.stderr.isatty()
    except ValueError:
        return False


def width():
    """Columns of the terminal that shows stdout; 100 where it is none."""
    try:
        terminal = sys.stdout is not None and sys.stdout.isatty()
    except ValueError:
        terminal = False
    return shutil.get_terminal_size((100, 24)).columns if terminal else 100


def shortened(rows, column, indent=0):
    """Rows of texts whose lines, made by `columns`, fit the console: longer texts of one column end in "...". At least
    20 characters of each stay."""
    others = [i for i in range(max(map(len, rows), default=0)) if i != column]
    taken = indent + sum(max(len(row[i]) for row in rows if i < len(row)) + 2 for i in others)
    room = max(width() - taken, 20)
    return [[text if i != column or len(text) <= room else text[:room - 3].rstrip() + "..."
             for i, text in enumerate(row)] for row in rows]


def columns(rows, indent="", numbers=True):
    """Rows of texts as lines with aligned columns; with `numbers`, those stand at the right of theirs."""
    rows = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in rows if i < len(row)) for i in range(max(map(len, rows), default=0))]
    lines = ["  ".join(_cell(cell, w, numbers) for cell, w in zip(row, widths, strict=False)) for row in rows]
    return [(indent + line).rstrip() for line in lines]


def _cell(text, width, numbers):
    number = re.fullmatch(r"[-+]?[\d,.]+(e[-+]\d+)?%?", text)
    return text.rjust(width) if number and numbers else text.ljust(width)


def _write(stream, text, strict):
    if stream is None:
        return
    text = CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    try:
        try:
            stream.write(text + "\n")
        except UnicodeEncodeError:
            stream.write(text.encode("ascii", "backslashreplace").decode("ascii") + "\n")
        stream.flush()
    except OSError as error:
        if strict and error.errno not in GONE:
            raise
    except ValueError:  # the stream was closed
        pass


def _prints_all():
    return (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "") in ("utf8", "utf16", "utf32")


def _finite(value):
    if isinstance(value, dict):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
