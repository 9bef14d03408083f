"""What a generator makes, kept in the cache folder: Python takes seconds to make it, and a moment to read it again.

    folder/tinyattn/made/NAME-HASH.json         the folder of `device.cache_folder`; a line about the rest, then JSON

HASH is that of everything that the result depends on: the files of the generator, Python, NumPy and the arguments. So an
edit makes a new file, and the last few of a name are kept. What cannot be read, or is not what was written, is made anew.
"""
import hashlib
import json
import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np

from tinyattn import device

MOST = 4  # files of a name: with other arguments, of other versions


def kept(name, modules, arguments, make):
    """make(), something of lists, texts and numbers as JSON has them, from the cache folder if it is there.

    modules    what makes it; it is made again once one of their files has changed
    arguments  what else the result depends on, as JSON can write it
    """
    folder = _folder()
    if folder is None:
        return make()
    path = folder / f"{name}-{_key(modules, arguments)}.json"
    found = _read(path)
    if found is None:
        found = make()
        with suppress(OSError):  # no room left, a folder taken away meanwhile
            _write(path, found)
            _remove_old(folder, name)
    return found


def _folder():
    """Beside the folders of kernels; None where there is none to write to."""
    kernels = device.cache_folder()
    if kernels is None:
        return None
    with suppress(OSError):
        folder = kernels.parent / "made"
        folder.mkdir(exist_ok=True)
        return folder
    return None


def _key(modules, arguments):
    digest = hashlib.sha256(json.dumps([sys.version, np.__version__, arguments]).encode())
    for module in (sys.modules[__name__], *modules):
        digest.update(hashlib.sha256(Path(module.__file__).read_bytes()).digest())
    return digest.hexdigest()[:16]


def _read(path):
    """What `_write` has written there, or None."""
    with suppress(OSError, ValueError, RecursionError):
        digest, _, content = path.read_bytes().partition(b"\n")
        if digest.decode() == hashlib.sha256(content).hexdigest():
            with suppress(OSError):
                os.utime(path)  # used now
            return json.loads(content.decode("utf-8", "surrogatepass"))
    return None


def _write(path, value):
    """Under another name first: whoever reads meanwhile finds no half of it."""
    content = json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
    handle, new = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".new")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(content).hexdigest().encode() + b"\n" + content)
        os.replace(new, path)
    except BaseException:
        os.unlink(new)
        raise


def _remove_old(folder, name):
    """All but the last few used, and what a killed process has left behind."""
    files = [file for file in folder.iterdir() if file.stem.rpartition("-")[0] == name]
    for file in sorted(files, key=lambda file: file.stat().st_mtime)[:-MOST]:
        with suppress(OSError):
            file.unlink()
