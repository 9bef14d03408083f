"""A captured step as text: its calls before and after each pass, and the memory of its arrays.

    %5 (32, 128) = affine(input0, a.weight, a.bias)  # encoder
    %18 (32, 128) = fused(%5, %7)  in place of %7  # encoder
        t0 = a0 + a1
        t1 = tanh(t0)

After # stands the scope. With a Layout, a result that has memory of its own says `at` which byte of the arena it begins.
"""
from .. import device
from .fusion import Fused


def names_of(captured):
    """{value: what it is called}: the name of a parameter, "input 0", a small constant's number, or %12."""
    found = {v.id: v.name or f"%{v.id}" for v in captured.program.values}
    found.update({v: f"input{i}" for i, v in enumerate(captured.inputs)})
    for v, array in captured.arrays.items():
        if v not in captured.inputs and array.size == 1 and not captured.program.values[v].name:
            found[v] = f"{device.to_device(array, 'cpu').reshape(-1)[0]:g}"
    return found


def lines_of(captured, layout=None):
    """[text], a line a call; with a Layout also where each result stands."""
    names, lines = names_of(captured), []
    for call in captured.program.instructions:
        left = ", ".join(f"{names[v]} {captured.program.values[v].shape}" for v in call.outputs)
        settings = [f"{k}={v}" for k, v in call.attributes.items() if k != "of"]
        right = ", ".join([*("-" if v is None else names[v] for v in call.inputs), *settings])
        where = ""
        if isinstance(call, Fused) and call.replaces:
            where = "  in place of " + ", ".join(names[call.inputs[j]] for j in call.replaces.values())
        elif layout is not None:
            places = [f"{layout.of_value[v].place}" for v in call.outputs if v in layout.of_value]
            where = f"  at {', '.join(places)}" if places else "  a view"
        lines.append(f"{left} = {call.op}({right}){where}" + (f"  # {call.scope}" if call.scope else ""))
        if isinstance(call, Fused):
            lines += [f"    {name} = {expression}" for name, expression in call.steps]
    return lines


def summary(captured):
    """One line: how many calls, and how many bytes they write."""
    values = captured.program.values
    size = sum(bytes_of(values[v]) for c in captured.program.instructions for v in c.outputs if v not in captured.aliases)
    return f"{len(captured.program)} calls, {size:,} bytes written"


def bytes_of(value):
    total = {"float32": 4, "int64": 8, "float64": 8, "bool": 1}.get(value.dtype, 8)
    for n in value.shape:
        total *= n
    return total
