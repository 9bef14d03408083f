"""`tinyattn ptx`: the CUDA kernels compiled for cards that are not there, and what they take of one."""
import difflib

import click

from .console import columns, note, out, out_json, shortened

HEAD = ("kernel", "card", "lines", "registers", "stack", "stores", "loads", "shared", "threads", "arguments")


@click.command("ptx")
@click.argument("names", metavar="[NAME...]", nargs=-1)
@click.option("--capability", metavar="8.0,9.0", default="8.0,9.0", show_default=True, help="compute capabilities of cards")
@click.option("--spills", is_flag=True, help="only the kernels that spill registers or have a stack frame, and why")
@click.option("--text", is_flag=True, help="print the PTX text")
@click.option("--json", "as_json", is_flag=True, help="print JSON")
def ptx_command(names, capability, spills, text, as_json):
    """Compile CUDA kernels by NVIDIA's compiler and assembler, which need no card, and say what each takes of one.

    NAME is a kernel, as softmax.softmax_grad, or a file of them, as softmax; all by default. A row for each of a kernel's
    argument types and each card: lines of PTX, registers a thread, bytes of a thread's stack frame, of registers spilled to
    memory (stores, loads), bytes of shared memory a block, and the most threads a block that the registers allow. The exit
    code is 1 if a kernel does not compile, or spills and does not say why.
    """
    from ..cuda import ptx
    if ptx.missing():
        raise RuntimeError(ptx.missing())
    rows = ptx.compiled(_names(names), _capabilities(capability))
    found = [row for row in rows if not spills or row.usage and (row.usage.stack or row.usage.spill_stores or row.usage.spill_loads)]
    if as_json:
        out_json([_facts(row, text) for row in found])
    elif text:
        for row in found:
            out(f"// {row.kernel} ({row.arguments}) for {_card(row)}\n{row.text}")
    else:
        _table(found)
    faults = [row for row in rows if row.fault]
    for row in faults:
        note(f"{_card(row)}: {row.fault}" if not row.text else f"{_card(row)}: {row.kernel} ({row.arguments}): {row.fault}")
    if not as_json and not text:
        out(f"{len({row.kernel for row in rows})} kernels, {len(rows)} times compiled, {len(faults)} not as they should be")
    return 1 if faults else 0


def _names(names):
    """The kernels that NAMEs mean: each is one, or all of a file."""
    from ..cuda.ptx import kernels
    from ..errors import InputError
    known, wanted = list(kernels()), []
    for name in names:
        found = [k for k in known if name in (k, k.partition(".")[0])]
        if not found:
            near = difflib.get_close_matches(name, [*known, *{k.partition(".")[0] for k in known}], 3)
            raise InputError(f"{name}: there is no such kernel" + (f"; did you mean {' or '.join(near)}?" if near else
                             "; `tinyattn ptx` lists them all"))
        wanted += found
    return list(dict.fromkeys(wanted)) if names else known


def _capabilities(text):
    """"8.0,9.0" as [(8, 0), (9, 0)]."""
    from ..errors import InputError
    try:
        return [(int(major), int(minor)) for major, minor in (part.strip().split(".") for part in text.split(","))]
    except ValueError:
        raise InputError(f"--capability: expected such as 8.0,9.0, got {text!r}") from None


def _card(row):
    return f"sm_{row.capability[0]}{row.capability[1]}"


def _facts(row, text):
    from ..cuda import CudaKernel
    kernel = CudaKernel.registry[row.kernel]
    facts = {"kernel": row.kernel, "arguments": row.arguments, "capability": _card(row), "lines": row.lines,
             **(row.usage._asdict() if row.usage else {}), "reason": kernel.spills, "fault": row.fault, "about": kernel.__doc__}
    return {**facts, "text": row.text} if text else facts


def _table(found):
    """Rows under a head; below a kernel that may spill, why."""
    from ..cuda import CudaKernel
    rows = [(r.kernel, _card(r), str(r.lines), *(map(str, r.usage) if r.usage else "-" * 6), r.arguments) for r in found]
    lines, told = columns(shortened([HEAD, *rows], len(HEAD) - 1)), set()
    out(lines[0])
    for row, line in zip(found, lines[1:], strict=True):
        out(line)
        reason = CudaKernel.registry[row.kernel].spills
        if reason and row.kernel not in told:
            told.add(row.kernel)
            out(f"    may spill: {reason}")
