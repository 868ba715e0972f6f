# SPDX-License-Identifier: Apache-2.0
"""The command line: one parser, one function per command."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from .commands import ablate, data, demo, detect, evaluate, export, train
from .distributed import launch
from .errors import InputError, Interrupted, OutputError, RunError
from .options import add_options, natural, positive, probability, shown
from .run import checkpoint
from .run.record import LAST
from .settings import LOCATION, NOT_INHERITED, OPTIONS, PARTS, RUNS, Data, Settings
from .settings import build as build_parts
from .settings import inherited as checked


class _HelpFormatter(argparse.HelpFormatter):
    """Shows the defaults that there are."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        default = action.default
        if default in (None, (), [], "", argparse.SUPPRESS) or isinstance(default, bool):
            return action.help
        return f"{action.help} (default: {shown(default)})"


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
    except (InputError, OutputError) as error:
        return _report(str(error), 2)
    except RunError as error:
        return _report(str(error), error.status)
    except OSError as error:  # of the standard output
        return _report(f"{error.filename or 'standard output'}: {error.strerror}", 2)
    except (Interrupted, KeyboardInterrupt) as stopped:
        return _report(str(stopped) or "interrupted", 130)
    return 0


def _report(sentences: str, status: int) -> int:
    """Print why a command ends, and return its status."""
    with contextlib.suppress(OSError):  # nobody may be left to read it
        for sentence in sentences.splitlines():
            print(f"demo_rfcn: {sentence}", file=sys.stderr, flush=True)
    return status


def parse(argv: list[str] | None = None) -> partial[None]:
    """Return the command of a line, to be called.

    Options that the line lacks come from a checkpoint: for `eval` those of the data and its scale,
    for `train --resume` those of the whole run, with `--pretrained` those of the network. A command
    of training has all five parts as its first argument, `Settings`.
    """
    argv = sys.argv[1:] if argv is None else argv
    end = argv.index("--") if argv[:1] == ["launch"] and "--" in argv else len(argv)
    given = vars(_parser().parse_args(argv[:end]))
    command: Callable[..., None] = given.pop("command")
    if command is launch.command:
        del given["parts"]
        line = argv[end + 1 :]
        if line[:1] == ["train"]:  # so that bad input is reported once
            store = parse(line).args[0].run.kv_store
            if "--kv-store" in line and not store.startswith("dist"):
                raise InputError(f"launch: --kv-store {store}, expected dist_sync")
        return partial(command, **given, line=line)
    parts: dict[str, Any] = given.pop("parts")
    values = {**_inherited(command, given), **given}
    made = build_parts(parts, values)
    used = {each.name for part in parts.values() for each in dataclasses.fields(part)}
    rest = {name: value for name, value in given.items() if name not in used}
    if len(made) == len(PARTS):
        return partial(command, Settings(**made), **rest)
    return partial(command, **made, **rest)


def _inherited(command: Callable, given: dict) -> dict[str, Any]:
    """Return the options that a checkpoint gives to a command."""
    source = given.get("path") or given.get("resume") or given.get("pretrained")
    if command in (detect.command, export.command) or not (source and source.is_file()):
        return {}  # the command reports a missing file
    stored = checkpoint.read(source)
    if command is evaluate.command:
        scale = {key: stored.notes[key] for key in ("short", "max_size")}
        if given.get("dataset", stored.arguments.get("dataset")) != stored.arguments.get("dataset"):
            return scale
        left_out = LOCATION if "dataset_root" in given or "val_annotations" in given else ()
        names = [name for name in Data.__dataclass_fields__ if name not in left_out]
        return {**checked(source, stored.arguments, names), **scale}
    if given.get("resume"):
        names = [name for name in OPTIONS if name not in NOT_INHERITED]
        return checked(source, stored.arguments, names)
    names = ["network", "head", "k", "class_agnostic", "fpn", "deform"]
    return checked(source, stored.config.to_dict(), names)


def _parser() -> _Parser:
    parser = _Parser(
        prog="python -m demo_rfcn", description="R-FCN with gluon_roi: data, training, use."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    every = tuple(PARTS)
    for name, function, parts, own, text in (
        ("data", data.command, ("data",), (), "generate an embedded data set in VOC layout"),
        ("train", train.command, every, (), "train a detector"),
        (
            "eval",
            evaluate.command,
            ("data", "devices"),
            (_checkpoint,),
            "mAP and pictures of a checkpoint, on its own data and scale unless others are given",
        ),
        (
            "ablate",
            ablate.command,
            every,
            (_ablation,),
            "compare variants of the head and of the training over seeds",
        ),
        (
            "detect",
            detect.command,
            ("devices",),
            (_images, _checkpoint),
            "detect objects in image files",
        ),
        (
            "export",
            export.command,
            (),
            (_export, _checkpoint),
            "write symbol.json and parameters, or ONNX",
        ),
        (
            "launch",
            launch.command,
            (),
            (_launch,),
            "train with several processes: launch -n WORKERS -s SERVERS -- train ...",
        ),
        (
            "demo",
            demo.command,
            every,
            (),
            "everything: data, training, evaluation, pictures; reuses what is there",
        ),
    ):
        sub = commands.add_parser(
            name,
            help=text,
            description=text[0].upper() + text[1:] + ".",
            formatter_class=_HelpFormatter,
        )
        chosen = {part: PARTS[part] for part in parts}
        add_options(sub, chosen, name)
        for add in own:
            add(sub)
        sub.set_defaults(command=function, parts=chosen)
    return parser


def _launch(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("processes", "Of the whole run, on all its machines.")
    group.add_argument("-n", "--workers", type=positive, default=2, help="processes that train")
    group.add_argument("-s", "--servers", type=positive, default=1, help="that sum the gradients")
    group = parser.add_argument_group("machines")
    group.add_argument(
        "--address",
        default="",
        metavar="HOST:PORT",
        help="of the scheduler, on all machines alike; this machine if not given",
    )
    group.add_argument(
        "--only",
        nargs="+",
        default=[],
        choices=launch.ROLES,
        metavar="ROLE",
        help=f"start these processes here, out of {', '.join(launch.ROLES)}, and no others",
    )


def _checkpoint(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("checkpoint")
    group.add_argument(
        "--pretrained",
        dest="path",
        type=Path,
        metavar="FILE",
        default=RUNS / "signals" / LAST,
        help="trained detector",
    )
    group.add_argument(
        "--save-prefix",
        type=Path,
        metavar="DIR",
        default=RUNS / "output",
        help="folder for the results",
    )


def _images(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("images")
    group.add_argument(
        "images", type=Path, nargs="+", metavar="IMAGE", help="image files, or folders of them"
    )
    group.add_argument("--thresh", type=probability, default=0.5, help="lowest score that is drawn")


def _export(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("export")
    group.add_argument("--name", default="rfcn", help="stem of the files")
    group.add_argument(
        "--format",
        choices=export.FORMATS,
        default=export.FORMATS[0],
        help="symbol.json and parameters, or one ONNX file",
    )


def _ablation(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "ablation",
        "Sets --head, --k, --fpn, --no-ohem, --seed, --resume and --val-interval by itself.",
    )
    group.add_argument(
        "--seeds", type=natural, nargs="+", default=[0, 1, 2], help="seeds of a variant"
    )
    group.add_argument(
        "--further",
        nargs="+",
        default=[],
        choices=list(ablate.FURTHER),
        metavar="NAME",
        help=f"further variants out of {', '.join(ablate.FURTHER)}",
    )
    parser.set_defaults(steps=1000, save_prefix=RUNS / "ablation")
