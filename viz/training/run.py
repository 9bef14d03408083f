"""A trained run that shows itself: `viz.Run("runs/first")` in a notebook, `.save("run.html")` for everybody else.

What is shown is read from the folder: config.json, log.jsonl, metrics.json; what it looks at and its graph are made
anew from its checkpoint. Reading a run executes nothing that lies in the folder.
"""
import json
import os
from html import escape
from pathlib import Path

from tinyattn import checkpoint, systems
from tinyattn.config import Config
from tinyattn.errors import InputError

from ..attention.heatmap import heatmaps
from ..graphs import render
from ..graphs.graph import graph
from ..page import inline, page, write
from ..plot import save_bytes, shown
from ..text import printable
from .curves import curves, scores_by_group
from .frames import frames
from .norms import norms

STYLE = """
.tinyattn-run { display: flex; flex-wrap: wrap; gap: 0 2.5rem; align-items: flex-start; }
.tinyattn-run table { font-size: 16px; } .tinyattn-run td:last-child { font-variant-numeric: tabular-nums; }
.tinyattn-run th { font-weight: 600; border-bottom: 1px solid #ddd; }
.tinyattn-run svg { max-width: 100%; height: auto; } .tinyattn-run figure { margin: 0.5rem 0; max-width: 100%; }
.tinyattn-run section { max-width: 100%; } .tinyattn-run h2 { margin: 1rem 0 0.3rem; }
"""
_QUIET = ("seed", "watch")  # settings in which runs of one group may differ
_NOT_SHOWN = ("system", "options", "digests")


class Run:
    """The folder of a run. `config` Config, `log` its records, `metrics` those of metrics.json or None.

    attention   "my.py:name", to have a mechanism of somebody's own file run; without it, a run that uses one shows
                neither what it looks at nor its graph
    Raises InputError if the folder is none of a run.
    """

    def __init__(self, folder, attention=None):
        self.folder, self.attention = Path(folder), attention
        try:
            self.config = Config.from_json(_json(self.folder / "config.json", True))
        except InputError as problem:
            here = str(self.folder)
            raise problem if here in str(problem) else InputError(f"{here}: {problem}") from None
        self.log = checkpoint.read_log(folder)
        self.metrics = _json(self.folder / "metrics.json", False)
        self._system = None

    def __repr__(self):
        return f"Run({str(self.folder)!r}: {self.title}, {self.step} steps)"

    def records(self):
        return self.log

    @property
    def step(self):
        """The last step in the log."""
        return max((record["step"] for record in self.log), default=0)

    @property
    def title(self):
        attention = self.config.options.get("attention")
        name = "" if attention is None else f", attention {_last(attention)}"
        return f"{self.config.system}{name}, seed {self.config.seed}"

    def kind(self):
        """{setting: value} of all that runs of one group have in common: all but the seed and what is only watched."""
        config = self.config.to_json()
        files = [f"{_last(path)} {str(digest)[:6]}" for path, digest in config["digests"].items()]
        rest = {k: v for k, v in config.items() if k not in (*_NOT_SHOWN, *_QUIET)}
        options = {k: _last(v) if k == "attention" else v for k, v in config["options"].items()}
        return {"system": config["system"], **options, **rest, "data": ", ".join(files) or "built in"}

    def remarks(self):
        """Lines on what is odd about the folder: lines that are no records, a training that has not ended."""
        found = []
        try:
            lines = (self.folder / "log.jsonl").read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return ["has no log.jsonl that can be read"]
        damaged = sum(bool(line.strip()) for line in lines) - len(self.log)
        if damaged:
            found.append(f"left out {damaged} line{'s' * (damaged > 1)} of log.jsonl, cut off or no record")
        if not self.log:
            found.append("no step has been logged yet")
        elif self.metrics is None:
            goal = f" of {self.config.steps:,}" if self.config.steps else ""
            found.append(f"unfinished (no metrics.json), at step {self.step:,}{goal}")
        return found

    # -- its pictures ------------------------------------------------------------------------------------------------
    def curve(self, path=None):
        """Training and validation loss. Returns the Figure."""
        return curves({"": self.log}, path)

    def norms(self, path=None):
        """Gradient norms by layer. Returns the Figure."""
        return norms(self.log, path)

    def frames(self):
        """Attention over training, as Frames."""
        return frames(self.log, self.title)

    def looks(self, number=2, path=None):
        """What the trained model looks at for a few test samples. Returns the Figure."""
        maps = [look.with_rest().as_map() for found in self._ready().examples(number) for look in found.looks]
        if not maps:
            raise InputError("this system has no attention to look at")
        return heatmaps(maps[:8], path)

    def graph(self):
        """The computation of its loss on one small sample, as a Graph."""
        return graph(self._ready().example_graph(), names=self.system().model, max_nodes=60)

    def system(self):
        """The trained system, restored from the checkpoint when it is first asked for."""
        if self._system is None:
            self._system, _ = checkpoint.restore(self.folder, self.attention)
        return self._system

    def _ready(self):
        system = self.system()
        if system.corpus is None:
            system.attach(**self.config.sources(type(system)))
        return system

    # -- as a page ---------------------------------------------------------------------------------------------------
    def html(self):
        """A report of the run as one page, as text: figures, curve, gradient norms, what it looks at, graph, settings.
        What cannot be drawn here is a line with the reason."""
        body = f"<h1>{escape(printable(self.title, 200))}</h1>\n" + self._body(_keyed, whole=True)
        return page(f"{self.title}: a run of tinyattn", body, STYLE)

    def save(self, path):
        """Write the report to `path`, a name that ends in .html."""
        if Path(path).suffix.lower() != ".html":
            raise InputError(f"run: expected a file name that ends in .html, got {Path(path).name!r}")
        return write(path, self.html(), "run")

    def _repr_html_(self):
        return (f"<style>{STYLE}</style>\n<h3>{escape(printable(self.title, 200))}</h3>\n"
                + self._body(lambda name, svg: shown(svg), whole=False))

    def _body(self, unique, whole):
        """The parts of the page; unique(name, svg) makes the ids of a picture those of no other in the page."""
        def drawn(name, draw):
            try:
                return f"<figure>{unique(name, draw())}</figure>"
            except (InputError, render.Unavailable) as problem:
                return f'<p class="pale">{escape(printable(self._without_folders(str(problem)), 300))}</p>'

        remarks = "".join(f'<p class="pale">{escape(printable(line, 300))}</p>' for line in self.remarks())
        head = (f'<div class="tinyattn-run"><section><h2>Figures</h2>{self._figures()}{remarks}</section>'
                f'<section><h2>Loss</h2>{drawn("curve", lambda: _svg(self.curve()))}</section></div>')
        parts = [("What it looks at", "looks", lambda: _svg(self.looks()))]
        if whole:
            parts += [("Gradient by layer", "norms", lambda: _svg(self.norms())),
                      ("Attention over training", "frames", lambda: _svg(self.frames().figure())),
                      ("The computation of its loss", "graph", lambda: self.graph().svg()), *self._groups()]
        body = "".join(f'<div class="tinyattn-run"><section><h2>{title}</h2>{drawn(name, draw)}</section></div>\n'
                       for title, name, draw in parts if name != "frames" or any("looks" in r for r in self.log))
        opened = " open" if whole else ""
        return f"{head}\n{body}<details{opened}><summary>Settings</summary>{self._settings()}</details>\n"

    def _without_folders(self, text):
        """`text` without the folders of this machine, which are nobody else's business."""
        config = self.config
        paths = [self.attention, config.options.get("attention"), config.links, *config.data]
        for path in (self.folder, *(p for p in paths if isinstance(p, str) and p)):
            for form in (str(Path(path).absolute()), str(path)):
                text = text.replace(form, _last(form))
            text = text.replace(f"{Path(path).absolute().parent}{os.sep}", "")
        return text

    def _figures(self):
        metrics = self.metrics or {}
        rows = [(title, metrics.get(key)) for key, title in
                (("steps", "steps"), ("seconds", "seconds of training"), ("parameters", "trained numbers"),
                 ("best_step", "best step"), ("validation_loss", "validation loss at that step"))]
        test = metrics.get("test")
        if isinstance(test, dict):
            system = systems.find(self.config.system)
            rows += [(f"test {system.counts}", test.get(system.counts))]
            rows += [(f"test {figure.title}", _rounded(test.get(key), figure.digits))
                     for key, figure in system.figures.items()]
        return _table([(name, _shown(value)) for name, value in rows if value is not None]) or "<p>none yet</p>"

    def _groups(self):
        """The scores by class of test samples, where the system has such."""
        groups = systems.find(self.config.system).groups
        test = (self.metrics or {}).get("test")
        rows = test.get(groups.key) if groups is not None and isinstance(test, dict) else None
        if not rows:
            return []

        def draw():
            return _svg(scores_by_group({self.title: rows}, of=groups.of, score=groups.score))
        return [(f"{escape(groups.score)} by {escape(groups.of)}", "groups", draw)]

    def _settings(self):
        config = self.config.to_json()
        rest = {k: v for k, v in config.items() if k not in _NOT_SHOWN and v not in (None, [])}
        shown = [{k: _last(v) if k == "links" or ".py:" in str(v) else v for k, v in table.items()}  # no folders
                 for table in (config["options"], rest)]
        tables = [_table([(name.replace("_", " "), _shown(value)) for name, value in table.items()])
                  for table in shown]
        return f'<div class="tinyattn-run">{"".join(f"<section>{table}</section>" for table in tables)}</div>'


def _keyed(name, svg):
    return inline(svg, name)


def _svg(fig):
    return save_bytes(fig, "svg").decode("utf-8")


def _table(rows):
    lines = "".join(f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in rows)
    return f"<table>{lines}</table>" if lines else ""


def _rounded(value, digits):
    return f"{value:.{digits}f}" if isinstance(value, (int, float)) else None


def _shown(value):
    if isinstance(value, list):
        value = ", ".join(_last(one) for one in value)
    text = f"{value:,}" if type(value) is int else f"{value:.5g}" if isinstance(value, float) else str(value)
    return printable(text, 200)


def _last(path):
    """The name of a file without its folders, which are of no interest to others."""
    return str(path).replace("\\", "/").rsplit("/", 1)[-1]


def _json(path, needed):
    """The table in a JSON file. InputError if there is none in it; None for a missing file that is not needed."""
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        if not needed:
            return None
        raise InputError(f"{path.parent}: expected the folder of a run, found no {path.name} in it") from None
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        raise InputError(f"{path}: expected JSON as tinyattn writes it")
    return given
