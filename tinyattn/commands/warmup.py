"""The command `warmup`: compile kernels before anybody waits for them, in as many processes as there are cores."""
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import click
import numpy as np

from ..errors import InputError
from . import names
from .console import note, out
from .progress import Bar

STEPS = 4  # of training: batches differ in length, and long ones take the parallel kernels


@click.command("warmup")
@click.argument("wanted", metavar="[SYSTEM...]", nargs=-1)
@click.option("--jobs", type=click.IntRange(1), help="processes that compile [default: one a core]")
@click.option("--threads", type=click.IntRange(1), help="threads for large kernels [default: all]")
def warmup_command(wanted, jobs, threads):
    """Compile kernels for float32 and keep them in the cache folder: those of every op, layer and optimiser, or, where
    SYSTEMs are named, those that training and measuring them with their usual options takes."""
    from .. import device
    from ..workers import cores
    if not device.JIT:
        out("the compiler is off (NUMBA_DISABLE_JIT), nothing to compile")
        return
    if threads is not None:
        device.set_num_threads(threads)
    if device.CACHE is None:
        note("no cache folder can be written: the kernels last as long as this process; TINYATTN_CACHE names another")
        jobs = 1
    tasks = [("system", _system(name)) for name in wanted] or \
        [("op", name) for name in names.ops()] + [("module", name) for name in names.modules()] + [("optimizers", "optimisers")]
    begun, before = time.perf_counter(), cached(device.CACHE)
    _run_all(tasks, min(jobs or cores(), len(tasks)), device.get_num_threads())
    made, kept = cached(device.CACHE) - before, f"; kept in {device.CACHE}" if device.CACHE else ""
    out(f"{made} kernels compiled in {time.perf_counter() - begun:.1f} s{kept}")


def _system(name):
    from .. import systems
    systems.find(name)
    return name


def cached(folder):
    """How many kernels a cache folder holds."""
    return 0 if folder is None else sum(1 for _ in Path(folder).rglob("*.nbc"))


# ---------------------------------------------------------------------------------------------------------------------
# in several processes
# ---------------------------------------------------------------------------------------------------------------------
def _run_all(tasks, jobs, threads):
    """Run the tasks in `jobs` processes, with a bar. A kernel that two tasks need is compiled for the first one, and by
    the other found in the cache, unless they come to it at one moment."""
    from .. import device
    device.patience.told = True
    bar = Bar()
    bar.begin(total=len(tasks), desc="compiling")
    try:
        for kind, name in _in_turn(tasks) if jobs == 1 else _in_processes(tasks, jobs, threads):
            if bar.bar is not None:
                bar.bar.set_postfix_str(name if kind != "module" else name.rpartition(".")[2], refresh=False)
                bar.bar.update()
    finally:
        bar.close()


def _in_turn(tasks):
    for task in tasks:
        yield _compile(*task)


def _in_processes(tasks, jobs, threads):
    """The tasks as they end. Ctrl-C ends the processes at once: what has been compiled is kept."""
    pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _begin, (threads,))
    try:
        for future in as_completed([pool.submit(_compile, *task) for task in tasks]):
            yield future.result()
    except BrokenProcessPool:
        raise InputError("warmup: a process that compiled has died, for lack of memory perhaps; try --jobs 1") from None
    except BaseException:
        for process in multiprocessing.active_children():
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(threads):
    """A process that compiles leaves Ctrl-C to its parent, and does not outlive it."""
    from .. import device
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    device.set_num_threads(threads)


def _end_with_parent():
    multiprocessing.connection.wait([multiprocessing.parent_process().sentinel])
    os._exit(1)


# ---------------------------------------------------------------------------------------------------------------------
# what there is to compile
# ---------------------------------------------------------------------------------------------------------------------
def _compile(kind, name):
    """Run one thing in float32, so that its kernels are compiled. Returns (kind, name)."""
    from .. import device
    if kind == "system":
        _run_system(name)
        return kind, name
    task = {"op": lambda: _run_op(names.ops()[name]), "module": lambda: _run_module(names.modules()[name]),
            "optimizers": _run_optimizers}[kind]
    for above in (device.PARALLEL_ABOVE, 0):  # the serial kernels, then the parallel ones
        with _parallel_above(above):
            task()
    return kind, name


@contextmanager
def _parallel_above(nanoseconds):
    """Kernels of more estimated work than this run in parallel."""
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
        optimizer = make([w], 1e-3)
        optimizer.clip_grad_norm(1.0)
        optim.clip_grad_norm([w], 0.5)
        optimizer.step()


def _run_system(name):
    """The first steps of `tinyattn train NAME`, the validation after them, and its figures on a few test samples."""
    from .. import systems
    from ..config import Config
    from ..train import train
    cls = systems.find(name)
    options = cls.Options()
    config = Config.proposed(cls, options)
    system = cls.prepare(options, **config.sources(cls))
    train(system, replace(config, steps=STEPS, validate_every=STEPS))
    system.evaluate("test", limit=8)
