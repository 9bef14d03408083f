"""How models were trained.

    curves.py     losses of several runs with their spread; scores by class; series.py points, means, bands
    norms.py      norms of the gradient by layer
    frames.py     what was looked at while it learnt; frames_page.py the page that plays them
    runs.py       runs below a folder, by group  run.py         one run, all of it on a page
    comparison.py what a grid of runs gave       reach.py       how far back a state reaches
    growth.py     time and memory by length
"""
