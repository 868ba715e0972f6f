# SPDX-License-Identifier: Apache-2.0
"""The parts of a data set by purpose: where they are, and which images are held back."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Mapping, NamedTuple, Protocol

from ..errors import InputError
from .dataset import DetectionSet, plural

PURPOSES = ("train", "val", "test")
#: Folders of the purposes in exports with one folder per split.
SPLIT_FOLDERS = {"train": ("train",), "val": ("valid", "val", "validation"), "test": ("test",)}
#: The options that locate the files of a data set.
LOCATION = ("dataset_root", "train_annotations", "train_images", "val_annotations", "val_images")


class Source(Protocol):
    """Annotations of one purpose; equal sources are the same annotations."""

    def read(self, classes: Sequence[str]) -> DetectionSet:
        """Read the annotations and check the images; without classes, use the annotations'."""


class ValidationSplit(NamedTuple):
    """Images held back from training: their names, or a share chosen by a seed."""

    share: float = 0.1
    seed: int = 0
    names: set[str] | None = None


def resolve_location(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the data set's name and the resolved paths of its files.

    All spellings of a path are equal: relative and absolute ones, `../d` and symbolic links.
    `options` has the data set's name as `dataset`, and values of `LOCATION`.
    """
    # Annotation files replace the folder, so that its default does not count.
    files = options.get("train_annotations") or options.get("val_annotations")
    used = LOCATION[1:] if files else LOCATION[:1]
    paths = {name: options[name] for name in used if options.get(name)}
    return {
        "dataset": str(options["dataset"]),
        **{name: str(Path(path).resolve()) for name, path in paths.items()},
    }


def folder_name(location: Mapping[str, str]) -> str:
    """Return the name of the folder of a location: the root, or the images of a COCO file."""
    names = ("dataset_root", "val_images", "train_images")
    return Path(next(location[name] for name in names if name in location)).name


def split_dataset(
    dataset: DetectionSet, purpose: str, split: ValidationSplit
) -> tuple[DetectionSet, str]:
    """Return the images to train on, or the held-back ones for another purpose; and a note.

    Raises InputError if nothing or everything would be held back.
    """
    names = {sample.name for sample in dataset.samples}
    held_back = _choose_held_back(dataset, split) if split.names is None else split.names & names
    if not held_back or held_back == names:
        count = plural(len(names), "image")
        needed = "validation needs at least two annotated images"
        raise InputError(f"dataset: {dataset} has {count}, and {needed}")
    some = f"{len(held_back)} of {plural(len(names), 'image')} of {dataset}"
    note = f"held back from training, for validation: {some}"
    if purpose == "train":
        return dataset.subset(f"{dataset} without held-back images", names - held_back), note
    chosen = dataset.subset(f"held-back images of {dataset}", held_back)
    chosen.held_back = True
    return chosen, note


def _choose_held_back(dataset: DetectionSet, split: ValidationSplit) -> set[str]:
    """Choose the names of the images to hold back from training.

    The seed gives each image a place in an order that does not depend on the other images, so few
    images change sides when some are added. Images with boxes and those without are divided in the
    same way, and at least one with boxes is held back.
    """
    chosen: set[str] = set()
    for annotated in (True, False):
        names = [each.name for each in dataset.samples if bool(len(each.labels)) == annotated]
        names.sort(key=lambda name: hashlib.sha256(os.fsencode(f"{split.seed} {name}")).digest())
        count = round(split.share * len(names))
        if annotated and len(names) > 1:
            count = min(max(count, 1), len(names) - 1)
        chosen.update(names[:count])
    return chosen
