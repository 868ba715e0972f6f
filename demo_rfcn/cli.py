# SPDX-License-Identifier: Apache-2.0
"""The command line: one parser, one function per command."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NoReturn

from .commands import ablate, data, demo, detect, evaluate, export, launch, profile, train
from .errors import InputError, OutputError, RunError
from .run import checkpoint
from .run.options import (
    add_options,
    as_arguments,
    gpu_numbers,
    natural,
    positive,
    probability,
    shown,
)
from .run.settings import OWN, RUNS, Settings, options
from .run.train import LAST, Interrupted


class _HelpFormatter(argparse.HelpFormatter):
    """Shows defaults, where there is one to show."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        default = action.default
        if default in (None, (), [], "", argparse.SUPPRESS) or isinstance(default, bool):
            return action.help
        return f"{action.help} (default: {shown(default)})"


class _Parser(argparse.ArgumentParser):
    """Answers bad input with one sentence, as the commands do."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"demo_rfcn: {message}; see '{self.prog} --help'\n")


def main(argv: list[str] | None = None) -> int:
    """Run a command and return its exit status.

    0; 1 where a run cannot go on; 2 where the command is refused; 130 where it is interrupted.
    """
    try:
        parse(argv)()
        sys.stdout.flush()
    except (InputError, OutputError) as error:
        return _said(str(error), 2)
    except RunError as error:
        return _said(str(error), error.status)
    except OSError as error:  # of what writes to no file of its own
        return _said(f"{error.filename or 'standard output'}: {error.strerror}", 2)
    except (Interrupted, KeyboardInterrupt) as stopped:
        return _said(str(stopped) or "interrupted", 130)
    return 0


def _said(sentences: str, status: int) -> int:
    """Say why a command ends, and return its status."""
    with contextlib.suppress(OSError):  # nobody may be left to read it
        for sentence in sentences.splitlines():
            print(f"demo_rfcn: {sentence}", file=sys.stderr, flush=True)
    return status


def parse(argv: list[str] | None = None) -> partial[None]:
    """Parse a command line.

    What a checkpoint was trained with stands for what the line does not say: in `eval` for the data
    and its scale, in `train --resume` for the whole run, with `--pretrained` for the network.

    Returns
    -------
    functools.partial
        The command, to be called; its first argument is the `Settings`, where it takes any.
    """
    parser = _parser()
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["launch"]:
        return _parse_launch(parser, argv)
    given = vars(parser.parse_args(argv))
    if before := _inherited(given):
        given = vars(parser.parse_args([argv[0], *before, *argv[1:]]))
    command: Callable[..., None] = given.pop("command")
    if not given.pop("settings"):
        return partial(command, **given)
    names = [each.name for each in options() if each.name in given]
    return partial(command, Settings(**{name: given.pop(name) for name in names}), **given)


def _parse_launch(parser: _Parser, argv: list[str]) -> partial[None]:
    """Parse the line of `launch`, and the line of the workers, for which errors are said once."""
    end = argv.index("--") if "--" in argv else len(argv)
    given, line = vars(parser.parse_args(argv[:end])), argv[end + 1 :]
    if line[:1] == ["train"]:
        settings = parse(line).args[0]
        if "--kv-store" in line and not settings.kv_store.startswith("dist"):
            raise InputError(f"launch: --kv-store {settings.kv_store}, expected dist_sync")
    return partial(
        launch.command, given["workers"], given["servers"], given["address"], given["only"], line
    )


def _inherited(given: dict) -> list[str]:
    """Return the arguments that a checkpoint gives to a command."""
    source = given.get("path") or given.get("resume") or given.get("pretrained")
    if not (given["settings"] and source and source.is_file()):
        return []  # the command says what is missing
    if given["command"] is evaluate.command:
        return evaluate.inherited(given)
    if given.get("resume"):
        stored = checkpoint.read_meta(given["resume"])["arguments"]
        return as_arguments([each for each in options() if each.name not in OWN], stored)
    stored = checkpoint.read_meta(source)["config"].to_dict()
    named = ("network", "head", "k", "class_agnostic", "fpn", "deform")
    return as_arguments([each for each in options() if each.name in named], stored)


def _parser() -> _Parser:
    parser = _Parser(
        prog="python -m demo_rfcn", description="R-FCN with gluon_roi: data, training, use."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    reading = ("data",)
    training = (*reading, "augmentation", "network", "training", "devices", "workers", "run")
    for name, function, groups, own, text in (
        ("data", data.command, reading, (), "generate an embedded data set on disk in VOC layout"),
        ("train", train.command, (*training, "precision"), (), "train a detector"),
        (
            "eval",
            evaluate.command,
            reading,
            (_checkpoint, _devices),
            "mAP and pictures of a checkpoint, on its own data and scale unless others are given",
        ),
        (
            "ablate",
            ablate.command,
            training,
            (_ablation,),
            "compare variants of the head and of the training over seeds",
        ),
        ("profile", profile.command, training, (_profile,), "time the parts of a training step"),
        (
            "detect",
            detect.command,
            (),
            (_images, _checkpoint, _devices),
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
            training,
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
        add_options(sub, options(), groups)
        for add in own:
            add(sub)
        sub.set_defaults(command=function, settings=bool(groups))
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


def _devices(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("devices")
    group.add_argument(
        "--gpus", type=gpu_numbers, default=(), metavar="0,1", help="GPUs to compute on"
    )
    group.add_argument("--cpus", type=positive, default=1, help="CPU contexts, without --gpus")
    group.add_argument(
        "--batch-size", type=positive, default=4, help="images at a time, of all devices together"
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


def _profile(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "profile", "Runs on one CPU context, whatever the arguments on devices and on the run."
    )
    group.add_argument("--repeats", type=positive, default=20, help="timed calls per figure")
