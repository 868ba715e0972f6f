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
    """Properties of a data set that commands need before it is opened."""

    name: str
    #: Those of the annotations if empty.
    classes: tuple[str, ...]
    #: Lists of images; `val` guides training, `test` gives the final figures. VOC: (year or folder,
    #: name in ImageSets/Main); COCO: the name of the annotation file. If empty, the lists in the
    #: folder, or images that are held back from training.
    train: tuple = ()
    val: tuple = ()
    test: tuple = ()
    #: Images are scaled to this short side unless the long one would exceed max_size, pixels.
    short: int = 600
    max_size: int = 1000
    #: Anchor sides in units of 16 pixels, and height / width.
    anchor_scales: tuple[float, ...] = (2.0, 4.0, 8.0, 16.0, 32.0)
    anchor_ratios: tuple[float, ...] = (0.5, 1.0, 2.0)
    #: Probability of a horizontal flip in training; 0 if a flip would change the class.
    flip_p: float = 0.5
    #: Whether the user may name classes, and objects of others are left out.
    open_classes: bool = False
    #: Class of the score-map picture; the most frequent one if None.
    shown_class: str | None = None
    #: Of a generated set: its painter, the painter's name and version, and images per split.
    #: A folder of another recipe is generated again.
    paint: Painter | None = None
    recipe: str = ""
    counts: dict[str, int] = field(default_factory=dict)


_GENERATED: dict[str, Any] = {
    "train": ((2007, "trainval"),),
    "val": ((2007, "val"),),
    "test": ((2007, "test"),),
    "counts": {"trainval": 3000, "val": 100, "test": 300},
    "short": signals.IMAGE_SIZE,
    "max_size": signals.IMAGE_SIZE,
}

DATASETS = {
    spec.name: spec
    for spec in (
        DatasetSpec(
            "signals",
            signals.CLASSES,
            anchor_scales=(2.0, 3.5, 5.5),
            anchor_ratios=(1.0, 2.0),
            shown_class="signal_top",
            paint=signals.paint,
            recipe="signals-1",
            **_GENERATED,
        ),
        DatasetSpec(
            "digits",
            digits.CLASSES,
            anchor_scales=(1.5, 2.5, 4.0),
            anchor_ratios=(1.0, 1.6, 3.0),
            flip_p=0.0,
            shown_class="nine",
            paint=digits.paint,
            recipe="digits-1",
            **_GENERATED,
        ),
        # Validation images are held back: the best checkpoint is not chosen on the test images.
        DatasetSpec(
            "voc",
            VOCDetection.CLASSES,
            train=((2007, "trainval"), (2012, "trainval")),
            test=((2007, "test"),),
        ),
        DatasetSpec("voc-like", (), open_classes=True),
        DatasetSpec(
            "coco",
            tuple(COCODetection.CLASSES),
            train=("instances_train2017",),
            val=("instances_val2017",),
            test=("instances_val2017",),
            open_classes=True,
        ),
    )
}
