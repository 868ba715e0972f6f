"""The command line: one parser, one function per command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NoReturn

from .commands import ablate, data, demo, detect, evaluate, export, profile, train
from .errors import InputError, OutputError
from .run.settings import RUNS, Settings, add_arguments, natural, options, positive, probability
from .run.train import LAST, Interrupted


class _HelpFormatter(argparse.HelpFormatter):
    """Shows defaults, where there is one to show."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default in (None, (), argparse.SUPPRESS) or isinstance(action.default, bool):
            return action.help
        return f"{action.help} (default: %(default)s)"


class _Parser(argparse.ArgumentParser):
    """Answers bad input with one sentence, as the commands do."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"demo_rfcn: {message}; see '{self.prog} --help'\n")


def main(argv: list[str] | None = None) -> int:
    """Run a command and return its exit status: 0, 2 where it is refused, 130 when interrupted."""
    try:
        parse(argv)()
        sys.stdout.flush()
    except (InputError, OutputError) as error:
        for sentence in str(error).splitlines():
            print(f"demo_rfcn: {sentence}", file=sys.stderr)
        return 2
    except OSError as error:  # of what writes to no file of its own
        place = error.filename or "standard output"
        print(f"demo_rfcn: {place}: {error.strerror}", file=sys.stderr)
        return 2
    except (Interrupted, KeyboardInterrupt) as stopped:
        print(f"demo_rfcn: {str(stopped) or 'interrupted'}", file=sys.stderr)
        return 130
    return 0


def parse(argv: list[str] | None = None) -> partial[None]:
    """Parse a command line.

    Returns
    -------
    functools.partial
        The command, to be called; its first argument is the `Settings`, where it takes any.
    """
    parser = _Parser(
        prog="python -m demo_rfcn", description="R-FCN with gluon_roi: data, training, use."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    reading = ("data",)
    training = (*reading, "augmentation", "network", "training", "devices", "run")
    for name, function, groups, own, text in (
        ("data", data.command, reading, (), "generate an embedded data set on disk in VOC layout"),
        ("train", train.command, (*training, "precision"), (), "train a detector"),
        ("eval", evaluate.command, reading, (_pretrained,), "mAP and pictures of a checkpoint"),
        (
            "ablate",
            ablate.command,
            training,
            (_ablation,),
            "compare variants of the head and of the training over seeds",
        ),
        ("profile", profile.command, training, (_profile,), "time the parts of a training step"),
        ("detect", detect.command, (), (_images, _pretrained), "detect objects in image files"),
        (
            "export",
            export.command,
            (),
            (_export, _pretrained),
            "write symbol.json and parameters, or ONNX",
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
        add_arguments(sub, groups)
        for add in own:
            add(sub)
        sub.set_defaults(command=function)
    given = vars(parser.parse_args(argv))
    command: Callable[..., None] = given.pop("command")
    if "dataset" not in given:
        return partial(command, **given)
    names = [each.name for each in options() if each.name in given]
    return partial(command, Settings(**{name: given.pop(name) for name in names}), **given)


def _pretrained(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("checkpoint")
    group.add_argument(
        "--pretrained",
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
        help="for the results",
    )


def _images(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("images")
    group.add_argument("images", type=Path, nargs="+", metavar="IMAGE", help="image files")
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
