# SPDX-License-Identifier: Apache-2.0
"""The data sets by name: `open_datasets` reads one, `ensure_dataset` generates a missing one."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gluoncv.data import COCODetection, VOCDetection

from ..errors import InputError
from ..files import read_json, writing
from . import coco, signals, voc
from .dataset import DetectionSet, plural


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
    paint: Callable[[np.random.Generator], Any] | None = None
    recipe: str = ""
    counts: dict[str, int] = field(default_factory=dict)


DATASETS = {
    spec.name: spec
    for spec in (
        DatasetSpec(
            "signals",
            signals.CLASSES,
            train=((2007, "trainval"),),
            val=((2007, "val"),),
            test=((2007, "test"),),
            short=signals.SIZE,
            max_size=signals.SIZE,
            anchor_scales=(2.0, 3.5, 5.5),
            anchor_ratios=(1.0, 2.0),
            shown_class="signal_top",
            paint=signals.paint,
            recipe="signals-1",
            counts={"trainval": 3000, "val": 100, "test": 300},
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


class CocoFiles(NamedTuple):
    """An annotation file in COCO's format, and the folder of its images."""

    annotations: Path
    images: Path


class ValidationSplit(NamedTuple):
    """Images held back from training: their names, or a share chosen by a seed."""

    share: float = 0.1
    seed: int = 0
    names: set[str] | None = None


def open_datasets(
    spec: DatasetSpec,
    root: Path,
    purposes: Sequence[str],
    skip_broken: bool = False,
    files: dict[str, CocoFiles] | None = None,
    held: ValidationSplit | None = None,
) -> list[DetectionSet]:
    """Check all files of a data set, and open it for several purposes: train, val, test.

    A voc-like or COCO set without classes has those of its training images; if it has some, objects
    of others are left out. A `test` without its own list is `val`, and a `val` without one is the
    part of `train` that is held back, or all of it if `held` is None. `files` replace the root of a
    COCO set. Assumptions and omissions are printed once. Raises InputError if a folder or list is
    missing, files are broken (each has a line), or a named class has no object to train on.
    """
    root = Path(root)
    if not files and not root.is_dir():
        make = f"; 'python -m demo_rfcn data --dataset {spec.name}' makes it" if spec.paint else ""
        raise InputError(f"dataset: folder {root} of '{spec.name}' is missing{make}")
    lists = {purpose: _lists(spec, root, purpose, files) for purpose in ("train", "val", "test")}
    lists["test"] = lists["test"] or lists["val"]
    read: dict[Any, DetectionSet] = {}
    classes = spec.classes
    for purpose in (*(() if classes else ("train",)), *purposes):
        key = lists[purpose] or lists["train"]
        if not key:
            without = f"without images for '{purpose}', expected --{purpose}-annotations"
            raise InputError(f"dataset: '{spec.name}' {without}")
        if key not in read:
            if spec.name == "coco":
                read[key] = coco.read_file(key[0], key[1], classes)
            else:
                read[key] = voc.read_folders(root, key, classes, spec.open_classes)
            classes = classes or read[key].classes
    _refuse_broken([*read.values()], skip_broken)
    notes = [] if spec.classes else [f"classes of the annotations: {', '.join(classes)}"]
    for dataset in read.values():
        notes += dataset.notes
        if not len(dataset):
            raise InputError(f"dataset: no image of {dataset} in {root} is whole")
    if "train" in purposes and spec.open_classes:
        _check_classes(spec, read[lists["train"]], root)

    opened = []
    for purpose in purposes:
        dataset = read[lists[purpose] or lists["train"]]
        if held and not lists["val"] and (purpose == "train" or not lists[purpose]):
            dataset = _divided(dataset, purpose, held, notes)
        opened.append(dataset)
    for note in dict.fromkeys(notes):
        print(f"dataset: {note}")
    return opened


def _lists(spec: DatasetSpec, root: Path, purpose: str, files: dict[str, CocoFiles] | None) -> Any:
    """Return the sources of a purpose: VOC's folders and lists, or COCO's files; None if none."""
    if files:
        return files.get(purpose)
    wanted = getattr(spec, purpose)
    if spec.name == "coco":
        return root / "annotations" / f"{wanted[0]}.json", None
    if spec.name != "voc-like":
        present = tuple(entry for entry in wanted if (root / f"VOC{entry[0]}").is_dir())
        return present or wanted or None
    names = {path.stem for path in (root / voc.LISTS).glob("*.txt")}
    if purpose != "train":
        return ((".", purpose),) if purpose in names else None
    order = ("train", "trainval") if "val" in names else ("trainval", "train")
    return ((".", next((name for name in order if name in names), None)),)


def _refuse_broken(datasets: list[DetectionSet], skip_broken: bool) -> None:
    """Raise an error that names broken files, or with `skip_broken` report them."""
    broken = dict.fromkeys(sentence for dataset in datasets for sentence in dataset.broken)
    if not broken:
        return
    left_out = {path for dataset in datasets for path in dataset.left_out}
    images = left_out.union(entry.path for dataset in datasets for entry in dataset.samples)
    some = f"{len(left_out)} of {len(images)} images"
    if not skip_broken:
        sentences = "\n".join(f"dataset: {sentence}" for sentence in broken)
        raise InputError(f"{sentences}; --skip-broken continues without {some}")
    print(f"demo_rfcn: dataset: --skip-broken leaves out {some}", file=sys.stderr)


def _check_classes(spec: DatasetSpec, train_set: DetectionSet, root: Path) -> None:
    """Refuse a class without objects, a typing error perhaps; COCO's files list some of those."""
    named = {train_set.classes[int(row[4])] for rows in train_set.labels for row in rows}
    if not named:
        raise InputError(f"dataset: {train_set} has no object, expected at least one")
    for name in spec.classes:
        if name not in named and (spec.name != "coco" or name not in train_set.annotated_classes):
            raise InputError(
                f"dataset: class '{name}' of --classes has no object in the training images of "
                f"{root}; found {', '.join(sorted(train_set.annotated_classes))}"
            )


def _divided(
    dataset: DetectionSet, purpose: str, held: ValidationSplit, notes: list[str]
) -> DetectionSet:
    """Return the training images that are not held back, or for another purpose those that are."""
    names = {entry.name for entry in dataset.samples}
    back = _choose(dataset, held) if held.names is None else held.names & names
    if not back or back == names:
        few = "are too few to hold back some for validation, expected two with objects"
        raise InputError(f"dataset: {len(names)} images of {dataset} {few}")
    some = f"{len(back)} of {plural(len(names), 'image')} of {dataset}"
    notes.append(f"{some} are held back from training, for validation")
    if purpose == "train":
        return dataset.subset(f"{dataset} without those held back", names - back)
    chosen = dataset.subset(f"those held back of {dataset}", back)
    chosen.held_back = True
    return chosen


def _choose(dataset: DetectionSet, held: ValidationSplit) -> set[str]:
    """Choose the names of the images to hold back from training.

    The seed gives each image a place in an order that does not depend on the other images, so few
    images change sides when some are added. Images with boxes and those without are divided in the
    same way, and at least one with boxes is held back.
    """
    chosen: set[str] = set()
    for annotated in (True, False):
        names = [entry.name for entry in dataset.samples if bool(len(entry.labels)) == annotated]
        names.sort(key=lambda name: hashlib.sha256(os.fsencode(f"{held.seed} {name}")).digest())
        count = round(held.share * len(names))
        if annotated and len(names) > 1:
            count = min(max(count, 1), len(names) - 1)
        chosen.update(names[:count])
    return chosen


def ensure_dataset(name: str, root: Path, seed: int) -> bool:
    """Generate an embedded data set under root unless it is there; return whether it was made.

    Image i of a split is painted by its own generator, seeded with (seed, split, i), so a larger
    split begins with the images of a smaller one. The set is moved to its place when complete: an
    interrupted call leaves nothing half made. A folder of another recipe is generated again.
    """
    spec, recipe_path = DATASETS[name], root / "recipe.json"
    if spec.paint is None:
        raise InputError(f"data: dataset '{name}' is not generated; pass its --dataset-root")
    recorded = {"recipe": spec.recipe, "seed": seed, "splits": spec.counts}
    if recipe_path.is_file() and read_json(recipe_path, "data") == recorded:
        return False
    if root.is_file():
        raise InputError(f"data: {root} is a file, expected a folder")
    if root.exists() and any(root.iterdir()) and not recipe_path.is_file():
        others = "files that this command did not write; expected an empty folder"
        raise InputError(f"data: {root} holds {others}")
    with writing(root):
        root.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{root.name}-", dir=root.parent) as work:
            made = Path(work, "made")
            voc.write_splits(made / voc.YEAR_FOLDER, spec.paint, spec.counts, seed, spec.recipe)
            (made / recipe_path.name).write_text(json.dumps(recorded, indent=2) + "\n")
            if root.exists():
                shutil.rmtree(root)
            os.replace(made, root)
    return True
