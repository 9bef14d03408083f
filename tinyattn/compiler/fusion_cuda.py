"""Fusion on a card: the chains of `fusion.py` become kernels, one thread an element.

    a = x + b                    e = cuda.grid(1)                   element e of the results
    y = tanh(a)         ->       r, j = row_of(e, n), e - r * n     b is a row: it is read at j, a column at r
    z = y * g                    t0 = plus(x[e], b[j])
                                 t1 = tanh(t0)
                                 z[e] = times(t1, g[e])

Nothing is stretched in memory. Each operation rounds as it does in a kernel of its own: a card's compiler joins a product and a
sum into one instruction, which rounds once, wherever it sees both. Within one operation (1 - y * y) it does so in either
kernel; across two of them it would be other bits. `plus`, `minus` and `times` are the instructions that are never joined.
"""
import ast
import operator

from numba import types
from numba.extending import intrinsic

from ..cuda import SIMULATED, cuda_function
from ..cuda import exp as cuda_exp
from ..cuda.arrays import quotient
from ..cuda.kernel import Later

NAMES = {"np.log": "log", "np.sqrt": "sqrt"}  # how an expression calls them, and the card's
HEAD = """from tinyattn.compiler.fusion_cuda import minus, plus, row_of, sigmoid, times  # noqa: F401
from tinyattn.cuda import cuda, cuda_kernel, exp, log, sqrt, tanh  # noqa: F401
"""


def _rounded(name):
    """x + y or x * y, by the instruction that rounds and is never joined with another."""
    def rounded(typing, x, y):
        def code(context, builder, signature, values):
            from llvmlite import ir
            kind = context.get_value_type(x)
            function = ir.FunctionType(kind, (kind, kind))
            letter = "f" if x == types.float32 else "d"
            return builder.call(builder.module.declare_intrinsic(f"llvm.nvvm.{name}.rn.{letter}", (), function), values)
        return x(x, y), code
    return intrinsic(rounded)


plus = Later(lambda: operator.add if SIMULATED else _rounded("add"))
times = Later(lambda: operator.mul if SIMULATED else _rounded("mul"))


@cuda_function
def minus(x, y):
    return plus(x, -y)


@cuda_function
def sigmoid(x):
    """As the op's own kernel."""
    one = type(x)(1)
    return one / (one + cuda_exp(-x))


@cuda_function
def row_of(e, n):
    return quotient(e, n)


class _Card(ast.NodeTransformer):
    """An expression of the CPU's loop as the card's: its own names of functions, numbers of the chain's type, sums and the last
    product rounded."""

    def __init__(self, root):
        self.root = root

    def visit_Constant(self, node):
        return ast.Call(ast.Name("number"), [node], [])

    def visit_Attribute(self, node):
        return ast.Name(NAMES[ast.unparse(node)])

    def visit_BinOp(self, node):
        products = any(isinstance(side, ast.BinOp) and isinstance(side.op, ast.Mult) for side in (node.left, node.right))
        name = {ast.Add: "plus", ast.Sub: "minus"}.get(type(node.op)) if not products else None
        name = "times" if node is self.root and isinstance(node.op, ast.Mult) else name
        self.generic_visit(node)
        return ast.Call(ast.Name(name), [node.left, node.right], []) if name else node


def for_card(expression):
    root = ast.parse(expression, mode="eval").body
    return ast.unparse(ast.fix_missing_locations(_Card(root).visit(root)))


def source_of(call, dtype, renamed):
    """The kernel of a Fused call, as text. Arguments: how many elements, the n of rows and columns, the inputs, the outputs that
    have memory of their own; all flat. `dtype` is the name of the type of all but bools."""
    kinds, names = call.kinds.split(), call.input_names
    own = [name for i, name in enumerate(call.stored) if i not in call.replaces]
    like = f"out_{own[0]}" if own else names[call.replaces[0]]
    bools = {name for name, is_bool in zip(names, call.bools, strict=True) if is_bool}
    arguments = [*names, *(f"out_{name}" for name in own)]
    signature = ", ".join(["int64", "int64", *("boolean[::1]" if a in bools else "T[::1]" for a in arguments)])
    stretched = {"row", "column"} & set(kinds)
    place = {"same": "e", "one": "0", "row": "e - r * n", "column": "r"}
    known = {name: f"{name}_" for name in names}
    target = {name: names[call.replaces[i]] if i in call.replaces else f"out_{name}" for i, name in enumerate(call.stored)}
    return "\n".join([
        f'"""{len(call.steps)} elementwise operations in one kernel: {call.attributes["of"]}. Written by tinyattn.compile."""',
        HEAD, "",
        f'@cuda_kernel("{signature}", types=("{dtype}",))', f"def fused(size, n, {', '.join(arguments)}):",
        '    """Thread e makes element e of all results."""',
        f"    number, e = {like}.dtype.type, cuda.grid(1)", "    if e < size:",
        *(["        r = row_of(e, n)"] if stretched else []),
        *(f"        {name}_ = {name}[{place[kind]}]" for name, kind in zip(names, kinds)),
        *(f"        {name} = {for_card(renamed(expression, known))}" for name, expression in call.steps),
        *(f"        {target[name]}[e] = {name}" for name in call.stored), ""])
