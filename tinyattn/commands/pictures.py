"""The pictures that a training leaves in its folder."""
from pathlib import Path

from ..checkpoint import read_log
from ..errors import InputError
from .console import note


def draw_all(folder, label, system, figures, others):
    """Draw what can be drawn into the folder of a run; return the names of the files.

    figures    what `system.evaluate` gave
    others     {label: (folder, by_length rows)} of the runs to compare with
    A picture that cannot be drawn here (no matplotlib, say) costs one line on stderr.
    """
    folder, drawn = Path(folder), []
    for name, draw in (("curve.svg", lambda path: _curve(path, folder, label, others)),
                       ("alignment.svg", lambda path: _alignment(path, system)),
                       ("bleu-by-length.svg", lambda path: _by_length(path, label, figures, others)),
                       ("graph.svg", lambda path: _graph(path, system))):
        try:
            path = draw(folder / name)
        except InputError as error:
            note(f"no picture {name}: {error}")
            continue
        if path is not None:
            drawn.append(Path(path).name)
    return drawn


def _curve(path, folder, label, others):
    from viz import curves
    curves({label: read_log(folder), **{k: read_log(where) for k, (where, _) in others.items()}}, path)
    return path


def _alignment(path, system):
    maps = [map_of(p) for p in system.examples() if p.weights is not None] if hasattr(system, "examples") else []
    if not maps:
        return None
    from viz import heatmaps
    heatmaps(maps, path, title="attention: which source word (across) each target word (down) looked at")
    return path


def map_of(prediction):
    """(weights, rows, columns) of a Prediction for a heatmap; the last row and column are the end of the sentence."""
    t, s = prediction.weights.shape
    rows = [*prediction.target, *["</s>"] * (t - len(prediction.target))]
    return prediction.weights, rows, [*prediction.source, *["</s>"] * (s - len(prediction.source))]


def _by_length(path, label, figures, others):
    if not figures.get("by_length"):
        return None
    from viz import bleu_by_length
    bleu_by_length({label: figures["by_length"], **{k: rows for k, (_, rows) in others.items() if rows}}, path)
    return path


def _graph(path, system):
    from viz import graph
    return graph(system.example_graph(), names=system.model, max_nodes=60).save(path)
