"""Where the runs of a comparison are trained: processes of this machine, or the workers of a Dask cluster.

Both sides are `concurrent.futures` executors. `Local` has one pool of a single process for each worker: a process that
dies (killed, out of memory, a crash) breaks its own pool, costs the run that it had, and nothing else; the run goes on
from its checkpoint in a new one. `Cluster` has the executor of a Dask client: a worker elsewhere may see no folder of
ours, so data files, a mechanism's own file and what there is of the run travel to it as bytes, and the files of the run
come back as bytes.
"""
import json
import logging
import multiprocessing
import multiprocessing.connection
import os
import re
import signal
import tempfile
import threading
import time
from concurrent.futures import CancelledError, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from . import checkpoint
from . import device as devices
from .checkpoint import FILE
from .errors import InputError
from .train import train

REACH = 5.0           # seconds to wait for a scheduler to answer
_busy = threading.Lock()  # one run at a time in a process: random numbers and the number of threads are the process's
_asked = threading.Event()


# ---------------------------------------------------------------------------------------------------------------------
# one run
# ---------------------------------------------------------------------------------------------------------------------
def measure(folder, system, config, history):
    """Measure a trained system on its test samples, and keep the figures in the run's metrics.json. Returns them."""
    metrics = {"system": config.system, "options": config.options, "seed": config.seed,
               "parameters": system.model.number_of_parameters(), "steps": history.step,
               "seconds": round(history.seconds, 2), "best_step": history.best_step,
               "validation_loss": history.best_loss,
               **{split: system.evaluate(split) for split in ("test", *system.also_measured)}}
    checkpoint.write(Path(folder) / "metrics.json", json.dumps(metrics, indent=1) + "\n")
    return metrics


def train_run(cls, config, folder, threads, device, read_from=None, report=None):
    """Train one run in its folder, from its checkpoint if there is one, and measure it.

    read_from: the Config with the places of the files here, if they are not those that the run shall name.
    Returns ("finished", ""), ("interrupted", "") or, for a fault that would come again, ("failed", reason).
    """
    devices.require(device)
    devices.set_num_threads(threads)
    here = read_from or config
    try:
        with devices.default_device(device):
            system = cls.prepare(cls.Options(**here.options), **here.sources(cls))
            history = train(system, config, folder, resume=(folder / FILE).is_file(), report=report)
            if history.stopped == "interrupted":
                return "interrupted", ""
            measure(folder, system, config, history)
    except (InputError, FloatingPointError) as error:
        return "failed", str(error)
    return "finished", ""


# ---------------------------------------------------------------------------------------------------------------------
# on this machine
# ---------------------------------------------------------------------------------------------------------------------
def cores():
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def shares(workers, threads, runs):
    """(workers, threads of each) for so many runs, where either may be None: together they have the cores."""
    if workers is None:
        workers = cores() // threads if threads else cores()
    workers = max(1, min(workers, runs))
    return workers, min(threads or max(1, cores() // workers), devices.get_num_threads())


def _begin_worker():
    """A worker leaves the terminal's group of processes: Ctrl-C reaches the parent alone, which passes it on once. If
    the parent is killed, a worker finishes its step, saves and ends."""
    if hasattr(os, "setpgid"):
        with suppress(OSError):
            os.setpgid(0, 0)
    signal.signal(signal.SIGINT, lambda number, frame: _asked.set())
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent():
    multiprocessing.connection.wait([multiprocessing.parent_process().sentinel])
    signal.raise_signal(signal.SIGINT)
    with _busy:
        os._exit(1)


def _train_here(cls, config, folder, threads, device):
    def pass_on(progress):  # a Ctrl-C that came before training began
        if _asked.is_set():
            _asked.clear()
            signal.raise_signal(signal.SIGINT)
    with _busy:
        return train_run(cls, config, folder, threads, device, report=pass_on)


class Local:
    """Processes of this machine. InputError for numbers that cannot be."""

    def __init__(self, workers, threads, retries, runs):
        for name, value, least in (("workers", workers, 1), ("threads", threads, 1), ("retries", retries, 0)):
            if value is not None and not value >= least:
                raise InputError(f"compare: expected {name} of at least {least}, got {value}")
        number, self.threads = shares(workers, threads, runs)
        self.retries, self.seats = retries, [_Seat() for _ in range(number)]

    def describe(self):
        n, t = len(self.seats), self.threads
        return f"{n} worker{'s' * (n > 1)} of {t} thread{'s' * (t > 1)}"

    def has_room(self):
        return any(seat.future is None for seat in self.seats)

    def start(self, cls, run, folder, device):
        """The Future of a run, at a free worker."""
        seat = next(seat for seat in self.seats if seat.future is None)
        return seat.submit(_train_here, cls, run.config, folder, self.threads, device)

    def take(self, future, folder):
        """(state, text) of a Future that is done: as `train_run` gives it, or ("died", reason)."""
        seat = next(seat for seat in self.seats if seat.future is future)
        seat.future = None
        try:
            return future.result()
        except BrokenProcessPool:
            return "died", seat.bury()
        except BaseException as error:  # MemoryError, a full disk, a fault of ours
            return "died", f"{type(error).__name__}: {error}"

    def ask_to_stop(self):
        """Have the workers finish their steps, save and stop."""
        for seat in self.seats:
            seat.ask_to_stop()

    def close(self):
        """Let the workers go. One that is still at work, after a second Ctrl-C, is killed."""
        for seat in self.seats:
            seat.close()


class _Seat:
    """One worker: a pool of one process, made when there is work, and made anew when the process has died."""

    def __init__(self):
        self.pool = self.process = self.future = self.ready = None
        self.told = False

    def submit(self, function, *arguments):
        for _ in range(2):
            if self.pool is None:
                self._open()
            try:
                self.told, self.future = False, self.pool.submit(function, *arguments)
                break
            except BrokenProcessPool:  # it died while it had nothing to do
                self.bury()
        return self.future

    def _open(self):
        self.pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _begin_worker)
        known = {process.pid for process in multiprocessing.active_children()}
        main, before = threading.current_thread() is threading.main_thread(), None
        if main:  # until it has left our group, Ctrl-C must not end it: it inherits that the signal is ignored
            before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self.ready = self.pool.submit(os.getpid)
        finally:
            if main:
                signal.signal(signal.SIGINT, before)
        self.process = next((p for p in multiprocessing.active_children() if p.pid not in known), None)

    def ask_to_stop(self):
        if self.future is None or self.told or not self.ready.done():
            return
        self.told = True
        alive = self.process is not None and self.process.is_alive()
        if alive and os.name == "posix":  # on Windows Ctrl-C reaches all processes by itself
            os.kill(self.process.pid, signal.SIGINT)

    def bury(self):
        """Why did the process die? The seat is free for another one."""
        process, pool = self.process, self.pool
        self.pool = self.process = None
        pool.shutdown(wait=False, cancel_futures=True)
        if process is None:
            return "its worker could not begin"
        deadline = time.monotonic() + REACH  # the pool waits for it too; who comes second is told a moment later
        while (code := process.exitcode) is None and time.monotonic() < deadline:
            time.sleep(0.01)
        if code is None or code >= 0:
            return f"its worker ended with exit code {code}"
        with suppress(ValueError):
            name = signal.Signals(-code).name
            return f"its worker was killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
        return f"its worker was killed by signal {-code}"

    def close(self):
        if self.pool is None:
            return
        if self.future is not None and self.process is not None:
            self.process.kill()
        self.pool.shutdown(wait=True, cancel_futures=True)


# ---------------------------------------------------------------------------------------------------------------------
# on a cluster
# ---------------------------------------------------------------------------------------------------------------------
class Cluster:
    """The workers of a Dask cluster. InputError without Dask, or if the scheduler cannot be reached.

    Dask itself begins a run again whose worker has died (it gives up after the scheduler's `allowed-failures`, 3), and
    `retries` times one that raised. A run elsewhere begins with what there is in its folder here; what a worker that
    died or a run that was called off had done is lost. Give workers one thread each: runs take turns in a process.
    """
    def __init__(self, address, retries, threads, say):
        try:
            import distributed
        except ImportError:
            raise InputError('--scheduler: needs Dask: pip install "tinyattn[cluster]"') from None
        _check_address(address)
        for name in ("distributed", "distributed.client", "distributed.utils"):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # what happens to a run is said by us, in a line
        try:
            self.client = distributed.Client(address, timeout=REACH, set_as_default=False)
        except (OSError, ValueError, TypeError) as error:
            raise InputError(f"--scheduler: {address}: expected the address of a Dask scheduler, such as "
                             f"tcp://host:8786, got no answer ({str(error).partition(chr(10))[0]})") from None
        self.address, self.threads, self.retries = address, threads or 1, 0
        self.pool, self.pending, self.stopping = self.client.get_executor(retries=retries), set(), False
        workers = self.client.scheduler_info(n_workers=-1)["workers"]
        if not workers:
            say(f"{address} has no worker yet; the runs wait for one")
        if any(worker["nthreads"] > 1 for worker in workers.values()):
            say("a worker of the cluster has several threads, but a process trains one run at a time; begin workers "
                "with --nthreads 1")

    def describe(self):
        return f"on the cluster at {self.address}"

    def has_room(self):
        return True  # the scheduler keeps the queue

    def start(self, cls, run, folder, device):
        config = run.config
        mechanism = re.match(r"(.+\.py)(?::\w+)?$", config.options.get("attention", ""))
        sent = [*config.data, *([config.links] if config.links else []), *([mechanism[1]] if mechanism else [])]
        future = self.pool.submit(_train_away, cls, config, {path: _packed(Path(path)) for path in sent},
                                  _packed(folder, folder) if folder.is_dir() else {}, self.threads, device)
        self.pending.add(future)
        return future

    def take(self, future, folder):
        self.pending.discard(future)
        try:
            state, text, files = future.result()
        except CancelledError:
            if self.stopping:
                return "interrupted", ""
            return "failed", f"the cluster has dropped it (is the scheduler at {self.address} still there?)"
        except Exception as error:
            return "failed", f"{type(error).__name__}: {error}"
        folder.mkdir(parents=True, exist_ok=True)
        for name in sorted(files, key=[FILE, *sorted({*files} - {FILE, "metrics.json"}), "metrics.json"].index):
            checkpoint.write(folder / name, files[name])
        return state, text

    def ask_to_stop(self):
        self.stopping = True
        for future in self.pending:
            future.cancel()

    def close(self):
        self.pool.shutdown(wait=False)
        self.client.close()


def _check_address(address):
    """InputError for what is no address: for an empty one Dask would begin a cluster of its own, and after others it
    would print a traceback when the program ends."""
    from distributed.comm.addressing import parse_address, parse_host_port
    from distributed.comm.registry import get_backend
    try:
        scheme, place = parse_address(address)
        get_backend(scheme)
        if scheme != "inproc" and not parse_host_port(place)[0]:
            raise ValueError("missing host")
    except ValueError as error:
        raise InputError(f"--scheduler: expected the address of a Dask scheduler, such as tcp://host:8786, got "
                         f"{address!r} ({error})") from None


def _packed(path, within=None):
    """{name: bytes} of a file, or of all files in a folder; names are relative to `within`, by default its parent."""
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    return {file.relative_to(within or path.parent).as_posix(): file.read_bytes() for file in files
            if file.suffix != ".part"}


def _unpack(files, folder):
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def _train_away(cls, config, sent, begun, threads, device):
    """On a worker of the cluster: (state, text, {name: bytes} of the run's files)."""
    with _busy, tempfile.TemporaryDirectory() as place:
        place, moved = Path(place), {}
        for i, (path, files) in enumerate(sent.items()):
            _unpack(files, place / str(i))
            moved[path] = str(place / str(i) / Path(path).name)
        options = dict(config.options)
        for path, there in moved.items():
            if options["attention"].startswith(path):
                options["attention"] = there + options["attention"][len(path):]
        here = replace(config, options=options, data=tuple(moved[p] for p in config.data),
                       links=config.links and moved[config.links])
        run = place / "run"
        if begun:
            _unpack(begun, run)
        state, text = train_run(cls, config, run, min(threads, devices.get_num_threads()), device, here, _called_off())
        return state, text.replace(str(run), "its folder"), _packed(run, run) if run.is_dir() else {}


def _called_off():
    """A `report` for `train` that ends a run which the scheduler does not wait for any more."""
    from distributed import get_worker
    worker, last = get_worker(), [time.monotonic()]
    key = worker.get_current_task()

    def look(progress):
        if time.monotonic() - last[0] > 1.0:
            last[0] = time.monotonic()
            task = worker.state.tasks.get(key)
            if task is None or task.state in ("cancelled", "resumed"):
                raise CancelledError
    return look
