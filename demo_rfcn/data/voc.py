"""Reading VOC-layout folders through GluonCV, with the checks that GluonCV leaves out."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree
from xml.parsers import expat

import numpy as np
from gluoncv.data import VOCDetection

from ..errors import BrokenFile, InputError
from .images import check_image, check_there

LABEL_WIDTH = 6  # x1, y1, x2, y2, class, difficult
PARTS = ("JPEGImages", "Annotations")


class VOCFolder(VOCDetection):
    """GluonCV's VOCDetection with given classes; labels are always (M, 6), M = 0 included.

    All files are looked at here. Broken ones are noted in `broken`, and their images left out.

    Parameters
    ----------
    root : str or pathlib.Path
        Folder that holds `VOC<year>` folders.
    splits : sequence of (int or str, str)
        Year (or folder name) and name of the list in ImageSets/Main, as in GluonCV.
    classes : sequence of str
        Lower-case names. An annotation that holds another name is broken.

    Attributes
    ----------
    broken : list of str
        One sentence for every broken file.
    left_out : set of str
        Paths of the images that are left out.

    Raises
    ------
    InputError
        A folder or list is missing or empty.
    """

    def __init__(self, root: Path | str, splits: Sequence[tuple], classes: Sequence[str]) -> None:
        self._class_names = tuple(classes)
        self._items: list[tuple[str, str]] = []
        self.broken: list[str] = []
        self.left_out: set[str] = set()
        super().__init__(root=str(root), splits=splits)

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names; the place in the tuple is the class index."""
        return self._class_names

    @property
    def labels(self) -> list[np.ndarray]:
        """Labels of all images, each (M, 6) float32."""
        return self._label_cache

    @property
    def images(self) -> list[str]:
        """Paths of all images."""
        return [self._image_path.format(*item) for item in self._items]

    def aspect_ratio(self, index: int) -> float:
        """Return width / height of an image as its annotation gives them."""
        width, height = self._im_shapes[index]
        return width / height

    def _load_items(self, splits: Sequence[tuple]) -> list[tuple[str, str]]:
        items = []
        for folder, name in splits:
            folder = Path(self._root, f"VOC{folder}" if isinstance(folder, int) else folder)
            path = folder / "ImageSets" / "Main" / f"{name}.txt"
            for wanted in (path, *(folder / part for part in PARTS)):
                if not wanted.exists():
                    raise InputError(
                        f"dataset: {wanted} is missing; expected a VOC layout with JPEGImages, "
                        f"Annotations and ImageSets/Main in {folder}"
                    )
            seen: set[str] = set()
            for image in read_list(path):
                if image in seen:
                    self.broken.append(f"{path} names {image} more than once")
                else:
                    seen.add(image)
                    items.append((str(folder), image))
        return items

    def _preload_labels(self) -> list[np.ndarray]:
        items: list[tuple[str, str]] = []
        labels = []
        for item in self._items:
            image = self._image_path.format(*item)
            size, faults = None, []
            try:
                size, rows = read_annotation(Path(self._anno_path.format(*item)), self.classes)
            except BrokenFile as error:
                faults.append(str(error))
            try:
                check_image(Path(image), size)
            except BrokenFile as error:
                faults.append(str(error))
            if faults:
                self.broken += faults
                self.left_out.add(image)
            else:
                self._im_shapes[len(items)] = size
                items.append(item)
                labels.append(rows)
        self._items = items
        return labels


def read_list(path: Path) -> list[str]:
    """Return the names in a list of images.

    Raises
    ------
    InputError
        The list is not text, or names nothing.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"dataset: {path} is not a list of images in UTF-8: {error}") from error
    # The lists of one class have rows "name 1", "name 0" and "name -1".
    names = [re.sub(r"\s+(-1|0|1)$", "", line.strip()) for line in lines]
    names = [name for name in names if name.strip("\0")]
    if not names:
        raise InputError(f"dataset: {path} names no image, expected one name per line")
    return names


def read_annotation(path: Path, classes: Sequence[str]) -> tuple[tuple[float, float], np.ndarray]:
    """Read the XML file of an image.

    <difficult>, <truncated> and <pose> may be absent. Boxes may reach out of the image by a pixel,
    as those of tools do that count from 0, or to the width instead of the last column; they are
    clipped.

    Parameters
    ----------
    path : pathlib.Path
    classes : sequence of str
        Lower-case names.

    Returns
    -------
    size : tuple of float
        Width and height of the image, pixels.
    labels : numpy.ndarray
        (M, 6) float32: x1, y1, x2, y2 (inclusive, counted from 0), class, difficult.

    Raises
    ------
    BrokenFile
    """
    check_there(path)
    try:
        data = path.read_bytes()
        guard = expat.ParserCreate()
        guard.EntityDeclHandler = _refuse_entity
        guard.Parse(data, True)
        root = ElementTree.fromstring(data)
    except (OSError, LookupError, ValueError, expat.ExpatError, ElementTree.ParseError) as error:
        raise BrokenFile(f"{path} is not whole XML: {error}") from error
    try:
        entry = _child(root, "size")
        width, height = _number(entry, "width"), _number(entry, "height")
        if min(width, height) < 1:
            raise BrokenFile(f"gives {width:g} x {height:g} as <size>, expected at least 1 x 1")
        rows = [_object(entry, width, height, classes) for entry in root.iter("object")]
    except BrokenFile as error:
        raise BrokenFile(f"{path} {error}") from error
    return (width, height), np.array(rows, np.float32).reshape(-1, LABEL_WIDTH)


def _refuse_entity(name: str, *_: object) -> None:
    """Entities of entities may grow a small file to gigabytes, and no annotation needs any."""
    raise ValueError(f"it declares an entity, '{name}'")


def _object(
    entry: ElementTree.Element, width: float, height: float, classes: Sequence[str]
) -> tuple:
    """Return x1, y1, x2, y2, class, difficult of an <object>."""
    name = (_child(entry, "name").text or "").strip().lower()
    if name not in classes:
        raise BrokenFile(f"holds class '{name}', expected one of {', '.join(classes)}")
    bounds = _child(entry, "bndbox")
    box = [_number(bounds, tag) for tag in ("xmin", "ymin", "xmax", "ymax")]
    x1, y1, x2, y2 = (side - 1 for side in box)  # VOC counts from 1
    shown = "of '{}' from ({:g}, {:g}) to ({:g}, {:g})".format(name, *box)
    if min(x1, y1) < -1 or x2 > width or y2 > height:
        raise BrokenFile(f"has a box {shown}, expected within (1, 1) to ({width:g}, {height:g})")
    x1, y1, x2, y2 = max(x1, 0), max(y1, 0), min(x2, width - 1), min(y2, height - 1)
    if not (x1 < x2 and y1 < y2):
        raise BrokenFile(f"has a box {shown}, expected xmin < xmax and ymin < ymax")
    difficult = (entry.findtext("difficult") or "").strip().lower() in ("1", "true")
    return x1, y1, x2, y2, classes.index(name), difficult


def _child(entry: ElementTree.Element, tag: str) -> ElementTree.Element:
    child = entry.find(tag)
    if child is None:
        raise BrokenFile(f"has <{entry.tag}> without <{tag}>")
    return child


def _number(entry: ElementTree.Element, tag: str) -> float:
    text = (_child(entry, tag).text or "").strip()
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise BrokenFile(f"has '{text}' for <{tag}>, expected a number")
    return value
