"""Pictures of computations: graphs, alignments, learning curves. `viz` reads what `tinyattn` made, never the reverse.

    graph(loss).save("graph.svg")                           what was computed, from what; .html: a page to move about in
    equations(loss).save("equations.tex")                   forward and backward pass as formulas: text, LaTeX, NumPy
    steps(loss).save("steps.html")                          backpropagation step by step, in the right and a wrong order
    heatmap(weights, target, source, path="map.svg")        which source token each target token attended to
    heatmaps([(weights, target, source, "head 1"), ...])    several of them side by side
    lines(weights, left, right, path="lines.svg")           the same as lines between two sentences
    tinted([(words, weights)], path="text.svg")             text tinted by weight; a document with its sentences
    hops(weights, sentences, question, path="hops.svg")     what each hop looked at in a story
    attention_page(prediction, "look.html")                 each layer, head, hop, by pointing; of a `capture()` too
    penalty(A, "penalty.svg", tokens=words)                 the rows A of structured self-attention, and A A^T - I
    positions("sinusoid", path="positions.svg")             how position gets into attention, kind by kind
    masks(path="masks.svg")                                 what each mask allows, True = may be attended to
    panels(seen, path="panels.svg")                         scores, mask, masked scores, weights of a `capture()`
    gallery("folder")                                       a page for every attention mechanism, and an index
    curves({"GRU": log}, path="curves.svg")                 training and validation loss by step
    norms(log, path="norms.svg")                            norm of the gradient by layer and step
    frames(log).save("frames.html")                         attention over training, of a run made with --watch
    Run("runs/first").save("run.html")                      all of a run on one page; it shows itself in a notebook
    reach(curves, path="forget.svg")                        how far back a state reaches, RNN against attention
    scores_by_group({"GRU": rows}, path="length.svg")       quality by class of samples, such as BLEU by sentence length
    comparison(tables, path="comparison.svg")               what a grid of runs gave: every seed a dot, and the means
"""
from .attention_page import attention_page
from .comparison import comparison
from .curves import curves, scores_by_group
from .equations import Equations, equations
from .frames import Frames, frames
from .gallery import gallery
from .graph import Graph, graph
from .heatmap import grid, heatmap, heatmaps
from .hops import hops
from .lines import lines
from .masks import masks
from .norms import norms
from .panels import example_panels, panels
from .penalty import penalty
from .positions import positions
from .reach import reach
from .run import Run
from .steps import Steps, steps
from .tinted import tinted

__all__ = ["Equations", "Frames", "Graph", "Run", "Steps", "attention_page", "comparison", "curves", "equations",
           "example_panels", "frames", "gallery", "graph", "grid", "heatmap", "heatmaps", "hops", "lines", "masks",
           "norms", "panels", "penalty", "positions", "reach", "scores_by_group", "steps", "tinted"]
