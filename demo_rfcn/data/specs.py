# SPDX-License-Identifier: Apache-2.0
"""Properties of each data set that are known before it is opened."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gluoncv.data import COCODetection, VOCDetection

from . import digits, signals
from .painting import Painter


@dataclass(frozen=True)
class DatasetSpec:
    """Properties of a data set that commands need before it is opened.

    Attributes
    ----------
    name : str
    classes : tuple of str
        Empty for those of the annotations.
    open_classes : bool
        Whether the user may name some, and objects of others are left out.
    train, val, test : tuple
        Lists of images; `val` guides training, `test` is for the final figures. VOC: (year or
        folder, name in ImageSets/Main); COCO: the name of the annotation file. Empty where a folder
        shows them, and where images are held back from training.
    short, max_size : int
        Images are scaled to this short side unless the long one would exceed max_size, pixels.
    anchor_scales, anchor_ratios : tuple of float
        Anchor sides in units of 16 pixels, and height / width.
    flip_p : float
        Probability of a horizontal flip in training; 0 where it would change the class.
    shown_class : str or None
        Class of the score-map picture; the most frequent one if None.
    paint : callable or None
        The painter of a generated set.
    recipe : str
        Name and version of the painter; a folder with another recipe is generated again.
    counts : dict of str to int
        Images per split of a generated set.
    """

    name: str
    classes: tuple[str, ...]
    train: tuple
    val: tuple
    test: tuple
    short: int
    max_size: int
    anchor_scales: tuple[float, ...]
    anchor_ratios: tuple[float, ...] = (0.5, 1.0, 2.0)
    flip_p: float = 0.5
    shown_class: str | None = None
    paint: Painter | None = None
    recipe: str = ""
    counts: dict[str, int] = field(default_factory=dict)
    open_classes: bool = False


_GENERATED: dict[str, Any] = {
    "train": ((2007, "trainval"),),
    "val": ((2007, "val"),),
    "test": ((2007, "test"),),
    "counts": {"trainval": 3000, "val": 100, "test": 300},
}
_PHOTOGRAPHS: dict[str, Any] = {
    "short": 600,
    "max_size": 1000,
    "anchor_scales": (2.0, 4.0, 8.0, 16.0, 32.0),
}

DATASETS = {
    spec.name: spec
    for spec in (
        DatasetSpec(
            name="signals",
            classes=signals.CLASSES,
            short=signals.IMAGE_SIZE,
            max_size=signals.IMAGE_SIZE,
            anchor_scales=(2.0, 3.5, 5.5),
            anchor_ratios=(1.0, 2.0),
            shown_class="signal_top",
            paint=signals.paint,
            recipe="signals-1",
            **_GENERATED,
        ),
        DatasetSpec(
            name="digits",
            classes=digits.CLASSES,
            short=digits.IMAGE_SIZE,
            max_size=digits.IMAGE_SIZE,
            anchor_scales=(1.5, 2.5, 4.0),
            anchor_ratios=(1.0, 1.6, 3.0),
            flip_p=0.0,
            shown_class="nine",
            paint=digits.paint,
            recipe="digits-1",
            **_GENERATED,
        ),
        DatasetSpec(
            name="voc",
            classes=VOCDetection.CLASSES,
            train=((2007, "trainval"), (2012, "trainval")),
            val=(),  # held back: the best checkpoint is not chosen on the test images
            test=((2007, "test"),),
            **_PHOTOGRAPHS,
        ),
        DatasetSpec(
            name="voc-like",
            classes=(),
            train=(),
            val=(),
            test=(),
            open_classes=True,
            **_PHOTOGRAPHS,
        ),
        DatasetSpec(
            name="coco",
            classes=tuple(COCODetection.CLASSES),
            train=("instances_train2017",),
            val=("instances_val2017",),
            test=("instances_val2017",),
            open_classes=True,
            **_PHOTOGRAPHS,
        ),
    )
}
