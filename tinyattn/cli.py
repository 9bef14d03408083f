"""The command line, `tinyattn COMMAND ...`: the roof of the house, which nothing else imports.

Results and machine-readable output go to stdout; progress, notices and errors to stderr. Exit codes: 0 done, 1 a check
failed or training broke down, 2 bad usage or bad input (one line that says what), 130 Ctrl-C. `TINYATTN_DEBUG=1` shows
the traceback behind a line. Each command stands in `commands/` and is imported when it is called, so that `--help` is
quick.
"""
import errno
import importlib
import os
import sys

import click

from . import __version__
from .commands.console import note, prepare_streams, release_streams

COMMANDS = {  # name: (module of `commands/`, what it does)
    "train": ("train", "Train a system on the built-in task or on your files."),
    "compare": ("compare", "Train a system with every attention and every seed, and compare them."),
    "evaluate": ("use", "Measure a trained run on its test sentences or on your files."),
    "predict": ("use", "Ask a trained run: text as arguments, or one line at a time on stdin."),
    "heatmap": ("use", "Draw what a trained run looks at while it predicts."),
    "penalty": ("patterns", "Draw the rows of a structured self-attention run, and how much they overlap."),
    "panels": ("patterns", "Draw the four panels of a mechanism: scores, mask, masked scores, weights."),
    "masks": ("patterns", "Draw masks: what True means, causal, padding, windows."),
    "positions": ("patterns", "Draw how position gets into attention: sinusoids, rotations, biases."),
    "forget": ("forget", "Measure how much of an early input reaches a late state: RNN, GRU, LSTM, attention."),
    "growth": ("growth", "Measure how time and memory grow with the length: recurrent layers and attention."),
    "curves": ("curves", "Draw how runs were trained: losses of several with their spread, gradients by layer."),
    "frames": ("curves", "Draw what a run looked at while it was trained (with --watch): one page that moves."),
    "show": ("curves", "Write all of a run on one page: figures, curve, gradients, attention, graph, settings."),
    "graph": ("draw", "Draw a computation graph: of an op, a mechanism, a system or a run."),
    "equations": ("equations", "Print the forward and backward pass as formulas: text, LaTeX, NumPy source."),
    "steps": ("steps", "Show backpropagation step by step, forward and backward: a page to click through."),
    "gallery": ("draw", "Write a page for every attention mechanism: formula, weights, graphs."),
    "list": ("draw", "List the mechanisms, systems, tasks and ops that there are."),
    "explain": ("draw", "Say what an op, a mechanism or a system computes, and where it stands."),
    "check": ("health", "Check gradients by finite differences, in float64."),
    "exercise": ("exercise", "Write the file of an exercise, to be solved and marked by check."),
    "bench": ("bench", "Measure speed, against peers where they are installed."),
    "ptx": ("ptx", "Compile CUDA kernels without a card: lines of PTX, registers, spills, shared memory."),
    "warmup": ("warmup", "Compile kernels now, all or a system's, so that nothing waits for them later."),
    "doctor": ("health", "Say what this machine has: versions, threads, kernel cache, card, drawing programs."),
}


class Lazy(click.Group):
    """The table above as a click group; a command's module is imported when the command is needed."""

    def list_commands(self, ctx):
        return list(COMMANDS)

    def get_command(self, ctx, name):
        if name not in COMMANDS:
            return None
        return getattr(importlib.import_module(f"tinyattn.commands.{COMMANDS[name][0]}"), f"{name}_command")

    def format_commands(self, ctx, formatter):
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=Lazy, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="tinyattn")
def root():
    """Attention and back-propagation from the inside: train, look, check."""


def main(arguments=None):
    """Run one command and return its exit code. Errors become one line on stderr."""
    prepare_streams()
    try:
        result = root.main(arguments, prog_name="tinyattn", standalone_mode=False)
        code = result if isinstance(result, int) else 0
    except BaseException as error:
        if os.environ.get("TINYATTN_DEBUG"):
            raise
        code = explain_error(error)
    release_streams()
    return code


def explain_error(error):
    """Print the one line that an exception is worth, and return the exit code."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        note(error.ctx.get_help())
        return 2
    if isinstance(error, click.ClickException):
        command = error.ctx.command_path if getattr(error, "ctx", None) else "tinyattn"
        note(f"{command}: {_one_line(error.format_message())} (see {command} --help)")
        return 2
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        note("interrupted")
        return 130
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 1
    if isinstance(error, FloatingPointError):
        note(f"tinyattn: {_one_line(error)}")
        return 1
    if isinstance(error, MemoryError):
        note(f"tinyattn: not enough memory: {_one_line(error) or 'try smaller sizes'}")
        return 2
    if isinstance(error, OSError) and error.filename is not None:
        note(f"tinyattn: {error.filename}: {os.strerror(error.errno) if error.errno else error}")
        return 2
    if isinstance(error, OSError) and error.errno == errno.EPIPE:
        return 0
    if isinstance(error, (ValueError, IndexError, NotImplementedError, RuntimeError, OSError, ImportError)):
        note(f"tinyattn: {_one_line(error)}")
        return 2
    note(f"tinyattn: {type(error).__name__}: {_one_line(error)} (a fault of ours; TINYATTN_DEBUG=1 shows where)")
    return 1


def _one_line(error):
    return " ".join(str(error).split())


if __name__ == "__main__":
    sys.exit(main())
