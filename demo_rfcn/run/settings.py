"""The settings of a run: one object that arguments, checkpoints and comparisons of runs follow."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..data import DATASETS, Dataset, DatasetSpec, ensure_dataset, open_datasets
from ..errors import InputError
from ..model.config import ModelConfig
from ..model.heads import FPN_HEADS, HEADS, MAX_K
from ..model.network import BACKBONES, FPN_BACKBONES

RUNS = Path("runs")
MAX_SIDE = 10_000  # pixels of a scaled image


def integer(lowest: int, highest: int | None = None) -> Callable[[str], int]:
    """Return a conversion of an argument to an integer from the lowest on, up to the highest."""
    words = f"from {lowest} on" if highest is None else f"from {lowest} to {highest}"

    def convert(text: str) -> int:
        if not text.isdecimal() or not lowest <= int(text) <= (highest or 2**31 - 1):
            raise argparse.ArgumentTypeError(f"expected an integer {words}, got {text}")
        return int(text)

    return convert


def number(words: str, accepts: Callable[[float], bool]) -> Callable[[str], float]:
    """Return a conversion of an argument to a finite number that is accepted; words say which."""

    def convert(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and accepts(value)):
            raise argparse.ArgumentTypeError(f"expected a number {words}, got {text}")
        return value

    return convert


natural, positive, pixels = integer(0), integer(1), integer(1, MAX_SIDE)
above_zero = number("above 0", lambda value: value > 0)
from_zero = number("from 0 on", lambda value: value >= 0)
probability = number("from 0 to 1", lambda value: 0 <= value <= 1)
below_one = number("from 0 on and below 1", lambda value: 0 <= value < 1)
up_to_one = number("above 0 and up to 1", lambda value: 0 < value <= 1)


def gpu_numbers(text: str) -> tuple[int, ...]:
    """Convert an argument such as 0,1."""
    numbers = tuple(natural(part) for part in text.split(",") if part)
    if len(set(numbers)) < len(numbers):
        raise argparse.ArgumentTypeError(f"expected different numbers, got {text}")
    return numbers


def option(default: Any, group: str, text: str, kind: Any = None, **how: Any) -> Any:
    """Return a field that is an argument of the command line.

    Parameters
    ----------
    default : object
        The argument of a bool is a flag that turns it over.
    group, text : str
        Where the help shows the argument, and what it says.
    kind : callable or None
        The conversion of the argument's text, if it is to be converted.
    **how
        Further arguments of `add_argument`; and `same_run`, whether a run with another value is
        still the same run. It is with another device or another folder.
    """
    same_run = how.pop("same_run", group in ("devices", "run"))
    if kind:
        how["type"] = kind
    return field(
        default=default, compare=not same_run, metadata={"group": group, "help": text, **how}
    )


@dataclass
class Settings:
    """What defines a run, and how it is carried out.

    Two are equal if they describe the same run: on another device, say, or over more steps. What
    depends on the rest, and so may be None in the command line, is filled in here.

    Raises
    ------
    InputError
        Values that do not go together.
    """

    dataset: str = option("signals", "data", "data set", choices=sorted(DATASETS))
    dataset_root: Path = option(
        None,
        "data",
        "folder that holds VOC2007; runs/data/<dataset> if not given",
        Path,
        metavar="DIR",
        same_run=True,
    )
    data_seed: int = option(0, "data", "seed of a generated data set", natural)
    classes: list[str] | None = option(
        None, "data", "classes of a voc-like folder", nargs="+", metavar="NAME"
    )
    skip_broken: bool = option(
        False, "data", "go on without images whose files are broken", same_run=True
    )
    short: int | None = option(None, "data", "short side of the scaled images, pixels", pixels)
    max_size: int | None = option(None, "data", "limit of their long side, pixels", pixels)

    flip_p: float = option(None, "augmentation", "probability of a horizontal flip", probability)
    scale_jitter: tuple[float, float] = option(
        (1.0, 1.0),
        "augmentation",
        "range of a factor on the short side",
        above_zero,
        nargs=2,
        metavar=("LOW", "HIGH"),
    )
    color_jitter: float = option(
        0.0, "augmentation", "brightness, contrast, saturation", probability
    )

    network: str = option("small", "network", "backbone", choices=sorted(BACKBONES))
    head: str = option("psroi", "network", "detection head", choices=sorted(HEADS))
    k: int = option(7, "network", "bins per side of the pooling", integer(1, MAX_K))
    fpn: bool = option(False, "network", "a feature pyramid between backbone and head")
    class_agnostic: bool = option(True, "network", "box offsets per class instead of shared ones")
    pretrained_base: str | None = option(
        None, "network", "weights of GluonCV's classification network", metavar="FILE"
    )
    freeze_bn: bool = option(False, "network", "do not train batch normalisation")

    steps: int = option(2000, "training", "batches in all", positive, same_run=True)
    batch_size: int = option(4, "training", "images per step", positive)
    optimizer: str = option("adam", "training", "update rule", choices=("adam", "sgd"))
    momentum: float = option(0.9, "training", "of sgd", below_one)
    lr: float = option(2e-3, "training", "highest learning rate", above_zero)
    lr_warmup: int = option(100, "training", "steps of linear warm-up", natural)
    lr_mode: str = option("cosine", "training", "schedule", choices=("cosine", "step"))
    lr_decay: float = option(0.1, "training", "factor of --lr-mode step", up_to_one)
    lr_decay_steps: list[int] | None = option(
        None,
        "training",
        "when it applies; two thirds of --steps if not given",
        positive,
        nargs="+",
        metavar="STEP",
    )
    head_lr_mult: float = option(1.0, "training", "factor on the head's learning rate", from_zero)
    clip_gradient: float | None = option(
        None, "training", "largest absolute gradient value", above_zero, metavar="LIMIT"
    )
    wd: float = option(1e-4, "training", "weight decay", from_zero)
    rpn_num_sample: int = option(128, "training", "anchors per image in the RPN loss", positive)
    ohem: bool = option(True, "training", "random RoIs instead of the hardest ones")
    max_seconds: float | None = option(
        None, "training", "stop early, with a checkpoint", above_zero, same_run=True
    )
    seed: int = option(0, "training", "weights, data order, augmentation", natural)

    gpus: Sequence[int] = option((), "devices", "GPUs to train on", gpu_numbers, metavar="0,1")
    cpus: int = option(1, "devices", "CPU contexts, without --gpus", positive)
    kv_store: str = option(
        "device",
        "devices",
        "of several contexts; dist_sync for several machines",
        choices=("local", "device", "dist_sync", "dist_device_sync"),
    )

    # Of `train` alone: AMP cannot be ended, and what other commands do afterwards is in float32.
    amp: bool = option(False, "precision", "use MXNet AMP for mixed precision training")

    save_prefix: Path = option(
        None, "run", "folder of the run; runs/<dataset> if not given", Path, metavar="DIR"
    )
    resume: Path | None = option(None, "run", "go on from this checkpoint", Path, metavar="FILE")
    log_interval: int = option(20, "run", "steps per loss entry", positive)
    val_interval: int = option(250, "run", "steps per validation", positive)
    val_images: int = option(100, "run", "images of a validation", positive)

    spec: DatasetSpec = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        self.spec = self._resolved_spec()
        self.dataset_root = self.dataset_root or RUNS / "data" / self.dataset
        self.save_prefix = self.save_prefix or RUNS / self.dataset
        if self.flip_p is None:
            self.flip_p = self.spec.flip_p
        low, high = self.scale_jitter
        self.scale_jitter = low, high
        if low > high:
            raise InputError(f"train: --scale-jitter {low} {high}, expected 0 < LOW <= HIGH")
        steps = self.lr_decay_steps or []
        if any(first >= second for first, second in zip(steps, steps[1:])):
            shown = " ".join(map(str, steps))
            raise InputError(f"train: --lr-decay-steps {shown}, expected an increasing order")
        for name, chosen, fitting in (
            ("head", self.head, FPN_HEADS),
            ("network", self.network, FPN_BACKBONES),
        ):
            if self.fpn and chosen not in fitting:
                known = ", ".join(f"'{each}'" for each in sorted(fitting))
                raise InputError(f"train: --fpn with --{name} '{chosen}', expected one of {known}")
        if self.save_prefix.is_file():
            raise InputError(f"--save-prefix {self.save_prefix} is a file, expected a folder")

    def _resolved_spec(self) -> DatasetSpec:
        """Return the data set's specification with what is changed in it here."""
        spec = DATASETS[self.dataset]
        if bool(self.classes) == bool(spec.classes):
            wanted = "has its own classes; leave out" if spec.classes else "needs"
            raise InputError(f"dataset: '{spec.name}' {wanted} --classes")
        classes = tuple(name.strip().lower() for name in self.classes or spec.classes)
        if not all(classes) or len(set(classes)) < len(classes):
            raise InputError(f"dataset: --classes {', '.join(classes)}, expected different names")
        short = self.short or spec.short
        max_size = max(self.max_size or spec.max_size, short)
        return dataclasses.replace(spec, classes=classes, short=short, max_size=max_size)

    @property
    def config(self) -> ModelConfig:
        """The configuration of the detector that is asked for."""
        return ModelConfig(
            classes=self.spec.classes,
            network=self.network,
            head=self.head,
            k=1 if self.head == "global" else self.k,
            class_agnostic=self.class_agnostic,
            anchor_scales=self.spec.anchor_scales,
            anchor_ratios=self.spec.anchor_ratios,
            fpn=self.fpn,
        )

    def generate(self) -> bool:
        """Generate the data set unless it is there; see `data.ensure_dataset`."""
        return ensure_dataset(self.dataset, self.dataset_root, self.data_seed)

    def open(self, *purposes: str) -> list[Dataset]:
        """Open the data set for some purposes; see `data.open_datasets`."""
        return open_datasets(self.spec, self.dataset_root, purposes, self.skip_broken)

    def to_dict(self) -> dict:
        """Return JSON-ready values, as checkpoints store them."""
        values = {each.name: getattr(self, each.name) for each in options()}
        return {k: str(v) if isinstance(v, Path) else v for k, v in values.items()}

    def differences(self, stored: dict, *also: str) -> list[str]:
        """Return "name: theirs, not mine" for what makes this another run than the stored one.

        Parameters
        ----------
        stored : dict
            From `to_dict` through JSON; what an older version did not know has its default.
        *also : str
            Names that count here although the run could be the same.
        """
        wanted = json.loads(json.dumps(self.to_dict()))
        return [
            f"{each.name}: {theirs}, not {wanted[each.name]}"
            for each in options()
            if (each.compare or each.name in also)
            and (theirs := stored.get(each.name, each.default)) != wanted[each.name]
        ]


def options() -> list[dataclasses.Field]:
    """Return the fields of `Settings` that are arguments."""
    return [each for each in dataclasses.fields(Settings) if each.metadata]


def add_arguments(parser: argparse.ArgumentParser, groups: Sequence[str]) -> None:
    """Add the arguments of some groups of `Settings` to a parser."""
    for title in groups:
        group = parser.add_argument_group(title)
        for each in options():
            if each.metadata["group"] != title:
                continue
            how = {key: value for key, value in each.metadata.items() if key != "group"}
            flag = each.name.replace("_", "-")
            if isinstance(each.default, bool):
                how["action"] = "store_false" if each.default else "store_true"
                flag = f"no-{flag}" if each.default else flag
            group.add_argument(f"--{flag}", dest=each.name, default=each.default, **how)
