"""The data sets by name: `open_datasets` reads one, `ensure_dataset` generates a missing one."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Union

from gluoncv.data import COCODetection, VOCDetection

from ..errors import InputError
from . import digits, signals, voc_files
from .coco import COCOFolder
from .painting import Painter
from .voc import VOCFolder

Dataset = Union[VOCFolder, COCOFolder]


@dataclass(frozen=True)
class DatasetSpec:
    """What the commands need to know about a data set before it is opened.

    Attributes
    ----------
    name : str
    classes : tuple of str
        Empty when the user names them.
    train, val, test : tuple
        Lists of images; `val` guides training, `test` is for the final figures. VOC: (year or
        folder, name in ImageSets/Main); COCO: the name of the annotation file.
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
        Name and version of the painter; a folder of another recipe is generated anew.
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
            val=((2007, "test"),),
            test=((2007, "test"),),
            **_PHOTOGRAPHS,
        ),
        DatasetSpec(
            name="voc-like",
            classes=(),
            train=((".", "trainval"),),
            val=((".", "val"),),
            test=((".", "test"),),
            **_PHOTOGRAPHS,
        ),
        DatasetSpec(
            name="coco",
            classes=tuple(COCODetection.CLASSES),
            train=("instances_train2017",),
            val=("instances_val2017",),
            test=("instances_val2017",),
            **_PHOTOGRAPHS,
        ),
    )
}


def ensure_dataset(name: str, root: Path, seed: int) -> bool:
    """Generate an embedded data set under root unless it is there already.

    Returns
    -------
    bool
        True when images were written.

    Raises
    ------
    InputError
        The data set is not a generated one.
    """
    spec = DATASETS[name]
    if spec.paint is None:
        raise InputError(f"data: dataset '{name}' is not generated; pass its --dataset-root")
    return voc_files.generate(Path(root), spec.paint, spec.counts, seed, spec.recipe)


def open_datasets(
    spec: DatasetSpec, root: Path, purposes: Sequence[str], skip_broken: bool = False
) -> list[Dataset]:
    """Open a data set for several purposes, after a look at all of its files.

    Parameters
    ----------
    spec : DatasetSpec
    root : pathlib.Path
        Folder that holds the `VOC<year>` folders, or the annotations of COCO.
    purposes : sequence of {'train', 'val', 'test'}
    skip_broken : bool
        Leave out images of which a file is broken, and say how many, instead of refusing them.

    Returns
    -------
    list of VOCFolder or COCOFolder

    Raises
    ------
    InputError
        The folder, or every year of the purpose's lists, is missing; files are broken, each named
        in a line of its own; or a class that the user named has no object in the training images.
    """
    root = Path(root)
    if not root.is_dir():
        make = f"; 'python -m demo_rfcn data --dataset {spec.name}' makes it" if spec.paint else ""
        raise InputError(f"dataset: folder {root} of '{spec.name}' is missing{make}")
    datasets = [_open(spec, root, getattr(spec, purpose)) for purpose in purposes]
    broken = dict.fromkeys(sentence for dataset in datasets for sentence in dataset.broken)
    if broken:
        left_out = {path for dataset in datasets for path in dataset.left_out}
        images = left_out.union(*(dataset.images for dataset in datasets))
        some = f"{len(left_out)} of {len(images)} images"
        if not skip_broken:
            raise InputError(
                "\n".join(f"dataset: {sentence}" for sentence in broken)
                + f"; --skip-broken goes on without {some}"
            )
        print(f"demo_rfcn: dataset: --skip-broken leaves out {some}", file=sys.stderr)
    for dataset, purpose in zip(datasets, purposes):
        if not len(dataset):
            raise InputError(f"dataset: no image of {dataset} in {root} is whole")
        if purpose == "train" and not DATASETS[spec.name].classes:
            named = {spec.classes[int(row[4])] for rows in dataset.labels for row in rows}
            for name in spec.classes:
                if name not in named:
                    raise InputError(
                        f"dataset: class '{name}' of --classes has no object in the training "
                        f"images of {root}; found {', '.join(sorted(named))}"
                    )
    return datasets


def open_dataset(spec: DatasetSpec, root: Path, purpose: str, skip_broken: bool = False) -> Dataset:
    """Open a data set for one purpose; see `open_datasets`."""
    return open_datasets(spec, root, (purpose,), skip_broken)[0]


def _open(spec: DatasetSpec, root: Path, lists: tuple) -> Dataset:
    if spec.name == "coco":
        return COCOFolder(root, lists[0])
    present = tuple(entry for entry in lists if (root / f"VOC{entry[0]}").is_dir())
    return VOCFolder(root, present or lists, spec.classes)
