# SPDX-License-Identifier: Apache-2.0
"""The data sets by name: `open_datasets` reads one, `ensure_dataset` generates a missing one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gluoncv.data import COCODetection, VOCDetection

from ..errors import InputError
from . import coco, generate, signals, voc, yolo
from .coco import CocoFiles
from .dataset import CLASS, DetectionSet, first_names, plural
from .splits import (
    LOCATION,
    PURPOSES,
    RunImages,
    Source,
    ValidationSplit,
    folder_name,
    leave_out_trained,
    resolve_location,
    split_dataset,
)

__all__ = [
    "DATASETS",
    "LOCATION",
    "CocoFiles",
    "DatasetSpec",
    "RunImages",
    "ValidationSplit",
    "ensure_dataset",
    "folder_name",
    "open_datasets",
    "resolve_location",
]


@dataclass(frozen=True)
class DatasetSpec:
    """Properties of a data set that commands need before it is opened."""

    name: str
    #: If empty, the classes of the annotations.
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
    #: Name and version of the painter of a generated data set, and images per split.
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


def open_datasets(
    spec: DatasetSpec,
    root: Path,
    purposes: Sequence[str],
    skip_broken: bool = False,
    files: dict[str, CocoFiles] | None = None,
    split: ValidationSplit | None = None,
    find_trained: Callable[[DetectionSet], set[str] | None] = lambda dataset: set(),
) -> list[DetectionSet]:
    """Check all files of a data set, and open it for several purposes: train, val, test.

    A data set without classes has the classes of its training images; if it has some, objects of
    other classes are left out. A `test` without a list is `val`. A `val` without one is the part of
    `train` that the `split` holds back; without `split`, the images of `train` that are not among
    those that `find_trained` returns, or all if that leaves none. `find_trained` returns the names
    of the images that the detector, or its first weights, was trained on, or None if that is
    unknown; `trained_on` of the sets to score has these images and the training images.

    `files` replace the root of a COCO set. Assumptions and omissions are printed once. Raises
    InputError if a folder or list is missing, files are broken (each has a line), or a named class
    has no object to train on.
    """
    root = Path(root)
    sources = _find_sources(spec, root, files)
    sources["test"] = sources["test"] or sources["val"]
    read: dict[Source, DetectionSet] = {}
    chosen: dict[str, Source] = {}
    classes = spec.classes
    for purpose in (*(() if classes else ("train",)), *purposes):
        source = sources[purpose] or sources["train"]
        if not source:
            without = f"without images for '{purpose}', expected --{purpose}-annotations"
            raise InputError(f"dataset: '{spec.name}' {without}")
        chosen[purpose] = source
        if source not in read:
            read[source] = source.read(classes)
            classes = classes or read[source].classes
    _refuse_broken([*read.values()], skip_broken)
    notes = [] if spec.classes else [f"classes of the annotations: {', '.join(classes)}"]
    for dataset in read.values():
        notes += dataset.notes
        if not len(dataset):
            raise InputError(f"dataset: no image of {dataset} in {root} is complete")
    if "train" in purposes and spec.open_classes:
        _check_classes(spec, read[chosen["train"]], root)

    opened = []
    for purpose in purposes:
        dataset = read[chosen[purpose]]
        if not sources["val"] and (purpose == "train" or not sources[purpose]):
            more: list[str] = []
            trained_on = find_trained(dataset) or set()
            if split:
                dataset, more = split_dataset(dataset, purpose, split, trained_on)
            elif purpose != "train":
                dataset, more = leave_out_trained(dataset, trained_on)
            notes += more
        opened.append(dataset)
    notes += _mark_trained(purposes, opened, find_trained)
    for note in dict.fromkeys(notes):
        print(f"dataset: {note}")
    return opened


def _find_sources(
    spec: DatasetSpec, root: Path, files: dict[str, CocoFiles] | None
) -> dict[str, Source | None]:
    """Return the annotations of each purpose; None for a purpose without annotations."""
    if files:
        return {purpose: files.get(purpose) for purpose in PURPOSES}
    if not root.is_dir():
        make = f"; 'python -m demo_rfcn data --dataset {spec.name}' makes it" if spec.recipe else ""
        raise InputError(f"dataset: folder {root} of '{spec.name}' is missing{make}")
    if spec.name == "voc-like":
        for form in (voc, yolo, coco):
            if found := form.find_sources(root):
                return found
        raise InputError(
            f"dataset: {root} has none of the three forms: VOC (Annotations/*.xml and JPEGImages, "
            "or *.xml with the images), COCO (a *.json with lists of images and annotations), "
            "YOLO (data.yaml, images and labels/*.txt)"
        )
    sources: dict[str, Source | None] = {}
    for purpose in PURPOSES:
        lists = getattr(spec, purpose)
        if spec.name == "coco":
            sources[purpose] = CocoFiles(root / "annotations" / f"{lists[0]}.json", None)
        else:
            present = tuple(each for each in lists if (root / f"VOC{each[0]}").is_dir()) or lists
            sources[purpose] = voc.VocLists(root, present, spec.open_classes) if present else None
    return sources


def _mark_trained(
    purposes: Sequence[str],
    datasets: Sequence[DetectionSet],
    find_trained: Callable[[DetectionSet], set[str] | None],
) -> list[str]:
    """Set `trained_on` of the data sets to score; return notes about images in several sets."""
    train_sets = [each for purpose, each in zip(purposes, datasets) if purpose == "train"]
    digests = {sample.digest for dataset in train_sets for sample in dataset.samples}
    notes = []
    for purpose, dataset in zip(purposes, datasets):
        if purpose == "train":
            continue
        before = find_trained(dataset)
        now = {sample.name for sample in dataset.samples if sample.digest in digests}
        dataset.trained_on = None if before is None and not digests else now.union(before or ())
        if digests and dataset.trained_on:
            some = f"{len(dataset.trained_on)} of {plural(len(dataset), 'image')} of {dataset}"
            names = first_names(sorted(dataset.trained_on))
            notes.append(f"scored, although they are trained on: {some} ({names})")
    return notes


def _refuse_broken(datasets: list[DetectionSet], skip_broken: bool) -> None:
    """Raise an error that names broken files, or with `skip_broken` report them."""
    broken = dict.fromkeys(sentence for dataset in datasets for sentence in dataset.broken)
    if not broken:
        return
    left_out = {path for dataset in datasets for path in dataset.left_out}
    images = left_out.union(sample.path for dataset in datasets for sample in dataset.samples)
    some = f"{len(left_out)} of {len(images)} images"
    if not skip_broken:
        sentences = "\n".join(f"dataset: {sentence}" for sentence in broken)
        raise InputError(f"{sentences}; --skip-broken continues without {some}")
    print(f"demo_rfcn: dataset: --skip-broken leaves out {some}", file=sys.stderr)


def _check_classes(spec: DatasetSpec, train_set: DetectionSet, root: Path) -> None:
    """Refuse a class without objects, a typing error perhaps; COCO's files may list unused ones."""
    named = {train_set.classes[int(row[CLASS])] for rows in train_set.labels for row in rows}
    if not named:
        raise InputError(f"dataset: {train_set} has no object, expected at least one")
    for name in spec.classes:
        if name not in named and (spec.name != "coco" or name not in train_set.annotated_classes):
            raise InputError(
                f"dataset: class '{name}' of --classes has no object in the training images of "
                f"{root}; found {', '.join(sorted(train_set.annotated_classes))}"
            )


def ensure_dataset(name: str, root: Path, seed: int) -> bool:
    """Write a generated data set into a folder, unless it is there; return whether it was written.

    See `generate.write_dataset` for what is refused.
    """
    spec = DATASETS[name]
    if not spec.recipe:
        raise InputError(f"data: dataset '{name}' is not generated; pass its --dataset-root")
    recipe = {"recipe": spec.recipe, "seed": seed, "splits": spec.counts}
    return generate.write_dataset(Path(root), recipe)
