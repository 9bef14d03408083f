"""What a captured step looks like before and after each pass of the compiler: for `explain --passes` and `graph --after`."""
import difflib

from ..errors import InputError
from .console import out


def stages_of(name, length=None):
    """[(stage, Captured after it)] of the forward and backward pass of an op, mechanism, module or system on its example."""
    from .. import compiler
    from ..autograd import _set
    from . import names
    from .draw import example
    kind, full, thing = names.find(name)
    tape = compiler.Tape([])
    with names.blame(kind, thing), _set(tape=tape):
        loss, leaves = example(kind, full, thing, scalar=True, length=length)
        loss.backward()
    if not tape.reason:
        for title, leaf in (leaves.named_parameters() if hasattr(leaves, "named_parameters") else leaves.items()):
            if hasattr(leaf, "array"):
                leaf.name = leaf.name or title
        captured = tape.told_all(loss)
    if tape.reason:
        raise InputError(f"{full}: its step cannot be captured: {tape.reason}")
    return list(compiler.stages(captured))


def explain_passes(name, length=None):
    """Print the step as it was captured, what each pass takes away (-) and puts in (+), and the memory of its end."""
    from ..compiler.replay import laid_out
    from ..compiler.show import lines_of, summary
    before = None
    for stage, captured in stages_of(name, length):
        lines = lines_of(captured)
        out(f"{stage}: {summary(captured)}")
        if before is None:
            for line in lines:
                out(f"  {line}")
        else:
            for line in difflib.unified_diff(before, lines, lineterm="", n=0):
                if not line.startswith(("---", "+++", "@@")):
                    out(f"  {line[0]} {line[1:]}")
        out()
        before = lines
    captured, layout = laid_out(captured)
    out(f"in place and by lifetime: {layout.arena:,} bytes of memory in place of {layout.apart:,}; each result at its first byte")
    for line in lines_of(captured, layout):
        out(f"  {line}")


def program_after(name, stage, length=None):
    """The Program of the step after the pass called `stage` ("dead code" or "dead-code")."""
    found = dict(stages_of(name, length))
    wanted = stage.replace("-", " ")
    if wanted not in found:
        raise InputError(f"--after: expected one of {', '.join(s.replace(' ', '-') for s in found)}, got {stage!r}")
    return found[wanted].program
