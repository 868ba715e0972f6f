# SPDX-License-Identifier: Apache-2.0
"""The settings, in five parts; each field is an option of the command line, spelled once."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import mxnet as mx

from .data import DATASETS, CocoFiles, ValidationSplit, open_datasets
from .data.dataset import DetectionSet
from .errors import CheckpointError, InputError
from .model.config import ModelConfig
from .model.heads import FPN_HEADS, HEADS, MAX_K
from .model.network import BACKBONES, DEFORMABLE, FPN_BACKBONES

RUNS = Path("runs")
MAX_SIDE = 10_000  # pixels of a scaled image
# Settings that a resumed run does not inherit.
NOT_INHERITED = ("resume", "overwrite", "max_seconds")


def number(kind: type, words: str, accepts: Callable[[Any], bool]) -> Callable[[str], Any]:
    """Return a conversion of text to a finite number that is accepted; `words` say which are."""

    def convert(text: str) -> Any:
        with suppress(ValueError):
            if abs(value := kind(text)) < float("inf") and accepts(value):
                return value
        raise argparse.ArgumentTypeError(f"expected {words}, got {text}")

    return convert


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


def gpu_numbers(text: str) -> tuple[int, ...]:
    """Convert a list such as 0,1."""
    numbers = tuple(natural(part) for part in text.split(",") if part)
    if len(set(numbers)) < len(numbers):
        raise argparse.ArgumentTypeError(f"expected different numbers, got {text}")
    return numbers


def option(default: Any, text: str, kind: Any = str, same_run: bool = False, **how: Any) -> Any:
    """Return a field that is an option; a flag inverts a bool.

    `kind` converts the text. With `same_run`, another value still describes the same run. In `how`,
    `only` is the one command that has it, and `names` replace the field's; argparse gets the rest.
    """
    metadata = {"same_run": same_run, "how": {"help": text, "type": kind, **how}}
    return field(default=default, metadata=metadata)


def place(text: str, metavar: str = "FILE") -> Any:
    """Return a field that is an option: a file or folder, which may move within one run."""
    return option(None, text, Path, True, metavar=metavar)


def several(text: str, known: Iterable[str], metavar: str) -> Any:
    """Return a field that is an option: some of the known names, which `text` lists."""
    names = list(known)
    return option((), text.format(", ".join(names)), nargs="+", choices=names, metavar=metavar)


def add_options(parser: argparse.ArgumentParser, parts: dict[str, Any], command: str) -> None:
    """Add the options of some parts; the result of parsing lacks those that are not given."""
    for title, part in parts.items():
        group = parser.add_argument_group(title, part.__doc__)
        for each in fields(part):
            how, flag = dict(each.metadata["how"]), each.name.replace("_", "-")
            if how.pop("only", command) != command:
                continue
            if isinstance(each.default, bool):
                flag = f"no-{flag}" if each.default else flag
                how["action"] = "store_false" if each.default else "store_true"
                del how["type"]
            elif each.default not in (None, (), ""):
                values = each.default if isinstance(each.default, tuple) else (each.default,)
                shown = (f"{v:g}" if isinstance(v, float) else str(v) for v in values)
                how["help"] += f" (default: {' '.join(shown)})"
            names = how.pop("names", [f"--{flag}"])
            if names[0].startswith("-"):
                how.update(dest=each.name, default=argparse.SUPPRESS)
            group.add_argument(*names, **how)


@dataclass
class Data:
    """The data set and its scale."""

    dataset: str = option("signals", "data set", choices=sorted(DATASETS))
    dataset_root: Path = place("folder of the data set; runs/data/<dataset> if not given", "DIR")
    data_seed: int = option(0, "seed of a generated data set", natural)
    train_annotations: Path | None = place("COCO file to train on")
    train_images: Path | None = place("folder of its images", "DIR")
    val_annotations: Path | None = place("COCO file to validate on")
    val_images: Path | None = place("folder of its images", "DIR")
    val_share: float = option(
        0.1, "share of the training images held back for validation, if no list names those", share
    )
    classes: list[str] | None = option(
        None,
        "classes of a voc-like folder or a COCO file; all that its annotations have if not given",
        nargs="+",
        metavar="NAME",
    )
    skip_broken: bool = option(False, "leave out images whose files are broken", same_run=True)
    short: int | None = option(None, "short side of the scaled images, pixels", pixels)
    max_size: int | None = option(None, "limit of their long side, pixels", pixels)

    def __post_init__(self) -> None:
        spec = DATASETS[self.dataset]
        self.dataset_root = self.dataset_root or RUNS / "data" / self.dataset
        if self.classes and not spec.open_classes:
            raise InputError(f"dataset: '{spec.name}' has its own classes; leave out --classes")
        named = self.classes or (() if spec.open_classes else spec.classes)
        classes = tuple(name.strip() for name in named)
        if not all(classes) or len(set(classes)) < len(classes):
            raise InputError(f"dataset: --classes {', '.join(classes)}, expected different names")
        short = self.short or spec.short
        # The short side of scaled images and the limit of the long one, pixels.
        self.scale = short, max(self.max_size or spec.max_size, short)
        self.spec = replace(spec, classes=classes, short=short, max_size=self.scale[1])
        self.files: dict[str, CocoFiles] = {}
        for purpose in ("train", "val"):
            flags = f"--{purpose}-annotations", f"--{purpose}-images"
            paths = [getattr(self, f"{purpose}_{part}") for part in ("annotations", "images")]
            given = [flag for flag, path in zip(flags, paths) if path]
            if given and self.dataset != "coco":
                expected = f"--dataset {self.dataset}, expected --dataset coco"
                raise InputError(f"dataset: {given[0]} with {expected}")
            if len(given) == 1:
                raise InputError(f"dataset: {given[0]} alone, expected {' and '.join(flags)}")
            if given:
                self.files[purpose] = CocoFiles(*paths)

    def open(self, split: ValidationSplit | None, *purposes: str) -> list[DetectionSet]:
        """Open the data set for some purposes; see `data.open_datasets`."""
        where = self.spec, self.dataset_root, purposes
        return open_datasets(*where, self.skip_broken, self.files, split)


@dataclass
class Model:
    """The detector."""

    network: str = option("small", "backbone", choices=sorted(BACKBONES))
    head: str = option("psroi", "detection head", choices=sorted(HEADS))
    k: int = option(7, "bins per side of the pooling", integer(1, MAX_K))
    fpn: bool = option(False, "a feature pyramid between backbone and head")
    deform: bool = option(False, "deformable convolutions in the last stage of the backbone")
    class_agnostic: bool = option(True, "box offsets per class instead of shared ones")
    pretrained_base: str | None = option(
        None, "weights of GluonCV's classification network", metavar="FILE"
    )
    pretrained: Path | None = option(
        None, "detector to fine-tune; it sets network, head and k", Path, metavar="FILE"
    )
    freeze_bn: bool = option(False, "do not train batch normalisation")

    def __post_init__(self) -> None:
        for flag, name, fitting in (
            ("fpn", "head", FPN_HEADS),
            ("fpn", "network", FPN_BACKBONES),
            ("deform", "network", DEFORMABLE),
        ):
            if getattr(self, flag) and (chosen := getattr(self, name)) not in fitting:
                known = ", ".join(f"'{each}'" for each in sorted(fitting))
                words = f"--{flag} with --{name} '{chosen}', expected one of {known}"
                raise InputError(f"train: {words}")


@dataclass
class Schedule:
    """Everything between the images and the weights."""

    steps: int = option(
        None,
        "batches; if not given, 2000 for generated data, otherwise 100 passes, from 500 to 30000",
        positive,
        True,
    )
    optimizer: str = option("adam", "update rule", choices=("adam", "sgd"))
    momentum: float = option(0.9, "of sgd", below_one)
    lr: float = option(2e-3, "highest learning rate", above_zero)
    lr_warmup: int = option(100, "steps of linear warm-up", natural)
    lr_mode: str = option("cosine", "form of the learning rate", choices=("cosine", "step"))
    lr_decay: float = option(0.1, "factor of --lr-mode step", up_to_one)
    lr_decay_steps: list[int] | None = option(
        None, "steps of --lr-decay; two thirds of --steps if not given", positive, nargs="+"
    )
    head_lr_mult: float = option(1.0, "factor on the head's learning rate", from_zero)
    clip_gradient: float | None = option(None, "largest absolute gradient value", above_zero)
    wd: float = option(1e-4, "weight decay", from_zero)
    rpn_num_sample: int = option(128, "anchors per image in the RPN loss", positive)
    ohem: bool = option(True, "random RoIs instead of the hardest ones")
    flip_p: float = option(None, "probability of a horizontal flip", probability)
    scale_jitter: tuple[float, float] = option(
        (1.0, 1.0), "LOW and HIGH factor on the short side", above_zero, nargs=2
    )
    color_jitter: float = option(0.0, "brightness, contrast, saturation", probability)
    seed: int = option(0, "weights, data order, augmentation", natural)
    # AMP cannot be ended, and the other commands compute in float32 afterwards.
    amp: bool = option(False, "use MXNet AMP for mixed precision training", only="train")

    def __post_init__(self) -> None:
        low, high = self.scale_jitter
        self.scale_jitter = low, high
        if low > high:
            raise InputError(f"train: --scale-jitter {low} {high}, expected 0 < LOW <= HIGH")
        steps = self.lr_decay_steps or []
        if steps != sorted(set(steps)):
            shown = " ".join(map(str, steps))
            raise InputError(f"train: --lr-decay-steps {shown}, expected an increasing order")

    def rate(self, step: int) -> float:
        """Return the rate of a step: a warm-up, then steps, or half a cosine down to lr / 100."""
        rule: dict[str, Any] = {"base_lr": self.lr, "warmup_begin_lr": self.lr / 10}
        rule["warmup_steps"] = min(self.lr_warmup, self.steps - 1)
        if self.lr_mode == "cosine":
            return mx.lr_scheduler.CosineScheduler(self.steps, final_lr=self.lr / 100, **rule)(step)
        steps = self.lr_decay_steps or [max(self.steps * 2 // 3, 1)]
        return mx.lr_scheduler.MultiFactorScheduler(steps, factor=self.lr_decay, **rule)(step)


@dataclass
class Devices:
    """The devices of a process."""

    gpus: Sequence[int] = option((), "GPUs to compute on", gpu_numbers, True, metavar="0,1")
    cpus: int = option(1, "CPU contexts, without --gpus", positive, True)
    batch_size: int = option(4, "images at a time, of all devices together", positive)

    def contexts(self) -> list[mx.Context]:
        """Return the MXNet contexts, or raise InputError if a GPU is missing."""
        present = mx.context.num_gpus() if self.gpus else 0
        for gpu in self.gpus:
            if gpu >= present:
                raise InputError(f"--gpus {gpu}, but MXNet sees {present} GPUs")
        return [mx.gpu(gpu) for gpu in self.gpus] or [mx.cpu(cpu) for cpu in range(self.cpus)]


@dataclass
class Run:
    """The files of a run, and its surroundings."""

    save_prefix: Path = place("folder of the run; runs/<dataset> if not given", "DIR")
    resume: Path | None = place("continue from this checkpoint")
    overwrite: bool = option(False, "replace the run in the folder", same_run=True, only="train")
    log_interval: int = option(20, "steps per loss entry", positive, True)
    val_interval: int = option(250, "steps per validation", positive, True)
    val_limit: int = option(100, "images of a validation", positive, True)
    max_seconds: float | None = option(None, "stop early, with a checkpoint", above_zero, True)
    kv_store: str = option(
        "device",
        "where gradients are summed; dist_sync for several processes",
        same_run=True,
        choices=("local", "device", "dist_sync", "dist_device_sync"),
    )

    def __post_init__(self) -> None:
        if self.save_prefix and self.save_prefix.is_file():
            raise InputError(f"--save-prefix {self.save_prefix} is a file, expected a folder")


PARTS: dict[str, Any] = dict(data=Data, model=Model, schedule=Schedule, devices=Devices, run=Run)
OPTIONS = {each.name: each for part in PARTS.values() for each in fields(part)}


@dataclass
class Settings:
    """All five parts, which fill in each other's defaults."""

    data: Data
    model: Model
    schedule: Schedule
    devices: Devices
    run: Run

    def __post_init__(self) -> None:
        self.run.save_prefix = self.run.save_prefix or RUNS / self.data.dataset
        if self.schedule.flip_p is None:
            self.schedule.flip_p = self.data.spec.flip_p
        if self.schedule.steps is None and self.data.spec.recipe:
            self.schedule.steps = 2000

    def config(self, classes: Sequence[str]) -> ModelConfig:
        """Return the configuration of the detector for some classes."""
        values = {**vars(self.data.spec), **vars(self.model), "classes": tuple(classes)}
        if self.model.head == "global":
            values["k"] = 1
        return ModelConfig(**{each.name: values[each.name] for each in fields(ModelConfig)})

    def open(self, *purposes: str) -> list[DetectionSet]:
        """Open the data set; the number of training images sets the steps, if no option does."""
        opened = self.data.open(ValidationSplit(self.data.val_share, self.schedule.seed), *purposes)
        if self.schedule.steps is None:
            images = len(opened[purposes.index("train")])
            self.schedule.steps = min(max(100 * images // self.devices.batch_size, 500), 30_000)
        return opened

    def changed(self, **values: Any) -> Settings:
        """Return settings that differ in some options."""
        return Settings(**build(PARTS, {**self.values(), **values}))

    def values(self) -> dict[str, Any]:
        """Return all options by name."""
        return {k: v for part in asdict(self).values() for k, v in part.items()}

    def to_dict(self) -> dict[str, Any]:
        """Return all options as JSON holds them."""
        return json.loads(json.dumps(self.values(), default=str))

    def differences(self, stored: dict, *also: str) -> list[str]:
        """Return "name: theirs, not mine" for the options that make this another run.

        `stored` are those of a checkpoint; an option that it lacks has its default. `also` are
        further names to compare.
        """
        wanted = self.to_dict()
        return [
            f"{name}: {theirs}, not {wanted[name]}"
            for name, each in OPTIONS.items()
            if (not each.metadata["same_run"] or name in also)
            and (theirs := stored.get(name, each.default)) != wanted[name]
        ]


def build(parts: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Return an instance of each part with those of the values that are its fields."""
    own = {name: {each.name for each in fields(parts[name])} & values.keys() for name in parts}
    return {name: parts[name](**{each: values[each] for each in own[name]}) for name in parts}


def inherited(path: Path, stored: dict, names: Sequence[str]) -> dict[str, Any]:
    """Return options that a checkpoint gives, checked as on the command line."""
    values = {name: stored[name] for name in names if stored.get(name) is not None}
    for name, value in values.items():
        how = OPTIONS[name].metadata["how"]
        try:
            if "nargs" in how:
                values[name] = [how["type"](str(one)) for one in value]
            elif not isinstance(value, bool):
                text = ",".join(map(str, value)) if name == "gpus" else str(value)
                values[name] = how["type"](text)
            if values[name] not in how.get("choices", [values[name]]):
                raise ValueError(f"expected one of {', '.join(how['choices'])}, got {value}")
        except (argparse.ArgumentTypeError, TypeError, ValueError) as error:
            raise CheckpointError(f"checkpoint: {path} has no valid '{name}': {error}") from error
    return values
