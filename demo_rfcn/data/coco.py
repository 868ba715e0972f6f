# SPDX-License-Identifier: Apache-2.0
"""Reading annotation files in COCO's format, from COCO itself and from labelling tools."""

from __future__ import annotations

import importlib.util
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from ..errors import BrokenFile, InputError
from ..files import read_json
from ..progress import Progress
from .dataset import LABEL_WIDTH, DetectionSet, Entry, counted
from .images import Header, boxes_as_meant, check_image


class COCOFolder(DetectionSet):
    """Images of an annotation file; crowds count as difficult.

    Images without boxes are kept. Broken images and broken entries of the annotation file are
    noted, and their images left out. Boxes are clipped to their image. `area`, `iscrowd` and,
    beside `file_name`, `coco_url` may be absent.

    Parameters
    ----------
    annotations : pathlib.Path
        The JSON file.
    images : pathlib.Path or None
        The folder of the images; if None, that of COCO 2017 for this annotation file.
    classes : sequence of str or None
        Objects of other categories are left out and counted; all categories of the file, in its
        order, if None.

    Raises
    ------
    InputError
        pycocotools or the annotation file is missing, or that file is not COCO's.
    """

    def __init__(
        self, annotations: Path, images: Path | None, classes: Sequence[str] | None
    ) -> None:
        if importlib.util.find_spec("pycocotools") is None:
            raise InputError("dataset: 'coco' needs pycocotools; run 'pip install pycocotools'")
        if not annotations.is_file():
            layout = "" if images else f"; expected the COCO layout in {annotations.parents[1]}"
            raise InputError(f"dataset: {annotations} is missing{layout}")
        if images and not images.is_dir():
            raise InputError(f"dataset: folder {images} of images is missing")
        super().__init__(annotations.stem, (), ())
        self.of_coco = True
        self._path, self._folder = annotations, images
        self._empty, self._turned = 0, 0
        self._outside: Counter[str] = Counter()

        content = read_json(annotations, "dataset")
        parts = ("images", "annotations", "categories")
        if not isinstance(content, dict) or not all(
            isinstance(content.get(part), list) for part in parts
        ):
            raise InputError(f"dataset: {annotations} does not hold lists of {', '.join(parts)}")
        categories = self._read_categories(content["categories"])
        self.known = set(categories.values())
        self.classes = tuple(categories.values() if classes is None else classes)
        self._note_case()
        found = self._read_images(content["images"])
        self._check_folder(found)
        whole = self._read_annotations(content["annotations"], categories, found)
        self._numbers = sorted(whole, key=lambda number: (isinstance(number, str), number))
        for number in self._numbers:
            self._add(found[number], whole[number])
        self._note()

    def image_id(self, index: int) -> int | str:
        """Return the file's number of an image."""
        return self._numbers[index]

    def _read_categories(self, entries: list) -> dict[int, str]:
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
                raise InputError(f"dataset: {self._path}: categories[{place}] {error}") from error
        if not names:
            raise InputError(f"dataset: {self._path} has no categories, expected at least one")
        return names

    def _read_images(self, entries: list) -> dict[int | str, dict]:
        """Return the entries of images by their ids, each with `path` and, if whole, `header`."""
        found: dict[int | str, dict] = {}
        progress = Progress(len(entries), "looking at files", "images", brief=True)
        for place, entry in enumerate(progress.over(entries)):
            path = f"{self._path}: images[{place}]"
            try:
                number = _field(entry, "id", (int, str))
                if number in found:
                    raise BrokenFile(f"has the id of another image, {number}")
                size = _field(entry, "width", (int, float)), _field(entry, "height", (int, float))
                if not 1 <= min(size) <= max(size) <= 2**31:
                    raise BrokenFile(f"gives {size[0]} x {size[1]} as its size")
                image = self._image_path(entry)
                found[number] = entry = {**entry, "path": image, "size": size}
                path = str(image)
                if not self._folder and not image.parent.is_dir():
                    raise InputError(f"dataset: folder {image.parent} of images is missing")
            except BrokenFile as error:
                self.broken.append(f"{path} {error}")
                self.left_out.add(path)
                continue
            try:
                header = check_image(image)
                boxes_as_meant(image, header, size, np.zeros((0, 4)))
                entry["header"] = header
            except BrokenFile as error:
                self.broken.append(str(error))
                self.left_out.add(path)
        return found

    def _check_folder(self, images: dict[int | str, dict]) -> None:
        """Reject a folder that has none of the images, rather than report each missing file."""
        paths = [entry["path"] for entry in images.values()]
        if len(paths) > 1 and not any(map(os.path.isfile, paths)):
            raise InputError(
                f"dataset: none of the {len(paths)} images of {self._path} is there, the first "
                f"would be {paths[0]}; expected them in {self._folder or paths[0].parent}"
            )

    def _image_path(self, entry: dict) -> Path:
        """Return where an image lies; tools write names with or without folders, of any system."""
        name = str(entry.get("coco_url")) if not self._folder else ""
        if "/" in name:
            return Path(self._path.parents[1], *name.split("/")[-2:])
        name = _field(entry, "file_name", str)
        folder = self._folder or self._path.parents[1] / self._path.stem.split("_", 1)[-1]
        pure = PurePosixPath(name.replace("\\", "/"))
        for wanted in (Path(name), Path(pure), Path(pure.name)):
            if os.path.isfile(folder / wanted):  # of any text, unlike Path.is_file
                return folder / wanted
        return folder / name

    def _read_annotations(
        self, entries: list, categories: dict[int, str], images: dict[int | str, dict]
    ) -> dict[int | str, list[dict]]:
        """Return the annotations of the images of which nothing is broken, by image."""
        whole: dict[int | str, list[dict]] = {
            number: [] for number, entry in images.items() if "header" in entry
        }
        seen: set[int | str] = set()
        for place, entry in enumerate(entries):
            image = None
            try:
                image = images.get(_field(entry, "image_id", (int, str)))
                _check_annotation(entry, image, categories)
                if entry["id"] in seen:
                    raise BrokenFile(f"has the id of another annotation, {entry['id']}")
                seen.add(entry["id"])
                name = categories[entry["category_id"]]
                *_, width, height = entry["bbox"]
                if not min(width, height, entry.get("area", 1)) > 0:
                    self._empty += 1
                elif name not in self.classes:
                    self._outside[name] += 1
                elif image and image["id"] in whole and not entry.get("ignore", 0):
                    whole[image["id"]].append({**entry, "class": self.classes.index(name)})
            except BrokenFile as error:
                self.broken.append(f"{self._path}: annotations[{place}] {error}")
                if image and image["id"] in whole:
                    del whole[image["id"]]
                    self.left_out.add(str(image["path"]))
        return whole

    def _add(self, image: dict, annotations: list[dict]) -> None:
        header: Header = image["header"]
        width, height = image["size"]
        boxes = np.array([entry["bbox"] for entry in annotations], np.float64).reshape(-1, 4)
        boxes[:, 2:] = boxes[:, :2] + np.maximum(boxes[:, 2:] - 1, 0)  # inclusive ends
        boxes = np.clip(boxes, 0, [width - 1, height - 1] * 2)
        boxes, turned = boxes_as_meant(image["path"], header, image["size"], boxes)
        self._turned += turned
        crowd = np.array([bool(entry.get("iscrowd", 0)) for entry in annotations], bool)
        classes = [[entry["class"]] for entry in annotations]
        labels = np.zeros((len(annotations), LABEL_WIDTH), np.float32)
        if annotations:
            labels[:] = np.hstack([boxes, classes, crowd[:, None]])
        name = str(image.get("file_name") or image["path"].name)
        self.entries.append(Entry(name, str(image["path"]), header, labels, crowd))

    def _note(self) -> None:
        if self._empty:
            boxes = counted(self._empty, "box", "boxes")
            self.notes.append(f"{boxes} without area left out of {self._path}")
        self._note_outside(self._outside, f" of {self._path} left out, of categories")
        self._note_turned(self._turned)


def _field(entry: Any, name: str, kind: type | tuple[type, ...]) -> Any:
    """Return a field of an entry of the annotation file, if it is of the type."""
    value = entry.get(name) if isinstance(entry, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        raise BrokenFile(f"has {value!r} for '{name}'")
    return value


def _check_annotation(entry: dict, image: dict | None, categories: dict) -> None:
    """Check an annotation of an image."""
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
    image_width, image_height = image["size"]
    if x >= image_width or y >= image_height or x + width < 0 or y + height < 0:
        size = f"{image_width} x {image_height}"
        raise BrokenFile(f"has the box {box} outside its image of {size} pixels")
    if "area" in entry:
        _field(entry, "area", (int, float))
    if entry.get("iscrowd", 0) not in (0, 1):
        raise BrokenFile(f"has {entry['iscrowd']!r} for 'iscrowd'")
