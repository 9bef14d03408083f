"""The pictures that a training leaves in its folder."""
from pathlib import Path

from ..checkpoint import read_log
from ..errors import InputError
from .console import note


def draw_all(folder, label, system, figures, others):
    """Draw what can be drawn into the folder of a run; return the names of the files.

    figures    what `system.evaluate` gave
    others     {label: (folder, figures)} of the runs to compare with
    A picture that cannot be drawn here (no matplotlib, say) costs one line on stderr.
    """
    folder, drawn, groups = Path(folder), [], system.groups
    wanted = [("curve.svg", lambda path: _curve(path, folder, label, others)),
              ("alignment.svg" if system.name == "translate" else "attention.svg", lambda path: _looks(path, system)),
              ("graph.svg", lambda path: _graph(path, system))]
    if groups is not None and figures.get(groups.key):
        wanted.insert(2, (groups.picture, lambda path: _groups(path, groups, label, figures, others)))
    for name, draw in wanted:
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


def _looks(path, system):
    maps = maps_of(system.examples())
    if not maps:
        return None
    from viz import heatmaps
    heatmaps(maps, path, title="attention: where each row looked, across the columns")
    return path


def maps_of(predictions):
    """What predictions looked at, as maps for `viz.heatmaps`."""
    return [look.with_rest().as_map() for prediction in predictions for look in prediction.looks]


def _groups(path, groups, label, figures, others):
    from viz import scores_by_group
    rows = {k: them.get(groups.key) for k, (_, them) in others.items()}
    scores_by_group({label: figures[groups.key], **{k: v for k, v in rows.items() if v}}, path, of=groups.of,
                    score=groups.score)
    return path


def _graph(path, system):
    from viz import graph
    return graph(system.example_graph(), names=system.model, max_nodes=60).save(path)
