"""The break-it lab: ops whose rules may be wrong. Find the wrong ones, say so, then mend them.

1. Read the ops below, and check them: `tinyattn check THIS_FILE:Square` compares the rules of one op with finite
   differences, to second order, on the samples that stand beside it. These are kind: some faults do not show there. So
   write samples of your own: other shapes, other sizes and signs, rows that differ, places that are taken twice.
2. Write the names of the wrong ones into FOUND, and run `tinyattn check THIS_FILE`. You are told how many names are
   right and how many are missing, not which.
3. Mend their rules. Once FOUND is complete each op is checked, to second order, on inputs that show the fault.
"""
import inspect

import numpy as np

from ..autograd import Op
from ..errors import InputError
from ..gradcheck import check_function
from ..slopes import Report
from .planted import OPS

HOW_MANY = 4  # wrong ops among them


def plan(seed):
    """[(Planted, number of the wrong rule or None)]: which ops are wrong in the lab of this seed."""
    rng = np.random.default_rng(seed)
    wrong = set(rng.choice(len(OPS), HOW_MANY, replace=False).tolist())
    return [(op, int(rng.integers(len(op.wrong))) if i in wrong else None) for i, op in enumerate(OPS)]


def text(seed=0):
    """The file of the lab: the ops in some order, a few with a wrong rule. Another seed, other faults."""
    planned = plan(seed)
    order = np.random.default_rng([seed, 1]).permutation(len(planned))
    parts = []
    for i in order:
        op, wrong = planned[i]
        parts.append("\n" + op.text.replace("{rule}", op.right if wrong is None else op.wrong[wrong][0]))
    task = inspect.cleandoc(__doc__).replace("THIS_FILE", "FILE")
    head = (f'"""{task}\n\n{HOW_MANY} of the {len(OPS)} ops are wrong.\n"""\nimport numpy as np\n\n'
            "import tinyattn as ta\nfrom tinyattn.autograd import Op\n")
    return f"{head}\nLAB = {seed}\nFOUND = set()   # such as {{'Square', 'Tanh'}}\n{''.join(parts)}"


def is_lab(module):
    """Is this file a lab?"""
    return hasattr(module, "LAB") and hasattr(module, "FOUND")


def grade(module):
    """The Reports on a learner's lab: what was found, and, once that is right, what was mended."""
    seed, found = module.LAB, module.FOUND
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise InputError(f"lab: expected LAB to be the number that was there, got {seed!r}")
    if not isinstance(found, (set, frozenset, list, tuple)) or not all(isinstance(name, str) for name in found):
        raise InputError(f"lab: expected FOUND to be a set of names of ops, got {found!r}")
    known = {op.name for op in OPS}
    unknown = sorted(set(found) - known)
    if unknown:
        raise InputError(f"lab: FOUND names {', '.join(unknown)}; the ops are {', '.join(sorted(known))}")
    planned = plan(seed)
    wrong = {op.name for op, which in planned if which is not None}
    report = Report("lab, found")
    report.compared = len(known)
    hits, false = len(wrong & set(found)), len(set(found) - wrong)
    if set(found) != wrong:
        report.fail(f"{hits} of {len(wrong)} wrong ops found"
                    + (f", and {false} named that {'is' if false == 1 else 'are'} right" if false else ""))
        return [report]
    return [report, *[_mended(module, op) for op, _ in planned]]


def _mended(module, planted):
    """One Report on an op of the learner's file: the first check that fails, or all of them passed."""
    cls = getattr(module, planted.name, None)
    name = f"lab, {planted.name}"
    if not (isinstance(cls, type) and issubclass(cls, Op)):
        report = Report(name)
        report.fail(f"expected the op {planted.name} in the file, found none")
        return report
    reports = []
    for inputs in planted.inputs(np.random.default_rng(0)):
        try:
            reports += check_function(name, lambda *given: cls()(*given), inputs, names=[*cls.input_names], mode="full")
        except Exception as error:  # whatever a learner's rule raises is the learner's to see, as one line
            report = Report(name)
            report.fail(f"{type(error).__name__}: {error}")
            return report
    for report in reports:
        if not report.ok:
            return report
    total = Report(name)
    for report in reports:
        total.compared += report.compared
        if total.worst is None or report.excess > total.excess:
            total.worst, total.excess = report.worst, report.excess
    return total
