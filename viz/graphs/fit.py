"""Labels of an SVG that fit their boxes in every browser.

A layout is made for the letters of Helvetica. Where a browser has none, it takes a font that may be wider, and words
run out of their boxes. So every label is told its width: that of the layout, which browsers then keep.
"""
import re
from html import unescape

# widths of letters in thousandths of the size of the font, as the font's maker gives them: {width: letters}
_PLAIN = {
    222: "'`ijl", 260: "|", 278: " !,./:;I[\\]ft", 333: "()-r", 334: "{}", 355: '"', 389: "*", 469: "^",
    500: "Jcksvxyz", 556: "#$0123456789?L_abdeghnopqu", 584: "+<=>~", 611: "FTZ", 667: "&ABEKPSVXY", 722: "CDHNRUw",
    778: "GOQ", 833: "Mm", 889: "%", 944: "W", 1015: "@"}
_BOLD = {
    278: " ',./I\\`ijl", 280: "|", 333: "!()-:;[]ft", 389: "*r{}", 474: '"', 500: "z",
    556: "#$0123456789J_aceksvxy", 584: "+<=>^~", 611: "?FLTZbdghnopqu", 667: "EPSVXY", 722: "&ABCDHKNRU",
    778: "GOQw", 833: "M", 889: "%m", 944: "W", 975: "@"}
_SIGNS = dict.fromkeys("→…—", 1000) | dict.fromkeys("ᵀ⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ₀₁₂₃₄₅₆₇₈₉₊₋ₜₛᵢⱼₙₐ", 333) | {
    "×": 584, "·": 333, "–": 556, "σ": 603, "λ": 556, "∑": 713, "∂": 494, "√": 549, "‖": 500, "\u00a0": 278}
_WIDTHS = [{c: w for w, letters in table.items() for c in letters} | _SIGNS for table in (_PLAIN, _BOLD)]
_TEXT = re.compile(r'<text (?![^>]*textLength)([^>]*font-size="([\d.]+)"[^>]*)>([^<]*)</text>')


def fitted(svg):
    """The SVG text of a graph, its labels with a `textLength`; those with letters of unknown width as they were."""
    return _TEXT.sub(_fit, svg)


def _fit(found):
    attributes, size, text = found.groups()
    table = _WIDTHS['font-weight="bold"' in attributes]
    letters = unescape(text)
    if not letters.strip() or any(c not in table for c in letters):
        return found.group()
    wide = sum(table[c] for c in letters) * float(size) / 1000
    return f'<text {attributes} textLength="{wide:.2f}" lengthAdjust="spacingAndGlyphs">{text}</text>'
