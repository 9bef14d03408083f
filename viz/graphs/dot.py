"""A Drawing as DOT text: what the nodes say, how they look, in which box they stand. The layout is Graphviz' work.

Ids are counters in order of appearance, so the same computation gives the same text.
"""
from tinyattn.errors import InputError

from ..text import literal, markup, printable, width
from .grids import block
from .labels import Labels, shape_text
from .themes import THEMES, legend

MANY = 300  # nodes from which the layout is told to hurry: exact placement takes minutes for a thousand nodes
SAVED = 16  # more dotted edges than that hide the graph


def dot_text(program, drawing, held=None, theme="colour", direction="TB", marks=None, key=False, saved=None, remark=""):
    """The DOT text of a Drawing.

    held    {value id: labels.Held}: numbers to write into the nodes
    marks   paths.Marks: what is drawn strong, all else pale
    key     draw the legend
    saved   draw the edges that bring saved values to the backward pass; None: up to SAVED of them
    remark  a line for the legend
    """
    return _Writer(program, drawing, held, theme, direction, marks, key, saved, remark).text()


class _Writer:
    def __init__(self, program, drawing, held, theme, direction, marks, key, saved, remark):
        self.program, self.drawing, self.direction, self.marks, self.key = program, drawing, direction, marks, key
        self.theme, self.coloured, self.labels = THEMES[theme], theme != "print", Labels(program, held)
        self.results, self.tinted, self.remark = set(program.outputs), False, remark
        self.forward = any(n.kind in ("op", "scope") and not n.backward for n in drawing.nodes)
        dotted = sum(self.is_saved(e) for e in drawing.edges)
        self.hidden = 0 if saved or saved is None and dotted <= SAVED else dotted
        self.kinds, self.lines = {}, {}  # what the legend has to explain

    def is_saved(self, edge):
        """Does it come into the backward pass from the side, and not from what the picture is made of?"""
        return edge.saved and self.drawing.nodes[edge.source].kind != "outside"

    def text(self):
        try:
            import graphviz
        except ImportError:
            raise InputError("graph: needs the Python package graphviz: pip install tinyattn[plot]") from None
        theme, font = self.theme, {"fontname": "Helvetica"}
        ink = {} if theme["ink"] == "black" else {"fontcolor": theme["ink"]}
        top = graphviz.Digraph(
            "tinyattn",
            graph_attr={**font, "rankdir": self.direction, "nodesep": "0.3", "ranksep": "0.4", "fontsize": "13",
                        "bgcolor": theme["paper"], **ink},
            node_attr={**font, "shape": "box", "fontsize": "14", "margin": "0.12,0.06", "height": "0.3", **ink},
            edge_attr={**font, "fontsize": "11", "arrowsize": "0.7", "color": theme["edge"],
                       "fontcolor": theme["shape"]})
        if len(self.drawing.nodes) > MANY:
            top.graph_attr.update(nslimit="1", nslimit1="1", mclimit="0.1", splines="line")
        boxes = {(): top}
        for path, name in self.drawing.boxes.items():
            fill, border = theme["box"]
            boxes[path] = graphviz.Digraph(f"cluster_{len(boxes) - 1}", graph_attr={
                "label": literal(printable(name)), "style": "rounded,filled", "fillcolor": fill, "color": border,
                "labeljust": "l", "labelloc": "t"})
        for n, node in enumerate(self.drawing.nodes):
            boxes[node.path].node(f"n{n}", **self.look(n, node))
        for path in reversed(self.drawing.boxes):
            boxes[path[:-1]].subgraph(boxes[path])
        for n, edge in enumerate(self.drawing.edges):
            self.edge(top, n, edge)
        label = legend(theme, self.kinds if self.key else {}, self.lines if self.key else {}, self.remarks())
        if label:
            top.graph_attr.update(label=label, labelloc="b")
        return top.source

    def remarks(self):
        """What must be said of the whole picture."""
        marks = self.marks
        return [line for line in (
            self.key and self.remark and printable(self.remark, 200),
            marks and f"strong: on a path from {printable(marks.source)} to {printable(marks.target)}",
            self.hidden and f"not drawn: {self.hidden} edges that carry saved values to the backward pass",
            self.key and self.tinted and (
                "a number's tint: " + ("orange above 0, blue below, " if self.coloured else "")
                + "darkest where it is furthest from 0")) if line]

    # -- nodes -------------------------------------------------------------------------------------------------------
    def kind(self, node):
        """The entry of the theme."""
        results = node.kind == "op" and self.results.intersection(
            self.program.instructions[node.members[len(node.members) // 2]].outputs)
        if results and not node.backward:
            return "output"
        return "backward" if node.backward and node.kind in ("op", "scope") else node.kind

    def look(self, n, node):
        kind = self.kind(node)
        self.kinds["scope" if node.kind == "scope" else kind] = True
        fill, border, style = self.theme[kind]
        more = {"peripheries": "2"} if node.kind == "scope" else {}
        if node.kind == "op" and node.backward and self.results.intersection(
                self.program.instructions[node.members[len(node.members) // 2]].outputs):
            more["penwidth"] = "2.5"
        if self.marks and n not in self.marks.nodes:
            fill, border, more["fontcolor"] = self.theme["pale"]
        elif self.marks:
            more["penwidth"] = "3"
        label = self.labels.of(node)
        text, room = self.written(label)
        if room:
            more["width"] = f"{room / 72 + 0.25:.2f}"
        return {"label": f"<{text}>", "style": style, "fillcolor": fill, "color": border, **more}

    def written(self, label):
        """The label as DOT's HTML, and the width in points that it needs; 0 if the layout can tell by itself."""
        rows = [f"<B>{markup(label.title)}</B>"]
        rows += [f'<FONT POINT-SIZE="12">{markup(line)}</FONT>' for line in label.lines]
        lines = [label.title, *label.lines]
        room = max(width(line, 12 if i else 14, not i) for i, line in enumerate(lines))
        # layout programs take wide signs for narrow ones, and browsers may have a wider font than theirs
        unsure = any(width(c, 1) > 0.9 for line in lines for c in line) or max(map(len, lines)) > 14
        if not label.held:
            return "<BR/>".join(rows), room if unsure else 0
        for word, array in label.held:
            rows += [f'<FONT POINT-SIZE="12">{markup(word)}</FONT>'] if word else []
            if array is not None:
                self.tinted = True
                rows.append(block(array, self.coloured))
        body = "".join(f"<TR><TD>{row}</TD></TR>" for row in rows)
        return (f'<TABLE BORDER="0" CELLBORDER="0" CELLSPACING="0" CELLPADDING="1">{body}</TABLE>',
                room if unsure else 0)

    # -- edges -------------------------------------------------------------------------------------------------------
    def edge(self, top, n, edge):
        if self.hidden and self.is_saved(edge):
            return
        source, target = self.drawing.nodes[edge.source], self.drawing.nodes[edge.target]
        ends, more = [f"n{edge.source}", f"n{edge.target}"], {}
        labels = self.edge_labels(edge, source, target)
        if edge.loop:
            labels = ["next step", *labels]
            colour = self.theme["loop"]
            more = {"style": "dashed", "color": colour, "fontcolor": colour, "constraint": "false", "penwidth": "1.5"}
        elif edge.saved:
            labels, more = [], {"style": "dotted", **({"constraint": "false"} if self.is_saved(edge) else {})}
        elif target.backward:
            more = {"color": self.theme["gradient"]} if source.kind in ("op", "scope") else {}
            if source.backward and self.forward:  # drawn upwards, beside the forward pass that it retraces
                ends, more["dir"] = ends[::-1], "back"
        self.lines["loop" if edge.loop else "saved" if edge.saved else "gradient" if target.backward else ""] = True
        if self.marks and n in self.marks.edges:
            more["penwidth"] = "3"
        elif self.marks:
            more.update(color=self.theme["pale"][1], fontcolor=self.theme["pale"][2])
        spaced = [f" {label} " for label in labels]  # room between the line and its label
        top.edge(*ends, **({"label": literal(*spaced)} if labels else {}), **more)

    def edge_labels(self, edge, source, target):
        """The shapes that go along an edge; not that of a leaf, in which it stands already."""
        labels = list(dict.fromkeys(self.says(i, slot) for i, slot in edge.uses))
        leaf = source.kind not in ("op", "scope")
        labels = [label for label in labels if label and not (leaf and "→" not in label)]
        labels = labels if len(labels) < 3 else [f"{labels[0]} … {labels[-1]}"]
        if edge.only:
            return [f"{printable(edge.only)}:", *labels] if labels else [printable(edge.only)]
        if source.steps > target.steps == 1 < len(edge.uses):
            return [f"{len(edge.uses)} × {' '.join(labels)}"]
        return labels

    def says(self, i, slot):
        """The shape that goes along an edge, and what it is stretched to where it is broadcast."""
        step = self.program.instructions[i]
        value = self.program.values[step.inputs[slot]]
        stretched = step.broadcast[slot] if slot < len(step.broadcast) else None
        if stretched is not None:
            return f"{shape_text(value.shape) or '()'} → {shape_text(stretched)}"
        return shape_text(value.shape)
