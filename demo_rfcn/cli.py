# SPDX-License-Identifier: Apache-2.0
"""The command line: one parser, one function per command."""

from __future__ import annotations

import argparse
import contextlib
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from . import settings
from .commands import ablate, detect, evaluate, export, train
from .data import LOCATION
from .distributed import launch
from .errors import InputError, Interrupted, OutputError, RunError
from .run import checkpoint
from .run.record import LAST
from .settings import PARTS, RUNS, Data, Devices, Settings, option


@dataclass
class Files:
    """The detector and the results."""

    path: Path = option(
        RUNS / "signals" / LAST, "trained detector", Path, names=["--pretrained"], metavar="FILE"
    )
    save_prefix: Path = option(RUNS / "output", "folder for the results", Path, metavar="DIR")


@dataclass
class Images:
    """The images to detect in."""

    images: Sequence[Path] = option(
        (), "image files, or folders of them", Path, names=["images"], nargs="+", metavar="IMAGE"
    )
    thresh: float = option(0.5, "lowest score that is drawn", settings.probability)


@dataclass
class Export:
    """The exported files."""

    name: str = option("rfcn", "stem of the files")
    format: str = option(
        export.FORMATS[0], "symbol.json and parameters, or one ONNX file", choices=export.FORMATS
    )


@dataclass
class Ablation:
    """Sets --head, --k, --fpn, --no-ohem, --seed, --resume and --val-interval by itself."""

    seeds: Sequence[int] = option((0, 1, 2), "seeds of a variant", settings.natural, nargs="+")
    further: Sequence[str] = settings.several("further variants out of {}", ablate.FURTHER, "NAME")


@dataclass
class Processes:
    """The processes of the whole run, on all its machines."""

    workers: int = option(2, "processes that train", settings.positive, names=["-n", "--workers"])
    servers: int = option(1, "that sum the gradients", settings.positive, names=["-s", "--servers"])
    address: str = option(
        "",
        "of the scheduler, the same on all machines; this machine if not given",
        metavar="HOST:PORT",
    )
    only: Sequence[str] = settings.several(
        "start these processes here, out of {}, and no others", launch.ROLES, "ROLE"
    )


# The function of each command, whose docstring begins with its line of help, and its options.
COMMANDS: dict[str, tuple[Callable[..., None], dict[str, Any]]] = {
    "data": (train.generate, {"data": Data}),
    "train": (train.command, PARTS),
    "eval": (evaluate.command, {"data": Data, "devices": Devices, "files": Files}),
    "ablate": (ablate.command, {**PARTS, "ablation": Ablation}),
    "detect": (detect.command, {"images": Images, "devices": Devices, "files": Files}),
    "export": (export.command, {"export": Export, "files": Files}),
    "launch": (launch.command, {"processes": Processes}),
    "demo": (train.demo, PARTS),
}


class _Parser(argparse.ArgumentParser):
    """Reports bad input in one sentence, as the commands do."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"demo_rfcn: {message}; see '{self.prog} --help'\n")


def main(argv: list[str] | None = None) -> int:
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


def parse(argv: list[str] | None = None) -> partial[None]:
    """Return the command of a line, to be called.

    Options that the line lacks come from a checkpoint: for `eval` those of the data and its scale,
    for `train --resume` those of the whole run, with `--pretrained` those of the network.
    """
    argv = sys.argv[1:] if argv is None else argv
    end = argv.index("--") if argv[:1] == ["launch"] and "--" in argv else len(argv)
    given = vars(_parser().parse_args(argv[:end]))
    command, parts = COMMANDS[given.pop("chosen")]
    own = settings.build(parts, {**_inherited(command, given), **given})
    core = {name: own.pop(name) for name in PARTS if name in own}
    rest = {name: value for part in own.values() for name, value in vars(part).items()}
    if command is launch.command:
        rest["line"] = line = argv[end + 1 :]
        if line[:1] == ["train"]:  # so that bad input is reported once
            store = parse(line).args[0].run.kv_store
            if "--kv-store" in line and not store.startswith("dist"):
                raise InputError(f"launch: --kv-store {store}, expected dist_sync")
    if len(core) == len(PARTS):
        return partial(command, Settings(**core), **rest)
    return partial(command, **core, **rest)


def _inherited(command: Callable, given: dict) -> dict[str, Any]:
    """Return the options that a checkpoint gives to a command."""
    if command in (detect.command, export.command):
        return {}
    default = Files.path if command is evaluate.command else None
    source = given.get("path", default) or given.get("resume") or given.get("pretrained")
    if not (source and source.is_file()):
        return {}  # the command reports a missing file
    stored = checkpoint.read(source)
    if command is evaluate.command:
        scale = {key: stored.notes[key] for key in ("short", "max_size")}
        trained_on = stored.arguments.get("dataset")
        if given.get("dataset", trained_on) != trained_on:
            return scale
        names = [each.name for each in fields(Data)]
        if "dataset_root" in given or "val_annotations" in given:
            names = [name for name in names if name not in LOCATION]
        return {**settings.inherited(source, stored.arguments, names), **scale}
    if given.get("resume"):
        names = [name for name in settings.OPTIONS if name not in settings.NOT_INHERITED]
        return settings.inherited(source, stored.arguments, names)
    names = ["network", "head", "k", "class_agnostic", "fpn", "deform"]
    return settings.inherited(source, stored.config.to_dict(), names)


def _parser() -> _Parser:
    parser = _Parser(
        prog="python -m demo_rfcn", description="R-FCN with gluon_roi: data, training, use."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="chosen")
    for name, (command, parts) in COMMANDS.items():
        text = (inspect.getdoc(command) or "").splitlines()[0]
        sub = commands.add_parser(name, help=text, description=text)
        settings.add_options(sub, parts, name)
        if name == "ablate":
            sub.set_defaults(steps=1000, save_prefix=RUNS / "ablation")
    return parser
