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
    growth(curves, path="growth.svg")                       time and memory by length, and as which power they grow
    scores_by_group({"GRU": rows}, path="length.svg")       quality by class of samples, such as BLEU by sentence length
    comparison(tables, path="comparison.svg")               what a grid of runs gave: every seed a dot, and the means

They stand in graphs/, formulas/, backprop/, attention/ and training/; each folder's __init__.py says which file does
what. page.py (HTML), plot.py (matplotlib) and text.py (labels) are shared by all.
"""
from .attention.heatmap import grid, heatmap, heatmaps
from .attention.hops import hops
from .attention.lines import lines
from .attention.masks import masks
from .attention.page import attention_page
from .attention.panels import example_panels, panels
from .attention.penalty import penalty
from .attention.positions import positions
from .attention.tinted import tinted
from .backprop.steps import Steps, steps
from .formulas.equations import Equations, equations
from .gallery import gallery
from .graphs.graph import Graph, graph
from .training.comparison import comparison
from .training.curves import curves, scores_by_group
from .training.frames import Frames, frames
from .training.growth import growth
from .training.norms import norms
from .training.reach import reach
from .training.run import Run

__all__ = ["Equations", "Frames", "Graph", "Run", "Steps", "attention_page", "comparison", "curves", "equations",
           "example_panels", "frames", "gallery", "graph", "grid", "growth", "heatmap", "heatmaps", "hops", "lines",
           "masks", "norms", "panels", "penalty", "positions", "reach", "scores_by_group", "steps", "tinted"]
