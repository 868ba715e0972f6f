# SPDX-License-Identifier: Apache-2.0
"""Reading annotation files in COCO's format, from COCO itself and from labelling tools."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from ..errors import BrokenFile, InputError
from ..files import read_json
from .dataset import (
    AnnotatedImage,
    AnnotatedObject,
    DetectionSet,
    clip_box,
    is_clipped,
    plural,
)
from .splits import SPLIT_NAMES, Source, find_split_folders

LISTS = ("images", "annotations", "categories")
#: Recognises the format: one of the lists begins within the first bytes of the file.
_LIST = re.compile(rb'"(images|annotations)"\s*:\s*\[')
_START = 2**16


class CocoFiles(NamedTuple):
    """An annotation file in COCO's format, and the folder of its images.

    If the folder is None, the images are where COCO 2017 has them.
    """

    annotations: Path
    images: Path | None

    def read(self, classes: Sequence[str]) -> DetectionSet:
        """Read the annotations; see `read_file`."""
        return read_file(self.annotations, self.images, classes)


def find_sources(root: Path) -> dict[str, Source | None] | None:
    """Return the annotation files of a folder by purpose; None if it has none.

    They are in the folder, in its folder `annotations`, or in one folder per split. Raises
    InputError if there are several for one purpose.
    """
    found: dict[str, Source | None] = dict.fromkeys(SPLIT_NAMES)
    files = [path for place in (root, root / "annotations") for path in _annotation_files(place)]
    instances = [path for path in files if path.stem.startswith("instances_")]
    files = instances or files
    folders = find_split_folders(root)
    for purpose, names in SPLIT_NAMES.items():
        named = [path for path in files if any(word in names for word in _words(path.stem))]
        if purpose == "train" and len(files) == 1:
            named = files
        inner = [path for folder in folders[purpose] for path in _annotation_files(folder)]
        if len(named or inner) > 1:
            several = ", ".join(str(path) for path in named or inner)
            flags = "--dataset coco --train-annotations FILE --train-images DIR"
            raise InputError(
                f"dataset: {several} may be the annotations for {purpose}: use {flags}"
            )
        if named:
            found[purpose] = CocoFiles(named[0], _image_folder(root, named[0].stem))
        elif inner:
            found[purpose] = CocoFiles(inner[0], inner[0].parent)
    return found if found["train"] else None


def _words(stem: str) -> list[str]:
    """Return the words of a file's name: instances and val for instances_val2017."""
    return re.findall("[a-z]+", stem.lower())


def _annotation_files(folder: Path) -> list[Path]:
    """Return the files in COCO's format, by their first bytes."""
    found = []
    for path in sorted(folder.glob("*.json")):
        with path.open("rb") as file:
            if _LIST.search(file.read(_START)):
                found.append(path)
    return found


def _image_folder(root: Path, stem: str) -> Path:
    """Return the folder of the images of an annotation file, instances_val for example."""
    split = stem.split("_", 1)[-1]
    places = [root / "images" / split, root / split, root / "images", root]
    return next(place for place in places if place.is_dir())


def read_file(path: Path, folder: Path | None, classes: Sequence[str]) -> DetectionSet:
    """Read an annotation file; raise InputError if it or pycocotools is missing, or it is foreign.

    `folder` has the images; if it is None, they are where COCO 2017 has them. Without `classes`,
    the set has all categories, in the order of the file. `area`, `iscrowd` and, with `file_name`,
    `coco_url` may be absent. Boxes are clipped by `clip_box`.
    """
    if importlib.util.find_spec("pycocotools") is None:
        raise InputError("dataset: 'coco' needs pycocotools; run 'pip install pycocotools'")
    if not path.is_file():
        layout = "" if folder else f"; expected the COCO layout in {path.parents[1]}"
        raise InputError(f"dataset: {path} is missing{layout}")
    content = read_json(path, "dataset")
    lists = isinstance(content, dict) and [type(content.get(part)) is list for part in LISTS]
    if not lists or not all(lists):
        raise InputError(f"dataset: {path} does not hold lists of {', '.join(LISTS)}")
    categories = _read_categories(path, content["categories"])
    for number in _dummy_categories(content):
        categories.pop(number, None)
    dataset = DetectionSet(path.stem, classes or list(categories.values()))
    dataset.annotated_classes, dataset.is_coco = set(categories.values()), True
    images: dict[int | str, AnnotatedImage] = {}
    for index, entry in enumerate(content["images"]):
        try:
            image_id = _field(entry, "id", (int, str))
            if image_id in images:
                raise BrokenFile(f"has the id of another image, {image_id}")
            images[image_id] = _read_image(path, folder, entry)
        except BrokenFile as error:
            dataset.broken.append(f"{path}: images[{index}] {error}")
            dataset.left_out.add(f"{path}: images[{index}]")
    _check_folder(path, folder, [image.path for image in images.values()])
    _refuse_shared_files(path, images.values())
    seen: set[int | str] = set()
    empty = ignored = 0
    for index, entry in enumerate(content["annotations"]):
        image = None
        try:
            image = images.get(_field(entry, "image_id", (int, str)))
            found = _read_object(entry, image, categories)
            if entry["id"] in seen:
                raise BrokenFile(f"has the id of another annotation, {entry['id']}")
            seen.add(entry["id"])
            if not min(*entry["bbox"][2:], entry.get("area", 1)) > 0:
                empty += 1
            elif entry.get("ignore", 0):
                ignored += 1
            elif image:
                image.objects.append(found)
        except BrokenFile as error:
            errors = image.errors if image else dataset.broken
            errors.append(f"{path}: annotations[{index}] {error}")
    if empty:
        dataset.notes.append(f"{plural(empty, 'box', 'boxes')} without area left out of {path}")
    if ignored:
        dataset.notes.append(f"{plural(ignored, 'object')} with 'ignore' left out of {path}")
    dataset.add_checked([images[n] for n in sorted(images, key=lambda n: (isinstance(n, str), n))])
    return dataset


def _read_categories(path: Path, entries: list) -> dict[int, str]:
    """Return the names of the categories by their ids, in the order of the file."""
    names: dict[int, str] = {}
    for index, entry in enumerate(entries):
        try:
            number, name = _field(entry, "id", int), _field(entry, "name", str).strip()
            if not name or number in names or name in names.values():
                other = "no name" if not name else "the name or id of another"
                raise BrokenFile(f"has {other}: {number} '{name}'")
            names[number] = name
        except BrokenFile as error:
            raise InputError(f"dataset: {path}: categories[{index}] {error}") from error
    if not names:
        raise InputError(f"dataset: {path} has no categories, expected at least one")
    return names


def _dummy_categories(content: dict[str, list]) -> set[int]:
    """Return the ids of categories that only group others, as Roboflow's first one: no class."""
    entries = content["categories"]
    groups = [entry.get("supercategory") for entry in entries]
    used = [each.get("category_id") for each in content["annotations"] if isinstance(each, dict)]
    return {
        entry["id"]
        for entry in entries
        if entry.get("supercategory") == "none" and entry["name"] in groups
        if entry["id"] not in used
    }


def _refuse_shared_files(path: Path, images: Iterable[AnnotatedImage]) -> None:
    """Add an error to images that have one file: some would be trained on, others scored."""
    owners: dict[Path, list[AnnotatedImage]] = {}
    for image in images:
        owners.setdefault(image.path, []).append(image)
    for file, several in owners.items():
        for image in several if len(several) > 1 else []:
            image.errors.append(f"{path}: {len(several)} images have the file {file}")


def _read_image(path: Path, folder: Path | None, entry: dict) -> AnnotatedImage:
    """Return an image as its entry describes it, without objects."""
    size = _field(entry, "width", (int, float)), _field(entry, "height", (int, float))
    if not 1 <= min(size) <= max(size) <= 2**31:
        raise BrokenFile(f"gives {size[0]} x {size[1]} as its size")
    url = str(entry.get("coco_url"))
    if not folder and "/" in url:
        image = Path(path.parents[1], *url.split("/")[-2:])
    else:
        image = _find_image(folder or path.parents[1] / path.stem.split("_", 1)[-1], entry)
    return AnnotatedImage(str(entry.get("file_name") or image.name), image, size, [], [])


def _find_image(folder: Path, entry: dict) -> Path:
    """Return the path of an image; tools write names with or without folders, of any system."""
    name = _field(entry, "file_name", str)
    pure = PurePosixPath(name.replace("\\", "/"))
    places = [folder / wanted for wanted in (name, pure, pure.name)]
    return next(filter(os.path.isfile, places), places[0])  # of any text, unlike Path.is_file


def _check_folder(path: Path, folder: Path | None, images: list[Path]) -> None:
    """Reject a folder that has none of the images, rather than report each missing file."""
    folder = folder or (images[0].parent if images else path)
    if not folder.exists():
        raise InputError(f"dataset: folder {folder} of images is missing")
    if len(images) > 1 and not any(map(os.path.isfile, images)):
        none = f"none of the {len(images)} images of {path} is there"
        where = f"the first would be {images[0]}; expected them in {folder}"
        raise InputError(f"dataset: {none}, {where}")


def _read_object(
    entry: dict, image: AnnotatedImage | None, categories: dict[int, str]
) -> AnnotatedObject:
    """Return the object of an annotation."""
    if image is None:
        raise BrokenFile(f"is of image {entry['image_id']}, which the file does not have")
    _field(entry, "id", (int, str))
    if _field(entry, "category_id", int) not in categories:
        raise BrokenFile(f"is of category {entry['category_id']}, which the file does not have")
    box = _field(entry, "bbox", list)
    numbers = all(isinstance(side, (int, float)) and abs(side) < 1e9 for side in box)  # no NaN
    if len(box) != 4 or not numbers or min(box[2:]) < 0:
        raise BrokenFile(f"has the box {box}, expected x, y, width, height")
    x, y, width, height = box
    ends = [x, y, x + width, y + height]
    inside = clip_box(ends, image.size)
    if inside is None:
        size = "{} x {}".format(*image.size)
        raise BrokenFile(f"has the box {box}, expected it within its image of {size} pixels")
    if "area" in entry:
        _field(entry, "area", (int, float))
    for mark in ("iscrowd", "ignore"):
        if entry.get(mark, 0) not in (0, 1):
            raise BrokenFile(f"has {entry[mark]!r} for '{mark}'")
    name, crowd = categories[entry["category_id"]], bool(entry.get("iscrowd", 0))
    return AnnotatedObject(name, inside, False, crowd, is_clipped(ends, inside))


def _field(entry: Any, name: str, kind: type | tuple[type, ...]) -> Any:
    """Return a field of an entry of the annotation file, if it is of the type."""
    value = entry.get(name) if isinstance(entry, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        raise BrokenFile(f"has {value!r} for '{name}'")
    return value
