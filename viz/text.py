"""Text in pictures: labels that stay literal whatever stands in them, and formulas of ops as short Unicode lines.

DOT gives a meaning to backslashes, quotes, `&name;` and a leading `<`; SVG and XML allow no control characters.
`literal` and `markup` are the two ways past all of that: for a plain label and for one with bold and small print.
"""
import re
import unicodedata

# only signs that the fonts inside graphviz-pure have, so that a PNG shows them on a machine without fonts
_SIGNS = {"odot": "*", "sigma": "σ", "sum": "∑", "prod": "∏", "top": "ᵀ", "lVert": "‖", "rVert": "‖", "cdot": "·",
          "times": "×", "lambda": "λ", "mid": "|", "textstyle": ""}
_RAISED = dict(zip("0123456789+-nTᵀ", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿᵀᵀ", strict=True))
_LOWERED = dict(zip("0123456789+-tsijna.", "₀₁₂₃₄₅₆₇₈₉₊₋ₜₛᵢⱼₙₐ.", strict=True))
_TOKEN = re.compile(r"\\([A-Za-z]+)|\\.|[{}^_]|[^\\{}^_]")
_FIRST_SLOT = 0xE000  # private-use characters stand for the slots while the formula is rewritten


def printable(text, limit=48):
    """`text` on one line and without control characters (shown as �), cut in the middle if longer."""
    text = str(text).replace("\n", "\\n").replace("\t", "\\t")
    bad = ("Cc", "Cs", "Zl", "Zp")
    text = "".join("\ufffd" if unicodedata.category(c) in bad or c in "\ufffe\uffff" else c for c in text)
    return text if len(text) <= limit else text[:limit - limit // 3 - 1] + "…" + text[-(limit // 3):]


def literal(*lines):
    """A plain DOT label that shows `lines` as they are."""
    from graphviz import escape
    return escape("\n".join(line.replace("&", "&amp;") for line in lines))


def markup(text):
    """`text` inside an HTML-like DOT label. The backslash too: even there `\\N` would be the name of the node."""
    for sign, name in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;"), ("\\", "\\\\")):
        text = text.replace(sign, name)
    return text


def width(text, size, bold=False):
    """A width in points that `text` is sure to fit in: wide characters count as squares."""
    ems = sum(1.0 if unicodedata.east_asian_width(c) in "WF" else 0.62 if bold else 0.56 for c in text)
    return size * ems


def formula(tex, names):
    r"""The formula of an op as one line of Unicode: formula(r"\sigma({x})", {"x": "h"}) is "σ(h)"; "" if there is none.

    Slots `{x}` are filled with `names` last, so a name may hold any sign. A slot without a name keeps its own.
    """
    slots = sorted(set(re.findall(r"\{(\w+)\}", tex)) & set(names))
    for i, slot in enumerate(slots):
        tex = tex.replace("{" + slot + "}", chr(_FIRST_SLOT + i))
    line = re.sub(r"\s+", " ", _line(tex)).strip()
    line = re.sub(r"‖ ?(.*?) ?‖", r"‖\1‖", re.sub(r"([a-z]) \(", r"\1(", line))
    return "".join(names[slots[ord(c) - _FIRST_SLOT]] if 0 <= ord(c) - _FIRST_SLOT < len(slots) else c for c in line)


def _line(tex):
    """TeX to Unicode. One list a brace that is open; what closes it decides how its contents are written."""
    open_groups, waiting = [[]], [[]]  # waiting: the commands that still want a group, level by level
    for token in _TOKEN.finditer(tex):
        sign, command = token.group(0), token.group(1)
        if command in ("frac", "sqrt", "mathrm", "mathbf", "text"):
            waiting[-1] += ["over", "under"] if command == "frac" else [command]
        elif sign in ("^", "_"):
            waiting[-1].append(sign)
        elif sign == "{":
            open_groups.append([])
            waiting.append([])
        elif sign == "}" and len(open_groups) > 1:
            inner = "".join(open_groups.pop())
            waiting.pop()
            open_groups[-1].append(_written(waiting[-1], inner, open_groups[-1]))
        else:
            text = sign if command is None else _SIGNS.get(command, command + " ")
            text = " " if sign in (r"\,", r"\;", r"\ ") else text
            open_groups[-1].append(_written(waiting[-1], text, open_groups[-1]) if text != " " else text)
    return "".join("".join(group) for group in open_groups)


def _written(waiting, inner, before):
    """`inner` as the oldest waiting command wants it."""
    command = waiting.pop(0) if waiting else None
    simple = len(inner) <= 1 or re.fullmatch(r"[\w.]+(\(.*\))?", inner)
    whole = inner if simple else f"({inner})"
    if command == "over":
        return whole + " / "
    if command == "under":
        return whole
    if command == "sqrt":
        return f"√{whole}" if len(inner) == 1 else f"√({inner})"
    if command == "^":
        if before and before[-1] == "e":
            before.pop()
            return f"exp({inner})"
        return _shifted(inner, _RAISED) or f"^{whole}"
    if command == "_":
        return _shifted(inner, _LOWERED) or f"[{inner}]"
    return inner


def _shifted(text, table):
    return "".join(table[c] for c in text) if all(c in table for c in text) else ""
