# SPDX-License-Identifier: Apache-2.0
"""Reading annotation files in COCO's format, from COCO itself and from labelling tools."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from ..errors import BrokenFile, InputError
from ..files import read_json
from .dataset import AnnotatedImage, AnnotatedObject, DetectionSet, plural

PARTS = ("images", "annotations", "categories")


def read_file(path: Path, folder: Path | None, classes: Sequence[str]) -> DetectionSet:
    """Read an annotation file; raise InputError if it or pycocotools is missing, or it is foreign.

    `folder` has the images; if it is None, they are where COCO 2017 has them. Without `classes`,
    those are all categories, in the order of the file. `area`, `iscrowd` and, beside `file_name`,
    `coco_url` may be absent. Boxes are clipped to their image.
    """
    if importlib.util.find_spec("pycocotools") is None:
        raise InputError("dataset: 'coco' needs pycocotools; run 'pip install pycocotools'")
    if not path.is_file():
        layout = "" if folder else f"; expected the COCO layout in {path.parents[1]}"
        raise InputError(f"dataset: {path} is missing{layout}")
    content = read_json(path, "dataset")
    lists = isinstance(content, dict) and [type(content.get(part)) is list for part in PARTS]
    if not lists or not all(lists):
        raise InputError(f"dataset: {path} does not hold lists of {', '.join(PARTS)}")
    categories = _read_categories(path, content["categories"])
    dataset = DetectionSet(path.stem, classes or list(categories.values()))
    dataset.annotated_classes, dataset.is_coco = set(categories.values()), True
    images: dict[int | str, AnnotatedImage] = {}
    for place, entry in enumerate(content["images"]):
        try:
            number = _field(entry, "id", (int, str))
            if number in images:
                raise BrokenFile(f"has the id of another image, {number}")
            images[number] = _image(path, folder, entry)
        except BrokenFile as error:
            dataset.broken.append(f"{path}: images[{place}] {error}")
            dataset.left_out.add(f"{path}: images[{place}]")
    _check_folder(path, folder, [image.path for image in images.values()])
    seen: set[int | str] = set()
    empty = 0
    for place, entry in enumerate(content["annotations"]):
        image = None
        try:
            image = images.get(_field(entry, "image_id", (int, str)))
            found = _object(entry, image, categories)
            if entry["id"] in seen:
                raise BrokenFile(f"has the id of another annotation, {entry['id']}")
            seen.add(entry["id"])
            if not min(*entry["bbox"][2:], entry.get("area", 1)) > 0:
                empty += 1
            elif image and not entry.get("ignore", 0):
                image.objects.append(found)
        except BrokenFile as error:
            faults = image.faults if image else dataset.broken
            faults.append(f"{path}: annotations[{place}] {error}")
    if empty:
        dataset.notes.append(f"{plural(empty, 'box', 'boxes')} without area left out of {path}")
    dataset.add_checked([images[n] for n in sorted(images, key=lambda n: (isinstance(n, str), n))])
    return dataset


def _read_categories(path: Path, entries: list) -> dict[int, str]:
    """Return the names of the categories by their ids, in the order of the file."""
    names: dict[int, str] = {}
    for place, entry in enumerate(entries):
        try:
            number, name = _field(entry, "id", int), _field(entry, "name", str).strip()
            if not name or number in names or name in names.values():
                other = "no name" if not name else "the name or id of another"
                raise BrokenFile(f"has {other}: {number} '{name}'")
            names[number] = name
        except BrokenFile as error:
            raise InputError(f"dataset: {path}: categories[{place}] {error}") from error
    if not names:
        raise InputError(f"dataset: {path} has no categories, expected at least one")
    return names


def _image(path: Path, folder: Path | None, entry: dict) -> AnnotatedImage:
    """Return an image as its entry describes it, without objects."""
    size = _field(entry, "width", (int, float)), _field(entry, "height", (int, float))
    if not 1 <= min(size) <= max(size) <= 2**31:
        raise BrokenFile(f"gives {size[0]} x {size[1]} as its size")
    url = str(entry.get("coco_url"))
    if not folder and "/" in url:
        image = Path(path.parents[1], *url.split("/")[-2:])
    else:
        image = _found(folder or path.parents[1] / path.stem.split("_", 1)[-1], entry)
    return AnnotatedImage(str(entry.get("file_name") or image.name), image, size, [], [])


def _found(folder: Path, entry: dict) -> Path:
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


def _object(
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
    image_width, image_height = image.size
    if x >= image_width or y >= image_height or x + width < 0 or y + height < 0:
        size = f"{image_width} x {image_height}"
        raise BrokenFile(f"has the box {box} outside its image of {size} pixels")
    if "area" in entry:
        _field(entry, "area", (int, float))
    if entry.get("iscrowd", 0) not in (0, 1):
        raise BrokenFile(f"has {entry['iscrowd']!r} for 'iscrowd'")
    ends = x, y, x + max(width - 1, 0), y + max(height - 1, 0)  # inclusive
    limits = (image_width - 1, image_height - 1) * 2
    inside = [min(max(side, 0), limit) for side, limit in zip(ends, limits)]
    return AnnotatedObject(
        categories[entry["category_id"]], inside, False, bool(entry.get("iscrowd", 0))
    )


def _field(entry: Any, name: str, kind: type | tuple[type, ...]) -> Any:
    """Return a field of an entry of the annotation file, if it is of the type."""
    value = entry.get(name) if isinstance(entry, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        raise BrokenFile(f"has {value!r} for '{name}'")
    return value
