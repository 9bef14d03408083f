"""Attention over training: what one sample's map looked like before the first step, and at each validation.

    frames("runs/first").save("frames.svg")       small multiples, first to last
    frames("runs/first").save("frames.html")      one map that changes: play, a slider, keys

The log has them if the run was trained with `--watch`.
"""
import math
import textwrap
from html import escape
from pathlib import Path

from tinyattn.errors import InputError

from ..attention.heatmap import heatmaps
from ..attention.maps import are_sentences
from ..page import embedded, page, write
from ..plot import KINDS
from ..text import printable, width
from .frames_page import SCRIPT, STYLE
from .series import number, points, records_of, step_of


def frames(run, title=""):
    """The Frames of a run: records of its log that have "looks", a `History`, a `viz.Run` or its folder.

    Raises InputError if no record has any.
    """
    return Frames(records_of(run, "frames"), title)


class Frames:
    """Maps by step. `steps` are the steps that have them; `looks[i]` are those of step i, dictionaries with "title",
    "rows" (R names), "columns" (C names) and "weights" (R, C); `losses` {step: validation loss}."""

    def __init__(self, records, title=""):
        found = {step_of(record, "frames"): _sound(record["looks"]) for record in records
                 if isinstance(record.get("looks"), list) and "step" in record}
        found = {step: looks for step, looks in sorted(found.items()) if any(looks)}
        if not found:
            raise InputError("frames: expected records of what was looked at, found none; `tinyattn train --watch` "
                             "notes it at each validation")
        self.steps, self.looks, self.title = list(found), list(found.values()), title
        self.losses = dict(points("a run", records, "validation_loss", "frames"))

    def __repr__(self):
        return f"Frames({len(self.steps)} steps, {max(map(len, self.looks))} maps each)"

    def figure(self, look=0, count=8, path=None):
        """Small multiples: the map number `look` of up to `count` steps, the first and the last among them. Returns the
        Figure; path also writes it as .svg, .pdf or .png."""
        if not isinstance(count, int) or count < 2:
            raise InputError(f"frames: expected at least 2 frames, the first and the last, got {count}")
        if not isinstance(look, int):
            raise InputError(f"frames: expected the number of a map, counted from 0, got {look!r}")
        have = [i for i, looks in enumerate(self.looks) if 0 <= look < len(looks) and looks[look]]
        if not have:
            raise InputError(f"frames: expected the number of a map, 1 to {max(map(len, self.looks))}, got {look + 1}")
        if len(have) > count:
            have = [have[round(k * (len(have) - 1) / (count - 1))] for k in range(count)]
        maps = [_turned(self.looks[i][look]) for i in have]
        titles = [one["title"] for one in maps]
        same = len(set(titles)) == 1
        panel = max(_inches(one) for one in maps)
        room = max(16, math.floor(min(_inches(one) for one in maps) * 72 / 8.5))
        between = ", " if room > 70 else "\n"
        heads = [self.said(i).replace(", ", between) + ("" if same else f"\n{titles[k]}") for k, i in enumerate(have)]
        maps = [(one["weights"], one["rows"], one["columns"], _folded(head, room))
                for one, head in zip(maps, heads, strict=True)]
        above = [self.title, titles[0] if same else ""]
        most = max(1, min(4, math.floor(15 / panel)))
        across = -(-len(maps) // -(-len(maps) // most))                    # rows are filled evenly
        return heatmaps(maps, path, ": ".join(filter(None, above)), across=across)

    def said(self, i):
        """Which step the frame i shows, and its validation loss."""
        loss = self.losses.get(self.steps[i])
        before = ", before training" if self.steps[i] == 0 else ""
        after = "" if loss is None else f", validation loss {loss:{'.3f' if loss < 1000 else '.3g'}}"
        return f"step {self.steps[i]:,}{before}{after}"

    def html(self):
        """The page with one map that moves, as text: one HTML file that needs nothing else."""
        data = {"steps": self.steps, "said": [self.said(i) for i in range(len(self.steps))],
                "losses": [[step, loss] for step, loss in sorted(self.losses.items())],
                "frames": [[one and _turned({**one, "rows": [printable(t, 60) for t in one["rows"]],
                                             "columns": [printable(t, 60) for t in one["columns"]]}) for one in looks]
                           for looks in self.looks]}
        head = self.title or "What it looks at while it learns"
        return page(head, _body(head, len(self.steps)) + embedded("data", data), STYLE, SCRIPT)

    def save(self, path, look=0, count=8):
        """Write `path`, by its suffix: .html, the page with all maps, or .svg, .pdf, .png, the `figure`."""
        kind = Path(path).suffix[1:].lower()
        if kind == "html":
            return write(path, self.html(), "frames")
        if kind not in KINDS:
            raise InputError(f"frames: expected a file name that ends in .html, .svg, .pdf or .png, got "
                             f"{Path(path).name!r}")
        self.figure(look, count, path)
        return path

    def _repr_html_(self):
        """In a notebook the page stands in a frame of its own, so that its script and ids meet no others."""
        return (f'<iframe title="attention over training" sandbox="allow-scripts" width="100%" height="640" '
                f'style="border:1px solid #ddd" srcdoc="{escape(self.html())}"></iframe>')


def _sound(looks):
    """The looks of a record, None for one that is no map of finite numbers with a name for each row and column."""
    return [_sound_one(one) if isinstance(one, dict) else None for one in looks]


def _sound_one(one):
    rows, columns, weights = one.get("rows"), one.get("columns"), one.get("weights")
    lists = all(isinstance(part, list) and part for part in (rows, columns, weights))
    if not lists or len(weights) != len(rows):
        return None
    if not all(isinstance(row, list) and len(row) == len(columns) and all(number(w) is not None for w in row)
               for row in weights):
        return None
    place = one.get("place")
    return {"title": _title(str(one.get("title", "")), place if isinstance(place, dict) else {}),
            "rows": list(map(str, rows)), "columns": list(map(str, columns)),
            "weights": [list(map(number, row)) for row in weights]}


def _title(title, place):
    """The title, with its place (head, layer, hop) where it does not say that itself."""
    where = ", ".join(f"{key} {value}" for key, value in place.items())
    return title if not place or all(str(key) in title for key in place) else ", ".join(filter(None, [title, where]))


def _turned(one):
    """A map of which the columns are sentences with those as rows, "turned" then being true; others as they are."""
    if not are_sentences(one["columns"], one["rows"]):
        return one
    return {**one, "rows": one["columns"], "columns": one["rows"], "turned": True,
            "weights": [list(row) for row in zip(*one["weights"], strict=True)]}


def _inches(one):
    """How wide a map will be, as `heatmaps` draws it."""
    across = max(len(one["columns"]), len(one["rows"]))
    cell = 0.42 if across <= 12 else 0.34 if across <= 25 else 0.27
    left = max(width(printable(token, 48 if " " in token else 24), 12) for token in one["rows"]) / 72
    return len(one["columns"]) * cell + left


def _folded(text, room):
    return "\n".join(part for line in text.split("\n") for part in textwrap.wrap(line, room, max_lines=2) or [""])


def _body(head, count):
    buttons = [("first", "First", "Home"), ("previous", "◀ Previous", "←"), ("play", "▶ Play", "Space"),
               ("next", "Next ▶", "→"), ("last", "Last", "End")]
    row = "".join(f'<button type="button" id="{name}" title="key: {key}">{text}</button>\n'
                  for name, text, key in buttons)
    return f"""<h1>{escape(printable(head, 200))}</h1>
<p class="controls">{row}<label>frame <input type="range" id="slider" min="0" max="{count - 1}" value="0"></label>
<label id="choice">map <select id="look"></select></label></p>
<p id="said" role="status" aria-live="polite"></p>
<p id="title"></p>
<div id="map"></div>
<p id="cell" class="pale">Point at a cell to read its weight.</p>
<figure id="curve"></figure>
<p class="pale">Keys: ← → one frame, Home End first and last, Space play. Colour: white 0, dark blue 1.</p>
"""
