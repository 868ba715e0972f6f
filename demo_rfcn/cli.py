# SPDX-License-Identifier: Apache-2.0
"""The command line: it reads checkpoints, makes the settings, and calls a command."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from . import checkpoint, demo, detect, evaluate, export, launch, options
from .checkpoint import Checkpoint
from .config import (
    NOT_INHERITED,
    RUNS,
    Data,
    Devices,
    Model,
    Schedule,
    Settings,
    make_settings,
    take,
    with_defaults,
)
from .data import DATASETS, LOCATION
from .errors import CheckpointError, InputError, Interrupted, OutputError, RunError
from .options import DEFAULTS, TRAINED, Parser


def _data(arguments: dict[str, Any]) -> Callable[[], None]:
    refuse_unused("data", arguments, arguments)
    return partial(demo.generate, take(Data, with_defaults(arguments)))


def _train(arguments: dict[str, Any]) -> Callable[[], None]:
    return partial(demo.train_command, *_settings("train", arguments))


def _demo(arguments: dict[str, Any]) -> Callable[[], None]:
    return partial(demo.demo, *_settings("demo", arguments))


def _settings(
    command: str, arguments: dict[str, Any]
) -> tuple[Settings, Checkpoint | None, Checkpoint | None]:
    """Return the settings of a command that trains, and the checkpoint to resume or to fine-tune.

    A resumed run inherits all options of its checkpoint. Fine-tuning inherits the network's
    options, and whether batch normalisation is frozen.
    """
    for name, other, why in (
        ("resume", "pretrained", "a resumed run has all weights"),
        ("resume", "pretrained_base", "a resumed run has all weights"),
        ("pretrained", "pretrained_base", "a detector has the weights of its backbone"),
    ):
        if name in arguments and other in arguments:
            both = f"--{name} with --{other.replace('_', '-')}"
            raise InputError(f"train: {both}, expected one of them: {why}")
    resumed = checkpoint.read(arguments["resume"]) if "resume" in arguments else None
    pretrained = checkpoint.read(arguments["pretrained"]) if "pretrained" in arguments else None
    values: dict[str, Any] = {}
    if resumed:
        values = stored_options(resumed, DEFAULTS.keys() - NOT_INHERITED)
    elif pretrained:
        config, names = pretrained.config, [each.name for each in fields(Model)]
        values = {name: getattr(config, name) for name in names if hasattr(config, name)}
        values.update(stored_options(pretrained, {"freeze_bn"}))
    values.update(arguments)
    if values.get("head") == "global" and "k" not in arguments:
        values["k"] = 1
    refuse_unused(command, arguments, values)
    return make_settings(values), resumed, pretrained


def _eval(arguments: dict[str, Any]) -> Callable[[], None]:
    stored = _trained_detector(arguments)
    refuse_unused("eval", arguments, arguments)
    values: dict[str, Any] = {"short": stored.scale[0], "max_size": stored.scale[1]}
    dataset = stored.arguments.get("dataset")
    if arguments.get("dataset", dataset) == dataset:
        names = {each.name for each in fields(Data)} - values.keys()
        if "dataset_root" in arguments or "val_annotations" in arguments:
            names -= set(LOCATION)
        values.update(stored_options(stored, names))
    values["max_size"] = max(values["max_size"], arguments.get("short", 0))
    data = take(Data, with_defaults({**values, **arguments}))
    return partial(
        evaluate.command, data, take(Devices, arguments), stored, _save_prefix(arguments)
    )


def _detect(arguments: dict[str, Any]) -> Callable[[], None]:
    refuse_unused("detect", arguments, arguments)
    stored, devices = _trained_detector(arguments), take(Devices, arguments)
    thresh = arguments.get("thresh", 0.5)
    return partial(
        detect.command, devices, stored, arguments["images"], thresh, _save_prefix(arguments)
    )


def _export(arguments: dict[str, Any]) -> Callable[[], None]:
    name, form = arguments.get("name", "rfcn"), arguments.get("format", export.FORMATS[0])
    return partial(
        export.command, _trained_detector(arguments), name, form, _save_prefix(arguments)
    )


def _launch(arguments: dict[str, Any]) -> Callable[[], None]:
    line = arguments["line"]
    if line[:1] != ["train"]:
        raise InputError("launch: expected '-- train' and its arguments at the end of the line")
    train_arguments = vars(make_parser().parse_args(line))
    train_arguments.pop("command")
    store = train_arguments.get("kv_store")
    if store and not store.startswith("dist"):
        raise InputError(f"launch: --kv-store {store}, expected dist_sync or dist_device_sync")
    _settings("train", dict(train_arguments))  # so that bad input is reported once
    line = line if store else [*line, "--kv-store", "dist_sync"]
    counts = arguments.get("workers", 2), arguments.get("servers", 1)
    return partial(
        launch.command, *counts, arguments.get("address", ""), arguments.get("only", ()), line
    )


def _trained_detector(arguments: dict[str, Any]) -> Checkpoint:
    return checkpoint.read(arguments.get("pretrained", TRAINED))


def _save_prefix(arguments: dict[str, Any]) -> Path:
    return arguments.get("save_prefix", RUNS / "output")


# Name -> help text, function that adds the options, function that turns parsed options into the
# call that runs the command.
COMMANDS: dict[str, tuple[str, Callable[[Parser], None], Callable[[dict], Callable[[], None]]]] = {
    "data": (
        "Generate an embedded data set in VOC layout, unless it exists.",
        options.add_generated,
        _data,
    ),
    "train": ("Train a detector, and print the location of the run.", options.add_train, _train),
    "eval": ("Score a checkpoint, with pictures.", options.add_eval, _eval),
    "detect": ("Detect objects in image files.", options.add_detect, _detect),
    "export": ("Write symbol.json and parameters, or an ONNX file.", options.add_export, _export),
    "launch": (
        "Train with several processes: launch -n N -s S -- train ...",
        options.add_launch,
        _launch,
    ),
    "demo": ("Make data, train, evaluate, draw; reuse what is complete.", options.add_train, _demo),
}


@functools.lru_cache(maxsize=None)
def make_parser() -> Parser:
    """Return the parser of all commands. Parsing leaves no state in it."""
    parser = Parser(
        prog="python -m demo_rfcn", description="R-FCN with gluon_roi: data, training, use."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    for name, (text, add_options, _) in COMMANDS.items():
        subparser = commands.add_parser(name, help=text, description=text)
        add_options(subparser)
        if name == "train":
            subparser.flag("--overwrite", "replace the run in the folder")
    return parser


def parse(argv: Sequence[str] | None = None) -> Callable[[], None]:
    """Return the command of a line, to be called.

    Options that the line lacks come from a checkpoint: data and scale for `eval`, all options for
    `train --resume`, the network's options for `train --pretrained`.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    end = argv.index("--") if argv[:1] == ["launch"] and "--" in argv else len(argv)
    arguments = vars(make_parser().parse_args(argv[:end]))
    name = arguments.pop("command")
    if name == "launch":
        arguments["line"] = argv[end + 1 :]
    return COMMANDS[name][2](arguments)


def train_settings(line: Sequence[str]) -> Settings:
    """Return the settings of `train` with these arguments."""
    arguments = vars(make_parser().parse_args(["train", *line]))
    command = arguments.pop("command")
    return _settings(command, arguments)[0]


def stored_options(stored: Checkpoint, names: set[str]) -> dict[str, Any]:
    """Return options of a checkpoint, checked as on the command line."""
    line = ["train"]
    for name in sorted(names & stored.arguments.keys()):
        value, flag = stored.arguments[name], name.replace("_", "-")
        if isinstance(DEFAULTS[name], bool):
            if value != DEFAULTS[name]:
                line.append(f"--no-{flag}" if DEFAULTS[name] else f"--{flag}")
        elif name == "gpus":
            line += [f"--gpus={','.join(map(str, value))}"] if value else []
        elif isinstance(value, list):
            line += [f"--{flag}", *map(str, value)] if value else []
        elif value is not None:
            line.append(f"--{flag}={value}")
    try:
        values = vars(make_parser().parse_args(line))
    except InputError as error:
        raise CheckpointError(f"checkpoint: {stored.path} has invalid options: {error}") from error
    values.pop("command")
    return values


def refuse_unused(command: str, arguments: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Raise InputError for an option of the command line that would have no effect.

    `values` are the options of the command line and of a checkpoint.
    """
    dataset = values.get("dataset", Data.dataset)
    spec = DATASETS[dataset]
    generates = command in ("data", "demo")
    held_back = "train_annotations" in values and "val_annotations" not in values
    optimizer = values.get("optimizer", Schedule.optimizer)
    mode = values.get("lr_mode", Schedule.lr_mode)
    devices = len(values.get("gpus", ())) or values.get("cpus", Devices.cpus)
    unused = {
        "momentum": (optimizer != "sgd", "--optimizer sgd"),
        "lr_decay": (mode != "step", "--lr-mode step"),
        "lr_decay_steps": (mode != "step", "--lr-mode step"),
        "cpus": ("gpus" in arguments, "no --gpus"),
        "kv_store": (
            devices == 1 and not values.get("kv_store", "").startswith("dist"),
            "several --gpus or --cpus, or dist_sync",
        ),
        "dataset_root": (
            "train_annotations" in values or "val_annotations" in values,
            "no --train-annotations or --val-annotations: they replace the folder",
        ),
        "data_seed": (not (generates and spec.recipe), "a data set that this command generates"),
        "val_share": (
            not generates and command != "train" or bool(spec.val) and not held_back,
            "training data without a list of validation images",
        ),
    }
    for name, (is_unused, expected) in unused.items():
        if name in arguments and is_unused:
            flag = f"--{name.replace('_', '-')}"
            raise InputError(f"{command}: {flag} has no effect here, expected {expected}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status.

    0 on success, 1 if the run cannot continue, 2 if the command is rejected, 130 if interrupted.
    """
    try:
        parse(argv)()
        sys.stdout.flush()
        return 0
    except (InputError, OutputError) as error:
        sentences, status = str(error), 2
    except RunError as error:
        sentences, status = str(error), error.status
    except OSError as error:  # of the standard output
        sentences, status = f"{error.filename or 'standard output'}: {error.strerror}", 2
    except (Interrupted, KeyboardInterrupt) as stopped:
        sentences, status = str(stopped) or "interrupted", 130
    with contextlib.suppress(OSError):  # nobody may be left to read it
        for sentence in sentences.splitlines():
            print(f"demo_rfcn: {sentence}", file=sys.stderr, flush=True)
    return status
