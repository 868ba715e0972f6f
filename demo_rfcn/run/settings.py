# SPDX-License-Identifier: Apache-2.0
"""The settings of a run: one object for arguments, checkpoints and comparisons of runs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..data import Files, Held, ensure_dataset, open_datasets
from ..data.dataset import DetectionSet
from ..data.specs import DATASETS, DatasetSpec
from ..errors import InputError
from ..model.config import ModelConfig
from ..model.heads import FPN_HEADS, HEADS, MAX_K
from ..model.network import BACKBONES, DEFORMABLE, FPN_BACKBONES
from .options import (
    above_zero,
    below_one,
    folder_or_number,
    from_zero,
    gpu_numbers,
    integer,
    natural,
    option,
    pixels,
    positive,
    probability,
    share,
    up_to_one,
)

RUNS = Path("runs")
# Where a data set lies.
WHERE = ("dataset_root", "train_annotations", "train_images", "val_annotations", "val_images")
# What a run does not take over from a checkpoint that it goes on from.
OWN = ("resume", "max_seconds")


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
        "folder of the data set; runs/data/<dataset> if not given",
        Path,
        metavar="DIR",
        same_run=True,
    )
    data_seed: int = option(0, "data", "seed of a generated data set", natural)
    train_annotations: Path | None = option(
        None, "data", "COCO file to train on", Path, metavar="FILE", same_run=True
    )
    train_images: Path | None = option(
        None, "data", "folder of its images", Path, metavar="DIR", same_run=True
    )
    val_annotations: Path | None = option(
        None, "data", "COCO file to validate on", Path, metavar="FILE", same_run=True
    )
    val_images: Path | int | None = option(
        None,
        "data",
        "folder of its images; a number is taken for --val-limit",
        folder_or_number,
        metavar="DIR",
        same_run=True,
    )
    val_share: float = option(
        0.1,
        "data",
        "share of the training images that is held back for validation, where it has no list",
        share,
    )
    classes: list[str] | None = option(
        None,
        "data",
        "classes of a voc-like folder or a COCO file; all that its annotations have if not given",
        nargs="+",
        metavar="NAME",
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
    deform: bool = option(
        False, "network", "deformable convolutions in the last stage of the backbone"
    )
    class_agnostic: bool = option(True, "network", "box offsets per class instead of shared ones")
    pretrained_base: str | None = option(
        None, "network", "weights of GluonCV's classification network", metavar="FILE"
    )
    pretrained: Path | None = option(
        None,
        "network",
        "checkpoint of a detector to fine-tune: layers that fit are taken from it, and its "
        "network, head and k unless they are given",
        Path,
        metavar="FILE",
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
        "workers",
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
    val_limit: int = option(100, "run", "images of a validation", positive)

    spec: DatasetSpec = field(init=False, compare=False, repr=False)
    files: dict[str, Files] = field(init=False, compare=False, repr=False)
    held: Held | None = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.val_images, int):
            if self.val_limit == Settings.val_limit:
                self.val_limit = self.val_images
            self.val_images = None
        self.spec = self._resolved_spec()
        self.dataset_root = self.dataset_root or RUNS / "data" / self.dataset
        self.save_prefix = self.save_prefix or RUNS / self.dataset
        self.files = self._coco_files()
        self.held = Held(self.val_share, self.seed)
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
        for flag, name, fitting in (
            ("fpn", "head", FPN_HEADS),
            ("fpn", "network", FPN_BACKBONES),
            ("deform", "network", DEFORMABLE),
        ):
            chosen = getattr(self, name)
            if getattr(self, flag) and chosen not in fitting:
                known = ", ".join(f"'{each}'" for each in sorted(fitting))
                raise InputError(
                    f"train: --{flag} with --{name} '{chosen}', expected one of {known}"
                )
        if self.save_prefix.is_file():
            raise InputError(f"--save-prefix {self.save_prefix} is a file, expected a folder")

    def _resolved_spec(self) -> DatasetSpec:
        """Return the data set's specification with what is changed in it here."""
        spec = DATASETS[self.dataset]
        if self.classes and not spec.open_classes:
            raise InputError(f"dataset: '{spec.name}' has its own classes; leave out --classes")
        named = self.classes or (() if spec.open_classes else spec.classes)
        classes = tuple(name.strip() for name in named)
        if spec.name == "voc-like":
            classes = tuple(name.lower() for name in classes)
        if not all(classes) or len(set(classes)) < len(classes):
            raise InputError(f"dataset: --classes {', '.join(classes)}, expected different names")
        short = self.short or spec.short
        max_size = max(self.max_size or spec.max_size, short)
        return dataclasses.replace(spec, classes=classes, short=short, max_size=max_size)

    def _coco_files(self) -> dict[str, Files]:
        """Return the files that are named in place of a folder in COCO's own layout."""
        found = {}
        for purpose in ("train", "val"):
            pair = [getattr(self, f"{purpose}_{part}") for part in ("annotations", "images")]
            flags = [f"--{purpose}-{part}" for part in ("annotations", "images")]
            for path, flag in zip(pair, flags):
                if path and self.dataset != "coco":
                    raise InputError(
                        f"dataset: {flag} with --dataset {self.dataset}, expected --dataset coco"
                    )
                if path and not all(pair):
                    raise InputError(f"dataset: {flag} alone, expected {' and '.join(flags)}")
            if all(pair):
                found[purpose] = Files(*pair)
        return found

    def config(self, classes: Sequence[str]) -> ModelConfig:
        """Return the configuration of the detector that is asked for."""
        return ModelConfig(
            classes=tuple(classes),
            network=self.network,
            head=self.head,
            k=1 if self.head == "global" else self.k,
            class_agnostic=self.class_agnostic,
            anchor_scales=self.spec.anchor_scales,
            anchor_ratios=self.spec.anchor_ratios,
            fpn=self.fpn,
            deform=self.deform,
        )

    def keep(self, meta: dict, evaluating: bool = False) -> None:
        """Take over from a checkpoint what its images decided: classes, and which are held back.

        Where none of them is known, evaluation is on all images.
        """
        self.spec = dataclasses.replace(self.spec, classes=meta["config"].classes)
        names = meta.get("held_back")
        if names and self._lies_where(meta["arguments"]):
            self.held = Held(self.val_share, self.seed, set(names))
        elif evaluating:
            self.held = None

    def _lies_where(self, stored: dict) -> bool:
        """Return whether the data set is the stored one."""
        own = self.to_dict()
        return stored.get("dataset") == self.dataset and all(
            stored.get(name) == own[name] or isinstance(stored.get(name), int) for name in WHERE
        )

    def generate(self) -> bool:
        """Generate the data set unless it is there; see `data.ensure_dataset`."""
        return ensure_dataset(self.dataset, self.dataset_root, self.data_seed)

    def open(self, *purposes: str) -> list[DetectionSet]:
        """Open the data set for some purposes; see `data.open_datasets`."""
        return open_datasets(
            self.spec, self.dataset_root, purposes, self.skip_broken, self.files, self.held
        )

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
