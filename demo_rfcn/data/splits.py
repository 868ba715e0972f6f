# SPDX-License-Identifier: Apache-2.0
"""The parts of a data set: where they are, which images are held back, which were trained on."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Mapping, NamedTuple, Protocol

from ..errors import InputError
from .dataset import DIFFICULT, DetectionSet, ImageKey, Sample, plural

PURPOSES = ("train", "val", "test")
#: Names of the purposes in exports: of folders, lists and files, in any case.
SPLIT_NAMES = {"train": ("train",), "val": ("val", "valid", "validation"), "test": ("test",)}
#: The options that locate the files of a data set.
LOCATION = ("dataset_root", "train_annotations", "train_images", "val_annotations", "val_images")


class Source(Protocol):
    """Annotations of one purpose; equal sources are the same annotations."""

    def read(self, classes: Sequence[str]) -> DetectionSet:
        """Read the annotations and check the images; without classes, use the annotations'."""


class ValidationSplit(NamedTuple):
    """A share of the training images to hold back, chosen by a seed."""

    share: float = 0.1
    seed: int = 0


class RunImages(NamedTuple):
    """The images that a detector was trained on, and the images that its run held back.

    `location` is where the run's data set is, see `resolve_location`. `trained_on` is None if the
    checkpoint is of an earlier version, which did not store them.
    """

    location: Mapping[str, str]
    trained_on: tuple[ImageKey, ...] | None
    held_back: tuple[ImageKey, ...]

    def find_trained(self, dataset: DetectionSet, location: Mapping[str, str]) -> set[str] | None:
        """Return the names of those images of a data set that were trained on; None if unknown.

        An image is recognised by its content, at any location and under any name. At the location
        of the run, an image of unknown content is recognised by its name: its file was edited.
        """
        names = {sample.name for sample in dataset.samples}
        same_location = location == self.location
        if self.trained_on is None:
            held_back = {key.name for key in self.held_back}
            return names - held_back if same_location and held_back else None
        digests = {key.digest for key in self.trained_on}
        trained = {sample.name for sample in dataset.samples if sample.key.digest in digests}
        if same_location:
            digests |= {key.digest for key in self.held_back}
            edited = {sample.name for sample in dataset.samples if sample.key.digest not in digests}
            trained |= edited & {key.name for key in self.trained_on}
        return trained


def images_of_run(
    location: Mapping[str, str],
    train_set: DetectionSet,
    val_set: DetectionSet,
    before: RunImages | None,
) -> RunImages:
    """Return the images of a run, and those that its first weights were trained on `before`."""
    trained_on = [sample.key for sample in train_set.samples]
    if before and before.trained_on:
        same_location = before.location == location
        # Elsewhere a name stands for another image.
        trained_on += [key if same_location else key._replace(name="") for key in before.trained_on]
    held_back = [sample.key for sample in val_set.samples] if val_set.held_back else []
    return RunImages(location, tuple(dict.fromkeys(trained_on)), tuple(held_back))


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


def find_split_folders(root: Path) -> dict[str, list[Path]]:
    """Return the folders of each purpose in the folder of an export with one folder per split."""
    folders = sorted(filter(Path.is_dir, root.glob("*")))
    return {
        purpose: [path for path in folders if path.name.lower() in names]
        for purpose, names in SPLIT_NAMES.items()
    }


def split_dataset(
    dataset: DetectionSet, purpose: str, split: ValidationSplit, trained_on: Collection[str]
) -> tuple[DetectionSet, list[str]]:
    """Return the images to train on, or the held-back ones for another purpose; and notes.

    `trained_on` are the names of images that the first weights were trained on: they are held back
    only if the others are too few. Raises InputError if nothing or everything would be held back.
    """
    names = {sample.name for sample in dataset.samples}
    held_back = _choose_held_back(dataset, split, trained_on)
    if not held_back or held_back == names:
        count = plural(len(names), "image")
        needed = "validation needs at least two annotated images of different content"
        raise InputError(f"dataset: {dataset} has {count}, and {needed}")
    some = f"{len(held_back)} of {plural(len(names), 'image')} of {dataset}"
    notes = [f"held back from training, for validation: {some}"]
    if purpose == "train":
        return dataset.subset(f"{dataset} without held-back images", names - held_back), notes
    chosen = dataset.subset(f"held-back images of {dataset}", held_back)
    chosen.held_back = True
    return chosen, notes


def leave_out_trained(
    dataset: DetectionSet, trained_on: Collection[str]
) -> tuple[DetectionSet, list[str]]:
    """Return the images that a detector was not trained on, or all if it was on all; and notes."""
    names = {sample.name for sample in dataset.samples}
    unseen = names.difference(trained_on)
    if not unseen or unseen == names:
        return dataset, []
    some = f"{len(names) - len(unseen)} of {plural(len(names), 'image')} of {dataset}"
    chosen = dataset.subset(f"held-back images of {dataset}", unseen)
    return chosen, [f"left out, because the detector was trained on them: {some}"]


def choose_indices(dataset: DetectionSet, limit: int | None) -> list[int]:
    """Return the indices of at most `limit` images, chosen by chance, the same ones in every call.

    The files may be sorted by class, or begin with images without objects. Images with objects and
    those without are chosen in proportion, and at least one with objects.
    """
    count = len(dataset)
    if limit is None or limit >= count:
        return list(range(count))
    kinds: dict[bool, list[str]] = {True: [], False: []}
    for sample in _shuffle(dataset, seed=0):
        kinds[_is_annotated(sample)].append(sample.name)
    share = max(round(limit * len(kinds[True]) / count), limit - len(kinds[False]))
    share = max(share, min(len(kinds[True]), 1))
    chosen = {*kinds[True][:share], *kinds[False][: limit - share]}
    return [index for index, sample in enumerate(dataset.samples) if sample.name in chosen]


def _choose_held_back(
    dataset: DetectionSet, split: ValidationSplit, trained_on: Collection[str]
) -> set[str]:
    """Choose the names of the images to hold back from training.

    Images with objects and those without are divided in the same way, and at least one with objects
    is held back. Images of equal content stay together.
    """
    copies: dict[str, list[Sample]] = {}
    for sample in _shuffle(dataset, split.seed):
        copies.setdefault(sample.digest, []).append(sample)
    chosen: list[str] = []
    for annotated in (True, False):
        groups = [group for group in copies.values() if any(map(_is_annotated, group)) == annotated]
        groups.sort(key=lambda group: any(sample.name in trained_on for sample in group))
        rest = sum(map(len, groups))
        count = round(split.share * rest)
        if annotated and rest > 1:
            count = min(max(count, 1), rest - 1)
        for group in groups:
            if count > 0 and (len(group) < rest or count == rest):
                chosen += [sample.name for sample in group]
                count, rest = count - len(group), rest - len(group)
    return set(chosen)


def _is_annotated(sample: Sample) -> bool:
    """Return whether an image has an object that is not difficult."""
    return bool((sample.labels[:, DIFFICULT] == 0).any())


def _shuffle(dataset: DetectionSet, seed: int) -> list[Sample]:
    """Return the images in an order by chance.

    The seed gives each image a place that does not depend on the other images, so few images change
    sides when some are added.
    """

    def place(sample: Sample) -> bytes:
        return hashlib.sha256(os.fsencode(f"{seed} {sample.name}")).digest()

    return sorted(dataset.samples, key=place)
