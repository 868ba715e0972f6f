"""The command line: one parser, its arguments in groups, one function per command."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

from . import ablate, demo, detect, export, profile, train
from .data import DATASETS, DatasetSpec, ensure_dataset
from .errors import InputError
from .heads import HEADS
from .network import BACKBONES

RUNS = Path("runs")


class _HelpFormatter(argparse.HelpFormatter):
    """Shows defaults, where there is one to show."""

    def _get_help_string(self, action: argparse.Action) -> str:
        if action.default in (None, [], argparse.SUPPRESS) or isinstance(action.default, bool):
            return action.help
        return f"{action.help} (default: %(default)s)"


def main(argv: list | None = None) -> int:
    """Run a command and return its exit status: 0, 2 for bad input, 130 when interrupted."""
    try:
        args = parse(argv)
        args.command(args)
    except InputError as error:
        print(f"demo_rfcn: {error}", file=sys.stderr)
        return 2
    except train.Interrupted as stopped:
        print(f"demo_rfcn: {stopped}", file=sys.stderr)
        return 130
    return 0


def parse(argv: list | None = None) -> argparse.Namespace:
    """Parse a command line; `command` of the result is the function to call."""
    parser = argparse.ArgumentParser(
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
    if "scale_jitter" in args and not 0 < args.scale_jitter[0] <= args.scale_jitter[1]:
        low, high = args.scale_jitter
        raise InputError(f"train: --scale-jitter {low} {high}, expected 0 < LOW <= HIGH")
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
    changes = {"classes": tuple(name.lower() for name in args.classes or spec.classes)}
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
    group.add_argument("--short", type=_positive, help="short side of the scaled images, pixels")
    group.add_argument("--max-size", type=_positive, help="limit of their long side, pixels")


def _augmentation(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("augmentation")
    group.add_argument("--flip-p", type=_probability, help="probability of a horizontal flip")
    group.add_argument(
        "--scale-jitter",
        type=float,
        nargs=2,
        metavar=("LOW", "HIGH"),
        default=(1.0, 1.0),
        help="range of a factor on the short side",
    )
    group.add_argument(
        "--color-jitter", type=float, default=0.0, help="brightness, contrast, saturation"
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
    group.add_argument("--momentum", type=float, default=0.9, help="of sgd")
    group.add_argument("--lr", type=float, default=2e-3, help="highest learning rate")
    group.add_argument("--lr-warmup", type=_natural, default=100, help="steps of linear warm-up")
    group.add_argument("--lr-mode", choices=("cosine", "step"), default="cosine", help="schedule")
    group.add_argument("--lr-decay", type=float, default=0.1, help="factor of --lr-mode step")
    group.add_argument(
        "--lr-decay-steps",
        type=_positive,
        nargs="+",
        metavar="STEP",
        help="when it applies; two thirds of --steps if not given",
    )
    group.add_argument(
        "--head-lr-mult", type=float, default=1.0, help="factor on the head's learning rate"
    )
    group.add_argument(
        "--clip-gradient", type=float, metavar="LIMIT", help="largest absolute gradient value"
    )
    group.add_argument("--wd", type=float, default=1e-4, help="weight decay")
    group.add_argument(
        "--rpn-num-sample", type=_positive, default=128, help="anchors per image in the RPN loss"
    )
    group.add_argument(
        "--no-ohem",
        dest="ohem",
        action="store_false",
        help="random RoIs instead of the hardest ones",
    )
    group.add_argument("--max-seconds", type=float, help="stop early, with a checkpoint")
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
    group.add_argument("--thresh", type=float, default=0.5, help="lowest score that is drawn")


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
    return [_natural(part) for part in text.split(",") if part]


def _positive(text: str) -> int:
    return _integer(text, 1)


def _natural(text: str) -> int:
    return _integer(text, 0)


def _integer(text: str, lowest: int) -> int:
    if not text.isdecimal() or int(text) < lowest:
        raise argparse.ArgumentTypeError(f"expected an integer from {lowest} on, got {text}")
    return int(text)


def _probability(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 1, got {text}")
    return value


def make_data(args: argparse.Namespace) -> None:
    """Generate a data set and say where it is."""
    made = ensure_dataset(args.dataset, args.dataset_root, args.data_seed)
    print(f"{'wrote' if made else 'found'} {args.dataset} in {args.dataset_root.resolve()}")


def train_command(args: argparse.Namespace) -> None:
    """Train and say where the run is."""
    print(train.run(args).resolve())
