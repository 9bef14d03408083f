"""Command line options made from dataclasses, and the options that several commands share."""
import os
import re
from dataclasses import fields

import click

from ..errors import InputError

SETTINGS = {  # the settings of `Config` that `tinyattn train` shows: help texts
    "steps": "updates of the weights; with --seconds, whichever ends first",
    "seconds": "stop after this time of training",
    "batch_size": "sentences or samples a step",
    "learning_rate": "the size of a step (with another --optimizer: one that suits it)",
    "optimizer": "sgd, momentum, adam, adamw or adadelta",
    "clip": "bound on the norm of the gradient; 0 is none",
    "warmup": "steps over which the learning rate rises from 0",
    "schedule": "how the learning rate falls: constant, cosine, linear, halving or inverse-sqrt",
    "validate_every": "steps between two looks at the validation loss, and between two checkpoints",
    "seed": "seed of all random numbers",
    "keep": "weights to keep: best, those of the lowest validation loss, or last",
    "bucket": "pad batches to lengths that are multiples of it: fewer shapes, so fewer steps to capture",
}
MECHANISM_FILE = re.compile(r"(.+\.py)(:\w+)?")


def system_options(cls):
    """A flag for each field of the dataclass `cls`: `--hidden 64`, `--cell gru`, `--reverse-source`."""
    return [_option(f, f.metadata.get("help", ""), f.metadata.get("choices")) for f in fields(cls)]


def setting_options(cls):
    """A flag for each training setting, with the defaults that the system proposes in its dataclass `cls`."""
    return [_option(f, SETTINGS[f.name], None) for f in fields(cls) if f.name in SETTINGS]


def _option(f, text, choices):
    flag = "--" + f.name.replace("_", "-")
    if isinstance(f.default, bool):
        return click.Option([f"{flag}/--no-{flag[2:]}"], default=f.default, show_default=True, help=text)
    kind = click.Choice(choices) if choices else {int: int, float: float, str: str}.get(type(f.default), float)
    show = f.default if f.default is not None else False
    return click.Option([flag], type=kind, default=f.default, show_default=show is not False, help=text)


def data_options(system=None):
    """--data, and --links and --links-order for a system that takes them (None: for any)."""
    options = [click.Option(["--data"], metavar="PATH", multiple=True, callback=_named,
                            help=system.data_help if system else "your files, in a format that the run's system reads")]
    if system is None or system.takes_links:
        options += [
            click.Option(["--links"], metavar="FILE", callback=_named,
                         help="gold alignments of the data: i-j (sure), ipj (possible)"),
            click.Option(["--links-order"], type=click.Choice(["source-target", "target-source"]), default=None,
                         help="what the first number of a link counts [default: source-target]")]
    return options


def _named(ctx, option, value):
    """The value, if it names a file or folder: "" would be the folder where the user stands."""
    if value == "" or option.multiple and "" in value:
        raise InputError(f"{option.opts[0]}: expected a path, got an empty text")
    return value


def with_data(command):
    """A command with the options of `data_options`."""
    command.params += data_options()
    return command


def trust_option(command):
    """--attention for the commands that load a run."""
    return click.option("--attention", metavar="FILE.py:NAME", callback=lambda ctx, p, v: absolute_mechanism(v),
                        help="run this file, if the run uses a mechanism of somebody's own")(command)


def absolute_mechanism(value):
    """`my.py:name` with the file's absolute path, so that a run finds it from any folder; other values as they are."""
    found = MECHANISM_FILE.fullmatch(value or "")
    return os.path.abspath(found[1]) + (found[2] or "") if found else value


def given(ctx):
    """The names of the parameters that stand on the command line."""
    return {name for name in ctx.params if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE}
