# SPDX-License-Identifier: Apache-2.0
"""Reading folders in the layout of PASCAL VOC, the original and that of labelling tools."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree
from xml.parsers import expat

import numpy as np

from ..errors import BrokenFile, InputError
from ..progress import Progress
from .dataset import LABEL_WIDTH, DetectionSet, Entry, counted
from .images import boxes_as_meant, check_image, check_there, has_suffix

PARTS = ("JPEGImages", "Annotations")
LISTS = Path("ImageSets", "Main")


class VOCObject(NamedTuple):
    """An <object>: its class, its box (inclusive, counted from 0), and a flag."""

    name: str
    box: tuple[float, float, float, float]
    difficult: bool


class VOCFolder(DetectionSet):
    """Images of VOC folders.

    Parameters
    ----------
    root : str or pathlib.Path
    splits : sequence of (int or str, str or None)
        Year (the folder VOC<year>) or folder, and name of the list in ImageSets/Main, as in
        GluonCV; None for all that have an annotation.
    classes : sequence of str or None
        Those of the annotations, sorted, if None.
    leaves_out : bool
        Whether an object of another class is left out and counted. Otherwise its file is broken.

    Raises
    ------
    InputError
        A folder or list is missing or empty.
    """

    def __init__(
        self,
        root: Path | str,
        splits: Sequence[tuple[int | str, str | None]],
        classes: Sequence[str] | None,
        leaves_out: bool = False,
    ) -> None:
        folders = (f"VOC{folder}" if isinstance(folder, int) else folder for folder, _ in splits)
        parts = [
            f"{Path(root, folder).resolve().name} {name or ''}".strip()
            for folder, (_, name) in zip(folders, splits)
        ]
        super().__init__(" and ".join(parts), classes or (), ())
        self._outside: Counter[str] = Counter()
        self._turned = 0
        read: list[tuple[Entry, list[VOCObject]]] = []
        for folder, name in splits:
            place = Path(root, f"VOC{folder}" if isinstance(folder, int) else folder)
            self._read_folder(place, str(folder), name, None if leaves_out else classes, read)
        self.known = {each.name for _, found in read for each in found}
        if classes is None:
            self.classes = tuple(sorted(self.known))
        self._note_case()
        self.entries = [self._labelled(entry, found) for entry, found in read]
        self._note_outside(self._outside, " left out, of classes")
        self._note_turned(self._turned)

    def _read_folder(
        self,
        folder: Path,
        title: str,
        list_name: str | None,
        allowed: Sequence[str] | None,
        read: list,
    ) -> None:
        path = folder / LISTS / f"{list_name}.txt"
        places = _places(folder)
        for wanted in (*([path] if list_name else []), *places):
            if not wanted.exists():
                raise InputError(
                    f"dataset: {wanted} is missing; expected a VOC layout with JPEGImages, "
                    f"Annotations and ImageSets/Main in {folder}"
                )
        files = _Files(*places)
        if list_name:
            names = [files.known(line) for line in read_list(path)]
        else:
            names = files.annotated()
            self._note_unannotated(files.unannotated())
        for name, count in Counter(names).items():
            if count > 1:
                self.broken.append(f"{path} names {name} more than once")
        progress = Progress(len(names), "looking at files", "images", brief=True)
        for name in progress.over(dict.fromkeys(names)):
            faults: list[str] = []
            image, xml = files.first_image(name), files.annotation(name)
            try:
                size, found = read_annotation(xml, allowed)
            except BrokenFile as error:
                faults.append(str(error))
            try:
                files.check_one_image(name)
                header = check_image(image)
                if not faults:
                    boxes = np.array([each.box for each in found], np.float32).reshape(-1, 4)
                    boxes, turned = boxes_as_meant(image, header, size, boxes)
                    self._turned += turned
            except BrokenFile as error:
                faults.append(str(error))
            if faults:
                self.broken += faults
                self.left_out.add(str(image))
            else:
                known = name if title == "." else f"{title}/{name}"
                entry = Entry(known, str(image), header, boxes, np.zeros(0, bool))
                read.append((entry, found))

    def _note_unannotated(self, names: list[str]) -> None:
        if names:
            shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
            count = counted(len(names), "image")
            self.notes.append(f"{count} without annotation left out: {shown}")

    def _labelled(self, entry: Entry, found: Iterable[VOCObject]) -> Entry:
        """Give an entry, which has boxes alone, the labels of its objects."""
        rows = []
        for box, each in zip(entry.labels, found):
            if each.name in self.classes:
                rows.append((*box, self.classes.index(each.name), each.difficult))
            else:
                self._outside[each.name] += 1
        labels = np.array(rows, np.float32).reshape(-1, LABEL_WIDTH)
        return entry._replace(labels=labels, crowd=np.zeros(len(labels), bool))


def _places(folder: Path) -> tuple[Path, Path]:
    """Return the folders of images and annotations; some tools write both into one."""
    images, annotations = (folder / part for part in PARTS)
    if not images.exists() and not annotations.exists() and any(folder.glob("*.[xX][mM][lL]")):
        return folder, folder
    return images, annotations


class _Files:
    """The files of a VOC folder by their names without endings."""

    def __init__(self, images: Path, annotations: Path) -> None:
        self._images, self._annotations = images, annotations
        self._of_name: dict[str, list[str]] = {}
        for path in sorted(self._images.iterdir()):
            if has_suffix(path):
                self._of_name.setdefault(path.stem, []).append(path.name)
        self._xml = {
            path.stem: path
            for path in sorted(self._annotations.iterdir())
            if path.suffix.lower() == ".xml"
        }

    def annotated(self) -> list[str]:
        """Return the names of all annotations."""
        if not self._xml:
            raise InputError(f"dataset: {self._annotations} holds no annotation, expected *.xml")
        return list(self._xml)

    def unannotated(self) -> list[str]:
        """Return the file names of the images without annotation."""
        return [each for name, of in self._of_name.items() if name not in self._xml for each in of]

    def known(self, line: str) -> str:
        """Return the name that a line of a list means.

        The lists of one class have rows "name 1", "name 0" and "name -1"; but a name may end so.
        """
        short = re.sub(r"\s+(-1|0|1)$", "", line)
        candidates = [line, short]
        candidates += [
            str(Path(each).with_suffix("")) for each in candidates if has_suffix(Path(each))
        ]
        for name in candidates:
            if name in self._xml or name in self._of_name:
                return name
        return short

    def first_image(self, name: str) -> Path:
        """Return the path of an image, or the one that it is expected to have."""
        return self._images / self._of_name.get(name, [f"{name}.jpg"])[0]

    def check_one_image(self, name: str) -> None:
        """Refuse a name that two images have."""
        found = self._of_name.get(name, [])
        if len(found) > 1:
            raise BrokenFile(f"{self._images / found[0]} has the name of {', '.join(found[1:])}")

    def annotation(self, name: str) -> Path:
        """Return the path of an annotation, or the one that it is expected to have."""
        return self._xml.get(name, self._annotations / f"{name}.xml")


def read_list(path: Path) -> list[str]:
    """Return the lines of a list of images.

    Raises
    ------
    InputError
        The list is not text, or names nothing.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"dataset: {path} is not a list of images in UTF-8: {error}") from error
    names = [line.strip() for line in lines]
    names = [name for name in names if name.strip("\0")]
    if not names:
        raise InputError(f"dataset: {path} names no image, expected one name per line")
    return names


def read_annotation(
    path: Path, classes: Sequence[str] | None
) -> tuple[tuple[float, float], list[VOCObject]]:
    """Read the XML file of an image.

    <difficult>, <truncated> and <pose> may be absent. Boxes may reach out of the image by a pixel,
    as those of tools do that count from 0, or to the width instead of the last column; they are
    clipped.

    Parameters
    ----------
    path : pathlib.Path
    classes : sequence of str or None
        The names that an object may have; any if None.

    Returns
    -------
    size : tuple of float
        Width and height of the image, pixels.
    objects : list of VOCObject
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
        found = [_object(entry, width, height, classes) for entry in root.iter("object")]
    except BrokenFile as error:
        raise BrokenFile(f"{path} {error}") from error
    return (width, height), found


def _refuse_entity(name: str, *_: object) -> None:
    """Entities of entities may grow a small file to gigabytes, and no annotation needs any."""
    raise ValueError(f"it declares an entity, '{name}'")


def _object(
    entry: ElementTree.Element, width: float, height: float, classes: Sequence[str] | None
) -> VOCObject:
    name = (_child(entry, "name").text or "").strip()
    if not name or (classes is not None and name not in classes):
        expected = "a name" if classes is None else f"one of {', '.join(classes)}"
        raise BrokenFile(f"holds class '{name}', expected {expected}")
    bounds = _child(entry, "bndbox")
    box = [_number(bounds, tag) for tag in ("xmin", "ymin", "xmax", "ymax")]
    x1, y1, x2, y2 = (side - 1 for side in box)  # VOC counts from 1
    shown = "of '{}' from ({:g}, {:g}) to ({:g}, {:g})".format(name, *box)
    if min(x1, y1) < -1 or x2 > width or y2 > height:
        raise BrokenFile(f"has a box {shown}, expected within (1, 1) to ({width:g}, {height:g})")
    x1, y1, x2, y2 = max(x1, 0), max(y1, 0), min(x2, width - 1), min(y2, height - 1)
    if not (x1 <= x2 and y1 <= y2):
        raise BrokenFile(f"has a box {shown}, expected xmin <= xmax and ymin <= ymax")
    difficult = (entry.findtext("difficult") or "").strip().lower() in ("1", "true")
    return VOCObject(name, (x1, y1, x2, y2), difficult)


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
