"""Themes: how each kind of node and edge looks, and the legend that says so.

Colours after Okabe and Ito, told apart by colour-blind readers; every kind has an outline of its own too, so "print"
needs no colour at all.
"""
from ..text import markup

# kind: (fill, border, style)
THEMES = {
    "colour": {
        "op": ("#DCEBF7", "#0072B2", "rounded,filled"), "backward": ("#FBE3D6", "#D55E00", "rounded,filled"),
        "parameter": ("#FFE9B8", "#B37700", "filled,bold"), "input": ("#F4F4F4", "#555555", "filled"),
        "constant": ("#F4F4F4", "#777777", "filled,dashed"), "outside": ("white", "#555555", "filled,dotted"),
        "scope": ("#E9E4F3", "#5B4A8A", "rounded,filled"), "output": ("#CDEBDD", "#007A55", "rounded,filled"),
        "box": ("#FAFBFC", "#8A939C"), "edge": "#444444", "shape": "#555555", "loop": "#0072B2", "gradient": "#D55E00",
        "paper": "white", "ink": "black", "pale": ("#FFFFFF", "#C4C4C4", "#8C8C8C")},
    "print": {
        "op": ("white", "black", "rounded,filled"), "backward": ("#E2E2E2", "black", "rounded,filled,dashed"),
        "parameter": ("#F0F0F0", "black", "filled,bold"), "input": ("white", "black", "filled"),
        "constant": ("white", "black", "filled,dashed"), "outside": ("white", "black", "filled,dotted"),
        "scope": ("white", "black", "rounded,filled"), "output": ("white", "black", "rounded,filled,bold"),
        "box": ("white", "#555555"), "edge": "black", "shape": "black", "loop": "black", "gradient": "black",
        "paper": "white", "ink": "black", "pale": ("#FFFFFF", "#BBBBBB", "#888888")},
    "dark": {
        "op": ("#12364F", "#56B4E9", "rounded,filled"), "backward": ("#4F2512", "#FF9A5C", "rounded,filled"),
        "parameter": ("#4A3A08", "#F0C040", "filled,bold"), "input": ("#333333", "#CCCCCC", "filled"),
        "constant": ("#333333", "#AAAAAA", "filled,dashed"), "outside": ("#1B1B1B", "#CCCCCC", "filled,dotted"),
        "scope": ("#352B50", "#B9A7F0", "rounded,filled"), "output": ("#0D4030", "#45D0A0", "rounded,filled"),
        "box": ("#222426", "#8A939C"), "edge": "#CCCCCC", "shape": "#CCCCCC", "loop": "#56B4E9", "gradient": "#FF9A5C",
        "paper": "#1B1B1B", "ink": "white", "pale": ("#1B1B1B", "#555555", "#888888")},
}
NODES = {"op": "op", "output": "output", "parameter": "parameter", "input": "input", "constant": "constant",
         "outside": "made outside of this picture", "scope": "box, folded", "backward": "op of the backward pass"}
LINES = {"saved": ("· · · →", "edge", "saved by the forward pass"),
         "loop": ("- - - →", "loop", "to the next time step"),
         "gradient": ("—→", "gradient", "in the backward pass")}


def legend(theme, kinds, lines, remarks):
    """What the kinds of nodes and lines mean, as the label under a graph; "" if there is nothing to say.

    kinds, lines    those that the picture has, of NODES and LINES
    remarks         more, each a line of text
    """
    cells = []
    for kind in (k for k in NODES if k in kinds):
        fill, border, style = theme[kind]
        outline = ",".join(s for s in style.split(",") if s in ("rounded", "dashed", "dotted"))
        wide = "2" if "bold" in style or kind == "scope" else "1"
        cells.append(f'<TD BORDER="{wide}" COLOR="{border}" BGCOLOR="{fill}"'
                     + (f' STYLE="{outline}">' if outline else ">") + f"{_text(NODES[kind])}</TD>")
    for sign, colour, says in (LINES[k] for k in LINES if k in lines):
        cells.append(f'<TD><FONT COLOR="{theme[colour]}">{sign}</FONT>&#160;{_text(says)}</TD>')
    rows = [cells[i:i + 5] for i in range(0, len(cells), 5)]
    tables = ['<TR><TD ALIGN="LEFT"><TABLE BORDER="0" CELLSPACING="8" CELLPADDING="3">'
              f'<TR>{"".join(row)}</TR></TABLE></TD></TR>' for row in rows]
    tables += [f'<TR><TD ALIGN="LEFT">{_text(line)}</TD></TR>' for line in remarks]
    return f'<<TABLE BORDER="0" CELLSPACING="2" CELLPADDING="0">{"".join(tables)}</TABLE>>' if tables else ""


def _text(words):
    return f'<FONT POINT-SIZE="12">{markup(words)}</FONT>'
