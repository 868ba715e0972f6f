"""The command line: one parser, its arguments in groups, one function per command."""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from . import ablate, demo, detect, export, profile, train
from .data import DATASETS, DatasetSpec, ensure_dataset, open_datasets
from .errors import InputError, OutputError
from .heads import HEADS
from .network import BACKBONES

RUNS = Path("runs")


class _HelpFormatter(argparse.HelpFormatter):
    """Shows defaults, where there is one to show."""

    def _get_help_string(self, action: argparse.Action) -> str:
        if action.default in (None, [], argparse.SUPPRESS) or isinstance(action.default, bool):
            return action.help
        return f"{action.help} (default: %(default)s)"


class _Parser(argparse.ArgumentParser):
    """Answers bad input with one sentence, as the commands do."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"demo_rfcn: {message}; see '{self.prog} --help'\n")


def main(argv: list | None = None) -> int:
    """Run a command and return its exit status: 0, 2 for bad input, 130 when interrupted."""
    try:
        args = parse(argv)
        args.command(args)
        sys.stdout.flush()
    except (InputError, OutputError) as error:
        for sentence in str(error).splitlines():
            print(f"demo_rfcn: {sentence}", file=sys.stderr)
        return 2
    except OSError as error:  # of what writes to no file of its own
        place = error.filename or "standard output"
        print(f"demo_rfcn: {place}: {error.strerror}", file=sys.stderr)
        return 2
    except (train.Interrupted, KeyboardInterrupt) as stopped:
        print(f"demo_rfcn: {str(stopped) or 'interrupted'}", file=sys.stderr)
        return 130
    return 0


def parse(argv: list | None = None) -> argparse.Namespace:
    """Parse a command line; `command` of the result is the function to call."""
    parser = _Parser(
        prog="python -m demo_rfcn", description="R-FCN with gluon_roi: data, training, use."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    training = (_data, _augmentation, _model, _training, _devices, _run)
    for name, function, groups, text in (
        ("data", make_data, (_data,), "generate an embedded data set on disk in VOC layout"),
        ("train", train_command, (*training, _precision), "train a detector"),
        ("eval", demo.evaluate_command, (_data, _pretrained), "mAP and pictures of a checkpoint"),
        (
            "ablate",
            ablate.command,
            (*training, _ablation),
            "compare variants of the head and of the training over seeds",
        ),
        ("profile", profile.command, (*training, _profile), "time the parts of a training step"),
        ("detect", detect.command, (_images, _pretrained), "detect objects in image files"),
        ("export", export.command, (_export, _pretrained), "write symbol.json and parameters"),
        (
            "demo",
            demo.command,
            training,
            "everything: data, training, evaluation, pictures; reuses what is there",
        ),
    ):
        sub = commands.add_parser(
            name,
            help=text,
            description=text[0].upper() + text[1:] + ".",
            formatter_class=_HelpFormatter,
        )
        for group in groups:
            group(sub)
        sub.set_defaults(command=function)
    args = parser.parse_args(argv)
    if "dataset" in args:
        args.dataset_root = Path(args.dataset_root or RUNS / "data" / args.dataset)
        args.spec = _resolved_spec(args)
    if "flip_p" in args and args.flip_p is None:
        args.flip_p = args.spec.flip_p
    if "scale_jitter" in args and args.scale_jitter[0] > args.scale_jitter[1]:
        low, high = args.scale_jitter
        raise InputError(f"train: --scale-jitter {low} {high}, expected 0 < LOW <= HIGH")
    if "lr_decay_steps" in args:
        steps = args.lr_decay_steps or []
        if any(first >= second for first, second in zip(steps, steps[1:])):
            shown = " ".join(map(str, steps))
            raise InputError(f"train: --lr-decay-steps {shown}, expected an increasing order")
    if "save_prefix" in args:
        args.save_prefix = Path(args.save_prefix or RUNS / args.dataset)
        if args.save_prefix.is_file():
            raise InputError(f"--save-prefix {args.save_prefix} is a file, expected a folder")
    return args


def _resolved_spec(args: argparse.Namespace) -> DatasetSpec:
    """Return the data set's specification with what the command line changes in it."""
    spec = DATASETS[args.dataset]
    if bool(args.classes) == bool(spec.classes):
        wanted = "has its own classes; leave out" if spec.classes else "needs"
        raise InputError(f"dataset: '{spec.name}' {wanted} --classes")
    classes = tuple(name.strip().lower() for name in args.classes or spec.classes)
    if not all(classes) or len(set(classes)) < len(classes):
        raise InputError(f"dataset: --classes {', '.join(classes)}, expected different names")
    changes = {"classes": classes}
    for name in ("short", "max_size"):
        if getattr(args, name):
            changes[name] = getattr(args, name)
    spec = dataclasses.replace(spec, **changes)
    return dataclasses.replace(spec, max_size=max(spec.max_size, spec.short))


def _data(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("data")
    group.add_argument("--dataset", choices=sorted(DATASETS), default="signals", help="data set")
    group.add_argument(
        "--dataset-root",
        metavar="DIR",
        help="folder that holds VOC2007; runs/data/<dataset> if not given",
    )
    group.add_argument("--data-seed", type=_natural, default=0, help="seed of a generated data set")
    group.add_argument("--classes", nargs="+", metavar="NAME", help="classes of a voc-like folder")
    group.add_argument(
        "--skip-broken", action="store_true", help="go on without images whose files are broken"
    )
    group.add_argument("--short", type=_positive, help="short side of the scaled images, pixels")
    group.add_argument("--max-size", type=_positive, help="limit of their long side, pixels")


def _augmentation(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("augmentation")
    group.add_argument("--flip-p", type=_probability, help="probability of a horizontal flip")
    group.add_argument(
        "--scale-jitter",
        type=_above_zero,
        nargs=2,
        metavar=("LOW", "HIGH"),
        default=(1.0, 1.0),
        help="range of a factor on the short side",
    )
    group.add_argument(
        "--color-jitter", type=_probability, default=0.0, help="brightness, contrast, saturation"
    )


def _model(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("network")
    group.add_argument("--network", choices=sorted(BACKBONES), default="small", help="backbone")
    group.add_argument("--head", choices=sorted(HEADS), default="psroi", help="detection head")
    group.add_argument("--k", type=_positive, default=3, help="bins per side of the pooling")
    group.add_argument(
        "--no-class-agnostic",
        dest="class_agnostic",
        action="store_false",
        help="box offsets per class instead of shared ones",
    )
    group.add_argument(
        "--pretrained-base", metavar="FILE", help="weights of GluonCV's classification network"
    )
    group.add_argument("--freeze-bn", action="store_true", help="do not train batch normalisation")


def _training(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("training")
    group.add_argument("--steps", type=_positive, default=2000, help="batches in all")
    group.add_argument("--batch-size", type=_positive, default=4, help="images per step")
    group.add_argument("--optimizer", choices=("adam", "sgd"), default="adam", help="update rule")
    group.add_argument("--momentum", type=_below_one, default=0.9, help="of sgd")
    group.add_argument("--lr", type=_above_zero, default=2e-3, help="highest learning rate")
    group.add_argument("--lr-warmup", type=_natural, default=100, help="steps of linear warm-up")
    group.add_argument("--lr-mode", choices=("cosine", "step"), default="cosine", help="schedule")
    group.add_argument("--lr-decay", type=_up_to_one, default=0.1, help="factor of --lr-mode step")
    group.add_argument(
        "--lr-decay-steps",
        type=_positive,
        nargs="+",
        metavar="STEP",
        help="when it applies; two thirds of --steps if not given",
    )
    group.add_argument(
        "--head-lr-mult", type=_from_zero, default=1.0, help="factor on the head's learning rate"
    )
    group.add_argument(
        "--clip-gradient", type=_above_zero, metavar="LIMIT", help="largest absolute gradient value"
    )
    group.add_argument("--wd", type=_from_zero, default=1e-4, help="weight decay")
    group.add_argument(
        "--rpn-num-sample", type=_positive, default=128, help="anchors per image in the RPN loss"
    )
    group.add_argument(
        "--no-ohem",
        dest="ohem",
        action="store_false",
        help="random RoIs instead of the hardest ones",
    )
    group.add_argument("--max-seconds", type=_above_zero, help="stop early, with a checkpoint")
    group.add_argument("--seed", type=_natural, default=0, help="weights, data order, augmentation")


def _devices(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("devices")
    group.add_argument("--gpus", type=_numbers, default=[], metavar="0,1", help="GPUs to train on")
    group.add_argument("--cpus", type=_positive, default=1, help="CPU contexts, without --gpus")
    group.add_argument(
        "--kv-store",
        choices=("local", "device", "dist_sync", "dist_device_sync"),
        default="device",
        help="of several contexts; dist_sync for several machines",
    )
    parser.set_defaults(amp=False)


def _precision(parser: argparse.ArgumentParser) -> None:
    # Of `train` alone: AMP cannot be ended, and what other commands do afterwards is in float32.
    group = parser.add_argument_group("precision")
    group.add_argument(
        "--amp", action="store_true", help="use MXNet AMP for mixed precision training"
    )


def _run(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("run")
    group.add_argument(
        "--save-prefix", metavar="DIR", help="folder of the run; runs/<dataset> if not given"
    )
    group.add_argument("--resume", metavar="FILE", help="go on from this checkpoint")
    group.add_argument("--log-interval", type=_positive, default=20, help="steps per loss entry")
    group.add_argument("--val-interval", type=_positive, default=250, help="steps per validation")
    group.add_argument("--val-images", type=_positive, default=100, help="images of a validation")


def _pretrained(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("checkpoint")
    group.add_argument(
        "--pretrained", metavar="FILE", default="runs/signals/best.ckpt", help="trained detector"
    )
    group.add_argument(
        "--save-prefix", metavar="DIR", default="runs/output", help="for the results"
    )


def _images(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("images")
    group.add_argument("images", nargs="+", metavar="IMAGE", help="image files")
    group.add_argument(
        "--thresh", type=_probability, default=0.5, help="lowest score that is drawn"
    )


def _export(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("export")
    group.add_argument("--name", default="rfcn", help="stem of the two files")


def _ablation(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "ablation", "Sets --head, --k, --no-ohem, --seed, --resume and --val-interval by itself."
    )
    group.add_argument(
        "--seeds", type=_natural, nargs="+", default=[0, 1, 2], help="seeds of a variant"
    )
    parser.set_defaults(steps=1000, save_prefix=RUNS / "ablation")


def _profile(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "profile", "Runs on one CPU context, whatever the arguments on devices and on the run."
    )
    group.add_argument("--repeats", type=_positive, default=20, help="timed calls per figure")


def _numbers(text: str) -> list:
    numbers = [_natural(part) for part in text.split(",") if part]
    if len(set(numbers)) < len(numbers):
        raise argparse.ArgumentTypeError(f"expected different numbers, got {text}")
    return numbers


def _positive(text: str) -> int:
    return _integer(text, 1)


def _natural(text: str) -> int:
    return _integer(text, 0)


def _integer(text: str, lowest: int) -> int:
    if not text.isdecimal() or int(text) < lowest:
        raise argparse.ArgumentTypeError(f"expected an integer from {lowest} on, got {text}")
    return int(text)


def _number(words: str, accepts: Callable[[float], bool]) -> Callable[[str], float]:
    """Return a conversion of text to a finite number that is accepted; words say which."""

    def convert(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and accepts(value)):
            raise argparse.ArgumentTypeError(f"expected a number {words}, got {text}")
        return value

    return convert


_above_zero = _number("above 0", lambda value: value > 0)
_from_zero = _number("from 0 on", lambda value: value >= 0)
_probability = _number("from 0 to 1", lambda value: 0 <= value <= 1)
_below_one = _number("from 0 on and below 1", lambda value: 0 <= value < 1)
_up_to_one = _number("above 0 and up to 1", lambda value: 0 < value <= 1)


def make_data(args: argparse.Namespace) -> None:
    """Generate a data set and say where it is."""
    made = ensure_dataset(args.dataset, args.dataset_root, args.data_seed)
    print(f"{'wrote' if made else 'found'} {args.dataset} in {args.dataset_root.resolve()}")


def train_command(args: argparse.Namespace) -> None:
    """Train and say where the run is."""
    datasets = open_datasets(args.spec, args.dataset_root, ("train", "val"), args.skip_broken)
    print(train.run(args, *datasets).resolve())
