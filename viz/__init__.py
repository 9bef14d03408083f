"""Pictures of computations: graphs, alignments, learning curves. `viz` reads what `tinyattn` made, never the reverse.

    graph(loss).save("graph.svg")                           what was computed, from what
    heatmap(weights, target, source, path="map.svg")        which source token each target token attended to
    heatmaps([(weights, target, source, "head 1"), ...])    several of them side by side
    panels(seen, path="panels.svg")                         scores, mask, masked scores, weights of a `capture()`
    gallery("folder")                                       a page for every attention mechanism, and an index
    curves({"GRU": log}, path="curves.svg")                 training and validation loss by step
    reach(curves, path="forget.svg")                        how far back a state reaches, RNN against attention
    scores_by_group({"GRU": rows}, path="length.svg")       quality by class of samples, such as BLEU by sentence length
    comparison(tables, path="comparison.svg")               what a grid of runs gave: every seed a dot, and the means
"""
from .comparison import comparison
from .curves import curves, scores_by_group
from .gallery import gallery
from .graph import Graph, graph
from .heatmap import heatmap, heatmaps
from .panels import panels
from .reach import reach

__all__ = ["Graph", "comparison", "curves", "gallery", "graph", "heatmap", "heatmaps", "panels", "reach",
           "scores_by_group"]
