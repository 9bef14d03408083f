"""The house has floors: a module imports what is below it, never what is above. Read from the sources; nothing runs."""
import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FLOORS = [  # from the ground up; a name stands for a module or a package with all that is in it
    {"errors"},
    {"device"},
    {"op", "cuda"},
    {"autograd"},
    {"ops"},
    {"tensor"},
    {"random", "program", "updates"},
    {"updates_cuda"},
    {"functional", "slopes"},
    {"gradcheck", "compiler"},
    {"devicecheck"},
    {"attention"},
    {"nn"},
    {"models", "tasks", "optim", "systems", "config", "checkpoint"},
    {"train", "workloads", "forgetting", "growth", "exercises"},
    {"tables", "workers"},
    {"compare"},
    {"bench"},
    {"viz"},
    {"commands"},
    {"cli"},
    {"__main__"},
]
FLOOR = {name: height for height, names in enumerate(FLOORS) for name in names}
SAME_FLOOR = {("op", "cuda"), ("models", "tasks"), ("checkpoint", "systems"), ("config", "optim")}  # (user, used)
LAZY = {  # imports inside a function that look up: a table that loads its entries, and the collection of all kernels
    ("cuda", "tensor"),      # a list of the kernels of all ops
    ("device", "cuda"),      # a simulator is mended before its first use
    ("systems", "models"),
}
SOURCES = sorted([*ROOT.glob("tinyattn/**/*.py"), *ROOT.glob("viz/**/*.py")])


def floor_of(dotted):
    """The name in FLOORS for tinyattn.ops.matmul ("ops"), viz.graphs.graph ("viz") or None for tinyattn itself."""
    parts = dotted.split(".")
    return "viz" if parts[0] == "viz" else parts[1] if len(parts) > 1 else None


def imports(path):
    """(dotted name of this module, {(dotted name of what it imports, does it stand inside a function?)})"""
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    package = parts[:-1]
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    tree, found = ast.parse(path.read_text(encoding="utf-8")), set()
    inside = {child for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.Lambda))
              for child in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {(a.name, node in inside) for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[:len(package) - node.level + 1] if node.level else []
            base = ".".join([*base, *([node.module] if node.module else [])])
            found |= {(f"{base}.{a.name}" if base in ("tinyattn", "viz") else base, node in inside) for a in node.names}
    return name, {(used, lazy) for used, lazy in found if used.split(".")[0] in ("tinyattn", "viz")}


@pytest.mark.parametrize("path", SOURCES, ids=[str(p.relative_to(ROOT)) for p in SOURCES])
def test_imports_look_down(path):
    name, used = imports(path)
    here = floor_of(name)
    assert here is None or here in FLOOR, f"{name}: say in tests/test_layers.py on which floor it stands"
    for other, lazy in used:
        there = floor_of(other)
        if there not in FLOOR:  # tinyattn itself and its own attributes, such as __version__
            continue
        assert here is not None or lazy, f"tinyattn/__init__.py imports {other} at once"
        if here in (None, there) or (here, there) in SAME_FLOOR or (lazy and (here, there) in LAZY):
            continue
        assert FLOOR[there] < FLOOR[here], f"{name} (floor {FLOOR[here]}) imports {other} (floor {FLOOR[there]})"


def test_the_test_can_fail():
    assert imports(ROOT / "tinyattn" / "tensor.py")[1] >= {("tinyattn.autograd", False), ("tinyattn.ops.binary", False)}
    assert FLOOR["ops"] < FLOOR["tensor"] < FLOOR["nn"] < FLOOR["viz"] < FLOOR["cli"]
    assert len(SOURCES) > 40


@pytest.mark.parametrize("path", sorted(ROOT.glob("tinyattn/ops/*.py")), ids=lambda p: p.stem)
def test_shared_helpers_of_kernels_stand_in_one_file(path):
    """The kernel cache is keyed by ops/shared.py alone: a kernel that calls one of another file would run stale."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported = {a.asname or a.name: node.module for node in tree.body if isinstance(node, ast.ImportFrom) and node.level
                for a in node.names}
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef) or not any("kernel" in ast.unparse(d) for d in node.decorator_list):
            continue
        for called in {n.func.id for n in ast.walk(node) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}:
            home = imported.get(called, "shared")
            assert home.partition(".")[0] in ("shared", "device", "cuda"), f"{path.name}: {node.name} calls {called}"
