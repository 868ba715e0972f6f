# SPDX-License-Identifier: Apache-2.0
"""The settings of a command: frozen, made once by `cli.py` from the command line.

The values here are the defaults that `--help` shows. `make_settings` fills in defaults that follow
from other options; the number of steps may follow from the data (`Settings.with_steps`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import mxnet as mx

from .checkpoint import MAX_ANCHORS, Checkpoint
from .data import (
    DATASETS,
    LOCATION,
    CocoFiles,
    DatasetSpec,
    RunImages,
    ValidationSplit,
    open_datasets,
    resolve_location,
)
from .data.dataset import DetectionSet
from .errors import InputError
from .model import ModelConfig
from .networks import FPN_HEADS

RUNS = Path("runs")
LAST, BEST, SUMMARY = "last.ckpt", "best.ckpt", "summary.json"
GENERATED_STEPS = 2000  # default of --steps for a generated data set
# Options with which a run stays the same run: where it is stored, and how far it goes.
SAME_RUN = {
    *LOCATION,
    *("skip_broken", "steps", "gpus", "cpus", "save_prefix", "resume", "overwrite"),
    *("log_interval", "val_interval", "val_limit", "max_seconds", "kv_store"),
}
# Options that a resumed run does not inherit.
NOT_INHERITED = {"resume", "overwrite", "max_seconds"}

_T = TypeVar("_T")


@dataclass(frozen=True)
class Data:
    """The data set, its scale, and the anchors for its objects."""

    dataset: str = "signals"
    dataset_root: Path = RUNS / "data" / "signals"
    data_seed: int = 0
    train_annotations: Path | None = None
    train_images: Path | None = None
    val_annotations: Path | None = None
    val_images: Path | None = None
    val_share: float = 0.1
    classes: tuple[str, ...] = ()
    skip_broken: bool = False
    short: int = DATASETS["signals"].short
    max_size: int = DATASETS["signals"].max_size
    anchor_scales: tuple[float, ...] = DATASETS["signals"].anchor_scales
    anchor_ratios: tuple[float, ...] = DATASETS["signals"].anchor_ratios

    def __post_init__(self) -> None:
        if self.classes and not DATASETS[self.dataset].open_classes:
            raise InputError(f"dataset: '{self.dataset}' has its own classes; leave out --classes")
        if not all(self.classes) or len(set(self.classes)) < len(self.classes):
            names = ", ".join(self.classes)
            raise InputError(f"dataset: --classes {names}, expected different names")
        if self.max_size < self.short:
            limit = f"--max-size {self.max_size} with --short {self.short}"
            raise InputError(f"dataset: {limit}, expected a limit of at least --short")
        for name in ("anchor_scales", "anchor_ratios"):
            values = getattr(self, name)
            if not 0 < len(set(values)) == len(values) <= MAX_ANCHORS:
                given = f"--{name.replace('_', '-')} {' '.join(f'{value:g}' for value in values)}"
                raise InputError(f"train: {given}, expected 1 to {MAX_ANCHORS} different numbers")
        for purpose in ("train", "val"):
            flags = f"--{purpose}-annotations", f"--{purpose}-images"
            paths = [getattr(self, f"{purpose}_{part}") for part in ("annotations", "images")]
            named = [flag for flag, path in zip(flags, paths) if path]
            if named and self.dataset != "coco":
                expected = f"--dataset {self.dataset}, expected --dataset coco"
                raise InputError(f"dataset: {named[0]} with {expected}")
            if len(named) == 1:
                raise InputError(f"dataset: {named[0]} alone, expected {' and '.join(flags)}")

    @property
    def scale(self) -> tuple[int, int]:
        """The short side of scaled images and the limit of the long one, pixels."""
        return self.short, self.max_size

    @property
    def spec(self) -> DatasetSpec:
        """The properties of the data set, with the classes, scale and anchors of the options."""
        spec = DATASETS[self.dataset]
        classes = self.classes or (() if spec.open_classes else spec.classes)
        names = ("short", "max_size", "anchor_scales", "anchor_ratios")
        return replace(spec, classes=classes, **{name: getattr(self, name) for name in names})

    @property
    def files(self) -> dict[str, CocoFiles]:
        """The COCO files that replace the folder of the data set, by purpose."""
        files = {}
        if self.train_annotations and self.train_images:
            files["train"] = CocoFiles(self.train_annotations, self.train_images)
        if self.val_annotations and self.val_images:
            files["val"] = CocoFiles(self.val_annotations, self.val_images)
        return files

    def open(
        self,
        *purposes: str,
        split: ValidationSplit | None = None,
        before: RunImages | None = None,
        classes: tuple[str, ...] = (),
    ) -> list[DetectionSet]:
        """Open the data set for some purposes, perhaps with other classes; see `open_datasets`.

        `before` are the images of the run that trained the detector, or its first weights.
        """
        spec = replace(self.spec, classes=classes) if classes else self.spec

        def find_trained(dataset: DetectionSet) -> set[str] | None:
            return before.find_trained(dataset, resolve_location(vars(self))) if before else set()

        root, skip = self.dataset_root, self.skip_broken
        return open_datasets(spec, root, purposes, skip, self.files, split, find_trained)


@dataclass(frozen=True)
class Model:
    """The detector."""

    network: str = "small"
    head: str = "psroi"
    k: int = 7
    fpn: bool = False
    deform: bool = False
    class_agnostic: bool = True
    pretrained_base: str | None = None
    pretrained: Path | None = None
    freeze_bn: bool = False

    def __post_init__(self) -> None:
        if self.fpn and self.head not in FPN_HEADS:
            known = ", ".join(f"'{name}'" for name in FPN_HEADS)
            raise InputError(f"train: --fpn with --head '{self.head}', expected one of {known}")
        if self.head == "global" and self.k != 1:
            raise InputError(f"train: --head 'global' with --k {self.k}, expected --k 1")


@dataclass(frozen=True)
class Schedule:
    """Optimizer, learning rate and augmentation."""

    steps: int = 0  # 0: follows from the number of images, see `Settings.with_steps`
    optimizer: str = "adam"
    momentum: float = 0.9
    lr: float = 2e-3
    lr_warmup: int = 100
    lr_mode: str = "cosine"
    lr_decay: float = 0.1
    lr_decay_steps: tuple[int, ...] = ()
    head_lr_mult: float = 1.0
    clip_gradient: float | None = None
    wd: float = 1e-4
    rpn_num_sample: int = 128
    roi_num_sample: int = 64
    ohem: bool = True
    flip_p: float = 0.5
    scale_jitter: tuple[float, float] = (1.0, 1.0)
    color_jitter: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        low, high = self.scale_jitter
        if low > high:
            raise InputError(f"train: --scale-jitter {low} {high}, expected 0 < LOW <= HIGH")
        if list(self.lr_decay_steps) != sorted(set(self.lr_decay_steps)):
            steps = " ".join(map(str, self.lr_decay_steps))
            raise InputError(f"train: --lr-decay-steps {steps}, expected an increasing order")
        if self.steps and max(self.lr_decay_steps, default=0) >= self.steps:
            steps = f"--lr-decay-steps {self.lr_decay_steps[-1]} with --steps {self.steps}"
            raise InputError(f"train: {steps}, expected steps below --steps")

    @property
    def warmup_steps(self) -> int:
        """Steps of linear warm-up, fewer than --lr-warmup if the run is shorter."""
        return min(self.lr_warmup, self.steps - 1)

    def rate(self, step: int) -> float:
        """Return the rate of a step: a warm-up, then steps, or half a cosine down to lr / 100."""
        rule: dict[str, Any] = {"base_lr": self.lr, "warmup_begin_lr": self.lr / 10}
        rule["warmup_steps"] = self.warmup_steps
        if self.lr_mode == "cosine":
            return mx.lr_scheduler.CosineScheduler(self.steps, final_lr=self.lr / 100, **rule)(step)
        steps = list(self.lr_decay_steps) or [max(self.steps * 2 // 3, 1)]
        return mx.lr_scheduler.MultiFactorScheduler(steps, factor=self.lr_decay, **rule)(step)


@dataclass(frozen=True)
class Devices:
    """The devices of a process."""

    gpus: tuple[int, ...] = ()
    cpus: int = 1
    batch_size: int = 4

    def contexts(self) -> list[mx.Context]:
        """Return the MXNet contexts, or raise InputError if a GPU is missing."""
        count = mx.context.num_gpus() if self.gpus else 0
        for gpu in self.gpus:
            if gpu >= count:
                raise InputError(f"--gpus {gpu}, but MXNet sees {count} GPUs")
        return [mx.gpu(gpu) for gpu in self.gpus] or [mx.cpu(cpu) for cpu in range(self.cpus)]


@dataclass(frozen=True)
class Output:
    """Output folder, logging, validation, kvstore."""

    save_prefix: Path = RUNS / "signals"
    resume: Path | None = None
    overwrite: bool = False
    log_interval: int = 20
    val_interval: int = 250
    val_limit: int = 100
    max_seconds: float | None = None
    kv_store: str = "device"

    def __post_init__(self) -> None:
        if self.save_prefix.is_file():
            raise InputError(f"--save-prefix {self.save_prefix} is a file, expected a folder")


@dataclass(frozen=True)
class Settings:
    """The settings of the commands that train."""

    data: Data = Data()
    model: Model = Model()
    schedule: Schedule = Schedule(steps=GENERATED_STEPS)
    devices: Devices = Devices()
    output: Output = Output()

    def __post_init__(self) -> None:
        short, limit = self.data.scale
        low, high = self.schedule.scale_jitter
        if round(short * high) > limit and (low, high) != (1, 1):
            given = f"--scale-jitter {low:g} {high:g} with --short {short}"
            needed = f"--max-size {round(short * high)} or more, got {limit}"
            raise InputError(f"train: {given}, expected {needed}")

    def model_config(
        self, classes: tuple[str, ...], start: Checkpoint | None = None
    ) -> ModelConfig:
        """Return the configuration of the detector for some classes.

        `start` is the checkpoint with the initial weights, whose form of the network is kept.
        """
        spec, model = self.data.spec, self.model
        return ModelConfig(
            classes=tuple(classes),
            network=model.network,
            head=model.head,
            k=model.k,
            class_agnostic=model.class_agnostic,
            anchor_scales=tuple(spec.anchor_scales),
            anchor_ratios=tuple(spec.anchor_ratios),
            fpn=model.fpn,
            deform=model.deform,
            dilate_strided=start.config.dilate_strided if start else False,
        )

    def open(self, *purposes: str, before: RunImages | None = None) -> list[DetectionSet]:
        """Open the data set; a validation set without a list is held back from training."""
        split = ValidationSplit(self.data.val_share, self.schedule.seed)
        return self.data.open(*purposes, split=split, before=before)

    def with_steps(self, images: int) -> Settings:
        """Return the settings with a number of steps: --steps, or else 100 passes."""
        if self.schedule.steps:
            return self
        steps = min(max(100 * images // self.devices.batch_size, 500), 30_000)
        return replace(self, schedule=replace(self.schedule, steps=steps))

    def to_dict(self) -> dict[str, Any]:
        """Return all options by name, as JSON stores them."""
        values = {name: value for part in asdict(self).values() for name, value in part.items()}
        return json.loads(json.dumps(values, default=str))

    def differences(self, stored: Mapping[str, Any], *also: str) -> list[str]:
        """Return "name: stored value, not requested value" for options that make another run.

        `stored` are the options of a checkpoint; an option that it lacks has its default. `also`
        are more names to compare.
        """
        before = {**make_settings({"dataset": self.data.dataset}).to_dict(), **stored}
        return [
            f"{name}: {before[name]}, not {value}"
            for name, value in self.to_dict().items()
            if (name not in SAME_RUN or name in also) and before[name] != value
        ]


def make_settings(values: Mapping[str, Any]) -> Settings:
    """Return the settings of the options in `values`, and the defaults of all others."""
    values = with_defaults(values)
    if DATASETS[values.get("dataset", Data.dataset)].recipe:
        values.setdefault("steps", GENERATED_STEPS)
    return Settings(
        data=take(Data, values),
        model=take(Model, values),
        schedule=take(Schedule, values),
        devices=take(Devices, values),
        output=take(Output, values),
    )


def with_defaults(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return options, completed by the defaults that follow from other options."""
    made = dict(values)
    name = made.get("dataset", Data.dataset)
    spec = DATASETS[name]
    made.setdefault("dataset_root", RUNS / "data" / name)
    made.setdefault("save_prefix", RUNS / name)
    made.setdefault("flip_p", spec.flip_p)
    made.setdefault("short", spec.short)
    made.setdefault("max_size", max(spec.max_size, made["short"]))
    made.setdefault("anchor_scales", spec.anchor_scales)
    made.setdefault("anchor_ratios", spec.anchor_ratios)
    if made.get("head") == "global":
        made.setdefault("k", 1)
    return made


def take(part: type[_T], values: Mapping[str, Any]) -> _T:
    """Return an instance of a dataclass, made of the values that have the names of its fields."""
    names = [each.name for each in fields(part)]  # type: ignore[arg-type]
    return part(**{name: values[name] for name in names if name in values})
