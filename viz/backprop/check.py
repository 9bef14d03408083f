"""Are the rules right? Each op of a recording, run again on its recorded inputs in float64, against finite differences.

The engine's gradients follow the same rules as the walk, so that both agree says nothing about a rule that is wrong.
"""
import numpy as np

from tinyattn.autograd import fused
from tinyattn.device import to_device
from tinyattn.gradcheck import gradcheck
from tinyattn.tensor import Tensor

from .formula import number

LIMIT = 2000  # elements of an input, above which its op is not compared: a difference is looked for element by element
SMALL = 64    # outputs up to which a wrong slope is that of one output


def check(graph):
    """{number of an op's node: what is wrong with its rules, "" if nothing, None if they could not be compared}."""
    return {n.id: _of(n.op) for n in graph.nodes if n.kind == "op"}


def summary(graph, verdicts):
    """(rows that say how the rules fare, {"wrong": [...], "unchecked": [...]} with the names of their ops)."""
    names = {i: graph.nodes[i].op.name for i in verdicts}
    wrong = {f"! the rule of {names[i]} disagrees with finite differences: {said} ✗": names[i]
             for i, said in verdicts.items() if said}
    unchecked = sorted({names[i] for i, said in verdicts.items() if said is None})
    rows = [[text] for text in wrong]
    if unchecked:
        rows.append([f"Not compared with finite differences: {', '.join(unchecked)}. Whether a rule is right: "
                     "tinyattn check"])
    elif not wrong:
        rows.append(["Each rule agrees with finite differences here: ✓"])
    return rows, {"wrong": sorted(set(wrong.values())), "unchecked": unchecked}


def _of(op):
    if op.name == "embedding" and op.attributes().get("padding") is not None:
        return None  # the padding's row is kept from learning: its gradient is 0, and its slope is not
    slots = [i for i, t in enumerate(op.inputs) if t is not None and t.requires_grad]
    arrays = [to_device(a, "cpu") for a in (*(t.array for t in op.inputs if t is not None), *op.outs)]
    if any(a.size > LIMIT or not _mild(a) for a in arrays):
        return None

    def again(*tensors):
        inputs = [None if t is None else t.cpu() if t.dtype.kind != "f" else Tensor(np.array(t.numpy(), np.float64))
                  for t in op.inputs]
        for slot, t in zip(slots, tensors, strict=True):
            inputs[slot] = t
        one = object.__new__(type(op))
        one.__dict__.update(op.__dict__)
        return one(*inputs)

    try:
        with fused("auto"), np.errstate(all="ignore"):
            varied, small = [op.inputs[i].numpy() for i in slots], sum(a.size for a in op.outs) <= SMALL
            report = gradcheck(again, varied)
            if not report.ok and not report.reason and small:  # now with weights of 1, to name a slope one can follow
                report = gradcheck(again, varied, mode="full")
    except Exception:  # an op of anybody's: what it does on float64 is not known
        return None
    if report.ok:
        return "" if report.compared or report.kinks else None
    if report.reason:
        return None
    return f"{number(report.worst.analytic)}, slope {number(report.worst.numeric)}{_place(op, slots, report.worst)}"


def _place(op, slots, worst):
    """" (at x[0, 2])", where there are several."""
    slot = slots[int(worst.where.rpartition(" ")[2])]
    if worst.index is None or op.inputs[slot].size == 1:
        return ""
    name = op.input_names[0 if op.variadic else slot]
    return f" (at {name}{list(worst.index)})"


def _mild(array):
    """Numbers of which differences can be taken? What is −inf, masked, is left out by gradcheck."""
    return array.dtype.kind != "f" or bool(np.all((np.abs(array) < 1e15) | (array == -np.inf)))  # nan is neither
