"""The commands that look after things: check, doctor."""
import json
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import click
import numpy as np

from ..errors import InputError
from . import names
from .console import columns, note, on_terminal, out, out_json
from .warmup import cached


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
    """Check rules and fused loops by finite differences in float64; of mechanisms the values too. With --device cuda:
    check that a card gives what the CPU gives, values and gradients to second order, in float64.

    NAME is an op, mechanism, module or system, or a file of your own: my.py or my.py:name. Of a file, all that it
    defines is checked: mechanisms, ops, and answers to exercises (`tinyattn exercise`), which are marked. The exit code
    is 1 if one is wrong.
    """
    from ..device import require
    from ..gradcheck import table
    require(device)
    if everything and wanted:
        raise InputError("check: give names or --all, not both")
    if device == "cuda" and order is not None:
        raise InputError("check: --order is for finite differences on the cpu; a card is compared to second order")
    things = [thing for name in wanted for thing in _found(name)] if wanted else _everything()
    reports = []
    for kind, name, thing in _with_bar(things, "checking", lambda item: item[1]):
        reports += _check(kind, name, thing, order, seed) if device == "cpu" else _on_both(kind, name, thing, seed)
    for line in columns(table(reports)):
        out(line)
    for report in reports:
        if report.ok and report.reason:  # a mechanism without a reference of its own
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


def _on_both(kind, name, thing, seed):
    """`_compare`, or a Report that says why it cannot be: one's own op may have no kernel for a card."""
    from ..slopes import Report
    try:
        return _compare(kind, name, thing, seed)
    except (NotImplementedError, RuntimeError, MemoryError) as why:
        report = Report(f"{name} (cpu against cuda)")
        report.fail(str(why))
        return [report]


def _compare(kind, name, thing, seed):
    """The Reports on one thing, on the CPU and on a card."""
    from .. import devicecheck
    rng = np.random.default_rng(seed)
    if kind == "op":
        return devicecheck.check_op(thing, "float64", seed)
    if kind == "module":
        from ..nn import example_of
        module, inputs = example_of(thing, rng)
        return [devicecheck.check_function(name, module, inputs, seed=seed, module=module)]
    if kind == "attention":
        from ..attention import properties
        from ..attention.core import blame, example_of
        with blame(thing):
            return [properties.devices(thing, example_of(thing, seed))]
    if kind == "system":
        system = thing.prepare(thing.Options())
        system.model.to(np.float64)
        return [devicecheck.check_function(f"system {name}", system.example_graph, (), seed=seed, module=system.model)]
    raise InputError(f"check: {name} is {'an' if kind[0] in 'aeiou' else 'a'} {kind}, which is checked on the cpu alone")


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
# doctor
# ---------------------------------------------------------------------------------------------------------------------
PACKAGES = ("numpy", "numba", "llvmlite", "click", "safetensors", "tqdm", "graphviz", "matplotlib", "graphviz-pure",
            "latex2mathml", "markdown-it-py", "pygments", "numba-cuda", "nvidia-nvvm", "nvidia-cuda-runtime", "nvidia-nvjitlink",
            "cuda-bindings", "torch")
PATIENCE = 60  # seconds that the driver of a card may take to answer


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
    facts.update(_cuda())
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
        facts["kernel cache"] = f"{device.CACHE}, {cached(device.CACHE)} kernels" if device.CACHE else \
            "no folder can be written: kernels are compiled each time; TINYATTN_CACHE names another folder"
    return facts


def _cuda():
    """What `python -m tinyattn.cuda` says. The simulator would hide the card and the compiler from it."""
    import numba

    from ..cuda import memory
    environment = {k: v for k, v in os.environ.items() if k != "NUMBA_ENABLE_CUDASIM"}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[2]), environment.get("PYTHONPATH", "")]).strip(os.pathsep)
    try:
        done = subprocess.run([sys.executable, "-m", "tinyattn.cuda"], env=environment, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=PATIENCE)
        facts = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        facts = {"cuda": f"unknown: the driver has not answered for {PATIENCE} s; nvidia-smi or a restart may tell more"}
    except (OSError, ValueError):
        facts = {"cuda": f"unknown: the process that asked the driver ended with {done.returncode}: {_last_line(done.stderr)}"}
    simulated = bool(numba.config.ENABLE_CUDASIM)
    status = "simulated" if simulated else facts["cuda"]
    facts["cuda"] = status + {"absent": " (no card that can be used, see below; everything runs on the cpu)",
                              "simulated": " (NUMBA_ENABLE_CUDASIM: slow, for trying kernels out)"}.get(status, "")
    facts["cuda simulator"] = "on" if simulated else "off; NUMBA_ENABLE_CUDASIM=1 turns it on, for trying kernels out without a card"
    facts["cuda memory pool"] = "on" if memory.POOL else "off; TINYATTN_CUDA_POOL=1 turns it on"
    return facts


def _last_line(text):
    return (text.strip().splitlines() or ["it said nothing"])[-1]


def _threading_layer():
    from .. import device
    try:
        return device.threading_layer()
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
