r"""Pairs of texts from gettext catalogues, the translations that programs carry: `.po` (text) and `.mo` (compiled).

Both readers give (original, translation) in the order of the file, and count in `counted` what they leave out: the
header, untranslated, fuzzy and obsolete messages. A message with a plural gives two pairs: its singular with the
first form, its plural with the last. A message's context is ignored, so one original may come several times.
Line breaks and placeholders (`%(name)s`) stay in the text. Format: the GNU gettext manual, "The Format of PO Files"
and "The Format of GNU MO Files".
"""

import re
import struct

from tinyattn.errors import InputError
from tinyattn.tasks.text import read_bytes, read_lines

_FIELD = re.compile(r'(msgctxt|msgid_plural|msgid|msgstr)(?:\[(\d+)\])?\s*(".*)')
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"\s*')
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{1,2}|[0-7]{1,3}|.)")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}


def read_po(path, counted):
    """The pairs of a `.po` file (UTF-8). InputError with the line for one that is no part of a catalogue."""
    pairs, entry, current = [], {}, None
    for number, line in enumerate([*read_lines(path), ""], 1):
        line = line.strip()
        field = _FIELD.fullmatch(line)
        # An entry ends with a blank line, or where the next one begins: nothing but msgstr follows a msgstr.
        begins = line.startswith("#") or field and field[1] in ("msgid", "msgctxt")
        if not line or begins and any(key.startswith("msgstr") for key in entry):
            if ("msgid" in entry) != ("msgstr0" in entry):
                raise InputError(f"{path}, line {number}: expected a msgid with its msgstr before this line")
            pairs += _finished(entry, counted)
            entry, current = {}, None
        if line.startswith("#"):
            if line.startswith("#,") and "fuzzy" in line:
                entry["fuzzy"] = True
            if re.match(r"#~\s*msgid\s", line):
                counted["left out: obsolete"] += 1
        elif field:
            current = field[1] + (field[2] or "0" if field[1] == "msgstr" else "")
            if current in entry:
                raise InputError(f"{path}, line {number}: expected one {field[1]} a message, found another")
            entry[current] = _unquote(field[3], path, number)
        elif line.startswith('"') and current:
            entry[current] += _unquote(line, path, number)
        elif line:
            raise InputError(f'{path}, line {number}: expected msgid "...", msgstr "..." or a comment, found {line[:40]!r}')
    return pairs


def read_mo(path, counted):
    """The pairs of a `.mo` file of either byte order, in the charset its header names (UTF-8 if none).

    The standard library's reader drops the plural originals, so this is our own. InputError for a file that is
    truncated or no catalogue.
    """
    data = read_bytes(path)
    order = {b"\xde\x12\x04\x95": "<", b"\x95\x04\x12\xde": ">"}.get(data[:4])
    if order is None:
        raise InputError(f"{path}: expected a gettext catalogue (.mo), found a file that begins with {data[:4]!r}")
    try:
        _, count, originals, translations = struct.unpack_from(order + "4I", data, 4)
        if originals + 8 * count > len(data) or translations + 8 * count > len(data):
            raise InputError(f"{path}: expected {count:,} messages, found a file of only {len(data):,} bytes")
        texts = []
        for i in range(count):
            places = (struct.unpack_from(order + "2I", data, table + 8 * i) for table in (originals, translations))
            texts.append([_piece(data, start, length) for length, start in places])
        header = next((translation for original, translation in texts if not original), b"").decode("ascii", "replace")
        charset = re.search(r"charset=([\w.:-]+)", header)
        texts = [[side.decode(charset[1] if charset else "utf-8") for side in text] for text in texts]
    except (struct.error, IndexError):
        raise InputError(f"{path}: expected a whole gettext catalogue (.mo), found one cut short") from None
    except (UnicodeDecodeError, LookupError) as error:
        raise InputError(f"{path}: expected text in the charset of its header, found: {error}") from None
    pairs = []
    for original, translation in texts:
        singular, *plural = original.rpartition("\x04")[2].split("\0")
        forms = translation.split("\0")
        entry = {"msgid": singular, **{f"msgstr{i}": form for i, form in enumerate(forms)}}
        pairs += _finished({**entry, "msgid_plural": plural[0]} if plural else entry, counted)
    return pairs


def _finished(entry, counted):
    """The pairs of one message: none, one, or two for a plural."""
    forms = [text for key, text in entry.items() if key.startswith("msgstr")]
    if not forms or not entry.get("msgid"):  # a comment alone, or the header
        return []
    if entry.get("fuzzy"):
        counted["left out: fuzzy"] += 1
        return []
    if not all(forms):
        counted["left out: not translated"] += 1
        return []
    pairs = [(entry["msgid"], forms[0])]
    return [*pairs, (entry["msgid_plural"], forms[-1])] if "msgid_plural" in entry else pairs


def _unquote(quoted, path, number):
    match = _STRING.fullmatch(quoted)
    if not match:
        raise InputError(f'{path}, line {number}: expected one text in double quotes, found {quoted[:40]!r}')
    return _ESCAPE.sub(_unescape, match[1])


def _unescape(match):
    code = match[1]
    if code[0] == "x" and len(code) > 1:
        return chr(int(code[1:], 16))
    return chr(int(code, 8)) if code[0] in "01234567" else _ESCAPES.get(code, code)


def _piece(data, start, length):
    if start + length > len(data):
        raise IndexError
    return data[start:start + length]
