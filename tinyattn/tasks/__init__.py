"""One file a task: a built-in generator of data, readers of the real file formats, and the metrics.

Nothing here knows of tensors or models: a task hands out plain lists of words, numbers and NumPy arrays.
"""
