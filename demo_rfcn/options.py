# SPDX-License-Identifier: Apache-2.0
"""The options of the command line: their types, their help, and groups of them."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn

from . import export, launch
from .checkpoint import MAX_ANCHOR, MAX_SIDE, MIN_ANCHOR
from .config import GENERATED_STEPS, LAST, RUNS, Data, Devices, Model, Output, Schedule
from .data import DATASETS
from .errors import InputError
from .losses import TrainGraph
from .networks import HEADS, MAX_K, NETWORKS

PARTS = (Data, Model, Schedule, Devices, Output)
DEFAULTS: dict[str, Any] = {each.name: each.default for part in PARTS for each in fields(part)}
TRAINED = RUNS / "signals" / LAST  # default of --pretrained for commands that use a detector


def number(convert: type, words: str, accepts: Callable[[Any], bool]) -> Callable[[str], Any]:
    """Return a conversion of text to a finite number that is accepted; `words` say which are."""

    def converted(text: str) -> Any:
        with contextlib.suppress(ValueError):
            if abs(value := convert(text)) < float("inf") and accepts(value):
                return value
        raise argparse.ArgumentTypeError(f"expected {words}, got {text}")

    return converted


def integer(lowest: int, highest: int = 2**31 - 1) -> Callable[[str], int]:
    """Return a conversion of text to an integer within a range."""
    words = f">= {lowest}" if highest == 2**31 - 1 else f"from {lowest} to {highest}"
    return number(int, f"an integer {words}", lambda value: lowest <= value <= highest)


natural, positive, pixels = integer(0), integer(1), integer(1, MAX_SIDE)
above_zero = number(float, "a number > 0", lambda value: value > 0)
from_zero = number(float, "a number >= 0", lambda value: value >= 0)
probability = number(float, "a number from 0 to 1", lambda value: 0 <= value <= 1)
below_one = number(float, "a number >= 0 and < 1", lambda value: 0 <= value < 1)
up_to_one = number(float, "a number > 0 and <= 1", lambda value: 0 < value <= 1)
share = number(float, "a number > 0 and < 1", lambda value: 0 < value < 1)
anchor_size = number(
    float,
    f"a number from {MIN_ANCHOR} to {MAX_ANCHOR}",
    lambda value: MIN_ANCHOR <= value <= MAX_ANCHOR,
)


def gpu_numbers(text: str) -> tuple[int, ...]:
    """Convert a list such as 0,1."""
    numbers = tuple(natural(part) for part in text.split(",") if part)
    if len(set(numbers)) < len(numbers):
        raise argparse.ArgumentTypeError(f"expected different numbers, got {text}")
    return numbers


class Parser(argparse.ArgumentParser):
    """Raises InputError for bad input, and adds options that are absent unless they are given."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        """Reject the command line."""
        raise InputError(f"{message}; see '{self.prog} --help'")

    def option(self, flags: str, text: str, default: Any = None, **how: Any) -> None:
        """Add an option; its help shows `default`, or the settings' value if that is None."""
        names = flags.split()
        field = names[-1].lstrip("-").replace("-", "_")
        how.setdefault("dest", field)
        default = DEFAULTS[how["dest"]] if default is None else default
        help_text = f"{text} (default: {_as_typed(default)})"
        self.add_argument(*names, help=help_text, default=argparse.SUPPRESS, **how)

    def flag(self, name: str, text: str, dest: str = "") -> None:
        """Add an option without a value, which inverts its default."""
        dest = dest or name.lstrip("-").replace("-", "_")
        action = "store_false" if DEFAULTS[dest] else "store_true"
        text = f"{text} (default: off)"
        self.add_argument(name, help=text, dest=dest, action=action, default=argparse.SUPPRESS)


def _as_typed(value: Any) -> str:
    """Return a default as it is typed on a command line."""
    values = value if isinstance(value, tuple) else (value,)
    return " ".join(f"{each:g}" if isinstance(each, float) else str(each) for each in values)


def add_location(parser: Parser, names: Sequence[str]) -> None:
    """Add the options of a data set of one of these names: its folder, and its generation."""
    option = parser.option
    option("--dataset", "data set", choices=names)
    default = "runs/data/<dataset>"
    option("--dataset-root", "folder of the data set", default, type=Path, metavar="DIR")
    option("--data-seed", "seed of a generated data set", type=natural)


def add_generated(parser: Parser) -> None:
    """Add the options of `data`."""
    add_location(parser, sorted(name for name, spec in DATASETS.items() if spec.recipe))


def add_data(parser: Parser, source: str = "from the data set") -> None:
    """Add the options of `Data`; `source` says in the help where the scale comes from."""
    add_location(parser, sorted(DATASETS))
    option = parser.option
    for purpose, verb in (("train", "train"), ("val", "validate")):
        text = f"COCO file to {verb} on"
        default = "from --dataset-root"
        option(f"--{purpose}-annotations", text, default, type=Path, metavar="FILE")
        text = f"folder of the images of --{purpose}-annotations"
        option(f"--{purpose}-images", text, default, type=Path, metavar="DIR")
    text = "share of the training images held back, if no list names validation images"
    option("--val-share", text, type=share)
    text = "classes of a voc-like folder or a COCO file"
    option("--classes", text, "all in the annotations", nargs="+", type=str.strip, metavar="NAME")
    parser.flag("--skip-broken", "leave out images whose files are broken")
    option("--short", "short side of the scaled images, pixels", source, type=pixels)
    text = "limit of the long side of the scaled images, pixels"
    option("--max-size", text, f"{source}, at least --short", type=pixels)


def add_model(parser: Parser) -> None:
    """Add the options of `Model`, and the options of `Data` that the network depends on."""
    option = parser.option
    option("--network", "backbone", choices=NETWORKS)
    option("--head", "detection head", choices=sorted(HEADS))
    text = "bins per side of the pooling"
    option("--k", text, "7; 1 for the head 'global'", type=integer(1, MAX_K))
    parser.flag("--fpn", "add a feature pyramid between backbone and head")
    parser.flag("--deform", "use deformable convolutions in the last stage of the backbone")
    text = "learn box offsets for each class, instead of shared ones"
    parser.flag("--no-class-agnostic", text, "class_agnostic")
    text = "weights of GluonCV's classification network"
    option("--pretrained-base", text, "random weights", metavar="FILE")
    text = "detector to fine-tune; it sets network, head, k and --freeze-bn"
    option("--pretrained", text, "random weights", type=Path, metavar="FILE")
    parser.flag("--freeze-bn", "do not train batch normalisation")
    for name, what in (
        ("scales", "sides of square anchors, in units of 16 pixels"),
        ("ratios", "height / width of anchors"),
    ):
        option(f"--anchor-{name}", what, "from the data set", type=anchor_size, nargs="+")


def add_schedule(parser: Parser) -> None:
    """Add the options of `Schedule`."""
    option = parser.option
    text = f"{GENERATED_STEPS} for generated data, otherwise 100 passes, from 500 to 30000"
    option("--steps", "training steps, of a batch each", text, type=positive)
    option("--optimizer", "optimizer", choices=("adam", "sgd"))
    option("--momentum", "SGD momentum", type=below_one)
    option("--lr", "highest learning rate", type=above_zero)
    option("--lr-warmup", "steps of linear warm-up", type=natural)
    option("--lr-mode", "schedule of the learning rate", choices=("cosine", "step"))
    option("--lr-decay", "factor on the learning rate at --lr-decay-steps", type=up_to_one)
    text = "steps at which --lr-decay applies"
    option("--lr-decay-steps", text, "two thirds of --steps", type=positive, nargs="+")
    option("--head-lr-mult", "factor on the head's learning rate", type=from_zero)
    option("--clip-gradient", "largest absolute gradient value", "no limit", type=above_zero)
    option("--wd", "weight decay", type=from_zero)
    option("--rpn-num-sample", "anchors per image in the RPN loss", type=integer(2))
    limit = TrainGraph.NUM_PROPOSALS
    option("--roi-num-sample", "RoIs per image in the head's loss", type=integer(1, limit))
    parser.flag("--no-ohem", "disable online hard example mining, train on random RoIs", "ohem")
    option("--flip-p", "probability of a horizontal flip", type=probability)
    text = "lowest and highest factor on the short side"
    option("--scale-jitter", text, type=above_zero, nargs=2, metavar=("LOW", "HIGH"))
    text = "largest relative change of brightness, contrast and saturation"
    option("--color-jitter", text, type=probability)
    option("--seed", "seed of weights, data order and augmentation", type=natural)


def add_devices(parser: Parser) -> None:
    """Add the options of `Devices`."""
    parser.option("--gpus", "GPUs to compute on", "the CPU", type=gpu_numbers, metavar="0,1")
    parser.option("--cpus", "CPU contexts, without --gpus", type=positive)
    parser.option("--batch-size", "images at a time, on all devices together", type=positive)


def add_output(parser: Parser) -> None:
    """Add the options of `Output`."""
    option = parser.option
    option("--save-prefix", "folder of the run", "runs/<dataset>", type=Path, metavar="DIR")
    text = "continue from this checkpoint"
    option("--resume", text, "a new run", type=Path, metavar="FILE")
    option("--max-seconds", "stop early, with a checkpoint", "no limit", type=above_zero)
    option("--log-interval", "steps between two rows of losses", type=positive)
    option("--val-interval", "steps between two validations", type=positive)
    option("--val-limit", "largest number of images in a validation", type=positive)
    text = "where gradients are summed; dist_sync for several processes"
    stores = ("local", "device", "dist_sync", "dist_device_sync")
    option("--kv-store", text, choices=stores)


def add_train(parser: Parser) -> None:
    """Add the options that `train` and `demo` share."""
    for add in (add_data, add_model, add_schedule, add_devices, add_output):
        add(parser)


def add_results(parser: Parser) -> None:
    """Add the options of the commands that use a trained detector."""
    parser.option("--pretrained", "trained detector", TRAINED, type=Path, metavar="FILE")
    text = "folder for the results"
    parser.option("--save-prefix", text, RUNS / "output", type=Path, metavar="DIR")


def add_detect(parser: Parser) -> None:
    """Add the images and the options of `detect`."""
    text = "image files, or folders of them"
    parser.add_argument("images", help=text, nargs="+", type=Path, metavar="IMAGE")
    parser.option("--thresh", "lowest score that is drawn", 0.5, type=probability)
    add_devices(parser)
    add_results(parser)


def add_export(parser: Parser) -> None:
    """Add the options of `export`."""
    parser.option("--name", "stem of the files", "rfcn")
    text = "symbol.json and parameters, or one ONNX file"
    parser.option("--format", text, export.FORMATS[0], choices=export.FORMATS)
    add_results(parser)


def add_launch(parser: Parser) -> None:
    """Add the options of `launch`."""
    option = parser.option
    option("-n --workers", "processes that train", 2, type=positive)
    option("-s --servers", "number of gradient servers", 1, type=positive)
    text = "address of the scheduler, the same on all machines"
    option("--address", text, "this machine", metavar="HOST:PORT")
    text = f"start these processes here, out of {', '.join(launch.ROLES)}, and no others"
    option("--only", text, "all", choices=launch.ROLES, nargs="+", metavar="ROLE")


def add_eval(parser: Parser) -> None:
    """Add the options of `eval`; data and scale come from the checkpoint by default."""
    add_data(parser, "from the checkpoint")
    add_devices(parser)
    add_results(parser)
