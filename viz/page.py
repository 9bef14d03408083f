"""Pages: one HTML file that holds everything it shows, opens from the disk, and asks nothing of any network.

    page("Steps", body, script="...")       the text of a whole page; `write` puts it on the disk
    embedded("looks", {...})                numbers for a script of the page, as JSON
    math(r"e^{x}")                          a formula, as MathML
    inline(svg)                             a picture in a page, with ids that no other picture of the page has

The head of every page forbids, by a content security policy, to load anything from anywhere, so a browser itself holds
the promise.
"""
import json
import re
import zlib
from html import escape

from tinyattn import checkpoint
from tinyattn.errors import InputError

from .text import printable

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
STYLE = """
:root { --ink: #222; --pale: #555; --line: #ddd; --blue: #0072B2; --orange: #D55E00; --paper: #fff; }
body { font: 18px/1.5 system-ui, sans-serif; max-width: 78rem; margin: 1.5rem auto; padding: 0 1rem; color: var(--ink);
       background: var(--paper); }
h1 { font-size: 1.6rem; margin: 0 0 0.5rem; } h2 { font-size: 1.2rem; margin: 2rem 0 0.5rem; }
pre { background: #f5f5f2; padding: 0.8rem 1rem; overflow-x: auto; border-left: 4px solid var(--blue);
      font-size: 15px; }
figure { margin: 0.75rem 0; overflow-x: auto; } figcaption, .pale { color: var(--pale); font-size: 15px; }
table { border-collapse: collapse; } td, th { padding: 0.25rem 0.6rem; text-align: left; vertical-align: top; }
button, select, input { font: inherit; padding: 0.2rem 0.7rem; } code { font-size: 0.9em; } a { color: var(--blue); }
button:focus-visible, select:focus-visible, [tabindex]:focus-visible { outline: 3px solid var(--orange); }
math { font-family: "Cambria Math", "STIX Two Math", "Latin Modern Math", "DejaVu Math TeX Gyre"; }
@media print { .controls { display: none; } body { max-width: none; } }
"""


def page(title, body, style="", script=""):
    """The text of an HTML page. title: plain text; body: HTML; style and script: CSS and JavaScript of its own."""
    code = f"<script>\n{_closed(script)}\n</script>\n" if script else ""
    return (f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
            f'<meta name="viewport" content="width=device-width">\n<style>{STYLE}{style}</style></head>\n'
            f"<body>\n{body}\n{code}</body></html>\n")


def embedded(name, data):
    """`data` as JSON in the page; a script reads it by `JSON.parse(document.getElementById(name).textContent)`."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return f'<script type="application/json" id="{escape(name)}">{text.replace("<", chr(92) + "u003c")}</script>'


def _closed(script):
    """JavaScript that cannot end the element it stands in, nor open a comment; in strings it means the same."""
    return script.replace("</", "<\\/").replace("<!--", "<\\!--")


def inline(svg, key=None):
    """An SVG file's text to be put into a page: no XML head; ids, and what points to them, get a prefix.

    key    makes the prefix; by default the picture itself, so the same picture has the same ids. Two equal pictures in
           one page need two keys.
    """
    svg = svg[svg.index("<svg"):]
    prefix = f"g{zlib.crc32((svg if key is None else str(key)).encode('utf-8', 'surrogatepass')):08x}-"
    ids = set(re.findall(r'<[^<>]*\sid="([^"]+)"', svg))

    def pointed(found):
        return found.group(1) + (prefix if found.group(2) in ids else "") + found.group(2)

    def renamed(tag):  # within tags alone: a token may be ` id="x"` itself
        tag = re.sub(r'(\sid=")([^"]+)', rf"\g<1>{prefix}\g<2>", tag[0])
        return re.sub(r'((?:url\(|href="|aria-labelledby="|aria-describedby=")#?)([^")]+)(?=["\)])', pointed, tag)

    return re.sub("<[^<>]*>", renamed, svg)


def math(tex, block=False):
    """A formula in LaTeX as MathML, which browsers set without a script. InputError without latex2mathml."""
    try:
        from latex2mathml.converter import convert
    except ImportError:
        raise InputError("this page needs latex2mathml: pip install tinyattn[plot]") from None
    return convert(tex, display="block" if block else "inline")


def write(path, data, who):
    """Write text or bytes to a file, whole or not at all. InputError, beginning with `who`, if that cannot be. Single
    surrogates, which are no characters, become U+FFFD."""
    try:
        checkpoint.write(path, re.sub("[\ud800-\udfff]", "\ufffd", data) if isinstance(data, str) else data)
    except OSError as error:
        raise InputError(f"{who}: cannot write {printable(path, 400)}: {error.strerror or error}") from None
    except ValueError:  # a NUL, or what the file system cannot encode
        raise InputError(f"{who}: cannot write {printable(path, 400)}: no file can have this name") from None
    return path
