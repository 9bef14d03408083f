"""The commands that look after things: check, bench, warmup, doctor."""
import os
import platform
import sys
import time
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

import click
import numpy as np

from ..errors import InputError
from . import names
from .console import columns, note, on_terminal, out, out_json


# ---------------------------------------------------------------------------------------------------------------------
# check
# ---------------------------------------------------------------------------------------------------------------------
@click.command("check")
@click.argument("wanted", metavar="[NAME...]", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="every op, mechanism and module (so too without a NAME)")
@click.option("--order", type=click.IntRange(1, 2), help="up to which derivative [default: 2; modules and systems 1]")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="seed of the random directions")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", help="where to compute")
def check_command(wanted, everything, order, seed, device):
    """Check rules and fused loops by finite differences in float64; of mechanisms the values too.

    NAME is an op, mechanism, module or system, or a file of your own: my.py or my.py:name. Of a file, all that it
    defines is checked: mechanisms, ops, and answers to exercises (`tinyattn exercise`), which are marked. The exit code
    is 1 if one is wrong.
    """
    from ..device import require
    from ..gradcheck import table
    require(device)
    if device == "cuda":
        raise InputError("check: finite differences run on the cpu; the tests compare the kernels for cards with those")
    if everything and wanted:
        raise InputError("check: give names or --all, not both")
    things = [thing for name in wanted for thing in _found(name)] if wanted else _everything()
    reports = []
    for kind, name, thing in _with_bar(things, "checking", lambda item: item[1]):
        reports += _check(kind, name, thing, order, seed)
    for line in columns(table(reports)):
        out(line)
    for report in reports:
        if report.ok and report.reason:  # a kernel for cards is missing
            note(f"{report.name}: {'compared' if report.compared else 'not compared'}: {report.reason}")
    wrong = [r for r in reports if not r.ok]
    for report in wrong:
        out(str(report))
    out(f"{len(wrong)} of {len(reports)} checks failed" if wrong else f"all {len(reports)} checks passed")
    return 1 if wrong else 0


def _found(name):
    """[(kind, name, thing)] for a name; a file gives all that it defines."""
    if ".py" not in name:
        return [names.find(name)]
    from .exercise import things_of
    return things_of(name)


def _everything():
    tables = (("op", names.ops()), ("attention", names.mechanisms()), ("module", names.modules()))
    return [(kind, name, thing) for kind, found in tables for name, thing in found.items()]


def _check(kind, name, thing, order, seed):
    """The Reports on one thing."""
    from .. import gradcheck
    rng = np.random.default_rng(seed)
    if kind == "op":
        return gradcheck.check_op(thing, order or 2, seed)
    if kind == "exercise":
        from .. import exercises
        return [exercises.grade(*thing, seed)]
    if kind == "lab":
        from ..exercises import lab
        return lab.grade(thing)
    if kind == "module":
        from ..nn import example_of
        module, inputs = example_of(thing, rng)
        return gradcheck.check_function(name, module, inputs, order or 1, seed, dict(module.named_parameters()))
    if kind == "system":
        system = thing.prepare(thing.Options())
        system.model.to(np.float64)
        return gradcheck.check_function(f"system {name}", system.example_graph, (), order or 1, seed,
                                        dict(system.model.named_parameters()))
    return _check_mechanism(name, thing, order or 2, seed)


def _check_mechanism(name, variant, order, seed):
    """Gradients on the mechanism's example, its value against its slow reference, and what all mechanisms must satisfy."""
    from .. import gradcheck
    from ..attention import properties
    from ..attention.core import blame, example_of
    inputs = example_of(variant, seed)

    def call(*values):
        return variant(**dict(zip(inputs, values, strict=True)))

    with blame(variant):
        reports = gradcheck.check_function(f"attention {name}", call, list(inputs.values()), order, seed, names=[*inputs])
        return reports + properties.check(variant, inputs)


def _with_bar(items, title, label):
    """The items one by one, with a bar on a terminal."""
    if not on_terminal():
        yield from items
        return
    from tqdm import tqdm
    with tqdm(items, desc=title, file=sys.stderr, leave=False, dynamic_ncols=True) as bar:
        for item in bar:
            bar.set_postfix_str(label(item))
            yield item


# ---------------------------------------------------------------------------------------------------------------------
# bench
# ---------------------------------------------------------------------------------------------------------------------
@click.command("bench")
@click.argument("wanted", metavar="[NAME...]", nargs=-1)
@click.option("--peers", is_flag=True, help="measure the peers that are installed too, alternating, and give the ratio")
@click.option("--twins", is_flag=True, help="measure each fused op beside its own readable twin instead")
@click.option("--json", "as_json", is_flag=True, help="print JSON")
def bench_command(wanted, peers, twins, as_json):
    """Measure the speed of kernels, layers and training steps. NAME picks rows of the table."""
    from .. import bench
    if peers and twins:
        raise InputError("bench: give --peers or --twins, not both")
    rows = bench.run(wanted, peers=peers, twins=twins, report=note if as_json else out)
    if as_json:
        out_json(rows)


# ---------------------------------------------------------------------------------------------------------------------
# warmup
# ---------------------------------------------------------------------------------------------------------------------
@click.command("warmup")
@click.option("--threads", type=click.IntRange(1), help="threads for large kernels [default: all]")
def warmup_command(threads):
    """Compile the kernels of every op, layer and optimiser for float32, and keep them in the cache folder."""
    from .. import device
    if not device.JIT:
        out("the compiler is off (NUMBA_DISABLE_JIT), nothing to compile")
        return
    if threads is not None:
        device.set_num_threads(threads)
    if device.CACHE is None:
        note("no cache folder can be written: the kernels last as long as this process; TINYATTN_CACHE names another")
    begun, before = time.perf_counter(), _cached(device.CACHE)
    tasks = [(name, lambda c=c: _run_op(c)) for name, c in names.ops().items()]
    tasks += [(name, lambda c=c: _run_module(c)) for name, c in names.modules().items()]
    tasks += [("optimisers", _run_optimizers)]
    for _, task in _with_bar(tasks, "compiling", lambda item: item[0]):
        for above in (device.PARALLEL_ABOVE, 0):  # the serial kernels, then the parallel ones
            with _parallel_above(above):
                task()
    made, kept = _cached(device.CACHE) - before, f"; kept in {device.CACHE}" if device.CACHE else ""
    out(f"{made} kernels compiled in {time.perf_counter() - begun:.1f} s{kept}")


def _cached(folder):
    return 0 if folder is None else sum(1 for _ in Path(folder).rglob("*.nbc"))


@contextmanager
def _parallel_above(nanoseconds):
    from .. import device
    before = device.PARALLEL_ABOVE
    device.PARALLEL_ABOVE = nanoseconds
    try:
        yield
    finally:
        device.PARALLEL_ABOVE = before


def _run_op(cls):
    """All samples of an op in float32, forward and backward."""
    from ..nn import outputs_of
    from .draw import leaf
    for attributes, inputs in cls.samples(np.random.default_rng(0)):
        tensors = [None if x is None else leaf(x) for x in inputs]
        _backward(outputs_of(cls(**attributes)(*tensors)))


def _run_module(cls):
    from ..nn import example_of, outputs_of
    module, inputs = example_of(cls, np.random.default_rng(0), np.float32)
    _backward(outputs_of(module(*inputs)))


def _backward(outputs):
    total = None
    for t in outputs:
        if t.requires_grad:
            total = t.sum() if total is None else total + t.sum()
    if total is not None:
        total.backward()


def _run_optimizers():
    from .. import optim
    from ..config import OPTIMIZERS
    from ..tensor import Tensor
    for make in OPTIMIZERS.values():
        w = Tensor(np.ones(4, np.float32), requires_grad=True)
        (w * w).sum().backward()
        optim.clip_grad_norm([w], 1.0)
        make([w], 1e-3).step()


# ---------------------------------------------------------------------------------------------------------------------
# doctor
# ---------------------------------------------------------------------------------------------------------------------
PACKAGES = ("numpy", "numba", "llvmlite", "click", "safetensors", "tqdm", "graphviz", "matplotlib", "graphviz-pure",
            "latex2mathml", "markdown-it-py", "pygments", "numba-cuda", "torch")


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="print JSON")
def doctor_command(as_json):
    """Say what this machine has, and what is missing and why that may not matter."""
    from .. import __version__
    facts = {"tinyattn": __version__, "python": f"{platform.python_version()} on {platform.platform()}"}
    for package in PACKAGES:
        try:
            facts[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            facts[package] = "not installed"
    facts.update(_compiler())
    facts.update(_drawing())
    if as_json:
        out_json(facts)
        return
    for line in columns(list(facts.items()), numbers=False):
        out(line)


def _compiler():
    from .. import device
    facts = {"compiler": "on" if device.JIT else "off (NUMBA_DISABLE_JIT)", "cores": str(os.cpu_count()),
             "threads": str(device.get_num_threads())}
    if device.JIT:
        facts["threading layer"] = _threading_layer()
        facts["kernel cache"] = f"{device.CACHE}, {_cached(device.CACHE)} kernels" if device.CACHE else \
            "no folder can be written: kernels are compiled each time; TINYATTN_CACHE names another folder"
    status = device.cuda_status()
    facts["cuda"] = status + {"absent": " (no card or no driver; everything runs on the cpu)",
                              "simulated": " (NUMBA_ENABLE_CUDASIM: slow, for trying kernels out)"}.get(status, "")
    return facts


def _threading_layer():
    """Which pool runs parallel kernels; Numba knows once one has run."""
    import numba

    from ..functional import ones
    try:
        with _parallel_above(0):
            ones(64, 64) @ ones(64, 64)
        return numba.threading_layer()
    except Exception as error:  # a broken OpenMP or TBB library raises its own kinds of error
        return f"none ({' '.join(str(error).split())[:100]})"


def _drawing():
    """Which program lays out graphs, and whether it does."""
    from viz.graphs import render
    try:
        render.render("digraph { a -> b }", "svg", 20.0)
        return {"graphs": f"drawn by {render._programs()[0][0]}"}
    except InputError as error:
        return {"graphs": f"only as DOT text: {error}"}
