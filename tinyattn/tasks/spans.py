"""Terms of several words as BIO tags, and the score for finding them.

Spans are (start, end), end not included; tags are numbers, O 0, B 1, I 2. B begins a term and I goes on; an I that
follows no term begins one.
"""
TAGS = "OBI"  # a tag's number is its place


def tags_of(spans, length):
    """Spans as tag numbers: a list of `length`, 0 for O, 1 for B, 2 for I."""
    tags = [0] * length
    for start, end in spans:
        tags[start:end] = [1] + [2] * (end - start - 1)
    return tags


def spans_of(tags):
    """Tag numbers as spans: ((start, end), ...)."""
    spans, start = [], None
    for i, tag in enumerate([*tags, 0]):
        if start is not None and tag != 2:
            spans.append((start, i))
            start = None
        if tag and start is None:
            start = i
    return tuple(spans)


def span_f1(predicted, gold):
    """(precision, recall, F1) in percent; a term is right if both its ends are. Sums over all sentences (micro).

    predicted, gold: the spans of each sentence. With no term predicted precision is 0, with none to find recall is 0;
    with neither there is nothing to score: None.
    """
    if len(predicted) != len(gold):
        raise ValueError(f"span_f1: expected as many sentences on both sides, got {len(predicted)} and {len(gold)}")
    right = sum(len(set(p) & set(g)) for p, g in zip(predicted, gold))
    found, there = sum(len(set(p)) for p in predicted), sum(len(set(g)) for g in gold)
    if not found + there:
        return None
    return (100 * right / found if found else 0.0, 100 * right / there if there else 0.0,
            200 * right / (found + there))
